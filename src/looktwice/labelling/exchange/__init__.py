"""Truths and verdicts to and from the tools in which people already label: Label Studio, FiftyOne, Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from pydantic import ValidationError

from looktwice import files
from looktwice.errors import DataError
from looktwice.labelling.labels import Click, Says, table
from looktwice.pictures.image import shown


class Judged(Protocol):
    """A verdict, as `Model.score` gives it or as a file has it."""

    @property
    def name(self) -> str: ...
    @property
    def label(self) -> str: ...
    @property
    def confidence(self) -> float: ...
    @property
    def decision(self) -> str | None: ...


def click(tool: str, file: str, says: Says, labels: tuple[str, ...]) -> Click:
    """What somebody said of a picture in another tool."""
    try:
        return Click(id=tool, window=tool, file=file, says=says, labels=labels)
    except ValidationError as error:
        why = error.errors(include_input=False, include_url=False)[0]["msg"]
        raise DataError(f"what {tool} says of {shown(file)} cannot be a label: {why}") from None


def write_labels(out: Path, known: Mapping[str, Click]) -> None:
    """Write what people said as a new `labels.csv`; one that is there already is never overwritten."""
    files.check_writable(out, (".csv",))
    if out.exists():
        raise DataError(f"{str(out)!r} is there already and may hold labels; name another file or move it away")
    files.write(out, table(known))
