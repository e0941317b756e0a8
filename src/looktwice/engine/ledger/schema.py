"""The values and tables of a ledger, and every statement that changes them; both databases run the same statements.

    absent   → claimed(S)   claim within the budget: sends + 1, picos + reserve
    claimed  → answered     final: picos + bill − reserve; the first label stays
    claimed  → free         lost, refused or S dead: stays counted; unsent or waived: given back
    free     → claimed(S')  counted again

A query is claimed while `session` is set and this session is alive. `of` marks a repetition of another query (a canary,
a check). Σ spend = Σ queries, for each classifier, in queries and picos.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum, auto
from hashlib import blake2b
from typing import Any, NamedTuple, Protocol
from zlib import crc32

from looktwice.classifiers import Answer
from looktwice.engine.budget import Bill, Budget, Spend
from looktwice.errors import LedgerError

VERSION = 1
PATIENCE = 120.0
"""Seconds to wait for a database that is locked or unreachable: longer than a process is usually stopped."""

Row = tuple[Any, ...]

TABLES = (
    "classifiers(id INTEGER PRIMARY KEY, fingerprint TEXT NOT NULL, description TEXT NOT NULL,"
    " next_send REAL NOT NULL)",
    "queries(key BLOB PRIMARY KEY, classifier INTEGER NOT NULL, digest TEXT NOT NULL, view TEXT NOT NULL,"
    " seed INTEGER NOT NULL, number INTEGER NOT NULL, of BLOB, sends INTEGER NOT NULL, picos INTEGER NOT NULL,"
    " reserve INTEGER NOT NULL, day INTEGER NOT NULL, at REAL NOT NULL, session INTEGER, label TEXT, score REAL,"
    " options TEXT, status INTEGER, latency REAL,"
    " reading TEXT, input_tokens INTEGER, output_tokens INTEGER, cached_tokens INTEGER)",
    "spend(classifier INTEGER, day INTEGER, queries INTEGER NOT NULL, picos INTEGER NOT NULL,"
    " answered INTEGER NOT NULL, input_tokens INTEGER NOT NULL, output_tokens INTEGER NOT NULL,"
    " cached_tokens INTEGER NOT NULL, PRIMARY KEY(classifier, day))",
    "sessions(id INTEGER PRIMARY KEY, host TEXT NOT NULL, pid INTEGER NOT NULL, born TEXT NOT NULL, beat REAL NOT NULL,"
    " number INTEGER NOT NULL)",
    "batches(id INTEGER PRIMARY KEY, classifier INTEGER NOT NULL, owner INTEGER NOT NULL, at REAL NOT NULL,"
    " file TEXT, remote TEXT)",
    "replies(key BLOB PRIMARY KEY, raw BLOB NOT NULL)",
    "budgets(scope TEXT PRIMARY KEY, queries INTEGER, micros INTEGER)",
    "alarms(profile TEXT PRIMARY KEY, since REAL NOT NULL, pictures INTEGER NOT NULL, needed INTEGER NOT NULL)",
)
"""Times are in seconds since 1970, by the ledger's clock; latencies in seconds. `raw` is a compressed reply."""
OPEN_CLAIMS = "CREATE INDEX open_claims ON queries(session, classifier) WHERE session IS NOT NULL"

ANSWER = ("label", "score", "options", "status", "latency", "reading", "input_tokens", "output_tokens", "cached_tokens")
CLAIM = ("key", "classifier", "digest", "view", "seed", "number", "of", "sends", "picos", "reserve", "day", "at",
         "session")  # fmt: skip
SPEND = ("queries", "picos", "answered", "input_tokens", "output_tokens", "cached_tokens")


class Entry(NamedTuple):
    """The identity of a query; `seed` and `number` are below 2**63."""

    key: bytes
    digest: str
    view: str
    seed: int
    number: int
    of: bytes | None = None
    """The query that this one repeats."""


def again(entry: Entry) -> Entry:
    """A repetition of a query, under a separate key."""
    return entry._replace(key=entry.key[:4] + secrets.token_bytes(12), of=entry.key)


class Alarm(NamedTuple):
    """A drift alarm of a profile, during which no verdict is accepted."""

    since: float
    """The start of the change, in seconds since 1970."""
    pictures: int
    """The number of pictures since then."""
    needed: int
    """The number of consecutive usual pictures after which the alarm ends."""

    def __str__(self) -> str:
        began = datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%d %H:%M UTC")
        return f"drift since {began}, {self.pictures:,} pictures"


class Outcome(Enum):
    """The outcome of a claim without an answer."""

    UNSENT = auto()
    """The query was certainly not delivered, or not billed: it is subtracted from the spend."""
    KEPT = auto()
    """The query may have been billed, with or without a reply: it stays in the spend."""


class Session(NamedTuple):
    """A process's session with an open ledger."""

    id: int
    host: str
    pid: int
    born: str
    beat: float


@dataclass(frozen=True, slots=True)
class Account:
    """The account of a claim: the classifier, its budgets and its rate in queries per second."""

    fingerprint: str
    budgets: tuple[Budget, ...] = ()
    """The budgets that must all cover a query."""
    rate: float | None = None
    description: str = ""
    """The description of the classifier."""


class Claim(NamedTuple):
    """The right to send one query; its maximum cost is included in the spend until the claim is settled."""

    entry: Entry
    classifier: int
    reserve: int
    """The maximum cost of the query, in picos."""
    day: int
    """The UTC day to whose spend it is added."""
    send_at: float
    """The earliest time to send it, by the ledger's clock."""
    spent: int = 0
    """The cost of earlier attempts of the query, in picos."""


class Stored(NamedTuple):
    """A stored answer, with the digest of the settings with which its reply was parsed, its time and its cost."""

    answer: Answer
    reading: str
    at: float
    picos: int


@dataclass(frozen=True, slots=True)
class Wait:
    """The query cannot be claimed now: it is in flight elsewhere, or an open claim may still return money."""

    elsewhere: bool


@dataclass(frozen=True, slots=True)
class InBatch:
    """The query is in a vendor's batch without results yet."""


@dataclass(frozen=True, slots=True)
class OverBudget:
    """A budget does not cover the query, and no open claim can change that."""

    budget: Budget
    spend: Spend


Granted = Claim | Stored | Wait | InBatch | OverBudget


class OpenBatch(NamedTuple):
    """A vendor's batch that was sent, or about to be, and whose results are incomplete."""

    id: int
    file: str | None
    """The vendor's name of the uploaded file, if known."""
    remote: str | None
    """The vendor's name of the batch, if known."""
    at: float
    keys: tuple[bytes, ...]
    """The queries without a result."""
    owned: bool
    """Whether another live session is about to send the batch."""

    @property
    def name(self) -> str:
        """The name under which looktwice submits the batch to the vendor."""
        return f"looktwice-{self.id:016x}"


@dataclass(frozen=True, slots=True)
class Settled:
    """The end of a claim: the answer, or the outcome without an answer."""

    key: bytes
    result: Answer | Outcome
    bill: Bill | None = None
    latency: float = 0.0
    reading: str = ""


class Database(Protocol):
    """The interface of a ledger's database; it raises the driver's errors, which `explain` translates."""

    name: str
    """A display name without password."""
    lasting: bool
    """Whether the database persists after the process."""
    shared: bool
    """Whether sessions on other machines may use the database, and the outcome of a commit may be unknown."""
    errors: tuple[type[Exception], ...]

    def begin(self) -> float:
        """Begin a write transaction; returns the time by the database's clock."""

    def execute(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement of the transaction."""

    def execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one statement for each row."""

    def commit(self) -> None: ...

    def roll_back(self) -> None: ...

    def read(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Read committed rows, from any thread."""

    def explain(self, error: Exception) -> LedgerError:
        """The error to raise for a failure of the database."""

    def may_pass(self, error: Exception) -> bool:
        """Whether a retry may help: the database is locked or unreachable, or its disk is full."""

    def is_full(self, error: Exception) -> bool:
        """Whether the database's disk is full."""

    def close(self) -> None: ...


def keys(fingerprint: str, digest: str, tails: Sequence[bytes]) -> list[bytes]:
    """The 16-byte keys of queries about one picture: 4 bytes of a hash of the picture, 12 of a hash of everything.

    Queries about one picture are adjacent in the table, so that a commit touches few pages.
    """
    shared = blake2b(joined(fingerprint, digest), digest_size=12, person=b"looktwice.key.2")
    names = []
    for tail in tails:
        own = shared.copy()
        own.update(tail)
        names.append(place(digest) + own.digest())
    return names


def classifier_id(fingerprint: str) -> int:
    """The number of a classifier in the tables."""
    return int.from_bytes(blake2b(fingerprint.encode(), digest_size=8).digest(), "big") >> 1


def joined(*parts: str) -> bytes:
    """Join strings injectively."""
    return "".join(f"{len(part)}:{part}" for part in parts).encode()


def place(digest: str) -> bytes:
    """The common prefix, 4 bytes, of the keys of all queries about one picture."""
    return crc32(digest.encode()).to_bytes(4, "big")


def pack_options(options: Sequence[tuple[str, float | None]]) -> str | None:
    """A ranked list as JSON; None without a ranked list."""
    return json.dumps(options, ensure_ascii=False, separators=(",", ":")) if options else None


def unpack_answer(label: str, score: float | None, options: str | None, status: int | None) -> Answer:
    """A stored answer, without its reply."""
    ranked = tuple((str(word), value) for word, value in json.loads(options)) if options else ()
    return Answer(label, score, status, None, ranked)


def many(columns: Sequence[str], rows: int) -> str:
    """Placeholders for rows of values."""
    row = f"({', '.join('?' * len(columns))})"
    return ", ".join([row] * rows)


def claim_rows(rows: int) -> str:
    """Claim queries that are absent or not in flight; adds one send and the reserve to each."""
    return (
        f"INSERT INTO queries({', '.join(CLAIM)}) VALUES {many(CLAIM, rows)} ON CONFLICT(key) DO UPDATE SET"
        " sends = queries.sends + 1, picos = queries.picos + excluded.picos,"
        " reserve = excluded.reserve, day = excluded.day, at = excluded.at, session = excluded.session"
    )


def answer_rows(rows: int) -> str:
    """Store answers; `picos` is the bill minus the reserve. The first label of a query is never overwritten."""
    first = ", ".join(f"{name} = CASE WHEN queries.label IS NULL THEN excluded.{name} ELSE queries.{name} END"
                      for name in ("at", *ANSWER))  # fmt: skip
    return (
        f"INSERT INTO queries({', '.join((*CLAIM, *ANSWER))}) VALUES {many((*CLAIM, *ANSWER), rows)}"
        f" ON CONFLICT(key) DO UPDATE SET picos = queries.picos + excluded.picos, session = NULL, {first}"
    )


def reply_rows(rows: int) -> str:
    """Keep the first reply to each query."""
    return f"INSERT INTO replies(key, raw) VALUES {many('kr', rows)} ON CONFLICT(key) DO NOTHING"


def spend_rows(rows: int) -> str:
    """Add to the spend of classifiers and days."""
    columns = ("classifier", "day", *SPEND)
    sums = ", ".join(f"{name} = spend.{name} + excluded.{name}" for name in SPEND)
    return (
        f"INSERT INTO spend({', '.join(columns)}) VALUES {many(columns, rows)}"
        f" ON CONFLICT(classifier, day) DO UPDATE SET {sums}"
    )


FREE = "UPDATE queries SET session = NULL WHERE key = ? AND session = ?"
GIVE_BACK = (
    "UPDATE queries SET sends = sends - 1, picos = picos - ?,"
    " session = CASE WHEN session = ? THEN NULL ELSE session END WHERE key = ?"
)
NEVER_SENT = "DELETE FROM queries WHERE key = ? AND sends = 0 AND label IS NULL"
SPENT = (
    "SELECT COALESCE(SUM(queries), 0), COALESCE(SUM(picos), 0), COALESCE(SUM(CASE WHEN day = ? THEN queries END), 0),"
    " COALESCE(SUM(CASE WHEN day = ? THEN picos END), 0) FROM spend WHERE classifier = ?"
)
DESCRIBE = (
    "INSERT INTO classifiers(id, fingerprint, description, next_send) VALUES (?, ?, ?, 0)"
    " ON CONFLICT(id) DO UPDATE SET description = excluded.description"
    " WHERE classifiers.description != excluded.description"
)
OPEN = "SELECT session, COUNT(*) FROM queries WHERE session IS NOT NULL AND classifier = ? GROUP BY session"
RAISE = (
    "INSERT INTO alarms(profile, since, pictures, needed) VALUES (?, ?, ?, ?)"
    " ON CONFLICT(profile) DO UPDATE SET pictures = alarms.pictures + excluded.pictures"
)
BEAT = (
    "INSERT INTO sessions(id, host, pid, born, beat, number) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT(id) DO UPDATE SET beat = excluded.beat, number = excluded.number"
)


def known_rows(count: int) -> str:
    """Select the stored queries, with their answers or the session in which they are in flight."""
    marks = ", ".join("?" * count)
    return f"SELECT key, session, picos, label, score, options, status, reading, at FROM queries WHERE key IN ({marks})"
