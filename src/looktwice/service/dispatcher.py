"""Where all requests meet: one asker, one budget, one ledger, and verdicts for whoever waits.

A look belongs to the dispatcher, not to the client: one who leaves, or waits too long, ends nothing that was sent, and
what was answered is in the ledger when the picture is shown again. Looks that come while others are on their way wait,
and are then asked about together, which costs a fraction of asking one by one.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from itertools import count

from looktwice.asking.jobs import AnswerEvent
from looktwice.asking.outcome import Cause, Unscored
from looktwice.errors import ChangedError, LookTwiceError, QuotaError
from looktwice.model import AsyncModel
from looktwice.pictures.collection import Picture, Source
from looktwice.service import Limits
from looktwice.service.replies import Refusal
from looktwice.verdicts.look import Verdict
from looktwice.verdicts.policy import DecisionOptions
from looktwice.verdicts.stream import Observation, Stream

TOGETHER = 64
"""The most pictures in a batch."""
GATHERING = 0.002
"""Seconds for which pictures are gathered into a batch: little beside the time of a look, and much work saved."""
PAUSE, LONG_PAUSE = 5.0, 60.0
"""Seconds without questions after the classifier failed for good, and after it refused for want of quota without a word
of how long."""
MANY = 1000
"""Pictures after which drift is computed even if nobody requests it."""
MOMENTS = 2000
"""Timestamps that are kept, to tell when a change began."""
DAY = 86_400
CLOSING = "the service is shutting down"
REFUSALS = {
    Cause.UNREADABLE: "picture",
    Cause.UNFIT: "picture",
    Cause.UNFAMILIAR: "unfamiliar",
    Cause.BUDGET: "budget",
    Cause.STOPPED: "unavailable",
    Cause.NO_LABEL: "classifier",
    Cause.CLASSIFIER: "classifier",
}
"""The code with which a picture is refused that could not be scored; status and counter follow from it."""
LOG = logging.getLogger("looktwice.service")

OnAnswer = Callable[[int, str | None], None]
"""Called with the place of a question and its label: 0 is the picture itself, or the first photo of a burst."""
Waiting = asyncio.Future[Verdict | Unscored]


@dataclass(frozen=True, eq=False, slots=True)
class _Caller:
    """A request that waits for the verdict on a picture."""

    picture: Picture
    verdict: Waiting


@dataclass(frozen=True)
class State:
    """Whether the service can look at pictures now, or why not and when to try again."""

    ready: bool
    reason: str = ""
    retry_after: float | None = None


class Dispatcher:
    """Looks at pictures for many callers at once."""

    def __init__(self, model: AsyncModel, decide: DecisionOptions, limits: Limits) -> None:
        self.model, self.decide, self.limits = model, decide, limits
        self.asker, self.policy = model.asker, model.policy(decide)
        self._stream = Stream.of(self.policy)
        self._observations: list[Observation] = []
        self._moments: dict[int, float] = {}
        self._daily = (model.options.per_day, model.options.money_per_day) != (None, None)
        self._numbers = count()
        self._waiting: deque[_Caller] = deque()
        self._running: set[asyncio.Task[None]] = set()
        self._busy = 0
        self._starting: asyncio.TimerHandle | None = None
        terms = model.terms
        # A model on this machine does best with one large lot at a time; one elsewhere is waited for, and a picture
        # that takes long there must not hold up the next.
        self._width = 1 if terms.local else terms.concurrency
        self._listeners: dict[str, OnAnswer] = {}
        self._trouble: Exception | None = None
        self._resume_at = 0.0
        self._closing = False

    @property
    def looks(self) -> int:
        """Pictures that are looked at or wait for it."""
        return self._busy + len(self._waiting)

    @property
    def stream(self) -> Stream:
        """The live pictures so far, beside those that the profile was made from."""
        self._catch_up()
        return self._stream

    @property
    def drift_since(self) -> float | None:
        """When the pictures began to differ from the profile's, in seconds since 1970, to the minute or so."""
        since = self.stream.since
        return None if since is None else max(moment for seen, moment in self._moments.items() if seen <= since)

    def _catch_up(self) -> None:
        """Let the drift tests see the verdicts that they have not seen, and remember when that was."""
        if not self._observations:
            return
        if self._stream.since is None:
            self._moments[self._stream.seen] = time.time()
        self._stream, self._observations = self._stream.update(self._observations), []
        if len(self._moments) > MOMENTS:
            self._moments = dict(list(self._moments.items())[::2])

    def state(self) -> State:
        """Whether it can look at pictures now; some time after the classifier failed, it tries again."""
        if self._closing:
            return State(False, CLOSING, PAUSE)
        if self._trouble is None:
            return State(True)
        if isinstance(self._trouble, ChangedError):
            return State(False, str(self._trouble))
        left = self._resume_at - time.monotonic()
        if left > 0 or self._running:
            return State(False, str(self._trouble), max(left, 1.0))
        self.asker.resume()
        self._trouble = None
        return State(True)

    def admit(self, pictures: int) -> None:
        """Refuse pictures that cannot be looked at now."""
        state = self.state()
        if not state.ready:
            raise Refusal("unavailable", state.reason, state.retry_after)
        if self.looks + pictures > self.limits.looks:
            detail = f"{self.looks} pictures are being looked at and {self.limits.looks} may be; try again in a moment"
            raise Refusal("busy", detail, 1)

    async def look(self, source: Source, on_answer: OnAnswer | None = None) -> Verdict:
        """The verdict on a picture, or a Refusal."""
        self.admit(1)
        caller = _Caller(Picture(str(next(self._numbers)), None, source), asyncio.get_running_loop().create_future())
        if on_answer:
            self._listen({caller.picture.name: on_answer})
        self._waiting.append(caller)
        self._start_soon()
        try:
            return await self._wait(caller.verdict)
        finally:
            self._unlisten([caller.picture])
            if caller in self._waiting:
                self._waiting.remove(caller)

    async def burst(self, sources: Sequence[Source], on_answer: OnAnswer | None = None) -> Verdict:
        """The one verdict on several photos of one thing, or a Refusal."""
        self.admit(len(sources))
        pictures = [Picture(str(next(self._numbers)), None, source) for source in sources]
        if on_answer:
            self._listen({p.name: _of_photo(on_answer, photo) for photo, p in enumerate(pictures)})
        verdict: Waiting = asyncio.get_running_loop().create_future()
        self._go(self._burst(pictures, verdict), len(pictures))
        try:
            return await self._wait(verdict)
        finally:
            self._unlisten(pictures)

    async def close(self) -> None:
        """Accept nothing more, and wait for the looks in flight."""
        self._closing = True
        self.asker.stop(CLOSING)
        while self._running:
            await asyncio.wait(self._running)

    # Asking --------------------------------------------------------------------------------------------------------

    def _start_soon(self) -> None:
        if self._starting is None:
            self._starting = asyncio.get_running_loop().call_later(GATHERING, self._start)

    def _start(self) -> None:
        """Let those who wait begin, all together, while the classifier takes further calls."""
        self._starting = None
        while self._waiting and len(self._running) < self._width:
            callers = [self._waiting.popleft() for _ in range(min(len(self._waiting), TOGETHER))]
            self._go(self._look(callers), len(callers))

    def _go(self, work: Coroutine[None, None, None], pictures: int) -> None:
        task = asyncio.create_task(work)
        self._busy += pictures
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        task.add_done_callback(lambda _: self._start_soon())

    async def _look(self, callers: Sequence[_Caller]) -> None:
        """Ask about the pictures of all these callers, and give each its verdict."""
        left = {caller.picture.name: caller.verdict for caller in callers}
        pictures = [caller.picture for caller in callers]
        try:
            async for verdict in self.model.score(pictures, self.decide):
                self._answer(left.pop(verdict.name), verdict, 1)
                if isinstance(verdict, Verdict):
                    self._observations.append(Observation.at(verdict, self.policy))
        except Exception as error:  # whatever it is, somebody waits for it
            self._pause(error)
        for name, waiting in left.items():
            self._answer(waiting, Unscored(name, Cause.STOPPED, str(self._trouble or CLOSING)), 1)
        if len(self._observations) >= MANY:  # what they mean is worked out for many at a time
            self._catch_up()

    async def _burst(self, pictures: Sequence[Picture], waiting: Waiting) -> None:
        verdict: Verdict | Unscored
        try:
            verdict = await self.model.score_burst(pictures)
            if isinstance(verdict, Verdict):
                photos = tuple((f"photo {place}", label) for place, (_, label) in enumerate(verdict.votes, 2))
                verdict = replace(verdict, votes=photos)
        except Exception as error:  # as above
            self._pause(error)
            verdict = Unscored(pictures[0].name, Cause.STOPPED, str(error))
        self._answer(waiting, verdict, len(pictures))

    def _pause(self, error: Exception) -> None:
        """Ask nothing for a while after the classifier failed."""
        if not isinstance(error, LookTwiceError):
            LOG.error("a look failed for a reason that is not foreseen", exc_info=error)
        self._trouble = error
        pause = error.retry_after or LONG_PAUSE if isinstance(error, QuotaError) else PAUSE
        self._resume_at = time.monotonic() + pause

    def _listen(self, listeners: dict[str, OnAnswer]) -> None:
        self._listeners |= listeners
        self.asker.on_answer = self._notify

    def _unlisten(self, pictures: Sequence[Picture]) -> None:
        for picture in pictures:
            self._listeners.pop(picture.name, None)
        if not self._listeners:
            self.asker.on_answer = None

    def _notify(self, event: AnswerEvent) -> None:
        if on_answer := self._listeners.get(event.name):
            on_answer(event.place, event.label)

    # Answering -----------------------------------------------------------------------------------------------------

    def _answer(self, waiting: Waiting, verdict: Verdict | Unscored, pictures: int) -> None:
        self._busy -= pictures
        if not waiting.done():
            waiting.set_result(verdict)

    async def _wait(self, waiting: Waiting) -> Verdict:
        seconds = self.limits.seconds
        try:
            async with asyncio.timeout(seconds):
                outcome = await waiting
        except TimeoutError:
            detail = f"there was no verdict within {seconds:g} s; answers that still come are kept, so ask again"
            raise Refusal("time", detail, seconds) from None
        if isinstance(outcome, Verdict):
            return outcome
        if outcome.cause is Cause.BUDGET:
            detail = "the budget is spent; raise it to continue" + (", or wait for the next day" if self._daily else "")
            raise Refusal(REFUSALS[outcome.cause], detail, DAY - time.time() % DAY if self._daily else None)
        retry_after = self.state().retry_after if outcome.cause is Cause.STOPPED else None
        raise Refusal(REFUSALS[outcome.cause], outcome.message, retry_after)


def _of_photo(on_answer: OnAnswer, photo: int) -> OnAnswer:
    """Reports the answer about a photo under its place in the burst."""
    return lambda _, label: on_answer(photo, label)
