"""The tables of docs/method.md about baselines, sets and early stopping, and that of the README.

python -m experiments page
"""

from __future__ import annotations

from pathlib import Path

from experiments import writing

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
    "stopping_frontier": {
        "model": "model",
        "views": "views at hand",
        "rule": "stops by",
        "brier": "Brier, share of the panel's",
        "queries": "queries, share of the panel's",
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
    """Put the tables whose CSVs exist between their marks."""
    for name, columns in COLUMNS.items():
        path = results / f"{name}.csv"
        if path.exists():
            rows = ([row[column] for column in columns] for row in writing.read(path))
            writing.fill(page, name, writing.markdown(list(columns.values()), rows))


SHOWN = {
    "vote counts, one temperature": "vote shares, temperature-scaled (nine queries)",
    "jury": "**looktwice** (nine queries)",
    "softmax, temperature": "*hidden:* softmax, temperature-scaled (one query)",
    "mean logits, temperature": "*hidden:* mean logits (the same nine queries)",
}
"""The methods of baselines.csv in the README, and their headings."""


def headline(readme: Path, results: Path) -> None:
    """Put the Brier scores of a few methods between the marks of the README."""
    found = {(row["model"], row["method"]): row for row in writing.read(results / "baselines.csv")}
    lines = []
    for title in dict.fromkeys(model for model, _ in found):
        model, data = title.split(", ")
        alone, ours = (
            f"{100 * float(found[title, name]['accuracy']):.1f} %" for name in ("softmax, temperature", "jury")
        )
        brier = {name: f"{float(found[title, name]['brier']):.3f}".lstrip("0") for name in SHOWN}
        cells = [f"**{value}**" if name == "jury" else value for name, value in brier.items()]
        lines.append([f"{data.replace('photos', 'ImageNet')}, {model}", f"{alone} → {ours}", *cells])
    heading = ["", "accuracy: classifier → looktwice", *SHOWN.values()]
    writing.fill(readme, "headline", writing.markdown(heading, lines))
