"""Replicas of the chat doors of OpenAI and Anthropic, which name what the embedded classifier sees.

They follow the published schemas; tests/classifiers/test_chat_classifier.py holds their replies, and the requests that
they accept, against the official packages.
"""

from __future__ import annotations

import base64
import json

from aiohttp import web

from conformance.replica import label_of_file


def openai_reply(said: str | None, finish: str = "stop", refusal: str | None = None) -> dict[str, object]:
    """A chat completion in which the model says this."""
    message = {"role": "assistant", "content": said, "refusal": refusal}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": "fashion",
        "choices": [{"index": 0, "message": message, "finish_reason": finish, "logprobs": None}],
        "usage": {"prompt_tokens": 300, "completion_tokens": 5, "total_tokens": 305},
    }


def anthropic_reply(said: str, stop: str = "end_turn") -> dict[str, object]:
    """A message in which the model says this."""
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "fashion",
        "content": [{"type": "text", "text": said}] if said else [],
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 300, "output_tokens": 5},
    }


def openai_routes() -> web.RouteTableDef:
    """Chat completions, in JSON if a schema is given."""
    routes = web.RouteTableDef()

    @routes.post("/v1/chat/completions")
    async def complete(request: web.Request) -> web.Response:
        asked = await request.json()
        picture, text = asked["messages"][0]["content"]
        kind, _, data = picture["image_url"]["url"].partition(";base64,")
        assert (picture["type"], text["type"], kind) == ("image_url", "text", "data:image/png")
        label = label_of_file(base64.b64decode(data, validate=True))
        assert label in text["text"].splitlines()
        form = asked.get("response_format", {}).get("json_schema", {"schema": None})
        return web.json_response(openai_reply(_written(label, form["schema"])))

    return routes


def anthropic_routes() -> web.RouteTableDef:
    """Messages, in JSON if a schema is given."""
    routes = web.RouteTableDef()

    @routes.post("/v1/messages")
    async def message(request: web.Request) -> web.Response:
        asked = await request.json()
        if request.headers["anthropic-version"] == "2026-10-21" and "temperature" in asked:
            told = {"type": "invalid_request_error", "message": "temperature: Extra inputs are not permitted"}
            return web.json_response({"type": "error", "error": told}, status=400)
        assert asked["max_tokens"] > 0
        picture, text = asked["messages"][0]["content"]
        assert picture["source"]["type"] == "base64"
        assert picture["source"]["media_type"] == "image/png"
        label = label_of_file(base64.b64decode(picture["source"]["data"], validate=True))
        assert label in text["text"].splitlines()
        form = asked.get("output_config", {}).get("format", {"schema": None})
        return web.json_response(anthropic_reply(_written(label, form["schema"])))

    return routes


def _written(label: str, schema: dict[str, object] | None) -> str:
    """The label as a model writes it: plainly with a full stop, or in the JSON that the schema asks for."""
    if schema is None:
        return f"{label}."
    properties = schema["properties"]
    assert isinstance(properties, dict)
    ((name, told),) = properties.items()
    assert label in told["enum"]
    return json.dumps({name: label})
