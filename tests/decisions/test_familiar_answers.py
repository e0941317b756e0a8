"""Whether answers are like those about the labelled pictures: the conformal p-value, the words, and at work."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from looktwice import Model
from looktwice.calibration.votes import Votes
from looktwice.decisions.monitoring import LEAST, AnswerKinds, kinds
from looktwice.decisions.profile import Profile
from looktwice.images.image import Pixels

WORDS = ("bright", "dark", "new")


def votes(*rows: str) -> Votes:
    """Votes from lines such as `bright bright dark -`: the base label, then the views."""
    said = [[None if word == "-" else word for word in row.split()] for row in rows]
    return Votes.from_labels([row[0] for row in said], [row[1:] for row in said], vocabulary=WORDS)


def drawn(rng: np.random.Generator, pictures: int) -> Votes:
    """Answers of a classifier with twelve labels, some of them rare, whose views stray."""
    base = rng.zipf(1.6, pictures) % 12
    stray = rng.random((pictures, 4)) < rng.beta(0.3, 1, (pictures, 1))
    views = np.where(stray, rng.integers(0, 12, (pictures, 4)), base[:, None])
    return Votes.from_labels(base, views, vocabulary=np.arange(12))


def test_a_kind_is_the_label_and_how_the_views_stand_to_it() -> None:
    assert kinds(votes("bright bright dark -", "dark new bright bright")) == [("bright", "1/2"), ("dark", "0/3")]


def test_the_p_value_is_the_share_of_answers_that_are_no_commoner() -> None:
    known = AnswerKinds.fit(votes(*["bright bright bright"] * 18, "bright bright dark", "dark dark dark"))
    assert known is not None
    assert known.seen == {"bright": {"1/2": 1, "2/1": 18}, "dark": {"2/1": 1}}
    shown = votes("bright bright bright", "dark dark dark", "bright bright dark", "dark bright bright", "new new new")
    # The new one and, in turn: all; the other dark one and the rare bright one; the same two; none; the dark one,
    # which was as rare a label with the same kind.
    assert known.p_values(shown).tolist() == [1.0, 3 / 21, 3 / 21, 1 / 21, 2 / 21]


@pytest.mark.slow
def test_false_alarms_are_no_more_often_than_the_rate_says() -> None:
    rng, rates = np.random.default_rng(0), np.array([0.01, 0.05, 0.2])
    shares = []
    for _ in range(60):
        known = AnswerKinds.fit(drawn(rng, 400))
        assert known is not None
        shares.append((known.p_values(drawn(rng, 400))[:, None] <= rates).mean(axis=0))
    mean, error = np.mean(shares, axis=0), np.std(shares, axis=0) / np.sqrt(len(shares))
    assert (mean <= rates + 3 * error).all()
    assert (mean >= rates / 2).all()


def test_few_labelled_pictures_tell_nothing() -> None:
    few = drawn(np.random.default_rng(0), LEAST - 1)
    assert AnswerKinds.fit(few) is None


def test_it_says_what_is_unusual() -> None:
    known = AnswerKinds.fit(votes(*["bright bright bright"] * 18, "bright bright dark", "dark dark dark"))
    assert known is not None
    shown = votes("new new new", "bright bright dark", "dark bright bright")
    new, usual, torn = (known.because(shown, row) for row in range(3))
    assert "'new'" in new
    assert all(told in usual for told in ("1 of 2 views", "'bright'", "1 of the 19"))
    assert all(told in torn for told in ("0 of 2 views", "'dark'"))


@pytest.mark.parametrize("change", [{"seen": {}}, {"seen": {"a": {}}}, {"seen": {"a": {"x": 1}}}, {"views": -1}])
def test_a_damaged_summary_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        AnswerKinds.model_validate({"views": 2, "seen": {"a": {"2/1": 3}}, **change})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A profile of a classifier that calls pictures bright or dark, from 500 of them."""
    with Model(classify) as model:
        images = 2 * np.random.default_rng(0).integers(0, 128, (500, 1, 1, 3), np.uint8).repeat(4, 1).repeat(4, 2)
        model.fit(images, [classify(image) for image in images], views="mirror zoom:1.15")
        model.save(path := tmp_path_factory.mktemp("answers") / "profile.json")
        return path


def classify(image: Pixels) -> str:
    """A classifier with a word that none of the labelled pictures gets, whose levels are even."""
    return "new" if image[0, 0, 0] % 2 else "bright" if image.mean() > 128 else "dark"


@pytest.mark.slow
def test_a_label_that_no_labelled_picture_has_is_unfamiliar(place: Path) -> None:
    strange = np.full((4, 4, 3), 101, np.uint8)
    profile = Profile.load(place)
    assert profile.answers is not None
    for everything in (False, True):
        with Model(classify, profile) as model:
            verdict = model.look(strange, max_error=0.9, all=everything)
            before = model.familiarity([strange])
        assert verdict.decision == "review"
        assert "'new'" in (verdict.unfamiliar_because or "")
        assert verdict.familiarity == 2 / 501 < before[0]


@pytest.mark.slow
def test_a_profile_without_answers_tells_by_pixels_alone(place: Path, tmp_path: Path) -> None:
    values = json.loads(place.read_text())
    del values["answers"], values["adaptive"]["answers"]
    (tmp_path / "old.json").write_text(json.dumps(values))
    shown = np.full((4, 4, 3), 78, np.uint8)
    with Model.load(place, classify) as new, Model.load(tmp_path / "old.json", classify) as old:
        assert min(1.0, 2 * old.familiarity([shown])[0]) == new.familiarity([shown])[0]
        assert old.look(shown).familiarity == old.familiarity([shown])[0]
