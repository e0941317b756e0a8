"""The inputs of a report, from files or from memory, and the confidences with known outcomes that the report uses."""

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
    LabelledVotes,
    Panel,
    Picture,
    Policy,
    Profile,
    Result,
    TagPolicy,
    Votes,
    baselines,
    calibration,
    find,
    labelled_tags,
    open_all_labelled,
)

Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class ReportInputs:
    """The inputs of a report; only the profile is required, and each further input adds sections."""

    profile: Profile
    votes: Votes | LabelledVotes | None = None
    """Answers under the profile's panel, labelled if the true label of every picture is known."""
    pictures: Sequence[Picture] = ()
    """The pictures to which the votes belong, matched by name."""
    policy: Policy | None = None
    """The policy for the votes; with None, the whole panel is used."""
    descriptors: Mapping[str, Floats] = field(default_factory=dict)
    """The descriptors of the votes' pictures by digest, if known."""
    results: Sequence[Result] = ()
    """The rows of the results table; by default the calibrator, the naive baseline and the constant baseline."""
    price_micros: int = 0
    """The price of a query to the profile's first classifier, in millionths of the currency; 0 if it is free or
    unknown."""
    max_error: float = MAX_ERROR
    """The allowed error rate among accepted answers."""
    level: float = 0.95
    """The confidence level of the guarantee."""
    title: str = "How far to trust this classifier"

    def using(self) -> Policy:
        """The policy that the report uses."""
        return self.policy or Policy.full_panel(self.profile)

    def prices(self) -> Floats:
        """(S + 1,): the cost of the base query and of each query in the panel; zeros if unknown."""
        sources = _sources(self.profile.name, tuple(map(str, self.using().panel)))
        others = {other.name: other.price for other in self.profile.others} if self.price_micros else {}
        return np.array([others.get(source.partition("@")[0], self.price_micros / 1e6) for source in sources])

    def verdict_price(self, queries: float) -> float:
        """The average cost of a verdict; 0 if unknown."""
        policy, prices = self.using(), self.prices()
        if policy.rounds is None:
            return float(prices.sum())
        known = (*self.profile.cheaper, self.profile.adaptive)
        stopping = next((rule for rule in known if rule and rule.held_out is policy.held_out), None)
        return stopping.price if stopping and self.profile.others and self.price_micros else prices[0] * queries


@dataclass(frozen=True, eq=False)
class Judged:
    """The predictions for the votes' pictures."""

    votes: Votes
    label: calibration.Codes
    confidence: Floats
    correct: Bools | None
    """Whether each prediction is right, if true labels are known."""
    taught: bool
    """Whether the profile was fitted on these pictures; if so, each prediction is from a calibrator fitted on other
    pictures."""
    results: tuple[Result, ...] = ()
    """The figures for these pictures, if true labels are known."""

    def labelled(self) -> LabelledVotes | None:
        """The votes, if their true labels are known."""
        return self.votes if isinstance(self.votes, LabelledVotes) else None


@dataclass(frozen=True, eq=False)
class Evidence:
    """Confidences with known outcomes, and their source."""

    confidence: Floats
    correct: Bools
    results: tuple[Result, ...]
    believed: Result
    """The row of the results table for the report's calibrator."""
    source: str


def judge(inputs: ReportInputs) -> Judged | None:
    """The predictions for the votes' pictures; returns None without votes, and raises a DataError if the votes do not
    match the profile.

    If the profile was fitted on these pictures, its calibrator's predictions for them would be too optimistic. The
    report then shows the profile's held-out results, which exclude the pictures on which the panel was chosen. Pictures
    without any answer from the chosen sources are excluded as well.
    """
    if inputs.votes is None:
        return None
    policy = inputs.using()
    votes, calibrator = _fitting(inputs.votes, inputs.profile, policy.panel), policy.calibrator
    if len(unanswered := np.flatnonzero((votes.answers() == calibration.MISSING).all(axis=1))):
        votes = votes.take(np.setdiff1d(np.arange(len(votes)), unanswered))
    if not isinstance(votes, LabelledVotes):
        return Judged(votes, calibrator.predict(votes), calibrator.confidence(votes), None, taught=False)
    votes.check()
    labelled = votes.distinct()
    if (rows := _fitted_rows(inputs.profile, policy, labelled)) is not None:
        confidence, correct = policy.held_out.arrays()
        label = np.array(policy.held_out.predicted, np.int32)
        return Judged(labelled.take(rows), label, confidence, correct, taught=True, results=inputs.profile.results)
    labelled = labelled.evenly()
    outcome = calibration.crossfit.outcome(calibrator, labelled)
    results = tuple(Result.from_outcome(judged) for judged in (*baselines(labelled, inputs.profile), outcome))
    return Judged(labelled, outcome.label, outcome.confidence, outcome.correct, taught=False, results=results)


def weigh(inputs: ReportInputs, judged: Judged | None) -> Evidence:
    """The pictures used for the report's guarantees: the votes' pictures if their true labels are known, else the
    profile's own pictures."""
    profile, name = inputs.profile, inputs.using().calibrator.name
    if judged is None or judged.correct is None:
        held_out, results = inputs.using().held_out, tuple(inputs.results) or profile.results
        confidence, correct = held_out.arrays()
        source = _held_out(len(confidence))
    else:
        confidence, correct = judged.confidence, judged.correct
        results = tuple(inputs.results) or judged.results
        source = _held_out(len(correct)) if judged.taught else f"{_pictures(len(correct))} that took no part in fitting"
        if not judged.taught and (fitted := profile.count_fitted(judged.votes.digests)):
            source = f"{_pictures(len(correct))}, {fitted:,} of which took part in fitting, so they are too optimistic"
    if not len(correct) or not results:
        raise DataError(
            "neither the profile nor these votes have known outcomes; give labelled pictures",
            code="labels-missing",
        )
    believed = next((result for result in results if result.calibrator == name), results[-1])
    return Evidence(confidence, correct, results, believed, source)


def tag_evidence(inputs: ReportInputs, policy: TagPolicy) -> tuple[Floats, Bools, str]:
    """The tag probabilities and whether tags are true, (n, T) each, and a description of the pictures."""
    profile, votes = inputs.profile, inputs.votes
    if not isinstance(votes, LabelledVotes) or profile.count_fitted(votes.digests):
        confidence, correct = profile.held_out.arrays()
        shape = -1, len(profile.vocabulary)
        return confidence.reshape(shape), correct.reshape(shape), _held_out(profile.pictures)
    labelled = labelled_tags(votes.distinct(), profile)
    source = f"{_pictures(len(labelled))} that took no part in fitting"
    return policy.jury.probability(labelled), labelled.truths, source


def _fitting(votes: Votes, profile: Profile, panel: Panel) -> Votes:
    """The answers under this panel; raises an error if the votes lack some. The votes may have more views, in any
    order."""
    if not len(votes):
        raise DataError(
            "the votes contain no pictures; score or fit some and save their votes with --votes", code="pictures-none"
        )
    names = [name for name, _ in profile.described()]
    first = next((name for name in names if f"{name}@base" not in votes.panel), "")
    asked, wanted = _sources(first, votes.panel), _sources(profile.name, tuple(map(str, panel)))
    places = {source: [place for place, other in enumerate(asked) if other == source][::-1] for source in set(wanted)}
    columns = [places[source].pop() for source in wanted if places[source]]  # draws of one view in their order
    if len(columns) < len(wanted):
        raise DataError(
            f"the votes are of {len(asked) - 1} views ({_few(asked[1:])}), but the profile asks {len(wanted) - 1} "
            f"({_few(wanted[1:])}); give the votes that were saved with this profile",
            code="votes-mismatch",
        )
    if not set(votes.vocabulary) & set(profile.vocabulary):
        raise DataError(
            f"the votes have labels such as {votes.vocabulary[0]!r}, but the profile has labels such as "
            f"{profile.vocabulary[0]!r}; give the votes that were saved with this profile",
            code="votes-mismatch",
        )
    # The calibrator knows classes by their codes in the profile's vocabulary.
    fitting = replace(votes.of_sources(columns), panel=tuple(map(str, panel))).recoded(profile.vocabulary)
    unsayable = profile.unsayable[: len(columns)]
    return replace(fitting, classes=max(fitting.classes, profile.classes), unsayable=unsayable)


def _sources(first: str, panel: Sequence[str]) -> tuple[str, ...]:
    """The base query and the views, each with its classifier; panels omit the name of the first classifier."""
    return tuple(text if "@" in text else f"{first}@{text}" for text in ("base", *panel))


def _fitted_rows(profile: Profile, policy: Policy, labelled: LabelledVotes) -> calibration.Places | None:
    """The rows of these votes to which the policy's held-out results refer; None if the policy was fitted on other
    pictures."""
    held_out = policy.held_out
    if not held_out.predicted or not profile.count_fitted(labelled.digests) == len(labelled) == profile.pictures:
        return None
    rows = np.flatnonzero(labelled.even())[-len(held_out.truth) :]
    return rows if labelled.truths[rows].tolist() == list(held_out.truth) else None


def _held_out(pictures: int) -> str:
    return f"{_pictures(pictures)} that it was fitted on, each judged by a calibrator fitted on other pictures"


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
    """The inputs of a report, read from files written by commands."""
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
    """The descriptors of the votes' pictures by digest, for those given pictures whose pixels are unchanged."""
    names, digests, descriptors = set(votes.names), set(votes.digests), dict[str, Floats]()
    familiarity = profile.familiarity
    if familiarity is None or familiarity.size is None:
        return descriptors
    for item in (item for item in pictures if item.name in names):
        with suppress(ImageError, DataError):
            image = item.image(familiarity.size)
            if image.digest in digests:
                descriptors[image.digest] = familiarity.describe(image)
    return descriptors


def _labelled(votes: Votes, pictures: Sequence[Picture]) -> Votes | LabelledVotes:
    """The votes with their own true labels, or else with the pictures' true labels if all are known."""
    known = {item.name: item.truth for item in pictures}
    truths = [truth for name in votes.names if (truth := known.get(name)) is not None]
    return votes if isinstance(votes, LabelledVotes) or len(truths) < len(votes) else votes.labelled(truths)
