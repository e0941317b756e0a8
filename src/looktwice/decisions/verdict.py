"""A verdict: what to think of one picture, and why, in words.

It is the one schema of the command line, files, the service, Ray and notebooks: all of them write `Verdict.to_dict`, a
table has a column for each of its fields, and OpenAPI is derived from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, SkipValidation, computed_field

from looktwice.calibration.crossfit import Evidence
from looktwice.engine.outcome import Cause, Unscored
from looktwice.errors import ViewError
from looktwice.plots import notebook
from looktwice.views import parse

if TYPE_CHECKING:
    import pandas as pd

Decision = Literal["accept", "review"]
AGAIN = "again"
"""The view that shows the picture as it is."""
MOST_LABELS = 3
"""Other labels that a sentence names."""

_Bounds = Field(ge=0, le=1)
Share = Annotated[float, _Bounds, PlainSerializer(lambda share: round(share, 6), return_type=Annotated[float, _Bounds])]
"""A number in [0, 1], which is written with six decimals."""


_DESCRIBED = ConfigDict(frozen=True, use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class Asked:
    """One query about a picture, and its answer."""

    __pydantic_config__: ClassVar[ConfigDict] = _DESCRIBED
    classifier: str
    """The fingerprint of the classifier that was asked."""
    view: SkipValidation[str]
    """What was shown: `again` is the picture as it is; in a burst, the name of another photo."""
    label: str | None
    """None where the view was not asked, or no label could be read."""
    score: float | None = None
    """The classifier's own score of its answer, as it came; None where it gives none."""


@dataclass(frozen=True, slots=True)
class LabelProbability:
    """A label that a picture may have."""

    label: str
    probability: Share


class PictureVerdict(BaseModel):
    """What every verdict says of a picture, whatever was asked about it."""

    model_config = _DESCRIBED

    name: SkipValidation[str]
    """As the file system has it, which need not be Unicode."""
    digest: str = ""
    """Of the pixels that it is about; empty where they are those of several photos."""
    asked: tuple[Asked, ...]
    """Every query about it: the picture itself, then the views."""
    familiarity: Share | None = None
    """How much the picture and the answers about it are like the labelled ones: a p-value, at most 0.01 for one in a
    hundred pictures that are. None where the profile cannot tell."""
    unfamiliar_because: str | None = None
    """What stands out about a picture that is not like the labelled ones, so that the confidence means nothing."""
    decision: Decision | None = None
    """What to do with the answer, where a guarantee was asked for or the picture is unfamiliar. It depends on the
    picture and the profile alone."""
    held: bool = False
    """Whether it must not be accepted, whatever the decision, because the pictures have changed since the fit."""
    pixels: float | None = Field(default=None, exclude=True)
    """What the pixels alone tell of the familiarity: a p-value, by which a shift of many pictures is seen."""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def queries(self) -> int:
        """How many queries were answered, the ledger's answers included."""
        return sum(asked.label is not None for asked in self.asked)

    def to_dict(self) -> dict[str, object]:
        """The verdict as JSON has it."""
        return self.model_dump()

    def to_frame(self) -> pd.DataFrame:
        """Each query and its answer, as a frame of pandas."""
        return notebook.frame(map(asdict, self.asked))


class Verdict(PictureVerdict):
    """What to think of one picture that has one label."""

    label: str
    confidence: Share
    """The probability that the label is right."""
    low: Share
    high: Share
    """The 95 % interval of the confidence, for the views asked being only some of many."""
    distribution: tuple[LabelProbability, ...] = ()
    """The labels that are likely, the most probable first; all others share the rest evenly."""
    prediction_set: tuple[str | None, ...] | None = None
    """The labels that it may have, the most probable first, where sets were asked for; None is any other label."""
    evidence: Evidence = "labels"
    """What the confidence rests on: labels alone, or the classifier's scores too."""

    def __str__(self) -> str:
        summary = f"{self.name}: {self.label}, {percent(self.confidence)}"
        return f"{summary}, {self.decision}" if self.decision else summary

    @property
    def votes(self) -> tuple[tuple[str, str | None], ...]:
        """Each view and its label."""
        return tuple((asked.view, asked.label) for asked in self.asked[1:])

    @computed_field  # type: ignore[prop-decorator]
    @property
    def base(self) -> str:
        """What the classifier said about the picture itself."""
        return self.asked[0].label or ""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def score(self) -> float | None:
        """The classifier's own score of its answer about the picture itself, as it came."""
        return self.asked[0].score

    @computed_field  # type: ignore[prop-decorator]
    @property
    def agree(self) -> int:
        """How many views say what the verdict says."""
        return sum(label == self.label for _, label in self.votes)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sentence(self) -> str:
        """Why, in words that a person understands."""
        score = self.score if self.evidence == "scores" else None
        return sentence(self.label, self.base, self.confidence, self.votes, score, self.unfamiliar_because is None)

    def _repr_html_(self) -> str:
        title = f"{self.name}: {self.label}, {percent(self.confidence)}. {self.sentence}"
        return notebook.table(title, ["view", "label"], self.votes)


def is_unfamiliar(verdict: Verdict | Unscored) -> bool:
    """Whether the picture is not like the labelled ones, be it scored all the same or not."""
    if isinstance(verdict, Unscored):
        return verdict.cause is Cause.UNFAMILIAR
    return verdict.unfamiliar_because is not None


# In words -------------------------------------------------------------------------------------------------------------


def sentence(
    label: str,
    base: str,
    confidence: float,
    votes: Sequence[tuple[str, str | None]],
    score: float | None = None,
    familiar: bool = True,
) -> str:
    """How many views agree, who says what else, the classifier's own score, and how often such answers are right.

    Votes that are named after no view are about the other photos of a burst, or frames of a video.

    >>> sentence("coat", "coat", 0.93, [("mirror", "shirt"), ("turn:8", "coat")])
    '1 of 2 views agree; the mirrored one says shirt; such answers are right 93 % of the time.'
    >>> sentence("coat", "coat", 0.93, [("clip.mp4#2", "coat"), ("clip.mp4#3", "coat")])
    '2 of 2 other photos agree; such answers are right 93 % of the time.'
    >>> sentence("coat", "coat", 0.71, [], score=0.95)
    'No view was asked; the classifier itself gave coat a score of 0.95; such answers are right 71 % of the time.'
    >>> sentence("coat", "coat", 0.93, [("turn:8", "coat")], familiar=False)
    '1 of 1 views agree; how often such answers are right is not known, the picture is unlike the labelled ones.'
    """
    answered = [(view, answer) for view, answer in votes if answer is not None]
    agree = sum(answer == label for _, answer in answered)
    burst = bool(votes) and not adjective(votes[0][0])
    others, first = ("other photos", "first photo") if burst else ("views", "picture itself")
    parts = [
        f"{agree} of {len(answered)} {others} agree" if answered else "no view was asked",
        *_dissent(label, answered),
    ]
    if base != label:
        parts.append(f"the {first} was called {base}")
    if score is not None:
        parts.append(f"the classifier itself gave {base} a score of {score:.3g}")
    if familiar:
        parts.append(f"such answers are right {percent(confidence)} of the time.")
    else:
        parts.append("how often such answers are right is not known, the picture is unlike the labelled ones.")
    text = "; ".join(parts)
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


@lru_cache(maxsize=1024)
def adjective(view: str) -> str:
    """What a view looks like, or nothing where it is no view.

    >>> adjective("mirror+turn:10"), adjective("shift:0,-0.1"), adjective("photo.jpg")
    ('mirrored and left-turned', 'raised', '')
    """
    try:
        return parse(view).adjective
    except ViewError:
        return ""


def _dissent(label: str, answered: Sequence[tuple[str, str]]) -> list[str]:
    """Who says something else, the most frequent label first."""
    others: dict[str, list[str]] = {}
    for view, answer in answered:
        if answer != label:
            others.setdefault(answer, []).append(view)
    ranked = sorted(others.items(), key=lambda item: -len(item[1]))
    parts = [f"{_who(views)} {answer}" for answer, views in ranked[:MOST_LABELS]]
    left = sum(len(views) for _, views in ranked[MOST_LABELS:])
    return [*parts, f"{left} {'says' if left == 1 else 'say'} something else"] if left else parts


def _who(views: Sequence[str]) -> str:
    if len(views) > 1:
        return f"{len(views)} say"
    word = adjective(views[0])
    return f"the {word} one says" if word else f"{views[0]} says"
