"""What confidences of unlabelled pictures add to labels: prediction-powered intervals of accuracy beside plain ones.

python -m experiments.unlabelled [MODEL …]      results/unlabelled.csv

Each draw fits a jury on 500 random pictures; of the others, some are labelled and the rest are only scored. `plain` is
the mean of the labels with Wilson's interval, `ppi` is `calibration.prediction_powered`. What both are to hold is the
accuracy on the pictures that are not labelled. `saved` is the share of labels that may be left out for an interval of
the same mean width. Votes are those that `python -m experiments.general ask` kept. Set OPENBLAS_NUM_THREADS=1.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments import general, script
from experiments.models import SOURCES
from experiments.writing import cells, write
from looktwice.calibration.jury import Jury
from looktwice.calibration.metrics import wilson
from looktwice.calibration.risk import prediction_powered
from looktwice.views import GENERAL

RESULTS = Path(__file__).parent / "results" / "unlabelled.csv"
MODELS = ("resnet8", "resnet20", "resnet32", "resnet56", "mobilenetv2", "efficientnet")
DRAWS, FIT, LABELS = 100, 500, (50, 100, 200, 400)


def study(name: str) -> list[dict[str, object]]:
    """One row for each number of labels."""
    votes = general.stored(name, GENERAL)
    found: dict[int, list[tuple[float, float, bool, bool, float]]] = {labels: [] for labels in LABELS}
    for draw in range(DRAWS):
        mixed = np.random.default_rng(draw).permutation(len(votes))
        jury, rest = Jury().fit(votes.take(mixed[:FIT])), votes.take(mixed[FIT:])
        sure, right = jury.confidence(rest), jury.predict(rest) == rest.truths
        for labels in LABELS:
            true = float(right[labels:].mean())
            low, high = wilson(int(right[:labels].sum()), labels)
            _, least, most = prediction_powered(right[:labels], sure[:labels], sure[labels:])
            inside = (bool(low <= true <= high), bool(least <= true <= most))
            found[labels].append((float(high - low), most - least, *inside, true))
    rows = []
    for labels, told in found.items():
        plain, ppi, held, powered, true = np.mean(told, axis=0)
        row = {"model": name, "labels": labels, "unlabelled": len(votes) - FIT - labels, "draws": DRAWS}
        row |= {"accuracy": true, "plain": plain, "ppi": ppi, "plain_covered": held, "ppi_covered": powered}
        rows.append(row | {"saved": 1.0 - (ppi / plain) ** 2})
    return rows


def main(names: list[str], results: Path = RESULTS) -> None:
    """Write the rows of these models."""
    write(results, (cells(row, ".4g") for name in names for row in study(name)))


if __name__ == "__main__":
    script.run(lambda words: main(words or list(MODELS)), __doc__, SOURCES)
