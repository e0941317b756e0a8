"""What becomes of a picture that was not scored follows from its cause: exit codes, statuses and counters."""

from __future__ import annotations

import asyncio
import re
import shutil
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import cv2
import numpy as np
import pytest
from aiohttp import web
from prometheus_client.parser import text_string_to_metric_families
from support.errors import code_in
from support.serving import Service, started
from support.waiting import until
from support.workshop import run, start

from looktwice.engine.query import Cause
from looktwice.service.looks import REFUSALS

SIDE, SMALLEST, LARGEST = 16, 8, 32
NO_LABEL, GARBAGE, SLOW, FORBIDDEN, NEW = 60, 90, 120, 150, 180
"""Levels of grey that the classifier does not answer as it should, and one that is answered well."""
GOOD = 40
"""Pictures whose answers are in the ledger."""


@dataclass
class Grey:
    """A classifier of grey pictures over HTTP: dark or bright, unless the level asks for trouble."""

    url: str = ""
    slow: threading.Event = field(default_factory=threading.Event)
    """A slow answer is on its way."""
    release: threading.Event = field(default_factory=threading.Event)
    """It may come."""

    async def classify(self, request: web.Request) -> web.Response:
        pixels = cv2.imdecode(np.frombuffer(await request.read(), np.uint8), cv2.IMREAD_GRAYSCALE)
        assert pixels is not None
        level = int(pixels.mean())
        if level == FORBIDDEN:
            return web.Response(status=401, text="no such key")
        if level == GARBAGE:
            return web.Response(body=b"\x00 oops")
        if level == SLOW:
            self.slow.set()
            await asyncio.to_thread(self.release.wait, 60)
        return web.json_response({"label": [] if level == NO_LABEL else "bright" if level > 127 else "dark"})


@contextmanager
def grey() -> Iterator[Grey]:
    """The classifier in a thread of its own."""
    classifier, loop, ready = Grey(), asyncio.new_event_loop(), threading.Event()

    async def serve() -> None:
        app = web.Application()
        app.add_routes([web.post("/", classifier.classify)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        classifier.url = f"http://127.0.0.1:{runner.addresses[0][1]}/"
        ready.set()
        try:
            await stop.wait()
        finally:
            await runner.cleanup()

    stop = asyncio.Event()
    thread = threading.Thread(target=loop.run_until_complete, args=(serve(),))
    thread.start()
    ready.wait()
    try:
        yield classifier
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@dataclass(frozen=True)
class Place:
    """Labelled pictures with known answers, and a profile."""

    folder: Path
    classifier: Grey

    @property
    def asking(self) -> tuple[object, ...]:
        return ("--ledger", self.folder / "ledger.db", "--canaries", 0)

    def words(self, name: str, tmp_path: Path, pictures: Path) -> tuple[object, ...]:
        """The command that asks about these pictures."""
        profile = ("--profile", self.folder / "profile.json")
        learning = ("-c", self.folder / "grey.toml", "--views", "mirror", "--calibrator", "probit")
        own: dict[str, tuple[object, ...]] = {
            "look": profile,
            "score": (*profile, "--out", tmp_path / "verdicts.csv"),
            "fit": (*learning, "--out", tmp_path / "new.json"),
            "evaluate": profile,
        }
        return (name, pictures, *own[name], *self.asking)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("causes")
    with grey() as classifier:
        lines = ['connector = "http"', f'url = "{classifier.url}"', 'label = "label"', "concurrency = 1"]
        (folder / "grey.toml").write_text(
            "\n".join([*lines, f"encoding = {{ min_side = {SMALLEST}, max_side = {LARGEST} }}"])
        )
        prepared = Place(folder, classifier)
        write_good(folder / "good")
        done = run(*prepared.words("fit", folder, folder / "good"))
        assert done.returncode == 0, done.stderr
        (folder / "new.json").rename(folder / "profile.json")
        yield prepared


def write_good(folder: Path) -> None:
    """Pictures in a folder for each class, a few of which are in the wrong one."""
    for label in ("dark", "bright"):
        (folder / label).mkdir(parents=True)
    for n in range(GOOD):
        right = "dark" if n % 2 else "bright"
        wrong = "bright" if n % 2 else "dark"
        level = 10 + n if n % 2 else 200 + n
        cv2.imwrite(str(folder / (wrong if n % 10 < 2 else right) / f"{n}.png"), square(level))


def square(level: int, side: int = SIDE) -> np.ndarray[tuple[int, int], np.dtype[np.uint8]]:
    return np.full((side, side), level, np.uint8)


def picture(cause: Cause) -> bytes:
    """The file of a picture that is not scored for this cause."""
    if cause is Cause.UNREADABLE:
        return b"no picture"
    level = {Cause.NO_LABEL: NO_LABEL, Cause.CLASSIFIER: GARBAGE, Cause.STOPPED: SLOW}.get(cause, NEW)
    pixels = np.full((2, 60), level, np.uint8) if cause is Cause.UNFIT else square(level)
    done, data = cv2.imencode(".png", pixels)
    assert done
    return data.tobytes()


# The command line


@pytest.mark.parametrize("name", ["look", "score", "fit", "evaluate"])
@pytest.mark.parametrize("cause", [cause for cause in Cause if cause is not Cause.UNFAMILIAR])  # see test_familiarity
def test_a_command_that_could_not_score_a_picture_exits_with_3(
    place: Place, tmp_path: Path, cause: Cause, name: str
) -> None:
    pictures = tmp_path / "pictures"
    write_good(pictures)
    (pictures / "bright" / "bad.png").write_bytes(picture(cause))
    words = place.words(name, tmp_path, pictures)
    budget = ("--budget", "+0") if cause is Cause.BUDGET else ()
    done = interrupted(place, tmp_path, words) if cause is Cause.STOPPED else run(*words, *budget)
    assert done.returncode == 3, done.stderr
    assert "bad.png" in done.stderr
    assert "Traceback" not in done.stderr
    if name == "fit":
        said = " ".join(done.stderr.split())
        assert (tmp_path / "new.json").exists() == (cause is not Cause.STOPPED)
        assert ("error[unscored]: " in said) == (cause is Cause.STOPPED)
        assert (f"{GOOD} of {GOOD + 1} pictures" in said) == (cause is Cause.BUDGET)
        assert ("Next, " in said) == (cause not in (Cause.STOPPED, Cause.BUDGET))


def test_a_fit_that_could_ask_about_too_few_names_the_reason(place: Place, tmp_path: Path) -> None:
    write_good(tmp_path / "pictures")
    words = place.words("fit", tmp_path, tmp_path / "pictures")
    done = run(*words, "--ledger", tmp_path / "ledger.db", "--budget", 16, "--label-check", 0)
    assert (done.returncode, code_in(done.stderr)) == (3, "unscored")
    assert re.search(rf"\d of {GOOD} pictures", done.stderr)


def test_ctrl_c_leaves_no_profile_of_the_first_pictures(place: Place, tmp_path: Path) -> None:
    classifier, pictures = ("-c", place.folder / "grey.toml"), tmp_path / "pictures"
    jury = ("fit", place.folder / "good", *classifier, "--views", "mirror", "-o", tmp_path / "jury.json")
    assert run(*jury, *place.asking).returncode == 0
    write_good(pictures)
    (pictures / "bright" / "slow.png").write_bytes(picture(Cause.STOPPED))
    words = ("borrow", tmp_path / "jury.json", "--pictures", pictures, *classifier, "-o", tmp_path / "new.json")
    done = interrupted(place, tmp_path, (*words, *place.asking))
    assert done.returncode == 3, done.stderr
    assert code_in(done.stderr) == "unscored"
    assert not (tmp_path / "new.json").exists()


def interrupted(place: Place, tmp_path: Path, words: Sequence[object]) -> subprocess.CompletedProcess[str]:
    """A run with a ledger of its own that is stopped by Ctrl-C while its first question is on its way."""
    place.classifier.slow.clear()
    place.classifier.release.clear()
    shutil.copy(place.folder / "ledger.db", tmp_path / "ledger.db")
    trial = ("--label-check", "0") if words[0] in ("fit", "borrow") else ()
    # Of the ledgers the last one counts; without a trial the other pictures are answered from it, and only one is not.
    own = (*words, "--ledger", tmp_path / "ledger.db", *trial)
    said = tmp_path / "said"
    with said.open("w") as stderr, start(*own, err=stderr.fileno()) as process:
        assert place.classifier.slow.wait(60)
        process.send_signal(signal.SIGINT)
        until(lambda: "Stopping" in said.read_text())
        place.classifier.release.set()
        code = process.wait(60)
    return subprocess.CompletedProcess([str(word) for word in own], code, "", said.read_text())


@pytest.mark.parametrize("name", ["fit", "evaluate"])
def test_a_command_that_could_score_no_picture_exits_with_3(place: Place, tmp_path: Path, name: str) -> None:
    for label in ("dark", "bright"):
        (tmp_path / "pictures" / label).mkdir(parents=True)
        for number in range(6):
            (tmp_path / "pictures" / label / f"{number}.png").write_bytes(b"no picture")
    done = run(*place.words(name, tmp_path, tmp_path / "pictures"))
    assert done.returncode == 3, done.stderr
    assert code_in(done.stderr) == "unscored"


def test_a_burst_with_a_bad_photo_exits_with_3(place: Place, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no picture")
    good = place.folder / "good" / "dark" / "3.png"
    done = run("look", "--burst", good, tmp_path / "bad.png", "--profile", place.folder / "profile.json", *place.asking)
    assert done.returncode == 3, done.stderr
    assert "bad.png" in done.stderr


def test_a_run_that_an_error_ends_exits_with_1(place: Place, tmp_path: Path) -> None:
    cv2.imwrite(str(tmp_path / "forbidden.png"), square(FORBIDDEN))
    done = run(*place.words("look", tmp_path, tmp_path / "forbidden.png"))
    assert (done.returncode, "401" in done.stderr) == (1, True), done.stderr


# The service

STATUSES = {
    Cause.UNREADABLE: (422, "picture"),
    Cause.UNFIT: (422, "picture"),
    Cause.UNFAMILIAR: (422, "unfamiliar"),
    Cause.BUDGET: (429, "budget"),
    Cause.STOPPED: (503, "unavailable"),
    Cause.NO_LABEL: (502, "classifier"),
    Cause.CLASSIFIER: (502, "classifier"),
}
"""The HTTP status of a look, and the code by which refusals are counted."""


def test_every_cause_has_its_refusal() -> None:
    assert set(REFUSALS) == set(STATUSES) == set(Cause)


@pytest.mark.parametrize("cause", [cause for cause in Cause if cause is not Cause.UNFAMILIAR])  # see test_familiarity
def test_the_service_refuses_a_picture_by_its_cause(place: Place, cause: Cause) -> None:
    bad = picture(cause)
    if cause is Cause.STOPPED:  # a refused key stops the service for a while
        bad = cv2.imencode(".png", square(FORBIDDEN))[1].tobytes()
    good = (place.folder / "good" / "dark" / "3.png").read_bytes()
    status, code = STATUSES[cause]
    budget = ("--budget", "+0") if cause is Cause.BUDGET else ()
    words = ("--profile", place.folder / "profile.json", "--port", 0, *place.asking, *budget)
    with started("serve", *words) as service:
        several = service.form("/v1/looks", ("good.png", good), ("bad.png", bad))
        alone = service.post("/v1/look", bad)
        assert refusals(service)[code] >= 2
    assert (alone.status, several.status) == (status, 200), (alone.body, several.body)
    for problem in (alone.json(), several.json()["verdicts"][1]["problem"]):
        assert (problem["status"], problem["code"]) == (status, code)


def refusals(service: Service) -> dict[str, float]:
    families = text_string_to_metric_families(service.get("/metrics").body.decode())
    (refused,) = [family for family in families if family.name == "looktwice_refusals"]
    return {sample.labels["code"]: sample.value for sample in refused.samples if sample.name.endswith("_total")}
