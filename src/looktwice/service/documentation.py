"""What FastAPI cannot see of a route: bodies of several types, problems, and examples."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from looktwice.model import Verdict
from looktwice.service import events
from looktwice.service.bodies import EXAMPLE, FORM, JSON, PictureBody, PicturesBody
from looktwice.service.profiles import ProfileReply
from looktwice.service.replies import CODES, PROBLEM, LooksReply

Route = dict[str, Any]
"""Keyword arguments of a FastAPI route, or a part of an OpenAPI document."""

SVG = "image/svg+xml"
REFERENCE = "#/components/schemas/{model}"
FILE = {"type": "string", "format": "binary"}
EVENTS = (
    'event: picture\ndata: {"name": "shirt.png", "views": [{"view": "mirror", "caption": "mirrored"}]}\n\n'
    'event: answer\ndata: {"place": 0, "label": "Shirt"}\n\n'
    'event: answer\ndata: {"place": 1, "label": "Coat"}\n\n'
    'event: verdict\ndata: {"label": "Shirt", "confidence": 0.74}\n\n'
    'event: view\ndata: {"place": 1, "picture": "data:image/png;base64,iVBORw0KGgo="}\n\n'
)


def described(app: FastAPI) -> Route:
    """The OpenAPI document: FastAPI's, with the bodies that the routes read themselves."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        _, bodies = models_json_schema([(PicturesBody, "validation")], ref_template=REFERENCE)
        schema["components"]["schemas"] |= bodies["$defs"]
        schema["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        schema["security"] = [{}, {"token": []}]
        app.openapi_schema = schema
    return app.openapi_schema


def _problems(*statuses: int) -> dict[int | str, Route]:
    content = {PROBLEM: {"schema": {"$ref": REFERENCE.format(model="Problem")}}}
    codes = {status: " or ".join(code for code, own in CODES.items() if own == status) for status in statuses}
    return {status: {"description": f"code: {code}", "content": content} for status, code in codes.items()}


def _plain(kind: str, *statuses: int) -> Route:
    """A route that replies with something else than a model."""
    responses = {200: {"content": {kind: {"schema": {"type": "object" if kind == JSON else "string"}}}}}
    return {"responses": responses | _problems(*statuses), "response_class": Response}


def _body(model: type[BaseModel], field: str, form: Route, raw: tuple[str, ...], example: Route) -> Route:
    content = {
        FORM: {"schema": {"type": "object", "properties": {field: form}, "required": [field]}},
        JSON: {"schema": {"$ref": REFERENCE.format(model=model.__name__)}, "example": example},
        **{kind: {"schema": FILE} for kind in raw},
    }
    return {"openapi_extra": {"requestBody": {"required": True, "content": content}}}


_PICTURE_PROBLEMS = _problems(400, 401, 403, 408, 413, 415, 421, 422, 429, 500, 502, 503, 504)
_ONE = _body(
    PictureBody,
    "image",
    FILE,
    ("image/png", "image/jpeg", "application/octet-stream"),
    {"image": EXAMPLE, "name": "shirt.png"},
)
_SEVERAL = _body(
    PicturesBody,
    "images",
    {"type": "array", "items": FILE, "minItems": 1},
    (),
    {"images": [{"image": EXAMPLE}, {"image": EXAMPLE}]},
)
_VERDICT: Route = {"response_model": Verdict, "responses": _PICTURE_PROBLEMS}
_EVENTS: Route = {
    "response_class": Response,
    "responses": {
        200: {
            "description": "events; one of them is `verdict` or `problem`",
            "content": {events.TYPE: {"example": EVENTS}},
        }
    }
    | _PICTURE_PROBLEMS,
}

LOOK = _VERDICT | _ONE
LOOKS: Route = {"response_model": LooksReply, "responses": _PICTURE_PROBLEMS} | _SEVERAL
BURST = _VERDICT | _SEVERAL
LOOK_EVENTS = _EVENTS | _ONE
BURST_EVENTS = _EVENTS | _SEVERAL
PROFILE: Route = {"response_model": ProfileReply, "responses": _problems(401, 403, 421, 500)}
FIGURE = _plain(SVG, 401, 403, 421, 500)
METRICS = _plain("text/plain", 401, 403, 421, 500)
HEALTH = _plain(JSON, 403, 421, 500)
READY = _plain(JSON, 401, 403, 421, 500, 503)
