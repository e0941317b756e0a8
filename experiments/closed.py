"""Answers that somebody paid for: emotion APIs, GPT-4o and GPT-4V, judged on labels that took no part in fitting.

python -m experiments closed      results/closed_*.csv and a summary in docs/results/closed-systems.md

The answers are in ../shared/answers. Every split draws 1,000 labelled pictures to fit on and tests on the rest; each
figure is the mean over 20 splits.
"""

from __future__ import annotations

import csv
import gzip
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from experiments.collected import SHARED
from experiments.evaluation import ece_by_chance
from experiments.writing import fill, write
from looktwice.calibration import crossfit
from looktwice.calibration.calibrators import Calibrator
from looktwice.calibration.crossfit import Outcome
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.evidence import Evidence, Floats, Row
from looktwice.calibration.jury import Jury
from looktwice.calibration.shares import Constant, _logistic
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.decisions.results import HeldOut
from looktwice.errors import DataError

ANSWERS = SHARED / "answers"
RESULTS = Path(__file__).parent / "results"
PAGE = Path(__file__).parents[1] / "docs" / "results" / "closed-systems.md"
GUIDE = PAGE.parents[1] / "howto" / "vision-language-models.md"
SPLITS, FIT = 20, 1000
DATASETS = ("ferplus", "rafdb", "expw")
APIS = ("google", "facepp", "microsoft")
FIGURES = ("accuracy", "ece", "auroc", "brier")
OURS, MORE = "ours: class and score", "ours: class and score, 3,000 labels"
AFTER = "ours: class and score, then isotonic"
AIM = 0.02
"""The ECE that is wanted."""
Line = dict[str, str]


def split(pictures: int, seed: int, fit: int = FIT) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    mixed = np.random.default_rng(seed).permutation(pictures)
    return mixed[:fit], mixed[fit:]


def rows_of(name: str, delimiter: str = ",") -> list[dict[str, str]]:
    path = ANSWERS / name
    if not path.exists():
        raise DataError(
            f"published answers are needed, and {str(path)!r} is not there; see docs/results/closed-systems.md"
        )
    with gzip.open(path, "rt", encoding="utf-8") if name.endswith(".gz") else path.open(encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def summary(subject: str, parts: dict[str, list[Outcome]]) -> Iterator[Line]:
    """The mean figures of each method over the splits."""
    for method, outcomes in parts.items():
        scores = [outcome.scores() for outcome in outcomes]
        means = {key: np.mean([getattr(score, key) or 0.5 for score in scores]) for key in FIGURES}
        yield {
            "subject": subject,
            "method": method,
            "queries": f"{np.mean([outcome.queries for outcome in outcomes]):.3g}",
            **{key: f"{value:.4f}" for key, value in means.items()},
            "ece_by_chance": f"{np.mean([ece_by_chance(outcome.confidence) for outcome in outcomes]):.4f}",
            "splits": str(len(outcomes)),
        }


def judged(calibrator: Calibrator, votes: LabelledVotes, seed: int, labels: int = FIT) -> Outcome:
    fit, test = split(len(votes), seed, labels)
    return crossfit.outcome(calibrator.fit(votes.take(fit)), votes.take(test))


# Emotion APIs --------------------------------------------------------------------------------------------------------


@cache
def faces() -> list[dict[str, str]]:
    return rows_of("emotion_apis.csv.gz")


def emotions(dataset: str, apis: Sequence[str]) -> LabelledVotes:
    """The first API's answers with their scores, and those of the others as views."""
    rows = [row for row in faces() if row["dataset"] == dataset]
    labels = np.array([[int(row[api]) for api in apis] for row in rows], np.int32)
    scores = np.array([[float(row[f"{api}_score"]) for api in apis] for row in rows], np.float32)
    names, words = tuple(row["image"] for row in rows), tuple(map(str, range(7)))
    evidence = Evidence(labels[:, :, None], scores[:, :, None])
    votes = Votes(names, tuple(apis[1:]), words, labels[:, 0], labels[:, 1:], 7, evidence=evidence)
    return votes.labelled([row["truth"] for row in rows])


def believing(name: str, votes: LabelledVotes, confidence: Floats) -> Outcome:
    """A confidence in the base answer, the rest spread evenly."""
    distribution = Distribution(votes.base[:, None], confidence[:, None], votes.classes)
    return Outcome.from_predictions(name, 1, votes.base, confidence, distribution, votes.truths)


def isotonic(x: Floats, right: NDArray[np.bool_], at: Floats) -> Floats:
    """How often answers are right, as a rising function of x, read at other places."""
    places, group = np.unique(x, return_inverse=True)
    weight = np.bincount(group).astype(np.float64)
    curve = isotonic_regression(np.bincount(group, right) / weight, weights=weight).x
    return np.asarray(np.interp(at, places, curve), np.float64)


def recalibrated(votes: LabelledVotes, seed: int) -> Outcome:
    """Class and score, with isotonic regression of what held-out folds of the labelled pictures say."""
    fit, test = split(len(votes), seed)
    held, fitted = crossfit.cross_fit(Jury(ballot="base"), votes.take(fit)), Jury(ballot="base").fit(votes.take(fit))
    tested = votes.take(test)
    return believing(AFTER, tested, isotonic(held.confidence, held.correct, fitted.confidence(tested)))


def curves(votes: LabelledVotes, seed: int) -> dict[str, Outcome]:
    """The API's own score, and what usual calibration makes of it."""
    assert votes.evidence is not None
    fit, test = split(len(votes), seed)
    score, right, tested = votes.evidence.claims(), votes.base == votes.truths, votes.take(test)
    odds = np.log(np.clip(score, 1e-6, 1 - 1e-6) / (1 - np.clip(score, 1e-6, 1 - 1e-6)))
    a, b = _logistic(odds[fit][:, None], right[fit])
    found = {
        "own score": score[test],
        "constant": np.full(len(test), right[fit].mean()),
        "isotonic": isotonic(score[fit], right[fit], score[test]),
        "Platt": 1 / (1 + np.exp(-a * odds[test] - b)),
    }
    return {name: believing(name, tested, confidence) for name, confidence in found.items()}


def emotion_apis(splits: int, datasets: Sequence[str] = DATASETS) -> Iterator[Line]:
    for dataset in datasets:
        for api in APIS:
            alone = emotions(dataset, [api])
            several = emotions(dataset, [api, *(other for other in APIS if other != api)])
            parts: dict[str, list[Outcome]] = {}
            for seed in range(splits):
                found = curves(alone, seed)
                found[OURS] = judged(Jury(ballot="base"), alone, seed)
                found[AFTER] = recalibrated(alone, seed)
                found[MORE] = judged(Jury(ballot="base"), alone, seed, 3 * FIT)
                found["ours: two second opinions, labels"] = judged(Jury(), several.label_only(), seed)
                found["ours: two second opinions, scores"] = judged(Jury(), several, seed)
                for method, outcome in found.items():
                    parts.setdefault(method, []).append(outcome)
            yield from summary(f"{dataset}, {api}", parts)


# Language models -----------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    return " ".join(re.split(r"[\W_]+", text.casefold())).strip()


def looks() -> LabelledVotes:
    """GPT-4o on CIFAR-10: the small picture, and the same enlarged as a view."""
    rows = rows_of("gpt4o_cifar10.csv")
    said = [Row(row["test_index"], plain(row["look_32px"]), (plain(row["look_224px"]) or None,)) for row in rows]
    return Votes.collect(said, ("enlarged",), classes=10).labelled([plain(row["truth"]) for row in rows])


def birds() -> LabelledVotes:
    """GPT-4V on birds, four runs; an answer counts if it holds the name of one species and of no other."""
    rows = rows_of("gpt4v_birdsnap.csv")
    species = {plain(row["truth"]) for row in rows}

    def named(text: str) -> str | None:
        words = plain(text)
        found = [each for each in species if re.search(rf"\b{re.escape(each)}\b", words)]
        longest = max(found, key=len, default=None)
        return longest if longest and all(each in longest for each in found) else None

    runs = ("plain", "with_place", "with_place_again", "plus")
    answers = [(row, [named(row[run]) for run in runs]) for row in rows]
    kept = [(row, said) for row, said in answers if said[0] is not None]
    rows_ = [Row(str(i), str(said[0]), tuple(said[1:])) for i, (_, said) in enumerate(kept)]
    return Votes.collect(rows_, runs[1:], classes=500).labelled([plain(row["truth"]) for row, _ in kept])


def ranked(rows: Iterable[dict[str, str]]) -> LabelledVotes:
    """GPT-4V's five best labels of one set, in their order."""
    places = ("first", "second", "third", "fourth", "fifth")
    lists = [(row, list(dict.fromkeys(plain(row[place]) for place in places if plain(row[place])))) for row in rows]
    lists = [(row, said) for row, said in lists if said]
    told = [Row(row["image"], said[0], (), lists=(tuple((one, None) for one in said),)) for row, said in lists]
    truths = [plain(row["truth"]) for row, _ in lists]
    votes = Votes.collect(told, (), tuple(dict.fromkeys(truths)))
    return votes.labelled(truths)


def language_models(splits: int) -> Iterator[Line]:
    cifar, species = looks(), birds()
    for title, votes, methods in (
        ("GPT-4o, CIFAR-10", cifar, {"one look": cifar.under([]), "two looks": cifar}),
        (
            "GPT-4V, birds",
            species,
            {
                "one run": species.under([]),
                "a run with place": species.under([0]),
                "two runs with place": species.under([0, 1]),
                "four runs": species,
            },
        ),
    ):
        parts = {"constant": [judged(Constant(), votes.under([]), seed) for seed in range(splits)]}
        parts |= {name: [judged(Jury(), part, seed) for seed in range(splits)] for name, part in methods.items()}
        yield from summary(title, parts)


def top_five(splits: int) -> Iterator[Line]:
    sets: dict[str, list[dict[str, str]]] = {}
    for row in rows_of("gpt4v_top5.csv.gz", "\t"):
        sets.setdefault(row["dataset"], []).append(row)
    for dataset, rows in sets.items():
        votes = ranked(rows)
        if len(votes) < 2 * FIT:
            continue
        parts = {
            "constant": [judged(Constant(), votes, seed) for seed in range(splits)],
            "ours: first label": [judged(Jury(), votes.label_only(), seed) for seed in range(splits)],
            "ours: ranked five": [judged(Jury(), votes, seed) for seed in range(splits)],
        }
        yield from summary(f"GPT-4V, {dataset}", parts)


def second_look(splits: int) -> Iterator[Line]:
    """GPT-4o asked twice: how often the first answer is right, and what can be accepted at an error that is allowed.

    A threshold is set on the labelled pictures of a split, by folds, and counted on the others.
    """
    votes = looks()
    right = votes.base == votes.truths
    same = votes.views[:, 0] == votes.base
    for name, chosen in (("all", np.ones_like(same)), ("both looks agree", same), ("they do not", ~same)):
        share, correct = f"{chosen.mean():.4f}", f"{right[chosen].mean():.4f}"
        yield {"pictures": name, "share": share, "right": correct, "splits": ""}
    for max_error in (0.02, 0.03, 0.04):
        found = [accepted(votes, max_error, seed) for seed in range(splits)]
        told = np.concatenate(found)
        share, correct = f"{told.size / splits / (len(votes) - FIT):.4f}", f"{told.mean():.4f}" if told.size else ""
        made = f"{sum(answers.size > 0 for answers in found)} of {splits}"
        asked = f"accepted, at most {100 * max_error:.0f} % wrong"
        yield {"pictures": asked, "share": share, "right": correct, "splits": made}


def accepted(votes: LabelledVotes, max_error: float, seed: int) -> NDArray[np.bool_]:
    """Which answers about the test pictures above the threshold of a split are right."""
    fit, test = split(len(votes), seed)
    jury = Jury().fit(votes.take(fit))
    rests = HeldOut.combine(crossfit.cross_fit(Jury(), votes.take(fit)), crossfit.outcome(jury, votes.take(fit)))
    least = rests.threshold(max_error)
    outcome = crossfit.outcome(jury, votes.take(test))
    return outcome.correct[outcome.confidence >= (np.inf if least is None else least)]


# Tables --------------------------------------------------------------------------------------------------------------

TABLES = {"emotions": emotion_apis, "language": language_models, "ranked": top_five}


def emotions_note(lines: Sequence[Line]) -> str:
    """How near the ECE comes to what is wanted, and what keeps it from there, in words."""
    told = {
        method: [line for line in lines if line["method"] == method] for method in {line["method"] for line in lines}
    }

    def between(method: str, key: str) -> str:
        figures = [float(line[key]) for line in told[method]]
        return f"{min(figures):.3f} to {max(figures):.3f}".replace("0.", ".")

    def reached(method: str) -> str:
        return f"{sum(float(line['ece']) <= AIM for line in told[method])} of {len(told[method])} pairs"

    others = ("own score", "isotonic", "constant")
    lower = sum(
        all(float(ours["brier"]) < float(told[other][place]["brier"]) for other in others)
        for place, ours in enumerate(told[OURS])
    )
    return (
        f"- With 1,000 labels, class and score has an ECE of {between(OURS, 'ece')}, at most {AIM} on {reached(OURS)}; "
        f"with 3,000 labels {between(MORE, 'ece')}, on {reached(MORE)}. A perfectly calibrated forecast would have "
        f"{between(OURS, 'ece_by_chance')} on as many test pictures, by chance. A constant "
        f"confidence, the accuracy of the 1,000 pictures, has {between('constant', 'ece')}, and isotonic "
        "regression on the score "
        f"{between('isotonic', 'ece')}. Isotonic regression on held-out confidences after the fit does not help: "
        f"{between(AFTER, 'ece')}. The remaining error is due to the limited number of labels.\n"
        f"- Its Brier score is below those of the own score, isotonic regression and a constant on {lower} of "
        f"{len(told[OURS])} pairs.\n"
    )


def looks_table(lines: Sequence[Line]) -> str:
    rows = []
    for line in lines:
        right = f"{100 * float(line['right']):.1f} %" if line["right"] else "–"
        rows.append(f"| {line['pictures']} | {100 * float(line['share']):.1f} % | {right} | {line['splits']} |")
    return "| pictures | share | right | splits with a threshold |\n|---|---|---|---|\n" + "\n".join(rows) + "\n"


def main(results: Path = RESULTS, page: Path | None = PAGE, splits: int = SPLITS) -> None:
    """Measure everything, and write the CSVs and what the pages say of them."""
    lines = list(second_look(splits))
    write(results / "closed_looks.csv", lines)
    if page:
        fill(GUIDE, "looks", f"\n{looks_table(lines)}")
    for name, measured in TABLES.items():
        lines = list(measured(splits))
        write(results / f"closed_{name}.csv", lines)
        if page and name == "emotions":
            fill(page, "emotions-note", f"\n{emotions_note(lines)}")


if __name__ == "__main__":
    main()
