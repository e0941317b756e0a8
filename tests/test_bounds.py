"""Claims by class and on misses, as experiments/bounds.py measures them."""

from __future__ import annotations

import numpy as np
import pytest

from experiments.bounds import Trial, hindsight, holds, mapie, ours
from looktwice.calibration.risk import Answers, Claim


def answers(rng: np.random.Generator, pictures: int) -> Answers:
    """Answers about two classes whose confidences are right."""
    sure = rng.beta(4, 1, pictures)
    predicted = rng.integers(0, 2, pictures)
    truth = np.where(rng.random(pictures) < sure, predicted, 1 - predicted)
    words = np.array(["safe", "unsafe"])
    return Answers(sure, words[predicted], words[truth])


@pytest.mark.parametrize("claim", [Claim(0.1, "unsafe"), Claim(0.05, "unsafe", "miss")])
def test_a_claim_that_is_made_holds_and_hindsight_accepts_more(claim: Claim) -> None:
    broken = []
    for seed in range(40):
        rng = np.random.default_rng(seed)
        trial = Trial(answers(rng, 1500), answers(rng, 5000))
        accepted, best = ours(trial, [claim]), hindsight(trial, [claim])
        assert holds(claim, [claim], trial.tested, best)
        if accepted is None:
            continue
        broken.append(not holds(claim, [claim], trial.tested, accepted))
        if not broken[-1]:
            assert accepted[trial.tested.predicted == claim.label].sum() <= best.sum()
    assert len(broken) >= 15
    assert sum(broken) <= 4


def test_mapie_is_given_the_same_answers() -> None:
    rng = np.random.default_rng(0)
    trial, claim = Trial(answers(rng, 1500), answers(rng, 5000)), Claim(0.1, "unsafe")
    accepted = mapie(trial, [claim])
    assert accepted is not None
    assert holds(claim, [claim], trial.tested, accepted)
    assert 0 < accepted.sum() < (trial.tested.predicted == "unsafe").sum()
