"""One fit: the same pictures teach the same profile, byte for byte, whichever interface is used."""

from __future__ import annotations

from collections.abc import Callable
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from support.workshop import run

from looktwice import Model
from looktwice.sklearn import LookTwice

DEMO = Path(str(files("looktwice") / "demo"))
DESCRIPTION = str(DEMO / "fashion.toml")
COUNT = 80


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Some of the embedded pictures, with one twice and one that is labelled wrongly."""
    path = tmp_path_factory.mktemp("one fit") / "pictures.npz"
    with np.load(DEMO / "pictures.npz") as file:
        images, labels, names = file["images"][:COUNT].copy(), file["labels"][:COUNT].copy(), file["class_names"]
    images[1] = images[0]
    labels[2] = (labels[2] + 1) % len(names)
    np.savez(path, images=images, labels=labels, class_names=names)
    return path


def by_command(pictures: Path, out: Path, views: str, calibrator: str) -> None:
    words = ("--views", views) if views else ()
    done = run("fit", pictures, "-c", DESCRIPTION, *words, "--calibrator", calibrator, "-o", out)
    assert done.returncode == 0, done.stderr


def by_model(pictures: Path, out: Path, views: str, calibrator: str) -> None:
    with Model(DESCRIPTION) as model:
        model.fit(pictures, views=views or None, calibrator=calibrator)
        model.save(out)


def by_estimator(pictures: Path, out: Path, views: str, calibrator: str) -> None:
    with np.load(pictures) as file:
        X, y = file["images"], file["class_names"][file["labels"]]
    LookTwice(DESCRIPTION, views=views or None, calibrator=calibrator).fit(X, y).save(out)


INTERFACES: dict[str, Callable[[Path, Path, str, str], None]] = {
    "command line": by_command,
    "Model": by_model,
    "estimator": by_estimator,
}


@pytest.mark.slow
@pytest.mark.parametrize(("views", "calibrator"), [("", "jury"), ("mirror rotation:15*3", "probit")])
@pytest.mark.filterwarnings("ignore:1 pictures are duplicates of others")
def test_every_interface_fits_the_same_profile(pictures: Path, tmp_path: Path, views: str, calibrator: str) -> None:
    profiles = {}
    for name, fit in INTERFACES.items():
        fit(pictures, tmp_path / f"{name}.json", views, calibrator)
        profiles[name] = (tmp_path / f"{name}.json").read_bytes()
    assert profiles["Model"] == profiles["command line"]
    assert profiles["estimator"] == profiles["command line"]


@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.filterwarnings("ignore:1 pictures are duplicates of others")
def test_the_command_and_the_model_borrow_the_same_profile(pictures: Path, tmp_path: Path, labelled: bool) -> None:
    teacher, command, library = (tmp_path / f"{name}.json" for name in ("teacher", "command", "library"))
    by_model(pictures, teacher, "mirror zoom:1.15", "jury")
    words = ("--pictures", pictures) if labelled else ()
    done = run("borrow", teacher, "-c", DESCRIPTION, *words, "-o", command)
    assert done.returncode == 0, done.stderr
    with Model(DESCRIPTION) as model:
        model.borrow(teacher, pictures if labelled else ())
        model.save(library)
    assert library.read_bytes() == command.read_bytes()


@pytest.mark.filterwarnings("ignore:1 pictures are duplicates of others")
def test_the_command_and_the_model_transfer_the_same_profile(pictures: Path, tmp_path: Path) -> None:
    opened = ("--open", DESCRIPTION, "--views", "gaussian:0.1 rotation:20", "--draws", 3)
    words = ("--open-pictures", pictures, "--closed", DESCRIPTION, "--pictures", pictures)
    done = run("transfer", *opened, *words, "-o", tmp_path / "command.json")
    assert done.returncode == 0, done.stderr
    assert run("noise", pictures, *opened, "-o", tmp_path / "noise.json").returncode == 0
    with Model(DESCRIPTION) as model:
        transferred = model.transfer(tmp_path / "noise.json", pictures, draws=3)
        model.save(tmp_path / "library.json")
    assert (tmp_path / "library.json").read_bytes() == (tmp_path / "command.json").read_bytes()
    assert transferred.profile == model.profile
    assert [result.calibrator for result in transferred.results()][-1] == "transfer"
