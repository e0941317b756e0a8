"""Where the truth may be that nobody named: by labels that are said together, never at the expense of the answer."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from looktwice.calibration.calibrators import dump, restore
from looktwice.calibration.distribution import LISTED, PRIORS, Companions, Distribution, _counted
from looktwice.calibration.jury import Jury, Prefixes
from looktwice.calibration.votes import MISSING, LabelledVotes, Votes
from looktwice.errors import DataError

FAMILY = 5
"""Classes that are taken for each other."""


def families(pictures: int, classes: int, seed: int, views: int = 4, mixed: bool = False) -> LabelledVotes:
    """Answers that are often wrong, but of the truth's family; of any class if they are mixed."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(classes, size=pictures)
    others = rng.integers(FAMILY, size=(pictures, views + 1))
    near = truth[:, None] // FAMILY * FAMILY + others
    if mixed:
        near = rng.integers(classes, size=near.shape)
    said = np.where(rng.random(near.shape) < 0.5, truth[:, None], near)
    said = np.where(rng.random((pictures, 1)) < 0.3, near, said).astype(np.int32)
    words = tuple(map(str, range(classes)))
    panel = tuple(f"view {s}" for s in range(views))
    names = tuple(map(str, range(pictures)))
    return Votes(names, panel, words, said[:, 0], said[:, 1:], classes).labelled(map(str, truth))


@pytest.fixture(scope="module")
def learned() -> tuple[Jury, LabelledVotes]:
    return Jury().fit(families(600, 50, seed=0)), families(600, 50, seed=1)


def test_shares_are_the_formula() -> None:
    found = Companions(("0 1*6 2*2 3", "1 0*6 3*4"), 10.0)
    told = Distribution(np.array([[0, 1]], np.int32), np.array([[0.5, 0.3]]), 6)
    counts = np.array([0.0, 0.0, 0.5 * 2, 0.5 * 1 + 0.3 * 4, 0.0, 0.0])
    expected = 0.2 * (counts + 10 / 4) / (counts.sum() + 10)
    np.testing.assert_allclose(found.spread(told, 6).dense(6)[0], [0.5, 0.3, *expected[2:]])
    np.testing.assert_allclose(found.spread(told, 3).dense(6)[0].sum(), 1.0)
    assert found.spread(told, 3).labels.max() == 2, "a label is listed that the vocabulary does not have"


def test_truths_that_nobody_named_surprise_less_and_the_answers_stay(learned: tuple[Jury, LabelledVotes]) -> None:
    jury, votes = learned
    even = replace(jury, companions=None)
    assert jury.companions is not None
    assert jury.distribution(votes).nll(votes.truths).mean() < even.distribution(votes).nll(votes.truths).mean() - 0.1
    assert jury.distribution(votes).brier(votes.truths).mean() < even.distribution(votes).brier(votes.truths).mean()
    np.testing.assert_array_equal(jury.confidence(votes), even.confidence(votes))
    np.testing.assert_array_equal(jury.predict(votes), even.predict(votes))
    np.testing.assert_array_equal(jury.interval(votes), even.interval(votes))


@given(st.integers(0, 10**6), st.integers(2, 40), st.sampled_from(PRIORS))
@settings(max_examples=40, deadline=None)
def test_probabilities_add_up_and_the_answer_is_the_most_probable(seed: int, classes: int, prior: float) -> None:
    votes = families(60, FAMILY * -(-classes // FAMILY), seed)
    rng = np.random.default_rng(seed)
    jury = Jury(tuple(rng.uniform(0, 1.5, 5)), (float(rng.uniform(-1, 1)), 0.5))
    spread = replace(jury, companions=Companions(_counted(votes), prior))
    told, even = spread.distribution(votes), jury.distribution(votes)
    np.testing.assert_allclose(told.dense(votes.classes).sum(axis=1), 1.0)
    np.testing.assert_array_equal(told.top(), spread.predict(votes))
    np.testing.assert_allclose(told.of(spread.predict(votes)), spread.confidence(votes))
    named = even.labels.shape[1]
    np.testing.assert_array_equal(told.named[:, :named], even.named)
    listed = [row[row != MISSING].tolist() for row in told.labels]
    assert all(len(set(row)) == len(row) for row in listed), "a label is listed twice"


def test_labels_that_are_said_together_by_chance_are_not_used() -> None:
    kept = [Jury().fit(families(400, 50, seed, mixed=True)).companions for seed in range(8)]
    assert sum(each is not None for each in kept) <= 2


def test_shuffled_counts_are_not_used(learned: tuple[Jury, LabelledVotes]) -> None:
    jury, votes = learned
    order = np.random.default_rng(0).permutation(50).astype(np.int32)
    other = replace(votes, base=order[votes.base], views=order[votes.views])
    assert jury.with_companions(other, votes).companions is None


def test_unlabelled_pictures_count_too(learned: tuple[Jury, LabelledVotes]) -> None:
    _, votes = learned
    few = families(100, 50, seed=2)
    alone, many = Jury().fit(few), Jury().fit(few).with_companions(families(5_000, 50, seed=3), few)
    assert many.distribution(votes).nll(votes.truths).mean() < alone.distribution(votes).nll(votes.truths).mean()


def test_with_two_classes_the_other_one_has_the_rest() -> None:
    votes = Votes.from_labels(["a", "b"] * 20, [["a", "a"], ["b", "a"]] * 20, ["a", "b", "b", "b"] * 10)
    jury = Jury().fit(votes)
    assert jury.companions is None
    np.testing.assert_allclose(jury.distribution(votes).dense(2).sum(axis=1), 1.0)


@pytest.mark.parametrize("family", [Jury, Prefixes])
def test_they_survive_json_once_and_old_profiles_spread_evenly(
    family: type[Jury | Prefixes], learned: tuple[Jury, LabelledVotes]
) -> None:
    _, votes = learned
    fitted = family().fit(families(600, 50, seed=0))
    text = json.dumps(dump(fitted))
    again = restore(json.loads(text))
    np.testing.assert_array_equal(again.distribution(votes).named, fitted.distribution(votes).named)
    assert fitted.companions is not None
    assert text.count(fitted.companions.pairs[0]) == 1
    old = {key: value for key, value in json.loads(text).items() if key != "companions"}
    assert restore(old).distribution(votes).labels.shape[1] < again.distribution(votes).labels.shape[1]


def test_a_stopped_picture_has_its_shares_too(learned: tuple[Jury, LabelledVotes]) -> None:
    _, votes = learned
    fitted = Prefixes().fit(families(600, 50, seed=0))
    early = replace(votes, views=np.where(np.arange(4) < 1, votes.views, MISSING).astype(np.int32))
    told = fitted.distribution(early)
    np.testing.assert_allclose(told.of(fitted.predict(early)), fitted.confidence(early))
    assert (told.labels[:, 5:] != MISSING).any()


@pytest.mark.parametrize("pairs", [("a 3",), ("1 2*x",), ("1 2*-3",), ("1 4000000000",), ("5 99999999",), ("",)])
def test_what_cannot_be_read_is_a_clear_error(pairs: tuple[str, ...]) -> None:
    with pytest.raises(DataError, match="companions of labels"):
        Companions(pairs, 3.0)


def test_a_thousand_classes_take_little_space() -> None:
    rng = np.random.default_rng(0)
    said = rng.integers(1000, size=(5_000, 9)).astype(np.int32)
    words, names = tuple(map(str, range(1000))), tuple(map(str, range(5_000)))
    votes = Votes(names, tuple("12345678"), words, said[:, 0], said[:, 1:], 1000)
    pairs = _counted(votes)
    assert len("\n".join(pairs)) < 200_000
    assert max(len(text.split()) - 1 for text in pairs) == LISTED
