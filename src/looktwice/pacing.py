"""How fast a classifier may be asked: a rate that is never exceeded, and a width that yields when it is pressed."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass
from typing import Protocol, runtime_checkable


class Rate:
    """At most `burst` questions at once and `per_second` on average, in every window of time.

    The times are the caller's: `when(now)` books one question and says when it may go.
    """

    def __init__(self, per_second: float, burst: int = 1) -> None:
        self.per_second = per_second
        self._gap = 1.0 / per_second
        self._slack = (burst - 1) * self._gap
        self._next = float("-inf")

    def when(self, now: float) -> float:
        """The moment, not before now, at which the question may go."""
        turn = max(self._next, now)
        self._next = turn + self._gap
        return max(now, turn - self._slack)

    async def reserve(self, questions: int) -> float:
        """Book so many questions: the moment, by the monotonic clock, at which the last of them may go."""
        now = time.monotonic()
        return max(self.when(now) for _ in range(questions))


@runtime_checkable
class Moments(Protocol):
    """Where sessions on any machine claim the moments at which a classifier may be asked."""

    def claim_moments(self, fingerprint: str, per_second: float, count: int) -> float:
        """Seconds until the first of `count` moments, `1 / per_second` apart, that nobody else gets."""
        ...


class SharedRate(Rate):
    """A rate that holds for all who claim from one ledger.

    One claim serves all questions that wait when it is made, and the next one those that came meanwhile. No moment is
    claimed in advance: one that could not be used would be lost to the others.
    """

    def __init__(self, per_second: float, moments: Moments, fingerprint: str) -> None:
        super().__init__(per_second)
        self._source, self._fingerprint = moments, fingerprint
        self._waiting = 0
        self._moments: deque[float] = deque()
        """Claimed for questions that still wait, in their order."""
        self._claiming = asyncio.Lock()

    async def reserve(self, questions: int) -> float:
        """The moment at which the last of so many questions may go; the ledger is asked in a thread."""
        self._waiting += questions
        try:
            async with self._claiming:
                if len(self._moments) < questions:
                    self._moments.extend(await asyncio.to_thread(self._claim, self._waiting - len(self._moments)))
                return [self._moments.popleft() for _ in range(questions)][-1]
        finally:
            self._waiting -= questions

    def _claim(self, count: int) -> list[float]:
        wait = self._source.claim_moments(self._fingerprint, self.per_second, count)
        first = time.monotonic() + wait
        return [first + place / self.per_second for place in range(count)]


class Gate:
    """Lets so many calls through at a time: half as many when the classifier is pressed, more when it is well."""

    def __init__(self, most: int) -> None:
        self.busy = 0
        self.most = most
        self._limit = float(most)
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """How many calls may run at the same time now."""
        return int(self._limit)

    async def __aenter__(self) -> None:
        while self.busy >= self.limit:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._wake()  # the turn that may have been given to this call is somebody else's
                raise
        self.busy += 1

    async def __aexit__(self, *_: object) -> None:
        self.busy -= 1
        if self._waiting:
            self._wake()

    def widen(self) -> None:
        """After an answer: one call more once every call of the present width was answered."""
        if self._limit < self.most:
            self._limit = min(float(self.most), self._limit + 1.0 / self._limit)

    def narrow(self) -> None:
        """After a sign of pressure: half as many calls, at least one."""
        self._limit = max(1.0, self._limit / 2.0)

    def _wake(self) -> None:
        room = self.limit - self.busy
        while self._waiting and room > 0:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                room -= 1


@dataclass(frozen=True)
class Pace:
    """How failures are borne: retries, waits, and when to stop; nothing here changes an answer."""

    attempts: int = 6
    """How often one question is sent at the most."""
    few: int = 3
    """The same after a failure that seldom passes: an internal error, or an answer that cannot be read."""
    backoff: float = 0.5
    """Seconds before the second attempt; each further one waits up to twice as long."""
    longest: float = 60.0
    """Seconds that one wait may take, whatever the server asks for."""
    breaker: int = 50
    """Failed attempts in a row after which the run stops."""
