"""HTTP for all connectors: requests, replies of limited size, and the appropriate errors.

Based on aiohttp. This module also determines whether a failed request was certainly not sent, and so is not billed,
and limits the size of replies. `Secrets` masks keys in every text that leaves this module. Redirects are rejected,
because keys must not be sent to other addresses. Retries are left to the engine.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import ssl
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from typing import NamedTuple
from urllib.request import getproxies_environment, proxy_bypass
from weakref import WeakSet

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.tracing import Trace
from yarl import URL

from looktwice.classifiers.base import Answer, Option
from looktwice.classifiers.secrets import SEARCHED, Secrets
from looktwice.classifiers.settings import HttpSettings
from looktwice.errors import ClassifierError, PermanentError, QuotaError, TransientError

# How long a server asks to wait --------------------------------------------------------------------------------------


WAITS = ("retry-after", "ratelimit-reset", "x-ratelimit-reset")
"""The headers with a wait, the most reliable first."""
YEAR = 366 * 86_400.0
"""The longest accepted wait, in seconds."""
SECONDS = re.compile(r"[ \t]*[0-9]{1,15}(\.[0-9]{1,9})?[ \t]*")


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """The wait that a server requests, in seconds, by a number, a Unix time or a date: at most a year."""
    now = _moment(headers.get("date", "")) or now or time.time()
    for text in (headers.get(name, "") for name in WAITS):
        moment = float(text) if SECONDS.fullmatch(text) else _moment(text)
        if moment is not None:
            return min(max(0.0, moment - now if moment > 1e9 else moment), YEAR)
    return None


def _moment(text: str) -> float | None:
    """The Unix time of a date; None for dates before 2001, which a clock that was never set shows."""
    try:
        moment = parsedate_to_datetime(text).timestamp()
    except (ValueError, OverflowError, OSError):
        return None
    return moment if moment > 1e9 else None


# Requests ------------------------------------------------------------------------------------------------------------


IDLE = 4.0
"""The number of seconds for which an idle connection is kept open: less than the 5 s of common servers."""
LATE, GRACE = 1.0, 5.0
"""A timer that is more than LATE seconds late shows that the process was stopped; it then reads for GRACE seconds."""
LARGE = 1 << 20
"""Request bodies above this size in bytes are sent in pieces."""
AGENT = {"user-agent": "looktwice"}
HOST = re.compile(r"[\w.~%:-]+", re.ASCII)
HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
FORBIDDEN = re.compile(r"[\x00-\x08\x0a-\x1f\x7f\ud800-\udfff]")

TRANSIENT = {408, 425, 429}
UNSUPPORTED = {501, 505}
QUOTA_STATUSES = {400, 402, 403, 429}
QUOTA_WORDS = re.compile(
    r"insufficient[ _](quota|funds|credits?|balance)|quota[ _](has been |is |was )?(exceeded|exhausted)"
    r"|exceeded your (current|monthly)|out of call volume quota|billing|credit balance",
    re.IGNORECASE,
)
RATE_WORDS = re.compile(r"per[ _]?(second|minute)", re.IGNORECASE)
ADVICE = {
    400: "the server did not accept the request; compare the request with the server's manual",
    401: "the key was refused; {key}",
    403: "the key lacks permission for this; {key}",
    404: "nothing was found at this address; check the address and the name of the model",
    405: "the server does not support this method at this address; check method and url",
    413: 'the picture is too large for the server; set max_side, or max_bytes with format = "jpeg"',
    415: "the server does not support this kind of body; check the body's kind and content type",
    422: "the server did not understand the body; compare the body's fields with the server's manual",
}


class Found(NamedTuple):
    """The server's word for the label, and its score."""

    word: str
    score: float | None
    options: tuple[Option, ...] = ()
    """The ranked list, if the reply contains one."""


class Reply(NamedTuple):
    """The reply of a server; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class Garbled(Exception):
    """Raised if a reply does not match the description."""


@dataclass
class Attempt:
    """One request and its connection; without a connection, nothing was sent."""

    connection: asyncio.Transport | None = None

    @property
    def sent(self) -> bool:
        """Whether the server may have received the request."""
        return self.connection is not None


ATTEMPT: ContextVar[Attempt] = ContextVar("ATTEMPT")
"""The request that the running task is sending."""


class Connector(aiohttp.TCPConnector):
    """A connector that gives each attempt at most one connection."""

    def __init__(self) -> None:
        super().__init__(limit=0, keepalive_timeout=IDLE, resolver=aiohttp.ThreadedResolver())
        self._given: WeakSet[ResponseHandler] = WeakSet()

    async def connect(
        self, req: aiohttp.ClientRequest, traces: list[Trace], timeout: aiohttp.ClientTimeout
    ) -> Connection:
        attempt = ATTEMPT.get()
        if attempt.sent:
            # aiohttp sends a GET or PUT again if its connection is lost, but the first one may be billed already.
            raise aiohttp.ClientConnectionError("the connection was lost")
        connection = await super().connect(req, traces, timeout)
        while (protocol := connection.protocol) is not None and protocol.should_close and protocol in self._given:
            # Bytes received while the connection was idle would be read as the reply to this request.
            connection.close()
            connection = await super().connect(req, traces, timeout)
        if protocol is not None and protocol not in self._given:
            self._given.add(protocol)
        attempt.connection = connection.transport
        return connection


class Transport:
    """Connections to servers, opened for the first request; it can be used again after `close`, in any event loop."""

    def __init__(self, http: HttpSettings, secrets: Secrets) -> None:
        self.http = http
        self.secrets = secrets
        self.restated: Callable[[Reply], Reply] = lambda reply: reply
        """Maps a refusal to the equivalent HTTP status, for a server with its own error codes."""
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def endpoint(self, method: str, url: str | URL, headers: Mapping[str, str]) -> Endpoint:
        """Create an endpoint; it prepares everything that its requests share and should be reused."""
        return Endpoint(self, method, _url(url, self.secrets), headers)

    async def session(self) -> aiohttp.ClientSession:
        """The session of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._session and self._loop is loop:
            return self._session
        old, self._session, self._loop = self._session, self._open(), loop
        if old:
            with suppress(RuntimeError):  # the event loop of the old session may be closed
                await old.close()
        return self._session

    def _open(self) -> aiohttp.ClientSession:
        connect = min(self.http.timeout, self.http.connect_timeout)
        return aiohttp.ClientSession(
            connector=Connector(),
            timeout=aiohttp.ClientTimeout(total=None, connect=connect),  # the whole request is limited by _timeout
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def close(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        if session:
            await session.close()


@asynccontextmanager
async def _timeout(seconds: float) -> AsyncIterator[None]:
    """Raise a TimeoutError after this many seconds.

    If the process was stopped meanwhile (Ctrl-Z), a reply that is already in the socket is read first.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds

    def expire() -> None:
        was_stopped = loop.time() - end > LATE
        limit.reschedule(loop.time() + (GRACE if was_stopped else 0.0))

    timer = loop.call_at(end, expire)
    try:
        async with asyncio.timeout(None) as limit:
            yield
    finally:
        timer.cancel()


class Endpoint:
    """A server address, with the method and headers that all requests to it share."""

    def __init__(self, transport: Transport, method: str, url: URL, headers: Mapping[str, str]) -> None:
        self._transport = transport
        self._method = method
        self._url = url.with_user(None).with_fragment(None)
        self._where = transport.secrets.mask(str(self._url.with_query(None)))
        self._proxy = _proxy(url, transport.secrets) if transport.http.trust_env else None
        own = AGENT | {"accept": "*/*", "accept-encoding": "identity"} | _authorization("authorization", url)
        if self._proxy and url.scheme == "http":
            own |= self._proxy.headers
        self._headers = own | self._sendable(headers)

    async def send(self, body: bytes | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        """Send one request; raises a ClassifierError on failure."""
        attempt = Attempt()
        every = self._headers | self._sendable(headers) if headers else self._headers
        try:
            reply = await self._exchange(attempt, every, body)
        except (aiohttp.ClientError, OSError, ValueError) as error:
            failure = self._failed(error) if attempt.sent else self._unsent(error)
        else:
            if 200 <= reply.status < 300:
                return reply
            failure = self._refused(self._transport.restated(reply))
        # Raised outside the handler, so that the network error, which may contain the key, is not attached.
        raise failure

    async def _exchange(self, attempt: Attempt, headers: Mapping[str, str], body: bytes | None) -> Reply:
        """Send a request once, and read its reply up to the size limit."""
        session = await self._transport.session()
        secure = "https" in (self._url.scheme, self._proxy and self._proxy.url.scheme)
        token = ATTEMPT.set(attempt)
        try:
            async with (
                _timeout(self._transport.http.timeout),
                session.request(
                    self._method,
                    self._url,
                    data=io.BytesIO(body) if body and len(body) > LARGE else body,
                    headers=headers,
                    allow_redirects=False,
                    proxy=self._proxy.url if self._proxy else None,
                    proxy_headers=self._proxy.headers if self._proxy else None,
                    ssl=_tls() if secure else True,
                ) as response,
            ):
                return await self._read(response)
        except BaseException:
            if attempt.connection:
                attempt.connection.abort()  # at once, discarding unsent data
            raise
        finally:
            ATTEMPT.reset(token)

    async def _read(self, response: aiohttp.ClientResponse) -> Reply:
        parts, size = [], 0
        async for part in response.content.iter_any():
            parts.append(part)
            size += len(part)
            if size > (most := self._transport.http.max_reply_bytes):
                raise PermanentError(
                    f"{self._where} sent a reply of more than {most} bytes; if this is expected, raise max_reply_bytes",
                    code="reply-malformed",
                )
        return Reply(response.status, response.headers, b"".join(parts))

    def _sendable(self, headers: Mapping[str, str]) -> dict[str, str]:
        """Convert header names to lower case; rejects headers that aiohttp would reject only after connecting."""
        for name, value in headers.items():
            if not HEADER_NAME.fullmatch(name) or FORBIDDEN.search(value):
                what = f"header {self._transport.secrets.line(name)!r} has a name or a value that cannot be sent"
                raise PermanentError(
                    f"the request to {self._where} is malformed: {what}; check the headers", sent=False
                )
        return {name.lower(): value for name, value in headers.items()}

    def parse(self, reply: Reply) -> object:
        """Parse a JSON reply."""
        try:
            return json.loads(reply.body)
        except (ValueError, RecursionError):
            pass
        raise self.garbled("is not JSON", reply)

    def answer(self, reply: Reply, content: object, read: Callable[[object], Found]) -> Answer:
        """The answer that `read` finds in the content of a reply; if it raises Garbled, raises a TransientError."""
        try:
            word, score, options = read(content)
        except Garbled as why:
            problem = str(why)
        else:
            return self._transport.secrets.answer(word, score, reply.status, reply.body, options)
        raise self.garbled(problem, reply)

    def garbled(self, why: str, reply: Reply) -> TransientError:
        """The error for an invalid reply with a 2xx status."""
        words = _words(reply.body, self._transport.secrets)
        return TransientError(
            f"the reply from {self._where} {self._transport.secrets.line(why)}: {words}; "
            "check the address and the label path",
            status=reply.status,
            garbled=True,
            code="reply-malformed",
        )

    def _failed(self, error: Exception) -> ClassifierError:
        """The error for a request that may have been sent but received no complete reply."""
        why = f"closed the connection before its reply was complete: {self._why(error)}"
        if isinstance(error, TimeoutError):
            seconds = self._transport.http.timeout
            why = f"did not reply within {seconds:g} s; if the server needs more time, raise timeout"
        return TransientError(f"{self._where} {why}", code="classifier-timeout")

    def _unsent(self, error: Exception) -> ClassifierError:
        """The error for a request that was certainly not sent."""
        where = f"{self._where} through the proxy {self._proxy.url}" if self._proxy else self._where
        match error:
            case aiohttp.ClientSSLError():
                message = f"{where} cannot be used: {self._why(error)}; check the address and the server's certificate"
                return PermanentError(message, sent=False, code="certificate-invalid")
            case ValueError():
                return PermanentError(f"{where} is not a usable address: {self._why(error)}; check the url", sent=False)
            case TimeoutError():
                http = self._transport.http
                why = f"no connection within {min(http.timeout, http.connect_timeout):g} s"
            case _:
                why = self._why(error)
        return TransientError(
            f"{where} cannot be reached: {why}; check that the server is running",
            sent=False,
            code="classifier-unreachable",
        )

    def _why(self, error: Exception) -> str:
        """The cause in one line; the address is left out, since it may contain a key."""
        match error:
            case aiohttp.ClientHttpProxyError():
                why = f"the proxy answered {error.status}"
            case aiohttp.ClientResponseError():
                why = f"the reply is not HTTP: {error.message}"
            case aiohttp.ClientConnectorError():
                why = str(error.os_error)
            case _:
                why = str(error)
        return self._transport.secrets.line(why) or type(error).__name__

    def _refused(self, reply: Reply) -> ClassifierError:
        """The error for a reply with a status other than 2xx."""
        words = _words(reply.body, self._transport.secrets)
        summary = f"{self._where} answered {reply.status}: {words}"
        kind = _kind(reply.status, reply.body[:SEARCHED].decode("utf-8", "replace"))
        billed = self._transport.http.bills(reply.status)
        if kind is TransientError:
            wait = retry_after(reply.headers)
            return TransientError(f"{summary}; try later", status=reply.status, retry_after=wait, billed=billed)
        return kind(f"{summary}; {self._advice(reply, kind)}", status=reply.status, billed=billed)

    def _advice(self, reply: Reply, kind: type[ClassifierError]) -> str:
        if kind is QuotaError:
            return "the account has no quota or money left; add some, then run the same command again"
        if 300 <= reply.status < 400:
            target = self._transport.secrets.line(reply.headers.get("location", "elsewhere"))
            return (
                f"the server redirects to {target}, which is not followed; put the final address into the description"
            )
        advice = ADVICE.get(reply.status, "compare the description with the server's manual")
        return advice.format(key=self._transport.secrets.whose())


def _kind(status: int, words: str) -> type[ClassifierError]:
    quota = status == 402 or (status in QUOTA_STATUSES and QUOTA_WORDS.search(words) is not None)
    if quota and not (status == 429 and RATE_WORDS.search(words)):
        return QuotaError
    later = status in TRANSIENT or (status >= 500 and status not in UNSUPPORTED)
    return TransientError if later else PermanentError


def _words(body: bytes, secrets: Secrets) -> str:
    return f'"{secrets.line(body.decode("utf-8", "replace"))}"' if body else "an empty body"


def _url(url: str | URL, secrets: Secrets) -> URL:
    with suppress(ValueError):
        parsed = URL(url)
        if (
            parsed.scheme in ("http", "https")
            and HOST.fullmatch(parsed.raw_host or "")
            and not FORBIDDEN.search(str(url))
        ):
            return parsed
    raise PermanentError(f"{secrets.line(str(url))!r} is not an address; write http://host/path or https://host/path")


@dataclass(frozen=True)
class Proxy:
    """A proxy with its headers."""

    url: URL
    headers: Mapping[str, str]


def _proxy(url: URL, secrets: Secrets) -> Proxy | None:
    """The proxy that the environment specifies for an address; its password is masked from then on."""
    proxies = getproxies_environment()
    address = proxies.get(url.scheme) or proxies.get("all")
    if not address or proxy_bypass(url.host_port_subcomponent or ""):
        return None
    with suppress(ValueError):
        proxy = URL(address if "://" in address else f"http://{address}")
        if proxy.scheme in ("http", "https") and proxy.host:
            if proxy.user:
                for value in (proxy.password or proxy.user, f"{proxy.user}:{proxy.password or ''}"):
                    secrets.hide(value, "the password of the proxy")
            return Proxy(proxy.origin(), AGENT | _authorization("proxy-authorization", proxy))
    # The value is not shown, because a password in it could not be recognised.
    raise PermanentError(
        f"the environment specifies a proxy for {url.scheme} that is not http://host:port or https://host:port; "
        f"correct {url.scheme.upper()}_PROXY or ALL_PROXY, or leave trust_env out"
    )


def _authorization(name: str, url: URL) -> dict[str, str]:
    """A Basic authorization header with the user name and password in an address."""
    if not url.user:
        return {}
    return {name: "Basic " + base64.b64encode(f"{url.user}:{url.password or ''}".encode()).decode()}


@cache
def _tls() -> ssl.SSLContext:
    return ssl.create_default_context()
