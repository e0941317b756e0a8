"""One worker of a fleet: it scores unit after unit, each into a shard of its own."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field, replace
from pathlib import Path

from looktwice.asking.outcome import Cause, Progress, Unscored
from looktwice.asking.session import AskOptions
from looktwice.errors import LookTwiceError
from looktwice.fleet.shards import Shards, Summary
from looktwice.fleet.sources import Unit
from looktwice.model import AsyncModel
from looktwice.verdicts.files import record, unscored_record
from looktwice.verdicts.look import is_unfamiliar
from looktwice.verdicts.policy import DecisionOptions
from looktwice.verdicts.profile import Profile
from looktwice.verdicts.stream import Observation


@dataclass(frozen=True)
class Job:
    """The settings of a job, the same for all workers."""

    profile: Profile = field(repr=False)
    classifier: str
    ask: AskOptions
    """How one worker asks. The ledger is a PostgreSQL database, or off for a free local classifier."""
    decide: DecisionOptions
    folder: str
    """The folder in which the command was given, where relative paths begin."""
    out: str
    workers: int = 1
    dry: bool = False
    """Whether to estimate what would be asked, and ask nothing."""


class Scorer:
    """Scores one unit after the other for a job. A fleet has many of them, each an actor of Ray."""

    def __init__(self, job: Job) -> None:
        if Path(job.folder).is_dir():  # not every machine need have it
            os.chdir(job.folder)
        self._job = job
        self._model: AsyncModel | None = None
        self._before = Progress()
        """The model's progress when the current unit was begun."""

    async def ready(self) -> None:
        """Returns once there is a process to work in."""

    async def work(self, unit: Unit) -> Summary:
        """Write the verdicts of a unit, unless an earlier run did; failures are returned, never raised."""
        try:
            job = self._job
            self._model = self._model or AsyncModel(job.classifier, job.profile, options=job.ask)
            self._before = self._model.asked
            done = await asyncio.to_thread(Shards(job.out).done, unit.identity)
            summary = done or await (self._estimate if job.dry else self._score)(self._model, unit)
        except LookTwiceError as error:
            summary = Summary(unit.identity, error=str(error))
        return replace(summary, progress=await self.progress())

    async def progress(self) -> Progress:
        """What was asked for the current unit."""
        return self._model.asked - self._before if self._model else Progress()

    async def stop(self, message: str) -> None:
        """Send nothing more; what is in flight is waited for."""
        if self._model:
            self._model.stop(message)

    async def close(self) -> None:
        """Close the classifier and the ledger."""
        if self._model:
            await self._model.close()

    async def _estimate(self, model: AsyncModel, unit: Unit) -> Summary:
        return Summary(unit.identity, estimate=await model.estimate(iter(unit.pictures()), self._job.decide))

    async def _score(self, model: AsyncModel, unit: Unit) -> Summary:
        bad = unfamiliar = unscored = 0
        cut_off = False  # which pictures still get a verdict then depends on what was asked before
        records, observations = list[dict[str, object]](), list[Observation]()
        policy = model.policy(self._job.decide)
        async for verdict in model.score(iter(unit.pictures()), self._job.decide):
            unfamiliar += is_unfamiliar(verdict)
            if isinstance(verdict, Unscored):
                unscored += 1
                bad += verdict.cause is Cause.UNREADABLE
                cut_off |= verdict.cause is Cause.BUDGET
                records.append(unscored_record(verdict))
            else:
                records.append(record(verdict))
                observations += [] if cut_off else [Observation.at(verdict, policy)]
        if model.asker.stopped:
            return Summary(unit.identity, stopped=True)
        summary = Summary(unit.identity, len(records), unscored, bad, unfamiliar, tuple(observations))
        await asyncio.to_thread(Shards(self._job.out).add, summary, records)
        return summary
