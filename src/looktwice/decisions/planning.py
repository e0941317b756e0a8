"""Estimate how many labelled pictures a guarantee about accepted answers needs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from looktwice.calibration import (
    ANY,
    NEVER,
    Answers,
    Bools,
    Claim,
    broken,
    concerned,
    estimate,
    labels_needed,
    level_of_each,
    risk,
    thresholds,
)
from looktwice.decisions.policy import ClaimTest, DecisionOptions
from looktwice.decisions.profile import Profile

ACCEPTED = (0.25, 0.5, 0.75, 0.9, 1.0)
"""The acceptance rates that a plan considers."""

MARGINS = (0.0, 0.25, 0.5)
"""The true error rates, relative to the guaranteed error, that a plan assumes without data."""

POWER = 0.8

PRIOR = 30
"""The weight of the prior error rate, as a number of pictures."""

CLOSE = 0.99
"""The ratio of the true error to the allowed error above which too many labels would be needed."""

LADDER = (0.01, 0.02, 0.05, 0.1, 0.2)
"""The allowed errors from which the strictest possible guarantee is selected."""


def strictest_guarantee(options: DecisionOptions, profile: Profile) -> DecisionOptions:
    """Add a guarantee to the options: the given one, or the strictest of LADDER that the profile supports.

    Because one of several guarantees is selected, each is tested at a stricter level. Without a guarantee, tags are
    decided if they are sure.
    """
    if options.claims() or profile.kind == "tags":
        return options
    level = selection_level(options.level)
    candidates = [replace(options, max_error=max_error, level=level) for max_error in LADDER]
    return next(
        (each for each in candidates if (made := each.of(profile).accept) and made.least < NEVER), candidates[-1]
    )


def selection_level(level: float) -> float:
    """The level for each error of LADDER, so that the selected one holds at `level` (Bonferroni)."""
    return 1.0 - (1.0 - level) / len(LADDER)


MAX_ERROR = 0.05
"""The allowed error used in remarks if none was requested."""

MOST_LABELS = 1_000_000
"""Needs beyond this number of labels are not reported."""

PRACTICAL = 20_000
"""Guarantees that need more further labels than this are treated as impractical."""


@dataclass(frozen=True)
class Need:
    """The number of labels needed for an acceptance rate and a true error."""

    labels: int
    """The number of labels, drawn at random."""
    accepted: float
    error: float
    """The true error rate, or miss rate of the class."""
    concerned: int
    """The number of pictures that a claim about one label uses: the pictures of the class, or the pictures answered
    with the label."""

    def line(self, claim: Claim) -> str:
        """The need as a sentence."""
        share = "every picture" if self.accepted == 1.0 else f"{100 * self.accepted:.0f} % of the pictures"
        if claim.kind == "miss":
            condition = f"if {100 * self.error:.2f} % of the {claim.label} pictures are missed"
        else:
            condition = f"if {100 * self.error:.2f} % of the accepted answers are wrong"
        which = {"miss": f" of {claim.label}", "error": f" that are answered {claim.label}"}[claim.kind]
        draws = ""
        if claim.label != ANY:
            draws = f"; {_count(self.labels)} if drawn at random" if self.labels > self.concerned else ""
        named = "" if claim.label == ANY else which
        return f"{_count(self.concerned):>9} labelled pictures{named} to accept {share}, {condition}{draws}"


def _count(labels: int) -> str:
    return f"{labels:,}" if labels <= MOST_LABELS else "> million"  # the error is almost the one allowed


def guesses(claim: Claim, level: float = 0.95, together: int = 1) -> list[Need]:
    """The labels that a claim needs with every picture accepted and a power of 0.8, at several assumed error rates.

    `together` is the number of simultaneous claims; each is tested at a stricter level.
    """
    level = level_of_each(level, together)
    return [_need(claim, level, 1.0, claim.bound * margin, 1.0) for margin in MARGINS]


def needs(claim: Claim, tested: ClaimTest) -> list[Need]:
    """The number of labels that a claim needs at several acceptance rates, with errors estimated from held-out answers.

    Acceptance rates whose error is too high are left out; if none remains, the acceptance rate of the best estimate is
    used.
    """
    claims, answers, level, _ = tested
    level, about = level_of_each(level, len(claims)), concerned(claim, claims, answers)
    errors = [(share, error) for share, error in _errors(claim, about, answers) if error < CLOSE * claim.bound]
    if not errors and claim.kind == "error":
        expected = estimate(answers.confidence[about], answers.correct[about], claim.bound)
        if expected and expected.error < CLOSE * claim.bound:
            errors = [(expected.accepted, expected.error)]
    return [_need(claim, level, share, error, float(about.mean())) for share, error in errors]


def can_be_made(tested: ClaimTest) -> bool:
    """Whether the labelled pictures support all of the claims."""
    made = thresholds(tested.claims, tested.answers, tested.level)
    errors = [claim.label for claim in tested.claims if claim.kind == "error"]
    return all(made.for_label(label) < NEVER for label in errors or [ANY])


def missing_labels(tested: Iterable[ClaimTest]) -> int | None:
    """The number of further labelled pictures, drawn at random, for all claims with a power of 0.8.

    Returns None if the answers are wrong too often for more labels to help, or if more than PRACTICAL labels are
    needed. All interfaces report this number.
    """
    more = 0
    for part in tested:
        made = can_be_made(part)
        for claim in part.claims:
            labels = [need.labels for need in needs(claim, part)]
            if not (labels or made):
                return None
            more = max(more, min(labels, default=0) - len(part.answers.confidence), 0 if made else 1)
    return more if more <= PRACTICAL else None


def missing_sentence(claims: Sequence[Claim], tested: Sequence[ClaimTest]) -> str:
    """A sentence on the labels that the claims of the options need."""
    more, what = missing_labels(tested), " and ".join(claim.sentence() for claim in claims)
    if any(claim.label == ANY and part.tag for claim in claims for part in tested[:1]):
        what += ", for each tag"
    if more is None:
        return (
            f"It is practically impossible to guarantee that {what}: more labels alone would not suffice, or more than "
            f"{PRACTICAL:,} would be needed."
        )
    if not more:
        return f"The labelled pictures suffice to guarantee that {what}."
    return f"About {more:,} more labelled pictures, drawn at random, are needed to guarantee that {what}."


def best_estimate(answers: Answers, max_error: float = MAX_ERROR) -> str:
    """The expected acceptance rate at this error, marked as an estimate."""
    expected = estimate(answers.confidence, answers.correct, max_error)
    if expected is None:
        return "There are no held-out answers for an estimate."
    return expected.sentence() + (" --accept estimate uses this estimate." if expected.error <= max_error else "")


def least_error(answers: Answers, level: float = 0.95) -> tuple[float, float] | None:
    """The strictest guarantee of LADDER that labelled pictures support: its error, and the share accepted.

    Each guarantee is tested at `selection_level(level)`; returns None if the pictures support none of them.
    """
    for error in LADDER:
        threshold = risk.threshold(answers.confidence, answers.correct, error, selection_level(level))
        if threshold is not None and (answers.confidence >= threshold).any():
            return error, float((answers.confidence >= threshold).mean())
    return None


def remarks(needs: Sequence[Need], answers: Answers, level: float = 0.95) -> list[str]:
    """Remarks on the labels that a profile needs, one sentence each."""
    sentences = []
    for less, more in pairwise(sorted(needs, key=lambda need: need.accepted)):
        if less.labels > more.labels:
            fewer, others = (f"{100 * need.accepted:.0f} %" for need in (less, more))
            sentences.append(
                f"Accepting {fewer} needs more labels than accepting {others}: only labelled pictures that would be "
                f"accepted count as evidence, and the {fewer} with the highest confidence are not much more accurate "
                f"({100 * less.error:.2f} % wrong, {100 * more.error:.2f} % among {others})."
            )
    labels = f"The {len(answers.confidence):,} labelled pictures so far"
    if least := least_error(answers, level):
        sentences.append(
            f"{labels}: the strictest guarantee that they support is an error rate of at most {least[0]:.3g}, with "
            f"{100 * least[1]:.0f} % of the pictures accepted."
        )
    else:
        sentences.append(f"{labels} are too few to guarantee any error rate.")
    return sentences


def _need(claim: Claim, level: float, accepted: float, error: float, share: float) -> Need:
    """`share` is the share of all pictures to which the claim applies."""
    if claim.kind == "miss":  # all pictures of the class are evidence
        labels, rests = labels_needed(claim.bound, level, error, power=POWER, tests=1), share
        return Need(math.ceil(labels / rests), accepted, error, labels)
    labels = labels_needed(claim.bound, level, error, accepted, POWER)
    return Need(math.ceil(labels / share), accepted, error, labels)


def _errors(claim: Claim, about: Bools, answers: Answers) -> list[tuple[float, float]]:
    """Estimate how often accepted answers violate a claim at each acceptance rate.

    Estimates from few answers are noisy, so PRIOR pseudo-answers are added: wrong as often as the confidence predicts,
    or missed as often as the class is overall, with the confidence distribution of wrong answers.
    """
    sure, against = answers.confidence, about & broken(claim, answers)
    ranked, errors = sure if claim.kind == "miss" else sure[about], {}
    for share in ACCEPTED if about.any() else ():
        least = np.sort(ranked)[::-1][math.ceil(share * len(ranked)) - 1]
        above = sure >= least  # answers of equal confidence are accepted together
        if claim.kind == "error":
            rests = about & above
            prior = 1.0 - float(sure[rests].mean())
        else:
            rests, wrong = about, ~answers.correct
            prior = (against.sum() + 0.5) / (about.sum() + 1.0) * (above & wrong).sum() / max(wrong.sum(), 1)
        counted = float((against & above).sum()) + 0.5 + PRIOR * prior
        errors[float((ranked >= least).mean())] = counted / (float(rests.sum()) + 1.0 + PRIOR)
    return list(errors.items())
