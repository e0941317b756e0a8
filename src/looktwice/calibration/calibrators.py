"""The registry of calibrators by name, and their JSON form.

Others join by `register`, or from an installed package by an entry point of the group `looktwice.calibrators`.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from importlib.metadata import entry_points
from inspect import signature
from typing import TypeVar

import numpy as np

from looktwice.calibration.base import Calibrator
from looktwice.calibration.jury import AdaptiveJury, Jury
from looktwice.calibration.paper import Gaussian, Naive, Transfer
from looktwice.calibration.shares import Beta, Constant, Isotonic, Probit
from looktwice.errors import DataError, FitError, LookTwiceError, shown

FAMILIES: dict[str, type[Calibrator]] = {
    family.name: family for family in (Naive, Constant, Gaussian, Transfer, Probit, Beta, Isotonic, Jury, AdaptiveJury)
}
"""All registered calibrators by name."""
GROUP = "looktwice.calibrators"
METHODS = ("fit", "predict", "confidence", "interval", "distribution")
_OURS = frozenset(FAMILIES)

Family = TypeVar("Family", bound=Calibrator)


def register(family: type[Family]) -> type[Family]:
    """Class decorator: register a calibrator under its `name`, so that profiles with it can be loaded.

    The class is a dataclass whose fields are stored in the profile.
    """
    name = getattr(family, "name", None)
    missing = [method for method in METHODS if not hasattr(family, method)]
    if not isinstance(name, str) or missing or not is_dataclass(family):
        lacks = ", ".join([*([] if isinstance(name, str) else ["name"]), *missing]) or "@dataclass"
        raise FitError(f"{family.__name__} is not a calibrator: it lacks {lacks}", code="calibrator-plugin")
    if name in _OURS:
        raise FitError(
            f"the name {name!r} of {family.__name__} is one of looktwice's own; choose another",
            code="calibrator-plugin",
        )
    FAMILIES[name] = family  # a class that is defined again, as in a notebook, replaces itself
    return family


def find(name: str, error: type[LookTwiceError]) -> type[Calibrator]:
    """The calibrator with this name, from looktwice or an installed package; raises `error` if there is none."""
    if name in FAMILIES:
        return FAMILIES[name]
    points = {point.name: point for point in entry_points(group=GROUP)}
    if name not in points:
        raise error(
            f"no calibrator is called {name[:40]!r}; there are {', '.join([*FAMILIES, *points])}",
            code="calibrator-unknown",
        )
    point = points[name]
    try:
        family = point.load()
    except Exception as fault:  # the code of a stranger may fail in any way
        why = f"{type(fault).__name__}: {fault}".partition("\n")[0]
        raise error(
            f"the calibrator {name!r} ({point.value}) cannot be loaded: {why}", code="calibrator-plugin"
        ) from fault
    if FAMILIES.get(name) is not family:
        raise error(
            f"{point.value} is not a calibrator called {name!r}; decorate it with @register, and set its name",
            code="calibrator-plugin",
        )
    return FAMILIES[name]


def named(calibrator: Calibrator | str) -> Calibrator:
    """Look up a calibrator by name with default settings; an instance is returned unchanged if it is registered."""
    if isinstance(calibrator, str):
        return find(calibrator, FitError)()
    if FAMILIES.get(calibrator.name) is not type(calibrator):
        family = type(calibrator).__name__
        raise FitError(
            f"a profile with {family} could not be loaded; decorate it with looktwice.calibration.register",
            code="calibrator-plugin",
        )
    return calibrator


def dump(calibrator: Calibrator) -> dict[str, object]:
    """Serialise a calibrator to plain JSON values; `restore` is the inverse."""
    from pydantic import TypeAdapter

    return {"family": calibrator.name, **TypeAdapter(type(calibrator)).dump_python(calibrator, mode="json")}


def restore(fields: dict[str, object]) -> Calibrator:
    """Load a calibrator from the values of `dump`; raises a DataError if they are invalid."""
    from pydantic import TypeAdapter, ValidationError

    family = find(str(fields.get("family")), DataError)
    values = {key: value for key, value in fields.items() if key != "family"}
    unknown = sorted(set(values) - set(signature(family).parameters))
    if unknown:
        raise DataError(
            f"the calibrator {family.name} has no {shown(', '.join(unknown))}; fit again", code="calibrator-malformed"
        )
    if not _finite(values):
        raise DataError(
            f"the calibrator {family.name} contains a number that is not finite", code="calibrator-malformed"
        )
    try:
        return TypeAdapter(family).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(
            f"the calibrator {family.name}: {'.'.join(map(str, first['loc']))}: {first['msg']}",
            code="calibrator-malformed",
        ) from None


def _finite(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_finite, value))
    return not isinstance(value, float) or bool(np.isfinite(value))
