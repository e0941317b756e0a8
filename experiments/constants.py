"""The jury's constants, each chosen on other models and data than those it is reported on.

nice -n 19 python -m experiments.constants [CONSTANT …]      results/constants.csv

One constant at a time has other values; all others stay. `brier` is the mean over SPLITS splits with so many labelled
pictures. Models that share their pictures form a group, as do the APIs that answered about one set of faces. `others`
is the mean over all groups but the model's own, and over numbers of labels, of the Brier score divided by that with the
value in the package: the value for which it is least is what these choose, and is marked in `chosen`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from unittest.mock import patch

import numpy as np

from experiments import script
from experiments.answered import MAPPED, answers, faces
from experiments.few_labels import MOST_TESTED
from experiments.models import SOURCES
from experiments.writing import Row, cells, merge
from looktwice.calibration import confusion, jury, logit
from looktwice.calibration.jury import Jury
from looktwice.calibration.votes import LabelledVotes

RESULTS = Path(__file__).parent / "results" / "constants.csv"
SPLITS, LABELS = 4, (20, 100, 1000)
NONE = 1e9
"""Stands for a penalty that leaves nothing, or for more labels than there are."""


@dataclass(frozen=True, eq=False)
class Judged:
    """A model or API."""

    name: str
    group: str
    votes: LabelledVotes


@dataclass(frozen=True)
class Constant:
    """A constant, the values that are tried, and how one of them is set; the value in the package comes first."""

    values: tuple[float, ...]
    module: object
    name: str
    after_jury: bool = False
    """Whether it is about the confusion step, which is left out otherwise."""


CONSTANTS = {
    "shrinkage": Constant((jury.SHRINKAGE, 3.0, 30.0, 100.0), jury, "SHRINKAGE"),
    "prior": Constant((jury.PRIOR_PICTURES, 0.0, 50.0, 200.0), jury, "PRIOR_PICTURES"),
    "odds": Constant((logit.ODDS, 1.5, 2.0, 3.0, 3.5), logit, "ODDS"),
    "ridge of table": Constant((confusion.RIDGE, 0.2, 1.0, 10.0), confusion, "RIDGE", True),
    "fewest for table": Constant((confusion.FEWEST, NONE), confusion, "FEWEST", True),
}


def subjects() -> Iterator[Judged]:
    """Six models, the mapped one and the emotion APIs."""
    for name, source in SOURCES.items():
        yield Judged(name, source.data, answers(name).votes.label_only())
    yield Judged(MAPPED, MAPPED, answers(MAPPED).votes.label_only())
    for each in faces():
        yield Judged(each.name, each.data, each.votes.label_only())


def brier(judged: Judged, constant: Constant, value: float, labels: int) -> float:
    """The mean Brier score with this value."""
    losses = []
    with ExitStack() as settings:
        settings.enter_context(patch.object(constant.module, constant.name, value))
        if not constant.after_jury:
            settings.enter_context(patch.object(confusion, "FEWEST", NONE))
        fitted = Jury(shrinkage=jury.SHRINKAGE)
        for seed in range(SPLITS):
            mixed = np.random.default_rng(seed).permutation(len(judged.votes))
            train, test = judged.votes.take(mixed[:labels]), judged.votes.take(mixed[-MOST_TESTED:])
            losses.append(fitted.fit(train).distribution(test).brier(test.truths).mean())
    return float(np.mean(losses))


def measured(name: str, every: Sequence[Judged]) -> Iterator[Row]:
    """One line for each value, model and number of labels."""
    constant, found = CONSTANTS[name], dict[tuple[str, float, int], float]()
    for judged in every:
        for labels in (n for n in LABELS if n + 200 <= len(judged.votes) and (n > 20 or not constant.after_jury)):
            for value in constant.values:
                found[judged.name, value, labels] = brier(judged, constant, value, labels)
    relative = {key: score / found[key[0], constant.values[0], key[2]] for key, score in found.items()}
    for judged in every:
        others = {value: _others(judged, every, value, relative) for value in constant.values}
        best = min(others, key=others.__getitem__)
        for (model, value, labels), score in found.items():
            if model == judged.name:
                shown = "none" if value == NONE else f"{value:g}"
                row = {"constant": name, "value": shown, "model": model, "labels": labels, "brier": score}
                yield cells(row | {"others": others[value], "chosen": "*" if value == best else ""}, ".5f")


def _others(
    judged: Judged, every: Sequence[Judged], value: float, relative: dict[tuple[str, float, int], float]
) -> float:
    """The mean over the groups that the model is not of."""
    groups = groupby(sorted(every, key=lambda each: each.group), key=lambda each: each.group)
    means = []
    for group, members in groups:
        names = {each.name for each in members}
        scores = [score for key, score in relative.items() if key[0] in names and key[1] == value]
        if group != judged.group:
            means.append(np.mean(scores))
    return float(np.mean(means))


def main(names: list[str], results: Path = RESULTS) -> None:
    """Write the rows of these constants, or of all; those of others stay."""
    every = list(subjects())
    for name in names or CONSTANTS:
        rows = list(measured(name, every))
        merge(results, rows, ("constant", "model", "labels", "value"))
        print(*(" ".join(row.values()) for row in rows if row["chosen"]), sep="\n", flush=True)


if __name__ == "__main__":
    script.run(main, __doc__, CONSTANTS)
