"""Resampled differences against the plain figures, and what the owner of a model can do with its output."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import log_softmax

from experiments import hidden, resampled
from looktwice.calibration import metrics
from looktwice.calibration.crossfit import Outcome
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.evidence import Bools, Codes, Floats


def answers(seed: int, pictures: int = 400) -> tuple[Floats, Bools]:
    rng = np.random.default_rng(seed)
    confidence = np.round(rng.beta(4, 1.5, pictures), 2)
    return confidence, rng.random(pictures) < confidence


@pytest.mark.parametrize("seed", range(5))
def test_figures_under_weights_are_those_of_repeated_pictures(seed: int) -> None:
    confidence, correct = answers(seed)
    counts = np.random.default_rng(seed).multinomial(400, np.full(400, 1 / 400), 3)
    weights = counts.astype(np.float64)
    ece, auroc = (f(confidence, correct, weights) for f in (resampled.weighted_ece, resampled.weighted_auroc))
    for row, repeated in enumerate(np.repeat(np.arange(400), times) for times in counts):
        assert ece[row] == pytest.approx(metrics.ece(confidence[repeated], correct[repeated]))
        assert auroc[row] == pytest.approx(metrics.auroc(confidence[repeated], correct[repeated]))


def outcome(confidence: Floats, correct: Bools) -> Outcome:
    label = np.zeros(len(correct), np.int32)
    distribution = Distribution(label[:, None], confidence[:, None], 2)
    return Outcome.from_predictions("one", 1, label, confidence, distribution, np.where(correct, 0, 1).astype(np.int32))


def test_a_paired_difference_is_narrower_than_its_parts() -> None:
    confidence, correct = answers(0, 1000)
    tested = [np.arange(0, 600), np.arange(400, 1000)]
    first, second = (
        resampled.resampled(1000, [outcome(each[rows], correct[rows]) for rows in tested], tested)["brier"]
        for each in (confidence, confidence * 0.98)
    )
    gap = second.less(first)
    low, high = gap.interval
    assert low < gap.value < high
    assert high - low < 0.2 * (first.interval[1] - first.interval[0])
    assert first.less(first).p_value == 1.0


def test_holm_by_hand() -> None:
    # Sorted: .01 · 3, then the greater of that and .02 · 2, then the greater of that and .9.
    assert resampled.holm([0.02, 0.9, 0.01]) == pytest.approx([0.04, 0.9, 0.03])
    assert resampled.holm([0.02, 0.019]) == pytest.approx([0.038, 0.038])


def biased(seed: int) -> tuple[Floats, Codes]:
    """Log probabilities of two views, (n, 2, K): one overconfident with a class that is named too often, one noise."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(size=(900, 4))
    truths = np.array([rng.choice(4, p=np.exp(row)) for row in log_softmax(2 * logits, axis=1)], np.int32)
    views = [log_softmax(5 * logits + [2.0, 0, 0, 0], axis=1), log_softmax(rng.normal(size=(900, 4)), axis=1)]
    return np.stack(views, axis=1), truths


def test_owners_of_a_model_mend_its_bias_and_weigh_its_views() -> None:
    logs, truths = biased(1)
    fit, test = np.arange(600), np.arange(600, 900)
    raw = hidden.log_loss(logs[test, 0], truths[test])
    mended = hidden.dirichlet(logs[:, 0], truths, fit)
    weighted = hidden.weighted_views(logs, truths, fit)
    assert hidden.log_loss(mended[test], truths[test]) < hidden.log_loss(weighted[test], truths[test]) < raw
    for table in (mended, weighted):
        assert np.exp(table).sum(axis=1) == pytest.approx(1.0)
