"""A labelling session: the assignment of pictures to windows, the clicks, and the queries sent meanwhile.

The queue assigns different pictures to each window; undone pictures come first, skipped ones last.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import chain, islice

import numpy as np

from looktwice.labelling.labels import Click, Labels
from looktwice.labelling.summary import Audit, LabelSummary, Summary, audit_summary, summarise
from looktwice.model import (
    AnyVerdict,
    AsyncModel,
    Cause,
    LookTwiceError,
    Panel,
    Picture,
    Row,
    TagVerdict,
    Verdict,
    Votes,
    files,
    labelled_votes,
    returned_labels,
)

LEASE = 120.0
"""Seconds for which pictures stay assigned to a window after its last request, before other windows may get them."""
BUTTONS = 10
"""The maximum number of labels offered as buttons, one for each of the keys 1 to 9 and 0."""
FEWEST = 5
"""The minimum number of labels offered; a single button would reveal a unanimous answer."""


def shuffled(names: Sequence[str], seed: int = 0) -> list[str]:
    """The names in random order: for every n, the first n are a simple random sample."""
    return [names[place] for place in np.random.default_rng(seed).permutation(len(names))]


class Queue:
    """Pictures in the order in which they are shown, assigned to windows."""

    def __init__(self, order: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._order, self._clock = list(order), clock
        self._leases: dict[str, tuple[str, float]] = {}
        """The window to which each picture is assigned, and when the assignment expires."""

    def next(self, window: str, settled: Set[str], skipped: Set[str], count: int) -> list[str]:
        """The next pictures for a window, in the order of display: those already assigned to it, then unassigned
        ones."""
        now, done = self._clock(), settled | skipped
        assigned_here = [name for name, (who, _) in self._leases.items() if who == window and name not in done]
        taken = {name for name, (who, until) in self._leases.items() if who != window and until > now}
        fresh = (name for name in self._order if name not in done)
        again = (name for name in self._order if name in skipped and name not in settled)
        free = (name for name in chain(fresh, again) if name not in taken and name not in assigned_here)
        assigned = list(islice(chain(assigned_here, free), count))
        self._leases |= dict.fromkeys(assigned, (window, now + LEASE))
        return assigned

    def put_back(self, window: str, name: str) -> None:
        """Make a picture the next one in a window."""
        self._leases = {name: (window, self._clock() + LEASE), **{k: v for k, v in self._leases.items() if k != name}}

    def ahead(self, settled: Set[str], count: int) -> list[str]:
        """The next unsettled pictures, assigned or not."""
        return list(islice((name for name in self._order if name not in settled), count))


def options(digest: str, named: Sequence[str], vocabulary: Sequence[str]) -> list[str]:
    """The labels to offer for a picture, in an order that does not reveal the classifier's answer.

    If the vocabulary has at most `BUTTONS` labels, all of them are offered, always in the same order. If the vocabulary
    is larger, the labels returned for the picture and its views are offered, with others added up to `FEWEST`, in an
    order that depends only on the picture's digest.
    """
    known = sorted({*vocabulary, *named}, key=str.casefold)
    if len(known) <= BUTTONS:
        return known

    def drawn(what: str, labels: Iterable[str]) -> list[str]:
        return sorted(labels, key=lambda label: sha256(f"{what}\n{digest}\n{label}".encode()).digest())

    first = list(dict.fromkeys(named))[:BUTTONS]
    others = drawn("others", set(known) - set(first))
    # Shuffled with another hash: in the order of the first one, the chosen others would come first.
    return drawn("order", [*first, *others[: max(0, FEWEST - len(first))]])


PRELOADED = 4
"""The number of pictures assigned to a window at a time: the picture shown and the preloaded ones."""
ASKED = 24
"""The number of upcoming pictures whose views are queried in advance."""
TOGETHER = 8
"""The number of pictures queried at once."""


@dataclass(frozen=True)
class Prediction:
    """A verdict under review, as the page shows it."""

    label: str
    confidence: float


@dataclass(frozen=True)
class Item:
    """A picture as the page shows it."""

    file: str
    options: tuple[str, ...]
    pending: bool
    """Whether the options are still pending, since they depend on the classifier's answers."""
    prediction: Prediction | None
    chosen: tuple[str, ...] = ()
    """The tags that are initially selected, if verdicts are reviewed."""


@dataclass(frozen=True)
class State:
    """The state of a window: its pictures, the first of them large, and the progress of all windows."""

    items: tuple[Item, ...]
    settled: int
    total: int
    mine: bool
    """Whether the window has a click to undo."""
    notice: str
    """The reason why views are no longer queried; empty while views are queried."""
    summary: Summary | None
    """Statistics of the labels so far; None if the classifier is not queried, since its answers are then unknown."""
    tags: bool = False
    """Whether several labels may apply to a picture."""


@dataclass(frozen=True)
class Asking:
    """The settings for querying pictures while people label."""

    model: AsyncModel
    panel: Panel
    max_error: float = 0.05
    """The maximum error rate among accepted answers that the labels should guarantee."""
    level: float = 0.95


@dataclass
class LabellingSession:
    """The pictures, the labels and the queue, shared by all windows of one process."""

    pictures: Mapping[str, Picture]
    order: Sequence[str]
    labels: Labels
    vocabulary: tuple[str, ...] = ()
    """The labels that the classifier is known to return."""
    asking: Asking | None = None
    verdicts: Sequence[AnyVerdict] = ()
    """Existing verdicts about the pictures, whose labels are offered."""
    reviewing: bool = False
    """Whether the page shows these verdicts, for people to accept or correct."""
    audit: Audit | None = None
    """The accepted verdicts whose error rate is to be estimated from the labels."""
    rows: dict[str, Row] = field(default_factory=dict)
    """The answers about each picture so far."""
    notice: str = ""

    def __post_init__(self) -> None:
        self._queue = Queue(self.order)
        self._named = {verdict.name: returned_labels(verdict) for verdict in self.verdicts}
        self._reviewed = {verdict.name: verdict for verdict in self.verdicts if self.reviewing}
        self._failed = set[str]()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._summary: LabelSummary | None = None
        self._summarising: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start querying ahead."""
        if self.asking:
            self._task = asyncio.create_task(self._ask(self.asking))
            self._wanted.set()

    async def close(self) -> None:
        """Wait for queries in flight; their answers are saved."""
        if self._summarising:
            await self._summarising
        if self._task and self.asking:
            self._closing = True
            self._wanted.set()
            self.asking.model.stop("the page was closed")
            await self._task
            await self.asking.model.close()

    def words(self) -> list[str]:
        """The known labels, sorted: the classifier's declared labels, the labels it returned, and the labels that
        people entered."""
        entered = {label for click in self.labels.known().values() for label in click.labels}
        returned = {label for row in self.rows.values() for label in self._returned(row)}
        judged = {label for labels in self._named.values() for label in labels}
        return sorted({*self.vocabulary, *returned, *entered, *judged}, key=str.casefold)

    def state(self, window: str) -> State:
        """The current state of a window."""
        known = self.labels.known()
        settled = {name for name, click in known.items() if click.settles and name in self.pictures}
        skipped = {name for name, click in known.items() if not click.settles}
        names = self._queue.next(window, settled, skipped, PRELOADED)
        self._wanted.set()
        if self.asking and not self._tags and (self._summarising is None or self._summarising.done()):
            self._summarising = asyncio.create_task(self._summarise(self.asking))
        words = self.words()
        return State(
            tuple(self._item(name, words) for name in names),
            len(settled),
            len(self.pictures),
            self.labels.last(window) is not None,
            self.notice,
            self._shown(known),
            self._tags,
        )

    def _shown(self, known: Mapping[str, Click]) -> Summary | None:
        """Statistics of the labels so far, for the page."""
        if self.audit:
            return audit_summary(self.audit.share(verdicts_wrong(self.audit, known)), len(self.audit.verdicts))
        return self._summary.shown() if self._summary else None

    async def click(self, click: Click) -> None:
        """Save a click to disk."""
        await asyncio.to_thread(self.labels.add, click)

    async def undo(self, identity: str, window: str) -> None:
        """Undo the window's last click, and show its picture again."""
        file = await asyncio.to_thread(self.labels.undo, identity, window)
        if file is not None and file in self.pictures:
            self._queue.put_back(window, file)

    async def _summarise(self, asking: Asking) -> None:
        """Update the summary in a thread, if there are new labels or answers."""
        known, rows = self.labels.known(), dict(self.rows)
        given = {name: click for name, click in known.items() if click.truth or click.excluded}
        labelled = [
            replace(self.pictures[name], truth=click.truth, excluded=click.excluded)
            for name, click in given.items()
            if name in rows
        ]
        unsure = sum(click.says == "unsure" for click in known.values())
        unasked = sum(name in self.pictures and name not in rows for name in given)
        if self._summary is None or (self._summary.labels, self._summary.unsure) != (len(labelled), unsure):
            answers = [rows[picture.name] for picture in labelled]
            votes = Votes.collect(answers, tuple(map(str, asking.panel)), self.vocabulary)
            self._summary = await asyncio.to_thread(
                summarise, labelled_votes(votes, labelled), unsure, asking.max_error, asking.level
            )
        self._summary = replace(self._summary, unasked=unasked)

    @property
    def _tags(self) -> bool:
        return self.labels.kind == "tags"

    def _returned(self, row: Row) -> list[str]:
        """The labels, or the tags, of the answers about a picture."""
        texts = [text for text in (row.base, *row.views) if text]
        return list(dict.fromkeys(tag for text in texts for tag in files.split_tags(text))) if self._tags else texts

    def _item(self, name: str, words: Sequence[str]) -> Item:
        verdict, row = self._reviewed.get(name), self.rows.get(name)
        prediction = Prediction(verdict.label, verdict.confidence) if isinstance(verdict, Verdict) else None
        whole = 0 < len(self.vocabulary) <= BUTTONS  # offered for every picture, whatever is answered
        if self.asking and row is None and name not in self._failed and not self.notice and not whole:
            return Item(name, (), True, prediction)
        named = self._returned(row) if row else self._named.get(name, ())
        offered = options(name if row is None else row.digest, named, words)
        others = tuple(label for label in offered if prediction is None or label != prediction.label)
        tags = verdict.tags if isinstance(verdict, TagVerdict) else ()
        return Item(name, others, False, prediction, tuple(tag.name for tag in tags if tag.probability >= 0.5))

    async def _ask(self, asking: Asking) -> None:
        """Query the next pictures of the queue whenever a window has moved on, until the budget is spent.

        Labelled pictures come last: their answers are already in the ledger, unless they were labelled before they were
        queried.
        """
        while not self.notice and not self._closing:
            await self._wanted.wait()
            self._wanted.clear()
            known = self.labels.known()
            settled = {name for name, click in known.items() if click.settles}
            labelled = [
                name
                for name, click in known.items()
                if click.says in ("label", "tags", "not") and name in self.pictures
            ]
            wanted = [*self._queue.ahead(settled, ASKED), *labelled]
            left = [name for name in wanted if name not in self.rows and name not in self._failed]
            try:
                async for row in asking.model.engine.ask(
                    [self.pictures[name] for name in left[:TOGETHER]], asking.panel
                ):
                    if isinstance(row, Row):
                        self.rows[row.name] = row
                    else:
                        self._failed.add(row.name)
                        if row.cause is Cause.BUDGET:
                            self.notice = "The budget is spent: views are no longer queried."
            except LookTwiceError as error:
                self.notice = f"Views are no longer queried: {error}"
            if len(left) > TOGETHER:
                self._wanted.set()


def verdicts_wrong(audit: Audit, known: Mapping[str, Click]) -> dict[str, bool]:
    """Whether the verdict on each labelled picture is wrong; pictures whose labels do not decide this are omitted."""
    clicks = {verdict.name: (verdict.label, known[verdict.name]) for verdict in audit.verdicts if verdict.name in known}
    decided = {name: click.truth != label for name, (label, click) in clicks.items() if click.truth is not None}
    return decided | {name: True for name, (label, click) in clicks.items() if label in click.excluded}
