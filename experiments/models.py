"""Six models whose full output is known, and their pictures: three for CIFAR-10, one for CIFAR-100, two for photos."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.collected import CACHE, CIFAR, IMAGENET, SHARED, STANDARD, cifar_names, demo
from looktwice.calibration.evidence import Codes
from looktwice.classifiers.onnx import OnnxClassifier
from looktwice.classifiers.registry import connect
from looktwice.images.collection import Picture, labelled
from looktwice.images.image import Image

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

    @property
    def files(self) -> list[Path]:
        """The network and the pictures."""
        if self.data == "clothes":
            return [demo() / self.file, demo() / "pictures.npz"]
        return [SHARED / "models" / self.file, *(SHARED / "data" / name for name in DATA[self.data])]

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
        return [Image.from_array(np.ascontiguousarray(each)) for each in pixels], truths, names

    @cached_property
    def truths(self) -> tuple[Codes, tuple[str, ...]]:
        """The code of each truth, and the labels; photos are not decoded for it."""
        if self.data == "photos":
            return np.array([int(str(photo.truth)) for photo in photos()], np.int32), tuple(map(str, range(1000)))
        _, truths, names = self.pictures
        return truths, names

    def classifier(self) -> OnnxClassifier:
        """The model, asked as the product asks it."""
        if self.data == "clothes":
            classifier = connect(str(demo() / self.file))
            assert isinstance(classifier, OnnxClassifier)
            return classifier
        path = CACHE / "general" / f"{self.name}.toml"
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


def log_probabilities(output: NDArray[np.generic]) -> NDArray[np.float64]:
    """(n, K): of a model that returns logits or probabilities."""
    logits = output.astype(np.float64)
    if logits.min() >= 0 and np.allclose(logits.sum(axis=1), 1.0, atol=1e-3):
        return np.log(np.maximum(logits, 1e-12))
    top = logits.max(axis=1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(axis=1, keepdims=True))


DATA = {
    "cifar10": ["cifar10_test.npz"],
    "cifar100": ["cifar-100-python"],
    "photos": ["imagenet_val_1500", "imagenet_val_1000"],
}
"""The pictures of ../shared/data that belong together."""
SOURCES = {
    source.name: source
    for source in (
        Source("resnet8", "ResNet-8, CIFAR-10", "cifar10_mlperf_resnet8.onnx", CIFAR + "scale = 1.0\n", "cifar10"),
        Source("resnet20", "ResNet-20, CIFAR-10", "cifar10_resnet20.onnx", CIFAR + STANDARD, "cifar10"),
        Source("resnet32", "ResNet-32, CIFAR-10", "cifar10_resnet32.onnx", CIFAR + STANDARD, "cifar10"),
        Source("resnet56", "ResNet-56, CIFAR-100", "cifar100_resnet56.onnx", CIFAR + CIFAR100, "cifar100"),
        Source("mobilenetv2", "MobileNetV2, photos", "mobilenetv2_imagenet.onnx", IMAGENET + LINEAR, "photos"),
        Source(
            "efficientnet",
            "EfficientNet-Lite0, photos",
            "efficientnet_lite0_imagenet.onnx",
            IMAGENET + CUBIC,
            "photos",
        ),
    )
}
CLOTHES = Source("clothes", "embedded clothes", "fashion.toml", "", "clothes")
"""What is there without any download."""
