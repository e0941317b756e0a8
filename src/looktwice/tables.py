"""Tables as CSV, JSON lines or Parquet, written row by row: the ending of the file chooses the format."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import IO, Literal

from looktwice import files

Kind = Literal["text", "texts", "whole", "number"]
Columns = Mapping[str, Kind]
"""The name of each column and what it holds, in their order."""
Rows = Iterable[Sequence[object]]
UNKNOWN = "backslashreplace"
"""What stands for bytes in the name of a file that are not UTF-8: `\\udcff` for ff, as in JSON."""
BLOCK = 10_000
"""Rows that are written to a Parquet file at a time."""


def write(path: Path, ending: str, columns: Columns, rows: Rows) -> int:
    """Write a table as `ending` says (.csv, .jsonl or .parquet), and say how many rows it has."""
    return WRITERS[ending](path, columns, rows)


def write_parquet(file: Path | IO[bytes], columns: Columns, rows: Rows, notes: Mapping[str, str] | None = None) -> int:
    """Write a table as Parquet, with notes in the file's own metadata, and say how many rows it has."""
    pa, pq = files.arrow()
    types = {"text": pa.string(), "texts": pa.list_(pa.string()), "whole": pa.int64(), "number": pa.float64()}
    schema = pa.schema([(name, types[kind]) for name, kind in columns.items()], notes)
    count, left = 0, iter(rows)
    with pq.ParquetWriter(file, schema) as writer:
        while block := list(islice(left, BLOCK)):
            arrays = [
                pa.array(map(_in_utf8, column), kind)
                for column, kind in zip(zip(*block, strict=True), schema.types, strict=True)
            ]
            writer.write_batch(pa.record_batch(arrays, schema=schema))
            count += len(block)
    return count


def _write_csv(path: Path, columns: Columns, rows: Rows) -> int:
    count = 0
    with path.open("w", newline="", encoding="utf-8", errors=UNKNOWN) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for count, row in enumerate(rows, 1):  # noqa: B007
            writer.writerow(
                [json.dumps(value, ensure_ascii=False) if isinstance(value, list) else value for value in row]
            )
    return count


def _write_jsonl(path: Path, columns: Columns, rows: Rows) -> int:
    count = 0
    with path.open("w", encoding="utf-8", errors=UNKNOWN) as file:
        for count, row in enumerate(rows, 1):  # noqa: B007
            file.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n")
    return count


def _in_utf8(value: object) -> object:
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", UNKNOWN).decode()
    return value


WRITERS: dict[str, Callable[[Path, Columns, Rows], int]] = {
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
    ".parquet": write_parquet,
}
ENDINGS = tuple(WRITERS)
"""The endings that choose a format."""
