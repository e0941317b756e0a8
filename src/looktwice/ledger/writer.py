"""The clerk that keeps the books of a database."""

from __future__ import annotations

import time

from looktwice.errors import LedgerError
from looktwice.ledger.books import Books
from looktwice.ledger.clerk import Clerk
from looktwice.ledger.operations import Batch
from looktwice.ledger.sessions import Session
from looktwice.ledger.tables import Tables


class Writer(Clerk):
    """Commits what it is given: one batch, one transaction."""

    def __init__(self, tables: Tables, name: str) -> None:
        super().__init__(name)
        self._tables = tables
        self._books = Books(tables, Session.here())

    def sent(self, key: bytes) -> bool:
        return key in self._books.stamps

    def explain(self, error: Exception) -> LedgerError:
        return self._tables.explain(error)

    def finish(self) -> None:
        self._books.close()

    def save(self, batch: Batch) -> None:
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
