"""Votes and truths → what they teach. Pure: no network, no disk, no clock."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration import metrics
from looktwice.calibration.calibrators import Belief, Constant, Naive
from looktwice.calibration.jury import Jury, Prefixes, grow_panel
from looktwice.calibration.jury import asked as views_asked
from looktwice.calibration.metrics import Intervals, Scores
from looktwice.calibration.votes import Codes, Floats, LabelledVotes, Votes
from looktwice.errors import FitError
from looktwice.verdicts.decisions import AdaptiveRule, chance_of_truth, movement
from looktwice.verdicts.profile import HeldOut, Result, figure

FOLDS = 5
BETTER, WORSE = -0.005, 0.01
"""What stopping early aims for, as shares of a fixed panel's Brier score: with more views at hand, and without."""
BISECTIONS = 14
RANKING = 500
"""Labelled pictures that are enough to rank views; with fewer the order as given is better (docs/method.md)."""
ADAPTIVE = "adaptive jury"
Places = NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a belief said about labelled pictures, and how it turned out."""

    name: str
    queries: float
    """Queries a picture, the first one included; their mean where pictures differ."""
    label: Codes
    confidence: Floats
    correct: NDArray[np.bool_]
    brier: Floats
    nll: Floats
    chance: Floats
    """The probability of what came true, all labels that nobody named being one option."""

    def scores(self) -> Scores:
        """The headline figures."""
        return metrics.score(self.confidence, self.correct, self.brier, self.nll)

    def intervals(self, seed: int = 0) -> Intervals:
        """Their 95 % intervals, by resampling pictures."""
        return metrics.bootstrap(self.confidence, self.correct, self.brier, self.nll, seed=seed)

    def result(self) -> Result:
        """Both, as a profile keeps them."""
        values, ends = asdict(self.scores()), asdict(self.intervals())
        return Result(
            belief=self.name, queries=self.queries, figures={key: figure(values[key], ends[key]) for key in values}
        )

    def point(self) -> Result:
        """The figures without their intervals, as a curve has many of them."""
        return Result(
            belief=self.name,
            queries=self.queries,
            figures={key: figure(value, None) for key, value in asdict(self.scores()).items()},
        )

    def since(self, start: int) -> Self:
        """The same without the first pictures."""
        return replace(self, **{field: getattr(self, field)[start:] for field in ARRAYS})

    def held_out(self, final: Outcome) -> HeldOut:
        """What promises rest on, picture by picture, as a profile keeps it.

        `final` is what the belief that goes into the profile makes of the same pictures. Many pictures have the same
        answers and so the same chance, and it differs a little from fold to fold. The lower chance counts, so that
        sets do not leave out a tenth of the pictures by a hair.
        """
        return HeldOut(
            confidence=tuple(np.round(self.confidence, 6).tolist()),
            correct=tuple(self.correct.tolist()),
            chance=tuple(_rounded_down(np.minimum(self.chance, final.chance)).tolist()),
        )


def outcome(belief: Belief, labelled: LabelledVotes, name: str | None = None) -> Outcome:
    """How a fitted belief fares on pictures it was not fitted on."""
    distribution, truths = belief.distribution(labelled), labelled.truths
    label = belief.predict(labelled)
    return Outcome(
        name or belief.name,
        1 if belief.name in (Naive.name, Constant.name) else _queries(labelled),
        label,
        belief.confidence(labelled),
        label == truths,
        distribution.brier(truths),
        distribution.nll(truths),
        chance_of_truth(distribution, truths),
    )


def check_count(pictures: int, least: int = 2 * FOLDS) -> None:
    """Refuse pictures that are too few to be judged by folds."""
    if pictures < least:
        raise FitError(f"{pictures} labelled pictures are too few; give at least {least}, better 200")


def cross_fit(belief: Belief, labelled: LabelledVotes, seed: int = 0, teachers: int = 0) -> Outcome:
    """How the belief fares on each fifth of the pictures when it is fitted on the others.

    The first `teachers` pictures are in every fit and never judged: those on which something was chosen.
    """
    parts = []
    for train, test in _folds(len(labelled), teachers, seed):
        fitted = belief.fit(labelled.take(train))
        parts.append((outcome(fitted, labelled.take(test)), test))
    return _joined(parts)


@dataclass(frozen=True, eq=False)
class Growth:
    """What the juries of a panel's prefixes made of each picture, view by view."""

    steps: tuple[Outcome, ...]
    """After 0, 1 … S views."""
    movement: Floats
    """(n, S + 1): how far the belief was from that after all views."""

    def confidence(self) -> Floats:
        """(n, S + 1): the confidence after each number of views."""
        return np.column_stack([step.confidence for step in self.steps])

    def changed(self, threshold: float) -> Floats:
        """(n, S + 1): 1 where the label or its acceptance would have been another than after all views."""
        last = self.steps[-1]
        label = np.column_stack([step.label != last.label for step in self.steps])
        accepted = self.confidence() >= threshold
        return (label | (accepted != accepted[:, -1:])).astype(np.float64)

    def stopped(self, rule: AdaptiveRule) -> Outcome:
        """How pictures fare if one stops asking by this rule."""
        views = rule.asked(self.confidence())

        def chosen(field: str) -> NDArray[np.generic]:
            return np.column_stack([getattr(step, field) for step in self.steps])[np.arange(len(views)), views]

        arrays = {field: chosen(field) for field in ARRAYS}
        return Outcome(ADAPTIVE, 1.0 + float(views.mean()), **arrays)  # type: ignore[arg-type]


def grow(juries: Sequence[Jury], labelled: LabelledVotes) -> Growth:
    """What juries for 0, 1 … S views make of these pictures."""
    heard = [labelled.under(range(views)) for views in range(len(juries))]
    steps = [outcome(jury, said) for jury, said in zip(juries, heard, strict=True)]
    moved = movement([jury.distribution(said) for jury, said in zip(juries, heard, strict=True)])
    return Growth(tuple(steps), moved)


@dataclass(frozen=True, eq=False)
class Trial:
    """What juries made of the pictures that taught them, and of a fifth that did not."""

    taught: Growth
    tested: Growth
    usual: Growth
    """What juries for the views in the order of the panel made of the tested ones."""
    places: Places
    """Which pictures were tested."""


def trials(belief: Jury, labelled: LabelledVotes, seed: int = 0, teachers: int = 0) -> list[Trial]:
    """Juries for 0, 1 … S views, fitted five times, each time on four fifths of the pictures."""
    found = []
    for train, test in _folds(len(labelled), teachers, seed):
        taught, tested = _taught(belief, labelled, train, test)
        found.append(Trial(taught, tested, tested, test))
    return found


def order(
    belief: Jury, labelled: LabelledVotes, fixed: int, seed: int = 0, teachers: int = 0
) -> tuple[list[int], list[Trial]]:
    """In which order views are asked, and the trials of it: with enough pictures, that of their worth on these.

    In the trials each four fifths of the pictures find the order anew.
    """
    usual, found = trials(belief, labelled, seed, teachers), []
    if len(labelled) < RANKING:
        return list(range(len(labelled.panel))), usual
    for trial, (train, test) in zip(usual, _folds(len(labelled), teachers, seed), strict=True):
        said = labelled.under(worth(labelled.take(train), fixed))
        found.append(Trial(*_taught(belief, said, train, test), trial.usual, test))
    return worth(labelled, fixed), found


def worth(labelled: LabelledVotes, fixed: int) -> list[int]:
    """All views: so many by what they add to those before them, then the others as they are."""
    first = grow_panel(labelled, fixed)
    return [*first, *(view for view in range(len(labelled.panel)) if view not in first)]


def _taught(belief: Jury, labelled: LabelledVotes, train: Places, test: Places) -> tuple[Growth, Growth]:
    """What the juries that some pictures teach make of these, and of others."""
    juries = Prefixes(ballot=belief.ballot).fit(labelled.take(train)).seated()
    taught, tested = (grow(juries, labelled.take(rows)) for rows in (train, test))
    return taught, tested


def steps(found: Sequence[Trial]) -> tuple[Outcome, ...]:
    """How juries for 0, 1 … S views fare on pictures that they were not fitted on."""
    count = len(found[0].tested.steps)
    return tuple(_joined([(trial.tested.steps[views], trial.places) for trial in found]) for views in range(count))


class Aim(Protocol):
    """What stopping early must not cost."""

    def regret(self, growth: Growth) -> Floats:
        """(n, S + 1): what stopping after each number of views costs."""

    def allowance(self, found: Sequence[Trial]) -> float:
        """How much of it is allowed, on average over pictures that taught nothing."""


@dataclass(frozen=True)
class Thrift:
    """Be about as good as the first `fixed` views of the panel, always asked, by the Brier score.

    If there are more, unsure pictures are asked about under those too and sure ones under fewer, and the aim is a
    little better, because new pictures always come out a little worse than those one learned from. If there are no
    more, a little worse is all that can be aimed for.
    """

    fixed: int

    def regret(self, growth: Growth) -> Floats:
        return growth.movement

    def allowance(self, found: Sequence[Trial]) -> float:
        moved = np.concatenate([trial.usual.movement[:, self.fixed] for trial in found])
        brier = np.concatenate([trial.usual.steps[self.fixed].brier for trial in found])
        more = self.fixed < len(found[0].usual.steps) - 1
        return float(moved.mean() + (BETTER if more else WORSE) * brier.mean())


@dataclass(frozen=True)
class SameDecision:
    """Decide as the whole panel would, but for a few pictures: the same label, accepted or not at this threshold."""

    threshold: float
    others: float = 0.01
    """The share of pictures on which the decision may be another."""

    def regret(self, growth: Growth) -> Floats:
        return growth.changed(self.threshold)

    def allowance(self, found: Sequence[Trial]) -> float:
        return self.others


def price(found: Sequence[Trial], aim: Aim) -> float:
    """The highest price of a view at which the rules that it makes keep the aim on pictures that taught nothing."""
    parts = [(t.taught.confidence(), aim.regret(t.taught), t.tested.confidence(), aim.regret(t.tested)) for t in found]
    cheap, dear, allowance = -14.0, 1.0, aim.allowance(found)
    for _ in range(BISECTIONS):
        middle = (cheap + dear) / 2
        kept = _regret(parts, math.exp(middle)) <= allowance
        cheap, dear = (middle, dear) if kept else (cheap, middle)
    return math.exp(cheap)


def _regret(parts: Sequence[tuple[Floats, Floats, Floats, Floats]], cost: float) -> float:
    paid = []
    for confidence, regret, others, others_regret in parts:
        asked = AdaptiveRule.priced(confidence, regret, cost).asked(others)
        paid.append(others_regret[np.arange(len(asked)), asked])
    return float(np.concatenate(paid).mean())


def rule(growth: Growth, aim: Aim, cost: float) -> AdaptiveRule:
    """When to stop if a view costs so much."""
    return AdaptiveRule.priced(growth.confidence(), aim.regret(growth), cost)


def stopped(found: Sequence[Trial], aim: Aim, cost: float) -> Outcome:
    """How pictures that taught neither juries nor rule fare if one stops early."""
    return _joined([(trial.tested.stopped(rule(trial.taught, aim, cost)), trial.places) for trial in found])


def baselines(labelled: LabelledVotes) -> list[Outcome]:
    """What one has without asking again: full trust, and the accuracy as trust in every answer.

    The accuracy is that of all pictures: fitted by folds, constant trust would differ between folds and seem to rank.
    """
    return [outcome(belief.fit(labelled), labelled) for belief in (Naive(), Constant())]


def _rounded_down(chance: Floats) -> Floats:
    return np.floor(chance * 1e6) / 1e6


ARRAYS = ("label", "confidence", "correct", "brier", "nll", "chance")


def _queries(votes: Votes) -> float:
    """Queries a picture, the mean where one stopped asking about some of them."""
    return _plain(1.0 + float(views_asked(votes).mean()))


def _plain(number: float) -> float:
    """A whole number as one, so that nine queries are not 9.0."""
    return int(number) if number.is_integer() else number


def _folds(pictures: int, teachers: int, seed: int) -> list[tuple[Places, Places]]:
    """Places to fit on and to judge: each picture but the first `teachers` is judged once."""
    judged = np.arange(teachers, pictures)
    check_count(len(judged))
    fold = np.random.default_rng(seed).permutation(len(judged)) % FOLDS
    fold = np.concatenate([np.full(teachers, FOLDS), fold])
    return [(np.flatnonzero(fold != part), np.flatnonzero(fold == part)) for part in range(FOLDS)]


def _joined(parts: Sequence[tuple[Outcome, Places]]) -> Outcome:
    """One outcome of several, the pictures in their order."""
    order = np.argsort(np.concatenate([places for _, places in parts]))

    def whole(field: str) -> NDArray[np.generic]:
        return np.concatenate([getattr(part, field) for part, _ in parts])[order]

    arrays = {field: whole(field) for field in ARRAYS}
    queries = float(np.average([part.queries for part, _ in parts], weights=[len(places) for _, places in parts]))
    return Outcome(parts[0][0].name, _plain(queries), **arrays)  # type: ignore[arg-type]
