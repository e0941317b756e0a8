"""A classifier that gives scores, at every interface: fit, look, evaluate, check, report and the estimator."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.errors import coded
from support.serving import DEMO, clothes, started
from support.workshop import run

from looktwice import LookTwice, Model
from looktwice.calibration.crossfit import ONE_QUERY, OWN
from looktwice.classifiers.registry import read_toml
from looktwice.decisions.profile import Profile
from looktwice.decisions.verdict import Verdict
from looktwice.errors import LookTwiceError, ProfileError
from looktwice.images.collection import Picture, labelled
from looktwice.views import Panel

pytestmark = pytest.mark.slow

VIEWS = "mirror zoom:1.15"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded classifier with five labels and their scores, and profiles fitted with and without them."""
    folder = tmp_path_factory.mktemp("scored")
    told = {**read_toml(DEMO / "fashion.toml"), "model": str(DEMO / "fashion.onnx"), "scores": 5}
    told = {name: value for name, value in told.items() if name != "folder"}
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in {"connector": "onnx", **told}.items()
    ]
    (folder / "scored.toml").write_text("\n".join(dict.fromkeys(lines)))
    for scores in ("use", "ignore"):
        with Model(str(folder / "scored.toml"), scores=scores) as model:
            model.fit(pictures()[:400], views=VIEWS)
            model.save(folder / f"{scores}.json")
    return folder


def pictures() -> list[Picture]:
    return list(labelled(DEMO / "pictures.npz"))


def brier(profile: Profile, name: str) -> float:
    value = next(result.figures["brier"].value for result in profile.results if result.calibrator == name)
    assert value is not None
    return value


def test_a_fit_says_which_evidence_it_used(place: Path) -> None:
    use, ignore = (Profile.load(place / f"{scores}.json") for scores in ("use", "ignore"))
    assert (use.evidence, ignore.evidence) == ("scores", "labels")
    names = [result.calibrator for result in use.results]
    assert names[:5] == ["naive", "constant", OWN, ONE_QUERY, "jury"]
    assert [result.evidence for result in use.results][:5] == ["labels", "labels", "scores", "scores", "scores"]
    assert {result.evidence for result in ignore.results} == {"labels"}
    assert brier(use, ONE_QUERY) < brier(use, "constant")
    assert brier(use, "jury") < brier(ignore, "jury")
    assert any(line.startswith(("One query", "Further queries add")) for line in use.advice())
    assert not any(line.startswith(("One query", "Further queries add", "Scores")) for line in ignore.advice())


def test_a_fit_that_ignores_scores_is_that_of_a_classifier_without_any(place: Path) -> None:
    with Model(str(DEMO / "fashion.toml")) as model:
        plain = model.fit(pictures()[:400], views=VIEWS).profile
    ignoring = Profile.load(place / "ignore.json")
    assert ignoring.calibrator == plain.calibrator
    assert ignoring.results == plain.results


def test_scores_that_a_profile_rests_on_cannot_be_ignored(place: Path) -> None:
    with (
        Model.load(place / "use.json", scores="ignore") as model,
        pytest.raises(ProfileError, check=coded("profile-mismatch")),
    ):
        model.look(pictures()[0])
    with Model.load(place / "ignore.json") as model:
        assert model.look(pictures()[0]).evidence == "labels"
    with pytest.raises(LookTwiceError, check=coded("option-invalid")):
        Model.load(place / "use.json", scores="perhaps")  # type: ignore[arg-type]


def test_a_verdict_says_what_it_rests_on(place: Path) -> None:
    with Model.load(place / "use.json") as model:
        whole = model.look(pictures()[500], all=True, coverage=0.9, max_error=0.2)
        early = model.look(pictures()[500])
        together = model.burst([pictures()[500], pictures()[500]])
    assert whole.evidence == early.evidence == together.evidence == "scores"
    assert whole.score is not None
    assert f"a score of {whole.score:.3g}" in whole.sentence
    assert whole.prediction_set
    assert whole.low <= whole.confidence <= whole.high


def test_early_stopping_weighs_the_score_that_is_paid_for(place: Path) -> None:
    with Model.load(place / "use.json") as model:
        evaluation = model.evaluate(pictures()[1000:1300])
    asked = evaluation.outcome.queries
    assert 1 <= asked < 3
    assert evaluation.results[-1].evidence == "scores"


def test_evaluation_has_a_row_for_the_classifiers_own_score(place: Path) -> None:
    with Model.load(place / "use.json") as model:
        results = model.evaluate(pictures()[1000:1600], all=True).results
    assert [result.calibrator for result in results] == ["naive", "constant", OWN, ONE_QUERY, "jury"]
    figures = {result.calibrator: result.figures for result in results}
    ece = figures[ONE_QUERY]["ece"].value
    assert ece is not None
    assert ece < 0.06


def test_one_query_with_its_score_gets_a_confidence(place: Path) -> None:
    with Model(str(place / "scored.toml")) as model:
        profile = model.fit(pictures()[:400], views=Panel(())).profile
        verdicts = [model.look(picture) for picture in pictures()[500:540]]
        model.save(place / "none.json")
    assert Profile.load(place / "none.json") == profile
    assert profile.panel == ""
    assert [result.calibrator for result in profile.results] == ["naive", "constant", OWN, "jury"]
    assert {verdict.queries for verdict in verdicts} == {1}
    assert len({round(verdict.confidence, 6) for verdict in verdicts}) > 20


def test_without_a_score_one_query_knows_the_accuracy_of_each_label() -> None:
    with Model(str(DEMO / "fashion.toml")) as model:
        profile = model.fit(pictures()[:400], views=Panel(())).profile
        verdicts = [verdict for verdict in model.score(pictures()[500:700]) if isinstance(verdict, Verdict)]
    assert len({(verdict.label, verdict.confidence) for verdict in verdicts}) <= 10
    mean = sum(verdict.confidence for verdict in verdicts) / len(verdicts)
    assert mean == pytest.approx(profile.accuracy(), abs=0.04)


@pytest.mark.parametrize("scores", ["use", "ignore"])
def test_the_command_line(place: Path, tmp_path: Path, scores: str) -> None:
    words = ("-c", place / "scored.toml", "--take", ":200", "--views", "mirror", "--scores", scores)
    out = ("--out", tmp_path / "p.json")
    fitted = run("fit", DEMO / "pictures.npz", *words, *out)
    assert fitted.returncode == 0, fitted.stderr
    assert ("own score" in fitted.stdout) == (scores == "use")
    assert ("used, as probabilities" in fitted.stderr) == (scores == "use")
    assert (Profile.load(tmp_path / "p.json").evidence == "scores") == (scores == "use")
    ignoring = ("--profile", place / "use.json", "--scores", scores)
    looked = run("evaluate", DEMO / "pictures.npz", "--take", "500:560", *ignoring)
    assert (looked.returncode == 0) == (scores == "use"), looked.stderr


def test_evaluation_and_report_say_whether_one_query_suffices(place: Path, tmp_path: Path) -> None:
    words = ("--take", "1000:1300", "--profile", place / "use.json", "--report", tmp_path / "report.html")
    told = run("evaluate", DEMO / "pictures.npz", *words)
    assert told.returncode == 0, told.stderr
    page = (tmp_path / "report.html").read_text("utf-8")
    for text in (told.stdout, page):
        assert any(told in text for told in ("Further queries add", "One query"))
        assert OWN in text
        assert "with scores" in text


def test_a_check_tells_of_scores(place: Path) -> None:
    told = run("check", place / "scored.toml")
    assert "5 labels" in told.stdout, told.stderr


def test_a_check_proposes_names_for_true_and_false(tmp_path: Path) -> None:
    for word, proposed in (("cat", False), ("true", True)):
        (tmp_path / "ask").write_text(f"#!/bin/sh\necho {word}\n")
        told = run("check", f"command:sh {tmp_path / 'ask'} {{image}}")
        assert ("yes or no" in told.stdout) == proposed, told.stderr


def test_the_service_replies_with_score_and_evidence(place: Path, tmp_path: Path) -> None:
    with started("serve", "--profile", place / "use.json", "--port", 0) as service:
        said = service.post("/v1/look", clothes()[0]).json()
    assert said["evidence"] == "scores"
    assert 0 < said["score"] <= 1


def test_the_estimator_uses_or_ignores_scores() -> None:
    def classify(image: np.ndarray) -> dict[str, float]:
        share = float(1 / (1 + np.exp((image.mean() - 127.5) / 2)))
        return {"dark": share, "bright": 1 - share}

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (200, 8, 8, 3), np.uint8)
    truths = np.where(images.mean(axis=(1, 2, 3)) + rng.normal(size=200) * 4 > 127.5, "bright", "dark")
    told = {
        scores: LookTwice(classify, views=Panel(()), scores=scores).fit(images, truths) for scores in ("use", "ignore")
    }
    assert told["use"].profile_.evidence == "scores"
    assert told["ignore"].profile_.evidence == "labels"
    assert len(np.unique(told["use"].predict_proba(images)[:, 0])) > 100


def test_useless_scores_are_told_and_not_used() -> None:
    def classify(image: np.ndarray) -> tuple[str, float]:
        return ("bright" if image.mean() > 127.5 else "dark"), 0.95

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (200, 8, 8, 3), np.uint8)
    truths = np.where(images.mean(axis=(1, 2, 3)) + rng.normal(size=200) * 4 > 127.5, "bright", "dark")
    with Model(classify) as model:
        profile = model.fit(images, truths.tolist(), views="mirror").profile
        assert model.look(images[0]).score == 0.95
    assert profile.evidence == "labels"
    assert "Scores" in [line.partition(":")[0] for line in profile.advice()]
