"""What can be asked of the thread that writes, and how much of it goes into one transaction."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from looktwice.asking.ledger.protocol import Bill, Booked, Budget, Entry, Grant, Outcome, Settled
from looktwice.classifiers.base import Answer
from looktwice.errors import LedgerError


@dataclass(slots=True, eq=False)
class Intent:
    """Questions that somebody wants to send."""

    fingerprint: str
    entries: dict[bytes, Entry]
    price: int
    budget: Budget
    future: Future[Grant] = field(default_factory=Future)
    grant: Grant = field(default_factory=Grant)
    classifier: int = 0
    batch: int | None = None
    """The batch that they go into."""

    def price_of(self, key: bytes) -> int:
        """What a question counts as until its bill is known."""
        reserve = self.entries[key].reserve
        return self.price if reserve is None else reserve


@dataclass(slots=True, eq=False)
class Booking:
    """Queries that belong to no question."""

    fingerprint: str
    queries: int
    price: int
    budget: Budget
    future: Future[Booked | None] = field(default_factory=Future)
    booked: Booked | None = None


class Record(NamedTuple):
    """An answer."""

    key: bytes
    answer: Answer
    latency: float
    attempts: int
    bill: Bill | None = None


class Return(NamedTuple):
    """Questions that were surely not sent, or got a reply without an answer."""

    keys: Sequence[bytes]
    outcome: Outcome


class Surrender(NamedTuple):
    """Questions whose answers nobody waits for any more."""

    keys: Sequence[bytes]


class Renewal(NamedTuple):
    """Questions that are still in flight."""

    keys: Sequence[bytes]


class Conclusion(NamedTuple):
    """How queries ended that belong to no question."""

    booked: Booked
    outcome: Outcome
    bill: Bill | None = None


class Check(NamedTuple):
    """What was said when an answered question was asked again."""

    key: bytes
    at: int
    label: str


class Introduction(NamedTuple):
    """A description of a classifier."""

    fingerprint: str
    description: str


@dataclass(slots=True, eq=False)
class BatchNote:
    """What the vendor calls a batch and its file; neither where it is only about to be sent."""

    batch: int
    file: str | None
    remote: str | None
    future: Future[None] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class Settlement:
    """How questions of a batch ended."""

    batch: int
    results: Mapping[bytes, Settled]
    future: Future[None] = field(default_factory=Future)


@dataclass(slots=True, eq=False)
class Learned:
    """The calls a second that a session has learned a classifier takes, or a wish to begin at those of others."""

    fingerprint: str
    rate: float | None
    joins: bool
    future: Future[float | None] = field(default_factory=Future)
    share: float | None = None
    """The calls a second that are this session's part."""


@dataclass(slots=True, eq=False)
class Flush:
    """A wish to know when all before is on disk."""

    future: Future[None] = field(default_factory=Future)


class Stop(NamedTuple):
    """The last operation."""


Operation = (
    Record
    | Intent
    | Booking
    | Return
    | Surrender
    | Renewal
    | Conclusion
    | Check
    | Introduction
    | BatchNote
    | Settlement
    | Learned
    | Flush
    | Stop
)


AWAITED = (Intent, Booking, BatchNote, Settlement, Learned, Flush)
"""What somebody waits for, and may withdraw."""


class Batch:
    """Operations for one transaction; no question is in two of them, so their order does not matter."""

    def __init__(self) -> None:
        self.keys: set[bytes] = set()
        self.records: list[Record] = []
        self.intents: list[Intent] = []
        self.bookings: list[Booking] = []
        self.returned: dict[bytes, Outcome] = {}
        self.surrendered: list[bytes] = []
        self.renewed: list[bytes] = []
        self.conclusions: list[Conclusion] = []
        self.checks: list[Check] = []
        self.introductions: list[Introduction] = []
        self.notes: list[BatchNote] = []
        self.settlements: list[Settlement] = []
        self.learned: list[Learned] = []
        self.flushes: list[Flush] = []
        self._seldom: dict[type[Operation], list[Any]] = {
            Booking: self.bookings,
            Conclusion: self.conclusions,
            Check: self.checks,
            Introduction: self.introductions,
            BatchNote: self.notes,
            Settlement: self.settlements,
            Learned: self.learned,
            Flush: self.flushes,
        }
        self.raw = True
        """Whether raw replies are kept."""
        self.stop = False

    def __bool__(self) -> bool:
        """Whether there is anything to write."""
        others = (self.bookings, self.conclusions, self.checks, self.introductions, self.notes, self.settlements)
        return bool(self.keys) or any(others) or bool(self.learned)

    def add(self, operation: Operation) -> bool:
        """Whether it is in; it is left out if it is about a question that another one is about."""
        keys: Collection[bytes] = ()
        match operation:
            case Record():
                keys = (operation.key,)
            case Intent():
                keys = operation.entries
            case Return() | Surrender() | Renewal():
                keys = operation.keys
            case Settlement():
                keys = operation.results
        if not self.keys.isdisjoint(keys):
            return False
        if not isinstance(operation, AWAITED) or operation.future.set_running_or_notify_cancel():
            self.keys.update(keys)
            self._put(operation)
        return True

    def answers(self) -> int:
        """How many answers are in it."""
        settled = (each.result for settlement in self.settlements for each in settlement.results.values())
        return len(self.records) + sum(isinstance(result, Answer) for result in settled)

    def must_be_kept(self) -> bool:
        """Whether it records how questions ended: if it failed, answers would be lost or the spend be wrong."""
        results = (self.records, self.returned, self.surrendered, self.conclusions, self.checks)
        return any(results) or any((self.notes, self.settlements))

    def asked(self) -> list[Intent | Booking]:
        """What would spend."""
        return [*self.intents, *self.bookings]

    def refuse(self, error: LedgerError) -> None:
        """Take out all that would spend, and tell those who asked why."""
        for operation in self.asked():
            operation.future.set_exception(LedgerError(*error.args))
        self.intents, self.bookings = [], []

    def fail(self, error: LedgerError) -> None:
        """Tell everybody who waits that it did not work."""
        self.refuse(error)
        for learned in self.learned:
            learned.future.set_exception(LedgerError(*error.args))
        for future in self._waiting():
            future.set_exception(LedgerError(*error.args))

    def resolve(self) -> None:
        """Tell everybody who waits that it is on disk: the pace first, by which what is granted is sent."""
        for learned in self.learned:
            learned.future.set_result(learned.share)
        for intent in self.intents:
            intent.future.set_result(intent.grant)
        for booking in self.bookings:
            booking.future.set_result(booking.booked)
        for future in self._waiting():
            future.set_result(None)

    def _waiting(self) -> list[Future[None]]:
        """The futures of those who only wait for it to be on disk."""
        notes, settlements, flushes = self.notes, self.settlements, self.flushes
        return [*(n.future for n in notes), *(s.future for s in settlements), *(f.future for f in flushes)]

    def _put(self, operation: Operation) -> None:
        match operation:
            case Record():
                self.records.append(operation)
            case Intent():
                self.intents.append(operation)
            case Return():
                self.returned |= dict.fromkeys(operation.keys, operation.outcome)
            case Surrender():
                self.surrendered += operation.keys
            case Renewal():
                self.renewed += operation.keys
            case Stop():
                self.stop = True
            case _:
                self._seldom[type(operation)].append(operation)
