"""The routes: read a request, one call, write the reply."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from pathlib import Path

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException
from starlette.routing import BaseRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from looktwice import __version__
from looktwice.errors import ImageError, LookTwiceError
from looktwice.model import AsyncModel
from looktwice.pictures.collection import Source
from looktwice.pictures.image import encode_png
from looktwice.service import Limits, bodies, documentation, events, oip, profiles
from looktwice.service.bodies import Opened, Upload
from looktwice.service.dispatcher import Dispatcher
from looktwice.service.guards import Counters, Guard, Tokens
from looktwice.service.label_studio import Backend, Studio
from looktwice.service.metrics import Metrics
from looktwice.service.replies import LooksReply, Refusal, UnscoredReply, VerdictReply
from looktwice.verdicts.look import Verdict
from looktwice.verdicts.policy import DecisionOptions
from looktwice.verdicts.review import ReviewFolder

LOG = logging.getLogger("looktwice.service")
OPEN = ("/healthz", "/readyz", "/v2/health/live", "/v2/health/ready")
"""Paths that need no token, besides the files of the page."""


@dataclass(frozen=True)
class ServiceSettings:
    """The settings of the service: how verdicts are made, and who may ask for how much."""

    model: AsyncModel
    decide: DecisionOptions = field(default_factory=DecisionOptions)
    level: float = 0.95
    """How certain the guarantee is, also where the options were found by trying several."""
    limits: Limits = field(default_factory=Limits)
    tokens: Tokens = field(default_factory=Tokens)
    names: tuple[str, ...] = ()
    """Host names under which it is reached, besides localhost and addresses."""
    review: ReviewFolder | None = None
    """Where pictures are kept whose verdict is for review; None keeps none."""
    studio: Studio | None = None
    """The Label Studio to which it is an ML backend."""


def build(settings: ServiceSettings) -> ASGIApp:
    """The application, guarded; the caller closes the model."""
    dispatcher = Dispatcher(settings.model, settings.decide, settings.limits)
    metrics = Metrics(dispatcher)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await dispatcher.close()
        if settings.studio:
            await settings.studio.close()

    app = FastAPI(
        title="looktwice",
        version=__version__,
        summary="How far to trust a closed image classifier, picture by picture.",
        lifespan=lifespan,
        docs_url=None,  # they would fetch scripts from elsewhere
        redoc_url=None,
    )
    described = _Looking(dispatcher, settings, metrics).add_to(app)
    _add_profile(app, dispatcher, settings)
    _add_health(app, dispatcher, metrics)
    page = PageFiles.named(Path(__file__).parent / "page", "index.html")
    for path, file in page.items():
        app.add_route(path, file, include_in_schema=False)
    add_refusals(app, metrics)
    app.openapi = lambda: documentation.described(app, described)  # type: ignore[method-assign]
    return Guard(app, settings.tokens, settings.names, {*OPEN, *page}, metrics)


class PageFiles(StaticFiles):
    """The files of a page; a browser asks each time whether one has changed."""

    @classmethod
    def named(cls, folder: Path, index: str | None = None) -> dict[str, Callable[[Request], Awaitable[Response]]]:
        """Every file by its path, `/` is the page itself; no other path ever reaches the disk."""
        names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
        files = cls(directory=folder)
        paths = ({"/": index} if index else {}) | {f"/page/{name}": name for name in names}
        return {path: partial(files.reply, name) for path, name in paths.items()}

    async def reply(self, name: str, request: Request) -> Response:
        """One file, or 304 if the client has it already."""
        response = await self.get_response(name, request.scope)
        response.headers["cache-control"] = "no-cache"
        return response


class _Looking:
    """The routes that give verdicts."""

    def __init__(self, dispatcher: Dispatcher, settings: ServiceSettings, metrics: Metrics) -> None:
        self._dispatcher, self._limits, self._metrics = dispatcher, settings.limits, metrics
        self._review = settings.review
        self._studio, self._profile = settings.studio, settings.model.fitted()
        self._panel = dispatcher.policy.panel
        self._views = tuple(map(str, self._panel))
        self._drawing = asyncio.Semaphore(2)  # because a large picture and its view take memory

    def add_to(self, app: FastAPI) -> list[BaseRoute]:
        """Register the routes; those that come back are for their description.

        They take the request as it is, so FastAPI need not look for parameters in it: a twelfth of a look's time.
        """
        described = APIRouter()
        for path, route, about in (
            ("/v1/look", self.look, documentation.LOOK),
            ("/v1/looks", self.looks, documentation.LOOKS),
            ("/v1/burst", self.burst, documentation.BURST),
            ("/v1/look/events", self.look_events, documentation.LOOK_EVENTS),
            ("/v1/burst/events", self.burst_events, documentation.BURST_EVENTS),
            ("/v2/models/looktwice/infer", self.infer, documentation.INFER),
        ):
            app.add_route(path, route, methods=["POST"])
            described.add_api_route(path, route, methods=["POST"], **about)
        if self._studio:
            Backend(self._studio, self._look, self._profile, self._limits, self._metrics).add_to(app)
        return described.routes

    async def look(self, request: Request) -> Response:
        """The verdict on one picture."""
        self._dispatcher.admit(1)
        upload = await bodies.one(request, self._limits)
        verdict = await self._look(self._opened(upload))
        return _json(VerdictReply.of(verdict, upload.name))

    async def looks(self, request: Request) -> Response:
        """The verdicts on several pictures, in their order; a picture that has none says why."""
        self._dispatcher.admit(1)
        uploads = await bodies.several(request, self._limits)
        self._dispatcher.admit(len(uploads))
        return _json(LooksReply.model_construct(verdicts=await asyncio.gather(*map(self._verdict, uploads))))

    async def burst(self, request: Request) -> Response:
        """The one verdict on several photos of one thing, the first of which is the picture, the others its views."""
        self._dispatcher.admit(1)
        uploads = await self._photos(request)
        verdict = await self._timed(self._dispatcher.burst([self._opened(upload) for upload in uploads]))
        return _json(VerdictReply.of(verdict, uploads[0].name))

    async def look_events(self, request: Request) -> Response:
        """The same as events: the picture, each answer as it comes, the verdict, and the views as they are drawn."""
        self._dispatcher.admit(1)
        upload = await bodies.one(request, self._limits)
        shown = await self._shown(upload, events.PICTURE_SIDE)

        async def draw(emit: events.Emit) -> None:
            async with self._drawing:
                asker = self._dispatcher.asker
                await events.draw(emit, shown.source, asker.terms.working_size, self._panel, asker.seed)

        async def work(emit: events.Emit) -> None:
            emit("picture", events.picture_event(shown, upload.name, self._views))
            drawing = asyncio.create_task(draw(emit))
            try:
                verdict = await self._timed(self._dispatcher.look(shown.source, events.answers(emit)))
                await self._keep(verdict, self._opened(upload))
                emit("verdict", VerdictReply.of(verdict, upload.name).model_dump())
                await drawing
            finally:
                drawing.cancel()

        return _stream(work)

    async def burst_events(self, request: Request) -> Response:
        """The same as events: the photos, each answer as it comes, and the verdict."""
        self._dispatcher.admit(1)
        uploads = await self._photos(request)
        first = await self._shown(uploads[0], events.PICTURE_SIDE)
        others = [await self._shown(upload, events.VIEW_SIDE) for upload in uploads[1:]]

        async def work(emit: events.Emit) -> None:
            emit("picture", events.picture_event(first, uploads[0].name, [u.name for u in uploads[1:]]))
            for place, photo in enumerate(others, 1):
                emit("view", {"place": place, "picture": photo.thumbnail})
            sources = [photo.source for photo in (first, *others)]
            verdict = await self._timed(self._dispatcher.burst(sources, events.answers(emit)))
            emit("verdict", VerdictReply.of(verdict, uploads[0].name).model_dump())

        return _stream(work)

    async def infer(self, request: Request) -> Response:
        """The Open Inference Protocol: pictures in, label and confidence out, or any part of the verdict."""
        try:
            self._dispatcher.admit(1)
            body = await bodies.read(request, self._limits)
            asked = await asyncio.to_thread(oip.read, body, request.headers.get(oip.HEADER_LENGTH), self._limits)
            self._dispatcher.admit(len(asked.sources))
            verdicts = await asyncio.gather(*map(self._look, asked.sources))
            return asked.reply(verdicts)
        except Refusal as refusal:
            self._metrics.refused(refusal.code)
            return oip.refuse(refusal)

    async def _photos(self, request: Request) -> list[Upload]:
        uploads = await bodies.photos(request, self._limits, self._dispatcher.asker.terms.working_size)
        self._dispatcher.admit(len(uploads))
        return uploads

    def _opened(self, upload: Upload) -> Source:
        return Opened(upload, self._limits.pixels)

    async def _shown(self, upload: Upload, side: int) -> events.Shown:
        try:
            return await asyncio.to_thread(
                events.Shown.of, self._opened(upload), side, self._dispatcher.asker.terms.working_size
            )
        except ImageError as error:
            raise Refusal("picture", str(error)) from None

    async def _verdict(self, upload: Upload) -> VerdictReply | UnscoredReply:
        try:
            return VerdictReply.of(await self._look(self._opened(upload)), upload.name)
        except Refusal as refusal:
            self._metrics.refused(refusal.code)
            return UnscoredReply(name=upload.name, problem=refusal.problem())

    async def _look(self, source: Source) -> Verdict:
        verdict = await self._timed(self._dispatcher.look(source))
        await self._keep(verdict, source)
        return verdict

    async def _keep(self, verdict: Verdict, source: Source) -> None:
        """Keep a picture that somebody is to review; one that cannot be kept still has its verdict."""
        if self._review is None or verdict.decision != "review":
            return

        def kept(review: ReviewFolder) -> None:
            review.add(verdict, source.data if isinstance(source, Opened) else encode_png(source.image("").pixels))

        try:
            await asyncio.to_thread(kept, self._review)
        except (OSError, LookTwiceError) as error:
            LOG.warning("a picture is not kept for review: %s", error)

    async def _timed(self, work: Awaitable[Verdict]) -> Verdict:
        began = time.perf_counter()
        verdict = await work
        self._metrics.count_verdict(verdict, time.perf_counter() - began)
        return verdict


def _add_profile(app: FastAPI, dispatcher: Dispatcher, settings: ServiceSettings) -> None:
    figure = profiles.reliability(dispatcher.policy)

    @app.get("/v1/profile", **documentation.PROFILE)
    async def profile() -> Response:
        """What the verdicts rest on: classifier, views, figures and the threshold."""
        return _json(profiles.described(dispatcher, settings.level))

    @app.get("/v1/profile/reliability.svg", **documentation.FIGURE)
    async def reliability() -> Response:
        """The reliability diagram: how often answers of each confidence were right."""
        return Response(figure, media_type="image/svg+xml")


def _add_health(app: FastAPI, dispatcher: Dispatcher, metrics: Metrics) -> None:
    async def alive() -> Response:
        """The process runs."""
        return JSONResponse({"status": "ok"})

    async def ready() -> Response:
        """Pictures can be looked at."""
        state = dispatcher.state()
        if not state.ready:
            raise Refusal("unavailable", state.reason, state.retry_after)
        if blocked := await asyncio.to_thread(dispatcher.asker.blocked):
            raise Refusal("unavailable", blocked)
        return JSONResponse({"status": "ok"})

    async def numbers() -> Response:
        """Figures for Prometheus."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def server() -> Response:
        """The server, in the words of the Open Inference Protocol."""
        return JSONResponse(oip.SERVER)

    async def model() -> Response:
        """The model's inputs and outputs, in the words of the Open Inference Protocol."""
        return JSONResponse(oip.METADATA)

    app.get("/healthz", **documentation.HEALTH)(alive)
    app.get("/v2/health/live", **documentation.HEALTH)(alive)
    for path in ("/readyz", "/v2/health/ready", "/v2/models/looktwice/ready"):
        app.get(path, **documentation.READY)(ready)
    app.get("/metrics", **documentation.METRICS)(numbers)
    app.get("/v2", **documentation.OIP)(server)
    app.get("/v2/models/looktwice", **documentation.OIP)(model)


def add_refusals(app: FastAPI, counters: Counters) -> None:
    """Have every error answered as a problem that says what to do."""

    async def refused(_: Request, error: Exception) -> Response:
        if isinstance(error, Refusal):
            refusal = error
        elif isinstance(error, HTTPException):
            code = {404: "missing", 405: "method"}.get(error.status_code, "request")
            detail = f"{error.detail or HTTPStatus(error.status_code).phrase}; see /openapi.json for what there is"
            refusal = Refusal(code, detail, allow=(error.headers or {}).get("Allow"))
        else:
            refusal = Refusal("internal", "something broke in the service; its log says what")
        counters.refused(refusal.code)
        return refusal.response()

    app.add_exception_handler(Refusal, refused)
    app.add_exception_handler(HTTPException, refused)
    app.add_exception_handler(Exception, refused)


def _json(reply: VerdictReply | LooksReply | profiles.ProfileReply) -> Response:
    return Response(reply.model_dump_json(), media_type=bodies.JSON)


def _stream(work: Callable[[events.Emit], Awaitable[None]]) -> Response:
    headers = {"x-accel-buffering": "no"}
    return StreamingResponse(events.stream(work), headers=headers, media_type="text/event-stream")
