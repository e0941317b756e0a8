"""`looktwice label`, `review` and `audit`, and `export` and `import` for other labelling tools."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from looktwice import files
from looktwice.cli.console import safe
from looktwice.decisions import stored
from looktwice.decisions.profile import Profile
from looktwice.errors import DataError, MissingExtra
from looktwice.images.collection import Picture, few, find
from looktwice.labelling.audit import Audit
from looktwice.labelling.exchange import label_studio, write_labels
from looktwice.labelling.labels import Labels
from looktwice.labelling.queue import shuffled
from looktwice.labelling.session import Asking, LabellingSession, Prediction, verdicts_wrong
from looktwice.model import AsyncModel, panel_of
from looktwice.progress import say
from looktwice.service import PARTS, Place


@dataclass(frozen=True)
class LabelOptions:
    """The options of `looktwice label`."""

    views: str
    asking: bool
    """Whether the classifier is queried meanwhile."""
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
    """Serve the page with the pictures in random order until the process gets a signal."""
    check_server()
    if options.asking and model.options.batch:
        raise DataError(
            "the page asks a few pictures ahead, and a batch takes up to a day; leave --batch out, or label with "
            "--no-asking and fit with --batch"
        )
    panel, views = panel_of(options.views), options.views
    if options.out is None and not folder.is_dir():
        raise DataError(f"{str(folder)!r} is no folder that labels could go to; name a file with --out")
    out = options.out or folder / "labels.csv"
    labels = Labels(out)
    by_name = {picture.name: picture for picture in pictures}
    command = ["looktwice", "fit", str(folder), "-c", model.description]
    command += ["--truths", str(out)] if out != folder / "labels.csv" else []
    command += ["--views", views] if views else []
    session = LabellingSession(
        by_name,
        shuffled(sorted(by_name), model.options.seed or 0),
        labels,
        tuple(model.classifier.labels or ()),
        Asking(model, panel, options.max_error, options.level) if options.asking else None,
    )
    say(f"Labels are saved to {safe(str(out))} click by click.")
    try:
        serve(session, f"Label {folder.name or folder}", "use the labels", command, place)
    finally:
        labels.close()


def review(verdicts: Path, pictures: Path | None, costs: Sequence[str], out: Path | None, place: Place) -> None:
    """Serve the page with the verdicts that need review, the highest expected cost first."""
    check_server()
    doubtful = stored.doubtful(stored.read(verdicts), dict(map(_cost, costs)))
    folder, shown = _pictures(verdicts, pictures, [verdict.name for verdict in doubtful])
    if not doubtful:
        say("No verdict needs review.")
        return
    out = out or (verdicts / "labels.csv" if verdicts.is_dir() else verdicts.with_name("corrections.csv"))
    predictions = {verdict.name: Prediction(verdict.label, verdict.confidence) for verdict in doubtful}
    command = ["looktwice", "evaluate", str(folder)]
    command += ["--truths", str(out)] if out != folder / "labels.csv" else []
    labels = Labels(out)
    say(f"Corrections of {len(shown)} verdicts are saved to {safe(str(out))} click by click.")
    try:
        session = LabellingSession(shown, list(shown), labels, verdicts=doubtful, predictions=predictions)
        serve(session, "Review verdicts", "evaluate the reviewed ones, which are no sample of all", command, place)
    finally:
        labels.close()


def audit(verdicts: Path, pictures: Path | None, out: Path | None, seed: int, place: Place) -> None:
    """Serve the page with a stratified sample of accepted verdicts, and print the error rate among them."""
    check_server()
    found = stored.read(verdicts)
    audited = Audit.of(found, seed)
    folder, shown = _pictures(verdicts, pictures, audited.order())
    labels = Labels(out or verdicts.with_name("audit.csv"))
    say(f"Labels are saved to {safe(str(labels.out))} click by click.")
    _print_share(audited, labels)
    session = LabellingSession(shown, list(shown), labels, verdicts=found, audit=audited)
    try:
        command = ["looktwice", "audit", str(verdicts), str(folder)]
        serve(session, "Audit", "label more of them", command, place)
    finally:
        _print_share(audited, labels)
        labels.close()


def _print_share(audited: Audit, labels: Labels) -> None:
    """Print the error rate among accepted verdicts, if there are enough labels."""
    if share := audited.share(verdicts_wrong(audited, labels.known())):
        say(share.line())


def _pictures(
    verdicts: Path, pictures: Path | None, names: Sequence[str], advice: str = "name the scored folder after them"
) -> tuple[Path, dict[str, Picture]]:
    """The folder of the pictures, and the pictures with these names, in this order."""
    folder = pictures or (verdicts if verdicts.is_dir() else None)
    if folder is None:
        raise DataError(f"where are the pictures of these verdicts? {advice}")
    found = {picture.name: picture for picture in find([folder])}
    if lost := [name for name in names if name not in found]:
        raise DataError(f"{few(lost, 'verdict')} about a picture that is not in {str(folder)!r}; name its folder")
    return folder, {name: found[name] for name in names}


def _cost(text: str) -> tuple[str, float]:
    label, _, number = text.rpartition("=")
    try:
        return label, float(number)
    except ValueError:
        raise DataError(f"--cost {text!r} is not a label and a number; write for example melanoma=20") from None


def check_server() -> None:
    """Refuse to begin where the page cannot be served, before a file for labels is made."""
    try:
        import looktwice.labelling.app  # noqa: F401
    except ModuleNotFoundError as error:
        if error.name not in PARTS:
            raise
        raise MissingExtra("HTTP services", "serve") from None


def serve(session: LabellingSession, title: str, purpose: str, command: Sequence[str], place: Place) -> None:
    """Serve the page until the process gets a signal, then print the command that follows, and what it is for."""
    from looktwice.labelling import app

    app.run(session, app.Work(title, shlex.join(command)), place)
    if session.labels.known():
        say(f"Next, {purpose}: {safe(shlex.join(command))}")


@dataclass(frozen=True)
class ExportOptions:
    """The options of `looktwice export`."""

    prefix: str | None
    """The part of the pictures' URLs before their names; None embeds the pictures."""
    doubtful: bool
    profile: Path | None
    """A profile whose labels are offered as well as those in the verdicts."""
    out: Path


def export(verdicts: Path, folder: Path | None, options: ExportOptions) -> None:
    """Write verdicts as tasks for Label Studio."""
    files.check_writable(options.out, (".json",))
    found = stored.read(verdicts)
    if options.doubtful:
        found = stored.doubtful(found, {})
    if options.prefix is None:
        names = [verdict.name for verdict in found]
        advice = "name the scored folder after them, or an address with --prefix"
        address = label_studio.embedded(_pictures(verdicts, folder, names, advice)[1])
    else:
        address = label_studio.linked(options.prefix)
    labels = Profile.load(options.profile).vocabulary if options.profile else ()
    config = label_studio.export(found, address, labels, options.out)
    say(f"{len(found)} tasks are in {safe(str(options.out))}; configure the project with {safe(str(config))}.")


def import_labels(result: Path, out: Path) -> None:
    """Write labels from Label Studio to a new `labels.csv`."""
    imported = label_studio.read(result)
    if imported.disputed:
        disputed = safe(few(imported.disputed, "picture"))
        say(f"[yellow]Left out:[/yellow] people disagree about {disputed}; settle it there and import again.")
    if imported.unnamed:
        unnamed = f"{imported.unnamed} annotations of tasks that `looktwice export` did not write"
        say(f"[yellow]Left out:[/yellow] {unnamed}: their data have no field `file` with the picture's name.")
    if not imported.known:
        raise DataError(f"{str(result)!r} holds no label; label some pictures there and export again")
    write_labels(out, imported.known)
    say(f"Labels of {len(imported.known)} pictures are in {safe(str(out))}.")
