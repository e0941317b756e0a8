"""A stored profile with fixed views gives the verdicts that it always gave, to the last digit."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from golden.make import DEMO, PROFILE, pictures, read, rows
from support.workshop import call

from looktwice import Model, Verdict


def test_the_model_gives_the_golden_verdicts() -> None:
    with Model.load(PROFILE, str(DEMO / "fashion.toml")) as model:
        assert (
            rows([verdict for verdict in model.score(pictures(), all=True) if isinstance(verdict, Verdict)]) == read()
        )
        assert repr(model.look(pictures()[0], all=True).confidence) == read()[0][2]


def test_the_command_line_gives_the_golden_verdicts(tmp_path: Path) -> None:
    with np.load(DEMO / "pictures.npz") as file:
        np.savez(tmp_path / "pictures.npz", images=file["images"][1000:1060])
    out = tmp_path / "verdicts.csv"
    source = ("--profile", PROFILE, "-c", DEMO / "fashion.toml")
    done = call("score", tmp_path / "pictures.npz", *source, "--all", "-o", out)
    assert done.returncode == 0, done.stderr
    with out.open(newline="") as file:
        told = [(row["label"], float(row["confidence"])) for row in csv.DictReader(file)]
    assert told == [(label, round(float(confidence), 6)) for _, label, confidence, *_ in read()]
