"""The noise of views in a model's latent space: measurement, aggregation and comparison of arrays.

Letters follow the paper: z = h(x) are the features before the final linear layer, A and B the most and second most
probable label of the picture itself, w = w_A − w_B, and a view T(x) shifts the margin wᵀz + b by wᵀ(h(T(x)) − h(x)).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration.evidence import Counts, Floats
from looktwice.calibration.shares import PAPER_A, Cumulative, search
from looktwice.errors import DataError

FURTHEST = 0.025
"""The maximum share of the noise beyond either end of the grid."""

_ONE = 2**32


_RIGHT = [float(f"{10 ** (i / 100):.6g}") for i in range(-400, 401)]
GRID: Floats = np.array([-x for x in reversed(_RIGHT)] + [0.0] + _RIGHT)
"""The points at which every cumulative is evaluated: 0, and 100 per decade from 0.0001 to 10,000 on both sides.

The grid is the same for all models, views and pictures, so cumulatives can be added up in any order and on any machine.
"""


# One picture --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Head:
    """The final linear layer of an open model: logits = z·W + b."""

    W: Floats
    """(D, K): a column for each label."""
    b: Floats
    """(K,)."""

    def logits(self, z: Floats) -> Floats:
        """(…, K): the logits of features (…, D)."""
        return z @ self.W + self.b


class Reading(NamedTuple):
    """The outputs of an open model for one picture and its views."""

    label: int
    """A."""
    margin: float
    """wᵀz + b, 0 or more; σ of it is the model's own probability of A against B."""
    labels: NDArray[np.intp]
    """(S,): the label of each view."""
    noise: Floats
    """(S,): how far each view shifts the margin between A and B, wᵀ(h(T(x)) − h(x))."""


def read(head: Head, base: Floats, views: Floats) -> Reading:
    """Compute noise from the features of the picture itself, `base` (D,), and of its views, `views` (S, D)."""
    logits = head.logits(base)
    a = int(logits.argmax())
    logits[a] = -np.inf
    b = int(logits.argmax())
    w = head.W[:, a] - head.W[:, b]
    margin = base @ w + head.b[a] - head.b[b]
    return Reading(a, float(margin), head.logits(views).argmax(axis=1), (views - base) @ w)


# Many pictures ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Cumulatives:
    """The exact cumulatives of many pictures on the grid, in memory that does not grow with their number.

    The cumulative of a picture with S samples is k/S at each point, so counts of pictures by point and k are lossless.
    Sums of integers do not depend on their order.
    """

    counts: Counts
    """(len(GRID), S + 1)."""

    @classmethod
    def count(cls, noise: Floats) -> Cumulatives:
        """Compute from samples (n, S), one row per picture."""
        if not np.isfinite(noise).all():
            raise DataError("the noise of a picture is not finite; the model's features for it are invalid")
        counts = np.zeros((len(GRID), noise.shape[1] + 1), np.int64)
        for row in np.sort(noise, axis=1):
            counts[np.arange(len(GRID)), np.searchsorted(row, GRID, side="right")] += 1
        return cls(counts)

    def __add__(self, other: Cumulatives) -> Cumulatives:
        if self.draws != other.draws:
            raise DataError(f"noise of {self.draws} and of {other.draws} draws per picture cannot be combined")
        return Cumulatives(self.counts + other.counts)

    @property
    def draws(self) -> int:
        """S, the number of samples per picture."""
        return self.counts.shape[1] - 1

    @property
    def pictures(self) -> int:
        return int(self.counts[0].sum())

    def mean(self) -> Floats:
        """(len(GRID),): the mean cumulative, F_n."""
        total = self.counts @ np.arange(self.draws + 1)
        return np.asarray(total / (self.pictures * self.draws), np.float64)

    def quantile(self, level: float) -> Floats:
        """(len(GRID),): the pointwise quantile over the pictures, interpolated linearly between two pictures."""
        rank = level * (self.pictures - 1)
        reached = self.counts.cumsum(axis=1)
        below, above = ((reached <= int(r)).sum(axis=1) for r in (np.floor(rank), np.ceil(rank)))
        return (below + (rank - np.floor(rank)) * (above - below)) / self.draws


@dataclass(frozen=True)
class Normal:
    """The Gaussian closest to a cumulative."""

    a: float
    ks: float
    """sup_x |F(x) − Φ(x/a)|."""


@dataclass(frozen=True)
class Shape:
    """The shape of noise; for a Gaussian around 0, the fields are 0, any, 0, 0, 1 and 1."""

    mean: float
    deviation: float
    skewness: float
    """Positive if the right tail is longer."""
    kurtosis: float
    """Positive if the tails are heavier than those of a Gaussian with the same standard deviation."""
    left: float
    """The distance of the lowest 1 % from the median, relative to a Gaussian with the same quartiles."""
    right: float
    """The distance of the highest 1 % from the median, relative to the same Gaussian."""


@dataclass(frozen=True)
class Noise:
    """The distribution of margin shifts by views of one kind, over many pictures of an open model."""

    cumulative: Cumulative
    """F_n, the mean over the pictures."""
    low: tuple[float, ...]
    """The 2.5 % quantile over the pictures, at the points of F_n."""
    high: tuple[float, ...]
    """The 97.5 % quantile."""
    var: float
    """The paper's Var: the maximum width of the band from 2.5 % to 97.5 %."""
    normal: Normal
    """The closest Φ(x/a) for any a; its `ks` is the paper's KS."""
    paper: Normal
    """The closest Φ(x/a) for a on the paper's grid."""
    shape: Shape


def describe(cumulatives: Cumulatives) -> Noise:
    """Var, KS, shape and F_n of the noise of some pictures."""
    if cumulatives.pictures == 0:
        raise DataError(
            "there are no pictures to estimate the noise from; give at least one that can be read", code="pictures-none"
        )
    mean, low, high = cumulatives.mean(), cumulatives.quantile(0.025), cumulatives.quantile(0.975)
    if mean[GRID < 0][-1] == 0.0 and mean[GRID > 0][0] == 1.0:
        raise DataError(f"the views change no margin by more than {GRID[GRID > 0][0]}; use a stronger view")
    beyond = max(float(mean[0]), 1.0 - float(mean[-1]))
    if beyond > FURTHEST:
        raise DataError(
            f"{100 * beyond:.0f} % of the noise is beyond ±{GRID[-1]:,.0f}: the model's logits have an unusual scale; "
            "divide its last weights and bias by a constant"
        )
    ks = distances(mean, np.array(PAPER_A))
    best = int(ks.argmin())
    seen = slice(max(int((mean == 0).sum()) - 1, 0), len(mean) - max(int((mean == 1).sum()) - 1, 0))
    return Noise(
        Cumulative(tuple(GRID[seen].tolist()), _short(mean[seen])),
        _short(low[seen]),
        _short(high[seen]),
        float((high - low).max()),
        closest_normal(mean),
        Normal(PAPER_A[best], float(ks[best])),
        shape(mean),
    )


def distances(mean: Floats, a: Floats) -> Floats:
    """(m,): sup_x |F(x) − Φ(x/a)| for each of m values of a, with F on the grid."""
    from scipy.special import ndtr

    return np.asarray(np.abs(mean - ndtr(GRID / a[:, None])).max(axis=1), np.float64)


def closest_normal(mean: Floats) -> Normal:
    """The value of a for which Φ(x/a) is closest to a cumulative on the grid: a scan, then a local search."""
    a = search(lambda a: float(distances(mean, np.array([a]))[0]), np.log(GRID[GRID > 0][::4]), 1e-9)
    return Normal(a, float(distances(mean, np.array([a]))[0]))


def shape(mean: Floats) -> Shape:
    """Moments and tails of a cumulative on the grid, with the mass of each cell placed at its midpoint."""
    from scipy.special import ndtri

    share = np.diff(mean, prepend=0.0, append=1.0)
    x = np.concatenate([GRID[:1], (GRID[1:] + GRID[:-1]) / 2, GRID[-1:]])
    centre = float(share @ x)
    deviation = float(np.sqrt(share @ (x - centre) ** 2))
    third, fourth = (float(share @ ((x - centre) / deviation) ** power) for power in (3, 4))
    cumulative = Cumulative(tuple(GRID.tolist()), tuple(mean.tolist()))
    low, lower, half, upper, high = cumulative.inverse(np.array([0.01, 0.25, 0.5, 0.75, 0.99]))
    tail = (upper - lower) / 2 * ndtri(0.99) / ndtri(0.75)
    return Shape(centre, deviation, third, fourth - 3.0, float((half - low) / tail), float((high - half) / tail))


def _short(values: Floats) -> tuple[float, ...]:
    """Round to seven decimals: finer than the steps of 100,000 samples, and compact to store."""
    return tuple(np.round(values, 7).tolist())


# Prediction of the margin from votes -------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Margins:
    """The model's own probabilities σ(wᵀz + b), summed over the pictures for each number of views that kept A.

    These sums are sufficient to compute the distance from these probabilities to any function of k, and their size does
    not depend on the number of pictures.
    """

    count: Counts
    """(S + 1,): the number of pictures for which k views kept A."""
    total: Counts
    """(S + 1,): Σ σ, in integer multiples of 2⁻³², so that the sum does not depend on the order."""
    squares: Counts
    """(S + 1,): Σ σ², likewise."""

    @classmethod
    def collect(cls, margin: Floats, kept: NDArray[np.integer], draws: int) -> Margins:
        """Compute from margins (n,) and the numbers of views that kept A (n,)."""
        from scipy.special import expit

        sums = np.zeros((3, draws + 1), np.int64)
        for power in range(3):
            np.add.at(sums[power], kept, np.rint(expit(margin) ** power * _ONE).astype(np.int64))
        return cls(sums[0] // _ONE, sums[1], sums[2])

    def __add__(self, other: Margins) -> Margins:
        return Margins(self.count + other.count, self.total + other.total, self.squares + other.squares)

    def error(self, curve: Floats) -> float:
        """The root mean square of curve[k] − σ(wᵀz + b)."""
        square = self.count * curve**2 - 2 * curve * self.total / _ONE + self.squares / _ONE
        return float(np.sqrt(max(square.sum(), 0.0) / self.count.sum()))
