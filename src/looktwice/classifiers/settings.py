"""The settings of a description in TOML, checked; label files."""

from __future__ import annotations

import tomllib
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from looktwice.classifiers.base import Settings
from looktwice.errors import PermanentError

if TYPE_CHECKING:
    from pydantic import BaseModel


Description = TypeVar("Description", bound="BaseModel")


def read_toml(path: Path) -> dict[str, object]:
    """The tables of a TOML file; a PermanentError says what is wrong with it."""
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise PermanentError(f"there is no classifier description {str(path)!r}") from None
    except (OSError, ValueError, RecursionError) as error:
        why = str(error).partition("\n")[0]
        raise PermanentError(f"the classifier description {str(path)!r} cannot be read: {why}") from None


def read_labels(name: str, *folders: Path) -> tuple[str, ...]:
    """The lines of a text file with one label each, from the first folder that has it.

    A PermanentError says what is wrong with it.
    """
    places = list(dict.fromkeys(folder / name for folder in folders))
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        raise PermanentError(f"there is no label file {' or '.join(repr(str(place)) for place in places)}")
    try:
        return tuple(path.read_text("utf-8").splitlines())
    except (OSError, ValueError) as error:
        raise PermanentError(f"the label file {str(path)!r} cannot be read: {error}") from None


def folder_of(settings: Settings) -> Path:
    """Where the description lies whose settings these are."""
    return Path(str(settings.get("folder", ".")))


def described(model: type[Description], settings: Settings) -> Description:
    """The settings of a TOML file as a checked model; a PermanentError names the one that is wrong."""
    from pydantic import ValidationError

    values = {key: value for key, value in settings.items() if key != "folder"}
    try:
        return model.model_validate(values)
    except ValidationError as error:
        wrong = error.errors(include_input=False)
        # A word that is not known comes first: what it was meant to be may be missing because of it.
        first = next((each for each in wrong if each["type"] == "extra_forbidden"), wrong[0])
        where = ".".join(map(str, first["loc"])) or "its settings"
        message = f"the description of the classifier is wrong at {where}: {first['msg'].removeprefix('Value error, ')}"
        if first["type"] == "extra_forbidden":
            close = get_close_matches(where, [field.alias or name for name, field in model.model_fields.items()], 1)
            meant = f"; did you mean {close[0]!r}?" if close else "; see docs/connectors.md for those that it takes"
            message = (
                f"the description of the classifier has a setting {where!r} that this connector does not know{meant}"
            )
    raise PermanentError(message)
