"""What happens while people label: who gets which picture, what they say, and the views that are asked meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from looktwice.asking.outcome import Cause
from looktwice.calibration.votes import Row, Votes
from looktwice.errors import LookTwiceError
from looktwice.labelling.labels import Click, Labels
from looktwice.labelling.queue import BUTTONS, Queue, options
from looktwice.labelling.worth import Audited, Told, Worth, worth
from looktwice.model import AsyncModel
from looktwice.pictures.collection import Picture
from looktwice.verdicts.audit import Audit
from looktwice.verdicts.learn import labelled_votes
from looktwice.verdicts.review import Doubt
from looktwice.views import Panel

PRELOADED = 4
"""Pictures that a window has: the one it shows, and those that it loads ahead."""
ASKED = 24
"""Pictures about which views are asked before somebody gets to them."""
TOGETHER = 8
"""Pictures that are asked about at once."""


@dataclass(frozen=True)
class Claim:
    """A verdict that somebody is to review."""

    label: str
    confidence: float


@dataclass(frozen=True)
class Item:
    """A picture as the page shows it."""

    file: str
    options: tuple[str, ...]
    pending: bool
    """Whether the options are yet to come, with the answers about the picture."""
    claim: Claim | None


@dataclass(frozen=True)
class State:
    """What a window shows: its pictures, the first of them large, and how far everybody is."""

    items: tuple[Item, ...]
    settled: int
    total: int
    mine: bool
    """Whether the window has said something that it can take back."""
    notice: str
    """Why no views are asked any more, for people."""
    worth: Told | None
    """What the labels are worth so far; None where nothing is asked, so that nothing is known of the classifier."""


@dataclass(frozen=True)
class Asking:
    """Views that are asked about pictures before people get to them."""

    model: AsyncModel
    panel: Panel
    max_error: float = 0.05
    """How often accepted answers may be wrong, in the guarantee that the labels are to back."""
    level: float = 0.95


@dataclass
class Desk:
    """The pictures, the labels and everybody's place, for all windows of one process."""

    pictures: Mapping[str, Picture]
    order: Sequence[str]
    labels: Labels
    vocabulary: tuple[str, ...] = ()
    """The labels that the classifier is known to give."""
    asking: Asking | None = None
    doubts: Sequence[Doubt] = ()
    """Verdicts that are known of the pictures."""
    claims: Mapping[str, Claim] = field(default_factory=dict)
    """Those that people see and are to judge."""
    audit: Audit | None = None
    """The accepted verdicts of which the labels are to tell how often they are wrong."""
    rows: dict[str, Row] = field(default_factory=dict)
    """What was answered about each picture so far."""
    notice: str = ""

    def __post_init__(self) -> None:
        self._queue = Queue(self.order)
        self._named = {doubt.name: doubt.named() for doubt in self.doubts}
        self._failed = set[str]()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self._worth: Worth | None = None
        self._weighing: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to ask ahead."""
        if self.asking:
            self._task = asyncio.create_task(self._ask(self.asking))
            self._wanted.set()

    async def close(self) -> None:
        """Wait for what is in flight, and keep it."""
        if self._weighing:
            await self._weighing
        if self._task and self.asking:
            self._closing = True
            self._wanted.set()
            self.asking.model.stop("the page was closed")
            await self._task
            await self.asking.model.close()

    def words(self) -> list[str]:
        """Every label that is known: those of the classifier, those that it gave, and those that people gave."""
        given = {label for click in self.labels.known().values() for label in click.labels}
        said = {label for row in self.rows.values() for label in (row.base, *row.views) if label}
        judged = {label for labels in self._named.values() for label in labels}
        return sorted({*self.vocabulary, *said, *given, *judged}, key=str.casefold)

    def state(self, window: str) -> State:
        """What a window shows now."""
        known = self.labels.known()
        settled = {name for name, click in known.items() if click.settles and name in self.pictures}
        skipped = {name for name, click in known.items() if not click.settles}
        names = self._queue.next(window, settled, skipped, PRELOADED)
        self._wanted.set()
        if self.asking and (self._weighing is None or self._weighing.done()):
            self._weighing = asyncio.create_task(self._weigh(self.asking))
        words = self.words()
        return State(
            tuple(self._item(name, words) for name in names),
            len(settled),
            len(self.pictures),
            self.labels.last(window) is not None,
            self.notice,
            Audited(self.audit.share(verdicts_wrong(self.audit, known)), len(self.audit.doubts))
            if self.audit
            else self._worth,
        )

    async def click(self, click: Click) -> None:
        """Put a click on disk."""
        await asyncio.to_thread(self.labels.add, click)

    async def undo(self, identity: str, window: str) -> None:
        """Take back the window's last click, and show its picture again."""
        file = await asyncio.to_thread(self.labels.undo, identity, window)
        if file is not None and file in self.pictures:
            self._queue.put_back(window, file)

    async def _weigh(self, asking: Asking) -> None:
        """Work out what the labels are worth, beside everything else, unless that is known."""
        known, rows = self.labels.known(), dict(self.rows)
        given = {name: click for name, click in known.items() if click.truth or click.excluded}
        told = [
            replace(self.pictures[name], truth=click.truth, excluded=click.excluded)
            for name, click in given.items()
            if name in rows
        ]
        unsure = sum(click.says == "unsure" for click in known.values())
        unasked = sum(name in self.pictures and name not in rows for name in given)
        if self._worth is None or (self._worth.labels, self._worth.unsure) != (len(told), unsure):
            heard = [rows[picture.name] for picture in told]
            votes = Votes.collect(heard, tuple(map(str, asking.panel)), self.vocabulary)
            self._worth = await asyncio.to_thread(
                worth, labelled_votes(votes, told), unsure, asking.max_error, asking.level
            )
        self._worth = replace(self._worth, unasked=unasked)

    def _item(self, name: str, words: Sequence[str]) -> Item:
        claim, row = self.claims.get(name), self.rows.get(name)
        whole = 0 < len(self.vocabulary) <= BUTTONS  # offered for every picture, whatever is answered
        if self.asking and row is None and name not in self._failed and not self.notice and not whole:
            return Item(name, (), True, claim)
        named = [label for label in (row.base, *row.views) if label] if row else self._named.get(name, ())
        offered = options(name if row is None else row.digest, named, words)
        return Item(name, tuple(label for label in offered if claim is None or label != claim.label), False, claim)

    async def _ask(self, asking: Asking) -> None:
        """Ask about the next pictures of the queue whenever somebody has moved on, until the budget is spent.

        Then about those that were labelled before, whose answers the ledger has unless nobody asked.
        """
        while not self.notice and not self._closing:
            await self._wanted.wait()
            self._wanted.clear()
            known = self.labels.known()
            settled = {name for name, click in known.items() if click.settles}
            told = [name for name, click in known.items() if click.says in ("label", "not") and name in self.pictures]
            wanted = [*self._queue.ahead(settled, ASKED), *told]
            left = [name for name in wanted if name not in self.rows and name not in self._failed]
            try:
                async for row in asking.model.asker.ask(
                    [self.pictures[name] for name in left[:TOGETHER]], asking.panel
                ):
                    if isinstance(row, Row):
                        self.rows[row.name] = row
                    else:
                        self._failed.add(row.name)
                        if row.cause is Cause.BUDGET:
                            self.notice = "The budget is spent: no more views are asked."
            except LookTwiceError as error:
                self.notice = f"No more views are asked: {error}"
            if len(left) > TOGETHER:
                self._wanted.set()


def verdicts_wrong(audit: Audit, known: Mapping[str, Click]) -> dict[str, bool]:
    """Whether the verdict on each labelled picture is wrong; those of which that is not known are left out."""
    told = {doubt.name: (doubt.label, known[doubt.name]) for doubt in audit.doubts if doubt.name in known}
    sure = {name: click.truth != label for name, (label, click) in told.items() if click.truth is not None}
    return sure | {name: True for name, (label, click) in told.items() if label in click.excluded}
