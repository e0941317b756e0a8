"""A ledger in memory: for classifiers that are free and at hand, and for answers that are kept as long as a process."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cache
from threading import Lock
from typing import TypeVar

from looktwice.ledger.protocol import Account, Budget, Entry, Grant
from looktwice.votes import Answer

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

    def give_up(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._sent.pop(key, None)

    def book(self, fingerprint: str, queries: int, price_micros: int, budget: Budget) -> Future[bool]:
        with self._lock:
            covered = queries <= budget.room(self.spent(fingerprint), price_micros)
            self._count(fingerprint, queries if covered else 0, price_micros)
        return _done(covered)

    def recheck(self, key: bytes, answer: Answer) -> None:
        pass

    def introduce(self, fingerprint: str, description: str) -> None:
        pass

    def flush(self) -> Future[None]:
        return _done(None)

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
    flying: dict[bytes, MemoryLedger] = field(default_factory=dict)
    """Who has which question in flight."""
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
        answered, flying = self.find(keys), self._memory.flying
        held = [key for key in keys if key not in answered and flying.get(key, self) is not self]
        free = [key for key in keys if key not in answered and flying.get(key, self) is self]
        grant = super()._grant(fingerprint, free, price, budget)
        flying.update(dict.fromkeys(grant.granted, self))
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

    def close(self) -> None:
        self._land(list(self._sent))

    def _land(self, keys: Sequence[bytes]) -> None:
        with self._lock:
            for key in keys:
                if self._memory.flying.get(key) is self:
                    del self._memory.flying[key]


@cache
def of_this_process() -> Memory:
    """The memory that all who name the ledger `memory` share."""
    return Memory()


def _done(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future
