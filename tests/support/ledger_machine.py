"""What must always hold of a ledger, as a state machine that knows nothing of its inside.

Sessions claim, settle, crash between any two statements and come back, in any order; a model of one page says what the
ledger may answer and what it must have counted. `python -m support.ledger_machine --steps 20000` in `tests` is the
long form.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

Answered = Literal["granted", "answered", "elsewhere", "later", "refused"]
QUERIES, PRICES = 8, (0, 3, 7)
DAY = 86_400


class Crashed(Exception):
    """The process of a session was killed."""


@dataclass(frozen=True)
class Limits:
    """A budget in queries and money, in total and by the day; None is no limit."""

    queries: int | None = None
    picos: int | None = None
    queries_per_day: int | None = None
    picos_per_day: int | None = None


@dataclass(frozen=True)
class Counted:
    """What a ledger says it has spent."""

    queries: int = 0
    picos: int = 0
    queries_today: int = 0
    picos_today: int = 0

    def within(self, limits: Limits, price: int) -> bool:
        """Whether one more query at this price is covered."""
        pairs = (
            (limits.queries, self.queries, 1), (limits.picos, self.picos, price),
            (limits.queries_per_day, self.queries_today, 1), (limits.picos_per_day, self.picos_today, price),
        )  # fmt: skip
        return all(most is None or not more or spent + more <= most for most, spent, more in pairs)


class SessionUnderTest(Protocol):
    """One open ledger, as if in a process of its own."""

    def claim(self, query: int, price: int, limits: Limits) -> Answered: ...
    def answer(self, query: int, label: str, bill: int | None) -> None: ...
    def give_back(self, query: int) -> None: ...
    def lose(self, query: int) -> None: ...
    def find(self, query: int) -> str | None: ...
    def counted(self) -> Counted: ...
    def crash(self, after: int | None = None) -> None:
        """Be killed now, or after so many statements of the next operation."""

    def close(self) -> None: ...


class LedgerUnderTest(Protocol):
    """A ledger that sessions share."""

    def open(self) -> SessionUnderTest: ...
    def set_day(self, day: int) -> None: ...
    def problems(self) -> list[str]:
        """What a check of the whole ledger finds."""


@dataclass
class Truth:
    """What a query is: its label once it is answered, and whoever has it in flight, with its price and day."""

    label: str | None = None
    owner: int | None = None
    price: int = 0
    day: int = 0


@dataclass
class Machine:
    """The model beside the ledger."""

    ledger: LedgerUnderTest
    dice: random.Random
    day: int = 20_000
    sessions: dict[int, SessionUnderTest] = field(default_factory=dict)
    truths: dict[int, Truth] = field(default_factory=dict)
    spent: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Queries and picos by the day."""
    opened: int = 0
    steps: int = 0

    def step(self) -> None:
        """One random operation, and every invariant after it."""
        self.steps += 1
        if not self.sessions or (len(self.sessions) < 3 and self.dice.random() < 0.1):
            self.opened += 1
            self.sessions[self.opened] = self.ledger.open()
        number = self.dice.choice(list(self.sessions))
        actions = (
            self.claim,
            self.claim,
            self.claim,
            self.end,
            self.end,
            self.end,
            self.look,
            self.crash,
            self.leave,
            self.midnight,
        )
        weights = (1, 1, 1, 1, 1, 1, 0.5, 0.15, 0.1, 0.05)
        self.dice.choices(actions, weights)[0](number)
        self.check()

    def claim(self, number: int, crash_after: int | None = None) -> None:
        query, price = self.dice.randrange(QUERIES * 20), self.dice.choice(PRICES)
        query = query % QUERIES + QUERIES * (self.steps // 400)  # old ones are answered in the end
        limits = Limits(*(self.dice.choice((None, None, self.dice.randrange(1, 400))) for _ in range(4)))
        truth = self.truths.setdefault(query, Truth())
        expected = self.expected(truth, price, limits)
        if crash_after is not None:
            self.sessions[number].crash(crash_after)
        try:
            found = self.sessions[number].claim(query, price, limits)
        except Crashed:
            self.forget(number)
            if expected == "granted" and self.counted() != self.model():  # it was committed; nobody was told
                self.count(self.day, 1, price)
            return
        assert found == expected, f"query {query}: {found} instead of {expected}; {truth}, {limits}, {self.model()}"
        if found == "granted":
            assert truth.label is None, "an answered query is never bought again"
            self.truths[query] = Truth(None, number, price, self.day)
            self.count(self.day, 1, price)

    def expected(self, truth: Truth, price: int, limits: Limits) -> Answered:
        if truth.label is not None:
            return "answered"
        if truth.owner is not None:
            return "elsewhere"
        if self.model().within(limits, price):
            return "granted"
        return "later" if any(each.owner is not None for each in self.truths.values()) else "refused"

    def end(self, number: int, crash_after: int | None = None) -> None:
        """Settle one of the session's claims in one of the ways there are."""
        mine = [query for query, truth in self.truths.items() if truth.owner == number]
        if not mine:
            return
        query = self.dice.choice(mine)
        truth, session = self.truths[query], self.sessions[number]
        way = self.dice.choice(("answered", "billed", "given back", "lost"))
        label, bill = f"label {query} of {number}", self.dice.randrange(truth.price + 1) if way == "billed" else None
        change = {
            "answered": (0, 0),
            "billed": (0, (bill or 0) - truth.price),
            "lost": (0, 0),
            "given back": (-1, -truth.price),
        }[way]
        after = Truth(label) if way in ("answered", "billed") else Truth()
        if crash_after is not None:
            session.crash(crash_after)
        try:
            match way:
                case "given back":
                    session.give_back(query)
                case "lost":
                    session.lose(query)
                case _:
                    session.answer(query, label, bill)
        except Crashed:
            self.forget(number)
            if (self.find(query) == after.label and after.label) or (
                change != (0, 0) and self.counted() != self.model()
            ):
                self.count(truth.day, *change)
                self.truths[query] = after
            return
        self.count(truth.day, *change)
        self.truths[query] = after
        if self.dice.random() < 0.2:  # whoever settles twice changes nothing
            session.give_back(query)

    def look(self, number: int) -> None:
        """Looking changes nothing."""
        query = self.dice.choice(list(self.truths) or [0])
        assert self.sessions[number].find(query) == self.truths.get(query, Truth()).label
        assert self.ledger.problems() == []

    def crash(self, number: int) -> None:
        """Now, or between two statements of the next operation."""
        if self.dice.random() < 0.3:
            self.sessions[number].crash()
            self.forget(number)
        else:
            self.dice.choice((self.claim, self.end))(number, self.dice.randrange(12))
            if number in self.sessions:  # the operation had fewer statements
                self.sessions[number].crash()
                self.forget(number)

    def leave(self, number: int) -> None:
        self.sessions[number].close()
        self.forget(number)

    def midnight(self, _: int) -> None:
        self.day += 1
        self.ledger.set_day(self.day)

    def forget(self, number: int) -> None:
        """A session is gone: what it had in flight stays counted, and is free."""
        del self.sessions[number]
        for query, truth in self.truths.items():
            if truth.owner == number:
                self.truths[query] = replace(truth, owner=None)

    def count(self, day: int, queries: int, picos: int) -> None:
        before = self.spent.get(day, (0, 0))
        self.spent[day] = before[0] + queries, before[1] + picos

    def model(self) -> Counted:
        total = [sum(column) for column in zip(*self.spent.values(), strict=True)] or [0, 0]
        return Counted(total[0], total[1], *self.spent.get(self.day, (0, 0)))

    def counted(self) -> Counted:
        session = self.ledger.open()
        try:
            return session.counted()
        finally:
            session.close()

    def find(self, query: int) -> str | None:
        session = self.ledger.open()
        try:
            return session.find(query)
        finally:
            session.close()

    def check(self) -> None:
        """What every session sees is what was counted, and no answer has changed."""
        for session in self.sessions.values():
            counted = session.counted()
            assert counted == self.model(), f"{counted} instead of {self.model()}"
            answered = self.dice.sample(sorted(self.truths), min(3, len(self.truths)))
            for query in answered:
                assert session.find(query) == self.truths[query].label


def run(ledger: LedgerUnderTest, seed: int, steps: int) -> None:
    """So many random steps; the seed repeats a failure."""
    machine = Machine(ledger, random.Random(seed))
    ledger.set_day(machine.day)
    for _ in range(steps):
        machine.step()
    for session in machine.sessions.values():
        session.close()
    assert ledger.problems() == []


def main() -> None:
    from postgres_server import server as postgres_server

    from support import ledger_machine  # noqa: PLW0406  # the module that the adapter knows
    from support.ledger_adapter import NewLedger

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--postgres", action="store_true")
    options = parser.parse_args()
    with ExitStack() as stack:
        place = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "ledger.db")
        if options.postgres:
            database = stack.enter_context(postgres_server())
            assert database, "no PostgreSQL server can be run here"
            place = database.emptied()
        ledger_machine.run(NewLedger(place), options.seed, options.steps)
    print(f"{options.steps} steps: every invariant held")  # noqa: T201


if __name__ == "__main__":
    main()
