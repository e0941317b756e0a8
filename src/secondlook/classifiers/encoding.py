"""How a picture becomes what a server takes: the bytes of a file, or an array of numbers.

Every limit of the server is checked here, before a question is paid for.
"""

from __future__ import annotations

import math
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from secondlook.classifiers import Pixels
from secondlook.errors import PermanentError

LOWEST_QUALITY = 30
QUALITY_STEP = 10


class Encoding(BaseModel):
    """A picture as a PNG or JPEG file within the limits of a server."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["png", "jpeg"] = "png"
    quality: int = Field(default=95, ge=1, le=100, description="of JPEG")
    max_side: int | None = Field(default=None, ge=1, description="larger pictures are scaled down")
    max_pixels: int | None = Field(default=None, ge=1, description="larger pictures are scaled down")
    min_side: int | None = Field(
        default=None, ge=1, description="smaller pictures are refused, or scaled up on request"
    )
    upscale: bool = False
    max_bytes: int | None = Field(default=None, ge=1, description="larger files are refused, or shrunk on request")
    shrink: bool = Field(default=False, description="lower the quality of JPEG until the file fits")

    @model_validator(mode="after")
    def _shrinks_jpeg_only(self) -> Self:
        if self.shrink and (self.format != "jpeg" or self.max_bytes is None):
            raise ValueError('shrink needs format = "jpeg" and max_bytes')
        return self

    @property
    def content_type(self) -> str:
        return f"image/{self.format}"

    def parts(self) -> dict[str, object]:
        """What of this could change answers, for a fingerprint."""
        unused = {
            "quality": self.format != "jpeg",
            "min_side": not self.upscale,
            "upscale": self.min_side is None,
            "max_bytes": not self.shrink,
        }
        return self.model_dump(exclude={name for name, is_unused in unused.items() if is_unused})

    def fit(self, pixels: Pixels) -> Pixels:
        """The picture scaled into the limits of sides and pixels."""
        height, width = pixels.shape[:2]
        target = self._target(height, width)
        if target == (height, width):
            return pixels
        return _scaled(pixels, *target)

    def encode(self, pixels: Pixels) -> bytes:
        """The file of a picture that already fits, within the limit of bytes."""
        quality = self.quality
        data = _file(pixels, self.format, quality)
        while self.shrink and len(data) > (self.max_bytes or 0) and quality > LOWEST_QUALITY:
            quality = max(LOWEST_QUALITY, quality - QUALITY_STEP)
            data = _file(pixels, self.format, quality)
        if self.max_bytes is not None and len(data) > self.max_bytes:
            raise PermanentError(
                f"a picture takes {len(data)} bytes as {self.format} and the server allows {self.max_bytes}; "
                'set max_side, or format = "jpeg" with shrink = true'
            )
        return data

    def _target(self, height: int, width: int) -> tuple[int, int]:
        most = min(
            1.0,
            (self.max_side or math.inf) / max(height, width),
            math.sqrt((self.max_pixels or math.inf) / (height * width)),
        )
        size = (height, width)
        if most < 1.0:
            size = max(1, math.floor(height * most + 1e-9)), max(1, math.floor(width * most + 1e-9))
        if self.min_side is None or min(size) >= self.min_side:
            return size
        return self._larger(height, width)

    def _larger(self, height: int, width: int) -> tuple[int, int]:
        least = self.min_side or 1
        scale = least / min(height, width)
        size = math.ceil(height * scale - 1e-9), math.ceil(width * scale - 1e-9)
        fits = max(size) <= (self.max_side or math.inf) and math.prod(size) <= (self.max_pixels or math.inf)
        if self.upscale and fits:
            return size
        advice = "leave it out" if self.upscale else "leave it out or set upscale = true"
        raise PermanentError(
            f"a picture of {width} × {height} pixels cannot be sent: the server wants sides of at least {least} "
            f"within its upper limits; {advice}"
        )


class Tensor(BaseModel):
    """A picture as an array of numbers, x = (pixels / scale - mean) / std."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: tuple[int, int] | None = Field(default=None, description="height, width; the picture's own if left out")
    resize: Literal["nearest", "linear", "cubic", "area"] = "linear"
    channels: Literal["rgb", "bgr", "grey"] = "rgb"
    layout: Literal["hwc", "chw"] = "hwc"
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

    def array(self, pixels: Pixels) -> NDArray[np.uint8] | NDArray[np.float32]:
        """Height × width × channels, or channels first; whole numbers 0 to 255 where nothing is to be computed."""
        import cv2

        if self.size is not None and pixels.shape[:2] != self.size:
            rule = getattr(cv2, f"INTER_{self.resize.upper()}")
            pixels = np.asarray(cv2.resize(pixels, self.size[::-1], interpolation=rule), np.uint8)
        if self.channels == "grey":
            pixels = np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), np.uint8)[:, :, None]
        elif self.channels == "bgr":
            pixels = pixels[:, :, ::-1]
        numbers = self._normalised(pixels)
        return numbers.transpose(2, 0, 1) if self.layout == "chw" else numbers

    def _normalised(self, pixels: Pixels) -> NDArray[np.uint8] | NDArray[np.float32]:
        if self.scale == 1.0 and set(self.mean) == {0.0} and set(self.std) == {1.0}:
            return pixels
        mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
        return (pixels.astype(np.float32) / np.float32(self.scale) - mean) / std


def _scaled(pixels: Pixels, height: int, width: int) -> Pixels:
    import cv2

    rule = cv2.INTER_AREA if height <= pixels.shape[0] else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(pixels, (width, height), interpolation=rule), np.uint8)


def _file(pixels: Pixels, kind: str, quality: int) -> bytes:
    import cv2

    options = [cv2.IMWRITE_JPEG_QUALITY, quality] if kind == "jpeg" else []
    done, data = cv2.imencode(".jpg" if kind == "jpeg" else ".png", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR), options)
    if not done:
        raise PermanentError(f"a picture of shape {pixels.shape} cannot be written as {kind}")
    return data.tobytes()
