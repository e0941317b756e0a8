"""Read labels from JSON replies by JMESPath (https://jmespath.org).

When paths return lists, the label with the largest score is used (the first one on ties, or without a score path); an
empty list is an answer without a label. Without a label path, the scores must be those of all classes: the label is the
position of the largest score, and logits are converted to probabilities. The first hundred entries of a list are stored
with the answer, by descending score, or without scores in the given order.

With `answer = "tags"` any number of the labels may apply to a picture: all are stored with unchanged scores. A map of
categories is read by `label = "keys(…)"` and `score = "values(…)"`.

A score may also be a number in quotes, true or false, or one of Google's likelihood words, which are converted to five
numbers between 0 and 1; UNKNOWN is a label without a score. Boolean labels become the words `true` and `false`.
"""

from __future__ import annotations

import json
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from heapq import nlargest

import jmespath
import numpy as np
from jmespath.visitor import TreeInterpreter
from pydantic import BaseModel, ConfigDict, Field, field_validator

from looktwice.classifiers.base import (
    KEPT_OPTIONS,
    NO_LABEL,
    AnswerKind,
    Option,
    as_word,
    position_word,
    probabilities,
)
from looktwice.classifiers.transport import Found, Garbled

Search = Callable[[object], object]
Scores = list[float | None]
"""The scores of labels; an unknown score is None."""
LIKELIHOODS = {
    "UNKNOWN": None,
    "VERY_UNLIKELY": 0.05,
    "UNLIKELY": 0.25,
    "POSSIBLE": 0.5,
    "LIKELY": 0.75,
    "VERY_LIKELY": 0.95,
}
"""The scores for Google's likelihood words; only the order of the scores matters when a calibrator is fitted."""
NUMBER = re.compile(r"[-+]?[0-9]{1,40}(\.[0-9]{0,40})?([eE][-+]?[0-9]{1,2})?")
"""Matches a score that is sent as a string."""
NAMING = ("labels", "rename", "empty")
"""Settings that only map the server's words."""
READING = ("label", "score", "answer")
"""Settings for reading a reply, which do not change it."""


class Paths(BaseModel):
    """Settings for reading replies."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    label: str = Field(default="", description="JMESPath to the label; `label` if there is no score path either")
    score: str = Field(default="", description="JMESPath to the score")
    answer: AnswerKind = Field(default="label", description="`tags` if several labels may apply to a picture")
    error: str = Field(
        default="", description="JMESPath to the error that the server returns in place of a label, with status 200"
    )
    labels: tuple[str, ...] | str | None = Field(
        default=None, description="all labels, or the name of a file that lists them"
    )
    rename: dict[str, str] = Field(default_factory=dict, description="label as returned → label to use")
    empty: str = Field(default=NO_LABEL, description="the label to use if an answer has none")

    @field_validator("label", "score", "error")
    @classmethod
    def _is_a_path(cls, path: str) -> str:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # for literals that are not JSON
                jmespath.compile(path or "@")
        except (jmespath.exceptions.JMESPathError, PendingDeprecationWarning) as error:
            raise ValueError(f"{path!r} is not a JMESPath: {str(error).splitlines()[0]}") from None
        except RecursionError:
            raise ValueError(f"{path[:20]!r}… is a JMESPath nested too deeply") from None
        return path


class Reader:
    """Reads the word for the label from a JSON reply; `labels` lists the labels by position."""

    def __init__(self, paths: Paths, labels: Sequence[str] | None) -> None:
        label = paths.label or ("" if paths.score else "label")
        self._label, self._label_path = _search(label) if label else None, label
        self._score = _search(paths.score) if paths.score else None
        self._error = _search(paths.error) if paths.error else None
        self._labels = labels
        self._tags = paths.answer == "tags"

    def read(self, data: object) -> Found:
        """Read the word and its score; raises Garbled if there is no word."""
        if self._error and (problem := self._error(data)) is not None:
            raise Garbled(f"reports an error, {_shown(problem)}")
        named, scores = self._listed(data)
        if not named:
            return Found(NO_LABEL, None)
        keys = [-math.inf if score is None else score for score in scores]
        ranked = nlargest(KEPT_OPTIONS, range(len(named)), keys.__getitem__) if keys else range(len(named))
        first = ranked[0]
        best = self._word(named[first]), scores[first] if scores else None
        others = self._others(named, scores, ranked[1:KEPT_OPTIONS])
        return Found(*best, (best, *others) if self._tags or len(named) > 1 else ())

    def _others(self, named: Sequence[object], scores: Scores, ranked: Sequence[int]) -> Iterator[Option]:
        """The remaining entries of the ranked list; entries that are not labels are skipped."""
        for at in ranked:
            with suppress(Garbled):
                yield self._word(named[at]), scores[at] if scores else None

    def _listed(self, data: object) -> tuple[Sequence[object], Scores]:
        """The candidate labels and their scores; the scores are empty if there are none."""
        scores = self._score(data) if self._score else None
        if self._label is None:
            numbers = _numbers(scores)
            if self._tags or not numbers:
                return range(len(numbers)), numbers
            return range(len(numbers)), probabilities(np.array(numbers, np.float64)).tolist()
        labels = self._label(data)
        if labels is None:
            raise Garbled(f"has nothing at the label path {self._label_path!r}")
        if not isinstance(labels, list):
            return [labels], [] if scores is None else _numbers([scores])
        numbers = _numbers(scores or []) if self._score else []
        if self._score and len(labels) != len(numbers):
            raise Garbled(f"has {len(labels)} labels and {len(numbers)} scores")
        return labels, numbers

    def _word(self, data: object) -> str:
        if isinstance(data, bool):
            return str(data).lower()
        if isinstance(data, int):
            return _at(data, self._labels)
        if not isinstance(data, str) or not _whole(data):
            raise Garbled(f"has {_shown(data)} where a label should be")
        return as_word(data)


def _at(index: int, labels: Sequence[str] | None) -> str:
    """The word for a position; raises Garbled if there is no label at this position."""
    if labels is not None and not 0 <= index < len(labels):
        raise Garbled(f"has {index} where the position of one of {len(labels)} labels should be")
    return position_word(index) if index >= 0 else str(index)


def _whole(text: str) -> bool:
    """Whether a text has neither surrogates nor null characters, which JSON allows but not every ledger can store."""
    return "\0" not in text and (text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text))


def _shown(value: object) -> str:
    # Not truncated here: a partial secret could not be masked.
    try:
        return json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:  # writing a value needs slightly more recursion depth than reading it
        return "a value nested too deeply"


def _search(path: str) -> Search:
    node = jmespath.compile(path).parsed
    # One interpreter for all replies: creating one takes longer than most searches.
    visit = TreeInterpreter().visit

    def search(data: object) -> object:
        try:
            return visit(node, data)
        except jmespath.exceptions.JMESPathError as error:
            raise Garbled(f"does not match the path: {str(error).splitlines()[0]}") from None

    return search


def _numbers(values: object) -> Scores:
    if not isinstance(values, list):
        raise Garbled(f"has {_shown(values)} where scores should be")
    return [_number(value) for value in values]


def _number(value: object) -> float | None:
    if isinstance(value, str) and value in LIKELIHOODS:
        return LIKELIHOODS[value]
    if isinstance(value, str) and NUMBER.fullmatch(value):
        return float(value)
    try:
        if isinstance(value, (int, float)) and not math.isnan(value):
            return float(value)
    except OverflowError:  # JSON allows integers of any length
        pass
    raise Garbled(f"has {_shown(value)} where a score should be")
