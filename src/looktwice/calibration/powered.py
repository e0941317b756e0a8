"""Prediction-powered inference: estimate an accuracy from few labels and the confidences of many other answers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from looktwice.calibration.metrics import Bools, Floats, checked, wilson
from looktwice.errors import DataError

LEAST_POWERED = 50
"""The fewest labels, and other answers, for a prediction-powered interval."""
PLAIN_LABELS = 10
"""The weight, in labels, of the plain variance in that of a prediction-powered accuracy."""


class Powered(NamedTuple):
    """A share with its interval."""

    value: float
    low: float
    high: float


def check(labels: int, others: int) -> None:
    """Raise an error if there are too few labelled or other pictures."""
    if min(labels, others) < LEAST_POWERED:
        counts = f"{labels} labelled and {others} other pictures"
        raise DataError(
            f"{counts} are too few for a prediction-powered accuracy; give {LEAST_POWERED} of each",
            code="labels-too-few",
        )


def prediction_powered(correct: Bools, confidence: Floats, unlabelled: Floats, level: float = 0.95) -> Powered:
    """Estimate the accuracy from checked answers and from the confidences of unchecked ones.

    The confidences are not labels, but show whether easy pictures were drawn for labelling by chance: the mean of
    `correct` is shifted by the difference in mean confidence to the `unlabelled` answers, as far as confidence
    correlates with correctness (prediction-powered inference with the power of minimal variance; unbiased even if the
    confidences are wrong). The interval is Wilson's at the effective number of labels. The power is estimated from the
    same labels, so residuals are jackknifed, the quantile is Student's, and the variance is shrunk towards that of
    labels alone. At least `LEAST_POWERED` labels are required.

    >>> correct, confidence = np.arange(100) < 80, np.where(np.arange(100) < 80, 0.9, 0.4)
    >>> tuple(round(x, 3) for x in prediction_powered(correct, confidence, np.full(5000, 0.85)))
    (0.85, 0.805, 0.886)
    """
    from scipy.special import ndtri, stdtrit

    confidence, correct = checked(confidence, correct)
    unlabelled = np.asarray(unlabelled, dtype=np.float64)
    labels, others = len(correct), len(unlabelled)
    check(labels, others)
    away = confidence - confidence.mean()
    spread = np.concatenate([confidence, unlabelled]).var()
    together = float(np.cov(correct, confidence)[0, 1])
    power = float(np.clip(together / spread / (1.0 + labels / others), 0.0, 1.0)) if spread > 0 else 0.0
    value = float(np.clip(correct.mean() + power * (unlabelled.mean() - confidence.mean()), 0.0, 1.0))
    leverage = 1.0 / labels + away**2 / max(float(away @ away), 1e-12)
    residual = (correct - correct.mean() - power * away) / np.maximum(1.0 - leverage, 1e-6)
    variance = float(residual @ residual) / labels**2 + power**2 * unlabelled.var(ddof=1) / others
    plain = (correct.sum() + 1.0) * (labels - correct.sum() + 1.0) / (labels + 2.0) ** 2
    variance = (labels * variance + PLAIN_LABELS * plain / labels) / (labels + PLAIN_LABELS)
    tail = (1 - level) / 2
    worth = plain / variance * (ndtri(tail) / stdtrit(labels - 2, tail)) ** 2
    low, high = wilson(value * worth, worth, level)
    return Powered(value, float(low), float(high))
