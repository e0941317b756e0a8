"""A stream of verdicts: whether the pictures have changed since the fit, since when, and the expected accuracy."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import numpy as np

from looktwice.decisions.policy import Policy
from looktwice.decisions.profile import HeldOut
from looktwice.decisions.verdict import Verdict
from looktwice.monitoring.drift import Drift

BINS = 5
"""The number of groups of labelled pictures by confidence, equally large, by which live answers are weighted."""
LEAST_IN_BIN = 20
Z = 1.96
TOGETHER, EVERY = 100, 1.0
"""A monitor runs its tests after this many verdicts or seconds: a run takes about 2 ms for one verdict or for many."""
MOMENTS = 2000
"""Timestamps that a monitor keeps, to tell when a change began."""
LOG = logging.getLogger("looktwice.monitoring")


class Observation(NamedTuple):
    """The part of a verdict that a stream keeps."""

    agreement_bin: int
    familiarity_kind: int
    confidence: float

    @classmethod
    def at(cls, verdict: Verdict, policy: Policy) -> Self:
        """The part of a verdict that is kept."""
        agreement = policy.agreement_bin(verdict.base, [label for _, label in verdict.votes])
        return cls(agreement, policy.familiarity_kind(verdict.pixels), round(verdict.confidence, 6))


@dataclass(frozen=True)
class ExpectedAccuracy:
    """How often the answers of a stream are right, with its 95 % interval, or why that is not known."""

    accuracy: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None

    def sentence(self) -> str:
        """The same in words."""
        if self.accuracy is None or self.low is None or self.high is None:
            return f"Expected accuracy: unknown, because {self.reason}."
        interval = f"{100 * self.accuracy:.1f} % (95 % interval {100 * self.low:.1f} % to {100 * self.high:.1f} %)"
        return f"Expected accuracy: {interval}, if answers are right as often as labelled ones of the same confidence."


@dataclass(frozen=True)
class Stream:
    """Live pictures as they come, beside those that the profile was made from."""

    held_out: HeldOut
    drift: Drift | None
    """The test that the views agree as they did; None if the profile cannot tell."""
    shift: Drift | None
    """The test that the pictures are as familiar; None if the profile cannot tell."""
    confidences: tuple[int, ...] = (0,) * BINS
    """How many live answers were in each group of confidence."""
    sum: float = 0.0
    """The sum of their confidences."""
    chance: float = 0.0
    """The variance of how many are right, if each is right with its confidence."""

    @classmethod
    def of(cls, policy: Policy) -> Self:
        """Before the first picture."""
        return cls(policy.held_out, policy.drift(), policy.shift())

    @property
    def seen(self) -> int:
        """How many live pictures there were."""
        return sum(self.confidences)

    @property
    def alarm(self) -> bool:
        """Whether the pictures, or the answers about them, have changed."""
        return any(test is not None and test.alarm for test in (self.drift, self.shift))

    @property
    def since(self) -> int | None:
        """After how many pictures the change most likely began, by the surer of the two alarms; None without one."""
        tests = [test for test in (self.drift, self.shift) if test is not None and test.alarm]
        return max(tests, key=lambda test: test.peak).since if tests else None

    def update(self, observations: Sequence[Observation]) -> Self:
        """The same after more verdicts, in this order."""
        if not observations:
            return self
        agreement, kinds, confidence = zip(*observations, strict=True)
        sure = np.array(confidence)
        counts = np.bincount(np.searchsorted(self._edges(), sure, "right"), minlength=BINS)
        return replace(
            self,
            drift=self.drift and self.drift.update(agreement),
            shift=self.shift and self.shift.update(kinds),
            confidences=tuple((np.array(self.confidences) + counts).tolist()),
            sum=self.sum + float(sure.sum()),
            chance=self.chance + float(sure @ (1.0 - sure)),
        )

    def expected(self) -> ExpectedAccuracy:
        """How often the answers so far are right: their mean confidence, corrected by how labelled ones turned out.

        That is honest as long as nothing has changed. After an alarm, sure answers may be wrong more often than they
        were, and answers alone cannot tell whether the pictures are only harder ones of the same kind.
        The labelled pictures' mean of (right − confidence) is taken in groups of alike confidence, each with the share
        that it has of the live answers.
        """
        sure, correct = self.held_out.arrays()
        group = np.searchsorted(self._edges(), sure, "right") if len(sure) else np.zeros(0, np.intp)
        known = np.bincount(group, minlength=BINS)
        weight = np.array(self.confidences) / max(self.seen, 1)
        if self.shift is None:
            return ExpectedAccuracy(reason="the profile cannot tell whether the pictures are like the labelled ones")
        if self.shift.alarm:
            return ExpectedAccuracy(reason="these pictures are of another kind than the labelled ones; label some")
        if self.alarm:
            return ExpectedAccuracy(reason="answers alone cannot tell whether only harder pictures came; label some")
        if not self.seen or (known[weight > 0] < LEAST_IN_BIN).any():
            return ExpectedAccuracy(reason="too few answers like these were checked")
        parts = [(correct - sure)[group == each] for each in range(BINS)]
        value = float(self.sum / self.seen + sum(w * part.mean() for w, part in zip(weight, parts, strict=True) if w))
        variance = sum(w**2 * part.var(ddof=1) / len(part) for w, part in zip(weight, parts, strict=True) if w)
        width = Z * float(np.sqrt(variance + self.chance / self.seen**2))
        value = min(max(value, 0.0), 1.0)  # surer answers than the labelled ones may be corrected beyond it
        return ExpectedAccuracy(value, max(0.0, value - width), min(1.0, value + width))

    def lines(self) -> list[str]:
        """Sentences about a change, or one that none was seen; nothing before the first verdict."""
        if not self.seen:
            return []
        if not self.alarm:
            tests = [test for test in (self.drift, self.shift) if test is not None]
            evidence = (
                f"none seen in {self.seen:,} picture{'s' * (self.seen != 1)}"
                if tests
                else "unknown, because the profile holds too little to compare with"
            )
            expected = self.expected()
            return [f"Drift: {evidence}.", *([] if expected.accuracy is None else [expected.sentence()])]
        what = []
        if self.shift and self.shift.alarm:
            what.append("the pictures themselves no longer look like those that this profile was fitted on")
        if self.drift and self.drift.alarm:
            what.append("the votes no longer look like those that this profile was fitted on")
        return [f"Drift: {'; '.join(what)}.", self.expected().sentence()]

    def _edges(self) -> list[float]:
        """Where the groups of confidence begin, but for the first."""
        sure = self.held_out.arrays()[0]
        return np.quantile(sure, np.arange(1, BINS) / BINS).tolist() if len(sure) else [0.5] * (BINS - 1)


class Monitor:
    """Compares live verdicts with the labelled pictures as they come, and logs each alarm when it begins."""

    def __init__(self, policy: Policy) -> None:
        self._policy, self._stream = policy, Stream.of(policy)
        self._pending: list[Observation] = []
        self._ran = 0.0
        self._moments: dict[int, float] = {}
        """When each of these numbers of pictures had been seen, until an alarm."""

    def observe(self, verdict: Verdict) -> Verdict:
        """Take a verdict into account; it comes back held if there is an alarm."""
        self._pending.append(Observation.at(verdict, self._policy))
        if len(self._pending) >= TOGETHER or time.monotonic() - self._ran >= EVERY:
            self._run()
        return verdict.model_copy(update={"held": True}) if self._stream.alarm else verdict

    @property
    def stream(self) -> Stream:
        """The result after all verdicts so far."""
        if self._pending:
            self._run()
        return self._stream

    @property
    def since(self) -> float | None:
        """When the pictures began to differ from the profile's, in seconds since 1970; None without an alarm."""
        since = self.stream.since
        return None if since is None else max(moment for seen, moment in self._moments.items() if seen <= since)

    def _run(self) -> None:
        before, self._ran = self._stream, time.monotonic()
        if before.since is None:
            self._moments[before.seen] = time.time()
            if len(self._moments) > MOMENTS:
                self._moments = dict(list(self._moments.items())[::2])
        self._stream, self._pending = before.update(self._pending), []
        for name, was, test in (
            ("drift: the votes", before.drift, self._stream.drift),
            ("shift: the pictures themselves", before.shift, self._stream.shift),
        ):
            if was and test and test.alarm and not was.alarm:
                LOG.warning(
                    "%s no longer look like those that the profile was fitted on, since about picture %s of %s; "
                    "label some new pictures and fit again",
                    *(name, test.since, self._stream.seen),
                )
