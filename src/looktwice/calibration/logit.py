"""A conditional logit over the returned labels, fitted by penalised maximum likelihood.

Votes and true labels are converted to `Patterns`: the options of each picture, their features, and the true option.
Pictures with the same pattern of agreement share one entry, and only returned labels are options, so the size of the
arrays does not depend on the number of classes. The order of the parameters is always w₀, w_1 … w_S, γ, the weights of
scores, b₀, b₁.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration.evidence import Floats, Places

SHRINKAGE = 10.0
"""The strength of the penalty that shrinks the view weights towards their mean: with few pictures the weights are
nearly equal, but with many they differ."""
PRIOR_PICTURES = 100.0
"""The number of pseudo-pictures in the prior of every jury; their labels follow the vote shares (`vote_shares`)."""
ODDS = 2.5
"""The mean of the normal prior, with standard deviation 1, on the log odds that a label returned by all is right."""
FLOOR = 0.01
"""A small ridge penalty on every parameter, which keeps undetermined parameters finite."""
LEAST_FALL = 1e-12
"""The expected decrease of the loss below which the fit has converged."""
AT_BOUND = 1e-9
"""A parameter within this distance of a bound is treated as lying on the bound."""
UNKNOWN = -1
"""Marks a picture with an unknown true label, for which only some wrong labels are known."""
FOLDS = 5


@dataclass(frozen=True, eq=False)
class Prior:
    """A normal prior on the parameters."""

    precision: Floats
    """(p, p): the inverse covariance; rank-deficient if the prior leaves some parameters free."""
    mean: Floats
    """(p,)"""


@dataclass(frozen=True, eq=False)
class Patterns:
    """The distinct patterns of agreement among base and views, and the true option of each picture.

    A pattern has one option for each returned label and one for all other classes, unless every class was returned.
    """

    options: Floats
    """(r, S + 4): the features of each option: which answers return it and the log of their number; for the other
    classes, 1 and −log((S + 1)/m)."""
    size: Floats
    """(r,): log of the fraction of the K − 1 classes that the option "other classes" stands for; 0 for labels."""
    starts: Places
    """(p,): the index of the first option of each pattern."""
    owner: Places
    """(r,): the pattern of each option."""
    truth: Places
    """(n,): the true option of each picture, UNKNOWN if only some labels are known to be wrong."""
    spread: Floats
    """(n,): log of the number of other classes if the true label is one of them, otherwise 0."""
    views: int
    """S, the number of views with a weight."""
    ridge: tuple[float, ...] = ()
    """The ridge penalties on the weights of scores, which come before b₀."""
    none: tuple[tuple[float, float], tuple[float, float]] = ((-np.inf, np.inf), (-np.inf, np.inf))
    """The bounds of b₀ and b₁."""
    doubtful: Places = field(default_factory=lambda: np.zeros(0, np.intp))
    """(m,): the pictures with an unknown true label, repeated for each possible option."""
    possible: Places = field(default_factory=lambda: np.zeros(0, np.intp))
    """(m,): the possible option that belongs to each entry of `doubtful`."""
    left: Floats = field(default_factory=lambda: np.zeros(0))
    """(m,): log of the fraction of the option that may be true; below 0 if some of the other classes are excluded."""
    prior: Prior | None = None
    prior_pictures: float = 0.0
    """The number of pseudo-pictures whose labels follow the vote shares."""

    def bounds(self) -> tuple[Floats, Floats]:
        """(p,) twice: the lower and upper bound of each parameter; the weights of votes and γ are at least 0."""
        positive = self.options.shape[1] - len(self.ridge) - 2
        limits = [*[(0.0, np.inf)] * positive, *[(-np.inf, np.inf)] * len(self.ridge), *self.none]
        low, high = np.array(limits).T
        return low, high

    def penalty(self, shrinkage: float) -> Floats:
        """(p, p): the Hessian of ½·shrinkage·Σ_s (w_s − mean w)² plus the ridge penalties and the prior."""
        penalty = FLOOR * np.eye(self.options.shape[1])
        if self.views:
            centred = np.eye(self.views) - 1.0 / self.views
            penalty[1 : 1 + self.views, 1 : 1 + self.views] += shrinkage * centred
        votes = len(penalty) - len(self.ridge) - 2
        ridge = np.diag([*[0.0] * votes, *self.ridge, 0.0, 0.0])
        return penalty + ridge + (self.prior.precision if self.prior else 0.0)

    def scores(self, theta: Floats) -> Floats:
        """(r,): the score of each option."""
        # BLAS would be slower: waking its threads takes longer than the product itself.
        return np.einsum("rp,p->r", self.options, theta) + self.size

    def under(self, columns: Sequence[int], ridge: tuple[float, ...]) -> Patterns:
        """Keep only a subset of the parameters."""
        return replace(self, options=self.options[:, list(columns)], ridge=ridge)

    def hits(self, rows: NDArray[np.bool_] | None = None, theta: Floats | None = None) -> Floats:
        """(r,): how often each option is true among the pictures in `rows`, by default all.

        A picture with an unknown true label adds to each possible option the option's probability under `theta`;
        without `theta`, the picture is ignored.
        """
        truth = self.truth if rows is None else self.truth[rows]
        hits = np.bincount(truth[truth != UNKNOWN], minlength=len(self.options)).astype(np.float64)
        if theta is not None and len(self.possible):
            part = slice(None) if rows is None else rows[self.doubtful]
            hits += np.bincount(self.possible[part], self.shares(theta)[part], len(hits))
        return hits

    def pattern_of_picture(self) -> Places:
        """(n,): the pattern of each picture."""
        option = np.where(self.truth == UNKNOWN, 0, self.truth)
        option[self.doubtful] = self.possible
        return self.owner[option]

    def shares(self, theta: Floats) -> Floats:
        """(m,): the probability of each possible option of the doubtful pictures, given that one of them is true."""
        scores = self.scores(theta)[self.possible] + self.left
        return np.exp(scores - self._log_sums(scores)[self.doubtful])

    def log_possible(self, scores: Floats) -> Floats:
        """(n,): log Σ exp over the scores of the possible options; a single score if the true label is known."""
        known = self.truth != UNKNOWN
        sums: Floats = np.where(known, scores[np.where(known, self.truth, 0)], 0.0)
        return sums if known.all() else np.where(known, sums, self._log_sums(scores[self.possible] + self.left))

    def _log_sums(self, scores: Floats) -> Floats:
        """(n,): log Σ exp over the options of each doubtful picture, −∞ for the others."""
        top = np.full(len(self.truth), -np.inf)
        np.maximum.at(top, self.doubtful, scores)
        total = np.bincount(self.doubtful, np.exp(scores - top[self.doubtful]), len(top))
        with np.errstate(divide="ignore"):
            sums: Floats = top + np.log(total)
        return sums


def folds(pictures: int, parts: int = FOLDS, seed: int = 0) -> Places:
    """(n,): the fold of each picture, from 0; fold sizes differ by at most one."""
    return np.random.default_rng(seed).permutation(pictures) % min(parts, pictures)


def pays(gain: Floats) -> bool:
    """Whether the mean gain on held-out pictures exceeds its standard error."""
    return bool(gain.mean() > gain.std() / np.sqrt(len(gain)))


def held_out_losses(patterns: Patterns, fold: Places, shrinkage: float, start: Floats | None = None) -> Floats:
    """(n,): the log loss of each picture for a jury fitted on the other folds."""
    held = np.zeros(len(fold))
    for rows, theta in held_out_fits(patterns, fold, shrinkage, start):
        held[rows] = losses(patterns, theta)[rows]
    return held


def held_out_fits(
    patterns: Patterns, fold: Places, shrinkage: float, start: Floats | None = None
) -> Iterator[tuple[NDArray[np.bool_], Floats]]:
    """Yield the pictures of each fold, and the parameters fitted on the other folds."""
    for part in range(int(fold.max()) + 1):
        yield fold == part, descend(patterns, shrinkage, fold != part, start)


def losses(patterns: Patterns, theta: Floats) -> Floats:
    """(n,): the log loss of each picture over all classes."""
    scores = patterns.scores(theta)
    total = _log_totals(patterns, scores)[patterns.pattern_of_picture()]
    return total - patterns.log_possible(scores) + patterns.spread


def briers(patterns: Patterns, theta: Floats, classes: int) -> Floats:
    """(n,): the multi-class Brier score, in [0, 2]; its expected value if the true label is unknown."""
    unnamed = patterns.options[:, -2] == 1.0
    share = np.where(unnamed, np.rint(np.exp(patterns.size) * (classes - 1)), 1.0)
    chance = chances(patterns, theta)
    squares = np.add.reduceat(chance**2 / share, patterns.starts)
    true = (chance / share)[np.where(patterns.truth == UNKNOWN, 0, patterns.truth)]
    if len(patterns.possible):
        left = patterns.shares(theta) * (chance / share)[patterns.possible]
        expected = np.bincount(patterns.doubtful, left, len(true))
        true = np.where(patterns.truth == UNKNOWN, expected, true)
    return squares[patterns.pattern_of_picture()] + 1.0 - 2.0 * true


def chances(patterns: Patterns, theta: Floats) -> Floats:
    """(r,): the probability of each option within its pattern."""
    scores = patterns.scores(theta)
    return np.exp(scores - _log_totals(patterns, scores)[patterns.owner])


def descend(
    patterns: Patterns, shrinkage: float, rows: NDArray[np.bool_] | None = None, start: Floats | None = None
) -> Floats:
    """(p,): the penalised maximum likelihood estimate from the pictures in `rows`, by default all, starting at `start`.

    If all true labels are known, the problem is convex. A picture with an unknown true label contributes the log of a
    sum of probabilities, which is not concave. The likelihood is then maximised by EM, starting from the fit to the
    known labels: each step weights the options of such pictures by their probabilities and solves the convex problem
    again. The likelihood never decreases, and the result is deterministic.
    """
    theta = np.zeros(patterns.options.shape[1]) if start is None else start
    theta = PenalisedLoss.from_counts(patterns, shrinkage, patterns.hits(rows)).minimise(theta)
    for _ in range(200 if len(patterns.possible) else 0):
        before, theta = (
            theta,
            PenalisedLoss.from_counts(patterns, shrinkage, patterns.hits(rows, theta)).minimise(theta),
        )
        if np.abs(theta - before).max() < 1e-6:
            break
    return theta


@dataclass(frozen=True, eq=False)
class PenalisedLoss:
    """The penalised negative log-likelihood of option counts, a convex function."""

    patterns: Patterns
    hits: Floats
    mass: Floats
    penalty: Floats
    pull: Floats
    """(p,): the negative gradient of the penalty at 0, which is nonzero with a prior."""

    @classmethod
    def from_counts(cls, patterns: Patterns, shrinkage: float, hits: Floats) -> PenalisedLoss:
        """Add pseudo-pictures to the counts: those of the prior, and one that is spread evenly over the options."""
        mass = np.add.reduceat(hits, patterns.starts)
        sizes = np.bincount(patterns.owner)
        extra = mass / max(mass.sum(), 1.0)
        smooth = hits + (extra / sizes)[patterns.owner]
        if patterns.prior_pictures:
            pictures = np.bincount(patterns.pattern_of_picture(), minlength=len(sizes))
            pseudo = patterns.prior_pictures * pictures / pictures.sum()
            smooth, extra = smooth + pseudo[patterns.owner] * vote_shares(patterns, hits), extra + pseudo
        prior, pull = patterns.prior, np.zeros(patterns.options.shape[1])
        pull = prior.precision @ prior.mean if prior else pull
        return cls(patterns, smooth, mass + extra, patterns.penalty(shrinkage), pull)

    def at(self, theta: Floats) -> tuple[float, Floats]:
        """The loss and its gradient."""
        scores = self.patterns.scores(theta)
        total = _log_totals(self.patterns, scores)
        weight = np.exp(scores - total[self.patterns.owner]) * self.mass[self.patterns.owner]
        drag = self.penalty @ theta
        value = float(self.mass @ total - self.hits @ scores + theta @ (drag / 2 - self.pull))
        return value, np.einsum("rp,r->p", self.patterns.options, weight - self.hits) + drag - self.pull

    def curvature(self, theta: Floats) -> Floats:
        """(p, p): the Hessian of the loss, which is much slower to compute than the gradient."""
        options, chance = self.patterns.options, chances(self.patterns, theta)
        mean = np.add.reduceat(options * chance[:, None], self.patterns.starts)
        return _gram(options, chance * self.mass[self.patterns.owner]) - _gram(mean, self.mass) + self.penalty

    def minimise(self, start: Floats) -> Floats:
        """(p,): the minimum of the loss within the bounds, computed by projected Newton steps.

        The Hessian is updated only after a step that reduces the loss little.
        """
        low, high = self.patterns.bounds()
        theta = np.clip(start, low, high)
        (value, gradient), curvature, before = self.at(theta), self.curvature(theta), np.inf
        for _ in range(100):
            # A parameter on its bound stays there if the descent direction points outward; the others move together.
            pushed = ((theta - low < AT_BOUND) & (gradient > 0.0)) | ((high - theta < AT_BOUND) & (gradient < 0.0))
            free, step = ~pushed, np.zeros(len(theta))
            step[free] = np.linalg.solve(curvature[np.ix_(free, free)], gradient[free])
            fall = float(gradient @ step)
            if fall > before / 8:
                curvature, before = self.curvature(theta), np.inf
                continue
            size, point = 1.0, np.clip(theta - step, low, high)
            if fall < LEAST_FALL:
                return point
            reached = self.at(point)
            # Below 1e-7, the decrease is smaller than the rounding error of the loss.
            while fall > 1e-7 and reached[0] > value - 1e-4 * float(gradient @ (theta - point)) and size > 1e-9:
                size /= 2
                point = np.clip(theta - size * step, low, high)
                reached = self.at(point)
            theta, (value, gradient), before = point, reached, fall
        return theta


def _gram(rows: Floats, weight: Floats) -> Floats:
    """Σ_r weight_r · row_r · row_rᵀ, computed in blocks small enough that BLAS uses one thread."""
    width = rows.shape[1]
    block = max(1, 250_000 // width**2)
    gram = np.zeros((width, width))
    for i in range(0, len(rows), block):
        gram += (rows[i : i + block] * weight[i : i + block, None]).T @ rows[i : i + block]
    return gram


def posterior_covariance(patterns: Patterns, shrinkage: float, theta: Floats) -> Floats:
    """(p, p): the inverse of the observed information, corrected for unknown true labels by Louis' formula."""
    curvature = PenalisedLoss.from_counts(patterns, shrinkage, patterns.hits(theta=theta)).curvature(theta)
    if len(patterns.possible):
        options, share = patterns.options[patterns.possible], patterns.shares(theta)
        mean = np.zeros((len(patterns.truth), options.shape[1]))
        np.add.at(mean, patterns.doubtful, options * share[:, None])
        curvature = curvature - _gram(options, share) + _gram(mean, np.ones(len(mean)))
    inverse = np.linalg.inv(curvature)
    return (inverse + inverse.T) / 2


def _log_totals(patterns: Patterns, scores: Floats) -> Floats:
    """(p,): log Σ exp of the scores of each pattern."""
    top = np.maximum.reduceat(scores, patterns.starts)
    total: Floats = top + np.log(np.add.reduceat(np.exp(scores - top[patterns.owner]), patterns.starts))
    return total


def vote_shares(patterns: Patterns, hits: Floats) -> Floats:
    """(r,): the probability of each option if P(y = c) ∝ (n_c + ½)^g, where n_c answers return c.

    The power g ≥ 0 is determined by the log odds of a label that all S + 1 answers return, which maximise the
    likelihood of the counts `hits` times a normal prior.
    """
    from scipy.optimize import minimize_scalar

    votes = patterns.options[:, : 1 + patterns.views].sum(axis=1)
    log_share, most, log_others = np.log(2.0 * votes + 1.0), np.log(2.0 * patterns.views + 3.0), patterns.none[0][1]
    others = patterns.size + np.where(patterns.options[:, -2] == 1.0, log_others, 0.0)
    mass = np.add.reduceat(hits, patterns.starts)

    def scores(odds: float) -> Floats:
        return others + (odds + log_others) / most * log_share

    def loss(odds: float) -> float:
        likelihood = hits @ scores(odds) - mass @ _log_totals(patterns, scores(odds))
        return float((odds - ODDS) ** 2 / 2 - likelihood)

    odds = minimize_scalar(loss, bounds=(-log_others, 10.0), method="bounded", options={"xatol": 1e-8}).x
    return np.exp(scores(odds) - _log_totals(patterns, scores(odds))[patterns.owner])
