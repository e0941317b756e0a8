"""Pictures of which it is only known what the truth is not: their likelihood against its definition."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import OptimizeResult, minimize
from support.errors import coded
from test_jury import simulated
from test_scored_jury import world

from looktwice.calibration import logit, options, panels, storage
from looktwice.calibration.evidence import Floats
from looktwice.calibration.jury import Jury
from looktwice.calibration.votes import OUTSIDE, LabelledVotes
from looktwice.errors import DataError, FitError


def doubted(votes: LabelledVotes, share: float, seed: int = 0) -> LabelledVotes:
    """The same, but of some pictures whose answer is wrong it is only known that it is."""
    wrong = (votes.base != votes.truths) & (np.random.default_rng(seed).random(len(votes)) < share)
    excluded = [(int(base),) if one else () for base, one in zip(votes.base, wrong, strict=True)]
    words = ["not this" if one else word for one, word in zip(wrong, votes.words, strict=True)]
    return votes.labelled(words, excluded)


def brute_loss(votes: LabelledVotes, shrinkage: float, theta: Floats) -> float:
    """−log likelihood, picture by picture from its definition, and the penalty; with the half counts of the fit."""
    patterns = options.tabulate(votes)
    total = 0.0
    for row in range(len(votes)):
        said = [int(votes.base[row]), *(int(v) for v in votes.views[row] if v >= 0)]
        weight = [theta[0], *(theta[1 + s] for s, v in enumerate(votes.views[row]) if v >= 0)]
        named = sorted(set(said))
        scores = {c: sum(w for w, v in zip(weight, said, strict=True) if v == c) for c in named}
        scores = {c: score + theta[-3] * np.log(said.count(c)) for c, score in scores.items()}
        if len(named) < votes.classes:
            share = (votes.classes - len(named)) / (votes.classes - 1)
            scores[OUTSIDE] = np.log(share) + theta[-2] + theta[-1] * np.log(len(named) / votes.answers().shape[1])
        powers = {c: float(np.exp(s)) for c, s in scores.items()}
        if votes.excluded and votes.excluded[row]:
            others = votes.classes - len(named)
            powers[OUTSIDE] = powers.get(OUTSIDE, 0.0)
            gone = len(set(votes.excluded[row]) - set(named))
            true = sum(p for c, p in powers.items() if c not in (*votes.excluded[row], OUTSIDE))
            true += powers[OUTSIDE] * (others - gone) / max(others, 1)
        else:
            true = powers[int(votes.truths[row]) if votes.truths[row] in powers else OUTSIDE]
        total -= np.log(true / sum(powers.values()))
    return float(total + theta @ patterns.penalty(shrinkage) @ theta / 2) + smoothing(patterns, theta)


def smoothing(patterns: logit.Patterns, theta: Floats) -> float:
    """The one picture more that a fit counts, spread over the options as the pictures are over the patterns."""
    scores = patterns.scores(theta)
    chance = scores - logit._log_totals(patterns, scores)[patterns.owner]
    pictures = patterns.owner[np.where(patterns.truth == logit.UNKNOWN, 0, patterns.truth)]
    pictures[patterns.doubtful] = patterns.owner[patterns.possible]
    share = np.bincount(pictures, minlength=len(patterns.starts)) / len(pictures)
    sizes = np.bincount(patterns.owner)
    return -float((share / sizes)[patterns.owner] @ chance)


def test_losses_are_those_of_the_definition() -> None:
    votes = doubted(simulated(60, 3, 6, seed=3), 1.0)
    assert votes.doubtful().any()
    theta = np.array([1.0, 0.6, 0.4, 0.7, 0.8, -0.5, 0.3])
    patterns = options.tabulate(votes)
    known = replace(patterns, spread=np.zeros(len(votes)))
    penalty = theta @ patterns.penalty(0.0) @ theta / 2
    plain = brute_loss(votes, 0.0, theta) - smoothing(patterns, theta) - penalty
    assert logit.losses(known, theta).sum() == pytest.approx(plain)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_the_fit_is_a_lowest_point_of_the_marginal_likelihood(seed: int) -> None:
    votes = doubted(simulated(80, 3, 5, seed=seed), 0.7, seed)
    theta = logit.descend(options.tabulate(votes), 3.0)
    bounds = [(0.0, None)] * 5 + [(None, np.log(4)), (0.0, None)]

    def lowest(start: Floats) -> OptimizeResult:
        return minimize(lambda t: brute_loss(votes, 3.0, t), start, method="L-BFGS-B", bounds=bounds, tol=1e-8)

    best = lowest(theta)
    assert brute_loss(votes, 3.0, theta) <= best.fun + 1e-5
    np.testing.assert_allclose(theta, best.x, atol=5e-3)
    elsewhere = lowest(np.zeros(len(theta)))
    assert brute_loss(votes, 3.0, theta) <= elsewhere.fun + 1e-4  # no lower point is found from elsewhere


def test_the_covariance_is_the_inverse_of_the_curvature() -> None:
    votes = doubted(simulated(80, 2, 5, seed=5), 0.7)
    patterns = options.tabulate(votes)
    theta = logit.descend(patterns, 3.0)
    h, size = 1e-3, len(theta)
    curvature = np.zeros((size, size))
    for i in range(size):
        for j in range(size):
            a, b = np.eye(size)[i] * h, np.eye(size)[j] * h
            ends = [brute_loss(votes, 3.0, theta + s * a + t * b) * s * t for s in (1, -1) for t in (1, -1)]
            curvature[i, j] = sum(ends) / (4 * h * h)
    inverse = np.linalg.inv(logit.posterior_covariance(patterns, 3.0, theta))
    np.testing.assert_allclose(inverse, curvature, rtol=2e-2, atol=2e-2)


def test_excluding_all_but_one_label_is_the_same_as_knowing_it() -> None:
    votes = simulated(100, 3, 4, seed=7)
    told = votes.labelled(
        ["?"] * 99 + [votes.words[99]], [tuple({0, 1, 2, 3} - {int(truth)}) for truth in votes.truths[:99]] + [()]
    )
    one, other = options.tabulate(votes), options.tabulate(told)
    theta = np.array([1.0, 0.6, 0.4, 0.7, 0.8, -0.5, 0.3])
    np.testing.assert_allclose(other.hits(theta=theta), one.hits(), atol=1e-12)
    np.testing.assert_allclose(logit.losses(other, theta), logit.losses(one, theta))
    np.testing.assert_allclose(panels.brier(other, theta, 4), panels.brier(one, theta, 4))
    np.testing.assert_allclose(logit.descend(other, 3.0), logit.descend(one, 3.0), atol=1e-5)


def test_knowing_that_answers_are_wrong_beats_leaving_these_pictures_out() -> None:
    votes, fresh = simulated(300, 4, 8, seed=11), simulated(4000, 4, 8, seed=12)
    told = doubted(votes, 1.0)
    dropped = votes.take(np.flatnonzero(~told.doubtful()))
    brier = {
        name: Jury().fit(part).distribution(fresh).brier(fresh.truths).mean()
        for name, part in (("all", votes), ("told", told), ("dropped", dropped))
    }
    assert brier["told"] < brier["dropped"] - 0.01
    assert brier["told"] < brier["all"] + 0.02


@pytest.mark.slow
def test_a_jury_with_scores_learns_from_wrong_answers_too() -> None:
    votes = doubted(world(150, seed=1), 1.0)
    fitted = Jury().fit(votes)
    assert votes.doubtful().sum() > 20
    assert fitted.scored is not None
    assert np.isfinite(fitted.scored.theta).all()


def test_excluding_everything_is_an_error_and_so_is_no_known_truth() -> None:
    votes = simulated(20, 6, 2, seed=1)
    with pytest.raises(DataError, check=coded("votes-mismatch")):
        options.tabulate(votes.labelled(["?"] * 19 + ["1"], [(0, 1)] * 19 + [()]))
    with pytest.raises(FitError, check=coded("labels-missing")):
        options.tabulate(votes.labelled(["?"] * 20, [(0,)] * 20))


@pytest.mark.parametrize("ending", [".npz", ".parquet"])
def test_saved_votes_keep_what_the_truth_is_not(tmp_path: Path, ending: str) -> None:
    votes = doubted(simulated(30, 2, 5, seed=2), 1.0)
    storage.save(tmp_path / f"votes{ending}", votes)
    again = storage.load(tmp_path / f"votes{ending}")
    assert isinstance(again, LabelledVotes)
    assert again.excluded == votes.excluded
    assert (again.truths == votes.truths).all()
