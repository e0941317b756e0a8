"""Render queries: geometric views, remapped with fixed-point source positions.

Fixed-point positions make the pixels identical in all versions of OpenCV from 4.10, which its own affine warp does not
guarantee. Moves are computed as complex numbers x + iy, whose two parts have the memory layout that OpenCV needs. The
output is filled as one flat row of pixels, with several thousand pixels per call: many small views are drawn in one
call, and the maps of large views fit into the CPU cache.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, reduce
from hashlib import blake2b
from itertools import groupby, product
from math import ceil, pi
from operator import itemgetter
from typing import Literal, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from looktwice.errors import ViewError
from looktwice.images import Image
from looktwice.views.base import Floats, Pixels, Question, View, Worded, draw, name_of

# Random numbers: the same query draws the same, whatever else is asked -----------------------------------------------


Words = NDArray[np.uint64]


def words(questions: Sequence[Question], part: int, count: int) -> Words:
    """(n, count): random 64-bit numbers for n queries with the same view; `part` is the position in a chain, or 0.

    Picture, view, seed and part seed a random stream; draw k uses its k-th block of `count` words.
    """
    digest, view, seed, index = questions[0]
    if any(question[2:] != (seed, index + place) for place, question in enumerate(questions)):  # not contiguous
        return np.concatenate([words([question], part, count) for question in questions])
    key = blake2b(f"{digest} {view.text} {seed} {part}".encode(), digest_size=32).digest()
    bits = np.random.PCG64DXSM(0)
    bits.state = {
        "bit_generator": "PCG64DXSM",
        "state": {"state": int.from_bytes(key[:16], "little"), "inc": int.from_bytes(key[16:], "little") | 1},
        "has_uint32": 0,
        "uinteger": 0,
    }
    bits.advance(index * count)
    return bits.random_raw(len(questions) * count).reshape(-1, count)


def uniforms(questions: Sequence[Question], part: int) -> Floats:
    """(n, 4): uniform numbers in [0, 1), each computed from the upper 53 bits of a number from `words`."""
    return np.asarray((words(questions, part, 4) >> np.uint64(11)) * 2.0**-53, np.float64)


# Maps ----------------------------------------------------------------------------------------------------------------


RENDERER = "1"
"""Part of every ledger key; it must be changed whenever the pixels of any built-in view change."""

Border = Literal["reflect", "constant", "edge"]
"""How pixels beyond the border are filled: mirrored, black, or repeated."""

Interpolation = Literal["linear", "nearest"]
"""The interpolation: bilinear or nearest."""

Points = NDArray[np.float32]
Sampling = tuple[Border, Interpolation]
Sources = NDArray[np.complex128]
"""(3, n): the pixel (x, y) of a view shows the source point [x, y, 1]·sources; the centre is the origin."""

LONGEST = 32_766
"""The maximum side in pixels for cv2.remap, and the maximum pixels per call, so that maps fit into the L2 cache."""

IN_PAIRS = np.empty(0, np.float32)
"""The argument `y` of `piece` if its `x` contains pairs of x and y."""

MAP_PIXELS = 300**2
"""The maximum number of pixels of a cached map, which takes six bytes per pixel; 128 are cached, enough for the general
views at sixteen picture sizes."""

_LARGEST = 2**22
"""The maximum number of pixels in a picture with its margin."""

_BORDERS = {"reflect": cv2.BORDER_REFLECT_101, "constant": cv2.BORDER_CONSTANT, "edge": cv2.BORDER_REPLICATE}
_INTERPOLATIONS = {"linear": cv2.INTER_LINEAR, "nearest": cv2.INTER_NEAREST}
_NO_CHANCE = np.zeros((1, 4))
_NOTHING_BETWEEN = np.empty(0, np.uint16)


@dataclass(frozen=True)
class Sampled(View, ABC):
    """A view that interpolates between pixels and reads beyond the border."""

    border: Border = field(default="reflect", kw_only=True)
    interpolation: Interpolation = field(default="linear", kw_only=True)


class Piece(NamedTuple):
    """Source positions for the flat output from start to stop: integer pixels, and fractions in units of 1/32."""

    start: int
    stop: int
    whole: NDArray[np.int16]
    between: NDArray[np.uint16]


class Maps(NamedTuple):
    """Pieces for a picture with a margin, so that no position lies beyond its border."""

    margin: int
    pieces: Iterable[Piece]


def read_through(maps: Maps, picture: Pixels, sampling: Sampling, out: Pixels) -> None:
    """Fill `out`, (n, height, width, 3), with the pixels of the picture at the positions in the maps."""
    border, interpolation = _BORDERS[sampling[0]], _INTERPOLATIONS[sampling[1]]
    if m := maps.margin:
        picture = np.asarray(cv2.copyMakeBorder(picture, m, m, m, m, border), np.uint8)
    flat = out.reshape(1, -1, 3)
    for start, stop, whole, between in maps.pieces:
        cv2.remap(picture, whole, between, interpolation, dst=flat[:, start:stop], borderMode=border)


# Moves -------------------------------------------------------------------------------------------------------------


class Motion(NamedTuple):
    """Geometric parameters: each is one number for all draws, or one per draw."""

    angle: Floats | float = 0.0
    """The rotation about the centre, in degrees counter-clockwise."""
    factor: Floats | float = 1.0
    """The enlargement factor about the centre."""
    right: Floats | float = 0.0
    """The shift to the right, as a fraction of the width."""
    down: Floats | float = 0.0
    """The shift down, as a fraction of the height."""
    mirrored: bool = False
    """Whether the picture is mirrored before the other changes."""


@dataclass(frozen=True)
class Moving(View, ABC):
    """A view that transforms the picture as a whole."""

    @abstractmethod
    def motion(self, u: Floats, /) -> Motion:
        """The motion for each draw; u is (n, 4), uniform in [0, 1), and is used only by random views."""

    def draw(self, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
        move((self,), part, questions, picture, out)


Moves = tuple[Moving, ...]


def moves_of(view: View) -> Moves:
    """The moves of a view that can be drawn in one step, because all its parts are moves with compatible sampling."""
    drawn = [part for part in view.parts if not isinstance(part, Worded)]
    moves = tuple(part for part in drawn if isinstance(part, Moving))
    samplings = {(move.border, move.interpolation) for move in moves if isinstance(move, Sampled)}
    return moves if len(moves) == len(drawn) and len(samplings) <= 1 else ()


def sampling_of(moves: Moves) -> Sampling:
    """The sampling of the moves, which is the same for all moves except mirrors, which allow any sampling."""
    for move in moves:
        if isinstance(move, Sampled):
            return move.border, move.interpolation
    return "reflect", "linear"


def move(moves: Moves, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
    """Fill `out` with the picture, transformed in one step by all the moves of each query."""
    height, width, _ = picture.shape
    sampling = sampling_of(moves)
    if any(move.random for move in moves):
        maps = _maps(_sources(moves, part, questions, height, width), sampling, height, width)
        read_through(maps, picture, sampling, out)
        return
    read_through(fixed_maps(moves, height, width), picture, sampling, out[:1])
    out[1:] = out[0]


def fixed_maps(moves: Moves, height: int, width: int) -> Maps:
    """The maps of a fixed view; small ones are cached, of large ones the pieces are created on demand."""
    if height * width > MAP_PIXELS:
        return _maps(_sources(moves, 0, (), height, width), sampling_of(moves), height, width)
    return _kept_maps(moves, height, width)


@lru_cache(maxsize=128)
def _kept_maps(moves: Moves, height: int, width: int) -> Maps:
    maps = _maps(_sources(moves, 0, (), height, width), sampling_of(moves), height, width)
    return maps._replace(pieces=tuple(maps.pieces))


def _sources(moves: Moves, part: int, questions: Sequence[Question], height: int, width: int) -> Sources:
    sources = [
        _source(move.motion(uniforms(questions, place) if move.random else _NO_CHANCE), height, width)
        for place, move in enumerate(moves, start=part)
    ]
    return reduce(_then, sources)


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


def _maps(sources: Sources, sampling: Sampling, height: int, width: int) -> Maps:
    corner = np.array([width / 2, height / 2, 1])
    x, y = (corner @ np.abs(sources.view(np.float64))).reshape(-1, 2).max(axis=0).tolist()
    reach, count = max(x - width / 2, y - height / 2), sources.shape[1]  # the pixels shown beyond the border
    margin = max(0, ceil(reach) + 1)
    area = (height + 2 * margin) * (width + 2 * margin)
    if area > min(count * height * width, _LARGEST) or max(height, width) + 2 * margin > LONGEST:
        margin = 0  # a margin would cost more than it saves
    return Maps(margin, _pieces(sources, height, width, margin, sampling[1] == "nearest"))


def _pieces(sources: Sources, height: int, width: int, margin: int, nearest: bool) -> Iterator[Piece]:
    x_way, y_way, shift = sources.astype(np.complex64)[:, :, None]
    across, down = x_way * _centred(width), y_way * _centred(height) + (shift + complex(width - 1, height - 1) / 2)
    # In blocks of several whole views, or of several rows of one view.
    together, rows = max(1, LONGEST // (height * width)), min(height, max(1, LONGEST // width))
    for view, row in product(range(0, sources.shape[1], together), range(0, height, rows)):
        points = down[view : view + together, row : row + rows, None] + across[view : view + together, None]
        pairs = points.reshape(1, -1, 1).view(np.float32)
        yield piece((view * height + row) * width, pairs, IN_PAIRS, margin, nearest)


@lru_cache(maxsize=64)
def _centred(size: int) -> NDArray[np.float32]:
    return np.arange(size, dtype=np.float32) - np.float32((size - 1) / 2)


def piece(start: int, x: Points, y: Points, margin: int, nearest: bool) -> Piece:
    """Create a piece from source positions: x and y, (1, m) each, or pairs in x, (1, m, 2), with IN_PAIRS as y."""
    pixels, parts = cv2.convertMaps(x, y, cv2.CV_16SC2, nninterpolation=nearest)
    whole, between = np.asarray(pixels, np.int16), _NOTHING_BETWEEN if nearest else np.asarray(parts, np.uint16)
    if margin:
        whole += margin
    return Piece(start, start + x.shape[1], whole, between)


def renderer(views: Iterable[View]) -> str:
    """The version of the renderer: RENDERER, and the versions of the families that specify one."""
    versions = {f"{name_of(type(part))}={part.version}" for view in views for part in view.parts if part.version}
    return " ".join([RENDERER, *sorted(versions)])


def render(image: Image, questions: Sequence[Question]) -> Pixels:
    """(n, height, width, 3): render the pixels of each query, in order."""
    out = np.zeros((len(questions), *image.pixels.shape), np.uint8)
    render_into(image, questions, out)
    return out


def render_into(image: Image, questions: Sequence[Question], out: Pixels) -> None:
    """Render each query into `out`: a contiguous uint8 array, (n, height, width, 3)."""
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
    if other := next((question.digest for question in questions if question.digest != image.digest), None):
        raise ViewError(
            f"a query for picture {other} was used with picture {image.digest}; use each picture's own queries"
        )
    start = 0
    for view, some in groupby(questions, key=itemgetter(1)):
        draws = list(some)
        draw(view, 0, draws, image.pixels, out[start : start + len(draws)])
        start += len(draws)
