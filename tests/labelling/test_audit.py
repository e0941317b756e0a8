"""An audit: strata with known chances, estimates without bias, and intervals that hold the truth."""

from __future__ import annotations

import numpy as np
import pytest
from support.errors import coded
from support.verdicts import verdict

from looktwice.calibration.metrics import wilson
from looktwice.decisions.verdict import Verdict
from looktwice.errors import DataError
from looktwice.labelling.summary import FEWEST_IN_STRATUM, STRATA, Audit, share, strata


def verdicts(count: int, seed: int = 0) -> list[Verdict]:
    """Verdicts of which most are sure."""
    confidence = 1.0 - np.random.default_rng(seed).beta(0.3, 3.0, count).round(2) * 0.5
    return [verdict(str(n), "x", float(c)) for n, c in enumerate(confidence)]


def test_strata_follow_the_confidence_and_never_part_equal_ones() -> None:
    confidence = np.array([d.confidence for d in verdicts(2000)])
    stratum = strata(confidence)
    assert set(stratum) == set(range(stratum.max() + 1))
    assert STRATA - 2 <= stratum.max() + 1 <= STRATA  # most confidences are alike here, and alike ones stay together
    for h in range(stratum.max()):
        assert confidence[stratum == h].min() > confidence[stratum == h + 1].max()
    assert strata(np.full(10, 0.9)).tolist() == [0] * 10


def test_every_beginning_of_the_order_gives_each_stratum_its_part() -> None:
    audit = Audit.from_verdicts(verdicts(2000))
    order = audit.order()
    assert sorted(order) == sorted(verdict.name for verdict in audit.verdicts)
    place = dict(zip((verdict.name for verdict in audit.verdicts), audit.stratum.tolist(), strict=True))
    first = np.bincount([place[name] for name in order[: len(audit.sizes) * FEWEST_IN_STRATUM]])
    assert first.tolist() == [FEWEST_IN_STRATUM] * len(audit.sizes)
    later = np.bincount([place[name] for name in order[:400]]) / audit.sizes
    assert (np.diff(later) > -1 / audit.sizes[1:]).all()  # the more doubtful, the greater the share, but for one label
    assert later[-1] > 2 * later[0]


@pytest.mark.slow
def test_within_a_stratum_everyone_has_the_same_chance() -> None:
    population = verdicts(300)
    counts = np.zeros(300)
    audit = Audit.from_verdicts(population)
    for seed in range(400):
        counts[[int(name) for name in Audit(population, seed).order()[:100]]] += 1
    for h, size in enumerate(audit.sizes):
        shares = counts[audit.stratum == h] / 400
        spread = np.sqrt(shares.mean() * (1 - shares.mean()) / 400)
        assert shares.std() < 1.5 * spread + 1e-9, (h, size)


@pytest.mark.slow
def test_the_estimate_has_no_bias_and_its_interval_holds_the_truth_though_the_confidences_lie() -> None:
    population = verdicts(3000)
    rng = np.random.default_rng(1)
    wrong = {d.name: bool(rng.random() < min(1.0, 2.0 * (1.0 - d.confidence) + 0.01)) for d in population}
    true = np.mean(list(wrong.values()))
    shares = []
    for seed in range(120):
        audit = Audit(population, seed)
        told = audit.share({name: wrong[name] for name in audit.order()[:250]})
        assert told is not None
        shares.append((told.value, float(told.low <= true <= told.high), told.high - told.low))
    value, covered, width = np.mean(shares, axis=0)
    assert value == pytest.approx(true, abs=0.003)
    assert covered >= 0.92
    low, high = wilson(250 * true, 250)
    assert width < 0.85 * (high - low)


def test_labelling_everything_leaves_no_doubt_and_nothing_tells_nothing() -> None:
    audit = Audit.from_verdicts(verdicts(60))
    wrong = {verdict.name: number % 7 == 0 for number, verdict in enumerate(audit.verdicts)}
    told = audit.share(wrong)
    assert told is not None
    assert (told.low, told.high, told.labels) == (told.value, told.value, 60)
    assert told.value == pytest.approx(np.mean(list(wrong.values())))
    assert audit.share({}) is None


def test_one_stratum_is_a_random_sample() -> None:
    told = share(np.array([10**9]), np.array([200]), np.array([10]), np.array([0.05]))
    low, high = wilson(10, 200)
    assert (told.value, told.labels) == (0.05, 200)
    np.testing.assert_allclose([told.low, told.high], [low, high], atol=1e-6)


def test_only_accepted_verdicts_are_audited() -> None:
    judged = [verdict("a", "x", 0.9, decision="accept"), verdict("b", "x", 0.5, decision="review")]
    assert Audit.from_verdicts(judged).order() == ["a"]
    with pytest.raises(DataError, check=coded("pictures-none")):
        Audit.from_verdicts(judged[1:])
