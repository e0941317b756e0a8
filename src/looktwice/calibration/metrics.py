"""Metrics of confidences: figures, curves and intervals, as pure functions of arrays.

In all functions, `confidence` is a float array (n,) in [0, 1] and `correct` a bool array (n,): the claimed probability
that each answer is right, and whether it is. Pictures with equal confidence are ties. Where the order matters (AUROC,
AURC, coverage), the result is the mean over all orders of the ties, so it does not depend on the order of the rows.
docs/metrics.md explains each metric and its limitations.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from looktwice.errors import DataError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Counts = NDArray[np.intp]
Interval = tuple[float, float]

BINS = 15
FLOOR = 1e-12
"""Probabilities are clipped to this value before taking logarithms, so no log loss exceeds −log(1e-12), about 27.6."""

_CELLS = 2000
"""The number of distinct confidences in smooth ECE."""
_BLOCK = 2**16
"""The number of rows of resamples scored at once, small enough to fit in the processor's cache."""


class _Printed:
    """Formats fields with three decimals; `repr` has all digits."""

    def __str__(self) -> str:
        return ", ".join(f"{name} {_printed(value)}" for name, value in vars(self).items())


@dataclass(frozen=True)
class Scores(_Printed):
    """The main metrics for a set of pictures; `auroc` is None if all answers are right or all are wrong."""

    accuracy: float
    ece: float
    auroc: float | None
    aurc: float
    brier: float
    brier_top: float
    nll: float


@dataclass(frozen=True)
class Intervals(_Printed):
    """(low, high) for each metric in `Scores`; `auroc` is None if it is undefined in most resamples."""

    accuracy: Interval
    ece: Interval
    auroc: Interval | None
    aurc: Interval
    brier: Interval
    brier_top: Interval
    nll: Interval


class Difference(NamedTuple):
    """A mean difference and its interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Reliability:
    """Confidence against accuracy in equal-width bins.

    `edges` has bins + 1 entries. The other arrays have one entry per bin: mean `confidence` and `accuracy` (NaN in an
    empty bin), `count`, and the 95 % Wilson interval of the accuracy from `low` to `high` (0 to 1 in an empty bin).
    """

    edges: Floats
    confidence: Floats
    accuracy: Floats
    count: Counts
    low: Floats
    high: Floats


@dataclass(frozen=True)
class RiskCoverage:
    """Coverage and risk if answers with a confidence of at least `threshold` are accepted, one point per distinct
    value.

    `coverage` is the share of accepted pictures and rises to 1 as `threshold` falls; `risk` is the share of wrong
    answers among the accepted answers.
    """

    coverage: Floats
    risk: Floats
    threshold: Floats


def score(confidence: Floats, correct: Bools, brier: Floats, nll: Floats) -> Scores:
    """Compute the main metrics; `brier` and `nll` are the losses of each picture, (n,).

    The losses come from the calibrator's full distribution, or from `brier_even_losses` and `nll_even_losses`.
    """
    confidence, correct = checked(confidence, correct)
    brier, nll = _losses("brier", brier, len(correct)), _losses("nll", nll, len(correct))
    levels = _levels(confidence, correct)
    return Scores(
        accuracy=float(correct.mean()),
        ece=float(_ece(levels, _equal_width(levels, BINS))),
        auroc=_or_none(_auroc(levels)),
        aurc=float(_aurc(levels, _harmonic(len(correct)))),
        brier=float(brier.mean()),
        brier_top=float(_brier_top_losses(confidence, correct).mean()),
        nll=float(nll.mean()),
    )


def accuracy(confidence: Floats, correct: Bools) -> float:
    """The accuracy, in [0, 1]."""
    return float(checked(confidence, correct)[1].mean())


def ece(confidence: Floats, correct: Bools, bins: int = BINS) -> float:
    """Expected calibration error, in [0, 1], over equal-width bins (lo, hi].

    A confidence of zero belongs to the first bin.
    """
    levels = _levels(*checked(confidence, correct))
    return float(_ece(levels, _equal_width(levels, bins)))


def ece_equal_mass(confidence: Floats, correct: Bools, bins: int = BINS) -> float:
    """Adaptive ECE, in [0, 1], over bins with equal numbers of pictures; equal confidences are in the same bin."""
    levels = _levels(*checked(confidence, correct))
    return float(_ece(levels, _equal_mass(levels, bins)))


def ece_debiased(confidence: Floats, correct: Bools, bins: int = BINS) -> float:
    """Debiased root mean square calibration error, in [0, 1], over bins with equal numbers of pictures.

    The variance of the accuracy is subtracted from the squared gap of each bin (Kumar, Liang and Ma, 2019). A
    calibrated confidence thus has an expected mean square of 0 at any sample size; negative values are set to 0.
    """
    levels = _levels(*checked(confidence, correct))
    ends = _equal_mass(levels, bins)
    count, right, claimed = (_sums(sums, ends) for sums in (levels.total, levels.right, levels.value * levels.total))
    enough = count > 1
    count, right, claimed = count[enough], right[enough], claimed[enough]
    squares = ((right - claimed) ** 2 - right * (count - right) / (count - 1)) / count
    return math.sqrt(max(0.0, float(squares.sum()) / levels.pictures))


def ece_classwise(probabilities: Floats, truths: Counts, bins: int = BINS) -> float:
    """Classwise ECE, in [0, 1]: the mean ECE over K classes, from probabilities (n, K) and true labels (n,)."""
    table, truths = np.asarray(probabilities, np.float64), np.asarray(truths)
    if table.ndim != 2 or len(table) != len(truths):
        raise DataError(
            f"probabilities have shape {table.shape} for {len(truths)} true labels; the shape must be "
            "(pictures, classes)"
        )
    return float(np.mean([ece(chance, truths == c, bins) for c, chance in enumerate(table.T)]))


def ece_smooth(confidence: Floats, correct: Bools) -> float:
    """Smooth ECE, in [0, 1], without bins (Błasiok and Nakkiran, 2023).

    The calibration gaps are smoothed over the confidences with a Gaussian kernel, which is reflected at 0 and 1 and has
    a width equal to the error itself. Confidences are rounded to 1/2000.
    """
    from scipy.ndimage import gaussian_filter1d
    from scipy.optimize import brentq

    confidence, correct = checked(confidence, correct)
    cell = np.minimum((confidence * _CELLS).astype(np.intp), _CELLS - 1)
    gaps = np.bincount(cell, correct - confidence, _CELLS) / len(correct)

    def excess(width: float) -> float:
        return float(np.abs(gaussian_filter1d(gaps, width * _CELLS, mode="reflect")).sum()) - width

    return float(brentq(excess, 1 / _CELLS, 1.001, xtol=1e-6)) if excess(1 / _CELLS) > 0 else 0.0


def brier_top(confidence: Floats, correct: Bools) -> float:
    """Top-label Brier score, in [0, 1]: the mean of (confidence − correct)²."""
    return float(_brier_top_losses(*checked(confidence, correct)).mean())


def brier_even(confidence: Floats, correct: Bools, classes: int) -> float:
    """Multi-class Brier score, in [0, 2], with the remaining probability spread evenly over the other classes."""
    return float(brier_even_losses(confidence, correct, classes).mean())


def brier_even_losses(confidence: Floats, correct: Bools, classes: int) -> Floats:
    """Σ_c (p_c − y_c)² of each picture, (n,), in [0, 2], with the remaining probability spread evenly."""
    confidence, correct = checked(confidence, correct)
    rest = _rest(confidence, classes)
    right = (1 - confidence) ** 2 + (classes - 1) * rest**2
    wrong = confidence**2 + (1 - rest) ** 2 + (classes - 2) * rest**2
    return np.where(correct, right, wrong)


def nll_even(confidence: Floats, correct: Bools, classes: int) -> float:
    """Mean log loss, from 0 to 27.6, with the remaining probability spread evenly over the other classes."""
    return float(nll_even_losses(confidence, correct, classes).mean())


def nll_even_losses(confidence: Floats, correct: Bools, classes: int) -> Floats:
    """Log loss of each picture, (n,), from 0 to 27.6, with the remaining probability spread evenly.

    Probabilities are clipped at 1e-12, so that one wrong answer with confidence 1 does not make the mean infinite.
    """
    confidence, correct = checked(confidence, correct)
    truth = np.where(correct, confidence, _rest(confidence, classes))
    return np.abs(np.log(np.maximum(truth, FLOOR)))


def auroc(confidence: Floats, correct: Bools) -> float | None:
    """The probability, in [0, 1], that a right answer has a higher confidence than a wrong one; ties count one half.

    It is 0.5 for a constant confidence, and None if all answers are right or all are wrong.
    """
    return _or_none(_auroc(_levels(*checked(confidence, correct))))


def aurc(confidence: Floats, correct: Bools) -> float:
    """Area under the risk–coverage curve, in [0, 1]: the share of wrong answers among the i most confident ones,
    averaged over i = 1 … n.

    Ties are averaged over all their orders, so the result for a constant confidence is the error rate.
    """
    return float(_aurc(_levels(*checked(confidence, correct)), _harmonic(len(confidence))))


def e_aurc(confidence: Floats, correct: Bools) -> float:
    """Excess AURC, in [0, 1]: the AURC minus the AURC of an ideal ranking of the same answers."""
    return aurc(confidence, correct) - aurc(np.asarray(correct, np.float64), correct)


def accuracy_at_coverage(confidence: Floats, correct: Bools, coverage: float) -> float:
    """The accuracy, in [0, 1], of the ⌈coverage · n⌉ most confident answers; `coverage` is in (0, 1].

    Ties at the cutoff are averaged over all orders.
    """
    levels = _levels(*checked(confidence, correct))
    if not 0 < coverage <= 1:
        raise DataError(
            f"coverage is {coverage}; give a share of the pictures, above 0 and at most 1", code="option-invalid"
        )
    # In floating point, 0.07 · 100 is slightly more than 7, and must not be rounded up to 8.
    kept = max(1, math.ceil(coverage * levels.pictures - 1e-9))
    right, total = levels.right[::-1], levels.total[::-1]
    taken = np.clip(kept - (np.cumsum(total) - total), 0, total)
    return float(taken @ (right / total)) / kept


def reliability(confidence: Floats, correct: Bools, bins: int = BINS) -> Reliability:
    """Confidence against accuracy in equal-width bins (lo, hi], with 95 % Wilson intervals."""
    levels = _levels(*checked(confidence, correct))
    ends = _equal_width(levels, bins)
    count, right, claimed = (_sums(sums, ends) for sums in (levels.total, levels.right, levels.value * levels.total))
    filled = np.where(count > 0, count, np.nan)
    low, high = wilson(right, count)
    return Reliability(_edges(bins), claimed / filled, right / filled, count.astype(np.intp), low, high)


def risk_coverage(confidence: Floats, correct: Bools) -> RiskCoverage:
    """Risk and coverage at each distinct threshold, in descending order of threshold."""
    levels = _levels(*checked(confidence, correct))
    kept, wrong = np.cumsum(levels.total[::-1]), np.cumsum(levels.wrong[::-1])
    return RiskCoverage(kept / levels.pictures, wrong / kept, levels.value[::-1].copy())


def draws(pictures: int, resamples: int, seed: int) -> Iterator[Counts]:
    """Yield blocks (b, n) of bootstrap indices: `resamples` rows of `pictures` indices in total.

    A larger number of resamples starts with the same rows as a smaller number. Results for the same pictures and seed
    use the same draws, which allows paired comparisons.
    """
    if resamples < 1:
        raise DataError(f"resamples is {resamples}; give at least 1, for example 1000", code="option-invalid")
    rng = np.random.default_rng(seed)
    block = max(1, _BLOCK // pictures)
    for start in range(0, resamples, block):
        yield rng.integers(pictures, size=(min(block, resamples - start), pictures))


def bootstrap(
    confidence: Floats, correct: Bools, brier: Floats, nll: Floats, *, resamples: int = 1000, seed: int = 0
) -> Intervals:
    """95 % bootstrap intervals of all metrics in `score`, from resampling the pictures with replacement.

    These are percentile intervals, except for ECE: resampling adds noise, which always increases the ECE, so its
    percentiles are too high, and its interval is mirrored at the estimate (basic bootstrap). Resamples with only right
    or only wrong answers have no AUROC and are ignored in its interval. If these are more than half of the resamples,
    AUROC has no interval. Memory use depends on the number of pictures, not on the number of resamples.
    """
    confidence, correct = checked(confidence, correct)
    brier, nll = _losses("brier", brier, len(correct)), _losses("nll", nll, len(correct))
    value, place = np.unique(confidence, return_inverse=True)
    levels = len(value)
    cell = place + levels * correct.astype(np.intp)  # first wrong answers by level, then right ones
    losses = (brier, _brier_top_losses(confidence, correct), nll)
    harmonic, figures = _harmonic(len(correct)), list[Floats]()
    for rows in draws(len(correct), resamples, seed):
        tables = np.arange(len(rows))[:, None] * (2 * levels)
        counts = np.bincount((cell[rows] + tables).ravel(), minlength=2 * levels * len(rows))
        wrong, right = np.moveaxis(counts.reshape(len(rows), 2, levels), 1, 0)
        drawn = _Levels(value, right, wrong, len(correct))
        ranks = (_ece(drawn, _equal_width(drawn, BINS)), _auroc(drawn), _aurc(drawn, harmonic))
        figures.append(np.stack([correct[rows].mean(axis=1), *ranks, *(loss[rows].mean(axis=1) for loss in losses)]))
    accuracies, eces, aurocs, aurcs, *means = np.concatenate(figures, axis=1)
    off, (low, high) = ece(confidence, correct), _middle(eces)
    known = aurocs[~np.isnan(aurocs)]
    return Intervals(
        accuracy=_middle(accuracies),
        ece=(max(0.0, min(off, 2 * off - high)), min(1.0, max(off, 2 * off - low))),
        auroc=_middle(known) if 2 * len(known) >= len(aurocs) else None,
        aurc=_middle(aurcs),
        brier=_middle(means[0]),
        brier_top=_middle(means[1]),
        nll=_middle(means[2]),
    )


def paired_difference(losses_a: Floats, losses_b: Floats, resamples: int = 1000, seed: int = 0) -> Difference:
    """Mean of losses_a − losses_b over the same pictures, with its 95 % percentile bootstrap interval.

    A negative mean favours a. If the interval excludes zero, the difference is unlikely to be due to the sampling of
    pictures.
    """
    a = _losses("losses_a", losses_a, len(losses_a))
    gaps = a - _losses("losses_b", losses_b, len(a))
    low, high = _middle(np.concatenate([gaps[rows].mean(axis=1) for rows in draws(len(gaps), resamples, seed)]))
    return Difference(float(gaps.mean()), low, high)


def wilson(k: ArrayLike, n: ArrayLike, level: float = 0.95) -> tuple[Floats, Floats]:
    """Lower and upper bounds of Wilson's interval for a share observed as k of n, elementwise; 0 and 1 where n is 0.

    Averaged over shares, its coverage is about `level`.
    """
    from scipy.special import ndtri

    k, n = np.asarray(k, dtype=np.float64), np.asarray(n, dtype=np.float64)
    if not np.all((k >= 0) & (k <= n) & np.isfinite(n)):
        raise DataError(f"k = {k} of n = {n} is not a share; give counts with 0 ≤ k ≤ n", code="option-invalid")
    if not 0 < level < 1:
        raise DataError(f"level is {level}; give a number between 0 and 1, such as 0.95", code="option-invalid")
    z = -ndtri((1 - level) / 2)
    middle = (k + z**2 / 2) / (n + z**2)
    half = z * np.sqrt(k * (n - k) / np.maximum(n, 1) + z**2 / 4) / (n + z**2)
    low, high = np.clip(middle - half, 0, 1), np.clip(middle + half, 0, 1)
    return np.where(k == 0, 0.0, low), np.where(k == n, 1.0, high)  # the bound is exact where k is 0 or n


def checked(confidence: Floats, correct: Bools) -> tuple[Floats, Bools]:
    """Convert confidences and correctness to arrays and validate them."""
    confidence, correct = np.asarray(confidence, dtype=np.float64), np.asarray(correct)
    if confidence.ndim != 1 or confidence.shape != correct.shape:
        shapes = f"confidence has shape {confidence.shape} and correct {correct.shape}"
        raise DataError(f"{shapes}; both must have shape (n,), one entry per picture")
    if not len(confidence):
        raise DataError("there are no pictures to score; give at least one", code="pictures-none")
    if correct.dtype != np.bool_:
        raise DataError(f"correct has type {correct.dtype}; give booleans, such as answers == truths")
    bad = np.flatnonzero(~((confidence >= 0) & (confidence <= 1)))
    if len(bad):
        raise DataError(f"confidence {confidence[bad[0]]} in row {bad[0]} is not a number from 0 to 1; correct it")
    return confidence, correct


def _losses(name: str, losses: Floats, pictures: int) -> Floats:
    losses = np.asarray(losses, dtype=np.float64)
    if losses.shape != (pictures,) or not pictures:
        shape = f"{name} has shape {losses.shape} for {pictures} pictures"
        raise DataError(f"{shape}; give one loss per picture, and at least one picture")
    bad = np.flatnonzero(~np.isfinite(losses))
    if len(bad):
        raise DataError(f"{name} {losses[bad[0]]} in row {bad[0]} is not a finite number; correct it")
    return losses


def _rest(confidence: Floats, classes: int) -> Floats:
    """The probability of each class other than the answer."""
    if classes < 2:
        raise DataError(f"{classes} classes are too few; give at least 2", code="option-invalid")
    return (1 - confidence) / (classes - 1)


def _brier_top_losses(confidence: Floats, correct: Bools) -> Floats:
    return (confidence - correct) ** 2


@dataclass(frozen=True)
class _Levels:
    """Counts of answers at each distinct confidence in ascending order, sufficient for binning and ranking.

    `right` and `wrong` have shape (levels,), or (b, levels) for b resamples, whose metrics then have shape (b,).
    """

    value: Floats
    right: Counts
    wrong: Counts
    pictures: int

    @property
    def total(self) -> Counts:
        return self.right + self.wrong


def _levels(confidence: Floats, correct: Bools) -> _Levels:
    value, place = np.unique(confidence, return_inverse=True)
    right, total = (np.bincount(levels, minlength=len(value)) for levels in (place[correct], place))
    return _Levels(value, right, total - right, len(correct))


def _edges(bins: int) -> Floats:
    if bins < 1:
        raise DataError(f"{bins} bins are too few; give at least 1", code="option-invalid")
    # k/bins is the float nearest to each edge, so a share of votes such as 9/15 lies exactly on its edge, which
    # linspace does not guarantee.
    return np.arange(bins + 1) / bins


def _equal_width(levels: _Levels, bins: int) -> Counts:
    """The index of the level after the last one in each bin (lo, hi]."""
    return np.searchsorted(levels.value, _edges(bins)[1:], side="right")


def _equal_mass(levels: _Levels, bins: int) -> Counts:
    """The index of the level after the last one in each bin; bins have equal numbers of pictures except for ties."""
    pictures_before = np.ceil(_edges(bins)[1:] * levels.pictures - 1e-9)
    return np.searchsorted(np.cumsum(levels.total), pictures_before) + 1


def _sums(amount: Counts | Floats, ends: Counts) -> Floats:
    """The sum of the amounts of all levels in each bin."""
    starts = np.concatenate([[0], ends[:-1]])
    filled = ends > starts
    sums = np.zeros((*amount.shape[:-1], len(ends)))
    sums[..., filled] = np.add.reduceat(amount, starts[filled], axis=-1)
    return sums


def _ece(levels: _Levels, ends: Counts) -> Floats:
    gaps = _sums(levels.right - levels.value * levels.total, ends)
    return np.abs(gaps).sum(axis=-1) / levels.pictures


def _auroc(levels: _Levels) -> Floats:
    """AUROC; NaN if all answers are right or all are wrong."""
    right, wrong = levels.right.sum(axis=-1), levels.wrong.sum(axis=-1)
    pairs = np.where(right * wrong, right * wrong, np.nan)
    # Right answers above a wrong one count 1, those at the same level ½. Doubled, all counts are exact integers.
    above = right[..., None] - np.cumsum(levels.right, axis=-1)
    return (levels.wrong * (2 * above + levels.right)).sum(axis=-1) / (2 * pairs)


def _aurc(levels: _Levels, harmonic: Floats) -> Floats:
    # The area is a sum over wrong answers. A wrong answer at rank i adds 1/i, 1/(i + 1) … 1/n to the risks at
    # i … n, in total H(n) − H(i − 1) with the harmonic numbers H. The mean of this over the ranks N + 1 … N + m of
    # a level is 1 + H(n) − H(N) − (N + m)/m · (H(N + m) − H(N)).
    total = levels.total
    through = levels.pictures - np.cumsum(total, axis=-1) + total
    start, end = harmonic[through - total], harmonic[through]
    cost = 1 + harmonic[-1] - start - through / np.maximum(total, 1) * (end - start)
    return (levels.wrong * cost).sum(axis=-1) / levels.pictures


def _printed(value: float | Interval | None) -> str:
    if value is None:
        return "undefined"
    return f"{value:.3f}" if isinstance(value, float) else " to ".join(f"{end:.3f}" for end in value)


def _or_none(value: Floats) -> float | None:
    return None if np.isnan(value) else float(value)


def _harmonic(pictures: int) -> Floats:
    """The harmonic numbers H(0) … H(n), where H(k) = Σ 1/i for i = 1 … k."""
    return np.concatenate([[0.0], np.cumsum(1 / np.arange(1, pictures + 1))])


def _middle(values: Floats) -> Interval:
    """The middle 95 % of the values."""
    low, high = np.percentile(values, [2.5, 97.5])
    return float(low), float(high)
