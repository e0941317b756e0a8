"""Prediction sets with a stated coverage (conformal prediction).

Thresholds are learned from held-out probabilities of labelled pictures. With pictures that were not used for fitting,
this is split conformal prediction, which guarantees the stated coverage. With cross-validation, it is cross-conformal
prediction, which has a weaker guarantee, but in practice a coverage close to the stated one.
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
"""The kind of prediction set: adaptive (APS; randomised unless deterministic), regularised adaptive (RAPS), or all
labels above one threshold (LAC)."""
PENALTY, FREE = 0.05, 2
"""RAPS: the penalty of each additional label, in units of probability, and the number of labels without a penalty."""


def draws(votes: Votes) -> Floats:
    """(n,): a uniform number in [0, 1) for each picture, derived from its digest, or from its name if the digest is
    unknown."""
    texts = [digest or name for digest, name in zip(votes.digests or votes.names, votes.names, strict=True)]
    hashes = (hashlib.sha256(f"prediction set {text}".encode()).digest() for text in texts)
    return np.array([int.from_bytes(value[:6], "big") / 2**48 for value in hashes], np.float64)


class SetMaker(Protocol):
    """The interface of fitted prediction-set methods."""

    def sets(self, distribution: Distribution, draws: Floats) -> Sets:
        """The prediction set of each picture; `draws` (n,) are uniform in [0, 1)."""


@dataclass(frozen=True)
class Conformal:
    """LAC: all options whose probability reaches one threshold; "something else" counts as one option.

    These sets are the smallest on average, but their coverage is lower for difficult pictures.
    """

    least: float
    """The threshold: the lowest probability of an option in a set; 0 includes all options."""

    @classmethod
    def learn(cls, distribution: Distribution, truths: Codes, coverage: float = 0.9) -> Self:
        """Fit on held-out distributions and truths; `coverage` is in (0, 1)."""
        return cls.of(true_label_probability(distribution, truths), coverage)

    @classmethod
    def of(cls, true_probability: Floats, coverage: float = 0.9) -> Self:
        """Fit on the probabilities that `true_label_probability` returns."""
        return cls(-_quantile(-true_probability, coverage, 0.0))

    def sets(self, distribution: Distribution, draws: Floats | None = None) -> Sets:
        """Include all labels that reach the threshold, and always the most probable label."""
        likely = (distribution.named >= self.least) & (distribution.labels != MISSING)
        return Sets.of(distribution, likely, distribution.rest() >= self.least)


@dataclass(frozen=True)
class AdaptiveSets:
    """The most probable labels up to a threshold of cumulative probability: more of them for difficult pictures.

    These are adaptive prediction sets (APS, Romano et al. 2020) or, with a penalty, regularised ones (RAPS,
    Angelopoulos et al. 2021). "Something else" comes last, as one option with the remaining probability. In randomised
    sets, the label that crosses the threshold is included with a probability equal to the fraction of it that lies
    below the threshold. The most probable label is always included.
    """

    most: float
    """The largest cumulative probability in a set; infinity includes all labels."""
    penalty: float = 0.0
    """RAPS: the penalty added to the cumulative probability for each label beyond the first FREE."""
    randomised: bool = True

    @classmethod
    def learn(cls, kind: SetKind, place: TruthRank, coverage: float = 0.9) -> Self:
        """Fit on the ranks of the true labels of held-out pictures; `coverage` is in (0, 1)."""
        maker = cls(np.inf, PENALTY if kind == "raps" else 0.0, kind != "aps-deterministic")
        even = np.random.default_rng(0).random(len(place.own))
        return cls(_quantile(maker._scores(place, even), coverage, np.inf), maker.penalty, maker.randomised)

    def sets(self, distribution: Distribution, draws: Floats) -> Sets:
        """Add labels in order of probability until the threshold is reached."""
        named, rest = distribution.labels != MISSING, distribution.rest()
        order = np.argsort(np.where(named, -distribution.named, 1.0), axis=1, kind="stable")
        ranked = np.take_along_axis(distribution.named, order, axis=1)
        places = TruthRank(ranked, ranked.cumsum(axis=1), np.arange(1, order.shape[1] + 1))
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
    """(n, m): the labels in each set; MISSING for listed labels that are not in the set."""
    other: Bools
    """(n,): whether the set includes "something else", the labels that were not returned."""
    unnamed: Counts
    """(n,): the number of classes that were not returned."""

    @classmethod
    def of(cls, distribution: Distribution, likely: Bools, other: Bools) -> Self:
        """Build sets of the likely labels and the most probable one; add "something else" only if classes remain."""
        top = distribution.labels == distribution.top()[:, None]
        unnamed = distribution.classes - (distribution.labels != MISSING).sum(axis=1)
        labels = np.where(likely | top, distribution.labels, np.int32(MISSING))
        return cls(labels, other & (unnamed > 0), unnamed)

    def sizes(self) -> Counts:
        """(n,): the number of options in each set; "something else" counts as one."""
        return (self.labels != MISSING).sum(axis=1) + self.other

    def true_sizes(self) -> Counts:
        """(n,): the number of classes in each set; "something else" counts as all the classes that it stands for."""
        return (self.labels != MISSING).sum(axis=1) + self.other * self.unnamed

    def list_truth(self, truths: Codes) -> Bools:
        """(n,): whether the set lists the true label explicitly."""
        listed: Bools = ((self.labels == truths[:, None]) & (self.labels != MISSING)).any(axis=1)
        return listed

    def hold(self, distribution: Distribution, truths: Codes) -> Bools:
        """(n,): whether the set contains the true label, either explicitly or as "something else"."""
        named = (distribution.labels == truths[:, None]).any(axis=1)
        inside: Bools = (self.labels == truths[:, None]).any(axis=1)
        return np.where(named, inside, self.other)
