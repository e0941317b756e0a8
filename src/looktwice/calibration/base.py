"""The interface of calibrators, which convert votes to probabilities. `fit` returns a fitted copy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration import metrics
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.votes import Codes, Floats, LabelledVotes, Tally, Votes, base_tally, vote_tally
from looktwice.errors import FitError

Ballot = Literal["base", "vote"]
"""The label that the confidence refers to: the base answer, or the most frequent answer."""

TALLIES = {"base": base_tally, "vote": vote_tally}


class Calibrator(Protocol):
    """A method that converts votes to probabilities."""

    name: ClassVar[str]

    def fit(self, labelled: LabelledVotes) -> Self:
        """Return a copy fitted on labelled pictures."""

    def predict(self, votes: Votes) -> Codes:
        """(n,): the predicted label."""

    def confidence(self, votes: Votes) -> Floats:
        """(n,): the probability that the predicted label is right, in [0, 1]."""

    def interval(self, votes: Votes) -> tuple[Floats, Floats]:
        """(n,) twice: the 95 % interval for the confidence that an unlimited number of such views would give."""

    def distribution(self, votes: Votes) -> Distribution:
        """The probability of every label."""


@dataclass(frozen=True)
class ShareCalibrator(ABC):
    """A calibrator with a single feature, the share of agreeing views. Subclasses define `learn` and `curve`."""

    name: ClassVar[str]
    ballot: Ballot = field(default="base", kw_only=True)

    def fit(self, labelled: LabelledVotes) -> Self:
        labelled.check()
        tally = TALLIES[self.ballot](labelled)
        return self.learn(self._share(tally), tally.label == labelled.truths, labelled.classes)

    def predict(self, votes: Votes) -> Codes:
        return TALLIES[self.ballot](votes).label

    def confidence(self, votes: Votes) -> Floats:
        return self.curve(self._share(TALLIES[self.ballot](votes)))

    def interval(self, votes: Votes) -> tuple[Floats, Floats]:
        tally = TALLIES[self.ballot](votes)
        low, high = metrics.wilson(tally.agree, tally.asked)
        return self.curve(low), self.curve(high)

    def distribution(self, votes: Votes) -> Distribution:
        tally = TALLIES[self.ballot](votes)
        confidence = self.curve(self._share(tally))
        return Distribution(tally.label[:, None], confidence[:, None], votes.classes)

    def _share(self, tally: Tally) -> Floats:
        return tally.smoothed()

    @abstractmethod
    def learn(self, share: Floats, correct: NDArray[np.bool_], classes: int) -> Self:
        """Return a copy fitted on the share of agreeing views and the correctness of each answer, both (n,)."""

    @abstractmethod
    def curve(self, share: Floats) -> Floats:
        """The confidence for each share of agreeing views."""


def fitted(value: float | None, calibrator: ShareCalibrator) -> float:
    if value is None:
        raise unfitted(calibrator)
    return value


def unfitted(calibrator: ShareCalibrator) -> FitError:
    return FitError(
        f"the calibrator {calibrator.name} has not been fitted; call fit(labelled_votes) first", code="not-fitted"
    )
