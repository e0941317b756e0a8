"""The jury: every view has a say of its own weight, and the truth may be a label that nobody said.

P(y = c) ∝ exp(w₀·[base = c] + Σ_s w_s·[v_s = c]) for each of the m named labels c, and
P(unnamed class) ∝ (K − m)/(K − 1)·exp(b₀ − b₁/m), spread evenly over the K − m classes that nobody named.

All w and b₁ are at least 0, and b₀ is at most log(K − 1). So a view that turns from the base label to another never
raises the base label's probability: the base label's score falls by w_s, and no rival's does. The other's rises by
w_s; if it is named only now, from b₀ − b₁/m − log(K − 1) ≤ 0 to w_s ≥ 0, and each class that is still unnamed goes on
to b₀ − b₁/(m + 1) − log(K − 1).

To the score of the base label comes an offset for its class, where that pays on held-out folds. A single class that
nobody named is a label like any other, and may be the answer: with two classes, the one that nobody said.

The parameters are always in the order w₀, w_1 … w_S, offsets, b₀, b₁. A fit sees each distinct way of agreeing once,
and of it only the labels that were named: its arrays don't grow with the number of classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration.distribution import Distribution
from looktwice.calibration.evidence import Scale, useless
from looktwice.calibration.scored import COLUMNS, Column, Scored, ScoredHearing, cast, learn_knots, log_odds, width
from looktwice.calibration.votes import MISSING, OUTSIDE, Codes, Floats, LabelledVotes, Votes
from looktwice.errors import DataError, FitError

Places = NDArray[np.intp]
Ballot = Literal["base", "vote"]

SHRINKAGES = (1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3)
"""How strongly the views' weights may be drawn to their common weight; the strongest first, as the easiest fit."""
FLOOR = 0.01
"""A faint pull of every parameter to zero: what the pictures say nothing about stays finite."""
AT_BOUND = 1e-9
"""How close to its bound a parameter counts as being there."""
OWN_WEIGHTS = 100
"""Labelled pictures below which all views have nearly one weight."""
UNKNOWN = -1
"""The truth of a picture of which it is only known what did not come true."""
FOLDS = 5
COMPARING = 30.0
"""How strongly the weights are drawn together while panels are compared."""
Z95 = 1.959963984540054
STRENGTHS = (100.0, 30.0, 10.0, 3.0)
"""How strongly the offsets of classes may be drawn to zero."""
PER_CLASS, MOST_CLASSES = 20, 50
"""Labelled pictures that a base label needs for an offset, and how many labels may have one."""
BEND = 1.0
"""How strongly the hinges of the base label's score are drawn to zero."""
FEWEST_SCORED = 20
"""Labelled pictures with scores below which nothing is learned from them."""


@dataclass(frozen=True)
class Jury:
    """A weight for the base label, one for each view of the panel, and two figures for the *unnamed class*."""

    name: ClassVar[str] = "jury"
    weights: tuple[float, ...] = ()
    """w₀ of the base label, then w_s of each view, in the order of the panel."""
    unnamed: tuple[float, float] = (0.0, 0.0)
    """b₀ and b₁ of the *unnamed class*."""
    shrinkage: float = SHRINKAGES[0]
    """How strongly the views' weights were drawn together."""
    covariance: tuple[tuple[float, ...], ...] = ()
    """Of w₀, w_1 … w_S, the offsets, b₀, b₁: how uncertain the labelled pictures leave them."""
    ballot: Ballot = "vote"
    """Whose label is believed: the picture's own answer, or the most probable one."""
    classes: tuple[int, ...] = ()
    """The codes of the base labels that have an offset."""
    offsets: tuple[float, ...] = ()
    """What is added to the score of each of them where it is the base label."""
    scored: Scored | None = None
    """The weights for pictures that have scores; None where scores were not given, or not worth it."""

    def fit(self, labelled: LabelledVotes) -> Self:
        """The jury learned from these pictures; the shrinkage is the one that does best on held-out folds.

        Scores are used where they make it less surprised by the truths of those folds.
        """
        patterns = tabulate(labelled)
        shrinkage = choose_shrinkage(patterns, folds(len(labelled)))
        offsets = choose_offsets(labelled, patterns, shrinkage)
        patterns = tabulate(labelled, offsets)
        fitted = self._holding(patterns, shrinkage, descend(patterns, shrinkage), offsets)
        layout = choose_layout(labelled, shrinkage)
        return replace(fitted, scored=fit_scored(labelled, shrinkage, layout) if layout else None)

    def predict(self, votes: Votes) -> Codes:
        """(n,): the most probable named label, or the base label for that ballot."""
        label = votes.base.copy()
        for rows, hearing in self._hearings(votes):
            label[rows] = hearing.labels()[np.arange(len(rows)), self._believed(hearing)]
        return label

    def confidence(self, votes: Votes) -> Floats:
        """(n,): the probability that this label is right, in [0, 1]."""
        confidence = np.zeros(len(votes))
        for rows, hearing in self._hearings(votes):
            confidence[rows] = _sigmoid(hearing.odds(self._believed(hearing)))
        return confidence

    def interval(self, votes: Votes) -> tuple[Floats, Floats]:
        """(n,) twice: where the confidence would be, 95 % surely, had very many labelled pictures been there.

        From the curvature of the penalised likelihood (Laplace), carried over to the log odds of the confidence.
        """
        low, high = np.zeros(len(votes)), np.zeros(len(votes))
        for rows, hearing in self._hearings(votes):
            believed = self._believed(hearing)
            odds, slope = hearing.odds(believed), hearing.slope(believed)
            variance = ((slope @ hearing.covariance) * slope).sum(axis=1)
            half = Z95 * np.sqrt(np.maximum(variance, 0.0))
            low[rows], high[rows] = _sigmoid(odds - half), _sigmoid(odds + half)
        return low, high

    def distribution(self, votes: Votes) -> Distribution:
        """The probability of every label that was named; the rest is for the unnamed class."""
        parts = [(rows, hearing.labels(), hearing.named()) for rows, hearing in self._hearings(votes)]
        return joined_distribution(parts, len(votes), votes.classes)

    @property
    def uses_scores(self) -> bool:
        """Whether pictures that have scores are judged by them too."""
        return self.scored is not None

    def hears_scores(self, votes: Votes) -> NDArray[np.bool_]:
        """(n,): whether scores are among the evidence that each picture is judged by."""
        scored = self.scored is not None and votes.evidence is not None
        return votes.evidence.listed()[:, 0] if scored and votes.evidence else np.zeros(len(votes), bool)

    def pooled(self, views: int) -> Self:
        """The jury for so many views that are none of the panel's, such as photos of one thing: each weighs the mean.

        How uncertain the weights are goes along with them.
        """
        fitted = len(self.weights) - 1
        if fitted < 1:
            raise FitError(f"a jury fitted on no views cannot judge {views}; fit it on a panel")
        others = len(self.offsets) + 2
        mixing = np.zeros((1 + views + others, 1 + fitted + others))
        mixing[0, 0] = 1.0
        mixing[1 : 1 + views, 1 : 1 + fitted] = 1.0 / fitted
        mixing[1 + views :, 1 + fitted :] = np.eye(others)
        covariance = mixing @ np.array(self.covariance) @ mixing.T
        weights = (mixing[: 1 + views, : 1 + fitted] @ np.array(self.weights)).tolist()
        scored = self.scored and self.scored.pooled(views)
        return replace(self, weights=tuple(weights), covariance=tuple(map(tuple, covariance.tolist())), scored=scored)

    def without_offsets(self) -> Self:
        """The same for pictures of other classes."""
        kept = [
            place for place in range(len(self.covariance)) if not 0 <= place - len(self.weights) < len(self.offsets)
        ]
        covariance = np.array(self.covariance)[np.ix_(kept, kept)]
        return replace(self, classes=(), offsets=(), covariance=tuple(map(tuple, covariance.tolist())))

    def _holding(self, patterns: Patterns, shrinkage: float, theta: Floats, offsets: Offsets) -> Self:
        votes = len(theta) - 2 - len(offsets.classes)
        return replace(
            self,
            weights=tuple(theta[:votes].tolist()),
            classes=offsets.classes,
            offsets=tuple(theta[votes:-2].tolist()),
            unnamed=(float(theta[-2]), float(theta[-1])),
            shrinkage=shrinkage,
            covariance=tuple(map(tuple, _covariance(patterns, shrinkage, theta).tolist())),
        )

    def _hearings(self, votes: Votes) -> Iterator[tuple[Places, _Hearing | ScoredHearing]]:
        """The pictures that are judged by labels alone, those that are judged by scores too, and what is said."""
        scored = self.hears_scores(votes)
        for rows in filter(len, (np.flatnonzero(~scored), np.flatnonzero(scored))):
            heard = votes if len(rows) == len(votes) else votes.take(rows)
            yield rows, self.scored.hear(heard) if self.scored and scored[rows[0]] else self._hear(heard)

    def _hear(self, votes: Votes) -> _Hearing:
        if not self.weights:
            raise FitError("the calibrator jury has not been fitted; call fit(labelled_votes) first")
        if len(votes.panel) != len(self.weights) - 1:
            raise _other_panel(len(self.weights) - 1, len(votes.panel))
        if len(self.offsets) != len(self.classes):
            raise DataError("the jury's offsets do not hold together; fit again")
        return _hear(votes, self)

    def _believed(self, hearing: _Hearing | ScoredHearing) -> Places:
        """(n,): the column of the believed label among base and views; the base label wins a tie."""
        best = hearing.eligible().argmax(axis=1)
        return best if self.ballot == "vote" else np.zeros_like(best)


@dataclass(frozen=True)
class Prefixes:
    """A jury for every number of views that may have been asked: for pictures about which one stopped early.

    How many were asked is read off the votes: all views up to the last that is not MISSING.
    """

    name: ClassVar[str] = "prefixes"
    juries: tuple[Jury, ...] = ()
    """For the first 0, 1 … S views of the panel."""
    ballot: Ballot = "vote"

    def fit(self, labelled: LabelledVotes) -> Self:
        """The juries learned from pictures that were asked about in full."""
        return replace(self, juries=fit_prefixes(labelled))

    def predict(self, votes: Votes) -> Codes:
        """(n,): the label that the jury of the views asked believes."""
        label = votes.base.copy()
        for rows, jury, heard in self._sittings(votes):
            label[rows] = jury.predict(heard)
        return label

    def confidence(self, votes: Votes) -> Floats:
        """(n,): the probability that this label is right, in [0, 1]."""
        confidence = np.zeros(len(votes))
        for rows, jury, heard in self._sittings(votes):
            confidence[rows] = jury.confidence(heard)
        return confidence

    def interval(self, votes: Votes) -> tuple[Floats, Floats]:
        """(n,) twice: where the confidence would be, 95 % surely, had very many labelled pictures been there."""
        low, high = np.zeros(len(votes)), np.zeros(len(votes))
        for rows, jury, heard in self._sittings(votes):
            low[rows], high[rows] = jury.interval(heard)
        return low, high

    def distribution(self, votes: Votes) -> Distribution:
        """The probability of every label that was named; the rest is for the unnamed class."""
        sittings = ((rows, jury.distribution(heard)) for rows, jury, heard in self._sittings(votes))
        parts = [(rows, part.labels, part.named) for rows, part in sittings]
        return joined_distribution(parts, len(votes), votes.classes)

    @property
    def uses_scores(self) -> bool:
        """Whether pictures that have scores are judged by them too."""
        return any(jury.uses_scores for jury in self.juries)

    def hears_scores(self, votes: Votes) -> NDArray[np.bool_]:
        """(n,): whether scores are among the evidence that each picture is judged by."""
        scored = np.zeros(len(votes), bool)
        for rows, jury, heard in self._sittings(votes):
            scored[rows] = jury.hears_scores(heard)
        return scored

    def seated(self) -> tuple[Jury, ...]:
        """The juries, each with the ballot of all."""
        return tuple(replace(jury, ballot=self.ballot) for jury in self.juries)

    def pooled(self, views: int) -> Jury:
        """The jury for so many views that are none of the panel's, from the one for about as many that are."""
        if not self.juries:
            raise FitError("the calibrator prefixes has not been fitted; call fit(labelled_votes) first")
        return replace(self.juries[min(views, len(self.juries) - 1)], ballot=self.ballot).pooled(views)

    def _sittings(self, votes: Votes) -> Iterator[tuple[Places, Jury, Votes]]:
        """The pictures with each number of views asked, the jury for it, and what it has heard."""
        if not self.juries:
            raise FitError("the calibrator prefixes has not been fitted; call fit(labelled_votes) first")
        if len(votes.panel) != len(self.juries) - 1:
            raise _other_panel(len(self.juries) - 1, len(votes.panel))
        counts = asked(votes)
        for count in np.unique(counts).tolist():
            rows = np.flatnonzero(counts == count)
            yield rows, replace(self.juries[count], ballot=self.ballot), votes.take(rows).under(range(count))


def asked(votes: Votes) -> Places:
    """(n,): how many views of the panel were asked: all up to the last that is not MISSING."""
    return ((votes.views != MISSING) * np.arange(1, len(votes.panel) + 1)).max(axis=1, initial=0)


def fit_prefixes(labelled: LabelledVotes) -> tuple[Jury, ...]:
    """A jury for the first 0, 1 … S views of the panel, for pictures about which one stopped asking.

    They share the shrinkage that suits the whole panel best, and each starts from the one before.
    """
    whole = tabulate(labelled)
    shrinkage = choose_shrinkage(whole, folds(len(labelled)))
    offsets = choose_offsets(labelled, whole, shrinkage)
    layouts = choose_layout(labelled, shrinkage), choose_layout(labelled.under([]), shrinkage)
    layout = Layout.union(*layouts)
    theta, juries = np.zeros(3 + len(offsets.classes)), []
    for views in range(len(labelled.panel) + 1):
        part = labelled.under(range(views))
        patterns = tabulate(part, offsets)
        theta = descend(patterns, shrinkage, start=theta if views == 0 else widen(theta, len(offsets.classes)))
        scored = fit_scored(part, shrinkage, layout) if layout else None
        juries.append(replace(Jury()._holding(patterns, shrinkage, theta, offsets), scored=scored))
    return tuple(juries)


def _other_panel(fitted: int, given: int) -> DataError:
    known = f"the jury was fitted on {fitted} views"
    return DataError(f"{known} and cannot judge votes of {given}; ask the same panel or fit anew")


@dataclass(frozen=True, eq=False)
class Patterns:
    """The distinct ways in which base and views agreed, and what came true: all that a fit needs.

    A pattern has one option for each named label and one for the *unnamed class*, unless every class was named.
    """

    options: Floats
    """(r, S + 3): what each option adds up: who said it, or 1 and −1/(number of named labels)."""
    size: Floats
    """(r,): log of the share of K − 1 classes that an *unnamed class* stands for, 0 for other options."""
    starts: Places
    """(p,): where the options of each pattern begin."""
    owner: Places
    """(r,): the pattern of each option."""
    truth: Places
    """(n,): the option that came true for each picture, UNKNOWN where it is only known what did not."""
    spread: Floats
    """(n,): log of how many classes share the *unnamed class* if that came true, otherwise 0."""
    ridge: tuple[float, ...] = ()
    """How strongly each parameter between the views' weights and b₀ is drawn to zero: those of scores and classes."""
    none: tuple[tuple[float, float], tuple[float, float]] = ((-np.inf, np.inf), (-np.inf, np.inf))
    """Between which values b₀ and b₁ must be."""
    doubtful: Places = field(default_factory=lambda: np.zeros(0, np.intp))
    """(m,): the pictures of which it is only known what did not come true, once for each option that may have."""
    possible: Places = field(default_factory=lambda: np.zeros(0, np.intp))
    """(m,): that option."""
    left: Floats = field(default_factory=lambda: np.zeros(0))
    """(m,): log of the share of it that may have: less than all of the unnamed class if some of its labels did not."""

    def bounds(self) -> tuple[Floats, Floats]:
        """(p,) twice: the least and the greatest value of each parameter."""
        votes = self.options.shape[1] - 2 - len(self.ridge)
        limits = [*[(0.0, np.inf)] * votes, *[(-np.inf, np.inf)] * len(self.ridge), *self.none]
        low, high = np.array(limits).T
        return low, high

    def scores(self, theta: Floats) -> Floats:
        """(r,): the score of each option; not by BLAS, whose threads take longer to wake than this takes."""
        return np.einsum("rp,p->r", self.options, theta) + self.size

    def under(self, columns: Sequence[int], ridge: tuple[float, ...]) -> Patterns:
        """The same with some of the parameters."""
        return replace(self, options=self.options[:, list(columns)], ridge=ridge)

    def hits(self, rows: NDArray[np.bool_] | None = None, theta: Floats | None = None) -> Floats:
        """(r,): how often each option came true, over the pictures of `rows`, or all.

        Pictures of which it is only known what did not come true count with the probability that `theta` gives to each
        option that may have, or not at all without it.
        """
        truth = self.truth if rows is None else self.truth[rows]
        hits = np.bincount(truth[truth != UNKNOWN], minlength=len(self.options)).astype(np.float64)
        if theta is not None and len(self.possible):
            part = slice(None) if rows is None else rows[self.doubtful]
            hits += np.bincount(self.possible[part], self.shares(theta)[part], len(hits))
        return hits

    def kinds(self) -> Places:
        """(n,): the pattern of each picture."""
        option = np.where(self.truth == UNKNOWN, 0, self.truth)
        option[self.doubtful] = self.possible
        return self.owner[option]

    def shares(self, theta: Floats) -> Floats:
        """(m,): the probability of each option of the doubtful pictures, given that it is one of those that may be."""
        scores = self.scores(theta)[self.possible] + self.left
        return np.exp(scores - self._log_sums(scores)[self.doubtful])

    def log_possible(self, scores: Floats) -> Floats:
        """(n,): log Σ exp of the scores of the options that may have come true; the one score where that is known."""
        known = self.truth != UNKNOWN
        sums: Floats = np.where(known, scores[np.where(known, self.truth, 0)], 0.0)
        return sums if known.all() else np.where(known, sums, self._log_sums(scores[self.possible] + self.left))

    def _log_sums(self, scores: Floats) -> Floats:
        """(n,): log Σ exp over the options of each doubtful picture, −∞ for the others."""
        top = np.full(len(self.truth), -np.inf)
        np.maximum.at(top, self.doubtful, scores)
        total = np.bincount(self.doubtful, np.exp(scores - top[self.doubtful]), len(top))
        with np.errstate(divide="ignore"):
            sums: Floats = top + np.log(total)
        return sums


@dataclass(frozen=True)
class Offsets:
    """Which base labels have an offset, and how strongly it is drawn to zero."""

    classes: tuple[int, ...] = ()
    strength: float = STRENGTHS[0]

    def of(self, base: Codes) -> Places:
        """(n,): the place of each label among the classes, −1 for one that has no offset."""
        if not self.classes:
            return np.full(len(base), -1)
        hit = base[:, None] == np.array(self.classes)
        return np.where(hit.any(axis=1), hit.argmax(axis=1), -1)


def tabulate(labelled: LabelledVotes, offsets: Offsets = Offsets()) -> Patterns:  # noqa: B008  # it is frozen
    """Votes and truths as the patterns that a fit works on."""
    labelled.check()
    codes = _codes(labelled)
    first = _first(codes)
    rows, kind = _distinct(np.column_stack([first, offsets.of(labelled.base)]))
    rows, group = rows[:, :-1], rows[:, -1]
    named = rows == np.arange(rows.shape[1])
    count = named.sum(axis=1)
    choice = np.column_stack([named, count < labelled.classes])
    column = _truth_columns(codes, labelled.truths)
    place = np.cumsum(choice.ravel()).reshape(choice.shape) - 1
    owner, options = _options(rows, choice, count)
    own = (group[owner][:, None] == np.arange(len(offsets.classes))) * options[:, :1]
    options = np.column_stack([options[:, :-2], own, options[:, -2:]])
    starts = np.searchsorted(owner, np.arange(len(rows)))
    unnamed, most = options[:, -2] > 0, float(np.log(labelled.classes - 1))
    size = np.where(unnamed, np.log(np.maximum(labelled.classes - count, 1))[owner] - most, 0.0)
    others = np.where(column < codes.shape[1], 1, labelled.classes - count[kind])
    spread, ridge = np.log(np.maximum(others, 1)), (offsets.strength,) * len(offsets.classes)
    limits = (-np.inf, most), (0.0, np.inf)
    patterns = Patterns(options, size, starts, owner, column, spread, ridge, limits)
    return _settled(patterns, labelled, codes, choice[kind], place[kind])


def _settled(
    patterns: Patterns, labelled: LabelledVotes, labels: Codes, choice: NDArray[np.bool_], place: Places
) -> Patterns:
    """Patterns whose truths are columns, with the options that they mean: one, or those that a picture leaves open.

    `labels`, (n, c), are those of the columns but the last, which is the unnamed class; `choice`, (n, c + 1), says
    which columns are options of a picture, and `place` which option each is.
    """
    doubtful, rows, named = labelled.doubtful(), np.arange(len(labelled)), choice[:, :-1]
    forbidden = labelled.forbids(labels) & named
    others = labelled.classes - named.sum(axis=1)
    free = others - np.array([len(set(codes)) for codes in labelled.excluded] or 0) + forbidden.sum(axis=1)
    open_ = np.column_stack([named & ~forbidden, choice[:, -1] & (free > 0)])
    _check_possible(np.where(doubtful, open_.any(axis=1), choice[rows, patterns.truth]), labelled)
    picture, column = np.nonzero(open_ & doubtful[:, None])
    unnamed = column == named.shape[1]
    return replace(
        patterns,
        truth=np.where(doubtful, UNKNOWN, place[rows, patterns.truth]),
        spread=np.where(doubtful, 0.0, patterns.spread),
        doubtful=picture,
        possible=place[picture, column],
        left=np.where(unnamed, np.log(np.maximum(free, 1) / np.maximum(others, 1))[picture], 0.0),
    )


@dataclass(frozen=True)
class Layout:
    """Which columns of scores a jury has, and which base labels have an offset, shrunk by how much."""

    scale: Scale
    knots: tuple[float, ...]
    columns: tuple[Column, ...]
    classes: tuple[int, ...] = ()
    strength: float = STRENGTHS[0]

    @classmethod
    def union(cls, *layouts: Layout | None) -> Layout | None:
        """What any of them has, on the scale of the first."""
        found = [layout for layout in layouts if layout]
        if not found:
            return None
        columns = tuple(column for column in COLUMNS if any(column in layout.columns for layout in found))
        widest = max(found, key=lambda layout: len(layout.classes))
        return cls(found[0].scale, found[0].knots, columns, widest.classes, widest.strength)

    def joined(self, other: Layout) -> Layout:
        """The columns of both, and the other's offsets where it has any."""
        columns = (*self.columns, *other.columns)
        if not other.classes:
            return replace(self, columns=columns)
        return replace(self, columns=columns, classes=other.classes, strength=other.strength)

    def within(self, views: int) -> tuple[Column, ...]:
        """The columns that there are for so many views."""
        return tuple(column for column in self.columns if views or column != "views")

    def ridge(self, views: int) -> tuple[float, ...]:
        """How strongly each of its parameters is drawn to zero."""
        drawn = [BEND if column == "bend" else 0.0 for column in self.within(views) for _ in range(self.width(column))]
        return (*drawn, *(self.strength for _ in self.classes))

    def width(self, column: Column) -> int:
        """How many parameters a column has."""
        return width([column], self.knots)

    def names(self, views: int) -> list[str]:
        """What its parameters are, in their order."""
        columns = [f"{column} {i}" for column in self.within(views) for i in range(self.width(column))]
        votes = [f"view {view}" for view in range(views + 1)]
        return [*votes, *columns, *(f"class {code}" for code in self.classes), "b0", "b1"]


def choose_layout(labelled: LabelledVotes, shrinkage: float) -> Layout | None:
    """The columns that make a jury less surprised by the truths of folds it did not see; None where none does.

    One after the other has to lower the mean loss by more than a standard error of what it gains.
    """
    heard = _scored_part(labelled)
    if heard is None or heard.evidence is None:
        return None
    views, fold = len(labelled.panel), folds(len(heard))
    scale = Scale.learn(heard.evidence)
    best = Layout(scale, learn_knots(heard, scale), ())
    whole = replace(best, columns=COLUMNS, classes=frequent_classes(heard))
    patterns = tabulate_scored(heard, whole)
    held = held_out_losses(tabulate(heard), fold, shrinkage)
    strengths = STRENGTHS if whole.classes else ()
    base, *others = whole.within(views)
    trials = [replace(best, columns=(base,))]
    trials += [replace(best, classes=whole.classes, strength=strength) for strength in strengths]
    trials += [replace(best, columns=(other,)) for other in others]
    for trial in trials:
        tried = best.joined(trial)
        gain = held - (losses := _layout_losses(patterns, whole, tried, views, fold, shrinkage))
        if _pays(gain) or (trial.columns == ("bend",) and best.columns and gain.mean() > 0):
            best, held = tried, losses
    return best if best.columns or best.classes else None


def choose_offsets(labelled: LabelledVotes, patterns: Patterns, shrinkage: float) -> Offsets:
    """The offsets that make a jury less surprised by the truths of folds it did not see; none where they do not pay."""
    classes, fold = frequent_classes(labelled), folds(len(labelled))
    if not classes:
        return Offsets()
    held = held_out_losses(patterns, fold, shrinkage)
    tried = [Offsets(classes, strength) for strength in STRENGTHS]
    losses = [held_out_losses(tabulate(labelled, each), fold, shrinkage) for each in tried]
    best = int(np.argmin([each.sum() for each in losses]))
    return tried[best] if _pays(held - losses[best]) else Offsets()


def frequent_classes(votes: Votes) -> tuple[int, ...]:
    """The base labels that enough pictures have, the most frequent first."""
    known, counts = np.unique(votes.base, return_counts=True)
    frequent = known[np.argsort(-counts, kind="stable")][: min(MOST_CLASSES, int((counts >= PER_CLASS).sum()))]
    return tuple(frequent.tolist())


def _layout_losses(
    patterns: Patterns, whole: Layout, tried: Layout, views: int, fold: Places, shrinkage: float
) -> Floats:
    """(n,): held-out losses with some columns of a table that has all."""
    wanted = set(tried.names(views))
    columns = [place for place, name in enumerate(whole.names(views)) if name in wanted]
    part = patterns.under(columns, tried.ridge(views))
    return held_out_losses(part, fold, shrinkage, descend(part, shrinkage))


def fit_scored(labelled: LabelledVotes, shrinkage: float, layout: Layout) -> Scored | None:
    """The weights with scores; None where hardly a picture has any."""
    heard = _scored_part(labelled)
    if heard is None:
        return None
    patterns = tabulate_scored(heard, layout)
    theta = descend(patterns, shrinkage)
    covariance = tuple(map(tuple, _covariance(patterns, shrinkage, theta).tolist()))
    columns = layout.within(len(labelled.panel))
    return Scored(layout.scale, columns, layout.knots, layout.classes, tuple(theta.tolist()), covariance)


def _scored_part(labelled: LabelledVotes) -> LabelledVotes | None:
    """The pictures whose own answer has a score or a list; None where too few have, or all say the same."""
    if labelled.evidence is None or useless(labelled.evidence):
        return None
    rows = np.flatnonzero(labelled.evidence.listed()[:, 0])
    part = labelled if len(rows) == len(labelled) else labelled.take(rows)
    return part if len(rows) >= FEWEST_SCORED and (part.truths != OUTSIDE).any() else None


def tabulate_scored(labelled: LabelledVotes, layout: Layout) -> Patterns:
    """Votes with scores and truths as the patterns that a fit works on: one a picture."""
    ballots = cast(labelled, layout.scale, layout.within(len(labelled.panel)), layout.knots, layout.classes)
    said = (ballots.labels == labelled.truths[:, None]) & (ballots.labels != MISSING)
    column = np.where(said.any(axis=1), said.argmax(axis=1), ballots.labels.shape[1])
    owner, _ = np.nonzero(ballots.possible)
    place = np.cumsum(ballots.possible.ravel()).reshape(ballots.possible.shape) - 1
    others = np.where(said.any(axis=1), 1, labelled.classes - (ballots.labels != MISSING).sum(axis=1))
    starts, ridge = np.searchsorted(owner, np.arange(len(labelled))), layout.ridge(len(labelled.panel))
    features, size = ballots.features[ballots.possible], ballots.left[ballots.possible]
    patterns = Patterns(features, size, starts, owner, column, np.log(np.maximum(others, 1)), ridge)
    return _settled(patterns, labelled, ballots.labels, ballots.possible, place)


def folds(pictures: int, parts: int = FOLDS, seed: int = 0) -> Places:
    """(n,): the fold of each picture, from 0; all folds are equally large, give or take one."""
    return np.random.default_rng(seed).permutation(pictures) % min(parts, pictures)


def choose_shrinkage(patterns: Patterns, fold: Places) -> float:
    """The shrinkage whose juries are least surprised by the truths of the folds they did not see.

    Weights of their own have to earn their place: the strongest shrinkage, which is one common weight, stays unless
    another lowers the mean loss by more than a standard error of what it gains, and with few pictures in any case.
    """
    if patterns.options.shape[1] - len(patterns.ridge) < 5 or len(fold) < OWN_WEIGHTS:
        return SHRINKAGES[0]
    loss = np.zeros((len(SHRINKAGES), len(fold)))
    for part in range(int(fold.max()) + 1):
        theta, held = None, fold == part
        for i, shrinkage in enumerate(SHRINKAGES):
            theta = descend(patterns, shrinkage, ~held, theta)
            loss[i, held] = losses(patterns, theta)[held]
    best = int(loss.sum(axis=1).argmin())
    return SHRINKAGES[best if _pays(loss[0] - loss[best]) else 0]


def _pays(gain: Floats) -> bool:
    """Whether the mean gain on held-out pictures exceeds its standard error."""
    return bool(gain.mean() > gain.std() / np.sqrt(len(gain)))


def held_out_losses(patterns: Patterns, fold: Places, shrinkage: float, start: Floats | None = None) -> Floats:
    """(n,): −log of the probability that a jury fitted on the other folds gives to each picture's truth."""
    held = np.zeros(len(fold))
    for part in range(int(fold.max()) + 1):
        theta = descend(patterns, shrinkage, fold != part, start)
        held[fold == part] = losses(patterns, theta)[fold == part]
    return held


def grow_panel(labelled: LabelledVotes, longest: int) -> list[int]:
    """Columns in the order in which they are to be asked: each adds most, on held-out folds, to those before it."""
    fold, panel, theta = folds(len(labelled)), list[int](), np.zeros(3)
    for _ in range(min(longest, len(labelled.panel))):
        start = widen(theta)
        left = [s for s in range(len(labelled.panel)) if s not in panel]
        tables = {s: tabulate(labelled.under([*panel, s])) for s in left}
        loss = {s: held_out_losses(table, fold, COMPARING, start).sum() for s, table in tables.items()}
        panel.append(min(loss, key=lambda s: loss[s]))
        theta = descend(tables[panel[-1]], COMPARING, start=start)
    return panel


def losses(patterns: Patterns, theta: Floats) -> Floats:
    """(n,): −log of the probability of each picture's truth, over all classes."""
    scores = patterns.scores(theta)
    total = _log_totals(patterns, scores)[patterns.kinds()]
    return total - patterns.log_possible(scores) + patterns.spread


def chances(patterns: Patterns, theta: Floats) -> Floats:
    """(r,): the probability of each option among those of its pattern."""
    scores = patterns.scores(theta)
    return np.exp(scores - _log_totals(patterns, scores)[patterns.owner])


def widen(theta: Floats, offsets: int = 0) -> Floats:
    """Parameters for one view more at the end of the panel, which gets the mean weight of the others."""
    end = len(theta) - 2 - offsets
    weight = theta[1:end].mean() if end > 1 else theta[0] / 2
    return np.insert(theta, end, weight)


def descend(
    patterns: Patterns, shrinkage: float, rows: NDArray[np.bool_] | None = None, start: Floats | None = None
) -> Floats:
    """(p,): the parameters of greatest penalised likelihood over the pictures of `rows`, or all, from `start`.

    Where every truth is known, the problem is convex. A picture of which it is only known what did not come true adds
    the log of a sum of probabilities, which is not concave: it is climbed by EM from the fit to the known truths. Each
    step counts such a picture with the probabilities of what is left, and solves the convex problem anew; the
    likelihood never falls, and the result is the same each time.
    """
    theta = np.zeros(patterns.options.shape[1]) if start is None else start
    theta = Bowl.of(patterns, shrinkage, patterns.hits(rows)).lowest(theta)
    for _ in range(200 if len(patterns.possible) else 0):
        before, theta = theta, Bowl.of(patterns, shrinkage, patterns.hits(rows, theta)).lowest(theta)
        if np.abs(theta - before).max() < 1e-6:
            break
    return theta


@dataclass(frozen=True, eq=False)
class Bowl:
    """The penalised negative log likelihood of some counts, a convex function."""

    patterns: Patterns
    hits: Floats
    mass: Floats
    pull: Floats

    @classmethod
    def of(cls, patterns: Patterns, shrinkage: float, hits: Floats) -> Bowl:
        """One picture more, its pattern and truth drawn evenly, keeps certainty away: Jeffreys' half counts."""
        mass = np.add.reduceat(hits, patterns.starts)
        sizes = np.bincount(patterns.owner)
        extra = mass / max(mass.sum(), 1.0)
        smooth = hits + (extra / sizes)[patterns.owner]
        return cls(patterns, smooth, mass + extra, _pull(patterns.options.shape[1], shrinkage, patterns.ridge))

    def at(self, theta: Floats) -> tuple[float, Floats, Floats]:
        """The loss, its gradient and its curvature."""
        options, starts, owner = self.patterns.options, self.patterns.starts, self.patterns.owner
        scores = self.patterns.scores(theta)
        total = _log_totals(self.patterns, scores)
        chance = np.exp(scores - total[owner])
        weight = chance * self.mass[owner]
        drag = self.pull @ theta
        value = float(self.mass @ total - self.hits @ scores + theta @ drag / 2)
        mean = np.add.reduceat(options * chance[:, None], starts)
        curvature = _gram(options, weight) - _gram(mean, self.mass) + self.pull
        return value, np.einsum("rp,r->p", options, weight - self.hits) + drag, curvature

    def lowest(self, start: Floats) -> Floats:
        """(p,): where the loss is least among parameters within their bounds, by projected Newton steps."""
        low, high = self.patterns.bounds()
        theta = np.clip(start, low, high)
        value, gradient, curvature = self.at(theta)
        for _ in range(100):
            # What stands at its bound and is pushed against it stays there; the others step together.
            pushed = ((theta - low < AT_BOUND) & (gradient > 0.0)) | ((high - theta < AT_BOUND) & (gradient < 0.0))
            free, step = ~pushed, np.zeros(len(theta))
            step[free] = np.linalg.solve(curvature[np.ix_(free, free)], gradient[free])
            fall = float(gradient @ step)
            if fall < 1e-7:
                # So close, the last step cannot be judged by the loss any more, and need not be.
                return np.clip(theta - step, low, high)
            size, point = 1.0, np.clip(theta - step, low, high)
            found = self.at(point)
            while found[0] > value - 1e-4 * float(gradient @ (theta - point)) and size > 1e-9:
                size /= 2
                point = np.clip(theta - size * step, low, high)
                found = self.at(point)
            theta, (value, gradient, curvature) = point, found
        return theta


def _gram(rows: Floats, weight: Floats) -> Floats:
    """Σ_r weight_r · row_r · row_rᵀ, in blocks so small that BLAS does each in one thread."""
    width = rows.shape[1]
    block = max(1, 250_000 // width**2)
    parts = (slice(i, i + block) for i in range(0, len(rows), block))
    return np.sum([(rows[part] * weight[part, None]).T @ rows[part] for part in parts], axis=0)


def _pull(width: int, shrinkage: float, ridge: tuple[float, ...] = ()) -> Floats:
    """(p, p): the curvature of ½·shrinkage·Σ_s (w_s − mean w)², of the faint pull to zero, and of the ridge."""
    pull = FLOOR * np.eye(width)
    views = width - 3 - len(ridge)
    if views:
        pull[1 : 1 + views, 1 : 1 + views] += shrinkage * (np.eye(views) - 1.0 / views)
    return pull + np.diag([*[0.0] * (1 + views), *ridge, 0.0, 0.0]) if ridge else pull


def _covariance(patterns: Patterns, shrinkage: float, theta: Floats) -> Floats:
    """The inverse of the curvature, less what a doubtful picture leaves open (Louis)."""
    curvature = Bowl.of(patterns, shrinkage, patterns.hits(theta=theta)).at(theta)[2]
    if len(patterns.possible):
        options, share = patterns.options[patterns.possible], patterns.shares(theta)
        mean = np.zeros((len(patterns.truth), options.shape[1]))
        np.add.at(mean, patterns.doubtful, options * share[:, None])
        curvature = curvature - _gram(options, share) + _gram(mean, np.ones(len(mean)))
    inverse = np.linalg.inv(curvature)
    return (inverse + inverse.T) / 2


def _log_totals(patterns: Patterns, scores: Floats) -> Floats:
    """(p,): log Σ exp of the scores of each pattern."""
    top = np.maximum.reduceat(scores, patterns.starts)
    total: Floats = top + np.log(np.add.reduceat(np.exp(scores - top[patterns.owner]), patterns.starts))
    return total


def _options(rows: Places, choice: NDArray[np.bool_], count: Places) -> tuple[Places, Floats]:
    """The pattern of each option, and what the option adds up."""
    owner, column = np.nonzero(choice)
    width = rows.shape[1]
    other = column == width
    options = np.zeros((len(owner), width + 2))
    options[:, :width] = rows[owner] == column[:, None]
    options[other, width] = 1.0
    options[other, width + 1] = -1.0 / count[owner[other]]
    return owner, options


def _truth_columns(codes: Codes, truths: Codes) -> Places:
    """(n,): the first column that says the truth, or the one after the last if none does."""
    said = (codes == truths[:, None]) & (codes != MISSING)
    return np.where(said.any(axis=1), said.argmax(axis=1), codes.shape[1])


def _check_possible(possible: NDArray[np.bool_], votes: Votes) -> None:
    if not possible.all():
        name = votes.names[int(possible.argmin())]
        raise DataError(f"{name!r}: all {votes.classes} classes were named, but its truth is another; raise classes")


def _codes(votes: Votes) -> Codes:
    """(n, S + 1): the base label, then the views'."""
    return np.column_stack([votes.base, votes.views])


def _first(codes: Codes) -> Places:
    """(n, S + 1): the first column that says the same label; MISSING where nothing was asked."""
    first = np.stack([(codes == codes[:, [s]]).argmax(axis=1) for s in range(codes.shape[1])], axis=1)
    return np.where(codes == MISSING, MISSING, first)


def _distinct(first: Places) -> tuple[Places, Places]:
    """The distinct rows, and which of them each row is."""
    packed = np.ascontiguousarray(first.astype(np.int16)).view(f"V{2 * first.shape[1]}").ravel()
    _, index, kind = np.unique(packed, return_index=True, return_inverse=True)
    return first[index], kind


@dataclass(frozen=True, eq=False)
class _Hearing:
    """What was said about n pictures, and the score of each option; column 0 is the base, the last is no one's."""

    codes: Codes
    first: Places
    scores: Floats
    covariance: Floats
    last: Codes
    """(n,): the only label that nobody said, MISSING where there are more, or none."""
    groups: Places
    """(n,): the place of the base label among the classes with an offset, otherwise −1."""

    def labels(self) -> Codes:
        """(n, S + 2): each named label where it was said first, and the only one that nobody said; others MISSING."""
        return np.column_stack([np.where(self._named(), self.codes, np.int32(MISSING)), self.last])

    def named(self) -> Floats:
        """(n, S + 2): their probabilities."""
        return np.where(np.isfinite(self.eligible()), _softmax(self.scores), 0.0)

    def eligible(self) -> Floats:
        """(n, S + 2): the scores of options that are labels."""
        scores = self.scores.copy()
        scores[self.last == MISSING, -1] = -np.inf
        return scores

    def odds(self, believed: Places) -> Floats:
        """(n,): log odds of the label in the believed column."""
        return log_odds(self.scores[np.arange(len(believed)), believed], self._others(believed))

    def slope(self, believed: Places) -> Floats:
        """(n, p): how those log odds change with each parameter."""
        share = _softmax(self._others(believed))
        asked = self.codes != MISSING
        rivals = np.take_along_axis(share, np.where(asked, self.first, 0), axis=1) * asked
        none, count = (believed == self.first.shape[1]) - share[:, -1], self._named().sum(axis=1)
        votes = (self.first == believed[:, None]) - rivals
        offsets = len(self.covariance) - votes.shape[1] - 2
        own = (self.groups[:, None] == np.arange(offsets)) * votes[:, :1]
        return np.column_stack([votes, own, none, -none / count])

    def _named(self) -> NDArray[np.bool_]:
        return self.first == np.arange(self.first.shape[1])

    def _others(self, believed: Places) -> Floats:
        rest = self.scores.copy()
        rest[np.arange(len(rest)), believed] = -np.inf
        return rest


def _hear(votes: Votes, jury: Jury) -> _Hearing:
    codes = _codes(votes)
    first = _first(codes)
    n, width = first.shape
    asked = first != MISSING
    cell = np.arange(n)[:, None] * width + first
    weight = np.broadcast_to(np.array(jury.weights), first.shape)
    sums = np.bincount(cell[asked], weight[asked], minlength=n * width).reshape(n, width)
    named = first == np.arange(width)
    count = named.sum(axis=1)
    left = votes.classes - count
    share = np.log(np.maximum(left, 1) / (votes.classes - 1))
    none = np.where(left > 0, share + jury.unnamed[0] - jury.unnamed[1] / count, -np.inf)
    groups = Offsets(jury.classes).of(votes.base)
    sums[:, 0] += np.array([*jury.offsets, 0.0])[groups]
    scores = np.column_stack([np.where(named, sums, -np.inf), none])
    return _Hearing(codes, first, scores, np.array(jury.covariance), _only_left(codes, left, votes), groups)


def _only_left(codes: Codes, left: Places, votes: Votes) -> Codes:
    """(n,): the only label of a complete vocabulary that nobody said, MISSING where there are more, or none."""
    last = np.full(len(codes), MISSING, np.int32)
    rows = np.flatnonzero(left == 1) if len(votes.vocabulary) == votes.classes else np.empty(0, np.intp)
    said = np.zeros((len(rows), votes.classes + 1), bool)
    said[np.arange(len(rows))[:, None], codes[rows]] = True
    last[rows] = said[:, :-1].argmin(axis=1)
    return last


def joined_distribution(parts: Sequence[tuple[Places, Codes, Floats]], pictures: int, classes: int) -> Distribution:
    """One distribution of several, each about the pictures at these places."""
    if len(parts) == 1:
        return Distribution(parts[0][1], parts[0][2], classes)
    labels = np.full((pictures, max((part.shape[1] for _, part, _ in parts), default=0)), MISSING, np.int32)
    named = np.zeros(labels.shape)
    for rows, codes, probabilities in parts:
        labels[rows, : codes.shape[1]] = codes
        named[rows, : codes.shape[1]] = probabilities
    return Distribution(labels, named, classes)


def _softmax(scores: Floats) -> Floats:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _sigmoid(odds: Floats) -> Floats:
    from scipy.special import expit

    chance: Floats = expit(odds)
    return chance
