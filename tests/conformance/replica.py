"""A local server with the embedded classifier behind it, and the ways in which it can fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import cv2
import numpy as np
from aiohttp import web

from looktwice.classifiers.base import Answer, AnyClassifier, Pixels, names_of
from looktwice.classifiers.onnx import OnnxClassifier, connect as connect_onnx
from looktwice.errors import ClassifierError, PermanentError, QuotaError, TransientError

DEMO = Path(str(files("looktwice") / "demo"))
Respond = Callable[[web.Request], Awaitable[web.StreamResponse]]


@cache
def model() -> OnnxClassifier:
    """The embedded classifier."""
    classifier = connect_onnx(str(DEMO / "fashion.onnx"), {})
    assert isinstance(classifier, OnnxClassifier)
    return classifier


@cache
def pictures(count: int = 12) -> tuple[Pixels, ...]:
    """Some of the embedded pictures, height × width × RGB."""
    with np.load(DEMO / "pictures.npz", allow_pickle=False) as arrays:
        grey = arrays["images"][:count]
    return tuple(np.repeat(image[:, :, None], 3, axis=2) for image in grey)


def labels_of(pixels: Sequence[Pixels]) -> list[str]:
    """What the embedded classifier says, asked directly."""
    logits = model().logits([model().prepare(image) for image in pixels])
    return [model().labels[code] for code in logits.argmax(axis=1)]


def meant(classifier: AnyClassifier, answers: Sequence[Answer]) -> list[Answer]:
    """The answers with the labels that a classifier's words mean."""
    return [replace(answer, label=names_of(classifier).label(answer.label)) for answer in answers]


def logits_of_file(data: bytes) -> list[float]:
    """(K,): what the embedded classifier computes for an encoded picture."""
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert decoded is not None, "the body is not a picture"
    pixels = cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False)
    return [float(logit) for logit in model().logits([model().prepare(pixels)])[0]]


def shares_of(data: bytes) -> dict[str, float]:
    """The probability that the embedded classifier gives to each label of an encoded picture."""
    logits = np.array(logits_of_file(data))
    powers = np.exp(logits - logits.max())
    return dict(zip(model().labels, (powers / powers.sum()).tolist(), strict=True))


def label_of_file(data: bytes) -> str:
    """What the embedded classifier says about an encoded picture."""
    logits = logits_of_file(data)
    return model().labels[logits.index(max(logits))]


@dataclass(frozen=True)
class Fault:
    """A way to fail, and the error that a connector must make of it."""

    name: str
    respond: Respond
    kind: type[ClassifierError]
    shows: Mapping[str, object] = field(default_factory=dict)
    """Attributes that the error must have."""
    settings: Mapping[str, object] = field(default_factory=dict)
    """Settings to connect with, so that the test is quick."""


def _status(status: int, text: str = "the server's own words", **headers: str) -> Respond:
    async def respond(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text, headers={k.replace("_", "-"): v for k, v in headers.items()})

    return respond


def _body(text: str, content_type: str = "application/json") -> Respond:
    async def respond(request: web.Request) -> web.StreamResponse:
        return web.Response(text=text, content_type=content_type)

    return respond


async def _reset(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def _not_http(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.write(b"220 mail.example ESMTP ready\r\n\r\n")
    request.transport.close()
    return web.Response()


async def _half(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-length": "1000", "content-type": "application/json"})
    await response.prepare(request)
    await response.write(b'{"label": "Tro')
    assert request.transport is not None
    request.transport.close()
    return response


async def _hang(request: web.Request) -> web.StreamResponse:
    await asyncio.sleep(3600)
    return web.Response()


async def _drip(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    while True:
        await response.write(b" ")
        await asyncio.sleep(0.02)


async def _huge(request: web.Request) -> web.StreamResponse:
    return web.Response(body=b" " * 300_000, content_type="application/json")


async def _echo(request: web.Request) -> web.StreamResponse:
    """Everything that was sent, as careless servers show it."""
    told = {"url": str(request.url), "raw": request.raw_path, "headers": dict(request.headers)}
    return web.Response(status=400, text=json.dumps(told) + (await request.read()).decode("latin-1"))


FAULTS = (
    Fault("429 with seconds", _status(429, retry_after="7"), TransientError, {"status": 429, "retry_after": 7.0}),
    Fault("429 with a reset", _status(429, ratelimit_reset="3"), TransientError, {"status": 429, "retry_after": 3.0}),
    Fault("429 alone", _status(429), TransientError, {"status": 429, "retry_after": None}),
    Fault("429 without quota", _status(429, '{"error": {"code": "insufficient_quota"}}'), QuotaError),
    Fault("408", _status(408), TransientError, {"status": 408}),
    Fault("500", _status(500), TransientError, {"status": 500, "sent": True}),
    Fault("502", _status(502), TransientError, {"status": 502}),
    Fault("503", _status(503), TransientError, {"status": 503}),
    Fault("504", _status(504), TransientError, {"status": 504}),
    Fault("400", _status(400), PermanentError),
    Fault("401", _status(401), PermanentError),
    Fault("402", _status(402), QuotaError),
    Fault("403", _status(403), PermanentError),
    Fault("404", _status(404), PermanentError),
    Fault("413", _status(413), PermanentError),
    Fault("422", _status(422), PermanentError),
    Fault("redirect", _status(307, location="/elsewhere"), PermanentError),
    Fault("reset", _reset, TransientError, {"sent": True}),
    Fault("not HTTP", _not_http, TransientError, {"sent": True}),
    Fault("half a reply", _half, TransientError, {"sent": True}),
    Fault("hang", _hang, TransientError, {"sent": True}, {"timeout": 0.3}),
    Fault("drip", _drip, TransientError, {"sent": True}, {"timeout": 0.3}),
    Fault("huge", _huge, PermanentError, {}, {"max_reply_bytes": 100_000}),
    Fault("not JSON", _body("<html>welcome</html>", "text/html"), TransientError, {"garbled": True}),
    Fault("empty body", _body(""), TransientError, {"garbled": True}),
    Fault("other JSON", _body('{"unexpected": [1, null]}'), TransientError, {"garbled": True}),
    Fault("a number", _body("17"), TransientError, {"garbled": True}),
    Fault("null", _body("null"), TransientError, {"garbled": True}),
)
ECHO = Fault("echo", _echo, PermanentError)
HANG = Fault("hang", _hang, TransientError)


class Replica:
    """A running server: what it was asked, and how it is to fail from now on."""

    def __init__(self) -> None:
        self.url = ""
        self.fault: Fault | None = None
        self.asked: list[web.Request] = []
        self.reached = asyncio.Event()
        self._runner: web.AppRunner | None = None

    @property
    def sockets(self) -> int:
        """Connections that are open."""
        assert self._runner is not None
        assert self._runner.server is not None
        # A handler that waits is listed after its client has gone.
        return sum(handler.transport is not None for handler in self._runner.server.connections)

    async def quiet(self) -> bool:
        """Whether all connections are closed, now or after a while."""
        for _ in range(2000):
            if not self.sockets:
                return True
            await asyncio.sleep(0.01)
        return False

    @web.middleware
    async def watch(self, request: web.Request, handler: Respond) -> web.StreamResponse:
        """Count questions and let them fail; what is asked with GET, such as metadata, is no question."""
        if request.method == "GET":
            return await handler(request)
        self.asked.append(request)
        self.reached.set()
        if self.fault is None:
            return await handler(request)
        await request.read()
        return await self.fault.respond(request)

    @asynccontextmanager
    async def running(self, routes: web.RouteTableDef) -> AsyncIterator[Replica]:
        app = web.Application(middlewares=[self.watch], client_max_size=64 << 20)
        app.add_routes(routes)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        try:
            yield self
        finally:
            await self._runner.cleanup()
