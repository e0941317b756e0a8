"""The public test sets of the paper, in the layouts in which their authors give them out.

CIFAR-10 and CIFAR-100 come as Python pickles or as binary records, ILSVRC2012 as a folder of validation photos.
A pickle is a program. These are run by a machine of our own that knows the instructions of the official files and
no others, and builds nothing but dicts, lists, tuples, numbers, texts and arrays of bytes.
"""

import csv
import io
import os
import pickle
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from looktwice.errors import DataError
from looktwice.images.collection import COLUMN, Picture, Stack, few, find, labelled, named_truths
from looktwice.images.image import MAX_PIXELS, shown

CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
ILSVRC_HOME = "https://image-net.org/challenges/LSVRC/2012/2012-downloads.php"


def open_labelled(
    path: Path, truths: Path | None = None, max_pixels: int = MAX_PIXELS, column: str = COLUMN
) -> list[Picture]:
    """The pictures of a collection with their truths: an official layout, or whatever `pictures.labelled` reads.

    `truths` is a CSV with the columns `file` and `label`, or the development kit of ILSVRC2012; `column` is the one of
    a CSV that holds the truths, if it is not `label`.
    """
    official = column == COLUMN and (truths is None or truths.suffix.lower() != ".csv")
    if official and truths is None and _cifar_layout(path):
        return cifar(path)
    if official and _is_flat_ilsvrc(path):
        return ilsvrc(path, truths, max_pixels)
    try:
        return labelled(path, truths, max_pixels, column)
    except DataError as fault:
        try:
            holds_pictures = bool(find([path]))
        except DataError:
            holds_pictures = False
        if holds_pictures or not path.exists():
            raise
        raise DataError(f"{fault}; {_WANTED}") from None


_WANTED = (
    "expected a folder with labels.csv, one folder per class, an .npz file, "
    f"CIFAR-10 or CIFAR-100 ({CIFAR_HOME}), or the photos of ILSVRC2012 ({ILSVRC_HOME})"
)


# --- CIFAR


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the test pictures and the class names lie, and how they are read."""

    folder: str
    test: str
    names: str
    archive: str
    images: Callable[[Path], NDArray[np.uint8]]
    labels: Callable[[Path], "NDArray[np.generic]"]
    classes: Callable[[Path], list[str]]

    def fits(self, path: Path) -> bool:
        """Whether this is a folder of this layout, or one of its batches beside the class names."""
        if path.is_dir():
            return path.name == self.folder or ((path / self.test).is_file() and (path / self.names).is_file())
        batch = path.is_file() and path.suffix == Path(self.test).suffix and path.name != self.names
        return batch and (path.parent / self.names).is_file()


def cifar(path: Path) -> list[Picture]:
    """The test pictures of CIFAR-10 or CIFAR-100 (fine labels) with their class names as truths, in their own order.

    `path` is the folder that an official archive unpacks to, the folder above it, or one batch inside it.
    """
    found = _cifar_layout(path)
    if found is None:
        wanted = ", ".join(layout.folder for layout in _LAYOUTS)
        raise DataError(f"{shown(str(path))}: none of {wanted} is there; get one at {CIFAR_HOME}")
    layout, path = found
    batch = path / layout.test if path.is_dir() else path
    names = batch.parent / layout.names
    lacking = [file.name for file in (batch, names) if not file.is_file()]
    if lacking:
        what = f"{shown(str(path))}: no {' and no '.join(lacking)}"
        raise DataError(f"{what}; unpack {layout.archive} from {CIFAR_HOME} there")
    truths = named_truths(batch, layout.labels(batch), layout.classes(names))
    stack = Stack.of(batch, layout.images)
    return [Picture(f"{batch.name}#{place}", truth, stack) for place, truth in enumerate(truths)]


def _cifar_layout(path: Path) -> tuple[_Layout, Path] | None:
    places = ((layout, place) for layout in _LAYOUTS for place in (path, path / layout.folder))
    return next(((layout, place) for layout, place in places if layout.fits(place)), None)


def _planes(flat: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """N x 32 x 32 x RGB from rows of 1,024 red, 1,024 green and 1,024 blue values."""
    return np.ascontiguousarray(flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _records(path: Path, head: int) -> NDArray[np.uint8]:
    """Rows of `head` label bytes and 3,072 pixel bytes."""
    with _decoding(path):
        flat = np.fromfile(path, np.uint8)
    if not flat.size or flat.size % (head + 3072):
        what = f"{shown(str(path))}: {flat.size:,} bytes are no whole number of records of {head + 3072}"
        raise DataError(f"{what}; download it again from {CIFAR_HOME}")
    return flat.reshape(-1, head + 3072)


def _binary_images(head: int, path: Path) -> NDArray[np.uint8]:
    return _planes(_records(path, head)[:, head:])


def _binary_labels(head: int, path: Path) -> "NDArray[np.generic]":
    """The last byte before the pixels; CIFAR-100 has the coarse label before it."""
    return _records(path, head)[:, head - 1]


def _lines(path: Path) -> list[str]:
    with _decoding(path):
        return [line.strip() for line in path.read_text("utf-8-sig").splitlines() if line.strip()]


def _pickled_images(path: Path) -> NDArray[np.uint8]:
    return _planes(_pixels(path, _content(path)))


def _pickled_labels(path: Path) -> "NDArray[np.generic]":
    content = _content(path)
    labels, rows = content.get("fine_labels", content.get("labels")), len(_pixels(path, content))
    if not isinstance(labels, list) or len(labels) != rows or not all(type(label) is int for label in labels):
        raise DataError(f"{shown(str(path))}: its labels are not {rows} integers; download it again from {CIFAR_HOME}")
    return np.array(labels)


def _pickled_classes(path: Path) -> list[str]:
    content = _content(path)
    names = content.get("fine_label_names", content.get("label_names"))
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise DataError(f"{shown(str(path))}: its class names are not texts; download it again from {CIFAR_HOME}")
    return names


def _content(path: Path) -> dict[object, object]:
    with _decoding(path):
        content = _Reader(io.BytesIO(path.read_bytes()), encoding="latin1").load()
    if not isinstance(content, dict):
        raise DataError(f"{shown(str(path))}: this pickle holds no dict; download it again from {CIFAR_HOME}")
    return content


def _pixels(path: Path, content: dict[object, object]) -> NDArray[np.uint8]:
    pixels = content.get("data")
    if not isinstance(pixels, _Array) or pixels.values.shape[1:] != (3072,) or not len(pixels.values):
        raise DataError(f"{shown(str(path))}: its data are not rows of 3,072 bytes; download it from {CIFAR_HOME}")
    return pixels.values


_PICKLED = (_pickled_images, _pickled_labels, _pickled_classes)
_BINARY_10 = (partial(_binary_images, 1), partial(_binary_labels, 1), _lines)
_BINARY_100 = (partial(_binary_images, 2), partial(_binary_labels, 2), _lines)
_LAYOUTS = (
    _Layout("cifar-10-batches-py", "test_batch", "batches.meta", "cifar-10-python.tar.gz", *_PICKLED),
    _Layout("cifar-100-python", "test", "meta", "cifar-100-python.tar.gz", *_PICKLED),
    _Layout("cifar-10-batches-bin", "test_batch.bin", "batches.meta.txt", "cifar-10-binary.tar.gz", *_BINARY_10),
    _Layout("cifar-100-binary", "test.bin", "fine_label_names.txt", "cifar-100-binary.tar.gz", *_BINARY_100),
)


# --- pickles


class _Uint8:
    """Stands for numpy's kind of bytes."""

    def __init__(self, name: str, *_: object) -> None:
        if name != "u1":
            raise ValueError("it holds numbers that are no bytes")

    def __setstate__(self, _: object) -> None:
        """What numpy adds is known already."""


class _Array:
    """Stands for a numpy array of bytes, so that nothing of numpy runs while a pickle is read."""

    values: NDArray[np.uint8] = np.empty(0, np.uint8)

    def __setstate__(self, state: object) -> None:
        match state:
            case (_, tuple(shape), _Uint8(), bool(fortran), str(raw)):
                flat = np.frombuffer(raw.encode("latin-1"), np.uint8)
                self.values = flat.reshape(shape, order="F" if fortran else "C")
            case _:
                raise ValueError("it changes something else than an array of bytes")


def _bytes(text: str, encoding: str) -> str:
    """Bytes as Python 3 writes them for Python 2: a text, each character a byte."""
    if encoding != "latin1":
        raise ValueError("it holds texts that are no bytes")
    return text


_STAND_INS: dict[tuple[str, str], object] = {
    ("numpy.core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy._core.multiarray", "_reconstruct"): lambda *_: _Array(),
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Uint8,
    ("_codecs", "encode"): _bytes,
}


class _Reader(pickle._Unpickler):
    """Reads a pickle with nothing but stand-ins; Python's own is used, as C's can be made to reserve any memory."""

    dispatch: ClassVar = {c: step for c, step in pickle._Unpickler.dispatch.items() if c != pickle.BYTEARRAY8[0]}

    def find_class(self, module: str, name: str) -> object:
        if (module, name) not in _STAND_INS:
            raise ValueError(
                f"it asks for {module} {name}, which is in no official file; do not open it with anything else"
            )
        return _STAND_INS[module, name]


# --- ILSVRC2012


_PHOTO = re.compile(r"(?:.*/)?ILSVRC2012_val_(\d{8})\.jpe?g", re.IGNORECASE)
_SYNSET = re.compile(r"n\d{8}")
_GROUND_TRUTH, _SYNSETS = "ILSVRC2012_validation_ground_truth.txt", "map_clsloc.txt"
_SOLUTION = "LOC_val_solution.csv"


def ilsvrc(path: Path, devkit: Path | None = None, max_pixels: int = MAX_PIXELS) -> list[Picture]:
    """Validation photos of ILSVRC2012, each with its synset, such as n01440764, as its truth.

    `path` holds one folder a synset, or all photos side by side. In the second case the truths come from `devkit`,
    or from beside the photos or above them: the `LOC_val_solution.csv` of these photos at Kaggle, or the ground truth
    of the development kit with its list of synsets, `map_clsloc.txt`. A part of the 50,000 photos will do.
    """
    if not _is_flat_ilsvrc(path):
        by_class = labelled(path, None, max_pixels)
        odd = sorted({each.truth or "" for each in by_class if not _SYNSET.fullmatch(each.truth or "")})
        if odd:
            what = f"{shown(str(path))}: {few(odd, 'folder')} not named like a synset, n01440764"
            raise DataError(f"{what}; see {ILSVRC_HOME}")
        return by_class
    pictures, truths = find([path], max_pixels), _photo_truths(path, devkit)
    numbers = [(match := _PHOTO.fullmatch(p.name)) and int(match[1]) for p in pictures]
    bare = [p.name for p, number in zip(pictures, numbers, strict=True) if number not in truths]
    if bare:
        raise DataError(f"{shown(str(path))}: {few(bare, 'photo')} without a truth; move them away")
    return [Picture(p.name, truths[n], p.source) for p, n in zip(pictures, numbers, strict=True) if n is not None]


def synset_words(path: Path) -> dict[str, str]:
    """The words of each synset in a `synset_words.txt` or `LOC_synset_mapping.txt`, in the order of the file."""
    rows = [line.partition(" ") for line in _lines(path)]
    odd = [synset for synset, _, words in rows if not _SYNSET.fullmatch(synset) or not words]
    if odd or not rows:
        raise DataError(f"{shown(str(path))}: {few(odd, 'line')} not of the form 'n01440764 tench, Tinca tinca'")
    return {synset: words.strip() for synset, _, words in rows}


def _is_flat_ilsvrc(path: Path) -> bool:
    if not path.is_dir() or (path / "labels.csv").is_file():
        return False
    with _decoding(path), os.scandir(path) as entries:
        return any(_PHOTO.fullmatch(entry.name) for entry in entries)


def _photo_truths(path: Path, devkit: Path | None) -> dict[int | None, str]:
    """The synset of each photo, by the number in its name."""
    bases = [path, path.parent] if devkit is None else [devkit.parent if devkit.is_file() else devkit]
    kit = "ILSVRC2012_devkit_t12"
    places = [base / below for base in bases for below in ("", "data", kit, f"{kit}/data")]
    for place in places:
        if (place / _GROUND_TRUTH).is_file() and (place / _SYNSETS).is_file():
            return _devkit_truths(place)
        if (place / _SOLUTION).is_file():
            # rows such as `ILSVRC2012_val_00048981,n03995372 85 1 499 272`: the photo, then its synset and boxes
            with _decoding(place / _SOLUTION):
                rows = list(csv.reader(_lines(place / _SOLUTION)[1:], strict=True))
                return {int(photo.rpartition("_")[2]): boxes.split()[0] for photo, boxes in rows}
    where = " or ".join(shown(str(base)) for base in bases)
    what = f"{shown(str(path))}: no truths; looked in {where} for {_SOLUTION}, or {_GROUND_TRUTH} with {_SYNSETS}"
    raise DataError(f"{what}; get {kit}.tar.gz at {ILSVRC_HOME}")


def _devkit_truths(place: Path) -> dict[int | None, str]:
    """Line k of the ground truth is the number of photo k's class; a row such as `n02119789 1 kit_fox` names it."""
    with _decoding(place / _SYNSETS):
        synsets = {int(number): synset for synset, number, *_ in map(str.split, _lines(place / _SYNSETS))}
    with _decoding(place / _GROUND_TRUTH):
        numbers = [int(line) for line in _lines(place / _GROUND_TRUTH)]
    strange = [f"{number} in line {line}" for line, number in enumerate(numbers, 1) if number not in synsets]
    if strange:
        raise DataError(
            f"{shown(str(place / _GROUND_TRUTH))}: {few(strange, 'number')} not in {_SYNSETS}; download both again"
        )
    return {line: synsets[number] for line, number in enumerate(numbers, 1)}


@contextmanager
def _decoding(path: Path) -> Iterator[None]:
    """Turns whatever a missing or damaged file raises into one line that names it."""
    try:
        yield
    except DataError:
        raise
    except OSError as fault:
        why = fault.strerror or type(fault).__name__
        raise DataError(f"{shown(str(path))}: cannot be read ({why}); check the path and its rights") from fault
    except Exception as fault:  # each format has its own kinds
        why = " ".join(str(fault).split())[:200] or type(fault).__name__
        raise DataError(f"{shown(str(path))}: not in its official form ({shown(why)}); download it again") from fault
