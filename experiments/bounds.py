"""Guarantees by class and on misses, on real answers about labels and tags, beside MAPIE and crepes.

python -m experiments.bounds    results/bounds.csv

The answers are in ../shared/answers: three sets of faces, for which Microsoft's API is asked first and two others
stand for views, by their labels alone, and 11,540 photos, for which Microsoft's API returns tags with scores; the four
most frequent tags are taken. Every one of 200 splits draws labelled pictures; a calibrator is fitted on them, and
thresholds are made at a level of 95 % from its held-out folds, as a profile makes them. All other pictures are tested.

`bound` is that of each claim, for the classes or tags in `about`, which are the two most frequent ones: on errors three
quarters, all, or one and a half of how often the API is wrong when it says the label, on misses .05 or .1. Claims about
two classes are made together. `made` counts splits in which every claim could be made, `broken` those of them in which
a claim does not hold on the tested pictures, `accepted` is the share of answers that is accepted, of those that the
claims are about (errors), that do not say the tag (misses of a tag), or of all (misses of classes), over the splits in
which it was made, and `hindsight` the share that the laxest thresholds accept at which the claims hold on the tested
pictures themselves. `possible` is an upper bound on how many splits allow claims on errors: those in which each passes
a single test at the best threshold for the tested pictures, as `cascades.power` counts. MAPIE and crepes are slow:
they have 20 splits, of the photos and of one set of faces.

MAPIE's `BinaryClassificationController` gets the same held-out confidences of the same answers, one controller for each
claim, at a level corrected for their number; its list of thresholds is 0, .01, … .99. crepes makes class-conditional
(Mondrian) sets from the same probabilities; an answer is accepted where the set at this bound has one label, which is
how they are used to bound misses. What they promise holds on average over splits and not at a level.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments import script
from experiments.cascades import power
from experiments.closed import APIS, DATASETS, emotions, split
from experiments.tags import pascal
from experiments.writing import Row, merge
from looktwice.calibration import crossfit
from looktwice.calibration.evidence import Bools, Floats
from looktwice.calibration.jury import Jury
from looktwice.calibration.risk import NEVER, Answers, Claim, broken, concerned, level_of_each, thresholds
from looktwice.calibration.tag_votes import LabelledTagVotes
from looktwice.calibration.tags import TagJury
from looktwice.calibration.votes import LabelledVotes
from looktwice.decisions import tagging
from looktwice.decisions.results import HeldOut

RESULTS = Path(__file__).parent / "results"
SPLITS, LABELS, LEVEL = 200, 1500, 0.95
COMPARED, COMPARED_SPLITS = "ferplus", 20
"""The set of faces, and the number of splits, for MAPIE and crepes."""
MISSES = (0.05, 0.1)
ERRORS = (0.75, 1.0, 1.5)
"""Bounds on errors, as shares of how often the API itself is wrong when it says the label."""
CLASSES = 2
"""The most frequent classes or tags, about which claims are made."""
TAGS, TAG_LABELS = 4, 1000
FIRST, PRESENT = "microsoft", "present"
GRID = np.arange(100) / 100
"""The thresholds that MAPIE tries."""


class Trial(NamedTuple):
    """One split: the labelled answers by held-out folds, and the tested ones."""

    labelled: Answers
    tested: Answers


Accepts = Callable[[Trial, Sequence[Claim]], Bools | None]
"""Which tested answers a method accepts; None where it can make no claim."""


# Answers -------------------------------------------------------------------------------------------------------------


def by_class(votes: LabelledVotes) -> dict[str, float]:
    """The most frequent classes, and how often the API is wrong that says them."""
    common = np.argsort(-np.bincount(votes.truths, minlength=len(votes.vocabulary)), kind="stable")[:CLASSES]
    return {votes.vocabulary[code]: float((votes.truths[votes.base == code] != code).mean()) for code in common}


def faces(votes: LabelledVotes, splits: int) -> list[Trial]:
    """Splits of the answers about faces."""
    words, trials = np.array(votes.vocabulary), []
    for seed in range(splits):
        fit, test = split(len(votes), seed, LABELS)
        labelled, jury = votes.take(fit), Jury().fit(votes.take(fit))
        rests = HeldOut.combine(crossfit.cross_fit(Jury(), labelled), crossfit.outcome(jury, labelled))
        seen = crossfit.outcome(jury, votes.take(test))
        tested = Answers(seen.confidence, words[seen.label], words[seen.truth])
        trials.append(Trial(rests.answers(votes.vocabulary), tested))
    return trials


def frequent(votes: LabelledTagVotes) -> LabelledTagVotes:
    """The same about the most frequent tags alone, which takes less time."""
    places = np.argsort(-votes.truths.sum(axis=0), kind="stable")[:TAGS]
    names = tuple(votes.tags[place] for place in places)
    cut = (votes.ranks[:, :, places], votes.scores[:, :, places], votes.truths[:, places])
    return replace(votes, tags=names, ranks=cut[0], scores=cut[1], truths=cut[2])


def by_tag(votes: LabelledTagVotes) -> dict[int, float]:
    """The places of the most frequent tags, and how often the API is wrong that returns them."""
    common = np.argsort(-votes.truths.sum(axis=0), kind="stable")[:CLASSES].tolist()
    returned = votes.ranks[:, 0] > 0
    return {place: float((~votes.truths[returned[:, place], place]).mean()) for place in common}


def photos(votes: LabelledTagVotes, splits: int) -> dict[int, list[Trial]]:
    """Splits of the answers about each of the most frequent tags."""
    trials: dict[int, list[Trial]] = {place: [] for place in by_tag(votes)}
    for seed in range(splits):
        fit, test = split(len(votes), seed, TAG_LABELS)
        labelled, tested = votes.take(fit), votes.take(test)
        jury, held_out = TagJury().fit(labelled), tagging.held_out(labelled, TagJury().fit)
        counted = tagging.counted_probability(labelled, held_out, jury.probability(labelled))
        probability = jury.probability(tested)
        for place, done in trials.items():
            done.append(Trial(tag_answers(counted, labelled, place), tag_answers(probability, tested, place)))
    return trials


def tag_answers(probability: Floats, votes: LabelledTagVotes, place: int) -> Answers:
    """What is said of one tag: present or absent, and how sure that is."""
    present, words = probability[:, place] >= 0.5, np.array(["absent", PRESENT])
    sure = np.where(present, probability[:, place], 1.0 - probability[:, place])
    return Answers(sure, words[present.astype(int)], words[votes.truths[:, place].astype(int)])


# Methods -------------------------------------------------------------------------------------------------------------


def ours(trial: Trial, claims: Sequence[Claim]) -> Bools | None:
    """Accepted by our thresholds."""
    made = thresholds(claims, trial.labelled, LEVEL)
    least = np.array([made.for_label(str(word)) for word in trial.tested.predicted])
    wanted = [made.for_label(claim.label) for claim in claims if claim.kind == "error"] or [made.by_label["*"]]
    return trial.tested.confidence >= least if max(wanted) < NEVER else None


def mapie(trial: Trial, claims: Sequence[Claim]) -> Bools | None:
    """Accepted by MAPIE's risk control, one controller for each claim."""
    from mapie.risk_control import BinaryClassificationController as Controller

    accepted = np.zeros(len(trial.tested.confidence), bool) | (claims[0].kind == "miss")
    for claim in claims:
        about = concerned(claim, claims, trial.labelled)
        sure, against = trial.labelled.confidence[about], broken(claim, trial.labelled)[about]
        if claim.kind == "miss":  # what says the class itself is never accepted as something else
            sure = np.where(against, sure, 0.0)
        level = level_of_each(LEVEL, len(claims))
        risk = "precision" if claim.kind == "error" else "accuracy"
        missed = claim.kind == "miss"
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            controller = Controller(
                lambda given: np.column_stack([1.0 - given[:, 0], given[:, 0]]),
                risk=risk,
                target_level=1.0 - claim.bound,
                confidence_level=level,
                list_predict_params=GRID[sure.max(initial=GRID[1]) > GRID],  # if one accepts nothing, none is valid
            )
            # A miss is an answer that reaches the threshold although nothing should.
            controller.calibrate(sure[:, None], np.zeros(len(sure), int) if missed else (~against).astype(int))
        if not len(controller.valid_predict_params):
            return None
        above = trial.tested.confidence > min(controller.valid_predict_params)
        if missed:
            accepted &= above | (trial.tested.predicted == claim.label)
        else:
            accepted |= above & (trial.tested.predicted == claim.label)
    return accepted


def crepes(trial: Trial, claims: Sequence[Claim]) -> Bools | None:
    """Accepted where the class-conditional set has one label: every class but the one that is said is ruled out.

    What is known of an answer is the confidence in it, and the rest is shared by the other classes as a whole.
    """
    from crepes import ConformalClassifier

    accepted = np.zeros(len(trial.tested.confidence), bool) | (claims[0].kind == "miss")
    for claim in claims:
        labelled, tested = ((each.predicted == claim.label, each.confidence) for each in trial)
        true = trial.labelled.truth == claim.label
        if not true.any() or true.all():
            return None
        chance, said = (np.where(mine, sure, 1.0 - sure) for mine, sure in (labelled, tested))
        conformal = ConformalClassifier().fit(np.where(true, 1.0 - chance, chance), bins=true.astype(int))
        p_true, p_other = (
            conformal.predict_p(score[:, None], bins=np.full(len(said), group))[:, 0]
            for score, group in ((1.0 - said, 1), (said, 0))
        )
        if claim.kind == "miss":
            accepted &= (p_true <= claim.bound) | tested[0]
        else:
            accepted |= (p_other <= claim.bound) & tested[0]
    return accepted


def hindsight(trial: Trial, claims: Sequence[Claim]) -> Bools:
    """Accepted by the laxest thresholds at which the claims hold on the tested answers."""
    tested = trial.tested
    accepted = np.zeros(len(tested.confidence), bool) | (claims[0].kind == "miss")
    for claim in claims:
        about = concerned(claim, claims, tested)
        order = np.argsort(-tested.confidence[about], kind="stable")
        sure, wrong = tested.confidence[about][order], np.cumsum(broken(claim, tested)[about][order])
        counted = np.arange(1, len(wrong) + 1) if claim.kind == "error" else np.full(len(wrong), len(wrong))
        ends = np.append(sure[1:] < sure[:-1], True)  # all that share a confidence are accepted together
        fits = np.flatnonzero(ends & (wrong <= claim.bound * counted))
        least = NEVER if not len(fits) else 0.0 if fits[-1] == len(wrong) - 1 else sure[fits[-1]]
        above, mine = tested.confidence >= least, tested.predicted == claim.label
        accepted = accepted & (above | mine) if claim.kind == "miss" else accepted | (above & mine)
    return accepted


OURS = "looktwice"
METHODS: dict[str, Accepts] = {OURS: ours, "MAPIE": mapie, "crepes": crepes}


# Results -------------------------------------------------------------------------------------------------------------


def holds(claim: Claim, claims: Sequence[Claim], tested: Answers, accepted: Bools) -> bool:
    """Whether a claim holds of these accepted answers."""
    about = concerned(claim, claims, tested)
    against = int((about & accepted & broken(claim, tested)).sum())
    return against <= claim.bound * int((about if claim.kind == "miss" else about & accepted).sum())


def possible(trial: Trial, claim: Claim) -> float:
    """How often the best single threshold for the tested answers passes the test of a claim on errors."""
    about = trial.tested.predicted == claim.label
    sure, right = np.where(about, trial.tested.confidence, -1.0), trial.tested.correct & about
    return power(sure, right, claim.bound, len(trial.labelled.confidence))


def measured(name: str, trials: Sequence[Trial], claims: Sequence[Claim], methods: Iterable[str]) -> Iterator[Row]:
    """One line for each method."""
    kind, said = claims[0].kind, [claim.label for claim in claims]
    chances = [min(possible(trial, claim) for claim in claims) for trial in trials] if kind == "error" else []
    for method in methods:
        accepts, lost, shares, best = METHODS[method], 0, list[float](), list[float]()
        used = trials if accepts is ours else trials[:COMPARED_SPLITS]
        for trial in used:
            accepted = accepts(trial, claims)
            mine = np.isin(trial.tested.predicted, said)
            about = (
                ~mine if kind == "miss" and len(said) == 1 else mine if kind == "error" else np.ones(len(mine), bool)
            )
            if accepted is None or not (accepted & about).any():
                continue
            lost += not all(holds(claim, claims, trial.tested, accepted) for claim in claims)
            shares.append(float(accepted[about].mean()))
            best.append(float(hindsight(trial, claims)[about].mean()))
        yield {
            "set": name,
            "about": " ".join(said),
            "kind": kind,
            "bound": " ".join(f"{claim.bound:g}" for claim in claims),
            "method": method,
            "made": str(len(shares)),
            "possible": f"{sum(chances[: len(used)]):.1f}" if chances else "",
            "broken": str(lost),
            "accepted": f"{np.mean(shares):.4f}" if shares else "",
            "hindsight": f"{np.mean(best):.4f}" if best else "",
            "splits": str(len(used)),
        }


def of_faces(dataset: str, splits: int) -> Iterator[Row]:
    """The lines of a set of faces."""
    votes = replace(emotions(dataset, [FIRST, *(api for api in APIS if api != FIRST)]), evidence=None)
    trials, wrong = faces(votes, splits), by_class(votes)
    claims = [[Claim(round(share * often, 3), word) for word, often in wrong.items()] for share in ERRORS]
    claims += [[Claim(bound, word, "miss") for word in wrong] for bound in MISSES]
    for together in claims:
        yield from measured(dataset, trials, together, METHODS if dataset == COMPARED else [OURS])


def of_photos(splits: int) -> Iterator[Row]:
    """The lines of the photos, tag by tag."""
    votes = frequent(pascal().under([0]))
    wrong = by_tag(votes)
    for place, trials in photos(votes, splits).items():
        claims = [Claim(round(share * wrong[place], 3), PRESENT) for share in ERRORS]
        claims += [Claim(bound, PRESENT, "miss") for bound in MISSES]
        for claim in claims:
            yield from measured(f"photos, {votes.tags[place]}", trials, [claim], METHODS)


def main(_: Sequence[str] = (), results: Path = RESULTS) -> None:
    """Measure every claim, and write results/bounds.csv: faces by their labels, then photos by their tags."""
    path = results / "bounds.csv"
    for rows in (*(of_faces(dataset, SPLITS) for dataset in DATASETS), of_photos(SPLITS)):
        merge(path, list(rows), ("set", "about", "kind", "bound", "method"))


if __name__ == "__main__":
    script.run(main, __doc__, [])
