"""`score --engine ray`: Ray Data reads the pictures, scores them in workers, and writes the verdicts to a folder."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from looktwice.cli.cluster import last_line, running
from looktwice.cli.console import ERR, Output, policy_of, print_json, safe, say, show_estimate, stop
from looktwice.cli.look import Machines, tell_drift, tell_unfamiliar
from looktwice.cli.verdict_folder import VerdictFolder
from looktwice.errors import DataError, FleetError, LookTwiceError
from looktwice.model import (
    OFF,
    POSTGRES,
    AskOptions,
    AsyncModel,
    Cause,
    Classifiers,
    Connected,
    DecisionOptions,
    Estimate,
    Limits,
    Observation,
    Profile,
    Progress,
    Stream,
    Unscored,
    connect,
    is_unfamiliar,
    stopping_signals,
)
from looktwice.ray import READING, SOURCE, Batch, Scorer, filesystem, listed, read

if TYPE_CHECKING:
    import pyarrow as pa
    from ray.actor import ActorHandle
    from ray.data import Dataset

ENOUGH = 1000
"""The fewest pictures for checking the share of bad ones."""
TICK = 1.0
"""Seconds between polls of a run."""
PATIENCE = 120.0
"""Seconds that a stopped run waits for queries in flight, which a dead worker never reports."""
NO_LEDGER = (
    "a paid classifier, a budget or a ledger on several machines needs a PostgreSQL ledger that all of them can reach: "
    "start one (for example: docker run -d -p 5432:5432 -e POSTGRES_PASSWORD=... postgres:17) "
    "and give --ledger postgresql://user@host/database"
)


@dataclass
class Tally:
    """Counts of pictures and queries."""

    pictures: int = 0
    before: int = 0
    """Pictures done by an earlier run."""
    unscored: int = 0
    bad: int = 0
    """Unreadable pictures."""
    unfamiliar: int = 0
    held: int = 0
    progress: Progress = field(default_factory=Progress)
    seconds: float = 0.0

    def add(self, other: Tally) -> None:
        """Count more pictures."""
        for name in ("pictures", "before", "unscored", "bad", "unfamiliar", "held", "progress"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def line(self) -> str:
        """Format the counts."""
        new, asked = self.pictures - self.before, self.progress
        parts = [f"{self.pictures} pictures ({new / max(self.seconds, 1e-9):.0f}/s)", f"{asked.sent} queries"]
        parts += [f"{self.before} done before"] if self.before else []
        parts += [f"{asked.hits} from the ledger"] if asked.hits else []
        parts += [f"{asked.retries} retries"] if asked.retries else []
        parts += [f"{asked.micros / 1e6:.4f} spent"] if asked.micros else []
        parts += [f"{self.unscored} not scored, {self.bad} of them unreadable"] if self.unscored else []
        return " · ".join(parts)


@dataclass(frozen=True)
class MaxBad:
    """The limit of unreadable pictures: a number or a share; None is no limit."""

    number: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, text: str | None) -> MaxBad:
        """`20` or `1%`."""
        if text is None:
            return cls()
        try:
            limit = cls(share=float(text[:-1]) / 100) if text.endswith("%") else cls(number=int(text))
        except ValueError:
            raise DataError(
                f"--max-bad {text!r} is neither a number nor a share; write 20 or 1%", code="option-invalid"
            ) from None
        if (limit.number or 0) < 0 or not 0 <= (limit.share or 0) <= 1:
            raise DataError(f"--max-bad {text!r} is not possible; write 20 or 1%", code="option-invalid")
        return limit

    def exceeded(self, tally: Tally, enough: int = ENOUGH) -> str | None:
        """Why a run should stop, None if it should not; a share is checked once there are enough pictures."""
        many = self.number is not None and tally.bad > self.number
        share = self.share is not None and tally.pictures >= enough and tally.bad > self.share * tally.pictures
        if not many and not share:
            return None
        return f"{tally.bad} of {tally.pictures} pictures cannot be read, more than --max-bad allows"


def score(
    paths: Sequence[str],
    take: str | None,
    verify: bool,
    profile_path: Path,
    classifiers: Classifiers | None,
    out: str,
    decide: DecisionOptions,
    machines: Machines,
    ask: AskOptions,
    output: Output,
) -> tuple[bool, int]:
    """Write the verdicts of all pictures to a folder; returns whether all have one, and how many are held."""
    if take is not None:
        raise DataError(
            "--take is for one machine; name the pictures that you want scored on Ray", code="option-conflict"
        )
    if verify:
        raise DataError(
            "--verify is for one machine; on Ray name another folder to have everything looked at again",
            code="option-conflict",
        )
    if ask.batch:
        raise DataError(
            "workers would wait up to a day for each batch; leave --batch out, or leave --engine ray out: "
            "one machine puts all questions into batches at once, and the vendor does the work",
            code="option-conflict",
        )
    for path in paths:
        if f"{_whole(out)}/".startswith(f"{_whole(path)}/"):  # they would be taken for tables of pictures
            raise DataError(
                f"the verdicts would be among the pictures of {path}; name another folder", code="option-conflict"
            )
    model = AsyncModel.load(profile_path, classifiers, options=ask)
    policy, max_bad = policy_of(model, decide), MaxBad.parse(machines.max_bad)
    job, listing, results = _job(model, decide), listed(paths), VerdictFolder(out)
    if not output.dry_run:
        header = {"profile": job.profile.model_dump(mode="json"), "options": asdict(decide), "seed": job.ask.seed}
        results.begin({**header, "classifiers": [one.fingerprint for one in model.connected]})
    done = results.done({file.source for file in listing}, tidy=not output.dry_run)
    with running(machines.address) as cpus:
        job = crew(job, cpus, machines)
        pictures = read(listing, done)
        if output.dry_run:
            _estimated(job.mapped(pictures, Estimator), model, output.json)
            return True, 0
        run = Run(job, Stream.of(policy), max_bad, Tally(pictures=len(done), before=len(done)))
        with _interruptible(run) as interrupted:
            run.follow(pictures, out, output.json_log)
    tally, complete = run.state.tally, not (interrupted or run.state.tally.unscored)
    if failure := run.failure(interrupted):
        raise FleetError(f"{failure}; finished verdicts are kept; run again to resume")
    tell_unfamiliar(tally.unfamiliar, tally.pictures, policy.false_alarms)
    stream, began = run.state.stream, run.state.began
    if output.json:
        drift = {"drift": stream.alarm, "drift_since": began, "expected_accuracy": asdict(stream.expected())}
        print_json({"out": out, "complete": complete, **drift, **asdict(tally)})
    say(f"{safe(tally.line())} · {tally.seconds:.0f} s")
    say(f"Verdicts: {safe(out)}" + ("" if complete else "; run the same command again to resume"))
    tell_drift(stream, began)
    return complete, tally.held


def _whole(path: str) -> str:
    return path.partition("?")[0].rstrip("/") if "://" in path else os.path.realpath(path)


# What is shared by the workers ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Remote:
    """The description of a classifier for workers, with its limits over all workers."""

    description: str
    name: str
    rename: Mapping[str, str]
    limits: Limits

    def of_one(self, workers: int, shared: bool) -> Remote:
        """The share of one of several workers; a rate is shared through the ledger, if there is one."""
        limits, rate = self.limits, self.limits.per_second
        concurrency = 1 if limits.local else limits.concurrency // workers
        return replace(
            self,
            limits=replace(limits, concurrency=concurrency, per_second=rate if shared or not rate else rate / workers),
        )

    def connect(self) -> Connected:
        """The classifier under these limits."""
        limits = self.limits
        return connect(
            self.description,
            name=self.name,
            rename=self.rename,
            concurrency=limits.concurrency,
            rate=limits.per_second,
        )


@dataclass(frozen=True)
class Job:
    """The settings of a run, the same for all workers."""

    profile: Profile = field(repr=False)
    classifiers: tuple[Remote, ...]
    ask: AskOptions
    """The options of one worker. The ledger is a PostgreSQL database, or off for a free local classifier."""
    decide: DecisionOptions
    folder: str
    """The working directory of the command, for relative paths."""
    workers: int = 1
    shard: int = 1000

    def mapped(self, pictures: Dataset, scorer: type[Scorer], *more: object) -> Dataset:
        """Map the dataset through workers, each with its own processor."""
        return pictures.map_batches(
            scorer,
            fn_constructor_args=(self, *more),
            batch_size=self.shard,
            concurrency=self.workers,
            num_cpus=1 - READING,
        )


def _job(model: AsyncModel, decide: DecisionOptions) -> Job:
    """Create the job, with a budget shared by all workers; the ledger is opened here first, to fail early."""
    remotes = tuple(
        Remote(one.description, one.name, dict(one.rename), model.options.of(one).limits(one.classifier))
        for one in model.connected
    )
    ledger = shared_ledger([one.limits for one in remotes], model.options)
    spent = model.engine.spend()
    ask = replace(model.options, ledger=ledger or OFF).settled(
        max((one.limits for one in remotes), key=lambda each: each.price_micros), spent
    )
    asyncio.run(model.close())
    return Job(model.fitted(), remotes, ask, decide, os.getcwd())


def shared_ledger(limits: Sequence[Limits], ask: AskOptions) -> str | None:
    """The address of the shared ledger; None if every classifier is local and free."""
    ledger = None if ask.ledger == OFF else ask.ledger
    if all(each.local for each in limits) and ledger is None and not ask.is_limited():
        return None
    if ledger is None or not ledger.startswith(POSTGRES):
        raise FleetError(NO_LEDGER, code="ledger-required")
    return ledger


def crew(job: Job, cpus: int, machines: Machines) -> Job:
    """Divide the concurrency of each classifier among the workers.

    Each worker has one processor, also for a local model.
    """
    workers = machines.workers or cpus
    if workers > cpus:
        raise FleetError(
            f"{workers} workers need as many processors, and the cluster has {cpus}; "
            f"give --workers {cpus} or add machines",
            code="option-invalid",
        )
    workers = min([workers, *(one.limits.concurrency for one in job.classifiers if not one.limits.local)])
    remotes = tuple(one.of_one(workers, job.ask.ledger != OFF) for one in job.classifiers)
    return replace(job, classifiers=remotes, workers=workers, shard=machines.shard)


# Workers -------------------------------------------------------------------------------------------------------------


class Estimator(Scorer):
    """Estimates the queries of a batch, without sending any."""

    def __init__(self, job: Job) -> None:
        if Path(job.folder).is_dir():  # not every machine need have it
            os.chdir(job.folder)
        classifiers = [one.connect() for one in job.classifiers]
        super().__init__(job.profile, classifiers, name="name", keep=(SOURCE,), decide=job.decide, options=job.ask)
        self._job = job

    def __call__(self, batch: Batch) -> dict[str, list[str]]:
        estimate = self.model.estimate([content or b"" for content in batch["bytes"]], self._job.decide)
        return {"estimate": [json.dumps(asdict(estimate))]}


class Worker(Estimator):
    """Scores batches, reports to the board, and closes its model when the board stops the run."""

    def __init__(self, job: Job, board: ActorHandle[Board]) -> None:
        import ray

        super().__init__(job)
        self._board, self._policy = board, job.decide.of(job.profile)
        self._stopping, self._busy = False, False
        self._who = ray.get_runtime_context().get_actor_id()
        ray.get(board.enter.remote(self._who))
        threading.Thread(target=self._stop, daemon=True).start()

    def __call__(self, batch: Batch) -> pa.Table:
        import ray

        before, self._busy, verdicts = self.progress or Progress(), True, []
        try:
            verdicts = [] if self._stopping else self.verdicts(batch)
        except LookTwiceError as error:
            if not self._stopping:
                self._board.stop.remote(str(error))
        finally:
            self._busy = False
        if self._stopping or len(verdicts) < len(batch["name"]):
            verdicts, batch = [], {name: column[:0] for name, column in batch.items()}
        unscored = [each for each in verdicts if isinstance(each, Unscored)]
        bad, unfamiliar = (each.cause is Cause.UNREADABLE for each in unscored), map(is_unfamiliar, verdicts)
        held = sum(not isinstance(each, Unscored) and each.held is not None for each in verdicts)
        asked = (self.progress or before) - before
        share = Tally(len(verdicts), 0, len(unscored), sum(bad), sum(unfamiliar), held, asked)
        cut_off = any(each.cause is Cause.BUDGET for each in unscored)  # the others are no fair sample then
        scored = [] if cut_off else [each for each in verdicts if not isinstance(each, Unscored)]
        observations = [Observation.at(each, self._policy) for each in scored]
        ray.get(self._board.add.remote(share, observations, scored[0].name if scored else ""))
        return self.table(batch, verdicts)

    def _stop(self) -> None:
        """Wait until the run is stopped, then send nothing more; queries in flight are awaited."""
        import ray

        ray.get(self._board.stopped.remote())
        self._stopping = True
        while self._busy:
            self.model.close()
            time.sleep(0.05)
        self._board.leave.remote(self._who)


@dataclass
class State:
    """The state of a run."""

    tally: Tally
    stream: Stream
    began: str | None = None
    """The first picture of the batch in which drift began, in the order of the verdicts."""
    reason: str | None = None
    """Why the run is stopped; None while running."""
    working: int = 0
    """The number of workers that may have queries in flight."""


class Board:
    """An actor that counts the workers' results and stops them."""

    def __init__(self, tally: Tally, stream: Stream, max_bad: MaxBad) -> None:
        self._state, self._max_bad = State(tally, stream), max_bad
        self._firsts: dict[int, str] = {}
        self._workers = set[str]()
        self._stopped = asyncio.Event()

    async def enter(self, who: str) -> None:
        """Count a worker among those that may have queries in flight."""
        self._workers.add(who)

    async def leave(self, who: str) -> None:
        """Count a stopped worker without queries in flight."""
        self._workers.discard(who)

    async def add(self, share: Tally, observations: Sequence[Observation], first: str) -> None:
        """Count a batch; `first` is its first picture with a verdict."""
        state = self._state
        state.tally.add(share)
        self._firsts[state.stream.seen] = first
        state.stream = state.stream.update(observations)
        if state.began is None and (since := state.stream.since) is not None:
            state.began = self._firsts[max(seen for seen in self._firsts if seen <= since)]
        if reason := self._max_bad.exceeded(state.tally):
            await self.stop(reason)

    async def stop(self, reason: str) -> None:
        """Stop the workers; the first reason is kept."""
        self._state.reason = self._state.reason or reason
        self._stopped.set()

    async def stopped(self) -> None:
        """Return when the run is stopped."""
        await self._stopped.wait()

    async def state(self) -> State:
        """The current state."""
        return replace(self._state, working=len(self._workers))


# The run -------------------------------------------------------------------------------------------------------------


class Run:
    """Scores a dataset into a folder, and follows the progress."""

    def __init__(self, job: Job, stream: Stream, max_bad: MaxBad, tally: Tally) -> None:
        import ray

        self.state = State(tally, stream)
        self._job, self._max_bad = job, max_bad
        self._board = ray.remote(num_cpus=0)(Board).remote(tally, stream, max_bad)
        self._reason: str | None = None
        self._error: Exception | None = None

    def stop(self, reason: str) -> None:
        """Stop sending queries soon; those in flight are awaited."""
        self._reason = self._reason or reason

    def failure(self, interrupted: Sequence[str]) -> str | None:
        """Why the run failed, if it did."""
        if interrupted:
            return None
        if self._error and not self.state.reason:  # a run that is stopped ends in some error of Ray's
            return last_line(self._error)
        return self.state.reason or self._max_bad.exceeded(self.state.tally, enough=1)

    def follow(self, pictures: Dataset, out: str, json_log: bool) -> None:
        """Score the pictures; returns when they are done, or once a stopped run has nothing in flight."""
        import ray

        system, folder = filesystem(out.rstrip("/"))
        verdicts = self._job.mapped(pictures, Worker, self._board)

        def write() -> None:
            try:
                verdicts.write_parquet(folder, filesystem=system, ray_remote_args={"num_cpus": READING})
            except Exception as error:  # Ray raises many kinds, plain ones among them
                self._error = error

        writing = threading.Thread(target=write, daemon=True)
        writing.start()
        began, deadline = time.monotonic(), float("inf")
        with ERR.status("Starting ...") as status:
            while writing.is_alive() and time.monotonic() < deadline:
                writing.join(TICK)
                if self._reason:
                    ray.get(self._board.stop.remote(self._reason))
                self.state = ray.get(self._board.state.remote())
                self.state.tally.seconds = time.monotonic() - began
                status.update(safe(self.state.tally.line()))
                if json_log:
                    sys.stderr.write(json.dumps(asdict(self.state.tally)) + "\n")
                if self.state.reason:
                    deadline = min(deadline, time.monotonic() + PATIENCE) if self.state.working else 0.0


@contextmanager
def _interruptible(run: Run) -> Iterator[list[str]]:
    """The first signal stops the run gracefully, the second at once; the list receives the reason."""
    reasons: list[str] = []

    def halt(reason: str) -> None:
        reasons.append(reason)
        run.stop(reason)

    before = {each: signal.signal(each, lambda number, _: stop(number, halt)) for each in stopping_signals()}
    try:
        yield reasons
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _estimated(estimates: Dataset, model: AsyncModel, as_json: bool) -> None:
    """Sum the estimates of the batches, and print the total; a picture in two batches counts twice."""
    total = Estimate(0, 0, 0, 0, 0, 0, None)
    for row in estimates.iter_rows():
        total += Estimate(**json.loads(row["estimate"]))
    rate = model.limits.per_second
    show_estimate(replace(total, seconds=total.queries / rate if rate else None), model.ledger_name(), as_json)
