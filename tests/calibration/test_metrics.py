"""Figures by hand, against other libraries, and against slow direct versions of themselves."""

from __future__ import annotations

import itertools
import subprocess
import sys
from dataclasses import asdict, fields

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from support.errors import coded

from looktwice.calibration import metrics
from looktwice.calibration.metrics import Bools, Counts, Floats
from looktwice.errors import DataError

# Ten answers, the most confident first. Bins of 1/15 end at 6/15 = 0.4, 9/15 = 0.6, 12/15 = 0.8, 14/15 and 1.
TEN = np.array([1.00, 0.95, 0.95, 0.90, 0.80, 0.80, 0.60, 0.60, 0.40, 0.00])
RIGHT = np.array([True, True, False, True, True, False, True, False, False, False])


# A busy machine must not fail a test that is right.
unhurried = settings(deadline=None)


@st.composite
def answers(draw: st.DrawFn, smallest: int = 1) -> tuple[Floats, Bools]:
    """Confidences with many ties or none, and whether each is right."""
    size = draw(st.integers(smallest, 60))
    share = st.integers(0, 10).map(lambda k: k / 10)
    free = st.floats(0, 1, allow_subnormal=False)
    confidence = draw(st.lists(draw(st.sampled_from([share, free])), min_size=size, max_size=size))
    correct = draw(st.lists(st.booleans(), min_size=size, max_size=size))
    return np.array(confidence), np.array(correct)


def simulated(pictures: int, seed: int, overclaim: float = 0.0) -> tuple[Floats, Bools]:
    """Confidences that exceed the true chance by `overclaim`, and answers drawn from the true chance."""
    rng = np.random.default_rng(seed)
    confidence = rng.beta(6, 1, pictures)
    return confidence, rng.random(pictures) < confidence - overclaim


# By hand


def test_accuracy_of_ten_answers_by_hand() -> None:
    assert metrics.accuracy(TEN, RIGHT) == 0.5


def test_ece_of_ten_answers_by_hand() -> None:
    # (14/15, 1]: 1 + .95 + .95 = 2.9 claimed, 2 right: .9     (13/15, 14/15]: .9 claimed, 1 right: .1
    # (11/15, 12/15]: 1.6 claimed, 1 right: .6                 (8/15, 9/15]: 1.2 claimed, 1 right: .2
    # (5/15, 6/15]: .4 claimed, 0 right: .4                    [0, 1/15]: 0 claimed, 0 right: 0
    assert metrics.ece(TEN, RIGHT) == pytest.approx((0.9 + 0.1 + 0.6 + 0.2 + 0.4) / 10)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below() -> None:
    # 0.6 = 9/15 ends a bin and 0.65 is in the next, so the gaps .6 and .35 do not cancel.
    assert metrics.ece(np.array([0.6, 0.65]), np.array([False, True])) == pytest.approx((0.6 + 0.35) / 2)


@pytest.mark.parametrize("bins", range(1, 40))
def test_shares_of_votes_lie_on_their_edges_whatever_the_number_of_bins(bins: int) -> None:
    shares = np.arange(1, bins + 1) / bins
    assert metrics.reliability(shares, shares > 0.5, bins).count.tolist() == [1] * bins


def test_zero_falls_into_the_first_bin() -> None:
    # 0 and 1/15 together: |(0 + 1/15) − 1| / 2
    assert metrics.ece(np.array([0.0, 1 / 15]), np.array([True, False])) == pytest.approx((1 - 1 / 15) / 2)


def test_brier_of_ten_answers_by_hand() -> None:
    # 0 + .05² + .95² + .1² + .2² + .8² + .4² + .6² + .4² + 0
    assert metrics.brier_top(TEN, RIGHT) == pytest.approx(2.275 / 10)
    # Three classes, q = (1 − p)/2. Right, (1 − p)² + 2q²: 0, .00375, .015, .06, .24.
    # Wrong, p² + (1 − q)² + q²: .95 → .9025 + .950625 + .000625; .8 → .64 + .81 + .01; .6 → .36 + .64 + .04;
    # .4 → .16 + .49 + .09; 0 → 0 + .25 + .25.
    right, wrong = 0.00375 + 0.015 + 0.06 + 0.24, 1.85375 + 1.46 + 1.04 + 0.74 + 0.5
    assert metrics.brier_even(TEN, RIGHT, classes=3) == pytest.approx((right + wrong) / 10)


def test_log_loss_of_ten_answers_by_hand() -> None:
    # What the truth was given: p if right, (1 − p)/2 if wrong.
    truth = [1, 0.95, 0.025, 0.9, 0.8, 0.1, 0.6, 0.2, 0.3, 0.5]
    assert metrics.nll_even(TEN, RIGHT, classes=3) == pytest.approx(-np.log(truth).mean())
    came_true = [1, 0.95, 0.05, 0.9, 0.8, 0.2, 0.6, 0.4, 0.6, 1]
    assert metrics.nll_even(TEN, RIGHT, classes=2) == pytest.approx(-np.log(came_true).mean())


def test_a_certain_mistake_costs_much_but_not_everything() -> None:
    losses = metrics.nll_even_losses(np.array([1.0, 0.0]), np.array([False, True]), classes=10)
    assert losses == pytest.approx([27.63102, 27.63102])


def test_auroc_of_ten_answers_by_hand() -> None:
    # Right answers beat, of .95, .8, .6, .4, 0: 1 → 5; .95 → ½ + 4; .9 → 4; .8 → ½ + 3; .6 → ½ + 2.
    assert metrics.auroc(TEN, RIGHT) == (5 + 4.5 + 4 + 3.5 + 2.5) / 25


def test_aurc_of_ten_answers_by_hand() -> None:
    # Expected wrong answers among the first i: 0, ½, 1, 1, 1½, 2, 2½, 3, 4, 5.
    risks = [0, 0.5 / 2, 1 / 3, 1 / 4, 1.5 / 5, 2 / 6, 2.5 / 7, 3 / 8, 4 / 9, 5 / 10]
    assert metrics.aurc(TEN, RIGHT) == pytest.approx(sum(risks) / 10)


def test_e_aurc_of_ten_answers_by_hand() -> None:
    # Ranked perfectly, the five wrong answers come last: risks 0 five times, then 1/6, 2/7, 3/8, 4/9, 5/10.
    best = (1 / 6 + 2 / 7 + 3 / 8 + 4 / 9 + 5 / 10) / 10
    assert metrics.e_aurc(TEN, RIGHT) == pytest.approx(metrics.aurc(TEN, RIGHT) - best)
    assert metrics.e_aurc(RIGHT * 1.0, RIGHT) == 0.0


def test_equal_mass_bins_of_ten_answers_by_hand() -> None:
    # Five bins of two: {0, .4}, {.6, .6}, {.8, .8}, {.9, .95, .95} since ties stay together, and {1}.
    gaps = (0.4, 0.2, 0.6, 0.8, 0.0)
    assert metrics.ece_equal_mass(TEN, RIGHT, 5) == pytest.approx(sum(gaps) / 10)


def test_accuracy_at_coverage_of_ten_answers_by_hand() -> None:
    # The first four hold 3 right; the fifth is one of two at .8, half right.
    assert metrics.accuracy_at_coverage(TEN, RIGHT, 0.5) == pytest.approx(3.5 / 5)
    assert metrics.accuracy_at_coverage(TEN, RIGHT, 0.01) == 1.0
    assert metrics.accuracy_at_coverage(TEN, RIGHT, 1.0) == 0.5


def test_coverage_is_not_rounded_up_by_floating_point() -> None:
    confidence = np.linspace(1, 0, 100)
    correct = np.arange(100) < 7
    assert 0.07 * 100 > 7
    assert metrics.accuracy_at_coverage(confidence, correct, 0.07) == 1.0


def test_reliability_of_ten_answers_by_hand() -> None:
    curve = metrics.reliability(TEN, RIGHT)
    assert curve.count.tolist() == [1, 0, 0, 0, 0, 1, 0, 0, 2, 0, 0, 2, 0, 1, 3]
    assert curve.confidence[[0, 5, 8, 11, 13, 14]] == pytest.approx([0, 0.4, 0.6, 0.8, 0.9, 2.9 / 3])
    assert curve.accuracy[[0, 5, 8, 11, 13, 14]] == pytest.approx([0, 0, 0.5, 0.5, 1, 2 / 3])
    empty = curve.count == 0
    assert np.isnan(curve.confidence[empty]).all()
    assert np.isnan(curve.accuracy[empty]).all()
    assert (curve.low[empty] == 0).all()
    assert (curve.high[empty] == 1).all()
    filled = ~empty
    assert (curve.low[filled] <= curve.accuracy[filled]).all()
    assert (curve.accuracy[filled] <= curve.high[filled]).all()


def test_risk_coverage_of_ten_answers_by_hand() -> None:
    curve = metrics.risk_coverage(TEN, RIGHT)
    assert curve.threshold.tolist() == [1, 0.95, 0.9, 0.8, 0.6, 0.4, 0]
    assert curve.coverage == pytest.approx([0.1, 0.3, 0.4, 0.6, 0.8, 0.9, 1])
    assert curve.risk == pytest.approx([0, 1 / 3, 1 / 4, 2 / 6, 3 / 8, 4 / 9, 5 / 10])


def test_wilson_by_hand() -> None:
    # k = 8 of 10, z = 1.96: middle (8 + 1.9207)/(13.8415) = .71674, half 1.96 · √(1.6 + .96036)/13.8415 = .22658.
    low, high = metrics.wilson([8, 0, 10, 0], [10, 10, 10, 0])
    assert low == pytest.approx([0.490162, 0, 0.722467, 0], abs=2e-6)
    assert high == pytest.approx([0.943318, 0.277533, 1, 1], abs=2e-6)


# Properties


@unhurried
@given(answers(), st.integers(2, 1000))
def test_naive_brier_is_twice_the_error_rate(data: tuple[Floats, Bools], classes: int) -> None:
    correct = data[1]
    naive = metrics.brier_even(np.ones(len(correct)), correct, classes)
    assert naive == pytest.approx(2 * (1 - correct.mean()))


@unhurried
@given(answers(), st.integers(2, 12))
def test_even_losses_are_those_of_the_dense_distribution(data: tuple[Floats, Bools], classes: int) -> None:
    confidence, correct = data
    dense = np.repeat(((1 - confidence) / (classes - 1))[:, None], classes, axis=1)
    dense[:, 0] = confidence
    truth = np.eye(classes)[np.where(correct, 0, 1)]
    brier = ((dense - truth) ** 2).sum(axis=1)
    assert metrics.brier_even_losses(confidence, correct, classes) == pytest.approx(brier)
    nll = -np.log(np.maximum((dense * truth).sum(axis=1), 1e-12))
    assert metrics.nll_even_losses(confidence, correct, classes) == pytest.approx(nll)


@unhurried
@given(answers(), st.floats(0, 1))
def test_a_constant_confidence_ranks_nothing(data: tuple[Floats, Bools], constant: float) -> None:
    correct = data[1]
    confidence = np.full(len(correct), constant)
    assert metrics.auroc(confidence, correct) == (0.5 if 0 < correct.mean() < 1 else None)
    assert metrics.aurc(confidence, correct) == pytest.approx(1 - correct.mean())
    assert metrics.ece(confidence, correct) == pytest.approx(abs(constant - correct.mean()))
    assert metrics.accuracy_at_coverage(confidence, correct, 0.3) == pytest.approx(correct.mean())


@unhurried
@given(answers(), st.integers(0, 2**32 - 1))
def test_no_figure_depends_on_the_order_of_the_rows(data: tuple[Floats, Bools], seed: int) -> None:
    confidence, correct = data
    shuffled = np.random.default_rng(seed).permutation(len(correct))
    for figure in (metrics.ece, metrics.auroc, metrics.aurc):
        before, after = figure(confidence, correct), figure(confidence[shuffled], correct[shuffled])
        assert after == (None if before is None else pytest.approx(before, abs=1e-7))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.2, 0.5, 0.9]), st.booleans()), min_size=1, max_size=6))
def test_ties_are_averaged_over_all_orders(rows: list[tuple[float, bool]]) -> None:
    confidence, correct = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    areas, kept = [], []
    for order in itertools.permutations(range(len(rows))):
        ranked = sorted(order, key=lambda i: -confidence[i])
        wrong = np.cumsum(~correct[ranked])
        areas.append((wrong / np.arange(1, len(rows) + 1)).mean())
        kept.append(correct[ranked[: -(-len(rows) // 2)]].mean())
    assert metrics.aurc(confidence, correct) == pytest.approx(np.mean(areas))
    assert metrics.accuracy_at_coverage(confidence, correct, 0.5) == pytest.approx(np.mean(kept))


@unhurried
@given(answers())
def test_figures_stay_in_their_ranges(data: tuple[Floats, Bools]) -> None:
    confidence, correct = data
    for figure in (metrics.ece, metrics.brier_top, metrics.aurc):
        assert -1e-12 <= figure(confidence, correct) <= 1 + 1e-12
    assert 0 <= metrics.brier_even(confidence, correct, 10) <= 2 + 1e-12


@unhurried
@given(answers())
def test_reliability_holds_every_picture_and_the_ece(data: tuple[Floats, Bools]) -> None:
    curve = metrics.reliability(*data)
    assert curve.count.sum() == len(data[0])
    gaps = np.nan_to_num(np.abs(curve.confidence - curve.accuracy))
    assert gaps @ curve.count / curve.count.sum() == pytest.approx(metrics.ece(*data), abs=1e-12)


@unhurried
@given(answers())
def test_risk_coverage_points_are_what_each_threshold_gives(data: tuple[Floats, Bools]) -> None:
    confidence, correct = data
    curve = metrics.risk_coverage(confidence, correct)
    for coverage, risk, threshold in zip(curve.coverage, curve.risk, curve.threshold, strict=True):
        kept = confidence >= threshold
        assert (coverage, risk) == pytest.approx((kept.mean(), 1 - correct[kept].mean()))


@pytest.mark.slow
@unhurried
@given(st.integers(0, 50), st.integers(0, 50), st.floats(0.5, 0.99))
def test_an_interval_of_a_share_holds_the_share_and_widens_with_the_level(k: int, more: int, level: float) -> None:
    n = k + more
    low, high = metrics.wilson(k, n, level)
    assert 0 <= low <= high <= 1
    assert n == 0 or low <= k / n <= high
    wider_low, wider_high = metrics.wilson(k, n, (1 + level) / 2)
    assert wider_low <= low
    assert high <= wider_high


# Other libraries


@pytest.mark.slow
@unhurried
@given(answers(smallest=2))
def test_figures_agree_with_scikit_learn(data: tuple[Floats, Bools]) -> None:
    from sklearn.metrics import brier_score_loss, log_loss, roc_auc_score

    confidence, correct = data
    assert metrics.brier_top(confidence, correct) == pytest.approx(
        brier_score_loss(correct, confidence, pos_label=True)
    )
    inner = np.clip(confidence, 1e-9, 1 - 1e-9)
    expected = log_loss(correct, inner, labels=[False, True])
    assert metrics.nll_even(inner, correct, classes=2) == pytest.approx(expected, abs=1e-12)
    if 0 < correct.mean() < 1:
        assert metrics.auroc(confidence, correct) == pytest.approx(roc_auc_score(correct, confidence))


@unhurried
@given(answers())
def test_wilson_agrees_with_scipy(data: tuple[Floats, Bools]) -> None:
    from scipy.stats import binomtest

    k, n = int(data[1].sum()), len(data[1])
    theirs = binomtest(k, n).proportion_ci(0.9, method="wilson")
    assert np.array(metrics.wilson(k, n, 0.9)) == pytest.approx([theirs.low, theirs.high], abs=1e-9)


@pytest.mark.slow
@unhurried
@given(st.lists(st.tuples(st.floats(0.001, 0.999), st.booleans()), min_size=1, max_size=60), st.integers(1, 20))
def test_ece_agrees_with_relplot_off_the_edges(rows: list[tuple[float, bool]], bins: int) -> None:
    from relplot.metrics import binnedECE

    confidence, correct = np.array([row[0] for row in rows]), np.array([row[1] for row in rows])
    on_edge = np.abs(confidence * bins - np.rint(confidence * bins)) < 1e-9
    confidence = np.where(on_edge, confidence + 0.0003, confidence)
    assert metrics.ece(confidence, correct, bins) == pytest.approx(binnedECE(confidence, correct, bins), abs=1e-12)


def peers_data() -> tuple[Floats, Bools]:
    rng = np.random.default_rng(7)
    confidence = rng.beta(4, 1.5, 300)
    return confidence, rng.random(300) < confidence**1.5


def test_figures_agree_with_netcal_and_torchmetrics() -> None:
    """Values that netcal 1.4.0 and torchmetrics 1.9.0 (torch 2.13.0) gave for the same 300 answers, 15 bins."""
    confidence, correct = peers_data()
    assert correct.sum() == 202
    # netcal.metrics.ECE(15) and torchmetrics binary_calibration_error(n_bins=15), float64
    assert metrics.ece(confidence, correct) == pytest.approx(0.0734804751386385, abs=1e-14)
    # torchmetrics binary_auroc, which computes in float32
    assert metrics.auroc(confidence, correct) == pytest.approx(0.7267630100250244, abs=1e-6)


def test_more_figures_agree_with_other_libraries() -> None:
    """Values for the same 300 answers: uncertainty-calibration 0.1.4 and torch-uncertainty 0.13.0 (torch 2.13.0)."""
    confidence, correct = peers_data()
    # plugin_ce and the root of unbiased_square_ce over get_equal_bins of uncertainty-calibration, whose authors
    # proposed the debiased estimate
    assert metrics.ece_equal_mass(confidence, correct) == pytest.approx(0.09181725356552131, abs=1e-14)
    assert metrics.ece_debiased(confidence, correct) == pytest.approx(0.04925383151751222, abs=1e-14)
    # torch-uncertainty takes the area by trapezia: between the mean risk and half of the first and last
    risk = np.cumsum(~correct[np.argsort(-confidence)]) / np.arange(1, 301)
    trapezia = (300 * metrics.aurc(confidence, correct) - (risk[0] + risk[-1]) / 2) / 299
    assert trapezia == pytest.approx(0.18304469555453856, abs=1e-12)


@unhurried
@given(st.integers(2, 400), st.integers(1, 20), st.integers(0, 2**32))
def test_equal_mass_bins_are_those_of_the_sorted_answers(size: int, bins: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    confidence, correct = rng.random(size * bins), rng.random(size * bins) < 0.5
    gaps = (confidence - correct)[np.argsort(confidence)].reshape(bins, size).mean(axis=1)
    assert metrics.ece_equal_mass(confidence, correct, bins) == pytest.approx(np.abs(gaps).mean())
    accuracy = correct[np.argsort(confidence)].reshape(bins, size).mean(axis=1)
    square = np.mean(gaps**2 - accuracy * (1 - accuracy) / (size - 1))
    assert metrics.ece_debiased(confidence, correct, bins) == pytest.approx(np.sqrt(max(0.0, square)), abs=1e-7)


def test_the_debiased_error_does_not_grow_where_pictures_are_few() -> None:
    few = [simulated(150, seed) for seed in range(200)]
    plain, debiased = (np.mean([ece(*data) for data in few]) for ece in (metrics.ece_equal_mass, metrics.ece_debiased))
    assert plain > 0.07
    assert debiased < 0.03  # not 0, since a negative square counts as 0


@pytest.mark.slow
@unhurried
@given(answers(smallest=3))
def test_smooth_ece_is_the_integral_that_defines_it(data: tuple[Floats, Bools]) -> None:
    confidence, correct = data
    ece = metrics.ece_smooth(confidence, correct)
    if ece < 0.005:
        return
    t = (np.arange(4000) + 0.5) / 4000
    away = [t[:, None] - sign * confidence - 2 * turn for sign in (1, -1) for turn in (-1, 0, 1, 2)]
    kernel = sum(np.exp(-(each**2) / (2 * ece**2)) for each in away) / np.sqrt(2 * np.pi) / ece
    assert np.abs((kernel * (correct - confidence)).mean(axis=1)).mean() == pytest.approx(ece, abs=5e-4)


@pytest.mark.slow
def test_smooth_ece_is_near_that_of_relplot() -> None:
    from relplot.metrics import smECE

    for seed in range(5):
        confidence, correct = simulated(1000, seed, overclaim=0.1)
        assert metrics.ece_smooth(confidence, correct) == pytest.approx(smECE(confidence, correct), abs=0.003)


def test_smooth_ece_of_a_calibrated_constant_is_nothing() -> None:
    assert metrics.ece_smooth(np.full(4, 0.5), np.array([True, False, True, False])) == 0.0
    assert metrics.ece_smooth(np.ones(10), np.zeros(10, bool)) == pytest.approx(1.0, abs=0.001)


def test_classwise_ece_is_the_mean_over_classes() -> None:
    rng = np.random.default_rng(3)
    table = rng.dirichlet([1.0, 1.0, 1.0], 300)
    truths = np.array([rng.choice(3, p=row) for row in table])
    by_class = [metrics.ece(table[:, c], truths == c) for c in range(3)]
    assert metrics.ece_classwise(table, truths) == pytest.approx(np.mean(by_class))
    assert metrics.ece_classwise(table, np.zeros(300, int)) > 0.4
    with pytest.raises(DataError, match="for 2 true labels"):
        metrics.ece_classwise(table, truths[:2])


def test_where_other_libraries_bin_differently() -> None:
    # They use [lo, hi): 0.6 and 0.65 share a bin there, and netcal, torchmetrics and relplot all give 0.125.
    assert metrics.ece(np.array([0.6, 0.65]), np.array([False, True])) == pytest.approx(0.475)
    # 1.0 has a bin of its own in torchmetrics and relplot, 0.515; netcal closes the last bin as we do, 0.485.
    assert metrics.ece(np.array([1.0, 0.97]), np.array([False, True])) == pytest.approx(0.485)


# Scores and intervals


def losses_of(confidence: Floats, correct: Bools) -> tuple[Floats, Floats]:
    return metrics.brier_even_losses(confidence, correct, 10), metrics.nll_even_losses(confidence, correct, 10)


def test_scores_are_the_single_figures() -> None:
    brier, nll = losses_of(TEN, RIGHT)
    assert asdict(metrics.score(TEN, RIGHT, brier, nll)) == pytest.approx(
        {
            "accuracy": metrics.accuracy(TEN, RIGHT),
            "ece": metrics.ece(TEN, RIGHT),
            "auroc": metrics.auroc(TEN, RIGHT),
            "aurc": metrics.aurc(TEN, RIGHT),
            "brier": metrics.brier_even(TEN, RIGHT, 10),
            "brier_top": metrics.brier_top(TEN, RIGHT),
            "nll": metrics.nll_even(TEN, RIGHT, 10),
        }
    )


def test_scores_and_intervals_name_the_same_figures() -> None:
    names = [field.name for field in fields(metrics.Scores)]
    assert names == [field.name for field in fields(metrics.Intervals)]


def resampled(pictures: int, resamples: int, seed: int) -> Counts:
    return np.concatenate(list(metrics.draws(pictures, resamples, seed)))


@pytest.mark.parametrize("decimals", [1, 12])
def test_bootstrap_is_the_direct_one_on_the_same_draws(decimals: int) -> None:
    confidence, correct = simulated(200, seed=3, overclaim=0.1)
    confidence = np.round(confidence, decimals)
    brier, nll = losses_of(confidence, correct)
    direct = [
        asdict(metrics.score(confidence[rows], correct[rows], brier[rows], nll[rows]))
        for rows in resampled(200, 60, seed=5)
    ]
    intervals = asdict(metrics.bootstrap(confidence, correct, brier, nll, resamples=60, seed=5))
    for name, interval in intervals.items():
        low, high = np.percentile([scores[name] for scores in direct], [2.5, 97.5])
        if name == "ece":
            estimate = metrics.ece(confidence, correct)
            low, high = max(0, 2 * estimate - high), max(estimate, 2 * estimate - low)
        assert interval == pytest.approx((low, high), abs=1e-12), name


def test_draws_are_reproducible_and_more_of_them_leave_the_first_alone() -> None:
    few, many = resampled(50, 3, seed=1), resampled(50, 8, seed=1)
    assert np.array_equal(few, many[:3])
    assert not np.array_equal(few, resampled(50, 3, seed=2))


def test_the_blocks_in_which_draws_are_made_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    one_by_one = [rng.integers(7, size=7) for rng in [np.random.default_rng(9)] for _ in range(20)]
    for block in (1, 7, 50, 10**6):
        monkeypatch.setattr(metrics, "_BLOCK", block)
        assert np.array_equal(resampled(7, 20, seed=9), one_by_one)


def test_bootstrap_is_reproducible_with_its_seed() -> None:
    confidence, correct = simulated(300, seed=1)
    brier, nll = losses_of(confidence, correct)
    first = metrics.bootstrap(confidence, correct, brier, nll, resamples=50, seed=4)
    assert metrics.bootstrap(confidence, correct, brier, nll, resamples=50, seed=4) == first
    assert metrics.bootstrap(confidence, correct, brier, nll, resamples=50, seed=5) != first


@pytest.mark.parametrize("overclaim", [0.0, 0.02, 0.1])
def test_intervals_hold_their_estimates(overclaim: float) -> None:
    confidence, correct = simulated(2000, seed=2, overclaim=overclaim)
    brier, nll = losses_of(confidence, correct)
    scores = asdict(metrics.score(confidence, correct, brier, nll))
    intervals = asdict(metrics.bootstrap(confidence, correct, brier, nll, resamples=200))
    for name, (low, high) in intervals.items():
        assert low <= scores[name] <= high, name
        assert high > low, name


def test_interval_of_accuracy_is_as_wide_as_theory_says() -> None:
    confidence, correct = simulated(2000, seed=2)
    low, high = metrics.bootstrap(confidence, correct, *losses_of(confidence, correct)).accuracy
    share = correct.mean()
    assert high - low == pytest.approx(2 * 1.96 * (share * (1 - share) / 2000) ** 0.5, rel=0.1)


@pytest.mark.slow
def test_ece_interval_holds_a_small_true_error_that_percentiles_miss() -> None:
    held = missed = 0
    for seed in range(40):
        confidence, correct = simulated(1000, seed, overclaim=0.02)
        truth = float(np.minimum(confidence, 0.02).mean())
        zeros = np.zeros(1000)
        low, high = metrics.bootstrap(confidence, correct, zeros, zeros, resamples=100).ece
        held += int(low <= truth <= high)
        estimates = [metrics.ece(confidence[rows], correct[rows]) for rows in resampled(1000, 100, seed=0)]
        missed += int(truth < np.percentile(estimates, 2.5))
    assert held >= 32
    assert missed >= 24


def test_auroc_without_both_kinds_of_answer_is_not_a_number_of_any_sort() -> None:
    confidence, _ = simulated(50, seed=0)
    every = np.ones(50, dtype=bool)
    assert metrics.auroc(confidence, every) is None
    assert metrics.auroc(confidence, ~every) is None
    zeros = np.zeros(50)
    assert metrics.score(confidence, every, zeros, zeros).auroc is None
    assert metrics.bootstrap(confidence, every, zeros, zeros, resamples=20).auroc is None


def test_auroc_interval_leaves_out_resamples_that_do_not_define_it() -> None:
    # One wrong answer in 50 is missing from 36 % of the resamples.
    confidence, correct = np.linspace(0, 1, 50), np.arange(50) != 10
    zeros = np.zeros(50)
    interval = metrics.bootstrap(confidence, correct, zeros, zeros, resamples=200).auroc
    assert interval is not None
    assert 0.5 < interval[0] < interval[1] < 1


def test_paired_difference_sees_a_small_but_steady_gain() -> None:
    rng = np.random.default_rng(0)
    hard = rng.random(500)
    better = hard - 0.01 + 0.01 * rng.random(500)
    mean, low, high = metrics.paired_difference(better, hard)
    assert mean == pytest.approx(float((better - hard).mean()))
    assert low < mean < high < 0
    assert metrics.paired_difference(hard, better) == pytest.approx((-mean, -high, -low))


def test_paired_difference_of_a_thing_with_itself_is_zero() -> None:
    losses = np.random.default_rng(0).random(30)
    assert metrics.paired_difference(losses, losses, resamples=10) == (0, 0, 0)


# What is refused

HALF = np.array([0.5, 0.5])
BOTH = np.array([True, False])


@pytest.mark.parametrize(
    ("confidence", "correct", "code"),
    [
        (np.array([0.5]), BOTH, "data-invalid"),
        (HALF[:, None], BOTH[:, None], "data-invalid"),
        (np.array([]), np.array([], dtype=bool), "pictures-none"),
        (np.array([0.5, np.nan]), BOTH, "data-invalid"),
        (np.array([1.5, 0.5]), BOTH, "data-invalid"),
        (np.array([-0.1, 0.5]), BOTH, "data-invalid"),
        (HALF, np.array([1, 0]), "data-invalid"),
    ],
)
def test_unfit_answers_are_refused_by_every_figure(confidence: Floats, correct: Bools, code: str) -> None:
    for figure in (
        metrics.accuracy,
        metrics.ece,
        metrics.ece_equal_mass,
        metrics.ece_debiased,
        metrics.ece_smooth,
        metrics.brier_top,
        metrics.auroc,
        metrics.aurc,
        metrics.e_aurc,
        metrics.reliability,
        metrics.risk_coverage,
    ):
        with pytest.raises(DataError, check=coded(code)):
            figure(confidence, correct)


def test_unfit_losses_are_refused() -> None:
    with pytest.raises(DataError, check=coded("data-invalid")):
        metrics.score(HALF, BOTH, np.zeros(1), np.zeros(2))
    with pytest.raises(DataError, check=coded("data-invalid")):
        metrics.bootstrap(HALF, BOTH, np.zeros(2), np.array([0, np.inf]))
    with pytest.raises(DataError, check=coded("data-invalid")):
        metrics.paired_difference(np.zeros(2), np.zeros(3))
    with pytest.raises(DataError, check=coded("data-invalid")):
        metrics.paired_difference(np.zeros(0), np.zeros(0))


def test_unfit_settings_are_refused() -> None:
    with pytest.raises(DataError, check=coded("option-invalid")):
        metrics.ece(HALF, BOTH, bins=0)
    with pytest.raises(DataError, check=coded("option-invalid")):
        metrics.brier_even(HALF, BOTH, classes=1)
    for coverage in (0.0, 1.1, float("nan")):
        with pytest.raises(DataError, check=coded("option-invalid")):
            metrics.accuracy_at_coverage(HALF, BOTH, coverage)
    with pytest.raises(DataError, check=coded("option-invalid")):
        metrics.bootstrap(HALF, BOTH, np.zeros(2), np.zeros(2), resamples=0)
    with pytest.raises(DataError, check=coded("option-invalid")):
        metrics.wilson(3, 2)
    with pytest.raises(DataError, check=coded("option-invalid")):
        metrics.wilson(1, 2, level=1)


def test_importing_metrics_leaves_the_slow_libraries_alone() -> None:
    script = "import sys, looktwice.calibration.metrics; print([m for m in ('scipy', 'sklearn') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_scores_and_their_intervals_are_printed_with_three_decimals() -> None:
    confidence, correct = np.array([0.9, 0.8, 1 / 3]), np.array([True, True, True])
    losses = metrics.brier_even_losses(confidence, correct, 3)
    scores = str(metrics.score(confidence, correct, losses, losses))
    assert scores.startswith("accuracy 1.000, ece 0.322, auroc undefined, ")
    assert str(metrics.bootstrap(confidence, correct, losses, losses)).startswith("accuracy 1.000 to 1.000, ece 0.")
