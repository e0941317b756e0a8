"""What the `ledger` commands do: show, export, check, clean and join the books."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.table import Table

from looktwice.console import OUT, print_json, safe
from looktwice.ledger import DayCost, bookkeeping, default_path, merging
from looktwice.progress import say

COUNTS = {"asked": "asked", "answered": "answered", "refused": "refused", "unknown": "unknown", "counted": "queries"}
"""The columns of `ledger stats` that add up, and what of them counts against budgets."""


def stats(path: Path | None, json: bool) -> None:
    """Queries and money by day and classifier: asked = answered + refused + unknown."""
    days = bookkeeping.stats(path or default_path())
    if json:
        print_json([{**asdict(day), "asked": day.asked, "day": day.day.isoformat()} for day in days])
        return
    table = Table(title=f"Ledger {path or default_path()}", title_justify="left")
    for heading in ("day", "classifier", *COUNTS, "money"):
        table.add_column(heading, justify="left" if heading in ("day", "classifier") else "right")
    for day in days:
        who = safe(f"{day.description} {day.fingerprint}".strip())
        table.add_row(day.day.isoformat(), who, *_amounts([day]))
    table.add_row("all", "", *_amounts(days), style="bold")
    OUT.print(table)


def _amounts(days: Sequence[DayCost]) -> list[str]:
    counts = [sum(getattr(day, name) for day in days) for name in COUNTS.values()]
    return [*map(str, counts), f"{sum(day.micros for day in days) / 1e6:.4f}"]


def export(path: Path | None, out: Path) -> None:
    """Every answer as a row of a .csv, .jsonl or .parquet file."""
    say(f"{bookkeeping.export(path or default_path(), out)} answers: {out}")


def verify(path: Path | None, json: bool) -> bool:
    """Say what is wrong with the ledger; whether it is sound."""
    problems = bookkeeping.verify(path or default_path())
    if json:
        print_json({"problems": problems})
        return not problems
    for problem in problems:
        say(f"[red]problem:[/red] {safe(problem)}")
    if not problems:
        say("The ledger is sound.")
    return not problems


def forget(path: Path | None, fingerprint: str) -> None:
    """Delete the answers of one classifier; what they cost stays counted."""
    gone = bookkeeping.forget(path or default_path(), fingerprint)
    say(f"{gone} answers of {safe(fingerprint)} are forgotten; what they cost stays counted.")


def merge(other: Path, path: Path | None) -> None:
    """Add the answers and the cost of another ledger."""
    merged = merging.merge(path or default_path(), other)
    say(f"{merged.added} answers added, {merged.known} were known.")
