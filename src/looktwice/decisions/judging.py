"""Picture → verdict, where all steps meet."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import count, islice
from math import isfinite

import numpy as np

from looktwice.calibration.conformal import draws
from looktwice.calibration.distribution import Distribution
from looktwice.calibration.jury import Jury, Prefixes
from looktwice.calibration.votes import MISSING, Row, Votes
from looktwice.decisions.policy import Policy
from looktwice.decisions.profile import Profile
from looktwice.decisions.verdict import AGAIN, Asked, Decision, LabelProbability, Verdict
from looktwice.engine.engine import QueryEngine
from looktwice.engine.outcome import Unscored
from looktwice.engine.query import OnAnswer, Screen
from looktwice.images.collection import Picture
from looktwice.views import Panel


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
    return verdict


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
        judged = _verdicts(part, [answered[place] for place in places], profile.fingerprint, policy)
        verdicts |= zip(places.tolist(), judged, strict=True)
    following = count()
    return [row if isinstance(row, Unscored) else verdicts[next(following)] for row in rows]


def _verdicts(votes: Votes, rows: Sequence[Row], classifier: str, policy: Policy) -> list[Verdict]:
    if not rows:
        return []
    calibrator = policy.calibrator
    label, confidence, distribution = (
        calibrator.predict(votes),
        calibrator.confidence(votes),
        calibrator.distribution(votes),
    )
    low, high = calibrator.interval(votes)
    by_scores = np.zeros(len(votes), bool)
    if isinstance(calibrator, Jury | Prefixes):
        by_scores = calibrator.judged_by_scores(votes)
    decisions: list[Decision | None] = [None] * len(votes)
    if policy.accept is not None:
        decisions = ["accept" if accepted else "review" for accepted in policy.accepts(confidence, by_scores)]
    likely, sets = _likely(votes, distribution), _sets(votes, distribution, policy)
    compared = policy.compare(votes, [row.descriptor for row in rows])
    reasons = compared.reasons if compared else {}
    if policy.unfamiliar != "accept":
        decisions = ["review" if place in reasons else decision for place, decision in enumerate(decisions)]
    return [
        Verdict(
            name=row.name,
            digest=row.digest,
            asked=_asked(row, votes.panel, classifier),
            familiarity=float(compared.familiarity[i]) if compared else None,
            unfamiliar_because=reasons.get(i),
            decision=decisions[i],
            pixels=float(compared.pixels[i]) if compared and np.isfinite(compared.pixels[i]) else None,
            label=votes.vocabulary[label[i]],
            confidence=float(confidence[i]),
            low=float(min(low[i], confidence[i])),
            high=float(max(high[i], confidence[i])),
            distribution=likely[i],
            prediction_set=sets[i],
            evidence="scores" if by_scores[i] else "labels",
        )
        for i, row in enumerate(rows)
    ]


def _asked(row: Row, panel: Sequence[str], classifier: str) -> tuple[Asked, ...]:
    labels = (row.base, *row.views)
    lists = row.lists or ((),) * len(labels)
    firsts = [ranked[0][1] if ranked else None for ranked in lists]
    scores = [score if score is not None and isfinite(score) else None for score in firsts]
    queries = zip((AGAIN, *panel), labels, scores, strict=True)
    return tuple(Asked(classifier, view, label, score) for view, label, score in queries)


def _likely(votes: Votes, distribution: Distribution) -> list[tuple[LabelProbability, ...]]:
    """The listed labels of each picture, the most probable first."""
    order = np.argsort(-distribution.named, axis=1, kind="stable")
    codes, shares = (np.take_along_axis(table, order, axis=1) for table in (distribution.labels, distribution.named))
    return [
        tuple(
            LabelProbability(votes.vocabulary[code], share) for code, share in zip(*row, strict=True) if code != MISSING
        )
        for row in zip(codes.tolist(), shares.tolist(), strict=True)
    ]


def _sets(votes: Votes, distribution: Distribution, policy: Policy) -> list[tuple[str | None, ...] | None]:
    """The labels that each picture may have, the most probable first; None for all where no sets were asked for."""
    if policy.sets is None:
        return [None] * len(votes)
    sets = policy.sets.sets(distribution, draws(votes))
    order = np.argsort(-distribution.named, axis=1, kind="stable")
    labels = np.take_along_axis(sets.labels, order, axis=1)
    return [
        (*(votes.vocabulary[code] for code in row if code != MISSING), *([None] if other else []))
        for row, other in zip(labels, sets.other, strict=True)
    ]
