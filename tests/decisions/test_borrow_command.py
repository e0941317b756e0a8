"""A jury learned on one classifier and used on another, with labels and without, from the command line to the page."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.errors import code_in
from support.serving import clothes, serving
from support.workshop import run

import looktwice
from looktwice.calibration.borrow import Pupil
from looktwice.calibration.jury import Jury
from looktwice.calibration.storage import load
from looktwice.calibration.votes import LabelledVotes
from looktwice.decisions.profile import Profile

DEMO = Path(looktwice.__file__).parent / "demo"
PICTURES = DEMO / "pictures.npz"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the profile of one classifier, another classifier, and a profile that this one has borrowed."""
    folder = tmp_path_factory.mktemp("borrowing")
    shutil.copy(DEMO / "fashion.onnx", folder)
    description = (DEMO / "fashion.toml").read_text("utf-8")
    (folder / "closed.toml").write_text(description.replace('resize = "linear"', 'resize = "nearest"'), "utf-8")
    views = ("--views", "mirror zoom:1.15 turn:8")
    for done in (
        run("fit", PICTURES, "--take", ":300", "-c", DEMO / "fashion.toml", *views, "-o", "open.json", cwd=folder),
        run("borrow", "open.json", "-c", "closed.toml", "-o", "borrowed.json", cwd=folder),
    ):
        assert done.returncode == 0, done.stderr
    return folder


def jury(path: Path) -> Jury:
    calibrator = Profile.load(path).restored_calibrator()
    assert isinstance(calibrator, Jury)
    return calibrator


def test_without_a_label_the_panel_and_the_jury_are_the_teachers_and_nothing_is_claimed(folder: Path) -> None:
    teacher, borrowed = (Profile.load(folder / name) for name in ("open.json", "borrowed.json"))
    assert (borrowed.panel, borrowed.calibrator) == (teacher.panel, teacher.calibrator)
    assert borrowed.fingerprint != teacher.fingerprint
    assert (borrowed.pictures, borrowed.results, borrowed.held_out.correct) == (0, (), ())


def test_verdicts_come_without_a_label_and_all_are_for_review(folder: Path) -> None:
    done = run("look", PICTURES, "-p", "borrowed.json", "--max-error", 0.2, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(" review ") == 2000
    assert " accept " not in done.stdout


def test_labels_move_the_jury_and_tell_how_good_it_is(folder: Path) -> None:
    asked = ("-c", "closed.toml", "--pictures", PICTURES, "--take", "300:360")
    done = run("borrow", "open.json", *asked, "-o", "taught.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert Pupil.name in done.stdout
    taught = Profile.load(folder / "taught.json")
    assert (taught.pictures, len(taught.held_out.correct)) == (60, 60)
    assert taught.results[-1].calibrator == Pupil.name
    done = run("evaluate", PICTURES, "-p", "taught.json", "--take", "300:360", "--votes", "votes.npz", cwd=folder)
    assert done.returncode == 0, done.stderr
    saved = load(folder / "votes.npz")
    assert isinstance(saved, LabelledVotes)
    expected = Pupil(jury(folder / "open.json")).fit(saved).jury
    assert jury(folder / "taught.json").weights == pytest.approx(expected.weights)
    assert expected.weights != pytest.approx(jury(folder / "open.json").weights)
    done = run("report", "-p", "taught.json", "--votes", "votes.npz", cwd=folder)
    assert done.returncode == 0, done.stderr


def test_only_a_jury_can_be_borrowed(folder: Path) -> None:
    views = ("--views", "mirror turn:8", "--calibrator", "probit")
    done = run("fit", PICTURES, "--take", ":60", "-c", DEMO / "fashion.toml", *views, "-o", "probit.json", cwd=folder)
    assert done.returncode == 0, done.stderr
    done = run("borrow", "probit.json", "-c", "closed.toml", cwd=folder)
    assert (done.returncode, code_in(done.stderr)) == (1, "profile-incomplete")


def test_a_report_needs_an_outcome(folder: Path) -> None:
    done = run("report", "-p", "borrowed.json", cwd=folder)
    assert (done.returncode, code_in(done.stderr)) == (1, "labels-missing")
    done = run("evaluate", PICTURES, "-p", "borrowed.json", "--take", ":60", "--report", "report.html", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert (folder / "report.html").is_file()
    assert "naive" in done.stdout
    assert "constant" not in done.stdout, "there is no accuracy to have constant trust in"


def test_the_service_serves_it_and_says_that_nothing_is_promised(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    with serving(folder / "borrowed.json") as service:
        verdict = service.post("/v1/look", clothes()[0])
        assert (verdict.status, verdict.json()["decision"]) == (200, "review")
        profile = service.get("/v1/profile").json()
        assert (profile["pictures"], profile["threshold"]) == (0, None)
        assert service.get("/v1/profile/reliability.svg").status == 200
