"""The ledger behind the interface of the state machine: sessions of one process that stand for several."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from looktwice.classifiers.base import Answer, Tokens
from looktwice.engine.budget import Bill, Budget
from looktwice.engine.ledger import maintenance
from looktwice.engine.ledger.claims import Account, Claim, Granted, OverBudget, Row, Settled, Stored, Wait
from looktwice.engine.ledger.ledger import Ledger
from looktwice.engine.ledger.schema import Entry, Outcome, Session
from looktwice.engine.ledger.sqlite import SqliteDatabase
from support.ledger_machine import DAY, Answered, Counted, Crashed, Limits

WHO = "a classifier"
T = TypeVar("T")


class NewLedger:
    """One place; sessions that crashed are dead for the others."""

    def __init__(self, place: str) -> None:
        self.place, self.now, self.dead = place, 0.0, set[int]()

    def open(self) -> AdaptedSession:
        return AdaptedSession(self)

    def set_day(self, day: int) -> None:
        self.now = day * DAY + 100.0

    def problems(self) -> list[str]:
        return maintenance.verify(self.place)

    def alive(self, sessions: Sequence[Session], _: float) -> set[int]:
        return {session.id for session in sessions} - self.dead


def fragile(place: str, ledger: NewLedger) -> SqliteDatabase:
    """The database of a process that may be killed between any two statements, with a clock of its own."""
    if place.startswith("postgresql:"):
        from looktwice.engine.ledger.postgres import PostgresDatabase

        kind: Any = PostgresDatabase
    else:
        kind = SqliteDatabase

    class Fragile(kind):  # type: ignore[misc]
        left: int | None = None
        errors = (*kind.errors, Crashed)

        def _count(self) -> None:
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    raise Crashed

        def begin(self) -> float:
            self._count()
            super().begin()
            return ledger.now

        def execute(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
            if "clock_timestamp" not in statement:
                self._count()
            return list(super().execute(statement, values))

        def execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
            self._count()
            super().execute_many(statement, rows)

        def commit(self) -> None:
            self._count()
            super().commit()
            self._count()

        def may_pass(self, error: Exception) -> bool:
            return not isinstance(error, Crashed) and bool(super().may_pass(error))

        def explain(self, error: Exception) -> Exception:
            return error if isinstance(error, Crashed) else super().explain(error)

    return Fragile(Path(place) if kind is SqliteDatabase else place)


class AdaptedSession:
    """See `SessionUnderTest`."""

    def __init__(self, ledger: NewLedger) -> None:
        self._database = fragile(ledger.place, ledger)
        self._ledger = Ledger(self._database, ledger.alive)
        self._ledger._offset = 0.0
        self._shared = ledger
        self._claims: dict[int, Claim] = {}
        self._loop = asyncio.new_event_loop()

    def claim(self, query: int, price: int, limits: Limits) -> Answered:
        digest = f"{query:032x}"
        entry = Entry(query.to_bytes(16, "big"), digest, "mirror", 0, 0)
        budget = Micros(limits.queries, limits.picos, limits.queries_per_day, limits.picos_per_day)
        (found,) = self._run(self._claim(entry, price, budget))
        if isinstance(found, Claim):
            self._claims[query] = found
            return "granted"
        if isinstance(found, Stored):
            return "answered"
        if isinstance(found, Wait):
            return "elsewhere" if found.elsewhere else "later"
        assert isinstance(found, OverBudget)
        return "refused"

    def answer(self, query: int, label: str, bill: int | None) -> None:
        billed = None if bill is None else Bill(Tokens(1, 1), bill)
        self._settle(query, Settled(self._claims[query].entry.key, Answer(label), billed))

    def give_back(self, query: int) -> None:
        self._settle(query, Settled(self._claims[query].entry.key, Outcome.UNSENT))

    def lose(self, query: int) -> None:
        self._settle(query, Settled(self._claims[query].entry.key, Outcome.KEPT))

    def find(self, query: int) -> str | None:
        found = self._ledger.find([query.to_bytes(16, "big")])
        return next((stored.answer.label for stored in found.values()), None)

    def counted(self) -> Counted:
        self._ledger.now = lambda: self._shared.now  # type: ignore[method-assign]
        spend = self._ledger.spend(WHO)
        return Counted(spend.queries, spend.picos, spend.queries_today, spend.picos_today)

    def crash(self, after: int | None = None) -> None:
        self._shared.dead.add(self._ledger.session.id)
        self._database.left = after or 0  # type: ignore[attr-defined]
        if after is None:
            self._end()

    def close(self) -> None:
        self._end()

    def _end(self) -> None:
        self._ledger.close()
        self._loop.close()

    def _settle(self, query: int, settled: Settled) -> None:
        async def settle() -> None:
            await self._ledger.settle(self._claims[query], settled)

        self._run(settle())

    async def _claim(self, entry: Entry, price: int, budget: Budget) -> list[Granted]:
        return await self._ledger.claim(Account(WHO, budget), [(entry, price)])

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.run_until_complete(work)
        except Crashed:
            self._end()
            raise


class Micros(Budget):
    """A budget whose money is in picos, so that small numbers matter."""

    @staticmethod
    def _picos(micros: int | None) -> int | None:
        return micros
