"""Transfer to a black-box classifier: the paper's F_n of an open model, or the jury of another classifier."""

from __future__ import annotations

from dataclasses import dataclass, replace

from looktwice.calibration import Constant, Gaussian, Jury, Naive, Outcome, Probit, Transfer, crossfit, dump, metrics
from looktwice.classifiers import AnyClassifier, names_of, reading
from looktwice.decisions import fitting
from looktwice.decisions.collecting import Collected
from looktwice.decisions.profile import Profile
from looktwice.decisions.results import HeldOut, Result
from looktwice.errors import DataError
from looktwice.transfer import Measured, Pupil, fit_towards
from looktwice.views import renderer


@dataclass(frozen=True, eq=False)
class Transferred:
    """Results of a calibrator from an open model on a black-box classifier, by 5-fold cross-validation."""

    chosen: Measured
    """The view whose F_n best predicts the open model's own probability."""
    calibrator: Outcome
    others: tuple[Outcome, ...]
    """The naive and constant baselines, then Gaussian and Probit on the same votes, then the jury on its own votes."""
    profile: Profile
    """The profile of the transferred calibrator."""

    def results(self) -> list[Result]:
        """The results of all calibrators, the transferred one last."""
        return [Result.of(outcome) for outcome in (*self.others, self.calibrator)]

    def differences(self) -> dict[str, metrics.Difference]:
        """The difference in Brier score to each fitted calibrator."""
        return {
            other.name: metrics.paired_difference(self.calibrator.brier, other.brier)
            for other in self.others
            if other.name not in (Naive.name, Constant.name)
        }

    def sentences(self) -> list[str]:
        """Whether the transferred calibrator has the better Brier score, a sentence for each other one."""
        sentences = []
        for name, gap in self.differences().items():
            figures = f"Brier {gap.mean:+.4f}, 95 % between {gap.low:+.4f} and {gap.high:+.4f}"
            verdict = "beats" if gap.high < 0 else "loses to" if gap.low > 0 else "cannot be distinguished from"
            sentences.append(f"The transferred calibrator {verdict} {name} ({figures}).")
        return sentences


def transferred(chosen: Measured, drawn: Collected, general: Collected, description: str) -> Transferred:
    """Build a profile with the F_n of a view, from answers under draws of it, and compare it with other calibrators.

    `general` are the answers about the same pictures under the general panel, for the jury.
    """
    if general.votes.names != drawn.votes.names:
        raise DataError("some pictures were answered under one panel only; run the same command again")
    calibrator, labelled = Transfer(noise=chosen.noise.cumulative), drawn.labelled()
    families = (calibrator, Naive(), Constant(), Gaussian(), Probit())
    own, *others = [crossfit.cross_fit(family, labelled) for family in families]
    others.append(replace(crossfit.cross_fit(Jury(), general.labelled()), name="jury, general panel"))
    return Transferred(chosen, own, tuple(others), fitting.learn(drawn, calibrator, description))


def jury_of(teacher: Profile) -> Jury:
    """The jury of a profile, if it can be borrowed."""
    prior = teacher.restored_calibrator()
    if not isinstance(prior, Jury):
        family = teacher.calibrator["family"]
        raise DataError(
            f"the profile to borrow from holds a {family}, and only a jury can be borrowed; fit it as one",
            code="profile-incomplete",
        )
    return prior


def taught(teacher: Profile, collected: Collected, description: str) -> Profile:
    """A jury fitted with another's weights as the prior, evaluated by 5-fold cross-validation."""
    prior = jury_of(teacher)
    profile = fitting.learn(collected, Pupil(prior), description)
    return profile.model_copy(update={"calibrator": dump(fit_towards(prior, collected.labelled()))})


def untaught(teacher: Profile, classifier: AnyClassifier, description: str, seed: int) -> Profile:
    """Use the teacher's panel and jury for another classifier without labelled pictures."""
    jury_of(teacher)
    labels = classifier.labels
    return Profile(
        classifier=description,
        fingerprint=classifier.fingerprint,
        reading=reading(classifier),
        renames=dict(names_of(classifier).renames),
        vocabulary=labels or teacher.vocabulary,
        classes=len(labels) if labels else teacher.classes,
        panel=teacher.panel,
        seed=seed,
        renderer=renderer(teacher.views()),
        calibrator=teacher.calibrator,
        pictures=0,
        results=(),
        held_out=HeldOut(confidence=(), correct=()),
    )
