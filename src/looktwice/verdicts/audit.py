"""How often accepted verdicts are wrong, from few labels: strata of similar confidence, the doubtful ones sampled more.

Every picture of a stratum has the same chance to be labelled, which is known, so each label stands for as many pictures
as its stratum has for each of its labels (Horvitz and Thompson). Labels are spent where answers differ most (Neyman).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from looktwice.calibration.metrics import wilson
from looktwice.calibration.votes import Bools, Counts, Floats, Places
from looktwice.errors import DataError
from looktwice.verdicts.review import Doubt

STRATA = 12
FEWEST = 4
"""Labels that every stratum gets before doubtful ones get more."""
LEAST_ERROR, MOST_ERROR = 0.01, 0.95
"""The least and the most error that is expected of a stratum, whatever its confidence."""
LEAST_RATE = 0.002
PRIOR = 5.0
"""Labels for which the expected error of a stratum counts, in the variance."""


@dataclass(frozen=True)
class Share:
    """The error rate of accepted verdicts with its 95 % interval, and the number of labels it is estimated from."""

    value: float
    low: float
    high: float
    labels: int

    def line(self) -> str:
        """The same in words."""
        interval = f"95% interval {self.low:.2%} to {self.high:.2%}"
        return f"Wrong among accepted: {self.value:.2%} ({interval}), from {self.labels:,} labels."


@dataclass(frozen=True, eq=False)
class Audit:
    """The accepted verdicts of a run, in strata: which to label next, and the error rate that the labels imply."""

    doubts: Sequence[Doubt]
    seed: int = 0

    @classmethod
    def of(cls, found: Sequence[Doubt], seed: int = 0) -> Audit:
        """The accepted verdicts among these; all, where none says what to do with it."""
        accepted = [doubt for doubt in found if doubt.decision != "review"]
        if not accepted:
            raise DataError("no verdict is accepted, so that none can be wrong; score with a larger --max-error")
        return cls(accepted, seed)

    @cached_property
    def stratum(self) -> Places:
        """(n,): the stratum of each verdict."""
        return strata(np.array([doubt.confidence for doubt in self.doubts]))

    @cached_property
    def sizes(self) -> Counts:
        """How many verdicts each stratum has."""
        return np.bincount(self.stratum)

    @cached_property
    def expected(self) -> Floats:
        """How often the verdicts of each stratum are wrong, if their confidences are right."""
        doubt = 1.0 - np.array([doubt.confidence for doubt in self.doubts])
        return np.clip(np.bincount(self.stratum, doubt) / self.sizes, LEAST_ERROR, MOST_ERROR)

    def order(self) -> list[str]:
        """The names in the order in which they are to be labelled: each beginning of it is a good sample."""
        rng = np.random.default_rng(self.seed)
        within = [rng.permutation(np.flatnonzero(self.stratum == h)).tolist() for h in range(len(self.sizes))]
        taken, worth = np.zeros(len(self.sizes)), self.sizes * np.sqrt(self.expected * (1.0 - self.expected))
        found = list[str]()
        for _ in self.doubts:
            few = (taken < FEWEST) & (taken < self.sizes)
            wanted = -taken if few.any() else worth / (taken + 1.0)
            h = int(np.argmax(np.where(few if few.any() else taken < self.sizes, wanted, -np.inf)))
            found.append(self.doubts[within[h][int(taken[h])]].name)
            taken[h] += 1
        return found

    def share(self, wrong: Mapping[str, bool]) -> Share | None:
        """The error rate by labels that say whether verdicts are wrong; None until every stratum has some."""
        known = np.array([doubt.name in wrong for doubt in self.doubts])
        bad = np.array([wrong.get(doubt.name, False) for doubt in self.doubts])
        count, errors = self._by_stratum(known), self._by_stratum(bad)
        if not (count > 0).all():
            return None
        return share(self.sizes, count, errors, self.expected)

    def _by_stratum(self, which: Bools) -> Counts:
        return np.bincount(self.stratum[which], minlength=len(self.sizes))


def strata(confidence: Floats, most: int = STRATA) -> Places:
    """(n,): strata of similar confidence, the surest first; equal confidences are in one stratum.

    They are cut where the cumulated standard deviation of the answers is the same (Dalenius and Hodges).
    """
    value, place, count = np.unique(-confidence, return_inverse=True, return_counts=True)
    error = np.clip(1.0 + value, LEAST_ERROR, MOST_ERROR)
    spread = count * np.sqrt(error * (1.0 - error))
    before = np.cumsum(spread) - spread  # so that a confidence which most answers have is a stratum of its own
    cut = np.minimum(before / spread.sum() * most, most - 1).astype(np.intp)
    return np.unique(cut, return_inverse=True)[1][place]


def share(sizes: Counts, count: Counts, errors: Counts, expected: Floats) -> Share:
    """The share of errors over all strata, from the errors among the labels of each.

    The interval is Wilson's at the number of labels that would tell as much if drawn at random (Korn and Graubard).
    No error among few labels is no proof: for the variance, each stratum's error is shrunk towards what its confidences
    make expect, times how much more errors, or fewer, there are than expected in all strata together (empirical Bayes).
    """
    weight = sizes / sizes.sum()
    value = float(weight @ (errors / count))
    off = (errors.sum() + 1.0) / (count @ expected + 1.0)
    rate = (errors + PRIOR * np.clip(off * expected, LEAST_RATE, MOST_ERROR)) / (count + PRIOR)
    variance = float(weight**2 @ (rate * (1.0 - rate) / count * (1.0 - count / sizes)))
    if variance == 0.0:  # every picture is labelled
        return Share(value, value, value, int(count.sum()))
    smooth = float(weight @ rate)
    worth = smooth * (1.0 - smooth) / variance
    low, high = wilson(value * worth, worth)
    return Share(value, float(low), float(high), int(count.sum()))
