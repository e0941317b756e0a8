"""Results as CSV files, of which each run replaces the rows of its own models, and figures as SVG."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.paper.tables import Row
from looktwice.errors import DataError


def write(path: Path, rows: Iterable[Row], keys: Sequence[str] = ("dataset", "model")) -> None:
    """Put rows into a CSV; rows that are there for other models stay."""
    fresh = [{name: _cell(value) for name, value in row.items()} for row in rows]
    if not fresh:
        raise DataError(f"nothing was found for {path.name}; give more pictures")
    mine = {tuple(row[key] for key in keys) for row in fresh}
    kept = [row for row in read(path) if tuple(row.get(key, "") for key in keys) not in mine] if path.exists() else []
    if kept and list(kept[0]) != list(fresh[0]):
        raise DataError(f"{str(path)!r} has other columns than this version writes; move it away and run again")
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(fresh[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(sorted([*kept, *fresh], key=lambda row: [row[key] for key in keys]))


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV; an error where it has not been made."""
    if not path.exists():
        raise DataError(f"{str(path)!r} is not there yet; run: python -m experiments {path.stem}")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def picture(path: Path, svg: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg, "utf-8")


def _cell(value: object) -> str:
    return "" if value is None else f"{value:.5g}" if isinstance(value, float) else str(value)
