"""The public test sets of the paper, in their official layouts.

CIFAR-10 and CIFAR-100 come as Python pickles or as binary records, ILSVRC2012 as a folder of validation photos.
Unpickling runs code, so only the construction of arrays is allowed.
"""

import csv
import os
import pickle
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeGuard, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from looktwice.errors import DataError, FitError, few, shown
from looktwice.files import split_tags
from looktwice.images.collection import Picture, Stack, find, labelled, named_truths, of_several, repeated
from looktwice.images.image import MAX_PIXELS
from looktwice.images.truths import COLUMN

T = TypeVar("T")
Kind = Literal["label", "tags"]

CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/cifar.html"
ILSVRC_HOME = "https://image-net.org/challenges/LSVRC/2012/2012-downloads.php"


def open_labelled(
    path: Path, truths: Path | None = None, max_pixels: int = MAX_PIXELS, column: str = COLUMN
) -> list[Picture]:
    """The pictures of a collection with their truths: an official layout, or whatever `pictures.labelled` reads.

    `truths` is a CSV with the columns `file` and `label`, COCO's JSON, or the development kit of ILSVRC2012;
    `column` is the one of a CSV that holds the truths, if it is not `label`.
    """
    official = column == COLUMN and (truths is None or truths.suffix.lower() not in (".csv", ".json"))
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
        raise DataError(f"{fault}; {_WANTED}", code="file-malformed") from None


def open_all_labelled(paths: Sequence[Path], truths: Path | None = None, column: str = COLUMN) -> list[Picture]:
    """The pictures of one collection or several; of several, each name begins with the path as it was given."""
    if len(paths) == 1:
        return open_labelled(paths[0], truths, column=column)
    found = [of_several(path, picture) for path in paths for picture in open_labelled(path, truths, column=column)]
    if twice := repeated(picture.name for picture in found):
        raise DataError(f"{few(twice, 'picture')} given twice; name each once", code="pictures-duplicate")
    return found


def of_kind(pictures: Sequence[Picture], kind: Kind) -> Sequence[Picture]:
    """The pictures, if all truths are of this kind; where tags are wanted, labels with `;` between them are tags."""
    if kind == "tags" and any(";" in (picture.truth or "") for picture in pictures):
        pictures = [p if p.truth is None else replace(p, truth=None, tags=split_tags(p.truth)) for p in pictures]
    forms = {_form(picture) for picture in pictures}
    if None in forms:
        raise FitError(
            "the truth of every picture is needed; give labels, or a collection that has them", code="labels-missing"
        )
    if not forms <= {kind}:
        raise DataError(_OTHER_FORM[kind], code="labels-unmatched")
    return pictures


def _form(picture: Picture) -> Kind | None:
    if picture.tags is not None:
        return "tags"
    return "label" if picture.truth is not None or picture.excluded else None


_OTHER_FORM: dict[Kind, str] = {
    "tags": "the classifier returns tags, and these truths are one label a picture; give all tags of each: a column "
    "`tags` in the CSV (cat;dog), several rows a file, COCO's JSON, or a list of tags a picture",
    "label": "these truths are tags, several a picture, and the classifier is asked for one label; describe it with "
    'answer = "tags", or give one label a picture',
}
_WANTED = (
    "expected a folder with labels.csv, one folder per class, an .npz file, "
    f"CIFAR-10 or CIFAR-100 ({CIFAR_HOME}), or the photos of ILSVRC2012 ({ILSVRC_HOME})"
)


# --- CIFAR


@dataclass(frozen=True, slots=True)
class _Layout:
    """The files of the test pictures and the class names."""

    folder: str
    test: str
    names: str
    archive: str
    head: int | None = None
    """Label bytes before each picture of binary records, the finest last; None for pickles."""

    def fits(self, path: Path) -> bool:
        """Whether this is a folder of this layout, or one of its batches beside the class names."""
        if path.is_dir():
            return path.name == self.folder or ((path / self.test).is_file() and (path / self.names).is_file())
        batch = path.is_file() and path.suffix == Path(self.test).suffix and path.name != self.names
        return batch and (path.parent / self.names).is_file()

    def read(self, path: Path) -> tuple[NDArray[np.uint8], "NDArray[np.generic]"]:
        """Rows of 1,024 red, 1,024 green and 1,024 blue values, and the label of each."""
        if self.head is None:
            content = _unpickled(path)
            data, labels = np.asarray(content.get("data")), content.get("fine_labels", content.get("labels"))
            if data.dtype == np.uint8 and data.shape[1:] == (3072,) and len(data) and _are(labels, int, len(data)):
                return data, np.array(labels)
            raise DataError(
                f"{shown(str(path))}: no labels of rows of 3,072 bytes; download it again from {CIFAR_HOME}",
                code="file-malformed",
            )
        with _decoding(path):
            flat, size = np.fromfile(path, np.uint8), self.head + 3072
        if not flat.size or flat.size % size:
            what = f"{shown(str(path))}: {flat.size:,} bytes are not a multiple of the record size {size}"
            raise DataError(f"{what}; download it again from {CIFAR_HOME}", code="file-malformed")
        rows = flat.reshape(-1, size)
        return rows[:, self.head :], rows[:, self.head - 1]

    def classes(self, path: Path) -> list[str]:
        """The names of the classes in the order of their numbers."""
        if self.head is not None:
            return _lines(path)
        content = _unpickled(path)
        names = content.get("fine_label_names", content.get("label_names"))
        if _are(names, str):
            return names
        raise DataError(
            f"{shown(str(path))}: its class names are not texts; download it again from {CIFAR_HOME}",
            code="file-malformed",
        )


_LAYOUTS = (
    _Layout("cifar-10-batches-py", "test_batch", "batches.meta", "cifar-10-python.tar.gz"),
    _Layout("cifar-100-python", "test", "meta", "cifar-100-python.tar.gz"),
    _Layout("cifar-10-batches-bin", "test_batch.bin", "batches.meta.txt", "cifar-10-binary.tar.gz", 1),
    _Layout("cifar-100-binary", "test.bin", "fine_label_names.txt", "cifar-100-binary.tar.gz", 2),
)


def _are(values: object, kind: type[T], count: int | None = None) -> TypeGuard[list[T]]:
    """Whether it is a list of this kind, and of this length where one is given."""
    fits = isinstance(values, list) and len(values) == (len(values) if count is None else count)
    return fits and all(type(value) is kind for value in cast("list[object]", values))


class _Unpickler(pickle.Unpickler):
    """An unpickler that only constructs arrays."""

    known = frozenset({("multiarray", "_reconstruct"), ("numpy", "ndarray"), ("numpy", "dtype")})

    def find_class(self, module: str, name: str) -> object:
        place = re.sub(r"^numpy\._?core\.", "", module)
        if (place, name) in self.known:
            return super().find_class(module, name)
        raise ValueError(f"it calls {module} {name}, which is in no official file; do not open it with anything else")


def _unpickled(path: Path) -> dict[object, object]:
    with _decoding(path), path.open("rb") as file:
        content = _Unpickler(file, encoding="latin1").load()
    if not isinstance(content, dict):
        raise DataError(
            f"{shown(str(path))}: this pickle holds no dict; download it again from {CIFAR_HOME}", code="file-malformed"
        )
    return content


def cifar(path: Path) -> list[Picture]:
    """The test pictures of CIFAR-10 or CIFAR-100 (fine labels) with their class names as truths, in their own order.

    `path` is the folder that an official archive unpacks to, the folder above it, or one batch in it.
    """
    found = _cifar_layout(path)
    if found is None:
        wanted = ", ".join(layout.folder for layout in _LAYOUTS)
        raise DataError(f"{shown(str(path))}: none of {wanted} is there; get one at {CIFAR_HOME}", code="file-missing")
    layout, path = found
    batch = path / layout.test if path.is_dir() else path
    names = batch.parent / layout.names
    lacking = [file.name for file in (batch, names) if not file.is_file()]
    if lacking:
        what = f"{shown(str(path))}: no {' and no '.join(lacking)}"
        raise DataError(f"{what}; unpack {layout.archive} from {CIFAR_HOME} there", code="file-missing")
    truths = named_truths(batch, layout.read(batch)[1], layout.classes(names))
    stack = Stack.from_file(batch, _images)
    return [Picture(f"{batch.name}#{place}", truth, stack) for place, truth in enumerate(truths)]


def _cifar_layout(path: Path) -> tuple[_Layout, Path] | None:
    places = ((layout, place) for layout in _LAYOUTS for place in (path, path / layout.folder))
    return next(((layout, place) for layout, place in places if layout.fits(place)), None)


def _images(batch: Path) -> NDArray[np.uint8]:
    """N x 32 x 32 x RGB."""
    layout = next(layout for layout in _LAYOUTS if layout.fits(batch))
    return np.ascontiguousarray(layout.read(batch)[0].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


def _lines(path: Path) -> list[str]:
    with _decoding(path):
        return [line.strip() for line in path.read_text("utf-8-sig").splitlines() if line.strip()]


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
            raise DataError(f"{what}; see {ILSVRC_HOME}", code="file-missing")
        return by_class
    pictures, truths = find([path], max_pixels), _photo_truths(path, devkit)
    numbers = [(match := _PHOTO.fullmatch(p.name)) and int(match[1]) for p in pictures]
    bare = [p.name for p, number in zip(pictures, numbers, strict=True) if number not in truths]
    if bare:
        raise DataError(
            f"{shown(str(path))}: {few(bare, 'photo')} without a truth; move them away", code="labels-unmatched"
        )
    return [Picture(p.name, truths[n], p.source) for p, n in zip(pictures, numbers, strict=True) if n is not None]


def synset_words(path: Path) -> dict[str, str]:
    """The words of each synset in a `synset_words.txt` or `LOC_synset_mapping.txt`, in the order of the file."""
    rows = [line.partition(" ") for line in _lines(path)]
    odd = [synset for synset, _, words in rows if not _SYNSET.fullmatch(synset) or not words]
    if odd or not rows:
        raise DataError(
            f"{shown(str(path))}: {few(odd, 'line')} not of the form 'n01440764 tench, Tinca tinca'",
            code="file-malformed",
        )
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
    raise DataError(f"{what}; get {kit}.tar.gz at {ILSVRC_HOME}", code="file-missing")


def _devkit_truths(place: Path) -> dict[int | None, str]:
    """Line k of the ground truth is the number of photo k's class; a row such as `n02119789 1 kit_fox` names it."""
    with _decoding(place / _SYNSETS):
        synsets = {int(number): synset for synset, number, *_ in map(str.split, _lines(place / _SYNSETS))}
    with _decoding(place / _GROUND_TRUTH):
        numbers = [int(line) for line in _lines(place / _GROUND_TRUTH)]
    strange = [f"{number} in line {line}" for line, number in enumerate(numbers, 1) if number not in synsets]
    if strange:
        raise DataError(
            f"{shown(str(place / _GROUND_TRUTH))}: {few(strange, 'number')} not in {_SYNSETS}; download both again",
            code="file-malformed",
        )
    return {line: synsets[number] for line, number in enumerate(numbers, 1)}


@contextmanager
def _decoding(path: Path) -> Iterator[None]:
    """Converts errors of a missing or damaged file to one line with its name."""
    try:
        yield
    except DataError:
        raise
    except OSError as fault:
        why = fault.strerror or type(fault).__name__
        raise DataError(
            f"{shown(str(path))}: cannot be read ({why}); check the path and its rights", code="file-unreadable"
        ) from fault
    except Exception as fault:  # each format has its own kinds
        why = " ".join(str(fault).split())[:200] or type(fault).__name__
        raise DataError(
            f"{shown(str(path))}: not in its official form ({shown(why)}); download it again", code="file-malformed"
        ) from fault
