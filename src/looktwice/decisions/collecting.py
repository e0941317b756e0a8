"""Collect a panel's answers about labelled pictures, with the true labels."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from unicodedata import normalize

import numpy as np

from looktwice.calibration import (
    OUTSIDE,
    Floats,
    LabelledVotes,
    Row,
    Votes,
    check_truths,
    crossfit,
)
from looktwice.classifiers import AnswerKind, reading
from looktwice.decisions.policy import Policy
from looktwice.decisions.profile import (
    Profile,
    ProfileClassifier,
)
from looktwice.engine import NO_SCREEN, Cause, Channel, QueryEngine, Rounds, Screen, Unscored, lacks_budget
from looktwice.errors import ClassifierError, DataError, FitError, UnscoredError
from looktwice.files import join_tags
from looktwice.images import Image, Picture, WorkingSize
from looktwice.views import Panel, classifier_of

LEAST = 2 * crossfit.FOLDS
"""The minimum number of labelled pictures for cross-validation."""
ALIKE, CONTRAST = 4, 32
"""The largest difference in grey levels between thumbnails of near-duplicates, and the smallest usable contrast."""


@dataclass(frozen=True, eq=False)
class Collected:
    """The answers about pictures under a panel, and the pictures without answers."""

    votes: Votes | LabelledVotes
    """Labelled if every true label is known."""
    unscored: tuple[Unscored, ...]
    panel: Panel
    fingerprint: str
    seed: int
    renames: Mapping[str, str] = field(default_factory=dict)
    """How the description maps the classifier's labels."""
    repeated: int = 0
    """The number of pictures removed by `distinct`."""
    disputed: tuple[tuple[str, str], ...] = ()
    """Pairs of names of kept and removed pictures with different true labels."""
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
                "every picture needs a true label; see docs/pictures.md for how to provide them", code="labels-missing"
            )
        self.votes.check()
        return self.votes.distinct()

    def described(self) -> Floats | None:
        """(n, len(NAMES)): descriptors of a uniform subsample of the distinct pictures; None if one is unknown."""
        votes = self.votes.distinct()
        votes = votes.evenly() if isinstance(votes, LabelledVotes) else votes
        known = [self.descriptors.get(digest) for digest in votes.digests]
        descriptors = [row for row in known if row is not None]
        return np.stack(descriptors) if descriptors and len(descriptors) == len(known) else None

    def under(self, columns: Sequence[int]) -> Collected:
        """The answers under some views of the panel, in the given order."""
        panel = Panel(tuple(self.panel.views[column] for column in columns))
        return replace(self, votes=self.votes.under(columns), panel=panel)


OnCollected = Callable[[Collected], None]
"""A callback with the answers before fitting: it may warn, save them, or raise."""


def warn(collected: Collected) -> None:
    """Warn about pictures without answers, and about copies of a picture with different true labels."""
    if collected.unscored:
        first, total = collected.unscored[0], len(collected.votes) + len(collected.unscored)
        problem = f"{len(collected.unscored)} of {total} pictures were not scored, such as {first.name}"
        warnings.warn(f"{problem}: {first.message}", stacklevel=2)
    if disputed := collected.distinct().disputed:
        one, other = disputed[0]
        same = f"{len(disputed)} pictures are duplicates of others but have a different true label"
        warnings.warn(f"{same}, such as {other} and {one}; the first label counts", stacklevel=2)


def check_learnable(collected: Collected, pictures: int, on_collected: OnCollected) -> Collected:
    """Check that there are enough answers about labelled pictures to learn from.

    A stopped run does not fit a profile, because that profile could replace a better one.
    """
    if left := [item.name for item in collected.unscored if item.cause is Cause.STOPPED]:
        raise UnscoredError(
            f"no profile was fitted because the run was stopped with {pictures - len(collected.votes):,} of "
            f"{pictures:,} pictures left, such as {left[0]}; run again to resume"
        )
    on_collected(collected)
    if (answered := len(collected.labelled())) < LEAST:
        raise UnscoredError(
            f"no profile was fitted: {answered} of {pictures:,} pictures have all their answers, but at least "
            f"{LEAST} are needed; correct what prevented the other answers and run again; stored answers cost nothing"
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
    """Ask about every picture and collect the votes, labelled if every picture has a true label.

    No query is sent if no true label is among the known labels of the classifier. If the classifier's labels are
    unknown, its answers about a few pictures are compared with the true labels first.
    """
    channels = _asked(engine, panel)
    known = tuple(dict.fromkeys(label for channel in channels for label in channel.labels or ()))
    for channel in channels:
        await _check_labels(engine, channel, pictures, vocabulary)
    screen = replace(screen, describe=screen.describe or Image.described, thumbnails=True)
    order = _taking_turns(pictures)
    in_turn = [row async for row in engine.ask([pictures[place] for place in order], panel, rounds, screen)]
    in_order = [affordable(row) for _, row in sorted(zip(order, in_turn, strict=True), key=lambda one: one[0])]
    rows = [row for row in in_order if isinstance(row, Row)]
    # By their order and not by name, which pictures of two folders may share.
    asked = [picture for picture, row in zip(pictures, in_order, strict=True) if isinstance(row, Row)]
    kept = [picture for picture in asked if picture.truth is not None or picture.excluded]
    votes = Votes.collect(rows, tuple(map(str, panel)), vocabulary or known, classes)
    silent = _unsayable(engine, panel, votes.vocabulary) if len(channels) > 1 else ()
    votes = replace(votes, classes=_classes(votes, kept), unsayable=silent)
    votes = labelled_votes(votes, kept) if len(kept) == len(rows) else votes
    return collected(engine, panel, in_order, votes)


def collected(
    engine: QueryEngine, panel: Panel, rows: Sequence[Row | Unscored], votes: Votes, kind: AnswerKind = "label"
) -> Collected:
    """Combine the votes of these rows with what describes their pictures and classifiers."""
    channel = _asked(engine, panel)[0]
    first, answered = described(channel), [row for row in rows if isinstance(row, Row)]
    return Collected(
        votes,
        tuple(row for row in rows if isinstance(row, Unscored)),
        panel,
        first.fingerprint,
        engine.settings.seed,
        first.renames,
        similar=similar(answered),
        descriptors={row.digest: row.descriptor for row in answered if row.descriptor is not None},
        working_size=first.working_size,
        reading=first.reading,
        described_at=channel.settings.limits.working_size,
        kind=kind,
    )


def affordable(row: Row | Unscored) -> Row | Unscored:
    """Return the row, or `Unscored` if the budget did not cover all queries: missing answers carry no information."""
    why = lacks_budget(row) if isinstance(row, Row) else None
    return row if why is None else Unscored(row.name, Cause.BUDGET, why)


def _asked(engine: QueryEngine, panel: Panel) -> list[Channel]:
    """The classifiers of a panel, with the one of the base query first."""
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


async def _check_labels(
    engine: QueryEngine, channel: Channel, pictures: Sequence[Picture], vocabulary: Sequence[str]
) -> None:
    """Check that true labels and the labels of a classifier use the same names, by its answers about a few pictures if
    its labels are unknown.

    The pictures are drawn at random, since folders are sorted by class. No query is needed if a true label is known to
    be a label of the classifier.
    """
    labelled = [picture for picture in pictures if picture.truth is not None]
    truths = {picture.truth for picture in labelled if picture.truth is not None}
    who = f"{channel.name}: " if len(engine.channels) > 1 else ""
    if not truths.isdisjoint((*(channel.labels or ()), *vocabulary)):
        return
    answered, asked = list(channel.labels or ()), ""
    if not answered:
        drawn = np.random.default_rng(0).permutation(len(labelled))[: channel.settings.label_check].tolist()
        try:
            answered = await engine.labels([labelled[place] for place in drawn], channel.name)
        except ClassifierError:
            if len(engine.channels) == 1:
                raise
            return  # the other classifiers go on
        asked = (
            f"; only the first {len(answered)} pictures were queried; their answers are kept in the ledger, if there "
            "is a ledger; --label-check 0 (label_check=0) continues regardless"
        )
        if 2 * len(answered) < len(drawn):  # most queries failed, and their messages give the reason
            return
    try:
        check_truths(truths, answered)
    except DataError as error:
        raise DataError(f"{who}{error}{asked}", code=error.code) from None


def _classes(votes: Votes, pictures: Sequence[Picture]) -> int:
    """The smallest number of classes consistent with these true labels."""
    words = {*votes.vocabulary, *(picture.truth for picture in pictures if picture.truth is not None)}
    beyond = any(picture.excluded and words <= set(picture.excluded) for picture in pictures)  # an unnamed class
    return max(votes.classes, len(words) + beyond)


def labelled_votes(votes: Votes, pictures: Sequence[Picture]) -> LabelledVotes:
    """Add true or excluded labels to votes."""
    votes = replace(votes, classes=_classes(votes, pictures))
    words = [f"not {', '.join(picture.excluded)}" if picture.truth is None else picture.truth for picture in pictures]
    known = {label: code for code, label in enumerate(votes.vocabulary)}
    excluded = [tuple(known.get(label, OUTSIDE) for label in picture.excluded) for picture in pictures]
    return votes.labelled(words, excluded if any(excluded) else (), [picture.probability for picture in pictures])


def similar(rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    """Pairs of names of near-duplicates by their thumbnails; thumbnails with too little contrast are skipped."""
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
    if profile.pictures:  # a borrowed vocabulary may belong to another classifier
        check_truths((p.truth for p in pictures if p.truth is not None), profile.vocabulary)
    policy = policy or Policy.usual(profile)
    return await collect(
        engine, pictures, policy.panel, profile.vocabulary, profile.classes, policy.rounds, policy.screen()
    )


def check_teachable(pictures: Sequence[Picture], least: int = LEAST) -> None:
    """Raise an error, before any query, if the labelled pictures cannot be used for fitting."""
    crossfit.check_count(len(pictures), least)
    tags = {join_tags(sorted(picture.tags)) for picture in pictures if picture.tags is not None}
    truths = tags | {picture.truth for picture in pictures if picture.truth is not None}
    if len(truths) < 2:
        problem = f"all {len(pictures)} pictures are labelled {truths.pop()!r}" if truths else "no true label is known"
        raise FitError(f"{problem}; give pictures of two classes", code="labels-one-class")


@dataclass(frozen=True)
class LabelMap:
    """The correspondence between a classifier's labels and the true labels."""

    same: tuple[str, ...]
    """Labels that equal a true label."""
    names: dict[str, str]
    """Labels that differ from exactly one true label only in case, spaces, hyphens, slashes or Unicode form."""
    unmatched: tuple[str, ...]
    """Labels that match no true label, or more than one."""
    unsaid: tuple[str, ...]
    """True labels to which no label of the classifier was matched."""


def folded(label: str) -> str:
    """The normalised form of a label.

    >>> folded("New  York"), folded("ｎｅｗ_york"), folded("T-shirt/top")
    ('new_york', 'new_york', 't_shirt_top')
    """
    return re.sub(r"[\s/_-]+", "_", normalize("NFKC", normalize("NFKC", label).casefold()).strip())


def propose(labels: Iterable[str], truths: Iterable[str]) -> LabelMap:
    """Propose pairs of classifier labels and true labels; two labels may match the same true label.

    >>> propose(["Tabby cat", "Dog", "bird"], ["tabby_cat", "dog", "fish"]).names
    {'Dog': 'dog', 'Tabby cat': 'tabby_cat'}
    """
    said, true = sorted(set(labels)), sorted(set(truths))
    alike: dict[str, list[str]] = {}
    for truth in true:
        alike.setdefault(folded(truth), []).append(truth)
    same = [label for label in said if label in true]
    options = {label: alike.get(folded(label), []) for label in said if label not in true}
    names = {label: truths_alike[0] for label, truths_alike in options.items() if len(truths_alike) == 1}
    meant = {*same, *names.values()}
    return LabelMap(
        tuple(same),
        names,
        tuple(label for label in options if label not in names),
        tuple(truth for truth in true if truth not in meant),
    )
