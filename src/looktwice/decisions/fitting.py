"""Votes with truths → profile: asking about labelled pictures, and what their votes teach."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from looktwice.calibration import (
    OUTSIDE,
    Ballot,
    Calibrator,
    Floats,
    Jury,
    LabelledVotes,
    Outcome,
    Row,
    Votes,
    base_tally,
    check_truths,
    crossfit,
    dump,
    useless,
)
from looktwice.classifiers import AnswerKind, reading
from looktwice.decisions.policy import Policy, agreement_bin
from looktwice.decisions.profile import (
    DIGEST_DIGITS,
    Adaptive,
    FrontierPoint,
    HeldOut,
    Profile,
    ProfileClassifier,
    Result,
)
from looktwice.decisions.sequence import (
    BASE,
    NEVER,
    Choice,
    Expected,
    Found,
    HeldOutJuries,
    Source,
    candidates,
    choose,
    find,
    frontier,
)
from looktwice.engine import NO_SCREEN, Cause, Channel, QueryEngine, Rounds, Screen, Unscored
from looktwice.errors import DataError, FitError, UnscoredError
from looktwice.files import join_tags
from looktwice.images import Picture, WorkingSize
from looktwice.monitoring import AnswerKinds, Familiarity
from looktwice.views import Panel, classifier_of, renderer

LEAST = 2 * crossfit.FOLDS
"""The fewest labelled pictures that can be judged by folds."""
ALIKE, CONTRAST = 4, 32
"""Grey levels by which thumbnails of near-duplicates differ at most, and which one spans at least to tell anything."""


@dataclass(frozen=True, eq=False)
class Collected:
    """The answers about pictures under a panel, and the pictures that have none."""

    votes: Votes | LabelledVotes
    """Labelled if the truth of every picture is known."""
    unscored: tuple[Unscored, ...]
    panel: Panel
    fingerprint: str
    seed: int
    renames: Mapping[str, str] = field(default_factory=dict)
    """What the description made of the classifier's words."""
    repeated: int = 0
    """Pictures that `distinct` left out."""
    disputed: tuple[tuple[str, str], ...] = ()
    """Those of them that had another truth: each by name, after the name of the one that stayed."""
    similar: tuple[tuple[str, str], ...] = ()
    """The names of pictures that are no copies of each other but look almost the same, two and two."""
    descriptors: Mapping[str, Floats] = field(default_factory=dict, repr=False)
    """What kind of picture each is, by its digest, where that is known."""
    working_size: int | None = None
    """Pixels of the longer side to which larger pictures were scaled, where that was chosen for this classifier."""
    reading: str = ""
    """What was read from the classifier's replies."""
    described_at: WorkingSize | None = None
    """The working size at which the pictures were described and asked about."""
    kind: AnswerKind = "label"
    """What an answer says; of tags, the votes hold all tags of an answer as one text."""

    def distinct(self) -> Collected:
        """The same with each picture once: a copy of a picture says nothing new, and would count as evidence."""
        votes = self.votes.distinct()
        disputed = self.votes.disputed() if isinstance(self.votes, LabelledVotes) else ()
        return replace(
            self,
            votes=votes,
            repeated=self.repeated + len(self.votes) - len(votes),
            disputed=(*self.disputed, *disputed),
        )

    def labelled(self) -> LabelledVotes:
        """The votes about distinct pictures with their truths; an error where there is nothing to learn from."""
        if len(self.votes) == 0 and self.unscored:
            raise UnscoredError(f"no labelled picture could be scored: {self.unscored[0].message}")
        if len(self.votes) == 0:
            raise FitError("there is no labelled picture to learn from", code="labels-too-few")
        if not isinstance(self.votes, LabelledVotes):
            raise DataError(
                "the truth of every picture is needed; see docs/pictures.md for how to give it", code="labels-missing"
            )
        self.votes.check()
        return self.votes.distinct()

    def described(self) -> Floats | None:
        """(n, len(NAMES)): the descriptors of an even sample of the distinct pictures; None where one is not known."""
        votes = self.votes.distinct()
        votes = votes.evenly() if isinstance(votes, LabelledVotes) else votes
        known = [self.descriptors.get(digest) for digest in votes.digests]
        found = [row for row in known if row is not None]
        return np.stack(found) if found and len(found) == len(known) else None

    def under(self, columns: Sequence[int]) -> Collected:
        """The same under some views of the panel, in this order."""
        panel = Panel(tuple(self.panel.views[column] for column in columns))
        return replace(self, votes=self.votes.under(columns), panel=panel)


OnCollected = Callable[[Collected], None]
"""Is called with the answers before anything is learned from them: it may warn, save them, or raise."""


def warn(collected: Collected) -> None:
    """Warn of pictures that have no answers, and of copies of a picture with another truth."""
    if collected.unscored:
        first, total = collected.unscored[0], len(collected.votes) + len(collected.unscored)
        problem = f"{len(collected.unscored)} of {total} pictures were not scored, such as {first.name}"
        warnings.warn(f"{problem}: {first.message}", stacklevel=2)
    if disputed := collected.distinct().disputed:
        one, other = disputed[0]
        same = f"{len(disputed)} pictures are the same as others and have another truth"
        warnings.warn(f"{same}, such as {other} and {one}: the first truth counts", stacklevel=2)


def check_learnable(collected: Collected, pictures: int, on_collected: OnCollected) -> Collected:
    """The same answers about so many labelled pictures, where there are enough of them to learn from.

    Nothing is learned from the first pictures of a run that was stopped: they would take the place of a profile.
    """
    if left := [item.name for item in collected.unscored if item.cause is Cause.STOPPED]:
        raise UnscoredError(
            f"nothing was learned because the run was stopped with {pictures - len(collected.votes):,} of "
            f"{pictures:,} pictures left, such as {left[0]}; do the same again to resume"
        )
    on_collected(collected)
    if (answered := len(collected.labelled())) < LEAST:
        raise UnscoredError(
            f"nothing was learned: {answered} of {pictures:,} pictures have all their answers, and it takes "
            f"{LEAST}; mend what kept the others from being scored and do the same again, stored answers cost nothing"
        )
    return collected


async def collect(
    engine: QueryEngine,
    pictures: Sequence[Picture],
    panel: Panel,
    vocabulary: Sequence[str] = (),
    classes: int | None = None,
    rounds: Rounds | None = None,
    screen: Screen = NO_SCREEN,
) -> Collected:
    """Ask about every picture and hold all votes, labelled if every picture has a truth.

    Nothing is asked if none of the truths is a label that the classifier is known to give. Where its labels are not
    known, those of a few pictures are compared with the truths first.
    """
    channels = _asked(engine, panel)
    known = tuple(dict.fromkeys(label for channel in channels for label in channel.labels or ()))
    if all(channel.labels for channel in channels):
        check_truths((p.truth for p in pictures if p.truth is not None), (*known, *vocabulary))
    else:
        await _check_labels(engine, pictures, vocabulary)
    screen = replace(screen, descriptors=True, thumbnails=True)
    order = _taking_turns(pictures)
    in_turn = [row async for row in engine.ask([pictures[place] for place in order], panel, rounds, screen)]
    found = [row for _, row in sorted(zip(order, in_turn, strict=True), key=lambda one: one[0])]
    rows = [row for row in found if isinstance(row, Row)]
    unscored = [row for row in found if isinstance(row, Unscored)]
    # By their order and not by name, which pictures of two folders may share.
    asked = [picture for picture, row in zip(pictures, found, strict=True) if isinstance(row, Row)]
    kept = [picture for picture in asked if picture.truth is not None or picture.excluded]
    votes = Votes.collect(rows, tuple(map(str, panel)), vocabulary or known, classes)
    silent = _unsayable(engine, panel, votes.vocabulary) if len(channels) > 1 else ()
    votes = replace(votes, classes=_classes(votes, kept), unsayable=silent)
    votes = labelled_votes(votes, kept) if len(kept) == len(rows) else votes
    first = described(channels[0])
    return Collected(
        votes,
        tuple(unscored),
        panel,
        first.fingerprint,
        engine.settings.seed,
        first.renames,
        similar=similar(rows),
        descriptors={row.digest: row.descriptor for row in rows if row.descriptor is not None},
        working_size=first.working_size,
        reading=first.reading,
        described_at=channels[0].settings.limits.working_size,
    )


def _asked(engine: QueryEngine, panel: Panel) -> list[Channel]:
    """The classifiers that a panel asks, that of the base query first."""
    first = panel.first or engine.first.name
    return [engine.channels[name] for name in dict.fromkeys((first, *(classifier_of(v) or first for v in panel)))]


def described(channel: Channel) -> ProfileClassifier:
    """The description of a classifier for a profile."""
    limits, classifier = channel.settings.limits, channel.classifier
    return ProfileClassifier(
        name=channel.name,
        description=channel.settings.description,
        fingerprint=classifier.fingerprint,
        reading=reading(classifier),
        renames=dict(channel.names.renames),
        working_size=limits.working_size.long if limits.working_size != classifier.limits.working_size else None,
        price=channel.runner.typical.expected / 1e6 or 1.0,
    )


def _unsayable(engine: QueryEngine, panel: Panel, vocabulary: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    """The codes that the classifier of the base and of each view cannot give; none at all where all can give all."""
    first = panel.first or engine.first.name
    asked = [engine.channels[name] for name in (first, *(classifier_of(view) or first for view in panel))]
    known = [set(channel.labels or vocabulary) for channel in asked]
    codes = tuple(tuple(c for c, label in enumerate(vocabulary) if label not in labels) for labels in known)
    return codes if any(codes) else ()


def _taking_turns(pictures: Sequence[Picture]) -> list[int]:
    """The places of the pictures, one of each class after the other: a budget that ends early has seen all classes."""
    seen: Counter[str | None] = Counter()
    turns = []
    for place, picture in enumerate(pictures):
        turns.append((seen[picture.truth], place))
        seen[picture.truth] += 1
    return [place for _, place in sorted(turns)]


async def _check_labels(engine: QueryEngine, pictures: Sequence[Picture], vocabulary: Sequence[str]) -> None:
    """Ask about a few pictures first, which tell whether truths and labels are the same words.

    They are drawn at random, since a folder comes sorted by class; none where a truth is known to be a label.
    """
    labelled = [picture for picture in pictures if picture.truth is not None]
    truths = {picture.truth for picture in labelled if picture.truth is not None}
    if not truths.isdisjoint(vocabulary):
        return
    drawn = np.random.default_rng(0).permutation(len(labelled))[: engine.settings.label_check].tolist()
    answered = await engine.labels([labelled[place] for place in drawn])
    if 2 * len(answered) < len(drawn) or not drawn:  # most of them failed, and their own messages say why
        return
    try:
        check_truths(truths, answered)
    except DataError as error:
        raise DataError(
            f"{error}; only the first {len(answered)} pictures were asked about, and their answers are kept in the "
            "ledger, if there is one; --label-check 0 (label_check=0) goes on regardless",
            code=error.code,
        ) from None


def _classes(votes: Votes, pictures: Sequence[Picture]) -> int:
    """How many classes there are at least, if these pictures have the truths that they have."""
    words = {*votes.vocabulary, *(picture.truth for picture in pictures if picture.truth is not None)}
    beyond = any(picture.excluded and words <= set(picture.excluded) for picture in pictures)  # one without a name
    return max(votes.classes, len(words) + beyond)


def labelled_votes(votes: Votes, pictures: Sequence[Picture]) -> LabelledVotes:
    """Votes with what is known of the truths of their pictures, one a vote."""
    votes = replace(votes, classes=_classes(votes, pictures))
    words = [f"not {', '.join(picture.excluded)}" if picture.truth is None else picture.truth for picture in pictures]
    known = {label: code for code, label in enumerate(votes.vocabulary)}
    excluded = [tuple(known.get(label, OUTSIDE) for label in picture.excluded) for picture in pictures]
    return votes.labelled(words, excluded if any(excluded) else (), [picture.probability for picture in pictures])


def similar(rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    """The names of distinct pictures whose thumbnails are almost the same, two and two; pale ones tell too little."""
    from scipy.spatial import KDTree

    names: dict[bytes, list[str]] = {}
    for row in {row.digest: row for row in rows}.values():
        if max(row.thumbnail, default=0) - min(row.thumbnail, default=0) >= CONTRAST:
            names.setdefault(row.thumbnail, []).append(row.name)
    same = list(names.values())
    pairs = [(first, other) for first, *others in same for other in others]
    if len(same) > 1:
        levels = np.array([list(thumbnail) for thumbnail in names])
        _, nearest = KDTree(levels).query(levels, k=[2], p=np.inf, distance_upper_bound=ALIKE)
        links = {(min(i, j), max(i, j)) for i, (j,) in enumerate(nearest) if j < len(same)}
        pairs += [(same[i][0], same[j][0]) for i, j in sorted(links)]
    return tuple(pairs)


async def collect_for(
    engine: QueryEngine, pictures: Sequence[Picture], profile: Profile, policy: Policy | None = None
) -> Collected:
    """The answers about every picture under a profile's panel."""
    profile.check(engine.channels)
    profile.check_scores(engine.settings.scores)
    if profile.pictures:  # a borrowed vocabulary may be of another classifier
        check_truths((p.truth for p in pictures if p.truth is not None), profile.vocabulary)
    policy = policy or Policy.usual(profile)
    return await collect(
        engine, pictures, policy.panel, profile.vocabulary, profile.classes, policy.rounds, policy.screen()
    )


def check_teachable(pictures: Sequence[Picture], least: int = LEAST) -> None:
    """Refuse labelled pictures from which nothing can be learned, before anything is asked about them."""
    crossfit.check_count(len(pictures), least)
    tags = {join_tags(sorted(picture.tags)) for picture in pictures if picture.tags is not None}
    truths = tags | {picture.truth for picture in pictures if picture.truth is not None}
    if len(truths) < 2:
        problem = f"the truth of all {len(pictures)} pictures is {truths.pop()!r}" if truths else "no truth is known"
        raise FitError(f"{problem}; give pictures of two classes", code="labels-one-class")


@dataclass(frozen=True, eq=False)
class Learned:
    """A profile, the votes that taught it, and what else could be asked for how much."""

    profile: Profile
    collected: Collected
    """The answers of all sources that every labelled picture was asked."""
    asked: tuple[ProfileClassifier, ...]
    found: Found
    whole: bool = False
    """Whether only when to stop was open."""

    def again(self, choice: Choice, n_selection: int) -> Learned:
        """The same with another choice; nothing is fitted twice."""
        return learn_sequence(self.collected, self.asked, n_selection, choice, whole=self.whole, held=self.found.held)


def learn(collected: Collected, calibrator: Calibrator, description: str, n_selection: int = 0) -> Profile:
    """The profile of the whole panel that votes and truths teach, and of when to stop early; costs no query.

    The first `n_selection` pictures teach but are not judged, since something was chosen on them already.

    Where some pictures were more likely to be labelled than others, the calibrator learns from all of them: the answers
    about a picture decided that, and it learns the truth given the answers. Figures, guarantees, sets, familiarity and
    drift are about pictures as they come, so they rest on an even sample of them (`LabelledVotes.even`).
    """
    labelled = collected.labelled()
    if isinstance(calibrator, Jury) and len(labelled.panel) > 1:
        asked = ProfileClassifier(
            name=collected.panel.first, description=description, fingerprint=collected.fingerprint
        )
        return learn_sequence(collected, [asked], n_selection, ballot=calibrator.ballot, whole=True).profile
    held_out = crossfit.cross_fit(calibrator, labelled, n_selection=n_selection)
    even = labelled.even()[n_selection:]
    return build(collected, calibrator, description, n_selection, held_out.of_rows(even))


def learn_sequence(
    collected: Collected,
    asked: Sequence[ProfileClassifier],
    n_selection: int = 0,
    choice: Choice = choose,
    ballot: Ballot = "vote",
    whole: bool = False,
    held: HeldOutJuries | None = None,
) -> Learned:
    """The profile of the sequence that is worth its price, from the answers of all these classifiers.

    The choice is repeated without each fold before that fold is judged, so guarantees hold for all stages together.
    `whole` leaves open only when to stop within the panel as it is.
    """
    labelled = collected.labelled()
    held = held or candidates(labelled, sources_of(collected.panel, asked), ballot)
    every = tuple(range(1 + len(labelled.panel)))
    found = find(held, choice, [every] if whole else None)
    places = every if whole else found.places
    chosen, classifiers = _chosen(collected, asked, held, places)
    votes, even = chosen.labelled(), labelled.even()[n_selection:]
    curve = [step.since(n_selection).of_rows(even) for step in held.curve(places)]
    stopped = found.outcome.since(n_selection).of_rows(even)
    others = [stopped] if len(places) > 1 else []
    jury = Jury(ballot=held.ballot)
    profile = build(chosen, jury, classifiers[0].description, n_selection, replace(curve[-1], name=jury.name), *others)
    update: dict[str, object] = {
        "name": classifiers[0].name,
        "others": classifiers[1:],
        "unsayable": votes.unsayable,
        "frontier": points_shown(found),
        "curve": tuple(Result.of(step, intervals=False) for step in curve),
    }
    if others:
        adaptive = _adaptive(_chosen(collected, asked, held, found.places)[0], found, n_selection, stopped)
        update["adaptive"] = adaptive.model_copy(update={"expected": Expected.of(stopped, curve[-1])})
    return Learned(profile.model_copy(update=update), collected, tuple(asked), found, whole)


def points_shown(found: Found) -> tuple[FrontierPoint, ...]:
    """The best points at each price, cheapest first; beside them each classifier alone, and all without stopping."""
    fixed = [point for point in found.points if min(point.sequence.enough, default=NEVER) >= NEVER]
    longest = max(len(point.sequence.sources) for point in fixed)
    beside = [point for point in fixed if len(point.sequence.sources) in (1, longest)]
    shown = {point.sequence: point for point in (*beside, *frontier(found.points), found.point)}
    return tuple(
        FrontierPoint.of(point, point is found.point) for point in sorted(shown.values(), key=lambda point: point.price)
    )


def sources_of(panel: Panel, asked: Sequence[ProfileClassifier]) -> list[Source]:
    """Whose answers the base and the views are, with their prices."""
    prices = {known.name: known.price for known in asked}
    sources = [Source.parse(text, asked[0].name) for text in (BASE, *map(str, panel.views))]
    return [replace(source, price=prices[source.classifier]) for source in sources]


def _chosen(
    collected: Collected, asked: Sequence[ProfileClassifier], held: HeldOutJuries, places: Sequence[int]
) -> tuple[Collected, tuple[ProfileClassifier, ...]]:
    """The answers of some sources, and their classifiers; the one that is asked first is the profile's own."""
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


def _adaptive(chosen: Collected, found: Found, n_selection: int, stopped: Outcome) -> Adaptive:
    """When to stop asking, and how verdicts fare then."""
    votes, sequence = chosen.labelled(), found.sequence
    even = votes.even()
    asked, followed = sequence.follow(found.calibrator, votes)
    views, first = len(votes.panel), int(asked.min()) - 1
    agree = base_tally(votes.under(range(first))).agree[even].tolist()
    bins = [agreement_bin(*pair, views) for pair in zip(agree, (asked[even] - 1).tolist(), strict=True)]
    final = crossfit.outcome(found.calibrator, followed).since(n_selection).of_rows(even[n_selection:])
    return Adaptive(
        panel=str(chosen.panel),
        first=first,
        enough=sequence.enough,
        calibrator=dump(found.calibrator),
        held_out=HeldOut.of(stopped, final),
        agreement_bins=tuple(np.bincount(bins, minlength=(first + 1) * (views + 1)).tolist()),
        answers=AnswerKinds.fit(votes.evenly().under(range(first))),
    )


def build(
    collected: Collected,
    calibrator: Calibrator,
    description: str,
    n_selection: int,
    held_out: Outcome,
    *others: Outcome,
) -> Profile:
    """The profile of a calibrator, with its outcome and those that it is compared with."""
    labelled, described = collected.labelled(), collected.described()
    even = labelled.even()[n_selection:]
    part = labelled.take(slice(n_selection, None)).take(np.flatnonzero(even))
    judged, single = crossfit.baselines(part), None
    if isinstance(calibrator, Jury) and labelled.evidence:
        judged += [own] if (own := crossfit.own_score(part)) else []
        single = calibrator.fit(labelled.under([]))
        judged += [crossfit.one_query(calibrator, labelled, n_selection).of_rows(even)] if labelled.panel else []
    fitted = calibrator.fit(labelled)
    # On some folds scores may have helped; the row is that of the calibrator that is used.
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
        results=tuple(Result.of(outcome) for outcome in (*judged, held_out, *others)),
        held_out=HeldOut.of(held_out, crossfit.outcome(fitted, labelled).since(n_selection).of_rows(even)),
        agreement_bins=tuple(
            np.bincount(base_tally(labelled.evenly()).agree, minlength=len(labelled.panel) + 1).tolist()
        ),
        one_query=dump(single) if single else None,
        scores=_scores(labelled, fitted) if single else "",
        familiarity=None if described is None else Familiarity.fit(described, collected.described_at),
        answers=AnswerKinds.fit(labelled.evenly()),
    )


def _scores(labelled: LabelledVotes, fitted: Calibrator) -> str:
    """Whether the classifier's scores are used and why, for people."""
    if labelled.evidence and (why := useless(labelled.evidence)):
        return f"{why}: not used"
    if not isinstance(fitted, Jury) or fitted.scored is None:
        return "they did not help on held-out folds: not used"
    kind = {"rank": "ranks", "probability": "probabilities"}.get(
        fitted.scored.scale.kind, f"{fitted.scored.scale.kind}s"
    )
    return f"used, as {kind}"
