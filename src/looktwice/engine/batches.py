"""Vendors' batch interfaces: answers within a day, at a lower price; each query is uploaded once.

A batch is written to the ledger with its queries before anything is sent. After a crash, the next run finds the batch
in the ledger and looks it up at the vendor by the name that looktwice gave it; only queries that the vendor certainly
does not have are released. Results are matched by the name of their query and stored once, in any order.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from looktwice.classifiers import Answer, Asked, ChatClassifier, Fate, Line, Reply, Sought, reading
from looktwice.engine.budget import MICRO
from looktwice.engine.ledger.schema import Claim, InBatch, OpenBatch, Outcome, OverBudget, Settled, Wait
from looktwice.engine.limits import Polling
from looktwice.engine.query import Cause, Failure, Query
from looktwice.engine.runner import Runner
from looktwice.errors import ClassifierError, LedgerError, TransientError
from looktwice.views import Phrasing

T = TypeVar("T")
Unanswered = Callable[[], AsyncIterator[Sequence[Query]]]
"""A function that returns an iterator of prepared queries without a stored answer, in small groups; each call looks the
queries up again."""
DAY = 86_400.0
SLICE = 2000
"""The number of results stored in one transaction."""
LOOKS = 4
"""The maximum number of times that results of a finished batch are fetched if some are missing."""


class Batches:
    """Gets answers from a vendor's batches, within the budget of a runner."""

    def __init__(self, runner: Runner, polling: Polling) -> None:
        if not isinstance(runner.classifier, ChatClassifier):
            raise ClassifierError("only chat models support batches; leave out --batch", code="option-conflict")
        if runner.ledger is None or not runner.ledger.database.lasting:
            raise LedgerError(
                "batches need a ledger that persists after the run; specify one on disk or in PostgreSQL",
                code="ledger-required",
            )
        self._classifier, self._ledger = runner.classifier, runner.ledger
        self._runner = runner
        self._polling = polling
        self._api = runner.classifier.batches()
        self._sent: Counter[bytes] = Counter()
        self._waiting: list[tuple[Query, Asked]] = []
        self._size = 0
        self.failures: dict[bytes, Failure] = {}
        """The failures of queries, by key."""
        self.answered = 0
        self.in_flight = 0
        """The number of queries in batches without results."""

    async def fetch(self, unanswered: Unanswered) -> None:
        """Answer all queries, in as many batches as needed; `failures` contains the queries without an answer."""
        while not self._runner.halt:
            await self._collect(patient=False)
            before, elsewhere = self._sent.total(), False
            self.failures = {key: why for key, why in self.failures.items() if why.cause is not Cause.BUDGET}
            async for queries in unanswered():
                for query in queries:
                    elsewhere |= await self._add(query)
            elsewhere |= await self._submit()
            if not elsewhere and self._sent.total() == before:
                return
            await self._collect(patient=True)
            if elsewhere:
                await self._runner.pause(self._polling.soonest)

    async def close(self) -> None:
        """Close every connection."""
        await self._api.close()

    # Into a batch ----------------------------------------------------------------------------------------------------

    async def _add(self, query: Query) -> bool:
        """Add a query to the next batch, and send the batch if it is full; returns whether another session has some of
        its queries in flight."""
        elsewhere = False
        if query.entry.key in self.failures or self._runner.halt or not isinstance(query.prepared, Asked):
            return False
        if self._sent[query.entry.key] >= self._polling.tries:
            why = f"the query expired or failed in {self._polling.tries} batches"
            self.failures[query.entry.key] = Failure(Cause.CLASSIFIER, why)
            return False
        size = len(query.prepared.body) + 200
        if self._waiting and (
            self._size + size > self._api.most_bytes or len(self._waiting) == self._api.most_questions
        ):
            elsewhere = await self._submit()
        self._waiting.append((query, query.prepared))
        self._size += size
        return elsewhere

    async def _submit(self) -> bool:
        """Claim and send the next batch; returns whether another session has some of its queries in flight."""
        queries = {query.entry.key: query for query, _ in self._waiting}
        prepared = {query.entry.key: asked for query, asked in self._waiting}
        self._waiting, self._size = [], 0
        if not queries:
            return False
        id = secrets.randbits(62)
        reserves = {key: (query.quote or self._runner.typical).most * MICRO for key, query in queries.items()}
        account = replace(self._runner.account, rate=None)
        requests = [(query.entry, reserves[key]) for key, query in queries.items()]
        granted = await self._ledger.change(lambda transaction: transaction.claim_batch(id, account, requests))
        decisions = dict(zip(queries, granted, strict=True))
        for key, decision in decisions.items():
            if isinstance(decision, OverBudget):
                self.failures[key] = Failure(Cause.BUDGET, decision.budget.exhausted(decision.spend, reserves[key]))
        claimed = tuple(key for key, decision in decisions.items() if isinstance(decision, Claim))
        if claimed:
            self._runner.progress.sent += len(claimed)
            self.in_flight += len(claimed)
            self._sent.update(claimed)
            asked = [(key, *prepared[key]) for key in claimed]
            lines = [self._api.line(f"{key.hex()}-{int(how.ranked)}-{id:016x}", body) for key, body, how in asked]
            await self._send(OpenBatch(id, None, None, time.time(), claimed, False), lines)
        return any(isinstance(decision, Wait | InBatch) for decision in granted)

    async def _send(self, batch: OpenBatch, lines: Sequence[bytes]) -> None:
        """Upload a batch; before a repeated attempt, look it up at the vendor."""
        try:
            file = await self._retried(
                lambda: self._api.upload(batch.name, lines), lambda: self._api.find_file(batch.name)
            )
            await self._note(batch.id, file=file)
            await self._note(batch.id, remote=await self._create(batch, file, lines))
        except ClassifierError as error:
            refused = error.status is not None or not error.sent
            if refused and not isinstance(error, TransientError):  # so that the vendor surely does not have it
                await self._settle(batch.id, [Settled(key, Outcome.UNSENT) for key in batch.keys])
            if not (self._runner.halt and isinstance(error, TransientError)):  # the next run finds out
                self._runner.end(error)

    async def _create(self, batch: OpenBatch, file: str | None, lines: Sequence[bytes] = ()) -> str:
        """Create a batch from a file that the vendor has; returns the vendor's id."""
        return await self._retried(
            partial(self._api.create, batch.name, file, lines), partial(self._find, self._sought(batch, file))
        )

    # Out of a batch --------------------------------------------------------------------------------------------------

    async def _collect(self, patient: bool) -> None:
        """Fetch the results of open batches from any session: of all batches, or only of those that have ended."""
        batches = self._ledger.open_batches(self._classifier.fingerprint)
        self.in_flight = sum(len(batch.keys) for batch in batches)
        for batch in batches:
            if batch.owned and batch.remote is None:
                continue  # another session is about to send it
            remote = batch.remote or await self._recovered(batch)
            if remote and not self._runner.halt:
                await self._results(batch, remote, patient)

    async def _recovered(self, batch: OpenBatch) -> str | None:
        """Find the vendor's id of a batch that was about to be sent; release the batch if the vendor does not have
        it."""
        started, late = time.monotonic(), False
        while not self._runner.halt:
            file = batch.file or await self._retried(partial(self._api.find_file, batch.name))
            try:
                remote = await self._retried(partial(self._find, self._sought(batch, file)))
            except TransientError:
                if self._runner.halt:
                    return None
                raise
            if remote is None and file and late:
                remote = await self._create(batch, file)
            if remote:
                await self._note(batch.id, file, remote)
                return remote
            if late:
                await self._settle(batch.id, [Settled(key, Outcome.UNSENT) for key in batch.keys])
                return None
            await self._runner.pause(min(self._polling.soonest, self._polling.grace))
            late = time.monotonic() - started > self._polling.grace
        return None

    def _sought(self, batch: OpenBatch, file: str | None) -> Sought:
        """The properties by which a batch is looked up at the vendor."""
        known = self._ledger.known_batches(self._classifier.fingerprint)
        return Sought(batch.name, file, batch.at, len(batch.keys), known)

    async def _find(self, sought: Sought) -> str | None:
        """Find the vendor's id of a batch; raises a TransientError if the run is stopped first.

        If a vendor shows the content of a batch only after its end, this waits for other sessions' batches, for up to a
        day.
        """
        search = asyncio.create_task(self._api.find(sought))
        stopping = asyncio.create_task(self._runner.pause(DAY))
        try:
            await asyncio.wait([search, stopping], return_when=asyncio.FIRST_COMPLETED)
            if search.done():
                return search.result()
            raise TransientError("the run was stopped before the vendor confirmed whether it has a batch; run again")
        finally:
            stopping.cancel()
            search.cancel()

    async def _results(self, batch: OpenBatch, remote: str, patient: bool) -> None:
        """Store the results of a batch, after waiting for it if requested."""
        state, wait = await self._retried(lambda: self._api.state(remote)), self._polling.soonest
        while not state.ended:
            if patient:
                await self._runner.pause(wait)
            if self._runner.halt or not patient:
                return
            wait = min(self._polling.latest, 1.5 * wait)
            state = await self._retried(lambda: self._api.state(remote))
        left, looks = set(batch.keys), 0
        while True:
            await self._enter(batch, left, await self._retried(lambda: self._api.results(remote)))
            looks += 1
            if not left or looks == LOOKS or state.rest is Fate.FAILED:
                break
            # With a truncated or incomplete file, paid answers would be bought again.
            await self._runner.pause(self._polling.soonest * 1.5**looks)
            if self._runner.halt:
                return
        for key in left:
            self._note_failure(key, state.rest, state.message.encode())
        await self._settle(batch.id, [Settled(key, Outcome.KEPT if state.lost else Outcome.UNSENT) for key in left])

    async def _enter(self, batch: OpenBatch, left: set[bytes], lines: Sequence[Line]) -> None:
        """Store the results of the remaining queries, and remove these queries from the batch."""
        part: list[Settled] = []
        for line in lines:
            id, _, name = line.id.partition("-")
            flag, _, number = name.partition("-")
            if number == f"{batch.id:016x}" and (key := _key(id)) in left:
                left.discard(key)
                part.append(self._settled(key, line, Phrasing(ranked=flag == "1")))
            if len(part) == SLICE:
                await self._settle(batch.id, part)
                part = []
        await self._settle(batch.id, part)

    def _settled(self, key: bytes, line: Line, phrasing: Phrasing) -> Settled:
        """The settlement of a batch's result in the ledger."""
        if line.fate is not Fate.ANSWERED:
            self._note_failure(key, line.fate, line.body)
            return Settled(key, Outcome.UNSENT)
        try:
            answer = self._classifier.read(Reply(200, {}, line.body), phrasing)
        except ClassifierError:
            return Settled(key, Outcome.KEPT)
        self.answered += 1
        self._runner.progress.answered += 1
        return Settled(key, answer, self._runner.meter.bill(answer), reading=reading(self._classifier))

    def _note_failure(self, key: bytes, fate: Fate, words: bytes) -> None:
        """Record a failure, or retry the query if it expired or failed transiently."""
        if fate is Fate.FAILED:
            why = f"the vendor refused the query in a batch: {self._api.line_of(words)}"
            self.failures[key] = Failure(Cause.CLASSIFIER, why)
        elif fate is Fate.CANCELLED:
            self.failures[key] = Failure(
                Cause.STOPPED, "the batch of the query was cancelled; run again to send the query in another batch"
            )
        else:
            self._runner.progress.retries += 1

    async def _settle(self, batch: int, results: Sequence[Settled]) -> None:
        self.in_flight -= len(results)
        for result in results:
            if result.bill:
                self._runner.count_bill(result.bill, 0)
            elif isinstance(result.result, Answer):
                self._runner.progress.micros += self._runner.typical.most
        await self._ledger.change(lambda transaction: transaction.settle_batch(batch, results))

    async def _note(self, batch: int, file: str | None = None, remote: str | None = None) -> None:
        """Store the vendor's names for the file and the batch."""
        await self._ledger.change(lambda transaction: transaction.note_batch(batch, file, remote))

    async def _retried(
        self, call: Callable[[], Awaitable[T]], find: Callable[[], Awaitable[T | None]] | None = None
    ) -> T:
        """Call the vendor, and retry while it cannot be reached. If a failed call may have arrived, `find` looks up its
        result before the next attempt.
        """
        attempt = 0
        while True:
            try:
                return await call()
            except TransientError as error:
                attempt += 1
                if attempt == self._polling.faults or self._runner.halt:
                    raise
                backoff = min(self._polling.latest, self._polling.soonest * 1.5 ** (attempt - 1))
                await self._runner.pause(error.retry_after or backoff * random.uniform(0.5, 1))
                if find and error.sent and (known := await self._retried(find)) is not None:
                    return known


def _key(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""
