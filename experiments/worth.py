"""How many labelled pictures it takes to rank views: their order by worth on them, beside the general order.

python experiments/worth.py [MODEL …]       results/worth.csv, a line for each model and number of labelled pictures

For each of ten draws of labelled pictures, juries for 1 … 8 views in either order are fitted on them and tested on up
to 4,000 others: the difference in log loss (mean over 1 … 8 views) and in Brier score; below zero worth is better.
Set OPENBLAS_NUM_THREADS=1.
"""

from __future__ import annotations

import sys

import numpy as np
from collected import MILD, MILD16, MODELS, Model, votes
from jury import RESULTS, write

from looktwice.calibration import crossfit
from looktwice.calibration.jury import Prefixes
from looktwice.calibration.votes import Floats, LabelledVotes
from looktwice.verdicts import stopping

LABELLED = (150, 300, 500, 750, 1000)
DRAWS = 10
MOST_TESTED, FEWEST_TESTED = 4000, 300
SHOWN = (1, 2, 4, 8)
COLUMNS = ("model", "labelled", "tested", "draws", "log_loss", "error", *(f"brier_{views}" for views in SHOWN))


def losses(order: list[int], fit: LabelledVotes, test: LabelledVotes) -> tuple[Floats, Floats]:
    """(8,) twice: log loss and Brier score after 1 … 8 views in this order."""
    juries = Prefixes().fit(fit.under(order)).seated()[1 : len(MILD) + 1]
    found = [crossfit.outcome(jury, test.under(order[:views])) for views, jury in enumerate(juries, 1)]
    return np.array([each.nll.mean() for each in found]), np.array([each.brier.mean() for each in found])


def line(model: Model, labelled: int) -> list[str]:
    """What ranking by so many pictures brings."""
    said = votes(model, MILD16)
    pictures = model.order() if model.photos else model.order()[model.pilot :]
    surprise, brier, tested = [], [], 0
    for seed in range(DRAWS):
        mixed = np.random.default_rng(100 + seed).permutation(pictures)
        fit, test = mixed[:labelled], mixed[labelled : labelled + MOST_TESTED]
        train, others = said.take(fit), said.take(test)
        ranked, usual = (
            losses(order, train, others) for order in (stopping.worth(train, len(MILD)), list(range(len(MILD16))))
        )
        surprise.append((ranked[0] - usual[0]).mean())
        brier.append(ranked[1] / usual[1] - 1)
        tested = len(test)
    error = np.std(surprise) / np.sqrt(DRAWS)
    shown = [f"{np.mean(brier, axis=0)[views - 1]:+.4f}" for views in SHOWN]
    return [model.name, str(labelled), str(tested), str(DRAWS), f"{np.mean(surprise):+.4f}", f"{error:.4f}", *shown]


def main() -> None:
    for name in [name for name in sys.argv[1:] if name in MODELS] or list(MODELS):
        model = MODELS[name]
        pictures = len(model.order()) - (0 if model.photos else model.pilot)
        sizes = [size for size in LABELLED if pictures - size >= FEWEST_TESTED]
        rows = [line(model, size) for size in sizes]
        write(RESULTS / "worth.csv", COLUMNS, rows, {name})
        print("\n".join(" ".join(row) for row in rows), flush=True)


if __name__ == "__main__":
    main()
