"""The recipe of the documents, with a real FiftyOne: verdicts become classifications, and truths come back.

Its database is MongoDB. If FiftyOne has none for this system, name one: FIFTYONE_DATABASE_URI=mongodb://…
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import cv2
import numpy as np
import pytest

from looktwice.images.collection import read_truths

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "label-elsewhere.md"
VERDICTS = {"a.png": ("x", 0.25), "sub/a.png": ("y", 0.5), "sub/b.jpg": ("x", 0.75)}


@pytest.fixture(scope="module")
def fo(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    os.environ.update(FIFTYONE_DATABASE_DIR=str(tmp_path_factory.mktemp("db")), FIFTYONE_DO_NOT_TRACK="true")
    import fiftyone

    try:
        fiftyone.list_datasets()
    except fiftyone.core.config.FiftyOneConfigError as error:
        pytest.skip(f"FiftyOne has no database here: {error}")
    return fiftyone


def test_the_recipe_takes_verdicts_there_and_truths_back(
    fo: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos" / "sub").mkdir(parents=True)
    rows: list[dict[str, object]] = [{"name": "unreadable.png", "label": None, "confidence": None}]
    for name, (label, confidence) in VERDICTS.items():
        cv2.imwrite(str(tmp_path / "photos" / name), np.zeros((8, 8, 3), np.uint8))
        rows.append({"name": name, "label": label, "confidence": confidence})
    (tmp_path / "verdicts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    there, back = re.findall(r"^```py\n(.*?)^```", section("FiftyOne"), re.DOTALL | re.MULTILINE)
    space: dict[str, Any] = {}
    exec(compile(there, PAGE.name, "exec"), space)
    dataset = space["dataset"]
    try:
        verdicts = {sample.filepath: (sample.looktwice.label, sample.looktwice.confidence) for sample in dataset}
        assert verdicts == {str(tmp_path / "photos" / name): verdict for name, verdict in VERDICTS.items()}
        for sample in dataset.match(fo.ViewField("looktwice.confidence") < 0.6):
            sample["truth"] = fo.Classification(label=f"a {sample.looktwice.label}")
            sample.save()
        exec(compile(back, PAGE.name, "exec"), space)
    finally:
        dataset.delete()
    truths = {file: label.truth for file, label in read_truths(tmp_path / "labels.csv").items()}
    assert truths == {"a.png": "a x", "sub/a.png": "a y"}


def section(title: str) -> str:
    """The text under a heading of the page."""
    return PAGE.read_text("utf-8").partition(f"## {title}\n")[2].partition("\n## ")[0]
