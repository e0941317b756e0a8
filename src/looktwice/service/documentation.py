"""The OpenAPI description of the routes: bodies, replies and examples."""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.responses import Response
from pydantic.json_schema import models_json_schema
from starlette.routing import BaseRoute

from looktwice.service.bodies import EXAMPLE, FORM, JSON, BurstBody, PictureBody, PicturesBody
from looktwice.service.oip import ErrorReply, InferenceBody, InferenceReply
from looktwice.service.profiles import ProfileReply
from looktwice.service.replies import CODES, PROBLEM, LooksReply, Problem, VerdictReply

Route = dict[str, Any]
"""Keyword arguments of a FastAPI route, or a part of an OpenAPI document."""

REFERENCE = "#/components/schemas/{model}"
MODELS = (
    PictureBody,
    PicturesBody,
    BurstBody,
    VerdictReply,
    LooksReply,
    ProfileReply,
    Problem,
    InferenceBody,
    InferenceReply,
    ErrorReply,
)
FILE = {"schema": {"type": "string", "format": "binary"}}
PICTURE_STATUSES = (400, 401, 403, 408, 413, 415, 421, 422, 429, 500, 502, 503, 504)
PLAIN_STATUSES = (401, 403, 421, 500)
VERDICT = {
    "name": "shirt.png",
    "label": "Shirt",
    "confidence": 0.74,
    "low": 0.61,
    "high": 0.84,
    "decision": "review",
    "base": "Shirt",
    "votes": [{"view": "mirror", "label": "Shirt"}, {"view": "zoom:1.15", "label": "Coat"}],
    "queries": 3,
    "prediction_set": ["Shirt", "Coat", None],
    "evidence": "labels",
    "score": None,
    "familiarity": 0.63,
    "unfamiliar_because": None,
    "sentence": "1 of 2 views agree; the enlarged one says Coat; such answers are right 74 % of the time.",
}
EVENTS = (
    'event: picture\ndata: {"name": "shirt.png", "views": [{"view": "mirror", "caption": "mirrored"}]}\n\n'
    'event: answer\ndata: {"place": 0, "label": "Shirt"}\n\n'
    'event: answer\ndata: {"place": 1, "label": "Coat"}\n\n'
    'event: verdict\ndata: {"label": "Shirt", "confidence": 0.74}\n\n'
    'event: view\ndata: {"place": 1, "picture": "data:image/png;base64,iVBORw0KGgo="}\n\n'
)


def described(app: FastAPI, more: list[BaseRoute]) -> Route:
    """The OpenAPI document of the application, and of more routes than FastAPI knows."""
    if app.openapi_schema is None:
        routes = [*more, *app.routes]
        schema = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=routes)
        _, models = models_json_schema([(model, "serialization") for model in MODELS], ref_template=REFERENCE)
        bearer = {"type": "http", "scheme": "bearer"}
        schema["components"] = {"schemas": models["$defs"], "securitySchemes": {"token": bearer}}
        schema["security"] = [{}, {"token": []}]
        app.openapi_schema = schema
    return app.openapi_schema


def _schema(model: str) -> Route:
    return {"schema": {"$ref": REFERENCE.format(model=model)}}


def _route(
    good: Route, statuses: tuple[int, ...], tag: str, error: Route | None = None, body: Route | None = None
) -> Route:
    """Keyword arguments for a route that replies so, refuses with these statuses and takes this body."""
    refused = error or {PROBLEM: _schema("Problem")}
    codes = {status: " or ".join(code for code, own in CODES.items() if own == status) for status in statuses}
    responses = {200: good} | {s: {"description": f"code: {code}", "content": refused} for s, code in codes.items()}
    extra = {"openapi_extra": {"requestBody": {"required": True, "content": body}}} if body else {}
    return {"responses": responses, "response_class": Response, "tags": [tag], **extra}


def _good(description: str, kind: str, content: Route) -> Route:
    return {"description": description, "content": {kind: content}}


def _form(name: str, schema: Route) -> Route:
    return {FORM: {"schema": {"type": "object", "properties": {name: schema}, "required": [name]}}}


_ONE = {
    **_form("image", FILE["schema"]),
    JSON: {**_schema("PictureBody"), "example": {"image": EXAMPLE, "name": "shirt.png"}},
    "image/png": FILE,
    "image/jpeg": FILE,
    "application/octet-stream": FILE,
}


def _some(model: str) -> Route:
    form = _form("images", {"type": "array", "items": FILE["schema"], "minItems": 1})
    return {**form, JSON: {**_schema(model), "example": {"images": [{"image": EXAMPLE}, {"image": EXAMPLE}]}}}


_SEVERAL, _PHOTOS = _some("PicturesBody"), _some("BurstBody")
_VERDICT = _good("the verdict", JSON, {**_schema("VerdictReply"), "example": VERDICT})
_EVENTS = _good("events; one of them is `verdict` or `problem`", "text/event-stream", {"example": EVENTS})
_INFERENCE = {JSON: _schema("InferenceBody"), "application/octet-stream": FILE}
_INFERRED = {
    "description": "label and confidence, or the outputs that were asked for",
    "content": {JSON: _schema("InferenceReply"), "application/octet-stream": FILE},
}
_ANY = {"schema": {"type": "object"}}

LOOK = _route(_VERDICT, PICTURE_STATUSES, "look", body=_ONE)
LOOKS = _route(_good("verdicts", JSON, _schema("LooksReply")), PICTURE_STATUSES, "look", body=_SEVERAL)
BURST = _route(_VERDICT, PICTURE_STATUSES, "look", body=_PHOTOS)
LOOK_EVENTS = _route(_EVENTS, PICTURE_STATUSES, "look", body=_ONE)
BURST_EVENTS = _route(_EVENTS, PICTURE_STATUSES, "look", body=_PHOTOS)
INFER = _route(_INFERRED, PICTURE_STATUSES, "open inference protocol", {JSON: _schema("ErrorReply")}, _INFERENCE)
PROFILE = _route(_good("the profile", JSON, _schema("ProfileReply")), PLAIN_STATUSES, "profile")
FIGURE = _route(_good("a drawing", "image/svg+xml", {"schema": {"type": "string"}}), PLAIN_STATUSES, "profile")
HEALTH = _route(_good("it is so", JSON, _ANY), (403, 421, 500), "health")
READY = _route(_good("it is so", JSON, _ANY), (401, 403, 421, 500, 503), "health")
METRICS = _route(_good("figures", "text/plain", {"schema": {"type": "string"}}), PLAIN_STATUSES, "health")
OIP = _route(_good("what there is", JSON, _ANY), PLAIN_STATUSES, "open inference protocol")
