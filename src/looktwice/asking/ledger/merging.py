"""Merging two ledgers into one, as often as you like: nothing is counted twice."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from looktwice.asking.ledger.maintain import transaction
from looktwice.asking.ledger.sql import COUNTED, TOKENS, Value
from looktwice.asking.ledger.sqlite import explained, readable, writable
from looktwice.errors import LedgerError

BLOCK = 2_000
"""Questions in one transaction, so that a run on the same ledger never waits long."""

_CHUNK = """CREATE TEMP TABLE chunk(
    key BLOB PRIMARY KEY, classifier, digest, view, seed, number, sends, micros, at,
    label, score, options, status, latency, attempts, input_tokens, output_tokens, cached_tokens, raw,
    more_sends DEFAULT 0, more_micros DEFAULT 0,
    fresh DEFAULT 0, taken DEFAULT 0
) WITHOUT ROWID"""

_ANSWER = ("label", "score", "options", "status", "latency", "attempts", *TOKENS)

_COLUMNS = f"key, classifier, digest, view, seed, number, sends, micros, at, {', '.join(_ANSWER)}"

_STEPS = (
    # What the chunk changes: it takes each answer that we lack, or that is older than ours.
    "UPDATE chunk SET more_sends = sends, more_micros = micros, fresh = label IS NOT NULL, taken = label IS NOT NULL",
    "UPDATE chunk SET more_sends = MAX(0, chunk.sends - q.sends), more_micros = MAX(0, chunk.micros - q.micros),"
    " fresh = chunk.label IS NOT NULL AND q.label IS NULL,"
    " taken = chunk.label IS NOT NULL AND (q.label IS NULL OR chunk.at < q.at)"
    " FROM questions q WHERE q.key = chunk.key",
    "UPDATE classifiers SET loose_queries = loose_queries - s.sends, loose_micros = loose_micros - s.micros FROM"
    " (SELECT classifier, SUM(more_sends) AS sends, SUM(more_micros) AS micros FROM chunk GROUP BY classifier) s"
    " WHERE s.classifier = classifiers.id",
    f"INSERT INTO questions({_COLUMNS}) SELECT {_COLUMNS} FROM chunk WHERE true"  # noqa: S608
    " ON CONFLICT DO UPDATE SET sends = MAX(sends, excluded.sends), micros = MAX(micros, excluded.micros)",
    f"UPDATE questions SET {', '.join(f'{column} = c.{column}' for column in _ANSWER)}, at = c.at, session = NULL"  # noqa: S608
    " FROM chunk c WHERE c.key = questions.key AND c.taken",
    "DELETE FROM replies WHERE key IN (SELECT key FROM chunk WHERE taken)",
    "INSERT INTO replies SELECT key, raw FROM chunk WHERE taken AND raw IS NOT NULL",
)


@dataclass(frozen=True)
class Merged:
    """How many answers a ledger got from another one, and how many it had already."""

    added: int
    known: int


def merge(into: Path, other: Path) -> Merged:
    """Add the answers and the spend of `other`, which stays as it is; where both have an answer the older one stays.

    Spend is kept by session and the larger figure counts, so merging again, or merging a copy, adds nothing twice.
    """
    if into.exists() and other.exists() and into.samefile(other):
        raise LedgerError(f"{str(into)!r} and {str(other)!r} are the same ledger; name two")
    with closing(readable(other)) as db, explained(into), closing(writable(into)) as target:
        try:
            return _merge(target, Source(db, other))
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            why = f"does not hold together ({error!r}); see what is wrong with: looktwice ledger verify"
    raise LedgerError(f"ledger {str(other)!r} {why}")


class Source:
    """A snapshot of the other ledger from its first read; its failures are reported as its own."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self._db = db
        self._path = path
        with explained(path):
            db.execute("BEGIN")

    def rows(self, statement: str) -> Iterator[tuple[Value, ...]]:
        """The rows of a query, a few at a time."""
        with explained(self._path):
            for row in self._db.execute(statement):  # noqa: UP028  # `yield from` would close it after the database
                yield row


def _merge(db: sqlite3.Connection, source: Source) -> Merged:
    if any(source.rows("SELECT 1 FROM questions WHERE batch IS NOT NULL LIMIT 1")):
        raise LedgerError(
            "the other ledger waits for the results of a batch; run its command again to fetch them, then merge"
        )
    with transaction(db):
        classifiers = _classifiers(db, source)
        views = _ids(db, source, "views", "name")
        _spend(db, source, classifiers)
    db.execute(_CHUNK)
    added = known = 0
    rows = source.rows(
        f"SELECT q.{_COLUMNS}, raw FROM questions q LEFT JOIN replies r ON r.key = q.key ORDER BY q.key"  # noqa: S608
    )
    while chunk := list(islice(rows, BLOCK)):
        renumbered = [(key, classifiers[who], digest, views[view], *rest) for key, who, digest, view, *rest in chunk]
        with transaction(db):
            db.execute("DELETE FROM chunk")
            marks = ", ".join("?" * len(chunk[0]))
            db.executemany(f"INSERT INTO chunk({_COLUMNS}, raw) VALUES ({marks})", renumbered)  # noqa: S608
            for step in _STEPS:
                db.execute(step)
            answers, fresh = db.execute("SELECT COUNT(label), SUM(fresh) FROM chunk").fetchone()
        added, known = added + fresh, known + answers - fresh
    with transaction(db):
        db.executemany("INSERT OR IGNORE INTO checks VALUES (?, ?, ?)", source.rows("SELECT * FROM checks"))
    return Merged(added, known)


def _ids(db: sqlite3.Connection, source: Source, table: str, column: str) -> dict[Value, int]:
    """The id here of each id there; what is missing here is added."""
    theirs = {name: id for name, id in source.rows(f"SELECT {column}, id FROM {table}")}  # noqa: C416, S608
    db.executemany(f"INSERT OR IGNORE INTO {table}({column}) VALUES (?)", [(name,) for name in theirs])  # noqa: S608
    ours = db.execute(f"SELECT {column}, id FROM {table}").fetchall()  # noqa: S608
    return {theirs[name]: id for name, id in ours if name in theirs}


def _classifiers(db: sqlite3.Connection, source: Source) -> dict[Value, int]:
    ids = _ids(db, source, "classifiers", "fingerprint")
    described = source.rows("SELECT description, id FROM classifiers")
    db.executemany(
        "UPDATE classifiers SET description = ? WHERE id = ? AND description = ''",
        [(description, ids[id]) for description, id in described],
    )
    return ids


def _spend(db: sqlite3.Connection, source: Source, classifiers: dict[Value, int]) -> None:
    """Take over the spend, for now as spent on no question: the questions follow."""
    _loosen(db, -1)
    columns = f"classifier, day, session, {', '.join(COUNTED)}, command"
    db.executemany(
        f"INSERT INTO spend({columns}) VALUES ({', '.join('?' * (len(COUNTED) + 4))}) ON CONFLICT DO UPDATE"  # noqa: S608
        f" SET {', '.join(f'{column} = MAX({column}, excluded.{column})' for column in COUNTED)},"
        " command = COALESCE(command, excluded.command)",
        [(classifiers[who], *rest) for who, *rest in source.rows(f"SELECT {columns} FROM spend")],  # noqa: S608
    )
    _loosen(db, 1)


def _loosen(db: sqlite3.Connection, sign: int) -> None:
    """Add all that was spent, or with -1 take it away: doing both leaves what came in between."""
    db.execute(
        "UPDATE classifiers SET loose_queries = loose_queries + ? * s.queries,"
        " loose_micros = loose_micros + ? * s.micros"
        " FROM (SELECT classifier, SUM(queries) AS queries, SUM(micros) AS micros FROM spend GROUP BY classifier) s"
        " WHERE s.classifier = classifiers.id",
        (sign, sign),
    )
