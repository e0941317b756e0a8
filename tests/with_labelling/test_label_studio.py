"""The recipe of the documents, with a real Label Studio: verdicts become predictions, and labels come back."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from label_studio_sdk import LabelStudio
from support.serving import DEMO, clothes, learn_profile
from support.workshop import run

from looktwice.images.collection import labelled

PROGRAM = os.environ.get("LABEL_STUDIO", ".venv-label-studio/bin/label-studio")
TOKEN = "0123456789abcdef0123456789abcdef01234567"
HEADERS = {"authorization": f"Token {TOKEN}", "content-type": "application/json"}
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "label-elsewhere.md"
PATIENCE = 900
"""Seconds in which it must have made its database and be up; that is its slowest part."""
PICTURES = 20


@dataclass(frozen=True)
class Studio:
    """A Label Studio that runs."""

    url: str
    client: LabelStudio

    def call(self, method: str, path: str, body: object) -> Any:
        """What its API says to JSON."""
        return json.loads(self._reply(Request(self.url + path, json.dumps(body).encode(), HEADERS, method=method)))

    def get(self, path: str) -> bytes:
        """What lies at a path."""
        return self._reply(Request(self.url + path, headers=HEADERS))

    def _reply(self, request: Request) -> bytes:
        try:
            with urlopen(request, timeout=100) as reply:
                return bytes(reply.read())
        except HTTPError as error:
            raise AssertionError(f"{request.full_url}: {error.code} {error.read()[:500]!r}") from error


@pytest.fixture(scope="session")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    folder = tmp_path_factory.mktemp("label-studio")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    quiet = {"COLLECT_ANALYTICS": "false", "LATEST_VERSION_CHECK": "false", "SENTRY_DSN": "", "FRONTEND_SENTRY_DSN": ""}
    local = {"ML_BLOCK_LOCAL_IP": "false", "SSRF_PROTECTION_ENABLED": "false"}
    place = {"LABEL_STUDIO_BASE_DATA_DIR": str(folder), **local}
    command = [PROGRAM, "start", "--no-browser", "--data-dir", str(folder), "--internal-host", "127.0.0.1"]
    command += ["--port", str(port), "--username", "someone@example.com", "--password", "not-so-secret"]
    command += ["--user-token", TOKEN, "--enable-legacy-api-token"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, env={**os.environ, **quiet, **place}, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + PATIENCE
        while not answers(f"{url}/health"):
            assert process.poll() is None, (folder / "log").read_text()[-3000:]
            assert time.monotonic() < end, (folder / "log").read_text()[-3000:]
            time.sleep(1)
        yield Studio(url, LabelStudio(base_url=url, api_key=TOKEN))
    finally:
        process.terminate()
        process.wait(60)


def answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=20) as reply:
            return bool(reply.status == 200)
    except (URLError, OSError):
        return False


@pytest.fixture(scope="session")
def scored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a profile, photos with known truths, and their verdicts."""
    folder = tmp_path_factory.mktemp("scored")
    learn_profile(folder / "profile.json", "jury")
    (folder / "photos" / "späte").mkdir(parents=True)
    for place, data in enumerate(clothes()[:PICTURES]):
        (folder / "photos" / ("späte" if place % 2 else "") / f"{place} & co.png").write_bytes(data)
    done = run("score", folder / "photos", "-p", folder / "profile.json", "-o", folder / "verdicts.jsonl")
    assert done.returncode == 0, done.stderr
    return folder


def test_the_recipe_takes_verdicts_there_and_labels_back(
    studio: Studio, scored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = PAGE.read_text("utf-8").partition("## Label Studio\n")[2].partition("\n## ")[0]
    (there, back), (config,) = (
        re.findall(rf"^```{kind}\n(.*?)^```", page, re.DOTALL | re.MULTILINE) for kind in ("py", "xml")
    )
    space: dict[str, Any] = {}
    monkeypatch.chdir(scored)
    exec(compile(there, PAGE.name, "exec"), space)
    tasks = json.loads((scored / "tasks.json").read_text())
    choices = "".join(f'<Choice value="{label}"/>' for label in sorted(set(true_labels())))
    config = re.sub(r"<Choice .*/>", choices, config, count=1)
    project = int(studio.client.projects.create(title="photos", label_config=config).id)
    created = studio.call("POST", f"/api/projects/{project}/import?return_task_ids=true", tasks)
    assert (created["task_count"], created["prediction_count"]) == (PICTURES, PICTURES)
    by_file = {task.data["file"]: task for task in studio.client.tasks.list(project=project, fields="all")}
    truths = dict(zip(sorted(by_file), true_labels(), strict=True))
    _, *rest = sorted(by_file)
    for file in rest:
        studio.client.annotations.create(id=by_file[file].id, result=choice(truths[file]))
    (scored / "project.json").write_bytes(studio.get(f"/api/projects/{project}/export?exportType=JSON_MIN"))
    exec(compile(back, PAGE.name, "exec"), space)
    known = {each.name: each.truth for each in labelled(scored / "photos", scored / "labels.csv")}
    assert known == {file: truths[file] for file in rest}


def choice(said: str) -> list[dict[str, object]]:
    return [{"from_name": "label", "to_name": "image", "type": "choices", "value": {"choices": [said]}}]


def true_labels() -> list[str]:
    with np.load(DEMO / "pictures.npz") as file:
        names = [str(name) for name in file["class_names"]]
        return [names[label] for label in file["labels"][1000 : 1000 + PICTURES]]
