"""Sends questions to a classifier: pace, retries and budget, with every answer through the ledger.

Pictures go through in chunks. A chunk is loaded, looked up, rendered and prepared in a thread; what the ledger lacks is
entered there as an intent and then sent. Several chunks are on their way at once and share one gate, so the classifier
never waits for a picture and memory does not grow with their number.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass, field

from secondlook.classifiers import AnyClassifier, Pixels
from secondlook.errors import ClassifierError, ImageError, PassingError, PermanentError
from secondlook.images import Image
from secondlook.ledger.protocol import Budget, Entry, Ledger, key
from secondlook.ledger.unrecorded import Unrecorded
from secondlook.pacing import Gate, Pace
from secondlook.pictures import Picture
from secondlook.trust import Canary, Trust
from secondlook.views import RENDERER, Panel, Question, base_question, questions, render
from secondlook.votes import NO_LABEL, Answer, Row

CHUNK_BYTES = 16_000_000
CHUNK_QUESTIONS = 256
CHUNKS_AHEAD = 3

PRESSURE = (429, 503)
"""Statuses that ask for fewer calls at a time."""
INTERNAL = 500


@dataclass(frozen=True)
class Unscored:
    """A picture that has no confidence, and why: never a number."""

    name: str
    reason: str


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


@dataclass(eq=False)
class _Job:
    """One question on its way; `answer` gets what came back, or the reason why nothing did."""

    question: Question
    entry: Entry
    answer: asyncio.Future[Answer | str]
    prepared: object = None
    unfit: str | None = None
    """Why the classifier cannot take this picture, where it cannot."""


@dataclass(eq=False)
class _Open:
    """A picture whose questions are being asked: the base question first, then those of the panel."""

    picture: Picture
    image: Image
    questions: tuple[Question, ...]
    answers: list[Answer | str] = field(default_factory=list)

    def next(self, n: int) -> tuple[Question, ...]:
        """The next n questions that were not asked yet."""
        return self.questions[len(self.answers) : len(self.answers) + n]

    def failure(self) -> str | None:
        """Why a question of this picture has no answer, where one has none."""
        return next((answer for answer in self.answers if isinstance(answer, str)), None)

    def labels(self) -> list[str | None]:
        """The label of each question; None where none could be read, or the question was not asked."""
        said = [None if isinstance(a, str) or a.label == NO_LABEL else a.label for a in self.answers]
        return said + [None] * (len(self.questions) - len(said))


_Asked = tuple[_Open, tuple[Question, ...]]
"""A picture and the questions about it that are asked in one round."""


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
    ) -> None:
        self.classifier = classifier
        self.progress = Progress()
        self.trust = Trust(canaries if ledger else 0)
        self._ledger = ledger or Unrecorded()
        self._pace = pace or Pace()
        self._budget = budget or Budget()
        self.seed = seed
        self._rates = self._pace.rates(classifier.terms.per_second)
        self._gate = Gate(self._pace.concurrency or classifier.terms.concurrency)
        self._asking: dict[bytes, asyncio.Future[Answer | str]] = {}
        self._failures = 0
        self._pause_until = 0.0
        self._stopped: str | None = None
        self._fatal: ClassifierError | None = None

    @property
    def stopped(self) -> bool:
        """Whether it was told to send nothing more."""
        return self._stopped is not None

    @property
    def in_flight(self) -> int:
        """Calls on their way now."""
        return self._gate.busy

    def stop(self, reason: str = "the run was stopped") -> None:
        """Send nothing more; what is in flight is waited for, and the pictures left are not scored."""
        self._stopped = self._stopped or reason

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
            await asyncio.gather(*chunks, return_exceptions=True)
            await asyncio.wrap_future(self._ledger.flush())

    def _count(self, row: Row | Unscored) -> None:
        self.progress.pictures += 1
        self.progress.unscored += isinstance(row, Unscored)

    async def _load(self, source: Iterator[Picture], panel: Panel) -> list[_Open | Unscored]:
        return [] if self._stopped else await asyncio.to_thread(self._next_chunk, source, panel)

    def _next_chunk(self, source: Iterator[Picture], panel: Panel) -> list[_Open | Unscored]:
        """The next pictures, decoded, until they are as many questions or bytes as a chunk should hold."""
        chunk: list[_Open | Unscored] = []
        room, size = CHUNK_BYTES, len(panel) + 1
        most = max(CHUNK_QUESTIONS, 2 * self._gate.limit * self.classifier.terms.batch)
        while room > 0 and (len(chunk) + 1) * size <= max(most, size) and (picture := next(source, None)):
            item = self._open(picture, panel)
            chunk.append(item)
            room -= item.image.pixels.nbytes * size if isinstance(item, _Open) else 0
        return chunk

    def _open(self, picture: Picture, panel: Panel) -> _Open | Unscored:
        try:
            image = picture.image()
        except ImageError as error:
            return Unscored(picture.name, str(error))
        return _Open(picture, image, (base_question(image), *questions(image, panel, self.seed)))

    async def _poll(self, chunk: list[_Open | Unscored], rounds: Rounds | None) -> list[Row | Unscored]:
        """Ask about the pictures of a chunk, round by round, until each has enough."""
        opened = [item for item in chunk if isinstance(item, _Open)]
        todo = [(item, 1 + (rounds.first if rounds else len(item.questions))) for item in opened]
        while todo:
            await self._round([(item, item.next(n)) for item, n in todo])
            todo = [(item, n) for item, _ in todo if rounds and (n := _further(item, rounds))]
        await asyncio.wrap_future(self._ledger.flush())
        return [_row(item) if isinstance(item, _Open) else item for item in chunk]

    async def _round(self, todo: list[_Asked]) -> None:
        """Answer the questions of each picture: from the ledger, or else from the classifier."""
        entries = {q: self._entry(q) for _, asked in todo for q in asked}
        known = await asyncio.to_thread(self._ledger.find, [entry.key for entry in entries.values()])
        self.progress.hits += len(known)
        await self._know(todo, entries, known)
        jobs = [self._jobs(asked, entries, known) for _, asked in todo]
        waited = {key: self._asking[key] for entry in entries.values() if (key := entry.key) not in known}
        try:
            await self._ask(todo, jobs)
        finally:
            for job in (job for row in jobs for job in row):
                _settle(job, self._stopped or "the question was not sent")
                del self._asking[job.entry.key]
        for item, asked in todo:
            item.answers += [known.get(key) or await waited[key] for key in (entries[q].key for q in asked)]

    def _entry(self, question: Question) -> Entry:
        digest, view, seed, index = question.digest, str(question.view), question.seed, question.index
        return Entry(key(self.classifier.fingerprint, digest, view, seed, index, RENDERER), digest, view, seed, index)

    def _jobs(
        self, asked: tuple[Question, ...], entries: dict[Question, Entry], known: dict[bytes, Answer]
    ) -> list[_Job]:
        """Jobs for the questions that nobody has answered or is asking: an identical one is asked once."""
        jobs = []
        for question in asked:
            entry = entries[question]
            if entry.key not in known and entry.key not in self._asking:
                self._asking[entry.key] = asyncio.get_running_loop().create_future()
                jobs.append(_Job(question, entry, self._asking[entry.key]))
        return jobs

    async def _ask(self, todo: list[_Asked], jobs: list[list[_Job]]) -> None:
        if not any(jobs) or self._stopped:
            return
        await asyncio.to_thread(self._prepare, [(item.image, row) for (item, _), row in zip(todo, jobs, strict=True)])
        if self.trust.due(self.progress.sent):
            await self._check()
        fit = [job for row in jobs for job in row if not _unfit(job)]
        await self._send(await self._intend(fit))

    async def _know(self, todo: list[_Asked], entries: dict[Question, Entry], known: dict[bytes, Answer]) -> None:
        """Keep a few pictures whose answers are known, to ask about them again."""
        for item, asked in todo:
            if not self.trust.wants():
                return
            answer = known.get(entries[asked[0]].key)
            if answer and answer.label != NO_LABEL and asked[0] == item.questions[0]:
                prepared = await asyncio.to_thread(self.classifier.prepare, item.image.pixels)
                self.trust.keep(Canary(entries[asked[0]].key, prepared, answer.label))

    async def _check(self) -> None:
        try:
            await self.trust.check(self._ask_again, self.progress.sent)
        except PassingError as error:
            self._blame(error, [])
        except ClassifierError as error:
            self._end(error)

    async def _ask_again(self, key: bytes, prepared: object) -> str | None:
        """One more answer to a question that has one; None where the budget ends or the run is stopped."""
        answer = None if self._stopped else await self.probe(prepared)
        if answer is None:
            return None
        self._ledger.recheck(key, answer)
        return answer.label

    async def probe(self, prepared: object) -> Answer | None:
        """One answer that is paid but not kept; None where the budget does not cover it."""
        price = self.classifier.terms.price_micros
        booked = self._ledger.book(self.classifier.fingerprint, 1, price, self._budget)
        if not await asyncio.wrap_future(booked):
            return None
        async with self._gate:
            await self._turn(1)
            self._spend(1)
            (answer,) = await self.classifier.label([prepared])
        return answer

    def _prepare(self, work: list[tuple[Image, list[_Job]]]) -> None:
        """Render and encode in slices, so that a large picture is never held in all its views at once."""
        for image, jobs in work:
            step = max(1, CHUNK_BYTES // image.pixels.nbytes)
            for start in range(0, len(jobs), step):
                part = jobs[start : start + step]
                for job, pixels in zip(part, render(image, [job.question for job in part]), strict=True):
                    job.prepared = self._prepared(job, pixels)

    def _prepared(self, job: _Job, pixels: Pixels) -> object:
        try:
            return self.classifier.prepare(pixels)
        except ImageError as error:
            job.unfit = str(error)
            return None

    async def _intend(self, jobs: list[_Job]) -> list[_Job]:
        """Enter the questions in the ledger, durably, before they are sent: those that may be sent now.

        What another process has in flight is waited for rather than bought twice.
        """
        granted: list[_Job] = []
        price, patience = self.classifier.terms.price_micros, 0.05
        while jobs:
            entries = [job.entry for job in jobs]
            grant = await asyncio.wrap_future(
                self._ledger.intend(self.classifier.fingerprint, entries, price, self._budget)
            )
            may_send, held, refused = set(grant.granted), set(grant.held), set(grant.refused)
            granted += [job for job in jobs if job.entry.key in may_send]
            for job in jobs:
                if job.entry.key in grant.answered:
                    self.progress.hits += 1
                    job.answer.set_result(grant.answered[job.entry.key])
                elif job.entry.key in refused:
                    _settle(job, "the budget is spent")
            jobs = [job for job in jobs if job.entry.key in held]
            if jobs:
                await asyncio.sleep(patience)
                patience = min(1.0, 2 * patience)
        return granted

    async def _send(self, jobs: list[_Job]) -> None:
        size = self.classifier.terms.batch
        batches = deque(jobs[start : start + size] for start in range(0, len(jobs), size))

        async def work() -> None:
            while batches:
                await self._answer(batches.popleft())

        await asyncio.gather(*(work() for _ in range(min(len(batches), self._gate.most))))

    async def _answer(self, jobs: list[_Job]) -> None:
        """Send one batch until it is answered or has failed for good."""
        attempt = 1
        while jobs and (failure := await self._attempt(jobs, attempt)):
            if self._stopped or attempt >= self._cap(failure):
                self._give_up(jobs, str(failure))
                return
            await asyncio.sleep(self._wait(failure, attempt))
            jobs = await self._intend(jobs)
            self.progress.retries += len(jobs)
            attempt += 1

    async def _attempt(self, jobs: list[_Job], attempt: int) -> PassingError | None:
        """Send one batch once. Whatever comes of it is settled, but for a failure that may pass: that is returned."""
        try:
            async with self._gate:
                await self._turn(len(jobs))
                if self._stopped:
                    self._withdraw(jobs, self._stopped)
                    return None
                started = time.perf_counter()
                self._spend(len(jobs))
                answers = await self.classifier.label([job.prepared for job in jobs])
            self._keep(jobs, answers, time.perf_counter() - started, attempt)
        except PassingError as error:
            self._blame(error, jobs)
            return error
        except ClassifierError as error:
            self._end(error)
            self._give_up(jobs, str(error))
        return None

    def _spend(self, questions: int) -> None:
        self.progress.sent += questions
        self.progress.micros += questions * self.classifier.terms.price_micros

    async def _turn(self, questions: int) -> None:
        """Wait until the pace lets this many questions go."""
        now = time.monotonic()
        moments = [rate.when(now) for rate in self._rates for _ in range(questions)]
        wait = max([self._pause_until, *moments]) - now
        if wait > 0:
            await asyncio.sleep(wait)

    def _keep(self, jobs: list[_Job], answers: list[Answer], latency: float, attempts: int) -> None:
        if len(answers) != len(jobs):
            raise PermanentError(f"the classifier gave {len(answers)} answers to {len(jobs)} questions")
        self._failures = 0
        self._gate.widen()
        self.progress.answered += len(jobs)
        for job, answer in zip(jobs, answers, strict=True):
            self._ledger.record(job.entry.key, answer, latency, attempts)
            job.answer.set_result(answer)

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

    def _end(self, error: ClassifierError) -> None:
        self._fatal = self._fatal or error
        self.stop(str(error))

    def _cap(self, error: PassingError) -> int:
        return self._pace.few if error.garbled or error.status == INTERNAL else self._pace.attempts

    def _wait(self, error: PassingError, attempt: int) -> float:
        """Seconds before the next attempt: growing, jittered, and at least what the server asked for."""
        backoff = self._pace.backoff * 2 ** (attempt - 1) * random.uniform(0.5, 1.0)
        return min(max(backoff, error.retry_after or 0.0), self._pace.longest)

    def _withdraw(self, jobs: list[_Job], reason: str) -> None:
        """These were surely not sent: give back what they were granted."""
        self._ledger.release([job.entry.key for job in jobs])
        for job in jobs:
            _settle(job, reason)

    def _give_up(self, jobs: list[_Job], reason: str) -> None:
        """Nobody waits for these answers any more: they stay sent and counted."""
        self._ledger.give_up([job.entry.key for job in jobs])
        for job in jobs:
            _settle(job, reason)


def _unfit(job: _Job) -> bool:
    """Whether the classifier cannot take the picture; then the question is settled, at no cost."""
    if job.unfit:
        _settle(job, job.unfit)
    return job.unfit is not None


def _settle(job: _Job, reason: str) -> None:
    if not job.answer.done():
        job.answer.set_result(reason)


def _further(item: _Open, rounds: Rounds) -> int:
    """How many more views this picture wants; none once a question of it has failed."""
    base, *views = item.labels()[: len(item.answers)]
    if base is None or item.failure() or len(item.answers) == len(item.questions):
        return 0
    return rounds.more(base, tuple(views))


def _row(item: _Open) -> Row | Unscored:
    base, *views = item.labels()
    reason = item.failure() or ("the classifier's answer held no label" if base is None else None)
    if base is None or reason:
        return Unscored(item.picture.name, str(reason))
    return Row(item.picture.name, base, tuple(views))
