"""The service as its clients meet it: every way in, every refusal, and the routes for other programs."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.engines import engine_for
from support.serving import DEMO, PANEL, Service, clothes, learn_profile, serving

from looktwice.classifiers.registry import connect
from looktwice.decisions import judging
from looktwice.decisions.profile import Profile
from looktwice.decisions.verdict import Verdict
from looktwice.images.collection import Picture
from looktwice.images.decode import decode
from looktwice.images.image import encode_jpeg, encode_png
from looktwice.service.bodies import Opened

LIMITS = {"body": 200_000, "pixels": 40_000, "pictures": 4}
JSON = "application/json"


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn_profile(tmp_path_factory.mktemp("service") / "profile.json")


@pytest.fixture(scope="module")
def service(profile: Path) -> Iterator[Service]:
    with serving(profile, LIMITS) as running:
        yield running


def packed(*pictures: bytes) -> dict[str, Any]:
    return {"images": [{"image": base64.b64encode(data).decode(), "name": f"{n}"} for n, data in enumerate(pictures)]}


# Verdicts


async def test_a_raw_body_a_form_and_base64_get_the_verdict_that_the_library_gives(
    service: Service, profile: Path
) -> None:
    shirt = clothes()[0]
    picture = Picture("shirt", None, Opened(shirt, 10_000))
    engine = engine_for(connect(DEMO / "fashion.toml"))
    (verdict,) = [v async for v in judging.look(engine, [picture], Profile.load(profile))]
    assert isinstance(verdict, Verdict)
    encoded = json.dumps({"image": base64.b64encode(shirt).decode(), "name": "shirt"}).encode()
    for reply in (
        service.post("/v1/look", shirt),
        service.post("/v1/look", shirt, "application/octet-stream"),
        service.form("/v1/look", ("shirt", shirt)),
        service.post("/v1/look", encoded, JSON),
    ):
        assert reply.status == 200, reply.body
        said = reply.json()
        assert (said["label"], said["confidence"], said["sentence"]) == (
            verdict.label,
            pytest.approx(verdict.confidence),
            verdict.sentence,
        )
        assert said["asked"] == [asdict(asked) for asked in verdict.asked]


def test_several_pictures_get_one_verdict_each_and_a_bad_one_its_reason(service: Service) -> None:
    shirt, shoe, *_ = clothes()
    reply = service.form("/v1/looks", ("shirt.png", shirt), ("bad.png", b"no picture"), ("shoe.png", shoe))
    assert reply.status == 200
    first, second, third = reply.json()["verdicts"]
    assert first == service.form("/v1/look", ("shirt.png", shirt)).json()
    assert third["name"] == "shoe.png"
    assert second["problem"]["code"] == "picture"
    assert second["name"] == "bad.png"
    assert second["problem"]["error"] == "image-unsupported"
    assert service.post("/v1/looks", json.dumps(packed(shirt, shoe)).encode(), JSON).status == 200


def test_a_burst_of_photos_gives_one_verdict(service: Service) -> None:
    photo = clothes()[2]
    reply = service.form("/v1/burst", *[(f"{n}.png", photo) for n in range(3)])
    said = reply.json()
    assert reply.status == 200
    assert [asked["view"] for asked in said["asked"]] == ["again", "photo 2", "photo 3"]
    assert said["queries"] == 3
    assert said["decision"] is None
    assert service.form("/v1/burst", ("1.png", photo)).status == 400


def test_one_picture_is_no_burst(service: Service) -> None:
    assert service.post("/v1/burst", clothes()[2], "image/png").status == 400


def test_events_tell_the_picture_its_views_each_answer_and_the_verdict(service: Service) -> None:
    shirt = clothes()[3]
    reply = service.form("/v1/look/events", ("shirt.png", shirt))
    assert reply.headers.get_content_type() == "text/event-stream"
    told = events(reply.body)
    names = [name for name, _ in told]
    assert names[0] == "picture"
    assert names.count("verdict") == 1
    assert max(at for at, name in enumerate(names) if name == "answer") < names.index("verdict")
    assert [view["view"] for view in told[0][1]["views"]] == [str(view) for view in PANEL]
    answers = {said["place"]: said["label"] for name, said in told if name == "answer"}
    verdict = dict(told)["verdict"]
    again = service.form("/v1/look", ("shirt.png", shirt)).json()
    assert {**verdict, "held": None} == {**again, "held": None}  # which comes from the pictures between
    assert answers == {place: asked["label"] for place, asked in enumerate(verdict["asked"])}
    views = {said["place"]: said["picture"] for name, said in told if name == "view"}
    mirrored = decode(base64.b64decode(views[1].partition(",")[2]), "mirrored").pixels
    assert (mirrored == decode(shirt, "shirt").pixels[:, ::-1]).all()


def test_events_of_a_burst_tell_each_photo(service: Service) -> None:
    one, two, *_ = clothes()
    told = events(service.form("/v1/burst/events", ("a", one), ("b", two)).body)
    assert sorted(said["place"] for name, said in told if name == "answer") == [0, 1]
    (verdict,) = [said for name, said in told if name == "verdict"]  # views may be drawn after it
    assert verdict["asked"][1]["label"] == next(s["label"] for n, s in told if n == "answer" and s["place"] == 1)


def events(body: bytes) -> list[tuple[str, dict[str, Any]]]:
    blocks = [block.split("\n") for block in body.decode().strip().split("\n\n") if not block.startswith(":")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in blocks]


# Refusals


@pytest.mark.parametrize(
    ("path", "kind", "body", "status", "code"),
    [
        ("/v1/look", "image/png", b"", 422, "picture"),
        ("/v1/look", "image/png", b"<svg onload=alert(1)>", 422, "picture"),
        ("/v1/look", "text/plain", b"x", 415, "type"),
        ("/v1/look", "application/x-www-form-urlencoded", b"image=x", 415, "type"),
        ("/v1/look", JSON, b'{"image": "***"}', 400, "request"),
        ("/v1/look", JSON, b'{"url": "http://127.0.0.1/secret"}', 400, "request"),
        ("/v1/look", JSON, b"[" * 100_000, 400, "request"),
        ("/v1/look", JSON, b'{"image": "\xff"}', 400, "request"),
        ("/v1/look", "multipart/form-data", b"x", 400, "request"),
        ("/v1/look", "multipart/form-data; boundary=x", b"x", 400, "request"),
        ("/v1/look", "multipart/form-data; boundary=x", b"--x--\r\n", 400, "request"),
        ("/v1/look", "image/png", bytes(200_001), 413, "size"),
        ("/v1/looks", JSON, b'{"images": []}', 400, "request"),
        ("/v1/looks", "image/png", b"x", 415, "type"),
        ("/v1/nothing", "image/png", b"x", 404, "missing"),
        ("/healthz", "image/png", b"x", 405, "method"),
        ("/page/../app.py", "image/png", b"x", 404, "missing"),
    ],
)
def test_a_bad_request_is_refused_with_a_reason(
    service: Service, path: str, kind: str, body: bytes, status: int, code: str
) -> None:
    reply = service.post(path, body, kind)
    said = reply.json()
    assert (reply.status, said["code"], said["status"]) == (status, code, status)
    assert reply.headers.get_content_type() == "application/problem+json"
    assert len(str(said["detail"])) > 10
    assert "Traceback" not in str(said["detail"])


def test_too_many_pixels_are_refused_before_they_are_decoded(service: Service) -> None:
    for wide, limit in (
        (encode_png(np.zeros((250, 250, 3), np.uint8)), "limit of 40,000"),
        (encode_jpeg(np.zeros((600, 600, 3), np.uint8), 80), "limit of 160,000"),  # it is decoded at 1/8
    ):
        reply = service.post("/v1/look", wide, "image/jpeg")
        assert reply.status == 422
        assert limit in str(reply.json()["detail"])


def test_too_many_pictures_are_refused(service: Service) -> None:
    shirt = clothes()[0]
    assert service.post("/v1/looks", json.dumps(packed(*[shirt] * 5)).encode(), JSON).status == 413
    assert service.form("/v1/looks", *[("x", shirt)] * 5).status == 400


def test_names_from_outside_come_back_as_text_and_nothing_else(service: Service) -> None:
    name = "<script>alert(1)</script>\u202e"
    body = json.dumps({"image": base64.b64encode(b"no picture").decode(), "name": name + "\n\x1b[31m"}).encode()
    reply = service.post("/v1/look", body, JSON)
    assert reply.status == 422
    assert reply.headers["x-content-type-options"] == "nosniff"
    assert "\x1b" not in str(reply.json()["detail"])


# Other interfaces


def test_the_profile_tells_what_verdicts_rest_on_and_nothing_of_this_machine(service: Service, profile: Path) -> None:
    reply = service.get("/v1/profile")
    said = reply.json()
    assert said["classifier"] == "fashion.toml"
    assert str(DEMO) not in reply.body.decode()
    assert [view["view"] for view in said["panel"]] == [str(view) for view in PANEL]
    assert said["pictures"] == Profile.load(profile).pictures
    assert (said["level"], said["coverage"]) == (0.95, None)
    assert 0 < said["max_error"] < said["threshold"]
    figure = service.get("/v1/profile/reliability.svg")
    assert figure.headers.get_content_type() == "image/svg+xml"
    assert figure.body.startswith(b"<svg")


def test_metrics_count_what_was_asked_and_what_came_out(service: Service) -> None:
    before = metrics(service)
    assert service.post("/v1/look", clothes()[5]).status == 200
    assert service.post("/v1/look", b"broken").status == 422
    after = metrics(service)
    grown = {name: after[name] - before.get(name, 0) for name in after}
    assert grown["looktwice_queries_total fashion"] == 1 + len(PANEL)
    assert grown["looktwice_look_seconds_count"] == 1
    assert sum(n for name, n in grown.items() if name.startswith("looktwice_verdicts_total")) == 1
    assert grown["looktwice_refusals_total picture"] == 1
    assert grown["looktwice_http_replies_total 422"] == 1
    assert after["looktwice_ready"] == 1
    assert after["looktwice_drift_alarm"] in (0, 1)


def metrics(service: Service) -> dict[str, float]:
    families = text_string_to_metric_families(service.get("/metrics").body.decode())
    samples = [sample for family in families for sample in family.samples if not sample.name.endswith("_bucket")]
    return {" ".join([sample.name, *sample.labels.values()]): sample.value for sample in samples}


def test_the_page_is_served_from_memory_and_known_again(service: Service) -> None:
    page = service.get("/")
    assert page.headers.get_content_type() == "text/html"
    again = service.get("/", if_none_match=str(page.headers["etag"]))
    assert (again.status, again.body) == (304, b"")
    for path in ("/page/%2e%2e/server.py", "/page/..%2fserver.py", "/page//etc/passwd", "/page/samples/", "/page"):
        assert service.get(path).status == 404, path


def test_every_reply_carries_the_headers_that_keep_strangers_out(service: Service) -> None:
    for reply in (service.get("/"), service.get("/healthz"), service.get("/nothing"), service.post("/v1/look", b"x")):
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert reply.headers["x-frame-options"] == "DENY"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in reply.headers
        assert "server" not in reply.headers


# The description


def test_the_description_has_every_field_of_a_verdict_with_its_words(service: Service) -> None:
    schemas = service.get("/openapi.json").json()["components"]["schemas"]
    said = service.post("/v1/look", clothes()[0]).json()
    assert set(schemas["Verdict"]["properties"]) == set(said)
    assert set(schemas["Asked"]["properties"]) == set(said["asked"][0])
    assert schemas["Verdict"]["properties"]["held"]["description"]


def test_no_request_that_the_description_allows_or_forbids_breaks_the_service(service: Service, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{service.url}openapi.json"]
    # Bytes that are said to be a picture and are not one fit the description and are rightly refused.
    options = ["--exclude-checks", "positive_data_acceptance", "--max-examples", "10", "--seed", "1", "--no-color"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    assert "Tested: 10" in done.stdout
