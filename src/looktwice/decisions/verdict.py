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

from looktwice.calibration import Basis, Evidence
from looktwice.classifiers import AnswerKind
from looktwice.engine import Cause, Unscored
from looktwice.errors import ViewError
from looktwice.plots import notebook
from looktwice.views import parse

if TYPE_CHECKING:
    import pandas as pd

Decision = Literal["accept", "review"]
Stopped = Literal["sure", "not worth it", "exhausted", "budget"]
"""Why no more was asked: the answer is sure, more would cost more than it is worth, everything was asked, or the
budget did not cover it."""
SURE = 0.9
"""The confidence from which on a verdict stopped because it is sure."""
AGAIN = "again"
"""The view that shows the picture as it is."""
MOST_LABELS = 3
"""Other labels that a sentence names."""
MOST_TAGS = 5
"""Unsure tags that a sentence names."""

_Bounds = Field(ge=0, le=1)
Share = Annotated[float, _Bounds, PlainSerializer(lambda share: round(share, 6), return_type=Annotated[float, _Bounds])]
"""A number in [0, 1], which is written with six decimals."""


_DESCRIBED = ConfigDict(frozen=True, use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class Asked:
    """One query about a picture, and its answer."""

    __pydantic_config__: ClassVar[ConfigDict] = _DESCRIBED
    classifier: str
    """The classifier that was asked: its fingerprint, or its name where there are several."""
    view: SkipValidation[str]
    """What was shown: `again` is the picture as it is; in a burst, the name of another photo."""
    label: str | None
    """None where the view was not asked, or no label could be read."""
    score: float | None = None
    """The classifier's own score of its answer, as it came; None where it gives none."""
    price: float = 0.0
    """What the answer cost when it was bought."""
    confidence_before: Share | None = None
    """The confidence that was not enough, where this is the first query to another classifier."""
    missing: str | None = None
    """Why it has no label, where it was asked and has none."""
    code: str | None = None
    """The code of that reason; `no-label` where the classifier answered and its answer held none."""


@dataclass(frozen=True, slots=True)
class LabelProbability:
    """A label that a picture may have."""

    label: str
    probability: Share


class PictureVerdict(BaseModel):
    """The fields that verdicts of every kind share."""

    model_config = _DESCRIBED

    kind: AnswerKind
    """Whether it is about one `label` or about `tags`."""
    name: SkipValidation[str]
    """As the file system has it, which need not be Unicode."""
    digest: str = ""
    """Of the pixels that it is about; empty where they are those of several photos."""
    profile: str = ""
    """The first digits of the digest of the profile that judged it."""
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
    basis: Basis | None = None
    """What the decision rests on: a guarantee, or an estimate; None where none was asked for."""
    held: str | None = None
    """Why it must not be accepted, whatever the decision: the pictures have changed. None where it may be."""
    stopped: Stopped | None = None
    """Why no more was asked; None where everything always is."""
    pixels: float | None = Field(default=None, exclude=True)
    """What the pixels alone tell of the familiarity: a p-value, by which a shift of many pictures is seen."""

    @property
    def votes(self) -> tuple[tuple[str, str | None], ...]:
        """Each view and its label."""
        first = self.asked[0].classifier
        return tuple(
            (asked.view if asked.classifier == first else f"{asked.classifier}@{asked.view}", asked.label)
            for asked in self.asked[1:]
        )

    @computed_field  # type: ignore[prop-decorator]
    @property
    def queries(self) -> int:
        """How many queries were answered, the ledger's answers included."""
        return sum(asked.label is not None for asked in self.asked)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def price(self) -> float:
        """The price of its answers, as it was paid."""
        return round(sum(asked.price for asked in self.asked), 9)

    def to_dict(self) -> dict[str, object]:
        """The verdict as JSON has it."""
        return self.model_dump()

    def to_frame(self) -> pd.DataFrame:
        """Each query and its answer, as a frame of pandas."""
        return notebook.frame(map(asdict, self.asked))


class Verdict(PictureVerdict):
    """The verdict on a picture with one label."""

    kind: Literal["label"] = "label"
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

    @computed_field  # type: ignore[prop-decorator]
    @property
    def base(self) -> str:
        """The answer about the unchanged picture."""
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
        familiar = self.unfamiliar_because is None
        said = sentence(self.label, self.base, self.confidence, self.votes, score, familiar)
        return " ".join([said, *self._others_asked()])

    def _others_asked(self) -> list[str]:
        """Why each further classifier was asked, or has no answer."""
        reasons = []
        for place, query in enumerate(self.asked):
            if query.confidence_before is not None:
                before = dict.fromkeys(each.classifier for each in self.asked[:place] if each.label is not None)
                unsure = f"{' and '.join(before)} {'was' if len(before) == 1 else 'were'} unsure"
                reasons.append(f"{query.classifier} was asked because {unsure}, {percent(query.confidence_before)}.")
        missing = dict.fromkeys((query.classifier, query.missing) for query in self.asked if query.missing)
        return [*reasons, *(f"{classifier} gave no label: {why}." for classifier, why in missing)]

    def _repr_html_(self) -> str:
        title = f"{self.name}: {self.label}, {percent(self.confidence)}. {self.sentence}"
        return notebook.table(title, ["view", "label"], self.votes)


TagDecision = Literal["yes", "no", "review"]


@dataclass(frozen=True, slots=True)
class TagProbability:
    """A tag that may be true of a picture."""

    __pydantic_config__: ClassVar[ConfigDict] = _DESCRIBED
    name: str
    probability: Share
    """That it is true."""
    low: Share
    high: Share
    """The 95 % interval of the probability that very many labelled pictures would give."""
    decision: TagDecision
    """By the guarantee that was asked for; without one, what is at least 90 % probable."""


class TagVerdict(PictureVerdict):
    """What to think of one picture of which several tags may be true."""

    kind: Literal["tags"] = "tags"
    tags: tuple[TagProbability, ...]
    """Every tag of the profile, the most probable first."""

    def __str__(self) -> str:
        return f"{self.name}: {self.sentence}"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def yes(self) -> tuple[str, ...]:
        """The tags that are true of it."""
        return self._decided("yes")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def no(self) -> tuple[str, ...]:
        """The tags that are not."""
        return self._decided("no")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def review(self) -> tuple[str, ...]:
        """The tags that a person has to decide."""
        return self._decided("review")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sentence(self) -> str:
        """Which tags are sure, which are not, and how many are not there, in words."""
        shares = {tag.name: percent(tag.probability) for tag in self.tags}
        sure, unsure = ([f"{name} {shares[name]}" for name in names] for names in (self.yes, self.review))
        parts = [f"sure: {', '.join(sure)}"] if sure else []
        parts += [f"unsure: {some(unsure)}"] if unsure else []
        parts += [f"none of the {'other ' * bool(parts)}{len(self.no)} tags"] if self.no else []
        if self.unfamiliar_because:
            parts.append("how far that can be trusted is not known, the picture is unlike the labelled ones")
        text = "; ".join(parts)
        return f"{text[0].upper()}{text[1:]}."

    def _decided(self, decision: TagDecision) -> tuple[str, ...]:
        return tuple(tag.name for tag in self.tags if tag.decision == decision)

    def _repr_html_(self) -> str:
        rows = [(tag.name, percent(tag.probability), tag.decision) for tag in self.tags]
        return notebook.table(str(self), ["tag", "probability", "decision"], rows)


AnyVerdict = Verdict | TagVerdict
"""A verdict of either kind; `kind` tells which."""


def some(words: Sequence[str]) -> str:
    """The first of several words, and how many more there are."""
    rest = len(words) - MOST_TAGS
    return ", ".join(words[:MOST_TAGS]) + (f" and {rest} more" if rest > 0 else "")


def is_unfamiliar(verdict: PictureVerdict | Unscored) -> bool:
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
    if not burst and any("@" in view for view, _ in answered):
        others = "other answers"
    parts = [
        f"{agree} of {len(answered)} {others} agree" if answered else "no view was asked",
        *_dissent(label, answered),
    ]
    if base not in ("", label):
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
    """The adjective of a view; empty if the text is not a view.

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
    classifier, at, view = views[0].partition("@")
    if at:
        return f"{classifier} says" if view == AGAIN else f"{classifier} ({adjective(view)}) says"
    word = adjective(views[0])
    return f"the {word} one says" if word else f"{views[0]} says"
