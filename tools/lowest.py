"""Prints a constraint for each dependency of this project: the oldest version that its lower bound allows.

Run it: python tools/lowest.py EXTRA … > constraints.txt. The existing versions are requested from the package index.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

BOUND = re.compile(r"(?P<name>[\w.-]+)(?:\[[^]]*\])?>=(?P<least>[\d.]+)")


def bounds(extras: list[str]) -> Iterator[tuple[str, str]]:
    """Name and lower bound of each direct dependency, including the extras' dependencies."""
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*project["dependencies"], *(line for e in extras for line in project["optional-dependencies"][e])]
    for line in wanted:
        if found := BOUND.match(line):
            yield found["name"], found["least"]


def oldest(name: str, least: str) -> str:
    """The first version of a library that is not below the bound."""
    command = [sys.executable, "-m", "pip", "index", "versions", name]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    listed = re.search(r"Available versions: (.*)", told)
    known = listed[1].split(", ") if listed else []
    return min((version for version in known if parts(version) >= parts(least)), key=parts)


def parts(version: str) -> tuple[int, ...]:
    """A version as numbers that can be compared."""
    numbers = [int(part) for part in re.findall(r"\d+", version)]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


if __name__ == "__main__":
    for name, least in sorted(set(bounds(sys.argv[1:]))):
        print(f"{name}=={oldest(name, least)}")
