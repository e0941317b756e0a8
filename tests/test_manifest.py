"""The manifest of results: what makes a result old, and what does not."""

import json
from pathlib import Path

import pytest

from experiments import manifest, reach
from experiments.manifest import Task

CODE = '''"""A module."""

WEIGHT = 0.5  # of the first
"""What it weighs."""


def half(x: float) -> float:
    """Half of it."""
    weighed = WEIGHT * x
    return weighed  # half
'''


@pytest.fixture
def task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Task:
    """A task whose module imports one of the calibration, and whose result is there."""
    for place, text in {
        "experiments/made.py": "from looktwice.calibration.rule import half\nfrom looktwice.engine import run\n",
        "experiments/README.md": "<!-- results -->\n<!-- /results -->\n",
        "src/looktwice/calibration/rule.py": CODE,
        "src/looktwice/engine.py": "def run() -> None: ...\n",
        "experiments/results/made.csv": "a,b\n1,2\n",
    }.items():
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).write_text(text)
    monkeypatch.setattr(manifest, "ROOT", tmp_path)
    monkeypatch.setattr(manifest, "RESULTS", tmp_path / "experiments" / "results")
    monkeypatch.setattr(manifest, "MANIFEST", tmp_path / "experiments" / "results" / "manifest.json")
    monkeypatch.setattr(
        reach, "HOMES", {"experiments": tmp_path / "experiments", "looktwice": tmp_path / "src" / "looktwice"}
    )
    recorded = Task("experiments.made", "experiments.made", ("made",), ("method.md",))
    monkeypatch.setattr(manifest, "TASKS", (recorded,))
    forget()
    manifest.record(recorded)
    return recorded


def forget() -> None:
    """Read the code again."""
    reach.definitions.cache_clear()
    manifest.digest.cache_clear()


def change(path: str, old: str, new: str) -> None:
    place = manifest.ROOT / path
    place.write_text(place.read_text().replace(old, new))
    forget()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("Half of it.", "One half."),
        ("of the first", "of both"),
        ("What it weighs", "Weight"),
        ("\n\n\n", "\n\n"),
        ("weighed", "product"),
    ],
)
def test_prose_and_names_of_values_do_not_make_a_result_old(task: Task, old: str, new: str) -> None:
    change("src/looktwice/calibration/rule.py", old, new)
    assert manifest.main(["stale"]) == 0


def test_code_that_a_result_rests_on_makes_it_old(task: Task, capsys: pytest.CaptureFixture[str]) -> None:
    change("src/looktwice/engine.py", "...", "print()")
    assert manifest.main(["stale"]) == 0
    change("src/looktwice/calibration/rule.py", "0.5", "0.6")
    assert manifest.main(["stale"]) == 1
    assert "made.csv" in capsys.readouterr().err


def test_only_definitions_that_a_result_uses_make_it_old(task: Task) -> None:
    rule, made = "src/looktwice/calibration/rule.py", "experiments/made.py"
    change(made, "half\n", "half as of\n\ndef main():\n    of(1)\n\ndef other():\n    pass\n")
    manifest.record(task)
    change(made, "pass", "of(2)")
    change(rule, "  # half", "\n\n\ndef third(x: float) -> float:\n    return x / 3")
    assert manifest.main(["stale"]) == 0
    change(rule, "= WEIGHT * x", "= 2 * WEIGHT * x")
    assert manifest.main(["stale"]) == 1


def test_a_result_is_older_than_one_that_it_reads(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    (manifest.RESULTS / "read.csv").write_text("a\n")
    monkeypatch.setattr(manifest, "TASKS", (*manifest.TASKS, Task("x", "experiments.made", ("read",), ())))
    monkeypatch.setattr(manifest, "DATA", {("looktwice.calibration.rule", "half"): "read"})
    forget()
    for each in manifest.TASKS:
        manifest.record(each)
    assert manifest.main(["stale"]) == 0
    change("experiments/results/read.csv", "a", "b")
    manifest.record(manifest.TASKS[1])
    assert "made" in [result for _, result, *_ in manifest.stale(manifest.TASKS)]


def test_a_result_that_was_changed_or_is_made_by_nobody_is_named(
    task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    change("experiments/results/made.csv", "2", "3")
    (manifest.RESULTS / "other.csv").write_text("a\n")
    assert manifest.main(["stale"]) == 1
    said = capsys.readouterr().err
    assert "made.csv" in said
    assert "other.csv" in said


def test_an_old_result_is_accepted_with_a_reason_until_it_is_made_again(task: Task) -> None:
    change("src/looktwice/calibration/rule.py", "0.5", "0.6")
    assert manifest.main(["older", "slow", "made"]) == 0
    assert json.loads(manifest.MANIFEST.read_text())["made"]["older"] == "slow"
    assert "slow" in (manifest.ROOT / "experiments" / "README.md").read_text()
    (manifest.ROOT / "experiments" / "made.py").write_text("from pathlib import Path\nPath('again').touch()\n")
    (manifest.ROOT / "experiments" / "__init__.py").touch()
    forget()
    assert manifest.main(["refresh"]) == 0
    assert (manifest.ROOT / "again").exists()
    assert "older" not in json.loads(manifest.MANIFEST.read_text())["made"]


def test_a_task_that_fails_is_not_recorded(task: Task) -> None:
    (manifest.ROOT / "experiments" / "made.py").write_text("raise SystemExit(1)\n")
    (manifest.ROOT / "experiments" / "__init__.py").touch()
    forget()
    assert manifest.main(["refresh"]) == 1
    assert manifest.main(["stale"]) == 1


def test_every_result_of_the_project_has_a_task_and_its_page_is_there() -> None:
    results = [result for task in manifest.TASKS for result in task.results]
    assert sorted(results) == sorted(path.stem for path in manifest.RESULTS.glob("*.csv"))
    assert all((manifest.ROOT / "docs" / page).is_file() for task in manifest.TASKS for page in task.pages)
