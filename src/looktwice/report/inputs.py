"""The inputs of a report, saved or at hand, and the confidences with known outcomes that it uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from looktwice.model import (
    MAX_ERROR,
    DataError,
    Floats,
    ImageError,
    Jury,
    LabelledVotes,
    Outcome,
    Panel,
    Picture,
    Policy,
    Profile,
    Pupil,
    Result,
    TagPolicy,
    Votes,
    baselines,
    calibration,
    descriptor,
    find,
    labelled_tags,
    open_all_labelled,
)

Bools = NDArray[np.bool_]

SAME = 0.98
"""Two fits on the same pictures make at least this share of their answers right or wrong alike."""


@dataclass(frozen=True, eq=False)
class ReportInputs:
    """The inputs of a report; only the profile is required, and each further one adds sections."""

    profile: Profile
    votes: Votes | LabelledVotes | None = None
    """Answers under the profile's panel; labelled if the truth of every picture is known."""
    pictures: Sequence[Picture] = ()
    """Where the pixels of the votes' pictures are, by their names."""
    policy: Policy | None = None
    """The policy of the votes; the whole panel if None."""
    descriptors: Mapping[str, Floats] = field(default_factory=dict)
    """What kind of picture each of the votes' pictures is, by its digest, if known."""
    results: Sequence[Result] = ()
    """The rows of the results table; by default the calibrator and the naive and constant baselines."""
    price_micros: int = 0
    """Millionths of the currency that a query costs; 0 where it is free or not known."""
    max_error: float = MAX_ERROR
    """How often accepted answers may be wrong."""
    level: float = 0.95
    """How certain that guarantee is to be."""
    title: str = "How far to trust this classifier"

    def using(self) -> Policy:
        """How the profile is put to use."""
        return self.policy or Policy.full_panel(self.profile)


@dataclass(frozen=True, eq=False)
class Judged:
    """The predictions for each picture of the votes."""

    votes: Votes
    label: calibration.Codes
    confidence: Floats
    outcome: Outcome | None
    """The outcome, if truths are known."""
    taught: bool
    """Whether the profile was fitted on these pictures, and each was judged by a calibrator fitted on others."""

    def labelled(self) -> LabelledVotes | None:
        """The votes if their truths are known."""
        return self.votes if isinstance(self.votes, LabelledVotes) else None


@dataclass(frozen=True, eq=False)
class Evidence:
    """Confidences whose outcome is known, and where they come from."""

    confidence: Floats
    correct: Bools
    results: tuple[Result, ...]
    believed: Result
    """The row of the results that the report is about."""
    source: str


def judge(inputs: ReportInputs) -> Judged | None:
    """The predictions for the votes' pictures, None without votes; a DataError if they do not fit the profile.

    If the profile was fitted on them, asking its calibrator about them would flatter it: then each is judged by a
    calibrator that was fitted on others, and those on which the panel was chosen are not judged at all.
    """
    if inputs.votes is None:
        return None
    policy = inputs.using()
    votes, calibrator = _fitting(inputs.votes, inputs.profile, policy.panel), policy.calibrator
    if not isinstance(votes, LabelledVotes):
        return Judged(votes, calibrator.predict(votes), calibrator.confidence(votes), None, taught=False)
    votes.check()
    labelled = votes.distinct()
    fair = _fair(inputs.profile, labelled)
    if fair is None:
        labelled = labelled.evenly()
        outcome = calibration.crossfit.outcome(calibrator, labelled)
        return Judged(labelled, outcome.label, outcome.confidence, outcome, taught=False)
    if policy.rounds:
        raise DataError(
            "the profile was fitted on these votes, which are of all views; give --all",
            code="option-conflict",
        )
    labelled = labelled.evenly()
    judged = slice(len(labelled) - len(fair.label), None)
    return Judged(labelled.take(judged), fair.label, fair.confidence, fair, taught=True)


def weigh(inputs: ReportInputs, judged: Judged | None) -> Evidence:
    """The basis of the report's guarantees: the votes if their truths are known, else the profile's own pictures."""
    profile, name = inputs.profile, inputs.using().calibrator.name
    if judged is None or judged.outcome is None:
        held_out, results = inputs.using().held_out, tuple(inputs.results) or profile.results
        confidence, correct = held_out.arrays()
        source = _held_out(len(confidence))
    else:
        outcome, results = judged.outcome, tuple(inputs.results) or _results(profile, judged, judged.outcome)
        confidence, correct = outcome.confidence, outcome.correct
        source = _held_out(len(correct)) if judged.taught else f"{_pictures(len(correct))} that took no part in fitting"
        if not judged.taught and (fitted := profile.count_fitted(judged.votes.digests)):
            source = f"{_pictures(len(correct))}, {fitted:,} of which took part in fitting, so they are too optimistic"
    if not len(correct) or not results:
        raise DataError(
            "no outcome is known, neither to the profile nor of these votes; give labelled pictures",
            code="labels-missing",
        )
    believed = next((result for result in results if result.calibrator == name), results[-1])
    return Evidence(confidence, correct, results, believed, source)


def tag_evidence(inputs: ReportInputs, policy: TagPolicy) -> tuple[Floats, Bools, str]:
    """(n, T) twice: the probabilities of tags and what is true, and which pictures they are about."""
    profile, votes = inputs.profile, inputs.votes
    if not isinstance(votes, LabelledVotes) or profile.count_fitted(votes.digests):
        confidence, correct = profile.held_out.arrays()
        shape = -1, len(profile.vocabulary)
        return confidence.reshape(shape), correct.reshape(shape), _held_out(profile.pictures)
    labelled = labelled_tags(votes.distinct(), profile)
    source = f"{_pictures(len(labelled))} that took no part in fitting"
    return policy.jury.probability(labelled), labelled.truths, source


def _fitting(votes: Votes, profile: Profile, panel: Panel) -> Votes:
    """The answers to this panel, once the votes are known to hold them; they may be of more views, in any order."""
    if not len(votes):
        raise DataError(
            "the votes are about no picture; ask about some and save their votes with --votes", code="pictures-none"
        )
    asked, wanted = votes.panel, tuple(map(str, panel))
    places = {view: [place for place, other in enumerate(asked) if other == view][::-1] for view in set(wanted)}
    columns = [places[view].pop() for view in wanted if places[view]]  # draws of one view in their order
    if len(columns) < len(wanted):
        raise DataError(
            f"the votes are of {len(asked)} views ({_few(asked)}) and the profile asks {len(wanted)} "
            f"({_few(wanted)}); give the votes that were saved with this profile",
            code="votes-mismatch",
        )
    if not set(votes.vocabulary) & set(profile.vocabulary):
        raise DataError(
            f"the votes are labels such as {votes.vocabulary[0]!r} and the profile knows labels such as "
            f"{profile.vocabulary[0]!r}; give the votes that were saved with this profile",
            code="votes-mismatch",
        )
    # The calibrator knows classes by their codes in the profile's vocabulary.
    fitting = votes.under(columns).recoded(profile.vocabulary)
    return replace(fitting, classes=max(fitting.classes, profile.classes))


def _fair(profile: Profile, labelled: LabelledVotes) -> Outcome | None:
    """The outcome by folds if these are the pictures that the profile was fitted on.

    They are if fitting again gives the same calibrator, and the answers are right for the same pictures. A jury has
    enough parameters for the first to decide; and where its views were chosen, each fold had its own choice.
    """
    calibrator, kept = profile.restored_calibrator(), profile.held_out
    if len(labelled) != profile.pictures or isinstance(calibrator, calibration.Naive | calibration.Constant):
        return None
    votes = labelled.under(range(len(profile.views())))
    if any(result.calibrator == Pupil.name for result in profile.results):
        if (calibration.crossfit.outcome(calibrator, votes).correct == np.array(kept.correct)).mean() > SAME:
            what = "the borrowed jury was fitted on these pictures"  # without its prior, no fold can be fitted again
            raise DataError(f"{what}; report about others, or leave out the votes", code="votes-mismatch")
        return None
    if not np.allclose(calibrator.fit(votes).confidence(votes), calibrator.confidence(votes), atol=1e-6):
        return None
    even = labelled.even()
    n_selection = int(np.searchsorted(np.cumsum(even), even.sum() - len(kept.confidence), "left")) + 1
    n_selection = n_selection if len(kept.confidence) < even.sum() else 0
    fair = calibration.crossfit.cross_fit(calibrator, votes, n_selection=n_selection).of_rows(even[n_selection:])
    same = isinstance(calibrator, Jury) or (fair.correct == np.array(kept.correct)).mean() > SAME
    return fair if same else None


def _results(profile: Profile, judged: Judged, outcome: Outcome) -> tuple[Result, ...]:
    """The calibrator beside naive and constant; as the profile has it if these are the pictures it was fitted on."""
    labelled = judged.labelled()
    if judged.taught or labelled is None:
        return profile.results
    return tuple(Result.from_outcome(each) for each in (*baselines(labelled, profile), outcome))


def _held_out(pictures: int) -> str:
    return f"{_pictures(pictures)} it was fitted on, each judged by a calibrator fitted on others"


def _pictures(count: int) -> str:
    return f"{count:,} picture{'s' if count != 1 else ''}"


def _few(views: Sequence[str]) -> str:
    return ", ".join(views[:3]) + (" …" if len(views) > 3 else "") if views else "none"


def saved_inputs(
    profile: Profile,
    votes: Path | None = None,
    pictures: Path | None = None,
    price_micros: int = 0,
) -> ReportInputs:
    """The inputs of a report, read from the files that commands wrote."""
    shown: Sequence[Picture] = []
    if pictures:
        try:
            shown = open_all_labelled([pictures])
        except DataError:
            shown = find([pictures])
    saved = Votes.load(votes) if votes else None
    return ReportInputs(
        profile,
        None if saved is None else _labelled(saved, shown),
        shown,
        descriptors={} if saved is None else described(saved, shown, profile),
        price_micros=price_micros,
    )


def described(votes: Votes, pictures: Sequence[Picture], profile: Profile) -> dict[str, Floats]:
    """What kind of picture each of the votes' pictures is, by its digest, where the same pixels are shown here."""
    names, digests, descriptors = set(votes.names), set(votes.digests), dict[str, Floats]()
    size = profile.familiarity.size if profile.familiarity else None
    for item in (item for item in pictures if size and item.name in names):
        with suppress(ImageError, DataError):
            image = item.image(size)
            if image.digest in digests:
                descriptors[image.digest] = descriptor(image.pixels, image.original_size)
    return descriptors


def _labelled(votes: Votes, pictures: Sequence[Picture]) -> Votes | LabelledVotes:
    """The votes with the truths that they hold, else with those of the pictures if all are known."""
    known = {item.name: item.truth for item in pictures}
    truths = [truth for name in votes.names if (truth := known.get(name)) is not None]
    return votes if isinstance(votes, LabelledVotes) or len(truths) < len(votes) else votes.labelled(truths)
