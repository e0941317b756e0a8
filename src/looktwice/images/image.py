"""Images: pixels with a digest, encodings, thumbnails and descriptors; and pictures that are decoded on demand."""

from __future__ import annotations

import base64
import hashlib
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Protocol, cast, overload

import cv2
import numpy as np
from numpy.typing import NDArray

from looktwice.errors import DataError, ImageError, shown

MAX_PIXELS = 64_000_000
"""The default maximum number of pixels that are decoded."""
SMALL = 64
"""The longer side in pixels up to which a thumbnail is lossless, since single pixels may be visible."""
QUALITY = 82
"""The JPEG quality of larger thumbnails."""


@dataclass(frozen=True)
class WorkingSize:
    """The largest picture size that a classifier can use; larger ones are scaled down once, before views are drawn."""

    long: int | None = None
    """The maximum longer side in pixels."""
    short: int | None = None
    """The maximum shorter side in pixels."""
    spared: int = 0
    """The product of width and height up to which a picture is not scaled."""

    def scaled(self, height: int, width: int) -> tuple[int, int]:
        """The height and width of a picture after scaling to this size: at most the original, at least 1."""
        if height * width <= self.spared:
            return height, width
        least, most = sorted((height, width))
        scale = min(1.0, (self.long or most) / most, (self.short or least) / least)
        return max(1, round(height * scale)), max(1, round(width * scale))

    def __str__(self) -> str:
        sides = (("longer", self.long), ("shorter", self.short))
        limits = " and ".join(f"{side:,} px on the {name} side" for name, side in sides if side) or "any"
        return f"{limits}, of pictures beyond {self.spared / 1e6:g} megapixels" if self.spared else limits


PHOTO = WorkingSize(long=1024, spared=2_000_000)
"""The default working size."""


@dataclass(frozen=True, eq=False)
class Image:
    """Decoded pixels: uint8, height x width x RGB, C-contiguous and read-only."""

    pixels: NDArray[np.uint8]
    original_size: tuple[int, int] | None = None
    """The height and width of the original picture, if the pixels were scaled down."""

    @classmethod
    def from_array(cls, pixels: NDArray[np.uint8]) -> Image:
        """Create an image from a uint8 array: H x W or H x W x 1 (grey), H x W x 3 (RGB), H x W x 4 (RGBA, put on
        white).

        An RGB array that is already read-only and contiguous is shared; anything else is copied.
        """
        return cls(_frozen(_three_channels(_checked(pixels))))

    @classmethod
    def reduced(
        cls, pixels: NDArray[np.uint8], size: tuple[int, int], original_size: tuple[int, int], digest: str
    ) -> Image:
        """Create an image by scaling an RGB array to this height and width; it has the digest of the full picture."""
        height, width = size
        small = np.asarray(cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA), np.uint8)
        image = cls(_frozen(small), original_size)
        image.__dict__["digest"] = digest
        return image

    def within(self, size: WorkingSize | None) -> Image:
        """Scale the image down to a working size, keeping its digest; smaller images are returned unchanged."""
        height, width, _ = self.pixels.shape
        target = size.scaled(height, width) if size else (height, width)
        if target == (height, width):
            return self
        return Image.reduced(self.pixels, target, self.original_size or (height, width), self.digest)

    @property
    def scaling(self) -> str:
        """How the pixels were scaled from a larger picture, such as `area 512x384`; empty if they were not."""
        height, width, _ = self.pixels.shape
        return f"area {width}x{height}" if self.original_size else ""

    @cached_property
    def digest(self) -> str:
        """32 hex digits that identify the picture at any working size; computed on first use.

        The digest depends only on the shape and the pixels, or on the bytes of a file that was never decoded in full.
        """
        height, width, _ = self.pixels.shape
        state = hashlib.blake2b(f"image {height} {width}\n".encode(), digest_size=16)
        state.update(self.pixels.data)
        return state.hexdigest()

    def described(self) -> Floats:
        """(len(NAMES),): the descriptor of the image."""
        return descriptor(self.pixels, self.original_size)

    def thumbnail(self) -> bytes:
        """8 × 8 grey levels, which hardly change if the picture is recompressed or scaled."""
        grey = cv2.cvtColor(self.pixels, cv2.COLOR_RGB2GRAY)
        return cv2.resize(grey, (8, 8), interpolation=cv2.INTER_AREA).tobytes()


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """Encode an RGB array as PNG.

    OpenCV's defaults (level 1, run lengths, one filter) are used. For photos of 224 px, encoding needed 1.75 ms and
    95 KB, but 1.63 ms and 151 KB at level 0, 3.3 ms and 88 KB at level 1 with adaptive filters, and 4.8 ms and 86 KB
    at level 3.
    """
    return _encoded(".png", pixels, [])


def encode_jpeg(pixels: NDArray[np.uint8], quality: int, *, full_colour: bool = False) -> bytes:
    """Encode an RGB array as JPEG; `quality` is from 1 to 100. `full_colour` disables chroma subsampling (4:4:4)."""
    if not 1 <= quality <= 100:
        raise ImageError(f"JPEG quality is {quality}; give a number from 1 to 100", code="option-invalid")
    sampling = [cv2.IMWRITE_JPEG_SAMPLING_FACTOR, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444] if full_colour else []
    return _encoded(".jpg", pixels, [cv2.IMWRITE_JPEG_QUALITY, quality, *sampling])


def file_digest(data: bytes) -> str:
    """32 hex digits that identify the bytes of a file."""
    state = hashlib.blake2b(b"file\n", digest_size=16)
    state.update(data)
    return state.hexdigest()


@contextmanager
def reading(path: Path, form: str = "") -> Iterator[None]:
    """Context manager: convert errors while reading a file or folder to a one-line error with its name.

    With `form`, the expected file format, it also converts any exception that a damaged file raises.
    """
    try:
        yield
    except DataError:
        raise
    except OSError as fault:
        why = fault.strerror or " ".join(str(fault).split()) or type(fault).__name__
        raise DataError(
            f"{shown(str(path))}: cannot be read ({why}); check the path and its permissions", code="file-unreadable"
        ) from fault
    except Exception as fault:  # each format raises different errors
        if not form:
            raise
        why = " ".join(str(fault).split())[:200] or type(fault).__name__
        raise DataError(
            f"{shown(str(path))} is not {form} ({shown(why)}); save or download it again", code="file-malformed"
        ) from fault


def _checked(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    shape, kind = pixels.shape, pixels.dtype
    if kind != np.uint8 or not (len(shape) == 2 or (len(shape) == 3 and shape[2] in (1, 3, 4))):
        raise ImageError(f"pixels are {kind} of shape {shape}; give uint8, height x width (x 1, 3 or 4)")
    if min(shape) == 0:
        raise ImageError(f"pixels have shape {shape}; a picture has at least 1 x 1")
    return pixels


def _three_channels(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if pixels.ndim == 2:
        return np.repeat(pixels[:, :, None], 3, axis=2)
    if pixels.shape[2] == 1:
        return np.repeat(pixels, 3, axis=2)
    return _on_white(pixels) if pixels.shape[2] == 4 else pixels


def _on_white(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Put RGBA on a white background, rounding to nearest; computed in strips, since each product needs two bytes."""
    rgb = np.empty((*pixels.shape[:2], 3), np.uint8)
    rows = max(1, 2**20 // pixels.shape[1])
    for top in range(0, len(pixels), rows):
        strip = pixels[top : top + rows].astype(np.uint16)
        alpha = strip[:, :, 3:]
        blend = strip[:, :, :3] * alpha + (255 * (255 - alpha) + 128)
        rgb[top : top + rows] = (blend + (blend >> 8)) >> 8  # the quotient by 255, exact in 16 bits
    return rgb


def _frozen(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if pixels.flags.writeable or not pixels.flags.c_contiguous:
        pixels = pixels.copy(order="C")
        pixels.flags.writeable = False
    return pixels


def _encoded(ending: str, pixels: NDArray[np.uint8], settings: list[int]) -> bytes:
    done, data = cv2.imencode(ending, cv2.cvtColor(_three_channels(_checked(pixels)), cv2.COLOR_RGB2BGR), settings)
    if not done:
        raise ImageError(f"pixels of shape {pixels.shape} cannot be written as {ending[1:].upper()}")
    return bytes(data)


def shrunk(pixels: NDArray[np.uint8], side: int) -> NDArray[np.uint8]:
    """Scale the picture down if its longer side has more than `side` pixels."""
    height, width = WorkingSize(long=side).scaled(*pixels.shape[:2])
    if (height, width) == pixels.shape[:2]:
        return pixels
    return np.asarray(cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA), np.uint8)


def data_url(pixels: NDArray[np.uint8]) -> str:
    """Encode a picture as a data URL: PNG if the picture is small, otherwise JPEG."""
    small = max(pixels.shape[:2]) <= SMALL
    data = encode_png(pixels) if small else encode_jpeg(pixels, QUALITY)
    return f"data:image/{'png' if small else 'jpeg'};base64,{base64.b64encode(data).decode()}"


Stamp = tuple[int, ...]
"""The version of a file: mtime and ctime in nanoseconds (users cannot set ctime), size, and inode."""


class Source(Protocol):
    """The interface of picture sources, which read the pixels of a picture by its name, at a working size.

    A source that reads files also has a method `stamp(name)`, which returns the stamp of the file and raises an OSError
    if the file is missing.
    """

    def image(self, name: str, size: WorkingSize | None = None) -> Image: ...


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture that is decoded on demand: its name, unique in its collection, and its true label if known."""

    name: str
    truth: str | None
    source: Source = field(repr=False)
    excluded: tuple[str, ...] = ()
    """Labels known to be wrong, if the true label is otherwise unknown."""
    probability: float = 1.0
    """The relative probability of selection for labelling, in (0, 1]; 1 if equal."""
    tags: tuple[str, ...] | None = None
    """All tags that apply, if the picture is labelled with tags."""

    def image(self, size: WorkingSize | None = None) -> Image:
        """Decode the picture, scaled down to a working size if larger.

        Raises an ImageError for an unreadable file, a DataError for an unreadable array.
        """
        return self.source.image(self.name, size)

    def stamp(self) -> Stamp | None:
        """The stamp of the picture's file; returns None if there is no file or the file is missing."""
        stamp: Callable[[str], Stamp] | None = getattr(self.source, "stamp", None)
        try:
            return stamp(self.name) if stamp else None
        except (OSError, ValueError):  # a name with a null character cannot be a file name
            return None


class Collection(Sequence[Picture]):
    """Pictures of one source, without true labels; each `Picture` is created on demand, so only names need memory."""

    def __init__(self, names: Sequence[str], source: Source) -> None:
        self._names, self._source = names, source

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, place: int) -> Picture: ...
    @overload
    def __getitem__(self, place: slice) -> Collection: ...
    def __getitem__(self, place: int | slice) -> Picture | Collection:
        if isinstance(place, slice):
            return Collection(self._names[place], self._source)
        return Picture(self._names[place], None, self._source)


def stamp_of(path: Path) -> Stamp:
    status = os.stat(path)
    return status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino


def repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, times in Counter(names).items() if times > 1)


# Descriptors: a few dozen numbers on size, colours, light and detail, independent of content -------------------------


Floats = NDArray[np.float64]
Pixels = NDArray[np.uint8]

LARGEST = 256
"""If a side has more pixels than this, colours are sampled, and detail is measured only in the centre."""
GRID, TINTS = 4, 2
"""The cells along each side of the reduced grey channel, and of the two reduced colour channels."""
BANDS = 4
"""The number of octaves of detail, the finest first."""
BLOCK = 8
"""The side of JPEG blocks in pixels; their borders may be visible."""
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
"""The names of the numbers in a descriptor; each number is a share or a logarithm to base 2."""
PLACES = {name: place for place, name in enumerate(NAMES)}


def descriptor(pixels: Pixels, original_size: tuple[float, float] | None = None) -> Floats:
    """(len(NAMES),): the descriptor of `pixels`, height × width × RGB.

    `original_size` is the height and width of the original picture, if the pixels were scaled down.

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
    """The mean of each channel, and the mean and standard deviation of the saturation."""
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
    # [1, −2, 1] along both sides: the filter of Immerkær (1996), which ignores surfaces, slopes and straight edges.
    noise = cv2.norm(cv2.Sobel(grey, cv2.CV_16S, 2, 2, ksize=3), cv2.NORM_L1) / grey.size
    steps = [*_steps(grey), *_steps(cast(Pixels, cv2.transpose(grey)))]
    # On a logarithmic scale, except near zero.
    octaves = np.log2(np.array([*bands, noise, *steps]) + 1 / 8).tolist()
    *energy, noisy, along, inner, outer, upright, within, between = octaves
    blocks = (outer - inner + (between - within)) / 2
    return [*energy, (along + upright) / 2, along - upright, noisy, blocks]


def _deviation(one: Pixels, other: Pixels) -> float:
    """The standard deviation of the differences in grey levels; computed from integer sums, which are exact."""
    share = 1 / one.size
    mean = (cv2.sumElems(one)[0] - cv2.sumElems(other)[0]) * share
    squares = round(cv2.norm(one, other, cv2.NORM_L2SQR))  # rounded, since OpenCV squares a root
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
