"""Sends units to workers on Ray and hears what became of them; nothing but summaries ever comes here."""

from __future__ import annotations

import logging
import os
import pickle
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any

from looktwice.errors import FleetError, LedgerError, LookTwiceError, MissingExtra
from looktwice.fleet.courier import Line, patient
from looktwice.fleet.keeper import Away, Keeper
from looktwice.fleet.shards import Summary
from looktwice.fleet.sources import Unit, units
from looktwice.fleet.worker import Job, Scorer, enter

if TYPE_CHECKING:
    import pyarrow as pa
    from ray.actor import ActorHandle
    from ray.data import Dataset

AUTO = "auto"
"""The address of the cluster that this machine belongs to."""
STORE = 256 << 20
"""Bytes of memory for objects in a cluster of our own; units and summaries are small."""
SILENCE = 1.0
"""Seconds without a summary after which a run says that it is still there."""
PARTING = 3.0
"""Seconds in which Ray Data may end by itself."""


@dataclass(frozen=True)
class Cluster:
    """Machines that Ray runs on."""

    cpus: int


@contextmanager
def running(address: str | None = None, cpus: int | None = None) -> Iterator[Cluster]:
    """Ray, for as long as the block runs: the cluster at an address, or one on this machine with so many processors.

    Ray neither reports its use over the network nor opens its dashboard, unless the user's own settings say so.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    # Whoever still speaks to Ray when it has ended must not start another one.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingExtra("Fleets", "ray") from None
    if address is None:
        _start("local", num_cpus=cpus, include_dashboard=False, object_store_memory=STORE)
    else:
        _reach(address)
        _start(address)
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        yield Cluster(max(1, int(ray.cluster_resources().get("CPU", 1))))
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Raises unless somebody answers at `host:port`, since Ray would wait for minutes; `auto` it finds by itself."""
    if address == AUTO:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise FleetError(
            f"no Ray cluster answers at {address} ({error}); give host:port of its head, often port 6379, or auto"
        ) from None


def _start(address: str, **own: object) -> None:
    import ray

    try:
        with _quiet():
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except Exception as error:  # Ray raises many kinds, plain ones among them
        raise FleetError(f"Ray did not start at {address}: {_shortly(error)}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Ray's core says on the error stream that it will say nothing there; what goes wrong it raises."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class RayLine(Line):
    """The way to a keeper that is an actor."""

    def __init__(self, keeper: ActorHandle[Keeper]) -> None:
        self._keeper = keeper

    def call(self, method: str, *arguments: object) -> Any:
        import ray
        from ray.exceptions import RayActorError, RayTaskError

        try:
            return ray.get(getattr(self._keeper, method).remote(*arguments))
        except RayTaskError as error:
            raise error.cause from None
        except RayActorError as error:
            raise Away(" ".join(str(error).split())[:200]) from None


@contextmanager
def keeping(place: str | None, per_second: float | None) -> Iterator[RayLine]:
    """The way to a new keeper, which runs on this machine, beside the ledger."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    # Without a ledger it could not tell what it had granted, so it is not started anew.
    options = {"num_cpus": 0, "max_restarts": -1 if place else 0, "scheduling_strategy": here}
    keeper = ray.remote(_Keeper).options(**options).remote(place, per_second, os.getcwd())
    line = RayLine(keeper)
    try:
        yield line
    finally:
        with suppress(Away, LedgerError):
            line.call("close")
        ray.kill(keeper)


class _Keeper(Keeper):
    """A keeper as an actor: it knows whether it was started anew."""

    def __init__(self, place: str | None, per_second: float | None, folder: str) -> None:
        import ray

        os.chdir(folder)
        super().__init__(place, per_second, ray.get_runtime_context().was_current_actor_reconstructed)


class Run:
    """A job under way; iterate over it for a summary of each unit, and None whenever there is nothing new."""

    def __init__(self, paths: Sequence[str], size: int, job: Job, line: Line, workers: int) -> None:
        self._line = line
        self._workers = workers
        self._heard: SimpleQueue[Summary | Exception | None] = SimpleQueue()
        self._reason = ""
        self._stopped: set[str] | None = None
        """The workers that have stopped, once they were told to."""
        self._closed = False
        dataset = _dataset(paths, size, job, line, workers)
        self._listener = Thread(target=self._listen, args=(dataset,), name="listener", daemon=True)
        self._listener.start()

    def __iter__(self) -> Iterator[Summary | None]:
        while True:
            self._tell()
            try:
                heard = self._heard.get(timeout=SILENCE)
            except Empty:
                yield None
                continue
            if isinstance(heard, Exception):
                raise FleetError(f"the run on Ray broke off: {_shortly(heard)}; run again to go on") from heard
            if heard is None or self._over(heard):
                return
            yield heard

    def stop(self, reason: str) -> None:
        """Have no more questions sent from about now on; what is in flight is waited for."""
        self._reason = self._reason or reason

    def close(self) -> None:
        """Hear no more; what is still under way ends with the cluster or with its driver."""
        self._closed = True
        self._listener.join(PARTING)

    def _tell(self) -> None:
        if self._reason and self._stopped is None:
            self._stopped = set()
            patient(lambda: self._line.call("stop", self._reason))

    def _over(self, summary: Summary) -> bool:
        """Whether every worker has said that it stopped."""
        if self._stopped is None:
            return False
        self._stopped |= {summary.stopped} if summary.stopped else set()
        return len(self._stopped) >= self._workers

    def _listen(self, dataset: Dataset) -> None:
        try:
            for batch in dataset.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
                if self._closed:
                    return
                for text in batch["summary"].to_pylist():
                    self._heard.put(Summary.read(text))
            self._heard.put(None)
        except Exception as error:
            self._heard.put(error)


def _dataset(paths: Sequence[str], size: int, job: Job, line: Line, workers: int) -> Dataset:
    """A summary of each unit, one a row, as soon as somebody iterates over it."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    # One unit a block, since a block is what a worker takes at a time.
    context.target_max_block_size = 1
    order = {"paths": list(paths), "size": size, "folder": job.folder}
    # Listing claims no processor: all of them may be the workers'.
    listed = ray.data.from_items([order]).flat_map(_listed, num_cpus=0)
    return listed.map_batches(
        _Working,
        fn_constructor_args=(job, line),
        compute=ray.data.ActorPoolStrategy(size=workers),
        batch_size=1,
        batch_format="pyarrow",
        num_cpus=1,
    )


def _listed(order: dict[str, Any]) -> Iterator[dict[str, bytes]]:
    """A row for each unit; a listing that fails is a row, too."""
    enter(order["folder"])
    try:
        for unit in units(order["paths"], order["size"]):
            yield {"unit": pickle.dumps(unit)}
    except (LookTwiceError, OSError) as error:
        yield {"unit": pickle.dumps(str(error))}


class _Working:
    """A worker as Ray Data calls it. One that could not begin says so of every unit."""

    def __init__(self, job: Job, line: Line) -> None:
        import ray

        self._scorer: Scorer | LookTwiceError
        try:
            self._scorer = Scorer(job, line, ray.get_runtime_context().get_actor_id())
        except LookTwiceError as error:
            self._scorer = error

    def __call__(self, batch: pa.Table) -> pa.Table:
        import pyarrow as pa

        # Pickles from our own listing, which travelled within the cluster alone.
        todo: list[Unit | str] = [pickle.loads(unit.as_py()) for unit in batch["unit"]]  # noqa: S301
        return pa.table({"summary": [self._work(unit).text() for unit in todo]})

    def _work(self, unit: Unit | str) -> Summary:
        if isinstance(unit, str):
            return Summary("", error=unit)
        if isinstance(self._scorer, LookTwiceError):
            return Summary(unit.identity, error=str(self._scorer))
        return self._scorer.work(unit)


def _shortly(error: Exception) -> str:
    """What happened, without the way to it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
