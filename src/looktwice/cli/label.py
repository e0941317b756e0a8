"""`looktwice label`, `review` and `audit`."""

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
    ClassifiersOption,
    Help,
    TakeOption,
    asks,
    find_pictures,
    numbers_by_label,
    serves,
)
from looktwice.labelling.labels import Labels
from looktwice.labelling.session import Asking, LabellingSession, shuffled, verdicts_wrong
from looktwice.labelling.summary import Audit
from looktwice.model import (
    AskOptions,
    AsyncModel,
    DataError,
    Picture,
    TagVerdict,
    doubtful_verdicts,
    few,
    find,
    named,
    no_keys_needed,
    read_any,
    read_verdicts,
)
from looktwice.service import Place, load

PAGE = "looktwice.labelling.app"
VerdictsArgument = Annotated[
    Path, typer.Argument(help="Verdicts written by score, or a folder written by serve --review.", show_default=False)
]
ScoredArgument = Annotated[Path | None, typer.Argument(help="The folder that was scored, or its .npz file.")]


@serves
@asks
def label(
    pictures: Annotated[Path, typer.Argument(help="A folder of pictures, or an .npz file.", show_default=False)],
    classifier: ClassifiersOption,
    ask: AskOptions,
    place: Place,
    views: Annotated[str, Help(help=VIEWS)] = "",
    asking: Annotated[bool, Help(help="Query the classifier while you label, a few pictures ahead.")] = True,
    max_error: Annotated[
        float,
        Help(
            help="The guarantee that the labels should support: at most this share of accepted answers is wrong.",
            min=0.0001,
            max=0.9999,
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
        model = AsyncModel(named(classifier), options=ask)
    by_name = {picture.name: picture for picture in find_pictures([pictures], take)}
    load(PAGE)  # before a file for labels is made
    if asking and ask.batch:
        raise DataError(
            "the page queries a few pictures ahead, but a batch takes up to a day; leave --batch out, or label with "
            "--no-asking and fit with --batch",
            code="option-conflict",
        )
    if out is None and not pictures.is_dir():
        raise DataError(
            f"{str(pictures)!r} is not a folder for labels; specify a file with --out", code="file-unwritable"
        )
    panel, out = model.panel(views), out or pictures / "labels.csv"
    known = Labels(out, model.kind)
    command = ["looktwice", "fit", str(pictures), "-c", model.description, *_truths(out, pictures)]
    command += ["--views", views] if views else []
    session = LabellingSession(
        by_name,
        shuffled(sorted(by_name), ask.seed or 0),
        known,
        tuple(model.classifier.labels or ()),
        Asking(model, panel, max_error, level) if asking else None,
    )
    serve(session, f"Label {pictures.name or pictures}", "use the labels", command, place)


@serves
def review(
    verdicts: VerdictsArgument,
    place: Place,
    pictures: ScoredArgument = None,
    cost: Annotated[
        list[str] | None,
        Help(
            help="Cost of missing a label, such as melanoma=20; other labels cost 1. The verdicts with the highest "
            "expected costs come first."
        ),
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
    load(PAGE)  # before a file for labels is made
    doubtful = doubtful_verdicts(read_any(verdicts), numbers_by_label("--cost", cost) or {})
    folder, shown = _pictures(verdicts, pictures, [verdict.name for verdict in doubtful])
    if not doubtful:
        say("No verdict needs review.")
        return
    out = out or (verdicts / "labels.csv" if verdicts.is_dir() else verdicts.with_name("corrections.csv"))
    command = ["looktwice", "evaluate", str(folder), *_truths(out, folder)]
    known = Labels(out, "tags" if isinstance(doubtful[0], TagVerdict) else "label")
    session = LabellingSession(shown, list(shown), known, verdicts=doubtful, reviewing=True)
    serve(session, "Review verdicts", "evaluate the reviewed pictures, which are not a random sample", command, place)


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
    """Estimate from few labels how often accepted verdicts are wrong.

    The page shows the most informative pictures first.

    [bold]Example[/bold]

      looktwice audit verdicts.csv photos/
    """
    load(PAGE)  # before a file for labels is made
    scored = read_verdicts(verdicts)
    audited = Audit.from_verdicts(scored, seed)
    folder, shown = _pictures(verdicts, pictures, audited.order())
    known = Labels(out or verdicts.with_name("audit.csv"))
    _print_share(audited, known)
    session = LabellingSession(shown, list(shown), known, verdicts=scored, audit=audited)
    serve(session, "Audit", "label more pictures", ["looktwice", "audit", str(verdicts), str(folder)], place)
    _print_share(audited, known)


def _truths(out: Path, folder: Path) -> list[str]:
    """The command-line option for the labels file; empty if that file is in the pictures' folder."""
    return ["--truths", str(out)] if out != folder / "labels.csv" else []


def _print_share(audited: Audit, labels: Labels) -> None:
    """Print the error rate among accepted verdicts if there are enough labels."""
    if share := audited.share(verdicts_wrong(audited, labels.known())):
        say(share.line())


def _pictures(verdicts: Path, pictures: Path | None, names: Sequence[str]) -> tuple[Path, dict[str, Picture]]:
    """The pictures' folder, and the pictures with these names, in this order."""
    folder = pictures or (verdicts if verdicts.is_dir() else None)
    if folder is None:
        raise DataError(
            "the pictures of these verdicts are unknown; add the scored folder as the second argument",
            code="labels-unmatched",
        )
    by_name = {picture.name: picture for picture in find([folder])}
    if lost := [name for name in names if name not in by_name]:
        raise DataError(
            f"the pictures of {few(lost, 'verdict')} are not in {str(folder)!r}; specify their folder",
            code="labels-unmatched",
        )
    return folder, {name: by_name[name] for name in names}


def serve(session: LabellingSession, title: str, purpose: str, command: Sequence[str], place: Place) -> None:
    """Serve the page until a signal, then print the next command and its purpose."""
    say(f"{len(session.pictures)} pictures. Labels are saved to {safe(str(session.labels.out))} after every click.")
    try:
        load(PAGE).run(session, title, shlex.join(command), place)
    finally:
        session.labels.close()
    if session.labels.known():
        say(f"Next, {purpose}: {safe(shlex.join(command))}")
