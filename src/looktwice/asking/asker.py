"""From pictures to answers: what the ledger lacks is rendered, prepared and given to the sender.

Pictures go through in chunks. A chunk is decoded and looked up in a thread (large photos in several, side by side), and
what is to be asked is rendered and prepared in another. Several chunks are on their way at once, so the classifier
never waits for a picture, and memory does not grow with the number of pictures.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter, deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from looktwice.asking.canaries import Canaries, Canary
from looktwice.asking.jobs import (
    NO_SCREEN,
    Job,
    Meter,
    OnAnswer,
    Opened,
    Opener,
    Quote,
    Round,
    Rounds,
    Scores,
    Screen,
    Trial,
    check_words,
    prepare,
    settle,
)
from looktwice.asking.ledger.memory import Unrecorded
from looktwice.asking.ledger.protocol import Budget, Ledger, Spend
from looktwice.asking.ledger.queue import QueuedLedger
from looktwice.asking.outcome import Cause, Failure, Unscored
from looktwice.asking.pace import Polling, Rate, RetryPolicy
from looktwice.asking.sender import Sender
from looktwice.calibration.votes import Row
from looktwice.classifiers.base import Answer, AnyClassifier, Terms, names_of, size_in_bytes
from looktwice.errors import ClassifierError, ImageError, LedgerError, TransientError
from looktwice.phrasing import AS_DESCRIBED, Phrasing
from looktwice.pictures.collection import Picture
from looktwice.pictures.image import Image
from looktwice.views import Panel, render

if TYPE_CHECKING:
    from looktwice.asking.batches import Batches

CHUNK_BYTES = 16_000_000
CHUNK_QUESTIONS = 256
DRAWN_BYTES = 4_000_000
"""Rendered views of a picture that a thread holds before they are prepared."""
CHUNKS_AHEAD = 3
MOST_CHUNKS = 24
"""The same while questions wait for a retry; most of such a chunk is answered and freed."""
WORKERS = os.cpu_count() or 1
"""Threads that decode large photos, render views and prepare them; more would cost memory and gain nothing."""


@dataclass(frozen=True)
class Estimate:
    """An estimate of what a run would ask, without retries and canaries; identical questions count once."""

    pictures: int
    unreadable: int
    """Pictures that would not be scored, because they cannot be read."""
    questions: int
    hits: int
    """Questions whose answers the ledger has."""
    queries: int
    """Questions that would be sent."""
    micros: int
    """Their cost in millionths of the currency: exact for a price a query, estimated for prices by the token."""
    seconds: float | None
    """Seconds that takes at the allowed rate; None where nothing limits the rate."""
    unfamiliar: int = 0
    """Pictures of another kind than the profile's, as far as it can tell."""
    width: int = 0
    height: int = 0
    """Of the largest picture, as its views are drawn."""
    question_bytes: int | None = None
    """The bytes of a question about it as sent to the classifier; None where they are not known."""
    input_tokens: int = 0
    output_tokens: int = 0
    """Their estimated tokens, where they are billed by the token."""
    most_micros: int = 0
    """What they can cost at the most, which a budget must cover while they are in flight."""

    def __add__(self, other: Estimate) -> Estimate:
        """The estimate for the pictures of both, one after the other; the largest picture is the larger of the two."""
        limited = [each.seconds for each in (self, other) if each.seconds is not None]
        largest = max(self, other, key=lambda each: each.width * each.height)
        return Estimate(
            pictures=self.pictures + other.pictures,
            unreadable=self.unreadable + other.unreadable,
            questions=self.questions + other.questions,
            hits=self.hits + other.hits,
            queries=self.queries + other.queries,
            micros=self.micros + other.micros,
            seconds=sum(limited) if limited else None,
            unfamiliar=self.unfamiliar + other.unfamiliar,
            width=largest.width,
            height=largest.height,
            question_bytes=largest.question_bytes,
            input_tokens=self.input_tokens + other.input_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            most_micros=self.most_micros + other.most_micros,
        )


_Chunk = list[Opened | Unscored]
NOT_IN_A_BATCH = Failure(Cause.STOPPED, "the question has no answer in a batch yet; run the same command again")


class Asker:
    """Asks one classifier about pictures, within its rate limits and the budget."""

    def __init__(
        self,
        classifier: AnyClassifier,
        ledger: Ledger | None = None,
        retry: RetryPolicy | None = None,
        budget: Budget | None = None,
        seed: int = 0,
        canaries: int = 0,
        terms: Terms | None = None,
        rate: Rate | None = None,
        scores: Scores = "use",
        meter: Meter | None = None,
        polling: Polling | None = None,
        label_check: int = 0,
    ) -> None:
        """`terms` are those under which it is asked; the classifier's own where None, with a `rate` of its own.

        With `polling` it asks in the vendor's batches.
        """
        self.classifier = classifier
        self.names = names_of(classifier)
        self.terms = terms or classifier.terms
        self.seed = seed
        self.scores = scores
        self.label_check = label_check
        """Pictures whose labels are compared with their truths before the others are asked about."""
        self.on_answer: OnAnswer | None = None
        self.canaries = Canaries(canaries if ledger and not polling else 0)
        self._ledger = ledger or Unrecorded()
        if rate is None and self.terms.per_second:
            rate = Rate(self.terms.per_second)
        self._meter = meter
        self._sender = Sender(
            classifier, self.terms, self._ledger, retry or RetryPolicy(), budget or Budget(), rate, meter
        )
        self.progress = self._sender.progress
        self._batches = batches_of(self._sender, polling) if polling else None
        self._opener = Opener(classifier.fingerprint, self.terms, seed, self.names, scores)
        self._asking: dict[bytes, Job] = {}
        self._led: list[Asker] = []
        self._tried: dict[bytes, Answer] = {}
        """The answers of the last trial, which a ledger need not keep."""
        self._runs = 0
        self._stop_requested = False
        """Whether `stop` was called and `resume` was not."""
        self._checking = asyncio.Lock()
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="pictures")

    @property
    def stopped(self) -> bool:
        """Whether it was stopped."""
        return self._sender.stopped

    @property
    def in_flight(self) -> int:
        """Calls in flight, or questions in batches."""
        own = self._batches.in_flight if self._batches else self._sender.gate.busy
        return own + sum(other.in_flight for other in self._led)

    def lead(self, other: Asker) -> None:
        """Have another asker, which asks in the place of this one, stop with it and count into its progress."""
        other.progress = other._sender.progress = self.progress
        self._led.append(other)

    def stop(self, message: str = "the run was stopped") -> None:
        """Send nothing more until `resume`; what is in flight is waited for, and the pictures left are not scored."""
        self._stop_requested = True
        self._sender.stop(Failure(Cause.STOPPED, message))
        for other in self._led:
            other.stop(message)

    def give_up(self) -> None:
        """Wait no longer for a ledger that cannot be written: the answers that wait for it are lost."""
        if isinstance(self._ledger, QueuedLedger):
            self._ledger.stop_waiting()
        for other in self._led:
            other.give_up()

    def resume(self) -> None:
        """Send again, now that what stopped it has passed."""
        self._stop_requested = False
        self._sender.resume()

    async def ask(
        self,
        pictures: Iterable[Picture],
        panel: Panel,
        rounds: Rounds | None = None,
        screen: Screen = NO_SCREEN,
        trial: Trial | None = None,
    ) -> AsyncGenerator[Row | Unscored]:
        """The answers about each picture, in the pictures' order; durable before they are handed over.

        With a `trial`, some of the pictures come first, and if it raises nothing else is sent.
        If it is stopped, the pictures that are left come back as not scored; an iterator, which may be endless, is read
        no further.
        """
        check_words(self.classifier, panel)
        chunks: deque[asyncio.Task[list[Row | Unscored]]] = deque()
        self._runs += 1
        try:
            pictures, rounds = await self._fetch(pictures, panel, rounds, screen)
            await self._try(trial, screen)
            source, more = iter(pictures), True
            while True:
                while more and len(chunks) < (MOST_CHUNKS if self._sender.starved else CHUNKS_AHEAD):
                    if more := bool(chunk := await self._load(source, panel, screen)):
                        chunks.append(asyncio.create_task(self._ask_chunk(chunk, rounds, self.on_answer)))
                if not chunks:
                    break
                if more and len(chunks) < MOST_CHUNKS and await self._starved_before(chunks[0]):
                    continue
                for row in await chunks.popleft():
                    self._count(row)
                    yield row
                if self._sender.fatal:
                    raise self._sender.fatal
            for left in self._not_asked(source) if isinstance(pictures, Sequence) else ():
                self._count(left)
                yield left
        except BaseException:
            if self._runs == 1:  # otherwise other runs continue, and with them what was begun here
                self._sender.stop(Failure(Cause.STOPPED, "the run was stopped"))
            raise
        finally:
            await asyncio.gather(*chunks, return_exceptions=True)
            self._runs -= 1
            await self._sender.finish()
            if not self._runs and not self._stop_requested:
                self._sender.resume()  # what ended these runs does not concern the next one

    async def _try(self, trial: Trial | None, screen: Screen) -> None:
        """Ask the questions of a trial; answers are found again, and reported, when their pictures have their turn."""
        if trial is None:
            return
        source, rows, answers = iter(trial.pictures), list[Row | Unscored](), dict[bytes, Answer]()
        while chunk := await self._load(source, Panel(()), screen):
            rows += await self._ask_chunk(chunk, None, None)
            jobs = (job for item in chunk if isinstance(item, Opened) for job in item.jobs)
            answers |= {job.entry.key: job.answer for job in jobs if isinstance(job.answer, Answer)}
        if self._sender.fatal:
            raise self._sender.fatal
        trial.check([row.base for row in rows if isinstance(row, Row)])
        self._tried = answers

    async def _starved_before(self, chunk: asyncio.Task[list[Row | Unscored]]) -> bool:
        """Wait until this chunk is answered or the sender runs out of questions; whether it was the latter."""
        starved = asyncio.create_task(self._sender.until_starved())
        try:
            await asyncio.wait([chunk, starved], return_when=asyncio.FIRST_COMPLETED)
        finally:
            starved.cancel()
        return not chunk.done()

    def _not_asked(self, source: Iterator[Picture]) -> Iterator[Unscored]:
        """The pictures that remain when the sender has stopped; none where it has not."""
        if halt := self._sender.halt:
            yield from (Unscored(picture.name, Cause.STOPPED, halt.message) for picture in source)

    async def close(self) -> None:
        """Send nothing more, keep what is in flight, and close the ledger and the classifier."""
        try:
            self.stop("the model was closed")
            with suppress(LedgerError):  # which closing it tells
                await self._sender.finish()
            if self._batches:
                await self._batches.close()
            await self.classifier.close()
        finally:
            self._workers.shutdown(wait=False)
            await asyncio.to_thread(self._ledger.close)

    def spent(self) -> Spend:
        """What the ledger has spent on the classifier so far."""
        return self._ledger.spent(self.classifier.fingerprint)

    def room(self) -> int | None:
        """How many more queries the budget covers; None if nothing limits them."""
        return self._sender.room()

    def money_left(self) -> int | None:
        """How much more money the budget has, in millionths; None if nothing limits it."""
        return self._sender.money_left()

    async def price(self, pictures: Sequence[Picture]) -> float:
        """The mean cost of a question about these pictures, in millionths; unreadable ones are left out."""
        chunk = await self._load(iter(pictures), Panel(()), NO_SCREEN)
        quotes = [self.quote(item.image).expected for item in chunk if isinstance(item, Opened)]
        return sum(quotes) / max(1, len(quotes))

    def blocked(self) -> str | None:
        """Why nothing can be asked now, for people; None if a question would be sent.

        It was stopped, a budget is spent for good or for this day, the ledger failed, or the classifier wants to be
        left alone for longer than the longest wait.
        """
        return self._sender.blocked()

    async def estimate(self, pictures: Iterable[Picture], panel: Panel, screen: Screen = NO_SCREEN) -> Estimate:
        """What `ask` would send for these pictures, looked up in the ledger without asking."""
        check_words(self.classifier, panel)
        source, seen = iter(pictures), set[str]()
        total = unreadable = unfamiliar = hits = 0
        cost = Counter[str]()
        largest: Image | None = None
        while chunk := await self._load(source, panel, screen):
            new = {item.image.digest: item for item in chunk if isinstance(item, Opened)}
            for item in (new[digest] for digest in new.keys() - seen):
                hits += sum(job.answer is not None for job in item.jobs)
                for quote in (self.quote(item.image, job.question.phrasing) for job in item.jobs if not job.answer):
                    cost["micros"] += quote.expected
                    cost["most_micros"] += quote.most
                    cost["input_tokens"] += quote.tokens.input
                    cost["output_tokens"] += quote.tokens.output
            total += len(chunk)
            causes = [item.cause for item in chunk if isinstance(item, Unscored)]
            unreadable += causes.count(Cause.UNREADABLE)
            unfamiliar += causes.count(Cause.UNFAMILIAR)
            unfamiliar += sum(isinstance(i, Opened) and screen.unfamiliar(i.descriptor) is not None for i in chunk)
            seen |= new.keys()
            images = [item.image for item in new.values()] + ([largest] if largest else [])
            largest = max(images, key=lambda image: image.pixels.size, default=None)
        asked = len(seen) * (1 + len(panel))
        queries = asked - hits
        seconds = queries / self.terms.per_second if self.terms.per_second else None
        micros = cost.pop("micros", 0)
        estimate = Estimate(total, unreadable, asked, hits, queries, micros, seconds, unfamiliar, **cost)
        return await asyncio.to_thread(self._weighed, estimate, largest) if largest else estimate

    def _weighed(self, estimate: Estimate, image: Image) -> Estimate:
        """The estimate with what a question about this picture takes."""
        height, width, _ = image.pixels.shape
        try:
            weight = size_in_bytes(self.classifier.prepare(image.pixels))
        except ImageError:  # the classifier does not take it
            weight = None
        return replace(estimate, width=width, height=height, question_bytes=weight)

    def _count(self, row: Row | Unscored) -> None:
        self.progress.pictures += 1
        self.progress.unscored += isinstance(row, Unscored)

    # From pictures to questions ------------------------------------------------------------------------------------

    async def _load(self, source: Iterator[Picture], panel: Panel, screen: Screen) -> _Chunk:
        return [] if self.stopped else await asyncio.to_thread(self._next_chunk, source, panel, screen)

    def _next_chunk(self, source: Iterator[Picture], panel: Panel, screen: Screen) -> _Chunk:
        """The next pictures, until they are as many questions or bytes as a chunk should hold, with known answers."""
        chunk: _Chunk = []
        room, size = CHUNK_BYTES, len(panel) + 1
        most = max(CHUNK_QUESTIONS, 2 * self.terms.concurrency * self.terms.batch)
        large = False
        while room > 0 and (left := max(most, size) // size - len(chunk)) > 0:
            taken = list(islice(source, min(left, WORKERS) if large else 1))
            if not taken:
                break
            work = self._workers.map if large else map  # small pictures cost less than handing them over
            opened = list(work(partial(self._opener.open, panel=panel, screen=screen), taken))
            images = [item.image for item in opened if isinstance(item, Opened)]
            large = any(image.original_size for image in images)
            room -= sum(image.pixels.nbytes for image in images) * size
            chunk += opened
        jobs = [job for item in chunk if isinstance(item, Opened) for job in item.jobs]
        if known := self._tried | self._ledger.find([job.entry.key for job in jobs]):
            for job in jobs:
                job.answer = known.get(job.entry.key)
        return chunk

    async def _ask_chunk(
        self, chunk: _Chunk, rounds: Rounds | None, on_answer: OnAnswer | None
    ) -> list[Row | Unscored]:
        """Ask about the pictures of a chunk, round by round, until each has enough answers."""
        opened = [item for item in chunk if isinstance(item, Opened)]
        for item in opened:  # keep a few pictures with answers of earlier runs as canaries
            earlier = None if item.jobs[0].entry.key in self._tried else item.jobs[0].answer
            if (label := item.label(earlier)) and self.canaries.wants():
                prepared = await asyncio.to_thread(self.classifier.prepare, item.image.pixels)
                self.canaries.keep(Canary(item.jobs[0].entry.key, prepared, label, self.quote(item.image)))
        todo = [(item, 1 + (rounds.first if rounds else len(item.jobs))) for item in opened]
        while todo:
            await self._round(todo, on_answer)
            todo = [(item, n) for item, _ in todo if rounds and (n := item.further(rounds))]
        await asyncio.wrap_future(self._ledger.flush())
        return [item.row() if isinstance(item, Opened) else item for item in chunk]

    async def _round(self, todo: list[tuple[Opened, int]], on_answer: OnAnswer | None) -> None:
        """Have the next n questions of each picture answered: by the ledger, the classifier, or a round before."""
        own, others = Round(), set[Round]()
        work = []
        for item, n in todo:
            start = item.asked
            work.append((item.image, self._claim(item, n, own, others)))
            if on_answer:
                for place in range(start, item.asked):
                    item.jobs[place].listen(partial(item.report, on_answer, place))
        jobs = [job for _, claimed in work for job in claimed]
        own.left = len(jobs)
        try:
            if jobs and self._batches:
                for job in jobs:
                    job.settle(self._batches.failures.get(job.entry.key) or self._sender.halt or NOT_IN_A_BATCH)
            elif jobs:
                await self._ask(work, jobs)
                await own.wait()
        finally:
            if own.left:
                settle(jobs, self._sender.halt or Failure(Cause.STOPPED, "the question was not sent"))
            for job in jobs:
                del self._asking[job.entry.key]
        for other in others:
            await other.wait()

    def _claim(self, item: Opened, n: int, own: Round, others: set[Round]) -> list[Job]:
        """Those of the next n questions that nobody has answered or is asking: an identical one is asked once."""
        claimed = []
        start, item.asked = item.asked, min(item.asked + n, len(item.jobs))
        for place, job in enumerate(item.jobs[start : item.asked], start):
            if job.answer is not None:
                self.progress.hits += self._tried.pop(job.entry.key, None) is None  # which was counted then
            elif (first := self._asking.setdefault(job.entry.key, job)) is job:
                job.round = own
                claimed.append(job)
            else:
                item.jobs[place] = first
                if first.round and first.round is not own:
                    others.add(first.round)
        return claimed

    async def _ask(self, work: list[tuple[Image, list[Job]]], jobs: list[Job]) -> None:
        unfit = [] if self.stopped else await self._prepared(work)
        for job, failure in unfit:
            job.settle(failure)
        async with self._checking:
            if self.canaries.kept and self.canaries.due(self.progress.sent):
                try:
                    await self.canaries.check(self._ask_again, self.progress.sent)
                except TransientError as error:
                    self._sender.back_off(error)
                except ClassifierError as error:
                    self._sender.end(error)
        if self._sender.halt:
            settle(jobs, self._sender.halt)
        self._sender.send(job for job in jobs if job.answer is None)

    async def _prepared(self, work: list[tuple[Image, list[Job]]]) -> list[tuple[Job, Failure]]:
        return await asyncio.get_running_loop().run_in_executor(self._workers, self._prepare, work)

    def _prepare(self, work: list[tuple[Image, list[Job]]]) -> list[tuple[Job, Failure]]:
        """Render and encode, in slices, so that a large picture is never held in all its views at once.

        What comes back is what the classifier cannot take, and why.
        """
        unfit: list[tuple[Job, Failure]] = []
        for image, jobs in work:
            step = max(1, DRAWN_BYTES // image.pixels.nbytes)
            for start in range(0, len(jobs), step):
                part = jobs[start : start + step]
                for job, pixels in zip(part, render(image, [job.question for job in part]), strict=True):
                    try:
                        job.prepared = prepare(self.classifier, pixels, job.question.phrasing)
                        if self._meter:
                            height, width, _ = pixels.shape
                            job.quote = self._meter.quote(height, width, job.question.phrasing)
                    except ImageError as error:
                        unfit.append((job, Failure(Cause.UNFIT, str(error))))
        return unfit

    # Batches -------------------------------------------------------------------------------------------------------

    async def _fetch(
        self, source: Iterable[Picture], panel: Panel, rounds: Rounds | None, screen: Screen
    ) -> tuple[Iterable[Picture], Rounds | None]:
        """Have all questions answered in the ledger first, where it asks in batches; views in at most two rounds."""
        batches = self._batches
        if batches is None:
            return source, rounds
        pictures = source if isinstance(source, Sequence) else list(source)
        rounds = rounds and Rounds(rounds.first, partial(_all_or_nothing, rounds.more, len(panel)))
        for first in (True, False) if rounds else (True,):
            await batches.fetch(partial(self._unanswered, batches, pictures, panel, rounds, screen, first))
        if self._sender.fatal:
            raise self._sender.fatal
        self.progress.hits -= batches.answered  # which are about to be found there
        batches.answered = 0
        return pictures, rounds

    async def _unanswered(
        self,
        batches: Batches,
        pictures: Sequence[Picture],
        panel: Panel,
        rounds: Rounds | None,
        screen: Screen,
        first: bool,
    ) -> AsyncIterator[list[Job]]:
        """The questions of the first or the second round that the ledger has no answer to, prepared."""
        source, seen = iter(pictures), set[bytes]()
        while chunk := await self._load(source, panel, screen):
            work = []
            for item in (item for item in chunk if isinstance(item, Opened)):
                wanted = item.jobs
                if rounds:
                    item.asked = min(1 + rounds.first, len(item.jobs))
                    wanted = item.jobs[: item.asked]
                    if not first:
                        wanted = item.jobs[item.asked :] if item.further(rounds) else []
                jobs = [job for job in wanted if job.answer is None and job.entry.key not in seen]
                jobs = [job for job in jobs if job.entry.key not in batches.failures]
                seen.update(job.entry.key for job in jobs)
                work.append((item.image, jobs))
            unfit = await self._prepared(work)
            batches.failures |= {job.entry.key: failure for job, failure in unfit}
            yield [job for _, jobs in work for job in jobs if job.prepared is not None]

    # Canaries ------------------------------------------------------------------------------------------------------

    async def _ask_again(self, canary: Canary) -> str | None:
        """One more answer to a question that has one; None where the budget ends or the run is stopped."""
        answer = None if self.stopped else await self.probe(canary.prepared, canary.quote)
        if answer is None:
            return None
        self._ledger.recheck(canary.key, answer)
        return self.names.label(answer.label)

    async def probe(self, prepared: object, quote: Quote) -> Answer | None:
        """One answer that is paid for but not kept; None where the budget does not cover it."""
        return await self._sender.probe(prepared, quote)

    def quote(self, image: Image, phrasing: Phrasing = AS_DESCRIBED) -> Quote:
        """The price of a question about this picture, in this wording."""
        height, width, _ = image.pixels.shape
        return self._sender.meter.quote(height, width, phrasing)


def batches_of(sender: Sender, polling: Polling) -> Batches:
    """The batches of the classifier behind a sender."""
    from looktwice.asking.batches import Batches  # which loads the connectors of chat models

    return Batches(sender, polling)


def _all_or_nothing(more: Callable[[Row], int], views: int, row: Row) -> int:
    """All the other views where a rule asks for any more: batches take too long for a third round."""
    return views if more(row) else 0
