"""`looktwice label`, `review` and `audit`, and `export` and `import` for other labelling tools."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from looktwice.cli.console import safe, say
from looktwice.cli.options import (
    VIEWS,
    ClassifierOption,
    Help,
    TakeOption,
    asks,
    find_pictures,
    serves,
)
from looktwice.errors import DataError, MissingExtra
from looktwice.files import check_writable
from looktwice.labelling.audit import Audit
from looktwice.labelling.exchange import label_studio, write_labels
from looktwice.labelling.labels import Labels
from looktwice.labelling.queue import shuffled
from looktwice.labelling.session import Asking, LabellingSession, Prediction, verdicts_wrong
from looktwice.model import (
    AskOptions,
    AsyncModel,
    Picture,
    Profile,
    doubtful_verdicts,
    few,
    find,
    no_keys_needed,
    panel_of,
    read_verdicts,
)
from looktwice.service import PARTS, Place

VerdictsArgument = Annotated[
    Path, typer.Argument(help="Verdicts written by score, or a folder filled by serve --review.", show_default=False)
]
ScoredArgument = Annotated[Path | None, typer.Argument(help="The folder that was scored, or its .npz file.")]


@serves
@asks
def label(
    pictures: Annotated[Path, typer.Argument(help="A folder of pictures, or an .npz file.", show_default=False)],
    classifier: ClassifierOption,
    ask: AskOptions,
    place: Place,
    views: Annotated[str, Help(help=VIEWS)] = "",
    asking: Annotated[bool, Help(help="Query the classifier meanwhile, a few pictures ahead.")] = True,
    max_error: Annotated[
        float,
        Help(
            help="The guarantee to label for: at most this share of accepted answers is wrong.", min=0.0001, max=0.9999
        ),
    ] = 0.05,
    level: Annotated[float, Help(help="Certainty of that guarantee.", min=0.0001, max=0.9999)] = 0.95,
    out: Annotated[
        Path | None, Help("--out", "-o", help="Where to write the labels; by default labels.csv in the folder.")
    ] = None,
    take: TakeOption = None,
) -> None:
    """Label pictures in the browser.

    Every click is saved to labels.csv at once, so fit can read the labels at any time.

    [bold]Examples[/bold]

      looktwice label photos/ -c my-api.toml --budget 5000

      looktwice label photos/ -c my-api.toml --no-asking
    """
    with nullcontext() if asking else no_keys_needed():
        model = AsyncModel(classifier, options=ask)
    by_name = {picture.name: picture for picture in find_pictures([pictures], take)}
    check_server()
    if asking and ask.batch:
        raise DataError(
            "the page asks a few pictures ahead, and a batch takes up to a day; leave --batch out, or label with "
            "--no-asking and fit with --batch"
        )
    if out is None and not pictures.is_dir():
        raise DataError(f"{str(pictures)!r} is no folder that labels could go to; name a file with --out")
    panel, out = panel_of(views), out or pictures / "labels.csv"
    known = Labels(out)
    command = ["looktwice", "fit", str(pictures), "-c", model.description, *_truths(out, pictures)]
    command += ["--views", views] if views else []
    session = LabellingSession(
        by_name,
        shuffled(sorted(by_name), ask.seed or 0),
        known,
        tuple(model.classifier.labels or ()),
        Asking(model, panel, max_error, level) if asking else None,
    )
    say(f"Labels are saved to {safe(str(out))} click by click.")
    serve(session, f"Label {pictures.name or pictures}", "use the labels", command, place)


@serves
def review(
    verdicts: VerdictsArgument,
    place: Place,
    pictures: ScoredArgument = None,
    cost: Annotated[
        list[str] | None,
        Help(help="Cost of missing a label, such as melanoma=20; others cost 1. The most costly doubts come first."),
    ] = None,
    out: Annotated[
        Path | None,
        Help("--out", "-o", help="Where to write corrections; by default corrections.csv beside the verdicts."),
    ] = None,
) -> None:
    """Accept or correct doubtful verdicts in the browser. fit and evaluate read the corrections.

    [bold]Examples[/bold]

      looktwice review verdicts.csv photos/

      looktwice review verdicts.csv photos/ --cost melanoma=20

      looktwice review kept-by-the-service/
    """
    check_server()
    doubtful = doubtful_verdicts(read_verdicts(verdicts), dict(map(_cost, cost or ())))
    folder, shown = _pictures(verdicts, pictures, [verdict.name for verdict in doubtful])
    if not doubtful:
        say("No verdict needs review.")
        return
    out = out or (verdicts / "labels.csv" if verdicts.is_dir() else verdicts.with_name("corrections.csv"))
    predictions = {verdict.name: Prediction(verdict.label, verdict.confidence) for verdict in doubtful}
    command = ["looktwice", "evaluate", str(folder), *_truths(out, folder)]
    known = Labels(out)
    say(f"Corrections of {len(shown)} verdicts are saved to {safe(str(out))} click by click.")
    session = LabellingSession(shown, list(shown), known, verdicts=doubtful, predictions=predictions)
    serve(session, "Review verdicts", "evaluate the reviewed ones, which are no sample of all", command, place)


@serves
def audit(
    verdicts: Annotated[Path, typer.Argument(help="Verdicts written by score.", show_default=False)],
    pictures: Annotated[Path, typer.Argument(help="The folder that was scored, or its .npz file.", show_default=False)],
    place: Place,
    out: Annotated[
        Path | None, Help("--out", "-o", help="Where to write the labels; by default audit.csv beside the verdicts.")
    ] = None,
    seed: Annotated[int, Help(help="Seed for the choice of pictures.", min=0)] = 0,
) -> None:
    """Estimate how often accepted verdicts are wrong, from few labels.

    The page shows the most informative pictures first.

    [bold]Example[/bold]

      looktwice audit verdicts.csv photos/
    """
    check_server()
    found = read_verdicts(verdicts)
    audited = Audit.of(found, seed)
    folder, shown = _pictures(verdicts, pictures, audited.order())
    known = Labels(out or verdicts.with_name("audit.csv"))
    say(f"Labels are saved to {safe(str(known.out))} click by click.")
    _print_share(audited, known)
    session = LabellingSession(shown, list(shown), known, verdicts=found, audit=audited)
    serve(session, "Audit", "label more of them", ["looktwice", "audit", str(verdicts), str(folder)], place)
    _print_share(audited, known)


def _truths(out: Path, folder: Path) -> list[str]:
    """The option that names the labels, where commands do not find them beside the pictures."""
    return ["--truths", str(out)] if out != folder / "labels.csv" else []


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

    try:
        app.run(session, app.Work(title, shlex.join(command)), place)
    finally:
        session.labels.close()
    if session.labels.known():
        say(f"Next, {purpose}: {safe(shlex.join(command))}")


def export(
    verdicts: VerdictsArgument,
    pictures: ScoredArgument = None,
    prefix: Annotated[
        str | None,
        Help(
            help="URL prefix under which the tool finds the pictures; by default they are embedded in the tasks.",
            metavar="ADDRESS",
        ),
    ] = None,
    doubtful: Annotated[
        bool, Help("--doubtful", help="Only verdicts that need review, least confident first.")
    ] = False,
    profile: Annotated[Path | None, Help("--profile", "-p", help="Offer every label that this profile knows.")] = None,
    out: Annotated[
        Path, Help("--out", "-o", help="Where to write the tasks; the project configuration goes beside it.")
    ] = Path("tasks.json"),
) -> None:
    """Export verdicts to Label Studio.

    They become predictions with their confidence.

    [bold]Examples[/bold]

      looktwice export verdicts.csv photos/ -o tasks.json

      looktwice export verdicts.csv --prefix http://localhost:9000/photos/ --doubtful
    """
    check_writable(out, (".json",))
    found = read_verdicts(verdicts)
    if doubtful:
        found = doubtful_verdicts(found, {})
    if prefix is None:
        names = [verdict.name for verdict in found]
        advice = "name the scored folder after them, or an address with --prefix"
        address = label_studio.embedded(_pictures(verdicts, pictures, names, advice)[1])
    else:
        address = label_studio.linked(prefix)
    config = label_studio.export(found, address, Profile.load(profile).vocabulary if profile else (), out)
    say(f"{len(found)} tasks are in {safe(str(out))}; configure the project with {safe(str(config))}.")


def import_(
    result: Annotated[Path, typer.Argument(help="The JSON file that Label Studio exported.", show_default=False)],
    out: Annotated[
        Path, Help("--out", "-o", help="Where to write the labels; an existing file is never overwritten.")
    ] = Path("labels.csv"),
) -> None:
    """Import labels from Label Studio, as a labels.csv.

    [bold]Examples[/bold]

      looktwice import result.json -o labels.csv
    """
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
