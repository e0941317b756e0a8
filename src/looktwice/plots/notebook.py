"""Notebook display of results: HTML tables, SVG figures, pandas data frames."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from looktwice.errors import MissingExtra

if TYPE_CHECKING:
    import pandas as pd


class Drawing(str):
    """A figure as SVG text, displayed by notebooks."""

    __slots__ = ()

    def _repr_svg_(self) -> str:
        return str(self)

    def save(self, path: str | Path) -> None:
        """Write the figure as an .svg file."""
        Path(path).write_text(self, "utf-8")


def table(title: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """An HTML table; every text in it is escaped."""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def frame(records: Iterable[Mapping[str, object]]) -> pd.DataFrame:
    """Convert records to a pandas data frame with one record per row."""
    try:
        import pandas as pd
    except ImportError:
        raise MissingExtra("frames", "pandas") from None
    return pd.DataFrame.from_records([dict(record) for record in records])
