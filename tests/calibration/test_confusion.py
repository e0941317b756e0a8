"""Which label hides behind which: a biased classifier is corrected, and others are left alone."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import ArrayLike
from support.errors import coded

from looktwice.calibration.calibrators import dump, restore
from looktwice.calibration.confusion import FEWEST, LISTED, MOST_CLASSES, Confusion
from looktwice.calibration.evidence import MISSING, Bools, softmax
from looktwice.calibration.jury import AdaptiveJury, Jury
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.errors import DataError


def asked(base: ArrayLike, views: ArrayLike, classes: int, words: int | None = None) -> Votes:
    codes, others = np.array(base, np.int32), np.array(views, np.int32)
    panel, names = tuple(f"view {s}" for s in range(others.shape[1])), tuple(map(str, range(len(codes))))
    return Votes(names, panel, tuple(map(str, range(words or classes))), codes, others, classes)


def biased(pictures: int, seed: int, classes: int = 6, views: int = 4, share: float = 0.7) -> LabelledVotes:
    """Of pictures of class 3, most are called 2; other answers are often right."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(classes, size=pictures)
    looks = np.where((truth == 3) & (rng.random(pictures) < share), 2, truth)
    lure = rng.integers(classes, size=pictures)
    said = np.where(rng.random((pictures, views + 1)) < 0.8, looks[:, None], lure[:, None])
    return asked(said[:, 0], said[:, 1:], classes).labelled(map(str, truth))


@pytest.fixture(scope="module")
def learned() -> tuple[Jury, LabelledVotes]:
    return Jury().fit(biased(800, seed=0)), biased(3000, seed=1)


def test_a_label_that_hides_another_is_believed_less_and_the_losses_fall(learned: tuple[Jury, LabelledVotes]) -> None:
    jury, votes = learned
    plain = replace(jury, confusion=None)
    assert jury.confusion is not None
    after, before = jury.distribution(votes), plain.distribution(votes)
    assert after.brier(votes.truths).mean() < before.brier(votes.truths).mean() - 0.03
    assert after.nll(votes.truths).mean() < before.nll(votes.truths).mean() - 0.1
    often = jury.predict(votes) == 2
    right = (jury.predict(votes) == votes.truths)[often].mean()
    assert jury.confidence(votes)[often].mean() == pytest.approx(right, abs=0.05)


def test_the_order_in_which_votes_list_their_labels_changes_nothing(learned: tuple[Jury, LabelledVotes]) -> None:
    jury, votes = learned
    words = votes.vocabulary[::-1]
    shown = np.array([*votes.vocabulary, None], object)[votes.answers()]
    other = Votes.from_labels(shown[:, 0], shown[:, 1:], votes.words, words)
    assert other.vocabulary == words
    losses = jury.distribution(other).brier(other.truths)
    assert losses == pytest.approx(jury.distribution(votes).brier(votes.truths))


def test_a_label_that_nobody_said_may_be_the_answer() -> None:
    """Of the pictures that all call 1, most are 0."""
    rng = np.random.default_rng(0)
    base = rng.integers(2, size=400)
    truths = np.where((base == 1) & (rng.random(400) < 0.8), 0, base)
    jury = Jury().fit(asked(base, np.column_stack([base] * 4), 2).labelled(map(str, truths)))
    new = asked([0, 1], [[0] * 4, [1] * 4], 2)
    assert jury.predict(new).tolist() == [0, 0]
    assert jury.confidence(new)[1] == pytest.approx(0.8, abs=0.07)
    low, high = jury.interval(new)
    assert ((low < jury.confidence(new)) & (jury.confidence(new) < high)).all()
    assert replace(jury, ballot="base").predict(new).tolist() == [0, 1]


@given(st.integers(0, 10**6), st.integers(2, 40), st.booleans())
@settings(max_examples=40, deadline=None)
def test_parts_agree_whatever_the_table_says(seed: int, classes: int, unknown: bool) -> None:
    rng = np.random.default_rng(seed)
    said = rng.integers(MISSING, classes, size=(30, 5))
    votes = asked(said[:, 0], said[:, 1:], classes + 3 * unknown, classes)
    counts = tuple(
        (label, truth, int(rng.integers(1, 50))) for label in range(classes) for truth in {label, (7 * label) % classes}
    )
    table = Confusion(5, counts, tuple(rng.integers(9, size=classes).tolist()), (0.9, 1.2, -0.4))
    theta = rng.uniform(0.0, 1.0, 8)
    jury = Jury(tuple(theta[:5]), (0.0, theta[5]), covariance=tuple(map(tuple, np.eye(8).tolist())), confusion=table)
    distribution, (low, high) = jury.distribution(votes), jury.interval(votes)
    np.testing.assert_allclose(
        distribution.dense(classes).sum(axis=1) + (3 * distribution.unnamed() if unknown else 0.0), 1.0
    )
    np.testing.assert_allclose(distribution.of(jury.predict(votes))[~mute(votes)], jury.confidence(votes)[~mute(votes)])
    assert (distribution.top()[~mute(votes)] == jury.predict(votes)[~mute(votes)]).all()
    assert ((low <= jury.confidence(votes)) & (jury.confidence(votes) <= high)).all()
    assert (jury.predict(votes)[mute(votes)] == MISSING).all()
    listed = [row[row != MISSING].tolist() for row in distribution.labels]
    assert all(len(set(row)) == len(row) <= LISTED for row in listed)


def mute(votes: Votes) -> Bools:
    return np.asarray((votes.answers() == MISSING).all(axis=1), bool)


def test_the_slope_of_the_odds_is_their_derivative(learned: tuple[Jury, LabelledVotes]) -> None:
    jury, votes = learned
    some = votes.take(np.arange(200))
    ((_, utilities),) = jury._parts(some)
    believed = utilities.eligible().argmax(axis=1)
    slope = utilities.slope(believed, softmax(utilities.rivals(believed)))
    theta = np.array([*jury.weights, jury.log_votes, *jury.unnamed])
    for place in range(len(theta)):
        other = theta.copy()
        other[place] += 1e-6
        moved = replace(jury, weights=tuple(other[:-3]), log_votes=other[-3], unnamed=(other[-2], other[-1]))
        ((_, after),) = moved._parts(some)
        gap = (after.odds(believed) - utilities.odds(believed)) / 1e-6
        np.testing.assert_allclose(gap, slope[:, place], atol=1e-4)


@pytest.mark.slow
def test_it_costs_nothing_where_labels_tell_nothing() -> None:
    """Every picture has its classes renamed by lot, so that no label hides another."""

    def renamed(pictures: int, seed: int) -> LabelledVotes:
        votes, turn = biased(pictures, seed, share=0.0), np.random.default_rng(seed).integers(6, size=pictures)
        said = asked((votes.base + turn) % 6, (votes.views + turn[:, None]) % 6, 6)
        return said.labelled(map(str, (votes.truths + turn) % 6))

    test, gains = renamed(3000, 1), []
    for seed in range(60, 66):
        jury = Jury().fit(renamed(500, seed))
        after, before = (
            each.distribution(test).brier(test.truths).mean() for each in (jury, replace(jury, confusion=None))
        )
        gains.append(before - after)
    assert min(gains) > -0.002
    assert np.mean(gains) > -0.0005


def test_few_pictures_and_many_classes_have_no_table() -> None:
    assert Jury().fit(biased(FEWEST - 1, seed=0)).confusion is None
    many = biased(400, seed=0)
    assert Jury().fit(replace(many, classes=MOST_CLASSES + 1)).confusion is None


def test_prefixes_use_it_after_three_views(learned: tuple[Jury, LabelledVotes]) -> None:
    _, votes = learned
    fitted = AdaptiveJury().fit(biased(800, seed=0))
    assert [jury.confusion is not None for jury in fitted.members()] == [False, False, False, True, True]
    np.testing.assert_allclose(fitted.confidence(votes), learned[0].confidence(votes), atol=1e-3)
    assert fitted.pooled(6).confusion == fitted.confusion


@pytest.mark.parametrize("family", [Jury, AdaptiveJury])
def test_it_survives_json_and_stands_there_once(family: type[Jury | AdaptiveJury]) -> None:
    votes = biased(600, seed=0)
    fitted = family().fit(votes)
    assert fitted.confusion is not None
    text = json.dumps(dump(fitted))
    np.testing.assert_array_equal(restore(json.loads(text)).confidence(votes), fitted.confidence(votes))
    assert text.count(json.dumps(fitted.confusion.counts)) == 1


def test_labels_that_came_later_tell_nothing(learned: tuple[Jury, LabelledVotes]) -> None:
    jury, votes = learned
    later = replace(votes, vocabulary=(*votes.vocabulary, "new"), classes=7)
    new = replace(later.take(np.arange(2)), base=np.array([6, 0], np.int32))
    assert np.isfinite(jury.distribution(new).named).all()


@pytest.mark.parametrize("counts", [((-1, 0, 3),), ((0, 10**9, 3),), ((0, 0, -3),)])
def test_what_cannot_be_read_is_a_clear_error(counts: tuple[tuple[int, int, int], ...]) -> None:
    with pytest.raises(DataError, check=coded("calibrator-malformed")):
        Confusion(5, counts, (1, 2))
