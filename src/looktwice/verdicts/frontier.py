"""Pixels against looks: which sizes of pictures and numbers of views are worth their money."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from looktwice.calibration import panels


@dataclass(frozen=True)
class Choice:
    """Pictures of one size under so many views."""

    size: int
    """Pixels of the longer side."""
    views: int
    micros: float
    """What a picture costs, in millionths of the currency; its queries where no price is known."""
    brier: float
    """On the pilot pictures."""


def frontier(choices: Iterable[Choice]) -> list[Choice]:
    """Those that nothing cheaper equals, cheapest first."""
    found: list[Choice] = []
    for choice in sorted(choices, key=lambda each: (each.micros, each.brier)):
        if not found or choice.brier < found[-1].brier:
            found.append(choice)
    return found


def taken(choices: Sequence[Choice]) -> Choice:
    """The cheapest of a frontier that brings most of what the dearest brings."""
    return choices[panels.knee([choice.brier for choice in choices])]
