"""What photos of 12 megapixels cost with a local model, beside what one would write by hand.

    python benchmarks/photos.py [photos]

The photos are made of the embedded pictures and noise, as JPEG. *By hand* decodes each at a reduced scale, resizes it
once, draws the same views and runs bare onnxruntime on as many threads; *plain Pillow* decodes each in full. The model
is MobileNetV2 where it is in ../shared, and otherwise the embedded one behind a description that has it take 224 px,
which a resize inside it brings to its own 28 px. Memory is that of a process of its own, for some photos and for four
times as many.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib.resources import files
from pathlib import Path

import cv2
import numpy as np
from goals import at_least, at_most, compare
from local import SHARED, learned, score
from numpy.typing import NDArray

from looktwice.classifiers.onnx import OnnxClassifier
from looktwice.classifiers.registry import connect
from looktwice.classifiers.settings import Encoding
from looktwice.images.collection import Picture, find, labelled
from looktwice.images.image import PHOTO, Image, encode_jpeg
from looktwice.views import GENERAL, base_question, questions, render

DEMO = Path(str(files("looktwice") / "demo"))
MOBILENET = """connector = "onnx"
model = "{models}/mobilenetv2_imagenet.onnx"
size = [224, 224]
crop = 0.875
resize = "linear"
mean = [128.0]
std = [128.0]
labels = {labels}
"""
WIDE, HIGH = 4000, 3000
ROUNDS, FIT = 3, 60
Pixels = NDArray[np.uint8]


def photo(place: int) -> Pixels:
    """A photo that shows one of the embedded pictures among shapes of all sizes, with the grain of a sensor."""
    rng = np.random.default_rng(place)
    shapes = [cv2.resize(rng.normal(0, 1, (3 * s, 4 * s, 3)), (WIDE, HIGH)) / s**0.4 for s in (2, 8, 32, 128)]
    shown = cv2.resize(find([DEMO / "pictures.npz"])[place].image().pixels, (WIDE, HIGH), interpolation=cv2.INTER_CUBIC)
    return np.clip(0.6 * shown + 50 + 30 * sum(shapes) + rng.normal(0, 3, (HIGH, WIDE, 1)), 0, 255).astype(np.uint8)


def write(folder: Path, count: int) -> list[Picture]:
    """So many photos in files; they repeat after eight, which are told apart by a comment."""
    some = [encode_jpeg(photo(place), 90) for place in range(min(count, 8))]
    for place in range(count):
        comment = f"{place:08}".encode()
        data = some[place % 8]
        (folder / f"{place:05}.jpg").write_bytes(data[:2] + b"\xff\xfe\x00\x0a" + comment + data[2:])
    return list(find([folder]))


def described(folder: Path) -> tuple[Path, Path]:
    """A description of a model that takes 224 px, and the labelled pictures that its profile is learned from."""
    if not SHARED.is_dir():
        return enlarged(folder), DEMO / "pictures.npz"
    text = MOBILENET.format(models=SHARED / "models", labels=json.dumps([str(label) for label in range(1000)]))
    (folder / "mobilenet.toml").write_text(text, "utf-8")
    return folder / "mobilenet.toml", SHARED / "data" / "imagenet_val_1500"


def enlarged(folder: Path) -> Path:
    """The embedded model as one that takes 224 px."""
    import onnx
    from onnx import TensorProto, helper

    model = onnx.load(DEMO / "fashion.onnx")
    entry = model.graph.input[0]
    inner, channels = entry.name, entry.type.tensor_type.shape.dim[1].dim_value
    factors = helper.make_tensor("factors", TensorProto.FLOAT, [4], [1, 1, 0.125, 0.125])
    model.graph.initializer.append(factors)
    model.graph.node.insert(0, helper.make_node("Resize", ["photo", "", "factors"], [inner], mode="linear"))
    large = helper.make_tensor_value_info("photo", TensorProto.FLOAT, ["n", channels, 224, 224])
    del model.graph.input[:]
    model.graph.input.append(large)
    onnx.save(model, folder / "large.onnx")
    text = (DEMO / "fashion.toml").read_text("utf-8").replace("fashion.onnx", "large.onnx")
    (folder / "large.toml").write_text(text.replace("size = [28, 28]", "size = [224, 224]"), "utf-8")
    return folder / "large.toml"


def by_hand(classifier: OnnxClassifier, pictures: list[Picture], reduced: bool) -> None:
    """Decode, resize once, draw, prepare and run, with a thread a processor."""
    target = classifier.limits.working_size.scaled(HIGH, WIDE)
    flag = cv2.IMREAD_REDUCED_COLOR_4 if reduced else cv2.IMREAD_COLOR

    def work(picture: Picture) -> None:
        pixels = cv2.imread(str(picture.source.root / picture.name), flag)  # type: ignore[attr-defined]
        small = cv2.resize(pixels, target[::-1], interpolation=cv2.INTER_AREA) if reduced else pixels
        image = Image.from_array(np.asarray(small, np.uint8))
        shown = render(image, [base_question(image), *questions(image, GENERAL, 0)])
        classifier.logits([classifier.prepare(view) for view in shown]).argmax(axis=1)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(work, pictures))


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def drawing(classifier: OnnxClassifier) -> float:
    """What drawing and preparing the views of a photo of 12 megapixels costs, of what a photo of 512 px costs."""
    whole = Image.from_array(photo(0))
    large = whole.within(classifier.limits.working_size)
    small = Image.from_array(np.asarray(cv2.resize(whole.pixels, (512, 384), interpolation=cv2.INTER_AREA), np.uint8))

    def work(image: Image) -> None:
        for view in render(image, questions(image, GENERAL, 0)):
            classifier.prepare(view)

    work(large), work(small)
    return statistics.median(seconds(lambda: work(large)) / seconds(lambda: work(small)) for _ in range(15))


def peak(description: Path, known: Path, folder: Path, count: int) -> float:
    """Megabytes of a process that scores so many of the photos."""
    command = [sys.executable, __file__, "score", str(description), str(known), str(folder), str(count)]
    return float(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def scored(description: Path, known: Path, folder: Path, count: int) -> None:
    classifier = connect(description)
    assert isinstance(classifier, OnnxClassifier)
    profile = learned(classifier, labelled(known)[:FIT], description)
    score(classifier, list(find([folder]))[:count], profile, folder.parent / f"out-{count}.csv")
    # Not ru_maxrss, which begins with that of the process that made the photos and started this one.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    print(int(status["VmHWM"].split()[0]) / 1024)


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    print(f"{os.cpu_count()} processors, {count} photos of {WIDE} x {HIGH}")
    with tempfile.TemporaryDirectory() as place:
        (folder := Path(place) / "photos").mkdir()
        pictures, (description, known) = write(folder, count), described(Path(place))
        classifier = connect(description)
        assert isinstance(classifier, OnnxClassifier)
        print(f"model: {description.stem}")
        profile = learned(classifier, labelled(known)[:FIT], description)
        some, ratios, plain = pictures[:24], [], []
        for _ in range(ROUNDS):
            ours = seconds(lambda: score(classifier, some, profile, Path(place) / "out.csv"))
            ratios.append(seconds(lambda: by_hand(classifier, some, reduced=True)) / ours)
            plain.append(seconds(lambda: by_hand(classifier, some[:4], reduced=False)) / ours * len(some) / 4)
            print(
                f"  score {ours:.2f} s: {ratios[-1]:.2f} of by hand, {plain[-1]:.1f} times as fast as plain", flush=True
            )
        file = Encoding().encode(pictures[0].image(PHOTO).pixels)
        few, many = (peak(description, known, folder, number) for number in (count // 4, count))
        reached = [
            at_most("views of a 12-MP photo / of one of 512 x 384", drawing(classifier), 1.3),
            at_least("12-MP photos: by hand, reduced / `score`", statistics.median(ratios), 0.8),
            at_most("a question about a 12-MP photo over HTTP", len(file) / 1000, 400, " KB"),
            at_most(f"peak memory, {count} photos", many, 400, " MB"),
            at_most(f"peak memory, {count} photos / {count // 4} photos", many / few, 1.2),
        ]
        compare("12-MP photos: decoded and drawn in full / `score`", statistics.median(plain))
    sys.exit(0 if all(reached) else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["score"]:
        scored(*map(Path, sys.argv[2:5]), int(sys.argv[5]))
    else:
        main()
