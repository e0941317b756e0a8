"""Servers of the Open Inference Protocol, version 2: Triton, MLServer, OpenVINO Model Server, KServe.

    connector = "oip"
    url = "http://host:8000/model"        # or http://host:8000/model/versions/3; a string: oip+http://host:8000/model
    labels = ["cat", "dog"]               # or the name of a text file with one label per line
    crop = 0.875                          # the settings of the ONNX connector, for models that take numbers:
    channels = "rgb"                      # crop, resize, channels, scale, mean, std
    scale = 255.0
    headers = { authorization = "Bearer ${OIP_TOKEN}" }

The name, shape and type of the model's input and output are requested from the server once, when they are first needed.
Numbers (FP16, FP32, FP64, UINT8) are sent in the shape that the model specifies; a model with BYTES input receives the
encoded file. If the description sets `input`, `datatype` and `shape`, no metadata is requested, and `binary = true`
specifies that the server accepts binary tensors.
If the output contains scores, the label with the largest score is used; an integer is the position of the label, and a
text is the label itself. Logits are converted to probabilities by a softmax over all classes.
Without `labels`, Triton returns the model's own labels; for other servers the labels are then positions, as text.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import struct
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from yarl import URL

from looktwice.classifiers.base import (
    MOST_OPTIONS,
    Answer,
    Classifier,
    Limits,
    Names,
    Pixels,
    Settings,
    fingerprint,
)
from looktwice.classifiers.onnx import Preprocessing
from looktwice.classifiers.registry import described, labels_of
from looktwice.classifiers.replies import HEADER_LENGTH, NUMBERS, Model, Reading
from looktwice.classifiers.secrets import Secrets, refuse_literals
from looktwice.classifiers.settings import Encoding, HttpSettings
from looktwice.classifiers.transport import Transport
from looktwice.errors import PermanentError

PICTURES = ("FP16", "FP32", "FP64", "UINT8", "BYTES")
"""The input data types that are supported for pictures."""
BATCH = 8
"""The batch size for models that accept any number of pictures."""
ADDRESS = re.compile(r"(?P<base>.*?)(?:/v2/models)?/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?")


class OipDescription(HttpSettings, Preprocessing):
    """The settings of the server, preprocessing and labels."""

    url: str
    headers: dict[str, str] = Field(default_factory=dict)
    input: str | None = Field(default=None, description="name of the input; the model's only input if left out")
    output: str | None = Field(default=None, description="name of the output; the model's first output if left out")
    datatype: str | None = Field(default=None, description="of the input; requested from the server if left out")
    shape: tuple[int, ...] | None = Field(
        default=None, description="of the input; requested from the server if left out"
    )
    binary: bool = Field(default=False, description="send binary tensors even if the server does not announce support")
    size: tuple[int, int] | None = Field(
        default=None, description="height, width; those of the model's input if left out"
    )
    layout: Literal["chw", "hwc"] | None = Field(default=None, description="derived from the input's shape if left out")
    labels: tuple[str, ...] | str | None = None
    batch: int | None = Field(default=None, ge=1, description="derived from the input's shape if left out")
    encoding: Encoding = Encoding()

    @model_validator(mode="after")
    def _writes_no_secret(self) -> Self:
        refuse_literals([("url", self.url), *self.headers.items()], self.public)
        return self


class TensorInfo(BaseModel):
    """An input or output of a model, as described by its server."""

    name: str
    datatype: str
    shape: tuple[int, ...]


class Metadata(BaseModel):
    """The metadata of a model."""

    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()

    @field_validator("inputs", "outputs", mode="before")
    @classmethod
    def _none(cls, value: object) -> object:
        return value or ()


class Tensor(NamedTuple):
    """A prepared picture: its shape without the batch dimension, and its values as bytes or JSON numbers."""

    shape: tuple[int, ...]
    data: bytes


class OipClassifier:
    """A model on a server with the Open Inference Protocol."""

    def __init__(self, description: OipDescription, labels: tuple[str, ...] | None) -> None:
        self._description = description
        self._server_url, self._model_url = _places(description.url)
        self._secrets = Secrets()
        self._headers = {name.lower(): self._secrets.fill(value) for name, value in description.headers.items()}
        self._transport = Transport(description, self._secrets)
        self._endpoint = self._transport.endpoint("POST", f"{self._model_url}/infer", self._headers)
        self._lock = threading.Lock()
        self._learned: Model | None = None
        self.labels = labels
        self.names = Names(labels)
        settings = description.model_dump(
            exclude={*HttpSettings.model_fields, "url", "labels", "batch", "binary", "encoding"}
        )
        # Without labels in the description, a server that can return class names is asked for them.
        named = description.labels is not None
        parts = {**settings, "url": self._model_url, "named": named, "encoding": description.encoding.parts()}
        self.fingerprint = fingerprint("oip", parts)

    @property
    def limits(self) -> Limits:
        """The limits and costs of queries; the working and batch sizes default to those of the model."""
        batch = self._description.batch or self.model.batch
        if size := self._description.size or _size(self.model, self._description.layout):
            return self._description.limits(self._description.usable_size(size), batch)
        encoding = self._description.encoding if self.model.datatype == "BYTES" else None
        return self._description.limits(self._description.encoding.usable_size(), batch, encoding)

    @property
    def model(self) -> Model:
        """The model's metadata, fetched from the server when it is first needed."""
        with self._lock:
            if self._learned is None:
                given = self._description
                complete = given.input and given.datatype and given.shape
                self._learned = _model(given, Metadata(), (), BATCH) if complete else self._asked()
            return self._learned

    def prepare(self, pixels: Pixels) -> Tensor:
        model = self.model
        if model.datatype == "BYTES":
            return _file(pixels, self._description.encoding, model)
        return _numbers(pixels, self._description, model)

    async def label(self, batch: Sequence[Tensor]) -> list[Answer]:
        model = self.model
        headers, body = _request(batch, model)
        reply = await self._endpoint.send(body, headers)
        reading = Reading(model, self.labels, len(batch))
        return self._endpoint.read(reply, lambda: reading.answers(reply, self._secrets))

    async def close(self) -> None:
        await self._transport.close()

    def _asked(self) -> Model:
        async def learn() -> Model:
            transport = Transport(self._description, self._secrets)
            try:
                return await self._ask(transport)
            finally:
                await transport.close()

        # In a separate thread, because the caller's event loop may be running.
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(lambda: asyncio.run(learn())).result()

    async def _ask(self, transport: Transport) -> Model:
        endpoint = transport.endpoint("GET", self._model_url, self._headers)
        reply = await endpoint.send()
        try:
            metadata = Metadata.model_validate_json(reply.body)
        except ValidationError:
            metadata = None
        if metadata is None:
            raise endpoint.garbled("does not describe a model's inputs and outputs", reply)
        for tensor in (*metadata.inputs, *metadata.outputs):  # error messages contain these
            self._secrets.refuse(f"{tensor.name} {tensor.datatype}")
        named = (await self._details(transport, self._server_url)).get("extensions")
        extensions = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
        most: object = None  # Triton's maximum batch size, which is not in the metadata
        if "model_configuration" in extensions:
            most = (await self._details(transport, f"{self._model_url}/config")).get("max_batch_size")
        return _model(
            self._description, metadata, extensions, min(BATCH, most) if isinstance(most, int) and most > 0 else BATCH
        )

    async def _details(self, transport: Transport, url: str) -> dict[str, object]:
        """Request a JSON object from the server; returns an empty one if a gateway gives access only to the model."""
        endpoint = transport.endpoint("GET", url, self._headers)
        try:
            content = endpoint.parse(await endpoint.send())
        except PermanentError:
            return {}
        return content if isinstance(content, dict) else {}


def connect(address: str, settings: Settings) -> Classifier[Tensor]:
    """Connect `oip+http://host/model`, or the settings of a TOML file."""
    description = described(OipDescription, {"url": address, **settings} if address else settings)
    return OipClassifier(description, labels_of(description.labels, settings))


def _places(text: str) -> tuple[str, str]:
    """The URLs of the server and of its model."""
    try:
        url = URL(text)
    except ValueError:
        url = URL()
    path = ADDRESS.fullmatch(url.raw_path)
    if url.user or url.password or url.raw_query_string:
        raise PermanentError(
            "the url of a model contains a user, password or query; send secrets in headers instead",
            code="model-unsupported",
        )
    if path is None or not url.host:
        raise PermanentError(
            f"{text!r} does not name a model; write oip+http://host:port/model", code="model-unsupported"
        )
    server = f"{url.origin()}{path['base']}/v2"
    version = f"/versions/{path['version']}" if path["version"] else ""
    return server, f"{server}/models/{path['model']}{version}"


def _model(description: OipDescription, metadata: Metadata, extensions: Sequence[str], most: int) -> Model:
    tensor = _input(description, metadata)
    if tensor.datatype not in PICTURES:
        what = f"input {tensor.name!r} takes {tensor.datatype!r}"
        raise PermanentError(f"{what}, which cannot hold a picture; use {PICTURES}", code="model-unsupported")
    outputs = [one for one in metadata.outputs if description.output in (None, one.name)]
    tells_text = bool(outputs) and outputs[0].datatype == "BYTES"
    return Model(
        tensor.name,
        tensor.datatype,
        tensor.shape,
        description.output or (metadata.outputs[0].name if metadata.outputs else None),
        _batch(tensor, description, most),
        description.binary or "binary_tensor_data" in extensions,
        description.labels is None and "classification" in extensions and not tells_text,
    )


def _input(description: OipDescription, metadata: Metadata) -> TensorInfo:
    """The input for the picture: the one in the description, otherwise the only one in the metadata."""
    inputs = {one.name: one for one in metadata.inputs}
    if description.input is None and len(inputs) > 1:
        raise PermanentError(
            f'the model has inputs {", ".join(map(repr, inputs))}; specify the one for the picture with input = "…"',
            code="model-unsupported",
        )
    name = description.input or next(iter(inputs), None)
    known = inputs.get(name or "")
    datatype = description.datatype or (known and known.datatype)
    shape = description.shape or (known and known.shape)
    if not (name and datatype and shape):
        raise PermanentError(
            f"the server does not describe the model's input (inputs: {', '.join(map(repr, inputs)) or 'none'}); "
            "set input, datatype and shape in the description",
            code="model-unsupported",
        )
    return TensorInfo(name=name, datatype=datatype, shape=shape)


def _batch(tensor: TensorInfo, description: OipDescription, most: int) -> int:
    """The batch size: larger than one if the first dimension is free and all pictures have the same shape."""
    free = tensor.shape[0] == -1 and len(tensor.shape) != 3
    fixed = tensor.datatype == "BYTES" or description.size is not None or tensor.shape.count(-1) == 1
    if not free and tensor.shape[0] != 1 and len(tensor.shape) != 3:
        raise PermanentError(
            f"input {tensor.name!r} of shape {list(tensor.shape)} does not accept a single picture",
            code="model-unsupported",
        )
    return most if free and fixed else 1


def _file(pixels: Pixels, encoding: Encoding, model: Model) -> Tensor:
    data = encoding.encode(encoding.fit(pixels))
    shape = (1,) * (len(model.shape) - 1)
    if model.binary:
        return Tensor(shape, struct.pack("<I", len(data)) + data)
    return Tensor(shape, b'"' + base64.b64encode(data) + b'"')


def _numbers(pixels: Pixels, description: OipDescription, model: Model) -> Tensor:
    """Convert a picture to the shape and type of the model's input."""
    height, width, count, first = _dimensions(model, description.layout)
    look: Preprocessing = description
    if count == 1 and "channels" not in description.model_fields_set:
        look = description.model_copy(update={"channels": "grey"})
    fitted = look.fit(pixels, description.size or _size(model, description.layout))
    array: NDArray[np.generic] = fitted
    if model.datatype != "UINT8":
        array = look.normalise(fitted).astype(NUMBERS[model.datatype])
    elif (look.scale, *look.mean, *look.std) != (1.0, 0.0, 1.0):
        raise PermanentError(
            "the model takes whole numbers (UINT8), so scale, mean and std must be left out", code="model-unsupported"
        )
    if any(wanted not in (-1, made) for wanted, made in zip((count, height, width), array.shape, strict=True)):
        raise PermanentError(
            f"the model takes {count} × {height} × {width} (channels, height, width), but the description produces "
            f"{' × '.join(map(str, array.shape))} from a picture; check size, channels, mean and std",
            code="model-unsupported",
        )
    array = array if first else array.transpose(1, 2, 0)
    if model.binary:
        return Tensor(array.shape, array.tobytes())
    # Row by row, because each number takes thirty bytes as a Python object.
    rows = (json.dumps(row.tolist(), separators=(",", ":"))[1:-1] for row in array.reshape(-1, array.shape[-1]))
    return Tensor(array.shape, ",".join(rows).encode())


def _dimensions(model: Model, layout: str | None) -> tuple[int, int, int, bool]:
    """The height, width and number of channels, and whether the channels come first."""
    shape = model.shape[-3:]
    if len(model.shape) not in (3, 4):
        raise PermanentError(
            f"input {model.input!r} has shape {list(model.shape)}, which does not fit a picture: "
            "it needs channels, height and width",
            code="model-unsupported",
        )
    if layout == "chw" or (layout is None and shape[0] in (1, 3)):
        return shape[1], shape[2], shape[0], True
    if layout == "hwc" or shape[2] in (1, 3):
        return shape[0], shape[1], shape[2], False
    raise PermanentError(
        f'input {model.input!r} has shape {list(model.shape)}; set layout = "chw" or "hwc"', code="model-unsupported"
    )


def _size(model: Model, layout: str | None) -> tuple[int, int] | None:
    """The input height and width of a model; returns None if it accepts any size, or files."""
    if model.datatype == "BYTES":
        return None
    height, width, *_ = _dimensions(model, layout)
    return (height, width) if min(height, width) > 0 else None


def _request(batch: Sequence[Tensor], model: Model) -> tuple[dict[str, str], bytes]:
    """The headers and the body of one request."""
    batched = model.datatype == "BYTES" or len(model.shape) == 4
    first = batch[0]
    if len(batch) > 1 and not (batched and all(one.shape == first.shape for one in batch)):
        raise PermanentError(
            "these pictures cannot be sent in one call; set batch = 1, or set size if their sizes differ",
            code="model-unsupported",
        )
    shape = [len(batch), *first.shape] if batched else list(first.shape)
    tensor: dict[str, object] = {"name": model.input, "shape": shape, "datatype": model.datatype}
    if model.binary:
        data = b"".join(one.data for one in batch)
        tensor["parameters"] = {"binary_data_size": len(data)}
        head = json.dumps({"inputs": [tensor], **_outputs(model)}).encode()
        return {"content-type": "application/octet-stream", HEADER_LENGTH: str(len(head))}, head + data
    if model.datatype == "FP16":
        raise PermanentError(
            "the model takes FP16, which JSON cannot hold, but its server does not support binary tensors",
            code="model-unsupported",
        )
    if model.datatype == "BYTES":
        tensor["parameters"] = {"content_type": "base64"}
    head = json.dumps({**_outputs(model), "inputs": [tensor]}).encode()
    data = b",".join(one.data for one in batch)
    return {"content-type": "application/json"}, head[:-3] + b', "data": [' + data + b"]}]}"


def _outputs(model: Model) -> dict[str, object]:
    if model.output is None:
        return {}
    parameters: dict[str, object] = {"classification": MOST_OPTIONS} if model.classification else {}
    if model.binary:
        parameters["binary_data"] = True
    return {"outputs": [{"name": model.output, **({"parameters": parameters} if parameters else {})}]}
