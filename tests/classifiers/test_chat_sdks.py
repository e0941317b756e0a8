"""The official packages of OpenAI, Anthropic and Google know the requests of our connectors and the replicas' replies.

Each is asked the same question through its own client, which must send what we send and read what we read. A package
that is not installed is skipped; `make test-servers` has all three.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, get_args

import pytest
from conformance.chat_replica import (
    anthropic_call,
    anthropic_reply,
    anthropic_routes,
    gemini_block,
    gemini_reply,
    gemini_routes,
    in_camel_case,
    openai_call,
    openai_reply,
    openai_routes,
    responses_reply,
    responses_routes,
)
from conformance.replica import Replica, labels_of, model, pictures
from pydantic import TypeAdapter

from looktwice.classifiers.chat import vendors
from looktwice.classifiers.chat.model import ChatClassifier
from looktwice.classifiers.chat.vendors import Completions, Gemini, Messages, Responses
from looktwice.views.base import Phrasing

WHY = "the package of the vendor is not installed; see make test-servers"
PHRASINGS = [Phrasing(), Phrasing(ranked=True), Phrasing(describe=True)]
LABEL = labels_of(pictures()[:1])[0]
FIELDS = {Phrasing(): {"label"}, Phrasing(ranked=True): {"labels"}, Phrasing(describe=True): {"description", "label"}}
Body = dict[str, Any]


def body_of(classifier: ChatClassifier, phrasing: Phrasing = PHRASINGS[0]) -> Body:
    """What we send for one question."""
    body: Body = json.loads(classifier.prepare_as(pictures()[0], phrasing).body)
    return body


def told(url: str, **settings: object) -> dict[str, object]:
    return {"url": url, "model": "fashion", "labels": model().labels, **settings}


def known(shape: Any, value: object) -> None:
    """Fail unless the official package knows this shape, and every field of it."""
    assert TypeAdapter(shape).validate_python(value, strict=True) == value


def names_the_label(said: str, phrasing: Phrasing) -> None:
    answer = json.loads(said)
    assert {*answer} == FIELDS[phrasing]
    assert LABEL in (answer.get("label"), *answer.get("labels", [])[:1])


# OpenAI ------------------------------------------------------------------------------------------------------------

OPENAI: list[Mapping[str, object]] = [
    {},
    {"logprobs": True},
    {"answer": "tool", "picture": "last"},
    {"answer": "plain", "temperature": 0.2, "seed": 3, "max_tokens": 50, "detail": "low"},
]


@pytest.mark.slow
@pytest.mark.parametrize("settings", OPENAI)
def test_openai_knows_every_field_of_a_completion_request(settings: Mapping[str, object]) -> None:
    types = pytest.importorskip("openai.types.chat", reason=WHY)
    body = body_of(Completions.connect("", told("http://h/v1", **settings)))
    assert set(body) <= set(types.completion_create_params.CompletionCreateParamsBase.__annotations__)
    for part in body["messages"][0]["content"]:
        picture = part["type"] == "image_url"
        known(types.ChatCompletionContentPartImageParam if picture else types.ChatCompletionContentPartTextParam, part)
    if "response_format" in body:
        from openai.types.shared_params import ResponseFormatJSONSchema

        known(ResponseFormatJSONSchema, body["response_format"])
    for tool in body.get("tools", ()):
        known(types.ChatCompletionToolParam, tool)
        known(types.ChatCompletionNamedToolChoiceParam, body["tool_choice"])
    given = {name: settings[name] for name in ("temperature", "seed", "max_tokens") if name in settings}
    assert {name: body[name] for name in ("temperature", "seed", "max_tokens") if name in body} == given


@pytest.mark.parametrize("phrasing", PHRASINGS)
async def test_the_openai_client_sends_and_reads_what_we_do(phrasing: Phrasing) -> None:
    sdk = pytest.importorskip("openai", reason=WHY)
    async with Replica().running(openai_routes()) as replica:
        ours = body_of(Completions.connect("", told(f"{replica.url}/v1")), phrasing)
        async with sdk.AsyncOpenAI(base_url=f"{replica.url}/v1", api_key="k", max_retries=0) as client:
            reply = await client.chat.completions.create(**ours)
        assert await replica.asked[0].json() == ours
    names_the_label(reply.choices[0].message.content, phrasing)
    assert (reply.usage.prompt_tokens, reply.usage.prompt_tokens_details.cached_tokens) == (300, 128)


@pytest.mark.parametrize(
    "settings", [{}, {"logprobs": True}, {"answer": "plain", "temperature": 0.2, "max_tokens": 50, "detail": "low"}]
)
def test_openai_knows_every_field_of_a_response_request(settings: Mapping[str, object]) -> None:
    types = pytest.importorskip("openai.types.responses", reason=WHY)
    body = body_of(Responses.connect("", told("http://h/v1", **settings)))
    assert set(body) <= set(types.response_create_params.ResponseCreateParamsBase.__annotations__)
    picture, text = body["input"][0]["content"]
    known(types.ResponseInputImageParam, picture)
    known(types.ResponseInputTextParam, text)
    assert set(body.get("include", ())) <= set(get_args(types.ResponseIncludable))
    assert ("text" in body) == ("answer" not in settings)
    if "text" in body:
        known(types.ResponseFormatTextJSONSchemaConfigParam, body["text"]["format"])


@pytest.mark.parametrize("phrasing", PHRASINGS)
async def test_the_openai_client_sends_and_reads_our_responses(phrasing: Phrasing) -> None:
    sdk = pytest.importorskip("openai", reason=WHY)
    async with Replica().running(responses_routes()) as replica:
        ours = body_of(Responses.connect("", told(f"{replica.url}/v1")), phrasing)
        async with sdk.AsyncOpenAI(base_url=f"{replica.url}/v1", api_key="k", max_retries=0) as client:
            reply = await client.responses.create(**ours)
        assert await replica.asked[0].json() == ours
    names_the_label(reply.output_text, phrasing)
    assert (reply.usage.input_tokens, reply.usage.output_tokens_details.reasoning_tokens) == (300, 2)


def test_openai_knows_the_replies_of_the_replica() -> None:
    chat = pytest.importorskip("openai.types.chat", reason=WHY)
    types = pytest.importorskip("openai.types.responses", reason=WHY)
    for reply in (
        openai_reply("Bag"),
        openai_reply("Bag", tokens=[("B", -0.1), ("ag", -0.2)]),
        openai_reply(None, refusal="no"),
        openai_reply("B", finish="length"),
        openai_reply("B", finish="content_filter"),
        openai_call('{"label": "Bag"}'),
    ):
        assert chat.ChatCompletion.model_validate(reply, strict=True).choices[0].index == 0
    for reply in (
        responses_reply("Bag"),
        responses_reply("Bag", tokens=[("B", -0.1), ("ag", -0.2)]),
        responses_reply(None, refusal="no"),
        responses_reply("B", "incomplete", "max_output_tokens"),
        responses_reply("B", "incomplete", "content_filter"),
        responses_reply(None),
    ):
        assert types.Response.model_validate_json(json.dumps(reply), strict=True).object == "response"


# Anthropic ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"max_tokens": 50}, {"answer": "tool", "picture": "last"}])
async def test_anthropic_knows_every_field_of_a_request(settings: Mapping[str, object]) -> None:
    sdk = pytest.importorskip("anthropic", reason=WHY)
    types = sdk.types
    async with Replica().running(anthropic_routes()) as replica:
        classifier = Messages.connect("", told(replica.url, **settings))
        await classifier.label([classifier.prepare(pictures()[0])])
        await classifier.close()
        body, headers = await replica.asked[0].json(), replica.asked[0].headers
    assert set(body) <= set(types.message_create_params.MessageCreateParamsBase.__annotations__)
    for part in body["messages"][0]["content"]:
        known(types.ImageBlockParam if part["type"] == "image" else types.TextBlockParam, part)
    if "output_config" in body:
        known(types.OutputConfigParam, body["output_config"])
    for tool in body.get("tools", ()):
        known(types.ToolParam, tool)
        known(types.ToolChoiceToolParam, body["tool_choice"])
    async with sdk.AsyncAnthropic(api_key="k") as client:
        assert headers["anthropic-version"] == client.default_headers["anthropic-version"]


@pytest.mark.parametrize("phrasing", PHRASINGS)
async def test_the_anthropic_client_sends_and_reads_what_we_do(phrasing: Phrasing) -> None:
    sdk = pytest.importorskip("anthropic", reason=WHY)
    async with Replica().running(anthropic_routes()) as replica:
        ours = body_of(Messages.connect("", told(replica.url)), phrasing)
        async with sdk.AsyncAnthropic(base_url=replica.url, api_key="k", max_retries=0) as client:
            reply = await client.messages.create(**ours)
        assert await replica.asked[0].json() == ours
    names_the_label(reply.content[0].text, phrasing)
    assert (reply.usage.input_tokens, reply.usage.cache_read_input_tokens) == (300, 128)


def test_anthropic_knows_the_replies_of_the_replica() -> None:
    types = pytest.importorskip("anthropic.types", reason=WHY)
    replies = [anthropic_reply("Bag"), anthropic_call({"label": "Bag"})]
    replies += [anthropic_reply("", stop=stop) for stop in ("refusal", "max_tokens", "pause_turn")]
    for reply in replies:
        assert types.Message.model_validate(reply, strict=True).role == "assistant"


# Gemini ------------------------------------------------------------------------------------------------------------

GEMINI: list[Mapping[str, object]] = [
    {},
    {"logprobs": True},
    {"temperature": 0.2, "seed": 3, "max_tokens": 50, "media_resolution": "low"},
    {"answer": "plain"},
]


@pytest.mark.filterwarnings("ignore:Inheritance class AiohttpClientSession")
@pytest.mark.parametrize("settings", GEMINI)
@pytest.mark.parametrize("phrasing", PHRASINGS)
async def test_the_gemini_client_sends_and_reads_what_we_do(settings: Mapping[str, object], phrasing: Phrasing) -> None:
    genai = pytest.importorskip("google.genai", reason=WHY)
    types = genai.types
    async with Replica().running(gemini_routes()) as replica:
        ours = body_of(Gemini.connect("", told(replica.url, **settings)), phrasing)
        picture, text = ours["contents"][0]["parts"]
        file = base64.b64decode(picture["inlineData"]["data"], validate=True)
        parts = [types.Part.from_bytes(data=file, mime_type="image/png"), types.Part.from_text(text=text["text"])]
        options = types.HttpOptions(base_url=replica.url, api_version="v1beta")
        client = genai.Client(api_key="k", http_options=options)
        reply = await client.aio.models.generate_content(
            model="fashion",
            contents=[types.Content(role="user", parts=parts)],
            config=types.GenerateContentConfig.model_validate(ours.get("generationConfig", {})),
        )
        await client.aio.aclose()
        (request,) = replica.asked
        theirs = in_camel_case(await request.json())
    data = theirs["contents"][0]["parts"][0]["inlineData"]
    data["data"] = data["data"].translate(str.maketrans("-_", "+/"))
    assert theirs in ({"generationConfig": {}, **ours}, ours)
    assert request.headers["x-goog-api-key"] == "k"
    if settings.get("answer") != "plain":
        names_the_label(reply.text, phrasing)
    assert (reply.usage_metadata.prompt_token_count, reply.usage_metadata.thoughts_token_count) == (300, 2)


def test_gemini_knows_the_replies_of_the_replica() -> None:
    types = pytest.importorskip("google.genai.types", reason=WHY)
    replies = [gemini_reply("Bag"), gemini_reply("Bag", tokens=[("Bag", -0.1)]), gemini_reply(None), gemini_block()]
    replies += [gemini_reply("B", finish=finish) for finish in ("MAX_TOKENS", "SAFETY", "RECITATION")]
    assert types.GenerateContentResponse.model_config["extra"] == "forbid"
    for reply in replies:
        assert types.GenerateContentResponse.model_validate(reply).model_version == "fashion"


def test_gemini_has_no_reason_to_end_an_answer_that_we_take_for_a_whole_one() -> None:
    types = pytest.importorskip("google.genai.types", reason=WHY)
    assert {*vendors.GEMINI_BLOCKS} <= {str(reason.value) for reason in types.FinishReason}
