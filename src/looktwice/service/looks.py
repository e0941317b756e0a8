"""Share one model among many callers, with bounded concurrency, and report its profile and metrics.

A look does not depend on its caller: after a disconnect or timeout it is still completed, and if the same picture is
sent again, its answers are in the ledger.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import cast

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from pydantic import BaseModel, Field

from looktwice.model import (
    AnswerEvent,
    AnswerKind,
    AsyncModel,
    Cause,
    ChangedError,
    Channel,
    DecisionOptions,
    ExpectedAccuracy,
    LookTwiceError,
    Monitor,
    OnAnswer,
    Picture,
    QuotaError,
    Result,
    TagPolicy,
    TagScores,
    Unscored,
    Verdict,
    held_out_scores,
    reads_heic,
)
from looktwice.service import ServiceLimits
from looktwice.service.bodies import Refusal
from looktwice.service.guards import Counters

PAUSE, LONG_PAUSE = 5.0, 60.0
"""Seconds for which looks are suspended after a permanent failure of the classifier, and after an exceeded quota
without Retry-After."""
DAY = 86_400
CLOSING = "the service is shutting down"
REFUSALS = {
    Cause.UNREADABLE: "picture",
    Cause.UNFIT: "picture",
    Cause.UNFAMILIAR: "unfamiliar",
    Cause.BUDGET: "budget",
    Cause.STOPPED: "unavailable",
    Cause.NO_LABEL: "classifier",
    Cause.CLASSIFIER: "classifier",
}
"""The error code for a picture that was not scored; it determines the HTTP status and the counter."""
LOG = logging.getLogger("looktwice.service")

Outcome = Verdict | Unscored
Work = Callable[[], Awaitable[Outcome]]


class Looks:
    """Runs the looks for all requests."""

    def __init__(self, model: AsyncModel, decide: DecisionOptions, limits: ServiceLimits) -> None:
        self.model, self.decide, self.limits = model, decide, limits
        self._slots = asyncio.Semaphore(limits.looks)
        self._waiting = 0
        self._running: set[asyncio.Task[Outcome]] = set()
        self._trouble: Exception | None = None
        self._resume_at = 0.0
        self._closing = False

    @property
    def monitor(self) -> Monitor:
        """The drift monitor."""
        return self.model.monitor(self.decide)

    @property
    def count(self) -> int:
        """The number of pictures in progress or waiting."""
        return self._waiting + len(self._running)

    def refusal(self) -> Refusal | None:
        """The reason why no picture can be processed now; None if the service is available. After a failure, the
        classifier is tried again once a pause has passed."""
        if self._closing:
            return Refusal("unavailable", CLOSING, PAUSE)
        if self._trouble is None:
            return None
        left = self._resume_at - time.monotonic()
        if isinstance(self._trouble, ChangedError):
            return Refusal("unavailable", str(self._trouble))
        if left > 0 or self._running:
            return Refusal("unavailable", str(self._trouble), max(left, 1.0))
        self.model.resume()
        self._trouble = None
        return None

    def check(self) -> None:
        """Raise a Refusal if no picture can be processed now."""
        if refusal := self.refusal():
            raise refusal

    async def look(self, picture: Picture, on_answer: OnAnswer | None = None) -> Verdict:
        """Score a picture; raises a Refusal if it was not scored."""

        async def score() -> Outcome:
            (outcome,) = [each async for each in self.model.score([picture], self.decide, on_answer=on_answer)]
            return outcome

        return await self._verdict(picture.name, score)

    async def burst(self, photos: Sequence[Picture], on_answer: OnAnswer | None = None) -> Verdict:
        """Score several photos of one object; raises a Refusal if they were not scored. Each answer contains the index
        of its photo."""
        named = [replace(photo, name=f"photo {number}") for number, photo in enumerate(photos, 1)]
        places = {photo.name: place for place, photo in enumerate(named)}

        def by_photo(event: AnswerEvent) -> None:
            if on_answer:
                on_answer(event._replace(place=places[event.name]))

        verdict = await self._verdict(photos[0].name, lambda: self.model.score_burst(named, on_answer=by_photo))
        return verdict.model_copy(update={"name": photos[0].name})

    async def close(self) -> None:
        """Reject new pictures, and wait for the looks in progress."""
        self._closing = True
        self.model.stop(CLOSING)
        while self._running:
            await asyncio.wait(self._running)

    async def _verdict(self, name: str, work: Work) -> Verdict:
        """Run a look once a slot is free; the wait is limited to half of the timeout.

        The slot is held until the work ends, even if the caller has disconnected.
        """
        seconds = self.limits.seconds
        end = asyncio.get_running_loop().time() + seconds
        await self._take_slot(end - seconds / 2)
        task = asyncio.create_task(self._outcome(name, work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            async with asyncio.timeout_at(end):
                outcome = await asyncio.shield(task)
        except TimeoutError:
            detail = f"there was no verdict within {seconds:g} s; answers that arrive later are kept, so try again"
            raise Refusal("time", detail, seconds) from None
        if isinstance(outcome, Unscored):
            raise self._unscored(outcome)
        return outcome

    async def _take_slot(self, end: float) -> None:
        self.check()
        self._waiting += 1
        try:
            async with asyncio.timeout_at(end):
                await self._slots.acquire()
        except TimeoutError:
            detail = f"{self.limits.looks} pictures are in progress and others are waiting; try again in a moment"
            raise Refusal("busy", detail, 1) from None
        finally:
            self._waiting -= 1

    async def _outcome(self, name: str, work: Work) -> Outcome:
        """Handle the outcome of a look; after a failure that affects all pictures, queries pause."""
        try:
            if refusal := self.refusal():
                return Unscored(name, Cause.STOPPED, str(refusal))
            return await work()
        except Exception as error:  # whatever it is, somebody waits for it
            if not isinstance(error, LookTwiceError):
                LOG.error("a look failed unexpectedly", exc_info=error)
            self._trouble = error
            pause = error.retry_after or LONG_PAUSE if isinstance(error, QuotaError) else PAUSE
            self._resume_at = time.monotonic() + pause
            return Unscored(name, Cause.STOPPED, str(error), getattr(error, "code", ""))
        finally:
            self._slots.release()

    def _unscored(self, unscored: Unscored) -> Refusal:
        code, options = REFUSALS[unscored.cause], self.model.options
        if code == "budget":
            daily = (options.per_day, options.money_per_day) != (None, None)
            detail = "the budget is spent; raise it to continue" + (", or wait for the next day" if daily else "")
            return Refusal(code, detail, DAY - time.time() % DAY if daily else None, error=unscored.code)
        refusal = self.refusal() if code == "unavailable" else None
        return Refusal(code, unscored.message, refusal.retry_after if refusal else None, error=unscored.code)


# The public part of the profile, for the page and other clients, without details of this machine ----------------------


class ViewReply(BaseModel):
    """A view of the panel."""

    view: str = Field(examples=["turn:-8"])
    caption: str = Field(examples=["right-turned"])


class DriftReply(BaseModel):
    """The state of the drift monitor."""

    seen: int
    alarm: bool = Field(description="whether the answers or the pictures themselves have changed")
    since: float | None = Field(description="when the change began, in seconds since 1970; null without an alarm")
    held: str | None = Field(description="why verdicts are held for review; null if they are not")
    accepted_since: list[str] = Field(
        description="digests of pictures that were accepted after the change began, before it was noticed"
    )
    expected_accuracy: ExpectedAccuracy


class LimitsReply(BaseModel):
    """Limits of one request."""

    bytes: int
    pixels: int
    pictures: int
    heic: bool = Field(description="whether HEIC and AVIF can be read")


class ProfileReply(BaseModel):
    """The classifier, views, results and threshold on which verdicts are based."""

    kind: AnswerKind = Field(description="whether verdicts are about one label or about tags")
    classifier: str
    fingerprint: str
    vocabulary: list[str]
    panel: list[ViewReply]
    pictures: int = Field(description="the number of labelled pictures it was fitted on")
    results: list[Result] = Field(description="on pictures that took no part in fitting")
    threshold: float | None = Field(description="the lowest accepted confidence; null if nothing is accepted")
    thresholds: dict[str, float | None] = Field(
        description="the lowest accepted confidence by label, if claims name labels; * is every other label"
    )
    claims: list[str] = Field(description="the guarantee for accepted answers, as a sentence")
    basis: str | None = Field(
        description="whether acceptance rests on a guarantee or an estimate; null if nothing is claimed"
    )
    labels_missing: int | None = Field(
        description="the number of further labelled pictures needed; 0 if none, null if more labels would not help"
    )
    max_error: float | dict[str, float] | None = Field(
        description="the largest share of accepted answers that may be wrong"
    )
    max_miss: dict[str, float] | None = Field(
        description="the largest share of each class that may be accepted as another class"
    )
    level: float = Field(description="the certainty of the guarantee")
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
    """The public part of a profile and its policy; `missing`, the number of further labels needed, is computed once."""
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
        limits=LimitsReply(bytes=limits.body, pixels=limits.pixels, pictures=limits.pictures, heic=reads_heic()),
        tags=held_out_scores(profile, tags) if tags else None,
    )


def _finite(threshold: float) -> float | None:
    return None if math.isinf(threshold) else threshold


def public(description: str) -> str:
    """The last part of a classifier's description, without folders and addresses."""
    return description.replace("\\", "/").rstrip("/").rpartition("/")[2]


# Metrics for Prometheus: queries, costs, verdicts and drift -----------------------------------------------------------

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)

BY_CLASSIFIER = (
    (CounterMetricFamily, "queries", "Queries that may have been billed"),
    (CounterMetricFamily, "ledger_hits", "Answers from the ledger"),
    (CounterMetricFamily, "retries", "Queries sent again"),
    (CounterMetricFamily, "spend", "Money spent, in its currency"),
    (CounterMetricFamily, "canaries", "Stored answers queried again"),
    (CounterMetricFamily, "canaries_changed", "Canaries with a different label"),
    (GaugeMetricFamily, "calls_in_flight", "Calls to the classifier in flight"),
)


class Metrics(Counters, Collector):
    """Counts outcomes of requests, and reads other metrics from the model and the monitor on collection."""

    def __init__(self, looks: Looks) -> None:
        self._registry = CollectorRegistry()
        self._verdicts = Counter("looktwice_verdicts", "Verdicts given", ["decision"], registry=self._registry)
        self._refusals = Counter("looktwice_refusals", "Requests without a verdict", ["code"], registry=self._registry)
        self._replies = Counter("looktwice_http_replies", "HTTP replies", ["status"], registry=self._registry)
        self._seconds = Histogram(
            "looktwice_look_seconds", "From request to verdict", buckets=SECONDS, registry=self._registry
        )
        self._confidence = Histogram(
            "looktwice_confidence", "Confidence of verdicts", buckets=SHARES, registry=self._registry
        )
        self._unfamiliar = Counter(
            "looktwice_unfamiliar", "Queried pictures unlike the labelled ones", registry=self._registry
        )
        self._looks = looks
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def count_verdict(self, verdict: Verdict, seconds: float) -> None:
        """Count a verdict."""
        self._verdicts.labels("held" if verdict.held else verdict.decision or "undecided").inc()
        self._seconds.observe(seconds)
        if isinstance(verdict, Verdict):  # a TagVerdict has a probability for each tag
            self._confidence.observe(verdict.confidence)
        self._unfamiliar.inc(verdict.unfamiliar_because is not None)

    def refused(self, code: str) -> None:
        """Count a request without a verdict."""
        self._refusals.labels(code).inc()

    def replied(self, status: int) -> None:
        """Count a reply."""
        self._replies.labels(str(status)).inc()

    def text(self) -> bytes:
        """All metrics in the Prometheus format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The current metrics of the model and the monitor."""
        looks, model = self._looks, self._looks.model
        about = {
            "version": version("looktwice"),
            "classifier": public(model.description),
            "fingerprint": model.fitted().fingerprint,
        }
        info = GaugeMetricFamily("looktwice_info", "Version and classifier of this service", labels=list(about))
        info.add_metric(list(about.values()), 1)
        yield info
        channels = model.engine.channels if model.is_open else {}
        counts = {one.name: _counts(channels.get(one.name)) for one in model.connected}
        for place, (kind, name, title) in enumerate(BY_CLASSIFIER):
            family = kind(f"looktwice_{name}", title, labels=["classifier"])
            for classifier, values in counts.items():
                family.add_metric([classifier], values[place])
            yield family
        stream, alarm = looks.monitor.stream, looks.monitor.alarm
        for name, title, value in (
            ("looks", "Pictures in progress or waiting", looks.count),
            ("ready", "Whether pictures can be scored", looks.refusal() is None),
            ("drift_alarm", "Live pictures or answers differ from the profile's", alarm is not None),
            (
                "drift_evidence",
                "Highest log wealth of the drift test so far",
                stream.drift.peak if stream.drift else None,
            ),
            ("shift_alarm", "Live pictures differ from labelled ones", stream.shift.alarm if stream.shift else None),
            ("drift_since_seconds", "When the change began, in seconds since 1970", alarm.since if alarm else None),
            ("expected_accuracy", "Expected share of right answers", stream.expected().accuracy),
        ):
            if value is not None:
                yield GaugeMetricFamily(f"looktwice_{name}", title, value)


def _counts(channel: Channel | None) -> list[float]:
    """The metrics of one classifier, in the order of BY_CLASSIFIER."""
    if channel is None:
        return [0] * len(BY_CLASSIFIER)
    asked, canaries = channel.runner.progress, channel.canaries
    return [
        *(asked.sent, asked.hits, asked.retries, asked.micros / 1e6),
        *(canaries.asked, canaries.flipped, channel.in_flight),
    ]
