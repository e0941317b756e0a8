"""A classifier of tags that is sometimes wrong, and pictures whose true tags are known."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import looktwice as lt
from looktwice.files import join_tags
from looktwice.images.decode import decode
from looktwice.images.image import encode_png

TAGS = ("bus", "car", "cat", "dog", "sofa")
FREQUENCY = (0.08, 0.15, 0.3, 0.25, 0.2)


def pictures(count: int, seed: int = 0) -> tuple[NDArray[np.uint8], list[list[str]]]:
    """Noise with a mark for each tag that is true, and the true tags."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (count, 16, 16, 3), np.uint8)
    truths = rng.random((count, len(TAGS))) < FREQUENCY
    images[:, : len(TAGS), 0, 0] = np.where(truths, 220, 30)
    return images, [[tag for tag, true in zip(TAGS, row, strict=True) if true] for row in truths]


def scores(image: NDArray[np.uint8]) -> dict[str, float]:
    """The tags whose noisy mark is strong enough, with their scores; `sky` is never true."""
    marks = image[: len(TAGS) + 1, 0, 0].astype(float) + 0.9 * (image[: len(TAGS) + 1, 2, 1].astype(float) - 128)
    named = zip((*TAGS, "sky"), marks.tolist(), strict=True)
    return {tag: round(min(mark / 300, 1.0), 3) for tag, mark in named if mark > 100}


@lt.returns_tags
def tagger(image: NDArray[np.uint8]) -> dict[str, float]:
    """The same as a classifier."""
    return scores(image)


class TagApi:
    """A paid API on this machine: replies with tags, scores and yes or no by category, and counts its bill."""

    def __init__(self) -> None:
        self.bill = 0

    def description(self, url: str, **settings: str) -> str:
        """A TOML file for it; by default all tags with their scores."""
        read = {"label": "tags[].name", "score": "tags[].confidence", "answer": "tags", **settings}
        lines = [f"{name} = {json.dumps(value)}" for name, value in read.items() if value]
        return "\n".join(['connector = "http"', f'url = "{url}"', "price = 0.001", *lines]) + "\n"

    @contextmanager
    def running(self) -> Iterator[str]:
        """Its address, while it runs."""
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                picture = self.rfile.read(int(self.headers["content-length"]))
                api.bill += 1
                shares = scores(decode(picture, "picture").pixels)
                tags = [{"name": tag, "confidence": share} for tag, share in shares.items()]
                reply = json.dumps({"tags": tags, "flags": {tag: tag in shares for tag in TAGS}}).encode()
                self.send_response(200)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def log_message(self, format: str, *_: object) -> None: ...

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield f"http://127.0.0.1:{server.server_port}/"
            finally:
                server.shutdown()


def write_pictures(folder: Path, count: int, seed: int = 0, truths: bool = True) -> Path:
    """A folder of such pictures, with their tags in `labels.csv`."""
    folder.mkdir(parents=True)
    images, tags = pictures(count, seed)
    for place, image in enumerate(images):
        (folder / f"{place:03}.png").write_bytes(encode_png(image))
    if truths:
        rows = "".join(f"{place:03}.png,{join_tags(true)}\n" for place, true in enumerate(tags))
        (folder / "labels.csv").write_text(f"file,tags\n{rows}")
    return folder
