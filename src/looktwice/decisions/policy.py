"""How a profile is used: which views to ask, when to stop, what to accept and which labels to put in a set."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Literal, Self, TypedDict, get_args

import numpy as np

from looktwice.calibration.base import Calibrator
from looktwice.calibration.conformal import SetKind, SetMaker
from looktwice.calibration.jury import Jury, Prefixes
from looktwice.calibration.votes import MISSING, Bools, Floats, Row, Votes
from looktwice.decisions.profile import Adaptive, HeldOut, Profile
from looktwice.engine.query import Rounds, Screen
from looktwice.errors import DataError, ProfileError
from looktwice.monitoring.drift import Drift
from looktwice.monitoring.familiarity import AnswerKinds, Familiarity
from looktwice.views import Panel

Unfamiliar = Literal["accept", "review", "refuse"]
"""How pictures that are unlike the labelled ones are handled."""
FALSE_ALARMS = 0.01
NEVER = math.inf
"""The threshold when nothing can be guaranteed: no confidence reaches it."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """How much pictures resemble the labelled ones."""

    familiarity: Floats
    """(n,): one p-value from pixels and answers: the number of tests times the least of them (Bonferroni)."""
    pixels: Floats
    """(n,): the p-value of the pixels alone, NaN where it is not known."""
    reasons: dict[int, str]
    """The indices of unfamiliar pictures, the least familiar first, and why each is."""


@dataclass(frozen=True)
class Policy:
    """One way to use a profile; `guaranteeing` and `covering` return it with a guarantee or prediction sets."""

    panel: Panel
    """The views to ask, in order."""
    calibrator: Calibrator
    held_out: HeldOut
    """What its guarantees rest on."""
    agreement_bins: tuple[int, ...]
    """How many labelled pictures fell into each agreement bin."""
    rounds: Rounds | None = None
    """When to stop asking; None asks the whole panel."""
    accept: float | None = None
    """The least confidence to accept, NEVER if nothing can be guaranteed; None decides nothing."""
    sets: SetMaker | None = None
    familiarity: Familiarity | None = None
    """Familiarity by pixels; None where the profile has none."""
    answers: AnswerKinds | None = None
    """Familiarity by answers; None where the profile has none."""
    unfamiliar: Unfamiliar = "review"
    """How unfamiliar pictures are handled."""
    false_alarms: float = FALSE_ALARMS
    """The share of familiar pictures that may be flagged as unfamiliar."""

    @classmethod
    def full_panel(cls, profile: Profile) -> Self:
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
    def early_stopping(cls, profile: Profile) -> Self:
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
        """Add prediction sets that contain the truth with probability `coverage`."""
        return replace(self, sets=self.held_out.conformal(coverage, kind))

    def treating(self, unfamiliar: Unfamiliar, false_alarms: float = FALSE_ALARMS) -> Self:
        """Handle unfamiliar pictures this way."""
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
        """How many p-values each picture has, for the Bonferroni correction."""
        return (self.familiarity is not None) + (self.answers is not None)

    def accepts(self, confidence: Floats, scored: Bools) -> Bools:
        """(n,): whether answers reach the threshold; without the scores that the guarantee rests on, none does.

        `scored` says which confidences rest on scores.
        """
        rests = isinstance(self.calibrator, Jury | Prefixes) and self.calibrator.uses_scores
        threshold = NEVER if self.accept is None else self.accept
        return (confidence >= threshold) & (scored if rests else True)

    def screen(self) -> Screen:
        """What is computed of pictures before anything is asked about them."""
        return Screen(self.familiarity is not None, why=self.because, refuse=self.unfamiliar == "refuse")

    def agreement_bin(self, base: str, views: Sequence[str | None]) -> int:
        """The bin on which drift is tested: how many views agree with the base label.

        With early stopping: how many of the first round, then how many views were asked.
        """
        if self.rounds is None:
            return sum(label == base for label in views)
        agree = sum(label == base for label in views[: self.rounds.first])
        asked = max((place for place, label in enumerate(views, 1) if label is not None), default=0)
        return agreement_bin(agree, asked, len(views))

    def drift(self) -> Drift | None:
        """The test that votes are still distributed as in the profile; None if the profile cannot tell.

        A false alarm has a chance of at most 1 %, however many pictures there are.
        """
        return Drift(self.agreement_bins) if len(self.agreement_bins) > 1 and any(self.agreement_bins) else None

    def shift(self) -> Drift | None:
        """The same for the pixels: whether pictures are still as familiar; None if the profile cannot tell.

        Where unfamiliar pictures are refused, those that are left would seem too familiar.
        """
        return self.familiarity.drift() if self.familiarity and self.unfamiliar != "refuse" else None

    def familiarity_kind(self, familiarity: float | None) -> int:
        """The bin on which a shift is tested: the rank of a picture among the labelled ones."""
        return self.familiarity.kind(familiarity) if self.familiarity and familiarity is not None else 0


def agreement_bin(agree: int, asked: int, views: int) -> int:
    """The bin of a picture by how many views of the first round agree and how many were asked."""
    return agree * (views + 1) + views - asked


def _rounds(adaptive: Adaptive, vocabulary: Sequence[str], classes: int) -> Rounds:
    """Views are asked one by one after the first round, until the stopping rule says enough.

    Without scores all that matters is which answers agree, and the class of the base label if classes matter; what
    follows from these is cached.
    """
    calibrator, rule = adaptive.restored_calibrator(), adaptive.rule()
    views = len(calibrator.juries) - 1
    panel = tuple(map(str, range(views)))
    scored = any(jury.scored for jury in calibrator.juries)
    known = {label: code for code, label in enumerate(vocabulary) if any(jury.classes for jury in calibrator.juries)}

    def further(votes: Votes, asked: int) -> int:
        return 0 if rule.enough(calibrator.confidence(votes), asked)[0] else 1

    @cache
    def by_agreement(base: int, *codes: int) -> int:
        padded = np.full((1, views), MISSING, np.int32)
        padded[0, : len(codes)] = codes
        words = tuple(map(str, range(max((base, *codes)) + 1)))
        votes = Votes(("",), panel, words, np.array([base], np.int32), padded, max(classes, len(words)))
        return further(votes, len(codes))

    def more(row: Row) -> int:
        if scored and row.lists:
            missing = views - len(row.views)
            padded = replace(row, views=(*row.views, *[None] * missing), lists=(*row.lists, *[()] * missing))
            return further(Votes.collect([padded], panel, vocabulary, classes), len(row.views))
        codes = dict(known)
        return by_agreement(
            *(MISSING if v is None else codes.setdefault(v, len(codes)) for v in (row.base, *row.views))
        )

    return Rounds(adaptive.first, more)


SHARES = ("max_error", "level", "coverage", "false_alarms")
"""Options of a decision that are between 0 and 1."""


@dataclass(frozen=True)
class DecisionOptions:
    """How verdicts are made: when to stop asking, what to accept, and which prediction sets to give."""

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
        for name in SHARES:
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise DataError(f"{name} is {value!r}; give a share between 0 and 1")
        if self.unfamiliar not in get_args(Unfamiliar):
            raise DataError(f"unfamiliar is {self.unfamiliar!r}; give {', '.join(get_args(Unfamiliar))}")
        if self.sets not in get_args(SetKind):
            raise DataError(f"sets is {self.sets!r}; give {', '.join(get_args(SetKind))}")

    def of(self, profile: Profile) -> Policy:
        """The policy that these options mean."""
        policy = Policy.early_stopping(profile) if self.adaptive else Policy.full_panel(profile)
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
