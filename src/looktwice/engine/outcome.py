"""Why a picture has no verdict, and the progress of a run."""

from __future__ import annotations

from dataclasses import astuple, dataclass, field
from enum import StrEnum
from operator import add, sub

from looktwice.errors import BudgetError, ClassifierError, ImageError, LookTwiceError


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


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a query has no answer."""

    cause: Cause
    message: str
    """A message for people."""
    error: Exception | None = field(default=None, compare=False)
    """What the classifier raised, where it did."""


@dataclass(frozen=True, slots=True)
class Unscored:
    """A picture without a confidence, and why; never a number."""

    name: str
    cause: Cause
    message: str

    def __str__(self) -> str:
        return f"{self.name}: not scored: {self.message}"

    def error(self) -> LookTwiceError:
        """The corresponding exception."""
        if self.cause in (Cause.UNREADABLE, Cause.UNFIT, Cause.UNFAMILIAR):
            return ImageError(self.message, self.name)
        kind = BudgetError if self.cause is Cause.BUDGET else ClassifierError
        return kind(f"{self.name}: {self.message}")


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
