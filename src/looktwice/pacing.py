"""How fast a classifier may be asked: a rate that is never exceeded, and a width that yields when it is pressed."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass


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
    """How a classifier is asked; nothing here changes an answer."""

    concurrency: int | None = None
    """Calls at the same time; the classifier's own wish where None."""
    per_second: float | None = None
    per_minute: float | None = None
    burst: int = 1
    """Questions that may go at once after a pause."""
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

    def rates(self, wished: float | None) -> list[Rate]:
        """The rates that hold together: those given here, or else the classifier's own wish."""
        limits = [self.per_second or (None if self.per_minute else wished), self.per_minute and self.per_minute / 60.0]
        return [Rate(limit, self.burst) for limit in limits if limit]
