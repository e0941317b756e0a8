"""No ledger: nothing is kept, and the budget holds for this run alone. For classifiers that are free and at hand."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from threading import Lock
from typing import TypeVar

from looktwice.ledger.protocol import Account, Budget, Entry, Grant
from looktwice.votes import Answer

T = TypeVar("T")
NOTHING = Account(0, 0, 0, 0, 0, 0)


class Unrecorded:
    """Counts what is spent while it lives, as one day, and forgets the rest. See `Ledger` for its methods."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._sent: dict[bytes, tuple[str, int]] = {}
        self._counting = Lock()

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Answer]:
        return {}

    def intend(self, fingerprint: str, entries: Sequence[Entry], price_micros: int, budget: Budget) -> Future[Grant]:
        keys = list(dict.fromkeys(entry.key for entry in entries))
        with self._counting:
            room = budget.room(self._account(fingerprint), price_micros)
            granted, refused = keys[:room], keys[room:]
            self._count(fingerprint, len(granted), price_micros)
            self._sent.update(dict.fromkeys(granted, (fingerprint, price_micros)))
        return _done(Grant(granted, refused=refused))

    def record(self, key: bytes, answer: Answer, latency: float, attempts: int) -> None:
        self._sent.pop(key, None)

    def release(self, keys: Sequence[bytes]) -> None:
        with self._counting:
            for fingerprint, price in [self._sent.pop(key) for key in keys if key in self._sent]:
                self._count(fingerprint, -1, price)

    def give_up(self, keys: Sequence[bytes]) -> None:
        for key in keys:
            self._sent.pop(key, None)

    def book(self, fingerprint: str, queries: int, price_micros: int, budget: Budget) -> Future[bool]:
        with self._counting:
            covered = queries <= budget.room(self._account(fingerprint), price_micros)
            self._count(fingerprint, queries if covered else 0, price_micros)
        return _done(covered)

    def recheck(self, key: bytes, answer: Answer) -> None:
        pass

    def introduce(self, fingerprint: str, description: str) -> None:
        pass

    def flush(self) -> Future[None]:
        return _done(None)

    def spent(self, fingerprint: str) -> Account:
        return self._account(fingerprint)

    def close(self) -> None:
        pass

    def _account(self, fingerprint: str) -> Account:
        return self._accounts.get(fingerprint, NOTHING)

    def _count(self, fingerprint: str, queries: int, price: int) -> None:
        spent = self._account(fingerprint)
        queries, micros = spent.queries + queries, spent.micros + queries * price
        self._accounts[fingerprint] = Account(queries, micros, queries, micros, 0, 0)


def _done(value: T) -> Future[T]:
    future: Future[T] = Future()
    future.set_result(value)
    return future
