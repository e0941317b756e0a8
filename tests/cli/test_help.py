"""Help is short, and says where the rest is."""

import os
import subprocess
import sys

import pytest

from looktwice.cli.app import COMMANDS

LINES = 60


def shown(*words: str) -> str:
    command = [sys.executable, "-m", "looktwice.cli.app", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"})
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
    command = [sys.executable, "-m", "looktwice.cli.app", "look", "-q", "missing.png", "-p", "missing.json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("error[profile-missing]")
