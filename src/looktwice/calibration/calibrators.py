"""Votes → probability. A belief is what one thinks of votes; `fit` returns the same belief with its figures.

Formula letters follow the paper: A is the label that is believed, p_A the share of views that say A.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from inspect import signature
from typing import ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration import metrics
from looktwice.calibration.cumulative import Cumulative
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.jury import Jury, Prefixes
from looktwice.calibration.votes import Codes, Floats, LabelledVotes, Tally, Votes, base_tally, vote_tally
from looktwice.errors import DataError, FitError
from looktwice.pictures.image import shown

Ballot = Literal["base", "vote"]
"""Whose label is believed: the picture's own answer, or the one that most views give."""
Objective = Literal["brier", "ece", "nll"]

PAPER_A = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 10.0, 100.0)
"""The grid that the paper searches for a."""

TALLIES = {"base": base_tally, "vote": vote_tally}


class Belief(Protocol):
    """One way to turn votes into a probability."""

    name: ClassVar[str]

    def fit(self, labelled: LabelledVotes) -> Self:
        """The same belief, learned from pictures whose truth is known."""

    def predict(self, votes: Votes) -> Codes:
        """(n,): the label that is believed."""

    def confidence(self, votes: Votes) -> Floats:
        """(n,): the probability that this label is right, in [0, 1]."""

    def interval(self, votes: Votes) -> tuple[Floats, Floats]:
        """(n,) twice: where the confidence would be, 95 % surely, if many more such views were asked."""

    def distribution(self, votes: Votes) -> Distribution:
        """The probability of every label."""


@dataclass(frozen=True)
class _ShareBelief(ABC):
    """A belief that looks at one number a picture: the share of views that agree."""

    name: ClassVar[str]
    ballot: Ballot = field(default="base", kw_only=True)

    def fit(self, labelled: LabelledVotes) -> Self:
        labelled.check()
        tally = TALLIES[self.ballot](labelled)
        return self._learn(self._share(tally), tally.label == labelled.truths, labelled.classes)

    def predict(self, votes: Votes) -> Codes:
        return TALLIES[self.ballot](votes).label

    def confidence(self, votes: Votes) -> Floats:
        return self._curve(self._share(TALLIES[self.ballot](votes)))

    def interval(self, votes: Votes) -> tuple[Floats, Floats]:
        tally = TALLIES[self.ballot](votes)
        low, high = metrics.wilson(tally.agree, np.maximum(tally.asked, 1))
        return self._curve(low), self._curve(high)

    def distribution(self, votes: Votes) -> Distribution:
        tally = TALLIES[self.ballot](votes)
        confidence = self._curve(self._share(tally))
        return Distribution(tally.label[:, None], confidence[:, None], votes.classes)

    def _share(self, tally: Tally) -> Floats:
        return tally.smoothed()

    @abstractmethod
    def _learn(self, share: Floats, correct: NDArray[np.bool_], classes: int) -> Self: ...

    @abstractmethod
    def _curve(self, share: Floats) -> Floats: ...


@dataclass(frozen=True)
class Naive(_ShareBelief):
    """Full trust in every answer: what one has after a single query."""

    name: ClassVar[str] = "naive"

    def _learn(self, share: Floats, correct: NDArray[np.bool_], classes: int) -> Self:
        return self

    def _curve(self, share: Floats) -> Floats:
        return np.ones_like(share)


@dataclass(frozen=True)
class Constant(_ShareBelief):
    """The accuracy on the labelled pictures, for every picture: well calibrated, and it knows nothing."""

    name: ClassVar[str] = "constant"
    accuracy: float | None = None

    def _learn(self, share: Floats, correct: NDArray[np.bool_], classes: int) -> Self:
        return replace(self, accuracy=float(correct.mean()))

    def _curve(self, share: Floats) -> Floats:
        return np.full_like(share, _fitted(self.accuracy, self))


@dataclass(frozen=True)
class _MarginBelief(_ShareBelief):
    """σ(a · margin(p_A)): the margin in latent space that a share of agreeing views tells of."""

    a: float | None = None
    grid: tuple[float, ...] = PAPER_A
    """Where a is searched; an empty grid means everywhere between its smallest and largest sensible value."""
    objective: Objective = "brier"

    def __post_init__(self) -> None:
        if any(not 0 < a < np.inf for a in (*self.grid, *([] if self.a is None else [self.a]))):
            raise FitError(f"a and its grid must be positive and finite, not {self.a} in {self.grid}")

    def _learn(self, share: Floats, correct: NDArray[np.bool_], classes: int) -> Self:
        def loss(a: float) -> float:
            return _loss(replace(self, a=a)._curve(share), correct, classes, self.objective)

        return replace(self, a=min(self.grid, key=loss) if self.grid else _search(loss))

    def _curve(self, share: Floats) -> Floats:
        from scipy.special import expit

        curve: Floats = expit(_fitted(self.a, self) * self._margin(share))
        return curve

    @abstractmethod
    def _margin(self, share: Floats) -> Floats: ...


@dataclass(frozen=True)
class Gaussian(_MarginBelief):
    """σ(a · Φ⁻¹(p_A)), the paper's Equation 3, with p_A = k/S as it stands there: 0 and 1 stay 0 and 1."""

    name: ClassVar[str] = "gaussian"

    def _share(self, tally: Tally) -> Floats:
        return tally.fraction()

    def _margin(self, share: Floats) -> Floats:
        from scipy.special import ndtri

        margin: Floats = ndtri(share)
        return margin


@dataclass(frozen=True)
class Transfer(_MarginBelief):
    """σ(−a · F_n⁻¹(1 − p_A)), the paper's Equation 5, with a cumulative F_n learned on an open model."""

    name: ClassVar[str] = "transfer"
    noise: Cumulative = field(kw_only=True)

    def _share(self, tally: Tally) -> Floats:
        return tally.fraction()

    def _margin(self, share: Floats) -> Floats:
        return -self.noise.inverse(1.0 - share)


@dataclass(frozen=True)
class Probit(_ShareBelief):
    """σ(a · Φ⁻¹((k+½)/(S+1)) + b), with a ≥ 0 by maximum likelihood: two figures, never certain."""

    name: ClassVar[str] = "probit"
    a: float | None = None
    b: float | None = None

    def _learn(self, share: Floats, correct: NDArray[np.bool_], classes: int) -> Self:
        a, b = _logistic(_probits(share)[:, None], correct)
        return replace(self, a=a, b=b)

    def _curve(self, share: Floats) -> Floats:
        return _sigmoid(_fitted(self.a, self) * _probits(share) + _fitted(self.b, self))


@dataclass(frozen=True)
class Beta(_ShareBelief):
    """σ(a·ln p − b·ln(1−p) + c) with a, b ≥ 0 (Kull et al. 2017): bends more freely than Probit."""

    name: ClassVar[str] = "beta"
    a: float | None = None
    b: float | None = None
    c: float | None = None

    def _learn(self, share: Floats, correct: NDArray[np.bool_], classes: int) -> Self:
        a, b, c = _logistic(np.stack([np.log(share), -np.log1p(-share)], axis=1), correct)
        return replace(self, a=a, b=b, c=c)

    def _curve(self, share: Floats) -> Floats:
        p = np.clip(share, 1e-6, 1.0 - 1e-6)
        a, b, c = (_fitted(value, self) for value in (self.a, self.b, self.c))
        return _sigmoid(a * np.log(p) - b * np.log1p(-p) + c)


@dataclass(frozen=True)
class Isotonic(_ShareBelief):
    """The best curve that never falls through the accuracy at each share, each drawn to the mean a little."""

    name: ClassVar[str] = "isotonic"
    x: tuple[float, ...] | None = None
    y: tuple[float, ...] | None = None

    def _learn(self, share: Floats, correct: NDArray[np.bool_], classes: int) -> Self:
        from scipy.optimize import isotonic_regression

        x, group = np.unique(share, return_inverse=True)
        weight = np.bincount(group) + 1.0
        accuracy = (np.bincount(group, correct) + correct.mean()) / weight
        y = isotonic_regression(accuracy, weights=weight).x
        return replace(self, x=tuple(x.tolist()), y=tuple(y.tolist()))

    def _curve(self, share: Floats) -> Floats:
        if self.x is None or self.y is None:
            raise _unfitted(self)
        return np.interp(share, self.x, self.y)


FAMILIES: dict[str, type[Belief]] = {
    family.name: family for family in (Naive, Constant, Gaussian, Transfer, Probit, Beta, Isotonic, Jury, Prefixes)
}
"""Every belief by its name."""


def named(belief: Belief | str) -> Belief:
    """The belief of a name, with its usual settings; a belief as it is."""
    if not isinstance(belief, str):
        return belief
    if belief not in FAMILIES:
        raise FitError(f"no belief is called {belief!r}; there are {', '.join(FAMILIES)}")
    return FAMILIES[belief]()


def dump(belief: Belief) -> dict[str, object]:
    """The belief as plain JSON values; `restore` makes it again."""
    from pydantic import TypeAdapter

    return {"family": belief.name, **TypeAdapter(type(belief)).dump_python(belief, mode="json")}


def restore(fields: dict[str, object]) -> Belief:
    """The belief that `dump` wrote; a DataError says what is wrong with the values."""
    from pydantic import TypeAdapter, ValidationError

    family = FAMILIES.get(str(fields.get("family")))
    if family is None:
        raise DataError(f"no belief is called {fields.get('family')!r}; there are {', '.join(FAMILIES)}")
    values = {key: value for key, value in fields.items() if key != "family"}
    unknown = sorted(set(values) - set(signature(family).parameters))
    if unknown:
        raise DataError(f"the belief {family.name} has no {shown(', '.join(unknown))}")
    if not _finite(values):
        raise DataError(f"the belief {family.name} holds a number that is not finite")
    try:
        return TypeAdapter(family).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(f"the belief {family.name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _finite(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_finite, value))
    return not isinstance(value, float) or bool(np.isfinite(value))


def _fitted(value: float | None, belief: _ShareBelief) -> float:
    if value is None:
        raise _unfitted(belief)
    return value


def _unfitted(belief: _ShareBelief) -> FitError:
    return FitError(f"the belief {belief.name} has not been fitted; call fit(labelled_votes) first")


def _loss(confidence: Floats, correct: NDArray[np.bool_], classes: int, objective: Objective) -> float:
    if objective == "ece":
        return metrics.ece(confidence, correct)
    losses = metrics.brier_even_losses if objective == "brier" else metrics.nll_even_losses
    return float(losses(confidence, correct, classes).mean())


def _search(loss: Callable[[float], float]) -> float:
    """The a between the ends of the paper's grid with the least loss: a scan, then a descent."""
    from scipy.optimize import minimize_scalar

    scan = np.linspace(np.log(PAPER_A[0]), np.log(PAPER_A[-1]), 60)
    best = int(np.argmin([loss(float(np.exp(t))) for t in scan]))
    around = scan[max(best - 1, 0)], scan[min(best + 1, len(scan) - 1)]
    return float(np.exp(minimize_scalar(lambda t: loss(float(np.exp(t))), bounds=around, method="bounded").x))


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

    The targets are Platt's: right answers count (r+1)/(r+2) and wrong ones 1/(w+2), so that the slopes stay
    finite when all answers are right, all are wrong, or agreement separates them.
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
