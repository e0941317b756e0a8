"""Real processes on one ledger that exists already, and a server that bills and counts.

Processes ask about the same pictures while others look at the ledger; they are killed, stopped for longer than a
heartbeat, fork, or have two models. Afterwards three counts are compared: what the server billed, what the ledger says,
and what each process got. `python -m support.driver --minutes 15` in `tests` is the long form (`make soak`).
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import signal
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

from support import forked
from support.asker import Order
from support.faults import Running, fault_server
from support.postgres_server import server as postgres_server
from support.waiting import until
from support.workshop import PANEL, run, write_pictures, write_profile

CONCURRENCY = 8
CLAIMED = CONCURRENCY * 3 // 2
"""The most claims that an engine has open: calls in flight, and a few that are ahead of them or not yet settled."""
QUERIES = 1 + len(PANEL)
"""Queries about a picture."""
STOP = 36.0
"""Seconds that a process is stopped in the long form: longer than it takes to count as dead."""
REPRODUCTIONS = 10
"""Rounds of the long form in which somebody looks while two runs ask; whatever else may happen comes after them."""
UNFINISHED = 3
"""The exit code of a command whose budget is spent."""


@dataclass
class Asker:
    """A process that asks."""

    order: Order
    process: forked.Forked
    errors: Path
    killed: bool = False

    def most_claims(self) -> int:
        return CLAIMED if self.order.kind == "command" else 2 * CLAIMED

    def verdicts(self) -> dict[str, str]:
        """What it got, by the number of the picture: the label and all votes."""
        path = Path(self.order.out)
        if self.killed or not path.exists():
            return {}
        with path.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row["label"]]
        return {
            row["name"].partition("#")[2]: f"{row['label']} {[each['label'] for each in json.loads(row['asked'])]}"
            for row in rows
        }


class Driver:
    """A ledger, the processes that ask with it, and what they may have lost."""

    def __init__(
        self, folder: Path, ledger: str, server: Running, seed: object, pictures: int = 40, timeout: float = 600.0
    ) -> None:
        """The ledger exists from now on: an earlier run has asked about the first pictures."""
        self.folder, self.server, self.dice = folder, server, random.Random(str(seed))
        self.counts = {"all": pictures, "half": pictures // 2, "earlier": 3}
        """The files of pictures; each has the first ones of all."""
        self.askers: list[Asker] = []
        self.numbers = count()
        self.questions = self.lost = 0
        """Queries about all pictures so far, and how many may be counted without an answer and asked again."""
        description = server.describe(folder, concurrency=CONCURRENCY, timeout=timeout)
        write_profile(folder / "profile.json", description)
        self.template = Order("", "", str(folder / "profile.json"), str(description), ledger)
        self.show_pictures(seed=0)
        self.start("earlier")
        self.finish()

    def show_pictures(self, seed: int) -> None:
        """Put other pictures in place of those that were asked about."""
        for name, pictures in self.counts.items():
            write_pictures(self.folder / f"{name}.npz", pictures, seed)
        self.questions += self.counts["all"] * QUERIES

    # What happens ----------------------------------------------------------------------------------------------------

    def order(self, pictures: str, **how: Any) -> Order:
        out = self.folder / f"verdicts-{next(self.numbers)}.csv"
        return replace(self.template, pictures=str(self.folder / f"{pictures}.npz"), out=str(out), **how)

    def start(self, pictures: str, **how: Any) -> Asker:
        """A process that asks about these pictures; see `Order` for how."""
        order = self.order(pictures, **how)
        errors = Path(order.out).with_suffix(".errors")
        with errors.open("w") as file:
            process = forked.start("support.asker", [order.text()], err=file.fileno())
        self.askers.append(Asker(order, process, errors))
        return self.askers[-1]

    def wait_for_queries(self, most: int) -> None:
        """Wait until the server has seen a random number of queries more, or everybody has ended."""
        goal = self.server.stats()["requests"] + self.dice.randrange(1, most)
        until(lambda: self.server.stats()["requests"] >= goal or not self.asking())

    def asking(self) -> bool:
        return any(asker.process.poll() is None for asker in self.askers)

    def look(self, kind: str = "") -> str:
        """What somebody sees who looks at the ledger; nothing may change by it."""
        place = ("--ledger", self.template.ledger)
        looks = {
            "stats": ("ledger", "stats", "--json", *place),
            "verify": ("ledger", "verify", *place),
            "export": ("ledger", "export", self.folder / "export.csv", *place),
            "dry run": self.order("all").words("--dry-run"),
        }
        looked = run(*looks[kind or self.dice.choice(list(looks))])
        assert looked.returncode == 0, looked.stdout + looked.stderr
        return looked.stdout

    def look_while_asking(self) -> None:
        while self.asking():
            self.look()

    def kill(self, asker: Asker) -> None:
        asker.killed = asker.process.poll() is None
        asker.process.kill()
        self.lost += asker.killed * asker.most_claims()

    def stop(self, asker: Asker, seconds: float) -> None:
        """SIGSTOP for so long; only a process that seems to be on another machine may be taken for dead meanwhile."""
        asker.process.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        asker.process.send_signal(signal.SIGCONT)
        self.lost += asker.most_claims() if asker.order.machine else 0

    def finish(self, code: int = 0) -> None:
        """Wait for all; those with a budget end with this code. All have their verdicts, and nobody has others."""
        everybody: dict[str, str] = {}
        for asker in self.askers:
            ended, said = asker.process.wait(300), asker.errors.read_text()
            asker.killed &= ended != 0  # it had just come to its end
            verdicts = asker.verdicts()
            assert ended == (-signal.SIGKILL if asker.killed else code if asker.order.budget else 0), said
            assert "Traceback" not in said, said
            assert ended or len(verdicts) == self.counts[Path(asker.order.pictures).stem], (
                f"verdicts are missing: {said}"
            )
            assert all(everybody.setdefault(number, row) == row for number, row in verdicts.items()), "answers differ"
        self.askers.clear()

    # What is compared ------------------------------------------------------------------------------------------------

    def check(self) -> str:
        """The server's bill beside the ledger, for people, if they agree."""
        billed, days = self.server.stats()["billed"], json.loads(self.look("stats"))
        counted, answered = (sum(day[column] for day in days) for column in ("queries", "answered"))
        counts = f"{billed} billed, {counted} counted, {answered} answered of {self.questions}"
        summary = f"{counts}, {self.lost} may be lost"
        assert billed <= counted <= billed + self.lost, f"the ledger is not the bill: {summary}"
        assert counted <= answered + self.lost, f"answers are missing: {summary}"
        assert billed <= self.questions + self.lost, f"bought twice: {summary}"
        self.look("verify")
        return summary

    def check_complete(self) -> str:
        """The same after somebody has asked about everything that was left; then nothing is bought any more."""
        self.start("all")
        self.finish()
        summary, requests = self.check(), self.server.stats()["requests"]
        self.start("all", kind="two models")
        self.finish()
        assert self.server.stats()["requests"] == requests, f"stored answers were bought again: {summary}"
        return summary


# Stories -------------------------------------------------------------------------------------------------------------


def look_and_start_another(driver: Driver, budget: int | None = None) -> None:
    """While a run asks, somebody looks at the ledger, a short run comes and goes, and another one begins."""
    driver.start("all", budget=budget)
    driver.wait_for_queries(most=60)
    driver.look("stats")
    driver.start("earlier").process.wait(300)
    driver.start("half", budget=budget)
    driver.look_while_asking()
    driver.finish(UNFINISHED)


def anything(driver: Driver, stop: float) -> None:
    """Whatever the dice say happens to a few processes."""
    dice = driver.dice
    for number in range(dice.randrange(2, 5)):
        kind = dice.choice(("command", "command", "two models", "fork"))
        driver.start(dice.choice(("all", "half")), kind=kind, machine=dice.choice((None, f"machine {number}")))
        driver.wait_for_queries(most=60)
        driver.look()
    for asker in driver.askers:
        fate = dice.random()
        if fate < 0.4 and asker.order.kind != "fork":  # its child would go on
            driver.kill(asker)
        elif fate < 0.5:
            driver.stop(asker, stop)
    driver.look_while_asking()
    driver.finish()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="driver-")))
        database = stack.enter_context(postgres_server()) if options.postgres else None
        assert database or not options.postgres, "no PostgreSQL server can be run here"
        ledger = database.emptied() if database else str(folder / "ledger.db")
        server = stack.enter_context(fault_server(delay=0.02))
        driver = Driver(folder, ledger, server, options.seed, pictures=120)
        end = time.monotonic() + options.minutes * 60
        for number in count(1):
            if number <= REPRODUCTIONS:
                look_and_start_another(driver)
            else:
                anything(driver, STOP)
            print(number, driver.check_complete(), flush=True)  # noqa: T201
            if number >= REPRODUCTIONS and time.monotonic() > end:
                return
            driver.show_pictures(seed=number)


if __name__ == "__main__":
    main()
