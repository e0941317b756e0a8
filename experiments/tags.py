"""What confidence in tags is worth: the answers of three APIs about photos, of which several tags may be true.

python -m experiments tags           results/tags.csv, tags_paired.csv and tags_intervals.csv
python -m experiments tags --quick   the same on made-up answers, which need nothing else

The answers, about 11,540 photos of PASCAL VOC and 20 tags, are in ../shared/answers (FrugalMCT). Every split draws
1,000 labelled photos to fit on, the same for each method, and tests on the rest; each figure is the mean over 20
splits. What a jury looks at is chosen by cross-validation inside the labelled photos. The columns that it can choose
from, and how it chooses, were settled on three of the splits, test parts included.

`brier` is the sum of (p − y)² over the tags of a photo, `ece` is over all (photo, tag), `map` the mean over tags of the
average precision, `micro_f1` and `macro_f1` are those of p ≥ ½, and `recall_95` is the largest share of true tags that
one threshold accepts with a precision of at least .95. tags_paired.csv says how much better a jury is than another
method with the same APIs: the mean difference over the splits, and the range of 95 % of the splits. tags_intervals.csv
says how often an interval holds the probability that a jury fitted on three quarters of the other photos gives, over
all (photo, tag) and over those with a probability between .05 and .95.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.closed import ANSWERS, isotonic, split
from experiments.writing import Row, cells, write
from looktwice.calibration import metrics
from looktwice.calibration.evidence import Bools, Floats
from looktwice.calibration.shares import _logistic
from looktwice.calibration.tag_votes import NEAREST, LabelledTagVotes, TagVotes
from looktwice.calibration.tags import TagJury
from looktwice.errors import DataError

RESULTS = Path(__file__).parent / "results"
SPLITS, LABELS = 20, 1000
FEWER = (100, 300)
"""Labelled photos of further rows."""
APIS = ("microsoft", "google", "everypixel")
SETS = ((0,), (1,), (2,), (0, 1), (0, 1, 2))
"""The APIs that a jury is fitted on."""
SEED = 0
"""Of the first split; the others follow."""
FIGURES = ("brier", "ece", "map", "micro_f1", "macro_f1", "recall_95")
SMALLER = ("brier", "ece")
Figures = dict[str, float]
Method = Callable[[LabelledTagVotes, LabelledTagVotes], Floats]
"""The probabilities (n, T) of tested photos, from labelled ones and the answers about those tested."""


def pascal() -> LabelledTagVotes:
    """The answers about PASCAL's photos; a tag's place in an answer is that of its score."""
    paths = [ANSWERS / f"tags_pascal{end}" for end in (".csv.gz", "_images.txt", "_classes.txt")]
    if not all(path.exists() for path in paths):
        raise DataError(f"answers on tags are needed, and {str(paths[0])!r} is not there; try --quick")
    photos, tags = (path.read_text("utf-8").split() for path in paths[1:])
    scores = np.full((len(photos), len(APIS), len(tags)), np.nan, np.float32)
    truths = np.zeros((len(photos), len(tags)), bool)
    at, code = ({name: place for place, name in enumerate(names)} for names in (photos, tags))
    with gzip.open(paths[0], "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            place = at[row["image"]], code[row["tag"]]
            truths[place] = row["true"] == "1"
            scores[place[0], :, place[1]] = [float(row[api] or "nan") for api in APIS]
    return from_scores(photos, tags, scores, truths)


def from_scores(
    photos: Sequence[str], tags: Sequence[str], scores: NDArray[np.float32], truths: Bools
) -> LabelledTagVotes:
    """Votes of APIs that return the tags whose score is not NaN, the largest first."""
    order = np.argsort(-np.nan_to_num(scores, nan=-1.0), axis=2, kind="stable").argsort(axis=2, kind="stable")
    ranks = np.where(np.isnan(scores), 0, order + 1).astype(np.int16)
    votes = TagVotes(tuple(photos), APIS, tuple(tags), ranks, scores, np.ones(scores.shape[:2], bool))
    return votes.labelled(truths)


def made_up(photos: int = 700, tags: int = 6, seed: int = SEED) -> LabelledTagVotes:
    """Answers of three APIs that are overconfident, each of which knows some tags better than others."""
    rng = np.random.default_rng(seed)
    truths = rng.random((photos, tags)) < rng.uniform(0.05, 0.4, tags)
    strength = rng.uniform(0.5, 2.5, (1, len(APIS), tags))
    odds = np.where(truths, 1.0, -1.0)[:, None] * strength + rng.normal(size=(photos, len(APIS), tags))
    scores = np.where(odds > 0, 1 / (1 + np.exp(-3 * odds)), np.nan).astype(np.float32)
    return from_scores([f"{i}" for i in range(photos)], [f"tag {t}" for t in range(tags)], scores, truths)


# The methods ---------------------------------------------------------------------------------------------------------


def own_scores(votes: TagVotes) -> Floats:
    """(n, T): the mean score of the APIs, 0 where a tag was not returned."""
    return np.nan_to_num(votes.scores.astype(np.float64)).mean(axis=1)


def own(_: LabelledTagVotes, test: LabelledTagVotes) -> Floats:
    return own_scores(test)


def platt(fit: LabelledTagVotes, test: LabelledTagVotes) -> Floats:
    """A logistic curve of the score's log odds for tags that were returned, and how often others are true."""
    returned, others = (votes.ranks.any(axis=1) for votes in (fit, test))
    odds = [np.clip(own_scores(votes), NEAREST, 1 - NEAREST) for votes in (fit, test)]
    x, at = (np.log(share / (1 - share)) for share in odds)
    a, b = _logistic(x[returned][:, None], fit.truths[returned])
    return np.where(others, 1 / (1 + np.exp(-a * at - b)), fit.truths[~returned].mean())


def isotonic_pooled(fit: LabelledTagVotes, test: LabelledTagVotes) -> Floats:
    return isotonic(own_scores(fit).ravel(), fit.truths.ravel(), own_scores(test))


def isotonic_by_tag(fit: LabelledTagVotes, test: LabelledTagVotes) -> Floats:
    x, at = own_scores(fit), own_scores(test)
    return np.stack([isotonic(x[:, t], fit.truths[:, t], at[:, t]) for t in range(len(fit.tags))], axis=1)


def vote(_: LabelledTagVotes, test: LabelledTagVotes) -> Floats:
    """The share of the APIs that return a tag."""
    return (test.ranks > 0).mean(axis=1)


def vote_by_tag(fit: LabelledTagVotes, test: LabelledTagVotes) -> Floats:
    """How often a tag is true that so many APIs return, drawn a little to the mean over tags."""
    count, at = ((votes.ranks > 0).sum(axis=1) for votes in (fit, test))
    found = np.zeros(at.shape)
    for number in range(len(fit.sources) + 1):
        rows = count == number
        mean = fit.truths[rows].mean() if rows.any() else number / len(fit.sources)
        share = ((fit.truths & rows).sum(axis=0) + mean) / (rows.sum(axis=0) + 1.0)
        found = np.where(at == number, share, found)
    return found


def ours(fit: LabelledTagVotes, test: LabelledTagVotes) -> Floats:
    return TagJury().fit(fit).probability(test)


BASELINES: dict[str, Method] = {
    "own score": own,
    "Platt": platt,
    "isotonic": isotonic_pooled,
    "isotonic by tag": isotonic_by_tag,
    "vote": vote,
    "vote, frequencies by tag": vote_by_tag,
}
OURS = "ours"


# The figures ---------------------------------------------------------------------------------------------------------


def average_precision(chance: Floats, truth: Bools) -> float:
    """The mean precision at each true picture; ties count together."""
    levels, place = np.unique(-chance, return_inverse=True)
    right = np.bincount(place, truth, len(levels))
    precision = np.cumsum(right) / np.cumsum(np.bincount(place, minlength=len(levels)))
    return float(right @ precision / max(right.sum(), 1.0))


def recall_at(precision: float, chance: Floats, truth: Bools) -> float:
    """The largest share of what is true that a threshold accepts with at least this precision."""
    levels, place = np.unique(-chance, return_inverse=True)
    right = np.cumsum(np.bincount(place, truth, len(levels)))
    kept = right / np.cumsum(np.bincount(place, minlength=len(levels))) >= precision
    return float(right[kept].max(initial=0.0) / truth.sum())


def figures(chance: Floats, truths: Bools) -> Figures:
    """The figures of probabilities (n, T)."""
    said = chance >= 0.5
    hits, both = (said & truths).sum(axis=0), said.sum(axis=0) + truths.sum(axis=0)
    known = [tag for tag in range(truths.shape[1]) if truths[:, tag].any()]
    return {
        "brier": float(((chance - truths) ** 2).sum(axis=1).mean()),
        "ece": metrics.ece(chance.ravel(), truths.ravel()),
        "map": float(np.mean([average_precision(chance[:, tag], truths[:, tag]) for tag in known])),
        "micro_f1": float(2 * hits.sum() / both.sum()),
        "macro_f1": float((2 * hits[known] / both[known]).mean()),
        "recall_95": recall_at(0.95, chance.ravel(), truths.ravel()),
    }


Measured = dict[tuple[tuple[int, ...], str, int], list[Figures]]
"""By the APIs, the method and the number of labels: the figures of each split."""


def measure(votes: LabelledTagVotes, labels: int, splits: int) -> Measured:
    """Every method on the same splits."""
    found: Measured = {}
    for seed in range(SEED, SEED + splits):
        fit, test = split(len(votes), seed, labels)
        for apis in SETS:
            part, tested = votes.under(apis).take(fit), votes.under(apis).take(test)
            for name, method in {**BASELINES, OURS: ours}.items():
                found.setdefault((apis, name, labels), []).append(figures(method(part, tested), tested.truths))
            for fewer in (count for count in FEWER if count < labels):
                chance = ours(part.take(slice(0, fewer)), tested)
                found.setdefault((apis, OURS, fewer), []).append(figures(chance, tested.truths))
    return found


def lines(found: Measured) -> Iterator[Row]:
    """One line for each set of APIs, method and number of labels: the means over the splits."""
    for (apis, method, labels), parts in sorted(found.items(), key=lambda item: (len(item[0][0]), item[0][0])):
        means = {key: float(np.mean([part[key] for part in parts])) for key in FIGURES}
        row = {"apis": _named(apis), "method": method, "labels": labels, **means, "splits": len(parts), "seed": SEED}
        yield cells(row, ".4f")


def paired(found: Measured, labels: int) -> Iterator[Row]:
    """How much better ours is than each other method with the same APIs, in the same splits."""
    for (apis, method, count), theirs in found.items():
        if count != labels or method == OURS:
            continue
        row: dict[str, object] = {"apis": _named(apis), "beside": method}
        for key in FIGURES:
            sign = -1.0 if key in SMALLER else 1.0
            gain = [sign * (a[key] - b[key]) for a, b in zip(found[apis, OURS, labels], theirs, strict=True)]
            low, high = np.percentile(gain, [2.5, 97.5])
            row |= {key: float(np.mean(gain)), f"{key}_low": float(low), f"{key}_high": float(high)}
        yield cells(row, ".4f")


def _named(apis: Sequence[int]) -> str:
    return " + ".join(APIS[api] for api in apis)


def covered(votes: LabelledTagVotes, labels: int, splits: int) -> Iterator[Row]:
    """How often an interval holds the probability that a jury gives which was fitted on far more photos."""
    for apis in ((0,), (0, 1, 2)):
        parts: dict[int, list[tuple[float, ...]]] = {}
        for seed in range(SEED, SEED + splits):
            fit, rest = split(len(votes), seed, labels)
            many, test = np.split(rest, [3 * len(rest) // 4])
            tested = votes.under(apis).take(test)
            limit = TagJury().fit(votes.under(apis).take(many)).probability(tested)
            for count in (*(count for count in FEWER if count < labels), labels):
                parts.setdefault(count, []).append(_held(votes.under(apis).take(fit[:count]), tested, limit))
        for count, shares in parts.items():
            every, middle, width = (float(value) for value in np.mean(shares, axis=0))
            row = {"apis": _named(apis), "labels": count, "held": every, "held_between": middle, "width": width}
            yield cells({**row, "splits": splits, "seed": SEED}, ".4f")


def _held(fit: LabelledTagVotes, tested: TagVotes, limit: Floats) -> tuple[float, float, float]:
    jury = TagJury().fit(fit)
    low, high = jury.interval(tested)
    inside, between = (low <= limit) & (limit <= high), np.abs(jury.probability(tested) - 0.5) < 0.45
    return float(inside.mean()), float(inside[between].mean()), float((high - low)[between].mean())


def main(results: Path = RESULTS, quick: bool = False) -> None:
    """Measure every method, and write the three CSVs."""
    votes, labels, splits = (made_up(), 200, 3) if quick else (pascal(), LABELS, SPLITS)
    found = measure(votes, labels, splits)
    write(results / "tags.csv", lines(found))
    write(results / "tags_paired.csv", paired(found, labels))
    write(results / "tags_intervals.csv", covered(votes, labels, min(splits, 3)))
