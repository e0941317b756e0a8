"""The tags returned in answers, with their ranks and scores, and the scales of the scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration.evidence import MISSING, Bools, Floats, Kind, Places, require, score_kind
from looktwice.calibration.votes import Votes

KNOTS = (0.1, 0.3, 0.5, 0.7, 0.9)
"""The knots of the piecewise correction of a score, as quantiles of the log odds of returned tags."""
NEAREST = 1e-4
"""The minimum distance of clipped scores from 0 and 1, since APIs often round scores to 0 or 1."""


@dataclass(frozen=True, eq=False)
class TagVotes:
    """The answers of S sources about n pictures, restricted to T tags.

    A source is a classifier, or one of its views. The first source of a classifier is its base answer.
    """

    names: tuple[str, ...]
    sources: tuple[str, ...]
    tags: tuple[str, ...]
    ranks: NDArray[np.int16]
    """(n, S, T): the rank of each tag in the answer, from 1; 0 where it was not returned."""
    scores: NDArray[np.float32]
    """(n, S, T): the scores as returned, NaN where a tag has none."""
    asked: Bools
    """(n, S): whether there is an answer, possibly empty; there is none if the classifier was unavailable."""
    classifiers: tuple[int, ...] = ()
    """(S,): the index of each source's classifier; by default each source is a classifier."""

    _by_picture: ClassVar[tuple[str, ...]] = ("ranks", "scores", "asked")

    def __post_init__(self) -> None:
        shape = (len(self.names), len(self.sources), len(self.tags))
        require(
            (self.ranks.shape, self.scores.shape, self.asked.shape) == (shape, shape, shape[:2]),
            f"tag votes need the shapes {shape}, {shape} and {shape[:2]}, not {self.ranks.shape}, "
            f"{self.scores.shape} and {self.asked.shape}",
        )
        require(
            len(self.classifiers) in (0, len(self.sources)),
            f"{len(self.sources)} sources need as many classifier numbers, not {len(self.classifiers)}",
        )

    @classmethod
    def from_votes(cls, votes: Votes, tags: Sequence[str], classifiers: Sequence[int] = ()) -> Self:
        """Extract tag votes from ranked lists; a source without a label is treated as not queried."""
        answers = votes.answers()
        ranks = np.zeros((*answers.shape, len(tags)), np.int16)
        scores = np.full(ranks.shape, np.nan, np.float32)
        if votes.evidence:
            codes = {tag: code for code, tag in enumerate(tags)}
            code = np.array([*(codes.get(label, -1) for label in votes.vocabulary), -1])[votes.evidence.labels]
            i, s, place = np.nonzero(code >= 0)
            ranks[i, s, code[i, s, place]] = place + 1
            scores[i, s, code[i, s, place]] = votes.evidence.scores[i, s, place]
        sources = ("base", *votes.panel)
        return cls(votes.names, sources, tuple(tags), ranks, scores, answers != MISSING, tuple(classifiers))

    def __len__(self) -> int:
        return len(self.names)

    def take(self, rows: Places | slice) -> Self:
        """The votes on some of the pictures."""
        names = tuple(np.array(self.names, object)[rows].tolist())
        return replace(self, names=names, **{name: getattr(self, name)[rows] for name in self._by_picture})

    def under(self, sources: Sequence[int]) -> Self:
        """The votes of some of the sources."""
        kept = list(sources)
        return replace(
            self,
            sources=tuple(self.sources[source] for source in kept),
            ranks=self.ranks[:, kept],
            scores=self.scores[:, kept],
            asked=self.asked[:, kept],
            classifiers=tuple(self.classifiers[source] for source in kept) if self.classifiers else (),
        )

    def labelled(self, truths: NDArray[np.generic]) -> LabelledTagVotes:
        """Add the true tags, (n, T): 1 where a tag applies to a picture, 0 where it does not."""
        return LabelledTagVotes(**vars(self) | {"truths": truths.astype(bool)})

    def groups(self) -> list[list[int]]:
        """The sources of each classifier, the base answer first, then the views."""
        numbers = self.classifiers or tuple(range(len(self.sources)))
        return [[s for s, number in enumerate(numbers) if number == own] for own in dict.fromkeys(numbers)]


@dataclass(frozen=True, eq=False)
class LabelledTagVotes(TagVotes):
    """Votes with the true tags of each picture."""

    truths: Bools = field(kw_only=True)
    """(n, T)."""

    _by_picture: ClassVar[tuple[str, ...]] = (*TagVotes._by_picture, "truths")

    def __post_init__(self) -> None:
        super().__post_init__()
        shape = (len(self.names), len(self.tags))
        require(self.truths.shape == shape, f"true tags need the shape {shape}, not {self.truths.shape}")


@dataclass(frozen=True)
class TagScale:
    """The scale of one classifier's scores, learned from the pictures that a jury is fitted on."""

    kind: Kind = "rank"
    mean: float = 0.0
    spread: float = 1.0
    """Mean and standard deviation of the log odds of returned tags."""
    knots: tuple[float, ...] = ()

    @classmethod
    def learn(cls, ranks: NDArray[np.int16], scores: NDArray[np.float32]) -> Self:
        """Learn the scale from the scores of returned tags."""
        known = (ranks > 0) & np.isfinite(scores)
        scale = cls(score_kind(scores[known]))
        if not known.any():
            return scale
        odds = scale.log_odds(ranks, scores)[known]
        scale = replace(scale, mean=float(odds.mean()), spread=float(odds.std()) or 1.0)
        knots = np.unique(np.quantile((odds - scale.mean) / scale.spread, KNOTS, method="lower"))
        return replace(scale, knots=tuple(knots.tolist()))

    def shares(self, ranks: NDArray[np.int16], scores: NDArray[np.float32]) -> Floats:
        """Scores in [0, 1]: 0 for a tag that was not returned, 1 for one that was returned without a score."""
        known = np.isfinite(scores)
        values = np.where(known, scores, 1.0).astype(np.float64)
        if self.kind == "percentage":
            values = np.where(known, values / 100.0, values)
        elif self.kind == "logit":
            from scipy.special import expit

            values = np.where(known, expit(values), values)
        return np.where(ranks > 0, np.clip(values, 0.0, 1.0), 0.0)

    def log_odds(self, ranks: NDArray[np.int16], scores: NDArray[np.float32]) -> Floats:
        """The log odds of scores, standardised; 0 where there is no score."""
        share = np.clip(self.shares(ranks, scores), NEAREST, 1.0 - NEAREST)
        odds = (np.log(share / (1.0 - share)) - self.mean) / self.spread
        return np.where((ranks > 0) & np.isfinite(scores), odds, 0.0)
