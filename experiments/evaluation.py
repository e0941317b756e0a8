"""The figures of a fitted jury, and of what the owner of a model could do with its full output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from looktwice.calibration import crossfit, metrics
from looktwice.calibration.crossfit import Outcome
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.evidence import Bools, Codes, Floats
from looktwice.calibration.jury import Jury
from looktwice.calibration.votes import LabelledVotes

Rows = NDArray[np.intp]
Figures = dict[str, float]


def ece_by_chance(confidence: Floats, bins: int = 15) -> float:
    """The expected ECE of a perfectly calibrated confidence, whose bins are right by chance, too.

    The number of right answers in a bin has the variance Σ p(1 − p), and a normal deviate the mean size √(2/π).
    """
    bin_ = np.clip(np.ceil(confidence * bins).astype(int) - 1, 0, bins - 1)
    variance = np.bincount(bin_, confidence * (1 - confidence), bins)
    return float(np.sqrt(2 / np.pi) * np.sqrt(variance).sum() / len(confidence))


def figures(outcome: Outcome, base_confidence: Floats, base_right: Bools) -> Figures:
    """The figures of one method on one split; `base_confidence` is the probability that the base answer is right."""
    scores = outcome.scores()
    return {
        "accuracy": scores.accuracy,
        "ece": scores.ece,
        "ece_by_chance": ece_by_chance(outcome.confidence),
        "auroc": scores.auroc or 0.5,
        "base_auroc": metrics.auroc(base_confidence, base_right) or 0.5,
        "brier": scores.brier,
        "nll": scores.nll,
    }


def jury_figures(jury: Jury, tested: LabelledVotes) -> Figures:
    """The figures of a fitted jury."""
    base_confidence = replace(jury, ballot="base").confidence(tested)
    return figures(crossfit.outcome(jury, tested), base_confidence, tested.base == tested.truths)


def tempered(logs: Floats, truths: Codes, fit: Rows) -> Floats:
    """(n, K): log probabilities with the temperature that suits the labelled part best."""

    def loss(log_t: float) -> float:
        scaled = log_softmax(logs[fit] / np.exp(log_t), axis=1)
        return -float(scaled[np.arange(len(fit)), truths[fit]].mean())

    temperature = np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x)
    scaled: Floats = log_softmax(logs / temperature, axis=1)
    return scaled


def dense_outcome(name: str, logs: Floats, truths: Codes, queries: float) -> Outcome:
    """A full table of log probabilities as an outcome."""
    p = np.exp(logs)
    labels = np.broadcast_to(np.arange(p.shape[1], dtype=np.int32), p.shape)
    label = p.argmax(axis=1).astype(np.int32)
    return Outcome.from_predictions(name, queries, label, p.max(axis=1), Distribution(labels, p, p.shape[1]), truths)


def white_box(logs: Floats, truths: Codes, base: Codes, fit: Rows, test: Rows) -> Figures:
    """The figures of a full table of log probabilities with a temperature fitted on the labelled part."""
    scaled = tempered(logs, truths, fit)[test]
    base_confidence = np.exp(scaled[np.arange(len(test)), base[test]])
    return figures(dense_outcome("white box", scaled, truths[test], 1), base_confidence, base[test] == truths[test])


def means(splits: Sequence[Figures], keys: Sequence[str], digits: int = 4) -> dict[str, str]:
    """The mean of each figure over the splits, as text."""
    return {key: f"{np.mean([each[key] for each in splits]):.{digits}f}" for key in keys}
