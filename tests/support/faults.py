"""A classifier over HTTP that fails in every way a real one does, at seeded moments, and counts what it is asked.

Run it in tests: python -m support.faults RATE SEED [DELAY]. It prints its port; GET /stats tells what it saw.
The label depends on the bytes of the picture alone, so a run with faults must end in the labels of one without.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import random
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

from support import forked

LABELS = ("ant", "bee", "cat", "dog", "eel")
FAULTS = ("429", "500", "503", "reset before", "reset after", "hang", "garbage", "drip", "wrong type")
WEIGHTS = (4, 4, 4, 4, 4, 1, 4, 4, 4)
"""How often each is chosen; a hang is rare because it takes long."""
HANG = 4.0
"""Seconds that a hanging request takes. Clients are told to wait half as long: on a busy machine an answer may take a
good part of that."""


def label_of(picture: bytes) -> str:
    return LABELS[hashlib.sha256(picture).digest()[0] % len(LABELS)]


class FaultServer:
    """Counts every request, also those that it fails."""

    def __init__(self, rate: float, seed: int, delay: float) -> None:
        self.rate, self.seed, self.delay = rate, seed, delay
        self.requests = 0
        self.seen: Counter[str] = Counter()
        self.answered: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.busiest = self.busy = 0
        self.arrivals: list[tuple[float, int]] = []

    async def classify(self, request: web.Request) -> web.StreamResponse:
        self.requests += 1
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        self.arrivals.append((time.monotonic(), self.busy))
        try:
            picture = await request.read()
            return await self._answer(request, picture)
        finally:
            self.busy -= 1

    async def _answer(self, request: web.Request, picture: bytes) -> web.StreamResponse:
        name = hashlib.sha256(picture).hexdigest()
        dice = random.Random(f"{self.seed} {name} {self.seen[name]}")
        self.seen[name] += 1
        fault = dice.choices(FAULTS, WEIGHTS)[0] if dice.random() < self.rate else ""
        self.faults[fault] += 1
        if self.delay:
            await asyncio.sleep(self.delay * dice.uniform(0.5, 1.5))
        return await self._reply(request, fault, name, label_of(picture))

    async def _reply(  # noqa: PLR0911
        self, request: web.Request, fault: str, name: str, label: str
    ) -> web.StreamResponse:
        if fault in ("429", "503"):
            return web.Response(status=int(fault), headers={"Retry-After": "0"}, text="slow down")
        if fault == "500":
            return web.Response(status=500, text="internal trouble")
        if fault.startswith("reset"):
            self.answered[name] += fault == "reset after"
            if request.transport:
                request.transport.abort()
            return web.Response()
        if fault == "hang":
            await asyncio.sleep(HANG)
            return web.Response(status=504)
        if fault == "garbage":
            return web.Response(body=b"\x00\xff<html>oops")
        if fault == "wrong type":
            return web.json_response({"label": {"not": "a label"}})
        self.answered[name] += 1
        if fault == "drip":
            return await _drip(request, json.dumps({"label": label}).encode())
        return web.json_response({"label": label})

    async def stats(self, _: web.Request) -> web.Response:
        return web.json_response(
            {
                "requests": self.requests,
                "billed": self.requests - self.faults["429"],
                "questions": len(self.seen),
                "answered": sum(self.answered.values()),
                "faults": dict(self.faults),
                "busiest": self.busiest,
            }
        )

    async def log(self, _: web.Request) -> web.Response:
        return web.json_response(self.arrivals)


async def _drip(request: web.Request, body: bytes) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": "application/json"})
    await response.prepare(request)
    for byte in body:
        await response.write(bytes([byte]))
        await asyncio.sleep(0.001)
    await response.write_eof()
    return response


async def serve(rate: float, seed: int, delay: float) -> None:
    logging.disable()  # clients that leave are no news here
    server = FaultServer(rate, seed, delay)
    app = web.Application(client_max_size=64 * 2**20)
    app.add_routes(
        [web.post("/classify", server.classify), web.get("/stats", server.stats), web.get("/log", server.log)]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print(runner.addresses[0][1], flush=True)  # noqa: T201
    await asyncio.Event().wait()


@dataclass(frozen=True)
class Running:
    """A fault server in a process of its own."""

    port: int
    timeout: float
    """Seconds that a client should wait: less than a hang where there are faults, long where there are none."""
    pid: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/classify"

    def stats(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/stats", timeout=10) as reply:
            return dict(json.load(reply))

    def arrivals(self) -> list[tuple[float, int]]:
        """When each request came, in seconds, and how many were there then, itself included."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/log", timeout=10) as reply:
            return [(moment, busy) for moment, busy in json.load(reply)]

    def describe(self, folder: Path, **settings: object) -> Path:
        """A TOML description of this server."""
        values = {"url": self.url, "label": "label", "timeout": self.timeout, "concurrency": 32, **settings}
        lines = ['connector = "http"', *(f"{key} = {_toml(value)}" for key, value in values.items())]
        path = folder / f"server-{self.port}.toml"
        path.write_text("\n".join(lines) + "\n")
        return path


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + " }"
    return json.dumps(value)


@contextmanager
def fault_server(rate: float = 0.0, seed: int = 0, delay: float = 0.0) -> Iterator[Running]:
    with forked.start("support.faults", [rate, seed, delay], out=subprocess.PIPE) as process:
        try:
            assert process.stdout
            yield Running(int(process.stdout.readline()), HANG / 2 if rate else 30.0, process.pid)
        finally:
            process.kill()


def main() -> None:
    asyncio.run(serve(*map(float, sys.argv[1:3]), *map(float, sys.argv[3:4] or ["0"])))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
