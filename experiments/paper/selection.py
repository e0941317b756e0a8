"""By which rule the paper chose setting and a: four rules, on all tested pictures, beside its Tables 1 and 2.

Each rule searches the whole grid on the labelled pictures (the first 500 of CIFAR, all of the photos) with up to ten
draws, by the ballot that is then reported; a is fitted again with S draws on all labelled pictures. `brier` takes the
least Brier score, `ece` the least ECE, `accuracy - ece` the greatest difference, and `ece, accuracy kept` the least ECE
among settings within .02 of the best accuracy. By the base ballot accuracy is always the same, so that the last three
are one rule there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from experiments.paper import published
from experiments.paper.answers import draws_of
from experiments.paper.tables import ARGMAX, BALLOTS, TRANSFORMS, Parts, Row, Study, argmax
from looktwice.calibration import crossfit
from looktwice.calibration.crossfit import Outcome
from looktwice.calibration.metrics import Scores
from looktwice.calibration.shares import Ballot, Gaussian, Objective
from looktwice.views import View

KEPT = 0.02
"""How much accuracy a setting may lose to the best one."""
METRICS = {"acc": "accuracy", "ece": "ece", "auroc": "auroc", "brier": "brier"}
Searched = dict[View, Scores]
RULES: dict[str, tuple[Objective, Callable[[Searched], View]]] = {
    "brier": ("brier", lambda found: min(found, key=lambda view: found[view].brier)),
    "ece": ("ece", lambda found: min(found, key=lambda view: found[view].ece)),
    "accuracy - ece": ("ece", lambda found: max(found, key=lambda view: found[view].accuracy - found[view].ece)),
    "ece, accuracy kept": ("ece", lambda found: min(_accurate(found), key=lambda view: found[view].ece)),
}


def _accurate(found: Searched) -> list[View]:
    best = max(scores.accuracy for scores in found.values())
    return [view for view, scores in found.items() if scores.accuracy >= best - KEPT]


def chosen(study: Study, family: str, ballot: Ballot) -> dict[str, View]:
    """The setting of a transform by each rule."""
    rows = study.subject.labelled(study.size)[: study.size.grid]
    found: dict[Objective, Searched] = {"brier": {}, "ece": {}}
    for view in study.size.settings[family]:
        votes = study.answers.votes(draws_of(view, study.size.grid_draws), rows)
        for objective, scores in found.items():
            fitted = Gaussian(ballot=ballot, objective=objective).fit(votes)
            scores[view] = crossfit.outcome(fitted, votes).scores()
    return {rule: choose(found[objective]) for rule, (objective, choose) in RULES.items()}


def selected(study: Study, accuracy: float) -> Iterator[Row]:
    """One row for each transform, ballot and rule; `accuracy` is the naive one, by which the paper's model is found."""
    subject = study.subject
    model = published.nearest(subject.dataset, subject.title, accuracy)
    for family in (family for family in TRANSFORMS if family in study.size.settings):
        line = published.row(subject.dataset, model, family.title())
        for ballot in BALLOTS:
            for rule, view in chosen(study, family, ballot).items():
                parts = study.parts(draws_of(view, study.size.draws))
                objective = RULES[rule][0]
                fitted, outcome = parts.outcome(Gaussian(ballot=ballot, objective=objective))
                about: Row = {"dataset": subject.dataset, "model": subject.title, "reading": study.size.reading}
                about |= {"transform": family, "rule": rule, "view": str(view), "a": getattr(fitted, "a", None)}
                for name, found in _readings(ballot, outcome, parts):
                    yield (
                        about
                        | {"ballot": name, "S": study.size.draws, "tested": len(found.correct)}
                        | _beside(found, line)
                    )


def _readings(ballot: Ballot, outcome: Outcome, parts: Parts) -> Sequence[tuple[str, Outcome]]:
    """The outcome by its ballot, and that of the base ballot by the most probable label too."""
    if ballot == "vote":
        return [(ballot, outcome)]
    return [(ballot, outcome), (ARGMAX, argmax(outcome, parts.test.truths, parts.test.classes))]


def _beside(found: Outcome, line: published.Line | None) -> Row:
    """The figures with their intervals, the paper's, and the mean distance over the four."""
    scores, ends = found.scores(), found.intervals()
    row: Row = {}
    gaps = []
    for short, name in METRICS.items():
        value, (low, high) = getattr(scores, name), getattr(ends, name) or ("", "")
        theirs = None if line is None else line.values[short]
        row |= {short: value, f"{short}_low": low, f"{short}_high": high, f"paper_{short}": theirs}
        if theirs is not None and value is not None:
            gaps.append(abs(value - theirs))
    return row | {
        "paper_model": "" if line is None else line.model,
        "distance": sum(gaps) / len(gaps) if gaps else None,
    }
