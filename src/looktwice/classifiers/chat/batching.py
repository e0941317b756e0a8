"""Vendors' batches: many queries in one file, answered within a day at a lower price.

Each vendor's interface is one class, which encodes and sends queries and declares by JMESPath how its lists, states and
results are read. `engine.batches` decides what is sent when, and that nothing is sent twice.
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
PASSING_CODES = {4, 8, 10, 13, 14, 408, 409, 429}
"""Transient codes of gRPC and HTTP, besides all codes of at least 500."""


class Fate(Enum):
    """The outcome of a query in a batch."""

    ANSWERED = auto()
    TRANSIENT = auto()
    """The query failed, but a retry may succeed."""
    FAILED = auto()
    EXPIRED = auto()
    """The query expired before it was processed."""
    CANCELLED = auto()


FATES = {
    "batch_expired": Fate.EXPIRED,
    "expired": Fate.EXPIRED,
    "batch_cancelled": Fate.CANCELLED,
    "canceled": Fate.CANCELLED,
    "authentication_error": Fate.FAILED,
    "billing_error": Fate.FAILED,
    "invalid_request_error": Fate.FAILED,
    "not_found_error": Fate.FAILED,
    "permission_error": Fate.FAILED,
    "request_too_large": Fate.FAILED,
}
"""The outcome for each code that is not a number; all other codes are transient."""


class Line(NamedTuple):
    """One result of a batch."""

    id: str
    """The id that looktwice gave the query."""
    fate: Fate
    body: bytes
    """The reply, or the failure message."""


class State(NamedTuple):
    """The state of a batch."""

    ended: bool
    rest: Fate = Fate.TRANSIENT
    """The outcome of queries without a line in the results of a finished batch."""
    lost: bool = False
    """Whether a query without a line may have been answered and billed."""
    message: str = ""
    """The vendor's message, if it rejected the batch."""


COMPLETED = State(True, lost=True)
STATES = {
    "completed": COMPLETED,
    "ended": COMPLETED,
    "succeeded": COMPLETED,
    "failed": State(True, Fate.FAILED),
    "expired": State(True, Fate.EXPIRED),
    "cancelled": State(True, Fate.CANCELLED),
}
"""The state for the last word of a vendor's status; with any other word, the batch is running."""


class Listing(NamedTuple):
    """A list in pages."""

    path: str
    entries: str
    """JMESPath to the entries of a page."""
    page: str
    """The parameter that names the page."""
    following: str
    """JMESPath to the name of the next page."""


class Sought(NamedTuple):
    """A batch that may have been sent, and how to recognise it."""

    name: str
    file: str | None
    since: float
    """A time before the batch was sent, in seconds since 1970."""
    questions: int
    others: frozenset[str] = frozenset()
    """Batches at the vendor that are known to be different ones."""


class BatchApi(ABC):
    """The batches of one vendor."""

    most_questions: ClassVar[int]
    most_bytes: ClassVar[int] = 128_000_000
    """The maximum size of a batch in bytes.

    Batches are held in memory, so this limit is lower than the vendors' limits.
    """
    file_list: ClassVar[Listing | None] = None
    """The files of queries; None if queries are sent with the batch."""
    file_name: ClassVar[str] = ""
    """JMESPath to the name of a file in this list."""
    batch_list: ClassVar[Listing]
    id: ClassVar[str] = "id"
    """JMESPath to the vendor's id of a file or batch."""
    batch: ClassVar[str]
    """The path of a batch."""
    status: ClassVar[str]
    """JMESPath to the status of a batch, and to its errors."""
    files: ClassVar[str]
    """JMESPath to the ids of the files with results."""
    content: ClassVar[str]
    """The path of a file with results."""
    result: ClassVar[str]
    """JMESPath to the parts of a result: its id, whether it is an answer, its body or error, and the error's code."""

    def __init__(self, vendor: ChatModel, headers: Mapping[str, str], secrets: Secrets) -> None:
        patient = {**vendor.model_dump(include={*HttpSettings.model_fields}), "max_reply_bytes": LARGEST_REPLY}
        self._vendor = vendor
        self._headers = headers
        self._transport = Transport(HttpSettings.model_validate({**patient, "timeout": TIMEOUT}), secrets)

    @abstractmethod
    def line(self, id: str, body: bytes) -> bytes:
        """Encode a query in a batch."""

    async def upload(self, name: str, lines: Sequence[bytes]) -> str | None:
        """Upload these queries; returns the vendor's id of the file, or None if queries are sent with the batch."""
        return None

    @abstractmethod
    async def create(self, name: str, file: str | None, lines: Sequence[bytes]) -> str:
        """Create a batch with these queries; returns the vendor's id."""

    async def find_file(self, name: str) -> str | None:
        """Find the vendor's id of the file of a batch; None if there is none."""
        if self.file_list is None:
            return None
        async for entry in self._listed(self.file_list):
            if _text(entry, self.file_name).removesuffix(".jsonl") == name:
                return self._id(entry)
        return None

    async def find(self, sought: Sought) -> str | None:
        """Find the vendor's id of a batch; None if the vendor does not have the batch. May wait until this is known."""
        async for entry in self._listed(self.batch_list):
            if "created_at" in entry and _seconds(entry["created_at"]) < sought.since - SKEW:
                return None  # the newest are listed first
            if await self._is_sought(entry, sought):
                return self._id(entry)
        return None

    async def state(self, remote: str) -> State:
        """The state of a batch."""
        return self._state(await self._json(self.batch.format(quote(remote))))

    async def results(self, remote: str) -> list[Line]:
        """The results of a batch that has ended."""
        data = await self._json(self.batch.format(quote(remote)))
        files = [file for file in jmespath.search(self.files, data) or () if isinstance(file, str) and file]
        if not files and self._state(data).lost:
            raise TransientError(
                "the vendor reports a finished batch but names no file with its results; try again later",
                code="reply-malformed",
            )
        contents = [await self._lines(self.content.format(quote(file))) for file in files]
        return [self._result(line) for lines in contents for line in lines]

    def line_of(self, body: bytes) -> str:
        """Format a vendor's message as one short line without keys."""
        return self._transport.secrets.line(body.decode("utf-8", "replace"))

    async def close(self) -> None:
        """Close every connection."""
        await self._transport.close()

    async def _is_sought(self, entry: Mapping[str, object], sought: Sought) -> bool:
        """Whether an entry of the list is this batch."""
        named = _text(entry, "metadata.looktwice || metadata.displayName") == sought.name
        return named or (sought.file is not None and entry.get("input_file_id") == sought.file)

    def _state(self, data: Mapping[str, object]) -> State:
        status, errors = jmespath.search(self.status, data)
        state = STATES.get(str(status).lower().rpartition("_")[2], State(False))
        return state._replace(message=_packed(errors).decode()) if state.rest is Fate.FAILED else state

    def _result(self, data: Mapping[str, object]) -> Line:
        id, answered, body, code = jmespath.search(self.result, data)
        passes = code in PASSING_CODES or code >= 500 if isinstance(code, int) else True
        fate = FATES.get(str(code), Fate.TRANSIENT if passes else Fate.FAILED)
        return Line(str(id), Fate.ANSWERED if answered else fate, _packed(body))

    def _id(self, entry: Mapping[str, object]) -> str:
        """The vendor's id of a file or batch; raises an error if it is missing, since sending again could pay twice."""
        if id := _text(entry, self.id):
            return id
        raise TransientError(
            "the vendor's list contains a file or batch of looktwice, but not its id; try again later",
            garbled=True,
            code="reply-malformed",
        )

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

    async def _made(self, path: str, body: bytes, headers: Mapping[str, str] | None = None) -> str:
        """The vendor's id of a file or batch that was created."""
        endpoint = self._endpoint("POST", path)
        reply = await endpoint.send(body, headers)
        if id := _text(endpoint.parse(reply), f"{self.id} || file.{self.id}"):
            return id
        raise endpoint.garbled("has no id", reply)

    async def _listed(self, listing: Listing) -> AsyncIterator[dict[str, object]]:
        """The entries of all pages of a list."""
        seen = [""]
        while True:
            page = f"&{listing.page}={quote(seen[-1], safe='')}" if seen[-1] else ""
            data = await self._json(f"{listing.path}{page}")
            for entry in jmespath.search(f"{listing.entries} | [?type(@) == 'object']", data) or ():
                yield entry
            name = _text(data, listing.following)
            if name in seen:
                return
            seen.append(name)

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
    file_list = Listing("/files?purpose=batch&limit=10000", "data", "after", "has_more && data[-1].id")
    file_name = "filename"
    batch_list = Listing("/batches?limit=100", "data", "after", "has_more && data[-1].id")
    batch = "/batches/{}"
    status = "[status, errors]"
    files = "[output_file_id, error_file_id]"
    content = "/files/{}/content"
    result = """[
        custom_id, response.status_code == `200`, response.body || error, response.status_code || error.code
    ]"""

    def line(self, id: str, body: bytes) -> bytes:
        endpoint = f"/v1{self._vendor.path()}"
        head = json.dumps({"custom_id": id, "method": "POST", "url": endpoint}, separators=(",", ":"))
        return f'{head[:-1]},"body":'.encode() + body + b"}"

    async def upload(self, name: str, lines: Sequence[bytes]) -> str | None:
        body = form(name, {"purpose": "batch"}, "file", f"{name}.jsonl", "application/jsonl", b"\n".join(lines))
        return await self._made("/files", body, {"content-type": f"multipart/form-data; boundary={name}"})

    async def create(self, name: str, file: str | None, lines: Sequence[bytes]) -> str:
        endpoint, metadata = f"/v1{self._vendor.path()}", {"looktwice": name}
        asked = {"input_file_id": file, "endpoint": endpoint, "completion_window": "24h", "metadata": metadata}
        return await self._made("/batches", json.dumps(asked).encode())


class MessageBatches(BatchApi):
    """Anthropic: a batch has no name, but its results contain the id that looktwice gave each query."""

    most_questions = 100_000
    batch_list = Listing("/v1/messages/batches?limit=100", "data", "after_id", "has_more && data[-1].id")
    batch = "/v1/messages/batches/{}"
    status = "[processing_status, `null`]"
    files = "[id]"
    content = "/v1/messages/batches/{}/results"
    result = """[
        custom_id, result.type == 'succeeded', result.message || result.error, result.error.error.type || result.type
    ]"""

    def __init__(self, vendor: ChatModel, headers: Mapping[str, str], secrets: Secrets) -> None:
        super().__init__(vendor, headers, secrets)
        self._firsts: dict[str, str] = {}
        """The id of one query of each batch that was inspected."""

    def line(self, id: str, body: bytes) -> bytes:
        return f'{{"custom_id":{json.dumps(id)},"params":'.encode() + body + b"}"

    async def create(self, name: str, file: str | None, lines: Sequence[bytes]) -> str:
        return await self._made("/v1/messages/batches", b'{"requests":[' + b",".join(lines) + b"]}")

    async def _is_sought(self, entry: Mapping[str, object], sought: Sought) -> bool:
        """Whether a batch contains these queries, which is known once it has ended."""
        counts = jmespath.search("request_counts.*", entry) or ()
        fits = sum(count for count in counts if isinstance(count, int)) == sought.questions
        remote = _text(entry, self.id)
        if not fits or not remote or remote in sought.others:
            return False
        while remote not in self._firsts:
            while not (await self.state(remote)).ended:
                await asyncio.sleep(WATCH)
            self._firsts[remote] = next((line.id for line in await self.results(remote)), "")
        return self._firsts[remote].endswith(sought.name.rpartition("-")[2])


class GeminiBatches(BatchApi):
    """Gemini: a file of queries, and a batch that refers to it; both have a looktwice name."""

    most_questions = 50_000
    file_list = Listing("/v1beta/files?pageSize=100", "files[?state != 'FAILED']", "pageToken", "nextPageToken")
    file_name = "displayName"
    batch_list = Listing("/v1beta/batches?pageSize=100", "operations", "pageToken", "nextPageToken")
    id = "name"
    batch = "/v1beta/{}"
    status = "[metadata.state, error]"
    files = "[response.responsesFile || metadata.output.responsesFile]"
    content = "/download/v1beta/{}:download?alt=media"
    result = "[key, type(error) != 'object', response || error, error.code]"

    def line(self, id: str, body: bytes) -> bytes:
        return f'{{"key":{json.dumps(id)},"request":'.encode() + body + b"}"

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
            raise PermanentError(
                f"{ours} asks for uploads to {place.host or 'no host'}, but the key may not be sent there"
            )
        send = {"x-goog-upload-command": "upload, finalize", "x-goog-upload-offset": "0"}
        return await self._made(str(place.relative()), body, {**send, "content-type": "application/jsonl"})

    async def create(self, name: str, file: str | None, lines: Sequence[bytes]) -> str:
        path = f"/v1beta/models/{quote(self._vendor.model, safe='')}:batchGenerateContent"
        asked = {"batch": {"displayName": name, "inputConfig": {"fileName": file}}}
        return await self._made(path, json.dumps(asked).encode())


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


def _seconds(moment: object) -> float:
    """Seconds since 1970, from a number or a date; 0 for anything else."""
    with suppress(ValueError, OverflowError):
        return float(moment) if isinstance(moment, int | float) else datetime.fromisoformat(str(moment)).timestamp()
    return 0.0
