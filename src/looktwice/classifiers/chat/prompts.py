"""Prompts, and the schema of answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from looktwice.errors import PermanentError
from looktwice.views import Phrasing

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

    def template(self, phrasing: Phrasing) -> str:
        """The question with the placeholder {labels}; raises a PermanentError if this wording is not possible."""
        if phrasing.ranked and self.ranked:
            raise PermanentError(
                "the view 'ranked' changes nothing, because the description of the classifier says ranked = "
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
        fields |= {"labels": {"type": "array", "items": label}} if self.ranking(phrasing) else {"label": label}
        return {"type": "object", "properties": fields, "required": [*fields], "additionalProperties": False}

    def ranking(self, phrasing: Phrasing) -> int:
        """How many labels the answer ranks; 0 for one label."""
        return self.ranked or (min(USUAL_RANKING, len(self.labels)) if phrasing.ranked else 0)

    def _ordered(self, phrasing: Phrasing) -> Sequence[str]:
        return phrasing.order.permuted(self.labels) if phrasing.order else self.labels

    def _demand(self, phrasing: Phrasing) -> str:
        """The required format of the answer."""
        if count := self.ranking(phrasing):
            return (DESCRIBED_RANKED if phrasing.describe else RANKED).format(count=count)
        return DESCRIBED if phrasing.describe else ONE

    def _wording(self, number: int) -> str:
        if self.prompt and self.wordings is None:
            raise PermanentError(
                f"the view 'wording:{number}' paraphrases the usual prompt, and the description of the classifier has "
                'its own; name a file of its paraphrases as wordings = "…", or leave the view out',
                code="view-unsupported",
            )
        known = usual_wordings() if self.wordings is None else self.wordings
        if number > len(known):
            raise PermanentError(
                f"there is no wording {number}; there are {len(known)}: {', '.join(map(repr, known))}",
                code="view-unsupported",
            )
        return known[number - 1]
