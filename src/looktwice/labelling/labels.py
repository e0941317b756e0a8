"""The labels that people give, saved in `labels.csv`.

The table is replaced atomically and synced before a click is acknowledged, so `fit` can read it at any time.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, StringConstraints, model_validator

from looktwice.model import FILE_COLUMNS, AnswerKind, DataError, files, read_header, read_truths, shown

COLUMNS: dict[AnswerKind, tuple[str, ...]] = {"label": ("file", "label", "not"), "tags": ("file", "tags")}
"""The columns of the table, by the kind of labels."""
Says = Literal["label", "tags", "not", "unsure", "skip"]
"""The kinds of clicks: the true label, the true tags, ruled-out labels, "can't tell", or skip (the picture is shown
again later)."""
LABELS = {"label": (1, 1), "tags": (0, 100), "not": (1, 100), "unsure": (0, 0), "skip": (0, 0)}
"""The minimum and maximum number of labels for each kind of click."""
Name = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Word = Annotated[str, StringConstraints(pattern=r"\S", max_length=200)]
"""A label, not stripped, since the classifier's labels may begin or end with a space."""
Token = Annotated[str, StringConstraints(pattern=r"^[0-9A-Za-z_-]{1,64}$")]


class Click(BaseModel):
    """A click in one window about one picture."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Token
    """An id chosen by the page, so that a repeated request is stored only once."""
    window: Token
    """The browser window in which the click was made."""
    file: Name
    says: Says
    labels: tuple[Word, ...] = ()

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        least, most = LABELS[self.says]
        if not least <= len(self.labels) <= most:
            raise ValueError(f"{self.says!r} must have {least} to {most} labels, not {len(self.labels)}")
        if not all(label.isprintable() for label in self.labels):
            raise ValueError("a label contains control characters; leave them out")
        return self

    @property
    def truth(self) -> str | None:
        """The true label, if given."""
        return self.labels[0] if self.says == "label" else None

    @property
    def excluded(self) -> tuple[str, ...]:
        """The ruled-out labels, if the true label was not given."""
        return self.labels if self.says == "not" else ()

    @property
    def settles(self) -> bool:
        """Whether the picture is finished; a skipped picture is shown again."""
        return self.says != "skip"


class Labels:
    """The labels of a collection, shared by all windows of one process; a lock keeps other processes out."""

    def __init__(self, out: Path, kind: AnswerKind = "label") -> None:
        """`out` is the path of `labels.csv`, which may exist."""
        files.check_writable(out, (".csv",))
        self.out, self.kind = out, kind
        self._hold, self._lock = files.FileLock(out), Lock()
        self._clicks: list[Click] = []
        """The clicks of this process that were not undone, replaced as a whole, since other threads may read it."""
        self._requests: dict[str, str] = {}
        """The picture of each click and undo, by its id, so that a repeated request changes nothing."""
        try:
            self._before = self._read()
            self._check_kind()
            self._text = out.read_text("utf-8", "replace") if out.exists() else ""
            self._save([])
        except BaseException:
            self.close()
            raise

    def known(self) -> dict[str, Click]:
        """The last click about each picture that was not undone; may be called while another thread saves a click."""
        return self._before | {click.file: click for click in self._clicks}

    def last(self, window: str) -> Click | None:
        """The window's last click that was not undone, since this process started."""
        return next((click for click in reversed(self._clicks) if click.window == window), None)

    def add(self, click: Click) -> None:
        """Save a click to disk; a click with a known id is ignored."""
        with self._lock:
            if click.id not in self._requests:
                self._save([*self._clicks, click])
                self._requests[click.id] = click.file

    def undo(self, identity: str, window: str) -> str | None:
        """Undo the window's last click and return its picture; returns None if there is no click."""
        with self._lock:
            if identity not in self._requests and (last := self.last(window)):
                self._save([click for click in self._clicks if click is not last])
                self._requests[identity] = last.file
            return self._requests.get(identity)

    def close(self) -> None:
        """Release the lock."""
        self._hold.release()

    def _save(self, clicks: list[Click]) -> None:
        """Write the table; raises an error if somebody else has changed it."""
        if self.out.exists() and self.out.read_text("utf-8", "replace") != self._text:
            raise DataError(
                f"{str(self.out)!r} was edited while the page was open; this click was not saved: close the page and "
                "run the command again, which reads the edited table",
                code="file-exists",
            )
        text = table(self._before | {click.file: click for click in clicks}, self.kind)
        files.write(self.out, text)
        self._text, self._clicks = text, clicks

    def _check_kind(self) -> None:
        """Raise an error if the table would contain both labels and tags."""
        other: Says = "label" if self.kind == "tags" else "tags"
        if any(click.says == other for click in self._before.values()):
            raise DataError(
                f"{str(self.out)!r} holds {other}, but the classifier gives {self.kind}; specify another file "
                "with --out",
                code="labels-unmatched",
            )

    def _read(self) -> dict[str, Click]:
        """Read an existing table, each row as a click."""
        header = read_header(self.out) if self.out.exists() else []
        if not header:
            return {}
        files_column = next((name for name in FILE_COLUMNS if name in header), None)
        if more := [name for name in header if name not in (files_column, *COLUMNS["label"], *COLUMNS["tags"])]:
            what = f"{str(self.out)!r} has columns that would be lost ({', '.join(map(shown, more))})"
            raise DataError(
                f"{what}; write the labels to another file with --out, or remove these columns", code="file-exists"
            )
        clicks = {}
        for file, row in read_truths(self.out).items():
            says: Says = "label" if row.truth else "not" if row.excluded else "unsure"
            labels = (row.truth,) if row.truth else row.excluded
            if row.tags is not None:
                says, labels = "tags", row.tags
            clicks[file] = Click(id="table", window="table", file=file, says=says, labels=labels)
        return clicks


def table(known: Mapping[str, Click], kind: AnswerKind = "label") -> str:
    """`labels.csv`: a row for each labelled picture, none for a skipped one.

    `label` is the true label. If it is unknown, `not` contains a label that was ruled out, one per row. Both are empty
    for a picture marked as "can't tell". `tags` contains all true tags; in a table of tags, a picture marked as "can't
    tell" has no row.
    """
    out = io.StringIO()
    writer, quoting = (
        csv.writer(out, lineterminator="\n", quoting=kind) for kind in (csv.QUOTE_MINIMAL, csv.QUOTE_ALL)
    )
    writer.writerow(COLUMNS[kind])
    for file, click in sorted(known.items()):
        if kind == "tags":
            if click.says == "tags":
                writer.writerow(map(files.to_cell, (file, files.join_tags(click.labels))))
            continue
        ruled_out = [(file, "", label) for label in click.excluded or ("",)] if click.settles else []
        for row in [(file, click.truth, "")] if click.truth else ruled_out:
            spaced = any(cell.startswith(" ") for cell in row)  # which readers drop unless it is quoted
            (quoting if spaced else writer).writerow(map(files.to_cell, row))
    return out.getvalue().encode("utf-8", "backslashreplace").decode()
