"""What commands say at their end: what is in reach, what it costs, and the command to go on with."""

from __future__ import annotations

import csv
import shlex
from importlib.resources import files
from pathlib import Path

import pytest
from serving import clothes
from workshop import run

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
    least = planning.least_error(Profile.load(folder / "profile.json").held_out)
    assert least
    assert f"The strictest of 5 guarantees that the 400 labelled pictures support: at most {least[0]:g} of the" in said
    assert f"It accepts {100 * least[1]:.0f} % of such pictures" in said
    program, *words = following(said)
    assert f"each was tested at --level {words[words.index('--level') + 1]}." in said
    words[words.index("PICTURES")] = PICTURES
    scored = run(*words, "--take", "400:440", "--price", "0.002", "--ledger", "ledger.db", cwd=folder)
    assert (program, scored.returncode) == ("looktwice", 0), scored.stderr
    doubtful = "review" in {
        row["decision"] for row in csv.DictReader((folder / "verdicts.csv").read_text().splitlines())
    }
    assert following(scored.stderr) == ["looktwice", "review" if doubtful else "audit", "verdicts.csv", PICTURES]


def test_an_accepted_answer_pays_for_those_that_are_not(bench: tuple[Path, str]) -> None:
    folder, said = bench
    share = int(said.split("It accepts ")[1].split("%")[0]) / 100
    cost = float(said.split("such pictures, at ")[1].split(" ")[0])
    assert cost == pytest.approx(3 * 0.002 / share, rel=0.02)
    free = run("look", "one.png", "-p", "profile.json", "--ledger", "ledger.db", cwd=folder)
    assert "of such pictures.\n" in free.stderr


def test_a_plan_that_the_labels_can_back_goes_on_to_score_and_another_to_labels(bench: tuple[Path, str]) -> None:
    enough = run("plan", "--max-error", "0.2", "-p", "profile.json", cwd=bench[0])
    assert following(enough.stderr)[:2] == ["looktwice", "score"]
    unknown = run("plan", "--max-error", "0.01", cwd=bench[0])
    assert following(unknown.stderr) == ["looktwice", "label", "PICTURES", "-c", "CLASSIFIER"]


def test_the_next_command_names_the_level_that_was_asked_for(bench: tuple[Path, str]) -> None:
    planned = run("plan", "--max-error", "0.2", "--level", "0.9", "-p", "profile.json", cwd=bench[0])
    assert following(planned.stderr)[5:9] == ["--max-error", "0.2", "--level", "0.9"]
    unmet = run("look", "one.png", "--max-error", "0.001", "--level", "0.99", cwd=bench[0])
    assert "see how many could: looktwice plan --max-error 0.001 --level 0.99\n" in unmet.stderr


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
    assert "The 0 labelled pictures are too few to guarantee anything about accepted answers." in done.stderr
    assert following(done.stderr)[:2] == ["looktwice", "plan"]
