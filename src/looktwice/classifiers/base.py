"""The interface of black-box classifiers, and the mapping of their answers to labels.

A ledger stores a classifier's own words, which are mapped to labels on reading: a text is a label unless it is renamed,
and `#3` is the label at position 3. Names can therefore change without new queries.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from looktwice.errors import PermanentError
from looktwice.images import PHOTO, WorkingSize
from looktwice.views import AS_DESCRIBED, Phrasing

Pixels = NDArray[np.uint8]

Settings = Mapping[str, object]

Prepared = TypeVar("Prepared")


@dataclass(frozen=True)
class Limits:
    """The limits and prices of a classifier; of these only the working size affects its answers."""

    batch: int = 1
    """The batch size."""
    concurrency: int = 8
    """Concurrent calls."""
    per_second: float | None = None
    """Allowed queries per second."""
    price_micros: int = 0
    """The price of a query, in millionths of the currency."""
    local: bool = False
    """Whether it runs on this machine and is free, so that answers need no ledger."""
    working_size: WorkingSize = PHOTO
    """The working size: larger pictures give the same answers."""
    jpeg_above: int | None = None
    """The longer side in pixels above which JPEG is sent instead of PNG."""

    def sent_as(self, height: int, width: int) -> str:
        """The encoding of a picture of this size if it differs from that in the fingerprint; otherwise empty."""
        return "jpeg 4:4:4" if self.jpeg_above and max(height, width) > self.jpeg_above else ""


@runtime_checkable
class Prompted(Protocol):
    """A classifier that takes a prompt, so that views can change the wording."""

    def words(self, phrasing: Phrasing) -> str:
        """The prompt in this wording; raises a PermanentError if it is not possible."""

    def prepare_as(self, pixels: Pixels, phrasing: Phrasing) -> object:
        """Prepare one picture, with the prompt in this wording."""


class Weight(NamedTuple):
    """The billed parts of a query that are known before it is sent."""

    characters: int
    """The bytes of its text, and of the schema of its answer."""
    bytes: int
    """The bytes of the request without the picture."""
    height: int
    width: int
    """The size of the picture as sent."""
    detail: str | None
    """The requested level of detail, if the vendor has one."""
    output: int
    """The expected number of tokens of an answer."""
    most_output: int | None
    """The maximum number of tokens of an answer, if limited."""


@runtime_checkable
class Metered(Protocol):
    """A classifier that is billed per token."""

    @property
    def model(self) -> str:
        """The model name in the price table."""

    def weigh(self, height: int, width: int, phrasing: Phrasing = AS_DESCRIBED) -> Weight:
        """The tokens and pixels of a query about a picture of this size, in this wording."""


@runtime_checkable
class Classifier(Protocol, Generic[Prepared]):
    """A black-box classifier: pictures in, labels out.

    If its answers are not labels yet, it also has `names`, a `Naming`.
    """

    @property
    def fingerprint(self) -> str:
        """A digest of everything that can change its answers; contains no secret."""

    @property
    def labels(self) -> tuple[str, ...] | None:
        """All labels it can return, if known."""

    @property
    def limits(self) -> Limits:
        """The limits and prices of the classifier."""

    def prepare(self, pixels: Pixels) -> Prepared:
        """Prepare one picture; processor work that runs in threads, before anything is paid."""

    async def label(self, batch: Sequence[Prepared]) -> list[Answer]:
        """Return one answer per picture, in order; raises a ClassifierError on failure."""

    async def close(self) -> None:
        """Release connections and processes."""


@runtime_checkable
class Rereadable(Protocol):
    """A classifier whose stored replies can be read again in another way, without queries."""

    @property
    def reading(self) -> str:
        """A digest of how replies are read: paths, labels, thresholds."""

    def reread(self, reply: bytes, status: int | None) -> Answer:
        """Read the answer in a stored reply; raises a ClassifierError if it is invalid."""


AnyClassifier = Classifier[Any]
"""A classifier with any prepared form of a picture."""


def fingerprint(kind: str, parts: Mapping[str, object]) -> str:
    """A short tagged hash of everything that can change answers."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return f"{kind}:{hashlib.blake2b(text.encode(), digest_size=12, person=b'looktwice').hexdigest()}"


def reading(classifier: AnyClassifier) -> str:
    """The digest of what is read from a classifier's replies; empty if that is part of the fingerprint."""
    return classifier.reading if isinstance(classifier, Rereadable) else ""


def size_in_bytes(prepared: object) -> int | None:
    """The size of a prepared picture in a request; None if it is unknown."""
    if isinstance(prepared, bytes):
        return len(prepared)
    if isinstance(prepared, np.ndarray):
        return prepared.nbytes
    return (
        next((len(part) for part in prepared if isinstance(part, bytes)), None) if isinstance(prepared, tuple) else None
    )


def lasting(fingerprint: str) -> str:
    """The part of a fingerprint that is the same in all processes; see `PythonClassifier`."""
    return fingerprint.partition("#")[0]


NO_LABEL = ""
"""The label of a paid answer without a readable label."""


KEPT_OPTIONS = 100
"""The maximum number of labels of a reply that are stored."""
MOST_OPTIONS = 10
"""The maximum number of labels of a ranked list that are requested or used."""

Option = tuple[str, float | None]
"""A label of a ranked list, and its score if it has one."""

AnswerKind = Literal["label", "tags"]
"""The kind of answers: one label, or any number of tags."""


Usage = tuple[tuple[str, int], ...]
"""The usage of an answer, as counted and named by the classifier: `(("input_tokens", 300), …)`."""


class Tokens(NamedTuple):
    """The billed tokens of a query and its reply."""

    input: int = 0
    """Input tokens, including those from a cache."""
    output: int = 0
    cached: int = 0
    """Those of the input that were read from a cache."""
    written: int = 0
    """Input tokens that were written to a cache, if these have a separate price."""


FARTHEST = 1e300
"""Replaces infinite logits: the difference of two is still finite."""


def probabilities(scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """(K,): convert the scores of all classes for one picture to probabilities.

    Numbers in [0, 1] are unchanged, percentages are divided by 100, and anything else is treated as logits.
    """
    values = np.nan_to_num(scores.astype(np.float64), posinf=FARTHEST, neginf=-FARTHEST).clip(-FARTHEST, FARTHEST)
    if values.min() >= 0 and values.max() <= 1 + 1e-3:
        return np.minimum(values, 1.0)
    if values.min() >= 0 and abs(values.sum() - 100) < 0.5:
        return values / 100
    powers = np.exp(values - values.max())
    shares: NDArray[np.float64] = powers / powers.sum()
    return shares


@dataclass(frozen=True, slots=True)
class Answer:
    """A classifier's answer about one picture."""

    label: str
    score: float | None = None
    """The classifier's score of the label, on its own scale."""
    status: int | None = None
    raw: bytes | None = None
    options: tuple[Option, ...] = ()
    """The first labels of its ranked list, at most KEPT_OPTIONS, if it returned one."""
    usage: Usage = ()
    """Its usage, if reported."""

    def listed(self) -> tuple[Option, ...]:
        """Its ranked list; only the label if it has just a score, and empty if it has neither."""
        return self.options or (() if self.score is None else ((self.label, self.score),))


POSITION = re.compile(r"#+[0-9]+")


class Naming(Protocol):
    """Maps words to labels; an optional `why_none` explains why a word has no label."""

    @property
    def renames(self) -> Mapping[str, str]:
        """The renamed words, as far as they can be listed."""

    def label(self, word: str) -> str:
        """The label of a word; NO_LABEL if there is none."""


class Plain:
    """Words that are labels."""

    renames: Mapping[str, str] = MappingProxyType({})

    def label(self, word: str) -> str:
        return word


def names_of(classifier: AnyClassifier) -> Naming:
    """The naming of a classifier's answers."""
    names: Naming = getattr(classifier, "names", Plain())
    return names


def why_none(names: Naming, word: str) -> str:
    """A message on why a word has no label; `why_none` of the naming may add a reason."""
    tell: Callable[[str], str] | None = getattr(names, "why_none", None)
    return "the classifier's answer contained no label" + (f": {tell(word)}" if tell else "")


class Names:
    """Maps positions to labels, renames words, and sets a label for answers without one."""

    def __init__(
        self, labels: Sequence[str] | None = None, rename: Mapping[str, str] | None = None, empty: str = NO_LABEL
    ) -> None:
        rename = rename or {}
        listed = {position_word(index): rename.get(label, label) for index, label in enumerate(labels or ())}
        numbers = {f"#{word}": label for word, label in rename.items() if labels is None and word.isdecimal()}
        nothing = {NO_LABEL: empty} if empty else {}
        self.renames = {**{as_word(word): label for word, label in rename.items()}, **numbers, **listed, **nothing}
        self.labels = None if labels is None else tuple(dict.fromkeys(listed.values()) if rename else labels)
        self._count = None if labels is None else len(labels)

    def label(self, word: str) -> str:
        """The label of a word; raises a PermanentError if there are too few labels for a position."""
        known = self.renames.get(word)
        if known is not None:
            return known
        if not POSITION.fullmatch(word):
            return word
        if self._count is not None and not word.startswith("##"):
            raise PermanentError(
                f"the classifier answered with position {word[1:]}, but its description names {self._count} labels; "
                "list all of them in the classifier's order",
                code="reply-malformed",
            )
        return word[1:]


class Renamed:
    """Renames labels of another naming."""

    def __init__(self, names: Naming, rename: Mapping[str, str]) -> None:
        self._names, self._rename = names, rename
        known = {word: rename.get(label, label) for word, label in names.renames.items()}
        self.renames: Mapping[str, str] = {**rename, **known}
        self.why_none = getattr(names, "why_none", None)

    def label(self, word: str) -> str:
        """The label of a word."""
        label = self._names.label(word)
        return self._rename.get(label, label)


def merged(names: Naming, answer: Answer) -> tuple[Option, ...]:
    """Map a ranked list to labels; words with the same label are merged at the better rank.

    Their scores are summed, as those of parts of one class. A repeated word counts once, at the better rank: a detector
    lists a class once per object.
    """
    words: dict[str, float | None] = {}
    scores: dict[str, float | None] = {}
    for word, score in answer.listed()[:MOST_OPTIONS]:
        words.setdefault(word, score)
    for word, score in words.items():
        label = names.label(word)
        if label in scores and score is not None:
            scores[label] = (scores[label] or 0.0) + score
        elif label != NO_LABEL:
            scores.setdefault(label, score)
    return tuple(scores.items())


def answer_kind(classifier: AnyClassifier) -> AnswerKind:
    """The kind of a classifier's answers; one label by default."""
    kind: AnswerKind = getattr(classifier, "answer_kind", "label")
    return kind


def tags(names: Naming, answer: Answer) -> tuple[Option, ...]:
    """Map an answer to tags, in its order; an answer without a label has none.

    Words with the same tag are merged with the largest of their scores.
    """
    scores: dict[str, float | None] = {}
    for word, score in answer.listed():
        tag = names.label(word)
        if tag != NO_LABEL:
            known = [each for each in (scores.get(tag), score) if each is not None]
            scores[tag] = max(known, default=None)
    return tuple(scores.items())


def position_word(index: int) -> str:
    """Encode a position as a word."""
    return f"#{index}"


def as_word(text: str) -> str:
    """Encode a text as a word, escaped if it looks like a position."""
    return f"#{text}" if text.startswith("#") and POSITION.fullmatch(text) else text
