"""LitServe with the embedded classifier: `python litserve_fashion.py MODEL PORT`, in LitServe's environment.

The request is {"image": base64} and the reply {"output": label}, as in the `litserve` preset.
"""

from __future__ import annotations

import base64
import sys
from typing import Any

import litserve
from fashion import Fashion


class Service(litserve.LitAPI):
    """A file in base64 in, a label out."""

    def setup(self, device: str) -> None:
        self._model = Fashion(sys.argv[1])

    def decode_request(self, request: dict[str, str]) -> bytes:
        return base64.b64decode(request["image"], validate=True)

    def predict(self, x: bytes) -> str:
        return self._model.label(x)

    def encode_response(self, output: str) -> dict[str, Any]:
        return {"output": output}


if __name__ == "__main__":
    litserve.LitServer(Service(), accelerator="cpu").run(
        host="127.0.0.1", port=int(sys.argv[2]), generate_client_file=False
    )
