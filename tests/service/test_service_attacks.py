"""The service under attack from outside: paths, smuggled requests, many parts, slow bodies, and every place taken."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from support.serving import Service, clothes, form, learn_profile, serving

from looktwice.service import guards
from looktwice.service.guards import Tokens

LIMITS = {"headers": 1.0, "upload": 1.5, "body": 200_000, "connections": 12}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    profile = learn_profile(tmp_path_factory.mktemp("attacks") / "profile.json")
    with serving(profile, LIMITS) as running:
        yield running


def talk(service: Service, request: bytes) -> bytes:
    """All that comes back until the service closes the connection."""
    with socket.create_connection(service.address, timeout=60) as line:
        got = b""
        try:
            line.sendall(request)
            while more := line.recv(65_536):
                got += more
        except ConnectionError:
            pass
        return got


def status(reply: bytes) -> bytes:
    return reply[9:12]


@pytest.mark.parametrize(
    "path",
    [
        "/page/../../app.py",
        "/page/..%2f..%2fapp.py",
        "/page/%2e%2e/%2e%2e/app.py",
        "/page/..%5c..%5capp.py",
        "/page/%252e%252e/app.py",
        "//etc/passwd",
        "/page//etc/passwd",
        "/page/script.js%00.png",
        "/page/./script.js/",
        "/..;/metrics",
        "file:///etc/passwd",
        "http://evil.example/page/../app.py",
    ],
)
def test_no_path_leads_out_of_the_page(service: Service, path: str) -> None:
    reply = talk(service, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert status(reply) in (b"404", b"400", b"405", b"421")
    assert b"root:" not in reply
    assert b"import " not in reply


HEAD = b"POST /v1/look HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /metrics HTTP/1.1\r\nHost: a\r\n\r\n",
        b"Content-Length: 5\r\nContent-Length: 60\r\n\r\nhello",
        b"Content-Length: -1\r\n\r\nhello",
        b"Content-Length: +5\r\n\r\nhello",
        b"Content-Length: 5, 5\r\n\r\nhello",
        b"Content-Length: 99999999999999999999999\r\n\r\nhello",
        b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\nhello",
        b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        b"X: a\r\n folded: b\r\nContent-Length: 5\r\n\r\nhello",
        b"X: a\0b\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
def test_a_request_with_two_meanings_is_not_answered_twice(service: Service, lines: bytes) -> None:
    reply = talk(service, HEAD + b"Connection: close\r\n" + lines)
    assert reply.count(b"HTTP/1.1 ") <= 1
    assert b"looktwice_" not in reply
    assert status(reply) not in (b"200", b"500")


@pytest.mark.parametrize("order", [(b"localhost", b"evil.example"), (b"evil.example", b"localhost")])
def test_two_host_names_are_one_too_many(service: Service, order: tuple[bytes, bytes]) -> None:
    lines = b"".join(b"Host: " + name + b"\r\n" for name in order)
    reply = talk(service, b"GET / HTTP/1.1\r\n" + lines + b"Connection: close\r\n\r\n")
    assert status(reply) in (b"400", b"421")


def test_a_form_of_very_many_parts_is_refused(service: Service) -> None:
    kind, body = form(*[(f"{number}.png", b"x") for number in range(1_000)])
    started = time.monotonic()
    reply = service.post("/v1/looks", body, kind)
    assert (reply.status, reply.json()["code"]) == (400, "request")
    fields = (
        b"".join(b'--b\r\nContent-Disposition: form-data; name="f"\r\n\r\nx\r\n' for _ in range(3_000)) + b"--b--\r\n"
    )
    assert service.post("/v1/look", fields, "multipart/form-data; boundary=b").status == 400
    headers = b"--b\r\n" + b"X-Long: y\r\n" * 10_000 + b"\r\nx\r\n--b--\r\n"
    assert service.post("/v1/look", headers, "multipart/form-data; boundary=b").status == 400
    assert time.monotonic() - started < 60


@pytest.mark.parametrize(
    "kind", ["", "image/png, text/html", "a" * 3_000, "multipart/form-data; boundary=" + "x" * 3_000]
)
def test_a_strange_content_type_is_refused_or_read_as_a_picture(service: Service, kind: str) -> None:
    reply = service.post("/v1/look", b"<html>", kind)
    assert reply.status in (400, 415, 422)
    assert reply.headers.get_content_type() == "application/json" or "problem" in reply.headers.get_content_type()


def test_a_body_that_drips_is_not_waited_for(service: Service) -> None:
    started = time.monotonic()
    with socket.create_connection(service.address, timeout=60) as line:
        line.sendall(HEAD + b"Content-Length: 1000\r\nConnection: close\r\n\r\n")
        try:
            while time.monotonic() - started < 60:
                line.sendall(b"x")
                time.sleep(0.1)
        except ConnectionError:
            pass
    assert time.monotonic() - started < 60


def test_connections_without_a_request_never_keep_a_client_out(service: Service) -> None:
    with ExitStack() as held:
        for _ in range(5 * int(LIMITS["connections"])):
            line = held.enter_context(socket.create_connection(service.address, timeout=60))
            line.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
            assert service.get("/healthz").status == 200
        assert service.post("/v1/look", clothes()[0]).status == 200


def test_a_new_client_is_served_while_every_connection_is_busy(service: Service) -> None:
    with ExitStack() as held:
        for _ in range(2 * int(LIMITS["connections"])):
            line = held.enter_context(socket.create_connection(service.address, timeout=60))
            line.sendall(HEAD + b"Content-Length: 1000\r\n\r\nx")
            assert service.get("/healthz").status == 200


def test_a_list_of_a_million_entries_is_refused_at_once(tmp_path: Path) -> None:
    body = b'{"images": [' + b",".join([b'{"image":""}'] * 1_000_000) + b"]}"
    with serving(learn_profile(tmp_path / "profile.json")) as service, ThreadPoolExecutor() as threads:
        before, slowest = peak_memory(service), 0.0
        reply = threads.submit(service.post, "/v1/looks", body, "application/json")
        while not reply.done():
            began = time.monotonic()
            assert service.get("/healthz").status == 200
            slowest = max(slowest, time.monotonic() - began)
        assert (reply.result().status, reply.result().json()["code"]) == (413, "size")
        assert slowest < 5
        assert peak_memory(service) - before < 400


def peak_memory(service: Service) -> float:
    """The most megabytes that the process ever had."""
    (line,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{service.process.pid}/status").read_text())
    return int(line) / 1024


def test_the_page_holds_no_script_or_style_of_its_own(service: Service) -> None:
    page = service.get("/").body.decode()
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", page))
    assert "<style" not in page
    assert not re.search(r"<[^>]+\s(?:style|on\w+)\s*=", page)
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page)
    script = service.get("/page/script.js").body.decode()
    assert "innerHTML" not in script
    assert "eval(" not in script


def test_a_token_is_compared_with_every_hash_whatever_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[str] = []

    def count(presented: str, known: str) -> bool:
        compared.append(known)
        return presented == known

    monkeypatch.setattr(guards, "compare_digest", count)
    hashes = tuple(f"{number:064x}" for number in range(5))
    for header in ("", "Bearer x", "Basic x", "Bearer " + "y" * 10_000):
        compared.clear()
        assert not Tokens(hashes).know(header)
        assert tuple(compared) == hashes
