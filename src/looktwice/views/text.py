"""From text to views: `rotation:30`, `zoom:1.15,border=edge`, `mirror+turn:10`."""

from __future__ import annotations

import difflib
import re
from dataclasses import MISSING
from functools import cache
from typing import TYPE_CHECKING

from looktwice.errors import ViewError
from looktwice.views.base import REGISTERED, Between, View, arguments, short
from looktwice.views.families import Chain

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

LONGEST_VIEW = 1_000
"""Characters that the text of one view may have."""

GROUP = "looktwice.views"
"""The entry points with which other packages add families."""

_NUMBER = re.compile(r"-?(\d+\.?\d*|\.\d+)(e-?\d+)?", re.ASCII)


def parse(text: str) -> View:
    """The view that a text names, such as `rotation:30`, `zoom:1.15,border=edge` or `mirror+turn:10`."""
    if len(text) > LONGEST_VIEW:
        raise ViewError(f"a view of {len(text)} characters is too long; {LONGEST_VIEW} are allowed")
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
    raise ViewError(f"unknown view {short(name)}; {hint}")


@cache
def _installed() -> tuple[EntryPoint, ...]:
    """What other packages offer; looked up once, since it takes milliseconds and any misspelt view asks for it."""
    from importlib.metadata import entry_points

    return tuple(entry_points(group=GROUP))


def _load(name: str, points: list[EntryPoint]) -> type[View]:
    packages = " and ".join(sorted({point.dist.name for point in points if point.dist}))
    if len(points) > 1:
        raise ViewError(f"the view {name!r} is offered by {packages}; uninstall all but one")
    try:
        family = points[0].load()
    except Exception as error:  # the code of a stranger may fail in any way
        why = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ViewError(f"the view {name!r} of {packages} cannot be loaded: {why}") from error
    if not isinstance(family, type) or not issubclass(family, View) or REGISTERED.get(name) is not family:
        raise ViewError(
            f"the view {name!r} of {packages} is {points[0].value}, which is not a view of this name; the entry point "
            f"must name a class with @register that is called {name} in lower case"
        )
    return family
