"""The tables of docs/method.md about baselines, sets and early stopping, and that of the README.

python -m experiments page
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from experiments import writing
from experiments.writing import Row

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
            if name in NOTES:
                writing.fill(page, f"{name}-note", NOTES[name](writing.read(path)))


# What the tables say -------------------------------------------------------------------------------------------------


def guarantees_note(rows: list[Row]) -> str:
    """How many thresholds were made, and how many of these did not hold."""
    trials, made, above, broken = (
        sum(int(row[column]) for row in rows) for column in ("splits", "made", "above", "broken")
    )
    return (
        f"In {trials:,} trials, {made:,} thresholds were made, and {above} of these let through more errors than "
        f"allowed; for {broken}, that is more than sampling error explains."
    )


def spread_note(rows: list[Row]) -> str:
    """What the log loss and the Brier score gain."""
    found = {(row["model"], row["spread"]): row for row in rows}

    def gain(figure: str, before: str, after: str, data: str = "") -> str:
        gains = [
            float(found[model, before][figure]) - float(found[model, after][figure])
            for model, spread in found
            if spread == before and model.endswith(data)
        ]
        low, high = (f"{value:.4f}".lstrip("0") for value in (min(gains), max(gains)))
        return low if low == high else f"{low} to {high}"

    even, few, many = "evenly", "labelled pictures", "all pictures"
    sets = ("CIFAR-10", "CIFAR-100", "photos")
    first, more = (
        [f"{gain('nll', *pair, f', {name}')} on {name}" for name in sets] for pair in ((even, few), (few, many))
    )
    return (
        f"The log loss falls by {first[0]}, {first[1]} and {first[2]}; if 600 to 2,000 unlabelled pictures are counted "
        f"too, by a further {more[0]}, {more[1]} and {more[2]}. "
        f"The Brier score falls by only {gain('brier', even, few)}."
    )


NOTES: dict[str, Callable[[list[Row]], str]] = {
    "guarantees": guarantees_note,
    "spread": spread_note,
}
"""Sentences with figures of a table, each between marks of its own below it."""


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
