"""Familiarity of single pictures, and drift of streams.

Familiarity is a conformal p-value of a picture's similarity to the labelled ones, from its pixels and its answers.
Confidences and guarantees hold for pictures like those that the profile was fitted on. A picture is described by
`images.descriptor`; its distance to the nearest neighbour among some of the labelled pictures is ranked among the same
distances of the other labelled pictures. This test needs no query. Once the picture has been queried, its answers are
ranked by how often labelled pictures had answers of the same kind.

Drift is detected by a conformal test martingale.
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field, model_validator

from looktwice.calibration import MISSING, Counts, Floats, Votes, check_share
from looktwice.decisions.results import Count, Part
from looktwice.errors import DataError
from looktwice.images import NAMES, PLACES, Image, WorkingSize, descriptor

LEAST = 20
"""The minimum number of labelled pictures for a test."""
NEIGHBOURS, RANKED = 300, 1000
"""The maximum number of labelled pictures to which distances are measured, and the maximum number whose distances are
stored."""
FINEST = 0.02
"""The smallest unit of a descriptor component, used if the labelled pictures hardly differ in it."""
FORM = ("side", "saturation")
LIGHT = ("dark", "quartile", "median", "three_quarters", "bright", "contrast", "black", "white", "entropy", "commonest")
SHRINKAGE, RIDGE = 0.2, 0.02
"""The shrinkage of correlations, and the constant added to every variance."""
OUTSIDE = 3.0
"""A component is unusual if it is more than this many standard deviations from the mean."""
GREY = 0.02
"""The saturation up to which a picture is treated as grey."""
MOST_WORDS = 3
LARGEST = 1e9
"""A bound that exceeds any descriptor component and any distance."""


LEAST_VARIANCE = 1.0
"""The minimum variance of each scaled descriptor component."""
SAME = 1e-4
"""The squared distance below which two pictures are treated as equal; it is above zero because of rounding."""
POWER = 4
"""The power of the distance with which the p-value falls beyond all labelled pictures."""


LEAST_UNITS: Floats = np.full(len(NAMES), FINEST)
"""(len(NAMES),): the smallest unit of each descriptor component.

If all labelled pictures have the same size, or are all grey, smaller or coloured pictures are far from them. Light
statistics are within [0, 1] and close to 0 or 1 for most pictures of some kinds: their spread cannot be estimated from
hundreds of pictures, and a tenth of the range is small for any kind.
"""
LEAST_UNITS[[PLACES[name] for name in FORM]] = 0.001
LEAST_UNITS[[PLACES[name] for name in LIGHT]] = 0.1

COMPARED = {
    "median": ("darker", "brighter"),
    "contrast": ("lower in contrast", "higher in contrast"),
    "saturation": ("paler", "more colourful"),
    "band_0": ("blurrier", "sharper or noisier"),
    "blocks": ("less blocky", "more blocky"),
    "commonest": ("busier", "emptier"),
    "direction": ("richer in level lines", "richer in upright lines"),
}
"""The words for each feature if it is lower, or higher, than in the labelled pictures."""


class Familiarity(Part):
    """A test of whether pictures are like the labelled ones; a part of a profile that contains no pictures."""

    descriptor: Literal[1] = 1
    """The version of the list of descriptor components."""
    neighbours: str
    """Descriptors of some labelled pictures: 32-bit floats in base64, `len(NAMES)` per picture."""
    distances: tuple[float, ...]
    """The sorted distances of the other labelled pictures to their nearest neighbours."""
    size: WorkingSize | None = None
    """The working size of these descriptors, at which new pictures must be described; None if unknown."""

    @classmethod
    def fit(cls, descriptors: Floats, size: WorkingSize | None = None) -> Self | None:
        """Learn from the descriptors of distinct labelled pictures, (n, len(NAMES)); None if there are too few.

        `size` is the working size at which they were described. One half serves as neighbours and determines the scale;
        the distances of the other half are ranked.
        """
        if len(descriptors) < LEAST:
            return None
        mixed = np.random.default_rng(0).permutation(len(descriptors))
        half = min(len(mixed) // 2, NEIGHBOURS)
        packed = base64.b64encode(descriptors[mixed[:half]].astype("<f4").tobytes()).decode()
        ranked = descriptors[mixed[half : half + RANKED]]
        distances = np.sort(cls.model_construct(neighbours=packed).distance(ranked))
        return cls(neighbours=packed, distances=tuple(distances.tolist()), size=size)

    def __eq__(self, other: object) -> bool:
        """Compare fields only, not derived values."""
        return isinstance(other, Familiarity) and self.model_dump() == other.model_dump()

    def __hash__(self) -> int:
        return hash((self.neighbours, self.distances))

    @model_validator(mode="after")
    def _whole(self) -> Self:
        try:
            rows = self._rows
        except (binascii.Error, ValueError):
            raise ValueError(f"the neighbours are not rows of {len(NAMES)} numbers") from None
        if not len(rows) or not (np.abs(rows) < LARGEST).all():
            raise ValueError("the neighbours are not picture descriptors")
        if not self.distances or not (np.diff((0.0, *self.distances, LARGEST)) >= 0).all():
            raise ValueError("the distances must be non-negative and in increasing order")
        return self

    def p_values(self, descriptors: Floats) -> Floats:
        """(n,): the p-value of each picture, in (0, 1]; at most a with probability a for new familiar pictures.

        This holds for every a of at least 1 / (distances + 1). Smaller p-values cannot be determined by counting:
        beyond all labelled pictures, the p-value falls with the fourth power of the distance, as in Markov's
        inequality.
        """
        ranked, distance = np.array(self.distances), self.distance(descriptors)
        share = (1.0 + len(ranked) - np.searchsorted(ranked, distance, "left")) / (len(ranked) + 1)
        beyond = distance > ranked[-1]
        return np.where(beyond, share * (ranked[-1] / np.where(beyond, distance, 1.0)) ** POWER, share)

    def describe(self, image: Image) -> Floats:
        """The descriptor of a picture, scaled down to the size of the labelled pictures if that is more familiar.

        A classifier scales pictures to its input size, so a higher resolution alone is not a relevant difference. For a
        larger picture, the descriptor that is nearer to the labelled pictures is used: p-values can only rise, so the
        false-alarm rate does not increase.
        """
        described = image.described()
        larger = described[PLACES["side"]] - self._middle[PLACES["side"]]
        if larger <= self._unit[PLACES["side"]]:
            return described
        height, width = (side / 2**larger for side in image.original_size or image.pixels.shape[:2])
        size = WorkingSize(long=max(1, round(max(height, width))))
        both = np.stack([described, descriptor(image.within(size).pixels, (height, width))])
        return np.asarray(both[self.distance(both).argmin()])

    def drift(self) -> Drift:
        """Test whether a stream of pictures is as familiar as the labelled ones, by the kinds from `kind`.

        Each ranked picture is a separate kind, and so is each gap between two ranked pictures, into which new pictures
        fall. Pictures that are more familiar than new ones, such as the labelled pictures themselves, are not treated
        as a shift.
        """
        return Drift((0, 1) * len(self.distances) + (0,), alternative="greater")

    def kind(self, p_value: float) -> int:
        """The gap between ranked pictures into which a picture with this p-value falls."""
        ranked = len(self.distances)
        return 2 * min(ranked, round((1 - p_value) * (ranked + 1)))

    def distance(self, descriptors: Floats) -> Floats:
        """(n,): the Mahalanobis distance of each picture from the nearest other neighbour, to four decimals.

        A repeated labelled picture is compared with the other labelled pictures. Otherwise, in a stream that begins
        with labelled pictures, the new pictures after them would appear unfamiliar.
        """
        rows, white = self._whitened(descriptors), self._white
        squares = (rows**2).sum(axis=1)[:, None] + (white**2).sum(axis=1) - 2 * rows @ white.T
        squares[squares < SAME] = np.inf
        nearest = squares.min(axis=1)
        return np.sqrt(np.where(np.isinf(nearest), 0.0, nearest)).round(4)

    def because(self, descriptor: Floats) -> str:
        """A sentence on how a picture differs from the labelled ones."""
        away = (descriptor - self._middle) / self._unit
        if kind := self._kind(descriptor, away):
            return kind
        standing = sorted(COMPARED, key=lambda name: -abs(away[PLACES[name]]))
        words = [COMPARED[name][int(away[PLACES[name]] > 0)] for name in standing if abs(away[PLACES[name]]) > OUTSIDE]
        if not words:
            return "its colours, light and detail are together unlike those of the labelled pictures"
        return f"{' and '.join(words[:MOST_WORDS])} than the labelled pictures"

    def _kind(self, descriptor: Floats, away: Floats) -> str:
        """The colour, shape and resolution of the picture, where they differ from those of the labelled ones."""
        picture, own, usual, middle = "a picture", list[str](), list[str](), self._middle
        grey = bool(np.quantile(self._rows[:, PLACES["saturation"]], 0.95) <= GREY)
        if (descriptor[PLACES["saturation"]] <= GREY) != grey and abs(away[PLACES["saturation"]]) > OUTSIDE:
            picture, usual = ("a colour picture", ["grey"]) if grey else ("a grey picture", ["in colour"])
        alike = self._rows[:, [PLACES["side"], PLACES["aspect"]]].std(axis=0).max() < FINEST
        about = "" if alike else "about "
        if abs(away[PLACES["aspect"]]) > OUTSIDE:
            own.append(_shape(descriptor))
            usual.append(about + _shape(middle))
        if away[PLACES["side"]] < -OUTSIDE:
            own.append(f"of only {_size(descriptor)} pixels")
            usual.append(about + _size(middle))
        picture = f"{picture} {' and '.join(own)}".rstrip()
        return f"{picture}; the labelled pictures are {' and '.join(usual)}" if usual else ""

    @cached_property
    def _rows(self) -> Floats:
        flat = np.frombuffer(base64.b64decode(self.neighbours, validate=True), "<f4")
        return flat.reshape(-1, len(NAMES)).astype(np.float64)

    @cached_property
    def _middle(self) -> Floats:
        return np.asarray(np.median(self._rows, axis=0))

    @cached_property
    def _unit(self) -> Floats:
        return np.maximum(self._rows.std(axis=0), LEAST_UNITS)

    @cached_property
    def _factor(self) -> Floats:
        """The whitening matrix of the descriptor: a root of the inverse covariance."""
        scaled = (self._rows - self._middle) / self._unit
        covariance = np.cov(scaled.T, bias=True)
        spread = np.diag(covariance)
        own = SHRINKAGE * spread + np.maximum(LEAST_VARIANCE - spread, 0.0) + RIDGE
        shrunk = (1 - SHRINKAGE) * covariance + np.diag(own)
        return np.linalg.cholesky(np.linalg.inv(shrunk))

    @cached_property
    def _white(self) -> Floats:
        return self._whitened(self._rows)

    def _whitened(self, descriptors: Floats) -> Floats:
        whitened: Floats = (descriptors - self._middle) / self._unit @ self._factor
        return whitened


def _shape(descriptor: Floats) -> str:
    aspect = descriptor[PLACES["aspect"]]
    ratio = f"{2 ** abs(aspect):.3g}"
    return "square" if ratio == "1" else f"{ratio} times as {'wide as high' if aspect > 0 else 'high as wide'}"


def _size(descriptor: Floats) -> str:
    side, aspect = descriptor[PLACES["side"]], descriptor[PLACES["aspect"]]
    return f"{2 ** (side + aspect / 2):.0f} × {2 ** (side - aspect / 2):.0f}"


# Familiarity of answers ----------------------------------------------------------------------------------------------

MOST = 2000
"""The maximum number of labelled pictures whose answers are stored."""
KIND = re.compile(r"\d{1,9}/\d{1,9}")
Kind = tuple[str, str]
"""The label of the picture itself, with the number of agreeing views and the number of distinct labels, written as
`8/1`."""


class AnswerKinds(Part):
    """The frequencies of kinds of answers among the labelled pictures; a part of a profile."""

    views: Count
    """The number of leading views of the panel that are used."""
    seen: dict[str, dict[str, Annotated[int, Field(ge=1, lt=2**31)]]]
    """For each label, the number of pictures with it, by agreeing views and distinct labels, written as `8/1`."""

    @classmethod
    def fit(cls, votes: Votes) -> Self | None:
        """Learn from the answers about distinct labelled pictures; returns None if there are too few pictures."""
        if len(votes) < LEAST:
            return None
        some = np.random.default_rng(0).permutation(len(votes))[:MOST]
        seen: dict[str, dict[str, int]] = {}
        for (label, kind), count in sorted(Counter(kinds(votes.take(some))).items()):
            seen.setdefault(label, {})[kind] = count
        return cls(views=len(votes.panel), seen=seen)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not self.seen or not all(self.seen.values()):
            raise ValueError("every label must have answer kinds")
        if not all(KIND.fullmatch(kind) for by_kind in self.seen.values() for kind in by_kind):
            raise ValueError("an answer kind must be written like 8/1")
        return self

    def p_values(self, votes: Votes) -> Floats:
        """(n,): the p-value of the answers about each picture, in (0, 1]; at most a with probability a for new ones.

        The new picture is added to the labelled ones. The frequency of a picture's answers is the number of pictures
        with the same kind and label, plus a small term for the same kind with any label. The p-value is the share of
        pictures, including the new one, whose answers are no more frequent than its own (full conformal prediction).
        """
        answered = kinds(votes.under(range(self.views)))
        known = {kind: self._p_value(*kind) for kind in set(answered)}
        return np.array([known[kind] for kind in answered], np.float64)

    def because(self, votes: Votes, row: int) -> str:
        """A sentence on how the answers about a picture are unusual."""
        ((label, kind),) = kinds(votes.under(range(self.views)).take(np.array([row])))
        agree, labels = kind.split("/")
        among = self.seen.get(label)
        if among is None:
            return f"the classifier answered {label!r}, which it never returned for a labelled picture"
        how = f"{agree} of {self.views} views agree with {label!r} and {labels} labels occur"
        times = among.get(kind, 0)
        often = f"{times} of" if times else "none of"
        return f"{how}, as with {often} the {sum(among.values())} labelled pictures with this label"

    @property
    def _table(self) -> tuple[list[str], list[str], Counts]:
        """Labels, kinds, and a contingency table of pictures, padded with an empty row and column."""
        labels, among = list(self.seen), list(dict.fromkeys(kind for by_kind in self.seen.values() for kind in by_kind))
        count = [[by_kind.get(kind, 0) for kind in (*among, "")] for by_kind in (*self.seen.values(), {})]
        return labels, among, np.array(count, np.int64)

    def _p_value(self, label: str, kind: str) -> float:
        """The p-value of one kind of answers, which is added to the table of observed kinds."""
        labels, among, table = self._table
        count = table.copy()
        cell = labels.index(label) if label in labels else -1, among.index(kind) if kind in among else -1
        count[cell] += 1
        of_label, of_kind = count.sum(axis=1, keepdims=True), count.sum(axis=0)
        common = (of_label / (of_label + 1) * (count + of_kind / count.sum())).round(9)
        return float(count[common <= common[cell]].sum() / count.sum())


def kinds(votes: Votes) -> list[Kind]:
    """The kind of answers about each picture."""
    agree = ((votes.views == votes.base[:, None]) & (votes.views != MISSING)).sum(axis=1).tolist()
    answers = np.column_stack([votes.base, np.where(votes.views == MISSING, votes.base[:, None], votes.views)])
    labels = 1 + (np.diff(np.sort(answers, axis=1)) != 0).sum(axis=1)
    words = (votes.vocabulary[code] for code in votes.base.tolist())
    return [(word, f"{k}/{d}") for word, k, d in zip(words, agree, labels.tolist(), strict=True)]


# Drift ----------------------------------------------------------------------------------------------------------------


CUTS = (0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95)
"""The quantiles below which `Drift` tests for too many or too few pictures."""


CELLS = 2**19
"""The maximum product of pictures and kinds that are counted at once, which limits memory use."""
MARKS = 256
"""The minimum number of stored points of the stream, denser towards the end; a change is located at one of them."""


@dataclass(frozen=True)
class Drift:
    """A sequential test of whether live pictures are still like those that the profile was fitted on.

    A picture's kind is a non-negative integer, such as the number of agreeing views. Each live picture is ranked among
    the profile's pictures and the live pictures before it, with ties broken at random: if nothing has changed, the
    ranks are uniform and independent of each other (conformal prediction), and a bet that they fall below a cut more or
    less often than expected wins nothing on average. By Ville's inequality, the wealth ever reaches 1/alpha with
    probability at most alpha, for any length of the stream and any true shares of the bins.
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
    """The number of pictures, and of ranks below each cut, at stored points of the stream."""
    since: int | None = None
    """The most likely start of the change, in live pictures; None without an alarm."""

    def __post_init__(self) -> None:
        check_share("alpha", self.alpha)
        if sum(self.reference) < 1 or min(self.reference) < 0:
            raise DataError(f"drift detection needs counts of the profile's pictures, not {self.reference}; fit again")

    @property
    def seen(self) -> int:
        """The number of live pictures."""
        return sum(self.live)

    @property
    def alarm(self) -> bool:
        """Whether an alarm was raised; once raised, it persists."""
        return self.peak >= -math.log(self.alpha)

    def update(self, agreement_bins: ArrayLike) -> Self:
        """Update the test with more live pictures, in order."""
        kind = np.asarray(agreement_bins, np.int64).ravel()
        if not len(kind):
            return self
        if kind.min() < 0 or kind.max() >= len(self.reference):
            raise DataError(
                f"drift detection has agreement bins 0 to {len(self.reference) - 1}, not {kind.min()} to {kind.max()}"
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
        while len(path) > 2 * MARKS:  # older points are kept more sparsely
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
        """(n,): the rank of each picture among all pictures up to itself, uniform in [0, 1] if nothing has changed."""
        bag = came + np.array(self.reference)
        upto = np.take_along_axis(bag.cumsum(axis=1), kind[:, None], axis=1)[:, 0]
        same = np.take_along_axis(bag, kind[:, None], axis=1)[:, 0]
        source = np.random.PCG64(self.seed)
        source.advance(self.seen)  # ranks do not depend on the batch size
        lot = np.random.Generator(source).random(len(kind))
        ranks: Floats = (upto - lot * same) / bag.sum(axis=1)
        return ranks


def began(path: Counts) -> int:
    """The number of pictures after which the ranks most likely stopped being uniform, up to the last row of a path.

    Each row is the number of pictures seen and the number of ranks below each cut. The selected row is the one after
    which, for one of the cuts, the ranks are least likely under uniformity (maximum likelihood).
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
