"""Answered pictures → verdicts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from itertools import count, islice
from math import isfinite
from typing import cast

import numpy as np

from looktwice.calibration import (
    MISSING,
    AdaptiveJury,
    Calibrator,
    Distribution,
    Floats,
    Jury,
    Row,
    Votes,
    by_scores,
    draws,
)
from looktwice.decisions.policy import PicturePolicy, Policy, TagPolicy
from looktwice.decisions.profile import Profile, tag_votes
from looktwice.decisions.sequence import BASE, Source
from looktwice.decisions.verdict import (
    AGAIN,
    SURE,
    AnyVerdict,
    Asked,
    Decision,
    LabelProbability,
    Stopped,
    TagProbability,
    TagVerdict,
    Verdict,
)
from looktwice.engine import OnAnswer, QueryEngine, Screen, Unscored, lacks_budget
from looktwice.errors import ProfileError
from looktwice.images import Picture
from looktwice.views import Panel


async def look(
    engine: QueryEngine,
    pictures: Iterable[Picture],
    profile: Profile,
    policy: PicturePolicy | None = None,
    on_answer: OnAnswer | None = None,
    judging: Judging | None = None,
) -> AsyncGenerator[Verdict | Unscored]:
    """Yield a verdict for each picture, in order, or the reason why there is none; a `TagVerdict` for tags.

    Callers that share a `judging` of the same profile and policy are batched together.
    """
    profile.check(engine.channels)
    profile.check_scores(engine.settings.scores)
    policy = policy or Policy.usual(profile)
    judging = judging or Judging(profile, policy)
    asked = engine.ask_ready(pictures, policy.panel, policy.rounds, policy.screen(), on_answer=on_answer)
    async with aclosing(asked) as groups:
        async for rows in groups:
            for verdict in await judging.verdicts(rows):
                yield cast("Verdict | Unscored", verdict)


async def burst(
    engine: QueryEngine, pictures: Sequence[Picture], profile: Profile, on_answer: OnAnswer | None = None
) -> Verdict | Unscored:
    """One verdict for several photos of one object: the first is the picture, the others are its views.

    Photos are not views of the panel, so a jury gives each photo the mean weight of the panel's views.
    """
    profile.check(engine.channels)
    profile.check_scores(engine.settings.scores)
    if profile.kind == "tags":
        raise ProfileError(
            "a burst requires single-label answers, but this profile is for tags; look at each photo separately",
            code="option-conflict",
        )
    screen = Screen(profile.familiarity.describe if profile.familiarity else None)
    rows = [row async for row in engine.ask(pictures, Panel((), profile.name), screen=screen, on_answer=on_answer)]
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
    if isinstance(calibrator, Jury | AdaptiveJury):
        calibrator = calibrator.pooled(len(others))
    policy = replace(Policy.full_panel(profile), calibrator=calibrator, answers=None)
    (verdict,) = judge([together], tuple(row.name for row in others), profile, policy)
    return verdict


class Judging:
    """Computes verdicts on answered pictures under one policy.

    Pictures from several callers that are ready at the same time are judged in one batch, because a hundred pictures
    take little longer than the 3 ms for one picture.
    """

    def __init__(self, profile: Profile, policy: PicturePolicy) -> None:
        panel = tuple(map(str, policy.panel))
        self._judge: Callable[[Sequence[Row | Unscored]], Sequence[AnyVerdict | Unscored]]
        if isinstance(policy, TagPolicy):
            self._judge = partial(judge_tags, panel=panel, profile=profile, policy=policy)
        else:
            self._judge = partial(judge, panel=panel, profile=profile, policy=cast("Policy", policy))
        self._ready: list[tuple[Sequence[Row | Unscored], asyncio.Future[list[AnyVerdict | Unscored]]]] = []

    async def verdicts(self, rows: Sequence[Row | Unscored]) -> list[AnyVerdict | Unscored]:
        """A verdict for each row, in order; rows without answers are returned as is."""
        loop = asyncio.get_running_loop()
        judged: asyncio.Future[list[AnyVerdict | Unscored]] = loop.create_future()
        self._ready.append((rows, judged))
        loop.call_soon(self._run)  # the first scheduled call handles the rows of all callers
        return await judged

    def _run(self) -> None:
        ready, self._ready = self._ready, []
        try:
            verdicts = iter(self._judge([row for rows, _ in ready for row in rows]))
            results = [list(islice(verdicts, len(rows))) for rows, _ in ready]
        except Exception as error:  # any error must reach the waiting callers
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
    """Verdicts for answered rows, in order and independent of each other; rows without answers are returned as is."""
    answered = [row for row in rows if isinstance(row, Row)]
    votes = Votes.collect(answered, panel, profile.vocabulary, profile.classes)
    votes = replace(votes, unsayable=profile.unsayable[: 1 + len(panel)])
    verdicts: dict[int, Verdict] = {}
    for places, part in votes.apart(len(profile.vocabulary), profile.classes):
        judged = _verdicts(part, [answered[place] for place in places], profile, policy)
        verdicts |= zip(places.tolist(), judged, strict=True)
    following = count()
    return [row if isinstance(row, Unscored) else verdicts[next(following)] for row in rows]


def _verdicts(votes: Votes, rows: Sequence[Row], profile: Profile, policy: Policy) -> list[Verdict]:
    if not rows:
        return []
    calibrator = policy.calibrator
    label, confidence, distribution = (
        calibrator.predict(votes),
        calibrator.confidence(votes),
        calibrator.distribution(votes),
    )
    low, high = calibrator.interval(votes)
    scored = by_scores(calibrator, votes)
    decisions: list[Decision | None] = [None] * len(votes)
    if policy.accept is not None:
        words = [votes.vocabulary[code] for code in label]
        decisions = ["accept" if accepted else "review" for accepted in policy.accepts(confidence, words, votes)]
    likely, sets = _likely(votes, distribution), _sets(votes, distribution, policy)
    compared = policy.compare(votes, [row.descriptor for row in rows])
    reasons = compared.reasons if compared else {}
    if policy.unfamiliar != "accept":
        decisions = ["review" if place in reasons else decision for place, decision in enumerate(decisions)]
    if policy.accept is not None:  # a guarantee needs the same queries as in the fit
        decisions = ["review" if lacks_budget(row) else each for row, each in zip(rows, decisions, strict=True)]
    before = _before(votes, calibrator)
    return [
        Verdict(
            name=row.name,
            digest=row.digest,
            profile=profile.digest,
            asked=queries_of(row, votes.panel, profile, {place: float(unsure[i]) for place, unsure in before.items()}),
            stopped=_why_stopped(policy, row, float(confidence[i])),
            familiarity=float(compared.familiarity[i]) if compared else None,
            unfamiliar_because=reasons.get(i),
            decision=decisions[i],
            basis=policy.accept.basis if policy.accept else None,
            pixels=float(compared.pixels[i]) if compared and np.isfinite(compared.pixels[i]) else None,
            label=votes.vocabulary[label[i]],
            confidence=float(confidence[i]),
            low=float(min(low[i], confidence[i])),
            high=float(max(high[i], confidence[i])),
            distribution=likely[i],
            prediction_set=sets[i],
            evidence="scores" if scored[i] else "labels",
        )
        for i, row in enumerate(rows)
    ]


def judge_tags(
    rows: Sequence[Row | Unscored], panel: Sequence[str], profile: Profile, policy: TagPolicy
) -> list[TagVerdict | Unscored]:
    """Verdicts on tags: the probability of each, and the decision."""
    answered = [row for row in rows if isinstance(row, Row)]
    votes = Votes.collect(answered, panel)
    about = tag_votes(votes, profile)
    # Rounded, so that decisions do not depend on the other pictures of the batch.
    probability, low, high = (np.round(x, 6) for x in (policy.jury.probability(about), *policy.jury.interval(about)))
    decided, compared = policy.decide(probability), policy.compare(votes, [row.descriptor for row in answered])
    reasons = compared.reasons if compared else {}
    verdicts: list[TagVerdict] = []
    for i, row in enumerate(answered):
        short = lacks_budget(row) is not None
        open_all = short or (i in reasons and policy.unfamiliar != "accept")
        columns = zip(policy.jury.tags, *(x[i].tolist() for x in (probability, low, high, decided)), strict=True)
        tags = [TagProbability(tag, p, a, b, "review" if open_all else said) for tag, p, a, b, said in columns]
        decision: Decision = "review" if any(tag.decision == "review" for tag in tags) else "accept"
        verdicts.append(
            TagVerdict(
                name=row.name,
                digest=row.digest,
                profile=profile.digest,
                asked=queries_of(row, panel, profile, {}),
                familiarity=float(compared.familiarity[i]) if compared else None,
                unfamiliar_because=reasons.get(i),
                decision=decision if policy.basis or open_all else None,
                basis=policy.basis,
                stopped="budget" if short else None,
                pixels=float(compared.pixels[i]) if compared and np.isfinite(compared.pixels[i]) else None,
                tags=tuple(sorted(tags, key=lambda tag: -tag.probability)),
            )
        )
    following = iter(verdicts)
    return [row if isinstance(row, Unscored) else next(following) for row in rows]


def _before(votes: Votes, calibrator: Calibrator) -> dict[int, Floats]:
    """The confidence of each picture before the next classifier was asked, by the position of that classifier's first
    query."""
    names = ["", *(Source.parse(view, "").classifier for view in votes.panel)]
    places = [place for place, name in enumerate(names) if place and name not in names[:place]]
    if not isinstance(calibrator, AdaptiveJury):
        return {}
    earlier = np.arange(1, len(names))
    return {
        place: calibrator.confidence(replace(votes, views=np.where(earlier < place, votes.views, MISSING)))
        for place in places
    }


def queries_of(row: Row, panel: Sequence[str], profile: Profile, before: Mapping[int, float]) -> tuple[Asked, ...]:
    """Each query and its answer; with several classifiers, also the classifier and the confidence before it."""
    labels, first = (row.base, *row.views), profile.name or profile.fingerprint
    lists, picos = row.lists or ((),) * len(labels), row.picos or (0,) * len(labels)
    asked = []
    for place, (text, label, ranked, cost) in enumerate(zip((AGAIN, *panel), labels, lists, picos, strict=True)):
        source = Source.parse(text, first)
        score = ranked[0][1] if ranked else None
        code, missing = row.missing.get(place, (None, None))
        asked.append(
            Asked(
                source.classifier,
                AGAIN if source.view == BASE else source.view,
                label,
                score if score is not None and isfinite(score) else None,
                price=cost / 1e12,
                confidence_before=before.get(place) if label is not None and any(labels[:place]) else None,
                missing=missing,
                code=code,
            )
        )
    return tuple(asked)


def _why_stopped(policy: Policy, row: Row, confidence: float) -> Stopped | None:
    """Return the reason for stopping, or None if the policy always sends every query and the budget covered them."""
    if lacks_budget(row):
        return "budget"
    if policy.rounds is None:
        return None
    if not row.views or row.views[-1] is not None or len(row.views) in row.missing:
        return "all-asked"
    return "sure" if confidence >= SURE else "not worth it"


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
    """The prediction sets, the most probable label first; None if no sets were requested."""
    if policy.sets is None:
        return [None] * len(votes)
    sets = policy.sets.sets(distribution, draws(votes))
    order = np.argsort(-distribution.named, axis=1, kind="stable")
    labels = np.take_along_axis(sets.labels, order, axis=1)
    return [
        (*(votes.vocabulary[code] for code in row if code != MISSING), *([None] if other else []))
        for row, other in zip(labels, sets.other, strict=True)
    ]
