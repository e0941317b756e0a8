"""The generic HTTP connector, its presets, and the transport that all HTTP protocols share."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import gzip
import json
import re
import socket
import tomllib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlencode

import cv2
import numpy as np
import pytest
from aiohttp import web
from conformance.replica import Replica, meant
from hypothesis import given, strategies as st
from support.errors import coded

from looktwice.classifiers.base import (
    AnswerKind,
    AnyClassifier,
    Pixels,
    Rereadable,
    answer_kind,
    names_of,
    reading,
    tags,
)
from looktwice.classifiers.http import connect as connect_http, preset, presets
from looktwice.classifiers.registry import connect
from looktwice.classifiers.secrets import Secrets
from looktwice.classifiers.settings import Encoding
from looktwice.classifiers.transport import retry_after
from looktwice.errors import ClassifierError, ImageError, PermanentError, QuotaError, TransientError

PICTURE = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8)


class Canned:
    """A server that keeps what it was sent and answers with what it is given."""

    def __init__(self) -> None:
        self.replica = Replica()
        self.response: web.Response | None = None
        self.bodies: list[bytes] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        assert self.response is not None
        return web.Response(body=self.response.body, status=self.response.status, headers=self.response.headers)

    def says(self, value: object, **headers: str) -> None:
        self.response = web.Response(body=json.dumps(value).encode(), headers=headers)

    @property
    def url(self) -> str:
        return self.replica.url

    @property
    def request(self) -> web.Request:
        return self.replica.asked[-1]


@pytest.fixture
async def canned() -> AsyncIterator[Canned]:
    server = Canned()
    routes = web.RouteTableDef()
    routes.post("/{path:.*}")(server.answer)
    async with server.replica.running(routes):
        yield server


async def ask(settings: Mapping[str, object], image: Pixels = PICTURE) -> tuple[str, float | None]:
    """The label and score of one picture."""
    classifier = connect_http("", settings)
    try:
        (answer,) = meant(classifier, await classifier.label([classifier.prepare(image)]))
    finally:
        await classifier.close()
    return answer.label, answer.score


def decoded(data: bytes) -> Pixels:
    image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert image is not None
    return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), np.uint8)


# What stands where in a reply


@pytest.mark.parametrize(
    ("reply", "settings", "expected"),
    [
        ({"label": "cat"}, {}, ("cat", None)),
        ({"a": {"b": "cat"}, "p": 0.5}, {"label": "a.b", "score": "p"}, ("cat", 0.5)),
        ({"found": ["cat", "dog"]}, {"label": "found"}, ("cat", None)),
        ([{"n": "cat", "p": 0.2}, {"n": "dog", "p": 0.7}], {"label": "[].n", "score": "[].p"}, ("dog", 0.7)),
        ([{"n": "cat", "p": 0.5}, {"n": "dog", "p": 0.5}], {"label": "[].n", "score": "[].p"}, ("cat", 0.5)),
        ({"p": [0.1, 0.7, 0.7]}, {"score": "p", "labels": ["a", "b", "c"]}, ("b", 0.7)),
        ({"p": [0.1, 0.7]}, {"score": "p"}, ("1", 0.7)),
        ({"label": 2}, {"labels": ["a", "b", "c"]}, ("c", None)),
        ({"label": 2}, {}, ("2", None)),
        ({"label": "n0123"}, {"rename": {"n0123": "cat"}}, ("cat", None)),
        ({"label": []}, {}, ("", None)),
        ({"label": []}, {"empty": "∅ nothing"}, ("∅ nothing", None)),
        ({"n": [], "p": []}, {"label": "n", "score": "p"}, ("", None)),
        ("cat", {"label": "@"}, ("cat", None)),
    ],
)
async def test_the_label_is_found_where_the_description_says(
    canned: Canned, reply: object, settings: dict[str, object], expected: tuple[str, float | None]
) -> None:
    canned.says(reply)
    assert await ask({"url": canned.url, **settings}) == expected


@pytest.mark.parametrize(
    ("reply", "settings"),
    [
        ({"other": 1}, {}),
        ({"label": None}, {}),
        ({"label": 1.5}, {}),
        ({"label": {"name": "cat"}}, {}),
        ({"label": [None]}, {}),
        ({"label": 3}, {"labels": ["a", "b", "c"]}),
        ({"label": -1}, {"labels": ["a", "b", "c"]}),
        ({"n": ["a", "b"], "p": [0.5]}, {"label": "n", "score": "p"}),
        ({"n": ["a"], "p": ["high"]}, {"label": "n", "score": "p"}),
        ({"p": None}, {"score": "p"}),
        ({"p": [0.1, float("nan")]}, {"score": "p"}),
        ({"label": "cat", "oops": "bad picture"}, {"error": "oops"}),
        ({"label": "cat"}, {"label": "length(label, label)"}),
        ({"label": 5}, {"label": "length(label)"}),
    ],
)
async def test_a_reply_of_another_shape_is_garbled_and_no_label(
    canned: Canned, reply: object, settings: dict[str, object]
) -> None:
    canned.says(reply)
    with pytest.raises(TransientError) as caught:
        await ask({"url": canned.url, **settings})
    assert caught.value.garbled


async def test_a_plain_text_reply_can_be_the_label(canned: Canned) -> None:
    canned.response = web.Response(text=" Ankle boot\n")
    assert await ask({"url": canned.url, "reply": "text"}) == ("Ankle boot", None)


# What is sent


async def test_a_raw_body_is_the_picture_without_loss(canned: Canned) -> None:
    canned.says({"label": "x"})
    await ask({"url": canned.url})
    assert canned.request.headers["content-type"] == "image/png"
    assert np.array_equal(decoded(canned.bodies[0]), PICTURE)


async def test_a_form_holds_the_picture_and_further_fields(canned: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORM_KEY", "k1")
    canned.says({"label": "x"})
    form = {"kind": "multipart", "field": 'a "b"', "filename": "p.png", "fields": {"key": "${FORM_KEY}", "n": "5"}}
    await ask({"url": canned.url, "body": form})
    text = canned.bodies[0]
    assert b'name="key"\r\n\r\nk1\r\n' in text
    assert b'name="a %22b%22"; filename="p.png"\r\ncontent-type: image/png\r\n\r\n\x89PNG' in text
    boundary = canned.request.headers["content-type"].partition("boundary=")[2].encode()
    assert text.endswith(b"\r\n--" + boundary + b"--\r\n")


async def test_a_template_knows_all_forms_of_the_picture(canned: Canned) -> None:
    canned.says({"label": "x"})
    template = {
        "url": "{image_data_url}",
        "wh": ["{width}", "{height}"],
        "rows": "{pixels}",
        "text": 'say "{image_base64}" é {not_a_place} {model}',
        "on": True,
    }
    settings = {"url": canned.url, "values": {"model": "m2"}, "body": {"kind": "json", "template": template}}
    await ask({**settings, "encoding": {"format": "jpeg", "max_side": 3}})
    sent = json.loads(canned.bodies[0])
    head, _, data = sent["url"].partition(",")
    assert head == "data:image/jpeg;base64"
    assert decoded(base64.b64decode(data)).shape == (2, 3, 3)
    assert sent["wh"] == [3, 2]
    assert np.array(sent["rows"]).shape == (2, 3, 3)
    assert sent["text"] == f'say "{data}" é {{not_a_place}} m2'
    assert sent["on"] is True


async def test_pixels_are_prepared_as_the_description_says(canned: Canned) -> None:
    canned.says({"label": "x"})
    body = {"kind": "json", "template": "{pixels}"}
    await ask({"url": canned.url, "body": body})
    assert np.array_equal(json.loads(canned.bodies[0]), PICTURE)
    grey = {"size": [2, 2], "channels": "grey", "layout": "chw", "scale": 255.0}
    await ask({"url": canned.url, "body": body, "pixels": grey})
    numbers = np.array(json.loads(canned.bodies[1]))
    assert numbers.shape == (1, 2, 2)
    assert 0 < numbers.max() <= 1


async def test_values_are_quoted_in_the_address(canned: Canned) -> None:
    canned.says({"label": "x"})
    await ask({"url": f"{canned.url}/{{model}}/go", "values": {"model": "owner/cats & dogs?#"}})
    assert canned.request.raw_path == "/owner/cats%20&%20dogs%3F%23/go"


async def test_secrets_in_the_query_arrive_whole(canned: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUERY_KEY", "a+b/c=&d e%")
    canned.says({"label": "x"})
    await ask({"url": f"{canned.url}/p?v=1", "query": {"key": "${QUERY_KEY}"}})
    assert dict(canned.request.query) == {"v": "1", "key": "a+b/c=&d e%"}


async def test_the_reply_is_kept_without_the_secret(canned: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLY_KEY", "topsecret1")
    canned.says({"label": "x", "you": "Bearer topsecret1"})
    classifier = connect_http("", {"url": canned.url, "headers": {"authorization": "Bearer ${REPLY_KEY}"}})
    answer = (await classifier.label([classifier.prepare(PICTURE)]))[0]
    await classifier.close()
    assert answer.raw == b'{"label": "x", "you": "Bearer ***"}'
    assert answer.status == 200


@pytest.mark.parametrize("lead", range(0, 330, 11))
async def test_a_secret_is_not_cut_in_half_where_words_are_shortened(
    canned: Canned, monkeypatch: pytest.MonkeyPatch, lead: int
) -> None:
    monkeypatch.setenv("LONG_KEY", "topsecret1-" * 20)
    canned.says({"label": {"pad": "x" * lead, "key": "topsecret1-" * 20}})
    with pytest.raises(TransientError) as caught:
        await ask({"url": canned.url, "headers": {"x-key": "${LONG_KEY}"}})
    assert "topsecret" not in str(caught.value)


# Descriptions


@pytest.mark.parametrize(
    ("settings", "code"),
    [
        ({}, "description-invalid"),
        ({"url": "ftp://h/"}, "description-invalid"),
        (
            {"url": "http://h", "colour": 1},
            "description-invalid",
        ),
        ({"urll": "http://h"}, "description-invalid"),
        ({"url": "http://h", "label": "a[["}, "description-invalid"),
        ({"url": "http://h", "body": {"kind": "json", "template": {"a": 1}}}, "description-invalid"),
        ({"url": "http://h", "body": "xml"}, "description-invalid"),
        ({"url": "http://{host}/"}, "description-invalid"),
        ({"url": "http://h", "headers": {"x-model": "{model}"}}, "description-invalid"),
        ({"url": "http://h", "headers": {"Authorization": "Bearer abc"}}, "description-invalid"),
        ({"url": "http://h", "query": {"api_key": "abc"}}, "description-invalid"),
        ({"url": "http://h/?token=abc"}, "description-invalid"),
        ({"url": "http://me:abc@h/"}, "description-invalid"),
        ({"url": "http://h", "headers": {"x-key": "${NOT_SET_ANYWHERE}"}}, "credentials-missing"),
        ({"url": "http://h", "encoding": {"max_bytes": 0}}, "description-invalid"),
        ({"url": "http://h", "timeout": 0}, "description-invalid"),
        ({"url": "http://h", "labels": "missing.txt"}, "description-missing"),
    ],
)
def test_a_wrong_description_is_told_when_connecting(settings: dict[str, object], code: str) -> None:
    with pytest.raises(PermanentError, check=coded(code)) as caught:
        connect_http("", settings)
    assert "abc" not in str(caught.value).replace("'abc'", "")


async def test_a_toml_file_changes_lines_of_a_preset(
    canned: Canned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "t")
    canned.says([{"label": "LABEL_1", "score": 0.9}])
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    (tmp_path / "mine.toml").write_text(
        f'preset = "hf"\nurl = "{canned.url}/models/{{model}}"\nlabels = "labels.txt"\nprice = 0.0015\n'
        'per_second = 3\nconcurrency = 2\n[values]\nmodel = "me/mine"\n[rename]\nLABEL_1 = "dog"\n'
    )
    classifier = connect(tmp_path / "mine.toml")
    (answer,) = meant(classifier, await classifier.label([classifier.prepare(PICTURE)]))
    await classifier.close()
    assert (answer.label, canned.request.path) == ("dog", "/models/me/mine")
    assert canned.request.headers["authorization"] == "Bearer t"
    assert classifier.labels == ("cat", "dog")
    assert (classifier.limits.price_micros, classifier.limits.per_second, classifier.limits.concurrency) == (1500, 3, 2)


async def test_an_address_alone_takes_a_png_and_reads_label(canned: Canned) -> None:
    canned.says({"label": "cat"})
    classifier = connect(f"{canned.url}/classify")
    assert (await classifier.label([classifier.prepare(PICTURE)]))[0].label == "cat"
    await classifier.close()


def test_a_misspelt_preset_gets_a_hint() -> None:
    with pytest.raises(PermanentError, check=coded("description-invalid")):
        connect("preset:gogle-vision")


GUIDE = (Path(__file__).parents[2] / "docs" / "connectors.md").read_text("utf-8")


@pytest.mark.parametrize("text", re.findall(r"```toml\n((?:connector = \"http\"|preset).*?)```", GUIDE, re.DOTALL))
def test_the_descriptions_in_the_guide_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    for variable in ("EXAMPLE_KEY", "HF_TOKEN"):
        monkeypatch.setenv(variable, "k")
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    (tmp_path / "mine.toml").write_text(text)
    classifier = connect(tmp_path / "mine.toml")
    assert classifier.prepare(np.zeros((60, 60, 3), np.uint8))


def test_the_guide_tells_the_needs_of_every_preset() -> None:
    rows = dict(re.findall(r"^\| `([a-z0-9-]+)` \|(.*)\|$", GUIDE, re.MULTILINE))
    for name, sample in SAMPLES.items():
        needed = {*re.findall(r"(?<!\$)\{(\w+)\}", tomllib.loads(preset(name))["url"]), *sample.variables}
        assert needed == set(re.findall(r"`(\w+)`", rows[name]))


# Presets: what their manuals show


@dataclass(frozen=True)
class Sample:
    """A request and a reply as the manual of an API shows them."""

    values: dict[str, str]
    url: str
    reply: object
    label: str
    score: float | None = None
    body: object = None
    """The JSON body with PICTURE for the picture's base64; None where the body is no JSON."""
    headers: dict[str, str] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)
    listed: int = 2
    """Labels that its reply ranks with scores."""
    kind: AnswerKind = "label"
    """Whether one of them is true of a picture, or several may be."""


SAMPLES = {
    "tfserving": Sample(
        {"model": "resnet"},
        "http://localhost:8501/v1/models/resnet:predict",
        {"predictions": [[0.1, 0.2, 0.6, 0.1]]},
        "2",
        0.6,
        listed=4,
    ),
    "kserve-v1": Sample(
        {"model": "mnist"},
        "http://localhost:8080/v1/models/mnist:predict",
        {"predictions": [2]},
        "2",
        body={"instances": [{"data": "PICTURE"}]},
        listed=0,
    ),
    "hf": Sample(
        {"model": "google/vit-base-patch16-224"},
        "https://router.huggingface.co/hf-inference/models/google/vit-base-patch16-224",
        [{"label": "tabby", "score": 0.31}, {"label": "Egyptian cat", "score": 0.52}],
        "Egyptian cat",
        0.52,
        headers={"authorization": "Bearer hf_token", "content-type": "image/png"},
        variables={"HF_TOKEN": "hf_token"},
    ),
    "google-vision": Sample(
        {},
        "https://vision.googleapis.com/v1/images:annotate",
        {
            "responses": [
                {
                    "labelAnnotations": [
                        {"mid": "/m/01c8br", "description": "Street", "score": 0.87294734, "topicality": 0.87294734},
                        {"mid": "/m/06pg22", "description": "Snapshot", "score": 0.8523099, "topicality": 0.8523099},
                    ]
                }
            ]
        },
        "Street",
        0.87294734,
        body={
            "requests": [{"image": {"content": "PICTURE"}, "features": [{"type": "LABEL_DETECTION", "maxResults": 50}]}]
        },
        headers={"x-goog-api-key": "google_key"},
        variables={"GOOGLE_API_KEY": "google_key"},
        kind="tags",
    ),
    "google-safesearch": Sample(
        {},
        "https://vision.googleapis.com/v1/images:annotate",
        {
            "responses": [
                {
                    "safeSearchAnnotation": {
                        "adult": "UNLIKELY",
                        "spoof": "VERY_UNLIKELY",
                        "medical": "VERY_UNLIKELY",
                        "violence": "LIKELY",
                        "racy": "POSSIBLE",
                    }
                }
            ]
        },
        "violence",
        0.75,
        body={"requests": [{"image": {"content": "PICTURE"}, "features": [{"type": "SAFE_SEARCH_DETECTION"}]}]},
        headers={"x-goog-api-key": "google_key"},
        variables={"GOOGLE_API_KEY": "google_key"},
        listed=5,
        kind="tags",
    ),
    "openai-moderation": Sample(
        {},
        "https://api.openai.com/v1/moderations",
        {
            "id": "modr-970d409ef3bef3b70c73d8232df86e7d",
            "model": "omni-moderation-latest",
            "results": [
                {
                    "flagged": True,
                    "categories": {"sexual": False, "self-harm": False, "violence": True, "violence/graphic": False},
                    "category_scores": {
                        "sexual": 2.34135824776394e-7,
                        "self-harm": 0.0011175734280627694,
                        "violence": 0.8599265510337075,
                        "violence/graphic": 0.37701736389561064,
                    },
                    "category_applied_input_types": {
                        "sexual": ["image"],
                        "self-harm": ["image"],
                        "violence": ["image"],
                        "violence/graphic": ["image"],
                    },
                }
            ],
        },
        "violence",
        0.8599265510337075,
        body={
            "model": "omni-moderation-latest",
            "input": [{"type": "image_url", "image_url": {"url": "data:image/png;base64,PICTURE"}}],
        },
        headers={"authorization": "Bearer openai_key"},
        variables={"OPENAI_API_KEY": "openai_key"},
        listed=4,
        kind="tags",
    ),
    "vertex": Sample(
        {"project": "my-project", "endpoint": "123", "region": "europe-west4"},
        "https://europe-west4-aiplatform.googleapis.com/v1/projects/my-project/locations/europe-west4/endpoints/123:predict",
        {
            "predictions": [
                {"confidences": [0.3, 0.6], "displayNames": ["daisy", "roses"], "ids": ["1", "2"]},
            ],
            "deployedModelId": "456",
        },
        "roses",
        0.6,
        body={
            "instances": [{"content": "PICTURE"}],
            "parameters": {"confidenceThreshold": 0.0, "maxPredictions": 5},
        },
        headers={"authorization": "Bearer access"},
        variables={"GOOGLE_ACCESS_TOKEN": "access"},
    ),
    "azure-custom-vision": Sample(
        {"host": "r.cognitiveservices.azure.com", "project": "64b822c5", "iteration": "MyModel1"},
        "https://r.cognitiveservices.azure.com/customvision/v3.1/prediction/64b822c5/classify/iterations/MyModel1"
        "/image/nostore",
        {
            "id": "951098b2",
            "project": "64b822c5",
            "iteration": "fe1e83c4",
            "created": "2019-03-06T02:15:00Z",
            "predictions": [
                {"tagId": "e31ff107", "tagName": "Hemlock", "probability": 0.05149666},
                {"tagId": "349d72ac", "tagName": "Japanese Cherry", "probability": 0.000193528482},
            ],
        },
        "Hemlock",
        0.05149666,
        headers={"prediction-key": "azure_key", "content-type": "application/octet-stream"},
        variables={"AZURE_PREDICTION_KEY": "azure_key"},
    ),
    "clarifai": Sample(
        {"model": "general-image-recognition"},
        "https://api.clarifai.com/v2/users/clarifai/apps/main/models/general-image-recognition/outputs",
        {
            "status": {"code": 10000, "description": "Ok"},
            "outputs": [
                {
                    "status": {"code": 10000, "description": "Ok"},
                    "data": {
                        "concepts": [{"id": "ai_1", "name": "train", "value": 0.99}, {"name": "rail", "value": 0.9}]
                    },
                }
            ],
        },
        "train",
        0.99,
        body={"inputs": [{"data": {"image": {"base64": "PICTURE"}}}]},
        headers={"authorization": "Key pat"},
        variables={"CLARIFAI_PAT": "pat"},
        kind="tags",
    ),
    "roboflow": Sample(
        {"model": "vehicle-classification-eapcd", "version": "2"},
        "https://serverless.roboflow.com/vehicle-classification-eapcd/2",
        {
            "time": 0.19,
            "image": {"width": 210, "height": 113},
            "predictions": [
                {"class": "real-image", "confidence": 0.7149},
                {"class": "illustration", "confidence": 0.2851},
            ],
            "top": "real-image",
            "confidence": 0.7149,
        },
        "real-image",
        0.7149,
        headers={"authorization": "Bearer rf", "content-type": "application/x-www-form-urlencoded"},
        variables={"ROBOFLOW_API_KEY": "rf"},
    ),
    "litserve": Sample(
        {}, "http://localhost:8000/predict", {"output": "cat"}, "cat", body={"image": "PICTURE"}, listed=0
    ),
    "bentoml": Sample({"api": "classify"}, "http://localhost:3000/classify", "cat", '"cat"', listed=0),
}


def at(server: str, name: str, sample: Sample, **changes: object) -> AnyClassifier:
    """The preset, asked at another server but at the same path, with some settings changed."""
    url = re.sub(r"^https?://[^/]+", server, tomllib.loads(preset(name))["url"])
    return connect_http("", {"preset": name, "values": sample.values, "url": url, **changes})


@pytest.mark.parametrize("name", SAMPLES)
async def test_a_preset_sends_and_reads_what_the_manual_shows(
    canned: Canned, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    sample = SAMPLES[name]
    for variable, value in sample.variables.items():
        monkeypatch.setenv(variable, value)
    canned.says(sample.reply)
    classifier = at(canned.url, name, sample)
    prepared = classifier.prepare(PICTURE)
    (answer,) = meant(classifier, await classifier.label([prepared]))
    await classifier.close()
    assert (answer.label, answer.score) == (sample.label, sample.score)
    scores = [score for _, score in answer.options if score is not None]
    assert len(scores) == sample.listed
    assert scores == sorted(scores, reverse=True)
    assert answer_kind(classifier) == sample.kind
    written = tomllib.loads(preset(name))
    places = {**written.get("values", {}), **sample.values}
    origin = re.match(r"^https?://[^/]+", written["url"].format(**places))
    assert origin is not None
    assert origin[0] + canned.request.path == sample.url
    assert {key: canned.request.headers[key] for key in sample.headers} == sample.headers
    if sample.body is not None:
        picture = base64.b64encode(Encoding().encode(PICTURE)).decode()
        assert json.loads(canned.bodies[0].decode().replace(picture, "PICTURE")) == sample.body


def test_every_preset_has_a_sample_and_tells_its_needs() -> None:
    assert set(SAMPLES) == set(presets())
    for name in presets():
        text = preset(name)
        assert re.search(r"^# .*manual|^# .*specification", text, re.MULTILINE)
        variables = set(re.findall(r"\$\{(\w+)\}", text.partition("\nconnector")[2]))
        assert set(SAMPLES[name].variables) == variables
        assert all(variable in text.partition("\nconnector")[0] for variable in variables)


@pytest.mark.slow
async def test_the_body_of_roboflow_is_base64_and_of_tensorflow_serving_numbers(
    canned: Canned, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROBOFLOW_API_KEY", "rf")
    roboflow = at(canned.url, "roboflow", SAMPLES["roboflow"])
    assert np.array_equal(decoded(base64.b64decode(roboflow.prepare(PICTURE))), PICTURE)
    tfserving = at(canned.url, "tfserving", SAMPLES["tfserving"])
    instances = np.array(json.loads(tfserving.prepare(PICTURE))["instances"])
    assert instances.shape == (1, 224, 224, 3)
    assert 0.9 < instances.max() <= 1


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("google-vision", {"responses": [{}]}),
        ("clarifai", {"outputs": [{"status": {"code": 10000}, "data": {}}]}),
        ("azure-custom-vision", {"predictions": []}),
        ("roboflow", {"predictions": []}),
        ("hf", []),
    ],
)
async def test_nothing_found_is_an_answer_without_a_label(
    canned: Canned, monkeypatch: pytest.MonkeyPatch, name: str, reply: object
) -> None:
    assert await said_by(canned, monkeypatch, name, reply) == ""


@pytest.mark.parametrize(
    ("name", "reply"),
    [
        ("google-vision", {"responses": [{"error": {"code": 3, "message": "Bad image data."}}]}),
        ("google-vision", {}),
        ("google-safesearch", {"responses": [{"error": {"code": 3, "message": "Bad image data."}}]}),
        ("google-safesearch", {"responses": [{}]}),
        ("openai-moderation", {"results": []}),
        ("openai-moderation", {"error": {"message": "Rate limit reached"}}),
        ("clarifai", {"outputs": [{"status": {"code": 30002, "description": "Download failed"}}]}),
        ("vertex", {"predictions": []}),
        ("hf", {"error": "loading"}),
    ],
)
async def test_something_wrong_is_not_taken_for_nothing_found(
    canned: Canned, monkeypatch: pytest.MonkeyPatch, name: str, reply: object
) -> None:
    with pytest.raises(TransientError) as caught:
        await said_by(canned, monkeypatch, name, reply)
    assert caught.value.garbled


async def test_a_stored_reply_of_tags_answers_other_questions(canned: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = SAMPLES["openai-moderation"]
    monkeypatch.setenv("OPENAI_API_KEY", "openai_key")
    canned.says(sample.reply)
    classifier = at(canned.url, "openai-moderation", sample)
    (answer,) = await classifier.label([classifier.prepare(PICTURE)])
    await classifier.close()
    assert [tag for tag, _ in tags(names_of(classifier), answer)][:2] == ["violence", "violence/graphic"]
    paths = {"label": "keys(results[0].categories)", "score": "values(results[0].categories)"}
    other = at(canned.url, "openai-moderation", sample, **paths)
    assert other.fingerprint == classifier.fingerprint
    assert reading(other) != reading(classifier)
    assert answer.raw is not None
    assert isinstance(other, Rereadable)
    flags = dict(tags(names_of(other), other.reread(answer.raw, answer.status)))
    assert flags == {"violence": 1.0, "sexual": 0.0, "self-harm": 0.0, "violence/graphic": 0.0}
    single = at(canned.url, "openai-moderation", sample, answer="label")
    assert (single.fingerprint, answer_kind(single)) == (classifier.fingerprint, "label")
    assert reading(single) != reading(classifier)


async def said_by(canned: Canned, monkeypatch: pytest.MonkeyPatch, name: str, reply: object) -> str:
    """The label that a preset makes of a reply."""
    for variable, value in SAMPLES[name].variables.items():
        monkeypatch.setenv(variable, value)
    canned.says(reply)
    classifier = at(canned.url, name, SAMPLES[name])
    try:
        return (await classifier.label([classifier.prepare(PICTURE)]))[0].label
    finally:
        await classifier.close()


# Encoding and limits


@pytest.mark.slow
@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.none() | st.integers(1, 60),
    st.none() | st.integers(1, 70),
)
def test_a_picture_is_brought_into_the_limits_or_refused(
    height: int, width: int, max_side: int | None, min_side: int | None
) -> None:
    encoding = Encoding(max_side=max_side, min_side=min_side)
    image = np.zeros((height, width, 3), np.uint8)
    try:
        fitted = encoding.fit(image)
    except ImageError:
        assert max_side is not None
        assert min_side is not None
        return
    size = fitted.shape[:2]
    assert max(size) <= (max_side or 90 * 70)
    assert min(size) >= (min_side or 1)
    assert size == (height, width) or max_side or min_side


def test_a_picture_that_fits_is_not_touched() -> None:
    image = np.random.default_rng(1).integers(0, 256, (40, 50, 3), np.uint8)
    assert Encoding(max_side=50, min_side=40).fit(image) is image


def test_a_file_over_the_limit_is_refused_before_it_is_paid_for() -> None:
    noise = np.random.default_rng(2).integers(0, 256, (100, 100, 3), np.uint8)
    with pytest.raises(ImageError, check=coded("image-unfit")):
        Encoding(max_bytes=5000).encode(noise)
    with pytest.raises(ImageError, check=coded("image-unfit")):
        Encoding(format="jpeg", max_bytes=500).encode(noise)
    assert len(Encoding(format="jpeg", max_bytes=7000).encode(noise)) <= 7000


# Transport


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7.0),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:30 GMT", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 30.0),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT", "date": "Wed, 21 Oct 2015 07:28:30 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-5"}, None),
        ({"ratelimit-reset": "12"}, 12.0),
        ({"x-ratelimit-reset": "1445412510", "date": "Wed, 21 Oct 2015 07:28:00 GMT"}, 30.0),
        ({"retry-after": "3", "ratelimit-reset": "90"}, 3.0),
    ],
)
def test_the_wait_that_a_server_asks_for_is_understood(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, now=1_000_000_000.0) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (429, "slow down", TransientError),
        (429, '{"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}', QuotaError),
        (429, "Quota exceeded for quota metric 'Requests' and limit 'Requests per minute'", TransientError),
        (429, '{"quotaId": "GenerateRequestsPerMinutePerProject", "message": "Quota exceeded"}', TransientError),
        (429, "Quota exceeded for requests per day", QuotaError),
        (403, "Out of call volume quota. Quota will be replenished in 2 days.", QuotaError),
        (403, "This API method requires billing to be enabled.", QuotaError),
        (403, "forbidden", PermanentError),
        (402, "", QuotaError),
        (400, "Your credit balance is too low to access the API.", QuotaError),
        (400, "bad picture", PermanentError),
        (404, "quota exceeded", PermanentError),
        (418, "teapot", PermanentError),
        (425, "", TransientError),
        (500, "", TransientError),
        (501, "", PermanentError),
        (529, "overloaded", TransientError),
    ],
)
async def test_a_status_is_sorted_by_what_can_be_done_about_it(
    canned: Canned, status: int, text: str, kind: type[ClassifierError]
) -> None:
    canned.response = web.Response(status=status, text=text)
    with pytest.raises(ClassifierError) as caught:
        await ask({"url": canned.url})
    assert type(caught.value) is kind
    assert getattr(caught.value, "status", status) == status


async def test_the_words_of_a_server_are_one_short_line(canned: Canned) -> None:
    canned.response = web.Response(status=400, text="line one\n\x1b[31mred\x07 " + "x" * 5000)
    with pytest.raises(PermanentError) as caught:
        await ask({"url": canned.url})
    text = str(caught.value)
    assert "line one \\x1b[31mred\\x07 xxx" in text
    assert len(text) < 600
    assert text.isprintable()


async def test_a_redirect_is_refused_and_names_its_target(canned: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDIRECT_KEY", "topsecret1")
    canned.response = web.Response(status=308, headers={"location": "https://evil.example/?k=topsecret1"})
    with pytest.raises(PermanentError, check=coded("classifier-refused")):
        await ask({"url": canned.url, "headers": {"x-key": "${REDIRECT_KEY}"}})
    assert len(canned.replica.asked) == 1


async def test_a_small_reply_that_unpacks_to_a_huge_one_is_refused(canned: Canned) -> None:
    packed = gzip.compress(b" " * 30_000_000)
    canned.response = web.Response(body=packed, headers={"content-encoding": "gzip"})
    with pytest.raises(PermanentError, check=coded("reply-malformed")):
        await ask({"url": canned.url})


async def test_an_address_that_speaks_no_tls_is_permanent(canned: Canned) -> None:
    with pytest.raises(PermanentError, check=coded("certificate-invalid")):
        await ask({"url": canned.url.replace("http:", "https:")})


async def test_a_server_that_takes_no_connection_in_time_was_surely_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LATE_KEY", "topsecret1")
    with socket.create_server(("127.0.0.1", 0), backlog=0) as server, contextlib.ExitStack() as stack:
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(server.getsockname())
        url = f"http://127.0.0.1:{server.getsockname()[1]}/"
        with pytest.raises(TransientError) as caught:
            await ask({"url": url, "query": {"key": "${LATE_KEY}"}, "connect_timeout": 0.2})
    assert caught.value.sent is False
    assert "topsecret1" not in f"{caught.value!r}{caught.value.__context__!r}"


async def test_proxies_are_used_only_on_request(canned: Canned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "")
    monkeypatch.setenv("no_proxy", "")
    canned.says({"label": "cat"})
    assert await ask({"url": canned.url}) == ("cat", None)
    with pytest.raises(TransientError) as caught:
        await ask({"url": canned.url, "trust_env": True})
    assert caught.value.sent is False


def test_a_classifier_serves_one_event_loop_after_another() -> None:
    server = socket.create_server(("127.0.0.1", 0))
    classifier = connect_http("", {"url": f"http://127.0.0.1:{server.getsockname()[1]}/"})

    async def once() -> str:
        routes = web.RouteTableDef()
        canned = Canned()
        canned.says({"label": "cat"})
        routes.post("/")(canned.answer)
        app = web.Application()
        app.add_routes(routes)
        runner = web.AppRunner(app)
        await runner.setup()
        await web.SockSite(runner, server.dup()).start()
        label = (await classifier.label([b""]))[0].label
        await classifier.close()
        await runner.cleanup()
        return label

    with server:
        assert [asyncio.run(once()) for _ in range(2)] == ["cat", "cat"]


printable = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp")), min_size=1)


@given(printable, st.text(max_size=8), st.text(max_size=8))
def test_a_secret_is_masked_in_every_form(secret: str, before: str, after: str) -> None:
    secrets = Secrets()
    secrets.add("KEY", secret)
    plain = secrets.mask(f"{before}{secret}{after}")
    assert "***" in plain
    assert len(secret) < 4 or secret not in plain
    for form in (quote(secret, safe=""), urlencode({"k": secret})[2:], json.dumps(secret)[1:-1]):
        assert form not in secrets.mask(f"?k={form};").replace("***", "")


@given(printable.filter(lambda text: len(text.encode()) >= 8), st.binary(max_size=9), st.binary(max_size=9))
def test_a_secret_inside_base64_cannot_be_decoded(secret: str, before: bytes, after: bytes) -> None:
    secrets = Secrets()
    secrets.add("KEY", secret)
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        assert "***" in secrets.mask(encode(before + secret.encode() + after).decode())
