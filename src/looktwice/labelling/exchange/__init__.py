"""Labels and verdicts from and to other tools: Label Studio and Hugging Face datasets."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError

from looktwice import files
from looktwice.errors import DataError
from looktwice.labelling.labels import Click, Says, table
from looktwice.model import shown


def click(tool: str, file: str, says: Says, labels: tuple[str, ...]) -> Click:
    """A label from another tool, as a click."""
    try:
        return Click(id=tool, window=tool, file=file, says=says, labels=labels)
    except ValidationError as error:
        why = error.errors(include_input=False, include_url=False)[0]["msg"]
        raise DataError(f"the label of {shown(file)} from {tool} is invalid: {why}") from None


def write_labels(out: Path, known: Mapping[str, Click]) -> None:
    """Write labels to a new `labels.csv`; an existing file is never overwritten."""
    files.check_writable(out, (".csv",))
    if out.exists():
        raise DataError(f"{str(out)!r} exists already and may hold labels; name another file or move it away")
    files.write(out, table(known))
