"""`looktwice label`: people say what pictures show."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from looktwice.asking.progress import say
from looktwice.cli.console import safe
from looktwice.errors import DataError, MissingExtra
from looktwice.labelling.desk import Asking, Desk
from looktwice.labelling.labels import Labels
from looktwice.labelling.queue import shuffled
from looktwice.model import AsyncModel, panel_of
from looktwice.pictures.collection import Picture
from looktwice.service import PARTS, Place


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
    try:
        serve(desk, f"Label {folder.name or folder}", shlex.join(command), place)
    finally:
        labels.close()
    say(f"Labels: {safe(str(out))}")


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
