"""A worker's ledger and pace, both of them at the keeper: what the worker asks for travels there in parcels."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

from looktwice.errors import LedgerError, LookTwiceError
from looktwice.fleet.keeper import Away, Flight, Parcel, Reply
from looktwice.ledger import Account
from looktwice.ledger.clerk import Clerk
from looktwice.ledger.operations import Batch
from looktwice.ledger.queued import QueuedLedger
from looktwice.outcome import Progress
from looktwice.pacing import Pace, Rate
from looktwice.votes import Answer

PATIENCE = 120.0
"""Seconds to wait for a keeper that is being started anew."""

T = TypeVar("T")


class Line(ABC):
    """The way to the keeper. Calls wait for their reply, and raise Away where there is nobody to give one."""

    @abstractmethod
    def call(self, method: str, *arguments: object) -> Any:  # the line does not know what it carries
        """What a method of the keeper gives."""

    def hello(self, worker: str) -> None:
        self.call("hello", worker)

    def carry(self, worker: str, parcel: Parcel) -> Reply:
        reply: Reply = self.call("carry", worker, parcel)
        return reply

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Answer]:
        found: dict[bytes, Answer] = self.call("find", list(keys))
        return found

    def spent(self, fingerprint: str) -> Account:
        account: Account = self.call("spent", fingerprint)
        return account

    def lease(self) -> tuple[float, int]:
        lease: tuple[float, int] = self.call("lease")
        return lease

    def beat(self, worker: str, progress: Progress) -> str:
        reason: str = self.call("beat", worker, progress)
        return reason

    def progress(self) -> Progress:
        progress: Progress = self.call("progress")
        return progress


def patient(work: Callable[[], T]) -> T:
    """What the work gives, however often the keeper is away meanwhile."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return work()
        except Away as error:
            if time.monotonic() > deadline:
                raise LedgerError(
                    f"the keeper of the ledger has been away for {PATIENCE:.0f} s ({error}); run again to go on"
                ) from None
        time.sleep(0.2)


class RemoteLedger(QueuedLedger):
    """The keeper's ledger, as one worker uses it. See `Ledger` for its methods."""

    def __init__(self, line: Line, worker: str) -> None:
        super().__init__("the ledger of this worker", Courier(line, worker), Distant(line))


class Distant:
    """What can be read at the keeper."""

    def __init__(self, line: Line) -> None:
        self._line = line

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Answer]:
        return patient(lambda: self._line.find(keys))

    def spent(self, fingerprint: str) -> Account:
        return patient(lambda: self._line.spent(fingerprint))

    def close(self) -> None:
        pass


class Courier(Clerk):
    """Carries what is gathered to the keeper, one parcel at a time."""

    def __init__(self, line: Line, worker: str) -> None:
        super().__init__(f"courier of {worker}")
        self._line = line
        self._worker = worker
        self._flying: dict[bytes, tuple[str, int]] = {}
        """The questions in flight here, each with its classifier and price."""
        patient(lambda: line.hello(worker))

    def sent(self, key: bytes) -> bool:
        return key in self._flying

    def explain(self, error: Exception) -> LedgerError:
        return error if isinstance(error, LedgerError) else LedgerError(f"the keeper of the ledger failed: {error}")

    def finish(self) -> None:
        with suppress(Away, LookTwiceError):
            self._line.call("leave", self._worker)

    def save(self, batch: Batch) -> None:
        if not batch and not self._flying:
            return  # with something in flight an empty parcel goes: a keeper that was started anew must hear of it
        reply = self._carried(Parcel.of(batch))
        for key in (*(record.key for record in batch.records), *batch.released, *batch.surrendered):
            self._flying.pop(key, None)
        for adoption, keys in zip(batch.adoptions, reply.flying, strict=True):
            adoption.taken = dict.fromkeys(keys, 0)
            self._flying.update(dict.fromkeys(keys, (adoption.fingerprint, adoption.price)))
        if reply.refusal is not None:
            batch.refuse(LedgerError(reply.refusal))
        self._take(batch, reply)

    def _take(self, batch: Batch, reply: Reply) -> None:
        for intent, grant in zip(batch.intents, reply.grants, strict=True):
            intent.grant = grant
            self._flying.update(dict.fromkeys(grant.granted, (intent.fingerprint, intent.price)))
        for booking, covered in zip(batch.bookings, reply.covered, strict=True):
            booking.covered = covered

    def _carried(self, parcel: Parcel) -> Reply:
        try:
            return self._line.carry(self._worker, parcel)
        except Away:
            return patient(lambda: self._carried_again(parcel))

    def _carried_again(self, parcel: Parcel) -> Reply:
        """The reply of a keeper that was started anew, once it knows what is in flight here.

        What was to be given back stays counted: the one before may have done it already, and twice would be too much.
        """
        self._line.hello(self._worker)
        given_back = set(parcel.released)
        flights: dict[tuple[str, int], list[bytes]] = {}
        for key, terms in self._flying.items():
            if key not in given_back:
                flights.setdefault(terms, []).append(key)
        told = Parcel(flights=[Flight(fingerprint, keys, price) for (fingerprint, price), keys in flights.items()])
        self._line.carry(self._worker, told)
        return self._line.carry(self._worker, parcel._replace(released=()))


class LeasedRate(Rate):
    """A share of a pace that is kept elsewhere: moments to send at, leased some at a time."""

    def __init__(self, per_second: float, line: Line) -> None:
        super().__init__(per_second)
        self._line = line
        self._moments: deque[float] = deque()

    def when(self, now: float) -> float:
        """The next moment of the lease; one that has passed is lost, since others' moments follow it."""
        while not self._moments or self._moments[0] < now:
            if self._moments:
                self._moments.popleft()
            else:
                self._moments.extend(self._lease())
        return self._moments.popleft()

    def _lease(self) -> list[float]:
        wait, many = patient(self._line.lease)
        first = time.monotonic() + wait
        return [first + place / self.per_second for place in range(many)]


@dataclass(frozen=True)
class LeasedPace(Pace):
    """A pace whose rate is shared by all workers."""

    line: Line | None = field(default=None, repr=False)

    def rates(self, wished: float | None) -> list[Rate]:
        """The shared rate, if there is one."""
        return [LeasedRate(self.per_second, self.line)] if self.per_second and self.line else []
