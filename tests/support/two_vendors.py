"""Two classifiers over HTTP, cheap and dear, that can be down, slow or refuse, and count their queries."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from looktwice.images.decode import decode

WORDS = ("black", "dark", "bright", "white")


def drawn(count: int, seed: int = 7) -> tuple[NDArray[np.uint8], list[str]]:
    """Grey pictures and their truths; one pixel holds noise, by which a classifier errs."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(4, size=count)
    images = np.repeat((64 * codes + 32).astype(np.uint8), 8 * 8 * 3).reshape(count, 8, 8, 3).copy()
    images[:, 0, 0] = rng.integers(0, 256, (count, 1), np.uint8)
    images[:, 0, 1:] = rng.integers(0, 256, (count, 7, 3), np.uint8)
    return images, [WORDS[code] for code in codes]


def cheap(image: NDArray[np.uint8]) -> str:
    """Right about the dark half; of the bright one it knows nothing."""
    code = int(image[4, 4, 0]) // 64
    return WORDS[code] if code < 2 else WORDS[2 + int(image[0, 0, 0] > 127)]


def dear(image: NDArray[np.uint8]) -> str:
    return WORDS[int(image[4, 4, 0]) // 64] if image[0, 0, 0] < 245 else "black"


@dataclass
class Vendors:
    """The state of both."""

    port: int = 0
    asked: dict[str, int] = field(default_factory=lambda: {"cheap": 0, "dear": 0})
    down: dict[str, int] = field(default_factory=dict)
    """The status that each replies with in place of a label."""
    slow: dict[str, float] = field(default_factory=dict)

    def describe(self, folder: Path, name: str, price: float, **more: object) -> str:
        """The description of one of them, in a file."""
        settings = {
            "url": f"http://127.0.0.1:{self.port}/{name}",
            "label": "label",
            "price": price,
            "timeout": 1.0,
            **more,
        }
        lines = ['connector = "http"', *(f"{key} = {json.dumps(value)}" for key, value in settings.items())]
        (folder / f"{name}.toml").write_text("\n".join(lines) + "\n")
        return str(folder / f"{name}.toml")


@contextmanager
def two_vendors() -> Iterator[Vendors]:
    """Both, served until the end."""
    state = Vendors()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            name = self.path.strip("/")
            body = self.rfile.read(int(self.headers["content-length"]))
            state.asked[name] += 1
            time.sleep(state.slow.get(name, 0.0))
            label = {"cheap": cheap, "dear": dear}[name](decode(body, "picture").pixels)
            reply = json.dumps({"label": label}).encode()
            with suppress(OSError):  # a client that waits no longer
                self.send_response(state.down.get(name, 200))
                self.send_header("content-length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        state.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield state
        finally:
            server.shutdown()
