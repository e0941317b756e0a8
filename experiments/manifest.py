"""Which code made each result, and which results are older than the code: experiments/results/manifest.json.

python -m experiments stale                     name the results that are older than their code; 1 if any is
python -m experiments refresh [TASK …]          run the tasks whose results are older, and record them
python -m experiments older REASON [TASK …]     accept that their results are older for now, and say why

A result's digest covers the definitions of experiments and looktwice that its task uses (experiments/reach.py) and the
results that it reads. Modules that ask, store or show are left out: they do not change what is computed from answers. A
refresh that is interrupted goes on where it was, since each task is recorded when it ends, and answers are cached.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from hashlib import sha256
from pathlib import Path

from experiments.reach import reached
from experiments.writing import fill

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
MANIFEST = RESULTS / "manifest.json"
DATA = {
    ("experiments.general", "recorded_panels"): "general",
    ("experiments.paper.normals", "compared"): "figure4",
}
"""Results that other results are computed from, by the function that reads them."""


@dataclass(frozen=True)
class Task:
    """A command that makes results."""

    command: str
    """Behind `python -m `."""
    module: str
    results: tuple[str, ...]
    pages: tuple[str, ...]
    """The documents that show them."""
    entry: str = "main"
    """The function of the module that makes them."""

    @property
    def name(self) -> str:
        return self.results[0]


def _paper(name: str, module: str, *pages: str, result: str = "") -> Task:
    return Task(f"experiments {name}", f"experiments.paper.{module}", (result or name,), pages or ("reproduction.md",))


def _shown(name: str, page: str, *more: str) -> Task:
    return Task(f"experiments {name}", f"experiments.{name}", (name, *more), (f"results/{page}.md",))


TASKS = (
    _paper("table1", "tables"),
    _paper("table2", "tables"),
    _paper("selection", "selection"),
    _paper("table3", "tables"),
    _paper("table4", "tables"),
    _paper("figure2", "tables"),
    _paper("figure4", "drawings"),
    _paper("illustrations", "drawings", result="figure_illustrations"),
    _paper("proposition1", "jacobian"),
    _paper("prescription", "prescription", "prescription.md"),
    Task("experiments normals", "experiments.paper.normals", ("normals",), ("reproduction.md",), "compared"),
    _paper("claims", "claims", "reproduction.md", "paper.md"),
    Task(
        "experiments.transfer settings noise cumulatives shapes closed jury",
        "experiments.transfer",
        tuple(f"transfer_{x}" for x in ("settings", "noise", "shapes", "closed", "jury", "jury_summary")),
        ("results/transfer.md",),
    ),
    Task(
        "experiments.general",
        "experiments.general",
        ("general", "general_chosen", "general_moved", "general_panel"),
        ("results/views.md", "results/baselines.md"),
    ),
    Task(
        "experiments baselines",
        "experiments.baselines",
        ("baselines",),
        ("../README.md", "comparison.md", "results/baselines.md"),
    ),
    Task("experiments.wordings", "experiments.wordings", ("wordings",), ("results/baselines.md",)),
    Task("experiments.shift", "experiments.shift", ("shift",), ("results/familiarity.md",)),
    Task("experiments.shifts", "experiments.shifts", ("shifts",), ("results/familiarity.md",), "shifts"),
    Task(
        "experiments.shifts clean",
        "experiments.shifts",
        ("shifts_clean",),
        ("results/familiarity.md",),
        "clean_streams",
    ),
    Task("experiments.shifts bound", "experiments.shifts", ("shifts_bound",), ("results/familiarity.md",), "bound"),
    Task("experiments.ablations", "experiments.ablations", ("ablations",), ("results/jury.md",)),
    Task("experiments.constants", "experiments.constants", ("constants",), ("results/jury.md",)),
    Task("experiments.few_labels", "experiments.few_labels", ("few_labels",), ("results/jury.md",)),
    _shown("scores", "scores"),
    _shown("sets", "guarantees"),
    Task("experiments.bounds", "experiments.bounds", ("bounds",), ("results/guarantees.md",)),
    _shown("stopping", "sequences"),
    _shown("guarantees", "guarantees"),
    Task(
        "experiments closed",
        "experiments.closed",
        tuple(f"closed_{x}" for x in ("looks", "emotions", "language", "ranked")),
        ("results/closed-systems.md",),
    ),
    Task(
        "experiments cascades",
        "experiments.cascades",
        ("cascades", "cascades_rules", "cascades_guarantees"),
        ("results/sequences.md",),
    ),
    Task(
        "experiments tags",
        "experiments.tags",
        ("tags", "tags_paired", "tags_intervals"),
        ("results/closed-systems.md",),
    ),
    Task(
        "experiments.familiarity",
        "experiments.familiarity",
        tuple(f"familiarity_{x}" for x in ("alarms", "calibration", "detected", "few", "streams")),
        ("results/familiarity.md",),
    ),
    Task("experiments.labelling", "experiments.labelling", ("labelling",), ("results/labelling.md",)),
    Task("experiments.ruled_out", "experiments.ruled_out", ("ruled_out",), ("results/labelling.md",)),
    Task("experiments.unlabelled", "experiments.unlabelled", ("unlabelled",), ("results/labelling.md",)),
    Task("experiments.weighted", "experiments.weighted", ("weighted",), ("results/labelling.md",)),
    Task("experiments.mirrored", "experiments.mirrored", ("mirrored",), ("results/sequences.md",)),
    Task("experiments.photos", "experiments.photos", ("photos",), ("connectors.md", "pictures.md")),
)

Entry = dict[str, str]
"""`code` and `csv`, the digests of both when they were recorded; `made`, the day; `older`, why it is accepted."""


# The manifest --------------------------------------------------------------------------------------------------------


def entries() -> dict[str, Entry]:
    return json.loads(MANIFEST.read_text("utf-8")) if MANIFEST.exists() else {}


def _save(found: dict[str, Entry]) -> None:
    MANIFEST.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", "utf-8")


@cache
def digest(module: str, entry: str = "main") -> str:
    """Of the code, and of the other results, that decide the results of a module."""
    found = reached(module, entry)
    parts = sorted(found.values())  # without their names, so that a definition may move to another module
    parts += [_csv(result) for reader, result in DATA.items() if reader in found]
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


def _csv(result: str) -> str:
    path = RESULTS / f"{result}.csv"
    return sha256(path.read_bytes()).hexdigest()[:16] if path.exists() else ""


def why_old(task: Task, result: str, known: dict[str, Entry]) -> str:
    """Why a result is not what its code makes today, as far as one can see; empty where it is."""
    entry = known.get(result)
    if not _csv(result):
        return "is not there"
    if entry is None:
        return "was never recorded"
    if entry["csv"] != _csv(result):
        return "was changed after it was recorded"
    return "" if entry["code"] == digest(task.module, task.entry) else f"is older than its code (made {entry['made']})"


def stale(tasks: Iterable[Task]) -> list[tuple[Task, str, str, str]]:
    """Task, result, why it is old, and why that is accepted, or an empty text."""
    known = entries()
    lines = [(task, result, why_old(task, result, known)) for task in tasks for result in task.results]
    return [(task, result, why, known.get(result, {}).get("older", "")) for task, result, why in lines if why]


def record(task: Task) -> None:
    """Note that a task has just made its results."""
    today, code = date.today().isoformat(), digest(task.module, task.entry)
    new = {result: {"code": code, "csv": _csv(result), "made": today} for result in task.results}
    _save(entries() | new)


def accept(reason: str, tasks: Iterable[Task]) -> None:
    """Note why results that are older than their code stay for now."""
    known = entries()
    for _, result, _, _ in stale(tasks):
        entry = known.get(result) or {"code": "", "made": _committed(result)}
        known[result] = entry | {"csv": _csv(result), "older": reason}
    _save(known)


def _committed(result: str) -> str:
    """The day of the commit that a result has had since."""
    command = ["git", "log", "-1", "--format=%as", "--", str(RESULTS / f"{result}.csv")]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


def refresh(tasks: Iterable[Task]) -> int:
    """Run each task that has an old result; 1 if one of them failed."""
    failed = []
    for task in dict.fromkeys(task for task, *_ in stale(tasks)):
        print(f"python -m {task.command}", file=sys.stderr, flush=True)
        if subprocess.run([sys.executable, "-m", *task.command.split()], cwd=ROOT, check=False).returncode:
            failed.append(task.name)
        else:
            record(task)
    if failed:
        print(f"these could not be made: {', '.join(failed)}", file=sys.stderr)
    return bool(failed)


def table() -> str:
    """Every task with its results and pages, and what is older than its code, in Markdown."""
    known, lines = entries(), ["| command | results | shown in | made |", "|---|---|---|---|"]
    for task in TASKS:
        made = dict.fromkeys(known.get(result, {}).get("made", "?") for result in task.results)
        reasons = dict.fromkeys(known.get(result, {}).get("older", "") for result in task.results)
        results = ", ".join(f"[{result}](results/{result}.csv)" for result in task.results)
        pages = ", ".join(f"[{Path(page).stem}](../docs/{page})" for page in task.pages)
        when = ", ".join(made) + "".join(f"; older than the code: {reason}" for reason in reasons if reason)
        lines.append(f"| `python -m {task.command}` | {results} | {pages} | {when} |")
    return "\n".join(lines)


WORDS = ("stale", "refresh", "older")


def main(words: Sequence[str]) -> int:
    """Do what the words say; see the top of this file."""
    what, reason, chosen = words[0], words[1:2], words[2:] if words[0] == "older" else words[1:]
    tasks = [task for task in TASKS if task.name in chosen] if chosen else TASKS
    if what not in WORDS or (what == "older" and not reason) or set(chosen) - {task.name for task in TASKS}:
        print(__doc__, "Tasks: " + ", ".join(task.name for task in TASKS), sep="\n", file=sys.stderr)
        return 2
    if what == "refresh" and refresh(tasks):
        return 1
    if what == "older":
        accept(reason[0], tasks)
    if what != "stale":
        fill(ROOT / "experiments" / "README.md", "results", table())
    unknown_results = {path.stem for path in RESULTS.glob("*.csv")} - {r for task in TASKS for r in task.results}
    lines = [f"{result}.csv {why}" for _, result, why, accepted in stale(TASKS) if not accepted]
    lines += [f"{result}.csv is made by no task" for result in sorted(unknown_results)]
    if lines:
        print("\n".join(lines), file=sys.stderr)
        print("run: python -m experiments refresh [TASK …], or: … older 'the reason' [TASK …]", file=sys.stderr)
    return bool(lines)
