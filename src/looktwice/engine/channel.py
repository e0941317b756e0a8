"""One of an engine's classifiers, with its runner, label names, canaries and batches."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from looktwice.classifiers import Answer, AnyClassifier, Naming, Prompted, Renamed, answer_kind, names_of
from looktwice.engine.budget import Meter, Quote
from looktwice.engine.ledger.ledger import Ledger
from looktwice.engine.ledger.schema import Entry, again
from looktwice.engine.limits import Polling
from looktwice.engine.query import Bought, Cause, Failure, Query
from looktwice.engine.runner import Runner, Settings
from looktwice.errors import ChangedError, ClassifierError, ImageError
from looktwice.images import Image
from looktwice.views import AS_DESCRIBED, Phrasing, render

if TYPE_CHECKING:
    from looktwice.engine.batches import Batches


REPEATS = 8
"""The number of times that a canary is repeated once its answer differs, to exclude randomness."""


@dataclass(frozen=True)
class Canary:
    """A query with a known answer."""

    entry: Entry
    image: Image
    label: str


@dataclass
class Canaries:
    """Stores the first canary queries offered and repeats them at intervals, to detect a changed classifier."""

    wanted: int = 3
    every: int = 5000
    """The number of queries between two checks; the first check precedes the first query."""
    asked: int = 0
    """The number of canary queries."""
    flipped: int = 0
    """The number of different answers."""
    kept: list[Canary] = field(default_factory=list)
    _checked_at: int | None = None

    async def check(self, ask: Callable[[Canary], Awaitable[str | None]], sent: int) -> None:
        """Repeat every canary query if due; raises a ChangedError if the answer to one differs in every repetition.

        If the classifier is randomised, the old answer is expected to reappear within a few repetitions. The function
        `ask` returns None if the budget does not cover the query.
        """
        if not self.kept or (self._checked_at is not None and sent - self._checked_at < self.every):
            return
        self._checked_at = sent
        for canary in self.kept:
            label: str | None = None
            for _ in range(REPEATS):
                if (label := await ask(canary)) is None:
                    break
                self.asked += 1
                if label == canary.label:
                    break
                self.flipped += 1
            else:
                raise ChangedError(
                    "the classifier behind this ledger seems to have changed: a picture that it labelled "
                    f"{canary.label!r} is now labelled {label!r}, and the old label did not recur in {REPEATS} "
                    "attempts; fit again with a new ledger, or continue with --canaries 0"
                )


RENDERED_BYTES = 4_000_000
"""The maximum size of rendered views that a thread holds in memory."""
NOTHING: Mapping[str, str] = MappingProxyType({})


class Channel:
    """One of the classifiers that an engine queries, under its name."""

    def __init__(
        self,
        classifier: AnyClassifier,
        ledger: Ledger | None,
        settings: Settings,
        meter: Meter | None = None,
        polling: Polling | None = None,
        name: str = "classifier",
        rename: Mapping[str, str] = NOTHING,
    ) -> None:
        """Without a ledger, the classifier is treated as free: nothing is claimed or stored. With `polling`, it is
        queried in batches. `rename` maps the classifier's labels to other names.
        """
        self.name, self.classifier, self.settings = name, classifier, settings
        self.runner = Runner(classifier, ledger, settings, meter)
        self.names: Naming = Renamed(names_of(classifier), rename) if rename else names_of(classifier)
        self.kind = answer_kind(classifier)
        self.canaries = Canaries(settings.canaries if ledger and not polling else 0)
        self.batches = _batches(self.runner, polling) if polling else None
        self._rename = rename
        self._opened_at = ledger.now() if ledger else 0.0
        self._checking = asyncio.Lock()

    @property
    def labels(self) -> tuple[str, ...] | None:
        """All labels that the classifier can return, if known."""
        known = self.classifier.labels
        return known and tuple(dict.fromkeys(self._rename.get(label, label) for label in known))

    @property
    def in_flight(self) -> int:
        """Calls in flight, or queries in batches."""
        return self.batches.in_flight if self.batches else self.runner.calls.busy

    def quote(self, image: Image, phrasing: Phrasing = AS_DESCRIBED) -> Quote:
        """The price of a query about this picture, with this wording."""
        height, width, _ = image.pixels.shape
        return self.runner.meter.quote(height, width, phrasing)

    def find(self, queries: Sequence[Query]) -> None:
        """Look queries up in the ledger."""
        ledger = self.runner.ledger
        stored = ledger.find([query.entry.key for query in queries]) if ledger else {}
        for query in queries:
            if known := stored.get(query.entry.key):
                query.answer = self.runner.read_stored(query, known)
                query.stored_at, query.picos = known.at, known.picos

    def prepare(self, image: Image, queries: Sequence[Query]) -> None:
        """Render and encode the views in slices, so that not all views of a large picture are in memory at once.

        Queries that the classifier does not accept are marked as failed.
        """
        step = max(1, RENDERED_BYTES // image.pixels.nbytes)
        for start in range(0, len(queries), step):
            chunk = queries[start : start + step]
            shown = [query.question for query in chunk if query.question]
            for query, question, pixels in zip(chunk, shown, render(image, shown), strict=True):
                height, width, _ = pixels.shape
                phrasing = question.phrasing
                try:
                    if phrasing is not AS_DESCRIBED and isinstance(self.classifier, Prompted):
                        query.prepared = self.classifier.prepare_as(pixels, phrasing)
                    else:
                        query.prepared = self.classifier.prepare(pixels)
                except ImageError as error:
                    query.answer = Failure(Cause.UNFIT, str(error), error)
                else:
                    query.quote = self.runner.meter.quote(height, width, phrasing)

    async def probe(self, image: Image, entry: Entry, retried: bool = True) -> Answer | Failure:
        """Ask a query again under a separate key."""
        prepared = await asyncio.to_thread(self.classifier.prepare, image.pixels)
        query = Query(again(entry), self, prepared=prepared, quote=self.quote(image), retried=retried)
        result = await self.runner.start(query)
        return result.answer if isinstance(result, Bought) else result

    def keep_canary(self, base: Query, image: Image) -> None:
        """Keep a query as a canary if its answer was stored before this run and more canaries are wanted."""
        earlier = (base.stored_at or self._opened_at) < self._opened_at
        label = self.names.label(base.answer.label) if isinstance(base.answer, Answer) else None  # of tags, the first
        if len(self.canaries.kept) < self.canaries.wanted and earlier and label:
            self.canaries.kept.append(Canary(base.entry, image, label))

    async def check_canaries(self) -> None:
        """Repeat the canary queries if due; stop the classifier if it has changed."""
        async with self._checking:
            try:
                await self.canaries.check(self._ask_again, self.runner.progress.sent)
            except ClassifierError as error:
                self.runner.end(error)

    async def _ask_again(self, canary: Canary) -> str | None:
        answer = await self.probe(canary.image, canary.entry)
        return self.names.label(answer.label) if isinstance(answer, Answer) else None


def _batches(runner: Runner, polling: Polling) -> Batches:
    from looktwice.engine.batches import Batches  # which loads the connectors of chat models

    return Batches(runner, polling)
