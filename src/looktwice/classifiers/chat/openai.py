"""OpenAI's chat completions, and compatible servers: vLLM, Ollama, llama.cpp, OpenRouter, LiteLLM.

connector = "openai"
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal
from urllib.parse import urlsplit

from pydantic import AliasPath, BaseModel, Field

from looktwice.classifiers.base import Settings
from looktwice.classifiers.chat.batching import BatchApi, OpenAIBatches
from looktwice.classifiers.chat.lexicon import Completion, Missing, Token
from looktwice.classifiers.chat.model import (
    KIND,
    PICTURE,
    ChatClassifier,
    ChatModel,
    connected,
    flat,
    given,
    of_name,
    of_query,
)
from looktwice.errors import PermanentError
from looktwice.images import WorkingSize

OPENAI = "https://api.openai.com/v1"
MOST_VALUES, MANY_VALUES, MOST_CHARACTERS = 1000, 250, 15_000
"""OpenAI's limits for an enumeration: the number of values and, for long ones, their characters in total."""
TOOL = "answer"


class OpenAIModel(ChatModel):
    """The settings shared by OpenAI's two APIs."""

    usual_url: ClassVar[str] = OPENAI
    url_variable: ClassVar[str] = "OPENAI_BASE_URL"
    key_variable: ClassVar[str] = "OPENAI_API_KEY"
    batch_api: ClassVar[type[BatchApi] | None] = OpenAIBatches
    picture_limits: ClassVar[Mapping[str, object]] = {"max_side": 2048, "max_bytes": 20_000_000}

    detail: Literal["auto", "low", "high", "original"] | None = None

    def credentials(self, key: str) -> Mapping[str, str]:
        return {"authorization": f"Bearer {key}"}

    def closeness(self) -> str | None:
        return self.detail

    def usable_size(self) -> WorkingSize:
        """The size that the model sees: at low detail a square of 512 px, at high detail a shorter side of 768 px."""
        size = self.encoding.usable_size()
        if self.detail == "original":
            return size
        return WorkingSize(long=min(512, size.long or 512)) if self.detail == "low" else replace(size, short=768)

    def enumerates(self, labels: Sequence[str]) -> bool:
        few = len(labels) <= MANY_VALUES or sum(map(len, labels)) <= MOST_CHARACTERS
        return self.base() != OPENAI or (len(labels) <= MOST_VALUES and few)


class Completions(OpenAIModel):
    """A model behind chat completions."""

    seed: int | None = None

    def path(self) -> str:
        return "/chat/completions"

    def request(self, text: str, schema: Mapping[str, object]) -> Mapping[str, object]:
        picture = {"url": f"data:image/{KIND};base64,{PICTURE}", "detail": self.detail}
        form = {"name": TOOL, "strict": True, "schema": schema}
        tool = {"name": TOOL, "description": "Gives the answer.", "strict": True, "parameters": schema}
        content = self.arranged({"type": "image_url", "image_url": given(picture)}, {"type": "text", "text": text})
        # OpenAI's own models count hidden thinking too, under a name that other servers may not know.
        limit = "max_completion_tokens" if self.base() == OPENAI else "max_tokens"
        return given(
            {
                "model": self.model,
                "messages": [{"role": "user", "content": content}],
                "temperature": self.temperature,
                "seed": self.seed,
                "logprobs": self.logprobs or None,
                limit: self.max_tokens,
                "response_format": {"type": "json_schema", "json_schema": form} if self.answer == "schema" else None,
                "tools": [{"type": "function", "function": tool}] if self.answer == "tool" else None,
                "tool_choice": {"type": "function", "function": {"name": TOOL}} if self.answer == "tool" else None,
            }
        )

    def read(self, body: bytes) -> Completion:
        completion = _Completion.model_validate_json(body)
        usage = flat(completion.usage)
        if completion.refusal:
            return Completion(Missing.REFUSAL, usage)
        if completion.finish not in ("stop", "tool_calls", None):
            return Completion(Missing.BLOCKED if completion.finish == "content_filter" else Missing.CUT, usage)
        calls = [call.arguments for call in completion.calls or () if call.name == TOOL]
        text = completion.content or "".join(calls) or Missing.EMPTY
        return Completion(text, usage, tuple(token.as_token() for token in completion.tokens or ()))


class LogProb(BaseModel):
    """A token of an answer; `bytes` if its text may end within a character."""

    token: str
    logprob: float
    bytes: tuple[Annotated[int, Field(ge=0, le=255)], ...] | None = None

    def as_token(self) -> Token:
        return Token(self.token.encode() if self.bytes is None else bytes(self.bytes), self.logprob)


class _Call(BaseModel):
    name: str = Field(validation_alias=AliasPath("function", "name"))
    arguments: str = Field(validation_alias=AliasPath("function", "arguments"))


class _Completion(BaseModel):
    """The first choice of a reply, which has a message at the least."""

    message: dict[str, object] = Field(validation_alias=AliasPath("choices", 0, "message"))
    content: str | None = Field(default=None, validation_alias=AliasPath("choices", 0, "message", "content"))
    refusal: str | None = Field(default=None, validation_alias=AliasPath("choices", 0, "message", "refusal"))
    calls: tuple[_Call, ...] | None = Field(
        default=None, validation_alias=AliasPath("choices", 0, "message", "tool_calls")
    )
    finish: str | None = Field(default=None, validation_alias=AliasPath("choices", 0, "finish_reason"))
    tokens: tuple[LogProb, ...] | None = Field(
        default=None, validation_alias=AliasPath("choices", 0, "logprobs", "content")
    )
    usage: dict[str, object] | None = None


def connect(address: str, settings: Settings) -> ChatClassifier:
    """`openai:model?labels=labels.txt`, or the settings of a TOML file."""
    return connected(Completions, {**of_name(address), **settings})


def connect_http(address: str, settings: Settings) -> ChatClassifier:
    """`openai+http://host/v1?labels=labels.txt#model`."""
    return connected(Completions, {**_of_url(f"http:{address}"), **settings})


def connect_https(address: str, settings: Settings) -> ChatClassifier:
    """`openai+https://host/v1?labels=labels.txt#model`."""
    return connected(Completions, {**_of_url(f"https:{address}"), **settings})


def _of_url(address: str) -> Settings:
    """The settings in `http://host/v1?labels=file#model`."""
    try:
        url = urlsplit(address)
    except ValueError:
        url = urlsplit("")
    if not url.fragment:
        raise PermanentError(f"{address!r} does not name a model; write openai+http://host/v1#model")
    return {"url": f"{url.scheme}://{url.netloc}{url.path}", "model": url.fragment, **of_query(url.query)}
