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
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Condition
from typing import TYPE_CHECKING, Literal, cast

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
        data = _read(path)
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


def _read(path: Path) -> bytes:
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        what = "a folder" if stat.S_ISDIR(status.st_mode) else "no regular file"
        raise ImageError(f"it is {what}; give a picture file", shown(str(path)), code="image-unsupported")
    if status.st_size > MAX_BYTES:
        raise ImageError(
            f"{status.st_size:,} bytes; files of up to {MAX_BYTES:,} bytes are read",
            shown(str(path)),
            code="image-too-large",
        )
    return path.read_bytes()


def _check_size(size: tuple[int, int], max_pixels: int) -> None:
    width, height = size
    if width * height > max_pixels:
        what = f"{width} x {height} pixels is more than the limit of {max_pixels:,}"
        raise ImageError(f"{what}; scale it down or raise the limit", code="image-too-large")


def _opened(data: bytes, max_pixels: int) -> tuple[ImageFile, bytes]:
    """Open a Pillow image, reading only the header; returns the image and its EXIF block, which may be empty."""
    if not data:
        raise ImageError("the file is empty; replace it")
    if data.startswith(_JPEG):
        return _jpeg(data)
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return _png(data)
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return _webp(data, max_pixels)
    if data.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")):
        return _tiff(data, max_pixels)
    if data.startswith((b"GIF87a", b"GIF89a")):
        return _gif(data, max_pixels)
    return _bmp(data) if data.startswith(b"BM") else _heif(data)


def _jpeg(data: bytes) -> tuple[ImageFile, bytes]:
    """Open a JPEG, or the first picture of an MPO, the pair of pictures that some phones write."""
    from PIL.JpegImagePlugin import JpegImageFile

    _check_scans(data)
    picture = JpegImageFile(io.BytesIO(_metadata_renamed(data)))
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
                f"a JPEG of more than {MOST_SCANS} scans, which would take too long to decode; save it again",
                code="image-too-large",
            )
        at = marker.end()
        if kind not in _ALONE:
            at += int.from_bytes(data[at : at + 2])


_JPEG_METADATA = {b"Exif\0\0": b"\xff\xe1", b"ICC_PROFILE\0": b"\xff\xe2", b"Photoshop 3.0\0": b"\xff\xed"}
"""The markers and names of the segments that Pillow parses while opening a JPEG."""


def _metadata_renamed(data: bytes) -> bytes:
    """Change the case of the first letter of the metadata names, so that Pillow does not parse these segments.

    The two bytes of a marker cannot occur inside compressed pixels.
    """
    names = _JPEG_METADATA.items()
    segments = [(match.start(), marker) for name, marker in names for match in re.finditer(re.escape(name), data)]
    places = [at for at, marker in segments if data[at - 4 : at - 2] == marker]
    if not places:
        return data
    renamed = bytearray(data)
    for at in places:
        renamed[at] ^= 0x20
    return bytes(renamed)


def _png(data: bytes) -> tuple[ImageFile, bytes]:
    from PIL.PngImagePlugin import PngImageFile

    essential, exif = io.BytesIO(), b""
    essential.write(data[:8])
    for kind, chunk in _png_chunks(data):
        if kind in _PNG_ESSENTIAL:
            essential.write(chunk)
        elif kind == b"eXIf":
            exif = bytes(chunk[8:-4])
    essential.seek(0)
    return PngImageFile(essential), exif


_PNG_ESSENTIAL = (b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND")


def _png_chunks(data: bytes) -> Iterator[tuple[bytes, memoryview]]:
    """The type and all bytes (length, type, content, checksum) of each chunk; the last chunk may be truncated."""
    view, at, kind = memoryview(data), 8, b""
    while at < len(data) and kind != b"IEND":
        end = at + 12 + int.from_bytes(view[at : at + 4])
        kind = data[at + 4 : at + 8]
        yield kind, view[at:end]
        at = end


def _bmp(data: bytes) -> tuple[ImageFile, bytes]:
    from PIL.BmpImagePlugin import BmpImageFile

    return BmpImageFile(io.BytesIO(data)), b""


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


def _gif(data: bytes, max_pixels: int) -> tuple[ImageFile, bytes]:
    """Open the first frame. Its size is checked here, because Pillow would check it with a warning while opening."""
    from PIL.GifImagePlugin import GifImageFile

    width, height, flags = struct.unpack_from("<HHB", data, 6)
    head = 13 + ((6 << (flags & 7)) if flags & 0x80 else 0)
    control, at = _gif_frame(data, head)
    left, top, across, down = struct.unpack_from("<4H", data, at + 1)
    _check_size((max(width, left + across), max(height, top + down)), _pillow_limit(max_pixels))
    return GifImageFile(io.BytesIO(data[:head] + control + data[at:])), b""


def _gif_frame(data: bytes, at: int) -> tuple[bytes, int]:
    """The offset of the first frame, and the block before it that specifies its transparent colour."""
    control = b""
    while data[at] != 0x2C:
        if data[at] != 0x21:
            raise ImageError("broken or cut off (no frame in the GIF); replace the file")
        start, kind, at = at, data[at + 1], at + 2
        while data[at]:
            at += 1 + data[at]
        at += 1
        control = data[start:at] if kind == 0xF9 else control
    return control, at


def _webp(data: bytes, max_pixels: int) -> tuple[ImageFile, bytes]:
    """Open the first frame. Its size is checked here, because opening already allocates the pixels.

    Pillow needs up to 22 bytes per pixel for WebP, but 14 for other formats, so only 5/8 of the pixels are allowed.
    """
    from PIL.WebPImagePlugin import WebPImageFile

    _check_size(_webp_size(data[:30]), _pillow_limit(max_pixels * 5 // 8))
    picture = WebPImageFile(io.BytesIO(data))
    return picture, picture.info.get("exif", b"")


def _webp_size(head: bytes) -> tuple[int, int]:
    if head[12:16] == b"VP8X":
        return 1 + int.from_bytes(head[24:27], "little"), 1 + int.from_bytes(head[27:30], "little")
    if head[12:16] == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return 1 + (bits & 0x3FFF), 1 + (bits >> 14 & 0x3FFF)
    return int.from_bytes(head[26:28], "little") & 0x3FFF, int.from_bytes(head[28:30], "little") & 0x3FFF


def _pillow_limit(max_pixels: int) -> int:
    """The pixel limit, reduced if necessary to the limit of Pillow's own GIF, WebP and TIFF readers."""
    import PIL.Image

    return min(max_pixels, PIL.Image.MAX_IMAGE_PIXELS or max_pixels)


_TIFF_LIMITS = {
    # one value each: size, compression, colour model, bit and plane order, rows, predictor, tile size
    **dict.fromkeys((256, 257, 259, 262, 266, 277, 278, 284, 292, 293, 317, 322, 323, 531), 1),
    # lists: bits, places and lengths of strips and tiles, colour map, extra channels, JPEG tables, YCbCr
    **dict.fromkeys((258, 273, 279, 320, 324, 325, 338, 339, 347, 529, 530, 532), 200_000),
}
"""The maximum number of values of each tag that affects pixels; other tags are dropped."""

_TIFF_WIDTHS = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
"""The number of bytes per value, by type."""


@dataclass(frozen=True, slots=True)
class _Directory:
    """The first directory of a TIFF or EXIF block: byte order, offset and length."""

    order: Literal["little", "big"]
    number: struct.Struct
    offset: struct.Struct
    entry: struct.Struct
    start: int
    length: int

    @classmethod
    def parse(cls, block: bytes) -> _Directory:
        sign = "<" if block[:2] == b"II" else ">"
        at, number, offset = {b"*": (4, "H", "L"), b"+": (8, "Q", "Q")}[block[2:4].strip(b"\0")]
        places, counts = struct.Struct(sign + offset), struct.Struct(sign + number)
        entry = struct.Struct(f"{sign}HH{offset}{places.size}s")
        (start,) = places.unpack_from(block, at)
        (length,) = counts.unpack_from(block, start)
        return cls("little" if sign == "<" else "big", counts, places, entry, start, length)

    def entries(self, block: bytes) -> Iterator[tuple[int, int, int, bytes]]:
        """The entries: tag, type, number of values, and the values or their offset."""
        first = self.start + self.number.size
        for number in range(self.length):
            yield self.entry.unpack_from(block, first + number * self.entry.size)

    def packed(self, entries: list[tuple[int, int, int, bytes]]) -> bytes:
        """Encode these entries as the last directory of a file."""
        body = b"".join(self.entry.pack(*entry) for entry in entries)
        return self.number.pack(len(entries)) + body + bytes(self.offset.size)


def _tiff(data: bytes, max_pixels: int) -> tuple[ImageFile, bytes]:
    """Open the first page. A TIFF has the layout of an EXIF block, so the file itself is returned as the EXIF block."""
    from PIL.TiffImagePlugin import TiffImageFile

    picture = TiffImageFile(io.BytesIO(_tiff_essential(data)))
    _check_size(picture.size, _pillow_limit(max_pixels))
    if picture.mode == "I;16" and (picture.tag_v2.get(258) != (16,) or picture.tag_v2.get(262) == 0):
        raise ImageError(
            "grey TIFF with 12 bits or with white as zero cannot be read; convert it to 8 bits",
            code="image-unsupported",
        )
    return picture, data


def _tiff_essential(data: bytes) -> bytes:
    """Reduce a TIFF to one page, with only the valid directory entries that affect the pixels."""
    directory, kept, unread = _Directory.parse(data), {}, len(data)
    if directory.start < 8 * (directory.offset.size // 4):
        raise ImageError("broken or cut off (a TIFF directory inside the header); replace the file")
    for tag, kind, values, field in directory.entries(data):
        size = values * _TIFF_WIDTHS.get(kind, 0)
        apart = size > len(field)
        if tag in kept or not 0 < values <= _TIFF_LIMITS.get(tag, 0) or not size:
            continue
        if apart and (size > unread or int.from_bytes(field, directory.order) + size > len(data)):
            continue
        kept[tag] = (tag, kind, values, field)
        unread -= size if apart else 0
    packed, whole = directory.packed(list(kept.values())), memoryview(data)
    return b"".join((whole[: directory.start], packed, whole[directory.start + len(packed) :]))


def _orientation(exif: bytes) -> int:
    """The EXIF orientation, 1 (upright) to 8; 1 if missing or invalid."""
    block = exif.removeprefix(b"Exif\0\0")
    try:
        directory = _Directory.parse(block)
        values = (
            int.from_bytes(field[:2], directory.order) for tag, *_, field in directory.entries(block) if tag == 0x112
        )
        return next((value for value in values if 1 <= value <= 8), 1)
    except (KeyError, struct.error):
        return 1


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
