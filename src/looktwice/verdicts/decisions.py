"""What one may do with a confidence: accept, name a set, stop asking, certify, notice that the world moved.

Everything here is pure: arrays and frozen values in, frozen values out. Promises hold for new pictures of the same
kind as the labelled ones, if these took no part in fitting the belief.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from looktwice.calibration.distribution import Distribution
from looktwice.calibration.votes import MISSING, Codes, Floats
from looktwice.errors import DataError

Bools = NDArray[np.bool_]
Counts = NDArray[np.int64]

STARTS = (0.25, 1.0, 2.0)
"""Thresholds that `threshold` tries on their own account, as multiples of the allowed error below 1; and zero."""
STEPS = 16
"""How many thresholds it tries between an allowed error and its double."""
UNSEEN = 1
"""Wrong answers that it counts beyond those that were seen."""
CUTS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95)
"""Where `Drift` looks for more, or fewer, pictures below than there should be."""

SHARES = {"max_error": 0.02, "level": 0.95, "coverage": 0.9, "power": 0.8, "alpha": 0.01}


def threshold(confidence: Floats, correct: Bools, max_error: float, level: float = 0.95) -> float | None:
    """The least confidence to accept, so that accepted answers are wrong at most `max_error` of the time.

    The promise holds with certainty `level` over the choice of the labelled pictures; None if none can be made.
    Candidates are fixed beforehand and tested from strict to lax, each with an exact binomial test (Learn then
    Test). A few of them have a share of the risk 1 − level of their own, and each that passes hands its share on
    to the next laxer one (the fallback procedure), so that all mistakes together stay within the risk. One wrong
    answer more is counted than was seen: pictures are judged by folds, and the belief that decides later is a little
    another than those of the folds.
    """
    _check_share("max_error", max_error)
    _check_share("level", level)
    levels, shares = _candidates(max_error)
    accepted, wrong = _above(confidence, levels), _above(confidence[~correct], levels) + UNSEEN
    surprise = _binomial(wrong, accepted, max_error)
    best, budget = None, 0.0
    for candidate, p, share in zip(levels.tolist(), surprise.tolist(), shares.tolist(), strict=True):
        budget += share * (1.0 - level)
        best, budget = (candidate, budget) if p <= budget else (best, 0.0)
    return best


def labels_needed(
    max_error: float, level: float = 0.95, expected_error: float = 0.0, coverage: float = 1.0, power: float = 0.8
) -> int:
    """How many labelled pictures `threshold` needs to make its promise, within one in a hundred.

    `expected_error` is how often accepted answers are really wrong, `coverage` the share that is accepted, and
    `power` the chance of success with so many pictures.
    """
    _check_share("max_error", max_error)
    _check_share("level", level)
    _check_share("power", power)
    if not 0.0 <= expected_error < max_error:
        promise = f"answers that are wrong {expected_error:g} of the time"
        raise DataError(f"{promise} cannot be promised to be so {max_error:g} of it; raise max_error")
    if not 0.0 < coverage <= 1.0:
        raise DataError(f"coverage is {coverage:g}; give a share of the pictures above 0 and up to 1")
    accepted = np.unique(np.geomspace(1.0, 1e9, 2100).round())
    allowed = _critical(accepted, max_error, (1.0 - level) / (len(STARTS) + 1)) - UNSEEN
    success = np.where(allowed >= 0, _binomial(np.maximum(allowed, 0), accepted, expected_error), 0.0)
    enough = success >= power
    if not enough.any():
        raise DataError(f"more than {accepted[-1]:.0e} labelled pictures would be needed; raise max_error")
    return math.ceil(accepted[enough.argmax()] / coverage)


@dataclass(frozen=True)
class Conformal:
    """Sets that hold the truth at least as often as stated; "something else" may be in a set, as one option."""

    least: float
    """The least probability of an option in a set; 0 lets all in."""

    @classmethod
    def learn(cls, distribution: Distribution, truths: Codes, coverage: float = 0.9) -> Self:
        """From labelled pictures, by split conformal prediction; `coverage` in (0, 1)."""
        return cls.of(chance_of_truth(distribution, truths), coverage)

    @classmethod
    def of(cls, chance: Floats, coverage: float = 0.9) -> Self:
        """The same from what `chance_of_truth` gave for each labelled picture."""
        _check_share("coverage", coverage)
        chance = np.sort(chance)
        # Of n + 1 pictures in any order, the new one is among the ⌈(n + 1)·coverage⌉ most probable that often.
        place = len(chance) - math.ceil((len(chance) + 1) * coverage - 1e-9)
        return cls(float(chance[place]) if place >= 0 else 0.0)

    def sets(self, distribution: Distribution) -> Sets:
        """The labels of each picture that are probable enough, and the most probable one in any case."""
        top = distribution.labels == distribution.top()[:, None]
        likely = (distribution.named >= self.least) & (distribution.labels != MISSING)
        others = distribution.classes > (distribution.labels != MISSING).sum(axis=1)
        labels = np.where(likely | top, distribution.labels, np.int32(MISSING))
        return Sets(labels, others & (distribution.rest() >= self.least))


@dataclass(frozen=True, eq=False)
class Sets:
    """The labels that each picture may have."""

    labels: Codes
    """(n, m): MISSING where a label is not in the set."""
    other: Bools
    """(n,): whether it may be a label that nobody named."""

    def sizes(self) -> Counts:
        """(n,): how many options each set holds."""
        return (self.labels != MISSING).sum(axis=1) + self.other

    def hold(self, distribution: Distribution, truths: Codes) -> Bools:
        """(n,): whether the truth is in the set, as a label or as something else."""
        named = (distribution.labels == truths[:, None]).any(axis=1)
        inside: Bools = (self.labels == truths[:, None]).any(axis=1)
        return np.where(named, inside, self.other)


def certified_radius(agree: ArrayLike, asked: ArrayLike, sigma: float, level: float = 0.95) -> Floats:
    """How far the picture may be changed, in the L2 norm over all its values and in the units of `sigma`, before
    the answer that most noisy copies get can change; elementwise, 0 where nothing can be certified.

    Cohen, Rosenfeld and Kolter (2019): σ·Φ⁻¹(p), p the exact lower bound of the share of Gaussian views of strength
    sigma that give the label, which must not be chosen by looking at these views. Each holds with certainty `level`.
    """
    from scipy.special import betaincinv, ndtri

    _check_share("level", level)
    if not 0.0 < sigma < math.inf:
        raise DataError(f"sigma is {sigma}; give the strength of the Gaussian views, above 0")
    k, n = np.asarray(agree, np.float64), np.asarray(asked, np.float64)
    share = np.where(k > 0, betaincinv(np.maximum(k, 1.0), n - k + 1.0, 1.0 - level), 0.0)
    radius: Floats = sigma * ndtri(np.maximum(share, 0.5))
    return radius


@dataclass(frozen=True)
class AdaptiveRule:
    """When to stop asking: go on while the confidence is within the band for the number of views asked so far."""

    low: tuple[float, ...]
    """Where the band begins, for 0, 1 … S − 1 views asked."""
    high: tuple[float, ...]
    """Where it ends; below its beginning for a number of views at which one always stops."""

    @classmethod
    def learn(cls, confidence: Floats, regret: Floats, allowance: float) -> Self:
        """The rule that asks least while its mean regret is at most `allowance`.

        Both arrays are (n, S + 1): after 0, 1 … S views of each picture. The regret is what stopping there costs
        against the whole panel, such as `movement`, or 1 where the decision would have been another.
        """
        cheap, dear = -40.0, 10.0
        for _ in range(50):
            middle = (cheap + dear) / 2
            kept = cls.priced(confidence, regret, math.exp(middle))._mean(confidence, regret) <= allowance
            cheap, dear = (middle, dear) if kept else (cheap, middle)
        return cls.priced(confidence, regret, math.exp(cheap))

    @classmethod
    def priced(cls, confidence: Floats, regret: Floats, price: float) -> Self:
        """The rule that makes regret and `price` per view together least, worked out from the last view back."""
        togo = regret[:, -1]
        bands = []
        for asked in range(regret.shape[1] - 2, -1, -1):
            low, high = _band(confidence[:, asked], regret[:, asked] - togo - price)
            inside = (low <= confidence[:, asked]) & (confidence[:, asked] <= high)
            togo = np.where(inside, togo + price, regret[:, asked])
            bands.append((low, high))
        bands.reverse()
        return cls(tuple(low for low, _ in bands), tuple(high for _, high in bands))

    def enough(self, confidence: Floats, asked: int) -> Bools:
        """(n,): whether to stop, after `asked` views and with this confidence."""
        if asked >= len(self.low):
            return np.ones(len(confidence), bool)
        return (confidence < self.low[asked]) | (confidence > self.high[asked])

    def asked(self, confidence: Floats) -> Counts:
        """(n,): after how many views one stops, from the confidences (n, S + 1) after each number of views."""
        stops = np.column_stack([self.enough(confidence[:, s], s) for s in range(len(self.low) + 1)])
        return stops.argmax(axis=1)

    def _mean(self, confidence: Floats, regret: Floats) -> float:
        return float(regret[np.arange(len(regret)), self.asked(confidence)].mean())


def movement(distributions: Sequence[Distribution]) -> Floats:
    """(n, S + 1): the squared distance of each belief from the last, over all classes.

    If the last belief is calibrated, this is what a picture adds to the Brier score, on average, by stopping there.
    """
    return np.column_stack([_distance(before, distributions[-1]) for before in distributions])


@dataclass(frozen=True)
class Drift:
    """A running test that live pictures are still of the kind that the profile was made from.

    A picture's kind is a number from 0, such as how many of its views agree. Each live picture is ranked among the
    profile's and the live ones before it, with ties broken by lot: if nothing has changed, the ranks are even and
    independent of each other (conformal prediction), and a bet that they fall below a cut more or less often than
    they should wins nothing on average. By Ville's inequality the wager ever reaches 1/alpha with a chance of at
    most alpha, however long one watches and whatever the kinds' real shares are.
    """

    reference: tuple[int, ...]
    """How many pictures of each kind the profile was made from."""
    alpha: float = 0.01
    """The chance of a false alarm, ever."""
    seed: int = 0
    live: tuple[int, ...] = ()
    """How many pictures of each kind came since; empty at first."""
    below: tuple[int, ...] = (0,) * len(CUTS)
    """How many ranks fell below each cut."""
    peak: float = 0.0
    """The highest log of the wager so far."""

    def __post_init__(self) -> None:
        _check_share("alpha", self.alpha)
        if sum(self.reference) < 1 or min(self.reference) < 0:
            raise DataError(f"drift needs counts of the profile's pictures, not {self.reference}; fit the profile anew")

    @property
    def seen(self) -> int:
        """How many live pictures were looked at."""
        return sum(self.live)

    @property
    def alarm(self) -> bool:
        """Whether the live pictures have stopped looking like the profile's; it stays once it is raised."""
        return self.peak >= -math.log(self.alpha)

    def update(self, kinds: ArrayLike) -> Self:
        """The test after more live pictures, of these kinds and in this order."""
        kind = np.asarray(kinds, np.int64).ravel()
        if not len(kind):
            return self
        if kind.min() < 0 or kind.max() >= len(self.reference):
            raise DataError(f"drift knows the kinds 0 to {len(self.reference) - 1}, not {kind.min()} to {kind.max()}")
        came = np.eye(len(self.reference), dtype=np.int64)[kind].cumsum(axis=0) + self._live()
        low = self._ranks(kind, came)[:, None] < np.array(CUTS)
        below = low.cumsum(axis=0) + np.array(self.below)
        seen = self.seen + np.arange(1, len(kind) + 1)
        peak = max(self.peak, float(_wager(below, seen[:, None]).max()))
        return replace(self, live=tuple(came[-1].tolist()), below=tuple(below[-1].tolist()), peak=peak)

    def _live(self) -> Counts:
        return np.array(self.live or (0,) * len(self.reference), np.int64)

    def _ranks(self, kind: Counts, came: Counts) -> Floats:
        """(n,): the rank of each picture among all up to itself, from 0 to 1, even if nothing has changed."""
        bag = came + np.array(self.reference)
        upto = np.take_along_axis(bag.cumsum(axis=1), kind[:, None], axis=1)[:, 0]
        same = np.take_along_axis(bag, kind[:, None], axis=1)[:, 0]
        lot = np.random.default_rng([self.seed, self.seen]).random(len(kind))
        ranks: Floats = (upto - lot * same) / bag.sum(axis=1)
        return ranks


def _wager(below: Counts, seen: Counts) -> Floats:
    """(n,): log of the mean, over the cuts, of what an even mixture of bets on each has won."""
    from scipy.special import betaln, logsumexp

    cuts = np.array(CUTS)
    fair = below * np.log(cuts) + (seen - below) * np.log1p(-cuts)
    won: Floats = logsumexp(betaln(below + 0.5, seen - below + 0.5) - betaln(0.5, 0.5) - fair, axis=1)
    return won - math.log(len(CUTS))


def _distance(before: Distribution, after: Distribution) -> Floats:
    total = np.zeros(len(after.labels))
    joint = np.zeros(len(after.labels))
    for label, chance in zip(after.labels.T, after.named.T, strict=True):
        total += np.where(label == MISSING, 0.0, (chance - before.of(label)) ** 2)
        joint += label != MISSING
    for label, chance in zip(before.labels.T, before.named.T, strict=True):
        alone = (label != MISSING) & ~(after.labels == label[:, None]).any(axis=1)
        total += np.where(alone, (chance - after.unnamed()) ** 2, 0.0)
        joint += alone
    total += (after.classes - joint) * (after.unnamed() - before.unnamed()) ** 2
    return total


def _band(confidence: Floats, gain: Floats) -> tuple[float, float]:
    """The range of confidences where asking on gains most in all; it begins above its end if it never gains."""
    value, place = np.unique(confidence, return_inverse=True)
    sums = np.concatenate([[0.0], np.cumsum(np.bincount(place, gain))])
    lowest = np.minimum.accumulate(sums)
    end = int((sums - lowest).argmax())
    if end == 0:
        return 1.0, 0.0
    begin = int((sums[: end + 1] == lowest[end]).argmax())
    edges = np.concatenate([[0.0], (value[1:] + value[:-1]) / 2, [1.0]])
    return float(edges[begin]), float(edges[end])


def _candidates(max_error: float) -> tuple[Floats, Floats]:
    """The thresholds to try, from strict to lax, and the share of the risk that each has of its own."""
    powers = np.arange(round(math.log2(STARTS[0]) * STEPS), math.ceil(-math.log2(max_error) * STEPS))
    levels = np.append(1.0 - max_error * 2.0 ** (powers / STEPS), 0.0)
    starts = [int(np.abs(levels - (1.0 - max_error * start)).argmin()) for start in STARTS]
    starts.append(len(levels) - 1)
    return levels, np.bincount(starts, minlength=len(levels)) / len(starts)


def _above(confidence: Floats, levels: Floats) -> Counts:
    """How many confidences reach each level."""
    return len(confidence) - np.searchsorted(np.sort(confidence), levels, side="left")


def _binomial(wrong: Counts | Floats, asked: Counts | Floats, error: float) -> Floats:
    """P(at most so many of those asked are wrong) if each is with this chance."""
    from scipy.special import betainc

    return np.where(wrong < asked, betainc(np.maximum(asked - wrong, 1), wrong + 1, 1.0 - error), 1.0)


def _critical(asked: Floats, error: float, risk: float) -> Floats:
    """The most wrong answers that are still surprising at this risk, −1 if not even none is; by bisection."""
    low, high = np.full(len(asked), -1.0), asked
    while (high - low > 1).any():
        middle = np.ceil((low + high) / 2)
        fits = _binomial(middle, asked, error) <= risk
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return low


def chance_of_truth(distribution: Distribution, truths: Codes) -> Floats:
    """(n,): the probability of the option that came true, all labels that nobody named being one."""
    hit = (distribution.labels == truths[:, None]) & (distribution.labels != MISSING)
    return np.where(hit.any(axis=1), (distribution.named * hit).sum(axis=1), distribution.rest())


def _check_share(name: str, value: float) -> None:
    if not 0.0 < value < 1.0:
        raise DataError(f"{name} is {value}; give a share between 0 and 1, such as {SHARES[name]}")
