"""Which views to ask, and how many: a plan for a paid pilot, a choice from its votes, and where to stop. Pure.

A view is worth what it adds to those already chosen, so panels grow greedily by the log loss of juries on pictures
they were not fitted on. With few labelled pictures many panels are equally good, and the luckiest of them looks better
than it is: there a chosen panel has to beat the general one on pictures that took no part in choosing it, and clearly.
With many it need only not be clearly worse.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from looktwice.calibration import jury
from looktwice.calibration.jury import Places
from looktwice.calibration.votes import Floats, LabelledVotes
from looktwice.errors import FitError

FEWEST = 200
"""Labelled pictures below which nothing is chosen."""
SPARE = (4, 2, 0)
"""Candidates of the last rung beyond the views that the panel may have: as many as the price allows."""
LEAST = 0.1
"""The least share of the pilot pictures in each of the first two rungs."""
KEPT = 0.9
"""The share of the whole gain that the knee of a curve has."""
MANY = 200
"""Pilot pictures from which on what they choose was about as good as the general panel, or better, on new pictures."""
ROUNDS = 3
"""Parts of the pilot pictures that judge panels chosen on the others."""


@dataclass(frozen=True)
class Rung:
    """A step of the pilot: so many pictures are asked about, under so many candidates."""

    pictures: int
    views: int

    def queries(self) -> int:
        return self.pictures * (1 + self.views)


@dataclass(frozen=True)
class Plan:
    """A pilot on part of the labelled pictures, whose candidates get fewer from rung to rung, and then the rest."""

    rungs: tuple[Rung, ...]
    rest: int
    """Pictures that take no part in choosing; they are asked about under the chosen panel."""
    longest: int
    """The most views that the panel may have."""

    def pilot(self) -> int:
        """Pictures on which the panel is chosen."""
        return sum(rung.pictures for rung in self.rungs)

    def pilot_queries(self) -> int:
        """What choosing costs."""
        return sum(rung.queries() for rung in self.rungs)

    def everything(self) -> int:
        """What it would cost to ask every candidate about every pilot picture."""
        return self.pilot() * (1 + self.rungs[0].views)

    def queries(self) -> int:
        """The most that choosing and fitting cost together."""
        return self.pilot_queries() + self.rest * (1 + self.longest)


def plan(pictures: int, candidates: int, longest: int, budget: int | None = None) -> Plan:
    """A pilot on half of the pictures, three rungs, and at most half the price of asking everything.

    `longest` is the most views of a panel, `budget` the most queries of all; the pilot shrinks to keep it.
    """
    if pictures < FEWEST:
        raise FitError(f"{pictures} labelled pictures are too few to choose views; give {FEWEST}, or fit as it is")
    for pilot in range(pictures // 2, FEWEST // 2 - 1, -10):
        found = _plan(pilot, pictures - pilot, candidates, longest)
        if budget is None or found.queries() <= budget:
            return found
    least = _plan(FEWEST // 2, pictures - FEWEST // 2, candidates, longest).queries()
    raise FitError(f"a budget of {budget} queries is too small to choose views; {least} are needed, or fit as it is")


def _plan(pilot: int, rest: int, candidates: int, longest: int) -> Plan:
    """The first two rungs get as many pictures as half the price of everything leaves them."""
    for last in (min(candidates, longest + spare) for spare in SPARE):
        middle = max(last, candidates // 2)
        room = (candidates + 1) / 2 - (last + 1)
        share = min(0.25, room / (candidates + middle + 2 - 2 * (last + 1) or 1))
        if share >= LEAST:
            few = math.floor(pilot * share)
            return Plan((Rung(few, candidates), Rung(few, middle), Rung(pilot - 2 * few, last)), rest, longest)
    raise FitError(
        f"panels of {longest} views cannot be chosen from {candidates} for half the price of asking all; lower "
        "--max-queries"
    )


def survivors(labelled: LabelledVotes, keep: Sequence[int], count: int) -> list[int]:
    """The `count` columns that go on to the next rung: those of `keep`, and those that add most, in their order."""
    left = count - len(keep)
    ranked = [column for column in rank(labelled) if column not in keep]
    return sorted([*keep, *ranked[: max(0, left)]])


def rank(labelled: LabelledVotes) -> list[int]:
    """All columns, the one first whose jury with the base label alone is least surprised on held-out folds."""
    fold = jury.folds(len(labelled))
    tables = [jury.tabulate(labelled.under([s])) for s in range(len(labelled.panel))]
    loss = [jury.held_out_losses(table, fold, jury.COMPARING).sum() for table in tables]
    return np.argsort(loss, kind="stable").tolist()


@dataclass(frozen=True)
class Gain:
    """By how much a chosen panel's log loss is below the general one's, on pictures it was not chosen on."""

    mean: float
    error: float
    """The standard error of the mean."""
    pictures: int
    """How many it is the mean of."""

    def convincing(self) -> bool:
        """Whether to ask the chosen panel: it is clearly better or, after many pictures, not clearly worse."""
        return self.mean > (-self.error if self.pictures >= MANY else self.error)


def gain(labelled: LabelledVotes, general: Sequence[int], longest: int) -> Gain:
    """What choosing is worth: on each third of the pictures, with panel and weights learned on the others."""
    fold = jury.folds(len(labelled), ROUNDS, seed=1)
    gaps = np.zeros(len(labelled))
    for part in range(ROUNDS):
        train, test = np.flatnonzero(fold != part), np.flatnonzero(fold == part)
        chosen = jury.grow_panel(labelled.take(train), longest)
        ours, theirs = (_losses(labelled.under(panel), train, test) for panel in (chosen, general[:longest]))
        gaps[test] = theirs - ours
    return Gain(float(gaps.mean()), float(gaps.std(ddof=1) / math.sqrt(len(gaps))), len(gaps))


def choose(labelled: LabelledVotes, general: Sequence[int], longest: int) -> tuple[list[int], Gain]:
    """The ordered panel of at most `longest` columns, and what choosing it gained.

    It is the general one, unless a panel grown from these votes is convincing.
    """
    found = gain(labelled, general, longest)
    return (jury.grow_panel(labelled, longest) if found.convincing() else list(general[:longest])), found


def knee(losses: Sequence[float]) -> int:
    """The fewest views that bring most of what the best prefix brings; losses are means after 0, 1 … views."""
    fallen = losses[0] - np.array(losses)
    return int((fallen >= KEPT * fallen.max()).argmax())


def _losses(labelled: LabelledVotes, train: Places, test: Places) -> Floats:
    """(m,): log losses on the test pictures of the jury that the others teach."""
    fitted, tested = jury.Jury().fit(labelled.take(train)), labelled.take(test)
    return fitted.distribution(tested).nll(tested.truths)
