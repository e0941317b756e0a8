"""Writes docs/reference/errors.md from looktwice.errors and the places that raise; a test compares the page with this
script's output.

Run it: python tools/error_reference.py > docs/reference/errors.md
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

from looktwice import errors

SOURCE = Path(errors.__file__).parent
INTRO = """\
# Error codes

Made by `python tools/error_reference.py` from the code.

Every exception of looktwice derives from `LookTwiceError` and has a `code`. Codes are stable: programs branch on them
and on the class; messages are for people and may change.

    try:
        model.score(pictures)
    except looktwice.LookTwiceError as error:
        if error.code == "budget-spent": ...

A command with `--json` that fails prints `{"error": {"code": …, "message": …}}` as its last line. Pictures without a
verdict have their code in the column `code`. The [service](../service.md) replies with a `code` of its own, which
determines the HTTP status, and with the code from this table as `error`.

| code | meaning | raised as |
|---|---|---|
"""


def classes() -> dict[str, type[errors.LookTwiceError]]:
    """The error classes of the tree by name."""
    return {name: kind for name, kind in vars(errors).items() if name.endswith(("Error", "Extra"))}


def raised() -> dict[str, set[str]]:
    """The classes with which each code is raised: by default, for the status of a reply, or by a keyword."""
    known, found = classes(), defaultdict[str, set[str]](set)
    for name, kind in known.items():
        found[kind.code].add(name)
        for code in getattr(kind, "by_status", {}).values():
            found[code].add(name)
    for path in sorted(SOURCE.rglob("*.py")):
        calls = (node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Call))
        for call in calls:
            for keyword in call.keywords:
                if keyword.arg == "code" and isinstance(keyword.value, ast.Constant):
                    found[str(keyword.value.value)] |= {getattr(call.func, "id", "")} & known.keys()
    return found


def page() -> str:
    """The whole page."""
    names = raised()
    rows = (
        f"| `{code}` | {meaning} | {', '.join(f'`{name}`' for name in sorted(names[code])) or 'only in rows'} |"
        for code, meaning in errors.CODES.items()
    )
    return INTRO + "\n".join(rows) + "\n"


if __name__ == "__main__":
    print(page(), end="")
