"""The built-in families of views, with their parameters, adjective and drawing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Annotated, ClassVar, Literal

import cv2
import numpy as np
from numpy.typing import NDArray

from looktwice.views.base import Between, Floats, LabelOrder, Phrasing, Pixels, Question, View, Worded, register
from looktwice.views.rendering import (
    IN_PAIRS,
    LONGEST,
    Maps,
    Motion,
    Moving,
    Piece,
    Points,
    Sampled,
    piece,
    read_through,
    words,
)

# Random views ------------------------------------------------------------------------------------------------------


@register
@dataclass(frozen=True)
class Gaussian(View):
    """Normal noise on every channel of every pixel, with standard deviation sigma on a scale where white is 1."""

    random: ClassVar[bool] = True
    adjective = "noisy"
    sigma: Annotated[float, Between(0, 1)]

    def draw(self, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
        levels, together = _normal_levels(self.sigma), max(1, 2 * LONGEST // picture.size)
        for first in range(0, len(questions), together):
            bits = words(questions[first : first + together], part, -(-picture.size // 4)).view(np.uint16)
            for noise, target in zip(levels.take(bits), out[first:], strict=False):
                cv2.add(picture, noise[: picture.size].reshape(picture.shape), dst=target, dtype=cv2.CV_8U)


@lru_cache(maxsize=32)
def _normal_levels(sigma: float) -> NDArray[np.int16]:
    """65,536 equally likely levels of noise, up to 4.3 sigma; a lookup is much faster than drawing normal numbers.

    Pixels are whole numbers, so rounding the noise here rounds the sum.
    """
    from scipy.special import ndtri

    levels = 255 * sigma * ndtri((np.arange(65_536) + 0.5) / 65_536)
    return np.rint(levels).astype(np.int16)


@register
@dataclass(frozen=True)
class Rotation(Sampled, Moving):
    """The picture rotated by a random angle, uniform between -degrees and +degrees."""

    random: ClassVar[bool] = True
    adjective = "turned"
    degrees: Annotated[float, Between(0, 180)]

    def motion(self, u: Floats, /) -> Motion:
        return Motion(angle=_spread(self.degrees, u[:, 0]))


@register
@dataclass(frozen=True)
class Elastic(Sampled):
    """Elastic deformation by up to alpha/2 pixels: uniform random fields, smoothed by a Gaussian of sigma pixels."""

    random: ClassVar[bool] = True
    adjective = "warped"
    alpha: Annotated[float, Between(0, 1000)]
    sigma: Annotated[float, Between(0.1, 100)]

    def draw(self, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
        maps = Maps(0, self._pieces(part, questions, *picture.shape[:2]))
        read_through(maps, picture, (self.border, self.interpolation), out)

    def _pieces(self, part: int, questions: Sequence[Question], height: int, width: int) -> Iterator[Piece]:
        pixels = height * width
        together = max(1, LONGEST // pixels)
        for first in range(0, len(questions), together):
            x, y = self._points(part, questions[first : first + together], height, width)
            for start in range(0, x.size, LONGEST):
                some = slice(start, start + LONGEST)
                yield piece(first * pixels + start, x[:, some], y[:, some], 0, self.interpolation == "nearest")

    def _points(self, part: int, questions: Sequence[Question], height: int, width: int) -> Points:
        """(2, 1, n·height·width): the x and y coordinates of the source points for n draws."""
        bits = words(questions, part, -(-height * width // 2)).view(np.int16)
        noise = bits[:, : 2 * height * width].reshape(-1, 2, height, width)
        points = np.empty((2, len(questions), height, width), np.float32)
        kernel, scaled = _kernels(self.alpha, self.sigma)
        for draw, axis in np.ndindex(noise.shape[:2]):
            field, target = noise[draw, axis], points[axis, draw]
            cv2.sepFilter2D(field, cv2.CV_32F, kernel, scaled, dst=target, borderType=cv2.BORDER_REFLECT_101)
        points[0] += np.arange(width, dtype=np.float32)
        points[1] += np.arange(height, dtype=np.float32)[:, None]
        return points.reshape(2, 1, -1)


@lru_cache(maxsize=32)
def _kernels(alpha: float, sigma: float) -> tuple[Points, Points]:
    """A Gaussian truncated at 4 sigma, and the same kernel scaled so that the 16-bit noise becomes ±alpha/2 pixels."""
    kernel = np.asarray(cv2.getGaussianKernel(int(8 * sigma + 1) | 1, sigma, cv2.CV_32F), np.float32)
    return kernel, kernel * np.float32(alpha / 2 / 32_768)


@register
@dataclass(frozen=True)
class Affine(Sampled, Moving):
    """Rotation by up to ±degrees, shift by up to ±translate of a side, and scaling by 1 ± scale, at least 0.1."""

    random: ClassVar[bool] = True
    adjective = "moved"
    degrees: Annotated[float, Between(0, 180)]
    translate: Annotated[float, Between(0, 1)]
    scale: Annotated[float, Between(0, 1)]

    def motion(self, u: Floats, /) -> Motion:
        return Motion(
            angle=_spread(self.degrees, u[:, 0]),
            right=_spread(self.translate, u[:, 1]),
            down=_spread(self.translate, u[:, 2]),
            factor=np.maximum(0.1, 1 + _spread(self.scale, u[:, 3])),
        )


def _spread(limit: float, u: Floats) -> Floats:
    return 2 * limit * u - limit


# Fixed views -------------------------------------------------------------------------------------------------------


@register
@dataclass(frozen=True)
class Again(View):
    """The unchanged picture, queried again: a nondeterministic classifier may answer differently."""

    adjective = "repeated"

    def draw(self, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
        out[:] = picture


@register
@dataclass(frozen=True)
class Mirror(Moving):
    """The picture mirrored left to right."""

    adjective = "mirrored"

    def motion(self, _: Floats, /) -> Motion:
        return Motion(mirrored=True)


@register
@dataclass(frozen=True)
class Turn(Sampled, Moving):
    """The picture rotated about its centre, counter-clockwise."""

    degrees: Annotated[float, Between(-180, 180)]

    @property
    def adjective(self) -> str:
        return "left-turned" if self.degrees > 0 else "right-turned"

    def motion(self, _: Floats, /) -> Motion:
        return Motion(angle=self.degrees)


@register
@dataclass(frozen=True)
class Shift(Sampled, Moving):
    """The picture shifted by fractions of its width and height."""

    right: Annotated[float, Between(-1, 1)]
    down: Annotated[float, Between(-1, 1)]

    @property
    def adjective(self) -> str:
        if self.right and self.down:
            return "shifted"
        if self.right:
            return "right-shifted" if self.right > 0 else "left-shifted"
        return "lowered" if self.down > 0 else "raised"

    def motion(self, _: Floats, /) -> Motion:
        return Motion(right=self.right, down=self.down)


@register
@dataclass(frozen=True)
class Zoom(Sampled, Moving):
    """The picture enlarged about its centre, or shrunk by a factor below 1."""

    factor: Annotated[float, Between(0.1, 10)]

    @property
    def adjective(self) -> str:
        return "enlarged" if self.factor > 1 else "shrunken"

    def motion(self, _: Floats, /) -> Motion:
        return Motion(factor=self.factor)


@register
@dataclass(frozen=True)
class Tone(View):
    """The colours changed: first mixed with grey, then contrast about mid-grey and brightness, then a colour cast."""

    brightness: Annotated[float, Between(-1, 1)] = 0.0
    """The value added to each channel, where white is 1."""
    contrast: Annotated[float, Between(0, 4)] = 1.0
    grey: Annotated[float, Between(0, 1)] = 0.0
    """The share of the colour that is removed."""
    cast: Annotated[float, Between(-1, 1)] = 0.0
    """Red is increased and blue is reduced by this share: positive values are warmer, negative values colder."""

    @property
    def adjective(self) -> str:
        words = [
            ("brighter", self.brightness > 0),
            ("darker", self.brightness < 0),
            ("starker", self.contrast > 1),
            ("paler", self.contrast < 1),
            ("greyer", self.grey > 0),
            ("warmer", self.cast > 0),
            ("colder", self.cast < 0),
        ]
        return " and ".join(word for word, true in words if true) or "unchanged"

    def draw(self, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
        out[:] = cv2.transform(picture, self._matrix)

    @cached_property
    def _matrix(self) -> Floats:
        """(3, 4): the matrix that maps (red, green, blue, 1) to the new red, green and blue."""
        gains = np.array([1 + self.cast, 1, 1 - self.cast])[:, None]
        grey = np.tile([0.299, 0.587, 0.114], (3, 1))
        mix = self.contrast * ((1 - self.grey) * np.eye(3) + self.grey * grey)
        lift = np.full((3, 1), 255 * (0.5 - 0.5 * self.contrast + self.brightness))
        return np.asarray(gains * np.hstack([mix, lift]), np.float64)


@register
@dataclass(frozen=True)
class Blur(View):
    """The picture smoothed by a Gaussian of sigma pixels."""

    adjective = "blurred"
    sigma: Annotated[float, Between(0.1, 100)]

    def draw(self, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
        taps = int(8 * self.sigma + 1) | 1
        out[:] = cv2.GaussianBlur(picture, (taps, taps), self.sigma, borderType=cv2.BORDER_REFLECT_101)


@register
@dataclass(frozen=True)
class Crop(Sampled, Moving):
    """A part of the picture, enlarged to its full size; a share of 0.6 is 60 % of the width and of the height.

    0 and 1 for `across` are the left and the right edge; 0 and 1 for `down` are the top and the bottom edge.
    """

    across: Annotated[float, Between(0, 1)]
    down: Annotated[float, Between(0, 1)]
    share: Annotated[float, Between(0.1, 1)]

    @property
    def adjective(self) -> str:
        height = "" if self.down == 0.5 else "upper-" if self.down < 0.5 else "lower-"
        side = "" if self.across == 0.5 else "left-" if self.across < 0.5 else "right-"
        return f"{height}{side}cropped"

    def motion(self, _: Floats, /) -> Motion:
        beyond = (1 - self.share) / self.share
        return Motion(factor=1 / self.share, right=(0.5 - self.across) * beyond, down=(0.5 - self.down) * beyond)


@register
@dataclass(frozen=True)
class Perspective(Sampled):
    """The picture in perspective: positive values move the right and lower edges closer, negative ones away."""

    adjective = "tilted"
    across: Annotated[float, Between(-0.45, 0.45)]
    down: Annotated[float, Between(-0.45, 0.45)]

    def draw(self, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
        pieces = self._pieces(*picture.shape[:2])
        read_through(Maps(0, pieces), picture, (self.border, self.interpolation), out[:1])
        out[1:] = out[0]

    def _pieces(self, height: int, width: int) -> Iterator[Piece]:
        """Source positions: pixel (u, v), from -1 to 1 about the centre, shows (u, v) / (1 + across·u + down·v)."""
        x, y = np.arange(width) - (width - 1) / 2, np.arange(height)[:, None] - (height - 1) / 2
        rows = max(1, LONGEST // width)
        for row in range(0, height, rows):
            below = y[row : row + rows]
            depth = 1 + (2 * self.across / width) * x + (2 * self.down / height) * below
            pairs = np.stack([x / depth + (width - 1) / 2, below / depth + (height - 1) / 2], axis=2, dtype=np.float32)
            yield piece(row * width, pairs.reshape(1, -1, 2), IN_PAIRS, 0, self.interpolation == "nearest")


@register
@dataclass(frozen=True)
class Occlude(View):
    """A part of the picture covered by mid-grey or by its mean colour.

    The share applies to both sides in the centre, to one side starting at an edge, or to the sides of each cell of a
    4 × 4 grid.
    """

    adjective = "partly covered"
    share: Annotated[float, Between(0, 1)]
    where: Literal["centre", "left", "right", "top", "bottom", "grid"] = "centre"
    fill: Literal["grey", "mean"] = "grey"

    def draw(self, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
        height, width, _ = picture.shape
        pixels = height * width
        total = picture.sum(axis=(0, 1), dtype=np.int64)
        out[:] = picture
        out[:, self._covered(height, width)] = 128 if self.fill == "grey" else (total + pixels // 2) // pixels

    def _covered(self, height: int, width: int) -> NDArray[np.bool_]:
        """(height, width): whether each pixel is covered, decided by its centre."""
        y, x = ((np.arange(side) + 0.5) / side for side in (height, width))
        from_edge = {"left": x, "right": 1 - x, "top": y[:, None], "bottom": 1 - y[:, None]}
        if self.where in from_edge:
            return np.broadcast_to(from_edge[self.where] < self.share, (height, width))
        if self.where == "grid":
            y, x = 4 * y % 1, 4 * x % 1
        down, across = (np.abs(2 * place - 1) < self.share for place in (y, x))
        return np.asarray(down[:, None] & across)


@register
@dataclass(frozen=True)
class Posterise(View):
    """The picture posterised: every channel is rounded to `levels` values from black to white."""

    adjective = "posterised"
    levels: Annotated[float, Between(2, 256, whole=True)]

    def draw(self, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
        steps = int(self.levels) - 1
        level = (np.arange(256) * steps + 127) // 255
        out[:] = ((level * 255 + steps // 2) // steps).astype(np.uint8)[picture]


@register
@dataclass(frozen=True)
class Resample(View):
    """The picture scaled down to a fraction of its sides and up again, with linear interpolation."""

    adjective = "coarser"
    share: Annotated[float, Between(0.02, 1)]

    def draw(self, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
        height, width, _ = picture.shape
        fewer = max(1, round(self.share * width)), max(1, round(self.share * height))
        small = cv2.resize(picture, fewer, interpolation=cv2.INTER_LINEAR_EXACT)
        out[:] = cv2.resize(small, (width, height), interpolation=cv2.INTER_LINEAR_EXACT)


@register
@dataclass(frozen=True)
class Jpeg(View):
    """The picture after JPEG compression (4:2:0) at the given quality.

    The pixels are computed by libjpeg-turbo's accurate integer transform, which is included in OpenCV's wheels.
    """

    adjective = "compressed"
    quality: Annotated[float, Between(1, 100, whole=True)]

    def draw(self, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
        colours = cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420
        settings = [cv2.IMWRITE_JPEG_QUALITY, int(self.quality), cv2.IMWRITE_JPEG_SAMPLING_FACTOR, colours]
        _, file = cv2.imencode(".jpg", picture[:, :, ::-1], settings)
        out[:] = np.asarray(cv2.imdecode(file, cv2.IMREAD_COLOR), np.uint8)[:, :, ::-1]


# Views of the question -----------------------------------------------------------------------------------------------


@register
@dataclass(frozen=True)
class Order(Worded):
    """The labels in a different order, which depends on the picture: `order:1`, `order:2` …"""

    adjective = "reordered"
    number: Annotated[float, Between(1, 99, whole=True)]

    def phrased(self, asked: Phrasing, digest: str) -> Phrasing:
        return replace(asked, order=LabelOrder(digest, int(self.number)))


@register
@dataclass(frozen=True)
class Wording(Worded):
    """A paraphrase of the default prompt, or a line from the file of wordings in the description."""

    adjective = "reworded"
    number: Annotated[float, Between(1, 99, whole=True)]

    def phrased(self, asked: Phrasing, digest: str) -> Phrasing:
        return replace(asked, wording=int(self.number))


@register
@dataclass(frozen=True)
class Ranked(Worded):
    """Ask for the five most probable labels, ranked."""

    adjective = "ranked"

    def phrased(self, asked: Phrasing, digest: str) -> Phrasing:
        return replace(asked, ranked=True)


@register
@dataclass(frozen=True)
class Describe(Worded):
    """Ask for a description of the picture first, and then for its label."""

    adjective = "described"

    def phrased(self, asked: Phrasing, digest: str) -> Phrasing:
        return replace(asked, describe=True)
