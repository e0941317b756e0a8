"""What refusals cost: the asker with its ledger on disk, beside a loop of threads in which each caller waits alone.

    python benchmarks/pressure.py [seconds] [folder]

The server answers after 20 ms, in a process of its own. It refuses a share of the calls at random, however few there
are, or all that exceed 50 a second, with a status of 429 and Retry-After: 1. Both sides have eight calls at a time and
as many questions as the loop is expected to get through in the given seconds.
"""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from aiohttp import web
from engine import PANEL, Noise, RawPixels, bodies
from goals import at_least, at_most, compare

from looktwice.asking.asker import Asker
from looktwice.asking.ledger import Budget, SqliteLedger
from looktwice.asking.session import fastest_loop
from looktwice.calibration.votes import Row

WIDTH, DELAY, WAIT = 8, 0.02, 1.0


@dataclass(frozen=True)
class Case:
    """How a server refuses: a share of the calls, or what exceeds so many a second."""

    name: str
    share: float
    limit: float

    def expected(self) -> float:
        """Answers a second that a loop gets whose callers wait when they are refused."""
        alone = WIDTH / (DELAY + self.share / (1 - self.share) * WAIT)
        return min(alone, self.limit or alone)


CASES = (
    Case("none refused", 0.0, 0.0),
    Case("3 % refused", 0.03, 0.0),
    Case("10 % refused", 0.1, 0.0),
    Case("30 % refused", 0.3, 0.0),
    Case("a limit of 50 a second", 0.0, 50.0),
)


class Pressed:
    """A server that counts what it refuses."""

    def __init__(self, share: float, limit: float) -> None:
        self.share, self.limit = share, limit
        self.dice = random.Random(0)
        self.tokens, self.filled = limit, time.monotonic()
        self.seen: Counter[str] = Counter()

    def refuses(self) -> bool:
        if not self.limit:
            return self.dice.random() < self.share
        now = time.monotonic()
        self.tokens = min(self.limit, self.tokens + (now - self.filled) * self.limit)
        self.filled = now
        if self.tokens < 1:
            return True
        self.tokens -= 1
        return False

    async def classify(self, request: web.Request) -> web.Response:
        refused = self.refuses()
        self.seen["refused" if refused else "answered"] += 1
        await request.read()
        await asyncio.sleep(DELAY)
        if refused:
            return web.Response(status=429, headers={"Retry-After": f"{WAIT:g}"})
        return web.json_response({"label": "ant"})

    async def counts(self, _: web.Request) -> web.Response:
        return web.json_response(dict(self.seen))


async def serve(share: float, limit: float) -> None:
    pressed = Pressed(share, limit)
    app = web.Application()
    app.add_routes([web.post("/classify", pressed.classify), web.get("/counts", pressed.counts)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, backlog=1024).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.Event().wait()


@contextmanager
def server(case: Case) -> Iterator[str]:
    """The address of a server in its own process."""
    command = [sys.executable, __file__, "serve", str(case.share), str(case.limit)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def refusals(url: str) -> int:
    with urllib.request.urlopen(f"{url}/counts", timeout=10) as reply:
        return int(json.load(reply).get("refused", 0))


def loop(url: str, sent: list[bytes]) -> int:
    """As many answers as bodies, from eight threads of which each waits when it is refused."""

    def ask(body: bytes) -> int:
        request = urllib.request.Request(f"{url}/classify", body)
        while True:
            try:
                with urllib.request.urlopen(request, timeout=30) as reply:
                    return len(json.load(reply))
            except urllib.error.HTTPError as error:
                time.sleep(float(error.headers["Retry-After"]))

    with ThreadPoolExecutor(WIDTH) as threads:
        return sum(threads.map(ask, sent))


async def asked(url: str, noise: Noise, pictures: int, ledger: SqliteLedger) -> int:
    classifier = RawPixels(f"{url}/classify", WIDTH)
    asker = Asker(classifier, ledger, budget=Budget(queries=10**9))
    try:
        rows = [row async for row in asker.ask(noise.pictures(pictures), PANEL)]
    finally:
        await classifier.close()
    return (1 + len(PANEL)) * sum(isinstance(row, Row) for row in rows)


def measured(case: Case, seconds: float, folder: Path) -> tuple[float, float]:
    """Answers a second and refusals of the asker, each divided by the loop's."""
    pictures = max(10, round(case.expected() * seconds / (1 + len(PANEL))))
    noise = Noise.for_pictures(pictures)
    sent = bodies(noise, pictures)
    with server(case) as url:
        began = time.perf_counter()
        assert loop(url, sent) == len(sent)
        naive, refused = len(sent) / (time.perf_counter() - began), refusals(url)
    with server(case) as url, tempfile.TemporaryDirectory(dir=folder) as temporary:
        began = time.perf_counter()
        with (
            SqliteLedger(Path(temporary) / "ledger.db") as ledger,
            asyncio.Runner(loop_factory=fastest_loop()) as runner,
        ):
            assert runner.run(asked(url, noise, pictures, ledger)) == len(sent)
        ours, ours_refused = len(sent) / (time.perf_counter() - began), refusals(url)
    print(
        f"{case.name}: {len(sent)} questions; loop {naive:.0f}/s with {refused} refusals, "
        f"asker {ours:.0f}/s with {ours_refused}",
        flush=True,
    )
    return ours / naive, ours_refused / max(1, refused)


def main() -> None:
    seconds = float((*sys.argv[1:2], "20")[0])
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(__file__).parent
    reached = True
    for case in CASES:
        speed, refused = measured(case, seconds, folder)
        reached &= at_least(f"answers a second / a loop of eight threads, {case.name}", speed, 0.9)
        if case.limit:
            reached &= at_most(f"refusals / those of the loop, {case.name}", refused, 1.0)
        elif case.share:
            compare(f"refusals / those of the loop, {case.name}", refused)
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(serve(*map(float, sys.argv[2:4])))
    else:
        main()
