"""Labelled votes → profile: learn from answers about labelled pictures, and from other models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from looktwice.calibration import (
    Ballot,
    Bools,
    Calibrator,
    Constant,
    Gaussian,
    Jury,
    LabelledVotes,
    Naive,
    Outcome,
    Probit,
    Pupil,
    Transfer,
    base_tally,
    crossfit,
    dump,
    first_scored,
    metrics,
    useless,
)
from looktwice.classifiers import AnyClassifier, names_of, reading
from looktwice.decisions.collecting import Collected
from looktwice.decisions.monitoring import AnswerKinds, Familiarity
from looktwice.decisions.noise import Measured
from looktwice.decisions.policy import agreement_bin
from looktwice.decisions.profile import DIGEST_DIGITS, Adaptive, Profile, ProfileClassifier
from looktwice.decisions.results import FrontierPoint, HeldOut, Result
from looktwice.decisions.sequence import (
    BASE,
    NEVER,
    Choice,
    Expected,
    HeldOutJuries,
    Point,
    SelectedSequence,
    Source,
    candidates,
    choose,
    find,
    frontier,
)
from looktwice.errors import DataError
from looktwice.views import Panel, renderer


def learn(collected: Collected, calibrator: Calibrator, description: str, n_selection: int = 0) -> Profile:
    """Fit a profile of the whole panel, with early stopping, from labelled votes; sends no queries.

    The first `n_selection` pictures are used for fitting only, since they were used for selection.

    If pictures were selected for labelling with unequal probabilities, the calibrator learns from all of them: the
    selection depended on the answers alone, and the calibrator models the true label given the answers. Figures,
    guarantees, sets, familiarity and drift refer to the population, so they use a uniform subsample of the pictures
    (`LabelledVotes.even`).
    """
    labelled = collected.labelled()
    if isinstance(calibrator, Jury) and len(labelled.panel) > 1:
        asked = ProfileClassifier(
            name=collected.panel.first, description=description, fingerprint=collected.fingerprint
        )
        return learn_sequence(collected, [asked], n_selection, ballot=calibrator.ballot, whole=True)[0]
    held_out = crossfit.cross_fit(calibrator, labelled, n_selection=n_selection)
    return build(
        collected,
        calibrator,
        description,
        n_selection,
        held_out.of_rows(evaluated_rows(labelled, n_selection)[n_selection:]),
    )


def learn_sequence(
    collected: Collected,
    asked: Sequence[ProfileClassifier],
    n_selection: int = 0,
    choice: Choice = choose,
    ballot: Ballot = "vote",
    whole: bool = False,
) -> tuple[Profile, Collected]:
    """Fit a profile of the best sequence for its price, from the answers of all these classifiers; also returns the
    answers of its sources.

    The selection is nested in each fold, so guarantees hold for all stages together. With `whole`, the panel is fixed
    and only early stopping is learned.
    """
    labelled = collected.labelled()
    held = candidates(labelled, sources_of(collected.panel, asked), ballot)
    every = tuple(range(1 + len(labelled.panel)))
    selected = find(held, choice, [every] if whole else None)
    places = every if whole else selected.places
    chosen, classifiers = _chosen(collected, asked, held, places)
    votes, rows = chosen.labelled(), evaluated_rows(labelled, n_selection)
    curve = [step.of_rows(rows) for step in held.curve(places)]
    stopped = selected.outcome.of_rows(rows)
    others = [stopped] if len(places) > 1 else []
    jury = Jury(ballot=held.ballot)
    profile = build(chosen, jury, classifiers[0].description, n_selection, replace(curve[-1], name=jury.name), *others)
    update: dict[str, object] = {
        "name": classifiers[0].name,
        "others": classifiers[1:],
        "unsayable": votes.unsayable,
        "frontier": points_shown(selected),
        "curve": tuple(Result.from_outcome(step, intervals=False) for step in curve),
    }
    if others:
        adaptive = _adaptive(_chosen(collected, asked, held, selected.places)[0], selected, n_selection, stopped)
        update["adaptive"] = adaptive.model_copy(update={"expected": Expected.compare(stopped, curve[-1])})
        update["cheaper"] = tuple(_cheaper(collected, asked, selected, n_selection, whole))
    return profile.model_copy(update=update), chosen


def points_shown(selected: SelectedSequence) -> tuple[FrontierPoint, ...]:
    """The frontier, cheapest first, and points for comparison: each classifier alone, the first classifier followed by
    another if its answer is doubtful, and all sources without early stopping."""
    fixed = [point for point in selected.points if min(point.sequence.enough, default=NEVER) >= NEVER]
    longest = max(len(point.sequence.sources) for point in fixed)
    beside = [point for point in fixed if len(point.sequence.sources) in (1, longest)]
    pairs: dict[tuple[Source, ...], list[Point]] = {}
    for point in selected.points:
        first, *others = point.sequence.sources
        if first == selected.held.sources[0] and [each.view for each in others] == [BASE]:
            pairs.setdefault(point.sequence.sources, []).append(point)
    beside += [choose(points) for points in pairs.values()]
    shown = {point.sequence: point for point in (*beside, *frontier(selected.points), selected.point)}
    return tuple(
        FrontierPoint.from_point(point, point is selected.point)
        for point in sorted(shown.values(), key=lambda point: point.price)
    )


def sources_of(panel: Panel, asked: Sequence[ProfileClassifier]) -> list[Source]:
    """The sources of the base and the views, with their prices."""
    prices = {known.name: known.price for known in asked}
    sources = [Source.parse(text, asked[0].name) for text in (BASE, *map(str, panel.views))]
    return [replace(source, price=prices[source.classifier]) for source in sources]


def _chosen(
    collected: Collected, asked: Sequence[ProfileClassifier], held: HeldOutJuries, places: Sequence[int]
) -> tuple[Collected, tuple[ProfileClassifier, ...]]:
    """The answers of some sources, and their classifiers; the first one is the profile's main classifier."""
    kept = [held.sources[place] for place in places]
    names = dict.fromkeys(source.classifier for source in kept)
    known = tuple(classifier for name in names for classifier in asked if classifier.name == name)
    texts = [source.view if source.classifier == known[0].name else str(source) for source in kept[1:]]
    chosen = replace(
        collected,
        votes=replace(collected.votes.of_sources(places), panel=tuple(texts)),
        panel=replace(Panel.parse(" ".join(texts)), first=known[0].name),
    )
    if len(asked) > 1:
        chosen = replace(
            chosen,
            fingerprint=known[0].fingerprint,
            renames=known[0].renames,
            reading=known[0].reading,
            working_size=known[0].working_size,
        )
    return chosen, known


def _cheaper(
    collected: Collected, asked: Sequence[ProfileClassifier], selected: SelectedSequence, n_selection: int, whole: bool
) -> Iterator[Adaptive]:
    """Earlier stopping rules for the selected sequence, each selected in every fold within its price limit."""
    held, rows, last = selected.held, evaluated_rows(collected.labelled(), n_selection), 0.0
    for point in frontier(selected.points):
        length = len(point.sequence.sources)
        if point.price < selected.point.price and point.sequence.sources == selected.sequence.sources[:length]:
            start = [tuple(range(len(held.sources)))] if whole else None
            other = find(held, partial(choose, max_price=point.price), start)
            if last < other.point.price and other.places == selected.places[: len(other.places)]:
                last = other.point.price
                chosen, _ = _chosen(collected, asked, held, other.places)
                yield _adaptive(chosen, other, n_selection, other.outcome.of_rows(rows))


def _adaptive(chosen: Collected, selected: SelectedSequence, n_selection: int, stopped: Outcome) -> Adaptive:
    """Early stopping, and the held-out results of verdicts with it."""
    votes, sequence = chosen.labelled(), selected.sequence
    even = votes.even()
    asked, followed = sequence.follow(selected.calibrator, votes)
    views, first = len(votes.panel), int(asked.min()) - 1
    agree = base_tally(votes.under(range(first))).agree[even].tolist()
    bins = [agreement_bin(*pair, views) for pair in zip(agree, (asked[even] - 1).tolist(), strict=True)]
    final = crossfit.outcome(selected.calibrator, followed).of_rows(evaluated_rows(votes, n_selection))
    return Adaptive(
        panel=str(chosen.panel),
        first=first,
        enough=sequence.enough,
        calibrator=dump(selected.calibrator),
        held_out=HeldOut.combine(stopped, final),
        agreement_bins=tuple(np.bincount(bins, minlength=(first + 1) * (views + 1)).tolist()),
        answers=AnswerKinds.fit(votes.evenly().under(range(first))),
        queries=selected.point.queries,
        price=selected.point.price,
    )


def evaluated_rows(labelled: LabelledVotes, n_selection: int) -> Bools:
    """(n,): a uniform subsample of the pictures not used for selection; figures refer to it."""
    return labelled.even() & (np.arange(len(labelled)) >= n_selection)


def build(
    collected: Collected,
    calibrator: Calibrator,
    description: str,
    n_selection: int,
    held_out: Outcome,
    *others: Outcome,
) -> Profile:
    """Assemble a calibrator's profile, with the outcomes of the calibrator and the baselines."""
    labelled, described = collected.labelled(), collected.described()
    rows = evaluated_rows(labelled, n_selection)
    part = labelled.take(np.flatnonzero(rows))
    outcomes, single = crossfit.baselines(part), None
    if isinstance(calibrator, Jury) and labelled.evidence:
        outcomes += [own] if (own := crossfit.own_score(part)) else []
        single = calibrator.fit(labelled.under([]))
        if labelled.panel:
            outcomes.append(crossfit.one_query(calibrator, labelled, n_selection).of_rows(rows[n_selection:]))
    fitted = calibrator.fit(labelled)
    # Scores may have helped on some folds; the row shows the final calibrator.
    uses_scores = isinstance(fitted, Jury) and fitted.scored is not None
    held_out = replace(held_out, evidence="scores" if uses_scores else "labels")
    return Profile(
        classifier=description,
        fingerprint=collected.fingerprint,
        reading=collected.reading,
        renames=dict(collected.renames),
        vocabulary=labelled.vocabulary,
        classes=labelled.classes,
        panel=str(collected.panel),
        seed=collected.seed,
        working_size=collected.working_size,
        renderer=renderer(collected.panel),
        calibrator=dump(fitted),
        pictures=len(labelled),
        fitted_on=tuple(digest[:DIGEST_DIGITS] for digest in labelled.digests if digest),
        results=tuple(Result.from_outcome(outcome) for outcome in (*outcomes, held_out, *others)),
        held_out=HeldOut.combine(held_out, crossfit.outcome(fitted, labelled).of_rows(rows)),
        agreement_bins=tuple(
            np.bincount(base_tally(labelled.evenly()).agree, minlength=len(labelled.panel) + 1).tolist()
        ),
        one_query=dump(single) if single else None,
        scores=_scores(labelled, fitted) if single else "",
        familiarity=None if described is None else Familiarity.fit(described, collected.described_at),
        answers=AnswerKinds.fit(labelled.evenly()),
    )


def _scores(labelled: LabelledVotes, fitted: Calibrator) -> str:
    """Whether the classifier's scores are used and why, as a sentence."""
    if not isinstance(fitted, Jury) or fitted.scored is None:
        first = labelled.of_sources([first_scored(labelled)])  # the first source with scores
        why = useless(first.evidence) if first.evidence else None
        return f"{why or 'they did not help on held-out folds'}: not used"
    kind = {"rank": "ranks", "probability": "probabilities"}.get(
        fitted.scored.scale.kind, f"{fitted.scored.scale.kind}s"
    )
    return f"used, as {kind}"


# Transfer -------------------------------------------------------------------------------------------------------------


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
        return [Result.from_outcome(outcome) for outcome in (*self.others, self.calibrator)]

    def differences(self) -> dict[str, metrics.Difference]:
        """The difference in Brier score to each fitted calibrator."""
        return {
            other.name: metrics.paired_difference(self.calibrator.brier, other.brier)
            for other in self.others
            if other.name not in (Naive.name, Constant.name)
        }

    def sentences(self) -> list[str]:
        """Whether the transferred calibrator has the better Brier score, one sentence per other calibrator."""
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
        raise DataError("some pictures were answered under only one of the panels; run the same command again")
    calibrator, labelled = Transfer(noise=chosen.noise.cumulative), drawn.labelled()
    families = (calibrator, Naive(), Constant(), Gaussian(), Probit())
    own, *others = [crossfit.cross_fit(family, labelled) for family in families]
    others.append(replace(crossfit.cross_fit(Jury(), general.labelled()), name="jury, general panel"))
    return Transferred(chosen, own, tuple(others), learn(drawn, calibrator, description))


def jury_of(teacher: Profile) -> Jury:
    """Return the jury of a profile; raises a DataError if its calibrator is not a jury."""
    prior = teacher.restored_calibrator()
    if not isinstance(prior, Jury):
        family = teacher.calibrator["family"]
        raise DataError(
            f"the profile to borrow from holds a {family}, but only a jury can be borrowed; fit it with a jury",
            code="profile-incomplete",
        )
    return prior


def taught(teacher: Profile, collected: Collected, description: str) -> Profile:
    """A jury fitted with the teacher's weights as the prior, evaluated by 5-fold cross-validation.

    If the teacher was fitted for the same classifier, the pictures may have changed, so the prior is used only if it
    improves the fit.
    """
    pupil = Pupil(jury_of(teacher), changed=teacher.fingerprint == collected.fingerprint)
    profile = learn(collected, pupil, description)
    return profile.model_copy(update={"calibrator": dump(pupil.fit(collected.labelled()).jury)})


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
