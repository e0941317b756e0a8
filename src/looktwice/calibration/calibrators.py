"""The registry of calibrators, and their JSON representation.

Other calibrators are added with `register`, or by installed packages with an entry point in the group
`looktwice.calibrators`.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from importlib.metadata import entry_points
from inspect import signature
from typing import ClassVar, Protocol, Self, TypeVar, get_type_hints

import numpy as np

from looktwice.calibration.distribution import Distribution
from looktwice.calibration.evidence import Codes, Floats
from looktwice.calibration.jury import AdaptiveJury, Jury
from looktwice.calibration.shares import Beta, Constant, Gaussian, Isotonic, Naive, Probit, Transfer
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.errors import DataError, FitError, LookTwiceError, shown


class Calibrator(Protocol):
    """A method that converts votes to probabilities."""

    name: ClassVar[str]

    def fit(self, labelled: LabelledVotes) -> Self:
        """Return a copy fitted on labelled pictures."""

    def predict(self, votes: Votes) -> Codes:
        """(n,): the predicted label."""

    def confidence(self, votes: Votes) -> Floats:
        """(n,): the probability that the predicted label is right, in [0, 1]."""

    def interval(self, votes: Votes) -> tuple[Floats, Floats]:
        """(n,) twice: the 95 % interval of the confidence given an unlimited number of such views."""

    def distribution(self, votes: Votes) -> Distribution:
        """The probability of every label."""


FAMILIES: dict[str, type[Calibrator]] = {
    family.name: family for family in (Naive, Constant, Gaussian, Transfer, Probit, Beta, Isotonic, Jury, AdaptiveJury)
}
"""All registered calibrators by name."""
GROUP = "looktwice.calibrators"
METHODS = ("fit", "predict", "confidence", "interval", "distribution")
_OURS = frozenset(FAMILIES)

Family = TypeVar("Family", bound=Calibrator)


def register(family: type[Family]) -> type[Family]:
    """Class decorator: register a calibrator by its `name` so that profiles that use it can be loaded.

    The class must be a dataclass; its fields are stored in the profile as JSON, so their types must have a JSON form.
    """
    name = getattr(family, "name", None)
    missing = [method for method in METHODS if not hasattr(family, method)]
    if not isinstance(name, str) or missing or not is_dataclass(family):
        lacks = ", ".join([*([] if isinstance(name, str) else ["name"]), *missing]) or "@dataclass"
        raise FitError(f"{family.__name__} is not a calibrator; add {lacks}", code="calibrator-plugin")
    if name in _OURS:
        raise FitError(
            f"{family.__name__} has the name {name!r} of a built-in calibrator; choose another name",
            code="calibrator-plugin",
        )
    _check_fields(family)
    FAMILIES[name] = family  # in a notebook, a class that is defined again replaces the earlier one
    return family


def _check_fields(family: type[Calibrator]) -> None:
    """Raise an error if a field has a type that a profile cannot store."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    try:
        hints = get_type_hints(family, include_extras=True)
    except NameError as error:
        raise FitError(f"{family.__name__}: its fields cannot be read: {error}", code="calibrator-plugin") from None
    for field in fields(family):  # type: ignore[arg-type]
        try:
            TypeAdapter(hints[field.name]).json_schema()
        except PydanticUserError:
            raise FitError(
                f"{family.__name__}: a profile cannot store the type of the field {field.name}; use float, int, bool, "
                "str, None, dataclasses of these, and tuples, such as tuple[float, ...] for an array",
                code="calibrator-plugin",
            ) from None


def find(name: str, error: type[LookTwiceError]) -> type[Calibrator]:
    """Return the calibrator class with this name, built-in or from an installed package, or raise `error`."""
    if name in FAMILIES:
        return FAMILIES[name]
    points = {point.name: point for point in entry_points(group=GROUP)}
    if name not in points:
        raise error(
            f"there is no calibrator {name[:40]!r}; choose one of {', '.join([*FAMILIES, *points])}",
            code="calibrator-unknown",
        )
    point = points[name]
    try:
        family = point.load()
    except Exception as fault:  # third-party code may raise anything
        why = f"{type(fault).__name__}: {fault}".partition("\n")[0]
        raise error(
            f"the calibrator {name!r} ({point.value}) cannot be loaded: {why}", code="calibrator-plugin"
        ) from fault
    if FAMILIES.get(name) is not family:
        raise error(
            f"{point.value} does not register a calibrator {name!r}; decorate its class with @register and set `name`",
            code="calibrator-plugin",
        )
    return FAMILIES[name]


def named(calibrator: Calibrator | str) -> Calibrator:
    """Create a calibrator by name with default settings; return an instance of a registered class unchanged."""
    if isinstance(calibrator, str):
        return find(calibrator, FitError)()
    if FAMILIES.get(calibrator.name) is not type(calibrator):
        family = type(calibrator).__name__
        raise FitError(
            f"a profile that uses {family} could not be loaded; decorate the class with looktwice.calibration.register",
            code="calibrator-plugin",
        )
    return calibrator


def dump(calibrator: Calibrator) -> dict[str, object]:
    """Serialise a calibrator to plain JSON values, converting numpy values; `restore` is the inverse."""
    from pydantic_core import to_jsonable_python

    return {"family": calibrator.name, **to_jsonable_python(calibrator, fallback=_from_numpy)}


def _from_numpy(value: object) -> object:
    """Convert numpy scalars and arrays, which a calibrator may contain, to JSON values."""
    if isinstance(value, np.generic | np.ndarray):
        return value.tolist()
    raise FitError(
        f"a profile cannot store the {type(value).__name__} in a field of its calibrator; use numbers and tuples",
        code="calibrator-plugin",
    )


def restore(fields: dict[str, object]) -> Calibrator:
    """Restore a calibrator from the output of `dump`; raise a DataError if it is invalid."""
    from pydantic import TypeAdapter, ValidationError

    family = find(str(fields.get("family")), DataError)
    values = {key: value for key, value in fields.items() if key != "family"}
    unknown = sorted(set(values) - set(signature(family).parameters))
    if unknown:
        raise DataError(
            f"the calibrator {family.name} has no field {shown(', '.join(unknown))}; fit again",
            code="calibrator-malformed",
        )
    if not _finite(values):
        raise DataError(
            f"the calibrator {family.name} contains a number that is not finite; fit again", code="calibrator-malformed"
        )
    try:
        return TypeAdapter(family).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(
            f"the calibrator {family.name} has an invalid field {'.'.join(map(str, first['loc']))}: {first['msg']}",
            code="calibrator-malformed",
        ) from None


def _finite(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_finite, value))
    return not isinstance(value, float) or bool(np.isfinite(value))
