"""What each column of the jury gains: alone, and added to the others, over 20 splits.

nice -n 15 python -m experiments.ablations [MODEL …]      results/ablations.csv

A conditional logit over all labels that were named (all classes, up to MOST_CLASSES) is fitted with different columns,
those of the jury and those that it does not have, on 1,000 labelled pictures, and tested on the others. `gain` is the
mean Brier score without the column less that with it, with its 95 % interval by resampling pictures (seed 0); `nll` is
the same of the log loss. Each column is added to the columns that stand before the `+`. The answers are those of
experiments/answered.py. The columns that the jury does not have (`classes`, `confusion`) were found by trying several
forms on ResNet-8, -20 and -56, the mapped network, RAF-DB, FER+ with Google and ExpW with Microsoft; ResNet-32,
EfficientNet and ExpW with Google took no part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from experiments import script
from experiments.answered import MAPPED, answers, faces
from experiments.co_occurrence import CoOccurrence
from experiments.general import Answers
from experiments.models import SOURCES
from experiments.writing import cells, merge
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.evidence import MISSING, Bools, Codes, Counts, Floats, Places, Scale
from looktwice.calibration.votes import LabelledVotes, Votes

RESULTS = Path(__file__).parent / "results" / "ablations.csv"
LABELS, SPLITS, RESAMPLES, MOST_TESTED, MOST_CLASSES = 1000, 20, 1000, 1500, 100
FLOOR, OWN, SATURATION, BY_CLASS = 0.01, 30.0, 1.0, 10.0
"""Ridge penalties: of every weight, of a view's own weight, of γ, and of one by class."""
FREQUENT = 20
"""Labelled pictures of a class that has an offset."""
PICTURES = 4000
"""The pictures of a model that are used, the first ones."""
PRIOR = 5.0
"""Answers that the prior of a row of the confusion table counts."""


@dataclass(frozen=True, eq=False)
class Options:
    """The options of n pictures: c labels, and the classes that are none of them together."""

    labels: Codes
    """(n, c): MISSING behind the last."""
    votes: Floats
    """(n, c + 1, S + 1): which answers name each."""
    size: Floats
    """(n, c + 1): log of the share of K − 1 classes that the last option stands for; −∞ where there is no option."""

    @classmethod
    def of(cls, votes: Votes) -> Options:
        """All classes where they are few, the labels of all answers and lists otherwise."""
        answers, n = votes.answers(), len(votes)
        if votes.classes <= MOST_CLASSES:
            labels = np.tile(np.arange(votes.classes, dtype=np.int32), (n, 1))
        else:
            listed = answers if votes.evidence is None else votes.evidence.labels.reshape(n, -1)
            codes = np.sort(np.column_stack([answers, listed]), axis=1)
            codes[:, 1:][codes[:, 1:] == codes[:, :-1]] = MISSING
            codes = np.sort(codes, axis=1)[:, ::-1]
            labels = codes[:, : int((codes != MISSING).sum(axis=1).max())]
        naming = (labels[:, :, None] == answers[:, None, :]) & (answers != MISSING)[:, None, :]
        left = votes.classes - (labels != MISSING).sum(axis=1)
        with np.errstate(divide="ignore"):
            size = np.column_stack([np.where(labels == MISSING, -np.inf, 0.0), np.log(left / (votes.classes - 1))])
        return cls(labels, np.pad(naming * 1.0, ((0, 0), (0, 1), (0, 0))), size)


@dataclass(frozen=True, eq=False)
class Column:
    """Features of the options, (n, c + 1, p), their ridge penalty, and the least that their weights may be."""

    features: Floats
    ridge: float = FLOOR
    least: float = 0.0


Maker = Callable[[LabelledVotes, Votes], tuple[Column, Column]]
"""A column of the pictures that it is learned from, each left out for itself, and that of others."""


def plain(features: Callable[[Votes, Options], Floats], ridge: float = FLOOR, least: float = 0.0) -> Maker:
    """A column that is not learned."""

    def make(train: LabelledVotes, test: Votes) -> tuple[Column, Column]:
        first, second = (Column(_cube(features(each, Options.of(each))), ridge, least) for each in (train, test))
        return first, second

    return make


def _cube(features: Floats) -> Floats:
    return features[:, :, None] if features.ndim == 2 else features


def unnamed(by: Callable[[Floats], Floats]) -> Callable[[Votes, Options], Floats]:
    """What an option has that no answer names, by the number of labels that were named."""

    def features(_: Votes, options: Options) -> Floats:
        named = options.votes.any(axis=2)
        return ~named * by(np.maximum(named.sum(axis=1), 1.0))[:, None]

    return features


def of_class(of_base: bool) -> Maker:
    """An offset for each frequent class, for the base label alone or for any option."""

    def make(train: LabelledVotes, test: Votes) -> tuple[Column, Column]:
        counts = np.bincount(train.base if of_base else train.truths[train.truths >= 0])
        classes = np.flatnonzero(counts >= FREQUENT)

        def column(votes: Votes) -> Column:
            options = Options.of(votes)
            hit = np.pad(options.labels[:, :, None] == classes, ((0, 0), (0, 1), (0, 0)))
            return Column(hit * (options.votes[:, :, :1] if of_base else 1.0), BY_CLASS, -np.inf)

        return column(train), column(test)

    return make


def confusion(train: LabelledVotes, test: Votes) -> tuple[Column, Column]:
    """log P(class | base label), Σ log P(class | label of a view), log P(class); nothing where classes are many."""
    if train.classes > MOST_CLASSES:
        return tuple(Column(np.zeros((len(each), Options.of(each).size.shape[1], 0))) for each in (train, test))  # type: ignore[return-value]
    classes, truths = train.classes, train.truths
    counts = np.zeros((classes, classes))
    for labels in train.answers().T:
        np.add.at(counts, (labels[labels != MISSING], truths[labels != MISSING]), 1.0)
    right = (np.trace(counts) + 1.0) / (counts.sum() + 2.0)
    prior = np.where(np.eye(classes, dtype=bool), right, (1.0 - right) / (classes - 1))
    of_truth = np.bincount(truths, minlength=classes) + 2.0

    def column(votes: Votes, own: Codes | None) -> Column:
        answers = votes.answers()
        rows = counts[answers]
        frequent = np.tile(of_truth, (len(votes), 1))
        if own is not None:
            same = (answers[:, :, None] == answers[:, None, :]).sum(axis=2)
            np.subtract.at(rows, (*np.indices(answers.shape), own[:, None]), same)
            frequent[np.arange(len(own)), own] -= 1.0
        logs = np.log((rows + PRIOR * prior[answers]) / (rows.sum(axis=2, keepdims=True) + PRIOR))
        logs *= (answers != MISSING)[:, :, None]
        found = np.stack([logs[:, 0], logs[:, 1:].sum(axis=1), np.log(frequent / frequent.sum(axis=1)[:, None])], 2)
        return Column(np.pad(found, ((0, 0), (0, 1), (0, 0))), 1.0, -np.inf)

    return column(train, truths), column(test, None)


def scored(name: str) -> Maker:
    """A column of scores: of the base answer, its hinges, the mean of the views', or the log of the mean of all."""

    def make(train: LabelledVotes, test: Votes) -> tuple[Column, Column]:
        assert train.evidence is not None
        scale = Scale.learn(train.evidence)
        own = scale.log_shares(train.evidence, train.base[:, None], train.classes)[:, 0, 0]
        knots = np.unique(np.quantile(_odds(own), (0.1, 0.3, 0.5, 0.7, 0.9)))

        def column(votes: Votes) -> Column:
            assert votes.evidence is not None
            options = Options.of(votes)
            logs = scale.log_shares(votes.evidence, options.labels, votes.classes)
            match name:
                case "score":
                    return Column(_cube(logs[:, 0]), FLOOR, -np.inf)
                case "bend":
                    base = (logs[:, 0] * options.votes[:, :, 0]).sum(axis=1)
                    hinges = np.maximum(_odds(base)[:, None] - knots, 0.0)
                    return Column(options.votes[:, :, :1] * hinges[:, None, :], 1.0, -np.inf)
                case "views' scores":
                    return Column(_cube(logs[:, 1:].mean(axis=1)), FLOOR, -np.inf)
                case _:
                    return Column(_cube(np.log(np.exp(logs).mean(axis=1))), FLOOR, -np.inf)

        return column(train), column(test)

    return make


def _odds(logs: Floats) -> Floats:
    odds: Floats = logs - np.log1p(-np.minimum(np.exp(logs), 1.0 - 1e-7))
    return odds


COLUMNS: dict[str, Maker] = {
    "votes": plain(lambda _, options: options.votes.sum(axis=2)),
    "base": plain(lambda _, options: options.votes[:, :, 0]),
    "own": plain(lambda _, options: options.votes[:, :, 1:], OWN, -np.inf),
    "γ": plain(lambda _, options: np.log(np.maximum(options.votes.sum(axis=2), 1.0)), SATURATION),
    "b₀": plain(unnamed(np.ones_like), FLOOR, -np.inf),
    "b₁/m": plain(unnamed(lambda m: -1.0 / m)),
    "b₁·log m": plain(unnamed(np.log)),
    "offsets": of_class(of_base=True),
    "classes": of_class(of_base=False),
    "confusion": confusion,
    "score": scored("score"),
    "bend": scored("bend"),
    "views' scores": scored("views' scores"),
    "pool": scored("pool"),
}
AFTER = "co-occurrence"
"""Divides the probability of unnamed classes among them, after the fit."""
LABEL = ("votes", "b₀")
SIMPLE = ("votes", "base", "b₀", "b₁/m")
VOTES = (*SIMPLE, "own", "γ")
STEPS: tuple[tuple[tuple[str, ...], str], ...] = (
    ((), "votes"),
    (("votes",), "b₀"),
    *((LABEL, column) for column in ("b₁/m", "base", "own", "γ", "offsets", "classes", "confusion", AFTER)),
    (SIMPLE, "own"),
    (SIMPLE, "γ"),
    ((*SIMPLE, "γ"), "own"),
    ((*SIMPLE, "own"), "γ"),
    ((*SIMPLE, "own"), "offsets"),
    *((VOTES, column) for column in ("offsets", "classes", "confusion", AFTER)),
    *(((*VOTES, "confusion"), column) for column in ("offsets", "classes", AFTER)),
    (("votes", "base", "b₀", "own", "γ"), "b₁/m"),
    (("votes", "base", "b₀", "own", "γ"), "b₁·log m"),
)
SCORED: tuple[tuple[tuple[str, ...], str], ...] = (
    *((VOTES, column) for column in ("score", "bend", "views' scores", "pool")),
    *(((*VOTES, "score"), column) for column in ("bend", "views' scores", "pool", "confusion", "classes")),
    ((*VOTES, "score", "bend"), "views' scores"),
    ((*VOTES, "score", "bend"), "pool"),
    ((*VOTES, "score", "bend", "pool"), "views' scores"),
)


def fit(features: Floats, size: Floats, truth: Places, ridge: Floats, least: Floats) -> Floats:
    """(p,): the weights of a conditional logit, by projected Newton steps; one pseudo-picture is spread evenly."""
    if not len(ridge):
        return ridge
    rows = np.arange(len(features))
    possible = np.isfinite(size)
    hits = possible / possible.sum(axis=1, keepdims=True) / len(rows)
    hits[rows, truth] += 1.0
    mass, theta = hits.sum(axis=1), np.zeros(len(ridge))
    flat = features.reshape(-1, len(ridge))

    def loss(theta: Floats) -> tuple[float, Floats]:
        scores = features @ theta + size
        top = scores.max(axis=1, keepdims=True)
        powers = np.exp(scores - top)
        total = powers.sum(axis=1, keepdims=True)
        value = mass @ (top + np.log(total))[:, 0] - (hits * np.where(possible, scores, 0.0)).sum()
        return float(value + ridge @ theta**2 / 2), powers / total

    value, chance = loss(theta)
    for _ in range(60):
        weight = (chance * mass[:, None]).ravel()
        gradient = flat.T @ (weight - hits.ravel()) + ridge * theta
        mean = np.matmul(chance[:, None, :], features)[:, 0]
        curvature = (flat * weight[:, None]).T @ flat - (mean * mass[:, None]).T @ mean + np.diag(ridge)
        free = (theta > least + 1e-9) | (gradient < 0.0)
        step = np.zeros(len(theta))
        step[free] = np.linalg.solve(curvature[np.ix_(free, free)], gradient[free])
        if gradient @ step < 1e-8:
            break
        before, size_of_step = value, 1.0
        point = theta
        while size_of_step > 1e-6:
            point = np.maximum(theta - size_of_step * step, least)
            value, chance = loss(point)
            if value <= before:
                break
            size_of_step /= 2
        theta = point
    return theta


def judged(names: Sequence[str], train: LabelledVotes, test: LabelledVotes) -> Distribution:
    """The distributions of a jury with these columns."""
    options, others = Options.of(train), Options.of(test)
    made = [COLUMNS[name](train, test) for name in names if name != AFTER]
    first, second = (
        np.concatenate([pair[part].features for pair in made] or [np.zeros((*each.size.shape, 0))], axis=2)
        for part, each in enumerate((options, others))
    )
    ridge, least = (
        np.concatenate([np.full(pair[0].features.shape[2], getattr(pair[0], field)) for pair in made] or [np.zeros(0)])
        for field in ("ridge", "least")
    )
    named = options.labels == train.truths[:, None]
    truth = np.where(named.any(axis=1), named.argmax(axis=1), options.labels.shape[1])
    theta = fit(first, options.size, truth, ridge, least)
    found = _distribution(second @ theta + others.size, others, test.classes)
    if AFTER not in names:
        return found
    even = _distribution(first @ theta + options.size, options, train.classes)
    together = CoOccurrence.learn(train, train, _named(even, options))
    return together.spread(_named(found, others), len(test.vocabulary)) if together else found


def _distribution(scores: Floats, options: Options, classes: int) -> Distribution:
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return Distribution(options.labels, (powers / powers.sum(axis=1, keepdims=True))[:, :-1], classes)


def _named(found: Distribution, options: Options) -> Distribution:
    """Only the labels that an answer named: the others share the rest."""
    named: Bools = options.votes[:, :-1].max(axis=2) > 0.0
    return Distribution(np.where(named, found.labels, MISSING), np.where(named, found.named, 0.0), found.classes)


def splits(pictures: int) -> Iterator[tuple[Places, Places]]:
    """Places to fit and to test."""
    for seed in range(SPLITS):
        mixed = np.random.default_rng(seed).permutation(pictures)
        yield mixed[:LABELS], mixed[LABELS : LABELS + MOST_TESTED]


def interval(resampled: Counts, gain: Floats) -> tuple[float, float]:
    """95 % of the mean of (splits, pictures), where pictures are resampled; NaN where one was not tested."""
    total, tested = np.nansum(gain, axis=0), np.isfinite(gain).sum(axis=0)
    means = (resampled @ total) / (resampled @ tested)
    return float(np.quantile(means, 0.025)), float(np.quantile(means, 0.975))


def measured(each: Answers) -> Iterator[dict[str, object]]:
    """One line for each step."""
    some = np.arange(min(len(each.votes), PICTURES))
    label = each.votes.label_only().take(some)
    score = (each.votes if each.votes.evidence else each.listing(1)).take(some)
    for answered, votes, steps in (("label", label, STEPS), ("score", score, SCORED)):
        wanted = dict.fromkeys(
            tuple(dict.fromkeys(names)) for before, column in steps for names in (before, (*before, column))
        )
        losses = {names: np.full((2, SPLITS, len(votes)), np.nan) for names in wanted}
        for split, (fit_rows, test_rows) in enumerate(splits(len(votes))):
            train, test = votes.take(fit_rows), votes.take(test_rows)
            for names, found in losses.items():
                distribution = judged(names, train, test)
                found[:, split, test_rows] = distribution.brier(test.truths), distribution.nll(test.truths)
        resampled = np.random.default_rng(0).multinomial(len(votes), np.full(len(votes), 1.0 / len(votes)), RESAMPLES)
        for before, column in steps:
            with_it, without = losses[(*before, column)], losses[before]
            gain = without - with_it
            (low, high), (nll_low, nll_high) = (interval(resampled, gain[kind]) for kind in (0, 1))
            yield {
                "model": each.name,
                "answers": answered,
                "step": f"{' '.join(before)} + {column}",
                "brier": float(np.nanmean(with_it[0])),
                "gain": float(np.nanmean(gain[0])),
                "low": low,
                "high": high,
                "nll": float(np.nanmean(gain[1])),
                "nll_low": nll_low,
                "nll_high": nll_high,
            }


def main(names: list[str], results: Path = RESULTS) -> None:
    """Write the rows of these models, or all; those of others stay."""
    apis = {each.name: each for each in faces()}
    for name in names or [*SOURCES, MAPPED, *apis]:
        rows = [cells(row, ".5f") for row in measured(apis[name] if name in apis else answers(name))]
        merge(results, rows, ("model", "answers", "step"))
        print(*(" ".join(row.values()) for row in rows), sep="\n", flush=True)


if __name__ == "__main__":
    script.run(main, __doc__, {*SOURCES, MAPPED, *(each.name for each in faces())})
