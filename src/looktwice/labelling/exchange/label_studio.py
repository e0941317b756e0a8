"""Label Studio: exports verdicts as tasks with predictions, and imports annotations as labels.

The data of each task has the name of the picture and the labels returned for it, so that annotations are matched
exactly, whatever the picture's URL.
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
from looktwice.model import Picture, Verdict, WorkingSize, data_url, returned_labels
from looktwice.service.label_interface import NONE, UNSURE, Interface, configuration

SIDE = 1280
"""Longest side of a picture embedded in its task, in pixels."""
VERSION = "looktwice"
INTERFACE = Interface()


# Export ------------------------------------------------------------------------------------------------------------


def export(verdicts: Iterable[Verdict], address: Callable[[str], str], labels: Iterable[str], out: Path) -> Path:
    """Write tasks with predictions, and next to them the labelling configuration, whose path is returned.

    `address` maps a name to the picture's URL; `labels` are offered as well as those in the verdicts.
    """
    found = list(verdicts)
    words = sorted({*labels, *(label for verdict in found for label in returned_labels(verdict))})
    config = out.with_suffix(".xml")
    files.write(config, configuration(words))
    with files.atomic(out) as part, part.open("w", encoding="utf-8") as file:
        for place, verdict in enumerate(found):
            file.write(("[\n" if place == 0 else ",\n") + json.dumps(task(verdict, address(verdict.name))))
        file.write("\n]\n" if found else "[]\n")
    return config


def task(verdict: Verdict, address: str) -> dict[str, object]:
    """One picture to label, with the verdict as a prediction."""
    data = {
        INTERFACE.field: address,
        "file": verdict.name,
        "confidence": verdict.confidence,
        "decision": verdict.decision,
        "named": returned_labels(verdict),
    }
    return {"data": data, "predictions": [INTERFACE.prediction(verdict.label, verdict.confidence, VERSION)]}


def linked(prefix: str) -> Callable[[str], str]:
    """URLs made of the prefix and the picture's name."""
    return lambda name: prefix + quote(os.fsencode(name))


def embedded(pictures: Mapping[str, Picture]) -> Callable[[str], str]:
    """Data URLs with the picture itself, scaled down to `SIDE`; small ones are lossless."""
    return lambda name: data_url(pictures[name].image(WorkingSize(long=SIDE)).pixels)


# Import ------------------------------------------------------------------------------------------------------------


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

    def choice(self, task: _Task) -> _Choice | None:
        """The choice of this annotation; None if it was skipped or is empty."""
        choices = [choice for region in self.result if region.type == "choices" for choice in region.value.choices]
        if self.was_cancelled or not choices:
            return None
        who = self.completed_by.id if isinstance(self.completed_by, _User) else self.completed_by
        return _Choice(task.data, choices, who, (self.updated_at, self.id), self.ground_truth)


class _Data(BaseModel):
    file: Name | None = None
    """None if the task was not written by `export`."""
    named: list[Word] = []


class _Task(BaseModel):
    """A task of a full export."""

    data: _Data
    annotations: list[_Annotation]

    def choices_made(self) -> Iterator[_Choice]:
        return (choice for annotation in self.annotations if (choice := annotation.choice(self)))


class _Min(_Data):
    """An annotation of an export as JSON_MIN."""

    label: Word | _Value | None = None
    annotator: int | None = None
    annotation_id: int | None = None
    updated_at: str | None = None

    def choices_made(self) -> Iterator[_Choice]:
        choices = self.label.choices if isinstance(self.label, _Value) else [self.label] if self.label else []
        if choices:
            yield _Choice(self, choices, self.annotator, (self.updated_at or "", self.annotation_id or 0))


_EXPORT = TypeAdapter[list[_Task] | list[_Min]](Annotated[list[_Task] | list[_Min], Field(union_mode="left_to_right")])


@dataclass(frozen=True)
class _Choice:
    """One person's choice for one picture."""

    about: _Data
    choices: list[str]
    who: int | None
    when: tuple[str, int]
    final: bool = False
    """Marked as ground truth, which takes precedence over other annotations."""

    def label(self) -> tuple[Says, tuple[str, ...]]:
        if len(self.choices) > 1:
            what = f"{self.about.file!r} is labelled {' and '.join(map(repr, self.choices[:3]))}"
            raise DataError(f'{what}; a picture has one label: set choice="single" in the labelling configuration')
        if self.choices == [UNSURE]:
            return "unsure", ()
        if self.choices == [NONE]:
            return ("not", tuple(self.about.named)) if self.about.named else ("unsure", ())
        return "label", (self.choices[0],)


@dataclass(frozen=True)
class Imported:
    """The labels of an export of Label Studio."""

    known: dict[str, Click]
    disputed: list[str]
    """Pictures with a tie between labels, which are left out."""
    unnamed: int
    """Number of annotations left out because their task does not name the picture."""


def read(path: Path) -> Imported:
    """The labels of an export in the format JSON or JSON_MIN.

    Each person's last annotation of a picture counts, and the majority wins. If any are marked as ground truth, only
    these count.
    """
    try:
        exported = _EXPORT.validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(
            f"{str(path)!r} cannot be read ({error.strerror}); give a file exported from Label Studio"
        ) from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        what = f"{str(path)!r} is not a JSON or JSON_MIN export from Label Studio of tasks written by `export`"
        raise DataError(f"{what} ({where}: {first['msg']})") from None
    choices: dict[str, list[_Choice]] = {}
    unnamed = 0
    for each in chain.from_iterable(item.choices_made() for item in exported):
        if each.about.file is None:
            unnamed += 1
        else:
            choices.setdefault(each.about.file, []).append(each)
    known, disputed = dict[str, Click](), list[str]()
    for file, made in choices.items():
        if (label := _majority(made)) is None:
            disputed.append(file)
        else:
            known[file] = click("label-studio", file, *label)
    return Imported(known, disputed, unnamed)


def _majority(choices: list[_Choice]) -> tuple[Says, tuple[str, ...]] | None:
    final = [each for each in choices if each.final]
    ordered = sorted(final or choices, key=lambda each: each.when)
    last = {(each.when if each.who is None else each.who): each for each in ordered}
    ranked = Counter(each.label() for each in last.values()).most_common(2)
    return None if len(ranked) == 2 and ranked[0][1] == ranked[1][1] else ranked[0][0]
