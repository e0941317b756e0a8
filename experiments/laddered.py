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

from experiments.general import RESULTS, SPLITS, Heard, Rows, grow, grow_on, subjects, write
from looktwice.calibration.jury import Jury
from looktwice.calibration.votes import Floats, LabelledVotes

FIRST = (1, 2, 3, 4)
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
        panel = grow(others, LONGEST)
        growing = {other.name: other.votes.take(np.flatnonzero(other.grows)) for other in others}
        for count in FIRST:
            first = panel[:count]
            ways = []
            for agreed in (True, False):
                rows = {n: np.flatnonzero(unanimous(said.under(first)) == agreed) for n, said in growing.items()}
                parts = {name: said.take(rows[name]) for name, said in growing.items()}
                ways.append((agreed, grow_on(parts, others, LONGEST, first)))
            agrees = unanimous(each.votes.under(first))
            fixed, laddered = [], []
            for seed in range(splits):
                fit, test = each.unseen(seed)
                fixed.append(brier(each.votes.under(panel), fit, test).mean())
                taken = [
                    brier(each.votes.under(way), fit[agrees[fit] == agreed], test[agrees[test] == agreed])
                    for agreed, way in ways
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
                **{
                    name: " ".join(each.votes.panel[column] for column in way[count:])
                    for name, (_, way) in zip(("after_agreement", "after_dissent"), ways, strict=True)
                },
            }


if __name__ == "__main__":
    write(RESULTS / "general_laddered.csv", measured([each.heard() for each in subjects()]))
