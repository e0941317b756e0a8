"""A ledger in memory: for classifiers that are free and at hand, and for answers that are kept as long as a process."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import TypeVar

from looktwice.asking.ledger.protocol import LEASE, MICRO, Account, Bill, Booked, Budget, Entry, Grant, Outcome
from looktwice.classifiers.base import Answer

T = TypeVar("T")
NOTHING = Account(0, 0, 0, 0, 0, 0)


class Unrecorded:
    """Counts what is spent while it lives, as one day, and keeps no answer. See `Ledger` for its methods."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._sent: dict[bytes, tuple[str, int]] = {}
        self._rest: dict[str, int] = {}
        self._lock = Lock()

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Answer]:
        return {}

    def intend(self, fingerprint: str, entries: Sequence[Entry], price_micros: int, budget: Budget) -> Future[Grant]:
        with self._lock:
            prices = {each.key: price_micros if each.reserve is None else each.reserve for each in entries}
            return _done(self._grant(fingerprint, prices, budget))

    def _grant(self, fingerprint: str, prices: Mapping[bytes, int], budget: Budget) -> Grant:
        grant, spent = Grant(), 0
        queries, micros = budget.left(self.spent(fingerprint))
        for key, price in prices.items():
            if len(grant.granted) < queries and price <= max(0, micros - spent):
                grant.granted.append(key)
                spent += price
                self._sent[key] = (fingerprint, price)
            else:
                grant.refused.append(key)
        self._count(fingerprint, len(grant.granted), spent)
        return grant

    def record(self, key: bytes, answer: Answer, latency: float, attempts: int, bill: Bill | None = None) -> None:
        fingerprint, price = self._sent.pop(key, ("", 0))
        if bill and fingerprint:
            with self._lock:
                self._settle(fingerprint, bill, price)

    def release(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            for fingerprint, price in [self._sent.pop(key) for key in keys if key in self._sent]:
                self._count(fingerprint, -1, -price)

    def refuse(self, keys: Sequence[bytes], billed: bool) -> None:
        if billed:
            self.give_up(keys)
        else:
            self.release(keys)

    def give_up(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._sent.pop(key, None)

    def renew(self, keys: Sequence[bytes]) -> None:
        pass

    def book(self, fingerprint: str, queries: int, price_micros: int, budget: Budget) -> Future[Booked | None]:
        with self._lock:
            if queries > budget.room(self.spent(fingerprint), price_micros):
                return _done(None)
            self._count(fingerprint, queries, queries * price_micros)
        return _done(Booked(fingerprint, 0, queries, price_micros))

    def conclude(self, booked: Booked, outcome: Outcome, bill: Bill | None = None) -> None:
        cost = booked.queries * booked.price_micros
        with self._lock:
            if bill:
                self._settle(booked.fingerprint, bill, cost)
            elif outcome in (Outcome.UNSENT, Outcome.WAIVED):
                self._count(booked.fingerprint, -booked.queries, -cost)

    def recheck(self, key: bytes, answer: Answer) -> None:
        pass

    def introduce(self, fingerprint: str, description: str) -> None:
        pass

    def flush(self) -> Future[None]:
        return _done(None)

    def spend(self, fingerprint: str) -> Account:
        return self.spent(fingerprint)

    def spent(self, fingerprint: str) -> Account:
        return self._accounts.get(fingerprint, NOTHING)

    def close(self) -> None:
        pass

    def _settle(self, fingerprint: str, bill: Bill, price: int) -> None:
        """Count a bill in place of the price that was counted; what it was rounded up by is carried on."""
        owed = bill.picos - self._rest.get(fingerprint, 0)
        whole = -(-owed // MICRO)
        self._rest[fingerprint] = whole * MICRO - owed
        self._count(fingerprint, 0, whole - price)

    def _count(self, fingerprint: str, queries: int, micros: int) -> None:
        spent = self.spent(fingerprint)
        queries, micros = spent.queries + queries, spent.micros + micros
        self._accounts[fingerprint] = Account(queries, micros, queries, micros, spent.answered, spent.unanswered)


@dataclass(frozen=True, eq=False)
class Memory:
    """What all sessions of one ledger in memory share."""

    answers: dict[bytes, Answer] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
    rest: dict[str, int] = field(default_factory=dict)
    """What each classifier's bills were rounded up by, in picos."""
    flying: dict[bytes, tuple[MemoryLedger, float]] = field(default_factory=dict)
    """Who has which question in flight, and until when, by the monotonic clock."""
    turns: dict[str, float] = field(default_factory=dict)
    """When each classifier may be asked next, by the monotonic clock."""
    lock: Lock = field(default_factory=Lock)


class MemoryLedger(Unrecorded):
    """Keeps every answer as long as its memory lives, and sends nothing that another session has in flight."""

    def __init__(self, memory: Memory) -> None:
        super().__init__()
        self._memory, self._accounts, self._lock = memory, memory.accounts, memory.lock
        self._rest = memory.rest

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Answer]:
        answers = self._memory.answers
        return {key: answers[key] for key in keys if key in answers}

    def _grant(self, fingerprint: str, prices: Mapping[bytes, int], budget: Budget) -> Grant:
        answered, flying, now = self.find([*prices]), self._memory.flying, time.monotonic()
        leases = {key: flying[key] for key in prices if key in flying and key not in answered}
        held = [key for key, (who, until) in leases.items() if who is not self and now < until]
        taken = {*answered, *held}
        grant = super()._grant(fingerprint, {key: prices[key] for key in prices if key not in taken}, budget)
        flying.update(dict.fromkeys(grant.granted, (self, now + LEASE)))
        return Grant(grant.granted, answered, held, grant.refused)

    def record(self, key: bytes, answer: Answer, latency: float, attempts: int, bill: Bill | None = None) -> None:
        with self._lock:
            self._memory.answers.setdefault(key, answer)
        self._land([key])
        super().record(key, answer, latency, attempts, bill)

    def release(self, keys: Sequence[bytes]) -> None:
        self._land(keys)
        super().release(keys)

    def give_up(self, keys: Sequence[bytes]) -> None:
        self._land(keys)
        super().give_up(keys)

    def claim_moments(self, fingerprint: str, per_second: float, count: int) -> float:
        """See `Moments`: one rate holds for all sessions of the memory."""
        with self._lock:
            now = time.monotonic()
            first = max(self._memory.turns.get(fingerprint, now), now)
            self._memory.turns[fingerprint] = first + count / per_second
        return first - now

    def renew(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            until = (self, time.monotonic() + LEASE)
            self._memory.flying.update({key: until for key in keys if self._has(key)})

    def close(self) -> None:
        self._land(list(self._sent))

    def _has(self, key: bytes) -> bool:
        return self._memory.flying.get(key, (None,))[0] is self

    def _land(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            for key in keys:
                if self._has(key):
                    del self._memory.flying[key]


@cache
def of_this_process() -> Memory:
    """The memory that all who name the ledger `memory` share."""
    return Memory()


def _done(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future
