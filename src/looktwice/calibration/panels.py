"""Which views to ask: what a panel is worth, and a choice from the votes of a pilot. Pure.

A view is worth what it adds to those already chosen, so panels grow greedily by the log loss (or the Brier score) of
juries. These have one weight for all views: which views are asked matters more than how each is weighed, and four
parameters are learned from few pictures. At its maximum likelihood a jury's log loss is what it expects to lose itself,
so it varies less from sample to sample than its Brier score.

With few labelled pictures many panels are equally good, and the luckiest of them looks better than it is: there a
chosen panel has to beat the general one on pictures that took no part in choosing it, and clearly. With many it need
only not be clearly worse. Both are judged on the same pictures, so that what is hard about these cancels out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from looktwice.calibration import logit, scored
from looktwice.calibration.logit import Patterns
from looktwice.calibration.scales import Scale
from looktwice.calibration.scored import Layout
from looktwice.calibration.votes import Floats, LabelledVotes, Places

SUFFICES = 1.02
"""How much larger the Brier score of one query may be than that of the whole panel for it to be enough."""
MANY = 200
"""Pilot pictures from which on what they choose was about as good as the general panel, or better, on new pictures."""
ROUNDS = 3
"""Parts of the pilot pictures that judge panels chosen on the others."""


# What a panel is worth ---------------------------------------------------------------------------------------------

LossName = Literal["brier", "log-loss"]
Loss = Callable[[Patterns, Floats, int], Floats]
"""(n,): what a jury loses on each picture, from the patterns, its parameters and the number of classes."""


def log_loss(patterns: Patterns, theta: Floats, _: int) -> Floats:
    """(n,): −log of the probability of each picture's truth."""
    return logit.losses(patterns, theta)


brier: Loss = logit.briers
LOSSES: dict[LossName, Loss] = {"brier": brier, "log-loss": log_loss}


def common_weight(labelled: LabelledVotes) -> Patterns:
    """The table of a jury with one weight for all views.

    Where there are scores, it has a weight for the option's log share in the picture's own list, and one for its mean
    over the views': what a view is worth is what it adds to the score that is paid for already.
    """
    if labelled.evidence is None:
        return equal_weights(logit.tabulate(labelled))
    table = scored.tabulate_scored(labelled, Layout(Scale.learn(labelled.evidence), (), ("count", "base", "views")))
    features, views = table.options, 1 + len(labelled.panel)
    options = np.column_stack([features[:, 0], features[:, 1:views].sum(axis=1), features[:, views:]])
    return replace(table, options=options, views=1)


def with_useful_scores(labelled: LabelledVotes) -> LabelledVotes:
    """The votes with their scores where these help a single query on held-out folds, otherwise without."""
    useful = scored.choose_layout(labelled.under([]), logit.SHRINKAGE) is not None
    return labelled if useful else labelled.label_only()


def equal_weights(patterns: Patterns) -> Patterns:
    """The table of a jury with one weight for all views, to which only the number of votes for a label matters.

    Patterns whose labels have the same numbers of votes become one, so that a fit takes a fraction of the time.
    """
    features, owner = patterns.options, patterns.owner
    counts = features[:, 1:-3].sum(axis=1)
    code = np.where(features[:, -2] == 1.0, 0, 1 + 2 * counts + features[:, 0]).astype(np.int16)
    order = np.lexsort((code, owner))
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order)) - patterns.starts[owner]
    table = np.full((len(patterns.starts), int(rank.max()) + 1), -1, np.int16)
    table[owner, rank] = code
    _, kept, kind = np.unique(table.view(f"V{2 * table.shape[1]}").ravel(), return_index=True, return_inverse=True)
    pattern, column = np.nonzero(table[kept] >= 0)
    starts = np.searchsorted(pattern, np.arange(len(kept)))
    option = order[patterns.starts[kept][pattern] + column]
    place = starts[kind[owner]] + rank
    return replace(
        patterns,
        options=np.column_stack([features[:, 0], counts, features[:, -3:]])[option],
        views=1,
        size=patterns.size[option],
        starts=starts,
        owner=pattern,
        truth=np.where(patterns.truth == logit.UNKNOWN, logit.UNKNOWN, place[patterns.truth]),
        possible=place[patterns.possible],
    )


def held_out(labelled: LabelledVotes, fold: Places, loss: Loss = log_loss) -> Floats:
    """(n,): what juries with one weight for all views lose on the folds they were not fitted on."""
    table = common_weight(labelled)
    losses, theta = np.zeros(len(fold)), logit.descend(table, 0.0)
    for part in range(int(fold.max()) + 1):
        here = fold == part
        losses[here] = loss(table, logit.descend(table, 0.0, ~here, theta), labelled.classes)[here]
    return losses


def lost(labelled: LabelledVotes, loss: Loss = log_loss) -> float:
    """The training loss of a jury with one weight for all views, summed over pictures.

    It has a few parameters for any panel, so comparing panels needs no held-out folds.
    """
    table = common_weight(labelled)
    return float(loss(table, logit.descend(table, 0.0), labelled.classes).sum())


def grow(labelled: LabelledVotes, longest: int, loss: Loss = log_loss) -> list[int]:
    """Columns in the order in which they are to be asked: each adds most to those before it."""
    panel = list[int]()
    for _ in range(min(longest, len(labelled.panel))):
        left = [column for column in range(len(labelled.panel)) if column not in panel]
        panel.append(min(left, key=lambda column: lost(labelled.under([*panel, column]), loss)))
    return panel


# Choosing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gain:
    """By how much a chosen panel's loss is below the general one's, on pictures it was not chosen on."""

    mean: float
    error: float
    """The standard error of the mean of the differences, picture by picture."""
    pictures: int
    """How many it is the mean of."""

    def convincing(self) -> bool:
        """Whether to ask the chosen panel: it is clearly better or, after many pictures, not clearly worse."""
        return self.mean > (-self.error if self.pictures >= MANY else self.error)


def gain(labelled: LabelledVotes, general: Sequence[int], longest: int, loss: Loss = log_loss) -> Gain:
    """The gain of choosing: on each third of the pictures, with panel and weights fitted on the others."""
    fold = logit.folds(len(labelled), ROUNDS, seed=1)
    gaps = np.zeros(len(labelled))
    for part in range(ROUNDS):
        here = fold == part
        chosen = grow(labelled.take(np.flatnonzero(~here)), longest, loss)
        ours, theirs = (held_out(labelled.under(panel), fold, loss) for panel in (chosen, general[:longest]))
        gaps[here] = (theirs - ours)[here]
    return Gain(float(gaps.mean()), float(gaps.std(ddof=1) / math.sqrt(len(gaps))), len(gaps))


def choose(
    labelled: LabelledVotes, general: Sequence[int], longest: int, loss: Loss = log_loss
) -> tuple[list[int], Gain]:
    """The ordered panel of at most `longest` columns, and what choosing it gained.

    It is the general one, unless a panel grown from these votes is convincing.
    """
    found = gain(labelled, general, longest, loss)
    return (grow(labelled, longest, loss) if found.convincing() else list(general[:longest])), found
