"""Sentences of docs/results with figures of the CSVs; tools/charts.py draws the figures.

python -m experiments page
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from experiments import writing
from experiments.writing import Row


def guarantees_note(rows: list[Row]) -> str:
    """How many thresholds were made, and how many of these did not hold."""
    trials, made, above, broken = (
        sum(int(row[column]) for row in rows) for column in ("splits", "made", "above", "broken")
    )
    return (
        f"In {trials:,} trials, {made:,} thresholds were found, and {above} of these accepted more errors than "
        f"allowed; for {broken or 'none'} of them, sampling error does not explain the excess."
    )


NOTES: dict[str, tuple[str, Callable[[list[Row]], str]]] = {
    "guarantees": ("results/guarantees.md", guarantees_note),
}
"""By the name of a CSV: the page, and a sentence with its figures, which stands there between its marks."""


def fill(docs: Path, results: Path) -> None:
    """Put the sentences whose CSVs exist between their marks."""
    for name, (page, note) in NOTES.items():
        if (results / f"{name}.csv").exists():
            writing.fill(docs / page, f"{name}-note", note(writing.read(results / f"{name}.csv")))
