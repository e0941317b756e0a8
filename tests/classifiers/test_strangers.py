"""Real processes in a folder that somebody sent: nothing of it is imported, run, resolved, read or sent."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.serving import learn_profile
from support.workshop import command, write_pictures

import looktwice

WATCH = """
import os, sys
WATCHED = ("socket.connect", "socket.getaddrinfo", "socket.gethostby", "subprocess.", "os.exec", "os.posix_spawn",
           "os.fork", "os.system")
def watch(event, details):
    if event.startswith(WATCHED) or (event == "import" and "evilmod" in str(details[0])):
        note(f"{event} {details}")
def note(line):
    with open(os.environ["WATCHED_BY"], "a") as file:
        file.write(line + "\\n")
class Watched(type(os.environ)):
    def __getitem__(self, name):
        callers = [sys._getframe(1), sys._getframe(1).f_back or sys._getframe(1)]
        if name == "EVIL_SECRET" and any("looktwice" in frame.f_code.co_filename for frame in callers):
            note("the secret was read")
        return super().__getitem__(name)
os.environ.__class__ = Watched
sys.addaudithook(watch)
"""
"""Notes in a file what Python reports of processes, connections, names of hosts, the module, and the variable."""
SCORER = "from looktwice.ray import Scorer; Scorer('profile.json')"
LOADED = "import looktwice; looktwice.Model.load('profile.json')"
REFUSED = {
    "look": command("look", "pictures.npz"),
    "dry run": command("score", "pictures.npz", "-o", "out.csv", "--dry-run"),
    "score": command("score", "pictures.npz", "-o", "out.csv"),
    "evaluate": command("evaluate", "pictures.npz"),
    "serve": command("serve", "--port", 0),
    "score on Ray": command("score", "pictures.npz", "-o", "out", "--engine", "ray"),
    "Model.load": [sys.executable, "-c", LOADED],
    "Ray's Scorer": [sys.executable, "-c", SCORER],
}
UNCONCERNED = {
    "plan": command("plan", "--max-error", 0.3, "-p", "profile.json"),
    "report": command("report"),
}
"""What takes the figures of a profile, and never its classifier."""


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


@pytest.mark.parametrize(("kind", "where"), [*((kind, "profile.json") for kind in EVIL), ("command", "looktwice.toml")])
def test_a_folder_from_a_stranger_does_nothing_and_one_line_says_what_to_do(
    tmp_path: Path, sound: dict[str, object], listener: socket.socket, kind: str, where: str
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
    (tmp_path / "sitecustomize.py").write_text(WATCH)
    environment = {
        **os.environ,
        "XDG_DATA_HOME": str(tmp_path / "data"),
        "EVIL_SECRET": "very-secret-value",
        "WATCHED_BY": str(tmp_path / "watched"),
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(Path(looktwice.__file__).parent.parent)]),
    }
    done = {
        name: subprocess.run(words, cwd=home, env=environment, capture_output=True, text=True, timeout=120, check=False)
        for name, words in (REFUSED | UNCONCERNED).items()
    }
    said = {name: " ".join(each.stderr.split()) for name, each in done.items()}
    assert not (tmp_path / "watched").exists(), (tmp_path / "watched").read_text()
    assert not (home / "ran").exists()
    assert {name: each.returncode for name, each in done.items()} == {name: name in REFUSED for name in done}, said
    assert [name for name in REFUSED if not re.search("UntrustedError|classifier-untrusted", done[name].stderr)] == []
    assert [name for name in REFUSED if done[name].args[1] == "-m" and done[name].stderr.count("\n") != 1] == []
    with pytest.raises(BlockingIOError):
        listener.accept()
    assert not [name for name in said if "very-secret-value" in said[name] + done[name].stdout]
