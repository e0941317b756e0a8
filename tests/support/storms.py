"""Processes and services that share one ledger and one budget while the classifier fails in every way it can.

Each storm has a fault server of its own, whose count of what it saw stands beside the ledger's. Nobody may hang, the
budget must hold to the last query, and every answer that was paid for must be there.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from support import engines
from support.faults import Running, fault_server
from support.serving import clothes, serving
from support.workshop import start, write_pictures, write_profile

PICTURES = 60
BUDGET = 200
"""Less than the questions: the budget ends in the midst of everything."""
BACKOFFS = 0.5 + 1 + 2 + 4 + 8
"""Seconds that the waits before the attempts of one question take, at most."""
WATCHDOG = 120 + BACKOFFS
"""Seconds after which a run counts as hanging; a machine that does much else makes one last a minute."""
CASTS = ("one", "two", "three", "services")


@dataclass(frozen=True)
class Count:
    """What the server saw beside what the ledger says."""

    requests: int
    billed: int
    sent_back: int
    """Answers that the server gave, also those that were lost on the way."""
    counted: int
    answered: int

    def check(self, budget: int) -> None:
        assert self.billed <= self.counted <= budget, f"the budget of {budget} was exceeded: {self}"
        assert self.answered <= self.sent_back <= self.counted, f"an answer is missing: {self}"

    def __str__(self) -> str:
        return (
            f"server: {self.requests:5} requests {self.billed:5} billed {self.sent_back:5} answers | ledger: "
            f"{self.counted:5} counted {self.answered:5} answered"
        )


def counted(server: Running, ledger: str) -> Count:
    seen = server.stats()
    return Count(seen["requests"], seen["billed"], seen["answered"], *engines.counted(ledger))


def scoring(folder: Path, ledger: str, cast: str) -> None:
    """So many runs of the command line at once, on the same pictures; each must end by itself."""
    words = (
        "score", folder / "pictures.npz", "--profile", folder / "profile.json", "--ledger", ledger,
        "--budget", BUDGET, "--canaries", 0,
    )  # fmt: skip
    with ExitStack() as stack:
        runs = []
        for number in range(CASTS.index(cast) + 1):
            said = stack.enter_context((folder / f"said-{number}").open("w+"))
            runs.append((start(*words, "-o", folder / f"verdicts-{number}.csv", err=said.fileno()), said))
            stack.callback(runs[-1][0].kill)
        until = time.monotonic() + WATCHDOG
        for process, said in runs:
            code = process.wait(max(1.0, until - time.monotonic()))
            said.seek(0)
            told = said.read()
            assert code in (0, 1, 3), told
            assert "Traceback" not in told, told


def looking(folder: Path, ledger: str) -> None:
    """Two services that are asked about the same pictures at once; every client must get a reply."""
    wishes = {"ledger": ledger, "budget": str(BUDGET), "canaries": 0}
    with ExitStack() as stack:
        services = [stack.enter_context(serving(folder / "profile.json", None, wishes)) for _ in range(2)]
        threads = stack.enter_context(ThreadPoolExecutor(16))
        until = time.monotonic() + WATCHDOG
        replies = [threads.submit(each.post, "/v1/look", png) for png in clothes() for each in services]
        statuses = {reply.result(timeout=max(1.0, until - time.monotonic())).status for reply in replies}
    assert statuses <= {200, 429, 502, 503}, statuses


def storm(folder: Path, ledger: str, cast: str, seed: int) -> Count:
    """One storm in a new folder, on a ledger that does not exist yet; what came of it."""
    write_pictures(folder / "pictures.npz", PICTURES, seed)
    with fault_server(0.4, seed, 0.002) as server:
        write_profile(folder / "profile.json", server.describe(folder, concurrency=8, price="0.0015"))
        if cast == "services":
            looking(folder, ledger)
        else:
            scoring(folder, ledger, cast)
        count = counted(server, ledger)
    count.check(BUDGET)
    return count


@contextmanager
def ledgers(folder: Path) -> Iterator[list[str]]:
    """A file, and a PostgreSQL database where there is one; neither has a ledger in it yet."""
    try:
        from support import postgres_server
    except ImportError:
        yield [str(folder / "ledger.db")]
        return
    with postgres_server.server() as running:
        yield [str(folder / "ledger.db"), *([running.emptied()] if running else [])]


def weather(runs: int, first_seed: int = 0) -> None:
    """So many storms, of every kind in turn, in a table."""
    for seed in range(first_seed, first_seed + runs):
        with tempfile.TemporaryDirectory(prefix="storm-") as name, ledgers(Path(name)) as places:
            ledger, cast = places[seed // len(CASTS) % len(places)], CASTS[seed % len(CASTS)]
            began = time.monotonic()
            count = storm(Path(name), ledger, cast, seed)
            kind = "postgres" if ledger.startswith("postgresql:") else "sqlite"
            print(f"{seed:4} {cast:8} {kind:8} {time.monotonic() - began:5.1f} s | {count}", flush=True)


if __name__ == "__main__":
    weather(*map(int, sys.argv[1:3]))
