"""Sparse distributions, and prediction sets with a stated coverage (conformal prediction).

A distribution stores a probability for each returned or likely label; other classes share the rest evenly.

Set thresholds are learned from held-out probabilities of labelled pictures. With pictures that were not used for
fitting, this is split conformal prediction, which guarantees the stated coverage. With cross-validation, it is
cross-conformal prediction, which has a weaker guarantee, but its coverage is close to the stated one in practice.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Literal, Protocol, Self

import numpy as np

from looktwice.calibration.evidence import MISSING, Bools, Codes, Counts, Floats, Places
from looktwice.calibration.risk import check_share
from looktwice.calibration.votes import Votes


def first_column(table: Codes, codes: Codes) -> Places:
    """(n,): the first column in each row that contains the row's code, or the number of columns if none does."""
    hit = (table == codes[:, None]) & (table != MISSING)
    return np.where(hit.any(axis=1), hit.argmax(axis=1), table.shape[1])


@dataclass(frozen=True, eq=False)
class TruthRank:
    """The rank of one option per picture, in descending order of probability."""

    own: Floats
    """The probability of the option."""
    through: Floats
    """The cumulative probability up to and including the option."""
    rank: Places
    """The rank, from 1; all unlisted labels are treated as one option, which is ranked last."""


def truth_rank(distribution: Distribution, truths: Codes) -> TruthRank:
    """The rank of the true option of each picture."""
    column, place = first_column(distribution.labels, truths)[:, None], np.arange(distribution.labels.shape[1])
    own, named = (distribution.named * (place == column)).sum(axis=1), column[:, 0] < len(place)
    before = (distribution.named > own[:, None]) | ((distribution.named == own[:, None]) & (place <= column))
    before &= distribution.labels != MISSING
    rank = np.where(named, before.sum(axis=1), (distribution.labels != MISSING).sum(axis=1) + 1)
    through = np.where(named, (distribution.named * before).sum(axis=1), 1.0)
    return TruthRank(np.where(named, own, distribution.rest()), through, rank)


@dataclass(frozen=True, eq=False)
class Distribution:
    """Probabilities of the listed labels of each picture; the rest is spread evenly over all other classes.

    The listed labels are those that were returned and, if the jury has a confusion step, other likely labels.
    """

    labels: Codes
    """(n, m): the listed labels, MISSING where a picture has fewer than m."""
    named: Floats
    """(n, m): the probabilities of the listed labels, 0 where there is no label."""
    classes: int

    def rest(self) -> Floats:
        """(n,): the total probability of all unlisted classes."""
        return np.clip(1.0 - self.named.sum(axis=1), 0.0, 1.0)

    def unnamed(self) -> Floats:
        """(n,): the probability of each unlisted class."""
        return np.where(self.others() > 0, self.rest() / np.maximum(self.others(), 1), 0.0)

    def others(self) -> Counts:
        """(n,): the number of unlisted classes."""
        return self.classes - (self.labels != MISSING).sum(axis=1)

    def of(self, codes: Codes) -> Floats:
        """(n,): the probability of one label per picture; OUTSIDE is treated as an unlisted class."""
        hit = self.labels == codes[:, None]
        return np.where(hit.any(axis=1), (self.named * hit).sum(axis=1), self.unnamed())

    def top(self) -> Codes:
        """(n,): the most probable listed label of each picture."""
        best = np.where(self.labels == MISSING, -1.0, self.named).argmax(axis=1)
        top: Codes = self.labels[np.arange(len(self.labels)), best]
        return top

    def brier(self, truths: Codes) -> Floats:
        """(n,): Σ_c (p_c − y_c)² over all classes, in [0, 2]."""
        squares: Floats = (self.named**2).sum(axis=1) + self.rest() * self.unnamed()
        return squares + 1.0 - 2.0 * self.of(truths)

    def nll(self, truths: Codes) -> Floats:
        """(n,): −log of the probability of the true label, clipped at 1e-12."""
        return -np.log(np.maximum(self.of(truths), 1e-12))

    def likeliest(self, most: int) -> Distribution:
        """Keep only the `most` most probable listed labels; all other classes share the rest."""
        order = np.argsort(-self.named, axis=1, kind="stable")[:, :most]
        labels, named = np.take_along_axis(self.labels, order, axis=1), np.take_along_axis(self.named, order, axis=1)
        return Distribution(labels, named, self.classes)

    def dense(self, size: int) -> Floats:
        """(n, size): the probability of the first `size` labels of the vocabulary."""
        table = np.repeat(self.unnamed()[:, None], size, axis=1)
        row, column = np.nonzero(self.labels != MISSING)
        table[row, self.labels[row, column]] = self.named[row, column]
        return table


# Prediction sets ------------------------------------------------------------------------------------------------------

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
    """LAC: all options whose probability reaches one threshold; "something else" is treated as one option.

    These sets are the smallest on average, but their coverage is lower for difficult pictures.
    """

    least: float
    """The threshold: the lowest probability of an option in a set; 0 includes all options."""

    @classmethod
    def learn(cls, true_probability: Floats, coverage: float = 0.9) -> Self:
        """Fit on the held-out probability of each true option; `coverage` is in (0, 1)."""
        return cls(-_quantile(-true_probability, coverage, 0.0))

    def sets(self, distribution: Distribution, draws: Floats | None = None) -> Sets:
        """Include all labels that reach the threshold, and always the most probable label."""
        likely = (distribution.named >= self.least) & (distribution.labels != MISSING)
        return Sets.build(distribution, likely, distribution.rest() >= self.least)


@dataclass(frozen=True)
class AdaptiveSets:
    """The most probable labels up to a cumulative-probability threshold; difficult pictures have larger sets.

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
        return Sets.build(distribution, likely & named, self._scores(last, draws) <= self.most)

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
    def build(cls, distribution: Distribution, likely: Bools, other: Bools) -> Self:
        """Build sets of the likely labels and the most probable one; add "something else" only if classes remain."""
        top = distribution.labels == distribution.top()[:, None]
        unnamed = distribution.classes - (distribution.labels != MISSING).sum(axis=1)
        labels = np.where(likely | top, distribution.labels, np.int32(MISSING))
        return cls(labels, other & (unnamed > 0), unnamed)

    def sizes(self) -> Counts:
        """(n,): the number of options in each set; "something else" is treated as one option."""
        return (self.labels != MISSING).sum(axis=1) + self.other

    def true_sizes(self) -> Counts:
        """(n,): the number of classes in each set, including all classes that "something else" stands for."""
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
