"""Read untrusted `.npz` files: headers are checked before memory is allocated.

An uncompressed array, as written by `numpy.savez`, is read picture by picture.
"""

import math
import os
import struct
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from looktwice.errors import DataError, shown
from looktwice.images.image import reading

NPZ = "an .npz of plain arrays"
MOST_BYTES = 2**32
"""The largest array that is decompressed into memory."""
SLICE = 1 << 20
"""Bytes decompressed at once."""
LOCAL_HEADER = struct.Struct("<26xHH")
"""The fixed part of a member's header in a zip file; it ends with the lengths of the name and of what follows it."""


@dataclass(frozen=True, slots=True)
class Header:
    """The header of an array whose data the file really holds."""

    shape: tuple[int, ...]
    kind: "np.dtype[np.generic]"
    fortran: bool
    start: int
    """Bytes of the member before the first number."""
    offset: int | None
    """Where the first number is in the file; None if it is compressed."""


def array_names(path: Path) -> list[str]:
    """The names of the arrays in a file."""
    with reading(path, NPZ), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def read_header(path: Path, name: str) -> Header:
    """The header of an array; a DataError if the file cannot hold what it claims."""
    with reading(path, NPZ), zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
        version, info = np.lib.format.read_magic(member), archive.getinfo(f"{name}.npy")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, fortran, kind = read(member)
        if kind.hasobject:
            raise ValueError("it holds Python objects")
        start, offset = member.tell(), None
        if info.compress_type == zipfile.ZIP_STORED and archive.fp:
            archive.fp.seek(info.header_offset)
            names = LOCAL_HEADER.unpack(archive.fp.read(LOCAL_HEADER.size))
            offset = info.header_offset + LOCAL_HEADER.size + sum(names) + start
    claimed, real = math.prod(shape) * kind.itemsize, os.path.getsize(path)
    # A member may also claim a wrong length, but each picture or label takes at least a byte of the file.
    beyond = offset is not None and offset + claimed > real
    if min(shape, default=1) < 0 or start + claimed != info.file_size or beyond:
        raise DataError(
            f"{shown(str(path))}: {name} claims {shape} numbers that are not there; save it again",
            code="file-malformed",
        )
    if shape and shape[0] > real:
        raise DataError(
            f"{shown(str(path))}: {name} claims {shape[0]:,} entries in {real:,} bytes; save it again",
            code="file-malformed",
        )
    return Header(shape, kind, fortran, start, offset)


def read_array(path: Path, name: str) -> "NDArray[np.generic]":
    """The whole array; a DataError if it is too large for that."""
    header = read_header(path, name)
    size = math.prod(header.shape) * header.kind.itemsize
    if size > MOST_BYTES:
        raise DataError(
            f"{shown(str(path))}: {name} takes {size / 1e9:,.1f} GB when unpacked, at most {MOST_BYTES / 1e9:.1f} are "
            "read; save it with numpy.savez, without compression, which is read picture by picture",
            code="image-too-large",
        )
    flat, filled = np.empty(size, np.uint8), 0  # which takes no memory before it is filled
    with reading(path, NPZ), zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
        member.read(header.start)
        while filled < size:
            if not (part := member.read(min(SLICE, size - filled))):
                raise ValueError("it ends early")
            flat[filled : filled + len(part)] = np.frombuffer(part, np.uint8)
            filled += len(part)
        return flat.view(header.kind).reshape(header.shape, order="F" if header.fortran else "C")
