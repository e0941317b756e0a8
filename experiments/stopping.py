"""What `fit` pays, what it chooses, and how that fares on other pictures, beside asking the general panel always.

python -m experiments stopping         results/stopping.csv, one line for each model and kind of answers
python -m experiments.stopping page    the table in docs/results/sequences.md, from the CSV

Answers are those of experiments/answered.py: the picture itself and the general panel. Each split draws 1,000 labelled
pictures and tests at most 3,000 others. The pilot, the sequence and when to stop are chosen on the labelled ones as
`fit` does; nothing is settled on what is tested. `paid` is what `fit` asks, as a share of nine queries a labelled
picture; `brier` the Brier score of what it chose, as a share of that of the jury of all nine queries, and `best` as a
share of the least of one query and nine; `queries` its mean number of queries as a share of nine; `once` how often it
chose one query. `expected` is the share that it expects of itself, and `inside` how often the 95 % interval that it
states has the share that was seen, or overlaps with its interval.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments.general import Answers
from experiments.writing import Row, fill, markdown, read, write
from looktwice.calibration import crossfit
from looktwice.calibration.jury import Jury
from looktwice.calibration.votes import LabelledVotes
from looktwice.decisions import pilot
from looktwice.decisions.profile import ProfileClassifier
from looktwice.decisions.sequence import Expected, Source, candidates, find
from looktwice.views import GENERAL, Panel

RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "results" / "sequences.md"
SPLITS, LABELLED, TESTED = 10, 1000, 3000
KINDS = {"label": 0, "label with score": 1, "five labels with scores": 5}
FIGURES = ("paid", "brier", "best", "queries", "once", "auroc", "auroc_all", "expected", "inside")
ONLY = (ProfileClassifier(name="", description="", fingerprint=""),)


@dataclass(frozen=True, eq=False)
class Chosen:
    """The columns that a pilot keeps, and how many queries `fit` asks about the labelled pictures."""

    columns: tuple[int, ...]
    queries: int

    @classmethod
    def of(cls, labelled: LabelledVotes) -> Chosen:
        """What `pilot.ask` keeps, from answers that are all there."""
        panel, pictures = Panel.parse(" ".join(labelled.panel)), len(labelled)
        size = pilot.pilot_size(pictures)
        if not size:
            return cls(tuple(range(len(panel))), pictures * (1 + len(panel)))
        suited, _ = pilot.suitable(labelled.take(slice(size // 2)), panel)
        kept = [panel.views.index(view) for view in suited]
        worth, _, _ = pilot.paying(labelled.take(slice(size)).under(kept), suited, ONLY)
        columns = tuple(panel.views.index(view) for view in worth)
        stages = (size // 2, len(panel)), (size - size // 2, len(suited)), (pictures - size, len(worth))
        return cls(columns, sum(count * (1 + views) for count, views in stages))


def measured(labelled: LabelledVotes, tested: LabelledVotes) -> tuple[float, ...]:
    """The figures of one split."""
    chosen = Chosen.of(labelled)
    train, test = labelled.under(chosen.columns), tested.under(chosen.columns)
    found = find(candidates(train, [Source(""), *(Source("", view) for view in train.panel)]))
    asked, followed = found.sequence.follow(found.calibrator, test.of_sources(found.places))
    stopped = crossfit.outcome(found.calibrator, followed)
    whole, once = (
        crossfit.outcome(Jury().fit(a), b) for a, b in ((labelled, tested), (labelled.under([]), tested.under([])))
    )
    every = found.held.curve(tuple(range(1 + len(train.panel))))[-1]
    expected = Expected.compare(found.outcome, every)
    seen = Expected.compare(stopped, crossfit.outcome(Jury().fit(train), test))
    nine = 1 + len(labelled.panel)
    return (
        chosen.queries / (nine * len(labelled)),
        float(stopped.brier.mean() / whole.brier.mean()),
        float(stopped.brier.mean() / min(whole.brier.mean(), once.brier.mean())),
        float(asked.mean()) / nine,
        float(not chosen.columns),
        stopped.scores().auroc or np.nan,
        whole.scores().auroc or np.nan,
        expected.brier,
        float(seen.low <= expected.high and expected.low <= seen.high),
    )


def rows(models: Sequence[Answers], splits: int) -> Iterator[Row]:
    """A line for each model and kind of answers: means over the splits."""
    for each in models:
        views = [str(view) for view in GENERAL if str(view) in each.votes.panel]
        columns = [each.votes.panel.index(view) for view in views] if len(views) == len(GENERAL) else range(8)
        for kind, listed in KINDS.items():
            votes, figures = each.listing(listed).under(columns), []
            for seed in range(splits):
                order = np.random.default_rng(seed).permutation(len(votes))
                labelled = min(LABELLED, len(order) * 2 // 3)
                fit, test = order[:labelled], order[labelled : labelled + TESTED]
                figures.append(measured(votes.take(fit), votes.take(test)))
            shown = {name: f"{value:.4f}" for name, value in zip(FIGURES, np.mean(figures, axis=0), strict=True)}
            most = f"{np.percentile([row[1] for row in figures], 97.5):.4f}"
            yield {"model": each.title, "answers": kind, **shown, "brier_high": most, "splits": str(splits)}


def main(models: Sequence[Answers], results: Path = RESULTS, splits: int = SPLITS) -> None:
    """Measure every model, and write results/stopping.csv."""
    write(results / "stopping.csv", rows(models, splits))


def table(found: Sequence[Row]) -> str:
    """What is paid and lost, relative to nine queries for every picture, in Markdown."""
    heading = ("model", "answers", "labelled pictures cost", "queries", "Brier score", "AUROC")
    rows = (
        (
            row["model"],
            row["answers"],
            f"{float(row['paid']):.2f}",
            f"{float(row['queries']):.2f}",
            f"{float(row['brier']):.3f}",
            f"{float(row['auroc']) - float(row['auroc_all']):+.3f}",
        )
        for row in found
    )
    return markdown(heading, rows)


if __name__ == "__main__" and sys.argv[1:] == ["page"]:
    fill(PAGE, "stopping", table(read(RESULTS / "stopping.csv")))
