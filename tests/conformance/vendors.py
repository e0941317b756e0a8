"""The models behind the replicas of OpenAI, Anthropic and Gemini: what they say, count and bill.

The tokens of pictures follow the steps of the vendors' published examples, written apart from the package's own rules;
a text has a token for every four characters, as the vendors say, and words of 1,024 tokens or more that come before the
picture are read from a cache once they were seen.
"""

from __future__ import annotations

import asyncio
import base64
import json
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal

import cv2
import numpy as np
from aiohttp import web

LABELS = ("cat", "dog", "red panda", "snow leopard", "harbour seal", "fox")
PRICES = """
[models."gpt-4o"]
input = "2.50"
cached_input = "1.25"
output = "10.00"
image = { rule = "tiles", base = 85, tile = 170 }
details = { low = 85 }

[models."gpt-5-mini"]
input = "0.25"
cached_input = "0.025"
output = "2.00"
image = { rule = "patches", most = 1536, times = "1.62" }

[models."claude-*"]
input = "3.00"
cached_input = "0.30"
cache_write = "3.75"
output = "15.00"
image = { rule = "squares" }

[models."gemini-*"]
input = "0.30"
cached_input = "0.03"
output = "2.50"
image = { rule = "crops" }
"""


def tiles(width: int, height: int) -> int:
    """OpenAI's example: 2048 × 4096 is scaled to 1024 × 2048, then to 768 × 1536: six tiles, 1105 tokens."""
    if max(width, height) > 2048:
        width, height = round(width * 2048 / max(width, height)), round(height * 2048 / max(width, height))
    if min(width, height) > 768:
        width, height = round(width * 768 / min(width, height)), round(height * 768 / min(width, height))
    return 85 + 170 * -(-width // 512) * -(-height // 512)


def patches(width: int, height: int) -> int:
    """OpenAI's example: 1800 × 2400 is scaled until 33 × 44 patches are left, 1452, times 1.62."""
    across, down = -(-width // 32), -(-height // 32)
    if across * down > 1536:
        shrink = math.sqrt(1536 * 1024 / (width * height))
        fewer = min(
            int(width * shrink / 32) / (width * shrink / 32), int(height * shrink / 32) / (height * shrink / 32)
        )
        across, down = (math.ceil(side * shrink * fewer / 32 - 1e-6) for side in (width, height))
    return math.ceil(across * down * 1.62)


def squares(width: int, height: int) -> int:
    """Anthropic: squares of 28 pixels, cut ones too; a larger picture is scaled to 1568 of them."""
    return min(1568, -(-width // 28) * -(-height // 28))


def crops(width: int, height: int) -> int:
    """Gemini's example: 960 × 540 has a crop unit of 360 and so 3 × 2 tiles of 258 tokens."""
    if width <= 384 and height <= 384:
        return 258
    unit = int(min(width, height) / 1.5)
    return 258 * math.ceil(width / unit) * math.ceil(height / unit)


@dataclass
class ServiceSettings:
    """One vendor: it names the shade of a picture, counts tokens, and keeps its own bill."""

    vendor: str
    model: str
    input: Decimal
    cached: Decimal
    output: Decimal
    count: Callable[[int, int], int]
    bill: Decimal = Decimal(0)
    """In millionths of the currency, exactly."""
    prices: list[Decimal] = field(default_factory=list)
    """What each answer added to it."""
    calls: int = 0
    asked: list[bytes] = field(default_factory=list)
    """The pictures of all questions that were answered."""
    seen: set[str] = field(default_factory=set)

    def answer(self, asked: dict[str, object], price: Decimal = Decimal(1)) -> dict[str, object]:
        """The reply to the body of a question, which is put on the bill at this part of the price."""
        text, picture, schema, words_first = _read(self.vendor, asked)
        pixels = cv2.imdecode(np.frombuffer(picture, np.uint8), cv2.IMREAD_COLOR)
        assert pixels is not None, "it is no picture"
        label = LABELS[int(pixels.mean()) % len(LABELS)]
        assert label in text.splitlines()
        said = json.dumps({"label": label}) if schema else label
        words = text + (json.dumps(schema, separators=(",", ":")) if schema else "")
        height, width, _ = pixels.shape
        tokens = math.ceil(len(words) / 4) + self.count(width, height)
        prefix = len(text) // 4 // 128 * 128 if words_first else 0
        cached = prefix if prefix >= 1024 and text in self.seen else 0
        self.seen.add(text)
        out = math.ceil(len(said) / 4) + 1
        owed = (tokens - cached) * self.input + cached * self.cached + out * self.output
        self.bill += owed * price
        self.prices.append(owed * price)
        self.calls += 1
        self.asked.append(picture)
        return REPLIES[self.vendor](said, self.model, tokens, cached, out)


def openai() -> ServiceSettings:
    return ServiceSettings("openai", "gpt-4o", Decimal("2.50"), Decimal("1.25"), Decimal(10), tiles)


def openai_patches() -> ServiceSettings:
    return ServiceSettings("openai", "gpt-5-mini", Decimal("0.25"), Decimal("0.025"), Decimal(2), patches)


def anthropic() -> ServiceSettings:
    return ServiceSettings("anthropic", "claude-sonnet-4-5", Decimal(3), Decimal("0.30"), Decimal(15), squares)


def gemini() -> ServiceSettings:
    return ServiceSettings("gemini", "gemini-2.5-flash", Decimal("0.30"), Decimal("0.03"), Decimal("2.50"), crops)


HOUSES = {"openai": openai, "openai-patches": openai_patches, "anthropic": anthropic, "gemini": gemini}


def _read(vendor: str, asked: dict[str, object]) -> tuple[str, bytes, object, bool]:
    """The words, the file of the picture and the schema in the body of a question; whether the words come first."""
    told = json.loads(json.dumps(asked))
    if vendor == "gemini":
        parts = told["contents"][0]["parts"]
        [text] = [part["text"] for part in parts if "text" in part]
        [picture] = [part["inlineData"]["data"] for part in parts if "inlineData" in part]
        schema = told.get("generationConfig", {}).get("responseJsonSchema")
        return text, base64.b64decode(picture), schema, "text" in parts[0]
    parts = told["messages"][0]["content"]
    [text] = [part["text"] for part in parts if part["type"] == "text"]
    if vendor == "anthropic":
        [picture] = [part["source"]["data"] for part in parts if part["type"] == "image"]
        schema = told.get("output_config", {}).get("format", {}).get("schema")
        return text, base64.b64decode(picture), schema, parts[0]["type"] == "text"
    [url] = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    schema = told.get("response_format", {}).get("json_schema", {}).get("schema")
    return text, base64.b64decode(url.partition(";base64,")[2]), schema, parts[0]["type"] == "text"


def _completion(said: str, model: str, tokens: int, cached: int, out: int) -> dict[str, object]:
    message = {"role": "assistant", "content": said, "refusal": None}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1_760_000_000,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
        "usage": {
            "prompt_tokens": tokens,
            "completion_tokens": out,
            "total_tokens": tokens + out,
            "prompt_tokens_details": {"cached_tokens": cached, "audio_tokens": 0},
        },
    }


def _message(said: str, model: str, tokens: int, cached: int, out: int) -> dict[str, object]:
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": said}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": tokens - cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": cached,
            "output_tokens": out,
        },
    }


def _content(said: str, model: str, tokens: int, cached: int, out: int) -> dict[str, object]:
    return {
        "candidates": [{"content": {"role": "model", "parts": [{"text": said}]}, "finishReason": "STOP", "index": 0}],
        "usageMetadata": {
            "promptTokenCount": tokens,
            "candidatesTokenCount": out - 1,
            "thoughtsTokenCount": 1,
            "totalTokenCount": tokens + out,
            "cachedContentTokenCount": cached,
        },
        "modelVersion": model,
        "responseId": "r1",
    }


REPLIES = {"openai": _completion, "anthropic": _message, "gemini": _content}
PATHS = {
    "openai": "/v1/chat/completions",
    "anthropic": "/v1/messages",
    "gemini": "/v1beta/models/{model}:generateContent",
}


def app_of(house: ServiceSettings, app: web.Application | None = None) -> web.Application:
    """The endpoint at which the vendor answers one question at a time, beside others that an app has."""
    app = web.Application(client_max_size=1 << 30) if app is None else app

    async def ask(request: web.Request) -> web.Response:
        return web.json_response(house.answer(await request.json()))

    app.router.add_post(PATHS[house.vendor], ask)
    return app


def description(house: ServiceSettings, base: str) -> str:
    """The classifier of a house that is served at this address, as TOML."""
    url = f"{base}/v1" if house.vendor == "openai" else base
    return (
        f'connector = "{house.vendor}"\nmodel = "{house.model}"\nlabels = {json.dumps(LABELS)}\n'
        f'url = "{url}"\nmax_tokens = 32\nconcurrency = 4\n'
    )


@contextmanager
def served(app: web.Application) -> Iterator[str]:
    """The address of an app that runs in a thread of its own."""
    loop = asyncio.new_event_loop()
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)

    async def start() -> int:
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return int(runner.addresses[0][1])

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    port = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
