"""Prediction sets that hold the truth as often as stated (split conformal)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

from looktwice.calibration.distribution import Distribution, true_label_probability
from looktwice.calibration.votes import MISSING, Bools, Codes, Counts, Floats
from looktwice.verdicts.risk import check_share


@dataclass(frozen=True)
class Conformal:
    """Sets that hold the truth at least as often as stated; "something else" may be in a set, as one option."""

    least: float
    """The least probability of an option in a set; 0 lets all in."""

    @classmethod
    def learn(cls, distribution: Distribution, truths: Codes, coverage: float = 0.9) -> Self:
        """From labelled pictures, by split conformal prediction; `coverage` in (0, 1)."""
        return cls.of(true_label_probability(distribution, truths), coverage)

    @classmethod
    def of(cls, true_probability: Floats, coverage: float = 0.9) -> Self:
        """The same from what `true_label_probability` gave for each labelled picture."""
        check_share("coverage", coverage)
        true_probability = np.sort(true_probability)
        # Of n + 1 pictures in any order, the new one is among the ⌈(n + 1)·coverage⌉ most probable that often.
        place = len(true_probability) - math.ceil((len(true_probability) + 1) * coverage - 1e-9)
        return cls(float(true_probability[place]) if place >= 0 else 0.0)

    def sets(self, distribution: Distribution) -> Sets:
        """The labels of each picture that are probable enough, and the most probable one in any case."""
        top = distribution.labels == distribution.top()[:, None]
        likely = (distribution.named >= self.least) & (distribution.labels != MISSING)
        others = distribution.classes > (distribution.labels != MISSING).sum(axis=1)
        labels = np.where(likely | top, distribution.labels, np.int32(MISSING))
        return Sets(labels, others & (distribution.rest() >= self.least))


@dataclass(frozen=True, eq=False)
class Sets:
    """The labels that each picture may have."""

    labels: Codes
    """(n, m): MISSING where a label is not in the set."""
    other: Bools
    """(n,): whether it may be a label that nobody named."""

    def sizes(self) -> Counts:
        """(n,): how many options each set holds."""
        return (self.labels != MISSING).sum(axis=1) + self.other

    def hold(self, distribution: Distribution, truths: Codes) -> Bools:
        """(n,): whether the truth is in the set, as a label or as something else."""
        named = (distribution.labels == truths[:, None]).any(axis=1)
        inside: Bools = (self.labels == truths[:, None]).any(axis=1)
        return np.where(named, inside, self.other)
