"""Labels on disk: a journal of every click, and the `labels.csv` derived from it.

Each click is appended to `labels.journal` as a line of JSON and synced before it is acknowledged; undo is another line,
no line is ever changed. `labels.csv` is replaced atomically after each click, so that `fit` can read it at any time.
A line truncated by a crash was never acknowledged, and is dropped.
"""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError, model_validator

from looktwice.model import FILE_COLUMNS, AnswerKind, DataError, files, read_header, read_truths, shown

COLUMNS: dict[AnswerKind, tuple[str, ...]] = {"label": ("file", "label", "not"), "tags": ("file", "tags")}
"""The columns of the table, by the kind of labels."""
JOURNAL = ".journal"
BEGINNING = b'{"at":"'
"""How a journal begins."""
BEHIND = 100
"""The number of events by which the table may lag behind the journal."""
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
            raise ValueError(f"{self.says!r} with {len(self.labels)} labels; give {least} to {most}")
        if not all(label.isprintable() for label in self.labels):
            raise ValueError("a label holds control characters; leave them out")
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


class Undo(BaseModel):
    """The undoing of a click."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Token
    window: Token
    undoes: Token
    """The id of the click."""


class _Line(BaseModel):
    """A line of the journal."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    at: str
    event: Click | Undo


class Labels:
    """The labels of a collection, shared by all windows of one process; a lock keeps other processes out."""

    def __init__(self, out: Path, kind: AnswerKind = "label") -> None:
        """`out` is the path of `labels.csv`; an existing file without a journal is imported."""
        files.check_writable(out, (".csv",))
        self.kind = kind
        self.out, self._journal = out, out.with_suffix(JOURNAL)
        self._lock = Lock()
        self._events: dict[str, Click | Undo] = {}
        """Every line of the journal, by its id."""
        self._hold = files.FileLock(out)
        began = self._journal.exists()
        try:
            self._file = files.open_own(self._journal, BEGINNING, buffering=0)
        except DataError:
            self._hold.release()
            raise
        try:
            self._read()
            if began:
                self._check_table()
            else:
                self._take_over()
            self._check_kind()
            files.write(out, table(self.known(), kind))
        except BaseException:
            self.close()
            if not began:
                self._journal.unlink()
            raise

    def known(self) -> dict[str, Click]:
        """The last click about each picture that was not undone; may be called while another thread saves a click."""
        return _standing(list(self._events.values()))

    def last(self, window: str) -> Click | None:
        """The window's last click that was not undone."""
        events = list(self._events.values())
        gone = {event.undoes for event in events if isinstance(event, Undo)}
        clicks = [event for event in events if isinstance(event, Click) and event.id not in gone]
        return next((click for click in reversed(clicks) if click.window == window), None)

    def add(self, click: Click) -> None:
        """Save a click to disk; a click with a known id is ignored, but a table that could not be written earlier is
        then written."""
        with self._lock:
            if click.id not in self._events:
                self._append(click)
            files.write(self.out, table(self.known(), self.kind))

    def undo(self, identity: str, window: str) -> str | None:
        """Undo the window's last click and return its picture; returns None if there is no click."""
        with self._lock:
            if identity not in self._events:
                click = self.last(window)
                if click is None:
                    return None
                self._append(Undo(id=identity, window=window, undoes=click.id))
            files.write(self.out, table(self.known(), self.kind))
            undo = self._events[identity]
            undone = self._events[undo.undoes] if isinstance(undo, Undo) else undo
            return undone.file if isinstance(undone, Click) else None

    def close(self) -> None:
        """Close the journal and release the lock."""
        self._file.close()
        self._hold.release()

    def _append(self, event: Click | Undo) -> None:
        line = _Line(at=datetime.now(UTC).isoformat(timespec="milliseconds"), event=event).model_dump_json() + "\n"
        end = self._file.seek(0, os.SEEK_END)
        try:
            self._file.write(line.encode())
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(end)
            what = f"{str(self._journal)!r} cannot be written ({error.strerror})"
            raise DataError(
                f"{what}; this click was not saved: free some space and click again", code="file-unwritable"
            ) from None
        self._events[event.id] = event

    def _read(self) -> None:
        self._file.seek(0)
        lines = self._file.read().splitlines(keepends=True)
        if lines and not lines[-1].endswith(b"\n"):
            self._file.truncate(sum(map(len, lines[:-1])))
            lines.pop()
        for number, line in enumerate(lines, 1):
            try:
                event = _Line.model_validate_json(line).event
                self._events[event.id] = event
            except ValidationError:
                what = f"{str(self._journal)!r}: line {number} was not written by looktwice"
                raise DataError(
                    f"{what}; repair it, or move the journal away to continue from {self.out.name}",
                    code="file-malformed",
                ) from None

    def _check_kind(self) -> None:
        """Raise an error for a table that would contain both labels and tags."""
        other: Says = "label" if self.kind == "tags" else "tags"
        if any(click.says == other for click in self.known().values()):
            raise DataError(
                f"{str(self.out)!r} holds {other}, but the classifier gives {self.kind}; specify another with --out",
                code="labels-unmatched",
            )

    def _check_table(self) -> None:
        """Raise an error if the table was edited; it may lag behind the journal after a crash or a failed write."""
        if not self.out.exists():
            return
        stored, events = self.out.read_text("utf-8", "replace"), list(self._events.values())
        earlier = (_standing(events[:end]) for end in range(len(events), max(-1, len(events) - 1 - BEHIND), -1))
        if stored not in (table(known, self.kind) for known in earlier):
            what = f"{str(self.out)!r} was edited outside `looktwice label`"
            raise DataError(
                f"{what}; move {self._journal.name} away to continue from the table as it is", code="file-malformed"
            )

    def _take_over(self) -> None:
        """Write the labels from an existing table to the journal, each as one click."""
        header = read_header(self.out) if self.out.exists() else []
        files_column = next((name for name in FILE_COLUMNS if name in header), None)
        if more := [name for name in header if name not in (files_column, *COLUMNS["label"], *COLUMNS["tags"])]:
            what = f"{str(self.out)!r} has columns that would be lost ({', '.join(map(shown, more))})"
            raise DataError(
                f"{what}; write the labels to another file with --out, or remove these columns", code="file-exists"
            )
        for number, (file, row) in enumerate(read_truths(self.out).items() if self.out.exists() else ()):
            says: Says = "label" if row.truth else "not" if row.excluded else "unsure"
            labels = (row.truth,) if row.truth else row.excluded
            if row.tags is not None:
                says, labels = "tags", row.tags
            click = Click(id=f"table-{number}", window="table", file=file, says=says, labels=labels)
            self._append(click)


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


def _standing(events: Sequence[Click | Undo]) -> dict[str, Click]:
    """The last click about each picture, ignoring clicks that were undone."""
    gone = {event.undoes for event in events if isinstance(event, Undo)}
    return {event.file: event for event in events if isinstance(event, Click) and event.id not in gone}
