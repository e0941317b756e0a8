"""What a classifier says beyond a label: scores and ranked lists, as arrays, and how they are read.

Scores come on many scales. A `Scale` is learned once, when a jury is fitted, and makes of every list the share of each
label: a probability as it is, a percentage divided by 100, a logit through the softmax, and 1/2, 1/4 … where there are
only ranks. What a list leaves over is shared evenly by the labels that it does not name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from looktwice.errors import DataError

Codes = NDArray[np.int32]
Floats = NDArray[np.float64]
Kind = Literal["probability", "percentage", "logit", "rank"]

RankedList = tuple[tuple[str, float | None], ...]
"""Labels, the best first, each with its score where it has one."""
UNLISTED = -1
"""The code where a list has ended."""
LEAST, MOST_LEAST = 1e-7, 0.05
"""Within what bounds the least share of a label is chosen: it is half of the smallest that the scores can tell."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """The ranked lists of n pictures, each asked as it is and under S views."""

    labels: Codes
    """(n, S + 1, m): the labels of each list, the best first, UNLISTED behind its end; the picture's own list first."""
    scores: NDArray[np.float32]
    """(n, S + 1, m): their scores as they came, NaN where a label has none."""

    @classmethod
    def collect(cls, lists: Sequence[Sequence[RankedList]], questions: int, codes: dict[str, int]) -> Self:
        """Ranked lists of each picture's questions as arrays; labels that are new are added to the codes."""
        longest = max((len(ranked) for row in lists for ranked in row), default=0)
        labels = np.full((len(lists), questions, max(longest, 1)), UNLISTED, np.int32)
        scores = np.full(labels.shape, np.nan, np.float32)
        for i, row in enumerate(lists):
            for s, ranked in enumerate(row):
                for place, (label, score) in enumerate(ranked):
                    labels[i, s, place] = codes.setdefault(label, len(codes))
                    scores[i, s, place] = np.nan if score is None else score
        return cls(labels, scores)

    def check(self, pictures: int, views: int, vocabulary: int) -> None:
        """Refuse arrays that are not about these votes."""
        if self.labels.shape[:2] != (pictures, views + 1) or self.labels.shape != self.scores.shape:
            shapes = f"{self.labels.shape} and {self.scores.shape}"
            raise DataError(f"scores of {pictures} pictures and {views} views cannot have the shapes {shapes}")
        if self.labels.max(initial=UNLISTED) >= vocabulary or self.labels.min(initial=UNLISTED) < UNLISTED:
            raise DataError("scores hold a code that is not in the vocabulary; the file was not made by looktwice")

    def take(self, rows: NDArray[np.intp] | slice) -> Self:
        """The lists of some of the pictures."""
        return type(self)(self.labels[rows], self.scores[rows])

    def under(self, columns: list[int]) -> Self:
        """The lists of the picture itself and of some views, in this order."""
        kept = [0, *(column + 1 for column in columns)]
        return type(self)(self.labels[:, kept], self.scores[:, kept])

    def listed(self) -> NDArray[np.bool_]:
        """(n, S + 1): whether there is a list at all."""
        return self.labels[:, :, 0] != UNLISTED

    def claims(self) -> Floats:
        """(n,): the first score of each picture's own list as it came, NaN where there is none."""
        return self.scores[:, 0, 0].astype(np.float64)


@dataclass(frozen=True)
class Scale:
    """How scores become shares; learned from the pictures that a jury is fitted on."""

    kind: Kind = "probability"
    least: float = LEAST
    """The least share that a label, or all labels behind the end of a list, can have."""

    @classmethod
    def learn(cls, evidence: Evidence) -> Self:
        """The scale on which these scores are."""
        scores = evidence.scores[np.isfinite(evidence.scores)].astype(np.float64)
        kind = _kind(scores)
        shares = cls(kind, 0.0).shares(evidence)
        ends = np.concatenate([1.0 - shares.sum(axis=2)[evidence.listed()], shares[evidence.labels != UNLISTED]])
        smallest = ends[ends > LEAST].min(initial=1.0)
        return cls(kind, float(np.clip(smallest / 2, LEAST, MOST_LEAST)))

    def log_shares(self, evidence: Evidence, codes: Codes, classes: int) -> Floats:
        """(n, S + 1, c + 1): the log share of each label in `codes` (n, c), and of each label not among them.

        A list that is empty says nothing: all its labels have the same share. A label without a score among others
        that have one counts as not listed.
        """
        shares = self.shares(evidence)
        known = (evidence.labels != UNLISTED) & ((self.kind == "rank") | np.isfinite(evidence.scores))
        count = known.sum(axis=2)
        rest = np.clip(1.0 - shares.sum(axis=2), self.least, 1.0)
        each = np.log(rest / np.maximum(classes - count, 1))
        found = np.repeat(each[:, :, None], codes.shape[1] + 1, axis=2)
        for place in range(evidence.labels.shape[2]):
            label, share = evidence.labels[:, :, place], shares[:, :, place]
            same = (label[:, :, None] == codes[:, None, :]) & known[:, :, place, None]
            logs = np.log(np.maximum(share, self.least))
            np.copyto(found[:, :, :-1], logs[:, :, None], where=same)
        return found

    def claims(self, evidence: Evidence) -> Floats:
        """(n,): the share of the first label of each picture's own list, in [0, 1]; NaN where there is no list."""
        claims = self.shares(evidence)[:, 0, 0]
        return np.where(evidence.listed()[:, 0], claims, np.nan)

    def shares(self, evidence: Evidence) -> Floats:
        """(n, S + 1, m): the share of each listed label; of one list they sum to 1 at the most."""
        listed = evidence.labels != UNLISTED
        scores = np.where(listed, evidence.scores, np.nan).astype(np.float64)
        known = np.isfinite(scores)
        ranks = np.where(listed, 0.5 ** np.arange(1, scores.shape[2] + 1), 0.0)
        match self.kind:
            case "rank":
                return ranks
            case "logit":
                shares = _softmaxed(scores, known)
            case "percentage":
                shares = np.where(known, np.clip(scores / 100.0, 0.0, 1.0), 0.0)
            case _:
                shares = np.where(known, np.clip(scores, 0.0, 1.0), 0.0)
        total = shares.sum(axis=2, keepdims=True)
        return shares / np.maximum(total, 1.0)


def _kind(scores: Floats) -> Kind:
    if len(scores) == 0:
        return "rank"
    if scores.min() >= 0 and scores.max() <= 1.5:
        return "probability"
    # Of many pictures some have a percentage above 50, which hardly a logit is.
    return "percentage" if scores.min() >= 0 and 50 < scores.max() <= 100.5 else "logit"


def _softmaxed(scores: Floats, known: NDArray[np.bool_]) -> Floats:
    """Logits as shares: of each list by the softmax, of a single one by the logistic function."""
    single = known.sum(axis=2, keepdims=True) == 1
    top = np.where(known, scores, -np.inf).max(axis=2, keepdims=True, initial=0.0)
    powers = np.where(known, np.exp(np.where(known, scores, 0.0) - top), 0.0)
    total = powers.sum(axis=2, keepdims=True) + np.where(single, np.exp(-top), 0.0)
    return powers / np.maximum(total, 1e-300)


NO_SCORES = "no answer has a score"


def useless(evidence: Evidence) -> str | None:
    """Why the scores can say nothing, in words; None where they may."""
    listed = evidence.listed()[:, 0]
    if not listed.any():
        return NO_SCORES
    scores = evidence.claims()[listed]
    if evidence.labels.shape[2] > 1 and (evidence.labels[:, :, 1] != UNLISTED).any():
        return None
    if not np.isfinite(scores).any():
        return "no score is a number"
    first = scores[np.isfinite(scores)][0]
    if np.isfinite(scores).all() and (scores == first).all():
        return f"all scores are {first:.6g}"
    return None
