"""How the jury fares beside the paper's method and the model's own softmax, over 20 random splits.

python experiments/jury.py [MODEL …]      results/jury.csv, one line for each model, method and number of queries
python experiments/jury.py paper [MODEL …]  results/jury_paper.csv, the same for the paper's method
python experiments/jury.py early [MODEL …]  results/jury_early.csv, the same for stopping early
python experiments/jury.py guarantees       results/jury_guarantees.csv, thresholds and sets over 200 random splits
python experiments/jury.py figures        the figures and tables of docs/method.md, from the CSVs

A number among the words is that of the splits. Votes come from experiments/collected.py, which asks for those that are
missing. Lines of other models stay in the CSV. Each figure is the mean over the splits, with the 2.5 and 97.5
percentiles of the splits. Set OPENBLAS_NUM_THREADS=1: the matrices are small, and threads only wait for each other.
"""

from __future__ import annotations

import csv
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import repeat
from pathlib import Path

import numpy as np
from collected import MILD, MILD16, MODELS, Model, logits, there, votes
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from looktwice.calibration import crossfit, metrics, panels
from looktwice.calibration.base import Calibrator
from looktwice.calibration.crossfit import Outcome
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.jury import Jury, Prefixes
from looktwice.calibration.panels import Plan
from looktwice.calibration.paper import Gaussian, Naive
from looktwice.calibration.shares import Constant, Probit
from looktwice.calibration.votes import Codes, Floats, LabelledVotes
from looktwice.plots.figures import Line, lines_svg, reliability_svg, risk_coverage_svg
from looktwice.verdicts import stopping
from looktwice.verdicts.conformal import draws
from looktwice.verdicts.profile import HeldOut
from looktwice.verdicts.stopping import Thrift
from looktwice.views import CANDIDATES, Panel, View

RESULTS = Path(__file__).parent / "results"
FIGURES = Path(__file__).parents[1] / "docs" / "figures"
SPLITS = next((int(word) for word in sys.argv[1:] if word.isdecimal()), 0) or (200 if "guarantees" in sys.argv else 20)
SIZES = (1, 2, 4, 8, 16)
METRICS = ("accuracy", "ece", "auroc", "aurc", "brier_even", "brier", "nll", "base_auroc")
Rows = NDArray[np.intp]

SETTINGS = {
    "small": {
        "gaussian": "gaussian:0.01 gaussian:0.05 gaussian:0.1",
        "elastic": "elastic:10,2 elastic:20,5 elastic:50,5 elastic:70,10",
        "rotation": "rotation:10 rotation:20 rotation:30",
        "affine": "affine:0,0.1,0.1 affine:10,0,0.1 affine:10,0.1,0 affine:10,0.1,0.1",
    },
    "photos": {
        "gaussian": "gaussian:0.05 gaussian:0.1",
        "elastic": "elastic:20,5 elastic:50,5",
        "rotation": "rotation:10 rotation:20",
        "affine": "affine:10,0.1,0 affine:10,0.1,0.1",
    },
}
"""Settings of the paper's grids that the pilot pictures choose from: its milder part, where the best ones lie."""


KIN = {"resnet32": "resnet20"}
"""Models whose settings are those of another, which is like them: the search would cost more than the test."""


@dataclass(frozen=True)
class Score:
    """One method at one number of queries on one split."""

    method: str
    queries: float
    tested: int
    values: dict[str, float]


def measured(method: str, outcome: Outcome, base: tuple[Floats, NDArray[np.bool_]] | None, classes: int) -> Score:
    """The figures of an outcome; `base` is what is believed of the base answer, where that is something else."""
    scores = outcome.scores()
    even = metrics.brier_even(outcome.confidence, outcome.correct, classes)
    about_base = base or (outcome.confidence, outcome.correct)
    return Score(
        method,
        outcome.queries,
        len(outcome.label),
        {
            "accuracy": scores.accuracy,
            "ece": scores.ece,
            "auroc": scores.auroc or 0.5,
            "aurc": scores.aurc,
            "brier_even": even,
            "brier": scores.brier,
            "nll": scores.nll,
            "base_auroc": metrics.auroc(*about_base) or 0.5,
        },
    )


@dataclass(frozen=True, eq=False)
class Split:
    """One random split of a model's pictures."""

    model: Model
    fit: Rows
    test: Rows

    def believed(self, method: str, calibrator: Calibrator, said: LabelledVotes) -> Score:
        """How a calibrator, fitted on one part, fares on the other."""
        fitted, heard = calibrator.fit(said.take(self.fit)), said.take(self.test)
        outcome = crossfit.outcome(fitted, heard)
        base = None
        if isinstance(fitted, Jury):
            own = replace(fitted, ballot="base")
            base = own.confidence(heard), heard.base == heard.truths
        return measured(method, outcome, base, said.classes)

    def unseen(self, said: LabelledVotes) -> Iterator[Score]:
        """The jury on those tested photos that had no part in choosing the mild panel, as some had."""
        rest = np.setdiff1d(self.test, self.model.order()[: self.model.pilot])
        if len(rest) < len(self.test):
            yield replace(self, test=rest).believed("jury, photos new to its panel", Jury(), said)

    def adaptive(self, said: LabelledVotes, fixed: int) -> Score:
        """Early stopping that aims at the Brier score of the first views; all is learned on the fitting part."""
        train, aim = said.take(self.fit), Thrift(fixed)
        columns, trials = stopping.order(Jury(), train, fixed)
        price = stopping.price(trials, aim)
        juries = Prefixes().fit(train.under(columns)).seated()
        rule = stopping.rule(stopping.grow(juries, train.under(columns)), aim, price)
        heard = said.under(columns).take(self.test)
        tested = stopping.grow(juries, heard)
        asked = rule.asked(tested.confidence())
        own = [replace(j, ballot="base").confidence(heard.under(range(s))) for s, j in enumerate(juries)]
        base = np.column_stack(own)[np.arange(len(asked)), asked], heard.base == heard.truths
        return measured("jury, stopping early", tested.stopped(rule), base, said.classes)

    def ordered(self, said: LabelledVotes) -> list[int]:
        """The eight views that tell most, in the order of their worth on the fitting part."""
        return panels.grow(said.take(self.fit), len(MILD))

    def white_box(self, output: Floats) -> Iterator[Score]:
        """The model's own softmax, raw and with the temperature that suits the fitting part best."""
        truths = self.model.truths()
        best = self._temperature(output, truths[self.fit])
        for method, temperature in (("softmax", 1.0), ("softmax, temperature", best)):
            probability = np.exp(log_softmax(output[self.test] / temperature, axis=1))
            yield measured(method, _dense(method, probability, truths[self.test]), None, probability.shape[1])

    def _temperature(self, output: Floats, truth: Codes) -> float:
        def loss(log_t: float) -> float:
            logs = log_softmax(output[self.fit] / np.exp(log_t), axis=1)
            return -float(logs[np.arange(len(truth)), truth].mean())

        return float(np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x))


def _dense(name: str, probability: Floats, truth: Codes) -> Outcome:
    """A full table of probabilities as an outcome."""
    labels = np.broadcast_to(np.arange(probability.shape[1], dtype=np.int32), probability.shape)
    distribution = Distribution(labels, probability, probability.shape[1])
    label = probability.argmax(axis=1).astype(np.int32)
    return Outcome.of(name, 1, label, probability.max(axis=1), distribution, truth)


def splits(model: Model, count: int = SPLITS, part: str = "all") -> list[Split]:
    if part == "all":
        return [Split(model, *model.split(seed)) for seed in range(count)]
    return [Split(model, *_halves(model, seed)) for seed in range(count)]


def drawn(model: Model) -> Iterator[Split]:
    """Splits for guarantees, which are about labelled pictures that chance gave: all drawn, none a pilot one."""
    rest = model.order()[model.pilot :]
    fit = min(model.fit, 2 * len(rest) // 3)
    for seed in range(SPLITS):
        mixed = np.random.default_rng(seed).permutation(rest)
        yield Split(model, mixed[:fit], mixed[fit:])


def _halves(model: Model, seed: int) -> tuple[Rows, Rows]:
    """Places among some pictures, the pilot ones first, of which one half fits and the other is tested."""
    rest = model.pilot + np.random.default_rng(seed).permutation(2 * model.fit - model.pilot)
    more = model.fit - model.pilot
    return np.concatenate([np.arange(model.pilot), rest[:more]]), rest[more:]


@cache
def paper_panels(model: Model) -> dict[str, Panel]:
    """For each of the paper's transforms its best setting on pilot pictures by the Brier score, the best one first.

    Settings are compared with half of the draws. About small pictures all transforms have all of them, about photos
    the two best.
    """
    if model.name in KIN:
        return paper_panels(MODELS[KIN[model.name]])
    small = len(model.labels) <= 10
    part, half = "pilot" if small else "few", model.draws // 2

    def brier(view: View) -> float:
        return float(crossfit.cross_fit(Gaussian(), votes(model, Panel((view,) * half), part)).brier.mean())

    losses = {
        family: {view: brier(view) for view in Panel.parse(views)}
        for family, views in SETTINGS["small" if small else "photos"].items()
    }
    best = {family: min(found, key=lambda view: found[view]) for family, found in losses.items()}
    ranked = sorted(best, key=lambda family: losses[family][best[family]])
    draws = {family: model.draws if small or family in ranked[:2] else half for family in ranked}
    return {family: Panel((best[family],) * draws[family]) for family in ranked}


def picked(model: Model) -> Iterator[LabelledVotes]:
    """For each split the answers under the views that are chosen for it: on its own photos, or once on pilot ones."""
    if model.photos:
        said = votes(model, Panel(CANDIDATES))
        for split in splits(model):
            yield votes(model, tuned(model, said.take(split.fit[: model.pilot])))
    elif there(model, Panel(CANDIDATES), "pilot"):
        yield from repeat(votes(model, tuned(model, votes(model, Panel(CANDIDATES), "pilot"))), SPLITS)
    else:
        yield from repeat(votes(model, Panel(())), SPLITS)


def tuned(model: Model, said: LabelledVotes) -> Panel:
    """What `tune` chooses by answers about pilot pictures: what it grows from them, unless that is clearly worse."""
    plan = panels.plan(2 * model.pilot, len(CANDIDATES), len(MILD))
    columns = climbed(said, plan)
    heard = said.under(columns)
    general = [columns.index(list(CANDIDATES).index(view)) for view in MILD]
    gain = panels.gain(heard, general, plan.longest)
    grown = Panel(tuple(CANDIDATES[columns[c]] for c in panels.grow(heard, plan.longest)))
    print(
        f"{model.name}: what grows on the pilot pictures gains {gain.mean:+.4f} ± {gain.error:.4f}: {grown}", flush=True
    )
    return grown if gain.convincing() else MILD


def climbed(said: LabelledVotes, plan: Plan) -> list[int]:
    """The candidates of the last rung, each rung deciding by the pictures that were asked about up to it."""
    columns, seen = list(range(len(said.panel))), 0
    keep = [list(CANDIDATES).index(view) for view in MILD]
    for rung, following in zip(plan.rungs, plan.rungs[1:], strict=False):
        seen += rung.pictures
        heard = said.take(slice(seen)).under(columns)
        kept = panels.survivors(heard, [columns.index(k) for k in keep], following.views)
        columns = [columns[k] for k in kept]
    return columns


Found = dict[tuple[str, int], list[Score]]


def rounds(models: list[Model], work: Callable[[Model], Iterator[list[Score]]], path: Path) -> None:
    """Every method on each split; the table is written anew after each, with the means up to there."""
    running = {model.name: work(model) for model in models}
    found: dict[str, Found] = {model.name: defaultdict(list) for model in models}
    for number in range(SPLITS):
        for model in models:
            for place, score in enumerate(next(running[model.name])):
                found[model.name][score.method, place].append(score)
            write(path, COLUMNS, summary(model, found[model.name]), {model.name})
            print(f"{model.name}: split {number + 1} of {SPLITS}", flush=True)


def own_lines(model: Model) -> Iterator[list[Score]]:
    """The jury and what needs no views, on all pictures."""
    general, output = votes(model, MILD16), logits(model)
    for split, chosen in zip(splits(model), picked(model), strict=True):
        sizes = [size for size in SIZES if size <= len(chosen.panel)]
        yield [
            split.believed("naive", Naive(), general),
            split.believed("constant", Constant(), general),
            *(split.believed("probit, general views", Probit(), general.under(range(size))) for size in SIZES),
            *(split.believed("jury", Jury(), general.under(range(size))) for size in SIZES),
            *(split.believed("jury, tuned views", Jury(), chosen.under(range(size))) for size in sizes),
            *split.unseen(general.under(range(len(MILD)))),
            *split.white_box(output),
        ]


def early_lines(model: Model) -> Iterator[list[Score]]:
    """The jury with the views that tell most, and the one that stops early, beside the panel that both start from."""
    general = votes(model, MILD16)
    for split in splits(model):
        best = general.under(split.ordered(general))
        yield [
            split.believed("jury", Jury(), general.under(range(len(MILD)))),
            *(split.believed("jury, best of 16 views", Jury(), best.under(range(size))) for size in SIZES[:4]),
            split.adaptive(general, len(MILD)),
        ]


def paper_lines(model: Model) -> Iterator[list[Score]]:
    """The paper's method and the jury beside it: on some of the small pictures, since draws are many, or all photos.

    Of photos the two transforms that did best on the pilot ones are asked for; the others only if they are kept.
    """
    part = "some" if len(model.labels) <= 10 else "all"
    panels = paper_panels(model)
    best = list(panels)[: 2 if model.photos else None]
    tried = [*best, *(family for family in panels if family not in best and there(model, panels[family], part))]
    paper = {family: votes(model, panels[family], part) for family in tried}
    print(f"{model.name}: {', '.join(f'{panel}' for panel in panels.values())}; tested: {tried}", flush=True)
    general = votes(model, MILD, part)
    for split in splits(model, SPLITS, part):
        yield [
            *(line for family, said in paper.items() for line in _families(split, family, said)),
            *(split.believed("jury, beside the paper", Jury(), general.under(range(size))) for size in SIZES[:4]),
        ]


def _families(split: Split, family: str, said: LabelledVotes) -> Iterator[Score]:
    draws = len(said.panel)
    for size in sorted({size for size in (*SIZES, draws) if size <= draws}):
        yield split.believed(f"paper, {family}", Gaussian(), said.under(range(size)))
        yield split.believed(f"probit, {family}", Probit(), said.under(range(size)))


COLUMNS = (
    "model",
    "method",
    "queries",
    "tested",
    "splits",
    *(f"{m}{end}" for m in METRICS for end in ("", "_low", "_high")),
)


def summary(model: Model, found: Found) -> list[list[str]]:
    rows = []
    for (method, _), same in found.items():
        queries = f"{np.mean([line.queries for line in same]):.4g}"
        cells = [model.name, method, queries, str(same[0].tested), str(len(same))]
        for metric in METRICS:
            values = np.array([line.values[metric] for line in same])
            cells += [f"{x:.5f}" for x in (values.mean(), *np.percentile(values, [2.5, 97.5]))]
        rows.append(cells)
    return rows


def write(path: Path, columns: Iterable[str], rows: list[list[str]], models: set[str]) -> None:
    """Replace the lines of these models and leave the others as they are."""
    kept = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            kept = [row for row in list(csv.reader(file))[1:] if row[0] not in models]
    order = list(MODELS)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        writer.writerows(sorted([*kept, *rows], key=lambda row: order.index(row[0])))


GUARANTEES = ("model", "guarantee", "asked", "stated", "splits", "made", "broken", "seen", "size")
"""`seen` is the mean error or coverage, `size` the mean share that is accepted or number of labels in a set."""


def guarantees(model: Model) -> list[list[str]]:
    """Thresholds and sets from the fitting part's held-out folds, against what the test part shows."""
    said = votes(model, MILD)
    wrong: dict[float, list[tuple[float, float]]] = defaultdict(list)
    covered: dict[float, list[tuple[float, float]]] = defaultdict(list)
    for split in drawn(model):
        train, heard = said.take(split.fit), said.take(split.test)
        jury = Jury().fit(train)
        held_out = HeldOut.of(crossfit.cross_fit(Jury(), train), crossfit.outcome(jury, train))
        confidence, right = jury.confidence(heard), jury.predict(heard) == heard.truths
        for max_error in (0.01, 0.02, 0.05, 0.1):
            threshold = held_out.threshold(max_error, 0.95)
            accepted = confidence >= (np.inf if threshold is None else threshold)
            wrong[max_error].append((float((~right)[accepted].mean()) if accepted.any() else 0.0, accepted.mean()))
        distribution = jury.distribution(heard)
        for coverage in (0.9, 0.95):
            sets = held_out.conformal(coverage, "threshold").sets(distribution, draws(heard))
            covered[coverage].append((sets.hold(distribution, heard.truths).mean(), sets.sizes().mean()))
    return [
        *(_guarantee(model, "error at most", e, pairs, [w > e for w, _ in pairs], 0.05) for e, pairs in wrong.items()),
        *(_guarantee(model, "sets hold", c, pairs, [h < c for h, _ in pairs], None) for c, pairs in covered.items()),
    ]


def _guarantee(
    model: Model,
    what: str,
    value: float,
    pairs: list[tuple[float, float]],
    broken: list[bool],
    stated: float | None,
) -> list[str]:
    seen, size = np.mean(pairs, axis=0)
    made = np.mean([size > 0 for _, size in pairs])
    told = ["" if stated is None else f"{stated:g}", str(len(pairs)), f"{made:.3f}", f"{np.mean(broken):.4f}"]
    return [model.name, what, f"{value:g}", *told, f"{seen:.5f}", f"{size:.4f}"]


# Figures -------------------------------------------------------------------------------------------------------------


def figures(name: str = "resnet20") -> None:
    """What each query brings, by the tables; and one split's reliability and risk–coverage curves."""
    shown = {"jury": "jury, general views", "jury, best of 16 views": "jury, best of 16 views"}
    rows = [row for file in ("jury", "jury_early", "jury_paper") for row in _table(file) if row["model"] == name]
    methods = [*shown, *dict.fromkeys(row["method"] for row in rows if row["method"].startswith("paper"))]
    curves = [_line(shown.get(m, m), [row for row in rows if row["method"] == m]) for m in methods]
    softmax = next(row for row in rows if row["method"] == "softmax, temperature")
    level = np.full(2, float(softmax["brier_even"]))
    curves.append(Line("softmax, temperature", np.array([1.0, 21.0]), level))
    title = f"{MODELS[name].title}: what each query brings"
    chart = lines_svg(curves[:6], title=title, x_label="queries a picture", y_label="Brier score (even rest)")
    _draw(f"jury-queries-{name}", chart)
    _split_figures(name)


def _split_figures(name: str) -> None:
    split, said = splits(MODELS[name], 1)[0], votes(MODELS[name], MILD)
    heard, jury = said.take(split.test), Jury().fit(said.take(split.fit))
    confidence, right = jury.confidence(heard), jury.predict(heard) == heard.truths
    _draw(f"jury-reliability-{name}", reliability_svg(metrics.reliability(confidence, right)))
    _draw(f"jury-risk-{name}", risk_coverage_svg(metrics.risk_coverage(confidence, right)))


# The tables of docs/method.md -----------------------------------------------------------------------------------------

SHOWN = {
    "accuracy": "accuracy",
    "ece": "ECE",
    "auroc": "AUROC",
    "base_auroc": "the same, base answer",
    "brier_even": "Brier, even rest",
}
HEADING = ("method", "queries", *SHOWN.values(), "Brier", "NLL", "splits")


BRIEF = {
    "naive": "1",
    "constant": "1",
    "probit, general views": "9",
    "jury": "3 5 9 17",
    "jury, tuned views": "3 9",
    "jury, best of 16 views": "9",
    "jury, stopping early": "",
    "softmax, temperature": "1",
}
"""The rows that docs/method.md shows: the methods, with so many queries, or with all if none are given."""
FULL = """# The jury, all figures

Every line of [the method's](../method.md#what-it-brings) comparison, made from experiments/results/jury*.csv by
`python experiments/jury.py figures`. In brackets: the range over the splits.
"""


def document() -> None:
    """Put summaries into docs/method.md, between their marks, and all rows on a page of their own."""
    path = FIGURES.parent / "method.md"
    text, full = path.read_text("utf-8"), [FULL]
    for model in MODELS.values():
        rows = _rows(model)
        brief = [row for row in rows if row["queries"] in (BRIEF.get(row["method"], "-").split() or [row["queries"]])]
        text = _replaced(text, model.name, _markdown(brief))
        if rows:
            full += [f"## {model.title}\n", *_markdown(rows), ""]
    text = _replaced(text, "worth", _worth_table())
    path.write_text(_replaced(text, "guarantees", _guarantee_table()), "utf-8")
    (FIGURES.parent / "tables" / "jury.md").write_text("\n".join(full), "utf-8")


def _replaced(text: str, mark: str, table: list[str]) -> str:
    begin, end = f"<!-- {mark} -->\n", f"<!-- /{mark} -->"
    if begin not in text:
        return text
    before, rest = text.split(begin)
    return before + begin + "\n".join([*table, end]) + rest.split(end)[1]


def _rows(model: Model) -> list[dict[str, str]]:
    files = ("jury", "jury_early", "jury_paper")
    rows = [row for file in files for row in _table(file) if row["model"] == model.name]
    # Tuning may have kept the general panel, and the early file repeats the panel that it aims at.
    return [row for i, row in enumerate(rows) if _figures(row) not in map(_figures, rows[:i])]


def _markdown(rows: list[dict[str, str]]) -> list[str]:
    return [_cells(HEADING), _cells(["---"] * len(HEADING)), *(_cells(_row(row)) for row in rows)]


def _figures(row: dict[str, str]) -> list[str]:
    return [row[key] for key in ("queries", *METRICS)]


def _row(row: dict[str, str]) -> list[str]:
    figures = [_short(row[key]) for key in SHOWN]
    brier = f"{_short(row['brier'])} ({_short(row['brier_low'])}–{_short(row['brier_high'])})"
    return [row["method"], row["queries"], *figures, brier, f"{float(row['nll']):.3f}", row["splits"]]


def _guarantee_table() -> list[str]:
    """Guarantees that were not made broke nothing and accepted nothing: they are left out of the other columns."""
    heading = ("model", "guarantee", "made", "broken of those made", "seen on average", "accepted, or labels in a set")
    rows = [
        [
            MODELS[row["model"]].title,
            f"{row['guarantee']} {float(row['asked']):.0%}",
            f"{made:.0f} of {row['splits']}",
            f"{float(row['broken']) * float(row['splits']):.0f}" if row["stated"] and made else "",
            f"{float(row['seen']) / float(row['made']):.2%}" if made else "",
            (f"{float(row['size']) / float(row['made']):.1%}" if row["stated"] else f"{float(row['size']):.2f}")
            if made
            else "",
        ]
        for row in _table("jury_guarantees")
        for made in [float(row["made"]) * float(row["splits"])]
    ]
    return [_cells(heading), _cells(["---"] * len(heading)), *map(_cells, rows)]


def _worth_table() -> list[str]:
    rows = _table("worth")
    sizes = list(dict.fromkeys(row["labelled"] for row in rows))
    told = {(row["model"], row["labelled"]): f"{row['log_loss']} ± {row['error']}" for row in rows}
    lines = [
        [MODELS[name].title, *(told.get((name, size), "") for size in sizes)]
        for name in dict.fromkeys(row["model"] for row in rows)
    ]
    return [_cells(["labelled pictures", *sizes]), _cells(["---"] * (len(sizes) + 1)), *map(_cells, lines)]


def _short(value: str) -> str:
    return f"{float(value):.4f}".removeprefix("0")


def _cells(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _table(name: str) -> list[dict[str, str]]:
    path = RESULTS / f"{name}.csv"
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _line(name: str, rows: list[dict[str, str]]) -> Line:
    columns = ("queries", "brier_even", "brier_even_low", "brier_even_high")
    return Line(name, *(np.array([float(row[column]) for row in rows]) for column in columns))


def _draw(name: str, svg: str) -> None:
    (FIGURES / f"{name}.svg").write_text(svg, "utf-8")


def main() -> None:
    names = [name for name in sys.argv[1:] if name in MODELS] or [name for name in MODELS if name != "clothes"]
    if "figures" in sys.argv:
        figures()
        document()
    elif "guarantees" in sys.argv:
        for name in names:
            write(RESULTS / "jury_guarantees.csv", GUARANTEES, guarantees(MODELS[name]), {name})
    else:
        tables([MODELS[name] for name in names])


def tables(models: list[Model]) -> None:
    tasks = {"paper": paper_lines, "early": early_lines}
    task = next((name for name in tasks if name in sys.argv), "")
    rounds(models, tasks.get(task, own_lines), RESULTS / f"jury_{task}.csv" if task else RESULTS / "jury.csv")


if __name__ == "__main__":
    main()
