"""Calibration curves over the share of views that agree: constant, probit, beta and isotonic."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration.base import ShareCalibrator, fitted, unfitted
from looktwice.calibration.votes import Floats


@dataclass(frozen=True)
class Constant(ShareCalibrator):
    """The accuracy on the labelled pictures, for every picture: calibrated and uninformative."""

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
        return _sigmoid(fitted(self.a, self) * _probits(share) + fitted(self.b, self))


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
        return _sigmoid(a * np.log(p) - b * np.log1p(-p) + c)


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
            raise unfitted(self)
        return np.interp(share, self.x, self.y)


def _probits(share: Floats) -> Floats:
    """Φ⁻¹ of a share, finite at 0 and 1."""
    from scipy.special import ndtri

    probits: Floats = ndtri(np.clip(share, 1e-6, 1.0 - 1e-6))
    return probits


def _sigmoid(x: Floats) -> Floats:
    from scipy.special import expit

    y: Floats = expit(x)
    return y


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
        gradient = design.T @ (_sigmoid(logit) - target)
        return float((np.logaddexp(0.0, logit) - target * logit).sum()), gradient

    bounds = [(0.0, 100.0)] * features.shape[1] + [(-100.0, 100.0)]
    start = np.zeros(features.shape[1] + 1)
    return tuple(minimize(loss, start, jac=True, bounds=bounds, method="L-BFGS-B").x.tolist())
