"""Verdicts for people to review: read from a file, or stored by a service in a folder with limits."""

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
from looktwice.decisions.judging import Verdict
from looktwice.decisions.verdict_files import record
from looktwice.errors import DataError
from looktwice.files import ENDINGS

VERDICTS = "verdicts.jsonl"
"""The file of verdicts in the review folder of a service."""
KINDS = {b"\xff\xd8": ".jpg", b"\x89PNG": ".png", b"RIFF": ".webp", b"GIF8": ".gif", b"BM": ".bmp"}
"""Magic bytes of image files; others are HEIC or TIFF."""


@dataclass(frozen=True)
class StoredVerdict:
    """A verdict read from a file."""

    name: str
    label: str
    confidence: float
    base: str
    votes: tuple[str, ...]
    """The labels of the queried views."""
    decision: str | None

    def named(self) -> tuple[str, ...]:
        """The labels of the verdict, the classifier and the views, each once."""
        return tuple(dict.fromkeys((self.label, self.base, *self.votes)))

    def value(self, costs: Mapping[str, float]) -> float:
        """The expected cost of leaving the verdict as it is; `costs` has the cost of missing each label, by default 1.

        If the verdict is wrong, the truth is assumed to be another returned label, in proportion to its votes.
        """
        others = Counter(label for label in (self.base, *self.votes) if label != self.label)
        total = sum(count * costs.get(label, 1.0) for label, count in others.items())
        return (1.0 - self.confidence) * (total / others.total() if others else 1.0)


def read(path: Path) -> list[StoredVerdict]:
    """The verdicts in a file of `score` or in the review folder of a service, without unscored pictures."""
    place = path / VERDICTS if path.is_dir() else path
    try:
        return [_verdict(row) for row in _rows(place) if row["label"]]
    except OSError as error:
        raise DataError(f"{str(place)!r} cannot be read ({error.strerror}); give a file that `score` wrote") from None
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        why = " ".join(str(error).split())[:100]
        raise DataError(f"{str(place)!r} holds no verdicts ({why}); give a file that `score` wrote") from None


def doubtful(found: Iterable[StoredVerdict], costs: Mapping[str, float]) -> list[StoredVerdict]:
    """The verdicts to review, the highest expected cost first; without costs, the least confident.

    If any verdict has a decision, only those with "review"; otherwise all.
    """
    kept = list(found)
    decided = any(verdict.decision for verdict in kept)
    wanted = [verdict for verdict in kept if verdict.decision == "review"] if decided else kept
    return sorted(wanted, key=lambda verdict: (-verdict.value(costs), verdict.name))


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


def _verdict(row: Mapping[str, object]) -> StoredVerdict:
    votes = row["votes"]
    if not isinstance(votes, list):
        raise TypeError("votes are no list")
    labels = tuple(str(label) for label in votes if label)
    decision = str(row["decision"]) if row["decision"] else None
    confidence = float(str(row["confidence"]))
    return StoredVerdict(str(row["name"]), str(row["label"]), confidence, str(row["base"]), labels, decision)


class ReviewFolder:
    """The folder where a service stores pictures to review, each once, up to its limits."""

    def __init__(self, folder: Path, pictures: int, size: int) -> None:
        """`pictures` and `size`, in bytes, limit what the folder holds, including what is there already."""
        files.make_folder(folder)
        self._folder, self._verdicts = folder, folder / VERDICTS
        self._pictures, self._size = pictures, size
        self._lock, self._hold = Lock(), files.FileLock(self._verdicts)
        self._names = {verdict.name for verdict in read(folder)} if self._verdicts.exists() else set[str]()
        self._held = sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())

    def add(self, verdict: Verdict, data: bytes) -> bool:
        """Store a picture and its verdict; False if it is there already or does not fit."""
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
        """Release the lock of the folder."""
        self._hold.release()
