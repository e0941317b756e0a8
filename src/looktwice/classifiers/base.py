"""Black-box classifiers: what looktwice needs of a classifier, and what the words of its answers mean.

A ledger keeps a classifier's own words, and they get their meaning when they are read: a text is itself unless it is
renamed, and a position such as `#3` is the label that stands there. So names can change and no answer is asked again.
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
    """The limits and costs of asking a classifier; of these only the working size affects its answers."""

    batch: int = 1
    """Pictures in one call."""
    concurrency: int = 8
    """Calls at the same time."""
    per_second: float | None = None
    """Questions a second that it allows."""
    price_micros: int = 0
    """The price of a question, in millionths of the currency."""
    local: bool = False
    """Whether it runs on this machine and is free, so that answers need no ledger."""
    working_size: WorkingSize = PHOTO
    """The size beyond which a larger picture adds nothing."""
    jpeg_above: int | None = None
    """Pixels of the longer side beyond which JPEG is sent in place of PNG."""

    def sent_as(self, height: int, width: int) -> str:
        """The encoding of a picture of this size where it differs from the fingerprint's; empty otherwise."""
        return "jpeg 4:4:4" if self.jpeg_above and max(height, width) > self.jpeg_above else ""


@runtime_checkable
class Prompted(Protocol):
    """A classifier that takes a prompt, so that views can change the wording of a question."""

    def words(self, phrasing: Phrasing) -> str:
        """The text of a question in this wording; a PermanentError where it is not possible."""

    def prepare_as(self, pixels: Pixels, phrasing: Phrasing) -> object:
        """One picture as the classifier takes it, with the question in this wording."""


class Weight(NamedTuple):
    """The parts of a question that are billed, as far as they are known before it is sent."""

    characters: int
    """Of its text, and of the schema that its answer must follow."""
    bytes: int
    """Of the request without the picture."""
    height: int
    width: int
    """Of the picture as it is sent."""
    detail: str | None
    """The level of detail that is requested, where the vendor has one."""
    output: int
    """The expected number of tokens of an answer."""
    most_output: int | None
    """The most tokens of an answer, where that is limited."""


@runtime_checkable
class Metered(Protocol):
    """A classifier that is billed by the token."""

    @property
    def model(self) -> str:
        """The name under which it is billed."""

    def weigh(self, height: int, width: int, phrasing: Phrasing = AS_DESCRIBED) -> Weight:
        """The tokens and pixels of a query about a picture of this size, in this wording."""


@runtime_checkable
class Classifier(Protocol, Generic[Prepared]):
    """A closed classifier: pictures in, one label each out.

    One whose words are not yet labels also has `names`, a `Naming`.
    """

    @property
    def fingerprint(self) -> str:
        """Changes if and only if something changes that could change its answers; contains no secret."""

    @property
    def labels(self) -> tuple[str, ...] | None:
        """All labels it can return, where they are known."""

    @property
    def limits(self) -> Limits:
        """The limits and costs of asking it."""

    def prepare(self, pixels: Pixels) -> Prepared:
        """One picture as the classifier takes it; processor work that runs in threads, before anything is paid."""

    async def label(self, batch: Sequence[Prepared]) -> list[Answer]:
        """One answer per picture, in order; raises the ClassifierError of the kind of failure."""

    async def close(self) -> None:
        """Release connections and processes."""


@runtime_checkable
class Rereadable(Protocol):
    """A classifier whose stored replies can be read in another way, which costs no query."""

    @property
    def reading(self) -> str:
        """Changes if and only if something changes that is read from a reply: paths, labels, thresholds."""

    def reread(self, reply: bytes, status: int | None) -> Answer:
        """The answer that a stored reply holds; raises the ClassifierError of one that does not fit."""


AnyClassifier = Classifier[Any]
"""A classifier with any prepared form of a picture."""


def fingerprint(kind: str, parts: Mapping[str, object]) -> str:
    """A short tagged hash of everything that could change answers."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return f"{kind}:{hashlib.blake2b(text.encode(), digest_size=12, person=b'looktwice').hexdigest()}"


def reading(classifier: AnyClassifier) -> str:
    """The digest of what is read from a classifier's replies; empty where that is part of the fingerprint."""
    return classifier.reading if isinstance(classifier, Rereadable) else ""


def size_in_bytes(prepared: object) -> int | None:
    """The size of a prepared picture in a request; None where it is unknown."""
    if isinstance(prepared, bytes):
        return len(prepared)
    if isinstance(prepared, np.ndarray):
        return prepared.nbytes
    return (
        next((len(part) for part in prepared if isinstance(part, bytes)), None) if isinstance(prepared, tuple) else None
    )


def lasting(fingerprint: str) -> str:
    """The part of a fingerprint that is stable across processes; see `PythonClassifier`."""
    return fingerprint.partition("#")[0]


NO_LABEL = ""
"""The label of an answer that was paid for but contains no readable label."""


KEPT_OPTIONS = 100
"""The most labels of a reply that are kept."""
MOST_OPTIONS = 10
"""The most labels of a ranked list that are asked for, or are evidence for one label."""

Option = tuple[str, float | None]
"""A label of a ranked list, and its score where it has one."""

AnswerKind = Literal["label", "tags"]
"""What an answer says: the best of its labels is true of the picture, or any number of its labels are."""


Usage = tuple[tuple[str, int], ...]
"""What an answer used, as counted and named by the classifier: `(("input_tokens", 300), …)`."""


class Tokens(NamedTuple):
    """The tokens that a question and its reply are billed for."""

    input: int = 0
    """Of the question, those from a cache included."""
    output: int = 0
    cached: int = 0
    """Those of the input that were read from a cache."""
    written: int = 0
    """Those of the input that were written to a cache, where that has a price of its own."""


FARTHEST = 1e300
"""What stands for an infinite logit: the difference of two is still a number."""


def probabilities(scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """(K,): the scores of all classes about one picture as probabilities.

    Numbers in [0, 1] stay as they are, percentages are divided by 100, and anything else is taken for logits.
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
    """The score that the classifier gives to the label, on its own scale."""
    status: int | None = None
    raw: bytes | None = None
    options: tuple[Option, ...] = ()
    """The first labels of its ranked list, at most KEPT_OPTIONS, where it gave one."""
    usage: Usage = ()
    """What it used, where the classifier reports it."""

    def listed(self) -> tuple[Option, ...]:
        """Its ranked list; the label alone where it gave no list but a score, and nothing where it gave neither."""
        return self.options or (() if self.score is None else ((self.label, self.score),))


POSITION = re.compile(r"#+[0-9]+")


class Naming(Protocol):
    """Maps words to labels; an optional `why_none` explains why a word means none."""

    @property
    def renames(self) -> Mapping[str, str]:
        """The words that are renamed, as far as they can be listed."""

    def label(self, word: str) -> str:
        """The label that a word means; NO_LABEL if it means none."""


class Plain:
    """Words that are labels as they are."""

    renames: Mapping[str, str] = MappingProxyType({})

    def label(self, word: str) -> str:
        return word


def names_of(classifier: AnyClassifier) -> Naming:
    """The meaning of the labels in a classifier's answers."""
    names: Naming = getattr(classifier, "names", Plain())
    return names


def why_none(names: Naming, word: str) -> str:
    """A message that says why the word of an answer means no label; `why_none` of the naming may add a reason."""
    tell: Callable[[str], str] | None = getattr(names, "why_none", None)
    return "the classifier's answer held no label" + (f": {tell(word)}" if tell else "")


class Names:
    """Labels by their position, words under other names, and a label for an answer without one."""

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
        """The label that a word means; a PermanentError where there are too few labels for a position."""
        known = self.renames.get(word)
        if known is not None:
            return known
        if not POSITION.fullmatch(word):
            return word
        if self._count is not None and not word.startswith("##"):
            raise PermanentError(
                f"the classifier answered with position {word[1:]}, but its description names {self._count} labels; "
                "list all of them, in the order of the classifier",
                code="reply-malformed",
            )
        return word[1:]


class Renamed:
    """The labels of another naming, some of them under other names."""

    def __init__(self, names: Naming, rename: Mapping[str, str]) -> None:
        self._names, self._rename = names, rename
        known = {word: rename.get(label, label) for word, label in names.renames.items()}
        self.renames: Mapping[str, str] = {**rename, **known}
        self.why_none = getattr(names, "why_none", None)

    def label(self, word: str) -> str:
        """The label that a word means."""
        label = self._names.label(word)
        return self._rename.get(label, label)


def merged(names: Naming, answer: Answer) -> tuple[Option, ...]:
    """The labels that a ranked list means: words that mean the same are one label, at the better place.

    Their scores are added up, as those of parts of one class. A word that is there twice counts once, where it is
    better: a detector lists a class for each object that it sees.
    """
    words: dict[str, float | None] = {}
    found: dict[str, float | None] = {}
    for word, score in answer.listed()[:MOST_OPTIONS]:
        words.setdefault(word, score)
    for word, score in words.items():
        label = names.label(word)
        if label in found and score is not None:
            found[label] = (found[label] or 0.0) + score
        elif label != NO_LABEL:
            found.setdefault(label, score)
    return tuple(found.items())


def answer_kind(classifier: AnyClassifier) -> AnswerKind:
    """The kind of a classifier's answers: one label, unless it has an `answer_kind`."""
    kind: AnswerKind = getattr(classifier, "answer_kind", "label")
    return kind


def tags(names: Naming, answer: Answer) -> tuple[Option, ...]:
    """The tags that an answer of tags means, in its order; an answer without a label has none.

    Words that mean the same are one tag, with the largest of their scores: one of them being true suffices.
    """
    found: dict[str, float | None] = {}
    for word, score in answer.listed():
        tag = names.label(word)
        if tag != NO_LABEL:
            known = [each for each in (found.get(tag), score) if each is not None]
            found[tag] = max(known, default=None)
    return tuple(found.items())


def position_word(index: int) -> str:
    """The word for a position."""
    return f"#{index}"


def as_word(text: str) -> str:
    """The word for a text: the text itself, escaped if it looks like a position."""
    return f"#{text}" if text.startswith("#") and POSITION.fullmatch(text) else text
