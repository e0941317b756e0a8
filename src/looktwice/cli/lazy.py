"""Commands that are built when they are called: to build all of them takes as long as the rest of a start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import getdoc
from typing import Any, ClassVar

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command, get_command_name, get_group


class LazyGroup(TyperGroup):
    """The commands of `source`, under the name and the options of the Typer that has this class.

    The list of commands in its help is drawn from their docstrings alone.
    """

    source: ClassVar[typer.Typer]

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.built = Built(self.source)
        self.commands = self.built  # type: ignore[assignment]  # nothing is ever added to it

    def list_commands(self, ctx: object) -> list[str]:
        return list(self.built)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        listed = {name: TyperCommand(name, help=text) for name, text in self.built.helps.items()}
        TyperGroup(commands=listed).format_commands(ctx, formatter)  # type: ignore[arg-type]


class Built(Mapping[str, Any]):
    """The commands and groups of a Typer by name, each built when it is first looked up."""

    def __init__(self, source: typer.Typer) -> None:
        self.helps: dict[str, str | None] = {}
        self._parts: dict[str, Callable[[], Any]] = {}
        self._built: dict[str, Any] = {}
        for command in source.registered_commands:
            if command.callback is not None:
                alone = typer.Typer(add_completion=False, rich_markup_mode=source.rich_markup_mode)
                alone.registered_commands = [command]
                name = command.name or get_command_name(command.callback.__name__)
                self._parts[name], self.helps[name] = partial(get_command, alone), getdoc(command.callback)
        for group in source.registered_groups:
            if group.typer_instance is not None:
                name = str(group.typer_instance.info.name)
                self._parts[name] = partial(get_group, group.typer_instance)
                self.helps[name] = group.typer_instance.info.help

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = self._parts[name]()
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)
