"""`score --engine ray`: Ray Data reads the pictures, scores them in workers, and writes the verdicts to a folder."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING
from uuid import uuid4

from looktwice.cli.console import Output, complain, policy_of, print_json, safe, say, show_estimate, stop
from looktwice.cli.look import Decided, Machines, tell_doubtful
from looktwice.model import (
    OFF,
    POSTGRES,
    AnyVerdict,
    AskOptions,
    AsyncModel,
    Classifiers,
    Connected,
    DataError,
    DecisionOptions,
    Estimate,
    FleetError,
    Limits,
    LookTwiceError,
    Profile,
    Unscored,
    connect,
    from_record,
    shown,
)
from looktwice.model.runs import handling_signals
from looktwice.ray import READING, SOURCE, Batch, Scorer, filesystem, last_line, listed, read, running

if TYPE_CHECKING:
    import pyarrow as pa
    from ray.actor import ActorHandle
    from ray.data import Dataset


HEADER = "_looktwice.json"
"""The file in a folder of verdicts that identifies profile and options."""
TICK = 1.0
"""Seconds between polls of a run."""
PATIENCE = 120.0
"""The time in seconds for which a stopped run waits for queries in flight; a worker that has crashed never reports
their end."""
NO_LEDGER = (
    "a paid classifier, a budget or a ledger on several machines needs a PostgreSQL ledger that all of them can reach: "
    "start one (for example: docker run -d -p 5432:5432 -e POSTGRES_PASSWORD=... postgres:17) "
    "and give --ledger postgresql://user@host/database"
)


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
    """Write the verdicts of all pictures to a folder; returns whether every picture has a verdict, and how many
    verdicts are held."""
    for used, why in (
        (take is not None, "--take works on one machine only; on Ray, specify the pictures to score"),
        (verify, "--verify works on one machine only; on Ray, specify another folder to score everything again"),
        (output.json_log, "--json-log works on one machine only; Ray has its own logs and dashboard"),
        (
            ask.batch,
            "workers would wait up to a day for each batch; leave out --batch, or leave out --engine ray: one "
            "machine submits all queries in batches at once, and the vendor processes them",
        ),
    ):
        if used:
            raise DataError(why, code="option-conflict")
    for path in paths:
        if f"{_whole(out)}/".startswith(f"{_whole(path)}/"):  # they would be taken for tables of pictures
            raise DataError(
                f"the verdicts would be written among the pictures of {path}; specify another folder",
                code="option-conflict",
            )
    model = AsyncModel.load(profile_path, classifiers, options=ask)
    policy_of(model, decide)
    job, listing, results = _job(model, decide), listed(paths), VerdictFolder(out)
    if not output.dry_run:
        header = {"profile": job.profile.model_dump(mode="json"), "options": asdict(decide), "seed": job.ask.seed}
        results.begin({**header, "classifiers": [one.fingerprint for one in model.connected]})
    done = results.done({file.source for file in listing}, tidy=not output.dry_run)
    with running(machines.address) as cpus:
        job, pictures = crew(job, cpus, machines), read(listing, done)
        if output.dry_run:
            _estimated(job.mapped(pictures, Estimator), model, output.json)
            return True, 0
        interrupted, failure = _run(job, pictures, out)
    if failure and not interrupted:
        raise FleetError(f"{failure}; finished verdicts are kept; run again to resume")
    decided = _tell(results, decide, {"out": out, "before": len(done)}, bool(interrupted), output.json)
    return not (interrupted or decided.unscored or decided.provisional), decided.held


def _tell(results: VerdictFolder, decide: DecisionOptions, record: dict[str, object], cut: bool, json: bool) -> Decided:
    """Print a summary of the verdicts in the folder."""
    decided = Decided()
    for verdict in results.verdicts():
        decided.add(verdict)
    complain(list(decided.unscored.values()))
    tell_doubtful(decided, decide)
    complete = not (cut or decided.unscored or decided.provisional)
    if json:
        # Each worker compares its own pictures with the labelled ones; what it held, it held because they had changed.
        print_json({**record, **decided.record(), "complete": complete, "drift": decided.held > 0})
    say(f"Verdicts: {safe(results.shown)}" + ("" if complete else "; run the same command again to resume"))
    return decided


def _whole(path: str) -> str:
    return path.partition("?")[0].rstrip("/") if "://" in path else os.path.realpath(path)


# What is shared by the workers ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Remote:
    """The description of a classifier that is sent to workers, with the limits for all workers together."""

    description: str
    name: str
    rename: Mapping[str, str]
    limits: Limits

    def of_one(self, workers: int, shared: bool) -> Remote:
        """The limits for one of several workers; a rate limit is shared through the ledger, if there is one."""
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
        Remote(one.description, one.name, dict(one.rename), model.options.for_classifier(one).limits(one.classifier))
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
            f"{workers} workers need as many processors, but the cluster has {cpus}; "
            f"give --workers {cpus} or add machines",
            code="option-invalid",
        )
    workers = min([workers, *(one.limits.concurrency for one in job.classifiers if not one.limits.local)])
    remotes = tuple(one.of_one(workers, job.ask.ledger != OFF) for one in job.classifiers)
    return replace(job, classifiers=remotes, workers=workers, shard=machines.shard)


# Workers -------------------------------------------------------------------------------------------------------------


class Estimator(Scorer):
    """Estimates the number of queries for a batch, without sending any."""

    def __init__(self, job: Job) -> None:
        if Path(job.folder).is_dir():  # not every machine need have it
            os.chdir(job.folder)
        classifiers = [one.connect() for one in job.classifiers]
        super().__init__(job.profile, classifiers, name="name", keep=(SOURCE,), decide=job.decide, options=job.ask)
        self._job = job

    def __call__(self, batch: Batch) -> dict[str, list[str]]:
        estimate = self.model.estimate([content or b"" for content in batch["bytes"]], self._job.decide)
        return {"estimate": [json.dumps(asdict(estimate))]}


class Stop:
    """An actor that stops a run; it stores the reason, and the workers that may still have queries in flight."""

    def __init__(self) -> None:
        self._reason: str | None = None
        self._working = set[str]()
        self._stopped = asyncio.Event()

    async def enter(self, who: str) -> None:
        """Record that a worker may have queries in flight."""
        self._working.add(who)

    async def leave(self, who: str) -> None:
        """Record that a stopped worker has no queries in flight."""
        self._working.discard(who)

    async def stop(self, reason: str) -> None:
        """Make the workers stop sending; the first reason is kept."""
        self._reason = self._reason or reason
        self._stopped.set()

    async def stopped(self) -> None:
        """Wait until the run is stopped."""
        await self._stopped.wait()

    async def state(self) -> tuple[str | None, int]:
        """The reason if the run is being stopped, and the number of workers that may have queries in flight."""
        return self._reason, len(self._working)


class Worker(Estimator):
    """Scores batches; after a stop, it sends no more queries and waits for queries in flight."""

    def __init__(self, job: Job, stop: ActorHandle[Stop]) -> None:
        import ray

        super().__init__(job)
        self._stop, self._stopping, self._busy = stop, False, False
        self._who = ray.get_runtime_context().get_actor_id()
        ray.get(stop.enter.remote(self._who))
        threading.Thread(target=self._when_stopped, daemon=True).start()

    def __call__(self, batch: Batch) -> pa.Table:
        self._busy, verdicts = True, []
        try:
            verdicts = [] if self._stopping else self.verdicts(batch)
        except LookTwiceError as error:
            if not self._stopping:
                self._stop.stop.remote(str(error))
        finally:
            self._busy = False
        if self._stopping or len(verdicts) < len(batch["name"]):
            verdicts, batch = [], {name: column[:0] for name, column in batch.items()}
        return self.table(batch, verdicts)

    def _when_stopped(self) -> None:
        import ray

        ray.get(self._stop.stopped.remote())
        self._stopping = True
        while self._busy:
            self.model.close()
            time.sleep(0.05)
        self._stop.leave.remote(self._who)


# The run -------------------------------------------------------------------------------------------------------------


def _run(job: Job, pictures: Dataset, out: str) -> tuple[list[str], str | None]:
    """Score pictures and write the verdicts to a folder, until all are done or a stopped run has no queries in flight.

    Returns the reason why the user stopped the run, and the reason why it failed.
    """
    import ray

    system, folder = filesystem(out.rstrip("/"))
    stop_all: ActorHandle[Stop] = ray.remote(num_cpus=0)(Stop).remote()
    verdicts, errors = job.mapped(pictures, Worker, stop_all), list[Exception]()

    def write() -> None:
        try:
            verdicts.write_parquet(folder, filesystem=system, ray_remote_args={"num_cpus": READING})
        except Exception as error:  # Ray raises many kinds, plain ones among them
            errors.append(error)

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    reason, deadline, interrupted = None, float("inf"), list[str]()
    with handling_signals(lambda number: stop(number, interrupted.append)):  # once stops gently, twice at once
        while writing.is_alive() and time.monotonic() < deadline:
            writing.join(TICK)
            for why in interrupted:
                ray.get(stop_all.stop.remote(why))
            reason, working = ray.get(stop_all.state.remote())
            if reason:
                deadline = min(deadline, time.monotonic() + PATIENCE) if working else 0.0
    return interrupted, reason or next(map(last_line, errors), None)  # a stopped run ends in some error of Ray's


def _estimated(estimates: Dataset, model: AsyncModel, as_json: bool) -> None:
    """Sum the estimates of the batches and print the total; a picture in two batches is counted twice."""
    total = Estimate(0, 0, 0, 0, 0, 0, None)
    for row in estimates.iter_rows():
        total += Estimate(**json.loads(row["estimate"]))
    rate = model.limits.per_second
    show_estimate(replace(total, seconds=total.queries / rate if rate else None), model.ledger_name(), as_json)


# The folder of verdicts -----------------------------------------------------------------------------------------------


class VerdictFolder:
    """The output folder of a Ray run, from which a later run can resume."""

    def __init__(self, folder: str) -> None:
        self._files, self._folder = filesystem(folder.rstrip("/"))
        self.shown = shown(folder)

    def begin(self, header: dict[str, object]) -> None:
        """Create the folder, or resume in an existing one with the same header."""
        text = json.dumps(header, sort_keys=True).encode()
        with self._writing():
            self._files.create_dir(self._folder, recursive=True)
            names = self._names()
            if not names:
                with self._atomic(HEADER) as file:
                    file.write(text)
                return
        if HEADER not in names:
            raise DataError(f"{self.shown} holds other files; specify another folder", code="file-exists")
        with self._files.open_input_stream(f"{self._folder}/{HEADER}") as known:
            same = known.read() == text
        if not same:
            raise DataError(
                f"{self.shown} holds verdicts from another profile or other options; specify another folder",
                code="file-exists",
            )

    def done(self, sources: set[str], tidy: bool) -> set[str]:
        """The names of unchanged pictures with a final verdict.

        With `tidy`, all other rows and unfinished files of a killed run are removed.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        done = set[str]()
        for name in (name for name in self._names() if name.endswith(".parquet")):
            path = f"{self._folder}/{name}"
            try:
                table = pq.read_table(path, filesystem=self._files)
            except pa.ArrowInvalid:
                table = None
            columns = ("kind", SOURCE, "stopped")
            rows = zip(*(table[each].to_pylist() for each in columns), strict=True) if table else ()
            kept = [kind is not None and source in sources and stopped != "budget" for kind, source, stopped in rows]
            table = table.filter(pa.array(kept, pa.bool_())) if table else None
            if table:
                done.update(table["name"].to_pylist())
            if not tidy or (kept and all(kept)):
                continue
            with self._writing():
                if not table:
                    self._files.delete_file(path)
                    continue
                with self._atomic(name) as file:
                    pq.write_table(table, file)
        return done

    def verdicts(self) -> Iterator[AnyVerdict | Unscored]:
        """A summary of the rows of all files."""
        import pyarrow.parquet as pq

        for name in sorted(self._names()):
            if name.endswith(".parquet"):
                rows = pq.read_table(f"{self._folder}/{name}", filesystem=self._files).drop_columns(SOURCE).to_pylist()
                yield from map(from_record, rows)

    def _names(self) -> set[str]:
        from pyarrow.fs import FileSelector, FileType

        listing = self._files.get_file_info(FileSelector(self._folder, allow_not_found=True))
        return {each.base_name for each in listing if each.type == FileType.File}

    @contextmanager
    def _atomic(self, name: str) -> Iterator[IO[bytes]]:
        """Write a file atomically; readers skip names that begin with a dot."""
        part = f"{self._folder}/.{name}.{uuid4().hex}"
        with self._files.open_output_stream(part) as file:
            yield file
        self._files.move(part, f"{self._folder}/{name}")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as fault:
            why = " ".join(str(fault).split())[:200]
            raise DataError(
                f"{self.shown} cannot be written ({why}); check its permissions and the free space",
                code="file-unwritable",
            ) from None
