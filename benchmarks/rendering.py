"""How fast views are drawn: ten views of a picture, one thread, against loops of OpenCV calls and other libraries.

    python benchmarks/rendering.py [--without-peers]

Everything is a ratio, the other's time divided by ours, from runs that take turns in one process; the time is the
processor time of the thread, the best of many. The questions are given, as the ledger has been asked by then; what
they stand for, the chance of each view, is drawn within the time, as it is by the others.
Peers live in an environment of their own, .venv-peers, which is made when it is missing.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from goals import at_least
from numpy.typing import NDArray

from looktwice.images.image import Image
from looktwice.views import Panel, questions, render

Pixels = NDArray[np.uint8]
Draw = Callable[[Pixels], object]

SIZES = (32, 224)
VIEWS = 10
ROOT = Path(__file__).resolve().parents[1]
PEERS = ROOT / ".venv-peers"
REFLECT = cv2.BORDER_REFLECT_101
FIXED = (
    "turn:-10 turn:10 zoom:0.9 zoom:1.15 shift:0.06,0.06 shift:-0.06,0.06 "
    "mirror+turn:-10 mirror+turn:10 mirror+zoom:1.15 mirror+shift:0.06,0.06"
)

rng = np.random.default_rng(0)


class Row(NamedTuple):
    """One line of the table."""

    size: int
    views: str
    other: str
    ratio: float
    goal: float


def main() -> None:
    cv2.setNumThreads(1)
    rows = [*compare(LOOPS, "cv2 loop", loop_goal), *compare(TEXTBOOK, "scipy", lambda *_: 5)]
    if "--without-peers" not in sys.argv:
        rows += peers()
    reached = [at_least(f"{row.other} / {row.views}, {row.size} px", row.ratio, row.goal) for row in sorted(rows)]
    sys.exit(0 if all(reached) else 1)


def loop_goal(size: int, panel: str) -> float:
    """Fixed views keep their maps from one picture to the next, so more is asked of them."""
    fixed = 2.0 if size == 32 else 1.3
    return 1.0 if "*" in panel else fixed


def compare(others: dict[str, Draw], name: str, goal: Callable[[int, str], float]) -> list[Row]:
    """A row for each size and panel: how much longer the other takes."""
    rows = []
    for size in SIZES:
        for panel, other in others.items():
            image = picture(size)
            asked = questions(image, Panel.parse(panel), 0)
            ours, theirs = best_times(lambda: render(image, asked), lambda: other(image.pixels))  # noqa: B023
            rows.append(Row(size, title(panel), name, theirs / ours, goal(size, panel)))
    return rows


def best_times(*works: Callable[[], object], seconds: float = 1.0) -> list[float]:
    """Seconds of processor time that each work takes at best; they take turns, so that all have the same weather."""
    times = [timed(work, 1) for work in works for _ in range(2)][1::2]
    repeats = [max(1, int(0.005 / max(each, 1e-6))) for each in times]
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        times = [min(best, timed(work, n)) for best, work, n in zip(times, works, repeats, strict=True)]
    return times


def timed(work: Callable[[], object], repeats: int) -> float:
    start = time.thread_time()
    for _ in range(repeats):
        work()
    return (time.thread_time() - start) / repeats


def picture(size: int) -> Image:
    return Image.from_array(np.random.default_rng(size).integers(0, 256, (size, size, 3), dtype=np.uint8))


def title(panel: str) -> str:
    return panel if "*" in panel else "10 fixed moves"


def room(pixels: Pixels) -> Pixels:
    return np.empty((VIEWS, *pixels.shape), np.uint8)


# The loops that one would write by hand ----------------------------------------------------------------------------


def warp(pixels: Pixels, angle: float, factor: float, right: float, down: float, out: Pixels) -> None:
    height, width, _ = pixels.shape
    matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), angle, factor)
    matrix[0, 2] += right * width
    matrix[1, 2] += down * height
    cv2.warpAffine(pixels, matrix, (width, height), dst=out, flags=cv2.INTER_LINEAR, borderMode=REFLECT)


def loop_rotation(pixels: Pixels, degrees: float) -> Pixels:
    out = room(pixels)
    height, width, _ = pixels.shape
    for target in out:
        matrix = cv2.getRotationMatrix2D(((width - 1) / 2, (height - 1) / 2), rng.uniform(-degrees, degrees), 1)
        cv2.warpAffine(pixels, matrix, (width, height), dst=target, flags=cv2.INTER_LINEAR, borderMode=REFLECT)
    return out


def loop_affine(pixels: Pixels, degrees: float, translate: float, scale: float) -> Pixels:
    out = room(pixels)
    for target in out:
        angle, factor = rng.uniform(-degrees, degrees), rng.uniform(1 - scale, 1 + scale)
        warp(pixels, angle, factor, rng.uniform(-translate, translate), rng.uniform(-translate, translate), target)
    return out


def loop_gaussian(pixels: Pixels, sigma: float) -> Pixels:
    out, noise = room(pixels), np.empty(pixels.shape, np.float32)
    for target in out:
        cv2.randn(noise, 0, 255 * sigma)
        cv2.add(pixels, noise, dst=target, dtype=cv2.CV_8U)
    return out


def loop_elastic(pixels: Pixels, alpha: float, sigma: float) -> Pixels:
    out, taps = room(pixels), int(8 * sigma + 1) | 1
    height, width, _ = pixels.shape
    x, y = np.meshgrid(np.arange(width, dtype=np.float32), np.arange(height, dtype=np.float32))
    for target in out:
        noise = 2 * rng.random((2, height, width), dtype=np.float32) - 1
        dx, dy = (cv2.GaussianBlur(each, (taps, taps), sigma, borderType=REFLECT) * (alpha / 2) for each in noise)
        cv2.remap(pixels, x + dx, y + dy, cv2.INTER_LINEAR, dst=target, borderMode=REFLECT)
    return out


def loop_fixed(pixels: Pixels) -> Pixels:
    out = room(pixels)
    plain = [(-10, 1, 0, 0), (10, 1, 0, 0), (0, 0.9, 0, 0), (0, 1.15, 0, 0), (0, 1, 0.06, 0.06), (0, 1, -0.06, 0.06)]
    mirrored = [(-10, 1, 0, 0), (10, 1, 0, 0), (0, 1.15, 0, 0), (0, 1, 0.06, 0.06)]
    flipped = cv2.flip(pixels, 1)
    for move, target in zip(plain, out[:6], strict=True):
        warp(pixels, *move, target)
    for move, target in zip(mirrored, out[6:], strict=True):
        warp(flipped, *move, target)
    return out


def textbook_elastic(pixels: Pixels, alpha: float, sigma: float) -> Pixels:
    from scipy.ndimage import gaussian_filter, map_coordinates

    out = room(pixels)
    y, x = np.mgrid[: pixels.shape[0], : pixels.shape[1]]
    for target in out:
        dy, dx = (gaussian_filter(each, sigma, mode="mirror") * alpha / 2 for each in rng.uniform(-1, 1, (2, *y.shape)))
        for channel in range(3):
            target[..., channel] = map_coordinates(pixels[..., channel], (y + dy, x + dx), order=1, mode="mirror")
    return out


LOOPS: dict[str, Draw] = {
    "rotation:30*10": lambda pixels: loop_rotation(pixels, 30),
    "affine:10,0.1,0.1*10": lambda pixels: loop_affine(pixels, 10, 0.1, 0.1),
    "affine:30,0.3,0.3*10": lambda pixels: loop_affine(pixels, 30, 0.3, 0.3),
    "gaussian:0.1*10": lambda pixels: loop_gaussian(pixels, 0.1),
    "elastic:20,2*10": lambda pixels: loop_elastic(pixels, 20, 2),
    "elastic:50,5*10": lambda pixels: loop_elastic(pixels, 50, 5),
    FIXED: loop_fixed,
}

TEXTBOOK: dict[str, Draw] = {"elastic:50,5*10": lambda pixels: textbook_elastic(pixels, 50, 5)}


# Other libraries ---------------------------------------------------------------------------------------------------


def peers() -> list[Row]:
    """The rows that rendering_peers.py measures in the environment of the peers."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", PEERS], check=True)
        # torch first and by its exact number, else kornia brings a newer one with gigabytes of CUDA.
        for wanted in (["torch==2.13.0"], ["albumentations==2.0.8", "kornia", "scipy"]):
            subprocess.run([python, "-m", "pip", "install", "--quiet", *wanted], check=True)
    told = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_ALBUMENTATIONS_UPDATE": "1"}
    script = Path(__file__).with_name("rendering_peers.py")
    done = subprocess.run([python, script], env=told, check=True, stdout=subprocess.PIPE, text=True)
    return [Row(*row) for row in json.loads(done.stdout)]


if __name__ == "__main__":
    main()
