"""Monitor a stream of verdicts: whether and when the pictures changed since the fit, and the expected accuracy."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, Self, TypeVar

import numpy as np

from looktwice.decisions.monitoring import Drift
from looktwice.decisions.policy import PicturePolicy
from looktwice.decisions.results import HeldOut
from looktwice.decisions.verdict import PictureVerdict, Verdict
from looktwice.engine import Alarm, Ledger, Transaction

BINS = 5
"""The number of equally large groups by confidence, used for weighting live answers."""
LEAST_IN_BIN = 20
Z = 1.96
TOGETHER, EVERY = 10, 1.0
"""A monitor runs its tests after this many verdicts or seconds: a run takes about 2 ms for any number of verdicts."""
RECENT = 10_000
"""The number of recent verdicts that are stored, to list the verdicts since a change began."""
USUAL, USUAL_TIMES = 200, 3
"""An alarm ends after at least this many normal pictures in a row, and this multiple of the pictures that raised it."""
ODD = math.log(10.0)
"""The evidence above which pictures after an alarm are treated as unusual; without a change, its probability is 1 in
10."""
V = TypeVar("V", bound=PictureVerdict)
LOG = logging.getLogger("looktwice.monitoring")


class Observation(NamedTuple):
    """The part of a verdict that a stream keeps."""

    agreement_bin: int
    familiarity_kind: int
    confidence: float

    @classmethod
    def at(cls, verdict: PictureVerdict, policy: PicturePolicy) -> Self:
        """Extract this part; verdicts on tags have no single confidence."""
        agreement = policy.agreement_bin(verdict.asked[0].label or "", [label for _, label in verdict.votes])
        confidence = verdict.confidence if isinstance(verdict, Verdict) else 1.0
        return cls(agreement, policy.familiarity_kind(verdict.pixels), round(confidence, 6))


@dataclass(frozen=True)
class ExpectedAccuracy:
    """The expected accuracy of a stream, with its 95 % interval, or why it is unknown."""

    accuracy: float | None = None
    low: float | None = None
    high: float | None = None
    reason: str | None = None

    def sentence(self) -> str:
        """The expected accuracy as a sentence."""
        if self.accuracy is None or self.low is None or self.high is None:
            return f"Expected accuracy: unknown, because {self.reason}."
        interval = f"{100 * self.accuracy:.1f} % (95 % interval {100 * self.low:.1f} % to {100 * self.high:.1f} %)"
        return (
            f"Expected accuracy: {interval}, if answers are right as often as those about labelled pictures with the "
            "same confidence."
        )


@dataclass(frozen=True)
class Stream:
    """Statistics of live pictures, compared with the labelled ones of the profile."""

    held_out: HeldOut
    drift: Drift | None
    """The test that the views agree as often as before; None if the profile does not support it."""
    shift: Drift | None
    """The test that the pictures are as familiar as before; None if the profile does not support it."""
    confidences: tuple[int, ...] = (0,) * BINS
    """The number of live answers in each group of confidence."""
    sum: float = 0.0
    """The sum of the confidences of live answers."""
    chance: float = 0.0
    """The variance of the number of right answers, if confidences are calibrated."""

    @classmethod
    def start(cls, policy: PicturePolicy) -> Self:
        """The initial state."""
        return cls(policy.held_out, policy.drift(), policy.shift())

    @property
    def seen(self) -> int:
        """The number of live pictures."""
        return sum(self.confidences)

    @property
    def alarm(self) -> bool:
        """Whether an alarm was raised by either test."""
        return any(test is not None and test.alarm for test in (self.drift, self.shift))

    @property
    def evidence(self) -> float:
        """The maximum log wealth of the two tests."""
        return max((test.peak for test in (self.drift, self.shift) if test is not None), default=0.0)

    @property
    def since(self) -> int | None:
        """The most likely start of the change, in pictures, by the stronger alarm; None without one."""
        tests = [test for test in (self.drift, self.shift) if test is not None and test.alarm]
        return max(tests, key=lambda test: test.peak).since if tests else None

    def update(self, observations: Sequence[Observation]) -> Self:
        """Update with more verdicts, in this order."""
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
        """The expected accuracy so far: the mean confidence, corrected by the labelled pictures.

        This is valid as long as nothing has changed. After an alarm, confident answers may be wrong more often than
        before, and answers alone cannot show whether the pictures are merely harder ones of the same kind. The
        correction is the labelled pictures' mean of (right − confidence) in groups of similar confidence, weighted by
        the groups' shares among live answers.
        """
        sure, correct = self.held_out.arrays()
        group = np.searchsorted(self._edges(), sure, "right") if len(sure) else np.zeros(0, np.intp)
        known = np.bincount(group, minlength=BINS)
        weight = np.array(self.confidences) / max(self.seen, 1)
        if self.shift is None:
            return ExpectedAccuracy(reason="the profile cannot tell whether the pictures are like the labelled ones")
        if self.shift.alarm:
            return ExpectedAccuracy(reason="these pictures differ from the labelled ones; label some of them")
        if self.alarm:
            return ExpectedAccuracy(
                reason="answers alone cannot show whether the pictures are merely harder; label some of them"
            )
        if not self.seen or (known[weight > 0] < LEAST_IN_BIN).any():
            return ExpectedAccuracy(reason="too few labelled pictures have similar confidences")
        parts = [(correct - sure)[group == each] for each in range(BINS)]
        value = float(self.sum / self.seen + sum(w * part.mean() for w, part in zip(weight, parts, strict=True) if w))
        variance = sum(w**2 * part.var(ddof=1) / len(part) for w, part in zip(weight, parts, strict=True) if w)
        width = Z * float(np.sqrt(variance + self.chance / self.seen**2))
        value = min(max(value, 0.0), 1.0)  # surer answers than the labelled ones may be corrected beyond it
        return ExpectedAccuracy(value, max(0.0, value - width), min(1.0, value + width))

    def lines(self) -> list[str]:
        """Sentences about a change, or a sentence that none was detected; empty before the first verdict."""
        if not self.seen:
            return []
        if not self.alarm:
            tests = [test for test in (self.drift, self.shift) if test is not None]
            evidence = (
                f"none seen in {self.seen:,} picture{'s' * (self.seen != 1)}"
                if tests
                else "unknown, because the profile has too few pictures to compare with"
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
        """The lower bounds of the groups of confidence, except the first."""
        sure = self.held_out.arrays()[0]
        return np.quantile(sure, np.arange(1, BINS) / BINS).tolist() if len(sure) else [0.5] * (BINS - 1)


@dataclass(slots=True)
class Recent:
    """The part of a verdict that is needed after an alarm."""

    name: str
    digest: str | None
    familiarity: float
    at: float
    """The time of the verdict, in seconds since 1970."""
    accepted: bool = False
    """Whether it was returned as accepted."""


class Monitor:
    """Compares live verdicts with the labelled pictures; holds verdicts during an alarm.

    An alarm is raised by a test of the stream. The alarm ends after as many normal pictures in a row as are needed to
    detect a change like this one, or when a user ends it. All processes with the same profile and ledger share the
    alarm: it is stored in the ledger, which is read whenever the tests run.
    """

    def __init__(self, policy: PicturePolicy, profile: str, holds: bool = True) -> None:
        self._policy, self._profile, self._holds = policy, profile, holds
        self._stream = self._since_alarm = Stream.start(policy)
        self.alarm: Alarm | None = None
        self._pending: list[Observation] = []
        self._recent: deque[Recent] = deque(maxlen=RECENT)
        """The most recent verdicts, including verdicts that are not yet tested."""
        self._ran, self._running = 0.0, False
        self.left_behind: Set[str] = frozenset()
        """The names of pictures that an earlier run left without a final verdict: such pictures are the doubtful ones,
        so they are not compared."""

    async def observe(self, verdict: V, ledger: Ledger | None = None, *, compare: bool = True) -> V:
        """Hold a verdict if there is an alarm; `compare` is false for verdicts that are not a representative sample of
        the stream."""
        familiarity = 1.0 if verdict.familiarity is None else verdict.familiarity
        recent = Recent(verdict.name, verdict.digest, familiarity, time.time())
        if compare and verdict.name not in self.left_behind:
            self._pending.append(Observation.at(verdict, self._policy))
            self._recent.append(recent)
        if len(self._pending) >= TOGETHER or time.monotonic() - self._ran >= EVERY:
            await self.catch_up(ledger)
        if self.alarm and self._holds:
            return verdict.model_copy(update={"held": str(self.alarm)})
        recent.accepted = verdict.decision == "accept"
        return verdict

    async def catch_up(self, ledger: Ledger | None = None) -> None:
        """Run the tests on new verdicts, and share an alarm that begins or ends."""
        if self._running:
            return
        self._running, self._ran = True, time.monotonic()
        try:
            if ledger:
                self._adopt(ledger.alarm(self._profile))
            before = self.alarm
            self._run()
            if ledger and self.alarm != before:
                change = self.alarm
                if change and before:
                    change = change._replace(pictures=change.pictures - before.pictures)
                await ledger.change(partial(Transaction.set_alarm, profile=self._profile, alarm=change))
        finally:
            self._running = False

    @property
    def stream(self) -> Stream:
        """The statistics since the start, or since the last alarm ended."""
        return self._stream

    def _adopt(self, stored: Alarm | None) -> None:
        """Adopt an alarm that was raised or ended elsewhere."""
        if (stored is None) != (self.alarm is None):
            self._since_alarm = Stream.start(self._policy)
            self._stream = self._stream if stored else self._since_alarm
        self.alarm = stored

    def changed(self) -> list[Recent]:
        """The verdicts of this process since the change began; empty without an alarm."""
        since = self._stream.since if self.alarm else None
        return [] if since is None else list(self._recent)[self._place(since) :]

    def _place(self, seen: int) -> int:
        """The index in the recent verdicts of the first verdict after this many pictures."""
        return max(0, len(self._recent) - len(self._pending) - (self._stream.seen - seen))

    def _run(self) -> None:
        observations, self._pending = self._pending, []
        if not observations:
            return
        self._stream = self._stream.update(observations)
        if self.alarm:
            self.alarm = self.alarm._replace(pictures=self.alarm.pictures + len(observations))
            self._since_alarm = self._since_alarm.update(observations)
            if self._since_alarm.evidence >= ODD:
                self._since_alarm = Stream.start(self._policy)
            elif self._since_alarm.seen >= self.alarm.needed:
                self._stream, self.alarm = self._since_alarm, None
                LOG.warning("the pictures look normal again; verdicts are no longer held")
        elif (since := self._stream.since) is not None:
            delay = self._stream.seen - since
            began = self._recent[self._place(since)].at
            self.alarm = Alarm(began, delay, max(USUAL, USUAL_TIMES * delay))
            self._since_alarm = Stream.start(self._policy)
            LOG.warning(
                "%s (%s); label some of these and add them with fit --add", " ".join(self._stream.lines()), self.alarm
            )
