"""Prediction sets with a stated coverage (conformal prediction).

The sets are learned from held-out probabilities of labelled pictures. On pictures that were not used for fitting this
is split conformal prediction, which guarantees the stated coverage; on the folds of cross-validation it is
cross-conformal prediction, whose proven bound is weaker and whose coverage in practice is close to the stated one.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Literal, Protocol, Self

import numpy as np

from looktwice.calibration.distribution import Distribution, TruthRank, true_label_probability
from looktwice.calibration.risk import check_share
from looktwice.calibration.votes import MISSING, Bools, Codes, Counts, Floats, Votes

SetKind = Literal["aps", "raps", "aps-deterministic", "lac"]
"""How the labels of a set are chosen: adaptive prediction sets (APS) with and without a random last label, regularised
ones (RAPS), or all labels above one threshold (LAC)."""
PENALTY, FREE = 0.05, 2
"""RAPS: the penalty of each further label, in units of probability, and the number of labels without one."""


def draws(votes: Votes) -> Floats:
    """(n,): a uniform draw from [0, 1) for each picture, a function of its pixels.

    It is derived from the digest, or from the name if the digest is unknown.
    """
    texts = [digest or name for digest, name in zip(votes.digests or votes.names, votes.names, strict=True)]
    hashes = (hashlib.sha256(f"prediction set {text}".encode()).digest() for text in texts)
    return np.array([int.from_bytes(each[:6], "big") / 2**48 for each in hashes], np.float64)


class SetMaker(Protocol):
    """A rule that makes prediction sets."""

    def sets(self, distribution: Distribution, draws: Floats) -> Sets:
        """The prediction set of each picture; `draws` (n,) are uniform in [0, 1)."""


@dataclass(frozen=True)
class Conformal:
    """LAC: all options above one probability; "something else" counts as one option.

    These sets are the smallest on average, but cover doubtful pictures less often.
    """

    least: float
    """The lowest probability of an option in a set; 0 includes all."""

    @classmethod
    def learn(cls, distribution: Distribution, truths: Codes, coverage: float = 0.9) -> Self:
        """Fit on held-out distributions and truths; `coverage` is in (0, 1)."""
        return cls.of(true_label_probability(distribution, truths), coverage)

    @classmethod
    def of(cls, true_probability: Floats, coverage: float = 0.9) -> Self:
        """Fit on the result of `true_label_probability`."""
        return cls(-_quantile(-true_probability, coverage, 0.0))

    def sets(self, distribution: Distribution, draws: Floats | None = None) -> Sets:
        """Include the labels above the threshold, and always the most probable one."""
        likely = (distribution.named >= self.least) & (distribution.labels != MISSING)
        return Sets.of(distribution, likely, distribution.rest() >= self.least)


@dataclass(frozen=True)
class AdaptiveSets:
    """The most probable labels whose probabilities sum to a threshold: few for clear pictures, more for doubtful ones.

    Adaptive prediction sets (APS, Romano et al. 2020), or regularised ones (RAPS, Angelopoulos et al. 2021) with a
    penalty. "Something else" comes last, as one option with the remaining mass. In randomised sets, the label that
    crosses the threshold is included with the probability of the part below it. The most probable label is always
    included.
    """

    most: float
    """The largest cumulative probability of a set; infinity includes all labels."""
    penalty: float = 0.0
    """RAPS: the penalty added to the cumulative probability for each label beyond the first FREE."""
    randomised: bool = True

    @classmethod
    def learn(cls, kind: SetKind, place: TruthRank, coverage: float = 0.9) -> Self:
        """Fit on the ranks of the truths of held-out pictures; `coverage` is in (0, 1)."""
        maker = cls(np.inf, PENALTY if kind == "raps" else 0.0, kind != "aps-deterministic")
        even = np.random.default_rng(0).random(len(place.own))
        return cls(_quantile(maker._scores(place, even), coverage, np.inf), maker.penalty, maker.randomised)

    def sets(self, distribution: Distribution, draws: Floats) -> Sets:
        """Add labels in order of probability until the threshold is reached."""
        named, rest = distribution.labels != MISSING, distribution.rest()
        order = np.argsort(np.where(named, -distribution.named, 1.0), axis=1, kind="stable")
        own = np.take_along_axis(distribution.named, order, axis=1)
        places = TruthRank(own, own.cumsum(axis=1), np.arange(1, order.shape[1] + 1))
        likely = np.zeros(named.shape, bool)
        np.put_along_axis(likely, order, self._scores(places, draws[:, None]) <= self.most, axis=1)
        last = TruthRank(rest, np.ones(len(rest)), named.sum(axis=1) + 1)
        return Sets.of(distribution, likely & named, self._scores(last, draws) <= self.most)

    def _scores(self, place: TruthRank, even: Floats) -> Floats:
        part = (1.0 - even) * place.own if self.randomised else 0.0
        return place.through - part + self.penalty * np.maximum(place.rank - FREE, 0)


def _quantile(scores: Floats, coverage: float, otherwise: float) -> float:
    """The conformal quantile: the ⌈(n + 1)·coverage⌉-th smallest score."""
    check_share("coverage", coverage)
    place = math.ceil((len(scores) + 1) * coverage - 1e-9)
    return float(np.sort(scores)[place - 1]) if place <= len(scores) else otherwise


@dataclass(frozen=True, eq=False)
class Sets:
    """Prediction sets of n pictures."""

    labels: Codes
    """(n, m): MISSING where a label is not in the set."""
    other: Bools
    """(n,): whether the set includes labels that were not returned."""
    unnamed: Counts
    """(n,): the number of classes not returned."""

    @classmethod
    def of(cls, distribution: Distribution, likely: Bools, other: Bools) -> Self:
        """Build the sets from included labels and the most probable one, with "something else" if classes remain."""
        top = distribution.labels == distribution.top()[:, None]
        unnamed = distribution.classes - (distribution.labels != MISSING).sum(axis=1)
        labels = np.where(likely | top, distribution.labels, np.int32(MISSING))
        return cls(labels, other & (unnamed > 0), unnamed)

    def sizes(self) -> Counts:
        """(n,): the number of options in each set; "something else" counts as one."""
        return (self.labels != MISSING).sum(axis=1) + self.other

    def true_sizes(self) -> Counts:
        """(n,): the number of classes in each set, with all classes behind "something else"."""
        return (self.labels != MISSING).sum(axis=1) + self.other * self.unnamed

    def list_truth(self, truths: Codes) -> Bools:
        """(n,): whether the set lists the truth itself."""
        listed: Bools = ((self.labels == truths[:, None]) & (self.labels != MISSING)).any(axis=1)
        return listed

    def hold(self, distribution: Distribution, truths: Codes) -> Bools:
        """(n,): whether the truth is in the set, as a label or as something else."""
        named = (distribution.labels == truths[:, None]).any(axis=1)
        inside: Bools = (self.labels == truths[:, None]).any(axis=1)
        return np.where(named, inside, self.other)
