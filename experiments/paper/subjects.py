"""The subject of an experiment: a model, its labelled pictures, and how many questions it is asked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from experiments.collected import CIFAR, MODELS, SHARED, Model
from experiments.official import CIFAR_HOME, ILSVRC_HOME, open_labelled
from experiments.paper.grids import Reading, Settings, mild, whole
from looktwice.calibration.evidence import Codes
from looktwice.classifiers.onnx import OnnxClassifier
from looktwice.classifiers.registry import connect
from looktwice.errors import DataError, PermanentError
from looktwice.images.collection import Picture

Rows = NDArray[np.intp]
SEED = 2024
"""Of the permutation that parts labelled pictures from test pictures."""

RESNET56 = Model(
    "resnet56",
    "ResNet56",
    "cifar100_resnet56.onnx",
    "cifar-100-python",
    CIFAR + "scale = 255.0\nmean = [0.5070, 0.4865, 0.4409]\nstd = [0.2673, 0.2564, 0.2761]\n",
    pilot=0,
    fit=1000,
    draws=10,
)
"""The paper's main dataset and, by its accuracy, most likely the paper's own network for it."""
KNOWN = MODELS | {RESNET56.name: RESNET56}
SMALL = ("resnet8", "resnet20", "resnet32", RESNET56.name)
PHOTOS = ("efficientnet", "mobilenetv2")
DEMO = "clothes"
DATASETS = {10: "CIFAR-10", 100: "CIFAR-100", 1000: "Imagenet"}
"""The paper's dataset for a number of classes."""


@dataclass(frozen=True)
class Scale:
    """How many pictures and draws each step takes."""

    pictures: int
    """All of which parts are taken."""
    labelled: int
    """The first pictures of the permutation, on which everything is chosen and fitted: the paper's m, or fewer."""
    start: int
    """Where in the permutation the pictures begin on which everything is tested: m, or later."""
    tested: int
    """How many they are."""
    grid: int
    """How many of the labelled pictures choose a transform's setting."""
    grid_draws: int
    draws: int
    """S."""
    noise: int
    """How many of the labelled pictures show the noise in latent space."""
    noise_draws: int
    settings: Settings
    """The settings that each transform is searched over."""
    reading: Reading = "looktwice"
    """How the paper's text is read in these settings."""


def scale(pictures: int, classes: int, quick: bool, reading: Reading = "looktwice") -> Scale:
    """A tenth of the pictures are labelled ones as in the paper, and S is the paper's for so many classes."""
    labelled = max(pictures // 10, min(50, pictures // 2))
    draws = 50 if classes <= 10 else 10 if classes <= 100 else 2
    most = 500 if classes <= 100 else 200
    full = Scale(
        pictures=pictures,
        labelled=labelled,
        start=labelled,
        tested=pictures - labelled,
        grid=min(labelled, 500),
        grid_draws=min(draws, 10),
        draws=draws,
        noise=min(labelled, most),
        noise_draws=max(draws, 10),
        settings=whole(reading),
        reading=reading,
    )
    if not quick:
        return full
    few = replace(full, draws=min(draws, 10), grid_draws=min(draws, 5), grid=min(labelled, 100))
    return replace(few, noise=min(labelled, 50), noise_draws=10, settings=mild(classes, reading))


@dataclass(frozen=True, eq=False)
class Subject:
    """A model and its labelled pictures."""

    name: str
    title: str
    description: str
    pictures: Sequence[Picture]
    collected: Model | None = None
    """The model of experiments/collected.py whose cached answers are taken as well."""

    @cached_property
    def classifier(self) -> OnnxClassifier:
        found = connect(self.description)
        if not isinstance(found, OnnxClassifier):
            raise PermanentError(f"{self.description!r} is not an ONNX model; these experiments read its logits too")
        return found

    @property
    def labels(self) -> tuple[str, ...]:
        """Every label, in the order of the model's output."""
        return self.classifier.labels

    @property
    def dataset(self) -> str:
        """The name of the data: the paper's where the number of classes tells it."""
        if self.collected is not None and self.collected.name == DEMO:
            return "Fashion-MNIST"
        return DATASETS.get(len(self.labels), f"{len(self.labels)} classes")

    @cached_property
    def normalised(self) -> bool:
        """Whether the input is scaled; for a network that takes pixels as they are, noise after that has no meaning."""
        pixels = self.classifier.prepare(self.pictures[0].image().pixels)
        black, white = self.classifier.tensor([np.full_like(pixels, level) for level in (0, 255)])
        return bool((white - black).max() < 255)

    @cached_property
    def truths(self) -> Codes:
        """(n,): the code of each picture's truth."""
        codes = {label: code for code, label in enumerate(self.labels)}
        strange = sorted({str(p.truth) for p in self.pictures} - set(codes))
        if strange:
            raise DataError(
                f"{len(strange)} truths such as {strange[0]!r} are no labels of {self.title}, "
                f"whose labels are such as {self.labels[0]!r}; name the labels in {self.description!r} as the data do"
            )
        return np.array([codes[str(p.truth)] for p in self.pictures], np.int32)

    @cached_property
    def order(self) -> Rows:
        """The places of the pictures in the order in which parts of them are taken."""
        return np.random.default_rng(SEED).permutation(len(self.pictures))

    def labelled(self, size: Scale) -> Rows:
        return self.order[: size.labelled]

    def tested(self, size: Scale) -> Rows:
        return self.order[size.start : size.start + size.tested]


def known(name: str) -> Subject:
    """One of the models of KNOWN."""
    if name not in KNOWN:
        raise DataError(f"no model is called {name!r}: there are {', '.join(KNOWN)}; give --data for others")
    model = KNOWN[name]
    if not at_hand(name):
        raise DataError(
            f"{model.title} needs models/{model.file} and data/{model.data} in {str(SHARED)!r}, which are not there; "
            f"get CIFAR at {CIFAR_HOME} or ILSVRC2012 at {ILSVRC_HOME}, and give --data and --model with any ONNX "
            "network for it (docs/connectors.md says how it is described), or run with --quick on the embedded pictures"
        )
    return Subject(name, model.title, model.description(), model.pictures, model)


def at_hand(name: str) -> bool:
    """Whether the network and the pictures of one of these models are there."""
    model = KNOWN[name]
    return name == DEMO or all((SHARED / part).exists() for part in (f"models/{model.file}", f"data/{model.data}"))


def own(description: str, pictures: Sequence[Picture]) -> Subject:
    """A model that a TOML file or `onnx:model.onnx` describes, and somebody's pictures."""
    path = Path(description.removeprefix("onnx:"))
    if description not in KNOWN:
        need(path, "a description of an ONNX model (docs/connectors.md says how to write one)")
    title = KNOWN[description].title if description in KNOWN else path.stem
    path_or_address = KNOWN[description].description() if description in KNOWN else description
    return Subject(re.sub(r"[^A-Za-z0-9]+", "-", title.lower()), title, path_or_address, pictures)


def chosen(
    models: Sequence[str], data: Path | None, truths: Path | None, quick: bool, usual: Sequence[str]
) -> list[Subject]:
    """The subjects that a command names; without names the usual ones, and with `quick` the embedded clothes."""
    if data is not None:
        if not models:
            raise DataError("--data needs --model: the TOML description of the ONNX model that is asked about them")
        pictures = open_labelled(data, truths)
        return [own(model, pictures) for model in models]
    names = list(models) or (list(filter(at_hand, (DEMO, RESNET56.name))) if quick else list(usual))
    return [known(name) for name in names]


def need(path: Path, what: str) -> None:
    """Raise an error that names what was looked for if it is missing."""
    if not path.exists():
        raise DataError(
            f"{str(path)!r} is not there: looked for {what}; give --data and --model, or run with --quick on the "
            "embedded pictures"
        )
