"""How fast a classifier is asked: a rate that is never exceeded, one that is learned from refusals, and retries."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

from looktwice.errors import LedgerError


@dataclass(frozen=True)
class Polling:
    """How batches are polled; times are in seconds."""

    soonest: float = 5.0
    latest: float = 120.0
    """Between two polls of a batch: at first, and at most."""
    grace: float = 60.0
    """After a crash: how long a batch that was about to be sent may take to show up at the vendor."""
    tries: int = 4
    """How often a question is sent that expired or failed in a transient way."""
    faults: int = 20
    """How often in a row polling a batch may fail."""


class Rate:
    """At most `burst` questions at once and `per_second` on average, in every window of time.

    The times are the caller's: `when(now)` reserves a slot for one question and returns its time.
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
        """Reserve slots for questions; the moment, by the monotonic clock, at which the last of them may go."""
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
        """The moment at which the last of `questions` may go; the ledger is asked in a thread."""
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
    """A limit on concurrent calls."""

    def __init__(self, most: int) -> None:
        self.busy = 0
        self.most = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        while self.busy >= self.most:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                self._wake()  # pass on the turn that this call may have been given
                raise
        self.busy += 1

    async def __aexit__(self, *_: object) -> None:
        self.busy -= 1
        if self._waiting:
            self._wake()

    def _wake(self) -> None:
        room = self.most - self.busy
        while self._waiting and room > 0:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                room -= 1


class AdaptiveRate:
    """Learns from refusals how many calls a second a server takes; as long as few are refused, it limits nothing.

    Replies are counted over windows of time. After one in which many were refusals, calls go at the rate at which they
    were accepted, which then grows by a little in each window. If that changes nothing about the share of refusals,
    they do not depend on the pace, and it is given up for a while. Only where most of the last replies were refusals
    does everybody wait as long as the server asked for. A call that got no reply counts as refused, since a server may
    be too busy to say so. The times are the caller's.
    """

    WINDOW, LONGEST = 0.5, 5.0
    """Seconds that a window lasts at least, and after which it may hold fewer replies than REPLIES."""
    REPLIES = 20
    """The fewest replies of a window, unless it lasts LONGEST."""
    TRIES = 5
    """Windows in a row with many refusals after which a slower rate counts as ineffective."""
    LEAST = 2.0
    """The least rate, in calls a second: a server that has recovered must be noticed soon."""
    MANY = 0.08
    """The share of refusals above which the rate is lowered."""
    GROWTH = 0.05
    """By which share the rate grows after a window with few refusals; half as much again after each without any."""
    MOST = 0.75
    """The share of refusals among the last replies above which all calls pause."""

    IDLE = 10.0
    """Seconds without a call after which a new window begins."""

    def __init__(self, width: int) -> None:
        self.rate: float | None = None
        """Calls a second; None while nothing is learned."""
        self.pause_until = self._next = self._called = float("-inf")
        self._recent: deque[bool] = deque(maxlen=2 * max(8, width))
        self._growth = self.GROWTH
        self._began = float("-inf")
        self._replies = self._refusals = 0
        self._at_first = (0.0, 0.0)
        """Calls a second and the share of refusals in the window that set the first rate."""
        self._tried = 0
        """Windows in a row with many refusals."""
        self._tolerated = self.MANY
        """The share of refusals that is tolerated, because a lower rate did not reduce it."""

    def when(self, now: float) -> float:
        """The moment, not before now, at which the next call may go."""
        if now - max(self._called, self.pause_until) > self.IDLE:
            self._began, self._replies, self._refusals = now, 0, 0
        self._called = moment = max(now, self.pause_until)
        if self.rate is not None:
            moment = max(moment, self._next)
            self._next = moment + 1.0 / self.rate
        return moment

    def join(self) -> None:
        """Start at the rate that other sessions have learned; there are none here."""

    def adopt(self, rate: float) -> None:
        """Start at a rate that others have learned."""
        if self.rate is None:
            self.rate, self._at_first = rate, (0.0, 0.0)

    def answered(self, now: float) -> None:
        """A reply came that is no refusal."""
        self._recent.append(False)
        self._count(now, 0)

    def refused(self, now: float, retry_after: float | None) -> None:
        """The server refused a call, and asked to wait `retry_after` seconds before the next."""
        if now < self.pause_until:
            return  # it was sent before the pause began
        self._recent.append(True)
        self._count(now, 1)
        if retry_after and sum(self._recent) > self.MOST * (self._recent.maxlen or 0):
            self._recent.clear()
            if self._replies:
                self._learn(now, 1.0)
            self.pause_until = now + retry_after

    def _count(self, now: float, refusals: int) -> None:
        self._replies += 1
        self._refusals += refusals
        lasted = now - max(self._began, self.pause_until)
        if lasted >= (self.WINDOW if self._replies >= self.REPLIES else self.LONGEST):
            self._learn(now, self._refusals / self._replies)

    def _learn(self, now: float, share: float) -> None:
        """End a window with this share of refusals, and set the rate by it.

        What was accepted counts over the pause with which the window began, too.
        """
        calls = self._replies / max(now - max(self._began, self.pause_until), 1e-3)
        accepted = (self._replies - self._refusals) / max(now - self._began, 1e-3)
        self._began, self._replies, self._refusals = now, 0, 0
        self._tolerated = max(self.MANY, 0.98 * self._tolerated)
        if share > self._tolerated:
            self._tried += 1
            first_calls, first_share = self._at_first
            ineffective = share > 0.7 * first_share or self._tried >= self.TRIES
            if self.rate is None or not first_calls:
                self._at_first = (calls, share)
            elif ineffective and share <= 0.6 and calls < 0.85 * first_calls:
                self.rate, self._tolerated, self._tried = None, 1.5 * share, 0
                return
            self.rate = max(accepted, self.LEAST)
            self._growth = self.GROWTH if self.rate > self.LEAST else 1.0  # a server that failed may have recovered
        elif self.rate is not None:
            self._tried = 0
            self.rate = None if calls < 0.5 * self.rate else self.rate * (1 + self._growth)  # None: others are slower
            self._growth = self.GROWTH if share else min(1.0, 1.5 * self._growth)


@runtime_checkable
class LearnedPaces(Protocol):
    """Where sessions share the rates that they have learned, each its own part."""

    def join_pace(self, fingerprint: str) -> Future[float | None]:
        """The part that the others give to a new session; None if nobody has learned anything."""
        ...

    def keep_pace(self, fingerprint: str, rate: float | None) -> Future[float | None]:
        """Store the learned rate, None for none; returns it less what new sessions have taken of it meanwhile."""
        ...


class SharedAdaptiveRate(AdaptiveRate):
    """An adaptive rate that starts at that of other sessions on the ledger, and is shared about once a second."""

    EVERY = 1.0
    """The least time between two exchanges with the ledger, in seconds."""

    def __init__(self, width: int, paces: LearnedPaces, fingerprint: str) -> None:
        super().__init__(width)
        self._paces, self._fingerprint = paces, fingerprint
        self._joined = self._shared = False
        self._due = float("-inf")

    def join(self) -> None:
        """Start at the rate of the others; once."""
        if not self._joined:
            self._joined = True
            asyncio.wrap_future(self._paces.join_pace(self._fingerprint)).add_done_callback(self._begin)

    def _begin(self, joined: asyncio.Future[float | None]) -> None:
        if not joined.cancelled() and not joined.exception() and (rate := joined.result()):
            self.adopt(rate)

    def _count(self, now: float, refusals: int) -> None:
        super()._count(now, refusals)
        if now >= self._due and (self._shared or self.rate is not None):
            self._due, self._shared, rate = now + self.EVERY, self.rate is not None, self.rate
            with suppress(LedgerError):  # whoever needs the ledger gets the error
                kept = asyncio.wrap_future(self._paces.keep_pace(self._fingerprint, rate))
                kept.add_done_callback(partial(self._yield, rate))

    def _yield(self, before: float | None, kept: asyncio.Future[float | None]) -> None:
        """Slow down by what new sessions have taken."""
        if kept.cancelled() or kept.exception():
            return
        rate = kept.result()
        if self.rate is not None and before and rate and rate < before:
            self.rate *= rate / before


@dataclass(frozen=True)
class RetryPolicy:
    """How often and how patiently failed calls are retried, and when a run gives up; changes no answer."""

    attempts: int = 6
    """How often one question is sent, at the most."""
    few: int = 3
    """The same after a failure that is seldom transient: an internal error, or an answer that cannot be read."""
    backoff: float = 0.5
    """Seconds before the second attempt; each further one waits up to twice as long."""
    refusals: int = 30
    """How often one question is refused because there are too many, at the most; these are not among its attempts."""
    longest: float = 60.0
    """Seconds of the longest wait before another attempt, where the server does not ask for one."""
    longest_wait: float = 900.0
    """Seconds of the longest wait that a server may ask for; the run stops where it asks for more."""
    breaker: int = 50
    """Failed attempts in a row after which the run stops; three for each call at a time, if that is more."""
