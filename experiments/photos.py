"""What the encoding and the working size of photos change: how often a label moves, and how often it is right.

    python -m experiments.photos [PHOTOS]      results/photos.csv, a line for each way to show the photos

*Encoding*: the labels of photos as PNG beside those of the same photos as JPEG, at their own size and enlarged to
1,024 px, and beside those of photos of 1,024 px that are scaled to the working size. *Margin*: how many times its input
the pictures measure that a model's views are drawn from. The photos of ../shared have a shorter side of 256 px, so the
model gets them at half of what it takes, enlarged again: it then has as much detail to lose as in a photo of 512 px.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import cv2
import numpy as np
from numpy.typing import NDArray

from experiments import script
from experiments.collected import MODELS
from experiments.writing import write
from looktwice.classifiers.onnx import OnnxClassifier
from looktwice.classifiers.registry import connect
from looktwice.classifiers.settings import Encoding
from looktwice.images.image import Image, WorkingSize
from looktwice.views import Panel, questions, render

RESULTS = Path(__file__).parent / "results" / "photos.csv"
COLUMNS = ("model", "photos", "what", "shown", "moved", "right")
SEEN = 128
"""Pixels of the shorter side of what a model sees that takes half as many as its own."""
ENLARGING = Panel.parse("zoom:1.8 mirror+zoom:1.3 turn:10 turn:45")
MARGINS = (1.0, 1.25, 1.5, 1.75, 1.9)
Pixels = NDArray[np.uint8]
Labels = NDArray[np.int64]
Show = Callable[[Pixels], Pixels]


def jpeg(quality: int, sampling: int) -> Show:
    """What is left of pixels as JPEG."""
    settings = [cv2.IMWRITE_JPEG_QUALITY, quality, cv2.IMWRITE_JPEG_SAMPLING_FACTOR, sampling]
    return lambda pixels: _decoded(cv2.imencode(".jpg", pixels[:, :, ::-1], settings)[1])


def default(pixels: Pixels) -> Pixels:
    """What is left of pixels that are sent where no format is set."""
    return _decoded(np.frombuffer(Encoding().encode(pixels), np.uint8))


def _decoded(data: NDArray[np.generic]) -> Pixels:
    pixels = cv2.imdecode(np.asarray(data, np.uint8), cv2.IMREAD_COLOR)
    assert pixels is not None
    return np.ascontiguousarray(pixels[:, :, ::-1]).astype(np.uint8)


ENCODINGS: dict[str, Show] = {
    "as it is": lambda pixels: pixels,
    "JPEG 95 4:4:4": jpeg(95, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444),
    "JPEG 80 4:4:4": jpeg(80, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_444),
    "JPEG 95 4:2:0": jpeg(95, cv2.IMWRITE_JPEG_SAMPLING_FACTOR_420),
}
LARGE: dict[str, Show] = {**ENCODINGS, "default": default, "scaled to 384 px": lambda pixels: within(pixels, 384)}


def within(pixels: Pixels, side: float) -> Pixels:
    """The picture with so many pixels of the shorter side, if it has more."""
    return Image.from_array(pixels).within(WorkingSize(short=round(side))).pixels


def enlarged(pixels: Pixels, side: int) -> Pixels:
    """The picture with so many pixels of the longer side."""
    factor = side / max(pixels.shape)
    return np.asarray(cv2.resize(pixels, None, fx=factor, fy=factor, interpolation=cv2.INTER_CUBIC), np.uint8)


def halved(pixels: Pixels) -> Pixels:
    """The picture as a model gets it that takes half as many pixels."""
    height, width, _ = pixels.shape
    small = within(pixels, SEEN)
    return np.asarray(
        cv2.resize(small, (2 * width * SEEN // min(height, width), 2 * height * SEEN // min(height, width)))
    )


def encoding_rows(
    labels: Callable[[Iterator[Pixels]], Labels], photos: list[Pixels]
) -> Iterator[tuple[str, str, Labels, Labels]]:
    """What was compared, how it was shown, the labels before, and after."""
    large = [enlarged(photo, 1024) for photo in photos]
    for what, shown, ways in (("encoding, own size", photos, ENCODINGS), ("encoding, 1,024 px", large, LARGE)):
        before = labels(iter(shown))
        for name, show in ways.items():
            yield what, name, before, labels(map(show, shown))


def margin_rows(
    labels: Callable[[Iterator[Pixels]], Labels], photos: list[Pixels]
) -> Iterator[tuple[str, str, Labels, Labels]]:
    """The same for each margin, over all views that enlarge or turn."""
    found = {margin: labels(_enlarging(photos, margin)) for margin in (*MARGINS, 100.0)}
    for margin in MARGINS:
        yield "margin", f"{margin:g}", found[100.0], found[margin]


def _enlarging(photos: list[Pixels], margin: float) -> Iterator[Pixels]:
    for photo in photos:
        image = Image.from_array(within(photo, SEEN * margin))
        yield from map(halved, render(image, questions(image, ENLARGING, 0)))


def main(words: list[str]) -> None:
    count = int(words[0]) if words else 200
    rows = []
    for name in ("mobilenetv2", "efficientnet"):
        model = MODELS[name]
        classifier = connect(model.description())
        assert isinstance(classifier, OnnxClassifier)
        photos = [picture.image().pixels for picture in model.pictures[:count]]
        truths = model.truths()[:count]

        def labels(shown: Iterator[Pixels], asked: OnnxClassifier = classifier) -> Labels:
            return np.array([asked.logits([asked.prepare(pixels)])[0].argmax() for pixels in shown])

        for part in (encoding_rows, margin_rows):
            for what, shown, before, after in part(labels, photos):
                right = after.reshape(len(truths), -1) == truths[:, None]
                figures = (f"{(before != after).mean():.4f}", f"{right.mean():.4f}")
                rows.append((model.title, str(count), what, shown, *figures))
    write(RESULTS, (dict(zip(COLUMNS, row, strict=True)) for row in rows))


if __name__ == "__main__":
    script.run(main, __doc__, list(map(str, range(1, 2501))))
