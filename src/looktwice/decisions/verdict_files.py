"""Verdict files: the file of a run, reading it for review, and a service's review folder.

The file grows during the run, remains usable after a crash at any moment, and is sorted at the end.

Finished verdicts are appended to `OUT.part`, one JSON line each, after a header that identifies profile and options.
Each line has the digest of the pixels, so that a changed picture is queried again. The result is written from this file
in the order of the pictures, so that the result has the same bytes with and without interruptions.
"""

from __future__ import annotations

import csv
import json
import os
import time
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import IO, Annotated, Any, TypeVar

from pydantic import Field, TypeAdapter

from looktwice import files
from looktwice.classifiers import AnswerKind
from looktwice.decisions.verdict import AnyVerdict, PictureVerdict, TagVerdict, Verdict
from looktwice.engine import Cause, Unscored
from looktwice.errors import DataError, LookTwiceError
from looktwice.images import Picture, Stamp, WorkingSize

JsonSchema = dict[str, Any]
FIRST = ("name", "label", "confidence", "low", "high", "yes", "review", "decision", "held")
"""The first columns of a table."""
KINDS: dict[str, files.Kind] = {"string": "text", "number": "number", "integer": "whole", "boolean": "flag"}


def _columns(schema: JsonSchema, definitions: JsonSchema) -> files.Columns:
    """The columns for the fields of a JSON schema."""

    def kind(value: JsonSchema) -> files.Kind | files.Columns:
        value = value.get("anyOf", [value])[0]
        if value["type"] != "array":
            return KINDS[value["type"]]
        record = definitions.get(value["items"].get("$ref", "").rpartition("/")[2])
        return "texts" if record is None else _columns(record, definitions)

    return {name: kind(value) for name, value in schema["properties"].items()}


def _of_kind(verdict: type[PictureVerdict]) -> files.Columns:
    schema = verdict.model_json_schema(mode="serialization")
    fields = _columns(schema, schema["$defs"])
    first = [name for name in FIRST if name in fields]
    return {name: fields[name] for name in (*first, *fields)} | dict.fromkeys(("cause", "message", "code"), "text")


COLUMNS = _of_kind(Verdict)
"""A column for each field of a verdict, and three columns for the cause of a missing verdict."""
COLUMNS_OF: dict[AnswerKind, files.Columns] = {"label": COLUMNS, "tags": _of_kind(TagVerdict)}
"""The columns by kind of verdict."""
BEGINNING = b"looktwice score "
"""The beginning of the header of a part file."""
SETTLED = 1.0
"""The number of seconds by which a file must be older than its stamp for the stamp to be reliable, since file times are
coarse."""
NOWHERE = -1
_VERDICT: TypeAdapter[AnyVerdict] = TypeAdapter(Annotated[AnyVerdict, Field(discriminator="kind")])


class ScoreFile:
    """The verdicts of one run: `done` reports whether one exists, `add` appends one, and `finish` writes the result.
    Only the file offset of each verdict is held in memory."""

    def __init__(
        self,
        out: Path,
        header: dict[str, object],
        pictures: Sequence[Picture],
        *,
        kind: AnswerKind = "label",
        size: WorkingSize | None = None,
    ) -> None:
        """`size` is the working size."""
        self._out, self._kind = out, kind
        self._hold = files.FileLock(out)
        self._part = out.with_name(out.name + ".part")
        self._header = BEGINNING + json.dumps(header, sort_keys=True).encode() + b"\n"
        self._pictures = pictures
        self._starts = array("q", [NOWHERE]) * len(pictures)
        """The offset of each picture's line in the part file."""
        self._provisional = set[int]()
        """The indices of pictures whose verdicts lack answers that the budget did not cover."""
        self._next = 0
        self._size = size
        self._stamps: dict[str, Stamp | None] = {}
        """The stamps of pictures that were read and have no verdict yet."""
        self.changed = set[int]()
        """The indices of pictures whose verdicts refer to different pixels than the current ones."""
        self._file = self._open()

    def done(self, place: int) -> bool:
        """Whether the picture at this index has a final verdict."""
        return self._starts[place] != NOWHERE and place not in self._provisional

    def left_behind(self) -> set[str]:
        """The names of pictures without a final verdict that an earlier run has queried: those before the last final
        verdict, and those whose verdicts lack answers. Such pictures needed more queries than the others."""
        last = max((place for place in range(len(self._pictures)) if self.done(place)), default=0)
        places = self._provisional.union(place for place in range(last) if not self.done(place))
        return {self._pictures[place].name for place in places}

    def missing(self) -> int:
        """The number of pictures without a final verdict."""
        return self._starts.count(NOWHERE) + len(self._provisional)

    def verdicts(self) -> Iterator[AnyVerdict | Unscored]:
        """The final verdicts so far, in the order of the pictures."""
        with suppress(OSError):
            self._file.flush()
        return (from_record(line) for place, line in enumerate(self._lines()) if self.done(place))

    def watched(self, pictures: Iterable[Picture]) -> Iterator[Picture]:
        """The pictures to ask about.

        Their stamps are taken before they are read, and kept until their verdicts arrive.
        """
        for picture in pictures:
            stamp = picture.stamp()
            settled = stamp and max(stamp[:2]) / 1e9 < time.time() - SETTLED
            self._stamps[picture.name] = stamp if settled else None
            yield picture

    def add(self, verdict: AnyVerdict) -> None:
        """Append a verdict."""
        # Verdicts come in the order of the pictures, so that the next place is nearly always the right one.
        ahead = chain(range(self._next, len(self._pictures)), range(self._next))
        place = next(place for place in ahead if self._pictures[place].name == verdict.name)
        stamp = self._stamps.pop(verdict.name, None)
        line = json.dumps({**record(verdict, self._kind), "stamp": stamp}) + "\n"
        with self._writing():
            start = self._file.tell()
            self._file.write(line.encode())
        self._starts[place], self._next = start, place + 1
        (self._provisional.add if verdict.stopped == "budget" else self._provisional.discard)(place)

    def finish(self, unscored: dict[str, Unscored]) -> None:
        """Write the result, with the cause of each missing verdict; the part file is removed if all are final."""
        if self._file.closed:  # the disk was full
            return
        try:
            with self._writing():
                self._file.flush()
            with files.atomic(self._out) as part:
                rows = (list(row.values()) for row in self._records(unscored))
                files.write_table(part, self._out.suffix, COLUMNS_OF[self._kind], rows)
            if not self.missing():
                self._part.unlink()
        finally:
            self.close()

    def close(self) -> None:
        """Close the part file and release the lock; the next run can resume."""
        with suppress(OSError):
            self._file.close()
        self._hold.release()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """Turn errors of writing, such as a full disk, into a one-line error; a rerun resumes."""
        try:
            yield
        except OSError as error:
            self.close()
            what = f"{str(self._out)!r} cannot be written ({error.strerror})"
            raise DataError(f"{what}; free some space and run the same command again", code="file-unwritable") from None

    def _open(self) -> IO[bytes]:
        try:
            file = files.open_own(self._part, BEGINNING)
        except DataError:
            self._hold.release()
            raise
        file.seek(0)
        if file.readline() == self._header:
            self._read(file)
        else:
            file.truncate(0)
            file.write(self._header)
        return file

    def _read(self, file: IO[bytes]) -> None:
        """Read valid lines about unchanged pictures.

        Truncated or damaged lines are ignored.
        """
        start = file.tell()
        places = {picture.name: place for place, picture in enumerate(self._pictures)}
        for line in file:
            if not line.endswith(b"\n"):
                file.truncate(start)
                break
            row = self._record(line)
            if (place := places.get(str(row.get("name")))) is not None:
                same = self._same(self._pictures[place], row)
                self._starts[place] = start if same else NOWHERE
                (self.changed.discard if same else self.changed.add)(place)
                provisional = same and row["stopped"] == "budget"
                (self._provisional.add if provisional else self._provisional.discard)(place)
            start += len(line)
        file.seek(0, os.SEEK_END)

    def _same(self, picture: Picture, record: dict[str, object]) -> bool:
        """Whether a verdict is about the current picture; pixels are compared if the stamp differs."""
        stamp = picture.stamp()
        if stamp and list(stamp) == record["stamp"]:
            return True
        try:
            return picture.image(self._size).digest == record["digest"]
        except LookTwiceError:
            return False

    def _records(self, unscored: dict[str, Unscored]) -> Iterator[dict[str, object]]:
        for picture, line in zip(self._pictures, self._lines(), strict=True):
            missed = Unscored(picture.name, Cause.STOPPED, "the run ended before this picture was reached")
            yield line or record(unscored.get(picture.name, missed), self._kind)

    def _lines(self) -> Iterator[dict[str, object]]:
        """The stored record of each picture; empty if it has none."""
        with self._part.open("rb") as file:
            for start in self._starts:
                file.seek(max(start, 0))
                line = {} if start == NOWHERE else json.loads(file.readline())
                yield {column: line[column] for column in COLUMNS_OF[self._kind] if line}

    def _record(self, line: bytes) -> dict[str, object]:
        """Parse a line; empty if `add` did not write it."""
        try:
            row = json.loads(line)
            return row if isinstance(row, dict) and tuple(row) == (*COLUMNS_OF[self._kind], "stamp") else {}
        except (ValueError, RecursionError):
            return {}


def record(verdict: AnyVerdict | Unscored, kind: AnswerKind = "label") -> dict[str, object]:
    """The table cells for a verdict of this kind, or for a picture without one."""
    fields = asdict(verdict) if isinstance(verdict, Unscored) else verdict.to_dict()
    return dict.fromkeys(COLUMNS_OF[kind]) | fields


def from_record(row: Mapping[str, object]) -> AnyVerdict | Unscored:
    """The verdict in a table row, or the reason why the picture has none: the inverse of `record`."""
    fields = {name: cell for name, cell in row.items() if cell is not None}
    if "cause" in fields:
        return Unscored(str(row["name"]), Cause(str(row["cause"])), str(row["message"]), str(row["code"]))
    return _VERDICT.validate_python(fields)


V = TypeVar("V", Verdict, TagVerdict, AnyVerdict)
_KNOWN = {**COLUMNS_OF["label"], **COLUMNS_OF["tags"]}
VERDICTS = "verdicts.jsonl"
"""The file of verdicts in the review folder of a service."""
READ_BYTES = 50_000_000
"""The size limit for verdict files that are searched for unaccepted pictures."""
MAGIC = {b"\xff\xd8": ".jpg", b"\x89PNG": ".png", b"RIFF": ".webp", b"GIF8": ".gif", b"BM": ".bmp"}
"""Magic bytes of common image files, to choose an extension."""


def read_any(path: Path) -> list[AnyVerdict]:
    """The verdicts in a file from `score` or in a service's review folder, without unscored pictures."""
    place = path / VERDICTS if path.is_dir() else path
    try:
        read = (from_record(row) for row in _rows(place))
        return [verdict for verdict in read if not isinstance(verdict, Unscored)]
    except OSError as error:
        raise DataError(
            f"{str(place)!r} cannot be read ({error.strerror}); give a file written by `score`", code="file-unreadable"
        ) from None
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        why = " ".join(str(error).split())[:100]
        raise DataError(
            f"{str(place)!r} holds no verdicts ({why}); give a file written by `score`", code="file-malformed"
        ) from None


def read(path: Path) -> list[Verdict]:
    """Read single-label verdicts; raises an error if they are about tags."""
    verdicts = read_any(path)
    labels = [verdict for verdict in verdicts if isinstance(verdict, Verdict)]
    if len(labels) < len(verdicts):
        raise DataError(
            f"{str(path)!r} holds verdicts on tags, but single-label verdicts are needed", code="option-conflict"
        )
    return labels


def doubtful(verdicts: Iterable[V], costs: Mapping[str, float]) -> list[V]:
    """Sort the verdicts to review, by descending expected cost; without costs, by ascending confidence.

    If any verdict has a decision, only verdicts that need review or are held are included; otherwise, all are included.
    """
    kept = list(verdicts)
    decided = any(verdict.decision for verdict in kept)
    wanted = [verdict for verdict in kept if verdict.held or verdict.decision == "review"] if decided else kept
    return sorted(wanted, key=lambda verdict: (-expected_cost(verdict, costs), verdict.name))


def selected_by(out: Path, profile: str, digests: Collection[str]) -> Path | None:
    """Find a file beside `out` in which another profile accepted none of these pictures and most need review.

    A guarantee holds for pictures like the labelled ones. Pictures that another profile did not accept are a selection
    of doubtful ones. Returns None if there is no such file.
    """
    for path in sorted(out.absolute().parent.glob("*")):
        if path.suffix not in files.ENDINGS or path.name == out.name or path.stat().st_size > READ_BYTES:
            continue
        try:
            others = [verdict for verdict in read_any(path) if verdict.profile not in ("", profile)]
        except DataError:
            continue
        left, accepted = ({v.digest for v in others if v.decision == kind} for kind in ("review", "accept"))
        if accepted and accepted.isdisjoint(digests) and 2 * len(left.intersection(digests)) > len(digests):
            return path
    return None


def returned_labels(verdict: AnyVerdict) -> tuple[str, ...]:
    """The distinct labels of the verdict, the classifier and the views; for tags, all, the most probable first."""
    if isinstance(verdict, TagVerdict):
        return tuple(tag.name for tag in verdict.tags)
    return tuple(dict.fromkeys((verdict.label, *(asked.label for asked in verdict.asked if asked.label))))


def expected_cost(verdict: AnyVerdict, costs: Mapping[str, float]) -> float:
    """The expected cost of not correcting the verdict; `costs` contains the cost of missing each label, by default 1.

    For tags, the costs of the tags that need review are summed.

    If the verdict is wrong, the true label is assumed to be another returned label, in proportion to its votes.
    """
    if isinstance(verdict, TagVerdict):
        unsure = [tag for tag in verdict.tags if tag.decision == "review"]
        return sum(min(tag.probability, 1.0 - tag.probability) * costs.get(tag.name, 1.0) for tag in unsure)
    others = Counter(asked.label for asked in verdict.asked if asked.label and asked.label != verdict.label)
    total = sum(count * costs.get(label, 1.0) for label, count in others.items())
    return (1.0 - verdict.confidence) * (total / others.total() if others else 1.0)


def _rows(path: Path) -> Iterator[Mapping[str, object]]:
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                yield {name: _parsed(name, cell) for name, cell in row.items()}
    elif path.suffix == ".jsonl":
        with path.open(encoding="utf-8") as file:
            yield from (json.loads(line) for line in file if line.endswith("\n"))  # the last may still be written
    elif path.suffix == ".parquet":
        _, pq = files.arrow()
        yield from pq.read_table(path).to_pylist()
    else:
        raise DataError(
            f"{str(path)!r} must end in {', '.join(files.ENDINGS)}, the formats in which `score` writes verdicts",
            code="file-ending",
        )


def _parsed(name: str, cell: str) -> object:
    kind = _KNOWN.get(name)
    if not cell or kind is None:
        return None
    if kind == "text":
        return files.from_cell(cell)
    return json.loads(cell) if kind == "texts" or isinstance(kind, Mapping) else cell


class ReviewFolder:
    """The folder where a service stores pictures to review, each once, up to its limits."""

    def __init__(self, folder: Path, pictures: int, size: int) -> None:
        """`pictures` and `size` (in bytes) limit the total content of the folder, including existing files."""
        files.make_folder(folder)
        self._folder, self._verdicts = folder, folder / VERDICTS
        self._pictures, self._size = pictures, size
        self._lock, self._hold = Lock(), files.FileLock(self._verdicts)
        self._names = {verdict.name for verdict in read_any(folder)} if self._verdicts.exists() else set[str]()
        self._held = sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())

    def add(self, verdict: AnyVerdict, data: bytes) -> bool:
        """Store a picture and its verdict; returns False if it is already stored or does not fit."""
        ending = next((ending for start, ending in MAGIC.items() if data.startswith(start)), None)
        ending = ending or (".heic" if data[4:8] == b"ftyp" else ".tif")
        name = f"{verdict.digest}{ending}"
        line = (json.dumps({**record(verdict, verdict.kind), "name": name}) + "\n").encode()
        with self._lock:
            full = len(self._names) >= self._pictures or self._held + len(data) + len(line) > self._size
            if full or name in self._names:
                return False
            with files.atomic(self._folder / name) as part:
                part.write_bytes(data)
            with self._verdicts.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            self._names.add(name)
            self._held += len(data) + len(line)
            return True

    def close(self) -> None:
        """Release the lock of the folder."""
        self._hold.release()
