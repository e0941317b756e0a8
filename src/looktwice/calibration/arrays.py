"""Convert labels from other tools, in lists or arrays, to votes."""

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
    """Build the votes that `Votes.from_labels` documents, without truths."""
    own, others, words = _objects(base), _objects(views), _objects(() if vocabulary is None else vocabulary)
    if own.ndim != 1 or others.ndim != 2 or len(own) != len(others) or words.ndim != 1:
        shapes = f"base has shape {own.shape}, views have {others.shape}, the vocabulary has {words.shape}"
        raise DataError(f"{shapes}; give (n,), (n, S) and (K,)", code="votes-malformed")
    own, others, words = _texts("base, views and vocabulary", own, others, words)
    labels, table, known = own.tolist(), others.tolist(), _complete("vocabulary", words)
    if len(set(known)) < len(known):
        raise DataError("the vocabulary has a duplicate label; list each once", code="votes-malformed")
    if vocabulary is not None and (strangers := {*labels, *others.flat} - {None, *known}):
        lacking = f"the vocabulary ({few(known)}) lacks labels that were given ({few(strangers)})"
        raise DataError(f"{lacking}; add them", code="votes-malformed")
    names = details.get("names", [str(place) for place in range(len(labels))])
    panel = details.get("panel", [f"view {s}" for s in range(1, others.shape[1] + 1)])
    if len(names) != len(labels) or len(panel) != others.shape[1]:
        counts = f"{len(names)} names and {len(panel)} views in the panel"
        raise DataError(
            f"{counts} are given for votes of {len(labels)} pictures and {others.shape[1]} views",
            code="votes-malformed",
        )
    rows = [
        Row(name, label or None, tuple(row), lists=ranked)
        for name, label, row, ranked in zip(
            names, labels, table, _ranked(np.column_stack([own, others]), details), strict=True
        )
    ]
    return Votes.collect(rows, panel, known)


def labelled(votes: Votes, truths: Labels) -> LabelledVotes:
    """Add truths to votes; classes that appear only among the truths are counted as classes."""
    given = _objects(truths)
    if given.shape != (len(votes),):
        raise DataError(
            f"truths have shape {given.shape}; give one for each of {len(votes)} pictures", code="votes-malformed"
        )
    words = _complete("truths", *_texts("truths", given))
    check_truths(words, votes.vocabulary)
    return replace(votes, classes=max(votes.classes, len({*votes.vocabulary, *words}))).labelled(words)


def _ranked(labels: Objects, details: Details) -> list[tuple[RankedList, ...]]:
    """The ranked lists of answers (n, 1 + S): the given lists, or lists of one label and its score; None without
    either."""
    if "lists" in details:
        lists = details["lists"]
        if "scores" in details:
            raise DataError(
                "scores and ranked lists are both given; lists include scores, so give only lists",
                code="votes-malformed",
            )
        if len(lists) != len(labels) or any(len(row) != labels.shape[1] for row in lists):
            raise DataError(
                f"ranked lists are needed for answers of shape {labels.shape}, the picture's own first",
                code="votes-malformed",
            )
        return [tuple(tuple((str(label), score) for label, score in ranked) for ranked in row) for row in lists]
    if "scores" not in details:
        return [()] * len(labels)
    scores = np.asarray(details["scores"], np.float64)
    if scores.shape != labels.shape:
        raise DataError(
            f"scores have shape {scores.shape}; answers of shape {labels.shape} need one each", code="votes-malformed"
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
            "labels are not in rows of one length; give None where a view was not asked", code="votes-malformed"
        ) from None


def _texts(what: str, *arrays: Objects) -> list[Objects]:
    """Convert labels to strings, None if missing; all must be strings, or all integers."""
    kinds = {type(label) for array in arrays for label in array.flat} - {type(None)}
    numbers = all(issubclass(kind, int | np.integer) and kind is not bool for kind in kinds)
    if not numbers and not all(issubclass(kind, str) for kind in kinds):
        names = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise DataError(
            f"{what} hold {names}; give only strings or only integers, and None for a view not asked",
            code="votes-malformed",
        )

    def text(label: object) -> str | None:
        return None if label in (None, "", -1) else str(label)

    return [np.array([text(label) for label in array.flat], object).reshape(array.shape) for array in arrays]


def _complete(what: str, texts: Objects) -> list[str]:
    """The labels of one column, which must be complete."""
    column = texts.tolist()
    if None in column:
        raise DataError(
            f"{what}: no label at place {column.index(None)}; only views may have None, '' or -1",
            code="votes-malformed",
        )
    return column
