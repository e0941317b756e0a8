"""Held-out results of confidences, and the basis of guarantees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from looktwice.calibration import (
    ONE_QUERY,
    OWN,
    AdaptiveSets,
    Conformal,
    Evidence,
    Outcome,
    SetKind,
    SetMaker,
    TruthRank,
    risk,
)
from looktwice.decisions.sequence import Point
from looktwice.errors import ProfileError
from looktwice.plots import notebook

FEW = 5
"""The minimum number of wrong answers, and of right ones, for which AUROC is reported."""
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0, lt=2**31)]


class Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Figure(Part):
    """A number and its 95 % interval; None if undefined."""

    value: float | None
    low: float | None
    high: float | None

    @classmethod
    def rounded(cls, value: float | None, interval: tuple[float, float] | None) -> Self:
        """Round to six decimals, far finer than the interval."""
        numbers = (value, *(interval or (None, None)))
        rounded = [None if x is None or not np.isfinite(x) else round(float(x), 6) for x in numbers]
        return cls(value=rounded[0], low=rounded[1], high=rounded[2])


class Result(Part):
    """The held-out results of one calibrator."""

    calibrator: str
    queries: int | float
    """Queries per picture; the mean if pictures differ."""
    figures: dict[str, Figure]
    evidence: Evidence = "labels"
    """The evidence that the calibrator used."""

    @classmethod
    def from_outcome(cls, outcome: Outcome, intervals: bool = True) -> Self:
        """The figures of an outcome, with their 95 % intervals unless they are points of a curve."""
        ends = asdict(outcome.intervals()) if intervals else {}
        figures = {key: Figure.rounded(value, ends.get(key)) for key, value in asdict(outcome.scores()).items()}
        if min(outcome.correct.sum(), (~outcome.correct).sum()) < FEW:
            figures["auroc"] = Figure.rounded(None, None)
        return cls(calibrator=outcome.name, queries=outcome.queries, figures=figures, evidence=outcome.evidence)

    def title(self) -> str:
        """The name of the calibrator, marked if it uses scores."""
        scored = self.evidence == "scores" and self.calibrator not in (OWN, ONE_QUERY)
        return f"{self.calibrator} with scores" if scored else self.calibrator

    def record(self) -> dict[str, object]:
        """Calibrator, queries and the values, as a table row."""
        values = {key: figure.value for key, figure in self.figures.items()}
        return {"calibrator": self.calibrator, "queries": self.queries, "evidence": self.evidence, **values}


class FrontierPoint(Part):
    """A candidate sequence, with its held-out loss and cost."""

    sources: tuple[str, ...]
    enough: tuple[float, ...]
    """The confidence at which asking stops after each source but the last."""
    queries: float
    price: float
    """The mean price per picture."""
    brier: Figure
    chosen: bool = False
    to_buy: Count = 0
    """The number of queries about labelled pictures still needed to fit it, since only the pilot was asked; 0 if
    none."""

    @classmethod
    def from_point(cls, point: Point, chosen: bool = False) -> Self:
        """Convert a point of the search to its stored form."""
        return cls(
            sources=tuple(map(str, point.sequence.sources)),
            enough=point.sequence.enough,
            queries=round(point.queries, 4),
            price=float(f"{point.price:.6g}"),
            brier=Figure.rounded(point.loss, point.interval),
            chosen=chosen,
        )

    def record(self) -> dict[str, object]:
        """One row of a table."""
        figures = {"queries": self.queries, "price": self.price, "brier": self.brier.value}
        ends = {"brier_low": self.brier.low, "brier_high": self.brier.high}
        return {"sources": " ".join(self.sources), **figures, **ends, "chosen": self.chosen, "to_buy": self.to_buy}


def results_html(title: str, results: Sequence[Result]) -> str:
    """Results as an HTML table, one calibrator per row."""
    rows = [result.record() for result in results]
    cells = [[f"{cell:.3g}" if isinstance(cell, float) else cell for cell in row.values()] for row in rows]
    return notebook.table(title, list(rows[0]) if rows else ["no picture was labelled"], cells)


def results_text(title: str, results: Sequence[Result]) -> str:
    """The main results as lines of text, one calibrator per row."""
    shown = ("accuracy", "ece", "auroc", "brier")
    lines = [title, f"{'calibrator':24}{'queries':>8}" + "".join(f"{key:>10}" for key in shown)]
    for result in results:
        values = [result.figures[key].value for key in shown]
        cells = "".join(f"{'–' if value is None else format(value, '.3f'):>10}" for value in values)
        lines.append(f"{result.calibrator:24}{result.queries:>8.3g}{cells}")
    return "\n".join(lines)


class HeldOut(Part):
    """The confidence of each labelled picture on held-out folds, and whether its answer was right."""

    confidence: tuple[Share, ...]
    """The confidence at which guarantees count the answer."""
    correct: tuple[bool, ...]
    true_probability: tuple[Share, ...] = ()
    """The probability of the true option; all labels that were not returned are one option."""
    through: tuple[Share, ...] = ()
    """The cumulative probability up to the true option, in order of probability."""
    rank: tuple[Count, ...] = ()
    """The rank of the true option, from 1."""
    predicted: tuple[Count, ...] = ()
    truth: tuple[int, ...] = ()
    """The codes of each answer and true label in the profile's vocabulary; negative if not in it."""

    @classmethod
    def combine(cls, held_out: Outcome, final: Outcome) -> Self:
        """Combine the outcomes of cross-validation and of the final calibrator, as the basis of guarantees.

        Many pictures have the same answers and thus the same probability of the true label, which varies slightly
        between folds. The worse probability is used, so that such variations do not exclude a tenth of the pictures
        from their sets; for confidences, see `counted_confidence`. Rounding is in the same direction, so that a
        threshold above one of these numbers is also above the unrounded one. Pictures without an answer from any chosen
        source are left out, since they are not scored in use.
        """
        answered = held_out.label >= 0
        held_out, final = held_out.of_rows(answered), final.of_rows(answered)
        through = np.ceil(np.maximum(held_out.through, final.through) * 1e6 - 1e-3) / 1e6
        counted = risk.counted_confidence(held_out.confidence, final.confidence, held_out.correct)
        true_probability = np.floor(np.minimum(held_out.true_probability, final.true_probability) * 1e6) / 1e6
        return cls(
            confidence=tuple(np.minimum(np.ceil(counted * 1e6) / 1e6, 1.0).tolist()),
            correct=tuple(held_out.correct.tolist()),
            true_probability=tuple(true_probability.tolist()),
            through=tuple(np.minimum(through, 1.0).tolist()),
            rank=tuple(np.maximum(held_out.rank, final.rank).tolist()),
            predicted=tuple(held_out.label.tolist()),
            truth=tuple(held_out.truth.tolist()),
        )

    @model_validator(mode="after")
    def _one_each(self) -> Self:
        lists = (self.true_probability, self.through, self.rank, self.predicted, self.truth)
        optional = set(map(len, lists))
        if len(self.correct) != len(self.confidence) or not optional <= {0, len(self.confidence)}:
            raise ValueError("confidence, correct and true_probability must each have one value per picture")
        return self

    def arrays(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The confidences and whether each answer was right."""
        return np.array(self.confidence, np.float64), np.array(self.correct, bool)

    def answers(self, vocabulary: Sequence[str] = ()) -> risk.Answers:
        """Decode labels with a vocabulary, for claims about some of them; empty if unknown."""
        if not self.predicted or not vocabulary:
            return risk.Answers.unnamed(*self.arrays())
        words = np.array([*vocabulary, ""])
        predicted, truth = (np.array(codes) for codes in (self.predicted, self.truth))
        if max(predicted.max(), truth.max()) >= len(vocabulary):
            raise ProfileError(
                "this profile's held-out answers are not in its vocabulary; fit again", code="profile-incomplete"
            )
        return risk.Answers(self.arrays()[0], words[predicted], words[np.where(truth < 0, len(vocabulary), truth)])

    def threshold(self, max_error: float, level: float = 0.95) -> float | None:
        """The lowest threshold at which accepted answers have an error rate of at most `max_error`."""
        return risk.threshold(*self.arrays(), max_error, level)

    def conformal(self, coverage: float = 0.9, kind: SetKind = "aps") -> SetMaker:
        """The conformal predictor at this coverage."""
        if not (self.true_probability if kind == "lac" else self.through and self.rank):
            raise ProfileError(
                f"this profile lacks the data that {kind} sets need; fit again",
                code="profile-incomplete",
            )
        own = np.array(self.true_probability)
        if kind == "lac":
            return Conformal.learn(own, coverage)
        return AdaptiveSets.learn(kind, TruthRank(own, np.array(self.through), np.array(self.rank)), coverage)
