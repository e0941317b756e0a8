"""LitServe's OpenAISpec around the embedded classifier: `python litserve_chat_fashion.py MODEL PORT`.

A server of chat completions that shares no code with looktwice: it reads a picture and a schema, and says a label.
"""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Iterator
from typing import Any

import litserve
from fashion import Fashion
from litserve.specs.openai import ChatCompletionRequest


class Chat(litserve.LitAPI):
    """One message with a picture in, its label out: in JSON where a schema asks for it, else in plain words."""

    def setup(self, device: str) -> None:
        self._model = Fashion(sys.argv[1])

    def decode_request(self, request: ChatCompletionRequest) -> tuple[bytes, bool]:
        parts = {part.type: part for part in request.messages[-1].content}
        data = parts["image_url"].image_url.url.partition(";base64,")[2]
        form = request.response_format
        return base64.b64decode(data, validate=True), form is not None and form.type == "json_schema"

    def predict(self, x: tuple[bytes, bool]) -> Iterator[str]:
        file, in_json = x
        label = self._model.label(file)
        yield json.dumps({"label": label}) if in_json else f"{label}."

    def encode_response(self, output: Iterator[str]) -> Iterator[dict[str, Any]]:
        for text in output:
            yield {"role": "assistant", "content": text}


if __name__ == "__main__":
    litserve.LitServer(Chat(spec=litserve.OpenAISpec()), accelerator="cpu").run(
        host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False
    )
