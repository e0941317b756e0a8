"""Which pictures to label: an audit by strata beside a random choice, and whether intervals hold the truth.

nice -n 19 python experiments/labelling.py [MODEL …]      results/labelling.csv

Each draw fits a jury on 500 random pictures of a pool. Of the others it accepts those of a confidence above a
threshold, and the share of wrong answers among these is what labels are to tell. `random` labels pictures of the pool
at random, with Wilson's interval for the accepted ones among them; `strata` are the first labels of
`verdicts.audit.Audit`. `ratio` is how many labels strata need, for each label of the random choice, until the mean
width of the interval is the same.

Models in ../shared are asked once; their votes stay in $LOOKTWICE_EXPERIMENTS or ~/.cache/looktwice-experiments, under
labelling/. Set OPENBLAS_NUM_THREADS=1: the matrices are small, and threads only wait for each other.
"""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import numpy as np
from collected import CACHE, MILD, MODELS, SHARED

from looktwice.calibration import storage
from looktwice.calibration.jury import Jury
from looktwice.calibration.metrics import wilson
from looktwice.calibration.votes import LabelledVotes
from looktwice.model import Model
from looktwice.pictures.collection import Picture
from looktwice.pictures.datasets import open_labelled
from looktwice.verdicts.audit import Audit
from looktwice.verdicts.review import Doubt

RESULTS = Path(__file__).parent / "results" / "labelling.csv"
POOLS = {"resnet8": 6000, "resnet20": 6000, "resnet56": 4000, "mobilenetv2": 1500}
"""Models, and how many pictures there are to be labelled."""
DRAWS, FIT, LABELS, STEP = 100, 500, 400, 20
THRESHOLDS = (0.9, 0.8, 0.0)
COLUMNS = ("model", "threshold", "accepted", "wrong", "labels", "method", "width", "covered", "ratio")
CIFAR100 = """connector = "onnx"
model = "{model}"
size = [32, 32]
labels = {labels}
scale = 255.0
mean = [0.5070, 0.4865, 0.4409]
std = [0.2673, 0.2564, 0.2761]
"""

Told = tuple[float, bool]
"""The width of an interval, and whether it holds the truth."""


def pool(name: str) -> LabelledVotes:
    """The answers about the pictures that may be labelled, with their truths; asked once and kept."""
    path = CACHE / "labelling" / f"{name}.npz"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with Model(_description(name, path.parent), concurrency=1) as model:
            storage.save(path, model.ask(pictures(name), views=MILD).votes)
    votes = storage.load(path)
    assert isinstance(votes, LabelledVotes)
    return votes


def pictures(name: str) -> list[Picture]:
    """A random part of a model's test pictures."""
    data = "cifar-100-python" if name == "resnet56" else MODELS[name].data
    found = open_labelled(SHARED / "data" / data)
    return [found[place] for place in np.random.default_rng(0).permutation(len(found))[: POOLS[name]]]


def _description(name: str, folder: Path) -> str:
    if name != "resnet56":
        return MODELS[name].description()
    labels = sorted({str(picture.truth) for picture in open_labelled(SHARED / "data" / "cifar-100-python")})
    path = folder / "resnet56.toml"
    text = CIFAR100.format(model=SHARED / "models" / "cifar100_resnet56.onnx", labels=labels).replace("'", '"')
    path.write_text(text, "utf-8")
    return str(path)


def study(name: str, threshold: float) -> list[dict[str, object]]:
    """One row for the random choice, and one for strata at each number of labels."""
    votes = pool(name)
    labels = min(LABELS, (len(votes) - FIT) // 2)
    steps = range(STEP * 2, labels + 1, STEP)
    random, strata, shares, errors = list[Told](), {step: list[Told]() for step in steps}, [], []
    for draw in range(DRAWS):
        rng = np.random.default_rng(draw)
        mixed = rng.permutation(len(votes))
        jury, rest = Jury().fit(votes.take(mixed[:FIT])), votes.take(mixed[FIT:])
        confidence, wrong = jury.confidence(rest), jury.predict(rest) != rest.truths
        accepted = confidence >= threshold
        true = float(wrong[accepted].mean())
        shares.append(accepted.mean())
        errors.append(true)
        chosen = rng.permutation(len(rest))[:labels]
        chosen = chosen[accepted[chosen]]
        low, high = wilson(wrong[chosen].sum(), len(chosen))
        random.append((float(high - low), bool(low <= true <= high)))
        doubts = [Doubt(str(i), "", float(confidence[i]), "", (), None) for i in np.flatnonzero(accepted)]
        audit = Audit(doubts, draw)
        order = audit.order()
        for step in steps:
            told = audit.share({i: bool(wrong[int(i)]) for i in order[:step]})
            assert told is not None
            strata[step].append((told.high - told.low, told.low <= true <= told.high))
    about = {"model": name, "threshold": threshold, "accepted": np.mean(shares), "wrong": np.mean(errors)}
    width = np.mean([each[0] for each in random])
    widths = [np.mean([each[0] for each in strata[step]]) for step in steps]
    ratio = float(np.interp(-width, np.negative(widths), steps)) / labels
    rows = [{**about, "labels": labels, "method": "random", **_told(random), "ratio": 1.0}]
    return rows + [
        {**about, "labels": step, "method": "strata", **_told(strata[step]), "ratio": ratio} for step in steps
    ]


def _told(found: list[Told]) -> dict[str, object]:
    return {"width": np.mean([each[0] for each in found]), "covered": np.mean([each[1] for each in found])}


def main(names: list[str]) -> None:
    """Write the rows of these models; those of others stay."""
    kept = []
    if RESULTS.exists():
        with RESULTS.open(newline="") as file:
            kept = [row for row in csv.DictReader(file) if row["model"] not in names]
    for name in names:
        for threshold in THRESHOLDS:
            rows = study(name, threshold)
            kept += [{k: f"{v:.4f}" if isinstance(v, float) else str(v) for k, v in row.items()} for row in rows]
            print(name, threshold, f"ratio {rows[-1]['ratio']:.2f}", flush=True)
            with RESULTS.open("w", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                writer.writeheader()
                writer.writerows(kept)


if __name__ == "__main__":
    main(sys.argv[1:] or list(POOLS))
