"""The interface of views, and the registry of their families.

A view is an immutable value that describes a changed query. Its text is canonical: numbers are printed in their
shortest form, and options only if they differ from their defaults. The text can therefore be used as a key.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields
from functools import cache, cached_property
from hashlib import blake2b
from math import isfinite
from typing import ClassVar, NamedTuple, TypeVar, get_args, get_type_hints

import numpy as np
from numpy.typing import NDArray

from looktwice.errors import ViewError

# The wording of a query ----------------------------------------------------------------------------------------------


Item = TypeVar("Item")

THIRDS = 3


@dataclass(frozen=True)
class LabelOrder:
    """A label order that is determined by the picture.

    Numbers 1 to 3 use the same shuffled list, rotated by thirds, as do numbers 4 to 6. Within such a group, every label
    appears once in each third of the list, if the number of labels is divisible by three.
    """

    digest: str
    number: int
    """The number of the order, from 1."""

    def permuted(self, labels: Sequence[Item]) -> tuple[Item, ...]:
        """The labels in this order."""
        group, turn = divmod(self.number - 1, THIRDS)
        ranks = [
            blake2b(f"{self.digest} {group} {place}".encode(), digest_size=16, person=b"looktwice order").digest()
            for place in range(len(labels))
        ]
        shuffled = sorted(range(len(labels)), key=lambda place: ranks[place])
        start = turn * len(labels) // THIRDS
        return tuple(labels[place] for place in shuffled[start:] + shuffled[:start])


@dataclass(frozen=True)
class Phrasing:
    """Changes to the prompt of one query; by default, the prompt is unchanged."""

    order: LabelOrder | None = None
    wording: int = 0
    """The paraphrase, from 1; 0 is the default prompt."""
    ranked: bool = False
    """Whether the prompt asks for a ranked list of labels."""
    describe: bool = False
    """Whether the prompt asks for a description of the picture before the label."""


AS_DESCRIBED = Phrasing()
"""The default wording."""


# Views ---------------------------------------------------------------------------------------------------------------


Pixels = NDArray[np.uint8]
Floats = NDArray[np.float64]

_WORD = re.compile(r"[a-z][a-z0-9_-]*", re.ASCII)
CLASSIFIER_NAME = re.compile(r"[^\s@*]{1,60}")
"""Matches a classifier name, such as the one before the @ in `gpt@mirror`."""


class Between(NamedTuple):
    """The numbers from low to high, inclusive."""

    low: float
    high: float
    whole: bool = False
    """Whether only integers are allowed."""


class Argument(NamedTuple):
    """A parameter of a view: a number or a word."""

    name: str
    allowed: Between | tuple[str, ...]
    """The range of a number, or the allowed words."""
    default: object
    """The default value; MISSING if the argument is required."""


@dataclass(frozen=True)
class View(ABC):
    """An augmentation or prompt variant.

    A family of views is a frozen dataclass with `@register` above it. Its fields are numbers, as in
    `Annotated[float, Between(0, 1)]`, and words with a default, as in `Literal["linear", "nearest"] = "linear"`.
    """

    random: ClassVar[bool] = False
    """Whether the view is random: its pixels then depend on the index of the query."""

    version: ClassVar[str] = ""
    """Part of the ledger keys; families in other packages must change it whenever their pixels change."""

    def __post_init__(self) -> None:
        family = type(self)
        if REGISTERED.get(name_of(family)) is not family:
            raise ViewError(
                f"the view {family.__qualname__} is not registered; put @register above its class", code="view-plugin"
            )
        for argument in arguments(family):
            object.__setattr__(self, argument.name, _checked(family, argument, getattr(self, argument.name)))

    @abstractmethod
    def draw(self, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
        """Write the pixels of the n queries about a picture into `out`, (n, height, width, 3); returns nothing.

        `part` is the position of this view in a chain, or 0; `rendering.uniforms(questions, part)`
        returns random numbers.
        """

    def phrased(self, asked: Phrasing, digest: str) -> Phrasing:
        """The wording of the query; unchanged unless the view varies the prompt."""
        return asked

    @property
    @abstractmethod
    def adjective(self) -> str:
        """The adjective of the changed picture: "mirrored"."""

    @property
    def parts(self) -> tuple[View, ...]:
        """The views that are drawn in succession."""
        return (self,)

    @cached_property
    def text(self) -> str:
        """The canonical text, the inverse of `parse`."""
        given = [(argument, getattr(self, argument.name)) for argument in arguments(type(self))]
        texts = [printed(value) for argument, value in given if argument.default is MISSING]
        texts += [
            f"{argument.name}={printed(value)}" for argument, value in given if argument.default not in (MISSING, value)
        ]
        return ":".join(filter(None, (name_of(type(self)), ",".join(texts))))

    def __str__(self) -> str:
        return self.text


def draw(view: View, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
    """Draw a view into `out`; raise an error if its `draw` returns a value instead of writing the pixels."""
    if view.draw(part, questions, picture, out) is not None:
        raise ViewError(
            f"{view.text}: draw returned a value; it must write the pixels into out, as in out[:] = …, and return None",
            code="view-plugin",
        )


@dataclass(frozen=True)
class Worded(View):
    """A view that changes the prompt but not the pixels, for classifiers that take a prompt."""

    version: ClassVar[str] = "1"

    @abstractmethod
    def phrased(self, asked: Phrasing, digest: str) -> Phrasing:
        """The wording of the query about a picture."""

    def draw(self, part: int, questions: Sequence[Question], picture: Pixels, out: Pixels) -> None:
        out[:] = picture


class Question(NamedTuple):
    """A query about a picture; it alone determines the pixels and the wording that are sent.

    Each picture has many queries, which are used as keys; as a tuple, a query is created and hashed in half the time.
    """

    digest: str
    view: View
    seed: int
    """The random seed; 0 for a fixed view, so that its stored answers are found with any seed."""
    index: int  # type: ignore[assignment]

    @property
    def phrasing(self) -> Phrasing:
        """The wording of the query."""
        return self.view.phrased(AS_DESCRIBED, self.digest)


# The families ------------------------------------------------------------------------------------------------------

Family = TypeVar("Family", bound=View)

REGISTERED: dict[str, type[View]] = {}
"""The registered families of views, by name."""


def register(family: type[Family]) -> type[Family]:
    """Class decorator: register a family under its class name in lower case."""
    name, where = name_of(family), f"{family.__module__}.{family.__qualname__}"
    if missing := getattr(family, "__abstractmethods__", None):
        raise ViewError(
            f"the view {where} has no {' and no '.join(sorted(missing))}; define what is missing", code="view-plugin"
        )
    if "__dataclass_params__" not in vars(family):
        raise ViewError(
            f"the view {where} is not a dataclass; put @dataclass(frozen=True) below @register", code="view-plugin"
        )
    if not _WORD.fullmatch(name):
        raise ViewError(
            f"{short(name)} cannot be the name of a view; name the class with ASCII letters and digits",
            code="view-plugin",
        )
    arguments(family)
    known = REGISTERED.setdefault(name, family)
    if (known.__module__, known.__qualname__) != (family.__module__, family.__qualname__):
        raise ViewError(
            f"the view {where} cannot be named {name!r} like the one in {known.__module__}; rename the class",
            code="view-plugin",
        )
    REGISTERED[name] = family  # a class that is defined again, as in a notebook, replaces the earlier one
    return family


def name_of(family: type[View]) -> str:
    """The name of a family; the text of each of its views starts with this name."""
    return family.__name__.lower()


@cache
def arguments(family: type[View]) -> tuple[Argument, ...]:
    """The parameters of a family, in the order of its fields."""
    try:
        hints = get_type_hints(family, include_extras=True)
    except NameError as error:
        raise ViewError(
            f"the fields of the view {name_of(family)} cannot be read: {error}", code="view-plugin"
        ) from None
    known = []
    for parameter in fields(family):
        allowed = get_args(hints[parameter.name])
        last = allowed[-1] if allowed else None
        if isinstance(last, Between) and isfinite(last.low) and isfinite(last.high):
            known.append(Argument(parameter.name, last, parameter.default))
            continue
        words = tuple(word for word in allowed if isinstance(word, str) and _WORD.fullmatch(word))
        if not words or len(words) < len(allowed) or parameter.default is MISSING:
            raise ViewError(
                f"{name_of(family)}: the field {parameter.name} must be Annotated[float, Between(low, high)], with "
                "finite limits, or a Literal of lower-case words with a default",
                code="view-plugin",
            )
        known.append(Argument(parameter.name, words, parameter.default))
    return tuple(known)


def _checked(family: type[View], argument: Argument, value: object) -> object:
    allowed = argument.allowed
    if isinstance(allowed, Between):
        number = float(value) + 0.0 if isinstance(value, int | float | np.number) else np.nan  # + 0.0: no -0.0
        if allowed.low <= number <= allowed.high and not (allowed.whole and number % 1):
            return number
        wanted = f"a {'whole ' * allowed.whole}number from {printed(allowed.low)} to {printed(allowed.high)}"
    else:
        if value in allowed:
            return value
        wanted = " or ".join(allowed)
    raise ViewError(f"{name_of(family)}: {argument.name} must be {wanted}, not {short(value)}")


def printed(value: object) -> str:
    """Print a word, or a number in its shortest form without a +, which would separate views."""
    return repr(value).removesuffix(".0").replace("e+", "e") if isinstance(value, float | int) else str(value)


def short(value: object) -> str:
    """Format a value for messages: quoted, and truncated if long."""
    text = repr(str(value))
    return text if len(text) <= 60 else f"{text[:56]}…'"
