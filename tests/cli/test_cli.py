"""The command line as a user meets it: on the embedded classifier, with good input and bad."""

import csv
import json
import re
import subprocess
import sys
from dataclasses import asdict
from importlib.resources import files
from pathlib import Path

import cv2
import numpy as np
import pytest
from support.errors import code_in
from support.faults import fault_server
from support.workshop import run, write_profile

from looktwice.calibration.votes import Votes
from looktwice.cli.fit import tell_mismatch
from looktwice.decisions.policy import DecisionOptions
from looktwice.images.collection import find

DEMO = Path(str(files("looktwice") / "demo"))
CLOTHES = DEMO / "pictures.npz"


@pytest.fixture(scope="session")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cli") / "profile.json"
    done = run(
        "fit", CLOTHES, "--take", ":300", "-c", DEMO / "fashion.toml", "--views", "mirror rotation:15*4", "-o", path
    )
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def shirt(tmp_path: Path) -> Path:
    with np.load(CLOTHES) as file:
        cv2.imwrite(str(tmp_path / "shirt.png"), file["images"][0])
    return tmp_path / "shirt.png"


def test_fit_prints_the_figures_of_held_out_folds_and_keeps_votes(tmp_path: Path) -> None:
    done = run(
        "fit", CLOTHES, "--take", ":100", "-c", f"onnx:{DEMO / 'fashion.onnx'}", "--views", "rotation:20*3",
        "--calibrator", "isotonic", "-o", tmp_path / "p.json", "--votes", tmp_path / "v.npz", "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert [row["calibrator"] for row in result["results"]] == ["naive", "constant", "isotonic"]
    assert (tmp_path / "v.npz").exists()
    assert (tmp_path / "p.json").exists()


def test_look_says_label_confidence_and_why(profile: Path, shirt: Path) -> None:
    done = run("look", shirt, "-p", profile, "--all")
    assert done.returncode == 0, done.stderr
    assert "%" in done.stdout
    assert "of 5 views" in done.stdout
    verdict = json.loads(run("look", shirt, "-p", profile, "--all", "--json").stdout)
    assert 0 < verdict["confidence"] < 1
    assert verdict["queries"] == 6
    assert [asked["view"] for asked in verdict["asked"]] == ["again", "mirror", *["rotation:15"] * 4]


def test_a_burst_of_photos_gives_one_verdict(profile: Path, shirt: Path, tmp_path: Path) -> None:
    photo = cv2.imread(str(shirt))
    assert photo is not None
    for i, angle in enumerate((-10, 5, 10)):
        turn = cv2.getRotationMatrix2D((13.5, 13.5), angle, 1.0)
        cv2.imwrite(
            str(tmp_path / f"turned{i}.png"), cv2.warpAffine(photo, turn, (28, 28), borderMode=cv2.BORDER_REFLECT)
        )
    done = run("look", "--burst", shirt, *sorted(tmp_path.glob("turned*")), "-p", profile, "--json")
    assert done.returncode == 0, done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["queries"] == 4
    assert len(verdict["asked"]) == 4


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_score_writes_a_verdict_a_picture(profile: Path, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"verdicts.{ending}"
    done = run("score", CLOTHES, "--take", "300:350", "-p", profile, "-o", out)
    assert done.returncode == 0, done.stderr
    assert len(rows(out)) == 50
    assert all(0 <= float(str(row["confidence"])) <= 1 for row in rows(out))
    assert not out.with_name(out.name + ".part").exists()


def test_a_dry_run_of_any_command_says_the_price_and_asks_nothing(profile: Path, tmp_path: Path) -> None:
    with fault_server() as server:
        paid = tmp_path / "paid.json"
        description = server.describe(tmp_path, price="0.01")
        write_profile(paid, description)
        some = (CLOTHES, "--take", ":20", "--ledger", tmp_path / "ledger.db", "--dry-run")
        for words in (
            ("fit", *some, "-c", description, "-o", tmp_path / "new.json"),
            ("score", *some, "-p", paid, "-o", tmp_path / "new.csv"),
            ("evaluate", *some, "-p", paid, "--report", tmp_path / "new.html"),
            ("borrow", profile, "--pictures", *some, "-c", description, "-o", tmp_path / "new.json"),
        ):
            done = run(*words)
            assert words[0] == "borrow" or "http://127.0.0.1" in done.stderr, (words, done.stderr)
        shirt = tmp_path / "shirt.png"
        cv2.imwrite(str(shirt), np.full((28, 28, 3), 99, np.uint8))
        done = run("look", shirt, "-p", paid, "--dry-run", "--json", "--ledger", tmp_path / "ledger.db")
        assert json.loads(done.stdout)["micros"] == 5 * 10_000
        assert server.stats()["requests"] == 0
    assert not list(tmp_path.glob("new*"))


def test_truths_in_other_words_than_the_classifiers_are_told(tmp_path: Path) -> None:
    with np.load(CLOTHES) as file:
        names = np.array([str(name).replace("/", "-") for name in file["class_names"]])
        np.savez(tmp_path / "other.npz", images=file["images"][:60], labels=file["labels"][:60], class_names=names)
    words = ("-c", DEMO / "fashion.toml", "--views", "mirror", "-o", tmp_path / "profile.json")
    warned = run("fit", tmp_path / "other.npz", *words).stderr
    assert "Label mismatch:" in warned
    assert "T-shirt-top" in warned
    assert "Label mismatch:" not in run("fit", CLOTHES, "--take", ":60", *words).stderr


def test_a_true_label_of_one_picture_that_was_never_returned_is_no_mismatch(capsys: pytest.CaptureFixture[str]) -> None:
    base = ["cat", "dog", "fox"] * 10
    for truths, told in ((["ox"], False), (["ox"] * 3, True), ([f"ox {n}" for n in range(7)], True)):
        tell_mismatch(Votes.from_labels(base, [["owl"]] * 30, [*truths, *base[len(truths) :]]))
        assert ("Label mismatch:" in capsys.readouterr().err) == told


def write_numbers(folder: Path, count: int = 30) -> Path:
    """Pictures whose labels.csv has numbers as labels, and names in another column."""
    folder.mkdir()
    with np.load(CLOTHES) as file, (folder / "labels.csv").open("w", newline="") as table:
        writer = csv.writer(table)
        writer.writerow(["file", "label", "name"])
        for i, (image, label) in enumerate(zip(file["images"][:count], file["labels"][:count], strict=True)):
            cv2.imwrite(str(folder / f"{i}.png"), image)
            writer.writerow([f"{i}.png", label, file["class_names"][label]])
    return folder


def refused(*words: object) -> str:
    """The code of a command that ends with an error."""
    done = run(*words)
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr
    return code_in(done.stderr)


def test_numbers_as_truths_beside_names_are_no_fit_and_another_column_is(profile: Path, tmp_path: Path) -> None:
    folder, out = write_numbers(tmp_path / "numbered"), tmp_path / "new.json"
    words = ("fit", folder, "-c", DEMO / "fashion.toml", "--views", "mirror", "-o", out)
    assert refused(*words) == "labels-unmatched"
    assert refused("evaluate", folder, "-p", profile) == "labels-unmatched"
    assert not out.exists()
    assert refused(*words, "--truths-column", "class") == "file-malformed"
    done = run(*words, "--truths-column", "name")
    assert done.returncode == 0, done.stderr
    done = run("evaluate", folder, "-p", profile, "--truths-column", "name", "--json")
    assert json.loads(done.stdout)["results"][0]["figures"]["accuracy"]["value"] > 0.5


def test_truths_that_match_no_known_label_cost_nothing(tmp_path: Path) -> None:
    folder = write_numbers(tmp_path / "numbered")
    with fault_server() as server:
        description, paid = server.describe(tmp_path, price="0.01"), tmp_path / "paid.json"
        write_profile(paid, description)
        assert refused("evaluate", folder, "-p", paid, "--ledger", tmp_path / "a.db") == "labels-unmatched"
        known = server.describe(tmp_path, price="0.01", labels=["ant", "bee", "cat", "dog", "eel"])
        words = ("-c", known, "-o", tmp_path / "new.json", "--ledger", tmp_path / "b.db")
        assert refused("fit", folder, *words) == "labels-unmatched"
        assert server.stats()["requests"] == 0
    assert not (tmp_path / "new.json").exists()


def test_truths_that_match_no_label_that_was_given_are_no_fit_and_the_votes_are_kept(tmp_path: Path) -> None:
    folder, out, votes = write_numbers(tmp_path / "numbered"), tmp_path / "new.json", tmp_path / "votes.npz"
    with fault_server() as server:
        description = server.describe(tmp_path)
        words = ("-c", description, "--views", "mirror", "-o", out, "--votes", votes, "--ledger", tmp_path / "a.db")
        assert refused("fit", folder, *words) == "labels-unmatched"
        assert server.stats()["requests"] == 20
        assert not votes.exists()
        assert refused("fit", folder, *words, "--canaries", 0, "--label-check", 0) == "labels-unmatched"
        assert server.stats()["requests"] == 60
    assert not out.exists()
    assert votes.exists()


def rows(path: Path) -> list[dict[str, object]]:
    if path.suffix == ".csv":
        with path.open(newline="") as file:
            return list(csv.DictReader(file))
    if path.suffix == ".jsonl":
        return [json.loads(line) for line in path.read_text().splitlines()]
    import pyarrow.parquet as pq

    return list(pq.read_table(path).to_pylist())


def test_score_goes_on_where_it_was_and_ends_in_the_same_bytes(profile: Path, tmp_path: Path) -> None:
    whole, resumed = tmp_path / "whole.csv", tmp_path / "resumed.csv"
    assert run("score", CLOTHES, "--take", ":80", "-p", profile, "-o", whole).returncode == 0
    # As if a crash had cut the work file in the middle of a line.
    header = "looktwice score " + json.dumps(
        {"profile": json.loads(profile.read_text()), "options": asdict(DecisionOptions())}, sort_keys=True
    )
    part = resumed.with_name("resumed.csv.part")
    assert run("score", CLOTHES, "--take", ":80", "-p", profile, "-o", tmp_path / "lines.jsonl").returncode == 0
    lines = (tmp_path / "lines.jsonl").read_text().splitlines(keepends=True)
    digests = [picture.image().digest for picture in find([CLOTHES])[:30]]
    known = [json.dumps({**json.loads(line), "stamp": None, "digest": d}) + "\n" for line, d in zip(lines, digests)]  # noqa: B905
    part.write_text(header + "\n" + "".join(known) + lines[30][:20])
    done = run("score", CLOTHES, "--take", ":80", "-p", profile, "-o", resumed)
    assert "30 of 80" in done.stderr
    assert resumed.read_bytes() == whole.read_bytes()


def test_a_resumed_run_sums_up_the_whole_file(profile: Path, shirt: Path, tmp_path: Path) -> None:
    pictures, out = tmp_path / "pictures", tmp_path / "out.csv"
    pictures.mkdir()
    for name in ("a", "b", "c"):
        (pictures / f"{name}.png").write_bytes(shirt.read_bytes() if name != "b" else b"")
    command = ["score", pictures, "-p", profile, "-o", out, "--max-error", "0.4", "--json"]
    first = json.loads(run(*command).stdout)
    (pictures / "b.png").write_bytes(shirt.read_bytes())
    second = json.loads(run(*command).stdout)
    assert (first["not_scored"], second["not_scored"]) == (1, 0)
    assert second["accepted"] == sum(row["decision"] == "accept" for row in rows(out))
    assert 2 * second["accepted"] == 3 * first["accepted"] > 0


def test_bad_pictures_are_listed_with_a_reason_and_the_exit_code_says_so(
    profile: Path, shirt: Path, tmp_path: Path
) -> None:
    (tmp_path / "broken.png").write_bytes(shirt.read_bytes()[:60])
    done = run("score", tmp_path, "-p", profile, "-o", tmp_path / "verdicts.csv")
    assert done.returncode == 3
    table = {str(row["name"]): row for row in rows(tmp_path / "verdicts.csv")}
    assert table["broken.png"]["confidence"] == ""
    assert "broken" in str(table["broken.png"]["message"])
    assert table["broken.png"]["cause"] == "unreadable"
    assert table["shirt.png"]["cause"] == ""


def test_evaluate_shows_the_baselines_beside_the_profile(profile: Path, tmp_path: Path) -> None:
    done = run("evaluate", CLOTHES, "--take", "300:800", "-p", profile, "--json", "--votes", tmp_path / "v.parquet")
    assert done.returncode == 0, done.stderr
    naive, constant, probit = json.loads(done.stdout)["results"]
    assert naive["figures"]["ece"]["value"] == pytest.approx(1 - naive["figures"]["accuracy"]["value"], abs=1e-6)
    assert naive["figures"]["brier"]["value"] == pytest.approx(2 * naive["figures"]["ece"]["value"], abs=1e-5)
    assert probit["figures"]["brier"]["value"] < naive["figures"]["brier"]["value"]
    assert constant["figures"]["auroc"]["value"] == 0.5


@pytest.mark.parametrize(
    ("name", "content"),
    [("corrupt.jpg", b"\xff\xd8\xff\xe0 cut"), ("text.png", b"just a text"), ("empty.png", b"")],
)
def test_a_bad_file_is_one_line_and_an_exit_code(profile: Path, tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    done = run("look", tmp_path / name, "-p", profile)
    assert done.returncode != 0
    assert name in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("look", "nowhere.png"), "file-missing"),
        (("look", "."), "pictures-none"),
        (("score", ".", "-o", "out.csv"), "pictures-none"),
        (("score", CLOTHES, "-o", "out.xlsx"), "file-ending"),
        (("score", CLOTHES, "-o", "out.csv", "--take", "a:b"), "option-invalid"),
        (("score", CLOTHES, "-o", "out.csv", "--budget", "many"), "budget-invalid"),
        (("score", CLOTHES, "-o", "out.csv", "--money", "5"), "budget-invalid"),
        (("fit", CLOTHES, "-c", "onyx:model.onnx"), "description-invalid"),
        (("fit", CLOTHES, "-c", "nothing"), "description-invalid"),
        (("fit", CLOTHES, "-c", DEMO / "fashion.toml", "--views", "rotate:5"), "view-unknown"),
        (("fit", CLOTHES, "-c", DEMO / "fashion.toml", "--calibrator", "hope"), "calibrator-unknown"),
        (("evaluate", "missing"), "file-missing"),
    ],
)
def test_bad_input_is_one_line_without_a_traceback(
    profile: Path, tmp_path: Path, arguments: tuple[object, ...], code: str
) -> None:
    command = arguments if arguments[0] == "fit" else (*arguments, "-p", profile)
    done = run(*command, cwd=tmp_path)
    assert (done.returncode, code_in(done.stderr)) == (1, code)
    assert "Traceback" not in done.stderr


def test_a_name_with_terminal_escapes_is_printed_safely(profile: Path, tmp_path: Path) -> None:
    (tmp_path / "\x1b[31mred.png").write_text("no picture")
    done = run("look", tmp_path, "-p", profile)
    assert done.returncode != 0
    assert "\x1b[31m" not in done.stderr + done.stdout


def test_the_version_is_printed() -> None:
    assert run("--version").stdout.startswith("looktwice ")


def test_the_package_is_run_as_the_command_is() -> None:
    words = [sys.executable, "-m", "looktwice", "--version"]
    module = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (module.stdout, module.returncode) == (run("--version").stdout, 0)
    assert module.stdout.startswith("looktwice")


def test_the_demo_keeps_its_guarantee(tmp_path: Path) -> None:
    first = run("demo", "-o", tmp_path / "demo", "--json")
    assert first.returncode == 0, first.stderr
    figures = {row["calibrator"]: row["figures"] for row in json.loads(first.stdout)["results"]}
    jury = next(value for name, value in figures.items() if name.startswith("jury"))
    assert jury["ece"]["value"] < 0.04
    assert jury["brier"]["value"] < min(figures["naive"]["brier"]["value"], figures["constant"]["brier"]["value"])
    assert all(value["low"] is not None for row in figures.values() for value in row.values())
    always, labels, scores, two = json.loads(first.stdout)["situations"]
    assert (always["queries"], scores["queries"]) == (9, 1)
    assert labels["queries"] < 8
    assert two["queries"] < 3
    assert all(each["accepted"] > 0.7 and each["wrong"] < 0.09 for each in (always, labels, scores, two))
    assert max(scores["cost"], two["cost"]) < labels["cost"] < always["cost"]
    written = {path.name for path in (tmp_path / "demo").iterdir()}
    assert {"profile.json", "votes.npz", "index.html", "costs.svg"} <= written
    page = (tmp_path / "demo" / "index.html").read_text()
    headline = re.search(r"accepted without review</dt><dd>([\d.]+)", page)
    assert headline  # the report and the terminal say the same, but for unfamiliar pictures
    assert float(headline[1]) == pytest.approx(100 * labels["accepted"], abs=1)
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
