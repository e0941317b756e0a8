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
specifies that the server accepts binary tensors. Replies are always JSON.
If the output contains scores, the label with the largest score is used; an integer is the position of the label, and a
text is the label itself. Logits are converted to probabilities by a softmax over all classes.
Without `labels`, the labels are positions, as text.
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
from contextlib import suppress
from typing import NamedTuple, Self

import jmespath
import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, model_validator
from yarl import URL

from looktwice.classifiers.base import Answer, Classifier, Limits, Names, Pixels, Settings, fingerprint
from looktwice.classifiers.onnx import Preprocessing
from looktwice.classifiers.registry import described, labels_of
from looktwice.classifiers.replies import Found, Paths, Reader
from looktwice.classifiers.secrets import Secrets, refuse_literals
from looktwice.classifiers.settings import Encoding, HttpSettings
from looktwice.classifiers.transport import Garbled, Reply, Transport
from looktwice.errors import PermanentError

NUMBERS = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "UINT8": "<u1"}
"""The numpy dtype for each type of numbers that can hold a picture."""
ADDRESS = re.compile(r"(?P<base>.*?)(?:/v2/models)?/(?P<model>[^/]+)(?:/versions/(?P<version>[^/]+))?")


class OipDescription(HttpSettings, Preprocessing):
    """The settings of the server, preprocessing and labels."""

    url: str
    headers: dict[str, str] = Field(default_factory=dict)
    input: str | None = Field(default=None, description="name of the input; by default the model's only input")
    output: str | None = Field(default=None, description="name of the output; by default the model's first output")
    datatype: str | None = Field(
        default=None, description="data type of the input; by default as the server describes it"
    )
    shape: tuple[int, ...] | None = Field(
        default=None, description="shape of the input, -1 for any size; by default as the server describes it"
    )
    binary: bool = Field(default=False, description="send binary tensors even if the server does not announce support")
    labels: tuple[str, ...] | str | None = None
    encoding: Encoding = Encoding()

    @model_validator(mode="after")
    def _writes_no_secret(self) -> Self:
        refuse_literals([("url", self.url), *self.headers.items()], self.public)
        return self


class Tensor(BaseModel):
    """An input or output of a model, in its metadata or in a reply."""

    name: str
    datatype: str
    shape: tuple[int, ...] = ()
    data: list[object] = []


class Tensors(BaseModel):
    """The metadata of a model, or a reply."""

    inputs: tuple[Tensor, ...] | None = None
    outputs: tuple[Tensor, ...] | None = None


class Model(NamedTuple):
    """The interface of a model, from its metadata and the description."""

    input: str
    datatype: str
    shape: tuple[int, ...]
    output: str | None
    binary: bool
    """Whether the server accepts tensors as bytes after the JSON."""

    @property
    def channels_first(self) -> bool:
        """Whether the channels come before height and width."""
        return self.shape[-3] in (1, 3)

    @property
    def size(self) -> tuple[int, int] | None:
        """The input height and width; None if the model accepts any size, or files."""
        if self.datatype == "BYTES":
            return None
        height, width = self.shape[-2:] if self.channels_first else self.shape[-3:-1]
        return (height, width) if min(height, width) > 0 else None


class Request(NamedTuple):
    """A prepared picture."""

    body: bytes
    headers: dict[str, str]


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
        silent = {*HttpSettings.model_fields, "url", "labels", "binary", "encoding"}
        parts = {"url": self._model_url, "encoding": description.encoding.parts()}
        self.fingerprint = fingerprint("oip", description.model_dump(exclude=silent) | parts)

    @property
    def limits(self) -> Limits:
        """The limits and costs of queries; the working size defaults to that of the model."""
        if size := self.model.size:
            return self._description.limits(self._description.usable_size(size))
        encoding = self._description.encoding
        return self._description.limits(
            encoding.usable_size(), encoding=encoding if self.model.datatype == "BYTES" else None
        )

    @property
    def model(self) -> Model:
        """The model's metadata, fetched from the server when it is first needed."""
        with self._lock:
            if self._learned is None:
                given = self._description
                complete = given.input and given.datatype and given.shape
                self._learned = _model(given, Tensors(), []) if complete else self._asked()
            return self._learned

    def prepare(self, pixels: Pixels) -> Request:
        model = self.model
        if model.datatype != "BYTES":
            array = _array(pixels, self._description, model)
            return _request(model, array.shape, array.tobytes() if model.binary else array.ravel().tolist())
        file = self._description.encoding.encode(self._description.encoding.fit(pixels))
        data = struct.pack("<I", len(file)) + file if model.binary else [base64.b64encode(file).decode()]
        return _request(model, (1,) * len(model.shape), data)

    async def label(self, batch: Sequence[Request]) -> list[Answer]:
        return [self._answer(await self._endpoint.send(*request)) for request in batch]

    async def close(self) -> None:
        await self._transport.close()

    def _answer(self, reply: Reply) -> Answer:
        return self._endpoint.answer(reply, self._endpoint.parse(reply), self._read)

    def _read(self, content: object) -> Found:
        """Read the output: a text, a position or scores."""
        try:
            outputs = Tensors.model_validate(content).outputs or ()
            output = next(each for each in outputs if self.model.output in (None, each.name))
            values = np.array(output.data, object).ravel().tolist()
        except (ValueError, StopIteration):
            raise Garbled(f"is not an inference response with output {self.model.output!r}") from None
        if not values:
            raise Garbled("has an empty output")
        if output.datatype == "BYTES" or (len(values) == 1 and "INT" in output.datatype):
            return Reader(Paths(label="[0]"), self.labels).read(values)
        if len(values) != len(self.labels or values) or len(values) == 1:
            named = "a description without labels" if self.labels is None else f"{len(self.labels)} labels"
            raise PermanentError(
                f"the model returns {len(values)} scores for {named}; choose another output = …, or list all labels",
                code="model-unsupported",
            )
        return Reader(Paths(score="@"), self.labels).read(values)

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
            metadata = Tensors.model_validate_json(reply.body)
        except ValueError:
            metadata = None
        if metadata is None:
            raise endpoint.garbled("does not describe a model's inputs and outputs", reply)
        for tensor in (*(metadata.inputs or ()), *(metadata.outputs or ())):  # error messages contain these
            self._secrets.refuse(f"{tensor.name} {tensor.datatype}")
        server = transport.endpoint("GET", self._server_url, self._headers)
        content: object = None
        with suppress(PermanentError):  # a gateway may give access only to the model
            content = server.parse(await server.send())
        return _model(self._description, metadata, jmespath.search("extensions[]", content) or [])


def connect(address: str, settings: Settings) -> Classifier[Request]:
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
    if path is None or not url.host or url.user or url.password or url.raw_query_string:
        raise PermanentError(
            "the url does not name a model, or contains a user, password or query; write oip+http://host:port/model, "
            "and send secrets in headers",
            code="model-unsupported",
        )
    server = f"{url.origin()}{path['base']}/v2"
    version = f"/versions/{path['version']}" if path["version"] else ""
    return server, f"{server}/models/{path['model']}{version}"


def _model(description: OipDescription, metadata: Tensors, extensions: Sequence[object]) -> Model:
    """Combine the description with the metadata, where the picture is the only input unless it is named."""
    named, listed = description.input, metadata.inputs or ()
    inputs = [each for each in listed if named in (None, each.name)]
    known = inputs[0] if len(inputs) == 1 else Tensor(name="", datatype="")
    name = named or known.name
    datatype, shape = description.datatype or known.datatype, description.shape or known.shape
    if not (name and datatype and shape):
        names = ", ".join(repr(each.name) for each in listed) or "none"
        raise PermanentError(
            f"the server does not describe a single input (inputs: {names}); set input for the picture, and its "
            "datatype and shape if the server does not describe it",
            code="model-unsupported",
        )
    fits = datatype in NUMBERS and len(shape) in (3, 4) and {shape[-3], shape[-1]} & {1, 3}
    if datatype != "BYTES" and not fits:
        raise PermanentError(
            f"input {name!r} of type {datatype!r} and shape {list(shape)} cannot hold a picture: an input needs "
            f"channels, height and width of one type of BYTES, {', '.join(NUMBERS)}; set shape if dimensions are free",
            code="model-unsupported",
        )
    first = metadata.outputs[0].name if metadata.outputs else None
    binary = description.binary or "binary_tensor_data" in extensions
    return Model(name, datatype, shape, description.output or first, binary)


def _array(pixels: Pixels, description: OipDescription, model: Model) -> NDArray[np.generic]:
    """Convert a picture to the shape and type of the model's input."""
    look: Preprocessing = description
    channels = model.shape[-3] if model.channels_first else model.shape[-1]
    if channels == 1 and "channels" not in description.model_fields_set:
        look = description.model_copy(update={"channels": "grey"})
    fitted = look.fit(pixels, model.size)
    array: NDArray[np.generic] = fitted
    if model.datatype != "UINT8":
        array = look.normalise(fitted).astype(NUMBERS[model.datatype])
    elif (look.scale, *look.mean, *look.std) != (1.0, 0.0, 1.0):
        raise PermanentError(
            "the model takes whole numbers (UINT8), so scale, mean and std must be left out", code="model-unsupported"
        )
    array = array if model.channels_first else array.transpose(1, 2, 0)
    return array if len(model.shape) == 3 else array[None]


def _request(model: Model, shape: tuple[int, ...], data: bytes | Sequence[object]) -> Request:
    """The request for a picture: bytes follow the JSON."""
    if any(wanted not in (-1, made) for wanted, made in zip(model.shape, shape, strict=True)):
        raise PermanentError(
            f"the model takes an input of shape {list(model.shape)}, but a picture is converted to {list(shape)}; "
            "check channels and shape",
            code="model-unsupported",
        )
    tensor: dict[str, object] = {"name": model.input, "shape": shape, "datatype": model.datatype}
    content: dict[str, object] = {"inputs": [tensor]}
    if model.output is not None:
        content["outputs"] = [{"name": model.output}]
    if isinstance(data, bytes):
        tensor["parameters"] = {"binary_data_size": len(data)}
        head = json.dumps(content).encode()
        length = {"inference-header-content-length": str(len(head))}
        return Request(head + data, {"content-type": "application/octet-stream", **length})
    if model.datatype == "BYTES":
        tensor["parameters"] = {"content_type": "base64"}
    tensor["data"] = data
    return Request(json.dumps(content).encode(), {"content-type": "application/json"})
