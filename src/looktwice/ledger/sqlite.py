"""A ledger in a SQLite file."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from looktwice.errors import LedgerError
from looktwice.ledger.file import (
    PATIENCE,
    closed_on_error,
    drop_ballast,
    explain,
    full,
    is_busy,
    is_full,
    keep_ballast,
    readable,
    writable,
)
from looktwice.ledger.queued import QueuedLedger, Reader
from looktwice.ledger.tables import Known, Row, Tables, Value
from looktwice.ledger.writer import Writer

BLOCK = 256
"""Rows in one statement, at most. The interpreter lock is dropped and fought for once a statement: one row a statement
cost a busy sender 15 to 90 µs a question, and blocks 13 to 28."""

T = TypeVar("T")


class SqliteLedger(QueuedLedger):
    """The ledger in one file; any number of threads and processes may have it open. See `Ledger` for its methods."""

    def __init__(self, path: Path, command: str | None = None) -> None:
        self.path = path
        db = writable(path)
        with closed_on_error(db):
            keep_ballast(path)
            reader = readable(path)
        db.execute("PRAGMA busy_timeout=0")  # see SqliteTables.begin
        writer = Writer(SqliteTables(db, path), f"ledger {path.name}", command)
        super().__init__(f"ledger {str(path)!r}", writer, Reader(SqliteTables(reader, path)))


class SqliteTables(Tables):
    """The tables in a SQLite file."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db = db
        self._path = path

    def begin(self, spending: bool) -> None:
        """Wait for the right to write; SQLite's own waiting sleeps so long that a busy neighbour starves us."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                return
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > deadline:
                    raise
            time.sleep(0.001)

    def commit(self) -> None:
        self._db.execute("COMMIT")

    def roll_back(self) -> None:
        with suppress(sqlite3.Error):
            self._db.execute("ROLLBACK")

    def close(self) -> None:
        self._db.close()

    def again(self, error: Exception) -> bool:
        return False

    def explain(self, error: Exception) -> LedgerError:
        return explain(self._path, error)

    def has_room(self) -> bool:
        return keep_ballast(self._path)

    def makes_room(self, error: Exception) -> bool:
        if not is_full(error):
            return False
        drop_ballast(self._path)
        return True

    def full(self) -> LedgerError:
        return full(self._path)

    def clock(self, now: float) -> float:
        return now

    def version(self) -> int:
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def known(self, keys: Sequence[bytes]) -> dict[bytes, Known]:
        rows = (row for block in _blocks(keys) for row in self._db.execute(_looking(len(block)), block))
        return {row[0]: Known(*row[1:]) for row in rows}

    def ask(self, rows: Sequence[Row]) -> None:
        for block in _blocks(rows):
            self._db.execute(_asking(len(block)), _flat(block))

    def answer(self, rows: Sequence[Row]) -> None:
        for block in _blocks(rows):
            self._db.execute(_answering(len(block)), _flat(block))

    def execute(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Value, ...]]:
        return self._db.execute(statement, values).fetchall()

    def execute_many(self, statement: str, rows: Sequence[Sequence[Value]]) -> None:
        if rows:
            self._db.executemany(statement, rows)


def _blocks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """The rows in blocks whose sizes are powers of two, so that few statements serve every number of rows."""
    start = 0
    while start < len(rows):
        size = min(BLOCK, 1 << ((len(rows) - start).bit_length() - 1))
        yield rows[start : start + size]
        start += size


@cache
def _looking(rows: int) -> str:
    return f"SELECT key, label, score, status, session, at FROM questions WHERE key IN ({_marks(rows)})"  # noqa: S608


@cache
def _asking(rows: int) -> str:
    return (
        "INSERT INTO questions(key, classifier, digest, view, seed, number, micros, at, session, sends)"  # noqa: S608
        f" VALUES {_values('?, ?, ?, ?, ?, ?, ?, ?, ?, 1', rows)}"
    )


@cache
def _answering(rows: int) -> str:
    columns = "key, label, score, status, latency, attempts, at"
    return (
        f"WITH new({columns}) AS (VALUES {_values(_marks(7), rows)})"  # noqa: S608
        " UPDATE questions SET label = new.label, score = new.score, status = new.status, latency = new.latency,"
        " attempts = new.attempts, at = new.at, session = NULL"
        " FROM new WHERE questions.key = new.key AND questions.label IS NULL"
    )


def _marks(n: int) -> str:
    return ", ".join("?" * n)


def _values(row: str, rows: int) -> str:
    return ", ".join([f"({row})"] * rows)


def _flat(rows: Sequence[Row]) -> list[Value]:
    return [value for row in rows for value in row]
