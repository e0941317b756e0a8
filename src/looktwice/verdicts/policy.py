"""How a profile is put to use: what to believe, when enough is asked, what to accept and which labels to name."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, Self, TypedDict, get_args

import numpy as np

from looktwice.asking.jobs import Rounds, Screen
from looktwice.calibration.base import Calibrator
from looktwice.calibration.jury import Prefixes
from looktwice.calibration.votes import MISSING, Floats, Row, Votes
from looktwice.errors import DataError, ProfileError
from looktwice.verdicts.conformal import SetKind, SetMaker
from looktwice.verdicts.drift import Drift
from looktwice.verdicts.familiarity import AnswerKinds, Familiarity
from looktwice.verdicts.profile import Adaptive, HeldOut, Profile
from looktwice.views import Panel

Unfamiliar = Literal["accept", "review", "refuse"]
"""What becomes of pictures that are not like the labelled ones."""
FALSE_ALARMS = 0.01
NEVER = math.inf
"""The threshold when nothing can be guaranteed: no confidence reaches it."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """How far pictures are like the labelled ones."""

    familiarity: Floats
    """(n,): one p-value from pixels and answers: the number of tests times the least of them (Bonferroni)."""
    pixels: Floats
    """(n,): the p-value of the pixels alone, NaN where it is not known."""
    reasons: dict[int, str]
    """The places of those that are not like them, the least familiar first, and why."""


@dataclass(frozen=True)
class Policy:
    """One way to use a profile; `guaranteeing` and `covering` give the same with more to say about a picture."""

    panel: Panel
    """The views to ask, in order."""
    calibrator: Calibrator
    held_out: HeldOut
    """What its guarantees rest on."""
    agreement_bins: tuple[int, ...]
    """How many labelled pictures were of each kind."""
    rounds: Rounds | None = None
    """When enough is asked; None asks the whole panel."""
    accept: float | None = None
    """The least confidence to accept, NEVER if nothing can be guaranteed; None decides nothing."""
    sets: SetMaker | None = None
    familiarity: Familiarity | None = None
    """What tells pictures like the labelled ones from others; None where the profile cannot tell."""
    answers: AnswerKinds | None = None
    """What tells answers like those about the labelled pictures from others; None where the profile cannot tell."""
    unfamiliar: Unfamiliar = "review"
    """What becomes of others."""
    false_alarms: float = FALSE_ALARMS
    """How often a picture like the labelled ones is taken for another."""

    @classmethod
    def whole(cls, profile: Profile) -> Self:
        """Ask the whole panel about every picture."""
        return cls(
            profile.views(),
            profile.restored_calibrator(),
            profile.held_out,
            profile.agreement_bins,
            familiarity=profile.familiarity,
            answers=profile.answers,
        )

    @classmethod
    def thrifty(cls, profile: Profile) -> Self:
        """Stop asking about a picture as soon as further answers would hardly matter."""
        adaptive = profile.adaptive
        if adaptive is None:
            raise ProfileError("this profile does not say when to stop asking; fit it with the calibrator jury")
        rounds = _rounds(adaptive, profile.vocabulary, profile.classes)
        return cls(
            adaptive.views(),
            adaptive.restored_calibrator(),
            adaptive.held_out,
            adaptive.agreement_bins,
            rounds,
            familiarity=profile.familiarity,
            answers=adaptive.answers,
        )

    def guaranteeing(self, max_error: float, level: float = 0.95) -> Self:
        """Accept what is wrong at most `max_error` of the time, with certainty `level`; the rest is for review."""
        threshold = self.held_out.threshold(max_error, level)
        return replace(self, accept=NEVER if threshold is None else threshold)

    def covering(self, coverage: float, kind: SetKind = "adaptive") -> Self:
        """Name the labels that hold the truth so often."""
        return replace(self, sets=self.held_out.conformal(coverage, kind))

    def treating(self, unfamiliar: Unfamiliar, false_alarms: float = FALSE_ALARMS) -> Self:
        """Do this with pictures that are not like the labelled ones."""
        if unfamiliar == "refuse" and self.familiarity is None:
            raise ProfileError(
                "this profile cannot tell which pictures are unfamiliar; fit again, or do not refuse any"
            )
        return replace(self, unfamiliar=unfamiliar, false_alarms=false_alarms)

    def because(self, descriptor: Floats) -> str | None:
        """Why a picture is not like the labelled ones, for people; None where it is, or the profile cannot tell."""
        if self.familiarity is None or self.before_asking(descriptor[None])[0] > self.false_alarms:
            return None
        return self.familiarity.because(descriptor)

    def before_asking(self, descriptors: Floats) -> Floats:
        """(n,): how familiar pictures are if the answers about them are usual; NaN if the profile cannot tell.

        What is unfamiliar then stays so, whatever is answered.
        """
        if self.familiarity is None:
            return np.full(len(descriptors), np.nan)
        return np.minimum(1.0, self._tests * self.familiarity.p_values(descriptors))

    def compare(self, votes: Votes, descriptors: Sequence[Floats | None]) -> Comparison | None:
        """How far these pictures are like the labelled ones, by answers and pixels; None if the profile cannot tell."""
        pixels, answers = np.full(len(votes), np.nan), np.ones(len(votes))
        described = {place: row for place, row in enumerate(descriptors) if row is not None}
        if self.familiarity and described:
            pixels[list(described)] = self.familiarity.p_values(np.stack(list(described.values())))
        if self.answers:
            answers = self.answers.p_values(votes)
        elif not (self.familiarity and described):
            return None
        familiarity = np.minimum(1.0, self._tests * np.fmin(pixels, answers))
        reasons = {}
        for place in np.argsort(familiarity, kind="stable")[: (familiarity <= self.false_alarms).sum()].tolist():
            alarming, why = self.false_alarms / self._tests, list[str]()
            if self.familiarity and pixels[place] <= alarming:
                why.append(self.familiarity.because(described[place]))
            if self.answers and answers[place] <= alarming:
                why.append(self.answers.because(votes, place))
            reasons[place] = "; ".join(why)
        return Comparison(familiarity, pixels, reasons)

    @property
    def _tests(self) -> int:
        """How many p-values each picture has."""
        return (self.familiarity is not None) + (self.answers is not None)

    def screen(self) -> Screen:
        """What looks at pictures before anything is asked about them."""
        return Screen(self.familiarity is not None, why=self.because, refuse=self.unfamiliar == "refuse")

    def agreement_bin(self, base: str, views: Sequence[str | None]) -> int:
        """What drift is seen by: how many views are on the side of the base label.

        Where one stops early: how many of the first round, and of those alike, how many had to be asked.
        """
        if self.rounds is None:
            return sum(label == base for label in views)
        agree = sum(label == base for label in views[: self.rounds.first])
        asked = max((place for place, label in enumerate(views, 1) if label is not None), default=0)
        return agreement_bin(agree, asked, len(views))

    def drift(self) -> Drift | None:
        """The test that pictures still look like the profile's; None if the profile cannot tell.

        A false alarm has a chance of at most 1 %, however many pictures there are.
        """
        return Drift(self.agreement_bins) if len(self.agreement_bins) > 1 and any(self.agreement_bins) else None

    def shift(self) -> Drift | None:
        """The same by the pixels: whether pictures are still as familiar; None if the profile cannot tell.

        Where unfamiliar pictures are refused, those that are left would seem too familiar.
        """
        return self.familiarity.drift() if self.familiarity and self.unfamiliar != "refuse" else None

    def familiarity_kind(self, familiarity: float | None) -> int:
        """What a shift is seen by: the place of a picture among the labelled ones."""
        return self.familiarity.kind(familiarity) if self.familiarity and familiarity is not None else 0


def agreement_bin(agree: int, asked: int, views: int) -> int:
    """One number for how many views of the first round agree and how many were asked, the most doubtful first."""
    return agree * (views + 1) + views - asked


def _rounds(adaptive: Adaptive, vocabulary: Sequence[str], classes: int) -> Rounds:
    """Views are asked one by one after the first round.

    Without scores all that matters is who agrees with whom, and of which class the base label is if classes matter.
    """
    further = _further(adaptive, classes)
    calibrator, rule = adaptive.restored_calibrator(), adaptive.rule()
    scored = any(jury.scored for jury in calibrator.juries)
    known = {label: code for code, label in enumerate(vocabulary) if any(jury.classes for jury in calibrator.juries)}

    def more(row: Row) -> int:
        if scored and row.lists:
            confidence = calibrator.confidence(_so_far(row, calibrator, vocabulary, classes))
            return 0 if rule.enough(confidence, len(row.views))[0] else 1
        codes, said = dict(known), (row.base, *row.views)
        return further(tuple(MISSING if v is None else codes.setdefault(v, len(codes)) for v in said))

    return Rounds(adaptive.first, more)


def _so_far(row: Row, calibrator: Prefixes, vocabulary: Sequence[str], classes: int) -> Votes:
    """What is said of a picture so far, as votes under the whole panel."""
    views = len(calibrator.juries) - 1
    missing = views - len(row.views)
    whole = replace(row, views=(*row.views, *[None] * missing), lists=(*row.lists, *[()] * missing))
    return Votes.collect([whole], tuple(map(str, range(views))), vocabulary, classes)


def _further(adaptive: Adaptive, classes: int) -> Callable[[tuple[int, ...]], int]:
    calibrator, rule = adaptive.restored_calibrator(), adaptive.rule()

    @cache
    def further(codes: tuple[int, ...]) -> int:
        confidence = calibrator.confidence(_votes(codes, calibrator, classes))
        return 0 if rule.enough(confidence, len(codes) - 1)[0] else 1

    return further


def _votes(codes: tuple[int, ...], calibrator: Prefixes, classes: int) -> Votes:
    """One picture's answers so far."""
    views = np.full((1, len(calibrator.juries) - 1), MISSING, np.int32)
    views[0, : len(codes) - 1] = codes[1:]
    words = tuple(map(str, range(max(codes) + 1)))
    panel = tuple(map(str, range(views.shape[1])))
    return Votes(("",), panel, words, np.array(codes[:1], np.int32), views, max(classes, len(words)))


@dataclass(frozen=True)
class DecisionOptions:
    """How a profile is put to use: when to stop asking, what to accept, and which labels to name."""

    adaptive: bool = False
    """Stop asking about a picture once further answers would hardly matter."""
    max_error: float | None = None
    """Accept answers that are wrong at most this often; the others are for review. None decides nothing."""
    level: float = 0.95
    """How certain that guarantee is."""
    coverage: float | None = None
    """Name the labels of a picture that hold the truth this often: a prediction set. None names none."""
    sets: SetKind = "adaptive"
    """How such a set is chosen: `adaptive` sets are larger for doubtful pictures, and whether the last label that fits
    in part is in a set is drawn from the picture's pixels; `regularised` ones avoid many labels; `deterministic` ones
    draw nothing and are larger; those by `threshold` are the smallest on average and hold the truth of doubtful
    pictures less often."""
    unfamiliar: Unfamiliar = "review"
    """What becomes of a picture that is not like the labelled ones: `accept` judges it as any other, `review` never
    accepts it, `refuse` asks nothing about it."""
    false_alarms: float = FALSE_ALARMS
    """How often a picture that is like them is taken for one that is not."""

    def __post_init__(self) -> None:
        for name in ("max_error", "level", "coverage", "false_alarms"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise DataError(f"{name} is {value!r}; give a share between 0 and 1")
        if self.unfamiliar not in get_args(Unfamiliar):
            raise DataError(f"unfamiliar is {self.unfamiliar!r}; give {', '.join(get_args(Unfamiliar))}")
        if self.sets not in get_args(SetKind):
            raise DataError(f"sets is {self.sets!r}; give {', '.join(get_args(SetKind))}")

    def of(self, profile: Profile) -> Policy:
        """The policy that these options mean."""
        policy = Policy.thrifty(profile) if self.adaptive else Policy.whole(profile)
        policy = policy.treating(self.unfamiliar, self.false_alarms)
        if self.max_error is not None:
            policy = policy.guaranteeing(self.max_error, self.level)
        return policy if self.coverage is None else policy.covering(self.coverage, self.sets)


class DecisionKeywords(TypedDict, total=False):
    """The options of a decision as keyword arguments; see `DecisionOptions`."""

    adaptive: bool
    max_error: float | None
    level: float
    coverage: float | None
    sets: SetKind
    unfamiliar: Unfamiliar
    false_alarms: float
