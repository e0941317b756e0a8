"""Profiles put to use: stopping early, guarantees, sets, drift, bursts and the words about them."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from support.engines import engine_for
from support.errors import code_in, coded
from support.verdicts import verdict as made
from support.workshop import run, write_profile

from looktwice.calibration.jury import Jury
from looktwice.calibration.risk import NEVER, Claim
from looktwice.classifiers.registry import connect
from looktwice.decisions import collecting, evaluation, fitting, judging, planning
from looktwice.decisions.collecting import Collected
from looktwice.decisions.policy import ClaimTest, DecisionOptions, Policy
from looktwice.decisions.profile import Profile
from looktwice.decisions.results import HeldOut
from looktwice.decisions.verdict import Verdict, adjective, sentence
from looktwice.decisions.verdict_files import COLUMNS
from looktwice.engine.query import Cause, Unscored
from looktwice.errors import DataError, ProfileError
from looktwice.images.collection import Picture, find, labelled
from looktwice.views import Panel

DEMO = Path(str(files("looktwice") / "demo"))
MODEL = str(DEMO / "fashion.toml")
MILD = Panel.parse(
    "zoom:1.15 mirror+tone:contrast=1.4 shift:-0.06,0 mirror+zoom:1.07 turn:5 tone:contrast=0.7 shift:0.06,0 turn:-5"
)
"""Eight views of which each tells something about clothes."""


@pytest.fixture(scope="module")
def clothes() -> list[Picture]:
    return labelled(DEMO / "pictures.npz")[::3]


@pytest.fixture(scope="module")
def taught(clothes: list[Picture]) -> Collected:
    return asyncio.run(collecting.collect(engine_for(connect(MODEL)), clothes[:400], MILD))


@pytest.fixture(scope="module")
def tested(clothes: list[Picture]) -> Collected:
    return asyncio.run(collecting.collect(engine_for(connect(MODEL)), clothes[400:600], MILD))


@pytest.fixture(scope="module")
def profile(taught: Collected) -> Profile:
    return fitting.learn(taught, Jury(), MODEL)


def verdicts(pictures: Sequence[Picture], profile: Profile, policy: Policy | None = None) -> list[Verdict]:
    async def work() -> list[Verdict | Unscored]:
        return [verdict async for verdict in judging.look(engine_for(connect(MODEL)), pictures, profile, policy)]

    return [verdict for verdict in asyncio.run(work()) if isinstance(verdict, Verdict)]


def test_a_jury_profile_shows_what_each_view_adds_and_what_stopping_early_saves(profile: Profile) -> None:
    assert [result.calibrator for result in profile.results] == ["naive", "constant", "jury", "jury, stopping early"]
    assert [point.queries for point in profile.curve] == list(range(1, 10))
    fixed, stopped = profile.results[2:]
    assert stopped.queries < fixed.queries == 9
    last = profile.curve[-1].figures["brier"].value
    assert last == fixed.figures["brier"].value
    assert Profile.of(profile.model_dump(mode="json"), "again") == profile


def test_stopping_early_asks_less_and_believes_the_jury_of_what_was_asked(
    profile: Profile, clothes: list[Picture], tested: Collected
) -> None:
    policy = Policy.usual(profile)
    stopped = verdicts(clothes[400:600], profile, policy)
    assert profile.adaptive is not None
    juries, enough = profile.adaptive.restored_calibrator().members(), [*profile.adaptive.enough, 0.0]
    said = [tested.votes.under(range(views)) for views in range(9)]
    confidence = np.column_stack([jury.confidence(votes) for jury, votes in zip(juries, said, strict=True)])
    asked = (confidence >= enough).argmax(axis=1)
    assert [verdict.queries - 1 for verdict in stopped] == asked.tolist()
    assert [verdict.confidence for verdict in stopped] == pytest.approx(confidence[np.arange(200), asked].tolist())
    assert 1 + asked.mean() < 9
    assert min(verdict.queries for verdict in stopped) == 1 + profile.adaptive.first


def test_what_is_expected_of_stopping_early_is_a_ratio_with_an_interval(profile: Profile) -> None:
    assert profile.adaptive is not None
    expected = profile.adaptive.expected
    assert expected is not None
    whole, stopped = (result.figures["brier"].value for result in profile.results[2:])
    assert whole is not None
    assert stopped is not None
    assert expected.brier == pytest.approx(stopped / whole, abs=1e-4)
    assert expected.low < expected.brier < expected.high
    assert expected.queries == pytest.approx(float(profile.results[3].queries) / 9, abs=1e-4)
    assert f"{expected.brier:.3f} of the Brier score" in expected.sentence()
    assert "not certain" in replace(expected, high=1.02).sentence()
    assert "not certain" not in replace(expected, high=1.005).sentence()
    assert "All queries are sent" in replace(expected, queries=1.0).sentence()


def test_stopping_early_loses_little(profile: Profile) -> None:
    assert profile.adaptive is not None
    assert profile.adaptive.expected is not None
    assert profile.adaptive.expected.brier < 1.05


def test_pictures_that_something_was_chosen_on_teach_but_are_not_judged(taught: Collected) -> None:
    profile = fitting.learn(taught, Jury(), MODEL, n_selection=150)
    assert len(profile.held_out.confidence) == 250
    correct = taught.votes.base[150:] == taught.labelled().truths[150:]
    assert profile.accuracy() == pytest.approx(float(correct.mean()), abs=1e-6)
    assert profile.adaptive is not None
    assert len(profile.adaptive.held_out.confidence) == 250


def test_only_a_jury_profile_knows_when_to_stop(tmp_path: Path) -> None:
    profile = write_profile(tmp_path / "profile.json", MODEL)
    assert Policy.usual(profile).rounds is None


def test_a_profile_whose_parts_about_stopping_do_not_fit_is_refused(profile: Profile) -> None:
    values = profile.model_dump(mode="json")
    values["adaptive"]["enough"] = values["adaptive"]["enough"][:-1]
    with pytest.raises(ProfileError, check=coded("profile-malformed")):
        Profile.of(values, "broken")


def test_answers_are_accepted_from_the_threshold_on(profile: Profile, clothes: list[Picture]) -> None:
    threshold = profile.threshold(max_error=0.15, level=0.8)
    assert threshold is not None
    judged = verdicts(clothes[400:450], profile, DecisionOptions(all=True, max_error=0.15, level=0.8).of(profile))
    assert {verdict.decision for verdict in judged} <= {"accept", "review"}
    familiar = [verdict for verdict in judged if verdict.unfamiliar_because is None]
    assert len(familiar) > 40
    assert all((verdict.confidence >= threshold) == (verdict.decision == "accept") for verdict in familiar)


def test_nothing_is_accepted_if_nothing_can_be_promised(profile: Profile, clothes: list[Picture]) -> None:
    policy = DecisionOptions(max_error=0.0001).of(profile)
    assert policy.accept is not None
    assert policy.accept.least == NEVER
    assert {verdict.decision for verdict in verdicts(clothes[400:410], profile, policy)} == {"review"}


def test_sets_name_the_label_first_and_hold_the_truth_about_as_often_as_asked(
    profile: Profile, clothes: list[Picture], tested: Collected
) -> None:
    policy = Policy.full_panel(profile).covering(0.97)
    judged = verdicts(clothes[400:600], profile, policy)
    assert all(verdict.prediction_set is not None and verdict.prediction_set[0] == verdict.label for verdict in judged)
    sizes = [len(verdict.prediction_set or ()) for verdict in judged]
    kept = evaluation.guarantees(tested, policy)
    assert kept.options == pytest.approx(np.mean(sizes))
    assert kept.covered is not None
    assert kept.covered > 0.92
    assert max(sizes) > 1


def test_a_profile_without_chances_cannot_make_sets(profile: Profile) -> None:
    bare = HeldOut(confidence=profile.held_out.confidence, correct=profile.held_out.correct)
    with pytest.raises(ProfileError, check=coded("profile-incomplete")):
        bare.conformal(0.9)


def test_what_became_of_guarantees_is_counted(profile: Profile, tested: Collected) -> None:
    policy = DecisionOptions(all=True, max_error=0.15, level=0.8, coverage=0.9, unfamiliar="accept").of(profile)
    kept = evaluation.guarantees(tested, policy)
    confidence = policy.calibrator.confidence(tested.votes)
    assert policy.accept is not None
    accepted = confidence >= policy.accept.least
    assert kept.accepted == pytest.approx(accepted.mean())
    wrong = (policy.calibrator.predict(tested.votes) != tested.labelled().truths)[accepted]
    assert kept.wrong == pytest.approx(wrong.mean())
    assert [line.split(":")[0] for line in kept.lines()] == [
        "Accepted",
        "Sets",
        "Sets that contain the true label",
        "Unfamiliar",
    ]
    [unlike] = evaluation.guarantees(tested, Policy.full_panel(profile)).lines()
    assert unlike.startswith("Unfamiliar:")


def drifted(policy: Policy, verdicts: list[Verdict]) -> bool:
    drift = policy.drift()
    assert drift
    return drift.update([policy.agreement_bin(v.base, [label for _, label in v.votes]) for v in verdicts]).alarm


def test_drift_is_noticed_on_other_pictures_and_not_on_the_same_kind(
    profile: Profile, clothes: list[Picture], tmp_path: Path
) -> None:
    with np.load(DEMO / "pictures.npz") as file:
        np.savez(tmp_path / "negatives.npz", images=255 - file["images"][:150])
    negatives = find([tmp_path / "negatives.npz"])
    for policy in (Policy.full_panel(profile), Policy.usual(profile)):
        same = verdicts(clothes[400:600], profile, policy)
        other = verdicts(negatives, profile, policy)
        assert not drifted(policy, same)
        assert drifted(policy, other)


def burst(photos: list[Picture], profile: Profile) -> Verdict:
    verdict = asyncio.run(judging.burst(engine_for(connect(MODEL)), photos, profile))
    assert isinstance(verdict, Verdict)
    return verdict


def test_a_burst_of_any_length_is_judged_by_a_jury(profile: Profile, clothes: list[Picture]) -> None:
    two = burst(clothes[:2], profile)
    assert two.queries == 2
    many = burst(clothes[:12], profile)
    assert len(many.votes) == 11
    assert 0 < many.low < many.confidence < 1


def test_a_burst_whose_photos_agree_is_surer_than_one_whose_photos_do_not(clothes: list[Picture]) -> None:
    mild = Panel.parse("turn:3 turn:-3 zoom:1.04 zoom:0.96")
    profile = fitting.learn(asyncio.run(collecting.collect(engine_for(connect(MODEL)), clothes, mild)), Jury(), MODEL)
    by_label: dict[str, list[Picture]] = {}
    for picture, verdict in zip(clothes[:60], verdicts(clothes[:60], profile), strict=True):
        by_label.setdefault(verdict.base, []).append(picture)
    one, another, *_ = [group for group in by_label.values() if len(group) >= 3]
    alike = burst(one[:3], profile)
    mixed = burst([*one[:2], another[0]], profile)
    assert alike.confidence > mixed.confidence


@pytest.mark.parametrize(
    ("base", "confidence", "votes", "words"),
    [
        (
            "coat",
            0.93,
            [("mirror", "shirt"), *[("turn:8", "coat")] * 7],
            "7 of 8 views agree; the mirrored one says shirt; such answers are right 93 % of the time.",
        ),
        (
            "coat",
            0.9999,
            [("turn:8", "coat")],
            "1 of 1 views agree; such answers are right more than 99.9 % of the time.",
        ),
        (
            "bag",
            0.5,
            [("mirror+turn:-8", "bag"), ("zoom:0.9", "coat"), ("tone:contrast=1.4", None)],
            "1 of 2 views agree; the mirrored and right-turned one says bag; the picture itself was called bag; "
            "such answers are right 50 % of the time.",
        ),
        (
            "coat",
            0.987,
            [("left.jpg", "bag"), ("a", "hat"), ("b", "hat"), ("c", "cap"), ("d", "tie"), ("e", "tie")],
            "0 of 6 other photos agree; 2 say hat; 2 say tie; left.jpg says bag; 1 says something else; "
            "such answers are right 98.7 % of the time.",
        ),
        (
            "bag",
            0.5,
            [("clip.mp4#2", "coat"), ("clip.mp4#3", "coat")],
            "2 of 2 other photos agree; the first photo was called bag; such answers are right 50 % of the time.",
        ),
        ("coat", 0.9, [], "No view was asked; such answers are right 90 % of the time."),
    ],
)
def test_a_verdict_is_explained_in_one_sentence(
    base: str, confidence: float, votes: list[tuple[str, str | None]], words: str
) -> None:
    assert sentence("coat", base, confidence, votes) == words


def test_a_verdict_prints_as_one_line() -> None:
    verdict = made("0001.jpg", "coat", 0.93, "coat")
    assert str(verdict) == "0001.jpg: coat, 93 %"
    assert str(verdict.model_copy(update={"decision": "review"})) == "0001.jpg: coat, 93 %, review"
    assert str(Unscored("0002.jpg", Cause.BUDGET, "the budget is spent")) == "0002.jpg: not scored: the budget is spent"


@pytest.mark.parametrize("view", MILD.views, ids=str)
def test_every_view_of_the_general_panel_has_a_word(view: object) -> None:
    assert adjective(str(view)) not in ("", "changed", "unchanged")


def test_a_plan_without_a_profile_needs_more_pictures_the_smaller_the_margin() -> None:
    labels = [need.labels for need in planning.guesses(Claim(0.02))]
    assert labels == sorted(labels)
    assert labels[0] < planning.guesses(Claim(0.01))[0].labels


def test_a_plan_with_a_profile_looks_at_shares_that_can_be_promised(profile: Profile) -> None:
    needs = planning.needs(Claim(0.1), ClaimTest([Claim(0.1)], profile.held_out.answers(), 0.95))
    assert all(need.error < 0.1 for need in needs)
    confidence, correct = np.array(profile.held_out.confidence), np.array(profile.held_out.correct)
    surest = np.argsort(-confidence)[: round(needs[0].accepted * len(confidence))]
    assert needs[0].error == pytest.approx(1 - correct[surest].mean(), abs=0.03)
    assert planning.needs(Claim(1e-6), ClaimTest([Claim(1e-6)], profile.held_out.answers(), 0.95)) == []


def test_the_commands_accept_review_name_sets_and_say_what_was_promised(profile: Profile, tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile.save(path)
    acting = ("--max-error", "0.15", "--level", "0.8", "--coverage", "0.9", "-p", path)
    done = run("score", DEMO / "pictures.npz", "--take", "400:440", "-o", tmp_path / "out.csv", *acting)
    assert done.returncode == 0, done.stderr
    header, *lines = (tmp_path / "out.csv").read_text().splitlines()
    assert header.split(",") == list(COLUMNS)
    assert all(",accept," in line or ",review," in line for line in lines)
    done = run("evaluate", DEMO / "pictures.npz", "--take", "400:600", *acting)
    assert done.returncode == 0, done.stderr
    assert "Accepted:" in done.stdout
    assert "stopping early" in done.stdout
    done = run("plan", "--max-error", "0.1", "-p", path)
    assert done.returncode == 0, done.stderr
    done = run("look", "--burst", DEMO / "pictures.npz", "--max-error", "0.1", "-p", path)
    assert (done.returncode, code_in(done.stderr)) == (1, "option-conflict")


def test_a_claim_about_a_label_that_the_profile_does_not_know_is_refused(profile: Profile) -> None:
    with pytest.raises(DataError, check=coded("option-invalid")):
        DecisionOptions(max_error={"unsafe": 0.1}).of(profile)
