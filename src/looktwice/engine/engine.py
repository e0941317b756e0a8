"""From pictures to votes: what the ledger lacks is rendered, prepared and asked, a picture at a time.

A picture is a task. Its queries are awaited together, and its row is handed over as soon as it and those before it are
answered. How far ahead pictures are opened grows with the rows taken, so that whoever takes one row pays for one.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from looktwice.calibration.votes import Row
from looktwice.classifiers.base import Answer, AnyClassifier, Naming, Terms
from looktwice.engine.budget import Spend
from looktwice.engine.canaries import Canaries, Canary
from looktwice.engine.estimate import Estimate, estimate
from looktwice.engine.ledger.ledger import Ledger
from looktwice.engine.ledger.places import close_ledger
from looktwice.engine.limits import Polling
from looktwice.engine.meter import Meter, Quote
from looktwice.engine.outcome import Cause, Failure, Progress, Unscored
from looktwice.engine.query import (
    NO_SCREEN,
    AnswerEvent,
    OnAnswer,
    Opener,
    OpenPicture,
    Query,
    Rounds,
    Screen,
    again,
    check_words,
    label_of,
)
from looktwice.engine.runner import Runner, Settings
from looktwice.errors import ClassifierError
from looktwice.images.collection import Picture
from looktwice.images.image import Image
from looktwice.phrasing import AS_DESCRIBED, Phrasing
from looktwice.views import Panel

if TYPE_CHECKING:
    from looktwice.engine.batches import Batches

T = TypeVar("T")

MOST_AHEAD = 4096
"""Queries of pictures that are opened before those before them are done; a few wait for a retry meanwhile."""
MOST_TOGETHER = 256
"""Rows that are handed over at a time."""
HELD_BYTES = 64_000_000
"""Pixels of pictures that are being asked about, with all their views."""
MOST_OPENED, OPENED_BYTES = 32, 2_000_000
"""Pictures, and pixels with all their views, that are asked about in one go where that is free."""
WORKERS = os.cpu_count() or 1
"""Threads that decode photos, render views and prepare them; more would cost memory and gain nothing."""
NOT_IN_A_BATCH = Failure(Cause.STOPPED, "the query has no answer in a batch yet; run the same command again")


class QueryEngine:
    """Asks one classifier about pictures; several runs may share it."""

    def __init__(
        self,
        classifier: AnyClassifier,
        ledger: Ledger | None,
        settings: Settings,
        meter: Meter | None = None,
        polling: Polling | None = None,
    ) -> None:
        """Without a ledger the classifier is free: nothing is claimed or kept. With `polling` it asks in batches."""
        self.classifier, self.settings = classifier, settings
        self.runner = Runner(classifier, ledger, settings, meter)
        self.on_answer: OnAnswer | None = None
        """Called with every answer of a run that names no function of its own."""
        self.canaries = Canaries(settings.canaries if ledger and not polling else 0)
        self._opener = Opener(classifier, settings.terms, settings.seed, settings.scores)
        self._batches = _batches(self.runner, polling) if polling else None
        self._led: list[QueryEngine] = []
        self._runs = 0
        self._stop_requested = False
        """Whether `stop` was called and `resume` was not."""
        self._opened_at = ledger.now() if ledger else 0.0
        self._checking = asyncio.Lock()
        self._memory = Memory(HELD_BYTES)
        self._together = 1
        """Pictures that are asked about in one go; several small ones where that is free."""
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="pictures")

    @property
    def terms(self) -> Terms:
        return self.settings.terms

    @property
    def names(self) -> Naming:
        """What the words in the classifier's answers mean."""
        return self._opener.names

    @property
    def progress(self) -> Progress:
        return self.runner.progress

    @property
    def stopped(self) -> bool:
        """Whether it was stopped."""
        return self.runner.stopped

    @property
    def in_flight(self) -> int:
        """Calls in flight, or queries in batches."""
        return self._batches.in_flight if self._batches else self.runner.calls.busy

    def stop(self, message: str = "the run was stopped") -> None:
        """Send nothing more until `resume`; what is in flight is waited for, and the pictures left are not scored."""
        self._stop_requested = True
        self.runner.stop(Failure(Cause.STOPPED, message))
        for other in self._led:
            other.stop(message)

    def lead(self, other: QueryEngine) -> None:
        """Have another engine, which asks in the place of this one, stop with it and count into its progress."""
        other.runner.progress = self.runner.progress
        self._led.append(other)

    def resume(self) -> None:
        """Send again, now that what stopped it has passed."""
        self._stop_requested = False
        self.runner.resume()

    async def close(self) -> None:
        """Send nothing more, keep what is in flight, and close the ledger and the classifier."""
        try:
            if not self._stop_requested:
                await self.runner.release_budget()
            self.stop("the model was closed")
            await self.runner.finish()
            if self._batches:
                await self._batches.close()
            await self.classifier.close()
        finally:
            self._workers.shutdown(wait=False)
            if self.runner.ledger:
                await asyncio.to_thread(close_ledger, self.runner.ledger)

    def spend(self) -> Spend:
        """What the ledger has spent on the classifier so far."""
        return self.runner.ledger.spend(self.classifier.fingerprint) if self.runner.ledger else Spend()

    # Votes -----------------------------------------------------------------------------------------------------------

    async def ask(
        self,
        pictures: Iterable[Picture],
        panel: Panel,
        rounds: Rounds | None = None,
        screen: Screen = NO_SCREEN,
        on_answer: OnAnswer | None = None,
    ) -> AsyncGenerator[Row | Unscored]:
        """The answers about each picture, one after the other; see `ask_ready`."""
        async with aclosing(self.ask_ready(pictures, panel, rounds, screen, on_answer)) as groups:
            async for rows in groups:
                for row in rows:
                    yield row

    async def ask_ready(
        self,
        pictures: Iterable[Picture],
        panel: Panel,
        rounds: Rounds | None = None,
        screen: Screen = NO_SCREEN,
        on_answer: OnAnswer | None = None,
    ) -> AsyncGenerator[list[Row | Unscored]]:
        """The answers about each picture, in the pictures' order, as many at a time as are there; all are committed.

        If it is stopped, or the budget is spent, the pictures that are left come back as not scored; an iterator,
        which may be endless, is read no further. An exception of `on_answer` ends the run.
        """
        check_words(self.classifier, panel)
        work = partial(self._ask_group, panel=panel, screen=screen, on_answer=on_answer or self.on_answer)
        asked_first = 1 + (rounds.first if rounds else len(panel))
        tasks: deque[asyncio.Task[list[Row | Unscored]]] = deque()
        ended: Unscored | Failure | None = None
        started = taken = 0
        self._runs += 1
        try:
            await self.runner.hold_budget()
            if self._batches:
                pictures, rounds = await self._fetch(self._batches, pictures, panel, rounds, screen)
            source = _Source(pictures)
            while True:
                ahead = taken + self._ahead(taken, asked_first)
                while not (ended := ended or self.runner.halt) and started < ahead:
                    if not (group := source.take(min(ahead - started, self._together))):
                        break
                    tasks.append(asyncio.create_task(work(group, rounds=rounds)))
                    started += len(group)
                awaited: list[asyncio.Future[Any]] = [*islice(tasks, 1), *source.pending(bool(ended))]
                if not awaited:
                    break
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                rows: list[Row | Unscored] = []
                while tasks and tasks[0].done() and len(rows) < MOST_TOGETHER:
                    rows += tasks.popleft().result()
                unscored = [row for row in rows if isinstance(row, Unscored)]
                if unscored and self.runner.fatal:
                    raise self.runner.fatal
                ended = ended or next((row for row in unscored if row.cause is Cause.BUDGET), None)
                self._count(rows)
                yield rows
                taken += len(rows)
            left = list[Row | Unscored](source.rest(ended) if ended else ())
            self._count(left)
            yield left
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._runs -= 1
            if not self._runs and not self._stop_requested:
                self.runner.resume()  # what ended these runs does not concern the next one

    def _ahead(self, taken: int, asked_first: int) -> int:
        """Pictures that may be in progress: the first, and beyond it a number of queries that grows with the rows."""
        beyond = self.terms.concurrency * self.terms.batch * 4 ** min(taken, 8)
        return 1 + min(beyond, MOST_AHEAD) // asked_first

    def _count(self, rows: Sequence[Row | Unscored]) -> None:
        self.progress.pictures += len(rows)
        self.progress.unscored += sum(isinstance(row, Unscored) for row in rows)

    async def labels(self, pictures: Sequence[Picture]) -> list[str]:
        """The labels of a few pictures, each in one query, before a run is begun; those that fail are left out."""
        rows = await self._ask_group(pictures, Panel(()), None, NO_SCREEN, None)
        if self.runner.fatal:
            raise self.runner.fatal
        return [row.base for row in rows if isinstance(row, Row)]

    async def _ask_group(
        self,
        pictures: Sequence[Picture],
        panel: Panel,
        rounds: Rounds | None,
        screen: Screen,
        on_answer: OnAnswer | None,
    ) -> list[Row | Unscored]:
        """Ask about one picture, or several where that is free, round by round, until each has enough answers."""
        async with self._memory.opening(len(pictures)):
            await self._memory.has_room.wait()
            if halt := self.runner.halt:
                return [Unscored(picture.name, halt.cause, halt.message) for picture in pictures]
            opened = await self._in_thread(lambda: [self._opened(each, panel, rounds, screen) for each in pictures])
            asking = [each for each in opened if isinstance(each, OpenPicture)]
            size = sum(each.image.pixels.nbytes * (1 + len(each.queries)) for each in asking)
            self._memory.take(size)
        if self.runner.ledger is None:
            self._together = max(1, min(MOST_OPENED, OPENED_BYTES * len(asking) // max(1, size)))
        try:
            queries = [query for each in asking for query in each.queries[: each.asked]]
            for each in asking:
                self._keep_canary(each)
            while queries:
                await self._answers(queries, on_answer)
                queries = await self._next_round(asking, rounds) if rounds else []
            return [each if isinstance(each, Unscored) else each.row() for each in opened]
        finally:
            self._memory.take(-size)

    async def _next_round(self, asking: Sequence[OpenPicture], rounds: Rounds) -> list[Query]:
        """The queries that the rounds say, prepared."""
        following = [(each, queries) for each in asking if (queries := each.next_queries(rounds))]

        def prepare() -> None:
            for each, queries in following:
                self._prepare(each, queries)

        if following and not self._batches:
            await self._in_thread(prepare)
        return [query for _, queries in following for query in queries]

    def _in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._workers, work)

    def _opened(
        self, picture: Picture, panel: Panel, rounds: Rounds | None, screen: Screen, prepares: bool = True
    ) -> OpenPicture | Unscored:
        """A picture with its first queries, prepared as far as the ledger does not have their answers."""
        opened = self._opener.open(picture, panel, screen)
        if isinstance(opened, Unscored):
            return opened
        stored = self.runner.ledger.find([query.entry.key for query in opened.queries]) if self.runner.ledger else {}
        for query in opened.queries:
            if answer := stored.get(query.entry.key):
                query.answer, query.stored_at = self.runner.read_stored(query, answer), answer.at
        first = opened.next_queries(rounds)
        if prepares and not self._batches:
            self._prepare(opened, first)
        return opened

    def _prepare(self, opened: OpenPicture, queries: Sequence[Query]) -> None:
        self._opener.prepare(opened.image, [each for each in queries if each.answer is None], self.runner.meter.quote)

    async def _answers(self, queries: Sequence[Query], on_answer: OnAnswer | None) -> None:
        """Have these queries answered: by the ledger, or by the classifier."""

        def report(*answered: Query) -> None:
            for query in answered if on_answer else ():
                label = label_of(self.names, query.answer)
                on_answer(AnswerEvent(query.name, query.place, query.entry.view, label))  # type: ignore[misc]

        known = [query for query in queries if query.answer is not None]
        self.progress.hits += len(known)
        report(*known)
        missing = [query for query in queries if query.answer is None]
        if not missing:
            return
        if self._batches:
            for query in missing:
                query.answer = self._batches.failures.get(query.entry.key) or self.runner.halt or NOT_IN_A_BATCH
            return
        if self.runner.ledger is None:
            await self.runner.ask_free(missing)
            report(*missing)
            return
        await self._check_canaries()
        tasks = {self.runner.start(query): query for query in missing}
        pending = set(tasks)
        try:
            while pending:
                wanted = asyncio.FIRST_COMPLETED if on_answer else asyncio.ALL_COMPLETED
                done, pending = await asyncio.wait(pending, return_when=wanted)
                for task in done:
                    query = tasks[task]
                    query.answer, query.prepared = task.result(), None
                    report(query)
        finally:
            for task in pending:
                self.runner.leave(tasks[task])

    # Canaries, checks and prices -------------------------------------------------------------------------------------

    def _keep_canary(self, opened: OpenPicture) -> None:
        """Keep a few pictures with answers of earlier runs as canaries."""
        base = opened.queries[0]
        label = label_of(self.names, base.answer) if (base.stored_at or self._opened_at) < self._opened_at else None
        if label and self.canaries.wants():
            self.canaries.keep(Canary(base.entry, opened.image, label))

    async def _check_canaries(self) -> None:
        async with self._checking:
            if self.canaries.kept and self.canaries.due(self.progress.sent):
                try:
                    await self.canaries.check(self._ask_again, self.progress.sent)
                except ClassifierError as error:
                    self.runner.end(error)

    async def _ask_again(self, canary: Canary) -> str | None:
        """One more answer to a query that has one; None where there is none."""
        prepared = await asyncio.to_thread(self.classifier.prepare, canary.image.pixels)
        answer = await self.probe(Query(again(canary.entry), prepared=prepared, quote=self.quote(canary.image)))
        return self.names.label(answer.label) if isinstance(answer, Answer) else None

    async def probe(self, query: Query) -> Answer | Failure:
        """The answer to a query that no picture waits for."""
        return await self.runner.start(query)

    def quote(self, image: Image, phrasing: Phrasing = AS_DESCRIBED) -> Quote:
        """The price of a query about this picture, in this wording."""
        height, width, _ = image.pixels.shape
        return self.runner.meter.quote(height, width, phrasing)

    async def price(self, pictures: Sequence[Picture]) -> float:
        """The mean cost of a query about these pictures, in millionths; unreadable ones are left out."""
        opened = [await asyncio.to_thread(self._opener.open, picture, Panel(()), NO_SCREEN) for picture in pictures]
        quotes = [self.quote(each.image).expected for each in opened if isinstance(each, OpenPicture)]
        return sum(quotes) / max(1, len(quotes))

    async def estimate(self, pictures: Iterable[Picture], panel: Panel, screen: Screen = NO_SCREEN) -> Estimate:
        """What `ask` would send for these pictures, looked up in the ledger without asking."""
        check_words(self.classifier, panel)
        following = takewhile(lambda _: not self.stopped, pictures)
        opened = (self._opened(each, panel, None, screen, prepares=False) for each in following)
        return await asyncio.to_thread(estimate, self, opened, screen)

    # Batches -------------------------------------------------------------------------------------------------------

    async def _fetch(
        self, batches: Batches, source: Iterable[Picture], panel: Panel, rounds: Rounds | None, screen: Screen
    ) -> tuple[Iterable[Picture], Rounds | None]:
        """Have all queries answered in the ledger first, by the vendor's batches; views in at most two rounds."""
        pictures = source if isinstance(source, Sequence) else list(source)
        rounds = rounds and Rounds(rounds.first, partial(_all_or_nothing, rounds.more, len(panel)))
        for last in (False, True) if rounds else (True,):
            await batches.fetch(partial(self._unanswered, batches, pictures, panel, rounds, screen, last))
        if self.runner.fatal:
            raise self.runner.fatal
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
        last: bool,
    ) -> AsyncIterator[list[Query]]:
        """The queries of the first or of all rounds that the ledger has no answer to, prepared, picture by picture."""
        seen: set[bytes] = set()
        for picture in pictures:
            if self.stopped:
                return
            opened = await asyncio.to_thread(self._opened, picture, panel, rounds, screen)
            if isinstance(opened, Unscored):
                continue
            first = opened.queries[: opened.asked]
            wanted = first if not (rounds and last) else opened.next_queries(rounds)
            queries = [
                each for each in wanted if each.answer is None and each.entry.key not in seen | batches.failures.keys()
            ]
            seen.update(query.entry.key for query in queries)
            await asyncio.to_thread(self._prepare, opened, queries)
            batches.failures |= {each.entry.key: each.answer for each in queries if isinstance(each.answer, Failure)}
            yield [query for query in queries if query.answer is None]


class Memory:
    """Bounds the pictures that are opened at a time, by their number and their pixels."""

    def __init__(self, most: int) -> None:
        self._singly, self._together = asyncio.Semaphore(WORKERS), asyncio.Lock()
        self.has_room = asyncio.Event()
        self.has_room.set()
        self._most, self._held = most, 0

    def opening(self, pictures: int) -> AbstractAsyncContextManager[None]:
        """The right to open pictures; small ones, opened together, would keep each other from the interpreter."""
        return self._singly if pictures == 1 else self._together

    def take(self, size: int) -> None:
        """Count bytes that are held from now on; a negative number gives them back."""
        self._held += size
        if self._held > self._most:
            self.has_room.clear()
        else:
            self.has_room.set()


class _Source:
    """Pictures one after the other; an iterator is read in a thread, since it may wait."""

    def __init__(self, pictures: Iterable[Picture]) -> None:
        self._listed = isinstance(pictures, Sequence)
        self._pictures = iter(pictures)
        self._reading: asyncio.Future[Picture | None] | None = None

    def take(self, count: int) -> list[Picture]:
        """The next few, at most `count`; of an iterator one. None at the end, or while one is being read."""
        if self._listed:
            return list(islice(self._pictures, count))
        if self._reading is None:
            self._reading = asyncio.get_running_loop().run_in_executor(None, next, self._pictures, None)
        if not self._reading.done() or (picture := self._reading.result()) is None:
            return []
        self._reading = None
        return [picture]

    def pending(self, ended: bool) -> list[asyncio.Future[Picture | None]]:
        """What to wait for where a picture is being read."""
        return [self._reading] if self._reading and not self._reading.done() and not ended else []

    def rest(self, ended: Unscored | Failure) -> Iterator[Unscored]:
        """The pictures that were not opened; an iterator is read no further."""
        for picture in self._pictures if self._listed else ():
            yield Unscored(picture.name, ended.cause, ended.message)


def _batches(runner: Runner, polling: Polling) -> Batches:
    from looktwice.engine.batches import Batches  # which loads the connectors of chat models

    return Batches(runner, polling)


def _all_or_nothing(more: Callable[[Row], int], views: int, row: Row) -> int:
    """All the other views where a rule asks for any more: batches take too long for a third round."""
    return views if more(row) else 0
