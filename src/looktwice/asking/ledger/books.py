"""The books as the writer keeps them: one batch of operations becomes one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

from looktwice.asking.ledger.operations import Batch, Booking, Conclusion, Intent, Introduction, Record
from looktwice.asking.ledger.protocol import CUT, RAW_LIMIT, Booked, Grant, Outcome, Spend
from looktwice.asking.ledger.sessions import BEAT, LEASE, Session, living
from looktwice.asking.ledger.sql import Known, Row, Tables, pack, pack_options

DAY = 86_400


class Stamp(NamedTuple):
    """As what the last grant of a question was counted."""

    classifier: int
    day: int
    price: int


class Tally(NamedTuple):
    """What is added to the spend of a day."""

    queries: int = 0
    micros: int = 0
    answered: int = 0
    refused: int = 0
    waived: int = 0

    def __add__(self, other: tuple[int, ...]) -> Tally:  # type: ignore[override]
        return Tally(*(mine + more for mine, more in zip(self, other, strict=True)))


def _tally(outcome: Outcome, queries: int, price: int) -> Tally:
    """What telling the outcome of queries adds to the spend."""
    match outcome:
        case Outcome.ANSWERED:
            return Tally(answered=queries)
        case Outcome.REFUSED:
            return Tally(refused=queries)
        case Outcome.WAIVED:
            return Tally(-queries, -queries * price, refused=queries, waived=queries)
        case Outcome.UNSENT:
            return Tally(-queries, -queries * price)


class Books:
    """The tables, and what this session remembers of them. Only one thread may use it."""

    def __init__(self, tables: Tables, session: Session) -> None:
        self.tables = tables
        self._session = session
        self.stamps: dict[bytes, Stamp] = {}
        """The questions this session has in flight."""
        self._views: dict[str, int] = {}
        self._classifiers: dict[str, int] = {}
        self._spends: dict[int, Spend] = {}
        """What was spent on each classifier, with today's part; right while `_day` and `_version` are."""
        self._changes: dict[tuple[int, int], Tally] = {}
        """What is to be added to the spend, by classifier and day."""
        self._day = -1
        self._version = -1
        self._beaten: float | None = None

    def due(self, now: float) -> bool:
        """Whether others must hear that we live: there is something in flight, and the last sign is old."""
        return bool(self.stamps) and self._late(now)

    def write(self, batch: Batch, now: float) -> None:
        """Commit a batch: it is on disk when this returns, and nothing of it is if this raises."""
        late = self.tables.retried(lambda: self._write(batch, now))
        self._beaten = now if late else self._beaten
        self._remember(batch)

    def close(self) -> None:
        """Strike the session off and let go of the database."""
        with suppress(Exception):
            if self._beaten is not None:
                self.tables.begin(spending=False)
                self.tables.strike_off([self._session.id])
                self.tables.commit()
        self.tables.close()

    def _write(self, batch: Batch, now: float) -> bool:
        self.tables.begin(spending=bool(batch.asked()))
        try:
            late = self._apply(batch, now)
            self.tables.commit()
        except BaseException:
            self.tables.roll_back()
            self._forget()
            raise
        return late

    def _apply(self, batch: Batch, now: float) -> bool:
        at = int(self.tables.clock(now) * 1000)
        self._refresh(int(now // DAY))
        self._answer(batch.records, at, batch.raw)
        self._return(batch.returned)
        self.tables.let_go(self._session.id, [*batch.returned, *batch.surrendered])
        self.tables.renew(self._session.id, at, batch.renewed)
        self._grant(batch.intents, at, now)
        self._book(batch.bookings)
        self._conclude(batch.conclusions)
        self.tables.check(batch.checks)
        self._introduce(batch.introductions)
        self._save_changes()
        return self._sign(now)

    def _forget(self) -> None:
        for memory in (self._views, self._classifiers, self._spends, self._changes):
            memory.clear()

    def _refresh(self, day: int) -> None:
        """Forget the sums if another process has written since, or the day is over."""
        version = self.tables.version()
        if (version, day) != (self._version, self._day):
            self._spends.clear()
            self._version, self._day = version, day

    def _remember(self, batch: Batch) -> None:
        for record in batch.records:
            self.stamps.pop(record.key, None)
        for key in (*batch.returned, *batch.surrendered):
            self.stamps.pop(key, None)
        for intent in batch.intents:
            stamp = Stamp(intent.classifier, self._day, intent.price)
            self.stamps.update(dict.fromkeys(intent.grant.granted, stamp))

    def _answer(self, records: Sequence[Record], at: int, raw: bool) -> None:
        """The first answer to a question stays; a second one can only come from a session that was taken for dead."""
        self.tables.answer(
            [
                (
                    key,
                    answer.label,
                    answer.score,
                    pack_options(answer.options),
                    answer.status,
                    int(latency * 1e6),
                    attempts,
                    at,
                )
                for key, answer, latency, attempts in records
            ]
        )
        self.tables.keep_replies([(r.key, _cut(r.answer.raw)) for r in records if raw and r.answer.raw is not None])
        sent = Counter(stamp[:2] for record in records if (stamp := self.stamps.get(record.key)))
        for (classifier, day), answered in sent.items():
            self._count(classifier, day, Tally(answered=answered))

    def _return(self, returned: Mapping[bytes, Outcome]) -> None:
        """Count what became of questions that got no answer; those that are not billed are given back."""
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
        for intent in intents:
            self._decide(intent, known, held)
        self.tables.ask([row for intent in intents for row in self._fresh(intent, known, at)])
        self.tables.ask_again(
            [
                (intent.price, self._session.id, at, key)
                for intent in intents
                for key in intent.grant.granted
                if key in known
            ]
        )

    def _held(self, known: dict[bytes, Known], at: int, now: float) -> set[bytes]:
        """Those of these questions that another living session has in flight, and whose lease is not over."""
        leased = {
            key: row.session
            for key, row in known.items()
            if row.label is None and row.session not in (None, self._session.id) and abs(at - row.at) < LEASE * 1000
        }
        alive = living(self.tables.sessions(), now) if leased else set()
        return {key for key, session in leased.items() if session in alive}

    def _decide(self, intent: Intent, known: dict[bytes, Known], in_flight: set[bytes]) -> None:
        intent.classifier = self._classifier(intent.fingerprint)
        intent.grant = Grant()
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
                answered[key] = row.answer()
            elif key in in_flight:
                held.append(key)
            elif len(granted) < room:
                granted.append(key)
            else:
                refused.append(key)
        self._count(intent.classifier, self._day, Tally(len(granted), len(granted) * intent.price))

    def _fresh(self, intent: Intent, known: dict[bytes, Known], at: int) -> Iterator[Row]:
        classifier, price, session = intent.classifier, intent.price, self._session.id
        for granted in intent.grant.granted:
            if granted not in known:
                key, digest, view, seed, index = intent.entries[granted]
                yield key, classifier, pack(digest), self._view(view), seed, index, price, at, session

    def _book(self, bookings: Sequence[Booking]) -> None:
        for booking in bookings:
            classifier = self._classifier(booking.fingerprint)
            booking.booked = None
            if booking.queries <= booking.budget.room(self._spend(classifier), booking.price):
                booking.booked = Booked(booking.fingerprint, self._day, booking.queries, booking.price)
                self._count_loose(classifier, self._day, Tally(booking.queries, booking.queries * booking.price))

    def _conclude(self, conclusions: Sequence[Conclusion]) -> None:
        for (fingerprint, day, queries, price), outcome in conclusions:
            self._count_loose(self._classifier(fingerprint), day, _tally(outcome, queries, price))

    def _count_loose(self, classifier: int, day: int, tally: Tally) -> None:
        """Count what belongs to no question."""
        self._count(classifier, day, tally)
        if tally.queries:
            self.tables.book(classifier, tally.queries, tally.micros)

    def _introduce(self, introductions: Sequence[Introduction]) -> None:
        for fingerprint, description in introductions:
            self.tables.describe(self._classifier(fingerprint), description)

    def _count(self, classifier: int, day: int, tally: Tally) -> None:
        self._changes[classifier, day] = self._changes.get((classifier, day), Tally()) + tally
        if old := self._spends.get(classifier):
            today = int(day == self._day)
            self._spends[classifier] = Spend(
                old.queries + tally.queries,
                old.micros + tally.micros,
                old.queries_today + today * tally.queries,
                old.micros_today + today * tally.micros,
            )

    def _spend(self, classifier: int) -> Spend:
        """What was spent, with what this transaction has counted so far."""
        if classifier not in self._spends:
            self._save_changes()
            self._spends[classifier] = self.tables.spend(classifier, self._day)
        return self._spends[classifier]

    def _save_changes(self) -> None:
        session, command = self._session.id, self._session.command
        self.tables.count([(who, day, session, *more, command) for (who, day), more in self._changes.items()])
        self._changes.clear()

    def _sign(self, now: float) -> bool:
        """Whether a sign of life was written: it is, if the last one is old."""
        if not self._late(now):
            return False
        if self._beaten is None:
            self._strike_off_dead(now)
        self.tables.beat(self._session, now)
        return True

    def _strike_off_dead(self, now: float) -> None:
        """Remove sessions that ended without saying so; their questions are free already."""
        sessions = self.tables.sessions()
        alive = living(sessions, now)
        self.tables.strike_off([each.id for each, _ in sessions if each.id not in alive])

    def _late(self, now: float) -> bool:
        return self._beaten is None or abs(now - self._beaten) > BEAT

    def _classifier(self, fingerprint: str) -> int:
        if fingerprint not in self._classifiers:
            self._classifiers[fingerprint] = self.tables.classifier(fingerprint)
        return self._classifiers[fingerprint]

    def _view(self, name: str) -> int:
        if name not in self._views:
            self._views[name] = self.tables.view(name)
        return self._views[name]


def _cut(raw: bytes) -> bytes:
    return raw if len(raw) <= RAW_LIMIT else raw[: RAW_LIMIT - len(CUT)] + CUT
