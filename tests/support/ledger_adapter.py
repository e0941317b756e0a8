"""The ledger behind the interface of the state machine: sessions of one process that stand for several."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from looktwice.classifiers.base import Answer, Tokens
from looktwice.engine.budget import Bill, Budget
from looktwice.engine.ledger import maintenance, schema
from looktwice.engine.ledger.ledger import Ledger
from looktwice.engine.ledger.schema import (
    Account,
    Claim,
    Entry,
    Outcome,
    OverBudget,
    Row,
    Session,
    Settled,
    Stored,
    Wait,
)
from looktwice.engine.ledger.sqlite import SqliteDatabase
from support.ledger_machine import (
    DAY,
    Budgets,
    Counted,
    Crashed,
    Granted,
    Request,
    SessionUnderTest,
    Settlement,
    classifier_of,
)

WHO = ("a classifier", "another classifier")
T = TypeVar("T")


class SharedLedger:
    """A ledger at one place, with a clock of its own; see `LedgerUnderTest`."""

    def __init__(self, place: str) -> None:
        self.place, self.now, self.dead = place, 0.0, set[int]()

    def open(self) -> AdaptedSession:
        return AdaptedSession(self)

    def set_day(self, day: int) -> None:
        self.now = day * DAY + 100.0

    def stall(self, session: SessionUnderTest) -> None:
        assert isinstance(session, AdaptedSession)
        self.dead.add(session.id)

    def problems(self) -> list[str]:
        return maintenance.verify(self.place)

    def alive(self, sessions: Sequence[Session], _: float) -> set[int]:
        return {session.id for session in sessions} - self.dead


def fragile(ledger: SharedLedger) -> Any:
    """The database of a process that may be killed before any statement, and has the clock of the ledger."""
    if ledger.place.startswith("postgresql:"):
        from looktwice.engine.ledger.postgres import PostgresDatabase

        kind: Any = PostgresDatabase
    else:
        kind = SqliteDatabase

    class Fragile(kind):  # type: ignore[misc]
        left: int | None = None
        """The statements until the process is killed."""
        errors = (*kind.errors, Crashed)

        def step(self) -> None:
            if self.left is not None:
                self.left -= 1
                if self.left < 0:
                    raise Crashed

        def begin(self) -> float:
            self.step()
            super().begin()
            return ledger.now

        def execute(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
            if "clock_timestamp" not in statement:
                self.step()
            return list(super().execute(statement, values))

        def execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
            self.step()
            super().execute_many(statement, rows)

        def commit(self) -> None:
            self.step()
            super().commit()
            self.step()

        def may_pass(self, error: Exception) -> bool:
            return not isinstance(error, Crashed) and bool(super().may_pass(error))

        def explain(self, error: Exception) -> Exception:
            return error if isinstance(error, Crashed) else super().explain(error)

    if kind is not SqliteDatabase:
        return Fragile(ledger.place)
    database = Fragile(Path(ledger.place))
    database.execute("PRAGMA synchronous=OFF")  # the machine itself never crashes here
    return database


class AdaptedSession:
    """See `SessionUnderTest`."""

    def __init__(self, shared: SharedLedger) -> None:
        self._shared = shared
        self._database = fragile(shared)
        self._ledger = Ledger(self._database, shared.alive)
        self._ledger.now = lambda: shared.now  # type: ignore[method-assign]
        self._claims: dict[int, Claim] = {}
        self._loop = asyncio.new_event_loop()

    @property
    def id(self) -> int:
        return self._ledger.session.id

    def work(self, settlements: Sequence[Settlement], requests: Sequence[Request], budgets: Budgets) -> list[Granted]:
        async def work() -> list[schema.Granted]:
            written = [self._ledger.settle(self._claims[each.query], _settled(each)) for each in settlements]
            total = PicoBudget(*budgets.total, group=WHO)
            claiming = []
            for who, part in groupby(requests, key=lambda request: classifier_of(request.query)):
                account = Account(WHO[who], (PicoBudget(*budgets.own[who]), total))
                claiming.append(self._ledger.claim(account, [(_entry(each.query), each.price) for each in part]))
            await asyncio.gather(*claiming, *written)
            return [granted for each in claiming for granted in each.result()]

        granted = self._run(work())
        for request, claim in zip(requests, granted, strict=True):
            if isinstance(claim, Claim):
                self._claims[request.query] = claim
        return [_told(each) for each in granted]

    def find(self, query: int) -> str | None:
        stored = self._ledger.find([_entry(query).key])
        return next((each.answer.label for each in stored.values()), None)

    def counted(self) -> list[Counted]:
        return [Counted(*self._ledger.spend(who)) for who in WHO]

    def kill(self, after: int | None = None) -> None:
        self._shared.dead.add(self.id)
        self._database.left = after or 0
        if after is None:
            self.close()

    def close(self) -> None:
        self._ledger.close()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.run_until_complete(work)
        except Crashed:
            self.close()
            raise


class PicoBudget(Budget):
    """A budget whose money is in picos, so that small numbers matter."""

    @staticmethod
    def _picos(micros: int | None) -> int | None:
        return micros


def _entry(query: int) -> Entry:
    return Entry(query.to_bytes(16, "big"), f"{query:032x}", "mirror", 0, 0)


def _settled(settlement: Settlement) -> Settled:
    key = _entry(settlement.query).key
    if settlement.ending == "answered":
        bill = None if settlement.bill is None else Bill(Tokens(1, 1), settlement.bill)
        return Settled(key, Answer(settlement.label), bill)
    return Settled(key, Outcome.UNSENT if settlement.ending == "unsent" else Outcome.KEPT)


def _told(granted: schema.Granted) -> Granted:
    match granted:
        case Claim():
            return "granted"
        case Stored():
            return "answered"
        case Wait():
            return "elsewhere" if granted.elsewhere else "later"
        case OverBudget():
            return "refused"
    raise AssertionError(granted)
