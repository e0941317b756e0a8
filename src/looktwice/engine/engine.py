"""From pictures to votes: queries without a stored answer are rendered, prepared and sent, picture by picture.

Each picture is a task. Its queries are awaited together, and its row is returned as soon as this picture and all
earlier ones are answered. The look-ahead grows with the number of rows taken, so that a caller who takes a single row
pays only for this row.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, aclosing
from functools import partial
from itertools import islice, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from looktwice.calibration import Row
from looktwice.engine.budget import Spend
from looktwice.engine.channel import Channel
from looktwice.engine.check import Estimate, estimate
from looktwice.engine.ledger.ledger import Ledger, close_ledger
from looktwice.engine.picture import OpenPicture, Run, open_picture
from looktwice.engine.query import (
    NO_SCREEN,
    AnswerEvent,
    Bought,
    Cause,
    Failure,
    OnAnswer,
    Progress,
    Query,
    Rounds,
    Screen,
    Unscored,
)
from looktwice.engine.runner import Settings
from looktwice.errors import LookTwiceError
from looktwice.images import Picture
from looktwice.views import Panel

if TYPE_CHECKING:
    from looktwice.engine.batches import Batches

T = TypeVar("T")

MOST_AHEAD = 4096
"""The look-ahead in queries, as a multiple of the concurrency; some queries wait for a retry."""
MOST_TOGETHER = 256
"""The maximum number of rows returned at once."""
HELD_BYTES = 64_000_000
"""The maximum number of bytes of pixels of all pictures that are processed at once, including their views."""
MOST_OPENED, OPENED_BYTES = 32, 2_000_000
"""The maximum number of pictures, and of pixels with all views, that are processed together if queries are free."""
WORKERS = os.cpu_count() or 1
"""The number of threads for decoding, rendering and preparing; more would only use more memory."""
NOT_IN_A_BATCH = Failure(Cause.STOPPED, "the query has no answer in a batch yet; run the same command again")


class Stage(NamedTuple):
    """The latest call of `ask`: a fit asks about its pictures in several."""

    before: int
    """The number of pictures returned by earlier calls."""
    pictures: int | None
    """The number of pictures asked about, if known."""
    began: float
    """The start, by the monotonic clock."""


class QueryEngine:
    """Queries one or more classifiers about pictures; several runs may share it."""

    def __init__(self, channels: Sequence[Channel]) -> None:
        """The base query, and views without an @, go to the first classifier."""
        self.channels = {channel.name: channel for channel in channels}
        if len(self.channels) < len(channels) or not channels:
            names = ", ".join(channel.name for channel in channels)
            raise LookTwiceError(
                f"each classifier needs a unique name; the given names are: {names or 'none'}", code="option-conflict"
            )
        self.first = channels[0]
        self.ledger: Ledger | None = next((each.runner.ledger for each in channels if each.runner.ledger), None)
        self.on_answer: OnAnswer | None = None
        """The default callback for every answer of a run."""
        self._pictures = Progress()
        """The number of pictures returned; queries are counted by each classifier's runner."""
        self.stage = Stage(0, None, 0.0)
        self._runs = 0
        self._stop_requested = False
        """Whether `stop` was called without a later `resume`."""
        self._memory = Memory(HELD_BYTES)
        self._together = 1
        """The number of pictures processed together; several small ones if queries are free."""
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="pictures")

    @property
    def settings(self) -> Settings:
        """The settings of the first classifier."""
        return self.first.settings

    @property
    def progress(self) -> Progress:
        """The combined progress of all classifiers."""
        return sum((each.runner.progress for each in self._all()), self._pictures)

    @property
    def stopped(self) -> bool:
        """Whether it was stopped."""
        return all(each.runner.stopped for each in self._all())

    @property
    def in_flight(self) -> int:
        """Calls in flight, or queries in batches."""
        return sum(each.in_flight for each in self._all())

    def _all(self) -> Iterable[Channel]:
        return self.channels.values()

    def stop(self, message: str = "the run was stopped") -> None:
        """Send nothing more until `resume`; queries in flight are awaited, and remaining pictures are not scored."""
        self._stop_requested = True
        for channel in self._all():
            channel.runner.stop(Failure(Cause.STOPPED, message))

    def resume(self) -> None:
        """Undo `stop`."""
        self._stop_requested = False
        for channel in self._all():
            channel.runner.resume()

    async def close(self) -> None:
        """Stop sending, store the answers in flight, and close the ledger and the classifiers."""
        try:
            if not self._stop_requested:
                for channel in self._all():
                    await channel.runner.release_budgets()
            self.stop("the model was closed")
            for channel in self._all():
                await channel.runner.finish()
                if channel.batches:
                    await channel.batches.close()
                await channel.classifier.close()
        finally:
            self._workers.shutdown(wait=False)
            if self.ledger:
                await asyncio.to_thread(close_ledger, self.ledger)

    def spend(self) -> Spend:
        """The spend on the classifiers so far, from the ledger."""
        prints = dict.fromkeys(each.classifier.fingerprint for each in self._all())
        return self.ledger.spend(*prints) if self.ledger else Spend()

    def remaining(self) -> int | None:
        """An upper bound on further queries within the budgets; None without a limit."""
        return _most(each.runner.remaining() for each in self._all())

    def money_left(self) -> int | None:
        """An upper bound on the remaining money, in millionths; None without a limit."""
        return _most(each.runner.money_left() for each in self._all())

    def unavailable(self) -> str | None:
        """The reason why no classifier is available now, as a sentence; None if at least one is available."""
        reasons = {each.name: each.runner.unavailable() for each in self._all()}
        if None in reasons.values():
            return None
        first, *others = reasons.values()
        return "; ".join(f"{name}: {reason}" for name, reason in reasons.items()) if others else first

    # Votes -----------------------------------------------------------------------------------------------------------

    async def ask(
        self,
        pictures: Iterable[Picture],
        panel: Panel,
        rounds: Rounds | None = None,
        screen: Screen = NO_SCREEN,
        on_answer: OnAnswer | None = None,
    ) -> AsyncGenerator[Row | Unscored]:
        """Yield the answers about each picture; see `ask_ready`."""
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
        """Yield lists of committed answers, in the order of the pictures, as they become ready.

        If a classifier fails permanently or its budget is spent, the other classifiers continue. Once none is left, or
        the engine is stopped, the remaining pictures are returned as not scored; an iterator, which may be endless, is
        not read further. An exception in `on_answer` ends the run.
        """
        run = Run.for_panel(self.channels, panel, rounds, screen, on_answer or self.on_answer)
        tasks: deque[asyncio.Task[list[Row | Unscored]]] = deque()
        ended: Failure | None = None
        started = taken = 0
        self._runs += 1
        listed = len(pictures) if isinstance(pictures, Sequence) else None
        self.stage = Stage(self._pictures.pictures, listed, time.monotonic())
        try:
            source = _Source(await self._begin(run, pictures))
            while True:
                ahead = taken + self._ahead(taken, run)
                while not (ended := ended or run.ended()) and started < ahead:
                    if not (group := source.take(min(ahead - started, self._together))):
                        break
                    tasks.append(asyncio.create_task(self._ask_group(group, run)))
                    started += len(group)
                awaited: list[asyncio.Future[Any]] = [*islice(tasks, 1), *source.pending(bool(ended))]
                if not awaited:
                    break
                await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
                rows: list[Row | Unscored] = []
                while tasks and tasks[0].done() and len(rows) < MOST_TOGETHER:
                    rows += tasks.popleft().result()
                if any(isinstance(row, Unscored) for row in rows) and (fatal := run.fatal()):
                    raise fatal
                if rows:
                    self._count(rows)
                    yield rows
                taken += len(rows)
            if ended and (left := list[Row | Unscored](source.rest(ended))):
                self._count(left)
                yield left
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._runs -= 1
            if not self._runs and not self._stop_requested:
                self.resume()  # what ended these runs does not concern the next one

    def _ahead(self, taken: int, run: Run) -> int:
        """The pictures that may be in progress: the first one, and further ones up to a number of queries that grows
        with the number of rows returned."""
        limits = [channel.settings.limits for channel in run.channels]
        beyond = max(each.concurrency * each.batch for each in limits) * 4 ** min(taken, 8)
        return 1 + min(beyond, MOST_AHEAD) // run.asked_first

    def _count(self, rows: Sequence[Row | Unscored]) -> None:
        self._pictures.pictures += len(rows)
        self._pictures.unscored += sum(isinstance(row, Unscored) for row in rows)

    async def labels(self, pictures: Sequence[Picture], classifier: str = "") -> list[str]:
        """Query the labels of a few pictures before a run, with one query each; failures are left out."""
        run = Run.for_panel(self.channels, Panel((), classifier), None, NO_SCREEN, None)
        rows = await self._ask_group(pictures, run)
        if fatal := run.fatal():
            raise fatal
        return [row.base for row in rows if isinstance(row, Row) and row.base is not None]

    async def _ask_group(self, pictures: Sequence[Picture], run: Run) -> list[Row | Unscored]:
        """Ask about one picture, or several if queries are free, round by round, until each has enough answers."""
        async with self._memory.opening(len(pictures)):
            await self._memory.has_room.wait()
            if halt := run.halted():  # a spent budget does not keep stored answers from being read
                return [Unscored(picture.name, halt.cause, halt.message, halt.code) for picture in pictures]
            opened = await self._in_thread(lambda: [self._opened(each, run) for each in pictures])
            asking = [each for each in opened if isinstance(each, OpenPicture)]
            size = sum(each.image.pixels.nbytes * (1 + len(run.slots)) for each in asking)
            self._memory.take(size)
        if all(channel.runner.ledger is None for channel in run.channels):
            self._together = max(1, min(MOST_OPENED, OPENED_BYTES * len(asking) // max(1, size)))
        try:
            queries = [query for each in asking for query in each.queries]
            for each in asking:
                each.keep_canaries()
            while queries:
                await self._answers(queries, run)
                run.note_spent(queries)
                queries = await self._next_round(asking, run.rounds) if run.rounds else []
            return [each if isinstance(each, Unscored) else each.row() for each in opened]
        finally:
            self._memory.take(-size)

    def _opened(self, picture: Picture, run: Run, prepares: bool = True) -> OpenPicture | Unscored:
        """Open a picture with its first queries."""
        opened = open_picture(picture, run)
        if isinstance(opened, OpenPicture):
            opened.add(run.asked_first, prepares)
        return opened

    async def _next_round(self, asking: Sequence[OpenPicture], rounds: Rounds) -> list[Query]:
        """Prepare the queries of the next round."""
        return await self._in_thread(lambda: [query for each in asking for query in each.next_queries(rounds)])

    def _in_thread(self, work: Callable[[], T]) -> asyncio.Future[T]:
        return asyncio.get_running_loop().run_in_executor(self._workers, work)

    async def _answers(self, queries: Sequence[Query], run: Run) -> None:
        """Get the answers to these queries from the ledger or from their classifiers."""

        def report(answered: Sequence[Query]) -> None:
            if run.on_answer:
                for query in answered:
                    event = AnswerEvent(query.name, query.place, query.source, query.label, query.channel.name)
                    run.on_answer(event)

        known = [query for query in queries if query.answer is not None]
        for query in known:
            query.channel.runner.progress.hits += query.stored_at is not None
        report(known)
        missing: dict[Channel, list[Query]] = {}
        for query in queries:
            if query.answer is None:
                missing.setdefault(query.channel, []).append(query)
        free = [channel for channel in missing if channel.runner.ledger is None]
        tasks: dict[asyncio.Task[Bought | Failure], Query] = {}
        for channel, part in missing.items():
            if channel.batches:
                failures = channel.batches.failures
                for query in part:
                    query.answer = failures.get(query.entry.key) or run.closed(channel) or NOT_IN_A_BATCH
            elif channel not in free:
                await channel.check_canaries()
                tasks |= {channel.runner.start(query): query for query in part}
        pending = set(tasks)
        try:
            for channel in free:
                await channel.runner.ask_free(missing[channel])
            report([query for part in missing.values() for query in part if query.answer is not None])
            while pending:
                wanted = asyncio.FIRST_COMPLETED if run.on_answer else asyncio.ALL_COMPLETED
                done, pending = await asyncio.wait(pending, return_when=wanted)
                for task in done:
                    tasks[task].take(task.result())
                    report([tasks[task]])
        finally:
            for task in pending:
                tasks[task].channel.runner.leave(tasks[task])

    # Prices and batches ----------------------------------------------------------------------------------------------

    async def estimate(self, pictures: Iterable[Picture], panel: Panel, screen: Screen = NO_SCREEN) -> Estimate:
        """Estimate the queries that `ask` would send for these pictures; sends nothing."""
        run = Run.for_panel(self.channels, panel, None, screen, None)
        following = takewhile(lambda _: not self.stopped, pictures)
        opened = (self._opened(each, run, prepares=False) for each in following)
        return await asyncio.to_thread(estimate, run, opened, self.remaining())

    async def _begin(self, run: Run, source: Iterable[Picture]) -> Iterable[Picture]:
        """Resolve the budgets; queries to classifiers that use batches are answered first."""
        for channel in run.channels:
            await channel.runner.hold_budgets()
        batched = [(channel, channel.batches) for channel in run.channels if channel.batches]
        if not batched:
            return source
        pictures = source if isinstance(source, Sequence) else list(source)
        if run.rounds:
            more = partial(_all_or_nothing, run.rounds.more, len(run.slots))
            run.rounds = Rounds(run.rounds.first, more)
        for last in (False, True) if run.rounds else (True,):
            fetching = [
                each.fetch(partial(self._unanswered, each, name, pictures, run, last)) for name, each in batched
            ]
            for result in await asyncio.gather(*fetching, return_exceptions=True):
                if isinstance(result, BaseException):
                    raise result
        if fatal := run.fatal():
            raise fatal
        for channel, batches in batched:
            channel.runner.progress.hits -= batches.answered  # which are about to be counted there
            batches.answered = 0
        return pictures

    async def _unanswered(
        self, batches: Batches, channel: Channel, pictures: Sequence[Picture], run: Run, last: bool
    ) -> AsyncIterator[list[Query]]:
        """Prepare, picture by picture, the queries without a stored answer, from the first round or from all rounds."""
        seen: set[bytes] = set()
        for picture in pictures:
            if self.stopped:
                return
            opened = await asyncio.to_thread(self._opened, picture, run)
            if isinstance(opened, Unscored):
                continue
            wanted = opened.queries
            if run.rounds and last:
                for query in opened.queries:
                    query.answer = query.answer or NOT_IN_A_BATCH
                wanted = await asyncio.to_thread(opened.next_queries, run.rounds)
            queries = [
                each
                for each in wanted
                if each.channel is channel
                and each.answer is None
                and each.entry.key not in seen
                and each.entry.key not in batches.failures
            ]
            seen.update(query.entry.key for query in queries)
            await asyncio.to_thread(opened.prepare, queries)
            batches.failures |= {each.entry.key: each.answer for each in queries if isinstance(each.answer, Failure)}
            yield [query for query in queries if query.answer is None]


class Memory:
    """Limits the number of pictures in progress, and their total number of pixels."""

    def __init__(self, most: int) -> None:
        self._singly, self._together = asyncio.Semaphore(WORKERS), asyncio.Lock()
        self.has_room = asyncio.Event()
        self.has_room.set()
        self._most, self._held = most, 0

    def opening(self, pictures: int) -> AbstractAsyncContextManager[None]:
        """Wait for permission to open pictures; if many small pictures were opened at once, their threads would contend
        for the interpreter lock."""
        return self._singly if pictures == 1 else self._together

    def take(self, size: int) -> None:
        """Add to the number of pixels in progress; a negative number releases pixels."""
        self._held += size
        if self._held > self._most:
            self.has_room.clear()
        else:
            self.has_room.set()


class _Source:
    """A source of pictures; an iterator is read in a thread, since it may block."""

    def __init__(self, pictures: Iterable[Picture]) -> None:
        self._listed = isinstance(pictures, Sequence)
        self._pictures = iter(pictures)
        self._reading: asyncio.Future[Picture | None] | None = None

    def take(self, count: int) -> list[Picture]:
        """The next pictures, at most `count`; one from an iterator. The result is empty at the end, or while a picture
        is being read."""
        if self._listed:
            return list(islice(self._pictures, count))
        if self._reading is None:
            self._reading = asyncio.get_running_loop().run_in_executor(None, next, self._pictures, None)
        if not self._reading.done() or (picture := self._reading.result()) is None:
            return []
        self._reading = None
        return [picture]

    def pending(self, ended: bool) -> list[asyncio.Future[Picture | None]]:
        """The task that reads the next picture."""
        return [self._reading] if self._reading and not self._reading.done() and not ended else []

    def rest(self, ended: Failure) -> Iterator[Unscored]:
        """The pictures that were not opened; an iterator is not read further."""
        for picture in self._pictures if self._listed else ():
            yield Unscored(picture.name, ended.cause, ended.message, ended.code)


def _most(limits: Iterable[int | None]) -> int | None:
    """The largest of the limits; None if any limit is None."""
    known = list(limits)
    return None if None in known else max(each for each in known if each is not None)


def _all_or_nothing(more: Callable[[Row], int], views: int, row: Row) -> int:
    """Ask all remaining views in the second round: batches take too long for a third."""
    return views if more(row) else 0
