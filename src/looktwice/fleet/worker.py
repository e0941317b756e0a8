"""One worker of a fleet: it scores unit after unit, each into a shard of its own."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from looktwice.asking import Asker, Unscored
from looktwice.classifiers import connect
from looktwice.errors import ImageError, LookTwiceError
from looktwice.fleet.pace import SharedPace
from looktwice.fleet.shards import Shards, Summary
from looktwice.fleet.sources import Unit
from looktwice.images import Image
from looktwice.ledger import Budget
from looktwice.look import look
from looktwice.pacing import Pace
from looktwice.pictures import Picture, Source
from looktwice.practice import Use
from looktwice.profile import Profile
from looktwice.scorefile import record, unscored_record
from looktwice.sending import Progress
from looktwice.session import priced

if TYPE_CHECKING:
    from looktwice.ledger.postgres import PostgresLedger


@dataclass(frozen=True)
class Job:
    """What every worker needs to know; the same for all."""

    profile: Profile = field(repr=False)
    use: Use
    classifier: str
    folder: str
    """The folder in which the command was given, where relative paths begin."""
    out: str
    seed: int
    canaries: int
    price_micros: int | None
    ledger: str | None
    """The PostgreSQL database that keeps budget, pace and answers; None for a free local classifier."""
    budget: Budget
    per_second: float | None
    """Questions a second, of all workers together."""
    workers: int = 1
    concurrency: int = 1
    """Calls at the same time, of one worker."""
    dry: bool = False
    """Whether to say what would be asked, and ask nothing."""


class Scorer:
    """Scores one unit after the other for a job. A fleet has many of them, each an actor of Ray."""

    def __init__(self, job: Job) -> None:
        if Path(job.folder).is_dir():  # not every machine need have it
            os.chdir(job.folder)
        self._job = job
        self._practice = job.use.of(job.profile)
        self._ledger: PostgresLedger | None = None
        self._asker: Asker | None = None
        self._before = Progress()
        """Where the asker stood when the unit at hand was begun."""

    async def ready(self) -> None:
        """Returns once there is a process to work in."""

    async def work(self, unit: Unit) -> Summary:
        """Write the verdicts of a unit, unless an earlier run did; what cannot be done is told, never raised."""
        try:
            self._asker = self._asker or self._opened()
            self._before = replace(self._asker.progress)
            done = await asyncio.to_thread(Shards(self._job.out).done, unit.identity)
            summary = done or await (self._estimate if self._job.dry else self._score)(self._asker, unit)
        except LookTwiceError as error:
            summary = Summary(unit.identity, error=str(error))
        return replace(summary, progress=await self.progress())

    async def progress(self) -> Progress:
        """What was asked for the unit at hand."""
        return self._asker.progress - self._before if self._asker else Progress()

    async def stop(self, reason: str) -> None:
        """Send nothing more; what is in flight is waited for."""
        if self._asker:
            self._asker.stop(reason)

    async def close(self) -> None:
        """Let go of the classifier and the ledger."""
        if self._asker:
            await self._asker.classifier.close()
        if self._ledger:
            await asyncio.to_thread(self._ledger.close)

    def _opened(self) -> Asker:
        job, classifier = self._job, connect(self._job.classifier)
        if job.price_micros is not None:
            classifier = priced(classifier, job.price_micros)
        pace = Pace(job.concurrency, job.per_second and job.per_second / job.workers)
        if job.ledger:
            from looktwice.ledger.postgres import PostgresLedger

            self._ledger = PostgresLedger(job.ledger)
            pace = SharedPace(job.concurrency, job.per_second, ledger=self._ledger, fingerprint=classifier.fingerprint)
        return Asker(classifier, self._ledger, pace, job.budget, job.seed, job.canaries)

    async def _estimate(self, asker: Asker, unit: Unit) -> Summary:
        return Summary(unit.identity, estimate=await asker.estimate(unit.pictures(), self._practice.panel))

    async def _score(self, asker: Asker, unit: Unit) -> Summary:
        bad, records, kinds = set[str](), list[dict[str, object]](), list[int]()
        pictures = (_noting(picture, bad) for picture in unit.pictures())
        async for verdict in look(asker, pictures, self._job.profile, self._practice):
            if isinstance(verdict, Unscored):
                records.append(unscored_record(verdict.name, verdict.reason))
            else:
                records.append(record(verdict))
                kinds.append(self._practice.kind(verdict.base, [label for _, label in verdict.votes]))
        if asker.stopped:
            return Summary(unit.identity, stopped=True)
        summary = Summary(unit.identity, len(records), len(records) - len(kinds), len(bad), tuple(kinds))
        await asyncio.to_thread(Shards(self._job.out).add, summary, records)
        return summary


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
