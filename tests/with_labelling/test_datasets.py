"""The recipe of the documents, with a real `datasets`: a dataset teaches a profile, and verdicts become columns."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import PIL.Image
import pytest
from support.serving import DEMO

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "label-elsewhere.md"


def test_the_recipe_learns_from_a_dataset_and_adds_the_verdicts(tmp_path: Path, monkeypatch: Any) -> None:
    with np.load(DEMO / "pictures.npz") as file:
        names, labels, images = file["class_names"].tolist(), file["labels"][:200], file["images"]
    for place, (label, grey) in enumerate(zip(labels, images, strict=False)):
        (tmp_path / "photos" / names[label]).mkdir(parents=True, exist_ok=True)
        PIL.Image.fromarray(grey).save(tmp_path / "photos" / names[label] / f"{place}.png")
    page = PAGE.read_text("utf-8").partition("## Hugging Face datasets\n")[2].partition("\n## ")[0]
    (recipe,) = re.findall(r"^```py\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {}
    exec(compile(recipe.replace("my-api.toml", str(DEMO / "fashion.toml")), PAGE.name, "exec"), space)
    photos: datasets.Dataset = space["photos"]
    assert photos.column_names == ["image", "label", "looktwice_label", "looktwice_confidence"]
    right = [photos.features["label"].int2str(row["label"]) == row["looktwice_label"] for row in photos]
    assert np.mean(right) == pytest.approx(np.mean(photos["looktwice_confidence"]), abs=0.1)
