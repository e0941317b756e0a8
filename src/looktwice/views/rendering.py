"""The pixels of views: one call a picture, all its views written into one array."""

from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import groupby
from typing import NamedTuple

import numpy as np

from looktwice.errors import ViewError
from looktwice.pictures.image import Image
from looktwice.views.base import Pixels, Question, View, name_of
from looktwice.views.warping import KEPT_MAPS, LONGEST, Moves, moves_of, read_through, sampling_of

RENDERER = "1"
"""Part of every ledger key; it changes whenever the pixels of any view of looktwice change."""


class Run(NamedTuple):
    """Neighbouring views that are drawn together: draws of one view, or fixed moves that read the picture alike."""

    start: int
    stop: int
    moves: tuple[Moves, ...]
    """The moves of each view if all are fixed moves, else nothing."""


def renderer(views: Iterable[View]) -> str:
    """What draws these views: RENDERER, then the version of each family among them that has its own."""
    own = {f"{name_of(type(part))}={part.version}" for view in views for part in view.parts if part.version}
    return " ".join([RENDERER, *sorted(own)])


def render(image: Image, questions: Sequence[Question]) -> Pixels:
    """(n, height, width, 3): what each question shows, in their order."""
    out = np.empty((len(questions), *image.pixels.shape), np.uint8)
    render_into(image, questions, out)
    return out


def render_into(image: Image, questions: Sequence[Question], out: Pixels) -> None:
    """Writes what each question shows into `out`: uint8, (n, height, width, 3), contiguous."""
    height, width, _ = image.pixels.shape
    shape = (len(questions), height, width, 3)
    if out.shape != shape or out.dtype != np.uint8 or not (out.flags.c_contiguous and out.flags.writeable):
        what = f"a contiguous uint8 array of shape {shape}, not {out.dtype} {out.shape}"
        raise ViewError(f"views are written into {what}")
    if max(height, width) > LONGEST:
        raise ViewError(f"a picture of {width} x {height} is too long; scale it to {LONGEST} pixels a side or less")
    digests, views, _, _ = zip(*questions, strict=True) if questions else ((), (), (), ())
    if digests.count(image.digest) != len(questions):
        other = next(digest for digest in digests if digest != image.digest)
        raise ViewError(f"picture {image.digest} was asked a question about {other}; ask each its own")
    for start, stop, moves in _runs(views):
        if moves:
            read_through(KEPT_MAPS.of(moves, height, width), image.pixels, sampling_of(moves[0]), out[start:stop])
        else:
            questions[start].view.draw(0, questions[start:stop], image.pixels, out[start:stop])


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
    return () if view.random else moves_of(view)
