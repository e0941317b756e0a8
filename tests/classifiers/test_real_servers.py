"""Real model servers, on loopback, with the embedded classifier: they must say exactly what it says here.

`make test-servers` installs them beside the project and runs this file.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

import cv2
import pytest
from conformance.replica import DEMO, labels_of, meant, model, pictures

from looktwice.classifiers.base import Answer, AnyClassifier
from looktwice.classifiers.chat.model import Asked
from looktwice.classifiers.chat.vendors import Completions
from looktwice.classifiers.oip import OipClassifier, Request, connect as connect_oip
from looktwice.classifiers.registry import connect, read_toml
from looktwice.errors import ClassifierError, TransientError
from looktwice.views.base import AS_DESCRIBED

HERE = Path(__file__).parents[1]
HOME = HERE.parent / ".venv-servers"
COUNT = 200
Host = Callable[[str], str]
READY = {
    "bentoml": "/readyz",
    "kserve": "/v2/health/ready",
    "litserve": "/health",
    "litserve_chat": "/health",
    "mlserver": "/v2/health/ready",
    "triton": "/v2/health/ready",
}
"""Where each server tells that it is ready."""
LOOK = {name: read_toml(DEMO / "fashion.toml")[name] for name in ("crop", "channels", "scale", "mean", "std")}


@contextmanager
def running(name: str) -> Iterator[str]:
    """The host and port of a server that runs for as long as the context."""
    home = HOME / name.partition("_")[0]
    if not (home / "installed").is_file():
        pytest.skip(f"{home.name} is not installed; run: make test-servers")
    with tempfile.TemporaryDirectory() as folder:
        port = _free_port()
        program = str(HERE / "servers" / f"{name}_fashion.py")
        command = [str(home / "bin" / "python"), program, _model(folder), str(port)]
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
        try:
            _wait(process, f"http://127.0.0.1:{port}{READY[name]}", Path(folder) / "log")
            yield f"127.0.0.1:{port}"
        finally:
            _end(process)


def _model(folder: str) -> str:
    """The model with its description and labels, in a folder of their own."""
    for file in ("fashion.onnx", "fashion.toml"):
        shutil.copy(DEMO / file, folder)
    (Path(folder) / "fashion.labels.txt").write_text("\n".join(model().labels) + "\n")
    return str(Path(folder) / "fashion.onnx")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    until = time.monotonic() + 90
    while time.monotonic() < until and process.poll() is None:
        with suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=2) as reply:
            if reply.status == 200:
                return
        time.sleep(0.1)
    pytest.fail(f"the server did not start; its last words:\n{log.read_text('utf-8', 'replace')[-3000:]}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and all its workers, some of which would outlive it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    with suppress(subprocess.TimeoutExpired):
        process.wait(3)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """Gives the host and port of a server by its name; each is started when it is first asked for."""
    with ExitStack() as stack:
        yield cache(lambda name: stack.enter_context(running(name)))


class Way(NamedTuple):
    """A server, and one way to ask it."""

    server: str
    preset: str | None = None
    settings: Mapping[str, object] = LOOK
    """For the Open Inference Protocol, where no preset is named."""
    nonsense: object = Request(b'{"inputs": [{"name": "none"}]}', {"content-type": "application/json"})
    """What the connector would send for a picture that is none."""
    chat: Mapping[str, object] | None = None
    """For OpenAI's chat completions."""

    def connect(self, host: str) -> AnyClassifier:
        if self.chat:
            return Completions.connect("", {"url": f"http://{host}/v1", "model": "fashion", **self.chat})
        if self.preset:
            return connect(f"preset:{self.preset.format(host=host)}")
        return connect_oip("", {"url": f"http://{host}/fashion", **self.settings})


LABELLED = {**LOOK, "labels": model().labels}
NONSENSE = Asked(b'{"model": "fashion", "messages": "none"}', AS_DESCRIBED)
WAYS = {
    "MLServer": Way("mlserver", settings=LABELLED),
    "Triton, in binary": Way("triton", settings=LABELLED),
    "KServe": Way("kserve", settings=LABELLED),
    "KServe, in binary": Way("kserve", settings={**LABELLED, "binary": True}),
    "KServe, first protocol": Way("kserve", "kserve-v1?host={host}&model=fashion", nonsense=b'{"instances": [{}]}'),
    "LitServe": Way("litserve", "litserve?host={host}", nonsense=b'{"image": "AAAA"}'),
    "LitServe, as a chat model": Way("litserve_chat", nonsense=NONSENSE, chat={"labels": model().labels}),
    "LitServe, as a chat model in plain words": Way(
        "litserve_chat", nonsense=NONSENSE, chat={"labels": model().labels, "answer": "plain", "picture": "last"}
    ),
    "BentoML": Way("bentoml", "bentoml?host={host}&api=classify", nonsense=b"no form at all"),
}
EVERY = pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())


@asynccontextmanager
async def closing(classifier: AnyClassifier) -> AsyncIterator[AnyClassifier]:
    try:
        yield classifier
    finally:
        await classifier.close()


async def ask(classifier: AnyClassifier, count: int) -> list[Answer]:
    """The answers about some pictures, in calls as large and as many at once as the server likes."""
    prepared = [await asyncio.to_thread(classifier.prepare, image) for image in pictures(count)]
    limits = classifier.limits
    places = asyncio.Semaphore(limits.concurrency)

    async def call(start: int) -> list[Answer]:
        async with places:
            return await classifier.label(prepared[start : start + limits.batch])

    called = await asyncio.gather(*(call(start) for start in range(0, count, limits.batch)))
    return meant(classifier, [answer for answers in called for answer in answers])


@EVERY
async def test_every_label_is_that_of_the_local_model(host: Host, way: Way) -> None:
    async with closing(way.connect(host(way.server))) as classifier:
        said = [answer.label for answer in await ask(classifier, COUNT)]
    assert said == labels_of(pictures(COUNT))


@EVERY
async def test_nonsense_is_refused_in_the_servers_words_and_later_questions_are_answered(host: Host, way: Way) -> None:
    async with closing(way.connect(host(way.server))) as classifier:
        await ask(classifier, 1)
        with pytest.raises(ClassifierError, match=r"answered \d\d\d: ['\"]"):
            await classifier.label([way.nonsense])
        # Some servers close the connection after an error of their own, without a word.
        with suppress(TransientError):
            await ask(classifier, 1)
        said = [answer.label for answer in await ask(classifier, 1)]
    assert said == labels_of(pictures(1))


async def test_triton_tells_what_it_takes(host: Host) -> None:
    classifier = connect(f"oip+http://{host('triton')}/fashion")
    assert isinstance(classifier, OipClassifier)
    assert classifier.model.binary


# The whole pipeline, from the command line


def _described(name: str, host: str) -> str:
    """The description of a server as a user writes it."""
    if name == "litserve":
        return f'preset = "litserve"\nvalues = {{ host = "{host}" }}\nlabels = {json.dumps(model().labels)}\n'
    lines = [f"{setting} = {json.dumps(value)}" for setting, value in LABELLED.items()]
    return "\n".join(['connector = "oip"', f'url = "http://{host}/fashion"', *lines])


def _road(folder: Path, classifier: str) -> tuple[str, list[object]]:
    """The verdicts that `score` writes and those that `look` prints, after `fit`."""
    cv2.imwrite(str(folder / "photo.png"), pictures(300)[299])
    _run(folder, "fit", str(DEMO / "pictures.npz"), "--take", ":120", "-c", classifier, "--views", "mirror zoom:1.15")
    _run(folder, "score", str(DEMO / "pictures.npz"), "--take", "120:160", "-o", "verdicts.csv")
    looked = json.loads(_run(folder, "look", "photo.png", "--json"))
    return (folder / "verdicts.csv").read_text(), looked


def _run(folder: Path, *arguments: str) -> str:
    program = str(Path(sys.executable).parent / "looktwice")
    command = [program, *arguments, "--ledger", str(folder / "ledger.sqlite")]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{arguments[0]}: {done.stdout}{done.stderr}"
    return done.stdout


SAID = {"mlserver": 10, "litserve": 0}
"""How many labels each server ranks with scores; MLServer gives the logits of all ten, LitServe a label alone."""


@pytest.mark.parametrize("name", SAID)
def test_fit_score_and_look_give_the_verdicts_of_the_local_model(host: Host, name: str, tmp_path: Path) -> None:
    shutil.copytree(DEMO, tmp_path / "local")
    with (tmp_path / "local" / "fashion.toml").open("a") as file:
        file.write(f"scores = {SAID[name]}\n")
    (tmp_path / "server").mkdir()
    (tmp_path / "server" / "server.toml").write_text(_described(name, host(name)))
    local = _road(tmp_path / "local", "fashion.toml")
    assert _road(tmp_path / "server", "server.toml") == local
    assert local[0].count("\n") == 41
    assert f",{'scores' if SAID[name] else 'labels'}," in local[0]
