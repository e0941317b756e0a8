"""The wire under every HTTP connector, against servers that speak each form of HTTP/1.1 byte by byte."""

from __future__ import annotations

import asyncio
import gzip
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trustme
from yarl import URL

from looktwice.classifiers import wire
from looktwice.classifiers.wire import BrokenError, Limits, OverlongError, Reply, Server, UnreachableError

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
LIMITS = Limits(seconds=5.0, connect_seconds=2.0, reply_bytes=1000)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Played:
    """A server that answers every request with the same bytes, and notes what it was sent."""

    def __init__(self, *replies: bytes, closing: bool = False) -> None:
        self.replies = replies or (OK,)
        self.closing = closing
        self.heads: list[str] = []
        self.bodies: list[bytes] = []
        self.connections = 0

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        await self._answer(reader, writer)
        while not self.closing:
            await self._answer(reader, writer)

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0] or 0)
        self.heads.append(head)
        self.bodies.append(await reader.readexactly(length))
        for part in self.replies:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0.01)


@asynccontextmanager
async def listening(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[int]:
    tasks: set[asyncio.Task[None] | None] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await handler(reader, writer)
        writer.close()
        with suppress(ConnectionError, ssl.SSLError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in filter(None, tasks):
            task.cancel()
        await asyncio.gather(*filter(None, tasks))


async def ask(url: str, body: bytes | None = b"picture", trust_env: bool = False) -> Reply:
    server = Server(URL(url), LIMITS, trust_env)
    try:
        return await server.send(server.head("POST", {"X-Key": "a"}), body)
    finally:
        await server.close()


@pytest.mark.parametrize(
    ("replies", "closing"),
    [
        ((OK,), False),
        ((OK[:20], OK[20:-1], OK[-1:]), False),
        ((b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n", b"1\r\nk\r\n0\r\n\r\n"), False),
        ((b"HTTP/1.1 200 OK\r\n\r\no", b"k"), True),
        ((b"HTTP/1.0 200 OK\r\n\r\nok",), True),
        ((b"HTTP/1.1 100 Continue\r\n\r\n", OK), False),
        ((b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK,), False),
        ((b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",), True),
    ],
)
async def test_a_reply_is_whole_in_whatever_form_it_comes(replies: tuple[bytes, ...], closing: bool) -> None:
    played = Played(*replies, closing=closing)
    async with listening(played) as port:
        reply = await ask(f"http://127.0.0.1:{port}/a%20b?x=1")
    assert (reply.status, reply.body) == (200, b"ok")
    assert played.heads[0].startswith(f"POST /a%20b?x=1 HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\n")
    assert "\r\nx-key: a\r\n" in played.heads[0]
    assert played.bodies == [b"picture"]


async def test_headers_are_known_by_their_names_in_lower_case() -> None:
    reply = b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nVia: a\r\nVIA: b\r\ncontent-length: 0\r\n\r\n"
    async with listening(Played(reply)) as port:
        assert dict((await ask(f"http://127.0.0.1:{port}/")).headers) == {
            "retry-after": "7",
            "via": "a, b",
            "content-length": "0",
        }


@pytest.mark.parametrize(
    ("replies", "error"),
    [
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok",), BrokenError),
        ((b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nok",), BrokenError),
        ((b"SSH-2.0-OpenSSH_9.6\r\n",), BrokenError),
        ((b"",), BrokenError),
        ((b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n",), BrokenError),
        ((b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001,), OverlongError),
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n" + b"x" * 2000,), OverlongError),
        ((b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 1\r\n\r\nx",), BrokenError),
        ((b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 1\r\n\r\nx",), BrokenError),
    ],
)
async def test_a_reply_that_is_not_whole_is_none(replies: tuple[bytes, ...], error: type[Exception]) -> None:
    async with listening(Played(*replies, closing=True)) as port:
        with pytest.raises(error):
            await ask(f"http://127.0.0.1:{port}/")


async def test_a_packed_reply_is_unpacked_though_it_was_not_asked_for() -> None:
    packed = gzip.compress(b"label")
    head = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(packed)
    async with listening(Played(head + packed)) as port:
        assert (await ask(f"http://127.0.0.1:{port}/")).body == b"label"


async def test_a_connection_is_used_again_and_dropped_when_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played()
    async with listening(played) as port:
        server = Server(URL(f"http://127.0.0.1:{port}/"), LIMITS, trust_env=False)
        head = server.head("POST", {})
        for _ in range(5):
            await server.send(head, b"x")
        assert played.connections == 1
        monkeypatch.setattr(wire, "IDLE", 0.0)
        await server.send(head, b"x")
        assert played.connections == 2
        await asyncio.gather(*(server.send(head, b"x") for _ in range(4)))
        assert len(played.bodies) == 10
        await server.close()


async def test_what_nobody_asked_for_is_not_taken_for_the_next_reply() -> None:
    played = Played(OK, b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")
    async with listening(played) as port:
        server = Server(URL(f"http://127.0.0.1:{port}/"), LIMITS, trust_env=False)
        for _ in range(3):
            assert (await server.send(server.head("POST", {}), b"x")).body == b"ok"
            await asyncio.sleep(0.05)
        assert played.connections == 3
        await server.close()


async def test_an_absent_server_is_unreachable_and_a_slow_one_is_late() -> None:
    played = Played()
    server = Server(URL("http://127.0.0.1:1/"), LIMITS, trust_env=False)
    with pytest.raises(UnreachableError):
        await server.send(server.head("POST", {}), b"x")
    async with listening(played) as port:
        slow = Server(URL(f"http://127.0.0.1:{port}/"), LIMITS._replace(seconds=0.05), trust_env=False)
        played.replies = (OK[:10],)
        with pytest.raises(TimeoutError):
            await slow.send(slow.head("POST", {}), b"x")


@pytest.mark.parametrize("header", [{"x": "a\r\nhost: evil"}, {"x\r\ny": "a"}, {"x": "a\x00"}, {"": "a"}])
def test_no_header_can_smuggle_another(header: dict[str, str]) -> None:
    with pytest.raises(ValueError, match="cannot be sent"):
        Server(URL("http://localhost/"), LIMITS, trust_env=False).head("POST", header)


async def test_name_and_password_in_an_address_become_a_header() -> None:
    played = Played()
    async with listening(played) as port:
        await ask(f"http://me:s%40crt@127.0.0.1:{port}/")
    assert "authorization: Basic bWU6c0BjcnQ=" in played.heads[0]
    assert "s%40crt@" not in played.heads[0]


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """Who vouches for servers, and is believed through the usual variable."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    wire._tls.cache_clear()
    return authority


def certified(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    return context


async def test_tls_is_spoken_with_a_server_whose_certificate_fits_and_with_no_other(authority: trustme.CA) -> None:
    async with listening(Played(), certified(authority, "localhost")) as port:
        assert (await ask(f"https://localhost:{port}/")).body == b"ok"
    async with listening(Played(), certified(authority, "elsewhere.example")) as port:
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(f"https://localhost:{port}/")


class Proxy:
    """A proxy that passes requests on as they are, and everything after CONNECT."""

    def __init__(self, status: int = 200) -> None:
        self.status = status
        self.heads: list[str] = []

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        verb, target, _ = head.split(maxsplit=2)
        if verb != "CONNECT":
            writer.write(OK)
        elif self.status != 200:
            writer.write(b"HTTP/1.1 %d No\r\ncontent-length: 0\r\n\r\n" % self.status)
        else:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            host, _, port = target.partition(":")
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer))


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65_536):
        writer.write(data)
    writer.close()


async def test_a_proxy_is_asked_in_place_of_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    proxy = Proxy()
    async with listening(proxy) as port:
        monkeypatch.setenv("http_proxy", f"http://me:pw@127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "inside.example")
        assert (await ask("http://far.example/a?x=1", trust_env=True)).body == b"ok"
        with pytest.raises(UnreachableError):
            await ask("http://inside.example:1/", trust_env=True)
    assert proxy.heads[0].startswith("POST http://far.example/a?x=1 HTTP/1.1\r\nhost: far.example\r\n")
    assert "proxy-authorization: Basic bWU6cHc=" in proxy.heads[0]


async def test_tls_goes_through_a_proxy_that_sees_nothing_of_it(
    authority: trustme.CA, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy, played = Proxy(), Played()
    async with listening(played, certified(authority, "localhost")) as far, listening(proxy) as port:
        monkeypatch.setenv("https_proxy", f"127.0.0.1:{port}")
        monkeypatch.setenv("no_proxy", "")
        assert (await ask(f"https://localhost:{far}/secret", trust_env=True)).body == b"ok"
        proxy.status = 407
        with pytest.raises(UnreachableError, match="407"):
            await ask(f"https://localhost:{far}/secret", trust_env=True)
    assert proxy.heads[0].startswith(f"CONNECT localhost:{far} HTTP/1.1\r\n")
    assert "secret" not in "".join(proxy.heads)
    assert len(played.bodies) == 1
