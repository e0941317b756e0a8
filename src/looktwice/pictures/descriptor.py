"""A few dozen numbers that say what kind of picture it is, whatever it shows: size, colours, light, detail."""

from __future__ import annotations

from typing import cast

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Pixels = NDArray[np.uint8]

LARGEST = 256
"""Pixels of a side up to which all are looked at; of more, colours are sampled, and detail is that of the middle."""
GRID, TINTS = 4, 2
"""Cells along each side of the tiny grey copy, and of the tiny copies of the two colour channels."""
BANDS = 4
"""Octaves of detail, the finest first."""
BLOCK = 8
"""Side of the blocks in which JPEG rounds, whose borders show."""
NOISE = np.array([[1, -2, 1], [-2, 4, -2], [1, -2, 1]], np.float32)
"""The filter of Immerkær (1996), to which surfaces, slopes and straight edges are nothing."""

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
"""What each number of a descriptor is; all are shares, or logarithms to base 2."""
PLACES = {name: place for place, name in enumerate(NAMES)}


def descriptor(pixels: Pixels, came: tuple[int, int] | None = None) -> Floats:
    """(len(NAMES),): what kind of picture this is; `pixels` are height × width × RGB.

    `came` are height and width of the larger picture that they are scaled down from.

    >>> grey = np.full((28, 28, 3), 51, np.uint8)
    >>> dict(zip(NAMES, descriptor(grey).tolist()))["median"]
    0.2
    """
    import cv2

    height, width = pixels.shape[:2]
    step = -(-max(height, width) // LARGEST)
    sampled = np.ascontiguousarray(pixels[::step, ::step])
    top, left = (max(0, side - LARGEST) // (2 * BLOCK) * BLOCK for side in (height, width))
    middle = np.ascontiguousarray(pixels[top : top + LARGEST, left : left + LARGEST])
    grey, fine = (cast(Pixels, cv2.cvtColor(part, cv2.COLOR_RGB2GRAY)) for part in (sampled, middle))
    height, width = came or (height, width)
    size = [np.log2(height * width) / 2, np.log2(width / height)]
    return np.array([*size, *_colours(sampled), *_light(grey), *_thumbnail(sampled), *_detail(fine)], np.float64)


def _colours(pixels: Pixels) -> list[float]:
    """The mean of each channel, and how colourful the pixels are."""
    import cv2

    red, green, blue = cv2.split(pixels)
    spread = cv2.subtract(cv2.max(cv2.max(red, green), blue), cv2.min(cv2.min(red, green), blue))
    (saturation,), (deviation,) = cv2.meanStdDev(spread)
    return [value / 255 for value in (*cv2.mean(pixels)[:3], saturation.item(), deviation.item())]


def _light(grey: Pixels) -> list[float]:
    """How dark and bright it is, and how evenly it uses the levels."""
    import cv2

    shares = np.asarray(cv2.calcHist([grey], [0], None, [256], [0, 256]), np.float64).ravel() / grey.size
    levels = np.arange(256) / 255
    quantiles = levels[np.searchsorted(shares.cumsum(), (0.05, 0.25, 0.5, 0.75, 0.95)).clip(max=255)]
    mean = float(shares @ levels)
    coarse = shares.reshape(64, 4).sum(axis=1)
    entropy = -(coarse * np.log2(coarse, where=coarse > 0, out=np.zeros(64))).sum() / 6
    contrast = np.sqrt(max(0.0, float(shares @ levels**2) - mean**2))
    return [*quantiles, contrast, shares[:3].sum(), shares[-3:].sum(), entropy, coarse.max()]


def _thumbnail(pixels: Pixels) -> list[float]:
    """Where it is light, and which colours are where."""
    import cv2

    small = cv2.resize(pixels, (16, 16), interpolation=cv2.INTER_AREA)
    channels = cv2.cvtColor(small, cv2.COLOR_RGB2YCrCb)
    light = channels[:, :, 0].reshape(GRID, 16 // GRID, GRID, -1).mean(axis=(1, 3))
    tints = channels[:, :, 1:].reshape(TINTS, 16 // TINTS, TINTS, -1, 2).mean(axis=(1, 3))
    return [*(light.ravel() / 255), *(tints.ravel() / 255)]


def _detail(grey: Pixels) -> list[float]:
    """The energy in each octave, edges and their direction, noise, and the borders of JPEG's blocks."""
    import cv2

    bands, level = [], grey
    for _ in range(BANDS):
        lower = cast(Pixels, cv2.pyrDown(level))
        lost = cv2.subtract(level, cv2.pyrUp(lower, dstsize=level.shape[::-1]), dtype=cv2.CV_16S)
        bands.append(cv2.meanStdDev(lost)[1].item())
        level = lower
    across, down = _steps(grey), _steps(np.ascontiguousarray(grey.T))
    noise = cv2.norm(cv2.filter2D(grey, cv2.CV_16S, NOISE), cv2.NORM_L1) / grey.size
    along, upright = (_octaves(steps.mean()) for steps in (across, down))
    blocks = (_borders(across) + _borders(down)) / 2
    return [*map(_octaves, bands), (along + upright) / 2, along - upright, _octaves(noise), blocks]


def _steps(grey: Pixels) -> Floats:
    """(width - 1,): how much each column differs from the next, in grey levels."""
    import cv2

    if grey.shape[1] < 2:
        return np.zeros(1)
    differing = cv2.absdiff(grey[:, 1:], grey[:, :-1])
    return np.asarray(cv2.reduce(differing, 0, cv2.REDUCE_AVG, dtype=cv2.CV_64F), np.float64).ravel()


def _borders(steps: Floats) -> float:
    """How much larger the steps between blocks are than those within, in octaves."""
    between = steps[BLOCK - 1 :: BLOCK]
    if not len(between):
        return 0.0
    within = (steps.sum() - between.sum()) / (len(steps) - len(between))
    return _octaves(between.mean()) - _octaves(within)


def _octaves(levels: float) -> float:
    """Grey levels on a scale on which twice as much is always as far, except near nothing."""
    return float(np.log2(1 / 8 + levels))
