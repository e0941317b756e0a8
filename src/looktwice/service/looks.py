"""Share one model among many callers, with bounded concurrency.

A look belongs to the service, not to its caller: after a disconnect or timeout it is still completed, and its answers
are in the ledger if the same picture is sent again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

from looktwice.errors import ChangedError, LookTwiceError, QuotaError
from looktwice.model import (
    AnswerEvent,
    AsyncModel,
    Cause,
    DecisionOptions,
    Monitor,
    OnAnswer,
    Picture,
    Unscored,
    Verdict,
)
from looktwice.service import ServiceLimits
from looktwice.service.replies import Refusal

PAUSE, LONG_PAUSE = 5.0, 60.0
"""Seconds without looks after the classifier failed permanently, and if its quota is exceeded without Retry-After."""
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
"""The code of a picture that was not scored; it determines status and counter."""
LOG = logging.getLogger("looktwice.service")

Outcome = Verdict | Unscored
Work = Callable[[], Awaitable[Outcome]]


class Looks:
    """Runs the looks of all requests."""

    def __init__(self, model: AsyncModel, decide: DecisionOptions, limits: ServiceLimits) -> None:
        self.model, self.decide, self.limits = model, decide, limits
        self._slots = asyncio.Semaphore(limits.looks)
        self._waiting = 0
        self._running: set[asyncio.Task[Outcome]] = set()
        self._trouble: Exception | None = None
        self._resume_at = 0.0
        self._closing = False

    @property
    def monitor(self) -> Monitor:
        """The drift monitor."""
        return self.model.monitor(self.decide)

    @property
    def count(self) -> int:
        """The number of pictures in progress or waiting."""
        return self._waiting + len(self._running)

    def refusal(self) -> Refusal | None:
        """Why no picture can be looked at now; None if available. Some time after a failure of the classifier, it is
        tried again."""
        if self._closing:
            return Refusal("unavailable", CLOSING, PAUSE)
        if self._trouble is None:
            return None
        left = self._resume_at - time.monotonic()
        if isinstance(self._trouble, ChangedError):
            return Refusal("unavailable", str(self._trouble))
        if left > 0 or self._running:
            return Refusal("unavailable", str(self._trouble), max(left, 1.0))
        self.model.resume()
        self._trouble = None
        return None

    def check(self) -> None:
        """Raise a Refusal if no picture can be looked at now."""
        if refusal := self.refusal():
            raise refusal

    async def look(self, picture: Picture, on_answer: OnAnswer | None = None) -> Verdict:
        """Score a picture; raises a Refusal if it was not scored."""

        async def score() -> Outcome:
            (outcome,) = [each async for each in self.model.score([picture], self.decide, on_answer=on_answer)]
            return outcome

        return await self._verdict(picture.name, score)

    async def burst(self, photos: Sequence[Picture], on_answer: OnAnswer | None = None) -> Verdict:
        """Score several photos of one object; raises a Refusal if not scored. Answers have the index of their photo."""
        named = [replace(photo, name=f"photo {number}") for number, photo in enumerate(photos, 1)]
        places = {photo.name: place for place, photo in enumerate(named)}

        def by_photo(event: AnswerEvent) -> None:
            if on_answer:
                on_answer(event._replace(place=places[event.name]))

        verdict = await self._verdict(photos[0].name, lambda: self.model.score_burst(named, on_answer=by_photo))
        return verdict.model_copy(update={"name": photos[0].name})

    async def close(self) -> None:
        """Reject new pictures, and wait for the looks in progress."""
        self._closing = True
        self.model.stop(CLOSING)
        while self._running:
            await asyncio.wait(self._running)

    async def _verdict(self, name: str, work: Work) -> Verdict:
        """Run a look once there is a slot, after at most half of the timeout.

        The slot is held until the work ends, even if the caller has gone.
        """
        seconds = self.limits.seconds
        end = asyncio.get_running_loop().time() + seconds
        await self._take_slot(end - seconds / 2)
        task = asyncio.create_task(self._outcome(name, work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            async with asyncio.timeout_at(end):
                outcome = await asyncio.shield(task)
        except TimeoutError:
            detail = f"there was no verdict within {seconds:g} s; answers that still come are kept, so ask again"
            raise Refusal("time", detail, seconds) from None
        if isinstance(outcome, Unscored):
            raise self._unscored(outcome)
        return outcome

    async def _take_slot(self, end: float) -> None:
        self.check()
        self._waiting += 1
        try:
            async with asyncio.timeout_at(end):
                await self._slots.acquire()
        except TimeoutError:
            detail = f"{self.limits.looks} pictures are being looked at and others wait; try again in a moment"
            raise Refusal("busy", detail, 1) from None
        finally:
            self._waiting -= 1

    async def _outcome(self, name: str, work: Work) -> Outcome:
        """Handle the outcome of a look; after a failure that affects all pictures, queries pause."""
        try:
            if refusal := self.refusal():
                return Unscored(name, Cause.STOPPED, str(refusal))
            return await work()
        except Exception as error:  # whatever it is, somebody waits for it
            if not isinstance(error, LookTwiceError):
                LOG.error("a look failed unexpectedly", exc_info=error)
            self._trouble = error
            pause = error.retry_after or LONG_PAUSE if isinstance(error, QuotaError) else PAUSE
            self._resume_at = time.monotonic() + pause
            return Unscored(name, Cause.STOPPED, str(error), getattr(error, "code", ""))
        finally:
            self._slots.release()

    def _unscored(self, unscored: Unscored) -> Refusal:
        code, options = REFUSALS[unscored.cause], self.model.options
        if code == "budget":
            daily = (options.per_day, options.money_per_day) != (None, None)
            detail = "the budget is spent; raise it to continue" + (", or wait for the next day" if daily else "")
            return Refusal(code, detail, DAY - time.time() % DAY if daily else None, error=unscored.code)
        refusal = self.refusal() if code == "unavailable" else None
        return Refusal(code, unscored.message, refusal.retry_after if refusal else None, error=unscored.code)
