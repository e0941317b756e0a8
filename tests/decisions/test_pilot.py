"""Choosing views: the price of the pilot, what is chosen and what is not, and where to stop."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.engines import engine_for
from workshop import run

from looktwice.calibration import jury, logit, panels
from looktwice.calibration.panels import Gain
from looktwice.calibration.votes import Evidence, LabelledVotes, Votes
from looktwice.classifiers.registry import connect
from looktwice.decisions import fitting, pilot, stopping
from looktwice.errors import FitError
from looktwice.images.collection import Picture, labelled
from looktwice.views import CANDIDATES, GENERAL, GENERAL16, Panel

DEMO = Path(str(files("looktwice") / "demo"))
MODEL = str(DEMO / "fashion.toml")
CLOSED = """
import numpy as np
from importlib.resources import files
from looktwice.classifiers.registry import connect
model = connect(str(files("looktwice") / "demo" / "fashion.toml"))

def classify(pictures):
    logits = model.logits([model.prepare(picture) for picture in pictures])
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    named = [model.labels[code] for code in shares.argmax(axis=1)]
    return named if BLIND else [(label, float(row.max())) for label, row in zip(named, shares)]
"""


def told(telling: Sequence[float], pictures: int = 600, seed: int = 0) -> LabelledVotes:
    """Votes of views that know the truth this often, each by itself, and otherwise keep the base label."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(5, size=pictures).astype(np.int32)
    base = np.where(rng.random(pictures) < 0.75, truth, (truth + 1) % 5).astype(np.int32)
    knows = rng.random((pictures, len(telling))) < np.array(telling)
    views = np.where(knows, truth[:, None], base[:, None]).astype(np.int32)
    names, panel = tuple(map(str, range(pictures))), tuple(map(str, range(len(telling))))
    return Votes(names, panel, tuple("abcde"), base, views, 5).labelled("abcde"[code] for code in truth)


@given(st.integers(200, 5000), st.integers(32, 60), st.integers(1, 12))
def test_a_pilot_costs_at_most_half_of_asking_everything(pictures: int, candidates: int, longest: int) -> None:
    plan = panels.plan(pictures, candidates, longest)
    assert plan.pilot_queries() <= plan.everything() / 2
    assert plan.pilot() + plan.rest == pictures
    assert plan.pilot() <= pictures / 2
    views = [rung.views for rung in plan.rungs]
    assert views == sorted(views, reverse=True)
    assert views[0] == candidates
    assert longest <= views[-1]


def test_the_candidates_are_halved_from_rung_to_rung() -> None:
    plan = panels.plan(1000, 69, 8)
    assert [(rung.pictures, rung.views) for rung in plan.rungs] == [(83, 69), (83, 34), (83, 17), (251, 12)]
    assert plan.pilot_queries() == 83 * (70 + 35 + 18) + 251 * 13


@given(st.integers(10_500, 30_000))
def test_a_plan_keeps_its_budget(budget: int) -> None:
    assert panels.plan(1000, 40, 8, budget).queries() <= budget


def test_a_budget_that_is_too_small_is_told_what_would_do() -> None:
    with pytest.raises(FitError, match="too small to choose views; 10120 are needed"):
        panels.plan(1000, 40, 8, 10_119)
    assert panels.plan(1000, 40, 8, 10_120).queries() == 10_120


def test_long_panels_cannot_be_chosen_from_few_candidates() -> None:
    with pytest.raises(FitError, match="lower --max-queries"):
        panels.plan(1000, 20, 16)


def test_the_general_views_are_among_the_candidates_and_none_stands_there_twice() -> None:
    assert set(GENERAL16) <= set(CANDIDATES)
    assert len(set(CANDIDATES)) == len(CANDIDATES)
    assert GENERAL16[: len(GENERAL)] == GENERAL


def test_nothing_is_chosen_from_few_pictures() -> None:
    with pytest.raises(FitError, match="199 labelled pictures are too few"):
        panels.plan(199, 40, 8)


def test_views_that_tell_more_survive_and_kept_ones_always_do() -> None:
    votes = told([0.1, 0.9, 0.2, 0.8, 0.0, 0.05])
    assert panels.survivors(votes, keep=[4], count=3) == [1, 3, 4]
    assert panels.rank(votes)[:2] == [1, 3]


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
    fitted, table = jury.Jury().fit(votes).without_offsets(), logit.tabulate(votes)
    theta = np.array([*fitted.weights, fitted.log_votes, *fitted.unnamed])
    distribution = fitted.distribution(votes)
    assert panels.brier(table, theta, votes.classes) == pytest.approx(distribution.brier(votes.truths))
    assert panels.log_loss(table, theta, votes.classes) == pytest.approx(distribution.nll(votes.truths))


@pytest.mark.parametrize("classes", [3, 100])
def test_counting_hands_loses_nothing_but_who_said_what(classes: int) -> None:
    rng = np.random.default_rng(classes)
    truth = rng.integers(classes, size=400).astype(np.int32)
    said = np.where(rng.random((400, 6)) < 0.6, truth[:, None], rng.integers(classes, size=(400, 6))).astype(np.int32)
    words = tuple(map(str, range(classes)))
    votes = Votes(tuple(map(str, range(400))), tuple("abcde"), words, said[:, 0], said[:, 1:], classes)
    table = logit.tabulate(votes.labelled([words[code] for code in truth]))
    merged = panels.equal_weights(table)
    assert len(merged.starts) < len(table.starts)
    theta = np.array([0.7, 0.4, 0.5, 0.9, 0.3])
    spread = np.array([0.7, *[0.4] * 5, 0.5, 0.9, 0.3])
    for loss in (panels.brier, panels.log_loss):
        np.testing.assert_allclose(loss(merged, theta, classes), loss(table, spread, classes))


def test_held_out_losses_are_those_of_a_jury_with_one_weight_that_never_saw_the_picture() -> None:
    votes = told([0.3, 0.6, 0.2], pictures=300)
    fold = logit.folds(len(votes))
    mixed = replace(votes, views=np.sort(votes.views, axis=1))
    for loss in panels.LOSSES.values():
        assert panels.held_out(mixed, fold, loss) == pytest.approx(panels.held_out(votes, fold, loss), abs=1e-6)
    one = votes.under([1])
    expected = logit.held_out_losses(logit.tabulate(one), fold, 0.0)
    assert panels.held_out(one, fold, panels.log_loss) == pytest.approx(expected, abs=1e-6)


def test_a_view_that_ranks_is_chosen_by_the_brier_score_and_one_that_names_the_truth_by_the_log_loss() -> None:
    rng = np.random.default_rng(0)
    n, classes = 3000, 100
    truth = rng.integers(classes, size=n).astype(np.int32)
    right = rng.random(n) < 0.6
    base = np.where(right, truth, (truth + 1) % classes).astype(np.int32)
    ranks = np.where(rng.random(n) < np.where(right, 0.9, 0.25), base, (truth + 7) % classes)
    names = np.where(rng.random(n) < 0.15, truth, base)
    said = np.column_stack([ranks, names]).astype(np.int32)
    words = tuple(map(str, range(classes)))
    votes = Votes(tuple(map(str, range(n))), ("ranks", "names"), words, base, said, classes)
    labelled = votes.labelled([words[code] for code in truth])
    assert panels.rank(labelled, panels.brier)[0] == 0
    assert panels.rank(labelled, panels.log_loss)[0] == 1


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


def test_the_knee_is_where_further_views_add_little() -> None:
    assert panels.knee([1.0, 0.6, 0.44, 0.4, 0.41, 0.42]) == 2
    assert panels.knee([1.0]) == 0
    assert panels.knee([0.4, 0.6, 0.5]) == 0


def scored(telling: Sequence[float], sharp: bool, pictures: int = 600) -> LabelledVotes:
    """The votes of `told` with the base label's score, which tells right from wrong, or little, for every label."""
    votes, rng = told(telling, pictures), np.random.default_rng(1)
    said, right = votes.answers(), votes.base == votes.truths
    score = np.clip(np.where(right, 0.6, 0.4) + (0.05 if sharp else 0.4) * rng.standard_normal(pictures), 0.01, 0.99)
    scores = np.repeat(score[:, None, None], said.shape[1], axis=1).astype(np.float32)
    return replace(votes, evidence=Evidence(said[:, :, None], scores))


def test_what_a_view_is_worth_is_what_it_adds_to_the_score() -> None:
    votes = told([0.0, 0.2])
    # The first view doubts the base label where it is wrong, as the score does; the second sometimes knows the truth.
    wrong = votes.base != votes.truths
    doubting = np.where(wrong, (votes.base + np.random.default_rng(3).integers(1, 5, len(votes))) % 5, votes.base)
    said = np.column_stack([votes.base, doubting, votes.views[:, 1]]).astype(np.int32)
    scores = np.repeat(np.where(wrong, 0.2, 0.9)[:, None, None], 3, axis=1).astype(np.float32)
    evidence = Evidence(said[:, :, None], scores)
    with_scores = replace(votes, views=said[:, 1:], evidence=evidence)
    assert panels.rank(with_scores.label_only()) == [0, 1]
    assert panels.rank(panels.with_useful_scores(with_scores)) == [1, 0]


def test_scores_that_say_nothing_do_not_take_part_in_choosing() -> None:
    votes = scored([0.5, 0.3], sharp=True)
    assert votes.evidence is not None
    constant = replace(votes, evidence=Evidence(votes.evidence.labels, np.full_like(votes.evidence.scores, 0.95)))
    assert panels.with_useful_scores(constant).evidence is None
    assert panels.with_useful_scores(votes).evidence is not None


@pytest.mark.parametrize(("telling", "sharp", "enough"), [([0.0, 0.0], True, True), ([0.8, 0.8], False, False)])
def test_one_query_suffices_where_views_add_little_to_its_score(
    telling: Sequence[float], sharp: bool, enough: bool
) -> None:
    steps = stopping.steps(stopping.trials(jury.Jury(), scored(telling, sharp)))
    assert steps[0].evidence == "scores"
    assert panels.suffices(steps[0].brier, steps[-1].brier) == enough


@pytest.mark.parametrize("blind", [False, True])
def test_tuning_asks_no_views_where_the_score_is_enough_and_says_so(tmp_path: Path, blind: bool) -> None:
    """A function whose score tells all, and one whose score says nothing but whose views help."""
    (tmp_path / "closed.py").write_text(CLOSED.replace("BLIND", str(blind)))
    command = ("tune", DEMO / "pictures.npz", "--take", ":240", "-c", "python:closed:classify", "-o", "p.json")
    done = run(*command, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert ("One query with its score suffices" in done.stderr) == (not blind)
    assert ("--views none" in done.stderr) == (not blind)
    assert (json.loads((tmp_path / "p.json").read_text())["panel"] == "") == (not blind)


@pytest.fixture(scope="module")
def clothes() -> list[Picture]:
    return labelled(DEMO / "pictures.npz")[:300]


@pytest.fixture(scope="module")
def chosen(clothes: list[Picture]) -> tuple[pilot.Selection, int, panels.Plan]:
    engine = engine_for(connect(MODEL))
    plan = panels.plan(len(clothes), len(CANDIDATES), 4)
    found = asyncio.run(pilot.choose(engine, clothes, plan, CANDIDATES, GENERAL))
    return found, engine.progress.sent, plan


def test_choosing_sends_what_was_planned_and_no_more(chosen: tuple[pilot.Selection, int, panels.Plan]) -> None:
    _, sent, plan = chosen
    assert sent <= plan.queries()


def test_the_pilot_pictures_come_first_and_all_have_their_truth(
    chosen: tuple[pilot.Selection, int, panels.Plan], clothes: list[Picture]
) -> None:
    found, _, plan = chosen
    assert found.pilot == plan.pilot()
    assert found.collected.votes.names == tuple(picture.name for picture in pilot.shuffled(clothes))
    truths = {picture.name: picture.truth for picture in clothes}
    assert found.collected.labelled().words == tuple(truths[name] for name in found.collected.votes.names)
    assert len(found.collected.panel) == 4
    assert 0 <= found.knee <= 4


def test_the_votes_of_a_choice_are_those_of_asking_the_panel_alone(
    chosen: tuple[pilot.Selection, int, panels.Plan], clothes: list[Picture]
) -> None:
    found, _, _ = chosen
    alone = asyncio.run(fitting.collect(engine_for(connect(MODEL)), pilot.shuffled(clothes), found.collected.panel))
    words, own = found.collected.votes.vocabulary, alone.votes.vocabulary
    assert [[words[c] for c in row] for row in found.collected.votes.views] == [
        [own[c] for c in row] for row in alone.votes.views
    ]


def test_parts_with_other_labels_and_unread_answers_are_joined() -> None:
    panel = Panel.parse("mirror turn:5")
    one = Votes(("p",), ("mirror", "turn:5"), ("x", "y"), np.array([1], np.int32), np.array([[0, -1]], np.int32), 2)
    two = Votes(("q",), ("turn:5",), ("z",), np.array([0], np.int32), np.array([[0]], np.int32), 2)
    parts = [
        fitting.Collected(one.labelled(["x"]), (), panel, "f", 0),
        fitting.Collected(two.labelled(["z"]), (), Panel.parse("turn:5"), "f", 0),
    ]
    joined = pilot.joined(parts, Panel.parse("turn:5"))
    words = joined.votes.vocabulary
    assert [words[c] for c in joined.votes.base] == ["y", "z"]
    assert joined.votes.views[0, 0] == -1
    assert words[joined.votes.views[1, 0]] == "z"
    assert joined.labelled().words == ("x", "z")


def test_classes_that_only_truths_of_different_parts_name_are_all_counted() -> None:
    def part(label: str, truth: str) -> fitting.Collected:
        said = Votes((label,), ("mirror",), (label,), np.zeros(1, np.int32), np.zeros((1, 1), np.int32), 2)
        return fitting.Collected(said.labelled([truth]), (), Panel.parse("mirror"), "f", 0)

    joined = pilot.joined([part("ant", "bee"), part("cat", "cat"), part("dog", "eel")], Panel.parse("mirror"))
    assert joined.votes.vocabulary == ("ant", "cat", "dog")
    assert joined.votes.classes == 5


def test_the_papers_search_takes_the_best_setting_and_asks_what_it_says(clothes: list[Picture]) -> None:
    engine = engine_for(connect(MODEL))
    grid = Panel.parse("rotation:10 rotation:60").views
    found, settings = asyncio.run(pilot.search(engine, clothes[:120], grid, draws=3))
    assert engine.progress.sent <= pilot.search_queries(120, grid, 3) + 60
    best = min(settings, key=lambda setting: setting.brier)
    assert str(found.collected.panel) == f"{best.view}*3"
    assert found.pilot == 60


def test_a_dry_run_shows_the_price_and_asks_nothing(tmp_path: Path) -> None:
    command = ("tune", DEMO / "pictures.npz", "--take", ":400", "-c", MODEL, "--price", "0.01", "--dry-run")
    done = run(*command, "-o", tmp_path / "p.json")
    assert done.returncode == 0, done.stderr
    assert "of the cost of asking all candidates" in done.stderr
    assert "in money" in done.stderr
    assert not (tmp_path / "p.json").exists()
    plan = json.loads(run(*command, "--json").stdout)
    assert plan["pilot_queries"] <= plan["everything"] / 2


def test_tune_writes_a_profile_judged_on_the_rest_and_its_curve(tmp_path: Path) -> None:
    command = ("tune", DEMO / "pictures.npz", "--take", ":300", "-c", MODEL, "--max-queries", "4")
    done = run(*command, "-o", tmp_path / "p.json", "--json")
    assert done.returncode == 0, done.stderr
    profile = json.loads((tmp_path / "p.json").read_text())
    assert len(profile["held_out"]["confidence"]) == 150
    assert len(Panel.parse(profile["panel"])) == 3
    assert [point["queries"] for point in profile["curve"]] == [1, 2, 3, 4]
    svg = (tmp_path / "p.svg").read_text()
    assert svg.count("<svg") >= 3
    assert "AUROC" in svg


def test_the_papers_search_is_a_command_too(tmp_path: Path) -> None:
    command = ("tune", DEMO / "pictures.npz", "--take", ":80", "-c", MODEL, "--paper", "rotation", "--draws", "3")
    done = run(*command, "-o", tmp_path / "p.json")
    assert done.returncode == 0, done.stderr
    assert "rotation:60" in done.stdout
    assert json.loads((tmp_path / "p.json").read_text())["calibrator"]["family"] == "gaussian"
    done = run(*command[:-4], "--paper", "spiral")
    assert done.returncode == 1
    assert "the paper has no transformation 'spiral'" in done.stderr
