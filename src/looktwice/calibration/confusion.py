"""The confusion step: a table P(truth | label) that corrects the jury's distribution.

P(c) ∝ P_jury(c)^w₁ · exp(w₂ · mean_s log[T(c | v_s) / E(c | v_s)]) · P(truth = c)^w₃

T(c | v) is the frequency of the true label c among all answers v on labelled pictures. It is shrunk towards E, the
table of a classifier with the same accuracy for all labels and evenly distributed errors. The three weights are fitted
on folds that were not used to fit the jury and the table, and are shrunk towards (1, 0, 0). The step is used only if it
lowers the log loss on held-out folds by more than one standard error without clearly raising the Brier score. It can
also predict labels that no answer returned, since these may be the true labels if the classifier is biased.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Protocol, Self

import numpy as np

from looktwice.calibration.distribution import Distribution, first_column
from looktwice.calibration.evidence import MISSING, Codes, Floats, Places
from looktwice.calibration.logit import Patterns, Prior, chances, descend, folds, held_out_fits, losses, pays
from looktwice.calibration.options import Utilities
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.errors import DataError

MOST_CLASSES, FEWEST = 100, 50
"""The step is skipped if there are more than MOST_CLASSES classes, or fewer than FEWEST labelled pictures."""
PRIOR, EACH = 2.0, 2.0
"""Pseudo-counts: PRIOR, distributed as E, in each table row, and EACH per class in the true-label frequencies."""
RIDGE = 3.0
"""The ridge penalty that shrinks the weights towards (1, 0, 0)."""
LISTED = 20
"""The number of labels with individual probabilities; the other labels share the rest evenly."""


class Predictor(Protocol):
    """The interface of the jury whose distribution the step corrects."""

    def distribution(self, votes: Votes) -> Distribution: ...


@dataclass(frozen=True)
class Confusion:
    """Counts of answers by returned and true label, and the weights of the step."""

    answers: int
    """The number of answers per picture, S + 1; each answer has the weight 1/(S + 1)."""
    counts: tuple[tuple[int, int, int], ...] = field(repr=False)
    """Triples (label code, true-label code, number of answers with this pair)."""
    truths: tuple[int, ...] = field(repr=False)
    """The number of labelled pictures with each true label."""
    weights: tuple[float, float, float] = (1.0, 0.0, 0.0)
    """w₁ for the jury, w₂ for the table, w₃ for the frequency of the true labels."""
    labels: tuple[str, ...] = ()
    """The labels that the codes stand for, since other votes may list them in another order."""

    def __post_init__(self) -> None:
        codes = [code for label, truth, _ in self.counts for code in (label, truth)]
        numbers = [self.answers - 1, *codes, *self.truths, *(count for *_, count in self.counts)]
        if min(numbers) < 0 or max([len(self.truths), *codes]) > MOST_CLASSES or self.weights[0] < 0.0:
            raise DataError("the jury's confusion table is invalid; fit again", code="calibrator-malformed")

    @classmethod
    def count(cls, labelled: LabelledVotes) -> Self:
        """Build the table from labelled votes; true labels outside the vocabulary are ignored."""
        answers, truths = labelled.answers(), labelled.truths
        row, column = np.nonzero((answers != MISSING) & (truths >= 0)[:, None])
        pairs, counts = np.unique(np.stack([answers[row, column], truths[row]], axis=1), axis=0, return_counts=True)
        entries = [(label, truth, count) for (label, truth), count in zip(pairs.tolist(), counts.tolist(), strict=True)]
        frequencies = tuple(np.bincount(truths[truths >= 0]).tolist())
        return cls(answers.shape[1], tuple(entries), frequencies, labels=labelled.vocabulary)

    @cached_property
    def table(self) -> Floats:
        """(V, V): counts of answers by returned and true label, in units of pictures."""
        entries = np.array(self.counts, np.int64).reshape(-1, 3)
        table = np.zeros((int(entries[:, :2].max(initial=0)) + 1,) * 2)
        table[entries[:, 0], entries[:, 1]] = entries[:, 2] / self.answers
        return table

    def features(self, votes: Votes, distribution: Distribution) -> Floats:
        """(n, V + 1, 3): the features of each label in the vocabulary, and of a class outside it."""
        words, classes, answers = len(votes.vocabulary), votes.classes, votes.answers()
        known = {label: code for code, label in enumerate(self.labels or votes.vocabulary)}
        codes = np.array([known.get(label, MISSING) for label in votes.vocabulary], int)
        counted, true = ((codes >= 0) & (codes < size) for size in (len(self.table), len(self.truths)))
        table, truths = np.zeros((words, words + 1)), np.zeros(words + 1)
        table[np.ix_(counted, np.append(counted, False))] = self.table[np.ix_(codes[counted], codes[counted])]
        truths[:words][true] = np.array(self.truths)[codes[true]]
        right = (self.table.trace() + 1.0) / (self.table.sum() + 2.0)
        even = np.where(np.eye(words, words + 1, dtype=bool), right, (1.0 - right) / (classes - 1))
        lift = np.log((table + PRIOR * even) / (table.sum(axis=1, keepdims=True) + PRIOR) / even)
        total = np.zeros((len(votes), words + 1))
        for labels in answers.T:
            total[labels != MISSING] += lift[labels[labels != MISSING]]
        mean = total / np.maximum((answers != MISSING).sum(axis=1), 1)[:, None]
        chance = np.column_stack([distribution.dense(words), distribution.unnamed()])
        frequency = np.log((truths + EACH) / (truths.sum() + EACH * classes))
        return np.stack([np.log(np.maximum(chance, 1e-300)), mean, np.broadcast_to(frequency, mean.shape)], axis=2)


def learn_confusion(labelled: LabelledVotes, fit: Callable[[LabelledVotes], Predictor]) -> Confusion | None:
    """Fit the table and the weights for juries that `fit` returns; returns None if the step does not help."""
    others = labelled.classes - len(labelled.vocabulary)
    if not 2 <= labelled.classes <= MOST_CLASSES or len(labelled) < FEWEST or labelled.doubtful().any():
        return None
    fold = folds(len(labelled))
    features = np.zeros((len(labelled), len(labelled.vocabulary) + 1, 3))
    for number in range(int(fold.max()) + 1):
        tested, rest = labelled.take(np.flatnonzero(fold == number)), labelled.take(np.flatnonzero(fold != number))
        features[fold == number] = Confusion.count(rest).features(tested, fit(rest).distribution(tested))
    patterns = _patterns(features if others else features[:, :-1], labelled.truths, others)
    plain, gain = np.array([1.0, 0.0, 0.0]), np.zeros((2, len(labelled)))
    for rows, theta in held_out_fits(patterns, fold, 0.0, plain):
        gain[:, rows] = (_losses(patterns, plain, others) - _losses(patterns, theta, others))[:, rows]
    if not pays(gain[0]) or pays(-gain[1]):
        return None
    first, second, third = descend(patterns, 0.0, start=plain).tolist()
    return replace(Confusion.count(labelled), weights=(first, second, third))


def _patterns(features: Floats, truths: Codes, others: int) -> Patterns:
    """Arrange the features for a conditional logit with the parameters w₁ ≥ 0, w₂ ≥ 0 and w₃."""
    pictures, options, parameters = features.shape
    size = np.zeros((pictures, options))
    if others:
        size[:, -1] = np.log(others)
    starts, true = np.arange(pictures) * options, np.where(truths < 0, options - 1, truths)
    owner = np.repeat(np.arange(pictures), options)
    limits = ((0.0, np.inf), (-np.inf, np.inf))
    prior = Prior(RIDGE * np.eye(parameters), np.array([1.0, 0.0, 0.0]))
    table, zeros = features.reshape(-1, parameters), np.zeros(pictures)
    return Patterns(table, size.ravel(), starts, owner, starts + true, zeros, 0, none=limits, prior=prior)


def _losses(patterns: Patterns, theta: Floats, others: int) -> Floats:
    """(2, n): the log loss and the Brier score of each picture."""
    chance = chances(patterns, theta).reshape(len(patterns.truth), -1)
    share = np.ones(chance.shape[1])
    share[-1] = max(others, 1)
    true = (chance / share).ravel()[patterns.truth]
    return np.stack([losses(patterns, theta), (chance**2 / share).sum(axis=1) + 1.0 - 2.0 * true])


@dataclass(frozen=True, eq=False)
class ConfusedUtilities(Utilities):
    """The utilities of all labels in the vocabulary, the base label first."""

    votes: Votes
    jury: Utilities
    """The utilities before the step."""
    weight: float
    """w₁."""

    @classmethod
    def after(cls, jury: Utilities, votes: Votes, confusion: Confusion) -> Self:
        """Apply the confusion step to the utilities of the jury."""
        words, rows = len(votes.vocabulary), np.arange(len(votes))
        features = confusion.features(votes, jury.distribution(votes.classes))
        scores = features @ np.array(confusion.weights)
        others = votes.classes - words
        scores[:, -1] += np.log(others) if others > 0 else -np.inf
        scores = np.column_stack([scores[rows, votes.base], scores])
        scores[rows, 1 + votes.base] = -np.inf
        no_base = votes.base == MISSING
        scores[no_base, 0] = -np.inf
        unanswered = (votes.answers() == MISSING).all(axis=1)
        scores[unanswered], scores[unanswered, -1] = -np.inf, 0.0
        last = np.full(len(votes), MISSING, np.int32)
        return cls(scores, jury.covariance, last, jury.options, votes, jury, confusion.weights[0])

    def labels(self) -> Codes:
        base, words = self.votes.base[:, None], np.arange(len(self.votes.vocabulary), dtype=np.int32)
        codes = np.column_stack([base, np.where(words == base, np.int32(MISSING), words), self.last])
        return np.where(np.isfinite(self.scores), codes, np.int32(MISSING))

    def distribution(self, classes: int) -> Distribution:
        return super().distribution(classes).likeliest(LISTED)

    def slope(self, believed: Places, rivals: Floats) -> Floats:
        codes, rows, base = self.jury.labels()[:, :-1], np.arange(len(believed)), self.votes.base[:, None]
        share = np.take_along_axis(rivals, np.where(codes == base, 0, 1 + codes), axis=1) * (codes != MISSING)
        column = first_column(codes, self.labels()[rows, believed])
        return self.weight * self.jury.slope(column, np.column_stack([share, 1.0 - share.sum(axis=1)]))
