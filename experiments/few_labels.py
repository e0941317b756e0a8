"""The jury with few labels: beside vote shares with a temperature, a constant, Probit and a jury without a prior.

python -m experiments.few_labels [MODEL …]      results/few_labels.csv

The prior (`logit.vote_shares`) learns nothing from other models. What it is worth was settled by
experiments/constants.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
from scipy.optimize import minimize_scalar

from experiments import script
from experiments.answered import MAPPED, answers, faces
from experiments.models import SOURCES
from experiments.writing import cells, merge
from looktwice.calibration import jury
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.evidence import Floats
from looktwice.calibration.jury import Jury
from looktwice.calibration.shares import Constant, Probit
from looktwice.calibration.votes import LabelledVotes

RESULTS = Path(__file__).parent / "results" / "few_labels.csv"
SPLITS, MOST_TESTED = 20, 1500
LABELS = (20, 50, 100, 200, 1000)


def shares(train: LabelledVotes, test: LabelledVotes) -> Distribution:
    """A softmax over the numbers of votes, with one temperature."""

    def log_shares(votes: LabelledVotes, scale: float) -> Floats:
        answers, counts = votes.answers(), np.zeros((len(votes), votes.classes))
        for labels in answers.T:
            counts[np.flatnonzero(labels >= 0), labels[labels >= 0]] += scale
        return counts - np.logaddexp.reduce(counts, axis=1, keepdims=True)

    def loss(log_scale: float) -> float:
        return -float(log_shares(train, np.exp(log_scale))[np.arange(len(train)), train.truths].sum())

    best = minimize_scalar(loss, bounds=(-6.0, 4.0), method="bounded").x
    labels = np.tile(np.arange(test.classes, dtype=np.int32), (len(test), 1))
    return Distribution(labels, np.exp(log_shares(test, np.exp(best))), test.classes)


def without_prior(train: LabelledVotes, test: LabelledVotes) -> Distribution:
    """The jury without the pseudo-pictures of the prior."""
    with patch.object(jury, "PRIOR_PICTURES", 0.0):
        return Jury().fit(train).distribution(test)


METHODS: dict[str, Callable[[LabelledVotes, LabelledVotes], Distribution]] = {
    "vote shares, temperature": shares,
    "constant": lambda train, test: Constant().fit(train).distribution(test),
    "probit": lambda train, test: Probit().fit(train).distribution(test),
    "jury without prior": without_prior,
    "jury": lambda train, test: Jury().fit(train).distribution(test),
}


def measured(votes: LabelledVotes) -> Iterator[dict[str, object]]:
    """The mean Brier score and log loss of each method, for each number of labels."""
    half = len(votes) // 2
    for labels in (number for number in LABELS if number <= half):
        losses = {name: np.zeros((SPLITS, 2)) for name in METHODS}
        for seed in range(SPLITS):
            mixed = np.random.default_rng(seed).permutation(len(votes))
            train, test = votes.take(mixed[:labels]), votes.take(mixed[half:][:MOST_TESTED])
            for name, method in METHODS.items():
                distribution = method(train, test)
                losses[name][seed] = distribution.brier(test.truths).mean(), distribution.nll(test.truths).mean()
        for name, found in losses.items():
            brier, nll = found.mean(axis=0).tolist()
            yield {"labels": labels, "method": name, "brier": brier, "nll": nll, "splits": SPLITS}


def main(names: Sequence[str], results: Path = RESULTS) -> None:
    """Write the rows of these models, or all; those of others stay."""
    apis = {each.name: each.votes.label_only() for each in faces()}
    for name in names or (*SOURCES, MAPPED, *apis):
        votes = apis[name] if name in apis else answers(name).votes.label_only()
        rows = [cells({"model": name, **row}, ".5f") for row in measured(votes)]
        merge(results, rows, ("model", "labels", "method"))
        print(*(" ".join(row.values()) for row in rows), sep="\n", flush=True)


if __name__ == "__main__":
    script.run(main, __doc__, {*SOURCES, MAPPED, *(each.name for each in faces())})
