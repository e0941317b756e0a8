"""HTTP/1.1 to one server, and no more of it than asking needs: a body out, a capped reply back.

A general client took half of the processor time of a question: aiohttp 78 µs, this 27 µs (benchmarks/engine.py). And
whether a request that failed had been sent decides what is paid for: here, only a missing connection says it was not.
The parsing is httptools'; names, sockets and TLS are asyncio's.
"""

from __future__ import annotations

import asyncio
import re
import ssl
import zlib
from base64 import b64encode
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from typing import NamedTuple, cast
from urllib.request import getproxies_environment, proxy_bypass

import httptools
from yarl import URL

IDLE = 4.0
"""Seconds that an idle connection is kept: under the 5 after which common servers close it in our face."""
MOST_HEADERS = 2**18
"""Bytes of headers, and of words before the reply, that are taken; a server could send them without end."""
NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
GZIP_OR_ZLIB = 32 + zlib.MAX_WBITS


class UnreachableError(Exception):
    """There was no connection, so surely nothing was sent."""


class BrokenError(Exception):
    """A request was sent, and its reply did not come whole."""


class OverlongError(Exception):
    """The reply is larger than allowed."""


class Reply(NamedTuple):
    """What a server sent back; the names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Limits(NamedTuple):
    """Seconds for a whole request and for its connection, and bytes of a reply."""

    seconds: float
    connect_seconds: float
    reply_bytes: int


class Server:
    """The connections to one server, directly or through a proxy; idle ones are used again."""

    def __init__(self, url: URL, limits: Limits, trust_env: bool) -> None:
        self._url = url
        self._limits = limits
        self._proxy = _proxy(url) if trust_env else None
        self._idle: list[Connection] = []
        self._busy: set[Connection] = set()

    def head(self, method: str, headers: Mapping[str, str]) -> bytes:
        """All of a request but its length and body."""
        direct = self._proxy is None or self._url.scheme == "https"
        target = self._url.raw_path_qs if direct else str(self._url.with_user(None).with_fragment(None))
        own = {"host": self._url.host_port_subcomponent or "", "user-agent": "looktwice", "accept": "*/*"}
        own |= {"accept-encoding": "identity"} | _authorization("authorization", self._url)
        own |= {} if direct or self._proxy is None else _authorization("proxy-authorization", self._proxy)
        return _head(f"{method} {target}", own | {name.lower(): value for name, value in headers.items()})

    async def send(self, head: bytes, body: bytes | None) -> Reply:
        """The whole reply to one request."""
        began = asyncio.get_running_loop().time()
        connection = self._waiting(began) or await self._connected()
        self._busy.add(connection)
        try:
            left = self._limits.seconds - (connection.loop.time() - began)
            reply = await connection.ask(b"%bcontent-length: %d\r\n\r\n" % (head, len(body or b"")), body, left)
        finally:
            self._busy.discard(connection)
        if connection.open:
            self._idle.append(connection)
        return unpacked(reply, self._limits.reply_bytes)

    async def close(self) -> None:
        """Drop every connection."""
        for connection in (*self._idle, *self._busy):
            connection.drop()
        self._idle.clear()
        await asyncio.sleep(0)

    def _waiting(self, now: float) -> Connection | None:
        """The connection that was used last, if it is still good."""
        while self._idle:
            connection = self._idle.pop()
            if connection.open and connection.loop is asyncio.get_running_loop() and now - connection.used < IDLE:
                return connection
            connection.drop()
        return None

    async def _connected(self) -> Connection:
        seconds = min(self._limits.connect_seconds, self._limits.seconds)
        try:
            async with asyncio.timeout(seconds):
                return await self._connect()
        except TimeoutError:
            raise UnreachableError(f"no connection within {seconds:g} s") from None
        except ssl.SSLError:
            raise
        except OSError as error:
            raise UnreachableError(str(error)) from None

    async def _connect(self) -> Connection:
        loop = asyncio.get_running_loop()
        tls = _tls() if self._url.scheme == "https" else None
        to = self._proxy or self._url
        _, connection = await loop.create_connection(
            lambda: Connection(loop, self._limits.reply_bytes),
            str(to.host),
            to.port or 0,
            ssl=None if self._proxy else tls,
        )
        if self._proxy and tls:
            await connection.tunnel(self._tunnel_head(self._proxy), tls, str(self._url.host))
        return connection

    def _tunnel_head(self, proxy: URL) -> bytes:
        place = f"{self._url.host_subcomponent}:{self._url.port}"
        return _head(f"CONNECT {place}", {"host": place} | _authorization("proxy-authorization", proxy)) + b"\r\n"


class Connection(asyncio.Protocol):
    """One connection, which carries a request at a time."""

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self.loop = loop
        self.open = False
        self._transport: asyncio.Transport
        self.used = 0.0
        self._most = most
        self._reply: asyncio.Future[Reply] | None = None
        self._came = 0
        """Bytes that came since the request was sent."""
        self._tunnelling = False
        self._begin()

    async def ask(self, head: bytes, body: bytes | None, seconds: float) -> Reply:
        """The reply to a request; the connection is open afterwards if it may carry another."""
        self._reply = self.loop.create_future()
        self._came = 0
        timer = self.loop.call_later(seconds, self._fail, TimeoutError())
        self._transport.writelines((head, body) if body else (head,))
        try:
            return await self._reply
        except asyncio.CancelledError:
            self.drop()
            raise
        finally:
            timer.cancel()
            self._reply = None
            self.used = self.loop.time()

    async def tunnel(self, head: bytes, tls: ssl.SSLContext, host: str) -> None:
        """Have a proxy pass everything on, and speak TLS through it."""
        self._tunnelling = True
        reply = await self.ask(head, None, IDLE)
        if not 200 <= reply.status < 300:
            self.drop()
            raise UnreachableError(f"the proxy answered {reply.status}")
        self._tunnelling = False
        secured = await self.loop.start_tls(self._transport, self, tls, server_hostname=host)
        self._transport = cast(asyncio.Transport, secured)
        self._parser = httptools.HttpResponseParser(self)

    def drop(self) -> None:
        """Close at once, whatever is on its way."""
        self.open = False
        with suppress(RuntimeError):  # the loop it belonged to may be closed
            self._transport.abort()

    # What asyncio tells ----------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._parser = httptools.HttpResponseParser(self)
        self.open = True

    def data_received(self, data: bytes) -> None:
        if self._reply is None:
            self.drop()  # nobody asked: whatever it is, it must not be taken for the next reply
            return
        self._came += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._fail(BrokenError("the server wants to speak another protocol"))
        except httptools.HttpParserError as error:
            self._fail(BrokenError(f"it is not HTTP: {error}"))
        if not self._headed and self._came > MOST_HEADERS:
            self._fail(BrokenError(f"its headers are longer than {MOST_HEADERS} bytes"))

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        if self._endless and error is None:
            self._finish()
        else:
            self._fail(BrokenError(str(error) if error else "the server closed the connection"))

    # What the parser tells -------------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        key, text = name.decode("latin-1").lower(), value.decode("utf-8", "replace")
        self._headers[key] = f"{self._headers[key]}, {text}" if key in self._headers else text

    def on_headers_complete(self) -> None:
        self._headed = True
        self._endless = "content-length" not in self._headers and "transfer-encoding" not in self._headers
        if self._tunnelling:
            self._finish()

    def on_body(self, part: bytes) -> None:
        self._parts.append(part)
        self._size += len(part)
        if self._size > self._most:
            self._fail(OverlongError())

    def on_message_complete(self) -> None:
        if self._parser.get_status_code() < 200:
            self._begin()  # a word in between, such as 100 Continue
        else:
            self.open = self.open and self._parser.should_keep_alive()
            self._finish()

    # Ends ------------------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        self._headers: dict[str, str] = {}
        self._parts: list[bytes] = []
        self._headed = False
        self._size = 0
        self._endless = False
        """Whether the reply ends where the connection does."""

    def _finish(self) -> None:
        reply = Reply(self._parser.get_status_code(), self._headers, b"".join(self._parts))
        self._begin()
        if self._reply and not self._reply.done():
            self._reply.set_result(reply)
        if not self.open:
            self.drop()

    def _fail(self, error: Exception) -> None:
        self._begin()
        if self._reply and not self._reply.done():
            self._reply.set_exception(error)
        self.drop()


def _head(line: str, headers: Mapping[str, str]) -> bytes:
    for name, value in headers.items():
        if not NAME.fullmatch(name) or FORBIDDEN.search(value):
            raise ValueError(f"header {name!r} has a name or a value that cannot be sent")
    return "".join([f"{line} HTTP/1.1\r\n", *(f"{name}: {value}\r\n" for name, value in headers.items())]).encode()


def _authorization(name: str, url: URL) -> dict[str, str]:
    """The name and password in an address, as a header."""
    if not url.user:
        return {}
    return {name: "Basic " + b64encode(f"{url.user}:{url.password or ''}".encode()).decode()}


def _proxy(url: URL) -> URL | None:
    """What the environment says is to be asked in place of the server."""
    proxies = getproxies_environment()
    if proxy_bypass(url.host_port_subcomponent or "", proxies):
        return None
    found = proxies.get(url.scheme) or proxies.get("all")
    return URL(found if "://" in found else f"http://{found}") if found else None


def unpacked(reply: Reply, most: int) -> Reply:
    """The reply as it was before it was packed for the way, at most so many bytes of it."""
    encoding = reply.headers.get("content-encoding", "identity").strip().lower()
    if encoding == "identity" or not reply.body:
        return reply
    if encoding not in ("gzip", "x-gzip", "deflate"):
        raise BrokenError(f"it is packed as {encoding!r}, which was not asked for")
    unpacker = zlib.decompressobj(GZIP_OR_ZLIB)
    try:
        body = unpacker.decompress(reply.body, most + 1)
    except zlib.error as error:
        raise BrokenError(f"it is not packed as it says: {error}") from None
    if len(body) > most:
        raise OverlongError()
    if not unpacker.eof:
        raise BrokenError("it is packed, and cut off")
    return reply._replace(body=body)


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
