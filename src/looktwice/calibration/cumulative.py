"""The cumulative F_n of the noise that views make in a latent space (Equation 5)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from looktwice.errors import DataError
from looktwice.transfer.latent import Floats


@dataclass(frozen=True)
class Cumulative:
    """A cumulative F of wᵀε, the shift that views make in the margin: F(x[i]) = f[i]."""

    x: tuple[float, ...]
    """Strictly rising points."""
    f: tuple[float, ...]
    """Values that never fall, in [0, 1]."""

    def __post_init__(self) -> None:
        x, f = np.array(self.x), np.array(self.f)
        if len(x) < 2 or x.shape != f.shape or not np.isfinite(x).all() or not np.isfinite(f).all():
            raise DataError("a cumulative needs at least two finite points and a value for each")
        if (np.diff(x) <= 0).any() or (np.diff(f) < 0).any() or f[0] < 0 or f[-1] > 1 or f[0] == f[-1]:
            raise DataError("a cumulative rises: points strictly, values within [0, 1] and not all the same")

    @classmethod
    def of(cls, samples: Sequence[float] | Floats, points: int = 1001) -> Cumulative:
        """The empirical cumulative of samples, at evenly spaced levels."""
        levels = np.linspace(0.0, 1.0, points)
        x, first = np.unique(np.quantile(np.asarray(samples, float), levels), return_index=True)
        last = np.append(first[1:], points) - 1
        return cls(tuple(x.tolist()), tuple(((levels[first] + levels[last]) / 2).tolist()))

    def inverse(self, level: Floats) -> Floats:
        """F⁻¹, never falling and finite: below the lowest and above the highest level it stays where those are reached.

        Where F is level between two points, the inverse is their middle.
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
