"""The pixels of views: one call a picture, all its views written into one array."""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from secondlook.errors import ViewError
from secondlook.images import Image
from secondlook.views.chance import Words, numbers, words
from secondlook.views.families import Blur, Chain, Elastic, Gaussian, Moving, Tone, View
from secondlook.views.panels import Question
from secondlook.views.warping import (
    LONGEST,
    Maps,
    Pixels,
    Sampling,
    bend,
    fixed_maps,
    move,
    moves_of,
    read_through,
    sampling_of,
)

RENDERER = "1"
"""Part of every ledger key; it changes whenever the pixels of any view change."""

_KEPT = 64 * 2**20
"""Bytes of maps that are kept for the next pictures."""

_WORTH_KEEPING = 16 * 2**20
"""Larger maps are made anew each time, which is little work beside drawing through them."""


class Run(NamedTuple):
    """Neighbouring questions that are drawn together: draws of one view, or fixed moves with maps in common."""

    start: int
    stop: int
    maps: Maps | None
    sampling: Sampling


def render(image: Image, questions: Sequence[Question]) -> Pixels:
    """(n, height, width, 3): what each question shows, in their order."""
    out = np.empty((len(questions), *image.pixels.shape), np.uint8)
    render_into(image, questions, out)
    return out


def render_into(image: Image, questions: Sequence[Question], out: Pixels) -> None:
    """Writes what each question shows into `out`: uint8, (n, height, width, 3), contiguous."""
    _check(image, questions, out)
    height, width, _ = image.pixels.shape
    for start, stop, maps, sampling in _plan(tuple([question.view for question in questions]), height, width):
        if maps:
            read_through(maps, image.pixels, sampling, out[start:stop])
        else:
            _draw(questions[start].view, 0, questions[start:stop], image.pixels, out[start:stop])


def _check(image: Image, questions: Sequence[Question], out: Pixels) -> None:
    shape = (len(questions), *image.pixels.shape)
    if out.shape != shape or out.dtype != np.uint8 or not (out.flags.c_contiguous and out.flags.writeable):
        raise ViewError(
            f"views are written into a contiguous uint8 array of shape {shape}, not {out.dtype} {out.shape}"
        )
    if max(shape[1:3]) > LONGEST:
        raise ViewError(
            f"a picture of {shape[2]} x {shape[1]} is too long; scale it to {LONGEST} pixels a side or less"
        )
    digest = image.digest
    for question in questions:
        if question.digest != digest:
            raise ViewError(f"picture {digest} was asked a question about {question.digest}; ask each its own")


# What is drawn together --------------------------------------------------------------------------------------------


class _Plans:
    """The plans used last, up to a number of bytes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[object, ...], tuple[tuple[Run, ...], int]] = OrderedDict()
        self._bytes = 0

    def get(self, key: tuple[object, ...]) -> tuple[Run, ...] | None:
        with self._lock:
            if key not in self._kept:
                return None
            self._kept.move_to_end(key)
            return self._kept[key][0]

    def keep(self, key: tuple[object, ...], plan: tuple[Run, ...], size: int) -> None:
        with self._lock:
            self._bytes += size - self._kept.pop(key, (plan, 0))[1]
            self._kept[key] = plan, size
            while self._bytes > _KEPT:
                self._bytes -= self._kept.popitem(last=False)[1][1]


_plans = _Plans()


def _plan(views: tuple[View, ...], height: int, width: int) -> tuple[Run, ...]:
    key = (views, height, width)
    plan = _plans.get(key)
    if plan is None:
        size = len(views) * height * width * 6
        plan = tuple(_runs(views, height, width, with_maps=size < _WORTH_KEEPING))
        _plans.keep(key, plan, 1_000 + len(views) * 100 + size * any(run.maps is not None for run in plan))
    return plan


def _runs(views: tuple[View, ...], height: int, width: int, with_maps: bool) -> Iterator[Run]:
    start = 0
    for _, neighbours in groupby(views, _in_common if with_maps else None):
        some = [moves_of(view) for view in neighbours]
        fixed = with_maps and _is_fixed_move(views[start])
        maps = fixed_maps(some, height, width) if fixed else None
        yield Run(start, start + len(some), maps, sampling_of(some[0]))
        start += len(some)


def _in_common(view: View) -> object:
    """What neighbours must have in common to be drawn together."""
    return sampling_of(moves_of(view)) if _is_fixed_move(view) else view


def _is_fixed_move(view: View) -> bool:
    return not view.random and bool(moves_of(view))


# How it is drawn ---------------------------------------------------------------------------------------------------


def _draw(view: View, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
    """Fills `out` with a view of the picture, or with one part of a chain, as each question draws it."""
    match view:
        case Moving() | Chain() if moves := moves_of(view):
            move(moves, part, questions, picture, out)
        case Gaussian():
            _add_noise(view, words(questions, part), picture, out)
        case Elastic():
            bend(view, words(questions, part), picture, out)
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


def _add_noise(view: Gaussian, seeds: Words, picture: Pixels, out: Pixels) -> None:
    import cv2

    levels = _normal_levels(view.sigma)
    for seed, target in zip(seeds, out, strict=True):
        noise = levels.take(numbers(seed, picture.size)).reshape(picture.shape)
        cv2.add(picture, noise, dst=target, dtype=cv2.CV_8U)


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

    gains = np.array([1 + view.cast, 1, 1 - view.cast])[:, None]
    grey = np.tile([0.299, 0.587, 0.114], (3, 1))
    mix = view.contrast * ((1 - view.grey) * np.eye(3) + view.grey * grey)
    lift = np.full((3, 1), 255 * (0.5 - 0.5 * view.contrast + view.brightness))
    return cv2.transform(picture, gains * np.hstack([mix, lift]))  # type: ignore[return-value]


def _blurred(view: Blur, picture: Pixels) -> Pixels:
    import cv2

    taps = int(8 * view.sigma + 1) | 1
    return cv2.GaussianBlur(picture, (taps, taps), view.sigma, borderType=cv2.BORDER_REFLECT_101)  # type: ignore[return-value]
