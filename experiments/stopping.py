"""What stopping early does to the Brier score of a fixed panel, over random splits, and what it was expected to do.

python -m experiments stopping     results/stopping.csv, one line for each model and aim, and stopping_frontier.csv

Answers and splits are those of experiments/general.py. As with `fit --adaptive`, sixteen views are at hand and the
first eight of them are the fixed panel; they grew on the other models, by pictures that are not tested. Order, juries,
rule and price are learned on the labelled part of a split. `brier` is the Brier score on the tested part as a share of
that of the eight, `queries` the mean number of queries as a share of nine; `expected` is what `fit` says of itself,
and `inside` how often its 95 % interval and that of the tested part overlap. The aim that a product ships with must
not come from the model it is told of: `left_out` chooses, for each model, the laxest aim that stays within 1.01 on all
the others. *Within the eight* stops within the fixed panel, with the aim that is shipped for that, and *in use* is what
`fit --adaptive` learns: sixteen views at hand if 200 labelled pictures were answered wrongly, within the eight if not.

The frontier shows what no way to set a threshold can better: for several rules, the threshold that asks least on the
*tested* pictures, among those whose mean Brier score stays within 1.01 of the fixed panel's. The rules themselves are
learned on the labelled part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from unittest.mock import patch

import numpy as np
from sklearn.ensemble import HistGradientBoostingRegressor

from experiments.general import Answers, Split, left_out_splits
from experiments.writing import Row, write
from looktwice.calibration import crossfit
from looktwice.calibration.jury import Jury, Prefixes
from looktwice.calibration.votes import Counts, Floats, LabelledVotes
from looktwice.decisions import stopping
from looktwice.decisions.fitting import Collected, learn
from looktwice.decisions.stopping import ALLOWED, AdaptiveRule, Expected, Growth, Thrift
from looktwice.views import Panel

RESULTS = Path(__file__).parent / "results"
SPLITS, FIXED, AT_HAND = 20, 8, 16
AIMS = {f"{aim:g}": aim for aim in (stopping.WITH_MORE, 0.0, 0.005, 0.01)}
WITHIN = {f"within the eight, {stopping.WITHOUT:g}": stopping.WITHOUT}
IN_USE = "in use"
FIGURES = ("brier", "queries", "expected", "low", "high", "inside")


def stopped(split: Split, views: int, aims: dict[str, float]) -> Iterator[tuple[str, tuple[float, ...]]]:
    """The figures of one split for each aim, with so many views at hand."""
    train, test = (split.votes.take(rows).under(range(views)) for rows in (split.fit, split.test))
    fixed = min(FIXED, views)
    ranked = views > fixed and stopping.rankable(train)
    order, trials = stopping.order(Jury(), train, fixed) if ranked else (range(views), stopping.trials(Jury(), train))
    usual = crossfit.joined([(trial.usual.steps[fixed], trial.places) for trial in trials])
    juries = Prefixes().fit(train.under(order)).members()
    taught, tested = (stopping.grow(juries, part.under(order)) for part in (train, test))
    whole = stopping.grow(Prefixes().fit(train.under(range(fixed))).members(), test.under(range(fixed))).steps[-1]
    for name, aim in aims.items():
        with patch.multiple(stopping, WITH_MORE=aim, WITHOUT=aim):
            rule = stopping.rule(taught, Thrift(fixed), stopping.price(trials, Thrift(fixed)))
            expected = Expected.of(stopping.stopped(trials, Thrift(fixed)), usual)
        yield name, figures(Expected.of(tested.stopped(rule), whole), expected)


def in_use(split: Split) -> tuple[float, ...]:
    """The figures of one split for what `fit --adaptive` learns on its labelled part."""
    train, test = (split.votes.take(rows) for rows in (split.fit, split.test))
    fixed = range(min(FIXED, len(split.panel)))
    collected = Collected(train, (), Panel.parse(" ".join(train.panel)), fingerprint="", seed=0)
    adaptive = learn(collected, Jury(), "", fixed=len(fixed)).adaptive
    assert adaptive is not None
    assert adaptive.expected is not None
    order = [train.panel.index(str(view)) for view in adaptive.views()]
    early = stopping.grow(adaptive.restored_calibrator().members(), test.under(order)).stopped(adaptive.rule())
    whole = stopping.grow(Prefixes().fit(train.under(fixed)).members(), test.under(fixed)).steps[-1]
    return figures(Expected.of(early, whole), adaptive.expected)


def figures(seen: Expected, expected: Expected) -> tuple[float, ...]:
    """What was seen on the tested pictures, and what had been expected of them."""
    inside = seen.low <= expected.high and expected.low <= seen.high
    return seen.brier, seen.queries, expected.brier, expected.low, expected.high, inside


def measured(models: Sequence[Answers], each: Answers, splits: int) -> Iterator[Row]:
    """One line for each aim: means over the splits."""
    found: dict[str, list[tuple[float, ...]]] = {}
    for split in left_out_splits(models, each, splits, AT_HAND):
        views = len(split.panel)
        tried = (*stopped(split, views, AIMS), *stopped(split, min(FIXED, views), WITHIN), (IN_USE, in_use(split)))
        for name, row in tried:
            found.setdefault(name, []).append(row)
    for aim, rows in found.items():
        shown = {name: f"{value:.4f}" for name, value in zip(FIGURES, np.mean(rows, axis=0), strict=True)}
        worst = np.percentile([row[0] for row in rows], 97.5)
        yield {"model": each.title, "aim": aim, **shown, "brier_high": f"{worst:.4f}", "splits": str(splits)}


def left_out(rows: Sequence[Row]) -> Iterator[Row]:
    """For each model the row of the laxest aim that stays within 1.01 on all the others; the strictest if none does."""
    for model in dict.fromkeys(row["model"] for row in rows):
        others = {aim: [r for r in rows if r["aim"] == aim and r["model"] != model] for aim in AIMS}
        kept = [aim for aim in AIMS if all(float(row["brier"]) <= 1 + ALLOWED for row in others[aim])]
        chosen = (kept or list(AIMS)[:1])[-1]
        (row,) = [row for row in rows if (row["model"], row["aim"]) == (model, chosen)]
        yield {**row, "aim": f"left out, {chosen}"}


# The frontier --------------------------------------------------------------------------------------------------------

SURE = 1.0 - np.geomspace(0.8, 0.001, 48)
PRICES = np.exp(np.arange(-11.0, -4.0, 0.125))
LEVELS = {
    "bands of confidence": PRICES,
    "confidence": SURE,
    "margin": SURE,
    "expected change": np.exp(np.arange(-9, -1, 0.125)),
}
"""The rules, and the thresholds that are tried: a price of a view, a confidence, a difference, a squared distance."""


@dataclass(frozen=True, eq=False)
class Watched:
    """What juries made of some pictures view by view, and how far the best label was ahead."""

    growth: Growth
    margin: Floats
    """(n, S + 1): the probability of the most probable label less that of the next."""

    @classmethod
    def of(cls, juries: Sequence[Jury], votes: LabelledVotes) -> Watched:
        margins = []
        for views, jury in enumerate(juries):
            named = replace(jury, companions=None).distribution(votes.under(range(views))).named
            best = np.sort(np.column_stack([named, np.zeros(len(named))]), axis=1)
            margins.append(best[:, -1] - best[:, -2])
        return cls(stopping.grow(juries, votes), np.column_stack(margins))

    def after(self, views: int) -> Floats:
        """(n, 2): what a rule may look at after so many views."""
        return np.column_stack([self.growth.steps[views].confidence, self.margin[:, views]])


def expected_change(taught: Watched, tested: Watched) -> Floats:
    """(n, S): how far the probabilities will still move, by gradient boosting on the labelled pictures."""
    model = HistGradientBoostingRegressor(max_iter=40, max_depth=3, learning_rate=0.1)
    places = range(tested.margin.shape[1] - 1)
    fits = (model.fit(taught.after(views), taught.growth.movement[:, views]) for views in places)
    return np.column_stack([fit.predict(tested.after(views)) for views, fit in zip(places, fits, strict=True)])


def stops(taught: Watched, tested: Watched) -> Iterator[tuple[str, list[Counts]]]:
    """After how many views each rule stops, for each of its thresholds."""
    confidence, bands = tested.growth.confidence(), taught.growth.confidence()
    learned = (AdaptiveRule.priced(bands, taught.growth.movement, price, taught.growth.ranks) for price in PRICES)
    yield "bands of confidence", [rule.asked(confidence) for rule in learned]
    enough = {"confidence": confidence, "margin": tested.margin, "expected change": -expected_change(taught, tested)}
    for name, sure in enough.items():
        last, levels = np.ones((len(sure), 1), bool), LEVELS[name] * (-1 if name == "expected change" else 1)
        before = sure[:, : tested.margin.shape[1] - 1]
        yield name, [np.column_stack([before >= level, last]).argmax(axis=1) for level in levels]


def frontier(models: Sequence[Answers], each: Answers, splits: int) -> Iterator[Row]:
    """For each rule and number of views at hand, the least share of queries within 1.01, with hindsight."""
    found: dict[tuple[int, str], list[Floats]] = {}
    for split in left_out_splits(models, each, splits, AT_HAND):
        train, test = split.votes.take(split.fit), split.votes.take(split.test)
        whole = list(range(len(split.panel)))
        fixed = whole[:FIXED]
        for order in (fixed, stopping.worth(train, len(fixed)) if stopping.rankable(train) else whole):
            juries = Prefixes().fit(train.under(order)).members()
            taught, tested = (Watched.of(juries, part.under(order)) for part in (train, test))
            if order is fixed:
                level = tested.growth.steps[-1].brier.mean()
            brier, rows = tested.growth.brier(), np.arange(len(test))
            for name, asked in stops(taught, tested):
                shares = [(brier[rows, at].mean() / level, (1 + at.mean()) / (1 + len(fixed))) for at in asked]
                found.setdefault((len(order), name), []).append(np.array(shares))
    for (views, name), parts in found.items():
        mean = np.mean(parts, axis=0)
        kept = mean[mean[:, 0] <= 1 + ALLOWED]
        least = kept[kept[:, 1].argmin()] if len(kept) else ()
        shown = dict(zip_longest(("brier", "queries"), (f"{share:.4f}" for share in least), fillvalue=""))
        yield {"model": each.title, "views": str(views), "rule": name, **shown, "splits": str(splits)}


def rows(models: Sequence[Answers], splits: int) -> Iterator[Row]:
    """The lines of every model, and those of the aims that the others choose."""
    found = []
    for each in models:
        for row in measured(models, each, splits):
            found.append(row)
            yield row
    yield from left_out(found)


def main(models: Sequence[Answers], results: Path = RESULTS, splits: int = SPLITS) -> None:
    """Measure every model, and write results/stopping.csv and stopping_frontier.csv."""
    write(results / "stopping.csv", rows(models, splits))
    write(results / "stopping_frontier.csv", (row for each in models for row in frontier(models, each, splits)))
