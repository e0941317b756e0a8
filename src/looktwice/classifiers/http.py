"""HTTP connector: a template for the request, and a path to the label in the reply.

    connector = "http"
    url = "https://api.example.com/v1/{model}/classify"
    headers = { authorization = "Bearer ${EXAMPLE_KEY}" }  # ${NAME} is a secret, read from the environment
    values = { model = "birds-2" }                         # {name} is not secret: it is in the fingerprint
    body = { kind = "json", template = { image = "{image_base64}", size = ["{width}", "{height}"] } }
    label = "predictions[].name"                           # JMESPath, https://jmespath.org
    score = "predictions[].confidence"
    price = "0.0015"

Templates support {image_base64}, {image_data_url}, {width}, {height} and {pixels}. When paths return lists, the label
with the largest score is used (the first one on ties, or without a score path); an empty list is an answer without a
label. Without a label path, the label is the position of the largest score. With `answer = "tags"` all labels in a list
are used, since several may apply to a picture. `preset = "google-vision"` loads a description from the package; its
settings can be overridden.
"""

from __future__ import annotations

import base64
import difflib
import json
import re
import secrets as chance
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Annotated, Literal, Self
from urllib.parse import parse_qsl, quote

from pydantic import BaseModel, ConfigDict, Field, JsonValue, field_validator, model_validator
from yarl import URL

from looktwice.classifiers.base import Answer, Classifier, Limits, Names, Pixels, Settings, fingerprint
from looktwice.classifiers.onnx import Preprocessing
from looktwice.classifiers.registry import described, labels_of
from looktwice.classifiers.replies import NAMING, READING, Paths, Reader
from looktwice.classifiers.secrets import Secrets, refuse_literals
from looktwice.classifiers.settings import Encoding, HttpSettings, form, kind_of
from looktwice.classifiers.transport import Reply, Transport
from looktwice.errors import PermanentError

PICTURE_NAMES = ("image_base64", "image_data_url", "width", "height", "pixels")
PICTURE = re.compile(r'("\{(?:width|height|pixels)\}"|\{image_base64\}|\{image_data_url\})')
PLACE = re.compile(r"(?<!\$)\{([a-z][a-z0-9_]*)\}")
ALONE = re.compile(r'"\{([a-z][a-z0-9_]*)\}"')
WHAT_IS_READ = {*READING, "reply"}
Build = Callable[[Pixels], bytes]


class Sent(BaseModel):
    """A body of a request."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Raw(Sent):
    """A body that is the file itself."""

    kind: Literal["raw"] = "raw"
    content_type: str | None = Field(default=None, description="by default image/png or image/jpeg")


class Base64(Sent):
    """A body with the file as base64 text."""

    kind: Literal["base64"] = "base64"
    content_type: str = "text/plain"


class Multipart(Sent):
    """A body with the file as a form field."""

    kind: Literal["multipart"] = "multipart"
    field: str = "image"
    filename: str | None = Field(default=None, description="by default image.png or image.jpeg")
    fields: dict[str, str] = Field(default_factory=dict, description="further fields")


class Json(Sent):
    """A JSON body that contains the picture."""

    kind: Literal["json"] = "json"
    template: JsonValue

    @field_validator("template")
    @classmethod
    def _shows_the_picture(cls, template: JsonValue) -> JsonValue:
        if not re.search(r"\{image_base64\}|\{image_data_url\}|\"\{pixels\}\"", json.dumps(template)):
            raise ValueError(
                "the template does not contain the picture; it needs {image_base64}, {image_data_url} or {pixels}"
            )
        return template


class Numbers(Preprocessing):
    """The value of {pixels}: nested lists of numbers, which are integers from 0 to 255 unless normalised."""

    size: tuple[int, int] | None = Field(default=None, description="height, width; by default the size of the picture")
    layout: Literal["hwc", "chw"] = "hwc"

    def nested(self, pixels: Pixels) -> str:
        """The lists as JSON."""
        fitted = self.fit(pixels, self.size)
        plain = self.scale == 1.0 and set(self.mean) == {0.0} and set(self.std) == {1.0}
        numbers = fitted if plain else self.normalise(fitted)
        ordered = numbers.transpose(1, 2, 0) if self.layout == "hwc" else numbers
        return json.dumps(ordered.tolist(), separators=(",", ":"))


Body = Raw | Base64 | Multipart | Json


class HttpDescription(HttpSettings, Paths):
    """The settings for creating the request and reading the reply."""

    url: str
    method: Literal["POST", "PUT", "PATCH"] = "POST"
    headers: dict[str, str] = Field(default_factory=dict)
    query: dict[str, str] = Field(default_factory=dict)
    values: dict[str, str] = Field(default_factory=dict, description="name → the value of {name}; not for secrets")
    body: Annotated[Body, Field(discriminator="kind")] = Raw()
    encoding: Encoding = Encoding()
    pixels: Numbers = Field(default=Numbers(), description="how {pixels} is computed")
    reply: Literal["json", "text"] = "json"

    @field_validator("body", mode="before")
    @classmethod
    def _kind_alone(cls, body: object) -> object:
        return {"kind": body} if isinstance(body, str) else body

    @model_validator(mode="after")
    def _writes_no_secret(self) -> Self:
        url = URL(self.url.split("?", 1)[0])
        if url.user or url.password:
            raise ValueError("the url contains a user or password; send them in a header with ${NAME}")
        asked = [("url", url.path), *parse_qsl(self.url.partition("?")[2]), *self.query.items()]
        sent = [*self.headers.items(), *self.values.items(), *_texts("body", self.body.model_dump())]
        refuse_literals([*asked, *sent], self.public)
        return self


class HttpClassifier:
    """A server that receives one request per picture."""

    def __init__(self, description: HttpDescription, labels: tuple[str, ...] | None) -> None:
        secrets = Secrets()
        hints = [description.headers.get(name) for name in description.headers if name.lower() == "content-type"]
        hints += [getattr(description.body, name, None) for name in ("content_type", "filename")]
        self._encoding = description.encoding.named(*hints)
        content_type, self._build = _body(description, self._encoding, secrets)
        headers = {name.lower(): secrets.fill(value) for name, value in description.headers.items()}
        url = URL(secrets.fill(description.url))
        url = url.update_query({name: secrets.fill(value) for name, value in description.query.items()})
        self._secrets = secrets
        self._transport = Transport(description, secrets)
        typed = {"content-type": content_type} if content_type else {}
        self._untyped = "content-type" not in typed | headers
        """Whether each request has the content type of its file."""
        self._endpoint = self._transport.endpoint(description.method, url, typed | headers)
        self._description = description
        # A text reply is the label itself, regardless of the label path.
        plain = {"label": "@", "score": "", "error": "", "answer": "label"} if description.reply == "text" else {}
        self._reader = Reader(description.model_copy(update=plain), labels)
        self.names = Names(labels, description.rename, description.empty)
        self.labels = self.names.labels
        self.answer_kind = description.answer
        self.limits = _limits(description, self._encoding)
        self.fingerprint = fingerprint("http", _parts(description))
        self.reading = fingerprint("json", description.model_dump(include=WHAT_IS_READ))

    def prepare(self, pixels: Pixels) -> bytes:
        return self._build(self._encoding.fit(pixels))

    async def label(self, batch: Sequence[bytes]) -> list[Answer]:
        return [self._answer(await self._endpoint.send(body, await self.headers(body))) for body in batch]

    def reread(self, reply: bytes, status: int | None) -> Answer:
        return self._answer(Reply(status or 200, {}, reply))

    async def close(self) -> None:
        await self._transport.close()

    async def headers(self, body: bytes) -> Mapping[str, str]:
        """The headers of one request, in addition to those of all requests."""
        return {"content-type": f"image/{kind_of(body)}"} if self._untyped else {}

    def _answer(self, reply: Reply) -> Answer:
        text = self._description.reply == "text"
        content = reply.body.decode("utf-8", "replace").strip() if text else self._endpoint.parse(reply)
        return self._endpoint.answer(reply, content, self._reader.read)


def connect(address: str, settings: Settings) -> Classifier[bytes]:
    """Connect `http://host/path`, which gets a PNG and replies with {"label": …}, or the settings of a TOML file."""
    return _connect({"url": address, **settings} if address else settings)


def connect_preset(address: str, settings: Settings) -> Classifier[bytes]:
    """Connect `preset:name`, or `preset:name?project=p&endpoint=e` with the values that the preset needs."""
    name, _, values = address.partition("?")
    return _connect({**settings, "preset": name, "values": dict(parse_qsl(values))})


def presets() -> tuple[str, ...]:
    """The names of the presets."""
    folder = files("looktwice.classifiers").joinpath("presets")
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")))


def preset(name: str) -> str:
    """The text of a preset, to copy and change."""
    known = presets()
    if name not in known:
        near = difflib.get_close_matches(name, known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(known)}"
        raise PermanentError(f"no preset is called {name!r}; {hint}")
    return files("looktwice.classifiers").joinpath("presets", f"{name}.toml").read_text("utf-8")


def _connect(settings: Settings) -> HttpClassifier:
    settings = _with_values(merge_preset(settings))
    description = described(HttpDescription, settings)
    return HttpClassifier(description, labels_of(description.labels, settings))


def merge_preset(settings: Settings) -> dict[str, object]:
    """Load the preset specified in the settings, if any, and apply the other settings to it."""
    if "preset" in settings:
        start = tomllib.loads(preset(str(settings["preset"])))
        settings = _changed(start, {key: value for key, value in settings.items() if key != "preset"})
    return {key: value for key, value in settings.items() if key != "connector"}


def _changed(start: Mapping[str, object], changes: Settings) -> dict[str, object]:
    """The preset with the user's settings applied: tables are merged, but the body is replaced."""
    both = {**start, **changes}
    for key, value in changes.items():
        before = start.get(key)
        if key != "body" and isinstance(before, dict) and isinstance(value, dict):
            both[key] = {**before, **value}
    return both


def _parts(description: HttpDescription) -> dict[str, object]:
    """Everything that can change the server's reply; secrets appear as the names of their variables."""
    silent = {*HttpSettings.model_fields, *NAMING, *WHAT_IS_READ, "values", "error"}
    parts = description.model_dump(exclude={*silent, "encoding", "headers"})
    if "{pixels}" not in json.dumps(parts["body"]):
        del parts["pixels"]
    headers = {name.lower(): value for name, value in description.headers.items()}
    return {**parts, "headers": headers, "encoding": description.encoding.parts()}


def _with_values(settings: Settings) -> Settings:
    """Substitute values for {name} in the settings; values in the address are percent-encoded."""
    values, url = settings.get("values", {}), settings.get("url")
    if not isinstance(values, Mapping) or not isinstance(url, str):
        return settings  # validation rejects these

    url = PLACE.sub(lambda match: quote(str(values.get(match[1], match[0])), safe="/:@{}"), url)
    parts = json.dumps({name: settings[name] for name in ("headers", "query", "body") if name in settings}, default=str)
    alone = {name for name in ALONE.findall(parts) if name not in PICTURE_NAMES}
    for name in (*PLACE.findall(url), *sorted(alone - values.keys())):
        raise PermanentError(
            f'the description has no value for {{{name}}}; add it as values = {{ {name} = "…" }} or as '
            f"preset:name?{name}=…"
        )
    filled = PLACE.sub(lambda match: json.dumps(str(values.get(match[1], match[0])))[1:-1], parts)
    return {**settings, "url": url, **json.loads(filled)}


def _texts(name: str, value: object) -> Iterator[tuple[str, str]]:
    """Every string in a JSON value that is not a picture placeholder, with its nearest enclosing key."""
    if isinstance(value, str) and value.strip("{}") not in PICTURE_NAMES:
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _texts(str(key), item)
    elif isinstance(value, list):
        for item in value:
            yield from _texts(name, item)


def _limits(description: HttpDescription, encoding: Encoding) -> Limits:
    shown = json.dumps(description.body.model_dump()) if isinstance(description.body, Json) else "{image_"
    numbers = description.pixels if "{pixels}" in shown else Numbers()
    size = numbers.usable_size(numbers.size) if numbers.size else encoding.usable_size()
    return description.limits(size, encoding=encoding if "{image_" in shown else None)


def _body(description: HttpDescription, encoding: Encoding, secrets: Secrets) -> tuple[str | None, Build]:
    """The content type of the body (None to use the content type of the file), and a function that encodes the body."""
    body = description.body
    if isinstance(body, Raw):
        return body.content_type, encoding.encode
    if isinstance(body, Base64):
        return body.content_type, lambda pixels: base64.b64encode(encoding.encode(pixels))
    if isinstance(body, Multipart):
        return _multipart(body, encoding, secrets)
    return "application/json", _json_builder(body, encoding, description.pixels, secrets)


def _multipart(body: Multipart, encoding: Encoding, secrets: Secrets) -> tuple[str, Build]:
    # A random boundary, so that no picture contains it.
    boundary = f"looktwice-{chance.token_hex(16)}"
    fields = {name: secrets.fill(value) for name, value in body.fields.items()}

    def build(pixels: Pixels) -> bytes:
        file = encoding.encode(pixels)
        kind = kind_of(file)
        return form(boundary, fields, body.field, body.filename or f"image.{kind}", f"image/{kind}", file)

    return f"multipart/form-data; boundary={boundary}", build


def _json_builder(body: Json, encoding: Encoding, numbers: Numbers, secrets: Secrets) -> Build:
    text = json.dumps(body.template, ensure_ascii=False, separators=(",", ":"))
    pieces = PICTURE.split(secrets.fill(text, lambda value: json.dumps(value, ensure_ascii=False)[1:-1]))
    shows_file = "{image_" in text

    def build(pixels: Pixels) -> bytes:
        file = encoding.encode(pixels) if shows_file else b""
        text = base64.b64encode(file).decode()
        places = {
            "{image_base64}": lambda: text,
            "{image_data_url}": lambda: f"data:image/{kind_of(file)};base64,{text}",
            '"{width}"': lambda: str(pixels.shape[1]),
            '"{height}"': lambda: str(pixels.shape[0]),
            '"{pixels}"': lambda: numbers.nested(pixels),
        }
        return "".join(places[piece]() if piece in places else piece for piece in pieces).encode()

    return build
