"""Votes with truths → profile: asking about labelled pictures, and what their votes teach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from looktwice import __version__
from looktwice.asking.asker import Asker, Rounds
from looktwice.asking.outcome import Unscored
from looktwice.calibration import crossfit
from looktwice.calibration.base import Belief
from looktwice.calibration.calibrators import dump
from looktwice.calibration.crossfit import Outcome
from looktwice.calibration.jury import Jury, Prefixes
from looktwice.calibration.votes import LabelledVotes, Row, Votes, base_tally, check_truths
from looktwice.errors import DataError, FitError, UnscoredError
from looktwice.pictures.collection import Picture
from looktwice.verdicts import risk, stopping
from looktwice.verdicts.policy import NEVER, Practice, stopped_kind
from looktwice.verdicts.profile import Adaptive, HeldOut, Profile, Result
from looktwice.verdicts.stopping import Aim, SameDecision, Thrift
from looktwice.views import Panel, renderer


@dataclass(frozen=True, eq=False)
class Polled:
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

    def distinct(self) -> Polled:
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
            raise FitError("there is no labelled picture to learn from")
        if not isinstance(self.votes, LabelledVotes):
            raise DataError("the truth of every picture is needed; see docs/pictures.md for how to give it")
        self.votes.check()
        return self.votes.distinct()

    def under(self, columns: Sequence[int]) -> Polled:
        """The same under some views of the panel, in this order."""
        panel = Panel(tuple(self.panel.views[column] for column in columns))
        return replace(self, votes=self.votes.under(columns), panel=panel)


async def collect(
    asker: Asker,
    pictures: Sequence[Picture],
    panel: Panel,
    vocabulary: Sequence[str] = (),
    classes: int | None = None,
    rounds: Rounds | None = None,
) -> Polled:
    """Ask about every picture and hold all votes, labelled if every picture has a truth.

    Nothing is asked if none of the truths is a label that the classifier is known to give.
    """
    truths, known = {picture.name: picture.truth for picture in pictures}, asker.classifier.labels or ()
    if known:
        check_truths(filter(None, truths.values()), (*known, *vocabulary))
    rows: list[Row] = []
    unscored: list[Unscored] = []
    async for row in asker.ask(pictures, panel, rounds):
        if isinstance(row, Row):
            rows.append(row)
        else:
            unscored.append(row)
    kept = [truth for row in rows if (truth := truths[row.name]) is not None]
    votes = Votes.collect(rows, tuple(map(str, panel)), vocabulary or known, classes)
    votes = replace(votes, classes=max(votes.classes, len({*votes.vocabulary, *kept})))
    votes = votes.labelled(kept) if len(kept) == len(rows) else votes
    return Polled(votes, tuple(unscored), panel, asker.classifier.fingerprint, asker.seed, asker.names.renames)


async def poll(asker: Asker, pictures: Sequence[Picture], profile: Profile, practice: Practice | None = None) -> Polled:
    """The answers about every picture under a profile's panel."""
    profile.check(asker.classifier.fingerprint, asker.names.renames)
    if profile.pictures:  # a borrowed vocabulary may be of another classifier
        check_truths((p.truth for p in pictures if p.truth is not None), profile.vocabulary)
    practice = practice or Practice.whole(profile)
    return await collect(asker, pictures, practice.panel, profile.vocabulary, profile.classes, practice.rounds)


def check_teachable(pictures: Sequence[Picture], least: int = 2 * crossfit.FOLDS) -> None:
    """Refuse labelled pictures from which nothing can be learned, before anything is asked about them."""
    crossfit.check_count(len(pictures), least)
    truths = {picture.truth for picture in pictures}
    if len(truths) < 2:
        raise FitError(f"the truth of all {len(pictures)} pictures is {truths.pop()!r}; give pictures of two classes")


def learn(
    polled: Polled,
    belief: Belief,
    description: str,
    teachers: int = 0,
    fixed: int | None = None,
    max_error: float | None = None,
) -> Profile:
    """The profile that votes and truths teach; costs no query.

    The first `teachers` pictures teach but are not judged, since something was chosen on them already. If the belief
    is a jury, the profile's own panel has `fixed` views, by default all. If fewer, they are the first ones in the order
    that suits these pictures best, and the others are for pictures that stay unsure. Early stopping aims at the Brier
    score of the first `fixed` views as they were given, or with `max_error` at the same decisions.
    """
    labelled = polled.labelled()
    if not isinstance(belief, Jury) or len(labelled.panel) < 2:
        held_out = crossfit.cross_fit(belief, labelled, teachers=teachers)
        return _profile(polled, belief, description, teachers, held_out)
    views = len(labelled.panel)
    own = views if fixed is None else fixed
    if own < views:
        order, trials = stopping.order(belief, labelled, own, teachers=teachers)
        polled = polled.under(order)
    else:
        trials = stopping.trials(belief, labelled, teachers=teachers)
    steps = stopping.steps(trials)
    aim = _aim(steps[own], own, max_error)
    price = stopping.price(trials, aim)
    stopped = stopping.stopped(trials, aim, price)
    profile = _profile(polled.under(range(own)), belief, description, teachers, steps[own], stopped)
    adaptive = _adaptive(belief, polled, teachers, aim, price, stopped)
    curve = tuple(Result.point(step) for step in steps)
    return profile.model_copy(update={"curve": curve, "adaptive": adaptive, "renderer": renderer(polled.panel)})


def _aim(held_out: Outcome, fixed: int, max_error: float | None) -> Aim:
    if max_error is None:
        return Thrift(fixed)
    threshold = risk.threshold(held_out.confidence, held_out.correct, max_error)
    return SameDecision(NEVER if threshold is None else threshold)


def _adaptive(belief: Jury, polled: Polled, teachers: int, aim: Aim, price: float, stopped: Outcome) -> Adaptive:
    labelled = polled.labelled()
    prefixes = Prefixes(ballot=belief.ballot).fit(labelled)
    growth = stopping.grow(prefixes.seated(), labelled)
    rule = stopping.rule(growth, aim, price)
    asked = rule.asked(growth.confidence())
    first, views = int(asked.min()), len(labelled.panel)
    agree = base_tally(labelled.under(range(first))).agree
    kinds = [stopped_kind(*pair, views) for pair in zip(agree.tolist(), asked.tolist(), strict=True)]
    return Adaptive(
        panel=str(polled.panel),
        first=first,
        low=rule.low,
        high=rule.high,
        belief=dump(prefixes),
        held_out=HeldOut.of(stopped, growth.stopped(rule).since(teachers)),
        kinds=tuple(np.bincount(kinds, minlength=(first + 1) * (views + 1)).tolist()),
    )


def _profile(
    polled: Polled, belief: Belief, description: str, teachers: int, held_out: Outcome, *others: Outcome
) -> Profile:
    labelled = polled.labelled()
    judged = crossfit.baselines(labelled.take(slice(teachers, None)))
    fitted = belief.fit(labelled)
    return Profile(
        looktwice=__version__,
        classifier=description,
        fingerprint=polled.fingerprint,
        renames=dict(polled.renames),
        vocabulary=labelled.vocabulary,
        classes=labelled.classes,
        panel=str(polled.panel),
        seed=polled.seed,
        renderer=renderer(polled.panel),
        belief=dump(fitted),
        pictures=len(labelled),
        results=tuple(Result.of(outcome) for outcome in (*judged, held_out, *others)),
        held_out=HeldOut.of(held_out, crossfit.outcome(fitted, labelled).since(teachers)),
        kinds=_kinds(labelled),
    )


def _kinds(votes: Votes) -> tuple[int, ...]:
    """How many pictures had 0, 1 … views on the side of the base label."""
    return tuple(np.bincount(base_tally(votes).agree, minlength=len(votes.panel) + 1).tolist())
