"""Calibrators with a single feature, the share of agreeing views: constant, probit, beta, isotonic, and two from the
paper.

The paper's calibrators are Equation 3 (Gaussian noise) and Equation 6 (noise learned on an open model). Letters follow
the paper: A is the label under consideration, p_A the share of views that return A, F_n the cumulative distribution of
the noise that views cause in latent space.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration import metrics
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.evidence import MISSING, Codes, Floats, sigmoid
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.errors import DataError, FitError

Ballot = Literal["base", "vote"]
"""The label that the confidence refers to: the base answer, or the most frequent answer."""


@dataclass(frozen=True, eq=False)
class Tally:
    """One label per picture, the number of views that agree, and the number of queried views."""

    label: Codes
    agree: NDArray[np.int64]
    asked: NDArray[np.int64]

    def fraction(self) -> Floats:
        """The share of agreeing views, p_A = k/S in [0, 1]; 1 if no view was queried."""
        return np.where(self.asked > 0, self.agree / np.maximum(self.asked, 1), 1.0)

    def smoothed(self) -> Floats:
        """(k + 1/2) / (S + 1), in (0, 1): the smoothed share, which is never 0 or 1."""
        return (self.agree + 0.5) / (self.asked + 1.0)


def base_tally(votes: Votes) -> Tally:
    """The base label, and the views that agree with it: the paper's A = f(x)."""
    return _count(votes, votes.base)


def vote_tally(votes: Votes) -> Tally:
    """The most frequent label of the views; ties go to the base label, then to the first view."""
    if not votes.panel:
        return base_tally(votes)
    views = votes.views
    counts = np.stack([(views == views[:, [s]]).sum(axis=1) for s in range(views.shape[1])], axis=1)
    counts = np.where(views == MISSING, -1, 2 * counts + (views == votes.base[:, None]))
    first = counts.argmax(axis=1)
    label = views[np.arange(len(votes)), first]
    return _count(votes, np.where(label == MISSING, votes.base, label))


def _count(votes: Votes, label: Codes) -> Tally:
    asked = votes.views != MISSING
    return Tally(label, (asked & (votes.views == label[:, None])).sum(axis=1), asked.sum(axis=1))


TALLIES = {"base": base_tally, "vote": vote_tally}


@dataclass(frozen=True)
class ShareCalibrator(ABC):
    """A calibrator with a single feature, the share of agreeing views. Subclasses define `learn` and `curve`.

    With `ballot="base"`, the predicted label is the base answer; with `ballot="vote"`, it is the most frequent label
    among the views. The feature is (k + ½)/(S + 1), where k of S views return the predicted label.
    """

    name: ClassVar[str]
    ballot: Ballot = field(default="base", kw_only=True)

    def fit(self, labelled: LabelledVotes) -> Self:
        labelled.check()
        tally = TALLIES[self.ballot](labelled)
        return self.learn(self._share(tally), tally.label == labelled.truths, labelled.classes)

    def predict(self, votes: Votes) -> Codes:
        return TALLIES[self.ballot](votes).label

    def confidence(self, votes: Votes) -> Floats:
        return self.curve(self._share(TALLIES[self.ballot](votes)))

    def interval(self, votes: Votes) -> tuple[Floats, Floats]:
        tally = TALLIES[self.ballot](votes)
        low, high = metrics.wilson(tally.agree, tally.asked)
        return self.curve(low), self.curve(high)

    def distribution(self, votes: Votes) -> Distribution:
        tally = TALLIES[self.ballot](votes)
        confidence = self.curve(self._share(tally))
        return Distribution(tally.label[:, None], confidence[:, None], votes.classes)

    def _share(self, tally: Tally) -> Floats:
        return tally.smoothed()

    @abstractmethod
    def learn(self, share: Floats, correct: NDArray[np.bool_], classes: int) -> Self:
        """Return a copy fitted on the feature and the correctness of each answer, both (n,)."""

    @abstractmethod
    def curve(self, share: Floats) -> Floats:
        """The confidence for each value of the feature."""


def fitted(value: float | None, calibrator: ShareCalibrator) -> float:
    if value is None:
        raise unfitted(calibrator.name)
    return value


def unfitted(name: str) -> FitError:
    return FitError(f"the calibrator {name} has not been fitted; call fit(labelled_votes) first", code="not-fitted")


@dataclass(frozen=True)
class Constant(ShareCalibrator):
    """The accuracy on the labelled pictures as the confidence of every picture: calibrated but uninformative."""

    name: ClassVar[str] = "constant"
    accuracy: float | None = None

    def learn(self, share: Floats, correct: NDArray[np.bool_], classes: int) -> Self:
        return replace(self, accuracy=float(correct.mean()))

    def curve(self, share: Floats) -> Floats:
        return np.full_like(share, fitted(self.accuracy, self))


@dataclass(frozen=True)
class Probit(ShareCalibrator):
    """σ(a · Φ⁻¹((k+½)/(S+1)) + b), with a ≥ 0 by maximum likelihood: two parameters, never 0 or 1."""

    name: ClassVar[str] = "probit"
    a: float | None = None
    b: float | None = None

    def learn(self, share: Floats, correct: NDArray[np.bool_], classes: int) -> Self:
        a, b = _logistic(_probits(share)[:, None], correct)
        return replace(self, a=a, b=b)

    def curve(self, share: Floats) -> Floats:
        return sigmoid(fitted(self.a, self) * _probits(share) + fitted(self.b, self))


@dataclass(frozen=True)
class Beta(ShareCalibrator):
    """σ(a·ln p − b·ln(1−p) + c) with a, b ≥ 0 (Kull et al. 2017): more flexible than Probit."""

    name: ClassVar[str] = "beta"
    a: float | None = None
    b: float | None = None
    c: float | None = None

    def learn(self, share: Floats, correct: NDArray[np.bool_], classes: int) -> Self:
        a, b, c = _logistic(np.stack([np.log(share), -np.log1p(-share)], axis=1), correct)
        return replace(self, a=a, b=b, c=c)

    def curve(self, share: Floats) -> Floats:
        p = np.clip(share, 1e-6, 1.0 - 1e-6)
        a, b, c = (fitted(value, self) for value in (self.a, self.b, self.c))
        return sigmoid(a * np.log(p) - b * np.log1p(-p) + c)


@dataclass(frozen=True)
class Isotonic(ShareCalibrator):
    """Isotonic regression of the accuracy on the share, slightly shrunk towards the mean."""

    name: ClassVar[str] = "isotonic"
    x: tuple[float, ...] | None = None
    y: tuple[float, ...] | None = None

    def learn(self, share: Floats, correct: NDArray[np.bool_], classes: int) -> Self:
        from scipy.optimize import isotonic_regression

        x, group = np.unique(share, return_inverse=True)
        weight = np.bincount(group) + 1.0
        accuracy = (np.bincount(group, correct) + correct.mean()) / weight
        y = isotonic_regression(accuracy, weights=weight).x
        return replace(self, x=tuple(x.tolist()), y=tuple(y.tolist()))

    def curve(self, share: Floats) -> Floats:
        if self.x is None or self.y is None:
            raise unfitted(self.name)
        return np.interp(share, self.x, self.y)


def _probits(share: Floats) -> Floats:
    """Φ⁻¹ of a share, finite at 0 and 1."""
    from scipy.special import ndtri

    probits: Floats = ndtri(np.clip(share, 1e-6, 1.0 - 1e-6))
    return probits


def _logistic(features: Floats, correct: NDArray[np.bool_]) -> tuple[float, ...]:
    """Slopes ≥ 0 and an intercept by maximum likelihood.

    The targets are Platt's: (r+1)/(r+2) for right answers and 1/(w+2) for wrong ones, so that the slopes stay finite if
    all answers are right, all are wrong, or agreement separates them.
    """
    from scipy.optimize import minimize

    right = float(correct.sum())
    wrong = len(correct) - right
    target = np.where(correct, (right + 1.0) / (right + 2.0), 1.0 / (wrong + 2.0))
    design = np.column_stack([features, np.ones(len(features))])

    def loss(theta: Floats) -> tuple[float, Floats]:
        logit = design @ theta
        gradient = design.T @ (sigmoid(logit) - target)
        return float((np.logaddexp(0.0, logit) - target * logit).sum()), gradient

    bounds = [(0.0, 100.0)] * features.shape[1] + [(-100.0, 100.0)]
    start = np.zeros(features.shape[1] + 1)
    return tuple(minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B").x.tolist())


# The paper ------------------------------------------------------------------------------------------------------------

Objective = Literal["brier", "ece", "nll"]

PAPER_A = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 10.0, 100.0)
"""The values of a that the paper searches."""


@dataclass(frozen=True)
class Naive(ShareCalibrator):
    """Confidence 1 in every answer: the baseline after a single query."""

    name: ClassVar[str] = "naive"

    def learn(self, share: Floats, correct: NDArray[np.bool_], classes: int) -> Self:
        return self

    def curve(self, share: Floats) -> Floats:
        return np.ones_like(share)


@dataclass(frozen=True)
class MarginCalibrator(ShareCalibrator):
    """σ(a · margin(p_A)), with the margin in latent space that a share of agreeing views implies."""

    a: float | None = None
    grid: tuple[float, ...] = PAPER_A
    """The candidate values of a; if empty, all values between the ends of the paper's grid are searched."""
    objective: Objective = "brier"

    def __post_init__(self) -> None:
        if any(not 0 < a < np.inf for a in (*self.grid, *([] if self.a is None else [self.a]))):
            raise FitError(
                f"a and its grid must be positive and finite, not {self.a} in {self.grid}", code="option-invalid"
            )

    def learn(self, share: Floats, correct: NDArray[np.bool_], classes: int) -> Self:
        def loss(a: float) -> float:
            confidence = replace(self, a=a).curve(share)
            if self.objective == "ece":
                return metrics.ece(confidence, correct)
            losses = metrics.brier_even_losses if self.objective == "brier" else metrics.nll_even_losses
            return float(losses(confidence, correct, classes).mean())

        scan = np.linspace(np.log(PAPER_A[0]), np.log(PAPER_A[-1]), 60)
        return replace(self, a=min(self.grid, key=loss) if self.grid else search(loss, scan))

    def curve(self, share: Floats) -> Floats:
        return sigmoid(fitted(self.a, self) * self._margin(share))

    @abstractmethod
    def _margin(self, share: Floats) -> Floats: ...


@dataclass(frozen=True)
class Gaussian(MarginCalibrator):
    """σ(a · Φ⁻¹(p_A)), the paper's Equation 3, with p_A = k/S unchanged: 0 and 1 stay 0 and 1."""

    name: ClassVar[str] = "gaussian"

    def _share(self, tally: Tally) -> Floats:
        return tally.fraction()

    def _margin(self, share: Floats) -> Floats:
        from scipy.special import ndtri

        margin: Floats = ndtri(share)
        return margin


@dataclass(frozen=True)
class Transfer(MarginCalibrator):
    """σ(−a · F_n⁻¹(1 − p_A)), the paper's Equation 6, with a cumulative F_n learned on an open model."""

    name: ClassVar[str] = "transfer"
    noise: Cumulative = field(kw_only=True)

    def _share(self, tally: Tally) -> Floats:
        return tally.fraction()

    def _margin(self, share: Floats) -> Floats:
        return -self.noise.inverse(1.0 - share)


def search(loss: Callable[[float], float], scan: Floats, accuracy: float = 1e-5) -> float:
    """The positive number with the lowest loss: a scan over logarithms, then a local search."""
    from scipy.optimize import minimize_scalar

    best = int(np.argmin([loss(float(np.exp(t))) for t in scan]))
    around = scan[max(best - 1, 0)], scan[min(best + 1, len(scan) - 1)]
    options = {"xatol": accuracy}
    least = minimize_scalar(lambda t: loss(float(np.exp(t))), bounds=around, method="bounded", options=options)
    return float(np.exp(least.x))


@dataclass(frozen=True)
class Cumulative:
    """A cumulative distribution F of wᵀε, the shift of the margin by a view: F(x[i]) = f[i]."""

    x: tuple[float, ...]
    """Strictly increasing points."""
    f: tuple[float, ...]
    """Non-decreasing values in [0, 1]."""

    def __post_init__(self) -> None:
        x, f = np.array(self.x), np.array(self.f)
        if len(x) < 2 or x.shape != f.shape or not np.isfinite(x).all() or not np.isfinite(f).all():
            raise DataError(
                "a cumulative distribution needs at least two finite points and a value for each",
                code="calibrator-malformed",
            )
        if (np.diff(x) <= 0).any() or (np.diff(f) < 0).any() or f[0] < 0 or f[-1] > 1 or f[0] == f[-1]:
            raise DataError(
                "the points of a cumulative distribution must increase strictly, and its values must "
                "not decrease, lie in [0, 1] and not all be equal",
                code="calibrator-malformed",
            )

    @classmethod
    def of(cls, samples: Sequence[float] | Floats, points: int = 1001) -> Cumulative:
        """The empirical cumulative of samples, at evenly spaced levels."""
        levels = np.linspace(0.0, 1.0, points)
        x, first = np.unique(np.quantile(np.asarray(samples, float), levels), return_index=True)
        last = np.append(first[1:], points) - 1
        return cls(tuple(x.tolist()), tuple(((levels[first] + levels[last]) / 2).tolist()))

    def inverse(self, level: Floats) -> Floats:
        """F⁻¹, non-decreasing and finite: constant below the lowest and above the highest level.

        If F is constant between two points, the inverse is their midpoint.
        """
        f, x = self._steps
        return np.interp(level, f, x)

    @cached_property
    def _steps(self) -> tuple[Floats, Floats]:
        f, first = np.unique(np.array(self.f), return_index=True)
        last = np.append(first[1:], len(self.f)) - 1
        x = np.array(self.x)
        middle = (x[first] + x[last]) / 2
        middle[0], middle[-1] = x[last[0]], x[first[-1]]
        return f, middle
