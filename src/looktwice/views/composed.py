"""Views made of other views: chains, and views for one of several classifiers, such as `gpt@mirror`."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from looktwice.errors import ViewError
from looktwice.views.base import CLASSIFIER_NAME, Pixels, Question, View, Worded, name_of, short
from looktwice.views.families import Again
from looktwice.views.phrasing import Phrasing
from looktwice.views.rendering import Moves, move, moves_of


@dataclass(frozen=True)
class Chain(View):
    """Two or more views one after the other, first to last; neighbouring moves are made in one step."""

    views: tuple[View, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "views", tuple(self.views))
        if len(self.views) < 2 or any(isinstance(view, Chain | Again) for view in self.views):
            raise ViewError(
                f"a chain needs two or more views, none of them 'again', not {short(self.text)}; try 'mirror+turn:10'"
            )
        worded = Counter(type(view) for view in self.views if isinstance(view, Worded))
        if twice := [family for family, times in worded.items() if times > 1]:
            raise ViewError(f"{short(self.text)} has {name_of(twice[0])} more than once; give each once")

    @property
    def random(self) -> bool:  # type: ignore[override]
        """Whether any view in it is random."""
        return any(view.random for view in self.views)

    def phrased(self, asked: Phrasing, digest: str) -> Phrasing:
        for view in self.views:
            asked = view.phrased(asked, digest)
        return asked

    @property
    def adjective(self) -> str:
        return " and ".join(view.adjective for view in self.views)

    @property
    def parts(self) -> tuple[View, ...]:
        return self.views

    @cached_property
    def text(self) -> str:
        """The texts of its views, joined by +."""
        return "+".join(view.text for view in self.views)

    @cached_property
    def _moves(self) -> Moves:
        return moves_of(self)

    def draw(self, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
        if self._moves:
            move(self._moves, part, questions, picture, out)
            return
        for question, target in zip(questions, out, strict=True):
            shown = picture
            for place, view in enumerate(self.views):
                drawn = np.empty((1, *picture.shape), np.uint8)
                view.draw(place, [question], shown, drawn)
                shown = drawn[0]
            target[:] = shown


@dataclass(frozen=True)
class Base(Again):
    """The picture itself in the place of a view, as another classifier sees it: `gpt@base`."""

    adjective = "unchanged"
    text = "base"

    def __post_init__(self) -> None: ...


@dataclass(frozen=True)
class At(View):
    """A view for one of several classifiers: `gpt@mirror`; pixels and wording are those of the view."""

    classifier: str
    view: View

    def __post_init__(self) -> None:
        if not CLASSIFIER_NAME.fullmatch(self.classifier) or isinstance(self.view, At):
            raise ViewError(f"{short(self.text)} does not name a view of one classifier; write it like 'gpt@mirror'")

    @property
    def random(self) -> bool:  # type: ignore[override]
        return self.view.random

    def phrased(self, asked: Phrasing, digest: str) -> Phrasing:
        return self.view.phrased(asked, digest)

    @property
    def adjective(self) -> str:
        return f"{self.view.adjective} for {self.classifier}"

    @property
    def parts(self) -> tuple[View, ...]:
        return self.view.parts

    @cached_property
    def text(self) -> str:
        """The classifier's name, @, and the text of the view."""
        return f"{self.classifier}@{self.view}"

    def draw(self, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
        self.view.draw(part, questions, picture, out)


def classifier_of(view: View) -> str:
    """The name of the classifier that a view is for; empty if it is the first."""
    return view.classifier if isinstance(view, At) else ""


def drawn(view: View) -> View:
    """The view without its classifier."""
    inner = view.view if isinstance(view, At) else view
    return Again() if isinstance(inner, Base) else inner


def repeats(view: View) -> bool:
    """Whether a view asks about the picture itself once more, after its base query."""
    return type(view.view if isinstance(view, At) else view) is Again
