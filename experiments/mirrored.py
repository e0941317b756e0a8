"""Pictures whose class changes when they are mirrored: what `fit` asks and says, beside the general panel.

python -m experiments.mirrored          results/mirrored.csv, a line for each set
python -m experiments.mirrored quick    one split, into the file that LOOKTWICE_RESULTS names

Letters (b, d, p, q) and arrows in six directions are drawn with OpenCV: moved, turned by up to 10°, with noise. A
network with one hidden layer of 64 units learns 2,000 of them. Each of 5 splits, whose number is its seed, draws new
pictures, trains a new network, fits on 600 labelled pictures as a user does and tests on 1,500. `queries` is the mean
number of queries about a tested picture, `most` the largest, `views` how many of the eight views are left, `said` how
often the sentence about mirrored copies is printed; `brier`, `auroc` and `base_auroc` are of the verdicts, the last of
the probability that the base answer is right. Those that end in `_all` are of the general panel, fixed by hand with all
of it asked; `retained` is how often mirroring alone leaves a right answer right.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

import looktwice as lt
from experiments import script
from experiments.writing import Row, write
from looktwice.calibration.metrics import auroc
from looktwice.decisions.verdict import Verdict
from looktwice.views import GENERAL

RESULTS = Path(os.environ.get("LOOKTWICE_RESULTS", Path(__file__).parent / "results" / "mirrored.csv"))
SPLITS, TAUGHT, LABELLED, TESTED = 5, 2000, 600, 1500
SIZE = 24
SETS = {"letters": ("b", "d", "p", "q"), "arrows": ("0", "60", "120", "180", "240", "300")}
"""The classes of each set; those of arrows are their directions in degrees."""
NOISE = {"letters": 70.0, "arrows": 120.0}
"""The standard deviation of the noise in grey levels."""
Pictures = NDArray[np.uint8]


def drawn(name: str, count: int, rng: np.random.Generator) -> tuple[Pictures, list[str]]:
    """Pictures of random classes, and their truths."""
    truths = [SETS[name][code] for code in rng.integers(len(SETS[name]), size=count)]
    pictures = np.stack([_one(name, truth, rng) for truth in truths])
    return pictures, truths


def _one(name: str, truth: str, rng: np.random.Generator) -> Pictures:
    canvas = np.full((SIZE, SIZE), 60, np.uint8)
    if name == "letters":
        cv2.putText(canvas, truth, (6, 17), cv2.FONT_HERSHEY_SIMPLEX, 0.65, 200, 2, cv2.LINE_AA)
    else:
        angle, middle = math.radians(float(truth)), SIZE / 2
        step = 7 * math.cos(angle), -7 * math.sin(angle)
        start, end = ((round(middle + sign * step[0]), round(middle + sign * step[1])) for sign in (-1, 1))
        cv2.arrowedLine(canvas, start, end, 200, 2, cv2.LINE_AA, tipLength=0.45)
    turned = cv2.getRotationMatrix2D((SIZE / 2, SIZE / 2), rng.uniform(-10, 10), 1.0)
    turned = np.hstack([turned[:, :2], turned[:, 2:] + rng.uniform(-2, 2, (2, 1))])
    moved = cv2.warpAffine(canvas, turned, (SIZE, SIZE), borderMode=cv2.BORDER_REPLICATE)
    grey = moved + NOISE[name] * rng.standard_normal((SIZE, SIZE))
    return np.clip(grey, 0, 255).astype(np.uint8)[:, :, None].repeat(3, axis=2)


def network(name: str, rng: np.random.Generator) -> lt.Model:
    """A classifier that learned pictures of its own."""
    from sklearn.neural_network import MLPClassifier

    pictures, truths = drawn(name, TAUGHT, rng)
    fitted = MLPClassifier((64,), alpha=1.0, early_stopping=True, random_state=int(rng.integers(2**31)))
    fitted.fit(_flat(pictures), truths)

    @lt.batched
    def classify(batch: list[Pictures]) -> list[str]:
        return [str(label) for label in fitted.predict(_flat(np.stack(batch)))]

    return lt.Model(classify, ledger="memory")


def _flat(pictures: Pictures) -> NDArray[np.float32]:
    return (pictures[:, :, :, 0].reshape(len(pictures), -1) / 255.0 - 0.3).astype(np.float32)


def measured(name: str, seed: int) -> dict[str, float]:
    """The figures of one split."""
    rng = np.random.default_rng(seed)
    (pictures, truths), (tested, right), model = (
        drawn(name, LABELLED, rng),
        drawn(name, TESTED, rng),
        network(name, rng),
    )
    with model:
        fixed = model.fit(pictures, truths, views=GENERAL)
        votes = fixed.collected.labelled()
        mirror = votes.panel.index("mirror")
        sure = votes.base == votes.truths
        whole = _judged([each for each in model.score(tested, all=True) if isinstance(each, Verdict)], right)
        result = model.fit(pictures, truths)
        verdicts = [each for each in model.score(tested) if isinstance(each, Verdict)]
    ours = _judged(verdicts, right)
    queries = [each.queries for each in verdicts]
    return {
        "accuracy": float(sure.mean()),
        "retained": float((votes.views[:, mirror] == votes.truths)[sure].mean()),
        "queries": float(np.mean(queries)),
        "most": float(max(queries)),
        "views": float(len(result.profile.views())),
        "said": float(any(line.startswith("Mirrored") for line in result.sentences)),
        **ours,
        **{f"{figure}_all": value for figure, value in whole.items()},
    }


def _judged(verdicts: list[Verdict], truths: list[str]) -> dict[str, float]:
    """The Brier score of verdicts, and how well the confidence in their labels and in the base answers tells right."""
    shares = [{each.label: each.probability for each in verdict.distribution} for verdict in verdicts]
    named = [verdict.label == truth for verdict, truth in zip(verdicts, truths, strict=True)]
    base = [verdict.base == truth for verdict, truth in zip(verdicts, truths, strict=True)]
    lost = [
        sum(p * p for p in share.values()) + 1.0 - 2.0 * share.get(truth, 0.0)
        for share, truth in zip(shares, truths, strict=True)
    ]
    confidence = np.array([verdict.confidence for verdict in verdicts])
    own = np.array([share.get(verdict.base, 0.0) for share, verdict in zip(shares, verdicts, strict=True)])
    return {
        "brier": float(np.mean(lost)),
        "auroc": auroc(confidence, np.array(named)) or math.nan,
        "base_auroc": auroc(own, np.array(base)) or math.nan,
    }


def rows(splits: int) -> Iterator[Row]:
    """A line for each set: means over the splits."""
    for name in SETS:
        figures = [measured(name, seed) for seed in range(splits)]
        means = {figure: f"{np.mean([split[figure] for split in figures]):.4f}" for figure in figures[0]}
        yield {"set": name, **means, "labelled": str(LABELLED), "splits": str(splits)}


def main(words: list[str]) -> None:
    write(RESULTS, rows(1 if words else SPLITS))


if __name__ == "__main__":
    script.run(main, __doc__, {"quick"})
