"""Convert lists or arrays of labels from other tools to votes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration.votes import (
    Details,
    LabelledVotes,
    Labels,
    LabelTable,
    RankedList,
    Row,
    Votes,
    check_truths,
    few,
)
from looktwice.errors import DataError

Objects = NDArray[np.object_]


def collect(base: Labels, views: LabelTable, vocabulary: Labels | None, details: Details) -> Votes:
    """Build votes without truths; `Votes.from_labels` documents the arguments."""
    first, others, listed = _objects(base), _objects(views), _objects(() if vocabulary is None else vocabulary)
    if first.ndim != 1 or others.ndim != 2 or len(first) != len(others) or listed.ndim != 1:
        shapes = f"base, views and vocabulary have shapes {first.shape}, {others.shape} and {listed.shape}"
        raise DataError(f"{shapes}; expected (n,), (n, S) and (K,)", code="votes-malformed")
    first, others, listed = _texts("base, views and vocabulary", first, others, listed)
    labels, table, known = first.tolist(), others.tolist(), _complete("vocabulary", listed)
    if len(set(known)) < len(known):
        raise DataError("the vocabulary contains duplicates; list each label once", code="votes-malformed")
    if vocabulary is not None and (unknown := {*labels, *others.flat} - {None, *known}):
        missing = f"the vocabulary ({few(known)}) does not contain the labels {few(unknown)}"
        raise DataError(f"{missing}; add them", code="votes-malformed")
    names = details.get("names", [str(place) for place in range(len(labels))])
    panel = details.get("panel", [f"view {s}" for s in range(1, others.shape[1] + 1)])
    if len(names) != len(labels) or len(panel) != others.shape[1]:
        counts = f"names has length {len(names)} and panel has length {len(panel)}"
        raise DataError(
            f"{counts}; expected {len(labels)} (pictures) and {others.shape[1]} (views)",
            code="votes-malformed",
        )
    rows = [
        Row(name, label or None, tuple(row), lists=ranked)
        for name, label, row, ranked in zip(
            names, labels, table, _ranked(np.column_stack([first, others]), details), strict=True
        )
    ]
    return Votes.collect(rows, panel, known)


def labelled(votes: Votes, truths: Labels) -> LabelledVotes:
    """Add truths to votes; labels that occur only among the truths also count as classes."""
    column = _objects(truths)
    if column.shape != (len(votes),):
        raise DataError(
            f"truths has shape {column.shape}; give one true label for each of {len(votes)} pictures",
            code="votes-malformed",
        )
    labels = _complete("truths", *_texts("truths", column))
    check_truths(labels, votes.vocabulary)
    return replace(votes, classes=max(votes.classes, len({*votes.vocabulary, *labels}))).labelled(labels)


def _ranked(labels: Objects, details: Details) -> list[tuple[RankedList, ...]]:
    """The ranked lists of all answers (n, 1 + S): as given, or built from labels and scores; empty without either."""
    if "lists" in details:
        lists = details["lists"]
        if "scores" in details:
            raise DataError(
                "scores and lists cannot be combined; lists already contain scores, so give only lists",
                code="votes-malformed",
            )
        if len(lists) != len(labels) or any(len(row) != labels.shape[1] for row in lists):
            raise DataError(
                f"lists must have shape {labels.shape}; give one ranked list per answer, the base answer first",
                code="votes-malformed",
            )
        return [tuple(tuple((str(label), score) for label, score in ranked) for ranked in row) for row in lists]
    if "scores" not in details:
        return [()] * len(labels)
    scores = np.asarray(details["scores"], np.float64)
    if scores.shape != labels.shape:
        raise DataError(
            f"scores has shape {scores.shape}; expected {labels.shape}, one score per answer", code="votes-malformed"
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
    if not numbers and not all(issubclass(kind, str) for kind in kinds):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise DataError(
            f"{what} contain values of type {names}; use only strings or only integers, and None for missing labels",
            code="votes-malformed",
        )

    def text(label: object) -> str | None:
        return None if label in (None, "", -1) else str(label)

    return [np.array([text(label) for label in array.flat], object).reshape(array.shape) for array in arrays]


def _complete(what: str, texts: Objects) -> list[str]:
    """Convert an array to a list; raise an error if a label is missing."""
    column = texts.tolist()
    if None in column:
        raise DataError(
            f"{what}: the label at position {column.index(None)} is missing; only views may contain None, '' or -1",
            code="votes-malformed",
        )
    return column
