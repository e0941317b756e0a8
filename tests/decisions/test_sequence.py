"""Sequences of sources: what they say of themselves, how they are chosen, and that no picture judges itself."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, strategies as st
from support.errors import coded

from looktwice.calibration import crossfit
from looktwice.calibration.calibrators import dump, restore
from looktwice.calibration.evidence import MISSING, Evidence
from looktwice.calibration.jury import Jury
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.decisions.sequence import (
    NEVER,
    Point,
    Sequence,
    Source,
    candidates,
    choose,
    find,
    frontier,
)
from looktwice.errors import DataError, FitError

CHEAP, DEAR = Source("cheap", price=1.0), Source("dear", price=6.0)


def answers(*columns: object, truths: object) -> LabelledVotes:
    first, *others = (np.asarray(column) for column in columns)
    table = np.column_stack([np.empty((len(first), 0), int), *others])
    return Votes.from_labels(first, table, np.asarray(truths), vocabulary=range(6))


def cascade(pictures: int, seed: int, cheap: float = 0.98) -> LabelledVotes:
    """A dear source right 95 % of the time; a cheap one as good on classes 0 and 1, and no better than chance else."""
    rng = np.random.default_rng(seed)
    truths = rng.integers(6, size=pictures)
    other = rng.integers(2, 6, size=pictures)
    first = np.where((truths < 2) & (rng.random(pictures) < cheap), truths, other)
    second = np.where(rng.random(pictures) < 0.95, truths, rng.integers(6, size=pictures))
    return answers(first, second, truths=truths)


def points(*pairs: tuple[float, float]) -> list[Point]:
    return [Point(Sequence((CHEAP,)), np.full(4, loss), np.full(4, price), 1.0) for price, loss in pairs]


@pytest.mark.parametrize("text", ["gpt@base", "cheap@mirror", "gpt@wording:2"])
def test_a_source_is_its_text(text: str) -> None:
    assert str(Source.parse(text, "first")) == text


def test_without_a_classifier_a_source_is_a_view_of_the_first() -> None:
    assert Source.parse("mirror", "cheap", 2.0) == Source("cheap", "mirror", 2.0)


@pytest.mark.parametrize(("name", "price"), [("a@b", 1.0), ("a", -1.0), ("a", float("nan"))])
def test_odd_sources_are_refused(name: str, price: float) -> None:
    with pytest.raises(DataError):
        Source(name, price=price)


@given(st.lists(st.floats(0, 1), max_size=4), st.integers(0, 1000))
def test_a_sequence_stops_at_the_first_confidence_that_is_enough(enough: list[float], seed: int) -> None:
    sources = tuple(Source(f"c{place}", price=1.0 + place) for place in range(len(enough) + 1))
    sequence = Sequence(sources, tuple(enough))
    confidence = np.random.default_rng(seed).random((20, len(sources)))
    for row, asked in zip(confidence, sequence.asked(confidence), strict=True):
        assert all(c < level for c, level in zip(row[: asked - 1], enough, strict=False))
        assert asked == len(sources) or row[asked - 1] >= enough[asked - 1]


def test_a_point_is_on_the_frontier_if_nothing_cheaper_is_about_as_good() -> None:
    kept = frontier(points((1, 0.5), (2, 0.499), (3, 0.3), (4, 0.4), (5, 0.29)))
    assert [point.price for point in kept] == [1, 3, 5]


def test_the_cheapest_of_about_the_best_within_the_limits_is_chosen() -> None:
    frontier = points((1, 0.5), (3, 0.3), (4, 0.3), (9, 0.1))
    assert choose(frontier).price == 9
    assert choose(frontier, max_price=5).price == 3
    assert choose(frontier, max_price=0.5).price == 1
    assert choose(frontier, max_queries=0.5).price == 1


def test_a_limit_that_is_just_the_price_of_a_source_allows_it() -> None:
    many = Point(Sequence((Source("a", price=0.65),)), np.full(400, 0.1), np.full(400, 0.65), 1.0)
    assert many.price > 0.65
    few = Point(Sequence((CHEAP,)), np.full(400, 0.5), np.full(400, 0.1), 1.0)
    assert choose([few, many], max_price=0.65) is many


@pytest.mark.slow
def test_a_cheap_source_is_asked_first_and_the_dear_one_where_it_doubts() -> None:
    train, test = cascade(400, seed=1), cascade(3000, seed=2)
    fitted = find(candidates(train, [CHEAP, DEAR]), partial(choose, max_price=5.5))
    assert [source.classifier for source in fitted.sequence.sources] == ["cheap", "dear"]
    asked, votes = fitted.sequence.follow(fitted.calibrator, test.of_sources(fitted.places))
    easy = test.base < 2
    assert asked[easy].mean() < 1.1
    assert asked[~easy].mean() > 1.9
    right = fitted.calibrator.predict(votes) == test.truths
    assert right.mean() >= (test.views[:, 0] == test.truths).mean()
    assert fitted.outcome.correct.mean() == pytest.approx(right.mean(), abs=0.03)
    assert fitted.outcome.queries == pytest.approx(asked.mean(), rel=0.1)


@pytest.mark.slow
def test_it_may_say_to_ask_one_source_alone() -> None:
    useless = cascade(400, seed=3, cheap=0.0)
    fitted = find(candidates(useless, [CHEAP, DEAR]), partial(choose, max_price=6.0))
    assert fitted.sequence == Sequence((DEAR,))
    assert fitted.places == (1,)
    assert (fitted.calibrator.predict(useless.of_sources([1])) == useless.views[:, 0]).all()


@pytest.mark.slow
def test_a_limit_holds_on_held_out_pictures_and_more_money_loses_no_more() -> None:
    votes = cascade(300, seed=4)
    frontier = candidates(votes, [CHEAP, DEAR]).search()
    chosen = [choose(frontier, max_price=limit) for limit in (1.0, 3.0, 5.0, 7.0)]
    assert all(point.price <= limit for point, limit in zip(chosen, (1.0, 3.0, 5.0, 7.0), strict=True))
    assert all(after.loss <= 1.01 * before.loss for before, after in pairwise(chosen))
    low, high = chosen[1].interval
    assert low < chosen[1].loss < high


@pytest.mark.slow
def test_no_label_of_a_fold_has_a_part_in_what_the_fold_is_judged_by() -> None:
    """Neither juries, order nor stopping: with all truths of a fold changed, its pictures have the same verdicts."""
    votes = cascade(120, seed=5)
    fold = candidates(votes, [CHEAP, DEAR]).fold
    part = fold == 2
    changed = np.where(part, (votes.truths + 1) % 6, votes.truths)
    other = replace(votes, truths=changed.astype(np.int32), words=tuple(votes.vocabulary[c] for c in changed))
    before, after = (find(candidates(each, [CHEAP, DEAR])) for each in (votes, other))
    assert (before.outcome.confidence[part] == after.outcome.confidence[part]).all()
    assert (before.outcome.label[part] == after.outcome.label[part]).all()
    assert (before.outcome.confidence[~part] != after.outcome.confidence[~part]).any()


@pytest.mark.slow
def test_where_the_first_source_refuses_the_next_is_asked_and_decides() -> None:
    votes = cascade(400, seed=6)
    refused = np.random.default_rng(0).random(400) < 0.2
    votes = replace(votes, base=np.where(refused, MISSING, votes.base))
    fitted = find(candidates(votes, [CHEAP, DEAR]))
    assert fitted.places == (0, 1)
    asked, stopped = fitted.sequence.follow(fitted.calibrator, votes)
    assert (asked[refused] == 2).all()
    assert (fitted.calibrator.predict(stopped)[refused] == votes.views[refused, 0]).all()
    assert fitted.outcome.correct[refused].mean() > 0.9


@pytest.mark.slow
def test_a_source_that_never_answers_is_not_asked() -> None:
    votes = cascade(200, seed=7)
    mute = replace(votes, base=np.full_like(votes.base, MISSING))
    assert find(candidates(mute, [CHEAP, DEAR])).sequence == Sequence((DEAR,))


@pytest.mark.slow
def test_a_score_tells_when_the_first_source_suffices() -> None:
    rng = np.random.default_rng(8)
    truths, score = rng.integers(5, size=600), rng.random(600)
    first = np.where(rng.random(600) < score, truths, (truths + 1 + rng.integers(4, size=600)) % 5)
    second = np.where(rng.random(600) < 0.9, truths, (truths + 1 + rng.integers(4, size=600)) % 5)
    votes = answers(first, second, truths=truths)
    lists = np.column_stack([votes.base, np.full(600, MISSING)]).astype(np.int32)[:, :, None]
    scores = np.column_stack([score, np.full(600, np.nan)]).astype(np.float32)[:, :, None]
    votes = replace(votes, evidence=Evidence(lists, scores))
    fitted = find(candidates(votes, [CHEAP, DEAR]), partial(choose, max_price=5.0))
    assert fitted.places == (0, 1)
    asked, _ = fitted.sequence.follow(fitted.calibrator, votes)
    assert score[asked == 1].min() > 0.5
    assert score[asked == 2].max() < score[asked == 1].max()


@pytest.mark.slow
def test_everything_asked_is_among_the_points() -> None:
    votes = cascade(100, seed=9)
    sequences = [point.sequence for point in find(candidates(votes, [CHEAP, DEAR])).points]
    assert Sequence((CHEAP, DEAR), (NEVER,)) in sequences
    assert {Sequence((CHEAP,)), Sequence((DEAR,))} <= set(sequences)


def test_votes_that_do_not_suit_are_refused() -> None:
    votes = cascade(50, seed=10)
    for sources in ([CHEAP], [CHEAP, DEAR, Source("third")]):
        with pytest.raises(DataError, check=coded("data-invalid")):
            find(candidates(votes, sources))
    with pytest.raises(FitError, check=coded("labels-too-few")):
        candidates(votes.take(slice(5)), [CHEAP, DEAR])


@pytest.mark.slow
def test_the_scores_of_a_second_classifier_count_where_the_first_has_none() -> None:
    rng = np.random.default_rng(3)
    truths = rng.integers(0, 4, 400)
    weak, strong = (np.where(rng.random(400) < p, truths, (truths + 1) % 4) for p in (0.6, 0.8))
    score = np.where(strong == truths, 0.7 + 0.3 * rng.random(400), 0.8 * rng.random(400))
    words = np.array(["a", "b", "c", "d"])
    lists = [[(), ((words[code], float(s)),)] for code, s in zip(strong, score, strict=True)]
    votes = Votes.from_labels(words[weak], words[strong][:, None], words[truths], lists=lists)
    jury = Jury().fit(votes)
    assert jury.scored
    assert jury.scored.first == 1
    assert jury.judged_by_scores(votes).all()
    held = crossfit.cross_fit(Jury(), votes), crossfit.cross_fit(Jury(), votes.label_only())
    assert held[0].brier.mean() < 0.9 * held[1].brier.mean()
    unheard = replace(votes, views=np.full_like(votes.views, MISSING), evidence=None)
    assert jury.lacks_scores(unheard).all()
    assert restore(json.loads(json.dumps(dump(jury)))) == jury
