"""Scores and ranked lists in answers, and their conversion to shares.

APIs return scores on many scales. A `Scale` is inferred once, when a jury is fitted, and converts every list to a share
for each label: probabilities are unchanged, percentages are divided by 100, logits are converted by the softmax
function, and ranks without scores become 1/2, 1/4 … The remaining mass is shared evenly by the labels that are not
listed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from looktwice.errors import DataError

Codes = NDArray[np.int32]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Counts = NDArray[np.int64]
Places = NDArray[np.intp]
MISSING = -1
"""The code of a missing answer: not queried, refused, or without a label."""
UNLISTED = -1
"""The code that pads ranked lists."""
RankedList = tuple[tuple[str, float | None], ...]
"""Labels in descending order of rank, each with its score or None."""


@dataclass(frozen=True)
class Row:
    """The answers about one picture: the base label, and the label of each view that was queried."""

    name: str
    base: str | None
    """The base label, or the tags as one string, possibly empty; None if there is no answer."""
    views: tuple[str | None, ...]
    digest: str = ""
    """The digest of the pixels; empty if unknown."""
    thumbnail: bytes = field(default=b"", compare=False, repr=False)
    """A grey thumbnail for finding near-duplicates; empty if unknown."""
    lists: tuple[RankedList, ...] = ()
    """The ranked list of the base answer, followed by the lists of the views; empty if no answer had a list."""
    descriptor: Floats | None = field(default=None, compare=False, repr=False)
    """The descriptor of the picture (`images.descriptor`); None if unknown."""
    picos: tuple[int, ...] = ()
    """The price paid for the base answer and each view, in units of 1e-12 of the currency."""
    missing: dict[int, tuple[str, str]] = field(default_factory=dict, compare=False)
    """The reasons for missing labels, each an `error.code` and a message, by position: 0 is the base, 1 … the queried
    views."""


def require(holds: bool, message: str) -> None:
    """Raise a DataError with this message unless the condition holds."""
    if not holds:
        raise DataError(message, code="votes-malformed")


@dataclass(frozen=True, eq=False)
class Evidence:
    """The ranked lists of n pictures, one for the base and one for each of S views."""

    labels: Codes
    """(n, S + 1, m): the labels of each list, the best first, padded with UNLISTED; the base list first."""
    scores: NDArray[np.float32]
    """(n, S + 1, m): the scores as returned, NaN where a label has none."""

    @classmethod
    def collect(cls, lists: Sequence[Sequence[RankedList]], questions: int, codes: dict[str, int]) -> Self:
        """Convert ranked lists to arrays; new labels are added to the codes."""
        longest = max((len(ranked) for row in lists for ranked in row), default=0)
        labels = np.full((len(lists), questions, max(longest, 1)), UNLISTED, np.int32)
        scores = np.full(labels.shape, np.nan, np.float32)
        with np.errstate(over="ignore"):  # a score too large for four bytes is infinite, thus unknown
            for i, row in enumerate(lists):
                for s, ranked in enumerate(row):
                    for place, (label, score) in enumerate(ranked):
                        labels[i, s, place] = codes.setdefault(label, len(codes))
                        scores[i, s, place] = np.nan if score is None else score
        return cls(labels, scores)

    def check(self, pictures: int, views: int, vocabulary: int) -> None:
        """Validate the arrays against the votes."""
        require(
            self.labels.shape[:2] == (pictures, views + 1) and self.labels.shape == self.scores.shape,
            f"scores of {pictures} pictures and {views} views cannot have the shapes {self.labels.shape} and "
            f"{self.scores.shape}",
        )
        require(
            self.labels.max(initial=UNLISTED) < vocabulary and self.labels.min(initial=UNLISTED) >= UNLISTED,
            "scores contain a code outside the vocabulary; the file was not made by looktwice",
        )

    def take(self, rows: NDArray[np.intp] | slice) -> Self:
        """The lists of a subset of the pictures."""
        return type(self)(self.labels[rows], self.scores[rows])

    def listed(self) -> NDArray[np.bool_]:
        """(n, S + 1): whether there is a list."""
        return self.labels[:, :, 0] != UNLISTED

    def claims(self) -> Floats:
        """(n,): the first score of each base list as returned, NaN if there is none."""
        return self.scores[:, 0, 0].astype(np.float64)


Kind = Literal["probability", "percentage", "logit", "rank"]

LEAST, MOST_LEAST = 1e-7, 0.05
"""The bounds of the smallest share for a label, which is half the resolution of the scores."""


@dataclass(frozen=True)
class Scale:
    """The conversion of scores to shares; inferred from the pictures that a jury is fitted on."""

    kind: Kind = "probability"
    least: float = LEAST
    """The smallest share of a label, or of all unlisted labels together."""

    @classmethod
    def learn(cls, evidence: Evidence) -> Self:
        """Infer the scale of scores."""
        scores = evidence.scores[np.isfinite(evidence.scores)].astype(np.float64)
        kind = score_kind(scores)
        shares = cls(kind, 0.0).shares(evidence)
        ends = np.concatenate([1.0 - shares.sum(axis=2)[evidence.listed()], shares[evidence.labels != UNLISTED]])
        smallest = ends[ends > LEAST].min(initial=1.0)
        return cls(kind, float(np.clip(smallest / 2, LEAST, MOST_LEAST)))

    def log_shares(self, evidence: Evidence, codes: Codes, classes: int) -> Floats:
        """(n, S + 1, c + 1): the log share of each label in `codes` (n, c), and of each label not among them.

        An empty list carries no information: all labels have the same share. A label without a score in a list with
        scores is treated as unlisted.
        """
        shares = self.shares(evidence)
        known = (evidence.labels != UNLISTED) & ((self.kind == "rank") | np.isfinite(evidence.scores))
        count = known.sum(axis=2)
        rest = np.clip(1.0 - shares.sum(axis=2), self.least, 1.0)
        each = np.log(rest / np.maximum(classes - count, 1))
        logs_of_options = np.repeat(each[:, :, None], codes.shape[1] + 1, axis=2)
        for place in range(evidence.labels.shape[2]):
            label, share = evidence.labels[:, :, place], shares[:, :, place]
            same = (label[:, :, None] == codes[:, None, :]) & known[:, :, place, None]
            logs = np.log(np.maximum(share, self.least))
            np.copyto(logs_of_options[:, :, :-1], logs[:, :, None], where=same)
        return logs_of_options

    def claims(self, evidence: Evidence) -> Floats:
        """(n,): the share of the first label of each base list, in [0, 1]; NaN where there is no list."""
        claims = self.shares(evidence)[:, 0, 0]
        return np.where(evidence.listed()[:, 0], claims, np.nan)

    def shares(self, evidence: Evidence) -> Floats:
        """(n, S + 1, m): the share of each listed label; the shares in one list sum to at most 1."""
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


def score_kind(scores: NDArray[np.floating]) -> Kind:
    """Infer the scale of scores from their range; rank if there are no scores."""
    if len(scores) == 0:
        return "rank"
    if scores.min() >= 0 and scores.max() <= 1.5:
        return "probability"
    # Among many percentages some exceed 50, which logits rarely do.
    return "percentage" if scores.min() >= 0 and 50 < scores.max() <= 100.5 else "logit"


def sigmoid(odds: Floats) -> Floats:
    """The probability for log odds."""
    from scipy.special import expit

    chance: Floats = expit(odds)
    return chance


def softmax(scores: Floats) -> Floats:
    """(n, c): the softmax of each row."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def _softmaxed(scores: Floats, known: NDArray[np.bool_]) -> Floats:
    """Convert logits to shares: the softmax of each list, or the logistic function of a single score."""
    single = known.sum(axis=2, keepdims=True) == 1
    top = np.where(known, scores, -np.inf).max(axis=2, keepdims=True, initial=0.0)
    powers = np.where(known, np.exp(np.where(known, scores, 0.0) - top), 0.0)
    total = powers.sum(axis=2, keepdims=True) + np.where(single, np.exp(-top), 0.0)
    return powers / np.maximum(total, 1e-300)


NO_SCORES = "no answer has a score"


def useless(evidence: Evidence) -> str | None:
    """Return a phrase on why the scores carry no information, or None if they may carry information."""
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
