"""The end of a command, for people: what is in reach with the labels at hand, and the command to go on with."""

from __future__ import annotations

import shlex
from pathlib import Path

from looktwice.asking.progress import say
from looktwice.cli.console import safe
from looktwice.verdicts.planning import least_error
from looktwice.verdicts.profile import Profile

PICTURES = "PICTURES"
"""Stands in a command for what only the reader knows."""


def say_next(purpose: str, *words: object) -> None:
    """Name the command to go on with, ready to be copied."""
    say(f"Next, {purpose}: {safe(shlex.join(['looktwice', *map(str, words)]))}")


def say_reach(profile: Profile, path: Path, price: int = 0) -> None:
    """Tell the least error that a profile can guarantee, the share accepted and its cost; `price` in millionths."""
    least, labels = least_error(profile.held_out), f"{len(profile.held_out.correct):,} labelled pictures"
    if least is None:
        say(f"The {labels} are too few to guarantee anything about accepted answers.")
        say_next("see how many it takes", "plan", "--max-error", 0.1)
        return
    error, accepted = least
    cost = cost_of_accepted(1 + len(profile.views()), price, accepted)
    say(
        f"The strictest guarantee that the {labels} support: at most {error:.3g} of the accepted answers are wrong, "
        f"with 95% certainty. It accepts {accepted:.0%} of such pictures{cost}."
    )
    say_next(
        "accept answers under that guarantee", "score", PICTURES, "-p", path, "--max-error", error, "-o", "verdicts.csv"
    )


def cost_of_accepted(queries: float, price: int, accepted: float) -> str:
    """What an accepted answer costs, where a query has a price: also the queries about the others are paid for."""
    return f", at {queries * price / accepted / 1e6:.4g} per accepted picture" if price and accepted else ""
