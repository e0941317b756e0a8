"""A query and what callers of the engine give and get: answers as they come, why there is none, rounds, progress."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import astuple, dataclass, field
from enum import StrEnum
from operator import add, sub
from typing import TYPE_CHECKING, Literal, NamedTuple

from looktwice.calibration import Row
from looktwice.classifiers import Answer, AnyClassifier, Prompted, tags
from looktwice.engine.budget import Quote
from looktwice.engine.ledger.schema import Entry
from looktwice.errors import BudgetError, ClassifierError, ImageError, LookTwiceError, PermanentError, ViewError
from looktwice.files import join_tags
from looktwice.images import Floats
from looktwice.views import AS_DESCRIBED, Question, View

if TYPE_CHECKING:
    from looktwice.engine.channel import Channel


class Cause(StrEnum):
    """Why a picture was not scored. Exit codes, HTTP statuses and counters follow from it."""

    UNREADABLE = "unreadable"
    """The file is not a picture that can be decoded."""
    UNFIT = "unfit"
    """The classifier cannot take a picture like this."""
    UNFAMILIAR = "unfamiliar"
    """It is not the kind of picture that the profile was made from, and such pictures are refused."""
    BUDGET = "budget"
    """The budget does not cover the query."""
    STOPPED = "stopped"
    """The run ended before the query was sent."""
    NO_LABEL = "no label"
    """The classifier answered, but its answer held no label."""
    CLASSIFIER = "classifier"
    """The classifier failed."""

    @property
    def code(self) -> str:
        """The `error.code` where nothing more is known."""
        return _CODES.get(self, self.replace(" ", "-"))


_CODES = {
    Cause.UNREADABLE: "image-unreadable",
    Cause.UNFIT: "image-unfit",
    Cause.BUDGET: "budget-spent",
    Cause.CLASSIFIER: "classifier-failed",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a query has no answer."""

    cause: Cause
    message: str
    """A message for people."""
    error: Exception | None = field(default=None, compare=False)
    """What was raised, where something was."""

    @property
    def code(self) -> str:
        """The code of that error, or of the cause."""
        return getattr(self.error, "code", "") or self.cause.code


@dataclass(frozen=True, slots=True)
class Unscored:
    """A picture without a confidence, and why; never a number."""

    name: str
    cause: Cause
    message: str
    code: str = ""
    """The cause in detail, for programs: an `error.code`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "code", self.code or self.cause.code)

    def __str__(self) -> str:
        return f"{self.name}: not scored: {self.message}"

    def error(self) -> LookTwiceError:
        """The corresponding exception."""
        if self.cause in (Cause.UNREADABLE, Cause.UNFIT, Cause.UNFAMILIAR):
            return ImageError(self.message, self.name, code=self.code)
        kind = BudgetError if self.cause is Cause.BUDGET else ClassifierError
        return kind(f"{self.name}: {self.message}", code=self.code)


@dataclass
class Progress:
    """The progress of a run; it may be read at any time."""

    pictures: int = 0
    unscored: int = 0
    hits: int = 0
    """Answers that the ledger already had."""
    sent: int = 0
    """Attempts that may have been billed."""
    answered: int = 0
    retries: int = 0
    micros: int = 0
    """Money spent by this run, in millionths of the currency; queries in flight count at their maximum price."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Those of the input that were read from a cache."""

    def __add__(self, other: Progress) -> Progress:
        return Progress(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: Progress) -> Progress:
        return Progress(*map(sub, astuple(self), astuple(other)))


class Bought(NamedTuple):
    """An answer, and what it cost in picos when it was bought, with the attempts that were billed before it came."""

    answer: Answer
    picos: int


@dataclass(eq=False, slots=True)
class Query:
    """One question to a classifier, and its answer or failure once it has one."""

    entry: Entry
    channel: Channel
    name: str = ""
    """The picture that it is about."""
    source: str = ""
    """The view and, where it is not the first, the classifier: `mirror`, `gpt@mirror`."""
    place: int = 0
    """0 for the picture itself, 1 … for the views of the panel."""
    question: Question | None = None
    """What is shown; None where it was prepared beforehand."""
    prepared: object = None
    quote: Quote | None = None
    """What it costs, once it is prepared."""
    answer: Answer | Failure | None = None
    picos: int = 0
    """What the answer cost when it was bought."""
    stored_at: float | None = None
    """When the answer was stored, where the ledger had it."""
    retried: bool = True
    """Whether it is sent again if it fails in a transient way."""
    waiting: int = 0
    """How many wait for the answer; a query that nobody waits for is not sent."""

    def take(self, result: Bought | Failure) -> None:
        """Keep what came of it."""
        self.answer, self.picos = result if isinstance(result, Bought) else (result, 0)
        self.prepared = None

    @property
    def label(self) -> str | None:
        """The label that the answer means, or all its tags as one text (perhaps empty); None where there is none."""
        names = self.channel.names
        if not isinstance(self.answer, Answer):
            return None
        if self.channel.kind == "tags":
            return join_tags(tag for tag, _ in tags(names, self.answer))
        return names.label(self.answer.label) or None


class AnswerEvent(NamedTuple):
    """One answer, as it arrives."""

    name: str
    """The picture that was asked about."""
    place: int
    """0 for the picture itself, 1 … for the views of the panel."""
    view: str
    """What was shown: `again` is the picture as it is; of another classifier than the first `gpt@mirror`."""
    label: str | None
    """None where no label could be read, or nothing was answered."""
    classifier: str = ""
    """The name of the classifier that was asked."""


OnAnswer = Callable[[AnswerEvent], None]
Scores = Literal["use", "ignore"]
"""Whether scores and ranked lists of answers are evidence."""


@dataclass(frozen=True)
class Rounds:
    """Views asked a few at a time: `first` with the picture itself, then as many as `more` says, 0 for enough.

    With several classifiers a view whose classifier can no longer be asked is passed over, and the next one is asked.
    """

    first: int
    more: Callable[[Row], int]
    """The answers about a picture so far → how many views to ask next."""


@dataclass(frozen=True)
class Screen:
    """Statistics of a picture's pixels, computed before any query."""

    descriptors: bool = False
    """Whether to describe each picture."""
    thumbnails: bool = False
    """Whether to make the thumbnail by which near-duplicates are found."""
    why: Callable[[Floats], str | None] | None = None
    """Why a picture with this descriptor is of another kind, for people; None where it is not."""
    refuse: bool = False
    """Whether nothing is asked about pictures of another kind."""

    def unfamiliar(self, described: Floats | None) -> str | None:
        """Why a picture is of another kind, as far as that is known."""
        return self.why(described) if self.why and described is not None else None


NO_SCREEN = Screen()


def check_words(classifier: AnyClassifier, views: Iterable[View]) -> None:
    """Refuse views that change the words of a query where the classifier cannot be asked so; nothing is asked."""
    for view in views:
        phrasing = view.phrased(AS_DESCRIBED, "")
        if phrasing is AS_DESCRIBED:
            continue
        if not isinstance(classifier, Prompted):
            raise ViewError(
                f"the view {view} changes the words of a question, and this classifier takes no prompt",
                code="view-unsupported",
            )
        classifier.words(phrasing)


def askable(classifier: AnyClassifier, views: Iterable[View]) -> tuple[View, ...]:
    """Those of the views that a classifier which takes a prompt can be asked; none for another classifier."""
    possible: list[View] = []
    for view in views if isinstance(classifier, Prompted) else ():
        with suppress(PermanentError):
            check_words(classifier, [view])
            possible.append(view)
    return tuple(possible)
