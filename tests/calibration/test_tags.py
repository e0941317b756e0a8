"""Tags: probabilities of several tags a picture, from answers that return some of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from pydantic import TypeAdapter
from scipy.optimize import minimize
from support.errors import coded

from looktwice.calibration import metrics
from looktwice.calibration.evidence import Floats, RankedList, Row
from looktwice.calibration.tag_votes import LabelledTagVotes, TagScale, TagVotes
from looktwice.calibration.tags import VOTES, WEAKEST, TagJury, TagRows
from looktwice.calibration.votes import Votes
from looktwice.errors import DataError, FitError

TAGS = tuple(f"tag {number}" for number in range(6))


def simulated(pictures: int = 600, sources: int = 2, seed: int = 0, strength: float = 1.0) -> LabelledTagVotes:
    """Sources that return a tag where its noisy log odds exceed 0, with overconfident scores."""
    rng = np.random.default_rng(seed)
    truths = rng.random((pictures, len(TAGS))) < np.linspace(0.05, 0.5, len(TAGS))
    odds = np.where(truths, strength, -strength)[:, None] + rng.normal(size=(pictures, sources, len(TAGS)))
    scores = np.where(odds > 0, 1 / (1 + np.exp(-3 * odds)), np.nan)
    return from_scores(scores, truths)


def from_scores(scores: Floats, truths: NDArray[np.bool_]) -> LabelledTagVotes:
    order = np.argsort(-np.nan_to_num(scores, nan=-1e9), axis=2, kind="stable").argsort(axis=2, kind="stable")
    ranks = np.where(np.isnan(scores), 0, order + 1).astype(np.int16)
    names, sources = tuple(map(str, range(len(scores)))), tuple(f"api {s}" for s in range(scores.shape[1]))
    asked = np.ones(scores.shape[:2], bool)
    return TagVotes(names, sources, TAGS, ranks, scores.astype(np.float32), asked).labelled(truths)


def without(votes: LabelledTagVotes, down: NDArray[np.bool_]) -> LabelledTagVotes:
    """The same where some sources did not answer about some pictures, `down` (n, S)."""
    ranks = np.where(down[:, :, None], 0, votes.ranks).astype(np.int16)
    scores = np.where(down[:, :, None], np.nan, votes.scores).astype(np.float32)
    return replace(votes, ranks=ranks, scores=scores, asked=~down)


def brier(chance: Floats, votes: LabelledTagVotes) -> float:
    return float(((chance - votes.truths) ** 2).sum(axis=1).mean())


@pytest.fixture(scope="module")
def votes() -> LabelledTagVotes:
    return simulated(3000)


@pytest.fixture(scope="module")
def jury(votes: LabelledTagVotes) -> TagJury:
    return TagJury().fit(votes.take(slice(0, 600)))


def test_probabilities_are_calibrated_and_better_than_scores_and_base_rates(
    votes: LabelledTagVotes, jury: TagJury
) -> None:
    test = votes.take(slice(600, None))
    chance = jury.probability(test)
    assert metrics.ece(chance.ravel(), test.truths.ravel()) < 0.02
    rates = np.broadcast_to(votes.truths[:600].mean(axis=0), chance.shape)
    assert brier(chance, test) < 0.9 * brier(np.nan_to_num(test.scores).mean(axis=1), test)
    assert brier(chance, test) < 0.7 * brier(rates, test)


def test_more_sources_tell_more(votes: LabelledTagVotes, jury: TagJury) -> None:
    test = votes.take(slice(600, None))
    one = TagJury().fit(votes.take(slice(0, 600)).under([0]))
    assert brier(jury.probability(test), test) < brier(one.probability(test.under([0])), test) - 0.05


def test_a_tag_that_nobody_returned_has_a_probability_of_its_own(votes: LabelledTagVotes, jury: TagJury) -> None:
    nothing = without(votes.take(slice(0, 1)), np.zeros((1, 2), bool))
    nothing = replace(nothing, ranks=np.zeros_like(nothing.ranks), scores=np.full_like(nothing.scores, np.nan))
    chance = jury.probability(nothing)[0]
    unseen = votes.ranks.max(axis=1) == 0
    for tag in range(len(TAGS)):
        assert chance[tag] == pytest.approx(votes.truths[unseen[:, tag], tag].mean(), abs=0.06)
    assert chance[-1] > chance[0] > 0


def test_a_rare_tag_borrows_from_the_others() -> None:
    votes = simulated(2500)
    truths = votes.truths.copy()
    truths[:300, 0] = False  # no positive among the labelled
    jury = TagJury().fit(replace(votes, truths=truths).take(slice(0, 300)))
    test = votes.take(slice(300, None))
    chance, returned = jury.probability(test)[:, 0], (test.ranks[:, :, 0] > 0).all(axis=1)
    assert chance.min() > 0
    assert chance[returned].mean() > 5 * chance[~returned].mean()
    low, high = (end[:, 0] for end in jury.interval(test))
    assert (high[returned] - low[returned]).mean() > 0.1


@pytest.mark.slow
def test_the_point_of_least_loss_is_that_of_a_general_optimiser(votes: LabelledTagVotes) -> None:
    part = votes.take(slice(0, 80))
    jury = TagJury().fit(part)
    rows = TagRows.tabulate(part, jury._design(part, (0, 1)))
    total, present = rows.counts()
    assert total.sum() == part.truths.size
    assert present.sum() == part.truths.sum()
    ridge, size = rows.ridge(WEAKEST), rows.common.shape[1]

    def loss(theta: Floats) -> float:
        point = theta[:size], theta[size:].reshape(len(TAGS), -1)
        odds, penalty = rows.log_odds(point), ridge[0] @ point[0] ** 2 + (ridge[1] * point[1] ** 2).sum()
        return float(total @ np.logaddexp(0, odds) - present @ odds + penalty / 2)

    point = np.concatenate([part.ravel() for part in rows.minimise(WEAKEST, total, present, rows.zero())])
    best = minimize(loss, point, method="BFGS")
    assert loss(point) <= best.fun + 1e-6
    alone = rows.minimise(VOTES, total, present, rows.zero())
    assert not alone[1].any()
    assert np.count_nonzero(alone[0]) == 3


def test_the_covariance_is_the_inverse_of_the_whole_hessian(votes: LabelledTagVotes) -> None:
    part = votes.take(slice(0, 100)).under([0])
    jury = TagJury().fit(part)
    design = jury._design(part, (0,))
    rows = TagRows.tabulate(part, design)
    member = jury.members[0]
    odds, variance = member.log_odds(design)
    chance = 1 / (1 + np.exp(-odds))
    n, tags, own = design.own.shape
    wide = np.zeros((n, tags, tags, own))
    wide[:, np.arange(tags), np.arange(tags)] = design.own
    whole = np.concatenate([design.common, wide.reshape(n, tags, -1)], axis=2).reshape(n * tags, -1)
    common, by_tag = rows.ridge(WEAKEST)
    hessian = (whole * (chance * (1 - chance)).reshape(-1, 1)).T @ whole
    hessian += np.diag(np.concatenate([common, np.tile(by_tag, tags)]))
    expected = np.einsum("rp,pq,rq->r", whole, np.linalg.inv(hessian), whole).reshape(n, tags)
    np.testing.assert_allclose(variance, expected, rtol=0.02)


@pytest.mark.slow
def test_intervals_hold_what_many_more_pictures_tell(votes: LabelledTagVotes, jury: TagJury) -> None:
    many, test = TagJury().fit(votes.take(slice(600, 2400))), votes.take(slice(2400, None))
    limit = many.probability(test)
    low, high = jury.interval(test)
    assert ((low <= limit) & (limit <= high)).mean() > 0.9
    few_low, few_high = TagJury().fit(votes.take(slice(0, 60))).interval(test)
    assert (few_high - few_low).mean() > 1.5 * (high - low).mean()


def test_a_source_that_is_down_is_a_missing_vote_not_a_vote_against(votes: LabelledTagVotes, jury: TagJury) -> None:
    test = votes.take(slice(600, None))
    down = np.zeros((len(test), 2), bool)
    down[:, 1] = True
    alone = TagJury().fit(votes.take(slice(0, 600)).under([0])).probability(test.under([0]))
    chance = jury.probability(without(test, down))
    against = jury.probability(replace(without(test, down), asked=test.asked))
    assert np.abs(chance - alone).mean() < 0.02
    assert np.abs(against - alone).mean() > 0.05
    assert metrics.ece(chance.ravel(), test.truths.ravel()) < 0.02
    silent = jury.probability(without(test, np.ones((len(test), 2), bool)))
    np.testing.assert_allclose(silent, np.broadcast_to(silent[0], silent.shape))
    np.testing.assert_allclose(silent[0], votes.truths[:600].mean(axis=0), atol=0.02)


def test_pictures_with_missing_answers_teach_what_was_answered(votes: LabelledTagVotes) -> None:
    down = np.random.default_rng(0).random((600, 2)) < 0.3
    jury = TagJury().fit(without(votes.take(slice(0, 600)), down))
    test = votes.take(slice(600, None))
    assert metrics.ece(jury.probability(test).ravel(), test.truths.ravel()) < 0.02
    with pytest.raises(FitError, check=coded("labels-too-few")):
        TagJury().fit(without(votes.take(slice(0, 600)), np.ones((600, 2), bool)))


def test_companions_tell_what_is_seen_together() -> None:
    rng = np.random.default_rng(3)
    votes = simulated(1500, sources=1)
    truths, scores = votes.truths.copy(), votes.scores.astype(np.float64).copy()
    truths[:, 0] = np.where(rng.random(1500) < 0.9, truths[:, 5], ~truths[:, 5])
    scores[:, :, 0] = np.nan  # never returned, but nearly always where tag 5 is
    votes = from_scores(scores, truths)
    jury = TagJury().fit(votes.take(slice(0, 500)))
    assert "companions" in dict(jury.blocks)
    test = votes.take(slice(500, None))
    auroc = metrics.auroc(jury.probability(test)[:, 0], test.truths[:, 0])
    assert auroc is not None
    assert auroc > 0.7


@pytest.mark.parametrize("sent", ["percentage", "logit", "words"])
def test_scores_on_other_scales_tell_the_same(votes: LabelledTagVotes, jury: TagJury, sent: str) -> None:
    scores = votes.scores.astype(np.float64)
    changed = {
        "percentage": scores * 100,
        "logit": np.log(np.clip(scores, 1e-4, 1 - 1e-4) / (1 - np.clip(scores, 1e-4, 1 - 1e-4))),
        "words": np.where(scores > 0.9, 0.95, np.where(scores > 0.7, 0.75, np.where(np.isnan(scores), np.nan, 0.5))),
    }[sent]
    other = from_scores(changed, votes.truths)
    chance = TagJury().fit(other.take(slice(0, 600))).probability(other.take(slice(600, None)))
    test, limit = votes.take(slice(600, None)), 0.05 if sent == "words" else 0.005
    assert brier(chance, test) == pytest.approx(brier(jury.probability(test), test), abs=limit)


def test_answers_without_scores_use_no_scores(votes: LabelledTagVotes) -> None:
    plain = replace(votes, scores=np.full_like(votes.scores, np.nan))
    jury = TagJury().fit(plain.take(slice(0, 300)))
    assert not {"score", "bend", "slope"} & set(dict(jury.blocks))
    assert brier(jury.probability(plain), plain) < 0.7 * brier(
        np.broadcast_to(votes.truths.mean(axis=0), (3000, 6)), plain
    )


def test_views_of_a_classifier_are_pooled_and_help() -> None:
    votes = simulated(1500, sources=5, strength=0.7)
    pooled = replace(votes, classifiers=(0, 0, 0, 0, 0))
    fit, test = slice(0, 500), slice(500, None)
    jury = TagJury().fit(pooled.take(fit))
    assert "views" in dict(jury.blocks)
    assert {member.classifiers for member in jury.members} == {(0,), ()}
    alone = TagJury().fit(votes.under([0]).take(fit)).probability(votes.under([0]).take(test))
    assert brier(jury.probability(pooled.take(test)), votes.take(test)) < 0.8 * brier(alone, votes.take(test))
    fewer = pooled.asked.copy()
    fewer[:, 3:] = False
    some = jury.probability(without(pooled, ~fewer).take(test))
    assert brier(some, votes.take(test)) < brier(alone, votes.take(test))


def test_a_jury_is_plain_json_and_back(votes: LabelledTagVotes, jury: TagJury) -> None:
    adapter = TypeAdapter(TagJury)
    text = json.dumps(adapter.dump_python(jury, mode="json"), allow_nan=False)
    again = adapter.validate_python(json.loads(text))
    assert again == jury
    np.testing.assert_array_equal(again.probability(votes), jury.probability(votes))


def test_votes_on_tags_are_read_from_ranked_lists() -> None:
    lists: tuple[RankedList, ...] = ((("dog", 0.9), ("cat", 0.8), ("sky", None)), ())
    rows = [Row("a", "dog;cat;sky", (None,), lists=lists), Row("b", "", ("sky",), lists=((), (("sky", None),)))]
    votes = TagVotes.from_votes(Votes.collect(rows, ["x@base"]), ["sky", "dog"])
    assert votes.ranks.tolist() == [[[3, 1], [0, 0]], [[0, 0], [1, 0]]]
    assert votes.asked.tolist() == [[True, False], [True, True]]
    assert votes.scores[0, 0, 1] == np.float32(0.9)
    assert np.isnan(votes.scores[1, 1, 0])


def test_other_tags_other_shapes_and_an_unfitted_jury_are_refused(votes: LabelledTagVotes, jury: TagJury) -> None:
    with pytest.raises(DataError):
        jury.probability(votes.under([0]))
    with pytest.raises(FitError):
        TagJury().probability(votes)
    with pytest.raises(FitError):
        TagJury().fit(votes.take(slice(0, 9)))
    with pytest.raises(DataError):
        votes.labelled(np.zeros((3, 2)))
    with pytest.raises(DataError):
        replace(votes, asked=votes.asked[:, :1])
    with pytest.raises(DataError):
        replace(votes, classifiers=(0,))


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10_000), st.integers(1, 3), st.integers(10, 40))
def test_whatever_is_answered_there_are_probabilities_within_their_intervals(
    seed: int, sources: int, pictures: int
) -> None:
    rng = np.random.default_rng(seed)
    scores = np.where(rng.random((pictures, sources, len(TAGS))) < rng.random(), rng.normal(size=6) * 40, np.nan)
    votes = from_scores(scores, rng.random((pictures, len(TAGS))) < rng.random())
    jury = TagJury().fit(votes)
    down = without(votes, rng.random((pictures, sources)) < 0.5)
    for answered in (votes, down):
        low, high = jury.interval(answered)
        chance = jury.probability(answered)
        assert np.isfinite([low, chance, high]).all()
        assert ((low >= 0) & (low <= chance) & (chance <= high) & (high <= 1)).all()


def test_a_single_category_has_neither_companions_nor_places(votes: LabelledTagVotes) -> None:
    ranks = np.minimum(votes.ranks[:, :, 5:], 1).astype(np.int16)
    alone = replace(votes, tags=TAGS[5:], ranks=ranks, scores=votes.scores[:, :, 5:], truths=votes.truths[:, 5:])
    jury = TagJury().fit(alone.take(slice(0, 300)))
    assert not {"companions", "place", "crowd"} & set(dict(jury.blocks))
    test = alone.take(slice(300, None))
    assert metrics.ece(jury.probability(test).ravel(), test.truths.ravel()) < 0.04


def test_a_scale_without_scores_is_a_rank() -> None:
    scale = TagScale.learn(np.ones((3, 2), np.int16), np.full((3, 2), np.nan, np.float32))
    assert scale == TagScale("rank")
    assert scale.shares(np.array([0, 1], np.int16), np.full(2, np.nan, np.float32)).tolist() == [0.0, 1.0]


def test_a_correction_by_a_few_later_pictures_mends_scores_that_have_changed(
    votes: LabelledTagVotes, jury: TagJury
) -> None:
    later, rng = votes.take(slice(600, None)), np.random.default_rng(2)
    lost = rng.random(later.ranks.shape) < 0.5
    scores = np.where(lost, np.nan, later.scores).astype(np.float32)
    changed = replace(later, ranks=np.where(lost, 0, later.ranks).astype(np.int16), scores=scores)
    rest, corrected = changed.take(slice(50, None)), jury.corrected(changed.take(slice(0, 50)))
    assert brier(corrected.probability(rest), rest) < 0.97 * brier(jury.probability(rest), rest)
    low, high = corrected.interval(rest)
    assert (low <= corrected.probability(rest)).all()
    assert (corrected.probability(rest) <= high).all()
    assert TypeAdapter(TagJury).validate_json(TypeAdapter(TagJury).dump_json(corrected)) == corrected
