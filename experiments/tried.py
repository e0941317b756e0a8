"""What was tried to better the jury and its views, and what it changed, over the splits of experiments/general.py.

python -m experiments.tried            results/tried.csv, a line for each model, trial and setting
python -m experiments.tried columns    results/tried_columns.csv, more columns of the jury, under the general panel
python -m experiments.tried votes      results/tried_votes.csv, the jury with and without the log of the number of votes
python -m experiments.tried page       the tables of docs/method.md, from these CSVs
python -m experiments.tried quick DIR  all of it, small, on the embedded clothes

Weights and offsets are tried with the panel that grew on the other models, on 1,000 labelled pictures (1,250
photos). Choosing and the ladder grow their panels on these. Settings were taken from ResNet-8, ResNet-20 and
MobileNetV2; on the other three models they are only reported.

The columns need eight views of each picture alone, and are tried on as many pictures as are kept. The general panel has
grown on these models, which does not favour one column over another. What a column counts, it counts over the labelled
pictures, and about each of these over the others.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import softmax

from experiments import script
from experiments.evaluation import Figures, jury_figures
from experiments.general import OLD, RESULTS, Answers, Split, left_out_splits, records, small
from experiments.writing import Row, fill, markdown, read, write
from looktwice.calibration import crossfit, logit, metrics, panels
from looktwice.calibration.distribution import Companions, Distribution
from looktwice.calibration.jury import Jury
from looktwice.calibration.logit import Offsets, Patterns
from looktwice.calibration.votes import MISSING, Codes, Floats, LabelledVotes
from looktwice.views import GENERAL

SPLITS, COLUMN_SPLITS, VOTE_SPLITS = 6, 10, 10
FIGURES = ("brier", "nll", "ece", "base_auroc")
SHRINKAGES = (1000.0, 100.0, 30.0, 10.0, 3.0)
STRENGTHS = (100.0, 30.0, 10.0)
BEGUN = (4, 6, 8)
"""Views of the panel that grew on the other models, after which the others are chosen."""
BRANCH = 2
"""Views after which a ladder parts unanimous pictures from the others."""
BAGS = 10
"""Bootstrap samples of the labelled pictures whose juries are averaged."""
RIDGE = logit.SATURATION
"""How strongly the weight of a further column is drawn to zero."""
PAIRS, PICTURES = 30.0, 3.0
"""What an average label counts beside those seen: in pairs of answers, and in pictures."""
PAGE = Path(__file__).parents[1] / "docs" / "method.md"
Fold = tuple[NDArray[np.bool_], Floats]
"""The pictures of a fold, and the parameters that the others teach."""
Trial = Iterator[tuple[str, str, Figures]]


def fitted(train: LabelledVotes, shrinkage: float, offsets: Offsets = Offsets()) -> Jury:  # noqa: B008  # it is frozen
    """The jury with given shrinkage and offsets."""
    patterns = logit.tabulate(train, offsets)
    return Jury(shrinkage=shrinkage)._with_parameters(patterns, logit.descend(patterns, shrinkage), offsets)


def weights(_: Answers, split: Split) -> Trial:
    """How strongly the views' weights are drawn together, with all labels and with 100."""
    train, tested = split.votes.take(split.fit), split.votes.take(split.test)
    for labels in (100, len(train)):
        for shrinkage in SHRINKAGES:
            calibrator = fitted(train.take(np.arange(labels)), shrinkage)
            yield (
                f"shrinkage, {'100' if labels == 100 else 'all'} labels",
                f"{shrinkage:g}",
                jury_figures(calibrator, tested),
            )


def offsets(_: Answers, split: Split) -> Trial:
    """Offsets for the class of the base label, drawn to zero more or less."""
    train, tested = split.votes.take(split.fit), split.votes.take(split.test)
    yield "offsets", "none", jury_figures(fitted(train, logit.SHRINKAGE), tested)
    for strength in STRENGTHS:
        classes = Offsets(logit.frequent_classes(train), strength)
        yield "offsets", f"{strength:g}", jury_figures(fitted(train, logit.SHRINKAGE, classes), tested)
    yield "offsets", "as shipped", jury_figures(Jury().fit(train), tested)


def tempering(each: Answers, split: Split) -> Trial:
    """All parameters times one figure that suits held-out folds best, with the panel grown on others and one chosen."""
    train, tested = each.votes.take(split.fit), each.votes.take(split.test)
    for name, panel in {"grown": split.panel, "chosen": panels.grow(train, 8)}.items():
        patterns = logit.tabulate(train.under(panel))
        theta = logit.descend(patterns, logit.SHRINKAGE)
        folds = list(logit.held_out_fits(patterns, logit.folds(len(train)), logit.SHRINKAGE, theta))

        def held(share: float, patterns: Patterns = patterns, folds: list[Fold] = folds) -> float:
            return sum(float(logit.losses(patterns, share * fold)[rows].sum()) for rows, fold in folds)

        for setting, share in {"as fitted": 1.0, "by folds": minimize_scalar(held, bounds=(0.3, 1.5)).x}.items():
            calibrator = Jury()._with_parameters(patterns, share * theta, Offsets())
            yield f"temperature, {name} panel", setting, jury_figures(calibrator, tested.under(panel))


def choosing(each: Answers, split: Split) -> Trial:
    """Eight views chosen on the labelled pictures by either loss, in sample or on held-out folds."""
    train = each.votes.take(split.fit)
    found = {name: panels.grow(train, 8, loss) for name, loss in panels.LOSSES.items()}
    for name, panel in found.items():
        yield "chosen by", name, jury_figures(Jury().fit(train.under(panel)), each.votes.under(panel).take(split.test))
    mild = each.votes.under(OLD)
    yield "chosen by", "nobody: the mild panel", jury_figures(Jury().fit(mild.take(split.fit)), mild.take(split.test))
    for begun in BEGUN:
        panel = extended(train, split.panel[:begun], 8)
        tested = each.votes.under(panel).take(split.test)
        yield "chosen by", f"log-loss, after {begun} general ones", jury_figures(Jury().fit(train.under(panel)), tested)
    yield from ladder(each, split, found["log-loss"])


def extended(votes: LabelledVotes, begun: Sequence[int], size: int) -> list[int]:
    """A panel that goes on from some views by what each further one adds on these pictures."""
    panel = list(begun)
    while len(panel) < size:
        left = [column for column in range(len(votes.panel)) if column not in panel]
        panel.append(min(left, key=lambda column: panels.lost(votes.under([*panel, column]))))
    return panel


def ladder(each: Answers, split: Split, panel: Sequence[int]) -> Trial:
    """After two views, unanimous pictures are asked under views chosen on such, and so are the others; 1+4 and 1+8."""
    train, tested = each.votes.take(split.fit), each.votes.take(split.test)
    for size in (4, 8):
        parts = []
        for unanimous in (True, False):
            rows, test = (np.flatnonzero(_agreed(votes, panel) == unanimous) for votes in (train, tested))
            part = train.take(rows)
            branch = extended(part, panel[:BRANCH], size)
            parts.append(crossfit.outcome(Jury().fit(part.under(branch)), tested.take(test).under(branch)))
        brier, nll = (
            float(np.concatenate([getattr(part, name) for part in parts]).mean()) for name in ("brier", "nll")
        )
        fixed = list(panel[:size])
        yield f"order, 1+{size}", "fixed", jury_figures(Jury().fit(train.under(fixed)), tested.under(fixed))
        yield f"order, 1+{size}", "ladder", {"brier": brier, "nll": nll}


def _agreed(votes: LabelledVotes, panel: Sequence[int]) -> Floats:
    return (votes.views[:, list(panel[:BRANCH])] == votes.base[:, None]).all(axis=1)


# Columns ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Said:
    """The labels that were named about n pictures, and how often they were named about others."""

    votes: LabelledVotes
    others: LabelledVotes
    """What is counted; if it is `votes` itself, a picture does not count for itself."""

    @cached_property
    def labels(self) -> Codes:
        """(n, S + 1): each named label where it was said first, otherwise MISSING."""
        codes = self.votes.answers()
        return np.where(logit.first_named(codes) == np.arange(codes.shape[1]), codes, np.int32(MISSING))

    @cached_property
    def count(self) -> Floats:
        """(n, S + 1): how many of base and views said each."""
        return (self.labels[:, :, None] == self.votes.answers()[:, None, :]).sum(axis=2).astype(np.float64)

    @cached_property
    def own(self) -> Floats:
        """(n, S + 1): what of each count is the picture's own."""
        return self.count if self.others is self.votes else np.zeros(self.count.shape)

    @cached_property
    def times(self) -> Floats:
        """(N, K): how often each label was said about each of the others."""
        return sum(np.eye(self.votes.classes)[column] for column in self.others.answers().T)

    def log_count(self) -> Floats:
        return np.log(np.maximum(self.count, 1.0))

    def twice(self) -> Floats:
        return (self.count >= 2).astype(np.float64)

    def plurality(self) -> Floats:
        first = self.count == self.count.max(axis=1, keepdims=True)
        return first / first.sum(axis=1, keepdims=True)

    def attraction(self) -> Floats:
        """Σ_s [v_s = c]·log of how often view s says c about others, relative to the mean label."""
        total, mean = np.zeros(self.count.shape), len(self.others) / self.votes.classes
        for said, other in zip(self.votes.answers().T, self.others.answers().T, strict=True):
            hit = self.labels == said[:, None]
            times = np.bincount(other, minlength=self.votes.classes)[self.labels] - (hit & (self.own > 0))
            total += hit * np.log((times + 1.0) / (mean + 1.0))
        return total

    def confusion(self) -> Floats:
        """Log of how often a rival and the base label are said about the same picture, relative to the mean label."""
        pairs, base, rival = self.times.T @ self.times, self.labels[:, :1], self.labels != self.labels[:, :1]
        together = np.where(rival, pairs[base, self.labels] - self.own[:, :1] * self.own, 0.0)
        of_base = pairs.sum(axis=1)[base] - self.own[:, :1] * self.count.sum(axis=1, keepdims=True)
        return np.log1p(self.votes.classes * together / (of_base + PAIRS))

    def reliability(self) -> Floats:
        """Log of how often a label is the base label of the pictures about which anybody says it, relative to all."""
        base = np.bincount(self.others.base, minlength=self.votes.classes).astype(np.float64)
        said = (self.times > 0).sum(axis=0).astype(np.float64)
        mean, own = base.sum() / said.sum(), self.own > 0
        of_base = base[self.labels] - (own & (self.labels == self.labels[:, :1]))
        return np.log((of_base + PICTURES * mean) / (said[self.labels] - own + PICTURES) / mean)


Column = Callable[[Said], Floats]
SHIPPED, PLAIN, TOGETHER = "as shipped", "without the log of the count", "said twice, confusions and reliability"
COLUMNS: dict[str, tuple[Column, ...]] = {
    "said at least twice": (Said.twice,),
    "plurality": (Said.plurality,),
    "attractors": (Said.attraction,),
    "confusions with the base label": (Said.confusion,),
    "reliability of the label": (Said.reliability,),
    TOGETHER: (Said.twice, Said.confusion, Said.reliability),
}


@dataclass(frozen=True, eq=False)
class Options:
    """The options of n pictures, the last of which is the unnamed class, as in looktwice.calibration.scored."""

    labels: Codes
    features: Floats
    left: Floats

    @classmethod
    def of(cls, said: Said, columns: Sequence[Column], offsets: Offsets) -> Options:
        named, codes = said.labels != MISSING, said.votes.answers()
        votes = (said.labels[:, :, None] == codes[:, None, :]).astype(np.float64)
        more = np.stack([*(column(said) for column in columns), np.zeros(named.shape)], axis=2)[:, :, :-1]
        base = np.arange(named.shape[1]) == 0
        classes = (offsets.of(said.votes.base)[:, None] == np.arange(len(offsets.classes)))[:, None] * base[:, None]
        features = np.concatenate([votes, more * named[:, :, None], classes, np.zeros((*named.shape, 2))], axis=2)
        unnamed, count = np.zeros((len(named), 1, features.shape[2])), named.sum(axis=1)
        unnamed[:, 0, -2], unnamed[:, 0, -1] = 1.0, -1.0 / count
        left = np.log(np.maximum(said.votes.classes - count, 1) / (said.votes.classes - 1))
        return cls(
            said.labels,
            np.concatenate([features, unnamed], axis=1),
            np.column_stack([np.where(named, 0.0, -np.inf), np.where(count < said.votes.classes, left, -np.inf)]),
        )

    def table(self, labelled: LabelledVotes, ridge: tuple[float, ...]) -> Patterns:
        """The patterns that a fit works on, one a picture; a column more than `ridge` has penalties is that of γ."""
        possible = np.isfinite(self.left)
        column = logit.truth_columns(self.labels, labelled.truths)
        owner, place = np.nonzero(possible)[0], np.cumsum(possible.ravel()).reshape(possible.shape) - 1
        others = np.where(column < self.labels.shape[1], 1, labelled.classes - (self.labels != MISSING).sum(axis=1))
        limits = (-np.inf, float(np.log(labelled.classes - 1))), (0.0, np.inf)
        table = Patterns(
            self.features[possible],
            self.left[possible],
            np.searchsorted(owner, np.arange(len(labelled))),
            owner,
            column,
            np.log(np.maximum(others, 1)),
            len(labelled.panel),
            ridge,
            limits,
        )
        return logit.resolve_truths(table, labelled, self.labels, possible, place)

    def take(self, rows: NDArray[np.intp]) -> Options:
        return Options(self.labels[rows], self.features[rows], self.left[rows])

    def chances(self, theta: Floats) -> Floats:
        """(n, S + 1): the probability of each named label."""
        return softmax(self.features @ theta + self.left, axis=1)[:, :-1]


def columns(_: Answers, split: Split) -> Trial:
    """The jury with further columns, each with one weight, and the mean of juries of bootstrap samples."""
    train, tested = split.votes.take(split.fit), split.votes.take(split.test)
    offsets = logit.choose_offsets(train, logit.tabulate(train), logit.SHRINKAGE)
    held: dict[str, Floats] = {}
    found: dict[str, Figures] = {}
    for name, added in {SHIPPED: (), PLAIN: (), **COLUMNS}.items():
        tried = added if name == PLAIN else (Said.log_count, *added)
        known, new = (Options.of(Said(votes, train), tried, offsets) for votes in (train, tested))
        table = known.table(train, (RIDGE,) * len(added) + offsets.ridge())
        thetas = [logit.descend(table, logit.SHRINKAGE)]
        found[name] = spread_figures(train, tested, known, new, thetas)
        if name in (SHIPPED, TOGETHER):
            held[name] = held_out(table, train.classes, thetas[0])
        if name == SHIPPED:
            rng, fit = np.random.default_rng(0), np.arange(len(train))
            bags = [rng.choice(fit, len(fit)) for _ in range(BAGS)]
            tables = [known.take(bag).table(train.take(bag), table.ridge) for bag in bags]
            thetas = [logit.descend(bag, logit.SHRINKAGE, start=thetas[0]) for bag in tables]
            found["mean of ten bootstrap juries"] = spread_figures(train, tested, known, new, thetas)
    gain = held[SHIPPED] - held[TOGETHER]
    pays = logit.pays(gain[0]) and gain[1].mean() >= 0
    found[f"{TOGETHER}, where they pay on held-out folds"] = found[TOGETHER if pays else SHIPPED]
    yield from (("columns", name, figures) for name, figures in found.items())


def held_out(table: Patterns, classes: int, start: Floats) -> Floats:
    """(2, n): the log loss and the Brier score of each picture by a jury fitted on the other folds."""
    held = np.zeros((2, len(table.truth)))
    for rows, theta in logit.held_out_fits(table, logit.folds(len(table.truth)), logit.SHRINKAGE, start):
        held[:, rows] = logit.losses(table, theta)[rows], logit.briers(table, theta, classes)[rows]
    return held


def spread_figures(
    train: LabelledVotes, tested: LabelledVotes, known: Options, new: Options, thetas: list[Floats]
) -> Figures:
    """The figures of the mean over some parameters, with the unnamed class spread as in the product."""
    labelled, named = (
        Distribution(part.labels, np.mean([part.chances(theta) for theta in thetas], axis=0), train.classes)
        for part in (known, new)
    )
    companions = Companions.learn(train, train, labelled)
    spread = companions.spread(named, len(tested.vocabulary)) if companions else named
    confidence = named.named.max(axis=1)
    return {
        "brier": float(spread.brier(tested.truths).mean()),
        "nll": float(spread.nll(tested.truths).mean()),
        "ece": metrics.ece(confidence, named.top() == tested.truths),
        "base_auroc": metrics.auroc(named.named[:, 0], tested.base == tested.truths) or 0.5,
    }


def drawn(each: Answers, seed: int, numbers: Callable[[np.random.Generator, int], NDArray[np.int64]]) -> Answers:
    """The same with so many pictures of each class, or as many as there are."""
    rng, truths = np.random.default_rng(seed), each.votes.truths
    mixed = rng.permutation(len(truths))
    mixed = mixed[np.argsort(truths[mixed], kind="stable")]
    place = np.arange(len(mixed)) - np.searchsorted(truths[mixed], truths[mixed])
    rows = np.sort(mixed[place < numbers(rng, each.votes.classes)[truths[mixed]]])
    return replace(each, votes=each.votes.take(rows), logs=each.logs[rows], block=each.block[rows])


NUMBERS = {
    "one of each class": lambda _, classes: np.ones(classes, np.int64),
    "a random draw": lambda rng, classes: rng.poisson(1.0, classes),
}
"""How many photos of each class there may be. All hold two or three, so that a label that others have is used up."""


def generally(models: Sequence[Answers], splits: int) -> Iterator[Row]:
    """One line for each model and column: the paired differences to the jury as shipped, on halves of its pictures."""
    for each in models:
        yield from _differences(each.title, [each] * splits)
    photos = [each for each in models if each.data == "photos"]
    for (name, numbers), each in product(NUMBERS.items(), photos):
        yield from _differences(f"{each.title}, {name}", [drawn(each, seed, numbers) for seed in range(splits)])


def _differences(title: str, samples: Sequence[Answers]) -> Iterator[Row]:
    found: dict[str, list[Figures]] = {}
    for seed, each in enumerate(samples):
        split = Split(each.votes, *each.split(seed), list(range(len(each.votes.panel))), 0)
        for _, setting, figures in columns(each, split):
            found.setdefault(setting, []).append(figures)
    usual = found[SHIPPED]
    for setting, of_splits in found.items():
        gaps = {key: np.array([figures[key] for figures in of_splits]) for key in usual[0]}
        if setting != SHIPPED:
            gaps = {key: gap - [figures[key] for figures in usual] for key, gap in gaps.items()}
        yield {
            "model": title,
            "column": setting,
            **{key: f"{gap.mean():.4f}" for key, gap in gaps.items()},
            "splits_better": "" if setting == SHIPPED else str(int((gaps["brier"] < 0).sum())),
            "splits": str(len(samples)),
            "pictures": f"{np.mean([len(each.votes) for each in samples]):.0f}",
        }


def without_log_votes(train: LabelledVotes) -> Jury:
    """The jury whose votes for a label add up, however many they are: γ is 0."""
    offsets = logit.choose_offsets(train, logit.tabulate(train), logit.SHRINKAGE)
    patterns, place = logit.tabulate(train, offsets), 1 + len(train.panel)
    others = [column for column in range(patterns.options.shape[1]) if column != place]
    plain = patterns.under(others, patterns.ridge)
    theta = np.insert(logit.descend(plain, logit.SHRINKAGE), place, 0.0)
    return Jury()._with_parameters(patterns, theta, offsets).with_companions(train, train)


def log_votes(models: Sequence[Answers], splits: int) -> Iterator[Row]:
    """One line for each model and panel: the jury with the log of the number of votes, and the change by it.

    Panels are those grown on the other models, and for photos those chosen on the labelled part, too.
    """
    for each in models:
        found: dict[tuple[str, int], list[tuple[Figures, Figures]]] = {}
        for split in left_out_splits(models, each, splits, 16):
            tried = {"grown on the others": split.panel}
            if each.data == "photos":
                tried["chosen"] = panels.grow(each.votes.take(split.fit), 16)
            for (name, panel), size in product(tried.items(), (8, 16)):
                votes = each.votes.under(panel[:size])
                train, tested = votes.take(split.fit), votes.take(split.test)
                juries = without_log_votes(train), Jury().fit(train)
                plain, shipped = (jury_figures(jury, tested) for jury in juries)
                found.setdefault((name, size), []).append((plain, shipped))
        for (name, size), pairs in found.items():
            change = np.array([shipped["brier"] - plain["brier"] for plain, shipped in pairs])
            yield {
                "model": each.title,
                "panel": f"{name}, 1+{size}",
                "brier": f"{np.mean([shipped['brier'] for _, shipped in pairs]):.4f}",
                "change": f"{change.mean():+.4f}",
                "splits_better": str(int((change < 0).sum())),
                "ece_without": f"{np.mean([plain['ece'] for plain, _ in pairs]):.4f}",
                "ece": f"{np.mean([shipped['ece'] for _, shipped in pairs]):.4f}",
                "splits": str(len(pairs)),
            }


def page(results: Path = RESULTS, path: Path = PAGE) -> None:
    """The tables of docs/method.md, between their marks: the change of the Brier score, a line for each model."""
    if (results / "tried_votes.csv").exists():
        heading = ["", "panel", "Brier score", "change", "splits better", "ECE without", "ECE", "splits"]
        fill(path, "votes", markdown(heading, [list(row.values()) for row in read(results / "tried_votes.csv")]))
    rows = read(results / "tried_columns.csv")
    names, lines = list(dict.fromkeys(row["column"] for row in rows)), []
    for model in dict.fromkeys(row["model"] for row in rows):
        shipped, *tried = (row for row in rows if row["model"] == model)
        gaps = [f"{float(row['brier']):+.4f} ({row['splits_better']})" for row in tried]
        cells = [shipped["brier"].lstrip("0"), *(gap.replace("0.", ".").replace("-", "−") for gap in gaps)]
        lines.append([model, shipped["pictures"], *cells])
    fill(path, "columns", markdown(["", "pictures", "Brier score as shipped", *names[1:]], lines))


TRIALS = (weights, offsets, tempering, choosing)


def measured(models: Sequence[Answers], splits: int) -> Iterator[Row]:
    """One line for each model, trial and setting: the means over the splits."""
    for each in models:
        found: dict[tuple[str, str], list[Figures]] = {}
        for split in left_out_splits(models, each, splits):
            for trial in TRIALS:
                for what, setting, figures in trial(each, split):
                    found.setdefault((what, setting), []).append(figures)
        for (what, setting), of_splits in found.items():
            mean = {key: np.mean([figures.get(key, np.nan) for figures in of_splits]) for key in FIGURES}
            shown = {key: "" if np.isnan(value) else f"{value:.4f}" for key, value in mean.items()}
            yield {"model": each.title, "tried": what, "setting": setting, **shown, "splits": str(len(of_splits))}


def main(words: Sequence[str]) -> None:
    match words:
        case ["quick", folder]:
            models = small(Path(folder), 240)
            write(Path(folder) / "tried.csv", measured(models, splits=1))
            write(Path(folder) / "tried_columns.csv", generally(models, splits=1))
            write(Path(folder) / "tried_votes.csv", log_votes(models, splits=1))
        case ["columns"]:
            heard = [replace(record, views=GENERAL).load() for record in records()]
            write(RESULTS / "tried_columns.csv", generally(heard, COLUMN_SPLITS))
        case ["votes"]:
            write(RESULTS / "tried_votes.csv", log_votes([each.load() for each in records()], VOTE_SPLITS))
        case ["page"]:
            page()
        case []:
            write(RESULTS / "tried.csv", measured([each.load() for each in records()], SPLITS))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    script.run(main, __doc__, sys.argv[1:])
