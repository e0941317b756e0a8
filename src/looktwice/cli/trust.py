"""`looktwice trust`."""

from __future__ import annotations

from pathlib import Path

import typer

from looktwice.classifiers import trust as trusting
from looktwice.classifiers.registry import resolve
from looktwice.cli.console import OUT, safe
from looktwice.decisions.profile import Profile
from looktwice.progress import say


def trust(file: Path, yes: bool) -> None:
    """Show what the classifier of a file would run, read and reach, and approve it if the user agrees."""
    described = resolve(str(file) if file.suffix == ".toml" else Profile.load(file).classifier)
    would = trusting.reach(described).lines()
    if not would:
        say(f"{safe(described.text)} needs no approval: it runs no program, reads no variable and reaches no host.")
        return
    OUT.print(f"[bold]{safe(described.text)}[/bold] would", highlight=False, soft_wrap=True)
    for line in would:
        OUT.print(f"  {safe(line)}", highlight=False, soft_wrap=True)
    if not yes:
        typer.confirm("Approve this?", abort=True)
    say(f"Approved; to withdraw it, delete {safe(str(trusting.approve(described)))}")
