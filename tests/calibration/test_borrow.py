"""A jury that starts from another classifier's: steady with few labels, free with many."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.errors import coded

from looktwice.calibration.borrow import DIFFERENCES, Pupil, _posterior, fit_towards
from looktwice.calibration.evidence import Floats
from looktwice.calibration.jury import Jury
from looktwice.calibration.logit import losses
from looktwice.calibration.options import tabulate
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.errors import DataError, FitError


def world(pictures: int, seed: int, hardness: float = 1.0, views: int = 5, classes: int = 10) -> LabelledVotes:
    """Pictures of unlike difficulty: on a hard one, base and views often fall for the same wrong label."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(classes, size=pictures)
    lure = (truth + rng.integers(1, classes, size=pictures)) % classes
    hard = np.clip(hardness * rng.beta(0.4, 1.6, size=(pictures, 1)), 0.0, 1.0)
    said = np.where(rng.random((pictures, views + 1)) < 1 - hard, truth[:, None], lure[:, None]).astype(np.int32)
    names, labels = tuple(map(str, range(pictures))), tuple(map(str, range(classes)))
    votes = Votes(names, ("v",) * views, labels, said[:, 0], said[:, 1:], classes)
    return votes.labelled(map(str, truth))


def theta(jury: Jury) -> Floats:
    return np.array([*jury.weights, jury.log_votes, *jury.unnamed])


def loss(jury: Jury, votes: LabelledVotes) -> float:
    return float(jury.distribution(votes).nll(votes.truths).mean())


@pytest.fixture(scope="module")
def prior() -> Jury:
    return Jury().fit(world(3000, seed=1))


def test_without_a_label_the_jury_is_the_one_it_starts_from(prior: Jury) -> None:
    votes = world(10, seed=2)
    assert fit_towards(prior, votes.take(slice(0, 0))) == prior


def test_the_fit_is_the_lowest_point_of_likelihood_and_distance_to_the_prior(prior: Jury) -> None:
    from scipy.optimize import minimize

    votes = world(120, seed=3, hardness=1.5)
    patterns, difference = tabulate(votes), 0.4
    fitted = _posterior(prior, patterns, difference).theta
    precision = np.linalg.inv(np.array(prior.covariance) + difference**2 * np.eye(9))
    options, starts, owner = patterns.options, patterns.starts, patterns.owner
    sizes, mass = np.bincount(owner), np.add.reduceat(patterns.hits(), starts)
    extra = mass / mass.sum() / sizes

    def slow(point: Floats) -> float:
        scores = options @ point + patterns.size
        groups = [np.logaddexp.reduce(scores[owner == p]) for p in range(len(starts))]
        chance = scores - np.array(groups)[owner]
        away = point - theta(prior)
        return float(-(patterns.hits() + extra[owner]) @ chance + away @ precision @ away / 2)

    bounds = [(0.0, None)] * 7 + [(None, np.log(votes.classes - 1)), (0.0, None)]
    best = minimize(slow, theta(prior), method="L-BFGS-B", bounds=bounds, tol=1e-12)
    np.testing.assert_allclose(fitted, best.x, atol=2e-3)


def test_many_labels_overrule_the_prior(prior: Jury) -> None:
    votes = world(4000, seed=4, hardness=2.5)
    taught, alone = fit_towards(prior, votes), Jury().fit(votes)
    test = world(4000, seed=5, hardness=2.5)
    assert loss(taught, test) == pytest.approx(loss(alone, test), abs=0.003)
    assert loss(taught, test) < loss(prior, test) - 0.01


@pytest.mark.slow
def test_fifty_labels_help_more_with_a_prior_than_without_and_do_it_no_harm(prior: Jury) -> None:
    test = world(4000, seed=6)
    few = [world(50, seed=seed) for seed in range(10, 22)]
    taught = np.mean([loss(fit_towards(prior, some), test) for some in few])
    alone = np.mean([loss(Jury().fit(some), test) for some in few])
    assert taught < alone - 0.005
    assert taught < loss(prior, test) + 0.002


def test_pictures_unlike_those_of_the_prior_are_fitted_without_it_where_that_is_better(prior: Jury) -> None:
    wrong = replace(prior, weights=(8.0,) * 6, log_votes=8.0)
    test, some = world(2000, seed=6, hardness=2.5), world(60, seed=12, hardness=2.5)
    kept, changed = Pupil(wrong).fit(some).jury, Pupil(wrong, changed=True).fit(some).jury
    assert loss(changed, test) < loss(kept, test) - 0.02
    assert changed == Jury().fit(some)
    alike = world(60, seed=13)
    assert Pupil(prior, changed=True).fit(alike) == replace(Pupil(prior).fit(alike), changed=True)


def test_a_jury_that_was_taught_knows_how_uncertain_it_is(prior: Jury) -> None:
    votes = world(200, seed=7, hardness=1.5)
    taught = fit_towards(prior, votes)
    low, high = taught.interval(votes)
    assert ((low <= taught.confidence(votes)) & (taught.confidence(votes) <= high)).all()
    assert taught.covariance != prior.covariance


def test_a_closer_prior_keeps_the_weights_closer(prior: Jury) -> None:
    votes = world(60, seed=8, hardness=2.0)
    patterns = tabulate(votes)
    points = [_posterior(prior, patterns, difference).theta for difference in DIFFERENCES]
    away = [float(np.linalg.norm(point - theta(prior))) for point in points]
    assert away == sorted(away)
    inside = [float(losses(patterns, point).sum()) for point in points]
    assert inside == sorted(inside, reverse=True)


def test_the_difference_that_there_is_has_the_highest_weight(prior: Jury) -> None:
    near, far = (tabulate(world(400, seed=11, hardness=hardness)) for hardness in (1.0, 2.5))
    weights = [[_posterior(prior, patterns, d).weight for d in DIFFERENCES] for patterns in (near, far)]
    assert np.argmax(weights[0]) < np.argmax(weights[1])


def test_a_prior_that_does_not_fit_is_refused(prior: Jury) -> None:
    votes = world(50, seed=9, views=4)
    with pytest.raises(DataError, check=coded("votes-mismatch")):
        fit_towards(prior, votes)
    with pytest.raises(FitError, check=coded("not-fitted")):
        fit_towards(Jury(), votes)
