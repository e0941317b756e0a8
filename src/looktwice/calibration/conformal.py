"""Prediction sets with a stated coverage (conformal prediction).

The sets are learned from each labelled picture's probabilities under a calibrator that had not seen it. On pictures
that took no part in fitting this is split conformal prediction, whose coverage is at least what is stated; on the
held-out folds of cross-validation it is cross-conformal prediction, for which less is proved and which in practice
covers about what is stated.
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
"""What each further label of a regularised set counts as probability, and how many labels cost nothing."""


def draws(votes: Votes) -> Floats:
    """(n,): a uniform draw from [0, 1) for each picture, a function of its pixels.

    It comes from the digest, or from the name where that is not known.
    """
    texts = [digest or name for digest, name in zip(votes.digests or votes.names, votes.names, strict=True)]
    hashes = (hashlib.sha256(f"prediction set {text}".encode()).digest() for text in texts)
    return np.array([int.from_bytes(each[:6], "big") / 2**48 for each in hashes], np.float64)


class SetMaker(Protocol):
    """A rule that makes prediction sets."""

    def sets(self, distribution: Distribution, draws: Floats) -> Sets:
        """The labels that each picture may have; `draws` (n,) are uniform in [0, 1), one a picture."""


@dataclass(frozen=True)
class Conformal:
    """All options above one probability; "something else" may be in a set, as one option.

    Such sets are the smallest on average, at the expense of doubtful pictures: theirs hold the truth less often.
    """

    least: float
    """The least probability of an option in a set; 0 lets all in."""

    @classmethod
    def learn(cls, distribution: Distribution, truths: Codes, coverage: float = 0.9) -> Self:
        """From labelled pictures that the calibrator has not seen; `coverage` in (0, 1)."""
        return cls.of(true_label_probability(distribution, truths), coverage)

    @classmethod
    def of(cls, true_probability: Floats, coverage: float = 0.9) -> Self:
        """The same from what `true_label_probability` gave for each labelled picture."""
        return cls(-_quantile(-true_probability, coverage, 0.0))

    def sets(self, distribution: Distribution, draws: Floats | None = None) -> Sets:
        """The labels of each picture that are probable enough, and the most probable one in any case."""
        likely = (distribution.named >= self.least) & (distribution.labels != MISSING)
        return Sets.of(distribution, likely, distribution.rest() >= self.least)


@dataclass(frozen=True)
class AdaptiveSets:
    """The most probable labels that together reach a probability: few for clear pictures, more for doubtful ones.

    Adaptive prediction sets (APS, Romano et al. 2020), or regularised ones (RAPS, Angelopoulos et al. 2021) with a
    penalty. "Something else" comes last, as one option with all that is left. The last label that fits in part is let
    in with that part as its chance, if sets are randomised; the most probable label is always in.
    """

    most: float
    """The probability that the labels of a set may reach together, infinite to let all in."""
    penalty: float = 0.0
    """What each label beyond the first FREE ones counts as probability, in addition to its own."""
    randomised: bool = True

    @classmethod
    def learn(cls, kind: SetKind, place: TruthRank, coverage: float = 0.9) -> Self:
        """From the ranks of the truths of labelled pictures that the calibrator has not seen; `coverage` in (0, 1)."""
        maker = cls(np.inf, PENALTY if kind == "raps" else 0.0, kind != "aps-deterministic")
        even = np.random.default_rng(0).random(len(place.own))
        return cls(_quantile(maker._scores(place, even), coverage, np.inf), maker.penalty, maker.randomised)

    def sets(self, distribution: Distribution, draws: Floats) -> Sets:
        """The labels of each picture, the most probable first, until they reach enough."""
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
    """The ⌈(n + 1)·coverage⌉-th least score: of n + 1 pictures in any order, that often the new one has no more."""
    check_share("coverage", coverage)
    place = math.ceil((len(scores) + 1) * coverage - 1e-9)
    return float(np.sort(scores)[place - 1]) if place <= len(scores) else otherwise


@dataclass(frozen=True, eq=False)
class Sets:
    """The labels that each picture may have."""

    labels: Codes
    """(n, m): MISSING where a label is not in the set."""
    other: Bools
    """(n,): whether it may be a label that nobody named."""
    unnamed: Counts
    """(n,): the number of classes that would be."""

    @classmethod
    def of(cls, distribution: Distribution, likely: Bools, other: Bools) -> Self:
        """The likely labels of each picture and the most probable one, and something else where there is anything."""
        top = distribution.labels == distribution.top()[:, None]
        unnamed = distribution.classes - (distribution.labels != MISSING).sum(axis=1)
        labels = np.where(likely | top, distribution.labels, np.int32(MISSING))
        return cls(labels, other & (unnamed > 0), unnamed)

    def sizes(self) -> Counts:
        """(n,): how many options each set holds, "something else" being one."""
        return (self.labels != MISSING).sum(axis=1) + self.other

    def true_sizes(self) -> Counts:
        """(n,): how many classes each set holds, "something else" with all that it stands for."""
        return (self.labels != MISSING).sum(axis=1) + self.other * self.unnamed

    def list_truth(self, truths: Codes) -> Bools:
        """(n,): whether the truth is in the set by its name."""
        listed: Bools = ((self.labels == truths[:, None]) & (self.labels != MISSING)).any(axis=1)
        return listed

    def hold(self, distribution: Distribution, truths: Codes) -> Bools:
        """(n,): whether the truth is in the set, as a label or as something else."""
        named = (distribution.labels == truths[:, None]).any(axis=1)
        inside: Bools = (self.labels == truths[:, None]).any(axis=1)
        return np.where(named, inside, self.other)
