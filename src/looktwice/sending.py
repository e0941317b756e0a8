"""Sends questions to a classifier: pace, retries and budget, with every answer through the ledger.

Questions are entered in the ledger as intents, only so many ahead as keep the senders busy, and then stand in one
queue from which as many senders as the classifier likes take one call after the other.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from looktwice.classifiers import AnyClassifier, Terms
from looktwice.errors import ClassifierError, PassingError, PermanentError
from looktwice.ledger.protocol import Budget, Entry, Grant, Ledger
from looktwice.outcome import Cause, Failure, Progress
from looktwice.pacing import Gate, Pace, Rate
from looktwice.views import Question
from looktwice.votes import Answer

MOST_AHEAD = 1024
"""Questions that stand in the ledger before it is their turn, at most: after a crash they count as maybe paid."""
AHEAD = 0.1
"""Seconds for which these should last, so that a fast classifier never waits for the disk."""

PRESSURE = (429, 503)
"""Statuses that ask for fewer calls at a time."""
INTERNAL = 500


class Round:
    """Questions that are asked together; it is over when each has its answer or failure."""

    def __init__(self) -> None:
        self.left = 0
        self.over = asyncio.Event()
        self.error: Exception | None = None

    def end(self, error: Exception) -> None:
        """Something broke that is not the classifier's failure: whoever waits gets it raised."""
        self.error = self.error or error
        self.over.set()

    async def wait(self) -> None:
        await self.over.wait()
        if self.error:
            raise self.error


@dataclass(eq=False, slots=True)
class Job:
    """One question; `answer` gets what came back, or why nothing did."""

    question: Question
    entry: Entry
    answer: Answer | Failure | None = None
    round: Round | None = None
    prepared: object = None
    listeners: tuple[Callable[[Answer | Failure], None], ...] = ()

    def listen(self, listener: Callable[[Answer | Failure], None]) -> None:
        """Tell it the answer: now, or when it comes."""
        if self.answer is None:
            self.listeners = (*self.listeners, listener)
        else:
            listener(self.answer)

    def settle(self, answer: Answer | Failure) -> None:
        """Only the first answer counts."""
        if self.answer is None:
            self.answer, self.prepared = answer, None
            for listener in self.listeners:
                listener(answer)
            if self.round:
                self.round.left -= 1
                if self.round.left == 0:
                    self.round.over.set()


class Batch(NamedTuple):
    """Questions for one call that may be sent now, and which attempt this is, from 1."""

    jobs: list[Job]
    attempt: int


class Sender:
    """Gets answers from one classifier, at its pace and within the budget."""

    def __init__(
        self,
        classifier: AnyClassifier,
        terms: Terms,
        ledger: Ledger,
        pace: Pace,
        budget: Budget,
        rate: Rate | None,
    ) -> None:
        self.classifier = classifier
        self.ledger = ledger
        self.progress = Progress()
        self.rate = rate
        self.gate = Gate(terms.concurrency)
        self.price = terms.price_micros
        self.fatal: ClassifierError | None = None
        self.halt: Failure | None = None
        """Why nothing more is sent, once that is so."""
        self._batch = terms.batch
        self._pace = pace
        self._budget = budget
        self._due: deque[Job] = deque()
        self._ahead = self._least_ahead = 2 * self.gate.most * terms.batch
        self._entering = False
        self._entered_at = 0.0
        self._ready: deque[Batch] = deque()
        self._senders = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._failures = 0
        self._pause_until = 0.0
        self._stopping = asyncio.Event()

    @property
    def stopped(self) -> bool:
        """Whether it was told to send nothing more."""
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
        if self._budget == Budget():
            return None
        return self._budget.room(self.ledger.spent(self.classifier.fingerprint), self.price)

    def send(self, jobs: Iterable[Job]) -> None:
        """Have these answered, each as soon as it is its turn."""
        self._due.extend(jobs)
        self._enter_more()

    async def finish(self) -> None:
        """Wait for what is on its way, and until it is on disk."""
        if self.stopped:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.wrap_future(self.ledger.flush())

    async def probe(self, prepared: object) -> Answer | None:
        """One answer that is paid for but not kept; None where the budget does not cover it."""
        booked = self.ledger.book(self.classifier.fingerprint, 1, self.price, self._budget)
        if not await asyncio.wrap_future(booked):
            return None
        async with self.gate:
            await self._turn(1)
            self._spend(1)
            try:
                (answer,) = await self.classifier.label([prepared])
            except ClassifierError as error:
                if not error.sent:
                    self._spend(-1)
                    await asyncio.wrap_future(self.ledger.book(self.classifier.fingerprint, -1, self.price, Budget()))
                raise
        return answer

    def _enter_more(self) -> None:
        """See to it that the senders do not run out of questions while the next ones are written to disk."""
        if not self._due or self._entering:
            return
        if len(self._ready) * self._batch <= self._ahead // 2:
            self._entering = True
            self._start(self._enter())

    async def _enter(self) -> None:
        """Enter the questions that are due in the ledger, no more of them than keeps the senders busy for a while."""
        lasted, self._entered_at = time.monotonic() - self._entered_at, time.monotonic()
        if lasted < AHEAD:
            self._ahead = max(self._ahead, min(2 * self._ahead, MOST_AHEAD))
        elif lasted > 4 * AHEAD:
            self._ahead = max(self._least_ahead, self._ahead // 2)
        await self._intend([self._due.popleft() for _ in range(min(len(self._due), self._ahead))], 1)
        self._entering = False
        self._enter_more()

    async def _intend(self, jobs: list[Job], attempt: int, wait: float = 0.0) -> None:
        """Enter questions in the ledger, durably, and queue those that may be sent now.

        What another process has in flight is looked for again later rather than bought twice.
        """
        if wait:
            await self._sleep(wait)
        if self.halt:
            settle(jobs, self.halt)
            return
        entries = [job.entry for job in jobs]
        try:
            intent = self.ledger.intend(self.classifier.fingerprint, entries, self.price, self._budget)
            held = self._granted(jobs, await asyncio.wrap_future(intent), attempt)
        except Exception as error:
            self._break(jobs, error)
            return
        if held:
            self._start(self._intend(held, attempt, min(1.0, 2 * wait or 0.05)))

    def _granted(self, jobs: list[Job], grant: Grant, attempt: int) -> list[Job]:
        """Do what the ledger says: queue, take an answer, give up; those left over are held by another process."""
        if len(grant.granted) == len(jobs):
            self._queue(jobs, attempt)
            return []
        by_key = {job.entry.key: job for job in jobs}
        for name, answer in grant.answered.items():
            self.progress.hits += 1
            by_key[name].settle(answer)
        settle([by_key[name] for name in grant.refused], Failure(Cause.BUDGET, self._exhausted))
        self._queue([by_key[name] for name in grant.granted], attempt)
        return [by_key[name] for name in grant.held]

    @cached_property
    def _exhausted(self) -> str:
        """What the budget was when it first refused a question."""
        return self._budget.exhausted(self.ledger.spent(self.classifier.fingerprint), self.price)

    def _queue(self, jobs: list[Job], attempt: int) -> None:
        """Let senders take these in batches; there are never more senders than calls at the same time."""
        size = self._batch
        self.progress.retries += len(jobs) if attempt > 1 else 0
        self._ready.extend(Batch(jobs[start : start + size], attempt) for start in range(0, len(jobs), size))
        for _ in range(min(len(self._ready), self.gate.most - self._senders)):
            self._senders += 1
            self._start(self._send_all())

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _send_all(self) -> None:
        try:
            while self._ready:
                batch = self._ready.popleft()
                self._enter_more()
                await self._send(batch)
        finally:
            self._senders -= 1

    async def _send(self, batch: Batch) -> None:
        """Send one batch once, and settle whatever comes of it; a failure that may pass is sent again later."""
        jobs, attempt = batch
        try:
            async with self.gate:
                if self.rate or self._pause_until:
                    await self._turn(len(jobs))
                if self.halt:
                    self.ledger.release([job.entry.key for job in jobs])
                    settle(jobs, self.halt)
                    return
                self._spend(len(jobs))
                started = time.perf_counter()
                answers = await self.classifier.label([job.prepared for job in jobs])
            self._keep(jobs, answers, time.perf_counter() - started, attempt)
        except PassingError as error:
            self.blame(error, jobs)
            self._retry(batch, error)
        except ClassifierError as error:
            self._take_back(error, jobs)
            self.end(error)
            self._give_up(jobs, error)
        except Exception as error:
            self._break(jobs, error)

    def _spend(self, questions: int) -> None:
        self.progress.sent += questions
        self.progress.micros += questions * self.price

    async def _turn(self, questions: int) -> None:
        """Wait until the pace lets this many questions go."""
        moment = await self.rate.reserve(questions) if self.rate else 0.0
        wait = max(self._pause_until, moment) - time.monotonic()
        if wait > 0:
            await self._sleep(wait)

    async def _sleep(self, seconds: float) -> None:
        """Wait so long, or until the asker is stopped."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _keep(self, jobs: list[Job], answers: list[Answer], latency: float, attempts: int) -> None:
        if len(answers) != len(jobs):
            raise PermanentError(f"the classifier gave {len(answers)} answers to {len(jobs)} questions")
        self._failures = 0
        self.gate.widen()
        self.progress.answered += len(jobs)
        for job, answer in zip(jobs, answers, strict=True):
            kept = answer if answer.raw is None else Answer(answer.label, answer.score, answer.status)
            self.ledger.record(job.entry.key, kept, latency, attempts)
            job.settle(kept)

    def blame(self, error: PassingError, jobs: list[Job]) -> None:
        """Take back what was surely not sent, slow down, and stop after too many failures in a row."""
        self._failures += 1
        self._take_back(error, jobs)
        if error.status in PRESSURE:
            self.gate.narrow()
        if error.retry_after:
            self._pause_until = time.monotonic() + min(error.retry_after, self._pace.longest)
        if self._failures >= self._pace.breaker:
            self.end(
                ClassifierError(
                    f"{self._failures} attempts in a row failed, so the run stopped with everything saved; "
                    f"the last one: {error}; run the same command again to go on"
                )
            )

    def _take_back(self, error: ClassifierError, jobs: list[Job]) -> None:
        """Give back to the budget what was surely not sent."""
        if not error.sent:
            self._spend(-len(jobs))
            self.ledger.release([job.entry.key for job in jobs])

    def _retry(self, batch: Batch, error: PassingError) -> None:
        few = error.garbled or error.status == INTERNAL
        if self.stopped or batch.attempt >= (self._pace.few if few else self._pace.attempts):
            self._give_up(batch.jobs, error)
        else:
            self._start(self._again(batch, error))

    async def _again(self, batch: Batch, error: PassingError) -> None:
        """Queue a batch that failed once more, after a wait that grows, is jittered, and no less than was asked for."""
        backoff = self._pace.backoff * 2 ** (batch.attempt - 1) * random.uniform(0.5, 1.0)
        await self._sleep(min(max(backoff, error.retry_after or 0.0), self._pace.longest))
        if self.stopped:
            self._give_up(batch.jobs, error)
        else:
            await self._intend(batch.jobs, batch.attempt + 1)

    def end(self, error: ClassifierError) -> None:
        """Stop for good: the run raises this when what is in flight has come."""
        self.fatal = self.fatal or error
        self.stop(Failure(Cause.CLASSIFIER, str(error)))

    def _break(self, jobs: list[Job], error: Exception) -> None:
        """The ledger failed, or a connector broke its promise: nothing more is sent, and the run raises this."""
        self.stop(Failure(Cause.STOPPED, str(error)))
        for job in jobs:
            if job.round:
                job.round.end(error)

    def _give_up(self, jobs: list[Job], error: ClassifierError) -> None:
        """Nobody waits for these answers any more: they stay sent and counted."""
        self.ledger.give_up([job.entry.key for job in jobs])
        settle(jobs, Failure(Cause.CLASSIFIER, str(error)))


def settle(jobs: Iterable[Job], failure: Failure) -> None:
    """Say of each that has no answer why it has none."""
    for job in jobs:
        job.settle(failure)
