"""A folder of verdicts, local or in a bucket: Parquet files, and a header that identifies profile and options."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO
from uuid import uuid4

from looktwice.errors import DataError, shown
from looktwice.model import AnyVerdict, Unscored, from_record
from looktwice.ray import SOURCE, filesystem

HEADER = "_looktwice.json"


class VerdictFolder:
    """The output folder of a run on Ray, from which another can resume."""

    def __init__(self, folder: str) -> None:
        self._files, self._folder = filesystem(folder.rstrip("/"))
        self.shown = shown(folder)

    def begin(self, header: dict[str, object]) -> None:
        """Create the folder, or resume one with the same header."""
        text = json.dumps(header, sort_keys=True).encode()
        with self._writing():
            self._files.create_dir(self._folder, recursive=True)
            names = self._names()
            if not names:
                with self._atomic(HEADER) as file:
                    file.write(text)
                return
        if HEADER not in names:
            raise DataError(f"{self.shown} holds other files; name another folder", code="file-exists")
        with self._files.open_input_stream(f"{self._folder}/{HEADER}") as known:
            same = known.read() == text
        if not same:
            raise DataError(
                f"{self.shown} holds verdicts of another profile or other options; name another folder",
                code="file-exists",
            )

    def done(self, sources: set[str], tidy: bool) -> set[str]:
        """The names of unchanged pictures with a final verdict.

        With `tidy`, all other rows and unfinished files of a killed run are removed.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        done = set[str]()
        for name in (name for name in self._names() if name.endswith(".parquet")):
            path = f"{self._folder}/{name}"
            try:
                table = pq.read_table(path, filesystem=self._files)
            except pa.ArrowInvalid:
                table = None
            columns = ("kind", SOURCE, "stopped")
            rows = zip(*(table[each].to_pylist() for each in columns), strict=True) if table else ()
            kept = [kind is not None and source in sources and stopped != "budget" for kind, source, stopped in rows]
            table = table.filter(pa.array(kept, pa.bool_())) if table else None
            if table:
                done.update(table["name"].to_pylist())
            if not tidy or (kept and all(kept)):
                continue
            with self._writing():
                if not table:
                    self._files.delete_file(path)
                    continue
                with self._atomic(name) as file:
                    pq.write_table(table, file)
        return done

    def verdicts(self) -> Iterator[AnyVerdict | Unscored]:
        """What the rows of all files say."""
        import pyarrow.parquet as pq

        for name in sorted(self._names()):
            if name.endswith(".parquet"):
                rows = pq.read_table(f"{self._folder}/{name}", filesystem=self._files).drop_columns(SOURCE).to_pylist()
                yield from map(from_record, rows)

    def _names(self) -> set[str]:
        from pyarrow.fs import FileSelector, FileType

        listing = self._files.get_file_info(FileSelector(self._folder, allow_not_found=True))
        return {each.base_name for each in listing if each.type == FileType.File}

    @contextmanager
    def _atomic(self, name: str) -> Iterator[IO[bytes]]:
        """Write a file atomically; readers skip names that begin with a dot."""
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
            raise DataError(
                f"{self.shown} cannot be written ({why}); check its rights and the free space", code="file-unwritable"
            ) from None
