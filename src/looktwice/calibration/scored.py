"""Score features of the jury.

These columns are added to the votes, each with a weight; all but the first must improve held-out folds, and of the last
two the better one is tried first:

- `count`: the log of the option's number of votes, as for labels alone;
- `base`: the log share of the option in the base list;
- `bend`: for the base label alone, hinges max(0, z − knot) of the log odds z of its share, which correct the
  shape of a score, such as one that is often exactly 1;
- `views`: the mean log share of the option over the lists of the views;
- `pool`: the log of its mean share over all lists, which a single list without the option barely lowers.

Options come from all lists, which contain the truth far more often than the first labels alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration.logit import (
    Patterns,
    Utilities,
    briers,
    descend,
    dissent,
    folds,
    held_out_fits,
    losses,
    only_left,
    pays,
    pooling,
    posterior_covariance,
    resolve_truths,
    tabulate,
    truth_columns,
)
from looktwice.calibration.scales import Scale, useless
from looktwice.calibration.typical import with_typical_weights
from looktwice.calibration.votes import MISSING, OUTSIDE, UNLISTED, Codes, Floats, LabelledVotes, Places, Votes
from looktwice.errors import DataError

Column = Literal["count", "base", "bend", "views", "pool"]
COLUMNS: tuple[Column, ...] = ("count", "base", "bend", "views", "pool")
POOLS: tuple[Column, ...] = ("views", "pool")
OF_VIEWS = ("count", *POOLS)
"""The columns that add nothing without views."""
KNOTS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The knots of the hinges, as quantiles of the log odds; one more is at the second largest value."""
RIDGE: dict[Column, float] = {"base": 0.0, "bend": 1.0, "views": 0.0, "pool": 0.0}
"""The ridge penalty of each column's weights; that of `count` is γ's."""
FEWEST_SCORED = 20
"""The fewest labelled pictures with scores to learn from."""
MOST_OTHERS = 10
"""The number of options besides first labels: those with the largest total shares."""


@dataclass(frozen=True, eq=False)
class ScoredOptions:
    """The options of n pictures and their features, one column per parameter, as in `Patterns.options`."""

    labels: Codes
    """(n, c): the base label, other first labels, and other listed labels; padded with MISSING."""
    features: Floats
    """(n, c + 1, p): the last option is "other classes"."""
    possible: NDArray[np.bool_]
    """(n, c + 1): which options exist."""
    left: Floats
    """(n, c + 1): log of the share of the K − 1 classes that "other classes" stands for; 0 for labels."""


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

    def utilities(self, votes: Votes) -> ScoredUtilities:
        """The utility of every option; every picture needs a base list."""
        options = list_options(votes, self.scale, self.columns, self.knots)
        scores = np.where(options.possible, options.features @ np.array(self.theta) + options.left, -np.inf)
        left = votes.classes - (options.labels != MISSING).sum(axis=1)
        return ScoredUtilities(scores, np.array(self.covariance), only_left(options.labels, left, votes), options)

    def pooled(self, views: int) -> Self:
        """Adapt to views outside the panel, each with the mean weight of the panel's."""
        mixing = pooling(self.views, views, len(self.theta) - 1 - self.views)
        covariance = mixing @ np.array(self.covariance) @ mixing.T
        theta = (mixing @ np.array(self.theta)).tolist()
        return replace(self, theta=tuple(theta), covariance=tuple(map(tuple, covariance.tolist())))


@dataclass(frozen=True, eq=False)
class ScoredUtilities(Utilities):
    """Utilities of the options in labels and lists."""

    options: ScoredOptions

    def labels(self) -> Codes:
        return np.column_stack([self.options.labels, self.last])

    def slope(self, believed: Places, rivals: Floats) -> Floats:
        own = self.options.features[np.arange(len(believed)), believed]
        return own - np.einsum("nc,ncp->np", rivals, self.options.features)


def width(columns: Sequence[Column], knots: Sequence[float]) -> int:
    """The number of parameters of the columns."""
    return sum(len(knots) if column == "bend" else 1 for column in columns)


def learn_knots(votes: Votes, scale: Scale) -> tuple[float, ...]:
    """Place the knots of `bend` by the scores of these pictures."""
    evidence = votes.evidence
    if evidence is None:
        return ()
    values = _odds(scale.log_shares(evidence, votes.base[:, None], votes.classes))
    distinct = np.unique(values)
    inner = distinct[:-1] if len(distinct) > 1 else distinct
    quantiles = np.quantile(values, KNOTS, method="lower")
    return tuple(np.unique([*quantiles[quantiles < distinct[-1]], inner[-1]]).tolist())


def _odds(logs: Floats) -> Floats:
    """(n,): log odds of the base label's share, from the log shares of options, the base label first."""
    share = np.exp(logs[:, 0, 0])
    odds: Floats = logs[:, 0, 0] - np.log1p(-np.minimum(share, 1.0 - 1e-7))
    return odds


def list_options(votes: Votes, scale: Scale, columns: Sequence[Column], knots: Sequence[float]) -> ScoredOptions:
    """The options in labels and lists, with their features."""
    if votes.evidence is None:
        raise DataError("these votes have no scores", code="votes-mismatch")
    labels = _option_labels(votes, scale)
    named = labels != MISSING
    count = named.sum(axis=1)
    answers = votes.answers()
    views = answers.shape[1] - 1
    features = np.zeros((len(votes), labels.shape[1] + 1, views + 3 + width(columns, knots)))
    votes_for = (labels[:, :, None] == answers[:, None, :]) & (answers != MISSING)[:, None, :]
    logs = scale.log_shares(votes.evidence, labels, votes.classes)
    silent = votes.cannot_say(labels)
    if silent is not None:
        votes_for |= silent
        top = logs.max(axis=2, keepdims=True)
        np.copyto(logs[:, :, :-1], top, where=silent.transpose(0, 2, 1))
    features[:, :-1, : views + 1] = votes_for
    place = views + 1
    for column in columns:
        if column == "bend":
            hinges = np.maximum(_odds(logs)[:, None] - np.array(knots), 0.0)
            features[:, 0, place : place + len(knots)] = hinges
        elif column == "count":
            features[:, :-1, place] = np.log(np.maximum(votes_for.sum(axis=2), 1))
        elif column == "base":
            features[:, :, place] = logs[:, 0]
        elif column == "views":
            features[:, :, place] = _mean(logs[:, 1:], votes.evidence.listed()[:, 1:])
        else:
            features[:, :, place] = np.log(_mean(np.exp(logs), votes.evidence.listed()))
        place += width([column], knots)
    features[:, -1, -2] = 1.0
    features[:, -1, -1] = dissent(count, views + 1)
    left = np.zeros(features.shape[:2])
    left[:, -1] = np.log(np.maximum(votes.classes - count, 1) / (votes.classes - 1))
    return ScoredOptions(labels, features, np.column_stack([named, count < votes.classes]), left)


def _mean(values: Floats, listed: NDArray[np.bool_]) -> Floats:
    """(n, c + 1): the mean of shares, or of their logs, over the answers that have a list; 0 where none has."""
    return (values * listed[:, :, None]).sum(axis=1) / np.maximum(listed.sum(axis=1), 1)[:, None]


def _option_labels(votes: Votes, scale: Scale) -> Codes:
    """(n, c): the base label, the views' in their order, and MOST_OTHERS of the lists by their shares."""
    evidence = votes.evidence
    assert evidence is not None  # noqa: S101  # `list_options` has checked it
    n, words = len(votes), max(len(votes.vocabulary), 1)
    answers = votes.answers()
    width = answers.shape[1]
    listed = evidence.labels.reshape(n, -1)
    shares = scale.shares(evidence).reshape(n, -1)
    codes = np.column_stack([answers, listed])
    # First labels come first, by position; the others follow by their shares, which are at most 1 per list.
    worth = np.column_stack([np.tile(np.arange(width, 0, -1) * 2.0 * width, (n, 1)), shares])
    row, column = np.nonzero(codes != UNLISTED)
    key, inverse = np.unique(row * words + codes[row, column], return_inverse=True)
    first = np.zeros(len(key))
    np.maximum.at(first, inverse, np.where(column < width, worth[row, column], 0.0))
    total = np.bincount(inverse, np.where(column < width, 0.0, worth[row, column]), len(key))
    owner = key // words
    order = np.lexsort([-(first + np.where(first > 0, 0.0, total)), owner])
    owner, key, is_first = owner[order], key[order], first[order] > 0
    rank = np.arange(len(key)) - np.searchsorted(owner, owner)
    kept = rank < np.bincount(owner, is_first, n)[owner] + MOST_OTHERS
    labels = np.full((n, int(rank[kept].max(initial=0)) + 1), MISSING, np.int32)
    labels[owner[kept], rank[kept]] = key[kept] % words
    return labels


@dataclass(frozen=True)
class Layout:
    """The score columns of a jury."""

    scale: Scale
    knots: tuple[float, ...]
    columns: tuple[Column, ...]

    @classmethod
    def union(cls, *layouts: Layout | None) -> Layout | None:
        """The columns of any of these layouts, on the scale of the first."""
        found = [layout for layout in layouts if layout]
        if not found:
            return None
        columns = tuple(column for column in COLUMNS if any(column in layout.columns for layout in found))
        return cls(found[0].scale, found[0].knots, columns)

    def within(self, views: int) -> tuple[Column, ...]:
        """The columns that apply to a panel of this many views."""
        return tuple(column for column in self.columns if views or column not in OF_VIEWS)

    def ridge(self, views: int) -> tuple[float, ...]:
        """The ridge penalties of its parameters except γ."""
        columns = [column for column in self.within(views) if column != "count"]
        return tuple(RIDGE[column] for column in columns for _ in range(self.width(column)))

    def width(self, column: Column) -> int:
        """The number of parameters of a column."""
        return width([column], self.knots)

    def names(self, views: int) -> list[str]:
        """The names of its parameters, in their order."""
        columns = [f"{column} {i}" for column in self.within(views) for i in range(self.width(column))]
        votes = [f"view {view}" for view in range(views + 1)]
        return [*votes, *columns, "b0", "b1"]


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
    patterns = tabulate_scored(with_scores, whole)
    held = _held_out(with_typical_weights(tabulate(with_scores)), fold, shrinkage, with_scores.classes)
    doubtful = bool(with_scores.doubtful().any())
    # Both of POOLS summarise the lists: the better one comes first, and the other must add to it.
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
    patterns = tabulate_scored(with_scores, layout)
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


def tabulate_scored(labelled: LabelledVotes, layout: Layout) -> Patterns:
    """Convert votes with scores and truths to the patterns that a fit uses, one per picture."""
    options = list_options(labelled, layout.scale, layout.within(len(labelled.panel)), layout.knots)
    column = truth_columns(options.labels, labelled.truths)
    owner, _ = np.nonzero(options.possible)
    place = np.cumsum(options.possible.ravel()).reshape(options.possible.shape) - 1
    others = np.where(column < options.labels.shape[1], 1, labelled.classes - (options.labels != MISSING).sum(axis=1))
    starts, ridge = np.searchsorted(owner, np.arange(len(labelled))), layout.ridge(len(labelled.panel))
    features, size = options.features[options.possible], options.left[options.possible]
    spread = np.log(np.maximum(others, 1))
    patterns = Patterns(features, size, starts, owner, column, spread, len(labelled.panel), ridge)
    return resolve_truths(patterns, labelled, options.labels, options.possible, place)
