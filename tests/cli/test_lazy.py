"""Commands that are built when they are called."""

import typer
from typer.main import get_command
from typer.testing import CliRunner

from looktwice.cli.lazy import LazyGroup


def lazy() -> tuple[typer.Typer, LazyGroup]:
    source, group = typer.Typer(), typer.Typer(name="ledger", help="What was asked.", no_args_is_help=True)

    @source.command()
    def greet(name: str, loud: bool = False) -> None:
        """Say hello."""
        typer.echo(f"hello {name}".upper() if loud else f"hello {name}")

    @source.command("long-name")
    def other() -> None:
        """Say nothing."""

    @group.command()
    def show() -> None:
        """Show it."""
        typer.echo("shown")

    source.add_typer(group)

    class Commands(LazyGroup):
        pass

    Commands.source = source
    app = typer.Typer(cls=Commands, add_completion=False)
    app.callback()(lambda: None)
    built = get_command(app)
    assert isinstance(built, LazyGroup)
    return app, built


def test_only_the_command_that_is_called_is_built() -> None:
    _, group = lazy()
    assert group.list_commands(None) == ["greet", "long-name", "ledger"]
    assert not group.built._built
    first = group.built["greet"]
    assert list(group.built._built) == ["greet"]
    assert group.built["greet"] is first
    assert len(group.built) == 3


def test_a_command_and_a_group_run_as_if_they_were_built_at_once() -> None:
    app, _ = lazy()
    assert CliRunner().invoke(app, ["greet", "ada", "--loud"]).stdout == "HELLO ADA\n"
    assert CliRunner().invoke(app, ["ledger", "show"]).stdout == "shown\n"
    unknown = CliRunner().invoke(app, ["great"])
    assert unknown.exit_code == 2


def test_help_lists_every_command_without_building_one() -> None:
    app, _ = lazy()
    text = CliRunner().invoke(app, ["--help"]).stdout
    for words in ("greet", "Say hello.", "long-name", "Say nothing.", "ledger", "What was asked."):
        assert words in text
