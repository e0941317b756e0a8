"""The one thread that writes: it gathers operations, and one transaction serves all of them."""

from __future__ import annotations

import time
from queue import Empty, SimpleQueue
from threading import Event, Thread

from looktwice.errors import LedgerError
from looktwice.ledger.books import Books
from looktwice.ledger.operations import Batch, Operation
from looktwice.ledger.sessions import BEAT, Session
from looktwice.ledger.tables import Tables

GATHER = 0.002
"""Seconds to let operations gather; also the gap in which another process gets its turn to write."""
LINGER = 0.006
"""Seconds more if many answers come and nobody waits: a commit costs the processor as much as 30 answers do."""
MANY = 4
"""Operations that come while gathering, at 2,000 a second."""
MOST = 4096
"""Questions in one round, unless a single operation has more."""


class Writer(Thread):
    """Commits what it is given, in that order, until a Stop; after a failure it fails all that comes."""

    def __init__(self, tables: Tables, name: str, command: str | None = None) -> None:
        super().__init__(name=name, daemon=True)
        self._tables = tables
        self._books = Books(tables, Session.here(command))
        self._queue: SimpleQueue[Operation] = SimpleQueue()
        self._awaited = Event()
        self._left_over: Operation | None = None
        self.failure: LedgerError | None = None

    def sent(self, key: bytes) -> bool:
        """Whether the question is in flight here."""
        return key in self._books.stamps

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
                batch.fail(self.failure)
            stop = batch.stop
        self._books.close()

    def _gather(self) -> Batch:
        """What is queued, up to an operation that must come after another one is on disk."""
        batch = Batch()
        operation = self._next(BEAT)
        if operation is not None:
            self._wait_for_company()
        while operation is not None:
            if not batch.add(operation):
                self._left_over = operation
                break
            operation = None if batch.stop or len(batch.keys) >= MOST else self._next()
        return batch

    def _wait_for_company(self) -> None:
        time.sleep(GATHER)
        if self._queue.qsize() >= MANY:
            self._awaited.wait(LINGER)
        self._awaited.clear()

    def _next(self, timeout: float | None = None) -> Operation | None:
        if self._left_over is not None:
            operation, self._left_over = self._left_over, None
            return operation
        try:
            return self._queue.get(timeout is not None, timeout)
        except Empty:
            return None

    def _commit(self, batch: Batch) -> None:
        try:
            self._save(batch)
        except Exception as error:
            lost = f"; {len(batch.records)} answers that had come in were not saved" if batch.records else ""
            self.failure = LedgerError(f"{self._tables.explain(error)}{lost}")
            return
        batch.resolve()

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
        if batch or self._books.due(now):
            self._books.write(batch, now)
