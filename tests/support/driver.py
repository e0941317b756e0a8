"""Real processes on one ledger that exists already, and a server that bills and counts.

Runs of the command line ask about overlapping pictures while others look at the ledger, are killed or are stopped for
longer than a heartbeat. Afterwards three counts are compared: what the server billed, what the ledger says, and what
each run got. `python -m support.driver --minutes 15` in `tests` is the long form (`make soak`).
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

from faults import Running, fault_server
from postgres_server import server as postgres_server
from workshop import PANEL, command, run, write_pictures, write_profile

CONCURRENCY = 8
QUERIES = 1 + len(PANEL)
"""Queries a picture."""
LOST_TO_A_KILL = CONCURRENCY * 3 // 2
"""The most queries of a killed process that are counted without an answer."""
STOPPED = 36.0
"""Seconds that a process is stopped: longer than any heartbeat."""
UNFINISHED = 3
"""The exit code of a run whose budget is spent, or that was stopped."""


@dataclass
class Driver:
    """A ledger that runs share, and what happens to them."""

    folder: Path
    ledger: str
    server: Running
    dice: random.Random
    pictures: int = 40
    kills: int = 0
    runs: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def description(self) -> Path:
        return self.server.describe(self.folder, concurrency=CONCURRENCY)

    def prepare(self) -> None:
        """Pictures, a profile, and a ledger with the answers of an earlier run."""
        write_pictures(self.folder / "all.npz", self.pictures)
        write_profile(self.folder / "profile.json", self.description)
        for name, count in (("earlier", 3), ("half", self.pictures // 2)):
            write_pictures(self.folder / f"{name}.npz", count)
        earlier = run(*self.words("earlier", "-o", self.folder / "earlier.csv"))
        assert earlier.returncode == 0, earlier.stderr

    def words(self, pictures: str, *more: object) -> Sequence[object]:
        """The command that asks about these pictures."""
        profile = ("--profile", self.folder / "profile.json", "-c", self.description)
        return ("score", self.folder / f"{pictures}.npz", *profile, "--ledger", self.ledger, "--canaries", 0, *more)

    def start(self, pictures: str, *more: object) -> subprocess.Popen[str]:
        out = self.folder / f"verdicts-{len(self.runs)}.csv"
        process = subprocess.Popen(
            command(*self.words(pictures, "-o", out, *more)), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.runs.append(process)
        return process

    def look(self) -> None:
        """Somebody looks at the ledger, in one of the ways there are; nothing may change by it."""
        kind = self.dice.choice(("stats", "verify", "export", "dry run"))
        if kind == "dry run":
            assert run(*self.words("all", "-o", self.folder / "dry.csv", "--dry-run")).returncode == 0
        elif not self.ledger.startswith("postgresql:"):
            out = (self.folder / "export.csv",) if kind == "export" else ()
            looked = run("ledger", kind, *out, "--ledger", self.ledger)
            assert looked.returncode == 0, looked.stderr

    def look_while_running(self) -> None:
        while any(process.poll() is None for process in self.runs):
            self.look()

    def kill(self, process: subprocess.Popen[str]) -> None:
        self.kills += process.poll() is None
        process.kill()

    def stop(self, process: subprocess.Popen[str], seconds: float = STOPPED) -> None:
        """SIGSTOP for longer than a heartbeat."""
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGSTOP)
            time.sleep(seconds)
            process.send_signal(signal.SIGCONT)

    def finish(self, codes: Sequence[int] = (0,)) -> None:
        """Wait for every run; those that were not killed end with one of these codes, and no traceback."""
        for process in self.runs:
            _, said = process.communicate(timeout=300)
            assert process.returncode in (*codes, -signal.SIGKILL), said
            assert "Traceback" not in said, said
        self.runs.clear()

    def counted(self) -> int:
        """The queries that the ledger counts."""
        return sum(
            row["queries"] for row in json.loads(run("ledger", "stats", "--json", "--ledger", self.ledger).stdout)
        )

    def check(self, budget: int | None = None) -> str:
        """Compare the server's bill with the ledger; what both counted, for people."""
        seen, counted = self.server.stats(), self.counted()
        billed, questions, lost = seen["billed"], seen["questions"], self.kills * LOST_TO_A_KILL
        summary = f"{billed} billed, {counted} counted, {questions} questions, {self.kills} kills"
        assert billed <= counted <= billed + lost, summary
        assert billed - questions <= lost, f"bought twice: {summary}"
        assert budget is None or counted <= budget, summary
        if not self.ledger.startswith("postgresql:"):
            verified = run("ledger", "verify", "--ledger", self.ledger)
            assert verified.returncode == 0, verified.stderr
        return summary


def rounds(driver: Driver, minutes: float) -> str:
    """Random rounds of runs, looks, kills and stops until the time is up, on pictures that are new in each."""
    until, number = time.monotonic() + minutes * 60, 0
    while time.monotonic() < until:
        number += 1
        write_pictures(driver.folder / "all.npz", driver.pictures, seed=1000 + number)
        write_pictures(driver.folder / "half.npz", driver.pictures // 2, seed=1000 + number)
        for _ in range(driver.dice.choice((2, 3, 4))):
            driver.start(driver.dice.choice(("all", "half")))
            time.sleep(driver.dice.uniform(0, 1))
        for _ in range(driver.dice.randrange(4)):
            driver.look()
        for process in list(driver.runs):
            fate = driver.dice.random()
            if fate < 0.4:
                driver.kill(process)
            elif fate < 0.45:
                driver.stop(process)
        driver.finish()
        driver.start("all")  # whatever the killed ones left
        driver.finish()
        print(driver.check(), flush=True)  # noqa: T201
    return driver.check()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="driver-")))
        ledger = str(folder / "ledger.db")
        if options.postgres:
            database = stack.enter_context(postgres_server())
            assert database, "no PostgreSQL server can be run here"
            ledger = database.emptied()
        server = stack.enter_context(fault_server(delay=0.02))
        driver = Driver(folder, ledger, server, random.Random(options.seed), pictures=200)
        driver.prepare()
        print(rounds(driver, options.minutes), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
