"""Maintenance of ledgers: costs, verification, export, deletion of answers, backup.

Reading changes nothing, even while others write.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

from looktwice import files
from looktwice.engine.budget import MICRO
from looktwice.engine.ledger import schema
from looktwice.engine.ledger.ledger import POSTGRES, open_database
from looktwice.engine.ledger.schema import Database, Row
from looktwice.engine.ledger.sqlite import SqliteDatabase, explained, open_to_read
from looktwice.engine.ledger.transaction import living
from looktwice.errors import LedgerError

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
    "sends": "whole",
    "cost": "number",
    "input_tokens": "whole",
    "output_tokens": "whole",
    "cached_tokens": "whole",
    "raw": "text",
}
"""An exported answer: `options` is the ranked list as JSON; `cost` is the total of all attempts."""


@dataclass(frozen=True)
class DayCost:
    """The spend on one classifier on one UTC day."""

    fingerprint: str
    description: str
    day: date
    queries: int
    picos: int
    answered: int
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    @property
    def micros(self) -> int:
        """The cost of the answer in millionths of the currency, rounded up."""
        return -(-self.picos // MICRO)


Read = Callable[..., list[Row]]
"""Runs one statement with its values on a snapshot of a ledger."""


@contextmanager
def _snapshot(place: str | Path) -> Iterator[Read]:
    """Open a snapshot, unaffected by concurrent writes."""
    if str(place).startswith(POSTGRES):
        with closing(open_database(str(place))) as database:
            try:
                database.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
                yield database.execute
            except database.errors as error:
                raise database.explain(error) from error
        return
    path = Path(place)
    with explained(path), closing(open_to_read(path)) as db:
        db.execute("BEGIN")
        yield lambda statement, values=(): db.execute(statement, tuple(values)).fetchall()


def stats(place: str | Path) -> list[DayCost]:
    """Queries and money by classifier and day."""
    with _snapshot(place) as read:
        rows = read(
            "SELECT fingerprint, description, day, queries, picos, answered, input_tokens, output_tokens, cached_tokens"
            " FROM spend JOIN classifiers ON id = classifier ORDER BY day, fingerprint"
        )
    return [DayCost(who, what, date(1970, 1, 1) + timedelta(days=day), *rest) for who, what, day, *rest in rows]


def labels(place: str | Path, fingerprint: str) -> list[str]:
    """The distinct labels that a classifier has returned."""
    with _snapshot(place) as read:
        rows = read(
            "SELECT DISTINCT label FROM queries q JOIN classifiers c ON c.id = q.classifier"
            " WHERE fingerprint = ? AND label IS NOT NULL",
            (fingerprint,),
        )
    return [str(label) for (label,) in rows]


def verify(place: str | Path) -> list[str]:
    """Inconsistencies in a ledger, one line each; empty if it is consistent."""
    try:
        with _snapshot(place) as read:
            damage = [] if str(place).startswith(POSTGRES) else read("PRAGMA integrity_check(20)")
            return [*(str(line) for (line,) in damage if line != "ok"), *_malformed(read), *_unbalanced(read)]
    except LedgerError as error:
        if isinstance(error.__cause__, sqlite3.DatabaseError):
            return [str(error)]
        raise


_RULES = {
    "never sent": "sends < 1",
    "with a negative price": "picos < 0",
    "answered and still in flight": "label IS NOT NULL AND session IS NOT NULL",
    "of an unknown classifier": "classifier NOT IN (SELECT id FROM classifiers)",
}


def _malformed(read: Read) -> list[str]:
    sums = ", ".join(f"COALESCE(SUM(CASE WHEN {rule} THEN 1 ELSE 0 END), 0)" for rule in _RULES.values())
    ((*counts,),) = read(f"SELECT {sums} FROM queries")
    problems = dict(zip(_RULES, counts, strict=True))
    ((replies,),) = read("SELECT COUNT(*) FROM replies WHERE key NOT IN (SELECT key FROM queries)")
    problems["that no longer exist but have a reply"] = replies
    return [f"{count} queries {what}" for what, count in problems.items() if count]


def _unbalanced(read: Read) -> list[str]:
    """Classifiers whose spend differs from the sum of their queries."""
    rows = read(
        "SELECT fingerprint, s.queries, s.picos, q.sends, q.picos FROM classifiers c"
        " LEFT JOIN (SELECT classifier, SUM(queries) AS queries, SUM(picos) AS picos FROM spend GROUP BY classifier) s"
        " ON s.classifier = c.id"
        " LEFT JOIN (SELECT classifier, SUM(sends) AS sends, SUM(picos) AS picos FROM queries GROUP BY classifier) q"
        " ON q.classifier = c.id"
    )
    return [
        f"classifier {who}: {queries or 0} queries and {picos or 0} picos are counted as spent, "
        f"but its queries add up to {sends or 0} and {cost or 0}"
        for who, queries, picos, sends, cost in rows
        if (queries or 0, picos or 0) != (sends or 0, cost or 0)
    ]


def export(place: str | Path, out: Path, names: Mapping[str, str] | None = None) -> int:
    """Export answers to `out` (.csv, .jsonl or .parquet), atomically; returns their number.

    `names` maps digests to names of pictures, which the ledger does not store.
    """
    files.check_writable(out, files.ENDINGS)
    with _snapshot(place) as read, files.atomic(out) as part:
        return files.write_table(part, out.suffix, COLUMNS, _answers(read, names or {}))


def _answers(read: Read, names: Mapping[str, str]) -> Iterator[Row]:
    rows = read(
        "SELECT fingerprint, digest, view, seed, number, label, score, options, status, at, latency, sends, picos,"
        " input_tokens, output_tokens, cached_tokens, raw"
        " FROM queries q JOIN classifiers c ON c.id = q.classifier LEFT JOIN replies r ON r.key = q.key"
        " WHERE label IS NOT NULL AND q.of IS NULL"
    )
    for who, digest, view, seed, index, label, score, options, status, at, latency, sends, picos, *tokens, raw in rows:
        when = datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds")
        reply = None if raw is None else zlib.decompress(bytes(raw)).decode(errors="backslashreplace")
        answer = (label, score, options, status, when, latency, sends, picos / 1e12, *tokens, reply)
        yield who, digest, names.get(digest), view, seed, index, *answer


def forget(place: str | Path, classifier: str | None = None, digests: Sequence[str] | None = None) -> int:
    """Delete answers of a classifier, about some pictures, or both; returns their number. Their cost stays counted.

    The classifier is given by its fingerprint or description, or a unique prefix of either. Queries in flight stay. The
    totals of deleted queries are kept as one entry per classifier.
    """
    with _changing(place) as (database, now):
        who = None if classifier is None else _classifier(database, classifier)
        return _delete(database, who, digests, now)


def alarms(place: str | Path) -> dict[str, schema.Alarm]:
    """The drift alarms by profile digest."""
    with _snapshot(place) as read:
        rows = read("SELECT profile, since, pictures, needed FROM alarms ORDER BY since")
    return {profile: schema.Alarm(*alarm) for profile, *alarm in rows}


def end_alarms(place: str | Path) -> int:
    """End all alarms; returns their number."""
    with _changing(place) as (database, _):
        ended = database.execute("SELECT COUNT(*) FROM alarms")[0][0]
        database.execute("DELETE FROM alarms")
        return int(ended)


@contextmanager
def _changing(place: str | Path) -> Iterator[tuple[Database, float]]:
    """The database of a ledger inside a transaction, and the time by its clock."""
    if not str(place).startswith(POSTGRES):
        open_to_read(Path(place)).close()  # one that is not there is not made
    database = open_database(str(place))
    try:
        yield database, database.begin()
        database.commit()
        if isinstance(database, SqliteDatabase):
            database.empty_log()
    except database.errors as error:
        database.roll_back()
        raise database.explain(error) from error
    finally:
        database.close()


def _delete(database: Database, who: int | None, digests: Sequence[str] | None, now: float) -> int:
    sessions = [schema.Session(*row) for row in database.execute("SELECT id, host, pid, born, beat FROM sessions")]
    held = living(sessions, now) | {int(row[0]) for row in database.execute("SELECT id FROM batches")}
    rows = database.execute(
        "SELECT key, classifier, digest, session, label, sends, picos, of FROM queries WHERE digest != ''"
    )
    wanted = None if digests is None else set(digests)
    gone = [
        row
        for row in rows
        if (who is None or row[1] == who) and (wanted is None or row[2] in wanted) and row[3] not in held
    ]
    database.execute_many("DELETE FROM queries WHERE key = ?", [row[:1] for row in gone])
    database.execute_many("DELETE FROM replies WHERE key = ?", [row[:1] for row in gone])
    sums: dict[int, list[int]] = {}
    for _, each, _, _, _, sends, picos, _ in gone:
        total = sums.setdefault(each, [0, 0])
        total[0], total[1] = total[0] + sends, total[1] + picos
    for each, (sends, picos) in sums.items():
        key = b"forgotten" + each.to_bytes(8, "big")
        database.execute(
            "INSERT INTO queries(key, classifier, digest, view, seed, number, sends, picos, reserve, day, at)"
            " VALUES (?, ?, '', 'forgotten', 0, 0, ?, ?, 0, 0, ?)"
            " ON CONFLICT(key) DO UPDATE SET sends = queries.sends + excluded.sends,"
            " picos = queries.picos + excluded.picos",
            (key, each, sends, picos, now),
        )
    return sum(row[4] is not None and row[7] is None for row in gone)


def _classifier(database: Database, called: str) -> int:
    """Find the only classifier whose fingerprint or description starts with this text."""
    rows = database.execute("SELECT id, fingerprint, description FROM classifiers ORDER BY fingerprint")
    names = {number: (str(who), str(what), f"{what} {who}") for number, who, what in rows} if called else {}
    exact = [number for number, known in names.items() if called in known]
    matches = exact or [number for number, known in names.items() if any(name.startswith(called) for name in known)]
    if len(matches) == 1:
        return int(matches[0])
    many = (
        f"{len(matches)} classifiers ({', '.join(names[number][0] for number in matches)})"
        if matches
        else "no classifier"
    )
    raise LedgerError(
        f"{database.name} has {many} named {called!r}; `looktwice ledger stats` lists them",
        code="classifier-unknown",
    )


def backup(place: str | Path, out: Path) -> None:
    """Copy a ledger, even while other programs write; a PostgreSQL ledger is backed up by the server's own tools."""
    if str(place).startswith(POSTGRES):
        raise LedgerError("back up a PostgreSQL ledger with pg_dump --schema looktwice", code="ledger-unsupported")
    if out.exists():
        raise LedgerError(f"{str(out)!r} already exists; specify another file for the backup", code="file-exists")
    path = Path(place)
    with explained(path), closing(open_to_read(path)) as source, files.atomic(out) as part, _new(part) as target:
        source.backup(target)
        target.execute("PRAGMA journal_mode=DELETE")  # one file, without a log beside it


def _new(path: Path) -> closing[sqlite3.Connection]:
    return closing(sqlite3.connect(path))
