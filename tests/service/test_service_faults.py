"""The service in front of a classifier that is slow, dear or dead: limits, budgets, kills and farewells."""

from __future__ import annotations

import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.engines import counted
from support.faults import Running, fault_server
from support.serving import Reply, Service, clothes, named, serving
from support.waiting import until
from support.workshop import PANEL, write_profile

from looktwice.engine.ledger import maintenance

QUESTIONS = 1 + len(PANEL)
PATIENCE = 60.0


@pytest.fixture(scope="module")
def slow() -> Iterator[Running]:
    with fault_server(delay=0.25) as running:
        yield running


@pytest.fixture
def profile(slow: Running, tmp_path: Path) -> Path:
    write_profile(tmp_path / "profile.json", slow.describe(tmp_path, concurrency=2))
    return tmp_path / "profile.json"


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def unready(service: Service) -> str:
    """Why the service takes no pictures now, by its own word."""
    reply = service.get("/readyz")
    assert (reply.status, reply.json()["code"]) == (503, "unavailable")
    assert service.get("/healthz").status == 200
    return str(reply.json()["detail"])


class Ant(BaseHTTPRequestHandler):
    """Takes every picture for an ant."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        self.reply(200)

    def reply(self, status: int, **headers: str) -> None:
        body = b'{"label": "ant"}'
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **named(headers)}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


class Resting(Ant):
    """Wants to be left alone at first, and answers after the wait that it asked for."""

    wait = 4
    refused_at: float | None = None
    too_early = 0

    def reply(self, status: int, **headers: str) -> None:
        now = time.monotonic()
        Resting.refused_at = Resting.refused_at or now
        early = now < Resting.refused_at + self.wait
        Resting.too_early += early
        super().reply(429 if early else status, retry_after=str(self.wait))


class Held(Ant):
    """Answers when it is let."""

    release = threading.Event()
    asked = 0

    def reply(self, status: int, **headers: str) -> None:
        Held.asked += 1
        self.release.wait(PATIENCE)
        with suppress(ConnectionError):  # who asked may have been killed
            super().reply(status, **headers)


@contextmanager
def played(folder: Path, by: type[Ant], concurrency: int = 1) -> Iterator[Path]:
    """The profile of a classifier that is played so."""
    description = folder / "played.toml"
    with ThreadingHTTPServer(("127.0.0.1", 0), by) as server, ThreadPoolExecutor() as threads:
        threads.submit(server.serve_forever)
        url = f"http://127.0.0.1:{server.server_address[1]}/"
        description.write_text(f'connector = "http"\nurl = "{url}"\nlabel = "label"\nconcurrency = {concurrency}\n')
        write_profile(folder / "profile.json", description)
        try:
            yield folder / "profile.json"
        finally:
            server.shutdown()


@pytest.fixture
def resting(tmp_path: Path) -> Iterator[Path]:
    """The profile of a classifier that wants to be left alone at first."""
    with played(tmp_path, Resting) as profile:
        yield profile


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Path]:
    """The profile of a classifier that answers when it is let."""
    Held.release.clear()
    Held.asked = 0
    with played(tmp_path, Held, concurrency=2) as profile:
        try:
            yield profile
        finally:
            Held.release.set()


def test_a_classifier_that_wants_to_be_left_alone_is_and_makes_it_unready_meanwhile(
    resting: Path, ledger: Path
) -> None:
    with serving(resting, None, {"ledger": str(ledger), "longest_wait": 1}) as service:
        assert service.get("/readyz").status == 200
        assert service.post("/v1/look", clothes()[0]).status == 503
        assert "rate-limited" in unready(service)
        assert service.post("/v1/look", clothes()[0]).status == 503
        assert 1 <= int(service.get("/readyz").headers["retry-after"]) <= Resting.wait
        until(lambda: service.get("/readyz").status == 200)
        assert service.post("/v1/look", clothes()[0]).status == 200
    assert Resting.too_early == 1, "nothing was sent while it wanted to be left alone"


def test_more_pictures_than_allowed_wait_for_their_turn(held: Path, ledger: Path) -> None:
    one, two, *_ = clothes()
    limits = {"looks": 1, "seconds": 2 * PATIENCE}
    with serving(held, limits, {"ledger": str(ledger)}) as service, ThreadPoolExecutor() as threads:
        first = threads.submit(service.post, "/v1/look", one)
        until(lambda: b"looktwice_looks 1.0" in service.get("/metrics").body)
        second = threads.submit(service.post, "/v1/look", two)
        until(lambda: b"looktwice_looks 2.0" in service.get("/metrics").body)
        assert Held.asked <= QUESTIONS
        Held.release.set()
        assert (first.result().status, second.result().status) == (200, 200)


def test_more_requests_than_may_wait_are_told_to_come_again_and_health_is_still_told(held: Path, ledger: Path) -> None:
    one, two, *_ = clothes()
    with serving(held, {"requests": 1}, {"ledger": str(ledger)}) as service, ThreadPoolExecutor() as threads:
        first = threads.submit(service.post, "/v1/look", one)
        until(lambda: b"looktwice_looks 1.0" in service.get("/metrics").body)
        for path in ("/v1/look", "/v1/look/events", "/v1/burst"):
            refused = service.post(path, two)
            assert (refused.status, refused.json()["code"]) == (429, "busy")
            assert int(refused.headers["retry-after"]) >= 1
        assert service.get("/healthz").status == service.get("/readyz").status == 200
        Held.release.set()
        assert first.result().status == 200
        assert service.post("/v1/look", two).status == 200


def test_a_look_that_takes_too_long_is_kept_and_not_bought_again(slow: Running, profile: Path, ledger: Path) -> None:
    before = slow.stats()["requests"]
    with serving(profile, {"seconds": 0.1}, {"ledger": str(ledger)}) as service:
        late = service.post("/v1/look", clothes()[10])
        assert (late.status, late.json()["code"]) == (504, "time")
        until(lambda: service.post("/v1/look", clothes()[10]).status == 200)
    assert slow.stats()["requests"] == before + QUESTIONS


def test_a_client_that_leaves_ends_nothing(slow: Running, profile: Path, ledger: Path) -> None:
    before = slow.stats()["requests"]
    picture = clothes()[11]
    length = f"Content-Length: {len(picture)}\r\n\r\n".encode()
    head = b"POST /v1/look/events HTTP/1.1\r\nHost: localhost\r\nContent-Type: image/png\r\n" + length
    with serving(profile, None, {"ledger": str(ledger)}) as service:
        with socket.create_connection(service.address) as line:
            line.sendall(head + picture)
            assert line.recv(100).startswith(b"HTTP/1.1 200")
            until(lambda: slow.stats()["requests"] > before)
        assert service.post("/v1/look", clothes()[12]).status == 200
        assert service.post("/v1/look", picture).status == 200
        assert service.get("/readyz").status == 200
    assert slow.stats()["requests"] == before + 2 * QUESTIONS


def test_the_budget_of_all_time_is_kept_to_the_query(slow: Running, profile: Path, ledger: Path) -> None:
    before, budget = slow.stats()["requests"], QUESTIONS + 2
    for _ in range(2):  # a service that is started again has no more to spend
        with serving(profile, None, {"ledger": str(ledger), "budget": str(budget)}) as service:
            assert service.post("/v1/look", clothes()[13]).status == 200
            spent = service.post("/v1/look", clothes()[14])
            assert (spent.status, spent.json()["code"]) == (429, "budget")
            assert "retry-after" not in spent.headers
            assert "budget" in unready(service)
            assert service.post("/v1/look", clothes()[13]).status == 200, "its answers are in the ledger"
    assert slow.stats()["requests"] == before + budget
    with serving(profile, None, {"ledger": str(ledger), "budget": str(budget + 1)}) as raised:
        assert raised.get("/readyz").status == 200


def test_the_budget_of_a_day_says_when_to_come_again(slow: Running, profile: Path, ledger: Path) -> None:
    before = slow.stats()["requests"]
    with serving(profile, None, {"ledger": str(ledger), "per_day": QUESTIONS}) as service:
        assert service.post("/v1/look", clothes()[15]).status == 200
        spent = service.post("/v1/look", clothes()[16])
        assert (spent.status, spent.json()["code"]) == (429, "budget")
        assert 1 <= int(spent.headers["retry-after"]) <= 86_400
        several = service.form("/v1/looks", ("old", clothes()[15]), ("new", clothes()[16])).json()["verdicts"]
        assert "label" in several[0]
        assert several[1]["problem"]["code"] == "budget"
        assert "next day" in unready(service)
    assert slow.stats()["requests"] == before + QUESTIONS


def test_after_kill_9_budget_and_ledger_are_right(held: Path, ledger: Path) -> None:
    wishes = {"ledger": str(ledger), "budget": str(2 * QUESTIONS)}
    with serving(held, None, wishes) as service, ThreadPoolExecutor() as threads:
        broken = threads.submit(_quietly, service, clothes()[17])
        until(lambda: Held.asked == 2)
        service.process.send_signal(signal.SIGKILL)
        service.process.wait()
        assert broken.result() is None
    Held.release.set()
    assert maintenance.verify(ledger) == []
    with serving(held, None, wishes) as service:
        assert service.post("/v1/look", clothes()[17]).status == 200
    queries, answered = counted(ledger)
    assert answered == QUESTIONS
    assert Held.asked == 2 + QUESTIONS <= queries <= 2 * QUESTIONS


def _quietly(service: Service, picture: bytes) -> Reply | None:
    try:
        return service.post("/v1/look", picture)
    except (ConnectionError, OSError):
        return None


def test_a_farewell_waits_for_what_is_on_its_way(slow: Running, profile: Path, ledger: Path) -> None:
    before = slow.stats()["requests"]
    with serving(profile, None, {"ledger": str(ledger)}) as service, ThreadPoolExecutor() as threads:
        look = threads.submit(service.post, "/v1/look", clothes()[18])
        until(lambda: slow.stats()["requests"] > before)
        service.process.send_signal(signal.SIGTERM)
        assert look.result().status == 200
        service.process.wait(PATIENCE)
    assert maintenance.verify(ledger) == []
    assert counted(ledger) == (QUESTIONS, QUESTIONS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_ordinary_end_closes_the_ledger(
    slow: Running, profile: Path, tmp_path: Path, number: signal.Signals
) -> None:
    """No answer is lost, and no log is left behind, so that a copy of the file is whole."""
    ledger = tmp_path / "ledger.db"
    before = slow.stats()["requests"]
    with serving(profile, None, {"ledger": str(ledger)}) as service, ThreadPoolExecutor() as threads:
        looks = [threads.submit(_quietly, service, picture) for picture in clothes()[20:26]]
        until(lambda: slow.stats()["requests"] > before)
        service.process.send_signal(number)
        assert service.process.wait(PATIENCE) == 0
        replies = [look.result() for look in looks]
    assert [file.name for file in tmp_path.glob("ledger.db*")] == ["ledger.db"]
    assert any(reply and reply.status == 200 for reply in replies)
    queries, answered = counted(ledger)
    assert queries == answered == slow.stats()["requests"] - before


def test_a_classifier_that_is_not_there_makes_it_unready_and_says_why(slow: Running, tmp_path: Path) -> None:
    description = slow.describe(tmp_path, url=slow.url.replace("/classify", "/nothing"))
    write_profile(tmp_path / "profile.json", description)
    with serving(tmp_path / "profile.json", None, {"ledger": str(tmp_path / "ledger.db")}) as service:
        assert service.get("/readyz").status == 200
        reply = service.post("/v1/look", clothes()[0])
        assert (reply.status, reply.json()["code"]) == (503, "unavailable")
        assert "404" in str(reply.json()["detail"])
        assert int(reply.headers["retry-after"]) >= 1
        assert service.get("/readyz").status == 503
        assert service.get("/healthz").status == 200
