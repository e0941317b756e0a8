"""Whether the next view should depend on the answers so far, on the labels that experiments/general.py keeps.

python -m experiments.laddered      results/general_laddered.csv

After the first views of a panel a picture goes one of two ways: all views agreed with the base label, or one did not.
Each way has views of its own, grown on the pictures that went it, and a jury of its own, so that no vote is missing in
what a jury is fitted on. Beside it, at equal queries, the fixed panel; both are grown on the other five models and
tested on pictures that grew neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from experiments.general import RESULTS, SPLITS, Heard, Rows, grow, subjects, write
from looktwice.calibration.jury import Jury
from looktwice.calibration.votes import Floats, LabelledVotes

FIRST = (4,)
"""Views before the ways part."""
LONGEST = 8


def unanimous(votes: LabelledVotes) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """(n,): whether every view kept the base label."""
    return np.asarray((votes.views == votes.base[:, None]).all(axis=1))


def brier(votes: LabelledVotes, fit: Rows, test: Rows) -> Floats:
    """(m,): the Brier score of each tested picture under the jury of the others."""
    tested = votes.take(test)
    return Jury().fit(votes.take(fit)).distribution(tested).brier(tested.truths)


def measured(models: Sequence[Heard], splits: int = SPLITS) -> Iterator[dict[str, str]]:
    """For each model and number of first views, both panels' Brier score."""
    for each in models:
        others = [other for other in models if other is not each]
        for count in FIRST:
            trees = [_tree(others, parity, count) for parity in (0, 1)]
            fixed, laddered = [], []
            for seed in range(splits):
                panel, ways = trees[seed % 2]
                fit, test = each.unseen(seed % 2, seed)
                agrees = unanimous(each.votes.under(panel[:count]))
                fixed.append(brier(each.votes.under(panel), fit, test).mean())
                taken = [
                    brier(each.votes.under(way), fit[agrees[fit] == agreed], test[agrees[test] == agreed])
                    for agreed, way in ways.items()
                ]
                laddered.append(np.concatenate(taken).mean())
            gap = np.array(laddered) - fixed
            yield {
                "model": each.title,
                "first": str(count),
                "fixed": f"{np.mean(fixed):.4f}",
                "laddered": f"{np.mean(laddered):.4f}",
                "difference": f"{gap.mean():+.4f}",
                "splits_better": str(int((gap < 0).sum())),
                "splits": str(splits),
                "after_agreement": " ".join(each.votes.panel[column] for column in trees[0][1][True][count:]),
                "after_dissent": " ".join(each.votes.panel[column] for column in trees[0][1][False][count:]),
            }


def _tree(models: Sequence[Heard], parity: int, count: int) -> tuple[list[int], dict[bool, list[int]]]:
    """The fixed panel, and the panels after agreement and after dissent of its first views."""
    parts = [each.half(parity) for each in models]
    panel = grow(models, parts, LONGEST)
    ways = {}
    for agreed in (True, False):
        went = [part.take(np.flatnonzero(unanimous(part.under(panel[:count])) == agreed)) for part in parts]
        ways[agreed] = grow(models, went, LONGEST, panel[:count])
    return panel, ways


if __name__ == "__main__":
    write(RESULTS / "general_laddered.csv", measured([each.heard() for each in subjects()]))
