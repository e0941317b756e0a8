"""Writes docs/reference/cli.md from the commands themselves; a test compares the page with this script's output.

Run it: python tools/cli_reference.py > docs/reference/cli.md
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from looktwice.cli.app import app, built

INTRO = """\
# Commands

Made by `python tools/cli_reference.py` from the commands themselves. `looktwice COMMAND --help` shows the options that
matter most, `--help-all` all of them. With `-q` a command prints nothing but its results and errors.
`looktwice --install-completion` teaches your shell to complete commands and options; `--show-completion` prints the
script instead.

Exit codes: 0 done, 1 an error ended it, 2 not understood, 3 some pictures were not scored, 130 left by a second Ctrl-C.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([INTRO, *_commands(typer.main.get_command(app), "looktwice")])


def _commands(group: Any, path: str) -> Iterator[str]:
    """Every command below a group, in the order in which help lists them."""
    for name in group.commands:
        command = built(name) if path == "looktwice" else group.commands[name]
        if hasattr(command, "commands"):
            yield from _commands(command, f"{path} {name}")
        elif not command.hidden:
            yield from _command(command, f"{path} {name}")


def _command(command: Any, path: str) -> Iterator[str]:
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    options = [one for one in command.params if one.param_type_name == "option" and "--help" not in one.opts]
    words = " ".join(_argument(one) for one in arguments)
    yield f"## {path}\n"
    yield f"    {path}{' ' + words if words else ''}{' [OPTIONS]' if options else ''}\n"
    yield f"{_plain(command.help or '')}\n"
    if arguments or options:
        yield "| | |\n|---|---|"
        yield from (f"| `{_argument(one)}` | {_told(one)} |" for one in arguments)
        yield from (f"| `{_option(one)}` | {_told(one)} |" for one in options)
        yield ""


def _argument(one: Any) -> str:
    name = one.name.upper()
    return f"{name} …" if one.nargs == -1 else name


def _option(one: Any) -> str:
    names = sorted([*one.opts, *one.secondary_opts], key=len)
    return "`, `".join(names if one.is_flag else [*names[:-1], f"{names[-1]} …"])


def _told(one: Any) -> str:
    default = one.show_default if isinstance(getattr(one, "show_default", None), str) else one.default
    shown = default not in (None, "", False, True, ()) and not callable(default) and one.param_type_name == "option"
    needed = " **Needed.**" if one.required and one.param_type_name == "option" else ""
    return f"{_plain(one.help or '').replace('|', '/')}{needed}{f' Default: `{default}`.' if shown else ''}"


def _plain(text: str) -> str:
    """Help text without marks for bold, and with examples as code."""
    text = re.sub(r"\[/?(?:bold|dim|italic)\]", "", text)
    lines = [line.strip() for line in text.strip().splitlines()]
    return "\n".join(f"    {line}" if line.startswith("looktwice ") else line for line in lines)


if __name__ == "__main__":
    print(page(), end="")
