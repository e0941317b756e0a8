"""Draws the clothes that the page offers as samples: python tools/draw_samples.py

Ten kinds in four variants each: three in colour, as a shop or a phone shows them, and one grey on black, and as
small as the pictures of the embedded classifier are. Outlines are SVG paths in a square of 100; those of clothes are
right halves that are mirrored. The files are written beside the other samples, with the index that the page reads.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

FOLDER = Path(__file__).parent.parent / "src/looktwice/service/page/samples"
SIDE, FINER, QUALITY = 288, 3, 80
WHOLE = SIDE * FINER
UNIT = WHOLE / 100
Plane = NDArray[np.floating[Any]]
Colour = tuple[int, int, int]
Place = tuple[float, float]

INK, WHITE, CREAM, STEEL = (38, 36, 40), (247, 246, 243), (236, 226, 205), (176, 178, 184)
LIGHT, MIDDLE = (214, 214, 214), (150, 150, 150)
PHOTOS = ("Sneaker", "Sneaker", "Bag", "Bag", "Trouser", "Shirt", "Sandal", "Shirt")
"""The classes of 1.png to 8.png, which are Fashion-MNIST pictures."""


def outline(path: str, mirrored: bool) -> list[list[Place]]:
    """The vertices of a path of M, L, Q, C and Z; curves are approximated by many vertices."""
    found: list[list[Place]] = []
    words = path.split()
    while words:
        letter = words.pop(0)
        if letter == "Z":
            continue
        steps = {"M": 1, "L": 1, "Q": 2, "C": 3}[letter]
        numbers = [float(words.pop(0)) for _ in range(2 * steps)]
        places = list(zip(numbers[::2], numbers[1::2], strict=True))
        if letter == "M":
            found.append(places)
        else:
            found[-1] += bent([found[-1][-1], *places])
    if not mirrored:
        return found
    if found[0][0][0] != 50:  # a part that there is twice
        return found + [[(100 - x, y) for x, y in each] for each in found]
    return [each + [(100 - x, y) for x, y in reversed(each)] for each in found]


def bent(points: list[Place]) -> list[Place]:
    """Points on a Bézier curve, without the first one (de Casteljau's algorithm)."""
    if len(points) == 2:
        return points[1:]
    shares = np.linspace(0, 1, 25)[1:, None, None]
    rows = np.repeat(np.array(points)[None], len(shares), axis=0)
    while rows.shape[1] > 1:
        rows = rows[:, :-1] * (1 - shares) + rows[:, 1:] * shares
    return [(float(x), float(y)) for x, y in rows[:, 0]]


def blurred(plane: Plane, units: float) -> Plane:
    return np.asarray(cv2.GaussianBlur(plane, (0, 0), units * UNIT), np.float32)


@dataclass
class Cloth:
    """The material of an item."""

    colour: Colour
    second: Colour = WHITE
    weave: str = "plain"

    def paint(self, rng: np.random.Generator) -> Plane:
        """The whole square in this cloth, with the slight unevenness of threads."""
        y, x = np.mgrid[:WHOLE, :WHOLE] / UNIT
        share = {
            "plain": np.zeros_like(x),
            "stripes": (y % 9 < 3.6) * 1.0,
            "pinstripes": (x % 4 < 0.9) * 0.75,
            "check": ((x % 10 < 4) * 0.45 + (y % 10 < 4) * 0.45),
            "dots": (np.hypot(x % 8 - 4, (y + 4 * (x // 8 % 2)) % 8 - 4) < 1.5) * 1.0,
            "knit": (np.abs((x % 6) - 3) < 0.8) * 0.25 + (np.abs(((y + np.abs(x % 6 - 3)) % 3) - 1.5) < 0.5) * 0.12,
            "denim": (((x + y) % 1.6) < 0.7) * 0.12,
        }[self.weave][..., None]
        ground = np.array(self.colour) * (1 - share) + np.array(self.second) * share
        threads = rng.normal(0, 1, (WHOLE, WHOLE)).astype(np.float32)
        return np.asarray(ground * (1 + 0.35 * blurred(threads, 0.35)[..., None] * 0.12), np.float32)


class Canvas:
    """A square canvas, lit from the upper left."""

    def __init__(self, ground: Plane, seed: int) -> None:
        self.pixels = ground
        self.rng = np.random.default_rng(seed)

    def mask(self, path: str, mirrored: bool = True) -> Plane:
        plane = np.zeros((WHOLE, WHOLE), np.uint8)
        corners = [np.round(np.array(each) * UNIT * 16).astype(np.int32) for each in outline(path, mirrored)]
        cv2.fillPoly(plane, corners, 255, cv2.LINE_AA, 4)
        return plane / 255

    def shadow(self, mask: Plane, depth: float = 2.2) -> None:
        """Darken the area below the mask slightly."""
        move = np.array([[1, 0, depth * UNIT * 0.7], [0, 1, depth * UNIT]], np.float32)
        soft = blurred(np.asarray(cv2.warpAffine(mask, move, (WHOLE, WHOLE)), np.float64), depth)
        self.pixels = self.pixels * (1 - 0.42 * soft[..., None])

    def lay(self, mask: Plane, cloth: Cloth, *, depth: float = 2.2, round_: float = 3.0) -> Plane:
        """Cloth in the form of the mask, rounded at its edges, with its shadow."""
        self.shadow(mask, depth)
        soft = blurred(mask, round_)
        shift = round(round_ * UNIT * 0.7)
        lit = np.roll(soft, (shift, shift), (0, 1)) - np.roll(soft, (-shift, -shift), (0, 1))
        y, x = np.mgrid[:WHOLE, :WHOLE] / WHOLE
        light = (1.1 - 0.16 * x - 0.14 * y) * (0.74 + 0.26 * np.clip(2 * soft - 1, 0, 1) ** 0.6) - 0.3 * lit
        painted = cloth.paint(self.rng) * light[..., None]
        self.pixels = self.pixels * (1 - mask[..., None]) + painted * mask[..., None]
        return mask

    def line(
        self,
        path: str,
        width: float = 0.5,
        colour: Colour = INK,
        strength: float = 0.6,
        *,
        mirrored: bool = True,
        soft: float = 0.0,
        within: Plane | None = None,
        dashed: bool = False,
    ) -> None:
        """A stroke: a seam, or where soft, a fold."""
        plane = np.zeros((WHOLE, WHOLE), np.uint8)
        corners = outline(path, False)
        for each in corners + ([[(100 - x, y) for x, y in each] for each in corners] if mirrored else []):
            points = dashes(each) if dashed else [each]
            pieces = [np.round(np.array(piece) * UNIT * 16).astype(np.int32) for piece in points]
            cv2.polylines(plane, pieces, False, 255, max(1, round(width * UNIT)), cv2.LINE_AA, 4)
        drawn = blurred(plane / 255, soft) if soft else plane / 255
        share = strength * drawn * (1 if within is None else within)
        self.pixels = self.pixels * (1 - share[..., None]) + np.array(colour) * share[..., None]

    def fold(self, path: str, within: Plane, *, mirrored: bool = True, width: float = 1.6) -> None:
        """A dark crease with a bright ridge beside it."""
        self.line(path, width, (20, 18, 24), 0.34, mirrored=mirrored, soft=0.9, within=within)
        self.line(path, width * 0.6, WHITE, 0.16, mirrored=mirrored, soft=1.6, within=within)

    def dot(self, x: float, y: float, radius: float, colour: Colour) -> None:
        """A button."""
        plane = np.zeros((WHOLE, WHOLE), np.uint8)
        centre = (round(x * UNIT * 16), round(y * UNIT * 16))
        cv2.circle(plane, centre, round(radius * UNIT * 16), 255, -1, cv2.LINE_AA, 4)
        self.lay(plane / 255, Cloth(colour), depth=0.4, round_=0.5)


def dashes(line: list[Place], length: float = 1.1) -> list[list[Place]]:
    """Every other segment of a line, for dashes."""
    places = np.array(line)
    walked = np.concatenate([[0.0], np.hypot(*np.diff(places, axis=0).T).cumsum()])
    at = np.arange(0.0, walked[-1], length)
    points = np.stack([np.interp(at, walked, places[:, 0]), np.interp(at, walked, places[:, 1])], axis=1)
    return [[tuple(a), tuple(b)] for a, b in zip(points[::2], points[1::2], strict=False)]


def darker(colour: Colour, share: float = 0.72) -> Colour:
    red, green, blue = (round(each * share) for each in colour)
    return red, green, blue


# Ten kinds of clothes ------------------------------------------------------------------------------------------------


def t_shirt(on: Canvas, cloth: Cloth, other: bool) -> None:
    neck = "M 50 32 L 60.5 13.5" if other else "M 50 24 Q 59 23 61 13.5"
    back = "M 50 17 L 60.5 13 L 50 34 Z" if other else "M 50 16.5 Q 57 16 61 13 Q 59 25 50 25 Z"
    on.lay(on.mask(back), Cloth(darker(cloth.colour, 0.5)), depth=0.5)
    body = on.lay(
        on.mask(f"{neck} Q 67 15 72 17 Q 82 20 86 27 L 97 45 L 84.5 52 L 77 42 Q 76 62 78 87 Q 64 89.5 50 89.5 Z"),
        cloth,
    )
    for crease in ("M 76 44 Q 68 52 62 54", "M 77 58 Q 70 64 65 74", "M 73 86 Q 70 76 71 68", "M 84 33 Q 80 38 76 42"):
        on.fold(crease, body)
    on.line(f"{neck}", 2.4, darker(cloth.colour, 0.86), 0.9)
    on.line("M 72 17 Q 74 30 77 42", 0.4, darker(cloth.colour, 0.5), 0.6)
    on.line("M 77.6 84 Q 64 86.5 50 86.5", 0.35, darker(cloth.colour, 0.45), 0.7, dashed=True)
    on.line("M 95 42.5 L 83 49.5", 0.35, darker(cloth.colour, 0.45), 0.7, dashed=True)


def sleeves(on: Canvas, cloth: Cloth, end: float) -> None:
    arm = on.lay(on.mask(f"M 70 15.5 Q 80 19 83.5 30 L 95 {end} L 85.5 {end + 3.5} L 75 47 Q 70 30 70 15.5 Z"), cloth)
    for crease in ("M 84 38 Q 80 42 77 44", "M 88 52 Q 84 56 81 56", "M 91 64 Q 87 68 84 66"):
        on.fold(crease, arm)


def pullover(on: Canvas, cloth: Cloth, other: bool) -> None:
    rib = Cloth(darker(cloth.colour, 0.8), darker(cloth.colour, 0.55), "pinstripes")
    sleeves(on, cloth, 76)
    on.lay(on.mask("M 50 16.5 Q 58 16 61 13 Q 60 26 50 26 Z"), Cloth(darker(cloth.colour, 0.45)), depth=0.5)
    body = on.lay(
        on.mask("M 50 24 Q 59.5 23 62 13.5 Q 68 15 73 17.5 Q 75 32 77 46 Q 76 66 77.5 86 Q 64 88 50 88 Z"), cloth
    )
    for crease in ("M 76 48 Q 69 55 63 58", "M 77 64 Q 71 68 66 78", "M 72 84 Q 69 76 71 70"):
        on.fold(crease, body)
    on.lay(on.mask("M 50 86 Q 64 86 77.5 84 L 76 92 Q 64 94 50 94 Z"), rib, depth=0.4, round_=1.5)
    on.lay(on.mask("M 95.6 75 L 97.2 82 L 87.4 85.5 L 85 78.5 Z"), rib, depth=0.4, round_=1.2)
    top = (
        "M 50 25 Q 60 24 62.5 13 L 59.5 7 Q 50 10 50 10 Z"
        if other
        else "M 50 27 Q 61 26 64.5 14 L 60.5 12.5 Q 58.5 22 50 22.5 Z"
    )
    on.lay(on.mask(top), rib, depth=0.8, round_=1.5)


def shirt(on: Canvas, cloth: Cloth, other: bool) -> None:
    seam = darker(cloth.colour, 0.55)
    if other:
        arm = on.lay(on.mask("M 70 15.5 Q 81 19 85 28 L 95 46 L 83 53 L 75 46 Q 70 30 70 15.5 Z"), cloth)
        on.fold("M 86 38 Q 81 43 77 45", arm)
        on.line("M 93.5 43 L 81 50.5", 0.35, seam, 0.8)
    else:
        sleeves(on, cloth, 76)
        on.lay(on.mask("M 95.3 75 L 97 83 L 87.6 86.5 L 85 78.5 Z"), Cloth(cloth.colour), depth=0.5, round_=1.2)
        on.dot(93, 82.5, 0.8, WHITE)
    on.lay(on.mask("M 50 34 L 61 12 L 58 10 L 50 11 Z"), Cloth(darker(cloth.colour, 0.5)), depth=0.5)
    body = on.lay(
        on.mask("M 50 30 L 60 12 Q 68 14 73 17.5 Q 75 32 76.5 46 Q 75 66 77 86 Q 70 93 62 91 Q 55 89 50 91 Z"), cloth
    )
    for crease in ("M 75 48 Q 69 54 63 56", "M 76 62 Q 71 68 68 78", "M 56 50 Q 54 62 56 74", "M 71 88 Q 69 80 71 72"):
        on.fold(crease, body)
    on.line("M 53.2 30 L 53.2 90", 0.35, seam, 0.8)
    on.line("M 46.8 30 L 46.8 90", 0.35, seam, 0.8, mirrored=False)
    for y in range(36, 90, 11):
        on.dot(50, y, 1.1, WHITE if sum(cloth.colour) < 560 else darker(cloth.colour, 0.7))
    on.lay(on.mask("M 58 40 L 69 39.5 L 69 50 L 63.5 53 L 58 50.5 Z", False), cloth, depth=0.6, round_=0.6)
    on.lay(
        on.mask("M 56 31.5 L 50.3 29.5 L 57 12 Q 60 9.5 62.5 11.5 L 66 24 Z"),
        Cloth(cloth.colour),
        depth=1.2,
        round_=1.4,
    )
    on.line("M 64.6 23.5 L 56.3 29", 0.3, seam, 0.7, dashed=True)


def coat(on: Canvas, cloth: Cloth, other: bool) -> None:
    seam = darker(cloth.colour, 0.5)
    sleeves(on, cloth, 72)
    on.line("M 93.7 67 L 84 70.7", 0.4, seam, 0.8)
    on.lay(on.mask("M 50 48 L 62 11 L 58 8.5 L 50 9.5 Z"), Cloth(darker(cloth.colour, 0.45)), depth=0.5)
    body = on.lay(on.mask("M 50 44 L 61 10 Q 68 12 73 16.5 Q 75 32 76 46 Q 77 70 81 96 Q 66 98.5 50 98 Z"), cloth)
    for crease in ("M 75 48 Q 70 54 64 56", "M 78 74 Q 72 78 69 94", "M 60 66 Q 58 80 61 96", "M 70 58 Q 67 64 68 74"):
        on.fold(crease, body)
    on.line("M 50 44 L 50 98", 0.6, seam, 0.9, mirrored=False)
    on.lay(
        on.mask("M 66 32.5 L 50.4 47 L 57 9.5 Q 60.5 6.5 63.5 9 L 71 27 L 63 29 Z"),
        Cloth(darker(cloth.colour, 0.93)),
        depth=1.4,
        round_=1.6,
    )
    on.line("M 71 27 L 63 29", 0.4, seam, 0.9)
    on.lay(on.mask("M 60.5 66 L 73.5 64 L 74 68 L 61 70 Z"), Cloth(darker(cloth.colour, 0.9)), depth=0.9, round_=0.7)
    if other:
        on.lay(
            on.mask("M 50 53 Q 64 53.5 77 52 L 77.3 57 Q 64 58.6 50 58.3 Z"),
            Cloth(darker(cloth.colour, 0.8)),
            depth=1.2,
            round_=1.2,
        )
        buckle = "M 45 51.8 L 55 51.8 L 55 59.6 L 45 59.6 Z M 47 53.6 L 47 57.8 L 53 57.8 L 53 53.6 Z"
        on.lay(on.mask(buckle, False), Cloth((186, 150, 92)), depth=0.5, round_=0.4)
    for y in (50, 62, 74) if not other else (66, 78):
        on.dot(44.5, y, 1.5, INK)
        on.dot(55.5, y, 1.5, INK)


def dress(on: Canvas, cloth: Cloth, other: bool) -> None:
    if other:
        cap = on.lay(on.mask("M 62 12 Q 72 13 78 25 L 69 31 Q 64 22 62 12 Z"), cloth)
        on.fold("M 72 20 Q 69 24 67 27", cap)
    top = "M 50 22 Q 57 21 58.5 9 L 63 9 Q 65 20 69 27" if not other else "M 50 21 Q 58 20 61 11 L 64 12 Q 66 22 69 29"
    back = (
        "M 50 14 Q 56 14 59 10 L 61 11 Q 58 24 50 24 Z" if other else "M 50 18 Q 56 17 58.5 9 L 60 10 Q 58 24 50 24 Z"
    )
    on.lay(on.mask(back), Cloth(darker(cloth.colour, 0.5)), depth=0.4)
    body = on.lay(on.mask(f"{top} Q 63 36 62 46 Q 70 62 83 91 Q 67 97 50 96.5 Z"), cloth)
    for crease in (
        "M 60 49 Q 66 66 75 93",
        "M 55 50 Q 58 72 62 95",
        "M 51 50 Q 50.5 74 51.5 96",
        "M 66 29 Q 62 36 61 44",
    ):
        on.fold(crease, body, width=2.0)
    on.lay(
        on.mask("M 50 45 Q 57 45 62.2 44.2 L 62.4 48.6 Q 57 49.6 50 49.6 Z"),
        Cloth(darker(cloth.colour, 0.62)),
        depth=0.6,
        round_=1.0,
    )
    on.line(top.rpartition(" Q")[0], 0.9, darker(cloth.colour, 0.8), 0.9)
    on.line("M 82 88.5 Q 67 94.4 50 94", 0.35, darker(cloth.colour, 0.5), 0.7, dashed=True)


def trouser(on: Canvas, cloth: Cloth, other: bool) -> None:
    hem = 62.0 if other else 66.5
    seam = (205, 150, 80) if cloth.weave == "denim" else darker(cloth.colour, 0.5)
    legs = on.lay(
        on.mask(f"M 50 9 L 66 8 Q 70 28 {hem + 4} 52 L {hem + 1.5} 95 Q 60 97 53.5 95.5 L 51.5 44 L 50 40 Z"), cloth
    )
    for crease in (
        "M 66 38 Q 58 42 53 41",
        "M 68 44 Q 60 50 54 52",
        "M 66 64 Q 61 67 57 65",
        f"M {hem} 84 Q 60 88 55 86",
    ):
        on.fold(crease, legs)
    on.line(f"M 60 22 Q 60.5 60 {hem - 5.5} 95", 0.8, darker(cloth.colour, 0.6), 0.5, soft=0.3, within=legs)
    on.line("M 67.5 17 Q 61 18 58.5 13.5", 0.4, seam, 0.9)
    on.line("M 50 14 L 50 40", 0.4, darker(cloth.colour, 0.45), 0.9, mirrored=False)
    on.line("M 50 33 Q 54.5 31 54.5 14", 0.35, seam, 0.9, mirrored=False, dashed=True)
    on.lay(
        on.mask("M 50 8 L 66 7 L 67 13 L 50 14 Z"),
        Cloth(darker(cloth.colour, 0.88), weave=cloth.weave),
        depth=0.7,
        round_=0.9,
    )
    for x in (58.5, 64.5):
        on.line(f"M {x} 6.8 L {x + 0.3} 14", 1.1, darker(cloth.colour, 0.7), 0.95)
    on.line(f"M {hem + 1.2} 92.5 Q 60 94 53.4 93", 0.35, seam, 0.8, dashed=True)
    on.dot(50, 10.8, 1.2, STEEL)


def sandal(on: Canvas, cloth: Cloth, other: bool) -> None:
    heel = 86 if other else 78
    sole = f"M 5 73 Q 4 79 11 80 L 60 {80 if other else 79} Q 66 80 70 {heel - 4} Q 80 {heel} 95 {heel} "
    sole += "L 94 56 Q 80 57 66 66 Q 44 76 24 72 Q 12 69 5 73 Z"
    on.lay(on.mask(sole, False), Cloth((214, 178, 128) if other else darker(cloth.colour, 0.55)), depth=1.8, round_=1.8)
    bed = "M 5 71.5 Q 12 67 24 70 Q 44 74 66 63.5 Q 80 54 94.5 53.5 "
    bed += "L 94.5 57 Q 80 58 66 67 Q 44 77 24 73 Q 12 70 5 74.5 Z"
    on.lay(on.mask(bed, False), Cloth((168, 122, 78)), depth=0.4, round_=0.8)
    for strap in (
        "M 15 70 Q 17 50 34 48 Q 42 50 45 71 L 33 73 Q 32 60 27 60 Q 24 62 24 71 Z",
        "M 57 67 Q 60 44 78 33 L 84 37 Q 69 48 67 63 Z",
        "M 74 34 Q 86 27 95 36 Q 97 46 94.5 55 L 90 55 Q 92 44 89 39 Q 84 35 78 41 Z",
    ):
        on.lay(on.mask(strap, False), cloth, depth=0.9, round_=1.4)
    on.line("M 40 54 Q 52 44 63 50", 3.0, cloth.colour, 1.0, mirrored=False)
    on.lay(
        on.mask("M 75 34 L 80 31 L 84 36 L 79 40 Z M 77 35 L 79.5 37.8 L 82 35.6 L 79.7 33 Z", False),
        Cloth((206, 184, 120)),
        depth=0.5,
        round_=0.4,
    )
    on.line("M 8 77 Q 40 78.5 62 76", 0.4, INK, 0.35, mirrored=False)


def sneaker(on: Canvas, cloth: Cloth, other: bool) -> None:
    collar = 30 if other else 41
    on.lay(
        on.mask(f"M 58 44 Q 74 {collar + 2} 88 {collar} L 90 50 L 60 56 Z", False),
        Cloth(darker(cloth.colour, 0.4)),
        depth=0.4,
    )
    upper = f"M 5 69 Q 6 58 22 55 Q 38 52 52 38 Q 56 {collar - 3} 61 {collar - 1} Q 66 48 75 47 "
    upper += f"Q 84 45 88 {collar - 1} Q 93 {collar + 4} 93 56 Q 95 64 95 72 L 6 74 Z"
    body = on.lay(on.mask(upper, False), cloth, depth=1.6, round_=3.0)
    on.fold("M 30 57 Q 34 62 33 70", body, mirrored=False)
    on.lay(on.mask("M 5 70 Q 6 58 21 55.5 Q 28 62 26 73 L 6 73.5 Z", False), Cloth(cloth.second), depth=0.5, round_=2.0)
    on.lay(
        on.mask("M 80 50 Q 90 49 93 56 Q 95 64 95 72 L 78 72.5 Q 82 60 80 50 Z", False),
        Cloth(cloth.second),
        depth=0.5,
        round_=1.6,
    )
    on.lay(
        on.mask("M 44 72 Q 54 66 62 54 L 68 54 Q 62 66 54 72 Z M 56 72 Q 65 66 72 53 L 77 52.5 Q 72 64 65 72 Z", False),
        Cloth(cloth.second),
        depth=0.3,
        round_=0.8,
    )
    on.lay(
        on.mask("M 27 55 Q 42 51 53 38 L 60 43 Q 50 56 36 61 Z", False),
        Cloth(darker(cloth.colour, 0.82)),
        depth=0.4,
        round_=1.2,
    )
    for at in range(5):
        x, y = 33 + 5.6 * at, 54.6 - 3.3 * at - 0.25 * at * at
        on.line(f"M {x - 1.5} {y - 1.8} L {x + 4.5} {y + 4.6}", 1.7, WHITE, 1.0, mirrored=False)
    on.lay(
        on.mask("M 3.5 70 Q 3 80 12 81 L 90 81 Q 97 80.5 97 70 Q 80 74 60 72.5 Q 30 74 3.5 70 Z", False),
        Cloth(WHITE),
        depth=1.8,
        round_=1.6,
    )
    on.line("M 5 77.6 L 96 77.6", 0.7, darker(cloth.colour, 0.8), 0.8, mirrored=False)
    on.line("M 7 81 L 94 81", 1.2, (90, 86, 82), 0.7, mirrored=False)
    on.line("M 60 50 Q 52 63 34 66", 0.35, darker(cloth.colour, 0.5), 0.8, mirrored=False, dashed=True)


def bag(on: Canvas, cloth: Cloth, other: bool) -> None:
    strap = Cloth(darker(cloth.colour, 0.7))
    if other:
        on.lay(on.mask("M 50 6 C 68 6 71 24 71 42 L 66.5 42 C 66.5 26 64 10.5 50 10.5 Z"), strap, depth=1.2, round_=1.0)
        body = on.lay(on.mask("M 50 36 L 82 35 Q 84 62 87 91 Q 68 94 50 94 Z"), cloth)
        for crease in ("M 76 40 Q 74 60 78 90", "M 66 48 Q 62 66 64 88"):
            on.fold(crease, body)
        on.line("M 81.5 39.5 L 50 40.5", 0.4, darker(cloth.colour, 0.5), 0.8, dashed=True)
        on.lay(on.mask("M 50 58 L 62 58 L 62 72 L 50 72 Z"), Cloth(cloth.second), depth=0.6, round_=0.8)
        for y in (62, 65, 68):
            on.line(f"M 54 {y} L 50 {y}", 0.6, darker(cloth.second, 0.6), 0.8)
        on.dot(68.7, 42, 1.3, STEEL)
        on.dot(31.3, 42, 1.3, STEEL)
        return
    on.lay(on.mask("M 50 12 C 66 12 70 26 71 42 L 66 42 C 65 28 62 17 50 17 Z"), strap, depth=1.2, round_=1.0)
    on.lay(on.mask("M 50 37 L 84 37 Q 90 38 91 46 L 94 80 Q 94 88 86 88.5 L 50 88.5 Z"), cloth)
    flap = on.lay(
        on.mask("M 50 36 L 85 36 Q 90 37 89 44 Q 86 60 74 64 Q 62 67 50 67 Z"),
        Cloth(darker(cloth.colour, 0.94)),
        depth=1.8,
        round_=2.4,
    )
    on.fold("M 80 42 Q 78 52 72 58", flap)
    on.line("M 87.5 42 Q 84.5 58 73.5 62 Q 62 65 50 65", 0.35, cloth.second, 0.8, dashed=True)
    on.lay(on.mask("M 50 60 L 56 60 L 56 73 Q 53 75 50 75 Z"), strap, depth=0.7, round_=0.9)
    on.lay(
        on.mask("M 50 65.6 L 57.6 65.6 L 57.6 71.4 L 50 71.4 Z M 50 67.2 L 50 69.8 L 55.6 69.8 L 55.6 67.2 Z"),
        Cloth((206, 178, 104)),
        depth=0.5,
        round_=0.4,
    )
    on.line("M 92 84 Q 91.5 86.3 86 86.3 L 50 86.3", 0.35, cloth.second, 0.7, dashed=True)


def boot(on: Canvas, cloth: Cloth, other: bool) -> None:
    on.lay(on.mask("M 50 12 Q 68 8 84 12 L 83 20 L 52 21 Z", False), Cloth(darker(cloth.colour, 0.4)), depth=0.3)
    shaft = "M 49.5 13 Q 66 18 85 12.5 Q 87 34 85.5 50 Q 88 66 89.5 82 "
    shaft += "L 7 82 Q 5 69 19 65.5 Q 38 61 47 46 Q 50 30 49.5 13 Z"
    body = on.lay(on.mask(shaft, False), cloth, depth=1.8, round_=3.4)
    for crease in ("M 48 48 Q 56 54 66 53", "M 44 54 Q 54 61 66 59", "M 84 50 Q 76 56 72 66", "M 24 66 Q 30 72 29 81"):
        on.fold(crease, body, mirrored=False)
    if other:
        on.lay(
            on.mask("M 60 15.5 Q 67 17 76 15 Q 75 38 71 52 Q 66 53 63 50 Q 60 34 60 15.5 Z", False),
            Cloth(darker(cloth.colour, 0.5), darker(cloth.colour, 0.3), "pinstripes"),
            depth=0.3,
            round_=0.8,
        )
        on.lay(on.mask("M 80.5 6 L 84.5 6 L 84.5 16 L 80.5 16 Z", False), Cloth(cloth.second), depth=0.5, round_=0.6)
    else:
        for at in range(6):
            x, y = 50.5 - 0.15 * at * at, 18 + 6.4 * at
            on.line(f"M {x} {y} L {x + 9} {y + 3.4}", 1.5, cloth.second, 1.0, mirrored=False)
            on.dot(x + 9.6, y + 3.8, 0.9, STEEL)
        on.line("M 61 17 Q 61 40 58 54", 0.4, darker(cloth.colour, 0.45), 0.8, mirrored=False, dashed=True)
    on.line("M 84 20 Q 66 24 50 19", 0.35, darker(cloth.colour, 0.45), 0.7, mirrored=False, dashed=True)
    on.lay(
        on.mask("M 5.5 80 L 90 80 L 91 94 L 70 94 L 68 87.5 Q 40 89 10 88 Q 4.5 87 5.5 80 Z", False),
        Cloth((58, 46, 40)),
        depth=1.8,
        round_=1.2,
    )
    on.line("M 7 82 L 89.5 82", 0.6, (214, 180, 120), 0.9, mirrored=False, dashed=True)


# Forty of them -------------------------------------------------------------------------------------------------------

Draw = Callable[[Canvas, Cloth, bool], None]
RED, BLUE, NAVY, GREEN, MUSTARD = (196, 58, 52), (84, 134, 190), (40, 54, 92), (74, 120, 92), (214, 164, 58)
PINK, PLUM, TAN, BROWN, BLACK, SKY = (
    (226, 140, 152),
    (112, 62, 104),
    (188, 146, 98),
    (116, 76, 50),
    (52, 50, 54),
    (160, 198, 222),
)
SHOP, SAND, SAGE, ROSE, MIST = (240, 239, 236), (232, 219, 198), (203, 214, 200), (238, 214, 210), (206, 218, 228)
KINDS: dict[str, tuple[Draw, tuple[tuple[Cloth, bool, Colour | str], ...]]] = {
    "T-shirt/top": (
        t_shirt,
        (
            (Cloth(RED), False, SHOP),
            (Cloth(WHITE, NAVY, "stripes"), False, MIST),
            (Cloth(MUSTARD), True, "table"),
        ),
    ),
    "Trouser": (
        trouser,
        (
            (Cloth((70, 96, 142), (150, 172, 204), "denim"), False, SHOP),
            (Cloth(TAN), True, SAGE),
            (Cloth(BLACK), True, SAND),
        ),
    ),
    "Pullover": (
        pullover,
        (
            (Cloth(GREEN, WHITE, "knit"), False, SHOP),
            (Cloth(CREAM, BROWN, "knit"), True, "table"),
            (Cloth(NAVY, RED, "stripes"), False, ROSE),
        ),
    ),
    "Dress": (
        dress,
        (
            (Cloth(BLUE, WHITE, "dots"), False, SHOP),
            (Cloth(PLUM), True, ROSE),
            (Cloth(PINK, WHITE, "pinstripes"), False, MIST),
        ),
    ),
    "Coat": (
        coat,
        (
            (Cloth(TAN), True, SHOP),
            (Cloth(NAVY), False, SAND),
            (Cloth((126, 128, 134), (96, 98, 104), "check"), False, SAGE),
        ),
    ),
    "Sandal": (sandal, ((Cloth(BROWN), False, SHOP), (Cloth(RED), True, SAND), (Cloth(BLACK), False, "table"))),
    "Shirt": (
        shirt,
        (
            (Cloth(SKY, WHITE, "pinstripes"), False, SHOP),
            (Cloth(RED, NAVY, "check"), False, SAGE),
            (Cloth(WHITE), True, MIST),
        ),
    ),
    "Sneaker": (
        sneaker,
        (
            (Cloth(BLUE, NAVY), False, SHOP),
            (Cloth(WHITE, RED), False, "table"),
            (Cloth(BLACK, (206, 206, 206)), True, ROSE),
        ),
    ),
    "Bag": (
        bag,
        ((Cloth(BROWN, CREAM), False, SHOP), (Cloth(CREAM, GREEN), True, MIST), (Cloth(PLUM, CREAM), False, SAND)),
    ),
    "Ankle boot": (
        boot,
        ((Cloth(BROWN, CREAM), False, SHOP), (Cloth(BLACK, TAN), True, SAGE), (Cloth(TAN, RED), False, MIST)),
    ),
}


def ground(kind: Colour | str, rng: np.random.Generator) -> Plane:
    """A wall that the light falls on, or a wooden table."""
    y, x = np.mgrid[:WHOLE, :WHOLE] / WHOLE
    light = (1.04 - 0.1 * np.hypot(x - 0.35, y - 0.3))[..., None]
    if kind != "table":
        return np.asarray(np.array(kind) * light, np.float32)
    plank = np.floor(y * 5).astype(int)
    tone = rng.uniform(0.86, 1.05, 5)[plank] * np.where((y * 5) % 1 < 0.018, 0.55, 1.0)
    grain = cv2.GaussianBlur(rng.normal(0, 1, (WHOLE, WHOLE)).astype(np.float32), (0, 0), 40, sigmaY=1.6) * 1.1
    return np.asarray(np.array((196, 160, 122)) * (light * (tone + grain)[..., None]), np.float32)


def drawn(draw: Draw, cloth: Cloth, other: bool, kind: Colour | str, seed: int) -> NDArray[np.uint8]:
    """One picture, in colour."""
    rng = np.random.default_rng(seed)
    canvas = Canvas(ground(kind, rng), seed)
    draw(canvas, cloth, other)
    whole = np.clip(canvas.pixels, 0, 255).astype(np.uint8)
    return np.asarray(cv2.resize(whole, (SIDE, SIDE), interpolation=cv2.INTER_AREA))


def main() -> None:
    """Write the forty files and the index of all samples."""
    grey = [{"file": f"{number}.png", "truth": truth} for number, truth in enumerate(PHOTOS, 1)]
    colour = []
    for kind, (draw, variants) in KINDS.items():
        name = kind.partition("/")[0].lower().replace(" ", "-")
        for number, (cloth, other, behind) in enumerate(variants, 1):
            colour.append({"file": f"{name}-{number}.jpg", "truth": kind})
            picture = Image.fromarray(drawn(draw, cloth, other, behind, number))
            picture.save(FOLDER / colour[-1]["file"], quality=QUALITY, optimize=True, progressive=True)
        first, other, _ = variants[0]
        grey.append({"file": f"{name}.png", "truth": kind})
        picture = Image.fromarray(drawn(draw, Cloth(LIGHT, MIDDLE, first.weave), other, (0, 0, 0), 4)).convert("L")
        picture.resize((28, 28), Image.Resampling.BOX).save(FOLDER / grey[-1]["file"], optimize=True)
    colour.sort(key=lambda each: each["file"][-5])  # what one sees first is of all kinds
    groups = [{"caption": "Small and grey, like the pictures it learned from", "samples": grey}]
    groups.append({"caption": "In colour, as in a shop: it never saw such pictures", "samples": colour})
    index = {"labels": sorted(KINDS), "groups": groups}
    (FOLDER / "index.json").write_text(json.dumps(index, indent=1, ensure_ascii=False) + "\n", "utf-8")


if __name__ == "__main__":
    main()
