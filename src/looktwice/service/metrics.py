"""Figures for Prometheus: what was asked, what it cost, what came out, and whether the pictures have changed."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from looktwice import __version__
from looktwice.model import Verdict
from looktwice.service.guards import Counters
from looktwice.service.looks import Looks
from looktwice.service.profiles import public

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


class Metrics(Counters, Collector):
    """Counts what becomes of requests, and reads the rest from the model and the monitor when it is asked."""

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
        """A verdict went out."""
        self._verdicts.labels(verdict.decision or "undecided").inc()
        self._seconds.observe(seconds)
        self._confidence.observe(verdict.confidence)
        self._unfamiliar.inc(verdict.unfamiliar_because is not None)

    def refused(self, code: str) -> None:
        """A request got no verdict."""
        self._refusals.labels(code).inc()

    def replied(self, status: int) -> None:
        """A reply went out."""
        self._replies.labels(str(status)).inc()

    def text(self) -> bytes:
        """Everything, as Prometheus reads it."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """What the model and the monitor know now."""
        looks, model, progress = self._looks, self._looks.model, self._looks.model.asked
        about = {
            "version": __version__,
            "classifier": public(model.description),
            "fingerprint": model.fitted().fingerprint,
        }
        info = GaugeMetricFamily("looktwice_info", "What runs here", labels=list(about))
        info.add_metric(list(about.values()), 1)
        yield info
        for kind, name, title, value in (
            (CounterMetricFamily, "queries", "Queries that may have been billed", progress.sent),
            (CounterMetricFamily, "ledger_hits", "Answers that the ledger had", progress.hits),
            (CounterMetricFamily, "retries", "Queries sent again", progress.retries),
            (CounterMetricFamily, "spend", "Money spent, in its currency", progress.micros / 1e6),
            (GaugeMetricFamily, "calls_in_flight", "Calls to the classifier now", model.in_flight),
        ):
            family = kind(f"looktwice_{name}", title, labels=["classifier"])
            family.add_metric([about["classifier"]], value)
            yield family
        yield GaugeMetricFamily("looktwice_looks", "Pictures looked at or waiting", looks.count)
        yield GaugeMetricFamily("looktwice_ready", "Whether pictures can be looked at", looks.refusal() is None)
        stream, since = looks.monitor.stream, looks.monitor.since
        yield GaugeMetricFamily(
            "looktwice_drift_alarm", "Live pictures or answers differ from the profile's", stream.alarm
        )
        if drift := stream.drift:
            yield GaugeMetricFamily("looktwice_drift_evidence", "Log of the highest wager so far", drift.peak)
        if shift := stream.shift:
            yield GaugeMetricFamily("looktwice_shift_alarm", "Live pictures are less familiar", shift.alarm)
        if since is not None:
            yield GaugeMetricFamily("looktwice_drift_since_seconds", "When the change began, since 1970", since)
        if (accuracy := stream.expected().accuracy) is not None:
            yield GaugeMetricFamily("looktwice_expected_accuracy", "Share of right answers to be expected", accuracy)
