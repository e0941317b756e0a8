"""Sends questions to a classifier: rate limits, retries and budget, with every answer through the ledger.

A question is *due* until it is entered in the ledger as an intent, then *ready* until a sender takes it, and *in
flight* until its call has ended. Then it has its answer, or the ledger records how it ended, and it is due again
later or fails. As many senders as the classifier allows calls at a time make one call after the other. The ledger
holds a question against other sessions only while it is ready or in flight.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import deque
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from looktwice.asking.jobs import SOONEST, FlatMeter, Job, Meter, Quote, settle
from looktwice.asking.ledger.protocol import BEAT, DEAD, LEASE, MICRO, Bill, Budget, Grant, Ledger, Outcome
from looktwice.asking.outcome import Cause, Failure, Progress
from looktwice.asking.pace import AdaptiveRate, Gate, LearnedPaces, Rate, RetryPolicy, SharedAdaptiveRate
from looktwice.classifiers.base import Answer, AnyClassifier, Terms
from looktwice.errors import ClassifierError, LedgerError, PermanentError, QuotaError, TransientError

PRESSURE = (429, 503)
"""Statuses that ask for fewer calls at a time."""
INTERNAL = 500
LATEST = 1.0
"""The longest wait, in seconds, before a question that another session has is looked up again."""
TYPICAL_SIZE = (3024, 4032)
"""Height and width of a phone's photo, whose price is assumed for questions about pictures of unknown size."""
CHECK_INTERVAL = 0.02
"""Seconds between two checks of whether more could be sent, while questions wait for a retry."""
RENEWAL = LEASE / 3
STALL = DEAD - 2 * BEAT
"""Seconds after which a process that was stopped or asleep may have been taken for dead by other sessions."""
LONGEST_HOLD = 86_400.0
"""Seconds for which the lease of one question is renewed: as long as the longest timeout that can be set."""


IN_A_BATCH = Failure(
    Cause.STOPPED, "the question is in a batch whose results are not here; run with --batch to fetch them"
)


class Sender:
    """Gets answers from one classifier, within its rate limits and the budget."""

    def __init__(
        self,
        classifier: AnyClassifier,
        terms: Terms,
        ledger: Ledger,
        retry: RetryPolicy,
        budget: Budget,
        rate: Rate | None,
        meter: Meter | None = None,
    ) -> None:
        self.classifier = classifier
        self.ledger = ledger
        self.progress = Progress()
        self.rate = rate
        self.gate = Gate(terms.concurrency)
        self.meter = meter or FlatMeter(terms.price_micros)
        self.typical = self.meter.quote(*terms.working_size.of(*TYPICAL_SIZE))
        """The price of a question about a picture of unknown size."""
        self._rounding = 0
        """By how much the bills of this run were rounded up, in picos."""
        self.fatal: ClassifierError | None = None
        self.halt: Failure | None = None
        """Why nothing more is sent, once that is so."""
        self._batch = terms.batch
        self._ahead = terms.concurrency * terms.batch
        """The most questions that are entered and not yet sent: after a crash they count as possibly paid."""
        self._retries = retry
        self.budget = budget
        self._adaptive = AdaptiveRate(terms.concurrency)
        if isinstance(ledger, LearnedPaces):
            self._adaptive = SharedAdaptiveRate(terms.concurrency, ledger, classifier.fingerprint)
        self._due: deque[Job] = deque()
        self._entering = self._waiting = self._resting_jobs = 0
        self._backing_off = asyncio.Event()
        """Set while a question waits for a retry."""
        self._ready: deque[Job] = deque()
        self._held: dict[bytes, float] = {}
        """The questions that the ledger holds for this session, ready or in flight, and since when."""
        self._renewal: asyncio.TimerHandle | None = None
        self._renew_at = self._woke_at = float("-inf")
        """When leases are renewed next, and when this process last woke up from a stall."""
        self._awake_at = time.time()
        self._senders = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures = 0
        self._exhausted: str | None = None
        """What the budget was when it first refused a question."""
        self._available_at: datetime | None = None
        """When the classifier can be asked again, according to itself."""
        self._stopping = asyncio.Event()

    @property
    def stopped(self) -> bool:
        """Whether it was stopped."""
        return self._stopping.is_set()

    def stop(self, halt: Failure) -> None:
        """Send nothing more; what is in flight is waited for."""
        self.halt = self.halt or halt
        self._stopping.set()
        due = list(self._due)
        self._due.clear()  # first, because a listener may stop too
        settle(due, self.halt)

    def resume(self) -> None:
        """Send again, now that what stopped it has passed."""
        self._stopping.clear()
        self.halt, self.fatal, self._failures = None, None, 0

    def room(self) -> int | None:
        """How many more queries the budget covers; None if nothing limits them."""
        if self.budget == Budget():
            return None
        return self.budget.room(self.ledger.spend(self.classifier.fingerprint), self.typical.most)

    def money_left(self) -> int | None:
        """How much more money the budget has, in millionths; None if nothing limits it."""
        _, micros = self.budget.left(self.ledger.spend(self.classifier.fingerprint))
        return None if micros == sys.maxsize else micros

    def blocked(self) -> str | None:
        """Why nothing can be asked now; None if a question would be sent."""
        if self.halt:
            return self.halt.message
        if self._available_at and datetime.now(UTC) < self._available_at:
            return f"the classifier wants to be left alone until {_clock(self._available_at)}"
        try:
            spend = self.ledger.spend(self.classifier.fingerprint)
        except LedgerError as error:
            return str(error)
        if self.budget.room(spend, self.typical.most):
            return None
        whole = replace(self.budget, queries_per_day=None, micros_per_day=None)
        if whole.room(spend, self.typical.most):
            return "the budget of this day is spent; the next day begins at midnight in UTC"
        return "the budget is spent; raise it to continue"

    def send(self, jobs: Iterable[Job]) -> None:
        """Queue these questions; each is sent in its turn."""
        self._due.extend(jobs)
        self._enter_more()

    @property
    def starved(self) -> bool:
        """Whether more could be sent, because many questions wait for a retry."""
        return self._resting_jobs > 0 and len(self._due) + self._entering + len(self._ready) < self._ahead

    async def until_starved(self) -> None:
        """Wait until more could be sent."""
        while not self.starved:
            await self._backing_off.wait()
            await asyncio.sleep(CHECK_INTERVAL)

    async def finish(self) -> None:
        """Wait for the calls in flight, and until their answers are on disk."""
        if self.stopped:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._renewal and not self._held:
            self._renewal.cancel()
            self._renewal = None
        await asyncio.wrap_future(self.ledger.flush())

    async def probe(self, prepared: object, quote: Quote) -> Answer | None:
        """One answer that is paid for but not kept; None where the budget does not cover it, or nothing may be sent."""
        booking = self.ledger.book(self.classifier.fingerprint, 1, quote.most, self.budget)
        booked = await asyncio.wrap_future(booking)
        if booked is None:
            return None
        outcome: Outcome | None = Outcome.UNSENT
        bill = None
        try:
            async with self.gate:
                await self._wait_turn(1)
                if self.halt:
                    return None
                self._spend(1, quote.most)
                outcome = None
                (answer,) = await self.classifier.label([prepared])
                outcome, bill = Outcome.ANSWERED, self.meter.bill(answer, quote)
                self.count(bill, quote.most)
                return answer
        except ClassifierError as error:
            if not error.billed:
                self._spend(-1, -quote.most)
            outcome = _outcome(error)
            raise
        finally:
            if outcome:
                self.ledger.conclude(booked, outcome, bill)
                await asyncio.wrap_future(self.ledger.flush())

    # From due to ready -----------------------------------------------------------------------------------------------

    def _enter_more(self) -> None:
        """Enter the next questions in the ledger, as soon as a good part of those that were entered is in flight.

        Until the first answer, calls in flight count as not sent, since their connections are being opened.
        """
        unsent = len(self._ready) + self._waiting if self.progress.answered else len(self._held)
        room = self._ahead - unsent - self._entering
        if self._due and room >= min(len(self._due), max(self._batch, self._ahead // 8)):
            jobs = [self._due.popleft() for _ in range(min(len(self._due), room))]
            self._entering += len(jobs)
            self._start(self._enter(jobs))

    async def _enter(self, jobs: list[Job]) -> None:
        """Enter questions, durably, and let senders take those that may be sent now."""
        entries = [job.entry._replace(reserve=job.quote.most) if job.quote else job.entry for job in jobs]
        reserved = bool(self._held)  # when the ledger decides; all of it may be billed by the time that it answers
        try:
            self._adaptive.join()  # written with the intents, and known before they are sent
            intent = self.ledger.intend(self.classifier.fingerprint, entries, self.typical.most, self.budget)
            grant = await asyncio.wrap_future(intent)
        except Exception as error:
            self._entering -= len(jobs)
            self._break(jobs, error)
            return
        self._entering -= len(jobs)
        self._take(jobs, grant, reserved)
        self._enter_more()

    def _take(self, jobs: list[Job], grant: Grant, reserved: bool) -> None:
        """Act on a grant; what another session has in flight is looked up later rather than bought twice.

        `reserved` is whether questions of this session were in flight when the budget was looked at.
        """
        by_key = {job.entry.key: job for job in jobs}
        loop = asyncio.get_running_loop()
        self._notice_stall()
        self._held |= dict.fromkeys(grant.granted, loop.time())
        if self._held and self._renewal is None:
            self._renewal, self._renew_at = loop.call_later(BEAT, self._renew), loop.time() + RENEWAL
        self._ready.extend(by_key[key] for key in grant.granted)
        for key, answer in grant.answered.items():
            self.progress.hits += 1
            by_key[key].settle(answer)
        settle([by_key[key] for key in grant.batched], IN_A_BATCH)
        refused = [by_key[key] for key in grant.refused]
        if refused and refused[0].quote and (reserved or self._held):  # bills are lower than reserves: room may come
            self._start(self._requeue_after(refused, SOONEST))
        elif refused:
            self._exhausted = self._exhausted or self.why_refused(refused)
            settle(refused, Failure(Cause.BUDGET, self._exhausted))
        if elsewhere := [by_key[key] for key in grant.held]:
            wait = min(job.recheck_after for job in elsewhere)
            for job in elsewhere:
                job.recheck_after = min(LATEST, 2 * job.recheck_after)
            self._start(self._requeue_after(elsewhere, wait))
        for _ in range(min(-(-len(self._ready) // self._batch), self.gate.most - self._senders)):
            self._senders += 1
            self._start(self._send_all())

    def why_refused(self, jobs: list[Job]) -> str:
        """What the budget was when it refused these questions."""
        price = max(self._most(job) for job in jobs)
        return self.budget.exhausted(self.ledger.spent(self.classifier.fingerprint), price)

    def _most(self, job: Job) -> int:
        """The maximum price of a question."""
        return (job.quote or self.typical).most

    def _renew(self) -> None:
        """Hold what is still in flight for longer; what is not renewed is free for other sessions in a while."""
        loop = asyncio.get_running_loop()
        self._notice_stall()
        self._renewal = loop.call_later(BEAT, self._renew) if self._held else None
        if loop.time() >= self._renew_at:
            self._renew_at = loop.time() + RENEWAL
            with suppress(LedgerError):
                self.ledger.renew([key for key, since in self._held.items() if loop.time() - since < LONGEST_HOLD])

    def _notice_stall(self) -> None:
        """Notice that this process was stopped or asleep: the leases that it had until then may be lost.

        Where the clock was set, in either direction, they look as if they had ended, and are renewed.
        """
        before, self._awake_at = self._awake_at, time.time()
        if self._awake_at - before > STALL:
            self._woke_at = asyncio.get_running_loop().time()
        if abs(self._awake_at - before) > STALL:
            self._renew_at = asyncio.get_running_loop().time()

    async def _requeue_after(self, jobs: list[Job], seconds: float) -> None:
        """Put questions back in the queue after a while."""
        self._resting_jobs += len(jobs)
        self._backing_off.set()
        await self.pause(seconds)
        self._resting_jobs -= len(jobs)
        if not self._resting_jobs:
            self._backing_off.clear()
        if self.halt:
            settle(jobs, self.halt)
        else:
            self._due.extendleft(reversed(jobs))
            self._enter_more()

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # From ready to the answer ----------------------------------------------------------------------------------------

    async def _send_all(self) -> None:
        try:
            while self._ready:
                jobs = [self._ready.popleft() for _ in range(min(self._batch, len(self._ready)))]
                self._waiting += len(jobs)
                try:
                    await self._send(jobs)
                except Exception as error:
                    self._break(jobs, error)
                self._enter_more()
        finally:
            self._senders -= 1

    async def _send(self, jobs: list[Job]) -> None:
        """Send one call, and settle whatever comes of it; a failure that may pass is sent again later."""
        try:
            async with self.gate:
                try:
                    await self._wait_turn(len(jobs))
                except LedgerError:
                    self._release(jobs, Outcome.UNSENT)
                    raise
                finally:
                    self._waiting -= len(jobs)
                if self.halt:
                    self._release(jobs, Outcome.UNSENT)
                    settle(jobs, self.halt)
                    return
                self._notice_stall()
                if any(self._held.get(job.entry.key, self._woke_at) < self._woke_at for job in jobs):
                    self._release(jobs, Outcome.UNSENT)  # another session may have bought the answers meanwhile
                    self._due.extendleft(reversed(jobs))
                    return
                self._spend(len(jobs), sum(map(self._most, jobs)))
                for job in jobs:
                    job.attempts += 1
                self._enter_more()
                started = time.perf_counter()
                answers = await self.classifier.label([job.prepared for job in jobs])
            self._keep(jobs, answers, time.perf_counter() - started)
        except TransientError as error:
            self._refund(jobs, error)
            self.back_off(error)
            self._retry(jobs, error)
        except ClassifierError as error:
            self._refund(jobs, error)
            self.end(error)
            settle(jobs, Failure(Cause.CLASSIFIER, str(error)))

    def _spend(self, questions: int, micros: int) -> None:
        self.progress.sent += questions
        self.progress.micros += micros

    def count(self, bill: Bill | None, counted: int) -> None:
        """Replace what was counted when the question was sent by its bill."""
        if bill:
            micros = -(-(bill.picos - self._rounding) // MICRO)
            self._rounding += micros * MICRO - bill.picos
            self.progress.micros += micros - counted
            self.progress.input_tokens += bill.tokens.input
            self.progress.output_tokens += bill.tokens.output
            self.progress.cached_tokens += bill.tokens.cached

    async def _wait_turn(self, questions: int) -> None:
        """Wait until the pace allows a call with this number of questions."""
        now = asyncio.get_running_loop().time()
        wait = self._adaptive.when(now) - now
        if self.rate:
            wait = max(wait, await self.rate.reserve(questions) - time.monotonic())
        if wait > 0:
            await self.pause(wait)

    async def pause(self, seconds: float) -> None:
        """Sleep, but wake up if the asker is stopped."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _keep(self, jobs: list[Job], answers: list[Answer], latency: float) -> None:
        if len(answers) != len(jobs):
            raise PermanentError(f"the classifier gave {len(answers)} answers to {len(jobs)} questions")
        self._failures = 0
        self._adaptive.answered(asyncio.get_running_loop().time())
        self.progress.answered += len(jobs)
        for job, answer in zip(jobs, answers, strict=True):
            kept = answer if answer.raw is None else replace(answer, raw=None)
            bill = self.meter.bill(answer, job.quote or self.typical)
            self.count(bill, self._most(job))
            self.ledger.record(job.entry.key, kept, latency, job.attempts, bill)
            self._held.pop(job.entry.key, None)
            job.settle(kept)

    def _release(self, jobs: Iterable[Job], outcome: Outcome | None) -> None:
        """Record in the ledger how questions without an answer ended; they are no longer held.

        Every question that was granted comes through here or gets its answer.
        """
        keys = [job.entry.key for job in jobs if self._held.pop(job.entry.key, None) is not None]
        match outcome:
            case Outcome.UNSENT:
                self.ledger.release(keys)
            case Outcome.REFUSED | Outcome.WAIVED:
                self.ledger.refuse(keys, billed=outcome is Outcome.REFUSED)
            case _:
                self.ledger.give_up(keys)

    def _refund(self, jobs: list[Job], error: ClassifierError) -> None:
        """Release questions whose call failed, and refund to the budget what is not billed."""
        if not error.billed:
            self._spend(-len(jobs), -sum(map(self._most, jobs)))
        self._release(jobs, _outcome(error))

    def back_off(self, error: TransientError) -> None:
        """Slow down where the classifier asks for it, and stop after too many failures in a row (circuit breaker)."""
        now = asyncio.get_running_loop().time()
        if now >= self._adaptive.pause_until:  # else it was sent before the pause began
            self._failures += 1
        if error.status is None or error.status in PRESSURE:
            self._adaptive.refused(now, min(error.retry_after or 0.0, self._retries.longest_wait))
        if error.retry_after and error.retry_after > self._retries.longest_wait:
            self._stop_until(error, error.retry_after)
        elif self._failures >= max(self._retries.breaker, 3 * self.gate.most):
            self.end(
                ClassifierError(
                    f"{self._failures} attempts in a row failed, so the run stopped with everything saved; "
                    f"the last one: {error}; run the same command again to resume"
                )
            )

    def _stop_until(self, error: TransientError, seconds: float) -> None:
        """Stop where the classifier asks for a longer wait than allowed, and say when it can be asked again."""
        self._available_at = datetime.now(UTC) + timedelta(seconds=seconds)
        self.end(
            QuotaError(
                f"the classifier wants to be left alone until {_clock(self._available_at)}, which is further off than "
                f"the longest wait of {self._retries.longest_wait:g} s, so the run stopped with everything saved; run "
                f"the same command again then, or raise --longest-wait ({error})",
                retry_after=seconds,
            ),
            Cause.STOPPED,
        )

    def _retry(self, jobs: list[Job], error: TransientError) -> None:
        """Retry questions after the wait that was asked for, or with exponential backoff and jitter."""
        refused = error.status in PRESSURE
        most = self._retries.few if error.garbled or error.status == INTERNAL else self._retries.attempts
        for job in jobs:
            job.refusals += refused
        again = [
            job
            for job in jobs
            if not self.halt and job.attempts - job.refusals < most and job.refusals < self._retries.refusals
        ]
        failure = self.halt or Failure(Cause.CLASSIFIER, str(error))
        settle([job for job in jobs if job not in again], failure)
        if again:
            self.progress.retries += len(again)
            backoff = min(self._retries.backoff * 2 ** (again[0].attempts - 1), self._retries.longest)
            wait = (
                error.retry_after * random.uniform(1.0, 1.1) if error.retry_after else backoff * random.uniform(0.5, 1)
            )
            self._start(self._requeue_after(again, wait))

    def end(self, error: ClassifierError, cause: Cause = Cause.CLASSIFIER) -> None:
        """Stop for good: the run raises this when what is in flight has come."""
        self.fatal = self.fatal or error
        self.stop(Failure(cause, str(error)))

    def _break(self, jobs: list[Job], error: Exception) -> None:
        """The ledger failed, or a connector broke its contract: nothing more is sent, and the run raises this."""
        self.stop(Failure(Cause.STOPPED, str(error)))
        with suppress(LedgerError):
            self._release(jobs, None)
        for job in jobs:
            if job.round:
                job.round.end(error)


def _outcome(error: ClassifierError) -> Outcome | None:
    """How a call that failed with this error ended; None if it was sent and no reply came."""
    if not error.sent:
        return Outcome.UNSENT
    if error.status is None:
        return None
    return Outcome.REFUSED if error.billed else Outcome.WAIVED


def _clock(moment: datetime) -> str:
    """A moment in words, by the clock of this machine."""
    return f"{moment.astimezone():%Y-%m-%d %H:%M:%S %Z}"
