"""Verdicts in Ray datasets: `Scorer` for `map_batches`, and the files, addresses and clusters of `score --engine ray`.

    import looktwice as lt
    photos = ray.data.read_images("s3://lake/photos", include_paths=True)
    settings = {"profile": "profile.json", "image": "image", "options": lt.AskOptions(ledger="postgresql://…")}
    photos.map_batches(lt.ray.Scorer, fn_constructor_kwargs=settings, concurrency=4).write_parquet("verdicts")

Workers share budgets, rate limits and answers through a PostgreSQL ledger; a classifier that is local and free needs no
ledger.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from looktwice.model import (
    PICTURE_ENDINGS,
    VERDICT_COLUMNS_OF,
    AnswerKind,
    AnyVerdict,
    AskOptions,
    Classifiers,
    DataError,
    DecisionOptions,
    FleetError,
    MissingExtra,
    Model,
    Picture,
    Profile,
    Unscored,
    few,
    files,
    one,
    shown,
    verdict_record,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileInfo, FileSystem


__all__ = ["Scorer"]

Batch = Mapping[str, NDArray[np.generic]]
"""A batch of Ray Data: columns by name."""
DECIDE = DecisionOptions()
TEXT: files.Kind = "text"
READERS = 16
"""The number of files that a worker reads at a time."""
TABLES = (".npz", ".parquet", ".tar")
"""The extensions of files with many pictures, which are read with Ray's own readers."""


class Scorer:
    """A callable class for `Dataset.map_batches`: takes batches of pictures and returns their verdicts, one per row.

    `profile` is a profile or its path. `classifiers` replace the ones in the file, which the user must have approved on
    this machine; they are required if the profile is not a file. `image` is the column of pictures (file contents as
    bytes, or uint8 arrays), `name` is the column of picture names, and `keep` lists text columns that are copied to the
    result. `decide` and `options` are as for `Model`.
    """

    def __init__(
        self,
        profile: Profile | str | Path,
        classifiers: Classifiers | None = None,
        *,
        image: str = "bytes",
        name: str = "path",
        keep: Sequence[str] = (),
        decide: DecisionOptions = DECIDE,
        options: AskOptions | None = None,
    ) -> None:
        self._image, self._name, self._keep, self._decide = image, name, tuple(keep), decide
        if not isinstance(profile, Profile):
            self.model = Model.load(profile, classifiers, options=options)
        elif classifiers is None:
            raise DataError(
                "a profile that is not a file needs the names of its classifiers; give classifiers=…",
                code="option-conflict",
            )
        else:
            self.model = Model(classifiers, profile, options=options)

    def __call__(self, batch: Batch) -> pa.Table:
        """Score a batch; returns the columns written by `looktwice score -o verdicts.parquet`, and the columns to
        keep."""
        pictures = opened(zip(batch[self._image], batch[self._name], strict=True))
        verdicts = list(self.model.score(pictures, self._decide))
        return verdict_table(verdicts, self.model.fitted().kind, {name: batch[name] for name in self._keep})


def opened(rows: Iterable[tuple[object, object]]) -> list[Picture]:
    """The pictures with these contents and names; a picture without content is unreadable."""
    return [one(b"" if content is None else content, str(name)) for content, name in rows]  # type: ignore[arg-type]


def verdict_table(verdicts: Sequence[AnyVerdict | Unscored], kind: AnswerKind, kept: Batch) -> pa.Table:
    """A table of verdicts, with further columns of text."""
    columns: files.Columns = {**VERDICT_COLUMNS_OF[kind], **dict.fromkeys(kept, TEXT)}
    more = zip(*kept.values(), strict=True) if kept else [()] * len(verdicts)
    rows = ([*verdict_record(verdict, kind).values(), *row] for verdict, row in zip(verdicts, more, strict=True))
    return files.arrow_table(columns, rows)


# Pictures ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class File:
    """A picture's file."""

    address: str
    """The absolute path or address, since workers run in other folders."""
    name: str
    """The file's path relative to the given folder if there is only one, otherwise its address."""
    source: str
    """The name with the size and modification time, which changes with the file."""


def listed(paths: Sequence[str]) -> list[File]:
    """List the pictures at these paths and addresses, sorted by name within each.

    From a folder, files with the extension of a picture are included, except hidden ones.
    """
    if not paths:
        raise DataError(
            "no picture is given; give files, folders or addresses such as s3://bucket/folder", code="pictures-none"
        )
    listing = [file for path in paths for file in _listed(path, alone=len(paths) == 1)]
    if not listing:
        raise DataError(
            f"{shown(paths[0])} contains no picture; pictures end with {' '.join(PICTURE_ENDINGS)}",
            code="pictures-none",
        )
    if twice := [name for name, count in Counter(file.name for file in listing).items() if count > 1]:
        raise DataError(f"files were given twice: {few(twice, 'file')}; list each once", code="pictures-duplicate")
    return listing


def _listed(path: str, alone: bool) -> Iterator[File]:
    from pyarrow.fs import FileSelector, FileType

    remote = "://" in path
    place, mark, settings = path.partition("?") if remote else (path, "", "")
    system, root = filesystem(path)
    try:
        info = system.get_file_info(root)
        below = system.get_file_info(FileSelector(root, recursive=True)) if info.type == FileType.Directory else []
    except OSError as fault:
        raise DataError(
            f"{shown(place)} cannot be listed ({_why(fault)}); check the path and its permissions",
            code="file-unreadable",
        ) from None
    if info.type == FileType.NotFound:
        raise DataError(f"{shown(place)}: no such file or folder; check the path", code="file-missing")
    if info.type == FileType.File:
        if place.lower().endswith(TABLES):
            raise DataError(
                f"{shown(place)} is not a picture; read tables with Ray's own readers and looktwice.ray.Scorer; "
                "see docs/scale.md",
                code="option-conflict",
            )
        yield File(path if remote else root, place, f"{place} {_stamp(info, remote)}")
    for each in sorted(below, key=lambda each: each.path):
        inner = each.path[len(root) :].lstrip("/")
        hidden = any(part.startswith(".") for part in inner.split("/"))
        if each.type == FileType.File and not hidden and inner.lower().endswith(PICTURE_ENDINGS):
            whole = f"{place.rstrip('/')}/{inner}"
            name = inner if alone else whole
            address = f"{whole}{mark}{settings}" if remote else each.path
            yield File(address, name, f"{name} {_stamp(each, remote)}")


def contents(addresses: Iterable[str]) -> list[bytes | None]:
    """The contents of files, several of which are read at a time; None for a file that cannot be read now."""
    with ThreadPoolExecutor(READERS) as pool:
        return list(pool.map(_content, addresses))


def _content(address: str) -> bytes | None:
    system, path = filesystem(address)
    try:
        with system.open_input_stream(path, compression=None) as stream:
            content: bytes = stream.read()
            return content
    except OSError:
        return None


# Places --------------------------------------------------------------------------------------------------------------


def filesystem(address: str) -> tuple[FileSystem, str]:
    """The pyarrow filesystem of an address or a local path, and the path within it."""
    try:
        from pyarrow.fs import LocalFileSystem
    except ImportError:
        raise MissingExtra("Parquet files, tars and buckets", "parquet") from None
    if "://" not in address:
        return LocalFileSystem(), os.path.abspath(address)
    place, mark, settings = address.partition("?")
    scheme, _, rest = place.partition("://")
    host, _, path = rest.partition("/")
    if "@" in host:
        bucket = shown(host.rpartition("@")[2])
        raise DataError(
            f"{scheme}://{bucket}: an address must not contain keys; set variables such as AWS_ACCESS_KEY_ID",
            code="option-invalid",
        )
    try:
        system, root = _connected(f"{scheme}://{host}/{mark}{settings}")
    except (OSError, ValueError, NotImplementedError) as fault:  # HDFS without Java, for one
        raise DataError(f"{scheme}://{shown(host)}: cannot be opened ({_why(fault)})", code="file-unreadable") from None
    return system, f"{root.rstrip('/')}/{path}"


@cache
def _connected(root: str) -> tuple[FileSystem, str]:
    """One connection is used for all files of a bucket."""
    from pyarrow.fs import FileSystem

    opened: tuple[FileSystem, str] = FileSystem.from_uri(root)
    return opened


def _stamp(info: FileInfo, remote: bool) -> str:
    """The fields of a file's status that identify its version, including its ctime on a local disk."""
    return f"{info.size} {info.mtime_ns}" + ("" if remote else f" {os.stat(info.path).st_ctime_ns}")


def _why(fault: Exception) -> str:
    return " ".join(str(fault).split())[:200] or type(fault).__name__


# A cluster for a run -------------------------------------------------------------------------------------------------


@contextmanager
def running(address: str | None = None, cpus: int | None = None) -> Iterator[int]:
    """Context manager for the cluster at `address`, where auto is the one of this machine, or a local one with `cpus`;
    yields the number of processors.

    Ray neither reports usage over the network nor opens its dashboard, unless the user's own settings enable it.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
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
        if address != "auto":
            _reach(address)
        _start(address)
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", module="ray")
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.enable_rich_progress_bars = sys.stderr.isatty()
    context.use_ray_tqdm = False
    context.raise_original_map_exception = True
    try:
        yield max(1, int(ray.cluster_resources().get("CPU", 1)))
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Raise an error unless `host:port` accepts connections, since Ray would wait for minutes."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise FleetError(
            f"no Ray cluster answers at {address} ({error}); give host:port of its head node, often port 6379, or auto",
            code="fleet-unreachable",
        ) from None


def _start(address: str, **own: object) -> None:
    import ray

    try:
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
    except Exception as error:  # Ray raises many kinds, plain ones among them
        raise FleetError(f"Ray did not start at {address}: {last_line(error)}", code="fleet-unreachable") from error


def last_line(error: Exception) -> str:
    """The cause of an error, without Ray's traceback and its advice about retries."""
    cause = getattr(error, "cause", None)  # what a worker raised
    lines = [line.strip() for line in str(cause or error).splitlines() if line.strip()]
    return lines[0 if cause else -1][:300] if lines else type(error).__name__
