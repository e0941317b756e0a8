"""Settings common to all chat models, and the classifier that queries them.

    connector = "openai"                  # or "openai-responses", "anthropic", "gemini"
    model = "gpt-5-mini"
    labels = ["cat", "dog"]               # or the name of a text file with one label per line
    synonyms = { dog = ["puppy", "hound"] }
    without_label = { refusal = "other" } # the label to use for some answers without a label
    answer = "schema"                     # a JSON schema restricts the model to the labels; "plain" sends no schema
    ranked = 5                            # ask for the five most probable labels, ranked; a fit can use the ranks
    probabilities = true                  # also ask for the probability of each ranked label
    unsure = true                         # allow the answer "unsure", which counts as no label
    logprobs = true                       # use the probability of the label's tokens as its score; not for Anthropic
    temperature = 0.0                     # sent only if it is set, as is seed, since some models accept neither
    price = "0.0004"                      # price per query
    # url = "http://localhost:8000/v1"    # vLLM, Ollama and similar; openai+http://localhost:8000/v1#model
    # key = "SERVER_KEY"                  # the environment variable that holds the key for that url

The keys are read from OPENAI_API_KEY, ANTHROPIC_API_KEY and GEMINI_API_KEY, and are never sent to a `url` of your own.
An answer counts if it is one label or one synonym, ignoring case and punctuation. A refusal, two labels or prose is an
answer without a label: it is billed and counted, and no label is guessed.

Each vendor's API is one class in vendors.py: settings, request format and reply format.
"""

from __future__ import annotations

import base64
import json
import math
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, NamedTuple, Self
from urllib.parse import parse_qs, quote

import jmespath
from pydantic import BaseModel, Field, field_validator, model_validator
from yarl import URL

from looktwice.classifiers.base import MOST_OPTIONS, Answer, Option, Pixels, Settings, Weight, fingerprint
from looktwice.classifiers.chat.batching import BatchApi
from looktwice.classifiers.chat.prompts import (
    LABELS,
    Lexicon,
    Missing,
    Prompts,
    keepable,
    options_of,
    probability_of,
    word_of,
)
from looktwice.classifiers.prices import tokens_of
from looktwice.classifiers.registry import described, labels_of
from looktwice.classifiers.secrets import Secrets, refuse_literals
from looktwice.classifiers.settings import Encoding, HttpSettings, kind_of, within
from looktwice.classifiers.transport import Reply, Transport
from looktwice.errors import PermanentError
from looktwice.images import WorkingSize
from looktwice.views import AS_DESCRIBED, Phrasing

PICTURE, KIND = "\0", "\1"
"""Placeholders for the picture in base64 and its media type; JSON escapes them, so they cannot occur in a URL."""
JSON = {"content-type": "application/json"}
LABEL, PROBABILITY, SENTENCE = 12, 30, 120
"""The overhead in characters of a label in JSON, of its probability, and of a one-sentence description."""
READ_ONLY = {"labels", "synonyms", "without_label"}
"""Settings that are not part of the fingerprint: they are in the prompt, or only affect how answers are read."""
ADDED = {"wordings", "picture", "logprobs", "probabilities", "unsure"}
"""Settings that are in a fingerprint only if they are set, so that older fingerprints stay valid."""


class LogProb(BaseModel):
    """A token of an answer; `bytes` if its text may end within a character."""

    token: str
    logprob: float
    bytes: tuple[Annotated[int, Field(ge=0, le=255)], ...] | None = None


class Told(BaseModel):
    """The parts of a vendor's reply that are used."""

    valid: Literal[True]
    """Whether it is a reply of this API."""
    end: str
    """The reason for the end of the answer."""
    text: str
    tokens: tuple[LogProb, ...] = ()
    usage: object = None


class ChatModel(HttpSettings, ABC):
    """Settings, request format and reply format of one vendor."""

    place: ClassVar[str]
    """The path of the API, with {} for the model."""
    usual_url: ClassVar[str]
    url_variable: ClassVar[str]
    key_variable: ClassVar[str]
    detail_setting: ClassVar[str] = ""
    """The setting for the level of detail of pictures, which affects the price."""
    key_header: ClassVar[tuple[str, str]]
    """The name of the header with the key, and what precedes the key."""
    batch_api: ClassVar[type[BatchApi] | None] = None
    """The vendor's batches, if it has any."""
    picture_limits: ClassVar[Mapping[str, object]]
    """The side to which the server scales pictures down, and the largest file it accepts."""
    reply: ClassVar[str]
    """The JMESPath to a reply's parts, the fields of `Told`."""
    ends: ClassVar[Mapping[str, Missing | None]]
    """Why there is no label, by the reason for the end; None for a complete answer. All other answers are cut off."""

    model: str = Field(min_length=1)
    labels: tuple[str, ...] | str = Field(min_length=1)
    synonyms: dict[str, tuple[str, ...]] = Field(default_factory=dict, description="label → synonyms")
    without_label: dict[Missing, str] = Field(
        default_factory=dict,
        description="refusal, blocked, cut, empty, unlisted or unsure → the label to use",
    )
    prompt: str = Field(default="", description="with the placeholder {labels}; a default prompt if left out")
    wordings: tuple[str, ...] | str | None = Field(default=None, description="paraphrases for the views `wording:N`")
    ranked: int = Field(default=0, ge=0, le=MOST_OPTIONS, description="number of labels to rank; 0 asks for one label")
    probabilities: bool = Field(default=False, description="ask for the probability of each ranked label")
    unsure: bool = Field(default=False, description="allow the answer `unsure`, which counts as no label")
    logprobs: bool = Field(default=False, description="use the probability of the label's tokens as its score")
    answer: Literal["schema", "tool", "plain"] = "schema"
    picture: Literal["first", "last"] = Field(
        default="first", description="`last` puts the text first, which some servers can cache"
    )
    temperature: float | None = Field(default=None, ge=0, le=2)
    max_tokens: int | None = Field(default=None, ge=1)
    url: str | None = None
    key: str | None = Field(default=None, description="name of the environment variable that holds the key for url")
    encoding: Encoding

    @classmethod
    def connect(cls, address: str, settings: Settings) -> ChatClassifier:
        """`openai:model?labels=labels.txt`, `openai+http://host/v1#model`, or the settings of a TOML file."""
        settings = {**settings_in(address), **settings}
        if "labels" not in settings:
            model = settings.get("model", "…")
            raise PermanentError(
                f"chat model {model!r} needs a list of labels; write a TOML file that sets "
                f'connector (such as "openai"), model = "{model}" and labels = ["cat", "dog"], '
                "or add ?labels=labels.txt to the name"
            )
        description = described(cls, within(cls.picture_limits, settings))
        labels, wordings = (labels_of(lines, settings) for lines in (description.labels, description.wordings))
        lexicon = Lexicon(labels or (), description.synonyms, description.without_label, description.unsure)
        enumerated = description.enumerates(lexicon.asked)
        prompts = Prompts(
            *(lexicon.asked, description.prompt, description.ranked, wordings, enumerated),
            *(description.probabilities, description.unsure),
        )
        return ChatClassifier(description, lexicon, prompts, Secrets())

    def path(self) -> str:
        """The path of the API, relative to the server."""
        return self.place.format(quote(self.model, safe=""))

    @abstractmethod
    def request(self, text: str, schema: Mapping[str, object]) -> Mapping[str, object]:
        """The body of a request, with the placeholders KIND and PICTURE."""

    def headers(self) -> Mapping[str, str]:
        """The headers of every request, except the key."""
        return JSON

    def usable_size(self) -> WorkingSize:
        """The size of the picture that the model sees."""
        return self.encoding.usable_size()

    def enumerates(self, labels: Sequence[str]) -> bool:
        """Whether the server accepts these labels as an enumeration in a schema."""
        return True

    def arranged(self, picture: Mapping[str, object], words: Mapping[str, object]) -> list[Mapping[str, object]]:
        """The picture and the text, in the vendor's order."""
        return [picture, words] if self.picture == "first" else [words, picture]

    def base(self) -> str:
        """The URL of the server, without a trailing slash."""
        text = (self.url or os.environ.get(self.url_variable) or self.usual_url).rstrip("/")
        try:
            url = URL(text)
        except ValueError:
            raise PermanentError(f"{text!r} is not an address; write http://host/path or https://host/path") from None
        if url.user or url.password or url.raw_query_string:
            raise PermanentError("the url of a chat model contains a user, password or query; use key = … instead")
        return text

    def parts(self, prompts: Prompts) -> dict[str, object]:
        """The settings that can change answers, for a fingerprint."""
        parts = self.model_dump(exclude={*HttpSettings.model_fields, *READ_ONLY, *ADDED, "encoding", "key", "ranked"})
        parts |= self.model_dump(include=ADDED - {"wordings"}, exclude_defaults=True)
        parts |= {"wordings": prompts.wordings} if prompts.wordings else {}
        parts |= {"prompt": prompts.template(AS_DESCRIBED), **({"ranked": self.ranked} if self.ranked else {})}
        where = {"url": self.base(), "path": self.path()}
        return {**parts, **where, "labels": prompts.labels, "encoding": self.encoding.parts()}

    @field_validator("prompt")
    @classmethod
    def _lists_the_labels(cls, prompt: str) -> str:
        if prompt and LABELS not in prompt:
            raise ValueError("the prompt needs the placeholder {labels} for the list of labels")
        return prompt

    @field_validator("key")
    @classmethod
    def _names_a_variable(cls, key: str | None) -> str | None:
        if key is not None and not (key.isidentifier() and key.isascii()):
            raise ValueError("give the NAME of the environment variable that holds the key, not the key itself")
        return key

    @model_validator(mode="after")
    def _tells_of_one_label(self) -> Self:
        if self.logprobs and (self.ranked or self.answer == "tool"):
            raise ValueError(
                'logprobs need a single label as plain text or by schema; leave out ranked and answer = "tool"'
            )
        if self.probabilities and not self.ranked:
            raise ValueError("probabilities need the number of labels to rank, such as ranked = 5")
        return self

    @model_validator(mode="after")
    def _writes_no_secret(self) -> Self:
        refuse_literals([("url", self.url or ""), ("model", self.model), ("prompt", self.prompt)], self.public)
        return self


class Asked(NamedTuple):
    """An encoded request with its wording, which is needed to read the reply."""

    body: bytes
    phrasing: Phrasing


class ChatClassifier:
    """A language model that is queried for the label of one picture per request."""

    def __init__(self, vendor: ChatModel, lexicon: Lexicon, prompts: Prompts, secrets: Secrets) -> None:
        key = vendor.key or (None if vendor.url else vendor.key_variable)
        name, before = vendor.key_header
        headers = {**vendor.headers(), **({name: before + secrets.read(key)} if key else {})}
        self._vendor = vendor
        self._headers = headers
        self._prompts = prompts
        self._secrets = secrets
        self._transport = Transport(vendor, secrets)
        self._endpoint = self._transport.endpoint("POST", vendor.base() + vendor.path(), headers)
        self._frame = lru_cache(maxsize=32)(self._framed)
        self.labels = lexicon.labels
        self.model = vendor.model
        self.names = lexicon
        self.limits = vendor.limits(vendor.usable_size(), encoding=vendor.encoding)
        self.fingerprint = fingerprint("chat", vendor.parts(prompts))

    def words(self, phrasing: Phrasing) -> str:
        """The prompt; raises a PermanentError if this wording is not possible."""
        return self._prompts.text(phrasing)

    def prepare(self, pixels: Pixels) -> Asked:
        return self.prepare_as(pixels, AS_DESCRIBED)

    def prepare_as(self, pixels: Pixels, phrasing: Phrasing) -> Asked:
        """The body of a request for one picture in this wording."""
        head, between, tail = self._frame(phrasing)
        file = self._vendor.encoding.encode(self._vendor.encoding.fit(pixels))
        return Asked(b"".join((head, kind_of(file).encode(), between, base64.b64encode(file), tail)), phrasing)

    def weigh(self, height: int, width: int, phrasing: Phrasing = AS_DESCRIBED) -> Weight:
        """The tokens and pixels of a query about a picture of this size, in this wording."""
        vendor, prompts = self._vendor, self._prompts
        text, schema = prompts.text(phrasing), json.dumps(prompts.schema(phrasing), separators=(",", ":"))
        ranked = prompts.ranking(phrasing)
        label = sum(map(len, prompts.labels)) / len(prompts.labels)
        each = label + 4 + (PROBABILITY if vendor.probabilities else 0)
        characters = (LABEL if ranked or vendor.answer != "plain" else 0) + max(1, ranked) * each
        return Weight(
            len(text) + (0 if vendor.answer == "plain" else len(schema)),
            sum(map(len, self._frame(phrasing))),
            *vendor.encoding.target(height, width),
            getattr(vendor, vendor.detail_setting, None),
            math.ceil((characters + (SENTENCE if phrasing.describe else 0)) / 4),
            vendor.max_tokens,
        )

    async def label(self, batch: Sequence[Asked]) -> list[Answer]:
        return [self.read(await self._endpoint.send(asked.body), asked.phrasing) for asked in batch]

    def read(self, reply: Reply, phrasing: Phrasing) -> Answer:
        """Read the answer in a reply to this wording."""
        try:
            told = Told.model_validate(jmespath.search(self._vendor.reply, json.loads(reply.body)))
        except (ValueError, RecursionError):
            pass
        else:
            text = self._vendor.ends.get(told.end, Missing.CUT) or told.text or Missing.EMPTY
            listed = self._options(text, phrasing)[:MOST_OPTIONS]
            options = tuple((keepable(word), probability) for word, probability in listed)
            word, score = options[0]
            if len(options) == 1:
                tokens = [(t.token.encode() if t.bytes is None else bytes(t.bytes), t.logprob) for t in told.tokens]
                score, options = probability_of(word, tokens) if score is None else score, ()
            answer = self._secrets.answer(word, score, reply.status, reply.body, options)
            return replace(answer, usage=tokens_of(told.usage))
        raise self._endpoint.garbled("is not a chat model's answer", reply)

    def batches(self) -> BatchApi:
        """The vendor's batches; a PermanentError if it has none."""
        if self._vendor.batch_api is None:
            raise PermanentError(
                f"model {self.model!r} does not support batches; leave out --batch", code="option-conflict"
            )
        return self._vendor.batch_api(self._vendor, self._headers, self._secrets)

    async def close(self) -> None:
        await self._transport.close()

    def _options(self, text: str | Missing, phrasing: Phrasing) -> list[Option]:
        if isinstance(text, Missing):
            return [(text.word, None)]
        return options_of(text) if self._prompts.ranking(phrasing) else [(word_of(text), None)]

    def _framed(self, phrasing: Phrasing) -> tuple[bytes, bytes, bytes]:
        """The parts of the body before, between and after the placeholders."""
        request = self._vendor.request(self._prompts.text(phrasing), self._prompts.schema(phrasing))
        body = json.dumps(request, ensure_ascii=False, separators=(",", ":"))
        head, _, rest = body.partition(json.dumps(KIND)[1:-1])
        between, _, tail = rest.partition(json.dumps(PICTURE)[1:-1])
        return head.encode(), between.encode(), tail.encode()


def settings_in(address: str) -> Settings:
    """The settings in `model?labels=file`, or in `http://host/v1?labels=file#model`; none in an empty address."""
    if not address:
        return {}
    place, _, fragment = address.partition("#")
    name, _, query = place.partition("?")
    options = {name: values[-1] for name, values in parse_qs(query).items()}
    if not name.startswith(("http:", "https:")):
        return {"model": name, **options}
    if not fragment:
        raise PermanentError(f"{address!r} does not name a model; write openai+http://host/v1#model")
    return {"url": name, "model": fragment, **options}
