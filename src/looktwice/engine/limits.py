"""Adaptive concurrency, and retries of failed calls."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from looktwice.classifiers import Answer, AnyClassifier
from looktwice.errors import ClassifierError, PermanentError, TransientError

PRESSURE = (429, 503)
"""HTTP statuses after which concurrency is reduced."""
INTERNAL = 500

WINDOW = 20
"""The window of replies over which the share of refusals is measured."""
TOLERATED = 0.08
"""The share of refusals below which concurrency is unchanged."""
PAUSING = 0.75
"""The share of refusals above which all calls wait for Retry-After."""
DECREASE = 0.5
"""The factor by which concurrency is multiplied after a window with many refusals (multiplicative decrease)."""
IN_VAIN = 5
"""Consecutive windows with many refusals after which full concurrency is restored, since reducing it did not help."""


@dataclass(frozen=True)
class Polling:
    """Settings for polling batches; times are in seconds."""

    soonest: float = 5.0
    latest: float = 120.0
    """The initial and the maximum interval between polls of a batch."""
    grace: float = 60.0
    """After a crash, the maximum time until the vendor lists a batch that was about to be sent."""
    tries: int = 4
    """The maximum number of attempts of a query that expired or failed transiently."""
    faults: int = 20
    """The maximum number of consecutive failures of polling a batch."""


@dataclass(frozen=True)
class RetryPolicy:
    """Limits on retries of failed calls, and on failures before a run stops; they do not affect answers."""

    attempts: int = 6
    """The maximum number of attempts of one query."""
    few: int = 3
    """The maximum number of attempts after a rarely transient failure: an internal error, or an unreadable answer."""
    backoff: float = 0.5
    """Seconds before the second attempt; doubled for each further one."""
    refusals: int = 30
    """The maximum number of rate-limit refusals of one query; they are not included in the number of attempts."""
    longest: float = 60.0
    """The longest wait in seconds before another attempt, unless the server specifies the wait."""
    longest_wait: float = 900.0
    """The longest wait in seconds that a server may request; the run stops if it requests more."""
    breaker: int = 50
    """The number of consecutive failed attempts after which the run stops; three times the concurrency, if that is
    larger."""


@dataclass
class Tries:
    """The failed attempts of one query."""

    policy: RetryPolicy
    attempts: int = 0
    refusals: int = 0

    def wait(self, error: ClassifierError) -> float | None:
        """Record a failure; returns the seconds before the next attempt, or None if there will be none."""
        if not isinstance(error, TransientError):
            return None
        self.attempts += 1
        self.refusals += error.status in PRESSURE
        most = self.policy.few if error.garbled or error.status == INTERNAL else self.policy.attempts
        if self.attempts - self.refusals >= most or self.refusals >= self.policy.refusals:
            return None
        if error.retry_after:
            return error.retry_after * random.uniform(1.0, 1.1)
        backoff = min(self.policy.backoff * 2 ** (self.attempts - 1), self.policy.longest)
        return backoff * random.uniform(0.5, 1)


class Concurrency:
    """Adaptive concurrency (AIMD): reduced while many calls are refused, restored if that does not help.

    A call without a reply is treated as refused, since the server may be overloaded.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = float(most)
        self.pause_until = float("-inf")
        """The end of the current pause, by the monotonic clock."""
        self._replies: list[bool] = []
        self._in_vain = 0

    @property
    def limit(self) -> int:
        """The current concurrency."""
        return 0 if time.monotonic() < self.pause_until else max(1, int(self.size))

    def answered(self) -> None:
        """Record a reply that is not a refusal."""
        self.size = min(self.most, self.size + 1 / self.size)
        self._note(refused=False)

    def refused(self, retry_after: float) -> None:
        """Record a refusal or a missing reply, and the wait in seconds that the server requested."""
        self._note(refused=True)
        if retry_after and len(self._replies) >= min(WINDOW, 2 * self.most) and self._share() > PAUSING:
            self.pause_until = time.monotonic() + retry_after
            self._replies.clear()

    def _note(self, refused: bool) -> None:
        self._replies.append(refused)
        if len(self._replies) < max(WINDOW, 2 * int(self.size)):
            return
        if self._share() <= TOLERATED:
            self._in_vain = 0
        else:
            self._in_vain += 1
            self.size = max(1.0, self.size * DECREASE)
            if self._in_vain > IN_VAIN:
                self.size, self._in_vain = float(self.most), 0
        self._replies.clear()

    def _share(self) -> float:
        return sum(self._replies) / max(1, len(self._replies))


class Permits:
    """A semaphore with an adjustable limit, first come, first served.

    A waiting task must not be cancelled.
    """

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def __aenter__(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._wake()
        await turn

    async def __aexit__(self, *_: object) -> None:
        self._taken -= 1
        self._wake()

    def _wake(self) -> None:
        while self._waiting and self._taken < self._limit():
            self._taken += 1
            self._waiting.popleft().set_result(None)


class Answered(NamedTuple):
    """The answers of a call, and its duration in seconds."""

    answers: Sequence[Answer]
    latency: float


@dataclass(eq=False, slots=True)
class _Waiting:
    """One sender's queries that are ready for a call."""

    prepared: Sequence[object]
    may_send: Callable[[], bool]
    turn: asyncio.Future[list[_Waiting] | Answered | None]
    """Resolves to the answers, or, if this sender must make the call, to the other senders in it."""


class Calls:
    """Combines ready queries into calls to one classifier, up to its batch size.

    The first sender in a call makes the call; a sending task must not be cancelled.
    """

    def __init__(self, classifier: AnyClassifier, concurrency: Concurrency, batch: int, longest_wait: float) -> None:
        self._classifier, self._batch, self._longest_wait = classifier, batch, longest_wait
        self.concurrency = concurrency
        self.failures = 0
        """Consecutive failed calls."""
        self.busy = 0
        """Calls in flight."""
        self.seconds = 0.0
        """The typical duration of a call."""
        self._ready: deque[_Waiting] = deque()
        self._timer: asyncio.TimerHandle | asyncio.Handle | None = None

    async def send(self, prepared: Sequence[object], may_send: Callable[[], bool]) -> Answered | None:
        """Send at most one batch of queries in one call, together with other queries that fit in it.

        Returns None if `may_send` returned False at the time of the call. Raises the error of the call.
        """
        loop = asyncio.get_running_loop()
        waiting = _Waiting(prepared, may_send, loop.create_future())
        self._ready.append(waiting)
        if self._timer is None:
            self._timer = loop.call_soon(self._start)
        turn = await waiting.turn
        return await self._call(waiting, turn) if isinstance(turn, list) else turn

    def _start(self) -> None:
        """Start as many calls as allowed; try again after a pause."""
        self._timer = None
        while self._ready and self.busy < self.concurrency.limit and (not self.busy or self._fills_a_call()):
            if call := self._next_call():
                self.busy += 1
                call[0].turn.set_result(call[1:])
        pause = self.concurrency.pause_until - time.monotonic()
        if self._ready and pause > 0:
            self._timer = asyncio.get_running_loop().call_later(pause, self._start)

    def _fills_a_call(self) -> bool:
        """Whether a full batch is ready; while a call is in flight, there is no gain from sending a smaller batch."""
        size = 0
        for waiting in self._ready:
            size += len(waiting.prepared)
            if size + len(waiting.prepared) > self._batch:
                return True
        return False

    def _next_call(self) -> list[_Waiting]:
        """Select ready queries for one call."""
        call: list[_Waiting] = []
        size = 0
        while self._ready and size + len(self._ready[0].prepared) <= self._batch:
            waiting = self._ready.popleft()
            if waiting.may_send():
                call.append(waiting)
                size += len(waiting.prepared)
            else:
                waiting.turn.set_result(None)
        return call

    def wake(self) -> None:
        """Drop ready queries that may no longer be sent."""
        ready, self._ready = self._ready, deque()
        for waiting in ready:
            if waiting.may_send():
                self._ready.append(waiting)
            else:
                waiting.turn.set_result(None)
        if self._timer is not None:
            self._timer.cancel()
        self._start()

    async def _call(self, first: _Waiting, others: list[_Waiting]) -> Answered:
        """Make a call for all its senders; returns the answers of the first."""
        started = time.perf_counter()
        prepared = [picture for waiting in (first, *others) for picture in waiting.prepared]
        try:
            answers = await self._classifier.label(prepared)
            if len(answers) != len(prepared):
                raise PermanentError(
                    f"the classifier gave {len(answers)} answers to a different number of queries",
                    code="reply-malformed",
                )
        except BaseException as error:
            self._failed(error)
            for waiting in others:
                waiting.turn.set_exception(error if isinstance(error, Exception) else _ended())
            raise
        finally:
            self.busy -= 1
            if self._timer is None:  # after those who wait for this call: they may stop the run
                self._timer = asyncio.get_running_loop().call_soon(self._start)
        latency = time.perf_counter() - started
        self.failures = 0
        self.concurrency.answered()
        self.seconds = latency if not self.seconds else 0.9 * self.seconds + 0.1 * latency
        start = len(first.prepared)
        for waiting in others:
            waiting.turn.set_result(Answered(answers[start : start + len(waiting.prepared)], latency))
            start += len(waiting.prepared)
        return Answered(answers[: len(first.prepared)], latency)

    def _failed(self, error: BaseException) -> None:
        """Record a failed call, unless the call was sent before the current pause."""
        if not isinstance(error, TransientError) or time.monotonic() < self.concurrency.pause_until:
            return
        self.failures += 1
        if error.status is None or error.status in PRESSURE:
            self.concurrency.refused(min(error.retry_after or 0.0, self._longest_wait))


def _ended() -> TransientError:
    return TransientError("the call was cancelled from outside; run again")
