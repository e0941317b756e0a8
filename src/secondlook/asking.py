"""Sends questions to a classifier: pace, retries and budget, with every answer through the ledger.

Pictures go through in chunks. A chunk is decoded and looked up in a thread, and what the ledger lacks is rendered and
prepared in another. It is then entered in the ledger as an intent, and stands in one queue with the batches of the
chunks before it, from which as many senders as the classifier likes take one after the other. Several chunks are on
their way at once, so the classifier never waits for a picture or for the disk, and memory does not grow with the
number of pictures.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

from secondlook.classifiers import AnyClassifier
from secondlook.errors import ClassifierError, ImageError, PassingError, PermanentError
from secondlook.images import Image
from secondlook.ledger.protocol import Budget, Entry, Grant, Ledger, keys, tail
from secondlook.ledger.unrecorded import Unrecorded
from secondlook.pacing import Gate, Pace
from secondlook.pictures import Picture
from secondlook.trust import Canary, Trust
from secondlook.views import RENDERER, Panel, Question, View, base_question, questions, render
from secondlook.votes import NO_LABEL, Answer, Row

CHUNK_BYTES = 16_000_000
CHUNK_QUESTIONS = 256
CHUNKS_AHEAD = 3
MOST_AHEAD = 1024
"""Questions that stand in the ledger before it is their turn, at most: after a crash they count as maybe paid."""
AHEAD = 0.1
"""Seconds for which these should last, so that a fast classifier never waits for the disk."""

PRESSURE = (429, 503)
"""Statuses that ask for fewer calls at a time."""
INTERNAL = 500


@dataclass(frozen=True)
class Unscored:
    """A picture that has no confidence, and why: never a number."""

    name: str
    reason: str


Tell = Callable[[str, int, str | None], None]
"""Is told each answer as it comes: the picture's name, the question's place (0 is the picture itself), the label."""


@dataclass(frozen=True)
class Rounds:
    """Views asked a few at a time: `first` with the picture itself, then as many as `more` says, 0 for enough."""

    first: int
    more: Callable[[str, tuple[str | None, ...]], int]


@dataclass
class Progress:
    """Where a run stands; read it at any time."""

    pictures: int = 0
    unscored: int = 0
    hits: int = 0
    """Answers that the ledger already had."""
    sent: int = 0
    """Attempts that may have been billed."""
    answered: int = 0
    retries: int = 0
    micros: int = 0
    """Money spent by this run, in millionths of the currency."""


@dataclass(frozen=True)
class Estimate:
    """What a run would ask, without retries and canaries; identical questions count once."""

    pictures: int
    unreadable: int
    """Pictures that would not be scored, because they cannot be read."""
    questions: int
    hits: int
    """Questions whose answers the ledger has."""
    queries: int
    """Questions that would be sent."""
    micros: int
    """What they would cost, in millionths of the currency."""
    seconds: float | None
    """How long that takes at the allowed rate; None where nothing limits the rate."""


class _Round:
    """Questions that are asked together; it is over when each has its answer, or the reason why it has none."""

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
class _Job:
    """One question; `answer` gets what came back, or the reason why nothing did."""

    question: Question
    entry: Entry
    answer: Answer | str | None = None
    round: _Round | None = None
    prepared: object = None
    listeners: tuple[Callable[[Answer | str], None], ...] = ()

    def listen(self, listener: Callable[[Answer | str], None]) -> None:
        """Tell it the answer: now, or when it comes."""
        if self.answer is None:
            self.listeners = (*self.listeners, listener)
        else:
            listener(self.answer)

    def settle(self, answer: Answer | str) -> None:
        """Only the first answer counts."""
        if self.answer is None:
            self.answer, self.prepared = answer, None
            for listener in self.listeners:
                listener(answer)
            if self.round:
                self.round.left -= 1
                if self.round.left == 0:
                    self.round.over.set()


class _Batch(NamedTuple):
    """Questions for one call that may be sent now, for the how-manieth time."""

    jobs: list[_Job]
    attempt: int


@dataclass(eq=False, slots=True)
class _Open:
    """A picture whose questions are being asked: the base question first, then those of the panel."""

    picture: Picture
    image: Image
    jobs: list[_Job]
    asked: int = 0

    def failure(self) -> str | None:
        """Why a question of this picture has no answer, where one has none."""
        return next((job.answer for job in self.jobs[: self.asked] if isinstance(job.answer, str)), None)

    def labels(self) -> list[str | None]:
        """The label of each question asked; None where none could be read."""
        answers = (job.answer for job in self.jobs[: self.asked])
        return [a.label if isinstance(a, Answer) and a.label != NO_LABEL else None for a in answers]


_Chunk = list[_Open | Unscored]


class Asker:
    """Asks one classifier, at its pace and within the budget."""

    def __init__(
        self,
        classifier: AnyClassifier,
        ledger: Ledger | None = None,
        pace: Pace | None = None,
        budget: Budget | None = None,
        seed: int = 0,
        canaries: int = 0,
        replies: bool = False,
    ) -> None:
        """`replies`: whether the ledger keeps what the classifier replied, beside the label that was read from it."""
        self.classifier = classifier
        self.progress = Progress()
        self.trust = Trust(canaries if ledger else 0)
        self._ledger = ledger or Unrecorded()
        self._pace = pace or Pace()
        self._budget = budget or Budget()
        self.seed = seed
        self.tell: Tell | None = None
        self._rates = self._pace.rates(classifier.terms.per_second)
        self._gate = Gate(self._pace.concurrency or classifier.terms.concurrency)
        self._replies = replies
        self._price = classifier.terms.price_micros
        self._asking: dict[bytes, _Job] = {}
        self._due: deque[_Job] = deque()
        self._ahead = self._least_ahead = 2 * self._gate.most * classifier.terms.batch
        self._entering = False
        self._entered_at = 0.0
        self._ready: deque[_Batch] = deque()
        self._senders = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._checking = asyncio.Lock()
        self._failures = 0
        self._pause_until = 0.0
        self._stopping = asyncio.Event()
        self._reason = ""
        self._fatal: ClassifierError | None = None

    @property
    def stopped(self) -> bool:
        """Whether it was told to send nothing more."""
        return self._stopping.is_set()

    @property
    def in_flight(self) -> int:
        """Calls on their way now."""
        return self._gate.busy

    def stop(self, reason: str = "the run was stopped") -> None:
        """Send nothing more; what is in flight is waited for, and the pictures left are not scored."""
        self._reason = self._reason or reason
        self._stopping.set()
        self._settle(self._due, self._reason)
        self._due.clear()

    def resume(self) -> None:
        """Send again, now that what stopped it has passed."""
        self._stopping.clear()
        self._reason, self._fatal, self._failures = "", None, 0

    async def ask(
        self, pictures: Iterable[Picture], panel: Panel, rounds: Rounds | None = None
    ) -> AsyncIterator[Row | Unscored]:
        """The answers about each picture, in the pictures' order; durable before they are handed over."""
        source = iter(pictures)
        chunks: deque[asyncio.Task[list[Row | Unscored]]] = deque()
        try:
            while True:
                while len(chunks) < CHUNKS_AHEAD and (chunk := await self._load(source, panel)):
                    chunks.append(asyncio.create_task(self._poll(chunk, rounds)))
                if not chunks:
                    return
                for row in await chunks.popleft():
                    self._count(row)
                    yield row
                if self._fatal:
                    raise self._fatal
        except BaseException:
            self.stop()
            raise
        finally:
            await self._finish(chunks)

    def room(self) -> int:
        """How many more queries the budget covers, `sys.maxsize` if nothing limits them."""
        spent = self._ledger.spent(self.classifier.fingerprint)
        return self._budget.room(spent, self._price)

    async def estimate(self, pictures: Iterable[Picture], panel: Panel) -> Estimate:
        """What `ask` would send for these pictures, which is looked up and not asked."""
        source, seen = iter(pictures), set[str]()
        total = unreadable = hits = 0
        while chunk := await self._load(source, panel):
            new = {item.image.digest: item for item in chunk if isinstance(item, _Open)}
            hits += sum(job.answer is not None for d in new.keys() - seen for job in new[d].jobs)
            total += len(chunk)
            unreadable += sum(isinstance(item, Unscored) for item in chunk)
            seen |= new.keys()
        asked = len(seen) * (1 + len(panel))
        queries = asked - hits
        speed = min((rate.per_second for rate in self._rates), default=None)
        seconds = queries / speed if speed else None
        return Estimate(total, unreadable, asked, hits, queries, queries * self._price, seconds)

    async def _finish(self, chunks: Iterable[asyncio.Task[list[Row | Unscored]]]) -> None:
        """Wait for what is on its way, and until it is on disk."""
        await asyncio.gather(*chunks, return_exceptions=True)
        if self.stopped:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.wrap_future(self._ledger.flush())

    def _count(self, row: Row | Unscored) -> None:
        self.progress.pictures += 1
        self.progress.unscored += isinstance(row, Unscored)

    # From pictures to questions ------------------------------------------------------------------------------------

    async def _load(self, source: Iterator[Picture], panel: Panel) -> _Chunk:
        return [] if self.stopped else await asyncio.to_thread(self._next_chunk, source, panel)

    def _next_chunk(self, source: Iterator[Picture], panel: Panel) -> _Chunk:
        """The next pictures, until they are as many questions or bytes as a chunk should hold, with known answers."""
        chunk: _Chunk = []
        room, size = CHUNK_BYTES, len(panel) + 1
        most = max(CHUNK_QUESTIONS, 2 * self._gate.limit * self.classifier.terms.batch)
        while room > 0 and (len(chunk) + 1) * size <= max(most, size) and (picture := next(source, None)):
            item = self._open(picture, panel)
            chunk.append(item)
            room -= item.image.pixels.nbytes * size if isinstance(item, _Open) else 0
        self._look_up([job for item in chunk if isinstance(item, _Open) for job in item.jobs])
        return chunk

    def _open(self, picture: Picture, panel: Panel) -> _Open | Unscored:
        try:
            image = picture.image()
        except ImageError as error:
            return Unscored(picture.name, str(error))
        asked = (base_question(image), *questions(image, panel, self.seed))
        texts = [_text(view, seed, index) for _, view, seed, index in asked]
        names = keys(self.classifier.fingerprint, image.digest, [tail for _, tail in texts])
        entered = zip(names, asked, texts, strict=True)
        return _Open(picture, image, [_Job(q, Entry(name, q[0], text, q[2], q[3])) for name, q, (text, _) in entered])

    def _look_up(self, jobs: list[_Job]) -> None:
        known = self._ledger.find([job.entry.key for job in jobs])
        if known:
            for job in jobs:
                job.answer = known.get(job.entry.key)

    async def _poll(self, chunk: _Chunk, rounds: Rounds | None) -> list[Row | Unscored]:
        """Ask about the pictures of a chunk, round by round, until each has enough."""
        opened = [item for item in chunk if isinstance(item, _Open)]
        await self._know(opened)
        todo = [(item, 1 + (rounds.first if rounds else len(item.jobs))) for item in opened]
        while todo:
            await self._round(todo)
            todo = [(item, n) for item, _ in todo if rounds and (n := _further(item, rounds))]
        await asyncio.wrap_future(self._ledger.flush())
        return [_row(item) if isinstance(item, _Open) else item for item in chunk]

    async def _know(self, opened: list[_Open]) -> None:
        """Keep a few pictures whose answers are known, to ask about them again."""
        for item in opened:
            if not self.trust.wants():
                return
            job = item.jobs[0]
            if isinstance(job.answer, Answer) and job.answer.label != NO_LABEL:
                prepared = await asyncio.to_thread(self.classifier.prepare, item.image.pixels)
                self.trust.keep(Canary(job.entry.key, prepared, job.answer.label))

    async def _round(self, todo: list[tuple[_Open, int]]) -> None:
        """Have the next n questions of each picture answered: by the ledger, the classifier, or a round before."""
        own, others = _Round(), set[_Round]()
        work = [(item.image, self._claim(item, n, own, others)) for item, n in todo]
        jobs = [job for _, claimed in work for job in claimed]
        own.left = len(jobs)
        try:
            if jobs:
                await self._ask(work, jobs)
                await own.wait()
        finally:
            if own.left:
                self._settle(jobs, self._reason or "the question was not sent")
            for job in jobs:
                del self._asking[job.entry.key]
        for other in others:
            await other.wait()

    def _claim(self, item: _Open, n: int, own: _Round, others: set[_Round]) -> list[_Job]:
        """Those of the next n questions that nobody has answered or is asking: an identical one is asked once."""
        claimed = []
        start, item.asked = item.asked, min(item.asked + n, len(item.jobs))
        for place, job in enumerate(item.jobs[start : item.asked], start):
            if job.answer is not None:
                self.progress.hits += 1
            elif (first := self._asking.setdefault(job.entry.key, job)) is job:
                job.round = own
                claimed.append(job)
            else:
                item.jobs[place] = first
                if first.round and first.round is not own:
                    others.add(first.round)
            if self.tell:
                item.jobs[place].listen(partial(_report, self.tell, item.picture.name, place))
        return claimed

    async def _ask(self, work: list[tuple[Image, list[_Job]]], jobs: list[_Job]) -> None:
        unfit = [] if self.stopped else await asyncio.to_thread(self._prepare, work)
        for job, reason in unfit:
            job.settle(reason)
        async with self._checking:
            await self._check()
        if self.stopped:
            self._settle(jobs, self._reason)
        self._due.extend(job for job in jobs if job.answer is None)
        self._enter_more()

    def _prepare(self, work: list[tuple[Image, list[_Job]]]) -> list[tuple[_Job, str]]:
        """Render and encode, in slices, so that a large picture is never held in all its views at once.

        What comes back is what the classifier cannot take, and why.
        """
        unfit: list[tuple[_Job, str]] = []
        for image, jobs in work:
            step = max(1, CHUNK_BYTES // image.pixels.nbytes)
            for start in range(0, len(jobs), step):
                part = jobs[start : start + step]
                for job, pixels in zip(part, render(image, [job.question for job in part]), strict=True):
                    try:
                        job.prepared = self.classifier.prepare(pixels)
                    except ImageError as error:
                        unfit.append((job, str(error)))
        return unfit

    # From questions to answers -------------------------------------------------------------------------------------

    def _enter_more(self) -> None:
        """See to it that the senders do not run out of questions while the next ones are written to disk."""
        if not self._due or self._entering:
            return
        if len(self._ready) * self.classifier.terms.batch <= self._ahead // 2:
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

    async def _intend(self, jobs: list[_Job], attempt: int, wait: float = 0.0) -> None:
        """Enter questions in the ledger, durably, and queue those that may be sent now.

        What another process has in flight is looked for again later rather than bought twice.
        """
        if wait:
            await self._sleep(wait)
        if self.stopped:
            self._settle(jobs, self._reason)
            return
        entries = [job.entry for job in jobs]
        try:
            intent = self._ledger.intend(self.classifier.fingerprint, entries, self._price, self._budget)
            held = self._granted(jobs, await asyncio.wrap_future(intent), attempt)
        except Exception as error:
            self._break(jobs, error)
            return
        if held:
            self._start(self._intend(held, attempt, min(1.0, 2 * wait or 0.05)))

    def _granted(self, jobs: list[_Job], grant: Grant, attempt: int) -> list[_Job]:
        """Do what the ledger says: queue, take an answer, give up; those left over are held by another process."""
        if len(grant.granted) == len(jobs):
            self._queue(jobs, attempt)
            return []
        by_key = {job.entry.key: job for job in jobs}
        for name, answer in grant.answered.items():
            self.progress.hits += 1
            by_key[name].settle(answer)
        self._settle([by_key[name] for name in grant.refused], "the budget is spent")
        self._queue([by_key[name] for name in grant.granted], attempt)
        return [by_key[name] for name in grant.held]

    def _queue(self, jobs: list[_Job], attempt: int) -> None:
        """Let senders take these in batches; there are never more senders than calls at the same time."""
        size = self.classifier.terms.batch
        self.progress.retries += len(jobs) if attempt > 1 else 0
        self._ready.extend(_Batch(jobs[start : start + size], attempt) for start in range(0, len(jobs), size))
        for _ in range(min(len(self._ready), self._gate.most - self._senders)):
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

    async def _send(self, batch: _Batch) -> None:
        """Send one batch once, and settle whatever comes of it; a failure that may pass is sent again later."""
        jobs, attempt = batch
        try:
            async with self._gate:
                if self._rates or self._pause_until:
                    await self._turn(len(jobs))
                if self._reason:
                    self._withdraw(jobs)
                    return
                self._spend(len(jobs))
                started = time.perf_counter()
                answers = await self.classifier.label([job.prepared for job in jobs])
            self._keep(jobs, answers, time.perf_counter() - started, attempt)
        except PassingError as error:
            self._blame(error, jobs)
            self._retry(batch, error)
        except ClassifierError as error:
            self._end(error)
            self._give_up(jobs, str(error))
        except Exception as error:
            self._break(jobs, error)

    def _spend(self, questions: int) -> None:
        self.progress.sent += questions
        self.progress.micros += questions * self._price

    async def _turn(self, questions: int) -> None:
        """Wait until the pace lets this many questions go."""
        now = time.monotonic()
        moments = [rate.when(now) for rate in self._rates for _ in range(questions)]
        wait = max([self._pause_until, *moments]) - now
        if wait > 0:
            await self._sleep(wait)

    async def _sleep(self, seconds: float) -> None:
        """Wait so long, or until the asker is stopped."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), seconds)

    def _keep(self, jobs: list[_Job], answers: list[Answer], latency: float, attempts: int) -> None:
        if len(answers) != len(jobs):
            raise PermanentError(f"the classifier gave {len(answers)} answers to {len(jobs)} questions")
        self._failures = 0
        self._gate.widen()
        self.progress.answered += len(jobs)
        for job, answer in zip(jobs, answers, strict=True):
            kept = answer if self._replies or answer.raw is None else Answer(answer.label, answer.score, answer.status)
            self._ledger.record(job.entry.key, kept, latency, attempts)
            job.settle(kept)

    def _blame(self, error: PassingError, jobs: list[_Job]) -> None:
        """Take back what was surely not sent, slow down, and stop after too many failures in a row."""
        self._failures += 1
        if not error.sent:
            self._spend(-len(jobs))
            self._ledger.release([job.entry.key for job in jobs])
        if error.status in PRESSURE:
            self._gate.narrow()
        if error.retry_after:
            self._pause_until = time.monotonic() + min(error.retry_after, self._pace.longest)
        if self._failures >= self._pace.breaker:
            self._end(
                ClassifierError(
                    f"{self._failures} attempts in a row failed, so the run stopped with everything saved; "
                    f"the last one: {error}; run the same command again to go on"
                )
            )

    def _retry(self, batch: _Batch, error: PassingError) -> None:
        few = error.garbled or error.status == INTERNAL
        if self.stopped or batch.attempt >= (self._pace.few if few else self._pace.attempts):
            self._give_up(batch.jobs, str(error))
        else:
            self._start(self._again(batch, error))

    async def _again(self, batch: _Batch, error: PassingError) -> None:
        """Queue a batch that failed once more, after a wait that grows, is jittered, and no less than was asked for."""
        backoff = self._pace.backoff * 2 ** (batch.attempt - 1) * random.uniform(0.5, 1.0)
        await self._sleep(min(max(backoff, error.retry_after or 0.0), self._pace.longest))
        if self.stopped:
            self._give_up(batch.jobs, str(error))
        else:
            await self._intend(batch.jobs, batch.attempt + 1)

    def _end(self, error: ClassifierError) -> None:
        self._fatal = self._fatal or error
        self.stop(str(error))

    def _break(self, jobs: list[_Job], error: Exception) -> None:
        """The ledger failed, or a connector broke its promise: nothing more is sent, and the run raises this."""
        self.stop(str(error))
        for job in jobs:
            if job.round:
                job.round.end(error)

    def _withdraw(self, jobs: list[_Job]) -> None:
        """These were surely not sent: give back what they were granted."""
        self._ledger.release([job.entry.key for job in jobs])
        self._settle(jobs, self._reason)

    def _give_up(self, jobs: list[_Job], reason: str) -> None:
        """Nobody waits for these answers any more: they stay sent and counted."""
        self._ledger.give_up([job.entry.key for job in jobs])
        self._settle(jobs, reason)

    def _settle(self, jobs: Iterable[_Job], reason: str) -> None:
        for job in jobs:
            job.settle(reason)

    # Canaries ------------------------------------------------------------------------------------------------------

    async def _check(self) -> None:
        if not self.trust.due(self.progress.sent):
            return
        try:
            await self.trust.check(self._ask_again, self.progress.sent)
        except PassingError as error:
            self._blame(error, [])
        except ClassifierError as error:
            self._end(error)

    async def _ask_again(self, key: bytes, prepared: object) -> str | None:
        """One more answer to a question that has one; None where the budget ends or the run is stopped."""
        answer = None if self.stopped else await self.probe(prepared)
        if answer is None:
            return None
        self._ledger.recheck(key, answer)
        return answer.label

    async def probe(self, prepared: object) -> Answer | None:
        """One answer that is paid for but not kept; None where the budget does not cover it."""
        booked = self._ledger.book(self.classifier.fingerprint, 1, self._price, self._budget)
        if not await asyncio.wrap_future(booked):
            return None
        async with self._gate:
            await self._turn(1)
            self._spend(1)
            (answer,) = await self.classifier.label([prepared])
        return answer


@lru_cache(maxsize=4096)
def _text(view: View, seed: int, index: int) -> tuple[str, bytes]:
    """A view in words, and what tells the question from others about the same picture."""
    return str(view), tail(str(view), seed, index, RENDERER)


def _report(tell: Tell, name: str, place: int, answer: Answer | str) -> None:
    tell(name, place, answer.label if isinstance(answer, Answer) and answer.label != NO_LABEL else None)


def _further(item: _Open, rounds: Rounds) -> int:
    """How many more views this picture wants; none once a question of it has failed."""
    base, *views = item.labels()
    if base is None or item.failure() or item.asked == len(item.jobs):
        return 0
    return rounds.more(base, tuple(views))


def _row(item: _Open) -> Row | Unscored:
    base, *views = item.labels()
    reason = item.failure() or ("the classifier's answer held no label" if base is None else None)
    if base is None or reason:
        return Unscored(item.picture.name, str(reason))
    return Row(item.picture.name, base, (*views, *[None] * (len(item.jobs) - item.asked)))
