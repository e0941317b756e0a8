"""How good a profile is on other labelled pictures."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from looktwice.calibration import calibrators, crossfit, metrics
from looktwice.calibration.crossfit import Outcome
from looktwice.calibration.jury import Jury, Prefixes
from looktwice.calibration.paper import Naive
from looktwice.calibration.shares import Constant
from looktwice.calibration.votes import LabelledVotes
from looktwice.plots import figures, notebook
from looktwice.plots.notebook import Drawing
from looktwice.verdicts import stopping
from looktwice.verdicts.learn import Collected
from looktwice.verdicts.policy import NEVER, Policy
from looktwice.verdicts.profile import Profile, Result, results_html

if TYPE_CHECKING:
    import pandas as pd


def assess(collected: Collected, profile: Profile, policy: Policy | None = None) -> list[Result]:
    """How a profile fares on labelled pictures that took no part in fitting, beside the baselines."""
    labelled = collected.labelled()
    calibrator = (policy or Policy.whole(profile)).calibrator
    name = stopping.ADAPTIVE if isinstance(calibrator, Prefixes) else calibrator.name
    plain = baselines(labelled, profile)
    return [Result.of(outcome) for outcome in (*plain, crossfit.outcome(calibrator, labelled, name))]


def baselines(labelled: LabelledVotes, profile: Profile) -> list[Outcome]:
    """What one has without asking again: full trust, constant trust, and the classifier's own score if it has one."""
    constant = [Constant(accuracy=profile.accuracy())] if profile.results else []
    plain = [crossfit.outcome(each, labelled) for each in (Naive(), *constant)]
    if profile.one_query and labelled.evidence:
        single = calibrators.restore(profile.one_query)
        scale = single.scored.scale if isinstance(single, Jury) and single.scored else None
        plain += [own] if (own := crossfit.own_score(labelled, scale)) else []
        plain += [crossfit.outcome(single, labelled.under([]), crossfit.ONE_QUERY)] if labelled.panel else []
    return plain


@dataclass(frozen=True)
class Guarantees:
    """What became of guarantees on labelled pictures; None where none was asked for."""

    accepted: float | None = None
    """The share of pictures whose answer was accepted."""
    wrong: float | None = None
    """The share of these answers that was wrong; None if none was accepted."""
    covered: float | None = None
    """How often the set of labels held the truth."""
    options: float | None = None
    """How many labels a set had, on average."""

    def lines(self) -> list[str]:
        """The same in words."""
        found = []
        if self.accepted is not None:
            wrong = "" if self.wrong is None else f", {self.wrong:.2%} of them wrong"
            found.append(f"Accepted: {self.accepted:.1%} of the pictures{wrong}.")
        if self.covered is not None:
            found.append(f"Sets: {self.covered:.1%} hold the truth, with {self.options:.2f} labels on average.")
        return found


def guarantees(collected: Collected, policy: Policy) -> Guarantees:
    """How the guarantees of a policy hold on labelled pictures that took no part in fitting."""
    votes, found = collected.labelled(), Guarantees()
    if policy.accept is not None:
        accepted = policy.calibrator.confidence(votes) >= policy.accept
        wrong = (policy.calibrator.predict(votes) != votes.truths)[accepted]
        found = replace(found, accepted=float(accepted.mean()), wrong=float(wrong.mean()) if len(wrong) else None)
    if policy.sets is not None:
        distribution = policy.calibrator.distribution(votes)
        sets = policy.sets.sets(distribution)
        covered, size = sets.hold(distribution, votes.truths).mean(), sets.sizes().mean()
        found = replace(found, covered=float(covered), options=float(size))
    return found


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How the verdicts of a profile fare on labelled pictures that took no part in fitting."""

    profile: Profile
    policy: Policy
    collected: Collected
    results: tuple[Result, ...]
    """The profile's calibrator beside full trust and constant trust."""
    guarantees: Guarantees
    outcome: Outcome
    """Label, confidence and correctness of every distinct picture."""

    def to_frame(self) -> pd.DataFrame:
        """One picture a row: its truth, its verdict, and whether that was right."""
        votes = self.collected.labelled()
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
        """Confidence against real accuracy."""
        return Drawing(figures.reliability_svg(metrics.reliability(self.outcome.confidence, self.outcome.correct)))

    def plot_risk_coverage(self) -> Drawing:
        """Mistakes among accepted answers, with the threshold of the guarantee where there is one."""
        accept = self.policy.accept
        curve = metrics.risk_coverage(self.outcome.confidence, self.outcome.correct)
        return Drawing(figures.risk_coverage_svg(curve, None if accept == NEVER else accept))

    def _repr_html_(self) -> str:
        title = (
            f"On {len(self.outcome.label)} pictures that took no part in fitting. {' '.join(self.guarantees.lines())}"
        )
        return results_html(title, self.results)


def evaluation(collected: Collected, profile: Profile, policy: Policy) -> Evaluation:
    """How verdicts fare on these labelled pictures; costs no query."""
    outcome = crossfit.outcome(policy.calibrator, collected.labelled())
    results = tuple(assess(collected, profile, policy))
    return Evaluation(profile, policy, collected, results, guarantees(collected, policy), outcome)
