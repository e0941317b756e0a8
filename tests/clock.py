"""An event loop whose time passes only while everybody waits: minutes take no time, and no load changes anything."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar
from unittest import mock

from looktwice.asking.ledger import Account, Bill, Booked, Budget, Entry, Grant, Outcome, Spend
from looktwice.asking.ledger.accounting import Accounting
from looktwice.asking.ledger.operations import (
    Batch,
    Booking,
    Conclusion,
    Flush,
    Intent,
    Learned,
    Operation,
    Record,
    Renewal,
    Return,
    Surrender,
)
from looktwice.asking.ledger.protocol import Session
from looktwice.asking.ledger.queue import Reader
from looktwice.asking.ledger.sqlite import SqliteTables, readable, writable
from looktwice.classifiers.base import Answer

NOON = 20_000 * 86_400 + 43_200.0

T = TypeVar("T")


class Jumping(selectors.DefaultSelector):
    """Waits by moving the clock."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is not None:
            self.now += timeout
        assert ready or timeout is not None, "nobody would ever wake up"
        return ready


class Clock(asyncio.SelectorEventLoop):
    """The loop; whatever waits for another thread does not belong here."""

    def __init__(self) -> None:
        self.jumping = Jumping()
        super().__init__(self.jumping)
        self.faults: list[dict[str, Any]] = []
        """What went wrong where nobody waits for it."""
        self.set_exception_handler(lambda _, fault: self.faults.append(fault))

    def time(self) -> float:
        return self.jumping.now


def timeless(work: Coroutine[Any, Any, T]) -> T:
    """What the work gives, done in such a loop, whose clock is also that of the process meanwhile."""
    clock = Clock()
    with (
        asyncio.Runner(loop_factory=lambda: clock) as runner,
        mock.patch("time.monotonic", clock.time),
        mock.patch("time.perf_counter", clock.time),
    ):
        done = runner.run(work)
    assert clock.faults == []
    return done


class Direct:
    """A session's ledger without the thread that writes: every operation is a transaction, at the loop's time."""

    def __init__(self, path: Path, clock: Clock, number: int) -> None:
        self.id = number
        self._clock = clock
        db = writable(path)
        db.execute("PRAGMA synchronous=OFF")
        self.accounting = Accounting(SqliteTables(db, path), Session(number, "elsewhere", 1, ""))
        self._reader = Reader(SqliteTables(readable(path), path))
        self._cut_off = False

    def cut_off(self) -> None:
        """Its process is gone."""
        self.close()
        self._cut_off = True

    def write(self, *operations: Operation) -> None:
        if self._cut_off:
            return
        batch = Batch()
        assert all(batch.add(operation) for operation in operations)
        self.accounting.write(batch, NOON + self._clock.time())
        batch.resolve()

    def beat(self) -> None:
        if self.accounting.due(NOON + self._clock.time()):
            self.write()

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Answer]:
        return self._reader.find(keys)

    def intend(self, fingerprint: str, entries: Sequence[Entry], price_micros: int, budget: Budget) -> Future[Grant]:
        answered = self.find([entry.key for entry in entries])
        intent = Intent(fingerprint, {entry.key: entry for entry in entries}, price_micros, budget)
        self.write(intent)
        assert answered.keys().isdisjoint(intent.grant.granted), "an answered question is never granted again"
        return intent.future

    def record(self, key: bytes, answer: Answer, latency: float, attempts: int, bill: Bill | None = None) -> None:
        self.write(Record(key, answer, latency, attempts, bill))

    def release(self, keys: Sequence[bytes]) -> None:
        self.write(Return(keys, Outcome.UNSENT))

    def refuse(self, keys: Sequence[bytes], billed: bool) -> None:
        self.write(Return(keys, Outcome.REFUSED if billed else Outcome.WAIVED))

    def give_up(self, keys: Sequence[bytes]) -> None:
        self.write(Surrender(keys))

    def renew(self, keys: Sequence[bytes]) -> None:
        self.write(Renewal(keys))

    def book(self, fingerprint: str, queries: int, price_micros: int, budget: Budget) -> Future[Booked | None]:
        booking = Booking(fingerprint, queries, price_micros, budget)
        self.write(booking)
        return booking.future

    def conclude(self, booked: Booked, outcome: Outcome, bill: Bill | None = None) -> None:
        self.write(Conclusion(booked, outcome, bill))

    def join_pace(self, fingerprint: str) -> Future[float | None]:
        return self._learned(Learned(fingerprint, None, joins=True))

    def keep_pace(self, fingerprint: str, rate: float | None) -> Future[float | None]:
        return self._learned(Learned(fingerprint, rate, joins=False))

    def _learned(self, learned: Learned) -> Future[float | None]:
        self.write(learned)
        return learned.future

    def recheck(self, key: bytes, answer: Answer) -> None: ...

    def introduce(self, fingerprint: str, description: str) -> None: ...

    def flush(self) -> Future[None]:
        flush = Flush()
        self.write(flush)
        return flush.future

    def spend(self, fingerprint: str) -> Spend:
        return self._reader.spend(fingerprint)

    def spent(self, fingerprint: str) -> Account:
        return self._reader.spent(fingerprint)

    def close(self) -> None:
        self._reader.close()
        self.accounting.tables.close()
