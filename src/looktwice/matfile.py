"""A table from a MATLAB file, version 5, without running anybody's reader: SciPy's own dies of damaged ones.

A file is a row of elements, each with its kind and its length; a table is a struct array, whose cells are elements.
"""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

MOST = 2**26
"""Bytes that a packed element may unpack to."""
Cell = str | float | None

_MATRIX, _COMPRESSED = 14, 15
_STRUCT, _TEXT = 2, 4
_NUMBERS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_LETTERS = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}


def read_table(data: bytes, name: str) -> list[dict[str, Cell]]:
    """The rows of a struct array by its name; a cell is a text, its first number, or None where it is neither.

    A ValueError or struct.error says that the bytes are no such file, a KeyError that it holds no such array.
    """
    if len(data) < 128 or data[126:128] not in (b"IM", b"MI"):
        raise ValueError("it is no MATLAB file of version 5")
    order = "<" if data[126:128] == b"IM" else ">"
    for kind, body in _elements(data[128:], order):
        whole = _unpacked(body, order) if kind == _COMPRESSED else (kind, body)
        array = _Array.of(whole[1], order) if whole[0] == _MATRIX else None
        if array and array.name == name:
            return array.rows()
    raise KeyError(name)


def _unpacked(body: bytes, order: str) -> tuple[int, bytes]:
    unpacking = zlib.decompressobj()
    try:
        inner = unpacking.decompress(body, MOST)
    except zlib.error as error:
        raise ValueError(f"it is damaged: {error}") from None
    if unpacking.unconsumed_tail:
        raise ValueError(f"it unpacks to more than {MOST:,} bytes")
    return next(_elements(inner, order))


def _elements(data: bytes, order: str) -> Iterator[tuple[int, bytes]]:
    """Kind and bytes of each element; short ones have both and their length in eight bytes."""
    at = 0
    while at + 8 <= len(data):
        kind, size = struct.unpack_from(order + "II", data, at)
        if kind >> 16:
            yield kind & 0xFFFF, data[at + 4 : at + 4 + min(4, kind >> 16)]
            at += 8
            continue
        if at + 8 + size > len(data):
            raise ValueError("it is cut off")
        yield kind, data[at + 8 : at + 8 + size]
        at += 8 + (size if kind == _COMPRESSED else size + -size % 8)


@dataclass(frozen=True, slots=True)
class _Array:
    order: str
    kind: int
    length: int
    name: str
    parts: list[tuple[int, bytes]]

    @classmethod
    def of(cls, body: bytes, order: str) -> _Array | None:
        """The array in an element, None for an empty one."""
        parts = list(_elements(body, order))
        if len(parts) < 3:
            return None
        (flags,), shape = struct.unpack_from(order + "I", parts[0][1]), _numbers(*parts[1], order)
        return cls(order, flags & 0xFF, math.prod(map(int, shape)), parts[2][1].decode("latin-1"), parts[3:])

    def rows(self) -> list[dict[str, Cell]]:
        """Cells come row by row, under names of one width."""
        if self.kind != _STRUCT:
            raise ValueError(f"{self.name} is no table")
        (width,), names = _numbers(*self.parts[0], self.order), self.parts[1][1]
        if width < 1:
            raise ValueError("its columns have no names")
        step = int(width)
        columns = [names[at : at + step].partition(b"\0")[0].decode("latin-1") for at in range(0, len(names), step)]
        cells = self.parts[2:]
        if len(cells) != self.length * len(columns):
            raise ValueError(f"it has {len(cells)} cells for {self.length} rows of {len(columns)}")
        values = iter([_cell(body, self.order) for _, body in cells])
        return [dict(zip(columns, values, strict=False)) for _ in range(self.length)]


def _cell(body: bytes, order: str) -> Cell:
    array = _Array.of(body, order)
    if array is None or not array.parts:
        return None
    kind, data = array.parts[0]
    if array.kind == _TEXT:
        coding = _LETTERS[kind]
        return data.decode(coding + {"<": "-le", ">": "-be"}[order] if coding in ("utf-16", "utf-32") else coding)
    return next(iter(_numbers(kind, data, order)), None) if kind in _NUMBERS else None


def _numbers(kind: int, data: bytes, order: str) -> tuple[float, ...]:
    if kind not in _NUMBERS:
        raise ValueError(f"numbers of kind {kind} are not known")
    letter = _NUMBERS[kind]
    return struct.unpack(f"{order}{len(data) // struct.calcsize(order + letter)}{letter}", data)
