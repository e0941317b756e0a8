"""Anthropic's messages.

connector = "anthropic"
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import BaseModel, Field

from looktwice.classifiers.base import Settings
from looktwice.classifiers.chat.batching import BatchApi, MessageBatches
from looktwice.classifiers.chat.lexicon import Completion, Missing
from looktwice.classifiers.chat.model import (
    JSON,
    KIND,
    PICTURE,
    ChatClassifier,
    ChatModel,
    connected,
    flat,
    given,
    of_name,
)

VERSION = "2026-10-21"
VERSION_WITH_TEMPERATURE = "2023-06-01"
"""The newest version of the interface, and the last one that takes a temperature."""
TOOL = "answer"
WHOLE = ("end_turn", "stop_sequence", "tool_use")


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
        return {**JSON, "anthropic-version": VERSION if self.temperature is None else VERSION_WITH_TEMPERATURE}

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
        message = _Message.model_validate_json(body)
        usage = flat(message.usage)
        if message.stop_reason not in WHOLE:
            return Completion(Missing.REFUSAL if message.stop_reason == "refusal" else Missing.CUT, usage)
        called = [json.dumps(block.input) for block in message.content if block.type == "tool_use"]
        text = "".join(block.text for block in message.content if block.type == "text")
        return Completion((called[0] if called else text) or Missing.EMPTY, usage)


class _Block(BaseModel):
    type: str
    text: str = ""
    input: dict[str, object] | None = None


class _Message(BaseModel):
    content: tuple[_Block, ...]
    stop_reason: str | None
    usage: dict[str, object] | None = None


def connect(address: str, settings: Settings) -> ChatClassifier:
    """`anthropic:model?labels=labels.txt`, or the settings of a TOML file."""
    return connected(Messages, {**of_name(address), **settings})
