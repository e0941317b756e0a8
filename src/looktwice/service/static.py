"""The page's files, read once and served from memory: no path of a request ever reaches the disk."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable

from fastapi import Request
from fastapi.responses import Response

KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".json": "application/json",
}


@dataclass(frozen=True)
class File:
    """One file of the page."""

    body: bytes
    kind: str
    tag: str

    async def response(self, request: Request) -> Response:
        """The file, or word that the client has it already."""
        headers = {"etag": self.tag, "cache-control": "no-cache"}
        if request.headers.get("if-none-match") == self.tag:
            return Response(None, 304, headers)
        return Response(self.body, 200, headers, self.kind)


def read_page() -> dict[str, File]:
    """Every file of the page by its path; `/` is the page itself."""
    folder = files("looktwice.service") / "page"
    found = dict(_found(folder, "/page/"))
    return {**found, "/": found["/page/index.html"]}


def _found(folder: Traversable, path: str) -> list[tuple[str, File]]:
    pairs = []
    for entry in folder.iterdir():
        if entry.is_dir():
            pairs += _found(entry, f"{path}{entry.name}/")
        elif (kind := KINDS.get("." + entry.name.rpartition(".")[2])) is not None:
            body = entry.read_bytes()
            pairs.append((path + entry.name, File(body, kind, f'"{sha256(body).hexdigest()[:20]}"')))
    return pairs
