"""What was tried to better the jury and its views, and what it changed, over the splits of experiments/general.py.

python -m experiments.tried       results/tried.csv, a line for each model, trial and setting
python -m experiments.tried page  the table of docs/views.md, from the CSV

Weights, offsets and spreading are tried with the panel that grew on the other models, on 1,000 labelled pictures (1,250
photos). Choosing and the ladder grow their panels on these. Settings were taken from ResNet-8, ResNet-20 and
MobileNetV2; on the other three models they are only reported.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.general import PAGE, RESULTS, Heard, Split, left_out_splits, records, small, write
from looktwice.calibration import crossfit, logit, metrics, panels
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.jury import Jury
from looktwice.calibration.logit import Offsets
from looktwice.calibration.votes import Floats, LabelledVotes

SPLITS = 6
SHRINKAGES = (1000.0, 100.0, 30.0, 10.0, 3.0)
STRENGTHS = (100.0, 30.0, 10.0)
SHARES = (0.0, 0.3, 0.6, 0.9)
BRANCH = 2
"""Views after which a ladder parts unanimous pictures from the others."""
Figures = dict[str, float]
Told = Iterator[tuple[str, str, Figures]]


def figures(calibrator: Jury, tested: LabelledVotes) -> Figures:
    """What a jury comes to on pictures that it was not fitted on."""
    scores = crossfit.outcome(calibrator, tested).scores()
    own = replace(calibrator, ballot="base").confidence(tested)
    base = metrics.auroc(own, tested.base == tested.truths) or 0.5
    return {"brier": scores.brier, "nll": scores.nll, "ece": scores.ece, "base_auroc": base}


def fitted(train: LabelledVotes, shrinkage: float, offsets: Offsets = Offsets()) -> Jury:  # noqa: B008  # it is frozen
    """The jury with given shrinkage and offsets."""
    patterns = logit.tabulate(train, offsets)
    return Jury(shrinkage=shrinkage)._holding(patterns, logit.descend(patterns, shrinkage), offsets)


def weights(_: Heard, split: Split) -> Told:
    """How strongly the views' weights are drawn together, with all labels and with 100."""
    train, tested = split.votes.take(split.fit), split.votes.take(split.test)
    for labels in (100, len(train)):
        for shrinkage in SHRINKAGES:
            calibrator = fitted(train.take(np.arange(labels)), shrinkage)
            yield (
                f"shrinkage, {'100' if labels == 100 else 'all'} labels",
                f"{shrinkage:g}",
                figures(calibrator, tested),
            )


def offsets(_: Heard, split: Split) -> Told:
    """Offsets for the class of the base label, drawn to zero more or less."""
    train, tested = split.votes.take(split.fit), split.votes.take(split.test)
    yield "offsets", "none", figures(fitted(train, logit.SHRINKAGE), tested)
    for strength in STRENGTHS:
        classes = Offsets(logit.frequent_classes(train), strength)
        yield "offsets", f"{strength:g}", figures(fitted(train, logit.SHRINKAGE, classes), tested)
    yield "offsets", "as shipped", figures(Jury().fit(train), tested)


def choosing(each: Heard, split: Split) -> Told:
    """Eight views chosen on the labelled pictures by either loss, in sample or on held-out folds."""
    train = each.votes.take(split.fit)
    found = {name: panels.grow(train, 8, loss) for name, loss in panels.LOSSES.items()}
    for name, panel in found.items():
        yield "chosen by", name, figures(Jury().fit(train.under(panel)), each.votes.under(panel).take(split.test))
    yield from ladder(each, split, found["log-loss"])


def ladder(each: Heard, split: Split, panel: Sequence[int]) -> Told:
    """After two views, unanimous pictures are asked under views chosen on such, and so are the others; 1+4 and 1+8."""
    train, tested = each.votes.take(split.fit), each.votes.take(split.test)
    for size in (4, 8):
        parts = []
        for unanimous in (True, False):
            rows, test = (np.flatnonzero(_agreed(votes, panel) == unanimous) for votes in (train, tested))
            part, branch = train.take(rows), list(panel[:BRANCH])
            while len(branch) < size:
                left = [column for column in range(len(part.panel)) if column not in branch]
                branch.append(min(left, key=lambda column: panels.lost(part.under([*branch, column]))))
            parts.append(crossfit.outcome(Jury().fit(part.under(branch)), tested.take(test).under(branch)))
        brier, nll = (
            float(np.concatenate([getattr(part, name) for part in parts]).mean()) for name in ("brier", "nll")
        )
        fixed = list(panel[:size])
        yield f"order, 1+{size}", "fixed", figures(Jury().fit(train.under(fixed)), tested.under(fixed))
        yield f"order, 1+{size}", "ladder", {"brier": brier, "nll": nll, "ece": np.nan, "base_auroc": np.nan}


def _agreed(votes: LabelledVotes, panel: Sequence[int]) -> Floats:
    return (votes.views[:, list(panel[:BRANCH])] == votes.base[:, None]).all(axis=1)


def spreading(each: Heard, split: Split) -> Told:
    """The mass of the unnamed class, shared by what views of other pictures say together, and evenly."""
    tested, classes = split.votes.take(split.test), each.votes.classes
    calibrator = Jury().fit(split.votes.take(split.fit))
    others = each.votes.take(np.setdiff1d(np.arange(len(each.votes)), split.test))
    together = np.zeros((classes, classes))
    for column in others.views.T:
        np.add.at(together, (others.base, column), 1.0)
        np.add.at(together, (column, others.base), 1.0)
    said, rows = np.column_stack([tested.base, tested.views]), np.arange(len(tested))
    table, unnamed = calibrator.distribution(tested).dense(classes), np.ones((len(tested), classes), bool)
    unnamed[rows[:, None], said] = False
    mass, even = np.where(unnamed, table, 0.0).sum(axis=1, keepdims=True), _shares(unnamed * 1.0, unnamed)
    likely = _shares(unnamed * together[said].sum(axis=1), unnamed)
    for share in SHARES:
        told = np.where(unnamed, mass * (share * likely + (1 - share) * even), table)
        spread = Distribution(np.broadcast_to(np.arange(classes, dtype=np.int32), told.shape), told, classes)
        brier, nll = spread.brier(tested.truths).mean(), spread.nll(tested.truths).mean()
        yield "spread by co-occurrence", f"{share:g}", {"brier": brier, "nll": nll, "ece": np.nan, "base_auroc": np.nan}


def _shares(weight: Floats, unnamed: Floats) -> Floats:
    """(n, K): the weights as shares of their sum, even among the unnamed where that is 0."""
    total = weight.sum(axis=1, keepdims=True)
    share: Floats = np.where(total > 0, weight, unnamed) / np.maximum(
        np.where(total > 0, total, unnamed.sum(axis=1, keepdims=True)), 1e-12
    )
    return share


TRIALS = (weights, offsets, choosing, spreading)


def measured(models: Sequence[Heard], splits: int) -> Iterator[dict[str, str]]:
    """One line for each model, trial and setting: the means over the splits."""
    for each in models:
        found: dict[tuple[str, str], list[Figures]] = {}
        for split in left_out_splits(models, each, splits):
            for trial in TRIALS:
                for what, setting, told in trial(each, split):
                    found.setdefault((what, setting), []).append(told)
        for (what, setting), told_of in found.items():
            means = {key: np.mean([told[key] for told in told_of]) for key in told_of[0]}
            shown = {key: "" if np.isnan(mean) else f"{mean:.4f}" for key, mean in means.items()}
            yield {"model": each.title, "tried": what, "setting": setting, **shown, "splits": str(len(told_of))}


def page(results: Path = RESULTS, path: Path = PAGE) -> None:
    """The table of docs/views.md between its marks: Brier score, log loss and base AUROC of each model."""
    with (results / "tried.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    models = list(dict.fromkeys(row["model"] for row in rows))
    cells: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        shown = [row[key].lstrip("0") for key in ("brier", "nll", "base_auroc") if row[key]]
        cells.setdefault((row["tried"], row["setting"]), []).append(" / ".join(shown))
    lines = [["tried", "setting", *models], ["---"] * (2 + len(models)), *([*key, *row] for key, row in cells.items())]
    text, begin, end = path.read_text("utf-8"), "<!-- tried -->\n", "<!-- /tried -->"
    before, rest = text.split(begin)
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    path.write_text(before + begin + table + "\n" + end + rest.split(end)[1], "utf-8")


def main(words: Sequence[str]) -> None:
    match words:
        case ["page"]:
            page()
        case ["quick", folder]:
            write(Path(folder) / "tried.csv", measured(small(Path(folder), 240), splits=1))
        case []:
            write(RESULTS / "tried.csv", measured([each.heard() for each in records()], SPLITS))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
