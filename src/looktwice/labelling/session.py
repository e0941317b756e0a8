"""A labelling session: which window gets which picture, their clicks, and the queries sent meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from looktwice.errors import LookTwiceError
from looktwice.labelling.audit import Audit
from looktwice.labelling.labels import Click, Labels
from looktwice.labelling.queue import BUTTONS, Queue, options
from looktwice.labelling.summary import AuditSummary, LabelSummary, Summary, summarise
from looktwice.model import (
    AnyVerdict,
    AsyncModel,
    Cause,
    Panel,
    Picture,
    Row,
    Votes,
    files,
    labelled_votes,
    returned_labels,
)

PRELOADED = 4
"""Pictures assigned to a window at a time: the one it shows and those it preloads."""
ASKED = 24
"""Pictures whose views are queried before anybody gets to them."""
TOGETHER = 8
"""Pictures that are queried at once."""


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
    """Whether the options are still to come, with the classifier's answers."""
    prediction: Prediction | None
    chosen: tuple[str, ...] = ()
    """The tags that are switched on at first, where verdicts are reviewed."""


@dataclass(frozen=True)
class State:
    """The state of a window: its pictures, the first of them large, and the progress of all windows."""

    items: tuple[Item, ...]
    settled: int
    total: int
    mine: bool
    """Whether the window has a click that it can undo."""
    notice: str
    """Why views are no longer queried; empty while they are."""
    summary: Summary | None
    """What the labels show so far; None if nothing is queried, since nothing is known about the classifier then."""
    tags: bool = False
    """Whether several labels may be true of a picture."""


@dataclass(frozen=True)
class Asking:
    """How pictures are queried while people label."""

    model: AsyncModel
    panel: Panel
    max_error: float = 0.05
    """The largest share of wrong answers among accepted ones, for the guarantee that the labels are to support."""
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
    predictions: Mapping[str, Prediction] = field(default_factory=dict)
    """Those that the page shows, for people to accept or correct."""
    chosen: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """The tags of verdicts under review that are switched on at first."""
    audit: Audit | None = None
    """The accepted verdicts whose error rate the labels are to estimate."""
    rows: dict[str, Row] = field(default_factory=dict)
    """The answers about each picture so far."""
    notice: str = ""

    def __post_init__(self) -> None:
        self._queue = Queue(self.order)
        self._named = {verdict.name: returned_labels(verdict) for verdict in self.verdicts}
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
        """Wait for queries in flight, whose answers are saved."""
        if self._summarising:
            await self._summarising
        if self._task and self.asking:
            self._closing = True
            self._wanted.set()
            self.asking.model.stop("the page was closed")
            await self._task
            await self.asking.model.close()

    def words(self) -> list[str]:
        """The known labels, sorted: those of the classifier, those it returned, and those that people entered."""
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
            AuditSummary(self.audit.share(verdicts_wrong(self.audit, known)), len(self.audit.verdicts))
            if self.audit
            else self._summary,
            self._tags,
        )

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
        prediction, row = self.predictions.get(name), self.rows.get(name)
        whole = 0 < len(self.vocabulary) <= BUTTONS  # offered for every picture, whatever is answered
        if self.asking and row is None and name not in self._failed and not self.notice and not whole:
            return Item(name, (), True, prediction)
        named = self._returned(row) if row else self._named.get(name, ())
        offered = options(name if row is None else row.digest, named, words)
        others = tuple(label for label in offered if prediction is None or label != prediction.label)
        return Item(name, others, False, prediction, self.chosen.get(name, ()))

    async def _ask(self, asking: Asking) -> None:
        """Query the next pictures of the queue whenever a window has moved on, until the budget is spent.

        Labelled pictures come last: their answers are in the ledger already, unless they were labelled unqueried.
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
    """Whether the verdict on each labelled picture is wrong; pictures whose labels leave that open are left out."""
    clicks = {verdict.name: (verdict.label, known[verdict.name]) for verdict in audit.verdicts if verdict.name in known}
    decided = {name: click.truth != label for name, (label, click) in clicks.items() if click.truth is not None}
    return decided | {name: True for name, (label, click) in clicks.items() if label in click.excluded}
