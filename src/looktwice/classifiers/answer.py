"""What a classifier said about one picture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Answer:
    """What a classifier said about one picture; `score` is its own claim and is kept but never used."""

    label: str
    score: float | None = None
    status: int | None = None
    raw: bytes | None = None
