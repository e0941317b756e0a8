"""A process that asks, for the driver: `python -m support.asker ORDER`.

It is a run of the command line, two models in one process, or models on both sides of a fork. looktwice is as users
have it but for what the order says: the name of another machine, quicker heartbeats, a bug.
"""

from __future__ import annotations

import csv
import json
import os
import platform
import sys
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from itertools import chain

from looktwice import Model, Unscored, Verdict
from looktwice.cli import app
from support.seeded_bugs import seeded


@dataclass(frozen=True)
class Order:
    """What a process asks about, and how."""

    pictures: str
    out: str
    profile: str
    classifier: str
    ledger: str
    kind: str = "command"
    """Or `two models` in one process, or `fork`: a model on each side of one."""
    budget: int | None = None
    machine: str | None = None
    """The name of the machine it believes to be on."""
    beat: float | None = None
    """Seconds between heartbeats; after six without one a session of another machine counts as dead."""
    bug: str | None = None

    def text(self) -> str:
        return json.dumps(asdict(self))

    def words(self, *more: object) -> list[str]:
        """The command line that does it."""
        budget = () if self.budget is None else ("--budget", self.budget)
        words = ("score", self.pictures, "--profile", self.profile, "-c", self.classifier, "--ledger", self.ledger,
                 "-o", self.out, "--canaries", 0, *budget, *more)  # fmt: skip
        return [str(word) for word in words]

    def model(self) -> Model:
        return Model.load(self.profile, self.classifier, ledger=self.ledger, budget=self.budget, canaries=0)


def command(order: Order) -> None:
    """The command line."""
    sys.argv = ["looktwice", *order.words()]
    app.main()


def two_models(order: Order) -> None:
    """While one model asks, another is made, asks about the same pictures and is closed."""
    with order.model() as model, ThreadPoolExecutor(1) as threads:
        asking = threads.submit(list, model.score(order.pictures))
        with order.model() as other:
            theirs = list(other.score(order.pictures))
        write(order, chain(asking.result(), theirs))


def fork(order: Order) -> None:
    """A process forks while its model asks; the child makes a model of its own, and both ask to the end."""
    with order.model() as model:
        verdicts = model.score(order.pictures)
        first = next(verdicts)
        child = os.fork()
        if child == 0:
            with order.model() as own:
                complete = all(isinstance(verdict, Verdict) for verdict in own.score(order.pictures))
            os._exit(not complete)
        write(order, (first, *verdicts))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def write(order: Order, verdicts: Iterable[Verdict | Unscored]) -> None:
    """The verdicts as the command line would write them, as far as the driver reads them."""
    with open(order.out, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("name", "label", "asked"))
        for verdict in verdicts:
            if isinstance(verdict, Verdict):
                rows.writerow((verdict.name, verdict.label, json.dumps([asdict(each) for each in verdict.asked])))


def hurry(beat: float) -> None:
    """Let hearts beat faster, wherever the engine has read how fast they beat."""
    for name, module in list(sys.modules.items()):
        if name.startswith("looktwice.engine") and isinstance(getattr(module, "BEAT", None), float):
            module.BEAT, module.DEAD = beat, 6 * beat  # type: ignore[attr-defined]


def main() -> None:
    order = Order(**json.loads(sys.argv[1]))
    if order.machine:
        platform.node = lambda: str(order.machine)
    if order.beat:
        hurry(order.beat)
    with seeded(order.bug) if order.bug else nullcontext():
        {"command": command, "two models": two_models, "fork": fork}[order.kind](order)


if __name__ == "__main__":
    main()
