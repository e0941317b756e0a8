"""What refusals cost: the engine with its ledger on disk, beside a loop of threads in which each caller waits alone.

    python benchmarks/pressure.py [seconds] [folder]

The server answers after 20 ms, in a process of its own. It refuses a share of the calls at random, however few there
are, or all that exceed 50 a second, with a status of 429 and Retry-After: 1. Both sides have eight calls at a time and
as many questions as the loop is expected to get through in the given seconds. At last a second process starts while a
first one asks at that limit, on the ledger of the first, which shares what was learned, and on one of its own.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from engine import PANEL, Noise, RawPixels, bodies
from goals import at_least, at_most, compare
from pressed import WAIT, count, server

from looktwice.calibration.evidence import Row
from looktwice.engine.budget import Budget
from looktwice.engine.channel import Channel
from looktwice.engine.engine import QueryEngine
from looktwice.engine.ledger.ledger import open_ledger
from looktwice.engine.runner import Settings
from looktwice.images.collection import Picture
from looktwice.model.runs import fastest_loop

WIDTH, DELAY = 8, 0.02
LEARNING = 4.0
"""Seconds for which the first of two processes asks before the second starts."""


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


LIMIT = Case("a limit of 50 a second", 0.0, 50.0)
CASES = (
    Case("none refused", 0.0, 0.0),
    Case("3 % refused", 0.03, 0.0),
    Case("10 % refused", 0.1, 0.0),
    Case("30 % refused", 0.3, 0.0),
    LIMIT,
)


def loop(url: str, sent: list[bytes]) -> int:
    """As many answers as bodies, from eight threads of which each waits when it is refused."""

    def ask(body: bytes) -> int:
        request = urllib.request.Request(url, body)
        while True:
            try:
                with urllib.request.urlopen(request, timeout=30) as reply:
                    return int("label" in json.load(reply))
            except urllib.error.HTTPError as error:
                time.sleep(float(error.headers["Retry-After"]))

    with ThreadPoolExecutor(WIDTH) as threads:
        return sum(threads.map(ask, sent))


async def asked(url: str, noise: Noise, pictures: range, ledger: Path) -> tuple[int, int]:
    classifier = RawPixels(url, WIDTH)
    settings = Settings(classifier.limits, budgets=(Budget(queries=10**9),))
    engine = QueryEngine([Channel(classifier, open_ledger(str(ledger)), settings)])
    try:
        rows = [row async for row in engine.ask((Picture(str(n), None, noise) for n in pictures), PANEL)]
    finally:
        await engine.close()
    return (1 + len(PANEL)) * sum(isinstance(row, Row) for row in rows), engine.progress.retries


def ask(url: str, path: Path, pictures: range) -> tuple[int, int]:
    """As many answers as these pictures have questions, through a ledger, and how often questions were sent again."""
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(asked(url, Noise.for_pictures(pictures.stop), pictures, path))


def second_process(seconds: float, folder: Path, shared: bool) -> tuple[float, int]:
    """Answers a second and refusals of a process that starts when another one has learned the limit."""
    pictures = max(10, round(LIMIT.limit / 2 * seconds / (1 + len(PANEL))))
    with server(DELAY, LIMIT.share, LIMIT.limit) as url, tempfile.TemporaryDirectory(dir=folder) as temporary:
        ledgers = [str(Path(temporary) / f"{0 if shared else number}.db") for number in range(2)]
        command = [sys.executable, __file__, "ask", url]
        with subprocess.Popen([*command, ledgers[0], str(pictures), "100000"], stdout=subprocess.DEVNULL) as first:
            while count(url, "answered") < LIMIT.limit * LEARNING:
                time.sleep(0.02)
            said = subprocess.check_output([*command, ledgers[1], "0", str(pictures)], text=True)
            first.terminate()
    speed, refused = said.split()
    return float(speed), int(refused)


def measured(case: Case, seconds: float, folder: Path) -> tuple[float, float]:
    """Answers a second and refusals of the engine, each divided by the loop's."""
    pictures = max(10, round(case.expected() * seconds / (1 + len(PANEL))))
    noise = Noise.for_pictures(pictures)
    sent = bodies(noise, pictures)
    with server(DELAY, case.share, case.limit) as url:
        began = time.perf_counter()
        assert loop(url, sent) == len(sent)
        naive, refused = len(sent) / (time.perf_counter() - began), count(url, "refused")
    with server(DELAY, case.share, case.limit) as url, tempfile.TemporaryDirectory(dir=folder) as temporary:
        began = time.perf_counter()
        assert ask(url, Path(temporary) / "ledger.db", range(pictures))[0] == len(sent)
        ours, ours_refused = len(sent) / (time.perf_counter() - began), count(url, "refused")
    print(
        f"{case.name}: {len(sent)} questions; loop {naive:.0f}/s with {refused} refusals, "
        f"engine {ours:.0f}/s with {ours_refused}",
        flush=True,
    )
    return ours / naive, ours_refused / max(1, refused)


def main() -> None:
    seconds = float((*sys.argv[1:2], "20")[0])
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path("build")
    folder.mkdir(parents=True, exist_ok=True)
    reached = True
    for case in CASES:
        speed, refused = measured(case, seconds, folder)
        reached &= at_least(f"answers a second / a loop of eight threads, {case.name}", speed, 0.9)
        if case.limit:
            reached &= at_most(f"refusals / those of the loop, {case.name}", refused, 1.0)
        elif case.share:
            compare(f"refusals / those of the loop, {case.name}", refused)
    (together, few), (apart, many) = (second_process(5.0, folder, shared) for shared in (True, False))
    told = f"on the ledger of the first {together:.0f}/s with {few} refusals, on its own {apart:.0f}/s with {many}"
    print(f"a second process: {told}", flush=True)
    compare(f"answers a second of a second process / with a ledger of its own, {LIMIT.name}", together / apart)
    reached &= at_most(
        f"refusals of a second process / with a ledger of its own, {LIMIT.name}", few / max(1, many), 0.5
    )
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["ask"]:
        began = time.perf_counter()
        answers, retries = ask(sys.argv[2], Path(sys.argv[3]), range(int(sys.argv[4]), int(sys.argv[5])))
        print(answers / (time.perf_counter() - began), retries)
    else:
        main()
