"""A figure beside its goal, said alike by every benchmark, so that `python benchmarks` can gather them."""

from __future__ import annotations

import re
from typing import NamedTuple

LINE = re.compile(
    r"^(?P<what>.+): (?P<value>[\d.]+)(?P<unit>.*?) \((?:goal: at (?P<side>least|most) (?P<goal>[\d.]+)|no goal)\)$"
)


class Figure(NamedTuple):
    """What was measured, and what it should be; without a goal, it is there for comparison."""

    what: str
    value: float
    side: str = "least"
    goal: float | None = None
    unit: str = ""

    @property
    def reached(self) -> bool:
        """Whether it is as good as it should be, as it is printed."""
        if self.goal is None:
            return True
        value = round(self.value, 2)
        return value >= self.goal if self.side == "least" else value <= self.goal

    @property
    def wish(self) -> str:
        """The goal in words, empty if there is none."""
        return "" if self.goal is None else f"at {self.side} {self.goal:g}"

    def __str__(self) -> str:
        return f"{self.what}: {self.value:.2f}{self.unit} ({f'goal: {self.wish}' if self.wish else 'no goal'})"


def at_least(what: str, value: float, goal: float, unit: str = "") -> bool:
    """Print a figure that should be large; whether it is."""
    return _said(Figure(what, value, "least", goal, unit))


def at_most(what: str, value: float, goal: float, unit: str = "") -> bool:
    """Print a figure that should be small; whether it is."""
    return _said(Figure(what, value, "most", goal, unit))


def compare(what: str, value: float, unit: str = "") -> None:
    """Print a figure that has no goal."""
    _said(Figure(what, value, unit=unit))


def read(line: str) -> Figure | None:
    """The figure in a printed line, if there is one."""
    if not (found := LINE.match(line)):
        return None
    what, value, unit = found["what"], float(found["value"]), found["unit"]
    return (
        Figure(what, value, found["side"], float(found["goal"]), unit)
        if found["goal"]
        else Figure(what, value, unit=unit)
    )


def _said(figure: Figure) -> bool:
    print(figure, flush=True)
    return figure.reached
