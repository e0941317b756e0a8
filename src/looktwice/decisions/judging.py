"""Picture → verdict, where all steps meet, and why a verdict is what it is, in words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Literal

import numpy as np

from looktwice.calibration.conformal import draws
from looktwice.calibration.crossfit import Evidence
from looktwice.calibration.jury import Jury, Prefixes
from looktwice.calibration.votes import MISSING, Row, Votes
from looktwice.decisions.policy import Policy
from looktwice.decisions.profile import Profile
from looktwice.engine.engine import QueryEngine
from looktwice.engine.outcome import Cause, Unscored
from looktwice.engine.query import OnAnswer, Screen
from looktwice.errors import ViewError
from looktwice.images.collection import Picture
from looktwice.plots import notebook
from looktwice.views import Panel, parse

if TYPE_CHECKING:
    import pandas as pd

Decision = Literal["accept", "review"]
MOST_LABELS = 3
"""Other labels that a sentence names."""


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
    decision: Decision | None = None
    """What to do with the answer, where a guarantee was asked for or the picture is unfamiliar."""
    prediction_set: tuple[str | None, ...] | None = None
    """The labels that it may have, the most probable first, where sets were asked for; None is any other label."""
    familiarity: float | None = None
    """How much the picture and the answers about it are like the labelled ones: a p-value, at most 0.01 for one in a
    hundred pictures that are. None where the profile cannot tell."""
    unfamiliar_because: str | None = None
    """What stands out about a picture that is not like the labelled ones, so that the confidence means nothing."""
    digest: str = ""
    """Of the pixels that it is about; empty where they are those of several photos."""
    evidence: Evidence = "labels"
    """What the confidence rests on: labels alone, or the classifier's scores too."""
    score: float | None = None
    """The classifier's own score of its answer about the picture itself, as it came."""
    pixels: float | None = None
    """What the pixels alone tell of the familiarity: a p-value, by which a shift of many pictures is seen."""
    held: bool = False
    """Whether it must not be accepted, whatever the decision, because the pictures have changed since the fit."""

    def __str__(self) -> str:
        summary = f"{self.name}: {self.label}, {percent(self.confidence)}"
        return f"{summary}, {self.decision}" if self.decision else summary

    def agree(self) -> int:
        """How many views say what the verdict says."""
        return sum(label == self.label for _, label in self.votes)

    def sentence(self) -> str:
        """Why, in words that a person understands."""
        score = self.score if self.evidence == "scores" else None
        return sentence(self.label, self.base, self.confidence, self.votes, score, self.unfamiliar_because is None)

    def to_dict(self) -> dict[str, object]:
        """The verdict as JSON: the one schema of the command line, the service and files, which have parts of it.

        Only `pixels`, of interest to a `Monitor` alone, is left out.
        """
        fields = {name: value for name, value in vars(self).items() if name != "pixels"}
        return fields | {
            "votes": [{"view": view, "label": label} for view, label in self.votes],
            "prediction_set": None if self.prediction_set is None else list(self.prediction_set),
            "agree": self.agree(),
            "sentence": self.sentence(),
        }

    def to_frame(self) -> pd.DataFrame:
        """Each view and its label, as a frame of pandas."""
        return notebook.frame({"view": view, "label": label} for view, label in self.votes)

    def _repr_html_(self) -> str:
        title = f"{self.name}: {self.label}, {percent(self.confidence)}. {self.sentence()}"
        return notebook.table(title, ["view", "label"], self.votes)


def is_unfamiliar(verdict: Verdict | Unscored) -> bool:
    """Whether the picture is not like the labelled ones, be it scored all the same or not."""
    if isinstance(verdict, Unscored):
        return verdict.cause is Cause.UNFAMILIAR
    return verdict.unfamiliar_because is not None


async def look(
    engine: QueryEngine,
    pictures: Iterable[Picture],
    profile: Profile,
    policy: Policy | None = None,
    on_answer: OnAnswer | None = None,
    judging: Judging | None = None,
) -> AsyncGenerator[Verdict | Unscored]:
    """A verdict for each picture, in their order, or the reason why there is none.

    Callers that share a `judging` of the same profile and policy have their pictures judged together.
    """
    profile.check(engine.classifier)
    profile.check_scores(engine.settings.scores)
    policy = policy or Policy.full_panel(profile)
    judging = judging or Judging(profile, policy)
    asked = engine.ask_ready(pictures, policy.panel, policy.rounds, policy.screen(), on_answer=on_answer)
    async with aclosing(asked) as groups:
        async for rows in groups:
            for verdict in await judging.verdicts(rows):
                yield verdict


async def burst(
    engine: QueryEngine, pictures: Sequence[Picture], profile: Profile, on_answer: OnAnswer | None = None
) -> Verdict | Unscored:
    """One verdict for several photos of one thing: the first is the picture, the others are its views.

    Photos are none of the panel's views, so a jury gives each of them the mean weight of those.
    """
    profile.check(engine.classifier)
    profile.check_scores(engine.settings.scores)
    screen = Screen(profile.familiarity is not None)
    rows = [row async for row in engine.ask(pictures, Panel(()), screen=screen, on_answer=on_answer)]
    if failed := next((row for row in rows if isinstance(row, Unscored)), None):
        return failed
    first, *others = [row for row in rows if isinstance(row, Row)]
    lists = tuple(row.lists[0] if row.lists else () for row in (first, *others))
    together = Row(
        first.name,
        first.base,
        tuple(row.base for row in others),
        lists=lists if any(lists) else (),
        descriptor=first.descriptor,
    )
    calibrator = (profile.adaptive or profile).restored_calibrator()
    if isinstance(calibrator, Jury | Prefixes):
        calibrator = calibrator.pooled(len(others))
    policy = replace(Policy.full_panel(profile), calibrator=calibrator, answers=None)
    (verdict,) = judge([together], tuple(row.name for row in others), profile, policy)
    return verdict if isinstance(verdict, Unscored) else replace(verdict, queries=len(pictures))


class Judging:
    """Judges answered pictures by one policy.

    What several callers have ready at the same time is judged at once: one picture takes about 3 ms, and a hundred
    take hardly more.
    """

    def __init__(self, profile: Profile, policy: Policy) -> None:
        self._judge = partial(judge, panel=tuple(map(str, policy.panel)), profile=profile, policy=policy)
        self._ready: list[tuple[Sequence[Row | Unscored], asyncio.Future[list[Verdict | Unscored]]]] = []

    async def verdicts(self, rows: Sequence[Row | Unscored]) -> list[Verdict | Unscored]:
        """A verdict for each row, in their order; a row without answers stays as it is."""
        loop = asyncio.get_running_loop()
        judged: asyncio.Future[list[Verdict | Unscored]] = loop.create_future()
        self._ready.append((rows, judged))
        loop.call_soon(self._run)  # the first of those that are scheduled now judges for all
        return await judged

    def _run(self) -> None:
        ready, self._ready = self._ready, []
        try:
            verdicts = iter(self._judge([row for rows, _ in ready for row in rows]))
            results = [list(islice(verdicts, len(rows))) for rows, _ in ready]
        except Exception as error:  # whatever it is, those who wait must learn of it
            for _, judged in ready:
                if not judged.done():
                    judged.set_exception(error)
            return
        for (_, judged), result in zip(ready, results, strict=True):
            if not judged.done():
                judged.set_result(result)


def judge(
    rows: Sequence[Row | Unscored], panel: Sequence[str], profile: Profile, policy: Policy
) -> list[Verdict | Unscored]:
    """Verdicts for answered rows, in their order, each as if it were alone; a row without answers stays as it is."""
    answered = [row for row in rows if isinstance(row, Row)]
    votes = Votes.collect(answered, panel, profile.vocabulary, profile.classes)
    verdicts: dict[int, Verdict] = {}
    for places, part in votes.apart(len(profile.vocabulary), profile.classes):
        found = _with_familiarity(_verdicts(part, policy), part, [answered[place] for place in places], policy)
        verdicts |= zip(places.tolist(), found, strict=True)
    following = count()
    return [row if isinstance(row, Unscored) else verdicts[next(following)] for row in rows]


def _verdicts(votes: Votes, policy: Policy) -> list[Verdict]:
    if len(votes) == 0:
        return []
    calibrator, words = policy.calibrator, votes.vocabulary
    low, high = calibrator.interval(votes)
    label, confidence = calibrator.predict(votes), calibrator.confidence(votes)
    digests = votes.digests or ("",) * len(votes)
    scored = (
        calibrator.judged_by_scores(votes) if isinstance(calibrator, Jury | Prefixes) else np.zeros(len(votes), bool)
    )
    claims = votes.evidence.claims() if votes.evidence else np.full(len(votes), np.nan)
    decisions: list[Decision | None] = [None] * len(votes)
    if policy.accept is not None:
        decisions = ["accept" if accepted else "review" for accepted in policy.accepts(confidence, scored)]
    figures = zip(votes.names, label, confidence, low, high, strict=True)
    columns = zip(figures, votes.base, votes.views, digests, scored, claims, decisions, strict=True)
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
            decision,
            digest=digest,
            evidence="scores" if by_scores else "labels",
            score=float(str(np.float32(claim))) if np.isfinite(claim) else None,  # 0.882, as it came, not 0.88200003
        )
        for (name, label, confidence, least, most), base, views, digest, by_scores, claim, decision in columns
    ]
    return _with_sets(verdicts, votes, policy)


def _with_familiarity(verdicts: list[Verdict], votes: Votes, rows: Sequence[Row], policy: Policy) -> list[Verdict]:
    """The verdicts with how far each picture is like the labelled ones; one that is not is for review."""
    compared = policy.compare(votes, [row.descriptor for row in rows])
    if compared is None:
        return verdicts
    parts = zip(verdicts, compared.familiarity.tolist(), compared.pixels.tolist(), strict=True)
    found = [replace(verdict, familiarity=p, pixels=None if np.isnan(own) else own) for verdict, p, own in parts]
    for place, because in compared.reasons.items():
        decision = found[place].decision if policy.unfamiliar == "accept" else "review"
        found[place] = replace(found[place], unfamiliar_because=because, decision=decision)
    return found


def _with_sets(verdicts: list[Verdict], votes: Votes, policy: Policy) -> list[Verdict]:
    """The verdicts with the labels that each picture may have."""
    if policy.sets is None:
        return verdicts
    distribution = policy.calibrator.distribution(votes)
    sets = policy.sets.sets(distribution, draws(votes))
    order = np.argsort(-distribution.named, axis=1, kind="stable")
    labels = np.take_along_axis(sets.labels, order, axis=1)
    words: list[tuple[str | None, ...]] = [
        (*(votes.vocabulary[code] for code in row if code != MISSING), *([None] if other else []))
        for row, other in zip(labels, sets.other, strict=True)
    ]
    return [replace(verdict, prediction_set=labels) for verdict, labels in zip(verdicts, words, strict=True)]


# In words -------------------------------------------------------------------------------------------------------------


def sentence(
    label: str,
    base: str,
    confidence: float,
    votes: Sequence[tuple[str, str | None]],
    score: float | None = None,
    familiar: bool = True,
) -> str:
    """How many views agree, who says what else, the classifier's own score, and how often such answers are right.

    Votes that are named after no view are about the other photos of a burst, or frames of a video.

    >>> sentence("coat", "coat", 0.93, [("mirror", "shirt"), ("turn:8", "coat")])
    '1 of 2 views agree; the mirrored one says shirt; such answers are right 93 % of the time.'
    >>> sentence("coat", "coat", 0.93, [("clip.mp4#2", "coat"), ("clip.mp4#3", "coat")])
    '2 of 2 other photos agree; such answers are right 93 % of the time.'
    >>> sentence("coat", "coat", 0.71, [], score=0.95)
    'No view was asked; the classifier itself gave coat a score of 0.95; such answers are right 71 % of the time.'
    >>> sentence("coat", "coat", 0.93, [("turn:8", "coat")], familiar=False)
    '1 of 1 views agree; how often such answers are right is not known, the picture is unlike the labelled ones.'
    """
    answered = [(view, answer) for view, answer in votes if answer is not None]
    agree = sum(answer == label for _, answer in answered)
    burst = bool(votes) and not adjective(votes[0][0])
    others, first = ("other photos", "first photo") if burst else ("views", "picture itself")
    parts = [
        f"{agree} of {len(answered)} {others} agree" if answered else "no view was asked",
        *_dissent(label, answered),
    ]
    if base != label:
        parts.append(f"the {first} was called {base}")
    if score is not None:
        parts.append(f"the classifier itself gave {base} a score of {score:.3g}")
    if familiar:
        parts.append(f"such answers are right {percent(confidence)} of the time.")
    else:
        parts.append("how often such answers are right is not known, the picture is unlike the labelled ones.")
    text = "; ".join(parts)
    return text[0].upper() + text[1:]


def percent(share: float) -> str:
    """A share in words: never 100 %, which no evidence gives, and with a decimal where it matters."""
    if share > 0.9995:
        return "more than 99.9 %"
    return f"{100 * share:.1f} %" if share >= 0.985 else f"{100 * share:.0f} %"


def alternatives(labels: Sequence[str | None]) -> str:
    """A prediction set in words; None is any other label.

    >>> alternatives(["coat", "shirt", None])
    'coat, shirt or any other label'
    """
    words = ["any other label" if label is None else label for label in labels] or ["no label"]
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def adjective(view: str) -> str:
    """What a view looks like, or nothing where it is no view.

    >>> adjective("mirror+turn:10"), adjective("shift:0,-0.1"), adjective("photo.jpg")
    ('mirrored and left-turned', 'raised', '')
    """
    try:
        return parse(view).adjective
    except ViewError:
        return ""


def _dissent(label: str, answered: Sequence[tuple[str, str]]) -> list[str]:
    """Who says something else, the most frequent label first."""
    others: dict[str, list[str]] = {}
    for view, answer in answered:
        if answer != label:
            others.setdefault(answer, []).append(view)
    ranked = sorted(others.items(), key=lambda item: -len(item[1]))
    parts = [f"{_who(views)} {answer}" for answer, views in ranked[:MOST_LABELS]]
    left = sum(len(views) for _, views in ranked[MOST_LABELS:])
    return [*parts, f"{left} {'says' if left == 1 else 'say'} something else"] if left else parts


def _who(views: Sequence[str]) -> str:
    if len(views) > 1:
        return f"{len(views)} say"
    word = adjective(views[0])
    return f"the {word} one says" if word else f"{views[0]} says"
