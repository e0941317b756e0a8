"""The paper's advice to practitioners: (T, F_n) of an open model, compared with labels of one's own.

T, a transform with its setting, is the one with the least Brier score on labelled pictures of the open model. F_n is
its noise there, and a is fitted there. The closed model is asked S draws of T and needs no label. This is compared
with calibrators fitted on 50, 200 and 1,000 labels of the closed model, on the same votes, and with the jury on as many
queries of mild views; subsets of the labels were drawn 20 times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from experiments.collected import MILD16
from experiments.paper.answers import draws_of
from experiments.paper.tables import Parts, Row, Study
from looktwice.calibration import crossfit, metrics
from looktwice.calibration.calibrators import Calibrator
from looktwice.calibration.crossfit import Outcome
from looktwice.calibration.evidence import Floats
from looktwice.calibration.jury import Jury
from looktwice.calibration.shares import Gaussian, Probit, Transfer
from looktwice.views import View

LABELS = (50, 200, 1000)
REPEATS = 20
SEED = 24


@dataclass(frozen=True, eq=False)
class Fits:
    """The scores of one calibrator on the tested pictures, fitted several times."""

    ece: Floats
    """(r,): of each fit."""
    auroc: Floats
    """(r,)."""
    brier: Floats
    """(n,): of each picture, the mean over the fits."""


def prescribed(source: Study, target: Study) -> Iterator[Row]:
    """The open model's (T, F_n, a) on the closed one, then what labels of the closed one's own are worth."""
    view, draws = tested(source), target.size.draws
    rows = source.subject.labelled(source.size)
    noise = source.answers.noise(view, rows[: source.size.noise], draws).plain.cumulative
    learned = Transfer(noise=noise).fit(source.answers.votes(draws_of(view, draws), rows))
    same, panel = target.parts(draws_of(view, draws)), target.parts(MILD16[:draws])
    outcome = crossfit.outcome(learned, same.test)
    given = _fits([outcome])
    about: Row = {"open": source.subject.title, "dataset": target.subject.dataset, "closed": target.subject.title}
    about |= {"view": str(view), "S": draws, "tested": len(outcome.correct)}
    yield about | _row("F_n and a of the open model", 0, given, given)
    for labels in (count for count in LABELS if count <= len(same.fit)):
        for name, calibrator, parts in (
            ("F_n of the open model, own a", Transfer(noise=noise), same),
            ("Φ, own a", Gaussian(), same),
            ("Probit", Probit(), same),
            ("Jury, mild views", Jury(ballot="base"), panel),
        ):
            yield about | _row(name, labels, _fitted(calibrator, parts, labels), given)


def tested(source: Study) -> View:
    """The transform and setting with the least Brier score on labelled pictures of the open model."""
    rows = source.subject.labelled(source.size)[: source.size.grid]

    def loss(view: View) -> float:
        votes = source.answers.votes(draws_of(view, source.size.grid_draws), rows)
        return crossfit.outcome(Gaussian().fit(votes), votes).scores().brier

    return min(source.settings.values(), key=loss)


def _fitted(calibrator: Calibrator, parts: Parts, labels: int) -> Fits:
    rng, found = np.random.default_rng([SEED, labels]), []
    for _ in range(REPEATS if labels < len(parts.fit) else 1):
        rows = rng.permutation(len(parts.fit))[:labels]
        found.append(crossfit.outcome(calibrator.fit(parts.fit.take(rows)), parts.test))
    return _fits(found)


def _fits(found: list[Outcome]) -> Fits:
    scores = [outcome.scores() for outcome in found]
    brier = np.mean([outcome.brier for outcome in found], axis=0)
    return Fits(np.array([s.ece for s in scores]), np.array([s.auroc or np.nan for s in scores]), brier)


def _row(name: str, labels: int, found: Fits, given: Fits) -> Row:
    gap = metrics.paired_difference(found.brier, given.brier) if found is not given else None
    return {
        "calibrator": name,
        "labels": labels,
        "fits": len(found.ece),
        "ece": float(found.ece.mean()),
        "ece_sd": float(found.ece.std(ddof=1)) if len(found.ece) > 1 else "",
        "auroc": float(found.auroc.mean()),
        "brier": float(found.brier.mean()),
        "brier_less_open": gap.mean if gap else "",
        "less_open_low": gap.low if gap else "",
        "less_open_high": gap.high if gap else "",
    }
