"""Verdicts that a person is to look at: read from a file of verdicts, and kept by a service in a folder with limits."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from looktwice import files
from looktwice.errors import DataError
from looktwice.files import ENDINGS
from looktwice.verdicts.files import record
from looktwice.verdicts.look import Verdict

VERDICTS = "verdicts.jsonl"
"""The verdicts of a folder that a service filled."""
KINDS = {b"\xff\xd8": ".jpg", b"\x89PNG": ".png", b"RIFF": ".webp", b"GIF8": ".gif", b"BM": ".bmp"}
"""How files of pictures begin; others are HEIC or TIFF."""


@dataclass(frozen=True)
class Doubt:
    """A verdict as a file has it."""

    name: str
    label: str
    confidence: float
    base: str
    votes: tuple[str, ...]
    """The labels of the views that were asked."""
    decision: str | None

    def named(self) -> tuple[str, ...]:
        """Every label that the verdict, the classifier or a view said."""
        return tuple(dict.fromkeys((self.label, self.base, *self.votes)))

    def value(self, costs: Mapping[str, float]) -> float:
        """The expected cost of leaving the verdict as it is, if missing a label costs so much, by default 1.

        If it is wrong, the truth is each of the other labels that were named as often as they were.
        """
        others = Counter(label for label in (self.base, *self.votes) if label != self.label)
        total = sum(count * costs.get(label, 1.0) for label, count in others.items())
        return (1.0 - self.confidence) * (total / others.total() if others else 1.0)


def read(path: Path) -> list[Doubt]:
    """The verdicts that `score` wrote into a file, or a service into a folder; pictures without one are left out."""
    place = path / VERDICTS if path.is_dir() else path
    try:
        return [_doubt(row) for row in _rows(place) if row["label"]]
    except OSError as error:
        raise DataError(f"{str(place)!r} cannot be read ({error.strerror}); name the verdicts of `score`") from None
    except (ValueError, KeyError, TypeError) as error:
        why = " ".join(str(error).split())[:100]
        raise DataError(f"{str(place)!r} holds no verdicts ({why}); name a file that `score` wrote") from None


def doubtful(found: Iterable[Doubt], costs: Mapping[str, float]) -> list[Doubt]:
    """The verdicts to look at, those first whose mistakes would cost most: without costs, the least confident.

    Where the file says what to review, only these; otherwise all.
    """
    kept = list(found)
    uncertain = [doubt for doubt in kept if doubt.decision == "review"]
    wanted = uncertain if any(doubt.decision for doubt in kept) else kept
    return sorted(wanted, key=lambda doubt: (-doubt.value(costs), doubt.name))


def _rows(path: Path) -> Iterator[Mapping[str, object]]:
    if path.suffix == ".csv":
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                texts = {column: files.from_cell(row[column] or "") for column in ("name", "label", "base")}
                yield {**row, **texts, "votes": json.loads(row["votes"] or "[]")}
    elif path.suffix == ".jsonl":
        with path.open(encoding="utf-8") as file:
            yield from (json.loads(line) for line in file if line.endswith("\n"))  # the last may still be written
    elif path.suffix == ".parquet":
        _, pq = files.arrow()
        yield from pq.read_table(path).to_pylist()
    else:
        raise DataError(f"{str(path)!r} must end in {', '.join(ENDINGS)}, as `score` writes verdicts")


def _doubt(row: Mapping[str, object]) -> Doubt:
    votes = row["votes"]
    if not isinstance(votes, list):
        raise TypeError("votes are no list")
    labels = tuple(str(label) for label in votes if label)
    decision = str(row["decision"]) if row["decision"] else None
    confidence = float(str(row["confidence"]))
    return Doubt(str(row["name"]), str(row["label"]), confidence, str(row["base"]), labels, decision)


class ReviewFolder:
    """A folder that a service fills with the pictures to review: each once, and never more than it may hold."""

    def __init__(self, folder: Path, pictures: int, size: int) -> None:
        """`pictures` and `size`, in bytes, are what the folder may hold, with what is there already."""
        files.make_folder(folder)
        self._folder, self._verdicts = folder, folder / VERDICTS
        self._pictures, self._size = pictures, size
        self._lock, self._hold = Lock(), files.FileLock(self._verdicts)
        self._names = {doubt.name for doubt in read(folder)} if self._verdicts.exists() else set[str]()
        self._held = sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())

    def add(self, verdict: Verdict, data: bytes) -> bool:
        """Keep a picture, the bytes of its file, and its verdict; False where it is there already or does not fit."""
        ending = next((ending for start, ending in KINDS.items() if data.startswith(start)), None)
        ending = ending or (".heic" if data[4:8] == b"ftyp" else ".tif")
        name = f"{verdict.digest}{ending}"
        line = (json.dumps({**record(verdict), "name": name}) + "\n").encode()
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
        """Let another service fill the folder."""
        self._hold.release()
