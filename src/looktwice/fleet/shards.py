"""The result of a fleet: a folder of Parquet files, one a unit, each there whole or not at all.

A file is named after its unit, so a run that is started again sees what is done. What the verdicts are verdicts of is
kept beside them; a folder is never filled with those of two profiles.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO
from uuid import uuid4

from looktwice.asking.asker import Estimate
from looktwice.asking.outcome import Progress
from looktwice.errors import DataError
from looktwice.files import write_parquet
from looktwice.fleet.sources import filesystem
from looktwice.pictures.image import shown
from looktwice.verdicts.files import COLUMNS, rows
from looktwice.verdicts.stream import Observation

HEADER = "_looktwice.json"
NOTE = "looktwice"
KEPT = ("identity", "pictures", "unscored", "bad", "unfamiliar", "glances")
"""What is kept of a unit's summary beside its verdicts."""


@dataclass(frozen=True)
class Summary:
    """The result of one unit."""

    identity: str
    pictures: int = 0
    unscored: int = 0
    """Pictures without a verdict."""
    bad: int = 0
    """Those of them that cannot be read; asking again would not change that."""
    unfamiliar: int = 0
    """Pictures that are not like the labelled ones."""
    glances: tuple[Observation, ...] = ()
    """By which drift is seen."""
    before: bool = False
    """Whether an earlier run had done it."""
    error: str | None = None
    """Why it was not done."""
    stopped: bool = False
    """Whether it was not done because the run was stopped."""
    estimate: Estimate | None = None
    """What scoring it would ask, if that alone was wanted."""
    progress: Progress = field(default_factory=Progress)
    """What was asked for it by this run."""

    def text(self) -> str:
        """What a later run needs to know of a unit that is done, as JSON."""
        return json.dumps({name: getattr(self, name) for name in KEPT})

    @classmethod
    def read(cls, text: str) -> Summary:
        """The summary that `text` gave."""
        values = json.loads(text)
        kept = {name: values[name] for name in KEPT}
        return cls(**kept | {"glances": tuple(Observation(*each) for each in values["glances"])}, before=True)


class Shards:
    """The folder that a run fills, here or in a bucket."""

    def __init__(self, folder: str) -> None:
        self._files, self._folder = filesystem(folder.rstrip("/"))
        self._shown = shown(folder)

    def begin(self, header: dict[str, object]) -> None:
        """Make the folder, or go on in one with the same header."""
        text = json.dumps(header, sort_keys=True).encode()
        with self._writing():
            self._files.create_dir(self._folder, recursive=True)
            names = self._names()
            if not names:
                with self._whole(HEADER) as file:
                    file.write(text)
                return
        if HEADER not in names:
            raise DataError(f"{self._shown} holds other files; name another folder")
        with self._files.open_input_stream(f"{self._folder}/{HEADER}") as known:
            same = known.read() == text
        if not same:
            raise DataError(f"{self._shown} holds verdicts of another profile or other options; name another folder")

    def done(self, identity: str) -> Summary | None:
        """The result of a unit in an earlier run, unless asking again could change it."""
        import pyarrow.parquet as pq
        from pyarrow.fs import FileType

        path = f"{self._folder}/{shard_name(identity)}"
        if self._files.get_file_info(path).type != FileType.File:
            return None
        with self._files.open_input_file(path) as file:
            notes = pq.read_schema(file).metadata or {}
        summary = Summary.read(notes[NOTE.encode()].decode())
        return summary if summary.unscored == summary.bad else None

    def add(self, summary: Summary, records: Iterable[dict[str, object]]) -> None:
        """Write the verdicts of a unit."""
        with self._writing(), self._whole(shard_name(summary.identity)) as file:
            write_parquet(file, COLUMNS, rows(records), {NOTE: summary.text()})

    def finish(self, identities: set[str]) -> None:
        """Remove files that belong to no unit: of pictures that are no longer there, or unfinished."""
        kept = {HEADER, *map(shard_name, identities)}
        with self._writing():
            for name in self._names() - kept:
                self._files.delete_file(f"{self._folder}/{name}")

    def _names(self) -> set[str]:
        from pyarrow.fs import FileSelector, FileType

        found = self._files.get_file_info(FileSelector(self._folder, allow_not_found=True))
        return {each.base_name for each in found if each.type == FileType.File}

    @contextmanager
    def _whole(self, name: str) -> Iterator[IO[bytes]]:
        """A file that appears under its name when it is complete; readers pass over names that begin with a dot."""
        part = f"{self._folder}/.{name}.{uuid4().hex}"
        with self._files.open_output_stream(part) as file:
            yield file
        self._files.move(part, f"{self._folder}/{name}")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as fault:
            why = " ".join(str(fault).split())[:200]
            raise DataError(f"{self._shown} cannot be written ({why}); check its rights and the room on it") from None


def shard_name(identity: str) -> str:
    """The file of a unit."""
    return f"verdicts-{identity}.parquet"
