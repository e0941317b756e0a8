"""Answers of five models about their pictures, asked once through the product's own engine and cached.

Answers go to $LOOKTWICE_EXPERIMENTS or ~/.cache/looktwice-experiments, a file for each model and view; what is there is
not asked again, so an interrupted run resumes. Data and models are looked up in ../shared.

The pilot pictures are drawn once. They belong to the fitting part of every split and are never tested on, so a
choice that was made on them (of views, of a transform's setting) is made for all splits at once. Photos are too few
for that: a quarter of them, always in the same half, would make that half easier or harder than the other in every
split alike. So each split of photos is drawn whole, and views are chosen anew on its own fitting part.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import looktwice
from experiments.official import open_labelled
from looktwice.calibration.evidence import Codes, Floats
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.classifiers.onnx import OnnxClassifier
from looktwice.classifiers.registry import connect
from looktwice.images.collection import Picture, labelled
from looktwice.views import Panel, View

MILD16 = Panel.parse(
    """
    zoom:1.15 mirror+tone:contrast=1.4 shift:-0.06,0 mirror+zoom:1.07 turn:5 tone:contrast=0.7 shift:0.06,0 turn:-5
    zoom:1.07 shift:0,-0.03 tone:cast=-0.15 mirror+turn:-5 mirror+zoom:0.85 zoom:0.93 shift:0,0.06 mirror
    """
)
"""Sixteen mild views, the general panel of looktwice before the harder one that experiments/general.py grows."""
MILD = MILD16[:8]
SHARED = Path(__file__).parents[2] / "shared"
CACHE = Path(os.environ.get("LOOKTWICE_EXPERIMENTS", Path.home() / ".cache" / "looktwice-experiments"))
BLOCK = 16
FEW = 100
IMAGENET = "size = [224, 224]\ncrop = 0.875\nscale = 1.0\nlabels = {labels}\nbatch = 2\n"
"""Two photos in a call: what they need fits the processor's cache, and each takes a third less than among sixteen."""
CIFAR = "size = [32, 32]\nlabels = {labels}\n"
STANDARD = "scale = 255.0\nmean = [0.485, 0.456, 0.406]\nstd = [0.229, 0.224, 0.225]\n"


@dataclass(frozen=True)
class Model:
    """A model, its pictures, and how many of them pilot, fit and test."""

    name: str
    title: str
    file: str
    data: str
    preparation: str
    pilot: int
    fit: int
    draws: int
    """S, the number of draws that the paper's method has."""

    @cached_property
    def pictures(self) -> list[Picture]:
        if self.name == "clothes":
            clothes = labelled(demo() / "pictures.npz")
            return clothes[::2] + clothes[1::2]
        return open_labelled(SHARED / "data" / self.data)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Every label, in the order of the model's output."""
        classifier = connect(self.description())
        assert classifier.labels is not None
        return classifier.labels

    def truths(self) -> Codes:
        """(n,): the code of each picture's truth."""
        codes = {label: code for code, label in enumerate(self.labels)}
        return np.array([codes[str(picture.truth)] for picture in self.pictures], np.int32)

    def order(self) -> NDArray[np.intp]:
        """The pictures' places, the pilot pictures first."""
        if self.name == "clothes":
            return np.arange(len(self.pictures))
        return np.random.default_rng(2024).permutation(len(self.pictures))

    @property
    def photos(self) -> bool:
        """Whether the pictures are photos of a thousand classes."""
        return "imagenet" in self.data

    def split(self, seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Places to fit and to test: the pilot pictures always fit, the rest is drawn; of photos all are."""
        order = self.order()
        if self.photos:
            mixed = np.random.default_rng(seed).permutation(order)
            return mixed[: self.fit], mixed[self.fit :]
        rest = np.random.default_rng(seed).permutation(order[self.pilot :])
        more = self.fit - self.pilot
        return np.concatenate([order[: self.pilot], rest[:more]]), rest[more:]

    def description(self) -> str:
        """A TOML file in the cache that says how the model is asked."""
        if self.name == "clothes":
            return str(demo() / "fashion.toml")
        path = CACHE / f"{self.name}.toml"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f'connector = "onnx"\nmodel = "{SHARED / "models" / self.file}"\n{self._how()}', "utf-8")
        return str(path)

    def _how(self) -> str:
        names = [str(c) for c in range(1000)] if self.photos else sorted({str(p.truth) for p in self.pictures})
        return self.preparation.format(labels=names).replace("'", '"')


def demo() -> Path:
    return Path(str(files("looktwice") / "demo"))


def cifar_names() -> list[str]:
    with np.load(SHARED / "data" / "cifar10_test.npz") as file:
        return [str(name) for name in file["class_names"]]


_CIFAR, _PHOTOS = "cifar10_test.npz", "imagenet_val_1500"
MODELS = {
    model.name: model
    for model in (
        Model("resnet8", "ResNet-8", "cifar10_mlperf_resnet8.onnx", _CIFAR, CIFAR + "scale = 1.0\n", 500, 1000, 20),
        Model("resnet20", "ResNet-20", "cifar10_resnet20.onnx", _CIFAR, CIFAR + STANDARD, 500, 1000, 20),
        Model("resnet32", "ResNet-32", "cifar10_resnet32.onnx", _CIFAR, CIFAR + STANDARD, 500, 1000, 20),
        Model(
            "mobilenetv2",
            "MobileNetV2",
            "mobilenetv2_imagenet.onnx",
            _PHOTOS,
            IMAGENET + 'resize = "linear"\nmean = [128.0]\nstd = [128.0]\n',
            375,
            750,
            8,
        ),
        Model(
            "efficientnet",
            "EfficientNet-Lite0",
            "efficientnet_lite0_imagenet.onnx",
            _PHOTOS,
            IMAGENET + 'resize = "cubic"\nmean = [127.0]\nstd = [128.0]\n',
            375,
            750,
            8,
        ),
        Model("clothes", "embedded clothes", "", "", "", 1000, 1000, 10),
    )
}


def votes(model: Model, panel: Panel, part: str = "all") -> LabelledVotes:
    """The answers under this panel about the pictures of a part.

    `all` are in their own order. `few` come first in the model's order, then the rest of `pilot`, then that of `some`,
    which are as many to fit as to test.
    """
    missing = [view for view in dict.fromkeys(panel) if not _there(model, panel, view, part)]
    for block in _blocks([view for view in panel if view in missing]):
        _ask(model, Panel(tuple(block)), part)
    columns = [_column(model, view, index, part) for view, index in panel.slots]
    rows = _rows(model, part)
    views = np.stack(columns, axis=1) if columns else np.empty((len(rows), 0), np.int32)
    names = tuple(model.pictures[i].name for i in rows)
    found = Votes(names, tuple(map(str, panel)), model.labels, _base(model, part), views, len(model.labels))
    return found.labelled(str(model.pictures[i].truth) for i in rows)


def there(model: Model, panel: Panel, part: str = "all") -> bool:
    """Whether all these answers are kept, so that nothing needs to be asked."""
    return all(_there(model, panel, view, part) for view in dict.fromkeys(panel))


def logits(model: Model) -> Floats:
    """(n, K): what a closed classifier does not show, for all pictures in their order."""
    path = CACHE / model.name / "logits.npy"
    if not path.exists():
        classifier = connect(model.description())
        assert isinstance(classifier, OnnxClassifier)
        prepared = ([classifier.prepare(p.image().pixels) for p in some] for some in _batches(model.pictures))
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.concatenate([classifier.logits(batch) for batch in prepared]))
    return np.load(path).astype(np.float64)


def _blocks(views: list[View]) -> list[list[View]]:
    """Views that are asked and kept together, all draws of one among them: so little is lost when a run is ended."""
    blocks: list[list[View]] = []
    for view in dict.fromkeys(views):
        draws = [view] * views.count(view)
        if blocks and len(blocks[-1]) + len(draws) <= BLOCK:
            blocks[-1] += draws
        else:
            blocks.append(draws)
    return blocks


def _batches(pictures: Sequence[Picture], size: int = 32) -> list[Sequence[Picture]]:
    return [pictures[start : start + size] for start in range(0, len(pictures), size)]


def _rows(model: Model, part: str) -> NDArray[np.intp]:
    if part == "all":
        return np.arange(len(model.pictures))
    return model.order()[: {"few": FEW, "pilot": model.pilot, "some": 2 * model.fit}[part]]


def _kept(model: Model, view: str, index: int, part: str) -> Codes | None:
    """Answers that were kept about this part, or about a larger one."""
    parts = ["few", "pilot", "some", "all"]
    for larger in parts[parts.index(part) :]:
        if _file(model, view, index, larger).exists():
            column: Codes = np.load(_file(model, view, index, larger)).astype(np.int32)
            rows = _rows(model, part)
            return column[rows] if larger == "all" else column[: len(rows)]
    return None


def _file(model: Model, view: str, index: int, part: str) -> Path:
    return CACHE / model.name / part / f"{view.replace(':', '_')}@{index}.npy"


def _there(model: Model, panel: Panel, view: View, part: str) -> bool:
    wanted = [index for other, index in panel.slots if other == view]
    return all(_kept(model, str(view), index, part) is not None for index in wanted)


def _column(model: Model, view: View | str, index: int, part: str) -> Codes:
    column = _kept(model, str(view), index, part)
    assert column is not None, (model.name, view, index, part)
    return column


def _base(model: Model, part: str) -> Codes:
    if _kept(model, "base", 0, part) is None:
        _ask(model, Panel(()), part)
    return _column(model, "base", 0, part)


def _ask(model: Model, panel: Panel, part: str) -> None:
    """Ask, and keep each view's answers in a file of its own."""
    began = time.time()
    chosen = [model.pictures[i] for i in _rows(model, part)]
    with looktwice.Model(model.description(), ledger="memory", canaries=0) as asked:
        collected = asked.ask(chosen, views=panel)
    assert len(collected.votes) == len(chosen), collected.unscored[:3]
    assert collected.votes.vocabulary[: len(model.labels)] == model.labels
    folder = CACHE / model.name / part
    folder.mkdir(parents=True, exist_ok=True)
    _save(_file(model, "base", 0, part), collected.votes.base)
    for (view, index), column in zip(panel.slots, collected.votes.views.T, strict=True):
        _save(_file(model, str(view), index, part), column)
    queries, seconds = len(chosen) * (1 + len(panel)), time.time() - began
    print(f"{model.name} {part}: {queries} queries in {seconds:.0f} s: {str(panel)[:60]}", flush=True)


def _save(path: Path, column: Codes) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        np.save(file, column.astype(np.int16))
    os.replace(temporary, path)
