"""Choosing views: the what a pilot leaves out, and what it costs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from support.engines import engine_for
from support.workshop import run

from looktwice import Model
from looktwice.calibration import jury, logit, options, panels
from looktwice.calibration.evidence import MISSING, Evidence
from looktwice.calibration.panels import Gain
from looktwice.calibration.votes import LabelledVotes, Votes
from looktwice.classifiers.registry import connect
from looktwice.decisions import collecting, pilot
from looktwice.decisions.profile import ProfileClassifier
from looktwice.images.collection import Picture, labelled
from looktwice.views import GENERAL, Panel

DEMO = Path(str(files("looktwice") / "demo"))
MODEL = str(DEMO / "fashion.toml")


def told(telling: Sequence[float], pictures: int = 600, seed: int = 0) -> LabelledVotes:
    """Votes of views that know the truth this often, each by itself, and otherwise keep the base label."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(5, size=pictures).astype(np.int32)
    base = np.where(rng.random(pictures) < 0.75, truth, (truth + 1) % 5).astype(np.int32)
    knows = rng.random((pictures, len(telling))) < np.array(telling)
    views = np.where(knows, truth[:, None], base[:, None]).astype(np.int32)
    names, panel = tuple(map(str, range(pictures))), tuple(map(str, range(len(telling))))
    return Votes(names, panel, tuple("abcde"), base, views, 5).labelled("abcde"[code] for code in truth)


def test_a_panel_grows_by_what_is_new_rather_than_by_what_is_strong() -> None:
    votes = told([0.7, 0.6, 0.0])
    copied = Votes(
        votes.names,
        ("strong", "its copy", "weaker", "nothing"),
        votes.vocabulary,
        votes.base,
        votes.views[:, [0, 0, 1, 2]],
        votes.classes,
    ).labelled(votes.words)
    assert panels.grow(copied, 2) in ([0, 2], [1, 2])
    assert len(panels.grow(copied, 9)) == 4


def test_the_losses_of_a_table_are_those_of_the_distribution() -> None:
    votes = told([0.3, 0.6, 0.2], pictures=150)
    fitted, table = replace(jury.Jury().fit(votes), confusion=None), options.tabulate(votes)
    theta = np.array([*fitted.weights, fitted.log_votes, *fitted.unnamed])
    distribution = fitted.distribution(votes)
    assert panels.brier(table, theta, votes.classes) == pytest.approx(distribution.brier(votes.truths))
    assert panels.log_loss(table, theta, votes.classes) == pytest.approx(distribution.nll(votes.truths))


@pytest.mark.parametrize("classes", [3, 100])
def test_one_weight_for_all_views_is_the_same_weight_for_each(classes: int) -> None:
    rng = np.random.default_rng(classes)
    truth = rng.integers(classes, size=400).astype(np.int32)
    said = np.where(rng.random((400, 6)) < 0.6, truth[:, None], rng.integers(classes, size=(400, 6))).astype(np.int32)
    words = tuple(map(str, range(classes)))
    votes = Votes(tuple(map(str, range(400))), tuple("abcde"), words, said[:, 0], said[:, 1:], classes)
    table = options.tabulate(labelled := votes.labelled([words[code] for code in truth]))
    common = panels.common_weight(labelled)
    theta = np.array([0.7, 0.4, 0.5, 0.9, 0.3])
    spread = np.array([0.7, *[0.4] * 5, 0.5, 0.9, 0.3])
    for loss in (panels.brier, panels.log_loss):
        np.testing.assert_allclose(loss(common, theta, classes), loss(table, spread, classes))


def test_held_out_losses_are_those_of_a_jury_with_one_weight_that_never_saw_the_picture() -> None:
    votes = told([0.3, 0.6, 0.2], pictures=300)
    fold = logit.folds(len(votes))
    mixed = replace(votes, views=np.sort(votes.views, axis=1))
    for loss in (panels.brier, panels.log_loss):
        assert panels.held_out(mixed, fold, loss) == pytest.approx(panels.held_out(votes, fold, loss), abs=1e-6)
    one = votes.under([1])
    expected = logit.held_out_losses(options.tabulate(one), fold, 0.0)
    assert panels.held_out(one, fold, panels.log_loss) == pytest.approx(expected, abs=1e-6)


def test_the_general_panel_stays_unless_another_is_convincing() -> None:
    votes = told([0.3, 0.3, 0.3, 0.3])
    few = slice(panels.MANY - 1)
    panel, gain = panels.choose(votes.take(few), general=[2, 1], longest=2)
    assert panel == [2, 1]
    assert not gain.convincing()
    votes = told([0.9, 0.1, 0.1, 0.8])
    panel, gain = panels.choose(votes, general=[2, 1], longest=2)
    assert panel == [0, 3]
    assert gain.convincing()


def test_few_pictures_must_show_that_a_choice_is_better_and_many_only_that_it_is_not_worse() -> None:
    few, many = panels.MANY - 1, panels.MANY
    assert [Gain(mean, 0.02, few).convincing() for mean in (0.03, 0.01, -0.01, -0.03)] == [True, False, False, False]
    assert [Gain(mean, 0.02, many).convincing() for mean in (0.03, 0.01, -0.01, -0.03)] == [True, True, True, False]


def scored(telling: Sequence[float], sharp: bool, pictures: int = 600) -> LabelledVotes:
    """The votes of `told` with the base label's score, which tells right from wrong, or little, for every label."""
    votes, rng = told(telling, pictures), np.random.default_rng(1)
    said, right = votes.answers(), votes.base == votes.truths
    score = np.clip(np.where(right, 0.6, 0.4) + (0.05 if sharp else 0.4) * rng.standard_normal(pictures), 0.01, 0.99)
    scores = np.repeat(score[:, None, None], said.shape[1], axis=1).astype(np.float32)
    return replace(votes, evidence=Evidence(said[:, :, None], scores))


def test_scores_that_say_nothing_do_not_take_part_in_choosing() -> None:
    votes = scored([0.5, 0.3], sharp=True)
    assert votes.evidence is not None
    constant = replace(votes, evidence=Evidence(votes.evidence.labels, np.full_like(votes.evidence.scores, 0.95)))
    assert panels.with_useful_scores(constant).evidence is None
    assert panels.with_useful_scores(votes).evidence is not None


ONLY = (ProfileClassifier(name="", description="m", fingerprint="f"),)


@pytest.mark.slow
@pytest.mark.parametrize(("telling", "sharp", "enough"), [([0.0, 0.0], True, True), ([0.8, 0.8], False, False)])
def test_one_query_suffices_where_views_add_little_to_its_score(
    telling: Sequence[float], sharp: bool, enough: bool
) -> None:
    votes = replace(scored(telling, sharp), panel=("mirror", "zoom:1.15"))
    panel, sentences, beside = pilot.paying(votes, Panel.parse("mirror zoom:1.15"), ONLY)
    assert (len(panel) == 0) == enough
    assert any("One query with its score suffices" in line for line in sentences) == enough
    assert (len(beside) > 0) <= enough


@pytest.mark.slow
def test_few_wrong_answers_without_scores_leave_everything_as_it_is() -> None:
    votes = told([0.0, 0.0], pictures=60)
    assert (votes.base != votes.truths).sum() < pilot.WRONG
    panel = Panel.parse("mirror zoom:1.15")
    assert pilot.paying(votes, panel, ONLY)[:2] == (panel, [])
    many = told([0.0, 0.0])
    assert len(pilot.paying(many, panel, ONLY)[0]) == 0
    assert "Asking again adds nothing" in pilot.paying(many, panel, ONLY)[1][0]


def test_views_that_change_the_class_are_left_out_and_named() -> None:
    votes, panel = told([0.5, 0.5, 0.0, 0.0]), Panel.parse("zoom:1.15 tone:contrast=0.7 mirror mirror+zoom:0.85")
    changed = votes.views.copy()
    changed[:, 2:] = (votes.truths[:, None] + np.random.default_rng(0).integers(1, 5, (len(votes), 2))) % 5
    kept, sentences = pilot.suitable(replace(votes, views=changed), panel)
    assert str(kept) == "zoom:1.15 tone:contrast=0.7"
    assert sentences == ["Mirrored copies change the class of your pictures: 2 of 4 views are left out."]
    assert pilot.suitable(votes, panel) == (panel, [])


def test_views_that_change_the_class_must_show_that_they_tell_something() -> None:
    """One that names the next class does not, for juries; one that gave no answer changes nothing."""
    votes, panel = told([0.9, 0.9]), Panel.parse("zoom:1.15 mirror")
    swapped = votes.views.copy()
    swapped[:, 1] = (votes.views[:, 1] + 1) % 5
    missing = votes.views.copy()
    missing[:, 1] = MISSING
    for views, kept in ((votes.views, 2), (swapped, 1), (missing, 2)):
        assert len(pilot.suitable(replace(votes, views=views), panel)[0]) == kept


@pytest.mark.slow
def test_a_fit_asks_once_where_the_score_is_enough_and_says_so() -> None:
    """The views leave the brightness as it is, on which label and score rest."""

    def classify(image: np.ndarray) -> dict[str, float]:
        share = float(1 / (1 + np.exp((image[0, 0].mean() - 127.5) / 40)))
        return {"dark": share, "bright": 1 - share}

    rng = np.random.default_rng(0)
    images = rng.integers(60, 196, (240, 1, 1, 1), np.uint8).repeat(8, 1).repeat(8, 2).repeat(3, 3)
    images[:, 7, 7] = np.arange(240, dtype=np.uint8)[:, None]
    bright = rng.random(240) < 1 / (1 + np.exp(-(images[:, 0, 0, 0] - 127.5) / 40))
    with Model(classify, ledger="memory") as model:
        result = model.fit(images, np.where(bright, "bright", "dark").tolist())
        assert any("8 more" in line for line in result.sentences)
        assert result.profile.panel == ""
        assert result.profile.evidence == "scores"
        assert model.engine.progress.sent <= 100 * 9 + 140
        assert model.look(images[0]).queries == 1


@pytest.fixture(scope="module")
def clothes() -> list[Picture]:
    return labelled(DEMO / "pictures.npz")[:300]


@pytest.fixture(scope="module")
def chosen(clothes: list[Picture]) -> tuple[pilot.Selection, int]:
    engine = engine_for(connect(MODEL))
    choice = asyncio.run(pilot.ask(engine, clothes, GENERAL, ONLY))
    return choice, engine.progress.sent


def test_a_pilot_sends_what_was_planned_and_no_more(chosen: tuple[pilot.Selection, int]) -> None:
    assert chosen[1] <= pilot.plan(300, GENERAL, {"": 1.0}).queries == 2700


def test_the_pilot_pictures_come_first_and_all_have_their_truth(
    chosen: tuple[pilot.Selection, int], clothes: list[Picture]
) -> None:
    choice = chosen[0]
    assert choice.pilot == 100
    assert choice.collected.votes.names == tuple(picture.name for picture in pilot.shuffled(clothes))
    truths = {picture.name: picture.truth for picture in clothes}
    assert choice.collected.labelled().words == tuple(truths[name] for name in choice.collected.votes.names)


def test_the_votes_of_a_choice_are_those_of_asking_the_panel_alone(
    chosen: tuple[pilot.Selection, int], clothes: list[Picture]
) -> None:
    choice = chosen[0]
    alone = asyncio.run(collecting.collect(engine_for(connect(MODEL)), pilot.shuffled(clothes), choice.collected.panel))
    words, own = choice.collected.votes.vocabulary, alone.votes.vocabulary
    assert [[words[c] for c in row] for row in choice.collected.votes.views] == [
        [own[c] for c in row] for row in alone.votes.views
    ]


def test_parts_with_other_labels_and_unread_answers_are_joined() -> None:
    panel = Panel.parse("mirror turn:5")
    one = Votes(("p",), ("mirror", "turn:5"), ("x", "y"), np.array([1], np.int32), np.array([[0, -1]], np.int32), 2)
    two = Votes(("q",), ("turn:5",), ("z",), np.array([0], np.int32), np.array([[0]], np.int32), 2)
    parts = [
        collecting.Collected(one.labelled(["x"]), (), panel, "f", 0),
        collecting.Collected(two.labelled(["z"]), (), Panel.parse("turn:5"), "f", 0),
    ]
    joined = pilot.joined(parts, Panel.parse("turn:5"))
    words = joined.votes.vocabulary
    assert [words[c] for c in joined.votes.base] == ["y", "z"]
    assert joined.votes.views[0, 0] == -1
    assert words[joined.votes.views[1, 0]] == "z"
    assert joined.labelled().words == ("x", "z")


def test_classes_that_only_truths_of_different_parts_name_are_all_counted() -> None:
    def part(label: str, truth: str) -> collecting.Collected:
        said = Votes((label,), ("mirror",), (label,), np.zeros(1, np.int32), np.zeros((1, 1), np.int32), 2)
        return collecting.Collected(said.labelled([truth]), (), Panel.parse("mirror"), "f", 0)

    joined = pilot.joined([part("ant", "bee"), part("cat", "cat"), part("dog", "eel")], Panel.parse("mirror"))
    assert joined.votes.vocabulary == ("ant", "cat", "dog")
    assert joined.votes.classes == 5


def test_the_papers_search_takes_the_best_setting_and_asks_what_it_says(clothes: list[Picture]) -> None:
    engine = engine_for(connect(MODEL))
    grid = Panel.parse("rotation:10 rotation:60").views
    choice, settings = asyncio.run(pilot.search(engine, clothes[:120], grid, draws=3))
    assert engine.progress.sent <= pilot.search_queries(120, grid, 3) + 60
    best = min(settings, key=lambda setting: setting.brier)
    assert str(choice.collected.panel) == f"{best.view}*3"
    assert choice.pilot == 60


def test_a_dry_run_shows_the_price_of_each_stage_and_asks_nothing(tmp_path: Path) -> None:
    command = ("fit", DEMO / "pictures.npz", "--take", ":400", "-c", MODEL, "--price", "0.01", "--dry-run")
    done = run(*command, "-o", tmp_path / "p.json")
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stderr.split())
    assert "Pilot, all candidates: 50 pictures, at most 450 queries, 4.50 in money." in said
    assert "300 pictures, at most 2,700 queries, 27.00 in money." in said
    assert not (tmp_path / "p.json").exists()


@pytest.mark.slow
def test_a_result_has_its_frontier_and_other_points_are_free(clothes: list[Picture], tmp_path: Path) -> None:
    with Model(MODEL, ledger=str(tmp_path / "ledger.sqlite")) as model:
        result = model.fit(clothes)
        sent = model.engine.progress.sent
        frame = result.frontier.to_frame()
        assert len(result.profile.held_out.confidence) == 200
        assert frame["chosen"].sum() == 1
        assert list(frame["price"]) == sorted(frame["price"])
        assert (frame["brier_low"] <= frame["brier"]).all()
        few = result.at(max_queries=5)
        assert next(point for point in few.frontier if point.chosen).queries <= 5
        model.use(result.at(max_queries=1))
        assert model.look(clothes[0]).queries == 1
        assert model.engine.progress.sent == sent
