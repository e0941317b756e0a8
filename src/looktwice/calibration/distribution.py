"""Sparse distributions: a probability for each returned or likely label; other classes share the rest evenly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from looktwice.calibration.votes import MISSING, Codes, Counts, Floats, Places


def true_label_probability(distribution: Distribution, truths: Codes) -> Floats:
    """(n,): the probability of the true option; all unlisted labels count as one option."""
    hit = (distribution.labels == truths[:, None]) & (distribution.labels != MISSING)
    return np.where(hit.any(axis=1), (distribution.named * hit).sum(axis=1), distribution.rest())


@dataclass(frozen=True, eq=False)
class TruthRank:
    """The rank of one option per picture, in descending order of probability."""

    own: Floats
    """The probability of the option."""
    through: Floats
    """The cumulative probability up to and including the option."""
    rank: Places
    """The rank, from 1; all unlisted labels count as one option, which is ranked last."""


def truth_rank(distribution: Distribution, truths: Codes) -> TruthRank:
    """The rank of the true option of each picture."""
    hit = (distribution.labels == truths[:, None]) & (distribution.labels != MISSING)
    own, named = (distribution.named * hit).sum(axis=1), hit.any(axis=1)
    column = np.where(named, hit.argmax(axis=1), distribution.labels.shape[1])[:, None]
    place = np.arange(distribution.labels.shape[1])
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
        """(n,): the probability of one label per picture; OUTSIDE counts as an unlisted class."""
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
        """(n,): −log of the probability of the truth, clipped at 1e-12."""
        return -np.log(np.maximum(self.of(truths), 1e-12))

    def likeliest(self, most: int) -> Distribution:
        """Keep at most `most` listed labels, the most probable ones; all other classes share the rest."""
        order = np.argsort(-self.named, axis=1, kind="stable")[:, :most]
        labels, named = np.take_along_axis(self.labels, order, axis=1), np.take_along_axis(self.named, order, axis=1)
        return Distribution(labels, named, self.classes)

    def dense(self, size: int) -> Floats:
        """(n, size): the probability of the first `size` labels of the vocabulary."""
        table = np.repeat(self.unnamed()[:, None], size, axis=1)
        row, column = np.nonzero(self.labels != MISSING)
        table[row, self.labels[row, column]] = self.named[row, column]
        return table
