"""An ONNX model on this machine, through onnxruntime (extra `onnx`).

The model's TOML file specifies how a picture is converted to its input:

    connector = "onnx"
    model = "model.onnx"      # beside the TOML file
    size = [224, 224]         # height, width
    crop = 0.875              # side of the centred square / short side; without crop, the whole picture is stretched
    resize = "linear"         # nearest, linear, cubic or area
    channels = "rgb"          # rgb, bgr or grey
    scale = 255.0             # x = (pixels / scale - mean) / std
    mean = [0.485, 0.456, 0.406]
    std = [0.229, 0.224, 0.225]
    labels = ["cat", "dog"]   # or the name of a text file with one label per line

`onnx:model.onnx` reads `model.toml` beside the model.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType
from typing import Annotated, Literal, Self

import cv2
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from looktwice.classifiers.base import (
    MOST_OPTIONS,
    Answer,
    Classifier,
    Limits,
    Names,
    Pixels,
    Settings,
    fingerprint,
    position_word,
    probabilities,
)
from looktwice.classifiers.registry import described, folder_of, read_beside, read_labels
from looktwice.errors import MissingExtra, PermanentError
from looktwice.images import WorkingSize

Floats = NDArray[np.float32]


# Preprocessing, of all connectors that send tensors ------------------------------------------------------------------


MOST_PIXELS = 2**22
"""The maximum input size of a model: 2,048 × 2,048 pixels, far more than classifiers need."""
MARGIN = 1.5
"""The ratio of the working size to the model's input size, so that enlarged views keep detail; see docs/pictures.md."""


Numbers = Annotated[
    tuple[float, ...], BeforeValidator(lambda value: value if isinstance(value, list | tuple) else (value,))
]
"""One number, or a list with one number per channel."""


class Preprocessing(BaseModel):
    """Crop, scale and normalise: x = (pixels / scale - mean) / std; mean and std are one number, or one per channel."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    crop: float | None = Field(
        default=None, gt=0, le=1, description="side of the centred square to use, as a fraction of the shorter side"
    )
    resize: Literal["nearest", "linear", "cubic", "area"] = "linear"
    channels: Literal["rgb", "bgr", "grey"] = "rgb"
    scale: float = Field(default=1.0, gt=0)
    mean: Numbers = (0.0,)
    std: Numbers = (1.0,)

    @model_validator(mode="after")
    def _one_number_a_channel(self) -> Self:
        count = 1 if self.channels == "grey" else 3
        if {len(self.mean), len(self.std)} - {1, count}:
            raise ValueError(f"mean and std need 1 or {count} numbers for {self.channels}")
        if 0.0 in self.std:
            raise ValueError("std must not be 0")
        return self

    def usable_size(self, size: tuple[int, int]) -> WorkingSize:
        """The working size for a model with this input height and width."""
        return WorkingSize(short=math.ceil(MARGIN * max(size) / (self.crop or 1.0)))

    def fit(self, pixels: Pixels, size: tuple[int, int] | None) -> Pixels:
        """Crop and scale to channels × height × width, integers 0 to 255; without `size`, the picture is not scaled."""
        if self.crop is not None:
            pixels = _centre(pixels, self.crop)
        if size is not None and pixels.shape[:2] != size:
            if size[0] * size[1] > MOST_PIXELS:
                wanted = f"the model expects pictures of {size[1]} x {size[0]}"
                raise PermanentError(f"{wanted}; at most {MOST_PIXELS:,} pixels can be sent")
            interpolation = getattr(cv2, f"INTER_{self.resize.upper()}")
            pixels = np.asarray(cv2.resize(pixels, size[::-1], interpolation=interpolation), np.uint8)
        return _ordered(pixels, self.channels)

    def normalise(self, fitted: Pixels) -> Floats:
        """Normalise the result of `fit`, or an array of several such results."""
        std = np.array(self.std)[:, None, None]
        numbers: Floats = np.multiply(fitted, 1.0 / (self.scale * std), dtype=np.float32)
        numbers -= (np.array(self.mean)[:, None, None] / std).astype(np.float32)
        return numbers


def _centre(pixels: Pixels, share: float) -> Pixels:
    """The centred square whose side is this share of the picture's short side."""
    height, width = pixels.shape[:2]
    side = max(1, round(min(height, width) * share))
    top, left = (height - side) // 2, (width - side) // 2
    return np.ascontiguousarray(pixels[top : top + side, left : left + side])


def _ordered(pixels: Pixels, channels: str) -> Pixels:
    if channels == "grey":
        return np.asarray(cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY), np.uint8)[None]
    return (pixels[:, :, ::-1] if channels == "bgr" else pixels).transpose(2, 0, 1)


Tensor = NDArray[np.float32]


# Models --------------------------------------------------------------------------------------------------------------


MOST_PICTURES = 64
CALL_PIXELS = 2**17
"""The maximum number of pixels per call, enough for two pictures of 224 × 224.

Larger calls are not faster, but use more memory.
"""


class OnnxDescription(Preprocessing):
    """The settings for preprocessing and labels."""

    model: str
    size: tuple[int, int] = Field(description="height, width")
    labels: tuple[str, ...] | str
    batch: int | None = Field(None, ge=1, description="pictures per call; by default chosen by their size")
    scores: int = Field(
        0, ge=0, le=MOST_OPTIONS, description="number of labels to rank with scores; 0 returns only the best"
    )
    working_size: int | None = Field(
        None, ge=1, description="maximum longer side in pixels; by default derived from size and crop"
    )

    def limits(self) -> Limits:
        """The limits and costs of running the model on this machine."""
        size = WorkingSize(long=self.working_size) if self.working_size else self.usable_size(self.size)
        # One call more than there are cores, so that a core can start the next one at once.
        return Limits(self.pictures(), (os.cpu_count() or 1) + 1, local=True, working_size=size)

    def pictures(self) -> int:
        """The batch size: large enough to keep a core busy, but small enough that large inputs fit into memory."""
        return self.batch or max(1, min(MOST_PICTURES, CALL_PIXELS // (self.size[0] * self.size[1])))


class OnnxClassifier:
    """A model file, run on this machine's processors."""

    def __init__(self, path: Path, description: OnnxDescription, folder: Path | None = None) -> None:
        """`folder` is the folder of the description; by default, the folder of the model."""
        self._description = description
        self._session = open_session(path)
        inputs = self._session.get_inputs()
        if not inputs:
            raise PermanentError(
                f"{str(path)!r} has no input for a picture; export the model with an input", code="model-unsupported"
            )
        self._input = inputs[0].name
        labels = description.labels
        self.labels = read_labels((folder or path.parent) / labels) if isinstance(labels, str) else labels
        self.names = Names(self.labels)
        self.fingerprint = _fingerprint(path, description)
        self._pool = _pool()
        self.limits = description.limits()

    def prepare(self, pixels: Pixels) -> Pixels:
        # A copy, so that the array of all views is not kept in memory.
        return self._description.fit(pixels, self._description.size).copy()

    async def label(self, batch: Sequence[Pixels]) -> list[Answer]:
        return await asyncio.get_running_loop().run_in_executor(self._pool, self._answer, batch)

    async def close(self) -> None:
        """Release the threads; the next call starts new ones."""
        pool, self._pool = self._pool, _pool()
        pool.shutdown(wait=False)

    def logits(self, batch: Sequence[Pixels]) -> Tensor:
        """(n, K): the first output of the model, for comparisons with methods that use only the label."""
        return self.run(self.tensor(batch))

    def tensor(self, batch: Sequence[Pixels]) -> Tensor:
        """(n, channels, height, width): prepared pictures as model input."""
        return self._description.normalise(np.stack(batch))

    def run(self, tensor: Tensor) -> Tensor:
        """(n, K): run the model; returns its first output."""
        try:
            output: Tensor = self._session.run(None, {self._input: tensor})[0]
        except Exception as error:  # onnxruntime exceptions have no public base class
            why = " ".join(str(error).split())[:200]
            raise PermanentError(
                f"the model cannot be run on an input of shape {tensor.shape}: {why}", code="model-unsupported"
            ) from None
        if not isinstance(output, np.ndarray) or output.dtype.kind not in "fiu":
            raise PermanentError(
                "the model's first output is not an array of numbers; export the model with scores as first output",
                code="model-unsupported",
            )
        return output

    def _answer(self, batch: Sequence[Pixels]) -> list[Answer]:
        logits = self.logits(batch)
        if logits.shape != (len(batch), len(self.labels)):
            raise PermanentError(
                f"the model's output has shape {logits.shape} for {len(batch)} pictures, "
                f"but its description names {len(self.labels)} labels",
                code="model-unsupported",
            )
        if not self._description.scores:
            return [Answer(position_word(code)) for code in logits.argmax(axis=1)]
        order = np.argsort(-logits, axis=1, kind="stable")[:, : self._description.scores]
        ranked = [
            tuple((position_word(code), float(shares[code])) for code in codes)
            for codes, shares in zip(order, map(probabilities, logits), strict=True)
        ]
        return [Answer(*options[0], options=options) for options in ranked]


def connect(address: str, settings: Settings) -> Classifier[Pixels]:
    """Connect `onnx:model.onnx`, or the settings of a TOML file."""
    settings = read_beside(Path(address)) if address else settings
    description = described(OnnxDescription, {key: value for key, value in settings.items() if key != "connector"})
    folder = folder_of(settings)
    return OnnxClassifier(folder / description.model, description, folder)


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="onnx")


def open_session(path: Path, model: bytes | None = None):  # type: ignore[no-untyped-def]
    """Open a session for a model file; `model` replaces its content, with weights read from its folder."""
    runtime = _onnxruntime()
    options = runtime.SessionOptions()
    # Calls run side by side, one thread each: that keeps all cores busy with rendering and inference alike, and a
    # result never depends on the number of cores.
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
    if not path.is_file():
        raise PermanentError(f"there is no model file {str(path)!r}", code="description-missing")
    try:
        return runtime.InferenceSession(model or str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime exceptions have no public base class
        raise PermanentError(
            f"{str(path)!r} is not a model that onnxruntime can run: {error}", code="model-unsupported"
        ) from None


def _onnxruntime() -> ModuleType:
    # Set before the import: from 1.29 on onnxruntime reports its use over the network by default.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtra("ONNX models", "onnx") from None
    return onnxruntime


def _fingerprint(path: Path, description: OnnxDescription) -> str:
    how = description.model_dump(
        exclude={"model", "labels", "batch", "working_size", *([] if description.scores else ["scores"])}
    )
    with path.open("rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()
    return fingerprint("onnx", {**how, "weights": weights})
