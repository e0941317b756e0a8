"""Which code made each result, and which results are older than the code: experiments/results/manifest.json.

python -m experiments stale                     name the results that are older than their code; 1 if any is
python -m experiments refresh [TASK …]          run the tasks whose results are older, and record them
python -m experiments older REASON [TASK …]     accept that their results are older for now, and say why

A result's digest covers the modules of experiments that made it, and those of looktwice that they rest on, without
comments, docstrings and white space, so that prose does not make a result old. Modules that ask, store or show are left
out: they do not change what is computed from answers. A refresh that is interrupted goes on where it was, since each
task is recorded when it ends, and answers are cached.
"""

from __future__ import annotations

import ast
import io
import json
import subprocess
import sys
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from hashlib import sha256
from pathlib import Path

from experiments.writing import fill

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
MANIFEST = RESULTS / "manifest.json"
HOMES = {"experiments": ROOT / "experiments", "looktwice": ROOT / "src" / "looktwice"}
FOLLOWED = ("experiments", "looktwice.calibration", "looktwice.views", "looktwice.transfer", "looktwice.monitoring")
"""Packages whose imports a result rests on as well."""
COVERED = (*FOLLOWED, "looktwice.decisions")
"""Packages of which a result rests on the modules that it imports."""
APART = {
    "experiments.manifest",
    "experiments.script",
    *(f"looktwice.calibration.{name}" for name in ("arrays", "calibrators", "storage")),
}
"""Modules that neither ask nor compute."""


@dataclass(frozen=True)
class Task:
    """A command that makes results."""

    command: str
    """Behind `python -m `."""
    module: str
    results: tuple[str, ...]
    pages: tuple[str, ...]
    """The documents that show them."""

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
    Task("experiments.ablations", "experiments.ablations", ("ablations",), ("results/jury.md",)),
    _shown("scores", "scores"),
    _shown("sets", "guarantees"),
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
    Task("experiments.photos", "experiments.photos", ("photos",), ("connectors.md", "pictures.md")),
)

Entry = dict[str, str]
"""`code` and `csv`, the digests of both when they were recorded; `made`, the day; `older`, why it is accepted."""


# What a result rests on ----------------------------------------------------------------------------------------------


def modules(start: str) -> set[str]:
    """The modules whose code decides a result that this module makes."""
    found, open_ends = {start}, [start]
    while open_ends:
        module = open_ends.pop()
        if module.startswith(FOLLOWED):
            new = {name for name in _imports(module) if name.startswith(COVERED)} - found - APART
            found |= new
            open_ends += new
    return found


def _imports(module: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(_path(module).read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            inner = [f"{node.module}.{alias.name}" for alias in node.names]
            yield from (name for name in (node.module, *inner) if _is_module(name))
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _is_module(alias.name))


def _is_module(name: str) -> bool:
    return name.partition(".")[0] in HOMES and _path(name).is_file()


def _path(module: str) -> Path:
    home, *parts = module.split(".")
    base = HOMES[home].joinpath(*parts)
    return base / "__init__.py" if base.is_dir() else base.with_suffix(".py")


@cache
def digest(module: str) -> str:
    """Of the code that decides the results of a module."""
    parts = [f"{name}\n{plain(_path(name).read_text('utf-8'))}" for name in sorted(modules(module))]
    return sha256("\n".join(parts).encode()).hexdigest()[:16]


def plain(source: str) -> str:
    """The code without comments, docstrings and white space."""
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for number in range(node.lineno - 1, node.end_lineno or node.lineno):
                lines[number] = ""
    text = "\n".join(lines)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            text = text.replace(token.string, "", 1)
    return "".join(text.split())


# The manifest --------------------------------------------------------------------------------------------------------


def entries() -> dict[str, Entry]:
    return json.loads(MANIFEST.read_text("utf-8")) if MANIFEST.exists() else {}


def _save(found: dict[str, Entry]) -> None:
    MANIFEST.write_text(json.dumps(dict(sorted(found.items())), indent=1) + "\n", "utf-8")


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
    return "" if entry["code"] == digest(task.module) else f"is older than its code (made {entry['made']})"


def stale(tasks: Iterable[Task]) -> list[tuple[Task, str, str, str]]:
    """Task, result, why it is old, and why that is accepted, or an empty text."""
    known = entries()
    lines = [(task, result, why_old(task, result, known)) for task in tasks for result in task.results]
    return [(task, result, why, known.get(result, {}).get("older", "")) for task, result, why in lines if why]


def record(task: Task) -> None:
    """Note that a task has just made its results."""
    today = date.today().isoformat()
    new = {result: {"code": digest(task.module), "csv": _csv(result), "made": today} for result in task.results}
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
