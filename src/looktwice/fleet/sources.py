"""Where a fleet's pictures come from: folders, `.npz`, Parquet files and WebDataset tars, here or in a bucket.

They are cut into units of some hundred to some thousand pictures: one unit is scored by one worker and becomes one
shard of the result. A unit is small, can be sent anywhere, and opens its files when its pictures are asked for. The
same files are always cut into the same units, so a run that is started again knows what is done.
"""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from looktwice.errors import DataError, ImageError, MissingExtra
from looktwice.pictures.collection import ENDINGS, Held, Picture, find
from looktwice.pictures.decode import decode
from looktwice.pictures.image import Image, WorkingSize, shown

if TYPE_CHECKING:
    from pyarrow import Schema
    from pyarrow.fs import FileSystem

BOXES = (".parquet", ".tar")
"""Endings of files that hold many pictures."""
IMAGE_COLUMNS = ("image", "bytes", "img", "content", "data", "jpg", "jpeg", "png", "webp")
NAME_COLUMNS = ("name", "file_name", "filename", "file", "path", "key", "__key__", "id")


class Unit(Protocol):
    """Pictures that are scored together."""

    @property
    def identity(self) -> str:
        """Changes when the unit has other pictures, as far as that is known without opening them."""

    def pictures(self) -> Iterator[Picture]:
        """Its pictures, in order."""


@dataclass(frozen=True)
class Listed:
    """Pictures that were listed one by one."""

    listed: tuple[Picture, ...] = field(repr=False)
    stamps: tuple[str, ...] = field(default=(), repr=False)
    """Those of their files, where they have some."""

    @property
    def identity(self) -> str:
        return _hash((*(picture.name for picture in self.listed), *self.stamps))

    def pictures(self) -> Iterator[Picture]:
        return iter(self.listed)


@dataclass(frozen=True)
class RowGroups:
    """Pictures in some row groups of a Parquet file: encoded, as bytes, or in a struct with a field `bytes`."""

    file: str
    name: str
    """What the pictures are called after if no column names them."""
    stamp: str
    groups: tuple[int, ...]
    first: int
    """The place of the first row in the file."""

    @property
    def identity(self) -> str:
        return _hash((self.file, self.stamp, *map(str, self.groups)))

    def pictures(self) -> Iterator[Picture]:
        try:
            yield from self._rows()
        except (OSError, ValueError) as fault:  # pyarrow's own errors are ValueErrors
            yield _broken(self.name, fault)

    def _rows(self) -> Iterator[Picture]:
        import pyarrow.parquet as pq

        files, path = filesystem(self.file)
        with files.open_input_file(path) as stream:
            file = pq.ParquetFile(stream)
            image, name = _columns(self.name, file.schema_arrow)
            columns = [image] if name is None else [image, name]
            place = self.first
            for batch in file.iter_batches(64, list(self.groups), columns):
                for row in batch.to_pylist():
                    value = row[image] if isinstance(row[image], dict) else {"bytes": row[image]}
                    called = (
                        row[name] if name and row[name] is not None else value.get("path") or f"{self.name}#{place}"
                    )
                    lost = Broken(f"{shown(str(called))}: the row holds no picture")
                    data = value.get("bytes")
                    yield Picture(str(called), None, Held(data) if isinstance(data, bytes) else lost)
                    place += 1


@dataclass(frozen=True)
class Tar:
    """The pictures in a tar file, such as a shard of a WebDataset; other members are passed over."""

    file: str
    name: str
    stamp: str

    @property
    def identity(self) -> str:
        return _hash((self.file, self.stamp))

    def pictures(self) -> Iterator[Picture]:
        files, path = filesystem(self.file)
        try:
            with files.open_input_stream(path) as stream, tarfile.open(fileobj=stream, mode="r|") as archive:
                for member in archive:
                    if member.isfile() and member.name.lower().endswith(ENDINGS):
                        content = archive.extractfile(member)
                        name = f"{self.name}/{member.name}"
                        yield Picture(name, None, Held(content.read() if content else b""))
        except (OSError, ValueError, tarfile.TarError) as fault:
            yield _broken(self.name, fault)


@dataclass(frozen=True, slots=True)
class Bucket:
    """Pictures in files that are read through pyarrow: root, name and settings make an address."""

    root: str
    settings: str

    def image(self, name: str, size: WorkingSize | None = None) -> Image:
        files, path = filesystem(f"{self.root}{name}{self.settings}")
        try:
            with files.open_input_stream(path, compression=None) as stream:
                data = stream.read()
        except OSError as fault:
            raise ImageError(f"cannot be read ({_why(fault)}); check the path and its rights", shown(name)) from None
        return decode(data, name, size=size)


@dataclass(frozen=True, slots=True)
class Broken:
    """Stands for the pictures in a file that cannot be read."""

    reason: str

    def image(self, name: str, size: WorkingSize | None = None) -> Image:
        raise ImageError(self.reason)


def units(paths: Sequence[str], size: int) -> Iterator[Unit]:
    """The pictures at these paths in units of about `size`: containers first, then what was listed one by one.

    Local folders and files are named as on one machine. From a folder, also Parquet files and tars are taken.
    """
    if not paths:
        raise DataError("no picture is named; give files, folders or addresses such as s3://bucket/folder")
    here = [Path(path) for path in paths if "://" not in path]
    boxed: dict[Path, list[str]] = {}
    for path in here:
        files = [path] if _ending(path.name) in BOXES and path.is_file() else _files_below(path)
        boxed[path] = sorted(str(file) for file in files if _ending(file.name) in BOXES)
    for box in (box for boxes in boxed.values() for box in boxes):
        yield from _unpacked(box, box, size)
    loose = [
        path for path in here if not boxed[path] or any(_ending(file.name) in ENDINGS for file in _files_below(path))
    ]
    if loose:
        yield from _cut(((picture, _stamp(*(picture.stamp() or ()))) for picture in find(loose)), size)
    for address in (path for path in paths if "://" in path):
        yield from _distant(address, len(paths) == 1, size)


def _files_below(path: Path) -> Iterator[Path]:
    """Files in a folder and all folders below, hidden ones left out; nothing if it is not a folder."""
    for folder, below, names in os.walk(path):
        below[:] = sorted(name for name in below if not name.startswith("."))
        yield from (Path(folder, name) for name in names if not name.startswith("."))


def _cut(pictures: Iterable[tuple[Picture, str]], size: int) -> Iterator[Unit]:
    """Units of pictures that come with the stamps of their files."""
    source = iter(pictures)
    while listed := list(islice(source, size)):
        yield Listed(*zip(*listed, strict=True))


def _stamp(*numbers: int) -> str:
    return " ".join(map(str, numbers))


def _distant(address: str, alone: bool, size: int) -> Iterator[Unit]:
    """What is at an address, listed by pyarrow; a folder given alone names its pictures by their path below it."""
    from pyarrow.fs import FileSelector, FileType

    place, mark, settings = address.partition("?")
    settings = mark + settings
    files, path = filesystem(address)
    try:
        info = files.get_file_info(path)
        found = files.get_file_info(FileSelector(path, recursive=True)) if info.type == FileType.Directory else [info]
    except OSError as fault:
        raise DataError(f"{shown(place)}: cannot be listed ({_why(fault)}); check the address and its rights") from None
    if info.type == FileType.NotFound:
        raise DataError(f"{shown(place)}: there is nothing at this address; check it")
    stamps = {each.path[len(path) :]: _stamp(each.size, each.mtime_ns) for each in found if each.type == FileType.File}
    below = sorted(stamps)
    for box in (each for each in below if _ending(place + each) in BOXES):
        yield from _unpacked(f"{place}{box}{settings}", f"{place}{box}", size)
    loose = [each for each in below if _ending(place + each) in ENDINGS or each == ""]
    root = f"{place.rstrip('/')}/" if alone and info.type == FileType.Directory else ""
    source = Bucket(root, settings)
    named = ((f"{place}{each}".removeprefix(root), each) for each in loose if _ending(place + each) not in BOXES)
    yield from _cut(((Picture(name, None, source), stamps[each]) for name, each in named), size)


def _unpacked(file: str, name: str, size: int) -> Iterator[Unit]:
    """The units in a container."""
    files, path = filesystem(file)
    info = files.get_file_info(path)
    stamp = _stamp(info.size, info.mtime_ns)
    if _ending(name) == ".tar":
        yield Tar(file, name, stamp)
        return
    import pyarrow.parquet as pq

    try:
        with files.open_input_file(path) as stream:
            metadata = pq.read_metadata(stream)
    except (OSError, ValueError) as fault:
        yield Listed((_broken(name, fault),))
        return
    groups, rows, first = list[int](), 0, 0
    for group in range(metadata.num_row_groups):
        groups.append(group)
        rows += metadata.row_group(group).num_rows
        if rows >= size or group == metadata.num_row_groups - 1:
            yield RowGroups(file, name, stamp, tuple(groups), first)
            groups, rows, first = [], 0, first + rows


def _columns(name: str, schema: Schema) -> tuple[str, str | None]:
    """The columns that hold pictures and their names."""
    import pyarrow.types as kinds

    def holds(column: str) -> bool:
        kind = schema.field(column).type
        binary = kinds.is_binary(kind) or kinds.is_large_binary(kind)
        return binary or (kinds.is_struct(kind) and kind.get_field_index("bytes") >= 0)

    image = next((column for column in IMAGE_COLUMNS if column in schema.names and holds(column)), None)
    if image is None:
        raise DataError(
            f"{shown(name)}: no column with encoded pictures; it has {', '.join(schema.names)}, and should have bytes "
            f"in one of {', '.join(IMAGE_COLUMNS)}"
        )
    return image, next((column for column in NAME_COLUMNS if column in schema.names), None)


def _broken(name: str, fault: Exception) -> Picture:
    return Picture(name, None, Broken(f"{shown(name)}: cannot be read ({_why(fault)}); replace the file"))


def filesystem(address: str) -> tuple[FileSystem, str]:
    """Who reads an address or a local path, and what it is called there."""
    if "://" not in address:
        return _local(), os.path.abspath(address)
    place, _, settings = address.partition("?")
    scheme, _, rest = place.partition("://")
    host, _, path = rest.partition("/")
    if "@" in host:
        bucket = shown(host.rpartition("@")[2])
        raise DataError(f"{scheme}://{bucket}: keys have no place in an address; set AWS_ACCESS_KEY_ID and the like")
    files, root = _opened(f"{scheme}://{host}/", settings)
    return files, f"{root.rstrip('/')}/{path}" if path else root


@cache
def _local() -> FileSystem:
    try:
        from pyarrow.fs import LocalFileSystem
    except ImportError:
        raise MissingExtra("Parquet files, tars and buckets", "parquet") from None
    return LocalFileSystem()


@cache
def _opened(root: str, settings: str) -> tuple[FileSystem, str]:
    """One connection for all files of a bucket."""
    try:
        from pyarrow import ArrowInvalid
        from pyarrow.fs import FileSystem
    except ImportError:
        raise MissingExtra("Parquet files, tars and buckets", "parquet") from None
    try:
        opened: tuple[FileSystem, str] = FileSystem.from_uri(f"{root}?{settings}" if settings else root)
    except (ArrowInvalid, NotImplementedError) as fault:
        raise DataError(f"{shown(root)}: not an address that pyarrow reads ({_why(fault)})") from None
    except OSError as fault:  # HDFS without Java, for one
        raise DataError(f"{shown(root)}: cannot be opened ({_why(fault)})") from None
    return opened


def _ending(name: str) -> str:
    return os.path.splitext(name)[1].lower()


def _hash(parts: Iterable[str]) -> str:
    digest = blake2b(digest_size=12, person=b"looktwice.unit")
    for part in parts:
        digest.update(f"{len(part)}:{part}".encode(errors="surrogateescape"))
    return digest.hexdigest()


def _why(fault: Exception) -> str:
    return " ".join(str(fault).split())[:200] or type(fault).__name__
