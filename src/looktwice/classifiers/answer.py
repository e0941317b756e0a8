"""What a classifier said about one picture."""

from __future__ import annotations

from dataclasses import dataclass

NO_LABEL = ""
"""The label of an answer that was given and paid, but from which no label could be read."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a classifier said about one picture; `score` is its own claim and is kept but never used."""

    label: str
    score: float | None = None
    status: int | None = None
    raw: bytes | None = None
