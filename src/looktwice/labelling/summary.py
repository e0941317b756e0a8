"""Statistics during labelling: accuracy, calibration, and the guarantee that the labels support."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from looktwice.labelling.audit import Share
from looktwice.model import (
    FOLDS,
    LADDER,
    Answers,
    Claim,
    ClaimTest,
    HeldOut,
    Jury,
    LabelledVotes,
    cross_fit,
    metrics,
    missing_labels,
    selection_level,
)

FEWEST = 4 * FOLDS
"""With fewer labels, only their number is shown."""
NOTE = (
    "Estimated by 5-fold cross-validation. Stop at the number of labels, not as soon as a guarantee appears: waiting "
    "for one makes it less certain than stated."
)


class Summary(Protocol):
    """The statistics of the labels so far, for the page."""

    @property
    def enough(self) -> bool:
        """Whether there are enough labels for the desired guarantee."""

    @property
    def note(self) -> str:
        """How to read the lines."""

    def lines(self) -> list[tuple[str, str, str]]:
        """Name, value and detail of each figure."""


@dataclass(frozen=True)
class AuditSummary:
    """The error rate among accepted verdicts, from the labels of an audit."""

    share: Share | None
    """None until every stratum has labels."""
    verdicts: int
    """Number of accepted verdicts."""
    enough: ClassVar[bool] = False
    note: ClassVar[str] = "Doubtful verdicts are shown more often than confident ones, and each counts for less."

    def lines(self) -> list[tuple[str, str, str]]:
        """The number of labels and the error rate with its interval."""
        if self.share is None:
            return [("Accepted verdicts", f"{self.verdicts:,}", "the error rate is shown after a few labels")]
        interval = f"95 % interval {100 * self.share.low:.1f} % to {100 * self.share.high:.1f} %"
        return [
            ("Labels", f"{self.share.labels:,}", f"of {self.verdicts:,} accepted verdicts"),
            ("Wrong among accepted", f"{100 * self.share.value:.1f} %", interval),
        ]


@dataclass(frozen=True)
class LabelSummary:
    """Accuracy, calibration and guarantees from the labels so far; figures are None if there are too few labels."""

    note: ClassVar[str] = NOTE
    labels: int
    """Pictures that have a label, or labels that are ruled out, and answers of the classifier."""
    unsure: int
    """Pictures marked as "can't tell"."""
    accuracy: tuple[float, float, float] | None = None
    """Accuracy of the classifier's own answer, and its 95 % interval."""
    ece: float | None = None
    """Calibration error of the confidences, by 5-fold cross-validation."""
    max_error: float | None = None
    """The strictest guarantee that holds now, of the ladder and the desired one."""
    accepted: float | None = None
    """The share of pictures that this guarantee accepts."""
    wanted: float = 0.0
    """The desired guarantee."""
    more: int | None = None
    """About how many more labels the desired guarantee takes; None if the answers are wrong too often for it."""
    enough: bool = False
    """Whether this many labels support the desired guarantee four times out of five."""
    unasked: int = 0
    """Labelled pictures that the classifier has not answered about yet."""

    def lines(self) -> list[tuple[str, str, str]]:
        """Name, value and detail of each figure."""
        unasked = [f"{self.unasked:,} more once the classifier has answered"] if self.unasked else []
        unsure = [f"{self.unsure:,} marked “can’t tell”"] if self.unsure else []
        found = [("Labels", f"{self.labels:,}", "; ".join([*unasked, *unsure]))]
        if self.accuracy is None or self.ece is None:
            return [*found, ("More figures from", f"{FEWEST} labels", "of at least two classes")]
        more = "none" if self.enough else "out of reach" if self.more is None else f"about {self.more:,}"
        because = "even the most confident answers are wrong too often" if more == "out of reach" else ""
        found.append((f"Still needed for at most {100 * self.wanted:.3g} % errors", more, because))
        value, low, high = self.accuracy
        interval = f"95 % interval {100 * low:.1f} % to {100 * high:.1f} %"
        found.append(("Accuracy of the classifier", f"{100 * value:.1f} %", interval))
        guarantee = f"at most {100 * self.max_error:.3g} % errors" if self.max_error else "none yet"
        share = "" if self.accepted is None else f"accepts {100 * self.accepted:.0f} % of the pictures"
        found.append(("Guarantee so far", guarantee, share))
        return [*found, ("Calibration error", f"{self.ece:.3f}", "of confidences fitted to these labels")]


def summarise(labelled: LabelledVotes, unsure: int, max_error: float, level: float = 0.95) -> LabelSummary:
    """Summarise labelled votes: accuracy, calibration, and the way to the desired guarantee.

    The guarantees of the ladder are tried at a level corrected for trying several, the desired one at its own level.
    """
    count = len(labelled)
    if count < FEWEST or len(set(labelled.truths.tolist())) < 2:
        return LabelSummary(count, unsure, wanted=max_error)
    right = int((labelled.base == labelled.truths).sum())
    low, high = metrics.wilson(right, count)
    outcome = cross_fit(Jury(), labelled)
    held_out = HeldOut(confidence=tuple(outcome.confidence.tolist()), correct=tuple(outcome.correct.tolist()))
    levels = sorted((dict.fromkeys(LADDER, selection_level(level)) | {max_error: level}).items())
    thresholds = ((error, held_out.threshold(error, certainty)) for error, certainty in levels)
    reached, accept = next(((error, t) for error, t in thresholds if t is not None), (None, np.inf))
    answers = Answers.unnamed(outcome.confidence, outcome.correct)
    more = missing_labels([ClaimTest([Claim(max_error)], answers, level)])
    return LabelSummary(
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
