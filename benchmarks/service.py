"""The service under load: what it costs beside the library, one slow query among many callers, and overload.

    python benchmarks/service.py cost [looks] [rounds]
    python benchmarks/service.py slow [rounds] [seconds a round]
    python benchmarks/service.py overload [rounds] [seconds a round]

Service, callers and (for `slow`) the classifier share the cores, so compare within one run: rounds alternate.

`cost`: looks a second of 32 callers with the embedded classifier, beside one `score` over all pictures in this process
and beside 32 callers of `look`.
`slow`: 200 callers of a classifier that takes 50 ms; in every second round one query takes 12 s. The 95th percentile
of the other looks' seconds, as a ratio of the rounds without. Goal: at most 1.2.
`overload`: looks answered for 1,000 callers as a share of those for 64, with the most memory and the slowest /healthz.
Goals: at least 0.95, under 600 MB, under 1 s.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from importlib.resources import files
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import cast

import numpy as np
from aiohttp import web

from looktwice import AsyncModel, Model

DEMO = Path(str(files("looktwice") / "demo"))
LENGTH, RETRY = re.compile(rb"content-length: (\d+)"), re.compile(rb"retry-after: (\d+)")
CALL, SLOW = 0.05, 12.0
"""Seconds of a query of the classifier of `slow`, and of the slow one."""


async def main() -> None:
    what, *numbers = sys.argv[1:] or ["cost"]
    first, second = (int(number) for number in [*numbers, "0", "0"][:2])
    with tempfile.TemporaryDirectory() as folder:
        await {"cost": cost, "slow": slow, "overload": overload}[what](Path(folder), first, second)


# What is measured ---------------------------------------------------------------------------------------------------


async def cost(folder: Path, looks: int, rounds: int) -> None:
    looks, rounds = looks or 20_000, rounds or 5
    bodies, each = clothes(), max(1, looks // rounds)
    profile = fitted(folder, str(DEMO / "fashion.toml"))
    async with served(profile, "--ledger", "off") as (url, pid):
        await load(url, bodies, 32, len(bodies))
        at_first, ratios = memory(pid), list[tuple[float, float, float]]()
        for done in range(1, rounds + 1):
            single, began = await one_by_one(profile, bodies), time.process_time()
            whole = await in_one(profile, bodies)
            own, before = (time.process_time() - began) / len(bodies), processor(pid)
            told = await load(url, bodies, 32, each)
            spent = (processor(pid) - before) / each
            ratios.append((told.speed / whole, told.speed / single, own / spent))
            print(
                f"round {done}: service {told.speed:6.0f}/s, one score {whole:6.0f}/s, a look each {single:6.0f}/s; "
                f"{1000 * spent:.2f} and {1000 * own:.2f} ms of processor; {dict(told.statuses)}; {memory(pid):.0f} MB",
                flush=True,
            )
        first, second, third = (median(column) for column in zip(*ratios, strict=True))
        print(f"median ratios: {first:.2f} of one score, {second:.2f} of a look each; by processor {third:.2f}")
        print(f"memory: {at_first:.0f} MB after {len(bodies)} looks, {memory(pid):.0f} MB after {looks} more")


async def slow(folder: Path, rounds: int, seconds: int) -> None:
    rounds, seconds = rounds or 3, seconds or 20
    async with sometimes_slow() as (address, stall):
        description = folder / "slow.toml"
        description.write_text(f'connector = "http"\nurl = "{address}"\nlabel = "label"\nconcurrency = 64\n')
        profile = await asyncio.to_thread(fitted, folder, str(description), 60)
        ratios = []
        for done in range(1, rounds + 1):
            tails = []
            for with_slow in (False, True):
                # Pictures that the ledger has are not asked about, so each round has a ledger of its own.
                async with served(profile, "--ledger", str(folder / f"{done}{with_slow}.db")) as (url, _):
                    stall.clear()
                    if with_slow:
                        asyncio.get_running_loop().call_later(seconds / 10, stall.append, True)
                    told = await load(url, noise(), 200, seconds=seconds)
                    others = sorted(second for second in told.seconds if second < SLOW)
                    tails.append(others[int(0.95 * len(others))])
                    late = len(told.seconds) - len(others)
                    print(
                        f"round {done}{', one slow query' if with_slow else ''}: {told.speed:.0f} looks/s, "
                        f"p50 {others[len(others) // 2]:.2f} s, p95 {tails[-1]:.2f} s, {late} "
                        f"of {SLOW:g} s or more; {dict(told.statuses)}",
                        flush=True,
                    )
            ratios.append(tails[1] / tails[0])
        print(f"median ratio of p95 with one slow query: {median(ratios):.2f}")


async def overload(folder: Path, rounds: int, seconds: int) -> None:
    rounds, seconds, bodies = rounds or 3, seconds or 20, clothes()
    async with served(fitted(folder, str(DEMO / "fashion.toml")), "--ledger", "off") as (url, pid):
        await load(url, bodies, 32, len(bodies))
        ratios, slowest = [], 0.0
        for done in range(1, rounds + 1):
            speeds = []
            for callers in (64, 1000):
                watching = Health(url)
                watching.start()
                told = await load(url, bodies, callers, seconds=seconds)
                slowest, answered = max(slowest, await asyncio.to_thread(watching.stop)), told.statuses[200]
                speeds.append(answered / seconds)
                print(
                    f"round {done}: {callers} callers, {speeds[-1]:.0f} verdicts/s; {dict(told.statuses)}; "
                    f"{memory(pid):.0f} MB; slowest /healthz so far {slowest:.2f} s",
                    flush=True,
                )
            ratios.append(speeds[1] / speeds[0])
        print(f"median share: {median(ratios):.2f}; at most {memory(pid, 'VmHWM'):.0f} MB; /healthz {slowest:.2f} s")


# Pictures, profiles and classifiers ---------------------------------------------------------------------------------


def clothes() -> list[bytes]:
    with np.load(DEMO / "pictures.npz") as file:
        return [encoded(np.repeat(grey[:, :, None], 3, axis=2)) for grey in file["images"]]


def noise(pictures: int = 20_000) -> Iterator[bytes]:
    """Small pictures that nobody has asked about."""
    rng = np.random.default_rng()
    return (encoded(rng.integers(0, 256, (8, 8, 3), np.uint8)) for _ in range(pictures))


def encoded(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    import cv2

    return bytes(cv2.imencode(".png", pixels)[1])


def fitted(folder: Path, classifier: str, noisy: int = 0) -> Path:
    with Model(classifier, ledger="off", label_check=0) as model:
        if noisy:
            pictures = np.random.default_rng(0).integers(0, 256, (noisy, 8, 8, 3), np.uint8)
            model.fit(pictures, ["ant", "bee"] * (noisy // 2), views="mirror turn:8")
        else:
            model.fit(DEMO / "pictures.npz")
        model.save(folder / "profile.json")
    return folder / "profile.json"


@asynccontextmanager
async def sometimes_slow() -> AsyncIterator[tuple[str, list[bool]]]:
    """The address of a classifier, and a list: the next query takes long for each item in it."""
    stall: list[bool] = []

    async def classify(request: web.Request) -> web.Response:
        body = await request.read()
        await asyncio.sleep(SLOW if stall and stall.pop() else CALL)
        return web.json_response({"label": "ant" if sum(body[-40:]) % 2 else "bee"})

    app = web.Application()
    app.router.add_post("/", classify)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        yield f"http://127.0.0.1:{port}/", stall
    finally:
        await runner.cleanup()


# The service and its callers ----------------------------------------------------------------------------------------


@asynccontextmanager
async def served(profile: Path, *options: str) -> AsyncIterator[tuple[str, int]]:
    command = [sys.executable, "-m", "looktwice", "serve", "-p", str(profile), "--port", "0", *options]
    process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
    try:
        assert process.stderr
        found = re.search(r"http://\S+", (await process.stderr.readline()).decode())
        assert found, "the service did not start"
        yield found[0], process.pid
    finally:
        process.terminate()
        await process.wait()


@dataclass
class Told:
    """What came back: seconds of each verdict, and how often each status."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    speed: float = 0.0


class Caller(asyncio.Protocol):
    """Sends a look as soon as the last one is answered; as little work as can be, since it shares the cores."""

    def __init__(self, left: Iterator[bytes], told: Told, end: float) -> None:
        self._left, self._told, self._end, self._got = left, told, end, bytearray()
        self.done = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._next()

    def data_received(self, data: bytes) -> None:
        self._got += data
        head, end, body = self._got.partition(b"\r\n\r\n")
        length = LENGTH.search(head) if end else None
        if length is None or len(body) < int(length[1]):
            return
        status = int(head[9:12])
        self._got.clear()
        if time.monotonic() < self._end:
            self._told.statuses[status] += 1
        if retry := RETRY.search(head):
            asyncio.get_running_loop().call_later(int(retry[1]), self._send)
            return
        self._told.seconds.append(time.monotonic() - self._began)
        self._next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self._told.statuses[0] += 1
            self.done.set_result(None)

    def _next(self) -> None:
        self._request = next(self._left, b"") if time.monotonic() < self._end else b""
        if self._request:
            self._began = time.monotonic()
            self._send()
        else:
            self.done.set_result(None)
            self._transport.close()

    def _send(self) -> None:
        if time.monotonic() < self._end or self._end == float("inf"):
            self._transport.write(self._request)
        elif not self.done.done():
            self.done.set_result(None)
            self._transport.close()


async def load(
    url: str, bodies: list[bytes] | Iterator[bytes], callers: int, looks: int | None = None, seconds: float = 0.0
) -> Told:
    """Looks of so many callers at once, for a number of them or of seconds; 0 counts connections that broke."""
    host, port = url.split("/")[2].split(":")
    head = f"POST /v1/look HTTP/1.1\r\nHost: {host}\r\nContent-Type: image/png\r\nContent-Length: "
    requests = (f"{head}{len(body)}\r\n\r\n".encode() + body for body in bodies)
    left = islice(cycle(list(requests)) if isinstance(bodies, list) else requests, looks)
    told, began, loop = Told(), time.monotonic(), asyncio.get_running_loop()
    end = began + seconds if seconds else float("inf")
    made = await asyncio.gather(
        *(loop.create_connection(lambda: Caller(left, told, end), host, int(port)) for _ in range(callers))
    )
    await asyncio.gather(*(caller.done for _, caller in made))
    told.speed = len(told.seconds) / (time.monotonic() - began)
    return told


class Health(threading.Thread):
    """Asks /healthz five times a second, each time on a connection of its own; `slowest` is in seconds, infinite if one
    request failed."""

    def __init__(self, url: str) -> None:
        super().__init__(daemon=True)
        self._url, self._over = url, threading.Event()
        self.slowest = 0.0

    def run(self) -> None:
        while not self._over.wait(0.2):
            began = time.monotonic()
            try:
                with urllib.request.urlopen(self._url + "healthz", timeout=60):
                    self.slowest = max(self.slowest, time.monotonic() - began)
            except OSError:
                self.slowest = float("inf")

    def stop(self) -> float:
        self._over.set()
        self.join()
        return self.slowest


async def in_one(profile: Path, bodies: list[bytes]) -> float:
    async with AsyncModel.load(profile, ledger="off") as model:
        began = time.perf_counter()
        verdicts = [verdict async for verdict in model.score(bodies, max_error=0.1)]
        return len(verdicts) / (time.perf_counter() - began)


async def one_by_one(profile: Path, bodies: list[bytes]) -> float:
    left = iter(bodies)

    async def caller(model: AsyncModel) -> None:
        for body in left:
            await model.look(body, max_error=0.1)

    async with AsyncModel.load(profile, ledger="off") as model:
        began = time.perf_counter()
        await asyncio.gather(*(caller(model) for _ in range(32)))
        return len(bodies) / (time.perf_counter() - began)


def memory(pid: int, kind: str = "VmRSS") -> float:
    """Resident megabytes of a process, now or (VmHWM) at the most."""
    (found,) = re.findall(rf"{kind}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(found) / 1000


def processor(pid: int) -> float:
    """Seconds of processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    asyncio.run(main())
