"""The samples of the page: what they are, and what the embedded classifier says about them."""

from __future__ import annotations

import json
import runpy
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from looktwice import Model
from looktwice.decisions.verdict import Verdict
from looktwice.images import collection

SAMPLES = Path(str(files("looktwice") / "service" / "page" / "samples"))
DEMO = Path(str(files("looktwice") / "demo"))
INDEX = json.loads((SAMPLES / "index.json").read_text("utf-8"))
GREY, COLOUR = ({each["file"]: each["truth"] for each in group["samples"]} for group in INDEX["groups"])


def test_the_index_names_every_file_and_together_they_are_small() -> None:
    assert {*GREY, *COLOUR} == {path.name for path in SAMPLES.iterdir()} - {"index.json"}
    assert sum(path.stat().st_size for path in SAMPLES.iterdir()) < 300_000


def test_there_are_three_drawings_of_each_kind_in_colour_and_one_as_the_classifier_learned_them() -> None:
    assert sorted(COLOUR.values()) == sorted(3 * INDEX["labels"])
    assert sorted(list(GREY.values())[-10:]) == INDEX["labels"]
    for names, kind in ((GREY, ("L", (28, 28))), (COLOUR, ("RGB", (288, 288)))):
        for name in names:
            with Image.open(SAMPLES / name) as picture:
                assert (picture.mode, picture.size) == kind


@pytest.mark.slow
def test_a_drawing_is_what_its_script_draws() -> None:
    script = runpy.run_path(str(Path(__file__).parents[2] / "tools/draw_samples.py"))
    draw, variants = script["KINDS"]["Sandal"]
    drawn = script["drawn"](draw, *variants[1], 2)
    with Image.open(SAMPLES / "sandal-2.jpg") as kept:
        assert np.abs(np.asarray(kept, np.float64) - drawn).mean() < 2.0


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Verdict]:
    with Model(DEMO / "fashion.toml", ledger="off") as model:
        model.fit(collection.labelled(DEMO / "pictures.npz")[:300], views="mirror rotation:10 zoom:0.9")
        return {name: model.look(SAMPLES / name) for name in (*GREY, *COLOUR)}


@pytest.mark.slow
def test_what_is_grey_and_small_is_familiar_and_mostly_called_by_its_name(verdicts: dict[str, Verdict]) -> None:
    assert sum(verdicts[name].unfamiliar_because is None for name in GREY) >= 16
    assert sum(verdicts[name].label == truth for name, truth in GREY.items()) >= 12


def test_in_colour_it_is_sure_and_wrong_and_every_one_goes_to_review(verdicts: dict[str, Verdict]) -> None:
    assert all(verdicts[name].unfamiliar_because for name in COLOUR)
    assert {verdicts[name].decision for name in COLOUR} == {"review"}
    wrong = [verdicts[name] for name, truth in COLOUR.items() if verdicts[name].label != truth]
    assert sum(verdict.confidence > 0.85 for verdict in wrong) >= 10
