"""The tables as the writer keeps them: one batch of operations becomes one transaction."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import cache
from typing import NamedTuple, TypeVar

from secondlook.ledger.file import PATIENCE, Value, is_busy, pack
from secondlook.ledger.operations import Batch, Booking, Check, Intent, Introduction, Record
from secondlook.ledger.protocol import CUT, RAW_LIMIT, Spend
from secondlook.ledger.sessions import BEAT, Session, beat, leave, living, strike_off_dead
from secondlook.votes import Answer

BLOCK = 256
"""Rows in one statement, at most. The interpreter lock is dropped and fought for once a statement: one row a statement
cost a busy sender 15 to 90 µs a question, and blocks 13 to 28."""
DAY = 86_400

Row = tuple[Value, ...]
T = TypeVar("T")


class Stamp(NamedTuple):
    """As what the last grant of a question was counted."""

    classifier: int
    day: int
    price: int


class Known(NamedTuple):
    """What the table says about a question."""

    label: str | None
    score: float | None
    status: int | None
    session: int | None


class Books:
    """The tables, and what this session remembers of them. Only one thread may use it."""

    def __init__(self, db: sqlite3.Connection, session: Session) -> None:
        self._db = db
        self._db.execute("PRAGMA busy_timeout=0")  # see _begin
        self._session = session
        self.stamps: dict[bytes, Stamp] = {}
        """The questions this session has in flight."""
        self._views: dict[str, int] = {}
        self._classifiers: dict[str, int] = {}
        self._spends: dict[int, Spend] = {}
        """What was spent on each classifier, with today's part; right while `_day` and `_version` are."""
        self._changes: dict[tuple[int, int], list[int]] = {}
        """Queries and micros to add, by classifier and day."""
        self._day = -1
        self._version = -1
        self._beaten: float | None = None

    def due(self, now: float) -> bool:
        """Whether others must hear that we live: there is something in flight, and the last sign is old."""
        return bool(self.stamps) and self._late(now)

    def write(self, batch: Batch, now: float) -> None:
        """Commit a batch: it is on disk when this returns, and nothing of it is if this raises."""
        self._begin()
        try:
            late = self._apply(batch, now)
            self._db.execute("COMMIT")
        except BaseException:
            self._roll_back()
            raise
        self._beaten = now if late else self._beaten
        self._remember(batch)

    def close(self) -> None:
        """Strike the session off and close the file."""
        with suppress(sqlite3.Error):
            if self._beaten is not None:
                self._begin()
                leave(self._db, self._session)
                self._db.execute("COMMIT")
        self._db.close()

    def _begin(self) -> None:
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

    def _apply(self, batch: Batch, now: float) -> bool:
        at = int(now * 1000)
        self._refresh(int(now // DAY))
        self._answer(batch.records, at, batch.raw)
        self._give_back(batch.released)
        self._surrender(batch.surrendered)
        self._grant(batch.intents, at)
        self._book(batch.bookings)
        self._check(batch.checks)
        self._introduce(batch.introductions)
        self._save_changes()
        return self._sign(now)

    def _roll_back(self) -> None:
        with suppress(sqlite3.Error):
            self._db.execute("ROLLBACK")
        for memory in (self._views, self._classifiers, self._spends, self._changes):
            memory.clear()

    def _refresh(self, day: int) -> None:
        """Forget the sums if another process has written since, or the day is over."""
        version = self._db.execute("PRAGMA data_version").fetchone()[0]
        if (version, day) != (self._version, self._day):
            self._spends.clear()
            self._version, self._day = version, day

    def _remember(self, batch: Batch) -> None:
        for record in batch.records:
            self.stamps.pop(record.key, None)
        for key in (*batch.released, *batch.surrendered):
            self.stamps.pop(key, None)
        for intent in batch.intents:
            stamp = Stamp(intent.classifier, self._day, intent.price)
            self.stamps.update(dict.fromkeys(intent.grant.granted, stamp))

    def _answer(self, records: Sequence[Record], at: int, raw: bool) -> None:
        """The first answer to a question stays; a second one can only come from a session that was taken for dead."""
        rows = [
            (key, answer.label, answer.score, answer.status, int(latency * 1e6), attempts, at)
            for key, answer, latency, attempts in records
        ]
        for block in blocks(rows):
            self._db.execute(_answering(len(block)), _flat(block))
        replies = [(r.key, _cut(r.answer.raw)) for r in records if raw and r.answer.raw is not None]
        self._db.executemany("INSERT OR IGNORE INTO replies VALUES (?, ?)", replies)

    def _give_back(self, keys: Sequence[bytes]) -> None:
        stamped = [(key, stamp) for key in keys if (stamp := self.stamps.get(key))]
        for _, (classifier, day, price) in stamped:
            self._count(classifier, day, -1, -price)
        self._db.executemany(
            "UPDATE questions SET sends = sends - 1, micros = micros - ? WHERE key = ?",
            [(stamp.price, key) for key, stamp in stamped],
        )
        self._db.executemany(
            "DELETE FROM questions WHERE key = ? AND sends = 0 AND label IS NULL", [(key,) for key, _ in stamped]
        )

    def _surrender(self, keys: Sequence[bytes]) -> None:
        self._db.executemany(
            "UPDATE questions SET session = NULL WHERE key = ? AND session = ?",
            [(key, self._session.id) for key in keys],
        )

    def _grant(self, intents: Sequence[Intent], at: int) -> None:
        known = self._known([key for intent in intents for key in intent.entries])
        others = self._others(known, at / 1000)
        for intent in intents:
            self._decide(intent, known, others)
        fresh = [row for intent in intents for row in self._fresh(intent, known, at)]
        for block in blocks(fresh):
            self._db.execute(_asking(len(block)), _flat(block))
        again = [
            (intent.price, self._session.id, at, key)
            for intent in intents
            for key in intent.grant.granted
            if key in known
        ]
        self._db.executemany(
            "UPDATE questions SET sends = sends + 1, micros = micros + ?, session = ?, at = ? WHERE key = ?", again
        )

    def _known(self, keys: Sequence[bytes]) -> dict[bytes, Known]:
        rows = (row for block in blocks(keys) for row in self._db.execute(looking(len(block)), block))
        return {row[0]: Known(*row[1:]) for row in rows}

    def _others(self, known: dict[bytes, Known], now: float) -> set[int]:
        """The living sessions other than this one that have any of these questions in flight."""
        sessions = {row.session for row in known.values() if row.label is None} - {None, self._session.id}
        return living(self._db, now) & sessions if sessions else set()

    def _decide(self, intent: Intent, known: dict[bytes, Known], others: set[int]) -> None:
        intent.classifier = self._classifier(intent.fingerprint)
        room = intent.budget.room(self._spend(intent.classifier), intent.price)
        granted, answered, held, refused = (
            intent.grant.granted,
            intent.grant.answered,
            intent.grant.held,
            intent.grant.refused,
        )
        for key in intent.entries:
            row = known.get(key)
            if row and row.label is not None:
                answered[key] = Answer(row.label, row.score, row.status)
            elif row and row.session in others:
                held.append(key)
            elif len(granted) < room:
                granted.append(key)
            else:
                refused.append(key)
        self._count(intent.classifier, self._day, len(granted), len(granted) * intent.price)

    def _fresh(self, intent: Intent, known: dict[bytes, Known], at: int) -> Iterator[Row]:
        classifier, price, session = intent.classifier, intent.price, self._session.id
        for granted in intent.grant.granted:
            if granted not in known:
                key, digest, view, seed, index = intent.entries[granted]
                yield key, classifier, pack(digest), self._view(view), seed, index, price, at, session

    def _book(self, bookings: Sequence[Booking]) -> None:
        for booking in bookings:
            classifier, micros = self._classifier(booking.fingerprint), booking.queries * booking.price
            room = booking.budget.room(self._spend(classifier), booking.price)
            booking.covered = booking.queries <= room
            if booking.covered:
                self._count(classifier, self._day, booking.queries, micros)
                self._db.execute(
                    "UPDATE classifiers SET loose_queries = loose_queries + ?, loose_micros = loose_micros + ?"
                    " WHERE id = ?",
                    (booking.queries, micros, classifier),
                )

    def _check(self, checks: Sequence[Check]) -> None:
        self._db.executemany("INSERT OR IGNORE INTO checks VALUES (?, ?, ?)", checks)

    def _introduce(self, introductions: Sequence[Introduction]) -> None:
        for fingerprint, description in introductions:
            self._db.execute(
                "UPDATE classifiers SET description = ? WHERE id = ?", (description, self._classifier(fingerprint))
            )

    def _count(self, classifier: int, day: int, queries: int, micros: int) -> None:
        more = self._changes.setdefault((classifier, day), [0, 0])
        more[0] += queries
        more[1] += micros
        if old := self._spends.get(classifier):
            today = int(day == self._day)
            self._spends[classifier] = Spend(
                old.queries + queries,
                old.micros + micros,
                old.queries_today + today * queries,
                old.micros_today + today * micros,
            )

    def _spend(self, classifier: int) -> Spend:
        if classifier not in self._spends:
            self._spends[classifier] = spend(self._db, classifier, self._day)
        return self._spends[classifier]

    def _save_changes(self) -> None:
        rows = [(classifier, day, self._session.id, *more) for (classifier, day), more in self._changes.items()]
        self._db.executemany(
            "INSERT INTO spend VALUES (?, ?, ?, ?, ?) ON CONFLICT DO UPDATE"
            " SET queries = queries + excluded.queries, micros = micros + excluded.micros",
            rows,
        )
        self._changes.clear()

    def _sign(self, now: float) -> bool:
        """Whether a sign of life was written: it is, if the last one is old."""
        if not self._late(now):
            return False
        if self._beaten is None:
            strike_off_dead(self._db, now)
        beat(self._db, self._session, now)
        return True

    def _late(self, now: float) -> bool:
        return self._beaten is None or abs(now - self._beaten) > BEAT

    def _classifier(self, fingerprint: str) -> int:
        return self._id(self._classifiers, "classifiers", "fingerprint", fingerprint)

    def _view(self, name: str) -> int:
        return self._views.get(name) or self._id(self._views, "views", "name", name)

    def _id(self, memory: dict[str, int], table: str, column: str, text: str) -> int:
        if text not in memory:
            self._db.execute(f"INSERT OR IGNORE INTO {table}({column}) VALUES (?)", (text,))  # noqa: S608
            found = self._db.execute(f"SELECT id FROM {table} WHERE {column} = ?", (text,)).fetchone()  # noqa: S608
            memory[text] = int(found[0])
        return memory[text]


def spend(db: sqlite3.Connection, classifier: int, day: int) -> Spend:
    """What was spent on a classifier, in all and on one day, counted from 1970."""
    sums = "COALESCE(SUM(queries), 0), COALESCE(SUM(micros), 0)"
    everything = db.execute(f"SELECT {sums} FROM spend WHERE classifier = ?", (classifier,))  # noqa: S608
    today = db.execute(f"SELECT {sums} FROM spend WHERE classifier = ? AND day = ?", (classifier, day))  # noqa: S608
    return Spend(*everything.fetchone(), *today.fetchone())


def blocks(rows: Sequence[T]) -> Iterator[Sequence[T]]:
    """The rows in blocks whose sizes are powers of two, so that few statements serve every number of rows."""
    start = 0
    while start < len(rows):
        size = min(BLOCK, 1 << ((len(rows) - start).bit_length() - 1))
        yield rows[start : start + size]
        start += size


@cache
def looking(rows: int) -> str:
    """The statement that reads so many questions."""
    return f"SELECT key, label, score, status, session FROM questions WHERE key IN ({_marks(rows)})"  # noqa: S608


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


def _cut(raw: bytes) -> bytes:
    return raw if len(raw) <= RAW_LIMIT else raw[: RAW_LIMIT - len(CUT)] + CUT
