"""The transport of every HTTP connector, against servers that speak each form of HTTP/1.1 byte by byte."""

from __future__ import annotations

import asyncio
import base64
import gc
import gzip
import os
import socket
import ssl
import stat
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import trustme
import uvloop
from aiohttp.client_proto import ResponseHandler
from support.engines import counted, engine_on
from support.errors import coded
from support.waiting import until_async
from support.workshop import PANEL, write_pictures

from looktwice.calibration.evidence import Row
from looktwice.classifiers import transport as transports
from looktwice.classifiers.command import connect as connect_command
from looktwice.classifiers.http import connect
from looktwice.classifiers.secrets import Secrets
from looktwice.classifiers.settings import HttpSettings
from looktwice.classifiers.transport import Endpoint, Reply, Transport
from looktwice.engine.budget import Budget
from looktwice.engine.check import examine
from looktwice.engine.engine import QueryEngine
from looktwice.engine.ledger import maintenance
from looktwice.engine.limits import RetryPolicy
from looktwice.engine.query import Unscored
from looktwice.errors import ClassifierError, PermanentError, TransientError
from looktwice.images.image import Image

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
MANNERS = HttpSettings(timeout=5.0, connect_timeout=2.0, max_reply_bytes=1000)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
ANT = b'HTTP/1.1 200 OK\r\ncontent-length: 16\r\n\r\n{"label": "ant"}'
PASSWORD = "pa55w0rd"


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
async def listening(handler: Handler, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[int]:
    tasks: set[asyncio.Task[None] | None] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            await handler(reader, writer)
        writer.close()
        with suppress(ConnectionError, ssl.SSLError, asyncio.CancelledError):
            await writer.wait_closed()

    server = await asyncio.start_server(handle, "127.0.0.1", port, ssl=tls)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        for task in filter(None, tasks):
            task.cancel()
        await asyncio.gather(*filter(None, tasks))


@asynccontextmanager
async def opened(url: str, method: str = "POST", manners: HttpSettings = MANNERS) -> AsyncIterator[Endpoint]:
    transport = Transport(manners, Secrets())
    try:
        yield transport.endpoint(method, url, {"X-Key": "a"})
    finally:
        await transport.close()


async def ask(url: str, body: bytes | None = b"picture", trust_env: bool = False) -> Reply:
    async with opened(url, manners=MANNERS.model_copy(update={"trust_env": trust_env})) as endpoint:
        return await endpoint.send(body)


async def refusal(url: str, trust_env: bool = False) -> ClassifierError:
    with pytest.raises(ClassifierError) as caught:
        await ask(url, trust_env=trust_env)
    return caught.value


# Replies


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
        reply = await ask(f"http://127.0.0.1:{port}/a%20b?x=1#part")
    assert (reply.status, reply.body) == (200, b"ok")
    line, *headers = played.heads[0].lower().split("\r\n")
    assert line == "post /a%20b?x=1 http/1.1"
    own = {f"host: 127.0.0.1:{port}", "user-agent: looktwice", "accept-encoding: identity", "x-key: a"}
    assert own <= set(headers)
    assert played.bodies == [b"picture"]


async def test_a_large_body_arrives_whole() -> None:
    played, body = Played(), bytes(3_000_000)
    async with listening(played) as port:
        await ask(f"http://127.0.0.1:{port}/", body)
    assert played.bodies == [body]


async def test_headers_are_known_by_their_names_in_lower_case() -> None:
    reply = b"HTTP/1.1 429 Slow\r\nRetry-After: 7\r\nVIA: b\r\ncontent-length: 0\r\n\r\n"
    async with listening(Played(reply)) as port:
        error = await refusal(f"http://127.0.0.1:{port}/")
    assert isinstance(error, TransientError)
    assert (error.status, error.retry_after) == (429, 7.0)


@pytest.mark.parametrize(
    ("reply", "kind", "code"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nok", TransientError, "classifier-timeout"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nok", TransientError, "classifier-timeout"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", TransientError, "classifier-timeout"),
        (b"", TransientError, "classifier-timeout"),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", PermanentError, "classifier-refused"),
        (b"HTTP/1.1 200 OK\r\n\r\n" + b"x" * 1001, PermanentError, "reply-malformed"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 99999\r\n\r\n" + b"x" * 2000, PermanentError, "reply-malformed"),
        (
            b"HTTP/1.1 200 OK\r\ncontent-encoding: br\r\ncontent-length: 1\r\n\r\nx",
            TransientError,
            "classifier-timeout",
        ),
        (
            b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 9\r\n\r\nnot gzip.",
            TransientError,
            "classifier-timeout",
        ),
        (b"HTTP/1.1 200 OK\r\nx: " + b"x" * 20_000 + b"\r\n\r\n", TransientError, "classifier-timeout"),
        (
            b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 200 + b"content-length: 0\r\n\r\n",
            TransientError,
            "classifier-timeout",
        ),
    ],
)
async def test_a_reply_that_is_not_whole_or_has_no_end_is_none(
    reply: bytes, kind: type[ClassifierError], code: str
) -> None:
    async with listening(Played(reply, closing=True)) as port:
        error = await refusal(f"http://127.0.0.1:{port}/")
    assert type(error) is kind
    assert error.code == code
    assert error.sent


@pytest.mark.parametrize(("name", "pack"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
async def test_a_packed_reply_is_unpacked_up_to_the_cap_though_it_was_not_asked_for(
    name: str, pack: Callable[[bytes], bytes]
) -> None:
    def reply(body: bytes) -> bytes:
        head = f"HTTP/1.1 200 OK\r\ncontent-encoding: {name}\r\ncontent-length: {len(pack(body))}\r\n\r\n"
        return head.encode() + pack(body)

    async with listening(Played(reply(b"label"))) as port:
        assert (await ask(f"http://127.0.0.1:{port}/")).body == b"label"
    async with listening(Played(reply(bytes(1001)))) as port:
        assert (await refusal(f"http://127.0.0.1:{port}/")).code == "reply-malformed"


async def test_no_cookie_is_kept() -> None:
    played = Played(b"HTTP/1.1 200 OK\r\nset-cookie: a=b\r\ncontent-length: 0\r\n\r\n")
    async with listening(played) as port, opened(f"http://localhost:{port}/") as endpoint:
        await endpoint.send(b"x")
        await endpoint.send(b"x")
    assert "cookie" not in "".join(played.heads).lower()


# Connections


async def test_a_connection_is_used_again_and_dropped_when_it_is_old(monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played()
    async with listening(played) as port, opened(f"http://127.0.0.1:{port}/") as endpoint:
        for _ in range(5):
            await endpoint.send(b"x")
        assert played.connections == 1
    monkeypatch.setattr(transports, "IDLE", 0.01)
    before = sockets()
    async with listening(played) as port, opened(f"http://127.0.0.1:{port}/") as endpoint:
        for connections in (2, 3):
            await endpoint.send(b"x")
            assert played.connections == connections
            await until_async(lambda: sockets() == before + 1)  # that of the server which listens


@pytest.mark.slow
async def test_what_nobody_asked_for_is_not_taken_for_the_next_reply() -> None:
    taken, written = asyncio.Event(), asyncio.Event()
    connections = 0

    async def speaks_twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(OK)
            await writer.drain()
            await taken.wait()
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil")
            await writer.drain()
            written.set()

    async with listening(speaks_twice) as port, opened(f"http://127.0.0.1:{port}/", "GET") as endpoint:
        for _ in range(3):
            taken.clear()
            written.clear()
            assert (await endpoint.send()).body == b"ok"
            kept = idle()
            taken.set()
            await written.wait()
            await until_async(partial(dropping, kept))
        assert connections == 3


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
async def test_a_request_whose_connection_breaks_is_sent_once_and_counts(method: str) -> None:
    asked: list[bytes] = []

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(OK)
        asked.append(await reader.readuntil(b"\r\n\r\n"))

    async with listening(once) as port, opened(f"http://127.0.0.1:{port}/", method) as endpoint:
        await endpoint.send()
        with pytest.raises(TransientError, check=coded("classifier-timeout")) as caught:
            await endpoint.send()
    assert caught.value.sent
    assert len(asked) == 2


async def test_more_requests_than_any_pool_holds_are_under_way_at_once() -> None:
    together = asyncio.Barrier(150)

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await together.wait()
        writer.write(OK)
        await writer.drain()

    async with listening(meet) as port, opened(f"http://127.0.0.1:{port}/") as endpoint:
        replies = await asyncio.gather(*(endpoint.send() for _ in range(150)))
    assert {reply.body for reply in replies} == {b"ok"}


def idle() -> list[ResponseHandler]:
    """The connections that aiohttp keeps for further requests."""
    return [each for each in gc.get_objects() if isinstance(each, ResponseHandler) and each.is_connected()]


def dropping(protocols: list[ResponseHandler]) -> bool:
    return all(protocol.should_close for protocol in protocols)


def sockets() -> int:
    """How many sockets this process has open."""
    return sum(stat.S_ISSOCK(os.stat(file).st_mode) for file in Path("/proc/self/fd").iterdir() if file.exists())


async def test_a_request_that_is_cancelled_leaves_no_connection_though_the_server_reads_nothing() -> None:
    lines: list[asyncio.WriteTransport] = []

    async def stuck(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        lines.append(writer.transport)
        await asyncio.Event().wait()

    async with listening(stuck) as port, opened(f"http://127.0.0.1:{port}/") as endpoint:
        before = sockets()
        request = asyncio.create_task(endpoint.send(bytes(50_000_000)))
        # The server takes no more, so nothing more can be written.
        await until_async(lambda: bool(lines) and not lines[0].is_reading())  # type: ignore[attr-defined]
        assert sockets() == before + 2
        request.cancel()
        with pytest.raises(asyncio.CancelledError):
            await request
        await until_async(lambda: sockets() == before + 1)  # the server's own end


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_transport_serves_one_event_loop_after_another_closed_or_not(
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    transport = Transport(MANNERS, Secrets())

    async def twice(closing: bool) -> None:
        async with listening(Played()) as port:
            endpoint = transport.endpoint("POST", f"http://127.0.0.1:{port}/", {})
            assert [(await endpoint.send(b"x")).body for _ in range(2)] == [b"ok", b"ok"]
        if closing:
            await transport.close()

    for closing in (True, False, True):
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(twice(closing))


# What is surely not sent


async def test_an_absent_server_was_surely_not_asked_and_a_slow_one_may_have_been() -> None:
    absent = await refusal("http://127.0.0.1:1/")
    assert isinstance(absent, TransientError)
    assert not absent.sent
    played = Played(OK[:10])
    hasty = MANNERS.model_copy(update={"timeout": 0.2})
    async with listening(played) as port, opened(f"http://127.0.0.1:{port}/", manners=hasty) as endpoint:
        with pytest.raises(TransientError, check=coded("classifier-timeout")) as slow:
            await endpoint.send(b"x")
    assert slow.value.sent


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".example"])
async def test_a_host_without_an_address_was_surely_not_asked(host: str) -> None:
    assert not (await refusal(f"http://{host}/")).sent


@pytest.mark.parametrize(
    "header", [{"x": "a\r\nhost: evil"}, {"x\r\ny": "a"}, {"x": "a\x00"}, {"": "a"}, {"x": "\udcff"}]
)
async def test_no_header_can_smuggle_another(header: dict[str, str]) -> None:
    played = Played()
    async with listening(played) as port, opened(f"http://127.0.0.1:{port}/") as endpoint:
        with pytest.raises(PermanentError, check=coded("description-invalid")) as caught:
            await endpoint.send(b"x", header)
        with pytest.raises(PermanentError, check=coded("description-invalid")):
            Transport(MANNERS, Secrets()).endpoint("POST", "http://localhost/", header)
    assert not caught.value.sent
    assert not played.connections


@pytest.mark.parametrize("url", ["http://a b/", "http://h/\r\nx-evil: 1", "ftp://h/", "http://", "http://h:99999/"])
def test_an_address_that_is_none_is_refused_before_anything_is_sent(url: str) -> None:
    with pytest.raises(PermanentError, check=coded("description-invalid")):
        Transport(MANNERS, Secrets()).endpoint("POST", url, {})


async def test_name_and_password_in_an_address_become_a_header() -> None:
    played = Played()
    async with listening(played) as port:
        await ask(f"http://me:s%40crt@127.0.0.1:{port}/")
    assert "authorization: Basic bWU6c0BjcnQ=" in played.heads[0]
    assert "s%40crt@" not in played.heads[0]


# TLS


@pytest.fixture
def authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> trustme.CA:
    """Who vouches for servers, and is believed through the usual variable."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    transports._tls.cache_clear()
    return authority


def certified(authority: trustme.CA, name: str) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    return context


async def test_tls_is_spoken_with_a_server_whose_certificate_fits_and_with_no_other(authority: trustme.CA) -> None:
    async with listening(Played(), certified(authority, "localhost")) as port:
        assert (await ask(f"https://localhost:{port}/")).body == b"ok"
    async with listening(Played(), certified(authority, "elsewhere.example")) as port:
        error = await refusal(f"https://localhost:{port}/")
    assert isinstance(error, PermanentError)
    assert error.code == "certificate-invalid"
    assert not error.sent


@pytest.mark.parametrize(
    "greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x28", b"\x16" * 9]
)
@pytest.mark.parametrize("stalls", [False, True])
async def test_a_server_that_fails_in_the_handshake_was_sent_nothing(greeting: bytes, stalls: bool) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(greeting)
        await writer.drain()
        if stalls:
            await asyncio.sleep(60)

    manners = MANNERS.model_copy(update={"connect_timeout": 0.5})
    async with listening(handle) as port, opened(f"https://localhost:{port}/", manners=manners) as endpoint:
        with pytest.raises(ClassifierError) as caught:
            await endpoint.send(b"picture")
    assert (caught.value.sent, caught.value.billed) == (False, False)


async def test_a_reply_in_tls_that_is_cut_off_may_be_on_the_bill(authority: trustme.CA) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"picture")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.transport.abort()

    async with listening(handle, certified(authority, "localhost")) as port:
        error = await refusal(f"https://localhost:{port}/")
    assert isinstance(error, TransientError)
    assert (error.sent, error.billed) == (True, True)


# Proxies


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
            await joined(reader, writer, host, int(port))


async def joined(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
    far_reader, far_writer = await asyncio.open_connection(host, port)
    await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer))


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65_536):
            writer.write(data)
    writer.close()


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Sets the proxy for a scheme, where no other setting of proxies is in the way."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch.setenv


async def test_a_proxy_is_asked_in_place_of_the_server(environment: Callable[[str, str], None]) -> None:
    proxy = Proxy()
    async with listening(proxy) as port:
        environment("http_proxy", f"http://me:pw@127.0.0.1:{port}")
        environment("no_proxy", "inside.invalid, .wild.invalid")
        assert (await ask("http://far.example/a?x=1", trust_env=True)).body == b"ok"
        for inside in ("http://inside.invalid:1/", "http://x.wild.invalid/"):
            assert "proxy" not in str(await refusal(inside, trust_env=True))
        environment("no_proxy", "*")
        assert "proxy" not in str(await refusal("http://far.invalid/", trust_env=True))
    assert proxy.heads[0].lower().startswith("post http://far.example/a?x=1 http/1.1\r\nhost: far.example\r\n")
    assert "proxy-authorization: basic bwu6chc=" in proxy.heads[0].lower()
    assert len(proxy.heads) == 1


async def test_tls_goes_through_a_proxy_that_sees_nothing_of_it(
    authority: trustme.CA, environment: Callable[[str, str], None]
) -> None:
    proxy, played = Proxy(), Played()
    async with listening(played, certified(authority, "localhost")) as far, listening(proxy) as port:
        environment("https_proxy", f"me:pw@127.0.0.1:{port}")
        assert (await ask(f"https://localhost:{far}/secret", trust_env=True)).body == b"ok"
    head = proxy.heads[0].lower()
    assert head.startswith(f"connect localhost:{far} http/1.1\r\n")
    assert "proxy-authorization: basic bwu6chc=" in head
    assert "user-agent: looktwice" in head
    assert "secret" not in head
    assert "proxy-authorization" not in played.heads[0].lower()


async def test_a_proxy_that_refuses_or_drops_a_tunnel_or_is_not_there_passes_nothing_on(
    authority: trustme.CA, environment: Callable[[str, str], None]
) -> None:
    async def drops(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")

    played = Played()
    async with listening(played, certified(authority, "localhost")) as far:
        for proxy, words in ((Proxy(407), "407"), (drops, "disconnected")):
            async with listening(proxy) as port:
                environment("https_proxy", f"http://me:{PASSWORD}@localhost:{port}")
                error = await refusal(f"https://localhost:{far}/", trust_env=True)
            assert isinstance(error, TransientError)
            assert not error.sent
            assert f"http://localhost:{port}" in str(error)
            assert words in str(error)
            assert PASSWORD not in str(error)
        absent = await refusal(f"https://localhost:{far}/", trust_env=True)
    assert isinstance(absent, TransientError)
    assert not absent.sent
    assert not played.heads


@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_https_proxy_is_spoken_to_in_tls_and_its_password_is_never_in_the_clear(
    authority: trustme.CA,
    environment: Callable[[str, str], None],
    scheme: str,
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    heard = bytearray()
    proxy = Proxy()

    async def main() -> None:
        async def tap(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            first = await reader.read(65_536)
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", behind)
            far_writer.write(first)
            heard.extend(first)
            await asyncio.gather(listen(reader, far_writer), pass_on(far_reader, writer))

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError):
                while data := await reader.read(65_536):
                    heard.extend(data)
                    writer.write(data)
            writer.close()

        tls = certified(authority, "localhost")
        async with listening(Played(), tls) as far, listening(proxy, tls) as behind, listening(tap) as port:
            environment(f"{scheme}_proxy", f"https://me:{PASSWORD}@localhost:{port}")
            assert (await ask(f"{scheme}://localhost:{far}/", trust_env=True)).body == b"ok"

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(main())
    credentials = base64.b64encode(f"me:{PASSWORD}".encode()).decode()
    assert f"proxy-authorization: basic {credentials}".lower() in proxy.heads[0].lower()
    assert heard.startswith(b"\x16\x03")  # a TLS handshake
    for word in (PASSWORD, credentials, credentials[:8], "CONNECT", "POST"):
        assert word.encode() not in heard


async def test_an_https_proxy_that_speaks_no_tls_is_told_nothing(environment: Callable[[str, str], None]) -> None:
    heard: list[bytes] = []

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.read(65_536))
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    async with listening(plain) as port:
        environment("http_proxy", f"https://me:{PASSWORD}@localhost:{port}")
        error = await refusal("http://far.example/", trust_env=True)
    assert isinstance(error, PermanentError)
    assert not error.sent
    assert heard[0].startswith(b"\x16\x03")


@pytest.mark.parametrize("proxy", [f"socks5://me:{PASSWORD}@localhost:1", f"http://me:{PASSWORD}@localhost:bad"])
def test_a_proxy_of_another_kind_is_refused_without_its_password(
    environment: Callable[[str, str], None], proxy: str
) -> None:
    environment("all_proxy", proxy)
    with pytest.raises(PermanentError, check=coded("description-invalid")) as caught:
        Transport(HttpSettings(trust_env=True), Secrets()).endpoint("POST", "http://far.example/", {})
    assert PASSWORD not in f"{caught.value!r}{caught.value.__context__!r}"


async def test_the_words_of_a_proxy_are_masked(environment: Callable[[str, str], None]) -> None:
    credentials = base64.b64encode(f"me:{PASSWORD}".encode())
    said = b"no: me:" + PASSWORD.encode() + b" " + credentials
    reply = b"HTTP/1.1 407 No\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said)
    async with listening(Played(reply)) as port:
        environment("http_proxy", f"http://me:{PASSWORD}@127.0.0.1:{port}")
        error = await refusal("http://far.example/", trust_env=True)
    assert "no: ***" in str(error)
    assert PASSWORD not in str(error)
    assert credentials.decode() not in str(error)


# What is paid for


async def everything(engine: QueryEngine, path: Path, count: int) -> list[Row | Unscored]:
    return [row async for row in engine.ask(write_pictures(path, count), PANEL)]


async def test_a_failed_tls_handshake_is_given_back_to_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    transports._tls.cache_clear()
    played = Played(ANT)
    async with listening(played, certified(trustme.CA(), "localhost")) as port:
        classifier = connect("", {"url": f"https://localhost:{port}/", "price": "0.01"})
        async with engine_on(classifier, tmp_path / "ledger.db", budget=Budget(queries=100)) as engine:
            with pytest.raises(PermanentError, check=coded("certificate-invalid")):
                await everything(engine, tmp_path / "pictures.npz", 4)
            await engine.first.runner.finish()
            spent = engine.spend()
    assert (spent.queries, spent.micros, spent.queries_today) == (0, 0, 0)
    assert (engine.progress.sent, engine.progress.micros) == (0, 0)
    assert not played.heads


@pytest.mark.parametrize("tls", [True, False])
async def test_a_checkup_that_reaches_nobody_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tls: bool
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    transports._tls.cache_clear()
    async with listening(Played(ANT), certified(trustme.CA(), "localhost")) as port:
        url = f"https://localhost:{port}/" if tls else "http://127.0.0.1:1/"
        classifier = connect("", {"url": url, "price": "0.01"})
        async with engine_on(classifier, tmp_path / "ledger.db", budget=Budget(queries=100)) as engine:
            with pytest.raises(PermanentError if tls else ClassifierError):
                await examine(engine.first, Image.from_array(np.zeros((8, 8, 3), np.uint8)))
            spent = engine.spend()
    assert (spent.queries, spent.micros, spent.queries_today) == (0, 0, 0)
    assert (engine.progress.sent, engine.progress.micros) == (0, 0)


async def test_canaries_that_reach_nobody_cost_nothing(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    classifier = connect("", {"url": f"http://127.0.0.1:{port}/", "price": "0.01"})
    ledger = tmp_path / "ledger.db"
    async with listening(Played(ANT), port=port), engine_on(classifier, ledger) as engine:
        await everything(engine, tmp_path / "three.npz", 3)
    async with engine_on(classifier, ledger, budget=Budget(queries=100), canaries=3) as engine:
        with pytest.raises(ClassifierError, check=coded("classifier-failed")):
            await everything(engine, tmp_path / "four.npz", 4)
        await engine.first.runner.finish()
        spent = engine.spend()
    assert engine.first.canaries.kept  # which were asked about
    assert (*counted(ledger), spent.queries, spent.micros) == (15, 15, 15, 150_000)
    assert engine.progress.sent == 0


@pytest.mark.parametrize("price", ["0.0000005", "0.00000000001", "1.0000001"])
def test_a_price_below_a_millionth_is_refused_and_not_rounded(price: str) -> None:
    with pytest.raises(PermanentError, check=coded("description-invalid")):
        connect("", {"url": "http://localhost/", "price": price})
    with pytest.raises(PermanentError, check=coded("description-invalid")):
        connect_command("", {"command": "cat {image}", "price": price})
    assert connect("", {"url": "http://localhost/", "price": "0.000001"}).limits.price_micros == 1


@pytest.mark.parametrize("status", [401, 402, 403, 413, 429])
async def test_a_refusal_costs_nothing_unless_the_server_bills_it(tmp_path: Path, status: int) -> None:
    refusal = f"HTTP/1.1 {status} No\r\ncontent-length: 0\r\n\r\n".encode()
    for billed in (False, True):
        played = Played(refusal)
        async with listening(played) as port:
            settings = {"url": f"http://127.0.0.1:{port}/", "price": "0.01", "bills_refusals": billed, "concurrency": 1}
            classifier = connect("", settings)
            limits = {"retry": RetryPolicy(refusals=1), "budget": Budget(queries=100)}
            async with engine_on(classifier, tmp_path / f"{billed}.db", **limits) as engine:
                with suppress(ClassifierError):
                    await everything(engine, tmp_path / "one.npz", 1)
                with pytest.raises(ClassifierError):
                    await examine(engine.first, Image.from_array(np.zeros((8, 8, 3), np.uint8)))
        (day,) = maintenance.stats(tmp_path / f"{billed}.db")
        assert len(played.heads) >= 2
        assert (day.queries, day.answered) == (len(played.heads) if billed else 0, 0)
        assert engine.progress.sent == day.queries
