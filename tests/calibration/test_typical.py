"""Typical weights: a prior that few labels leave as it is, and many overrule."""

from __future__ import annotations

from unittest.mock import patch

import numpy as np
import pytest

from looktwice.calibration import logit, options, typical
from looktwice.calibration.jury import Jury
from looktwice.calibration.logit import with_typical_weights
from looktwice.calibration.typical import TYPICAL
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


def test_every_number_of_views_up_to_eight_has_weights_that_a_jury_may_have() -> None:
    assert len(TYPICAL) == 9
    for mean, information in TYPICAL:
        matrix = np.array(information)
        assert min(mean[0], mean[1], mean[2], mean[4]) >= 0.0
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-4)
        assert np.linalg.eigvalsh((matrix + matrix.T) / 2).min() > -1e-3


@pytest.mark.parametrize("views", [0, 1, 3, 8, 12])
def test_one_label_leaves_the_weights_nearly_typical(views: int) -> None:
    patterns = with_typical_weights(options.tabulate(world(1, 0, views)))
    assert patterns.prior is not None
    odds = patterns.scores(logit.descend(patterns, logit.SHRINKAGE)) - patterns.scores(patterns.prior.mean)
    assert np.abs(odds).max() < 1.0


def test_views_beyond_those_known_weigh_together_as_much_as_these() -> None:
    eight, twelve = (with_typical_weights(options.tabulate(world(5, 0, views))).prior for views in (8, 12))
    assert eight is not None
    assert twelve is not None
    assert twelve.mean[1:13].sum() == pytest.approx(eight.mean[1:9].sum())


@pytest.mark.slow
def test_few_labels_gain_and_many_do_not_lose() -> None:
    test = world(3000, seed=1)

    def brier(labels: int, pictures: float) -> float:
        with patch.object(typical, "PICTURES", pictures):
            distributions = [Jury().fit(world(labels, seed=10 + seed)).distribution(test) for seed in range(4)]
        return float(np.mean([each.brier(test.truths) for each in distributions]))

    assert brier(20, typical.PICTURES) < brier(20, 0.0) - 0.003
    assert brier(2000, typical.PICTURES) == pytest.approx(brier(2000, 0.0), abs=5e-4)
