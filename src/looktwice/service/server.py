"""Run the application in one process and one event loop, with header deadlines and a lossless shutdown."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from http import HTTPStatus
from pathlib import Path
from typing import ClassVar

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from looktwice.model import (
    AskOptions,
    AsyncModel,
    Classifiers,
    DecisionOptions,
    LookTwiceError,
    ReviewFolder,
)
from looktwice.model.runs import ReceivedSignals, handling_signals, leave_soon, run as run_async
from looktwice.service import Place, ServiceLimits
from looktwice.service.app import ServiceSettings, build
from looktwice.service.bodies import Refusal
from looktwice.service.guards import Tokens, check_address, is_loopback

GRACE = 30
"""Seconds for which a shutdown waits for requests."""
KEEP_ALIVE = 20
"""Seconds for which an idle connection stays open."""
BACKLOG = 2048
"""The backlog of the listening socket."""
OTHER_FILES = 256
"""The number of open files reserved for the classifier's connections, the ledger and other purposes."""


class Patient(HttpToolsProtocol):
    """uvicorn's protocol with limits, so that slow and idle clients cannot accumulate.

    Headers have a deadline and a size limit. Above the maximum number of connections, the one that has been idle for
    longest is closed, so that new clients are always served. The deadline for bodies is applied where they are read.
    The rest of a rejected body is read and discarded for a limited time: if the connection were closed at once, a reset
    could discard the reply.
    """

    limits = ServiceLimits()
    idle: ClassVar[dict[Patient, None]] = {}
    """Connections without a request in progress; the one idle for longest comes first."""
    _deadline: asyncio.TimerHandle | None = None
    _unread: int | None = 0
    """The bytes received so far of incomplete headers; None if no headers are expected."""
    _head = 0
    """The size of the headers so far."""
    _last = False
    """Whether the client closes the connection after this request."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._set_deadline(self.limits.headers)
        if len(self.connections) > self.limits.connections and self.idle:
            longest = next(iter(self.idle))
            del self.idle[longest]
            longest.transport.abort()
        self.idle[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_deadline()
        self.idle.pop(self, None)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._unread is not None:
            self._unread += len(data)
            if self._unread > self.limits.head:
                self._close()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._set_deadline(self.limits.headers)
        self._unread, self._head = self._unread or 0, 0

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value) + 4)  # with the colon, the space and the line's end
        super().on_header(name, value)

    def _count(self, size: int) -> None:
        self._head += size
        if self._head > self.limits.head:
            raise ValueError("the headers are too large")  # upon which uvicorn calls send_400_response

    def send_400_response(self, msg: str) -> None:
        """Reject invalid HTTP, or too many headers, with a problem document."""
        refusal = Refusal("request", "this is not a valid HTTP request")
        if self._head > self.limits.head:
            refusal = Refusal("headers", f"the headers may have {self.limits.head:,} bytes; send fewer")
        reply = refusal.response()
        fields = [*reply.raw_headers, (b"connection", b"close")]
        lines = [f"HTTP/1.1 {refusal.status} {HTTPStatus(refusal.status).phrase}".encode()]
        lines += [name + b": " + value for name, value in fields]
        self.transport.write(b"\r\n".join([*lines, b"", bytes(reply.body)]))
        self.transport.close()

    def on_headers_complete(self) -> None:
        self._cancel_deadline()
        self._unread = None
        self.idle.pop(self, None)
        super().on_headers_complete()
        self._last = not self.cycle.keep_alive
        self.cycle.keep_alive = True

    def on_message_complete(self) -> None:
        self._cancel_deadline()
        super().on_message_complete()
        if self._last and self.cycle.response_complete:
            self._close()

    def on_response_complete(self) -> None:
        if not self.pipeline and not self.transport.is_closing():
            self.idle[self] = None
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


def protocol(limits: ServiceLimits) -> type[HttpToolsProtocol]:
    """The protocol class with these limits."""
    return type("Limited", (Patient,), {"limits": limits, "idle": {}})


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
        model, model.strictest_guarantee(decide), decide.level, limits, tokens, place.names, kept
    )
    try:
        # Ctrl-C is how it ends, also before it listens to signals.
        with listen(place.host, place.port) as listening, suppress(KeyboardInterrupt):
            run_async(lambda: serve(settings, place, listening))
    finally:
        if kept:
            kept.close()


def open_files(connections: int) -> int:
    """The number of connections that the process can have, after raising its limit of open files."""
    try:
        import resource
    except ImportError:  # Windows
        return connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return connections if soft == resource.RLIM_INFINITY else max(1, min(connections, soft - OTHER_FILES))


async def serve(settings: ServiceSettings, place: Place, listening: socket.socket) -> None:
    """Serve at an open socket; after a signal, complete and save requests in progress."""
    async with settings.model:
        await answer(build(settings), settings.limits, place, listening, settings.tokens.made)


async def answer(app: ASGIApp, limits: ServiceLimits, place: Place, listening: socket.socket, token: str = "") -> None:
    """Answer requests at an open socket until a signal; printed links to a page contain the newly created token."""
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns of every form that is not one
    config = uvicorn.Config(
        app,
        http=protocol(replace(limits, connections=open_files(limits.connections))),
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE,
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
        lines += [] if others else ["  others need an address of this machine instead of that host: see hostname -I"]
    return [*lines, "  the token is not shown again"] if token else lines


def addresses() -> list[str]:
    """The IPv4 addresses of this machine that other machines may reach; nothing is sent."""
    known = set()
    for other in ELSEWHERE:
        with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((other, 9))  # of a datagram socket, this only chooses the address
            known.add(probe.getsockname()[0])
    return sorted(each for each in known if not is_loopback(each))
