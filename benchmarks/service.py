"""What the service costs beside the library: looks a second as ratios in one run, and memory over many looks.

    python benchmarks/service.py [looks] [rounds]

The embedded classifier, PNG bodies, 32 connections on loopback, service and client on the same cores. The library is
called in two ways: one `look` over all pictures, the fastest there is; and one `look` a picture, 32 at a time, as
somebody would who serves requests without the service. Rounds alternate, because machines have moods; the processor
time of one look over all, divided by that of the service, is the ratio without the client and without the neighbours.
"""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from importlib.resources import files
from itertools import cycle, islice
from pathlib import Path
from statistics import median
from typing import cast

import numpy as np

from looktwice.asking import session
from looktwice.asking.asker import Asker
from looktwice.calibration.jury import Jury
from looktwice.classifiers.registry import connect
from looktwice.pictures.collection import Picture, labelled
from looktwice.pictures.image import encode_png
from looktwice.service.bodies import Opened, Upload
from looktwice.verdicts import look as looking
from looktwice.verdicts.learn import collect
from looktwice.verdicts.policy import Policy
from looktwice.verdicts.profile import Profile
from looktwice.views import GENERAL

DEMO = Path(str(files("looktwice") / "demo"))
CLIENTS = 32
LENGTH = re.compile(rb"content-length: (\d+)")


def main() -> None:
    looks = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "profile.json"
        session.run(lambda: learn(profile))
        session.run(lambda: compare(profile, looks, rounds))


async def learn(path: Path) -> None:
    asker = Asker(connect(DEMO / "fashion.toml"))
    collected = await collect(asker, labelled(DEMO / "pictures.npz")[::2], GENERAL)
    learn.learn(collected, Jury(), str(DEMO / "fashion.toml")).save(path)


async def compare(path: Path, looks: int, rounds: int) -> None:
    bodies = clothes()
    profile = Profile.load(path)
    async with served(path) as (url, pid):
        await load(url, bodies, len(bodies))
        at_first, each = memory(pid), max(1, looks // rounds)
        ratios: list[tuple[float, float, float]] = []
        for done in range(1, rounds + 1):
            single, began = await one_by_one(profile, bodies), time.process_time()
            whole = await in_one(profile, bodies)
            own, before = (time.process_time() - began) / len(bodies), processor(pid)
            speed, statuses = await load(url, bodies, each)
            cost = (processor(pid) - before) / each
            ratios.append((speed / whole, speed / single, own / cost))
            print(
                f"round {done}: service {speed:6.0f}/s, one look {whole:6.0f}/s, a look each {single:6.0f}/s; "
                f"{1000 * cost:.2f} and {1000 * own:.2f} ms of processor; {dict(statuses)}; {memory(pid):.0f} MB",
                flush=True,
            )
        first, second, third = (median(column) for column in zip(*ratios, strict=True))
        print(f"median ratios: {first:.2f} of one look over all, {second:.2f} of a look each; by processor {third:.2f}")
        print(f"memory: {at_first:.0f} MB after {len(bodies)} looks, {memory(pid):.0f} MB after {looks} more")


def clothes() -> list[bytes]:
    with np.load(DEMO / "pictures.npz") as file:
        return [encode_png(np.repeat(grey[:, :, None], 3, axis=2)) for grey in file["images"]]


@asynccontextmanager
async def served(profile: Path) -> AsyncIterator[tuple[str, int]]:
    command = [sys.executable, "-m", "looktwice.cli.app", "serve", "-p", str(profile), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr
            found = re.search(r"http://\S+", process.stderr.readline())
            assert found, "the service did not start"
            yield found[0], process.pid
        finally:
            process.terminate()


class Client(asyncio.Protocol):
    """Sends a look as soon as the last one is answered; as little work as can be, since it shares the cores."""

    def __init__(self, left: Iterator[bytes], statuses: Counter[int]) -> None:
        self._left, self._statuses, self._got = left, statuses, bytearray()
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
        self._statuses[status] += 1
        self._got.clear()
        if status == 429:
            asyncio.get_running_loop().call_later(1.0, self._send)
        else:
            self._next()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the service left"))

    def _next(self) -> None:
        self._request = next(self._left, b"")
        if self._request:
            self._send()
        else:
            self.done.set_result(None)
            self._transport.close()

    def _send(self) -> None:
        self._transport.write(self._request)


async def load(url: str, bodies: list[bytes], looks: int) -> tuple[float, Counter[int]]:
    """Looks a second, and how often each status came back; a refusal for now is sent again."""
    statuses: Counter[int] = Counter()
    host, port = url.split("/")[2].split(":")
    head = f"POST /v1/look HTTP/1.1\r\nHost: {host}\r\nContent-Type: image/png\r\nContent-Length: "
    requests = [f"{head}{len(body)}\r\n\r\n".encode() + body for body in bodies]
    left = islice(cycle(requests), looks)
    began = time.perf_counter()
    loop = asyncio.get_running_loop()
    made = [await loop.create_connection(lambda: Client(left, statuses), host, int(port)) for _ in range(CLIENTS)]
    await asyncio.gather(*(client.done for _, client in made))
    if set(statuses) - {200, 429}:
        raise SystemExit(f"the service answered {dict(statuses)}")
    return looks / (time.perf_counter() - began), statuses


async def in_one(profile: Profile, bodies: list[bytes]) -> float:
    asker, policy = Asker(connect(DEMO / "fashion.toml")), Policy.full_panel(profile).guaranteeing(0.1)
    began = time.perf_counter()
    verdicts = [verdict async for verdict in looking.look(asker, pictures(bodies), profile, policy)]
    return len(verdicts) / (time.perf_counter() - began)


async def one_by_one(profile: Profile, bodies: list[bytes]) -> float:
    asker, policy = Asker(connect(DEMO / "fashion.toml")), Policy.full_panel(profile).guaranteeing(0.1)
    left = iter(pictures(bodies))

    async def caller() -> None:
        for picture in left:
            async for _ in looking.look(asker, [picture], profile, policy):
                pass

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(CLIENTS)))
    return len(bodies) / (time.perf_counter() - began)


def pictures(bodies: list[bytes]) -> list[Picture]:
    return [Picture(f"{n}", None, Opened(Upload(f"{n}", body), 10**6)) for n, body in enumerate(bodies)]


def memory(pid: int) -> float:
    """Resident megabytes of a process."""
    text = Path(f"/proc/{pid}/statm").read_text()
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def processor(pid: int) -> float:
    """Seconds of processor that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
