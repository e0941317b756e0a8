"""The service: verdicts over HTTP, live, with a page for people (extra `serve`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from looktwice.errors import MissingExtra

if TYPE_CHECKING:
    from looktwice.model import AskOptions, Classifiers, DecisionOptions


@dataclass(frozen=True)
class ServiceLimits:
    """Limits for one request, and for all of them together."""

    body: int = 16 * 2**20
    """Bytes of a request."""
    pixels: int = 24_000_000
    """Width times height of a picture."""
    pictures: int = 32
    """Pictures in one request."""
    looks: int = 64
    """Pictures that are looked at at a time, of all requests together; others wait for their turn."""
    requests: int = 256
    """Requests with a body that are read and answered at a time; others wait for their turn, with the body unread."""
    waiting: int = 1024
    """Requests that wait for their turn; further ones are refused for now."""
    memory: int = 256 * 2**20
    """Bytes of the bodies that are held together."""
    seconds: float = 60.0
    """Until a request fails because its verdict takes too long; it waits for its turn up to half of that."""
    upload: float = 30.0
    """Seconds in which the whole body must have come."""
    headers: float = 10.0
    """Seconds in which the headers must have come."""
    head: int = 32_768
    """Bytes of the headers."""
    connections: int = 2048
    """Open connections; beyond them the one that has been idle longest is closed."""
    reviews: int = 1000
    """Pictures that are kept for people to review; the verdicts of further ones go to the caller alone."""
    review_bytes: int = 2**30
    """What they may take on disk."""


__all__ = ["Place", "ServiceLimits", "run"]

PARTS = {"fastapi", "httptools", "prometheus_client", "python_multipart", "starlette", "uvicorn"}


@dataclass(frozen=True)
class Place:
    """Where the service is, and who may come in."""

    host: str = "127.0.0.1"
    port: int = 8000
    """0 takes a free one."""
    token_file: Path | None = None
    names: tuple[str, ...] = ()
    """Host names under which it is reached, besides localhost and addresses."""
    certificate: Path | None = None
    key: Path | None = None


def run(
    profile: Path,
    classifiers: Classifiers | None,
    decide: DecisionOptions,
    ask: AskOptions,
    place: Place,
    limits: ServiceLimits,
    review: Path | None = None,
) -> None:
    """Serve until a signal comes; `review` is a folder for the pictures that people are to review."""
    try:
        from looktwice.service import server
    except ModuleNotFoundError as error:
        if error.name not in PARTS:
            raise
        raise MissingExtra("HTTP services", "serve") from None
    server.run(profile, classifiers, decide, ask, place, limits, review)
