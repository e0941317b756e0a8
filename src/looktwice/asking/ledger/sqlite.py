"""The ledger in a SQLite file: WAL mode, a commit waits for the disk."""

from __future__ import annotations

import os
import re
import sqlite3
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import TypeVar

from looktwice.asking.ledger.queue import QueuedLedger, Reader, Writer
from looktwice.asking.ledger.sql import ANSWERED_BEFORE, BATCHES, BILLS, TOKENS, Known, Row, Tables, Value
from looktwice.errors import LedgerError

APPLICATION = int.from_bytes(b"look", "big")
"""The mark of our files in the SQLite header."""

FORMER = int.from_bytes(b"2ndL", "big")
"""The mark of ledgers that were made under the project's former name."""

PROJECT = ".looktwice"
"""The folder of a project's own ledger."""

PATIENCE = 20.0
"""Seconds to wait while another process writes."""

BALLAST = 4 << 20
"""Bytes set aside beside the ledger; deleted when the disk is full, so that answers already paid for still fit."""

CHECKPOINT = 4000
"""Pages in the write-ahead log before they are moved to the file: 16 MB."""

OLDEST = (3, 35, 0)

ADDRESS = re.compile(r"^[A-Za-z][A-Za-z0-9+.-]+:[/\\]|\bpassword=")
"""How an address of a database looks, also once a path was made of it; a drive has one letter."""

FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_WRITE, sqlite3.SQLITE_IOERR_SHMSIZE}
"""A full disk as SQLite sees it: the last two are a quota, and a disk too full for its shared memory."""

BUSY = {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}

SHUT = {sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_AUTH}


def _first(db: sqlite3.Connection) -> None:
    """The first tables.

    `sends` counts grants; `at` is in milliseconds, of the answer or else of the last grant; latency in µs. Only a
    check's `at` is in nanoseconds: it tells apart the many that a probe makes of one question.
    `loose` is what was spent on no stored question: booked, forgotten, or asked by two ledgers that were merged.
    Spend is kept by session, so that merging a file twice, or a file and its copy, counts nothing twice.
    """
    db.execute(
        "CREATE TABLE classifiers(id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL UNIQUE,"
        " description TEXT NOT NULL DEFAULT '',"
        " loose_queries INTEGER NOT NULL DEFAULT 0, loose_micros INTEGER NOT NULL DEFAULT 0)"
    )
    db.execute("CREATE TABLE views(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE)")
    db.execute(
        "CREATE TABLE questions(key BLOB PRIMARY KEY, classifier INTEGER NOT NULL, digest NOT NULL,"
        " view INTEGER NOT NULL, seed INTEGER NOT NULL, number INTEGER NOT NULL,"
        " sends INTEGER NOT NULL, micros INTEGER NOT NULL, at INTEGER NOT NULL,"
        " label TEXT, score REAL, status INTEGER, latency INTEGER, attempts INTEGER, session INTEGER) WITHOUT ROWID"
    )
    db.execute("CREATE TABLE replies(key BLOB PRIMARY KEY, raw BLOB NOT NULL)")
    db.execute("CREATE TABLE checks(key BLOB, at INTEGER, label TEXT NOT NULL, PRIMARY KEY(key, at)) WITHOUT ROWID")
    db.execute("CREATE TABLE sessions(id INTEGER PRIMARY KEY, host TEXT, pid INTEGER, born TEXT, beat REAL)")
    db.execute(
        "CREATE TABLE spend(classifier INTEGER, day INTEGER, session INTEGER,"
        " queries INTEGER NOT NULL, micros INTEGER NOT NULL, PRIMARY KEY(classifier, day, session)) WITHOUT ROWID"
    )


def _outcomes(db: sqlite3.Connection) -> None:
    """Counts of queries by how they ended, on the day on which they were granted.

    `refused` got a reply without an answer; `waived` are those of them that are not billed, and so not in `queries`.
    """
    for column in ("answered", "refused", "waived"):
        db.execute(f"ALTER TABLE spend ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0")
    db.execute(ANSWERED_BEFORE)


def _commands(db: sqlite3.Connection) -> None:
    """Which command a session belonged to; NULL where that is not known."""
    db.execute("ALTER TABLE spend ADD COLUMN command TEXT")


def _options(db: sqlite3.Connection) -> None:
    """The ranked list of an answer; see `pack_options`."""
    db.execute("ALTER TABLE questions ADD COLUMN options TEXT")


def _bills(db: sqlite3.Connection) -> None:
    """The tokens of answers that are paid by the token, and what they come to; `micros` are then those of the bill."""
    for column in TOKENS:
        db.execute(f"ALTER TABLE questions ADD COLUMN {column} INTEGER")
    for column in BILLS:
        db.execute(f"ALTER TABLE spend ADD COLUMN {column} INTEGER NOT NULL DEFAULT 0")


def _batches(db: sqlite3.Connection) -> None:
    """Questions that are given to a vendor many at a time; `at` is in milliseconds."""
    db.execute(
        "CREATE TABLE batches(id INTEGER PRIMARY KEY, classifier INTEGER NOT NULL, session INTEGER NOT NULL,"
        " day INTEGER NOT NULL, command TEXT, at INTEGER NOT NULL, file TEXT, remote TEXT)"
    )
    for column in BATCHES:
        db.execute(f"ALTER TABLE questions ADD COLUMN {column} INTEGER")
    db.execute("CREATE INDEX batched ON questions(batch) WHERE batch IS NOT NULL")


def _learned(db: sqlite3.Connection) -> None:
    """The calls a second that sessions have learned classifiers take, each its own part; `at` is in milliseconds."""
    db.execute(
        "CREATE TABLE learned(classifier INTEGER, session INTEGER, rate REAL NOT NULL, at INTEGER NOT NULL,"
        " PRIMARY KEY(classifier, session)) WITHOUT ROWID"
    )


MIGRATIONS: list[Callable[[sqlite3.Connection], None]] = [
    _first, _outcomes, _commands, _options, _bills, _batches, _learned
]  # fmt: skip
"""What brings a ledger from each version to the next; only ever add to its end."""


def default_path() -> Path:
    """Where the ledger is unless the user says otherwise: with the project, or else in the folder for the user's data.

    The current folder or one above it is a project if it has a file `looktwice.toml` or a folder `.looktwice`; that of
    another user does not count, as anybody may make one in a folder that is open to all.
    """
    with suppress(OSError):  # the current folder may be gone
        here = Path.cwd()
        for folder in (here, *here.parents):
            if _is_ours(folder / PROJECT) or _is_ours(folder / "looktwice.toml"):
                return folder / PROJECT / "ledger.db"
    home = Path.home()
    if sys.platform == "win32":
        folder = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        folder = home / "Library" / "Application Support"
    else:
        stated = Path(os.environ.get("XDG_DATA_HOME", ""))
        folder = stated if stated.is_absolute() else home / ".local" / "share"
    return folder / "looktwice" / "ledger.db"


def _is_ours(mark: Path) -> bool:
    """Whether there is such a file or folder, and its owner is this user or the system's; root trusts all."""
    if not mark.exists():
        return False
    user = os.getuid() if hasattr(os, "getuid") else 0
    return user in (0, mark.stat().st_uid) or mark.stat().st_uid == 0


def writable(path: Path) -> sqlite3.Connection:
    """A connection for writing; the file and its folder are made if they are missing, an older file is brought up."""
    if sqlite3.sqlite_version_info < OLDEST:
        raise LedgerError(f"the ledger needs SQLite 3.35 or newer, this Python has {sqlite3.sqlite_version}")
    with explained(path):
        _make(path)
        inspect(path)
        db = _connect(path, "mode=rw")
        with closed_on_error(db):
            _migrate(db, path)
            _set_up(db, path)
    return db


def readable(path: Path) -> sqlite3.Connection:
    """A connection that changes nothing; works in a folder that nobody can write to, too."""
    with explained(path):
        inspect(path)
        db = _connect_reader(path)
        with closed_on_error(db):
            version = _version(db)
            for setting in ("query_only=ON", "cache_size=-16000", "temp_store=MEMORY"):
                db.execute(f"PRAGMA {setting}")
    if version < len(MIGRATIONS):
        db.close()
        raise LedgerError(f"ledger {str(path)!r} is of an older version; run any command that asks to bring it up")
    return db


def _connect_reader(path: Path) -> sqlite3.Connection:
    """SQLite puts shared memory beside the file, and with the right to write it clears that away afterwards.

    Where it may not, and no commits wait in the log, nobody can be writing: then the file is read as it is.
    """
    if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
        return _connect(path, "mode=rw")
    db = _connect(path, "mode=ro")
    try:
        _version(db)
    except sqlite3.OperationalError as error:
        db.close()
        log = path.with_name(path.name + "-wal")
        if _primary(error) not in SHUT or (log.exists() and log.stat().st_size > 0):
            raise
        return _connect(path, "mode=ro&immutable=1")
    return db


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
def explained(path: Path) -> Iterator[None]:
    """SQLite's and the system's failures inside come out as LedgerError."""
    try:
        yield
    except (sqlite3.Error, OSError, UnicodeDecodeError) as error:
        raise explain(path, error) from error


def explain(path: Path, error: Exception) -> LedgerError:
    """What a failure means for the user, in one line."""
    name = f"ledger {str(path)!r}"
    code = _primary(error)
    if code == sqlite3.SQLITE_FULL:
        return full(path)
    if code in BUSY:
        return LedgerError(
            f"{name} was locked by another program for more than {PATIENCE:.0f} s; end that program, "
            "and if the file is on a network drive move it to a local disk"
        )
    if code == sqlite3.SQLITE_CORRUPT or isinstance(error, UnicodeDecodeError):  # of words that are damaged, too
        return LedgerError(
            f"{name} is damaged ({error}); nothing was changed: restore a backup, or name another file with --ledger"
        )
    if code == sqlite3.SQLITE_NOTADB:
        return _foreign(path)
    if code in SHUT or isinstance(error, PermissionError):
        return LedgerError(f"{name} cannot be opened or written ({error}); change its rights or name another file")
    return LedgerError(f"{name} failed: {error}")


def full(path: Path) -> LedgerError:
    """The disk is full."""
    return LedgerError(
        f"the disk holding the ledger {str(path)!r} is full or its quota is used up; free some space and run again"
    )


def is_full(error: Exception) -> bool:
    """Whether freeing space may help."""
    return isinstance(error, sqlite3.Error) and _code(error) in FULL


def is_busy(error: Exception) -> bool:
    """Whether waiting may help."""
    return _primary(error) in BUSY


def keep_ballast(path: Path) -> bool:
    """Whether the reserve is on disk; it is laid down if it is missing."""
    reserve = _ballast(path)
    try:
        if reserve.stat().st_size == BALLAST:
            return True
    except OSError:
        pass
    try:
        # Noise, because a file system that compresses would keep nothing free behind a file of zeros.
        reserve.touch(0o600)
        reserve.write_bytes(os.urandom(BALLAST // 4) * 4)
    except OSError:
        drop_ballast(path)
        return False
    return True


def drop_ballast(path: Path) -> None:
    """Free the reserve."""
    with suppress(OSError):
        _ballast(path).unlink()


def _ballast(path: Path) -> Path:
    return path.with_name(path.name + ".ballast")


def _refuse_address(path: Path) -> None:
    """Refuse the address of a database in place of a path: its password would become the name of a folder."""
    if ADDRESS.search(str(path)):
        raise LedgerError(
            "the ledger's place is an address and not the path of a file; commands that ask take "
            "postgresql://user@host/database, and the others are for files: use PostgreSQL's own tools there"
        )


def _make(path: Path) -> None:
    _refuse_address(path)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    if path.is_dir():
        raise LedgerError(f"{str(path)!r} is a folder; the ledger needs the name of a file")
    with suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    if not (os.access(path, os.R_OK | os.W_OK) and os.access(path.parent, os.W_OK)):
        raise LedgerError(f"ledger {str(path)!r} or its folder is read-only; change its rights or name another file")
    if path.stat().st_nlink > 1:
        # SQLite keeps its log beside each name, and commits of one would be lost under the other.
        raise LedgerError(
            f"ledger {str(path)!r} is one file with another name (a hard link), which damages it when both are used; "
            "delete the other name, or copy the file and use the copy"
        )


def inspect(path: Path) -> None:
    """Look at the header before SQLite does, so that a file that is not ours stays as it is to the last byte."""
    _refuse_address(path)
    try:
        with path.open("rb") as file:
            head = file.read(100)
    except FileNotFoundError:
        raise LedgerError(f"there is no ledger {str(path)!r}") from None
    if len(head) == 100 and _mark(head) == FORMER:
        raise LedgerError(
            f"{str(path)!r} is a ledger of secondlook, as looktwice was called before; its questions are named "
            "otherwise, so none of its answers can be used: keep it for your records and name "
            "another file with --ledger"
        )
    if head and (len(head) < 100 or not head.startswith(b"SQLite format 3\0") or _mark(head) != APPLICATION):
        raise _foreign(path)
    if head and int.from_bytes(head[60:64], "big") > len(MIGRATIONS):
        raise _newer(path)


def _mark(head: bytes) -> int:
    return int.from_bytes(head[68:72], "big")


def _foreign(path: Path) -> LedgerError:
    return LedgerError(f"{str(path)!r} is not a ledger of looktwice; name another file with --ledger")


def _newer(path: Path) -> LedgerError:
    return LedgerError(f"ledger {str(path)!r} was written by a newer looktwice; upgrade with: pip install -U looktwice")


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    """All steps in one transaction; a new file is made before WAL mode, so that its header always carries our mark."""
    if _version(db) == len(MIGRATIONS):
        return
    db.execute("BEGIN IMMEDIATE")
    version = _version(db)
    if version > len(MIGRATIONS):
        raise _newer(path)
    for step in MIGRATIONS[version:]:
        step(db)
    db.execute(f"PRAGMA application_id={APPLICATION}")
    db.execute(f"PRAGMA user_version={len(MIGRATIONS)}")
    db.execute("COMMIT")


def _set_up(db: sqlite3.Connection, path: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while (mode := _journal(db)) == "busy" and time.monotonic() < deadline:
        time.sleep(0.01)
    if mode != "wal":
        raise LedgerError(f"ledger {str(path)!r} is on a drive that cannot share memory; move it to a local disk")
    for setting in (
        "synchronous=FULL",
        "fullfsync=ON",
        "cache_size=-16000",
        f"wal_autocheckpoint={CHECKPOINT}",
        "secure_delete=ON",
    ):
        db.execute(f"PRAGMA {setting}")


def _journal(db: sqlite3.Connection) -> str:
    """The journal mode after asking for WAL; SQLite does not wait here if another process asks at the same time."""
    try:
        return str(db.execute("PRAGMA journal_mode=WAL").fetchone()[0])
    except sqlite3.OperationalError as error:
        if is_busy(error):
            return "busy"
        raise


def _version(db: sqlite3.Connection) -> int:
    return int(db.execute("PRAGMA user_version").fetchone()[0])


@contextmanager
def closed_on_error(db: sqlite3.Connection) -> Iterator[None]:
    """Whatever is raised inside leaves no connection open."""
    try:
        yield
    except BaseException:
        db.close()
        raise


def _code(error: Exception) -> int:
    return int(getattr(error, "sqlite_errorcode", 0))


def _primary(error: Exception) -> int:
    return _code(error) & 0xFF


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
        self._file = path.stat()

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

    def committed(self) -> bool:
        return False  # a commit that fails is rolled back

    def roll_back(self) -> None:
        with suppress(sqlite3.Error):
            self._db.execute("ROLLBACK")

    def close(self) -> None:
        self._db.close()

    def again(self, error: Exception) -> bool:
        return False

    def passes(self, error: Exception) -> bool:
        return is_busy(error) or is_full(error)

    def explain(self, error: Exception) -> LedgerError:
        return error if isinstance(error, LedgerError) else explain(self._path, error)

    def has_room(self) -> bool:
        try:
            there = os.path.samestat(self._file, self._path.stat())
        except OSError:
            there = False
        if not there:  # what is written would be lost with the open file
            raise LedgerError(
                f"ledger {str(self._path)!r} was deleted, moved or replaced while it was in use, so nothing more is "
                "asked; put it back, or run again to begin a new one"
            )
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
    return f"SELECT key, label, score, options, status, session, batch, at FROM questions WHERE key IN ({_marks(rows)})"  # noqa: S608


@cache
def _asking(rows: int) -> str:
    return (
        "INSERT INTO questions(key, classifier, digest, view, seed, number, micros, at, session, sends)"  # noqa: S608
        f" VALUES {_values('?, ?, ?, ?, ?, ?, ?, ?, ?, 1', rows)}"
    )


@cache
def _answering(rows: int) -> str:
    columns = ("label", "score", "options", "status", "latency", "attempts", "at", *TOKENS)
    return (
        f"WITH new(key, {', '.join(columns)}) AS (VALUES {_values(_marks(1 + len(columns)), rows)})"  # noqa: S608
        f" UPDATE questions SET {', '.join(f'{column} = new.{column}' for column in columns)}, session = NULL"
        " FROM new WHERE questions.key = new.key AND questions.label IS NULL"
    )


def _marks(n: int) -> str:
    return ", ".join("?" * n)


def _values(row: str, rows: int) -> str:
    return ", ".join([f"({row})"] * rows)


def _flat(rows: Sequence[Row]) -> list[Value]:
    return [value for row in rows for value in row]
