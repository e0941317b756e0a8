"""Commands that are imported and built when they are called."""

import sys

import pytest
from support.workshop import run
from typer.main import get_command
from typer.testing import CliRunner

from looktwice.cli import app as command_line
from looktwice.cli.app import COMMANDS, app, built


def test_only_the_command_that_is_called_is_imported() -> None:
    code = "import sys; from looktwice.cli.app import app, main; main()"
    loaded = "print([name for name in sys.modules if name.startswith('looktwice.')], file=sys.stderr)"
    done = run("--help")
    assert done.returncode == 0
    assert all(f"  {name} " in done.stdout for name in COMMANDS)
    import subprocess

    said = subprocess.run(
        [sys.executable, "-c", f"import atexit; atexit.register(lambda: {loaded}); {code}", "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stderr
    assert said.strip() == "['looktwice.cli', 'looktwice.cli.app']"


def test_each_command_is_built_once_and_an_unknown_one_is_told() -> None:
    group = get_command(app)
    assert list(group.commands) == list(COMMANDS)  # type: ignore[attr-defined]
    assert built("prices") is built("prices")
    assert CliRunner().invoke(app, ["great"]).exit_code == 2


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_first_line_of_each_help(name: str) -> None:
    help_text = built(name).help
    assert command_line.COMMANDS[name][1] == help_text.partition("\n\n")[0].replace("\n", " ").strip()
