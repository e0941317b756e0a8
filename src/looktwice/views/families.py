"""The families of views and their text: `rotation:30`, `zoom:1.15,border=edge`, `mirror+turn:10`.

A view is a frozen value that says how to look again. Its text is unique: numbers are printed as short as they go,
options only where they differ from their default, so equal views have equal text and the text can serve as a key.
"""

import difflib
import re
from abc import ABC, abstractmethod
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cached_property
from typing import Annotated, ClassVar, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from looktwice.errors import ViewError

Border = Literal["reflect", "constant", "edge"]
"""What lies beyond the picture: its own mirror image, black, or its outermost pixels drawn out."""

Interpolation = Literal["linear", "nearest"]
"""How a pixel is read between four others: their weighted mean, or the nearest one."""

Floats = NDArray[np.float64]

LONGEST_VIEW = 1_000
"""Characters that the text of one view may have."""

_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)(e-?\d+)?", re.ASCII)


class Between(NamedTuple):
    """The numbers from low to high, both allowed."""

    low: float
    high: float


class Motion(NamedTuple):
    """How a picture is moved: one number for all draws, or one for each draw."""

    angle: Floats | float = 0.0
    """Degrees, counter-clockwise, about the centre."""
    factor: Floats | float = 1.0
    """Enlargement about the centre."""
    right: Floats | float = 0.0
    """Shift as a share of the width."""
    down: Floats | float = 0.0
    """Shift as a share of the height."""
    mirrored: bool = False
    """Left and right change sides before anything else moves."""


@dataclass(frozen=True)
class View:
    """One way to look again at a picture."""

    random: ClassVar[bool] = False
    """Whether asking again, with another index, shows something else."""

    def __post_init__(self) -> None:
        for each in fields(self):
            object.__setattr__(self, each.name, _checked(self, each))

    @cached_property
    def text(self) -> str:
        """The one text that `parse` turns into this view again."""
        arguments = [_print(getattr(self, each.name)) for each in _needed(type(self))]
        arguments += [
            f"{each.name}={_print(getattr(self, each.name))}"
            for each in _options(type(self))
            if getattr(self, each.name) != each.default
        ]
        return ":".join(filter(None, (_name(type(self)), ",".join(arguments))))

    @property
    def moves(self) -> "tuple[Moving, ...]":
        """The moves that it consists of and that are made in one step; none if it does anything else."""
        return ()

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True)
class Moving(View, ABC):
    """A view that moves the picture as a whole."""

    @property
    def moves(self) -> "tuple[Moving, ...]":
        return (self,)

    @abstractmethod
    def motion(self, u: Floats, /) -> Motion:
        """The move of each draw; u is (n, 4), uniform in [0, 1), and only random views look at it."""


@dataclass(frozen=True)
class Sampled(View):
    """A view that reads the picture between and beyond its pixels."""

    border: Border = field(default="reflect", kw_only=True)
    interpolation: Interpolation = field(default="linear", kw_only=True)


@dataclass(frozen=True)
class Gaussian(View):
    """Normal noise on every channel of every pixel; its standard deviation is sigma, where white is 1."""

    random: ClassVar[bool] = True
    sigma: Annotated[float, Between(0, 1)]


@dataclass(frozen=True)
class Rotation(Sampled, Moving):
    """The picture turned by an angle that is uniform from -degrees to +degrees."""

    random: ClassVar[bool] = True
    degrees: Annotated[float, Between(0, 180)]

    def motion(self, u: Floats, /) -> Motion:
        return Motion(angle=_spread(self.degrees, u[:, 0]))


@dataclass(frozen=True)
class Elastic(Sampled):
    """Every pixel pushed by up to alpha/2 pixels: uniform fields, smoothed by a Gaussian of sigma pixels."""

    random: ClassVar[bool] = True
    alpha: Annotated[float, Between(0, 1000)]
    sigma: Annotated[float, Between(0.1, 100)]


@dataclass(frozen=True)
class Affine(Sampled, Moving):
    """Turned by up to ±degrees, shifted by up to ±translate of a side, enlarged by 1 ± scale, but never below 0.1."""

    random: ClassVar[bool] = True
    degrees: Annotated[float, Between(0, 180)]
    translate: Annotated[float, Between(0, 1)]
    scale: Annotated[float, Between(0, 1)]

    def motion(self, u: Floats, /) -> Motion:
        return Motion(
            angle=_spread(self.degrees, u[:, 0]),
            right=_spread(self.translate, u[:, 1]),
            down=_spread(self.translate, u[:, 2]),
            factor=np.maximum(0.1, 1 + _spread(self.scale, u[:, 3])),
        )


@dataclass(frozen=True)
class Again(View):
    """The unchanged picture, asked once more: a classifier that rolls dice may answer otherwise."""


@dataclass(frozen=True)
class Mirror(Moving):
    """Left and right change sides; no pixel changes its value."""

    def motion(self, _: Floats, /) -> Motion:
        return Motion(mirrored=True)


@dataclass(frozen=True)
class Turn(Sampled, Moving):
    """The picture turned about its centre, counter-clockwise."""

    degrees: Annotated[float, Between(-180, 180)]

    def motion(self, _: Floats, /) -> Motion:
        return Motion(angle=self.degrees)


@dataclass(frozen=True)
class Shift(Sampled, Moving):
    """The picture moved by shares of its width and height."""

    right: Annotated[float, Between(-1, 1)]
    down: Annotated[float, Between(-1, 1)]

    def motion(self, _: Floats, /) -> Motion:
        return Motion(right=self.right, down=self.down)


@dataclass(frozen=True)
class Zoom(Sampled, Moving):
    """The picture enlarged about its centre; below 1 it shrinks."""

    factor: Annotated[float, Between(0.1, 10)]

    def motion(self, _: Floats, /) -> Motion:
        return Motion(factor=self.factor)


@dataclass(frozen=True)
class Tone(View):
    """The colours changed: first mixed with grey, then contrast about mid-grey and brightness, then a colour cast."""

    brightness: Annotated[float, Between(-1, 1)] = 0.0
    """Added, where white is 1."""
    contrast: Annotated[float, Between(0, 4)] = 1.0
    grey: Annotated[float, Between(0, 1)] = 0.0
    """0 keeps all colour, 1 keeps none."""
    cast: Annotated[float, Between(-1, 1)] = 0.0
    """Red gains this share and blue loses it: above 0 is warmer, below 0 colder."""


@dataclass(frozen=True)
class Blur(View):
    """The picture smoothed by a Gaussian of sigma pixels."""

    sigma: Annotated[float, Between(0.1, 100)]


@dataclass(frozen=True)
class Chain(View):
    """Two or more views one after the other, first to last; neighbouring moves are made in one step."""

    views: tuple[View, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "views", tuple(self.views))
        if len(self.views) < 2 or any(isinstance(view, Chain | Again) for view in self.views):
            raise ViewError(
                f"a chain needs two or more views, none of them 'again', not {_short(self.text)}; try 'mirror+turn:10'"
            )

    @property
    def random(self) -> bool:  # type: ignore[override]
        """Whether any view in it is random."""
        return any(view.random for view in self.views)

    @cached_property
    def moves(self) -> tuple[Moving, ...]:
        """All its views if they are moves and read the picture alike, mirrors aside."""
        moves = tuple(view for view in self.views if isinstance(view, Moving))
        samplings = {(move.border, move.interpolation) for move in moves if isinstance(move, Sampled)}
        return moves if len(moves) == len(self.views) and len(samplings) <= 1 else ()

    @cached_property
    def text(self) -> str:
        """The texts of its views, joined by +."""
        return "+".join(view.text for view in self.views)


FAMILIES: tuple[type[View], ...] = (
    Gaussian,
    Rotation,
    Elastic,
    Affine,
    Again,
    Mirror,
    Turn,
    Shift,
    Zoom,
    Tone,
    Blur,
)


def parse(text: str) -> View:
    """The view that a text names, such as `rotation:30`, `zoom:1.15,border=edge` or `mirror+turn:10`."""
    if len(text) > LONGEST_VIEW:
        raise ViewError(f"a view of {len(text)} characters is too long; {LONGEST_VIEW} are allowed")
    parts = text.split("+")
    return _parse_one(text) if len(parts) == 1 else Chain(tuple(map(_parse_one, parts)))


def _parse_one(text: str) -> View:
    name, colon, rest = text.partition(":")
    family = _family(name)
    arguments = rest.split(",") if colon else []
    numbers = [_read_number(argument, text) for argument in arguments if "=" not in argument]
    options = dict(_read_option(argument, family, text) for argument in arguments if "=" in argument)
    if len(numbers) != len(_needed(family)) or len(numbers) + len(options) != len(arguments):
        raise ViewError(f"{_short(text)} does not fit the form {_form(family)}; give every number and option once")
    return family(*numbers, **options)


def _family(name: str) -> type[View]:
    known = {_name(family): family for family in FAMILIES}
    if name not in known:
        near = difflib.get_close_matches(name[:40].lower(), known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
        raise ViewError(f"unknown view {_short(name)}; {hint}")
    return known[name]


def _read_number(text: str, where: str) -> float:
    if not _NUMBER.fullmatch(text):
        raise ViewError(f"{_short(text)} in {_short(where)} is not a number; write it like 30 or -0.5")
    return float(text)


def _read_option(text: str, family: type[View], where: str) -> tuple[str, str | float]:
    name, _, value = text.partition("=")
    known = {each.name: each for each in _options(family)}
    if name not in known:
        has = f"has the options {', '.join(known)}" if known else "has no options"
        raise ViewError(f"unknown option {_short(name)} in {_short(where)}; {_name(family)} {has}")
    return name, value if isinstance(known[name].default, str) else _read_number(value, where)


def _checked(view: View, each: "Field[object]") -> object:
    value = getattr(view, each.name)
    allowed = get_args(each.type)
    if isinstance(allowed[-1], Between):
        return _checked_number(view, each.name, value, allowed[-1])
    if value not in allowed:
        raise ViewError(f"{_name(type(view))}: {each.name} must be {' or '.join(allowed)}, not {_short(value)}")
    return value


def _checked_number(view: View, name: str, value: object, bounds: Between) -> float:
    number = float(value) + 0.0 if isinstance(value, int | float | np.number) else float("nan")  # + 0.0 unsigns a zero
    if not bounds.low <= number <= bounds.high:
        limits = f"from {_print(bounds.low)} to {_print(bounds.high)}"
        raise ViewError(f"{_name(type(view))}: {name} must be a number {limits}, not {_short(value)}")
    return number


def _needed(family: type[View]) -> "list[Field[object]]":
    return [each for each in fields(family) if each.default is MISSING]


def _options(family: type[View]) -> "list[Field[object]]":
    return [each for each in fields(family) if each.default is not MISSING]


def _form(family: type[View]) -> str:
    needed = [each.name.upper() for each in _needed(family)]
    options = [f"[{each.name}=…]" for each in _options(family)]
    return ":".join(filter(None, (_name(family), ",".join(needed + options))))


def _name(family: type[View]) -> str:
    return family.__name__.lower()


def _print(value: object) -> str:
    return repr(value).removesuffix(".0") if isinstance(value, float | int) else str(value)


def _short(value: object) -> str:
    text = repr(str(value))
    return text if len(text) <= 60 else f"{text[:56]}…'"


def _spread(limit: float, u: Floats) -> Floats:
    return 2 * limit * u - limit
