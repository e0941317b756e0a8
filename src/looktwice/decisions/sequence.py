"""Which sources are asked about a picture, in which order, and when to stop.

A source is a view as one classifier sees it, with its price. A jury is fitted for the first 1, 2 … L sources of a
sequence; c_k is the confidence after k of them. Going on to j sources lowers the loss by r_kj·(1 − c_k) on average,
with r_kj = Σ(loss_k − loss_j) / Σ(1 − c_k) over held-out pictures, and costs the prices in between. One stops as soon
as no j saves λ of loss for each unit of money: at c_k ≥ 1 − λ/r_k, r_k being the best r_kj by price. So a single λ
gives the confidence that is enough after each source, and its values give the points of the frontier of loss against
price. One confidence for all sources is about as good: the same for two of them, worse for four face APIs on FER+,
better with GPT-4V among them (experiments/cascades.py, results/cascades_rules.csv).

Everything is measured on held-out folds. `find` repeats the whole choice within each fold before it judges the fold, so
the outcome that it returns, of pictures at whichever source they stopped, is what a guarantee may rest on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from collections.abc import Sequence as Several
from dataclasses import asdict, dataclass, field, replace
from typing import Self, TypeVar

import numpy as np

from looktwice.calibration.crossfit import Outcome, check_count, joined, outcome
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.jury import Z95, Jury, Prefixes
from looktwice.calibration.logit import FOLDS, folds
from looktwice.calibration.votes import MISSING, Bools, Codes, Counts, Floats, LabelledVotes, Places, Votes
from looktwice.errors import DataError

LEVELS = tuple(np.linspace(0.02, 0.98, 25).tolist())
"""The values of λ that are tried, as quantiles of what the next source would save for each unit of money."""
LEAST_GAIN = 0.01
"""By what share a dearer point must lower the loss to be on the frontier, and the chosen one may exceed the best."""
V = TypeVar("V", bound=Votes)
NEVER = float(np.nextafter(1.0, 2.0))
"""Stands for a confidence that no picture reaches."""
Loss = Callable[[Distribution, Codes], Floats]
"""(n,): what distributions lose on the truths."""


@dataclass(frozen=True)
class Source:
    """A view as one classifier sees it; its text is `gpt@base`, `cheap@mirror`."""

    classifier: str
    view: str = "base"
    price: float = 1.0

    def __post_init__(self) -> None:
        if not self.price >= 0.0 or "@" in self.classifier:
            raise DataError(f"{self}: a price is at least 0, and a classifier's name has no '@'")

    @classmethod
    def parse(cls, text: str, first: str, price: float = 1.0) -> Self:
        """The source of a text; one without `@` is a view of the `first` classifier."""
        classifier, at, view = text.partition("@")
        return cls(classifier, view, price) if at else cls(first, text, price)

    def __str__(self) -> str:
        return f"{self.classifier}@{self.view}"


@dataclass(frozen=True)
class Sequence:
    """Sources in the order in which they are asked, and when to stop."""

    sources: tuple[Source, ...]
    enough: tuple[float, ...] = ()
    """The confidence at which one stops after each source but the last."""

    def __post_init__(self) -> None:
        if not self.sources or len(self.enough) != len(self.sources) - 1:
            raise DataError(
                f"{len(self.sources)} sources need {len(self.sources) - 1} confidences to stop at, not "
                f"{len(self.enough)}"
            )

    def __str__(self) -> str:
        steps = [f"{source} until {level:.3f}" for source, level in zip(self.sources, self.enough, strict=False)]
        return ", then ".join([*steps, str(self.sources[-1])])

    def to_dict(self) -> dict[str, object]:
        """Plain values, for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, list[dict[str, object]]]) -> Self:
        """The sequence that `to_dict` wrote."""
        return cls(tuple(Source(**each) for each in values["sources"]), tuple(values["enough"]))  # type: ignore[arg-type]

    def prices(self) -> Floats:
        """(L,): what a picture costs that is asked of 1, 2 … L sources."""
        return np.cumsum([source.price for source in self.sources])

    def stops(self, confidence: Floats, asked: int) -> Bools:
        """(n,): whether to stop after so many sources, at least one, with this confidence."""
        return np.full(len(confidence), asked >= len(self.sources)) | (confidence >= [*self.enough, 0.0][asked - 1])

    def asked(self, confidence: Floats) -> Counts:
        """(n,): of how many sources each picture is asked, from the confidences (n, L) after each number of them."""
        return 1 + np.column_stack([self.stops(c, k) for k, c in enumerate(confidence.T, 1)]).argmax(axis=1)

    def follow(self, calibrator: Prefixes, votes: V) -> tuple[Counts, V]:
        """(n,): of how many sources each picture is asked, from all answers; and these, the others MISSING."""
        every = np.arange(len(self.sources)) + np.ones((len(votes), 1), np.int64)
        steps = [calibrator.confidence(_first(votes, asked)) for asked in every.T]
        asked = self.asked(np.column_stack(steps))
        return asked, _first(votes, asked)


def _first(votes: V, asked: Counts) -> V:
    """The answers of the first sources, as many for each picture as are asked."""
    return replace(votes, views=np.where(np.arange(1, len(votes.panel) + 1) < asked[:, None], votes.views, MISSING))


@dataclass(frozen=True, eq=False)
class Point:
    """A sequence, and what it loses and costs on held-out pictures."""

    sequence: Sequence
    losses: Floats
    """(n,): the loss of each picture."""
    prices: Floats
    """(n,): its price."""
    queries: float

    @property
    def loss(self) -> float:
        """The mean loss."""
        return float(self.losses.mean())

    @property
    def price(self) -> float:
        """The mean price of a picture."""
        return float(self.prices.mean())

    def intervals(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """The 95 % intervals of the mean loss and of the mean price."""
        (loss, price), half = (self.loss, self.price), [_half(each) for each in (self.losses, self.prices)]
        return (loss - half[0], loss + half[0]), (price - half[1], price + half[1])


def _half(values: Floats) -> float:
    return float(Z95 * values.std() / np.sqrt(len(values)))


def frontier(points: Iterable[Point], least_gain: float = LEAST_GAIN) -> tuple[Point, ...]:
    """The points, cheapest first, each of which loses less by this share than all that cost less."""
    kept: list[Point] = []
    for point in sorted(points, key=lambda each: (each.price, each.loss)):
        if not kept or point.loss < (1.0 - least_gain) * kept[-1].loss:
            kept.append(point)
    return tuple(kept)


def choose(points: Iterable[Point], max_price: float = np.inf, max_queries: float = np.inf) -> Point:
    """The cheapest point within one standard error and LEAST_GAIN of the best that the limits allow.

    If none is within the limits, the cheapest of all.
    """
    every = list(points)
    slack = 1.0 + 1e-9  # the mean of equal prices may be a rounding above them
    allowed = [point for point in every if point.price <= slack * max_price and point.queries <= slack * max_queries]
    if not allowed:
        return min(every, key=lambda point: (point.price, point.loss))
    best = min(allowed, key=lambda point: point.loss)
    excess = [point.losses - best.losses for point in allowed]
    near = [
        point
        for point, more in zip(allowed, excess, strict=True)
        if more.mean() <= min(more.std() / np.sqrt(len(more)), LEAST_GAIN * best.loss)
    ]
    return min(near, key=lambda point: (point.price, point.loss))


@dataclass(frozen=True, eq=False)
class HeldOutJuries:
    """Juries of any sources, each fitted once for each set of folds that it must not see."""

    labelled: LabelledVotes
    fold: Places
    loss: Loss
    juries: dict[tuple[tuple[int, ...], frozenset[int]], Jury] = field(default_factory=dict)
    steps: dict[tuple[tuple[int, ...], frozenset[int]], tuple[Floats, Floats]] = field(default_factory=dict)

    def calibrator(self, places: tuple[int, ...], unseen: frozenset[int]) -> Prefixes:
        """The juries of the first 1, 2 … of these sources, fitted on all folds but the unseen."""
        members = tuple(self._jury(places[:count], unseen) for count in range(1, len(places) + 1))
        return Prefixes(members, companions=members[-1].companions)

    def _jury(self, places: tuple[int, ...], unseen: frozenset[int]) -> Jury:
        if (places, unseen) not in self.juries:
            rows = np.flatnonzero(~np.isin(self.fold, list(unseen)))
            self.juries[places, unseen] = Jury().fit(self.labelled.take(rows).of_sources(places))
        return self.juries[places, unseen]

    def step(self, places: tuple[int, ...], unseen: frozenset[int]) -> tuple[Floats, Floats]:
        """(n,) twice: confidence after these sources, and loss, of the pictures that are not in `unseen` folds.

        Losses are by juries that did not see the picture. Confidences are by the juries that are used in the end:
        answers without scores have few distinct ones, and one between those of two folds would split equal pictures.
        """
        if (places, unseen) not in self.steps:
            votes, losses = self.labelled.of_sources(places), np.zeros(len(self.fold))
            for part in set(self.fold.tolist()) - unseen:
                rows = np.flatnonzero(self.fold == part)
                distribution = self.calibrator(places, unseen | {part}).distribution(votes.take(rows))
                losses[rows] = self.loss(distribution, votes.truths[rows])
            self.steps[places, unseen] = self.calibrator(places, unseen).confidence(votes), losses
        return self.steps[places, unseen]

    def points(self, places: tuple[int, ...], sources: Several[Source], unseen: frozenset[int]) -> list[Point]:
        """What asking these sources in this order loses and costs on the folds that may be seen, for every λ."""
        seen = ~np.isin(self.fold, list(unseen))
        steps = [self.step(places[:count], unseen) for count in range(1, len(places) + 1)]
        confidence, losses = (np.column_stack(arrays)[seen] for arrays in zip(*steps, strict=True))
        chosen, found = tuple(sources[place] for place in places), []
        for enough in dict.fromkeys(_levels(confidence, losses, np.array([source.price for source in chosen]))):
            sequence = Sequence(chosen[: len(enough) + 1], enough)
            asked = sequence.asked(confidence[:, : len(enough) + 1])
            lost = losses[np.arange(len(asked)), asked - 1]
            found.append(Point(sequence, lost, sequence.prices()[asked - 1], float(asked.mean())))
        return found

    def search(self, sources: Several[Source], unseen: frozenset[int] = frozenset()) -> list[Point]:
        """Points of every sequence that was tried: those on the frontier are tried with each further source."""
        points: list[Point] = []
        tried: list[tuple[int, ...]] = [(place,) for place in range(len(sources))]
        while tried:
            found = {places: self.points(places, sources, unseen) for places in tried}
            points += [point for each in found.values() for point in each]
            best = set(map(id, frontier(points)))
            length = len(tried[0])
            longer = [
                places
                for places, each in found.items()
                if any(id(point) in best and len(point.sequence.sources) == length for point in each)
            ]
            tried = [(*places, place) for places in longer for place in range(len(sources)) if place not in places]
        return points


def _levels(confidence: Floats, losses: Floats, prices: Floats) -> Iterator[tuple[float, ...]]:
    """The confidences that are enough after each source but the last, for every λ; they end where all pictures stop."""
    doubt, last = 1.0 - confidence, len(prices) - 1
    rate = np.zeros(last)
    for k in range(last):
        saved = (losses[:, k, None] - losses[:, k + 1 :]).mean(axis=0) / max(doubt[:, k].mean(), 1e-9)
        rate[k] = max(0.0, (saved / np.maximum(np.cumsum(prices[k + 1 :]), 1e-12)).max())
    yield (NEVER,) * last
    worth = doubt[:, :last] * rate
    for price in np.unique(np.quantile(worth[worth > 0.0], LEVELS)) if (worth > 0.0).any() else ():
        enough = [between(column, 1.0 - price / max(r, 1e-300)) for column, r in zip(confidence.T, rate, strict=False)]
        yield tuple(enough[: (*enough, 0.0).index(0.0)])


def between(confidence: Floats, level: float) -> float:
    """The middle between those of these confidences that are below the level and those that reach it.

    0 if all reach it, NEVER if none does. The margin tells pictures with the same answers alike on any machine.
    """
    reach = confidence >= level - 1e-9
    if reach.all() or not reach.any():
        return 0.0 if reach.all() else NEVER
    return float((confidence[~reach].max() + confidence[reach].min()) / 2)


@dataclass(frozen=True, eq=False)
class Found:
    """The chosen sequence with its juries, how it fares on held-out pictures, and what else could be had."""

    point: Point
    calibrator: Prefixes
    """The juries of its first 1, 2 … sources, for votes of `of_sources(places)`."""
    places: tuple[int, ...]
    """Where its sources are among the candidates."""
    outcome: Outcome
    """What came of each picture after stopping, by a sequence and juries chosen and fitted on the other folds."""
    prices: Floats
    """(n,): what each picture cost then."""
    points: tuple[Point, ...]
    """All that were tried, on folds that the juries did not see."""

    @property
    def sequence(self) -> Sequence:
        """Which sources are asked, and when to stop."""
        return self.point.sequence

    def frontier(self) -> tuple[Point, ...]:
        """The best point at each price, cheapest first."""
        return frontier(self.points)


def candidates(
    labelled: LabelledVotes, sources: Several[Source], loss: Loss = Distribution.brier, seed: int = 0
) -> HeldOutJuries:
    """What a search works on: votes whose base and views are the answers of these sources, and folds."""
    check_count(len(labelled))
    if len(sources) != len(labelled.panel) + 1 or len(set(map(str, sources))) != len(sources):
        raise DataError(f"votes of {len(labelled.panel) + 1} sources need as many, each once, not {len(sources)}")
    return HeldOutJuries(labelled, folds(len(labelled), FOLDS, seed), loss)


def find(
    labelled: LabelledVotes,
    sources: Several[Source],
    choice: Callable[[Iterable[Point]], Point] = choose,
    loss: Loss = Distribution.brier,
    seed: int = 0,
) -> Found:
    """The sequence that `choice` takes, fitted on all pictures, and its outcome on pictures that had no part in it."""
    held = candidates(labelled, sources, loss, seed)
    parts, prices = [], np.zeros(len(labelled))
    for part in range(int(held.fold.max()) + 1):
        rows, unseen = np.flatnonzero(held.fold == part), frozenset({part})
        sequence = choice(held.search(sources, unseen)).sequence
        places = tuple(map(sources.index, sequence.sources))
        calibrator = held.calibrator(places, unseen)
        asked, stopped = sequence.follow(calibrator, labelled.take(rows).of_sources(places))
        parts.append((replace(outcome(calibrator, stopped), queries=float(asked.mean())), rows))
        prices[rows] = sequence.prices()[asked - 1]
    points = held.search(sources)
    point = choice(points)
    places = tuple(map(sources.index, point.sequence.sources))
    return Found(point, held.calibrator(places, frozenset()), places, joined(parts), prices, tuple(points))
