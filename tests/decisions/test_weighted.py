"""Labels of pictures that were not all as likely to be labelled: the even sample, and what rests on it."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
from support.errors import coded
from support.serving import DEMO
from support.workshop import run

from looktwice import Model
from looktwice.calibration import risk, storage
from looktwice.calibration.metrics import wilson
from looktwice.calibration.risk import prediction_powered
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.errors import DataError
from looktwice.images.collection import labelled
from looktwice.images.image import Pixels
from looktwice.report import inputs as report


def votes(probabilities: list[float]) -> LabelledVotes:
    n = len(probabilities)
    plain = Votes.from_labels(["a", "b"] * (n // 2), [["a"]] * n)
    return plain.labelled(["a", "b"] * (n // 2), (), probabilities)


def test_the_even_sample_keeps_the_least_likely_and_a_part_of_the_others() -> None:
    known = votes([1.0, 0.25] * 2000)
    even = known.even()
    assert even[1::2].all()
    assert even[::2].mean() == pytest.approx(0.25, abs=0.03)
    assert len(known.evenly()) == even.sum()
    part = known.take(np.arange(1000, 3000))
    assert (part.even() == even[1000:3000]).all()  # a picture's lot is its own


def test_where_all_were_as_likely_everything_counts() -> None:
    for known in (votes([1.0] * 10), votes([0.3] * 10)):
        assert known.probabilities == ()
        assert known.even().all()


def test_votes_files_keep_probabilities(tmp_path: Path) -> None:
    known = votes([1.0, 0.25] * 20)
    for path in (tmp_path / "votes.npz", tmp_path / "votes.parquet"):
        storage.save(path, known)
        again = storage.load(path)
        assert isinstance(again, LabelledVotes)
        assert again.probabilities == known.probabilities


@pytest.mark.slow
def test_guarantees_from_an_even_sample_hold_and_from_all_labels_do_not() -> None:
    broken = {"even": 0, "plain": 0}
    for seed in range(300):
        rng = np.random.default_rng(seed)
        # Answers are as sure, but one in five is of a kind that is wrong more often and was labelled less.
        hard = rng.random(3000) < 0.2
        correct = rng.random(3000) > np.where(hard, 0.16, 0.02)  # wrong: 4.8 % of all
        shown = rng.random(3000) < np.where(hard, 0.1, 0.5)
        chance = np.where(hard, 0.1, 0.5)[shown]
        known = votes([1.0, 0.5] * (shown.sum() // 2 + 1)).take(np.arange(shown.sum()))
        lots = rng.random(shown.sum())
        for method, counted in (("even", lots * chance < chance.min()), ("plain", np.ones(len(known), bool))):
            sure = np.full(counted.sum(), 0.9)
            broken[method] += risk.threshold(sure, correct[shown][counted], 0.045) is not None
    assert broken["even"] <= 0.05 * 300 + 2 * np.sqrt(300 * 0.05 * 0.95)
    assert broken["plain"] > 0.2 * 300


def classify(image: Pixels) -> str:
    return "bright" if image.mean() > 128 else "dark"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Pictures of which every third was four times less likely to be labelled."""
    rows = ["file,label,probability"]
    for place in range(240):
        pixels = np.full((4, 4, 3), place, np.uint8)
        cv2.imwrite(str(tmp_path / f"{place:03}.png"), pixels)
        rows.append(f"{place:03}.png,{classify(pixels)},{1.0 if place % 3 else 0.25}")
    (tmp_path / "labels.csv").write_text("\n".join([*rows, ""]), "utf-8")
    return tmp_path


@pytest.mark.slow
def test_fit_and_evaluate_read_probabilities(folder: Path) -> None:
    with Model(classify) as model:
        profile = model.fit(folder, views="gaussian:0.2*3").profile
        told = model.evaluate(folder, all=True)
    counted = len(profile.held_out.confidence)
    assert profile.pictures == 240  # the calibrator learned from all of them
    assert 80 + 20 <= counted <= 80 + 65
    assert sum(profile.agreement_bins) == counted == len(told.outcome.label) == len(told.to_frame())
    assert profile.adaptive is not None
    assert len(profile.adaptive.held_out.confidence) == sum(profile.adaptive.agreement_bins) == counted
    assert profile.answers is not None
    assert sum(sum(kinds.values()) for kinds in profile.answers.seen.values()) == counted
    reported = report.judge(report.ReportInputs(profile, told.collected.votes))
    assert reported is not None
    assert (reported.taught, len(reported.label)) == (True, counted)


@pytest.mark.parametrize("text", ["0", "1.5", "-1", "often", "nan", ""])
def test_a_probability_that_is_none_is_refused(folder: Path, text: str) -> None:
    lines = (folder / "labels.csv").read_text().splitlines()
    (folder / "labels.csv").write_text("\n".join([lines[0], f"000.png,dark,{text}", *lines[2:], ""]))
    with pytest.raises(DataError, check=coded("file-malformed")):
        labelled(folder)


# Confidences of unlabelled pictures


def test_prediction_powered_intervals_are_narrower_and_cover() -> None:
    covered, narrow, plain = 0, [], []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        confidence = rng.beta(3, 0.5, 2200)
        correct = rng.random(2200) < confidence
        told = prediction_powered(correct[:200], confidence[:200], confidence[200:])
        low, high = wilson(int(correct[:200].sum()), 200)
        covered += told.low <= 3 / 3.5 <= told.high
        narrow.append(told.high - told.low)
        plain.append(high - low)
    assert covered >= 0.92 * 300
    assert np.mean(narrow) < 0.92 * np.mean(plain)


def test_confidences_that_tell_nothing_move_nothing() -> None:
    correct = np.arange(100) < 80
    told = prediction_powered(correct, np.full(100, 0.3), np.full(5000, 0.9))
    assert told.value == 0.8
    np.testing.assert_allclose([told.low, told.high], [float(end) for end in wilson(80, 100)], atol=0.005)


def test_evaluate_takes_the_verdicts_about_unlabelled_pictures(tmp_path: Path) -> None:
    clothes = DEMO / "pictures.npz"
    profile, scored = tmp_path / "profile.json", tmp_path / "scored.csv"
    run("fit", clothes, "-c", DEMO / "fashion.toml", "--take", ":200", "--views", "mirror", "-o", profile)
    run("score", clothes, "-p", profile, "--take", "400:900", "-o", scored)
    told = run("evaluate", clothes, "-p", profile, "--take", "200:400", "--unlabelled", scored, "--json")
    accuracy = json.loads(told.stdout)["accuracy"]
    assert 0.75 < accuracy["low"] < accuracy["value"] < accuracy["high"] < 1
    with Model.load(profile) as model:
        with pytest.raises(DataError, check=coded("labels-too-few")):
            model.evaluate(labelled(clothes)[200:220], unlabelled=scored)
        assert model.asked.sent == 0
