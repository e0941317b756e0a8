"""Picture → verdict: where all steps meet."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, replace

from secondlook import __version__, fitting
from secondlook.asking import Asker, Unscored
from secondlook.beliefs import Belief, Constant, Naive, dump
from secondlook.errors import DataError, FitError
from secondlook.pictures import Picture
from secondlook.profile import Profile, Result
from secondlook.views import RENDERER, Panel
from secondlook.votes import MISSING, Codes, Row, Votes

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

    def agree(self) -> int:
        """How many views say what the verdict says."""
        return sum(label == self.label for _, label in self.votes)

    def sentence(self) -> str:
        """Why, in words that a person understands."""
        others = Counter(label for _, label in self.votes if label not in (self.label, None))
        said = ", ".join(f"{n} say {label}" if n > 1 else f"one says {label}" for label, n in others.most_common(3))
        asked = sum(label is not None for _, label in self.votes)
        agree = "No view was asked" if not asked else f"{self.agree()} of {asked} views agree"
        changed = f" (the picture itself was called {self.base})" if self.base != self.label else ""
        return (
            f"{agree}{'; ' + said if said else ''}{changed}. Such answers are right {self.confidence:.0%} of the time."
        )


@dataclass(frozen=True, eq=False)
class Polled:
    """The answers about pictures under a panel, and the pictures that have none."""

    votes: Votes
    truths: tuple[str, ...] | None
    """The truth of each picture that has votes; None where not all are known."""
    unscored: tuple[Unscored, ...]
    panel: Panel
    fingerprint: str
    seed: int

    def codes(self) -> Codes:
        """The code of each truth; an error where there is nothing to learn from."""
        if len(self.votes) == 0:
            reason = self.unscored[0].reason if self.unscored else "there are none"
            raise FitError(f"no labelled picture could be scored: {reason}")
        if self.truths is None:
            raise DataError("the truth of every picture is needed; see docs/pictures.md for how to give it")
        return self.votes.codes(self.truths)


async def collect(
    asker: Asker, pictures: Sequence[Picture], panel: Panel, vocabulary: Sequence[str] = (), classes: int | None = None
) -> Polled:
    """Ask about every picture and hold all votes; truths come along where every picture has one."""
    rows: list[Row] = []
    unscored: list[Unscored] = []
    async for row in asker.ask(pictures, panel):
        if isinstance(row, Row):
            rows.append(row)
        else:
            unscored.append(row)
    truths = {picture.name: picture.truth for picture in pictures}
    kept = tuple(truth for row in rows if (truth := truths[row.name]) is not None)
    votes = Votes.collect(rows, tuple(map(str, panel)), vocabulary or asker.classifier.labels or (), classes)
    complete = kept if len(kept) == len(rows) else None
    return Polled(votes, complete, tuple(unscored), panel, asker.classifier.fingerprint, asker.seed)


async def poll(asker: Asker, pictures: Sequence[Picture], profile: Profile) -> Polled:
    """The answers about every picture under a profile's panel."""
    profile.check(asker.classifier.fingerprint)
    return await collect(asker, pictures, profile.views(), profile.vocabulary, profile.classes)


def learn(polled: Polled, belief: Belief, description: str) -> Profile:
    """The profile that votes and truths teach; costs no query."""
    votes, truths = polled.votes, polled.codes()
    held_out = fitting.cross_fit(belief, votes, truths)
    return Profile(
        secondlook=__version__,
        classifier=description,
        fingerprint=polled.fingerprint,
        vocabulary=votes.vocabulary,
        classes=votes.classes,
        panel=str(polled.panel),
        seed=polled.seed,
        renderer=RENDERER,
        belief=dump(belief.fit(votes, truths)),
        pictures=len(votes),
        results=tuple(o.result() for o in (*fitting.baselines(votes, truths), held_out)),
        held_out=held_out.held_out(),
    )


def assess(polled: Polled, profile: Profile) -> list[Result]:
    """How the profile's belief fares on labelled pictures that took no part in fitting, beside the baselines."""
    truths = polled.codes()
    candidates = (Naive(), Constant(accuracy=profile.accuracy()), profile.believer())
    return [fitting.outcome(belief, polled.votes, truths).result() for belief in candidates]


async def look(asker: Asker, pictures: Iterable[Picture], profile: Profile) -> AsyncIterator[Verdict | Unscored]:
    """A verdict for each picture, in their order, or the reason why there is none."""
    profile.check(asker.classifier.fingerprint)
    panel, belief = profile.views(), profile.believer()
    names = tuple(map(str, panel))
    waiting: list[Row | Unscored] = []
    async for row in asker.ask(pictures, panel):
        waiting.append(row)
        if len(waiting) == TOGETHER:
            for verdict in judge(waiting, names, belief, profile):
                yield verdict
            waiting.clear()
    for verdict in judge(waiting, names, belief, profile):
        yield verdict


async def burst(asker: Asker, pictures: Sequence[Picture], profile: Profile) -> Verdict:
    """One verdict for several photos of one thing: the first is the picture, the others are its views."""
    profile.check(asker.classifier.fingerprint)
    rows = [row async for row in asker.ask(pictures, Panel(()))]
    failed = [row for row in rows if isinstance(row, Unscored)]
    if failed:
        raise DataError(f"{failed[0].name}: {failed[0].reason}")
    first, *others = [row for row in rows if isinstance(row, Row)]
    together = Row(first.name, first.base, tuple(row.base for row in others))
    (verdict,) = judge([together], tuple(row.name for row in others), profile.believer(), profile)
    if isinstance(verdict, Unscored):
        raise DataError(f"{verdict.name}: {verdict.reason}")
    return replace(verdict, queries=len(pictures))


def judge(
    rows: Sequence[Row | Unscored], panel: Sequence[str], belief: Belief, profile: Profile
) -> list[Verdict | Unscored]:
    """Verdicts for answered rows, in their order; a row without answers stays as it is."""
    votes = Votes.collect([r for r in rows if isinstance(r, Row)], panel, profile.vocabulary, profile.classes)
    verdicts = iter(_verdicts(votes, belief))
    return [row if isinstance(row, Unscored) else next(verdicts) for row in rows]


def _verdicts(votes: Votes, belief: Belief) -> list[Verdict]:
    if len(votes) == 0:
        return []
    words = votes.vocabulary
    low, high = belief.interval(votes)
    columns = zip(
        votes.names, belief.predict(votes), belief.confidence(votes), low, high, votes.base, votes.views, strict=True
    )
    return [
        Verdict(
            name,
            words[label],
            float(confidence),
            float(min(least, confidence)),
            float(max(most, confidence)),
            words[base],
            tuple((v, None if c == MISSING else words[c]) for v, c in zip(votes.panel, views, strict=True)),
            1 + int((views != MISSING).sum()),
        )
        for name, label, confidence, least, most, base, views in columns
    ]
