"""What refusals cost: the asker with its ledger on disk, beside a loop of threads in which each caller waits alone.

    python benchmarks/pressure.py [seconds] [folder]

The server answers after 20 ms, in a process of its own. It refuses a share of the calls at random, however few there
are, or all that exceed 50 a second, with a status of 429 and Retry-After: 1. Both sides have eight calls at a time and
as many questions as the loop is expected to get through in the given seconds. Then two processes ask at that limit, of
which the second starts three seconds later: on one ledger, which shares what is learned, and on one each.
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
from pressed import WAIT, refusals, server

from looktwice.asking.asker import Asker
from looktwice.asking.ledger import Budget, SqliteLedger
from looktwice.asking.session import fastest_loop
from looktwice.calibration.votes import Row
from looktwice.pictures.collection import Picture

WIDTH, DELAY = 8, 0.02
HEAD_START = 3.0
"""Seconds after which the second of two processes starts."""


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
                    return len(json.load(reply))
            except urllib.error.HTTPError as error:
                time.sleep(float(error.headers["Retry-After"]))

    with ThreadPoolExecutor(WIDTH) as threads:
        return sum(threads.map(ask, sent))


async def asked(url: str, noise: Noise, pictures: range, ledger: SqliteLedger) -> int:
    classifier = RawPixels(url, WIDTH)
    asker = Asker(classifier, ledger, budget=Budget(queries=10**9))
    try:
        rows = [row async for row in asker.ask((Picture(str(n), None, noise) for n in pictures), PANEL)]
    finally:
        await classifier.close()
    return (1 + len(PANEL)) * sum(isinstance(row, Row) for row in rows)


def ask(url: str, path: Path, pictures: range) -> int:
    """As many answers as these pictures have questions, through a ledger."""
    with SqliteLedger(path) as ledger, asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(asked(url, Noise.for_pictures(pictures.stop), pictures, ledger))


def two_processes(seconds: float, folder: Path, shared: bool) -> tuple[float, int]:
    """Answers a second and refusals of two processes, of which the second starts when the first knows the limit."""
    pictures = max(20, round(LIMIT.limit * seconds / (1 + len(PANEL)) / 2))
    with server(DELAY, LIMIT.share, LIMIT.limit) as url, tempfile.TemporaryDirectory(dir=folder) as temporary:
        began = time.perf_counter()
        running = []
        for number in range(2):
            ledger = Path(temporary) / f"{0 if shared else number}.db"
            words = [str(ledger), str(number * pictures), str((number + 1) * pictures)]
            running.append(subprocess.Popen([sys.executable, __file__, "ask", url, *words]))
            time.sleep(0 if number else HEAD_START)
        assert [process.wait() for process in running] == [0, 0]
        return 2 * pictures * (1 + len(PANEL)) / (time.perf_counter() - began), refusals(url)


def measured(case: Case, seconds: float, folder: Path) -> tuple[float, float]:
    """Answers a second and refusals of the asker, each divided by the loop's."""
    pictures = max(10, round(case.expected() * seconds / (1 + len(PANEL))))
    noise = Noise.for_pictures(pictures)
    sent = bodies(noise, pictures)
    with server(DELAY, case.share, case.limit) as url:
        began = time.perf_counter()
        assert loop(url, sent) == len(sent)
        naive, refused = len(sent) / (time.perf_counter() - began), refusals(url)
    with server(DELAY, case.share, case.limit) as url, tempfile.TemporaryDirectory(dir=folder) as temporary:
        began = time.perf_counter()
        assert ask(url, Path(temporary) / "ledger.db", range(pictures)) == len(sent)
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
    (together, few), (apart, many) = (two_processes(seconds, folder, shared) for shared in (True, False))
    print(f"two processes: one ledger {together:.0f}/s with {few} refusals, two {apart:.0f}/s with {many}", flush=True)
    reached &= at_least(f"answers a second / with two ledgers, two processes, {LIMIT.name}", together / apart, 0.9)
    reached &= at_most(f"refusals / with two ledgers, two processes, {LIMIT.name}", few / max(1, many), 1.0)
    sys.exit(0 if reached else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["ask"]:
        ask(sys.argv[2], Path(sys.argv[3]), range(int(sys.argv[4]), int(sys.argv[5])))
    else:
        main()
