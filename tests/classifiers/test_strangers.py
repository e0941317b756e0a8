"""Real processes in a folder that somebody sent: nothing of it is imported, run, resolved, read or sent."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from support import forked
from support.serving import learn_profile
from support.workshop import write_pictures

import looktwice

TESTS = Path(__file__).parents[1]
SITE = "from support.watched import watch; watch()"
"""Makes a process of its own one that is watched."""
SCORER = "from looktwice.ray import Scorer; Scorer('profile.json')"
LOADED = "import looktwice; looktwice.Model.load('profile.json')"
REFUSED: dict[str, list[str]] = {
    "look": ["look", "pictures.npz"],
    "dry run": ["score", "pictures.npz", "-o", "out.csv", "--dry-run"],
    "score": ["score", "pictures.npz", "-o", "out.csv"],
    "evaluate": ["evaluate", "pictures.npz"],
    "serve": ["serve", "--port", "0"],
    "score on Ray": ["score", "pictures.npz", "-o", "out", "--engine", "ray"],
    "Model.load": ["-c", LOADED],
    "Ray's Scorer": ["-c", SCORER],
}
UNCONCERNED = {
    "plan": ["plan", "--max-error", "0.3", "-p", "profile.json"],
    "report": ["report"],
}
"""What takes the figures of a profile, and never its classifier."""


def run(words: list[str], folder: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """A process from its very start, as a shell starts it."""
    command = [sys.executable, *(words if words[0] == "-c" else ["-m", "looktwice.cli.app", *words])]
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


forked_run = partial(forked.run, module="support.watched")
"""The same with its libraries imported beforehand."""
Run = Callable[[list[str], Path, dict[str, str]], subprocess.CompletedProcess[str]]


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    """A host to which nobody may come."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listening:
        listening.setblocking(False)
        yield listening


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """A profile of the embedded classifier."""
    path = learn_profile(tmp_path_factory.mktemp("sound") / "profile.json")
    return dict(json.loads(path.read_text()))


EVIL = {
    "command": "command:sh -c 'touch ran' {image}",
    "python": "python:evilmod:f",
    "http": "http://127.0.0.1:PORT/?x=${EVIL_SECRET}",
    "file": "evil.toml",
}


@pytest.mark.parametrize(
    ("kind", "where", "run"),
    [
        pytest.param("python", "profile.json", run, id="python, from the start of the process"),
        *(pytest.param(kind, "profile.json", forked_run, id=kind) for kind in EVIL),
        pytest.param("command", "looktwice.toml", forked_run, id="looktwice.toml"),
    ],
)
def test_a_folder_from_a_stranger_does_nothing_and_one_line_says_what_to_do(
    tmp_path: Path, sound: dict[str, object], listener: socket.socket, kind: str, where: str, run: Run
) -> None:
    home, port = tmp_path / "received", str(listener.getsockname()[1])
    home.mkdir()
    (home / "evilmod.py").write_text("open('ran', 'w').close()\ndef f(image): return 'ant'\n")
    (home / "evil.toml").write_text(
        f'connector = "http"\nurl = "http://127.0.0.1:{port}/"\nheaders = {{ key = "${{EVIL_SECRET}}" }}\n'
    )
    classifier = EVIL[kind].replace("PORT", port)
    if listed := where == "looktwice.toml":
        (home / where).write_text(f"classifiers = [{json.dumps(classifier)}]\nbudget = 5\n")
    write_pictures(home / "pictures.npz", 5)
    (home / "profile.json").write_text(json.dumps(sound if listed else {**sound, "classifier": classifier}))
    (tmp_path / "sitecustomize.py").write_text(SITE)
    environment = {
        **os.environ,
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "EVIL_SECRET": "very-secret-value",
        "WATCHED_BY": str(tmp_path / "watched"),
        "PYTHONPATH": os.pathsep.join(map(str, (tmp_path, TESTS, Path(looktwice.__file__).parent.parent))),
    }
    done = {name: run(words, home, environment) for name, words in (REFUSED | UNCONCERNED).items()}
    said = {name: " ".join(each.stderr.split()) for name, each in done.items()}
    assert not (tmp_path / "watched").exists(), (tmp_path / "watched").read_text()
    assert not (home / "ran").exists()
    assert {name: each.returncode for name, each in done.items()} == {name: name in REFUSED for name in done}, said
    assert [name for name in REFUSED if not re.search("UntrustedError|classifier-untrusted", done[name].stderr)] == []
    assert [name for name in REFUSED if REFUSED[name][0] != "-c" and done[name].stderr.count("\n") != 1] == []
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert not [name for name in said if "very-secret-value" in said[name] + done[name].stdout]
