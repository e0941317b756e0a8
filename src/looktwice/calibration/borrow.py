"""A jury for a black-box classifier, with the weights of an open model's jury as prior.

The open jury's weights are the prior mean of the fit. The prior covariance is the covariance of the open jury plus
τ²·I, where τ is the prior standard deviation of the difference between the two classifiers' weights. Fifty pictures are
too few to select a single τ, so the fits for several values are averaged. Each fit is weighted by its evidence
(Laplace's approximation) and by 1/τ, since models are more often similar than not. A few labelled pictures therefore
change the weights little, but many determine them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

import numpy as np

from looktwice.calibration.confusion import learn_confusion
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.evidence import Codes, Floats
from looktwice.calibration.jury import Jury
from looktwice.calibration.logit import Patterns, PenalisedLoss, folds
from looktwice.calibration.options import tabulate
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.errors import DataError, FitError

DIFFERENCES = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)
"""The values of τ for which fits are averaged."""
FEWEST_COMPARED = 10
"""The minimum number of labelled pictures for comparing the fit with one without a prior."""


def fit_towards(prior: Jury, labelled: LabelledVotes) -> Jury:
    """Fit a jury for the panel of `prior` on these pictures; returns `prior` itself if there are no pictures."""
    if not prior.weights or not prior.covariance:
        raise FitError(
            "the prior jury has not been fitted; call Jury().fit(labelled_votes) on the open model first",
            code="not-fitted",
        )
    if len(labelled.panel) != len(prior.weights) - 1:
        raise DataError(
            f"the prior jury was fitted on {len(prior.weights) - 1} views and cannot teach one of "
            f"{len(labelled.panel)}; use the same panel",
            code="votes-mismatch",
        )
    if len(labelled) == 0:
        return prior
    prior, patterns = replace(prior, confusion=None), tabulate(labelled)
    return _averaged(prior, [_posterior(prior, patterns, difference) for difference in DIFFERENCES])


@dataclass(frozen=True)
class Pupil:
    """A jury whose prior is another classifier's jury; before fitting, it is equal to that jury."""

    name: ClassVar[str] = "borrowed jury"
    jury: Jury
    changed: bool = False
    """Whether the pictures may be unlike those of the prior, as after a drift alarm."""

    def fit(self, labelled: LabelledVotes) -> Self:
        """Fit the jury with the prior or, if the pictures may have changed and the fit is better, without it.

        The better fit is the one with the lower log loss on held-out folds.
        """
        fits = [self._towards_prior, Jury(ballot=self.jury.ballot).fit]
        compared = self.changed and len(labelled) >= FEWEST_COMPARED
        best = min(fits, key=partial(held_out_log_loss, labelled)) if compared else fits[0]
        return replace(self, jury=best(labelled))

    def _towards_prior(self, labelled: LabelledVotes) -> Jury:
        confusion = learn_confusion(labelled, partial(fit_towards, self.jury))
        return replace(fit_towards(self.jury, labelled), confusion=confusion)

    def predict(self, votes: Votes) -> Codes:
        """(n,): the predicted label."""
        return self.jury.predict(votes)

    def confidence(self, votes: Votes) -> Floats:
        """(n,): the probability that the predicted label is right, in [0, 1]."""
        return self.jury.confidence(votes)

    def interval(self, votes: Votes) -> tuple[Floats, Floats]:
        """(n,) twice: the jury's own interval, without the difference between the two classifiers."""
        return self.jury.interval(votes)

    def distribution(self, votes: Votes) -> Distribution:
        """The probability of every label."""
        return self.jury.distribution(votes)


def held_out_log_loss(labelled: LabelledVotes, fit: Callable[[LabelledVotes], Jury]) -> float:
    """The mean log loss on held-out folds."""
    fold, loss = folds(len(labelled)), np.zeros(len(labelled))
    for part in range(int(fold.max()) + 1):
        rest, rows = labelled.take(np.flatnonzero(fold != part)), np.flatnonzero(fold == part)
        tested = labelled.take(rows)
        loss[rows] = fit(rest).distribution(tested).nll(tested.truths)
    return float(loss.mean())


@dataclass(frozen=True, eq=False)
class _Posterior:
    """The posterior under one prior: its mode, covariance and log marginal likelihood."""

    theta: Floats
    covariance: Floats
    weight: float


def _posterior(prior: Jury, patterns: Patterns, difference: float) -> _Posterior:
    free, covariance = PenalisedLoss.from_counts(patterns, 0.0, patterns.hits()), np.array(prior.covariance)
    anchor = prior.theta
    precision = np.asarray(np.linalg.inv(covariance + difference**2 * np.eye(len(covariance))), np.float64)
    objective = replace(free, penalty=precision, pull=precision @ anchor)
    theta = objective.minimise(anchor)
    (value, _), curvature = objective.at(theta), objective.curvature(theta)
    depth = value + float(anchor @ precision @ anchor) / 2
    volume = float(np.linalg.slogdet(precision)[1] - np.linalg.slogdet(curvature)[1])
    weight = volume / 2 - depth - float(np.log(difference))
    return _Posterior(theta, np.asarray(np.linalg.inv(curvature), np.float64), weight)


def _averaged(prior: Jury, posteriors: list[_Posterior]) -> Jury:
    """The weighted mean of several posteriors, with the covariance of the mixture."""
    logs = np.array([each.weight for each in posteriors])
    weight = np.exp(logs - logs.max()) / np.exp(logs - logs.max()).sum()
    thetas = np.array([each.theta for each in posteriors])
    theta = weight @ thetas
    within = np.einsum("t,tij->ij", weight, np.array([each.covariance for each in posteriors]))
    covariance = within + np.einsum("t,ti,tj->ij", weight, thetas - theta, thetas - theta)
    return replace(
        prior,
        weights=tuple(theta[:-3].tolist()),
        log_votes=float(theta[-3]),
        unnamed=(float(theta[-2]), float(theta[-1])),
        covariance=tuple(map(tuple, ((covariance + covariance.T) / 2).tolist())),
    )
