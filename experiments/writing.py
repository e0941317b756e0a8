"""Results as CSV files, figures as SVG, and tables between the marks of a document."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from looktwice.errors import DataError

Row = dict[str, str]


def write(path: Path, rows: Iterable[Row]) -> None:
    """Print rows as they come, below the names of their columns, and write them as a CSV."""
    written: list[Row] = []
    for row in rows:
        if not written:
            print(" ".join(row), flush=True)
        print(" ".join(row.values()), flush=True)
        written.append(row)
    _save(path, written)


def merge(path: Path, rows: Iterable[Mapping[str, object]], keys: Sequence[str]) -> None:
    """Write rows into a CSV, in the place of those with the same keys; all others stay. Sorted by the keys."""
    fresh = [cells(row) for row in rows]
    if not fresh:
        raise DataError(f"there are no rows for {path.name}; give more pictures")
    replaced = {tuple(row[key] for key in keys) for row in fresh}
    kept = [row for row in read(path) if tuple(row.get(key) for key in keys) not in replaced] if path.exists() else []
    if kept and list(kept[0]) != list(fresh[0]):
        raise DataError(f"{str(path)!r} has other columns than this version writes; move it away and run again")
    _save(path, sorted([*kept, *fresh], key=lambda row: [row[key] for key in keys]))


def cells(row: Mapping[str, object], precision: str = ".5g") -> Row:
    """A row as text: floats with a precision, None as nothing."""
    return {
        name: "" if value is None else format(value, precision) if isinstance(value, float) else str(value)
        for name, value in row.items()
    }


def read(path: Path) -> list[Row]:
    """The rows of a CSV; an error where it has not been made."""
    if not path.exists():
        raise DataError(f"{str(path)!r} is not there yet; run: python -m experiments {path.stem}")
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def save_svg(path: Path, svg: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(svg, "utf-8")


def markdown(heading: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (heading, ["---"] * len(heading), *rows))


def fill(page: Path, name: str, text: str) -> None:
    """Put text between the marks `<!-- name -->` and `<!-- /name -->` of a document."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    document = page.read_text("utf-8")
    if document.count(begin) != 1 or document.count(end) != 1:
        raise DataError(f"{str(page)!r} has no marks for {name}; write <!-- {name} --> and <!-- /{name} -->")
    before, rest = document.split(begin)
    page.write_text(f"{before}{begin}{text}\n{end}{rest.split(end)[1]}", "utf-8")


def _save(path: Path, rows: Sequence[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
