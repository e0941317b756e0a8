"""Small copies of pictures for pages and reports, as data URLs that need no file."""

from __future__ import annotations

import base64

import numpy as np
from numpy.typing import NDArray

from looktwice.pictures.image import encode_jpeg, encode_png

SMALL = 64
"""Pixels of the longer side up to which a picture stays lossless, since its single pixels may be seen."""
QUALITY = 82


def shrunk(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """The picture with at most so many pixels on its longer side."""
    import cv2

    height, width = pixels.shape[:2]
    scale = side / max(height, width)
    if scale >= 1:
        return pixels
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return np.asarray(cv2.resize(pixels, size, interpolation=cv2.INTER_AREA), np.uint8)


def data_url(pixels: NDArray[np.uint8]) -> str:
    """A picture as an address that holds it: PNG if it is small, JPEG otherwise."""
    small = max(pixels.shape[:2]) <= SMALL
    data = encode_png(pixels) if small else encode_jpeg(pixels, QUALITY)
    return f"data:image/{'png' if small else 'jpeg'};base64,{base64.b64encode(data).decode()}"
