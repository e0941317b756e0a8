"""The interface of black-box classifiers, and the mapping of their answers to labels.

A ledger stores the words that a classifier returned. They are mapped to labels when they are read: a text is a label
unless it is renamed, and `#3` is the label at position 3. Labels can therefore be renamed without new queries.
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
    """The limits and prices of a classifier; only the working size affects its answers."""

    batch: int = 1
    """The batch size."""
    concurrency: int = 8
    """The maximum number of concurrent calls."""
    per_second: float | None = None
    """The maximum number of queries per second."""
    price_micros: int = 0
    """The price of a query, in millionths of the currency."""
    local: bool = False
    """Whether the classifier runs on this machine and is free, so that its answers need not be stored in a ledger."""
    working_size: WorkingSize = PHOTO
    """The working size; larger pictures would give the same answers."""
    jpeg_above: int | None = None
    """The longer side in pixels above which JPEG is sent instead of PNG."""

    def sent_as(self, height: int, width: int) -> str:
        """The encoding used for pictures of this size; empty if it is the encoding in the fingerprint."""
        return "jpeg 4:4:4" if self.jpeg_above and max(height, width) > self.jpeg_above else ""


@runtime_checkable
class Prompted(Protocol):
    """A classifier that takes a prompt, so that views can change the wording."""

    def words(self, phrasing: Phrasing) -> str:
        """The prompt in this wording; raises a PermanentError if the wording is not supported."""

    def prepare_as(self, pixels: Pixels, phrasing: Phrasing) -> object:
        """Prepare one picture, with the prompt in this wording."""


class Weight(NamedTuple):
    """The billed parts of a query that are known before it is sent."""

    characters: int
    """The number of bytes in the text and in the answer schema."""
    bytes: int
    """The size of the request without the picture, in bytes."""
    height: int
    width: int
    """The size of the picture as sent."""
    detail: str | None
    """The requested level of detail, if the vendor supports this setting."""
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

    A classifier whose answers must be mapped to labels also has an attribute `names`, a `Naming`.
    """

    @property
    def fingerprint(self) -> str:
        """A digest of everything that can change the answers; it contains no secrets."""

    @property
    def labels(self) -> tuple[str, ...] | None:
        """All labels that the classifier can return, or None if they are unknown."""

    @property
    def limits(self) -> Limits:
        """The limits and prices of the classifier."""

    def prepare(self, pixels: Pixels) -> Prepared:
        """Prepare one picture for sending; this runs in threads, before any query is paid for."""

    async def label(self, batch: Sequence[Prepared]) -> list[Answer]:
        """Return one answer per picture, in order; raises a ClassifierError on failure."""

    async def close(self) -> None:
        """Release connections and processes."""


@runtime_checkable
class Rereadable(Protocol):
    """A classifier whose stored replies can be read again with different settings, without new queries."""

    @property
    def reading(self) -> str:
        """A digest of how replies are read: paths, labels, thresholds."""

    def reread(self, reply: bytes, status: int | None) -> Answer:
        """Read the answer in a stored reply; raises a ClassifierError if it is invalid."""


AnyClassifier = Classifier[Any]
"""A classifier with any type of prepared picture."""


def fingerprint(kind: str, parts: Mapping[str, object]) -> str:
    """A short hash, prefixed with a tag, of everything that can change the answers."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return f"{kind}:{hashlib.blake2b(text.encode(), digest_size=12, person=b'looktwice').hexdigest()}"


def reading(classifier: AnyClassifier) -> str:
    """The digest of how a classifier's replies are read; empty if this is part of the fingerprint."""
    return classifier.reading if isinstance(classifier, Rereadable) else ""


def size_in_bytes(prepared: object) -> int | None:
    """The size of a prepared picture in a request; returns None if the size is unknown."""
    parts = prepared if isinstance(prepared, tuple) else (prepared,)
    sent = [part for part in parts if isinstance(part, bytes | np.ndarray)]
    return next((part.nbytes if isinstance(part, np.ndarray) else len(part) for part in sent), None)


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
"""The type of answers: one label, or any number of tags."""


class Tokens(NamedTuple):
    """The billed tokens of a query and its reply."""

    input: int = 0
    """Input tokens, including those from a cache."""
    output: int = 0
    cached: int = 0
    """Input tokens that were read from a cache."""
    written: int = 0
    """Input tokens that were written to a cache, if these have a separate price."""


FARTHEST = 1e300
"""The value that replaces infinite logits; the difference of two such values is still finite."""


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
    """The classifier's score for the label, on the classifier's own scale."""
    status: int | None = None
    raw: bytes | None = None
    options: tuple[Option, ...] = ()
    """The first labels, at most KEPT_OPTIONS, of the ranked list, if the classifier returned one."""
    usage: Tokens | None = None
    """The billed tokens, if reported."""

    def listed(self) -> tuple[Option, ...]:
        """The ranked list; without one, only the label and its score, or nothing if there is no score."""
        return self.options or (() if self.score is None else ((self.label, self.score),))


POSITION = re.compile(r"#+[0-9]+")


class Naming(Protocol):
    """Maps words to labels; an optional `why_none` explains why a word has no label."""

    @property
    def renames(self) -> Mapping[str, str]:
        """The renamed words, if they can be listed."""

    def label(self, word: str) -> str:
        """The label of a word; returns NO_LABEL if the word has none."""


class Plain:
    """A naming in which each word is already a label."""

    renames: Mapping[str, str] = MappingProxyType({})

    def label(self, word: str) -> str:
        return word


def names_of(classifier: AnyClassifier) -> Naming:
    """The naming that maps a classifier's answers to labels."""
    names: Naming = getattr(classifier, "names", Plain())
    return names


def why_none(names: Naming, word: str) -> str:
    """A message that explains why a word has no label; the method `why_none` of the naming may provide a reason."""
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
    """Renames the labels that another naming returns."""

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

    The scores of different words are summed, since they are treated as parts of one class. A repeated word is used only
    once, at its better rank, since a detector lists a class once per object.
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
    """The type of a classifier's answers; one label by default."""
    kind: AnswerKind = getattr(classifier, "answer_kind", "label")
    return kind


def tags(names: Naming, answer: Answer) -> tuple[Option, ...]:
    """Map an answer to tags, in the order of the answer; an answer without a label has no tags.

    Words with the same tag are merged, and the largest of their scores is used.
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
