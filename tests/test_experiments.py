"""Every table and figure of the paper, in its quick form, on the embedded pictures: nothing else is needed."""

from __future__ import annotations

import csv
import runpy
import shutil
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.errors import coded

from experiments import (
    cascades,
    closed,
    decisions,
    familiarity,
    general,
    labelling,
    mirrored,
    models,
    ruled_out,
    scores,
    stopping,
    tags,
    unlabelled,
    weighted,
)
from experiments.__main__ import main, parse
from experiments.collected import SHARED
from experiments.evaluation import ece_by_chance
from experiments.paper import (
    claims,
    drawings,
    grids,
    jacobian,
    pages,
    prescription,
    published,
    selection,
    subjects,
    tables,
)
from experiments.paper.answers import DIRECTIONS, UNASKED, Answers, Meter, Readings, draws_of
from experiments.paper.grids import Normalised
from experiments.paper.subjects import RESNET56, known, scale
from experiments.paper.tables import Study
from experiments.writing import merge, read
from looktwice.calibration import metrics
from looktwice.calibration.crossfit import Outcome
from looktwice.calibration.latent import Cumulatives, describe, read as read_features
from looktwice.calibration.metrics import Scores
from looktwice.errors import DataError, ViewError
from looktwice.views import GENERAL, GRIDS, Panel

pytestmark = pytest.mark.slow

PICTURES = 120
FAMILIES = {"Gaussian", "Affine", "Elastic", "Rotation"}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every task was run, with its answers in `cache`."""
    folder = tmp_path_factory.mktemp("paper")
    assert main(["all", *_quick(folder)]) == 0
    return folder


def _quick(folder: Path) -> list[str]:
    kept = ["--results", str(folder), "--cache", str(folder / "cache")]
    return ["--quick", "--model", "clothes", "--pictures", str(PICTURES), *kept]


def test_table_1_has_every_method_by_three_ballots_with_intervals(ran: Path) -> None:
    rows = read(ran / "table1.csv")
    paper = [row for row in rows if row["calibrator"] == "gaussian"]
    ballots = ("base", "vote", "argmax")
    assert {(row["method"], row["ballot"]) for row in paper} == {(f, b) for f in FAMILIES for b in ballots}
    assert {"naive", "probit", "jury", "softmax"} < {row["calibrator"] for row in rows}
    for row in paper:
        assert float(row["brier_low"]) <= float(row["brier"]) <= float(row["brier_high"])
        assert row["var"]
        assert row["ks"]


def test_pictures_that_the_paper_does_not_have_stand_beside_none_of_its_rows(ran: Path) -> None:
    assert {row["paper_model"] for row in read(ran / "table1.csv")} == {""}


def test_the_base_ballot_keeps_the_naive_accuracy_and_naive_costs_twice_the_error(ran: Path) -> None:
    rows = read(ran / "table1.csv")
    naive = next(row for row in rows if row["method"] == "Naive")
    base = [row for row in rows if row["ballot"] == "base"]
    assert {row["acc"] for row in base} == {naive["acc"]}
    argmax = {row["method"]: row for row in rows if row["ballot"] == "argmax"}
    for row in base:
        if row["calibrator"] == "gaussian":
            assert argmax[row["method"]]["brier"] == row["brier"]
    assert float(naive["brier"]) == pytest.approx(2 * (1 - float(naive["acc"])), abs=1e-4)
    assert float(naive["auroc"]) == 0.5


def test_what_the_embedded_pictures_cannot_tell_is_said_and_not_judged(
    ran: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, why in (
        ("table2", "no photos"),
        ("table3", "to itself nothing is transferred"),
        ("table4", "fewer than 8 runs"),
        ("prescription", "one is embedded"),
    ):
        assert main([name, *_quick(ran)]) == 0
        told = capsys.readouterr().out
        assert "not judged" in told
        assert why in told
    assert not any((ran / f"{name}.csv").exists() for name in ("table2", "table3", "prescription"))
    ours = [row for row in read(ran / "table4.csv") if row["source"] == "ours"]
    assert {row["runs"] for row in ours} == {"4"}
    assert {row["ece_r"] for row in ours} == {""}


def test_table_4_has_ours_the_papers_and_what_its_other_tables_give(ran: Path) -> None:
    rows = read(ran / "table4.csv")
    assert {row["source"] for row in rows} == {"ours", "paper, printed", "paper, recomputed"}
    printed = {(r["dataset"], r["statistic"]): r for r in rows if r["source"] == "paper, printed"}
    assert float(printed["All datasets", "ks"]["ece_r"]) == 0.46


def test_figures_come_with_their_numbers(ran: Path) -> None:
    for figure in ("figure2", "figure4", "error1", "error2", "statistics"):
        assert (ran / f"paper-{figure}-clothes.svg").read_text("utf-8").startswith("<svg")
    steps = [row["S"] for row in read(ran / "figure2.csv") if (row["transform"], row["ballot"]) == ("rotation", "base")]
    assert steps == ["2", "4", "6", "8", "10"]
    for row in read(ran / "figure4.csv"):
        assert float(row["low"]) <= float(row["high"])


def test_figure_2_ends_where_table_1_is(ran: Path) -> None:
    table = next(r for r in read(ran / "table1.csv") if (r["method"], r["calibrator"]) == ("Rotation", "gaussian"))
    last = [r for r in read(ran / "figure2.csv") if (r["transform"], r["ballot"]) == ("rotation", "base")][-1]
    assert (last["brier"], last["view"], last["a"]) == (table["brier"], table["view"], table["a"])


def test_claims_are_judged_one_by_one(ran: Path) -> None:
    rows = read(ran / "claims.csv")
    assert {row["verdict"] for row in rows} <= {"seen", "not seen", "unclear", "not judged", "no interval"}
    told = {row["claim"]: row["verdict"] for row in rows if row["ballot"] == "base"}
    assert {"rotation is best in Brier", "natural beats Gaussian, brier"} < set(told)
    assert told["F_n improves Gaussian's ECE"] == told["S = 2 helps on photos, ece"] == "not judged"


def test_nothing_is_asked_twice(ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> None:
        raise AssertionError("the model was asked again")

    for name in ("_answer", "_output", "_probe", "_slope"):
        monkeypatch.setattr(Answers, name, asked)
    before = (ran / "table1.csv").read_text("utf-8")
    for task in ("table1", "proposition1"):
        assert main([task, *_quick(ran)]) == 0
    assert (ran / "table1.csv").read_text("utf-8") == before


def test_more_draws_leave_the_first_ones_as_they_are(tmp_path: Path) -> None:
    subject = known("clothes")
    rows = subject.order[:12]
    answers = Answers(subject, tmp_path, Meter("", 1))
    few = answers.votes(Panel.parse("rotation:30*3"), rows)
    more = answers.votes(Panel.parse("rotation:30*7"), rows)
    assert (more.views[:, :3] == few.views).all()
    fresh = Answers(subject, tmp_path / "other", Meter("", 1)).votes(Panel.parse("rotation:30*7"), rows)
    assert (fresh.views == more.views).all()
    assert (fresh.base == more.base).all()


def test_the_meter_counts_each_answer_once_whether_cached_or_computed(tmp_path: Path) -> None:
    subject, views = known("clothes"), Panel.parse("rotation:30*3")
    for _ in ("computed", "cached"):
        meter = Meter("", 1)
        answers = Answers(subject, tmp_path, meter)
        answers.votes(views, subject.order[:12])
        assert meter.done == 12 * (1 + 3)
        answers.votes(views, subject.order[6:18])
        assert meter.done == 18 * (1 + 3)
        answers.noise(views.views[0], subject.order[:5], 2)
        answers.noise(views.views[0], subject.order[:5], 2)
        assert meter.done == 18 * (1 + 3) + 5 * 2


def test_an_interrupted_run_keeps_its_answers_and_asks_only_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subject, view = known("clothes"), Panel.parse("rotation:30").views[0]
    answers, rows, whole = Answers(subject, tmp_path, Meter("", 1)), subject.order[:40], Answers._answer
    monkeypatch.setattr("experiments.paper.answers.PIECE", 8)
    asked = list[Any]()

    def interrupted(self: Answers, *work: Any) -> Any:
        if len(asked) == 3:
            raise KeyboardInterrupt
        asked.append(work)
        return whole(self, *work)

    monkeypatch.setattr(Answers, "_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        answers.votes(draws_of(view, 4), rows)
    kept = (answers._sheet(view, 4)[:4, rows] != UNASKED).sum()
    assert 0 < kept <= 24
    fresh = list[Any]()

    def counted(self: Answers, *work: Any) -> Any:
        fresh.append(work)
        return whole(self, *work)

    monkeypatch.setattr(Answers, "_answer", counted)
    resumed = Answers(subject, tmp_path, Meter("", 1)).votes(draws_of(view, 4), rows)
    assert sum(len(indices) for _, work in fresh for _, indices in work) == 160 - kept
    at_once = Answers(subject, tmp_path / "other", Meter("", 1)).votes(draws_of(view, 4), rows)
    assert (resumed.views == at_once.views).all()


def test_draws_whose_noise_was_measured_are_not_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, view = known("clothes"), Panel.parse("rotation:30").views[0]
    rows = subject.order[:30]
    at_once = Answers(subject, tmp_path / "other", Meter("", 1)).votes(draws_of(view, 6), rows)
    answers = Answers(subject, tmp_path, Meter("", 1))
    measured = answers.noise(view, rows, 6)
    monkeypatch.setattr(Answers, "_answer", None)
    votes = answers.votes(draws_of(view, 6), rows)
    assert (votes.views == at_once.views).all()
    assert measured.share == pytest.approx((votes.views == votes.base[:, None]).mean(axis=1))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["table1", "--data", "nowhere", "--model", "m.toml"], "nowhere"),
        (["table1", "--data", "."], "--model"),
        (["table1", "--model", "vgg"], "no model is called 'vgg'"),
        (["table4", "--results", "empty"], "run table1 first"),
        (["table1", "--quick", "--pictures", "7"], "40 or more"),
        (["table1", "--quick", "--views", "rotation:10 mirror"], "none of the paper's transforms"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_line(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 1
    told = capsys.readouterr().err
    assert said in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["baselines", "--quick", "--model", "own.toml"], "baselines does not take --model"),
        (["closed", "--quick"], "closed does not take --quick"),
        (["table3", "--open", "resnet7"], "--open: invalid choice: 'resnet7'"),
    ],
)
def test_an_option_that_has_no_meaning_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, check=lambda left: left.code == 2):
        main(arguments)
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["photos", "familiarity", "labelling", "transfer", "unlabelled", "weighted"])
def test_every_script_says_how_it_is_used(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit, check=lambda left: f"python -m experiments.{name}" in str(left)):
        runpy.run_path(str(Path(closed.__file__).with_name(f"{name}.py")), run_name="__main__")


def test_a_model_and_pictures_of_ones_own_are_taken(tmp_path: Path) -> None:
    subject = known("clothes")
    images = np.stack([picture.image().pixels for picture in subject.pictures[:60]])
    labels = np.array([subject.labels.index(str(picture.truth)) for picture in subject.pictures[:60]])
    np.savez(tmp_path / "own.npz", images=images, labels=labels, class_names=np.array(subject.labels))
    told = ["--data", str(tmp_path / "own.npz"), "--model", subject.description, "--draws", "3"]
    assert main(["figure2", "--quick", *told, "--results", str(tmp_path), "--cache", str(tmp_path)]) == 0
    assert {row["model"] for row in read(tmp_path / "figure2.csv")} == {"fashion"}


# Several classifiers -------------------------------------------------------------------------------------------------


def test_cascades_are_compared_on_the_embedded_pictures(tmp_path: Path) -> None:
    assert main(["cascades", "--quick", "--results", str(tmp_path)]) == 0
    rows = {(row["limit"], row["method"]): row for row in read(tmp_path / "cascades.csv")}
    assert {method for limit, method in rows if limit == "4"} > {"clothes@base", *cascades.METHODS}
    for limit, method in rows:
        assert float(rows[limit, cascades.ORACLE]["accuracy"]) >= float(rows[limit, method]["accuracy"])
        assert float(rows[limit, method]["low"]) <= float(rows[limit, method]["high"])
    assert float(rows["1", cascades.OURS]["price"]) == 1.0
    assert {row["rule"] for row in read(tmp_path / "cascades_rules.csv")} == {"expected gain", "one threshold"}
    assert {row["allowed"] for row in read(tmp_path / "cascades_guarantees.csv")} == {"5 %", "10 %"}


def test_a_fit_leaves_out_mirrored_views_where_mirroring_changes_the_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirrored, "TESTED", 100)
    figures = mirrored.measured("arrows", 0)
    assert figures["retained"] < 0.2 < figures["accuracy"]
    assert figures["said"] == 1.0
    assert figures["views"] <= 3.0
    assert figures["most"] <= 4.0


def test_no_guarantee_is_possible_where_the_surest_are_wrong_too_often() -> None:
    confidence, rng = np.linspace(0, 1, 4000), np.random.default_rng(0)
    right, doubtful = rng.random(4000) < 0.999, rng.random(4000) < 0.95
    assert cascades.power(confidence, right, 0.05, 400) > 0.99
    assert cascades.power(confidence, right, 0.05, 40) < 0.01, "58 right answers are the least"
    assert cascades.power(confidence, doubtful, 0.05, 400) < 0.2


def test_the_best_threshold_in_hindsight_keeps_the_allowed_error_and_equal_confidences_together() -> None:
    confidence, right = np.array([0.9, 0.9, 0.8, 0.7]), np.array([True, False, True, True])
    assert cascades.hindsight(confidence, right, 0.25) == 1.0
    assert cascades.hindsight(confidence, right, 0.24) == 0.0
    assert cascades.hindsight(confidence, right[::-1], 0.26) == 1.0
    assert cascades.hindsight(np.sort(confidence), right[::-1], 0.1) == 0.0


# The general panel ---------------------------------------------------------------------------------------------------


def test_the_general_panel_and_its_tables_are_made_by_one_command(tmp_path: Path) -> None:
    general.main(["quick", str(tmp_path)])
    for name, ours in (("general", "grown on the others, 1+8"), ("general_chosen", "chosen, 1+8")):
        rows = read(tmp_path / f"{name}.csv")
        assert {row["model"] for row in rows} == {"first clothes", "second clothes"}
        assert {row["method"] for row in rows} == {"softmax, temperature (1 query)", "mild panel, 1+8", ours}
        assert all(0 < float(row["brier"]) < 1 for row in rows)
        assert all(len(row["panel"].split()) == 8 for row in rows if row["method"] == ours)
    grown = Panel.parse(" ".join(row["view"] for row in read(tmp_path / "general_panel.csv")))
    source = tmp_path / "panels.py"
    source.write_text(general.SOURCE.read_text("utf-8"), "utf-8")
    general.regenerate(grown, source)
    written = source.read_text("utf-8").split("GENERAL = Panel.parse(")[1].split('"""')[1]
    assert Panel.parse(written) == grown[:8]


def test_no_picture_that_grew_the_panel_is_tested(tmp_path: Path) -> None:
    (subject, _) = general.clothes(tmp_path, pictures=40)
    for block in range(8):
        subject.ask(block)
    answers = subject.load()
    for parity, seed in product((0, 1), range(3)):
        fit, test = answers.unseen(parity, seed)
        grew = {*answers.half(parity).names, *answers.votes.take(np.flatnonzero(answers.block < 3)).names}
        assert grew.isdisjoint(answers.votes.names[row] for row in test)
        assert set(fit).isdisjoint(test)
        assert len(fit) + len(test) == len(answers.votes) == 40
        assert len(test) > 0


def test_the_shipped_panel_is_the_one_on_record() -> None:
    recorded = [row["view"] for row in read(general.RESULTS / "general_panel.csv")]
    assert list(map(str, GENERAL)) == recorded[:8]


# The parts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pictures", "classes", "labelled", "draws"),
    [(10_000, 10, 1000, 50), (10_000, 100, 1000, 10), (50_000, 1000, 5000, 2)],
)
def test_splits_and_draws_are_the_papers(pictures: int, classes: int, labelled: int, draws: int) -> None:
    size = scale(pictures, classes, quick=False)
    assert (size.labelled, size.tested, size.draws) == (labelled, pictures - labelled, draws)
    assert size.settings is GRIDS


def test_labelled_and_tested_pictures_never_meet() -> None:
    subject = known("clothes")
    size = scale(len(subject.pictures), 10, quick=False)
    labelled, tested = set(subject.labelled(size)), set(subject.tested(size))
    assert not labelled & tested
    assert len(labelled | tested) == len(subject.pictures)


@pytest.mark.parametrize(
    ("dataset", "title", "accuracy", "model"),
    [
        ("CIFAR-10", "ResNet-20", 0.917, "ResNet18"),
        ("CIFAR-100", "ResNet-56", 0.5, "ResNet56"),
        ("CIFAR-10", "something", 0.94, "MobileNet"),
        ("Imagenet", "EfficientNet-Lite0", 0.75, "EfficientNet"),
        ("Imagenet", "vit_large", 0.88, "ViTL16"),
        ("97 classes", "ResNet-20", 0.9, None),
    ],
)
def test_the_papers_nearest_model_has_the_same_data_and_family(
    dataset: str, title: str, accuracy: float, model: str | None
) -> None:
    assert published.nearest(dataset, title, accuracy) == model


def test_the_papers_numbers_are_those_it_prints() -> None:
    line = published.row("CIFAR-10", "ResNet18", "rotation")
    assert line is not None
    assert line.S == 50
    assert line.values == {"acc": 0.924, "ece": 0.027, "auroc": 0.877, "brier": 0.128, "var": 0.69, "ks": 0.072}
    assert sum(line.table == 1 for line in published.lines()) == 30


def test_reversed_pictures_have_the_larger_margin_and_the_smaller_share() -> None:
    margin, share = np.array([1.0, 3.0, 2.0, 0.5]), np.array([0.9, 0.4, 0.7, 1.0])
    one, two = drawings.reversal(Readings(margin, share, np.zeros((4, 2))))
    assert (one, two) == (0, 1)


NONE: dict[str, list[dict[str, str]]] = {name: [] for name in ("table1", "table2", "table3", "table4", "figure2")}


def _run(method: str, brier: float, width: float, calibrator: str = "gaussian") -> dict[str, str]:
    row = {"model": "m", "method": method, "calibrator": calibrator, "ballot": "base", "reading": "looktwice"}
    for metric in ("ece", "auroc", "brier"):
        row |= {metric: str(brier), f"{metric}_low": str(brier - width), f"{metric}_high": str(brier + width)}
    return row


@pytest.mark.parametrize(
    ("width", "verdict"), [(0.001, ("not seen", "seen", "not seen")), (0.5, ("unclear", "unclear", "unclear"))]
)
def test_a_claim_is_judged_only_where_the_intervals_exclude_zero(width: float, verdict: tuple[str, ...]) -> None:
    rows = [_run("Naive", 0.5, width, "naive"), _run("Gaussian", 0.4, width), _run("Rotation", 0.6, width)]
    told = {r["claim"]: r["verdict"] for r in claims.judged(NONE | {"table1": rows}) if r["ballot"] == "base"}
    wanted = ("every transform beats naive, brier", "natural beats Gaussian, auroc", "natural beats Gaussian, brier")
    assert tuple(told[claim] for claim in wanted) == verdict
    assert told["S = 2 helps on photos, ece"] == "not judged"


def test_a_difference_that_was_paired_by_picture_is_taken_before_two_intervals() -> None:
    paired = {"brier_less_naive": "-0.1", "less_naive_low": "-0.11", "less_naive_high": "-0.09"}
    rows = [_run("Naive", 0.5, 0.5, "naive"), _run("Gaussian", 0.4, 0.5) | paired]
    told = {r["claim"]: r["verdict"] for r in claims.judged(NONE | {"table1": rows}) if r["ballot"] == "base"}
    assert told["every transform beats naive, brier"] == "seen"
    assert told["every transform beats naive, ece"] == "unclear"


def test_more_comparisons_need_more_evidence() -> None:
    assert claims.corrected([0.03]) == [True]
    assert claims.corrected([0.03, 0.9]) == [False, False]
    assert claims.corrected([0.02, None, 0.01, 0.03]) == [True, False, True, True]
    assert claims.corrected([0.04, 0.001, 0.04]) == [False, True, False]


def test_the_papers_own_tables_are_counted_and_not_judged() -> None:
    told = {r["claim"]: r for r in claims.judged(NONE) if r["reading"] == "paper"}
    assert {r["verdict"] for r in told.values()} == {"no interval"}
    assert (told["every transform beats naive, ece"]["for"], told["every transform beats naive, brier"]["for"]) == (
        40,
        25,
    )
    assert told["F_n improves Gaussian's ECE"]["for"] == 3


# The readings and ballots --------------------------------------------------------------------------------------------


def test_the_argmax_drops_the_label_once_another_is_as_probable() -> None:
    confidence, label = np.array([0.9, 0.05, 0.0, 0.0]), np.array([3, 3, 3, 0], np.int32)
    truths = np.array([3, 3, 0, 0], np.int32)
    losses = np.array([0.1, 0.9, 1.0, 2.0])
    outcome = Outcome(
        "gaussian",
        11,
        label,
        confidence,
        label == truths,
        losses,
        losses,
        confidence,
        confidence,
        label.astype(np.intp),
        truths,
    )
    told = tables.argmax(outcome, truths, 10)
    assert told.label.tolist() == [3, 0, 0, 1]
    assert told.confidence.tolist() == pytest.approx([0.9, 0.95 / 9, 1 / 9, 1 / 9])
    assert told.correct.tolist() == [True, False, True, False]
    assert (told.brier == outcome.brier).all()


def test_noise_after_normalisation_is_drawn_anew_for_each_index_and_the_same_each_time() -> None:
    image = known("clothes").pictures[0].image()
    tensor = np.zeros((3, 32, 32), np.float32)
    noise = Normalised(0.1).added(image, tensor, range(20))
    assert noise.std() == pytest.approx(0.1, rel=0.02)
    assert abs(noise.mean()) < 0.002
    assert (Normalised(0.1).added(image, tensor, [3, 7]) == noise[[3, 7]]).all()
    assert (noise[0] != noise[1]).any()
    with pytest.raises(ViewError, check=coded("view-invalid")):
        Normalised(0.1).draw(0, [], image.pixels, image.pixels)


def test_the_second_reading_has_the_same_grids_as_torchvision_draws_them() -> None:
    ours, theirs = grids.whole("looktwice"), grids.whole("torchvision")
    assert {family: len(views) for family, views in theirs.items()} == {f: len(views) for f, views in ours.items()}
    assert str(theirs["gaussian"][0]) == "normalised:0.01"
    assert str(theirs["rotation"][0]) == "rotation:10,border=constant,interpolation=nearest"
    assert str(theirs["elastic"][0]) == "elastic:10,2,border=constant"
    assert grids.listed("rotation:10", "torchvision")["rotation"] == theirs["rotation"][:1]
    with pytest.raises(DataError, check=coded("data-invalid")):
        grids.listed("mirror", "torchvision")


def test_a_second_reading_is_asked_and_kept_beside_the_first(tmp_path: Path) -> None:
    told = ["--views", "gaussian:0.1 rotation:30", "--draws", "3", "--noise", "20", *_quick(tmp_path)]
    for task, reading in product(("table1", "figure2", "figure4"), ("looktwice", "torchvision")):
        assert main([task, "--reading", reading, *told]) == 0
    kept = [row for row in read(tmp_path / "table1.csv") if row["calibrator"] != "probit"]
    rows = {(row["reading"], row["method"], row["ballot"]): row for row in kept}
    one, two = (rows[reading, "Gaussian", "base"] for reading in ("looktwice", "torchvision"))
    assert (one["view"], two["view"]) == ("gaussian:0.1", "normalised:0.1")
    assert one["acc"] == two["acc"]
    assert float(one["centred_var"]) > 0
    assert ("torchvision", "Naive", "base") not in rows
    for figure in ("figure2", "figure4"):
        assert {row["reading"] for row in read(tmp_path / f"{figure}.csv")} == {"looktwice", "torchvision"}
        assert (tmp_path / f"paper-{figure}-clothes-torchvision.svg").exists()


def test_a_network_that_takes_pixels_as_they_are_has_no_noise_after_normalisation(tmp_path: Path) -> None:
    subject = known("clothes")
    settings = Path(subject.description).read_text("utf-8").replace("scale = 255.0", "scale = 1.0")
    for line in ("mean = [0.286]\n", "std = [0.353]\n"):
        settings = settings.replace(line, "")
    (tmp_path / "raw.toml").write_text(settings, "utf-8")
    shutil.copy(Path(subject.description).with_name("fashion.onnx"), tmp_path)
    raw = replace(subject, description=str(tmp_path / "raw.toml"))
    assert subject.normalised
    assert not raw.normalised
    _, options = parse(["table1", *_quick(tmp_path)])
    assert "gaussian" in options.study(raw).size.settings
    assert "gaussian" in options.study(subject, "torchvision").size.settings
    assert {"affine", "elastic", "rotation"} == set(options.study(raw, "torchvision").size.settings)


def test_naive_is_judged_on_all_pictures_too_where_views_are_asked_about_some(tmp_path: Path, ran: Path) -> None:
    told = ["--views", "rotation:30", "--draws", "2", "--noise", "0", "--tested", "40", *_quick(tmp_path)]
    assert main(["table1", *told]) == 0
    rows = {row["method"]: row for row in read(tmp_path / "table1.csv")}
    assert (rows["Naive"]["tested"], rows["Naive, all pictures"]["tested"]) == ("40", "70")
    whole = next(row for row in read(ran / "table1.csv") if row["method"] == "Naive")
    assert rows["Naive, all pictures"]["acc"] == whole["acc"]


# Proposition 1 and the prescription ----------------------------------------------------------------------------------


def _study(folder: Path) -> Study:
    subject = known("clothes")
    size = scale(PICTURES, 10, quick=True)
    return Study(Answers(subject, folder, Meter("", 1)), size)


def test_slopes_along_random_directions_are_the_norm_of_the_gradient(tmp_path: Path) -> None:
    study = _study(tmp_path)
    rows, model = study.subject.order[:3], study.answers._open
    slopes = study.answers.slopes(rows, "torchvision")
    for row, slope in zip(rows, slopes, strict=True):
        tensor = study.answers.tensor(int(row))
        steps = 3e-4 * np.eye(tensor.size, dtype=np.float32).reshape(-1, *tensor.shape)
        features = model.features([tensor, *(tensor + steps), *(tensor - steps)])
        noise = read_features(model.head, features[0], features[1:]).noise
        gradient = (noise[: len(steps)] - noise[len(steps) :]) / 6e-4
        assert slope == pytest.approx(np.linalg.norm(gradient), rel=4 / np.sqrt(2 * DIRECTIONS))


def test_noise_on_pixels_is_as_much_steeper_as_normalisation_stretches_them(tmp_path: Path) -> None:
    study = _study(tmp_path)
    rows, classifier = study.subject.order[:3], study.subject.classifier
    shape = study.answers.tensor(0).shape
    black, white = classifier.tensor([np.full(shape, level, np.uint8) for level in (0, 255)])
    stretched = float((white - black).mean())
    ratio = study.answers.slopes(rows, "looktwice") / study.answers.slopes(rows, "torchvision")
    assert ratio == pytest.approx(np.full(3, stretched), rel=0.1)


def test_where_equation_1_holds_the_jacobian_explains_all_of_var() -> None:
    rng = np.random.default_rng(0)
    slope, margin = rng.uniform(0.1, 10, 400), rng.uniform(0, 20, 400)
    noise = slope[:, None] * rng.normal(size=(400, jacobian.DRAWS))
    share = (margin[:, None] + noise > 0).mean(axis=1)
    told = jacobian.compared(Readings(margin, share, noise), slope)
    figures = {name: float(str(value)) for name, value in told.items()}
    assert figures["var_scaled"] == pytest.approx(figures["var_chance"], abs=0.05)
    assert figures["var"] > figures["var_scaled"] + 0.1
    assert figures["share_rms_jacobian"] < 0.05 < figures["share_rms_common"]
    assert figures["var"] == describe(Cumulatives.count(noise)).var


def test_the_prescription_needs_no_label_and_stands_beside_labels_of_ones_own(tmp_path: Path) -> None:
    study = _study(tmp_path)
    rows = list(prescription.prescribed(study, study))
    assert [(row["labels"], row["fits"]) for row in rows] == [(0, 1)] + [(50, 1)] * 4
    assert rows[0]["brier_less_open"] == ""
    assert all(float(str(r["less_open_low"])) <= float(str(r["less_open_high"])) for r in rows[1:])
    assert rows[0]["view"] in [str(view) for view in study.settings.values()]


# What is not at hand -------------------------------------------------------------------------------------------------


def test_a_plain_clone_is_told_what_is_needed_and_where_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subjects, "SHARED", tmp_path / "nowhere")
    assert main(["table1", "--results", str(tmp_path), "--cache", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    for part in ("cifar10_mlperf_resnet8.onnx", "cifar.html", "--data", "--model", "docs/connectors.md", "--quick"):
        assert part in told
    assert told.count("\n") == 1


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("baselines", "cifar10_mlperf_resnet8.onnx"),
        ("closed", "docs/results"),
        ("tags", "try --quick"),
    ],
)
def test_networks_and_answers_that_are_not_at_hand_are_named(
    task: str, told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(models, "SHARED", tmp_path)
    for module in (closed, tags):
        monkeypatch.setattr(module, "ANSWERS", tmp_path)
    assert main([task, "--results", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_tags_are_judged_with_one_two_and_three_apis(tmp_path: Path) -> None:
    assert main(["tags", "--quick", "--results", str(tmp_path)]) == 0
    rows = {(row["apis"], row["method"], row["labels"]): row for row in read(tmp_path / "tags.csv")}
    three = " + ".join(tags.APIS)
    assert {apis.count("+") for apis, _, _ in rows} == {0, 1, 2}
    assert {method for _, method, _ in rows} == {*tags.BASELINES, tags.OURS}
    best = rows[three, tags.OURS, "200"]
    for (apis, method, _), row in rows.items():
        if apis == three and method != tags.OURS:
            assert float(best["brier"]) < float(row["brier"])
            assert float(best["map"]) > float(row["map"])
    for row in read(tmp_path / "tags_paired.csv"):
        assert float(row["brier_low"]) <= float(row["brier"]) <= float(row["brier_high"])
    assert all(float(row["held"]) > 0.9 for row in read(tmp_path / "tags_intervals.csv"))


def test_the_figures_of_tags_are_those_of_scikit_learn() -> None:
    from sklearn.metrics import average_precision_score, f1_score

    rng = np.random.default_rng(0)
    chance = rng.random((300, 4)).round(1)
    truths = rng.random((300, 4)) < chance**2
    figures = tags.figures(chance, truths)
    assert figures["map"] == pytest.approx(average_precision_score(truths, chance, average="macro"))
    assert figures["micro_f1"] == pytest.approx(f1_score(truths, chance >= 0.5, average="micro"))
    assert figures["macro_f1"] == pytest.approx(f1_score(truths, chance >= 0.5, average="macro"))
    assert tags.recall_at(0.5, np.array([0.9, 0.8, 0.8, 0.1]), np.array([True, False, True, True])) == 1.0
    assert tags.recall_at(0.8, np.array([0.9, 0.8, 0.8, 0.1]), np.array([True, False, True, True])) == pytest.approx(
        1 / 3
    )


def test_answers_that_nobody_asked_for_yet_name_the_command(tmp_path: Path) -> None:
    (subject, _) = general.clothes(tmp_path, pictures=40)
    with pytest.raises(DataError, check=coded("data-invalid")):
        subject.load()


@pytest.mark.skipif(not SHARED.is_dir(), reason="CIFAR-100 and its network are not in ../shared")
def test_cifar_100_stands_beside_the_papers_own_network(tmp_path: Path) -> None:
    told = ["--quick", "--pictures", "40", "--draws", "2", "--views", "rotation:10", "--noise", "5"]
    told += ["--model", RESNET56.name, "--results", str(tmp_path), "--cache", str(tmp_path)]
    assert main(["table1", *told]) == 0
    kept = [row for row in read(tmp_path / "table1.csv") if row["calibrator"] in ("naive", "gaussian")]
    rows = {(row["method"], row["ballot"]): row for row in kept}
    assert {row["dataset"] for row in rows.values()} == {"CIFAR-100"}
    naive = rows["Naive", "base"]
    assert (naive["paper_model"], naive["paper_acc"]) == ("ResNet56", "0.724")
    assert (rows["Rotation", "argmax"]["paper_brier"], rows["Rotation", "vote"]["paper_var"]) == ("0.481", "0.392")


# Files and pages -----------------------------------------------------------------------------------------------------


def test_rows_of_other_models_stay_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    keys = ("dataset", "model")
    merge(path, [{"dataset": "d", "model": "one", "x": 1}, {"dataset": "d", "model": "two", "x": 2}], keys)
    merge(path, [{"dataset": "d", "model": "two", "x": 3.14159265}], keys)
    assert [(row["model"], row["x"]) for row in read(path)] == [("one", "1"), ("two", "3.1416")]
    with pytest.raises(DataError, check=coded("data-invalid")):
        merge(path, [{"dataset": "d", "model": "three", "y": 1}], keys)


def test_a_correlation_of_something_constant_or_of_few_runs_is_left_open() -> None:
    rows = [
        {"calibrator": "gaussian", "ballot": "base", "dataset": d, "ks": str(x), "ece": str(2 * x), "auroc": "0.5"}
        | {"brier": str(-x), "var": "1", "centred_var": "1", "centred_ks": str(x), "reading": "looktwice"}
        for d, count in (("d", 8), ("few", 7))
        for x in range(1, count + 1)
    ]
    correlations = {(r["dataset"], r["statistic"]): r for r in tables.correlations(rows) if r["ballot"] == "base"}
    assert correlations["d", "ks"]["ece_r"] == pytest.approx(1.0)
    assert correlations["d", "ks"]["brier_r"] == pytest.approx(-1.0)
    assert (
        correlations["d", "ks"]["auroc_r"]
        == correlations["d", "var"]["ece_r"]
        == correlations["few", "ks"]["ece_r"]
        == ""
    )


def test_pages_take_a_screen_of_each_table_and_all_rows_go_on_pages_of_their_own(tmp_path: Path, ran: Path) -> None:
    (tmp_path / "tables").mkdir()
    for page in (pages.PAGE, pages.ADVICE):
        names = [name for name, block in pages.BLOCKS.items() if block.page == page]
        marks = "".join(f"<!-- {name} -->\nunfilled\n<!-- /{name} -->\n" for name in names)
        (tmp_path / page).write_text(f"before\n{marks}after\n", "utf-8")
    (tmp_path / pages.INDEX).write_text("<!-- index -->\n<!-- /index -->\n", "utf-8")
    pages.fill(tmp_path, ran)
    text = (tmp_path / pages.PAGE).read_text("utf-8")
    assert text.startswith("before\n<!-- table1 -->\n| model |")
    assert text.endswith("after\n")
    assert text.count("unfilled") == 2  # Tables 2 and 3, which the embedded pictures cannot tell
    whole = (tmp_path / "tables" / "paper-table1.md").read_text("utf-8")
    assert whole.count("\n| embedded clothes |") == len(read(ran / "table1.csv"))
    index = (tmp_path / pages.INDEX).read_text("utf-8")
    assert all(f"Eq. {number}" in index for number in range(1, 7))
    assert "| claim: rotation is best in Brier | `claims` | 25–5–0 |" in index
    (tmp_path / pages.PAGE).write_text("nothing", "utf-8")
    with pytest.raises(DataError, check=coded("data-invalid")):
        pages.fill(tmp_path, ran)


def test_settings_of_ours_never_stand_in_the_papers_rows() -> None:
    row = dict.fromkeys(tables.COLUMNS, "") | {"model": "m", "method": "Rotation", "calibrator": "gaussian"}
    row |= {"view": "rotation:10,border=constant,interpolation=nearest", "ballot": "base", "reading": "torchvision"}
    row |= {"acc": "0.7", "paper_acc": "0.65", "paper_model": "ResNet56", "paper_S": "10"}
    paper, ours = pages.results([row]).splitlines()[2:]
    assert "*Rotation* |" in paper
    assert "Rotation 10 |" in ours
    assert ".700 +.050" in ours


def test_results_that_are_committed_can_be_read() -> None:
    folder = Path(__file__).parents[1] / "experiments" / "results"
    for path in folder.glob("table[1-4].csv"):
        with path.open(newline="", encoding="utf-8") as file:
            assert list(csv.DictReader(file)), path.name


def test_familiarity_is_measured_on_the_embedded_pictures_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"SPLITS": 20, "REPEATED": 1, "FEW": 20, "FIT": 100, "SHIFTED": 30, "STREAM": 60}.items():
        monkeypatch.setattr(familiarity, name, value)
    monkeypatch.setattr(familiarity, "SHARED", tmp_path / "nowhere")
    familiarity.main([], tmp_path)
    results = {task: read(tmp_path / f"familiarity_{task}.csv") for task in familiarity.TASKS}
    assert (
        {row["pictures"] for row in results["alarms"]} == {row["profile"] for row in results["detected"]} == {"clothes"}
    )
    for row in results["alarms"]:
        assert float(row["share"]) == pytest.approx(float(row["rate"]), rel=0.5)
    for row in results["few"]:
        assert 0 < float(row["share"]) <= 1.5 * float(row["rate"])
    assert {row["detected"] for row in results["detected"]} == {"1"}
    accuracy = {row["change"]: float(row["accuracy"]) for row in results["calibration"]}
    assert accuracy["none"] > accuracy["negative"]
    for row in results["streams"]:
        assert (row["told"] == "True") == (row["drift"] == row["shift"] == "False")


def test_answers_that_are_not_stored_are_reported_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(general, "CACHE", tmp_path)
    with pytest.raises(DataError, check=coded("data-invalid")):
        general.stored("resnet20")


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The votes about the embedded pictures stand for those that are stored of any model."""
    (answers,) = general.small(tmp_path_factory.getbasetemp() / "embedded", 2000, ["embedded"])
    monkeypatch.setattr(general, "stored", lambda *_: answers.votes.under(range(8)))


@pytest.mark.usefixtures("embedded")
def test_labels_by_strata_are_measured_beside_a_random_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"DRAWS": 3, "FIT": 300, "LABELS": 200, "THRESHOLDS": (0.9, 0.0)}.items():
        monkeypatch.setattr(labelling, name, value)
    results = tmp_path / "labelling.csv"
    for _ in range(2):  # rows of the same model are replaced
        labelling.main(["clothes"], results)
    rows = read(results)
    random = {row["threshold"]: row for row in rows if row["method"] == "random"}
    strata = [row for row in rows if row["method"] == "strata"]
    assert list(random) == ["0.9000", "0.0000"]
    assert len(strata) == 2 * len(range(40, 201, 20))
    for row in strata:
        assert float(row["ratio"]) < 1.0
        assert 0 < float(row["oracle"]) < 0.9
        if row["labels"] == "200":
            assert float(row["width"]) < float(random[row["threshold"]]["width"])


def test_labels_that_rule_out_are_measured_beside_other_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (answers,) = general.small(tmp_path / "embedded", 600, ["embedded"])
    monkeypatch.setattr(general, "stored", lambda *_: answers.votes.under(range(4)))
    for name, value in {"DRAWS": 3, "LABELS": (100,)}.items():
        monkeypatch.setattr(ruled_out, name, value)
    ruled_out.main(["clothes"], tmp_path / "ruled_out.csv")
    (row,) = read(tmp_path / "ruled_out.csv")
    assert 0 < float(row["brier"]) < 1
    for way in ruled_out.OTHERS:
        assert float(row[f"low_{way}"]) <= float(row[f"gain_{way}"]) <= float(row[f"high_{way}"])


@pytest.mark.usefixtures("embedded")
def test_confidences_of_unlabelled_pictures_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"DRAWS": 5, "FIT": 300, "LABELS": (100, 200)}.items():
        monkeypatch.setattr(unlabelled, name, value)
    unlabelled.main(["clothes"], tmp_path / "unlabelled.csv")
    rows = read(tmp_path / "unlabelled.csv")
    assert [(row["labels"], row["unlabelled"]) for row in rows] == [("100", "1600"), ("200", "1500")]
    for row in rows:
        assert 0 < float(row["ppi"]) < float(row["plain"])
        assert float(row["saved"]) == pytest.approx(1 - (float(row["ppi"]) / float(row["plain"])) ** 2, abs=1e-3)
        assert float(row["ppi_covered"]) >= 0.6


def test_uneven_labels_are_measured_on_simulated_votes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"SPLITS": 1, "VISITED": 400, "FIRST": 100}.items():
        monkeypatch.setattr(weighted, name, value)
    (tmp_path / "weighted.csv").write_text(",".join(weighted.COLUMNS) + "\nother,doubtful,even,1,1,1,1,1,0,1\n")
    weighted.main(["simulated"], tmp_path / "weighted.csv")
    other, *rows = read(tmp_path / "weighted.csv")
    assert other["subject"] == "other"
    assert [(row["chosen"], row["method"]) for row in rows] == [
        ("doubtful", "even"),
        ("doubtful", "plain"),
        ("sure", "even"),
        ("sure", "plain"),
    ]
    for even, plain in (rows[:2], rows[2:]):
        assert float(even["counted"]) < float(plain["counted"]) == float(plain["labels"])
        assert float(even["covered"]) > 0.85


@pytest.mark.parametrize("task", ["scores", "baselines", "sets", "stopping", "guarantees"])
def test_the_jury_sets_and_stops_are_measured_on_the_embedded_pictures(
    task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scores, "VIEWS", (0, 2))
    monkeypatch.setattr(stopping, "GENERAL", Panel(GENERAL.views[:3]))
    rows_of = stopping.rows
    monkeypatch.setattr(stopping, "rows", lambda models, splits: rows_of(models[:1], splits=1))
    assert main([task, "--quick", "--results", str(tmp_path)]) == 0
    rows = read(tmp_path / f"{task}.csv")
    assert {row["model"] for row in rows} >= {"first clothes"}
    if task == "baselines":
        brier = {row["method"]: float(row["brier"]) for row in rows}
        assert brier["jury"] < brier["majority share"]
        assert {row["queries"] for row in rows} == {"1", "9"}
    elif task == "scores":
        briers = {(row["model"], row["answers"], row["queries"]): float(row["brier"]) for row in rows}
        for model in ("first clothes", "second clothes"):
            assert briers[model, "score", "1+0"] < briers[model, "label", "1+0"]
            assert briers[model, "top five", "1+2"] < briers[model, "label", "1+2"]
            assert briers[model, "constant score", "1+2"] == briers[model, "label", "1+2"]
    elif task == "sets":
        covered = {row["sets"]: float(row["coverage"]) for row in rows}
        assert covered["aps"] > 0.88
        assert covered["aps"] > covered["lac"]
    elif task == "guarantees":
        assert {row["allowed"] for row in rows} == {"2 %", "5 %", "10 %", "20 %"}
        assert all(int(row["broken"]) <= int(row["above"]) <= int(row["made"]) <= 2 for row in rows)
    else:
        assert {row["answers"] for row in rows} == {"label", "label with score", "five labels with scores"}
        assert all(0 < float(row["queries"]) <= 1 and 0 < float(row["paid"]) <= 1 for row in rows)
        assert all(0.85 < float(row["brier"]) < 1.15 for row in rows)
        assert all(float(row["best"]) >= float(row["brier"]) for row in rows)


def test_the_pages_about_scores_say_what_their_csvs_say() -> None:
    figures, page = scores.figures(scores.RESULTS), scores.PAGE.read_text("utf-8")
    assert scores.note(figures) in page
    assert closed.emotions_note(read(closed.RESULTS / "closed_emotions.csv")) in closed.PAGE.read_text("utf-8")


def test_the_notes_of_the_results_say_what_their_csvs_say() -> None:
    docs, results = Path(decisions.__file__).parents[1] / "docs", Path(decisions.__file__).with_name("results")
    for name, (page, note) in decisions.NOTES.items():
        assert note(read(results / f"{name}.csv")) in (docs / page).read_text("utf-8"), (
            "run: python -m experiments page"
        )


def test_a_perfect_forecast_has_the_ece_that_chance_gives() -> None:
    rng = np.random.default_rng(0)
    confidence = rng.beta(4, 2, 2000)
    eces = [metrics.ece(confidence, rng.random(2000) < confidence) for _ in range(200)]
    assert ece_by_chance(confidence) == pytest.approx(np.mean(eces), rel=0.05)


def test_a_setting_is_chosen_by_each_rule() -> None:
    def scores(accuracy: float, ece: float, brier: float) -> Scores:
        return Scores(accuracy, ece, None, 0.0, brier, 0.0, 0.0)

    mild, medium, strong = Panel.parse("rotation:10 rotation:20 rotation:30")
    by_setting = {mild: scores(0.72, 0.12, 0.40), medium: scores(0.71, 0.05, 0.42), strong: scores(0.60, 0.01, 0.60)}
    assert {rule: choose(by_setting) for rule, (_, choose) in selection.RULES.items()} == {
        "brier": mild,
        "ece": strong,
        "accuracy - ece": medium,
        "ece, accuracy kept": medium,
    }


def test_each_rule_has_a_row_by_each_ballot(ran: Path) -> None:
    rows = [row for row in read(ran / "selection.csv") if row["transform"] == "rotation"]
    assert {(row["rule"], row["ballot"]) for row in rows} == set(product(selection.RULES, ("base", "vote", "argmax")))
    assert len({row["acc"] for row in rows if row["ballot"] == "base"}) == 1
