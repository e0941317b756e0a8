"""Collections of pictures with true labels: files, folders, `labels.csv`, one folder per class, and `.npz`.

No picture is decoded when a collection is listed. A `Picture` is small, can be pickled and sent to another process, and
is decoded each time it is used; only the arrays of a few `.npz` files are cached in each process.
"""

import csv
import io
import json
import math
import os
import stat
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Literal, Union
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from looktwice.errors import DataError, FitError, few, shown
from looktwice.files import from_cell, split_tags
from looktwice.images.decode import converted, decode, load
from looktwice.images.image import (
    MAX_PIXELS,
    Collection,
    Image,
    Picture,
    Stamp,
    WorkingSize,
    reading,
    repeated,
    stamp_of,
)
from looktwice.images.npz import array_names, labelled_stack, stacked

# Tables of true labels -----------------------------------------------------------------------------------------------


FILE_COLUMNS = ("file", "file_name", "filename", "path", "image", "picture")
"""The accepted names of the file column in a CSV; the first match is used."""
COLUMN = "label"
"""The default column of true labels in a CSV."""
NOT = "not"
"""The column of excluded labels; a CSV with this column may omit pictures and leave true labels empty."""
TAGS = "tags"
"""The column of tags, used instead of labels: `cat;dog`, or empty."""
PROBABILITY = "probability"
"""The column of relative probabilities of selection for labelling."""


@dataclass(frozen=True, slots=True)
class KnownTruth:
    """The true label of a picture, or its excluded labels; neither if the picture was marked as unsure."""

    truth: str | None = None
    excluded: tuple[str, ...] = ()
    probability: float = 1.0
    tags: tuple[str, ...] | None = None


def read_header(path: Path) -> list[str]:
    """Read the column names of a CSV."""
    return next(_rows(path), [])


def read_truths(path: Path, column: str = COLUMN) -> dict[str, KnownTruth]:
    """Read the true label or tags of each file from a CSV with a file column (see `FILE_COLUMNS`) and `column`.

    If there is a column `not` for excluded labels beside `label`, a row has a label in one of the two columns, or in
    neither if the true label could not be determined; a file may have several rows with excluded labels. The column
    `probability` contains relative probabilities of selection for labelling. Other columns are ignored.

    A column `tags`, used instead of `label`, contains all tags of a file, such as `cat;dog`, or is empty.
    """
    rows = _rows(path)
    where, header = shown(str(path)), next(rows, [])
    if column == COLUMN and TAGS in header and COLUMN not in header:
        column = TAGS
    files = next((name for name in FILE_COLUMNS if name in header), FILE_COLUMNS[0])
    lacking = [shown(name) for name in (files, column) if name not in header]
    if lacking:
        has = ", ".join(map(shown, header[:20])) or "nothing"
        raise DataError(
            f"{where} has no column {' and no column '.join(lacking)}; the first line has {has}. Call the columns file "
            "and label, or specify the label column with --truths-column",
            code="file-malformed",
        )
    width, file, label = len(header), header.index(files), header.index(column)
    other = header.index(NOT) if column == COLUMN and NOT in header else None
    chance = header.index(PROBABILITY) if PROBABILITY in header else None
    table = [(number, row) for number, row in enumerate(rows, 2) if row]
    uneven = [
        f"row {number}"
        for number, row in table
        if len(row) != width or not row[file] or (other is None and column != TAGS and not row[label])
    ]
    if uneven:
        raise DataError(
            f"{where} must have {width} filled fields in each row, unlike {few(uneven, 'row')}; quote texts that "
            "contain commas",
            code="file-malformed",
        )
    truths: dict[str, KnownTruth] = {}
    twice = set[str]()
    for _, row in table:
        name = str(PurePosixPath(row[file]))
        truth = KnownTruth(
            sys.intern(row[label]) or None,
            (sys.intern(row[other]),) if other is not None and row[other] else (),
            1.0 if chance is None else _probability(row[chance], name, where),
        )
        if column == TAGS:
            truth = KnownTruth(tags=tuple(map(sys.intern, dict.fromkeys(split_tags(row[label])))))
        known = truths.setdefault(name, truth)
        if (truth.truth and truth.excluded) or (known is not truth and not (truth.excluded and known.excluded)):
            twice.add(name)
        elif known is not truth:
            truths[name] = KnownTruth(None, (*known.excluded, *truth.excluded), known.probability)
    if twice:
        raise DataError(
            f"{where} has more than one row for {few(sorted(twice), 'file')}; keep one row for each, with all tags "
            "in a column `tags` if there are several",
            code="pictures-duplicate",
        )
    return truths


def read_coco(path: Path) -> dict[str, KnownTruth]:
    """Read the categories of the instances in each picture from COCO JSON; pictures without instances have no tags."""
    with reading(path, "COCO instances JSON, with images, annotations and categories"):
        content = json.loads(path.read_bytes())
        names = {category["id"]: str(category["name"]) for category in content["categories"]}
        tags: dict[object, dict[str, None]] = {picture["id"]: {} for picture in content["images"]}
        for instance in content["annotations"]:
            tags[instance["image_id"]][names[instance["category_id"]]] = None
        return {str(picture["file_name"]): KnownTruth(tags=tuple(tags[picture["id"]])) for picture in content["images"]}


def _probability(text: str, name: str, where: str) -> float:
    try:
        probability = float(text)
    except ValueError:
        probability = math.nan
    if not 0.0 < probability <= 1.0:
        raise DataError(
            f"{where}: the probability of {shown(name)} is {shown(text)}; give one above 0 and up to 1",
            code="file-malformed",
        )
    return probability


def _rows(path: Path) -> Iterator[list[str]]:
    with reading(path, "CSV in UTF-8, with commas and quotes"):
        text = io.StringIO(path.read_bytes().decode("utf-8-sig"), newline="")
        for row in csv.reader(text, skipinitialspace=True, strict=True):
            yield [from_cell(cell) for cell in row]


if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".heic", ".heif", ".avif", ".bmp", ".tif", ".tiff", ".gif")
"""The extensions of the files that are read from a folder; case is ignored."""


def find(paths: Sequence[Path], max_pixels: int = MAX_PIXELS) -> Sequence[Picture]:
    """Find the pictures in files, folders (including subfolders) and `.npz` files, without true labels.

    If a single folder is given, each picture is named by its path relative to the folder, and names are sorted by code
    point; with several paths, each name is prefixed with the path as given. A file that is given may have any
    extension; from a folder, only files with `ENDINGS` are used.
    """
    if not paths:
        raise DataError("no pictures were given; give files or folders", code="pictures-none")
    here = Folder(Path(), max_pixels)
    pictures: Sequence[Picture]
    with reading(paths[0]):
        if len(paths) > 1:
            pictures = [picture for path in paths for picture in _among(path, here)]
        elif paths[0].is_dir():
            pictures = Collection(_listed(paths[0]), Folder(paths[0], max_pixels))
        elif _is_npz(paths[0]):
            pictures = stacked(paths[0], paths[0].name, max_pixels)
        else:
            pictures = _among(paths[0], here)
    twice = repeated(picture.name for picture in pictures)
    if twice:
        raise DataError(
            f"pictures were given twice: {few(twice, 'picture')}; list each once", code="pictures-duplicate"
        )
    return pictures


@dataclass(frozen=True, slots=True)
class Folder:
    """Pictures in files; a name is the path below `root`, with forward slashes."""

    root: Path
    max_pixels: int

    def image(self, name: str, size: WorkingSize | None = None) -> Image:
        return load(self.root / name, self.max_pixels, size)

    def stamp(self, name: str) -> Stamp:
        return stamp_of(self.root / name)


@dataclass(frozen=True, slots=True)
class Held:
    """A picture in memory: the bytes of a file, or pixels; an `Image` is shared, not copied."""

    content: bytes | NDArray[np.uint8] | Image = field(repr=False)

    def image(self, name: str, size: WorkingSize | None = None) -> Image:
        if isinstance(self.content, bytes):
            return decode(self.content, name, size=size)
        return (self.content if isinstance(self.content, Image) else Image.from_array(self.content)).within(size)


PictureLike = Union[Picture, Image, str, Path, bytes, NDArray[np.uint8], "PillowImage"]
"""One picture: a path, the bytes of a file, an array (uint8, height × width [× RGB]), or a Pillow image."""
Kind = Literal["label", "tags"]
PicturesLike = str | Path | Sequence[PictureLike] | NDArray[np.uint8]
"""Several pictures: a file, folder or .npz, a sequence of pictures, or one array with all pictures."""


def one(item: PictureLike, name: str = "picture") -> Picture:
    """Open a picture from any source; sources without a path get the given name."""
    if isinstance(item, Picture):
        return item
    if isinstance(item, str | Path):
        pictures = find([Path(item)])
        if len(pictures) != 1:
            raise DataError(
                f"{shown(str(item))}: contains {len(pictures)} pictures; give one picture", code="pictures-many"
            )
        return pictures[0]
    if isinstance(item, bytes | bytearray | memoryview):
        return Picture(name, None, Held(bytes(item)))
    if isinstance(item, Image):
        return Picture(name, None, Held(item))
    if not isinstance(item, np.ndarray) and hasattr(item, "convert"):
        return Picture(name, None, Held(converted(item)))
    return Picture(name, None, Held(np.asarray(item)))


def many(items: PicturesLike) -> Sequence[Picture]:
    """Open pictures from any source; pictures in memory are named by their index."""
    if isinstance(items, str | Path):
        return find([Path(items)])
    if len(items) and all(isinstance(item, str | Path) for item in items):
        return find([Path(str(item)) for item in items])
    return [one(item, str(place)) for place, item in enumerate(items)]


def of_several(path: Path, picture: Picture) -> Picture:
    """Prefix the name of a picture with the path of its collection, for use with other collections."""
    if isinstance(picture.source, Folder):
        name = (picture.source.root / picture.name).as_posix()
        return replace(picture, name=name, source=Folder(Path(), picture.source.max_pixels))
    return replace(picture, name=(path.parent / picture.name).as_posix())


def has_truths(items: PicturesLike) -> bool:
    """Whether `items` is a folder with labels.csv or an .npz file with labels."""
    if not isinstance(items, str | Path):
        return False
    path = Path(items)
    return (path / "labels.csv").is_file() or (_is_npz(path) and "labels" in array_names(path))


def with_truths(pictures: Sequence[Picture], labels: Iterable[object]) -> list[Picture]:
    """Add true labels to pictures: one label, or a list or set of tags, per picture; the two lengths must be equal."""
    truths = list(labels)
    if len(truths) != len(pictures):
        raise DataError(
            f"there are {len(pictures)} pictures and {len(truths)} labels; give one label per picture",
            code="labels-unmatched",
        )
    lists = [isinstance(truth, list | tuple | set | frozenset) for truth in truths]
    if any(lists) and not all(lists):
        raise DataError(
            "some pictures have one label and others a list of tags; give the same form for all pictures",
            code="labels-unmatched",
        )
    if any(lists):
        tag_lists = [tuple(dict.fromkeys(map(str, truth))) for truth in truths]  # type: ignore[call-overload]
        return [replace(picture, tags=tags) for picture, tags in zip(pictures, tag_lists, strict=True)]
    return [replace(picture, truth=str(truth)) for picture, truth in zip(pictures, truths, strict=True)]


def labelled(
    path: Path, truths: Path | None = None, max_pixels: int = MAX_PIXELS, column: str = COLUMN
) -> list[Picture]:
    """The pictures of a collection with their true labels, sorted by name.

    `path` is a folder with a `labels.csv` (columns `file` and `label`), a folder with one folder per class, or an
    `.npz` with `images`, `labels` and `class_names`. `truths` is a CSV like `labels.csv` in another place, and
    `column` is the name of its column of true labels. The pictures are labelled with tags if the CSV has a column
    `tags` or `truths` is COCO instances JSON.
    """
    with reading(path):
        if truths is None and (path / "labels.csv").is_file():
            truths = path / "labels.csv"
        if truths is not None:
            return _with_table(path, truths, max_pixels, column)
        if column != COLUMN:
            what = f"{shown(str(path))}: there is no labels.csv with a column {shown(column)}"
            raise DataError(
                f"{what}; specify the CSV with --truths, or leave out --truths-column", code="option-conflict"
            )
        return labelled_stack(path, max_pixels) if _is_npz(path) else _by_class(path, max_pixels)


def open_all_labelled(paths: Sequence[Path], truths: Path | None = None, column: str = COLUMN) -> list[Picture]:
    """The pictures of one or more collections; if there are several, each name is prefixed with the path as given."""
    if len(paths) == 1:
        return labelled(paths[0], truths, column=column)
    pictures = [of_several(path, picture) for path in paths for picture in labelled(path, truths, column=column)]
    if twice := repeated(picture.name for picture in pictures):
        raise DataError(
            f"pictures were given twice: {few(twice, 'picture')}; list each once", code="pictures-duplicate"
        )
    return pictures


def of_kind(pictures: Sequence[Picture], kind: Kind) -> Sequence[Picture]:
    """Check that all true labels are of this kind; if tags are required, labels are split at each `;` into tags."""
    if kind == "tags" and any(";" in (picture.truth or "") for picture in pictures):
        pictures = [p if p.truth is None else replace(p, truth=None, tags=split_tags(p.truth)) for p in pictures]
    forms = {_form(picture) for picture in pictures}
    if None in forms:
        raise FitError(
            "the true label of every picture is needed; give labels, or a collection that has them",
            code="labels-missing",
        )
    if not forms <= {kind}:
        raise DataError(_OTHER_FORM[kind], code="labels-unmatched")
    return pictures


def _form(picture: Picture) -> Kind | None:
    if picture.tags is not None:
        return "tags"
    return "label" if picture.truth is not None or picture.excluded else None


_OTHER_FORM: dict[Kind, str] = {
    "tags": "the classifier returns tags, but there is one true label per picture; give all tags of each: a column "
    "`tags` in the CSV (cat;dog), COCO JSON, or a list of tags per picture",
    "label": "there are several true tags per picture, but the classifier is asked for one label; describe it with "
    'answer = "tags", or give one label per picture',
}


# --- files and folders


def _is_npz(path: Path) -> bool:
    return path.suffix.lower() == ".npz" and path.is_file()


def _among(path: Path, here: Folder) -> Sequence[Picture]:
    name = path.as_posix()
    with reading(path):
        try:  # not path.exists(), which from Python 3.14 on is false if access is denied
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError, ValueError):
            raise DataError(
                f"{shown(str(path))}: no such file or folder; check the path", code="file-missing"
            ) from None
        if stat.S_ISDIR(mode):
            return Collection([f"{name}/{below}" for below in _listed(path)], here)
        return stacked(path, name, here.max_pixels) if _is_npz(path) else [Picture(name, None, here)]


def _listed(root: Path) -> list[str]:
    names = sorted(name for name in _walk(root) if name.lower().endswith(ENDINGS))
    if not names:
        raise DataError(
            f"{shown(str(root))} contains no picture; the extensions of pictures are {' '.join(ENDINGS)}",
            code="pictures-none",
        )
    return names


def _walk(root: Path) -> Iterator[str]:
    """List the files below a folder, except hidden files. Each folder is read only once, in case links are circular.

    Links to folders are followed last, so that files below the root keep their own names; links to a folder
    above the root, or above the link, are not followed.
    """
    folders, seen = deque([""]), set[tuple[int, int]]()
    while folders:
        folder = folders.popleft()
        with reading(root / folder):
            status = os.stat(root / folder)
            entries = (
                []
                if (status.st_dev, status.st_ino) in seen
                else sorted(os.scandir(root / folder), key=attrgetter("name"))
            )
        seen.add((status.st_dev, status.st_ino))
        for entry in entries:
            name = f"{folder}{entry.name}"
            if entry.name.startswith("."):
                continue
            if not _is_folder(entry):
                yield name
            elif not entry.is_symlink():
                folders.appendleft(name + "/")
            else:
                target = os.path.realpath(entry.path)
                if not any(Path(os.path.realpath(below)).is_relative_to(target) for below in (root, root / folder)):
                    folders.append(name + "/")


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself; opening it will raise an error
        return False


# --- true labels


def _by_class(root: Path, max_pixels: int) -> list[Picture]:
    """One folder per class: the true label is the name of the first folder below the root."""
    if root.exists() and not root.is_dir():
        raise DataError(
            f"{shown(str(root))} is not a collection with true labels; give a folder or an .npz, or specify a CSV",
            code="labels-unmatched",
        )
    pictures = find([root], max_pixels)
    loose = [picture.name for picture in pictures if "/" not in picture.name]
    if loose:
        what = f"{shown(str(root))} has no true label for {few(loose, 'picture')}"
        raise DataError(
            f"{what}; add a labels.csv (file,label) in this folder, or move each picture into the folder of its class",
            code="labels-unmatched",
        )
    with reading(root), os.scandir(root) as entries:
        truths = {e.name: e.name for e in entries if _is_folder(e) and not e.name.startswith(".")}
    labelled_pictures = [Picture(p.name, truths[p.name.partition("/")[0]], p.source) for p in pictures]
    idle = sorted(truths.keys() - {picture.truth for picture in labelled_pictures})
    if idle:
        raise DataError(
            f"{shown(str(root))} has no picture in {few(idle, 'class folder')}; add pictures or remove these folders",
            code="labels-unmatched",
        )
    return labelled_pictures


def _with_table(path: Path, table: Path, max_pixels: int, column: str) -> list[Picture]:
    where, is_coco = shown(str(table)), table.suffix.lower() == ".json"
    truths = read_coco(table) if is_coco else read_truths(table, column)
    sources = {picture.name: picture.source for picture in find([path], max_pixels)}
    # An accented letter may be one character in the table but two in the file name, as on macOS.
    others = {normalize("NFC", name): name for name in sources.keys() - truths.keys()}
    aliases = {name: others.get(normalize("NFC", name), name) for name in truths.keys() - sources.keys()}
    truths = {aliases.get(name, name): entry for name, entry in truths.items()}
    bare = sorted(sources.keys() - truths.keys())
    growing = is_coco or (column == COLUMN and {NOT, TAGS} & {*read_header(table)})  # people still label with it
    if bare and not growing:
        raise DataError(
            f"{where} has no row for {few(bare, 'picture')}; add a row for each, move them to another folder, "
            "or add a column `not` (it may be empty) to use only the pictures in the table",
            code="labels-unmatched",
        )
    for name in truths.keys() - sources.keys() if path.is_dir() else ():
        below = ".." not in PurePosixPath(name).parts and not name.startswith("/")
        if below and (path / name).is_file():  # a file with another extension is used because a row names it
            sources[name] = Folder(path, max_pixels)
    lost = sorted(truths.keys() - sources.keys())
    if lost and not (is_coco and len(lost) < len(truths)):  # COCO files often cover more pictures
        raise DataError(
            f"{where} has {few(lost, 'true label')} for pictures that are not in {shown(str(path))}; remove the rows",
            code="labels-unmatched",
        )
    useful = {name: entry for name, entry in truths.items() if entry.truth or entry.excluded or entry.tags is not None}
    if not useful:
        raise DataError(f"{where} contains no label; label some pictures with: looktwice label", code="labels-missing")
    known = {name: useful[name] for name in (sorted(useful) if path.is_dir() else sources) if name in useful}
    return [
        Picture(name, t.truth, sources[name], t.excluded, t.probability, t.tags)
        for name, t in known.items()
        if name in sources
    ]
