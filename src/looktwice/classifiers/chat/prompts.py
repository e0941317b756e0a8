"""The prompts for a chat model, and the mapping from the text of its reply to a label.

The ledger stores the text, which is mapped to a label on reading, so the rules can change without new queries.
docs/chat-replies.md has examples.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files

from looktwice.classifiers.base import NO_LABEL, Option
from looktwice.errors import PermanentError
from looktwice.views import Phrasing

# Prompts -------------------------------------------------------------------------------------------------------------


QUESTION = "What does this picture show?"
ONE = "Answer with exactly one label of this list, written as it is there, and nothing else."
RANKED = """\
Answer with the {count} most probable labels of this list, the most probable first, written
as they are there, as JSON: {{"labels": [...]}}, and nothing else."""
DESCRIBED = """\
First describe the picture in one sentence, then choose exactly one label of this list, written as it is there. \
Answer as JSON: {"description": "...", "label": "..."}, and nothing else."""
DESCRIBED_RANKED = """\
First describe the picture in one sentence, then choose the {count} most probable labels of this list, the most \
probable first, written as they are there. Answer as JSON: {{"description": "...", "labels": [...]}}, and nothing \
else."""
PROBABLE = """\
Answer with the {count} most probable labels of this list, the most probable first, written as they are there, each \
with the probability that it is right, as JSON: {{"labels": [{{"label": "...", "probability": ...}}, ...]}}, and \
nothing else."""
DESCRIBED_PROBABLE = """\
First describe the picture in one sentence, then choose the {count} most probable labels of this list, the most \
probable first, written as they are there, each with the probability that it is right. Answer as JSON: \
{{"description": "...", "labels": [{{"label": "...", "probability": ...}}, ...]}}, and nothing else."""
UNSURE = "unsure"
MAY_BE_UNSURE = ' If you cannot tell, give "unsure" as the label.'
LABELS = "{labels}"
"""Where a prompt lists the labels."""
USUAL_RANKING = 5
"""The number of labels that the view `ranked` asks for."""


def usual_wordings() -> tuple[str, ...]:
    """The paraphrases that come with looktwice."""
    return tuple((files("looktwice.classifiers.chat") / "wordings.txt").read_text("utf-8").splitlines())


@dataclass(frozen=True)
class Prompts:
    """All prompts about one list of labels."""

    labels: tuple[str, ...]
    prompt: str = ""
    """The whole prompt with {labels} in it; empty for the default."""
    ranked: int = 0
    """The number of labels to rank in every query; 0 for one label."""
    wordings: tuple[str, ...] | None = None
    """Custom paraphrases, each a question or, with {labels} in it, a whole prompt; None for the defaults."""
    enumerated: bool = True
    """Whether a schema lists the labels that are allowed."""
    probabilities: bool = False
    """Whether ranked labels come with their probabilities."""
    unsure: bool = False
    """Whether `unsure` is allowed beside the labels."""

    def template(self, phrasing: Phrasing) -> str:
        """The question with the placeholder {labels}; raises a PermanentError if this wording is not possible."""
        if phrasing.ranked and self.ranked:
            raise PermanentError(
                "the view 'ranked' changes nothing, because the classifier's description sets ranked = "
                f"{self.ranked}; leave one of them out",
                code="view-unsupported",
            )
        question = self._wording(phrasing.wording) if phrasing.wording else self.prompt or QUESTION
        if LABELS not in question:
            return f"{question} {self._demand(phrasing)}\n\n{LABELS}"
        asks_more = phrasing.ranked or phrasing.describe
        return f"{question}\n\n{self._demand(phrasing)}" if asks_more else question

    def text(self, phrasing: Phrasing) -> str:
        """The prompt."""
        return self.template(phrasing).replace(LABELS, "\n".join(self._ordered(phrasing)))

    def schema(self, phrasing: Phrasing) -> dict[str, object]:
        """The JSON schema of the answer."""
        label = {"type": "string", **({"enum": [*self._ordered(phrasing)]} if self.enumerated else {})}
        fields: dict[str, object] = {"description": {"type": "string"}} if phrasing.describe else {}
        item = _object({"label": label, "probability": {"type": "number"}}) if self.probabilities else label
        return _object(
            fields | ({"labels": {"type": "array", "items": item}} if self.ranking(phrasing) else {"label": label})
        )

    def ranking(self, phrasing: Phrasing) -> int:
        """The number of labels that the answer ranks; 0 for one label."""
        return self.ranked or (min(USUAL_RANKING, len(self.labels)) if phrasing.ranked else 0)

    def _ordered(self, phrasing: Phrasing) -> Sequence[str]:
        labels = phrasing.order.permuted(self.labels) if phrasing.order else self.labels
        return (*labels, UNSURE) if self.unsure else labels

    def _demand(self, phrasing: Phrasing) -> str:
        """The required format of the answer."""
        demand = DESCRIBED if phrasing.describe else ONE
        if count := self.ranking(phrasing):
            ranked, probable = (DESCRIBED_RANKED, DESCRIBED_PROBABLE) if phrasing.describe else (RANKED, PROBABLE)
            demand = (probable if self.probabilities else ranked).format(count=count)
        return demand + MAY_BE_UNSURE if self.unsure else demand

    def _wording(self, number: int) -> str:
        if self.prompt and self.wordings is None:
            raise PermanentError(
                f"the view 'wording:{number}' paraphrases the default prompt, but the classifier's description has "
                'its own prompt; specify a file of paraphrases with wordings = "…", or leave out the view',
                code="view-unsupported",
            )
        known = usual_wordings() if self.wordings is None else self.wordings
        if number > len(known):
            raise PermanentError(
                f"there is no wording {number}; there are {len(known)}: {', '.join(map(repr, known))}",
                code="view-unsupported",
            )
        return known[number - 1]


def _object(fields: Mapping[str, object]) -> dict[str, object]:
    """The JSON schema of an object with these fields."""
    return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}


# From a reply to labels ----------------------------------------------------------------------------------------------


LONGEST = 1000
"""The maximum number of characters of a reply that are stored; no label is longer."""
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
    """The reply is not exactly one label from the list, but another word, several labels, or prose."""
    UNSURE = "unsure"
    """The model answered `unsure`, where that is allowed."""

    @property
    def word(self) -> str:
        """The label that the ledger stores for an answer without text."""
        return f"∅ {self}"


SENTENCES = {
    Missing.REFUSAL: "the model declined to answer",
    Missing.BLOCKED: "the vendor's filter blocked the answer",
    Missing.CUT: "the answer was cut off before its end; raise max_tokens if the description sets it",
    Missing.EMPTY: "the answer was empty",
    Missing.UNLISTED: "the answer was not exactly one label from the list",
    Missing.UNSURE: "the model is unsure",
}


WITHOUT_WORDS = {missing.word: missing for missing in Missing}


class Lexicon:
    """Maps reply texts to labels."""

    def __init__(
        self,
        labels: Sequence[str],
        synonyms: Mapping[str, Sequence[str]],
        without_label: Mapping[Missing, str] | None = None,
        unsure: bool = False,
    ) -> None:
        """`without_label` maps reasons for a missing label to labels; `unsure` also allows that answer."""
        self._unsure = unsure
        self.asked = tuple(labels)
        """The labels to choose from."""
        self._without = without_label or {}
        self.labels = tuple(dict.fromkeys([*labels, *self._without.values()]))
        if unknown := set(synonyms) - set(labels):
            raise PermanentError(f"synonyms are given for {sorted(unknown)[0]!r}, which is not a label")
        words = [*zip(labels, labels, strict=True), *((w, label) for label, more in synonyms.items() for w in more)]
        if twice := [word for word, count in Counter(word for word, _ in words).items() if count > 1]:
            raise PermanentError(
                f"{twice[0]!r} appears twice among the labels and synonyms; each must stand for a single label"
            )
        if not all(word.strip() for word in (*(word for word, _ in words), *self._without.values())):
            raise PermanentError("a label or synonym is empty")
        if unsure and any(_plain(word) == UNSURE for word, _ in words):
            raise PermanentError(f"{UNSURE!r} is already a label or synonym; leave out unsure = true")
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
        if self._unsure and _plain(word) == UNSURE:
            return Missing.UNSURE
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


def options_of(reply: str) -> list[Option]:
    """The labels of a ranked answer, the most probable first, or the text of any other.

    They have probabilities if every label was returned with one, from 0 to 1 or in per cent.
    """
    value = _json(_bare(reply))
    ranked = value.get("labels") if isinstance(value, dict) else value
    options: dict[str, object] = {}
    for entry in ranked if isinstance(ranked, list) else ():
        word, probability = (entry.get("label"), entry.get("probability")) if isinstance(entry, dict) else (entry, None)
        if isinstance(word, str | int):
            options.setdefault(str(word), probability)
    given = [p for p in options.values() if isinstance(p, int | float) and not isinstance(p, bool) and 0 <= p <= 100]
    if not options or len(given) < len(options):
        return [(word, None) for word in options] or [(word_of(reply), None)]
    whole = 100.0 if max(given) > 1 else 1.0
    ranks = sorted(range(len(given)), key=lambda place: -given[place])
    return [([*options][place], given[place] / whole) for place in ranks]


def word_of(reply: str) -> str:
    """Extract the text of an answer from JSON and code fences."""
    text = _bare(reply)
    value = _json(text)
    if isinstance(value, dict):
        label = value.get("label")
        return str(label) if isinstance(label, (str, int)) else ""
    # A label can be a number, which is JSON too: then the text itself is meant.
    return value if isinstance(value, str) else text


def probability_of(word: str, tokens: Sequence[tuple[bytes, float]]) -> float | None:
    """The probability of a word's tokens, each with its log probability, at its last occurrence; None without one."""
    written, wanted = b"".join(text for text, _ in tokens), word.encode("utf-8", "replace")
    start = written.rfind(wanted) if wanted else -1
    if start < 0:
        return None
    at, log = 0, 0.0
    for text, logprob in tokens:
        log += logprob if at < start + len(wanted) and start < at + len(text) else 0.0
        at += len(text)
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
