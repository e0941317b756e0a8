"""Asks the pilot that chooses the views: every candidate about a few pictures, the better ones about more.

It may choose the size of pictures, too: smaller ones may be cheaper, and so pay for more looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from looktwice.calibration import Gaussian, Jury, crossfit, panels
from looktwice.calibration.panels import Gain, Loss, Plan
from looktwice.calibration.votes import MISSING, LabelledVotes, Row, Votes
from looktwice.decisions import fitting, stopping
from looktwice.decisions.fitting import Collected
from looktwice.decisions.profile import Profile, Result
from looktwice.engine.engine import QueryEngine
from looktwice.engine.outcome import Cause
from looktwice.errors import UnscoredError, ViewError
from looktwice.images.collection import Picture
from looktwice.plots import figures
from looktwice.plots.notebook import Drawing
from looktwice.views import GRIDS, Panel, View

SEARCHED = 4 * crossfit.FOLDS
"""The fewest labelled pictures of the paper's search: each half of them is judged by folds."""


@dataclass(frozen=True, eq=False)
class Selection:
    """The answers under the chosen panel; those about the pilot pictures, on which it was chosen, come first."""

    collected: Collected
    pilot: int
    gain: Gain
    """What choosing gained over the general panel; where that is not convincing, the general one was taken."""
    knee: int
    """Views after which the rest add little, by the pilot pictures; 0 where one query with its score suffices."""
    losses: tuple[float, ...] = ()
    """Mean Brier scores of the pilot pictures after 0, 1 … views."""

    def sentences(self, loss: panels.LossName) -> list[str]:
        """Whether one query suffices, and what choosing gained in this loss."""
        score = "Brier score" if loss == "brier" else "log loss"
        gain = f"{self.gain.mean:+.4f} ± {self.gain.error:.4f} in {score}"
        both = "both on the same held-out pictures"
        if self.gain.convincing():
            found = [f"The chosen views gain {gain} over the general panel, {both}."]
        else:
            found = [f"The general panel was kept: the best choice gains {gain} over it, {both}."]
        if self.knee:
            return found
        brier = f"{self.losses[0]:.3f} on the pilot pictures, {min(self.losses[1:]):.3f} with views"
        suffices = f"One query with its score suffices: a Brier score of {brier}. Fit with --views none to ask no more."
        return [suffices, *found]


@dataclass(frozen=True, eq=False)
class Tuned:
    """What choosing the views found, and the profile that was fitted with them."""

    profile: Profile
    chosen: Selection
    collected: Collected
    """The answers that the profile was fitted on."""
    settings: tuple[Setting, ...] = ()
    """For the paper's search: how each setting fared on the pilot."""


async def choose(
    engine: QueryEngine,
    pictures: Sequence[Picture],
    plan: Plan,
    candidates: Sequence[View],
    general: Panel,
    loss: Loss = panels.log_loss,
) -> Selection:
    """Ask the pilot, choose an ordered panel, and ask it about the pictures that took no part in choosing.

    The general panel's views are among the candidates and stay to the last rung.
    """
    mixed = shuffled(pictures)
    pilot = await _climb(engine, mixed, plan, tuple(candidates), general, loss)
    columns = [list(pilot.panel).index(view) for view in general if view in pilot.panel]
    panel, gain = panels.choose(panels.with_useful_scores(pilot.labelled()), columns, plan.longest, loss)
    chosen = joined([pilot], Panel(tuple(pilot.panel.views[column] for column in panel))).distinct()
    steps = stopping.steps(stopping.trials(Jury(), chosen.labelled()))
    losses = tuple(float(step.brier.mean()) for step in steps)
    rest = await _collected(engine, mixed[plan.pilot() :], chosen.panel, chosen.votes.vocabulary)
    whole = joined([chosen, rest], chosen.panel).distinct()
    alone, *asked = steps
    best = asked[int(np.argmin(losses[1:]))]
    if alone.evidence == "scores" and panels.suffices(alone.brier, best.brier):
        return Selection(whole, len(chosen.votes), gain, 0, losses)
    return Selection(whole, len(chosen.votes), gain, max(1, panels.knee(losses)), losses)


def fit(chosen: Selection, views: int, description: str) -> Tuned:
    """The jury's profile from the answers under the first of the chosen views, with the curve of all views."""
    trials = stopping.trials(Jury(), chosen.collected.labelled(), n_selection=chosen.pilot)
    points = tuple(Result.of(step, intervals=False) for step in stopping.steps(trials))
    collected = chosen.collected.under(range(min(views, len(chosen.collected.panel))))
    profile = fitting.learn(collected, Jury(), description, n_selection=chosen.pilot)
    return Tuned(profile.model_copy(update={"curve": points}), chosen, collected)


async def _collected(
    engine: QueryEngine, pictures: Sequence[Picture], panel: Panel, vocabulary: Sequence[str] = ()
) -> Collected:
    """The answers about some pictures; nothing is chosen on those that a spent budget or a signal left over."""
    collected = await fitting.collect(engine, pictures, panel, vocabulary)
    cut = [item for item in collected.unscored if item.cause in (Cause.BUDGET, Cause.STOPPED)]
    if cut:
        raise UnscoredError(f"no views were chosen, {len(cut)} of {len(pictures)} pictures are left: {cut[0].message}")
    return collected


async def _climb(
    engine: QueryEngine, mixed: Sequence[Picture], plan: Plan, candidates: tuple[View, ...], general: Panel, loss: Loss
) -> Collected:
    """The answers about all pilot pictures under the candidates of the last rung."""
    first, *others = plan.rungs
    collected = await _collected(engine, mixed[: first.pictures], Panel(candidates))
    asked = first.pictures
    for rung in others:
        keep = [place for place, view in enumerate(collected.panel) if view in general.views[: plan.longest]]
        columns = panels.survivors(panels.with_useful_scores(collected.labelled()), keep, rung.views, loss)
        panel = Panel(tuple(collected.panel.views[column] for column in columns))
        more = await _collected(engine, mixed[asked : asked + rung.pictures], panel, collected.votes.vocabulary)
        collected, asked = joined([collected, more], panel), asked + rung.pictures
    return collected


@dataclass(frozen=True)
class Setting:
    """One setting of a transformation, and how the paper's calibrator fared with it on held-out pilot pictures."""

    view: View
    brier: float


def grid_of(family: str) -> Sequence[View]:
    """The settings that the paper tries of a transformation."""
    if family not in GRIDS:
        raise ViewError(f"the paper has no transformation {family!r}; it has {', '.join(GRIDS)}")
    return GRIDS[family]


async def search(
    engine: QueryEngine, pictures: Sequence[Picture], grid: Sequence[View], draws: int
) -> tuple[Selection, list[Setting]]:
    """The paper's search: every setting of one transformation about half of the pictures, the best about the rest."""
    mixed = shuffled(pictures)
    pilot = mixed[: len(mixed) // 2]
    asked = [await _collected(engine, pilot, Panel((view,) * draws)) for view in grid]
    fitted = [crossfit.cross_fit(Gaussian(), collected.labelled()) for collected in asked]
    settings = [Setting(view, float(found.brier.mean())) for view, found in zip(grid, fitted, strict=True)]
    best = asked[int(np.argmin([setting.brier for setting in settings]))]
    rest = await _collected(engine, mixed[len(pilot) :], best.panel, best.votes.vocabulary)
    best = best.distinct()
    whole = joined([best, rest], best.panel).distinct()
    return Selection(whole, len(best.votes), Gain(0.0, 0.0, 0), draws), settings


def search_queries(pictures: int, grid: Sequence[View], draws: int) -> int:
    """The most queries that `search` sends."""
    crossfit.check_count(pictures, SEARCHED)
    return pictures // 2 * (1 + len(grid) * draws) + (pictures - pictures // 2) * (1 + draws)


def shuffled(pictures: Sequence[Picture]) -> list[Picture]:
    """The pictures in an order that has nothing to do with their classes, always the same."""
    return [pictures[place] for place in np.random.default_rng(0).permutation(len(pictures))]


def joined(parts: Sequence[Collected], panel: Panel) -> Collected:
    """The answers of several parts under the views that all of them have."""
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
        Row(name, words[base] or "", tuple(words[code] for code in views), digest, lists=ranked)
        for name, base, views, digest, ranked in zip(
            votes.names, votes.base, votes.views[:, places], digests, lists, strict=True
        )
    ]


@dataclass(frozen=True)
class Choice:
    """Pictures of one size and the number of their views."""

    size: int
    """Pixels of the longer side."""
    views: int
    micros: float
    """What a picture costs, in millionths of the currency; its queries where no price is known."""
    brier: float
    """On the pilot pictures."""


@dataclass(frozen=True, eq=False)
class Sized:
    """What choosing the size of pictures along with the views found."""

    tuned: Tuned
    """The profile for the size that was taken."""
    choices: tuple[Choice, ...]
    """Every size with every number of views; `frontier` has those that are worth their money."""
    taken: Choice

    def plot(self) -> Drawing:
        """The Brier score against money, a line for each size."""
        lines = []
        for size in dict.fromkeys(choice.size for choice in self.choices):
            points = [(choice.micros / 1e3, choice.brier) for choice in self.choices if choice.size == size]
            lines.append(figures.Line(f"{size} px", *map(np.array, zip(*points, strict=True))))
        title = "Brier score against money"
        return Drawing(figures.lines_svg(lines, title=title, x_label="per 1,000 pictures", y_label="Brier"))


def frontier(choices: Iterable[Choice]) -> list[Choice]:
    """Those that nothing cheaper equals, cheapest first."""
    found: list[Choice] = []
    for choice in sorted(choices, key=lambda each: (each.micros, each.brier)):
        if not found or choice.brier < found[-1].brier:
            found.append(choice)
    return found


def taken(choices: Sequence[Choice]) -> Choice:
    """The cheapest of a frontier that brings most of what the dearest brings."""
    return choices[panels.knee([choice.brier for choice in choices])]
