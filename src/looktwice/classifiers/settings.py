"""Settings common to all connectors: the file format of the server, and the limits and price of its queries.

All of the server's file limits are checked here, before a query is paid for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import Decimal
from typing import Annotated, Literal, Self

import cv2
import numpy as np
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from looktwice.classifiers.base import Limits, Pixels
from looktwice.errors import ImageError
from looktwice.images import PHOTO, WorkingSize, encode_jpeg, encode_png

LOWEST_QUALITY = 30
QUALITY_STEP = 10
PHOTO_SIDE = 512
"""The longer side in pixels above which pictures are sent as JPEG if no format is set."""
PHOTO_QUALITIES = (95, 90, 85, 80)
PHOTO_BYTES = 0.5
"""The target size of JPEG files in bytes per pixel: 400 KB for 1,024 × 768 pixels."""


class Encoding(BaseModel):
    """A picture as a PNG or JPEG file within the limits of a server.

    If no format is set, pictures of up to 512 px are sent as PNG, and larger ones as JPEG without chroma subsampling
    (4:4:4). The JPEG quality is 95, or down to 80 if a picture would take more than half a byte per pixel.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    format: Literal["png", "jpeg"] | None = Field(default=None, description="by default chosen by the picture's size")
    quality: int = Field(default=95, ge=1, le=100, description='quality of format = "jpeg"')
    max_side: int | None = Field(default=None, ge=1, description="larger pictures are scaled down")
    min_side: int | None = Field(default=None, ge=1, description="smaller pictures are scaled up")
    max_bytes: int | None = Field(
        default=None, ge=1, description='larger files are refused; with format = "jpeg", the quality is lowered first'
    )

    @property
    def jpeg_above(self) -> int | None:
        """The longer side in pixels above which the format differs from the one in the fingerprint."""
        return None if self.format or (self.max_side or PHOTO_SIDE + 1) <= PHOTO_SIDE else PHOTO_SIDE

    def named(self, *names: str | None) -> Self:
        """Validate the encoding for a request with a fixed content type or file name."""
        png = self.format is None and any("png" in name.lower() for name in names if name)
        return self.model_copy(update={"format": "png"}) if png else self

    def usable_size(self) -> WorkingSize:
        """The working size for a server with these limits."""
        return WorkingSize(long=self.max_side) if self.max_side else PHOTO

    def parts(self) -> dict[str, object]:
        """The settings that can change the answers; used in the fingerprint."""
        unused = set() if self.format == "jpeg" else {"quality", "max_bytes"}
        return {**self.model_dump(exclude=unused), "format": self.format or "png"}

    def fit(self, pixels: Pixels) -> Pixels:
        """Scale the picture to the limits on its sides."""
        height, width = pixels.shape[:2]
        target = self.target(height, width)
        if target == (height, width):
            return pixels
        rule = cv2.INTER_AREA if target[0] <= height else cv2.INTER_CUBIC
        return np.asarray(cv2.resize(pixels, target[::-1], interpolation=rule), np.uint8)

    def encode(self, pixels: Pixels) -> bytes:
        """Encode a picture that was scaled by `fit`; raises an ImageError if the file exceeds the limit on bytes."""
        photo = self.format is None and max(pixels.shape) > PHOTO_SIDE
        data = _photo(pixels) if photo else self._chosen(pixels)
        if self.max_bytes is not None and len(data) > self.max_bytes:
            raise ImageError(
                f"a picture takes {len(data)} bytes as {kind_of(data)}, but the server allows {self.max_bytes}; "
                'set max_side, or format = "jpeg"',
                code="image-unfit",
            )
        return data

    def _chosen(self, pixels: Pixels) -> bytes:
        if self.format != "jpeg":
            return encode_png(pixels)
        quality, data = self.quality, encode_jpeg(pixels, self.quality)
        while len(data) > (self.max_bytes or math.inf) and quality > LOWEST_QUALITY:
            quality = max(LOWEST_QUALITY, quality - QUALITY_STEP)
            data = encode_jpeg(pixels, quality)
        return data

    def target(self, height: int, width: int) -> tuple[int, int]:
        """The scaled height and width; raises an ImageError if no size is within the limits."""
        scale = min(1.0, (self.max_side or math.inf) / max(height, width))
        # A tiny amount is added before rounding, so that no pixel is lost at an exact limit.
        size = max(1, math.floor(height * scale + 1e-9)), max(1, math.floor(width * scale + 1e-9))
        if self.min_side is None or min(size) >= self.min_side:
            return size
        scale = self.min_side / min(height, width)
        size = math.ceil(height * scale - 1e-9), math.ceil(width * scale - 1e-9)
        if max(size) <= (self.max_side or math.inf):
            return size
        raise ImageError(
            f"a picture of {width} × {height} pixels cannot be sent: the server requires sides of {self.min_side} to "
            f"{self.max_side}; leave the picture out",
            code="image-unfit",
        )


def form(boundary: str, fields: Mapping[str, str], name: str, filename: str, kind: str, file: bytes) -> bytes:
    """Encode a multipart/form-data body with these fields and a file; names are escaped as browsers do."""
    heads = [(f"name={_quoted(field)}", value) for field, value in fields.items()]
    heads.append((f"name={_quoted(name)}; filename={_quoted(filename)}\r\ncontent-type: {kind}", ""))
    text = "\r\n".join(
        f"--{boundary}\r\ncontent-disposition: form-data; {head}\r\n\r\n{value}" for head, value in heads
    )
    return b"".join((text.encode(), file, f"\r\n--{boundary}--\r\n".encode()))


def _quoted(text: str) -> str:
    return '"' + text.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A") + '"'


def kind_of(file: bytes) -> str:
    """The format of a file: `png` or `jpeg`."""
    return "jpeg" if file.startswith(b"\xff\xd8") else "png"


def _photo(pixels: Pixels) -> bytes:
    """Encode a picture as JPEG without chroma subsampling, at the highest quality within the target size."""
    most = PHOTO_BYTES * pixels.shape[0] * pixels.shape[1]
    for quality in PHOTO_QUALITIES:
        data = encode_jpeg(pixels, quality, full_colour=True)
        if len(data) <= most:
            break
    return data


def within(limits: Mapping[str, object], settings: Mapping[str, object]) -> dict[str, object]:
    """The settings with these limits on pictures, unless their encoding sets its own."""
    encoding = settings.get("encoding", {})
    return {**settings, "encoding": {**limits, **encoding} if isinstance(encoding, Mapping) else encoding}


def given(values: Mapping[str, object]) -> dict[str, object]:
    """Drop values that are None."""
    return {name: value for name, value in values.items() if value is not None}


# Servers ------------------------------------------------------------------------------------------------------------


REFUSALS = {401, 402, 403, 413, 429}
"""The statuses of requests that were not processed and are rarely billed."""
DAY = 86_400.0
HIGHEST_PRICE = 1_000_000
"""An upper bound on the price of a query."""


def _in_millionths(price: Decimal) -> Decimal:
    """Validate a price: budgets are in whole millionths, and could be exceeded if a price were rounded down."""
    if price * 1_000_000 % 1:
        raise ValueError(f"a price of {price:f} is not in whole millionths; round it up to six decimals")
    return price


Price = Annotated[Decimal, Field(ge=0, le=HIGHEST_PRICE, allow_inf_nan=False), AfterValidator(_in_millionths)]


class HttpSettings(BaseModel):
    """The settings shared by all HTTP connectors; none of them affects answers."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    timeout: float = Field(default=60.0, gt=0, le=DAY, description="maximum seconds for a whole request")
    connect_timeout: float = Field(default=10.0, gt=0, le=DAY, description="maximum seconds to connect to the server")
    max_reply_bytes: int = Field(default=8 << 20, gt=0)
    trust_env: bool = Field(default=False, description="use the proxies in HTTP_PROXY and similar variables")
    concurrency: int = Field(default=8, ge=1)
    per_second: float | None = Field(default=None, gt=0)
    price: Price = Field(default=Decimal(0), description="price per query, in your currency")
    working_size: int | None = Field(
        default=None, ge=1, description="maximum longer side in pixels; larger pictures are scaled down"
    )
    bills_refusals: bool = Field(
        default=False, description="whether replies with status 401, 402, 403, 413 and 429 are billed, too"
    )
    public: tuple[str, ...] = Field(
        default=(), description="names of values that look like secrets but are not confidential"
    )

    def limits(self, size: WorkingSize, encoding: Encoding | None = None) -> Limits:
        """Convert to limits, for a classifier with this working size."""
        size = WorkingSize(long=self.working_size) if self.working_size else size
        price = int(self.price * 1_000_000)
        jpeg_above = encoding.jpeg_above if encoding else None
        return Limits(1, self.concurrency, self.per_second, price, working_size=size, jpeg_above=jpeg_above)

    def bills(self, status: int) -> bool:
        """Whether a reply with this status and without an answer may be billed."""
        return self.bills_refusals or status not in REFUSALS
