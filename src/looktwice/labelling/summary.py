"""Label statistics (accuracy, calibration and the supported guarantee), and audits.

An audit estimates the error rate among accepted verdicts, from a sample stratified by confidence. Within a stratum
every picture is equally likely to be labelled, so each label is weighted by the number of pictures per label in its
stratum (Horvitz and Thompson). More labels go to strata whose outcomes vary more (Neyman allocation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from looktwice.model import (
    FOLDS,
    LADDER,
    Answers,
    Bools,
    Claim,
    ClaimTest,
    Counts,
    DataError,
    Floats,
    HeldOut,
    Jury,
    LabelledVotes,
    Places,
    Verdict,
    cross_fit,
    metrics,
    missing_labels,
    outcome,
    selection_level,
)

STRATA = 12
FEWEST_IN_STRATUM = 4
"""The number of labels in every stratum before Neyman allocation starts."""
LEAST_ERROR, MOST_ERROR = 0.01, 0.95
"""Bounds on a stratum's expected error rate, regardless of its confidence."""
LEAST_RATE = 0.002
PRIOR = 5.0
"""The weight of a stratum's expected error rate in the variance, expressed as a number of labels."""


@dataclass(frozen=True)
class Share:
    """The error rate among accepted verdicts, its 95 % interval, and the number of labels."""

    value: float
    low: float
    high: float
    labels: int

    def line(self) -> str:
        """One line for people."""
        interval = f"95 % interval {100 * self.low:.2f} % to {100 * self.high:.2f} %"
        return f"Wrong among accepted: {100 * self.value:.2f} % ({interval}), from {self.labels:,} labels."


@dataclass(frozen=True, eq=False)
class Audit:
    """The accepted verdicts of a run, divided into strata, with their labelling order and the error rate estimated from
    labels."""

    verdicts: Sequence[Verdict]
    seed: int = 0

    @classmethod
    def from_verdicts(cls, verdicts: Sequence[Verdict], seed: int = 0) -> Audit:
        """Create an audit of the accepted verdicts among these, or of all of them if none has a decision."""
        accepted = [verdict for verdict in verdicts if verdict.decision != "review" and not verdict.held]
        if not accepted:
            raise DataError(
                "no verdict is accepted, so there is nothing to audit; score with a larger --max-error",
                code="pictures-none",
            )
        return cls(accepted, seed)

    @cached_property
    def stratum(self) -> Places:
        """(n,): the stratum of each verdict."""
        return strata(np.array([verdict.confidence for verdict in self.verdicts]))

    @cached_property
    def sizes(self) -> Counts:
        """Number of verdicts in each stratum."""
        return np.bincount(self.stratum)

    @cached_property
    def expected(self) -> Floats:
        """The expected error rate of each stratum, if the confidences are calibrated."""
        doubt = 1.0 - np.array([verdict.confidence for verdict in self.verdicts])
        return np.clip(np.bincount(self.stratum, doubt) / self.sizes, LEAST_ERROR, MOST_ERROR)

    def order(self) -> list[str]:
        """The names in labelling order; every prefix is a stratified sample."""
        rng = np.random.default_rng(self.seed)
        within = [rng.permutation(np.flatnonzero(self.stratum == h)).tolist() for h in range(len(self.sizes))]
        taken, worth = np.zeros(len(self.sizes)), self.sizes * np.sqrt(self.expected * (1.0 - self.expected))
        names = list[str]()
        for _ in self.verdicts:
            few = (taken < FEWEST_IN_STRATUM) & (taken < self.sizes)
            wanted = -taken if few.any() else worth / (taken + 1.0)
            h = int(np.argmax(np.where(few if few.any() else taken < self.sizes, wanted, -np.inf)))
            names.append(self.verdicts[within[h][int(taken[h])]].name)
            taken[h] += 1
        return names

    def share(self, wrong: Mapping[str, bool]) -> Share | None:
        """The error rate estimated from the labelled verdicts; None until every stratum has a label."""
        known = np.array([verdict.name in wrong for verdict in self.verdicts])
        bad = np.array([wrong.get(verdict.name, False) for verdict in self.verdicts])
        count, errors = self._by_stratum(known), self._by_stratum(bad)
        if not (count > 0).all():
            return None
        return share(self.sizes, count, errors, self.expected)

    def _by_stratum(self, which: Bools) -> Counts:
        return np.bincount(self.stratum[which], minlength=len(self.sizes))


def strata(confidence: Floats, most: int = STRATA) -> Places:
    """(n,): strata of similar confidence, the most confident first; pictures with equal confidence are in the same
    stratum.

    All strata have about the same sum of standard deviations (the rule of Dalenius and Hodges).
    """
    value, place, count = np.unique(-confidence, return_inverse=True, return_counts=True)
    error = np.clip(1.0 + value, LEAST_ERROR, MOST_ERROR)
    spread = count * np.sqrt(error * (1.0 - error))
    before = np.cumsum(spread) - spread  # so that a confidence that most answers share is a stratum of its own
    cut = np.minimum(before / spread.sum() * most, most - 1).astype(np.intp)
    return np.unique(cut, return_inverse=True)[1][place]


def share(sizes: Counts, count: Counts, errors: Counts, expected: Floats) -> Share:
    """The error rate over all strata, from the numbers of labels and errors in each.

    The interval is Wilson's at the effective sample size (Korn and Graubard). A stratum without errors among few labels
    does not have variance zero: for the variance, its error rate is shrunk towards the expected one, multiplied by the
    ratio of observed to expected errors over all strata (empirical Bayes).
    """
    weight = sizes / sizes.sum()
    value = float(weight @ (errors / count))
    off = (errors.sum() + 1.0) / (count @ expected + 1.0)
    rate = (errors + PRIOR * np.clip(off * expected, LEAST_RATE, MOST_ERROR)) / (count + PRIOR)
    variance = float(weight**2 @ (rate * (1.0 - rate) / count * (1.0 - count / sizes)))
    if variance == 0.0:  # every picture is labelled
        return Share(value, value, value, int(count.sum()))
    smooth = float(weight @ rate)
    worth = smooth * (1.0 - smooth) / variance
    low, high = metrics.wilson(value * worth, worth)
    return Share(value, float(low), float(high), int(count.sum()))


# While people label ---------------------------------------------------------------------------------------------------

FEWEST = 4 * FOLDS
"""With fewer labels, only their number is shown."""
NOTE = (
    "Estimated by 5-fold cross-validation. Stop at the planned number of labels, not as soon as a guarantee "
    "appears, which would make it less certain than stated."
)
WEIGHED = "Doubtful verdicts are shown more often than confident ones, and each counts for less."


@dataclass(frozen=True)
class Summary:
    """The statistics of the labels so far, for the page."""

    lines: list[tuple[str, str, str]]
    """Name, value and detail of each figure."""
    note: str
    """A note on how to interpret the figures."""
    enough: bool = False
    """Whether there are enough labels for the desired guarantee."""


def audit_summary(share: Share | None, verdicts: int) -> Summary:
    """The error rate among this many accepted verdicts, from the labels of an audit."""
    if share is None:
        return Summary([("Accepted verdicts", f"{verdicts:,}", "the error rate is shown after a few labels")], WEIGHED)
    interval = f"95 % interval {100 * share.low:.1f} % to {100 * share.high:.1f} %"
    labels = ("Labels", f"{share.labels:,}", f"of {verdicts:,} accepted verdicts")
    return Summary([labels, ("Wrong among accepted", f"{100 * share.value:.1f} %", interval)], WEIGHED)


@dataclass(frozen=True)
class LabelSummary:
    """Accuracy, calibration and guarantees from the labels so far; figures are None if there are too few labels."""

    labels: int
    """The number of pictures with a label or with ruled-out labels, and with answers from the classifier."""
    unsure: int
    """The number of pictures marked as "can't tell"."""
    accuracy: tuple[float, float, float] | None = None
    """Accuracy of the classifier's own answer, and its 95 % interval."""
    ece: float | None = None
    """Calibration error of the confidences, by 5-fold cross-validation."""
    max_error: float | None = None
    """The strictest guarantee that the labels support now, among the ladder and the desired guarantee."""
    accepted: float | None = None
    """The share of pictures that this guarantee accepts."""
    wanted: float = 0.0
    """The desired guarantee."""
    more: int | None = None
    """The approximate number of further labels that the desired guarantee needs; None if the error rate is too high for
    it."""
    enough: bool = False
    """Whether this many labels support the desired guarantee with a power of 0.8."""
    unasked: int = 0
    """The number of labelled pictures without answers from the classifier so far."""

    def shown(self) -> Summary:
        """The summary in the form that the page shows."""
        return Summary(self.lines(), NOTE, self.enough)

    def lines(self) -> list[tuple[str, str, str]]:
        """Name, value and detail of each figure."""
        unasked = [f"{self.unasked:,} more once the classifier has answered"] if self.unasked else []
        unsure = [f"{self.unsure:,} marked “can’t tell”"] if self.unsure else []
        rows = [("Labels", f"{self.labels:,}", "; ".join([*unasked, *unsure]))]
        if self.accuracy is None or self.ece is None:
            return [*rows, ("More figures from", f"{FEWEST} labels", "from at least two classes")]
        more = "none" if self.enough else "out of reach" if self.more is None else f"about {self.more:,}"
        because = "even the most confident answers are wrong too often" if more == "out of reach" else ""
        rows.append((f"Still needed for at most {100 * self.wanted:.3g} % errors", more, because))
        value, low, high = self.accuracy
        interval = f"95 % interval {100 * low:.1f} % to {100 * high:.1f} %"
        rows.append(("Accuracy of the classifier", f"{100 * value:.1f} %", interval))
        guarantee = f"at most {100 * self.max_error:.3g} % errors" if self.max_error else "none yet"
        share = "" if self.accepted is None else f"accepts {100 * self.accepted:.0f} % of the pictures"
        rows.append(("Guarantee so far", guarantee, share))
        return [*rows, ("Calibration error", f"{self.ece:.3f}", "of confidences fitted to these labels")]


def summarise(labelled: LabelledVotes, unsure: int, max_error: float, level: float = 0.95) -> LabelSummary:
    """Summarise labelled votes: accuracy, calibration, and the number of labels that the desired guarantee still needs.

    The guarantees from the ladder are tested at a level corrected for multiple tests, the desired guarantee at its own
    level.
    """
    count = len(labelled)
    if count < FEWEST or len(set(labelled.truths.tolist())) < 2:
        return LabelSummary(count, unsure, wanted=max_error)
    right = int((labelled.base == labelled.truths).sum())
    low, high = metrics.wilson(right, count)
    jury = Jury()
    evaluated = cross_fit(jury, labelled)
    held_out = HeldOut.combine(evaluated, outcome(jury.fit(labelled), labelled))
    levels = sorted((dict.fromkeys(LADDER, selection_level(level)) | {max_error: level}).items())
    thresholds = ((error, held_out.threshold(error, certainty)) for error, certainty in levels)
    reached, accept = next(((error, t) for error, t in thresholds if t is not None), (None, np.inf))
    confidence = np.array(held_out.confidence)
    answers = Answers.unnamed(confidence, np.array(held_out.correct))
    more = missing_labels([ClaimTest([Claim(max_error)], answers, level)])
    return LabelSummary(
        count,
        unsure,
        (right / count, float(low), float(high)),
        metrics.ece(evaluated.confidence, evaluated.correct),
        reached,
        float((confidence >= accept).mean()) if reached else None,
        max_error,
        more,
        more == 0,
    )
