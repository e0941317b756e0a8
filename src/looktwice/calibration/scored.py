"""The jury's weights with scores: which columns of scores are worth it, and their fit.

All but `count` (see `options`) must be worth it on held-out folds, and of the two that pool lists the one that is worth
more is taken first. Options come from all lists, so that the truth is named far more often than by the first labels
alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from looktwice.calibration.logit import (
    Patterns,
    briers,
    descend,
    folds,
    held_out_fits,
    losses,
    pays,
    posterior_covariance,
)
from looktwice.calibration.options import (
    COLUMNS,
    POOLS,
    Column,
    Layout,
    Utilities,
    learn_knots,
    options_of,
    pooling,
    tabulate,
    weigh,
    width,
)
from looktwice.calibration.scales import Scale, useless
from looktwice.calibration.typical import with_typical_weights
from looktwice.calibration.votes import OUTSIDE, Floats, LabelledVotes, Places, Votes
from looktwice.errors import DataError

FEWEST_SCORED = 20
"""The fewest labelled pictures with scores to learn from."""


@dataclass(frozen=True)
class Scored:
    """A weighted vote with scores, used for pictures whose base answer has a score or a list."""

    scale: Scale
    columns: tuple[Column, ...]
    """The selected columns."""
    knots: tuple[float, ...]
    """The knots of `bend`."""
    theta: tuple[float, ...]
    """w₀, w_1 … w_S, a weight for each column, b₀ and b₁."""
    covariance: tuple[tuple[float, ...], ...] = field(repr=False)

    def __post_init__(self) -> None:
        sizes = {len(self.covariance), *map(len, self.covariance)}
        if self.views < 0 or sizes != {len(self.theta)}:
            raise DataError("the jury's parameters for scores are inconsistent; fit again", code="calibrator-malformed")

    @property
    def views(self) -> int:
        """How many views it was fitted on."""
        return len(self.theta) - 3 - width(self.columns, self.knots)

    def utilities(self, votes: Votes) -> Utilities:
        """The utility of every option; every picture needs a base list."""
        options = options_of(votes, self.scale, self.columns, self.knots)
        return weigh(votes, options, np.array(self.theta), np.array(self.covariance))

    def pooled(self, views: int) -> Self:
        """Adapt to views outside the panel, each with the mean weight of the panel's."""
        mixing = pooling(self.views, views, len(self.theta) - 1 - self.views)
        covariance = mixing @ np.array(self.covariance) @ mixing.T
        theta = (mixing @ np.array(self.theta)).tolist()
        return replace(self, theta=tuple(theta), covariance=tuple(map(tuple, covariance.tolist())))


def choose_layout(labelled: LabelledVotes, shrinkage: float) -> Layout | None:
    """Select the columns that lower the held-out log loss; None if none does.

    One by one, each has to lower the mean log loss by more than a standard error of the gain, without raising the mean
    Brier score: labels far down a list lower the former and may raise the latter. If some truths are unknown except for
    excluded labels, the log loss decides alone.
    """
    with_scores = _scored_part(labelled)
    if with_scores is None or with_scores.evidence is None:
        return None
    views, fold = len(labelled.panel), folds(len(with_scores))
    scale = Scale.learn(with_scores.evidence)
    best = Layout(scale, learn_knots(with_scores, scale), COLUMNS[:1])
    whole = replace(best, columns=COLUMNS)
    patterns = tabulate(with_scores, whole)
    held = _held_out(with_typical_weights(tabulate(with_scores)), fold, shrinkage, with_scores.classes)
    doubtful = bool(with_scores.doubtful().any())
    # Both of POOLS tell what the lists say together: whichever tells more comes first, and the other must add to it.
    rounds: list[tuple[Column, ...]] = [("base",), ("bend",), *[POOLS] * (len(POOLS) if views else 0)]
    theta: dict[str, float] = {}
    for trials in rounds:
        found = list[tuple[float, Layout, Floats]]()
        for column in (trial for trial in trials if trial not in best.columns):
            tried = replace(best, columns=(*best.columns, column))
            names = tried.names(views)
            part = patterns.under([whole.names(views).index(name) for name in names], tried.ridge(views))
            start = descend(part, shrinkage, start=np.array([theta.get(name, 0.0) for name in names]))
            theta = dict(zip(names, start.tolist(), strict=True))
            scores = _held_out(part, fold, shrinkage, with_scores.classes, start)
            gain = held - scores
            wanted = pays(gain[0]) or (column == "bend" and "base" in best.columns and gain[0].mean() > 0)
            if wanted and (doubtful or gain[1].mean() >= 0):
                found.append((float(gain[0].mean()), tried, scores))
        if found:
            _, best, held = max(found, key=lambda each: each[0])
    return best if len(best.columns) > 1 else None


def _held_out(patterns: Patterns, fold: Places, shrinkage: float, classes: int, start: Floats | None = None) -> Floats:
    """(2, n): the log loss and the Brier score of each picture by a jury fitted on the other folds."""
    held = np.zeros((2, len(fold)))
    for rows, theta in held_out_fits(patterns, fold, shrinkage, start):
        held[:, rows] = losses(patterns, theta)[rows], briers(patterns, theta, classes)[rows]
    return held


def fit_scored(labelled: LabelledVotes, shrinkage: float, layout: Layout) -> Scored | None:
    """Fit the weights with scores; None if too few pictures have any."""
    with_scores = _scored_part(labelled)
    if with_scores is None:
        return None
    patterns = tabulate(with_scores, layout)
    theta = descend(patterns, shrinkage)
    covariance = tuple(map(tuple, posterior_covariance(patterns, shrinkage, theta).tolist()))
    columns = layout.within(len(labelled.panel))
    return Scored(layout.scale, columns, layout.knots, tuple(theta.tolist()), covariance)


def _scored_part(labelled: LabelledVotes) -> LabelledVotes | None:
    """The pictures whose base answer has a score or a list; None if there are too few, or all are equal."""
    if labelled.evidence is None or useless(labelled.evidence):
        return None
    rows = np.flatnonzero(labelled.evidence.listed()[:, 0])
    part = labelled if len(rows) == len(labelled) else labelled.take(rows)
    return part if len(rows) >= FEWEST_SCORED and (part.truths != OUTSIDE).any() else None
