"""Votes and truths → what they teach. Pure: no network, no disk, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray

from secondlook import scoring
from secondlook.beliefs import Belief, Constant, Naive
from secondlook.errors import FitError
from secondlook.profile import HeldOut, Result, figure
from secondlook.scoring import Intervals, Scores
from secondlook.votes import Codes, Floats, Votes

FOLDS = 5


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a belief said about labelled pictures, and how it turned out."""

    name: str
    queries: int
    """Queries a picture, the first one included."""
    label: Codes
    confidence: Floats
    correct: NDArray[np.bool_]
    brier: Floats
    nll: Floats

    def scores(self) -> Scores:
        """The headline figures."""
        return scoring.score(self.confidence, self.correct, self.brier, self.nll)

    def intervals(self, seed: int = 0) -> Intervals:
        """Their 95 % intervals, by resampling pictures."""
        return scoring.bootstrap(self.confidence, self.correct, self.brier, self.nll, seed=seed)

    def result(self) -> Result:
        """Both, as a profile keeps them."""
        values, ends = asdict(self.scores()), asdict(self.intervals())
        return Result(
            belief=self.name, queries=self.queries, figures={key: figure(values[key], ends[key]) for key in values}
        )

    def held_out(self) -> HeldOut:
        """Confidence and correctness of each picture, as a profile keeps them."""
        return HeldOut(confidence=tuple(np.round(self.confidence, 6).tolist()), correct=tuple(self.correct.tolist()))


def outcome(belief: Belief, votes: Votes, truths: Codes, name: str | None = None) -> Outcome:
    """How a fitted belief fares on pictures it was not fitted on."""
    distribution = belief.distribution(votes)
    label = belief.predict(votes)
    return Outcome(
        name or belief.name,
        1 if belief.name in (Naive.name, Constant.name) else 1 + len(votes.panel),
        label,
        belief.confidence(votes),
        label == truths,
        distribution.brier(truths),
        distribution.nll(truths),
    )


def cross_fit(belief: Belief, votes: Votes, truths: Codes, seed: int = 0) -> Outcome:
    """How the belief fares on each fifth of the pictures when it is fitted on the others."""
    if len(votes) < 2 * FOLDS:
        raise FitError(f"{len(votes)} labelled pictures are too few; give at least {2 * FOLDS}, better 200")
    folds = np.random.default_rng(seed).permutation(len(votes)) % FOLDS
    parts, places = [], []
    for fold in range(FOLDS):
        train, test = np.flatnonzero(folds != fold), np.flatnonzero(folds == fold)
        fitted = belief.fit(votes.take(train), truths[train])
        parts.append(outcome(fitted, votes.take(test), truths[test]))
        places.append(test)
    return _joined(parts, np.argsort(np.concatenate(places)))


def baselines(votes: Votes, truths: Codes) -> list[Outcome]:
    """What one has without asking again: full trust, and the accuracy as trust in every answer.

    The accuracy is that of all pictures: fitted by folds, constant trust would differ between folds and seem to rank.
    """
    return [outcome(belief.fit(votes, truths), votes, truths) for belief in (Naive(), Constant())]


def _joined(parts: Sequence[Outcome], order: NDArray[np.intp]) -> Outcome:
    def whole(field: str) -> NDArray[np.generic]:
        return np.concatenate([getattr(part, field) for part in parts])[order]

    arrays = {field: whole(field) for field in ("label", "confidence", "correct", "brier", "nll")}
    return Outcome(parts[0].name, parts[0].queries, **arrays)  # type: ignore[arg-type]
