"""Accounting of grants, answers and spend: the writer turns each batch of operations into one transaction."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from math import isfinite
from typing import NamedTuple

from looktwice.asking.ledger.operations import Batch, Intent, Learned, Record, Settlement
from looktwice.asking.ledger.protocol import (
    BEAT,
    CUT,
    DEAD,
    FADE,
    LEASE,
    MICRO,
    RAW_LIMIT,
    Bill,
    Booked,
    Grant,
    Outcome,
    Session,
    Spend,
    living,
    running,
)
from looktwice.asking.ledger.sql import BatchRow, Known, Row, Tables, pack, pack_options
from looktwice.classifiers.base import Answer

DAY = 86_400
NO_TOKENS = (None, None, None)


class Stamp(NamedTuple):
    """Where the last grant of a question was counted, and at what price."""

    classifier: int
    day: int
    price: int


class Tally(NamedTuple):
    """An addition to the spend of a day."""

    queries: int = 0
    micros: int = 0
    answered: int = 0
    refused: int = 0
    waived: int = 0
    picos: int = 0
    """The fractions of a millionth in the bills, in millionths of a millionth."""
    estimated: int = 0
    """The estimated cost of the queries that have a bill, in millionths."""
    billed: int = 0
    """Their billed cost, in whole millionths each."""
    input: int = 0
    output: int = 0
    cached: int = 0

    def __add__(self, other: tuple[int, ...]) -> Tally:  # type: ignore[override]
        return Tally(*(mine + more for mine, more in zip(self, other, strict=True)))


def _settled(bill: Bill, price: int, answered: int) -> Tally:
    """What a bill adds to the spend beyond the price that was counted when the query was granted."""
    micros, picos = divmod(bill.picos, MICRO)
    return Tally(0, micros - price, answered, 0, 0, picos, bill.estimated, micros, *bill.tokens[:3])


def _tally(outcome: Outcome, queries: int, price: int) -> Tally:
    """What the outcome of queries adds to the spend that was counted when they were granted."""
    match outcome:
        case Outcome.ANSWERED:
            return Tally(answered=queries)
        case Outcome.REFUSED:
            return Tally(refused=queries)
        case Outcome.WAIVED:
            return Tally(-queries, -queries * price, refused=queries, waived=queries)
        case Outcome.UNSENT:
            return Tally(-queries, -queries * price)


class Accounting:
    """Writes batches to the tables, and caches what this session needs of them. Only one thread may use it."""

    def __init__(self, tables: Tables, session: Session) -> None:
        self.tables = tables
        self._session = session
        self.stamps: dict[bytes, Stamp] = {}
        """The questions this session has in flight."""
        self._views: dict[str, int] = {}
        self._classifiers: dict[str, int] = {}
        self._spends: dict[int, Spend] = {}
        """The spend on each classifier, with today's part; valid while `_day` and `_version` are."""
        self._changes: dict[tuple[int, int, Session], Tally] = {}
        """Additions to the spend that are not written yet, by classifier, day and session."""
        self._paces: dict[int, float] = {}
        """The pace that was last written for each classifier."""
        self._sending: set[int] = set()
        """The batches that this session is about to send."""
        self._old: dict[tuple[bytes, int], float] = {}
        """Since when leases of processes that run on this machine look as if they had ended, by the monotonic clock."""
        self._in_doubt: Batch | None = None
        """The batch whose commit was begun and not confirmed: the line may have broken before it, or after."""
        self._day = -1
        self._version = -1
        self._beaten: float | None = None

    def due(self, now: float) -> bool:
        """Whether a heartbeat is due: something is in flight, and the last one is old."""
        return bool(self.stamps or self._sending) and self._late(now)

    def write(self, batch: Batch, now: float) -> None:
        """Commit a batch: it is on disk when this returns, and nothing of it is if this raises."""
        late = self.tables.retried(lambda: self._write(batch, now))
        self._beaten = now if late else self._beaten
        for key in (*(record.key for record in batch.records), *batch.returned, *batch.surrendered):
            self.stamps.pop(key, None)
        for note in batch.notes:
            if note.remote:
                self._sending.discard(note.batch)
        self._sending.difference_update(settlement.batch for settlement in batch.settlements)
        for intent in batch.intents:
            if intent.batch is not None:
                self._sending.add(intent.batch)
                continue
            for key in intent.grant.granted:
                self.stamps[key] = Stamp(intent.classifier, self._day, intent.price_of(key))

    def close(self) -> None:
        """Remove the session and close the database."""
        with suppress(Exception):
            if self._beaten is not None:
                self.tables.begin(spending=False)
                self.tables.remove_sessions([self._session.id])
                self.tables.commit()
        self.tables.close()

    def _write(self, batch: Batch, now: float) -> bool:
        """Write the batch; whether a heartbeat was written with it."""
        if batch is self._in_doubt and self.tables.committed():
            return False
        self.tables.begin(spending=bool(batch.asked() or batch.settlements or batch.learned))
        try:
            self._apply(batch, now)
            if late := self._late(now):
                if self._beaten is None:  # sessions that were killed; their leases have ended already
                    sessions = self.tables.sessions()
                    alive = living(sessions, now)
                    self.tables.remove_sessions([each.id for each, _ in sessions if each.id not in alive])
                self.tables.beat(self._session, now)
            self._in_doubt = batch
            self.tables.commit()
            self._in_doubt = None
        except BaseException:
            self.tables.roll_back()
            for memory in (self._views, self._classifiers, self._spends, self._changes, self._paces):
                memory.clear()
            raise
        return late

    def _apply(self, batch: Batch, now: float) -> None:
        at = int(self.tables.clock(now) * 1000)
        version, day = self.tables.version(), int(now // DAY)
        if (version, day) != (self._version, self._day):  # another process has written since, or the day is over
            self._spends.clear()
            self._version, self._day = version, day
        for learned in batch.learned:
            classifier = self._classifier(learned.fingerprint)
            learned.share = self._join(classifier, at, now) if learned.joins else self._keep(classifier, learned, at)
        self._answer(batch.records, at, batch.raw)
        self._return(batch.returned)
        self.tables.release(self._session.id, [*batch.returned, *batch.surrendered])
        self.tables.renew(self._session.id, at, batch.renewed)
        for note in batch.notes:
            self.tables.note_batch(note.batch, at, note.file, note.remote)
        for settlement in batch.settlements:
            self._settle(settlement, at, batch.raw)
        self._grant(batch.intents, at, now)
        for booking in batch.bookings:
            fingerprint, queries, price = booking.fingerprint, booking.queries, booking.price
            classifier, booking.booked = self._classifier(fingerprint), None
            if queries <= booking.budget.room(self._spend(classifier), price):
                booking.booked = Booked(fingerprint, self._day, queries, price)
                self._count_loose(classifier, self._day, Tally(queries, queries * price))
        for (fingerprint, day, queries, price), outcome, bill in batch.conclusions:
            tally = _settled(bill, queries * price, queries) if bill else _tally(outcome, queries, price)
            self._count_loose(self._classifier(fingerprint), day, tally)
        self.tables.check(batch.checks)
        for fingerprint, description in batch.introductions:
            self.tables.describe(self._classifier(fingerprint), description)
        self._save_changes()

    def _join(self, classifier: int, at: int, now: float) -> float | None:
        """The share of a new session in the rate that others have learned; the total stays the same.

        It takes over the rate of sessions that have ended, and from the others what makes it their equal.
        """
        found = self.tables.paces(classifier, at - FADE * 1000)
        found.pop(self._session.id, None)
        if not found:
            return None
        alive = living(self.tables.sessions(), now)
        staying = {session: rate for session, rate in found.items() if session in alive}
        total, theirs = sum(found.values()), sum(staying.values())
        mine = max(total - theirs, total / (len(staying) + 1))
        self.tables.drop_paces(classifier, [session for session in found if session not in staying])
        self.tables.keep_paces(
            [(classifier, session, rate * (total - mine) / theirs, at) for session, rate in staying.items()]
            + [(classifier, self._session.id, mine, at)]
        )
        self._paces[classifier] = mine
        return mine

    def _keep(self, classifier: int, learned: Learned, at: int) -> float | None:
        """The rate of this session, less what new sessions have taken of it since it was written."""
        before = self._paces.pop(classifier, None)
        if learned.rate is None:
            self.tables.drop_paces(classifier, [self._session.id])
            return None
        found = self.tables.paces(classifier, at - FADE * 1000).get(self._session.id)
        rate = learned.rate * min(1.0, found / before if found and before else 1.0)
        self.tables.keep_paces([(classifier, self._session.id, rate, at)])
        self._paces[classifier] = rate
        return rate

    def _answer(self, records: Sequence[Record], at: int, raw: bool) -> None:
        """Store answers; the first one to a question stays: a second comes from a session taken for dead."""
        self.tables.answer(
            [
                (
                    key,
                    answer.label,
                    answer.score if answer.score is not None and isfinite(answer.score) else None,
                    pack_options(answer.options),
                    answer.status,
                    int(latency * 1e6),
                    attempts,
                    at,
                    *(bill.tokens[:3] if bill else NO_TOKENS),
                )
                for key, answer, latency, attempts, bill in records
            ]
        )
        replies = [(record.key, record.answer.raw) for record in records if raw and record.answer.raw is not None]
        cut = RAW_LIMIT - len(CUT)
        self.tables.keep_replies([(key, r if len(r) <= RAW_LIMIT else r[:cut] + CUT) for key, r in replies])
        unbilled: Counter[tuple[int, int]] = Counter()
        settled = []
        for key, _, _, _, bill in records:
            if not (stamp := self.stamps.get(key)):
                continue
            if bill is None:
                unbilled[stamp[:2]] += 1
            else:
                self._count(stamp.classifier, stamp.day, tally := _settled(bill, stamp.price, 1))
                settled.append((tally.micros, key))
        self.tables.settle(settled)
        for (classifier, day), answered in unbilled.items():
            self._count(classifier, day, Tally(answered=answered))

    def _settle(self, settlement: Settlement, at: int, raw: bool) -> None:
        """Enter the results of a batch, counted for the session and the day that sent it.

        Questions that have left the batch were entered before, by this session or another.
        """
        batch, waiting = self.tables.batch(settlement.batch), self.tables.in_batch(settlement.batch)
        results = [result for key, result in settlement.results.items() if key in waiting]
        if batch is None or not results:
            return
        sender = Session(batch.session, "", 0, "", batch.command)
        answers, changes, back = [], [], []
        for key, result, billed in results:
            reserved, expected = waiting[key]
            if isinstance(result, Answer):
                bill = billed and billed._replace(estimated=expected)
                answers.append(Record(key, result, (at - batch.at) / 1000, 1, bill))
                tally = _settled(bill, reserved, 1) if bill else Tally(answered=1)
                changes.append((tally.micros, key))
            else:
                tally = _tally(result, 1, reserved) if result else Tally()
                back += [(reserved, key)] if tally.queries else []
            self._count(batch.classifier, batch.day, tally, sender)
        self.tables.take_out_of_batch([key for key, _, _ in results])
        self.tables.settle(changes)
        self._answer(answers, at, raw)
        self.tables.give_back(back)

    def _return(self, returned: Mapping[bytes, Outcome]) -> None:
        """Count how questions without an answer ended; those that are not billed are given back."""
        back = []
        for key, outcome in returned.items():
            if stamp := self.stamps.get(key):
                tally = _tally(outcome, 1, stamp.price)
                self._count(stamp.classifier, stamp.day, tally)
                if tally.queries:
                    back.append((stamp.price, key))
        self.tables.give_back(back)

    def _grant(self, intents: Sequence[Intent], at: int, now: float) -> None:
        known = self.tables.known([key for intent in intents for key in intent.entries])
        held = self._held(known, at, now)
        fresh: list[Row] = []
        again = []
        for intent in intents:
            self._decide(intent, known, held)
            classifier, session = intent.classifier, self._session.id if intent.batch is None else None
            for granted in intent.grant.granted:
                price = intent.price_of(granted)
                if granted in known:
                    again.append((price, session, at, granted))
                    continue
                key, digest, view, seed, index, *_ = intent.entries[granted]
                if view not in self._views:
                    self._views[view] = self.tables.view(view)
                fresh.append((key, classifier, pack(digest), self._views[view], seed, index, price, at, session))
        self.tables.ask(fresh)
        self.tables.ask_again(again)
        for intent in intents:
            if intent.batch is not None and intent.grant.granted:
                sender = (self._session.id, self._day, self._session.command)
                self.tables.enter_batch(BatchRow(intent.batch, intent.classifier, *sender, at, None, None))
                rows = [(intent.batch, intent.price_of(k), intent.entries[k].expected, k) for k in intent.grant.granted]
                self.tables.put_in_batch(rows)

    def _held(self, known: dict[bytes, Known], at: int, now: float) -> set[bytes]:
        """The questions that another live session has in flight, with a lease that has not ended."""
        others = {
            key: row for key, row in known.items() if row.label is None and row.session not in (None, self._session.id)
        }
        sessions = self.tables.sessions() if others else []
        alive, here = living(sessions, now), running(sessions)
        return {
            key
            for key, row in others.items()
            if (row.session in alive and abs(at - row.at) < LEASE * 1000)
            or (row.session in here and self._may_be_renewed(key, row.at))
        }

    def _may_be_renewed(self, key: bytes, at: int) -> bool:
        """Whether to wait for a process that runs though its lease looks old: when a clock is set, all of them do.

        It notices that within a heartbeat and renews them; one that does not is not waited for any longer.
        """
        return time.monotonic() - self._old.setdefault((key, at), time.monotonic()) < DEAD

    def _decide(self, intent: Intent, known: dict[bytes, Known], in_flight: set[bytes]) -> None:
        intent.classifier = self._classifier(intent.fingerprint)
        queries, micros = intent.budget.left(self._spend(intent.classifier))
        grant = intent.grant = Grant()
        granted, answered, held, refused = grant.granted, grant.answered, grant.held, grant.refused
        spent = 0
        for key in intent.entries:
            row, price = known.get(key), intent.price_of(key)
            if row and row.label is not None:
                answered[key] = row.answer()
            elif row and row.batch is not None:
                grant.batched.append(key)
            elif key in in_flight:
                held.append(key)
            elif queries > 0 and price <= max(0, micros):
                granted.append(key)
                queries, micros = queries - 1, micros - price
                spent += price
            else:
                refused.append(key)
        self._count(intent.classifier, self._day, Tally(len(granted), spent))

    def _count_loose(self, classifier: int, day: int, tally: Tally) -> None:
        """Count queries that belong to no question, such as checks."""
        self._count(classifier, day, tally)
        if tally.queries or tally.micros:
            self.tables.book(classifier, tally.queries, tally.micros)

    def _count(self, classifier: int, day: int, tally: Tally, session: Session | None = None) -> None:
        change = (classifier, day, session or self._session)
        self._changes[change] = self._changes.get(change, Tally()) + tally
        if tally.picos:
            self._spends.pop(classifier, None)  # only the tables know the sum of the fractions
        elif old := self._spends.get(classifier):
            today = int(day == self._day)
            self._spends[classifier] = Spend(
                old.queries + tally.queries,
                old.micros + tally.micros,
                old.queries_today + today * tally.queries,
                old.micros_today + today * tally.micros,
            )

    def _spend(self, classifier: int) -> Spend:
        """The spend so far, including that of this transaction."""
        if classifier not in self._spends:
            self._save_changes()
            self._spends[classifier] = self.tables.spend(classifier, self._day)
        return self._spends[classifier]

    def _save_changes(self) -> None:
        changes = self._changes.items()
        self.tables.count([(who, day, by.id, *more, by.command) for (who, day, by), more in changes])
        self._changes.clear()

    def _late(self, now: float) -> bool:
        return self._beaten is None or abs(now - self._beaten) > BEAT

    def _classifier(self, fingerprint: str) -> int:
        if fingerprint not in self._classifiers:
            self._classifiers[fingerprint] = self.tables.classifier(fingerprint)
        return self._classifiers[fingerprint]
