"""The service: verdicts over HTTP, live, with a page for people (extra `serve`)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

from looktwice.model import MissingExtra


@dataclass(frozen=True)
class ServiceLimits:
    """Limits for one request, and for all of them together."""

    body: int = 16 * 2**20
    """The largest request, in bytes."""
    pixels: int = 24_000_000
    """The most pixels of a picture."""
    pictures: int = 32
    """The most pictures in one request."""
    looks: int = 64
    """The most pictures in progress, over all requests; others wait."""
    requests: int = 256
    """The most requests with a body in progress; others wait, with the body unread."""
    waiting: int = 1024
    """The most waiting requests; further ones are rejected."""
    memory: int = 256 * 2**20
    """The total size of bodies in memory."""
    seconds: float = 60.0
    """Seconds until a request times out; it waits for a slot up to half of that."""
    upload: float = 30.0
    """Seconds for receiving the body."""
    headers: float = 10.0
    """Seconds for receiving the headers."""
    head: int = 32_768
    """The most bytes of headers."""
    connections: int = 2048
    """The most open connections; beyond, the one idle for longest is closed."""
    reviews: int = 1000
    """The most pictures stored for review; further ones are only returned to the caller."""
    review_bytes: int = 2**30
    """The most bytes of stored pictures."""


PARTS = {"fastapi", "httptools", "prometheus_client", "python_multipart", "starlette", "uvicorn"}


@dataclass(frozen=True)
class Place:
    """The address of the service, and access control."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 for a free port."""
    token_file: Path | None = None
    new_token: bool = False
    """Whether to make a token, and print it once."""
    names: tuple[str, ...] = ()
    """Allowed host names, besides localhost and IP addresses."""
    certificate: Path | None = None
    key: Path | None = None


def load(module: str) -> ModuleType:
    """A module that needs the extra `serve`; an error says so where that is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in PARTS:
            raise
        raise MissingExtra("HTTP services", "serve") from None
