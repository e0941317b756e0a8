"""The public part of the profile, for the page and other clients, without details of this machine."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from pydantic import BaseModel, Field

from looktwice.model import (
    AnswerKind,
    ExpectedAccuracy,
    Result,
    TagPolicy,
    TagScores,
    held_out_scores,
)
from looktwice.service.looks import Looks


class ViewReply(BaseModel):
    """A view of the panel."""

    view: str = Field(examples=["turn:-8"])
    caption: str = Field(examples=["right-turned"])


class DriftReply(BaseModel):
    """The state of the drift monitor."""

    seen: int
    alarm: bool = Field(description="by the answers, or by the pictures themselves")
    since: float | None = Field(description="when the change began, in seconds since 1970; null without an alarm")
    held: str | None = Field(description="why verdicts are held for review; null where they are not")
    accepted_since: list[str] = Field(
        description="digests of pictures that were accepted after the change began, before it was noticed"
    )
    expected_accuracy: ExpectedAccuracy


class LimitsReply(BaseModel):
    """Limits of one request."""

    bytes: int
    pixels: int
    pictures: int


class ProfileReply(BaseModel):
    """The basis of the verdicts."""

    kind: AnswerKind = Field(description="whether verdicts are about one label or about tags")
    classifier: str
    fingerprint: str
    vocabulary: list[str]
    panel: list[ViewReply]
    pictures: int = Field(description="how many labelled pictures it was fitted on")
    results: list[Result] = Field(description="on pictures that took no part in fitting")
    threshold: float | None = Field(description="the least confidence that is accepted; null if nothing is")
    thresholds: dict[str, float | None] = Field(
        description="the same by label, where claims are about some; * is for every other label"
    )
    claims: list[str] = Field(description="the guarantee for accepted answers, as a sentence")
    basis: str | None = Field(description="whether that is a guarantee or an estimate; null if nothing is claimed")
    labels_missing: int | None = Field(
        description="how many more labelled pictures it takes; 0 if none, null if more labels would not help"
    )
    max_error: float | dict[str, float] | None = Field(description="accepted answers are wrong at most so often")
    max_miss: dict[str, float] | None = Field(description="classes are accepted as something else at most so often")
    level: float = Field(description="how certain that is")
    coverage: float | None = Field(description="the coverage of prediction sets; null if there are none")
    sets: str | None = Field(description="how prediction sets are built; null if there are none")
    unfamiliar: str | None = Field(
        description="how unfamiliar pictures are handled: accept, review or refuse; null if the profile cannot tell"
    )
    false_alarms: float = Field(description="the share of familiar pictures that may be flagged as unfamiliar")
    drift: DriftReply | None
    limits: LimitsReply
    tags: TagScores | None = Field(description="on held-out pictures, tag by tag, with the thresholds; null for labels")


def described(looks: Looks, level: float, missing: int | None) -> ProfileReply:
    """The public part of a profile, and how it is put to use; `missing` labels are counted once."""
    profile, decide, limits = looks.model.fitted(), looks.decide, looks.limits
    policy, stream, alarm = looks.model.policy(decide), looks.monitor.stream, looks.monitor.alarm
    made, tags = decide.claims(), cast("TagPolicy", policy) if profile.kind == "tags" else None
    accept = None if tags else policy.accept
    return ProfileReply(
        kind=profile.kind,
        classifier=public(profile.classifier),
        fingerprint=profile.fingerprint,
        vocabulary=list(profile.vocabulary),
        panel=[ViewReply(view=str(view), caption=view.adjective) for view in policy.panel],
        pictures=profile.pictures,
        results=list(profile.results),
        threshold=_finite(accept.least) if accept else None,
        thresholds={label: _finite(least) for label, least in accept.by_label.items()} if accept else {},
        claims=[claim.sentence() for claim in made],
        basis=accept.basis if accept else tags.basis if tags else None,
        labels_missing=missing,
        max_error=dict(decide.max_error) if isinstance(decide.max_error, Mapping) else decide.max_error,
        max_miss=dict(decide.max_miss) if decide.max_miss else None,
        level=level,
        coverage=decide.coverage,
        sets=None if decide.coverage is None else decide.sets,
        unfamiliar=policy.unfamiliar if policy.familiarity else None,
        false_alarms=policy.false_alarms,
        drift=DriftReply(
            seen=stream.seen,
            alarm=alarm is not None,
            since=alarm.since if alarm else None,
            held=str(alarm) if alarm and decide.on_drift == "hold" else None,
            accepted_since=[seen.digest for seen in looks.monitor.changed() if seen.accepted and seen.digest],
            expected_accuracy=stream.expected(),
        )
        if alarm or stream.drift or stream.shift
        else None,
        limits=LimitsReply(bytes=limits.body, pixels=limits.pixels, pictures=limits.pictures),
        tags=held_out_scores(profile, tags) if tags else None,
    )


def _finite(threshold: float) -> float | None:
    return None if math.isinf(threshold) else threshold


def public(description: str) -> str:
    """The last part of a classifier's description, without folders and addresses."""
    return description.replace("\\", "/").rstrip("/").rpartition("/")[2]
