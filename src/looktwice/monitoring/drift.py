"""Detect changes since the fit with a conformal test martingale."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike

from looktwice.calibration import Counts, Floats, check_share
from looktwice.errors import DataError

CUTS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95)
"""The quantiles below which `Drift` tests for too many or too few pictures."""


CELLS = 2**19
"""Pictures times kinds that are counted at once: a bound on memory."""
MARKS = 256
"""Moments of the stream that are remembered at least, the late ones closer: one of them is where a change began."""


@dataclass(frozen=True)
class Drift:
    """A running test that live pictures are still of the kind that the profile was made from.

    A picture's kind is a number from 0, such as how many of its views agree. Each live picture is ranked among the
    profile's and the live ones before it, with ties broken at random: if nothing has changed, the ranks are uniform and
    independent of each other (conformal prediction), and a bet that they fall below a cut more or less often than they
    should wins nothing on average. By Ville's inequality the wealth ever reaches 1/alpha with probability at most
    alpha, for any length of the stream and any true shares of the bins.
    """

    reference: tuple[int, ...]
    """The number of labelled pictures of each kind."""
    alpha: float = 0.01
    """The probability of a false alarm over an unlimited time."""
    seed: int = 0
    alternative: Literal["two-sided", "greater"] = "two-sided"
    """Whether to test for any change, or only for larger kinds."""
    live: tuple[int, ...] = ()
    """The number of live pictures of each kind; empty at first."""
    below: tuple[int, ...] = (0,) * len(CUTS)
    """The number of ranks below each cut."""
    peak: float = 0.0
    """The highest log wealth so far."""
    marks: tuple[tuple[int, ...], ...] = ((0,) * (len(CUTS) + 1),)
    """The number of pictures, and of ranks below each cut, at some moments."""
    since: int | None = None
    """The most likely start of the change, in live pictures; None without an alarm."""

    def __post_init__(self) -> None:
        check_share("alpha", self.alpha)
        if sum(self.reference) < 1 or min(self.reference) < 0:
            raise DataError(f"drift needs counts of the profile's pictures, not {self.reference}; fit again")

    @property
    def seen(self) -> int:
        """The number of live pictures."""
        return sum(self.live)

    @property
    def alarm(self) -> bool:
        """Whether an alarm was raised; it stays raised."""
        return self.peak >= -math.log(self.alpha)

    def update(self, agreement_bins: ArrayLike) -> Self:
        """Update the test with more live pictures, in order."""
        kind = np.asarray(agreement_bins, np.int64).ravel()
        if not len(kind):
            return self
        if kind.min() < 0 or kind.max() >= len(self.reference):
            raise DataError(
                f"drift knows the agreement bins 0 to {len(self.reference) - 1}, not {kind.min()} to {kind.max()}"
            )
        drift, step = self, max(1, CELLS // len(self.reference))
        for start in range(0, len(kind), step):
            drift = drift._after(kind[start : start + step])
        return drift

    def _after(self, kind: Counts) -> Self:
        before = np.array(self.live or (0,) * len(self.reference), np.int64)
        came = np.eye(len(self.reference), dtype=np.int64)[kind].cumsum(axis=0) + before
        low = self._ranks(kind, came)[:, None] < np.array(CUTS)
        below = low.cumsum(axis=0) + np.array(self.below)
        seen = self.seen + np.arange(1, len(kind) + 1)
        won = _won(below, seen[:, None])
        if self.alternative == "greater":
            won[below >= np.array(CUTS) * seen[:, None]] = -np.inf
        wager = np.logaddexp.reduce(won, axis=1) - math.log(len(CUTS))
        path = np.vstack([self.marks, np.column_stack([seen, below])])
        won_at = np.flatnonzero(wager >= -math.log(self.alpha))
        since = self.since
        if since is None and len(won_at):
            since = began(path[: len(self.marks) + int(won_at[0]) + 1])
        while len(path) > 2 * MARKS:  # the longer ago, the coarser
            path = path[::2]
        return replace(
            self,
            live=tuple(came[-1].tolist()),
            below=tuple(below[-1].tolist()),
            peak=max(self.peak, float(wager.max())),
            marks=tuple(map(tuple, path.tolist())),
            since=since,
        )

    def _ranks(self, kind: Counts, came: Counts) -> Floats:
        """(n,): the rank of each picture among all up to itself, uniform in [0, 1] if nothing has changed."""
        bag = came + np.array(self.reference)
        upto = np.take_along_axis(bag.cumsum(axis=1), kind[:, None], axis=1)[:, 0]
        same = np.take_along_axis(bag, kind[:, None], axis=1)[:, 0]
        source = np.random.PCG64(self.seed)
        source.advance(self.seen)  # the same, however many pictures come at once
        lot = np.random.Generator(source).random(len(kind))
        ranks: Floats = (upto - lot * same) / bag.sum(axis=1)
        return ranks


def began(path: Counts) -> int:
    """After how many pictures the ranks most likely stopped being uniform, up to the last row of a path.

    A row is how many pictures were seen and how many ranks fell below each cut. Of all rows and cuts, the one that
    makes the ranks after it least likely under uniformity (maximum likelihood).
    """
    from scipy.special import rel_entr

    cuts, last = np.array(CUTS), path[-1]
    after, below = (last[0] - path[:-1, :1]).astype(np.float64), last[1:] - path[:-1, 1:]
    share = below / np.maximum(after, 1.0)
    surprise = after * (rel_entr(share, cuts) + rel_entr(1.0 - share, 1.0 - cuts))
    return int(path[np.unravel_index(surprise.argmax(), surprise.shape)[0], 0])


def _won(below: Counts, seen: Counts) -> Floats:
    """(n, cuts): log of the wealth of an equal mixture of bets on each cut."""
    from scipy.special import betaln

    cuts = np.array(CUTS)
    fair = below * np.log(cuts) + (seen - below) * np.log1p(-cuts)
    won: Floats = betaln(below + 0.5, seen - below + 0.5) - betaln(0.5, 0.5) - fair
    return won
