"""Typical weights of the jury: a prior for few labels, learned on other models.

python -m experiments.typical fit     write the weights of all six models into calibration/typical.py, and those that
                                      leave one of them out into results/typical_weights.csv
python -m experiments.typical         results/typical.csv: juries whose prior leaves out the model that is judged

Typical weights are those of one jury, with one weight for all views, fitted on the first PICTURES of every model
together, each model counting the same, for the first 0, 1 … 8 views of the general panel. The table compares juries of
20 to 1,000 labelled pictures with the simplest calibrators: with no prior, and with the prior of the *other* models
(of the six models, for the emotion APIs). What the prior is worth was settled by experiments/constants.py.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from unittest.mock import patch

import numpy as np
from scipy.optimize import minimize, minimize_scalar

from experiments import priors, script
from experiments.answered import MAPPED, answers, faces
from experiments.models import SOURCES
from experiments.writing import cells, merge, write
from looktwice.calibration import logit, panels, typical as shipped
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.evidence import Floats
from looktwice.calibration.jury import Jury
from looktwice.calibration.shares import Constant, Probit
from looktwice.calibration.typical import Typical
from looktwice.calibration.votes import LabelledVotes

RESULTS = Path(__file__).parent / "results" / "typical.csv"
PICTURES, VIEWS = 600, 8
SPLITS, MOST_TESTED = 5, 1500
LABELS = (20, 50, 100, 200, 1000)
OF_SCALE = 0.2
"""How much the prior says of the scale of all weights together, in which models differ most, beside their ratios."""


Weights = tuple[Floats, Floats]
"""The five weights of one jury for several models, and the information of one picture about them, (5, 5)."""


def first_votes(name: str) -> LabelledVotes:
    """The labels of a model on the first pictures, from which typical weights are learned."""
    return answers(name).votes.label_only().take(slice(0, PICTURES))


def typical(models: Sequence[LabelledVotes], views: int) -> Weights:
    """The weights of the jury of these models for the first views."""
    parts = [panels.common_weight(votes.under(range(views))) for votes in models]
    losses = [logit.PenalisedLoss.from_counts(part, 0.0, part.hits()) for part in parts]

    def mean(theta: Floats) -> tuple[float, Floats]:
        found = [loss.at(theta) for loss in losses]
        shares = [1.0 / len(part.truth) / len(parts) for part in parts]
        return (
            sum(share * value for share, (value, _) in zip(shares, found, strict=True)),
            np.sum([share * gradient for share, (_, gradient) in zip(shares, found, strict=True)], axis=0),
        )

    most = min(part.none[0][1] for part in parts)
    limits = [(0.0, None), (0.0, None), (0.0, None), (None, most), (0.0, None)]
    theta = minimize(mean, np.zeros(5), jac=True, bounds=limits, method="L-BFGS-B").x
    information = np.mean(
        [loss.curvature(theta) / len(part.truth) for loss, part in zip(losses, parts, strict=True)], axis=0
    )
    return theta, information


def prior_of(theta: Floats, information: Floats) -> Typical:
    """The weights as a prior, which says less of their common scale."""
    pull = information @ theta
    spread = information - (1.0 - OF_SCALE) * np.outer(pull, pull) / (theta @ pull)
    return tuple(theta.round(4).tolist()), tuple(map(tuple, spread.round(5).tolist()))


def fitted(models: Sequence[LabelledVotes]) -> tuple[Typical, ...]:
    """Typical weights for each number of views."""
    longest = min(VIEWS, *(len(votes.panel) for votes in models))
    return tuple(prior_of(*typical(models, views)) for views in range(longest + 1))


def regenerate(rows: Sequence[Typical], source: Path = Path(shipped.__file__)) -> None:
    """Write the weights into the package."""
    text = source.read_text("utf-8")
    lines = [[f"({mean}, (", *(f"    {row}," for row in information), ")),"] for mean, information in rows]
    table = "".join(f"    {line}\n" for block in lines for line in block)
    made = re.sub(
        r"(TYPICAL: tuple\[Typical, ...\] = )\(.*?\)\n(?=# fmt: on)", rf"\1(\n{table})\n", text, flags=re.DOTALL
    )
    source.write_text(made, "utf-8")


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


def measured(votes: LabelledVotes) -> Iterator[dict[str, object]]:
    """The mean Brier score and log loss of each method, for each number of labels."""
    methods: dict[str, Callable[[LabelledVotes, LabelledVotes], Distribution]] = {
        "vote shares, temperature": shares,
        "constant": lambda train, test: Constant().fit(train).distribution(test),
        "probit": lambda train, test: Probit().fit(train).distribution(test),
        "jury without prior": lambda train, test: Jury().fit(train).distribution(test),
        "jury": lambda train, test: Jury().fit(train).distribution(test),
    }
    half = len(votes) // 2
    for labels in (number for number in LABELS if number <= half):
        losses = {name: np.zeros((SPLITS, 2)) for name in methods}
        for seed in range(SPLITS):
            mixed = np.random.default_rng(seed).permutation(len(votes))
            train, test = votes.take(mixed[:labels]), votes.take(mixed[half:][:MOST_TESTED])
            for name, method in methods.items():
                weight = 0.0 if name == "jury without prior" else shipped.PICTURES
                with patch.object(shipped, "PICTURES", weight):
                    distribution = method(train, test)
                losses[name][seed] = distribution.brier(test.truths).mean(), distribution.nll(test.truths).mean()
        for name, found in losses.items():
            brier, nll = found.mean(axis=0).tolist()
            yield {"labels": labels, "method": name, "brier": brier, "nll": nll, "splits": SPLITS}


def main(names: Sequence[str], results: Path = RESULTS) -> None:
    """Write the rows of these models, or all; those of others stay."""
    judged = {
        **{name: answers(name).votes.label_only() for name in SOURCES},
        MAPPED: answers(MAPPED).votes.label_only(),
        **{each.name: each.votes.label_only() for each in faces()},
    }
    for name in names or judged:
        with priors.without(name):
            rows = [cells({"model": name, **row}, ".5f") for row in measured(judged[name])]
        merge(results, rows, ("model", "labels", "method"))
        print(*(" ".join(row.values()) for row in rows), sep="\n", flush=True)


def ship() -> None:
    """Write the typical weights of all six models into the package, and those without each of them beside results."""
    six = {name: first_votes(name) for name in SOURCES}
    regenerate(fitted(list(six.values())))
    rows = []
    for name in six:
        others = fitted([votes for other, votes in six.items() if other != name])
        for views, (weights, information) in enumerate(others):
            row = {
                "without": name,
                "views": views,
                "weights": list(weights),
                "information": list(map(list, information)),
            }
            rows.append(cells(row))
    write(priors.WEIGHTS, rows)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["fit"]:
            ship()
        case names:
            script.run(main, __doc__, {*SOURCES, MAPPED, *(each.name for each in faces())})
