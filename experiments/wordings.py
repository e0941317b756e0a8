"""Several wordings of one question, and several models, beside entropy and pooling: saints in paintings.

python -m experiments.wordings      results/wordings.csv, one line for each subject and method

Five closed vision-language models answered three prompts each (../shared/answers); the methods are those of
experiments/baselines.py. *Wordings* are the three answers of one model, so that `entropy of the votes` is what others
call semantic entropy, for labels; `pooled` are the first answers of all five models. 400 pictures are
labelled, the others tested; pictures to which one of these answers is missing are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np

from experiments import script
from experiments.baselines import Compared, table
from experiments.cascades import LABELLED, SAINTS
from experiments.closed import rows_of
from experiments.writing import write
from looktwice.calibration.votes import LabelledVotes, Votes

RESULTS = Path(__file__).parent / "results" / "wordings.csv"
SPLITS, DATASETS, PROMPTS = 5, ("ArtDL", "ICONCLASS"), ("test_1", "test_2", "test_3")


@cache
def answers(dataset: str) -> tuple[dict[tuple[str, str], dict[str, str]], dict[str, str]]:
    """By model and prompt the label of each picture, and the truths."""
    labels: dict[tuple[str, str], dict[str, str]] = {}
    truths: dict[str, str] = {}
    for row in rows_of("vlm_saints.csv.gz"):
        if row["dataset"] == dataset and row["label"]:
            labels.setdefault((row["model"], row["prompt"]), {})[row["image"]] = row["label"]
            truths[row["image"]] = row["truth"]
    return labels, truths


def votes(dataset: str, sources: Sequence[tuple[str, str]]) -> LabelledVotes:
    """The answers of some models and prompts about the pictures that all of them answered."""
    labels, truths = answers(dataset)
    names = sorted(set.intersection(*(set(labels[source]) for source in sources)))
    first, *others = [[labels[source][name] for name in names] for source in sources]
    views = [" ".join(source) for source in sources[1:]]
    return Votes.from_labels(first, list(zip(*others, strict=True)), [truths[n] for n in names], panel=views)


def subjects(splits: int) -> Iterator[Compared]:
    """Every model with its wordings, and all models together."""
    for dataset in DATASETS:
        pools = {model: [(model, prompt) for prompt in PROMPTS] for model in SAINTS}
        pools["five models, pooled"] = [(model, PROMPTS[0]) for model in SAINTS]
        for name, sources in pools.items():
            asked = votes(dataset, sources)
            mixed = [np.random.default_rng(seed).permutation(len(asked)) for seed in range(splits)]
            drawn = [(rows[:LABELLED], rows[LABELLED:]) for rows in mixed]
            yield Compared.on(f"{dataset}: {name}", asked, drawn)


def main(_: Sequence[str] = (), results: Path = RESULTS, splits: int = SPLITS) -> None:
    write(results, table((each.rows() for each in subjects(splits)), splits))


if __name__ == "__main__":
    script.run(main, __doc__, ())
