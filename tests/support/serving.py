"""A service in a process of its own, asked from outside as its clients do.

Run it in tests: python -m support.serving PROFILE '{"headers": 0.5}' '{"ledger": "path"}'.
Limits and wishes are those of the command `serve`, which cannot make all of them as small as tests like them.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection, HTTPMessage
from importlib.resources import files
from pathlib import Path
from socket import socket
from threading import Thread
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit
from uuid import uuid4

import numpy as np
import typer

from looktwice import Model
from looktwice.classifiers import registry
from looktwice.cli.app import app
from looktwice.decisions.policy import DecisionOptions
from looktwice.decisions.profile import Profile
from looktwice.images.collection import labelled
from looktwice.images.image import encode_png
from looktwice.model.options import AskOptions
from looktwice.service import Place, ServiceLimits
from looktwice.service.server import run
from looktwice.views import Panel
from support import forked
from support.workshop import start

DEMO = Path(str(files("looktwice") / "demo"))
EMBEDDED = str(DEMO / "fashion.toml")
PANEL = Panel.parse("mirror zoom:1.15 turn:8")


@dataclass(frozen=True)
class Reply:
    """What came back."""

    status: int
    headers: HTTPMessage
    body: bytes

    def json(self) -> dict[str, Any]:
        return dict(json.loads(self.body))


@dataclass(frozen=True)
class Client:
    """Asks a service at this address."""

    url: str

    def ask(self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        """One request on a connection of its own."""
        connection = HTTPConnection(str(urlsplit(self.url).netloc), timeout=120)
        try:
            connection.request(method, path, body, dict(headers or {}))
            reply = connection.getresponse()
            return Reply(reply.status, reply.headers, reply.read())
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Reply:
        return self.ask("GET", path, None, named(headers))

    def post(self, path: str, body: bytes, kind: str = "image/png", **headers: str) -> Reply:
        return self.ask("POST", path, body, {"content-type": kind, **named(headers)})

    def form(self, path: str, *uploads: tuple[str, bytes]) -> Reply:
        """The files as a form."""
        kind, body = form(*uploads)
        return self.post(path, body, kind)

    @property
    def address(self) -> tuple[str, int]:
        where = urlsplit(self.url)
        return str(where.hostname), int(where.port or 0)


@dataclass(frozen=True)
class Service(Client):
    """A service that runs in a process of its own."""

    process: forked.Forked


def named(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


def form(*uploads: tuple[str, bytes]) -> tuple[str, bytes]:
    """The content type and the body of a form with these files."""
    boundary = uuid4().hex
    head = 'Content-Disposition: form-data; name="images"; filename="{}"\r\nContent-Type: image/png\r\n\r\n'
    parts = [f"--{boundary}\r\n{head.format(name)}".encode() + data + b"\r\n" for name, data in uploads]
    return f"multipart/form-data; boundary={boundary}", b"".join(parts) + f"--{boundary}--\r\n".encode()


@contextmanager
def serving(
    profile: Path, limits: Mapping[str, float] | None = None, wishes: Mapping[str, object] | None = None, **place: str
) -> Iterator[Service]:
    """A service with these limits and wishes; ended when the block is left, unless it has ended before."""
    parts = [json.dumps(part) for part in (limits or {}, wishes or {}, place)]
    with _listening(forked.start("support.serving", [profile, *parts], err=subprocess.PIPE)) as service:
        yield service


@contextmanager
def started(*arguments: object) -> Iterator[Service]:
    """The service that a command line starts."""
    with _listening(start(*arguments, err=subprocess.PIPE)) as service:
        yield service


@contextmanager
def _listening(process: forked.Forked) -> Iterator[Service]:
    """The service of a process, once it says where."""
    assert process.stderr
    drained = Thread(target=process.stderr.read, daemon=True)  # or one that logs much would wait for a reader
    try:
        lines: list[str] = []
        while not (address := re.search(r"Serving at (\S+)", lines[-1] if lines else "")):
            line = process.stderr.readline()
            assert line, "".join(lines)
            lines.append(line)
        drained.start()
        yield Service(address[1], process)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait(60)
        if drained.is_alive():
            drained.join(10)
        process.stderr.close()


@contextmanager
def started_here(*arguments: object) -> Iterator[Client]:
    """The service that a command line starts, in a thread of this process; raises what the command raises instead."""
    import uvicorn  # which the environment of Ray has not

    listening: Future[tuple[uvicorn.Server, socket]] = Future()

    class Server(uvicorn.Server):
        async def serve(self, sockets: list[socket] | None = None) -> None:
            listening.set_result((self, (sockets or [])[0]))
            await super().serve(sockets)

    words = [*map(str, arguments), "--port", "0"]
    with patch.object(uvicorn, "Server", Server), ThreadPoolExecutor(1) as thread:
        running = thread.submit(typer.main.get_command(app), words, standalone_mode=False)
        if listening not in wait([listening, running], return_when=FIRST_COMPLETED).done:
            running.result()
        server, at = listening.result()
        try:
            yield Client("http://{}:{}".format(*at.getsockname()))
        finally:
            server.should_exit = True
            running.result(60)


def learn_profile(path: Path, calibrator: str = "probit", views: str = str(PANEL)) -> Path:
    """A profile of the embedded classifier, from a few hundred pictures."""
    fitted(calibrator, views).save(path)
    registry.remember(EMBEDDED)
    return path


@cache
def fitted(calibrator: str, views: str) -> Profile:
    with Model(EMBEDDED) as model:
        return model.fit(labelled(DEMO / "pictures.npz")[:400], views=views, calibrator=calibrator).profile


@cache
def clothes() -> tuple[bytes, ...]:
    """Embedded pictures as PNG files, which took no part in learning."""
    with np.load(DEMO / "pictures.npz") as file:
        return tuple(encode_png(np.repeat(grey[:, :, None], 3, axis=2)) for grey in file["images"][1000:1040])


def main() -> None:
    limits, asking, place = (json.loads(text) for text in sys.argv[2:5])
    review = Path(place.pop("review")) if "review" in place else None
    here = Place(**{"port": 0, **place, "token_file": Path(place["token_file"]) if "token_file" in place else None})
    asked = AskOptions(**asking)
    run(Path(sys.argv[1]), None, DecisionOptions(), asked, here, ServiceLimits(**limits), review)


if __name__ == "__main__":
    main()
