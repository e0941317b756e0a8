"""The service: verdicts over HTTP, live, with a page for people (extra `serve`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from looktwice.errors import MissingExtra
from looktwice.service.limits import Limits

if TYPE_CHECKING:
    from looktwice.asking.session import AskOptions
    from looktwice.verdicts.policy import DecisionOptions

__all__ = ["Limits", "Place", "run"]

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
    classifier: str | None,
    decide: DecisionOptions,
    ask: AskOptions,
    place: Place,
    limits: Limits,
    review: Path | None = None,
    label_studio: str | None = None,
) -> None:
    """Serve until a signal comes; `review` is a folder for the pictures that people are to review.

    `label_studio` is the address of the Label Studio to which it is an ML backend.
    """
    try:
        from looktwice.service import server
    except ModuleNotFoundError as error:
        if error.name not in PARTS:
            raise
        raise MissingExtra("HTTP services", "serve") from None
    server.run(profile, classifier, decide, ask, place, limits, review, label_studio)
