"""Access control (host names, origins and tokens), request limits, and the headers of every reply.

The check of the host name prevents DNS rebinding, the check of the origin prevents forms on other pages from sending
requests. Without a token, the service only listens on addresses of this machine.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import re
import secrets
from collections.abc import Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from looktwice.model import LookTwiceError, shown
from looktwice.service import Place, ServiceLimits
from looktwice.service.bodies import Refusal

TOKENS = "LOOKTWICE_TOKENS"
HASH = re.compile(r"[0-9a-f]{64}")
HOST = re.compile(r"(?P<name>\[[0-9a-fA-F:.]+\]|[^\[\]:/@\s]+)(?::\d{1,5})?")
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data: blob:",
        "connect-src 'self'",
        "form-action 'none'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "content-security-policy": POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(self), microphone=(), geolocation=()",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
ENCODED = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
UNCACHED = (b"cache-control", b"no-store")
LOG = logging.getLogger("looktwice.service")
LONGEST_PATH = 80
"""The maximum number of characters of a path in the log."""


class Counters:
    """An observer of replies and refusals that ignores them."""

    def replied(self, status: int) -> None: ...

    def refused(self, code: str) -> None: ...


def log_refusal(scope: Scope, code: str) -> None:
    """A log line about a refused request: the client, the request and the reason, without headers, query and body."""
    client = (scope.get("client") or ("unknown",))[0]
    LOG.warning("refused %s %s %s: %s", client, scope["method"], shown(scope["path"][:LONGEST_PATH]), code)


@dataclass(frozen=True)
class Tokens:
    """SHA-256 hashes of the accepted tokens; if empty, everybody has access."""

    hashes: tuple[str, ...] = ()
    made: str = field(default="", repr=False)
    """The token created for this run, which is printed once and not stored."""

    @classmethod
    def of(cls, place: Place) -> Tokens:
        """The tokens for this address; a new token is created if requested, and its hash is added to the token file."""
        if not place.new_token:
            return cls.read(place.token_file)
        token = secrets.token_urlsafe(18)
        hashed = sha256(token.encode()).hexdigest()
        if place.token_file:
            _append(place.token_file, hashed)
        return cls((*cls.read(place.token_file).hashes, hashed), token)

    @classmethod
    def read(cls, path: Path | None) -> Tokens:
        """Read hashes from the environment and a file: in hex, one per line, with an optional name before each."""
        words = _words(os.environ.get(TOKENS, "").replace(",", "\n"))
        if path:
            try:
                filed = _words(path.read_text("utf-8"))
            except (OSError, UnicodeDecodeError) as error:
                raise LookTwiceError(
                    f"the token file {str(path)!r} cannot be read: {error}", code="token-invalid"
                ) from None
            if not filed:
                raise LookTwiceError(
                    f"the token file {str(path)!r} holds no hash; --new-token makes a token and adds its hash",
                    code="token-invalid",
                )
            words += filed
        if not all(map(HASH.fullmatch, words)):
            raise LookTwiceError(
                "a token is stored as its SHA-256, 64 hex digits; --new-token creates one and adds it to --token-file",
                code="token-invalid",
            )
        return cls(tuple(words))

    def know(self, authorization: str) -> bool:
        """Whether a header `Bearer …` contains an accepted token, compared in constant time; true if there are no
        tokens."""
        if not self.hashes:
            return True
        scheme, _, token = authorization.partition(" ")
        presented = sha256(token.strip().encode("utf-8", "surrogateescape")).hexdigest()
        matches = [compare_digest(presented, known) for known in self.hashes]
        return any(matches) and scheme.lower() == "bearer"


def _append(path: Path, line: str) -> None:
    """Append a line to a file; a new file can be read only by its owner."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "a", encoding="utf-8") as file:
            file.write(f"\n{line}\n" if file.tell() else f"{line}\n")
    except OSError as error:
        raise LookTwiceError(f"the token file {str(path)!r} cannot be written: {error}", code="token-invalid") from None


def _words(text: str) -> list[str]:
    return [line.split()[-1] for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def is_loopback(host: str) -> bool:
    """Whether the address is only reachable from this machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def check_address(host: str, tokens: Tokens) -> None:
    """Raise an error for a public address without access control."""
    if not is_loopback(host) and not tokens.hashes:
        raise LookTwiceError(
            f"{host} can be reached from other machines, so a token is needed: --new-token creates one and prints a "
            f"link with it, and --token-file (or {TOKENS}) holds the SHA-256 of known tokens; or use --host 127.0.0.1",
            code="token-invalid",
        )


class Guard:
    """ASGI middleware that rejects requests without access, and limits concurrent requests with a body.

    GET requests are never limited, so that health checks work. Reading a body that exceeds a limit raises a Refusal.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: ServiceLimits,
        tokens: Tokens,
        names: Iterable[str],
        open_paths: Collection[str],
        counters: Counters,
    ) -> None:
        self._app, self._limits, self._tokens, self._open, self._counters = app, limits, tokens, open_paths, counters
        self._names = frozenset(name.lower() for name in (*names, "localhost"))
        self._requests = self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        unread = scope["method"] not in ("GET", "HEAD")

        async def noted() -> Message:
            nonlocal unread
            message = await receive()
            unread = message["type"] == "http.request" and message.get("more_body", False)
            return message

        async def sealed(message: Message) -> None:
            if unread and message["type"] == "http.response.body" and not message.get("more_body"):
                # The rest of a rejected body is discarded: closing at once could reset the connection, and the reply.
                await send({**message, "more_body": True})
                with suppress(TimeoutError):
                    async with asyncio.timeout(self._limits.headers):
                        while unread:
                            await noted()
                message = {"type": "http.response.body"}
            if message["type"] == "http.response.start":
                headers = message["headers"] = [*message.get("headers", ()), *ENCODED]
                if not any(name == UNCACHED[0] for name, _ in headers):
                    headers.append(UNCACHED)
                self._counters.replied(message["status"])
            await send(message)

        answer = self._app if scope["method"] in ("GET", "HEAD") else self._with_body
        try:
            self._check(scope)
            if answer == self._with_body:
                self._admit(scope)
        except Refusal as refusal:
            self._counters.refused(refusal.code)
            log_refusal(scope, refusal.code)
            answer = refusal.response()
        await answer(scope, noted, sealed)

    async def _with_body(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an admitted request, and measure its body as it arrives."""
        limits, size, complete = self._limits, 0, False
        end = asyncio.get_running_loop().time() + limits.upload

        async def counted() -> Message:
            nonlocal size, complete
            if complete:
                return await receive()
            try:
                async with asyncio.timeout_at(end):
                    message = await receive()
            except TimeoutError:
                slow = f"the body did not arrive within {limits.upload:g} s; send it faster"
                raise Refusal("slow", slow) from None
            part = len(message.get("body", b""))
            size, complete = size + part, not message.get("more_body", False)
            self._bytes += part
            if size > limits.body:
                raise _too_large(limits)
            if self._bytes > limits.memory:
                raise _busy()
            return message

        try:
            await self._app(scope, counted, send)
        finally:
            self._requests -= 1
            self._bytes -= size

    def _admit(self, scope: Scope) -> None:
        """Raise a Refusal if the body is announced as too large, or there are too many requests."""
        announced = Headers(scope=scope).get("content-length", "0")
        if not announced.isdecimal() or int(announced) > self._limits.body:
            raise _too_large(self._limits)
        if self._requests >= self._limits.requests:
            raise _busy()
        self._requests += 1

    def _check(self, scope: Scope) -> None:
        headers = {name: value.decode("latin-1") for name, value in reversed(scope["headers"])}
        host = headers.get(b"host", "")
        twice = sum(name == b"host" for name, _ in scope["headers"]) > 1  # whoever stands before us may read the other
        if twice or not self._serves(host):
            raise Refusal(
                "host", "this host name is not allowed; to allow it, start the service with --allow-host NAME"
            )
        origin = headers.get(b"origin")
        if origin is not None and origin.lower().rpartition("://")[2] != host.lower():
            raise Refusal("origin", "requests from other sites' pages are rejected")
        if scope["path"] not in self._open and not self._tokens.know(headers.get(b"authorization", "")):
            raise Refusal("token", "a token is needed; send it in the header Authorization: Bearer TOKEN")

    def _serves(self, host: str) -> bool:
        """IP addresses are always accepted, since DNS rebinding requires a host name."""
        match = HOST.fullmatch(host)
        if not match:
            return False
        name = match["name"].strip("[]").lower()
        try:
            return name in self._names or bool(ipaddress.ip_address(name))
        except ValueError:
            return False


def _too_large(limits: ServiceLimits) -> Refusal:
    return Refusal(
        "size", f"the body may have at most {limits.body:,} bytes; send a smaller picture, or fewer pictures"
    )


def _busy() -> Refusal:
    return Refusal("busy", "the service is busy with other requests; try again in a moment", 1)
