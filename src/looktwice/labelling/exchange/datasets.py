"""Hugging Face `datasets`: pictures with their truths out of a dataset, and verdicts into it as columns.

from datasets import load_dataset
from looktwice.labelling.exchange import datasets as exchange

photos = load_dataset("imagefolder", data_dir="photos", split="train")
model.fit(exchange.pictures(photos))
scored = exchange.with_verdicts(photos, model.score(exchange.pictures(photos)))
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from looktwice.errors import DataError, ImageError
from looktwice.model import MAX_PIXELS, Image, Picture, Unscored, Verdict, WorkingSize, decode, load

if TYPE_CHECKING:
    from datasets import Dataset

COLUMNS = ("label", "confidence", "decision")
"""The parts of a verdict that become columns."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The pictures of one column of a dataset; a name is the number of the row."""

    dataset: Dataset = field(repr=False)
    column: str

    def image(self, name: str, size: WorkingSize | None = None) -> Image:
        held = self.dataset[int(name)][self.column]
        if held is None:
            raise ImageError("the row holds no picture", name)
        if held["bytes"] is None:
            return load(Path(held["path"]), MAX_PIXELS, size)
        return decode(held["bytes"], name, MAX_PIXELS, size)


def pictures(dataset: Dataset, image: str = "image", label: str = "label") -> list[Picture]:
    """The pictures of a dataset, named by their rows, with the truths that one of its columns holds.

    `label` is a column of class numbers or texts; without such a column, or where a row has none, the truth is unknown.
    Pictures are decoded when they are asked about, by looktwice itself.
    """
    import datasets

    features = dataset.features
    if not isinstance(features.get(image), datasets.Image):
        raise DataError(f"the dataset has no column {image!r} of pictures; it has {', '.join(map(repr, features))}")
    rows = Rows(dataset.cast_column(image, datasets.Image(decode=False)), image)
    kind = features.get(label)
    truths: list[str | None] = [None] * len(dataset)
    if kind is not None:
        names = kind.names if isinstance(kind, datasets.ClassLabel) else None
        truths = [_truth(value, names) for value in dataset[label]]
    return [Picture(str(place), truth, rows) for place, truth in enumerate(truths)]


def with_verdicts(dataset: Dataset, verdicts: Iterable[Verdict | Unscored], prefix: str = "looktwice_") -> Dataset:
    """The dataset with the verdicts on its pictures as further columns; a row without one has nothing there."""
    known = {verdict.name: verdict for verdict in verdicts if not isinstance(verdict, Unscored)}
    for column in COLUMNS:
        values = [getattr(known.get(str(place)), column, None) for place in range(len(dataset))]
        dataset = dataset.add_column(f"{prefix}{column}", values)
    return dataset


def _truth(value: object, names: list[str] | None) -> str | None:
    """The truth that a label stands for; -1 is how datasets say that it is unknown."""
    if value is None or (names is not None and value == -1):
        return None
    return names[int(str(value))] if names is not None else str(value)
