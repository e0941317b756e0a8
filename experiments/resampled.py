"""Intervals of differences between methods on the same pictures, by resampling pictures; Holm over several of them.

A picture is tested in several splits, so pictures are drawn once for all splits and methods: each resample gives every
figure of every method as a mean over the splits, and its difference to the same figure of another method.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from looktwice.calibration.crossfit import Outcome
from looktwice.calibration.evidence import Bools, Floats, Places
from looktwice.calibration.metrics import BINS

RESAMPLES, SEED = 1000, 0
FIGURES = ("brier", "ece", "auroc")


@dataclass(frozen=True, eq=False)
class Resampled:
    """A figure on all pictures, and on each resample of them, (RESAMPLES,); means over the splits."""

    value: float
    drawn: Floats

    @property
    def interval(self) -> tuple[float, float]:
        low, high = np.quantile(self.drawn, [0.025, 0.975])
        return float(low), float(high)

    def less(self, other: Resampled) -> Resampled:
        """The difference on the same resamples."""
        return Resampled(self.value - other.value, self.drawn - other.drawn)

    @property
    def p_value(self) -> float:
        """Of no difference, two-sided, from the standard error."""
        error = float(self.drawn.std())
        return float(2 * ndtr(-abs(self.value) / error)) if error > 0 else 1.0


def resampled(pictures: int, outcomes: Sequence[Outcome], tested: Sequence[Places]) -> dict[str, Resampled]:
    """Each figure of one method, from its outcome on each split; `tested` are the places of the split's pictures."""
    counts = np.random.default_rng(SEED).multinomial(pictures, np.full(pictures, 1 / pictures), RESAMPLES)
    weights = np.vstack([np.ones(pictures), counts])  # the first row is the sample itself
    total = np.zeros((len(FIGURES), RESAMPLES + 1))
    for outcome, rows in zip(outcomes, tested, strict=True):
        of_rows = weights[:, rows]
        total += [
            of_rows @ outcome.brier / of_rows.sum(axis=1),
            weighted_ece(outcome.confidence, outcome.correct, of_rows),
            weighted_auroc(outcome.confidence, outcome.correct, of_rows),
        ]
    means = total / len(outcomes)
    return {figure: Resampled(float(row[0]), row[1:]) for figure, row in zip(FIGURES, means, strict=True)}


def weighted_ece(confidence: Floats, correct: Bools, weights: Floats) -> Floats:
    """(r,): the ECE under each row of weights (r, n)."""
    place = np.clip(np.ceil(confidence * BINS - 1e-12).astype(int) - 1, 0, BINS - 1)
    gaps = np.zeros((len(confidence), BINS))
    gaps[np.arange(len(confidence)), place] = correct - confidence
    ece: Floats = np.abs(weights @ gaps).sum(axis=1) / weights.sum(axis=1)
    return ece


def weighted_auroc(confidence: Floats, correct: Bools, weights: Floats) -> Floats:
    """(r,): the AUROC of right against wrong answers under each row of weights (r, n); ½ where one kind is missing."""
    order = np.argsort(confidence, kind="stable")
    starts = np.flatnonzero(np.diff(confidence[order], prepend=-1.0))
    right, wrong = (np.add.reduceat(weights[:, order] * kind[order], starts, axis=1) for kind in (correct, ~correct))
    below = np.cumsum(wrong, axis=1) - wrong / 2
    pairs = right.sum(axis=1) * wrong.sum(axis=1)
    auroc: Floats = np.where(pairs > 0, (right * below).sum(axis=1) / np.maximum(pairs, 1e-12), 0.5)
    return auroc


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's adjusted p-values: those below .05 hold together at 95 %."""
    values = np.asarray(p_values, np.float64)
    order = np.argsort(values)
    adjusted = np.empty(len(values))
    adjusted[order] = np.minimum(np.maximum.accumulate(values[order] * np.arange(len(values), 0, -1)), 1.0)
    return adjusted.tolist()
