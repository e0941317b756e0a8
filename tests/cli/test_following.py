"""What commands say at their end: what is in reach, what it costs, and the command to go on with."""

from __future__ import annotations

import csv
import json
import shlex
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from support.serving import clothes, started_here
from support.workshop import run

from looktwice import Model
from looktwice.cli.console import HELD
from looktwice.decisions import planning
from looktwice.decisions.profile import Profile

DEMO = Path(str(files("looktwice") / "demo"))
PICTURES = str(DEMO / "pictures.npz")


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A folder with a profile of the embedded classifier, and what `fit` said."""
    folder = tmp_path_factory.mktemp("following")
    for name, data in zip(("one.png", "two.png"), clothes(), strict=False):
        (folder / name).write_bytes(data)
    done = run(
        *("fit", PICTURES, "-c", DEMO / "fashion.toml", "--take", ":400", "--views", "mirror turn:8"),
        *("--price", "0.002", "--ledger", "ledger.db"),
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr
    return folder, done.stderr


def last(text: str) -> str:
    return text.strip().splitlines()[-1]


def following(text: str) -> list[str]:
    """The words of the command that the last line names."""
    return shlex.split(last(text).split(": ", 1)[1])


def test_fit_tells_the_least_error_in_reach_and_the_command_works_as_it_stands(bench: tuple[Path, str]) -> None:
    folder, said = bench
    least = planning.least_error(Profile.load(folder / "profile.json").held_out.answers())
    assert least
    assert f"{least[0]:g}" in said
    assert f"{100 * least[1]:.0f} %" in said
    program, *words = following(said)
    assert said.count(f"--level {words[words.index('--level') + 1]}") == 2
    words[words.index("PICTURES")] = PICTURES
    scored = run(*words, "--take", "400:440", "--price", "0.002", "--ledger", "ledger.db", cwd=folder)
    assert (program, scored.returncode) == ("looktwice", 0), scored.stderr
    doubtful = "review" in {
        row["decision"] for row in csv.DictReader((folder / "verdicts.csv").read_text().splitlines())
    }
    assert following(scored.stderr) == ["looktwice", "review" if doubtful else "audit", "verdicts.csv", PICTURES]


def test_an_accepted_answer_pays_for_those_that_are_not(bench: tuple[Path, str]) -> None:
    _, said = bench
    share = int(said.split("It accepts ")[1].split("%")[0]) / 100
    cost = float(said.split("such pictures, at ")[1].split(" ")[0])
    assert cost == pytest.approx(3 * 0.002 / share, rel=0.02)


def test_a_plan_that_the_labels_can_back_goes_on_to_score_and_another_to_labels(bench: tuple[Path, str]) -> None:
    enough = run("plan", "--max-error", "0.2", "-p", "profile.json", cwd=bench[0])
    assert following(enough.stderr)[:2] == ["looktwice", "score"]
    unknown = run("plan", "--max-error", "0.01", cwd=bench[0])
    assert following(unknown.stderr) == ["looktwice", "label", "PICTURES", "-c", "CLASSIFIER"]


def test_the_next_command_names_the_level_that_was_asked_for(bench: tuple[Path, str]) -> None:
    planned = run("plan", "--max-error", "0.2", "--level", "0.9", "-p", "profile.json", cwd=bench[0])
    assert following(planned.stderr)[5:9] == ["--max-error", "0.2", "--level", "0.9"]
    unmet = run("look", "one.png", "--max-error", "0.001", "--level", "0.99", cwd=bench[0])
    assert "looktwice plan --max-error 0.001 --level 0.99\n" in unmet.stderr


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("check", DEMO / "fashion.toml"), "label"),
        (("ledger", "stats", "--ledger", "ledger.db"), "ledger"),
        (("report",), "serve"),
        (("evaluate", PICTURES, "--take", "400:500"), "score"),
        (("look", "--burst", "one.png", "two.png"), "serve"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value[0]),
)
def test_every_command_ends_with_the_next_one(
    bench: tuple[Path, str], words: tuple[object, ...], expected: str
) -> None:
    done = run(*words, cwd=bench[0])
    assert done.returncode == 0, done.stderr
    assert following(done.stderr)[:2] == ["looktwice", expected]


def test_machines_are_told_nothing_of_it(bench: tuple[Path, str]) -> None:
    for words in (
        ("plan", "--max-error", "0.2"),
        ("check", DEMO / "fashion.toml"),
        ("evaluate", PICTURES, "--take", ":50"),
    ):
        assert "Next" not in run(*words, "--json", cwd=bench[0]).stderr


def test_labels_that_back_nothing_are_told_so(bench: tuple[Path, str]) -> None:
    done = run("borrow", "profile.json", "-c", DEMO / "fashion.toml", "-o", "borrowed.json", cwd=bench[0])
    assert following(done.stderr)[:2] == ["looktwice", "plan"]


def test_nothing_is_accepted_after_an_alarm_unless_asked_for(bench: tuple[Path, str], tmp_path: Path) -> None:
    with np.load(PICTURES) as file:
        images = file["images"][400:700].copy()
    images[100:] = 255 - images[100:]
    np.savez(tmp_path / "stream.npz", images=images)
    options = ("-p", bench[0] / "profile.json", "--max-error", "0.2", "--unfamiliar", "accept", "--json")
    held = run("score", tmp_path / "stream.npz", *options, "-o", tmp_path / "held.csv")
    assert held.returncode == HELD
    rows = list(csv.DictReader((tmp_path / "held.csv").read_text("utf-8").splitlines()))
    since = next(place for place, row in enumerate(rows) if row["held"])
    assert 100 <= since < 150
    assert all(row["held"].startswith("drift since ") for row in rows[since:])
    said = json.loads(held.stdout)
    assert said["held"] == len(rows) - since
    assert said["accepted"] <= since
    accepted = {row["name"] for row in rows[100:since] if row["decision"] == "accept"}
    assert set(said["accepted_since"]) & {row["name"] for row in rows[100:]} == accepted
    trusting = run("score", tmp_path / "stream.npz", *options, "--on-drift", "accept", "-o", tmp_path / "all.csv")
    assert (trusting.returncode, json.loads(trusting.stdout)["held"]) == (0, 0)


def test_every_interface_tells_the_same_number_of_missing_labels(tmp_path: Path) -> None:
    said = " ".join(run("fit", PICTURES, "-c", DEMO / "fashion.toml", "--take", ":300", cwd=tmp_path).stderr.split())
    assert Profile.load(tmp_path / "profile.json").adaptive, "thresholds rest on what stopping early asks"
    planned = json.loads(run("plan", "--max-error", "0.05", "-p", "profile.json", "--json", cwd=tmp_path).stdout)
    more = planned["missing"]
    assert more > 0, "with a best estimate below the allowed error, more labels help"
    assert f"{more:,} more" in said
    with Model.load(tmp_path / "profile.json") as model:
        assert model.labels_missing(max_error=0.05) == more
    assert run("report", "--max-error", "0.05", "-o", "missing.html", cwd=tmp_path).returncode == 0
    page = (tmp_path / "missing.html").read_text("utf-8")
    assert f"{more:,}" in page
    assert "<h1>Best estimate" in page
    with started_here("serve", "-p", tmp_path / "profile.json", "--max-error", 0.05) as service:
        assert service.get("/v1/profile").json()["labels_missing"] == more
