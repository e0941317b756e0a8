"""How much is held of requests: their number, the size of each body, the time it takes, and all bodies together."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from looktwice.service import Limits
from looktwice.service.guards import Counters
from looktwice.service.replies import Refusal


class Admission:
    """Admits as many requests with a body at a time as the limits allow; GET always passes, so that health is known.

    A body that exceeds a limit while it arrives raises a Refusal where it is read.
    """

    def __init__(self, app: ASGIApp, limits: Limits, counters: Counters) -> None:
        self._app, self._limits, self._counters = app, limits, counters
        self._slots = asyncio.Semaphore(limits.requests)
        self._waiting = self._bytes = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in ("GET", "HEAD"):
            await self._app(scope, receive, send)
            return
        try:
            await self._admit(Headers(scope=scope))
        except Refusal as refusal:
            self._counters.refused(refusal.code)
            await refusal.response()(scope, receive, send)
            return
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
            self._slots.release()
            self._bytes -= size

    async def _admit(self, headers: Headers) -> None:
        """Take a slot for a request, when it is its turn; a Refusal says that there will be none in time."""
        announced = headers.get("content-length", "0")
        if not announced.isdecimal() or int(announced) > self._limits.body:
            raise _too_large(self._limits)
        if self._slots.locked() and self._waiting >= self._limits.waiting:
            raise _busy()
        self._waiting += 1
        try:
            async with asyncio.timeout(self._limits.seconds / 2):
                await self._slots.acquire()
        except TimeoutError:
            raise _busy() from None
        finally:
            self._waiting -= 1


def _too_large(limits: Limits) -> Refusal:
    return Refusal("size", f"the body may have {limits.body:,} bytes; send a smaller picture, or fewer at a time")


def _busy() -> Refusal:
    return Refusal("busy", "the service is busy with other requests; try again in a moment", 1)
