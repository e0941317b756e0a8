"""A real Label Studio: tasks in, annotations out, and predictions that it asks the service for."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import numpy as np
import pytest
from label_studio_sdk import LabelStudio
from serving import DEMO, clothes, form, learn_profile, started
from workshop import run

from looktwice.images.collection import labelled
from looktwice.service.label_interface import NONE, UNSURE

PROGRAM = os.environ.get("LABEL_STUDIO", ".venv-label-studio/bin/label-studio")
TOKEN = "0123456789abcdef0123456789abcdef01234567"
PATIENCE = 900
"""Seconds in which it must have made its database and be up; that is its slowest part."""
PICTURES = 20


@dataclass(frozen=True)
class Studio:
    """A Label Studio that runs."""

    url: str
    client: LabelStudio

    def call(self, method: str, path: str, body: object = None, kind: str = "application/json") -> Any:
        """What its API says; a body that is not bytes is sent as JSON."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"authorization": f"Token {TOKEN}", "content-type": kind}
        try:
            with urlopen(Request(self.url + path, data, headers, method=method), timeout=100) as reply:
                return json.loads(reply.read() or b"null")
        except HTTPError as error:
            raise AssertionError(f"{method} {path}: {error.code} {error.read()[:500]!r}") from error

    def project(self, config: Path) -> int:
        return int(self.client.projects.create(title="photos", label_config=config.read_text("utf-8")).id)

    def predict(self, project: int) -> dict[int, dict[str, Any]]:
        """The predictions by task, after somebody has asked for those of all tasks."""
        wanted = {"selectedItems": {"all": True, "excluded": []}, "ordering": [], "project": project}
        self.call("POST", f"/api/dm/actions?id=retrieve_tasks_predictions&project={project}", wanted)
        return {told["task"]: told for told in self.call("GET", f"/api/predictions/?project={project}")}


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
    done = run("score", folder / "photos", "-p", folder / "profile.json", "-o", folder / "verdicts.csv")
    assert done.returncode == 0, done.stderr
    where = (folder / "verdicts.csv", folder / "photos", "-p", folder / "profile.json")
    done = run("export", *where, "-o", folder / "tasks.json")
    assert done.returncode == 0, done.stderr
    return folder


def choice(said: str) -> list[dict[str, object]]:
    return [{"from_name": "label", "to_name": "image", "type": "choices", "value": {"choices": [said]}}]


@pytest.mark.parametrize("kind", ["JSON", "JSON_MIN"])
def test_tasks_that_were_annotated_come_back_as_the_same_truths(
    studio: Studio, scored: Path, tmp_path: Path, kind: str
) -> None:
    project = studio.project(scored / "tasks.xml")
    tasks = json.loads((scored / "tasks.json").read_text())
    created = studio.call("POST", f"/api/projects/{project}/import?return_task_ids=true", tasks)
    assert (created["task_count"], created["prediction_count"]) == (PICTURES, PICTURES)
    found = {task.data["file"]: task for task in studio.client.tasks.list(project=project, fields="all")}
    assert {file: found[file].predictions[0].score for file in found} == {
        task["data"]["file"]: task["predictions"][0]["score"] for task in tasks
    }
    truths = dict(zip(sorted(found), true_labels(), strict=True))
    unsure, other, skipped, twice, untouched, *rest = sorted(found)
    for file in rest:
        studio.client.annotations.create(id=found[file].id, result=choice(truths[file]))
    studio.client.annotations.create(id=found[unsure].id, result=choice(UNSURE))
    studio.client.annotations.create(id=found[other].id, result=choice(NONE))
    studio.client.annotations.create(id=found[skipped].id, result=[], was_cancelled=True)
    studio.client.annotations.create(id=found[twice].id, result=choice("Bag"))
    studio.client.annotations.create(id=found[twice].id, result=choice(truths[twice]))
    everything = studio.call("GET", f"/api/projects/{project}/export?exportType={kind}&download_all_tasks=true")
    (tmp_path / "result.json").write_text(json.dumps(everything))
    done = run("import", tmp_path / "result.json", "-o", tmp_path / "labels.csv")
    assert done.returncode == 0, done.stderr
    known = {picture.name: picture for picture in labelled(scored / "photos", tmp_path / "labels.csv")}
    assert {file: picture.truth for file, picture in known.items() if picture.truth} == {
        file: truths[file] for file in (*rest, twice)
    }
    assert set(known[other].excluded) == set(found[other].data["named"])
    assert f"{unsure},," in (tmp_path / "labels.csv").read_text()
    assert {skipped, untouched, unsure}.isdisjoint(known)


def true_labels() -> list[str]:
    with np.load(DEMO / "pictures.npz") as file:
        names = [str(name) for name in file["class_names"]]
        return [names[label] for label in file["labels"][1000 : 1000 + PICTURES]]


@pytest.mark.parametrize("key", ["legacy", "personal"])
def test_label_studio_asks_the_service_for_predictions_itself(studio: Studio, scored: Path, key: str) -> None:
    project = studio.project(scored / "tasks.xml")
    tasks = [{"data": task["data"]} for task in json.loads((scored / "tasks.json").read_text())]
    for name, data in (("one.png", clothes()[0]), ("two.png", clothes()[1])):
        kind, body = form((name, data))
        studio.call("POST", f"/api/projects/{project}/import", body, kind)
    tasks.append({"data": {"image": "http://127.0.0.1:9/secret.png", "file": "elsewhere"}})
    studio.call("POST", f"/api/projects/{project}/import", tasks)
    secret = TOKEN if key == "legacy" else studio.call("POST", "/api/token/")["token"]
    words = ("serve", "-p", scored / "profile.json", "--port", "0", "--label-studio", studio.url)
    with patch.dict(os.environ, LABEL_STUDIO_API_KEY=secret), started(*words) as service:
        backend = studio.call("POST", "/api/ml/", {"project": project, "url": service.url, "title": "looktwice"})
        assert backend["state"] == "CO"
        assert studio.call("GET", f"/api/ml/{backend['id']}/versions")["versions"] == [backend["model_version"]]
        predictions = studio.predict(project)
        looked = [service.post("/v1/look", data).json() for data in clothes()[:2]]
    found = {task.id: task.data for task in studio.client.tasks.list(project=project, fields="all")}
    told = {found[task].get("file") or found[task]["image"]: told for task, told in predictions.items()}
    uploaded = [told[image] for image in sorted(told) if image.startswith("/data/upload/")]
    assert sorted((round(each["score"], 6), chosen(each)) for each in uploaded) == sorted(
        (round(each["confidence"], 6), each["label"]) for each in looked
    )
    assert "elsewhere" not in told
    exported = {
        task["data"]["file"]: task["predictions"][0] for task in json.loads((scored / "tasks.json").read_text())
    }
    assert {file: chosen(told[file]) for file in exported} == {file: chosen(each) for file, each in exported.items()}
    assert all(told[file]["score"] == pytest.approx(each["score"], abs=1e-5) for file, each in exported.items())


def chosen(prediction: dict[str, Any]) -> str:
    return str(prediction["result"][0]["value"]["choices"][0])
