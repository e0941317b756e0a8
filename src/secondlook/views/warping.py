"""Pictures moved and bent, read through maps of fixed-point source positions.

Fixed point makes the pixels the same on every OpenCV from 4.10 on, which its own affine warp does not promise.
The output is filled as one flat row of pixels, some thousands a call: many small views make one call, and the maps
of large ones stay in the cache of the CPU.
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache, reduce
from math import floor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from secondlook.views.chance import Words, numbers, uniforms
from secondlook.views.families import Border, Chain, Elastic, Floats, Interpolation, Motion, Moving, Sampled, View
from secondlook.views.panels import Question

Pixels = NDArray[np.uint8]
Points = NDArray[np.float32]
Sampling = tuple[Border, Interpolation]

LONGEST = 32_766
"""Pixels a side that cv2.remap takes."""

_BLOCK = 16_384
"""Pixels a call: their maps fit into the L2 cache, and they make one row that is not too long."""

_NO_CHANCE = np.empty((1, 4))


class Piece(NamedTuple):
    """Where the pixels from start to stop of the flat output come from: whole pixels, and 1/32 parts between them."""

    start: int
    stop: int
    whole: NDArray[np.int16]
    between: NDArray[np.uint16] | None


class Maps(NamedTuple):
    """Pieces for a picture that was given a margin, so that they need not look beyond its border."""

    margin: int
    pieces: Iterable[Piece]


def read_through(maps: Maps, picture: Pixels, sampling: Sampling, out: Pixels) -> None:
    """Fills `out`, (n, height, width, 3), with the pixels of the picture to which the maps point."""
    import cv2

    border, interpolation = _flags(sampling)
    if m := maps.margin:
        picture = cv2.copyMakeBorder(picture, m, m, m, m, border)  # type: ignore[assignment]
    flat = out.reshape(1, -1, 3)
    for start, stop, whole, between in maps.pieces:
        cv2.remap(picture, whole, between, interpolation, dst=flat[:, start:stop], borderMode=border)  # type: ignore[arg-type]


@lru_cache(maxsize=8)
def _flags(sampling: Sampling) -> tuple[int, int]:
    import cv2

    borders = {"reflect": cv2.BORDER_REFLECT_101, "constant": cv2.BORDER_CONSTANT, "edge": cv2.BORDER_REPLICATE}
    interpolations = {"linear": cv2.INTER_LINEAR, "nearest": cv2.INTER_NEAREST}
    return borders[sampling[0]], interpolations[sampling[1]]


# Moves -------------------------------------------------------------------------------------------------------------


def moves_of(view: View) -> tuple[Moving, ...]:
    """The moves that a view consists of, to be made in one step; none if it does anything else."""
    views = view.views if isinstance(view, Chain) else (view,)
    moves = tuple(each for each in views if isinstance(each, Moving))
    return moves if len(moves) == len(views) and len(_samplings(moves)) <= 1 else ()


def sampling_of(moves: Sequence[Moving]) -> Sampling:
    """How all of the moves read the picture; mirrors do not care."""
    return next(iter(_samplings(moves)), ("reflect", "linear"))


def _samplings(moves: Sequence[Moving]) -> set[Sampling]:
    return {(each.border, each.interpolation) for each in moves if isinstance(each, Sampled)}


def move(moves: tuple[Moving, ...], part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
    """Fills `out` with the picture, moved in one step by all the moves, as each question draws them."""
    count, height, width, _ = out.shape
    sources = np.broadcast_to(_sources(moves, part, questions, height, width), (2, 3, count))
    sampling = sampling_of(moves)
    read_through(_maps(sources, sampling, height, width), picture, sampling, out)


def fixed_maps(views: Sequence[tuple[Moving, ...]], height: int, width: int) -> Maps:
    """The maps of fixed views that read the picture alike, to be used for many pictures of one size."""
    sources = np.concatenate([_sources(moves, 0, (), height, width) for moves in views], axis=2)
    maps = _maps(sources, sampling_of(views[0]), height, width)
    return maps._replace(pieces=tuple(maps.pieces))


def _sources(moves: tuple[Moving, ...], part: int, questions: Sequence[Question], height: int, width: int) -> Floats:
    """(2, 3, n): [x, y] = A·[x, y, 1] is the point that each draw shows at a pixel, counted from the centre."""
    motions = [
        each.motion(uniforms(questions, place) if each.random else _NO_CHANCE)
        for place, each in enumerate(moves, start=part)
    ]
    return reduce(_then, [_source(motion, height, width) for motion in motions])


def _source(motion: Motion, height: int, width: int) -> Floats:
    angle = np.radians(np.atleast_1d(motion.angle))
    c, s = np.cos(angle) / motion.factor, np.sin(angle) / motion.factor
    right, down = width * motion.right, height * motion.down
    source = np.array([[c, -s, s * down - c * right], [s, c, -s * right - c * down]])
    if motion.mirrored:
        source[0] *= -1
    return source


def _then(first: Floats, second: Floats) -> Floats:
    both: Floats = (first[:, :2, None] * second).sum(axis=1)
    both[:, 2] += first[:, 2]
    return both


def _maps(sources: Floats, sampling: Sampling, height: int, width: int) -> Maps:
    margin = _margin(sources, height, width)
    return Maps(margin, _pieces(sources, height, width, margin, sampling[1] == "nearest"))


def _margin(sources: Floats, height: int, width: int) -> int:
    """Pixels by which the moves look beyond the border; 0 if giving the picture such a margin would not pay."""
    half = np.array([[(width - 1) / 2], [(height - 1) / 2]])
    reach = (np.abs(sources[:, :2]) * half).sum(axis=1) + np.abs(sources[:, 2]) - half
    margin = max(0, floor(reach.max()) + 2)
    area = (height + 2 * margin) * (width + 2 * margin)
    pays = area <= min(sources.shape[2], 4) * height * width and max(height, width) + 2 * margin <= LONGEST
    return margin if pays else 0


def _pieces(sources: Floats, height: int, width: int, margin: int, nearest: bool) -> Iterator[Piece]:
    x, y = np.arange(width) - (width - 1) / 2, np.arange(height) - (height - 1) / 2
    centre = np.array([[[(width - 1) / 2]], [[(height - 1) / 2]]])
    across = (sources[:, 0, :, None] * x).astype(np.float32)
    down = (sources[:, 1, :, None] * y + sources[:, 2, :, None] + centre).astype(np.float32)
    for views, rows in _blocks(sources.shape[2], height, width):
        points = down[:, views, rows, None] + across[:, views, None]
        yield _piece((views.start * height + rows.start) * width, points.reshape(2, 1, -1), margin, nearest)


def _blocks(count: int, height: int, width: int) -> Iterator[tuple[slice, slice]]:
    """The views and rows of each block: several whole views, or some rows of one."""
    together, rows = max(1, _BLOCK // (height * width)), min(height, max(1, _BLOCK // width))
    for view in range(0, count, together):
        for row in range(0, height, rows):
            yield slice(view, view + together), slice(row, row + rows)


def _piece(start: int, points: Points, margin: int, nearest: bool) -> Piece:
    import cv2

    whole, between = cv2.convertMaps(points[0], points[1], cv2.CV_16SC2, nninterpolation=nearest)
    if margin:
        whole += margin
    return Piece(start, start + points.shape[2], whole, None if nearest else between)


# Elastic views -----------------------------------------------------------------------------------------------------


def bend(view: Elastic, seeds: Words, picture: Pixels, out: Pixels) -> None:
    """Fills `out` with the picture, bent as each of the seeds, (n, 4), says."""
    maps = Maps(0, _bent_pieces(view, seeds, *picture.shape[:2]))
    read_through(maps, picture, (view.border, view.interpolation), out)


def _bent_pieces(view: Elastic, seeds: Words, height: int, width: int) -> Iterator[Piece]:
    pixels = height * width
    together = max(1, _BLOCK // pixels)
    for first in range(0, len(seeds), together):
        points = _bent_points(view, seeds[first : first + together], height, width)
        for start in range(0, points.shape[2], _BLOCK):
            some = points[:, :, start : start + _BLOCK]
            yield _piece(first * pixels + start, some, 0, view.interpolation == "nearest")


def _bent_points(view: Elastic, seeds: Words, height: int, width: int) -> Points:
    """(2, 1, n·height·width): x and y that are shown at each pixel of n draws."""
    points = np.empty((2, len(seeds), height, width), np.float32)
    for draw, seed in enumerate(seeds):
        noise = numbers(seed, 2 * height * width).view(np.int16).reshape(2, height, width)
        _smooth(noise[0], view, points[0, draw])
        _smooth(noise[1], view, points[1, draw])
    points[0] += np.arange(width, dtype=np.float32)
    points[1] += np.arange(height, dtype=np.float32)[:, None]
    return points.reshape(2, 1, -1)


def _smooth(noise: NDArray[np.int16], view: Elastic, out: Points) -> None:
    import cv2

    kernel, scaled = _kernels(view.alpha, view.sigma)
    cv2.sepFilter2D(noise, cv2.CV_32F, kernel, scaled, dst=out, borderType=cv2.BORDER_REFLECT_101)


@lru_cache(maxsize=32)
def _kernels(alpha: float, sigma: float) -> tuple[Points, Points]:
    """A Gaussian cut at 4 sigma, and the same times what makes ±alpha/2 pixels of the 16-bit noise."""
    import cv2

    kernel = np.asarray(cv2.getGaussianKernel(int(8 * sigma + 1) | 1, sigma, cv2.CV_32F), np.float32)
    return kernel, kernel * np.float32(alpha / 2 / 32_768)
