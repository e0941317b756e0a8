"""Read pictures from requests (a raw body, a form with files, or base64 in JSON), or reject the request. Nothing is
ever fetched."""

from __future__ import annotations

import asyncio
import base64
import binascii
from dataclasses import dataclass, field
from http import HTTPStatus
from threading import Lock
from typing import Annotated, ClassVar, TypeVar

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from looktwice.model import (
    AnyVerdict,
    Image,
    LookTwiceError,
    Picture,
    WorkingSize,
    decode,
    shown,
)
from looktwice.service import ServiceLimits

# Refusals and replies -------------------------------------------------------------------------------------------------

PROBLEM = "application/problem+json"
RETRY_AFTER = 60.0
"""The value of Retry-After, in seconds, if the service is unavailable until somebody intervenes."""

CODES = {
    "request": 400,
    "token": 401,
    "origin": 403,
    "missing": 404,
    "method": 405,
    "slow": 408,
    "size": 413,
    "type": 415,
    "host": 421,
    "picture": 422,
    "unfamiliar": 422,
    "busy": 429,
    "budget": 429,
    "internal": 500,
    "classifier": 502,
    "unavailable": 503,
    "time": 504,
}
"""Every refusal code, and its HTTP status."""


class Problem(BaseModel):
    """An RFC 9457 problem document; `code` and `error` are for programs, `detail` for people."""

    title: str
    status: int
    code: str = Field(examples=["picture"])
    detail: str
    error: str | None = Field(default=None, examples=["image-too-large"])
    """The code of the underlying error, if any."""


class UnscoredReply(BaseModel):
    """The problem of one picture among several."""

    name: str
    problem: Problem


class LooksReply(BaseModel):
    """One verdict or problem per picture, in order."""

    verdicts: list[AnyVerdict | UnscoredReply]


class Refusal(LookTwiceError):
    """A request without a verdict; `code` is one of CODES."""

    def __init__(
        self,
        code: str,
        detail: str,
        retry_after: float | None = None,
        allow: str | None = None,
        error: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.error = error
        self.code, self.retry_after, self.allow = code, retry_after, allow
        self.status = CODES[code]

    def problem(self) -> Problem:
        """The problem document."""
        title = HTTPStatus(self.status).phrase
        return Problem(title=title, status=self.status, code=self.code, detail=str(self), error=self.error)

    def response(self) -> Response:
        """The HTTP reply."""
        headers = {"connection": "close"} if self.code == "slow" else {}
        retry_after = RETRY_AFTER if self.retry_after is None and self.status == 503 else self.retry_after
        if retry_after is not None:
            headers["retry-after"] = str(max(1, round(retry_after)))
        if self.allow:
            headers["allow"] = self.allow
        if self.status == 401:
            headers["www-authenticate"] = "Bearer"
        return Response(self.problem().model_dump_json(), self.status, headers, PROBLEM)


# Pictures from requests -----------------------------------------------------------------------------------------------

LONGEST_NAME = 200
"""The maximum number of characters in a picture's name."""
LARGE = 65_536
"""JSON from this size is parsed in a thread, so that the event loop stays responsive."""
FIELDS = 16
"""Parts of a form that are not files."""
ENTRIES = 100_000
"""The maximum number of commas in JSON. It bounds the number of values, since a parsed value needs much more memory
than its text."""
EXAMPLE = (
    "iVBORw0KGgoAAAANSUhEUgAAABAAAAAQCAAAAAA6mKC9AAAALklEQVQY02NgIAQYIdR/OJMRxoVxGJH4YB4TFjP+o3AxVBAWIMoW"
    "TIehOJ0wAAAFggcSVEn3OAAAAABJRU5ErkJggg=="
)
"""A small picture, in base64."""
RAW = ("image/", "application/octet-stream")
FORM = "multipart/form-data"
JSON = "application/json"

Parsed = TypeVar("Parsed", bound=BaseModel)


class PictureBody(BaseModel):
    """One picture in JSON."""

    model_config = ConfigDict(extra="forbid", strict=True)

    image: Annotated[str, Field(description="the file in base64", examples=[EXAMPLE])]
    name: Annotated[str, Field(max_length=LONGEST_NAME)] = "picture"


class PicturesBody(BaseModel):
    """Several pictures in JSON; for a burst, these are photos of one object, with the main photo first."""

    model_config = ConfigDict(extra="forbid", strict=True)

    images: Annotated[list[PictureBody], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Opened:
    """A received picture; pictures are decoded one at a time, to save memory."""

    data: bytes = field(repr=False)
    """The bytes of its file."""
    pixels: int
    """The maximum number of pixels."""
    decoding: ClassVar[Lock] = Lock()

    def image(self, name: str, size: WorkingSize | None = None) -> Image:
        with self.decoding:
            return decode(self.data, name, self.pixels, size)


async def one(request: Request, limits: ServiceLimits) -> Picture:
    """Read the picture of a request."""
    kind = _kind(request)
    if kind.startswith(RAW):
        return _picture("picture", await request.body(), limits)
    if kind == JSON:
        return _decoded(await parsed(PictureBody, request), limits)
    uploads = await _form(request, limits)
    if len(uploads) != 1:
        raise Refusal("request", f"the form holds {len(uploads)} files; send one, or use /v1/looks or /v1/burst")
    return uploads[0]


async def several(request: Request, limits: ServiceLimits) -> list[Picture]:
    """Read several pictures of a request, in order."""
    if _kind(request) != JSON:
        return await _form(request, limits)
    pictures = (await parsed(PicturesBody, request)).images
    if len(pictures) > limits.pictures:
        raise Refusal("size", f"there are {len(pictures)} pictures; send up to {limits.pictures} in one request")
    return [_decoded(picture, limits) for picture in pictures]


async def photos(request: Request, limits: ServiceLimits) -> list[Picture]:
    """Read the photos of a burst, in order."""
    if _kind(request).startswith(RAW) or len(uploads := await several(request, limits)) < 2:
        raise Refusal("request", f"there is 1 picture; send 2 to {limits.pictures} photos of one object")
    return uploads


async def parsed(model: type[Parsed], request: Request) -> Parsed:
    """Validate the body; raises a Refusal if it is invalid."""
    body = await request.body()
    return await asyncio.to_thread(checked, model, body) if len(body) > LARGE else checked(model, body)


def checked(model: type[Parsed], body: bytes) -> Parsed:
    """JSON as a checked model."""
    if body.count(b",") > ENTRIES:
        raise Refusal("size", f"the JSON has more than {ENTRIES:,} entries; send fewer at a time")
    try:
        return model.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the body"
    raise Refusal("request", f"the JSON is invalid at {shown(where[:100])}: {first['msg']}")


def _kind(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def _picture(name: str, data: bytes, limits: ServiceLimits) -> Picture:
    return Picture(name, None, Opened(data, limits.pixels))


def _decoded(body: PictureBody, limits: ServiceLimits) -> Picture:
    try:
        data = base64.b64decode(body.image, validate=True)
    except (binascii.Error, ValueError):
        raise Refusal("request", f"{shown(body.name)} is not base64; send the bytes of the file as base64") from None
    return _picture(body.name, data, limits)


async def _form(request: Request, limits: ServiceLimits) -> list[Picture]:
    """The files of a form: at least one."""
    if _kind(request) != FORM:
        sent = shown(request.headers.get("content-type", "none"))
        raise Refusal("type", f"content type {sent} is not supported; send {FORM}, {JSON}, image/png or image/jpeg")
    parser = MultiPartParser(
        request.headers, request.stream(), max_files=limits.pictures, max_fields=FIELDS, max_part_size=LARGE
    )
    parser.spool_max_size = limits.body  # no upload is written to disk
    try:
        form = await parser.parse()
    except (MultiPartException, KeyError, ValueError, UnicodeError) as error:
        why = getattr(error, "message", "") or str(error) or type(error).__name__
        raise Refusal("request", f"the form cannot be read: {shown(why[:200])}") from None
    files = [value for _, value in form.multi_items() if isinstance(value, UploadFile)]
    uploads = [_picture((file.filename or "picture")[:LONGEST_NAME], await file.read(), limits) for file in files]
    await form.close()
    if not uploads:
        raise Refusal("request", "the form holds no file; send a picture")
    return uploads
