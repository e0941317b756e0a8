"""What a ledger needs of its database: the tables, and the statements that every database understands."""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from looktwice.asking.ledger.operations import Check
from looktwice.asking.ledger.protocol import MICRO, Session, Spend
from looktwice.classifiers.base import NO_LABEL, Answer, Option
from looktwice.errors import LedgerError

TRIES = 5
"""How often a transaction is tried that fails in a way that may pass."""

ANSWERED_BEFORE = (
    "UPDATE spend SET answered = old.answered FROM (SELECT q.classifier, q.day, q.answered, MIN(s.session) AS session"
    " FROM (SELECT classifier, at / 86400000 AS day, COUNT(label) AS answered FROM questions GROUP BY 1, 2) q"
    " JOIN spend s ON s.classifier = q.classifier AND s.day = q.day GROUP BY 1, 2, 3) old"
    " WHERE spend.classifier = old.classifier AND spend.day = old.day AND spend.session = old.session"
)
"""Takes over the answers that a ledger had before it counted them by session: each day's go to one of its sessions, the
same one in every copy of the ledger."""

TOKENS = ("input_tokens", "output_tokens", "cached_tokens")
"""The columns of a question that hold the tokens of its answer."""

BILLS = ("picos", "estimated", "billed", *TOKENS)
"""The columns of the spend that come from bills by the token; see `Tally`."""

COUNTED = ("queries", "micros", "answered", "refused", "waived", *BILLS)
"""The columns of the spend that are sums."""

_COUNT = (
    f"INSERT INTO spend(classifier, day, session, {', '.join(COUNTED)}, command)"  # noqa: S608
    f" VALUES ({', '.join('?' * (len(COUNTED) + 4))}) ON CONFLICT(classifier, day, session) DO UPDATE"
    f" SET {', '.join(f'{column} = spend.{column} + excluded.{column}' for column in COUNTED)}"
)

T = TypeVar("T")
Value = bytes | str | int | float | None
Row = tuple[Value, ...]


class Known(NamedTuple):
    """What the table says about a question."""

    label: str | None
    score: float | None
    options: str | None
    status: int | None
    session: int | None
    batch: int | None
    at: int
    """When it was answered, or else granted or renewed last, in milliseconds."""

    def answer(self) -> Answer:
        """The answer to a question that has one."""
        return Answer(self.label or NO_LABEL, self.score, self.status, options=unpack_options(self.options))


class BatchRow(NamedTuple):
    """A batch as the table has it."""

    id: int
    classifier: int
    session: int
    day: int
    command: str | None
    at: int
    file: str | None
    remote: str | None


BATCHES = ("batch", "reserved", "expected")
"""The columns of a question that is in a batch: which, and its prices, which take the place of a session's memory."""


class Tables(ABC):
    """The tables in one database, used by one thread at a time. Statements have a `?` for each value."""

    # What databases do differently ----------------------------------------------------------------------------------

    @abstractmethod
    def begin(self, spending: bool) -> None:
        """Start a transaction; if it is to spend, nobody else's can begin to until it ends."""

    @abstractmethod
    def commit(self) -> None:
        """End the transaction: everything is on disk when this returns."""

    @abstractmethod
    def committed(self) -> bool:
        """Whether the last transaction is on disk after all, though its commit failed."""

    @abstractmethod
    def roll_back(self) -> None:
        """End the transaction as if it had not been; never raises."""

    @abstractmethod
    def close(self) -> None:
        """Let go of the database."""

    @abstractmethod
    def again(self, error: Exception) -> bool:
        """Whether what failed so may work now; may wait for the database to be back."""

    @abstractmethod
    def passes(self, error: Exception) -> bool:
        """Whether what failed so works once another program lets go of the database, or it can be reached, or its disk
        has room again."""

    @abstractmethod
    def explain(self, error: Exception) -> LedgerError:
        """What a failure means for the user, in one line."""

    @abstractmethod
    def has_room(self) -> bool:
        """Whether what is granted now can surely be answered on disk later."""

    @abstractmethod
    def makes_room(self, error: Exception) -> bool:
        """Whether the disk was full and there may be room now for answers, if not for more."""

    @abstractmethod
    def full(self) -> LedgerError:
        """The disk is full."""

    @abstractmethod
    def clock(self, now: float) -> float:
        """The time by which leases run, in seconds, where this machine's clock says `now`."""

    @abstractmethod
    def version(self) -> int:
        """Another number than before if somebody else may have spent since."""

    @abstractmethod
    def known(self, keys: Sequence[bytes]) -> dict[bytes, Known]:
        """The questions that are in the table."""

    @abstractmethod
    def ask(self, rows: Sequence[Row]) -> None:
        """Enter new questions: key, classifier, digest, view, seed, number, micros, at, session."""

    @abstractmethod
    def answer(self, rows: Sequence[Row]) -> None:
        """Enter answers where there are none: key, label, score, options, status, latency, attempts, at, tokens."""

    @abstractmethod
    def execute(self, statement: str, values: Sequence[Value] = ()) -> list[tuple[Value, ...]]:
        """What a statement gives."""

    @abstractmethod
    def execute_many(self, statement: str, rows: Sequence[Sequence[Value]]) -> None:
        """The same statement for each row."""

    def retried(self, work: Callable[[], T]) -> T:
        """What the work gives; it is done again if it failed in a way that may pass."""
        for _ in range(TRIES - 1):
            try:
                return work()
            except Exception as error:
                if not self.again(error):
                    raise
        return work()

    # What they do alike ---------------------------------------------------------------------------------------------

    def ask_again(self, rows: Sequence[Row]) -> None:
        """Count one more send of known questions: micros, session, at, key."""
        self.execute_many(
            "UPDATE questions SET sends = sends + 1, micros = micros + ?, session = ?, at = ? WHERE key = ?", rows
        )

    def give_back(self, rows: Sequence[tuple[int, bytes]]) -> None:
        """Uncount one send of known questions: micros, key. What was never sent then is no question any more."""
        self.execute_many("UPDATE questions SET sends = sends - 1, micros = micros - ? WHERE key = ?", rows)
        self.execute_many(
            "DELETE FROM questions WHERE key = ? AND sends = 0 AND label IS NULL", [(key,) for _, key in rows]
        )

    def settle(self, rows: Sequence[tuple[int, bytes]]) -> None:
        """Change what questions cost, now that their bills are known: micros more, key."""
        self.execute_many("UPDATE questions SET micros = micros + ? WHERE key = ?", rows)

    def enter_batch(self, batch: BatchRow) -> None:
        """Remember a batch that is about to be sent."""
        self.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, ?, ?, ?)", batch)

    def put_in_batch(self, rows: Sequence[Row]) -> None:
        """Say that questions are in a batch: batch, reserved, expected, key."""
        self.execute_many(
            "UPDATE questions SET batch = ?, reserved = ?, expected = ?, session = NULL WHERE key = ?", rows
        )

    def take_out_of_batch(self, keys: Sequence[bytes]) -> None:
        """Say that questions are in no batch any more."""
        self.execute_many(
            "UPDATE questions SET batch = NULL, reserved = NULL, expected = NULL WHERE key = ?", [(k,) for k in keys]
        )

    def note_batch(self, batch: int, at: int, file: str | None, remote: str | None) -> None:
        """Remember what the vendor calls a batch and its file."""
        self.execute(
            "UPDATE batches SET at = ?, file = COALESCE(?, file), remote = COALESCE(?, remote) WHERE id = ?",
            (at, file, remote, batch),
        )

    def batch(self, batch: int) -> BatchRow | None:
        """A batch, if it is known."""
        rows = self.execute("SELECT * FROM batches WHERE id = ?", (batch,))
        return BatchRow(*rows[0]) if rows else None  # type: ignore[arg-type]

    def open_batches(self, classifier: int) -> list[BatchRow]:
        """The batches of a classifier that have questions without a result, oldest first."""
        rows = self.execute(
            "SELECT * FROM batches WHERE classifier = ? AND id IN"
            " (SELECT batch FROM questions WHERE batch IS NOT NULL) ORDER BY at, id",
            (classifier,),
        )
        return [BatchRow(*row) for row in rows]  # type: ignore[arg-type]

    def known_batches(self, fingerprint: str) -> frozenset[str]:
        """What the vendor calls the batches of a classifier."""
        rows = self.execute(
            "SELECT remote FROM batches JOIN classifiers c ON c.id = classifier"
            " WHERE fingerprint = ? AND remote IS NOT NULL",
            (fingerprint,),
        )
        return frozenset(str(remote) for (remote,) in rows)

    def in_batch(self, batch: int) -> dict[bytes, tuple[int, int]]:
        """The questions of a batch that have no result yet: what is reserved for each, and what is expected."""
        rows = self.execute("SELECT key, reserved, expected FROM questions WHERE batch = ?", (batch,))
        return {bytes(key): (_whole(reserved), _whole(expected)) for key, reserved, expected in rows}  # type: ignore[arg-type]

    def paces(self, classifier: int, since: float) -> dict[int, float]:
        """The calls a second that sessions have learned a classifier takes, each its own part, since a moment."""
        rows = self.execute(
            "SELECT session, rate FROM learned WHERE classifier = ? AND at >= ?", (classifier, int(since))
        )
        return {_whole(session): float(rate or 0) for session, rate in rows}

    def keep_paces(self, rows: Sequence[Row]) -> None:
        """Enter what sessions have learned: classifier, session, rate, at."""
        self.execute_many(
            "INSERT INTO learned VALUES (?, ?, ?, ?) ON CONFLICT(classifier, session) DO UPDATE"
            " SET rate = excluded.rate, at = excluded.at",
            rows,
        )

    def drop_paces(self, classifier: int, sessions: Sequence[int]) -> None:
        """Forget what sessions have learned."""
        self.execute_many(
            "DELETE FROM learned WHERE classifier = ? AND session = ?", [(classifier, each) for each in sessions]
        )

    def renew(self, session: int, at: int, keys: Sequence[bytes]) -> None:
        """Renew the leases of questions that the session still holds."""
        self.execute_many(
            "UPDATE questions SET at = ? WHERE key = ? AND session = ?", [(at, key, session) for key in keys]
        )

    def release(self, session: int, keys: Sequence[bytes]) -> None:
        """Release the leases of questions, for other sessions to take."""
        self.execute_many(
            "UPDATE questions SET session = NULL WHERE key = ? AND session = ?", [(key, session) for key in keys]
        )

    def keep_replies(self, rows: Sequence[tuple[bytes, bytes]]) -> None:
        """Keep raw replies: key, bytes."""
        self.execute_many("INSERT INTO replies VALUES (?, ?) ON CONFLICT DO NOTHING", rows)

    def check(self, checks: Sequence[Check]) -> None:
        """Store the labels of answered questions that were asked again."""
        self.execute_many("INSERT INTO checks VALUES (?, ?, ?) ON CONFLICT DO NOTHING", checks)

    def book(self, classifier: int, queries: int, micros: int) -> None:
        """Add to what was spent outside of questions, such as on checks; negative amounts are given back."""
        self.execute(
            "UPDATE classifiers SET loose_queries = loose_queries + ?, loose_micros = loose_micros + ? WHERE id = ?",
            (queries, micros, classifier),
        )

    def describe(self, classifier: int, description: str) -> None:
        """Keep a description for people to read."""
        self.execute("UPDATE classifiers SET description = ? WHERE id = ?", (description, classifier))

    def count(self, rows: Sequence[Row]) -> None:
        """Add to what was spent: classifier, day, session, what is in `COUNTED`, command."""
        self.execute_many(_COUNT, rows)

    def spend(self, classifier: int, day: int) -> Spend:
        """The spend on a classifier, in total and on one day (days since 1970), rounded up to a millionth."""
        columns = ", ".join(f"CAST(COALESCE(SUM({column}), 0) AS BIGINT)" for column in ("queries", "micros", "picos"))
        sums = []
        for condition, values in (("", (classifier,)), (" AND day = ?", (classifier, day))):
            statement = f"SELECT {columns} FROM spend WHERE classifier = ?{condition}"  # noqa: S608
            queries, micros, picos = map(_whole, self.execute(statement, values)[0])
            sums += [queries, micros + -(-picos // MICRO)]
        return Spend(*sums)

    def counts(self, classifier: int) -> tuple[int, int]:
        """The numbers of questions with and without an answer."""
        [(answered, unanswered)] = self.execute(
            "SELECT COUNT(label), COUNT(*) - COUNT(label) FROM questions WHERE classifier = ?", (classifier,)
        )
        return _whole(answered), _whole(unanswered)

    def find_classifier(self, fingerprint: str) -> int | None:
        """The id of a classifier, None if it has none."""
        rows = self.execute("SELECT id FROM classifiers WHERE fingerprint = ?", (fingerprint,))
        return _whole(rows[0][0]) if rows else None

    def classifier(self, fingerprint: str) -> int:
        """The id of a classifier, inserted where it is new."""
        self.execute("INSERT INTO classifiers(fingerprint) VALUES (?) ON CONFLICT DO NOTHING", (fingerprint,))
        return _whole(self.execute("SELECT id FROM classifiers WHERE fingerprint = ?", (fingerprint,))[0][0])

    def view(self, name: str) -> int:
        """The id of a view, inserted where it is new."""
        self.execute("INSERT INTO views(name) VALUES (?) ON CONFLICT DO NOTHING", (name,))
        return _whole(self.execute("SELECT id FROM views WHERE name = ?", (name,))[0][0])

    def beat(self, session: Session, now: float) -> None:
        """Heartbeat; registers again, because a suspended session may have been removed."""
        self.execute(
            "INSERT INTO sessions VALUES (?, ?, ?, ?, ?) ON CONFLICT(id) DO UPDATE SET beat = excluded.beat",
            (session.id, session.host, session.pid, session.born, now),
        )

    def sessions(self) -> list[tuple[Session, float]]:
        """The registered sessions, each with the time of its last heartbeat."""
        rows = self.execute("SELECT id, host, pid, born, beat FROM sessions")
        return [
            (Session(_whole(id), str(host), _whole(pid), str(born)), float(beat or 0))
            for id, host, pid, born, beat in rows
        ]

    def remove_sessions(self, sessions: Sequence[int]) -> None:
        """Remove sessions; their leases end with this."""
        self.execute_many("DELETE FROM sessions WHERE id = ?", [(id,) for id in sessions])


def pack(digest: str) -> bytes | str:
    """A digest as it is stored: as bytes if it is hexadecimal, which takes half the room."""
    try:
        packed = bytes.fromhex(digest)
    except ValueError:
        return digest
    return packed if packed.hex() == digest else digest


def unpack(stored: bytes | str) -> str:
    """The digest that `pack` stored."""
    return stored.hex() if isinstance(stored, bytes) else stored


def pack_options(options: tuple[Option, ...]) -> str | None:
    """A ranked list as it is stored: labels and scores in turn, as JSON; None where there is none."""
    if not options:
        return None
    return json.dumps([part for word, score in options for part in (word, _short(score))], separators=(",", ":"))


def unpack_options(stored: str | None) -> tuple[Option, ...]:
    """The ranked list that `pack_options` stored."""
    parts = json.loads(stored) if stored else []
    return tuple(zip(parts[::2], parts[1::2], strict=True))


def _short(score: float | None) -> float | None:
    """A score in seven digits; none where it is no number."""
    return None if score is None or not math.isfinite(score) else float(f"{score:.7g}")


def _whole(value: Value) -> int:
    return int(value or 0)
