"""Policies: which views to ask, when to stop, what to accept and how to build prediction sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Literal, NamedTuple, Self, TypedDict, cast, get_args

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration import (
    ANY,
    NEVER,
    AdaptiveJury,
    Answers,
    Basis,
    Bools,
    Calibrator,
    Claim,
    Floats,
    Jury,
    RankedList,
    Row,
    SetKind,
    SetMaker,
    TagJury,
    Thresholds,
    Votes,
    claims,
    thresholds,
)
from looktwice.decisions.monitoring import AnswerKinds, Drift, Familiarity
from looktwice.decisions.profile import Adaptive, Profile
from looktwice.decisions.results import HeldOut
from looktwice.decisions.verdict import SURE
from looktwice.engine import Rounds, Screen
from looktwice.errors import DataError, ProfileError
from looktwice.files import split_tags
from looktwice.views import Panel

Unfamiliar = Literal["accept", "review", "refuse"]
"""How pictures that are unlike the labelled ones are handled."""
FALSE_ALARMS = 0.01
OnDrift = Literal["hold", "accept"]
"""The handling of verdicts after an alarm: either no verdict is accepted, or all are treated as usual."""


@dataclass(frozen=True, eq=False)
class Comparison:
    """How similar pictures are to the labelled ones."""

    familiarity: Floats
    """(n,): the combined p-value of pixels and answers: the number of tests times the smallest one (Bonferroni)."""
    pixels: Floats
    """(n,): the p-value of the pixels alone, NaN if unknown."""
    reasons: dict[int, str]
    """The indices of unfamiliar pictures, the least familiar first, with the reasons."""


class ClaimTest(NamedTuple):
    """Simultaneous claims, and the labelled answers on which they are tested."""

    claims: Sequence[Claim]
    answers: Answers
    level: float
    """The confidence level at which all claims hold together."""
    tag: str = ""
    """The tag that the claims are about, if answers are tags."""


@dataclass(frozen=True)
class PicturePolicy:
    """The part of a policy shared by labels and tags: views, and the handling of unfamiliar pictures."""

    panel: Panel
    """The views to ask, in order."""
    familiarity: Familiarity | None = field(default=None, kw_only=True)
    """Familiarity by pixels; None if the profile has none."""
    unfamiliar: Unfamiliar = field(default="review", kw_only=True)
    """How unfamiliar pictures are handled."""
    false_alarms: float = field(default=FALSE_ALARMS, kw_only=True)
    """The share of familiar pictures that may be flagged as unfamiliar."""
    answers: AnswerKinds | None = field(default=None, kw_only=True)
    """Familiarity by answers; None if the profile has none."""
    held_out: HeldOut = field(default=HeldOut(confidence=(), correct=()), kw_only=True)
    """The held-out results on which guarantees are based."""
    agreement_bins: tuple[int, ...] = field(default=(), kw_only=True)
    """The number of labelled pictures in each agreement bin."""
    rounds: Rounds | None = field(default=None, kw_only=True)
    """When to stop asking; None asks the whole panel."""

    def treating(self, unfamiliar: Unfamiliar, false_alarms: float = FALSE_ALARMS) -> Self:
        """Return a copy that handles unfamiliar pictures this way."""
        if unfamiliar == "refuse" and self.familiarity is None:
            raise ProfileError(
                "this profile cannot tell which pictures are unfamiliar; fit again, or leave out --unfamiliar refuse",
                code="profile-incomplete",
            )
        return replace(self, unfamiliar=unfamiliar, false_alarms=false_alarms)

    def because(self, descriptor: Floats) -> str | None:
        """Return a sentence on why a picture is unfamiliar, or None if it is familiar or cannot be compared."""
        if self.familiarity is None or self.before_asking(descriptor[None])[0] > self.false_alarms:
            return None
        return self.familiarity.because(descriptor)

    def claim_tests(self, claims: Sequence[Claim], profile: Profile, level: float = 0.95) -> list[ClaimTest]:
        """The tests of these claims; raises an error if a claim is about a label that the profile does not contain."""
        raise NotImplementedError

    def before_asking(self, descriptors: Floats) -> Floats:
        """(n,): the familiarity of pictures, assuming typical answers; NaN if the profile has no familiarity model.

        A picture that is unfamiliar under this assumption is unfamiliar whatever its answers are.
        """
        if self.familiarity is None:
            return np.full(len(descriptors), np.nan)
        return np.minimum(1.0, self._tests * self.familiarity.p_values(descriptors))

    def screen(self) -> Screen:
        """Descriptors of pictures, computed before any query."""
        return Screen(
            self.familiarity.describe if self.familiarity else None,
            why=self.because,
            refuse=self.unfamiliar == "refuse",
        )

    def shift(self) -> Drift | None:
        """The test that the pixels are as familiar as before; None if the profile has no familiarity model.

        If unfamiliar pictures are refused, there is no test: the remaining ones would appear too familiar.
        """
        return self.familiarity.drift() if self.familiarity and self.unfamiliar != "refuse" else None

    def familiarity_kind(self, familiarity: float | None) -> int:
        """The bin on which a shift is tested: the rank of a picture among the labelled ones."""
        return self.familiarity.kind(familiarity) if self.familiarity and familiarity is not None else 0

    def compare(self, votes: Votes, descriptors: Sequence[Floats | None]) -> Comparison | None:
        """The similarity of pictures to the labelled ones, by answers and pixels; None if it is unknown."""
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

    def agreement_bin(self, base: str, views: Sequence[str | None]) -> int:
        """The bin for the drift test, from the first answer and the answers about the views."""
        raise NotImplementedError

    @property
    def _tests(self) -> int:
        """The number of p-values per picture, for the Bonferroni correction."""
        return (self.familiarity is not None) + (self.answers is not None)

    def drift(self) -> Drift | None:
        """The test that votes are still distributed as in the profile; None if the profile does not support it.

        The probability of a false alarm is at most 1 % over any number of pictures.
        """
        return Drift(self.agreement_bins) if len(self.agreement_bins) > 1 and any(self.agreement_bins) else None


@dataclass(frozen=True)
class Policy(PicturePolicy):
    """One way to use a profile; `guaranteeing` and `covering` return it with a guarantee or prediction sets."""

    calibrator: Calibrator
    accept: Thresholds | None = None
    """The lowest accepted confidence by label, NEVER if nothing can be guaranteed; None makes no decisions."""
    sets: SetMaker | None = None

    @classmethod
    def full_panel(cls, profile: Profile) -> Self:
        """The policy that asks the whole panel about every picture."""
        return cls._following(profile, None)

    @classmethod
    def usual(cls, profile: Profile, max_price: float | None = None, max_queries: float | None = None) -> Self:
        """Stop once the next query is not worth its price, within limits on the mean per picture, if the profile
        supports it."""
        return cls._following(profile, profile.within(max_price, max_queries))

    @classmethod
    def _following(cls, profile: Profile, stopping: Adaptive | None) -> Self:
        source = stopping or profile
        return cls(
            replace(source.views(), first=profile.name),
            source.restored_calibrator(),
            held_out=source.held_out,
            agreement_bins=source.agreement_bins,
            rounds=_rounds(stopping, profile) if stopping else None,
            familiarity=profile.familiarity,
            answers=source.answers,
        )

    def claim_tests(self, claims: Sequence[Claim], profile: Profile, level: float = 0.95) -> list[ClaimTest]:
        vocabulary = profile.vocabulary
        for claim in claims:
            if claim.label != ANY and not (self.held_out.predicted and claim.label in vocabulary):
                known = ", ".join(sorted(vocabulary)[:5]) if self.held_out.predicted else "no label by name; fit again"
                unknown = f"the profile has no label {claim.label!r} for a guarantee"
                raise DataError(f"{unknown}; the profile knows {known}", code="option-invalid")
        return [ClaimTest(claims, self.held_out.answers(vocabulary), level)]

    def accepting(
        self, claims: Sequence[Claim], profile: Profile, level: float = 0.95, basis: Basis = "guarantee"
    ) -> Self:
        """Accept answers so that all claims hold with confidence `level`, or in expectation; all others need review."""
        (tested,) = self.claim_tests(claims, profile, level)
        return replace(self, accept=thresholds(claims, tested.answers, level, basis))

    def covering(self, coverage: float, kind: SetKind = "aps") -> Self:
        """Add prediction sets that contain the true label with probability `coverage`."""
        return replace(self, sets=self.held_out.conformal(coverage, kind))

    def accepts(self, confidence: Floats, labels: Sequence[str], votes: Votes) -> Bools:
        """(n,): whether answers reach the threshold of their label; none does if scores are missing that the calibrator
        was fitted on."""
        least = np.array([NEVER if self.accept is None else self.accept.for_label(label) for label in labels])
        reached = confidence >= least
        return (
            reached & ~self.calibrator.lacks_scores(votes)
            if isinstance(self.calibrator, Jury | AdaptiveJury)
            else reached
        )

    def agreement_bin(self, base: str, views: Sequence[str | None]) -> int:
        """The bin on which drift is tested: how many views agree with the base label.

        With early stopping, the bin combines the number of agreeing views in the first round and the number of views
        asked.
        """
        if self.rounds is None:
            return sum(label == base for label in views)
        agree = sum(label == base for label in views[: self.rounds.first])
        asked = max((place for place, label in enumerate(views, 1) if label is not None), default=0)
        return agreement_bin(agree, asked, len(views))


PRESENT, ABSENT = "present", "absent"
"""The decision about a tag."""
MOST_COUNTED = 9
"""Answers with at least this many tags share one bin."""


@dataclass(frozen=True)
class TagPolicy(PicturePolicy):
    """One way to use a tag profile; `accepting` returns it with guarantees."""

    jury: TagJury
    least: tuple[tuple[float, float], ...]
    """The lowest confidence for "yes" and for "no", by tag; NEVER if nothing can be guaranteed."""
    basis: Basis | None = None
    """The basis of the thresholds; None if they are the default SURE."""
    claims: tuple[Claim, ...] = ()
    """The claims that the thresholds satisfy."""

    @classmethod
    def usual(cls, profile: Profile) -> Self:
        """The policy that asks the whole panel and decides tags that are sure."""
        jury = profile.tag_jury()
        return cls(
            profile.views(),
            jury,
            ((SURE, SURE),) * len(jury.tags),
            agreement_bins=profile.agreement_bins,
            familiarity=profile.familiarity,
        )

    def claim_tests(self, claims: Sequence[Claim], profile: Profile, level: float = 0.95) -> list[ClaimTest]:
        """The tests of the claims about each tag, corrected for their number; a claim for ANY applies to each tag."""
        tags = self.jury.tags
        if unknown := [claim.label for claim in claims if claim.label not in (ANY, *tags)]:
            raise DataError(
                f"the profile has no tag {unknown[0]!r} for a guarantee; it has {', '.join(tags[:5])}",
                code="option-invalid",
            )
        by_tag = [_tag_claims(claims, tag) for tag in tags]
        total = sum(map(len, by_tag))
        confidence, correct = profile.held_out.arrays()
        probability, truth = confidence.reshape(-1, len(tags)), correct.reshape(-1, len(tags))
        words, parts = np.array([ABSENT, PRESENT]), []
        for tag, own, p, true in zip(tags, by_tag, probability.T, truth.T, strict=True):
            answers = Answers(np.maximum(p, 1.0 - p), words[(p >= 0.5).astype(int)], words[true.astype(int)])
            if own:
                parts.append(ClaimTest(own, answers, 1.0 - (1.0 - level) * len(own) / total, tag))
        return parts

    def accepting(
        self, claims: Sequence[Claim], profile: Profile, level: float = 0.95, basis: Basis = "guarantee"
    ) -> Self:
        """Decide tags so that all claims hold with confidence `level`, or in expectation; all others need review.

        Tags without a claim are decided at the default SURE.
        """
        least = dict.fromkeys(self.jury.tags, (SURE, SURE))
        for part in self.claim_tests(claims, profile, level):
            made = thresholds(part.claims, part.answers, part.level, basis)
            bounded = any(claim.kind == "error" for claim in part.claims)
            least[part.tag] = (made.for_label(PRESENT) if bounded else SURE, made.for_label(ABSENT))
        return replace(self, least=tuple(least.values()), basis=basis if claims else None, claims=tuple(claims))

    def decide(self, probability: Floats) -> NDArray[np.str_]:
        """(n, T): yes, no or review for each tag of each picture, from their probabilities."""
        no = (probability < 0.5).astype(int)
        reached = np.maximum(probability, 1.0 - probability) >= np.array(self.least)[np.arange(len(self.least)), no]
        return np.where(reached, np.array(["yes", "no"])[no], "review")

    def agreement_bin(self, base: str, views: Sequence[str | None]) -> int:
        """The bin on which drift is tested: the number of tags in the first answer."""
        return tag_bin(base)


def tag_bin(answer: str) -> int:
    """The bin of an answer by the number of its tags."""
    return min(len(split_tags(answer)), MOST_COUNTED)


def _tag_claims(claims: Sequence[Claim], tag: str) -> list[Claim]:
    """The claims about one tag: errors among "present" and among "absent", and misses."""
    errors = {claim.label: claim.bound for claim in claims if claim.kind == "error"}
    bound = errors.get(tag, errors.get(ANY))
    misses = [Claim(claim.bound, PRESENT, "miss") for claim in claims if (claim.kind, claim.label) == ("miss", tag)]
    return misses if bound is None else [Claim(bound, PRESENT), Claim(bound, ABSENT), *misses]


def agreement_bin(agree: int, asked: int, views: int) -> int:
    """The bin of a picture, by the number of agreeing views in the first round and the number asked."""
    return agree * (views + 1) + views - asked


def _rounds(adaptive: Adaptive, profile: Profile) -> Rounds:
    """Ask further views one by one after the first round, until the stopping rule is met."""
    calibrator = adaptive.restored_calibrator()
    views = len(calibrator.juries) - 1
    panel, unsayable = tuple(map(str, range(views))), profile.unsayable[: 1 + views]
    scored = any(jury.scored for jury in calibrator.juries)

    @lru_cache(maxsize=10_000)  # without scores, most pictures have the same answers as another
    def further(base: str | None, answers: tuple[str | None, ...], lists: tuple[RankedList, ...]) -> int:
        missing = views - len(answers)
        if not missing:
            return 0
        padded = Row("", base, (*answers, *[None] * missing), lists=(*lists, *[()] * missing) if lists else ())
        votes = replace(Votes.collect([padded], panel, profile.vocabulary, profile.classes), unsayable=unsayable)
        return int(calibrator.confidence(votes)[0] < adaptive.enough[len(answers)])

    return Rounds(adaptive.first, lambda row: further(row.base, row.views, row.lists if scored else ()))


SHARES = ("level", "coverage", "false_alarms")
"""The options that take a number between 0 and 1."""


@dataclass(frozen=True)
class DecisionOptions:
    """How verdicts are made: when to stop asking, what to accept, and which prediction sets to give."""

    all: bool = False
    """Send every query for each picture, even if further answers would have little effect."""
    max_price: float | None = None
    """The maximum average price per picture, reached by stopping earlier; `all` takes precedence."""
    max_queries: float | None = None
    """The maximum average number of queries per picture, reached by stopping earlier."""
    max_error: float | Mapping[str, float] | None = None
    """Accept answers with at most this error rate; the others need review. With None, no decisions are made. A mapping
    sets the error rate of each label, with `*` for all others."""
    max_miss: Mapping[str, float] | None = None
    """For each class, accept at most this share of its pictures as another class."""
    level: float = 0.95
    """The joint confidence level of these guarantees."""
    accept: Basis = "guarantee"
    """Accept by a guarantee, or by the best `estimate` from held-out answers."""
    coverage: float | None = None
    """Return prediction sets that contain the true label with this probability; None returns no sets."""
    sets: SetKind = "aps"
    """How sets are built: `aps` sets are larger for doubtful pictures, and the label that crosses the threshold is
    included at random, with a seed from the pixels; `raps` sets contain fewer labels; `aps-deterministic` sets are not
    randomised and are larger; `lac` sets, all labels above one threshold, are the smallest on average but cover
    doubtful pictures less often."""
    unfamiliar: Unfamiliar = "review"
    """How to handle unfamiliar pictures: `accept` treats them like any other, `review` never accepts them, `refuse`
    does not query them."""
    false_alarms: float = FALSE_ALARMS
    """The share of familiar pictures that may be flagged as unfamiliar."""

    on_drift: OnDrift = "hold"
    """The handling of verdicts after a drift alarm: `hold` accepts none of them, `accept` continues as before."""

    def __post_init__(self) -> None:
        for name in SHARES:
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise DataError(f"{name} is {value!r}; give a share between 0 and 1", code="option-invalid")
        self.claims()
        for name, kind in (("accept", Basis), ("unfamiliar", Unfamiliar), ("sets", SetKind), ("on_drift", OnDrift)):
            if (word := getattr(self, name)) not in get_args(kind):
                raise DataError(f"{name} is {word!r}; give {', '.join(get_args(kind))}", code="option-invalid")

    def __hash__(self) -> int:
        return hash(repr(self))

    def claims(self) -> tuple[Claim, ...]:
        """The claims of `max_error` and `max_miss`."""
        return claims(self.max_error, self.max_miss)

    def of(self, profile: Profile) -> Policy:
        """Build the policy of these options; a `TagPolicy` for a tag profile."""
        if profile.kind == "tags":
            return cast("Policy", self._of_tags(profile))
        limits = self.max_price, self.max_queries
        policy = Policy.full_panel(profile) if self.all else Policy.usual(profile, *limits)
        policy = policy.treating(self.unfamiliar, self.false_alarms)
        if claims := self.claims():
            policy = policy.accepting(claims, profile, self.level, self.accept)
        return policy if self.coverage is None else policy.covering(self.coverage, self.sets)

    def _of_tags(self, profile: Profile) -> TagPolicy:
        if (self.coverage, self.max_price, self.max_queries) != (None,) * 3:
            raise ProfileError(
                "coverage and limits apply to single-label answers, but this profile is for tags; leave them out",
                code="option-conflict",
            )
        policy = TagPolicy.usual(profile).treating(self.unfamiliar, self.false_alarms)
        return policy.accepting(self.claims(), profile, self.level, self.accept)


class DecisionKeywords(TypedDict, total=False):
    """The decision options as keyword arguments; see `DecisionOptions`."""

    all: bool
    max_price: float | None
    max_queries: float | None
    max_error: float | Mapping[str, float] | None
    max_miss: Mapping[str, float] | None
    level: float
    accept: Basis
    coverage: float | None
    sets: SetKind
    unfamiliar: Unfamiliar
    false_alarms: float
    on_drift: OnDrift
