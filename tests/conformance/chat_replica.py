"""The endpoints of OpenAI, Anthropic and Gemini, which name what the embedded classifier sees.

They follow the published schemas; tests/classifiers/test_chat_sdks.py holds their replies, and the requests that they
accept, against the official packages.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from aiohttp import web

from conformance.replica import logits_of_file, model, shares_of

Shape = Mapping[str, object]
Tokens = Sequence[tuple[str, float]]
"""Texts of tokens and their log probabilities."""


def openai_reply(
    said: str | None, finish: str = "stop", refusal: str | None = None, tokens: Tokens = ()
) -> dict[str, object]:
    """A chat completion in which the model says this, with the log probabilities of its tokens where they are given."""
    return _completion({"role": "assistant", "content": said, "refusal": refusal}, finish, tokens)


def openai_call(arguments: str) -> dict[str, object]:
    """A chat completion in which the model calls the tool."""
    call = {"id": "call_1", "type": "function", "function": {"name": "answer", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "refusal": None, "tool_calls": [call]}
    return _completion(message, "stop")  # where one tool is forced, OpenAI gives "stop" as the reason


def _completion(message: Shape, finish: str, tokens: Tokens = ()) -> dict[str, object]:
    told = {"content": [_openai_token(*each) for each in tokens], "refusal": None} if tokens else None
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": "fashion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": told}],
        "usage": {
            "prompt_tokens": 300,
            "completion_tokens": 5,
            "total_tokens": 305,
            "prompt_tokens_details": {"cached_tokens": 128},
        },
    }


def _openai_token(text: str, logprob: float) -> dict[str, object]:
    return {"token": text, "logprob": logprob, "bytes": [*text.encode()], "top_logprobs": []}


def responses_reply(
    said: str | None,
    status: str = "completed",
    why: str | None = None,
    refusal: str | None = None,
    tokens: Tokens = (),
) -> dict[str, object]:
    """A response in which the model says this, after a thought."""
    parts: list[object] = []
    if said is not None:
        parts = [
            {"type": "output_text", "text": said, "annotations": [], "logprobs": [_openai_token(*t) for t in tokens]}
        ]
    if refusal is not None:
        parts = [{"type": "refusal", "refusal": refusal}]
    message = {"id": "msg_1", "type": "message", "role": "assistant", "status": status, "content": parts}
    return {
        "id": "resp_1",
        "object": "response",
        "created_at": 1_760_000_000.0,
        "model": "fashion",
        "status": status,
        "error": None,
        "incomplete_details": {"reason": why} if why else None,
        "instructions": None,
        "metadata": {},
        "output": [{"id": "rs_1", "type": "reasoning", "summary": []}, *([message] if parts else [])],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "usage": {
            "input_tokens": 300,
            "input_tokens_details": {"cached_tokens": 128, "cache_write_tokens": 0},
            "output_tokens": 5,
            "output_tokens_details": {"reasoning_tokens": 2},
            "total_tokens": 305,
        },
    }


def anthropic_reply(said: str, stop: str = "end_turn") -> dict[str, object]:
    """A message in which the model says this."""
    return _message([{"type": "text", "text": said}] if said else [], stop)


def anthropic_call(given: Shape) -> dict[str, object]:
    """A message in which the model calls the tool."""
    return _message([{"type": "tool_use", "id": "toolu_1", "name": "answer", "input": given}], "tool_use")


def _message(content: list[dict[str, object]], stop: str) -> dict[str, object]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "fashion",
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 300, "output_tokens": 5, "cache_read_input_tokens": 128},
    }


def gemini_reply(said: str | None, finish: str = "STOP", tokens: Tokens = ()) -> dict[str, object]:
    """Content in which the model says this, after a thought."""
    parts = [{"text": "A Shirt?", "thought": True}, {"text": said}]
    content = {"role": "model", **({"parts": parts} if said is not None else {})}
    chosen = [{"token": text, "tokenId": 7, "logProbability": logprob} for text, logprob in tokens]
    logs = {"chosenCandidates": chosen, "logProbabilitySum": sum(logprob for _, logprob in tokens)}
    return {
        "candidates": [
            {"content": content, "finishReason": finish, "index": 0, **({"logprobsResult": logs} if tokens else {})}
        ],
        "usageMetadata": {
            "promptTokenCount": 300,
            "candidatesTokenCount": 5,
            "thoughtsTokenCount": 2,
            "totalTokenCount": 307,
            "promptTokensDetails": [
                {"modality": "TEXT", "tokenCount": 42},
                {"modality": "IMAGE", "tokenCount": 258},
            ],
        },
        "modelVersion": "fashion",
        "responseId": "r1",
    }


def gemini_block(why: str = "PROHIBITED_CONTENT") -> dict[str, object]:
    """What comes where the question itself was blocked."""
    usage = {"promptTokenCount": 300, "totalTokenCount": 300}
    return {"promptFeedback": {"blockReason": why}, "usageMetadata": usage, "modelVersion": "fashion"}


def openai_routes() -> web.RouteTableDef:
    """Chat completions, in JSON if a schema or a tool is given."""
    routes = web.RouteTableDef()

    @routes.post("/v1/chat/completions")
    async def complete(request: web.Request) -> web.Response:
        asked = await request.json()
        picture, text = _parts(asked["messages"][0]["content"])
        assert (picture["type"], text["type"]) == ("image_url", "text")
        file = _of_url(picture["image_url"]["url"])
        form = asked.get("response_format", {}).get("json_schema", {"schema": None})
        if "tools" in asked:
            (tool,) = asked["tools"]
            assert asked["tool_choice"] == {"type": "function", "function": {"name": tool["function"]["name"]}}
            return web.json_response(openai_call(_written(file, text["text"], tool["function"]["parameters"])))
        said = _written(file, text["text"], form["schema"])
        return web.json_response(openai_reply(said, tokens=_tokens(file, said) if asked.get("logprobs") else ()))

    return routes


def responses_routes() -> web.RouteTableDef:
    """Responses, in JSON if a schema is given."""
    routes = web.RouteTableDef()

    @routes.post("/v1/responses")
    async def respond(request: web.Request) -> web.Response:
        asked = await request.json()
        picture, text = _parts(asked["input"][0]["content"])
        assert (picture["type"], text["type"]) == ("input_image", "input_text")
        form = asked.get("text", {}).get("format", {"schema": None})
        file = _of_url(picture["image_url"])
        said = _written(file, text["text"], form["schema"])
        told = "message.output_text.logprobs" in asked.get("include", ())
        return web.json_response(responses_reply(said, tokens=_tokens(file, said) if told else ()))

    return routes


def anthropic_routes() -> web.RouteTableDef:
    """Messages, in JSON if a schema or a tool is given."""
    routes = web.RouteTableDef()

    @routes.post("/v1/messages")
    async def message(request: web.Request) -> web.Response:
        asked = await request.json()
        if request.headers["anthropic-version"] == "2026-10-21" and "temperature" in asked:
            told = {"type": "invalid_request_error", "message": "temperature: Extra inputs are not permitted"}
            return web.json_response({"type": "error", "error": told}, status=400)
        assert asked["max_tokens"] > 0
        picture, text = _parts(asked["messages"][0]["content"])
        assert picture["source"]["type"] == "base64"
        assert picture["source"]["media_type"] == "image/png"
        file = base64.b64decode(picture["source"]["data"], validate=True)
        if "tools" in asked:
            (tool,) = asked["tools"]
            assert asked["tool_choice"] == {"type": "tool", "name": tool["name"]}
            return web.json_response(anthropic_call(json.loads(_written(file, text["text"], tool["input_schema"]))))
        form = asked.get("output_config", {}).get("format", {"schema": None})
        return web.json_response(anthropic_reply(_written(file, text["text"], form["schema"])))

    return routes


def gemini_routes() -> web.RouteTableDef:
    """generateContent, in JSON if a schema is given."""
    routes = web.RouteTableDef()

    @routes.post("/v1beta/models/{model}:generateContent")
    async def generate(request: web.Request) -> web.Response:
        asked = in_camel_case(await request.json())
        picture, text = _parts(asked["contents"][0]["parts"])
        assert picture["inlineData"]["mimeType"] == "image/png"
        config = asked.get("generationConfig", {})
        schema = config.get("responseJsonSchema")
        assert (schema is not None) == (config.get("responseMimeType") == "application/json")
        data = picture["inlineData"]["data"]
        file = base64.urlsafe_b64decode(data) if set(data) & {"-", "_"} else base64.b64decode(data, validate=True)
        said = _written(file, text["text"], schema)
        return web.json_response(
            gemini_reply(said, tokens=_tokens(file, said) if config.get("responseLogprobs") else ())
        )

    return routes


def in_camel_case(value: Any) -> Any:
    """JSON with its names as Google documents them; its servers know `mime_type` as well as `mimeType`."""
    if isinstance(value, list):
        return [in_camel_case(item) for item in value]
    if not isinstance(value, dict):
        return value
    return {re.sub("_(.)", lambda letter: letter[1].upper(), name): in_camel_case(item) for name, item in value.items()}


def _parts(content: list[dict[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The picture and the words, which may come in either order."""
    words, picture = sorted(content, key=lambda part: "text" not in part)
    return picture, words


def _of_url(url: str) -> bytes:
    kind, _, data = url.partition(";base64,")
    assert kind == "data:image/png"
    return base64.b64decode(data, validate=True)


def _written(file: bytes, text: str, schema: Shape | None) -> str:
    """The label as a model writes it: plainly with a full stop, or in the JSON that the question asks for."""
    logits = logits_of_file(file)
    ranked = [label for _, label in sorted(zip(logits, model().labels, strict=True), reverse=True)]
    assert {*ranked} <= {*text.splitlines()}
    if schema is None and "JSON" not in text:
        return f"{ranked[0]}."
    ranks, probable = '"labels"' in text, '"probability"' in text
    if schema is not None:
        fields = schema["properties"]
        assert isinstance(fields, dict)
        assert [*fields] == [*["description"] * ('"description"' in text), "labels" if ranks else "label"]
        told = fields["labels"]["items"] if ranks else fields["label"]
        told = told["properties"]["label"] if probable else told
        assert [value for value in told["enum"] if value in ranked] == [
            line for line in text.splitlines() if line in ranked
        ]
    described = {"description": "A piece of clothing."} if '"description"' in text else {}
    shares = shares_of(file)
    listed = [{"label": label, "probability": shares[label]} if probable else label for label in ranked[:5]]
    return json.dumps({**described, **({"labels": listed} if ranks else {"label": ranked[0]})})


def _tokens(file: bytes, said: str) -> Tokens:
    """What was said in pieces of four characters; those of the label are as probable together as the model holds it."""
    probabilities = shares_of(file)
    label = max(probabilities, key=lambda name: probabilities[name])
    pieces = [said[start : start + 4] for start in range(0, len(said), 4)]
    first, last = said.rfind(label), said.rfind(label) + len(label)
    within = [place for place in range(len(pieces)) if 4 * place < last and first < 4 * place + 4]
    each = math.log(probabilities[label]) / len(within)
    return [(piece, each if place in within else -0.01) for place, piece in enumerate(pieces)]
