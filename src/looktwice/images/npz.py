"""Read untrusted `.npz` files: headers are checked before memory is allocated."""

import math
import os
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from looktwice.errors import DataError, few, shown
from looktwice.images.image import Collection, Image, Picture, Stamp, WorkingSize, reading, repeated, stamp_of

NPZ = "an .npz of plain arrays"
MOST_BYTES = 2**32
"""The maximum size, in bytes, of an array that is read into memory."""


def array_names(path: Path) -> list[str]:
    """The names of the arrays in a file."""
    with reading(path, NPZ), zipfile.ZipFile(path) as archive:
        return [name.removesuffix(".npy") for name in archive.namelist()]


def read_header(path: Path, name: str) -> "tuple[tuple[int, ...], np.dtype[np.generic]]":
    """The shape and type of an array; raises a DataError if the file cannot contain it or it is too large."""
    with reading(path, NPZ), zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
        version, info = np.lib.format.read_magic(member), archive.getinfo(f"{name}.npy")
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, kind = read(member)
        if kind.hasobject:
            raise ValueError("it holds Python objects")
        size, start = math.prod(shape) * kind.itemsize, member.tell()
    # A member may also declare a wrong length, but each picture or label needs at least one byte in the file.
    if min(shape, default=1) < 0 or start + size != info.file_size or (shape and shape[0] > os.path.getsize(path)):
        raise DataError(
            f"{shown(str(path))}: {name} declares {shape} numbers, which the file does not contain; save it again",
            code="file-malformed",
        )
    if size > MOST_BYTES:
        raise DataError(
            f"{shown(str(path))}: {name} takes {size / 1e9:,.1f} GB, but at most {MOST_BYTES / 1e9:.1f} are read; save "
            "the pictures as files",
            code="image-too-large",
        )
    return shape, kind


def read_array(path: Path, name: str) -> "NDArray[np.generic]":
    """Read an array whose header is valid."""
    read_header(path, name)
    with reading(path, NPZ), zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as member:
        array: NDArray[np.generic] = np.lib.format.read_array(member, allow_pickle=False)
        return array


# Pictures in arrays ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Stack:
    """Pictures in an array; a name ends with `#` and the index in the array."""

    path: Path
    listed: Stamp
    """The mtime and size of the file when it was listed, which are the same on every machine."""

    def stamp(self, name: str) -> Stamp:
        return stamp_of(self.path)

    def image(self, name: str, size: WorkingSize | None = None) -> Image:
        with _LOADING:
            images = _images(self)
        return Image.from_array(images[int(name.rpartition("#")[2])]).within(size)


_LOADING = Lock()


@lru_cache(maxsize=2)
def _images(stack: Stack) -> NDArray[np.uint8]:
    with reading(stack.path):
        if stamp_of(stack.path)[::2] != stack.listed:
            raise DataError(
                f"{shown(str(stack.path))} changed after its pictures were listed; list them again",
                code="file-malformed",
            )
        images = read_array(stack.path, "images").view(np.uint8)
    images.flags.writeable = False
    return images


def stacked(path: Path, name: str, max_pixels: int) -> Sequence[Picture]:
    where, names = shown(str(path)), array_names(path)
    if "images" not in names:
        raise DataError(
            f"{where} must contain an array named images and, for true labels, one named labels; "
            f"it contains {', '.join(map(shown, names))}",
            code="file-malformed",
        )
    listed = stamp_of(path)[::2]
    shape, kind = read_header(path, "images")
    if kind != np.uint8 or not (len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3, 4))):
        raise DataError(
            f"{where}: images are {kind} of shape {shape}; give uint8, N x H x W or N x H x W x 3",
            code="file-malformed",
        )
    if 0 in shape:
        raise DataError(
            f"{where}: images have shape {shape} and contain no picture; give at least one", code="pictures-none"
        )
    if shape[1] * shape[2] > max_pixels:
        raise DataError(
            f"{where}: {shape[2]} x {shape[1]} pixels is more than the limit of {max_pixels:,}; raise the limit",
            code="image-too-large",
        )
    return Collection([f"{name}#{place}" for place in range(shape[0])], Stack(path, listed))


def labelled_stack(path: Path, max_pixels: int) -> list[Picture]:
    where, names = shown(str(path)), array_names(path)
    pictures = stacked(path, path.name, max_pixels)
    if "labels" not in names:
        raise DataError(
            f"{where} has no array named labels; it contains {', '.join(map(shown, names))}", code="file-malformed"
        )
    labels = read_array(path, "labels")
    classes = _texts(path, read_array(path, "class_names")) if "class_names" in names else None
    twice = repeated(classes or ())
    if twice:
        raise DataError(
            f"{where} uses {few(twice, 'class name')} for two classes; give each class a different name",
            code="file-malformed",
        )
    truths = named_truths(path, labels, classes)
    if len(truths) != len(pictures):
        raise DataError(
            f"{where} has {len(pictures)} pictures but {len(truths)} labels; give one label for each picture",
            code="labels-unmatched",
        )
    return [Picture(p.name, truth, p.source) for p, truth in zip(pictures, truths, strict=True)]


def named_truths(path: Path, labels: "NDArray[np.generic]", names: Sequence[str] | None) -> list[str]:
    """Map stored labels to true labels: numbers to class names, and strings to themselves.

    Without class names, numbers are converted to text. Raises a DataError that lists labels without a class name.
    """
    if labels.dtype.kind not in "iu":
        texts = _texts(path, labels)
        strange = sorted(set(texts) - set(texts if names is None else names))
    elif names is None:
        return [sys.intern(str(label)) for label in labels.ravel().tolist()]
    else:
        numbers = labels.ravel().tolist()
        strange = [f"{label} at #{n}" for n, label in enumerate(numbers) if not 0 <= label < len(names)]
        texts = [] if strange else [names[label] for label in numbers]
    if strange:
        where, known = shown(str(path)), len(names or ())
        raise DataError(
            f"{where} has {few(strange, 'label')} outside the {known} class names; correct labels or class_names",
            code="file-malformed",
        )
    return texts


def _texts(path: Path, array: "NDArray[np.generic]") -> list[str]:
    """Convert an array of text or UTF-8 bytes to a list of non-empty texts."""
    where = shown(str(path))
    if array.dtype.kind not in "US" or array.ndim != 1:
        raise DataError(
            f"{where}: labels or class names are {array.dtype} of shape {array.shape}; give texts or whole numbers",
            code="file-malformed",
        )
    with reading(path, NPZ):
        texts = [sys.intern(t if isinstance(t, str) else t.decode()) for t in array.tolist()]
    blank = [f"#{number}" for number, text in enumerate(texts) if not text]
    if blank:
        raise DataError(
            f"{where} has no text for {few(blank, 'label')}; every picture needs a true label", code="labels-missing"
        )
    return texts
