"""How thresholds with a guarantee fare on pictures that took no part, over random splits.

python -m experiments guarantees    results/guarantees.csv, one line for each model and allowed error, and two figures

Answers and splits are those of experiments/general.py, under the panel that it recorded for each model. A threshold is
made as a profile makes it, from the held-out folds of the labelled part of a split, at a level of 95 %. Of those that
could be made, `above` counts those whose accepted tested pictures were wrong more often than allowed, and `broken`
those where that is more than the chance of drawing these tested pictures explains (exact binomial test, p < .05).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from scipy.stats import binom

from experiments.general import Answers, recorded_splits
from experiments.writing import Row, write
from looktwice.calibration import crossfit, metrics
from looktwice.calibration.crossfit import Outcome
from looktwice.calibration.jury import Jury
from looktwice.decisions.results import HeldOut
from looktwice.plots.figures import reliability_svg, risk_coverage_svg

RESULTS = Path(__file__).parent / "results"
FIGURES = Path(__file__).parents[1] / "docs" / "figures"
SPLITS, VIEWS = 100, 8
ERRORS = (0.02, 0.05, 0.1, 0.2)
DRAWN = "resnet20"
"""The model whose first split is drawn."""


def splits_of(each: Answers, splits: int) -> Iterator[tuple[HeldOut, Outcome]]:
    """What a profile's guarantees rest on, and how its jury fares on the tested pictures, for each split."""
    votes = each.votes.under(range(VIEWS))
    for fit, test in recorded_splits(each, splits):
        train, tested = votes.take(fit), votes.take(test)
        jury = Jury().fit(train)
        rests = HeldOut.combine(crossfit.cross_fit(Jury(), train), crossfit.outcome(jury, train))
        yield rests, crossfit.outcome(jury, tested)


def measured(each: Answers, found: Sequence[tuple[HeldOut, Outcome]]) -> Iterator[Row]:
    """One line for each allowed error."""
    for error in ERRORS:
        wrong, accepted, tested = [], [], []
        for rests, outcome in found:
            threshold = rests.threshold(error)
            if threshold is not None:
                taken = outcome.confidence >= threshold
                wrong.append(int((~outcome.correct[taken]).sum()))
                accepted.append(int(taken.sum()))
                tested.append(len(taken))
        lost, kept = np.array(wrong), np.array(accepted)
        yield {
            "model": each.title,
            "allowed": f"{100 * error:.0f} %",
            "made": str(len(lost)),
            "above": str(int((lost > error * kept).sum())),
            "broken": str(int((binom.sf(lost - 1, kept, error) < 0.05).sum())),
            "seen": f"{lost.sum() / kept.sum():.4f}" if kept.sum() else "",
            "accepted": f"{kept.sum() / np.sum(tested):.4f}" if tested else "",
            "splits": str(len(found)),
        }


def draw(outcome: Outcome, figures: Path) -> None:
    """The reliability diagram and the risk-coverage curve of one split."""
    curves = {
        "reliability": reliability_svg(metrics.reliability(outcome.confidence, outcome.correct)),
        "risk": risk_coverage_svg(metrics.risk_coverage(outcome.confidence, outcome.correct)),
    }
    for name, svg in curves.items():
        (figures / f"jury-{name}-{DRAWN}.svg").write_text(svg, "utf-8")


def rows(models: Sequence[Answers], splits: int, figures: Path) -> Iterator[Row]:
    """The lines of every model; one of them is drawn."""
    for each in models:
        found = list(splits_of(each, splits))
        if each.name == DRAWN:
            draw(found[0][1], figures)
        yield from measured(each, found)


def main(models: Sequence[Answers], results: Path = RESULTS, splits: int = SPLITS) -> None:
    """Measure every model, write results/guarantees.csv, and draw one of them."""
    write(results / "guarantees.csv", rows(models, splits, FIGURES if results == RESULTS else results))
