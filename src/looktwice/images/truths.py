"""Tables of truths: a label for each picture, labels that are excluded, or tags."""

import csv
import io
import json
import math
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from looktwice.errors import DataError, few, shown
from looktwice.files import from_cell, split_tags
from looktwice.images.image import reading

FILE_COLUMNS = ("file", "file_name", "filename", "path", "image", "picture")
"""The accepted names of the file column in a CSV; the first match counts."""
COLUMN = "label"
"""The default column of truths in a CSV."""
NOT = "not"
"""The column of excluded labels; a CSV with it may omit pictures, and leave truths empty."""
TAGS = "tags"
"""The column of tags, used instead of labels: `cat;dog`, or empty."""
PROBABILITY = "probability"
"""The column of relative probabilities of selection for labelling."""


@dataclass(frozen=True, slots=True)
class KnownTruth:
    """The truth of a picture, or its excluded labels; neither if it was marked unsure."""

    truth: str | None = None
    excluded: tuple[str, ...] = ()
    probability: float = 1.0
    tags: tuple[str, ...] | None = None


def read_header(path: Path) -> list[str]:
    """The names of the columns of a CSV."""
    return next(_rows(path), [])


def read_truths(path: Path, column: str = COLUMN) -> dict[str, KnownTruth]:
    """What a CSV with a column `file` (or another of `FILE_COLUMNS`) and this one tells of each file.

    With a column `not` beside `label`, a row has a label in one of the two, or in neither if nobody could tell; a file
    may have several rows of excluded labels. A column `probability` has relative probabilities of selection for
    labelling. Other columns are ignored.

    A column `tags` in place of `label` holds all tags of a file, `cat;dog`, or none. Several rows with different labels
    of one file are its tags too, and then every truth of the table is a set of tags.
    """
    rows = _rows(path)
    where, header = shown(str(path)), next(rows, [])
    if column == COLUMN and TAGS in header and COLUMN not in header:
        column = TAGS
    files = next((name for name in FILE_COLUMNS if name in header), FILE_COLUMNS[0])
    lacking = [shown(name) for name in (files, column) if name not in header]
    if lacking:
        has = ", ".join(map(shown, header[:20])) or "nothing"
        raise DataError(
            f"{where}: no column {' and no column '.join(lacking)}; the first line has {has}. Call the columns file "
            "and label, or name that of the labels with --truths-column",
            code="file-malformed",
        )
    width, file, label = len(header), header.index(files), header.index(column)
    other = header.index(NOT) if column == COLUMN and NOT in header else None
    chance = header.index(PROBABILITY) if PROBABILITY in header else None
    table = [(number, row) for number, row in enumerate(rows, 2) if row]
    uneven = [
        f"row {number}"
        for number, row in table
        if len(row) != width or not row[file] or (other is None and column != TAGS and not row[label])
    ]
    if uneven:
        raise DataError(
            f"{where}: {few(uneven, 'row')} not of {width} filled fields; quote texts that hold commas",
            code="file-malformed",
        )
    names = [str(PurePosixPath(row[file])) for _, row in table]
    if column == TAGS or (other is None and len(set(names)) < len(names)):
        return _tagged(zip(names, (row[label] for _, row in table), strict=True), column, where)
    truths: dict[str, KnownTruth] = {}
    twice = set[str]()
    for name, (_, row) in zip(names, table, strict=True):
        found = KnownTruth(
            sys.intern(row[label]) or None,
            (sys.intern(row[other]),) if other is not None and row[other] else (),
            1.0 if chance is None else _probability(row[chance], name, where),
        )
        known = truths.setdefault(name, found)
        if (found.truth and found.excluded) or (known is not found and not (found.excluded and known.excluded)):
            twice.add(name)
        elif known is not found:
            truths[name] = KnownTruth(None, (*known.excluded, *found.excluded), known.probability)
    if twice:
        raise DataError(
            f"{where}: {few(sorted(twice), 'file')} in more than one row; keep one row for each",
            code="pictures-duplicate",
        )
    return truths


def _tagged(rows: Iterable[tuple[str, str]], column: str, where: str) -> dict[str, KnownTruth]:
    """All tags of each file, from one row or several; a label that a file has twice is a mistake."""
    found: dict[str, list[str]] = {}
    for name, text in rows:
        found.setdefault(name, []).extend(split_tags(text) if column == TAGS else (text,))
    twice = sorted(name for name, tags in found.items() if len(set(tags)) < len(tags))
    if twice:
        raise DataError(
            f"{where}: {few(twice, 'file')} in more than one row with the same label; keep one of them",
            code="pictures-duplicate",
        )
    return {name: KnownTruth(tags=tuple(map(sys.intern, tags))) for name, tags in found.items()}


def read_coco(path: Path) -> dict[str, KnownTruth]:
    """The categories of the instances in each picture, from JSON in COCO's form; a picture without any has no tag."""
    with reading(path, "COCO's JSON of instances, with images, annotations and categories"):
        content = json.loads(path.read_bytes())
        names = {each["id"]: str(each["name"]) for each in content["categories"]}
        tags: dict[object, dict[str, None]] = {each["id"]: {} for each in content["images"]}
        for each in content["annotations"]:
            tags[each["image_id"]][names[each["category_id"]]] = None
        return {str(each["file_name"]): KnownTruth(tags=tuple(tags[each["id"]])) for each in content["images"]}


def _probability(text: str, name: str, where: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = math.nan
    if not 0.0 < found <= 1.0:
        raise DataError(
            f"{where}: the probability of {shown(name)} is {shown(text)}; give one above 0 and up to 1",
            code="file-malformed",
        )
    return found


def _rows(path: Path) -> Iterator[list[str]]:
    with reading(path, "CSV in UTF-8, with commas and quotes"):
        text = io.StringIO(path.read_bytes().decode("utf-8-sig"), newline="")
        for row in csv.reader(text, skipinitialspace=True, strict=True):
            yield [from_cell(cell) for cell in row]
