"""Writes docs/reference/api.md from the public names and their docstrings; a test compares the page with this script's
output.

Run it: python tools/api_reference.py > docs/reference/api.md
"""

from __future__ import annotations

import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.public_api import members, public, signature

import looktwice

INTRO = """\
# Python

Made by `python tools/api_reference.py` from the public names of `import looktwice as lt` and their docstrings, whose
examples the tests run.
"""
FIRST = ("Model", "AsyncModel", "LookTwice", "connect", "Verdict", "Unscored", "Evaluation", "Profile")
"""The names that most readers look for, which come first; all other names follow in alphabetical order, and then
modules."""


def page() -> str:
    """The whole page."""
    names = {name: getattr(looktwice, name) for name in looktwice.__all__}
    plain = sorted(name for name, value in names.items() if not isinstance(value, ModuleType) and name not in FIRST)
    modules = sorted(name for name, value in names.items() if isinstance(value, ModuleType))
    parts = [INTRO, *(_named(f"lt.{name}", names[name]) for name in (*FIRST, *plain))]
    parts += [_module(f"lt.{name}", names[name]) for name in modules]
    return "\n".join(parts)


def _named(path: str, value: object) -> str:
    """A class with its public members, or a function."""
    lines = [f"## {path}\n", *_told(path, value)]
    if value is looktwice.AsyncModel:
        lines.append("The methods of `lt.Model`, as coroutines.\n")
    elif inspect.isclass(value):
        lines += _members(value, path)
    return "\n".join(lines)


def _module(path: str, module: ModuleType) -> str:
    """A module with its functions and classes, without class members."""
    lines = [f"## {path}\n", f"{_prose(module)}\n"]
    for name in sorted(public(module)):
        value = getattr(module, name)
        if inspect.isclass(value) or inspect.isfunction(value):
            lines += [f"### {path}.{name}\n", *_told(f"{path}.{name}", value)]
    return "\n".join(lines)


def _told(path: str, value: object) -> Iterator[str]:
    call = textwrap.fill(f"{path}{_short(signature(value))}", 96, subsequent_indent="    ", break_on_hyphens=False)
    yield f"```py\n{call}\n```\n"
    text = _prose(value)
    if text:
        yield f"{text}\n"


def _members(kind: type, path: str) -> Iterator[str]:
    attributes = []
    for line in members(kind, path):
        name = line[len(path) + 1 :].split("(", 1)[0]
        value = inspect.getattr_static(kind, name)
        if isinstance(value, property | classmethod) or inspect.isfunction(getattr(kind, name)):
            yield f"### {path}.{name}\n"
            yield from _told(f"{path}.{name}", value if isinstance(value, property) else getattr(kind, name))
        else:
            attributes.append(f"`{name}`")
    if attributes:
        yield f"Attributes: {', '.join(attributes)}.\n"


def _short(parameters: str) -> str:
    """Parameters without self, and without defaults that would need a separate line."""
    plain = re.sub(r"^\((self|cls)(, )?", "(", parameters)
    plain = re.sub(r"=\w+\((?:[^()]|\([^()]*\))*\)", "=…", plain)
    return re.sub(r"=<[^>]*>", "=…", plain)


def _prose(value: object) -> str:
    """A docstring as Markdown, with its examples as code."""
    text = inspect.getdoc(value) or ""
    inherited = inspect.isclass(value) and value.__doc__ is None
    blocks = re.split(r"\n\s*\n", "" if inherited else text)
    return "\n\n".join(f"```pycon\n{block}\n```" if block.lstrip().startswith(">>>") else block for block in blocks)


if __name__ == "__main__":
    print(page(), end="")
