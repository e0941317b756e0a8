"""The closed box: what looktwice needs of a classifier, and what the words of its answers mean.

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
from typing import Any, Generic, NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from looktwice.errors import PermanentError
from looktwice.phrasing import AS_DESCRIBED, Phrasing
from looktwice.pictures.image import PHOTO, WorkingSize

Pixels = NDArray[np.uint8]

Settings = Mapping[str, object]

Prepared = TypeVar("Prepared")


@dataclass(frozen=True)
class Terms:
    """How a classifier likes to be asked; nothing here changes its answers but the working size."""

    batch: int = 1
    """Pictures in one call."""
    concurrency: int = 8
    """Calls at the same time."""
    per_second: float | None = None
    """Questions a second that it allows."""
    price_micros: int = 0
    """The price of a question, in millionths of the currency."""
    local: bool = False
    """It runs on this machine and is free, so answers need no ledger."""
    working_size: WorkingSize = PHOTO
    """How large a picture it can use."""
    jpeg_above: int | None = None
    """Pixels of the longer side beyond which it is sent JPEG, though its fingerprint stands for PNG."""

    def sent_as(self, height: int, width: int) -> str:
        """How such a picture is sent, where that is not what the fingerprint stands for; empty elsewhere."""
        return "jpeg 4:4:4" if self.jpeg_above and max(height, width) > self.jpeg_above else ""


@runtime_checkable
class Prompted(Protocol):
    """What a classifier has besides that takes a prompt, so that views can change the words of a question."""

    def words(self, phrasing: Phrasing) -> str:
        """The text of a question put so; a PermanentError where it cannot be."""

    def prepare_as(self, pixels: Pixels, phrasing: Phrasing) -> object:
        """One picture as the classifier takes it, with the question put so."""


class Weight(NamedTuple):
    """What of a question is billed, as far as it can be told before it is sent."""

    characters: int
    """Of its words, and of the schema that its answer must follow."""
    bytes: int
    """Of all that is sent but the picture."""
    height: int
    width: int
    """Of the picture as it is sent."""
    detail: str | None
    """How closely the model is told to look at it."""
    output: int
    """Tokens of an answer, about."""
    most_output: int | None
    """Tokens after which an answer is cut off, where that is set."""


@runtime_checkable
class Metered(Protocol):
    """What a classifier has besides that is billed by the token."""

    @property
    def model(self) -> str:
        """The name under which it is billed."""

    def weigh(self, height: int, width: int, phrasing: Phrasing = AS_DESCRIBED) -> Weight:
        """What a question about a picture of this size comes to, put so."""


@runtime_checkable
class Classifier(Protocol, Generic[Prepared]):
    """A closed classifier: pictures in, one label each out.

    One whose words are not yet labels also has `names`, a `Naming`.
    """

    @property
    def fingerprint(self) -> str:
        """Changes when anything that could change its words changes, and only then; holds no secret."""

    @property
    def labels(self) -> tuple[str, ...] | None:
        """Every label it can give, where that is known."""

    @property
    def terms(self) -> Terms:
        """How it likes to be asked."""

    def prepare(self, pixels: Pixels) -> Prepared:
        """One picture as the classifier takes it; heavy work, called in threads, before anything is paid."""

    async def label(self, batch: Sequence[Prepared]) -> list[Answer]:
        """One answer a picture, in their order; a ClassifierError says what kind of failure it was."""

    async def close(self) -> None:
        """Give back connections and processes."""


AnyClassifier = Classifier[Any]
"""A classifier whose prepared form of a picture is its own affair."""


def fingerprint(kind: str, parts: Mapping[str, object]) -> str:
    """A short tagged hash of everything that could change answers."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return f"{kind}:{hashlib.blake2b(text.encode(), digest_size=12, person=b'looktwice').hexdigest()}"


def size_in_bytes(prepared: object) -> int | None:
    """What a prepared picture takes on its way to the classifier; None where that cannot be told."""
    if isinstance(prepared, bytes):
        return len(prepared)
    if isinstance(prepared, np.ndarray):
        return prepared.nbytes
    return (
        next((len(part) for part in prepared if isinstance(part, bytes)), None) if isinstance(prepared, tuple) else None
    )


def lasting(fingerprint: str) -> str:
    """The part of a fingerprint that is the same in every process; see `PythonClassifier`."""
    return fingerprint.partition("#")[0]


NO_LABEL = ""
"""The label of an answer that was given and paid, but from which no label could be read."""


MOST_OPTIONS = 10
"""Labels of a ranked list that are kept of one answer."""

Option = tuple[str, float | None]
"""A label of a ranked list, and its score where it has one."""


Usage = tuple[tuple[str, int], ...]
"""What an answer took by the classifier's own count, under its own names: `(("input_tokens", 300), …)`."""


class Tokens(NamedTuple):
    """The tokens that a question and its reply are billed for."""

    input: int = 0
    """Of the question, those from a cache included."""
    output: int = 0
    cached: int = 0
    """Those of the input that were read from a cache."""
    written: int = 0
    """Those of the input that were written to a cache, where that has a price of its own."""


def probabilities(scores: NDArray[np.floating]) -> NDArray[np.float64]:
    """(K,): the scores of all classes about one picture as probabilities.

    Numbers in [0, 1] stay as they are, percentages are divided by 100, and anything else is taken for logits.
    """
    told = np.nan_to_num(scores.astype(np.float64))
    if told.min() >= 0 and told.max() <= 1 + 1e-3:
        return np.minimum(told, 1.0)
    if told.min() >= 0 and abs(told.sum() - 100) < 0.5:
        return told / 100
    powers = np.exp(told - told.max())
    shares: NDArray[np.float64] = powers / powers.sum()
    return shares


@dataclass(frozen=True, slots=True)
class Answer:
    """What a classifier said about one picture."""

    label: str
    score: float | None = None
    """Its own claim about the label, on whatever scale it has."""
    status: int | None = None
    raw: bytes | None = None
    options: tuple[Option, ...] = ()
    """The first labels of its ranked list, at most MOST_OPTIONS, where it gave one."""
    usage: Usage = ()
    """What it took by the classifier's own count, where it told."""

    def listed(self) -> tuple[Option, ...]:
        """Its ranked list; the label alone where it gave no list but a score, and nothing where it gave neither."""
        return self.options or (() if self.score is None else ((self.label, self.score),))


POSITION = re.compile(r"#+[0-9]+")


class Naming(Protocol):
    """From words to labels; one that has `why_none`, too, tells why a word means none."""

    @property
    def renames(self) -> Mapping[str, str]:
        """The words that are given another name, as far as they can be listed."""

    def label(self, word: str) -> str:
        """The label that a word means; NO_LABEL if it means none."""


class Plain:
    """Words that are labels as they are."""

    renames: Mapping[str, str] = MappingProxyType({})

    def label(self, word: str) -> str:
        return word


def names_of(classifier: AnyClassifier) -> Naming:
    """What the words in a classifier's answers mean."""
    names: Naming = getattr(classifier, "names", Plain())
    return names


def why_none(names: Naming, word: str) -> str:
    """Why an answer whose word means no label holds none, for people; a naming may know more, as `why_none`."""
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
                "list all of them, in the order of the classifier"
            )
        return word[1:]


def merged(names: Naming, answer: Answer) -> tuple[Option, ...]:
    """The labels that a ranked list means: words that mean the same are one label, at the better place.

    Their scores are added up, as those of parts of one class.
    """
    found: dict[str, float | None] = {}
    for word, score in answer.listed():
        label = names.label(word)
        if label in found and score is not None:
            found[label] = (found[label] or 0.0) + score
        elif label != NO_LABEL:
            found.setdefault(label, score)
    return tuple(found.items())


def position_word(index: int) -> str:
    """The word for a position."""
    return f"#{index}"


def as_word(text: str) -> str:
    """How a text is written: as it is, unless it looks like a position."""
    return f"#{text}" if text.startswith("#") and POSITION.fullmatch(text) else text
