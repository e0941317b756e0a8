"""The ledger: claim a query before it is sent, settle it afterwards; every decision is one transaction.

One thread writes. Queued operations are committed together, in the order of the queue, so that the database always
contains a prefix of the queue.

A ledger is a file, a PostgreSQL database, or the memory of this process. Within a process there is one per location,
shared by all models: one writing connection, one session. A forked child process opens its own ledger, and never uses
the inherited connections.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
import zlib
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

from looktwice.engine.budget import Spend
from looktwice.engine.ledger import schema
from looktwice.engine.ledger.schema import (
    PATIENCE,
    Account,
    Claim,
    Database,
    Entry,
    Granted,
    OpenBatch,
    Outcome,
    Row,
    Session,
    Settled,
    Stored,
)
from looktwice.engine.ledger.sqlite import SqliteDatabase
from looktwice.engine.ledger.transaction import (
    BEAT,
    DAY,
    DEAD,
    MOST_TOGETHER,
    Alive,
    Transaction,
    living,
    new_session,
    stored,
)
from looktwice.errors import LedgerError, require_posix

POSTGRES = ("postgresql://", "postgres://")
MEMORY = "memory"
OFF = "off"

RETRY = 0.05
"""Seconds until a transient failure is retried."""


@dataclass(eq=False, slots=True)
class _Operation:
    """A queued operation; its future is resolved in its own loop after the commit."""

    work: Callable[[Transaction], Any]
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    keys: Sequence[bytes] = ()
    """The keys of the queries that the operation claims, which are looked up beforehand."""
    result: Any = None

    def fail(self, error: Exception) -> None:
        def deliver() -> None:
            if not self.future.done():
                self.future.set_exception(error)

        with suppress(RuntimeError):  # the loop is closed
            self.loop.call_soon_threadsafe(deliver)


class Ledger:
    """The ledger; safe to use from any thread and loop."""

    def __init__(self, database: Database, alive: Alive = living) -> None:
        self.database = database
        self.session = new_session()
        self._alive = alive
        self._queue: SimpleQueue[_Operation | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._open: set[bytes] = set()
        """The open claims of this session."""
        self._number = 0
        """The number of transactions that this session has committed."""
        self._beat_at = float("-inf")
        """The time of the last heartbeat, by this machine's clock."""
        self._lapsed: set[bytes] = set()
        """The queries that were in flight during a long pause between heartbeats; other machines may have claimed
        them."""
        self._offset = 0.0
        """The offset of the ledger's clock from this machine's clock."""
        self._closing = False
        self.holders = 0
        """The number of models that share the ledger."""

    # Reading -------------------------------------------------------------------------------------------------------

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Stored]:
        """The stored answers to these queries; keys without an answer are left out."""
        answers: dict[bytes, Stored] = {}
        for start in range(0, len(keys), MOST_TOGETHER):
            part = keys[start : start + MOST_TOGETHER]
            for key, _, picos, *answer in self._read(schema.known_rows(len(part)), part):
                if answer[0] is not None:
                    answers[bytes(key)] = stored(picos, answer)
        return answers

    def reply(self, key: bytes) -> bytes | None:
        """The raw reply behind an answer; None if the reply was too long to be stored or the classifier returned
        none."""
        rows = self._read("SELECT raw FROM replies WHERE key = ?", (key,))
        return zlib.decompress(bytes(rows[0][0])) if rows else None

    def spend(self, *fingerprints: str) -> Spend:
        """The total spend on these classifiers so far."""
        days, ids = (self.today(), self.today()), map(schema.classifier_id, fingerprints)
        return Spend.total(Spend(*map(int, *self._read(schema.SPENT, (*days, who)))) for who in ids)

    def alarm(self, profile: str) -> schema.Alarm | None:
        """The drift alarm of this profile, if any."""
        rows = self._read("SELECT since, pictures, needed FROM alarms WHERE profile = ?", (profile,))
        return schema.Alarm(*rows[0]) if rows else None

    def open_batches(self, fingerprint: str) -> list[OpenBatch]:
        """The batches with queries without a result, oldest first."""
        who = schema.classifier_id(fingerprint)
        keys: dict[int, list[bytes]] = defaultdict(list)
        for key, batch in self._read(
            "SELECT q.key, b.id FROM queries q JOIN batches b ON q.session = b.id WHERE b.classifier = ?", (who,)
        ):
            keys[int(batch)].append(bytes(key))
        sessions = self._read("SELECT id, host, pid, born, beat FROM sessions")
        alive = self._alive([Session(*row) for row in sessions], self.now()) - {self.session.id}
        rows = self._read("SELECT id, file, remote, at, owner FROM batches WHERE classifier = ? ORDER BY at", (who,))
        return [
            OpenBatch(id, file, remote, at, tuple(keys[id]), owner in alive)
            for id, file, remote, at, owner in rows
            if id in keys
        ]

    def known_batches(self, fingerprint: str) -> frozenset[str]:
        """The vendor's ids of all batches on record."""
        who = schema.classifier_id(fingerprint)
        rows = self._read("SELECT remote FROM batches WHERE classifier = ? AND remote IS NOT NULL", (who,))
        return frozenset(str(remote) for (remote,) in rows)

    def _read(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        if self._closing:
            raise LedgerError("the ledger is closed", code="ledger-closed")
        try:
            return self.database.read(statement, values)
        except self.database.errors as error:
            raise self.database.explain(error) from error

    def now(self) -> float:
        """The time by the ledger's clock."""
        return time.time() + self._offset

    def today(self) -> int:
        """The UTC day by the ledger's clock."""
        return int(self.now() // DAY)

    def is_current(self, claim: Claim) -> bool:
        """Whether a claim may still be sent: its day is not over, and no other machine can have presumed this session
        dead."""
        alive = _clock() - self._beat_at < DEAD / 2 and claim.entry.key not in self._lapsed
        return alive and claim.day == self.today()

    # Writing -------------------------------------------------------------------------------------------------------

    def claim(self, account: Account, requests: Sequence[tuple[Entry, int]]) -> asyncio.Future[list[Granted]]:
        """Claim queries; returns after the commit. Each request is a query and its maximum cost, in picos.

        A granted query is in flight until it is settled or this session has ended. With a rate limit, each claim has a
        send time, so that the limit holds across all sessions.
        """
        return self._put(lambda transaction: transaction.claim(account, requests), [entry.key for entry, _ in requests])

    def settle(self, claim: Claim, settled: Settled) -> asyncio.Future[None]:
        """Queue the settlement of a claim; only the first settlement takes effect. The future is resolved after the
        commit."""
        if claim.entry.key not in self._open:
            return self._put(lambda _: None)
        self._open.discard(claim.entry.key)
        return self._put(lambda transaction: transaction.settle(claim, settled))

    def change(self, work: Callable[[Transaction], Any]) -> asyncio.Future[Any]:
        """Run `work` inside a transaction; returns its result after the commit."""
        return self._put(work)

    def close(self) -> None:
        """Write what is queued, end the session and close the database; may be called twice."""
        if self._closing:
            return
        self._closing = True
        if self._thread:
            self._queue.put(None)
            self._thread.join()
        self.database.close()

    def _put(self, work: Callable[[Transaction], Any], keys: Sequence[bytes] = ()) -> asyncio.Future[Any]:
        if self._closing:
            raise LedgerError("the ledger is closed", code="ledger-closed")
        if self._thread is None:
            self._thread = Thread(target=self._live, name="ledger", daemon=True)
            self._thread.start()
        loop = asyncio.get_running_loop()
        operation = _Operation(work, loop, loop.create_future(), keys)
        self._queue.put(operation)
        return operation.future

    # The thread that writes ------------------------------------------------------------------------------------------

    def _live(self) -> None:
        more = True
        while more:
            operations, more = self._take()
            if operations or (self._open and _clock() - self._beat_at >= BEAT):
                self._write(operations)
        with suppress(LedgerError, *self.database.errors):
            if self._number:
                self.database.begin()
                self.database.execute("DELETE FROM sessions WHERE id = ?", (self.session.id,))
                self.database.commit()

    def _take(self) -> tuple[list[_Operation], bool]:
        """Wait for queued operations; returns them, and whether more may follow."""
        operations: list[_Operation] = []
        with suppress(Empty):
            operation = self._queue.get(timeout=BEAT if self._open else None)
            while operation is not None:
                operations.append(operation)
                if len(operations) == MOST_TOGETHER:
                    return operations, True
                operation = self._queue.get_nowait()
            return operations, False
        return operations, True

    def _write(self, operations: list[_Operation]) -> None:
        """Commit operations together; transient failures are retried, but no claim is granted on a full disk."""
        until, in_doubt = time.monotonic() + PATIENCE, False
        while True:
            transaction, began = Transaction(self.database, self.session, self._alive), _clock()
            beats = self.database.shared or began - self._beat_at >= BEAT
            try:
                transaction.begin()
                if in_doubt and transaction.number() == self._number + 1:
                    self.database.roll_back()  # the last try was committed, and only its confirmation was lost
                else:
                    self._apply(transaction, operations)
                    transaction.finish(self._number + 1, beats)
                    in_doubt = self.database.shared
                    self.database.commit()
                break
            except Exception as error:
                self.database.roll_back()
                known = isinstance(error, self.database.errors)
                problem = self.database.explain(error) if known else error
                full = known and self.database.is_full(error)
                passes = known and self.database.may_pass(error) and time.monotonic() < until
                for operation in operations:
                    if not passes or (full and operation.keys):
                        operation.fail(problem)
                operations = [each for each in operations if passes and not (full and each.keys)]
                if not operations:
                    return
            time.sleep(RETRY)
        self._number += 1
        if beats:
            self._lapsed = self._open.copy() if began - self._beat_at > DEAD / 2 else self._lapsed & self._open
            self._beat_at = began
        self._offset = transaction.now - time.time()
        self._hand_over(operations)

    def _apply(self, transaction: Transaction, operations: Sequence[_Operation]) -> None:
        """Apply operations: settlements first, then claims."""
        claiming = [operation for operation in operations if operation.keys]
        for operation in operations:
            if not operation.keys:
                operation.result = operation.work(transaction)
        transaction.write_settled()
        transaction.look_up([key for operation in claiming for key in operation.keys])
        for operation in claiming:
            operation.result = operation.work(transaction)

    def _hand_over(self, operations: Sequence[_Operation]) -> None:
        """Resolve the futures, with one wake-up of each loop."""
        by_loop: dict[asyncio.AbstractEventLoop, list[_Operation]] = defaultdict(list)
        for operation in operations:
            if operation.keys:
                self._open.update(each.entry.key for each in operation.result if isinstance(each, Claim))
            by_loop[operation.loop].append(operation)
        for loop, part in by_loop.items():
            with suppress(RuntimeError):  # the loop is closed; what was written is kept
                loop.call_soon_threadsafe(self._deliver, part)

    def _deliver(self, operations: Sequence[_Operation]) -> None:
        for operation in operations:
            if not operation.future.done():
                operation.future.set_result(operation.result)
            else:  # whoever asked for it has left
                for granted in operation.result if operation.keys else ():
                    if isinstance(granted, Claim):
                        self.settle(granted, Settled(granted.entry.key, Outcome.UNSENT))


def _clock() -> float:
    """A monotonic clock that includes time asleep."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


# Where it is -----------------------------------------------------------------------------------------------------


_OPEN: dict[tuple[object, ...], Ledger] = {}
"""Open ledgers by process and location; a parent process's ledgers stay here after a fork, so that the child never
closes them."""
_OPENING = threading.RLock()


def open_ledger(place: str) -> Ledger:
    """Open the ledger at a location: a path, `postgresql://…`, `memory` for the lifetime of this process, or `off`
    for a private one. Release it with `close_ledger`."""
    if place == OFF:
        return Ledger(SqliteDatabase(None))
    if place != MEMORY:
        require_posix("a ledger that persists after the run")  # on Windows, signal 0 ends a process
    with _OPENING:
        ledger = _OPEN.get(_identity(place)) or Ledger(open_database(place))
        _OPEN[_identity(place)] = ledger
        ledger.holders += 1
        return ledger


def close_ledger(ledger: Ledger) -> None:
    """Release a ledger; the last release closes it, unless it is that of the process's memory."""
    with _OPENING:
        ledger.holders -= 1
        known = [identity for identity, shared in _OPEN.items() if shared is ledger]
        if ledger.holders > 0 or known == [_identity(MEMORY)]:
            return
        for identity in known:
            del _OPEN[identity]
        ledger.close()


def open_database(place: str) -> Database:
    """Open the database at a location; a missing file is created."""
    if place == MEMORY:
        return SqliteDatabase(None)
    if place.startswith(POSTGRES):
        from looktwice.engine.ledger.postgres import PostgresDatabase

        return PostgresDatabase(place)
    return SqliteDatabase(Path(place))


def _identity(place: str) -> tuple[object, ...]:
    """The identity of a ledger: the process, and the file behind a path."""
    if place == MEMORY or place.startswith(POSTGRES):
        return os.getpid(), place
    try:
        file = Path(place).stat()
    except OSError:
        return os.getpid(), place
    return os.getpid(), file.st_dev, file.st_ino


def _close_all() -> None:
    """Close all ledgers at the normal end of a process, even after errors."""
    for (pid, *_), ledger in list(_OPEN.items()):
        if pid == os.getpid():
            ledger.close()


atexit.register(_close_all)


def _reset_lock() -> None:
    global _OPENING  # noqa: PLW0603  # another thread of the parent may have held it
    _OPENING = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_lock)
