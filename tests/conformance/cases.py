"""One case a connector."""

from __future__ import annotations

import base64
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
from aiohttp import web

from conformance.chat_replica import anthropic_routes, gemini_routes, openai_routes, responses_routes
from conformance.oip_replica import Served, oip_routes
from conformance.replica import DEMO, labels_of, logits_of_file, model, shares_of
from looktwice.classifiers.base import AnyClassifier, Pixels
from looktwice.classifiers.chat.vendors import Completions, Gemini, Messages, Responses
from looktwice.classifiers.command import connect as connect_command
from looktwice.classifiers.http import connect as connect_http
from looktwice.classifiers.oip import connect as connect_oip
from looktwice.classifiers.onnx import connect as connect_onnx
from looktwice.classifiers.python import PythonClassifier, batched
from looktwice.classifiers.registry import read_toml
from looktwice.classifiers.settings import Encoding

KEY = "CONFORMANCE_KEY"
"""The environment variable that served cases read their key from."""
Changes = Mapping[str, object]


Gives = Literal["score", "ranks", "scores"]
"""A score for the label, a ranked list, or a ranked list with scores."""

QUIET: tuple[Changes, ...] = (
    {"timeout": 5.0},
    {"connect_timeout": 3.0},
    {"max_reply_bytes": 1_000_000},
    {"concurrency": 3},
    {"per_second": 4.0},
    {"price": "0.01"},
    {"trust_env": True},
    {"public": ["appid"]},
)
"""Settings of every HTTP protocol that cannot change answers."""


@dataclass(frozen=True)
class Case:
    """A connector, how to use it, and what belongs to its fingerprint."""

    name: str
    connect: Callable[[str, Changes], AnyClassifier]
    """The classifier at the replica's address, or with a folder for its files, with some settings changed."""
    telling: tuple[Changes, ...]
    """Changes that could change answers, so the fingerprint must change with each."""
    silent: tuple[Changes, ...] = QUIET
    """Changes that cannot, so the fingerprint must stay."""
    routes: Callable[[], web.RouteTableDef] | None = None
    """What the replica answers; None for a connector that runs on this machine."""
    truth: Callable[[Sequence[Pixels]], list[str]] = labels_of
    """The right labels of pictures."""
    crowd: int = 64
    """Calls at once in the test of concurrent use."""
    spared: frozenset[str] = frozenset()
    """Names of faults that cannot happen to this connector; say why beside them."""
    saying: Mapping[Gives, Changes] = field(default_factory=dict)
    """What its answers can hold beside the label, and the changes with which they do; empty for a label alone."""


def _raw_routes() -> web.RouteTableDef:
    routes = web.RouteTableDef()

    @routes.post("/classify")
    async def classify(request: web.Request) -> web.Response:
        assert request.content_type == "image/png"
        shares = shares_of(await request.read())
        label = max(shares, key=lambda name: shares[name])
        return web.json_response(
            {"label": label, "p": shares[label], "ranked": sorted(shares, key=lambda n: -shares[n])}
        )

    return routes


def _multipart_routes() -> web.RouteTableDef:
    routes = web.RouteTableDef()

    @routes.post("/classify")
    async def classify(request: web.Request) -> web.Response:
        form = await request.post()
        assert form["top"] == "5"
        file = form["photo"]
        assert isinstance(file, web.FileField)
        scores = logits_of_file(file.file.read())
        ranked = sorted(zip(scores, model().labels, strict=True), reverse=True)
        return web.json_response({"found": [{"is": label, "p": score} for score, label in ranked]})

    return routes


def _json_routes() -> web.RouteTableDef:
    routes = web.RouteTableDef()

    @routes.post("/models/{model}/classify")
    async def classify(request: web.Request) -> web.Response:
        said = await request.json()
        assert said["size"] == [28, 28]
        return web.json_response({"scores": [logits_of_file(base64.b64decode(said["image"]["bytes"]))]})

    return routes


def _raw(url: str, changes: Changes) -> AnyClassifier:
    return connect_http(
        "",
        {"url": f"{url}/classify", "headers": {"authorization": f"Bearer ${{{KEY}}}"}, **changes},
    )


def _multipart(url: str, changes: Changes) -> AnyClassifier:
    settings: dict[str, object] = {
        "url": f"{url}/classify",
        "query": {"key": f"${{{KEY}}}"},
        "body": {"kind": "multipart", "field": "photo", "fields": {"top": "5"}},
        "label": "found[].is",
        "score": "found[].p",
    }
    return connect_http("", {**settings, **changes})


def _json(url: str, changes: Changes) -> AnyClassifier:
    settings: dict[str, object] = {
        "url": f"{url}/models/{{name}}/classify",
        "values": {"name": "fashion"},
        "body": {
            "kind": "json",
            "template": {
                "key": f"${{{KEY}}}",
                "image": {"bytes": "{image_base64}"},
                "size": ["{width}", "{height}"],
            },
        },
        "score": "scores[0]",
        "labels": model().labels,
    }
    return connect_http("", {**settings, **changes})


def with_score(image: Pixels) -> tuple[str, float]:
    """The embedded classifier with its score."""
    return max(with_scores(image).items(), key=lambda item: item[1])


def with_scores(image: Pixels) -> dict[str, float]:
    """The embedded classifier with the scores of all labels."""
    return shares_of(Encoding().encode(image))


@batched
async def by_model(images: list[Pixels]) -> list[str]:
    """The embedded classifier as a function of a batch."""
    return labels_of(images)


def by_brightness(image: Pixels) -> str:
    """Another classifier, of one picture."""
    return "bright" if image.mean() > 80 else "dark"


def _python(folder: str, changes: Changes) -> AnyClassifier:
    functions = {"score": with_score, "scores": with_scores, "other": by_brightness}
    return PythonClassifier(functions[str(changes["function"])] if changes else by_model)


def _onnx(folder: str, changes: Changes) -> AnyClassifier:
    return connect_onnx("", {**read_toml(DEMO / "fashion.toml"), "folder": str(DEMO), **changes})


def _oip(url: str, changes: Changes) -> AnyClassifier:
    """The model as its description tells it, so that nothing but questions is asked."""
    look = read_toml(DEMO / "fashion.toml")
    settings: dict[str, object] = {
        "url": f"{url}/fashion",
        "headers": {"authorization": f"Bearer ${{{KEY}}}"},
        "input": "picture",
        "output": "answer",
        "datatype": "FP32",
        "shape": [-1, 1, 28, 28],
        **{name: look[name] for name in ("labels", "crop", "channels", "scale", "mean", "std")},
    }
    return connect_oip("", {**settings, **changes})


def _oip_binary(url: str, changes: Changes) -> AnyClassifier:
    return _oip(url, {"binary": True, **changes})


def _openai(url: str, changes: Changes) -> AnyClassifier:
    settings = {"url": f"{url}/v1", "key": KEY, "model": "fashion", "labels": model().labels}
    return Completions.connect("", {**settings, **changes})


def _anthropic(url: str, changes: Changes) -> AnyClassifier:
    settings = {"url": url, "key": KEY, "model": "fashion", "labels": model().labels}
    return Messages.connect("", {**settings, **changes})


def _responses(url: str, changes: Changes) -> AnyClassifier:
    settings = {"url": f"{url}/v1", "key": KEY, "model": "fashion", "labels": model().labels}
    return Responses.connect("", {**settings, **changes})


def _gemini(url: str, changes: Changes) -> AnyClassifier:
    settings = {"url": url, "key": KEY, "model": "fashion", "labels": model().labels}
    return Gemini.connect("", {**settings, **changes})


CHAT: tuple[Changes, ...] = (
    {"model": "other"},
    {"labels": model().labels[::-1]},
    {"prompt": "One of these:\n{labels}"},
    {"answer": "plain"},
    {"picture": "last"},
    {"ranked": 5},
    {"ranked": 5, "probabilities": True},
    {"unsure": True},
    {"wordings": ["What is it?"]},
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"max_tokens": 9},
    {"encoding": {"format": "jpeg"}},
    {"encoding": {"max_side": 20}},
    {"url": "http://other.example/v1"},
)
"""Settings of every chat model that could change answers."""
RANKED: Mapping[Gives, Changes] = {"ranks": {"ranked": 5}, "scores": {"ranked": 5, "probabilities": True}}
RANKED_OR_PROBABLE: Mapping[Gives, Changes] = {**RANKED, "score": {"logprobs": True}}
CHAT_QUIET = (*QUIET, {"synonyms": {"Bag": ["handbag"]}}, {"without_label": {"refusal": "Bag"}})


PROGRAM = """
import sys
from PIL import Image
red = Image.open(sys.argv[1]).convert("RGB").tobytes()[::3]
print("looking at it")
print("sum", sum(i * value for i, value in enumerate(red)) % 1009)
"""


def _sums(pixels: Sequence[Pixels]) -> list[str]:
    """What that program says."""
    sums = [int((image[:, :, 0].ravel() * np.arange(image[:, :, 0].size)).sum()) for image in pixels]
    return [f"sum {total % 1009}" for total in sums]


def _command(folder: str, changes: Changes) -> AnyClassifier:
    program = Path(folder) / "classify.py"
    program.write_text(PROGRAM + str(changes.get("added", "")))
    settings = {key: value for key, value in changes.items() if key != "added"}
    return connect_command("", {"command": f"{sys.executable} {program} {{image}}", "folder": folder, **settings})


CASES: list[Case] = [
    Case(
        "http with a raw body",
        _raw,
        routes=_raw_routes,
        telling=(
            {"url": "http://other.example/classify"},
            {"method": "PUT"},
            {"headers": {"authorization": f"Bearer ${{{KEY}}}", "x-model": "2"}},
            {"query": {"model": "2"}},
            {"body": {"kind": "raw", "content_type": "image/x-png"}},
            {"encoding": {"format": "jpeg"}},
            {"encoding": {"format": "jpeg", "quality": 80}},
            {"encoding": {"max_side": 20}},
            {"encoding": {"min_side": 80}},
            {"label": "classes[0]"},
            {"score": "score"},
            {"reply": "text"},
        ),
        silent=(
            *QUIET,
            {"encoding": {"quality": 50}},
            {"encoding": {"max_bytes": 9_999_999}},
            {"values": {"a": "b"}},
            {"pixels": {"scale": 2.0}},
            {"labels": ["a", "b"]},
            {"rename": {"a": "b"}},
            {"empty": "∅ nothing"},
        ),
        saying={"score": {"label": "label", "score": "p"}, "ranks": {"label": "ranked"}},
    ),
    Case(
        "http with a form",
        _multipart,
        routes=_multipart_routes,
        telling=(
            {"body": {"kind": "multipart", "field": "image", "fields": {"top": "5"}}},
            {"body": {"kind": "multipart", "field": "photo", "fields": {"top": "9"}}},
            {"body": {"kind": "multipart", "field": "photo", "filename": "x.png", "fields": {"top": "5"}}},
        ),
        saying={"scores": {}},
    ),
    Case(
        "http with a JSON template",
        _json,
        routes=_json_routes,
        telling=(
            {"values": {"name": "shoes"}},
            {"body": {"kind": "json", "template": {"image": "{image_base64}"}}},
        ),
        silent=(*QUIET, {"labels": model().labels[::-1]}),
        saying={"scores": {}},
    ),
    Case(
        "python",
        _python,
        telling=({"function": "other"},),
        silent=(),
        saying={"score": {"function": "score"}, "scores": {"function": "scores"}},
    ),
    Case(
        "onnx",
        _onnx,
        telling=({"scale": 1.0}, {"size": [28, 27]}),
        silent=({"batch": 2}, {"labels": model().labels[::-1]}),
        saying={"scores": {"scores": 5}},
    ),
    Case(
        "command",
        _command,
        telling=({"added": "# new"}, {"command": "cat {image}"}, {"encoding": {"format": "jpeg"}}),
        silent=({"timeout": 5.0}, {"concurrency": 3}, {"price": "0.01"}),
        truth=_sums,
        crowd=12,
        saying={
            "score": {"added": 'print(\'{"label": "b", "score": 0.7}\')'},
            "ranks": {"added": 'print(\'[{"label": "b"}, {"label": "a"}]\')'},
            "scores": {"added": 'print(\'[{"label": "a", "score": 0.2}, {"label": "b", "score": 0.7}]\')'},
        },
    ),
    Case(
        "oip in JSON",
        _oip,
        routes=oip_routes,
        telling=(
            {"url": "http://other.example/fashion"},
            {"url": "http://127.0.0.1:9/fashion/versions/2"},
            {"headers": {"authorization": f"Bearer ${{{KEY}}}", "x-tenant": "2"}},
            {"input": "other"},
            {"output": "other"},
            {"datatype": "FP64"},
            {"shape": [-1, 28, 28, 1]},
            {"crop": 0.5},
            {"resize": "cubic"},
            {"scale": 1.0},
            {"mean": [0.5]},
            {"std": [0.5]},
            {"encoding": {"format": "jpeg"}},
        ),
        silent=(*QUIET, {"labels": None}, {"binary": True}, {"labels": model().labels[::-1]}),
        saying={"scores": {}},
    ),
    Case(
        "oip in binary",
        _oip_binary,
        routes=lambda: oip_routes(Served(extensions=("binary_tensor_data",))),
        telling=(),
        saying={"scores": {}},
    ),
    Case(
        "openai",
        _openai,
        routes=openai_routes,
        telling=(*CHAT, {"seed": 1}, {"detail": "low"}, {"answer": "tool"}, {"logprobs": True}),
        silent=CHAT_QUIET,
        saying=RANKED_OR_PROBABLE,
    ),
    Case(
        "openai responses",
        _responses,
        routes=responses_routes,
        telling=(*CHAT, {"detail": "low"}, {"logprobs": True}),
        silent=CHAT_QUIET,
        saying=RANKED_OR_PROBABLE,
    ),
    Case(
        "anthropic",
        _anthropic,
        routes=anthropic_routes,
        telling=(*CHAT, {"answer": "tool"}),
        silent=CHAT_QUIET,
        saying=RANKED,
    ),
    Case(
        "gemini",
        _gemini,
        routes=gemini_routes,
        telling=(*CHAT, {"seed": 1}, {"media_resolution": "low"}, {"logprobs": True}),
        silent=CHAT_QUIET,
        saying=RANKED_OR_PROBABLE,
    ),
]
