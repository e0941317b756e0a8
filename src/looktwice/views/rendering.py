"""The pixels of views: one call a picture, all its views written into one array."""

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from looktwice.errors import ViewError
from looktwice.images import Image
from looktwice.views.chance import words
from looktwice.views.families import Blur, Chain, Elastic, Gaussian, Tone, View
from looktwice.views.panels import Question
from looktwice.views.warping import (
    LONGEST,
    Maps,
    Moves,
    Pixels,
    bend,
    fixed_maps,
    move,
    read_through,
    sampling_of,
)

RENDERER = "1"
"""Part of every ledger key; it changes whenever the pixels of any view change."""

_WORTH_KEEPING = 5 * 2**20
"""Bytes; larger maps are made anew for each picture, which is little work beside reading it through them."""


class Run(NamedTuple):
    """Neighbouring views that are drawn together: draws of one view, or fixed moves that read the picture alike."""

    start: int
    stop: int
    moves: tuple[Moves, ...]
    """The moves of each view if all are fixed moves, else nothing."""


def render(image: Image, questions: Sequence[Question]) -> Pixels:
    """(n, height, width, 3): what each question shows, in their order."""
    out = np.empty((len(questions), *image.pixels.shape), np.uint8)
    render_into(image, questions, out)
    return out


def render_into(image: Image, questions: Sequence[Question], out: Pixels) -> None:
    """Writes what each question shows into `out`: uint8, (n, height, width, 3), contiguous."""
    height, width, _ = image.pixels.shape
    _check_room(out, (len(questions), height, width, 3))
    for start, stop, moves in _runs(_views(image, questions)):
        if moves:
            maps = _maps(moves, height, width)
            read_through(maps, image.pixels, sampling_of(moves[0]), out[start:stop])
        else:
            _draw(questions[start].view, 0, questions[start:stop], image.pixels, out[start:stop])


def _check_room(out: Pixels, shape: tuple[int, int, int, int]) -> None:
    if out.shape != shape or out.dtype != np.uint8 or not (out.flags.c_contiguous and out.flags.writeable):
        raise ViewError(
            f"views are written into a contiguous uint8 array of shape {shape}, not {out.dtype} {out.shape}"
        )
    if max(shape[1:3]) > LONGEST:
        raise ViewError(
            f"a picture of {shape[2]} x {shape[1]} is too long; scale it to {LONGEST} pixels a side or less"
        )


def _views(image: Image, questions: Sequence[Question]) -> tuple[View, ...]:
    digests, views, _, _ = zip(*questions, strict=True) if questions else ((), (), (), ())
    if digests.count(image.digest) != len(questions):
        other = next(digest for digest in digests if digest != image.digest)
        raise ViewError(f"picture {image.digest} was asked a question about {other}; ask each its own")
    return views


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
    """What neighbours must have in common to be drawn together."""
    moves = _fixed_moves(view)
    return sampling_of(moves) if moves else view


def _fixed_moves(view: View) -> Moves:
    return () if view.random else view.moves


def _maps(moves: tuple[Moves, ...], height: int, width: int) -> Maps:
    small = len(moves) * height * width * 6 <= _WORTH_KEEPING
    return _kept_maps(moves, height, width) if small else fixed_maps(moves, height, width)


@lru_cache(maxsize=24)
def _kept_maps(moves: tuple[Moves, ...], height: int, width: int) -> Maps:
    maps = fixed_maps(moves, height, width)
    return maps._replace(pieces=tuple(maps.pieces))


# How it is drawn ---------------------------------------------------------------------------------------------------


def _draw(view: View, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
    """Fills `out` with a view of the picture, or with one part of a chain, as each question draws it."""
    match view:
        case View() if view.moves:
            move(view.moves, part, questions, picture, out)
        case Gaussian():
            _add_noise(view, part, questions, picture, out)
        case Elastic():
            bend(view, part, questions, picture, out)
        case Chain():
            _draw_chain(view, questions, picture, out)
        case Tone():
            out[:] = _recoloured(view, picture)
        case Blur():
            out[:] = _blurred(view, picture)
        case _:
            out[:] = picture


def _draw_chain(chain: Chain, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
    for question, target in zip(questions, out, strict=True):
        shown = picture
        for part, view in enumerate(chain.views):
            drawn = np.empty((1, *picture.shape), np.uint8)
            _draw(view, part, [question], shown, drawn)
            shown = drawn[0]
        target[:] = shown


def _add_noise(view: Gaussian, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
    import cv2

    levels, together = _normal_levels(view.sigma), max(1, 2 * LONGEST // picture.size)
    for first in range(0, len(questions), together):
        bits = words(questions[first : first + together], part, -(-picture.size // 4)).view(np.uint16)
        for noise, target in zip(levels.take(bits), out[first:], strict=False):
            cv2.add(picture, noise[: picture.size].reshape(picture.shape), dst=target, dtype=cv2.CV_8U)


@lru_cache(maxsize=32)
def _normal_levels(sigma: float) -> NDArray[np.int16]:
    """65,536 equally likely levels of noise, up to 4.3 sigma; looking them up beats drawing normal numbers by far.

    Pixels are whole numbers, so rounding the noise here rounds the sum.
    """
    from scipy.special import ndtri

    levels = 255 * sigma * ndtri((np.arange(65_536) + 0.5) / 65_536)
    return np.rint(levels).astype(np.int16)


def _recoloured(view: Tone, picture: Pixels) -> Pixels:
    import cv2

    return np.asarray(cv2.transform(picture, _colour_matrix(view)), np.uint8)


@lru_cache(maxsize=256)
def _colour_matrix(view: Tone) -> NDArray[np.float64]:
    """(3, 4): red, green, blue and 1 make the new red, green and blue."""
    gains = np.array([1 + view.cast, 1, 1 - view.cast])[:, None]
    grey = np.tile([0.299, 0.587, 0.114], (3, 1))
    mix = view.contrast * ((1 - view.grey) * np.eye(3) + view.grey * grey)
    lift = np.full((3, 1), 255 * (0.5 - 0.5 * view.contrast + view.brightness))
    return np.asarray(gains * np.hstack([mix, lift]), np.float64)


def _blurred(view: Blur, picture: Pixels) -> Pixels:
    import cv2

    taps = int(8 * view.sigma + 1) | 1
    blurred = cv2.GaussianBlur(picture, (taps, taps), view.sigma, borderType=cv2.BORDER_REFLECT_101)
    return np.asarray(blurred, np.uint8)
