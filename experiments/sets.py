"""Prediction sets of each kind over random splits, beside MAPIE's from the same probabilities.

python -m experiments sets        results/sets.csv, one line for each model and kind of set

Answers and splits are those of experiments/general.py, under the panel that it recorded for each model: neither the
model nor the tested pictures took part in growing it. The jury is fitted on the labelled part of a split; the sets rest
on the probabilities of its held-out folds. MAPIE gets the same probabilities as full tables, in which the unnamed
classes share the rest evenly. `least_bin` is the least coverage of an agreement bin with 100 tested pictures or more,
each averaged over the splits.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin

from experiments.general import Answers, recorded_splits
from experiments.writing import Row, write
from looktwice.calibration import crossfit
from looktwice.calibration.distribution import Distribution, SetKind, draws
from looktwice.calibration.evidence import Bools, Codes, Floats
from looktwice.calibration.jury import Jury
from looktwice.calibration.shares import base_tally
from looktwice.calibration.votes import LabelledVotes
from looktwice.decisions.results import HeldOut

RESULTS = Path(__file__).parent / "results"
SPLITS, VIEWS, COVERAGE, IN_BIN = 20, 8, 0.9, 100
PEERS = {"MAPIE, APS": "aps", "MAPIE, LAC": "lac"}
"""Its RAPS needs two pictures of every class, which photos do not have."""


@dataclass(frozen=True, eq=False)
class Covered:
    """The sets of one kind on one split."""

    kind: str
    hold: Bools
    listed: Bools
    options: NDArray[np.int64]
    """How many labels, "something else" being one."""
    classes: NDArray[np.int64]
    """How many classes."""
    agree: NDArray[np.int64]


class Given(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier whose inputs are the probabilities themselves."""

    def __init__(self, classes: int = 2) -> None:
        self.classes = classes
        self.classes_ = np.arange(classes)

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, X: Floats, y: Codes) -> Given:
        return self

    def predict_proba(self, X: Floats) -> Floats:
        return X

    def predict(self, X: Floats) -> NDArray[np.intp]:
        return X.argmax(axis=1)


def held_out(votes: LabelledVotes) -> Distribution:
    """The distribution of each picture by a jury that was fitted on the other folds."""
    found = np.zeros((len(votes), len(votes.vocabulary)))
    for train, test in crossfit.folds(len(votes), 0, 0):
        part = Jury().fit(votes.take(train)).distribution(votes.take(test))
        found[test] = part.dense(found.shape[1])
    labels = np.broadcast_to(np.arange(found.shape[1], dtype=np.int32), found.shape)
    return Distribution(labels, found, votes.classes)


def own_sets(jury: Jury, train: LabelledVotes, tested: LabelledVotes) -> Iterator[Covered]:
    """Sets of each kind that looktwice offers."""
    rests = HeldOut.combine(crossfit.cross_fit(Jury(), train), crossfit.outcome(jury, train))
    distribution, agree = jury.distribution(tested), base_tally(tested).agree
    for kind in get_args(SetKind):
        sets = rests.conformal(COVERAGE, kind).sets(distribution, draws(tested))
        hold, listed = sets.hold(distribution, tested.truths), sets.list_truth(tested.truths)
        yield Covered(kind, hold, listed, sets.sizes(), sets.true_sizes(), agree)


def peers(jury: Jury, train: LabelledVotes, tested: LabelledVotes) -> Iterator[Covered]:
    """Sets that MAPIE makes of the same probabilities."""
    from mapie.classification import SplitConformalClassifier

    size = len(train.vocabulary)
    table, known = jury.distribution(tested).dense(size), held_out(train).named
    for name, score in PEERS.items():
        maker = SplitConformalClassifier(Given(size), COVERAGE, conformity_score=score, prefit=True, random_state=0)
        maker.conformalize(_normal(known), train.truths)
        _, sets = maker.predict_set(_normal(table))
        inside = sets[:, :, 0]
        hold, sizes = inside[np.arange(len(tested)), tested.truths], inside.sum(axis=1)
        yield Covered(name, hold, hold, sizes, sizes, base_tally(tested).agree)


def _normal(table: Floats) -> Floats:
    return table / table.sum(axis=1, keepdims=True)


def measured(model: Answers, splits: int) -> Iterator[Row]:
    """One line for each kind: means over the splits."""
    found: dict[str, list[Covered]] = {}
    votes = model.votes.under(range(VIEWS))
    for fit, test in recorded_splits(model, splits):
        train, tested = votes.take(fit), votes.take(test)
        jury = Jury().fit(train)
        for covered in (*own_sets(jury, train, tested), *peers(jury, train, tested)):
            found.setdefault(covered.kind, []).append(covered)
    for kind, each in found.items():
        yield {
            "model": model.title,
            "sets": kind,
            "coverage": _mean([covered.hold for covered in each], 4),
            "least_bin": f"{least_bin(each):.4f}",
            "listed": _mean([covered.listed for covered in each], 4),
            "labels": _mean([covered.options for covered in each], 2),
            "classes": _mean([covered.classes for covered in each], 2),
            "splits": str(len(each)),
        }


def _mean(parts: Sequence[NDArray[np.generic]], digits: int) -> str:
    return f"{np.mean([part.mean() for part in parts]):.{digits}f}"


def least_bin(each: Sequence[Covered]) -> float:
    """The least coverage among agreement bins with enough pictures, each the mean over the splits."""
    bins: dict[int, list[float]] = {}
    for covered in each:
        for agree in np.unique(covered.agree).tolist():
            inside = covered.agree == agree
            if inside.sum() >= IN_BIN:
                bins.setdefault(agree, []).append(float(covered.hold[inside].mean()))
    return min((float(np.mean(held)) for held in bins.values()), default=float("nan"))


def main(models: Sequence[Answers], results: Path = RESULTS, splits: int = SPLITS) -> None:
    """Measure every model, and write results/sets.csv."""
    write(results / "sets.csv", (row for each in models for row in measured(each, splits)))
