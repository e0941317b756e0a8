"""5-fold cross-validation of calibrators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration import logit, metrics
from looktwice.calibration.calibrators import Calibrator
from looktwice.calibration.distribution import Distribution, truth_rank
from looktwice.calibration.evidence import NO_SCORES, Codes, Floats, Places, Scale, useless
from looktwice.calibration.jury import Jury, asked as views_asked, by_scores
from looktwice.calibration.logit import FOLDS
from looktwice.calibration.metrics import Intervals, Scores
from looktwice.calibration.shares import Constant, Naive
from looktwice.calibration.votes import LabelledVotes
from looktwice.errors import FitError

Evidence = Literal["labels", "scores"]
"""The evidence that a calibrator uses: labels alone, or labels with scores and ranked lists."""
OWN, ONE_QUERY = "own score", "one query, calibrated"
"""The names of two baselines: the classifier's uncalibrated score, and the jury without views."""


@dataclass(frozen=True, eq=False)
class Outcome:
    """Predictions of a calibrator for labelled pictures, with their losses."""

    name: str
    queries: float
    """Queries per picture, including the base query; the mean if the number varies."""
    label: Codes
    confidence: Floats
    correct: NDArray[np.bool_]
    brier: Floats
    nll: Floats
    true_probability: Floats
    """The probability of the true option; all labels that were not returned are treated as one option."""
    through: Floats
    """The cumulative probability of all options up to the true one, in descending order of probability."""
    rank: Places
    """The rank of the true option, from 1."""
    truth: Codes
    """The code of each true label, OUTSIDE if it is not in the vocabulary."""
    evidence: Evidence = "labels"
    """The evidence that the calibrator used."""

    @classmethod
    def from_predictions(
        cls,
        name: str,
        queries: float,
        label: Codes,
        confidence: Floats,
        distribution: Distribution,
        truths: Codes,
        evidence: Evidence = "labels",
    ) -> Self:
        """Build an outcome from predicted labels, confidences and distributions."""
        place, loss = truth_rank(distribution, truths), (distribution.brier(truths), distribution.nll(truths))
        correct, true = label == truths, place.own
        return cls(
            name, queries, label, confidence, correct, *loss, true, place.through, place.rank, truths, evidence=evidence
        )

    def scores(self) -> Scores:
        """Metrics of accuracy, calibration and ranking."""
        return metrics.score(self.confidence, self.correct, self.brier, self.nll)

    def intervals(self, seed: int = 0) -> Intervals:
        """Bootstrap 95 % intervals of the scores."""
        return metrics.bootstrap(self.confidence, self.correct, self.brier, self.nll, seed=seed)

    def of_rows(self, rows: NDArray[np.bool_] | slice) -> Self:
        """The outcome for a subset of the pictures."""
        return replace(self, **{field: getattr(self, field)[rows] for field in ARRAYS})


def outcome(calibrator: Calibrator, labelled: LabelledVotes, name: str | None = None) -> Outcome:
    """Evaluate a fitted calibrator on labelled pictures."""
    return Outcome.from_predictions(
        name or calibrator.name,
        1 if calibrator.name in (Naive.name, Constant.name) else _plain(1.0 + float(views_asked(labelled).mean())),
        calibrator.predict(labelled),
        calibrator.confidence(labelled),
        calibrator.distribution(labelled),
        labelled.truths,
        "scores" if by_scores(calibrator, labelled).any() else "labels",
    )


def check_count(pictures: int, least: int = 2 * FOLDS) -> None:
    """Raise an error if there are too few pictures for cross-validation."""
    if pictures < least:
        raise FitError(
            f"{pictures} labelled pictures are too few; give at least {least}, preferably 200", code="labels-too-few"
        )


def cross_fit(calibrator: Calibrator, labelled: LabelledVotes, seed: int = 0, n_selection: int = 0) -> Outcome:
    """Evaluate a calibrator on each fold after fitting it on the other four.

    The first `n_selection` pictures, which were used for model selection, are used only for fitting.
    """
    parts = []
    for train, test in folds(len(labelled), n_selection, seed):
        fitted = calibrator.fit(labelled.take(train))
        parts.append((outcome(fitted, labelled.take(test)), test))
    return joined(parts)


def baselines(labelled: LabelledVotes) -> list[Outcome]:
    """The single-query baselines: a confidence of 1, and the accuracy as a constant confidence.

    The accuracy is computed on all pictures: a per-fold accuracy would vary and appear to rank the pictures.
    """
    return [outcome(calibrator.fit(labelled), labelled) for calibrator in (Naive(), Constant())]


def own_score(labelled: LabelledVotes, scale: Scale | None = None) -> Outcome | None:
    """Use the classifier's own score as confidence; returns None if it returns no scores, or only ranks.

    `scale` converts scores to probabilities; by default it is inferred from these pictures. An answer without a score
    has confidence 0.
    """
    evidence = labelled.evidence
    if evidence is None or useless(evidence) == NO_SCORES:
        return None
    scale = scale or Scale.learn(evidence)
    if scale.kind == "rank":
        return None
    confidence = np.nan_to_num(scale.claims(evidence))
    distribution = Distribution(labelled.base[:, None], confidence[:, None], labelled.classes)
    return Outcome.from_predictions(OWN, 1, labelled.base, confidence, distribution, labelled.truths, "scores")


def one_query(calibrator: Jury, labelled: LabelledVotes, n_selection: int = 0) -> Outcome:
    """Cross-validate the jury without views: its confidence is the calibrated score, or the accuracy without scores."""
    return replace(cross_fit(calibrator, labelled.under([]), n_selection=n_selection), name=ONE_QUERY)


ARRAYS = ("label", "confidence", "correct", "brier", "nll", "true_probability", "through", "rank", "truth")


def _plain(number: float) -> float:
    """Convert integral floats to int, so that nine queries are printed as 9, not 9.0."""
    return int(number) if number.is_integer() else number


def folds(pictures: int, n_selection: int, seed: int) -> list[tuple[Places, Places]]:
    """(training, test) indices of each fold; each picture after the first `n_selection` is tested once."""
    check_count(pictures - n_selection)
    fold = np.concatenate([np.full(n_selection, FOLDS), logit.folds(pictures - n_selection, FOLDS, seed)])
    return [(np.flatnonzero(fold != part), np.flatnonzero(fold == part)) for part in range(FOLDS)]


def joined(parts: Sequence[tuple[Outcome, Places]]) -> Outcome:
    """Concatenate outcomes, restoring the order of the pictures."""
    order = np.argsort(np.concatenate([places for _, places in parts]))

    def whole(field: str) -> NDArray[np.generic]:
        return np.concatenate([getattr(part, field) for part, _ in parts])[order]

    arrays = {field: whole(field) for field in ARRAYS}
    queries = float(np.average([part.queries for part, _ in parts], weights=[len(places) for _, places in parts]))
    evidence: Evidence = "scores" if any(part.evidence == "scores" for part, _ in parts) else "labels"
    return Outcome(parts[0][0].name, _plain(queries), **arrays, evidence=evidence)  # type: ignore[arg-type]
