"""Vendors' batches: many queries in one file, answered within a day at a lower price.

Each vendor's interface is one class, which encodes queries, sends, finds, polls and reads batches. `engine.batches`
decides what is sent when, and that nothing is sent twice.
"""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from enum import Enum, auto
from typing import TYPE_CHECKING, ClassVar, NamedTuple
from urllib.parse import quote

import jmespath
from yarl import URL

from looktwice.classifiers.secrets import Secrets
from looktwice.classifiers.settings import HttpSettings, form
from looktwice.classifiers.transport import Endpoint, Transport
from looktwice.errors import PermanentError, TransientError

if TYPE_CHECKING:
    from looktwice.classifiers.chat.model import ChatModel

TIMEOUT = 1800.0
"""The timeout of one request in seconds; files are large."""
LARGEST_REPLY = 1 << 30
SKEW = 2 * 86_400.0
"""The largest expected difference between clocks in seconds; a batch that is not found is sent again."""
WATCH = 5.0
"""Seconds between polls of a batch that may contain these queries."""
TRANSIENT = {"api_error", "overloaded_error", "rate_limit_error", "timeout_error"}
"""Anthropic's transient errors."""
PASSING_CODES = {4, 8, 10, 13, 14, 408, 409, 429}
"""Transient codes of gRPC and HTTP, which include all from 500."""


class Fate(Enum):
    """The outcome of a query in a batch."""

    ANSWERED = auto()
    TRANSIENT = auto()
    """It failed in a transient way."""
    FAILED = auto()
    EXPIRED = auto()
    """It expired before it was processed."""
    CANCELLED = auto()


class Line(NamedTuple):
    """One result of a batch."""

    id: str
    """The id that looktwice gave the query."""
    fate: Fate
    body: bytes
    """The reply, or the failure message."""
    status: int = 200


class State(NamedTuple):
    """The state of a batch."""

    ended: bool
    rest: Fate = Fate.TRANSIENT
    """The outcome of queries without a line in the results of a finished batch."""
    lost: bool = False
    """Whether such a query may have been answered and billed."""
    message: str = ""
    """The vendor's message, if it rejected the batch."""


class Sought(NamedTuple):
    """A batch that may have been sent, and how to recognise it."""

    name: str
    file: str | None
    since: float
    """The time before it was sent, in seconds since 1970."""
    questions: int
    others: frozenset[str] = frozenset()
    """Batches at the vendor that are known to be others."""


class BatchApi(ABC):
    """The batches of one vendor."""

    most_questions: ClassVar[int]
    most_bytes: ClassVar[int] = 128_000_000
    """The maximum size of a batch in bytes; it is held in memory, so this is below the vendors' limits."""

    def __init__(self, vendor: ChatModel, headers: Mapping[str, str], secrets: Secrets) -> None:
        patient = {**vendor.model_dump(include={*HttpSettings.model_fields}), "max_reply_bytes": LARGEST_REPLY}
        self._vendor = vendor
        self._headers = headers
        self._transport = Transport(HttpSettings.model_validate({**patient, "timeout": TIMEOUT}), secrets)

    @abstractmethod
    def line(self, id: str, body: bytes) -> bytes:
        """Encode a query in a batch."""

    async def find_file(self, name: str) -> str | None:
        """Find the vendor's id of the file of a batch; None if there is none."""
        return None

    async def upload(self, name: str, lines: Sequence[bytes]) -> str | None:
        """Upload these queries; returns the vendor's id of the file, or None if queries are sent with the batch."""
        return None

    @abstractmethod
    async def find(self, sought: Sought) -> str | None:
        """Find the vendor's id of a batch, None if there is none; may wait until that is known."""

    @abstractmethod
    async def create(self, name: str, file: str | None, lines: Sequence[bytes]) -> str:
        """Create a batch with these queries; returns the vendor's id."""

    @abstractmethod
    async def state(self, remote: str) -> State:
        """The state of a batch."""

    @abstractmethod
    async def results(self, remote: str) -> list[Line]:
        """The results of a batch that has ended."""

    def line_of(self, body: bytes) -> str:
        """Format a vendor's message as one short line without keys."""
        return self._transport.secrets.line(body.decode("utf-8", "replace"))

    async def close(self) -> None:
        """Close every connection."""
        await self._transport.close()

    def _endpoint(self, method: str, path: str) -> Endpoint:
        return self._transport.endpoint(method, f"{self._vendor.base()}{path}", self._headers)

    async def _json(self, path: str) -> dict[str, object]:
        """The JSON object at a place."""
        endpoint = self._endpoint("GET", path)
        reply = await endpoint.send()
        data = endpoint.parse(reply)
        if isinstance(data, dict):
            return data
        raise endpoint.garbled("is not a valid reply of a batch API", reply)

    async def _made(self, path: str, body: bytes, field: str = "id", headers: Mapping[str, str] | None = None) -> str:
        """The vendor's id of a file or batch that was created; `file.name` is a path in its reply."""
        endpoint = self._endpoint("POST", path)
        reply = await endpoint.send(body, headers)
        if id := _text(endpoint.parse(reply), field):
            return id
        raise endpoint.garbled(f"has no {field}", reply)

    async def _listed(self, path: str, field: str, page: str, following: str) -> AsyncIterator[dict[str, object]]:
        """The entries of a list in pages; `following` is the JMESPath of the next page's name, the value of `page`."""
        seen = [""]
        while True:
            data = await self._json(f"{path}&{page}={quote(seen[-1], safe='')}" if seen[-1] else path)
            for each in _dicts(data, field):
                yield each
            name = _text(data, following)
            if name in seen:
                return
            seen.append(name)

    async def _newest(self, path: str, after: str, since: float) -> AsyncIterator[dict[str, object]]:
        """The batches since a time, newest first; a page is requested by the last batch of the page before."""
        async for each in self._listed(f"{path}?limit=100", "data", after, "has_more && data[-1].id"):
            if _seconds(each.get("created_at")) < since - SKEW:
                return
            yield each

    async def _lines(self, path: str) -> list[dict[str, object]]:
        """Parse JSON lines; damaged or truncated lines are skipped."""
        reply = await self._endpoint("GET", path).send()
        values = []
        for line in reply.body.splitlines():
            with suppress(ValueError, RecursionError):
                value = json.loads(line)
                values += [value] if isinstance(value, dict) else []
        return values


class OpenAIBatches(BatchApi):
    """OpenAI: a file of queries, and a batch that refers to it and has its looktwice name in the metadata."""

    most_questions = 50_000

    def line(self, id: str, body: bytes) -> bytes:
        endpoint = f"/v1{self._vendor.path()}"
        head = json.dumps({"custom_id": id, "method": "POST", "url": endpoint}, separators=(",", ":"))
        return f'{head[:-1]},"body":'.encode() + body + b"}"

    async def find_file(self, name: str) -> str | None:
        files = _dicts(await self._json("/files?purpose=batch&limit=10000"), "data")
        return next((_name(each, "id") for each in files if each.get("filename") == f"{name}.jsonl"), None)

    async def upload(self, name: str, lines: Sequence[bytes]) -> str | None:
        body = form(name, {"purpose": "batch"}, "file", f"{name}.jsonl", "application/jsonl", b"\n".join(lines))
        return await self._made("/files", body, headers={"content-type": f"multipart/form-data; boundary={name}"})

    async def find(self, sought: Sought) -> str | None:
        async for each in self._newest("/batches", "after", sought.since):
            named = _text(each, "metadata.looktwice") == sought.name
            if named or (sought.file and each.get("input_file_id") == sought.file):
                return _name(each, "id")
        return None

    async def create(self, name: str, file: str | None, lines: Sequence[bytes]) -> str:
        endpoint, metadata = f"/v1{self._vendor.path()}", {"looktwice": name}
        asked = {"input_file_id": file, "endpoint": endpoint, "completion_window": "24h", "metadata": metadata}
        return await self._made("/batches", json.dumps(asked).encode())

    async def state(self, remote: str) -> State:
        data = await self._json(f"/batches/{quote(remote)}")
        return _state(str(data.get("status")), data.get("errors"))

    async def results(self, remote: str) -> list[Line]:
        data = await self._json(f"/batches/{quote(remote)}")
        files = [_text(data, "output_file_id"), _text(data, "error_file_id")]
        if data.get("status") == "completed" and not any(files):
            raise _without_results()
        contents = [await self._lines(f"/files/{quote(file)}/content") for file in files if file]
        return [self._result(each) for lines in contents for each in lines]

    def _result(self, data: Mapping[str, object]) -> Line:
        id, response = str(data.get("custom_id")), data.get("response")
        if isinstance(response, dict):
            status, body = _whole(response.get("status_code")), _packed(response.get("body"))
            fate = Fate.ANSWERED if status == 200 else Fate.TRANSIENT if _passes(status) else Fate.FAILED
            return Line(id, fate, body, status)
        ends = {"batch_expired": Fate.EXPIRED, "batch_cancelled": Fate.CANCELLED}
        return Line(id, ends.get(_text(data, "error.code"), Fate.TRANSIENT), _packed(data.get("error")), 0)


class MessageBatches(BatchApi):
    """Anthropic: a batch has no name, but its results contain the id that looktwice gave each query."""

    most_questions = 100_000

    def __init__(self, vendor: ChatModel, headers: Mapping[str, str], secrets: Secrets) -> None:
        super().__init__(vendor, headers, secrets)
        self._firsts: dict[str, str] = {}
        """The id of one query of each batch that was inspected."""

    def line(self, id: str, body: bytes) -> bytes:
        return f'{{"custom_id":{json.dumps(id)},"params":'.encode() + body + b"}"

    async def find(self, sought: Sought) -> str | None:
        async for each in self._newest("/v1/messages/batches", "after_id", sought.since):
            counts, remote = each.get("request_counts"), _text(each, "id")
            fits = isinstance(counts, dict) and sum(map(_whole, counts.values())) == sought.questions
            if fits and remote and remote not in sought.others and await self._is_ours(remote, sought.name):
                return remote
        return None

    async def _is_ours(self, remote: str, name: str) -> bool:
        """Whether a batch contains these queries, which is known once it has ended."""
        while remote not in self._firsts:
            while not (await self.state(remote)).ended:
                await asyncio.sleep(WATCH)
            self._firsts[remote] = next((line.id for line in await self.results(remote)), "")
        return self._firsts[remote].endswith(name.rpartition("-")[2])

    async def create(self, name: str, file: str | None, lines: Sequence[bytes]) -> str:
        return await self._made("/v1/messages/batches", b'{"requests":[' + b",".join(lines) + b"]}")

    async def state(self, remote: str) -> State:
        data = await self._json(f"/v1/messages/batches/{quote(remote)}")
        return State(data.get("processing_status") == "ended", lost=True)

    async def results(self, remote: str) -> list[Line]:
        return [self._result(each) for each in await self._lines(f"/v1/messages/batches/{quote(remote)}/results")]

    def _result(self, data: Mapping[str, object]) -> Line:
        id, error = str(data.get("custom_id")), jmespath.search("result.error", data)
        match _text(data, "result.type"):
            case "succeeded":
                return Line(id, Fate.ANSWERED, _packed(jmespath.search("result.message", data)))
            case "expired":
                return Line(id, Fate.EXPIRED, b"", 0)
            case "canceled":
                return Line(id, Fate.CANCELLED, b"", 0)
        passes = _text(error, "error.type") in TRANSIENT
        return Line(id, Fate.TRANSIENT if passes else Fate.FAILED, _packed(error), 0)


class GeminiBatches(BatchApi):
    """Gemini: a file of queries, and a batch that refers to it; both have a looktwice name."""

    most_questions = 50_000

    def line(self, id: str, body: bytes) -> bytes:
        return f'{{"key":{json.dumps(id)},"request":'.encode() + body + b"}"

    async def find_file(self, name: str) -> str | None:
        async for each in self._listed("/v1beta/files?pageSize=100", "files", "pageToken", "nextPageToken"):
            if each.get("displayName") == name and each.get("state") in (None, "ACTIVE", "PROCESSING"):
                return _name(each, "name")
        return None

    async def upload(self, name: str, lines: Sequence[bytes]) -> str | None:
        body = b"\n".join(lines)
        start = {
            "x-goog-upload-protocol": "resumable",
            "x-goog-upload-command": "start",
            "x-goog-upload-header-content-length": str(len(body)),
            "x-goog-upload-header-content-type": "application/jsonl",
        }
        data = json.dumps({"file": {"displayName": name, "mimeType": "application/jsonl"}}).encode()
        reply = await self._endpoint("POST", "/upload/v1beta/files").send(data, start)
        place, ours = URL(reply.headers.get("x-goog-upload-url", "")), URL(self._vendor.base())
        if place.host != ours.host:
            raise PermanentError(f"{ours} asks for uploads to {place.host or 'nowhere'}, to which the key is not sent")
        send = {"x-goog-upload-command": "upload, finalize", "x-goog-upload-offset": "0"}
        return await self._made(str(place.relative()), body, "file.name", {**send, "content-type": "application/jsonl"})

    async def find(self, sought: Sought) -> str | None:
        async for each in self._listed("/v1beta/batches?pageSize=100", "operations", "pageToken", "nextPageToken"):
            if _text(each, "metadata.displayName") == sought.name:
                return _name(each, "name")
        return None

    async def create(self, name: str, file: str | None, lines: Sequence[bytes]) -> str:
        path = f"/v1beta/models/{quote(self._vendor.model, safe='')}:batchGenerateContent"
        asked = {"batch": {"displayName": name, "inputConfig": {"fileName": file}}}
        return await self._made(path, json.dumps(asked).encode(), "name")

    async def state(self, remote: str) -> State:
        data = await self._json(f"/v1beta/{quote(remote)}")
        return _state(_text(data, "metadata.state").rpartition("_")[2].lower(), data.get("error"))

    async def results(self, remote: str) -> list[Line]:
        data = await self._json(f"/v1beta/{quote(remote)}")
        file = _text(data, "response.responsesFile || metadata.output.responsesFile")
        if not file and data.get("done") and not data.get("error"):
            raise _without_results()
        lines = await self._lines(f"/download/v1beta/{quote(file)}:download?alt=media") if file else []
        return [self._result(each) for each in lines]

    def _result(self, data: Mapping[str, object]) -> Line:
        id, error = str(data.get("key")), data.get("error")
        if not isinstance(error, dict):
            return Line(id, Fate.ANSWERED, _packed(data.get("response")))
        code = _whole(error.get("code"))
        return Line(id, Fate.TRANSIENT if _passes(code) else Fate.FAILED, _packed(error), code)


def _dicts(data: Mapping[str, object], field: str) -> list[dict[str, object]]:
    values = data.get(field)
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def _packed(value: object) -> bytes:
    """Serialise a part of a result; empty if it is nested too deeply, as no valid reply is."""
    try:
        return json.dumps(value).encode()
    except RecursionError:
        return b""


def _text(data: object, path: str) -> str:
    """The text at a JMESPath; empty for anything else."""
    value = jmespath.search(path, data)
    return value if isinstance(value, str) else ""


def _name(data: Mapping[str, object], field: str) -> str:
    """The vendor's id of a file or batch; raises an error if it is missing, since sending again could pay twice."""
    if name := _text(data, field):
        return name
    raise TransientError(
        f"the vendor's list has a file or batch from looktwice without {field}; try again later",
        garbled=True,
        code="reply-malformed",
    )


def _without_results() -> TransientError:
    """The error for a finished batch without results, which are paid for and may come later."""
    return TransientError(
        "the vendor reports a finished batch but names no file with its results; try again later",
        code="reply-malformed",
    )


def _whole(value: object) -> int:
    """The value if it is an integer, else 0."""
    return value if isinstance(value, int) else 0


def _state(word: str, error: object) -> State:
    """Map the vendor's status of a batch to a state."""
    match word:
        case "completed" | "succeeded":
            return State(True, lost=True)
        case "failed":
            return State(True, Fate.FAILED, message=_packed(error).decode())
        case "expired":
            return State(True, Fate.EXPIRED)
        case "cancelled":
            return State(True, Fate.CANCELLED)
    return State(False)


def _passes(code: int) -> bool:
    return code in PASSING_CODES or code >= 500


def _seconds(moment: object) -> float:
    """Seconds since 1970, from a number or a date; 0 for anything else."""
    with suppress(ValueError, OverflowError):
        return float(moment) if isinstance(moment, int | float) else datetime.fromisoformat(str(moment)).timestamp()
    return 0.0
