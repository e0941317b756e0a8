"""An ONNX model on this machine, through onnxruntime (extra `onnx`).

The model's TOML file says how a picture becomes its input:

    connector = "onnx"
    model = "model.onnx"      # beside the TOML file
    size = [224, 224]         # height, width
    crop = 0.875              # share of the short side kept by a centred square; leave out to stretch the whole
    resize = "linear"         # nearest, linear, cubic or area
    channels = "rgb"          # rgb, bgr or grey
    scale = 255.0             # x = (pixels / scale - mean) / std
    mean = [0.485, 0.456, 0.406]
    std = [0.229, 0.224, 0.225]
    labels = ["cat", "dog"]   # or the name of a text file with one label a line

`onnx:model.onnx` reads `model.toml` beside the model.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from secondlook.classifiers import Classifier, Pixels, Settings, Terms, fingerprint, read_toml
from secondlook.errors import MissingExtra, PermanentError
from secondlook.votes import Answer

Tensor = NDArray[np.float32]


class Description(BaseModel):
    """How a picture becomes the model's input, and its output a label."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: str
    size: tuple[int, int] = Field(description="height, width")
    crop: float | None = Field(None, gt=0, le=1)
    resize: Literal["nearest", "linear", "cubic", "area"] = "linear"
    channels: Literal["rgb", "bgr", "grey"] = "rgb"
    scale: float = Field(1.0, gt=0)
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)
    labels: tuple[str, ...] | str
    batch: int = Field(64, ge=1)


class OnnxClassifier:
    """A model file, run on this machine's processors."""

    def __init__(self, path: Path, description: Description) -> None:
        self._description = description
        self._session = _session(path)
        self._input = self._session.get_inputs()[0].name
        self.labels = _labels(path.parent, description)
        self.fingerprint = _fingerprint(path, description, self.labels)
        self.terms = Terms(batch=description.batch, concurrency=os.cpu_count() or 1, local=True)
        count = 1 if description.channels == "grey" else 3
        self._mean = np.broadcast_to(np.array(description.mean, np.float32), (count,))[:, None, None]
        self._std = np.broadcast_to(np.array(description.std, np.float32), (count,))[:, None, None]

    def prepare(self, pixels: Pixels) -> Tensor:
        fitted = _fit(pixels, self._description)
        return (fitted.astype(np.float32) / np.float32(self._description.scale) - self._mean) / self._std

    async def label(self, batch: Sequence[Tensor]) -> list[Answer]:
        return await asyncio.to_thread(self._run, batch)

    async def close(self) -> None:
        """Nothing to give back."""

    def logits(self, batch: Sequence[Tensor]) -> Tensor:
        """(n, K): the model's first output, for comparison with what a closed classifier does not show."""
        output: Tensor = self._session.run(None, {self._input: np.stack(batch)})[0]
        return output

    def _run(self, batch: Sequence[Tensor]) -> list[Answer]:
        logits = self.logits(batch)
        if logits.shape != (len(batch), len(self.labels)):
            raise PermanentError(
                f"the model's output has shape {logits.shape} for {len(batch)} pictures, "
                f"but its description names {len(self.labels)} labels"
            )
        return [Answer(self.labels[code]) for code in logits.argmax(axis=1)]


def connect(address: str, settings: Settings) -> Classifier[Tensor]:
    """`onnx:model.onnx`, or the settings of a TOML file."""
    if address:
        path = Path(address)
        settings = {"model": path.name, **read_toml(path.with_suffix(".toml")), "folder": str(path.parent)}
    values = {key: value for key, value in settings.items() if key not in ("folder", "connector")}
    try:
        description = Description.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise PermanentError(f"the description of the ONNX model is wrong at {where!r}: {first['msg']}") from None
    return OnnxClassifier(Path(str(settings["folder"])) / description.model, description)


def _fit(pixels: Pixels, description: Description) -> Pixels:
    """Channels × height × width as the model takes it."""
    import cv2

    height, width = description.size
    if description.crop is not None:
        pixels = _centre(pixels, description.crop)
    if pixels.shape[:2] != (height, width):
        rules = {
            "nearest": cv2.INTER_NEAREST,
            "linear": cv2.INTER_LINEAR,
            "cubic": cv2.INTER_CUBIC,
            "area": cv2.INTER_AREA,
        }
        pixels = cv2.resize(pixels, (width, height), interpolation=rules[description.resize]).astype(
            np.uint8, copy=False
        )
    if description.channels == "grey":
        return cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)[None].astype(np.uint8, copy=False)
    return (pixels[:, :, ::-1] if description.channels == "bgr" else pixels).transpose(2, 0, 1)


def _centre(pixels: Pixels, share: float) -> Pixels:
    """The centred square with this share of the short side."""
    height, width = pixels.shape[:2]
    side = max(1, round(min(height, width) * share))
    top, left = (height - side) // 2, (width - side) // 2
    return np.ascontiguousarray(pixels[top : top + side, left : left + side])


def _session(path: Path):  # type: ignore[no-untyped-def]
    runtime = _onnxruntime()
    options = runtime.SessionOptions()
    # Calls run side by side, one thread each: that keeps all cores busy with rendering and inference alike.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    if not path.is_file():
        raise PermanentError(f"there is no model file {str(path)!r}")
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime raises types of its own that share no public root
        raise PermanentError(f"{str(path)!r} is not a model that onnxruntime can run: {error}") from None


def _onnxruntime() -> ModuleType:
    # Set before the import: from 1.29 on onnxruntime reports its use over the network by default.
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        import onnxruntime
    except ImportError:
        raise MissingExtra("ONNX models", "onnx") from None
    return onnxruntime


def _labels(folder: Path, description: Description) -> tuple[str, ...]:
    if isinstance(description.labels, tuple):
        return description.labels
    path = folder / description.labels
    try:
        return tuple(path.read_text("utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise PermanentError(f"the label file {str(path)!r} cannot be read: {error}") from None


def _fingerprint(path: Path, description: Description, labels: tuple[str, ...]) -> str:
    how = description.model_dump(exclude={"model", "labels", "batch"})
    with path.open("rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()
    return fingerprint("onnx", {**how, "labels": labels, "weights": weights})
