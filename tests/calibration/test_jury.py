"""The jury against its own definition, simulated juries, and votes of every odd shape."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from pydantic import TypeAdapter
from support.errors import coded

from looktwice.calibration import logit, metrics, options
from looktwice.calibration.evidence import MISSING, Floats
from looktwice.calibration.jury import AdaptiveJury, Jury
from looktwice.calibration.votes import OUTSIDE, LabelledVotes, Votes
from looktwice.errors import DataError, FitError


def votes_of(base: object, views: object, classes: int) -> Votes:
    codes = np.asarray(base, np.int32)
    table = np.asarray(views, np.int32).reshape(len(codes), -1)
    return Votes(
        tuple(map(str, range(len(codes)))),
        tuple(f"view {s}" for s in range(table.shape[1])),
        tuple(map(str, range(classes))),
        codes,
        table,
        classes,
    )


def simulated(pictures: int, views: int, classes: int, seed: int) -> LabelledVotes:
    """Pictures of unlike difficulty: on a hard one, base and views often fall for the same wrong label."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(classes, size=pictures)
    lure = (truth + rng.integers(1, classes, size=pictures)) % classes
    hard = rng.beta(0.4, 1.6, size=(pictures, 1))
    draw = rng.random((pictures, views + 1))
    said = np.where(draw < 1 - hard, truth[:, None], np.where(draw < 1 - hard / 5, lure[:, None], 0))
    stray = rng.integers(classes, size=said.shape)
    said = np.where(draw > 1 - hard / 5, stray, said).astype(np.int32)
    return votes_of(said[:, 0], said[:, 1:], classes).labelled(map(str, truth))


@st.composite
def any_votes(draw: st.DrawFn) -> LabelledVotes:
    pictures, views = draw(st.integers(1, 25)), draw(st.integers(0, 6))
    classes = draw(st.integers(2, 8))
    rng = np.random.default_rng(draw(st.integers(0, 10**6)))
    said = rng.integers(draw(st.integers(1, classes)), size=(pictures, views + 1))
    table = np.where(rng.random((pictures, views + 1)) < draw(st.sampled_from([0.0, 0.3])), MISSING, said)
    truths = np.where(rng.random(pictures) < 0.6, said[:, 0], rng.integers(classes, size=pictures))
    return votes_of(table[:, 0], table[:, 1:], classes).labelled(map(str, truths))


@pytest.fixture(scope="module")
def learned() -> tuple[Jury, LabelledVotes]:
    votes = simulated(400, 5, 10, seed=1)
    return Jury().fit(votes), votes


def jury_of(theta: Floats) -> Jury:
    """The jury with these parameters: the weights, γ, b₀ and b₁."""
    return Jury(tuple(theta[:-3]), (theta[-2], theta[-1]), log_votes=theta[-3])


def by_hand(theta: Floats, row: list[int], classes: int) -> dict[int | None, float]:
    """The jury's formula, written out for one picture; None is someone else."""
    named = sorted({label for label in row if label != MISSING})
    weight = {c: sum(w for w, label in zip(theta[:-3], row, strict=True) if label == c) for c in named}
    power: dict[int | None, float] = {c: float(np.exp(w)) * row.count(c) ** theta[-3] for c, w in weight.items()}
    if len(named) < classes:
        share, (*only,) = (classes - len(named)) / (classes - 1), set(range(classes)) - set(named)
        power[only[0] if len(only) == 1 else None] = share * float(
            np.exp(theta[-2]) * (max(len(named), 1) / len(row)) ** theta[-1]
        )
    return {c: p / sum(power.values()) for c, p in power.items()}


@given(any_votes(), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_distribution_is_the_formula(votes: LabelledVotes, seed: int) -> None:
    theta = np.random.default_rng(seed).normal(size=len(votes.panel) + 4)
    calibrator = jury_of(theta)
    distribution = calibrator.distribution(votes)
    for i in range(len(votes)):
        expected = by_hand(theta, [int(votes.base[i]), *votes.views[i].tolist()], votes.classes)
        assert distribution.rest()[i] == pytest.approx(expected.pop(None, 0.0), abs=1e-12)
        for label, chance in expected.items():
            assert distribution.of(np.full(len(votes), label, np.int32))[i] == pytest.approx(chance)


@given(any_votes())
@settings(max_examples=60, deadline=None)
def test_every_fit_is_finite_and_its_parts_agree(votes: LabelledVotes) -> None:
    calibrator = Jury().fit(votes)
    low, high = calibrator.interval(votes)
    confidence = calibrator.confidence(votes)
    distribution = calibrator.distribution(votes)
    assert np.isfinite(np.array([*calibrator.weights, calibrator.log_votes, *calibrator.unnamed])).all()
    assert (np.diff([np.zeros(len(votes)), low, confidence, high, np.ones(len(votes))], axis=0) >= 0).all()
    np.testing.assert_allclose(distribution.of(calibrator.predict(votes)), confidence, atol=1e-12)
    assert (distribution.top() == calibrator.predict(votes)).all()
    assert (distribution.named.sum(axis=1) <= 1 + 1e-12).all()


@given(any_votes(), st.integers(0, 100))
@settings(max_examples=25, deadline=None)
def test_names_of_the_labels_do_not_matter(votes: LabelledVotes, seed: int) -> None:
    other = np.random.default_rng(seed).permutation(votes.classes).astype(np.int32)
    base, views = (np.where(codes == MISSING, MISSING, other[codes]) for codes in (votes.base, votes.views))
    renamed = votes_of(base, views, votes.classes).labelled(map(str, other[votes.truths]))
    expected = Jury().fit(votes).confidence(votes)
    np.testing.assert_allclose(Jury().fit(renamed).confidence(renamed), expected, atol=1e-6)


def test_gradient_and_curvature_are_exact() -> None:
    votes = simulated(80, 4, 6, seed=3)
    objective = logit.PenalisedLoss.from_counts(patterns := options.tabulate(votes), 5.0, patterns.hits())
    theta = np.random.default_rng(0).normal(size=8)
    (_, gradient), curvature = objective.at(theta), objective.curvature(theta)
    step = 1e-5
    for i, e in enumerate(np.eye(8) * step):
        up, down = objective.at(theta + e), objective.at(theta - e)
        assert (up[0] - down[0]) / (2 * step) == pytest.approx(gradient[i], rel=1e-5, abs=1e-6)
        np.testing.assert_allclose((up[1] - down[1]) / (2 * step), curvature[i], rtol=1e-5, atol=1e-6)


def test_no_other_parameters_have_a_lower_loss() -> None:
    from scipy.optimize import minimize

    votes = simulated(150, 5, 10, seed=4)
    patterns = options.tabulate(votes)
    objective = logit.PenalisedLoss.from_counts(patterns, 3.0, patterns.hits())
    bounds = [(0.0, None)] * 7 + [(None, np.log(9)), (0.0, None)]
    best = minimize(objective.at, np.zeros(9), jac=True, method="L-BFGS-B", bounds=bounds, tol=1e-12)
    np.testing.assert_allclose(logit.descend(patterns, 3.0), best.x, atol=1e-3)


@given(any_votes(), st.integers(0, 10**6))
@settings(max_examples=150, deadline=None)
def test_a_dissent_never_raises_the_confidence_in_the_base_answer(votes: LabelledVotes, seed: int) -> None:
    """However few and odd the labels are: any view of any picture may turn from the base label to another."""
    calibrator, rng = replace(Jury(ballot="base").fit(votes), confusion=None), np.random.default_rng(seed)
    said = rng.integers(votes.classes, size=(40, len(votes.panel) + 1))
    said[:, 1:] = np.where(rng.random((40, len(votes.panel))) < 0.6, said[:, :1], said[:, 1:])
    for view in range(len(votes.panel)):
        agreeing, dissenting = said.copy(), said.copy()
        agreeing[:, 1 + view] = said[:, 0]
        dissenting[:, 1 + view] = (said[:, 0] + rng.integers(1, votes.classes, size=40)) % votes.classes
        before, after = (
            calibrator.confidence(votes_of(x[:, 0], x[:, 1:], votes.classes)) for x in (agreeing, dissenting)
        )
        assert (after <= before + 1e-12).all()


@pytest.mark.parametrize("seed", range(8))
def test_with_few_labels_all_views_weigh_nearly_the_same(seed: int) -> None:
    calibrator = Jury().fit(simulated(30, 8, 10, seed=40 + seed))
    assert min(calibrator.weights) >= 0
    assert np.ptp(calibrator.weights[1:]) < 0.25


def drawn_from(theta: Floats, votes: Votes, seed: int) -> LabelledVotes:
    """Truths drawn from a jury with these parameters; OUTSIDE stands for someone else."""
    rng = np.random.default_rng(seed)
    distribution = jury_of(theta).distribution(votes)
    edges = distribution.named.cumsum(axis=1)
    column = (rng.random(len(votes))[:, None] > edges).sum(axis=1)
    padded = np.column_stack([distribution.labels, np.full(len(votes), OUTSIDE, np.int32)])
    return votes.labelled(map(str, padded[np.arange(len(votes)), column]))


@pytest.mark.slow
def test_weights_that_made_the_truths_are_found_again() -> None:
    votes = simulated(20_000, 3, 10, seed=5)
    theta = np.array([0.8, 1.6, 0.4, 1.0, 0.7, -0.5, 1.2])
    calibrator = Jury().fit(drawn_from(theta, votes, seed=6))
    gap = np.array([*calibrator.weights, calibrator.log_votes, *calibrator.unnamed]) - theta
    assert (np.abs(gap) < 4 * np.sqrt(np.diag(calibrator.covariance))).all()
    assert np.abs(gap[:-3]).max() < 0.2


@pytest.mark.slow
def test_interval_holds_the_true_probability_about_as_often_as_it_says() -> None:
    votes = simulated(300, 3, 10, seed=7)
    theta = np.array([0.8, 0.9, 0.6, 0.5, 0.5, 0.5, 1.2])  # not far from typical, as the prior has it
    truth = jury_of(theta)
    held = []
    for seed in range(60):
        calibrator = Jury(ballot="base").fit(drawn_from(theta, votes, seed))
        low, high = calibrator.interval(votes)
        real = replace(truth, ballot="base").confidence(votes)
        held.append(float(((low <= real) & (real <= high)).mean()))
    assert 0.8 <= np.mean(held) <= 0.99  # the prior draws the weights towards those of other models


def test_confidence_on_new_pictures_is_calibrated_and_beats_a_lone_answer() -> None:
    votes = simulated(4000, 8, 50, seed=8)
    fit, test = np.arange(1000), np.arange(1000, 4000)
    calibrator, new = Jury().fit(votes.take(fit)), votes.take(test)
    right = calibrator.predict(new) == new.truths
    assert metrics.ece(calibrator.confidence(new), right) < 0.04
    assert right.mean() > (new.base == new.truths).mean()
    assert (metrics.auroc(calibrator.confidence(new), right) or 0) > 0.8


@pytest.mark.parametrize("pictures", [1, 20, 500])
def test_one_outcome_only_is_believed_but_never_certain(pictures: int) -> None:
    said = np.random.default_rng(0).integers(3, size=pictures)
    votes = votes_of(said, np.column_stack([said] * 4), 5).labelled(map(str, said))
    typical = Jury().fit(votes.take(np.arange(1))).confidence(votes)[0]
    confidence = Jury().fit(votes).confidence(votes)
    assert 0.75 < typical <= confidence.min() + 1e-9
    assert confidence.max() < 1 - 0.1 / (pictures + 1)


@pytest.mark.parametrize("pictures", [1, 20])
def test_few_answers_that_are_all_wrong_lower_the_trust_in_unanimous_ones(pictures: int) -> None:
    said = np.random.default_rng(0).integers(3, size=pictures)
    votes = votes_of(said, np.column_stack([said] * 4), 5)
    wrong, right = (Jury().fit(votes.labelled(map(str, truths))).confidence(votes)[0] for truths in (said + 1, said))
    assert 1 / 5 <= wrong < right
    assert pictures == 1 or wrong < right - 0.2


def test_two_classes_both_named_leave_nothing_for_someone_else() -> None:
    votes = votes_of([0, 1, 0, 1] * 10, [[1, 0], [1, 1], [0, 0], [0, 1]] * 10, 2)
    distribution = Jury().fit(votes.labelled(map(str, votes.base))).distribution(votes)
    np.testing.assert_allclose(distribution.rest(), 0, atol=1e-12)
    assert (np.sort(distribution.labels, axis=1)[:, -2:] == [0, 1]).all()


def test_a_truth_that_no_class_can_be_is_an_error_that_names_the_picture() -> None:
    votes = votes_of([0, 0], [[1], [0]], 2)
    with pytest.raises(DataError, check=coded("votes-mismatch")):
        Jury().fit(votes.labelled(["elsewhere", "0"]))


def test_views_that_were_not_asked_add_nothing(learned: tuple[Jury, LabelledVotes]) -> None:
    calibrator, votes = learned
    silent = replace(votes, views=np.full_like(votes.views, MISSING))
    odds = calibrator.weights[0] - calibrator.unnamed[0] + calibrator.unnamed[1] * np.log(6)
    np.testing.assert_allclose(calibrator.confidence(silent), 1 / (1 + np.exp(-odds)))


def test_without_a_first_answer_the_others_decide(learned: tuple[Jury, LabelledVotes]) -> None:
    calibrator, votes = learned
    unanimous = replace(votes, base=np.full_like(votes.base, MISSING), views=np.repeat(votes.views[:, :1], 5, axis=1))
    assert (calibrator.predict(unanimous) == votes.views[:, 0]).all()
    odds = sum(calibrator.weights[1:]) + calibrator.log_votes * np.log(5)
    odds += calibrator.unnamed[1] * np.log(6) - calibrator.unnamed[0]
    np.testing.assert_allclose(calibrator.confidence(unanimous), 1 / (1 + np.exp(-odds)))


def test_no_answer_at_all_is_no_label_and_every_class_is_as_likely(learned: tuple[Jury, LabelledVotes]) -> None:
    calibrator, votes = learned
    mute = replace(votes, base=np.full_like(votes.base, MISSING), views=np.full_like(votes.views, MISSING))
    assert (calibrator.predict(mute) == MISSING).all()
    assert (calibrator.confidence(mute) == 0).all()
    np.testing.assert_allclose(calibrator.distribution(mute).dense(10), 0.1)


def test_refusals_in_first_place_cost_no_picture_and_teach_nothing_about_the_first() -> None:
    votes = simulated(2000, 3, 5, seed=4)
    refused = np.random.default_rng(0).random(2000) < 0.3
    partly = replace(votes, base=np.where(refused, MISSING, votes.base))
    fitted = Jury().fit(partly)
    alone = Jury().fit(partly.take(np.flatnonzero(~refused)))
    assert fitted.weights[0] == pytest.approx(alone.weights[0], abs=0.35)
    tested = simulated(4000, 3, 5, seed=5)
    silent = replace(tested, base=np.full_like(tested.base, MISSING))
    right = fitted.predict(silent) == tested.truths
    assert right.mean() > (tested.views[:, 0] == tested.truths).mean()
    assert fitted.confidence(silent).mean() == pytest.approx(right.mean(), abs=0.03)


@pytest.mark.slow
@given(any_votes(), st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_an_answer_is_no_evidence_against_a_label_that_it_could_not_be(votes: LabelledVotes, seed: int) -> None:
    """Compared with the label that was answered, and with any other, it loses nothing."""
    calibrator, rng = Jury().fit(votes), np.random.default_rng(seed)
    asked = rng.integers(votes.classes, size=(30, len(votes.panel) + 1))
    for source in range(1, len(votes.panel) + 1):
        label = asked[:, 0]
        asked[:, source] = np.where(asked[:, source] == label, (label + 1) % votes.classes, asked[:, source])
        for row, code in enumerate(label.tolist()):
            one = votes_of(asked[row : row + 1, 0], asked[row : row + 1, 1:], votes.classes)
            lists = [(code,) if place == source else () for place in range(len(votes.panel) + 1)]
            known, unknown = (
                calibrator.distribution(each).dense(votes.classes)[0]
                for each in (one, replace(one, unsayable=tuple(lists)))
            )
            others = [c for c in range(votes.classes) if c != code]
            assert unknown[code] >= known[code] - 1e-12
            np.testing.assert_allclose(unknown[others] * known[others].sum(), known[others] * unknown[others].sum())


def test_a_jury_learns_from_a_second_classifier_with_fewer_labels() -> None:
    """The second cannot say half of forty labels and answers another one there; too few of each for offsets."""
    rng = np.random.default_rng(3)
    truths = rng.integers(40, size=4000)
    first = np.where(rng.random(4000) < 0.7, truths, rng.integers(40, size=4000))
    second = np.where((truths < 20) & (rng.random(4000) < 0.95), truths, rng.integers(20, size=4000))
    votes = votes_of(first, second[:, None], 40).labelled(map(str, truths))
    fair = replace(votes, unsayable=((), tuple(range(20, 40))))
    plain, told = (Jury().fit(each.take(np.arange(400))) for each in (votes, fair))
    new = slice(400, None)
    assert told.distribution(fair.take(new)).brier(votes.truths[new]).mean() < (
        plain.distribution(votes.take(new)).brier(votes.truths[new]).mean() - 0.02
    )
    low, high = told.interval(fair.take(new))
    confidence = told.confidence(fair.take(new))
    assert ((low <= confidence) & (confidence <= high)).all()
    assert confidence.mean() == pytest.approx((told.predict(fair.take(new)) == votes.truths[new]).mean(), abs=0.03)


def test_strong_shrinkage_makes_the_views_equal_but_not_mute() -> None:
    votes = simulated(500, 6, 10, seed=9)
    theta = logit.descend(options.tabulate(votes), 1e7)
    assert np.ptp(theta[1:-3]) < 1e-3
    assert theta[1:-3].sum() + theta[-3] * np.log(7) > 0.6


def test_each_further_vote_for_a_label_counts_less() -> None:
    jury = Jury((0.0,) * 5, (0.0, 0.0), log_votes=1.0)
    said = votes_of([0], [[0, 1, 1, 1]], 100)
    of = jury.distribution(said).of
    assert of(np.array([1], np.int32)) / of(np.array([0], np.int32)) == pytest.approx(3 / 2)


def test_with_many_labels_a_view_that_tells_more_weighs_more() -> None:
    theta = np.array([0.3, 1.5, 0.1, 0.1, 0.1, 0.1, 0.1, 0.0, -0.5, 1.0])
    few, many = (
        Jury().fit(drawn_from(theta, simulated(pictures, 6, 10, seed=11), seed=1)).weights for pictures in (30, 3000)
    )
    assert many[1] > 3 * max(many[2:])
    assert few[1] - np.mean(few[2:]) < 0.5 * (many[1] - np.mean(many[2:]))


def test_held_out_losses_are_those_of_a_jury_that_never_saw_the_picture() -> None:
    votes = simulated(60, 3, 10, seed=11)
    fold = logit.folds(60, parts=3)
    held = logit.held_out_losses(options.tabulate(votes), fold, 10.0)
    for part in range(3):
        rest, own = np.flatnonzero(fold != part), np.flatnonzero(fold == part)
        theta = logit.descend(options.tabulate(votes.take(rest)), 10.0)
        nll = jury_of(theta).distribution(votes.take(own)).nll(votes.truths[own])
        np.testing.assert_allclose(held[own], nll, atol=1e-5)


def test_folds_are_even_and_the_same_on_every_run() -> None:
    fold = logit.folds(103)
    assert sorted(np.bincount(fold).tolist()) == [20, 20, 21, 21, 21]
    assert (fold == logit.folds(103)).all()


def test_the_work_does_not_grow_with_the_number_of_classes() -> None:
    votes = simulated(300, 8, 12, seed=12)
    small, large = (options.tabulate(replace(votes, classes=k)) for k in (12, 10**6))
    assert small.options.shape == large.options.shape
    few, many = Jury().fit(votes), Jury().fit(replace(votes, classes=10**6))
    assert many.weights == pytest.approx(few.weights, abs=0.15)
    assert many.confidence(votes) == pytest.approx(few.confidence(votes), abs=0.1)


def test_the_base_ballot_keeps_the_base_answer_and_says_how_likely_it_is(
    learned: tuple[Jury, LabelledVotes],
) -> None:
    calibrator, votes = learned
    keeper = replace(calibrator, ballot="base")
    assert (keeper.predict(votes) == votes.base).all()
    np.testing.assert_allclose(keeper.confidence(votes), calibrator.distribution(votes).of(votes.base))
    assert (keeper.confidence(votes) <= calibrator.confidence(votes) + 1e-12).all()


def test_a_jury_without_views_knows_the_accuracy() -> None:
    votes = simulated(500, 3, 10, seed=13)
    alone = votes.under([])
    accuracy = float((votes.base == votes.truths).mean())
    np.testing.assert_allclose(Jury().fit(alone).confidence(alone), accuracy, atol=1e-2)


def test_the_last_prefix_is_the_whole_jury_and_the_first_hears_the_base_alone() -> None:
    votes = simulated(300, 4, 10, seed=14)
    juries = AdaptiveJury().fit(votes).juries
    assert [len(j.weights) for j in juries] == [1, 2, 3, 4, 5]
    whole = Jury().fit(votes)
    assert juries[-1].shrinkage == whole.shrinkage
    np.testing.assert_allclose(juries[-1].weights, whole.weights, atol=1e-4)


def stopped(votes: Votes, asked: NDArray[np.intp]) -> Votes:
    return replace(votes, views=np.where(np.arange(len(votes.panel)) < asked[:, None], votes.views, MISSING))


def test_a_stopped_picture_is_judged_by_the_jury_of_the_views_it_was_asked() -> None:
    votes = simulated(300, 4, 10, seed=15)
    calibrator = AdaptiveJury().fit(votes)
    asked = np.random.default_rng(0).integers(5, size=300)
    early = stopped(votes, asked)
    distribution, (low, high) = calibrator.distribution(early), calibrator.interval(early)
    for count, own in enumerate(calibrator.members()):
        rows = np.flatnonzero(asked == count)
        part = votes.take(rows).under(range(count))
        np.testing.assert_allclose(calibrator.confidence(early)[rows], own.confidence(part))
        assert (calibrator.predict(early)[rows] == own.predict(part)).all()
        np.testing.assert_allclose(np.array([low[rows], high[rows]]), own.interval(part))
        np.testing.assert_allclose(distribution.brier(votes.truths)[rows], own.distribution(part).brier(part.truths))


def test_prefixes_with_the_base_ballot_keep_the_base_answer() -> None:
    votes = simulated(200, 3, 10, seed=16)
    assert (AdaptiveJury(ballot="base").fit(votes).predict(votes) == votes.base).all()


@pytest.mark.parametrize("family", [Jury, AdaptiveJury])
def test_a_fitted_calibrator_survives_json(family: type[Jury | AdaptiveJury]) -> None:
    votes = simulated(100, 3, 10, seed=17)
    calibrator = family().fit(votes)
    again = TypeAdapter(family).validate_python(json.loads(json.dumps(asdict(calibrator))))
    assert again == calibrator
    assert (again.confidence(votes) == calibrator.confidence(votes)).all()


@pytest.mark.parametrize("calibrator", [Jury(), AdaptiveJury()])
def test_what_cannot_be_judged_is_a_clear_error(calibrator: Jury | AdaptiveJury) -> None:
    votes = simulated(30, 3, 10, seed=18)
    with pytest.raises(FitError, check=coded("not-fitted")):
        calibrator.confidence(votes)
    with pytest.raises(FitError, check=coded("labels-too-few")):
        calibrator.fit(votes.take(slice(0, 0)))
    with pytest.raises(DataError, check=coded("votes-mismatch")):
        calibrator.fit(votes).confidence(votes.under([0, 1]))


def test_a_pooled_jury_gives_every_view_the_mean_weight_and_its_uncertainty(
    learned: tuple[Jury, LabelledVotes],
) -> None:
    fitted, _ = learned
    pooled = fitted.pooled(3)
    assert pooled.weights[0] == fitted.weights[0]
    assert pooled.weights[1:] == pytest.approx([np.mean(fitted.weights[1:])] * 3)
    views = slice(1, len(fitted.weights))
    mean_variance = np.array(fitted.covariance)[views, views].mean()
    assert np.array(pooled.covariance)[1:4, 1:4] == pytest.approx(np.full((3, 3), mean_variance))
    said = votes_of([0, 0], [[0, 0, 0], [0, 0, 1]], 10)
    sure, unsure = pooled.confidence(said)
    low, high = pooled.interval(said)
    assert low[0] < sure < high[0]
    assert unsure < sure


def test_a_jury_of_no_views_cannot_be_pooled() -> None:
    votes = simulated(60, 0, 5, 1)
    with pytest.raises(FitError, check=coded("votes-mismatch")):
        Jury().fit(votes).pooled(2)


def test_prefixes_pool_the_jury_for_as_many_views(learned: tuple[Jury, LabelledVotes]) -> None:
    _, votes = learned
    prefixes = AdaptiveJury().fit(votes)
    assert prefixes.pooled(2) == prefixes.members()[2].pooled(2)
    assert prefixes.pooled(99).weights[1:] == (prefixes.juries[-1].pooled(1).weights[1],) * 99
