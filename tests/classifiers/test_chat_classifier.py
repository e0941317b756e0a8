"""Chat models: what counts as a label, and what is sent."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from aiohttp import web
from conformance.chat_replica import anthropic_reply, anthropic_routes, openai_reply, openai_routes
from conformance.replica import Replica, labels_of, meant, model, pictures
from hypothesis import given, strategies as st
from support.errors import coded

from looktwice.classifiers.base import NO_LABEL, Answer, AnyClassifier, Settings
from looktwice.classifiers.chat.prompts import Lexicon, word_of
from looktwice.classifiers.chat.vendors import Completions, Messages
from looktwice.classifiers.registry import connect
from looktwice.errors import ImageError, PermanentError, QuotaError, TransientError
from looktwice.images.decode import decode

LABELS = ("cat", "dog", "T-shirt/top", "Ankle boot", "7", "C", "C++")
SYNONYMS = {"dog": ("puppy", "hot dog"), "Ankle boot": ("Stiefelette",)}
LEXICON = Lexicon(LABELS, SYNONYMS)


@pytest.mark.parametrize(
    ("said", "label"),
    [
        ("cat", "cat"),
        (" Cat.\n", "cat"),
        ("**CAT**", "cat"),
        ('"cat"', "cat"),
        ('{"label": "cat"}', "cat"),
        ('{"label": "Cat!"}', "cat"),
        ('```json\n{"label": "cat"}\n```', "cat"),
        ("```\ncat\n```", "cat"),
        ("puppy", "dog"),
        ("Hot-Dog", "dog"),
        ("t shirt top", "T-shirt/top"),
        ("ANKLE_BOOT", "Ankle boot"),
        ("ｃａｔ", "cat"),
        ("7", "7"),
        ('{"label": 7}', "7"),
        ("C++", "C++"),
        ("C", "C"),
    ],
)
def test_one_label_counts_whatever_its_case_and_punctuation(said: str, label: str) -> None:
    assert LEXICON.label(word_of(said)) == label


@pytest.mark.parametrize(
    "said",
    [
        "",
        "   ",
        "...",
        "I'm sorry, I can't help with identifying this.",
        "The picture shows a cat.",
        "a cat",
        "cat or dog",
        "cat, dog",
        "cat\ndog",
        '["cat", "dog"]',
        '{"label": ["cat"]}',
        '{"label": null}',
        '{"label": "bird"}',
        '{"class": "cat"}',
        '{"label": "cat"',
        "not a cat",
        "bobcat",
        "null",
        "c",  # "C" and "C++" are the same without case and punctuation
        "[" * 100_000,
    ],
)
def test_a_refusal_two_labels_or_prose_is_no_label(said: str) -> None:
    assert LEXICON.label(word_of(said)) == NO_LABEL


@pytest.mark.slow
@given(st.text(max_size=40))
def test_whatever_is_said_is_a_label_or_none(said: str) -> None:
    assert LEXICON.label(word_of(said)) in {*LABELS, NO_LABEL}


@given(st.lists(st.text(min_size=1).filter(str.strip), unique=True, min_size=1, max_size=8), st.data())
def test_a_label_said_exactly_is_that_label(labels: list[str], data: st.DataObject) -> None:
    label = data.draw(st.sampled_from(labels))
    assert Lexicon(labels, {}).label(word_of(json.dumps({"label": label}))) == label


@given(st.lists(st.text(min_size=1).filter(str.strip), unique=True, min_size=2, max_size=5), st.data())
def test_two_labels_are_never_one_of_them(labels: list[str], data: st.DataObject) -> None:
    one, two = data.draw(st.permutations(labels))[:2]
    assert Lexicon((one, two), {}).label(word_of(json.dumps({"label": [one, two]}))) == NO_LABEL


@pytest.mark.parametrize(
    ("labels", "synonyms"),
    [
        (("cat", "cat"), {}),
        (("cat", "dog"), {"cat": ("dog",)}),
        (("cat", "dog"), {"cat": ("pet",), "dog": ("pet",)}),
        (("cat", "dog"), {"bird": ("wren",)}),
        (("cat", " "), {}),
    ],
)
def test_words_that_could_mean_two_labels_are_refused(
    labels: tuple[str, ...], synonyms: Mapping[str, tuple[str, ...]]
) -> None:
    with pytest.raises(PermanentError, check=coded("description-invalid")):
        Lexicon(labels, synonyms)


def saying(path: str, reply: Mapping[str, object]) -> web.RouteTableDef:
    """A server that always says the same, and an empty list of what it was asked."""
    routes = web.RouteTableDef()

    @routes.post(path)
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response(reply)

    return routes


@asynccontextmanager
async def chat(
    dialect: str, routes: web.RouteTableDef, **settings: object
) -> AsyncIterator[tuple[AnyClassifier, Replica]]:
    async with Replica().running(routes) as replica:
        told: Settings = {"model": "fashion", "labels": model().labels, **settings}
        classifier = (
            Completions.connect("", {"url": f"{replica.url}/v1", **told})
            if dialect == "openai"
            else Messages.connect("", {"url": replica.url, **told})
        )
        try:
            yield classifier, replica
        finally:
            await classifier.close()


async def ask(classifier: AnyClassifier, count: int = 1) -> list[Answer]:
    return meant(classifier, await classifier.label([classifier.prepare(image) for image in pictures()[:count]]))


DIALECTS = {"openai": openai_routes, "anthropic": anthropic_routes}


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("answer", ["schema", "plain"])
async def test_labels_are_read_from_json_and_from_plain_answers(dialect: str, answer: str) -> None:
    async with chat(dialect, DIALECTS[dialect](), answer=answer) as (classifier, _):
        assert [said.label for said in await ask(classifier, 6)] == labels_of(pictures()[:6])


@pytest.mark.parametrize(
    "reply",
    [
        openai_reply(None, refusal="I can't help with that."),
        openai_reply("Bag", refusal="no"),
        openai_reply('{"label": "Bag"}', finish="length"),
        openai_reply("Bag", finish="content_filter"),
        openai_reply(None),
        openai_reply("It may be a Bag or a Shirt."),
    ],
)
async def test_openai_replies_without_a_whole_label_are_answers_without_one(reply: Mapping[str, object]) -> None:
    async with chat("openai", saying("/v1/chat/completions", reply)) as (classifier, _):
        (said,) = await ask(classifier)
    assert (said.label, said.status) == (NO_LABEL, 200)
    assert json.loads(said.raw or b"") == reply


@pytest.mark.parametrize(
    "reply",
    [
        anthropic_reply("", stop="refusal"),
        anthropic_reply("Bag", stop="refusal"),
        anthropic_reply('{"label": "Bag"}', stop="max_tokens"),
        anthropic_reply("Bag", stop="pause_turn"),
        anthropic_reply("I cannot tell."),
    ],
)
async def test_anthropic_replies_without_a_whole_label_are_answers_without_one(reply: Mapping[str, object]) -> None:
    async with chat("anthropic", saying("/v1/messages", reply)) as (classifier, _):
        (said,) = await ask(classifier)
    assert (said.label, said.status) == (NO_LABEL, 200)


async def test_anthropics_thinking_is_not_its_answer() -> None:
    reply = anthropic_reply("Bag")
    blocks = [{"type": "thinking", "thinking": "A Shirt?", "signature": "x"}, *cast("list[object]", reply["content"])]
    async with chat("anthropic", saying("/v1/messages", {**reply, "content": blocks})) as (classifier, _):
        assert (await ask(classifier))[0].label == "Bag"


@pytest.mark.parametrize("body", [{"choices": []}, {"choices": [{}]}, {"object": "error"}, {"choices": "Bag"}])
async def test_what_is_not_a_completion_is_garbled(body: Mapping[str, object]) -> None:
    async with chat("openai", saying("/v1/chat/completions", body)) as (classifier, _):
        with pytest.raises(TransientError) as caught:
            await ask(classifier)
    assert caught.value.garbled


@pytest.mark.parametrize(
    ("status", "text"),
    [
        (429, "You exceeded your current quota, please check your plan and billing details."),
        (400, "Your credit balance is too low to access the Anthropic API."),
    ],
)
@pytest.mark.parametrize("dialect", DIALECTS)
async def test_an_empty_account_is_told_apart_from_a_busy_server(dialect: str, status: int, text: str) -> None:
    routes = web.RouteTableDef()

    @routes.post("/{rest:.*}")
    async def refuse(request: web.Request) -> web.Response:
        return web.json_response({"error": {"message": text}}, status=status)

    async with chat(dialect, routes) as (classifier, _):
        with pytest.raises(QuotaError):
            await ask(classifier)


async def sent(dialect: str, **settings: object) -> tuple[dict[str, object], Mapping[str, str]]:
    """Body and headers of one question."""
    async with chat(dialect, DIALECTS[dialect](), **settings) as (classifier, replica):
        await ask(classifier)
        (request,) = replica.asked
        return cast("dict[str, object]", await request.json()), request.headers


async def test_anthropic_takes_a_temperature_in_the_older_version_of_its_interface() -> None:
    body, headers = await sent("anthropic", temperature=0.5)
    assert (body["temperature"], headers["anthropic-version"]) == (0.5, "2023-06-01")


async def test_openai_is_asked_at_its_own_address_with_its_own_key(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Replica().running(openai_routes()) as replica:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{replica.url}/v1/")
        monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
        classifier = Completions.connect("", {"model": "fashion", "labels": model().labels})
        await ask(classifier)
        await classifier.close()
        assert replica.asked[0].headers["authorization"] == "Bearer sk-mine"


async def test_a_key_is_never_sent_to_an_address_it_was_not_named_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-mine")
    for dialect in DIALECTS:
        _, headers = await sent(dialect)
        assert not [value for value in headers.values() if "sk-mine" in value]


async def test_a_string_names_server_model_and_labels(tmp_path: Path) -> None:
    labels = tmp_path / "labels.txt"
    labels.write_text("\n".join(model().labels))
    async with Replica().running(openai_routes()) as replica:
        classifier = connect(f"openai+{replica.url}/v1?labels={labels}#fashion")
        assert (await ask(classifier))[0].label == labels_of(pictures()[:1])[0]
        assert (await replica.asked[0].json())["model"] == "fashion"
        await classifier.close()


@pytest.mark.parametrize("text", ["openai:gpt-5-mini", "anthropic:claude-opus-4-8", "openai+http://host/v1#llava:7b"])
def test_without_labels_a_description_is_asked_for(text: str) -> None:
    with pytest.raises(PermanentError, check=coded("description-invalid")):
        connect(text)


def test_an_address_without_a_model_is_refused() -> None:
    with pytest.raises(PermanentError, check=coded("description-invalid")):
        Completions.connect("http://host/v1", {"labels": ["a", "b"]})


@pytest.mark.parametrize("url", ["https://me:hunter2@host/v1", "https://host/v1?key=hunter2"])
def test_a_secret_in_the_address_is_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(PermanentError) as caught:
        Completions.connect("", {"url": url, "model": "m", "labels": ["a", "b"]})
    assert "hunter2" not in str(caught.value)


def test_a_prompt_must_list_the_labels() -> None:
    with pytest.raises(PermanentError, check=coded("description-invalid")):
        Completions.connect("", {"url": "http://h", "model": "m", "labels": ["a", "b"], "prompt": "What is it?"})


async def test_braces_and_quotes_in_labels_reach_the_model_as_they_are() -> None:
    labels = ['{"a"}', "{labels}", "ü\\n", *model().labels]
    body, _ = await sent("openai", labels=labels)
    content = cast("list[dict[str, str]]", cast("list[dict[str, object]]", body["messages"])[0]["content"])
    assert content[1]["text"].endswith("\n".join(labels))


@pytest.mark.parametrize(("dialect", "side"), [("openai", 2048), ("anthropic", 1568)])
def test_large_pictures_are_scaled_to_the_limit_before_they_are_paid_for(dialect: str, side: int) -> None:
    connect_to = Completions.connect if dialect == "openai" else Messages.connect
    classifier = connect_to("", {"url": "http://h", "model": "m", "labels": ["a", "b"]})
    body = json.loads(classifier.prepare(np.zeros((1000, 3000, 3), np.uint8)).body)
    part = body["messages"][0]["content"][0]
    data = part["image_url"]["url"].partition(",")[2] if dialect == "openai" else part["source"]["data"]
    height, width, _ = decode(base64.b64decode(data), "sent").pixels.shape
    assert (width, height) == (side, side // 3)


def test_a_changed_encoding_keeps_the_limits_of_the_api() -> None:
    settings = {"url": "http://h", "model": "m", "labels": ["a", "b"], "encoding": {"format": "png", "max_side": 4000}}
    noise = np.random.default_rng(0).integers(0, 256, (1200, 1200, 3), np.uint8)
    with pytest.raises(ImageError, check=coded("image-unfit")):
        Messages.connect("", settings).prepare(noise)
    assert len(Completions.connect("", settings).prepare(noise).body) > 5 << 20


def test_the_price_of_a_question_is_told() -> None:
    classifier = Completions.connect("", {"url": "http://h", "model": "m", "labels": ["a", "b"], "price": "0.0004"})
    assert classifier.limits.price_micros == 400


DOCS = Path(__file__).parents[2] / "docs"
GUIDE = "".join((DOCS / page).read_text("utf-8") for page in ("chat-models.md", "howto/vision-language-models.md"))
DESCRIPTION = re.compile(r"```toml\n((?:#[^\n]*\n)?connector = \"(?:openai|anthropic|gemini).*?)```", re.DOTALL)
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "GEMINI_API_KEY", "VLLM_KEY")


@pytest.mark.parametrize("text", DESCRIPTION.findall(GUIDE))
def test_the_descriptions_in_the_guides_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    for variable in KEYS:
        monkeypatch.setenv(variable, "k")
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    (tmp_path / "mine.toml").write_text(text)
    classifier = connect(tmp_path / "mine.toml")
    assert "cat" in (classifier.labels or ())
    assert json.loads(classifier.prepare(pictures()[0]).body)


@pytest.mark.parametrize("text", re.findall(r"^    looktwice check \"((?:openai|anthropic|gemini).*)\"$", GUIDE, re.M))
def test_the_strings_in_the_guide_connect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    for variable in KEYS:
        monkeypatch.setenv(variable, "k")
    assert connect(text).labels == ("cat", "dog")


def test_every_interface_stands_in_the_guide() -> None:
    described = {text.partition('"')[2].partition('"')[0] for text in DESCRIPTION.findall(GUIDE)}
    assert described == {"openai", "anthropic", "gemini"}
    assert len(DESCRIPTION.findall(GUIDE)) == 5
