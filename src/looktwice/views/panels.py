"""Chained views, and panels: parse `mirror+turn:10` or `rotation:30*10`, and create their queries."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, dataclass, replace
from functools import cache, cached_property
from itertools import groupby, product
from typing import TYPE_CHECKING

import numpy as np

from looktwice.errors import ViewError
from looktwice.images import Image
from looktwice.views.base import (
    CLASSIFIER_NAME,
    REGISTERED,
    Between,
    Phrasing,
    Pixels,
    Question,
    View,
    Worded,
    arguments,
    draw,
    name_of,
    short,
)
from looktwice.views.families import Affine, Again, Elastic, Gaussian, Rotation
from looktwice.views.rendering import Moves, move, moves_of

# Views made of others ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chain(View):
    """Two or more views applied in order; adjacent geometric views are combined in one step."""

    views: tuple[View, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "views", tuple(self.views))
        if len(self.views) < 2 or any(isinstance(view, Chain | Again) for view in self.views):
            raise ViewError(
                f"a chain needs two or more views other than 'again', not {short(self.text)}; try 'mirror+turn:10'"
            )
        worded = Counter(type(view) for view in self.views if isinstance(view, Worded))
        if twice := [family for family, times in worded.items() if times > 1]:
            raise ViewError(f"{short(self.text)} has {name_of(twice[0])} more than once; give each once")

    @property
    def random(self) -> bool:  # type: ignore[override]
        """Whether any view in the chain is random."""
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
        """The texts of the views, separated by +."""
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
                drawn = np.zeros((1, *picture.shape), np.uint8)
                draw(view, place, [question], shown, drawn)
                shown = drawn[0]
            target[:] = shown


@dataclass(frozen=True)
class Base(Again):
    """The unchanged picture in place of a view, for another classifier: `gpt@base`."""

    adjective = "unchanged"
    text = "base"

    def __post_init__(self) -> None: ...


@dataclass(frozen=True)
class At(View):
    """A view for one of several classifiers: `gpt@mirror`; pixels and wording are the same as without `gpt@`."""

    classifier: str
    view: View

    def __post_init__(self) -> None:
        if not CLASSIFIER_NAME.fullmatch(self.classifier) or isinstance(self.view, At):
            raise ViewError(
                f"{short(self.text)} does not specify a view and its classifier; write it like 'gpt@mirror'"
            )

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
        draw(self.view, part, questions, picture, out)


def classifier_of(view: View) -> str:
    """The name of the classifier for which a view is used; empty for the first classifier."""
    return view.classifier if isinstance(view, At) else ""


def drawn(view: View) -> View:
    """The view without its classifier."""
    inner = view.view if isinstance(view, At) else view
    return Again() if isinstance(inner, Base) else inner


def repeats(view: View) -> bool:
    """Whether a view repeats the base query, which is about the unchanged picture."""
    return type(view.view if isinstance(view, At) else view) is Again


if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


# Parsing -------------------------------------------------------------------------------------------------------------


LONGEST_VIEW = 1_000
"""The maximum number of characters in the text of a view."""

GROUP = "looktwice.views"
"""The entry-point group in which other packages add families."""

_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)(e-?\d+)?", re.ASCII)


def parse(text: str) -> View:
    """Parse a view, such as `rotation:30`, `zoom:1.15,border=edge`, `mirror+turn:10` or `gpt@mirror`."""
    if len(text) > LONGEST_VIEW:
        raise ViewError(f"a view of {len(text)} characters is too long; {LONGEST_VIEW} are allowed")
    classifier, at, rest = text.partition("@")
    if at:
        return At(classifier, Base() if rest == "base" else parse(rest))
    parts = text.split("+")
    return _parse_one(text) if len(parts) == 1 else Chain(tuple(map(_parse_one, parts)))


def _parse_one(text: str) -> View:
    name, colon, rest = text.partition(":")
    family = _family(name)
    needed = [argument for argument in arguments(family) if argument.default is MISSING]
    optional = {argument.name: argument for argument in arguments(family) if argument.default is not MISSING}
    given = rest.split(",") if colon else []
    numbers = [_read_number(written, text) for written in given if "=" not in written]
    options: dict[str, str | float] = {}
    for option, _, value in (written.partition("=") for written in given if "=" in written):
        if option not in optional:
            has = f"has the options {', '.join(optional)}" if optional else "has no options"
            raise ViewError(f"unknown option {short(option)} in {short(text)}; {name} {has}")
        options[option] = _read_number(value, text) if isinstance(optional[option].allowed, Between) else value
    if len(numbers) != len(needed) or len(numbers) + len(options) != len(given):
        names = [*(argument.name.upper() for argument in needed), *(f"[{option}=…]" for option in optional)]
        form = ":".join(filter(None, (name, ",".join(names))))
        raise ViewError(f"{short(text)} does not fit the form {form}; give every number and option once")
    return family(*numbers, **options)


def _read_number(text: str, where: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ViewError(f"{short(text)} in {short(where)} is not a number; write it like 30 or -0.5")
    return float(text)


# Families by name --------------------------------------------------------------------------------------------------


def _family(name: str) -> type[View]:
    if name in REGISTERED:
        return REGISTERED[name]
    if points := [point for point in _installed() if point.name == name]:
        return _load(name, points)
    known = dict.fromkeys([*REGISTERED, *(point.name for point in _installed())])
    near = difflib.get_close_matches(name[:40].lower(), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(known)}"
    raise ViewError(f"unknown view {short(name)}; {hint}", code="view-unknown")


@cache
def _installed() -> tuple[EntryPoint, ...]:
    """The entry points of views in other packages; they are cached, since the lookup takes milliseconds."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


def _load(name: str, points: list[EntryPoint]) -> type[View]:
    """Load a family from another package; importing its module registers the family."""
    try:
        loaded = [point.load() for point in points]
        if loaded != [REGISTERED.get(name)]:
            raise TypeError(f"exactly one package must specify a class with @register whose lower-case name is {name}")
    except Exception as error:  # code in another package may raise any exception
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        places = " and ".join(point.value for point in points)
        raise ViewError(f"the view {name!r} cannot be loaded from {places}: {why}", code="view-plugin") from error
    return REGISTERED[name]


LONGEST_PANEL = 10_000
"""The maximum number of views in a panel, and of characters in its text."""


@dataclass(frozen=True)
class Panel:
    """Views in query order; a random view may be repeated.

    >>> panel = Panel.parse("mirror zoom:1.15 rotation:30*10")
    >>> len(panel), str(panel[:3])
    (12, 'mirror zoom:1.15 rotation:30')
    """

    views: tuple[View, ...]
    first: str = ""
    """The classifier for the base query and for views without @; empty for the first classifier of the model."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "views", tuple(self.views))
        if len(self.views) > LONGEST_PANEL:
            raise ViewError(
                f"a panel of {len(self.views)} views is too long; at most {LONGEST_PANEL} are allowed",
                code="panel-invalid",
            )
        for view, times in Counter(self.views).items():
            if times > 1 and not (view.random or repeats(view)):
                raise ViewError(
                    f"{view} appears {times} times in the panel, but is the same query each time; keep one",
                    code="panel-invalid",
                )

    @classmethod
    def parse(cls, text: str) -> Panel:
        """Parse views separated by spaces, with *n for repetitions: `mirror zoom:1.15 rotation:30*10`."""
        if len(text) > LONGEST_PANEL:
            raise ViewError(
                f"a panel of {len(text)} characters is too long; at most {LONGEST_PANEL} are allowed",
                code="panel-invalid",
            )
        views: list[View] = []
        for word in text.split():
            name, star, times = word.partition("*")
            if star and not (times.isascii() and times.isdecimal() and len(times) < 6 and int(times)):
                raise ViewError(
                    f"{word[:60]!r} does not specify the number of repetitions; write it like 'rotation:30*10'",
                    code="panel-invalid",
                )
            views += [parse(name)] * (int(times) if star else 1)
            if len(views) > LONGEST_PANEL:
                raise ViewError(
                    f"a panel may have at most {LONGEST_PANEL} views, but has more with {word!r}; remove some",
                    code="panel-invalid",
                )
        return cls(tuple(views))

    @cached_property
    def slots(self) -> tuple[tuple[View, int], ...]:
        """Each view with the index of its repetition, counted from 0; always 0 for a fixed view.

        For `again` the index starts at 1, since the base query has index 0.
        """
        seen = Counter[View]()
        slots = []
        for view in self.views:
            slots.append((view, seen[view] + (repeats(view))))
            seen[view] += 1
        return tuple(slots)

    def __len__(self) -> int:
        return len(self.views)

    def __iter__(self) -> Iterator[View]:
        return iter(self.views)

    def __getitem__(self, some: slice) -> Panel:
        return replace(self, views=self.views[some])

    def __str__(self) -> str:
        rows = ((view, len(list(row))) for view, row in groupby(self.views))
        return " ".join(str(view) if times == 1 else f"{view}*{times}" for view, times in rows)


def questions(image: Image, panel: Panel, seed: int) -> tuple[Question, ...]:
    """Create one query per view, in the order of the panel; the seed must be from 0 to 2⁶³ - 1."""
    if not 0 <= seed < 2**63:
        raise ViewError(f"a seed must be from 0 to 2⁶³ - 1, not {seed}", code="panel-invalid")
    digest = image.digest
    return tuple([Question(digest, drawn(view), seed if view.random else 0, index) for view, index in panel.slots])


def base_question(image: Image) -> Question:
    """Create the query about the unchanged picture."""
    return Question(image.digest, Again(), 0, 0)


GRIDS: dict[str, tuple[View, ...]] = {
    "gaussian": tuple(Gaussian(sigma) for sigma in (0.01, 0.05, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2)),
    "elastic": tuple(Elastic(alpha, sigma) for alpha, sigma in product((10, 20, 50, 70), (2, 5, 10))),
    "rotation": tuple(Rotation(degrees) for degrees in (10, 20, 30, 40, 50, 60)),
    "affine": tuple(
        Affine(*grid) for grid in product((0, 10, 30), (0, 0.1, 0.3), (0, 0.1, 0.3, 1)) if grid != (0, 0, 0)
    ),
}
"""The paper's search grid, by family, without the affine view that changes nothing."""

GENERAL = Panel.parse(
    """
    mirror zoom:1.15 mirror+zoom:0.85 mirror+tone:contrast=1.4
    shift:-0.06,0 tone:contrast=0.7 mirror+zoom:1.3 mirror+turn:20
    """
)
"""The general panel: eight views for most pictures, the most informative first.

experiments/general.py selects them on a few hundred pictures from each of CIFAR-10, CIFAR-100 and ImageNet, with six
models and with equal weight for each dataset, and writes them to this file; docs/views.md has the figures.
"""

PROMPTED: tuple[View, ...] = Panel.parse(
    "order:1 order:2 order:3 wording:1 wording:2 wording:3 ranked describe mirror+order:1 again"
).views
"""Further candidates for a classifier that takes a prompt; `again` is the control for changed wordings."""


def panel_of(views: Panel | str | None) -> Panel:
    """Parse a panel; returns the general panel if there is no text, and a panel without views for `base`."""
    if views is None or views == "":
        return GENERAL
    if views == "base":
        return Panel(())
    return Panel.parse(views) if isinstance(views, str) else views
