"""The prior of the jury, which follows the vote shares: few labels leave it as it is, and many overrule it."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest

from looktwice.calibration import jury, options
from looktwice.calibration.jury import Jury
from looktwice.calibration.logit import ODDS, Patterns, vote_shares
from looktwice.calibration.votes import LabelledVotes, Votes


def world(pictures: int, seed: int, views: int = 8, hardness: float = 0.9) -> LabelledVotes:
    """Pictures of unlike difficulty: on a hard one, base and views often fall for the same wrong label."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(10, size=pictures)
    lure = (truth + rng.integers(1, 10, size=pictures)) % 10
    hard = hardness * rng.beta(0.4, 1.2, size=(pictures, 1))
    said = np.where(rng.random((pictures, views + 1)) < 1 - hard, truth[:, None], lure[:, None]).astype(np.int32)
    names, words = tuple(map(str, range(pictures))), tuple(map(str, range(10)))
    votes = Votes(names, tuple(map(str, range(views))), words, said[:, 0], said[:, 1:], 10)
    return votes.labelled(map(str, truth))


def unanimous(patterns: Patterns, hits: float) -> float:
    """The log odds of a label that all answers return, after so many pictures on which it is right."""
    views = patterns.options[:, : 1 + patterns.views].sum(axis=1)
    chance = vote_shares(patterns, hits * (views == views.max()))[views.argmax()]
    return float(np.log(chance / (1 - chance)))


@pytest.mark.parametrize("views", [0, 1, 8, 12])
@pytest.mark.parametrize("classes", [10, 1000])
def test_without_labels_all_answers_agreeing_are_right_with_the_odds_of_the_prior(views: int, classes: int) -> None:
    patterns = options.tabulate(replace(world(200, 0, views), classes=classes))
    assert unanimous(patterns, 0.0) == pytest.approx(ODDS, abs=1e-4)
    assert ODDS + 0.1 < unanimous(patterns, 5.0) < unanimous(patterns, 500.0)


def test_the_power_that_made_the_truths_is_found_again() -> None:
    patterns = options.tabulate(world(300, 1))
    true = vote_shares(patterns, 0.0 * patterns.size)
    found = vote_shares(patterns, 1e6 * true)
    np.testing.assert_allclose(found, true, atol=1e-4)


@pytest.mark.slow
def test_few_labels_gain_and_many_do_not_lose() -> None:
    test = world(3000, seed=1)

    def brier(labels: int, pictures: float) -> float:
        with patch.object(jury, "PRIOR_PICTURES", pictures):
            distributions = [Jury().fit(world(labels, seed=10 + seed)).distribution(test) for seed in range(4)]
        return float(np.mean([each.brier(test.truths) for each in distributions]))

    assert brier(20, jury.PRIOR_PICTURES) < brier(20, 0.0) - 0.003
    assert brier(2000, jury.PRIOR_PICTURES) == pytest.approx(brier(2000, 0.0), abs=5e-4)
