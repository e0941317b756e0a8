"""How a module of experiments is run: its docstring says how it is used, and an expected error is one line."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection

from looktwice.errors import LookTwiceError


def run(work: Callable[[list[str]], None], usage: str | None, known: Collection[str]) -> None:
    """Do the work with the words of the command line; one that is not known, such as --help, prints the usage."""
    words = sys.argv[1:]
    if not set(words) <= set(known):
        sys.exit(usage)
    try:
        work(words)
    except LookTwiceError as error:
        sys.exit(str(error))
