"""Everything that six models say about each picture and its views, computed once and kept: what an API could return.

Outputs go to $LOOKTWICE_EXPERIMENTS or ~/.cache/looktwice-experiments, one file a model: log probabilities of all
classes, of each picture and of the eight views of the mild panel.
"""

from __future__ import annotations

import os
import pickle
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
from numpy.typing import NDArray

from experiments.collected import CACHE, CIFAR, IMAGENET, MILD, SHARED, STANDARD, cifar_names, demo
from looktwice.calibration.votes import Codes
from looktwice.classifiers.onnx import OnnxClassifier
from looktwice.classifiers.registry import connect
from looktwice.pictures.collection import Picture, labelled
from looktwice.pictures.image import Image
from looktwice.views import base_question, questions, render

SMALL = 5000
"""Small pictures of each set that are used, the first ones."""
CIFAR100 = "scale = 255.0\nmean = [0.5070, 0.4865, 0.4409]\nstd = [0.2673, 0.2564, 0.2761]\n"
LINEAR = 'resize = "linear"\nmean = [128.0]\nstd = [128.0]\n'
CUBIC = 'resize = "cubic"\nmean = [127.0]\nstd = [128.0]\n'


@dataclass(frozen=True)
class Source:
    """A model and its pictures."""

    name: str
    title: str
    file: str
    preparation: str
    data: str
    fit: int
    """Labelled pictures of a split; the others are tested."""

    @cached_property
    def pictures(self) -> tuple[list[Image], Codes, tuple[str, ...]]:
        """The pictures, the code of each truth, and the labels."""
        if self.data == "photos":
            return [photo.image() for photo in photos()], *self.truths
        if self.data == "clothes":
            found, names = labelled(demo() / "pictures.npz"), self.classifier().labels or ()
            return [p.image() for p in found], np.array([names.index(str(p.truth)) for p in found], np.int32), names
        if self.data == "cifar100":
            with (SHARED / "data" / "cifar-100-python" / "test").open("rb") as file:
                test = pickle.load(file, encoding="latin1")
            with (SHARED / "data" / "cifar-100-python" / "meta").open("rb") as file:
                names = tuple(pickle.load(file, encoding="latin1")["fine_label_names"])
            pixels = np.asarray(test["data"][:SMALL]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            truths = np.array(test["fine_labels"][:SMALL], np.int32)
        else:
            with np.load(SHARED / "data" / "cifar10_test.npz") as file:
                pixels, truths = file["images"][:SMALL], file["labels"][:SMALL].astype(np.int32)
            names = tuple(cifar_names())
        return [Image.of(np.ascontiguousarray(each)) for each in pixels], truths, names

    @cached_property
    def truths(self) -> tuple[Codes, tuple[str, ...]]:
        """The code of each truth, and the labels; photos are not decoded for it."""
        if self.data == "photos":
            return np.array([int(str(photo.truth)) for photo in photos()], np.int32), tuple(map(str, range(1000)))
        _, truths, names = self.pictures
        return truths, names

    def logs(self) -> NDArray[np.float32]:
        """(n, 1 + 8, K): log probabilities under the picture itself and under each view of the mild panel."""
        path = CACHE / "outputs" / f"{self.name}.npy"
        if not path.exists():
            classifier, (images, _, _) = self.classifier(), self.pictures
            logs = np.concatenate([_asked(classifier, image)[None] for image in images])
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.with_suffix(".part").open("wb") as file:
                np.save(file, logs.astype(np.float16 if self.data == "photos" else np.float32))
            os.replace(path.with_suffix(".part"), path)
        return np.load(path).astype(np.float32)

    def classifier(self) -> OnnxClassifier:
        """The model, asked as the product asks it."""
        if self.data == "clothes":
            classifier = connect(str(demo() / self.file))
            assert isinstance(classifier, OnnxClassifier)
            return classifier
        path = CACHE / "outputs" / f"{self.name}.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        names = str(list(self.pictures[2])).replace("'", '"')
        how = self.preparation.format(labels=names)
        path.write_text(f'connector = "onnx"\nmodel = "{SHARED / "models" / self.file}"\n{how}', "utf-8")
        classifier = connect(str(path))
        assert isinstance(classifier, OnnxClassifier)
        return classifier


@cache
def photos() -> list[Picture]:
    """The photos, not decoded yet."""
    return [photo for part in (1500, 1000) for photo in labelled(SHARED / "data" / f"imagenet_val_{part}")]


def _asked(classifier: OnnxClassifier, image: Image) -> NDArray[np.float64]:
    """(1 + 8, K): log probabilities of one picture and its views."""
    asked = [base_question(image), *questions(image, MILD, 0)]
    return log_probabilities(classifier.logits([classifier.prepare(pixels) for pixels in render(image, asked)]))


def log_probabilities(output: NDArray[np.generic]) -> NDArray[np.float64]:
    """(n, K): what a model says of each class, whether it gives logits or probabilities."""
    logits = output.astype(np.float64)
    if logits.min() >= 0 and np.allclose(logits.sum(axis=1), 1.0, atol=1e-3):
        return np.log(np.maximum(logits, 1e-12))
    top = logits.max(axis=1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))


SOURCES = {
    source.name: source
    for source in (
        Source(
            "resnet8", "ResNet-8, CIFAR-10", "cifar10_mlperf_resnet8.onnx", CIFAR + "scale = 1.0\n", "cifar10", 1000
        ),
        Source("resnet20", "ResNet-20, CIFAR-10", "cifar10_resnet20.onnx", CIFAR + STANDARD, "cifar10", 1000),
        Source("resnet32", "ResNet-32, CIFAR-10", "cifar10_resnet32.onnx", CIFAR + STANDARD, "cifar10", 1000),
        Source("resnet56", "ResNet-56, CIFAR-100", "cifar100_resnet56.onnx", CIFAR + CIFAR100, "cifar100", 1000),
        Source("mobilenetv2", "MobileNetV2, photos", "mobilenetv2_imagenet.onnx", IMAGENET + LINEAR, "photos", 1250),
        Source(
            "efficientnet",
            "EfficientNet-Lite0, photos",
            "efficientnet_lite0_imagenet.onnx",
            IMAGENET + CUBIC,
            "photos",
            1250,
        ),
    )
}
CLOTHES = Source("clothes", "embedded clothes", "fashion.toml", "", "clothes", 400)
"""What is there without any download."""
