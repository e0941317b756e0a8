"""The one that all workers of a run talk to: it keeps the ledger, the pace and the count.

It runs on the machine where the ledger is. Workers bring what they want to ask and what was answered in parcels, and a
reply means that everything in the parcel is on disk. If it is killed and started anew, the ledger tells what was asked;
what is in flight the workers tell themselves, so nothing that is being paid for is asked by anybody else.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
from typing import NamedTuple

from looktwice.errors import LedgerError
from looktwice.ledger import Account, Budget, Entry, Grant, Unrecorded, open_at
from looktwice.ledger.operations import Batch, Check, Introduction, Record
from looktwice.ledger.sessions import BEAT, DEAD
from looktwice.outcome import Progress
from looktwice.pacing import Rate
from looktwice.votes import Answer

AHEAD = 0.25
"""Seconds of the whole pace that one lease covers."""
GRACE = BEAT + 1.0
"""Seconds in which workers tell a keeper that was started anew what they have in flight."""


class Away(Exception):
    """The keeper is gone and may be back soon, or it is back and knows nothing of the worker yet."""


class Wish(NamedTuple):
    """Questions that a worker wants to send."""

    fingerprint: str
    entries: Sequence[Entry]
    price: int
    budget: Budget


class Booked(NamedTuple):
    """Queries that belong to no question."""

    fingerprint: str
    queries: int
    price: int
    budget: Budget


class Flight(NamedTuple):
    """Questions that a worker has in flight, and was granted before the keeper was started anew."""

    fingerprint: str
    keys: Sequence[bytes]
    price: int


class Parcel(NamedTuple):
    """All that a worker has to say to the ledger at a time; no question is in it twice."""

    records: Sequence[Record] = ()
    released: Sequence[bytes] = ()
    surrendered: Sequence[bytes] = ()
    wishes: Sequence[Wish] = ()
    bookings: Sequence[Booked] = ()
    flights: Sequence[Flight] = ()
    checks: Sequence[Check] = ()
    introductions: Sequence[Introduction] = ()

    @classmethod
    def of(cls, batch: Batch) -> Parcel:
        """What is in a batch, without those who wait for it."""
        return cls(
            batch.records,
            batch.released,
            batch.surrendered,
            [Wish(i.fingerprint, list(i.entries.values()), i.price, i.budget) for i in batch.intents],
            [Booked(b.fingerprint, b.queries, b.price, b.budget) for b in batch.bookings],
            [Flight(a.fingerprint, a.keys, a.price) for a in batch.adoptions],
            batch.checks,
            batch.introductions,
        )


class Reply(NamedTuple):
    """What became of a parcel: grants, coverage and flights in their order, or why nothing more may be asked."""

    grants: list[Grant]
    covered: list[bool]
    flying: list[list[bytes]]
    refusal: str | None = None


class Keeper:
    """Keeps the ledger, the pace and the count of a run."""

    def __init__(self, place: str | None, per_second: float | None = None, again: bool = False) -> None:
        """`place` is where the ledger is, None for none; `again` says that workers are about who knew another one."""
        self._ledger = open_at(place) if place else Unrecorded()
        self._rate = Rate(per_second) if per_second else None
        if self._rate and again:
            self._rate.when(time.monotonic() + AHEAD)
        self._opens = time.monotonic() + (GRACE if again else 0.0)
        self._flying: dict[bytes, str] = {}
        """Who has each question in flight."""
        self._heard: dict[str, float] = {}
        """When each worker last gave a sign."""
        self._progress: dict[str, Progress] = {}
        self._stop = ""

    async def hello(self, worker: str) -> None:
        """A worker is here; one of the same actor that was here before is gone."""
        actor = worker.partition("/")[0]
        for name in [name for name in self._heard if name.partition("/")[0] == actor]:
            del self._heard[name]
        self._heard[worker] = time.monotonic()

    async def leave(self, worker: str) -> None:
        """A worker goes; what it has in flight may be asked by others."""
        self._heard.pop(worker, None)

    async def beat(self, worker: str, progress: Progress) -> str:
        """A sign of life; why the worker should stop, or nothing."""
        if worker in self._heard:
            self._heard[worker] = time.monotonic()
        self._progress[worker] = progress
        return self._stop

    async def stop(self, reason: str) -> None:
        """Have all workers stop, as soon as they give a sign."""
        self._stop = self._stop or reason

    async def progress(self) -> Progress:
        """Where all workers together stand."""
        total = Progress()
        for progress in self._progress.values():
            for name, value in asdict(progress).items():
                setattr(total, name, getattr(total, name) + value)
        return total

    async def lease(self) -> tuple[float, int]:
        """In how many seconds the first of some questions may go, and how many; the others follow at the pace."""
        if self._rate is None:
            return 0.0, 1
        now, many = time.monotonic(), max(1, int(AHEAD * self._rate.per_second))
        first, *_ = [self._rate.when(now) for _ in range(many)]
        return first - now, many

    async def find(self, keys: Sequence[bytes]) -> dict[bytes, Answer]:
        """The answers on disk."""
        return await asyncio.to_thread(self._ledger.find, keys)

    async def spent(self, fingerprint: str) -> Account:
        """What the classifier has cost."""
        return await asyncio.to_thread(self._ledger.spent, fingerprint)

    async def carry(self, worker: str, parcel: Parcel) -> Reply:
        """Do what is in a parcel; all of it is on disk when the reply comes.

        A worker that has not said hello to this keeper is sent away to do so: what it has in flight must be known
        before its answers are, or they would be taken for those of a stranger.
        """
        if worker not in self._heard:
            raise Away("it was started anew")
        self._heard[worker] = time.monotonic()
        if parcel.wishes:
            await asyncio.sleep(max(0.0, self._opens - time.monotonic()))
        self._settle(worker, parcel)
        adopted = [self._adopt(worker, flight) for flight in parcel.flights]
        asked = [self._intend(worker, wish) for wish in parcel.wishes]
        booked = [self._ledger.book(*booking) for booking in parcel.bookings]
        for check in parcel.checks:
            self._ledger.recheck(check.key, Answer(check.label))
        for introduction in parcel.introductions:
            self._ledger.introduce(*introduction)
        # When the last is on disk all are: each of the others has its result, or the reason why it was refused.
        await asyncio.wrap_future(self._ledger.flush())
        outcomes = (*(future.exception() for future in asked), *(future.exception() for future in booked))
        failures = [error for error in outcomes if error]
        flying = [self._take_over(worker, future.result()) for future in adopted]
        if failures:
            self._let_go(worker, [entry.key for wish in parcel.wishes for entry in wish.entries])
            return Reply([], [], flying, str(failures[0]))
        grants = [self._granted(worker, *each) for each in zip(parcel.wishes, asked, strict=True)]
        return Reply(grants, [future.result() for future in booked], flying)

    async def close(self) -> None:
        """Write what is queued and let go of the ledger."""
        await asyncio.to_thread(self._ledger.close)

    def _settle(self, worker: str, parcel: Parcel) -> None:
        """Enter what was answered, not sent or given up.

        The answer of a worker that was taken for dead is kept, too, unless somebody else's came first.
        """
        for record in parcel.records:
            with suppress(LedgerError) if self._flying.get(record.key) != worker else nullcontext():
                self._ledger.record(*record)
        self._ledger.release(self._own(worker, parcel.released))
        self._ledger.give_up(self._own(worker, parcel.surrendered))
        self._let_go(worker, [*(record.key for record in parcel.records), *parcel.released, *parcel.surrendered])

    def _intend(self, worker: str, wish: Wish) -> Future[Grant]:
        """Ask for what no other worker has in flight."""
        free = [entry for entry in wish.entries if not self._held(worker, entry.key)]
        future = self._ledger.intend(wish.fingerprint, free, wish.price, wish.budget)
        self._flying.update((entry.key, worker) for entry in free)
        return future

    def _granted(self, worker: str, wish: Wish, future: Future[Grant]) -> Grant:
        grant = future.result()
        self._let_go(worker, [*grant.answered, *grant.held, *grant.refused])
        known = {*grant.granted, *grant.answered, *grant.refused}
        return replace(grant, held=[entry.key for entry in wish.entries if entry.key not in known])

    def _adopt(self, worker: str, flight: Flight) -> Future[list[bytes]]:
        free = [key for key in flight.keys if not self._held(worker, key)]
        return self._ledger.adopt(flight.fingerprint, free, flight.price)

    def _take_over(self, worker: str, keys: list[bytes]) -> list[bytes]:
        self._flying.update(dict.fromkeys(keys, worker))
        return keys

    def _own(self, worker: str, keys: Sequence[bytes]) -> list[bytes]:
        return [key for key in keys if self._flying.get(key) == worker]

    def _let_go(self, worker: str, keys: Sequence[bytes]) -> None:
        for key in self._own(worker, keys):
            del self._flying[key]

    def _held(self, worker: str, key: bytes) -> bool:
        """Whether another worker that is alive has the question in flight."""
        owner = self._flying.get(key, worker)
        return owner != worker and self._heard.get(owner, -DEAD) > time.monotonic() - DEAD
