"""The service: live verdicts over HTTP, with a web page (extra `serve`)."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType

from looktwice.model import MissingExtra


@dataclass(frozen=True)
class ServiceLimits:
    """Limits for a single request, and for all requests together."""

    body: int = 16 * 2**20
    """The maximum size of a request, in bytes."""
    pixels: int = 24_000_000
    """The maximum number of pixels of a picture."""
    pictures: int = 32
    """The maximum number of pictures per request."""
    looks: int = 64
    """The maximum number of pictures in progress, over all requests; others wait."""
    requests: int = 1024
    """The maximum number of requests with a body in progress; further ones are rejected."""
    memory: int = 256 * 2**20
    """The maximum total size of bodies in memory."""
    seconds: float = 60.0
    """Seconds until a request times out; at most half of this time is spent waiting for a slot."""
    upload: float = 30.0
    """Seconds for receiving the body."""
    headers: float = 10.0
    """Seconds for which a connection stays open until the headers of the next request are complete."""
    connections: int = 2048
    """The maximum number of open connections; above this limit, the connection that has been idle for longest is
    closed."""
    reviews: int = 1000
    """The maximum number of pictures stored for review; further ones are only returned to the caller."""
    review_bytes: int = 2**30
    """The maximum total size of stored pictures, in bytes."""


PARTS = {"fastapi", "prometheus_client", "python_multipart", "starlette", "uvicorn"}


@dataclass(frozen=True)
class Place:
    """The address of the service, and access control."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 for a free port."""
    token_file: Path | None = None
    new_token: bool = False
    """Whether to create a token, which is printed once."""
    names: tuple[str, ...] = ()
    """Allowed host names, besides localhost and IP addresses."""
    certificate: Path | None = None
    key: Path | None = None


def load(module: str) -> ModuleType:
    """Import a module that needs the extra `serve`; the error states how to install it if it is missing."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if error.name not in PARTS:
            raise
        raise MissingExtra("HTTP services", "serve") from None
