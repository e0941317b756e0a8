"""The interface of calibrators: votes → probability. `fit` returns the same calibrator with its figures."""

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
"""Whose label is believed: the picture's own answer, or the one that most views give."""

TALLIES = {"base": base_tally, "vote": vote_tally}


class Calibrator(Protocol):
    """One way to turn votes into a probability."""

    name: ClassVar[str]

    def fit(self, labelled: LabelledVotes) -> Self:
        """The same calibrator, learned from pictures whose truth is known."""

    def predict(self, votes: Votes) -> Codes:
        """(n,): the label that is believed."""

    def confidence(self, votes: Votes) -> Floats:
        """(n,): the probability that this label is right, in [0, 1]."""

    def interval(self, votes: Votes) -> tuple[Floats, Floats]:
        """(n,) twice: 95 % interval of the confidence that many more such views would give."""

    def distribution(self, votes: Votes) -> Distribution:
        """The probability of every label."""


@dataclass(frozen=True)
class ShareCalibrator(ABC):
    """A calibrator that looks at one number a picture: the share of views that agree. It has `learn` and `curve`."""

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
        """The same calibrator, learned from the share of views that agree and whether the answer was right, (n,)."""

    @abstractmethod
    def curve(self, share: Floats) -> Floats:
        """The confidence where this share of the views agrees."""


def fitted(value: float | None, calibrator: ShareCalibrator) -> float:
    if value is None:
        raise unfitted(calibrator)
    return value


def unfitted(calibrator: ShareCalibrator) -> FitError:
    return FitError(
        f"the calibrator {calibrator.name} has not been fitted; call fit(labelled_votes) first", code="not-fitted"
    )
