"""Google's Gemini, by generateContent.

connector = "gemini"
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self
from urllib.parse import quote

from pydantic import AliasPath, BaseModel, Field, model_validator

from looktwice.classifiers.base import Settings
from looktwice.classifiers.chat.batching import BatchApi, GeminiBatches
from looktwice.classifiers.chat.lexicon import Completion, Missing, Token
from looktwice.classifiers.chat.model import KIND, PICTURE, ChatClassifier, ChatModel, connected, flat, given, of_name

BLOCKS = {"SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII", "IMAGE_SAFETY", "LANGUAGE"}
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
        reply = _Reply.model_validate_json(body)
        usage = _counts(reply.usage)
        if not reply.candidates:
            return Completion(Missing.BLOCKED if reply.blocked else Missing.EMPTY, usage)
        if reply.finish not in ("STOP", None):
            return Completion(Missing.BLOCKED if reply.finish in BLOCKS else Missing.CUT, usage)
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


def _counts(usage: Mapping[str, object] | None) -> tuple[tuple[str, int], ...]:
    """The numbers of Gemini's usage; those by modality, which it reports as a list, under its name."""
    by_modality = {
        name: {str(part.get("modality")): part.get("tokenCount") for part in parts if isinstance(part, Mapping)}
        for name, parts in (usage or {}).items()
        if isinstance(parts, list)
    }
    return flat({**(usage or {}), **by_modality})


class _Part(BaseModel):
    text: str = ""
    thought: bool = False


class _Chosen(BaseModel):
    token: str = ""
    log_probability: float = Field(default=0.0, alias="logProbability")


class _Reply(BaseModel):
    """A reply and its first candidate."""

    candidates: tuple[dict[str, object], ...] = ()
    finish: str | None = Field(default=None, validation_alias=AliasPath("candidates", 0, "finishReason"))
    parts: tuple[_Part, ...] | None = Field(
        default=None, validation_alias=AliasPath("candidates", 0, "content", "parts")
    )
    tokens: tuple[_Chosen, ...] | None = Field(
        default=None, validation_alias=AliasPath("candidates", 0, "logprobsResult", "chosenCandidates")
    )
    feedback: dict[str, object] | None = Field(default=None, alias="promptFeedback")
    blocked: str | None = Field(default=None, validation_alias=AliasPath("promptFeedback", "blockReason"))
    usage: dict[str, object] | None = Field(default=None, alias="usageMetadata")

    @model_validator(mode="after")
    def _holds_something(self) -> Self:
        """Every field is optional, but a reply without any of them is not from Gemini."""
        if not (self.candidates or self.feedback is not None or self.usage):
            raise ValueError("it has no candidates, no feedback and no usage")
        return self


def connect(address: str, settings: Settings) -> ChatClassifier:
    """`gemini:model?labels=labels.txt`, or the settings of a TOML file."""
    return connected(Gemini, {**of_name(address), **settings})
