"""The jury: a weighted vote of the views (a conditional logit) that also allows for labels that no view returned.

For each of the m returned labels c, P(y = c) ∝ exp(w₀·[base = c] + Σ_s w_s·[v_s = c] + γ·log n_c), where n_c is the
number of answers that return c. The K − m classes that no answer returned share P(other classes) ∝ (K − m)/(K −
1)·exp(b₀ + b₁·log(m/(S + 1))). If a classifier is biased, a second step corrects its confusions (`Confusion`). Answers
about one picture are not independent: with γ, each further vote for the same label counts less. A missing answer adds
nothing, even if it is the base answer. If a classifier cannot return label c, its answer supports c as much as the
label that it returned. With few labelled pictures, the probabilities stay close to P(y = c) ∝ (n_c + ½)^g
(`logit.vote_shares`).

All w, γ and b₁ are at least 0, and b₀ is at most log(K − 1). Therefore, before the second step, a view that changes
from the base label to another label never raises the probability of the base label. The score of the base label falls
by w_s and γ·log(n/(n − 1)), and no other score falls. The score of the other label rises: if no answer returned it
before, from at most b₀ − log(K − 1) ≤ 0 to w_s ≥ 0. The score of each class that is still not returned grows with m.

If only one class was not returned, it is an option like any label and can be predicted. With two classes, the jury may
thus predict the class that no answer returned.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration.confusion import ConfusedUtilities, Confusion, learn_confusion
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.evidence import MISSING, Codes, Floats, Places, Scale, sigmoid, softmax, useless
from looktwice.calibration.logit import (
    PRIOR_PICTURES,
    SHRINKAGE,
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
from looktwice.calibration.shares import Ballot, unfitted
from looktwice.calibration.votes import OUTSIDE, LabelledVotes, Votes
from looktwice.errors import DataError, FitError

V = TypeVar("V", bound=Votes)
Z95 = 1.959963984540054
FEWEST_CONFUSED = 3
"""With early stopping, the minimum number of views for the confusion step."""


class ByUtilities(ABC):
    """A base class for calibrators that predict from the utilities of each picture's options."""

    ballot: Ballot

    @abstractmethod
    def _parts(self, votes: Votes) -> Iterator[tuple[Places, Utilities]]:
        """Split the pictures by the parameters that apply to them, and yield each part with its utilities."""

    @abstractmethod
    def judged_by_scores(self, votes: Votes) -> NDArray[np.bool_]:
        """(n,): whether each picture's scores are used in addition to its labels."""

    def predict(self, votes: Votes) -> Codes:
        """(n,): the most probable returned label, or the base label for the ballot "base"."""
        label = votes.base.copy()
        for rows, utilities in self._parts(votes):
            label[rows] = utilities.labels()[np.arange(len(rows)), self._believed(utilities)]
        return label

    def confidence(self, votes: Votes) -> Floats:
        """(n,): the probability that the predicted label is right, in [0, 1]."""
        confidence = np.zeros(len(votes))
        for rows, utilities in self._parts(votes):
            confidence[rows] = sigmoid(utilities.odds(self._believed(utilities)))
        return confidence

    def interval(self, votes: Votes) -> tuple[Floats, Floats]:
        """(n,) twice: the 95 % interval for the confidence that unlimited labelled pictures would give.

        The curvature of the penalised likelihood (Laplace approximation) is propagated to the log odds of the
        confidence.
        """
        low, high = np.zeros((2, len(votes)))
        for rows, utilities in self._parts(votes):
            believed = self._believed(utilities)
            odds, slope = utilities.odds(believed), utilities.slope(believed, softmax(utilities.rivals(believed)))
            variance = ((slope @ utilities.covariance) * slope).sum(axis=1)
            half = Z95 * np.sqrt(np.maximum(variance, 0.0))
            low[rows], high[rows] = sigmoid(odds - half), sigmoid(odds + half)
        return low, high

    def distribution(self, votes: Votes) -> Distribution:
        """The probability of returned and other likely labels; the other classes share the rest evenly."""
        parts = [(rows, utilities.distribution(votes.classes)) for rows, utilities in self._parts(votes)]
        if len(parts) == 1:
            return parts[0][1]
        labels = np.full((len(votes), max((part.labels.shape[1] for _, part in parts), default=0)), MISSING, np.int32)
        named = np.zeros(labels.shape)
        for rows, part in parts:
            width = part.labels.shape[1]
            labels[rows, :width], named[rows, :width] = part.labels, part.named
        return Distribution(labels, named, votes.classes)

    def _believed(self, utilities: Utilities) -> Places:
        """(n,): the column of the predicted label; ties go to the base label."""
        best = utilities.eligible().argmax(axis=1)
        return best if self.ballot == "vote" else np.zeros_like(best)


@dataclass(frozen=True)
class Jury(ByUtilities):
    """Weights for the base label and for each view of the panel, and two parameters for the other classes."""

    name: ClassVar[str] = "jury"
    weights: tuple[float, ...] = ()
    """w₀ for the base label, followed by w_s for each view in panel order."""
    unnamed: tuple[float, float] = (0.0, 0.0)
    """b₀ and b₁, the parameters of the other classes."""
    shrinkage: float = SHRINKAGE
    """The strength of the penalty that shrinks the view weights towards their mean."""
    covariance: tuple[tuple[float, ...], ...] = field(default=(), repr=False)
    """The posterior covariance of w₀, w_1 … w_S, γ, b₀, b₁ (Laplace's approximation)."""
    ballot: Ballot = "vote"
    """The label that the confidence refers to: the base answer, or the most probable label."""
    scored: Scored | None = None
    """The weights for pictures with scores; None if there were no scores, or if scores did not improve the fit."""
    confusion: Confusion | None = None
    """The confusion step; None if it did not improve the fit."""
    log_votes: float = 0.0
    """γ, the weight of log n_c, which makes each further vote for the same label count less."""

    def __post_init__(self) -> None:
        if {len(self.covariance), *map(len, self.covariance)} not in ({0}, {len(self.weights) + 3}):
            raise DataError(
                "the jury's weights and covariance are inconsistent; fit again", code="calibrator-malformed"
            )

    def fit(self, labelled: LabelledVotes) -> Self:
        """Fit the jury.

        Scores and the confusion step are used only if they lower the log loss on held-out folds.
        """
        labelled.check()
        layout = choose_layout(labelled, self.shrinkage)
        confusion = learn_confusion(labelled, lambda part: self._fit(part, layout))
        return replace(self._fit(labelled, layout), confusion=confusion)

    @property
    def uses_scores(self) -> bool:
        """Whether scores are used if available."""
        return self.scored is not None

    def judged_by_scores(self, votes: Votes) -> NDArray[np.bool_]:
        """(n,): whether each picture's scores are used in addition to its labels."""
        if self.scored is None or votes.evidence is None:
            return np.zeros(len(votes), bool)
        return votes.evidence.listed()[:, self.scored.first]

    def lacks_scores(self, votes: Votes) -> NDArray[np.bool_]:
        """(n,): whether the scores that the jury was fitted on are missing."""
        return self.uses_scores & ~self.judged_by_scores(votes)

    def pooled(self, views: int) -> Self:
        """Adapt the jury to views outside the panel, such as several photos of one object.

        Each of the `views` new views has the mean weight of the panel's views; the covariance is transformed
        accordingly.
        """
        fitted = len(self.weights) - 1
        if fitted < 1:
            raise FitError(
                f"a jury fitted without views cannot be applied to {views} views; fit it on a panel",
                code="votes-mismatch",
            )
        mixing = pooling(fitted, views, 3)
        scored = self.scored.pooled(views) if self.scored and not self.scored.first else None
        covariance = mixing @ np.array(self.covariance) @ mixing.T
        return replace(self, scored=scored)._with_parameters(mixing @ self.theta, covariance)

    def _fit(self, labelled: LabelledVotes, layout: Layout | None) -> Self:
        """Fit the label weights, and the score weights with this layout, without the confusion step."""
        patterns = replace(tabulate(labelled), prior_pictures=PRIOR_PICTURES)
        scored = fit_scored(labelled, self.shrinkage, layout) if layout else None
        theta = descend(patterns, self.shrinkage)
        fitted = self._with_parameters(theta, posterior_covariance(patterns, self.shrinkage, theta))
        return replace(fitted, scored=scored, confusion=None)

    @property
    def theta(self) -> Floats:
        """(S + 4,): w₀, w_1 … w_S, γ, b₀ and b₁."""
        return np.array([*self.weights, self.log_votes, *self.unnamed])

    def _with_parameters(self, theta: Floats, covariance: Floats) -> Self:
        return replace(
            self,
            weights=tuple(theta[:-3].tolist()),
            log_votes=float(theta[-3]),
            unnamed=(float(theta[-2]), float(theta[-1])),
            covariance=tuple(map(tuple, covariance.tolist())),
        )

    def _parts(self, votes: Votes) -> Iterator[tuple[Places, Utilities]]:
        """Yield the utilities of pictures judged by labels alone, then of pictures judged by scores too."""
        scored = self.judged_by_scores(votes)
        for rows in filter(len, (np.flatnonzero(~scored), np.flatnonzero(scored))):
            part = votes if len(rows) == len(votes) else votes.take(rows)
            with_scores = self.scored if scored[rows[0]] else None
            utilities = with_scores.utilities(part) if with_scores else self._utilities(part)
            yield rows, ConfusedUtilities.after(utilities, part, self.confusion) if self.confusion else utilities

    def _utilities(self, votes: Votes) -> Utilities:
        if not self.weights:
            raise unfitted(self.name)
        if len(votes.panel) != len(self.weights) - 1:
            raise _other_panel(len(self.weights) - 1, len(votes.panel))
        return weigh(votes, options_of(votes), self.theta, np.array(self.covariance))


@dataclass(frozen=True)
class AdaptiveJury(ByUtilities):
    """A jury for each possible number of queried views: the calibrator for early stopping.

    The number of queried views is inferred from the votes: it is the position of the last view that is not MISSING.
    """

    name: ClassVar[str] = "adaptive-jury"
    juries: tuple[Jury, ...] = ()
    """The juries for the first 0, 1 … S views of the panel."""
    ballot: Ballot = "vote"
    confusion: Confusion | None = None
    """The confusion step for at least FEWEST_CONFUSED views: with fewer views, pictures of easy classes would stop so
    early that drift would go undetected. A jury with its own confusion step uses its own step instead."""

    def fit(self, labelled: LabelledVotes) -> Self:
        """Fit the juries on pictures for which every view was queried."""
        labelled.check()
        layouts = choose_layout(labelled, SHRINKAGE), choose_layout(labelled.under([]), SHRINKAGE)
        layout = Layout.union(*layouts)
        confusion = learn_confusion(labelled, lambda part: Jury()._fit(part, layout))
        juries = [Jury()._fit(labelled.under(range(views)), layout) for views in range(len(labelled.panel) + 1)]
        return replace(self, juries=tuple(juries), confusion=confusion)

    @property
    def uses_scores(self) -> bool:
        """Whether scores are used if available."""
        return any(jury.uses_scores for jury in self.juries)

    def judged_by_scores(self, votes: Votes) -> NDArray[np.bool_]:
        """(n,): whether each picture's scores are used in addition to its labels."""
        scored = np.zeros(len(votes), bool)
        for rows, jury, part in self._by_views_asked(votes):
            scored[rows] = jury.judged_by_scores(part)
        return scored

    def lacks_scores(self, votes: Votes) -> NDArray[np.bool_]:
        """(n,): whether each picture lacks the scores that its jury was fitted on."""
        lacking = np.zeros(len(votes), bool)
        for rows, jury, part in self._by_views_asked(votes):
            lacking[rows] = jury.lacks_scores(part)
        return lacking

    def _parts(self, votes: Votes) -> Iterator[tuple[Places, Utilities]]:
        """Yield the utilities of pictures by the number of queried views, and by whether scores are used."""
        for rows, jury, part in self._by_views_asked(votes):
            yield from ((rows[places], utilities) for places, utilities in jury._parts(part))

    def members(self) -> tuple[Jury, ...]:
        """The juries with the shared ballot and confusion step."""
        common = [self.confusion if len(jury.weights) > FEWEST_CONFUSED else None for jury in self.juries]
        return tuple(
            replace(jury, ballot=self.ballot, confusion=jury.confusion or step)
            for jury, step in zip(self.juries, common, strict=True)
        )

    def pooled(self, views: int) -> Jury:
        """Adapt the jury for `views` views, or for the whole panel if that is smaller, to views outside the panel."""
        if not self.juries:
            raise unfitted(self.name)
        return self.members()[min(views, len(self.juries) - 1)].pooled(views)

    def _by_views_asked(self, votes: Votes) -> Iterator[tuple[Places, Jury, Votes]]:
        """Yield, for each number of queried views, the pictures, their jury, and their votes on these views."""
        if not self.juries:
            raise unfitted(self.name)
        if len(votes.panel) != len(self.juries) - 1:
            raise _other_panel(len(self.juries) - 1, len(votes.panel))
        counts, juries = asked(votes), self.members()
        for count in np.unique(counts).tolist():
            rows = np.flatnonzero(counts == count)
            yield rows, juries[count], votes.take(rows).under(range(count))


def by_scores(calibrator: object, votes: Votes) -> NDArray[np.bool_]:
    """(n,): whether a calibrator uses the scores of each picture; only juries do."""
    return calibrator.judged_by_scores(votes) if isinstance(calibrator, ByUtilities) else np.zeros(len(votes), bool)


def asked(votes: Votes) -> Places:
    """(n,): the number of queried views: the position of the last view that is not MISSING."""
    return ((votes.views != MISSING) * np.arange(1, len(votes.panel) + 1)).max(axis=1, initial=0)


def _other_panel(fitted: int, given: int) -> DataError:
    known = f"the jury was fitted on {fitted} views"
    return DataError(
        f"{known} and cannot be applied to votes on {given}; use the same panel, or fit again", code="votes-mismatch"
    )


# Scores ---------------------------------------------------------------------------------------------------------------

FEWEST_SCORED = 20
"""The minimum number of labelled pictures with scores for a fit."""


@dataclass(frozen=True)
class Scored:
    """A weighted vote with scores, used for pictures whose base answer has a score or a list.

    Every column except `count` (see `options`) must improve the predictions on held-out folds; of the two columns that
    pool lists, the one with the larger improvement is added first. Options come from all lists, which contain the true
    label far more often than the first labels alone.
    """

    scale: Scale
    columns: tuple[Column, ...]
    """The selected columns."""
    knots: tuple[float, ...]
    """The knots of `bend`."""
    theta: tuple[float, ...]
    """w₀, w_1 … w_S, a weight for each column, b₀ and b₁."""
    covariance: tuple[tuple[float, ...], ...] = field(repr=False)
    first: int = 0
    """The index of the first answer with scores, from 0 for the base answer; it takes the place of the base answer."""

    def __post_init__(self) -> None:
        sizes = {len(self.covariance), *map(len, self.covariance)}
        if self.views < 0 or sizes != {len(self.theta)} or not 0 <= self.first <= self.views:
            raise DataError("the jury's parameters for scores are inconsistent; fit again", code="calibrator-malformed")

    @property
    def views(self) -> int:
        """The number of views in the panel of the fit."""
        return len(self.theta) - 3 - width(self.columns, self.knots)

    def utilities(self, votes: Votes) -> Utilities:
        """The utility of every option; every picture needs a list of the first answer with scores."""
        votes = _led_by(votes, self.first)
        options = options_of(votes, self.scale, self.columns, self.knots)
        return weigh(votes, options, np.array(self.theta), np.array(self.covariance))

    def pooled(self, views: int) -> Self:
        """Adapt to views outside the panel, each with the mean weight of the panel's views."""
        mixing = pooling(self.views, views, len(self.theta) - 1 - self.views)
        covariance = mixing @ np.array(self.covariance) @ mixing.T
        theta = (mixing @ np.array(self.theta)).tolist()
        return replace(self, theta=tuple(theta), covariance=tuple(map(tuple, covariance.tolist())))


def choose_layout(labelled: LabelledVotes, shrinkage: float) -> Layout | None:
    """Select the columns that lower the held-out log loss; returns None if no column does.

    Columns are tested one by one. Each must lower the mean log loss by more than one standard error of the gain without
    raising the mean Brier score: low-ranked labels in a list lower the log loss but may raise the Brier score. If some
    true labels are unknown except for excluded labels, only the log loss is used.
    """
    first = first_scored(labelled)
    with_scores = _scored_part(labelled, first)
    if with_scores is None or with_scores.evidence is None:
        return None
    views, fold = len(labelled.panel), folds(len(with_scores))
    scale = Scale.learn(with_scores.evidence)
    best = Layout(scale, learn_knots(with_scores, scale), COLUMNS[:1], first)
    whole = replace(best, columns=COLUMNS)
    patterns = tabulate(with_scores, whole)
    plain = replace(tabulate(with_scores), prior_pictures=PRIOR_PICTURES)
    held = _held_out(plain, fold, shrinkage, with_scores.classes)
    doubtful = bool(with_scores.doubtful().any())
    # Both of POOLS tell what the lists say together: whichever tells more comes first, and the other must add to it.
    rounds: list[tuple[Column, ...]] = [("base",), ("bend",), *[POOLS] * (len(POOLS) if views else 0)]
    theta: dict[str, float] = {}
    for trials in rounds:
        useful = list[tuple[float, Layout, Floats]]()
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
                useful.append((float(gain[0].mean()), tried, scores))
        if useful:
            _, best, held = max(useful, key=lambda each: each[0])
    return best if len(best.columns) > 1 else None


def _held_out(patterns: Patterns, fold: Places, shrinkage: float, classes: int, start: Floats | None = None) -> Floats:
    """(2, n): the log loss and the Brier score of each picture under a jury fitted on the other folds."""
    held = np.zeros((2, len(fold)))
    for rows, theta in held_out_fits(patterns, fold, shrinkage, start):
        held[:, rows] = losses(patterns, theta)[rows], briers(patterns, theta, classes)[rows]
    return held


def fit_scored(labelled: LabelledVotes, shrinkage: float, layout: Layout) -> Scored | None:
    """Fit the score weights; returns None if too few pictures have scores."""
    with_scores = _scored_part(labelled, layout.first)
    if with_scores is None:
        return None
    patterns = tabulate(with_scores, layout)
    theta = descend(patterns, shrinkage)
    covariance = tuple(map(tuple, posterior_covariance(patterns, shrinkage, theta).tolist()))
    columns = layout.within(len(labelled.panel))
    return Scored(layout.scale, columns, layout.knots, tuple(theta.tolist()), covariance, layout.first)


def first_scored(votes: Votes) -> int:
    """The index of the first answer with scores or lists, from 0 for the base answer; 0 if there is none."""
    return 0 if votes.evidence is None else int(votes.evidence.listed().any(axis=0).argmax())


def _led_by(votes: V, first: int) -> V:
    """The votes with this answer as the base answer, followed by the other answers."""
    others = (place for place in range(1 + len(votes.panel)) if place != first)
    return votes.of_sources([first, *others]) if first else votes


def _scored_part(labelled: LabelledVotes, first: int) -> LabelledVotes | None:
    """The pictures whose `first` answer has a score or a list; None if they are too few or carry no information."""
    if labelled.evidence is None or first > len(labelled.panel):
        return None
    labelled = _led_by(labelled, first)
    if labelled.evidence is None or useless(labelled.evidence):
        return None
    rows = np.flatnonzero(labelled.evidence.listed()[:, 0])
    part = labelled if len(rows) == len(labelled) else labelled.take(rows)
    return part if len(rows) >= FEWEST_SCORED and (part.truths != OUTSIDE).any() else None
