"""What FastAPI cannot see of a route: bodies of several types, replies that are not models, and problems."""

from __future__ import annotations

from typing import Any

from fastapi.responses import Response

from looktwice.model import AnyVerdict, Verdict
from looktwice.service import events
from looktwice.service.bodies import FORM, JSON, PictureBody
from looktwice.service.profiles import ProfileReply
from looktwice.service.replies import PROBLEM, LooksReply

Route = dict[str, Any]
"""Keyword arguments of a FastAPI route, or a part of an OpenAPI document."""

SVG = "image/svg+xml"
FILE = {"type": "string", "format": "binary"}
PICTURE = PictureBody.model_json_schema()
PROBLEMS: dict[int | str, Route] = {
    "default": {
        "description": "why there is no answer; `code` is for programs, `detail` for people",
        "content": {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}},
    }
}


def _plain(kind: str) -> Route:
    """A route that replies with something else than a model."""
    schema = {"type": "object" if kind in (JSON, events.TYPE) else "string"}
    return {"responses": {200: {"content": {kind: {"schema": schema}}}}, "response_class": Response}


def _body(field: str, form: Route, picture: Route, *raw: str) -> Route:
    """A body that is a form with files, JSON with base64, or the bytes of one file."""
    content = {
        FORM: {"schema": {"type": "object", "properties": {field: form}, "required": [field]}},
        JSON: {"schema": picture},
        **{kind: {"schema": FILE} for kind in raw},
    }
    return {"openapi_extra": {"requestBody": {"required": True, "content": content}}}


_ONE = _body("image", FILE, PICTURE, "image/png", "image/jpeg", "application/octet-stream")
_LIST = {"type": "array", "minItems": 1}
_SEVERAL = _body(
    "images",
    _LIST | {"items": FILE},
    {
        "type": "object",
        "properties": {"images": _LIST | {"items": PICTURE}},
        "required": ["images"],
        "additionalProperties": False,
    },
)

LOOK: Route = {"response_model": AnyVerdict} | _ONE
LOOKS: Route = {"response_model": LooksReply} | _SEVERAL
BURST: Route = {"response_model": Verdict} | _SEVERAL
LOOK_EVENTS = _plain(events.TYPE) | _ONE
BURST_EVENTS = _plain(events.TYPE) | _SEVERAL
PROFILE: Route = {"response_model": ProfileReply}
FIGURE = _plain(SVG)
METRICS = _plain("text/plain")
HEALTH = _plain(JSON)
