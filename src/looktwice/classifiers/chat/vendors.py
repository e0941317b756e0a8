"""The vendors of chat models: settings, request format and reply format, with one class per API."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import quote

from pydantic import AliasPath, BaseModel, Field, model_validator

from looktwice.classifiers.chat.batching import BatchApi, GeminiBatches, MessageBatches, OpenAIBatches
from looktwice.classifiers.chat.model import JSON, KIND, PICTURE, ChatModel, flat, given
from looktwice.classifiers.chat.prompts import Completion, Missing, Token
from looktwice.images import WorkingSize

# OpenAI, and compatible servers: vLLM, Ollama, llama.cpp, OpenRouter, LiteLLM ----------------------------------------


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
        """The size that the model sees: at low detail a 512 px square, at high detail a shorter side of 768 px."""
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
    """The first choice of a reply, which has at least a message."""

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


class Responses(OpenAIModel):
    """A model behind OpenAI's responses API, which newer models need for their full functionality.

    The server is asked to store nothing.
    """

    answer: Literal["schema", "plain"] = "schema"

    def path(self) -> str:
        return "/responses"

    def request(self, text: str, schema: Mapping[str, object]) -> Mapping[str, object]:
        url = f"data:image/{KIND};base64,{PICTURE}"
        picture = {"type": "input_image", "image_url": url, "detail": self.detail or "auto"}
        form = {"type": "json_schema", "name": "answer", "strict": True, "schema": schema}
        return given(
            {
                "model": self.model,
                "input": [{"role": "user", "content": self.arranged(picture, {"type": "input_text", "text": text})}],
                "temperature": self.temperature,
                "max_output_tokens": self.max_tokens,
                "text": {"format": form} if self.answer == "schema" else None,
                "include": ["message.output_text.logprobs"] if self.logprobs else None,
                "store": False,
            }
        )

    def read(self, body: bytes) -> Completion:
        response = _Response.model_validate_json(body)
        usage = flat(response.usage)
        if response.status == "incomplete":
            why = response.incomplete_details.reason if response.incomplete_details else None
            return Completion(Missing.BLOCKED if why == "content_filter" else Missing.CUT, usage)
        parts = [part for item in response.output for part in item.content or ()]
        if any(part.type == "refusal" for part in parts):
            return Completion(Missing.REFUSAL, usage)
        text = "".join(part.text for part in parts if part.type == "output_text")
        return Completion(
            text or Missing.EMPTY, usage, tuple(token.as_token() for part in parts for token in part.logprobs or ())
        )


class _ResponsePart(BaseModel):
    type: str
    text: str = ""
    logprobs: tuple[LogProb, ...] | None = None


class _ResponseItem(BaseModel):
    type: str
    content: tuple[_ResponsePart, ...] | None = None


class _Incomplete(BaseModel):
    reason: str | None = None


class _Response(BaseModel):
    status: Literal["completed", "incomplete"]
    output: tuple[_ResponseItem, ...]
    incomplete_details: _Incomplete | None = None
    usage: dict[str, object] | None = None


# Anthropic -----------------------------------------------------------------------------------------------------------


ANTHROPIC_VERSION = "2026-10-21"
ANTHROPIC_WITH_TEMPERATURE = "2023-06-01"
"""The newest version of the interface, and the last one that takes a temperature."""
ANTHROPIC_ENDS = ("end_turn", "stop_sequence", "tool_use")


class Messages(ChatModel):
    """A model behind messages."""

    usual_url: ClassVar[str] = "https://api.anthropic.com"
    url_variable: ClassVar[str] = "ANTHROPIC_BASE_URL"
    key_variable: ClassVar[str] = "ANTHROPIC_API_KEY"
    batch_api: ClassVar[type[BatchApi] | None] = MessageBatches
    # Five MiB is the limit of the base64 text, which is a third longer than the file.
    picture_limits: ClassVar[Mapping[str, object]] = {"max_side": 1568, "max_bytes": (5 << 20) * 3 // 4}

    max_tokens: int = Field(default=256, ge=1)
    logprobs: Literal[False] = False

    def path(self) -> str:
        return "/v1/messages"

    def headers(self) -> Mapping[str, str]:
        return {
            **JSON,
            "anthropic-version": ANTHROPIC_VERSION if self.temperature is None else ANTHROPIC_WITH_TEMPERATURE,
        }

    def credentials(self, key: str) -> Mapping[str, str]:
        return {"x-api-key": key}

    def request(self, text: str, schema: Mapping[str, object]) -> Mapping[str, object]:
        source = {"type": "base64", "media_type": f"image/{KIND}", "data": PICTURE}
        # Words that come first are the same for many pictures; here a cache must be asked for.
        cached = {"type": "ephemeral"} if self.picture == "last" else None
        words = given({"type": "text", "text": text, "cache_control": cached})
        tool = {"name": TOOL, "description": "Gives the answer.", "input_schema": schema}
        return given(
            {
                "model": self.model,
                "messages": [
                    {"role": "user", "content": self.arranged({"type": "image", "source": source}, words)},
                ],
                "max_tokens": self.max_tokens,
                "temperature": self.temperature,
                "output_config": {"format": {"type": "json_schema", "schema": schema}}
                if self.answer == "schema"
                else None,
                "tools": [tool] if self.answer == "tool" else None,
                "tool_choice": {"type": "tool", "name": TOOL} if self.answer == "tool" else None,
            }
        )

    def read(self, body: bytes) -> Completion:
        message = _AnthropicMessage.model_validate_json(body)
        usage = flat(message.usage)
        if message.stop_reason not in ANTHROPIC_ENDS:
            return Completion(Missing.REFUSAL if message.stop_reason == "refusal" else Missing.CUT, usage)
        called = [json.dumps(block.input) for block in message.content if block.type == "tool_use"]
        text = "".join(block.text for block in message.content if block.type == "text")
        return Completion((called[0] if called else text) or Missing.EMPTY, usage)


class _AnthropicBlock(BaseModel):
    type: str
    text: str = ""
    input: dict[str, object] | None = None


class _AnthropicMessage(BaseModel):
    content: tuple[_AnthropicBlock, ...]
    stop_reason: str | None
    usage: dict[str, object] | None = None


# Google's Gemini -----------------------------------------------------------------------------------------------------


GEMINI_BLOCKS = {"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "LANGUAGE"}
"""Finish reasons of Gemini's filters."""


class Gemini(ChatModel):
    """A model behind generateContent."""

    usual_url: ClassVar[str] = "https://generativelanguage.googleapis.com"
    url_variable: ClassVar[str] = "GOOGLE_GEMINI_BASE_URL"
    key_variable: ClassVar[str] = "GEMINI_API_KEY"
    batch_api: ClassVar[type[BatchApi] | None] = GeminiBatches
    # Twenty MB is the limit of the whole request, in base64 and with the words.
    picture_limits: ClassVar[Mapping[str, object]] = {"max_side": 3072, "max_bytes": 14_000_000}

    answer: Literal["schema", "plain"] = "schema"
    seed: int | None = None
    media_resolution: Literal["low", "medium", "high"] | None = None

    def path(self) -> str:
        return f"/v1beta/models/{quote(self.model, safe='')}:generateContent"

    def closeness(self) -> str | None:
        return self.media_resolution

    def credentials(self, key: str) -> Mapping[str, str]:
        return {"x-goog-api-key": key}

    def request(self, text: str, schema: Mapping[str, object]) -> Mapping[str, object]:
        picture = {"inlineData": {"mimeType": f"image/{KIND}", "data": PICTURE}}
        held = self.answer == "schema"
        resolution = self.media_resolution
        config = given(
            {
                "temperature": self.temperature,
                "seed": self.seed,
                "maxOutputTokens": self.max_tokens,
                "responseLogprobs": self.logprobs or None,
                "mediaResolution": f"MEDIA_RESOLUTION_{resolution.upper()}" if resolution else None,
                "responseMimeType": "application/json" if held else None,
                "responseSchema": _openapi(schema) if held else None,
            }
        )
        contents = [{"role": "user", "parts": self.arranged(picture, {"text": text})}]
        return {"contents": contents, **({"generationConfig": config} if config else {})}

    def read(self, body: bytes) -> Completion:
        reply = _GeminiReply.model_validate_json(body)
        usage = flat(reply.usage)
        if not reply.candidates:
            return Completion(Missing.BLOCKED if reply.blocked else Missing.EMPTY, usage)
        if reply.finish not in ("STOP", None):
            return Completion(Missing.BLOCKED if reply.finish in GEMINI_BLOCKS else Missing.CUT, usage)
        return Completion(
            "".join(part.text for part in reply.parts or () if not part.thought) or Missing.EMPTY,
            usage,
            tuple(Token(chosen.token.encode(), chosen.log_probability) for chosen in reply.tokens or ()),
        )


def _openapi(schema: Mapping[str, object]) -> dict[str, object]:
    """Convert a JSON schema to Gemini's dialect: types in capitals, an order of fields, no `additionalProperties`."""
    converted = {name: value for name, value in schema.items() if name != "additionalProperties"}
    converted["type"] = str(schema["type"]).upper()
    if isinstance(fields := schema.get("properties"), Mapping):
        properties = {name: _openapi(field) for name, field in fields.items()}
        converted |= {"properties": properties, "propertyOrdering": [*fields]}
    if isinstance(items := schema.get("items"), Mapping):
        converted["items"] = _openapi(items)
    return converted


class _GeminiPart(BaseModel):
    text: str = ""
    thought: bool = False


class _GeminiToken(BaseModel):
    token: str = ""
    log_probability: float = Field(default=0.0, alias="logProbability")


class _GeminiReply(BaseModel):
    """A reply and its first candidate."""

    candidates: tuple[dict[str, object], ...] = ()
    finish: str | None = Field(default=None, validation_alias=AliasPath("candidates", 0, "finishReason"))
    parts: tuple[_GeminiPart, ...] | None = Field(
        default=None, validation_alias=AliasPath("candidates", 0, "content", "parts")
    )
    tokens: tuple[_GeminiToken, ...] | None = Field(
        default=None, validation_alias=AliasPath("candidates", 0, "logprobsResult", "chosenCandidates")
    )
    feedback: dict[str, object] | None = Field(default=None, alias="promptFeedback")
    blocked: str | None = Field(default=None, validation_alias=AliasPath("promptFeedback", "blockReason"))
    usage: dict[str, object] | None = Field(default=None, alias="usageMetadata")

    @model_validator(mode="after")
    def _holds_something(self) -> Self:
        """Every field is optional, but a reply without any of them is not from Gemini."""
        if not (self.candidates or self.feedback is not None or self.usage):
            raise ValueError("it contains neither candidates nor feedback nor usage")
        return self
