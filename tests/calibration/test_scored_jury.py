"""The jury with scores: it uses those that help and no others, and leaves label-only votes as they were."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
from support.errors import coded

from looktwice.calibration import calibrators, crossfit, jury, logit, metrics, options
from looktwice.calibration.evidence import UNLISTED, Evidence, Floats, Row, Scale, softmax
from looktwice.calibration.jury import AdaptiveJury, Jury
from looktwice.calibration.risk import ANY, Thresholds
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.decisions.collecting import Collected
from looktwice.decisions.evaluation import guarantees
from looktwice.decisions.policy import Policy
from looktwice.decisions.results import HeldOut
from looktwice.errors import DataError
from looktwice.views import Panel

CLASSES = 12


def world(pictures: int = 1200, views: int = 3, listed: int = 5, seed: int = 0, bias: float = 0.0) -> LabelledVotes:
    """A classifier whose softmax is overconfident, asked under some views; its lists have `listed` labels."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(CLASSES, size=pictures)
    signal = rng.gamma(2.0, 1.8, pictures)[:, None, None] * np.eye(CLASSES)[truth][:, None]
    common = rng.normal(size=(pictures, 1, CLASSES))
    own = rng.normal(size=(pictures, views + 1, CLASSES)) * 0.7
    logits = 2.5 * (signal + common + own)
    logits[:, :, 0] += bias
    shares = np.exp(logits - logits.max(axis=2, keepdims=True))
    shares /= shares.sum(axis=2, keepdims=True)
    order = np.argsort(-shares, axis=2, kind="stable")[:, :, :listed].astype(np.int32)
    scores = np.take_along_axis(shares, order, axis=2).astype(np.float32)
    names, panel = tuple(map(str, range(pictures))), tuple(f"view {s}" for s in range(views))
    words = tuple(f"class {c}" for c in range(CLASSES))
    first = order[:, :, 0]
    votes = Votes(names, panel, words, first[:, 0], first[:, 1:], CLASSES, evidence=Evidence(order, scores))
    return votes.labelled([words[c] for c in truth])


def with_scores(votes: LabelledVotes, scores: Floats) -> LabelledVotes:
    assert votes.evidence is not None
    return replace(votes, evidence=Evidence(votes.evidence.labels, scores.astype(np.float32)))


def scores_of(votes: LabelledVotes) -> Floats:
    assert votes.evidence is not None
    return votes.evidence.scores.astype(np.float64)


def brier(calibrator: Jury, fit: LabelledVotes, test: LabelledVotes) -> float:
    return brier_of(calibrator.fit(fit), test)


def brier_of(fitted: Jury, test: LabelledVotes) -> float:
    return float(crossfit.outcome(fitted, test).brier.mean())


HALF = slice(0, 600), slice(600, None)


@pytest.mark.slow
def test_votes_without_scores_teach_the_same_to_the_digit() -> None:
    votes = world()
    with_lists, plain = Jury().fit(votes), Jury().fit(votes.label_only())
    assert plain.scored is None
    assert with_lists.scored is not None
    assert replace(with_lists, scored=None) == plain
    np.testing.assert_array_equal(with_lists.confidence(votes.label_only()), plain.confidence(votes.label_only()))


@pytest.mark.slow
@pytest.mark.parametrize("listed", [1, 5])
@pytest.mark.parametrize("views", [0, 3])
def test_scores_help_on_pictures_that_taught_nothing(listed: int, views: int) -> None:
    votes = world(views=views, listed=listed)
    fit, test = (votes.take(half) for half in HALF)
    assert brier(Jury(), fit, test) < brier(Jury(), fit.label_only(), test.label_only()) - 0.015
    outcome = crossfit.outcome(Jury().fit(fit), test)
    assert metrics.ece(outcome.confidence, outcome.correct) < 0.06


def test_one_query_with_its_score_ranks_where_a_label_alone_cannot() -> None:
    votes = world(views=0, listed=1)
    fit, test = (votes.take(half) for half in HALF)
    told = crossfit.outcome(Jury(ballot="base").fit(fit), test).scores().auroc
    assert told is not None
    assert told > 0.75


def test_options_come_from_all_lists() -> None:
    votes = world(views=2)
    distribution = Jury().fit(votes).distribution(votes)
    plain = Jury().fit(votes.label_only()).distribution(votes.label_only())
    named = [(each.labels == votes.truths[:, None]).any(axis=1).mean() for each in (distribution, plain)]
    assert named[0] > named[1] + 0.05
    np.testing.assert_allclose(distribution.dense(CLASSES).sum(axis=1), 1.0)


@pytest.mark.parametrize("useless", ["constant", "shuffled", "not a number", "noise"])
def test_a_useless_score_gets_no_weight(useless: str) -> None:
    votes = world(pictures=2000, listed=1)
    rng, scores = np.random.default_rng(1), scores_of(votes)
    changed = {
        "constant": np.full_like(scores, 0.95),
        "shuffled": rng.permuted(scores, axis=0),
        "not a number": np.full_like(scores, np.nan),
        "noise": rng.uniform(size=scores.shape),
    }[useless]
    told = with_scores(votes, changed)
    fit, test = told.take(slice(0, 1000)), told.take(slice(1000, None))
    loss = brier(Jury(), fit, test) - brier(Jury(), fit.label_only(), test.label_only())
    assert loss < 0.001
    fitted = Jury().fit(fit)
    assert fitted.scored is None or "base" not in fitted.scored.columns


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["percentages", "logits", "two digits", "independent", "some missing"])
def test_scores_on_other_scales_still_help(scale: str) -> None:
    votes = world(pictures=2000)
    scores = scores_of(votes)
    changed = {
        "percentages": 100 * scores,
        "logits": np.log(scores) + 7,
        "two digits": np.round(scores, 2),
        "independent": np.sqrt(scores),
        "some missing": np.where(np.random.default_rng(0).uniform(size=scores.shape) < 0.1, np.nan, scores),
    }[scale]
    told = with_scores(votes, changed)
    fit, test = told.take(slice(0, 1000)), told.take(slice(1000, None))
    assert brier(Jury(), fit, test) < brier(Jury(), fit.label_only(), test.label_only()) - 0.008


@pytest.mark.parametrize(("views", "gain"), [(0, 0.005), (1, 0.003), (3, 0.0)])
def test_ranks_help_where_there_are_no_scores_and_never_harm(views: int, gain: float) -> None:
    votes = world(pictures=2000, views=views, seed=1)
    told = with_scores(votes, np.full_like(scores_of(votes), np.nan))
    fit, test = told.take(slice(0, 1000)), told.take(slice(1000, None))
    assert brier(Jury(), fit, test) <= brier(Jury(), fit.label_only(), test.label_only()) - gain


@pytest.mark.parametrize("listed", [1, 5])
def test_brier_scores_of_patterns_are_those_of_the_distribution(listed: int) -> None:
    votes = world(pictures=300, listed=listed)
    fitted = Jury().fit(votes).scored
    assert fitted is not None
    layout = options.Layout(fitted.scale, fitted.knots, fitted.columns)
    patterns = options.tabulate(votes, layout)
    told = replace(Jury().fit(votes), confusion=None).distribution(votes).brier(votes.truths)
    np.testing.assert_allclose(logit.briers(patterns, np.array(fitted.theta), CLASSES), told, atol=1e-9)


def test_a_class_that_is_called_too_often_is_trusted_less() -> None:
    votes = world(pictures=3000, views=0, listed=1, bias=4.0)
    fit, test = votes.take(slice(0, 1500)), votes.take(slice(1500, None))
    fitted = Jury(ballot="base").fit(fit)
    assert fitted.scored is not None
    assert fitted.confusion is not None
    often, right = test.base == 0, test.base == test.truths
    confidence, before = fitted.confidence(test), replace(fitted, confusion=None).confidence(test)
    for rows in (often, ~often):
        assert abs(confidence[rows].mean() - right[rows].mean()) < abs(before[rows].mean() - right[rows].mean()) - 0.02


@pytest.mark.slow
def test_pictures_without_a_score_are_judged_by_labels_alone() -> None:
    votes = world()
    assert votes.evidence is not None
    labels = votes.evidence.labels.copy()
    labels[::3] = -1
    some = replace(votes, evidence=Evidence(labels, votes.evidence.scores))
    fitted = Jury().fit(votes)
    plain, scored = fitted.confidence(votes.label_only()), fitted.confidence(votes)
    np.testing.assert_array_equal(fitted.judged_by_scores(some), np.arange(len(votes)) % 3 != 0)
    np.testing.assert_allclose(fitted.confidence(some)[::3], plain[::3])
    np.testing.assert_allclose(fitted.confidence(some)[1::3], scored[1::3])
    assert fitted.distribution(some).labels.shape[0] == len(votes)


def test_of_two_classes_the_one_that_nobody_named_is_answered_where_a_low_score_makes_it_likelier() -> None:
    rng = np.random.default_rng(0)
    chance = rng.beta(0.7, 0.7, 600)
    truths = np.where(rng.random(600) < chance**2.5, "yes", "no")
    said = np.where(chance > 0.5, "yes", "no").tolist()
    claims = np.maximum(chance, 1 - chance).tolist()
    rows = [
        Row(str(i), word, (word,), lists=(((word, p),),) * 2)
        for i, (word, p) in enumerate(zip(said, claims, strict=True))
    ]
    votes = Votes.collect(rows, ("mirror",), ("yes", "no"), 2).labelled(truths)
    fitted = Jury().fit(votes)
    answers, confidence, distribution = fitted.predict(votes), fitted.confidence(votes), fitted.distribution(votes)
    low, high = fitted.interval(votes)
    assert fitted.uses_scores
    assert confidence.min() >= 0.5
    assert (answers == votes.truths).mean() > (votes.base == votes.truths).mean() + 0.03
    np.testing.assert_array_equal(answers, distribution.dense(2).argmax(axis=1))
    np.testing.assert_allclose(confidence, distribution.of(answers))
    assert ((low <= confidence) & (confidence <= high)).all()
    np.testing.assert_array_equal(replace(fitted, ballot="base").predict(votes), votes.base)


@pytest.mark.slow
def test_an_evaluation_accepts_what_verdicts_accept_and_no_answer_without_the_score_that_counts() -> None:
    votes = world()
    assert votes.evidence is not None
    listed = votes.evidence.labels.copy()
    listed[::3] = UNLISTED
    some = replace(votes, evidence=replace(votes.evidence, labels=listed))
    held_out = HeldOut(confidence=(0.9,), correct=(True,))
    policy = Policy(Panel.parse("rotation:20*3"), Jury().fit(votes), held_out=held_out, accept=Thresholds({ANY: 0.5}))
    sure = policy.calibrator.confidence(some) >= 0.5
    assert sure[::3].any()
    kept = guarantees(Collected(some, (), policy.panel, "test:1", 0), policy)
    assert kept.accepted == pytest.approx((sure & (np.arange(len(some)) % 3 != 0)).mean())


@pytest.mark.slow
def test_intervals_hold_the_confidence_and_narrow_with_more_pictures() -> None:
    votes = world(pictures=2400)
    widths = []
    for count in (300, 2400):
        fitted = Jury().fit(votes.take(slice(0, count)))
        low, high = fitted.interval(votes)
        assert (low <= fitted.confidence(votes)).all()
        assert (fitted.confidence(votes) <= high).all()
        widths.append((high - low).mean())
    assert widths[1] < widths[0] / 2


@pytest.mark.slow
def test_a_jury_with_scores_survives_json() -> None:
    votes = world()
    fitted = Jury().fit(votes)
    restored = calibrators.restore(calibrators.dump(fitted))
    np.testing.assert_array_equal(restored.confidence(votes), fitted.confidence(votes))
    broken = calibrators.dump(fitted)
    assert isinstance(broken["scored"], dict)
    broken["scored"]["theta"] = [1.0]
    with pytest.raises(DataError, check=coded("calibrator-malformed")):
        calibrators.restore(broken)


@pytest.mark.slow
def test_a_jury_for_every_number_of_views_has_scores_too() -> None:
    votes = world(views=3)
    fitted = AdaptiveJury().fit(votes)
    assert all(each.scored is not None for each in fitted.juries)
    one = replace(votes, views=np.where(np.arange(3) < 1, votes.views, -1))
    np.testing.assert_allclose(fitted.confidence(one), fitted.juries[1].confidence(votes.under([0])))


@pytest.mark.slow
def test_photos_of_one_thing_are_judged_with_their_scores() -> None:
    votes = world(views=3)
    fitted = Jury().fit(votes)
    pooled = fitted.pooled(3)
    assert pooled.scored is not None
    assert fitted.scored is not None
    weights = np.array(fitted.scored.theta[1:4])
    np.testing.assert_allclose(pooled.scored.theta[1:4], weights.mean())
    assert pooled.scored.theta[4:] == pytest.approx(fitted.scored.theta[4:])
    assert len(fitted.pooled(6).confidence(world(views=6))) == len(votes)


def test_the_slope_of_the_odds_is_their_derivative() -> None:
    votes = world(pictures=400)
    scored = Jury().fit(votes).scored
    assert scored is not None
    utilities = scored.utilities(votes)
    believed = utilities.scores[:, :-1].argmax(axis=1)
    slope = utilities.slope(believed, softmax(utilities.rivals(believed)))
    for place in range(len(scored.theta)):
        theta = np.array(scored.theta)
        theta[place] += 1e-6
        moved = replace(scored, theta=tuple(theta.tolist())).utilities(votes).odds(believed)
        np.testing.assert_allclose((moved - utilities.odds(believed)) / 1e-6, slope[:, place], atol=1e-4)


def test_the_fit_with_scores_is_the_lowest_point_of_its_loss() -> None:
    votes = world(pictures=300)
    layout = jury.choose_layout(votes, 10.0)
    assert layout is not None
    patterns = options.tabulate(votes, layout)
    objective = logit.PenalisedLoss.from_counts(patterns, 10.0, patterns.hits())
    theta = logit.descend(patterns, 10.0)
    low, high = patterns.bounds()
    free = (theta > low + 1e-6) & (theta < high - 1e-6)
    assert np.abs(objective.at(theta)[1][free]).max() < 1e-3
    assert (objective.at(theta)[1][~free] >= 0).all()


@pytest.mark.slow
def test_a_list_that_errs_with_certainty_counts_in_the_mean_share_but_does_not_veto() -> None:
    votes = world(pictures=2400, views=4)
    assert votes.evidence is not None
    rng = np.random.default_rng(2)
    labels, scores = votes.evidence.labels.copy(), votes.evidence.scores.copy()
    erring = np.flatnonzero(rng.uniform(size=len(votes) * 4) < 0.3)
    picture, view = erring // 4, 1 + erring % 4
    labels[picture, view] = np.argsort(rng.uniform(size=(len(erring), CLASSES)), axis=1)[:, :5]
    scores[picture, view] = (0.99, 0.004, 0.002, 0.002, 0.001)
    told = replace(votes, views=labels[:, 1:, 0], evidence=Evidence(labels, scores))
    fit, test = told.take(slice(0, 1200)), told.take(slice(1200, None))
    pooled = Jury().fit(fit)
    assert pooled.scored is not None
    assert "pool" in pooled.scored.columns
    with patch.object(jury, "POOLS", ("views",)):
        assert brier(Jury(), fit, test) > brier_of(pooled, test) + 0.002


def test_the_mean_share_is_over_the_lists_that_there_are() -> None:
    votes = world(pictures=4, views=2, listed=1)
    assert votes.evidence is not None
    labels = votes.evidence.labels.copy()
    labels[:, 2] = -1
    some = replace(votes, views=np.where(np.arange(2) < 1, votes.views, -1))
    some = replace(some, evidence=Evidence(labels, votes.evidence.scores))
    scale = Scale.learn(votes.evidence)
    pools = [options.options_of(each, scale, ("pool",)) for each in (some, votes.under([0]))]
    place = [len(each.panel) + 1 for each in (some, votes.under([0]))]
    told = [pool.features[:, :, at] for pool, at in zip(pools, place, strict=True)]
    np.testing.assert_allclose(told[0], told[1])
    own, view = scores_of(votes)[:, 0, 0], scores_of(votes)[:, 1, 0]
    share = np.where(votes.views[:, 0] == votes.base, view, (1 - view) / (CLASSES - 1))
    np.testing.assert_allclose(told[1][:, 0], np.log((own + share) / 2), rtol=1e-5)
