"""Frames of a short video, evenly spaced, which serve as several photos of one object."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from looktwice.errors import ImageError, shown
from looktwice.images.decode import MAX_BYTES, is_video
from looktwice.images.image import MAX_PIXELS, Image, WorkingSize

FRAMES = 8
MOST_FRAMES = 3600
"""The most frames of a video: two minutes from a phone."""


def is_video_file(path: Path) -> bool:
    """Whether a file is a readable video."""
    try:
        with path.open("rb") as file:
            return is_video(file.read(16))
    except OSError:
        return False


def frames(
    source: Path | bytes, name: str, count: int = FRAMES, size: WorkingSize | None = None, max_pixels: int = MAX_PIXELS
) -> list[Image]:
    """Read this many frames of a video, or all if it has fewer, scaled down to a working size.

    Raises an ImageError with this name if there are none.
    """
    try:
        if isinstance(source, Path):
            return _frames(source, count, size, max_pixels)
        with tempfile.NamedTemporaryFile(suffix=".video") as file:
            file.write(source)
            file.flush()
            return _frames(Path(file.name), count, size, max_pixels)
    except ImageError as refusal:
        raise ImageError(refusal.why, shown(name), code=refusal.code) from None
    except OSError as fault:
        raise ImageError(
            f"cannot be read ({fault.strerror}); check the path and its rights", shown(name), code="image-missing"
        ) from fault


def _frames(path: Path, count: int, size: WorkingSize | None, max_pixels: int) -> list[Image]:
    if path.stat().st_size > MAX_BYTES:
        raise ImageError(
            f"{path.stat().st_size:,} bytes; files up to {MAX_BYTES:,} bytes are read", code="image-too-large"
        )
    claimed = _claimed(path, max_pixels)
    if claimed > MOST_FRAMES:
        raise ImageError(
            f"{claimed:,} frames; a burst is a short video of up to {MOST_FRAMES:,}, so cut it", code="image-too-large"
        )
    found, there = _read(path, _spaced(claimed or MOST_FRAMES, count), size)
    if len(found) < count and there:  # it has fewer frames than it claims
        found, _ = _read(path, _spaced(there, count), size)
    if len(found) < 2:
        raise ImageError(f"a video with {len(found) or 'no'} frames that can be read; a burst needs two or more")
    return found


def _claimed(path: Path, max_pixels: int) -> int:
    """The number of frames by the header, 0 if unknown; raises an error if a frame has too many pixels."""
    capture = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG)
    try:
        width, height = (int(capture.get(side)) for side in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT))
        if width * height > max_pixels:
            raise ImageError(
                f"{width} x {height} pixels is more than the limit of {max_pixels:,}; make it smaller",
                code="image-too-large",
            )
        return max(0, int(capture.get(cv2.CAP_PROP_FRAME_COUNT)))
    finally:
        capture.release()


def _spaced(there: int, count: int) -> Sequence[int]:
    return sorted(set(np.linspace(0, there - 1, count).round().astype(int).tolist()))


def _read(path: Path, places: Sequence[int], size: WorkingSize | None) -> tuple[list[Image], int]:
    """The frames at these positions, and the number of frames read."""
    capture, found, passed = cv2.VideoCapture(str(path), cv2.CAP_FFMPEG), list[Image](), 0
    try:
        while passed <= places[-1] and capture.grab():
            if passed in places:
                _, pixels = capture.retrieve()
                small = Image.of(cv2.cvtColor(pixels, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False)).within(size)
                # With a digest of the pixels that are kept of it.
                found.append(Image(small.pixels, small.original_size))
            passed += 1
        return found, passed
    finally:
        capture.release()
