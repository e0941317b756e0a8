"""The table of docs/chat-replies.md: what becomes of each reply."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from aiohttp import web
from conformance.chat_replica import (
    anthropic_call,
    anthropic_reply,
    gemini_block,
    gemini_reply,
    openai_call,
    openai_reply,
    responses_reply,
)
from conformance.replica import Replica, pictures
from hypothesis import given, strategies as st
from support.errors import coded

from looktwice.classifiers.base import NO_LABEL, Answer, merged
from looktwice.classifiers.chat.model import ChatClassifier, ChatModel
from looktwice.classifiers.chat.prompts import Lexicon, Missing, probability_of, word_of
from looktwice.classifiers.chat.vendors import Completions, Gemini, Messages, Responses
from looktwice.classifiers.transport import Reply
from looktwice.errors import PermanentError, TransientError
from looktwice.model import AsyncModel
from looktwice.views.base import AS_DESCRIBED, Phrasing

PAGE = (Path(__file__).parents[2] / "docs" / "chat-replies.md").read_text("utf-8")
TOLD = {
    "url": "http://127.0.0.1:9",
    "model": "m",
    "labels": ["cat", "dog", "T-shirt/top", "7"],
    "synonyms": {"dog": ["puppy"], "T-shirt/top": ["tee"]},
}
VENDORS: dict[str, type[ChatModel]] = {
    "openai": Completions,
    "responses": Responses,
    "anthropic": Messages,
    "gemini": Gemini,
}
Said = Callable[[str], Mapping[str, object]]
WHOLE: dict[str, Said] = {
    "openai": openai_reply,
    "responses": responses_reply,
    "anthropic": anthropic_reply,
    "gemini": gemini_reply,
}
ENDED: dict[str, Said] = {
    "openai: a refusal": lambda said: openai_reply(None, refusal=said),
    "openai: length": lambda said: openai_reply(said, finish="length"),
    "openai: content_filter": lambda said: openai_reply(said, finish="content_filter"),
    "openai: no content": lambda _: openai_reply(None),
    "openai: a tool call": openai_call,
    "responses: a refusal": lambda said: responses_reply(None, refusal=said),
    "responses: incomplete, max_output_tokens": lambda said: responses_reply(said, "incomplete", "max_output_tokens"),
    "responses: incomplete, content_filter": lambda said: responses_reply(said, "incomplete", "content_filter"),
    "responses: no message": lambda _: responses_reply(None),
    "anthropic: refusal": lambda said: anthropic_reply(said, stop="refusal"),
    "anthropic: max_tokens": lambda said: anthropic_reply(said, stop="max_tokens"),
    "anthropic: pause_turn": lambda said: anthropic_reply(said, stop="pause_turn"),
    "anthropic: no blocks": lambda _: anthropic_reply(""),
    "anthropic: a tool call": lambda said: anthropic_call(json.loads(said)),
    "gemini: SAFETY": lambda said: gemini_reply(said, finish="SAFETY"),
    "gemini: RECITATION": lambda said: gemini_reply(said, finish="RECITATION"),
    "gemini: MAX_TOKENS": lambda said: gemini_reply(said, finish="MAX_TOKENS"),
    "gemini: the question was blocked, PROHIBITED_CONTENT": lambda _: gemini_block("PROHIBITED_CONTENT"),
    "gemini: no parts": lambda _: gemini_reply(None),
}


class Row(NamedTuple):
    """A row of the table."""

    number: int
    end: str
    said: str
    becomes: list[tuple[str, str]]
    """Each a label, or empty and the reason."""


def rows() -> list[Row]:
    table = re.findall(r"^\| (\d+) \| ([^|]*) \|([^|]*)\| ([^|]*) \|$", PAGE, re.MULTILINE)
    return [
        Row(int(number), end, said.strip()[1:-1].replace("\\n", "\n"), re.findall(r"`([^`]*)`|(\w+)", becomes))
        for number, end, said, becomes in table
    ]


def connected(vendor: str, **settings: object) -> ChatClassifier:
    return VENDORS[vendor].connect("", {**TOLD, **settings})


def meant(vendor: str, reply: Mapping[str, object], phrasing: Phrasing) -> list[tuple[str, str]]:
    """What an answer means, as the table writes it: labels, and reasons for none."""
    classifier = connected(vendor)
    answer = classifier.read(Reply(200, {}, json.dumps(reply).encode()), phrasing)
    words = [word for word, _ in answer.options] or [answer.label]
    labels = [classifier.names.label(word) for word in words]
    return [(label, "" if label else classifier.names.missing(word)) for word, label in zip(words, labels, strict=True)]


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row.number))
def test_a_reply_becomes_what_the_table_says(row: Row) -> None:
    phrasing = Phrasing(ranked=True) if row.end == "ranked" else AS_DESCRIBED
    replies = {row.end.partition(":")[0]: ENDED[row.end]} if row.end in ENDED else WHOLE
    for vendor, said in replies.items():
        assert meant(vendor, said(row.said), phrasing) == row.becomes, vendor


def test_the_table_is_whole() -> None:
    assert [row.number for row in rows()] == list(range(1, 60))
    assert {row.end for row in rows()} == {"any", "ranked", *ENDED}
    assert {reason for row in rows() for _, reason in row.becomes if reason} == {*Missing} - {Missing.UNSURE}


def read(vendor: str, said: object, **settings: object) -> Answer:
    """The answer in a reply with this JSON."""
    reply = WHOLE[vendor](json.dumps(said))
    return connected(vendor, **settings).read(Reply(200, {}, json.dumps(reply).encode()), AS_DESCRIBED)


def listed(**probabilities: object) -> dict[str, object]:
    """A ranked list as the prompt asks for it."""
    return {"labels": [{"label": label, "probability": each} for label, each in probabilities.items()]}


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize(
    ("said", "options"),
    [
        (listed(dog=0.7, cat=0.2, bird=0.1), (("dog", 0.7), ("cat", 0.2), ("bird", 0.1))),
        (listed(cat=0.2, dog=0.7), (("dog", 0.7), ("cat", 0.2))),  # the most probable label is the answer
        (listed(cat=20, dog=70), (("dog", 0.7), ("cat", 0.2))),  # in per cent
        (listed(cat=0.5, dog=0.5), (("cat", 0.5), ("dog", 0.5))),
        (listed(dog=1, cat=0), (("dog", 1.0), ("cat", 0.0))),
        (listed(cat="likely", dog=0.7), (("cat", None), ("dog", None))),
        (listed(cat=-1, dog=0.7), (("cat", None), ("dog", None))),
        (listed(cat=True, dog=0.7), (("cat", None), ("dog", None))),
        (listed(cat=1e999, dog=0.7), (("cat", None), ("dog", None))),
        ({"labels": ["dog", "cat"]}, (("dog", None), ("cat", None))),
        ({"labels": [{"label": ["dog"]}, {"label": "cat", "probability": 0.4}, 3.5, None]}, ()),
    ],
)
def test_probabilities_of_ranked_labels_are_scores(
    vendor: str, said: object, options: tuple[tuple[str, float | None], ...]
) -> None:
    answer = read(vendor, said, ranked=5, probabilities=True)
    assert answer.options == options
    assert (answer.label, answer.score) == (options[0] if options else ("cat", 0.4))


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize("word", ["unsure", "Unsure."])
def test_unsure_is_an_answer_without_a_label_where_it_is_allowed(vendor: str, word: str) -> None:
    for settings, reason in (({"unsure": True}, Missing.UNSURE), ({}, Missing.UNLISTED)):
        names = connected(vendor, **settings).names
        answer = read(vendor, {"label": word}, **settings)
        assert (names.label(answer.label), names.missing(answer.label)) == (NO_LABEL, reason)
    assert connected(vendor, unsure=True, without_label={"unsure": "other"}).names.label(word) == "other"
    ranked: dict[str, object] = {"ranked": 5, "probabilities": True, "unsure": True}
    answer = read(vendor, listed(unsure=0.6, cat=0.4), **ranked)
    assert merged(connected(vendor, **ranked).names, answer) == (("cat", 0.4),)


@pytest.mark.parametrize("vendor", VENDORS)
def test_what_is_allowed_is_in_the_prompt_and_in_the_schema(vendor: str) -> None:
    classifier = connected(vendor, ranked=5, probabilities=True, unsure=True)
    words, body = classifier.words(AS_DESCRIBED), classifier.prepare(np.zeros((30, 30, 3), np.uint8)).body.decode()
    assert words.splitlines()[-1] == "unsure"
    assert "probability" in words
    assert body.count('"unsure"') == 1, "once, in the enumeration; the prompt's quotes are escaped"
    assert "probability" in body.replace(json.dumps(words, ensure_ascii=False)[1:-1], "")


@pytest.mark.parametrize(
    "settings", [{"probabilities": True}, {"ranked": 11}, {"unsure": True, "labels": ["cat", "Unsure"]}]
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(PermanentError, check=coded("description-invalid")):
        connected("openai", **settings)


def test_an_answer_without_a_label_counts_as_the_one_that_it_is_given() -> None:
    plain, other = connected("gemini"), connected("gemini", without_label={"blocked": "other", "unlisted": "dog"})
    blocked = Reply(200, {}, json.dumps(gemini_reply("cat", finish="SAFETY")).encode())
    words = [other.read(blocked, AS_DESCRIBED).label, "bird", "I'm sorry", "cat"]
    assert [plain.names.label(word) for word in words] == ["", "", "", "cat"]
    assert [other.names.label(word) for word in words] == ["other", "dog", "", "cat"]
    assert other.labels == (*TOLD["labels"], "other")
    assert "other" not in other.words(AS_DESCRIBED)
    assert other.fingerprint == plain.fingerprint


@pytest.mark.parametrize(
    ("reply", "why"),
    [
        (gemini_block(), "the vendor's filter blocked the answer"),
        (gemini_reply("cat", finish="MAX_TOKENS"), "raise max_tokens"),
        (gemini_reply("I can't help with that."), "the model declined to answer"),
        (gemini_reply("bird"), "not exactly one label from the list"),
    ],
)
async def test_a_picture_without_a_label_says_why(reply: Mapping[str, object], why: str) -> None:
    routes = web.RouteTableDef()

    @routes.post("/{rest:.*}")
    async def answer(request: web.Request) -> web.Response:
        await request.read()
        return web.json_response(reply)

    async with (
        Replica().running(routes) as replica,
        AsyncModel(connected("gemini", url=replica.url), ledger="memory") as model,
    ):
        (unscored,) = (await model.ask([pictures()[0]], views="mirror")).unscored
        checked = await model.check()
    assert why in unscored.message
    assert all(why in line for line in checked.unread)
    assert len(checked.unread) == 3


@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.parametrize(
    "body", [b"{}", b"[]", b'{"error": {"message": "no"}}', b"cat", b'{"status": "failed", "output": []}']
)
def test_what_is_not_the_interfaces_own_json_is_garbled(vendor: str, body: bytes) -> None:
    with pytest.raises(TransientError) as caught:
        connected(vendor).read(Reply(200, {}, body), AS_DESCRIBED)
    assert caught.value.garbled


@given(st.text(max_size=60))
def test_whatever_is_said_is_a_label_or_has_a_reason(said: str) -> None:
    lexicon = Lexicon(("cat", "dog"), {})
    word = word_of(said)
    assert lexicon.label(word) in {"cat", "dog", ""}
    assert lexicon.missing(word) in Missing


@pytest.mark.parametrize(
    ("word", "tokens", "probability"),
    [
        ("cat", [(b'{"label":"', -0.3), (b"cat", math.log(0.5)), (b'"}', -0.2)], 0.5),
        (
            "red panda",
            [(b'"', -0.3), (b"red", math.log(0.5)), (b" pan", math.log(0.8)), (b'da"}', math.log(0.9))],
            0.36,
        ),
        ("cat", [(b"cat or ", -3.0), (b"cat", 0.0)], 1.0),
        ("t\u00ean", [(b"t\xc3", math.log(0.5)), (b"\xaan", math.log(0.5))], 0.25),
        ("dog", [(b"cat", -0.1)], None),
        ("", [(b"cat", -0.1)], None),
        ("cat", [], None),
    ],
)
def test_a_label_is_as_probable_as_the_tokens_that_write_it(
    word: str, tokens: Sequence[tuple[bytes, float]], probability: float | None
) -> None:
    told = probability_of(word, tokens)
    assert told == (None if probability is None else pytest.approx(probability))


@pytest.mark.parametrize(
    ("connect", "settings"),
    [
        (Messages.connect, {}),
        (Completions.connect, {"ranked": 5}),
        (Completions.connect, {"answer": "tool"}),
    ],
)
def test_token_probabilities_are_refused_where_there_are_none(
    connect: Callable[[str, Mapping[str, object]], ChatClassifier], settings: Mapping[str, object]
) -> None:
    with pytest.raises(PermanentError, check=coded("description-invalid")):
        connect("", {"url": "http://h/v1", "model": "m", "labels": ["cat", "dog"], "logprobs": True, **settings})
