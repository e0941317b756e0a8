"""FiftyOne: files of the type FiftyOneImageClassificationDataset, which hold a `Classification` a picture.

FiftyOne reads and writes them itself, so nothing of it is needed here. It knows a picture by its path below the folder
of pictures, without the ending.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from pydantic import BaseModel, ValidationError

from looktwice import files
from looktwice.errors import DataError
from looktwice.labelling.exchange import Judged, click
from looktwice.labelling.labels import Click, Word
from looktwice.pictures.collection import few


class _Classification(BaseModel):
    label: Word | None = None


class _Classifications(BaseModel):
    classes: list[Word] | None = None
    labels: dict[str, Word | int | _Classification | None]


def export(verdicts: Iterable[Judged], out: Path) -> None:
    """Write verdicts as classifications with their confidence."""
    found = {verdict.name: verdict for verdict in verdicts}
    labels = {
        key: {"label": found[name].label, "confidence": found[name].confidence} for key, name in _keys(found).items()
    }
    classes = sorted({verdict.label for verdict in found.values()})
    files.write(out, json.dumps({"classes": classes, "labels": labels}) + "\n")


def read(path: Path, names: Iterable[str]) -> dict[str, Click]:
    """The labels that FiftyOne exported, for pictures of these names; a picture without a label has none."""
    try:
        exported = _Classifications.model_validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read ({error.strerror}); name what FiftyOne exported") from None
    except ValidationError:
        what = f"{str(path)!r} is no labels file that FiftyOne exported"
        raise DataError(f"{what}; export with dataset_type=fiftyone.types.FiftyOneImageClassificationDataset") from None
    named = _keys(names)
    lost = sorted(exported.labels.keys() - named.keys())
    if lost:
        raise DataError(f"{few(lost, 'label')} without a picture; export with rel_dir= the folder of the pictures")
    known = {}
    for key, value in exported.labels.items():
        label: str | None
        if isinstance(value, int):
            label = exported.classes[value] if exported.classes and 0 <= value < len(exported.classes) else str(value)
        else:
            label = value.label if isinstance(value, _Classification) else value
        if label is not None:
            known[named[key]] = click("fiftyone", named[key], "label", (label,))
    return known


def _keys(names: Iterable[str]) -> dict[str, str]:
    """The name of each picture by what FiftyOne calls it."""
    found, twice = dict[str, str](), list[str]()
    for name in names:
        if found.setdefault(PurePosixPath(name).with_suffix("").as_posix(), name) != name:
            twice.append(name)
    if twice:
        raise DataError(
            f"{few(twice, 'picture')} cannot be told from others without the ending, which FiftyOne drops; rename"
        )
    return found
