"""The ledger: claim a query before it is sent, settle it afterwards; every decision is one transaction.

One thread writes. It takes whatever is queued, first in first out, and commits it together, so that the database is
always a prefix of the queue. Nothing is decided outside a transaction: spend is read, compared and counted in one.
"""

from __future__ import annotations

import asyncio
import time
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import isfinite
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple, Protocol

from looktwice.classifiers.base import Answer
from looktwice.engine.budget import Bill, Budget, Spend
from looktwice.engine.ledger import schema
from looktwice.engine.ledger.schema import Entry, Outcome, Session, unpack_answer
from looktwice.engine.ledger.sessions import BEAT, DEAD, living, new_session
from looktwice.errors import LedgerError

DAY = 86_400
MOST_TOGETHER = 500
"""Operations that are committed together, at most."""
PATIENCE = 120.0
"""Seconds to wait for a database that is locked or away: longer than a process is usually stopped."""
RAW_LIMIT = 262_144
"""Bytes of a reply that are stored, before compression; of a longer one only what was read from it is kept."""

Row = tuple[Any, ...]


class Database(Protocol):
    """One place where a ledger is kept; errors are of the database's own kind until `explain` translates them."""

    name: str
    """For people; holds no password."""
    lasting: bool
    """Whether it outlives the process."""
    shared: bool
    """Whether sessions of other machines may use it, and a commit may be in doubt."""
    errors: tuple[type[Exception], ...]

    def begin(self) -> float:
        """Begin to write; the time by the database's clock."""

    def execute(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement of the transaction."""

    def execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one statement for each row."""

    def commit(self) -> None: ...

    def roll_back(self) -> None: ...

    def read(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Rows as they are now, from any thread."""

    def explain(self, error: Exception) -> LedgerError:
        """What a failure means for the user."""

    def may_pass(self, error: Exception) -> bool:
        """Whether waiting may help: it is locked, away, or its disk is full."""

    def is_full(self, error: Exception) -> bool:
        """Whether its disk is full."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to send one query; it is counted as spent until it is settled."""

    entry: Entry
    classifier: int
    reserve: int
    """The most that it can cost, in picos."""
    day: int
    """The UTC day on which it counts."""
    send_at: float
    """When it may be sent, by the ledger's clock."""


class Stored(NamedTuple):
    """An answer that the ledger has, the digest of how it was read from its reply, and when it came."""

    answer: Answer
    reading: str
    at: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now: another claim has the query in flight, or one that is open may give money back."""

    elsewhere: bool


@dataclass(frozen=True, slots=True)
class InBatch:
    """The query is in a vendor's batch whose results have not been fetched."""


@dataclass(frozen=True, slots=True)
class OverBudget:
    """The budget does not cover the query, and no open claim can change that."""

    spend: Spend


Granted = Claim | Stored | Wait | InBatch | OverBudget


class OpenBatch(NamedTuple):
    """Queries that were given to a vendor as one batch, or were about to be, and whose results are not all here."""

    id: int
    file: str | None
    """The vendor's name of the file with its queries, once that is known to be there."""
    remote: str | None
    """The vendor's name of the batch, once that is known to be there."""
    at: float
    keys: tuple[bytes, ...]
    """The queries that have no result yet."""
    owned: bool
    """Whether a live session that is not this one is about to send it."""

    @property
    def name(self) -> str:
        """Its name at the vendor, which we choose."""
        return f"looktwice-{self.id:016x}"


@dataclass(frozen=True, slots=True)
class Settled:
    """How a query ended: its answer, or the outcome without one."""

    key: bytes
    result: Answer | Outcome
    bill: Bill | None = None
    latency: float = 0.0
    reading: str = ""


@dataclass(eq=False, slots=True)
class _Operation:
    """One thing to write; the future is resolved in its own loop when it is committed."""

    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]
    result: Any = None


@dataclass(eq=False, slots=True)
class _Claiming(_Operation):
    fingerprint: str = ""
    description: str = ""
    requests: Sequence[tuple[Entry, int]] = ()
    budget: Budget = field(default_factory=Budget)
    rate: float | None = None
    batch: int | None = None


@dataclass(eq=False, slots=True)
class _Settling(_Operation):
    claim: Claim | None = None
    settled: Settled | None = None


@dataclass(eq=False, slots=True)
class _Work(_Operation):
    """Any other change, made inside the transaction."""

    work: Callable[[Transaction], Any] = lambda _: None


class Ledger:
    """What was asked and what came back; safe to use from any thread and loop."""

    def __init__(self, database: Database, alive: Callable[[Sequence[Session], float], set[int]] = living) -> None:
        self.database = database
        self.session = new_session()
        self._alive = alive
        self._queue: SimpleQueue[_Operation | None] = SimpleQueue()
        self._thread: Thread | None = None
        self._open: set[bytes] = set()
        """The queries that this session has claimed and not settled."""
        self._number = 0
        """Transactions that this session has committed."""
        self._beat_at = float("-inf")
        """When the last heartbeat was written, by this machine's clock."""
        self._offset = 0.0
        """What the ledger's clock is ahead of this machine's."""
        self._closing = False

    # Reading -------------------------------------------------------------------------------------------------------

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Stored]:
        """The answers to these queries; keys that have none are left out."""
        found: dict[bytes, Stored] = {}
        for start in range(0, len(keys), MOST_TOGETHER):
            part = keys[start : start + MOST_TOGETHER]
            for key, _, *answer in self._read(schema.known_rows(len(part)), part):
                if answer[0] is not None:
                    found[bytes(key)] = _stored(answer)
        return found

    def reply(self, key: bytes) -> bytes | None:
        """The reply behind an answer, as it came; None where it was too long or the classifier gave none."""
        rows = self._read("SELECT raw FROM replies WHERE key = ?", (key,))
        return zlib.decompress(bytes(rows[0][0])) if rows else None

    def spend(self, fingerprint: str) -> Spend:
        """What the classifier has cost so far."""
        today = self.today()
        ((total, picos, queries_today, picos_today),) = self._read(
            schema.SPENT, (today, today, schema.classifier_id(fingerprint))
        )
        return Spend(int(total), int(picos), int(queries_today), int(picos_today))

    def open_batches(self, fingerprint: str) -> list[OpenBatch]:
        """The batches that have queries without a result, oldest first."""
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
        """What the vendor calls every batch that was ever noted."""
        who = schema.classifier_id(fingerprint)
        rows = self._read("SELECT remote FROM batches WHERE classifier = ? AND remote IS NOT NULL", (who,))
        return frozenset(str(remote) for (remote,) in rows)

    def _read(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        if self._closing:
            raise LedgerError("the ledger is closed")
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
        """Whether a claim may still be sent: its day is not over, and no other machine can take this one for dead."""
        return claim.day == self.today() and (not self.database.shared or _clock() - self._beat_at < DEAD / 2)

    # Writing -------------------------------------------------------------------------------------------------------

    async def claim(
        self,
        fingerprint: str,
        requests: Sequence[tuple[Entry, int]],
        budget: Budget,
        rate: float | None = None,
        description: str = "",
        batch: int | None = None,
    ) -> list[Granted]:
        """What may be sent, as soon as that is committed; each request is a query and the most it can cost, in picos.

        A query that is granted is in flight until it is settled, or this session is dead. With a `rate` (queries a
        second) each claim also says when it may be sent, so that the rate holds for all sessions together. The queries
        of a vendor's `batch` stay in flight until they are settled, whoever lives.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Granted]] = loop.create_future()
        claiming = _Claiming(
            loop,
            future,
            fingerprint=fingerprint,
            description=description,
            requests=requests,
            budget=budget,
            rate=rate,
            batch=batch,
        )
        self._put(claiming)
        return await future

    def settle(self, claim: Claim, settled: Settled) -> asyncio.Future[None]:
        """Queue how a claim ended; only the first time counts. The future is resolved when it is committed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if claim.entry.key not in self._open:
            future.set_result(None)
            return future
        self._open.discard(claim.entry.key)
        self._put(_Settling(loop, future, claim=claim, settled=settled))
        return future

    async def change(self, work: Callable[[Transaction], Any]) -> Any:
        """Make another change inside a transaction; what `work` returns, once that is committed."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Any] = loop.create_future()
        self._put(_Work(loop, future, work=work))
        return await future

    def close(self) -> None:
        """Write what is queued, end the session and let go of the database; closing twice is fine."""
        if self._closing:
            return
        self._closing = True
        if self._thread:
            self._queue.put(None)
            self._thread.join()
        self.database.close()

    def _put(self, operation: _Operation) -> None:
        if self._closing:
            raise LedgerError("the ledger is closed")
        if self._thread is None:
            self._thread = Thread(target=self._live, name="ledger", daemon=True)
            self._thread.start()
        self._queue.put(operation)

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
        """What is queued, after waiting for the first of it; whether more may come."""
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
        """Commit operations together; a failure that may pass is retried, but no claim is granted on a full disk."""
        until, in_doubt = time.monotonic() + PATIENCE, False
        while True:
            transaction = Transaction(self, operations)
            try:
                transaction.begin()
                if in_doubt and transaction.number() == self._number + 1:
                    self.database.roll_back()  # the last try was committed, and only its confirmation was lost
                else:
                    transaction.apply()
                    in_doubt = self.database.shared
                    self.database.commit()
            except self.database.errors as error:
                self.database.roll_back()
                problem = self.database.explain(error)
                if self.database.is_full(error):
                    operations = _fail(operations, problem, _Claiming)
                if not self.database.may_pass(error) or time.monotonic() > until or not operations:
                    _fail(operations, problem)
                    return
                time.sleep(0.05)
            except Exception as error:
                self.database.roll_back()
                _fail(operations, error)
                return
            else:
                self._number += 1
                self._beat_at = _clock()
                self._offset = transaction.now - time.time()
                self._resolve(operations)
                return

    def _resolve(self, operations: list[_Operation]) -> None:
        """Hand results over, with one wake-up of each loop."""
        loops: dict[asyncio.AbstractEventLoop, list[_Operation]] = defaultdict(list)
        for operation in operations:
            if isinstance(operation, _Claiming) and operation.batch is None:
                self._open.update(each.entry.key for each in operation.result if isinstance(each, Claim))
            loops[operation.loop].append(operation)
        for loop, part in loops.items():
            with suppress(RuntimeError):  # the loop is closed; what was written is kept
                loop.call_soon_threadsafe(self._deliver, part)

    def _deliver(self, operations: list[_Operation]) -> None:
        for operation in operations:
            if not operation.future.done():
                operation.future.set_result(operation.result)
            elif isinstance(operation, _Claiming):  # whoever asked for it has left
                for granted in operation.result:
                    if isinstance(granted, Claim):
                        self.settle(granted, Settled(granted.entry.key, Outcome.UNSENT))


class Transaction:
    """Operations as one change of the tables."""

    def __init__(self, ledger: Ledger, operations: Sequence[_Operation]) -> None:
        self.database, self._ledger, self._operations = ledger.database, ledger, operations
        self.session = ledger.session
        self._changes: dict[tuple[int, int], Counter[str]] = defaultdict(Counter)
        """What is added to the spend, by classifier and day."""
        self._read_spends: dict[int, Spend] = {}
        self._granted: Counter[int] = Counter()
        """How many queries were claimed of each classifier."""
        self._live: set[int] | None = None
        self.now, self.today = 0.0, 0

    def begin(self) -> None:
        """Take the write lock; no other session decides until the end."""
        self.now = self.database.begin()
        self.today = int(self.now // DAY)

    def number(self) -> int:
        """The number of the last transaction that this session committed."""
        rows = self.database.execute("SELECT number FROM sessions WHERE id = ?", (self.session.id,))
        return int(rows[0][0]) if rows else 0

    def apply(self) -> None:
        """Run every statement but the commit: what has ended first, then what may begin."""
        ended = [each for each in self._operations if isinstance(each, _Settling)]
        self.settle([(each.claim, each.settled) for each in ended if each.claim and each.settled])
        for operation in self._operations:
            if isinstance(operation, _Work):
                operation.result = operation.work(self)
        claiming = [each for each in self._operations if isinstance(each, _Claiming)]
        if claiming:
            self._grant(claiming)
        self._save_spend()
        if not self._ledger._number:  # sessions that were killed; their claims are free already
            rows = self.database.execute("SELECT id FROM sessions")
            self.database.execute_many(
                "DELETE FROM sessions WHERE id = ?", [row for row in rows if row[0] not in self._living()]
            )
        if self.database.shared or _clock() - self._ledger._beat_at >= BEAT:
            self.database.execute(schema.BEAT, (*self.session[:4], self.now, self._ledger._number + 1))

    # How claims end --------------------------------------------------------------------------------------------------

    def settle(self, ended: Sequence[tuple[Claim, Settled]]) -> None:
        """Store answers, give back what was not sent or is not billed, and free what stays counted."""
        answers: list[Row] = []
        returned: list[Row] = []
        freed: list[Row] = []
        replies: list[Row] = []
        for claim, settled in ended:
            key, result = claim.entry.key, settled.result
            if isinstance(result, Answer):
                change = settled.bill.picos - claim.reserve if settled.bill else 0
                tokens = settled.bill.tokens[:3] if settled.bill else (None, None, None)
                self._count(claim, picos=change, answered=1, tokens=tokens)
                answers.append(
                    (
                        *self._claim_row(claim, sends=0, picos=change, session=None),
                        *_answer_row(result, settled),
                        *tokens,
                    )
                )
                if result.raw is not None and len(result.raw) <= RAW_LIMIT:
                    replies.append((key, zlib.compress(result.raw)))
            elif result is Outcome.UNSENT:
                self._count(claim, queries=-1, picos=-claim.reserve)
                returned.append((claim.reserve, self.session.id, key))
            else:
                freed.append((key, self.session.id))
        self._insert(schema.answer_rows, answers)
        self._insert(schema.reply_rows, replies)
        self.database.execute_many(schema.GIVE_BACK, returned)
        self.database.execute_many(schema.NEVER_SENT, [(key,) for *_, key in returned])
        self.database.execute_many(schema.FREE, freed)

    def settle_batch(self, batch: int, results: Sequence[Settled]) -> None:
        """Enter results of a batch, each only once; those that have left the batch were entered before."""
        rows = self.database.execute(
            "SELECT key, digest, view, seed, number, of, classifier, reserve, day FROM queries WHERE session = ?",
            (batch,),
        )
        claims = {
            bytes(key): Claim(Entry(bytes(key), digest, view, seed, number, of), who, reserve, day, 0.0)
            for key, digest, view, seed, number, of, who, reserve, day in rows
        }
        ended = [(claims[each.key], each) for each in results if each.key in claims]
        self.database.execute_many(schema.FREE, [(settled.key, batch) for _, settled in ended])
        self.settle(ended)

    def note_batch(self, batch: int, file: str | None, remote: str | None) -> None:
        """Remember what the vendor calls the file and the batch, and that this session sends it."""
        self.database.execute(
            "UPDATE batches SET file = COALESCE(?, file), remote = COALESCE(?, remote), at = ?, owner = ? WHERE id = ?",
            (file, remote, self.now, self.session.id, batch),
        )

    def _claim_row(self, claim: Claim, sends: int, picos: int, session: int | None) -> Row:
        return (
            *claim.entry[:1],
            claim.classifier,
            *claim.entry[1:],
            sends,
            picos,
            claim.reserve,
            claim.day,
            self.now,
            session,
        )

    # What may begin --------------------------------------------------------------------------------------------------

    def _grant(self, operations: Sequence[_Claiming]) -> None:
        known = self._known([entry.key for operation in operations for entry, _ in operation.requests])
        claims: list[Row] = []
        for fingerprint, description in {each.fingerprint: each.description for each in operations}.items():
            self._describe(fingerprint, description)
        for operation in operations:
            who = schema.classifier_id(operation.fingerprint)
            send_at = self._first_send(who, operation.rate) if operation.rate else self.now
            operation.result = []
            for entry, reserve in operation.requests:
                granted = self._decide(operation, who, entry, reserve, known.get(entry.key))
                if isinstance(granted, Claim):
                    granted = replace(granted, send_at=send_at)
                    send_at += 1 / operation.rate if operation.rate else 0.0
                    owner = self.session.id if operation.batch is None else operation.batch
                    claims.append(self._claim_row(granted, sends=1, picos=reserve, session=owner))
                    known[entry.key] = (owner, None)
                    self._granted[who] += 1
                    self._count(granted, queries=1, picos=reserve)
                operation.result.append(granted)
            if operation.rate:
                self.database.execute("UPDATE classifiers SET next_send = ? WHERE id = ?", (send_at, who))
            if operation.batch is not None:
                self.database.execute(
                    "INSERT INTO batches(id, classifier, owner, at) VALUES (?, ?, ?, ?)",
                    (operation.batch, who, self.session.id, self.now),
                )
        self._insert(schema.claim_rows, claims)

    def _describe(self, fingerprint: str, description: str) -> None:
        self.database.execute(
            "INSERT INTO classifiers(id, fingerprint, description, next_send) VALUES (?, ?, ?, 0)"
            " ON CONFLICT(id) DO UPDATE SET description = excluded.description"
            " WHERE classifiers.description != excluded.description",
            (schema.classifier_id(fingerprint), fingerprint, description),
        )

    def _decide(self, operation: _Claiming, who: int, entry: Entry, reserve: int, row: Row | None) -> Granted:
        if row and row[1] is not None:
            return _stored(row[1:])
        if row and row[0] is not None:
            if self._is_batch(row[0]):
                return InBatch()
            if row[0] in self._living():
                return Wait(elsewhere=True)
        spend = self._spend(who)
        if operation.budget.covers(spend, reserve):
            return Claim(entry, who, reserve, self.today, self.now)
        return Wait(elsewhere=False) if self._has_open_claims(who) else OverBudget(spend)

    def _known(self, keys: Sequence[bytes]) -> dict[bytes, Row]:
        rows = []
        for start in range(0, len(keys), MOST_TOGETHER):
            part = keys[start : start + MOST_TOGETHER]
            rows += self.database.execute(schema.known_rows(len(part)), part)
        return {bytes(key): tuple(rest) for key, *rest in rows}

    def _living(self) -> set[int]:
        """The live sessions, this one included."""
        if self._live is None:
            rows = self.database.execute("SELECT id, host, pid, born, beat FROM sessions")
            self._live = self._ledger._alive([Session(*row) for row in rows], self.now) | {self.session.id}
        return self._live

    def _is_batch(self, session: int) -> bool:
        return bool(self.database.execute("SELECT 1 FROM batches WHERE id = ?", (session,)))

    def _has_open_claims(self, who: int) -> bool:
        """Whether a bill or a refusal may still give something back; batches take too long to wait for."""
        rows = self.database.execute(schema.OPEN, (who,))
        return self._granted[who] > 0 or any(session in self._living() for session, _ in rows)

    def _first_send(self, who: int, rate: float) -> float:
        """When the next query may be sent.

        No more moments are ahead than claims are open, wherever a clock was set meanwhile.
        """
        ((stored,),) = self.database.execute("SELECT next_send FROM classifiers WHERE id = ?", (who,))
        claimed = self._granted[who] + sum(count for _, count in self.database.execute(schema.OPEN, (who,)))
        return max(self.now, min(float(stored), self.now + (claimed + 1) / rate))

    # What it costs ---------------------------------------------------------------------------------------------------

    def _spend(self, who: int) -> Spend:
        """The spend so far, including that of this transaction."""
        if who not in self._read_spends:
            (row,) = self.database.execute(schema.SPENT, (self.today, self.today, who))
            self._read_spends[who] = Spend(*map(int, row))
            for (each, day), change in self._changes.items():
                if each == who:
                    self._add(who, day, change["queries"], change["picos"])
        return self._read_spends[who]

    def _count(
        self, claim: Claim, queries: int = 0, picos: int = 0, answered: int = 0, tokens: Sequence[int | None] = ()
    ) -> None:
        who, day = claim.classifier, claim.day
        counts = dict(zip(schema.SPEND[3:], (token or 0 for token in tokens), strict=False))
        self._changes[who, day].update({"queries": queries, "picos": picos, "answered": answered, **counts})
        if who in self._read_spends:
            self._add(who, day, queries, picos)

    def _add(self, who: int, day: int, queries: int, picos: int) -> None:
        old, today = self._read_spends[who], int(day == self.today)
        self._read_spends[who] = Spend(
            old.queries + queries,
            old.picos + picos,
            old.queries_today + today * queries,
            old.picos_today + today * picos,
        )

    def _save_spend(self) -> None:
        rows = [(who, day, *(change[name] for name in schema.SPEND)) for (who, day), change in self._changes.items()]
        self._insert(schema.spend_rows, rows)

    def _insert(self, statement: Callable[[int], str], rows: Sequence[Row]) -> None:
        """Insert rows by one statement for as many as a statement may hold."""
        step = 30_000 // len(rows[0]) if rows else 1
        for start in range(0, len(rows), step):
            part = rows[start : start + step]
            self.database.execute(statement(len(part)), schema.flat(part))


def held_budget(scope: str, budget: Budget, transaction: Transaction) -> Budget:
    """The totals that were stored for this scope, or else these, which are stored now."""
    rows = transaction.database.execute("SELECT queries, micros FROM budgets WHERE scope = ?", (scope,))
    if rows:
        return replace(budget, queries=rows[0][0], micros=rows[0][1])
    transaction.database.execute(
        "INSERT INTO budgets(scope, queries, micros) VALUES (?, ?, ?)", (scope, budget.queries, budget.micros)
    )
    return budget


def forget_budget(scope: str, transaction: Transaction) -> None:
    transaction.database.execute("DELETE FROM budgets WHERE scope = ?", (scope,))


def _stored(row: Sequence[Any]) -> Stored:
    *answer, reading, at = row
    return Stored(unpack_answer(*answer), reading or "", float(at))


def _answer_row(answer: Answer, settled: Settled) -> Row:
    score = answer.score if answer.score is not None and isfinite(answer.score) else None
    options = schema.pack_options(answer.options)
    return answer.label, score, options, answer.status, settled.latency, settled.reading


def _fail(operations: Sequence[_Operation], error: Exception, kind: type[_Operation] = _Operation) -> list[_Operation]:
    """Give those of this kind the error; the others."""
    for operation in operations:
        if isinstance(operation, kind):
            with suppress(RuntimeError):  # the loop is closed
                operation.loop.call_soon_threadsafe(_raise, operation.future, error)
    return [operation for operation in operations if not isinstance(operation, kind)]


def _raise(future: asyncio.Future[Any], error: Exception) -> None:
    if not future.done():
        future.set_exception(error)


def _clock() -> float:
    """Seconds that pass also while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()
