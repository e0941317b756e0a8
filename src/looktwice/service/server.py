"""Run the application in one process and one event loop, with header deadlines and a lossless shutdown."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from looktwice.model import (
    AskOptions,
    AsyncModel,
    Classifiers,
    DecisionOptions,
    LookTwiceError,
    ReviewFolder,
    strictest_guarantee,
)
from looktwice.model.runs import ReceivedSignals, handling_signals, leave_soon, run as run_async
from looktwice.service import Place, ServiceLimits
from looktwice.service.app import ServiceSettings, build
from looktwice.service.guards import Tokens, check_address, is_loopback

GRACE = 30
"""Seconds for which a shutdown waits for requests."""
BACKLOG = 2048
"""The backlog of the listening socket."""
HEADERS = 32_768
"""The maximum size of incomplete headers, in bytes."""


class Patient(H11Protocol):
    """uvicorn's protocol with a deadline for the next request, so that slow and idle clients cannot accumulate.

    Above the maximum number of connections, the one that has been waiting for longest is closed, so that new clients
    are always served; `Guard` limits the connections with a request in progress, and discards the rest of rejected
    bodies.
    """

    limits = ServiceLimits()
    _deadline: asyncio.TimerHandle | None = None
    """The end of the wait for a request; None while a request is processed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.limits.connections:
            waiting = [other for other in self.connections if isinstance(other, Patient) and other._deadline]
            if waiting:
                min(waiting, key=lambda other: other._deadline.when() if other._deadline else 0.0).transport.abort()
        self._await_request()

    def handle_events(self) -> None:
        super().handle_events()
        if self._deadline and self.cycle and not self.cycle.response_complete:
            self._deadline.cancel()
            self._deadline = None

    def on_response_complete(self) -> None:
        self._await_request()
        super().on_response_complete()

    def _await_request(self) -> None:
        if self._deadline:
            self._deadline.cancel()
        self._deadline = self.loop.call_later(self.limits.headers, self.transport.close)


def run(
    path: Path,
    classifiers: Classifiers | None,
    decide: DecisionOptions,
    ask: AskOptions,
    place: Place,
    limits: ServiceLimits,
    review: Path | None = None,
) -> None:
    """Serve a profile at an address until a signal."""
    tokens = Tokens.of(place)
    check_address(place.host, tokens)
    if ask.batch:
        raise LookTwiceError(
            "a service answers at once, but a batch takes up to a day; leave --batch out", code="option-conflict"
        )
    model = AsyncModel.load(path, classifiers, options=ask)
    kept = ReviewFolder(review, limits.reviews, limits.review_bytes) if review else None
    settings = ServiceSettings(
        model, strictest_guarantee(decide, model.fitted()), decide.level, limits, tokens, place.names, kept
    )
    try:
        # Ctrl-C is how it ends, also before it listens to signals.
        with listen(place.host, place.port) as listening, suppress(KeyboardInterrupt):
            run_async(lambda: serve(settings, place, listening))
    finally:
        if kept:
            kept.close()


async def serve(settings: ServiceSettings, place: Place, listening: socket.socket) -> None:
    """Serve at an open socket; after a signal, complete and save requests in progress."""
    async with settings.model:
        await answer(build(settings), settings.limits, place, listening, settings.tokens.made)


async def answer(app: ASGIApp, limits: ServiceLimits, place: Place, listening: socket.socket, token: str = "") -> None:
    """Answer requests at an open socket until a signal; printed links to a page contain the newly created token."""
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of every form that is not one
    _allow_files(2 * limits.connections)
    config = uvicorn.Config(
        app,
        http=type("Limited", (Patient,), {"limits": limits}),
        h11_max_incomplete_event_size=HEADERS,
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=math.ceil(limits.headers),
        timeout_graceful_shutdown=GRACE,
        ssl_certfile=place.certificate,
        ssl_keyfile=place.key,
    )
    try:
        config.load()
    except OSError as error:
        raise LookTwiceError(
            f"the certificate or its key cannot be used: {error}; check both files", code="certificate-invalid"
        ) from None
    server = uvicorn.Server(config)
    server.capture_signals = nullcontext  # type: ignore  # it would raise the signal again, before the ledger is closed
    with _ended_by_signals(server):  # before anybody is told that it serves
        with suppress(OSError):
            sys.stderr.write("\n".join([*links(listening, config.is_ssl, token), ""]))
            sys.stderr.flush()
        await server.serve(sockets=[listening])


def _allow_files(count: int) -> None:
    """Raise this process's limit on open files to the needed number, or as far as allowed."""
    with suppress(ImportError, ValueError, OSError):  # on Windows there is no such limit
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        most = count if hard == resource.RLIM_INFINITY else min(count, hard)
        if soft != resource.RLIM_INFINITY and soft < most:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


@contextmanager
def _ended_by_signals(server: uvicorn.Server) -> Iterator[None]:
    """The first signal stops the server gracefully, a later Ctrl-C at once."""
    received = ReceivedSignals()

    def end(number: int) -> None:
        server.should_exit = True
        if not received.is_first(number) and number == signal.SIGINT and received.is_later():
            server.force_exit = True
            leave_soon(128 + number)

    main = threading.current_thread() is threading.main_thread()
    with handling_signals(end) if main else nullcontext():
        yield


def listen(host: str, port: int) -> socket.socket:
    """A socket at the address."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host.strip("[]"), port), family=family, backlog=BACKLOG)
    except OSError as error:
        why = error.strerror or str(error)
        raise LookTwiceError(
            f"cannot serve at {host}, port {port}: {why}; try another --port, or 0", code="address-unusable"
        ) from None


ANYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""Hosts that stand for all addresses of this machine, with the local host to use in URLs."""
ELSEWHERE = ("192.0.2.1", "10.254.254.254", "172.31.254.254", "192.168.254.254")
"""Addresses on the internet and in private networks, towards which this machine may have different addresses."""


def links(listening: socket.socket, secure: bool, token: str = "") -> list[str]:
    """Lines with the URLs of the service, for this machine and for others in its networks."""
    host, port = listening.getsockname()[:2]
    # Browsers send nothing behind the # to a server, so that a token there is in no log.
    behind = f"/#token={token}" if token else "/"

    def url(host: str) -> str:
        return f"http{'s' if secure else ''}://{f'[{host}]' if ':' in host else host}:{port}{behind}"

    lines = [f"Serving at {url(ANYWHERE.get(host, host))} (press Ctrl-C to stop)"]
    if host in ANYWHERE:
        others = addresses() if host == "0.0.0.0" else []  # noqa: S104
        lines += [f"  for phones and machines in this network: {url(other)}" for other in others]
        lines += (
            []
            if others
            else ["  other machines need an address of this machine in place of this host; see hostname -I"]
        )
    return [*lines, "  the token is not shown again"] if token else lines


def addresses() -> list[str]:
    """The IPv4 addresses of this machine that other machines may reach; nothing is sent."""
    known = set()
    for other in ELSEWHERE:
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((other, 9))  # of a datagram socket, this only chooses the address
            known.add(probe.getsockname()[0])
    return sorted(address for address in known if not is_loopback(address))
