"""The error rate among accepted verdicts, from a sample stratified by confidence.

Within a stratum every picture is equally likely to be labelled, so each label is weighted by the number of pictures per
label in its stratum (Horvitz and Thompson). Labels go where the answers vary most (Neyman allocation).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from looktwice.errors import DataError
from looktwice.model import Bools, Counts, Floats, Places, Verdict, metrics

STRATA = 12
FEWEST = 4
"""Labels that every stratum gets before Neyman allocation starts."""
LEAST_ERROR, MOST_ERROR = 0.01, 0.95
"""Bounds of the error rate expected of a stratum, whatever its confidence."""
LEAST_RATE = 0.002
PRIOR = 5.0
"""Number of labels that the expected error rate of a stratum counts for, in the variance."""


@dataclass(frozen=True)
class Share:
    """The error rate among accepted verdicts, its 95 % interval, and the number of labels."""

    value: float
    low: float
    high: float
    labels: int

    def line(self) -> str:
        """One line for people."""
        interval = f"95 % interval {100 * self.low:.2f} % to {100 * self.high:.2f} %"
        return f"Wrong among accepted: {100 * self.value:.2f} % ({interval}), from {self.labels:,} labels."


@dataclass(frozen=True, eq=False)
class Audit:
    """The accepted verdicts of a run, in strata: which to label next, and the error rate estimated from labels."""

    verdicts: Sequence[Verdict]
    seed: int = 0

    @classmethod
    def from_verdicts(cls, found: Sequence[Verdict], seed: int = 0) -> Audit:
        """An audit of the accepted verdicts among these; of all, if none has a decision."""
        accepted = [verdict for verdict in found if verdict.decision != "review" and not verdict.held]
        if not accepted:
            raise DataError(
                "no verdict is accepted, so there is nothing to audit; score with a larger --max-error",
                code="pictures-none",
            )
        return cls(accepted, seed)

    @cached_property
    def stratum(self) -> Places:
        """(n,): the stratum of each verdict."""
        return strata(np.array([verdict.confidence for verdict in self.verdicts]))

    @cached_property
    def sizes(self) -> Counts:
        """Number of verdicts in each stratum."""
        return np.bincount(self.stratum)

    @cached_property
    def expected(self) -> Floats:
        """The error rate of each stratum, if the confidences are right."""
        doubt = 1.0 - np.array([verdict.confidence for verdict in self.verdicts])
        return np.clip(np.bincount(self.stratum, doubt) / self.sizes, LEAST_ERROR, MOST_ERROR)

    def order(self) -> list[str]:
        """The names in the order in which to label them; every prefix is a stratified sample."""
        rng = np.random.default_rng(self.seed)
        within = [rng.permutation(np.flatnonzero(self.stratum == h)).tolist() for h in range(len(self.sizes))]
        taken, worth = np.zeros(len(self.sizes)), self.sizes * np.sqrt(self.expected * (1.0 - self.expected))
        found = list[str]()
        for _ in self.verdicts:
            few = (taken < FEWEST) & (taken < self.sizes)
            wanted = -taken if few.any() else worth / (taken + 1.0)
            h = int(np.argmax(np.where(few if few.any() else taken < self.sizes, wanted, -np.inf)))
            found.append(self.verdicts[within[h][int(taken[h])]].name)
            taken[h] += 1
        return found

    def share(self, wrong: Mapping[str, bool]) -> Share | None:
        """The estimated error rate, given whether labelled verdicts are wrong; None until every stratum has a label."""
        known = np.array([verdict.name in wrong for verdict in self.verdicts])
        bad = np.array([wrong.get(verdict.name, False) for verdict in self.verdicts])
        count, errors = self._by_stratum(known), self._by_stratum(bad)
        if not (count > 0).all():
            return None
        return share(self.sizes, count, errors, self.expected)

    def _by_stratum(self, which: Bools) -> Counts:
        return np.bincount(self.stratum[which], minlength=len(self.sizes))


def strata(confidence: Floats, most: int = STRATA) -> Places:
    """(n,): strata of similar confidence, the most confident first; equal confidences share a stratum.

    Each has about the same sum of standard deviations (the rule of Dalenius and Hodges).
    """
    value, place, count = np.unique(-confidence, return_inverse=True, return_counts=True)
    error = np.clip(1.0 + value, LEAST_ERROR, MOST_ERROR)
    spread = count * np.sqrt(error * (1.0 - error))
    before = np.cumsum(spread) - spread  # so that a confidence that most answers share is a stratum of its own
    cut = np.minimum(before / spread.sum() * most, most - 1).astype(np.intp)
    return np.unique(cut, return_inverse=True)[1][place]


def share(sizes: Counts, count: Counts, errors: Counts, expected: Floats) -> Share:
    """The error rate over all strata, from the number of labels and errors in each.

    The interval is Wilson's at the effective sample size (Korn and Graubard). A stratum without errors among few labels
    does not have variance zero: for the variance, its error rate is shrunk towards the expected one, multiplied by the
    ratio of observed to expected errors over all strata (empirical Bayes).
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
    low, high = metrics.wilson(value * worth, worth)
    return Share(value, float(low), float(high), int(count.sum()))
