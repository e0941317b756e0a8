"""Replicas of the batch interfaces of OpenAI, Anthropic and Gemini, with every fault that a batch can have.

They follow the published schemas; tests/classifiers/test_batching.py holds them against the vendors' own packages.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal

from aiohttp import web
from aiohttp.typedefs import Middleware

from conformance.vendors import ServiceSettings

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Faults:
    """How often what goes wrong."""

    seed: int = 0
    unreachable: float = 0.0
    """Requests that are cut off or answered 503, half of them after the work was done."""
    failing: float = 0.0
    """Questions that fail in a way that passes, the first time."""
    refused: float = 0.0
    """Questions that fail for good."""
    expiring: float = 0.0
    """Questions that there is no time for, the first time."""
    expired_batches: int = 0
    """The first so many batches expire as a whole, with half of their results."""
    doubled: float = 0.0
    """Results that come twice."""
    missing: int = 0
    """The first so many results never come, though they are on the bill."""
    seconds: float = 0.0
    """How long a batch takes."""


@dataclass
class Batch:
    """A batch as the vendor has it."""

    id: str
    name: str
    file: str
    lines: list[dict[str, object]]
    made: float
    ended: bool = False
    expired: bool = False
    results: list[dict[str, object]] = field(default_factory=list)
    errors: list[dict[str, object]] = field(default_factory=list)


class BatchReplica:
    """One vendor's batches. Every question may be in one batch at a time; what breaks that is in `twice`."""

    def __init__(self, house: ServiceSettings, faults: Faults | None = None) -> None:
        self.house = house
        self.faults = faults or Faults()
        self.files: dict[str, tuple[str, bytes]] = {}
        self.batches: dict[str, Batch] = {}
        self.uploads: Counter[str] = Counter()
        """How often each question of each batch was in a file, or came with the batch."""
        self.open: Counter[str] = Counter()
        """In how many batches each question is or was answered."""
        self.twice: list[str] = []
        self.answers: Counter[str] = Counter()
        self.hook: Callable[[str], None] = lambda stage: None
        """Is told of each stage of each request, in the thread of the server."""
        self._rng = random.Random(self.faults.seed)
        self._failed: set[str] = set()

    def app(self) -> web.Application:
        app = web.Application(client_max_size=1 << 30, middlewares=[self._middleware()])
        {"openai": self._openai, "anthropic": self._anthropic, "gemini": self._gemini}[self.house.vendor](app.router)
        return app

    def _middleware(self) -> Middleware:
        @web.middleware
        async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
            stage = self._stage(request)
            if not request.content_type.startswith("multipart/"):
                await request.read()
            self.hook(f"{stage} received")
            trouble = self._rng.random() < self.faults.unreachable
            if trouble and self._rng.random() < 0.5:
                return web.json_response({"error": {"message": "come back later"}}, status=503)
            reply = await handler(request)
            self.hook(f"{stage} done")
            if trouble:
                assert request.transport
                request.transport.abort()
            await asyncio.sleep(0)
            return reply

        return middleware

    def _stage(self, request: web.Request) -> str:
        if request.method == "POST":
            return "upload" if "file" in request.path else "create"
        if "content" in request.path or "download" in request.path or request.path.endswith("/results"):
            return "results"
        return "list" if request.path.rstrip("/").endswith(("batches", "files")) else "poll"

    # What a batch does ----------------------------------------------------------------------------------------------

    def take(self, name: str, file: str, lines: list[dict[str, object]]) -> Batch:
        id = f"{'batches/b' if self.house.vendor == 'gemini' else 'batch_'}{len(self.batches)}"
        batch = self.batches[id] = Batch(id, name, file, lines, time.time())
        for line in lines:
            question = _id(line).partition("-")[0]
            self.open[question] += 1
            if self.open[question] > 1:
                self.twice.append(question)
        return batch

    def look(self, batch: Batch) -> Batch:
        """The batch, with its results if it is time."""
        if not batch.ended and time.time() >= batch.made + self.faults.seconds:
            batch.ended = True
            batch.expired = len([each for each in self.batches.values() if each.ended]) <= self.faults.expired_batches
            for place, line in enumerate(batch.lines):
                late = batch.expired and place >= len(batch.lines) // 2
                self._answer(batch, line, late)
            for results in (batch.results, batch.errors):
                results += [line for line in results if self._rng.random() < self.faults.doubled]
                self._rng.shuffle(results)
        return batch

    def _answer(self, batch: Batch, line: dict[str, object], late: bool) -> None:
        id, rng = _id(line), self._rng
        question = id.partition("-")[0]
        body = line.get("body") or line.get("params") or line.get("request")
        assert isinstance(body, dict)
        fresh = question not in self._failed
        if late or (fresh and rng.random() < self.faults.expiring):
            self._failed.add(question)
            self.open[question] -= 1
            batch.errors.append(self._expired(id))
        elif fresh and rng.random() < self.faults.failing:
            self._failed.add(question)
            self.open[question] -= 1
            batch.errors.append(self._error(id, 500))
        elif int(question[:8], 16) / 2**32 < self.faults.refused:
            self.open[question] -= 1
            batch.errors.append(self._error(id, 400))
        else:
            self.answers[question] += 1
            reply = self.house.answer(body, Decimal("0.5"))
            if self.answers.total() > self.faults.missing:
                batch.results.append(self._result(id, reply))

    def _result(self, id: str, reply: dict[str, object]) -> dict[str, object]:
        match self.house.vendor:
            case "openai":
                response = {"status_code": 200, "request_id": "r", "body": reply}
                return {"id": "batch_req_1", "custom_id": id, "response": response, "error": None}
            case "anthropic":
                return {"custom_id": id, "result": {"type": "succeeded", "message": reply}}
        return {"key": id, "response": reply}

    def _error(self, id: str, status: int) -> dict[str, object]:
        told = {"message": "the question is malformed" if status == 400 else "internal trouble", "code": status}
        match self.house.vendor:
            case "openai":
                response = {"status_code": status, "request_id": "r", "body": {"error": {**told, "code": "x"}}}
                return {"id": "batch_req_1", "custom_id": id, "response": response, "error": None}
            case "anthropic":
                kind = "invalid_request_error" if status == 400 else "api_error"
                error = {"type": "error", "error": {"type": kind, "message": told["message"]}, "request_id": "r"}
                return {"custom_id": id, "result": {"type": "errored", "error": error}}
        return {"key": id, "error": told}

    def _expired(self, id: str) -> dict[str, object]:
        match self.house.vendor:
            case "openai":
                error = {"code": "batch_expired", "message": "This request could not be executed in time."}
                return {"id": "batch_req_1", "custom_id": id, "response": None, "error": error}
            case "anthropic":
                return {"custom_id": id, "result": {"type": "expired"}}
        return {"key": id, "error": {"code": 4, "message": "deadline exceeded"}}

    def _kept(self, name: str, content: bytes) -> str:
        id = f"{'files/f' if self.house.vendor == 'gemini' else 'file-'}{len(self.files)}"
        self.files[id] = (name, content)
        return id

    def _uploaded(self, content: bytes) -> None:
        self.uploads.update(_id(json.loads(line)) for line in content.splitlines())

    # OpenAI ---------------------------------------------------------------------------------------------------------

    def _openai(self, router: web.UrlDispatcher) -> None:
        async def upload(request: web.Request) -> web.Response:
            form = await request.post()
            file = form["file"]
            assert form["purpose"] == "batch"
            assert isinstance(file, web.FileField)
            content = file.file.read()
            self._uploaded(content)
            return web.json_response(self._file(self._kept(file.filename, content)))

        async def files(request: web.Request) -> web.Response:
            data = [self._file(id) for id in self.files]
            return web.json_response({"object": "list", "data": data, "has_more": False})

        async def content(request: web.Request) -> web.Response:
            return web.Response(body=self.files[request.match_info["id"]][1])

        async def create(request: web.Request) -> web.Response:
            asked = await request.json()
            assert (asked["endpoint"], asked["completion_window"]) == ("/v1/chat/completions", "24h")
            lines = [json.loads(line) for line in self.files[asked["input_file_id"]][1].splitlines()]
            assert {(line["method"], line["url"]) for line in lines} == {("POST", asked["endpoint"])}
            batch = self.take(asked["metadata"]["looktwice"], asked["input_file_id"], lines)
            return web.json_response(self._openai_batch(batch))

        async def batches(request: web.Request) -> web.Response:
            newest_first = list(reversed(self.batches.values()))
            after = request.query.get("after")
            start = 1 + [each.id for each in newest_first].index(after) if after else 0
            size = int(request.query.get("limit", 20))
            page = [self._openai_batch(each) for each in newest_first[start : start + size]]
            return web.json_response({"object": "list", "data": page, "has_more": len(newest_first) > start + size})

        async def batch(request: web.Request) -> web.Response:
            return web.json_response(self._openai_batch(self.look(self.batches[request.match_info["id"]])))

        router.add_post("/v1/files", upload)
        router.add_get("/v1/files", files)
        router.add_get("/v1/files/{id}/content", content)
        router.add_post("/v1/batches", create)
        router.add_get("/v1/batches", batches)
        router.add_get("/v1/batches/{id}", batch)

    def _file(self, id: str) -> dict[str, object]:
        name, content = self.files[id]
        told = {"id": id, "object": "file", "bytes": len(content), "created_at": 1_760_000_000, "filename": name}
        return {**told, "purpose": "batch", "status": "processed"}

    def _openai_batch(self, batch: Batch) -> dict[str, object]:
        outputs: dict[str, str] = {}
        for field_name, lines in (("output_file_id", batch.results), ("error_file_id", batch.errors)):
            if batch.ended and lines:
                id = f"file-{batch.id}-{field_name}"
                self.files[id] = (f"{id}.jsonl", "\n".join(map(json.dumps, lines)).encode())
                outputs[field_name] = id
        status = "expired" if batch.expired else "completed" if batch.ended else "in_progress"
        return {
            "id": batch.id,
            "object": "batch",
            "endpoint": "/v1/chat/completions",
            "errors": None,
            "input_file_id": batch.file,
            "completion_window": "24h",
            "status": status,
            "created_at": int(batch.made),
            "metadata": {"looktwice": batch.name},
            "request_counts": {"total": len(batch.lines), "completed": 0, "failed": 0},
            **outputs,
        }

    # Anthropic ------------------------------------------------------------------------------------------------------

    def _anthropic(self, router: web.UrlDispatcher) -> None:
        async def create(request: web.Request) -> web.Response:
            lines = (await request.json())["requests"]
            self.uploads.update(map(_id, lines))
            assert len({_id(line) for line in lines}) == len(lines)
            return web.json_response(self._anthropic_batch(self.take("", "", lines), request))

        async def batches(request: web.Request) -> web.Response:
            newest_first = list(reversed(self.batches.values()))
            after = request.query.get("after_id")
            start = 1 + [each.id for each in newest_first].index(after) if after else 0
            size = int(request.query.get("limit", 20))
            page = [self._anthropic_batch(each, request) for each in newest_first[start : start + size]]
            ids = {"first_id": page[0]["id"], "last_id": page[-1]["id"]} if page else {}
            return web.json_response({"data": page, "has_more": len(newest_first) > start + size, **ids})

        async def batch(request: web.Request) -> web.Response:
            return web.json_response(self._anthropic_batch(self.look(self.batches[request.match_info["id"]]), request))

        async def results(request: web.Request) -> web.Response:
            batch = self.batches[request.match_info["id"]]
            lines = [*batch.results, *batch.errors]
            random.Random(self.faults.seed).shuffle(lines)
            return web.Response(body="\n".join(map(json.dumps, lines)).encode(), content_type="application/x-jsonl")

        router.add_post("/v1/messages/batches", create)
        router.add_get("/v1/messages/batches", batches)
        router.add_get("/v1/messages/batches/{id}", batch)
        router.add_get("/v1/messages/batches/{id}/results", results)

    def _anthropic_batch(self, batch: Batch, request: web.Request) -> dict[str, object]:
        made = datetime.fromtimestamp(batch.made, UTC).isoformat()
        counts = dict.fromkeys(("canceled", "errored", "expired", "processing", "succeeded"), 0)
        if batch.ended:
            # Of what comes twice, each is one request all the same.
            counts["succeeded"] = len({_id(line) for line in batch.results})
            counts["errored"] = len(batch.lines) - counts["succeeded"]
        else:
            counts["processing"] = len(batch.lines)
        url = f"{request.url.origin()}/v1/messages/batches/{batch.id}/results" if batch.ended else None
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": "ended" if batch.ended else "in_progress",
            "request_counts": counts,
            "created_at": made,
            "expires_at": made,
            "ended_at": made if batch.ended else None,
            "archived_at": None,
            "cancel_initiated_at": None,
            "results_url": url,
        }

    # Gemini ---------------------------------------------------------------------------------------------------------

    def _gemini(self, router: web.UrlDispatcher) -> None:
        names: dict[str, str] = {}

        async def start(request: web.Request) -> web.Response:
            assert request.headers["x-goog-upload-command"] == "start"
            file = (await request.json()).get("file", {})
            place = f"{len(names)}"
            names[place] = file.get("displayName") or file.get("display_name") or ""
            url = f"{request.url.origin()}/upload/files?upload_id={place}"
            return web.json_response({}, headers={"x-goog-upload-url": url, "x-goog-upload-status": "active"})

        async def upload(request: web.Request) -> web.Response:
            assert request.headers["x-goog-upload-command"] == "upload, finalize"
            content = await request.read()
            self._uploaded(content)
            id = self._kept(names[request.query["upload_id"]], content)
            return web.json_response({"file": self._gemini_file(id)}, headers={"x-goog-upload-status": "final"})

        async def files(request: web.Request) -> web.Response:
            return web.json_response({"files": [self._gemini_file(id) for id in self.files]})

        async def create(request: web.Request) -> web.Response:
            asked = (await request.json())["batch"]
            file = asked["inputConfig"]["fileName"]
            lines = [json.loads(line) for line in self.files[file][1].splitlines()]
            return web.json_response(self._gemini_batch(self.take(asked["displayName"], file, lines)))

        async def batches(request: web.Request) -> web.Response:
            newest_first = list(reversed(self.batches.values()))
            start = int(request.query.get("pageToken") or 0)
            size = int(request.query.get("pageSize", 50))
            page = [self._gemini_batch(each) for each in newest_first[start : start + size]]
            more = {"nextPageToken": str(start + size)} if len(newest_first) > start + size else {}
            return web.json_response({"operations": page, **more})

        async def batch(request: web.Request) -> web.Response:
            return web.json_response(self._gemini_batch(self.look(self.batches[f"batches/{request.match_info['id']}"])))

        async def content(request: web.Request) -> web.Response:
            return web.Response(body=self.files[f"files/{request.match_info['id']}"][1])

        router.add_post("/upload/v1beta/files", start)
        router.add_post("/upload/files", upload)
        router.add_get("/v1beta/files", files)
        router.add_post("/v1beta/models/{model}:batchGenerateContent", create)
        router.add_get("/v1beta/batches", batches)
        router.add_get("/v1beta/batches/{id}", batch)
        for place in ("/download/v1beta/files/{id}:download", "/v1beta/files/{id}:download"):
            router.add_get(place, content)

    def _gemini_file(self, id: str) -> dict[str, object]:
        name, content = self.files[id]
        kind = {"mimeType": "application/jsonl", "sizeBytes": str(len(content)), "state": "ACTIVE"}
        return {"name": id, "displayName": name, "uri": f"https://files/{id}", **kind}

    def _gemini_batch(self, batch: Batch) -> dict[str, object]:
        made = datetime.fromtimestamp(batch.made, UTC).isoformat()
        state = "SUCCEEDED" if batch.ended else "RUNNING"
        output = {}
        if batch.ended:
            id = f"files/{batch.id.removeprefix('batches/')}results"
            lines = [*batch.results, *batch.errors]
            random.Random(self.faults.seed).shuffle(lines)
            self.files[id] = ("", "\n".join(map(json.dumps, lines)).encode())
            output = {"output": {"responsesFile": id}}
        metadata = {
            "@type": "type.googleapis.com/google.ai.generativelanguage.v1main.GenerateContentBatch",
            "name": batch.id,
            "model": f"models/{self.house.model}",
            "displayName": batch.name,
            "createTime": made,
            "updateTime": made,
            "state": f"BATCH_STATE_{state}",
            **output,
        }
        done = {"done": True, "response": output["output"]} if output else {}
        return {"name": batch.id, "metadata": metadata, **done}


def _id(line: dict[str, object]) -> str:
    return str(line.get("custom_id") or line.get("key"))
