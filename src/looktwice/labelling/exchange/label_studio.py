"""Label Studio: verdicts become tasks with predictions, and what people said of them becomes labels.

The name of a picture travels in its task's data, and so do the labels that were named about it, so that the way back
is exact whatever became of the picture's address.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from looktwice import files
from looktwice.errors import DataError
from looktwice.labelling.exchange import click
from looktwice.labelling.labels import Click, Name, Says, Word
from looktwice.pictures.collection import Picture
from looktwice.pictures.image import WorkingSize, data_url
from looktwice.verdicts.label_studio import NONE, UNSURE, Interface, configuration
from looktwice.verdicts.review import StoredVerdict

SIDE = 1280
"""Pixels of the longer side of a picture that is embedded in its task."""
VERSION = "looktwice"
INTERFACE = Interface()


# Out ---------------------------------------------------------------------------------------------------------------


def export(verdicts: Iterable[StoredVerdict], address: Callable[[str], str], labels: Iterable[str], out: Path) -> Path:
    """Write tasks with predictions, and beside them, as .xml, the configuration of a project for them: its place.

    `address` tells where Label Studio finds a picture; `labels` are offered beside those that the verdicts name.
    """
    found = list(verdicts)
    words = sorted({*labels, *(label for verdict in found for label in _named(verdict))})
    config = out.with_suffix(".xml")
    files.write(config, configuration(words))
    with files.atomic(out) as part, part.open("w", encoding="utf-8") as file:
        for place, verdict in enumerate(found):
            file.write(("[\n" if place == 0 else ",\n") + json.dumps(task(verdict, address(verdict.name))))
        file.write("\n]\n" if found else "[]\n")
    return config


def task(verdict: StoredVerdict, address: str) -> dict[str, object]:
    """One picture to label, with the verdict as a prediction."""
    data = {
        INTERFACE.field: address,
        "file": verdict.name,
        "confidence": verdict.confidence,
        "decision": verdict.decision,
        "named": _named(verdict),
    }
    return {"data": data, "predictions": [INTERFACE.prediction(verdict.label, verdict.confidence, VERSION)]}


def linked(prefix: str) -> Callable[[str], str]:
    """Addresses that begin so and end with the picture's name."""
    return lambda name: prefix + quote(os.fsencode(name))


def embedded(pictures: Mapping[str, Picture]) -> Callable[[str], str]:
    """Addresses that hold the picture itself, no larger than a screen; small ones without loss."""
    return lambda name: data_url(pictures[name].image(WorkingSize(long=SIDE)).pixels)


def _named(verdict: StoredVerdict) -> list[str]:
    return list(dict.fromkeys((verdict.label, verdict.base, *verdict.votes)))


# Back --------------------------------------------------------------------------------------------------------------


class _Value(BaseModel):
    choices: list[Word] = []


class _Region(BaseModel):
    type: str = ""
    value: _Value = _Value()


class _User(BaseModel):
    id: int


class _Annotation(BaseModel):
    id: int = 0
    completed_by: int | _User | None = None
    result: list[_Region] = []
    was_cancelled: bool = False
    ground_truth: bool = False
    updated_at: str = ""

    def said(self, task: _Task) -> _Said | None:
        """What it says, if it says anything: a skipped one does not."""
        choices = [choice for region in self.result if region.type == "choices" for choice in region.value.choices]
        if self.was_cancelled or not choices:
            return None
        who = self.completed_by.id if isinstance(self.completed_by, _User) else self.completed_by
        return _Said(task.data, choices, who, (self.updated_at, self.id), self.ground_truth)


class _Data(BaseModel):
    file: Name | None = None
    """None where somebody else made the task."""
    named: list[Word] = []


class _Task(BaseModel):
    """A task of a full export."""

    data: _Data
    annotations: list[_Annotation]

    def said(self) -> Iterator[_Said]:
        return (said for annotation in self.annotations if (said := annotation.said(self)))


class _Min(_Data):
    """An annotation of an export as JSON_MIN."""

    label: Word | _Value | None = None
    annotator: int | None = None
    annotation_id: int | None = None
    updated_at: str | None = None

    def said(self) -> Iterator[_Said]:
        choices = self.label.choices if isinstance(self.label, _Value) else [self.label] if self.label else []
        if choices:
            yield _Said(self, choices, self.annotator, (self.updated_at or "", self.annotation_id or 0))


_EXPORT = TypeAdapter[list[_Task] | list[_Min]](Annotated[list[_Task] | list[_Min], Field(union_mode="left_to_right")])


@dataclass(frozen=True)
class _Said:
    """What one person said of one picture."""

    about: _Data
    choices: list[str]
    who: int | None
    when: tuple[str, int]
    final: bool = False
    """Marked as the ground truth, so that it outweighs what others said."""

    def claim(self) -> tuple[Says, tuple[str, ...]]:
        if len(self.choices) > 1:
            what = f"{self.about.file!r} is said to be {' and '.join(map(repr, self.choices[:3]))}"
            raise DataError(f'{what}; a picture has one truth: have the project ask with choice="single"')
        if self.choices == [UNSURE]:
            return "unsure", ()
        if self.choices == [NONE]:
            return ("not", tuple(self.about.named)) if self.about.named else ("unsure", ())
        return "label", (self.choices[0],)


@dataclass(frozen=True)
class Imported:
    """What people said in Label Studio."""

    known: dict[str, Click]
    disputed: list[str]
    """Pictures of which equally many people said different things; they are not labelled."""
    unnamed: int
    """Annotations of tasks whose data does not name the picture; they are left out."""


def read(path: Path) -> Imported:
    """The labels of an export, as JSON or as JSON_MIN.

    Each person has one say about a picture, the last one; what most say holds. Where somebody marked annotations as
    the ground truth, only these count.
    """
    try:
        exported = _EXPORT.validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"{str(path)!r} cannot be read ({error.strerror}); name what Label Studio exported") from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        what = f"{str(path)!r} is no JSON or JSON_MIN that Label Studio exported of tasks that `export` wrote"
        raise DataError(f"{what} ({where}: {first['msg']})") from None
    said: dict[str, list[_Said]] = {}
    unnamed = 0
    for each in chain.from_iterable(item.said() for item in exported):
        if each.about.file is None:
            unnamed += 1
        else:
            said.setdefault(each.about.file, []).append(each)
    known, disputed = dict[str, Click](), list[str]()
    for file, told in said.items():
        if (claim := _agreed(told)) is None:
            disputed.append(file)
        else:
            known[file] = click("label-studio", file, *claim)
    return Imported(known, disputed, unnamed)


def _agreed(said: list[_Said]) -> tuple[Says, tuple[str, ...]] | None:
    final = [each for each in said if each.final]
    ordered = sorted(final or said, key=lambda each: each.when)
    last = {(each.when if each.who is None else each.who): each for each in ordered}
    ranked = Counter(each.claim() for each in last.values()).most_common(2)
    return None if len(ranked) == 2 and ranked[0][1] == ranked[1][1] else ranked[0][0]
