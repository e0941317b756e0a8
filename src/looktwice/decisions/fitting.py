"""Labelled pictures → votes → profile."""

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
"""The fewest labelled pictures for cross-validation."""
ALIKE, CONTRAST = 4, 32
"""The largest difference in grey levels between thumbnails of near-duplicates, and the smallest usable contrast."""


@dataclass(frozen=True, eq=False)
class Collected:
    """The answers about pictures under a panel, and the pictures without answers."""

    votes: Votes | LabelledVotes
    """Labelled if every truth is known."""
    unscored: tuple[Unscored, ...]
    panel: Panel
    fingerprint: str
    seed: int
    renames: Mapping[str, str] = field(default_factory=dict)
    """How the description maps the classifier's labels."""
    repeated: int = 0
    """The pictures removed by `distinct`."""
    disputed: tuple[tuple[str, str], ...] = ()
    """Pairs of names of kept and removed pictures with different truths."""
    similar: tuple[tuple[str, str], ...] = ()
    """Pairs of names of near-duplicates, which are similar but not equal."""
    descriptors: Mapping[str, Floats] = field(default_factory=dict, repr=False)
    """Descriptors by digest, if known."""
    working_size: int | None = None
    """The longer side in pixels to which larger pictures were scaled, if it was selected for this classifier."""
    reading: str = ""
    """The reading of the classifier's replies."""
    described_at: WorkingSize | None = None
    """The working size of descriptors and queries."""
    kind: AnswerKind = "label"
    """The kind of answer; for tags, the votes hold all tags of an answer as one string."""

    def distinct(self) -> Collected:
        """Remove copies of pictures, which add no information but would count as evidence."""
        votes = self.votes.distinct()
        disputed = self.votes.disputed() if isinstance(self.votes, LabelledVotes) else ()
        return replace(
            self,
            votes=votes,
            repeated=self.repeated + len(self.votes) - len(votes),
            disputed=(*self.disputed, *disputed),
        )

    def labelled(self) -> LabelledVotes:
        """The labelled votes about distinct pictures; raises an error if there is nothing to learn from."""
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
        """(n, len(NAMES)): descriptors of a uniform subsample of the distinct pictures; None if one is unknown."""
        votes = self.votes.distinct()
        votes = votes.evenly() if isinstance(votes, LabelledVotes) else votes
        known = [self.descriptors.get(digest) for digest in votes.digests]
        found = [row for row in known if row is not None]
        return np.stack(found) if found and len(found) == len(known) else None

    def under(self, columns: Sequence[int]) -> Collected:
        """The answers under some views of the panel, in this order."""
        panel = Panel(tuple(self.panel.views[column] for column in columns))
        return replace(self, votes=self.votes.under(columns), panel=panel)


OnCollected = Callable[[Collected], None]
"""A callback with the answers before fitting: it may warn, save them, or raise."""


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
    """Check that enough answers about labelled pictures are there to learn from.

    A run that was stopped does not fit: its profile would replace a better one.
    """
    if left := [item.name for item in collected.unscored if item.cause is Cause.STOPPED]:
        raise UnscoredError(
            f"no profile was fitted because the run was stopped with {pictures - len(collected.votes):,} of "
            f"{pictures:,} pictures left, such as {left[0]}; do the same again to resume"
        )
    on_collected(collected)
    if (answered := len(collected.labelled())) < LEAST:
        raise UnscoredError(
            f"no profile was fitted: {answered} of {pictures:,} pictures have all their answers, and it takes "
            f"{LEAST}; fix why the others were not scored and repeat; stored answers cost nothing"
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
    """Ask about every picture and collect the votes, labelled if every picture has a truth.

    Nothing is asked if no truth is among the known labels of the classifier. If its labels are unknown, those of a few
    pictures are compared with the truths first.
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
    """The classifiers of a panel, that of the base query first."""
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
    """The codes that the classifiers of the base and of each view cannot return; empty if they can return all."""
    first = panel.first or engine.first.name
    asked = [engine.channels[name] for name in (first, *(classifier_of(view) or first for view in panel))]
    known = [set(channel.labels or vocabulary) for channel in asked]
    codes = tuple(tuple(c for c, label in enumerate(vocabulary) if label not in labels) for labels in known)
    return codes if any(codes) else ()


def _taking_turns(pictures: Sequence[Picture]) -> list[int]:
    """Interleave the classes, so that a budget that ends early covers all of them."""
    seen: Counter[str | None] = Counter()
    turns = []
    for place, picture in enumerate(pictures):
        turns.append((seen[picture.truth], place))
        seen[picture.truth] += 1
    return [place for _, place in sorted(turns)]


async def _check_labels(engine: QueryEngine, pictures: Sequence[Picture], vocabulary: Sequence[str]) -> None:
    """Ask about a few pictures first, to check that truths and labels use the same names.

    They are drawn at random, since folders are sorted by class; none if a truth is known to be a label.
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
    """The smallest number of classes that fits these truths."""
    words = {*votes.vocabulary, *(picture.truth for picture in pictures if picture.truth is not None)}
    beyond = any(picture.excluded and words <= set(picture.excluded) for picture in pictures)  # one without a name
    return max(votes.classes, len(words) + beyond)


def labelled_votes(votes: Votes, pictures: Sequence[Picture]) -> LabelledVotes:
    """Add truths, or excluded labels, to votes."""
    votes = replace(votes, classes=_classes(votes, pictures))
    words = [f"not {', '.join(picture.excluded)}" if picture.truth is None else picture.truth for picture in pictures]
    known = {label: code for code, label in enumerate(votes.vocabulary)}
    excluded = [tuple(known.get(label, OUTSIDE) for label in picture.excluded) for picture in pictures]
    return votes.labelled(words, excluded if any(excluded) else (), [picture.probability for picture in pictures])


def similar(rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    """Pairs of names of near-duplicates by their thumbnails; those with too little contrast are skipped."""
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
    """Collect the answers about every picture under a profile's panel."""
    profile.check(engine.channels)
    profile.check_scores(engine.settings.scores)
    if profile.pictures:  # a borrowed vocabulary may be of another classifier
        check_truths((p.truth for p in pictures if p.truth is not None), profile.vocabulary)
    policy = policy or Policy.usual(profile)
    return await collect(
        engine, pictures, policy.panel, profile.vocabulary, profile.classes, policy.rounds, policy.screen()
    )


def check_teachable(pictures: Sequence[Picture], least: int = LEAST) -> None:
    """Raise an error, before any query, if nothing can be learned from the labelled pictures."""
    crossfit.check_count(len(pictures), least)
    tags = {join_tags(sorted(picture.tags)) for picture in pictures if picture.tags is not None}
    truths = tags | {picture.truth for picture in pictures if picture.truth is not None}
    if len(truths) < 2:
        problem = f"the truth of all {len(pictures)} pictures is {truths.pop()!r}" if truths else "no truth is known"
        raise FitError(f"{problem}; give pictures of two classes", code="labels-one-class")


@dataclass(frozen=True, eq=False)
class Learned:
    """A profile, its votes, and the frontier of loss against price."""

    profile: Profile
    collected: Collected
    """The answers of all sources, for every labelled picture."""
    asked: tuple[ProfileClassifier, ...]
    found: Found
    whole: bool = False
    """Whether the panel was fixed and only early stopping was learned."""

    def again(self, choice: Choice, n_selection: int) -> Learned:
        """Select another point of the frontier, reusing the fits."""
        return learn_sequence(self.collected, self.asked, n_selection, choice, whole=self.whole, held=self.found.held)


def learn(collected: Collected, calibrator: Calibrator, description: str, n_selection: int = 0) -> Profile:
    """Fit a profile of the whole panel, with early stopping, from labelled votes; sends no queries.

    The first `n_selection` pictures are used for fitting only, since something was selected on them.

    If pictures were selected for labelling with unequal probabilities, the calibrator learns from all of them:
    selection depended on the answers alone, and it models the truth given the answers. Figures, guarantees, sets,
    familiarity and drift refer to the population, so they use a uniform subsample (`LabelledVotes.even`).
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
    """Fit a profile of the best sequence for its price, from the answers of all these classifiers.

    The selection is nested in each fold, so guarantees hold for all stages together. With `whole`, the panel is fixed
    and only early stopping is learned.
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
    """The frontier, cheapest first, with each classifier alone and all sources without stopping for comparison."""
    fixed = [point for point in found.points if min(point.sequence.enough, default=NEVER) >= NEVER]
    longest = max(len(point.sequence.sources) for point in fixed)
    beside = [point for point in fixed if len(point.sequence.sources) in (1, longest)]
    shown = {point.sequence: point for point in (*beside, *frontier(found.points), found.point)}
    return tuple(
        FrontierPoint.of(point, point is found.point) for point in sorted(shown.values(), key=lambda point: point.price)
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


def _adaptive(chosen: Collected, found: Found, n_selection: int, stopped: Outcome) -> Adaptive:
    """Early stopping, and the verdicts' held-out results with it."""
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
    """Assemble the profile of a calibrator, with its outcome and those of the baselines."""
    labelled, described = collected.labelled(), collected.described()
    even = labelled.even()[n_selection:]
    part = labelled.take(slice(n_selection, None)).take(np.flatnonzero(even))
    judged, single = crossfit.baselines(part), None
    if isinstance(calibrator, Jury) and labelled.evidence:
        judged += [own] if (own := crossfit.own_score(part)) else []
        single = calibrator.fit(labelled.under([]))
        judged += [crossfit.one_query(calibrator, labelled, n_selection).of_rows(even)] if labelled.panel else []
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
