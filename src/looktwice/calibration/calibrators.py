"""Every calibrator by its name, and as plain JSON."""

from __future__ import annotations

from inspect import signature

import numpy as np

from looktwice.calibration.base import Calibrator
from looktwice.calibration.jury import Jury, Prefixes
from looktwice.calibration.paper import Gaussian, Naive, Transfer
from looktwice.calibration.shares import Beta, Constant, Isotonic, Probit
from looktwice.errors import DataError, FitError
from looktwice.images.image import shown

FAMILIES: dict[str, type[Calibrator]] = {
    family.name: family for family in (Naive, Constant, Gaussian, Transfer, Probit, Beta, Isotonic, Jury, Prefixes)
}
"""Every calibrator by its name."""


def named(calibrator: Calibrator | str) -> Calibrator:
    """The calibrator of a name, with its usual settings; a calibrator as it is."""
    if not isinstance(calibrator, str):
        return calibrator
    if calibrator not in FAMILIES:
        raise FitError(f"no calibrator is called {calibrator!r}; there are {', '.join(FAMILIES)}")
    return FAMILIES[calibrator]()


def dump(calibrator: Calibrator) -> dict[str, object]:
    """The calibrator as plain JSON values; `restore` makes it again."""
    from pydantic import TypeAdapter

    return {"family": calibrator.name, **TypeAdapter(type(calibrator)).dump_python(calibrator, mode="json")}


def restore(fields: dict[str, object]) -> Calibrator:
    """The calibrator that `dump` wrote; a DataError says what is wrong with the values."""
    from pydantic import TypeAdapter, ValidationError

    family = FAMILIES.get(str(fields.get("family")))
    if family is None:
        raise DataError(f"no calibrator is called {fields.get('family')!r}; there are {', '.join(FAMILIES)}")
    values = {key: value for key, value in fields.items() if key != "family"}
    unknown = sorted(set(values) - set(signature(family).parameters))
    if unknown:
        raise DataError(f"the calibrator {family.name} has no {shown(', '.join(unknown))}; fit again")
    if not _finite(values):
        raise DataError(f"the calibrator {family.name} holds a number that is not finite")
    try:
        return TypeAdapter(family).validate_python(values)
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(f"the calibrator {family.name}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None


def _finite(value: object) -> bool:
    if isinstance(value, dict):
        return all(map(_finite, value.values()))
    if isinstance(value, (list, tuple)):
        return all(map(_finite, value))
    return not isinstance(value, float) or bool(np.isfinite(value))
