"""Prediction-powered inference: an accuracy from few labels and the confidences of many other answers."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from looktwice.calibration.metrics import Bools, Floats, checked, wilson
from looktwice.errors import DataError

LEAST_POWERED = 50
"""Labels below which prediction-powered intervals are refused."""
PLAIN_LABELS = 10
"""Labels that the plain variance counts for in the variance of a prediction-powered accuracy."""


class Powered(NamedTuple):
    """A share with the ends of its interval."""

    value: float
    low: float
    high: float


def check(labels: int, others: int) -> None:
    """Refuse a prediction-powered accuracy of so few labelled, or other, pictures."""
    if min(labels, others) < LEAST_POWERED:
        counts = f"{labels} labelled and {others} other pictures"
        raise DataError(
            f"{counts} are too few for a prediction-powered accuracy; give {LEAST_POWERED} of each",
            code="labels-too-few",
        )


def prediction_powered(correct: Bools, confidence: Floats, unlabelled: Floats, level: float = 0.95) -> Powered:
    """The accuracy, from answers of which it is known whether they are right and the confidences of others.

    The confidences are no labels, but tell whether chance drew easy pictures to be labelled: the mean of `correct` is
    moved by how much surer, or less sure, the `unlabelled` answers are, as far as confidence has gone with being right
    (prediction-powered inference with the power that has the least variance; without any bias, also if the confidences
    are wrong). The interval is Wilson's at the number of labels that would tell as much. The power is learned from the
    same labels, so each residual is that of a power learned without it (jackknife), the quantile is Student's, and the
    variance is shrunk towards that of labels alone. Fewer than `LEAST_POWERED` labels are refused.

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
