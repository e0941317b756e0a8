"""Token prices of chat models: an editable table, and the vendors' rules for the tokens of pictures.

    [models."gpt-5-mini"]
    input = "0.25"                # per million tokens, in your currency
    cached_input = "0.025"
    output = "2.00"
    image = { rule = "patches", most = 1536, times = "1.62" }

`looktwice prices` prints a complete table to start from. A name may end in the wildcard `*`; the longest match is used.
"""

from __future__ import annotations

import math
import tomllib
from datetime import date
from decimal import ROUND_CEILING, Decimal
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import jmespath
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from looktwice.classifiers.base import Tokens, Weight
from looktwice.classifiers.registry import checked
from looktwice.errors import PermanentError

PICOS = 1_000_000
"""The price of one token in picos (10⁻¹²) if a million tokens cost 1."""
MOST_TOKENS = 1_000_000_000
"""An upper bound on the billed tokens of any reply."""
CHARACTERS = 4
"""The approximate characters per token in English text, as vendors document it."""


def _exact(price: Decimal) -> Decimal:
    if price * PICOS % 1:
        raise ValueError(f"a price of {price:f} has more than six decimals; round it up")
    return price


TokenPrice = Annotated[Decimal, Field(ge=0, le=1_000_000, allow_inf_nan=False), AfterValidator(_exact)]


class _Rule(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Tiles(_Rule):
    """OpenAI: a base number of tokens plus a fixed number per 512 × 512 tile.

    Tiles are counted after scaling to fit into 2048 × 2048, and then to a shorter side of 768.
    """

    rule: Literal["tiles"]
    base: int = Field(ge=0)
    tile: int = Field(ge=0)

    def tokens(self, height: int, width: int) -> int:
        scale = min(1.0, 2048 / max(height, width))
        scale *= min(1.0, 768 / (min(height, width) * scale))
        across, down = (math.ceil(round(side * scale, 6) / 512) for side in (width, height))
        return self.base + self.tile * across * down


class Patches(_Rule):
    """OpenAI: patches of 32 × 32, at most `most` after scaling, times a model-specific factor."""

    rule: Literal["patches"]
    most: int = Field(default=1536, ge=1)
    times: Decimal = Field(default=Decimal(1), gt=0)

    def tokens(self, height: int, width: int) -> int:
        count = math.ceil(width / 32) * math.ceil(height / 32)
        if count > self.most:
            scale = math.sqrt(32**2 * self.most / (width * height))
            across, down = width * scale / 32, height * scale / 32
            scale *= min(math.floor(across) / across, math.floor(down) / down)
            count = math.ceil(round(width * scale, 6) / 32) * math.ceil(round(height * scale, 6) / 32)
        return math.ceil(min(count, self.most) * self.times)


class Squares(_Rule):
    """Anthropic: squares of 28 × 28 after scaling to a maximum longer side, at most `most`."""

    rule: Literal["squares"]
    longest: int = Field(default=1568, ge=1)
    most: int = Field(default=1568, ge=1)

    def tokens(self, height: int, width: int) -> int:
        scale = min(1.0, self.longest / max(height, width))
        across, down = (math.ceil(round(side * scale, 6) / 28) for side in (width, height))
        return min(self.most, across * down)


class Crops(_Rule):
    """Gemini: a fixed number of tokens per picture, or per crop of a picture with a side above 384 pixels."""

    rule: Literal["crops"]
    crop: int = Field(default=258, ge=0)

    def tokens(self, height: int, width: int) -> int:
        if max(height, width) <= 384:
            return self.crop
        unit = max(1, math.floor(min(height, width) / 1.5))
        return self.crop * math.ceil(width / unit) * math.ceil(height / unit)


class Fixed(_Rule):
    """A fixed number of tokens per picture, regardless of its size."""

    rule: Literal["fixed"]
    picture: int = Field(ge=0)

    def tokens(self, height: int, width: int) -> int:
        return self.picture


class Tariff(BaseModel):
    """The prices of one model."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: TokenPrice = Field(description="price per million tokens")
    output: TokenPrice
    cached_input: TokenPrice | None = Field(
        default=None, description="price of tokens read from a cache; by default the same as input"
    )
    cache_write: TokenPrice | None = Field(
        default=None, description="price of tokens written to a cache; by default the same as input"
    )
    batch: Decimal = Field(
        default=Decimal("0.5"), ge=0, le=1, description="the price in a batch, as a fraction of the normal price"
    )
    overhead: int = Field(default=0, ge=0, description="tokens that the server adds to every query")
    output_limit: int | None = Field(
        default=None, ge=1, description="maximum number of tokens of a reply if max_tokens is not set"
    )
    image: Annotated[Tiles | Patches | Squares | Crops | Fixed, Field(discriminator="rule")]
    details: dict[str, int] = Field(
        default_factory=dict, description="detail → tokens per picture at that level of detail"
    )

    def expected(self, weight: Weight) -> Tokens:
        """The estimated input tokens of a query."""
        text = math.ceil(weight.characters / CHARACTERS)
        return Tokens(text + self.overhead + self._picture(weight), weight.output)

    def most(self, weight: Weight) -> Tokens:
        """An upper bound on the tokens of a query, assuming that a text has at most as many tokens as bytes."""
        limit = weight.most_output or self.output_limit
        if limit is None:
            raise PermanentError(
                "per-token pricing needs a limit on the cost of an answer: set max_tokens in the description of "
                "the classifier, or output_limit in the price table",
                code="price-missing",
            )
        question = weight.bytes + self.overhead + self._picture(weight)
        return Tokens(question, limit, written=question if (self.cache_write or 0) > self.input else 0)

    def picos(self, tokens: Tokens, batched: bool = False) -> int:
        """The price of the tokens in picos (10⁻¹²); batches have a lower price."""
        cached = self.input if self.cached_input is None else self.cached_input
        written = self.input if self.cache_write is None else self.cache_write
        plain = tokens.input - tokens.cached - tokens.written
        cost = plain * self.input + tokens.cached * cached + tokens.written * written + tokens.output * self.output
        return int((cost * PICOS * (self.batch if batched else 1)).to_integral_value(ROUND_CEILING))

    def _picture(self, weight: Weight) -> int:
        if weight.detail in self.details:
            return self.details[weight.detail]
        return self.image.tokens(weight.height, weight.width)


class Table(BaseModel):
    """The prices of models."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    checked: date | None = Field(default=None, description="when the prices were last compared with the vendors' pages")
    models: dict[str, Tariff] = Field(min_length=1)

    def tariff(self, model: str) -> Tariff:
        """The tariff of a model."""
        fitting = [name for name in self.models if model == name or (name[-1:] == "*" and model.startswith(name[:-1]))]
        if not fitting:
            raise PermanentError(
                f"the price table has no model {model!r}; add [models.{model!r}], as `looktwice prices` shows",
                code="price-missing",
            )
        return self.models[max(fitting, key=lambda name: (name == model, len(name)))]


COUNTS = (
    # Chat completions of OpenAI
    (("prompt_tokens",), ("completion_tokens",), ("prompt_tokens_details.cached_tokens",)),
    # Responses of OpenAI, and Anthropic, whose input excludes the cache
    (
        ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"),
        ("output_tokens",),
        ("cache_read_input_tokens", "input_tokens_details.cached_tokens"),
        ("cache_creation_input_tokens",),
    ),
    # Gemini
    (
        ("promptTokenCount", "toolUsePromptTokenCount"),
        ("candidatesTokenCount", "thoughtsTokenCount"),
        ("cachedContentTokenCount",),
    ),
)
"""The JMESPaths to each vendor's counts of `Tokens`; if several are present, they are summed."""


def tokens_of(usage: object) -> Tokens | None:
    """The billed tokens of a reply, as counted by the vendor; returns None if the count is missing or impossible.

    A negative count would refund money that was spent, and a huge count would overflow.
    """
    for count in COUNTS:
        numbers = [[jmespath.search(path, usage) for path in paths] for paths in count]
        if numbers[0][0] is not None:
            tokens = Tokens(*(sum(number for number in each if type(number) is int) for each in numbers))
            sensible = all(0 <= number <= MOST_TOKENS for number in tokens)
            return tokens if sensible and tokens.cached + tokens.written <= tokens.input else None
    return None


def read_table(path: Path) -> Table:
    """Read the prices in a TOML file; raises a PermanentError if it is invalid."""
    what = f"the price table {str(path)!r}"
    try:
        return checked(Table, tomllib.loads(path.read_text("utf-8")), what, "`looktwice prices`")
    except FileNotFoundError:
        message = f"there is no price table {str(path)!r}; `looktwice prices > {path.name}` writes one to start from"
    except (OSError, UnicodeError, tomllib.TOMLDecodeError) as error:
        message = f"{what} cannot be read: {error}"
    except ValueError as error:
        message = str(error)
    raise PermanentError(message)


def example() -> str:
    """An example table that users can edit."""
    return (files("looktwice.classifiers") / "prices.toml").read_text("utf-8")
