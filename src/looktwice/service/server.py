"""Runs the application: one process, one loop, deadlines for headers, and a shutdown that loses nothing."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from looktwice.asking import session
from looktwice.asking.progress import say
from looktwice.asking.session import AskOptions
from looktwice.errors import LookTwiceError
from looktwice.model import AsyncModel
from looktwice.service import Limits, Place
from looktwice.service.app import ServiceSettings, build
from looktwice.service.guards import Tokens, check_address
from looktwice.service.label_studio import Studio
from looktwice.verdicts.planning import LADDER, selection_level
from looktwice.verdicts.policy import NEVER, DecisionOptions
from looktwice.verdicts.profile import Profile
from looktwice.verdicts.review import ReviewFolder

GRACE = 30
"""Seconds that a shutdown waits for requests."""
KEEP_ALIVE = 20
"""Seconds that an idle connection stays open."""


class Patient(HttpToolsProtocol):
    """uvicorn's protocol, with a deadline and a size for headers, so that slow clients cannot pile up.

    A body has its deadline where it is read. What still comes of one that was refused is read and dropped, for a
    while: closed at once, the client would lose the refusal to a reset.
    """

    limits = Limits()
    _deadline: asyncio.TimerHandle | None = None
    _head: int | None = None
    """Bytes of the headers so far, while they are coming."""
    _last = False
    """The client wants no further request on this connection."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_deadline(self.limits.headers)
        self._head = 0

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head is not None:
            self._head += len(data)
            if self._head > self.limits.head:
                self._close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._set_deadline(self.limits.headers)
        self._head = self._head or 0

    def on_headers_complete(self) -> None:
        self._cancel_deadline()
        self._head = None
        super().on_headers_complete()
        self._last = not self.cycle.keep_alive
        self.cycle.keep_alive = True

    def on_message_complete(self) -> None:
        self._cancel_deadline()
        super().on_message_complete()
        if self._last and self.cycle.response_complete:
            self._close()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.cycle.more_body:
            self._set_deadline(self.limits.upload)
        elif self._last:
            self._close()

    def _set_deadline(self, seconds: float) -> None:
        self._cancel_deadline()
        self._deadline = self.loop.call_later(seconds, self._close)

    def _cancel_deadline(self) -> None:
        if self._deadline:
            self._deadline.cancel()
            self._deadline = None

    def _close(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()


def protocol(limits: Limits) -> type[HttpToolsProtocol]:
    """The protocol under these limits."""
    return type("Limited", (Patient,), {"limits": limits})


def run(
    path: Path,
    classifier: str | None,
    decide: DecisionOptions,
    ask: AskOptions,
    place: Place,
    limits: Limits,
    review: Path | None = None,
    label_studio: str | None = None,
) -> None:
    """Serve a profile at a place until a signal comes."""
    tokens = Tokens.read(place.token_file)
    check_address(place.host, tokens)
    if ask.batch:
        raise LookTwiceError("a service answers at once, and a batch takes up to a day; leave --batch out")
    studio = Studio(label_studio, limits) if label_studio else None
    model = AsyncModel.load(path, classifier, options=ask)
    kept = ReviewFolder(review, limits.reviews, limits.review_bytes) if review else None
    settings = ServiceSettings(
        model, guaranteeing(decide, model.fitted()), decide.level, limits, tokens, place.names, kept, studio
    )
    try:
        # Ctrl-C is how it ends: uvicorn raises the signal again when everything is saved.
        with listen(place.host, place.port) as listening, suppress(KeyboardInterrupt):
            session.run(lambda: serve(settings, place, listening))
    finally:
        if kept:
            kept.close()


def guaranteeing(decide: DecisionOptions, profile: Profile) -> DecisionOptions:
    """The options with a guarantee: the one they name, or the best that the profile can keep.

    Looking for the best one tries several, so each must be that much more certain.
    """
    if decide.max_error is not None:
        return decide
    level = selection_level(decide.level)
    candidates = [replace(decide, max_error=max_error, level=level) for max_error in LADDER]
    return next((each for each in candidates if each.of(profile).accept != NEVER), candidates[-1])


async def serve(settings: ServiceSettings, place: Place, listening: socket.socket) -> None:
    """Serve at an open socket; when a signal comes, finish what is on its way, and save it."""
    async with settings.model:
        await answer(build(settings), settings.limits, place, listening)


async def answer(app: ASGIApp, limits: Limits, place: Place, listening: socket.socket) -> None:
    """Answer requests at an open socket until a signal comes."""
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of every form that is not one
    config = uvicorn.Config(
        app,
        http=protocol(limits),
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=limits.connections,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=place.certificate,
        ssl_keyfile=place.key,
    )
    try:
        config.load()
    except OSError as error:
        raise LookTwiceError(f"the certificate or its key cannot be used: {error}; check both files") from None
    say(f"Serving at {address(listening, secure=config.is_ssl)} (press Ctrl-C to stop)")
    if elsewhere := outside(listening, secure=config.is_ssl):
        say(f"From a phone or another machine on the network: {elsewhere}")
    await uvicorn.Server(config).serve(sockets=[listening])


def listen(host: str, port: int) -> socket.socket:
    """A socket at the address."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host.strip("[]"), port), family=family, backlog=512)
    except OSError as error:
        why = error.strerror or str(error)
        raise LookTwiceError(f"cannot serve at {host}, port {port}: {why}; try another --port, or 0") from None


ANYWHERE = {"0.0.0.0": ("127.0.0.1", "192.0.2.1"), "::": ("::1", "2001:db8::1")}  # noqa: S104
"""Hosts that stand for every address of this machine; its own name for itself, and one that is surely elsewhere."""


def address(listening: socket.socket, secure: bool) -> str:
    """Where a browser on this machine finds the service."""
    host, port = listening.getsockname()[:2]
    return _url(ANYWHERE[host][0] if host in ANYWHERE else host, port, secure)


def outside(listening: socket.socket, secure: bool) -> str | None:
    """Where other machines find a service that listens at every address; None if it does not, or there is no network.

    It is the address from which this machine would send to another one; nothing is sent.
    """
    host, port = listening.getsockname()[:2]
    if host not in ANYWHERE:
        return None
    with socket.socket(listening.family, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect((ANYWHERE[host][1], 9))
        except OSError:
            return None
        return _url(probe.getsockname()[0], port, secure)


def _url(host: str, port: int, secure: bool) -> str:
    return f"http{'s' if secure else ''}://{f'[{host}]' if ':' in host else host}:{port}/"
