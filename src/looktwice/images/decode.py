"""Decode untrusted bytes: validate, decode, rotate upright, convert to 8-bit RGB."""

from __future__ import annotations

import io
import math
import os
import re
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Condition
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from looktwice.errors import ImageError, shown
from looktwice.images.image import MAX_PIXELS, Image, WorkingSize, file_digest

if TYPE_CHECKING:
    from PIL.Image import Image as PillowImage
    from PIL.ImageFile import ImageFile
    from PIL.JpegImagePlugin import JpegImageFile


MAX_BYTES = 512 * 2**20
"""The maximum size of a file, in bytes."""

IN_ROWS = 4
"""The factor by which a JPEG may exceed the pixel limit if it is decoded row by row, at a reduced scale."""

BYTES_A_PIXEL = 7
"""Memory per pixel while decoding, in bytes: four in Pillow, and three in the array."""
TOGETHER = 256 * 2**20
"""The maximum total memory, in bytes, for pictures that are being decoded, unless a single picture needs more."""

MOST_SCANS = 100
"""The maximum number of scans in a JPEG; typical files have about ten."""

MOST_COMMENTS = 1000
"""The maximum number of comments in a GIF; a comment takes as long to decode as all earlier comments together."""

_JPEG = b"\xff\xd8\xff"


def decode(data: bytes, name: str, max_pixels: int = MAX_PIXELS, size: WorkingSize | None = None) -> Image:
    """Decode `data` upright, in RGB, scaled down to a working size if larger.

    `name` is used in error messages only.
    """
    try:
        picture, exif = _opened(data, max_pixels)
        whole, orientation = picture.size, _orientation(exif)
        target = size.scaled(*whole) if size else whole
        if target != whole and data.startswith(_JPEG):
            _draft(cast("JpegImageFile", picture), data, target, max_pixels)
        _check_size(picture.size, max_pixels)
        with _MEMORY.reserve(BYTES_A_PIXEL * math.prod(whole if "progressive" in picture.info else picture.size)):
            image = Image.from_array(_upright(_channels(picture), orientation))
        if target == whole:
            return image
        if orientation < 5:
            target, whole = target[::-1], whole[::-1]
        return Image.reduced(image.pixels, target, whole, file_digest(data))
    except ImageError as refusal:
        raise ImageError(refusal.why, shown(name), code=refusal.code) from None
    except Exception as fault:  # broken files raise almost any error, including MemoryError and KeyError
        line = " ".join(str(fault).split()).partition(" (")[0] or type(fault).__name__
        raise ImageError(f"broken or cut off ({shown(line[:120])}); replace the file", shown(name)) from fault


def load(path: Path, max_pixels: int = MAX_PIXELS, size: WorkingSize | None = None) -> Image:
    """Decode a file upright, in RGB, scaled down to a working size if larger."""
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode):
            what = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise ImageError(f"it is {what}; give a picture file", shown(str(path)), code="image-unsupported")
        if status.st_size > MAX_BYTES:
            raise ImageError(
                f"the file has {status.st_size:,} bytes; at most {MAX_BYTES:,} are allowed",
                shown(str(path)),
                code="image-too-large",
            )
        data = path.read_bytes()
    except OSError as fault:
        reason = fault.strerror or type(fault).__name__
        raise ImageError(
            f"cannot be read ({reason}); check the path and its permissions", shown(str(path)), code="image-missing"
        ) from fault
    except ValueError as fault:
        raise ImageError(f"not a usable file name ({fault})", shown(str(path)), code="image-missing") from fault
    return decode(data, str(path), max_pixels, size)


def converted(picture: PillowImage) -> NDArray[np.uint8]:
    """The pixels of an open Pillow image, as if decoded from its file: upright, 8 bits, grey, RGB or RGBA."""
    pixels = _channels(picture)  # first, since Pillow rotates a TIFF, and then resets its orientation, on loading
    try:
        orientation = picture.getexif().get(0x112, 1)
    except Exception:  # a damaged EXIF block, for which Pillow raises various errors
        orientation = 1
    return _upright(pixels, orientation if orientation in range(1, 9) else 1)


class MemoryLimit:
    """Limits the memory of pictures decoded in parallel; a picture above the limit waits and is decoded alone."""

    def __init__(self, most: int) -> None:
        self._most, self._taken, self._changed = most, 0, Condition()

    @contextmanager
    def reserve(self, wanted: int) -> Iterator[None]:
        """Reserve `wanted` bytes while a picture is decoded."""
        with self._changed:
            self._changed.wait_for(lambda: not self._taken or self._taken + wanted <= self._most)
            self._taken += wanted
        try:
            yield
        finally:
            with self._changed:
                self._taken -= wanted
                self._changed.notify_all()


_MEMORY = MemoryLimit(TOGETHER)


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        what = f"{width} x {height} pixels is more than the limit of {max_pixels:,}"
        raise ImageError(f"{what}; scale it down or raise the limit", code="image-too-large")


def _opened(data: bytes, max_pixels: int) -> tuple[ImageFile, bytes]:
    """Open a Pillow image, reading only the header; returns the image and its EXIF block, which may be empty."""
    from PIL.BmpImagePlugin import BmpImageFile
    from PIL.GifImagePlugin import GifImageFile

    if not data:
        raise ImageError("the file is empty; replace it")
    if data.startswith(_JPEG):
        return _jpeg(data)
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _png(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _webp(data, max_pixels)
    if data.startswith((b"II*\0", b"MM\0*")):
        return _tiff(data)
    if data.startswith((b"GIF87a", b"GIF89a")):
        if data.count(b"!\xfe") > MOST_COMMENTS:
            raise ImageError(f"the GIF has more than {MOST_COMMENTS} comments; save it again", code="image-too-large")
        return GifImageFile(io.BytesIO(data)), b""
    return (BmpImageFile(io.BytesIO(data)), b"") if data.startswith(b"BM") else _heif(data)


def _jpeg(data: bytes) -> tuple[ImageFile, bytes]:
    """Open a JPEG, or the first picture of an MPO, the pair of pictures that some phones write."""
    from PIL.JpegImagePlugin import JpegImageFile

    _check_scans(data)
    renamed = _JPEG_METADATA.sub(lambda found: found[0][:-1] + found[0][-1:].swapcase(), data)
    picture = JpegImageFile(io.BytesIO(renamed))
    return picture, next((body[6:] for _, body in picture.applist if body.startswith(b"exif\0\0")), b"")


def _draft(picture: JpegImageFile, data: bytes, target: tuple[int, int], max_pixels: int) -> None:
    """Decode a JPEG at 1/2, 1/4 or 1/8 of its size if that stays above the target.

    If the first scan contains all components, the JPEG is decoded row by row, so it may exceed the pixel limit.
    Otherwise, all coefficients are in memory before the first row is written, at any scale.
    """
    parts = picture.layers
    scan = b"\xff\xda" + struct.pack(">HB", 6 + 2 * parts, parts)
    at = picture.fp.tell() - 8 - 2 * parts if picture.fp else 0
    in_rows = data[at : at + 5] == scan and "progressive" not in picture.info
    _check_size(picture.size, max_pixels * (IN_ROWS if in_rows else 1))
    picture.draft(None, target)


_MARKER = re.compile(rb"\xff+([^\x00\xff\xd0-\xd7])")
"""Matches a JPEG marker outside compressed pixels."""
_ALONE, _END, _SCAN = (0x01, 0xD8), 0xD9, 0xDA


def _check_scans(data: bytes) -> None:
    """Reject a JPEG with too many scans: each scan, even one of a few bytes, needs a pass over all pixels."""
    if data.count(b"\xff\xda") <= MOST_SCANS:  # this test is fast, and sufficient for nearly every file
        return
    at, scans = 2, 0
    while (marker := _MARKER.search(data, at)) and (kind := marker[1][0]) != _END:
        scans += kind == _SCAN
        if scans > MOST_SCANS:
            raise ImageError(
                f"the JPEG has more than {MOST_SCANS} scans, which take too long to decode; save it again",
                code="image-too-large",
            )
        at = marker.end()
        if kind not in _ALONE:
            at += int.from_bytes(data[at : at + 2])


_JPEG_METADATA = re.compile(rb"(?s)\xff(?:\xe1..E(?=xif\0\0)|\xe2..I(?=CC_PROFILE\0)|\xed..P(?=hotoshop 3\.0\0))")
"""Matches metadata segments up to the first letter of their name; with its case changed, Pillow does not parse them.

The two bytes of a marker cannot occur inside compressed pixels.
"""


def _png(data: bytes) -> tuple[ImageFile, bytes]:
    """Open a PNG without the chunks that do not affect the pixels."""
    from PIL.PngImagePlugin import PngImageFile

    kept, exif, at, kind = [data[:8]], b"", 8, b""
    while at < len(data) and kind != b"IEND":
        length, kind = struct.unpack_from(">L4s", data, at)
        chunk = data[at : at + 12 + length]
        if kind in (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"):
            kept.append(chunk)
        elif kind == b"eXIf":
            exif = chunk[8:-4]
        at += len(chunk)
    return PngImageFile(io.BytesIO(b"".join(kept))), exif


def _heif(data: bytes) -> tuple[ImageFile, bytes]:
    """Open HEIC, which phones write, or AVIF: both use the same container, whose brands identify the codec."""
    brands = data[8 : int.from_bytes(data[:4])] if data[4:8] == b"ftyp" else b""
    try:
        if b"avif" in brands:
            from PIL.AvifImagePlugin import AvifImageFile

            picture = AvifImageFile(io.BytesIO(data))
            return picture, picture.info.get("exif", b"")
        if b"hei" in brands or b"mif1" in brands:
            from pi_heif import HeifImageFile

            return HeifImageFile(io.BytesIO(data)), b""  # rotated upright while it is decoded
    except ImportError:
        raise ImageError("HEIC and AVIF pictures need: pip install 'looktwice[heif]'", code="extra-missing") from None
    raise ImageError("not a readable picture; convert it to JPEG or PNG", code="image-unsupported")


def reads_heic() -> bool:
    """Whether the extra that decodes HEIC is installed."""
    return find_spec("pi_heif") is not None


def _webp(data: bytes, max_pixels: int) -> tuple[ImageFile, bytes]:
    """Open the first frame. Its size is checked here, because opening already allocates the pixels.

    Pillow needs up to 22 bytes per pixel for WebP, but 14 for other formats, so only 5/8 of the pixels are allowed.
    """
    from PIL.WebPImagePlugin import WebPImageFile

    _check_size(_webp_size(data[:30]), max_pixels * 5 // 8)
    picture = WebPImageFile(io.BytesIO(data))
    return picture, picture.info.get("exif", b"")


def _webp_size(head: bytes) -> tuple[int, int]:
    if head[12:16] == b"VP8X":
        return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    if head[12:16] == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF


_TIFF_LIMITS = {
    # one value each: size, compression, colour model, bit and plane order, rows, predictor, tile size
    **dict.fromkeys((256, 257, 259, 262, 266, 277, 278, 284, 292, 293, 317, 322, 323, 531), 1),
    # lists: bits, places and lengths of strips and tiles, colour map, extra channels, JPEG tables, YCbCr
    **dict.fromkeys((258, 273, 279, 320, 324, 325, 338, 339, 347, 529, 530, 532), 200_000),
}
"""The maximum number of values of each tag that affects pixels; other tags are dropped."""

_TIFF_WIDTHS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
"""The number of bytes per value, by type."""


def _tiff(data: bytes) -> tuple[ImageFile, bytes]:
    """Open the first page, with only the valid entries of its directory that affect the pixels.

    A directory has the layout of an EXIF block, so it is returned as the EXIF block.
    """
    from PIL.TiffImagePlugin import TiffImageFile

    order, kept = "<" if data.startswith(b"II") else ">", dict[int, bytes]()
    (start,) = struct.unpack_from(f"{order}L", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, start)
    directory = data[start : start + 2 + 12 * count]
    for at in range(2, 2 + 12 * count, 12):
        tag, kind, values, offset = struct.unpack_from(f"{order}HHLL", directory, at)
        size = values * _TIFF_WIDTHS.get(kind, 0)
        if size and values <= _TIFF_LIMITS.get(tag, 0) and (size <= 4 or offset + size <= len(data)):
            kept.setdefault(tag, directory[at : at + 12])
    packed = struct.pack(f"{order}H", len(kept)) + b"".join(kept.values()) + bytes(4)
    picture = TiffImageFile(io.BytesIO(data[:start] + packed + data[start + len(packed) :]))
    if picture.mode == "I;16" and (picture.tag_v2.get(258) != (16,) or picture.tag_v2.get(262) == 0):
        raise ImageError(
            "a 12-bit greyscale TIFF, or a 16-bit one in which 0 is white, cannot be read; convert it to 8 bits",
            code="image-unsupported",
        )
    return picture, directory


_ORIENTATION = re.compile(
    rb"\x12\x01\x03\x00\x01\x00\x00\x00([\x01-\x08])\x00|\x01\x12\x00\x03\x00\x00\x00\x01\x00([\x01-\x08])"
)
"""Matches the entry of the orientation in an EXIF block, in either byte order."""


def _orientation(exif: bytes) -> int:
    """The EXIF orientation, 1 (upright) to 8; 1 if missing or invalid."""
    entry = _ORIENTATION.search(exif)
    return (entry[1] or entry[2])[0] if entry else 1


def _upright(pixels: NDArray[np.uint8], orientation: int) -> NDArray[np.uint8]:
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    return pixels[:, ::-1] if orientation in (2, 3, 6, 7) else pixels


def _channels(picture: PillowImage) -> NDArray[np.uint8]:
    """The decoded pixels: grey, RGB or RGBA, 8 bits."""
    picture.load()
    if picture.mode.startswith("I"):
        return _from_16_bits(picture)
    if picture.mode in ("F", "LAB"):
        raise ImageError(
            f"pixels of kind {picture.mode} cannot be read; convert it to 8-bit RGB", code="image-unsupported"
        )
    clear = "transparency" in picture.info or picture.mode in ("LA", "La", "PA", "RGBA", "RGBa")
    wanted = "RGBA" if clear else "RGB"
    return np.asarray(picture if picture.mode == wanted else picture.convert(wanted))


def _from_16_bits(picture: PillowImage) -> NDArray[np.uint8]:
    """Convert 16-bit grey to 8 bits: the low byte is dropped, as in 16-bit colour; transparent pixels become white."""
    values = np.asarray(picture)
    if values.min() < 0 or values.max() > 0xFFFF:
        raise ImageError(
            "grey values outside 0 to 65,535 have no known range; convert it to 8 bits", code="image-unsupported"
        )
    grey = (values >> 8).astype(np.uint8)
    grey[values == picture.info.get("transparency", -1)] = 255
    return grey
