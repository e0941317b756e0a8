"""The options of a picture and their features: the columns of the jury's conditional logit.

The options are the top labels of the answers, the most probable other labels in the lists if there are scores, and all
other classes combined. Each answer has a column, which marks the option that it returned. The next columns are

- `count`: the log of the option's number of votes;
- `base`: the log share of the option in the base list;
- `bend`: for the base label only, hinges max(0, z − knot) of the log odds z of its share, which correct a score whose
  distribution is unusual, such as one that is often exactly 1;
- `views`: the mean log share of the option over the lists of the views;
- `pool`: the log of the option's mean share over all lists, which a single list without the option barely lowers;

and two columns for the other classes: 1, and the log of the number of returned labels per answer. Without scores,
`count` is the only column used from this list. If a classifier cannot return the label of an option, its answer
supports the option as much as the label that it returned.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration.distribution import Distribution, first_column
from looktwice.calibration.evidence import MISSING, UNLISTED, Codes, Evidence, Floats, Places, Scale, softmax
from looktwice.calibration.logit import UNKNOWN, Patterns
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.errors import DataError

Column = Literal["count", "base", "bend", "views", "pool"]
COLUMNS: tuple[Column, ...] = ("count", "base", "bend", "views", "pool")
POOLS: tuple[Column, ...] = ("views", "pool")
OF_VIEWS = ("count", *POOLS)
"""The columns that carry no information without views."""
KNOTS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The knots of the hinges, as quantiles of the log odds; another knot is at the second largest value."""
RIDGE: dict[Column, float] = {"base": 0.0, "bend": 1.0, "views": 0.0, "pool": 0.0}
"""The ridge penalty on the weights of each column; `count` has the penalty of γ."""
MOST_OTHERS = 10
"""The number of options besides the top labels of answers, selected by the largest total shares."""


@dataclass(frozen=True)
class Layout:
    """The score columns of a jury."""

    scale: Scale
    knots: tuple[float, ...]
    columns: tuple[Column, ...]
    first: int = 0
    """The first answer with scores, counted from the base answer; its list is the base list."""

    @classmethod
    def union(cls, *layouts: Layout | None) -> Layout | None:
        """Combine the columns of these layouts, with the scale of the first."""
        given = [layout for layout in layouts if layout]
        if not given:
            return None
        columns = tuple(column for column in COLUMNS if any(column in layout.columns for layout in given))
        return cls(given[0].scale, given[0].knots, columns, given[0].first)

    def within(self, views: int) -> tuple[Column, ...]:
        """The columns that apply to a panel with this number of views."""
        return tuple(column for column in self.columns if views or column not in OF_VIEWS)

    def ridge(self, views: int) -> tuple[float, ...]:
        """The ridge penalties on the parameters except γ."""
        columns = [column for column in self.within(views) if column != "count"]
        return tuple(RIDGE[column] for column in columns for _ in range(self.width(column)))

    def width(self, column: Column) -> int:
        """The number of parameters in a column."""
        return width([column], self.knots)

    def names(self, views: int) -> list[str]:
        """The names of the parameters, in order."""
        columns = [f"{column} {i}" for column in self.within(views) for i in range(self.width(column))]
        votes = [f"view {view}" for view in range(views + 1)]
        return [*votes, *columns, "b0", "b1"]


def width(columns: Sequence[Column], knots: Sequence[float]) -> int:
    """The number of parameters of the columns."""
    return sum(len(knots) if column == "bend" else 1 for column in columns)


# Options and features ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Options:
    """The options of n pictures and their features, one column per parameter, as in `Patterns.options`."""

    labels: Codes
    """(n, c): the labels, the base label first, padded with MISSING."""
    features: Floats
    """(n, c + 1, p): the features; the last option is "other classes"."""
    possible: NDArray[np.bool_]
    """(n, c + 1): which options exist."""
    left: Floats
    """(n, c + 1): log of the fraction of the K − 1 classes that "other classes" stands for; 0 for labels."""


def options_of(
    votes: Votes, scale: Scale | None = None, columns: Sequence[Column] = COLUMNS[:1], knots: Sequence[float] = ()
) -> Options:
    """Collect the options and their features from the answers, and from ranked lists if `scale` is given."""
    labels = named_labels(votes) if scale is None else _listed_labels(votes, scale)
    named, answers = labels != MISSING, votes.answers()
    count, place = named.sum(axis=1), answers.shape[1]
    features = np.zeros((len(votes), labels.shape[1] + 1, place + 2 + width(columns, knots)))
    votes_for = (labels[:, :, None] == answers[:, None, :]) & (answers != MISSING)[:, None, :]
    silent = votes.cannot_say(labels)
    votes_for = votes_for if silent is None else votes_for | silent
    features[:, :-1, :place] = votes_for
    logs = _log_shares(votes, scale, labels, silent) if scale else np.zeros(0)
    for column in columns:
        end = place + width([column], knots)
        part = features[:, :, place:end]
        match column:
            case "count":
                part[:, :-1, 0] = np.log(np.maximum(votes_for.sum(axis=2), 1))
            case "base":
                part[:, :, 0] = logs[:, 0]
            case "bend":
                part[:, 0] = np.maximum(_odds(logs)[:, None] - np.array(knots), 0.0)
            case "views":
                part[:, :, 0] = _mean(logs[:, 1:], _evidence(votes).listed()[:, 1:])
            case _:
                part[:, :, 0] = np.log(_mean(np.exp(logs), _evidence(votes).listed()))
        place = end
    features[:, -1, -2] = 1.0
    features[:, -1, -1] = np.log(np.maximum(count, 1) / answers.shape[1])
    left = np.zeros(features.shape[:2])
    left[:, -1] = np.log(np.maximum(votes.classes - count, 1) / (votes.classes - 1))
    return Options(labels, features, np.column_stack([named, count < votes.classes]), left)


def named_labels(votes: Votes) -> Codes:
    """(n, S + 1): the distinct labels of the answers; MISSING where an earlier answer has the same label."""
    codes = votes.answers()
    labels: Codes = np.where(first_named(codes) == np.arange(codes.shape[1]), codes, np.int32(MISSING))
    return labels


def first_named(codes: Codes) -> Places:
    """(n, S + 1): the first column with the same label; MISSING if there is no answer."""
    first = np.stack([(codes == codes[:, [s]]).argmax(axis=1) for s in range(codes.shape[1])], axis=1)
    return np.where(codes == MISSING, MISSING, first)


def _evidence(votes: Votes) -> Evidence:
    if votes.evidence is None:
        raise DataError("these votes have no scores", code="votes-mismatch")
    return votes.evidence


def _log_shares(votes: Votes, scale: Scale, labels: Codes, silent: NDArray[np.bool_] | None) -> Floats:
    """(n, S + 1, c + 1): the log share of each option in each ranked list."""
    logs = scale.log_shares(_evidence(votes), labels, votes.classes)
    if silent is not None:
        np.copyto(logs[:, :, :-1], logs.max(axis=2, keepdims=True), where=silent.transpose(0, 2, 1))
    return logs


def learn_knots(votes: Votes, scale: Scale) -> tuple[float, ...]:
    """Choose the knots of `bend` from the scores of these pictures."""
    values = _odds(_log_shares(votes, scale, votes.base[:, None], None))
    distinct = np.unique(values)
    inner = distinct[:-1] if len(distinct) > 1 else distinct
    quantiles = np.quantile(values, KNOTS, method="lower")
    return tuple(np.unique([*quantiles[quantiles < distinct[-1]], inner[-1]]).tolist())


def _odds(logs: Floats) -> Floats:
    """(n,): the log odds of the base label's share, from the log shares of all options, the base label first."""
    share = np.exp(logs[:, 0, 0])
    odds: Floats = logs[:, 0, 0] - np.log1p(-np.minimum(share, 1.0 - 1e-7))
    return odds


def _mean(values: Floats, listed: NDArray[np.bool_]) -> Floats:
    """(n, c + 1): the mean of the shares or their logs over the answers with a ranked list; 0 if there are none."""
    return (values * listed[:, :, None]).sum(axis=1) / np.maximum(listed.sum(axis=1), 1)[:, None]


def _listed_labels(votes: Votes, scale: Scale) -> Codes:
    """(n, c): the base label, the views' labels in order, and the MOST_OTHERS listed labels with the largest shares."""
    evidence, n, words, answers = _evidence(votes), len(votes), max(len(votes.vocabulary), 1), votes.answers()
    width = answers.shape[1]
    listed = evidence.labels.reshape(n, -1)
    shares = scale.shares(evidence).reshape(n, -1)
    codes = np.column_stack([answers, listed])
    # Labels of answers come first, by position; other labels follow by total share, which is at most 1 per list.
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


# Patterns for the fit ------------------------------------------------------------------------------------------------


def tabulate(labelled: LabelledVotes, layout: Layout | None = None) -> Patterns:
    """Convert labelled votes to patterns for the fit: distinct patterns or, with scores, one pattern per picture."""
    labelled.check()
    views = len(labelled.panel)
    if layout:
        kept = kind = np.arange(len(labelled))
        options = options_of(labelled, layout.scale, layout.within(views), layout.knots)
        labels, limits, ridge = options.labels, ((-np.inf, np.inf),) * 2, layout.ridge(views)
    else:
        kept, kind = _distinct(labelled)
        options, labels = options_of(labelled.take(kept)), named_labels(labelled)
        limits, ridge = ((-np.inf, float(np.log(labelled.classes - 1))), (0.0, np.inf)), ()
    owner, _ = np.nonzero(options.possible)
    place = np.cumsum(options.possible.ravel()).reshape(options.possible.shape) - 1
    patterns = Patterns(
        options.features[options.possible],
        options.left[options.possible],
        np.searchsorted(owner, np.arange(len(kept))),
        owner,
        first_column(labels, labelled.truths),
        np.zeros(len(labelled)),
        views,
        ridge,
        limits,
    )
    return _with_truths(patterns, labelled, labels, options.possible[kind], place[kind])


def _distinct(votes: Votes) -> tuple[Places, Places]:
    """One picture for each pattern of agreement, and the pattern of each picture."""
    first, silent = first_named(votes.answers()), votes.cannot_say(named_labels(votes))
    table = first if silent is None else np.column_stack([first, silent.reshape(len(first), -1)])
    packed = np.ascontiguousarray(table.astype(np.int16)).view(f"V{2 * table.shape[1]}").ravel()
    _, kept, kind = np.unique(packed, return_index=True, return_inverse=True)
    return kept, kind


def _with_truths(
    patterns: Patterns, labelled: LabelledVotes, labels: Codes, choice: NDArray[np.bool_], place: Places
) -> Patterns:
    """Convert true labels from columns to options: one option per picture, or all possible ones.

    `labels`, (n, c), are the labels of all columns except the last, which is "other classes". `choice`, (n, c + 1),
    marks the columns that are options of a picture, and `place` holds the index of each option.
    """
    doubtful, rows, named = labelled.doubtful(), np.arange(len(labelled)), choice[:, :-1]
    forbidden = labelled.forbids(labels) & named
    others = labelled.classes - named.sum(axis=1)
    free = others - np.array([len(set(codes)) for codes in labelled.excluded] or 0) + forbidden.sum(axis=1)
    open_ = np.column_stack([named & ~forbidden, choice[:, -1] & (free > 0)])
    possible = np.where(doubtful, open_.any(axis=1), choice[rows, patterns.truth])
    if not possible.all():
        name, classes = labelled.names[int(possible.argmin())], labelled.classes
        raise DataError(
            f"{name!r}: all {classes} classes were returned, but none of them is the true label; raise `classes`",
            code="votes-mismatch",
        )
    picture, column = np.nonzero(open_ & doubtful[:, None])
    unnamed, beyond = column == named.shape[1], patterns.truth == named.shape[1]
    return replace(
        patterns,
        truth=np.where(doubtful, UNKNOWN, place[rows, patterns.truth]),
        spread=np.where(beyond & ~doubtful, np.log(np.maximum(others, 1)), 0.0),
        doubtful=picture,
        possible=place[picture, column],
        left=np.where(unnamed, np.log(np.maximum(free, 1) / np.maximum(others, 1))[picture], 0.0),
    )


# Utilities of a fitted jury ------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Utilities:
    """The utility of each option of n pictures; column 0 is the base label, and the last column the other classes."""

    scores: Floats
    """(n, c + 1): the utilities; −∞ where a picture does not have the option."""
    covariance: Floats
    """(p, p): the covariance of the parameters."""
    last: Codes
    """(n,): the only label that no answer returned; MISSING if there is not exactly one."""
    options: Options

    def labels(self) -> Codes:
        """(n, c + 1): the returned labels; in the last column, the only label not returned, otherwise MISSING."""
        return np.column_stack([self.options.labels, self.last])

    def slope(self, believed: Places, rivals: Floats) -> Floats:
        """(n, p): the gradient of the log odds of the label in column `believed`.

        `rivals`, (n, c + 1), are the probabilities of all other options, given that this label is wrong.
        """
        chosen = self.options.features[np.arange(len(believed)), believed]
        return chosen - np.einsum("nc,ncp->np", rivals, self.options.features)

    def named(self) -> Floats:
        """(n, c + 1): the probabilities of the labels."""
        return np.where(np.isfinite(self.eligible()), softmax(self.scores), 0.0)

    def distribution(self, classes: int) -> Distribution:
        """The probabilities of the labels as a distribution over this many classes."""
        return Distribution(self.labels(), self.named(), classes)

    def eligible(self) -> Floats:
        """(n, c + 1): the utilities of the options that can be predicted; −∞ for the others."""
        scores = self.scores.copy()
        scores[self.last == MISSING, -1] = -np.inf
        return scores

    def odds(self, believed: Places) -> Floats:
        """(n,): the log odds of the label in column `believed`."""
        rest = self.rivals(believed)
        top = rest.max(axis=1)
        odds: Floats = (
            self.scores[np.arange(len(rest)), believed] - top - np.log(np.exp(rest - top[:, None]).sum(axis=1))
        )
        return odds

    def rivals(self, believed: Places) -> Floats:
        """(n, c + 1): the utilities of all other options."""
        rest = self.scores.copy()
        rest[np.arange(len(rest)), believed] = -np.inf
        return rest


def weigh(votes: Votes, options: Options, theta: Floats, covariance: Floats) -> Utilities:
    """The utilities of these options, given fitted parameters."""
    scores = np.where(options.possible, options.features @ theta + options.left, -np.inf)
    left = votes.classes - (options.labels != MISSING).sum(axis=1)
    return Utilities(scores, covariance, only_left(options.labels, left, votes), options)


def only_left(codes: Codes, left: Places, votes: Votes) -> Codes:
    """(n,): the only label of a complete vocabulary that no answer returned; MISSING if there is not exactly one."""
    last = np.full(len(codes), MISSING, np.int32)
    rows = np.flatnonzero(left == 1) if len(votes.vocabulary) == votes.classes else np.empty(0, np.intp)
    named = np.zeros((len(rows), votes.classes + 1), bool)
    named[np.arange(len(rows))[:, None], codes[rows]] = True
    last[rows] = named[:, :-1].argmin(axis=1)
    return last


def pooling(fitted: int, views: int, others: int) -> Floats:
    """(1 + views + others, 1 + fitted + others): the matrix that assigns the mean fitted weight to each new view."""
    mixing = np.zeros((1 + views + others, 1 + fitted + others))
    mixing[0, 0] = 1.0
    mixing[1 : 1 + views, 1 : 1 + fitted] = 1.0 / max(fitted, 1)
    mixing[1 + views :, 1 + fitted :] = np.eye(others)
    return mixing
