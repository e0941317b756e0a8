"""From replies of the Open Inference Protocol to answers: tensors in JSON, or in binary after it."""

from __future__ import annotations

import base64
import re
import struct
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel

from looktwice.classifiers.base import MOST_OPTIONS, Answer, as_word, position_word, probabilities
from looktwice.classifiers.replies import Found, Garbled
from looktwice.classifiers.secrets import Secrets
from looktwice.classifiers.transport import Reply
from looktwice.errors import PermanentError

NUMBERS = {
    "BOOL": "?",
    **{f"UINT{8 * size}": f"<u{size}" for size in (1, 2, 4, 8)},
    **{f"INT{8 * size}": f"<i{size}" for size in (1, 2, 4, 8)},
    **{f"FP{8 * size}": f"<f{size}" for size in (2, 4, 8)},
}
"""The numpy dtype of each type in the protocol."""
CLASS = re.compile(r"(?P<value>-?\d[\d.]*(?:e[-+]?\d+)?):(?P<index>\d+)(?::(?P<label>.*))?", re.IGNORECASE | re.DOTALL)
HEADER_LENGTH = "inference-header-content-length"


class Model(NamedTuple):
    """The resolved interface of a model."""

    input: str
    datatype: str
    shape: tuple[int, ...]
    output: str | None
    batch: int
    """The largest batch."""
    binary: bool
    """The server takes and gives numbers as bytes after the JSON."""
    classification: bool
    """The server names the classes itself."""


class Output(BaseModel):
    """An output of a reply; its data follow the JSON if `binary_data_size` is given."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    parameters: dict[str, object] | None = None
    data: list[object] | None = None

    def parameter(self, name: str) -> object:
        """One of the parameters; KServe writes null if it has none."""
        return (self.parameters or {}).get(name)


class Outputs(BaseModel):
    """The used part of a reply."""

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
            raise Garbled("has a zero character in a label")
        if not self.model.classification:
            return Found(as_word(str(row[0])), None)
        ranked = [_ranked(str(text)) for text in row[:MOST_OPTIONS]]
        word, value = ranked[0]
        return Found(word, value if 0 <= value <= 1 else None, tuple(ranked) if len(ranked) > 1 else ())

    def _scored(self, row: NDArray[np.generic]) -> Found:
        if row.size == 1 and row.dtype.kind in "iu":
            return Found(self._at(int(row[0])), None)
        with np.errstate(invalid="ignore"):  # some numbers that are none would warn
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
        options = tuple((self._at(place), float(shares[place])) for place in order)
        return Found(*options[0], options)

    def _at(self, index: int) -> str:
        if self.labels is not None and not 0 <= index < len(self.labels):
            raise Garbled(f"has {index} where the position of one of {len(self.labels)} labels should be")
        return position_word(index) if index >= 0 else str(index)


def _ranked(text: str) -> tuple[str, float]:
    """A class of the classification extension: its name and its score, which may be a logit."""
    found = CLASS.fullmatch(text)
    if found is None:
        raise Garbled(f"has {text!r} where value:index:label should be")
    word = as_word(found["label"]) if found["label"] else position_word(int(found["index"]))
    return word, float(found["value"])


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
