"""Evaluate a profile on held-out labelled pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from looktwice.calibration import (
    ANY,
    NEVER,
    AdaptiveJury,
    Answers,
    Bools,
    Claim,
    Constant,
    Floats,
    Jury,
    LabelledVotes,
    Naive,
    Outcome,
    Tally,
    base_tally,
    broken,
    calibrators,
    concerned,
    crossfit,
    draws,
    metrics,
    prediction_powered,
)
from looktwice.decisions.collecting import Collected
from looktwice.decisions.policy import Policy
from looktwice.decisions.profile import Profile
from looktwice.decisions.results import Result, results_html, results_text
from looktwice.decisions.sequence import STOPPING
from looktwice.decisions.verdict import AnyVerdict, Verdict
from looktwice.decisions.verdict_files import read
from looktwice.engine import Unscored
from looktwice.plots import Drawing, figures, notebook

if TYPE_CHECKING:
    import pandas as pd


def baselines(labelled: LabelledVotes, profile: Profile) -> list[Outcome]:
    """Single-query baselines: naive, constant, and the classifier's own score if there is one."""
    constant = [Constant(accuracy=profile.accuracy())] if profile.results else []
    plain = [crossfit.outcome(each, labelled) for each in (Naive(), *constant)]
    if profile.one_query and labelled.evidence:
        single = calibrators.restore(profile.one_query)
        scale = single.scored.scale if isinstance(single, Jury) and single.scored else None
        plain += [own] if (own := crossfit.own_score(labelled, scale)) else []
        plain += [crossfit.outcome(single, labelled.under([]), crossfit.ONE_QUERY)] if labelled.panel else []
    return plain


LEAST_IN_BIN = 30
"""The minimum number of pictures for which the coverage of an agreement bin is reported."""


@dataclass(frozen=True)
class BinCoverage:
    """The coverage of prediction sets for pictures with this number of agreeing views."""

    agree: int
    asked: int
    pictures: int
    covered: float

    def __str__(self) -> str:
        return f"{100 * self.covered:.1f} % of {self.pictures:,} pictures if {self.agree} of {self.asked} views agree"


@dataclass(frozen=True)
class ClaimKept:
    """The result of a claim on held-out pictures."""

    claim: str
    against: int
    """The number of accepted answers that violate it."""
    pictures: int
    """The number of accepted answers with its label, or of pictures of the class whose misses it bounds."""

    def line(self) -> str:
        """The result as a sentence."""
        share = f" ({100 * self.against / self.pictures:.2f} %)" if self.pictures else ""
        return f"Claim that {self.claim}: {self.against:,} of {self.pictures:,} violate it{share}."


def _claims_kept(claims: Sequence[Claim], answers: Answers, accepted: Bools) -> tuple[ClaimKept, ...]:
    if len(claims) == 1 and claims[0].label == ANY:
        return ()
    kept = []
    for claim in claims:
        about = concerned(claim, claims, answers)
        rests = about if claim.kind == "miss" else about & accepted
        against = about & accepted & broken(claim, answers)
        kept.append(ClaimKept(claim.sentence(), int(against.sum()), int(rests.sum())))
    return tuple(kept)


@dataclass(frozen=True)
class Guarantees:
    """Results of guarantees on held-out pictures; fields are None if not requested."""

    accepted: float | None = None
    """The share of accepted pictures."""
    wrong: float | None = None
    """The share of wrong answers among the accepted answers; None if no answer was accepted."""
    covered: float | None = None
    """The share of pictures whose prediction set contained the true label."""
    listed: float | None = None
    """The share of pictures whose prediction set listed the true label by name."""
    options: float | None = None
    """The mean number of labels in a set; "any other label" is treated as one label."""
    classes: float | None = None
    """The mean number of classes in a set, counting all classes that "any other label" stands for."""
    bins: tuple[BinCoverage, ...] = ()
    """The coverage for each number of views that agree with the base label."""
    unfamiliar: float | None = None
    """The share of unfamiliar pictures; None if the profile has no familiarity model."""
    claims: tuple[ClaimKept, ...] = ()
    """The result of each claim, if there are several claims or a claim applies to a single label."""

    def lines(self) -> list[str]:
        """The results as sentences."""
        sentences = []
        if self.accepted is not None:
            wrong = "" if self.wrong is None else f", {100 * self.wrong:.2f} % of them wrong"
            sentences.append(f"Accepted: {100 * self.accepted:.1f} % of the pictures{wrong}.")
            sentences += [kept.line() for kept in self.claims]
        if self.covered is not None and self.listed is not None:
            named = f"{100 * self.listed:.1f} % by name, with {self.options:.2f} labels on average"
            sentences.append(
                f"Sets: {100 * self.covered:.1f} % contain the true label, {named} (or {self.classes:.1f} classes, if "
                'all classes that "any other label" stands for are counted).'
            )
            shown = [part for part in self.bins if part.pictures >= LEAST_IN_BIN]
            sentences += [f"Sets that contain the true label: {'; '.join(map(str, shown))}."] if len(shown) > 1 else []
        if self.unfamiliar is not None:
            sentences.append(
                f"Unfamiliar: {100 * self.unfamiliar:.1f} % of the pictures are not like the labelled ones."
            )
        return sentences


def guarantees(collected: Collected, policy: Policy) -> Guarantees:
    """Evaluate the guarantees of a policy on held-out pictures."""
    votes, kept = collected.labelled().evenly(), Guarantees()
    unfamiliar = np.zeros(len(votes), bool)
    if compared := policy.compare(votes, [collected.descriptors.get(digest) for digest in votes.digests]):
        unfamiliar[list(compared.reasons)] = True
        kept = replace(kept, unfamiliar=float(unfamiliar.mean()))
    if policy.accept is not None:
        excluded = unfamiliar & (policy.unfamiliar != "accept")
        calibrator = policy.calibrator
        label, confidence = calibrator.predict(votes), calibrator.confidence(votes)
        words = [votes.vocabulary[code] for code in label]
        accepted = policy.accepts(confidence, words, votes) & ~excluded
        wrong = (label != votes.truths)[accepted]
        answers = Answers(confidence, np.array(words), np.array(votes.words))
        kept = replace(
            kept,
            accepted=float(accepted.mean()),
            wrong=float(wrong.mean()) if len(wrong) else None,
            claims=_claims_kept(policy.accept.claims, answers, accepted),
        )
    return _with_sets(kept, policy, votes)


def sets_lines(policy: Policy, votes: LabelledVotes) -> list[str]:
    """The coverage and size of prediction sets on held-out pictures, as sentences; empty if none were requested."""
    return _with_sets(Guarantees(), policy, votes).lines()


def _with_sets(kept: Guarantees, policy: Policy, votes: LabelledVotes) -> Guarantees:
    if policy.sets is None:
        return kept
    distribution = policy.calibrator.distribution(votes)
    sets = policy.sets.sets(distribution, draws(votes))
    hold, listed = sets.hold(distribution, votes.truths), sets.list_truth(votes.truths)
    return replace(
        kept,
        covered=float(hold.mean()),
        listed=float(listed.mean()),
        options=float(sets.sizes().mean()),
        classes=float(sets.true_sizes().mean()),
        bins=bin_coverage(base_tally(votes), hold),
    )


def bin_coverage(tally: Tally, hold: Bools) -> tuple[BinCoverage, ...]:
    """The coverage of prediction sets for each number of queried views that agree with the base label."""
    kinds, place = np.unique(np.column_stack([tally.agree, tally.asked]), axis=0, return_inverse=True)
    counts, sums = np.bincount(place.ravel()), np.bincount(place.ravel(), hold)
    return tuple(
        BinCoverage(int(agree), int(asked), int(count), float(total / count))
        for (agree, asked), count, total in zip(kinds, counts, sums, strict=True)
    )


VerdictsLike = str | Path | Iterable[AnyVerdict | Unscored]
"""Verdicts about pictures: a file written by `score`, or the output of `Model.score`."""


@dataclass(frozen=True)
class PoweredAccuracy:
    """The estimated accuracy of verdicts, from labels and the confidences of other verdicts, with its 95 % interval."""

    value: float
    low: float
    high: float
    labels: int
    unlabelled: int
    """The number of other verdicts."""

    def sentence(self) -> str:
        """The estimate as a sentence."""
        interval = f"{100 * self.value:.1f} % (95 % interval {100 * self.low:.1f} % to {100 * self.high:.1f} %)"
        return f"Accuracy, estimated with the confidences of {self.unlabelled:,} other pictures: {interval}."


def verdicts_of(verdicts: VerdictsLike) -> list[Verdict]:
    """Return the verdicts from a file or an iterable; pictures without a verdict are skipped."""
    if isinstance(verdicts, str | Path):
        return read(Path(verdicts))
    return [verdict for verdict in verdicts if isinstance(verdict, Verdict)]


def powered_accuracy(collected: Collected, outcome: Outcome, verdicts: Iterable[Verdict]) -> PoweredAccuracy:
    """The accuracy by prediction-powered inference; verdicts on the labelled pictures themselves are not used."""
    digests = set(collected.votes.digests)
    others: Floats = np.array([verdict.confidence for verdict in verdicts if verdict.digest not in digests])
    powered = prediction_powered(outcome.correct, outcome.confidence, others)
    return PoweredAccuracy(*powered, labels=len(outcome.correct), unlabelled=len(others))


@dataclass(frozen=True, eq=False)
class Evaluated:
    """The part of an evaluation shared by labels and tags."""

    profile: Profile
    collected: Collected

    @property
    def fitted(self) -> int:
        """The number of evaluated pictures that the profile was fitted on; these make the figures too optimistic."""
        return self.profile.count_fitted(self.collected.labelled().evenly().digests)

    def title(self) -> str:
        """A phrase that describes the evaluated pictures."""
        overlap = f", {self.fitted} of which took part in fitting" if self.fitted else " that took no part in fitting"
        count = len(self.collected.labelled().evenly())
        return f"On {count} picture{'s' * (count != 1)}{overlap}"

    def _warnings(self) -> list[str]:
        """A warning if the figures are too optimistic."""
        warning = "Too optimistic: the profile was fitted on some of these pictures. Evaluate it on other pictures."
        return [warning] if self.fitted else []


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation(Evaluated):
    """The evaluation of a profile on held-out labelled pictures."""

    policy: Policy
    results: tuple[Result, ...]
    """The results of the profile's calibrator and of the baselines."""
    guarantees: Guarantees
    outcome: Outcome
    """Label, confidence and correctness of every distinct picture, or of a uniform subsample."""
    accuracy: PoweredAccuracy | None = None
    """The estimated accuracy, if verdicts about unlabelled pictures were given."""

    def lines(self) -> list[str]:
        """Guarantees and accuracy, as sentences."""
        powered = [self.accuracy.sentence()] if self.accuracy else []
        return [*self._warnings(), *self.guarantees.lines(), *powered]

    def record(self) -> dict[str, object]:
        """The figures for JSON; `accuracy` only if verdicts about unlabelled pictures were given."""
        figures: dict[str, object] = {
            "pictures": len(self.outcome.label),
            "fitted": self.fitted,
            "results": [result.model_dump() for result in self.results],
            "guarantees": asdict(self.guarantees),
        }
        return figures | ({"accuracy": asdict(self.accuracy)} if self.accuracy else {})

    def to_frame(self) -> pd.DataFrame:
        """One row per picture: true label, verdict, and whether it was right."""
        votes = self.collected.labelled().evenly()
        columns = zip(
            votes.names,
            votes.words,
            self.outcome.label,
            self.outcome.confidence,
            self.outcome.correct,
            strict=True,
        )
        return notebook.frame(
            {"name": n, "truth": t, "label": votes.vocabulary[c], "confidence": float(p), "correct": bool(right)}
            for n, t, c, p, right in columns
        )

    def plot_reliability(self) -> Drawing:
        """Confidence against accuracy."""
        return Drawing(figures.reliability_svg(metrics.reliability(self.outcome.confidence, self.outcome.correct)))

    def plot_risk_coverage(self) -> Drawing:
        """Errors among accepted answers, with the threshold of the guarantee if there is one."""
        accept = self.policy.accept
        curve = metrics.risk_coverage(self.outcome.confidence, self.outcome.correct)
        one = accept and len(accept.by_label) == 1 and accept.least < NEVER
        return Drawing(figures.risk_coverage_svg(curve, accept.least if accept and one else None))

    def __repr__(self) -> str:
        return "\n".join([results_text(self.title(), self.results), *self.lines()])

    def _repr_html_(self) -> str:
        return results_html(f"{self.title()}. {' '.join(self.lines())}", self.results)


def evaluate(
    collected: Collected, profile: Profile, policy: Policy, unlabelled: Iterable[Verdict] | None = None
) -> Evaluation:
    """Evaluate a profile on labelled votes, without queries."""
    labelled, calibrator = collected.labelled().evenly(), policy.calibrator
    outcome = crossfit.outcome(calibrator, labelled)
    named = replace(outcome, name=STOPPING) if isinstance(calibrator, AdaptiveJury) else outcome
    results = tuple(Result.from_outcome(each) for each in (*baselines(labelled, profile), named))
    accuracy = None if unlabelled is None else powered_accuracy(collected, outcome, unlabelled)
    return Evaluation(profile, collected, policy, results, guarantees(collected, policy), outcome, accuracy)
