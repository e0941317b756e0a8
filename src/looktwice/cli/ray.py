"""`score --engine ray`: workers read and score the pictures, and Ray Data writes the verdicts to a folder."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from uuid import uuid4

from looktwice.cli.console import Output, complain, policy_of, print_json, safe, say, show_estimate, stopping
from looktwice.cli.look import Decided, Machines, tell_doubtful
from looktwice.model import (
    OFF,
    POSTGRES,
    AnyVerdict,
    AskOptions,
    AsyncModel,
    Classifiers,
    DataError,
    DecisionOptions,
    Estimate,
    FleetError,
    Limits,
    LookTwiceError,
    Picture,
    Profile,
    Unscored,
    connect,
    from_record,
    shown,
)
from looktwice.ray import Batch, File, contents, filesystem, last_line, listed, opened, running, verdict_table

if TYPE_CHECKING:
    import pyarrow as pa
    from ray.actor import ActorHandle
    from ray.data import Dataset


HEADER = "_looktwice.json"
"""The file in a folder of verdicts that identifies profile and options."""
SOURCE = "source"
"""The column with a picture's file, its size and modification time."""
NO_LEDGER = (
    "a paid classifier, a budget or a ledger on several machines needs a PostgreSQL ledger that all of them can reach: "
    "start one (for example: docker run -d -p 5432:5432 -e POSTGRES_PASSWORD=... postgres:17) "
    "and give --ledger postgresql://user@host/database"
)


def score(
    paths: Sequence[str],
    take: str | None,
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
        (output.json_log, "--json-log works on one machine only; Ray has its own logs and dashboard"),
        (
            ask.batch,
            "workers would wait up to a day for each batch; leave out --batch, or leave out --engine ray: one "
            "machine submits all queries in batches at once, and the vendor processes them",
        ),
    ):
        if used:
            raise DataError(why, code="option-conflict")
    model = AsyncModel.load(profile_path, classifiers, options=ask)
    policy_of(model, decide)
    shared, listing, results = shared_options(model), listed(paths), VerdictFolder(out)
    if not output.dry_run:
        header = {"profile": model.fitted().model_dump(mode="json"), "options": asdict(decide), "seed": shared.seed}
        results.begin({**header, "classifiers": [one.fingerprint for one in model.connected]})
    done = results.done({file.source for file in listing}, tidy=not output.dry_run)
    left = [file for file in listing if file.source not in done]
    with running(machines.address) as cpus:
        job = crew(model, shared, decide, cpus, machines)
        if output.dry_run:
            _estimate(job, left, model, output.json)
            return True, 0
        reason = asyncio.run(_run(job, left, out))
    decided = Decided()
    for verdict in results.verdicts():
        decided.add(verdict)
    complain(list(decided.unscored.values()))
    tell_doubtful(decided, decide)
    complete = not (reason or decided.unscored or decided.provisional)
    if output.json:
        # Each worker compares its own pictures with the labelled ones; what it held, it held because they had changed.
        counts = {"out": out, "before": len(done), **decided.record()}
        print_json({**counts, "complete": complete, "drift": decided.held > 0})
    say(f"Verdicts: {safe(results.shown)}" + ("" if complete else "; run the same command again to resume"))
    return complete, decided.held


# What is shared by the workers ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Job:
    """The settings of a run, the same for all workers."""

    profile: Profile = field(repr=False)
    classifiers: tuple[dict[str, Any], ...]
    """The arguments with which a worker connects each classifier."""
    ask: AskOptions
    """The options of one worker. The ledger is a PostgreSQL database, or off for a free local classifier."""
    decide: DecisionOptions
    workers: int
    shard: int
    folder: str = field(default_factory=os.getcwd)
    """The working directory of the command, for relative paths."""

    def dataset(self, listing: Sequence[File]) -> Dataset:
        """The files, in blocks; a worker gets one block at a time."""
        import pyarrow as pa
        import ray.data

        columns = {name: [getattr(file, name) for file in listing] for name in ("name", "address", SOURCE)}
        table = pa.table({name: pa.array(cells, pa.string()) for name, cells in columns.items()})
        return ray.data.from_arrow(table, override_num_blocks=max(1, -(-len(listing) // self.shard)))

    def model(self) -> AsyncModel:
        """The model of one worker."""
        if Path(self.folder).is_dir():  # not every machine need have it
            os.chdir(self.folder)
        return AsyncModel([connect(**one) for one in self.classifiers], self.profile, options=self.ask)


def shared_options(model: AsyncModel) -> AskOptions:
    """The options of all workers, with absolute budgets; the ledger is opened here first, to fail early."""
    limits = total_limits(model)
    ask = replace(model.options, ledger=shared_ledger(limits, model.options) or OFF)
    spent = model.engine.spend()
    asyncio.run(model.close())
    return ask.settled(max(limits, key=lambda each: each.price_micros), spent)


def total_limits(model: AsyncModel) -> list[Limits]:
    """The limits of each classifier for all workers together."""
    return [model.options.for_classifier(one).limits(one.classifier) for one in model.connected]


def shared_ledger(limits: Sequence[Limits], ask: AskOptions) -> str | None:
    """The address of the shared ledger; None if every classifier is local and free."""
    ledger = None if ask.ledger == OFF else ask.ledger
    if all(each.local for each in limits) and ledger is None and not ask.is_limited():
        return None
    if ledger is None or not ledger.startswith(POSTGRES):
        raise FleetError(NO_LEDGER, code="ledger-required")
    return ledger


def crew(model: AsyncModel, ask: AskOptions, decide: DecisionOptions, cpus: int, machines: Machines) -> Job:
    """Divide the concurrency of each classifier among the workers, each of which has one processor; a rate limit is
    shared through the ledger, or divided if there is none."""
    limits = total_limits(model)
    workers = min([machines.workers or cpus, cpus, *(each.concurrency for each in limits if not each.local)])
    classifiers = []
    for one, allowed in zip(model.connected, limits, strict=True):
        rate = allowed.per_second
        rate = rate / workers if rate and ask.ledger == OFF else rate
        concurrency = 1 if allowed.local else allowed.concurrency // workers
        named = {"source": one.description, "name": one.name, "rename": dict(one.rename)}
        classifiers.append({**named, "concurrency": concurrency, "rate": rate})
    return Job(model.fitted(), tuple(classifiers), ask, decide, workers, machines.shard)


# Workers -------------------------------------------------------------------------------------------------------------


def _pictures(batch: Batch) -> list[Picture]:
    return opened(zip(contents(batch["address"]), batch["name"], strict=True))


def _estimated(job: Job, batch: Batch) -> dict[str, list[str]]:
    """The estimated number of queries for a batch, as JSON."""

    async def estimate() -> Estimate:
        async with job.model() as model:
            return await model.estimate(_pictures(batch), job.decide)

    return {"estimate": [json.dumps(asdict(asyncio.run(estimate())))]}


class Stop:
    """An actor that knows why a run is to stop."""

    def __init__(self) -> None:
        self._reason, self._stopped = "", asyncio.Event()

    async def stop(self, reason: str) -> None:
        """Make the workers stop sending; the first reason is kept."""
        self._reason = self._reason or reason
        self._stopped.set()

    async def stopped(self) -> str:
        """Wait until the run is stopped; returns the reason."""
        await self._stopped.wait()
        return self._reason

    async def reason(self) -> str:
        """The reason; empty as long as the run goes on."""
        return self._reason


class Worker:
    """Scores batches; after a stop, it finishes the queries in flight, and returns no more rows."""

    def __init__(self, job: Job, stop: ActorHandle[Stop]) -> None:
        self._model, self._decide, self._stop, self._loop = job.model(), job.decide, stop, asyncio.Runner()

    def __call__(self, batch: Batch) -> pa.Table:
        verdicts = self._loop.run(self._verdicts(batch))
        sources = batch[SOURCE][: len(verdicts)]
        return verdict_table(verdicts, self._model.fitted().kind, {SOURCE: sources})

    async def _verdicts(self, batch: Batch) -> list[AnyVerdict | Unscored]:
        """The verdicts of a batch; none of them if the run was stopped."""
        if await self._stop.reason.remote():
            return []
        verdicts, watching = list[AnyVerdict | Unscored](), asyncio.create_task(self._watch())
        try:
            verdicts = [verdict async for verdict in self._model.score(_pictures(batch), self._decide)]
        except LookTwiceError as error:
            await self._stop.stop.remote(str(error))
        finally:
            watching.cancel()
        if await self._stop.reason.remote():
            await self._model.close()  # once the answers in flight are stored
            return []
        return verdicts

    async def _watch(self) -> None:
        self._model.stop(await self._stop.stopped.remote())


# The run -------------------------------------------------------------------------------------------------------------


async def _run(job: Job, left: Sequence[File], out: str) -> str:
    """Score pictures and write the verdicts to a folder, until all are done, or a stopped run has no queries in flight.

    Returns the reason why the user stopped the run; empty if it is complete.
    """
    import ray

    system, folder = filesystem(out.rstrip("/"))
    halt: ActorHandle[Stop] = ray.remote(num_cpus=0)(Stop).remote()
    verdicts = job.dataset(left).map_batches(
        Worker, fn_constructor_args=(job, halt), batch_size=None, concurrency=job.workers, num_cpus=1
    )
    interrupted = list[str]()

    def interrupt(reason: str) -> None:
        interrupted.append(reason)
        halt.stop.remote(reason)

    try:
        with stopping(interrupt):
            writing = partial(verdicts.write_parquet, filesystem=system, ray_remote_args={"num_cpus": 0})
            await asyncio.to_thread(writing, folder)
        failure = await halt.reason.remote()
    except Exception as error:  # Ray raises many kinds, plain ones among them
        failure = last_line(error)
    if failure and not interrupted:
        raise FleetError(f"{failure}; finished verdicts are kept; run again to resume")
    return "".join(interrupted)


def _estimate(job: Job, left: Sequence[File], model: AsyncModel, as_json: bool) -> None:
    """Sum the estimates of the batches and print the total; a picture in two batches is counted twice."""
    total = Estimate(0, 0, 0, 0, 0, 0, None)
    for row in job.dataset(left).map_batches(partial(_estimated, job), batch_size=None).iter_rows():
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
            if not (names := self._names()):
                with self._atomic(HEADER) as file:
                    file.write(text)
                return
        if HEADER not in names:
            raise DataError(f"{self.shown} holds other files; specify another folder", code="file-exists")
        with self._files.open_input_stream(f"{self._folder}/{HEADER}") as known:
            if known.read() == text:
                return
        raise DataError(
            f"{self.shown} holds verdicts from another profile or other options; specify another folder",
            code="file-exists",
        )

    def done(self, sources: set[str], tidy: bool) -> set[str]:
        """The sources of unchanged pictures with a final verdict.

        With `tidy`, all other rows and unfinished files of a killed run are removed.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        done = set[str]()
        for name in self._tables():
            path, table, kept = f"{self._folder}/{name}", None, list[bool]()
            with suppress(pa.ArrowInvalid):
                table = pq.read_table(path, filesystem=self._files)
                rows = zip(*(table[each].to_pylist() for each in ("kind", SOURCE, "stopped")), strict=True)
                kept = [
                    kind is not None and source in sources and stopped != "budget" for kind, source, stopped in rows
                ]
                table = table.filter(pa.array(kept, pa.bool_()))
                done.update(table[SOURCE].to_pylist())
            if not tidy or (kept and all(kept)):
                continue
            with self._writing():
                if any(kept):
                    with self._atomic(name) as file:
                        pq.write_table(table, file)
                else:
                    self._files.delete_file(path)
        return done

    def verdicts(self) -> Iterator[AnyVerdict | Unscored]:
        """The verdicts in all files."""
        import pyarrow.parquet as pq

        for name in self._tables():
            rows = pq.read_table(f"{self._folder}/{name}", filesystem=self._files).drop_columns(SOURCE).to_pylist()
            yield from map(from_record, rows)

    def _tables(self) -> list[str]:
        return sorted(name for name in self._names() if name.endswith(".parquet"))

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
