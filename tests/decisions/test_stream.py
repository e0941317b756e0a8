"""Verdicts one after the other: since when the pictures have changed, and how often answers are right."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from parity import write_place
from serving import DEMO
from workshop import run

from looktwice.calibration.votes import Counts, Floats
from looktwice.decisions.profile import HeldOut
from looktwice.decisions.stream import Observation, Stream
from looktwice.images.collection import labelled
from looktwice.monitoring.drift import MARKS, Drift


def agreeing(rng: np.random.Generator, share: float, pictures: int) -> Counts:
    """How many of eight views agree about each picture."""
    return np.asarray(rng.binomial(8, share, pictures), np.int64)


def reference(rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(np.bincount(agreeing(rng, 0.8, 500), minlength=9).tolist())


@pytest.mark.parametrize("together", [1, 100, 1500])
def test_the_alarm_says_since_when(together: int) -> None:
    off = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        drift = Drift(reference(rng))
        live = np.concatenate([agreeing(rng, 0.8, 700), agreeing(rng, 0.6, 800)])
        for start in range(0, 900 if together == 1 else 1500, together):
            drift = drift.update(live[start : start + together])
            assert len(drift.marks) <= 2 * MARKS
        assert drift.alarm
        assert drift.since is not None
        off.append(abs(drift.since - 700))
    assert np.median(off) <= 10
    assert max(off) <= 60


def test_without_an_alarm_nothing_began() -> None:
    rng = np.random.default_rng(0)
    drift = Drift(reference(rng)).update(agreeing(rng, 0.8, 1000))
    assert (drift.alarm, drift.since) == (False, None)


# How many are right


def held_out(rng: np.random.Generator, pictures: int) -> tuple[Floats, HeldOut]:
    confidence = rng.beta(3, 1, pictures)
    correct = rng.random(pictures) < confidence
    return confidence, HeldOut(confidence=tuple(confidence.tolist()), correct=tuple(correct.tolist()))


def watched(known: HeldOut, confidence: Floats) -> Stream:
    stream = Stream(known, None, Drift((1, 1), alternative="greater"))
    return stream.update([Observation(0, 0, float(each)) for each in confidence])


def test_the_accuracy_of_a_harder_stream_is_expected_and_its_interval_covers() -> None:
    covered = 0
    for seed in range(100):
        rng = np.random.default_rng(seed)
        _, known = held_out(rng, 500)
        live = rng.beta(2, 1.5, 800)
        told = watched(known, live).expected()
        right = float((rng.random(800) < live).mean())
        assert told.accuracy == pytest.approx(live.mean(), abs=0.1)
        assert told.low is not None
        assert told.high is not None
        covered += told.low <= right <= told.high
    assert covered >= 90


def test_no_more_than_all_answers_are_expected_to_be_right() -> None:
    known = HeldOut(confidence=(0.95,) * 100, correct=(True,) * 100)
    told = watched(known, np.full(50, 0.99)).expected()
    assert told.accuracy == 1.0
    assert told.low is not None
    assert told.low < 1.0
    assert told.high == 1.0


def test_what_cannot_be_told_honestly_is_not() -> None:
    rng = np.random.default_rng(0)
    confidence, known = held_out(rng, 500)
    stream = watched(known, confidence[:50])
    assert stream.expected().accuracy is not None
    assert replace(stream, shift=None).expected().reason == (
        "the profile cannot tell whether the pictures are like the labelled ones"
    )
    shifted = replace(stream, shift=Drift((200, 1), alternative="greater").update([1] * 50))
    assert shifted.expected().reason == "these pictures are of another kind than the labelled ones; label some"
    harder = replace(stream, drift=Drift((200, 200)).update([0] * 100))
    assert harder.alarm
    assert harder.expected().reason == "answers alone cannot tell whether only harder pictures came; label some"
    assert harder.lines()[-1].startswith("Expected accuracy: unknown, because answers alone")
    assert stream.lines() == ["Drift: none seen in 50 pictures.", stream.expected().sentence()]
    assert watched(known, confidence[:0]).lines() == []
    _, few = held_out(rng, 40)
    assert watched(few, confidence[:50]).expected().reason == "too few answers like these were checked"
    assert "unknown, because too few" in watched(few, confidence[:50]).expected().sentence()


# At work


def test_score_tells_since_which_picture_and_what_to_label_first(tmp_path: Path) -> None:
    place = write_place(tmp_path)
    folder = tmp_path / "stream"
    folder.mkdir()
    clothes = labelled(DEMO / "pictures.npz")[-120:]
    for number, picture in enumerate(clothes):
        pixels = picture.image().pixels
        shown = pixels if number < 60 else cv2.GaussianBlur(pixels, (0, 0), 1.0)
        cv2.imwrite(str(folder / f"{number:03}.png"), shown)
    words = (folder, "--profile", place / "profile.json", "-o", tmp_path / "out.csv")
    done = run("score", *words, "--json")
    told = json.loads(done.stdout)
    assert told["drift"] is True
    assert 50 <= int(told["drift_since"].removesuffix(".png")) <= 70
    assert len(told["label_first"]) == 5
    assert all(int(name.removesuffix(".png")) >= 60 for name in told["label_first"])
    assert told["expected_accuracy"]["accuracy"] is None
    said = " ".join(done.stderr.split())
    assert "the pictures themselves no longer look like those" in said
    assert f"It began about {told['drift_since']}; label these first and fit again: {told['label_first'][0]}" in said
    assert "Expected accuracy: unknown, because these pictures are of another kind" in said
    plainly = " ".join(run("score", *words[:-1], tmp_path / "again.csv").stderr.split())
    assert f"label some of them: looktwice label {folder} -c " in plainly
    assert f"see how many verdicts are right: looktwice evaluate {folder} -p {place / 'profile.json'}" in plainly
    skipping = json.loads(run("score", *words, "--json", "--dry-run", "--skip-unfamiliar").stdout)
    plain = json.loads(run("score", *words, "--json", "--dry-run").stdout)
    assert skipping["unfamiliar"] == plain["unfamiliar"] > 0
    assert skipping["questions"] < plain["questions"]


def test_what_is_left_after_the_budget_is_no_sample_that_tells_of_a_change(tmp_path: Path) -> None:
    place, ledger = write_place(tmp_path), tmp_path / "ledger.db"
    clothes = labelled(DEMO / "pictures.npz")[-200:]
    for number, picture in enumerate(clothes):
        folder = tmp_path / "all"
        folder.mkdir(exist_ok=True)
        cv2.imwrite(str(folder / f"{number:03}.png"), picture.image().pixels)
    words = ("--profile", place / "profile.json", "--json")
    calm = run("score", tmp_path / "all", *words, "-o", tmp_path / "calm.jsonl")
    assert json.loads(calm.stdout)["drift"] is False
    verdicts = [json.loads(line) for line in (tmp_path / "calm.jsonl").read_text().splitlines()]
    hard = sorted(verdicts, key=lambda verdict: verdict["confidence"])[:60]
    (tmp_path / "hard").mkdir()
    for verdict in hard:
        shutil.copy(tmp_path / "all" / verdict["name"], tmp_path / "hard")
    asked = ("--ledger", ledger, "--canaries", 0, "--budget")
    alone = run("score", tmp_path / "hard", *words, *asked, 100_000, "-o", tmp_path / "hard.jsonl")
    assert json.loads(alone.stdout)["drift"] is True, "these pictures alone would be taken for a change"
    spent = run("score", tmp_path / "all", *words, *asked, 1, "-o", tmp_path / "all.jsonl")
    told = json.loads(spent.stdout)
    assert told["not_scored"] >= 140, "the run ends with the budget, whatever the ledger has of later pictures"
    assert told["drift"] is False
    assert "no fair sample" in " ".join(spent.stderr.split())
