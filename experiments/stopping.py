"""What stopping early does to the Brier score of a fixed panel, over random splits, and what it was expected to do.

python -m experiments stopping     results/stopping.csv, one line for each model and aim

Answers and splits are those of experiments/general.py. As with `fit --adaptive`, sixteen views are at hand and the
first eight of them are the fixed panel; they grew on the other models, by pictures that are not tested. Order, juries,
rule and price are learned on the labelled part of a split. `brier` is the Brier score on the tested part as a share of
that of the eight, `queries` the mean number of queries as a share of nine; `expected` is what `fit` says of itself,
and `inside` how often its 95 % interval and that of the tested part overlap. The aim that a product ships with must
not come from the model it is told of: `left_out` chooses, for each model, the laxest aim that stays within 1.01 on all
the others. The last line of a model stops within the eight views, with the aim that is shipped for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np

from experiments.general import Answers, Split, left_out_splits
from experiments.writing import Row, write
from looktwice.calibration import crossfit
from looktwice.calibration.jury import Jury, Prefixes
from looktwice.verdicts import stopping
from looktwice.verdicts.stopping import ALLOWED, Expected, Thrift

RESULTS = Path(__file__).parent / "results"
SPLITS, FIXED, AT_HAND = 20, 8, 16
AIMS = {f"{aim:g}": aim for aim in (0.0, 0.005, 0.01)}
WITHIN = {f"within the eight, {stopping.WITHOUT:g}": stopping.WITHOUT}
FIGURES = ("brier", "queries", "expected", "low", "high", "inside")


def stopped(split: Split, views: int, aims: dict[str, float]) -> Iterator[tuple[str, tuple[float, ...]]]:
    """The figures of one split for each aim, with so many views at hand."""
    train, test = (split.votes.take(rows).under(range(views)) for rows in (split.fit, split.test))
    fixed = min(FIXED, views)
    order, trials = (
        stopping.order(Jury(), train, fixed) if views > fixed else (range(views), stopping.trials(Jury(), train))
    )
    usual = crossfit.joined([(trial.usual.steps[fixed], trial.places) for trial in trials])
    juries = Prefixes().fit(train.under(order)).members()
    taught, tested = (stopping.grow(juries, part.under(order)) for part in (train, test))
    whole = stopping.grow(Prefixes().fit(train.under(range(fixed))).members(), test.under(range(fixed))).steps[-1]
    for name, aim in aims.items():
        with patch.multiple(stopping, WITH_MORE=aim, WITHOUT=aim):
            rule = stopping.rule(taught, Thrift(fixed), stopping.price(trials, Thrift(fixed)))
            expected = Expected.of(stopping.stopped(trials, Thrift(fixed)), usual)
        seen = Expected.of(tested.stopped(rule), whole)
        inside = seen.low <= expected.high and expected.low <= seen.high
        yield name, (seen.brier, seen.queries, expected.brier, expected.low, expected.high, inside)


def measured(models: Sequence[Answers], each: Answers, splits: int) -> Iterator[Row]:
    """One line for each aim: means over the splits."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for split in left_out_splits(models, each, splits, AT_HAND):
        views = len(split.panel)
        for name, figures in (*stopped(split, views, AIMS), *stopped(split, min(FIXED, views), WITHIN)):
            found.setdefault(name, []).append(figures)
    for aim, rows in found.items():
        shown = {name: f"{value:.4f}" for name, value in zip(FIGURES, np.mean(rows, axis=0), strict=True)}
        worst = np.percentile([row[0] for row in rows], 97.5)
        yield {"model": each.title, "aim": aim, **shown, "brier_high": f"{worst:.4f}", "splits": str(splits)}


def left_out(rows: Sequence[Row]) -> Iterator[Row]:
    """For each model the row of the laxest aim that stays within 1.01 on all the others; the strictest if none does."""
    for model in dict.fromkeys(row["model"] for row in rows):
        others = {aim: [r for r in rows if r["aim"] == aim and r["model"] != model] for aim in AIMS}
        kept = [aim for aim in AIMS if all(float(row["brier"]) <= 1 + ALLOWED for row in others[aim])]
        chosen = (kept or list(AIMS)[:1])[-1]
        (row,) = [row for row in rows if (row["model"], row["aim"]) == (model, chosen)]
        yield {**row, "aim": f"left out, {chosen}"}


def rows(models: Sequence[Answers], splits: int) -> Iterator[Row]:
    """The lines of every model, and those of the aims that the others choose."""
    found = []
    for each in models:
        for row in measured(models, each, splits):
            found.append(row)
            yield row
    yield from left_out(found)


def main(models: Sequence[Answers], results: Path = RESULTS, splits: int = SPLITS) -> None:
    """Measure every model, and write results/stopping.csv."""
    write(results / "stopping.csv", rows(models, splits))
