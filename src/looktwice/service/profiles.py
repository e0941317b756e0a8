"""What the page and other clients may know of the profile: enough to read a verdict, nothing of this machine."""

from __future__ import annotations

import math

from pydantic import BaseModel, Field

from looktwice.model import ExpectedAccuracy, Result
from looktwice.service.looks import Looks


class ViewReply(BaseModel):
    """A view of the panel."""

    view: str = Field(examples=["turn:-8"])
    caption: str = Field(examples=["right-turned"])


class DriftReply(BaseModel):
    """Whether live pictures are still of the kind that the profile was made from."""

    seen: int
    alarm: bool = Field(description="by the answers, or by the pictures themselves")
    since_picture: int | None = Field(description="after how many pictures the change began; null without an alarm")
    since: float | None = Field(description="when that was, in seconds since 1970")
    expected_accuracy: ExpectedAccuracy


class LimitsReply(BaseModel):
    """What one request may hold."""

    bytes: int
    pixels: int
    pictures: int


class ProfileReply(BaseModel):
    """What the verdicts rest on."""

    classifier: str
    fingerprint: str
    vocabulary: list[str]
    panel: list[ViewReply]
    pictures: int = Field(description="how many labelled pictures it was fitted on")
    results: list[Result] = Field(description="on pictures that took no part in fitting")
    threshold: float | None = Field(description="the least confidence that is accepted; null if nothing is guaranteed")
    max_error: float | None = Field(description="accepted answers are wrong at most so often")
    level: float = Field(description="how certain that is")
    coverage: float | None = Field(description="prediction sets hold the truth so often; null if there are none")
    sets: str | None = Field(description="how they are chosen; null if there are none")
    unfamiliar: str | None = Field(
        description="what becomes of pictures unlike the labelled ones: accept, review or refuse; null where the "
        "profile cannot tell"
    )
    false_alarms: float = Field(description="how often a picture that is like them is taken for one that is not")
    drift: DriftReply | None
    limits: LimitsReply


def described(looks: Looks, level: float) -> ProfileReply:
    """The public part of a profile, and how it is put to use."""
    profile, decide, limits = looks.model.fitted(), looks.decide, looks.limits
    policy, stream = looks.model.policy(decide), looks.monitor.stream
    accept = policy.accept
    return ProfileReply(
        classifier=public(profile.classifier),
        fingerprint=profile.fingerprint,
        vocabulary=list(profile.vocabulary),
        panel=[ViewReply(view=str(view), caption=view.adjective) for view in policy.panel],
        pictures=profile.pictures,
        results=list(profile.results),
        threshold=None if accept is None or math.isinf(accept) else accept,
        max_error=decide.max_error,
        level=level,
        coverage=decide.coverage,
        sets=None if decide.coverage is None else decide.sets,
        unfamiliar=policy.unfamiliar if policy.familiarity else None,
        false_alarms=policy.false_alarms,
        drift=DriftReply(
            seen=stream.seen,
            alarm=stream.alarm,
            since_picture=stream.since,
            since=looks.monitor.since,
            expected_accuracy=stream.expected(),
        )
        if stream.drift or stream.shift
        else None,
        limits=LimitsReply(bytes=limits.body, pixels=limits.pixels, pictures=limits.pictures),
    )


def public(description: str) -> str:
    """The last part of a classifier's description: no folder of this machine, no address of another."""
    return description.replace("\\", "/").rstrip("/").rpartition("/")[2]
