"""Prints the version of every library that an extra of this project brings into the running environment.

Run it: python tools/lock.py dev > requirements-dev.lock. Use it: make setup LOCK=requirements-dev.lock.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import PackageNotFoundError, distribution

from packaging.requirements import Requirement

PROJECT = "looktwice"


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
    closure(PROJECT, frozenset(sys.argv[1:]), versions, set())
    versions.pop(PROJECT)
    print(f"# Made by tools/lock.py on Python {sys.version_info.major}.{sys.version_info.minor} under {sys.platform}.")
    print("\n".join(f"{name}=={version}" for name, version in sorted(versions.items())))
