"""The HTTP routes: each reads a request, makes one call and writes the reply; for one picture, the reply may be a
stream of events."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from http import HTTPStatus
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from looktwice.model import (
    AnswerEvent,
    AnyVerdict,
    AsyncModel,
    DecisionOptions,
    ImageError,
    LookTwiceError,
    OnAnswer,
    Picture,
    Pixels,
    ReviewFolder,
    Verdict,
    WorkingSize,
    data_url,
    shrunk,
)
from looktwice.service import ServiceLimits, bodies
from looktwice.service.bodies import FORM, JSON, PROBLEM, LooksReply, Opened, PictureBody, Refusal
from looktwice.service.guards import Counters, Guard, Tokens, log_refusal
from looktwice.service.looks import Looks, Metrics, ProfileReply, described

NO_FIGURE = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1" width="0" height="0"></svg>'
"""A text that replaces the reliability diagram if there are no labelled pictures."""
LOG = logging.getLogger("looktwice.service")
OPEN = ("/healthz", "/readyz")
"""Paths that require no token, besides the page's files."""
EVENT_STREAM = "text/event-stream"
Emit = Callable[[str, dict[str, object]], None]
"""Sends an event: its name and its data."""

MOST_DRAWN = 24
"""The maximum number of views drawn."""
VIEW_SIDE, PICTURE_SIDE = 256, 512
"""The number of pixels on the longer side of a thumbnail."""
HEARTBEAT = 15.0
"""Seconds of silence after which a stream sends a keep-alive."""

# What FastAPI cannot see of a route: bodies of several types, replies that are not models -----------------------------

Route = dict[str, Any]
"""Keyword arguments of a FastAPI route, or a part of an OpenAPI document."""

SVG = "image/svg+xml"
FILE = {"type": "string", "format": "binary"}
PICTURE = PictureBody.model_json_schema()
PROBLEMS: dict[int | str, Route] = {
    "default": {
        "description": "why there is no verdict; `code` is for programs, `detail` for people",
        "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}


def _plain(kind: str) -> Route:
    """A route whose reply is not a model."""
    schema = {"type": "object" if kind in (JSON, EVENT_STREAM) else "string"}
    return {"responses": {200: {"content": {kind: {"schema": schema}}}}, "response_class": Response}


def _body(field: str, form: Route, picture: Route, *raw: str) -> Route:
    """A body: a form with files, JSON with base64, or the bytes of one file."""
    content = {
        FORM: {"schema": {"type": "object", "properties": {field: form}, "required": [field]}},
        JSON: {"schema": picture},
        **{kind: {"schema": FILE} for kind in raw},
    }
    return {"openapi_extra": {"requestBody": {"required": True, "content": content}}}


_ONE = _body("image", FILE, PICTURE, "image/png", "image/jpeg", "application/octet-stream")
_LIST = {"type": "array", "minItems": 1}
_SEVERAL = _body(
    "images",
    _LIST | {"items": FILE},
    {
        "type": "object",
        "properties": {"images": _LIST | {"items": PICTURE}},
        "required": ["images"],
        "additionalProperties": False,
    },
)


# Routes ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ServiceSettings:
    """The settings of the service for decisions, access control and limits."""

    model: AsyncModel
    decide: DecisionOptions = field(default_factory=DecisionOptions)
    level: float = 0.95
    """The level of the guarantee, corrected if it was selected among several."""
    limits: ServiceLimits = field(default_factory=ServiceLimits)
    tokens: Tokens = field(default_factory=Tokens)
    names: tuple[str, ...] = ()
    """Allowed host names, besides localhost and IP addresses."""
    review: ReviewFolder | None = None
    """The folder in which pictures are stored for review; with None, no picture is stored."""


def build(settings: ServiceSettings) -> ASGIApp:
    """The application, with access control; the caller closes the model."""
    looks = Looks(settings.model, settings.decide, settings.limits)
    metrics = Metrics(looks)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await looks.close()

    app = FastAPI(
        title="looktwice",
        version=version("looktwice"),
        summary="How far to trust a black-box image classifier, picture by picture.",
        lifespan=lifespan,
        docs_url=None,  # they would fetch scripts from elsewhere
        redoc_url=None,
        responses=PROBLEMS,
        dependencies=[Depends(HTTPBearer(auto_error=False))] if settings.tokens.hashes else [],
    )
    _Routes(looks, settings, metrics).add_to(app)
    page = page_files(Path(__file__).parent / "page", "index.html")
    for path, file in page.items():
        app.add_route(path, file, include_in_schema=False)
    add_refusals(app, metrics)
    return Guard(app, settings.limits, settings.tokens, settings.names, {*OPEN, *page}, metrics)


def page_files(folder: Path, index: str | None = None) -> dict[str, Callable[[Request], Awaitable[Response]]]:
    """Routes of all files of a page by path, with `/` for the page; no other path is looked up on disk."""
    files = StaticFiles(directory=folder)

    async def reply(name: str, request: Request) -> Response:
        response = await files.get_response(name, request.scope)
        response.headers["cache-control"] = "no-cache"  # the browser asks each time whether it has changed
        return response

    names = [file.relative_to(folder).as_posix() for file in folder.rglob("*") if file.is_file()]
    paths = ({"/": index} if index else {}) | {f"/page/{name}": name for name in names}
    return {path: partial(reply, name) for path, name in paths.items()}


class _Routes:
    """What the paths reply."""

    def __init__(self, looks: Looks, settings: ServiceSettings, metrics: Metrics) -> None:
        self._looks, self._settings, self._limits, self._metrics = looks, settings, settings.limits, metrics
        self._model, fitted = settings.model, settings.model.fitted()
        self._figure = fitted.plot_reliability() if fitted.held_out.correct else NO_FIGURE
        self._missing = settings.model.labels_missing(settings.decide)
        self._drawing = asyncio.Semaphore(2)  # because a large picture and its view take memory

    def add_to(self, app: FastAPI) -> None:
        """Register the routes."""
        for method, path, tag, route, about in (
            ("POST", "/v1/look", "look", self.look, {"response_model": AnyVerdict} | _ONE),
            ("POST", "/v1/looks", "look", self.looks, {"response_model": LooksReply} | _SEVERAL),
            ("POST", "/v1/burst", "look", self.burst, {"response_model": Verdict} | _SEVERAL),
            ("POST", "/v1/look/events", "look", self.look_events, _plain(EVENT_STREAM) | _ONE),
            ("POST", "/v1/burst/events", "look", self.burst_events, _plain(EVENT_STREAM) | _SEVERAL),
            ("GET", "/v1/profile", "profile", self.profile, {"response_model": ProfileReply}),
            ("GET", "/v1/profile/reliability.svg", "profile", self.reliability, _plain(SVG)),
            ("GET", "/healthz", "health", self.alive, _plain(JSON)),
            ("GET", "/readyz", "health", self.ready, _plain(JSON)),
            ("GET", "/metrics", "health", self.numbers, _plain("text/plain")),
        ):
            app.add_api_route(path, route, methods=[method], tags=[tag], **about)

    async def look(self, request: Request) -> Response:
        """The verdict on one picture."""
        self._looks.check()
        verdict = await self._look(await bodies.one(request, self._limits))
        return JSONResponse(verdict.to_dict())

    async def looks(self, request: Request) -> Response:
        """The verdicts on several pictures, in order, with the reason for each missing one."""
        self._looks.check()
        pictures = await bodies.several(request, self._limits)
        return JSONResponse({"verdicts": await asyncio.gather(*map(self._reply, pictures))})

    async def burst(self, request: Request) -> Response:
        """One verdict on several photos of one object; the first is the picture, the others its views."""
        self._looks.check()
        photos = await bodies.photos(request, self._limits)
        return JSONResponse((await self._timed(self._looks.burst(photos))).to_dict())

    async def look_events(self, request: Request) -> Response:
        """The verdict as a stream of events: picture, answers, verdict, and views."""
        self._looks.check()
        picture = await bodies.one(request, self._limits)
        views = [(str(view), view.adjective) for view in self._model.policy(self._settings.decide).panel]
        drawn = self._model.rendered(picture, self._settings.decide)
        return await self._events(picture, views, lambda heard: self._look(picture, heard), drawn)

    async def burst_events(self, request: Request) -> Response:
        """The burst as a stream of events: photos, answers, and verdict."""
        self._looks.check()
        photos, size = await bodies.photos(request, self._limits), self._model.limits.working_size
        views = [(photo.name, photo.name) for photo in photos[1:]]
        drawn = (photo.image(size).pixels for photo in photos[1:])
        return await self._events(photos[0], views, lambda heard: self._timed(self._looks.burst(photos, heard)), drawn)

    async def profile(self) -> Response:
        """The basis of the verdicts: classifier, views, figures and the threshold."""
        await self._looks.monitor.catch_up(self._model.engine.ledger)
        reply = described(self._looks, self._settings.level, self._missing)
        return JSONResponse(reply.model_dump(mode="json"))

    async def reliability(self) -> Response:
        """The reliability diagram: accuracy by confidence."""
        return Response(self._figure, media_type=SVG)

    async def alive(self) -> Response:
        """Liveness."""
        return JSONResponse({"status": "ok"})

    async def ready(self) -> Response:
        """Readiness."""
        self._looks.check()
        if unavailable := await asyncio.to_thread(self._model.unavailable):
            raise Refusal("unavailable", unavailable)
        return JSONResponse({"status": "ok"})

    async def numbers(self) -> Response:
        """Metrics for Prometheus."""
        await self._looks.monitor.catch_up(self._model.engine.ledger)
        return Response(self._metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _events(
        self,
        picture: Picture,
        views: Sequence[tuple[str, str]],
        verdict: Callable[[OnAnswer], Awaitable[Verdict]],
        drawn: Iterator[Pixels],
    ) -> Response:
        """A look as a stream: the picture, each answer as it arrives, the verdict, and the views as they are drawn."""
        try:
            first = await asyncio.to_thread(picture_event, picture, self._model.limits.working_size, views)
        except ImageError as error:
            raise Refusal("picture", str(error), error=error.code) from None

        async def work(emit: Emit) -> None:
            def on_answer(answer: AnswerEvent) -> None:
                emit("answer", {"place": answer.place, "label": answer.label})

            emit("picture", first)
            drawing = asyncio.create_task(emit_views(emit, drawn, self._drawing))
            try:
                emit("verdict", (await verdict(on_answer)).to_dict())
                await drawing
            finally:
                drawing.cancel()

        return StreamingResponse(stream(work), headers={"x-accel-buffering": "no"}, media_type=EVENT_STREAM)

    async def _reply(self, picture: Picture) -> dict[str, object]:
        try:
            return (await self._look(picture)).to_dict()
        except Refusal as refusal:
            self._metrics.refused(refusal.code)
            return {"name": picture.name, "problem": refusal.problem().model_dump()}

    async def _look(self, picture: Picture, on_answer: OnAnswer | None = None) -> Verdict:
        verdict = await self._timed(self._looks.look(picture, on_answer))
        review, source = self._settings.review, picture.source
        if review and (verdict.held or verdict.decision == "review") and isinstance(source, Opened):
            try:
                await asyncio.to_thread(review.add, verdict, source.data)
            except (OSError, LookTwiceError) as error:  # the verdict is good all the same
                LOG.warning("a picture was not stored for review: %s", error)
        return verdict

    async def _timed(self, work: Awaitable[Verdict]) -> Verdict:
        began = time.perf_counter()
        verdict = await work
        self._metrics.count_verdict(verdict, time.perf_counter() - began)
        return verdict


def add_refusals(app: FastAPI, counters: Counters) -> None:
    """Reply to every error with a problem document."""

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, Refusal):
            refusal = error
        elif isinstance(error, HTTPException):
            code = {404: "missing", 405: "method"}.get(error.status_code, "request")
            detail = (
                f"{error.detail or HTTPStatus(error.status_code).phrase}; see /openapi.json for the available paths"
            )
            refusal = Refusal(code, detail, allow=(error.headers or {}).get("Allow"))
        elif isinstance(error, ClientDisconnect):
            refusal = Refusal("slow", "the client disconnected before its body was complete")
        else:
            refusal = Refusal("internal", "internal error; see the log of the service")
        counters.refused(refusal.code)
        log_refusal(request.scope, refusal.code)
        return refusal.response()

    for kind in (Refusal, HTTPException, ClientDisconnect, Exception):
        app.add_exception_handler(kind, refused)


# A look as server-sent events: the picture, its views, each answer, and the verdict -----------------------------------


async def stream(work: Callable[[Emit], Awaitable[None]]) -> AsyncIterator[bytes]:
    """Stream the events of a task; an error becomes the last event."""
    queue: asyncio.Queue[bytes | None] = asyncio.Queue()

    def emit(name: str, data: dict[str, object]) -> None:
        queue.put_nowait(f"event: {name}\ndata: {json.dumps(data)}\n\n".encode())

    async def run() -> None:
        try:
            await work(emit)
        except Refusal as refusal:
            emit("problem", refusal.problem().model_dump())
        finally:
            queue.put_nowait(None)

    task = asyncio.create_task(run())
    try:
        while True:
            try:
                part = await asyncio.wait_for(queue.get(), HEARTBEAT)
            except TimeoutError:
                part = b": still looking\n\n"
            if part is None:
                break
            yield part
        await task
    finally:
        task.cancel()


def picture_event(picture: Picture, size: WorkingSize, views: Iterable[tuple[str, str]]) -> dict[str, object]:
    """The first event: the picture, and the views with their captions.

    The picture is decoded at the working size, or at `PICTURE_SIDE` for display if that is larger.
    """
    image = picture.image(size)
    height, width, _ = image.pixels.shape
    small = image.original_size and max(height, width) < PICTURE_SIDE
    seen = picture.image(WorkingSize(long=PICTURE_SIDE)) if small else image
    height, width = image.original_size or (height, width)
    named = [{"view": view, "caption": caption} for view, caption in views]
    thumbnail = data_url(shrunk(seen.pixels, PICTURE_SIDE))
    return {"name": picture.name, "width": width, "height": height, "picture": thumbnail, "views": named}


async def emit_views(emit: Emit, views: Iterator[Pixels], limit: asyncio.Semaphore) -> None:
    """Emits the views of a picture as they are rendered, as many at a time as the limit allows."""

    def following() -> str | None:
        pixels = next(views, None)
        return None if pixels is None else data_url(shrunk(pixels, VIEW_SIDE))

    for place in range(1, MOST_DRAWN + 1):
        async with limit:
            view = await asyncio.to_thread(following)
        if view is None:
            break
        emit("view", {"place": place, "picture": view})
