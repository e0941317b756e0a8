"""The `ledger` commands: show, export, check, clean and back up ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import track
from rich.table import Table

from looktwice.cli.console import ERR, JsonOption, print_json, safe, say, say_next, show, table
from looktwice.cli.options import Help, find_pictures
from looktwice.model import ImageError, Picture, Project, WorkingSize, files, maintenance

TOKENS = ("input_tokens", "output_tokens", "cached_tokens")
PlaceOption = Annotated[
    str,
    Help(
        "--ledger",
        help="The ledger; by default LOOKTWICE_LEDGER, else the project's ledger, else the one in your data folder.",
        default_factory=lambda: Project.here().ledger_place(),
        show_default=False,
    ),
]
ledger = typer.Typer(
    name="ledger",
    help="Show, export, verify, back up or forget the answers you paid for.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)


@ledger.command()
def stats(place: PlaceOption, json: JsonOption = False) -> None:
    """Show queries and money by day and classifier."""
    days = maintenance.stats(place)
    if json:
        names = ("fingerprint", "description", "queries", "answered", "micros", *TOKENS)
        print_json([{**{name: getattr(day, name) for name in names}, "day": day.day.isoformat()} for day in days])
        return
    show(f"Ledger {safe(_shown(place))}")
    billed, classifiers = any(day.input_tokens for day in days), dict[str, list[maintenance.DayCost]]()
    for day in days:
        classifiers.setdefault(safe(f"{day.description} {day.fingerprint}".strip()), []).append(day)
    for title, spent in classifiers.items():
        show(_table(title, spent, billed))
    if len(classifiers) > 1:
        show(_table("All classifiers", days, billed))
    say_next("write every answer as a row", "ledger", "export", "answers.csv", "--ledger", _shown(place))


def _table(title: str, days: Sequence[maintenance.DayCost], billed: bool) -> Table:
    """The totals per day and overall."""
    headings = ("queries", "answered", "money", *(("tokens in (cached)", "out") if billed else ()))
    shown, by_day = table(title, "day", *headings), dict[str, list[maintenance.DayCost]]()
    for day in days:
        by_day.setdefault(day.day.isoformat(), []).append(day)
    for name, spent in by_day.items():
        shown.add_row(name, *_amounts(spent, billed))
    shown.add_row("all", *_amounts(days, billed), style="bold")
    return shown


def _amounts(days: Sequence[maintenance.DayCost], billed: bool) -> list[str]:
    queries, answered, picos = (sum(getattr(day, name) for day in days) for name in ("queries", "answered", "picos"))
    amounts = [f"{queries:,}", f"{answered:,}", f"{picos / 1e12:.4f}"]
    if billed:
        sent, received, cached = (sum(getattr(day, name) for day in days) for name in TOKENS)
        amounts += [f"{sent:,} ({cached:,})", f"{received:,}"]
    return amounts


def _shown(place: str) -> str:
    """The location of a ledger for display; a database address is omitted, since it may contain a password."""
    return "postgresql://…" if "://" in place else place


@ledger.command()
def export(
    out: Annotated[Path, typer.Argument(help="A .csv, .jsonl or .parquet file.")],
    place: PlaceOption,
    pictures: Annotated[list[Path] | None, Help(help="The pictures, to add their names to the answers.")] = None,
) -> None:
    """Write every answer as a row of a file."""
    files.check_writable(out, files.ENDINGS)
    readable = _readable(find_pictures(pictures)) if pictures else ()
    names = {digest: picture.name for picture in readable for digest in _digests(picture)}
    say(f"{maintenance.export(place, out, names)} answers: {out}")


@ledger.command()
def verify(place: PlaceOption, json: JsonOption = False) -> None:
    """Check that the file is intact and its counts add up; the exit code is 1 if not."""
    problems = maintenance.verify(place)
    if json:
        print_json({"problems": problems})
    else:
        for line in [f"[red]problem:[/red] {safe(problem)}" for problem in problems] or ["The ledger is sound."]:
            say(line)
    raise typer.Exit(1 if problems else 0)


@ledger.command()
def forget(
    place: PlaceOption,
    classifier: Annotated[
        str | None,
        typer.Argument(
            help="The classifier as shown by stats: its fingerprint or description, or a prefix of one.",
            show_default=False,
        ),
    ] = None,
    pictures: Annotated[list[Path] | None, Help(help="Forget only the answers about these pictures.")] = None,
) -> None:
    """Delete the answers of one classifier, or about some pictures; their cost stays counted."""
    if classifier is None and not pictures:
        raise typer.BadParameter("specify a classifier or --pictures")
    readable = _readable(find_pictures(pictures)) if pictures else ()
    digests = [digest for picture in readable for digest in _digests(picture)] if pictures else None
    deleted = maintenance.forget(place, classifier, digests)
    say(f"{deleted} answers are forgotten; their cost stays counted.")
    say_next("see what is left", "ledger", "stats", "--ledger", _shown(place))


@ledger.command()
def backup(out: Annotated[Path, typer.Argument(help="Where to write the copy.")], place: PlaceOption) -> None:
    """Copy a ledger, even while other programs write. Copying its file by hand may miss the last answers."""
    maintenance.backup(place, out)
    say(f"Backup: {safe(str(out))}")


@ledger.command()
def alarms(
    place: PlaceOption,
    end: Annotated[bool, Help("--end", help="End the alarms, so that verdicts are accepted again.")] = False,
    json: JsonOption = False,
) -> None:
    """List the profiles whose pictures have changed, so that their verdicts are held for review."""
    raised = maintenance.alarms(place)
    if end:
        say(f"Ended: {maintenance.end_alarms(place)}")
    elif json:
        print_json([{"profile": profile, **alarm._asdict()} for profile, alarm in raised.items()])
    else:
        for line in [f"{profile}: {alarm}" for profile, alarm in raised.items()] or ["No alarm."]:
            show(line)


def _readable(pictures: Sequence[Picture]) -> list[Picture]:
    """Open the readable pictures, and print the names of the others."""
    readable = []
    for picture in track(pictures, "pictures", console=ERR, transient=True, disable=not ERR.is_terminal):
        try:
            picture.image(WorkingSize(long=1))
            readable.append(picture)
        except ImageError as error:
            say(f"[yellow]not read:[/yellow] {safe(picture.name)}: {safe(error.why)}")
    return readable


def _digests(picture: Picture) -> list[str]:
    """The digest under which the ledger stores a picture: the file's digest if the picture was scaled down, else the
    digest of its pixels."""
    return [picture.image(size).digest for size in (WorkingSize(long=1), None)]
