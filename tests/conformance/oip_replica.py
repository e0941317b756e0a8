"""A replica of an Open Inference Protocol server, for inputs and outputs that one real server does not show all.

It follows the published protocol with its binary-tensor and classification extensions;
tests/classifiers/test_real_servers.py asks MLServer and Triton themselves.
"""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from aiohttp import web
from numpy.typing import NDArray

from conformance.replica import model
from looktwice.classifiers.base import Pixels

TYPES = {"FP16": "<f2", "FP32": "<f4", "FP64": "<f8", "UINT8": "<u1", "INT64": "<i8"}


@dataclass(frozen=True)
class Served:
    """What the model of the replica takes and gives."""

    datatype: str = "FP32"
    shape: tuple[int, ...] = (-1, 1, 28, 28)
    gives: str = "logits"
    """logits, shares, index or label."""
    extensions: tuple[str, ...] = ()


def oip_routes(served: Served = Served()) -> web.RouteTableDef:
    """The routes of the protocol."""
    routes = web.RouteTableDef()

    @routes.get("/v2")
    async def server(request: web.Request) -> web.Response:
        return web.json_response({"name": "replica", "version": "1", "extensions": served.extensions})

    @routes.get("/v2/models/fashion")
    async def metadata(request: web.Request) -> web.Response:
        given = {"index": ("INT64", [-1]), "label": ("BYTES", [-1])}.get(served.gives, ("FP32", [-1, 10]))
        told = {
            "name": "fashion",
            "versions": ["1"],
            "platform": "onnx",
            "inputs": [{"name": "picture", "datatype": served.datatype, "shape": served.shape}],
            "outputs": [{"name": "answer", "datatype": given[0], "shape": given[1]}],
        }
        return web.json_response(told)

    @routes.post("/v2/models/fashion/infer")
    async def infer(request: web.Request) -> web.Response:
        body = await request.read()
        length = int(request.headers.get("Inference-Header-Content-Length", len(body)))
        asked = json.loads(body[:length])
        pictures = _pictures(served, asked["inputs"][0], body[length:])
        return _reply(served, asked, [model().run(picture[None])[0] for picture in pictures])

    return routes


def _pictures(served: Served, told: dict[str, object], rest: bytes) -> list[NDArray[np.float32]]:
    """What the model behind it takes: 1 × 28 × 28 each."""
    assert (told["name"], told["datatype"]) == ("picture", served.datatype)
    shape = told["shape"]
    assert isinstance(shape, list)
    assert len(shape) == len(served.shape)
    assert all(want in (-1, got) for want, got in zip(served.shape, shape, strict=True))
    if served.datatype == "BYTES":
        return [_of_file(file) for file in _files(told, rest)]
    numbers = np.frombuffer(rest, TYPES[served.datatype]) if rest else np.array(told["data"], TYPES[served.datatype])
    rows = numbers.reshape([-1, *shape[-3:]]).astype(np.float32)
    rows = rows if shape[-3] in (1, 3) else rows.transpose(0, 3, 1, 2)
    if served.datatype == "UINT8":
        return [_of_pixels(np.repeat(row, 3 // len(row), axis=0).transpose(1, 2, 0).astype(np.uint8)) for row in rows]
    return [row[:1] for row in rows]


def _files(told: dict[str, object], rest: bytes) -> list[bytes]:
    if not rest:
        assert told["parameters"] == {"content_type": "base64"}
        data = told["data"]
        assert isinstance(data, list)
        return [base64.b64decode(text, validate=True) for text in data]
    assert told["parameters"] == {"binary_data_size": len(rest)}
    return _split(rest)


def _split(rest: bytes) -> list[bytes]:
    files, at = [], 0
    while at < len(rest):
        (length,) = struct.unpack_from("<I", rest, at)
        files.append(rest[at + 4 : at + 4 + length])
        at += 4 + length
    return files


def _of_file(file: bytes) -> NDArray[np.float32]:
    decoded = cv2.imdecode(np.frombuffer(file, np.uint8), cv2.IMREAD_COLOR)
    assert decoded is not None, "the tensor holds no picture"
    return _of_pixels(cv2.cvtColor(decoded, cv2.COLOR_BGR2RGB).astype(np.uint8, copy=False))


def _of_pixels(pixels: Pixels) -> NDArray[np.float32]:
    return model().tensor([model().prepare(pixels)])[0]


def _reply(served: Served, asked: dict[str, object], logits: Sequence[NDArray[np.float32]]) -> web.Response:
    assert asked.get("outputs", [{"name": "answer"}]) == [{"name": "answer"}]
    told, data = _told(served, np.stack(logits))
    # A second output in front, since the one asked for need not be the first.
    spare: dict[str, object] = {"name": "spare", "datatype": "INT64", "shape": [1]}
    told["parameters"] = None  # as KServe writes it
    told["data"] = data if isinstance(data, list) else data.ravel().tolist()
    return web.json_response({"model_name": "fashion", "outputs": [{**spare, "data": [7]}, told]})


def _told(served: Served, logits: NDArray[np.float32]) -> tuple[dict[str, object], list[str] | NDArray[np.generic]]:
    """The output without its data, and its data."""
    best = logits.argmax(axis=1)
    if served.gives == "label":
        return {"name": "answer", "datatype": "BYTES", "shape": [len(best)]}, [model().labels[i] for i in best]
    if served.gives == "index":
        return {"name": "answer", "datatype": "INT64", "shape": [len(best)]}, best.astype("<i8")
    rows = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True) if served.gives == "shares" else logits
    return {"name": "answer", "datatype": "FP32", "shape": list(rows.shape)}, rows.astype("<f4")
