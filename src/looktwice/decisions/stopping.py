"""When enough views were asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration import panels
from looktwice.calibration.crossfit import ARRAYS, Outcome, folds, joined, outcome
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.jury import Z95, Jury, Prefixes
from looktwice.calibration.votes import MISSING, Bools, Counts, Floats, LabelledVotes, Places

ALLOWED = 0.01
"""By what share a fixed panel's Brier score may be exceeded by stopping early."""
WITH_MORE, WITHOUT = -0.005, 0.0075
"""What stopping early aims for, as such shares, with more views at hand and without: new pictures come out a little
worse than those that the rule was learned from."""


@dataclass(frozen=True)
class AdaptiveRule:
    """When to stop asking: go on while the confidence is within the band for the number of views asked so far."""

    low: tuple[float, ...]
    """Where the band begins, for 0, 1 … S − 1 views asked."""
    high: tuple[float, ...]
    """Where it ends; below its beginning for a number of views at which one always stops."""

    @classmethod
    def priced(cls, confidence: Floats, regret: Floats, price: float, ranks: Sequence[Ranks] | None = None) -> Self:
        """The rule that makes regret and `price` per view together least, worked out from the last view back.

        `ranks` are those of the columns of `confidence`, for callers that try many prices.
        """
        togo = regret[:, -1]
        ranks = [Ranks.of(column) for column in confidence.T] if ranks is None else ranks
        bands = []
        for asked in range(regret.shape[1] - 2, -1, -1):
            low, high = _band(ranks[asked], regret[:, asked] - togo - price)
            inside = (low <= confidence[:, asked]) & (confidence[:, asked] <= high)
            togo = np.where(inside, togo + price, regret[:, asked])
            bands.append((low, high))
        bands.reverse()
        return cls(tuple(low for low, _ in bands), tuple(high for _, high in bands))

    def enough(self, confidence: Floats, asked: int) -> Bools:
        """(n,): whether to stop, after `asked` views and with this confidence."""
        if asked >= len(self.low):
            return np.ones(len(confidence), bool)
        return (confidence < self.low[asked]) | (confidence > self.high[asked])

    def asked(self, confidence: Floats) -> Counts:
        """(n,): after how many views one stops, from the confidences (n, S + 1) after each number of views."""
        stops = np.column_stack([self.enough(confidence[:, s], s) for s in range(len(self.low) + 1)])
        return stops.argmax(axis=1)


def movement(distributions: Sequence[Distribution]) -> Floats:
    """(n, S + 1): the squared distance of each calibrator from the last, over all classes.

    If the last calibrator is calibrated, this is what a picture adds to the Brier score, on average, by stopping there.
    """
    return np.column_stack([_distance(before, distributions[-1]) for before in distributions])


def _distance(before: Distribution, after: Distribution) -> Floats:
    total = np.zeros(len(after.labels))
    joint = np.zeros(len(after.labels))
    for label, probability in zip(after.labels.T, after.named.T, strict=True):
        total += np.where(label == MISSING, 0.0, (probability - before.of(label)) ** 2)
        joint += label != MISSING
    for label, probability in zip(before.labels.T, before.named.T, strict=True):
        alone = (label != MISSING) & ~(after.labels == label[:, None]).any(axis=1)
        total += np.where(alone, (probability - after.unnamed()) ** 2, 0.0)
        joint += alone
    total += (after.classes - joint) * (after.unnamed() - before.unnamed()) ** 2
    return total


@dataclass(frozen=True, eq=False)
class Ranks:
    """The distinct confidences in their order, and which of them each picture has."""

    value: Floats
    place: Places

    @classmethod
    def of(cls, confidence: Floats) -> Self:
        return cls(*np.unique(confidence, return_inverse=True))


def _band(ranks: Ranks, gain: Floats) -> tuple[float, float]:
    """The range of confidences where asking on gains most in all; it begins above its end if it never gains."""
    value = ranks.value
    sums = np.concatenate([[0.0], np.cumsum(np.bincount(ranks.place, gain))])
    lowest = np.minimum.accumulate(sums)
    end = int((sums - lowest).argmax())
    if end == 0:
        return 1.0, 0.0
    begin = int((sums[: end + 1] == lowest[end]).argmax())
    edges = np.concatenate([[0.0], (value[1:] + value[:-1]) / 2, [1.0]])
    return float(edges[begin]), float(edges[end])


BISECTIONS = 14

RANKING = 200
"""Wrong answers among the labelled pictures that are enough to rank views, and to tell when further ones pay."""

ADAPTIVE = "adaptive jury"


@dataclass(frozen=True, eq=False)
class Growth:
    """The outcomes of the juries of a panel's prefixes on each picture, view by view."""

    steps: tuple[Outcome, ...]
    """After 0, 1 … S views."""
    movement: Floats
    """(n, S + 1): the squared distance to the distribution after all views."""

    def confidence(self) -> Floats:
        """(n, S + 1): the confidence after each number of views."""
        return np.column_stack([step.confidence for step in self.steps])

    @cached_property
    def ranks(self) -> list[Ranks]:
        """The ranks of these confidences, one for each number of views."""
        return [Ranks.of(step.confidence) for step in self.steps]

    def brier(self) -> Floats:
        """(n, S + 1): the Brier score after each number of views."""
        return np.column_stack([step.brier for step in self.steps])

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
    """The outcomes of juries for 0, 1 … S views on these pictures.

    Distances are between distributions in which unnamed classes share evenly.
    """
    parts = [labelled.under(range(views)) for views in range(len(juries))]
    steps = [outcome(jury, part) for jury, part in zip(juries, parts, strict=True)]
    even = [replace(jury, companions=None) for jury in juries]
    moved = movement([jury.distribution(part) for jury, part in zip(even, parts, strict=True)])
    return Growth(tuple(steps), moved)


@dataclass(frozen=True, eq=False)
class Trial:
    """The outcomes of juries on the pictures they were fitted on, and on a held-out fifth."""

    taught: Growth
    tested: Growth
    usual: Growth
    """The outcomes on the tested ones of juries for the views in the order of the panel."""
    places: Places
    """Which pictures were tested."""


def trials(calibrator: Jury, labelled: LabelledVotes, seed: int = 0, n_selection: int = 0) -> list[Trial]:
    """Juries for 0, 1 … S views, fitted five times, each time on four fifths of the pictures."""
    found = []
    for train, test in folds(len(labelled), n_selection, seed):
        taught, tested = _taught(calibrator, labelled, train, test)
        found.append(Trial(taught, tested, tested, test))
    return found


def rankable(labelled: LabelledVotes) -> bool:
    """Whether these pictures can tell which views help most, and which pictures more views than the panel's help."""
    return bool((labelled.base != labelled.truths).sum() >= RANKING)


def order(
    calibrator: Jury, labelled: LabelledVotes, fixed: int, seed: int = 0, n_selection: int = 0
) -> tuple[list[int], list[Trial]]:
    """In which order views are asked, that of their worth on these pictures, and the trials of it.

    In the trials, the order is found again on each four fifths of the pictures.
    """
    usual, found = trials(calibrator, labelled, seed, n_selection), []
    for trial, (train, test) in zip(usual, folds(len(labelled), n_selection, seed), strict=True):
        ordered = labelled.under(worth(labelled.take(train), fixed))
        found.append(Trial(*_taught(calibrator, ordered, train, test), trial.usual, test))
    return worth(labelled, fixed), found


def worth(labelled: LabelledVotes, fixed: int) -> list[int]:
    """All views: the first few in the order of what each adds, then the others as they are."""
    first = panels.grow(labelled.label_only(), fixed)
    return [*first, *(view for view in range(len(labelled.panel)) if view not in first)]


def _taught(calibrator: Jury, labelled: LabelledVotes, train: Places, test: Places) -> tuple[Growth, Growth]:
    """The outcomes of juries fitted on some pictures, on these and on others."""
    prefixes = Prefixes(ballot=calibrator.ballot).fit(labelled.take(train))
    taught = grow(replace(prefixes, companions=None).members(), labelled.take(train))
    return taught, grow(prefixes.members(), labelled.take(test))


def steps(found: Sequence[Trial]) -> tuple[Outcome, ...]:
    """How juries for 0, 1 … S views fare on pictures that they were not fitted on."""
    count = len(found[0].tested.steps)
    return tuple(joined([(trial.tested.steps[views], trial.places) for trial in found]) for views in range(count))


class Aim(Protocol):
    """The limit on what stopping early may cost."""

    def regret(self, growth: Growth) -> Floats:
        """(n, S + 1): what stopping after each number of views costs."""

    def kept(self, found: Sequence[Trial], stops: Sequence[Counts]) -> bool:
        """Whether it is reached on pictures that taught nothing, if those of each trial are asked about so often."""


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

    def slack(self, found: Sequence[Trial]) -> float:
        """By how much the Brier score may rise."""
        brier = np.concatenate([trial.usual.steps[self.fixed].brier for trial in found])
        return float((WITH_MORE if self.fixed < len(found[0].usual.steps) - 1 else WITHOUT) * brier.mean())

    def kept(self, found: Sequence[Trial], stops: Sequence[Counts]) -> bool:
        """By the movement, which varies little; the Brier score itself, which varies much, may only object."""
        moved, rise = [], []
        for trial, at in zip(found, stops, strict=True):
            rows = np.arange(len(at))
            moved.append(trial.tested.movement[rows, at] - trial.usual.movement[:, self.fixed])
            rise.append(trial.tested.brier()[rows, at] - trial.usual.steps[self.fixed].brier)
        gone, risen, slack = np.concatenate(moved), np.concatenate(rise), self.slack(found)
        error = float(risen.std()) / math.sqrt(len(risen))
        return bool(gone.mean() <= slack and risen.mean() - error <= max(slack, 0.0))


@dataclass(frozen=True)
class SameDecision:
    """Decide as the whole panel would, but for a few pictures: the same label, accepted or not at this threshold."""

    threshold: float
    others: float = 0.01
    """The share of pictures on which the decision may be another."""

    def regret(self, growth: Growth) -> Floats:
        return growth.changed(self.threshold)

    def kept(self, found: Sequence[Trial], stops: Sequence[Counts]) -> bool:
        trials = zip(found, stops, strict=True)
        other = [self.regret(trial.tested)[np.arange(len(at)), at] for trial, at in trials]
        return bool(np.concatenate(other).mean() <= self.others)


def price(found: Sequence[Trial], aim: Aim) -> float:
    """The highest price of a view whose rules reach the aim on held-out pictures."""
    cheap, dear = -14.0, 1.0
    for _ in range(BISECTIONS):
        middle = (cheap + dear) / 2
        stops = [rule(trial.taught, aim, math.exp(middle)).asked(trial.tested.confidence()) for trial in found]
        cheap, dear = (middle, dear) if aim.kept(found, stops) else (cheap, middle)
    return math.exp(cheap)


def rule(growth: Growth, aim: Aim, cost: float) -> AdaptiveRule:
    """The stopping rule for a price of one view."""
    return AdaptiveRule.priced(growth.confidence(), aim.regret(growth), cost, growth.ranks)


def stopped(found: Sequence[Trial], aim: Aim) -> Outcome:
    """The outcome of stopping early on pictures that neither juries, rule nor price were fitted on.

    The price for each fifth is found on the other four (cross-fitting): nothing is tuned on what it is judged on.
    """
    parts = []
    for trial in found:
        cost = price([other for other in found if other is not trial], aim)
        parts.append((trial.tested.stopped(rule(trial.taught, aim, cost)), trial.places))
    return joined(parts)


@dataclass(frozen=True)
class Expected:
    """What stopping early is expected to do on new pictures, as shares of the fixed panel's Brier score and queries."""

    brier: float
    low: float
    high: float
    """The 95 % interval of `brier`, over the choice of the pictures."""
    queries: float

    @classmethod
    def of(cls, stopped: Outcome, fixed: Outcome) -> Self:
        """From how the same pictures fared with the fixed panel; both took no part in what is compared."""
        level = float(fixed.brier.mean())
        if level == 0.0:
            return cls(1.0, 1.0, 1.0, stopped.queries / fixed.queries)
        ratio = float(stopped.brier.mean()) / level
        spread = float((stopped.brier - ratio * fixed.brier).std()) / level / math.sqrt(len(fixed.brier))
        return cls(ratio, ratio - Z95 * spread, ratio + Z95 * spread, stopped.queries / fixed.queries)

    def sentence(self) -> str:
        """The same in words."""
        interval = f"95 % interval {self.low:.3f} to {self.high:.3f}"
        score = f"{self.brier:.3f} of the panel's Brier score ({interval})"
        claim = f"Stopping early: {score} at {100 * self.queries:.0f} % of its queries"
        if self.high <= 1.0 + ALLOWED:
            return f"{claim}, on pictures that taught neither rule nor price."
        return f"{claim}; that it stays within {1 + ALLOWED:g} is not certain with so few labelled pictures."
