"""Queries, answers, failures, rounds and progress: the values exchanged with callers of the engine."""

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
from looktwice.images import Floats, Image
from looktwice.views import AS_DESCRIBED, Question, View

if TYPE_CHECKING:
    from looktwice.engine.channel import Channel


class Cause(StrEnum):
    """The reason why a picture was not scored. It determines exit codes, HTTP statuses and counters."""

    UNREADABLE = "unreadable"
    """The file is not a picture that can be decoded."""
    UNFIT = "unfit"
    """The classifier does not accept this picture."""
    UNFAMILIAR = "unfamiliar"
    """The picture is unfamiliar, and unfamiliar pictures are refused."""
    BUDGET = "budget"
    """The budget does not cover the query."""
    STOPPED = "stopped"
    """The run ended before the query was sent."""
    NO_LABEL = "no label"
    """The classifier answered, but its answer contained no label."""
    CLASSIFIER = "classifier"
    """The classifier failed."""

    @property
    def code(self) -> str:
        """The `error.code` if nothing more specific is known."""
        return _CODES.get(self, self.replace(" ", "-"))


_CODES = {
    Cause.UNREADABLE: "image-unreadable",
    Cause.UNFIT: "image-unfit",
    Cause.BUDGET: "budget-spent",
    Cause.CLASSIFIER: "classifier-failed",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why a query has no answer."""

    cause: Cause
    message: str
    """A message for people."""
    error: Exception | None = field(default=None, compare=False)
    """The exception, if any."""

    @property
    def code(self) -> str:
        """The code of this error, or else the code of the cause."""
        return getattr(self.error, "code", "") or self.cause.code


@dataclass(frozen=True, slots=True)
class Unscored:
    """A picture without a confidence, and the reason for it."""

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


def lacks_budget(row: Row) -> str | None:
    """The reason why the budget did not cover a query about the picture; None if it covered all of them."""
    return next((why for code, why in row.missing.values() if code == Cause.BUDGET.code), None)


@dataclass
class Progress:
    """The progress of a run; it may be read at any time."""

    pictures: int = 0
    unscored: int = 0
    hits: int = 0
    """Answers from the ledger."""
    sent: int = 0
    """The number of attempts that may have been billed."""
    answered: int = 0
    retries: int = 0
    micros: int = 0
    """Money spent by this run, in millionths of the currency; queries in flight count at their maximum price."""
    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0
    """Input tokens that were read from a cache."""

    def __add__(self, other: Progress) -> Progress:
        return Progress(*map(add, astuple(self), astuple(other)))

    def __sub__(self, other: Progress) -> Progress:
        return Progress(*map(sub, astuple(self), astuple(other)))


class Bought(NamedTuple):
    """An answer, and its price in picos, including earlier attempts that were billed."""

    answer: Answer
    picos: int


@dataclass(eq=False, slots=True)
class Query:
    """A query to a classifier, with its answer or failure once known."""

    entry: Entry
    channel: Channel
    name: str = ""
    """The digest of the picture."""
    source: str = ""
    """The view, prefixed with the classifier unless that is the first one: `mirror`, `gpt@mirror`."""
    place: int = 0
    """0 for the base query, 1 … for the views of the panel."""
    question: Question | None = None
    """The image to render; None if it was prepared beforehand."""
    prepared: object = None
    quote: Quote | None = None
    """The price of the query, once it is prepared."""
    answer: Answer | Failure | None = None
    picos: int = 0
    """The price paid for the answer."""
    stored_at: float | None = None
    """The time at which the answer was stored, if it came from the ledger."""
    retried: bool = True
    """Whether transient failures are retried."""
    waiting: int = 0
    """The number of tasks that wait for the answer; if there are none, the query is not sent."""

    def take(self, result: Bought | Failure) -> None:
        """Set the result."""
        self.answer, self.picos = result if isinstance(result, Bought) else (result, 0)
        self.prepared = None

    @property
    def label(self) -> str | None:
        """The renamed label, or all tags as one string (possibly empty); None if there is no answer or no label."""
        names = self.channel.names
        if not isinstance(self.answer, Answer):
            return None
        if self.channel.kind == "tags":
            return join_tags(tag for tag, _ in tags(names, self.answer))
        return names.label(self.answer.label) or None


class AnswerEvent(NamedTuple):
    """One answer, as it arrives."""

    name: str
    """The name of the picture."""
    place: int
    """0 for the base query, 1 … for the views of the panel."""
    view: str
    """The view, where `again` is the unchanged picture; prefixed with the classifier unless that is the first one, as
    in `gpt@mirror`."""
    label: str | None
    """The label; None if there was no readable label or no answer."""
    classifier: str = ""
    """The name of the classifier that was queried."""


OnAnswer = Callable[[AnswerEvent], None]
Scores = Literal["use", "ignore"]
"""Whether scores and ranked lists are used."""


@dataclass(frozen=True)
class Rounds:
    """Views queried in rounds: `first` views with the base query, then as many as `more` returns; 0 stops.

    With several classifiers, views whose classifier can no longer be queried are skipped.
    """

    first: int
    more: Callable[[Row], int]
    """Returns the number of views to query next, given the answers about a picture so far."""


@dataclass(frozen=True)
class Screen:
    """Descriptors of a picture's pixels, computed before any query."""

    describe: Callable[[Image], Floats] | None = None
    """A function that computes the descriptor of a picture; None if no descriptors are needed."""
    thumbnails: bool = False
    """Whether to make a thumbnail for finding near-duplicates."""
    why: Callable[[Floats], str | None] | None = None
    """A function that returns why a picture with this descriptor is unfamiliar, as a sentence, or None if it is
    familiar."""
    refuse: bool = False
    """Whether unfamiliar pictures are refused without queries."""

    def unfamiliar(self, described: Floats | None) -> str | None:
        """The reason why a picture is unfamiliar; None if it is familiar or has no descriptor."""
        return self.why(described) if self.why and described is not None else None


NO_SCREEN = Screen()


def check_words(classifier: AnyClassifier, views: Iterable[View]) -> None:
    """Raise a ViewError if views change the wording but the classifier does not use a prompt."""
    for view in views:
        phrasing = view.phrased(AS_DESCRIBED, "")
        if phrasing is AS_DESCRIBED:
            continue
        if not isinstance(classifier, Prompted):
            raise ViewError(
                f"the view {view} changes the prompt, but this classifier does not use a prompt",
                code="view-unsupported",
            )
        classifier.words(phrasing)


def askable(classifier: AnyClassifier, views: Iterable[View]) -> tuple[View, ...]:
    """The views that change the wording, if the classifier takes a prompt; otherwise none."""
    possible: list[View] = []
    for view in views if isinstance(classifier, Prompted) else ():
        with suppress(PermanentError):
            check_words(classifier, [view])
            possible.append(view)
    return tuple(possible)
