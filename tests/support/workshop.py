"""What several tests need: small pictures, a profile that fits any classifier, and a run of the command line."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import numpy as np

from looktwice.calibration.calibrators import dump
from looktwice.calibration.evidence import Row
from looktwice.calibration.shares import Probit
from looktwice.classifiers import registry
from looktwice.classifiers.base import reading
from looktwice.classifiers.registry import connect
from looktwice.cli.app import main
from looktwice.decisions.profile import Profile
from looktwice.decisions.results import Figure, HeldOut, Result
from looktwice.engine.budget import Budget
from looktwice.engine.channel import Channel
from looktwice.engine.engine import QueryEngine
from looktwice.engine.ledger.ledger import open_ledger
from looktwice.engine.limits import RetryPolicy
from looktwice.engine.query import Unscored
from looktwice.engine.runner import Settings
from looktwice.images.collection import Picture, find
from looktwice.views import Panel, renderer
from support import forked

PANEL = Panel.parse("mirror rotation:20*3")
STARTED = dict(os.environ)
HURRY = RetryPolicy(backoff=0.01, attempts=12, few=12, longest=0.2)


def write_pictures(path: Path, count: int, seed: int = 0) -> Sequence[Picture]:
    """Different pictures of 16 × 16 noise in one file."""
    images = np.random.default_rng(seed).integers(0, 256, (count, 16, 16, 3), np.uint8)
    np.savez(path, images=images, labels=np.zeros(count, np.int64), class_names=np.array(["ant"]))
    return find([path])


def write_profile(path: Path, description: Path | str, panel: Panel = PANEL) -> Profile:
    """A profile for this classifier whose calibrator was given rather than fitted."""
    accuracy = Result(calibrator="naive", queries=1, figures={"accuracy": Figure(value=0.9, low=0.8, high=1.0)})
    profile = Profile(
        looktwice="test",
        classifier=str(description),
        fingerprint=connect(description).fingerprint,
        reading=reading(connect(description)),
        vocabulary=("ant", "bee", "cat", "dog", "eel"),
        classes=5,
        panel=str(panel),
        seed=0,
        renderer=renderer(panel),
        calibrator=dump(Probit(a=1.0, b=0.5)),
        pictures=100,
        results=(accuracy,),
        held_out=HeldOut(confidence=(0.9,), correct=(True,)),
    )
    profile.save(path)
    registry.remember(str(description))
    return profile


async def answers(
    description: Path | str,
    pictures: Sequence[Picture],
    ledger: Path | None = None,
    budget: int | None = None,
    pace: RetryPolicy = HURRY,
    panel: Panel = PANEL,
) -> tuple[list[Row | Unscored], QueryEngine]:
    """Every row that asking about the pictures gives, and the engine that gave them."""
    classifier = connect(description)
    settings = Settings(classifier.limits, budgets=(Budget(queries=budget),), retry=pace)
    engine = QueryEngine([Channel(classifier, open_ledger(str(ledger or "off")), settings)])
    try:
        return [row async for row in engine.ask(pictures, panel)], engine
    finally:
        await engine.close()


def command(*arguments: object, **environment: str) -> list[str]:
    """The command line that runs looktwice with these arguments."""
    return [sys.executable, "-m", "looktwice.cli.app", *map(str, arguments)]


def run(*arguments: object, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """One run of the command line, to its end."""
    words, variables = command(*arguments), {**os.environ, **environment}
    read_at_start = {name for name in variables if name.startswith(("PYTHON", "COLUMNS"))} - {"PYTHONASYNCIODEBUG"}
    if any(variables[name] != STARTED.get(name) for name in read_at_start):
        return subprocess.run(words, capture_output=True, text=True, cwd=cwd, env=variables, check=False)
    return forked.run(words[3:], cwd or Path.cwd(), variables)


def start(*arguments: object, err: int = subprocess.DEVNULL) -> forked.Forked:
    """A run of the command line that goes on meanwhile."""
    return forked.start(forked.COMMAND_LINE, arguments, err=err)


def call(*arguments: object) -> subprocess.CompletedProcess[str]:
    """The same in this process, from the words to the exit code, without the seconds that a process takes to start."""
    words, out, err, code = command(*arguments), StringIO(), StringIO(), 0
    with patch.object(sys, "argv", words[2:]), redirect_stdout(out), redirect_stderr(err):
        try:
            main()
        except SystemExit as left:
            code = int(left.code or 0)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def brightest(image: np.ndarray) -> str:
    """The corner of the picture with the most light."""
    half = image.shape[0] // 2
    corners = {
        "nw": image[:half, :half],
        "ne": image[:half, half:],
        "sw": image[half:, :half],
        "se": image[half:, half:],
    }
    return max(corners, key=lambda name: float(corners[name].mean()))
