"""Connect to a Ray cluster for a run, or start a local one."""

from __future__ import annotations

import logging
import os
import socket
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from looktwice.errors import FleetError, MissingExtra

AUTO = "auto"
"""The address of this machine's own cluster."""
BLOCK = 16 << 20
"""The target size of Ray's blocks, in bytes."""


@contextmanager
def running(address: str | None = None, cpus: int | None = None) -> Iterator[int]:
    """Context manager for the cluster at `address`, or a local one with `cpus`; yields the number of processors.

    Ray neither reports its use over the network nor opens its dashboard, unless the user's own settings say so.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    # Code that calls Ray after it has ended must not start another one.
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"
    try:
        import ray
        import ray.data
    except ImportError:
        raise MissingExtra("Runs on Ray", "ray") from None
    if address is None:
        _start("local", num_cpus=cpus, include_dashboard=False)
    else:
        _reach(address)
        _start(address)
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module="ray")
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.enable_rich_progress_bars = sys.stderr.isatty()
    context.use_ray_tqdm = False
    context.raise_original_map_exception = True
    context.target_max_block_size = BLOCK
    context.use_datasource_v2 = False  # it lists files in tasks of a whole processor, and the workers have all of them
    try:
        yield max(1, int(ray.cluster_resources().get("CPU", 1)))
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Raise an error unless `host:port` accepts connections, since Ray would wait for minutes."""
    if address == AUTO:
        return
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise FleetError(
            f"no Ray cluster answers at {address} ({error}); give host:port of its head, often port 6379, or auto",
            code="fleet-unreachable",
        ) from None


def _start(address: str, **own: object) -> None:
    import ray

    try:
        with _quiet():
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except Exception as error:  # Ray raises many kinds, plain ones among them
        raise FleetError(f"Ray did not start at {address}: {last_line(error)}", code="fleet-unreachable") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence log messages of Ray's core; failures are raised."""
    kept = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def last_line(error: Exception) -> str:
    """The cause of an error, without Ray's traceback and its advice about retries."""
    cause = getattr(error, "cause", None)  # what a worker raised
    lines = [line.strip() for line in str(cause or error).splitlines() if line.strip()]
    return lines[0 if cause else -1][:300] if lines else type(error).__name__
