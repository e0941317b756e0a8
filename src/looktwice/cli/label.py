"""`looktwice label` and `review`: people say what pictures show."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from looktwice.asking.progress import say
from looktwice.cli.console import safe
from looktwice.errors import DataError, MissingExtra
from looktwice.labelling.desk import Asking, Claim, Desk
from looktwice.labelling.labels import Labels
from looktwice.labelling.queue import shuffled
from looktwice.model import AsyncModel, panel_of
from looktwice.pictures.collection import Picture, few, find
from looktwice.service import PARTS, Place
from looktwice.verdicts import review as reviewing


@dataclass(frozen=True)
class LabelOptions:
    """How people label, and where their labels go."""

    views: str
    asking: bool
    """Whether the classifier is asked meanwhile."""
    max_error: float
    level: float
    out: Path | None


def label(
    folder: Path,
    pictures: Sequence[Picture],
    model: AsyncModel,
    options: LabelOptions,
    place: Place,
) -> None:
    """Show pictures in a random order until a signal comes; every click is kept as it is made."""
    panel, views = panel_of(options.views), options.views
    out = options.out or _default(folder)
    labels = Labels(out)
    by_name = {picture.name: picture for picture in pictures}
    command = ["looktwice", "fit", str(folder), "-c", model.description]
    command += ["--truths", str(out)] if out != folder / "labels.csv" else []
    command += ["--views", views] if views else []
    desk = Desk(
        by_name,
        shuffled(sorted(by_name), model.options.seed or 0),
        labels,
        tuple(model.classifier.labels or ()),
        Asking(model, panel, options.max_error, options.level) if options.asking else None,
    )
    say(f"Labels go to {safe(str(out))}, every click as it is made.")
    try:
        serve(desk, f"Label {folder.name or folder}", shlex.join(command), place)
    finally:
        labels.close()


def review(verdicts: Path, pictures: Path | None, costs: Sequence[str], out: Path | None, place: Place) -> None:
    """Show the pictures of doubtful verdicts, the dearest doubt first; what people say of them is kept."""
    folder = pictures or (verdicts if verdicts.is_dir() else None)
    if folder is None:
        raise DataError("where are the pictures of these verdicts? name the folder that was scored after the verdicts")
    doubts = reviewing.doubtful(reviewing.read(verdicts), dict(map(_cost, costs)))
    found = {picture.name: picture for picture in find([folder])}
    lost = [doubt.name for doubt in doubts if doubt.name not in found]
    if lost:
        raise DataError(f"{few(lost, 'verdict')} about a picture that is not in {str(folder)!r}; name its folder")
    if not doubts:
        say("No verdict is for review.")
        return
    out = out or (verdicts / "labels.csv" if verdicts.is_dir() else verdicts.with_name("corrections.csv"))
    labels = Labels(out)
    claims = {d.name: Claim(d.label, d.confidence, tuple(dict.fromkeys((d.label, d.base, *d.votes)))) for d in doubts}
    shown = {doubt.name: found[doubt.name] for doubt in doubts}
    command = ["looktwice", "evaluate", str(folder)]
    command += ["--truths", str(out)] if out != folder / "labels.csv" else []
    say(f"Corrections of {len(shown)} verdicts go to {safe(str(out))}, every click as it is made.")
    try:
        serve(Desk(shown, list(shown), labels, claims=claims), "Review verdicts", shlex.join(command), place)
    finally:
        labels.close()


def _cost(text: str) -> tuple[str, float]:
    label, _, number = text.rpartition("=")
    try:
        return label, float(number)
    except ValueError:
        raise DataError(f"--cost {text!r} is not a label and a number; write for example melanoma=20") from None


def serve(desk: Desk, title: str, following: str, place: Place) -> None:
    """Let people label until a signal comes."""
    try:
        from looktwice.labelling import app
    except ModuleNotFoundError as error:
        if error.name not in PARTS:
            raise
        raise MissingExtra("HTTP services", "serve") from None
    app.run(desk, app.Work(title, following), place)


def _default(folder: Path) -> Path:
    if not folder.is_dir():
        raise DataError(f"{str(folder)!r} is no folder that labels could go to; name a file with --out")
    return folder / "labels.csv"
