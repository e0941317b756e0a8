"""The tables of docs/method.md about what the jury is worth, its sets and stops: `python -m experiments page`."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from pathlib import Path

Row = dict[str, str]
COLUMNS = {
    "baselines": {
        "model": "model",
        "method": "method",
        "queries": "queries",
        "accuracy": "accuracy",
        "ece": "ECE",
        "auroc": "AUROC",
        "base_auroc": "the same, base answer",
        "brier": "Brier",
        "nll": "NLL",
        "splits": "splits",
    },
    "spread": {
        "model": "model",
        "spread": "spread by",
        "brier": "Brier",
        "nll": "NLL",
        "coverage": "coverage",
        "listed": "by name",
        "labels": "labels",
        "classes": "classes",
        "splits": "splits",
    },
    "sets": {
        "model": "model",
        "sets": "sets",
        "coverage": "coverage",
        "least_bin": "least agreement bin",
        "listed": "by name",
        "labels": "labels",
        "classes": "classes",
        "splits": "splits",
    },
    "stopping": {
        "model": "model",
        "aim": "aim",
        "brier": "Brier, share of the panel's",
        "brier_high": "its 97.5 percentile",
        "queries": "queries, share of the panel's",
        "expected": "expected",
        "low": "from",
        "high": "to",
        "splits": "splits",
    },
    "guarantees": {
        "model": "model",
        "allowed": "error allowed",
        "made": "made",
        "above": "seen above it",
        "broken": "broken of those made",
        "seen": "error seen",
        "accepted": "accepted",
        "splits": "splits",
    },
}
"""The columns of each CSV that are shown, and their headings."""


def fill(page: Path, results: Path) -> None:
    """Put the tables that are there between their marks."""
    text = page.read_text("utf-8")
    for name, columns in COLUMNS.items():
        begin, end, path = f"<!-- {name} -->\n", f"<!-- /{name} -->", results / f"{name}.csv"
        if path.exists() and begin in text:
            with path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            before, rest = text.split(begin)
            table = [_cells(columns.values()), _cells("---" for _ in columns), *(_line(row, columns) for row in rows)]
            text = before + begin + "\n".join([*table, end]) + rest.split(end)[1]
    page.write_text(text, "utf-8")


def _line(row: Row, columns: dict[str, str]) -> str:
    return _cells(row[column] for column in columns)


def _cells(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"
