"""A ledger in memory: for classifiers that are free and at hand, and for answers that are kept as long as a process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import TypeVar

from looktwice.asking.ledger.protocol import Account, Booked, Budget, Entry, Grant, Outcome
from looktwice.asking.ledger.sessions import LEASE
from looktwice.classifiers.base import Answer

T = TypeVar("T")
NOTHING = Account(0, 0, 0, 0, 0, 0)


class Unrecorded:
    """Counts what is spent while it lives, as one day, and keeps no answer. See `Ledger` for its methods."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._sent: dict[bytes, tuple[str, int]] = {}
        self._lock = Lock()

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Answer]:
        return {}

    def intend(self, fingerprint: str, entries: Sequence[Entry], price_micros: int, budget: Budget) -> Future[Grant]:
        with self._lock:
            return _done(self._grant(fingerprint, [entry.key for entry in entries], price_micros, budget))

    def _grant(self, fingerprint: str, keys: Sequence[bytes], price: int, budget: Budget) -> Grant:
        room = budget.room(self.spent(fingerprint), price)
        keys = list(dict.fromkeys(keys))
        granted, refused = keys[:room], keys[room:]
        self._count(fingerprint, len(granted), price)
        self._sent.update(dict.fromkeys(granted, (fingerprint, price)))
        return Grant(granted, refused=refused)

    def record(self, key: bytes, answer: Answer, latency: float, attempts: int) -> None:
        self._sent.pop(key, None)

    def release(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            for fingerprint, price in [self._sent.pop(key) for key in keys if key in self._sent]:
                self._count(fingerprint, -1, price)

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
            self._count(fingerprint, queries, price_micros)
        return _done(Booked(fingerprint, 0, queries, price_micros))

    def conclude(self, booked: Booked, outcome: Outcome) -> None:
        if outcome in (Outcome.UNSENT, Outcome.WAIVED):
            with self._lock:
                self._count(booked.fingerprint, -booked.queries, booked.price_micros)

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

    def _count(self, fingerprint: str, queries: int, price: int) -> None:
        spent = self.spent(fingerprint)
        queries, micros = spent.queries + queries, spent.micros + queries * price
        self._accounts[fingerprint] = Account(queries, micros, queries, micros, spent.answered, spent.unanswered)


@dataclass(frozen=True, eq=False)
class Memory:
    """What all sessions of one ledger in memory share."""

    answers: dict[bytes, Answer] = field(default_factory=dict)
    accounts: dict[str, Account] = field(default_factory=dict)
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

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Answer]:
        answers = self._memory.answers
        return {key: answers[key] for key in keys if key in answers}

    def _grant(self, fingerprint: str, keys: Sequence[bytes], price: int, budget: Budget) -> Grant:
        answered, flying, now = self.find(keys), self._memory.flying, time.monotonic()
        leases = {key: flying[key] for key in keys if key in flying and key not in answered}
        held = [key for key, (who, until) in leases.items() if who is not self and now < until]
        taken = {*answered, *held}
        grant = super()._grant(fingerprint, [key for key in keys if key not in taken], price, budget)
        flying.update(dict.fromkeys(grant.granted, (self, now + LEASE)))
        return Grant(grant.granted, answered, held, grant.refused)

    def record(self, key: bytes, answer: Answer, latency: float, attempts: int) -> None:
        with self._lock:
            self._memory.answers.setdefault(key, answer)
        self._land([key])
        super().record(key, answer, latency, attempts)

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
