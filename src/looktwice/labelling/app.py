"""The routes of the page where people label, behind the same guards as the service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from starlette.types import ASGIApp

from looktwice.asking import session
from looktwice.errors import LookTwiceError
from looktwice.labelling.desk import Desk
from looktwice.labelling.labels import Click, Token
from looktwice.pictures.collection import Picture
from looktwice.pictures.image import WorkingSize, encode_jpeg, encode_png
from looktwice.service import Limits, Place, bodies
from looktwice.service.app import PageFiles, add_refusals
from looktwice.service.guards import Guard, Tokens, check_address
from looktwice.service.replies import Refusal
from looktwice.service.server import answer, listen

SIDE = 1280
"""Pixels of the longer side of a picture on the page."""
SMALL = 65_536
"""Pixels up to which a picture is sent without loss."""
QUALITY = 90
LIMITS = Limits(body=65_536)
HERE = Path(__file__).parent
SHARED = ("/page/style.css", "/page/api.js", "/page/icon.svg")
"""Files that the page has in common with that of the service."""
TOKEN = TypeAdapter(Token)


class UndoBody(BaseModel):
    """A window takes its last click back."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: Token
    window: Token


class Uncounted:
    """Counts no replies: nobody watches this page from elsewhere."""

    def replied(self, status: int) -> None: ...

    def refused(self, code: str) -> None: ...


@dataclass(frozen=True)
class Work:
    """What the page says that it is about."""

    title: str
    next: str
    """The command that makes use of the labels."""


def run(desk: Desk, work: Work, place: Place) -> None:
    """Let people label at a place until a signal comes."""
    tokens = Tokens.read(place.token_file)
    check_address(place.host, tokens)

    async def serve() -> None:
        await answer(build(desk, work, tokens, place.names), LIMITS, place, listening)

    with listen(place.host, place.port) as listening:
        session.run(serve)


def build(desk: Desk, work: Work, tokens: Tokens, names: tuple[str, ...] = ()) -> ASGIApp:
    """The application, guarded."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await desk.start()
        yield
        await desk.close()

    app = FastAPI(lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None)
    shared = PageFiles.named(HERE.parent / "service" / "page")
    page = PageFiles.named(HERE / "page", "label.html") | {path: shared[path] for path in SHARED}
    for path, file in page.items():
        app.add_route(path, file)
    _Routes(desk, work).add_to(app)
    add_refusals(app, Uncounted())
    return Guard(app, tokens, names, page.keys(), Uncounted())


class _Routes:
    """What the page asks for."""

    def __init__(self, desk: Desk, work: Work) -> None:
        self._desk, self._work = desk, work
        self._decoding = asyncio.Semaphore(2)  # because a large picture takes memory

    def add_to(self, app: FastAPI) -> None:
        for path, route, method in (
            ("/v1/label/work", self.work, "GET"),
            ("/v1/label/state", self.state, "GET"),
            ("/v1/label/picture", self.picture, "GET"),
            ("/v1/label/click", self.click, "POST"),
            ("/v1/label/undo", self.undo, "POST"),
        ):
            app.add_route(path, route, methods=[method])

    async def work(self, _: Request) -> Response:
        """What it is about, and every label that is known."""
        return JSONResponse({**asdict(self._work), "labels": self._desk.words()})

    async def state(self, request: Request) -> Response:
        """What a window shows now."""
        try:
            return self._shown(TOKEN.validate_python(request.query_params.get("window")))
        except ValidationError:
            raise Refusal("request", "name the window: up to 64 letters and digits") from None

    async def picture(self, request: Request) -> Response:
        """A picture, no larger than a screen."""
        found = self._desk.pictures.get(request.query_params.get("file", ""))
        if found is None:
            raise Refusal("missing", "there is no picture of this name; see /v1/label/state for those there are")
        async with self._decoding:
            return await asyncio.to_thread(_drawn, found)

    async def click(self, request: Request) -> Response:
        """Keep what somebody says; it is on disk when the reply comes."""
        click = await bodies.parsed(Click, await bodies.read(request, LIMITS))
        if click.file not in self._desk.pictures:
            raise Refusal("missing", "there is no picture of this name; see /v1/label/state for those there are")
        await self._kept(self._desk.click(click))
        return self._shown(click.window)

    async def undo(self, request: Request) -> Response:
        """Take the window's last click back."""
        body = await bodies.parsed(UndoBody, await bodies.read(request, LIMITS))
        await self._kept(self._desk.undo(body.id, body.window))
        return self._shown(body.window)

    async def _kept(self, work: Awaitable[None]) -> None:
        try:
            await work
        except LookTwiceError as error:
            raise Refusal("unavailable", str(error)) from None

    def _shown(self, window: str) -> Response:
        state = self._desk.state(window)
        worth = state.worth
        told = {"lines": worth.lines(), "enough": worth.enough, "note": worth.note} if worth else None
        return JSONResponse({**asdict(replace(state, worth=None)), "worth": told})


def _drawn(picture: Picture) -> Response:
    try:
        pixels = picture.image(WorkingSize(long=SIDE)).pixels
    except LookTwiceError as error:
        raise Refusal("picture", str(error)) from None
    small = pixels.shape[0] * pixels.shape[1] <= SMALL
    data, kind = (encode_png(pixels), "image/png") if small else (encode_jpeg(pixels, QUALITY), "image/jpeg")
    return Response(data, media_type=kind, headers={"cache-control": "private, max-age=3600"})
