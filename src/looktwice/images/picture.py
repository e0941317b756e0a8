"""Pictures that are decoded when they are asked for: their names, their truths, and where they come from."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, overload

from looktwice.images.decode import load
from looktwice.images.image import Image, WorkingSize

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
        return stamp_of(self.root / name)


def stamp_of(path: Path) -> Stamp:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1)
