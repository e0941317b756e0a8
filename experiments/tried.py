"""What was tried to better the jury and its views, and what it changed, over the splits of experiments/general.py.

python -m experiments.tried            results/tried.csv, a line for each model, trial and setting
python -m experiments.tried quick DIR  the same, small, on the embedded clothes

Weights and offsets are tried with the panel that grew on the other models, on 1,000 labelled pictures (1,250
photos). Choosing and the ladder grow their panels on these. Settings were taken from ResNet-8, ResNet-20 and
MobileNetV2; on the other three models they are only reported.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from experiments.general import OLD, RESULTS, Heard, Split, left_out_splits, records, small, write
from looktwice.calibration import crossfit, logit, metrics, panels
from looktwice.calibration.jury import Jury
from looktwice.calibration.logit import Offsets, Patterns
from looktwice.calibration.votes import Floats, LabelledVotes

SPLITS = 6
SHRINKAGES = (1000.0, 100.0, 30.0, 10.0, 3.0)
STRENGTHS = (100.0, 30.0, 10.0)
BEGUN = (4, 6, 8)
"""Views of the panel that grew on the other models, after which the others are chosen."""
BRANCH = 2
"""Views after which a ladder parts unanimous pictures from the others."""
Figures = dict[str, float]
Fold = tuple[NDArray[np.bool_], Floats]
"""The pictures of a fold, and the parameters that the others teach."""
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


def tempering(each: Heard, split: Split) -> Told:
    """All parameters times one figure that suits held-out folds best, with the panel grown on others and one chosen."""
    train, tested = each.votes.take(split.fit), each.votes.take(split.test)
    for name, panel in {"grown": split.panel, "chosen": panels.grow(train, 8)}.items():
        patterns = logit.tabulate(train.under(panel))
        theta = logit.descend(patterns, logit.SHRINKAGE)
        folds = list(logit.held_out_fits(patterns, logit.folds(len(train)), logit.SHRINKAGE, theta))

        def held(share: float, patterns: Patterns = patterns, folds: list[Fold] = folds) -> float:
            return sum(float(logit.losses(patterns, share * fold)[rows].sum()) for rows, fold in folds)

        for setting, share in {"as fitted": 1.0, "by folds": minimize_scalar(held, bounds=(0.3, 1.5)).x}.items():
            calibrator = Jury()._holding(patterns, share * theta, Offsets())
            yield f"temperature, {name} panel", setting, figures(calibrator, tested.under(panel))


def choosing(each: Heard, split: Split) -> Told:
    """Eight views chosen on the labelled pictures by either loss, in sample or on held-out folds."""
    train = each.votes.take(split.fit)
    found = {name: panels.grow(train, 8, loss) for name, loss in panels.LOSSES.items()}
    for name, panel in found.items():
        yield "chosen by", name, figures(Jury().fit(train.under(panel)), each.votes.under(panel).take(split.test))
    mild = each.votes.under(OLD)
    yield "chosen by", "nobody: the mild panel", figures(Jury().fit(mild.take(split.fit)), mild.take(split.test))
    for begun in BEGUN:
        panel = extended(train, split.panel[:begun], 8)
        tested = each.votes.under(panel).take(split.test)
        yield "chosen by", f"log-loss, after {begun} general ones", figures(Jury().fit(train.under(panel)), tested)
    yield from ladder(each, split, found["log-loss"])


def extended(votes: LabelledVotes, begun: Sequence[int], size: int) -> list[int]:
    """A panel that goes on from some views by what each further one adds on these pictures."""
    panel = list(begun)
    while len(panel) < size:
        left = [column for column in range(len(votes.panel)) if column not in panel]
        panel.append(min(left, key=lambda column: panels.lost(votes.under([*panel, column]))))
    return panel


def ladder(each: Heard, split: Split, panel: Sequence[int]) -> Told:
    """After two views, unanimous pictures are asked under views chosen on such, and so are the others; 1+4 and 1+8."""
    train, tested = each.votes.take(split.fit), each.votes.take(split.test)
    for size in (4, 8):
        parts = []
        for unanimous in (True, False):
            rows, test = (np.flatnonzero(_agreed(votes, panel) == unanimous) for votes in (train, tested))
            part = train.take(rows)
            branch = extended(part, panel[:BRANCH], size)
            parts.append(crossfit.outcome(Jury().fit(part.under(branch)), tested.take(test).under(branch)))
        brier, nll = (
            float(np.concatenate([getattr(part, name) for part in parts]).mean()) for name in ("brier", "nll")
        )
        fixed = list(panel[:size])
        yield f"order, 1+{size}", "fixed", figures(Jury().fit(train.under(fixed)), tested.under(fixed))
        yield f"order, 1+{size}", "ladder", {"brier": brier, "nll": nll, "ece": np.nan, "base_auroc": np.nan}


def _agreed(votes: LabelledVotes, panel: Sequence[int]) -> Floats:
    return (votes.views[:, list(panel[:BRANCH])] == votes.base[:, None]).all(axis=1)


TRIALS = (weights, offsets, tempering, choosing)


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


def main(words: Sequence[str]) -> None:
    match words:
        case ["quick", folder]:
            write(Path(folder) / "tried.csv", measured(small(Path(folder), 240), splits=1))
        case []:
            write(RESULTS / "tried.csv", measured([each.heard() for each in records()], SPLITS))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
