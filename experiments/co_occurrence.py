"""Likely labels that no answer named, by labels that occur together: the jury had this before its confusion step.

The answers about the views of one picture show which classes the classifier confuses. Of the probability of the
unnamed class, each unnamed class c gets the share

q_c = (s_c + a/(K − m)) / (Σ_c s_c + a),  s_c = Σ_j P(y = j)·n_jc over the m named labels j,

where n_jc counts how often j and c were both answered about one picture, over any pictures. With a → ∞ all shares are
equal. A picture's own answers are all named, so they never count for it: a can be fitted on the labelled ones among the
same pictures.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np

from looktwice.calibration.distribution import Distribution
from looktwice.calibration.evidence import MISSING, Codes, Floats, Places
from looktwice.calibration.logit import folds, pays
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.errors import DataError

if TYPE_CHECKING:
    from scipy.sparse import csr_array

PRIORS = (3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
"""The values of a that are tried, in pairs of answers."""
LISTED = 20
"""Co-occurring labels kept for a label, and unnamed classes of a picture with a share each; others share evenly."""
MOST_PAIRS, MOST_LABELS = 20_000, 2**20
"""The most pairs of labels that are kept, less than 200 KB in a profile, and the greatest code of a label."""


@dataclass(frozen=True)
class CoOccurrence:
    """Co-occurrence counts of labels, and the prior count of an even spread."""

    pairs: tuple[str, ...] = field(repr=False)
    """`3 12*5 40`: the label of code 3 occurred five times with that of code 12 and once with that of code 40."""
    prior: float
    """a: the count of an even spread over all unnamed classes."""

    def __post_init__(self) -> None:
        if self.prior <= 0.0 or self.table.data.min(initial=1.0) <= 0.0:
            raise DataError("the jury's companions of labels cannot be read; fit again", code="calibrator-malformed")

    @classmethod
    def learn(cls, votes: Votes, labelled: LabelledVotes, distribution: Distribution) -> Self | None:
        """Co-occurrences counted in `votes`, or None if they don't help to predict the truths of labelled pictures.

        `votes` may be of any pictures, labelled or not, and have the vocabulary of `labelled`, whose `distribution`
        shares the rest evenly. The prior is that of maximum likelihood; its gain on held-out folds must exceed a
        standard error.
        """
        named = (distribution.labels == labelled.truths[:, None]).any(axis=1)
        rows = np.flatnonzero(~named & ~labelled.doubtful())
        pairs = _counted(votes)
        if not pairs or len(rows) < 2:
            return None
        unnamed = Distribution(distribution.labels[rows], distribution.named[rows], distribution.classes)
        place, codes, counts = cls(pairs, PRIORS[0])._sums(unnamed, len(labelled.vocabulary))
        true = np.bincount(place, counts * (codes == labelled.truths[rows][place]), len(rows))
        total = np.bincount(place, counts, len(rows))
        gains = np.stack([np.log((true * unnamed.others() + a) / (total + a)) for a in PRIORS])
        held, fold = np.zeros(len(rows)), folds(len(rows))
        for part in range(int(fold.max()) + 1):
            held[fold == part] = gains[gains[:, fold != part].sum(axis=1).argmax(), fold == part]
        return cls(pairs, PRIORS[int(gains.sum(axis=1).argmax())]) if pays(held) else None

    def spread(self, distribution: Distribution, words: int) -> Distribution:
        """The distribution with shares of their own for the LISTED likeliest unnamed classes.

        They are among the first `words` labels. Shares are shrunk to even ones as far as needed to leave none above the
        most probable named label, so that the prediction does not change.
        """
        place, codes, counts = self._sums(distribution, words)
        n, most, even = len(distribution.labels), distribution.named.max(axis=1, initial=0.0), distribution.unnamed()
        total, alike = np.bincount(place, counts, n), self.prior / np.maximum(distribution.others(), 1)
        order = np.lexsort((codes, -counts, place))
        rank = np.arange(len(order)) - np.searchsorted(place[order], place[order])
        kept = (rank < LISTED) & (even < most)[place[order]]
        order, rank = order[kept], rank[kept]
        place, share = place[order], (counts + alike[place]) / (total[place] + self.prior)
        labels, shares = np.full((n, LISTED), MISSING, np.int32), np.zeros((n, LISTED))
        labels[place, rank], shares[place, rank] = codes[order], distribution.rest()[place] * share[order]
        above = shares.max(axis=1) - even
        part = np.where(above > most - even, (most - even) / np.maximum(above, 1e-300), 1.0)[:, None]
        shares = np.minimum(even[:, None] + part * (shares - even[:, None]), most[:, None])
        return Distribution(
            np.column_stack([distribution.labels, labels]),
            np.column_stack([distribution.named, np.where(labels == MISSING, 0.0, shares)]),
            distribution.classes,
        )

    @cached_property
    def table(self) -> csr_array:
        """(K, K): n_jc of the kept pairs, up to the greatest code; a single −1 if `pairs` cannot be parsed."""
        from scipy.sparse import coo_array

        try:
            found = [
                (int(code), int(other), int(count or 1))
                for code, *others in map(str.split, self.pairs)
                for other, _, count in (pair.partition("*") for pair in others)
            ]
            rows, columns, counts = np.array(found, np.int32).reshape(-1, 3).T
            size = int(max(rows.max(initial=0), columns.max(initial=0))) + 1
            if size > MOST_LABELS:
                raise ValueError("a label has a code that is too great")
            return coo_array((counts.astype(np.float64), (rows, columns)), shape=(size, size)).tocsr()
        except (ValueError, OverflowError):
            return coo_array([[-1.0]]).tocsr()

    def _sums(self, distribution: Distribution, words: int) -> tuple[Places, Codes, Floats]:
        """s_c of each unnamed label c among the first `words`, as rows, codes and values of a sparse matrix."""
        from scipy.sparse import coo_array

        size = self.table.shape[0]
        place, column = np.nonzero((distribution.labels != MISSING) & (distribution.labels < size))
        where = (place, distribution.labels[place, column])
        shape = (len(distribution.labels), size)
        weight = coo_array((distribution.named[place, column], where), shape=shape).tocsr()
        named = coo_array((np.full(len(place), -np.inf), where), shape=shape).tocsr()
        sums = (weight @ self.table + named).tocoo()
        rows, codes = sums.coords
        unnamed = (sums.data > 0.0) & (codes < words)
        return rows[unnamed].astype(np.intp), codes[unnamed].astype(np.int32), sums.data[unnamed]


def _counted(votes: Votes) -> tuple[str, ...]:
    """How often two labels were both answered about one picture, for the most frequent companions of each."""
    from scipy.sparse import coo_array

    answers = votes.answers()
    place, column = np.nonzero(answers != MISSING)
    shape = (len(votes), len(votes.vocabulary))
    answered = coo_array((np.ones(len(place)), (place, answers[place, column])), shape=shape).tocsr()
    found = (answered.T @ answered).tocoo()
    order = np.lexsort((found.col, -found.data, found.row))
    order = order[found.row[order] != found.col[order]]
    order = order[np.arange(len(order)) - np.searchsorted(found.row[order], found.row[order]) < LISTED]
    kept = np.sort(np.argsort(-found.data[order], kind="stable")[:MOST_PAIRS])
    pairs: dict[int, list[str]] = {}
    for code, other, count in zip(*(part[order[kept]].tolist() for part in (*found.coords, found.data)), strict=True):
        pairs.setdefault(code, []).append(str(other) if count == 1 else f"{other}*{count:.0f}")
    return tuple(" ".join([str(code), *others]) for code, others in pairs.items())
