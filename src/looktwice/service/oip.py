"""The Open Inference Protocol, version 2: pictures in, verdicts out.

A client that spoke to the classifier through this protocol only changes its address. Pictures come as BYTES (the
file; in JSON as base64) or as UINT8 (height x width x channels, one or a batch of them), in JSON or as binary tensors.
Label and confidence come back; a client that names its outputs can have every part of a verdict.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from looktwice import __version__
from looktwice.errors import ImageError
from looktwice.pictures.collection import Held, Source
from looktwice.pictures.image import Image
from looktwice.service import Limits
from looktwice.service.bodies import EXAMPLE, JSON, Opened, Upload, checked, from_base64
from looktwice.service.replies import Refusal
from looktwice.verdicts.look import Verdict

MODEL = "looktwice"
VERSION = "1"
SERVER = {"name": "looktwice", "version": __version__, "extensions": ["binary_tensor_data"]}
HEADER_LENGTH = "inference-header-content-length"
DEFAULT = ("label", "confidence")
"""The outputs of a request that names none."""


@dataclass(frozen=True)
class Output:
    """A tensor that goes out, with one element a picture."""

    datatype: Literal["BYTES", "FP32", "INT32"]
    element: Callable[[Verdict], str | float]

    def packed(self, elements: Sequence[str | float]) -> bytes:
        """The elements as a binary tensor; each text has its length, in 4 bytes, before it."""
        if self.datatype == "BYTES":
            texts = [str(element).encode() for element in elements]
            return b"".join(struct.pack("<I", len(text)) + text for text in texts)
        return np.array(elements, {"FP32": "<f4", "INT32": "<i4"}[self.datatype]).tobytes()


OUTPUTS = {
    "label": Output("BYTES", lambda verdict: verdict.label),
    "confidence": Output("FP32", lambda verdict: verdict.confidence),
    "low": Output("FP32", lambda verdict: verdict.low),
    "high": Output("FP32", lambda verdict: verdict.high),
    "base": Output("BYTES", lambda verdict: verdict.base),
    "votes": Output("BYTES", lambda verdict: json.dumps([{"view": v, "label": label} for v, label in verdict.votes])),
    "queries": Output("INT32", lambda verdict: verdict.queries),
    "decision": Output("BYTES", lambda verdict: verdict.decision or ""),
    "prediction_set": Output("BYTES", lambda verdict: json.dumps(verdict.prediction_set)),
    "evidence": Output("BYTES", lambda verdict: verdict.evidence),
    "score": Output("BYTES", lambda verdict: json.dumps(verdict.score)),
    "familiarity": Output("FP32", lambda verdict: -1.0 if verdict.familiarity is None else verdict.familiarity),
    "unfamiliar_because": Output("BYTES", lambda verdict: verdict.unfamiliar_because or ""),
    "sentence": Output("BYTES", lambda verdict: verdict.sentence()),
}
"""Every part of a verdict; `votes`, `prediction_set` and `score` are JSON, as /v1/look has them.

`familiarity` is -1 where the profile cannot tell.
"""
METADATA = {
    "name": MODEL,
    "versions": [VERSION],
    "platform": "looktwice",
    "inputs": [{"name": "image", "datatype": "BYTES", "shape": [-1]}],
    "outputs": [{"name": name, "datatype": output.datatype, "shape": [-1]} for name, output in OUTPUTS.items()],
}


class _Part(BaseModel):
    model_config = ConfigDict(strict=True)


class Parameters(_Part):
    """The parameters that mean something here; others are let pass, as the protocol wants it."""

    binary_data_size: int | None = Field(default=None, ge=0)
    binary_data: bool = False
    binary_data_output: bool = False


class InputTensor(_Part):
    """A tensor that comes in."""

    name: str
    shape: list[int] = Field(min_length=1, max_length=4)
    datatype: str
    data: list[object] | None = None
    parameters: Parameters = Parameters()


class RequestedOutput(_Part):
    """A tensor that is wanted."""

    name: str
    parameters: Parameters = Parameters()


class InferenceBody(BaseModel):
    """What a client asks."""

    model_config = ConfigDict(
        strict=True,
        json_schema_extra={
            "examples": [{"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": [EXAMPLE]}]}]
        },
    )

    id: str | None = Field(default=None, max_length=200)
    inputs: list[InputTensor] = Field(min_length=1, max_length=1)
    outputs: list[RequestedOutput] | None = Field(default=None, max_length=len(OUTPUTS))
    parameters: Parameters = Parameters()


class OutputTensor(BaseModel):
    """A tensor that goes out."""

    name: str
    shape: list[int]
    datatype: str
    data: list[str | float]


class InferenceReply(BaseModel):
    """What a client gets."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[OutputTensor]


class ErrorReply(BaseModel):
    """Why a client gets nothing."""

    error: str


@dataclass(frozen=True)
class Inference:
    """A request that was read."""

    sources: list[Source]
    outputs: list[tuple[str, bool]]
    """Each output that is wanted, and whether as a binary tensor."""
    id: str | None

    def reply(self, verdicts: Sequence[Verdict]) -> Response:
        """The verdicts as the client wants them."""
        outputs, blobs = [], []
        for name, binary in self.outputs:
            output = OUTPUTS[name]
            elements = [output.element(verdict) for verdict in verdicts]
            blob = output.packed(elements) if binary else b""
            data = {"parameters": {"binary_data_size": len(blob)}} if binary else {"data": elements}
            outputs.append({"name": name, "datatype": output.datatype, "shape": [len(elements)], **data})
            blobs.append(blob)
        response = {"model_name": MODEL, "model_version": VERSION, "outputs": outputs}
        text = json.dumps(response if self.id is None else {**response, "id": self.id}).encode()
        if not any(binary for _, binary in self.outputs):
            return Response(text, media_type=JSON)
        headers = {HEADER_LENGTH: str(len(text))}
        return Response(b"".join([text, *blobs]), headers=headers, media_type="application/octet-stream")


def read(body: bytes, header_length: str | None, limits: Limits) -> Inference:
    """The pictures of a request and the outputs it asks for; a Refusal says what is wrong with it."""
    length = str(len(body)) if header_length is None else header_length
    if not (length.isascii() and length.isdecimal() and len(length) < 12 and int(length) <= len(body)):
        raise Refusal("request", "Inference-Header-Content-Length must be the length of the JSON, within the body")
    end = int(length)
    asked = checked(InferenceBody, body[:end])
    sources = _sources(asked.inputs[0], body[end:], limits)
    if not 1 <= len(sources) <= limits.pictures:
        raise Refusal("request", f"there are {len(sources)} pictures; send 1 to {limits.pictures} in one request")
    binary = asked.parameters.binary_data_output
    for output in asked.outputs or ():
        if output.name not in OUTPUTS:
            raise Refusal("request", f"there is no output {output.name[:60]!r}; there are {', '.join(OUTPUTS)}")
    outputs = [(output.name, output.parameters.binary_data or binary) for output in asked.outputs or ()]
    return Inference(sources, outputs or [(name, binary) for name in DEFAULT], asked.id)


def refuse(refusal: Refusal) -> Response:
    """A refusal in the words of the protocol."""
    response = refusal.response()
    body = ErrorReply(error=str(refusal)).model_dump_json()
    kept = {name: value for name, value in response.headers.items() if not name.startswith("content-")}
    return Response(body, refusal.status, kept, JSON)


# What comes in -----------------------------------------------------------------------------------------------------


def _sources(tensor: InputTensor, blob: bytes, limits: Limits) -> list[Source]:
    if tensor.parameters.binary_data_size not in (None, len(blob)):
        size = tensor.parameters.binary_data_size
        raise Refusal("request", f"{size} bytes of binary data are announced and {len(blob)} came")
    binary = tensor.parameters.binary_data_size is not None
    if tensor.datatype == "BYTES":
        files = _packed(blob) if binary else []
        for place, item in enumerate(() if binary else tensor.data or ()):
            if not isinstance(item, str):
                raise Refusal("request", f"element {place} of the BYTES tensor is no text; send the file in base64")
            files.append(from_base64(item, f"element {place}"))
        if len(files) != math.prod(tensor.shape):
            raise Refusal("request", f"the shape {tensor.shape} does not hold the {len(files)} pictures that came")
        return [Opened(Upload(f"picture {place}", data), limits.pixels) for place, data in enumerate(files)]
    if tensor.datatype == "UINT8":
        return _pixels(tensor.shape, blob if binary else _bytes(tensor.data or []), limits)
    raise Refusal("request", f"datatype {tensor.datatype[:20]!r} is not taken; send a picture as BYTES or UINT8")


def _packed(blob: bytes) -> list[bytes]:
    """Elements of a binary BYTES tensor: each has its length, in 4 bytes, before it."""
    files, at = [], 0
    while at < len(blob):
        if at + 4 > len(blob) or (end := at + 4 + struct.unpack_from("<I", blob, at)[0]) > len(blob):
            raise Refusal("request", "the binary BYTES tensor is cut off; put 4 bytes of length before each element")
        files.append(blob[at + 4 : end])
        at = end
    return files


def _bytes(data: list[object]) -> bytes:
    """Numbers of a JSON tensor, flat or nested."""
    if not data:
        return b""
    try:
        numbers = np.array(data)
    except ValueError:
        raise Refusal("request", "the rows of the UINT8 tensor differ in length") from None
    if numbers.dtype.kind not in "iu" or numbers.min() < 0 or numbers.max() > 255:
        raise Refusal("request", "the UINT8 tensor must hold whole numbers from 0 to 255")
    return numbers.astype(np.uint8).tobytes()


def _pixels(shape: list[int], data: bytes, limits: Limits) -> list[Source]:
    if len(shape) < 2 or min(shape) < 1 or math.prod(shape) != len(data):
        raise Refusal("request", f"the shape {shape} does not hold the {len(data)} values that came")
    batch = np.frombuffer(data, np.uint8).reshape(shape if len(shape) == 4 else [1, *shape])
    if batch.shape[1] * batch.shape[2] > limits.pixels:
        raise Refusal("picture", f"the picture has more than {limits.pixels:,} pixels; make it smaller")
    try:
        return [Held(Image.of(pixels)) for pixels in batch]
    except ImageError as error:
        raise Refusal("picture", str(error)) from None
