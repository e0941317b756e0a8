"""Votes files, `.npz` and Parquet, and votes from lists or arrays of labels."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from looktwice import files
from looktwice.calibration.evidence import MISSING, Codes, Evidence, RankedList, Row, require
from looktwice.calibration.votes import ENDINGS, Details, LabelledVotes, Labels, LabelTable, Votes, check_truths, few
from looktwice.errors import DataError, MissingExtra

ROWS = 256
"""The number of Parquet rows that are decompressed at once."""
MOST_BYTES = 2**29
"""The largest decompressed size of a votes file, enough for millions of pictures."""


def checked(path: str | Path) -> Path:
    """Validate the extension of a votes file."""
    if Path(path).suffix not in ENDINGS:
        raise DataError(
            f"{str(path)!r} does not end in {' or '.join(ENDINGS)}; the extension of a votes file specifies its format",
            code="file-ending",
        )
    return Path(path)


def save(path: Path, votes: Votes) -> None:
    """Write votes, with true labels if they have any, as .npz or .parquet according to the extension."""
    texts = {
        "names": votes.names,
        "digests": votes.digests,
        "panel": votes.panel,
        "vocabulary": votes.vocabulary,
        "truths": votes.words if isinstance(votes, LabelledVotes) else None,
        "excluded": votes.excluded if isinstance(votes, LabelledVotes) else (),
        "probabilities": votes.probabilities if isinstance(votes, LabelledVotes) else (),
        "classes": votes.classes,
        "unsayable": votes.unsayable,
    }
    with files.atomic(path) as part:
        if path.suffix == ".parquet":
            _save_parquet(part, votes, json.dumps(texts))
            return
        packed: NDArray[np.generic] = np.frombuffer(json.dumps(texts).encode(), np.uint8)
        with part.open("wb") as file:
            arrays: dict[str, NDArray[np.generic]] = {"base": votes.base, "views": votes.views, "texts": packed}
            if votes.evidence:
                arrays |= {"listed": votes.evidence.labels, "scores": votes.evidence.scores}
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def load(path: Path) -> Votes | LabelledVotes:
    """Load votes from a file written by `save`; the votes are labelled if the file contains true labels."""
    try:
        base, views, packed, evidence = _load_parquet(path) if path.suffix == ".parquet" else _load_npz(path)
        texts = json.loads(packed)
        votes = Votes(
            _strings(texts["names"]),
            _strings(texts["panel"]),
            _strings(texts["vocabulary"]),
            base,
            views,
            int(texts["classes"]),
            digests=_strings(texts.get("digests", [])),
            evidence=evidence,
            unsayable=tuple(tuple(map(int, codes)) for codes in texts.get("unsayable", [])),
        )
        truths = None if texts["truths"] is None else _strings(texts["truths"])
        excluded = [tuple(map(int, codes)) for codes in texts.get("excluded", [])]
        probabilities = [float(each) for each in texts.get("probabilities", [])]
    except (DataError, MissingExtra):
        raise
    except FileNotFoundError:
        raise DataError(f"there is no votes file {str(path)!r}", code="file-missing") from None
    except Exception as error:  # zipfile, zlib, numpy and Arrow raise many kinds
        why = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(
            f"{str(path)!r} is not a looktwice votes file: {why}; give arrays of labels to Votes.from_labels",
            code="file-malformed",
        ) from None
    if truths is not None and (len(truths) != len(votes) or len(excluded) not in (0, len(votes))):
        raise DataError(f"{str(path)!r} holds {len(truths)} truths for {len(votes)} pictures", code="file-malformed")
    return votes if truths is None else votes.labelled(truths, excluded, probabilities)


def _strings(values: list[str]) -> tuple[str, ...]:
    if not all(isinstance(value, str) for value in values):
        raise ValueError("a text is not a string")
    return tuple(values)


Loaded = tuple[Codes, Codes, bytes, Evidence | None]
"""Base, views, texts as JSON, and scores if there are any."""


def _load_npz(path: Path) -> Loaded:
    with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
        _check_unpacked(sum(entry.file_size for entry in file.zip.infolist()))
        scored = "listed" in file.files
        evidence = Evidence(file["listed"].astype(np.int32), file["scores"].astype(np.float32)) if scored else None
        return file["base"].astype(np.int32), file["views"].astype(np.int32), file["texts"].tobytes(), evidence


def _check_unpacked(size: int) -> None:
    if size > MOST_BYTES:
        raise ValueError(f"it would take {size:,} bytes, but at most {MOST_BYTES:,} are read")


def _save_parquet(path: Path, votes: Votes, texts: str) -> None:
    pa, pq = files.arrow()
    columns: dict[str, Iterable[object]] = {"name": votes.names}
    titles = ("base", *(f"{s} {view}" for s, view in enumerate(votes.panel)))
    for title, codes in zip(titles, votes.answers().T, strict=True):
        columns[title] = [None if c == MISSING else votes.vocabulary[c] for c in codes]
    for s, lists in enumerate(zip(*votes.lists(), strict=True)):
        columns[f"scores {s}"] = [[{"label": label, "score": score} for label, score in ranked] for ranked in lists]
    pq.write_table(pa.table(columns).replace_schema_metadata({"looktwice": texts}), path)


def _load_parquet(path: Path) -> Loaded:
    pa, pq = files.arrow()
    batches, size = [], 0
    with pq.ParquetFile(path) as file:
        packed = (file.schema_arrow.metadata or {})[b"looktwice"]
        if file.metadata.num_rows != len(json.loads(packed)["names"]):
            raise ValueError("it does not have exactly one row per name")
        for batch in file.iter_batches(ROWS):  # the size in its metadata may be wrong
            size += batch.nbytes
            _check_unpacked(size)
            batches.append(batch)
        table = pa.Table.from_batches(batches, file.schema_arrow)
    codes: dict[str, int] = {label: code for code, label in enumerate(json.loads(packed)["vocabulary"])}
    views = len(json.loads(packed)["panel"])
    columns = [column.to_pylist() for column in table.columns[1:]]
    scored = zip(*columns[views + 1 :], strict=True)
    lists = [[tuple((one["label"], one["score"]) for one in ranked) for ranked in row] for row in scored]
    coded = [
        np.array([MISSING if label is None else codes[label] for label in column], np.int32)
        for column in columns[: views + 1]
    ]
    return (
        coded[0],
        np.stack(coded[1:], axis=1) if views else np.empty((len(table), 0), np.int32),
        packed,
        Evidence.collect(lists, views + 1, codes) if lists else None,
    )


# Labels of other tools ------------------------------------------------------------------------------------------------

Objects = NDArray[np.object_]


def collect(base: Labels, views: LabelTable, vocabulary: Labels | None, details: Details) -> Votes:
    """Build votes without true labels; `Votes.from_labels` documents the arguments."""
    first, others, listed = _objects(base), _objects(views), _objects(() if vocabulary is None else vocabulary)
    require(
        (first.ndim, others.ndim, listed.ndim) == (1, 2, 1) and len(first) == len(others),
        f"base, views and vocabulary have shapes {first.shape}, {others.shape} and {listed.shape}; expected (n,), "
        "(n, S) and (K,); if a table V has the base in its first column, pass V[:, 0] and V[:, 1:]",
    )
    first, others, listed = _texts("base, views and vocabulary", first, others, listed)
    known, views_asked = _complete("vocabulary", listed), others.shape[1]
    require(len(set(known)) == len(known), "the vocabulary contains duplicates; list each label once")
    unknown = {*first, *others.flat} - {None, *known} if vocabulary is not None else set[str]()
    require(not unknown, f"the vocabulary ({few(known)}) does not contain the labels {few(unknown)}; add them")
    names = details.get("names", list(map(str, range(len(first)))))
    panel = details.get("panel", [f"view {s}" for s in range(1, views_asked + 1)])
    require(
        (len(names), len(panel)) == others.shape,
        f"names has length {len(names)} and panel has length {len(panel)}; expected {len(first)} (pictures) and "
        f"{views_asked} (views)",
    )
    columns = zip(names, first, others.tolist(), _ranked(np.column_stack([first, others]), details), strict=True)
    return Votes.collect([Row(name, label, tuple(row), lists=x) for name, label, row, x in columns], panel, known)


def labelled(votes: Votes, truths: Labels) -> LabelledVotes:
    """Add true labels to votes; labels that occur only as true labels are included in the class count."""
    column = _objects(truths)
    require(
        column.shape == (len(votes),),
        f"truths has shape {column.shape}; give one true label for each of {len(votes)} pictures",
    )
    labels = _complete("truths", *_texts("truths", column))
    check_truths(labels, votes.vocabulary)
    return replace(votes, classes=max(votes.classes, len({*votes.vocabulary, *labels}))).labelled(labels)


def _ranked(labels: Objects, details: Details) -> list[tuple[RankedList, ...]]:
    """The ranked lists of all answers (n, 1 + S): as given, or built from labels and scores; otherwise empty."""
    if "lists" in details:
        lists = details["lists"]
        require("scores" not in details, "scores and lists cannot be combined; lists already contain scores")
        require(
            len(lists) == len(labels) and all(len(row) == labels.shape[1] for row in lists),
            f"lists must have shape {labels.shape}; give one ranked list per answer, the base answer first",
        )
        return [tuple(tuple((str(label), score) for label, score in ranked) for ranked in row) for row in lists]
    if "scores" not in details:
        return [()] * len(labels)
    scores = np.asarray(details["scores"], np.float64)
    require(
        scores.shape == labels.shape,
        f"scores has shape {scores.shape}; expected {labels.shape}, one score per answer",
    )

    def single(label: str | None, score: float) -> RankedList:
        return () if label is None else ((label, None if np.isnan(score) else score),)

    return [tuple(map(single, *row)) for row in zip(labels.tolist(), scores.tolist(), strict=True)]


def _objects(labels: Labels | LabelTable) -> Objects:
    """Convert labels to Python strings and numbers, with None for masked entries."""
    try:
        return np.array(labels.tolist() if isinstance(labels, np.ma.MaskedArray) else labels, dtype=object)
    except ValueError:
        raise DataError(
            "rows of labels differ in length; use None for views that were not queried", code="votes-malformed"
        ) from None


def _texts(what: str, *arrays: Objects) -> list[Objects]:
    """Convert labels to strings, or None if missing; labels must be all strings or all integers."""
    kinds = {type(label) for array in arrays for label in array.flat} - {type(None)}
    numbers = all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds)
    require(
        numbers or all(issubclass(kind, str) for kind in kinds),
        f"{what} contain values of type {', '.join(sorted(kind.__name__ for kind in kinds))}; use only strings or only "
        "integers, and None for missing labels",
    )

    def text(label: object) -> str | None:
        return None if label in (None, "", -1) else str(label)

    return [np.array([text(label) for label in array.flat], object).reshape(array.shape) for array in arrays]


def _complete(what: str, texts: Objects) -> list[str]:
    """Convert an array to a list; raise an error if a label is missing."""
    missing = [place for place, text in enumerate(texts) if text is None]
    require(
        not missing,
        f"{what}: the label at position {missing and missing[0]} is missing; only views may contain None, '' or -1",
    )
    return list(texts)
