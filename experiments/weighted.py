"""Labels of pictures that were not all as likely to be labelled: whether guarantees and sets hold, and what fails.

python -m experiments.weighted [simulated] [MODEL …]      results/weighted.csv, rows of other subjects stay

Each split labels pictures that are visited in a random order. Of `doubtful` choices, the first 200 visited are all
labelled, and then those about which all views agree with one chance in two; of `sure` choices, those with a dissent
with one in three. `even` guarantees and sets rest on the even sample of the labels (`LabelledVotes.even`), as the
product has it; `plain` ones take all labels for a random sample. `broken` is how often the accepted ones among all
other pictures were wrong more often than guaranteed with 95 % certainty; `covered` how often adaptive sets of 90 % held
the truth, on average. The simulated classifier's votes and truths are drawn from known shares.
Votes are those that `python -m experiments.general ask` kept. Set OPENBLAS_NUM_THREADS=1.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from experiments import general, script
from experiments.writing import cells, merge
from looktwice.calibration import crossfit
from looktwice.calibration.distribution import draws
from looktwice.calibration.evidence import Floats, Places
from looktwice.calibration.jury import Jury
from looktwice.calibration.shares import base_tally
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.decisions.results import HeldOut
from looktwice.views import GENERAL

RESULTS = Path(__file__).parent / "results" / "weighted.csv"
ERRORS = {"simulated": 0.1, "resnet20": 0.05, "mobilenetv2": 0.2}
"""The subjects, and how often accepted answers may be wrong."""
SPLITS, VISITED, FIRST, COVERAGE = 200, 600, 200, 0.9
CHANCES = {"doubtful": (0.5, 1.0), "sure": (1.0, 1 / 3)}
"""How likely pictures are to be labelled about which all views agree, and others."""
COLUMNS = ("subject", "chosen", "method", "splits", "labels", "counted", "guaranteed", "accepted", "broken", "covered")


@cache
def subject(name: str) -> LabelledVotes:
    """The votes about a population of pictures."""
    return simulated(np.random.default_rng(0), 4000) if name == "simulated" else general.stored(name, GENERAL)


def simulated(rng: np.random.Generator, pictures: int) -> LabelledVotes:
    """Ten classes; a picture's difficulty decides how often views stray, and whether the base answer is right."""
    base, hard = rng.integers(0, 10, pictures), rng.beta(0.3, 1.5, pictures)
    stray = rng.random((pictures, 8)) < hard[:, None]
    views = np.where(stray, (base[:, None] + rng.integers(1, 10, (pictures, 8))) % 10, base[:, None])
    wrong = rng.random(pictures) < 0.6 * hard
    truths = np.where(wrong, (base + rng.integers(1, 10, pictures)) % 10, base)
    return Votes.from_labels(base, views, truths, vocabulary=np.arange(10))


@dataclass(frozen=True)
class Result:
    """What came of one way to use labels, in one split."""

    labels: int
    counted: int
    """Labels on which the guarantee and the sets rest."""
    accepted: float | None
    """The share of other pictures that is accepted; None where nothing can be guaranteed."""
    broken: bool
    covered: float


def chosen(votes: LabelledVotes, how: str, rng: np.random.Generator) -> tuple[Places, Floats]:
    """The pictures that are labelled, and how likely each was to be, beside the others."""
    visited = rng.permutation(len(votes))[:VISITED]
    unanimous = base_tally(votes).agree[visited] == len(votes.panel)
    chance = np.where(unanimous, *CHANCES[how])
    shown = rng.random(VISITED) < chance
    if how == "doubtful":
        shown[:FIRST], chance[:FIRST] = True, chance.min()
    return visited[shown], chance[shown]


def results_of(votes: LabelledVotes, rows: Places, chance: Floats, max_error: float) -> dict[str, Result]:
    """Fit on labelled pictures and see on all others what becomes of a guarantee and of sets."""
    labelled = replace(votes.take(rows), probabilities=tuple(chance.tolist()))
    fitted = Jury().fit(labelled)
    judged, own = crossfit.cross_fit(Jury(), labelled), crossfit.outcome(fitted, labelled)
    others = votes.take(np.setdiff1d(np.arange(len(votes)), rows))
    confidence, distribution = fitted.confidence(others), fitted.distribution(others)
    right, lots = fitted.predict(others) == others.truths, draws(others)
    found = {}
    for method, counted in (("even", labelled.even()), ("plain", np.ones(len(rows), bool))):
        held_out = HeldOut.combine(judged.of_rows(counted), own.of_rows(counted))
        sets = held_out.conformal(COVERAGE).sets(distribution, lots)
        covered, threshold = float(sets.hold(distribution, others.truths).mean()), held_out.threshold(max_error)
        accepted = confidence >= (np.inf if threshold is None else threshold)
        share = None if threshold is None else float(accepted.mean())
        broken = bool(accepted.any() and (~right)[accepted].mean() > max_error)
        found[method] = Result(len(rows), int(counted.sum()), share, broken, covered)
    return found


def study(name: str) -> list[dict[str, object]]:
    """One row for each way to choose pictures and to use their labels."""
    found: dict[tuple[str, str], list[Result]] = {}
    for split in range(SPLITS):
        for place, how in enumerate(CHANCES):
            chosen_ = chosen(subject(name), how, np.random.default_rng([split, place]))
            results = results_of(subject(name), *chosen_, ERRORS[name])
            for method, each in results.items():
                found.setdefault((how, method), []).append(each)
    return [{"subject": name, "chosen": how, "method": method, **_means(all_)} for (how, method), all_ in found.items()]


def _means(found: list[Result]) -> dict[str, object]:
    accepted = [each.accepted for each in found if each.accepted is not None]
    return {
        "splits": len(found),
        "labels": float(np.mean([each.labels for each in found])),
        "counted": float(np.mean([each.counted for each in found])),
        "guaranteed": len(accepted) / len(found),
        "accepted": float(np.mean(accepted)) if accepted else 0.0,
        "broken": float(np.mean([each.broken for each in found])),
        "covered": float(np.mean([each.covered for each in found])),
    }


def main(names: list[str], results: Path = RESULTS) -> None:
    """Write the rows of these subjects; those of others stay."""
    for name in names:
        rows = [cells(row, ".4g") for row in study(name)]
        print(*(" ".join(row.values()) for row in rows), sep="\n", flush=True)
        merge(results, rows, ("subject",))


if __name__ == "__main__":
    script.run(lambda words: main(words or list(ERRORS)), __doc__, ERRORS)
