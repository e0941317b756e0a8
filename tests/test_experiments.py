"""Every table and figure of the paper, in its quick form, on the embedded pictures: nothing else is needed."""

from __future__ import annotations

import csv
import importlib
from pathlib import Path

import numpy as np
import pytest

from experiments.__main__ import main
from experiments.paper import claims, drawings, pages, published, tables
from experiments.paper.answers import Answers, Meter, Readings
from experiments.paper.subjects import known, scale
from experiments.paper.writing import read, write
from looktwice.errors import DataError
from looktwice.views import GRIDS, Panel

PICTURES = 120
FAMILIES = {"Gaussian", "Affine", "Elastic", "Rotation"}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder in which every task was run, with its answers in `cache`."""
    folder = tmp_path_factory.mktemp("paper")
    assert main(["all", *_quick(folder)]) == 0
    return folder


def _quick(folder: Path) -> list[str]:
    return ["--quick", "--pictures", str(PICTURES), "--results", str(folder), "--cache", str(folder / "cache")]


def test_tables_1_and_2_have_every_method_with_intervals_beside_the_papers_row(ran: Path) -> None:
    for name in ("table1", "table2"):
        rows = read(ran / f"{name}.csv")
        paper = [row for row in rows if row["calibrator"] == "gaussian"]
        assert {(row["method"], row["ballot"]) for row in paper} == {(f, b) for f in FAMILIES for b in ("base", "vote")}
        assert {"naive", "probit", "jury", "softmax"} < {row["calibrator"] for row in rows}
        for row in paper:
            assert float(row["brier_low"]) <= float(row["brier"]) <= float(row["brier_high"])
            assert all(row[column] for column in ("var", "ks", "paper_acc", "paper_brier", "paper_var", "paper_ks"))


def test_the_base_ballot_keeps_the_naive_accuracy_and_naive_costs_twice_the_error(ran: Path) -> None:
    rows = read(ran / "table1.csv")
    naive = next(row for row in rows if row["method"] == "Naive")
    base = [row for row in rows if row["ballot"] == "base"]
    assert {row["acc"] for row in base} == {naive["acc"]}
    assert float(naive["brier"]) == pytest.approx(2 * (1 - float(naive["acc"])), abs=1e-4)
    assert float(naive["auroc"]) == 0.5


def test_table_3_has_both_cumulatives_for_each_ballot_and_objective(ran: Path) -> None:
    rows = read(ran / "table3.csv")
    assert len({(row["objective"], row["ballot"], row["cumulative"]) for row in rows}) == len(rows) == 8
    assert all(0 <= float(row["ks"]) <= 1 for row in rows)


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
    assert {row["verdict"] for row in rows} <= {"seen", "not seen", "mixed"}
    told = {row["claim"] for row in rows}
    assert {"rotation is best in Brier", "natural beats Gaussian, brier", "F_n improves Gaussian's ECE"} < told


def test_nothing_is_asked_twice(ran: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def asked(*_: object) -> None:
        raise AssertionError("the model was asked again")

    for name in ("_answer", "_output", "_probe"):
        monkeypatch.setattr(Answers, name, asked)
    before = (ran / "table1.csv").read_text("utf-8")
    assert main(["table1", *_quick(ran)]) == 0
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


def test_a_model_and_pictures_of_ones_own_are_taken(tmp_path: Path) -> None:
    subject = known("clothes")
    images = np.stack([picture.image().pixels for picture in subject.pictures[:60]])
    labels = np.array([subject.labels.index(str(picture.truth)) for picture in subject.pictures[:60]])
    np.savez(tmp_path / "own.npz", images=images, labels=labels, class_names=np.array(subject.labels))
    told = ["--data", str(tmp_path / "own.npz"), "--model", subject.description, "--draws", "3"]
    assert main(["figure2", "--quick", *told, "--results", str(tmp_path), "--cache", str(tmp_path)]) == 0
    assert {row["model"] for row in read(tmp_path / "figure2.csv")} == {"fashion"}


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


def test_a_claim_is_mixed_where_some_cases_speak_for_it() -> None:
    def row(model: str, method: str, brier: float, calibrator: str = "gaussian") -> dict[str, str]:
        return {"model": model, "method": method, "calibrator": calibrator, "ballot": "base"} | dict.fromkeys(
            ("ece", "auroc", "brier"), str(brier)
        )

    rows = [row("m", "Naive", 0.5, "naive"), row("m", "Gaussian", 0.4), row("m", "Rotation", 0.6)]
    none: dict[str, list[dict[str, str]]] = {name: [] for name in ("table2", "table3", "table4", "figure2")}
    told = {r["claim"]: r for r in claims.judged({"table1": rows, **none}) if r["ballot"] == "base"}
    assert told["every transform beats naive, brier"]["verdict"] == "mixed"
    assert told["natural beats Gaussian, brier"]["verdict"] == "not seen"
    assert "S = 2 helps on photos, ece" not in told


def test_the_papers_own_tables_do_not_bear_out_all_of_its_claims() -> None:
    none: dict[str, list[dict[str, str]]] = {name: [] for name in ("table1", "table2", "table3", "table4", "figure2")}
    told = {r["claim"]: r for r in claims.judged(none)}
    assert {r["ballot"] for r in told.values()} == {"paper"}
    assert told["every transform beats naive, ece"]["verdict"] == "seen"
    assert told["every transform beats naive, brier"]["verdict"] == "mixed"
    assert told["rotation is best in Brier"]["verdict"] == "mixed"
    assert told["F_n improves Gaussian's ECE"]["verdict"] == "seen"


def test_rows_of_other_models_stay_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    write(path, [{"dataset": "d", "model": "one", "x": 1}, {"dataset": "d", "model": "two", "x": 2}])
    write(path, [{"dataset": "d", "model": "two", "x": 3.14159265}])
    assert [(row["model"], row["x"]) for row in read(path)] == [("one", "1"), ("two", "3.1416")]
    with pytest.raises(DataError, match="other columns"):
        write(path, [{"dataset": "d", "model": "three", "y": 1}])


def test_a_correlation_of_something_constant_is_left_open() -> None:
    rows = [
        {"calibrator": "gaussian", "ballot": "base", "dataset": "d", "ks": str(x), "ece": str(2 * x), "auroc": "0.5"}
        | {"brier": str(-x), "var": "1", "centred_var": "1", "centred_ks": str(x)}
        for x in (1, 2, 3, 4)
    ]
    found = {(r["dataset"], r["statistic"]): r for r in tables.correlations(rows) if r["ballot"] == "base"}
    assert found["d", "ks"]["ece_r"] == pytest.approx(1.0)
    assert found["d", "ks"]["brier_r"] == pytest.approx(-1.0)
    assert found["d", "ks"]["auroc_r"] == found["d", "var"]["ece_r"] == ""


def test_a_page_takes_the_tables_between_its_marks(tmp_path: Path, ran: Path) -> None:
    page = tmp_path / "page.md"
    marks = "".join(f"<!-- {name} -->\nold\n<!-- /{name} -->\n" for name in pages.BLOCKS)
    page.write_text(f"before\n{marks}after\n", "utf-8")
    full = page.with_name("full.md")
    pages.fill(page, ran, full)
    assert full.read_text("utf-8").count("\n| ") > page.read_text("utf-8").count("\n| ")
    text = page.read_text("utf-8")
    assert text.startswith("before\n<!-- table1 -->\n| model |")
    assert text.endswith("after\n")
    assert "old" not in text
    page.write_text("nothing", "utf-8")
    with pytest.raises(DataError, match="has no marks for table1"):
        pages.fill(page, ran, full)


def test_results_that_are_committed_can_be_read() -> None:
    folder = Path(__file__).parents[1] / "experiments" / "results"
    for path in folder.glob("table[1-4].csv"):
        with path.open(newline="", encoding="utf-8") as file:
            assert list(csv.DictReader(file)), path.name


def test_familiarity_is_measured_on_the_embedded_pictures_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "experiments")
    measured = importlib.import_module("familiarity")
    for name, value in {"SPLITS": 20, "REPEATED": 1, "FEW": 20, "FIT": 100, "SHIFTED": 30}.items():
        monkeypatch.setattr(measured, name, value)
    monkeypatch.setattr(measured, "SHARED", tmp_path / "nowhere")
    measured.main([], tmp_path)
    found = {task: read(tmp_path / f"familiarity_{task}.csv") for task in measured.TASKS}
    assert {row["pictures"] for row in found["alarms"]} == {row["profile"] for row in found["detected"]} == {"clothes"}
    for row in found["alarms"]:
        assert float(row["share"]) == pytest.approx(float(row["rate"]), rel=0.4)
    assert {row["detected"] for row in found["detected"]} == {"1"}
    accuracy = {row["change"]: float(row["accuracy"]) for row in found["calibration"]}
    assert accuracy["none"] > accuracy["negative"]
    page = tmp_path / "page.md"
    page.write_text("".join(f"<!-- {task} -->\nold\n<!-- /{task} -->\n" for task in found), "utf-8")
    measured.fill(page, tmp_path)
    assert "| clothes | 1 % |" in page.read_text("utf-8")
    assert "old" not in page.read_text("utf-8")


@pytest.mark.parametrize("task", ["baselines", "sets", "stopping"])
def test_the_jury_sets_and_stops_are_measured_on_the_embedded_pictures(task: str, tmp_path: Path) -> None:
    assert main([task, "--quick", "--results", str(tmp_path)]) == 0
    rows = read(tmp_path / f"{task}.csv")
    assert {row["model"] for row in rows} == {"embedded clothes"}
    if task == "baselines":
        brier = {row["method"]: float(row["brier"]) for row in rows}
        assert brier["jury"] < brier["majority share"]
        assert {row["queries"] for row in rows} == {"1", "9"}
    elif task == "sets":
        covered = {row["sets"]: (float(row["coverage"]), float(row["least_bin"])) for row in rows}
        assert covered["adaptive"][0] > 0.88
        assert covered["adaptive"][1] > covered["threshold"][1]
    else:
        assert all(float(row["queries"]) <= 1 for row in rows)
        assert float(rows[0]["brier"]) == pytest.approx(1, abs=0.02)
