"""The vendors of chat models: settings, request format and reply format, with one class per API."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from looktwice.classifiers.chat.batching import BatchApi, GeminiBatches, MessageBatches, OpenAIBatches
from looktwice.classifiers.chat.model import JSON, KIND, PICTURE, ChatModel
from looktwice.classifiers.chat.prompts import Missing
from looktwice.classifiers.settings import given
from looktwice.images import WorkingSize

# OpenAI, and compatible servers: vLLM, Ollama, llama.cpp, OpenRouter, LiteLLM ----------------------------------------


OPENAI = "https://api.openai.com/v1"
MOST_VALUES, MANY_VALUES, MOST_CHARACTERS = 1000, 250, 15_000
"""OpenAI's limits for an enumeration: the number of values and, for long ones, their characters in total."""
TOOL = "answer"
OPENAI_ENDS = {"refusal": Missing.REFUSAL, "content_filter": Missing.BLOCKED}


class OpenAIModel(ChatModel):
    """The settings shared by OpenAI's two APIs."""

    usual_url: ClassVar[str] = OPENAI
    url_variable: ClassVar[str] = "OPENAI_BASE_URL"
    key_variable: ClassVar[str] = "OPENAI_API_KEY"
    key_header: ClassVar[tuple[str, str]] = ("authorization", "Bearer ")
    detail_setting: ClassVar[str] = "detail"
    batch_api: ClassVar[type[BatchApi] | None] = OpenAIBatches
    picture_limits: ClassVar[Mapping[str, object]] = {"max_side": 2048, "max_bytes": 20_000_000}

    detail: Literal["auto", "low", "high", "original"] | None = None

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
    """A model of OpenAI's chat completions API."""

    place: ClassVar[str] = "/chat/completions"
    reply: ClassVar[str] = """{
        valid: type(choices[0].message) == 'object',
        end: (choices[0].message.refusal && 'refusal') || choices[0].finish_reason || 'stop',
        text: choices[0].message.content
            || join('', choices[0].message.tool_calls[?function.name == 'answer'].function.arguments || `[]`),
        tokens: choices[0].logprobs.content || `[]`,
        usage: usage
    }"""
    ends: ClassVar[Mapping[str, Missing | None]] = {"stop": None, "tool_calls": None, **OPENAI_ENDS}

    seed: int | None = None

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


class Responses(OpenAIModel):
    """A model of OpenAI's responses API, which newer models need for their full functionality.

    The server is asked to store nothing.
    """

    place: ClassVar[str] = "/responses"
    reply: ClassVar[str] = """{
        valid: type(output) == 'array' && (status == 'completed' || status == 'incomplete'),
        end: (status == 'incomplete' && (incomplete_details.reason || status))
            || (output[].content[?type == 'refusal'][].type | [0]) || status,
        text: join('', output[].content[?type == 'output_text'][].text),
        tokens: output[].content[].logprobs[],
        usage: usage
    }"""
    ends: ClassVar[Mapping[str, Missing | None]] = {"completed": None, **OPENAI_ENDS}

    answer: Literal["schema", "plain"] = "schema"

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


# Anthropic -----------------------------------------------------------------------------------------------------------


ANTHROPIC_VERSION = "2026-10-21"
ANTHROPIC_WITH_TEMPERATURE = "2023-06-01"
"""The newest version of the interface, and the last version that accepts a temperature."""


class Messages(ChatModel):
    """A model of Anthropic's messages API."""

    place: ClassVar[str] = "/v1/messages"
    usual_url: ClassVar[str] = "https://api.anthropic.com"
    url_variable: ClassVar[str] = "ANTHROPIC_BASE_URL"
    key_variable: ClassVar[str] = "ANTHROPIC_API_KEY"
    key_header: ClassVar[tuple[str, str]] = ("x-api-key", "")
    batch_api: ClassVar[type[BatchApi] | None] = MessageBatches
    # Five MiB is the limit of the base64 text, which is a third longer than the file.
    picture_limits: ClassVar[Mapping[str, object]] = {"max_side": 1568, "max_bytes": (5 << 20) * 3 // 4}
    reply: ClassVar[str] = """{
        valid: type(content) == 'array',
        end: stop_reason || '',
        text: (content[?type == 'tool_use'].to_string(input) | [0]) || join('', content[?type == 'text'].text),
        usage: usage
    }"""
    ends: ClassVar[Mapping[str, Missing | None]] = {
        **dict.fromkeys(("end_turn", "stop_sequence", "tool_use")),
        "refusal": Missing.REFUSAL,
    }

    max_tokens: int = Field(default=256, ge=1)
    logprobs: Literal[False] = False

    def headers(self) -> Mapping[str, str]:
        return {
            **JSON,
            "anthropic-version": ANTHROPIC_VERSION if self.temperature is None else ANTHROPIC_WITH_TEMPERATURE,
        }

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


# Google's Gemini -----------------------------------------------------------------------------------------------------


GEMINI_BLOCKS = {"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "LANGUAGE"}
"""Finish reasons of Gemini's filters."""


class Gemini(ChatModel):
    """A model of Gemini's generateContent API."""

    place: ClassVar[str] = "/v1beta/models/{}:generateContent"
    usual_url: ClassVar[str] = "https://generativelanguage.googleapis.com"
    url_variable: ClassVar[str] = "GOOGLE_GEMINI_BASE_URL"
    key_variable: ClassVar[str] = "GEMINI_API_KEY"
    key_header: ClassVar[tuple[str, str]] = ("x-goog-api-key", "")
    detail_setting: ClassVar[str] = "media_resolution"
    batch_api: ClassVar[type[BatchApi] | None] = GeminiBatches
    # Twenty MB is the limit of the whole request, in base64 and with the words.
    picture_limits: ClassVar[Mapping[str, object]] = {"max_side": 3072, "max_bytes": 14_000_000}
    # Fields with default values are left out of its JSON.
    reply: ClassVar[str] = """{
        valid: type(candidates[0] || promptFeedback || usageMetadata) == 'object',
        end: candidates[0].finishReason || (!candidates && promptFeedback.blockReason && 'SAFETY') || 'STOP',
        text: join('', candidates[0].content.parts[?!thought].text || `[]`),
        tokens: candidates[0].logprobsResult.chosenCandidates[].{
            token: token || '', logprob: logProbability || `0`
        } || `[]`,
        usage: usageMetadata
    }"""
    ends: ClassVar[Mapping[str, Missing | None]] = {"STOP": None, **dict.fromkeys(GEMINI_BLOCKS, Missing.BLOCKED)}

    answer: Literal["schema", "plain"] = "schema"
    seed: int | None = None
    media_resolution: Literal["low", "medium", "high"] | None = None

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
                "responseJsonSchema": schema if held else None,
            }
        )
        contents = [{"role": "user", "parts": self.arranged(picture, {"text": text})}]
        return {"contents": contents, **({"generationConfig": config} if config else {})}
