"""OpenAI's responses API, which newer models need for their full functionality.

connector = "openai-responses"
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import BaseModel

from looktwice.classifiers.base import Settings
from looktwice.classifiers.chat.lexicon import Completion, Missing
from looktwice.classifiers.chat.model import KIND, PICTURE, ChatClassifier, connected, flat, given, of_name
from looktwice.classifiers.chat.openai import LogProb, OpenAIModel


class Responses(OpenAIModel):
    """A model behind responses; the server is asked to store nothing."""

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


class _Part(BaseModel):
    type: str
    text: str = ""
    logprobs: tuple[LogProb, ...] | None = None


class _Item(BaseModel):
    type: str
    content: tuple[_Part, ...] | None = None


class _Incomplete(BaseModel):
    reason: str | None = None


class _Response(BaseModel):
    status: Literal["completed", "incomplete"]
    output: tuple[_Item, ...]
    incomplete_details: _Incomplete | None = None
    usage: dict[str, object] | None = None


def connect(address: str, settings: Settings) -> ChatClassifier:
    """`openai-responses:model?labels=labels.txt`, or the settings of a TOML file."""
    return connected(Responses, {**of_name(address), **settings})
