"""Calibrators: every family passes the same tests; the paper's propositions hold on a simulated classifier."""

import json
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from scipy.special import expit, ndtr, ndtri
from scipy.stats import gamma
from support.errors import coded

from looktwice.calibration import calibrators, metrics, shares
from looktwice.calibration.calibrators import Calibrator
from looktwice.calibration.evidence import Floats
from looktwice.calibration.jury import AdaptiveJury, Jury
from looktwice.calibration.shares import Beta, Constant, Cumulative, Gaussian, Isotonic, Naive, Probit, Transfer
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.errors import DataError, FitError

NOISE = Cumulative.of(np.random.default_rng(0).normal(size=2000))
FAMILIES: list[Calibrator] = [
    Naive(),
    Constant(),
    Gaussian(),
    Gaussian(ballot="vote"),
    Gaussian(grid=(), objective="nll"),
    Transfer(noise=NOISE),
    Probit(),
    Probit(ballot="vote"),
    Beta(),
    Isotonic(),
]
MONOTONE = [
    calibrator for calibrator in FAMILIES if calibrator.name in ("gaussian", "probit", "isotonic", "transfer", "beta")
]


def name(calibrator: Calibrator) -> str:
    return repr(calibrator)[:40]


def counted(agree: np.ndarray, asked: int, classes: int = 3) -> Votes:
    """Votes in which so many of the asked views keep the base label 0, and the others say 1."""
    views = np.where(np.arange(asked)[None, :] < agree[:, None], 0, 1).astype(np.int32)
    words = tuple("abcdefghij"[:classes])
    return Votes(
        tuple(map(str, range(len(agree)))), tuple(f"turn:{s + 1}" for s in range(asked)), words,
        np.zeros(len(agree), np.int32), views, classes,
    )  # fmt: skip


def example(n: int, asked: int, seed: int = 0) -> LabelledVotes:
    """A classifier that is more often right where views agree."""
    rng = np.random.default_rng(seed)
    chance = rng.beta(4, 1, n)
    votes = counted(rng.binomial(asked, chance), asked)
    return votes.labelled(np.where(rng.random(n) < chance, "a", "b").tolist())


@pytest.mark.parametrize("calibrator", FAMILIES, ids=name)
def test_confidence_is_a_probability_and_the_distribution_sums_to_one(calibrator: Calibrator) -> None:
    votes = example(300, 10)
    fitted = calibrator.fit(votes)
    confidence, distribution = fitted.confidence(votes), fitted.distribution(votes)
    assert ((confidence >= 0) & (confidence <= 1)).all()
    assert distribution.dense(3).sum(axis=1) == pytest.approx(np.ones(300))
    assert distribution.of(fitted.predict(votes)) == pytest.approx(confidence)
    low, high = fitted.interval(votes)
    assert (low <= high).all()


@pytest.mark.parametrize("calibrator", FAMILIES, ids=name)
def test_a_picture_without_views_may_have_any_confidence_of_the_curve(calibrator: Calibrator) -> None:
    rng = np.random.default_rng(0)
    truths = rng.choice(["a", "b", "c"], 60)
    asked = [[None] * 4 if row % 3 == 0 else rng.choice(["a", "b", "c"], 4).tolist() for row in range(60)]
    votes = Votes.from_labels(np.where(rng.random(60) < 0.7, truths, "a"), asked, truths)
    fitted = calibrator.fit(votes)
    low, high = fitted.interval(votes)
    confidence = fitted.confidence(votes)
    assert (low[::3] <= confidence[::3]).all()
    assert (high[::3] >= confidence[::3]).all()


@pytest.mark.parametrize("calibrator", FAMILIES, ids=name)
@pytest.mark.parametrize("asked", [1, 10])
@pytest.mark.parametrize("case", ["all right", "all wrong", "one picture", "twenty", "one class"])
def test_little_or_one_sided_evidence_gives_numbers_never_nan(calibrator: Calibrator, asked: int, case: str) -> None:
    n = {"one picture": 1, "twenty": 20}.get(case, 200)
    votes = example(n, asked)
    votes = votes.labelled({"all right": ["a"] * n, "all wrong": ["b"] * n}.get(case, votes.words))
    if case == "one class":
        one = Votes(votes.names, votes.panel, ("a",), votes.base, np.zeros_like(votes.views), 2)
        votes = one.labelled(votes.words)
    fitted = calibrator.fit(votes)
    assert np.isfinite(fitted.confidence(votes)).all()
    assert np.isfinite(fitted.distribution(votes).brier(votes.truths)).all()


@pytest.mark.parametrize("calibrator", FAMILIES, ids=name)
def test_no_labelled_pictures_is_a_clear_error(calibrator: Calibrator) -> None:
    with pytest.raises(FitError, check=coded("labels-too-few")):
        calibrator.fit(example(0, 3))


@pytest.mark.parametrize("calibrator", [*FAMILIES, Jury(), AdaptiveJury()], ids=name)
def test_truths_in_other_words_than_the_labels_are_never_fitted(calibrator: Calibrator) -> None:
    strange = example(20, 3).labelled(["ant", "bee"] * 10)
    with pytest.raises(DataError, check=coded("labels-unmatched")):
        calibrator.fit(strange)


@pytest.mark.parametrize("calibrator", [b for b in FAMILIES if b.name != "naive"], ids=name)
def test_a_calibrator_that_was_not_fitted_says_so(calibrator: Calibrator) -> None:
    with pytest.raises(FitError, check=coded("not-fitted")):
        calibrator.confidence(example(5, 3))


@pytest.mark.parametrize("calibrator", MONOTONE, ids=name)
@given(seed=st.integers(0, 10_000), asked=st.integers(1, 20), n=st.integers(1, 60))
@settings(max_examples=25, deadline=None)
def test_confidence_never_falls_as_agreement_rises(calibrator: Calibrator, seed: int, asked: int, n: int) -> None:
    fitted = calibrator.fit(example(n, asked, seed))
    # From half on: below that the vote goes to the other label.
    ladder = counted(np.arange((asked + 1) // 2, asked + 1), asked)
    assert (np.diff(fitted.confidence(ladder)) >= -1e-12).all()


@pytest.mark.parametrize("calibrator", FAMILIES, ids=name)
@pytest.mark.parametrize("fit", [False, True])
def test_every_calibrator_survives_json(calibrator: Calibrator, fit: bool) -> None:
    calibrator = calibrator.fit(example(100, 5)) if fit else calibrator
    assert calibrators.restore(json.loads(json.dumps(calibrators.dump(calibrator)))) == calibrator


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"family": "oracle"}, "calibrator-unknown"),
        ({"family": "probit", "c": 1.0}, "calibrator-malformed"),
        ({"family": "probit", "a": "steep"}, "calibrator-malformed"),
        ({"family": "gaussian", "a": -1.0}, "option-invalid"),
        ({}, "calibrator-unknown"),
    ],
)
def test_a_malformed_calibrator_is_refused(fields: dict[str, object], code: str) -> None:
    with pytest.raises((DataError, FitError), check=coded(code)):
        calibrators.restore(fields)


def test_constant_believes_the_accuracy_of_the_labelled_pictures() -> None:
    votes = counted(np.array([3, 3, 3, 3]), 3)
    assert Constant().fit(votes.labelled("aaab")).confidence(votes).tolist() == [0.75] * 4


def test_gaussian_is_the_papers_equation_three() -> None:
    votes = counted(np.array([0, 1, 5, 8, 10]), 10)
    # σ(0.5 · Φ⁻¹(p)): Φ⁻¹(0.1) = −1.2815516, Φ⁻¹(0.8) = 0.8416212
    expected = [0.0, expit(-0.6407758), 0.5, expit(0.4208106), 1.0]
    assert Gaussian(a=0.5).confidence(votes) == pytest.approx(expected)


def test_the_grid_takes_the_a_with_the_least_loss_and_the_open_search_does_no_worse() -> None:
    votes = example(500, 10)

    def loss(calibrator: Calibrator) -> float:
        return float(calibrator.distribution(votes).brier(votes.truths).mean())

    chosen = Gaussian().fit(votes)
    assert loss(chosen) == min(loss(Gaussian(a=a)) for a in shares.PAPER_A)
    assert loss(Gaussian(grid=()).fit(votes)) <= loss(chosen) + 1e-9


def test_the_majority_may_be_believed_instead_of_the_base_label() -> None:
    votes = counted(np.array([1]), 5)
    assert Gaussian(a=1.0, ballot="vote").predict(votes).tolist() == [1]
    assert Gaussian(a=1.0, ballot="base").predict(votes).tolist() == [0]


def simulated(margin: Floats, noise: Callable[[int], Floats], asked: int) -> Votes:
    """A binary classifier: the views move the margin by noise, and the label flips where it becomes negative."""
    agree = np.array([(m + noise(asked) > 0).sum() for m in margin])
    return counted(agree, asked, classes=2)


def test_proposition_one_gaussian_noise_gives_back_the_softmax() -> None:
    rng, a = np.random.default_rng(1), 1.5
    margin = np.linspace(0.1, 3.0, 12)
    votes = simulated(margin, lambda n: a * rng.standard_normal(n), 100_000)
    assert np.abs(Gaussian(a=a).confidence(votes) - expit(margin)).max() < 0.01


def test_proposition_one_holds_the_better_the_more_views_are_asked() -> None:
    rng, margin = np.random.default_rng(2), np.linspace(0.1, 2.0, 40)
    errors = [
        np.abs(Gaussian(a=1.0).confidence(simulated(margin, rng.standard_normal, s)) - expit(margin)).mean()
        for s in (10, 100, 1000, 10_000)
    ]
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.01


def skewed(rng: np.random.Generator, n: int) -> Floats:
    """Zero-mean noise with a long tail to the right."""
    return rng.gamma(1.0, 1.5, n) - 1.5


@pytest.mark.slow
def test_proposition_two_the_right_cumulative_gives_back_the_softmax_where_gaussian_cannot() -> None:
    rng = np.random.default_rng(3)
    margin = np.linspace(0.05, 1.4, 12)
    votes = simulated(margin, lambda n: skewed(rng, n), 100_000)
    levels = np.linspace(0.0, 1.0, 20_001)
    exact = gamma(1.0, scale=1.5).ppf(levels[:-1]) - 1.5
    transfer = Transfer(a=1.0, noise=Cumulative(tuple(exact), tuple(levels[:-1])))
    assert np.abs(transfer.confidence(votes) - expit(margin)).max() < 0.01
    errors = [np.abs(Gaussian(a=a).confidence(votes) - expit(margin)).max() for a in np.geomspace(0.05, 20, 200)]
    assert min(errors) > 0.03


def test_transfer_beats_gaussian_on_skewed_noise_when_both_are_fitted() -> None:
    rng = np.random.default_rng(4)
    margin = np.abs(rng.normal(0.0, 1.0, 4000))
    truths = np.where(rng.random(4000) < expit(margin), "a", "b").tolist()
    votes = simulated(margin, lambda n: skewed(rng, n), 200).labelled(truths)
    noise = Cumulative.of(skewed(rng, 50_000))
    fitted = [
        calibrator.fit(votes).confidence(votes) for calibrator in (Gaussian(grid=()), Transfer(noise=noise, grid=()))
    ]
    gaussian, transfer = (np.abs(confidence - expit(margin)).mean() for confidence in fitted)
    assert transfer < gaussian


def test_probit_finds_the_figures_that_made_the_data() -> None:
    rng = np.random.default_rng(5)
    agree = rng.integers(0, 51, 40_000)
    share = (agree + 0.5) / 51
    truths = np.where(rng.random(40_000) < expit(1.2 * ndtri(share) + 0.7), "a", "b").tolist()
    fitted = Probit().fit(counted(agree, 50).labelled(truths))
    assert fitted.a == pytest.approx(1.2, abs=0.06)
    assert fitted.b == pytest.approx(0.7, abs=0.06)


def test_the_normal_cumulative_makes_transfer_equal_to_gaussian() -> None:
    x = np.linspace(-6, 6, 4001)
    votes = counted(np.arange(1, 20), 20)
    same = Transfer(a=0.8, noise=Cumulative(tuple(x), tuple(ndtr(x)))).confidence(votes)
    assert same == pytest.approx(Gaussian(a=0.8).confidence(votes), abs=1e-4)


@pytest.mark.parametrize("calibrator", [Probit(), Beta()], ids=name)
def test_a_curve_is_the_logistic_regression_on_platts_targets(calibrator: Calibrator) -> None:
    agree = np.repeat([2, 4, 6, 8], [6, 9, 12, 33])
    correct = np.arange(60) % np.repeat([2, 3, 4, 9], [6, 9, 12, 33]) > 0
    votes = counted(agree, 8).labelled(np.where(correct, "a", "b").tolist())
    share, right = (agree + 0.5) / 9, correct.sum()
    features = [ndtri(share)] if calibrator.name == "probit" else [np.log(share), -np.log1p(-share)]
    missed = calibrator.fit(votes).confidence(votes) - np.where(
        correct, (right + 1) / (right + 2), 1 / (60 - right + 2)
    )
    assert [float(column @ missed) for column in (*features, np.ones(60))] == pytest.approx(
        [0.0] * (len(features) + 1), abs=0.01
    ), "the gradient of the likelihood is zero where it is highest"


def test_isotonic_draws_each_accuracy_to_the_mean_by_one_picture() -> None:
    votes = counted(np.repeat([0, 8], 4), 8).labelled(["a", "b", "b", "b", "a", "a", "a", "b"])
    assert Isotonic().fit(votes).confidence(votes)[[0, 4]].tolist() == pytest.approx([1.5 / 5, 3.5 / 5])


@pytest.mark.parametrize("objective", ["brier", "nll", "ece"])
def test_the_grid_takes_the_a_that_is_least_in_the_figure_asked_for(objective: shares.Objective) -> None:
    votes, grid = example(80, 10, seed=2), tuple(np.linspace(0.1, 3.0, 59).tolist())
    share, correct = (votes.views == 0).mean(axis=1), votes.truths == 0
    figure: dict[str, Callable[[Floats], float]] = {
        "brier": lambda said: float(metrics.brier_even_losses(said, correct, 3).mean()),
        "nll": lambda said: float(metrics.nll_even_losses(said, correct, 3).mean()),
        "ece": lambda said: metrics.ece(said, correct),
    }
    least = {key: min(grid, key=lambda a: find(expit(a * ndtri(share)))) for key, find in figure.items()}
    assert len(set(least.values())) == 3, "the figures do not agree on these pictures"
    assert Gaussian(grid=grid, objective=objective).fit(votes).a == least[objective]


@pytest.mark.parametrize(
    ("x", "f"),
    [
        ((0.0, 1.0), (-0.1, 1.0)),
        ((0.0, 1.0), (0.0, 1.1)),
        ((0.0, 1.0), (0.5, 0.5)),
        ((0.0, 1.0, 2.0), (0.0, 0.6, 0.5)),
        ((0.0, 0.0), (0.0, 1.0)),
        ((0.0,), (1.0,)),
        ((0.0, 1.0), (0.0, 0.5, 1.0)),
        ((0.0, float("inf")), (0.0, 1.0)),
    ],
)
def test_what_is_no_cumulative_is_refused(x: tuple[float, ...], f: tuple[float, ...]) -> None:
    with pytest.raises(DataError, check=coded("calibrator-malformed")):
        Cumulative(x, f)


def test_a_class_that_is_not_a_calibrator_cannot_be_registered() -> None:
    @dataclass(frozen=True)
    class Half:
        name = "half"

    class Plain(Probit):
        name = "plain"

    with pytest.raises(FitError, check=coded("calibrator-plugin")):
        calibrators.register(Half)  # type: ignore[type-var]
    with pytest.raises(FitError, check=coded("calibrator-plugin")):
        calibrators.register(Probit)
    with pytest.raises(FitError, check=coded("calibrator-plugin")):
        calibrators.named(Plain())


@dataclass(frozen=True)
class Edges(Probit):
    """A calibrator of a user, with an array as a field."""

    name = "edges"
    edges: tuple[float, ...] = ()


@pytest.mark.parametrize("kind", [np.ndarray, tuple[np.bool_, ...], Callable[[float], float], "Unknown"], ids=str)
def test_a_field_that_a_profile_cannot_store_is_refused_when_it_is_registered(kind: object) -> None:
    family: type[Calibrator] = dataclass(frozen=True)(
        type("Own", (Probit,), {"__annotations__": {"rule": kind}, "rule": (), "name": "own"})
    )
    with pytest.raises(FitError, match=r"rule|Unknown", check=coded("calibrator-plugin")):
        calibrators.register(family)
    assert "own" not in calibrators.FAMILIES


def test_the_numbers_of_numpy_in_a_calibrator_are_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(calibrators.FAMILIES, "edges", Edges)
    values = np.array([0.25, 0.5], np.float32)
    for edges in (tuple(values), values):
        stored = json.loads(json.dumps(calibrators.dump(Edges(a=np.float64(2), edges=edges))))  # type: ignore[arg-type]
        assert calibrators.restore(stored) == Edges(a=2.0, edges=(0.25, 0.5))
    with pytest.raises(FitError, check=coded("calibrator-plugin")):
        calibrators.dump(Edges(edges=(object(),)))  # type: ignore[arg-type]


@pytest.mark.parametrize("calibrator", [*FAMILIES, Jury(), AdaptiveJury()], ids=name)
def test_votes_without_truths_are_refused(calibrator: Calibrator) -> None:
    bare = Votes.from_labels(["a", "b"] * 20, [["a", "a"]] * 40, scores=np.full((40, 3), 0.5))
    with pytest.raises(FitError, check=coded("labels-missing")):
        calibrator.fit(bare)  # type: ignore[arg-type]
