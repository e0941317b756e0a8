"""Verdicts one after the other: since when the pictures have changed, and how often answers are right."""

from __future__ import annotations

import asyncio
import json
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from support.parity import write_place
from support.serving import DEMO
from support.workshop import run

from looktwice.calibration.evidence import Counts, Floats
from looktwice.decisions.monitoring import MARKS, Drift
from looktwice.decisions.policy import Policy
from looktwice.decisions.profile import Profile
from looktwice.decisions.results import HeldOut
from looktwice.decisions.stream import Monitor, Observation, Stream
from looktwice.decisions.verdict import AGAIN, Asked, Verdict
from looktwice.images.collection import labelled


def agreeing(rng: np.random.Generator, share: float, pictures: int) -> Counts:
    """How many of eight views agree about each picture."""
    return np.asarray(rng.binomial(8, share, pictures), np.int64)


def reference(rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(np.bincount(agreeing(rng, 0.8, 500), minlength=9).tolist())


@pytest.mark.slow
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
    reasons = {replace(stream, shift=None).expected().reason}
    shifted = replace(stream, shift=Drift((200, 1), alternative="greater").update([1] * 50))
    reasons.add(shifted.expected().reason)
    harder = replace(stream, drift=Drift((200, 200)).update([0] * 100))
    assert harder.alarm
    reasons.add(harder.expected().reason)
    assert harder.lines()[-1] == harder.expected().sentence()
    assert (len(stream.lines()), stream.lines()[1]) == (2, stream.expected().sentence())
    assert watched(known, confidence[:0]).lines() == []
    _, few = held_out(rng, 40)
    reasons.add(watched(few, confidence[:50]).expected().reason)
    assert (len(reasons), "" in reasons) == (4, False), "each has a reason of its own"


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
    assert all(name in said for name in (told["drift_since"], told["label_first"][0]))
    plainly = " ".join(run("score", *words[:-1], tmp_path / "again.csv").stderr.split())
    assert f"looktwice label {folder} -c " in plainly
    assert f"looktwice evaluate {folder} -p {place / 'profile.json'}" in plainly
    skipping = json.loads(run("score", *words, "--json", "--dry-run", "--unfamiliar", "refuse").stdout)
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
    again = json.loads(run("score", tmp_path / "all", *words, *asked, 1, "-o", tmp_path / "held.jsonl").stdout)
    assert again["drift"] is True, "the ledger has the alarm"
    assert len(json.loads(run("ledger", "alarms", "--ledger", ledger, "--json").stdout)) == 1
    assert "Ended: 1" in run("ledger", "alarms", "--ledger", ledger, "--end").stderr
    spent = run("score", tmp_path / "all", *words, *asked, 1, "-o", tmp_path / "all.jsonl")
    told = json.loads(spent.stdout)
    assert told["not_scored"] >= 140, "the run ends with the budget, whatever the ledger has of later pictures"
    assert told["drift"] is False


def test_labels_of_changed_pictures_repair_a_profile_and_end_the_alarm(tmp_path: Path) -> None:
    place, ledger = write_place(tmp_path), tmp_path / "ledger.db"
    for number, picture in enumerate(labelled(DEMO / "pictures.npz")[-120:]):
        folder = tmp_path / "new" / str(picture.truth)
        folder.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"{number:03}.png"), cv2.GaussianBlur(picture.image().pixels, (0, 0), 1.5))
    profile, old = place / "profile.json", Profile.load(place / "profile.json")
    words = ("score", tmp_path / "new", "--profile", profile, "--json", "--ledger", ledger)
    assert json.loads(run(*words, "-o", tmp_path / "held.csv").stdout)["held"] > 0
    added = run("fit", "--add", tmp_path / "new", "-c", DEMO / "fashion.toml", "-o", profile, "--ledger", ledger)
    assert added.returncode == 0, added.stderr
    new = Profile.load(profile)
    assert (new.pictures, new.panel) == (120, old.panel)
    assert mean_confidence(new) < mean_confidence(old)
    told = json.loads(run(*words, "-o", tmp_path / "again.csv").stdout)
    assert (told["held"], told["drift"]) == (0, False)


def mean_confidence(profile: Profile) -> float:
    return float(np.mean(profile.held_out.confidence))


async def monitored(monitor: Monitor, pictures: list[int]) -> list[str | None]:
    """What is held of a stream of pictures, each with so many agreeing views."""
    held = []
    for agree in pictures:
        asked = [Asked("c", AGAIN, "x"), *(Asked("c", f"turn:{n}", "x" if n < agree else "y") for n in range(8))]
        verdict = Verdict(name="p", digest="", asked=tuple(asked), label="x", confidence=0.9, low=0.8, high=1.0)
        held.append((await monitor.observe(verdict)).held)
    return held


def test_a_few_odd_pictures_do_not_hold_the_others_for_ever(tmp_path: Path) -> None:
    policy = Policy.full_panel(Profile.load(write_place(tmp_path) / "profile.json"))
    rng = np.random.default_rng(0)
    usual = replace(policy, agreement_bins=reference(rng), familiarity=None)
    monitor = Monitor(usual, "profile")
    assert not any(asyncio.run(monitored(monitor, agreeing(rng, 0.8, 100).tolist())))
    assert asyncio.run(monitored(monitor, [0] * 30))[-1] is not None
    after = asyncio.run(monitored(monitor, agreeing(rng, 0.8, 600).tolist()))
    assert all(after[:100])
    assert not any(after[-100:])
    assert monitor.alarm is None
    changed = asyncio.run(monitored(monitor, agreeing(rng, 0.5, 2000).tolist()))
    assert all(changed[200:]), "a stream that stays changed stays held"
