"""What scores and ranked lists are worth beside views, on six models, over random splits.

python -m experiments scores       results/scores.csv, one line for each model, kind of answer and number of queries
python -m experiments.scores page  the summary in docs/results/scores.md, from the CSV

Answers and splits are those of experiments/general.py, under the panel that it recorded for each model: neither the
model nor the tested pictures took part in growing it, on labels alone. The hinges, the order of the columns and what a
column must gain were settled on splits of the models of SETTLED, test parts included; the linear pool was settled on
splits of all models but EfficientNet-Lite0.

Beside every row stands what the owner of the model could do: the softmax over all classes with a temperature, and the
same of the mean log probabilities over the same queries. A constant and a shuffled score show what useless scores cost.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from experiments.evaluation import Figures, jury_figures, means
from experiments.general import Answers, recorded_splits
from experiments.writing import Row, fill, read, write
from looktwice.calibration.evidence import Evidence
from looktwice.calibration.jury import Jury
from looktwice.calibration.votes import LabelledVotes

RESULTS = Path(__file__).parent / "results"
SPLITS = 20
VIEWS = (0, 1, 2, 4, 8)
USELESS = ("constant score", "shuffled score")
FIGURES = ("accuracy", "ece", "ece_by_chance", "brier", "base_auroc")


def useless(votes: LabelledVotes, kind: str) -> LabelledVotes:
    """The same answers with uninformative scores."""
    assert votes.evidence is not None
    scores = votes.evidence.scores
    changed = np.full_like(scores, 0.95) if kind == USELESS[0] else np.random.default_rng(0).permuted(scores, axis=0)
    return replace(votes, evidence=Evidence(votes.evidence.labels, changed))


def measured(each: Answers, splits: int) -> Iterator[Row]:
    """One line for each kind of answer and number of queries: the means over the splits."""
    answers = {name: each.listing(labels) for name, labels in (("label", 0), ("score", 1), ("top five", 5))}
    answers |= {name: useless(answers["score"], name) for name in USELESS}
    found: dict[tuple[int, str], list[Figures]] = {}
    for fit, test in recorded_splits(each, splits):
        for views in VIEWS:
            panel = range(views)
            bound = each.white_box(panel, fit, test)
            found.setdefault((views, "white box"), []).append(bound)
            for name in (name for name in answers if views == 2 or name not in USELESS):
                votes = answers[name].under(panel)
                fitted = Jury().fit(votes.take(fit))
                found.setdefault((views, name), []).append(jury_figures(fitted, votes.take(test)))
    for (views, name), figures in sorted(found.items(), key=lambda item: item[0][0]):
        row = {"model": each.title, "answers": name, "queries": f"1+{views}"}
        yield {**row, **means(figures, FIGURES), "splits": str(len(figures))}


# The page ------------------------------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[1] / "docs" / "results" / "scores.md"
ByModel = dict[tuple[str, str, str], Figures]
"""By model, what the API returns, and queries."""


def figures(results: Path) -> ByModel:
    return {
        (row["model"], row["answers"], row["queries"]): {key: float(row[key]) for key in ("ece", "brier", "base_auroc")}
        for row in read(results / "scores.csv")
    }


def note(found: ByModel) -> str:
    """What scores are meant to achieve, and on which models they do."""
    models = list(dict.fromkeys(model for model, _, _ in found))

    def gaps(answers: str, queries: str, key: str, beside: tuple[str, str] = ("white box", "1+0")) -> dict[str, float]:
        return {model: found[model, answers, queries][key] - found[(model, *beside)][key] for model in models}

    def count(holds: dict[str, bool]) -> str:
        missed = [model for model, fine in holds.items() if not fine]
        but = f" (not {' and '.join(missed)})" if missed else ""
        return f"{len(holds) - len(missed)} of {len(holds)} models{but}"

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
        f"Five labels with scores and two views beat the temperature-scaled softmax of one query on both metrics on "
        f"{count(both)} (Brier score {span(five)}, AUROC {span(five_ranks)}).",
        f"Label and score with four views beat it in AUROC on {count({m: one_ranks[m] > 0 for m in models})} "
        f"({span(one_ranks)}), and in Brier score, or within .012 of it on photos, on "
        f"{count({m: one[m] < limits[m] for m in models})} ({span(one)}).",
        f"With one query, label and score have an ECE at most .01 above that of the softmax on "
        f"{count({m: ece[m] <= 0.01 for m in models})} ({span(ece)}).",
        f"Five labels with scores and eight views are within .005 of the Brier score of all logits of the same nine "
        f"queries on {count({m: bound[m] <= 0.005 for m in models})} ({span(bound)}).",
        f"A constant score changes the Brier score with two views by {span(cost[USELESS[0]])}, a shuffled one by "
        f"{span(cost[USELESS[1]])}.",
    ]
    return "\n".join(f"- {line}" for line in lines)


def page(results: Path = RESULTS, path: Path = PAGE) -> None:
    """The summary in docs/results/scores.md, between its marks."""
    fill(path, "scores-note", note(figures(results)))


def main(models: Sequence[Answers], results: Path = RESULTS, splits: int = SPLITS) -> None:
    """Measure every model, and write results/scores.csv."""
    write(results / "scores.csv", (row for each in models for row in measured(each, splits)))


if __name__ == "__main__" and sys.argv[1:] == ["page"]:
    page()
