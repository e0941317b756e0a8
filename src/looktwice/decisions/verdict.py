"""Verdicts: the result for one picture, with an explanation.

The command line, files, the service, Ray and notebooks share this schema: all of them write `Verdict.to_dict`, a table
has a column for each field, and OpenAPI is derived from it.
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
Stopped = Literal["sure", "not worth it", "all-asked", "budget"]
"""The reason for stopping: the answer is sure, the next query is not worth its price, every query was sent, or the
budget did not cover them. With `budget`, the verdict is provisional: it is never accepted, and a resumed run asks
again."""
SURE = 0.9
"""The confidence at and above which the reason for stopping is "sure"."""
AGAIN = "again"
"""The view that shows the unchanged picture."""
MOST_LABELS = 3
"""The maximum number of other labels listed in a sentence."""
MOST_TAGS = 5
"""The maximum number of unsure tags listed in a sentence."""

_Bounds = Field(ge=0, le=1)
Share = Annotated[float, _Bounds, PlainSerializer(lambda share: round(share, 6), return_type=Annotated[float, _Bounds])]
"""A number in [0, 1], serialised with six decimals."""


_DESCRIBED = ConfigDict(frozen=True, use_attribute_docstrings=True)


@dataclass(frozen=True, slots=True)
class Asked:
    """One query about a picture, and its answer."""

    __pydantic_config__: ClassVar[ConfigDict] = _DESCRIBED
    classifier: str
    """The classifier: its fingerprint, or its name if there are several."""
    view: SkipValidation[str]
    """The view; `again` is the unchanged picture; in a burst, the name of another photo."""
    label: str | None
    """The label; None if the view was not asked, or no label could be read."""
    score: float | None = None
    """The classifier's score as returned; None if it returns none."""
    price: float = 0.0
    """The price paid for the answer."""
    confidence_before: Share | None = None
    """The confidence before this query, if it is the first query to another classifier."""
    missing: str | None = None
    """The reason why the label is missing, if the view was asked."""
    code: str | None = None
    """The code of that reason; `no-label` if the classifier's answer contained no label."""


@dataclass(frozen=True, slots=True)
class LabelProbability:
    """A label that a picture may have."""

    label: str
    probability: Share


class PictureVerdict(BaseModel):
    """The fields shared by all kinds of verdicts."""

    model_config = _DESCRIBED

    kind: AnswerKind
    """The kind of answer: one `label`, or `tags`."""
    name: SkipValidation[str]
    """The name in the file system, which need not be Unicode."""
    digest: str = ""
    """The digest of the pixels; empty if there are several photos."""
    profile: str = ""
    """The first digits of the profile's digest."""
    asked: tuple[Asked, ...]
    """Every query: the base, then the views."""
    familiarity: Share | None = None
    """How similar the picture and its answers are to the labelled ones: a p-value, which is at most 0.01 for one in a
    hundred familiar pictures. None if the profile has no familiarity model."""
    unfamiliar_because: str | None = None
    """What is unusual about an unfamiliar picture, whose confidence is not valid."""
    decision: Decision | None = None
    """What to do with the answer, if a guarantee was requested or the picture is unfamiliar. It depends only on the
    picture and the profile."""
    basis: Basis | None = None
    """The basis of the decision: a guarantee, or an estimate; None if neither was requested."""
    held: str | None = None
    """Why the answer must not be accepted, whatever the decision: the pictures have changed. None if it may be
    accepted."""
    stopped: Stopped | None = None
    """The reason for stopping; None if every query is always sent and the budget covered them all."""
    pixels: float | None = Field(default=None, exclude=True)
    """The p-value of the pixels alone, by which a shift of many pictures is detected."""

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
        """The number of answered queries, including answers from the ledger."""
        return sum(asked.label is not None for asked in self.asked)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def price(self) -> float:
        """The price paid for its answers."""
        return round(sum(asked.price for asked in self.asked), 9)

    def to_dict(self) -> dict[str, object]:
        """The verdict for JSON."""
        return self.model_dump()

    def to_frame(self) -> pd.DataFrame:
        """Queries and answers as a pandas data frame."""
        return notebook.frame(map(asdict, self.asked))


class Verdict(PictureVerdict):
    """The verdict on a picture with one label."""

    kind: Literal["label"] = "label"
    label: str
    confidence: Share
    """The probability that the label is right."""
    low: Share
    high: Share
    """The 95 % interval of the confidence, given that only some of many possible views were asked."""
    distribution: tuple[LabelProbability, ...] = ()
    """The likely labels, the most probable first; all other labels share the rest evenly."""
    prediction_set: tuple[str | None, ...] | None = None
    """The prediction set, the most probable label first, if requested; None in it means any other label."""
    evidence: Evidence = "labels"
    """The evidence for the confidence: labels only, or also the classifier's scores."""

    def __str__(self) -> str:
        summary = f"{self.name}: {self.label}, {percent(self.confidence)}"
        return f"{summary}, {self.decision}" if self.decision else summary

    @computed_field  # type: ignore[prop-decorator]
    @property
    def base(self) -> str:
        """The base label."""
        return self.asked[0].label or ""

    @computed_field  # type: ignore[prop-decorator]
    @property
    def score(self) -> float | None:
        """The classifier's score of the base label, as returned."""
        return self.asked[0].score

    @computed_field  # type: ignore[prop-decorator]
    @property
    def agree(self) -> int:
        """The number of views that agree with the verdict."""
        return sum(label == self.label for _, label in self.votes)

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sentence(self) -> str:
        """An explanation of the confidence, in one sentence."""
        score = self.score if self.evidence == "scores" else None
        familiar = self.unfamiliar_because is None
        said = sentence(self.label, self.base, self.confidence, self.votes, score, familiar)
        return " ".join([said, *self._others_asked()])

    def _others_asked(self) -> list[str]:
        """Sentences on why each further classifier was asked, or why it gave no answer."""
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
    """A tag that may apply to a picture."""

    __pydantic_config__: ClassVar[ConfigDict] = _DESCRIBED
    name: str
    probability: Share
    """The probability that the tag applies."""
    low: Share
    high: Share
    """The 95 % interval of the probability in the limit of many labelled pictures."""
    decision: TagDecision
    """The decision under the requested guarantee; without one, tags are decided if at least 90 % probable."""


class TagVerdict(PictureVerdict):
    """The verdict on a picture to which several tags may apply."""

    kind: Literal["tags"] = "tags"
    tags: tuple[TagProbability, ...]
    """Every tag of the profile, the most probable first."""

    def __str__(self) -> str:
        return f"{self.name}: {self.sentence}"

    @computed_field  # type: ignore[prop-decorator]
    @property
    def yes(self) -> tuple[str, ...]:
        """The tags decided as present."""
        return self._decided("yes")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def no(self) -> tuple[str, ...]:
        """The tags decided as absent."""
        return self._decided("no")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def review(self) -> tuple[str, ...]:
        """The tags that need review."""
        return self._decided("review")

    @computed_field  # type: ignore[prop-decorator]
    @property
    def sentence(self) -> str:
        """A sentence on the sure tags, the unsure tags, and the number of absent tags."""
        shares = {tag.name: percent(tag.probability) for tag in self.tags}
        sure, unsure = ([f"{name} {shares[name]}" for name in names] for names in (self.yes, self.review))
        parts = [f"sure: {', '.join(sure)}"] if sure else []
        more = f" and {len(unsure) - MOST_TAGS} more" if len(unsure) > MOST_TAGS else ""
        parts += [f"unsure: {', '.join(unsure[:MOST_TAGS])}{more}"] if unsure else []
        parts += [f"none of the {'other ' * bool(parts)}{len(self.no)} tags"] if self.no else []
        if self.unfamiliar_because:
            parts.append("how far that can be trusted is unknown, because the picture is unlike the labelled ones")
        text = "; ".join(parts)
        return f"{text[0].upper()}{text[1:]}."

    def _decided(self, decision: TagDecision) -> tuple[str, ...]:
        return tuple(tag.name for tag in self.tags if tag.decision == decision)

    def _repr_html_(self) -> str:
        rows = [(tag.name, percent(tag.probability), tag.decision) for tag in self.tags]
        return notebook.table(str(self), ["tag", "probability", "decision"], rows)


AnyVerdict = Verdict | TagVerdict
"""A verdict of either kind, distinguished by `kind`."""


def is_unfamiliar(verdict: PictureVerdict | Unscored) -> bool:
    """Whether the picture is unfamiliar, whether or not it was scored."""
    if isinstance(verdict, Unscored):
        return verdict.cause is Cause.UNFAMILIAR
    return verdict.unfamiliar_because is not None


# Sentences ------------------------------------------------------------------------------------------------------------


def sentence(
    label: str,
    base: str,
    confidence: float,
    votes: Sequence[tuple[str, str | None]],
    score: float | None = None,
    familiar: bool = True,
) -> str:
    """A sentence on how many views agree, the labels of the other views, the classifier's score, and the confidence.

    A vote whose name is not a view belongs to another photo of a burst, or to a frame of a video.

    >>> sentence("coat", "coat", 0.93, [("mirror", "shirt"), ("turn:8", "coat")])
    '1 of 2 views agree; the mirrored one says shirt; such answers are right 93 % of the time.'
    >>> sentence("coat", "coat", 0.93, [("clip.mp4#2", "coat"), ("clip.mp4#3", "coat")])
    '2 of 2 other photos agree; such answers are right 93 % of the time.'
    >>> sentence("coat", "coat", 0.71, [], score=0.95)
    'No view was asked; the classifier itself gave coat a score of 0.95; such answers are right 71 % of the time.'
    >>> sentence("coat", "coat", 0.93, [("turn:8", "coat")], familiar=False)
    '1 of 1 views agree; how often such answers are right is unknown, because the picture is unlike the labelled ones.'
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
        parts.append("how often such answers are right is unknown, because the picture is unlike the labelled ones.")
    text = "; ".join(parts)
    return text[0].upper() + text[1:]


def percent(share: float) -> str:
    """Format a share: never as 0 or 100 %, and with a decimal place close to these.

    >>> percent(0.9999), percent(0.99), percent(0.5), percent(0.004), percent(0.0001)
    ('more than 99.9 %', '99.0 %', '50 %', '0.4 %', 'less than 0.1 %')
    """
    if not 0.0005 <= share <= 0.9995:
        return "less than 0.1 %" if share < 0.5 else "more than 99.9 %"
    return f"{100 * share:.0f} %" if 0.015 <= share < 0.985 else f"{100 * share:.1f} %"


def alternatives(labels: Sequence[str | None]) -> str:
    """Format a prediction set; None is any other label.

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
    """A phrase on views with other labels, the most frequent label first."""
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
