"""What labels are worth while people still give them: accuracy, calibration, and the guarantee within reach."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from looktwice.calibration import crossfit, metrics
from looktwice.calibration.jury import Jury
from looktwice.calibration.votes import LabelledVotes
from looktwice.errors import LookTwiceError
from looktwice.verdicts import planning
from looktwice.verdicts.audit import Share
from looktwice.verdicts.profile import HeldOut

LADDER = (0.01, 0.02, 0.05, 0.1, 0.2)
"""The guarantees that are tried: how often accepted answers may be wrong."""
FEWEST = 4 * crossfit.FOLDS
"""Labels below which nothing but their number is told."""
NOTE = (
    "Judged by 5-fold cross-validation. Stop when the number of labels is reached, not as soon as a guarantee appears: "
    "one that was waited for is less certain than stated."
)


class Told(Protocol):
    """What labels tell so far, for people."""

    @property
    def enough(self) -> bool:
        """Whether they are enough for what is wanted."""

    @property
    def note(self) -> str:
        """How to read it."""

    def lines(self) -> list[tuple[str, str, str]]:
        """What it is, its value, and a remark."""


@dataclass(frozen=True)
class Audited:
    """What the labels of an audit tell; None until there are some of every kind."""

    share: Share | None
    verdicts: int
    """How many verdicts are audited."""
    enough: ClassVar[bool] = False
    note: ClassVar[str] = "Doubtful verdicts come up more often than sure ones and count for less each."

    def lines(self) -> list[tuple[str, str, str]]:
        """How often accepted verdicts are wrong."""
        if self.share is None:
            return [("Accepted verdicts", f"{self.verdicts:,}", "label some of every kind to learn more")]
        wrong = f"95% interval {self.share.low:.1%} to {self.share.high:.1%}"
        found = ("Wrong among accepted", f"{self.share.value:.1%}", wrong)
        return [("Labels that count", f"{self.share.labels:,}", f"of {self.verdicts:,} accepted verdicts"), found]


@dataclass(frozen=True)
class Worth:
    """What so many labels tell; None where they are too few."""

    note: ClassVar[str] = NOTE
    labels: int
    """Pictures of whose truth something is known, and about which the classifier was asked."""
    unsure: int
    """Pictures that nobody could tell."""
    accuracy: tuple[float, float, float] | None = None
    """How often the classifier's own answer is right, and the 95 % interval of that."""
    ece: float | None = None
    """The calibration error of the confidences, by 5-fold cross-validation."""
    max_error: float | None = None
    """The least error that can be guaranteed now, of the ladder and the wanted one."""
    accepted: float | None = None
    """The share of pictures that this guarantee accepts."""
    wanted: float = 0.0
    more: int | None = None
    """How many more labels the wanted guarantee takes, about; None where the answers are too often wrong for it."""
    enough: bool = False
    """Whether so many labels back the wanted guarantee four times out of five."""
    unasked: int = 0
    """Pictures of whose truth something is known, but about which the classifier was not asked yet."""

    def lines(self) -> list[tuple[str, str, str]]:
        """The same in words: what it is, its value, and a remark."""
        unasked = [f"{self.unasked:,} more once the classifier has answered"] if self.unasked else []
        unsure = [f"{self.unsure:,} that nobody could tell"] if self.unsure else []
        found = [("Labels that count", f"{self.labels:,}", "; ".join([*unasked, *unsure]))]
        if self.accuracy is None or self.ece is None:
            return [*found, ("More is told from", f"{FEWEST} labels", "of at least two classes")]
        more = "none" if self.enough else "out of reach" if self.more is None else f"about {self.more:,}"
        because = "even the surest answers are wrong too often" if more == "out of reach" else ""
        found.append((f"More for at most {100 * self.wanted:.3g}% wrong", more, because))
        value, low, high = self.accuracy
        found.append(("The classifier is right", f"{value:.1%}", f"95% interval {low:.1%} to {high:.1%}"))
        reached = f"wrong at most {100 * self.max_error:.3g}%" if self.max_error else "none yet"
        share = "" if self.accepted is None else f"accepting {self.accepted:.0%} of the pictures"
        found.append(("Guarantee within reach", reached, share))
        return [*found, ("Calibration error", f"{self.ece:.3f}", "of confidences learned from these labels")]


def worth(labelled: LabelledVotes, unsure: int, max_error: float, level: float = 0.95) -> Worth:
    """What these votes and truths are worth, and how far it is to a guarantee. Pure.

    The guarantees of the ladder are tried at a level that allows for trying several, the wanted one at its own.
    """
    count = len(labelled)
    if count < FEWEST or len(set(labelled.truths.tolist())) < 2:
        return Worth(count, unsure, wanted=max_error)
    right = int((labelled.base == labelled.truths).sum())
    low, high = metrics.wilson(right, count)
    outcome = crossfit.cross_fit(Jury(), labelled)
    held_out = HeldOut(confidence=tuple(outcome.confidence.tolist()), correct=tuple(outcome.correct.tolist()))
    strict = 1.0 - (1.0 - level) / len(LADDER)
    levels = sorted((dict.fromkeys(LADDER, strict) | {max_error: level}).items())
    thresholds = ((error, held_out.threshold(error, certainty)) for error, certainty in levels)
    reached, accept = next(((error, t) for error, t in thresholds if t is not None), (None, np.inf))
    more = _more(held_out, max_error, level)
    return Worth(
        count,
        unsure,
        (right / count, float(low), float(high)),
        metrics.ece(outcome.confidence, outcome.correct),
        reached,
        float((outcome.confidence >= accept).mean()) if reached else None,
        max_error,
        more,
        more == 0,
    )


def _more(held_out: HeldOut, max_error: float, level: float) -> int | None:
    """Labels that are still lacking for the cheapest way to the guarantee; None where there is none."""
    try:
        needs = planning.needs(max_error, level, held_out)
    except LookTwiceError:
        return None
    return max(0, min(need.labels for need in needs) - len(held_out.confidence))
