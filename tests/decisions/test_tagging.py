"""Tags: from labelled pictures to a profile, verdicts and figures, and what is refused before anything is asked."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import numpy as np
import pytest
from support.errors import coded
from support.tags import TAGS, pictures, tagger

import looktwice as lt
from looktwice.calibration.risk import NEVER
from looktwice.decisions.policy import DecisionOptions, TagPolicy
from looktwice.decisions.profile import Profile
from looktwice.decisions.tagging import TagEvaluation, held_out_scores
from looktwice.decisions.verdict import SURE, TagVerdict
from looktwice.decisions.verdict_files import read, read_any
from looktwice.errors import DataError, FitError, LookTwiceError, ProfileError
from looktwice.images.collection import labelled, of_kind
from looktwice.images.image import encode_png

FIT = 300


@pytest.fixture(scope="module")
def model() -> Iterator[lt.Model]:
    images, truths = pictures(FIT)
    with lt.Model(tagger) as model:
        with pytest.warns(UserWarning, match="sky"):
            model.fit(images, truths)
        yield model


def looked(model: lt.Model, **options: object) -> list[TagVerdict]:
    images, _ = pictures(60, seed=1)
    return cast("list[TagVerdict]", list(model.score(images, DecisionOptions(**options))))  # type: ignore[arg-type]


def test_a_verdict_has_a_probability_an_interval_and_a_decision_for_each_tag(model: lt.Model) -> None:
    for verdict in looked(model):
        assert isinstance(verdict, TagVerdict)
        assert sorted(tag.name for tag in verdict.tags) == list(TAGS)
        assert all(0 <= tag.low <= tag.probability <= tag.high <= 1 for tag in verdict.tags)
        assert all((tag.decision == "yes") == (tag.probability >= SURE) for tag in verdict.tags)
        assert {*verdict.yes, *verdict.no, *verdict.review} == set(TAGS)
        assert verdict.to_dict()["kind"] == "tags"
        assert verdict.decision is None
        assert all(name in verdict.sentence for name in verdict.yes)
        assert str(verdict).endswith(verdict.sentence)
        assert " 0 %" not in verdict.sentence


def test_probabilities_are_calibrated_on_other_pictures_and_better_than_scores(model: lt.Model) -> None:
    images, truths = pictures(400, seed=2)
    evaluation = cast("TagEvaluation", model.evaluate(images, truths))
    own = np.array([[tagger(image).get(tag, 0.0) for tag in TAGS] for image in images])
    brier = ((own - evaluation.truths) ** 2).sum(axis=1).mean()
    assert evaluation.scores.brier < 0.8 * brier
    assert evaluation.scores.ece < 0.03
    assert evaluation.fitted == 0
    assert len(evaluation.to_frame()) == len(images) * len(TAGS)
    assert json.loads(json.dumps(evaluation.record()))["tags"][0]["tag"] == "bus"


def test_a_guarantee_decides_tag_by_tag_and_the_rest_is_for_review(model: lt.Model) -> None:
    profile = model.fitted()
    strict = cast("TagPolicy", DecisionOptions(max_error=0.1, max_miss={"cat": 0.2}).of(profile))
    lax = cast("TagPolicy", DecisionOptions(max_error=0.1, accept="estimate").of(profile))
    assert strict.least[0][0] == NEVER, "too few buses were said to be there to guarantee anything"
    assert all(np.array(lax.least).ravel() <= np.array(strict.least).ravel())
    images, truths = pictures(400, seed=3)
    cats = next(
        row
        for row in cast("TagEvaluation", model.evaluate(images, truths, max_miss={"cat": 0.2})).scores.tags
        if row.tag == "cat"
    )
    assert cats.missed is not None
    assert cats.missed <= 0.2
    verdicts = looked(model, max_error=0.1)
    assert {verdict.decision for verdict in verdicts} == {"accept", "review"}
    assert all((verdict.decision == "review") == bool(verdict.review) for verdict in verdicts)
    assert {verdict.basis for verdict in verdicts} == {"guarantee"}


def test_a_tag_without_a_claim_is_decided_where_it_is_sure(model: lt.Model) -> None:
    policy = cast("TagPolicy", DecisionOptions(max_miss={"cat": 0.2}).of(model.fitted()))
    others = [least for tag, least in zip(TAGS, policy.least, strict=True) if tag != "cat"]
    assert others == [(SURE, SURE)] * 4


def test_verdicts_do_not_depend_on_those_judged_beside_them(model: lt.Model) -> None:
    images, _ = pictures(60, seed=1)
    assert [cast("TagVerdict", model.look(image)).tags for image in images[:5]] == [v.tags for v in looked(model)[:5]]


def test_a_profile_is_saved_and_loaded_and_refuses_a_classifier_of_labels(model: lt.Model, tmp_path: Path) -> None:
    model.save(tmp_path / "profile.json")
    loaded = Profile.load(tmp_path / "profile.json")
    assert loaded == model.fitted()
    assert held_out_scores(loaded).brier == pytest.approx(held_out_scores(model.fitted()).brier)
    with pytest.raises(ProfileError, check=coded("profile-mismatch")):
        lt.Model(lambda image: "cat", loaded)


@pytest.mark.parametrize("broken", ["jury", "held_out", "tags"])
def test_a_broken_profile_is_one_line(model: lt.Model, broken: str) -> None:
    values = json.loads(model.fitted().model_dump_json())
    if broken == "jury":
        values["calibrator"]["members"][0]["common"].append(1.0)
    elif broken == "held_out":
        values["held_out"]["confidence"].pop()
        values["held_out"]["correct"].pop()
    else:
        values["vocabulary"][0] = "tram"
    with pytest.raises(ProfileError, match="malformed"):
        Profile.of(values, "profile.json")


@pytest.mark.slow
def test_views_and_a_second_classifier_are_asked_and_tell_more(model: lt.Model) -> None:
    images, truths = pictures(FIT)

    @lt.returns_tags
    def second(image: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> list[str]:
        return [tag for tag, mark in zip(TAGS, image[:, 0, 0].tolist(), strict=False) if mark > 100]

    with lt.Model([tagger, second]) as both:
        with pytest.warns(UserWarning, match="sky"):
            profile = both.fit(images, truths, views="mirror").profile
        assert held_out_scores(profile).brier < 0.5 * held_out_scores(model.fitted()).brier
        verdict = cast("TagVerdict", both.look(images[0]))
        assert [query.view for query in verdict.asked] == ["again", "again", "mirror"]
        assert len({query.classifier for query in verdict.asked}) == 2


# What is refused, before anything is asked ---------------------------------------------------------------------------


def refused(image: object) -> list[str]:
    raise AssertionError("nothing may be asked")


@pytest.mark.parametrize("labels", [["cat"] * 30 + ["dog"] * 30, [["cat"], *["dog"] * 59]])
def test_one_label_a_picture_is_no_truth_for_tags(labels: list[object]) -> None:
    with lt.Model(lt.returns_tags(refused)) as model, pytest.raises(DataError, check=coded("labels-unmatched")):
        model.fit(pictures(60)[0], labels)


def test_labels_with_a_semicolon_are_tags_where_tags_are_wanted(tmp_path: Path) -> None:
    images, _ = pictures(2)
    (tmp_path / "labels.csv").write_text('file,label\n0.png,cat;dog\n1.png,"""a;b"";cat"\n')
    for place, image in enumerate(images):
        (tmp_path / f"{place}.png").write_bytes(encode_png(image))
    tags = [picture.tags for picture in of_kind(labelled(tmp_path), "tags")]
    assert tags == [("cat", "dog"), ("a;b", "cat")]
    assert [picture.truth for picture in of_kind(labelled(tmp_path), "label")] == ["cat;dog", '"a;b";cat']


def test_tags_are_no_truth_for_a_classifier_of_one_label() -> None:
    images, truths = pictures(60)
    with lt.Model(lambda image: refused(image)[0]) as model, pytest.raises(DataError, check=coded("labels-unmatched")):
        model.fit(images, truths)


def test_labels_and_tags_are_not_mixed() -> None:
    with pytest.raises(LookTwiceError, check=coded("option-conflict")):
        lt.Model([tagger, lambda image: "cat"])


def test_pictures_without_any_tag_teach_nothing_and_nothing_is_asked() -> None:
    with lt.Model(lt.returns_tags(refused)) as model, pytest.raises(FitError, check=coded("labels-missing")):
        model.fit(pictures(60)[0], [[]] * 60)


@pytest.mark.slow
def test_labels_of_changed_pictures_repair_a_profile(model: lt.Model) -> None:
    def darker(count: int, seed: int) -> tuple[np.ndarray, list[list[str]]]:
        images, truths = pictures(count, seed)
        images[:, : len(TAGS), 0, 0] = np.where(images[:, : len(TAGS), 0, 0] > 128, 140, 30)
        return images, truths

    old, asked, others = model.fitted(), darker(60, seed=5), darker(300, seed=6)
    with lt.Model(tagger, old) as repaired:
        before = cast("TagEvaluation", repaired.evaluate(*others)).scores
        new = repaired.borrow(old, *asked)
        after = cast("TagEvaluation", repaired.evaluate(*others)).scores
        assert (new.vocabulary, new.panel, new.pictures) == (old.vocabulary, old.panel, 60)
    assert after.brier < before.brier
    assert after.ece < 0.5 * before.ece


def test_true_tags_that_are_never_returned_end_the_fit_after_a_few_queries() -> None:
    images, truths = pictures(100)
    with lt.Model(tagger) as model, pytest.raises(DataError, check=coded("labels-unmatched")):
        model.fit(images, [[f"{tag}!" for tag in tags] for tags in truths])
    assert model.asked.sent + model.asked.hits <= 20


@pytest.mark.parametrize(
    "options",
    [{"calibrator": "probit"}, {"paper": "rotation"}, {"max_price": 1.0}, {"noise": "noise.json"}],
)
def test_what_is_for_one_label_is_refused_for_tags(options: dict[str, object]) -> None:
    images, truths = pictures(60)
    with lt.Model(lt.returns_tags(refused)) as model, pytest.raises(FitError, check=coded("option-conflict")):
        model.fit(images, truths, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("options", [{"coverage": 0.9}])
def test_sets_are_refused_for_tags(model: lt.Model, options: dict[str, object]) -> None:
    with pytest.raises(ProfileError, check=coded("option-conflict")):
        model.look(pictures(1)[0][0], **options)  # type: ignore[arg-type]
    with pytest.raises(ProfileError, check=coded("option-conflict")):
        model.burst(list(pictures(3)[0]))
    with pytest.raises(DataError, check=coded("option-invalid")):
        model.look(pictures(1)[0][0], max_error={"tram": 0.1})


def test_an_answer_without_any_tag_is_an_answer() -> None:
    images, truths = pictures(80)

    @lt.returns_tags
    def shy(image: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> list[str]:
        return ["cat"] if image[2, 0, 0] > 100 else []

    with lt.Model(shy) as model:
        model.fit(images, truths)
        verdict = cast("TagVerdict", model.look(np.zeros((16, 16, 3), np.uint8)))
    assert (verdict.queries, verdict.asked[0].label) == (1, "")
    assert next(tag for tag in verdict.tags if tag.name == "cat").probability < 0.1


@pytest.mark.parametrize("answer", ["cat", 3, None])
def test_a_function_of_tags_returns_a_list_or_a_dict(answer: object) -> None:
    with (
        lt.Model(lt.returns_tags(lambda image: answer)) as model,
        pytest.raises(LookTwiceError, check=coded("reply-malformed")),
    ):
        model.check()


# Files ---------------------------------------------------------------------------------------------------------------


def test_a_tag_with_a_semicolon_survives_every_file(model: lt.Model, tmp_path: Path) -> None:
    images, truths = pictures(60)
    named = [[f"{tag};x" for tag in tags] for tags in truths]

    @lt.returns_tags
    def odd(image: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> dict[str, float]:
        return {f"{tag};x": score for tag, score in tagger(image).items() if tag != "sky"}

    with lt.Model(odd) as asked:
        profile = asked.fit(images, named).profile
        assert profile.vocabulary == tuple(f"{tag};x" for tag in TAGS)
        asked.ask(images, named).votes.save(tmp_path / "votes.npz")
    assert lt.Votes.load(tmp_path / "votes.npz").evidence is not None


def test_verdicts_are_read_back_from_every_kind_of_file(model: lt.Model, tmp_path: Path) -> None:
    from looktwice.decisions.verdict_files import ScoreFile
    from looktwice.images.collection import many

    images, _ = pictures(60, seed=1)
    asked, verdicts = list(many(images)), looked(model, max_error=0.1)
    for ending in (".csv", ".jsonl", ".parquet"):
        file = ScoreFile(tmp_path / f"verdicts{ending}", {}, asked, kind="tags")
        for verdict in verdicts:
            file.add(verdict)
        file.finish({})
        assert [v.to_dict() for v in read_any(tmp_path / f"verdicts{ending}")] == [v.to_dict() for v in verdicts]
        with pytest.raises(DataError, check=coded("option-conflict")):
            read(tmp_path / f"verdicts{ending}")
    with (tmp_path / "verdicts.csv").open(newline="") as table:
        assert [json.loads(row["yes"]) for row in csv.DictReader(table)] == [list(v.yes) for v in verdicts]
