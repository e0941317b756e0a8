"""A Label Studio ML backend: Label Studio sends tasks, and gets verdicts as predictions.

Pictures come in the tasks themselves, as data URLs, or are fetched from the one Label Studio that was named when the
service was started. No other address is ever asked, whatever a task or a redirect names.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable, Callable
from hashlib import sha256
from http import HTTPStatus

import aiohttp
from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field
from yarl import URL

from looktwice.errors import DataError, LookTwiceError
from looktwice.model import Picture, Profile, Verdict
from looktwice.service import Limits, bodies
from looktwice.service.bodies import Opened
from looktwice.service.guards import Counters
from looktwice.service.label_interface import Interface
from looktwice.service.replies import Refusal

KEY = "LABEL_STUDIO_API_KEY"
"""The environment variable with the key for Label Studio: a personal access token, or a legacy one."""
FRESH = 60.0
"""Seconds that the access token for a personal access token is used; Label Studio takes it for five minutes."""
DATA = "data:image/"


class TaskBody(BaseModel):
    """A task, of which only the data matters here."""

    data: dict[str, object]


class TasksBody(BaseModel):
    """What Label Studio sends for predictions."""

    tasks: list[TaskBody]
    label_config: str


class SetupBody(BaseModel):
    """What it sends to connect; the address and the key that it names are not used."""

    config: str = Field(alias="schema")


class EventBody(BaseModel):
    """What happened."""

    action: str


class _Access(BaseModel):
    access: str


class Studio:
    """The one Label Studio from which pictures are fetched."""

    def __init__(self, address: str, limits: Limits) -> None:
        try:
            self._origin = URL(address).origin()
        except ValueError:
            self._origin = URL()
        if self._origin.scheme not in ("http", "https"):
            raise LookTwiceError("--label-studio is not an address; write for example http://localhost:8080")
        self._key = os.environ.get(KEY, "").strip()
        self._limits = limits
        self._session: aiohttp.ClientSession | None = None
        self._access, self._until = "", 0.0

    async def picture(self, address: object) -> Picture:
        """The picture at an address that a task names."""
        if not isinstance(address, str) or not address:
            raise Refusal("request", "the task has no address of a picture in the field that the project shows")
        if address.startswith(DATA):
            head, _, data = address.partition(",")
            if not head.endswith(";base64"):
                raise Refusal("request", "the picture in the task is not in base64")
            return self._opened(await asyncio.to_thread(bodies.from_base64, data, "the picture in the task"))
        return self._opened(await self._fetch("GET", self._ours(address)))

    async def close(self) -> None:
        """Close every connection."""
        if self._session:
            await self._session.close()

    def _opened(self, data: bytes) -> Picture:
        return Picture("the picture of the task", None, Opened(data, self._limits.pixels))

    def _ours(self, address: str) -> URL:
        """The address, if it is one of the Label Studio that was named; what is checked here is what is asked."""
        try:
            url = self._origin.join(URL(address))
            if url.origin() == self._origin and url.user is None and url.password is None:
                return url
        except ValueError:
            pass
        raise Refusal("request", f"pictures are fetched from {self._origin} alone, or sent as data:image/…;base64 URLs")

    async def _fetch(self, method: str, url: URL, body: bytes | None = None) -> bytes:
        """A reply of Label Studio; what it says of an error is not repeated, as it may hold the key."""
        headers = {"content-type": bodies.JSON} if body else await self._authorization()
        headers |= {"accept-encoding": "identity", "user-agent": "looktwice"}
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._limits.upload)
            self._session = aiohttp.ClientSession(
                timeout=timeout, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False, trust_env=True
            )
        why, data = "it did not send it, or not in time and size", bytearray()
        try:
            async with self._session.request(method, url, data=body, headers=headers, allow_redirects=False) as reply:
                async for part in reply.content.iter_any():
                    data += part
                    if len(data) > self._limits.body:
                        break
                else:
                    if reply.status == HTTPStatus.OK:
                        return bytes(data)
                    why = f"it answered {reply.status}"
        except (aiohttp.ClientError, TimeoutError, OSError):
            pass
        raise Refusal(
            "picture", f"a picture could not be fetched from Label Studio: {why}; see --label-studio and {KEY}"
        )

    async def _authorization(self) -> dict[str, str]:
        if not self._key:
            return {}
        if self._key.count(".") != 2:
            return {"authorization": f"Token {self._key}"}
        if time.monotonic() > self._until:  # a personal access token is exchanged for one that is soon void
            asked = json.dumps({"refresh": self._key}).encode()
            reply = await self._fetch("POST", self._origin.with_path("/api/token/refresh/"), asked)
            self._access = bodies.checked(_Access, reply).access
            self._until = time.monotonic() + FRESH
        return {"authorization": f"Bearer {self._access}"}


class Backend:
    """The routes of an ML backend."""

    def __init__(
        self,
        studio: Studio,
        look: Callable[[Picture], Awaitable[Verdict]],
        profile: Profile,
        limits: Limits,
        counters: Counters,
    ) -> None:
        self._studio, self._look, self._limits, self._counters = studio, look, limits, counters
        self._version = f"looktwice-{sha256(profile.model_dump_json().encode()).hexdigest()[:8]}"

    def add_to(self, app: FastAPI) -> None:
        """Register the routes."""
        for path, route, method in (
            ("/health", self.health, "GET"),
            ("/versions", self.versions, "GET"),
            ("/setup", self.setup, "POST"),
            ("/predict", self.predict, "POST"),
            ("/webhook", self.webhook, "POST"),
        ):
            app.add_route(path, route, methods=[method])

    async def health(self, _: Request) -> Response:
        """The backend runs."""
        return JSONResponse({"status": "UP", "model_class": "looktwice"})

    async def versions(self, _: Request) -> Response:
        """The versions that there are: one for each profile."""
        return JSONResponse({"versions": [self._version]})

    async def setup(self, request: Request) -> Response:
        """The version, if the project asks for a label of a picture."""
        _interface((await bodies.parsed(SetupBody, request)).config)
        return JSONResponse({"model_version": self._version})

    async def webhook(self, request: Request) -> Response:
        """Label Studio tells of everything that happens in the project; nothing is learned from it."""
        event = await bodies.parsed(EventBody, request)
        if event.action == "START_TRAINING":
            raise Refusal("request", "a profile is not trained from here; export the labels and run: looktwice fit")
        return JSONResponse({})

    async def predict(self, request: Request) -> Response:
        """A prediction for each task, in their order; where there is no verdict, the reason, which is no prediction.

        Label Studio sends as many tasks as somebody selects, so a few are looked at at a time. Those that are not
        reached in time get no prediction; answers that still come are kept for the next request.
        """
        body = await bodies.parsed(TasksBody, request)
        interface = _interface(body.label_config)
        at_once = asyncio.Semaphore(min(self._limits.pictures, self._limits.looks))
        end = time.monotonic() + self._limits.seconds

        async def predicted(task: TaskBody) -> dict[str, object]:
            async with at_once:
                try:
                    if time.monotonic() > end:
                        raise Refusal("time", "these are too many tasks for one request; select fewer at a time")
                    verdict = await self._look(await self._studio.picture(task.data.get(interface.field)))
                except Refusal as refusal:
                    self._counters.refused(refusal.code)
                    return {"error": str(refusal)}
            return interface.prediction(verdict.label, round(verdict.confidence, 6), self._version)

        return JSONResponse({"results": await asyncio.gather(*map(predicted, body.tasks))})


def _interface(config: str) -> Interface:
    try:
        return Interface.read(config)
    except DataError as error:
        raise Refusal("request", str(error)) from None
