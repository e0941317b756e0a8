"""Which pictures to label: an audit by strata beside a random choice, and whether intervals hold the truth.

nice -n 19 python -m experiments.labelling [MODEL …]      results/labelling.csv

Each draw fits a jury on 500 random pictures of a pool. Of the others it accepts those of a confidence above a
threshold, and the labels are to estimate the share of wrong answers among these. `random` labels pictures of the pool
at random, with Wilson's interval for the accepted ones among them; `strata` are the first labels of
`verdicts.audit.Audit`. `ratio` is how many labels strata need, for each label of the random choice, until the mean
width of the interval is the same, `bound` how many any choice by confidence needs if confidences are right, and
`oracle` how many the best allocation to these strata needs if it knows the true error rate of each. The shrinkage of
the variance was chosen on ResNet-32 and EfficientNet-Lite0, which are not among the models below; the number of strata
on the models below as well.

Votes are those that `python -m experiments.general ask` kept, under the general panel; nothing is asked.
Set OPENBLAS_NUM_THREADS=1: the matrices are small, and threads only wait for each other.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from experiments import general, script
from experiments.models import SOURCES
from experiments.writing import cells, merge
from looktwice.calibration.evidence import Floats
from looktwice.calibration.jury import Jury
from looktwice.calibration.metrics import wilson
from looktwice.decisions.verdict import Verdict
from looktwice.labelling.summary import Audit
from looktwice.views import GENERAL

RESULTS = Path(__file__).parent / "results" / "labelling.csv"
MODELS = ("resnet8", "resnet20", "resnet56", "mobilenetv2")
DRAWS, FIT, LABELS, STEP = 100, 500, 400, 20
THRESHOLDS = (0.9, 0.8, 0.7, 0.0)
CELL, RESULT = ("model", "threshold", "draws", "accepted", "wrong"), ("labels", "method", "width", "covered")
COLUMNS = (*CELL, *RESULT, "ratio", "bound", "oracle")

Interval = tuple[float, bool]
"""The width of an interval, and whether it holds the truth."""


def study(name: str, threshold: float) -> list[dict[str, object]]:
    """One row for the random choice, and one for strata at each number of labels; none where too few are accepted."""
    votes, labels = general.stored(name, GENERAL), LABELS
    steps = range(STEP * 2, labels + 1, STEP)
    random, strata, shares, errors = list[Interval](), {step: list[Interval]() for step in steps}, [], []
    bounds, oracles = [], []
    for draw in range(DRAWS):
        rng = np.random.default_rng(draw)
        mixed = rng.permutation(len(votes))
        jury, rest = Jury().fit(votes.take(mixed[:FIT])), votes.take(mixed[FIT:])
        confidence, wrong = jury.confidence(rest), jury.predict(rest) != rest.truths
        accepted = confidence >= threshold
        if accepted.sum() < labels:
            continue
        true = float(wrong[accepted].mean())
        shares.append(accepted.mean())
        errors.append(true)
        bounds.append(_bound(1.0 - confidence[accepted], labels * accepted.mean()) / labels)
        chosen = rng.permutation(len(rest))[:labels]
        chosen = chosen[accepted[chosen]]
        low, high = wilson(wrong[chosen].sum(), len(chosen))
        random.append((float(high - low), bool(low <= true <= high)))
        verdicts = [
            Verdict(name=str(i), asked=(), label="", confidence=share, low=share, high=share)
            for i, share in zip(np.flatnonzero(accepted), confidence[accepted].tolist(), strict=True)
        ]
        audit = Audit(verdicts, draw)
        rate = np.bincount(audit.stratum, wrong[accepted]) / audit.sizes
        oracles.append(_bound(rate[audit.stratum], labels * accepted.mean()) / labels)
        order = audit.order()
        for step in steps:
            share = audit.share({i: bool(wrong[int(i)]) for i in order[:step]})
            assert share is not None
            strata[step].append((share.high - share.low, share.low <= true <= share.high))
    if len(random) < DRAWS // 2:
        return []
    about = {
        "model": name,
        "threshold": threshold,
        "draws": len(random),
        "accepted": np.mean(shares),
        "wrong": np.mean(errors),
        "bound": np.mean(bounds),
        "oracle": np.mean(oracles),
    }
    width = np.mean([each[0] for each in random])
    widths = [np.mean([each[0] for each in strata[step]]) for step in steps]
    ratio = float(np.interp(-width, np.negative(widths), steps)) / labels
    rows = [{**about, "labels": labels, "method": "random", **_means(random), "ratio": 1.0}]
    return rows + [
        {**about, "labels": step, "method": "strata", **_means(strata[step]), "ratio": ratio} for step in steps
    ]


def _bound(error: Floats, random: float) -> float:
    """Fewest labels that tell as much as so many random ones of these pictures, each of which is wrong so often.

    Every picture is a stratum of its own, and is labelled as often as its answer's standard deviation says (Neyman).
    """
    mean, within = error.mean(), (error * (1.0 - error)).mean()
    return float(np.sqrt(error * (1.0 - error)).mean() ** 2 / (mean * (1.0 - mean) / random + within / len(error)))


def _means(found: list[Interval]) -> dict[str, object]:
    return {"width": np.mean([each[0] for each in found]), "covered": np.mean([each[1] for each in found])}


def main(names: list[str], results: Path = RESULTS) -> None:
    """Write the rows of these models; those of others stay."""
    for name in names:
        found = []
        for threshold in THRESHOLDS:
            rows = study(name, threshold)
            found += [cells({column: row[column] for column in COLUMNS}, ".4f") for row in rows]
            print(name, threshold, f"ratio {rows[-1]['ratio']:.2f}" if rows else "too few are accepted", flush=True)
        merge(results, found, ("model",))


if __name__ == "__main__":
    script.run(lambda words: main(words or list(MODELS)), __doc__, SOURCES)
