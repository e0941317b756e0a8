"""The routes of the labelling page, behind the same access control as the service."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from pathlib import Path

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from starlette.types import ASGIApp

from looktwice.labelling.labels import Click, Token
from looktwice.labelling.session import LabellingSession
from looktwice.model import LookTwiceError, Picture, WorkingSize, encode_jpeg, encode_png
from looktwice.model.runs import run as run_async
from looktwice.service import Place, ServiceLimits, bodies
from looktwice.service.app import add_refusals, page_files
from looktwice.service.bodies import Refusal
from looktwice.service.guards import Counters, Guard, Tokens, check_address
from looktwice.service.server import answer, listen

SIDE = 1280
"""The longest side of a picture on the page, in pixels."""
SMALL = 65_536
"""Pictures of up to this many pixels are sent as PNG, larger ones as JPEG."""
QUALITY = 90
LIMITS = ServiceLimits(body=65_536)
HERE = Path(__file__).parent
SHARED = ("/page/style.css", "/page/api.js", "/page/token.js", "/page/icon.svg")
"""Files shared with the service's page."""
TOKEN = TypeAdapter(Token)


class UndoBody(BaseModel):
    """The body of an undo request: the window whose last click is to be undone."""

    model_config = ConfigDict(extra="forbid", strict=True)

    id: Token
    window: Token


def run(session: LabellingSession, title: str, command: str, place: Place) -> None:
    """Serve the page with this title until the process gets a signal; `command` uses the labels."""
    tokens = Tokens.of(place)
    check_address(place.host, tokens)

    async def serve() -> None:
        await answer(build(session, title, command, tokens, place.names), LIMITS, place, listening, tokens.made)

    # Ctrl-C ends it, even before signal handlers are set.
    with listen(place.host, place.port) as listening, suppress(KeyboardInterrupt):
        run_async(serve)


def build(session: LabellingSession, title: str, command: str, tokens: Tokens, names: tuple[str, ...] = ()) -> ASGIApp:
    """The ASGI application, behind the access control of the service."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await session.start()
        yield
        await session.close()

    app = FastAPI(lifespan=lifespan, openapi_url=None, docs_url=None, redoc_url=None)
    shared = page_files(HERE.parent / "service" / "page")
    page = page_files(HERE / "page", "label.html") | {path: shared[path] for path in SHARED}
    for path, file in page.items():
        app.add_route(path, file)
    _Routes(session, title, command).add_to(app)
    add_refusals(app, Counters())
    return Guard(app, LIMITS, tokens, names, page.keys(), Counters())


class _Routes:
    """The HTTP routes that the page calls."""

    def __init__(self, session: LabellingSession, title: str, command: str) -> None:
        self._session, self._title, self._command = session, title, command
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
        """The page title, the next command, and the vocabulary."""
        return JSONResponse({"title": self._title, "next": self._command, "labels": self._session.words()})

    async def state(self, request: Request) -> Response:
        """The state of a window: its pictures and the progress of all windows."""
        try:
            return self._state(TOKEN.validate_python(request.query_params.get("window")))
        except ValidationError:
            raise Refusal("request", "the window id is missing or invalid; use up to 64 letters and digits") from None

    async def picture(self, request: Request) -> Response:
        """A picture, scaled down to `SIDE`."""
        shown = self._session.pictures.get(request.query_params.get("file", ""))
        if shown is None:
            raise Refusal("missing", "there is no picture with this name; /v1/label/state lists the current ones")
        async with self._decoding:
            return await asyncio.to_thread(_encoded, shown)

    async def click(self, request: Request) -> Response:
        """Save a click; it is on disk before the reply is sent."""
        click = await bodies.parsed(Click, request)
        if click.file not in self._session.pictures:
            raise Refusal("missing", "there is no picture with this name; /v1/label/state lists the current ones")
        await self._saved(self._session.click(click))
        return self._state(click.window)

    async def undo(self, request: Request) -> Response:
        """Undo the window's last click."""
        body = await bodies.parsed(UndoBody, request)
        await self._saved(self._session.undo(body.id, body.window))
        return self._state(body.window)

    async def _saved(self, work: Awaitable[None]) -> None:
        try:
            await work
        except LookTwiceError as error:
            raise Refusal("unavailable", str(error), error=error.code) from None

    def _state(self, window: str) -> Response:
        return JSONResponse(asdict(self._session.state(window)))


def _encoded(picture: Picture) -> Response:
    try:
        pixels = picture.image(WorkingSize(long=SIDE)).pixels
    except LookTwiceError as error:
        raise Refusal("picture", str(error), error=error.code) from None
    small = pixels.shape[0] * pixels.shape[1] <= SMALL
    data, kind = (encode_png(pixels), "image/png") if small else (encode_jpeg(pixels, QUALITY), "image/jpeg")
    return Response(data, media_type=kind, headers={"cache-control": "private, max-age=3600"})
