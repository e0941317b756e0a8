"""The Open Inference Protocol: every form of input and output, and what is said when they do not fit."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from conformance.oip_replica import Served, oip_routes
from conformance.replica import DEMO, Replica, labels_of, meant, model, pictures
from hypothesis import given, strategies as st
from support.errors import coded

from looktwice.classifiers.base import Answer, Option
from looktwice.classifiers.oip import Model, OipClassifier, connect as connect_oip
from looktwice.classifiers.registry import connect, read_toml
from looktwice.classifiers.transport import Reply
from looktwice.errors import PermanentError, TransientError

LOOK = {name: read_toml(DEMO / "fashion.toml")[name] for name in ("crop", "scale", "mean", "std")}
BINARY = ("binary_tensor_data",)


@asynccontextmanager
async def served(served: Served, **settings: object) -> AsyncIterator[OipClassifier]:
    async with Replica().running(oip_routes(served)) as replica:
        classifier = connect_oip("", {"url": f"{replica.url}/fashion", **settings})
        assert isinstance(classifier, OipClassifier)
        try:
            yield classifier
        finally:
            await classifier.close()


async def ask(classifier: OipClassifier, count: int = 6) -> list[Answer]:
    """The answers about some pictures, prepared in a thread, as always."""
    prepared = [await asyncio.to_thread(classifier.prepare, image) for image in pictures()[:count]]
    return meant(classifier, await classifier.label(prepared))


FORMS = {
    "channels first": (Served(), LOOK),
    "channels last": (Served(shape=(-1, 28, 28, 1)), LOOK),
    "one picture a call": (Served(shape=(1, 1, 28, 28)), LOOK),
    "no batch at all": (Served(shape=(1, 28, 28)), LOOK),
    "free size": (Served(shape=(-1, 1, -1, -1)), LOOK),
    "long numbers": (Served("FP64"), LOOK),
    "short numbers": (Served("FP16", extensions=BINARY), LOOK),
    "binary": (Served(extensions=BINARY), LOOK),
    "colour, binary": (Served(shape=(-1, 3, 28, 28), extensions=BINARY), LOOK),
    "pixels": (Served("UINT8", (-1, 28, 28, 3)), {}),
    "pixels of any size": (Served("UINT8", (-1, -1, -1, 3)), {}),
    "pixels, binary": (Served("UINT8", (-1, 3, 28, 28), extensions=BINARY), {}),
    "file": (Served("BYTES", (-1,)), {}),
    "file, binary": (Served("BYTES", (-1, 1), extensions=BINARY), {}),
    "shares": (Served(gives="shares"), LOOK),
    "position": (Served(gives="index"), LOOK),
    "position, binary": (Served(gives="index", extensions=BINARY), LOOK),
    "text": (Served(gives="label"), LOOK),
    "text, binary": (Served(gives="label", extensions=BINARY), LOOK),
}


@pytest.mark.parametrize(("form", "look"), FORMS.values(), ids=FORMS.keys())
async def test_every_form_of_model_gives_the_labels_of_the_local_one(form: Served, look: dict[str, object]) -> None:
    async with served(form, labels=model().labels, **look) as classifier:
        assert [answer.label for answer in await ask(classifier)] == labels_of(pictures()[:6])


async def test_without_labels_the_label_is_the_position() -> None:
    async with served(Served(), **LOOK) as classifier:
        said = [answer.label for answer in await ask(classifier)]
    assert [model().labels[int(label)] for label in said] == labels_of(pictures()[:6])


async def test_logits_and_shares_of_one_model_give_the_same_scores() -> None:
    async with served(Served(gives="shares"), **LOOK) as classifier:
        shares = [answer.options for answer in await ask(classifier)]
    async with served(Served(), **LOOK) as classifier:
        logits = [answer.options for answer in await ask(classifier)]
    assert [[word for word, _ in row] for row in logits] == [[word for word, _ in row] for row in shares]
    np.testing.assert_allclose(_scores(logits), _scores(shares), atol=1e-6)
    np.testing.assert_allclose(_scores(logits).sum(axis=1), 1.0, atol=1e-6)


def _scores(lists: Sequence[Sequence[Option]]) -> np.ndarray:
    return np.array([[score for _, score in row] for row in lists], float)


async def test_the_server_is_asked_about_its_model_once() -> None:
    asked = 0
    routes = web.RouteTableDef()

    @routes.get("/v2/models/fashion")
    async def metadata(request: web.Request) -> web.Response:
        nonlocal asked
        asked += 1
        return web.json_response({"inputs": [{"name": "picture", "datatype": "BYTES", "shape": [-1]}]})

    async with Replica().running(routes) as replica:
        classifier = connect_oip("", {"url": f"{replica.url}/fashion"})
        await asyncio.gather(*(asyncio.to_thread(classifier.prepare, image) for image in pictures()))
    assert asked == 1


async def test_a_description_on_file_is_enough(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_text("\n".join(model().labels))
    async with Replica().running(oip_routes()) as replica:
        text = f'connector = "oip"\nurl = "{replica.url}/v2/models/fashion"\nlabels = "labels.txt"\n'
        text += "".join(f"{name} = {json.dumps(value)}\n" for name, value in LOOK.items())
        (tmp_path / "server.toml").write_text(text)
        classifier = connect(tmp_path / "server.toml")
        assert [answer.label for answer in await ask(classifier)] == labels_of(pictures()[:6])  # type: ignore[arg-type]
        await classifier.close()


def test_the_fingerprint_needs_no_server() -> None:
    assert connect("oip+http://127.0.0.1:9/m").fingerprint == connect("oip+http://127.0.0.1:9/m").fingerprint


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("oip+http://h:1/m", "oip+http://h:1/v2/models/m"),
        ("oip+https://h/m/versions/3", "oip+https://h/v2/models/m/versions/3"),
        ("oip+http://h/gate/m", "oip+http://h/gate/v2/models/m"),
    ],
)
def test_short_and_long_addresses_mean_the_same_model(one: str, other: str) -> None:
    assert connect(one).fingerprint == connect(other).fingerprint


def test_version_prefix_scheme_and_model_each_mean_another_model() -> None:
    addresses = ["http://h/m", "https://h/m", "http://h/n", "http://h/m/versions/1", "http://h/gate/m"]
    assert len({connect(f"oip+{address}").fingerprint for address in addresses}) == len(addresses)


@pytest.mark.parametrize(
    "address",
    [
        "oip+http://host",
        "oip+http://host/",
        "oip+http://me:hunter2@host/m",
        "oip+http://host/m?key=hunter2",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_repeating_secrets(address: str) -> None:
    with pytest.raises(PermanentError, check=coded("model-unsupported")) as caught:
        connect(address)
    assert "hunter2" not in str(caught.value)


def test_a_key_in_the_description_is_refused() -> None:
    with pytest.raises(PermanentError, check=coded("description-invalid")):
        connect_oip("", {"url": "http://h/m", "headers": {"authorization": "Bearer abc"}})


async def check_refused(form: Served, **settings: object) -> None:
    """A model that cannot be asked is refused, and nothing is sent to it."""
    async with Replica().running(oip_routes(form)) as replica:
        classifier = connect_oip("", {"url": f"{replica.url}/fashion", **settings})
        assert isinstance(classifier, OipClassifier)
        with pytest.raises(PermanentError, check=coded("model-unsupported")):
            await ask(classifier, 2)
        assert replica.asked == []


async def test_what_does_not_fit_is_told_before_anything_is_sent() -> None:
    await check_refused(Served("INT64"))
    await check_refused(Served(shape=(-1, 784)))
    await check_refused(Served(shape=(-1, 5, 28, 28)))
    await check_refused(Served(shape=(6, 1, 28, 28)))
    await check_refused(Served("UINT8", (-1, 28, 28, 1)), scale=255.0)
    await check_refused(Served(shape=(-1, 3, 28, 28)), channels="grey")
    await check_refused(Served(), channels="rgb")


async def test_a_wrong_number_of_labels_is_told() -> None:
    async with served(Served(), labels=["a", "b"]) as classifier:
        with pytest.raises(PermanentError, check=coded("model-unsupported")):
            await ask(classifier)


async def test_a_server_that_tells_nothing_asks_for_a_description() -> None:
    routes = web.RouteTableDef()

    @routes.get("/v2/models/fashion")
    async def metadata(request: web.Request) -> web.Response:
        return web.json_response({"name": "fashion", "inputs": [], "outputs": []})

    async with Replica().running(routes) as replica:
        classifier = connect_oip("", {"url": f"{replica.url}/fashion"})
        with pytest.raises(PermanentError, check=coded("model-unsupported")):
            await asyncio.to_thread(classifier.prepare, pictures()[0])


async def test_metadata_that_repeat_the_key_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVER_KEY", "a-key-of-19-letters")
    routes = web.RouteTableDef()

    @routes.get("/v2/models/fashion")
    async def metadata(request: web.Request) -> web.Response:
        told = {"name": request.headers["authorization"], "datatype": "FP64", "shape": [1, 3, 8, 8]}
        return web.json_response({"name": "fashion", "inputs": [told], "outputs": []})

    async with Replica().running(routes) as replica:
        headers = {"authorization": "Bearer ${SERVER_KEY}"}
        classifier = connect_oip("", {"url": f"{replica.url}/fashion", "headers": headers})
        with pytest.raises(PermanentError, check=coded("reply-malformed")) as caught:
            await asyncio.to_thread(classifier.prepare, pictures()[0])
    assert "a-key-of" not in str(caught.value)


async def test_a_page_instead_of_metadata_is_garbled() -> None:
    routes = web.RouteTableDef()

    @routes.get("/v2/models/fashion")
    async def metadata(request: web.Request) -> web.Response:
        return web.Response(text="<html>welcome</html>")

    async with Replica().running(routes) as replica:
        classifier = connect_oip("", {"url": f"{replica.url}/fashion"})
        with pytest.raises(TransientError, check=coded("reply-malformed")) as caught:
            await asyncio.to_thread(classifier.prepare, pictures()[0])
    assert caught.value.garbled


MODEL = Model("picture", "FP32", (-1, 1, 28, 28), "answer", True)


def read(body: bytes, *, labels: tuple[str, ...] | None = None) -> Answer:
    classifier = connect_oip("", {"url": "http://h/m", "labels": labels})
    assert isinstance(classifier, OipClassifier)
    classifier._learned = MODEL
    return meant(classifier, [classifier._answer(Reply(200, {}, body))])[0]


def reply(datatype: str, data: list[object]) -> bytes:
    output = {"name": "answer", "datatype": datatype, "shape": [len(data)], "data": data}
    return json.dumps({"outputs": [output]}).encode()


@pytest.mark.parametrize(
    "body",
    [
        reply("FP32", [math.nan, 1.0]),
        reply("FP32", []),
        reply("FP32", ["cat", "dog"]),
        reply("BYTES", ["c\0t"]),
        reply("INT64", [2]),
        reply("INT64", [-1]),
        b'{"outputs": [{"name": "other", "datatype": "FP32", "shape": [1], "data": [1]}]}',
        b'{"error": "model is loading"}',
    ],
)
def test_a_reply_that_breaks_the_protocol_is_never_a_label(body: bytes) -> None:
    with pytest.raises(TransientError) as caught:
        read(body, labels=("cat", "dog"))
    assert caught.value.garbled


def test_a_single_share_is_no_label() -> None:
    with pytest.raises(PermanentError, check=coded("model-unsupported")):
        read(reply("FP32", [0.7]))


def test_the_first_of_equal_scores_counts() -> None:
    assert read(reply("FP32", [0.5, 2.0, 2.0]), labels=("a", "b", "c")).label == "b"


OUTPUTS = st.fixed_dictionaries(
    {
        "name": st.just("answer"),
        "datatype": st.sampled_from(["FP32", "INT64", "BYTES", "BOOL", "BF16"]),
        "shape": st.lists(st.integers(-1, 3), max_size=2),
    },
    optional={
        "data": st.lists(st.none() | st.integers() | st.floats() | st.text() | st.lists(st.integers()), max_size=4),
        "parameters": st.dictionaries(st.sampled_from(["binary_data_size", "content_type"]), st.integers() | st.text()),
    },
)


@given(OUTPUTS)
def test_whatever_comes_back_is_an_answer_or_an_error(output: dict[str, object]) -> None:
    body = json.dumps({"outputs": [output]}).encode()
    try:
        answer = read(body)
    except (TransientError, PermanentError):
        return
    assert isinstance(answer.label, str)


GUIDE = (Path(__file__).parents[2] / "docs" / "model-servers.md").read_text("utf-8")


@pytest.mark.parametrize("text", re.findall(r"```toml\n(connector = \"oip\".*?)```", GUIDE, re.DOTALL))
def test_the_description_in_the_guide_connects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("OIP_TOKEN", "k")
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    (tmp_path / "mine.toml").write_text(text)
    assert connect(tmp_path / "mine.toml").labels == ("cat", "dog")
