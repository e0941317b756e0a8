"""Views for one of several classifiers, such as `gpt@mirror`, and `gpt@base` for the base query."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from looktwice.errors import ViewError
from looktwice.views.base import CLASSIFIER_NAME, Pixels, Question, View, short
from looktwice.views.families import Again
from looktwice.views.phrasing import Phrasing


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
