"""Why a verdict is what it is, in one sentence that a person understands."""

from __future__ import annotations

from collections.abc import Sequence

from looktwice.errors import ViewError
from looktwice.views import parse

MOST_LABELS = 3
"""Other labels that a sentence names."""


def sentence(
    label: str, base: str, confidence: float, votes: Sequence[tuple[str, str | None]], score: float | None = None
) -> str:
    """How many views agree, who says what else, the classifier's own score, and how often such pictures are right.

    >>> sentence("coat", "coat", 0.93, [("mirror", "shirt"), ("turn:8", "coat")])
    '1 of 2 views agree; the mirrored one says shirt; such pictures are right 93 % of the time.'
    >>> sentence("coat", "coat", 0.71, [], score=0.95)
    'No view was asked; the classifier itself gave coat a score of 0.95; such pictures are right 71 % of the time.'
    """
    said = [(view, answer) for view, answer in votes if answer is not None]
    agree = sum(answer == label for _, answer in said)
    parts = [f"{agree} of {len(said)} views agree" if said else "no view was asked", *_dissent(label, said)]
    if base != label:
        parts.append(f"the picture itself was called {base}")
    if score is not None:
        parts.append(f"the classifier itself gave {base} a score of {score:.3g}")
    text = "; ".join([*parts, f"such pictures are right {percent(confidence)} of the time."])
    return text[0].upper() + text[1:]


def percent(share: float) -> str:
    """A share in words: never 100 %, which no evidence gives, and with a decimal where it matters."""
    if share > 0.9995:
        return "more than 99.9 %"
    return f"{100 * share:.1f} %" if share >= 0.985 else f"{100 * share:.0f} %"


def alternatives(labels: Sequence[str | None]) -> str:
    """A prediction set in words; None is any other label.

    >>> alternatives(["coat", "shirt", None])
    'coat, shirt or any other label'
    """
    words = ["any other label" if label is None else label for label in labels] or ["no label"]
    return " or ".join(filter(None, [", ".join(words[:-1]), words[-1]]))


def adjective(view: str) -> str:
    """What a view looks like, or nothing where it is no view.

    >>> adjective("mirror+turn:10"), adjective("shift:0,-0.1"), adjective("photo.jpg")
    ('mirrored and left-turned', 'raised', '')
    """
    try:
        return parse(view).adjective
    except ViewError:
        return ""


def _dissent(label: str, said: Sequence[tuple[str, str]]) -> list[str]:
    """Who says something else, the most frequent label first."""
    others: dict[str, list[str]] = {}
    for view, answer in said:
        if answer != label:
            others.setdefault(answer, []).append(view)
    ranked = sorted(others.items(), key=lambda item: -len(item[1]))
    parts = [f"{_who(views)} {answer}" for answer, views in ranked[:MOST_LABELS]]
    left = sum(len(views) for _, views in ranked[MOST_LABELS:])
    return [*parts, f"{left} say something else"] if left else parts


def _who(views: Sequence[str]) -> str:
    if len(views) > 1:
        return f"{len(views)} say"
    word = adjective(views[0])
    return f"the {word} one says" if word else f"{views[0]} says"
