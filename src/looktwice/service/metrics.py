"""Metrics for Prometheus: queries, costs, verdicts and drift."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from looktwice.model import Channel, Verdict
from looktwice.service.guards import Counters
from looktwice.service.looks import Looks
from looktwice.service.profiles import public

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)

BY_CLASSIFIER = (
    (CounterMetricFamily, "queries", "Queries that may have been billed"),
    (CounterMetricFamily, "ledger_hits", "Answers that the ledger had"),
    (CounterMetricFamily, "retries", "Queries sent again"),
    (CounterMetricFamily, "spend", "Money spent, in its currency"),
    (CounterMetricFamily, "canaries", "Stored answers that were asked for again"),
    (CounterMetricFamily, "canaries_changed", "Canaries with a different label"),
    (GaugeMetricFamily, "calls_in_flight", "Calls to the classifier now"),
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
            "looktwice_unfamiliar", "Pictures unlike the labelled ones that were asked about", registry=self._registry
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
        """All metrics in the format of Prometheus."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """The current metrics of the model and the monitor."""
        looks, model = self._looks, self._looks.model
        about = {
            "version": version("looktwice"),
            "classifier": public(model.description),
            "fingerprint": model.fitted().fingerprint,
        }
        info = GaugeMetricFamily("looktwice_info", "What runs here", labels=list(about))
        info.add_metric(list(about.values()), 1)
        yield info
        channels = model.engine.channels if model.is_open else {}
        names = [one.name for one in model.connected]
        columns = zip(
            *(_counts(channels[name]) if name in channels else [0] * len(BY_CLASSIFIER) for name in names), strict=True
        )
        for (kind, name, title), values in zip(BY_CLASSIFIER, columns, strict=True):
            family = kind(f"looktwice_{name}", title, labels=["classifier"])
            for classifier, value in zip(names, values, strict=True):
                family.add_metric([classifier], value)
            yield family
        yield GaugeMetricFamily("looktwice_looks", "Pictures looked at or waiting", looks.count)
        yield GaugeMetricFamily("looktwice_ready", "Whether pictures can be looked at", looks.refusal() is None)
        stream, alarm = looks.monitor.stream, looks.monitor.alarm
        yield GaugeMetricFamily(
            "looktwice_drift_alarm", "Live pictures or answers differ from the profile's", alarm is not None
        )
        if drift := stream.drift:
            yield GaugeMetricFamily("looktwice_drift_evidence", "Log of the highest wager so far", drift.peak)
        if shift := stream.shift:
            yield GaugeMetricFamily("looktwice_shift_alarm", "Live pictures are less familiar", shift.alarm)
        if alarm is not None:
            yield GaugeMetricFamily("looktwice_drift_since_seconds", "When the change began, since 1970", alarm.since)
        if (accuracy := stream.expected().accuracy) is not None:
            yield GaugeMetricFamily("looktwice_expected_accuracy", "Share of right answers to be expected", accuracy)


def _counts(channel: Channel) -> list[float]:
    """The metrics of one classifier, in the order of BY_CLASSIFIER."""
    asked, canaries = channel.runner.progress, channel.canaries
    spent = asked.micros / 1e6
    return [asked.sent, asked.hits, asked.retries, spent, canaries.asked, canaries.flipped, channel.in_flight]
