"""Guarantees are kept as often as stated on simulated worlds whose truth is known; the rest is checked by hand."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from pydantic import TypeAdapter
from scipy.stats import binom
from support.errors import coded

from looktwice.calibration import risk
from looktwice.calibration.distribution import AdaptiveSets, Conformal, Distribution, SetKind, draws, truth_rank
from looktwice.calibration.evidence import MISSING, Bools, Codes, Floats
from looktwice.calibration.risk import Answers, Basis, Claim
from looktwice.calibration.shares import base_tally
from looktwice.calibration.votes import OUTSIDE, Votes
from looktwice.decisions import monitoring, planning, sequence
from looktwice.decisions.evaluation import Guarantees, bin_coverage
from looktwice.decisions.monitoring import Drift
from looktwice.decisions.policy import ClaimTest, DecisionOptions
from looktwice.decisions.results import HeldOut
from looktwice.errors import DataError


def slack(level: float, trials: int) -> float:
    """How far a share may exceed its level by the luck of so many trials."""
    return 3 * math.sqrt(level * (1 - level) / trials)


class World:
    """Confidences on a few values, each with its true chance of being right."""

    def __init__(self, confidence: list[float], mass: list[float], right: list[float]) -> None:
        self.confidence, self.mass, self.right = map(np.array, (confidence, mass, right))

    def draw(self, pictures: int, rng: np.random.Generator) -> tuple[Floats, np.ndarray]:
        kind = rng.choice(len(self.mass), size=pictures, p=self.mass)
        return self.confidence[kind], rng.random(pictures) < self.right[kind]

    def error_above(self, level: float) -> float:
        taken = self.mass * (self.confidence >= level)
        return float((taken * (1 - self.right)).sum() / taken.sum())


CALIBRATED = World([0.995, 0.97, 0.9, 0.6], [0.4, 0.3, 0.2, 0.1], [0.995, 0.97, 0.9, 0.6])
OVERCONFIDENT = World([0.999, 0.99, 0.98, 0.95], [0.25, 0.25, 0.25, 0.25], [0.978, 0.978, 0.97, 0.9])
UPSIDE_DOWN = World([0.99, 0.97, 0.95, 0.9], [0.1, 0.2, 0.3, 0.4], [0.9, 0.95, 0.99, 0.999])
JUST_TOO_BAD = World([0.999], [1.0], [0.9799])
NESTED = World([0.995, 0.98, 0.97, 0.95, 0.92, 0.8], [0.04, 0.06, 0.1, 0.2, 0.3, 0.3], [0.9799] * 6)


@pytest.mark.parametrize("world", [CALIBRATED, OVERCONFIDENT, UPSIDE_DOWN, JUST_TOO_BAD, NESTED])
def test_thresholds_break_their_guarantee_no_more_often_than_stated(world: World) -> None:
    rng = np.random.default_rng(0)
    thresholds = [risk.threshold(*world.draw(2000, rng), max_error=0.02, level=0.9) for _ in range(600)]
    broken = np.mean([level is not None and world.error_above(level) > 0.02 for level in thresholds])
    assert broken <= 0.1 + slack(0.1, 600)


def test_the_risk_that_was_granted_is_used_and_not_hoarded() -> None:
    rng = np.random.default_rng(1)
    thresholds = [risk.threshold(*NESTED.draw(2000, rng), max_error=0.02, level=0.9) for _ in range(600)]
    assert np.mean([level is not None for level in thresholds]) > 0.01


def test_a_threshold_takes_what_can_be_promised_and_little_less() -> None:
    level = risk.threshold(*CALIBRATED.draw(5000, np.random.default_rng(2)), max_error=0.03)
    assert level is not None
    assert 0.9 < level <= 0.97


def test_no_threshold_can_be_promised_from_few_or_wrong_answers() -> None:
    sure = np.ones(20)
    assert risk.threshold(sure, np.ones(20, bool), 0.02) is None
    assert risk.threshold(np.ones(500), np.zeros(500, bool), 0.02) is None
    assert risk.threshold(np.zeros(0), np.zeros(0, bool), 0.02) is None


def test_all_answers_are_accepted_when_all_are_right() -> None:
    confidence = np.random.default_rng(0).random(2000)
    assert risk.threshold(confidence, np.ones(2000, bool), 0.02) == 0.0


@given(st.integers(0, 10**6), st.sampled_from([0.01, 0.05, 0.2]))
@settings(max_examples=30, deadline=None)
def test_a_laxer_wish_never_gets_a_smaller_guarantee(seed: int, max_error: float) -> None:
    confidence, correct = CALIBRATED.draw(800, np.random.default_rng(seed))
    strict = risk.threshold(confidence, correct, max_error, level=0.99)
    lax = risk.threshold(confidence, correct, max_error, level=0.9)
    assert strict is None or (lax is not None and lax <= strict)


def test_the_binomial_tail_is_the_sum_of_its_terms() -> None:
    for n, k in itertools.product([1, 5, 30], [0, 1, 4]):
        terms = sum(math.comb(n, i) * 0.1**i * 0.9 ** (n - i) for i in range(min(k, n) + 1))
        assert risk._binomial(np.array(k), np.array(n), 0.1) == pytest.approx(terms)


def test_the_most_errors_that_still_pass_are_found_exactly() -> None:
    asked = np.array([10.0, 300.0, 1000.0])
    most = risk._critical(asked, 0.02, 0.05)
    assert most.tolist() == [-1, 1, 12]
    assert (risk._binomial(np.maximum(most, 0), asked, 0.02)[1:] <= 0.05).all()
    assert (risk._binomial(most + 1, asked, 0.02) > 0.05).all()


def test_a_plan_without_errors_is_the_exact_test_for_one_share_of_the_risk() -> None:
    share = 0.05 / (len(risk.STARTS) + 1)
    exact = next(n for n in itertools.count(1) if binom.cdf(0, n, 0.02) <= share)
    assert exact <= risk.labels_needed(0.02) <= 1.02 * exact
    assert risk.labels_needed(0.02, coverage=0.5) == pytest.approx(2 * risk.labels_needed(0.02), abs=2)


@given(seed=st.integers(0, 1000), groups=st.integers(1, 6))
def test_a_threshold_counts_all_wrong_answers_that_share_a_confidence_in_use(seed: int, groups: int) -> None:
    rng = np.random.default_rng(seed)
    final = rng.random(groups)[rng.integers(0, groups, 60)]
    held_out, correct = np.clip(final + rng.normal(0, 0.05, 60), 0, 1), rng.random(60) < 0.7
    counted = risk.counted_confidence(held_out, final, correct)
    shared = np.bincount(np.unique(final, return_inverse=True)[1])[np.unique(final, return_inverse=True)[1]] > 1
    for threshold in held_out:
        in_use = final >= threshold
        assert (counted >= threshold)[in_use & shared & ~correct].all()


def test_a_plan_is_enough_as_often_as_it_says() -> None:
    needed = risk.labels_needed(0.05, expected_error=0.02, power=0.8)
    rng = np.random.default_rng(3)
    made = [risk.threshold(np.full(needed, 0.96), rng.random(needed) > 0.02, 0.05) for _ in range(300)]
    assert np.mean([level is not None for level in made]) >= 0.8 - slack(0.2, 300)


@pytest.mark.parametrize("expected", [0.02, 0.0199999])
def test_a_plan_for_the_impossible_says_so(expected: float) -> None:
    with pytest.raises(DataError, check=coded("guarantee-impossible")):
        risk.labels_needed(0.02, expected_error=expected)


def test_shares_out_of_range_are_named() -> None:
    with pytest.raises(DataError, check=coded("option-invalid")):
        risk.threshold(np.ones(3), np.ones(3, bool), 2)
    with pytest.raises(DataError, check=coded("option-invalid")):
        risk.labels_needed(0.02, coverage=0)


def calibrators(pictures: int, rng: np.random.Generator) -> tuple[Distribution, Codes]:
    """Three named labels of ten, and truths that follow other odds than the ones believed."""
    scores = rng.normal(size=(pictures, 4)) * 2
    claimed = np.exp(scores * 1.5) / np.exp(scores * 1.5).sum(axis=1, keepdims=True)
    real = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    labels = np.tile(np.array([4, 7, 2], np.int32), (pictures, 1))
    column = (rng.random(pictures)[:, None] > real.cumsum(axis=1)).sum(axis=1)
    truths = np.array([4, 7, 2, OUTSIDE], np.int32)[np.minimum(column, 3)]
    return Distribution(labels, claimed[:, :3], 10), truths


@pytest.mark.parametrize("coverage", [0.6, 0.9, 0.97])
def test_sets_hold_the_truth_as_often_as_stated_even_if_the_calibrator_is_wrong(coverage: float) -> None:
    rng = np.random.default_rng(4)
    held = []
    for _ in range(250):
        rule = Conformal.learn(truth_rank(*calibrators(100, rng)).own, coverage)
        distribution, truths = calibrators(50, rng)
        held.append(rule.sets(distribution).hold(distribution, truths).mean())
    assert np.mean(held) >= coverage - slack(coverage, 250 * 50)
    assert coverage < 0.9 or np.mean(held) <= coverage + 1 / 101 + slack(coverage, 250)


def test_a_set_names_the_likely_labels_the_likeliest_always_and_something_else_if_likely() -> None:
    labels = np.array([[1, 2, MISSING], [3, MISSING, 5]], np.int32)
    distribution = Distribution(labels, np.array([[0.5, 0.3, 0.0], [0.15, 0.0, 0.05]]), 10)
    sets = Conformal(0.25).sets(distribution)
    assert sets.labels.tolist() == [[1, 2, MISSING], [3, MISSING, MISSING]]
    assert sets.other.tolist() == [False, True]
    assert sets.sizes().tolist() == [2, 2]
    assert sets.hold(distribution, np.array([OUTSIDE, 9], np.int32)).tolist() == [False, True]
    assert sets.hold(distribution, np.array([2, 5], np.int32)).tolist() == [True, False]


def test_too_few_pictures_for_the_coverage_put_everything_in_the_set() -> None:
    distribution, truths = calibrators(5, np.random.default_rng(5))
    rule = Conformal.learn(truth_rank(distribution, truths).own, 0.95)
    assert rule.least == 0
    assert (rule.sets(distribution).sizes() == 4).all()


KINDS: tuple[SetKind, ...] = ("aps", "raps", "aps-deterministic")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("coverage", [0.6, 0.9, 0.97])
def test_adaptive_sets_hold_the_truth_at_least_as_often_as_stated(kind: SetKind, coverage: float) -> None:
    rng, held = np.random.default_rng(6), []
    for _ in range(250):
        rule = AdaptiveSets.learn(kind, truth_rank(*calibrators(100, rng)), coverage)
        distribution, truths = calibrators(50, rng)
        held.append(rule.sets(distribution, rng.random(50)).hold(distribution, truths).mean())
    assert np.mean(held) >= coverage - slack(coverage, 250 * 50)
    exact = kind == "aps" and coverage == 0.97  # the most probable label is always in, which holds more
    assert not exact or np.mean(held) <= coverage + 1 / 101 + slack(coverage, 250)


@pytest.mark.parametrize("kind", [*KINDS, "lac"])
def test_the_truth_is_in_a_set_exactly_if_its_own_score_is_low_enough(kind: SetKind) -> None:
    """What is learned from and what is decided by is the same number."""
    distribution, truths = calibrators(300, np.random.default_rng(7))
    place, even = truth_rank(distribution, truths), np.random.default_rng(0).random(300)
    held_out = HeldOut(
        confidence=(0.5,) * 300,
        correct=(True,) * 300,
        true_probability=tuple(place.own.tolist()),
        through=tuple(np.minimum(place.through, 1.0).tolist()),
        rank=tuple(place.rank.tolist()),
    )
    hold = held_out.conformal(0.8, kind).sets(distribution, even).hold(distribution, truths)
    expected = math.ceil(301 * 0.8)
    top = place.rank == 1
    assert expected <= hold.sum() <= expected + top.sum()
    assert kind == "aps-deterministic" or hold[~top].mean() < 0.8  # drawing nothing lets in "something else" everywhere


def test_a_doubtful_picture_has_more_labels_than_a_clear_one_and_something_else_comes_last() -> None:
    labels = np.array([[1, 2, 3], [1, 2, 3], [1, 2, 3]], np.int32)
    named = np.array([[0.9, 0.05, 0.03], [0.39, 0.3, 0.2], [0.3, 0.01, 0.19]])
    distribution, truths = Distribution(labels, named, 50), np.array([1, OUTSIDE, 3], np.int32)
    sets = AdaptiveSets(0.9, randomised=False).sets(distribution, np.zeros(3))
    assert sets.labels.tolist() == [[1, MISSING, MISSING], [1, 2, 3], [1, 2, 3]]
    assert sets.other.tolist() == [False, False, False]
    assert sets.hold(distribution, truths).tolist() == [True, False, True]
    whole = AdaptiveSets(1.0, randomised=False).sets(distribution, np.zeros(3))
    assert (whole.sizes().tolist(), whole.true_sizes().tolist()) == ([4, 4, 4], [50, 50, 50])
    assert whole.hold(distribution, truths).all()
    assert whole.list_truth(truths).tolist() == [True, False, True]
    drawn = [AdaptiveSets(0.8).sets(distribution, np.full(3, u)).sizes()[1] for u in (0.0, 0.4, 0.6, 1.0)]
    assert drawn == [3, 3, 2, 2]
    fewer = AdaptiveSets(0.9, penalty=0.05, randomised=False).sets(distribution, np.zeros(3))
    assert fewer.sizes()[1] == 2


def test_the_draw_of_a_picture_is_its_own_and_even() -> None:
    names = tuple(map(str, range(2000)))
    codes = np.zeros(2000, np.int32)
    votes = Votes(
        names, (), ("a", "b"), codes, codes[:, None][:, :0], 2, digests=tuple(f"d{i % 1000}" for i in range(2000))
    )
    even = draws(votes)
    assert (even[:1000] == even[1000:]).all()
    assert abs(even[:1000].mean() - 0.5) < 4 * math.sqrt(1 / 12 / 1000)
    assert (draws(votes.take(np.array([7, 3]))) == even[[7, 3]]).all()
    assert len(set(draws(replace(votes, digests=())))) == 2000


def test_coverage_is_told_by_agreement() -> None:
    votes = Votes(("a", "b", "c"), ("x", "y"), ("0", "1"), np.array([0, 1, 1]), np.array([[0, 0], [1, 0], [0, 1]]), 2)
    first, second = bin_coverage(base_tally(votes), np.array([True, False, True]))
    assert (first.agree, first.asked, first.covered, first.pictures) == (1, 2, 0.5, 2)
    assert (second.agree, second.asked, second.pictures, second.covered) == (2, 2, 1, 1.0)
    told = Guarantees(covered=0.9, listed=0.8, options=1.5, classes=12.0, bins=(first, second)).lines()
    assert [re.findall(r"[\d.]+\b", line) for line in told] == [["90.0", "80.0", "1.50", "12.0"]]
    many = Guarantees(
        0.5, 0.0, 0.9, 0.8, 1.5, 12.0, (replace(first, pictures=100), replace(second, pictures=50))
    ).lines()
    assert all(str(share) in many[-1] for share in (replace(first, pictures=100), replace(second, pictures=50)))


def test_something_else_is_no_option_when_every_class_was_named() -> None:
    both = Distribution(np.array([[0, 1]], np.int32), np.array([[0.9, 0.1]]), 2)
    assert not Conformal(0.0).sets(both).other.any()


def test_movement_is_the_squared_distance_over_all_classes() -> None:
    before = Distribution(np.array([[1]], np.int32), np.array([[0.8]]), 5)
    after = Distribution(np.array([[2, MISSING, 3]], np.int32), np.array([[0.5, 0.0, 0.2]]), 5)
    by_hand = np.sum((before.dense(5) - after.dense(5)) ** 2)
    assert sequence.movement([before, after])[0].tolist() == pytest.approx([by_hand, 0.0])


REFERENCE = (5, 10, 15, 30, 140)
SHARES = np.array(REFERENCE) / 200


def stream(shares: Floats, pictures: int, rng: np.random.Generator) -> np.ndarray:
    return rng.choice(len(shares), size=pictures, p=shares)


@pytest.mark.slow
def test_drift_seldom_alarms_when_nothing_changed_however_few_pictures_made_the_profile() -> None:
    rng = np.random.default_rng(6)
    alarms = []
    for seed in range(300):
        reference = np.bincount(stream(SHARES, 60, rng), minlength=5)
        watch = Drift(tuple(reference.tolist()), alpha=0.1, seed=seed)
        alarms.append(watch.update(stream(SHARES, 1500, rng)).alarm)
    assert np.mean(alarms) <= 0.1 + slack(0.1, 300)


@pytest.mark.parametrize("shares", [[0.05, 0.1, 0.15, 0.2, 0.5], [0.0, 0.0, 0.05, 0.05, 0.9]])
def test_drift_notices_that_views_agree_less_or_more(shares: list[float]) -> None:
    rng = np.random.default_rng(7)
    watches = [Drift(REFERENCE, seed=seed).update(stream(np.array(shares), 600, rng)) for seed in range(40)]
    assert np.mean([watch.alarm for watch in watches]) > 0.9


def test_an_alarm_stays_and_pictures_are_counted() -> None:
    watch = Drift(REFERENCE).update([0] * 60)
    assert watch.alarm
    assert watch.seen == 60
    assert watch.update(stream(SHARES, 300, np.random.default_rng(8))).alarm
    assert Drift(REFERENCE).update([]) == Drift(REFERENCE)


def test_a_wager_on_even_ranks_wins_nothing_on_average() -> None:
    edges = np.array([0.0, *monitoring.CUTS, 1.0])
    width, middle = np.diff(edges), (edges[1:] + edges[:-1]) / 2
    for seen in (1, 2, 3):
        won = 0.0
        for ranks in itertools.product(range(len(width)), repeat=seen):
            below = (middle[list(ranks)][:, None] < edges[1:-1]).sum(axis=0)
            won += width[list(ranks)].prod() * np.exp(monitoring._won(below[None], np.array([[seen]]))).mean()
        assert won == pytest.approx(1.0)


def test_what_drift_cannot_judge_is_a_clear_error() -> None:
    with pytest.raises(DataError, check=coded("data-invalid")):
        Drift(REFERENCE).update([2, 5])
    with pytest.raises(DataError, check=coded("data-invalid")):
        Drift((0, 0))


@pytest.mark.parametrize("value", [Drift(REFERENCE).update([1, 2, 4]), Conformal(0.25)])
def test_what_was_learned_survives_json(value: Drift | Conformal) -> None:
    again = TypeAdapter(type(value)).validate_python(json.loads(json.dumps(asdict(value))))
    assert again == value


def held_out(confidence: Sequence[float], correct: Sequence[bool]) -> HeldOut:
    return HeldOut(confidence=tuple(confidence), correct=tuple(correct))


def test_a_plan_says_why_fewer_pictures_may_need_more_labels_and_what_is_in_reach() -> None:
    rng = np.random.default_rng(0)
    confidence = np.where(rng.random(1000) < 0.7, 0.95, 0.4)
    confidence = np.where(rng.random(1000) < 0.4, 0.99, confidence)
    answers = held_out(confidence.tolist(), (rng.random(1000) < np.where(confidence > 0.9, 0.98, 0.4)).tolist())
    needs = planning.needs(Claim(0.05), alone(0.05, answers))
    surest, more = needs[:2]
    assert surest.accepted < more.accepted
    assert surest.labels > more.labels
    why, reach = planning.remarks(needs, answers.answers())[0], planning.remarks(needs, answers.answers())[-1]
    assert all(f"{100 * need.accepted:.0f} %" in why for need in (surest, more))
    least = planning.least_error(answers.answers())
    assert least is not None
    strict = planning.selection_level(0.95)
    assert answers.threshold(least[0], strict) is not None
    assert answers.threshold(planning.LADDER[planning.LADDER.index(least[0]) - 1], strict) is None
    assert f"{least[0]:g}, with {100 * least[1]:.0f} %" in reach


def alone(error: float, answers: HeldOut) -> ClaimTest:
    """One claim, and what it is tested on."""
    return ClaimTest([Claim(error)], answers.answers(), 0.95)


def test_a_plan_for_an_error_out_of_reach_names_the_least_one_that_is() -> None:
    answers = held_out([0.9] * 500, [i % 10 > 0 for i in range(500)])
    assert planning.needs(Claim(0.01), alone(0.01, answers)) == []
    assert planning.missing_labels([alone(0.01, answers)]) is None
    assert re.findall(r"\d[\d.]*\b", planning.remarks([], answers.answers())[-1])[-2:] == ["0.2", "100"]
    few = held_out([0.9] * 10, [True] * 10)
    assert planning.least_error(few.answers()) is None
    assert len(planning.remarks([], held_out([0.9] * 2, [False] * 2).answers())) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"max_error": 5},
        {"level": -0.1},
        {"coverage": 95},
        {"false_alarms": float("nan")},
        {"unfamiliar": "shout"},
        {"sets": "small"},
    ],
)
def test_options_that_no_decision_can_be_made_by_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(DataError, check=coded("option-invalid")):
        DecisionOptions(**options)


def test_a_need_that_nobody_will_label_is_not_told_to_the_last_picture() -> None:
    few, many = planning.Need(1506, 0.75, 0.0306, 1506), planning.Need(41_081_564, 0.9, 0.0499, 41_081_564)
    assert few.line(Claim(0.05)).startswith("    1,506 ")
    assert many.line(Claim(0.05)).startswith("> million ")


# Claims by class, on misses, and estimates


def moderated(pictures: int, rng: np.random.Generator) -> Answers:
    """Answers of a classifier that calls a fifth of the unsafe pictures safe, its confidence being its accuracy."""
    unsafe, confidence = rng.random(pictures) < 0.3, rng.beta(4, 0.5, pictures)
    right = rng.random(pictures) < confidence
    truth = np.where(unsafe, "unsafe", "safe")
    return Answers(confidence, np.where(right == unsafe, "unsafe", "safe"), truth)


@pytest.mark.slow
@pytest.mark.parametrize("basis", ["guarantee", "estimate"])
@pytest.mark.parametrize(
    ("max_error", "max_miss"),
    [({"*": 0.05, "unsafe": 0.03}, None), (None, {"unsafe": 0.05}), ({"*": 0.05, "unsafe": 0.05}, {"unsafe": 0.05})],
)
def test_claims_by_class_hold_together(
    max_error: dict[str, float] | None, max_miss: dict[str, float] | None, basis: Basis
) -> None:
    rng, claims = np.random.default_rng(0), risk.claims(max_error, max_miss)
    population = moderated(200_000, rng)
    parts = [(c, risk.concerned(c, claims, population), risk.broken(c, population)) for c in claims]
    unsafe = population.predicted == "unsafe"
    broken, shares, seen = 0, [], []
    for _ in range(200):
        thresholds = risk.thresholds(claims, moderated(1500, rng), 0.9, basis)
        accepted = population.confidence >= np.where(
            unsafe, thresholds.for_label("unsafe"), thresholds.for_label("safe")
        )
        rates = []
        for claim, about, against in parts:
            rests = about if claim.kind == "miss" else about & accepted
            rates.append((about & accepted & against).sum() / max(rests.sum(), 1) / claim.bound)
        broken += max(rates) > 1
        shares.append(accepted.mean())
        seen.append(rates)
    assert np.mean(shares) > 0.3
    if basis == "guarantee":
        assert broken <= binom.ppf(0.999, 200, 0.1)
    else:
        assert np.mean(seen, axis=0) == pytest.approx(1, abs=0.15) or (max_error and max_miss)


def test_a_stricter_miss_keeps_to_thresholds_that_were_tested() -> None:
    answers = moderated(3000, np.random.default_rng(1))
    claims = risk.claims({"*": 0.1}, {"unsafe": 0.02})
    thresholds, level = risk.thresholds(claims, answers, 0.95), risk.level_of_each(0.95, 2)
    alone = risk.threshold(answers.confidence, answers.correct, 0.1, level)
    missed = answers.confidence[(answers.truth == "unsafe") & (answers.predicted != "unsafe")]
    least = risk.miss_threshold(missed, int((answers.truth == "unsafe").sum()), 0.02, level)
    assert alone is not None
    assert least is not None
    assert thresholds.for_label("unsafe") == alone < least <= thresholds.for_label("safe")
    assert thresholds.for_label("safe") == risk.threshold(answers.confidence, answers.correct, 0.1, level, least)


def test_what_has_no_bound_is_never_accepted_beside_what_has_one() -> None:
    thresholds = risk.thresholds(risk.claims({"unsafe": 0.2}), moderated(2000, np.random.default_rng(2)), 0.9)
    assert thresholds.for_label("unsafe") < risk.NEVER == thresholds.for_label("safe")


@pytest.mark.slow
def test_as_many_labels_as_are_missing_make_a_claim_four_times_out_of_five() -> None:
    rng = np.random.default_rng(3)
    for claims in (risk.claims(0.04), risk.claims(None, {"unsafe": 0.02})):
        made = []
        for _ in range(8):
            missing = planning.missing_labels([ClaimTest(claims, moderated(400, rng), 0.95)])
            assert missing is not None
            later = [risk.thresholds(claims, moderated(400 + missing, rng), 0.95) for _ in range(10)]
            made.append(np.mean([max(thresholds.by_label.values()) < risk.NEVER for thresholds in later]))
        assert np.mean(made) > 0.7
        assert planning.missing_labels([ClaimTest(claims, moderated(20_000, rng), 0.95)]) == 0


@pytest.mark.slow
def test_an_estimate_is_right_on_average_and_its_interval_holds_the_error() -> None:
    rng = np.random.default_rng(4)

    def draw(pictures: int) -> tuple[Floats, Bools]:
        confidence = rng.beta(5, 1, pictures)
        return confidence, rng.random(pictures) < confidence

    population, errors, inside = draw(200_000), [], []
    for _ in range(200):
        estimate = risk.estimate(*draw(300), 0.05)
        assert estimate is not None
        error = (~population[1][population[0] >= estimate.threshold]).mean()
        errors.append(error)
        inside.append(estimate.low <= error <= estimate.high)
    assert np.mean(errors) == pytest.approx(0.05, abs=0.01)
    assert np.mean(inside) > 0.9
    assert risk.estimate(np.zeros(0), np.zeros(0, bool), 0.05) is None


def test_misses_are_bounded_of_a_named_class_alone() -> None:
    with pytest.raises(DataError, check=coded("option-invalid")):
        risk.claims(None, {"*": 0.1})
