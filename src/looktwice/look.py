"""Picture → verdict: where all steps meet."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from looktwice import __version__, decisions, explaining, figures, fitting, metrics, notebook
from looktwice.asking import Asker, Rounds
from looktwice.beliefs import Belief, Constant, Naive, dump
from looktwice.errors import DataError, FitError, UnscoredError
from looktwice.fitting import Aim, Outcome, SameDecision, Thrift
from looktwice.jury import Jury, Prefixes
from looktwice.notebook import Drawing
from looktwice.outcome import Unscored
from looktwice.pictures import Picture
from looktwice.practice import NEVER, Practice, stopped_kind
from looktwice.profile import Adaptive, Profile, Result, results_html
from looktwice.views import Panel, renderer
from looktwice.votes import MISSING, LabelledVotes, Row, Votes, base_tally, check_truths

if TYPE_CHECKING:
    import pandas as pd

ALIKE, CONTRAST = 4, 32
"""Grey levels by which thumbnails of near-duplicates differ at most, and which one spans at least to tell anything."""
TOGETHER = 256
"""Pictures whose verdicts are computed at once."""


@dataclass(frozen=True)
class Verdict:
    """What to think of one picture."""

    name: str
    label: str
    confidence: float
    """The probability that the label is right, in [0, 1]."""
    low: float
    high: float
    """The 95 % interval of the confidence, for the views asked being only some of many."""
    base: str
    """What the classifier said about the picture itself."""
    votes: tuple[tuple[str, str | None], ...]
    """Each view and its label."""
    queries: int
    decision: Literal["accept", "review"] | None = None
    """What to do with the answer, where a promise was asked for."""
    prediction_set: tuple[str | None, ...] | None = None
    """The labels that it may have, the most probable first, where sets were asked for; None is any other label."""
    digest: str = ""
    """Of the pixels that it is about; empty where they are those of several photos."""

    def agree(self) -> int:
        """How many views say what the verdict says."""
        return sum(label == self.label for _, label in self.votes)

    def sentence(self) -> str:
        """Why, in words that a person understands."""
        return explaining.sentence(self.label, self.base, self.confidence, self.votes)

    def to_frame(self) -> pd.DataFrame:
        """Each view and its label, as a frame of pandas."""
        return notebook.frame({"view": view, "label": label} for view, label in self.votes)

    def _repr_html_(self) -> str:
        title = f"{self.name}: {self.label}, {explaining.percent(self.confidence)}. {self.sentence()}"
        return notebook.table(title, ["view", "label"], self.votes)


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
    similar: tuple[tuple[str, str], ...] = ()
    """The names of pictures that are no copies of each other but look almost the same, two and two."""

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
    who, renames = asker.classifier.fingerprint, asker.names.renames
    return Polled(votes, tuple(unscored), panel, who, asker.seed, renames, similar=_similar(rows))


def _similar(rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
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


async def poll(asker: Asker, pictures: Sequence[Picture], profile: Profile, practice: Practice | None = None) -> Polled:
    """The answers about every picture under a profile's panel."""
    profile.check(asker.classifier.fingerprint, asker.names.renames)
    if profile.pictures:  # a borrowed vocabulary may be of another classifier
        check_truths((p.truth for p in pictures if p.truth is not None), profile.vocabulary)
    practice = practice or Practice.whole(profile)
    return await collect(asker, pictures, practice.panel, profile.vocabulary, profile.classes, practice.rounds)


def check_teachable(pictures: Sequence[Picture], least: int = 2 * fitting.FOLDS) -> None:
    """Refuse labelled pictures from which nothing can be learned, before anything is asked about them."""
    fitting.check_count(len(pictures), least)
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
        held_out = fitting.cross_fit(belief, labelled, teachers=teachers)
        return _profile(polled, belief, description, teachers, held_out)
    views = len(labelled.panel)
    own = views if fixed is None else fixed
    if own < views:
        order, trials = fitting.order(belief, labelled, own, teachers=teachers)
        polled = polled.under(order)
    else:
        trials = fitting.trials(belief, labelled, teachers=teachers)
    steps = fitting.steps(trials)
    aim = _aim(steps[own], own, max_error)
    price = fitting.price(trials, aim)
    stopped = fitting.stopped(trials, aim, price)
    profile = _profile(polled.under(range(own)), belief, description, teachers, steps[own], stopped)
    adaptive = _adaptive(belief, polled, teachers, aim, price, stopped)
    curve = tuple(step.point() for step in steps)
    return profile.model_copy(update={"curve": curve, "adaptive": adaptive, "renderer": renderer(polled.panel)})


def _aim(held_out: Outcome, fixed: int, max_error: float | None) -> Aim:
    if max_error is None:
        return Thrift(fixed)
    threshold = decisions.threshold(held_out.confidence, held_out.correct, max_error)
    return SameDecision(NEVER if threshold is None else threshold)


def _adaptive(belief: Jury, polled: Polled, teachers: int, aim: Aim, price: float, stopped: Outcome) -> Adaptive:
    labelled = polled.labelled()
    prefixes = Prefixes(ballot=belief.ballot).fit(labelled)
    growth = fitting.grow(prefixes.seated(), labelled)
    rule = fitting.rule(growth, aim, price)
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
        held_out=stopped.held_out(growth.stopped(rule).since(teachers)),
        kinds=tuple(np.bincount(kinds, minlength=(first + 1) * (views + 1)).tolist()),
    )


def _profile(
    polled: Polled, belief: Belief, description: str, teachers: int, held_out: Outcome, *others: Outcome
) -> Profile:
    labelled = polled.labelled()
    judged = fitting.baselines(labelled.take(slice(teachers, None)))
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
        results=tuple(outcome.result() for outcome in (*judged, held_out, *others)),
        held_out=held_out.held_out(fitting.outcome(fitted, labelled).since(teachers)),
        kinds=_kinds(labelled),
    )


def _kinds(votes: Votes) -> tuple[int, ...]:
    """How many pictures had 0, 1 … views on the side of the base label."""
    return tuple(np.bincount(base_tally(votes).agree, minlength=len(votes.panel) + 1).tolist())


def assess(polled: Polled, profile: Profile, practice: Practice | None = None) -> list[Result]:
    """How a profile fares on labelled pictures that took no part in fitting, beside the baselines."""
    labelled = polled.labelled()
    belief = (practice or Practice.whole(profile)).belief
    name = fitting.ADAPTIVE if isinstance(belief, Prefixes) else belief.name
    constant = [Constant(accuracy=profile.accuracy())] if profile.results else []
    plain = [fitting.outcome(each, labelled) for each in (Naive(), *constant)]
    return [outcome.result() for outcome in (*plain, fitting.outcome(belief, labelled, name))]


@dataclass(frozen=True)
class Promises:
    """What became of promises on labelled pictures; None where none was asked for."""

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


def promises(polled: Polled, practice: Practice) -> Promises:
    """How the promises of a practice hold on labelled pictures that took no part in fitting."""
    votes, found = polled.labelled(), Promises()
    if practice.accept is not None:
        accepted = practice.belief.confidence(votes) >= practice.accept
        wrong = (practice.belief.predict(votes) != votes.truths)[accepted]
        found = replace(found, accepted=float(accepted.mean()), wrong=float(wrong.mean()) if len(wrong) else None)
    if practice.sets is not None:
        distribution = practice.belief.distribution(votes)
        sets = practice.sets.sets(distribution)
        covered, size = sets.hold(distribution, votes.truths).mean(), sets.sizes().mean()
        found = replace(found, covered=float(covered), options=float(size))
    return found


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How the verdicts of a profile fare on labelled pictures that took no part in fitting."""

    profile: Profile
    practice: Practice
    polled: Polled
    results: tuple[Result, ...]
    """The profile's belief beside full trust and constant trust."""
    promises: Promises
    outcome: Outcome
    """Label, confidence and correctness of every distinct picture."""

    def to_frame(self) -> pd.DataFrame:
        """One picture a row: its truth, its verdict, and whether that was right."""
        votes = self.polled.labelled()
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
        accept = self.practice.accept
        curve = metrics.risk_coverage(self.outcome.confidence, self.outcome.correct)
        return Drawing(figures.risk_coverage_svg(curve, None if accept == NEVER else accept))

    def _repr_html_(self) -> str:
        title = f"On {len(self.outcome.label)} pictures that took no part in fitting. {' '.join(self.promises.lines())}"
        return results_html(title, self.results)


def evaluation(polled: Polled, profile: Profile, practice: Practice) -> Evaluation:
    """How verdicts fare on these labelled pictures; costs no query."""
    outcome = fitting.outcome(practice.belief, polled.labelled())
    results = tuple(assess(polled, profile, practice))
    return Evaluation(profile, practice, polled, results, promises(polled, practice), outcome)


async def look(
    asker: Asker, pictures: Iterable[Picture], profile: Profile, practice: Practice | None = None
) -> AsyncGenerator[Verdict | Unscored]:
    """A verdict for each picture, in their order, or the reason why there is none."""
    profile.check(asker.classifier.fingerprint, asker.names.renames)
    practice = practice or Practice.whole(profile)
    names = tuple(map(str, practice.panel))
    waiting: list[Row | Unscored] = []
    async with aclosing(asker.ask(pictures, practice.panel, practice.rounds)) as rows:
        async for row in rows:
            waiting.append(row)
            if len(waiting) == TOGETHER:
                for verdict in judge(waiting, names, profile, practice):
                    yield verdict
                waiting.clear()
    for verdict in judge(waiting, names, profile, practice):
        yield verdict


async def burst(asker: Asker, pictures: Sequence[Picture], profile: Profile) -> Verdict | Unscored:
    """One verdict for several photos of one thing: the first is the picture, the others are its views.

    Photos are none of the panel's views, so a jury gives each of them the mean weight of those.
    """
    profile.check(asker.classifier.fingerprint, asker.names.renames)
    rows = [row async for row in asker.ask(pictures, Panel(()))]
    if failed := next((row for row in rows if isinstance(row, Unscored)), None):
        return failed
    first, *others = [row for row in rows if isinstance(row, Row)]
    together = Row(first.name, first.base, tuple(row.base for row in others))
    practice = replace(Practice.whole(profile), belief=_burst_belief(profile, len(others)))
    (verdict,) = judge([together], tuple(row.name for row in others), profile, practice)
    return verdict if isinstance(verdict, Unscored) else replace(verdict, queries=len(pictures))


def _burst_belief(profile: Profile, photos: int) -> Belief:
    belief = profile.adaptive.believer() if profile.adaptive else profile.believer()
    return belief.pooled(photos) if isinstance(belief, Jury | Prefixes) else belief


def judge(
    rows: Sequence[Row | Unscored], panel: Sequence[str], profile: Profile, practice: Practice
) -> list[Verdict | Unscored]:
    """Verdicts for answered rows, in their order; a row without answers stays as it is."""
    votes = Votes.collect([r for r in rows if isinstance(r, Row)], panel, profile.vocabulary, profile.classes)
    verdicts = iter(_verdicts(votes, practice))
    return [row if isinstance(row, Unscored) else next(verdicts) for row in rows]


def _verdicts(votes: Votes, practice: Practice) -> list[Verdict]:
    if len(votes) == 0:
        return []
    belief, words = practice.belief, votes.vocabulary
    low, high = belief.interval(votes)
    label, confidence = belief.predict(votes), belief.confidence(votes)
    digests = votes.digests or ("",) * len(votes)
    columns = zip(votes.names, label, confidence, low, high, votes.base, votes.views, digests, strict=True)
    verdicts = [
        Verdict(
            name,
            words[label],
            float(confidence),
            float(min(least, confidence)),
            float(max(most, confidence)),
            words[base],
            tuple((v, None if c == MISSING else words[c]) for v, c in zip(votes.panel, views, strict=True)),
            1 + int((views != MISSING).sum()),
            digest=digest,
        )
        for name, label, confidence, least, most, base, views, digest in columns
    ]
    return _with_sets([_decided(verdict, practice.accept) for verdict in verdicts], votes, practice)


def _decided(verdict: Verdict, accept: float | None) -> Verdict:
    if accept is None:
        return verdict
    return replace(verdict, decision="accept" if verdict.confidence >= accept else "review")


def _with_sets(verdicts: list[Verdict], votes: Votes, practice: Practice) -> list[Verdict]:
    """The verdicts with the labels that each picture may have."""
    if practice.sets is None:
        return verdicts
    distribution = practice.belief.distribution(votes)
    sets = practice.sets.sets(distribution)
    order = np.argsort(-distribution.named, axis=1, kind="stable")
    labels = np.take_along_axis(sets.labels, order, axis=1)
    words: list[tuple[str | None, ...]] = [
        (*(votes.vocabulary[code] for code in row if code != MISSING), *([None] if other else []))
        for row, other in zip(labels, sets.other, strict=True)
    ]
    return [replace(verdict, prediction_set=labels) for verdict, labels in zip(verdicts, words, strict=True)]
