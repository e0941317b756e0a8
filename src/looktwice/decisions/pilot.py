"""The queries of `fit`: a pilot selects those worth their cost, and only these are sent for the other labelled
pictures.

The general panel is kept unless the pilot shows clearly that another is better: panels selected among many views on a
few hundred pictures had a Brier score 1 to 7 % worse on new pictures. The pilot therefore leaves out views that change
the class and classifiers that are not worth their price, uses other wordings if they are clearly better, and reduces
the panel to one query if a score makes further queries useless.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from looktwice.calibration import (
    MISSING,
    Ballot,
    Floats,
    Gaussian,
    LabelledVotes,
    Places,
    Row,
    Votes,
    crossfit,
    folds,
    panels,
)
from looktwice.decisions import collecting, fitting
from looktwice.decisions.collecting import Collected
from looktwice.decisions.profile import Profile, ProfileClassifier
from looktwice.decisions.results import FrontierPoint
from looktwice.decisions.sequence import Choice, Point, candidates, choose, frontier
from looktwice.engine import Cause, QueryEngine
from looktwice.errors import FitError, UnscoredError, ViewError
from looktwice.images import Picture
from looktwice.plots import Drawing, figures, notebook
from looktwice.views import GENERAL, GRIDS, At, Base, Panel, View, classifier_of

if TYPE_CHECKING:
    import pandas as pd

SEARCHED = 4 * crossfit.FOLDS
"""The minimum number of labelled pictures for the paper's search, which cross-validates each half of them."""
FEWEST = 200
"""The minimum number of labelled pictures for a pilot; with fewer, every query is sent for every picture."""
SHARE = 4
"""The ratio of labelled pictures to pilot pictures, of which there are at least FEWEST / 2."""
WRONG = 25
"""The minimum number of wrong answers in the pilot for estimating the value of further queries."""
AGAIN = 0.05
"""The relative gain that further queries need if one query comes with a useful score."""
RETAINED = 0.6
"""Views that keep a smaller share of the right labels may be left out."""


# The plan -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """A stage of `fit`, with its maximum cost."""

    name: str
    pictures: int
    queries: int
    price: float
    """The amount of money, or the number of queries if no price is known."""


@dataclass(frozen=True)
class Plan:
    """The maximum cost of `fit` by stage; stored answers cost nothing."""

    stages: tuple[Stage, ...]

    @property
    def queries(self) -> int:
        return sum(stage.queries for stage in self.stages)

    @property
    def price(self) -> float:
        return sum(stage.price for stage in self.stages)

    def lines(self) -> list[str]:
        """A sentence for each stage."""
        sentences = []
        for stage in self.stages:
            money = "" if stage.price == stage.queries else f", {stage.price:,.2f} in money"
            sentences.append(f"{stage.name}: {stage.pictures:,} pictures, at most {stage.queries:,} queries{money}.")
        return sentences

    def __str__(self) -> str:
        return "\n".join(self.lines())


def plan(pictures: int, panel: Panel, prices: Mapping[str, float], fixed: bool = False) -> Plan:
    """The stages for this many labelled pictures; `prices` are by classifier, the first one being ""."""
    others = [view for view in panel if classifier_of(view)]
    own = [view for view in panel if not classifier_of(view)]

    def stage(name: str, count: int, views: Sequence[View]) -> Stage:
        price = prices[""] + sum(prices[classifier_of(view)] for view in views)
        return Stage(name, count, count * (1 + len(views)), count * price)

    size = pilot_size(pictures)
    if fixed or not size:
        return Plan((stage("Everything", pictures, panel.views),))
    fewer = [*others, *own[: len(GENERAL)]]
    return Plan(
        (
            stage("Pilot, all candidates", size // 2, panel.views),
            stage("Pilot, suitable views", size - size // 2, fewer),
            stage("All other pictures, views worth their price", pictures - size, fewer),
        )
    )


def pilot_size(pictures: int) -> int:
    """The number of pilot pictures among this many labelled ones; 0 if they are too few."""
    return max(FEWEST // 2, pictures // SHARE) if pictures >= FEWEST else 0


# The pilot ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Selection:
    """The answers of the selected sources; pilot pictures come first."""

    collected: Collected
    pilot: int = 0
    """The number of pilot pictures, which are used for fitting only."""
    sentences: tuple[str, ...] = ()
    """The findings of the pilot, as sentences."""
    beside: tuple[Point, ...] = ()
    """The candidates that were tried only in the pilot."""
    cut: str = ""
    """A sentence on the queries left out because the budget did not cover them for every picture; empty if it covered
    all."""


async def ask(
    engine: QueryEngine, pictures: Sequence[Picture], panel: Panel, asked: Sequence[ProfileClassifier]
) -> Selection:
    """Ask the whole panel about the pilot pictures, and only the selected sources about the others.

    With several classifiers and a budget, the cheapest one is asked about all pictures first; if the budget ends in the
    pilot, only this classifier is fitted. With one classifier, no view is left out in that case.
    """
    mixed, size = shuffled(pictures), pilot_size(len(pictures))
    if not size:
        own = sum(not classifier_of(view) for view in panel)
        few = (
            f"With fewer than {FEWEST} labelled pictures there is no pilot: all {own} views of each are queried. Fewer "
        )
        few += "views cost less: select them with --views, or none with --views base."
        return replace(await ask_all(engine, pictures, panel), sentences=(few,) if own else ())
    first = await collecting.collect(engine, mixed, Panel(())) if _in_stages(engine, panel) else None
    if first and _cut(first):
        return Selection(first)
    half = await collecting.collect(engine, mixed[: size // 2], panel)
    if _cut(half):
        return _without(half, panel, first)
    suited, sentences = suitable(half.labelled(), panel)
    more = await collecting.collect(engine, mixed[size // 2 : size], suited, half.votes.vocabulary)
    if first and _cut(more):
        return _without(more, suited, first)
    pilot = joined([half, more], suited).distinct()
    if _cut(more):
        return Selection(pilot, len(pilot.votes), tuple(sentences))
    worth, why, beside = paying(pilot.labelled(), suited, asked)
    rest = await collecting.collect(engine, mixed[size:], worth, pilot.votes.vocabulary)
    whole = joined([joined([pilot], worth), rest], worth).distinct()
    return Selection(whole, len(pilot.votes), (*sentences, *why), tuple(beside))


async def ask_all(engine: QueryEngine, pictures: Sequence[Picture], panel: Panel) -> Selection:
    """Ask the whole panel about every picture; if the budget ends, keep only the sources that it covers for all of
    them.

    With several classifiers and a budget, their base queries come first, one classifier after the other. Sequences are
    compared on the same pictures, so a source with answers about only a few would bias the comparison.
    """
    others = [view for view in panel if isinstance(view, At) and isinstance(view.view, Base)]
    stages = [Panel(tuple(others[:count])) for count in range(len(others) + 1)] if _in_stages(engine, panel) else []
    complete: Collected | None = None
    for stage in dict.fromkeys((*stages, panel)):
        collected = await collecting.collect(engine, pictures, stage)
        if _cut(collected):
            return _without(collected, stage, complete)
        complete = collected
    return Selection(collected)


def _in_stages(engine: QueryEngine, panel: Panel) -> bool:
    """Whether a budget may end before all classifiers were asked; batched queries are sent as a whole."""
    several = any(classifier_of(view) for view in panel)
    return several and engine.remaining() is not None and not any(each.batches for each in engine.channels.values())


def _cut(collected: Collected) -> bool:
    return any(item.cause in (Cause.BUDGET, Cause.STOPPED) for item in collected.unscored)


def _without(cut: Collected, panel: Panel, complete: Collected | None) -> Selection:
    """Leave out sources without answers about all pictures; without `complete` answers, keep the pictures that have
    all."""
    if complete is None or any(item.cause is Cause.STOPPED for item in cut.unscored):
        return Selection(cut)
    added = [str(view) for view in panel if view not in complete.panel.views]
    which = added[0] if len(added) == 1 else f"{added[0]} and {len(added) - 1} more"
    why = next(item.message for item in cut.unscored if item.cause is Cause.BUDGET)
    total = len(cut.votes) + len(cut.unscored)
    return Selection(
        complete,
        cut=f"The budget ended early: {which} could be asked about only {len(cut.votes):,} of {total:,} pictures and "
        f"{'is' if len(added) == 1 else 'are'} excluded from the comparison; {why}",
    )


def suitable(labelled: LabelledVotes, panel: Panel) -> tuple[Panel, list[str]]:
    """Leave out views that change the class of pictures, and select as many of the best views as the general panel has.

    Views that change many right labels are left out unless juries without them have a held-out loss that is higher by
    more than a standard error: some such views are informative (corners of photos).
    """
    views, sentences = panel.views, list[str]()
    own = [column for column, view in enumerate(views) if not classifier_of(view)]
    right = labelled.base == labelled.truths
    same = (labelled.views == labelled.base[:, None]) | (labelled.views == MISSING)
    retained = same[right].mean(axis=0) if right.any() else np.ones(len(views))
    bad = [column for column in own if retained[column] < RETAINED]
    useful, fold = panels.with_useful_scores(labelled), folds(len(labelled), crossfit.FOLDS, 0)
    if bad:
        kept = [column for column in own if column not in bad]
        gain = _brier(useful, own, fold) - _brier(useful, kept, fold)
        if gain.mean() >= -gain.std() / np.sqrt(len(gain)):
            own = kept
            sentences.append(_unsuitable([views[column] for column in bad], [views[column] for column in kept]))
    general = [column for column in own if views[column] in GENERAL.views]
    if len(own) > len(GENERAL):
        chosen, _ = panels.choose(useful.under(own), [own.index(column) for column in general], len(GENERAL))
        own = [own[place] for place in chosen]
    others = [column for column, view in enumerate(views) if classifier_of(view)]
    return replace(panel, views=tuple(views[column] for column in (*others, *own))), sentences


def _brier(labelled: LabelledVotes, columns: Sequence[int], fold: Places) -> Floats:
    return panels.held_out(labelled.under(columns), fold, panels.brier)


def _unsuitable(bad: Sequence[View], kept: Sequence[View]) -> str:
    """Describe the operations of the omitted views; if possible, only operations that no remaining view uses."""
    still = {type(part) for view in kept for part in view.parts}
    alone = [[part.adjective for part in view.parts if type(part) not in still] for view in bad]
    words = [word for each in alone for word in each[:1]] if all(alone) else [view.adjective for view in bad]
    change = f"{', '.join(dict.fromkeys(words))} copies change the class of your pictures"
    return f"{change[0].upper()}{change[1:]}: {len(bad)} of {len(bad) + len(kept)} views are left out."


def paying(
    labelled: LabelledVotes, panel: Panel, asked: Sequence[ProfileClassifier]
) -> tuple[Panel, list[str], list[Point]]:
    """Select the views and classifiers that are worth their cost, with the reasons and the frontier points that use
    others."""
    own = [column for column, view in enumerate(panel) if not classifier_of(view)]
    wrong = int((labelled.base != labelled.truths).sum())
    useful, fold = panels.with_useful_scores(labelled), folds(len(labelled), crossfit.FOLDS, 0)
    scored, kept, sentences = useful.evidence is not None, list(range(len(panel))), list[str]()
    if own and wrong >= WRONG:
        alone = _brier(useful, [], fold)
        gain = alone - _brier(useful, own, fold)
        error = float(gain.std()) / np.sqrt(len(gain))
        if gain.mean() <= (AGAIN * alone.mean() if scored else error):
            kept = [column for column in kept if column not in own]
            share = f"{100 * gain.mean() / alone.mean():.1f} % ± {100 * error / alone.mean():.1f} %"
            what = "One query with its score suffices" if scored else "Asking again adds nothing"
            sentences.append(f"{what}: {len(own)} more queries lower the Brier score by {share} in the pilot.")
    sources = fitting.sources_of(panel, asked)
    points = candidates(labelled, sources).search()
    if len(asked) > 1 and wrong >= WRONG:
        worth = {source for point in _significant(points) for source in point.sequence.sources}
        kept = [column for column in kept if sources[1 + column] in worth or column in own]
        if left := [s.classifier for s in sources[1:] if s.classifier != asked[0].name and s not in worth]:
            sentences.append(f"Classifiers not worth their price in the pilot: {', '.join(dict.fromkeys(left))}.")
    gone = {sources[1 + column] for column in range(len(panel)) if column not in kept}
    beside = [point for point in frontier(points) if gone & set(point.sequence.sources)]
    return replace(panel, views=tuple(panel.views[column] for column in kept)), sentences, beside


def _significant(points: Sequence[Point]) -> list[Point]:
    """Keep the points of the frontier that are better than the previous one by more than a standard error."""
    kept: list[Point] = []
    for point in frontier(points):
        less = kept[-1].losses - point.losses if kept else np.ones(1)
        if less.mean() > less.std() / np.sqrt(len(less)):
            kept.append(point)
    return kept


# Results ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Frontier:
    """The frontier of loss against price, cheapest first."""

    points: tuple[FrontierPoint, ...]

    def to_frame(self) -> pd.DataFrame:
        """A pandas data frame, one point per row."""
        return notebook.frame(point.record() for point in self.points)

    def plot(self) -> Drawing:
        """A plot of the Brier score against price."""
        known = [(1000 * point.price, point.brier.value) for point in self.points if point.brier.value is not None]
        line = figures.Line("Brier", *map(np.array, zip(*sorted(known), strict=True)))
        title = "Brier score against price"
        return Drawing(figures.lines_svg([line], title=title, x_label="per 1,000 pictures", y_label="Brier"))


@dataclass(frozen=True, eq=False)
class FitResult:
    """The result of `fit`: the profile and the frontier."""

    profile: Profile
    collected: Collected = field(repr=False)
    """The answers that the profile was fitted on."""
    sentences: tuple[str, ...] = ()
    """Remarks, as sentences."""
    settings: tuple[Setting, ...] = ()
    """The results of each setting in the paper's search."""
    pilot: int = 0
    """The number of labelled pictures used for selection, which are used for fitting only."""
    cut: str = ""
    """A sentence on the queries left out because the budget did not cover them; empty if it covered all."""
    refit: Callable[[float | None, float | None], Profile] | None = field(default=None, repr=False)
    """Fits another operating point; None if there is only one."""

    def at(self, max_price: float | None = None, max_queries: float | None = None) -> Profile:
        """The profile of the best operating point of the same sources within these limits; sends no queries."""
        if self.refit is None:
            raise FitError("this fit has a single operating point; leave out the limits", code="option-invalid")
        return self.refit(max_price, max_queries)

    @property
    def frontier(self) -> Frontier:
        """The error of each operating point, and its price."""
        return Frontier(self.profile.frontier)

    def __str__(self) -> str:
        return "\n".join([str(self.profile), *self.sentences, *filter(None, [self.cut])])


def limits(asked: Sequence[ProfileClassifier], max_price: float | None, max_queries: float | None) -> Choice:
    """The rule that selects a point within limits; None means no limit. Raises an error below one query."""
    cheapest = min(asked, key=lambda classifier: classifier.price)
    if (max_price is not None and not max_price >= cheapest.price) or not (max_queries is None or max_queries >= 1):
        raise FitError(
            f"one query about each picture costs at least {cheapest.price:g}, which max_price={max_price} and "
            f"max_queries={max_queries} do not allow; raise these limits",
            code="option-invalid",
        )
    price, queries = (np.inf if limit is None else limit for limit in (max_price, max_queries))
    return lambda points: choose(points, price, queries)


def fit(
    chosen: Selection,
    asked: Sequence[ProfileClassifier],
    choice: Choice,
    ballot: Ballot = "vote",
    whole: bool = False,
) -> FitResult:
    """Fit the profile of the best sequence for its price, from stored answers; `whole` keeps the panel."""
    collected = chosen.collected
    profile, answers = fitting.learn_sequence(collected, asked, chosen.pilot, choice, ballot, whole)
    have, rest = {*map(str, fitting.sources_of(collected.panel, asked))}, max(0, len(collected.votes) - chosen.pilot)
    points = list(profile.frontier)
    for point in chosen.beside:
        missing = sum(str(source) not in have for source in point.sequence.sources)
        points.append(FrontierPoint.from_point(point).model_copy(update={"to_buy": rest * missing}))
    profile = profile.model_copy(update={"frontier": tuple(sorted(points, key=lambda point: point.price))})
    sentences = (*chosen.sentences, *profile.advice())

    def refit(max_price: float | None, max_queries: float | None) -> Profile:
        other = limits(asked, max_price, max_queries)
        return fitting.learn_sequence(collected, asked, chosen.pilot, other, ballot, whole)[0]

    return FitResult(profile, answers, sentences, pilot=chosen.pilot, cut=chosen.cut, refit=refit)


# The paper's search -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Setting:
    """One setting of a transformation, with the held-out results of the paper's calibrator."""

    view: View
    brier: float


def grid_of(family: str) -> Sequence[View]:
    """The settings of a transformation that the paper tries."""
    if family not in GRIDS:
        raise ViewError(f"the paper does not use the transformation {family!r}; it has {', '.join(GRIDS)}")
    return GRIDS[family]


async def search(
    engine: QueryEngine, pictures: Sequence[Picture], grid: Sequence[View], draws: int
) -> tuple[Selection, list[Setting]]:
    """The paper's search: query every setting of one transformation for half of the pictures, and the best one for the
    rest."""
    mixed = shuffled(pictures)
    pilot = mixed[: len(mixed) // 2]
    asked = [await _collected(engine, pilot, Panel((view,) * draws)) for view in grid]
    fitted = [crossfit.cross_fit(Gaussian(), collected.labelled()) for collected in asked]
    settings = [Setting(view, float(outcome.brier.mean())) for view, outcome in zip(grid, fitted, strict=True)]
    best = asked[int(np.argmin([setting.brier for setting in settings]))]
    rest = await _collected(engine, mixed[len(pilot) :], best.panel, best.votes.vocabulary)
    best = best.distinct()
    whole = joined([best, rest], best.panel).distinct()
    return Selection(whole, len(best.votes)), settings


def search_queries(pictures: int, grid: Sequence[View], draws: int) -> int:
    """The maximum number of queries that `search` sends."""
    crossfit.check_count(pictures, SEARCHED)
    return pictures // 2 * (1 + len(grid) * draws) + (pictures - pictures // 2) * (1 + draws)


async def _collected(
    engine: QueryEngine, pictures: Sequence[Picture], panel: Panel, vocabulary: Sequence[str] = ()
) -> Collected:
    """Collect the answers about some pictures; raise an error if some are missing because of the budget or a signal."""
    collected = await collecting.collect(engine, pictures, panel, vocabulary)
    if cut := [item for item in collected.unscored if item.cause in (Cause.BUDGET, Cause.STOPPED)]:
        raise UnscoredError(
            f"no views were chosen, since {len(cut)} of {len(pictures)} pictures are incomplete: {cut[0].message}"
        )
    return collected


def shuffled(pictures: Sequence[Picture]) -> list[Picture]:
    """Shuffle the pictures deterministically, independent of their classes."""
    return [pictures[place] for place in np.random.default_rng(0).permutation(len(pictures))]


def joined(parts: Sequence[Collected], panel: Panel) -> Collected:
    """Concatenate the answers of several parts, under their common views."""
    rows = [row for part in parts for row in _rows(part, panel)]
    vocabulary = dict.fromkeys(label for part in parts for label in part.votes.vocabulary)
    labelled = [part.votes for part in parts if isinstance(part.votes, LabelledVotes)]
    truths = [truth for each in labelled for truth in each.words]
    doubtful = [unsure for each in labelled for unsure in each.doubtful()]
    known = {truth for truth, unsure in zip(truths, doubtful, strict=True) if not unsure}
    classes = max(len({*vocabulary, *known}), *(part.votes.classes for part in parts))
    votes = Votes.collect(rows, tuple(map(str, panel)), tuple(vocabulary), classes)
    excluded = [each.excluded_labels(row) for each in labelled for row in range(len(each))]
    codes = [tuple(votes.codes(labels).tolist()) for labels in excluded] if any(excluded) else ()
    chances = [p for each in labelled for p in each.probabilities or (1.0,) * len(each)]
    votes = votes.labelled(truths, codes, chances) if len(truths) == len(votes) else votes
    unscored = tuple(item for part in parts for item in part.unscored)
    repeated, disputed = sum(part.repeated for part in parts), tuple(two for part in parts for two in part.disputed)
    descriptors = {digest: row for part in parts for digest, row in part.descriptors.items()}
    return replace(
        parts[0],
        votes=votes,
        unscored=unscored,
        panel=panel,
        repeated=repeated,
        disputed=disputed,
        descriptors=descriptors,
    )


def _rows(collected: Collected, panel: Panel) -> list[Row]:
    votes = collected.votes
    places = [collected.panel.slots.index(slot) for slot in panel.slots]
    lists = votes.under(places).lists()
    digests = votes.digests or ("",) * len(votes)
    words: dict[int, str | None] = {MISSING: None, **dict(enumerate(votes.vocabulary))}
    return [
        Row(name, words[base], tuple(words[code] for code in views), digest, lists=ranked)
        for name, base, views, digest, ranked in zip(
            votes.names, votes.base, votes.views[:, places], digests, lists, strict=True
        )
    ]
