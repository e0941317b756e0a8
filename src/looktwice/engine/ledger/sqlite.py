"""A ledger in a SQLite file, or in memory.

Only SQLite opens or closes the file: closing it in any other way drops every lock that the process holds on it, and the
next process to close would delete the write-ahead log. Checkpoints are made only under the write lock, because releases
of SQLite before 3.51.3 can lose commits when one process resets the log while another checkpoints it.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from looktwice.engine.ledger import schema
from looktwice.engine.ledger.schema import PATIENCE, Row
from looktwice.errors import LedgerError

APPLICATION = int.from_bytes(b"lkt2", "big")
"""The application id of ledgers in the SQLite header."""
CHECKPOINT = 4000
"""The pages in the write-ahead log that cause a checkpoint: 16 MB."""
POLL = 0.0005
"""Seconds between attempts to begin a transaction while another process writes."""
ADDRESS = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+:[/\\]|\bpassword=")
"""Matches the address of a database, also after conversion to a path; a Windows drive has one letter."""
FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE}
"""SQLite's error codes for a full disk; the last two mean an exceeded quota, and a disk too full for shared memory."""
BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}
FORBIDDEN = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH}


class SqliteDatabase:
    """One connection for writing and one for reading; in memory they are the same."""

    shared = False
    errors: tuple[type[Exception], ...] = (sqlite3.Error, OSError, UnicodeDecodeError)

    def __init__(self, path: Path | None) -> None:
        self.name = f"ledger {str(path)!r}" if path else "the ledger in memory"
        self.lasting = path is not None
        self._path = path
        self._lock = threading.RLock()
        """Held during a transaction."""
        self._reading = self._lock if path is None else threading.RLock()
        if path is None:
            self._db = self._reader = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            create(self._db)
        else:
            self._open(path)
            self._inode = path.stat().st_ino
            _OPEN.add(self)

    def _open(self, path: Path) -> None:
        self._db, self._reader = open_to_write(path), open_to_read(path)

    def let_go(self) -> None:
        """Close the file before this process forks, since a child that opens it would assume locks that it does not
        hold."""
        self._lock.acquire()
        self._reading.acquire()
        self._reader.close()
        self._db.close()

    def go_on(self) -> None:
        """Reopen the file."""
        try:
            if self._path:
                self._open(self._path)
        finally:
            self._reading.release()
            self._lock.release()

    def begin(self) -> float:
        if self._path and not _is_at(self._path, self._inode):
            raise LedgerError(
                f"{self.name} was deleted, moved or replaced while it was in use; put it back and run again"
            )
        until = time.monotonic() + PATIENCE
        self._lock.acquire()
        while True:
            try:
                self._db.execute("BEGIN IMMEDIATE")
                return time.time()
            except sqlite3.Error as error:
                if _primary(error) not in BUSY or time.monotonic() > until:
                    raise
            time.sleep(POLL)

    def execute(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        return self._db.execute(statement, tuple(values)).fetchall()

    def execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        self._db.executemany(statement, rows)

    def commit(self) -> None:
        self._db.execute("COMMIT")
        self._lock.release()
        if self._path:
            self._checkpoint(self._path)

    def roll_back(self) -> None:
        if self._db.in_transaction:
            with suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
        with suppress(RuntimeError):  # beginning failed
            self._lock.release()

    def _checkpoint(self, path: Path) -> None:
        """Checkpoint the log if it is long, unless another connection is writing or reading."""
        with suppress(OSError, sqlite3.Error):
            if path.with_name(path.name + "-wal").stat().st_size > CHECKPOINT * 4096:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def empty_log(self) -> None:
        """Checkpoint the log, after a short wait for readers."""
        self._db.execute("PRAGMA busy_timeout=1000")
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.execute("PRAGMA busy_timeout=0")

    def read(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        with self._reading:
            return self._reader.execute(statement, tuple(values)).fetchall()

    def explain(self, error: Exception) -> LedgerError:
        return explain(self._path, error)

    def may_pass(self, error: Exception) -> bool:
        return _primary(error) in BUSY or self.is_full(error)

    def is_full(self, error: Exception) -> bool:
        return isinstance(error, sqlite3.Error) and _code(error) in FULL

    def close(self) -> None:
        _OPEN.discard(self)
        with self._reading:  # a thread may be looking something up
            self._reader.close()
        with suppress(sqlite3.Error):  # a reader of another process that closes last would leave the log behind
            self.empty_log()
        self._db.close()


_OPEN = weakref.WeakSet[SqliteDatabase]()
"""The open files of this process."""


def _before_fork() -> None:
    for database in list(_OPEN):
        database.let_go()


def _after_fork() -> None:
    for database in list(_OPEN):
        database.go_on()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_OPEN.clear)


def _is_at(path: Path, inode: int) -> bool:
    """Whether the path still refers to the opened file."""
    try:
        return path.stat().st_ino == inode
    except OSError:
        return False


def open_to_write(path: Path) -> sqlite3.Connection:
    """Open a connection for writing; create the file and its folder if missing. An existing file is not locked."""
    with explained(path):
        _refuse_address(path)
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        if path.is_dir():
            raise LedgerError(f"{str(path)!r} is a folder; specify a file for the ledger", code="ledger-invalid")
        if not path.exists():
            with suppress(FileExistsError):  # nobody can have it open yet
                os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        elif not (os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK)):
            raise LedgerError(
                f"ledger {str(path)!r} or its folder is read-only; change its permissions or specify another file"
            )
        db = _connect(path, "mode=rw")
        with _closed_on_error(db):
            if not _check_header(db, path):
                _create_file(db, path)
            for setting in (
                "synchronous=FULL",
                "fullfsync=ON",
                "cache_size=-16000",
                "wal_autocheckpoint=0",
                "secure_delete=ON",
            ):
                db.execute(f"PRAGMA {setting}")
            db.execute("PRAGMA busy_timeout=0")
    return db


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open a read-only connection; it also works in a read-only folder."""
    with explained(path):
        _refuse_address(path)
        if not path.exists():
            raise LedgerError(f"there is no ledger {str(path)!r}", code="ledger-missing")
        db = _connect(path, "mode=ro")
        try:
            made = _check_header(db, path)
        except sqlite3.OperationalError as error:
            db.close()
            log = path.with_name(path.name + "-wal")
            if _primary(error) not in FORBIDDEN or (log.exists() and log.stat().st_size > 0):
                raise
            db = _connect(path, "mode=ro&immutable=1")  # nobody can be writing
            made = _check_header(db, path)
        except BaseException:
            db.close()
            raise
        if not made:
            db.close()
            raise LedgerError(
                f"{str(path)!r} is empty; it becomes a ledger with the first query", code="ledger-missing"
            )
        for setting in ("query_only=ON", "cache_size=-16000", "temp_store=MEMORY"):
            db.execute(f"PRAGMA {setting}")
    return db


def create(db: sqlite3.Connection) -> None:
    """Create the tables of a new ledger."""
    for table in schema.TABLES:
        rowid = "" if table.startswith(("classifiers", "sessions", "batches")) else " WITHOUT ROWID"
        db.execute(f"CREATE TABLE {table}{rowid}")
    db.execute(schema.OPEN_CLAIMS)


def _create_file(db: sqlite3.Connection, path: Path) -> None:
    """Create the tables in one transaction before WAL mode, so that the header always has the application id."""
    db.execute(f"PRAGMA busy_timeout={PATIENCE * 1000:.0f}")
    db.execute("BEGIN IMMEDIATE")
    if not _check_header(db, path):  # else another process was faster
        create(db)
        db.execute(f"PRAGMA application_id={APPLICATION}")
        db.execute(f"PRAGMA user_version={schema.VERSION}")
    db.execute("COMMIT")
    until = time.monotonic() + PATIENCE
    while (mode := _journal_mode(db)) == "busy" and time.monotonic() < until:
        time.sleep(0.01)
    if mode != "wal":
        raise LedgerError(
            f"ledger {str(path)!r} is on a drive that cannot share memory; move it to a local disk",
            code="ledger-unsupported",
        )


def _journal_mode(db: sqlite3.Connection) -> str:
    """Request WAL mode and return the resulting journal mode; SQLite does not wait here if another process makes the
    same request."""
    try:
        return str(db.execute("PRAGMA journal_mode=WAL").fetchone()[0])
    except sqlite3.OperationalError as error:
        if _primary(error) in BUSY:
            return "busy"
        raise


def _check_header(db: sqlite3.Connection, path: Path) -> bool:
    """Raise an error if a file is not a ledger of this version; returns whether it has its tables."""
    mark, version, tables = (
        int(db.execute(f"PRAGMA {name}").fetchone()[0]) for name in ("application_id", "user_version", "schema_version")
    )
    if not mark and not tables:
        return False
    if mark == APPLICATION and version > schema.VERSION:
        raise LedgerError(
            f"ledger {str(path)!r} was written by a newer looktwice; upgrade with: pip install -U looktwice",
            code="ledger-newer",
        )
    if mark != APPLICATION:
        raise _foreign(path)
    return True


def _connect(path: Path, how: str) -> sqlite3.Connection:
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?{how}",
        uri=True,
        timeout=PATIENCE,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
    )


@contextmanager
def explained(path: Path | None) -> Iterator[None]:
    """Convert errors of SQLite and the system to LedgerError."""
    try:
        yield
    except SqliteDatabase.errors as error:
        raise explain(path, error) from error


def explain(path: Path | None, error: Exception) -> LedgerError:
    """The error to raise for a failure of the database."""
    name = f"ledger {str(path)!r}"
    code = _primary(error)
    if code == sqlite3.SQLITE_FULL or _code(error) in FULL:
        return LedgerError(
            f"the disk holding the ledger {str(path)!r} is full or its quota is used up; free some space and run again",
            code="disk-full",
        )
    if code in BUSY:
        return LedgerError(
            f"{name} was locked by another program for more than {PATIENCE:.0f} s; end that program "
            "or, if the file is on a network drive, move it to a local disk",
            code="ledger-locked",
        )
    if code == sqlite3.SQLITE_CORRUPT or isinstance(error, UnicodeDecodeError):  # of words that are damaged, too
        return LedgerError(
            f"{name} is damaged ({error}); nothing was changed: restore a backup, or specify another "
            "file with --ledger",
            code="ledger-damaged",
        )
    if code == sqlite3.SQLITE_NOTADB and path:
        return _foreign(path)
    if code in FORBIDDEN or isinstance(error, PermissionError):
        return LedgerError(
            f"{name} cannot be opened or written ({error}); change its permissions or specify another file"
        )
    return LedgerError(f"{name} failed: {error}")


def _foreign(path: Path) -> LedgerError:
    return LedgerError(
        f"{str(path)!r} is not a ledger of this version of looktwice; specify another file with --ledger",
        code="ledger-foreign",
    )


def _refuse_address(path: Path) -> None:
    """Raise an error if a path is a database address: its password would become the name of a folder."""
    if ADDRESS.search(str(path)):
        raise LedgerError(
            "the ledger's location is an address; give postgresql://user@host/database, or the path of a file",
            code="ledger-invalid",
        )


@contextmanager
def _closed_on_error(db: sqlite3.Connection) -> Iterator[None]:
    """Close the connection on any exception."""
    try:
        yield
    except BaseException:
        db.close()
        raise


def _code(error: Exception) -> int:
    return int(getattr(error, "sqlite_errorcode", 0))


def _primary(error: Exception) -> int:
    return _code(error) & 0xFF
