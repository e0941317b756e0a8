"""What the `ledger` commands do: show, export, check, clean and back up ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich import box
from rich.progress import track
from rich.table import Table

from looktwice import files
from looktwice.cli.console import OUT, print_json, safe, say_next
from looktwice.engine.ledger import maintenance
from looktwice.engine.ledger.maintenance import DayCost
from looktwice.engine.ledger.sqlite import default_path
from looktwice.errors import ImageError
from looktwice.files import check_writable
from looktwice.images.collection import Picture
from looktwice.images.image import WorkingSize
from looktwice.progress import ERR, say

TOKENS = ("input_tokens", "output_tokens", "cached_tokens")
By = Literal["day", "classifier"]


def stats(place: str | None, by: By | None, json: bool) -> None:
    """Queries and money by day or classifier, or by both: what counts against budgets, and what was answered."""
    place = place or str(default_path())
    days = maintenance.stats(place)
    if json:
        columns: list[By] = [by] if by else ["day", "classifier"]
        print_json([_record(group, columns) for group in _grouped(days, *columns).values()])
        return
    OUT.print(f"Ledger {safe(_shown(place))}", highlight=False, soft_wrap=True)
    billed = any(day.input_tokens for day in days)
    tables = {("",): days} if by else _grouped(days, "classifier")
    for (title,), part in tables.items():
        OUT.print(_table(title, by or "day", part, billed))
    if len(tables) > 1:
        OUT.print(_table("All classifiers", "day", days, billed))
    say_next("write every answer as a row", "ledger", "export", "answers.csv", "--ledger", _shown(place))


def _grouped(days: Sequence[DayCost], *columns: By) -> dict[tuple[str, ...], list[DayCost]]:
    groups: dict[tuple[str, ...], list[DayCost]] = {}
    for day in days:
        groups.setdefault(tuple(_heading(day, column) for column in columns), []).append(day)
    return groups


def _table(title: str, column: By, days: Sequence[DayCost], billed: bool) -> Table:
    """The sums of each group, and of all."""
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(column, overflow="fold", no_wrap=column == "day")
    for heading in ("queries", "answered", "money", *(("tokens in (cached)", "out") if billed else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    for (key,), group in _grouped(days, column).items():
        table.add_row(key, *_amounts(group, billed))
    table.add_row("all", *_amounts(days, billed), style="bold")
    return table


def _heading(day: DayCost, column: By) -> str:
    return day.day.isoformat() if column == "day" else safe(f"{day.description} {day.fingerprint}".strip())


def _record(group: Sequence[DayCost], columns: Sequence[By]) -> dict[str, object]:
    first = group[0]
    who = {"fingerprint": first.fingerprint, "description": first.description} if "classifier" in columns else {}
    when = {"day": first.day.isoformat()} if "day" in columns else {}
    names = ("queries", "answered", "micros", *TOKENS)
    return {**who, **when, **{name: sum(getattr(day, name) for day in group) for name in names}}


def _amounts(days: Sequence[DayCost], billed: bool) -> list[str]:
    queries, answered, picos = (sum(getattr(day, name) for day in days) for name in ("queries", "answered", "picos"))
    amounts = [f"{queries:,}", f"{answered:,}", f"{picos / 1e12:.4f}"]
    if billed:
        sent, received, cached = (sum(getattr(day, name) for day in days) for name in TOKENS)
        amounts += [f"{sent:,} ({cached:,})", f"{received:,}"]
    return amounts


def _shown(place: str) -> str:
    """A place for people: of a database only that it is one, since an address may hold a password."""
    return "postgresql://…" if "://" in place else place


def export(place: str | None, out: Path, pictures: Sequence[Picture] = ()) -> None:
    """Every answer as a row of a .csv, .jsonl or .parquet file, with the names of these pictures."""
    check_writable(out, files.ENDINGS)
    names = {digest: picture.name for picture in _readable(pictures) for digest in _digests(picture)}
    say(f"{maintenance.export(place or default_path(), out, names)} answers: {out}")


def verify(place: str | None, json: bool) -> bool:
    """Say what is wrong with the ledger; whether it is sound."""
    problems = maintenance.verify(place or default_path())
    if json:
        print_json({"problems": problems})
        return not problems
    for problem in problems:
        say(f"[red]problem:[/red] {safe(problem)}")
    if not problems:
        say("The ledger is sound.")
    return not problems


def forget(place: str | None, classifier: str | None, pictures: Sequence[Picture] | None) -> None:
    """Delete the answers of one classifier, or those about some pictures; what they cost stays counted."""
    digests = None if pictures is None else [digest for picture in _readable(pictures) for digest in _digests(picture)]
    deleted = maintenance.forget(place or default_path(), classifier, digests)
    say(f"{deleted} answers are forgotten; what they cost stays counted.")
    say_next("see what is left", "ledger", "stats", "--ledger", _shown(place or str(default_path())))


def backup(place: str | None, out: Path) -> None:
    """Copy the ledger as it is now, while others write."""
    maintenance.backup(place or default_path(), out)
    say(f"Backup: {safe(str(out))}")


def _readable(pictures: Sequence[Picture]) -> list[Picture]:
    """Those of the pictures that can be read; the others are named."""
    readable = []
    for picture in track(pictures, "pictures", console=ERR, transient=True, disable=not ERR.is_terminal):
        try:
            picture.image(WorkingSize(long=1))
            readable.append(picture)
        except ImageError as error:
            say(f"[yellow]not read:[/yellow] {safe(picture.name)}: {safe(error.why)}")
    return readable


def _digests(picture: Picture) -> list[str]:
    """The ledger knows a picture by its file where it was scaled down, else by its pixels."""
    return [picture.image(size).digest for size in (WorkingSize(long=1), None)]
