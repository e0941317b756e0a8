"""A ledger in a SQLite file."""

from __future__ import annotations

import atexit
import os
import time
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from threading import Lock
from types import TracebackType

from secondlook.errors import LedgerError
from secondlook.ledger.books import DAY, blocks, looking, spend
from secondlook.ledger.file import closed_on_error, explained, keep_ballast, readable, writable
from secondlook.ledger.operations import (
    Booking,
    Check,
    Flush,
    Intent,
    Introduction,
    Operation,
    Record,
    Release,
    Stop,
    Surrender,
)
from secondlook.ledger.protocol import Account, Budget, Entry, Grant
from secondlook.ledger.writer import Writer
from secondlook.votes import Answer

LARGEST = 1 << 63


class SqliteLedger:
    """The ledger in one file; any number of threads and processes may have it open. See `Ledger` for its methods."""

    def __init__(self, path: Path) -> None:
        self.path = path
        db = writable(path)
        with closed_on_error(db):
            keep_ballast(path)
            self._reader = readable(path)
        self._reading = Lock()
        self._closed = False
        self._pid = os.getpid()
        self._writer = Writer(db, path)
        self._writer.start()
        atexit.register(self.close)

    def __enter__(self) -> SqliteLedger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Answer]:
        found: dict[bytes, Answer] = {}
        with self._reading, explained(self.path):
            self._usable()
            for block in blocks(keys):
                rows = self._reader.execute(looking(len(block)), block).fetchall()
                found.update((row[0], Answer(row[1], row[2], row[3])) for row in rows if row[1] is not None)
        return found

    def intend(self, fingerprint: str, entries: Sequence[Entry], price_micros: int, budget: Budget) -> Future[Grant]:
        _check_price(price_micros)
        if any(not -LARGEST <= number < LARGEST for entry in entries for number in entry[3:]):
            raise LedgerError("a seed or index is too large to be kept; use one below 2**63")
        intent = Intent(fingerprint, {entry.key: entry for entry in entries}, price_micros, budget)
        self._put_awaited(intent)
        return intent.future

    def record(self, key: bytes, answer: Answer, latency: float, attempts: int) -> None:
        self._usable()
        if not self._writer.sent(key):
            raise LedgerError(f"an answer came to question {key.hex()}, which this session has not in flight")
        _check_text(answer.label)
        self._writer.put(Record(key, answer, latency, attempts))

    def release(self, keys: Sequence[bytes]) -> None:
        self._put(Release(tuple(dict.fromkeys(keys))))

    def give_up(self, keys: Sequence[bytes]) -> None:
        self._put(Surrender(tuple(keys)))

    def book(self, fingerprint: str, queries: int, price_micros: int, budget: Budget) -> Future[bool]:
        _check_price(price_micros)
        booking = Booking(fingerprint, queries, price_micros, budget)
        self._put_awaited(booking)
        return booking.future

    def recheck(self, key: bytes, answer: Answer) -> None:
        _check_text(answer.label)
        self._put(Check(key, time.time_ns(), answer.label))

    def introduce(self, fingerprint: str, description: str) -> None:
        _check_text(description)
        self._put(Introduction(fingerprint, description))

    def flush(self) -> Future[None]:
        flush = Flush()
        self._put_awaited(flush)
        return flush.future

    def spent(self, fingerprint: str) -> Account:
        with self._reading, explained(self.path):
            self._usable()
            row = self._reader.execute("SELECT id FROM classifiers WHERE fingerprint = ?", (fingerprint,)).fetchone()
            if row is None:
                return Account(0, 0, 0, 0, 0, 0)
            costs = spend(self._reader, row[0], int(time.time() // DAY))
            counts = self._reader.execute(
                "SELECT COUNT(label), COUNT(*) - COUNT(label) FROM questions WHERE classifier = ?", row
            ).fetchone()
        return Account(costs.queries, costs.micros, costs.queries_today, costs.micros_today, *counts)

    def close(self) -> None:
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        atexit.unregister(self.close)
        with self._reading:
            self._reader.close()
        self._writer.put_awaited(Stop())
        self._writer.join()
        if self._writer.failure:
            raise LedgerError(*self._writer.failure.args)

    def _put(self, operation: Operation) -> None:
        self._usable()
        self._writer.put(operation)

    def _put_awaited(self, operation: Operation) -> None:
        self._usable()
        self._writer.put_awaited(operation)

    def _usable(self) -> None:
        if self._writer.failure:
            raise LedgerError(*self._writer.failure.args)
        if self._closed:
            raise LedgerError(f"ledger {str(self.path)!r} is closed; open it again to go on")
        if self._pid != os.getpid():
            raise LedgerError("the ledger was opened before this process was forked; open it again in this process")


def _check_price(micros: int) -> None:
    if not 0 <= micros <= 10**15:
        raise LedgerError(f"a price of {micros} millionths a query is not between 0 and a thousand million")


def _check_text(text: str) -> None:
    """JSON can carry half of a character; no database keeps it, and it must not stop the writer."""
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise LedgerError(f"the text {text!a} is not valid Unicode and cannot be kept") from None
