"""Map the text of a model's reply to a label.

The ledger stores the text, and this module maps it to a label, so the rules can change without new queries.
docs/chat-replies.md has examples.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from looktwice.classifiers.base import NO_LABEL, Usage
from looktwice.errors import PermanentError

LONGEST = 1000
"""The most characters of a reply that are stored; no label is longer."""
FENCE = re.compile(r"```(?:\w+)?\s*(.*?)\s*```", re.DOTALL)
OBJECT = re.compile(r"\{[^{}]*\}")
REFUSAL = re.compile(
    r"(i'm |i am |we're |we are )?(very )?(sorry|unable)\b"
    r"|(i|we) (can(no|')t|can not|won't|will not|must decline|apologi[sz]e)\b|as an ai\b",
    re.IGNORECASE,
)
"""How refusals begin."""


class Missing(StrEnum):
    """Why an answer has no label."""

    REFUSAL = "refusal"
    """The model declined to answer."""
    BLOCKED = "blocked"
    """The vendor's filter blocked the query or the answer."""
    CUT = "cut"
    """The answer was truncated, for example at a token limit."""
    EMPTY = "empty"
    """The reply is empty."""
    UNLISTED = "unlisted"
    """The reply is not exactly one label of the list, but another word, several labels, or prose."""

    @property
    def word(self) -> str:
        """The label that the ledger stores for an answer without text."""
        return f"∅ {self}"


SENTENCES = {
    Missing.REFUSAL: "the model declined to answer",
    Missing.BLOCKED: "the vendor's filter blocked it",
    Missing.CUT: "it was cut off before its end; raise max_tokens where that is set",
    Missing.EMPTY: "it was empty",
    Missing.UNLISTED: "it was not one label of the list",
}


WITHOUT_WORDS = {missing.word: missing for missing in Missing}


class Token(NamedTuple):
    """A token of a reply with its log probability."""

    text: bytes
    logprob: float


class Completion(NamedTuple):
    """The content of a reply: the model's text, or why there is none, and the vendor's token count."""

    text: str | Missing
    usage: Usage = ()
    tokens: tuple[Token, ...] = ()
    """The tokens of the text, if the vendor reports their probabilities."""


class Lexicon:
    """Maps texts of replies to labels."""

    def __init__(
        self,
        labels: Sequence[str],
        synonyms: Mapping[str, Sequence[str]],
        without_label: Mapping[Missing, str] | None = None,
    ) -> None:
        """`without_label` maps reasons for a missing label to labels."""
        self.asked = tuple(labels)
        """The labels to choose from."""
        self._without = without_label or {}
        self.labels = tuple(dict.fromkeys([*labels, *self._without.values()]))
        if unknown := set(synonyms) - set(labels):
            raise PermanentError(f"synonyms are given for {sorted(unknown)[0]!r}, which is not a label")
        words = [*zip(labels, labels, strict=True), *((w, label) for label, more in synonyms.items() for w in more)]
        if twice := [word for word, count in Counter(word for word, _ in words).items() if count > 1]:
            raise PermanentError(f"{twice[0]!r} is given twice among labels and synonyms; each must mean one label")
        if not all(word.strip() for word in (*(word for word, _ in words), *self._without.values())):
            raise PermanentError("a label or synonym is empty")
        self.renames = {word: label for word, label in words if word != label}
        self.renames |= {missing.word: label for missing, label in self._without.items()}
        self._exact = dict(words)
        self._loose = _unambiguous([(_plain(word), label) for word, label in words])

    def label(self, word: str) -> str:
        """The label of a word, ignoring case and punctuation; NO_LABEL for anything else."""
        label = self._exact.get(word) or self._loose.get(_plain(word))
        return label or self._without.get(self.missing(word), NO_LABEL)

    def why_none(self, word: str) -> str:
        """Why a word is not a label, as a sentence."""
        return SENTENCES[self.missing(word)]

    def missing(self, word: str) -> Missing:
        """Why a word is not a label, as a value."""
        if missing := WITHOUT_WORDS.get(word):
            return missing
        if not _plain(word):
            return Missing.EMPTY
        return Missing.REFUSAL if REFUSAL.match(word.replace("’", "'")) else Missing.UNLISTED


def _unambiguous(words: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Words that are ambiguous if case and punctuation are ignored, such as "C" and "C++"."""
    meanings: dict[str, set[str]] = {}
    for word, label in words:
        meanings.setdefault(word, set()).add(label)
    return {word: labels.pop() for word, labels in meanings.items() if word and len(labels) == 1}


def _plain(text: str) -> str:
    """The words of a text in lower case, without punctuation."""
    return " ".join(re.split(r"[\W_]+", unicodedata.normalize("NFKC", text).casefold())).strip()


# From a text to words ----------------------------------------------------------------------------------------------


def words_of(reply: str) -> list[str]:
    """The labels of a ranked answer, the most probable first, or the text of any other."""
    value = _json(_bare(reply))
    ranked = value.get("labels") if isinstance(value, dict) else value
    words = [str(word) for word in ranked if isinstance(word, (str, int))] if isinstance(ranked, list) else []
    return list(dict.fromkeys(words)) or [word_of(reply)]


def word_of(reply: str) -> str:
    """Extract the text of an answer from JSON and code fences."""
    text = _bare(reply)
    value = _json(text)
    if isinstance(value, dict):
        label = value.get("label")
        return str(label) if isinstance(label, (str, int)) else ""
    # A label can be a number, which is JSON too: then the text itself is meant.
    return value if isinstance(value, str) else text


def probability_of(word: str, tokens: Sequence[Token]) -> float | None:
    """The probability of a word's tokens at its last occurrence; None if it does not occur."""
    written, wanted = b"".join(token.text for token in tokens), word.encode("utf-8", "replace")
    start = written.rfind(wanted) if wanted else -1
    if start < 0:
        return None
    at, log = 0, 0.0
    for token in tokens:
        log += token.logprob if at < start + len(wanted) and start < at + len(token.text) else 0.0
        at += len(token.text)
    return math.exp(min(log, 0.0))


def keepable(word: str) -> str:
    """Truncate a text, without surrogates and null characters, which ledgers cannot store."""
    return word[:LONGEST].encode("utf-8", "replace").decode().replace("\0", "?")


def _bare(reply: str) -> str:
    """Strip a code fence or prose around a single JSON object; otherwise return the text."""
    text = reply.strip()
    fenced = FENCE.fullmatch(text)
    text = fenced[1] if fenced else text
    objects = OBJECT.findall(text) if _json(text) is None else []
    return objects[0] if len(objects) == 1 and isinstance(_json(objects[0]), dict) else text


def _json(text: str) -> object:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value
