"""Decisions about claims: spend is read, compared with the budget and updated in one transaction."""

from __future__ import annotations

import os
import platform
import secrets
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from math import isfinite
from operator import add
from pathlib import Path

from looktwice.classifiers import Answer
from looktwice.engine.budget import Budget, Spend
from looktwice.engine.ledger import schema
from looktwice.engine.ledger.schema import (
    Account,
    Claim,
    Database,
    Entry,
    Granted,
    InBatch,
    Outcome,
    OverBudget,
    Row,
    Session,
    Settled,
    Stored,
    Wait,
    unpack_answer,
)

DAY = 86_400
MOST_TOGETHER = 500
"""The maximum number of keys per lookup, and of operations per commit."""
MOST_VALUES = 30_000
"""The maximum number of values per statement."""
RAW_LIMIT = 262_144
"""The maximum size of a stored reply, before compression; for a longer reply, only the parsed answer is stored."""

NO_CHANGE = (0,) * len(schema.SPEND)

BEAT = 5.0
"""Seconds between heartbeats of a session that has queries in flight."""
DEAD = 30.0
"""Seconds without a heartbeat after which a session on another machine is treated as dead."""

Alive = Callable[[Sequence[Session], float], set[int]]
"""The ids of live sessions at a time of the ledger's clock."""


class Transaction:
    """One transaction: settlements first, then claims."""

    def __init__(self, database: Database, session: Session, alive: Alive) -> None:
        self.database, self.session, self._alive = database, session, alive
        self.now, self.today = 0.0, 0
        self._settled: list[tuple[Claim, Settled]] = []
        self._claims: list[Row] = []
        self._known: dict[bytes, Row] = {}
        """For each known query, the session in which it is in flight, or its stored answer."""
        self._spends: dict[int, Spend] = {}
        self._changes: dict[tuple[int, int], tuple[int, ...]] = defaultdict(lambda: NO_CHANGE)
        """Changes of the columns `schema.SPEND`, by classifier and day."""
        self._granted: Counter[int] = Counter()
        """The number of claims by classifier."""
        self._described: set[int] = set()
        self._living: set[int] | None = None

    def begin(self) -> None:
        """Take the write lock; no other session decides until it is released."""
        self.now = self.database.begin()
        self.today = int(self.now // DAY)

    def number(self) -> int:
        """The number of the last transaction that this session committed."""
        rows = self.database.execute("SELECT number FROM sessions WHERE id = ?", (self.session.id,))
        return int(rows[0][0]) if rows else 0

    def finish(self, number: int, beats: bool) -> None:
        """Write all decisions, without committing; the first call also removes sessions that were killed."""
        self.write_settled()
        self._insert(schema.claim_rows, self._claims)
        self._insert(schema.spend_rows, [(*key, *change) for key, change in self._changes.items()])
        if number == 1:
            dead = [row for row in self.database.execute("SELECT id FROM sessions") if row[0] not in self.living()]
            self.database.execute_many("DELETE FROM sessions WHERE id = ?", dead)
        if beats:
            self.database.execute(schema.BEAT, (*self.session[:4], self.now, number))

    # How claims end --------------------------------------------------------------------------------------------------

    def settle(self, claim: Claim, settled: Settled) -> None:
        """Record how a claim ended."""
        self._settled.append((claim, settled))

    def write_settled(self) -> None:
        """Store answers, subtract unsent and unbilled queries from the spend, and release the other failed queries,
        which stay in it."""
        answers: list[Row] = []
        returned: list[Row] = []
        freed: list[Row] = []
        replies: list[Row] = []
        for claim, settled in self._settled:
            key, result, bill = claim.entry.key, settled.result, settled.bill
            if isinstance(result, Answer):
                change = bill.picos - claim.reserve if bill else 0
                tokens = bill.tokens[:3] if bill else (None, None, None)
                self._count(claim, picos=change, answered=1, tokens=bill.tokens[:3] if bill else (0, 0, 0))
                row = _claim_row(claim, self.now, sends=0, picos=change, session=None)
                answers.append((*row, *_answer_row(result, settled), *tokens))
                if result.raw is not None and len(result.raw) <= RAW_LIMIT:
                    replies.append((key, zlib.compress(result.raw)))
            elif result is Outcome.UNSENT:
                self._count(claim, queries=-1, picos=-claim.reserve)
                returned.append((claim.reserve, self.session.id, key))
            else:
                freed.append((key, self.session.id))
        self._settled.clear()
        self._insert(schema.answer_rows, answers)
        self._insert(schema.reply_rows, replies)
        self.database.execute_many(schema.GIVE_BACK, returned)
        self.database.execute_many(schema.NEVER_SENT, [(key,) for *_, key in returned])
        self.database.execute_many(schema.FREE, freed)

    def settle_batch(self, batch: int, results: Sequence[Settled]) -> None:
        """Store results of a batch, each only once; results of queries that are no longer in the batch were stored
        before."""
        rows = self.database.execute(
            "SELECT key, digest, view, seed, number, of, classifier, reserve, day FROM queries WHERE session = ?",
            (batch,),
        )
        claims = {
            bytes(key): Claim(Entry(bytes(key), digest, view, seed, number, of), who, reserve, day, 0.0)
            for key, digest, view, seed, number, of, who, reserve, day in rows
        }
        ended = [(claims[result.key], result) for result in results if result.key in claims]
        self.database.execute_many(schema.FREE, [(settled.key, batch) for _, settled in ended])
        self._settled += ended

    def note_batch(self, batch: int, file: str | None, remote: str | None) -> None:
        """Store the vendor's names of the file and the batch, and this session as its owner."""
        self.database.execute(
            "UPDATE batches SET file = COALESCE(?, file), remote = COALESCE(?, remote), at = ?, owner = ? WHERE id = ?",
            (file, remote, self.now, self.session.id, batch),
        )

    # What may begin --------------------------------------------------------------------------------------------------

    def look_up(self, keys: Sequence[bytes]) -> None:
        """Look up queries that are about to be claimed."""
        for start in range(0, len(keys), MOST_TOGETHER):
            chunk = keys[start : start + MOST_TOGETHER]
            for key, *rest in self.database.execute(schema.known_rows(len(chunk)), chunk):
                self._known[bytes(key)] = tuple(rest)

    def claim(self, account: Account, requests: Sequence[tuple[Entry, int]], batch: int | None = None) -> list[Granted]:
        """Claim queries that were looked up, or say why not; a request is a query and its maximum cost, in picos."""
        who = schema.classifier_id(account.fingerprint)
        if who not in self._described:
            self.database.execute(schema.DESCRIBE, (who, account.fingerprint, account.description))
            self._described.add(who)
        send_at = self._first_send(who, account.rate) if account.rate else self.now
        owner = self.session.id if batch is None else batch
        results: list[Granted] = []
        for entry, reserve in requests:
            granted = self._decide(account, who, entry, reserve, send_at)
            if isinstance(granted, Claim):
                send_at += 1 / account.rate if account.rate else 0.0
                self._claims.append(_claim_row(granted, self.now, sends=1, picos=reserve, session=owner))
                self._known[entry.key] = (owner, 0, None)
                self._granted[who] += 1
                self._count(granted, queries=1, picos=reserve)
            results.append(granted)
        if account.rate:
            self.database.execute("UPDATE classifiers SET next_send = ? WHERE id = ?", (send_at, who))
        return results

    def claim_batch(self, batch: int, account: Account, requests: Sequence[tuple[Entry, int]]) -> list[Granted]:
        """Claim queries for a vendor's batch, which stay in flight until settled, whatever happens to the session."""
        self.write_settled()
        self.look_up([entry.key for entry, _ in requests])
        self.database.execute(
            "INSERT INTO batches(id, classifier, owner, at) VALUES (?, ?, ?, ?)",
            (batch, schema.classifier_id(account.fingerprint), self.session.id, self.now),
        )
        return self.claim(account, requests, batch)

    def _decide(self, account: Account, who: int, entry: Entry, reserve: int, send_at: float) -> Granted:
        session, picos, *answer = self._known.get(entry.key, (None, 0, None))
        if answer[0] is not None:
            return stored(picos, answer)
        if session is not None:
            if self.database.execute("SELECT 1 FROM batches WHERE id = ?", (session,)):
                return InBatch()
            if session in self.living():
                return Wait(elsewhere=True)
        waits = False
        for budget in account.budgets:
            group = [schema.classifier_id(member) for member in budget.group] or [who]
            spend = Spend.total(map(self._spend, group))
            if not budget.covers(spend, reserve):
                # A bill or a refusal may still return money; batches take too long to wait for.
                if not any(map(self._has_open_claims, group)):
                    return OverBudget(budget, spend)
                waits = True
        return Wait(elsewhere=False) if waits else Claim(entry, who, reserve, self.today, send_at, picos)

    def living(self) -> set[int]:
        """The live sessions, including this one."""
        if self._living is None:
            rows = self.database.execute("SELECT id, host, pid, born, beat FROM sessions")
            self._living = self._alive([Session(*row) for row in rows], self.now) | {self.session.id}
        return self._living

    def _has_open_claims(self, who: int) -> bool:
        return bool(self._granted[who]) or any(session in self.living() for session, _ in self._open_claims(who))

    def _open_claims(self, who: int) -> list[Row]:
        return self.database.execute(schema.OPEN, (who,))

    def _first_send(self, who: int, rate: float) -> float:
        """The send time of the next query.

        Send times are never later than the number of open claims requires, even if a clock was changed.
        """
        ((next_send,),) = self.database.execute("SELECT next_send FROM classifiers WHERE id = ?", (who,))
        claimed = self._granted[who] + sum(count for _, count in self._open_claims(who))
        return max(self.now, min(float(next_send), self.now + (claimed + 1) / rate))

    # What it costs ---------------------------------------------------------------------------------------------------

    def _spend(self, who: int) -> Spend:
        """The spend so far, including changes in this transaction."""
        if who not in self._spends:
            (row,) = self.database.execute(schema.SPENT, (self.today, self.today, who))
            self._spends[who] = Spend(*map(int, row))
        return self._spends[who]

    def _count(
        self, claim: Claim, queries: int = 0, picos: int = 0, answered: int = 0, tokens: Sequence[int] = (0, 0, 0)
    ) -> None:
        who, day = claim.classifier, claim.day
        self._spends[who] = self._spend(who).plus(queries, picos, today=day == self.today)
        change = (queries, picos, answered, *tokens)
        self._changes[who, day] = tuple(map(add, self._changes[who, day], change))

    def hold_budget(self, budget: Budget) -> Budget:
        """The budget with the totals stored for its scope; if there are none, its own totals are stored."""
        rows = self.database.execute("SELECT queries, micros FROM budgets WHERE scope = ?", (budget.scope,))
        if rows:
            return replace(budget, queries=rows[0][0], micros=rows[0][1])
        self.database.execute("INSERT INTO budgets VALUES (?, ?, ?)", (budget.scope, budget.queries, budget.micros))
        return budget

    def forget_budget(self, scope: str) -> None:
        """Delete the stored totals of this scope."""
        self.database.execute("DELETE FROM budgets WHERE scope = ?", (scope,))

    def set_alarm(self, profile: str, alarm: schema.Alarm | None) -> None:
        """Start an alarm, or update the number of pictures in an existing one; None ends the alarm."""
        if alarm is None:
            self.database.execute("DELETE FROM alarms WHERE profile = ?", (profile,))
        else:
            self.database.execute(schema.RAISE, (profile, *alarm))

    def _insert(self, statement: Callable[[int], str], rows: Sequence[Row]) -> None:
        """Insert rows with as few statements as possible."""
        step = MOST_VALUES // len(rows[0]) if rows else 1
        for start in range(0, len(rows), step):
            chunk = rows[start : start + step]
            self.database.execute(statement(len(chunk)), [value for row in chunk for value in row])


def stored(picos: int, row: Sequence[object]) -> Stored:
    """Decode a stored answer and its cost."""
    label, score, options, status, reading, at = row
    answer = unpack_answer(label, score, options, status)  # type: ignore[arg-type]
    return Stored(answer, reading or "", float(at), int(picos))  # type: ignore[arg-type]


def _claim_row(claim: Claim, now: float, sends: int, picos: int, session: int | None) -> Row:
    key, *about = claim.entry
    return key, claim.classifier, *about, sends, picos, claim.reserve, claim.day, now, session


def _answer_row(answer: Answer, settled: Settled) -> Row:
    score = answer.score if answer.score is not None and isfinite(answer.score) else None
    options = schema.pack_options(answer.options)
    return answer.label, score, options, answer.status, settled.latency, settled.reading


# Which sessions are alive -----------------------------------------------------------------------------------------


def new_session() -> Session:
    """Create a session of this process, with a random id that is unique across machines."""
    return Session(secrets.randbits(62), host(), os.getpid(), birth(os.getpid()), 0.0)


def living(sessions: Iterable[Session], now: float) -> set[int]:
    """The ids of the live sessions.

    A session on this machine is live as long as its process exists, even if stopped; heartbeats are used for other
    machines.
    """
    here = host()
    return {
        session.id for session in sessions if (_runs(session) if session.host == here else session.beat > now - DEAD)
    }


def host() -> str:
    """An identifier of the scope of process ids: machine, boot and process namespace."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def birth(pid: int) -> str:
    """The start time of a process, from the kernel; empty if not available."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _runs(session: Session) -> bool:
    """Whether the process of a session on this machine still exists; another process with the same id is recognised."""
    try:
        os.kill(session.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return not session.born or birth(session.pid) in (session.born, "")
