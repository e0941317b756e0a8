"""Render queries: geometric views, remapped with fixed-point source positions.

Fixed-point positions make the pixels identical in all versions of OpenCV from 4.10, which its own affine warp does not
guarantee. Moves are computed as complex numbers x + iy, whose two parts have the memory layout that OpenCV needs. The
output is filled as one flat row of pixels, some thousands a call: many small views make one call, and the maps of large
ones stay in the cache of the CPU.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from hashlib import blake2b
from itertools import groupby, product
from math import ceil, pi
from typing import Literal, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from looktwice.errors import ViewError
from looktwice.images import Image
from looktwice.views.base import Floats, Pixels, Question, View, Worded, draw, name_of

# Random numbers: the same query draws the same, whatever else is asked -----------------------------------------------


Words = NDArray[np.uint64]


class _Thread(threading.local):
    """One bit generator per thread: creating one takes as long as drawing a small view, but resetting it is fast."""

    def __init__(self) -> None:
        self.bits = np.random.PCG64DXSM(0)


_thread = _Thread()


def words(questions: Sequence[Question], part: int, count: int) -> Words:
    """(n, count): 64 random bits each, for n queries with one view; `part` is the position in a chain, or 0.

    Picture, view, seed and part seed a random stream; draw k uses its k-th block of `count` words.
    """
    digest, view, seed, index = questions[0]
    if any(each[2:] != (seed, index + place) for place, each in enumerate(questions)):  # blocks are not contiguous
        return np.concatenate([words([question], part, count) for question in questions])
    key = blake2b(f"{digest} {view.text} {seed} {part}".encode(), digest_size=32).digest()
    _thread.bits.state = {
        "bit_generator": "PCG64DXSM",
        "state": {"state": int.from_bytes(key[:16], "little"), "inc": int.from_bytes(key[16:], "little") | 1},
        "has_uint32": 0,
        "uinteger": 0,
    }
    if index:
        _thread.bits.advance(index * count)
    return _thread.bits.random_raw(len(questions) * count).reshape(-1, count)


def uniforms(questions: Sequence[Question], part: int) -> Floats:
    """(n, 4): numbers uniform in [0, 1), each from the upper 53 bits of one of the `words`."""
    return np.asarray((words(questions, part, 4) >> np.uint64(11)) * 2.0**-53, np.float64)


# Maps ----------------------------------------------------------------------------------------------------------------


RENDERER = "1"
"""Part of every ledger key; it changes whenever the pixels of any view of looktwice change."""

Border = Literal["reflect", "constant", "edge"]
"""How pixels beyond the border are filled: mirrored, black, or repeated."""

Interpolation = Literal["linear", "nearest"]
"""The interpolation: bilinear or nearest."""

Points = NDArray[np.float32]
Sampling = tuple[Border, Interpolation]
Sources = NDArray[np.complex128]
"""(3, n): the point that a view shows at pixel (x, y) is [x, y, 1]·sources, counted from the centre."""

LONGEST = 32_766
"""Pixels a side that cv2.remap takes; also those drawn in one call, whose maps then fit into the L2 cache."""

IN_PAIRS = np.empty(0, np.float32)
"""The y of a piece whose positions are pairs of x and y."""

MAPS_BYTES = 4 * 2**20
"""Of the maps of neighbouring views that are kept, sixteen in all: those of the general views for five sizes."""

_LARGEST = 2**22
"""The maximum number of pixels of a picture with its margin."""

_BORDERS = {"reflect": cv2.BORDER_REFLECT_101, "constant": cv2.BORDER_CONSTANT, "edge": cv2.BORDER_REPLICATE}
_INTERPOLATIONS = {"linear": cv2.INTER_LINEAR, "nearest": cv2.INTER_NEAREST}
_NO_CHANCE = np.zeros((1, 4))
_NOTHING_BETWEEN = np.empty(0, np.uint16)


@dataclass(frozen=True)
class Sampled(View, ABC):
    """A view that interpolates, and reads beyond the border."""

    border: Border = field(default="reflect", kw_only=True)
    interpolation: Interpolation = field(default="linear", kw_only=True)


class Piece(NamedTuple):
    """Source positions of the flat output from start to stop: integer pixels, and fractions in units of 1/32."""

    start: int
    stop: int
    whole: NDArray[np.int16]
    between: NDArray[np.uint16]


class Maps(NamedTuple):
    """Pieces for a picture with a margin, so that no position lies beyond its border."""

    margin: int
    pieces: Iterable[Piece]


def read_through(maps: Maps, picture: Pixels, sampling: Sampling, out: Pixels) -> None:
    """Fills `out`, (n, height, width, 3), with the pixels of the picture to which the maps point."""
    border, interpolation = _BORDERS[sampling[0]], _INTERPOLATIONS[sampling[1]]
    if m := maps.margin:
        picture = np.asarray(cv2.copyMakeBorder(picture, m, m, m, m, border), np.uint8)
    flat = out.reshape(1, -1, 3)
    for start, stop, whole, between in maps.pieces:
        cv2.remap(picture, whole, between, interpolation, dst=flat[:, start:stop], borderMode=border)


# Moves -------------------------------------------------------------------------------------------------------------


class Motion(NamedTuple):
    """Geometric parameters: one number for all draws, or one per draw."""

    angle: Floats | float = 0.0
    """Degrees, counter-clockwise, about the centre."""
    factor: Floats | float = 1.0
    """Enlargement about the centre."""
    right: Floats | float = 0.0
    """Shift as a fraction of the width."""
    down: Floats | float = 0.0
    """Shift as a fraction of the height."""
    mirrored: bool = False
    """Whether the picture is mirrored first."""


@dataclass(frozen=True)
class Moving(View, ABC):
    """A view that transforms the picture as a whole."""

    @abstractmethod
    def motion(self, u: Floats, /) -> Motion:
        """The move of each draw; u is (n, 4), uniform in [0, 1), and only random views use it.

        Each number is monotone in each column of u: its extremes, which the border must allow for, are at 0 and 1.
        """

    def draw(self, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
        move((self,), part, questions, picture, out)


Moves = tuple[Moving, ...]


def moves_of(view: View) -> Moves:
    """The moves of a view, if it can be drawn in one step: all are moves with the same sampling, except for mirrors."""
    drawn = [part for part in view.parts if not isinstance(part, Worded)]
    moves = tuple(part for part in drawn if isinstance(part, Moving))
    samplings = {(each.border, each.interpolation) for each in moves if isinstance(each, Sampled)}
    return moves if len(moves) == len(drawn) and len(samplings) <= 1 else ()


def sampling_of(moves: Moves) -> Sampling:
    """The sampling of the moves, which is the same for all of them; mirrors work with any."""
    for each in moves:
        if isinstance(each, Sampled):
            return each.border, each.interpolation
    return "reflect", "linear"


def move(moves: Moves, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
    """Fills `out` with the picture, transformed in one step by all the moves of each query."""
    height, width, _ = picture.shape
    sampling = sampling_of(moves)
    if not any(each.random for each in moves):
        read_through(fixed_maps((moves,), height, width), picture, sampling, out[:1])
        out[1:] = out[0]
        return
    sources = _sources(moves, part, questions, height, width)
    reach = _longest_reach(moves, height, width)
    if reach > min(height, width) / 4:  # few draws come near it: look at these ones
        reach = _reach(sources, height, width)
    read_through(_maps(sources, reach, sampling, height, width), picture, sampling, out)


def _made_maps(views: tuple[Moves, ...], height: int, width: int) -> Maps:
    """The pieces are created once, on demand."""
    sources = np.concatenate([_sources(moves, 0, (), height, width) for moves in views], axis=1)
    return _maps(sources, _reach(sources, height, width), sampling_of(views[0]), height, width)


def fixed_maps(moves: tuple[Moves, ...], height: int, width: int) -> Maps:
    """The maps of fixed views with the same sampling; small ones are cached."""
    # Two coordinates and their fraction, two bytes each, for every pixel of every view.
    small = len(moves) * height * width * 6 <= MAPS_BYTES
    return (_kept_maps if small else _made_maps)(moves, height, width)


@lru_cache(maxsize=16)
def _kept_maps(moves: tuple[Moves, ...], height: int, width: int) -> Maps:
    maps = _made_maps(moves, height, width)
    return maps._replace(pieces=tuple(maps.pieces))


def _sources(moves: Moves, part: int, questions: Sequence[Question], height: int, width: int) -> Sources:
    each = [
        _source(move.motion(uniforms(questions, place) if move.random else _NO_CHANCE), height, width)
        for place, move in enumerate(moves, start=part)
    ]
    return reduce(_then, each)


def _source(motion: Motion, height: int, width: int) -> Sources:
    turn = np.exp(1j * pi / 180 * motion.angle) / motion.factor
    shift = -(width * motion.right + 1j * height * motion.down) * turn
    source = np.empty((3, np.size(shift)), np.complex128)
    source[0], source[1], source[2] = turn, 1j * turn, shift
    return -source.conj() if motion.mirrored else source


def _then(first: Sources, second: Sources) -> Sources:
    both: Sources = first[0] * second.real + first[1] * second.imag
    both[2] += first[2]
    return both


@lru_cache(maxsize=256)
def _longest_reach(moves: Moves, height: int, width: int) -> float:
    """The maximum number of pixels shown beyond the border, for any draw."""
    extremes = np.array(list(product((0.0, 1.0), repeat=4)))
    furthest = abs(complex(width, height)) / 2
    for each in reversed(moves):
        _, factor, right, down, _ = each.motion(extremes)
        furthest = float(np.max((furthest + np.hypot(width * right, height * down)) / factor))
    return furthest - min(height, width) / 2


def _reach(sources: Sources, height: int, width: int) -> float:
    """The number of pixels shown beyond the border."""
    corner = np.array([width / 2, height / 2, 1])
    x, y = (corner @ np.abs(sources.view(np.float64))).reshape(-1, 2).max(axis=0).tolist()
    return float(max(x - width / 2, y - height / 2))


def _maps(sources: Sources, reach: float, sampling: Sampling, height: int, width: int) -> Maps:
    margin, count = max(0, ceil(reach) + 1), sources.shape[1]
    area = (height + 2 * margin) * (width + 2 * margin)
    if area > min(count * height * width, _LARGEST) or max(height, width) + 2 * margin > LONGEST:
        margin = 0  # it would not pay
    return Maps(margin, _pieces(sources, height, width, margin, sampling[1] == "nearest"))


def _pieces(sources: Sources, height: int, width: int, margin: int, nearest: bool) -> Iterator[Piece]:
    x_way, y_way, shift = sources.astype(np.complex64)[:, :, None]
    across, down = x_way * _centred(width), y_way * _centred(height) + (shift + complex(width - 1, height - 1) / 2)
    # In blocks of several whole views, or of some rows of one.
    together, rows = max(1, LONGEST // (height * width)), min(height, max(1, LONGEST // width))
    for view, row in product(range(0, sources.shape[1], together), range(0, height, rows)):
        points = down[view : view + together, row : row + rows, None] + across[view : view + together, None]
        pairs = points.reshape(1, -1, 1).view(np.float32)
        yield piece((view * height + row) * width, pairs, IN_PAIRS, margin, nearest)


@lru_cache(maxsize=64)
def _centred(size: int) -> NDArray[np.float32]:
    return np.arange(size, dtype=np.float32) - np.float32((size - 1) / 2)


def piece(start: int, x: Points, y: Points, margin: int, nearest: bool) -> Piece:
    """The piece of source positions that are given apart, (1, m) each, or as pairs in x alone, (1, m, 2)."""
    pixels, parts = cv2.convertMaps(x, y, cv2.CV_16SC2, nninterpolation=nearest)
    whole, between = np.asarray(pixels, np.int16), _NOTHING_BETWEEN if nearest else np.asarray(parts, np.uint16)
    if margin:
        whole += margin
    return Piece(start, start + x.shape[1], whole, between)


class Run(NamedTuple):
    """Adjacent views that are rendered together: draws of one view, or compatible fixed moves."""

    start: int
    stop: int
    moves: tuple[Moves, ...]
    """The moves of each view if all are fixed moves, otherwise empty."""


def renderer(views: Iterable[View]) -> str:
    """The version of the renderer: RENDERER, and the versions of families that have one."""
    own = {f"{name_of(type(part))}={part.version}" for view in views for part in view.parts if part.version}
    return " ".join([RENDERER, *sorted(own)])


def render(image: Image, questions: Sequence[Question]) -> Pixels:
    """(n, height, width, 3): the pixels of each query, in order."""
    out = np.zeros((len(questions), *image.pixels.shape), np.uint8)
    render_into(image, questions, out)
    return out


def render_into(image: Image, questions: Sequence[Question], out: Pixels) -> None:
    """Renders each query into `out`: uint8, (n, height, width, 3), contiguous."""
    height, width, _ = image.pixels.shape
    shape = (len(questions), height, width, 3)
    if out.shape != shape or out.dtype != np.uint8 or not (out.flags.c_contiguous and out.flags.writeable):
        what = f"a contiguous uint8 array of shape {shape}, not {out.dtype} {out.shape}"
        raise ViewError(f"views are written into {what}")
    if max(height, width) > LONGEST:
        raise ViewError(
            f"a picture of {width} x {height} is too large; scale it so that no side exceeds {LONGEST} pixels",
            code="image-too-large",
        )
    digests, views, _, _ = zip(*questions, strict=True) if questions else ((), (), (), ())
    if digests.count(image.digest) != len(questions):
        other = next(digest for digest in digests if digest != image.digest)
        raise ViewError(
            f"a query for picture {other} was used with picture {image.digest}; use each picture's own queries"
        )
    for start, stop, moves in _runs(views):
        if moves:
            read_through(fixed_maps(moves, height, width), image.pixels, sampling_of(moves[0]), out[start:stop])
        else:
            draw(questions[start].view, 0, questions[start:stop], image.pixels, out[start:stop])


# What is drawn together --------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def _runs(views: tuple[View, ...]) -> tuple[Run, ...]:
    runs, start = [], 0
    for _, neighbours in groupby(views, _in_common):
        moves = [_fixed_moves(view) for view in neighbours]
        runs.append(Run(start, start + len(moves), tuple(filter(None, moves))))
        start += len(moves)
    return tuple(runs)


def _in_common(view: View) -> object:
    """The properties that adjacent views must have in common to be drawn together."""
    moves = _fixed_moves(view)
    return sampling_of(moves) if moves else view


def _fixed_moves(view: View) -> Moves:
    return () if view.random else moves_of(view)
