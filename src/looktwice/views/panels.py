"""Parse views and panels, such as `mirror+turn:10` or `zoom:1.15 rotation:30*10`, and make their queries."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import MISSING, dataclass, replace
from functools import cache, cached_property
from itertools import groupby, product
from typing import TYPE_CHECKING

from looktwice.errors import ViewError
from looktwice.images import Image
from looktwice.views.base import REGISTERED, Between, Question, View, arguments, short
from looktwice.views.composed import At, Base, Chain, drawn, repeats
from looktwice.views.families import Affine, Again, Elastic, Gaussian, Rotation

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

LONGEST_VIEW = 1_000
"""The most characters in the text of a view."""

GROUP = "looktwice.views"
"""The entry points with which other packages add families."""

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
    needed = [each for each in arguments(family) if each.default is MISSING]
    optional = {each.name: each for each in arguments(family) if each.default is not MISSING}
    given = rest.split(",") if colon else []
    numbers = [_read_number(each, text) for each in given if "=" not in each]
    options: dict[str, str | float] = {}
    for option, _, value in (each.partition("=") for each in given if "=" in each):
        if option not in optional:
            has = f"has the options {', '.join(optional)}" if optional else "has no options"
            raise ViewError(f"unknown option {short(option)} in {short(text)}; {name} {has}")
        options[option] = _read_number(value, text) if isinstance(optional[option].allowed, Between) else value
    if len(numbers) != len(needed) or len(numbers) + len(options) != len(given):
        names = [*(each.name.upper() for each in needed), *(f"[{option}=…]" for option in optional)]
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
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    raise ViewError(f"unknown view {short(name)}; {hint}", code="view-unknown")


@cache
def _installed() -> tuple[EntryPoint, ...]:
    """The views of other packages; looked up once, since it takes milliseconds."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


def _load(name: str, points: list[EntryPoint]) -> type[View]:
    """The family of another package, which its module registers while it is imported."""
    try:
        loaded = [point.load() for point in points]
        if loaded != [REGISTERED.get(name)]:
            raise TypeError(f"one package must name one class with @register that is called {name} in lower case")
    except Exception as error:  # the code of a stranger may fail in any way
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        places = " and ".join(point.value for point in points)
        raise ViewError(f"the view {name!r} cannot be loaded from {places}: {why}", code="view-plugin") from error
    return REGISTERED[name]


LONGEST_PANEL = 10_000
"""The most views of a panel, and characters of its text."""


@dataclass(frozen=True)
class Panel:
    """Views in the order of asking; a random view may be repeated.

    >>> panel = Panel.parse("mirror zoom:1.15 rotation:30*10")
    >>> len(panel), str(panel[:3])
    (12, 'mirror zoom:1.15 rotation:30')
    """

    views: tuple[View, ...]
    first: str = ""
    """The classifier of the base query and of views without an @; empty for the model's first."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "views", tuple(self.views))
        if len(self.views) > LONGEST_PANEL:
            raise ViewError(
                f"a panel of {len(self.views)} views is too long; {LONGEST_PANEL} are allowed", code="panel-invalid"
            )
        for view, times in Counter(self.views).items():
            if times > 1 and not (view.random or repeats(view)):
                raise ViewError(
                    f"{view} stands {times} times in the panel but shows the same each time; keep one",
                    code="panel-invalid",
                )

    @classmethod
    def parse(cls, text: str) -> Panel:
        """Parse views separated by spaces, with *n for repetitions: `mirror zoom:1.15 rotation:30*10`."""
        if len(text) > LONGEST_PANEL:
            raise ViewError(
                f"a panel of {len(text)} characters is too long; {LONGEST_PANEL} are allowed", code="panel-invalid"
            )
        views: list[View] = []
        for word in text.split():
            name, star, times = word.partition("*")
            if star and not (times.isascii() and times.isdecimal() and len(times) < 6 and int(times)):
                raise ViewError(
                    f"{word[:60]!r} does not say how often to ask; write it like 'rotation:30*10'", code="panel-invalid"
                )
            views += [parse(name)] * (int(times) if star else 1)
            if len(views) > LONGEST_PANEL:
                raise ViewError(
                    f"a panel may have {LONGEST_PANEL} views and has more at {word!r}; ask fewer", code="panel-invalid"
                )
        return cls(tuple(views))

    @cached_property
    def slots(self) -> tuple[tuple[View, int], ...]:
        """Each view with its index: which draw of a random view it is, counted from 0; always 0 for a fixed one.

        `again` counts from 1, since the picture itself is its number 0.
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
    """One query per view, in the order of the panel; the seed is from 0 to 2⁶³ - 1."""
    if not 0 <= seed < 2**63:
        raise ViewError(f"a seed must be from 0 to 2⁶³ - 1, not {seed}", code="panel-invalid")
    digest = image.digest
    return tuple([Question(digest, drawn(view), seed if view.random else 0, index) for view, index in panel.slots])


def base_question(image: Image) -> Question:
    """The query about the unchanged picture."""
    return Question(image.digest, Again(), 0, 0)


GRIDS: dict[str, tuple[View, ...]] = {
    "gaussian": tuple(Gaussian(sigma) for sigma in (0.01, 0.05, 0.1, 0.12, 0.14, 0.16, 0.18, 0.2)),
    "elastic": tuple(Elastic(alpha, sigma) for alpha, sigma in product((10, 20, 50, 70), (2, 5, 10))),
    "rotation": tuple(Rotation(degrees) for degrees in (10, 20, 30, 40, 50, 60)),
    "affine": tuple(
        Affine(*grid) for grid in product((0, 10, 30), (0, 0.1, 0.3), (0, 0.1, 0.3, 1)) if grid != (0, 0, 0)
    ),
}
"""The paper's search, family by family; the affine that changes nothing is left out."""

GENERAL = Panel.parse(
    """
    mirror zoom:1.15 mirror+zoom:0.85 mirror+tone:contrast=1.4
    shift:-0.06,0 tone:contrast=0.7 mirror+zoom:1.3 mirror+turn:20
    """
)
"""The general panel: eight views for most pictures, the most informative first.

experiments/general.py grows them on a few hundred pictures each of CIFAR-10, CIFAR-100 and ImageNet, under six models,
with equal weight for each of the three, and writes them here; docs/views.md has the figures.
"""

LADDERS: dict[str, tuple[tuple[View, ...], ...]] = {
    name: tuple(Panel.parse(rung).views for rung in text.split("|"))
    for name, text in {
        "mirror": "mirror",
        "zoom": "zoom:0.93 zoom:1.07 | zoom:1.15 | zoom:0.7 zoom:1.3 | zoom:1.8",
        "mirrored zoom": "mirror+zoom:1.07 | mirror+zoom:0.85 | mirror+zoom:1.3 | mirror+zoom:1.8",
        "turn": "turn:5 turn:-5 | turn:15 turn:-20 | turn:30 | turn:-45",
        "mirrored turn": "mirror+turn:-5 | mirror+turn:20 | mirror+turn:-30",
        "shift": "shift:-0.06,0 shift:0.06,0 shift:0,-0.03 shift:0,0.06 | shift:-0.15,0.1 shift:0.15,-0.1",
        "crop": """
            crop:0,0,0.8 crop:1,0,0.8 crop:0,1,0.8 crop:1,1,0.8 mirror+crop:0,0.5,0.75 mirror+crop:1,0.5,0.75 |
            crop:0,0,0.62 crop:1,0,0.62 crop:0,1,0.62 crop:1,1,0.62
        """,
        "perspective": "perspective:0.2,0 | perspective:0,0.3 | perspective:-0.35,0",
        "elastic": "elastic:20,5 | elastic:50,5",
        "contrast": """
            tone:contrast=0.7 mirror+tone:contrast=1.4 | tone:contrast=0.4 mirror+tone:contrast=2.5 | tone:contrast=0.2
        """,
        "brightness": "tone:brightness=0.3 tone:brightness=-0.3",
        "colour": "tone:cast=-0.15 | tone:cast=0.3 | tone:cast=-0.4 tone:grey=1",
        "posterise": "posterise:4 | posterise:2",
        "blur": "blur:0.6 | blur:1.2 | blur:2.4",
        "resample": "resample:0.5 | resample:0.25",
        "jpeg": "jpeg:30 | jpeg:10",
        "gaussian": "gaussian:0.05 | gaussian:0.1 | gaussian:0.2",
        "occlude": """
            occlude:0.4,where=grid | occlude:0.4 occlude:0.5,where=left occlude:0.5,where=right | occlude:0.6,where=grid
        """,
    }.items()
}
"""The candidates of each kind, in rungs from mild to hard."""

SEVERITY: dict[View, int] = {
    view: rung for ladder in LADDERS.values() for rung, views in enumerate(ladder, start=1) for view in views
}
"""The rung of each candidate on its ladder, from 1, the mildest."""

CANDIDATES: tuple[View, ...] = tuple(SEVERITY)
"""The views among which a panel is chosen, those of the general one among them."""

PROMPTED: tuple[View, ...] = Panel.parse(
    "order:1 order:2 order:3 wording:1 wording:2 wording:3 ranked describe mirror+order:1 again"
).views
"""Further candidates for a classifier that takes a prompt; `again` is the control for changed wordings."""


def panel_of(views: Panel | str | None) -> Panel:
    """Parse a panel; without a text, the general panel."""
    if views is None or views == "":
        return GENERAL
    return Panel.parse(views) if isinstance(views, str) else views
