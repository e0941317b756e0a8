"""Pictures from bytes: what is read, how it is converted, and what is refused."""

import io
import itertools
import os
import struct
import subprocess
import sys
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import PIL.Image
import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray
from PIL import ImageFile, TiffImagePlugin
from support.errors import coded

from looktwice.errors import ImageError, shown
from looktwice.images.decode import decode, load
from looktwice.images.image import MAX_PIXELS, Image, WorkingSize, encode_jpeg, encode_png

Pixels = NDArray[np.uint8]


def photo(height: int = 24, width: int = 40) -> Pixels:
    """Smooth colours, so that lossy formats stay near, and different in every corner, so that turns are seen."""
    down, across = np.mgrid[0:height, 0:width]
    red, green = 255 * down / max(1, height - 1), 255 * across / max(1, width - 1)
    return np.stack([red, green, (red + green) / 2], axis=2).astype(np.uint8)


def saved(picture: PIL.Image.Image, kind: str, **options: object) -> bytes:
    file = io.BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def png(width: int, height: int, depth: int, colour: int, rows: list[bytes], *extra: bytes) -> bytes:
    """A PNG written byte by byte, for kinds that Pillow does not write."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows)))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(extra) + body + chunk(b"IEND", b"")


def tiff(
    tags: list[tuple[int, int, int, int]], tail: bytes = b"", order: str = "<", entries: int | None = None
) -> bytes:
    """A TIFF whose directory holds these (tag, type, number of values, value or place) entries, then `tail`."""
    magic = b"II*\0" if order == "<" else b"MM\0*"
    head = magic + struct.pack(order + "LH", 8, len(tags) if entries is None else entries)
    return head + b"".join(_tiff_entry(order, *tag) for tag in tags) + bytes(4) + tail


def _tiff_entry(order: str, tag: int, kind: int, count: int, value: int) -> bytes:
    field = struct.pack(order + "HH", value, 0) if kind == 3 and count == 1 else struct.pack(order + "L", value)
    return struct.pack(order + "HHL", tag, kind, count) + field


def grey_tiff_tags(width: int, height: int, pixels_at: int, **changed: int) -> list[tuple[int, int, int, int]]:
    bits, photometric = changed.get("bits", 8), changed.get("photometric", 1)
    size = width * height * bits // 8
    tags = {256: (3, 1, width), 257: (3, 1, height), 258: (3, 1, bits), 259: (3, 1, 1), 262: (3, 1, photometric)}
    tags |= {273: (4, 1, pixels_at), 277: (3, 1, 1), 278: (3, 1, height), 279: (4, 1, size)}
    return [(tag, *rest) for tag, rest in tags.items()]


def exif(orientation: int, order: str = "<") -> bytes:
    return b"Exif\0\0" + tiff([(0x112, 3, 1, orientation)], order=order)


def with_segment(jpeg: bytes, marker: int, content: bytes) -> bytes:
    return jpeg[:2] + struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content + jpeg[2:]


def refused(data: bytes, max_pixels: int = MAX_PIXELS) -> str:
    """The code with which bytes are refused, in one printable line that names them."""
    with pytest.raises(ImageError) as caught:
        decode(data, "that.png", max_pixels)
    message = str(caught.value)
    assert message.startswith("that.png: ")
    assert message.isprintable()
    return caught.value.code


def far(decoded: Pixels, wanted: Pixels) -> int:
    assert decoded.shape == wanted.shape
    return int(np.abs(decoded.astype(int) - wanted.astype(int)).max())


# --- formats and modes -------------------------------------------------------------------------------------------


LOSSLESS = [
    ("PNG", {}),
    ("PNG", {"interlace": 1}),
    ("BMP", {}),
    ("WEBP", {"lossless": True}),
    ("TIFF", {}),
    ("TIFF", {"compression": "tiff_lzw"}),
    ("TIFF", {"compression": "tiff_adobe_deflate"}),
    ("TIFF", {"compression": "packbits"}),
]


@pytest.mark.parametrize(("kind", "options"), LOSSLESS)
def test_lossless_formats_give_back_the_very_pixels(kind: str, options: dict[str, object]) -> None:
    decoded = decode(saved(PIL.Image.fromarray(photo()), kind, **options), "it")
    assert np.array_equal(decoded.pixels, photo())


@pytest.mark.parametrize(
    ("kind", "options"), [("JPEG", {}), ("JPEG", {"progressive": True}), ("WEBP", {}), ("GIF", {})]
)
def test_lossy_formats_come_near(kind: str, options: dict[str, object]) -> None:
    quality = {} if kind == "GIF" else {"quality": 95}
    decoded = decode(saved(PIL.Image.fromarray(photo()), kind, **quality, **options), "it")
    assert far(decoded.pixels, photo()) <= 40


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "TIFF", "GIF", "WEBP"])
@pytest.mark.parametrize("size", [(1, 1), (1, 300), (300, 1)])
def test_pictures_one_pixel_wide_or_high_are_read(kind: str, size: tuple[int, int]) -> None:
    data = saved(PIL.Image.new("RGB", size, "white"), kind)
    assert decode(data, "it").pixels.shape == (size[1], size[0], 3)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF", "JPEG"])
def test_grey_has_three_equal_channels(kind: str) -> None:
    grey = photo()[:, :, 1]
    pixels = decode(saved(PIL.Image.fromarray(grey), kind), "it").pixels
    assert (pixels == pixels[:, :, :1]).all()
    assert far(pixels[:, :, 0], grey) <= (4 if kind == "JPEG" else 0)


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF"])
def test_black_and_white_becomes_0_and_255(kind: str) -> None:
    dots = PIL.Image.fromarray(photo()[:, :, 0]).convert("1")
    pixels = decode(saved(dots, kind), "it").pixels
    assert np.array_equal(pixels[:, :, 0], np.asarray(dots) * np.uint8(255))


@pytest.mark.parametrize("kind", ["PNG", "BMP", "TIFF", "GIF"])
def test_a_palette_is_looked_up(kind: str) -> None:
    painted = PIL.Image.fromarray(photo()).quantize(16)
    pixels = decode(saved(painted, kind), "it").pixels
    assert np.array_equal(pixels, np.asarray(painted.convert("RGB")))


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "WEBP"])
def test_transparent_parts_show_white(kind: str) -> None:
    rgba = np.dstack([photo(), np.full(photo().shape[:2], 255, np.uint8)])
    rgba[:5, :, 3], rgba[5:9, :, 3] = 0, 51
    data = saved(PIL.Image.fromarray(rgba), kind, **({"lossless": True, "exact": True} if kind == "WEBP" else {}))
    pixels = decode(data, "it").pixels
    assert (pixels[:5] == 255).all()
    assert far(pixels[5:9], np.rint(photo()[5:9] * 0.2 + 255 * 0.8).astype(np.uint8)) <= 0
    assert np.array_equal(pixels[9:], photo()[9:])


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_grey_with_alpha_shows_white_below(kind: str) -> None:
    la = np.dstack([np.full((2, 2), 100, np.uint8), np.array([[0, 255], [0, 255]], np.uint8)])
    pixels = decode(saved(PIL.Image.fromarray(la, "LA"), kind), "it").pixels
    assert pixels[:, :, 0].tolist() == [[255, 100], [255, 100]]


@pytest.mark.parametrize("transparency", [1, bytes([255, 0]), bytes([255, 51])])
def test_a_transparent_palette_entry_shows_white(transparency: int | bytes) -> None:
    painted = PIL.Image.new("P", (2, 1))
    painted.putpalette([10, 20, 30, 40, 50, 60])
    painted.putpixel((1, 0), 1)
    pixels = decode(saved(painted, "PNG", transparency=transparency), "it").pixels
    assert pixels[0, 0].tolist() == [10, 20, 30]
    assert pixels[0, 1].tolist() == ([212, 214, 216] if transparency == bytes([255, 51]) else [255, 255, 255])


@pytest.mark.parametrize(("colour", "row", "clear"), [(0, b"\5\6", b"\0\5"), (2, b"\1\2\3\6\6\6", b"\0\1\0\2\0\3")])
def test_a_transparent_colour_in_png_shows_white(colour: int, row: bytes, clear: bytes) -> None:
    pixels = decode(png(2, 1, 8, colour, [row], chunk(b"tRNS", clear)), "it").pixels
    assert pixels.tolist() == [[[255, 255, 255], [6, 6, 6]]]


def test_a_gif_gives_its_first_frame_with_its_transparency() -> None:
    first, second = PIL.Image.new("P", (3, 2), 0), PIL.Image.new("P", (3, 2), 1)
    for frame in (first, second):
        frame.putpalette([9, 8, 7, 200, 100, 50])
    first.putpixel((2, 1), 1)
    moving = saved(first, "GIF", save_all=True, append_images=[second], transparency=1, comment=b"hello")
    pixels = decode(moving, "it").pixels
    assert pixels[0, 0].tolist() == [9, 8, 7]
    assert pixels[1, 2].tolist() == [255, 255, 255]


@pytest.mark.parametrize("kind", ["WEBP", "PNG", "TIFF"])
def test_of_many_frames_or_pages_the_first_is_read(kind: str) -> None:
    pages = [PIL.Image.new("RGB", (20, 10), colour) for colour in ("red", "blue")]
    options = {"lossless": True} if kind == "WEBP" else {}
    pixels = decode(saved(pages[0], kind, save_all=True, append_images=pages[1:], **options), "it").pixels
    assert np.unique(pixels.reshape(-1, 3), axis=0).tolist() == [[255, 0, 0]]


def test_a_phones_pair_of_pictures_gives_the_first() -> None:
    pair = [PIL.Image.new("RGB", (16, 16), colour) for colour in ("red", "blue")]
    data = saved(pair[0], "MPO", save_all=True, append_images=pair[1:])
    assert far(decode(data, "it").pixels, np.asarray(pair[0])) <= 3


CORNERS = np.array([[(220, 30, 30), (30, 200, 30)], [(30, 30, 220), (240, 240, 240)]], np.uint8)
"""The colours of the four quarters of `samples/corners.heic`; `turned.heic` says that it is to be turned by 90°."""


@pytest.mark.parametrize("name", ["corners", "turned"])
@pytest.mark.parametrize("kind", ["heic", "avif"])
def test_pictures_as_phones_write_them(kind: str, name: str) -> None:
    if kind == "heic":
        pytest.importorskip("pi_heif")
        data = (Path(__file__).parent / "samples" / f"{name}.heic").read_bytes()
    else:
        exif = PIL.Image.Exif()
        exif[0x112] = 6 if name == "turned" else 1
        picture = PIL.Image.fromarray(CORNERS.repeat(32, 0).repeat(48, 1))
        data = saved(picture, "AVIF", quality=90, exif=exif.tobytes())
    image = decode(data, "it")
    small = decode(data, "it", size=WorkingSize(long=24))
    expected = np.rot90(CORNERS, -1) if name == "turned" else CORNERS
    for pixels in (image.pixels, small.pixels):
        height, width, _ = pixels.shape
        assert far(pixels[height // 4 :: height // 2, width // 4 :: width // 2], expected) <= 12
    assert image.pixels.shape == ((96, 64, 3) if name == "turned" else (64, 96, 3))
    assert max(small.pixels.shape) == 24


@pytest.mark.parametrize("length", [12, 40, 200, 500])
def test_a_cut_off_heic_is_refused(length: int) -> None:
    pytest.importorskip("pi_heif")
    data = (Path(__file__).parent / "samples" / "corners.heic").read_bytes()
    assert refused(data[:length]) == "image-unreadable"


def test_a_video_is_no_picture() -> None:
    assert refused(b"\0\0\0\x18ftypmp42\0\0\0\0mp42isom" + bytes(100)) == "image-unsupported"


@pytest.mark.parametrize("kind", ["JPEG", "TIFF"])
def test_cmyk_becomes_rgb_with_the_right_sign(kind: str) -> None:
    cyan = PIL.Image.new("CMYK", (16, 16), (255, 0, 0, 0))
    pixels = decode(saved(cyan, kind), "it").pixels
    assert far(pixels, np.broadcast_to(np.array([0, 255, 255], np.uint8), pixels.shape)) <= 3


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_16_bit_grey_is_scaled_and_not_clipped(kind: str) -> None:
    wide = np.array([[0, 255, 256, 0x7FFF], [0x8000, 0xABCD, 0xFF00, 0xFFFF]], np.uint16)
    pixels = decode(saved(PIL.Image.fromarray(wide), kind), "it").pixels
    assert pixels[:, :, 0].tolist() == [[0, 0, 1, 0x7F], [0x80, 0xAB, 0xFF, 0xFF]]


def test_16_bit_grey_of_either_byte_order_is_read_alike() -> None:
    for order in "<>":
        start = 8 + 2 + 9 * 12 + 4
        data = tiff(grey_tiff_tags(2, 1, start, bits=16), struct.pack(order + "2H", 0x1234, 0xFEDC), order)
        assert decode(data, "it").pixels[0, :, 0].tolist() == [0x12, 0xFE]


def test_16_bit_grey_with_a_transparent_value_shows_white() -> None:
    data = png(2, 1, 16, 0, [struct.pack(">2H", 40000, 1000)], chunk(b"tRNS", struct.pack(">H", 1000)))
    assert decode(data, "it").pixels[0, :, 0].tolist() == [40000 >> 8, 255]


@pytest.mark.parametrize(("colour", "values"), [(2, [0xFFFF, 0x8000, 0x0100]), (6, [0xFFFF, 0x8000, 0x0100, 0xFFFF])])
def test_16_bit_colour_is_scaled_and_not_clipped(colour: int, values: list[int]) -> None:
    data = png(1, 1, 16, colour, [struct.pack(f">{len(values)}H", *values)])
    assert decode(data, "it").pixels.tolist() == [[[255, 128, 1]]]


def test_16_bit_colour_tiff_is_scaled_and_not_clipped() -> None:
    start = 8 + 2 + 9 * 12 + 4
    tags = [tag for tag in grey_tiff_tags(1, 1, start + 6, photometric=2) if tag[0] not in (258, 277, 279)]
    tags = sorted([*tags, (258, 3, 3, start), (277, 3, 1, 3), (279, 4, 1, 6)])
    data = tiff(tags, struct.pack("<6H", 16, 16, 16, 0xFFFF, 0x8000, 0x0100))
    assert decode(data, "it").pixels.tolist() == [[[255, 128, 1]]]


def test_whole_numbers_of_32_bits_are_read_only_in_the_16_bit_range() -> None:
    fits, odd = (PIL.Image.fromarray(np.array([[0, top]], np.int32)) for top in (65535, 65536))
    assert decode(saved(fits, "TIFF"), "it").pixels[0, :, 0].tolist() == [0, 255]
    assert refused(saved(odd, "TIFF")) == "image-unsupported"


def test_kinds_of_pixels_without_a_known_range_are_refused() -> None:
    assert refused(saved(PIL.Image.new("F", (2, 2)), "TIFF")) == "image-unsupported"
    assert refused(tiff(grey_tiff_tags(2, 1, 122, bits=16, photometric=0), bytes(4))) == "image-unsupported"
    assert refused(tiff(grey_tiff_tags(2, 1, 122, bits=12), bytes(3))) == "image-unsupported"


# --- orientation -------------------------------------------------------------------------------------------------


def stored(orientation: int) -> PIL.Image.Image:
    """The photo as a camera that was held so stores it, so that `orientation` brings it upright again."""
    turns = {
        2: PIL.Image.Transpose.FLIP_LEFT_RIGHT,
        3: PIL.Image.Transpose.ROTATE_180,
        4: PIL.Image.Transpose.FLIP_TOP_BOTTOM,
        5: PIL.Image.Transpose.TRANSPOSE,
        6: PIL.Image.Transpose.ROTATE_90,
        7: PIL.Image.Transpose.TRANSVERSE,
        8: PIL.Image.Transpose.ROTATE_270,
    }
    upright = PIL.Image.fromarray(photo())
    return upright.transpose(turns[orientation]) if orientation in turns else upright


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(orientation: int, kind: str, order: str) -> None:
    data = saved(stored(orientation), kind, exif=exif(orientation, order), quality=100, subsampling=0, lossless=True)
    assert far(decode(data, "it").pixels, photo()) <= (4 if kind == "JPEG" else 0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_the_orientation_of_a_tiff_is_applied(orientation: int) -> None:
    for compression in ("raw", "tiff_lzw"):
        data = saved(stored(orientation), "TIFF", tiffinfo={274: orientation}, compression=compression)
        assert np.array_equal(decode(data, "it").pixels, photo())


def test_exif_after_the_pixels_of_a_png_counts_too() -> None:
    data = saved(stored(6), "PNG")
    late = data[:-12] + chunk(b"eXIf", exif(6)[6:]) + data[-12:]
    assert np.array_equal(decode(late, "it").pixels, photo())


def test_the_second_picture_of_a_pair_does_not_turn_the_first() -> None:
    upright = saved(PIL.Image.fromarray(photo()), "JPEG")
    turned = saved(stored(6), "JPEG", exif=exif(6))
    assert decode(upright + turned, "it").digest == decode(upright, "it").digest


BROKEN_EXIF = {
    "cut in the directory": exif(6)[:-10],
    "an orientation of 9": exif(9),
    "a directory far away": b"Exif\0\0II*\0" + struct.pack("<L", 2**32 - 1),
    "more entries than bytes": b"Exif\0\0" + tiff([(0x10F, 2, 9000, 9000)], entries=9000),
    "a text far away": b"Exif\0\0" + tiff([(0x10F, 2, 2**31, 2**31), (0x11A, 5, 3, 4), (0x11A, 5, 1, 8)]),
    "no TIFF at all": b"Exif\0\0hello",
    "nothing": b"Exif\0\0",
}


@pytest.mark.parametrize("block", BROKEN_EXIF.values(), ids=BROKEN_EXIF)
def test_broken_exif_does_not_matter(block: bytes) -> None:
    plain = {kind: saved(PIL.Image.fromarray(photo()), kind) for kind in ("JPEG", "PNG")}
    webp = saved(PIL.Image.fromarray(photo()), "WEBP", exif=block, lossless=True)
    twice = with_segment(with_segment(plain["JPEG"], 0xE1, block), 0xE1, block)
    wordy = plain["PNG"][:33] + chunk(b"eXIf", block[6:]) + plain["PNG"][33:]
    assert decode(twice, "it").digest == decode(plain["JPEG"], "it").digest
    assert decode(wordy, "it").digest == decode(webp, "it").digest == decode(plain["PNG"], "it").digest


def test_the_word_exif_inside_compressed_pixels_is_left_alone() -> None:
    quiet = saved(PIL.Image.fromarray(photo()), "JPEG")
    assert decode(with_segment(quiet, 0xFE, b"abExif\0\0cd"), "it").digest == decode(quiet, "it").digest


# --- metadata that is damaged or hostile -------------------------------------------------------------------------


def test_a_broken_or_huge_colour_profile_does_not_matter() -> None:
    plain = saved(PIL.Image.fromarray(photo()), "PNG")
    bomb = zlib.compress(bytes(50_000_000))
    for content in (b"icc\0\0garbage", b"icc\0\0" + bomb, b"icc\0\7x", b""):
        assert decode(plain[:33] + chunk(b"iCCP", content) + plain[33:], "it").digest == decode(plain, "it").digest
    jpeg = saved(PIL.Image.fromarray(photo()), "JPEG")
    for marker, content in (
        (0xE2, b"ICC_PROFILE\0\1\2half"),
        (0xE2, b"ICC_PROFILE\0"),
        (0xED, b"Photoshop 3.0\x008BIMxx"),
    ):
        assert decode(with_segment(jpeg, marker, content), "it").digest == decode(jpeg, "it").digest


def test_texts_and_animation_marks_of_a_png_do_not_matter() -> None:
    plain = saved(PIL.Image.fromarray(photo()), "PNG")
    bomb = b"key\0\0" + zlib.compress(bytes(20_000_000))
    wrong = chunk(b"tEXt", b"a\0b")[:-1] + b"?"
    for extra in (chunk(b"zTXt", bomb), chunk(b"acTL", bytes(8)) * 2, chunk(b"acTL", b""), chunk(b"fcTL", b""), wrong):
        assert decode(plain[:33] + extra + plain[33:], "it").digest == decode(plain, "it").digest


def test_a_malformed_list_of_paired_pictures_does_not_matter() -> None:
    plain = saved(PIL.Image.fromarray(photo()), "JPEG")
    assert decode(with_segment(plain, 0xE2, b"MPF\0II*\0\xff\xff\xff\xff"), "it").digest == decode(plain, "it").digest


@pytest.mark.parametrize(
    "odd",
    [
        (0x10F, 2, 2**31, 2**31),
        (0x10F, 2, 40, 2**31),
        (0x8769, 4, 1, 2**31),
        (0x8773, 7, 10**6, 8),
        (0x2BC, 1, 5000, 8),
        (0x102, 99, 1, 8),
        (0x106, 3, 2, 0),
        (0x153, 3, 0, 0),
        (0x153, 3, 9, 2**32 - 1),
    ],
)
def test_odd_entries_of_a_tiff_do_not_matter(odd: tuple[int, int, int, int]) -> None:
    pixels = bytes(range(6))
    plain = tiff(grey_tiff_tags(3, 2, 122), pixels)
    other = tiff([odd, *grey_tiff_tags(3, 2, 134)], pixels)
    assert decode(other, "it").digest == decode(plain, "it").digest


def test_a_tiff_directory_that_is_cut_off_is_refused() -> None:
    assert refused(tiff(grey_tiff_tags(3, 2, 122), bytes(6))[:60]) == "image-unreadable"
    assert refused(tiff([], entries=60_000)) == "image-unreadable"
    assert refused(b"II*\0" + struct.pack("<LH", 2, 0) + bytes(60)) == "image-unreadable"


# --- refusals ----------------------------------------------------------------------------------------------------


SAMPLES = {
    kind: saved(PIL.Image.fromarray(photo()), kind, **options)
    for kind, options in (
        ("PNG", {}),
        ("JPEG", {}),
        ("BMP", {}),
        ("GIF", {}),
        ("WEBP", {}),
        ("TIFF", {"compression": "tiff_lzw"}),
    )
}
SAMPLES["plain TIFF"] = tiff(grey_tiff_tags(60, 10, 122), bytes(600))


@pytest.mark.parametrize("part", [0.02, 0.1, 0.3, 0.5, 0.7, 0.9])
@pytest.mark.parametrize("kind", SAMPLES)
def test_cut_off_files_are_refused_wherever_they_end(kind: str, part: float) -> None:
    data = SAMPLES[kind]
    refused(data[: int(len(data) * part)])


@pytest.mark.parametrize(
    "data",
    [
        b"hello, this is no picture\n" * 10,
        b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'><rect/></svg>",
        b"\0" * 1000,
        b"%PDF-1.7",
        b"P6 1 1 255 abc",
        b"%!PS-Adobe-3.0 EPSF-3.0\n",
        saved(PIL.Image.new("RGB", (3, 2)), "TIFF", big_tiff=True),
    ],
)
def test_what_is_no_picture_is_refused_with_the_formats_that_are_read(data: bytes) -> None:
    assert refused(data) == "image-unsupported"


def test_an_empty_file_is_called_empty() -> None:
    assert refused(b"") == "image-unreadable"


def claims(width: int, height: int) -> dict[str, bytes]:
    """Small files of every format whose headers claim this size."""
    small = {kind: bytearray(data) for kind, data in SAMPLES.items()}
    at = small["JPEG"].index(b"\xff\xc0")
    struct.pack_into(">HH", small["JPEG"], at + 5, min(height, 65535), min(width, 65535))
    struct.pack_into("<ii", small["BMP"], 18, width, height)
    gif = small["GIF"]
    struct.pack_into("<HH", gif, 6, min(width, 65535), min(height, 65535))
    canvas = struct.pack("<I", width - 1)[:3] + struct.pack("<I", height - 1)[:3]
    webp = b"RIFF" + struct.pack("<I", 22) + b"WEBPVP8X" + struct.pack("<I", 10) + bytes(4) + canvas
    lossless = saved(PIL.Image.fromarray(photo()), "WEBP", lossless=True)
    bits = (min(width, 16384) - 1) | (min(height, 16384) - 1) << 14
    lossy = bytearray(SAMPLES["WEBP"])
    struct.pack_into("<HH", lossy, 26, min(width, 16383), min(height, 16383))
    return {
        "PNG": png(width, height, 8, 2, [b""]),
        "JPEG": bytes(small["JPEG"]),
        "BMP": bytes(small["BMP"]),
        "GIF screen": bytes(gif),
        "WebP canvas": webp,
        "WebP lossless": lossless[:21] + struct.pack("<I", bits) + lossless[25:],
        "WebP lossy": bytes(lossy),
        "TIFF": tiff([(256, 4, 1, width), (257, 4, 1, height), *grey_tiff_tags(1, 1, 122)[2:]], b"1"),
    }


@pytest.mark.parametrize("kind", claims(9, 9))
@pytest.mark.parametrize("size", [(100_000, 100_000), (10_000, 9_500)])
def test_a_size_over_the_limit_is_refused_from_the_header(kind: str, size: tuple[int, int]) -> None:
    assert refused(claims(*size)[kind]) == "image-too-large"


def test_a_gif_of_thousands_of_comments_or_with_a_huge_frame_is_refused() -> None:
    gif = SAMPLES["GIF"]
    at = gif.index(b",\0\0\0\0" + struct.pack("<HH", 40, 24))
    assert refused(gif[:at] + b"!\xfe\1x\0" * 50_000 + gif[at:]) == "image-too-large"
    assert refused(gif[: at + 5] + struct.pack("<HH", 65535, 65535) + gif[at + 9 :]) == "image-unreadable"


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF"])
def test_the_limit_is_the_largest_number_of_pixels_that_passes(kind: str) -> None:
    data, limit = SAMPLES[kind], 24 * 40 * 8 // 5 if kind == "WEBP" else 24 * 40
    assert decode(data, "it", max_pixels=limit).pixels.shape == (24, 40, 3)
    assert refused(data, max_pixels=limit - 1) == "image-too-large"


@pytest.mark.slow
def test_a_limit_above_pillows_own_still_passes_what_pillow_would_warn_about() -> None:
    grey = png(11_000, 9_000, 1, 0, [bytes(1375)] * 9_000)
    assert decode(grey, "it", max_pixels=99_000_000).pixels.shape == (9_000, 11_000, 3)


@pytest.mark.slow
def test_bombs_of_repeated_bytes_stop_at_the_size_in_the_header() -> None:
    packed = zlib.compress(bytes(60_000_000))
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 0, 0, 0, 0)) + chunk(b"IDAT", packed)
    assert decode(data + chunk(b"IEND", b""), "it").pixels.shape == (4, 4, 3)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(SAMPLES)), st.lists(st.tuples(st.integers(0, 2000), st.integers(0, 255)), max_size=8))
def test_damaged_bytes_give_a_picture_or_an_image_error(kind: str, damage: list[tuple[int, int]]) -> None:
    data = bytearray(SAMPLES[kind])
    for place, value in damage:
        data[place % len(data)] = value
    _picture_or_error(bytes(data))


MAGIC = [
    b"",
    b"\xff\xd8\xff",
    b"\x89PNG\r\n\x1a\n",
    b"RIFF....WEBPVP8X",
    b"II*\0\x08\0\0\0",
    b"MM\0+",
    b"GIF89a",
    b"BM",
]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(MAGIC), st.binary(max_size=200))
def test_random_bytes_give_a_picture_or_an_image_error(magic: bytes, rest: bytes) -> None:
    _picture_or_error(magic + rest)


def _picture_or_error(data: bytes) -> None:
    with warnings.catch_warnings(record=True) as leaked:
        warnings.simplefilter("always")
        answer = _outcome(data)
    assert answer.startswith("it: ") or answer == "uint8 RGB"
    assert answer.isprintable()
    assert leaked == []


def _outcome(data: bytes) -> str:
    try:
        pixels = decode(data, "it", max_pixels=1_000_000).pixels
    except ImageError as refusal:
        return str(refusal)
    return f"{pixels.dtype} {'RGB' if pixels.shape[2] == 3 else pixels.shape}"


# --- files -------------------------------------------------------------------------------------------------------


def test_a_file_is_read_whatever_its_ending(tmp_path: Path) -> None:
    (tmp_path / "photo.txt").write_bytes(SAMPLES["PNG"])
    assert np.array_equal(load(tmp_path / "photo.txt").pixels, photo())


def test_a_missing_file_a_folder_and_a_pipe_are_refused_by_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.png")
    codes = {"none.png": "image-missing", ".": "image-unsupported", "pipe.png": "image-unsupported"}
    for name, code in codes.items():
        path = tmp_path / name
        with pytest.raises(ImageError, check=coded(code)) as caught:
            load(path)
        assert str(caught.value).startswith(f"{path}: ")


def test_a_file_name_with_control_characters_is_printed_escaped(tmp_path: Path) -> None:
    path = tmp_path / "a\n\x1b[31mred.png"
    path.write_bytes(b"")
    for bad in (path, Path("nul\0.png"), Path("gone\r.png")):
        with pytest.raises(ImageError) as caught:
            load(bad)
        assert str(caught.value).isprintable()


def test_a_file_larger_than_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "huge.png"
    with path.open("wb") as file:
        file.truncate(600 * 2**20)
    with pytest.raises(ImageError, check=coded("image-too-large")):
        load(path)


def test_an_unreadable_file_is_refused_by_name(tmp_path: Path) -> None:
    loop = tmp_path / "loop.png"
    loop.symlink_to(loop)
    with pytest.raises(ImageError, check=coded("image-missing")):
        load(loop)


@given(st.text(max_size=30))
def test_names_are_shown_printable_and_unchanged_where_they_already_are(name: str) -> None:
    assert shown(name).isprintable()
    assert shown(name) == name or not name.isprintable() or not name


# --- Image -------------------------------------------------------------------------------------------------------


SMALL = arrays(np.uint8, st.tuples(st.integers(1, 6), st.integers(1, 6), st.sampled_from([3])))


@given(SMALL)
def test_pixels_are_contiguous_and_cannot_be_written(pixels: Pixels) -> None:
    for way in (pixels, pixels[::-1], pixels[:, :, ::-1], pixels[:, :, 0], pixels[:, :, :1]):
        image = Image.from_array(way)
        assert image.pixels.flags.c_contiguous
        with pytest.raises(ValueError, match="read-only"):
            image.pixels[0, 0, 0] = 1


def test_changing_the_array_afterwards_does_not_change_the_image() -> None:
    pixels = photo()
    image = Image.from_array(pixels)
    pixels[:] = 0
    assert np.array_equal(image.pixels, photo())


def test_a_read_only_array_is_shared_and_not_copied() -> None:
    pixels = photo()
    pixels.flags.writeable = False
    assert Image.from_array(pixels).pixels is pixels


def test_grey_arrays_of_both_shapes_are_the_same_image() -> None:
    grey = photo()[:, :, 0]
    assert (
        Image.from_array(grey).digest
        == Image.from_array(grey[:, :, None]).digest
        == Image.from_array(np.dstack([grey] * 3)).digest
    )


def test_alpha_is_composited_on_white_to_the_nearest_for_every_value() -> None:
    value, alpha = np.meshgrid(np.arange(256), np.arange(256))
    composited = Image.from_array(np.dstack([value, value, value, alpha]).astype(np.uint8)).pixels
    assert np.array_equal(composited[:, :, 0], np.rint((value * alpha + 255 * (255 - alpha)) / 255))


def test_a_tall_picture_with_alpha_is_composited_in_every_strip() -> None:
    pixels = np.zeros((1500, 1000, 4), np.uint8)
    pixels[:, :, 3] = 255
    pixels[1490:, :, 3] = 0
    composited = Image.from_array(pixels).pixels
    assert (composited[:1490] == 0).all()
    assert (composited[1490:] == 255).all()


@pytest.mark.parametrize(
    "bad", [np.zeros((2, 2, 3)), np.zeros((2, 2, 2), np.uint8), np.zeros(4, np.uint8), np.zeros((0, 2, 3), np.uint8)]
)
def test_arrays_that_are_no_picture_are_refused(bad: Pixels) -> None:
    with pytest.raises(ImageError, check=coded("image-unreadable")):
        Image.from_array(bad)


@given(SMALL, SMALL)
def test_the_digest_tells_pixels_and_shapes_apart(one: Pixels, other: Pixels) -> None:
    same = one.shape == other.shape and bool((one == other).all())
    assert (Image.from_array(one).digest == Image.from_array(other).digest) == same


def test_the_digest_of_the_same_bytes_in_another_shape_differs() -> None:
    flat = np.arange(36, dtype=np.uint8)
    shapes = [(1, 12), (2, 6), (3, 4), (4, 3), (6, 2), (12, 1)]
    assert len({Image.from_array(flat.reshape(*shape, 3)).digest for shape in shapes}) == len(shapes)


def test_the_digest_is_the_same_for_ever() -> None:
    digest = Image.from_array(np.arange(12, dtype=np.uint8).reshape(2, 2, 3)).digest
    assert digest == "4207271b3fdbeefdb14430709f4038df"


# --- encoding ----------------------------------------------------------------------------------------------------


@settings(deadline=None)
@given(SMALL)
def test_png_keeps_every_pixel(pixels: Pixels) -> None:
    assert np.array_equal(decode(encode_png(pixels), "it").pixels, pixels)


def test_jpeg_comes_near_and_better_quality_is_larger() -> None:
    small, large = encode_jpeg(photo(), 30), encode_jpeg(photo(), 98)
    assert len(small) < len(large)
    assert far(decode(large, "it").pixels, photo()) <= 20


@pytest.mark.parametrize("quality", [0, 101, -5])
def test_a_jpeg_quality_out_of_range_is_refused(quality: int) -> None:
    with pytest.raises(ImageError, check=coded("option-invalid")):
        encode_jpeg(photo(), quality)


# --- manners -----------------------------------------------------------------------------------------------------


def test_many_threads_decode_alike_and_change_no_setting_of_pillow() -> None:
    before = (PIL.Image.MAX_IMAGE_PIXELS, TiffImagePlugin.READ_LIBTIFF, ImageFile.LOAD_TRUNCATED_IMAGES)
    rough = with_segment(SAMPLES["JPEG"], 0xE1, BROKEN_EXIF["a text far away"])
    work = list(itertools.islice(itertools.cycle([*SAMPLES.values(), rough]), 200))
    alone = [decode(data, "it").digest for data in work]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda data: decode(data, "it").digest, work)) == alone
    after = (PIL.Image.MAX_IMAGE_PIXELS, TiffImagePlugin.READ_LIBTIFF, ImageFile.LOAD_TRUNCATED_IMAGES)
    assert before == after


def test_importing_the_package_does_not_import_pillow() -> None:
    code = "import sys, looktwice.images; print([m for m in ('PIL', 'pi_heif') if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
