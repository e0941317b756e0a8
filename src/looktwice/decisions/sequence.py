"""Sequences: which sources to ask about a picture, in which order, and when to stop.

A source is a pair of classifier and view, with its price. A jury is fitted for the first 1, 2 … L sources of a
sequence; c_k is the confidence after k of them. Continuing to j sources lowers the loss by r_kj·(1 − c_k) on average,
with r_kj = Σ(loss_k − loss_j) / Σ(1 − c_k) over held-out pictures, and costs the prices in between. Asking stops as
soon as no j saves λ of loss per unit of money: at c_k ≥ 1 − λ/r_k, where r_k is the best ratio of r_kj to price. So a
single λ gives the stopping threshold after each source, and varying λ gives the frontier of loss against price. A
single threshold for all sources performs similarly: equally well for two sources, worse for four face APIs on FER+,
better if GPT-4V is among them (experiments/cascades.py, results/cascades_rules.csv).

The loss of stopping early within the views of one classifier is estimated from how far the probabilities would still
move: if the probabilities after all views are calibrated, stopping early raises a picture's Brier score on average by
the squared distance between its probabilities at that point and those after all views. This estimate varies much less
between samples than the Brier score itself, which is only used as a check.

All quantities are measured on held-out folds. `find` nests the whole selection in each fold, so a guarantee may be
based on the outcome that it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence as Several
from dataclasses import dataclass, field, replace
from typing import Self, TypeVar

import numpy as np

from looktwice.calibration import (
    FOLDS,
    MISSING,
    Z95,
    AdaptiveJury,
    Ballot,
    Bools,
    Counts,
    Distribution,
    Floats,
    Jury,
    LabelledVotes,
    Outcome,
    Places,
    Votes,
    check_count,
    folds,
    joined,
    outcome,
)
from looktwice.errors import DataError

LEVELS = tuple(np.linspace(0.02, 0.98, 25).tolist())
"""The candidate values of λ, as quantiles of the loss that the next source saves per unit of money."""
LEAST_GAIN = 0.01
"""The relative decrease in loss that a more expensive point on the frontier needs, and the tolerance for the selected
point."""
V = TypeVar("V", bound=Votes)
BASE = "base"
"""The view that shows the unchanged picture."""
STOPPING = "jury, stopping early"
NEVER = float(np.nextafter(1.0, 2.0))
"""A threshold that no confidence reaches."""


@dataclass(frozen=True)
class Source:
    """A classifier and a view, written `gpt@base`, `cheap@mirror`, or `mirror` if there is one classifier."""

    classifier: str
    view: str = BASE
    price: float = 1.0

    def __post_init__(self) -> None:
        if not self.price >= 0.0 or "@" in self.classifier:
            raise DataError(
                f"{self}: a price must be at least 0, and a classifier's name must not contain '@'",
                code="option-invalid",
            )

    @classmethod
    def parse(cls, text: str, first: str, price: float = 1.0) -> Self:
        """Parse a source; without `@` it is a view of the `first` classifier."""
        classifier, at, view = text.partition("@")
        return cls(classifier, view, price) if at else cls(first, text, price)

    def __str__(self) -> str:
        return f"{self.classifier}@{self.view}" if self.classifier else self.view


@dataclass(frozen=True)
class Sequence:
    """Sources in the order of asking, and when to stop."""

    sources: tuple[Source, ...]
    enough: tuple[float, ...] = ()
    """The confidence at which asking stops after each source but the last."""

    def __str__(self) -> str:
        steps = [f"{source} until {level:.3f}" for source, level in zip(self.sources, self.enough, strict=False)]
        return ", then ".join([*steps, str(self.sources[-1])])

    def prices(self) -> Floats:
        """(L,): the cost per picture of the first 1, 2 … L sources."""
        return np.cumsum([source.price for source in self.sources])

    def stops(self, confidence: Floats, asked: int) -> Bools:
        """(n,): whether to stop after this many sources (at least one) with this confidence."""
        return np.full(len(confidence), asked >= len(self.sources)) | (confidence >= [*self.enough, 0.0][asked - 1])

    def asked(self, confidence: Floats) -> Counts:
        """(n,): the number of sources asked, from the confidences (n, L) after each number of them."""
        return 1 + np.column_stack([self.stops(c, k) for k, c in enumerate(confidence.T, 1)]).argmax(axis=1)

    def follow(self, calibrator: AdaptiveJury, votes: V) -> tuple[Counts, V]:
        """(n,): the number of sources asked, from all answers; and the votes with all other answers MISSING."""
        every = np.arange(len(self.sources)) + np.ones((len(votes), 1), np.int64)
        steps = [calibrator.confidence(_first(votes, asked)) for asked in every.T]
        asked = self.asked(np.column_stack(steps))
        return asked, _first(votes, asked)


def _first(votes: V, asked: Counts) -> V:
    """Keep the given number of first answers for each picture."""
    return replace(votes, views=np.where(np.arange(1, len(votes.panel) + 1) < asked[:, None], votes.views, MISSING))


@dataclass(frozen=True, eq=False)
class Point:
    """A sequence with its loss and cost on held-out pictures."""

    sequence: Sequence
    losses: Floats
    """(n,): the loss of each picture."""
    prices: Floats
    """(n,): the price of each picture."""
    queries: float
    steady: Floats | None = None
    """(n,): lower-variance estimates of the losses: the losses after all sources plus the remaining movement."""

    @property
    def loss(self) -> float:
        """The mean loss."""
        return float((self.losses if self.steady is None else self.steady).mean())

    @property
    def price(self) -> float:
        """The mean price per picture."""
        return float(self.prices.mean())

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the mean loss."""
        half = float(Z95 * self.losses.std() / np.sqrt(len(self.losses)))
        return max(0.0, self.loss - half), self.loss + half

    def is_near(self, best: Point) -> bool:
        """Whether the loss is within one standard error and LEAST_GAIN of a better point's."""
        more = self.losses - best.losses
        return self.loss - best.loss <= LEAST_GAIN * best.loss and more.mean() <= more.std() / np.sqrt(len(more))


def frontier(points: Iterable[Point], least_gain: float = LEAST_GAIN) -> tuple[Point, ...]:
    """The Pareto frontier, cheapest first; each point improves on all cheaper ones by this share."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda each: (each.price, each.loss)):
        if not kept or point.loss < (1.0 - least_gain) * kept[-1].loss:
            kept.append(point)
    return tuple(kept)


def choose(points: Iterable[Point], max_price: float = np.inf, max_queries: float = np.inf) -> Point:
    """Select the cheapest point within one standard error and LEAST_GAIN of the best within the limits.

    If no point is within the limits, select the cheapest.
    """
    every = list(points)
    slack = 1.0 + 1e-9  # rounding may put the mean of equal prices above them
    allowed = [point for point in every if point.price <= slack * max_price and point.queries <= slack * max_queries]
    if not allowed:
        return min(every, key=lambda point: (point.price, point.loss))
    best = min(allowed, key=lambda point: point.loss)
    return min((point for point in allowed if point.is_near(best)), key=lambda point: (point.price, point.loss))


Choice = Callable[[Iterable[Point]], Point]
"""A rule that selects one of the candidates."""


@dataclass(frozen=True, eq=False)
class Steps:
    """Results of juries of the first 1, 2 … L sources on the training folds; (n, L) each."""

    confidence: Floats
    losses: Floats
    """The losses under juries fitted without the picture."""
    steady: Floats
    """With one classifier, the loss after all sources plus the remaining movement; with several, the losses."""


@dataclass(frozen=True, eq=False)
class HeldOutJuries:
    """A cache of juries by sources and excluded folds."""

    labelled: LabelledVotes
    sources: tuple[Source, ...]
    fold: Places
    ballot: Ballot = "vote"
    juries: dict[tuple[tuple[int, ...], frozenset[int]], AdaptiveJury] = field(default_factory=dict)
    kept: dict[tuple[tuple[int, ...], frozenset[int]], Steps] = field(default_factory=dict)

    @property
    def several(self) -> bool:
        """Whether there is more than one classifier."""
        return len({source.classifier for source in self.sources}) > 1

    def calibrator(self, places: tuple[int, ...], unseen: frozenset[int] = frozenset()) -> AdaptiveJury:
        """The juries of the first 1, 2 … of these sources, fitted without the excluded folds.

        With several classifiers, each jury has its own confusion step, since each classifier recognises some classes
        better; juries of the first views of one classifier have none.
        """
        if (places, unseen) not in self.juries:
            rows = np.flatnonzero(~np.isin(self.fold, list(unseen)))
            votes = self.labelled.take(rows).of_sources(places)
            if self.several:
                before = self.calibrator(places[:-1], unseen).juries if places[1:] else ()
                jury = AdaptiveJury((*before, Jury().fit(votes)))
            else:
                jury = AdaptiveJury(ballot=self.ballot).fit(votes)
            self.juries[places, unseen] = jury
        return self.juries[places, unseen]

    def steps(self, places: tuple[int, ...], unseen: frozenset[int] = frozenset()) -> Steps:
        """Evaluate these sources in this order on the training folds.

        Thresholds refer to the final juries: answers without scores have few distinct confidences, and a threshold
        between those of two folds would split equal pictures.
        """
        if (places, unseen) not in self.kept:
            votes = self.labelled.of_sources(places)
            prefixes = [votes.under(range(views)) for views in range(len(places))]
            losses, moved = np.zeros((len(votes), len(places))), np.zeros((len(votes), len(places)))
            for part in set(self.fold.tolist()) - unseen:
                rows = np.flatnonzero(self.fold == part)
                juries = self.calibrator(places, unseen | {part}).members()
                pairs = [(jury, prefix.take(rows)) for jury, prefix in zip(juries, prefixes, strict=True)]
                losses[rows] = np.column_stack([jury.distribution(v).brier(v.truths) for jury, v in pairs])
                if not self.several:
                    moved[rows] = movement([jury.distribution(v) for jury, v in pairs])
            members = self.calibrator(places, unseen).members()
            confidence = [jury.confidence(prefix) for jury, prefix in zip(members, prefixes, strict=True)]
            steady = losses if self.several else losses[:, -1:] + moved
            self.kept[places, unseen] = Steps(np.column_stack(confidence), losses, steady)
        return self.kept[places, unseen]

    def curve(self, places: tuple[int, ...]) -> list[Outcome]:
        """Held-out outcomes of each picture after 1, 2 … of these sources."""
        votes, parts = self.labelled.of_sources(places), list[list[tuple[Outcome, Places]]]()
        for part in range(int(self.fold.max()) + 1):
            rows = np.flatnonzero(self.fold == part)
            juries = self.calibrator(places, frozenset({part})).members()
            judged = [outcome(jury, votes.take(rows).under(range(views))) for views, jury in enumerate(juries)]
            parts.append([(each, rows) for each in judged])
        return [joined(each) for each in zip(*parts, strict=True)]

    def points(self, places: tuple[int, ...], unseen: frozenset[int] = frozenset()) -> list[Point]:
        """Loss and cost of these sources in this order, for every λ."""
        seen, steps = ~np.isin(self.fold, list(unseen)), self.steps(places, unseen)
        confidence, losses, steady = (table[seen] for table in (steps.confidence, steps.losses, steps.steady))
        chosen, points = tuple(self.sources[place] for place in places), []
        for enough in dict.fromkeys(_levels(confidence, steady, np.array([source.price for source in chosen]))):
            sequence = Sequence(chosen[: len(enough) + 1], enough)
            asked = sequence.asked(confidence[:, : len(enough) + 1])
            lost, expected = (table[np.arange(len(asked)), asked - 1] for table in (losses, steady))
            points.append(Point(sequence, lost, sequence.prices()[asked - 1], float(asked.mean()), expected))
        return points

    def search(
        self, unseen: frozenset[int] = frozenset(), start: Several[tuple[int, ...]] | None = None
    ) -> list[Point]:
        """Search sequences by extending those on the frontier with further sources.

        An extension is the base answer of another classifier, or all views of one already in the sequence: the stopping
        rule decides how many of them are asked. The search starts with each classifier's base answer, or at `start`.
        """
        points: list[Point] = []
        tried = list(start or ((place,) for place, source in enumerate(self.sources) if source.view == BASE))
        while tried:
            by_places = {places: self.points(places, unseen) for places in tried}
            points += [point for each in by_places.values() for point in each]
            best = set(map(id, frontier(points)))
            length = len(tried[0])
            longer = [
                places
                for places, each in by_places.items()
                if any(id(point) in best and len(point.sequence.sources) == length for point in each)
            ]
            tried = [(*places, *more) for places in longer for more in _additions(places, self.sources)]
        return points


def movement(distributions: Several[Distribution]) -> Floats:
    """(n, L): the squared distance between each distribution and the last, over all classes."""
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


def _additions(places: tuple[int, ...], sources: Several[Source]) -> Iterator[tuple[int, ...]]:
    """The extensions of a sequence: further classifiers, and all views of classifiers already in it."""
    asked = {sources[place].classifier for place in places}
    views: dict[str, list[int]] = {}
    for place, source in enumerate(sources):
        if source.view == BASE and place not in places:
            yield (place,)
        elif source.classifier in asked and place not in places:
            views.setdefault(source.classifier, []).append(place)
    yield from map(tuple, views.values())


def _levels(confidence: Floats, losses: Floats, prices: Floats) -> Iterator[tuple[float, ...]]:
    """Stopping thresholds after each source but the last: for each length without stopping, then for every λ.

    The thresholds end where all pictures have stopped.
    """
    doubt, last = 1.0 - confidence, len(prices) - 1
    if not last:
        yield ()
    rate = np.zeros(last)
    for k in range(last):
        saved = (losses[:, k, None] - losses[:, k + 1 :]).mean(axis=0) / max(doubt[:, k].mean(), 1e-9)
        rate[k] = max(0.0, (saved / np.maximum(np.cumsum(prices[k + 1 :]), 1e-12)).max())
    yield from ((NEVER,) * length for length in range(last, 0, -1))
    worth = doubt[:, :last] * rate
    for price in np.unique(np.quantile(worth[worth > 0.0], LEVELS)) if (worth > 0.0).any() else ():
        enough = [between(column, 1.0 - price / max(r, 1e-300)) for column, r in zip(confidence.T, rate, strict=False)]
        yield tuple(enough[: (*enough, 0.0).index(0.0)])


def between(confidence: Floats, level: float) -> float:
    """The midpoint between the highest confidence below the level and the lowest that reaches it.

    Returns 0 if all confidences reach the level, and NEVER if none does. The margin makes decisions equal on any
    machine.
    """
    reach = confidence >= level - 1e-9
    if reach.all() or not reach.any():
        return 0.0 if reach.all() else NEVER
    return float((confidence[~reach].max() + confidence[reach].min()) / 2)


@dataclass(frozen=True, eq=False)
class SelectedSequence:
    """The selected sequence with its juries, held-out results, and the alternatives."""

    point: Point
    held: HeldOutJuries
    places: tuple[int, ...]
    """The indices of its sources among the candidates."""
    outcome: Outcome
    """Held-out outcomes after stopping, with sequence and juries selected and fitted on the other folds."""
    points: tuple[Point, ...]
    """All candidates, evaluated on held-out folds."""

    @property
    def sequence(self) -> Sequence:
        """The selected sequence."""
        return self.point.sequence

    @property
    def calibrator(self) -> AdaptiveJury:
        """The juries of its first 1, 2 … sources, for the votes from `of_sources(places)`."""
        return self.held.calibrator(self.places)


def candidates(
    labelled: LabelledVotes, sources: Several[Source], ballot: Ballot = "vote", seed: int = 0
) -> HeldOutJuries:
    """Validate the input of a search: votes whose base and views are the answers of these sources, and folds."""
    check_count(len(labelled))
    if len(sources) != len(labelled.panel) + 1:
        raise DataError(f"expected votes of {len(labelled.panel) + 1} sources, got {len(sources)}")
    return HeldOutJuries(labelled, tuple(sources), folds(len(labelled), FOLDS, seed), ballot)


def find(
    held: HeldOutJuries, choice: Choice = choose, start: Several[tuple[int, ...]] | None = None
) -> SelectedSequence:
    """Select a sequence with `choice`, fit it on all pictures, and evaluate the whole procedure on held-out folds."""
    labelled, sources = held.labelled, held.sources
    parts = []
    for part in range(int(held.fold.max()) + 1):
        rows, unseen = np.flatnonzero(held.fold == part), frozenset({part})
        sequence = choice(held.search(unseen, start)).sequence
        places = placed(sequence, sources)
        calibrator = held.calibrator(places, unseen)
        asked, stopped = sequence.follow(calibrator, labelled.take(rows).of_sources(places))
        parts.append((replace(outcome(calibrator, stopped, STOPPING), queries=float(asked.mean())), rows))
    points = held.search(start=start)
    point = choice(points)
    return SelectedSequence(point, held, placed(point.sequence, sources), joined(parts), tuple(points))


def placed(sequence: Sequence, sources: Several[Source]) -> tuple[int, ...]:
    """Match sources to candidates; equal ones, which are draws of a random view, are matched in order."""
    left = dict(enumerate(sources))
    places = list[int]()
    for source in sequence.sources:
        places.append(next(place for place, other in left.items() if other == source))
        del left[places[-1]]
    return tuple(places)


@dataclass(frozen=True)
class Expected:
    """The expected results of stopping early, as shares of the Brier score and price of asking everything."""

    brier: float
    low: float
    high: float
    """The 95 % interval of `brier`, over sampling of pictures."""
    queries: float

    @classmethod
    def compare(cls, stopped: Outcome, whole: Outcome) -> Self:
        """Compare held-out outcomes of the same pictures with and without stopping."""
        level = float(whole.brier.mean())
        if level == 0.0:
            return cls(1.0, 1.0, 1.0, stopped.queries / whole.queries)
        ratio = float(stopped.brier.mean()) / level
        spread = float((stopped.brier - ratio * whole.brier).std()) / level / np.sqrt(len(whole.brier))
        return cls(ratio, ratio - Z95 * spread, ratio + Z95 * spread, stopped.queries / whole.queries)

    def sentence(self) -> str:
        """The expected results as a sentence."""
        if self.queries > 1.0 - LEAST_GAIN:
            return "All queries are sent for every picture: too few labelled pictures to learn when to stop early."
        interval = f"95 % interval {self.low:.3f} to {self.high:.3f}"
        score = f"{self.brier:.3f} of the Brier score of asking everything ({interval})"
        claim = f"Stopping early: {score} at {100 * self.queries:.0f} % of the queries"
        if self.high <= 1.0 + LEAST_GAIN:
            return f"{claim}, on held-out pictures."
        return f"{claim}; with so few labelled pictures, it is not certain to stay within {1 + LEAST_GAIN:g}."
