"""What stopping early does to the Brier score of a fixed panel, over random splits, and what it was expected to do.

python -m experiments stopping     results/stopping.csv, one line for each model and aim

Answers, panels and splits are those of experiments/general.py: neither the model nor the tested pictures took part in
growing the panel. Juries, rule and price are learned on the labelled part of a split. `brier` is the Brier score on the
tested part as a share of that of the whole panel, `queries` the mean number of queries as a share of all; `expected` is
what `fit` says of itself, and `inside` how often its 95 % interval and that of the tested part overlap. The aim that a
product ships with must not come from the model it is told of: `left_out` chooses, for each model, the laxest aim that
stays within 1.01 on all the others.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np

from experiments.general import Heard, left_out_splits
from looktwice.calibration.jury import Jury, Prefixes
from looktwice.verdicts import stopping
from looktwice.verdicts.stopping import ALLOWED, Expected, Thrift

RESULTS = Path(__file__).parent / "results"
SPLITS = 20
AIMS = (0.0025, 0.005, 0.0075, 0.01, 0.015)
Row = dict[str, str]


def measured(models: Sequence[Heard], each: Heard, splits: int) -> Iterator[Row]:
    """One line for each aim: means over the splits."""
    found: dict[float, list[tuple[float, ...]]] = {aim: [] for aim in AIMS}
    for split in left_out_splits(models, each, splits):
        train, test, thrift = split.votes.take(split.fit), split.votes.take(split.test), Thrift(len(split.panel))
        trials = stopping.trials(Jury(), train)
        juries = Prefixes().fit(train).seated()
        taught, tested = stopping.grow(juries, train), stopping.grow(juries, test)
        for aim, rows in found.items():
            with patch.object(stopping, "WORSE", aim):
                rule = stopping.rule(taught, thrift, stopping.price(trials, thrift))
                expected = Expected.of(stopping.stopped(trials, thrift), stopping.steps(trials)[-1])
            seen = Expected.of(tested.stopped(rule), tested.steps[-1])
            inside = seen.low <= expected.high and expected.low <= seen.high
            rows.append((seen.brier, seen.queries, expected.brier, expected.low, expected.high, inside))
    for aim, rows in found.items():
        figures = dict(
            zip(("brier", "queries", "expected", "low", "high", "inside"), np.mean(rows, axis=0), strict=True)
        )
        worst = np.percentile([row[0] for row in rows], 97.5)
        told = {name: f"{value:.4f}" for name, value in figures.items()}
        yield {"model": each.title, "aim": f"{aim:g}", **told, "brier_high": f"{worst:.4f}", "splits": str(splits)}


def left_out(rows: Sequence[Row]) -> Iterator[Row]:
    """For each model the row of the laxest aim that stays within 1.01 on all the others; the strictest if none does."""
    for model in dict.fromkeys(row["model"] for row in rows):
        others = {aim: [r for r in rows if r["aim"] == f"{aim:g}" and r["model"] != model] for aim in AIMS}
        kept = [aim for aim in AIMS if all(float(row["brier"]) <= 1 + ALLOWED for row in others[aim])]
        chosen = f"{max(kept, default=AIMS[0]):g}"
        (row,) = [row for row in rows if (row["model"], row["aim"]) == (model, chosen)]
        yield {**row, "aim": f"left out, {chosen}"}


def main(models: Sequence[Heard], results: Path = RESULTS, splits: int = SPLITS) -> None:
    """Measure every model, and write results/stopping.csv."""
    rows: list[Row] = []
    for each in models:
        for row in measured(models, each, splits):
            print(" ".join(row.values()), flush=True)
            rows.append(row)
    with (results / "stopping.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows([*rows, *left_out(rows)])
