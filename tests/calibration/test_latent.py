"""The noise in latent space: the streamed figures equal the direct ones, and they say what they should."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from numpy.typing import NDArray
from scipy.special import expit, ndtr
from scipy.stats import kurtosis, skew
from support.errors import coded

from looktwice.calibration.latent import (
    GRID,
    Cumulatives,
    Head,
    Margins,
    closest_normal,
    describe,
    distances,
    read,
    shape,
)
from looktwice.calibration.shares import PAPER_A, Cumulative, Gaussian, Transfer
from looktwice.calibration.votes import Votes
from looktwice.errors import DataError

Floats = NDArray[np.float64]


def mixed(pictures: int = 120, draws: int = 20, seed: int = 0) -> Floats:
    """Noise whose size, centre and tail differ between pictures, a tenth of it exactly 0."""
    rng = np.random.default_rng(seed)
    noise = rng.gamma(2.0, 1.0, (pictures, draws)) * rng.gamma(2.0, 1.0, (pictures, 1)) - rng.normal(
        2.0, 1.0, (pictures, 1)
    )
    return np.where(rng.random(noise.shape) < 0.1, 0.0, noise)


# The grid


def test_the_grid_rises_and_is_the_same_on_both_sides() -> None:
    assert (np.diff(GRID) > 0).all()
    np.testing.assert_array_equal(GRID, -GRID[::-1])
    assert {0.0, 0.0001, 1.0, 10_000.0} <= set(GRID.tolist())
    assert np.diff(np.log(GRID[GRID > 0])).max() < 0.0231


# Streamed against direct


def direct(noise: Floats) -> Floats:
    """(n, len(GRID)): each picture's empirical cumulative, as its definition says."""
    return np.array([[(row <= x).mean() for x in GRID] for row in noise])


def test_mean_band_var_and_ks_equal_a_slow_direct_computation() -> None:
    noise = mixed(20, 12)
    slow = direct(noise)
    mean, low, high = slow.mean(axis=0), *np.quantile(slow, [0.025, 0.975], axis=0)
    cumulatives = Cumulatives.count(noise)
    np.testing.assert_allclose(cumulatives.mean(), mean, atol=1e-14)
    np.testing.assert_allclose(cumulatives.quantile(0.025), low, atol=1e-14)
    np.testing.assert_allclose(cumulatives.quantile(0.975), high, atol=1e-14)
    described = describe(cumulatives)
    assert described.var == pytest.approx(max(high - low), abs=1e-14)
    on_grid = [max(abs(mean - ndtr(GRID / a))) for a in PAPER_A]
    assert described.paper.a == PAPER_A[int(np.argmin(on_grid))]
    assert described.paper.ks == pytest.approx(min(on_grid))
    everywhere = min(max(abs(mean - ndtr(GRID / a))) for a in np.geomspace(0.1, 100, 2001))
    assert described.normal.ks == pytest.approx(everywhere, abs=5e-4)
    assert described.normal.ks <= described.paper.ks


@given(st.lists(st.integers(0, 60), max_size=5), st.permutations(range(60)))
def test_pictures_add_up_to_the_same_in_any_order_and_any_parts(cuts: list[int], order: list[int]) -> None:
    noise = mixed(60, 7)
    total = Cumulatives.count(noise[:0])
    for part in np.split(noise[order], sorted(cuts)):
        total = total + Cumulatives.count(part)
    np.testing.assert_array_equal(total.counts, Cumulatives.count(noise).counts)


def test_the_memory_for_pictures_does_not_grow_with_their_number() -> None:
    few, many = Cumulatives.count(mixed(10, 9)), Cumulatives.count(mixed(1000, 9))
    assert few.counts.nbytes == many.counts.nbytes
    assert (many.pictures, many.draws) == (1000, 9)


@given(st.integers(1, 40), st.floats(0.0, 1.0))
def test_a_quantile_over_pictures_is_the_one_of_numpy(pictures: int, level: float) -> None:
    noise = mixed(pictures, 5, seed=pictures)
    points = slice(700, 1100, 50)
    rows = [[(row <= x).mean() for x in GRID[points]] for row in noise]
    np.testing.assert_allclose(
        Cumulatives.count(noise).quantile(level)[points], np.quantile(rows, level, axis=0), atol=1e-12
    )


# What the figures say


def test_pictures_that_are_moved_alike_have_a_narrow_band_and_others_a_wide_one() -> None:
    rng = np.random.default_rng(1)
    alike = rng.normal(size=(300, 400))
    unlike = alike * rng.gamma(1.0, 1.0, (300, 1))
    assert describe(Cumulatives.count(alike)).var < 0.12
    assert describe(Cumulatives.count(unlike)).var > 0.3


@given(st.floats(0.02, 200))
def test_gaussian_noise_is_found_to_be_gaussian_of_the_right_size(a: float) -> None:
    normal = closest_normal(ndtr(GRID / a))
    assert normal.a == pytest.approx(a, rel=1e-3)
    assert normal.ks < 1e-4


def test_the_distance_to_a_gaussian_is_the_widest_gap() -> None:
    assert distances(ndtr(GRID / 2.0), np.array([2.0]))[0] == 0.0
    assert distances(np.where(GRID < 1.0, 0.0, 1.0), np.array([1.0]))[0] == pytest.approx(ndtr(0.988), abs=0.01)


@pytest.mark.parametrize("side", [1.0, -1.0])
def test_the_shape_says_on_which_side_the_long_tail_is(side: float) -> None:
    samples = side * (np.random.default_rng(2).gamma(1.0, 1.5, (100, 500)) - 1.5)
    described = shape(Cumulatives.count(samples).mean())
    assert described.mean == pytest.approx(samples.mean(), abs=0.01)
    assert described.deviation == pytest.approx(samples.std(), rel=0.01)
    assert described.skewness == pytest.approx(skew(samples.ravel()), rel=0.01)
    assert described.kurtosis == pytest.approx(kurtosis(samples.ravel()), rel=0.02)
    long, short = (described.right, described.left) if side > 0 else (described.left, described.right)
    assert long > 1.5
    assert short < 1.0


def test_the_shape_of_a_gaussian_is_that_of_a_gaussian() -> None:
    described = shape(ndtr(GRID / 3.0))
    figures = [
        described.mean,
        described.deviation / 3,
        described.skewness,
        described.kurtosis,
        described.left,
        described.right,
    ]
    assert figures == pytest.approx([0, 1, 0, 0, 1, 1], abs=2e-3)


# The inverse


@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=30, unique=True), st.lists(st.floats(0, 1), min_size=2))
def test_the_inverse_never_falls_and_stays_within_the_noise(samples: list[float], levels: list[float]) -> None:
    if max(samples) - min(samples) < 1e-3:
        return
    cumulative = describe(Cumulatives.count(np.array([samples]))).cumulative
    x = cumulative.inverse(np.array(sorted(levels)))
    assert (np.diff(x) >= 0).all()
    assert np.isfinite(x).all()
    assert (
        min(samples) - 0.03 * abs(min(samples)) - 1e-4
        <= x[0]
        <= x[-1]
        <= max(samples) + 0.03 * abs(max(samples)) + 1e-4
    )


def test_the_inverse_ends_where_the_noise_does_and_not_where_the_table_does() -> None:
    padded = Cumulative((-1000.0, -2.0, -1.0, 3.0, 5.0, 1000.0), (0.0, 0.0, 0.5, 0.5, 1.0, 1.0))
    assert padded.inverse(np.array([-1.0, 0.0, 0.5, 1.0, 2.0])).tolist() == [-2.0, -2.0, 1.0, 5.0, 5.0]


def test_what_is_kept_of_a_cumulative_begins_and_ends_with_the_noise() -> None:
    kept = describe(Cumulatives.count(np.array([[-1.0, 0.5, 10.0]]))).cumulative
    assert [kept.f[0], kept.f[1], kept.f[-2], kept.f[-1]] == pytest.approx([0.0, 1 / 3, 2 / 3, 1.0], abs=1e-6)
    assert [kept.x[1], kept.x[-1]] == [-1.0, 10.0]


# One picture


def test_a_reading_is_what_the_formulas_say() -> None:
    head = Head(np.array([[1.0, 0.0, 2.0], [0.0, 1.0, -1.0]]), np.array([0.5, 0.0, 0.0]))
    base, views = np.array([3.0, 1.0]), np.array([[3.0, 1.0], [1.0, 1.0], [0.0, 4.0]])
    reading = read(head, base, views)
    # The logits are 3.5, 1 and 5, so A = 2 and B = 0; w = (1, −1) and b = −0.5.
    assert (reading.label, reading.margin) == (2, 1.5)
    assert reading.labels.tolist() == [2, 0, 1]
    assert reading.noise.tolist() == [0.0, -2.0, -6.0]


def test_a_tie_goes_to_the_first_label_for_the_picture_and_its_views_alike() -> None:
    reading = read(Head(np.eye(3), np.zeros(3)), np.array([1.0, 1.0, 0.0]), np.array([[1.0, 1.0, 0.0]]))
    assert (reading.label, reading.margin, reading.labels.tolist()) == (0, 0.0, [0])


def test_the_error_of_a_curve_is_its_distance_to_the_models_own_probabilities() -> None:
    rng = np.random.default_rng(3)
    margin, kept, curve = rng.gamma(2.0, 1.0, 500), rng.integers(0, 11, 500), np.linspace(0.2, 1.0, 11)
    parts = Margins.collect(margin[:100], kept[:100], 10) + Margins.collect(margin[100:], kept[100:], 10)
    assert parts.error(curve) == pytest.approx(np.sqrt(((curve[kept] - expit(margin)) ** 2).mean()), abs=1e-8)
    assert parts.count.sum() == 500


# Proposition 2, from the noise to the confidence


def skewed(rng: np.random.Generator, shape: tuple[int, ...]) -> Floats:
    """Zero-mean noise with a long tail to the right."""
    return rng.gamma(1.0, 1.5, shape) - 1.5


def counted(agree: NDArray[np.integer], asked: int) -> Votes:
    views = (np.arange(asked) >= agree[:, None]).astype(np.int32)
    names = tuple(map(str, range(len(agree))))
    return Votes(names, ("v",) * asked, ("yes", "no"), np.zeros(len(agree), np.int32), views, 2)


def test_a_cumulative_learned_on_an_open_model_gives_back_the_softmax_of_a_closed_one_and_gaussian_cannot() -> None:
    rng = np.random.default_rng(4)
    learned = describe(Cumulatives.count(skewed(rng, (4000, 50)))).cumulative
    margin = np.linspace(0.05, 1.4, 15)
    agree = (margin[:, None] + skewed(rng, (15, 10_000)) > 0).sum(axis=1)
    votes, truth = counted(agree, 10_000), expit(margin)
    assert np.abs(Transfer(a=1.0, noise=learned).confidence(votes) - truth).max() < 0.02
    assert min(np.abs(Gaussian(a=a).confidence(votes) - truth).max() for a in np.geomspace(0.05, 20, 200)) > 0.03


# What cannot be described


def test_noise_that_cannot_be_described_is_refused_with_the_reason() -> None:
    with pytest.raises(DataError, check=coded("pictures-none")):
        describe(Cumulatives.count(np.empty((0, 5))))
    with pytest.raises(DataError, check=coded("data-invalid")):
        Cumulatives.count(np.array([[0.0, np.nan]]))
    with pytest.raises(DataError, check=coded("data-invalid")):
        describe(Cumulatives.count(np.zeros((3, 5))))
    with pytest.raises(DataError, check=coded("data-invalid")):
        describe(Cumulatives.count(np.array([[-1e6, 0.0, 1e6]])))
    with pytest.raises(DataError, check=coded("data-invalid")):
        Cumulatives.count(np.ones((1, 5))) + Cumulatives.count(np.ones((1, 6)))
