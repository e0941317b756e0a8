"""Several classifiers through the model: which are asked, why, and for how much."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.errors import coded

import looktwice as lt
from looktwice.errors import FitError, ProfileError
from looktwice.views import Panel

Pixels = NDArray[np.uint8]
WORDS = ("black", "dark", "bright", "white")
RNG = np.random.default_rng(7)
CODES = RNG.integers(4, size=400)
NOISE = RNG.random(400)
IMAGES = np.repeat((64 * CODES + 32).astype(np.uint8), 8 * 8 * 3).reshape(400, 8, 8, 3).copy()
IMAGES[:, 0, 0] = (255 * NOISE).astype(np.uint8)[:, None]
IMAGES[:, 0, 1] = np.arange(400, dtype=np.uint16).view(np.uint8).reshape(400, 2).repeat(2, axis=1)[:, :3]
TRUTHS = [WORDS[code] for code in CODES]


def right(image: Pixels) -> str:
    return WORDS[int(image[4, 4, 0]) // 64]


def cheap(image: Pixels) -> str:
    """Right about the dark half; of the bright one it knows nothing."""
    word = right(image)
    return word if word in WORDS[:2] else WORDS[2 + int(image[0, 0, 0] > 127)]


def dear(image: Pixels) -> str:
    return right(image) if image[0, 0, 0] < 245 else "black"


def models(**options: object) -> lt.Model:
    classifiers = [lt.connect(dear, name="dear", price="0.01"), lt.connect(cheap, name="cheap", price="0.001")]
    return lt.Model(classifiers, **{"ledger": "memory"} | options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("several") / "profile.json"
    with models() as model:
        model.fit(IMAGES[:300], TRUTHS[:300], views=Panel(()))
        model.save(path)
    return path


def load(path: Path) -> lt.Model:
    classifiers = [lt.connect(cheap, name="cheap", price="0.001"), lt.connect(dear, name="dear", price="0.01")]
    return lt.Model.load(path, classifiers, ledger="memory")


@pytest.mark.slow
def test_the_cheap_one_is_asked_first_and_the_dear_one_where_it_doubts(fitted: Path) -> None:
    with load(fitted) as model:
        verdicts = [verdict for verdict in model.score(IMAGES[300:]) if isinstance(verdict, lt.Verdict)]
    dark = [verdict for verdict, truth in zip(verdicts, TRUTHS[300:], strict=True) if truth in WORDS[:2]]
    bright = [verdict for verdict, truth in zip(verdicts, TRUTHS[300:], strict=True) if truth in WORDS[2:]]
    assert all(verdict.asked[0].classifier == "cheap" for verdict in verdicts)
    assert {verdict.queries for verdict in dark} == {1}
    assert {verdict.queries for verdict in bright} == {2}
    assert {verdict.price for verdict in dark} == {0.001}
    assert {verdict.price for verdict in bright} == {0.011}
    assert all(verdict.stopped == "all-asked" for verdict in bright)
    assert all(verdict.asked[1].confidence_before is not None for verdict in bright)
    assert "dear" in bright[0].sentence
    assert json.loads(json.dumps(bright[0].to_dict()))["asked"][1]["classifier"] == "dear"


@pytest.mark.slow
def test_fewer_queries_than_two_a_picture_mean_one_of_them(tmp_path: Path) -> None:
    with models() as model:
        profile = model.fit(IMAGES[:300], TRUTHS[:300], views=Panel(()), max_price=0.001).profile
        assert (profile.name, profile.others) == ("cheap", ())
        verdict = model.look(IMAGES[301])
        assert (verdict.queries, verdict.price) == (1, 0.001)


def test_a_spent_budget_of_one_leaves_the_other_and_says_so(fitted: Path, tmp_path: Path) -> None:
    place = next(place for place in range(300, 400) if TRUTHS[place] in WORDS[2:])
    limited = [lt.connect(cheap, name="cheap", price="0.001"), lt.connect(dear, name="dear", price="0.01", budget=0)]
    with lt.Model.load(fitted, limited, ledger=str(tmp_path / "ledger.db")) as model:
        verdict = model.look(IMAGES[place])
    assert verdict.queries == 1
    assert verdict.asked[1].missing


def test_what_the_budget_left_half_asked_is_not_accepted_and_asked_again(fitted: Path, tmp_path: Path) -> None:
    book, decide = str(tmp_path / "ledger.db"), lt.DecisionOptions(max_error=0.2)
    new = IMAGES[300:]

    def scored(money: float) -> list[lt.Verdict]:
        both = [lt.connect(cheap, name="cheap", price="0.001"), lt.connect(dear, name="dear", price="0.01")]
        with lt.Model.load(fitted, both, ledger=book, money=money) as model:
            return [verdict for verdict in model.score(new, decide) if isinstance(verdict, lt.Verdict)]

    short = [verdict for verdict in scored(0.2) if verdict.stopped == "budget"]
    assert short
    assert {verdict.decision for verdict in short} == {"review"}
    whole = scored(5)
    assert len(whole) == len(new)
    assert not any(verdict.stopped == "budget" for verdict in whole)
    assert any(verdict.decision == "accept" for verdict in whole if verdict.name in {one.name for one in short})


def test_a_profile_names_the_classifiers_that_it_needs(fitted: Path) -> None:
    with pytest.raises(ProfileError, check=coded("profile-mismatch")):
        lt.Model.load(fitted, lt.connect(dear, name="other", price="0.01"))


@pytest.mark.slow
def test_a_result_is_shown_by_its_figures_and_a_limit_below_every_price_is_refused() -> None:
    with models() as model:
        result = model.fit(IMAGES[:300], TRUTHS[:300], views=Panel(()))
        assert len(repr(result)) < 5000
        assert str(result).startswith(str(result.profile))
        assert (result.frontier.to_frame()["brier_low"] >= 0.0).all()
        sent = model.asked.sent
        for price, queries in ((0.0001, None), (float("nan"), None), (None, 0.5)):
            with pytest.raises(FitError, check=coded("option-invalid")):
                model.fit(IMAGES, TRUTHS, max_price=price, max_queries=queries)
        assert model.asked.sent == sent


@pytest.mark.parametrize(("paper", "calibrator"), [("rotation", "jury"), (None, "probit")])
def test_what_is_for_one_classifier_is_refused_before_anything_is_paid(paper: str | None, calibrator: str) -> None:
    with models() as model:
        with pytest.raises(FitError, check=coded("option-conflict")):
            model.fit(IMAGES[:100], TRUTHS[:100], paper=paper, calibrator=calibrator)
        assert model.asked.sent == 0


@pytest.mark.slow
def test_pictures_that_the_chosen_classifier_did_not_answer_are_not_judged() -> None:
    def silent(image: Pixels) -> str:
        return right(image) if image[0, 0, 0] > 12 else ""

    classifiers = [
        lt.connect(silent, name="silent", price="0.001"),
        lt.connect(lambda _: "black", name="useless", price="0.01"),
    ]
    with lt.Model(classifiers, ledger="memory") as model:
        profile = model.fit(IMAGES[:300], TRUTHS[:300], views=Panel(())).profile
    assert (profile.name, profile.others) == ("silent", ())
    silences = sum(int(image[0, 0, 0]) <= 12 for image in IMAGES[:300])
    assert silences > 0
    assert len(profile.held_out.confidence) < 300
    assert min(profile.held_out.predicted) >= 0


def test_limits_stop_earlier_in_the_same_sequence_and_keep_their_own_guarantee(fitted: Path) -> None:
    with load(fitted) as model:
        profile = model.fitted()
        assert profile.adaptive
        assert profile.cheaper
        prices = [stopping.price for stopping in (*profile.cheaper, profile.adaptive)]
        assert prices == sorted(prices)
        between = (prices[0] + profile.adaptive.price) / 2
        paid = [v.price for v in model.score(IMAGES[300:], max_price=between) if isinstance(v, lt.Verdict)]
        whole = [v.price for v in model.score(IMAGES[300:]) if isinstance(v, lt.Verdict)]
        assert sum(paid) < sum(whole)
        assert {v.queries for v in model.score(IMAGES[300:], max_queries=1) if isinstance(v, lt.Verdict)} == {1}
        own, usual = model.policy(max_queries=1).held_out, model.policy().held_out
        assert len(own.correct) == len(usual.correct)
        assert sum(own.correct) < sum(usual.correct)
        assert model.policy(all=True, max_queries=1).rounds is None
        with pytest.raises(ProfileError, check=coded("profile-incomplete")):
            model.policy(max_price=0.0001)


def test_a_budget_that_ends_leaves_out_what_was_not_asked_about_every_picture(tmp_path: Path) -> None:
    with models(money=0.3, ledger=str(tmp_path / "ledger.db")) as model:
        result = model.fit(IMAGES[:150], TRUTHS[:150], views=Panel(()))
    assert (result.profile.name, result.profile.others, result.profile.panel) == ("cheap", (), "")
    assert len(result.profile.held_out.confidence) == result.profile.pictures == 150
    assert "dear@base" in result.cut
    right_ones = [cheap(image) == truth for image, truth in zip(IMAGES[:150], TRUTHS[:150], strict=True)]
    assert result.profile.accuracy() == pytest.approx(np.mean(right_ones), abs=1e-6)


def test_views_that_the_budget_does_not_cover_leave_the_comparison_of_classifiers(tmp_path: Path) -> None:
    with models(money=1.9, ledger=str(tmp_path / "ledger.db")) as model:
        result = model.fit(IMAGES[:150], TRUTHS[:150], max_price=0.011)
    assert "cheap@mirror" not in str(result.frontier.points)
    assert {source for point in result.frontier.points for source in point.sources} == {"cheap@base", "dear@base"}
    assert result.cut
    assert result.profile.pictures == 150
