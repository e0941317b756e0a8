"""Language models that look at pictures: OpenAI and servers that speak like it, and Anthropic.

    connector = "openai"                  # or "anthropic"
    model = "gpt-5-mini"
    labels = ["cat", "dog"]               # or the name of a text file with one label a line
    synonyms = { dog = ["puppy", "hound"] }
    answer = "schema"                     # a JSON schema holds the model to the labels; "plain" for servers without
    ranked = 5                            # ask for the five best labels in their order, which is evidence for a fit
    temperature = 0.0                     # sent only if it is set, since some models take none; so is seed
    price = "0.0004"                      # of one question
    # url = "http://localhost:8000/v1"    # vLLM, Ollama and their like; openai+http://localhost:8000/v1#model
    # key = "SERVER_KEY"                  # the environment variable that holds the key for that url

The keys are read from OPENAI_API_KEY and ANTHROPIC_API_KEY, and are never sent to a `url` of your own.
An answer counts if it is one label or one synonym, whatever its case and punctuation. A refusal, two labels or prose
is an answer without a label: it is paid for and counted, and nothing is guessed.
"""

from __future__ import annotations

import base64
import json
import os
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple, Self
from urllib.parse import parse_qs, urlsplit

from pydantic import BaseModel, Field, ValidationError, field_validator, model_validator
from yarl import URL

from looktwice.classifiers.base import MOST_OPTIONS, NO_LABEL, Answer, Classifier, Pixels, Settings, fingerprint
from looktwice.classifiers.encoding import Encoding, kind_of
from looktwice.classifiers.secrets import Secrets, refuse_literals
from looktwice.classifiers.settings import described, folder_of, read_labels
from looktwice.classifiers.transport import Manners, Reply, Transport
from looktwice.errors import PermanentError
from looktwice.pictures.image import WorkingSize

PROMPT = """\
What does this picture show? Answer with exactly one label of this list, written as it is there, and nothing else.

{labels}"""
RANKED = """\
What does this picture show? Answer with the {count} most probable labels of this list, the most probable first, written
as they are there, as JSON: {{"labels": [...]}}, and nothing else.

{{labels}}"""
PICTURE, KIND = "\0", "\1"
"""Where the base64 of the picture goes; JSON writes it as an escape, which base64 and URLs cannot hold."""
OPENAI = "https://api.openai.com/v1"
ANTHROPIC = "https://api.anthropic.com"
ANTHROPIC_VERSION = "2026-10-21"
ANTHROPIC_WITH_TEMPERATURE = "2023-06-01"
"""The newest version of the interface, and the last one that takes a temperature."""
JSON = {"content-type": "application/json"}
LONGEST = 1000
"""Characters that are kept of what a model said; no label is longer."""
FENCE = re.compile(r"```(?:json)?\s*(.*?)\s*```", re.DOTALL)

OPENAI_LIMITS: Mapping[str, object] = {"max_side": 2048, "max_bytes": 20_000_000}
"""Larger pictures are scaled down to this side by the server in any case; larger files are refused."""
ANTHROPIC_LIMITS: Mapping[str, object] = {"max_side": 1568, "max_bytes": (5 << 20) * 3 // 4}
"""The same; five MiB is the limit of the base64 text, which is a third longer than the file."""


class Description(Manners):
    """What every chat model is told."""

    model: str = Field(min_length=1)
    labels: tuple[str, ...] | str = Field(min_length=1)
    synonyms: dict[str, tuple[str, ...]] = Field(default_factory=dict, description="label → other words for it")
    prompt: str = Field(default="", description="with {labels} where they are listed; a usual one if left out")
    ranked: int = Field(default=0, ge=0, le=MOST_OPTIONS, description="labels that it is to rank; 0 asks for one label")
    answer: Literal["schema", "plain"] = "schema"
    temperature: float | None = Field(default=None, ge=0, le=2)
    url: str | None = None
    key: str | None = Field(default=None, description="name of the environment variable that holds the key for url")

    @field_validator("prompt")
    @classmethod
    def _lists_the_labels(cls, prompt: str) -> str:
        if prompt and "{labels}" not in prompt:
            raise ValueError("the prompt must say {labels} where the labels are to be listed")
        return prompt

    @field_validator("key")
    @classmethod
    def _names_a_variable(cls, key: str | None) -> str | None:
        if key is not None and not (key.isidentifier() and key.isascii()):
            raise ValueError("it is the NAME of the environment variable that holds the key, not the key itself")
        return key

    def question(self) -> str:
        """What the model is asked, with {labels} where they are listed."""
        return self.prompt or (RANKED.format(count=self.ranked) if self.ranked else PROMPT)

    @model_validator(mode="after")
    def _writes_no_secret(self) -> Self:
        refuse_literals([("url", self.url or ""), ("model", self.model), ("prompt", self.prompt)], self.public)
        return self


class OpenAI(Description):
    """A model behind OpenAI's chat completions."""

    seed: int | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    detail: Literal["auto", "low", "high", "original"] | None = None
    encoding: Encoding = Encoding.model_validate(OPENAI_LIMITS)

    def usable_size(self) -> WorkingSize:
        """What the model sees: at low detail a square of 512 px, at high detail a shorter side of 768 px."""
        size = self.encoding.usable_size()
        if self.detail == "original":
            return size
        return WorkingSize(long=min(512, size.long or 512)) if self.detail == "low" else replace(size, short=768)

    @field_validator("encoding", mode="before")
    @classmethod
    def _within_limits(cls, told: object) -> object:
        return {**OPENAI_LIMITS, **told} if isinstance(told, Mapping) else told


class Anthropic(Description):
    """A model behind Anthropic's messages."""

    max_tokens: int = Field(default=256, ge=1)
    encoding: Encoding = Encoding.model_validate(ANTHROPIC_LIMITS)

    def usable_size(self) -> WorkingSize:
        """What the model sees."""
        return self.encoding.usable_size()

    @field_validator("encoding", mode="before")
    @classmethod
    def _within_limits(cls, told: object) -> object:
        return {**ANTHROPIC_LIMITS, **told} if isinstance(told, Mapping) else told


class Dialect(NamedTuple):
    """How one family of servers is asked and understood."""

    base: str
    path: str
    headers: Mapping[str, str]
    request: Mapping[str, object]
    """The body, with KIND and then PICTURE in place of the picture's format and content."""
    read: Callable[[bytes], str | None]
    """What the model said, None if it was cut off or kept from saying it; a ValidationError if it is no reply."""


class ChatClassifier:
    """A language model that is shown one picture a question and must name a label."""

    def __init__(self, description: OpenAI | Anthropic, dialect: Dialect, lexicon: Lexicon, secrets: Secrets) -> None:
        self._encoding = description.encoding
        self._ranked = description.ranked
        self._read = dialect.read
        self._secrets = secrets
        body = json.dumps(dialect.request, ensure_ascii=False, separators=(",", ":"))
        head, _, rest = body.partition(json.dumps(KIND)[1:-1])
        between, _, tail = rest.partition(json.dumps(PICTURE)[1:-1])
        self._head, self._between, self._tail = head.encode(), between.encode(), tail.encode()
        self._transport = Transport(description, secrets)
        self._door = self._transport.door("POST", dialect.base + dialect.path, dialect.headers)
        self.labels = lexicon.labels
        self.names = lexicon
        self.terms = description.terms(description.usable_size(), encoding=description.encoding)
        self.fingerprint = fingerprint("chat", _parts(description, dialect, lexicon))

    def prepare(self, pixels: Pixels) -> bytes:
        file = self._encoding.encode(self._encoding.fit(pixels))
        return b"".join((self._head, kind_of(file).encode(), self._between, base64.b64encode(file), self._tail))

    async def label(self, batch: Sequence[bytes]) -> list[Answer]:
        return [self._answer(await self._door.send(body)) for body in batch]

    async def close(self) -> None:
        await self._transport.close()

    def _answer(self, reply: Reply) -> Answer:
        try:
            said = self._read(reply.body)
        except ValidationError:
            pass
        else:
            read = words_of if self._ranked else lambda text: [word_of(text)]
            words = [NO_LABEL] if said is None else [_keepable(word) for word in read(said)[:MOST_OPTIONS]]
            options = tuple((word, None) for word in words) if len(words) > 1 else ()
            return self._secrets.answer(words[0], None, reply.status, reply.body, options)
        raise self._door.garbled("is not the answer of a chat model", reply)


def connect_openai(address: str, settings: Settings) -> Classifier[bytes]:
    """`openai:model?labels=labels.txt`, or the settings of a TOML file."""
    return _openai({**_of_name(address), **settings})


def connect_openai_http(address: str, settings: Settings) -> Classifier[bytes]:
    """`openai+http://host/v1?labels=labels.txt#model`."""
    return _openai({**_of_url(f"http:{address}"), **settings})


def connect_openai_https(address: str, settings: Settings) -> Classifier[bytes]:
    """`openai+https://host/v1?labels=labels.txt#model`."""
    return _openai({**_of_url(f"https:{address}"), **settings})


def connect_anthropic(address: str, settings: Settings) -> Classifier[bytes]:
    """`anthropic:model?labels=labels.txt`, or the settings of a TOML file."""
    settings = {**_of_name(address), **settings}
    secrets = Secrets()
    description = described(Anthropic, _with_labels(settings))
    lexicon = Lexicon(_labels(description, settings), description.synonyms)
    return ChatClassifier(description, _messages(description, lexicon, secrets), lexicon, secrets)


def _openai(settings: Settings) -> ChatClassifier:
    secrets = Secrets()
    description = described(OpenAI, _with_labels(settings))
    lexicon = Lexicon(_labels(description, settings), description.synonyms)
    return ChatClassifier(description, _completions(description, lexicon, secrets), lexicon, secrets)


def _of_name(address: str) -> Settings:
    """The settings in `model?labels=file`."""
    model, _, query = address.partition("?")
    return {"model": model, **_of_query(query)} if address else {}


def _of_url(address: str) -> Settings:
    """The settings in `http://host/v1?labels=file#model`."""
    try:
        url = urlsplit(address)
    except ValueError:
        url = urlsplit("")
    if not url.fragment:
        raise PermanentError(f"{address!r} does not name a model; write openai+http://host/v1#model")
    return {"url": f"{url.scheme}://{url.netloc}{url.path}", "model": url.fragment, **_of_query(url.query)}


def _of_query(query: str) -> Settings:
    return {name: values[-1] for name, values in parse_qs(query).items()}


def _with_labels(settings: Settings) -> Settings:
    if "labels" not in settings:
        model = settings.get("model", "…")
        raise PermanentError(
            f"chat model {model!r} needs the labels it may choose from; write a TOML file with connector, "
            f'model = "{model}" and labels = ["cat", "dog"], or add ?labels=labels.txt to the name'
        )
    return settings


def _labels(description: Description, settings: Settings) -> tuple[str, ...]:
    if isinstance(description.labels, tuple):
        return description.labels
    return read_labels(description.labels, folder_of(settings))


def _parts(description: OpenAI | Anthropic, dialect: Dialect, lexicon: Lexicon) -> dict[str, object]:
    told = description.model_dump(exclude={*Manners.model_fields, "labels", "synonyms", "encoding", "key", "ranked"})
    told |= {"prompt": description.question(), **({"ranked": description.ranked} if description.ranked else {})}
    where = {"url": dialect.base, "path": dialect.path}
    return {**told, **where, "labels": lexicon.labels, "encoding": description.encoding.parts()}


class Lexicon:
    """Which label an answer means, if it means one."""

    def __init__(self, labels: Sequence[str], synonyms: Mapping[str, Sequence[str]]) -> None:
        self.labels = tuple(labels)
        if unknown := set(synonyms) - set(labels):
            raise PermanentError(f"synonyms are given for {sorted(unknown)[0]!r}, which is not a label")
        words = [*zip(labels, labels, strict=True), *((w, label) for label, more in synonyms.items() for w in more)]
        if twice := [word for word, count in Counter(word for word, _ in words).items() if count > 1]:
            raise PermanentError(f"{twice[0]!r} is given twice among labels and synonyms; each must mean one label")
        if not all(word.strip() for word, _ in words):
            raise PermanentError("a label or synonym is empty")
        self.renames = {word: label for word, label in words if word != label}
        self._exact = dict(words)
        self._loose = _unambiguous([(_plain(word), label) for word, label in words])

    def label(self, word: str) -> str:
        """The label that a word means, whatever its case and punctuation; NO_LABEL for anything else."""
        return self._exact.get(word) or self._loose.get(_plain(word), NO_LABEL)


def _unambiguous(words: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Words that mean one label only once case and punctuation are gone: "C" and "C++" are then the same."""
    meanings: dict[str, set[str]] = {}
    for word, label in words:
        meanings.setdefault(word, set()).add(label)
    return {word: labels.pop() for word, labels in meanings.items() if word and len(labels) == 1}


def words_of(said: str) -> list[str]:
    """The labels of a ranked answer, the most probable first, or the text of one that names a single label."""
    text = said.strip()
    fenced = FENCE.fullmatch(text)
    try:
        value = json.loads(fenced[1] if fenced else text)
    except (ValueError, RecursionError):
        value = None
    ranked = value.get("labels") if isinstance(value, dict) else value
    words = [str(word) for word in ranked if isinstance(word, (str, int))] if isinstance(ranked, list) else []
    return list(dict.fromkeys(words)) or [word_of(said)]


def _keepable(word: str) -> str:
    """The beginning of a text without half a character or a zero, which no ledger can keep."""
    return word[:LONGEST].encode("utf-8", "replace").decode().replace("\0", "?")


def word_of(said: str) -> str:
    """The text of an answer, out of its JSON and code fence if it has any."""
    text = said.strip()
    fenced = FENCE.fullmatch(text)
    text = fenced[1] if fenced else text
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(value, dict):
        label = value.get("label")
        return str(label) if isinstance(label, (str, int)) else ""
    # A label can be a number, which is JSON too: then the text itself is meant.
    return value if isinstance(value, str) else text


def _plain(text: str) -> str:
    """The words of a text in lower case, without punctuation."""
    return " ".join(re.split(r"[\W_]+", unicodedata.normalize("NFKC", text).casefold())).strip()


class _Message(BaseModel):
    content: str | None = None
    refusal: str | None = None


class _Choice(BaseModel):
    message: _Message
    finish_reason: str | None = None


class _Completion(BaseModel):
    choices: tuple[_Choice, ...] = Field(min_length=1)


def _read_completion(body: bytes) -> str | None:
    choice = _Completion.model_validate_json(body).choices[0]
    whole = choice.finish_reason in ("stop", None) and not choice.message.refusal
    return choice.message.content if whole else None


class _Block(BaseModel):
    type: str
    text: str = ""


class _Messages(BaseModel):
    content: tuple[_Block, ...]
    stop_reason: str | None


def _read_message(body: bytes) -> str | None:
    message = _Messages.model_validate_json(body)
    text = "".join(block.text for block in message.content if block.type == "text")
    return text if message.stop_reason in ("end_turn", "stop_sequence") else None


def _completions(description: OpenAI, lexicon: Lexicon, secrets: Secrets) -> Dialect:
    """OpenAI's chat completions."""
    base = _base(description, "OPENAI_BASE_URL", OPENAI)
    key = description.key or (None if description.url else "OPENAI_API_KEY")
    picture = {"url": f"data:image/{KIND};base64,{PICTURE}", "detail": description.detail}
    content = [{"type": "image_url", "image_url": _given(picture)}, _text(description, lexicon)]
    schema = {"name": "answer", "strict": True, "schema": _schema(lexicon, description.ranked)}
    # OpenAI's own models count hidden thinking too, under a name that other servers may not know.
    limit = "max_completion_tokens" if base == OPENAI else "max_tokens"
    request = {
        "model": description.model,
        "messages": [{"role": "user", "content": content}],
        "temperature": description.temperature,
        "seed": description.seed,
        limit: description.max_tokens,
        "response_format": _if_schema(description, {"type": "json_schema", "json_schema": schema}),
    }
    headers = {"authorization": f"Bearer {secrets.read(key)}"} if key else {}
    return Dialect(base, "/chat/completions", {**JSON, **headers}, _given(request), _read_completion)


def _messages(description: Anthropic, lexicon: Lexicon, secrets: Secrets) -> Dialect:
    """Anthropic's messages."""
    base = _base(description, "ANTHROPIC_BASE_URL", ANTHROPIC)
    key = description.key or (None if description.url else "ANTHROPIC_API_KEY")
    source = {"type": "base64", "media_type": f"image/{KIND}", "data": PICTURE}
    content = [{"type": "image", "source": source}, _text(description, lexicon)]
    form = {"format": {"type": "json_schema", "schema": _schema(lexicon, description.ranked)}}
    request = {
        "model": description.model,
        "messages": [{"role": "user", "content": content}],
        "max_tokens": description.max_tokens,
        "temperature": description.temperature,
        "output_config": _if_schema(description, form),
    }
    version = ANTHROPIC_VERSION if description.temperature is None else ANTHROPIC_WITH_TEMPERATURE
    headers = {"anthropic-version": version, **({"x-api-key": secrets.read(key)} if key else {})}
    return Dialect(base, "/v1/messages", {**JSON, **headers}, _given(request), _read_message)


def _base(description: Description, variable: str, usual: str) -> str:
    """Where the server is, without a slash at the end."""
    text = (description.url or os.environ.get(variable) or usual).rstrip("/")
    try:
        url = URL(text)
    except ValueError:
        raise PermanentError(f"{text!r} is not an address; write http://host/path or https://host/path") from None
    if url.user or url.password or url.raw_query_string:
        raise PermanentError("the url of a chat model holds a user, password or query; name a key = … instead")
    return text


def _given(values: Mapping[str, object]) -> dict[str, object]:
    return {name: value for name, value in values.items() if value is not None}


def _if_schema(description: Description, form: Mapping[str, object]) -> Mapping[str, object] | None:
    return form if description.answer == "schema" else None


def _text(description: Description, lexicon: Lexicon) -> dict[str, str]:
    return {"type": "text", "text": description.question().replace("{labels}", "\n".join(lexicon.labels))}


def _schema(lexicon: Lexicon, ranked: int) -> dict[str, object]:
    label = {"type": "string", "enum": list(lexicon.labels)}
    fields: dict[str, object] = {"labels": {"type": "array", "items": label}} if ranked else {"label": label}
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}
