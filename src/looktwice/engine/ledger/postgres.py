"""A ledger in a PostgreSQL database (extra `postgres`), shared by several machines or runs.

`postgresql://user@host/database`, or any other form that libpq reads. Its tables are in the schema `looktwice`, which
is created if missing. Passwords should be stored in `~/.pgpass` or `PGPASSWORD`.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing, suppress
from functools import cache
from typing import Any, TypeVar

from looktwice.engine.ledger import schema
from looktwice.engine.ledger.schema import Row
from looktwice.errors import LedgerError, MissingExtra

try:
    import psycopg
    from psycopg import errors
    from psycopg.abc import PQGen
    from psycopg.conninfo import conninfo_to_dict
except ImportError:
    raise MissingExtra("PostgreSQL ledgers", "postgres") from None

T = TypeVar("T")

OLDEST = 130_000
"""The oldest supported version of the server."""
PATIENCE = 20.0
"""The time in seconds to wait for other transactions, and for an unreachable server when the ledger is opened or
read."""
SILENCE = 60.0
"""Seconds after which a statement without a reply fails: a proxy may keep connections alive without its server."""
LOCK = int.from_bytes(b"lkt2", "big")
"""The advisory lock that serialises decisions."""
TYPES = {"BLOB": "BYTEA", "INTEGER": "BIGINT", "REAL": "DOUBLE PRECISION"}
SETTINGS = (
    "SET search_path = looktwice",
    # A session that vanishes during a transaction must not block the others for long.
    f"SET idle_in_transaction_session_timeout = '{PATIENCE:.0f}s'",
    f"SET lock_timeout = '{PATIENCE:.0f}s'",
    "SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'",
)


class Connection(psycopg.Connection[Row]):
    """A connection that never waits indefinitely for a reply."""

    def wait(self, gen: PQGen[T], *rest: Any, **more: Any) -> T:
        return super().wait(_until(time.monotonic() + SILENCE, gen), *rest, **more)


def _until(deadline: float, gen: PQGen[T]) -> PQGen[T]:
    """Run a generator of the driver, polling for a reply several times per second until a deadline."""
    try:
        wanted = next(gen)
        while time.monotonic() < deadline:
            wanted = gen.send((yield wanted))
    except StopIteration as end:
        return end.value
    raise psycopg.OperationalError("the server does not reply")


class PostgresDatabase:
    """Two connections, one for writing and one for reading; each is reopened when it breaks."""

    shared = lasting = True
    errors: tuple[type[Exception], ...] = (psycopg.Error,)

    def __init__(self, address: str) -> None:
        self.name = _name(address)
        self._address = address
        self._reading = threading.Lock()
        with ExitStack() as opened:
            try:
                self._db = opened.enter_context(closing(self._connect()))
                self._reader = opened.enter_context(closing(self._connect()))
                self._create()
            except psycopg.Error as error:
                raise self.explain(error) from None
            opened.pop_all()

    def begin(self) -> float:
        if self._db.closed:
            self._db = self._connect()
        self._db.execute("BEGIN")
        # The clock is read after the lock is held: times follow the order of decisions.
        self._db.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK,))
        return self._now()

    def execute(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        cursor = self._db.execute(_marked(statement), values)
        return cursor.fetchall() if cursor.description else []

    def execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        if rows:
            with self._db.cursor() as cursor:
                cursor.executemany(_marked(statement), rows)

    def commit(self) -> None:
        self._db.execute("COMMIT")

    def roll_back(self) -> None:
        with suppress(psycopg.Error):
            self._db.execute("ROLLBACK")

    def read(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        until = time.monotonic() + PATIENCE
        with self._reading:
            while True:
                try:
                    if self._reader.closed:
                        self._reader = self._connect()
                    return self._reader.execute(_marked(statement), values).fetchall()
                except psycopg.OperationalError:
                    self._reader.close()
                    if time.monotonic() > until:
                        raise
                time.sleep(0.2)

    def explain(self, error: Exception) -> LedgerError:
        if isinstance(error, LedgerError):
            return error
        if isinstance(error, errors.DiskFull):
            return LedgerError(f"the disk of {self.name} is full; free some space and run again", code="disk-full")
        why = " ".join(str(error).split())
        for kind, meaning in MEANINGS:
            if isinstance(error, kind):
                return LedgerError(f"{self.name} {meaning.format(why)}")
        return LedgerError(f"{self.name} failed: {why}")

    def may_pass(self, error: Exception) -> bool:
        stalled = isinstance(error, errors.IdleInTransactionSessionTimeout)  # this process was stopped in the midst
        if stalled or (isinstance(error, psycopg.OperationalError) and error.sqlstate is None):
            self._db.close()  # it broke; the next try opens another
        return stalled or isinstance(error, psycopg.OperationalError | errors.DiskFull)

    def is_full(self, error: Exception) -> bool:
        return isinstance(error, errors.DiskFull)

    def close(self) -> None:
        self._db.close()
        with self._reading:  # a thread may be looking something up
            self._reader.close()

    def _now(self) -> float:
        return float(self.execute("SELECT extract(epoch FROM clock_timestamp())::float8")[0][0])

    def _connect(self) -> Connection:
        db = Connection.connect(
            self._address,
            autocommit=True,
            connect_timeout=10,
            application_name="looktwice",
            target_session_attrs="read-write",  # a server that takes over from another only reads at first
            keepalives_idle=10,
            keepalives_interval=5,
            keepalives_count=3,
            tcp_user_timeout=25_000,
        )
        for setting in SETTINGS:
            db.execute(setting)
        return db

    def _create(self) -> None:
        """Create missing tables."""
        if self._db.info.server_version < OLDEST:
            raise LedgerError(
                f"{self.name} runs on PostgreSQL {self._db.info.server_version // 10_000}; 13 or newer is required",
                code="ledger-unsupported",
            )
        with self._db.transaction():
            if not self.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'looktwice'"):
                self.execute("SELECT pg_advisory_xact_lock(?)", (LOCK,))
            if not self.execute("SELECT 1 FROM pg_namespace WHERE nspname = 'looktwice'"):
                self.execute("CREATE SCHEMA looktwice")
                self.execute("CREATE TABLE ledger2(version BIGINT NOT NULL)")
                self.execute(f"INSERT INTO ledger2 VALUES ({schema.VERSION})")
                for table in schema.TABLES:
                    self.execute(f"CREATE TABLE {_typed(table)}")
                self.execute(schema.OPEN_CLAIMS)
        if not self.execute("SELECT 1 FROM pg_tables WHERE schemaname = 'looktwice' AND tablename = 'ledger2'"):
            raise LedgerError(
                f"{self.name} has a schema looktwice that is not a ledger of this version; specify another database",
                code="ledger-foreign",
            )
        if self.execute("SELECT version FROM ledger2")[0][0] > schema.VERSION:
            raise LedgerError(
                f"{self.name} was written by a newer looktwice; upgrade with: pip install -U looktwice",
                code="ledger-newer",
            )


MEANINGS: tuple[tuple[type[Exception], str], ...] = (
    (
        errors.LockNotAvailable,
        f"was locked for more than {PATIENCE:.0f} s; check which client keeps a transaction open there",
    ),
    (errors.InsufficientPrivilege, "does not permit this ({}); grant it the right to create a schema"),
    (errors.UndefinedTable, "has a schema looktwice that is not a ledger; specify another database"),
    (psycopg.OperationalError, "cannot be reached: {}; run again when it can be reached; nothing on disk is lost"),
)


def _name(address: str) -> str:
    """The display name of the ledger: its address without user and password."""
    parts: dict[str, str | int | None] = {}
    with suppress(psycopg.ProgrammingError):
        parts = conninfo_to_dict(address)
    host, port, database = (str(parts.get(part) or "") for part in ("host", "port", "dbname"))
    if not parts or not f"0{port}".isdigit() or "@" in host + database:
        # To say what is wrong could show a part of the password.
        raise LedgerError(
            "the address of the PostgreSQL ledger cannot be read; write postgresql://user@host/database, with % codes "
            "for special characters in a password",
            code="ledger-invalid",
        )
    return f"ledger postgresql://{host}{':' if port else ''}{port}/{database}"


@cache
def _marked(statement: str) -> bytes:
    """Translate placeholders to psycopg's."""
    return statement.replace("?", "%s").encode()


def _typed(table: str) -> str:
    """Translate a table definition to PostgreSQL's types."""
    for ours, theirs in TYPES.items():
        table = table.replace(f" {ours}", f" {theirs}")
    return table
