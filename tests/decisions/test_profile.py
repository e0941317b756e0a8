"""Profiles: what is written can be read again, and what is wrong is refused with a word about why."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.engines import engine_for
from support.errors import coded
from support.workshop import brightest, write_pictures

from looktwice.calibration import crossfit
from looktwice.calibration.calibrators import FAMILIES, Calibrator
from looktwice.calibration.evidence import Evidence
from looktwice.calibration.jury import Jury
from looktwice.calibration.shares import Cumulative, Transfer
from looktwice.calibration.votes import Votes
from looktwice.classifiers.python import PythonClassifier
from looktwice.decisions import collecting, fitting
from looktwice.decisions.collecting import Collected
from looktwice.decisions.profile import Profile
from looktwice.errors import DataError, ProfileError
from looktwice.model.connection import connect
from looktwice.views import Panel


@pytest.fixture(scope="module")
def collected(tmp_path_factory: pytest.TempPathFactory) -> Collected:
    pictures = write_pictures(tmp_path_factory.mktemp("pictures") / "pictures.npz", 60)
    engine = engine_for(PythonClassifier(brightest))
    answers = asyncio.run(collecting.collect(engine, pictures, Panel.parse("mirror rotation:15*3")))
    labelled = answers.votes.labelled("nw" if i % 3 else "se" for i in range(60))
    return Collected(labelled, (), answers.panel, answers.fingerprint, 0)


def every_calibrator() -> list[Calibrator]:
    noise = Cumulative((-1.0, 0.0, 1.0), (0.1, 0.5, 0.9))
    return [family(noise=noise) if family is Transfer else family() for family in FAMILIES.values()]


@pytest.mark.parametrize("calibrator", every_calibrator(), ids=lambda calibrator: calibrator.name)
def test_a_profile_of_every_calibrator_survives_its_file(
    tmp_path: Path, collected: Collected, calibrator: Calibrator
) -> None:
    profile = fitting.learn(collected, calibrator, "python:tests:brightest")
    profile.save(tmp_path / "profile.json")
    again = Profile.load(tmp_path / "profile.json")
    assert again == profile
    assert again.restored_calibrator().confidence(collected.votes) == pytest.approx(
        profile.restored_calibrator().confidence(collected.votes)
    )
    assert str(again.views()) == "mirror rotation:15*3"


def test_the_figures_are_those_of_held_out_folds(collected: Collected) -> None:
    profile = fitting.learn(collected, FAMILIES["probit"](), "python:tests:brightest")
    assert [result.calibrator for result in profile.results] == ["naive", "constant", "probit"]
    assert len(profile.held_out.confidence) == profile.pictures == 60
    words, labelled = collected.votes.vocabulary, collected.labelled()
    accuracy = np.mean([t == words[c] for t, c in zip(labelled.words, labelled.base, strict=True)])
    assert profile.accuracy() == pytest.approx(float(accuracy), abs=1e-6)


def written(folder: Path, collected: Collected) -> tuple[Path, dict[str, object]]:
    path = folder / "profile.json"
    fitting.learn(collected, FAMILIES["probit"](), "python:tests:brightest").save(path)
    return path, json.loads(path.read_text())


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"schema_version": 2}, "profile-newer"),
        ({"schema_version": "one"}, "profile-malformed"),
        ({"surprise": True}, "profile-malformed"),
        ({"panel": "spiral:3"}, "view-unknown"),
        ({"calibrator": {"family": "oracle"}}, "calibrator-unknown"),
        ({"calibrator": {"family": "probit", "a": float("nan")}}, "profile-malformed"),
        ({"classes": 1}, "profile-malformed"),
        ({"renderer": "0"}, "profile-mismatch"),
        ({"held_out": {"confidence": [2.0], "correct": [True]}}, "profile-malformed"),
    ],
)
def test_a_profile_that_is_newer_or_malformed_is_refused(
    tmp_path: Path, collected: Collected, change: dict[str, object], code: str
) -> None:
    path, values = written(tmp_path, collected)
    path.write_text(json.dumps({**values, **change}))
    with pytest.raises(ProfileError, check=coded(code)):
        Profile.load(path)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, "\x00", '{"schema_version": 1}'])
def test_a_file_that_is_not_a_profile_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "profile.json").write_text(text)
    with pytest.raises(ProfileError):
        Profile.load(tmp_path / "profile.json")


def test_a_profile_that_is_not_there_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ProfileError, check=coded("profile-missing")):
        Profile.load(tmp_path / "profile.json")


def test_truths_are_held_against_a_fitted_vocabulary_before_asking_but_not_against_a_borrowed_one(
    tmp_path: Path, collected: Collected
) -> None:
    profile = fitting.learn(collected, FAMILIES["probit"](), "python:tests:brightest")
    engine, pictures = engine_for(PythonClassifier(brightest)), write_pictures(tmp_path / "pictures.npz", 5)
    strange, known = ([replace(picture, truth=truth) for picture in pictures] for truth in ("1", "nw"))
    with pytest.raises(DataError, check=coded("labels-unmatched")):
        asyncio.run(collecting.collect_for(engine, strange, profile))
    assert engine.progress.sent == 0
    borrowed = profile.model_copy(update={"pictures": 0, "vocabulary": ("ant", "bee")})
    assert asyncio.run(collecting.collect_for(engine, known, borrowed)).labelled().words == ("nw",) * 5


def test_another_classifier_is_refused(collected: Collected) -> None:
    profile = fitting.learn(collected, FAMILIES["probit"](), "python:tests:brightest")
    with pytest.raises(ProfileError, check=coded("profile-mismatch")):
        profile.check({"another": connect(lambda image: "another", name="another")})


@pytest.mark.slow
def test_the_row_of_a_jury_is_labelled_by_what_the_jury_of_all_pictures_uses() -> None:
    rng = np.random.default_rng(2)  # scores help on some of the folds, and not on all pictures
    truths = rng.choice(list("abc"), 60)
    base = np.where(rng.random(60) < 0.75, truths, "a")
    votes = Votes.from_labels(base, np.where(rng.random((60, 2)) < 0.7, truths[:, None], "b"), truths)
    scores = np.clip(rng.normal(0.6 + 0.12 * (base == truths), 0.15), 0.05, 0.99)
    evidence = Evidence(votes.answers()[:, :, None], np.tile(scores[:, None, None], (1, 3, 1)).astype(np.float32))
    votes = replace(votes, panel=("mirror", "turn:8"), evidence=evidence)
    assert crossfit.cross_fit(Jury(), votes).evidence == "scores"
    profile = fitting.learn(Collected(votes, (), Panel.parse("mirror turn:8"), "python:x", 0), Jury(), "x")
    assert [result.evidence for result in profile.results if result.calibrator == "jury"] == ["labels"]
