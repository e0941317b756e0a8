"""Output files: checked before any query, locked by one run, written atomically.

Tables are CSV, JSON lines or Parquet, written row by row; the file's extension selects the format.
"""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import re
import shutil
import socket
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import datetime
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Literal
from uuid import uuid4

from looktwice.errors import DataError, MissingExtra, require_posix

if TYPE_CHECKING:
    import pyarrow as pa

NO_LINKS = getattr(os, "O_NOFOLLOW", 0)
HOLDER = b"looktwice in process "
"""The beginning of looktwice's lock files."""
LOCKED = (errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK)
"""The `errno` values for a lock held by another process."""


Kind = Literal["text", "texts", "whole", "number", "flag", "bytes"]
Columns = Mapping[str, "Kind | Columns"]
"""The columns of a table with their types, in order; nested columns are lists of records."""
Rows = Iterable[Sequence[object]]
UNKNOWN = "backslashreplace"
"""The error handler that escapes non-UTF-8 bytes in file names: ff becomes `\\udcff`, as in JSON."""
FORMULA = re.compile(r"'*[=+\-@\t\r\n＝＋－＠]")
"""Matches cells that a spreadsheet would run as a formula, including cells to which `to_cell` has added a quotation
mark."""
NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
BLOCK = 10_000
"""Rows per write to a Parquet file."""


def check_writable(path: Path, kinds: Sequence[str] = ()) -> None:
    """Raise an error, before any query is paid for, if a result cannot be written.

    `kinds` lists the allowed extensions; every extension is allowed by default.
    """
    if kinds and path.suffix not in kinds:
        raise DataError(
            f"{str(path)!r} must end in {', '.join(kinds)}: the extension selects the format", code="file-ending"
        )
    if kinds and path.suffix == ".parquet":
        arrow()
    if path.is_dir():
        raise DataError(f"{str(path)!r} is a folder; specify a file in it", code="file-unwritable")
    if path.exists() and not path.is_file():  # devices and pipes are written directly
        return
    _spare_databases(path)
    folder = (Path(os.path.realpath(path)) if path.is_symlink() else path).parent
    if not folder.is_dir():
        raise DataError(
            f"{str(path)!r} cannot be written: there is no folder {str(folder)!r}; create it first",
            code="file-unwritable",
        )
    try:
        if path.exists():
            path.open("ab").close()
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise DataError(
            f"{str(path)!r} cannot be written ({error.strerror}); change its permissions or specify another file",
            code="file-unwritable",
        ) from None


def data_folder() -> Path:
    """The folder for this user's data: the one in XDG_DATA_HOME, or the system's default."""
    home = Path.home()
    if sys.platform == "darwin":
        folder = home / "Library" / "Application Support"
    else:
        stated = Path(os.environ.get("XDG_DATA_HOME", ""))
        folder = stated if stated.is_absolute() else home / ".local" / "share"
    return folder / "looktwice"


def make_folder(path: Path) -> None:
    """Create a folder for results, if missing."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"the folder {str(path)!r} cannot be created ({error.strerror}); specify another location",
            code="file-unwritable",
        ) from None


def arrow() -> tuple[ModuleType, ModuleType]:
    """Import pyarrow and its Parquet module; raises MissingExtra if pyarrow is not installed."""
    try:
        import pyarrow as pa
        import pyarrow.parquet as pq
    except ImportError:
        raise MissingExtra("Parquet files", "parquet") from None
    return pa, pq


def _spare_databases(path: Path) -> None:
    """Raise an error if the file is a ledger or any other SQLite database, so that it is not replaced.

    The file is checked through SQLite: opening and closing it directly would release this process's locks.
    """
    with suppress(sqlite3.Error), closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
        if db.execute("PRAGMA page_count").fetchone()[0]:
            raise DataError(
                f"{str(path)!r} is a ledger or another database, which is not replaced; specify another file",
                code="file-exists",
            )


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """Context manager: yields a temporary path; on success, the file at this path replaces the target."""
    if path.exists() and not path.is_file():  # a pipe has no real path
        try:
            yield path
        except OSError as error:
            raise _unwritten(path, error) from None
        return
    place = Path(os.path.realpath(path))
    _spare_databases(place)
    part = place.with_name(f".{place.name[:40]}.{uuid4().hex[:12]}.part")
    try:
        yield part
        with part.open("rb+") as file:
            os.fsync(file.fileno())
        if place.exists():
            shutil.copymode(place, part)
        os.replace(part, place)
    except OSError as error:
        raise _unwritten(path, error) from None
    finally:
        with suppress(OSError):
            part.unlink()


def _unwritten(path: Path, error: OSError) -> DataError:
    why = error.strerror or " ".join(str(error).split())
    what = f"{str(path)!r} could not be written ({why})"
    return DataError(
        f"{what}; specify another location, or free some space and run the same command again", code="file-unwritable"
    )


def write(path: Path, text: str) -> None:
    """Write text atomically as UTF-8; surrogates, which file names may contain, are escaped."""
    with atomic(path) as part:
        part.write_text(text, "utf-8", "backslashreplace")


def open_own(path: Path, beginning: bytes, buffering: int = -1) -> IO[bytes]:
    """Open or create a file beside a result for reading and appending.

    Files made by looktwice start with `beginning`; an empty file, or a file with only a prefix of `beginning`, is also
    accepted. Raises a DataError for files made by other programs.
    """
    try:
        file = open(path, "a+b", buffering, opener=lambda name, flags: os.open(name, flags | NO_LINKS, 0o666))  # noqa: SIM115
        file.seek(0)
    except OSError as error:
        why = "it is a link" if path.is_symlink() else error.strerror
        raise DataError(
            f"{str(path)!r} cannot be written ({why}); move it, or specify another file", code="file-unwritable"
        ) from None
    if beginning.startswith(file.read(len(beginning))):
        return file
    file.close()
    raise DataError(
        f"{str(path)!r} was not made by looktwice and is not overwritten; move it, or specify another file",
        code="file-exists",
    )


class FileLock:
    """A lock that prevents other runs from writing the same file.

    It works on this machine, and across shared file systems that support locks. The lock is released when the process
    ends; `OUT.lock` only records which process holds it.
    """

    def __init__(self, path: Path) -> None:
        require_posix("writing a file that other runs may also write")
        self._place = path.with_name(path.name + ".lock")
        try:
            while not self._take():
                self._file.close()  # the previous run has removed the file that was opened here
        except OSError as error:
            if error.errno not in LOCKED:
                raise DataError(
                    f"{str(path)!r} cannot be locked ({error.strerror}); write to a local disk", code="file-locked"
                ) from None
            with self._file as file:
                holder = file.read(200).decode("utf-8", "replace") or "which has just started"
            raise DataError(
                f"{str(path)!r} is being written by another run, {holder}; wait for it to end, or specify another file",
                code="file-locked",
            ) from None
        self._file.truncate(0)
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        self._file.write(HOLDER + f"{os.getpid()} on {socket.gethostname()} since {since}".encode())
        self._file.flush()

    def release(self) -> None:
        """Release the lock."""
        if not self._file.closed:
            with suppress(OSError):
                self._place.unlink()
            self._file.close()

    def _take(self) -> bool:
        """Lock the file; returns whether the path still refers to it."""
        import fcntl

        self._file = open_own(self._place, HOLDER)
        self._file.seek(0)
        fcntl.flock(self._file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        with suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._file.fileno()), os.stat(self._place))
        return False


# Tables ---------------------------------------------------------------------------------------------------------------


def write_table(path: Path, ending: str, columns: Columns, rows: Rows) -> int:
    """Write a table in the format that `ending` specifies (.csv, .jsonl or .parquet); returns the number of rows."""
    written = 0

    def counted() -> Rows:
        nonlocal written
        for row in rows:
            written += 1
            yield row

    WRITERS[ending](path, columns, counted())
    return written


def _write_parquet(path: Path, columns: Columns, rows: Rows) -> None:
    _, pq = arrow()
    left = iter(rows)
    with pq.ParquetWriter(path, arrow_table(columns, ()).schema) as writer:
        while block := list(islice(left, BLOCK)):
            writer.write_table(arrow_table(columns, block))


def arrow_table(columns: Columns, rows: Rows) -> pa.Table:
    """Convert rows to a pyarrow table with a fixed schema."""
    pa, _ = arrow()
    cells = list(zip(*rows, strict=True)) or [()] * len(columns)
    arrays = [
        pa.array(map(_in_utf8, column), _arrow_type(kind)) for column, kind in zip(cells, columns.values(), strict=True)
    ]
    return pa.table(arrays, list(columns))


def _arrow_type(kind: Kind | Columns) -> pa.DataType:
    pa, _ = arrow()
    if isinstance(kind, Mapping):
        return pa.list_(pa.struct([(name, _arrow_type(part)) for name, part in kind.items()]))
    types = {"text": pa.string(), "texts": pa.list_(pa.string()), "whole": pa.int64(), "number": pa.float64()}
    return (types | {"flag": pa.bool_(), "bytes": pa.binary()})[kind]


def _write_csv(path: Path, columns: Columns, rows: Rows) -> None:
    with path.open("w", newline="", encoding="utf-8", errors=UNKNOWN) as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(columns)
        for row in rows:
            cells = [json.dumps(cell, ensure_ascii=False) if isinstance(cell, list | tuple) else cell for cell in row]
            writer.writerow([to_cell(cell) if isinstance(cell, str) else cell for cell in cells])


def to_cell(text: str) -> str:
    """Escape a CSV cell: text that a spreadsheet would run as a formula is prefixed with a quotation mark.

    >>> [to_cell(text) for text in ("=1+1", "-1", "cat", "'=1+1")]
    ["'=1+1", '-1', 'cat', "''=1+1"]
    """
    return f"'{text}" if FORMULA.match(text) and not NUMBER.fullmatch(text) else text


def from_cell(cell: str) -> str:
    """Unescape a CSV cell: the inverse of `to_cell`."""
    return cell[1:] if cell.startswith("'") and FORMULA.match(cell) else cell


def join_tags(tags: Iterable[str]) -> str:
    """Join tags with semicolons; tags that contain a semicolon are quoted.

    >>> join_tags(["cat", "dog"]), join_tags(["black; white"])
    ('cat;dog', '"black; white"')
    """
    text = io.StringIO()
    csv.writer(text, delimiter=";", lineterminator="").writerow(tags)
    return text.getvalue()


def split_tags(text: str) -> tuple[str, ...]:
    """Split tags, removing duplicates and surrounding spaces; raises a DataError for unbalanced quotes.

    >>> split_tags("cat; dog;cat"), split_tags('"black; white"'), split_tags("")
    (('cat', 'dog'), ('black; white',), ())
    """
    try:
        tags = next(csv.reader([text], delimiter=";", skipinitialspace=True, strict=True), [])
    except csv.Error as error:
        problem = f"the tags {text[:60]!r} cannot be separated ({error})"
        raise DataError(
            f'{problem}; write cat;dog, and put a tag that contains ; or " in double quotes', code="file-malformed"
        ) from None
    return tuple(dict.fromkeys(filter(None, map(str.strip, tags))))


def _write_jsonl(path: Path, columns: Columns, rows: Rows) -> None:
    with path.open("w", encoding="utf-8", errors=UNKNOWN) as file:
        for row in rows:
            file.write(json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) + "\n")


def _in_utf8(value: object) -> object:
    if isinstance(value, str) and not value.isascii():
        return value.encode("utf-8", UNKNOWN).decode()
    return value


WRITERS: dict[str, Callable[[Path, Columns, Rows], None]] = {
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
    ".parquet": _write_parquet,
}
ENDINGS = tuple(WRITERS)
"""The supported file extensions of tables."""
