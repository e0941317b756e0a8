"""A real FiftyOne: verdicts as classifications with their confidence, and truths back.

Its database is MongoDB. Where FiftyOne brings none for this system, name one: FIFTYONE_DATABASE_URI=mongodb://…
"""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType

import cv2
import numpy as np
import pytest
from workshop import run

from looktwice.labelling.exchange import fiftyone as exchange
from looktwice.pictures.collection import read_truths
from looktwice.verdicts.review import StoredVerdict

NAMES = ("a.png", "sub/a.png", "sub/b.jpg")


@pytest.fixture(scope="module")
def fo(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    os.environ.update(FIFTYONE_DATABASE_DIR=str(tmp_path_factory.mktemp("db")), FIFTYONE_DO_NOT_TRACK="true")
    import fiftyone

    try:
        fiftyone.list_datasets()
    except fiftyone.core.config.FiftyOneConfigError as error:
        pytest.skip(f"FiftyOne has no database here: {error}")
    return fiftyone


def test_verdicts_are_a_field_with_confidence_and_truths_come_back(fo: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "photos" / "sub").mkdir(parents=True)
    for place, name in enumerate(NAMES):
        cv2.imwrite(str(tmp_path / "photos" / name), np.full((8, 8, 3), place, np.uint8))
    said = zip(NAMES, "xyx", (0.25, 0.5, 0.75), strict=True)
    verdicts = [StoredVerdict(name, label, confidence, label, (), None) for name, label, confidence in said]
    exchange.export(verdicts, tmp_path / "classifications.json")
    kind = fo.types.FiftyOneImageClassificationDataset
    dataset = fo.Dataset.from_dir(
        dataset_type=kind,
        data_path=str(tmp_path / "photos"),
        labels_path=str(tmp_path / "classifications.json"),
        label_field="looktwice",
        progress=False,
    )
    try:
        found = {sample.filepath: (sample.looktwice.label, sample.looktwice.confidence) for sample in dataset}
        assert found == {str(tmp_path / "photos" / v.name): (v.label, v.confidence) for v in verdicts}
        for sample in dataset.match(fo.ViewField("looktwice.confidence") < 0.6):
            sample["truth"] = fo.Classification(label=f"a {sample.looktwice.label}")
            sample.save()
        dataset.export(
            dataset_type=kind,
            labels_path=str(tmp_path / "truths.json"),
            label_field="truth",
            rel_dir=str(tmp_path / "photos"),
            progress=False,
        )
    finally:
        dataset.delete()
    done = run("import", tmp_path / "truths.json", tmp_path / "photos", "--from", "fiftyone", "-o", tmp_path / "l.csv")
    assert done.returncode == 0, done.stderr
    assert {file: told.truth for file, told in read_truths(tmp_path / "l.csv").items()} == {
        "a.png": "a x", "sub/a.png": "a y",
    }  # fmt: skip
