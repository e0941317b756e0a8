"""Labels that only rule the answer out: what they gain over the same number of other labels.

nice -n 19 python -m experiments.ruled_out [MODEL …]      results/ruled_out.csv

Somebody labels pictures in random order, and cannot name the truth of half of those whose answer is wrong. `gain` is
the mean Brier score on held-out pictures with the same number of clicks spent otherwise, less that with "it is not
this" and its EM fit: on the label "something else" (`other`), on other pictures instead (`skip`), on the same pictures
by somebody who can name all of them (`named`). 40 draws, each a fit on one half of the pictures and a test on the
other; intervals of 95 % resample draws and pictures together (seed 0). Answers under the general panel are those of
experiments/answered.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from experiments import general, script
from experiments.models import SOURCES
from experiments.writing import cells, merge
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.evidence import MISSING, Floats
from looktwice.calibration.jury import Jury
from looktwice.calibration.votes import LabelledVotes
from looktwice.views import GENERAL

RESULTS = Path(__file__).parent / "results" / "ruled_out.csv"
MODELS = ("resnet20", "resnet32", "resnet56", "mobilenetv2", "efficientnet")
PICTURES, LABELS, DRAWS, UNNAMED, SEED = 2500, (100, 500), 40, 0.5, 0
OTHERS = ("other", "skip", "named")


def fits(votes: LabelledVotes, pool: np.ndarray, labels: int, rng: np.random.Generator) -> Iterator[tuple[str, Jury]]:
    """The jury of each way to spend the clicks."""
    unnamed = (votes.base != votes.truths) & (rng.random(len(votes)) < UNNAMED)
    first, silent = votes.take(pool[:labels]), unnamed[pool[:labels]]
    words = [None if mute else word for mute, word in zip(silent, first.words, strict=True)]
    excluded = [(int(base),) if mute else () for mute, base in zip(silent, first.base, strict=True)]
    yield "not", Jury().fit(first.labelled([word or "not this" for word in words], excluded if silent.any() else ()))
    yield "other", Jury().fit(first.labelled([word or "something else" for word in words]))
    yield "skip", Jury().fit(votes.take(pool[~unnamed[pool]][:labels]))
    yield "named", Jury().fit(first)


def study(votes: LabelledVotes, labels: int) -> dict[str, object]:
    """The mean Brier score with labels that rule out, and the gain over each other way with its interval."""
    scores = {way: np.full((DRAWS, len(votes)), np.nan) for way in ("not", *OTHERS)}
    for draw in range(DRAWS):
        rng = np.random.default_rng(draw)
        mixed = rng.permutation(len(votes))
        test = mixed[len(votes) // 2 :]
        held_out = votes.take(test)
        for way, jury in fits(votes, mixed[: len(votes) // 2], labels, rng):
            scores[way][draw, test] = brier(jury.distribution(held_out), held_out)
    row: dict[str, object] = {"brier": float(np.nanmean(scores["not"]))}
    for way in OTHERS:
        gain = scores[way] - scores["not"]
        low, high = interval(gain)
        row |= {f"gain_{way}": float(np.nanmean(gain)), f"low_{way}": low, f"high_{way}": high}
    return row


def brier(distribution: Distribution, votes: LabelledVotes) -> Floats:
    """(n,): Σ_c (p_c − y_c)² of each picture; classes without a probability of their own share the rest evenly."""
    listed = distribution.labels != MISSING
    own = np.where(listed, distribution.named, 0.0)
    left, rest = votes.classes - listed.sum(axis=1), 1.0 - own.sum(axis=1)
    spread = np.where(left > 0, rest**2 / np.maximum(left, 1), 0.0)
    scores: Floats = (own**2).sum(axis=1) + spread - 2.0 * distribution.of(votes.truths) + 1.0
    return scores


def interval(gain: Floats) -> tuple[float, float]:
    """95 % of the mean of (draws, pictures), where both are resampled; NaN where a picture was not tested."""
    rng, (draws, pictures) = np.random.default_rng(SEED), gain.shape
    weights = rng.multinomial(pictures, np.full(pictures, 1.0 / pictures), 2000)
    sums, counts = weights @ np.nan_to_num(gain).T, weights @ np.isfinite(gain).T
    chosen = rng.integers(0, draws, (2000, draws))
    means = np.take_along_axis(sums, chosen, axis=1).sum(axis=1) / np.take_along_axis(counts, chosen, axis=1).sum(
        axis=1
    )
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def main(names: list[str], results: Path = RESULTS) -> None:
    """Write the rows of these models; those of others stay."""
    for name in names:
        votes = general.stored(name, GENERAL).take(slice(0, PICTURES))
        rows = [{"model": name, "labels": labels, **study(votes, labels)} for labels in LABELS]
        merge(results, [cells(row, ".4f") for row in rows], ("model", "labels"))
        print(*(" ".join(cells(row, ".4f").values()) for row in rows), sep="\n", flush=True)


if __name__ == "__main__":
    script.run(lambda words: main(words or list(MODELS)), __doc__, SOURCES)
