"""The public test sets of the paper, in their official layouts.

CIFAR-10 and CIFAR-100 come as Python pickles, ILSVRC2012 as a folder of validation photos. Unpickling
runs code, so only the construction of arrays is allowed.
"""

import csv
import os
import pickle
import re
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from looktwice.errors import DataError, few, shown
from looktwice.images import MAX_PIXELS, Picture, find, labelled
from looktwice.images.collection import COLUMN, Held
from looktwice.images.image import reading
from looktwice.images.npz import named_truths

T = TypeVar("T")

CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
ILSVRC_HOME = "https://image-net.org/challenges/LSVRC/2012/2012-downloads.php"
_OFFICIAL = "in its official form"


def open_labelled(
    path: Path, truths: Path | None = None, max_pixels: int = MAX_PIXELS, column: str = COLUMN
) -> list[Picture]:
    """The pictures of a collection with their truths: an official layout, or whatever `labelled` reads.

    `truths` is a CSV with the columns `file` and `label`, COCO's JSON, or the development kit of ILSVRC2012;
    `column` is the one of a CSV that holds the truths, if it is not `label`.
    """
    official = column == COLUMN and (truths is None or truths.suffix.lower() not in (".csv", ".json"))
    if official and truths is None and (files := _cifar_files(path)):
        return _cifar(*files)
    if official and _is_flat_ilsvrc(path):
        return ilsvrc(path, truths, max_pixels)
    return labelled(path, truths, max_pixels, column)


# --- CIFAR


_CIFAR = (("cifar-10-batches-py", "test_batch", "batches.meta"), ("cifar-100-python", "test", "meta"))
"""The folder of each official archive, and in it the file of the test pictures and that of the class names."""


class _Bytes:
    """The array of bytes in a pickle; numpy would trust whatever state a damaged one gives it."""

    def __init__(self, *about: object) -> None:
        self.kind = about[0] if about else ""
        self.array: NDArray[np.uint8] = np.zeros(0, np.uint8)

    def __setstate__(self, state: tuple[object, ...]) -> None:
        if len(state) == 5 and isinstance(dtype := state[2], _Bytes):
            _, shape, _, fortran, raw = state
            content = raw.encode("latin-1") if isinstance(raw, str) else raw
            if dtype.kind != "u1" or not isinstance(content, bytes) or not isinstance(shape, tuple):
                raise ValueError("it holds an array of something else than bytes")
            self.array = np.frombuffer(content, np.uint8).reshape(shape, order="F" if fortran else "C")


class _Unpickler(pickle._Unpickler):
    """Reads a pickle that holds arrays of bytes, and calls nothing.

    It is the one in Python: that in C takes gigabytes for a few bytes that name a place far away in its memory.
    """

    known = frozenset({("multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")})

    def find_class(self, module: str, name: str) -> type[_Bytes]:
        place = re.sub(r"^numpy\._?core\.", "", module)
        if (place, name) in self.known:
            return _Bytes
        raise ValueError(f"it calls {module} {name}, which is in no official file; do not open it with anything else")


def _cifar_files(path: Path) -> tuple[Path, Path] | None:
    """A batch of pictures, in this folder or the official one in it, or this file; and the class names beside it."""
    for folder, test, names in _CIFAR:
        for batch in (path / folder / test, path / test, path):
            if batch.is_file() and not batch.suffix and batch.name != names and batch.with_name(names).is_file():
                return batch, batch.with_name(names)
    return None


def _cifar(batch: Path, names: Path) -> list[Picture]:
    """The pictures of a batch with the names of their (fine) classes as truths, in their own order."""
    labels = np.array(_listed(batch, int, "fine_labels", "labels"))
    truths = named_truths(batch, labels, _listed(names, str, "fine_label_names", "label_names"))
    images = _images(batch)
    if len(truths) != len(images):
        raise DataError(f"{shown(str(batch))}: as many labels as pictures are needed", code="file-malformed")
    pairs = enumerate(zip(truths, images, strict=True))
    return [Picture(f"{batch.name}#{place}", truth, Held(pixels)) for place, (truth, pixels) in pairs]


def _images(batch: Path) -> NDArray[np.uint8]:
    """N x 32 x 32 x RGB, from rows of 1,024 red, 1,024 green and 1,024 blue values."""
    data = _unpickled(batch, "data")
    if isinstance(data, _Bytes) and data.array.shape[1:] == (3072,) and len(data.array):
        return np.ascontiguousarray(data.array.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))
    raise DataError(f"{shown(str(batch))}: no rows of 3,072 bytes; download it again", code="file-malformed")


def _listed(path: Path, kind: type[T], *names: str) -> list[T]:
    """The list of whole numbers or texts that a pickle holds under the first of these names that it has."""
    values = _unpickled(path, *names)
    if isinstance(values, list) and all(type(value) is kind for value in values):
        return values
    raise DataError(f"{shown(str(path))}: its {names[-1]} are no list; download it again", code="file-malformed")


def _unpickled(path: Path, *names: str) -> object:
    """What a pickle holds under the first of these names that it has."""
    with reading(path, _OFFICIAL), path.open("rb") as file:
        content = _Unpickler(file, encoding="latin1").load()
        return next((content[name] for name in names if name in content), None)


# --- ILSVRC2012


_PHOTO = re.compile(r"(?:.*/)?ILSVRC2012_val_(\d{8})\.jpe?g", re.IGNORECASE)
_GROUND_TRUTH, _SYNSETS = "ILSVRC2012_validation_ground_truth.txt", "map_clsloc.txt"
_SOLUTION = "LOC_val_solution.csv"


def ilsvrc(path: Path, devkit: Path | None = None, max_pixels: int = MAX_PIXELS) -> list[Picture]:
    """Validation photos of ILSVRC2012, side by side, each with its synset, such as n01440764, as its truth.

    The truths come from `devkit`, or from beside the photos or above them: Kaggle's `LOC_val_solution.csv` of these
    photos, or the ground truth of the development kit with its list of synsets, `map_clsloc.txt`. A part of the 50,000
    photos will do.
    """
    pictures, truths = find([path], max_pixels), _photo_truths(path, devkit)
    numbers = [int(match[1]) if (match := _PHOTO.fullmatch(p.name)) else 0 for p in pictures]
    bare = [p.name for p, number in zip(pictures, numbers, strict=True) if number not in truths]
    if bare:
        raise DataError(
            f"{shown(str(path))}: {few(bare, 'photo')} without a true label; move them away", code="labels-unmatched"
        )
    return [Picture(p.name, truths[n], p.source) for p, n in zip(pictures, numbers, strict=True)]


def _lines(path: Path) -> list[str]:
    return [line.strip() for line in path.read_text("utf-8-sig").splitlines() if line.strip()]


def _is_flat_ilsvrc(path: Path) -> bool:
    if not path.is_dir() or (path / "labels.csv").is_file():
        return False
    with reading(path), os.scandir(path) as entries:
        return any(_PHOTO.fullmatch(entry.name) for entry in entries)


def _photo_truths(path: Path, devkit: Path | None) -> dict[int, str]:
    """The synset of each photo, by the number in its name."""
    bases = [path, path.parent] if devkit is None else [devkit.parent if devkit.is_file() else devkit]
    kit = "ILSVRC2012_devkit_t12"
    places = [base / below for base in bases for below in ("", "data", kit, f"{kit}/data")]
    for place in places:
        if (place / _GROUND_TRUTH).is_file() and (place / _SYNSETS).is_file():
            return _devkit_truths(place)
        if (place / _SOLUTION).is_file():
            # rows such as `ILSVRC2012_val_00048981,n03995372 85 1 499 272`: the photo, then its synset and boxes
            with reading(place / _SOLUTION, _OFFICIAL):
                rows = list(csv.reader(_lines(place / _SOLUTION)[1:], strict=True))
                return {int(photo.rpartition("_")[2]): boxes.split()[0] for photo, boxes in rows}
    where = " or ".join(shown(str(base)) for base in bases)
    what = f"{shown(str(path))}: no truths; looked in {where} for {_SOLUTION}, or {_GROUND_TRUTH} with {_SYNSETS}"
    raise DataError(f"{what}; get {kit}.tar.gz at {ILSVRC_HOME}", code="file-missing")


def _devkit_truths(place: Path) -> dict[int, str]:
    """Line k of the ground truth is the number of photo k's class; a row such as `n02119789 1 kit_fox` names it."""
    with reading(place / _SYNSETS, _OFFICIAL):
        synsets = {int(number): synset for synset, number, *_ in map(str.split, _lines(place / _SYNSETS))}
    with reading(place / _GROUND_TRUTH, _OFFICIAL):
        numbers = [int(line) for line in _lines(place / _GROUND_TRUTH)]
    strange = [f"{number} in line {line}" for line, number in enumerate(numbers, 1) if number not in synsets]
    if strange:
        raise DataError(
            f"{shown(str(place / _GROUND_TRUTH))}: {few(strange, 'number')} not in {_SYNSETS}; download both again",
            code="file-malformed",
        )
    return {line: synsets[number] for line, number in enumerate(numbers, 1)}
