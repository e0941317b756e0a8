"""One worker of a fleet: it scores unit after unit, each into a shard of its own."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Thread
from uuid import uuid4

from looktwice.asking import Asker
from looktwice.classifiers import connect
from looktwice.errors import ImageError, LookTwiceError
from looktwice.fleet.courier import LeasedPace, Line, RemoteLedger
from looktwice.fleet.keeper import Away
from looktwice.fleet.shards import Shards, Summary
from looktwice.fleet.sources import Unit
from looktwice.images import Image
from looktwice.ledger import POSTGRES, Budget, Ledger, open_at
from looktwice.look import look
from looktwice.outcome import Unscored
from looktwice.pictures import Picture, Source
from looktwice.practice import DecisionOptions
from looktwice.profile import Profile
from looktwice.scorefile import record, unscored_record
from looktwice.session import fastest_loop, priced

BEAT = 1.0
"""Seconds between two signs to the keeper."""


@dataclass(frozen=True)
class Job:
    """What every worker needs to know; the same for all."""

    profile: Profile = field(repr=False)
    use: DecisionOptions
    classifier: str
    folder: str
    """The folder in which the command was given, where relative paths begin."""
    out: str
    seed: int
    canaries: int
    price_micros: int | None
    ledger: str | None
    shared: bool
    """Whether workers must agree on what is asked: there is a ledger, a budget or money at stake."""
    budget: Budget
    per_second: float | None
    concurrency: int
    """Calls at the same time, of one worker."""
    dry: bool = False
    """Whether to say what would be asked, and ask nothing."""


def enter(folder: str) -> None:
    """Have relative paths begin where the command was given, on machines that have that folder."""
    if Path(folder).is_dir():
        os.chdir(folder)


class Scorer:
    """Scores units for a job, for as long as its process lives."""

    def __init__(self, job: Job, line: Line, actor: str) -> None:
        enter(job.folder)
        self._job, self._line = job, line
        self._name = f"{actor}/{uuid4().hex}"
        self._shards = Shards(job.out)
        self._practice = job.use.of(job.profile)
        self._runner = asyncio.Runner(loop_factory=fastest_loop())
        self._ledger = self._opened_ledger()
        self._asker = self._runner.run(self._open())
        self._closing = Event()
        self._beats = Thread(target=self._keep_beating, name="beats", daemon=True)
        self._beats.start()

    def work(self, unit: Unit) -> Summary:
        """Write the verdicts of a unit, unless an earlier run did; what cannot be done is told, never raised."""
        try:
            return self._shards.done(unit.identity) or self._runner.run(self._do(unit))
        except LookTwiceError as error:
            return Summary(unit.identity, error=str(error))
        finally:
            self._beat()

    def close(self) -> None:
        """Let go of the classifier and the ledger."""
        self._closing.set()
        self._beats.join()
        self._runner.run(self._asker.classifier.close())
        self._runner.close()
        if self._ledger:
            self._ledger.close()

    async def _do(self, unit: Unit) -> Summary:
        if self._job.dry:
            estimate = await self._asker.estimate(unit.pictures(), self._practice.panel)
            return Summary(unit.identity, estimate=estimate)
        return await self._score(unit)

    async def _open(self) -> Asker:
        job, classifier = self._job, connect(self._job.classifier)
        if job.price_micros is not None:
            classifier = priced(classifier, job.price_micros)
        pace = LeasedPace(concurrency=job.concurrency, per_second=job.per_second, line=self._line)
        return Asker(classifier, self._ledger, pace, job.budget, job.seed, job.canaries)

    def _opened_ledger(self) -> Ledger | None:
        """The keeper's, or else a line of our own to a database that is made for many."""
        if not self._job.shared:
            return None
        if self._job.ledger and self._job.ledger.startswith(POSTGRES):
            return open_at(self._job.ledger)
        return RemoteLedger(self._line, self._name)

    async def _score(self, unit: Unit) -> Summary:
        bad, records, kinds = set[str](), list[dict[str, object]](), list[int]()
        pictures = (_noting(picture, bad) for picture in unit.pictures())
        async for verdict in look(self._asker, pictures, self._job.profile, self._practice):
            if isinstance(verdict, Unscored):
                records.append(unscored_record(verdict))
            else:
                records.append(record(verdict))
                kinds.append(self._practice.kind(verdict.base, [label for _, label in verdict.votes]))
        if self._asker.stopped:
            return Summary(unit.identity, stopped=self._name)
        summary = Summary(unit.identity, len(records), len(records) - len(kinds), len(bad), tuple(kinds))
        await asyncio.to_thread(self._shards.add, summary, records)
        return summary

    def _keep_beating(self) -> None:
        while not self._closing.wait(BEAT):
            self._beat()

    def _beat(self) -> None:
        """Tell the keeper how it goes, and hear whether to stop."""
        with suppress(Away):
            reason = self._line.beat(self._name, replace(self._asker.progress))
            if reason:
                self._runner.get_loop().call_soon_threadsafe(self._asker.stop, reason)


@dataclass(frozen=True, slots=True)
class _Noting:
    """A source that notes which pictures cannot be read."""

    source: Source
    bad: set[str] = field(repr=False)

    def image(self, name: str) -> Image:
        try:
            return self.source.image(name)
        except ImageError:
            self.bad.add(name)
            raise


def _noting(picture: Picture, bad: set[str]) -> Picture:
    return replace(picture, source=_Noting(picture.source, bad))
