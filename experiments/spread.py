"""How the probability of the unnamed class is spread: evenly, or by which labels occur together.

python -m experiments spread      results/spread.csv, one line for each model and way

Answers, panels and splits are those of experiments/general.py: neither the model nor the tested pictures took part in
growing the panel. Co-occurring labels are counted over the labelled pictures, as `fit` does, or over all that are not
tested. Sets are adaptive ones for 0.9; `listed` is how often they list the truth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.general import Answers, left_out_splits
from experiments.writing import Row, write
from looktwice.calibration import crossfit
from looktwice.calibration.conformal import draws
from looktwice.calibration.jury import Jury
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.decisions.profile import HeldOut

RESULTS = Path(__file__).parent / "results"
SPLITS, COVERAGE = 20, 0.9
EVEN, LABELLED, ALL = "evenly", "labelled pictures", "all pictures"
DIGITS = {"brier": 4, "nll": 4, "coverage": 4, "listed": 4, "labels": 2, "classes": 2}


def ways(train: LabelledVotes, others: Votes) -> dict[str, Jury]:
    """The same jury with each way to spread."""
    fitted = Jury().fit(train)
    return {EVEN: replace(fitted, companions=None), LABELLED: fitted, ALL: fitted.with_companions(others, train)}


def figures(train: LabelledVotes, tested: LabelledVotes, others: Votes) -> Iterator[tuple[str, dict[str, float]]]:
    """The figures of each way on one split."""
    folds = [(ways(train.take(rows), others), test) for rows, test in crossfit.folds(len(train), 0, 0)]
    for name, jury in ways(train, others).items():
        held_out = crossfit.joined([(crossfit.outcome(fold[name], train.take(test)), test) for fold, test in folds])
        rests, distribution = HeldOut.of(held_out, crossfit.outcome(jury, train)), jury.distribution(tested)
        sets = rests.conformal(COVERAGE).sets(distribution, draws(tested))
        yield (
            name,
            {
                "brier": float(distribution.brier(tested.truths).mean()),
                "nll": float(distribution.nll(tested.truths).mean()),
                "coverage": float(sets.hold(distribution, tested.truths).mean()),
                "listed": float(sets.list_truth(tested.truths).mean()),
                "labels": float(sets.sizes().mean()),
                "classes": float(sets.true_sizes().mean()),
            },
        )


def measured(models: Sequence[Answers], each: Answers, splits: int) -> Iterator[Row]:
    """One line for each way: means over the splits."""
    found: dict[str, list[dict[str, float]]] = {}
    for split in left_out_splits(models, each, splits):
        others = split.votes.take(np.setdiff1d(np.arange(len(split.votes)), split.test))
        for name, one in figures(split.votes.take(split.fit), split.votes.take(split.test), others):
            found.setdefault(name, []).append(one)
    for name, each_split in found.items():
        means = {key: f"{np.mean([one[key] for one in each_split]):.{digits}f}" for key, digits in DIGITS.items()}
        yield {"model": each.title, "spread": name, **means, "splits": str(len(each_split))}


def main(models: Sequence[Answers], results: Path = RESULTS, splits: int = SPLITS) -> None:
    """Measure every model, and write results/spread.csv."""
    write(results / "spread.csv", (row for each in models for row in measured(models, each, splits)))
