"""Reading and tending a ledger file: cost by day, export, verification, forgetting."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from looktwice import files
from looktwice.asking.ledger.protocol import RAW_LIMIT, living, place
from looktwice.asking.ledger.sql import pack, unpack
from looktwice.asking.ledger.sqlite import SqliteTables, explained, inspect, readable, writable
from looktwice.errors import LedgerError

Field = str | int | float | None

COLUMNS: files.Columns = {
    "classifier": "text",
    "digest": "text",
    "name": "text",
    "view": "text",
    "seed": "whole",
    "index": "whole",
    "label": "text",
    "score": "number",
    "options": "text",
    "status": "whole",
    "answered_at": "text",
    "latency_s": "number",
    "attempts": "whole",
    "sends": "whole",
    "price_micros": "whole",
    "input_tokens": "whole",
    "output_tokens": "whole",
    "cached_tokens": "whole",
    "raw": "text",
}
"""What is exported of an answer.

`options` is its ranked list, labels and scores in turn, as JSON; `price_micros` is that of all sends together.
"""


@dataclass(frozen=True)
class DayCost:
    """Queries of a command to one classifier on one UTC day: how they ended, and what of them counts as spent."""

    fingerprint: str
    description: str
    day: date
    queries: int
    """Counted against budgets: all that was asked but the refusals that are not billed."""
    micros: int
    answered: int
    refused: int
    """A reply came that holds no answer."""
    unknown: int
    """Sent, and no reply has come."""
    command: str = "unknown"
    """`fit`, `score` and so on, or `Python`; not known of what was spent before it was kept."""
    estimated: int = 0
    """What was expected, before they were sent, of the queries that have a bill by the token; in millionths."""
    billed: int = 0
    """What these cost."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Those of the input that were read from a cache."""

    @property
    def asked(self) -> int:
        """Queries that may have reached the classifier."""
        return self.answered + self.refused + self.unknown


def stats(path: Path) -> list[DayCost]:
    """The cost of each classifier by day and command, oldest first."""
    with _snapshot(path) as db:
        rows = db.execute(
            "SELECT fingerprint, description, day, SUM(queries), SUM(micros) + CAST(ROUND(SUM(picos) / 1e6) AS INT),"
            " SUM(answered), SUM(refused), SUM(queries + waived - answered - refused),"
            " COALESCE(command, 'unknown') AS by_whom,"
            " SUM(estimated), SUM(billed) + CAST(ROUND(SUM(picos) / 1e6) AS INT),"
            " SUM(input_tokens), SUM(output_tokens), SUM(cached_tokens)"
            " FROM spend JOIN classifiers ON id = classifier"
            " GROUP BY day, classifier, by_whom ORDER BY day, fingerprint, by_whom"
        ).fetchall()
    return [DayCost(who, what, date(1970, 1, 1) + timedelta(days=day), *rest) for who, what, day, *rest in rows]


def export(path: Path, out: Path, names: Mapping[str, str] | None = None) -> int:
    """How many answers were written to `out`: as .csv, .jsonl or .parquet by its ending, whole or not at all.

    `names` are those of pictures by their digests; the ledger knows none.
    """
    files.check_writable(out, files.ENDINGS)
    with _snapshot(path) as db, files.atomic(out) as part:
        return files.write_table(part, out.suffix, COLUMNS, _answers(db, names or {}))


def verify(path: Path) -> list[str]:
    """What is wrong with a ledger, one line each; nothing if it is sound."""
    try:
        with _snapshot(path) as db:
            damage = [str(line) for (line,) in db.execute("PRAGMA integrity_check(20)")]
            return [*(line for line in damage if line != "ok"), *_malformed(db), *_unbalanced(db)]
    except LedgerError as error:
        if isinstance(error.__cause__, sqlite3.DatabaseError):
            return [str(error)]
        raise


def forget(path: Path, classifier: str, digests: Sequence[str] | None = None) -> int:
    """How many answers were deleted: all of a classifier, or those about some pictures. What they cost stays counted.

    The classifier is named by its fingerprint or description, or the beginning of one if no other begins like that.
    Questions that a living session has in flight stay, and those in a batch.
    """
    inspect(path)  # one that is not there is not made
    with explained(path), closing(writable(path)) as db:
        with transaction(db):
            number = _classifier(db, path, classifier)
            db.execute("CREATE TEMP TABLE gone(key BLOB PRIMARY KEY) WITHOUT ROWID")
            _choose(db, number, digests, living(SqliteTables(db, path).sessions(), time.time()))
            gone = "WHERE key IN (SELECT key FROM gone)"
            totals = f"SELECT COUNT(label), TOTAL(sends), TOTAL(micros) FROM questions {gone}"  # noqa: S608
            count, sends, micros = db.execute(totals).fetchone()
            db.execute(
                "UPDATE classifiers SET loose_queries = loose_queries + ?, loose_micros = loose_micros + ?"
                " WHERE id = ?",
                (int(sends), int(micros), number),
            )
            for table in ("replies", "checks", "questions"):
                db.execute(f"DELETE FROM {table} {gone}")  # noqa: S608
        # Remove the deleted answers from the write-ahead log, too.
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return int(count)


@contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """Everything inside is committed together, or not at all."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        db.execute("ROLLBACK")
        raise
    db.execute("COMMIT")


@contextmanager
def _snapshot(path: Path) -> Iterator[sqlite3.Connection]:
    """The ledger as it is now, however much is written meanwhile."""
    with explained(path), closing(readable(path)) as db:
        db.execute("BEGIN")
        yield db


def _answers(db: sqlite3.Connection, names: Mapping[str, str]) -> Iterator[tuple[Field, ...]]:
    rows = db.execute(
        "SELECT fingerprint, digest, name, seed, number, label, score, options, status, at, latency, attempts, sends,"
        " micros, input_tokens, output_tokens, cached_tokens, raw"
        " FROM questions q JOIN classifiers c ON c.id = q.classifier JOIN views v ON v.id = q.view"
        " LEFT JOIN replies r ON r.key = q.key WHERE label IS NOT NULL"
    )
    for who, packed, view, seed, index, label, score, options, status, at, latency, *rest, raw in rows:
        digest = unpack(packed)
        when = datetime.fromtimestamp(at / 1000, UTC).isoformat(timespec="milliseconds")
        text = None if raw is None else raw.decode(errors="backslashreplace")
        answer = (label, score, options, status, when, latency / 1e6, *rest, text)
        yield who, digest, names.get(digest), view, seed, index, *answer


_RULES = {
    "whose key is not 16 bytes": "typeof(key) != 'blob' OR length(key) != 16",
    "whose key does not belong to its picture": "substr(key, 1, 4) != place(digest)",
    "of an unknown classifier": "classifier NOT IN (SELECT id FROM classifiers)",
    "of an unknown view": "view NOT IN (SELECT id FROM views)",
    "never sent": "sends < 1",
    "with a negative price": "micros < 0",
    "with an answer but no attempt": "label IS NOT NULL AND (attempts IS NULL OR attempts < 1 OR latency IS NULL)",
    "with an answer that is not a text": "typeof(label) NOT IN ('text', 'null')",
    "answered and still in flight": "label IS NOT NULL AND (session IS NOT NULL OR batch IS NOT NULL)",
    "of an unknown batch": "batch IS NOT NULL AND batch NOT IN (SELECT id FROM batches)",
}


def _malformed(db: sqlite3.Connection) -> list[str]:
    db.create_function("place", 1, lambda digest: place(unpack(digest)), deterministic=True)
    sums = ", ".join(f"SUM({rule})" for rule in _RULES.values())
    counts = db.execute(f"SELECT {sums} FROM questions").fetchone()  # noqa: S608
    found = dict(zip(_RULES, counts, strict=True))
    found["that are gone but have a raw reply"] = _one(
        db, "SELECT COUNT(*) FROM replies WHERE key NOT IN (SELECT key FROM questions)"
    )
    problems = [f"{count} questions {what}" for what, count in found.items() if count]
    long = _one(db, f"SELECT COUNT(*) FROM replies WHERE length(raw) > {RAW_LIMIT}")  # noqa: S608
    return problems + ([f"{long} raw replies longer than {RAW_LIMIT} bytes"] if long else [])


def _unbalanced(db: sqlite3.Connection) -> list[str]:
    """Classifiers whose spend is not what their questions cost, together with what was spent on no question."""
    rows = db.execute(
        "SELECT fingerprint, loose_queries, loose_micros,"
        " (SELECT TOTAL(queries) FROM spend WHERE classifier = c.id),"
        " (SELECT TOTAL(micros) FROM spend WHERE classifier = c.id),"
        " COALESCE(sends, 0), COALESCE(micros, 0) FROM classifiers c LEFT JOIN"
        " (SELECT classifier, SUM(sends) AS sends, SUM(micros) AS micros FROM questions GROUP BY classifier) q"
        " ON q.classifier = c.id"
    )
    return [
        f"classifier {who}: {queries:.0f} queries and {micros:.0f} micros are counted as spent, "
        f"but its questions and bookings come to {sends + loose} and {cost + loose_micros}"
        for who, loose, loose_micros, queries, micros, sends, cost in rows
        if (queries, micros) != (sends + loose, cost + loose_micros)
    ]


def _one(db: sqlite3.Connection, statement: str) -> int:
    return int(db.execute(statement).fetchone()[0])


def _classifier(db: sqlite3.Connection, path: Path, called: str) -> int:
    """The one classifier whose fingerprint or description is this, or begins with it."""
    rows = db.execute("SELECT id, fingerprint, description FROM classifiers ORDER BY fingerprint").fetchall()
    names = {number: (who, what, f"{what} {who}") for number, who, what in rows} if called else {}
    exact = [number for number, known in names.items() if called in known]
    found = exact or [number for number, known in names.items() if any(name.startswith(called) for name in known)]
    if len(found) == 1:
        return int(found[0])
    many = f"{len(found)} classifiers ({', '.join(names[number][0] for number in found)})" if found else "no classifier"
    raise LedgerError(f"ledger {str(path)!r} knows {many} called {called!r}; `looktwice ledger stats` lists them")


def _choose(db: sqlite3.Connection, classifier: int, digests: Sequence[str] | None, living: set[int]) -> None:
    """Put the keys to forget in the table `gone`; the questions about one picture are neighbours by key."""
    alive = ", ".join(map(str, living))
    chosen = (
        "INSERT OR IGNORE INTO gone SELECT key FROM questions WHERE classifier = ?"  # noqa: S608
        f" AND (label IS NOT NULL OR (batch IS NULL AND COALESCE(session, 0) NOT IN ({alive})))"
    )
    if digests is None:
        db.execute(chosen, (classifier,))
        return
    db.executemany(
        f"{chosen} AND digest = ? AND key BETWEEN ? AND ?",
        [(classifier, pack(digest), place(digest), place(digest) + b"\xff" * 13) for digest in digests],
    )
