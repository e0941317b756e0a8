"""What the `ledger` commands do: show, export, check, clean and merge ledgers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich import box
from rich.progress import track
from rich.table import Table

from looktwice import files
from looktwice.asking.ledger import DayCost, default_path, maintain
from looktwice.asking.ledger.merging import merge as merge_ledgers
from looktwice.asking.progress import ERR, say
from looktwice.cli.console import OUT, print_json, safe, say_next
from looktwice.errors import ImageError
from looktwice.files import check_writable
from looktwice.pictures.collection import Picture
from looktwice.pictures.image import WorkingSize

BILLS = ("estimated", "billed", "tokens in (cached)", "out")
AMOUNTS = ("billed", "estimated", "input_tokens", "output_tokens", "cached_tokens")
"""The columns of queries that were billed by the token, and what they are sums of."""

By = Literal["day", "classifier", "command"]

COUNTS = {"asked": "asked", "answered": "answered", "refused": "refused", "unknown": "unknown", "counted": "queries"}
"""The columns of `ledger stats` that add up, and what of them counts against budgets."""


def stats(path: Path | None, by: By | None, json: bool) -> None:
    """Queries and money by day, classifier or command, or by the first two: asked = answered + refused + unknown."""
    place = path or default_path()
    days = maintain.stats(place)
    if json:
        columns: list[By] = [by] if by else ["day", "classifier"]
        print_json([_record(group, columns) for group in _grouped(days, *columns).values()])
        return
    OUT.print(f"Ledger {safe(str(place))}", highlight=False, soft_wrap=True)
    billed = any(day.input_tokens for day in days)
    tables = {("",): days} if by else _grouped(days, "classifier")
    for (title,), part in tables.items():
        OUT.print(_table(title, by or "day", part, billed))
    if len(tables) > 1:
        OUT.print(_table("All classifiers", "day", days, billed))
    say_next("write every answer as a row", "ledger", "export", "answers.csv", "--ledger", place)


def _grouped(days: Sequence[DayCost], *columns: By) -> dict[tuple[str, ...], list[DayCost]]:
    groups: dict[tuple[str, ...], list[DayCost]] = {}
    for day in days:
        groups.setdefault(tuple(_heading(day, column) for column in columns), []).append(day)
    return groups


def _table(title: str, column: By, days: Sequence[DayCost], billed: bool) -> Table:
    """The sums of each group, and of all."""
    table = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(column, overflow="fold", no_wrap=column == "day")
    for heading in (*COUNTS, "money", *(BILLS if billed else ())):
        table.add_column(heading, justify="right", no_wrap=True)
    for (key,), group in _grouped(days, column).items():
        table.add_row(key, *_amounts(group, billed))
    table.add_row("all", *_amounts(days, billed), style="bold")
    return table


def _heading(day: DayCost, column: By) -> str:
    match column:
        case "day":
            return day.day.isoformat()
        case "classifier":
            return safe(f"{day.description} {day.fingerprint}".strip())
        case "command":
            return safe(day.command)


def _record(group: Sequence[DayCost], columns: Sequence[By]) -> dict[str, object]:
    first = group[0]
    who = {"fingerprint": first.fingerprint, "description": first.description} if "classifier" in columns else {}
    when = {"day": first.day.isoformat()} if "day" in columns else {}
    why = {"command": first.command} if "command" in columns else {}
    return {
        **who,
        **when,
        **why,
        **{name: sum(getattr(day, name) for day in group) for name in (*COUNTS.values(), "micros", *AMOUNTS)},
    }


def _amounts(days: Sequence[DayCost], billed: bool) -> list[str]:
    counts = [sum(getattr(day, name) for day in days) for name in COUNTS.values()]
    amounts = [*map(str, counts), f"{sum(day.micros for day in days) / 1e6:.4f}"]
    if billed:
        cost, expected, question, answer, cached = (sum(getattr(day, name) for day in days) for name in AMOUNTS)
        amounts += [f"{expected / 1e6:.4f}", f"{cost / 1e6:.4f}", f"{question:,} ({cached:,})", f"{answer:,}"]
    return amounts


def export(path: Path | None, out: Path, pictures: Sequence[Picture] = ()) -> None:
    """Every answer as a row of a .csv, .jsonl or .parquet file, with the names of these pictures."""
    check_writable(out, files.ENDINGS)
    names: dict[str, str] = {}
    for picture in track(pictures, "pictures", console=ERR, transient=True, disable=not ERR.is_terminal):
        try:
            # The ledger knows a picture by its file where it was scaled down, else by its pixels.
            for size in (WorkingSize(long=1), None):
                names.setdefault(picture.image(size).digest, picture.name)
        except ImageError as error:
            say(f"[yellow]not read:[/yellow] {safe(picture.name)}: {safe(error.why)}")
    say(f"{maintain.export(path or default_path(), out, names)} answers: {out}")


def verify(path: Path | None, json: bool) -> bool:
    """Say what is wrong with the ledger; whether it is sound."""
    problems = maintain.verify(path or default_path())
    if json:
        print_json({"problems": problems})
        return not problems
    for problem in problems:
        say(f"[red]problem:[/red] {safe(problem)}")
    if not problems:
        say("The ledger is sound.")
    return not problems


def forget(path: Path | None, classifier: str) -> None:
    """Delete the answers of one classifier; what they cost stays counted."""
    gone = maintain.forget(path or default_path(), classifier)
    say(f"{gone} answers of {safe(classifier)} are forgotten; what they cost stays counted.")
    say_next("see what is left", "ledger", "stats", "--ledger", path or default_path())


def merge(other: Path, path: Path | None) -> None:
    """Add the answers and the cost of another ledger."""
    merged = merge_ledgers(path or default_path(), other)
    say(f"{merged.added} answers added, {merged.known} were known.")
    say_next("see what they cost together", "ledger", "stats", "--ledger", path or default_path())
