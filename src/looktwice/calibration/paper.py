"""The paper's calibrators: Equation 3 (Gaussian noise) and Equation 6 (noise learned on an open model).

Letters follow the paper: A is the label under consideration, p_A the share of views that return A, F_n the cumulative
distribution of the noise that views cause in latent space.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration import metrics
from looktwice.calibration.base import ShareCalibrator, fitted
from looktwice.calibration.votes import Floats, Tally
from looktwice.errors import DataError, FitError

Objective = Literal["brier", "ece", "nll"]

PAPER_A = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 10.0, 100.0)
"""The grid that the paper searches for a."""


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
    """The grid for a; an empty grid searches all values between the ends of the paper's grid."""
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

        return replace(self, a=min(self.grid, key=loss) if self.grid else _search(loss))

    def curve(self, share: Floats) -> Floats:
        from scipy.special import expit

        curve: Floats = expit(fitted(self.a, self) * self._margin(share))
        return curve

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


def _search(loss: Callable[[float], float]) -> float:
    """Minimise the loss over a between the ends of the paper's grid: a scan, then a local search."""
    from scipy.optimize import minimize_scalar

    scan = np.linspace(np.log(PAPER_A[0]), np.log(PAPER_A[-1]), 60)
    best = int(np.argmin([loss(float(np.exp(t))) for t in scan]))
    around = scan[max(best - 1, 0)], scan[min(best + 1, len(scan) - 1)]
    return float(np.exp(minimize_scalar(lambda t: loss(float(np.exp(t))), bounds=around, method="bounded").x))


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
                "a cumulative needs at least two finite points and a value for each", code="calibrator-malformed"
            )
        if (np.diff(x) <= 0).any() or (np.diff(f) < 0).any() or f[0] < 0 or f[-1] > 1 or f[0] == f[-1]:
            raise DataError(
                "a cumulative rises: points strictly, values within [0, 1] and not all the same",
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
