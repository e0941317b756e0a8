"""The ML backend, with requests as Label Studio 1.23 sends them, and a Label Studio that keeps only pictures.

`make test-labelling` has a real one.
"""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from serving import Reply, Service, clothes, learn_profile, serving

from looktwice.errors import LookTwiceError
from looktwice.service import Limits
from looktwice.service.label_interface import configuration
from looktwice.service.label_studio import Studio

RECORDED = json.loads((Path(__file__).parent / "label_studio_requests.json").read_text())
KEY = "the-key-of-label-studio"
REFRESH = "head.refresh.tail"
LIMITS = {"body": 200_000, "pixels": 40_000}
PNG = "data:image/png;base64,"


class Pictures(BaseHTTPRequestHandler):
    """Gives a picture to whoever has the key, a short-lived token for a long-lived one, and bad replies."""

    asked: list[tuple[str, str]]

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers.get("authorization", "")))
        if self.path.startswith("/elsewhere"):
            self.send_response(302)
            self.send_header("location", "http://127.0.0.1:9/secret")
            self.end_headers()
        elif self.asked[-1][1] not in (f"Token {KEY}", "Bearer short-lived"):
            self._reply(401, KEY.encode())
        else:
            self._reply(200, b"x" * 300_000 if self.path == "/large" else clothes()[0])

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.asked.append((self.path, body.decode()))
        self._reply(200, b'{"access": "short-lived"}')

    def _reply(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def studio() -> Iterator[ThreadingHTTPServer]:
    Pictures.asked = []
    with ThreadingHTTPServer(("127.0.0.1", 0), Pictures) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn_profile(tmp_path_factory.mktemp("backend") / "profile.json")


@pytest.fixture(scope="module")
def service(profile: Path, studio: ThreadingHTTPServer) -> Iterator[Service]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LABEL_STUDIO_API_KEY", KEY)
        with serving(profile, LIMITS, label_studio=address(studio)) as running:
            yield running


def address(studio: ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{studio.server_address[1]}"


def replayed(service: Service, path: str, **headers: str) -> Reply:
    """The reply to the request that Label Studio sent to this path."""
    told = next(each for each in RECORDED if each["path"] == path)
    body = None if told["body"] is None else json.dumps(told["body"]).encode()
    return service.ask(told["method"], path, body, {**told["headers"], **headers})


def predictions(service: Service, *pictures: object) -> list[dict[str, Any]]:
    config = configuration(["Shirt", "Dress", "Bag"])
    body = {"tasks": [{"id": n, "data": {"image": p}} for n, p in enumerate(pictures)], "label_config": config}
    reply = service.post("/predict", json.dumps(body).encode(), "application/json")
    assert reply.status == 200, reply.body
    return list(reply.json()["results"])


def test_label_studios_own_requests_are_answered(service: Service) -> None:
    assert replayed(service, "/health").json()["status"] == "UP"
    version = replayed(service, "/setup").json()["model_version"]
    assert replayed(service, "/versions").json() == {"versions": [version]}
    first, second = replayed(service, "/predict").json()["results"]
    looked = service.post("/v1/look", clothes()[0]).json()
    assert first["score"] == pytest.approx(looked["confidence"], abs=1e-6)
    assert first["model_version"] == version
    # The recorded project offers Bag and Shirt alone.
    offered = looked["label"] in ("Bag", "Shirt")
    assert bool(first["result"]) == offered
    assert second["score"] == pytest.approx(service.post("/v1/look", clothes()[2]).json()["confidence"], abs=1e-6)


def test_pictures_come_from_data_urls_and_from_the_named_host_with_the_key(
    service: Service, studio: ThreadingHTTPServer
) -> None:
    Pictures.asked.clear()
    embedded = PNG + base64.b64encode(clothes()[0]).decode()
    told = predictions(service, embedded, "/data/upload/1/x.png", f"{address(studio)}/data/x.png?a=b")
    assert told[0] == told[1] == told[2]
    assert sorted(Pictures.asked) == [(p, f"Token {KEY}") for p in ("/data/upload/1/x.png", "/data/x.png?a=b")]


@pytest.mark.parametrize(
    "picture",
    [
        "http://127.0.0.1:9/x.png",
        "http://localhost/x.png",
        "https://127.0.0.1/x.png",
        "//127.0.0.1:9/x.png",
        "file:///etc/passwd",
        "s3://bucket/x.png",
        "http://me:secret@{host}/x.png",
        "http://{host}@127.0.0.1:9/x.png",
        "http://[::1",
        "",
        None,
        7,
        PNG + "%%%",
        "data:image/png,abc",
    ],
)
def test_no_other_address_is_ever_asked(service: Service, studio: ThreadingHTTPServer, picture: object) -> None:
    Pictures.asked.clear()
    if isinstance(picture, str):
        picture = picture.replace("{host}", f"127.0.0.1:{studio.server_address[1]}")
    (told,) = predictions(service, picture)
    assert set(told) == {"error"}, told
    assert Pictures.asked == []


@pytest.mark.parametrize(("path", "why"), [("/elsewhere", "it answered 302"), ("/large", "not in time and size")])
def test_redirects_and_large_replies_are_refused_and_others_answered(service: Service, path: str, why: str) -> None:
    bad, good = predictions(service, path, PNG + base64.b64encode(clothes()[1]).decode())
    assert why in bad["error"]
    assert good["score"] > 0


def test_a_personal_access_token_is_exchanged_and_the_key_is_never_told(
    profile: Path, studio: ThreadingHTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    Pictures.asked.clear()
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", REFRESH)
    with serving(profile, LIMITS, label_studio=address(studio)) as running:
        assert "score" in predictions(running, "/a.png")[0]
        assert "score" in predictions(running, "/b.png")[0]
    assert [path for path, _ in Pictures.asked] == ["/api/token/refresh/", "/a.png", "/b.png"]
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", "wrong-" + KEY)
    with serving(profile, LIMITS, label_studio=address(studio)) as running:
        (told,) = predictions(running, "/a.png")
    assert "it answered 401" in told["error"]
    assert KEY not in told["error"]


def test_the_guards_hold_and_label_studio_sends_the_token_as_a_password(
    profile: Path, studio: ThreadingHTTPServer, tmp_path: Path
) -> None:
    (tmp_path / "tokens").write_text(sha256(b"the password").hexdigest())
    with serving(profile, LIMITS, label_studio=address(studio), token_file=str(tmp_path / "tokens")) as running:
        for path in ("/health", "/setup", "/predict", "/versions"):
            assert replayed(running, path).status == 200
            assert replayed(running, path, Authorization="Basic bWU6bm90IGl0").status == 401
            assert replayed(running, path, Authorization="Bearer x").status == 401
            assert replayed(running, path, Host="evil.example").status == 421
            assert replayed(running, path, Origin="http://evil.example").status == 403


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/setup", b"{}"),
        ("/setup", json.dumps({"schema": "<View/>"}).encode()),
        ("/webhook", b"[]"),
        ("/webhook", b'{"action": "START_TRAINING", "project": {"id": 1}}'),
        ("/predict", b"no json"),
        ("/predict", json.dumps({"tasks": [], "label_config": "<!DOCTYPE x>"}).encode()),
        ("/predict", json.dumps({"tasks": [3], "label_config": configuration(["cat"])}).encode()),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(service: Service, path: str, body: bytes) -> None:
    reply = service.post(path, body, "application/json")
    assert (reply.status, reply.json()["code"]) == (400, "request")


def test_what_happens_in_a_project_is_heard_and_nothing_comes_of_it(service: Service) -> None:
    told = {"action": "ANNOTATION_CREATED", "annotation": {"id": 1, "result": []}, "project": {"id": 1}}
    reply = service.post("/webhook", json.dumps(told).encode(), "application/json")
    assert (reply.status, reply.json()) == (200, {})


def test_many_tasks_are_looked_at_a_few_at_a_time_until_time_is_up(profile: Path, studio: ThreadingHTTPServer) -> None:
    embedded = PNG + base64.b64encode(clothes()[3]).decode()
    with serving(profile, {"looks": 2}, label_studio=address(studio)) as running:
        assert all("score" in told for told in predictions(running, *[embedded] * 9))
    with serving(profile, {"seconds": 0.000001}, label_studio=address(studio)) as running:
        assert [set(told) for told in predictions(running, embedded, embedded)] == [{"error"}] * 2


def test_without_the_option_there_is_no_backend(profile: Path) -> None:
    with serving(profile) as running:
        assert replayed(running, "/health").status == 404
    for wrong in ("localhost:8080", "ftp://host", "http://", ""):
        with pytest.raises(LookTwiceError, match="--label-studio"):
            Studio(wrong, Limits())
