"""Convert a picture to the input array of a model; shared by all connectors that send tensors."""

from __future__ import annotations

import math
from typing import Literal, Self

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from looktwice.classifiers.base import Pixels
from looktwice.errors import PermanentError
from looktwice.images import WorkingSize

Floats = NDArray[np.float32]
MOST_PIXELS = 2**22
"""The largest input of a model, 2,048 × 2,048 pixels, far more than classifiers need."""
MARGIN = 1.5
"""The ratio of the working size to the model's input, so that enlarged views keep detail; see docs/pictures.md."""


class Preprocessing(BaseModel):
    """Crop, scale and normalise: x = (pixels / scale - mean) / std, with one mean and std per channel or for all."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    crop: float | None = Field(default=None, gt=0, le=1, description="share of the short side in a centred square")
    resize: Literal["nearest", "linear", "cubic", "area"] = "linear"
    channels: Literal["rgb", "bgr", "grey"] = "rgb"
    scale: float = Field(default=1.0, gt=0)
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    @model_validator(mode="after")
    def _one_number_a_channel(self) -> Self:
        count = 1 if self.channels == "grey" else 3
        if {len(self.mean), len(self.std)} - {1, count}:
            raise ValueError(f"mean and std need 1 or {count} numbers for {self.channels}")
        if 0.0 in self.std:
            raise ValueError("std must not be 0")
        return self

    def usable_size(self, size: tuple[int, int]) -> WorkingSize:
        """The working size for a model with this input height and width."""
        return WorkingSize(short=math.ceil(MARGIN * max(size) / (self.crop or 1.0)))

    def fit(self, pixels: Pixels, size: tuple[int, int] | None) -> Pixels:
        """Channels × height × width, integers 0 to 255; of the picture's own size if none is given."""
        if self.crop is not None:
            pixels = _centre(pixels, self.crop)
        if size is not None and pixels.shape[:2] != size:
            if size[0] * size[1] > MOST_PIXELS:
                wanted = f"the model wants pictures of {size[1]} x {size[0]}"
                raise PermanentError(f"{wanted}; up to {MOST_PIXELS:,} pixels are sent")
            pixels = _resized(pixels, size, self.resize)
        return _ordered(pixels, self.channels)

    def normalise(self, fitted: Pixels) -> Floats:
        """Normalise the result of `fit`, or an array of several."""
        std = np.array(self.std)[:, None, None]
        numbers: Floats = np.multiply(fitted, 1.0 / (self.scale * std), dtype=np.float32)
        numbers -= (np.array(self.mean)[:, None, None] / std).astype(np.float32)
        return numbers


def _centre(pixels: Pixels, share: float) -> Pixels:
    """The centred square with this share of the short side."""
    height, width = pixels.shape[:2]
    side = max(1, round(min(height, width) * share))
    top, left = (height - side) // 2, (width - side) // 2
    return np.ascontiguousarray(pixels[top : top + side, left : left + side])


def _resized(pixels: Pixels, size: tuple[int, int], rule: str) -> Pixels:
    interpolation = getattr(cv2, f"INTER_{rule.upper()}")
    return np.asarray(cv2.resize(pixels, size[::-1], interpolation=interpolation), np.uint8)


def _ordered(pixels: Pixels, channels: str) -> Pixels:
    if channels == "grey":
        return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), np.uint8)[None]
    return (pixels[:, :, ::-1] if channels == "bgr" else pixels).transpose(2, 0, 1)
