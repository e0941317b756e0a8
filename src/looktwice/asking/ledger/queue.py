"""A ledger whose writing is queued: one thread gathers operations, and one transaction serves all of them."""

from __future__ import annotations

import atexit
import logging
import math
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from typing import Self, TypeVar

from looktwice.asking.ledger.accounting import DAY, Accounting
from looktwice.asking.ledger.operations import (
    Batch,
    BatchNote,
    Booking,
    Check,
    Conclusion,
    Flush,
    Intent,
    Introduction,
    Learned,
    Operation,
    Record,
    Renewal,
    Return,
    Settlement,
    Stop,
    Surrender,
)
from looktwice.asking.ledger.protocol import (
    BEAT,
    Account,
    Bill,
    Booked,
    Budget,
    Entry,
    Grant,
    OpenBatch,
    Outcome,
    Session,
    Settled,
    Spend,
    living,
)
from looktwice.asking.ledger.sql import Tables
from looktwice.classifiers.base import Answer
from looktwice.errors import LedgerError

LOG = logging.getLogger("looktwice.ledger")

GATHER = 0.002
"""Seconds to let operations gather; also the gap in which another process gets its turn to write."""

LINGER = 0.006
"""Seconds more if many answers come and nobody waits: a commit costs the processor as much as 30 answers do."""

MANY = 4
"""Operations that come while gathering, at 2,000 a second."""

PAUSE, REMIND = 1.0, 20.0
"""Seconds after which a database that cannot be written is tried again, and the user is told again that it cannot."""

MOST = 4096
"""Questions in one round, unless a single operation has more."""


class Writer(Thread):
    """Commits what it is given, in that order, until a Stop; after a failure that stays it fails all that comes.

    While another program keeps the database locked, or it cannot be reached, or its disk is full, answers wait here.
    """

    def __init__(self, tables: Tables, name: str, command: str | None = None) -> None:
        super().__init__(name=name, daemon=True)
        self._tables = tables
        session = Session.here(command)
        self.session = session.id
        self._accounting = Accounting(tables, session)
        self._queue: SimpleQueue[Operation] = SimpleQueue()
        self._awaited = Event()
        self._left_over: Operation | None = None
        self.failure: LedgerError | None = None
        self.lost = 0
        """Answers that were given to it and could not be saved."""
        self.closing = False
        """Whether nobody waits any longer for a database that cannot be written now."""

    def sent(self, key: bytes) -> bool:
        """Whether the question is in flight here."""
        return key in self._accounting.stamps

    def put(self, operation: Operation) -> None:
        """Queue an operation that nobody waits for."""
        self._queue.put(operation)

    def put_awaited(self, operation: Operation) -> None:
        """Queue an operation whose end somebody waits for."""
        self._queue.put(operation)
        self._awaited.set()

    def run(self) -> None:
        stop = False
        while not stop:
            batch = self._gather()
            if self.failure is None:
                self._commit(batch)
            if self.failure is not None:
                self.lost += batch.answers()
                batch.fail(self.error())
            stop = batch.stop
        (self._tables if self.failure else self._accounting).close()

    def error(self) -> LedgerError:
        """The failure as an error, with the number of answers that were lost."""
        lost = f"; {self.lost} answers that had come in were not saved" if self.lost else ""
        return LedgerError(f"{self.failure}{lost}")

    def _gather(self) -> Batch:
        """What is queued, up to an operation that must come after another one is on disk."""
        batch = Batch()
        operation = self._next(BEAT)
        if operation is not None:
            time.sleep(GATHER)
            if self._queue.qsize() >= MANY:
                self._awaited.wait(LINGER)
            self._awaited.clear()
        while operation is not None:
            if not batch.add(operation):
                self._left_over = operation
                break
            operation = None if batch.stop or len(batch.keys) >= MOST else self._next()
        return batch

    def _next(self, timeout: float | None = None) -> Operation | None:
        if self._left_over is not None:
            operation, self._left_over = self._left_over, None
            return operation
        try:
            return self._queue.get(timeout is not None, timeout)
        except Empty:
            return None

    def _commit(self, batch: Batch) -> None:
        warned_at = -math.inf
        while True:
            try:
                self._save(batch)
            except Exception as error:
                failure = self._tables.explain(error)
                if self._tables.passes(error) and not batch.must_be_kept():
                    batch.fail(failure)
                    return
                if self.closing or not self._tables.passes(error):
                    self.failure = failure
                    return
                if time.monotonic() - warned_at >= REMIND:
                    LOG.warning("%s; %d answers wait in memory until it can be written", failure, batch.answers())
                    warned_at = time.monotonic()
                time.sleep(PAUSE)
            else:
                batch.resolve()
                return

    def _save(self, batch: Batch) -> None:
        if batch.asked() and not self._tables.has_room():
            self._refuse(batch)
        try:
            self._write(batch)
        except Exception as error:
            if not self._tables.makes_room(error):
                raise
            self._refuse(batch)
            batch.raw = False
            self._write(batch)

    def _refuse(self, batch: Batch) -> None:
        """Ask nothing more on a full disk: what is left of it is for the answers still to come."""
        batch.refuse(LedgerError(f"{self._tables.full()}: nothing was lost"))

    def _write(self, batch: Batch) -> None:
        now = time.time()
        if batch or self._accounting.due(now):
            self._accounting.write(batch, now)


LARGEST = 1 << 63

T = TypeVar("T")


class Reader:
    """What can be read past the queue, from any thread, over tables that nothing else uses."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._turn = Lock()

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Answer]:
        known = self.read(lambda: self._tables.known(keys))
        return {key: row.answer() for key, row in known.items() if row.label is not None}

    def spend(self, fingerprint: str) -> Spend:
        return self.read(lambda: self._spend(self._tables.find_classifier(fingerprint)))

    def spent(self, fingerprint: str) -> Account:
        return self.read(lambda: self._account(self._tables.find_classifier(fingerprint)))

    def open_batches(self, fingerprint: str, session: int) -> list[OpenBatch]:
        return self.read(lambda: self._open_batches(self._tables.find_classifier(fingerprint), session))

    def known_batches(self, fingerprint: str) -> frozenset[str]:
        return self.read(lambda: self._tables.known_batches(fingerprint))

    def _open_batches(self, classifier: int | None, session: int) -> list[OpenBatch]:
        found = [] if classifier is None else self._tables.open_batches(classifier)
        alive = living(self._tables.sessions(), time.time()) - {session}
        return [
            OpenBatch(b.id, b.file, b.remote, tuple(keys), b.at / 1000, b.session in alive)
            for b in found
            if (keys := self._tables.in_batch(b.id))
        ]

    def close(self) -> None:
        with self._turn:
            self._tables.close()

    def _spend(self, classifier: int | None) -> Spend:
        return Spend(0, 0, 0, 0) if classifier is None else self._tables.spend(classifier, int(time.time() // DAY))

    def _account(self, classifier: int | None) -> Account:
        costs = self._spend(classifier)
        counts = (0, 0) if classifier is None else self._tables.counts(classifier)
        return Account(costs.queries, costs.micros, costs.queries_today, costs.micros_today, *counts)

    def read(self, work: Callable[[], T]) -> T:
        """The result of `work`, which has the tables to itself and is repeated if their connection broke."""
        with self._turn:
            try:
                return self._tables.retried(work)
            except Exception as error:
                raise self._tables.explain(error) from error


class QueuedLedger:
    """A ledger that any number of threads may use. See `Ledger` for its methods."""

    def __init__(self, name: str, writer: Writer, reader: Reader) -> None:
        self._name = name
        self._writer = writer
        self._reader = reader
        self._closed = False
        self._pid = os.getpid()
        writer.start()
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Answer]:
        self._usable()
        return self._reader.find(keys)

    def intend(self, fingerprint: str, entries: Sequence[Entry], price_micros: int, budget: Budget) -> Future[Grant]:
        intent = self._intent(fingerprint, entries, price_micros, budget)
        self._put_awaited(intent)
        return intent.future

    def _intent(self, fingerprint: str, entries: Sequence[Entry], price_micros: int, budget: Budget) -> Intent:
        for price in {price_micros, *(entry.reserve or 0 for entry in entries)}:
            _check_price(price)
        if any(not -LARGEST <= number < LARGEST for entry in entries for number in entry[3:5]):
            raise LedgerError("a seed or index is too large to be kept; use one below 2**63")
        return Intent(fingerprint, {entry.key: entry for entry in entries}, price_micros, budget)

    def record(self, key: bytes, answer: Answer, latency: float, attempts: int, bill: Bill | None = None) -> None:
        if self._closed or self._writer.failure or not self._writer.sent(key):
            self._usable()
            raise LedgerError(f"an answer came to question {key.hex()}, which this session has not in flight")
        self._check_text(answer.label)
        self._writer.put(Record(key, answer, latency, attempts, bill))

    def release(self, keys: Sequence[bytes]) -> None:
        self._put(Return(tuple(keys), Outcome.UNSENT))

    def refuse(self, keys: Sequence[bytes], billed: bool) -> None:
        self._put(Return(tuple(keys), Outcome.REFUSED if billed else Outcome.WAIVED))

    def give_up(self, keys: Sequence[bytes]) -> None:
        self._put(Surrender(tuple(keys)))

    def renew(self, keys: Sequence[bytes]) -> None:
        self._put(Renewal(tuple(keys)))

    def book(self, fingerprint: str, queries: int, price_micros: int, budget: Budget) -> Future[Booked | None]:
        _check_price(price_micros)
        booking = Booking(fingerprint, queries, price_micros, budget)
        self._put_awaited(booking)
        return booking.future

    def conclude(self, booked: Booked, outcome: Outcome, bill: Bill | None = None) -> None:
        self._put(Conclusion(booked, outcome, bill))

    def recheck(self, key: bytes, answer: Answer) -> None:
        self._check_text(answer.label)
        self._put(Check(key, time.time_ns(), answer.label))

    def enter_batch(
        self, fingerprint: str, batch: int, entries: Sequence[Entry], price_micros: int, budget: Budget
    ) -> Future[Grant]:
        intent = self._intent(fingerprint, entries, price_micros, budget)
        intent.batch = batch
        self._put_awaited(intent)
        return intent.future

    def note_batch(self, batch: int, file: str | None = None, remote: str | None = None) -> Future[None]:
        note = BatchNote(batch, file, remote)
        self._put_awaited(note)
        return note.future

    def settle_batch(self, batch: int, results: Sequence[Settled]) -> Future[None]:
        for result in results:
            if isinstance(result.result, Answer):
                self._check_text(result.result.label)
        settlement = Settlement(batch, {each.key: each for each in reversed(results)})
        self._put_awaited(settlement)
        return settlement.future

    def join_pace(self, fingerprint: str) -> Future[float | None]:
        """See `LearnedPaces`."""
        return self._learned(Learned(fingerprint, None, joins=True))

    def keep_pace(self, fingerprint: str, rate: float | None) -> Future[float | None]:
        """See `LearnedPaces`."""
        return self._learned(Learned(fingerprint, rate, joins=False))

    def _learned(self, learned: Learned) -> Future[float | None]:
        self._put(learned)
        return learned.future

    def known_batches(self, fingerprint: str) -> frozenset[str]:
        self._usable()
        return self._reader.known_batches(fingerprint)

    def open_batches(self, fingerprint: str) -> list[OpenBatch]:
        self._usable()
        return self._reader.open_batches(fingerprint, self._writer.session)

    def introduce(self, fingerprint: str, description: str) -> None:
        self._check_text(description)
        self._put(Introduction(fingerprint, description))

    def flush(self) -> Future[None]:
        flush = Flush()
        self._put_awaited(flush)
        return flush.future

    def spend(self, fingerprint: str) -> Spend:
        self._usable()
        return self._reader.spend(fingerprint)

    def spent(self, fingerprint: str) -> Account:
        self._usable()
        return self._reader.spent(fingerprint)

    def stop_waiting(self) -> None:
        """Fail, and do not go on trying, where the database cannot be written."""
        self._writer.closing = True

    def close(self) -> None:
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        self.stop_waiting()
        atexit.unregister(self.close)
        self._reader.close()
        self._writer.put_awaited(Stop())
        self._writer.join()
        if self._writer.failure:
            raise self._writer.error()

    def _put(self, operation: Operation) -> None:
        self._usable()
        self._writer.put(operation)

    def _put_awaited(self, operation: Operation) -> None:
        self._usable()
        self._writer.put_awaited(operation)

    def _usable(self) -> None:
        if self._writer.failure:
            raise self._writer.error()
        if self._closed:
            raise LedgerError(f"{self._name} is closed; open it again to continue")
        if self._pid != os.getpid():
            raise LedgerError("the ledger was opened before this process was forked; open it again in this process")

    def _check_text(self, text: str) -> None:
        """JSON can carry half of a character; no database keeps it, and it must not stop the writer."""
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError:
                raise LedgerError(f"the text {text!a} is not valid Unicode and cannot be kept") from None


def _check_price(micros: int) -> None:
    if not 0 <= micros <= 10**15:
        raise LedgerError(f"a price of {micros} millionths a query is not between 0 and a thousand million")
