"""A figure beside its goal, said alike by every benchmark, so that `python benchmarks` can gather them."""

from __future__ import annotations

import re
from typing import NamedTuple

LINE = re.compile(r"^(?P<what>.+): (?P<value>[\d.]+)(?P<unit>.*?) \(goal: at (?P<side>least|most) (?P<goal>[\d.]+)\)$")


class Figure(NamedTuple):
    """What was measured, and what it should be."""

    what: str
    value: float
    side: str
    goal: float
    unit: str = ""

    @property
    def reached(self) -> bool:
        """Whether it is as good as it should be, as it is printed."""
        value = round(self.value, 2)
        return value >= self.goal if self.side == "least" else value <= self.goal

    def __str__(self) -> str:
        return f"{self.what}: {self.value:.2f}{self.unit} (goal: at {self.side} {self.goal:g})"


def at_least(what: str, value: float, goal: float, unit: str = "") -> bool:
    """Print a figure that should be large; whether it is."""
    return _said(Figure(what, value, "least", goal, unit))


def at_most(what: str, value: float, goal: float, unit: str = "") -> bool:
    """Print a figure that should be small; whether it is."""
    return _said(Figure(what, value, "most", goal, unit))


def read(line: str) -> Figure | None:
    """The figure in a printed line, if there is one."""
    if not (found := LINE.match(line)):
        return None
    return Figure(found["what"], float(found["value"]), found["side"], float(found["goal"]), found["unit"])


def _said(figure: Figure) -> bool:
    print(figure, flush=True)
    return figure.reached
