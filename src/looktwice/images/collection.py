"""Collections of pictures with truths: files, folders, `labels.csv`, one folder per class, and `.npz`.

Listing a collection decodes nothing. A `Picture` is small, can be pickled and sent to another process, and is decoded
each time it is used; only the arrays of a few `.npz` files are cached per process.
"""

import heapq
import math
import os
import stat
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import TYPE_CHECKING, Protocol, Union, overload
from unicodedata import normalize

import numpy as np
from numpy.typing import NDArray

from looktwice.errors import DataError, few, shown
from looktwice.images.decode import converted, decode, load
from looktwice.images.image import MAX_PIXELS, Image, WorkingSize, reading
from looktwice.images.npz import NPZ, array_names, read_array, read_header as read_array_header
from looktwice.images.truths import COLUMN, NOT, TAGS, read_coco, read_header, read_truths

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage

ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".heic", ".heif", ".avif", ".bmp", ".tif", ".tiff", ".gif")
"""Endings of the files that are taken from a folder, in any case."""
Stamp = tuple[int, ...]
"""The version of a file: mtime and ctime in nanoseconds (users cannot set ctime), size, and inode."""


class Source(Protocol):
    """The interface of a source: reads the pixels of a name, at a working size.

    One of files also has `stamp(name)`, that of the file, which raises an OSError if it is not there.
    """

    def image(self, name: str, size: WorkingSize | None = None) -> Image: ...


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that is decoded when asked: its name, unique in its collection, and its truth if known."""

    name: str
    truth: str | None
    source: Source = field(repr=False)
    excluded: tuple[str, ...] = ()
    """Labels known to be wrong, if the truth is otherwise unknown."""
    probability: float = 1.0
    """The relative probability of selection for labelling, in (0, 1]; 1 if equal."""
    tags: tuple[str, ...] | None = None
    """All tags that apply, if its truth is a set of tags."""

    def image(self, size: WorkingSize | None = None) -> Image:
        """Decode the picture, scaled down to a working size if larger.

        Raises an ImageError for an unreadable file, a DataError for an unreadable array.
        """
        return self.source.image(self.name, size)

    def stamp(self) -> Stamp | None:
        """The stamp of the picture's file; None without a file, or if it is missing."""
        stamp: Callable[[str], Stamp] | None = getattr(self.source, "stamp", None)
        try:
            return stamp(self.name) if stamp else None
        except (OSError, ValueError):  # a name that holds a zero is no name of a file
            return None


class Collection(Sequence[Picture]):
    """Pictures of one source, without truths; each `Picture` is created on demand, and only names take memory."""

    def __init__(self, names: Sequence[str], source: Source) -> None:
        self._names, self._source = names, source

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, place: int) -> Picture: ...
    @overload
    def __getitem__(self, place: slice) -> "Collection": ...
    def __getitem__(self, place: int | slice) -> "Picture | Collection":
        if isinstance(place, slice):
            return Collection(self._names[place], self._source)
        return Picture(self._names[place], None, self._source)


@dataclass(frozen=True, slots=True)
class Folder:
    """Pictures in files; a name is the path below `root`, with forward slashes."""

    root: Path
    max_pixels: int

    def image(self, name: str, size: WorkingSize | None = None) -> Image:
        return load(self.root / name, self.max_pixels, size)

    def stamp(self, name: str) -> Stamp:
        return _stamp(self.root / name)


@dataclass(frozen=True, slots=True)
class Stack:
    """Pictures in one array of one file; a name ends with `#` and the place in the array.

    `read` gives the uint8 array, N x H x W or N x H x W x 3; it is a plain function of a module, so that a picture
    can be pickled without its pixels. `listed` tells whether the file is still the one that was listed.
    """

    path: Path
    read: Callable[[Path], NDArray[np.uint8]]
    listed: Stamp

    @classmethod
    def from_file(cls, path: Path, read: Callable[[Path], NDArray[np.uint8]]) -> "Stack":
        return cls(path, read, _content_stamp(path))

    def stamp(self, name: str) -> Stamp:
        return _stamp(self.path)

    def image(self, name: str, size: WorkingSize | None = None) -> Image:
        with _LOADING:
            images = _images(self)
        return Image.of(images[int(name.rpartition("#")[2])]).within(size)


@dataclass(frozen=True, slots=True)
class Slices:
    """Pictures in an uncompressed array, read one by one."""

    path: Path
    listed: Stamp
    offset: int
    shape: tuple[int, ...]
    """Of one picture."""

    def stamp(self, name: str) -> Stamp:
        return _stamp(self.path)

    def image(self, name: str, size: WorkingSize | None = None) -> Image:
        step = math.prod(self.shape)
        with reading(self.path), self.path.open("rb") as file:
            if _content_stamp(file.fileno()) != self.listed:
                raise _changed(self.path)
            file.seek(self.offset + int(name.rpartition("#")[2]) * step)
            pixels = np.frombuffer(file.read(step), np.uint8)
        return Image.of(pixels.reshape(self.shape)).within(size)


def _changed(path: Path) -> DataError:
    return DataError(
        f"{shown(str(path))}: changed since its pictures were listed; list them again", code="file-malformed"
    )


_LOADING = Lock()


@lru_cache(maxsize=2)
def _images(stack: Stack) -> NDArray[np.uint8]:
    with reading(stack.path):
        if _content_stamp(stack.path) != stack.listed:
            raise _changed(stack.path)
        images = stack.read(stack.path)
    images.flags.writeable = False
    return images


def _stamp(path: Path) -> Stamp:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def _content_stamp(file: Path | int) -> Stamp:
    """The mtime and size of an array's file."""
    status = os.stat(file)
    return status.st_mtime_ns, status.st_size


def find(paths: Sequence[Path], max_pixels: int = MAX_PIXELS) -> Sequence[Picture]:
    """The pictures in files, folders (with all folders below) and `.npz` files, without truths.

    A folder given alone names its pictures by their path below it, sorted by code point; with several paths, each
    name begins with the path as it was given. A file is taken whatever its ending; from a folder, only `ENDINGS`.
    """
    if not paths:
        raise DataError("no picture is named; give files or folders", code="pictures-none")
    here = Folder(Path(), max_pixels)
    found: Sequence[Picture]
    with reading(paths[0]):
        if len(paths) > 1:
            found = [picture for path in paths for picture in _among(path, here)]
        elif paths[0].is_dir():
            found = Collection(_listed(paths[0]), Folder(paths[0], max_pixels))
        elif _is_npz(paths[0]):
            found = _stacked(paths[0], paths[0].name, max_pixels)
        else:
            found = _among(paths[0], here)
    twice = repeated(picture.name for picture in found)
    if twice:
        raise DataError(f"{few(twice, 'picture')} given twice; name each once", code="pictures-duplicate")
    return found


@dataclass(frozen=True, slots=True)
class Held:
    """A picture in memory: its file's bytes, or its pixels; an Image that was given is shared."""

    content: bytes | NDArray[np.uint8] | Image = field(repr=False)

    def image(self, name: str, size: WorkingSize | None = None) -> Image:
        if isinstance(self.content, bytes):
            return decode(self.content, name, size=size)
        return (self.content if isinstance(self.content, Image) else Image.of(self.content)).within(size)


PictureLike = Union[Picture, Image, str, Path, bytes, NDArray[np.uint8], "PillowImage"]
"""One picture: a path, the bytes of a file, an array (uint8, height × width [× RGB]), or a Pillow image."""
PicturesLike = str | Path | Sequence[PictureLike] | NDArray[np.uint8]
"""Many: a file, folder or .npz, a sequence of pictures, or one array of them."""


def one(item: PictureLike, name: str = "picture") -> Picture:
    """Open a picture from any source; sources without a path get the given name."""
    if isinstance(item, Picture):
        return item
    if isinstance(item, str | Path):
        found = find([Path(item)])
        if len(found) != 1:
            raise DataError(f"{shown(str(item))}: holds {len(found)} pictures; give one picture", code="pictures-many")
        return found[0]
    if isinstance(item, bytes | bytearray | memoryview):
        return Picture(name, None, Held(bytes(item)))
    if isinstance(item, Image):
        return Picture(name, None, Held(item))
    if not isinstance(item, np.ndarray) and hasattr(item, "convert"):
        return Picture(name, None, Held(converted(item)))
    return Picture(name, None, Held(np.asarray(item)))


def many(items: PicturesLike) -> Sequence[Picture]:
    """Open pictures from any source; those in memory are named by their index."""
    if isinstance(items, str | Path):
        return find([Path(items)])
    if len(items) and all(isinstance(item, str | Path) for item in items):
        return find([Path(str(item)) for item in items])
    return [one(item, str(place)) for place, item in enumerate(items)]


def of_several(path: Path, picture: Picture) -> Picture:
    """A picture of one of several collections, whose name begins with the path of that."""
    if isinstance(picture.source, Folder):
        name = (picture.source.root / picture.name).as_posix()
        return replace(picture, name=name, source=Folder(Path(), picture.source.max_pixels))
    return replace(picture, name=(path.parent / picture.name).as_posix())


def has_truths(items: PicturesLike) -> bool:
    """Whether this is a folder with labels.csv, or an .npz with labels."""
    if not isinstance(items, str | Path):
        return False
    path = Path(items)
    return (path / "labels.csv").is_file() or (_is_npz(path) and "labels" in array_names(path))


def with_truths(pictures: Sequence[Picture], labels: Iterable[object]) -> list[Picture]:
    """The pictures with a truth each, or a list or set of tags each; their numbers must agree."""
    truths = list(labels)
    if len(truths) != len(pictures):
        raise DataError(
            f"there are {len(pictures)} pictures and {len(truths)} labels; give one label a picture",
            code="labels-unmatched",
        )
    lists = [isinstance(truth, list | tuple | set | frozenset) for truth in truths]
    if any(lists) and not all(lists):
        raise DataError(
            "some pictures have one label and others a list of tags; give the same form for all",
            code="labels-unmatched",
        )
    if any(lists):
        found = [tuple(dict.fromkeys(map(str, truth))) for truth in truths]  # type: ignore[call-overload]
        return [replace(picture, tags=tags) for picture, tags in zip(pictures, found, strict=True)]
    return [replace(picture, truth=str(truth)) for picture, truth in zip(pictures, truths, strict=True)]


def labelled(
    path: Path, truths: Path | None = None, max_pixels: int = MAX_PIXELS, column: str = COLUMN
) -> list[Picture]:
    """The pictures of a collection with their truths, sorted by name.

    `path` is a folder with a `labels.csv` (columns `file` and `label`), a folder with one folder per class, or an
    `.npz` with `images`, `labels` and `class_names`. `truths` is a CSV like `labels.csv` that lies elsewhere, and
    `column` names the column of the CSV that holds the truths. Truths are tags if the CSV has a column `tags` or
    several labels for a file, `truths` is COCO's JSON of instances, or `labels` of an `.npz` have a column of 0 and 1
    for each of the `class_names`.
    """
    with reading(path):
        if truths is None and (path / "labels.csv").is_file():
            truths = path / "labels.csv"
        if truths is not None:
            return _with_table(path, truths, max_pixels, column)
        if column != COLUMN:
            what = f"{shown(str(path))}: no labels.csv that could have a column {shown(column)}"
            raise DataError(f"{what}; name the CSV with --truths, or leave out --truths-column", code="option-conflict")
        return _labelled_stack(path, max_pixels) if _is_npz(path) else _by_class(path, max_pixels)


# --- files and folders


def _among(path: Path, here: Folder) -> Sequence[Picture]:
    name = path.as_posix()
    with reading(path):
        try:  # not path.exists(), which from Python 3.14 on is false for what may not be looked at
            mode = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError, ValueError):
            raise DataError(
                f"{shown(str(path))}: no such file or folder; check the path", code="file-missing"
            ) from None
        if stat.S_ISDIR(mode):
            return Collection([f"{name}/{below}" for below in _listed(path)], here)
        return _stacked(path, name, here.max_pixels) if _is_npz(path) else [Picture(name, None, here)]


def _listed(root: Path) -> list[str]:
    names = sorted(name for name in _walk(root) if name.lower().endswith(ENDINGS))
    if not names:
        raise DataError(
            f"{shown(str(root))}: no picture in this folder; pictures end with {' '.join(ENDINGS)}",
            code="pictures-none",
        )
    return names


def _walk(root: Path) -> Iterator[str]:
    """List files below a folder, except hidden ones. Each folder is read once, so that links in a ring come to an end.

    Links to folders are followed last, so that what really lies below the root keeps its own name; links to a folder
    above the root, or above the link, are not followed.
    """
    folders, links, seen = [""], list[str](), set[tuple[int, int]]()
    while folders or links:
        folder = folders.pop() if folders else heapq.heappop(links)
        with reading(root / folder):
            status = os.stat(root / folder)
            entries = [] if (status.st_dev, status.st_ino) in seen else list(os.scandir(root / folder))
        seen.add((status.st_dev, status.st_ino))
        for entry in entries:
            name = f"{folder}{entry.name}"
            if entry.name.startswith("."):
                continue
            if not _is_folder(entry):
                yield name
            elif entry.is_symlink():
                target = os.path.realpath(entry.path)
                if not any(Path(os.path.realpath(below)).is_relative_to(target) for below in (root, root / folder)):
                    heapq.heappush(links, name + "/")
            else:
                folders.append(name + "/")


def _is_folder(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link to itself; opening it will say so
        return False


# --- truths


def _by_class(root: Path, max_pixels: int) -> list[Picture]:
    """One folder per class: the truth is the first folder below the root."""
    if root.exists() and not root.is_dir():
        raise DataError(
            f"{shown(str(root))}: no collection with truths; give a folder or an .npz, or name a CSV",
            code="labels-unmatched",
        )
    pictures = find([root], max_pixels)
    loose = [picture.name for picture in pictures if "/" not in picture.name]
    if loose:
        what = f"{shown(str(root))}: {few(loose, 'picture')} without a truth"
        raise DataError(
            f"{what}; put a labels.csv (file,label) beside them or each into the folder of its class",
            code="labels-unmatched",
        )
    with reading(root), os.scandir(root) as entries:
        truths = {e.name: e.name for e in entries if _is_folder(e) and not e.name.startswith(".")}
    found = [Picture(p.name, truths[p.name.partition("/")[0]], p.source) for p in pictures]
    idle = sorted(truths.keys() - {picture.truth for picture in found})
    if idle:
        raise DataError(
            f"{shown(str(root))}: {few(idle, 'class folder')} without a picture; fill or remove it",
            code="labels-unmatched",
        )
    return found


def _with_table(path: Path, table: Path, max_pixels: int, column: str) -> list[Picture]:
    where, is_coco = shown(str(table)), table.suffix.lower() == ".json"
    truths = read_coco(table) if is_coco else read_truths(table, column)
    sources = {picture.name: picture.source for picture in find([path], max_pixels)}
    # An accented letter may be one character in the table and two in the name of the file, as on a Mac.
    others = {normalize("NFC", name): name for name in sources.keys() - truths.keys()}
    aliases = {name: others.get(normalize("NFC", name), name) for name in truths.keys() - sources.keys()}
    truths = {aliases.get(name, name): each for name, each in truths.items()}
    bare = sorted(sources.keys() - truths.keys())
    growing = is_coco or (column == COLUMN and {NOT, TAGS} & {*read_header(table)})  # people still label with it
    if bare and not growing:
        raise DataError(
            f"{where}: {few(bare, 'picture')} without a truth; add a row for each, move them "
            "away, or add a column `not` to use the others only: it may stay empty",
            code="labels-unmatched",
        )
    for name in truths.keys() - sources.keys() if path.is_dir() else ():
        below = ".." not in PurePosixPath(name).parts and not name.startswith("/")
        if below and (path / name).is_file():  # a file of an unusual ending is taken because a row names it
            sources[name] = Folder(path, max_pixels)
    lost = sorted(truths.keys() - sources.keys())
    if lost and not (is_coco and len(lost) < len(truths)):  # COCO's files are often about more pictures
        raise DataError(
            f"{where}: {few(lost, 'truth')} without a picture in {shown(str(path))}; remove the rows",
            code="labels-unmatched",
        )
    useful = {name: each for name, each in truths.items() if each.truth or each.excluded or each.tags is not None}
    if not useful:
        raise DataError(f"{where}: holds no label; label some pictures with: looktwice label", code="labels-missing")
    known = {name: useful[name] for name in (sorted(useful) if path.is_dir() else sources) if name in useful}
    return [
        Picture(name, t.truth, sources[name], t.excluded, t.probability, t.tags)
        for name, t in known.items()
        if name in sources
    ]


# --- arrays


def _is_npz(path: Path) -> bool:
    return path.suffix.lower() == ".npz" and path.is_file()


def _stacked(path: Path, name: str, max_pixels: int) -> Sequence[Picture]:
    listed, header, where = _content_stamp(path), read_array_header(path, "images"), shown(str(path))
    shape, kind = header.shape, header.kind
    if kind != np.uint8 or not (len(shape) == 3 or (len(shape) == 4 and shape[3] in (1, 3, 4))):
        raise DataError(
            f"{where}: images are {kind} of shape {shape}; give uint8, N x H x W or N x H x W x 3",
            code="file-malformed",
        )
    if 0 in shape:
        raise DataError(
            f"{where}: images have shape {shape}, so there is no picture; give at least one", code="pictures-none"
        )
    if shape[1] * shape[2] > max_pixels:
        raise DataError(
            f"{where}: {shape[2]} x {shape[1]} pixels is more than the limit of {max_pixels:,}; raise it",
            code="image-too-large",
        )
    source: Source = Stack(path, _npz_images, listed)
    if header.offset is not None and not header.fortran:
        source = Slices(path, listed, header.offset, shape[1:])
    return Collection([f"{name}#{place}" for place in range(shape[0])], source)


def _npz_images(path: Path) -> NDArray[np.uint8]:
    return read_array(path, "images").view(np.uint8)


def _labelled_stack(path: Path, max_pixels: int) -> list[Picture]:
    pictures, where, names = find([path], max_pixels), shown(str(path)), array_names(path)
    if "labels" not in names:
        raise DataError(f"{where}: no array named labels; it has {', '.join(map(shown, names))}", code="file-malformed")
    labels = read_array(path, "labels")
    classes = _texts(path, read_array(path, "class_names")) if "class_names" in names else None
    twice = repeated(classes or ())
    if twice:
        raise DataError(
            f"{where}: {few(twice, 'class name')} used for two classes; give each class its own", code="file-malformed"
        )
    if labels.ndim == 2 and labels.shape[1] > 1:
        return _tagged_stack(pictures, labels, classes, where)
    truths = named_truths(path, labels, classes)
    if len(truths) != len(pictures):
        raise DataError(
            f"{where}: {len(pictures)} pictures but {len(truths)} labels; give one label for each picture",
            code="labels-unmatched",
        )
    return [Picture(p.name, truth, p.source) for p, truth in zip(pictures, truths, strict=True)]


def _tagged_stack(
    pictures: Sequence[Picture], labels: "NDArray[np.generic]", tags: Sequence[str] | None, where: str
) -> list[Picture]:
    """Pictures with a column of 0 and 1 for each tag."""
    if tags is None or labels.shape != (len(pictures), len(tags)) or not np.isin(labels, (0, 1)).all():
        wanted = f"a row of 0 and 1 for each of {len(pictures)} pictures, with a class name for each column"
        raise DataError(f"{where}: labels of shape {labels.shape} are not tags; give {wanted}", code="file-malformed")
    return [
        Picture(picture.name, None, picture.source, tags=tuple(tags[code] for code in np.flatnonzero(row).tolist()))
        for picture, row in zip(pictures, labels, strict=True)
    ]


def named_truths(path: Path, labels: "NDArray[np.generic]", names: Sequence[str] | None) -> list[str]:
    """Map labels to truths: numbers to class names, strings to themselves.

    Numbers without class names become texts. A DataError lists labels that no class name stands for.
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
            f"{where}: {few(strange, 'label')} outside the {known} class names; correct labels or class_names",
            code="file-malformed",
        )
    return texts


def _texts(path: Path, array: "NDArray[np.generic]") -> list[str]:
    """A list of texts from an array of text or UTF-8 bytes, none of them empty."""
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
        raise DataError(f"{where}: {few(blank, 'label')} empty; every picture needs a truth", code="labels-missing")
    return texts


def repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1)
