"""Verdicts for review: read from a file, or stored by a service in a folder with limits."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from threading import Lock
from typing import TypeVar

from looktwice import files
from looktwice.decisions.verdict import AnyVerdict, TagVerdict, Verdict
from looktwice.decisions.verdict_files import COLUMNS_OF, from_record, record
from looktwice.engine import Unscored
from looktwice.errors import DataError
from looktwice.files import ENDINGS

V = TypeVar("V", Verdict, TagVerdict, AnyVerdict)
_KNOWN = {**COLUMNS_OF["label"], **COLUMNS_OF["tags"]}
VERDICTS = "verdicts.jsonl"
"""The file of verdicts in the review folder of a service."""
READ_BYTES = 50_000_000
"""The largest file of verdicts that is checked for having selected other pictures."""
KINDS = {b"\xff\xd8": ".jpg", b"\x89PNG": ".png", b"RIFF": ".webp", b"GIF8": ".gif", b"BM": ".bmp"}
"""Magic bytes of common image files, to choose an extension."""


def read_any(path: Path) -> list[AnyVerdict]:
    """The verdicts in a file of `score` or in the review folder of a service, without unscored pictures."""
    place = path / VERDICTS if path.is_dir() else path
    try:
        read = (from_record(row) for row in _rows(place))
        return [verdict for verdict in read if not isinstance(verdict, Unscored)]
    except OSError as error:
        raise DataError(
            f"{str(place)!r} cannot be read ({error.strerror}); give a file that `score` wrote", code="file-unreadable"
        ) from None
    except (ValueError, KeyError, TypeError, csv.Error) as error:
        why = " ".join(str(error).split())[:100]
        raise DataError(
            f"{str(place)!r} holds no verdicts ({why}); give a file that `score` wrote", code="file-malformed"
        ) from None


def read(path: Path) -> list[Verdict]:
    """Read verdicts of one label; raises an error if they are of tags."""
    found = read_any(path)
    labels = [verdict for verdict in found if isinstance(verdict, Verdict)]
    if len(labels) < len(found):
        raise DataError(f"{str(path)!r} holds verdicts on tags; this is for those of one label", code="option-conflict")
    return labels


def doubtful(found: Iterable[V], costs: Mapping[str, float]) -> list[V]:
    """Sort the verdicts to review, by descending expected cost; without costs, by ascending confidence.

    If any verdict has a decision, only those for review or held are included; otherwise all.
    """
    kept = list(found)
    decided = any(verdict.decision for verdict in kept)
    wanted = [verdict for verdict in kept if verdict.held or verdict.decision == "review"] if decided else kept
    return sorted(wanted, key=lambda verdict: (-expected_cost(verdict, costs), verdict.name))


def selected_by(out: Path, profile: str, digests: Collection[str]) -> Path | None:
    """Find a file beside `out`, of another profile, whose unaccepted pictures are these; None if there is none.

    A guarantee holds for pictures like the labelled ones. Those that another profile did not accept are the doubtful
    ones.
    """
    for path in sorted(out.absolute().parent.glob("*")):
        if path.suffix not in ENDINGS or path.name == out.name or path.stat().st_size > READ_BYTES:
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
    """The expected cost of not correcting the verdict; `costs` has the cost of missing each label, by default 1.

    For tags, the costs of those for review are summed.

    If the verdict is wrong, the truth is assumed to be another returned label, in proportion to its votes.
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
            f"{str(path)!r} must end in {', '.join(ENDINGS)}, as `score` writes verdicts", code="file-ending"
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
        """`pictures` and `size`, in bytes, limit what the folder holds, including what is there already."""
        files.make_folder(folder)
        self._folder, self._verdicts = folder, folder / VERDICTS
        self._pictures, self._size = pictures, size
        self._lock, self._hold = Lock(), files.FileLock(self._verdicts)
        self._names = {verdict.name for verdict in read_any(folder)} if self._verdicts.exists() else set[str]()
        self._held = sum(entry.stat().st_size for entry in os.scandir(folder) if entry.is_file())

    def add(self, verdict: AnyVerdict, data: bytes) -> bool:
        """Store a picture and its verdict; False if it is there already or does not fit."""
        ending = next((ending for start, ending in KINDS.items() if data.startswith(start)), None)
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
