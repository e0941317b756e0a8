"""Help is short, and says where the rest is."""

import pytest
from support.workshop import call, run

from looktwice.cli.app import COMMANDS

LINES = 60


@pytest.fixture(autouse=True)
def _eighty_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def shown(*words: str) -> str:
    done = call(*words)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("name", COMMANDS)
def test_help_fits_sixty_lines_of_eighty_columns(name: str) -> None:
    lines = shown(name, "--help").splitlines()
    assert len(lines) <= LINES
    assert max(map(len, lines)) <= 80


def test_the_long_help_has_every_option() -> None:
    short, long = shown("serve", "--help"), shown("serve", "--help-all")
    assert "serve --help-all" in " ".join(short.split())
    assert "--tls-cert" not in short
    assert "--tls-cert" in long


def test_quiet_leaves_errors() -> None:
    done = run("look", "-q", "missing.png", "-p", "missing.json")
    assert done.returncode == 1
    assert done.stderr.startswith("error[profile-missing]")
