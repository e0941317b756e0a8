"""What scores and ranked lists are worth beside views, on models whose full output is known, over random splits.

python -m experiments scores       results/scores.csv, for each model whose output is kept, or can be computed
python -m experiments.scores page  the table of docs/method.md and what it says, from the CSV

The hinges, the order of the columns and what a column must gain were settled on splits of the models of SETTLED, test
parts included; the other models took no part in that.

Beside every row stands what the owner of the model could do: the softmax over all classes with a temperature, and the
same of the mean logits over the same queries. A constant and a shuffled score show what useless scores cost.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

from experiments.closed import ece_by_chance
from experiments.collected import MILD
from experiments.outputs import SOURCES, Source
from looktwice.calibration import crossfit, metrics
from looktwice.calibration.evidence import Evidence
from looktwice.calibration.jury import Jury
from looktwice.calibration.scored import choose_layout, fit_scored
from looktwice.calibration.votes import Codes, Floats, LabelledVotes, Votes

RESULTS = Path(__file__).parent / "results"
SPLITS = 20
VIEWS = (0, 1, 2, 4, 8)
USELESS = ("constant score", "shuffled score")
FIGURES = ("accuracy", "ece", "brier", "base_auroc")
Rows = NDArray[np.intp]


def heard(source: Source, logs: NDArray[np.float32], listed: int) -> LabelledVotes:
    """The answers of an API that returns so many labels with their scores; 0 is a label alone."""
    _, truths, words = source.pictures
    order = np.argsort(-logs, axis=2, kind="stable")[:, :, : max(listed, 1)].astype(np.int32)
    scores = np.exp(np.take_along_axis(logs, order, axis=2)).astype(np.float32)
    evidence = Evidence(order, scores) if listed else None
    names = tuple(map(str, range(len(order))))
    first = order[:, :, 0]
    votes = Votes(names, tuple(map(str, MILD)), words, first[:, 0], first[:, 1:], len(words), evidence=evidence)
    return votes.labelled([words[code] for code in truths])


def useless(votes: LabelledVotes, kind: str) -> LabelledVotes:
    """The same answers with scores that say nothing."""
    assert votes.evidence is not None
    scores = votes.evidence.scores
    changed = np.full_like(scores, 0.95) if kind == USELESS[0] else np.random.default_rng(0).permuted(scores, axis=0)
    return replace(votes, evidence=Evidence(votes.evidence.labels, changed))


def jury(votes: LabelledVotes, fit: Rows, test: Rows) -> dict[str, float]:
    """The figures of a jury that is fitted on one part and tested on the other."""
    return judged(Jury().fit(votes.take(fit)), votes.take(test))


def with_scores(plain: Jury, votes: LabelledVotes) -> Jury:
    """What `Jury.fit` makes of votes with scores, from the jury that their labels alone teach."""
    layout = choose_layout(votes, plain.shrinkage)
    fitted = replace(plain, scored=fit_scored(votes, plain.shrinkage, layout) if layout else None)
    return fitted.beside(votes, votes)


def judged(fitted: Jury, tested: LabelledVotes) -> dict[str, float]:
    """The figures of a fitted jury."""
    outcome = crossfit.outcome(fitted, tested)
    scores = outcome.scores()
    own = replace(fitted, ballot="base").confidence(tested)
    return {
        "accuracy": scores.accuracy,
        "ece": scores.ece,
        "ece_by_chance": ece_by_chance(outcome.confidence),
        "brier": scores.brier,
        "base_auroc": metrics.auroc(own, tested.base == tested.truths) or 0.5,
    }


def white_box(logs: Floats, truths: Codes, base: Codes, fit: Rows, test: Rows) -> dict[str, float]:
    """The same of a full table of log probabilities with the temperature that suits the fitting part best."""

    def loss(log_t: float) -> float:
        told = log_softmax(logs[fit] / np.exp(log_t), axis=1)
        return -float(told[np.arange(len(fit)), truths[fit]].mean())

    temperature = np.exp(minimize_scalar(loss, bounds=(-3, 3), method="bounded").x)
    p = np.exp(log_softmax(logs[test] / temperature, axis=1))
    truth, label = truths[test], p.argmax(axis=1)
    brier = (p**2).sum(axis=1) + 1 - 2 * p[np.arange(len(test)), truth]
    own = p[np.arange(len(test)), base[test]]
    return {
        "accuracy": float((label == truth).mean()),
        "ece": metrics.ece(p.max(axis=1), label == truth),
        "ece_by_chance": ece_by_chance(p.max(axis=1)),
        "brier": float(brier.mean()),
        "base_auroc": metrics.auroc(own, base[test] == truth) or 0.5,
    }


def measured(source: Source, splits: int = SPLITS) -> Iterator[dict[str, str]]:
    """One line for each method and number of views: the means over the splits."""
    logs, (_, truths, _) = source.logs(), source.pictures
    said = {name: heard(source, logs, listed) for name, listed in (("label", 0), ("score", 1), ("top five", 5))}
    said |= {name: useless(said["score"], name) for name in USELESS}
    base = said["label"].base
    for views in VIEWS:
        mean = logs[:, : views + 1].astype(np.float64).mean(axis=1)
        methods = [name for name in said if views == 2 or name not in USELESS]
        found: dict[str, list[dict[str, float]]] = {}
        for seed in range(splits):
            mixed = np.random.default_rng(seed).permutation(len(truths))
            fit, test = mixed[: source.fit], mixed[source.fit :]
            found.setdefault("white box", []).append(white_box(mean, truths, base, fit, test))
            plain = Jury().fit(said["label"].under(range(views)).take(fit))
            for name in methods:
                told = said[name].under(range(views))
                fitted = with_scores(plain, told.take(fit))
                found.setdefault(name, []).append(judged(fitted, told.take(test)))
        for name, each in found.items():
            means = {key: f"{np.mean([figures[key] for figures in each]):.4f}" for key in FIGURES}
            yield {"model": source.title, "says": name, "queries": f"1+{views}", **means, "splits": str(len(each))}


# The page ------------------------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[1] / "docs" / "method.md"
SETTLED = ("ResNet-8, CIFAR-10", "MobileNetV2, photos")
SAYS = {
    "white box": "*all logits (hidden)*",
    "label": "label",
    "score": "label and score",
    "top five": "five labels with scores",
}
Figures = dict[tuple[str, str, str], dict[str, float]]
"""By model, what the API says, and queries."""


def figures(results: Path) -> Figures:
    with (results / "scores.csv").open(encoding="utf-8") as file:
        return {
            (line["model"], line["says"], line["queries"]): {key: float(line[key]) for key in FIGURES}
            for line in csv.DictReader(file)
        }


def table(found: Figures) -> str:
    """Brier score and AUROC of the base answer, a line for each model and what the API returns."""
    queries = [f"1+{views}" for views in VIEWS]
    rows = ["| | what the API returns | 1 query | " + " | ".join(queries[1:]) + " |", "|---" * (2 + len(VIEWS)) + "|"]
    for model in dict.fromkeys(model for model, _, _ in found):
        for place, (says, words) in enumerate(SAYS.items()):
            told = (found[model, says, each] for each in queries)
            cells = [f"{each['brier']:.3f} {each['base_auroc']:.3f}".replace("0.", ".") for each in told]
            name = f"{model}{' †' * (model in SETTLED)}" if place == 0 else ""
            rows.append(f"| {name} | {words} | {' | '.join(cells)} |")
    return "\n".join(rows)


def note(found: Figures) -> str:
    """What was wanted of scores, and on which models it holds."""
    models = list(dict.fromkeys(model for model, _, _ in found))

    def gaps(says: str, queries: str, key: str, beside: tuple[str, str] = ("white box", "1+0")) -> dict[str, float]:
        return {model: found[model, says, queries][key] - found[(model, *beside)][key] for model in models}

    def count(holds: dict[str, bool]) -> str:
        missed = [model for model, fine in holds.items() if not fine]
        return f"{len(holds) - len(missed)} of {len(holds)}" + (f" (not {' and '.join(missed)})" if missed else "")

    def span(gap: dict[str, float]) -> str:
        return f"{min(gap.values()):+.4f} to {max(gap.values()):+.4f}"

    five, five_ranks = gaps("top five", "1+2", "brier"), gaps("top five", "1+2", "base_auroc")
    one, one_ranks = gaps("score", "1+4", "brier"), gaps("score", "1+4", "base_auroc")
    ece = gaps("score", "1+0", "ece")
    bound = gaps("top five", "1+8", "brier", ("white box", "1+8"))
    cost = {kind: gaps(kind, "1+2", "brier", ("label", "1+2")) for kind in USELESS}
    limits = {model: 0.012 if "photos" in model else 0.0 for model in models}
    both = {model: five[model] < 0 < five_ranks[model] for model in models}
    lines = [
        f"Five labels with scores and two views beat the tempered softmax of one query in both figures on "
        f"{count(both)} (Brier score {span(five)}, AUROC {span(five_ranks)}).",
        f"Label and score with four views beat it in AUROC on {count({m: one_ranks[m] > 0 for m in models})} "
        f"({span(one_ranks)}), and in Brier score, or within .012 of it on photos, on "
        f"{count({m: one[m] < limits[m] for m in models})} ({span(one)}).",
        f"With one query, label and score have an ECE that is at most .01 above its own on "
        f"{count({m: ece[m] <= 0.01 for m in models})} ({span(ece)}).",
        f"Five labels with scores and eight views are within .005 of the Brier score of all logits of the same nine "
        f"queries on {count({m: bound[m] <= 0.005 for m in models})} ({span(bound)}).",
        f"A constant score changes the Brier score with two views by {span(cost[USELESS[0]])}, a shuffled one by "
        f"{span(cost[USELESS[1]])}.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def fill(results: Path = RESULTS, page: Path = PAGE) -> None:
    """Put the table and what it says between their marks."""
    found, text = figures(results), page.read_text("utf-8")
    for name, told in (("scores", table(found)), ("scores-note", note(found))):
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}{told}\n{end}{rest.partition(end)[2]}"
    page.write_text(text, "utf-8")


def main(results: Path = RESULTS, splits: int = SPLITS) -> None:
    """Measure every model, and write results/scores.csv."""
    lines = []
    for source in SOURCES.values():
        for line in measured(source, splits):
            print(" ".join(line.values()), flush=True)
            lines.append(line)
    with (results / "scores.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)


if __name__ == "__main__":
    if sys.argv[1:] == ["page"]:
        fill()
    else:
        main()
