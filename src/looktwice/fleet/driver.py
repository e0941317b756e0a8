"""Sends units to workers on Ray and collects their results; only summaries are sent back here."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from looktwice.asking.outcome import Progress
from looktwice.errors import FleetError, LookTwiceError, MissingExtra
from looktwice.fleet.shards import Summary
from looktwice.fleet.sources import Unit, units
from looktwice.fleet.worker import Job, Scorer

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.actor import ActorHandle

AUTO = "auto"
"""The address of the cluster that this machine belongs to."""
STORE = 256 << 20
"""Bytes of memory for objects in a cluster of our own; units and summaries are small."""
TICK = 1.0
"""Seconds between two polls of a run."""


@dataclass(frozen=True)
class Cluster:
    """Machines that Ray runs on."""

    cpus: int


@contextmanager
def running(address: str | None = None, cpus: int | None = None) -> Iterator[Cluster]:
    """Ray within the block: the cluster at `address`, or a local one with `cpus` processors.

    Ray neither reports its use over the network nor opens its dashboard, unless the user's own settings say so.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    # Whoever still speaks to Ray when it has ended must not start another one.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    try:
        import ray
    except ImportError:
        raise MissingExtra("Fleets", "ray") from None
    if address is None:
        _start("local", num_cpus=cpus, include_dashboard=False, object_store_memory=STORE)
    else:
        _reach(address)
        _start(address)
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
    """Silence Ray's core, which announces on the error stream that it logs nothing there; failures are raised."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


class Run:
    """A running job; iterate over it for a summary of each unit, and for None about once a second."""

    def __init__(self, paths: Sequence[str], size: int, job: Job) -> None:
        import ray

        # A worker that dies is restarted and does its unit again.
        scorer = ray.remote(Scorer).options(num_cpus=1, max_restarts=-1, max_task_retries=-1)
        started = [scorer.remote(job) for _ in range(job.workers)]
        self._todo = _listed(paths, size)
        self._starting: dict[ObjectRef[None], ActorHandle[Scorer]] = {each.ready.remote(): each for each in started}
        self._idle: list[ActorHandle[Scorer]] = []
        self._working: dict[ObjectRef[Summary], ActorHandle[Scorer]] = {}
        self._reason = ""

    def __iter__(self) -> Iterator[Summary | None]:
        unit, tick = next(self._todo, None), time.monotonic() + TICK
        while self._working or (unit and not self._reason):
            if isinstance(unit, Summary):
                yield unit
                unit = None
            elif self._idle and unit and not self._reason:
                worker = self._idle.pop()
                self._working[worker.work.remote(unit)] = worker
                unit = next(self._todo, None)
            elif summary := self._next_summary(max(0.0, tick - time.monotonic())):
                yield summary
            if not unit or self._reason:  # nothing is left for these, and others may be waiting for their processors
                self._starting.clear()
                while self._idle:
                    self._idle.pop().close.remote()
            if time.monotonic() > tick:
                tick = time.monotonic() + TICK
                for worker in self._working.values() if self._reason else ():
                    worker.stop.remote(self._reason)  # again and again, since one may have been restarted
                yield None

    def stop(self, reason: str) -> None:
        """Have no more questions sent from about now on; what is in flight is waited for."""
        self._reason = self._reason or reason

    def underway(self) -> Progress:
        """What was asked so far for the running units; a worker that is restarting is not waited for."""
        import ray
        from ray.exceptions import RayError

        total, asked = Progress(), [worker.progress.remote() for worker in self._working.values()]
        ready = ray.wait(asked, num_returns=len(asked), timeout=TICK)[0] if asked else []
        for each in ready:
            with suppress(RayError):
                total += ray.get(each)
        return total

    def _next_summary(self, seconds: float) -> Summary | None:
        """The summary of a unit that is done; None if no worker has one within the time."""
        import ray
        from ray.exceptions import RayError

        done, _ = ray.wait([*self._starting, *self._working], timeout=seconds)
        for each in done:
            worker = self._starting.pop(each, None) or self._working.pop(each)
            try:
                summary: Summary | None = ray.get(each)
            except RayError as error:
                return Summary("", error=f"a worker on Ray failed: {_shortly(error)}")
            self._idle.append(worker)
            return summary
        return None


def _listed(paths: Sequence[str], size: int) -> Iterator[Unit | Summary]:
    """The units; where listing fails, a summary that says so comes last."""
    try:
        yield from units(paths, size)
    except (LookTwiceError, OSError) as error:
        yield Summary("", error=str(error))


def _shortly(error: Exception) -> str:
    """The cause of an error, without Ray's traceback."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:300] if lines else type(error).__name__
