"""What the engine costs over HTTP: the engine with its ledger on disk, beside a bare aiohttp loop.

    python benchmarks/engine.py [rounds] [pictures] [folder]

Three servers, each a process of its own: one answers after 20 ms, which is quick for an API, one after 100 ms, and
one at once, which shows the processor time of a question where nothing is waited for. Rounds alternate: bare, engine,
bare, engine, …; each round of the engine is compared with the bare rounds on both sides of it, and the medians count.
The ledger is a new file each time, in the given folder, which must be on a real disk for the figures to mean
anything.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import aiohttp
import numpy as np
from goals import at_least, compare
from pressed import server

from looktwice.calibration.evidence import Row
from looktwice.classifiers.base import Answer, Pixels
from looktwice.classifiers.secrets import Secrets
from looktwice.classifiers.settings import HttpSettings
from looktwice.classifiers.transport import Transport
from looktwice.cli.app import COLLECT_AFTER
from looktwice.engine.budget import Budget
from looktwice.engine.channel import Channel
from looktwice.engine.engine import QueryEngine
from looktwice.engine.ledger.ledger import open_ledger
from looktwice.engine.runner import Settings
from looktwice.images.collection import Picture
from looktwice.images.image import Image, WorkingSize
from looktwice.model.runs import fastest_loop
from looktwice.views import Panel, base_question, questions, render

SIDE = 58
"""A picture of 58 × 58 × 3 bytes is a body of about 10 KB."""
PANEL = Panel.parse("again*8")
"""Asked about again and again as it is: rendering has a benchmark of its own."""
STEP = 16
"""Bytes from one picture to the next."""


@dataclass(frozen=True)
class Case:
    """A server that answers after so many seconds, asked by so many at a time."""

    name: str
    delay: float
    concurrency: int


REALISTIC = Case("20 ms, 64 at a time", 0.02, 64)
SLOW = Case("100 ms, 32 at a time", 0.1, 32)
LOOPBACK = Case("at once, 32 at a time", 0.0, 32)


class RawPixels:
    """The transport of every HTTP connector, with the pixels themselves as the body, which costs no encoding."""

    labels = None

    def __init__(self, url: str, concurrency: int) -> None:
        manners = HttpSettings(concurrency=concurrency)
        self.limits = manners.limits(WorkingSize())
        self.fingerprint = "benchmark:raw"
        self._transport = Transport(manners, Secrets())
        self._endpoint = self._transport.endpoint("POST", url, {"content-type": "application/octet-stream"})

    def prepare(self, pixels: Pixels) -> bytes:
        return pixels.tobytes()

    async def label(self, batch: Sequence[bytes]) -> list[Answer]:
        (body,) = batch
        reply = await self._endpoint.send(body)
        return [Answer(json.loads(reply.body)["label"], status=reply.status)]

    async def close(self) -> None:
        await self._transport.close()


@dataclass(frozen=True)
class Noise:
    """Different pictures that cost nothing to make: each is a window on one long noise."""

    long: bytes

    @classmethod
    def for_pictures(cls, count: int) -> Noise:
        return cls(np.random.default_rng(0).bytes(SIDE * SIDE * 3 + STEP * count))

    def image(self, name: str, size: WorkingSize | None = None) -> Image:
        window = np.frombuffer(self.long, np.uint8, SIDE * SIDE * 3, STEP * int(name))
        return Image.from_array(window.reshape(SIDE, SIDE, 3))

    def pictures(self, count: int) -> list[Picture]:
        return [Picture(str(n), None, self) for n in range(count)]


class Cost(NamedTuple):
    """Seconds a request, by the clock and of this process's processors."""

    wall: float
    cpu: float


def bodies(noise: Noise, count: int) -> list[bytes]:
    images = [picture.image() for picture in noise.pictures(count)]
    shown = [render(image, [base_question(image), *questions(image, PANEL, 0)]) for image in images]
    return [pixels.tobytes() for views in shown for pixels in views]


async def bare(url: str, concurrency: int, bodies: list[bytes]) -> int:
    """As many answers as bodies, with nothing between the bodies and aiohttp."""
    labels: list[str] = []
    left = iter(bodies)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=concurrency)) as session:

        async def work() -> None:
            for body in left:
                async with session.post(url, data=body) as response:
                    labels.append((await response.json())["label"])

        await asyncio.gather(*(work() for _ in range(concurrency)))
    return len(labels)


async def engine(url: str, concurrency: int, noise: Noise, count: int, ledger: Path) -> int:
    classifier = RawPixels(url, concurrency)
    settings = Settings(classifier.limits, budgets=(Budget(queries=10**9),))
    engine = QueryEngine([Channel(classifier, open_ledger(str(ledger)), settings)])
    try:
        rows = [row async for row in engine.ask(noise.pictures(count), PANEL)]
    finally:
        await engine.close()
    assert all(isinstance(row, Row) for row in rows)
    return engine.progress.answered


def measure(work: Callable[[], Awaitable[int]], expected: int) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        done = runner.run(_awaited(work))
    assert done == expected, f"{done} answers instead of {expected}"
    return Cost((time.perf_counter() - wall) / done, (time.process_time() - cpu) / done)


async def _awaited(work: Callable[[], Awaitable[int]]) -> int:
    return await work()


def measured(case: Case, rounds: int, pictures: int, folder: Path) -> Cost:
    """What the engine takes for a question of what bare aiohttp takes: the medians over the rounds."""
    noise = Noise.for_pictures(pictures)
    sent = bodies(noise, pictures)
    plain, ours = [], []
    print(f"{case.name}: {rounds} rounds of {len(sent)} requests of {SIDE * SIDE * 3} bytes", flush=True)
    with server(case.delay) as url, tempfile.TemporaryDirectory(dir=folder) as temporary:
        measure(lambda: bare(url, case.concurrency, sent[:2000]), min(2000, len(sent)))
        for n in range(rounds):
            plain.append(measure(lambda: bare(url, case.concurrency, sent), len(sent)))
            ledger = Path(temporary) / f"{n}.db"
            ours.append(
                measure(lambda ledger=ledger: engine(url, case.concurrency, noise, pictures, ledger), len(sent))
            )
            print(f"round {n + 1}: bare {_show(plain[-1])}, engine {_show(ours[-1])}", flush=True)
        plain.append(measure(lambda: bare(url, case.concurrency, sent), len(sent)))
    around = [Cost(*map(statistics.mean, zip(*sides, strict=True))) for sides in pairwise(plain)]
    ratios = [(own.wall / base.wall, own.cpu / base.cpu) for base, own in zip(around, ours, strict=True)]
    return Cost(*map(statistics.median, zip(*ratios, strict=True)))


def _show(cost: Cost) -> str:
    return f"{1 / cost.wall:6.0f} requests/s, {1e6 * cost.cpu:4.0f} µs of processor each"


def main() -> None:
    rounds, pictures = (int(text) for text in (*sys.argv[1:3], "7", "1000")[:2])
    folder = Path(sys.argv[3]) if len(sys.argv) > 3 else Path("build")
    gc.set_threshold(COLLECT_AFTER)  # as the commands do
    folder.mkdir(parents=True, exist_ok=True)
    loop = fastest_loop().__module__.partition(".")[0]
    print(f"on {loop}, {os.cpu_count()} processors")
    realistic, slow, loopback = (measured(case, rounds, pictures, folder) for case in (REALISTIC, SLOW, LOOPBACK))
    reached = [
        at_least(f"questions a second / bare aiohttp, {REALISTIC.name}", 1 / realistic.wall, 0.95),
        at_least(f"questions a second / bare aiohttp, {SLOW.name}", 1 / slow.wall, 0.97),
    ]
    compare(f"processor time a question / bare aiohttp, {REALISTIC.name}", realistic.cpu)
    compare(f"questions a second / bare aiohttp, {LOOPBACK.name}", 1 / loopback.wall)
    compare(f"processor time a question / bare aiohttp, {LOOPBACK.name}", loopback.cpu)
    sys.exit(0 if all(reached) else 1)


if __name__ == "__main__":
    main()
