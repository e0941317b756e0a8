"""Verdicts in Ray datasets: `Scorer` for `map_batches`, and `read` for pictures in folders, buckets and containers.

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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from looktwice.model import (
    PICTURE_ENDINGS,
    VERDICT_COLUMNS_OF,
    AskOptions,
    Classifiers,
    DataError,
    DecisionOptions,
    FleetError,
    MissingExtra,
    Model,
    Profile,
    Unscored,
    Verdict,
    encode_png,
    few,
    files,
    find,
    one,
    shown,
    verdict_record,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyarrow.fs import FileInfo, FileSystem
    from ray.data import Dataset


__all__ = ["Scorer"]

Batch = Mapping[str, NDArray[np.generic]]
"""A batch of Ray Data: columns by name."""
DECIDE = DecisionOptions()
SOURCE = "source"
"""The column with a picture's file, its size and modification time."""
TEXT: files.Kind = "text"
READING = 0.1
"""The processor share of a task that reads or writes; the share reserved for scorers is reduced accordingly."""
IMAGE_COLUMNS = ("image", "bytes", "img", "content", "data", "jpg", "jpeg", "png", "webp")
IN_FOLDERS = (*PICTURE_ENDINGS, ".parquet", ".tar")
"""The extensions of the files that are read from a folder, ignoring case."""
NAME_COLUMNS = ("name", "file_name", "filename", "file", "path", "key", "__key__", "id")


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
        return self.table(batch, self.verdicts(batch))

    def verdicts(self, batch: Batch) -> list[Verdict | Unscored]:
        """The verdict on each picture of a batch, or the reason why there is none."""
        rows = zip(batch[self._image], batch[self._name], strict=True)
        pictures = [one(b"" if content is None else content, str(name)) for content, name in rows]
        return list(self.model.score(pictures, self._decide))

    def table(self, batch: Batch, verdicts: Sequence[Verdict | Unscored]) -> pa.Table:
        """Convert verdicts to an Arrow table."""
        kind = self.model.fitted().kind
        records = (verdict_record(verdict, kind) for verdict in verdicts)
        columns: files.Columns = {**VERDICT_COLUMNS_OF[kind], **dict.fromkeys(self._keep, TEXT)}
        kept = zip(*(batch[column] for column in self._keep), strict=True) if self._keep else [()] * len(verdicts)
        return files.arrow_table(columns, [[*row.values(), *more] for row, more in zip(records, kept, strict=True)])


# Pictures ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class File:
    """A file with one or more pictures."""

    address: str
    """The absolute path or address, since workers run in other folders."""
    name: str
    """The file's path relative to the given folder if there is only one, otherwise its address."""
    stamp: str

    @property
    def source(self) -> str:
        """A version string that changes with the file."""
        return f"{self.name} {self.stamp}"

    @property
    def ending(self) -> str:
        return os.path.splitext(self.name)[1].lower()


def listed(paths: Sequence[str]) -> list[File]:
    """List the files at these paths and addresses: pictures, `.npz`, `.parquet` and `.tar`, sorted by name.

    From a folder, files with a known extension are included, except hidden ones.
    """
    if not paths:
        raise DataError(
            "no picture is given; give files, folders or addresses such as s3://bucket/folder", code="pictures-none"
        )
    listing = [file for path in paths for file in _listed(path, alone=len(paths) == 1)]
    if not listing:
        raise DataError(
            f"{shown(paths[0])}: not a picture; pictures end with {' '.join(IN_FOLDERS)}", code="pictures-none"
        )
    if twice := [name for name, count in Counter(file.name for file in listing).items() if count > 1]:
        raise DataError(f"{few(twice, 'file')} given twice; list each once", code="pictures-duplicate")
    return listing


def read(listing: Sequence[File], done: Collection[str] = ()) -> Dataset:
    """A dataset of the pictures in these files, with columns `name`, `bytes` and `source`; those in `done` left out."""
    import ray.data

    kinds: dict[str, list[File]] = {}
    for file in listing:
        kinds.setdefault(file.ending if file.ending in CONTAINERS else "", []).append(file)
    parts = [part for ending, group in kinds.items() for part in CONTAINERS.get(ending, _loose)(group, done)]
    if not parts:
        return ray.data.from_items([])
    return parts[0].union(*parts[1:]) if len(parts) > 1 else parts[0]


def _listed(path: str, alone: bool) -> Iterator[File]:
    from pyarrow.fs import FileSelector, FileType

    place, mark, settings = path.partition("?") if "://" in path else (path, "", "")
    system, root = filesystem(path)
    try:
        info = system.get_file_info(root)
        below = system.get_file_info(FileSelector(root, recursive=True)) if info.type == FileType.Directory else []
    except OSError as fault:
        raise DataError(
            f"{shown(place)}: cannot be listed ({_why(fault)}); check the path and its permissions",
            code="file-unreadable",
        ) from None
    if info.type == FileType.NotFound:
        raise DataError(f"{shown(place)}: no such file or folder; check the path", code="file-missing")
    if info.type == FileType.File:
        name = os.path.basename(place) if alone and place.endswith(".npz") else place
        yield File(path if "://" in path else root, name, _stamp(info, "://" not in path))
    for each in sorted(below, key=lambda each: each.path):
        name = each.path[len(root) :].lstrip("/")
        hidden = any(part.startswith(".") for part in name.split("/"))
        if each.type == FileType.File and not hidden and name.lower().endswith(IN_FOLDERS):
            address = f"{place.rstrip('/')}/{name}{mark}{settings}" if "://" in path else each.path
            yield File(address, name if alone else f"{place.rstrip('/')}/{name}", _stamp(each, "://" not in path))


def _loose(group: Sequence[File], done: Collection[str]) -> Iterator[Dataset]:
    """Read one picture per file. Ray's own reader would skip names with an underscore, and fail on the first
    unreadable file."""
    import pyarrow as pa
    import ray.data

    rows = [(each.name, each.address, each.source) for each in group if each.name not in done]
    if rows:
        names, addresses, sources = map(list, zip(*rows, strict=True))
        table = pa.table({"name": names, "address": addresses, SOURCE: sources})
        blocks = min(1 + len(rows) // 64, 10_000)
        yield ray.data.from_arrow(table, override_num_blocks=blocks).map_batches(
            _opened, batch_size=64, num_cpus=READING
        )


def _opened(batch: Batch) -> pa.Table:
    return _columns(list(zip(batch["name"], map(_bytes, batch["address"]), batch[SOURCE], strict=True)))


def _bytes(address: str) -> bytes | None:
    system, path = filesystem(address)
    try:
        with system.open_input_stream(path, compression=None) as stream:
            content: bytes = stream.read()
            return content
    except OSError:  # the picture is unreadable now; another run tries again
        return None


def _arrays(group: Sequence[File], done: Collection[str]) -> Iterator[Dataset]:
    import ray.data

    for file in group:
        pictures = find([Path(file.address)])
        left = [place for place, picture in enumerate(pictures) if _place(file, place) not in done]
        if left:
            places = ray.data.from_items([{"place": place} for place in left])
            yield places.map_batches(partial(_stacked, file), batch_size=256, num_cpus=READING)


def _stacked(file: File, batch: Batch) -> pa.Table:
    pictures, places = find([Path(file.address)]), batch["place"].tolist()
    rows = [(_place(file, place), encode_png(pictures[place].image().pixels), file.source) for place in places]
    return _columns(rows)


def _place(file: File, place: int) -> str:
    return f"{file.name}#{place}"


def _tables(group: Sequence[File], done: Collection[str]) -> Iterator[Dataset]:
    import ray.data

    for system, paths in _by_filesystem(group):
        try:
            table = ray.data.read_parquet(
                list(paths),
                filesystem=system,
                include_paths=True,
                partitioning=None,
                file_extensions=None,
                num_cpus=READING,
            )
            columns = table.schema().names
        except Exception as fault:  # Ray and pyarrow raise many kinds, plain ones among them
            raise DataError(
                f"{shown(group[0].name)} or a table beside it cannot be read: {_why(fault)}", code="file-unreadable"
            ) from None
        image = next((column for column in IMAGE_COLUMNS if column in columns), None)
        if image is None:
            raise DataError(
                f"{shown(group[0].name)}: no column with pictures; it has {', '.join(columns)}, and should have bytes "
                f"in one of {', '.join(IMAGE_COLUMNS)}",
                code="file-malformed",
            )
        name = next((column for column in NAME_COLUMNS if column in columns and column != "path"), None)
        names = partial(_rows, paths, image, name, frozenset(done))
        yield table.map_batches(names, batch_size=64, num_cpus=READING)


def _rows(paths: Mapping[str, File], image: str, name: str | None, done: Collection[str], batch: Batch) -> pa.Table:
    rows = []
    for place, (path, picture) in enumerate(zip(batch["path"], batch[image], strict=True)):
        content = picture.get("bytes") if isinstance(picture, dict) else picture
        own = batch[name][place] if name else picture.get("path") if isinstance(picture, dict) else None
        file = paths[str(path)]
        own = own or blake2b(content or b"", digest_size=8).hexdigest()
        rows.append((f"{file.name}#{own}", content, file.source))
    return _columns(rows, done)


def _tars(group: Sequence[File], done: Collection[str]) -> Iterator[Dataset]:
    import ray.data

    for system, paths in _by_filesystem(group):
        samples = ray.data.read_webdataset(
            list(paths),
            filesystem=system,
            include_paths=True,
            decoder=None,
            file_extensions=None,
            num_cpus=READING,
        )
        yield samples.map_batches(partial(_members, paths, frozenset(done)), batch_size=64, num_cpus=READING)


def _members(paths: Mapping[str, File], done: Collection[str], batch: Batch) -> pa.Table:
    rows = []
    for place, (key, path) in enumerate(zip(batch["__key__"], batch["path"], strict=True)):
        for ending in (column for column in batch if f".{column}".lower().endswith(PICTURE_ENDINGS)):
            if (content := batch[ending][place]) is not None:
                file = paths[str(path)]
                rows.append((f"{file.name}#{key}.{ending}", content, file.source))
    return _columns(rows, done)


def _columns(rows: Sequence[tuple[str, object, str]], done: Collection[str] = ()) -> pa.Table:
    left = [row for row in rows if row[0] not in done]
    return files.arrow_table({"name": "text", "bytes": "bytes", SOURCE: "text"}, left)


CONTAINERS: dict[str, Callable[[Sequence[File], Collection[str]], Iterator[Dataset]]] = {
    ".npz": _arrays,
    ".parquet": _tables,
    ".tar": _tars,
}
"""The readers of files with many pictures, by extension."""


# Places --------------------------------------------------------------------------------------------------------------


def filesystem(address: str) -> tuple[FileSystem, str]:
    """The pyarrow filesystem of an address or a local path, and the path within it."""
    try:
        from pyarrow import ArrowInvalid
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
    except (ArrowInvalid, NotImplementedError) as fault:
        raise DataError(
            f"{scheme}://{shown(host)}: not an address that pyarrow reads ({_why(fault)})", code="file-unreadable"
        ) from None
    except OSError as fault:  # HDFS without Java, for one
        raise DataError(f"{scheme}://{shown(host)}: cannot be opened ({_why(fault)})", code="file-unreadable") from None
    return system, f"{root.rstrip('/')}/{path}"


@cache
def _connected(root: str) -> tuple[FileSystem, str]:
    """One connection is used for all files of a bucket."""
    from pyarrow.fs import FileSystem

    opened: tuple[FileSystem, str] = FileSystem.from_uri(root)
    return opened


def _by_filesystem(group: Sequence[File]) -> list[tuple[FileSystem, dict[str, File]]]:
    """The files of each filesystem by their paths within it."""
    systems: list[tuple[FileSystem, dict[str, File]]] = []
    for file in group:
        system, path = filesystem(file.address)
        known = next((paths for other, paths in systems if other == system), None)
        if known is None:
            systems.append((system, known := {}))
        known[path] = file
    return systems


def _stamp(info: FileInfo, local: bool) -> str:
    """The fields of a file's status that identify its version, including its ctime on a local disk."""
    return f"{info.size} {info.mtime_ns}" + (f" {os.stat(info.path).st_ctime_ns}" if local else "")


def _why(fault: Exception) -> str:
    return " ".join(str(fault).split())[:200] or type(fault).__name__


# A cluster for a run -------------------------------------------------------------------------------------------------

AUTO = "auto"
"""The address of this machine's own cluster."""
BLOCK = 16 << 20
"""The target size of Ray's blocks, in bytes."""


@contextmanager
def running(address: str | None = None, cpus: int | None = None) -> Iterator[int]:
    """Context manager for the cluster at `address`, or a local one with `cpus`; yields the number of processors.

    Ray neither reports usage over the network nor opens its dashboard, unless the user's own settings enable it.
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
            f"no Ray cluster answers at {address} ({error}); give host:port of its head node, often port 6379, or auto",
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
