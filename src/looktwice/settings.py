"""Settings of TOML files, checked by a model of pydantic."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pydantic import BaseModel

Checked = TypeVar("Checked", bound="BaseModel")


def checked(model: type[Checked], values: Mapping[str, object], what: str, page: str) -> Checked:
    """The settings as a checked model; a ValueError names the one that is wrong, and the one that may have been meant.

    `what` is what they are the settings of, `page` the document that lists them.
    """
    from pydantic import ValidationError

    try:
        return model.model_validate(values)
    except ValidationError as error:
        wrong = error.errors(include_input=False)
        # A word that is not known comes first: what it was meant to be may be missing because of it.
        first = next((each for each in wrong if each["type"] == "extra_forbidden"), wrong[0])
        where = ".".join(map(str, first["loc"])) or "its settings"
        message = f"{what} is wrong at {where}: {first['msg'].removeprefix('Value error, ')}"
        if first["type"] == "extra_forbidden":
            close = get_close_matches(where, [field.alias or name for name, field in model.model_fields.items()], 1)
            meant = f"did you mean {close[0]!r}?" if close else f"see {page} for those that it takes"
            message = f"{what} has a setting {where!r} that is not known; {meant}"
    raise ValueError(message)
