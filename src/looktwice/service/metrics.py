"""Figures for Prometheus: what was asked, what it cost, what came out, and whether the pictures have changed."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from looktwice import __version__
from looktwice.service.dispatcher import Dispatcher
from looktwice.verdicts.look import Verdict

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)


class Metrics:
    """Counts what becomes of requests, and reads the rest off the dispatcher when it is asked."""

    def __init__(self, dispatcher: Dispatcher) -> None:
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
        self._registry.register(_Asked(dispatcher))
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


class _Asked(Collector):
    """What the asker and the drift test know."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher

    def collect(self) -> Iterator[Metric]:
        asker, progress = self._dispatcher.asker, self._dispatcher.asker.progress
        about = {"version": __version__, "classifier": asker.classifier.fingerprint}
        info = GaugeMetricFamily("looktwice_info", "What runs here", labels=list(about))
        info.add_metric(list(about.values()), 1)
        yield info
        yield CounterMetricFamily("looktwice_queries", "Questions that may have been billed", progress.sent)
        yield CounterMetricFamily("looktwice_ledger_hits", "Answers that the ledger had", progress.hits)
        yield CounterMetricFamily("looktwice_retries", "Questions sent again", progress.retries)
        yield CounterMetricFamily("looktwice_spend", "Money spent, in its currency", progress.micros / 1e6)
        yield GaugeMetricFamily("looktwice_calls_in_flight", "Calls to the classifier now", asker.in_flight)
        yield GaugeMetricFamily("looktwice_looks", "Pictures looked at or waiting", self._dispatcher.looks)
        yield GaugeMetricFamily("looktwice_ready", "Whether pictures can be looked at", self._dispatcher.state().ready)
        stream, since = self._dispatcher.stream, self._dispatcher.drift_since
        if drift := stream.drift:
            yield GaugeMetricFamily("looktwice_drift_alarm", "Live pictures differ from the profile's", drift.alarm)
            yield GaugeMetricFamily("looktwice_drift_evidence", "Log of the highest wager so far", drift.peak)
        if shift := stream.shift:
            yield GaugeMetricFamily("looktwice_shift_alarm", "Live pictures are less familiar", shift.alarm)
        if since is not None:
            yield GaugeMetricFamily("looktwice_drift_since_seconds", "When the change began, since 1970", since)
        if (accuracy := stream.expected().accuracy) is not None:
            yield GaugeMetricFamily("looktwice_expected_accuracy", "Share of right answers to be expected", accuracy)
