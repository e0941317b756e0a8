"""Why a verdict is what it is, in one sentence that a person understands."""

from __future__ import annotations

from collections.abc import Sequence

from looktwice.errors import ViewError
from looktwice.views import (
    Affine,
    Again,
    Blur,
    Chain,
    Elastic,
    Gaussian,
    Mirror,
    Rotation,
    Shift,
    Tone,
    Turn,
    View,
    Zoom,
    parse,
)

MOST_LABELS = 3
"""Other labels that a sentence names."""


def sentence(label: str, base: str, confidence: float, votes: Sequence[tuple[str, str | None]]) -> str:
    """How many views agree, who says what else, and how often such pictures are right.

    >>> sentence("coat", "coat", 0.93, [("mirror", "shirt"), ("turn:8", "coat")])
    '1 of 2 views agree; the mirrored one says shirt; such pictures are right 93 % of the time.'
    """
    said = [(view, answer) for view, answer in votes if answer is not None]
    agree = sum(answer == label for _, answer in said)
    parts = [f"{agree} of {len(said)} views agree" if said else "no view was asked", *_dissent(label, said)]
    if base != label:
        parts.append(f"the picture itself was called {base}")
    text = "; ".join([*parts, f"such pictures are right {percent(confidence)} of the time."])
    return text[0].upper() + text[1:]


def percent(share: float) -> str:
    """A share in words: never 100 %, which no evidence gives, and with a decimal where it matters."""
    if share > 0.9995:
        return "more than 99.9 %"
    return f"{100 * share:.1f} %" if share >= 0.985 else f"{100 * share:.0f} %"


def adjective(view: str) -> str:
    """What a view looks like, or nothing where it is no view.

    >>> adjective("mirror+turn:10"), adjective("shift:0,-0.1"), adjective("photo.jpg")
    ('mirrored and left-turned', 'raised', '')
    """
    try:
        return _adjective(parse(view))
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


def _adjective(view: View) -> str:
    match view:
        case Chain(views=parts):
            return " and ".join(_adjective(part) for part in parts)
        case Turn(degrees=degrees):
            return "left-turned" if degrees > 0 else "right-turned"
        case Shift():
            return _shift(view)
        case Zoom(factor=factor):
            return "enlarged" if factor > 1 else "shrunken"
        case Tone():
            return _tone(view)
    return WORDS.get(type(view), "changed")


def _shift(shift: Shift) -> str:
    if shift.right and shift.down:
        return "shifted"
    if shift.right:
        return "right-shifted" if shift.right > 0 else "left-shifted"
    return "lowered" if shift.down > 0 else "raised"


def _tone(tone: Tone) -> str:
    words = [
        ("brighter", tone.brightness > 0),
        ("darker", tone.brightness < 0),
        ("starker", tone.contrast > 1),
        ("paler", tone.contrast < 1),
        ("greyer", tone.grey > 0),
        ("warmer", tone.cast > 0),
        ("colder", tone.cast < 0),
    ]
    return " and ".join(word for word, true in words if true) or "unchanged"


WORDS: dict[type[View], str] = {
    Again: "repeated",
    Mirror: "mirrored",
    Blur: "blurred",
    Gaussian: "noisy",
    Rotation: "turned",
    Elastic: "warped",
    Affine: "moved",
}
