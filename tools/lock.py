"""Prints the version of every library that a dependency group brings into the running environment.

Run it: python tools/lock.py dev > requirements-dev.lock. Use it: make setup LOCK=requirements-dev.lock.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement

PROJECT = "looktwice"
GROUPS = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))["dependency-groups"]


def needs(group: str) -> Iterator[Requirement]:
    """What a group names, with the groups that it includes."""
    for entry in GROUPS[group]:
        if isinstance(entry, str):
            yield Requirement(entry)
        else:
            yield from needs(entry["include-group"])


def closure(name: str, extras: frozenset[str], seen: dict[str, str], asked: set[tuple[str, frozenset[str]]]) -> None:
    """Put a distribution and all that it needs into `seen`, by its plain name."""
    plain = re.sub(r"[-_.]+", "-", name).lower()
    if (plain, extras) in asked:
        return
    asked.add((plain, extras))
    try:
        found = distribution(name)
    except PackageNotFoundError:
        return  # of another system or Python
    seen[plain] = found.version
    for line in found.requires or ():
        need = Requirement(line)
        wanted = [need.marker is None or need.marker.evaluate({"extra": extra}) for extra in (*extras, "")]
        if any(wanted):
            closure(need.name, frozenset(need.extras), seen, asked)


if __name__ == "__main__":
    versions: dict[str, str] = {}
    asked: set[tuple[str, frozenset[str]]] = set()
    closure(PROJECT, frozenset(), versions, asked)
    for need in needs(sys.argv[1]):
        closure(need.name, frozenset(need.extras), versions, asked)
    versions.pop(PROJECT)
    print(f"# Made by tools/lock.py on Python {sys.version_info.major}.{sys.version_info.minor} under {sys.platform}.")
    print("\n".join(f"{name}=={version}" for name, version in sorted(versions.items())))
