"""The descriptor of a picture: a few dozen numbers on size, colours, light and detail, independent of content."""

from __future__ import annotations

import math
from typing import cast

import cv2
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Pixels = NDArray[np.uint8]

LARGEST = 256
"""Sides up to this number of pixels are used in full; beyond, colours are sampled and detail is that of the centre."""
GRID, TINTS = 4, 2
"""Cells along each side of the small grey copy, and of the small copies of the two colour channels."""
BANDS = 4
"""The number of octaves of detail, the finest first."""
BLOCK = 8
"""The side of JPEG's blocks, whose borders are visible."""
LEVELS = np.arange(256) / 255
SQUARES = LEVELS**2
QUANTILES = 0.05, 0.25, 0.5, 0.75, 0.95

NAMES = (
    "side",
    "aspect",
    "red",
    "green",
    "blue",
    "saturation",
    "saturation_spread",
    "dark",
    "quartile",
    "median",
    "three_quarters",
    "bright",
    "contrast",
    "black",
    "white",
    "entropy",
    "commonest",
    *(f"grey_{place}" for place in range(GRID * GRID)),
    *(f"tint_{place}" for place in range(2 * TINTS * TINTS)),
    *(f"band_{octave}" for octave in range(BANDS)),
    "edges",
    "direction",
    "noise",
    "blocks",
)
"""The names of the numbers; all are shares, or logarithms to base 2."""
PLACES = {name: place for place, name in enumerate(NAMES)}


def descriptor(pixels: Pixels, original_size: tuple[int, int] | None = None) -> Floats:
    """(len(NAMES),): the descriptor of `pixels`, height × width × RGB.

    `original_size` is the height and width of the larger picture that the pixels are scaled down from, if they are.

    >>> grey = np.full((28, 28, 3), 51, np.uint8)
    >>> dict(zip(NAMES, descriptor(grey).tolist()))["median"]
    0.2
    """
    height, width = pixels.shape[:2]
    step = -(-max(height, width) // LARGEST)
    sampled = np.ascontiguousarray(pixels[::step, ::step])
    top, left = (max(0, side - LARGEST) // (2 * BLOCK) * BLOCK for side in (height, width))
    middle = np.ascontiguousarray(pixels[top : top + LARGEST, left : left + LARGEST])
    grey = cast(Pixels, cv2.cvtColor(sampled, cv2.COLOR_RGB2GRAY))
    fine = grey if max(height, width) <= LARGEST else cast(Pixels, cv2.cvtColor(middle, cv2.COLOR_RGB2GRAY))
    tall, wide = original_size or (height, width)
    size = [np.log2(tall * wide) / 2, np.log2(wide / tall)]
    return np.array([*size, *_colours(sampled), *_light(grey), *_thumbnail(sampled), *_detail(fine)])


def _colours(pixels: Pixels) -> list[float]:
    """The mean of each channel, and the colourfulness."""
    red, green, blue = cv2.split(pixels)
    spread = cv2.subtract(cv2.max(cv2.max(red, green), blue), cv2.min(cv2.min(red, green), blue))
    (saturation,), (deviation,) = cv2.meanStdDev(spread)
    return [value / 255 for value in (*cv2.mean(pixels)[:3], saturation.item(), deviation.item())]


def _light(grey: Pixels) -> list[float]:
    """Brightness, and the distribution of grey levels."""
    shares = np.asarray(cv2.calcHist([grey], [0], None, [256], [0, 256]), np.float64).ravel() / grey.size
    quantiles = LEVELS[np.minimum(shares.cumsum().searchsorted(QUANTILES), 255)]
    mean = float(shares @ LEVELS)
    coarse = np.add.reduce(shares.reshape(64, 4), axis=1)
    entropy = -np.add.reduce(coarse * np.log2(coarse, where=coarse > 0, out=np.zeros(64))) / 6
    contrast = math.sqrt(max(0.0, float(shares @ SQUARES) - mean**2))
    return [*quantiles.tolist(), contrast, sum(shares[:3].tolist()), sum(shares[-3:].tolist()), entropy, coarse.max()]


def _thumbnail(pixels: Pixels) -> list[float]:
    """The layout of light and colours."""
    small = cv2.resize(pixels, (16, 16), interpolation=cv2.INTER_AREA)
    channels = cv2.cvtColor(small, cv2.COLOR_RGB2YCrCb).astype(np.float32)
    light = cv2.resize(channels, (GRID, GRID), interpolation=cv2.INTER_AREA)[:, :, 0]
    tints = cv2.resize(channels, (TINTS, TINTS), interpolation=cv2.INTER_AREA)[:, :, 1:]
    return [value / 255 for value in (*light.ravel().tolist(), *tints.ravel().tolist())]


def _detail(grey: Pixels) -> list[float]:
    """The energy in each octave, edges and their direction, noise, and JPEG block borders."""
    bands, level = [], grey
    for _ in range(BANDS):
        lower = cast(Pixels, cv2.pyrDown(level))
        bands.append(_deviation(level, cast(Pixels, cv2.pyrUp(lower, dstsize=level.shape[::-1]))))
        level = lower
    # [1, −2, 1] along both sides: the filter of Immerkær (1996), to which surfaces, slopes and straight edges are
    # nothing.
    noise = cv2.norm(cv2.Sobel(grey, cv2.CV_16S, 2, 2, ksize=3), cv2.NORM_L1) / grey.size
    steps = [*_steps(grey), *_steps(cast(Pixels, cv2.transpose(grey)))]
    # On a logarithmic scale, except near zero.
    octaves = np.log2(np.array([*bands, noise, *steps]) + 1 / 8).tolist()
    *energy, noisy, along, inner, outer, upright, within, between = octaves
    blocks = (outer - inner + (between - within)) / 2
    return [*energy, (along + upright) / 2, along - upright, noisy, blocks]


def _deviation(one: Pixels, other: Pixels) -> float:
    """The standard deviation of the differences, in grey levels; computed from integer sums, which are exact."""
    share = 1 / one.size
    mean = (cv2.sumElems(one)[0] - cv2.sumElems(other)[0]) * share
    squares = round(cv2.norm(one, other, cv2.NORM_L2SQR))  # whole, but OpenCV squares a root
    return math.sqrt(max(0.0, squares * share - mean * mean))


def _steps(grey: Pixels) -> tuple[float, float, float]:
    """The mean difference of adjacent columns in grey levels: overall, within JPEG blocks, and between them."""
    if grey.shape[1] < 2:
        return 0.0, 0.0, 0.0
    differing = cv2.absdiff(grey[:, 1:], grey[:, :-1])
    steps = cv2.reduce(differing, 0, cv2.REDUCE_SUM, dtype=cv2.CV_32S)[0] * (1 / len(grey))
    whole, between = float(np.add.reduce(steps)), steps[BLOCK - 1 :: BLOCK]
    if not len(between):
        return whole / len(steps), 0.0, 0.0
    borders = float(np.add.reduce(between))
    return whole / len(steps), (whole - borders) / (len(steps) - len(between)), borders / len(between)
