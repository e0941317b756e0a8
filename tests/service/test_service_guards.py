"""Who may come in and how much they may ask for: hosts, origins, tokens, slow and endless clients."""

from __future__ import annotations

import hashlib
import socket
import ssl
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.errors import code_in, coded
from support.serving import Service, clothes, learn_profile, serving, started
from support.workshop import run

from looktwice.errors import LookTwiceError
from looktwice.service import Place
from looktwice.service.guards import Tokens, check_address, log_refusal
from looktwice.service.server import links, listen

TOKEN = "a token that is long enough to be random"
LIMITS = {"headers": 1.5, "upload": 1.5, "body": 100_000}


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn_profile(tmp_path_factory.mktemp("guards") / "profile.json")


@pytest.fixture(scope="module")
def service(profile: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    path = tmp_path_factory.mktemp("tokens") / "tokens.txt"
    path.write_text(f"# who may come in\nalice {hashlib.sha256(TOKEN.encode()).hexdigest()}\n{'0' * 64}\n")
    with serving(profile, LIMITS, token_file=str(path)) as running:
        yield running


# Tokens


def test_a_token_lets_in_and_nothing_else_does(service: Service) -> None:
    good = {"authorization": f"Bearer {TOKEN}"}
    assert service.post("/v1/look", clothes()[0], **good).status == 200
    hashed = hashlib.sha256(TOKEN.encode()).hexdigest()
    for header in (
        "",
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {hashed}",
        f"Bearer {'0' * 64}",
    ):
        reply = service.post("/v1/look", clothes()[0], authorization=header)
        assert (reply.status, reply.json()["code"]) == (401, "token"), header
        assert reply.headers["www-authenticate"] == "Bearer"


@pytest.mark.parametrize("path", ["/v1/profile", "/metrics", "/openapi.json"])
def test_what_tells_of_the_classifier_needs_a_token(service: Service, path: str) -> None:
    assert service.get(path).status == 401
    assert service.get(path, authorization=f"bearer {TOKEN}").status == 200


@pytest.mark.parametrize("path", ["/", "/page/script.js", "/healthz", "/readyz"])
def test_the_page_and_health_need_none(service: Service, path: str) -> None:
    assert service.get(path).status == 200


def test_only_hashes_of_tokens_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOOKTWICE_TOKENS", hashlib.sha256(b"secret").hexdigest())
    tokens = Tokens.read(None)
    assert tokens.know("Bearer secret")
    assert not tokens.know("Bearer Secret")
    (tmp_path / "plain.txt").write_text("secret\n")
    with pytest.raises(LookTwiceError, check=coded("token-invalid")):
        Tokens.read(tmp_path / "plain.txt")
    (tmp_path / "empty.txt").write_text("# nobody\n")
    with pytest.raises(LookTwiceError, check=coded("token-invalid")):
        Tokens.read(tmp_path / "empty.txt")
    with pytest.raises(LookTwiceError, check=coded("token-invalid")):
        Tokens.read(tmp_path / "missing.txt")


def test_an_address_that_others_can_reach_needs_a_token(profile: Path) -> None:
    done = run("serve", "-p", profile, "--host", "0.0.0.0", "--port", 0)
    assert done.returncode == 1
    assert "token" in done.stderr
    assert "Traceback" not in done.stderr
    for host in ("192.168.1.7", "::", "example.com"):
        with pytest.raises(LookTwiceError, check=coded("token-invalid")):
            check_address(host, Tokens())
        check_address(host, Tokens(("0" * 64,)))
    for host in ("127.0.0.1", "127.3.2.1", "::1", "localhost"):
        check_address(host, Tokens())


def test_a_service_at_every_address_is_found_at_this_machines_own() -> None:
    with listen("0.0.0.0", 0) as every:
        port = every.getsockname()[1]
        first, *others = links(every, secure=True, token="t0ken")
    assert first.split()[2] == f"https://127.0.0.1:{port}/#token=t0ken"
    assert others
    assert "127.0.0.1" not in "".join(others)


def test_a_service_at_one_address_names_no_other() -> None:
    with listen("127.0.0.1", 0) as one:
        assert len(links(one, secure=False)) == 1


def test_a_new_token_lets_in_and_only_its_hash_is_kept(profile: Path, tmp_path: Path) -> None:
    path = tmp_path / "tokens.txt"
    with started("serve", "-p", profile, "--port", 0, "--new-token", "--token-file", path) as service:
        token = service.url.partition("#token=")[2]
        assert service.get("/v1/profile", authorization=f"Bearer {token}").status == 200
        assert service.get(f"/v1/profile?token={token}").status == 401
    assert path.read_text().split() == [hashlib.sha256(token.encode()).hexdigest()]
    assert path.stat().st_mode & 0o077 == 0
    assert Tokens.of(Place(token_file=path, new_token=True)).know(f"Bearer {token}")


def test_each_refusal_is_a_line_without_the_query(caplog: pytest.LogCaptureFixture) -> None:
    scope = {"type": "http", "method": "GET", "path": "/v1/\nprofile", "query_string": b"token=secret", "client": None}
    log_refusal(scope, "token")
    (line,) = caplog.messages
    assert "secret" not in line
    assert "\n" not in line


def test_a_port_that_is_taken_is_said_in_one_line(profile: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run("serve", "-p", profile, "--port", taken.getsockname()[1])
    assert (done.returncode, code_in(done.stderr)) == (1, "address-unusable")


# Hosts and origins


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8000", "localhost.evil.example", "", "127.0.0.1@evil", "[::1"]
)
def test_a_name_that_points_here_from_elsewhere_is_refused(service: Service, host: str) -> None:
    reply = service.get("/", host=host)
    assert (reply.status, reply.json()["code"]) == (421, "host")


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:99", "127.0.0.1", "192.168.1.7:8000", "[::1]:8000"])
def test_this_machine_and_addresses_are_served(service: Service, host: str) -> None:
    assert service.get("/", host=host).status == 200


def test_a_page_elsewhere_cannot_send_forms_here(service: Service) -> None:
    good = {"authorization": f"Bearer {TOKEN}", "host": "localhost:8000"}
    for origin in ("https://evil.example", "null", "http://localhost:8001", "http://localhost"):
        reply = service.post("/v1/look", clothes()[0], origin=origin, **good)
        assert (reply.status, reply.json()["code"]) == (403, "origin"), origin
    assert service.post("/v1/look", clothes()[0], origin="http://localhost:8000", **good).status == 200
    assert service.ask("OPTIONS", "/v1/look", None, {"origin": "https://evil.example"}).status == 403


# Slow, endless and broken clients


def talk(service: Service, *parts: bytes, wait: float = 20.0) -> bytes:
    """Everything that comes back after sending these parts, until the service closes the connection."""
    with socket.create_connection(service.address, timeout=wait) as line:
        got = b""
        try:
            for part in parts:
                line.sendall(part)
            while more := line.recv(65_536):
                got += more
        except ConnectionError:
            pass
        return got


HEAD = (
    b"POST /v1/look HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n"
    b"Authorization: Bearer " + TOKEN.encode() + b"\r\n"
)


def test_a_client_that_never_ends_its_headers_is_left(service: Service) -> None:
    assert talk(service, b"") == b""
    assert talk(service, b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ") == b""


def test_headers_without_end_are_cut(service: Service) -> None:
    assert b" 200 " not in talk(service, b"GET / HTTP/1.1\r\nHost: localhost\r\n", b"X-Long: " + b"x" * 100_000)


def test_a_body_that_does_not_come_is_not_waited_for(service: Service) -> None:
    reply = talk(service, HEAD + b"Content-Length: 5000\r\n\r\nshort")
    assert reply.startswith(b"HTTP/1.1 408 ")


def test_a_body_without_end_is_cut_at_the_limit(service: Service) -> None:
    chunk = b"10000\r\n" + bytes(65_536) + b"\r\n"
    reply = talk(service, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 40)
    assert reply.startswith(b"HTTP/1.1 413 ")


def test_a_body_that_is_announced_too_large_is_refused_unread_and_heard(service: Service) -> None:
    reply = talk(service, HEAD + b"Content-Length: 3000000\r\nConnection: close\r\n\r\n", *[bytes(100_000)] * 30)
    assert reply.startswith(b"HTTP/1.1 413 ")
    assert b"100,000 bytes" in reply


def test_what_is_no_http_is_refused(service: Service) -> None:
    for start in (b"\x16\x03\x01\x02\x00", b"GET / HTTP/1.1\r\nHost: a\r\nBad Header: x\r\n\r\n", b"\r\n\r\n\x00"):
        assert talk(service, start)[:12] in (b"", b"HTTP/1.1 400", b"HTTP/1.1 421")


def test_header_values_from_outside_cannot_split_a_reply(service: Service) -> None:
    reply = talk(service, b"GET /%0d%0aSet-Cookie:%20x=1 HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert b"\r\nSet-Cookie" not in reply.partition(b"\r\n\r\n")[0]


def test_the_service_is_well_after_all_that(service: Service) -> None:
    assert service.get("/readyz").status == 200
    assert service.post("/v1/look", clothes()[0], authorization=f"Bearer {TOKEN}").status == 200


def test_it_speaks_https_with_a_certificate(profile: Path, tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(key), "-out", str(certificate)]
    try:
        subprocess.run(["openssl", *make.split(), *names], check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("there is no openssl to make a certificate with")
    wrong = run("serve", "-p", profile, "--port", 0, "--tls-cert", key, "--tls-key", certificate)
    assert wrong.returncode == 1
    assert "certificate" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    with serving(profile, certificate=str(certificate), key=str(key)) as running:
        assert running.url.startswith("https://")
        trust = ssl.create_default_context(cafile=str(certificate))
        with urllib.request.urlopen(running.url + "healthz", context=trust, timeout=60) as reply:
            assert reply.status == 200
