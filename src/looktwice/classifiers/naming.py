"""What the words of a classifier mean.

A ledger keeps a classifier's own words, and they get their meaning when they are read: a text is itself unless it is
renamed, and a position such as `#3` is the label that stands there. So names can change and no answer is asked again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from looktwice.classifiers.base import NO_LABEL, Answer, AnyClassifier, Option
from looktwice.errors import PermanentError

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
        listed = {position(index): rename.get(label, label) for index, label in enumerate(labels or ())}
        numbers = {f"#{word}": label for word, label in rename.items() if labels is None and word.isdecimal()}
        nothing = {NO_LABEL: empty} if empty else {}
        self.renames = {**{text(word): label for word, label in rename.items()}, **numbers, **listed, **nothing}
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


def position(index: int) -> str:
    """How a position is written."""
    return f"#{index}"


def text(said: str) -> str:
    """How a text is written: as it is, unless it looks like a position."""
    return f"#{said}" if said.startswith("#") and POSITION.fullmatch(said) else said
