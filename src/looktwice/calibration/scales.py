"""How scores and ranked lists are read.

Scores come on many scales. A `Scale` is learned once, when a jury is fitted, and makes of every list the share of each
label: a probability as it is, a percentage divided by 100, a logit through the softmax, and 1/2, 1/4 … where there are
only ranks. What a list leaves over is shared evenly by the labels that it does not name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration.votes import UNLISTED, Codes, Evidence, Floats

Kind = Literal["probability", "percentage", "logit", "rank"]

LEAST, MOST_LEAST = 1e-7, 0.05
"""Within what bounds the least share of a label is chosen: it is half of the smallest that the scores can tell."""


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
        kind = score_kind(scores)
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


def score_kind(scores: NDArray[np.floating]) -> Kind:
    """The scale that scores are on, by their range; a rank where there are none."""
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
