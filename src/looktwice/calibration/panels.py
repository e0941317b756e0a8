"""Panel selection: the value of a panel, and a choice from the votes of a pilot.

The value of a view depends on the views already chosen, so panels grow greedily by the log loss (or the Brier score) of
juries. These juries have one weight for all views: the choice of views matters more than their weights, and four
parameters can be learned from few pictures. At maximum likelihood the log loss of a jury equals its own expected loss,
so it varies less from sample to sample than the Brier score.

With few labelled pictures many panels are equally good, and the best of them on the sample looks better than it is: a
chosen panel must therefore be clearly better than the general one on held-out pictures. With many pictures, it is
enough that the chosen panel is not clearly worse. Both are evaluated on the same pictures, so that differences in
difficulty cancel out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from looktwice.calibration import jury, logit
from looktwice.calibration.evidence import Floats, Places, Scale
from looktwice.calibration.logit import Patterns
from looktwice.calibration.options import Layout, tabulate
from looktwice.calibration.votes import LabelledVotes

SUFFICES = 1.02
"""One query is sufficient if its Brier score is at most this multiple of the whole panel's score."""
MANY = 200
"""The minimum number of pilot pictures for which chosen panels were at least as good as the general one on new
pictures."""
ROUNDS = 3
"""The number of folds of the pilot in which chosen panels are evaluated."""


# The value of a panel ----------------------------------------------------------------------------------------------

Loss = Callable[[Patterns, Floats, int], Floats]
"""(n,): the loss of a jury on each picture, from patterns, parameters and the number of classes."""


def log_loss(patterns: Patterns, theta: Floats, _: int) -> Floats:
    """(n,): −log of the probability of each picture's true label."""
    return logit.losses(patterns, theta)


brier: Loss = logit.briers


def common_weight(labelled: LabelledVotes) -> Patterns:
    """The table of a jury with one weight for all views.

    With scores, the table has one weight for the option's log share in the base list, and one for the mean log share
    over the views' lists: the value of a view is its improvement over the score of the base query.
    """
    layout = Layout(Scale.learn(labelled.evidence), (), ("count", "base", "views")) if labelled.evidence else None
    table, views = tabulate(labelled, layout), 1 + len(labelled.panel)
    together = table.options[:, 1:views].sum(axis=1)
    options = np.column_stack([table.options[:, 0], together, table.options[:, views:]])
    return replace(table, options=options, views=1)


def with_useful_scores(labelled: LabelledVotes) -> LabelledVotes:
    """Return the votes, without scores if scores do not improve a single query on held-out folds."""
    useful = jury.choose_layout(labelled.under([]), logit.SHRINKAGE) is not None
    return labelled if useful else labelled.label_only()


def held_out(labelled: LabelledVotes, fold: Places, loss: Loss = log_loss) -> Floats:
    """(n,): the held-out losses of juries with one weight for all views."""
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
    """Order columns greedily: each column gives the largest improvement over the previous ones."""
    panel = list[int]()
    for _ in range(min(longest, len(labelled.panel))):
        left = [column for column in range(len(labelled.panel)) if column not in panel]
        panel.append(min(left, key=lambda column: lost(labelled.under([*panel, column]), loss)))
    return panel


# Panel choice ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gain:
    """The reduction of the held-out loss by a chosen panel, compared with the general one."""

    mean: float
    error: float
    """The standard error of the mean per-picture difference."""
    pictures: int
    """The number of pictures in the mean."""

    def convincing(self) -> bool:
        """Whether to use the chosen panel: it is clearly better or, with many pictures, not clearly worse."""
        return self.mean > (-self.error if self.pictures >= MANY else self.error)


def gain(labelled: LabelledVotes, general: Sequence[int], longest: int, loss: Loss = log_loss) -> Gain:
    """Cross-validate the choice: evaluate each third of the pictures with panel and weights fitted on the others."""
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
    """Choose an ordered panel of at most `longest` columns; returns it with its gain.

    The general panel is kept unless a panel selected from these votes is clearly better, as `Gain` defines it.
    """
    difference = gain(labelled, general, longest, loss)
    return (grow(labelled, longest, loss) if difference.convincing() else list(general[:longest])), difference
