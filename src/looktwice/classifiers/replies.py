"""Read labels from replies: from JSON by JMESPath (https://jmespath.org), and from tensors.

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

import base64
import json
import math
import re
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from heapq import nlargest
from itertools import islice
from typing import NamedTuple

import jmespath
import numpy as np
from jmespath.visitor import TreeInterpreter
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, field_validator

from looktwice.classifiers.base import (
    KEPT_OPTIONS,
    MOST_OPTIONS,
    NO_LABEL,
    Answer,
    AnswerKind,
    Option,
    as_word,
    position_word,
    probabilities,
)
from looktwice.classifiers.secrets import Secrets
from looktwice.classifiers.transport import Garbled, Reply
from looktwice.errors import PermanentError

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
IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Matches a key that needs no quotes in a JMESPath."""
MOST_PATHS, LONGEST_PATH = 5, 100
"""The maximum number of paths listed in an error message, and the maximum length of each."""
NAMING = ("labels", "rename", "empty")
"""Settings that only map the server's words."""
READING = ("label", "score", "answer")
"""Settings for reading a reply, which do not change it."""


class Paths(BaseModel):
    """Settings for reading replies."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    label: str = Field(default="", description="JMESPath; `label` if there is no score path either")
    score: str = Field(default="", description="JMESPath")
    answer: AnswerKind = Field(default="label", description="`tags` if several labels may apply to a picture")
    error: str = Field(
        default="", description="JMESPath to the error that the server returns in place of a label, with status 200"
    )
    labels: tuple[str, ...] | str | None = Field(
        default=None, description="all labels, or the name of a file that lists them"
    )
    rename: dict[str, str] = Field(default_factory=dict, description="the server's word → label")
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


class Found(NamedTuple):
    """The server's word for the label, and its score."""

    word: str
    score: float | None
    options: tuple[Option, ...] = ()
    """The ranked list, if the reply contains one."""


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
            raise Garbled(f"tells of an error, {_shown(problem)}")
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
            texts = list(islice(dict.fromkeys(text_paths(data)), MOST_PATHS))
            hint = f"; there are texts at {', '.join(texts)}" if texts else ""
            raise Garbled(f"has nothing at the label path {self._label_path!r}{hint}")
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


def text_paths(data: object, path: str = "") -> Iterator[str]:
    """The JMESPaths of the strings in a reply, except paths that are too long to show.

    >>> list(text_paths({"tags": [{"name": "cat", "score": 0.9}, {"name": "dog"}], "request-id": "a1"}))
    ['tags[].name', 'tags[].name', '"request-id"']
    """
    if len(path) > LONGEST_PATH:
        return
    if isinstance(data, str) and path:
        yield path
    elif isinstance(data, list):
        for item in data:
            yield from text_paths(item, f"{path}[]")
    elif isinstance(data, dict):
        for key, value in data.items():
            name = key if IDENTIFIER.fullmatch(key) else json.dumps(key)
            yield from text_paths(value, f"{path}.{name}" if path else name)


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
            raise Garbled(f"does not fit its path: {str(error).splitlines()[0]}") from None

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


# Tensors -------------------------------------------------------------------------------------------------------------


NUMBERS = {
    "BOOL": "?",
    **{f"UINT{8 * size}": f"<u{size}" for size in (1, 2, 4, 8)},
    **{f"INT{8 * size}": f"<i{size}" for size in (1, 2, 4, 8)},
    **{f"FP{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}
"""The numpy dtype for each data type in the protocol."""
CLASS = re.compile(r"(?P<value>-?\d[\d.]*(?:e[-+]?\d+)?):(?P<index>\d+)(?::(?P<label>.*))?", re.IGNORECASE | re.DOTALL)
HEADER_LENGTH = "inference-header-content-length"


class Model(NamedTuple):
    """The interface of a model, from its metadata and the description."""

    input: str
    datatype: str
    shape: tuple[int, ...]
    output: str | None
    batch: int
    """The maximum batch size."""
    binary: bool
    """Whether the server accepts and returns tensors as bytes after the JSON."""
    classification: bool
    """Whether the server returns class names."""


class Output(BaseModel):
    """An output in a reply; with `binary_data_size`, its data follow the JSON."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, object] | None = None
    data: list[object] | None = None

    def parameter(self, name: str) -> object:
        """The value of a parameter; KServe sends null if there are no parameters."""
        return (self.parameters or {}).get(name)


class Outputs(BaseModel):
    """The part of a reply that is used."""

    outputs: tuple[Output, ...]


class Reading(NamedTuple):
    """Decodes replies to answers."""

    model: Model
    labels: tuple[str, ...] | None
    pictures: int

    def answers(self, reply: Reply, secrets: Secrets) -> list[Answer]:
        output, values = self._found(reply)
        body = reply.body if self.pictures == 1 else None
        if output.datatype == "BYTES":
            rows = [self._text(row) for row in self._rows(values)]
        else:
            rows = [self._scored(np.asarray(row)) for row in self._rows(values)]
        return [secrets.answer(word, score, reply.status, body, options) for word, score, options in rows]

    def _found(self, reply: Reply) -> tuple[Output, NDArray[np.generic]]:
        """The requested output, with its values in one row."""
        try:
            length = int(reply.headers.get(HEADER_LENGTH, len(reply.body)))
            outputs = Outputs.model_validate_json(reply.body[:length]).outputs
        except ValueError:
            raise Garbled("is not an inference response") from None
        offset = length
        for output in outputs:
            size = output.parameter("binary_data_size")
            end = offset + (size if isinstance(size, int) else 0)
            if self.model.output in (None, output.name):
                return output, _values(output, reply.body[offset:end])
            offset = end
        raise Garbled(f"has no output {self.model.output!r}")

    def _rows(self, values: NDArray[np.generic]) -> NDArray[np.generic]:
        if values.size == 0 or values.size % self.pictures:
            raise Garbled(f"has {values.size} values for {self.pictures} pictures")
        return values.reshape(self.pictures, -1)

    def _text(self, row: NDArray[np.generic]) -> Found:
        if any("\0" in str(text) for text in row[:MOST_OPTIONS]):
            raise Garbled("has a null character in a label")
        if not self.model.classification:
            return Found(as_word(str(row[0])), None)
        ranked = [_ranked(str(text)) for text in row[:MOST_OPTIONS]]
        word, value = ranked[0]
        return Found(word, value if 0 <= value <= 1 else None, tuple(ranked) if len(ranked) > 1 else ())

    def _scored(self, row: NDArray[np.generic]) -> Found:
        if row.size == 1 and row.dtype.kind in "iu":
            return Found(_at(int(row[0]), self.labels), None)
        with np.errstate(invalid="ignore"):  # some NaN values would cause a warning
            numbers = row.astype(np.float64)
        if row.size == 1:
            raise PermanentError(
                "the model returns one number that is not a position; choose another output = …",
                code="model-unsupported",
            )
        if np.isnan(numbers).any():
            raise Garbled("has scores that are not numbers")
        if self.labels is not None and row.size != len(self.labels):
            raise PermanentError(
                f"the model gives {row.size} scores, but its description names {len(self.labels)} labels",
                code="model-unsupported",
            )
        shares = probabilities(numbers)
        order = np.argsort(-numbers, kind="stable")[:MOST_OPTIONS].tolist()
        options = tuple((position_word(place), float(shares[place])) for place in order)
        return Found(*options[0], options)


def _ranked(text: str) -> tuple[str, float]:
    """Parse a class in the format of the classification extension: its name and its score, which may be a logit."""
    fields = CLASS.fullmatch(text)
    if fields is None:
        raise Garbled(f"has {text!r} where value:index:label should be")
    word = as_word(fields["label"]) if fields["label"] else position_word(int(fields["index"]))
    return word, float(fields["value"])


def _values(output: Output, data: bytes) -> NDArray[np.generic]:
    try:
        if output.datatype == "BYTES":
            return np.array(_texts(output, data), object)
        kind = np.dtype(NUMBERS[output.datatype])
        return np.frombuffer(data, kind) if output.data is None else np.array(output.data, kind).ravel()
    except KeyError:
        raise Garbled(f"is of type {output.datatype!r}, which is not understood") from None
    except (ValueError, TypeError, OverflowError, struct.error) as error:
        raise Garbled(f"has data that do not fit {output.datatype!r} ({error})") from None


def _texts(output: Output, data: bytes) -> list[str]:
    if output.data is not None:
        texts = np.array(output.data, object).ravel().tolist()
        coded = output.parameter("content_type") == "base64"
        return [base64.b64decode(text).decode() if coded else str(text) for text in texts]
    texts, at = [], 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        texts.append(data[at + 4 : at + 4 + length].decode())
        at += 4 + length
    return texts
