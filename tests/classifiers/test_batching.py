"""The replicas of the vendors' batches against the vendors' own packages, and our side of them against the replicas."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import cv2
import numpy as np
import pytest
from aiohttp import web
from conformance.batch_replica import BatchReplica, Faults, Handler
from conformance.vendors import HOUSES, LABELS, ServiceSettings, description, served
from support.errors import coded

from looktwice.classifiers.chat.batching import Fate, Line, OpenAIBatches, Sought
from looktwice.classifiers.chat.model import ChatClassifier
from looktwice.classifiers.registry import connect
from looktwice.errors import ClassifierError, TransientError

VENDORS = ("openai", "anthropic", "gemini")
WHY = "no vendor's package here; pip install openai anthropic google-genai"
PROMPT = "What is it?\n" + "\n".join(LABELS)


@pytest.fixture
def picture() -> str:
    done, file = cv2.imencode(".png", np.full((32, 32, 3), 7, np.uint8))
    assert done
    return base64.b64encode(file.tobytes()).decode()


@pytest.fixture
def replicas() -> Iterator[dict[str, tuple[BatchReplica, str]]]:
    with ExitStack() as stack:
        made = {vendor: BatchReplica(HOUSES[vendor](), Faults(failing=0.4, expiring=0.2)) for vendor in VENDORS}
        yield {vendor: (each, stack.enter_context(served(each.app()))) for vendor, each in made.items()}


def connected(house: ServiceSettings, address: str, folder: Path) -> ChatClassifier:
    """The model that a vendor's description at this address describes."""
    (folder / "model.toml").write_text(description(house, address))
    classifier = connect(folder / "model.toml")
    assert isinstance(classifier, ChatClassifier)
    return classifier


@pytest.mark.slow
def test_openais_package_makes_lists_and_reads_batches(
    replicas: dict[str, tuple[BatchReplica, str]], picture: str
) -> None:
    openai = pytest.importorskip("openai", reason=WHY)
    replica, address = replicas["openai"]
    client = openai.OpenAI(api_key="test", base_url=f"{address}/v1", max_retries=0)
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{picture}"}}
    body = {"model": "gpt-4o", "messages": [{"role": "user", "content": [image, {"type": "text", "text": PROMPT}]}]}
    lines = [
        {"custom_id": f"{n:032x}-0-1", "method": "POST", "url": "/v1/chat/completions", "body": body} for n in range(12)
    ]
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("looktwice-1.jsonl", io.BytesIO(content)), purpose="batch")
    assert [each.filename for each in client.files.list(purpose="batch")] == ["looktwice-1.jsonl"]
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h", metadata={"looktwice": "a"}
    )
    assert batch.status == "in_progress"
    assert [each.metadata for each in client.batches.list()] == [{"looktwice": "a"}]
    done = client.batches.retrieve(batch.id)
    assert done.status == "completed"
    answered = client.files.content(done.output_file_id).text.splitlines()
    failed = client.files.content(done.error_file_id).text.splitlines()
    assert len(answered) + len(failed) == 12
    for line in answered:
        reply = openai.types.chat.ChatCompletion.model_validate(json.loads(line)["response"]["body"], strict=True)
        assert reply.usage.prompt_tokens > 85
    assert replica.house.calls == len(answered)


@pytest.mark.slow
def test_anthropics_package_makes_lists_and_reads_batches(
    replicas: dict[str, tuple[BatchReplica, str]], picture: str
) -> None:
    anthropic = pytest.importorskip("anthropic", reason=WHY)
    _, address = replicas["anthropic"]
    client = anthropic.Anthropic(api_key="test", base_url=address, max_retries=0)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture}}
    content = [image, {"type": "text", "text": PROMPT}]
    params: Any = {
        "model": "claude-sonnet-4-5", "max_tokens": 32, "messages": [{"role": "user", "content": content}]
    }  # fmt: skip
    batch = client.messages.batches.create(
        requests=[{"custom_id": f"{n:032x}-0-1", "params": params} for n in range(12)]
    )
    assert (batch.processing_status, batch.request_counts.processing) == ("in_progress", 12)
    assert [each.id for each in client.messages.batches.list()] == [batch.id]
    done = client.messages.batches.retrieve(batch.id)
    assert done.processing_status == "ended"
    results = list(client.messages.batches.results(batch.id))
    kinds = {each.result.type for each in results}
    assert len(results) == 12
    assert kinds == {"succeeded", "errored", "expired"}
    assert all(each.result.message.usage.input_tokens > 0 for each in results if each.result.type == "succeeded")


def test_googles_package_makes_lists_and_reads_batches(
    replicas: dict[str, tuple[BatchReplica, str]], picture: str, tmp_path: Path
) -> None:
    genai = pytest.importorskip("google.genai", reason=WHY)
    _, address = replicas["gemini"]
    client = genai.Client(api_key="test", http_options={"base_url": address, "api_version": "v1beta"})
    parts = [{"inlineData": {"mimeType": "image/png", "data": picture}}, {"text": PROMPT}]
    request = {"contents": [{"role": "user", "parts": parts}]}
    path = tmp_path / "questions.jsonl"
    path.write_text("\n".join(json.dumps({"key": f"{n:032x}-0-1", "request": request}) for n in range(12)))
    file = client.files.upload(file=path, config={"display_name": "a", "mime_type": "application/jsonl"})
    assert [each.display_name for each in client.files.list()] == ["a"]
    batch = client.batches.create(model="gemini-2.5-flash", src=file.name, config={"display_name": "a"})
    assert [each.display_name for each in client.batches.list()] == ["a"]
    done = client.batches.get(name=batch.name)
    assert done.state.name == "JOB_STATE_SUCCEEDED"
    lines = [json.loads(line) for line in client.files.download(file=done.dest.file_name).splitlines()]
    assert len(lines) == 12
    for line in lines:
        if "response" in line:
            reply = genai.types.GenerateContentResponse.model_validate(line["response"])
            assert reply.usage_metadata.prompt_token_count > 258


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_batch_is_sent_found_watched_and_read(
    vendor: str, replicas: dict[str, tuple[BatchReplica, str]], tmp_path: Path
) -> None:
    replica, address = replicas[vendor]
    classifier, name = connected(replica.house, address, tmp_path), "looktwice-0000000000000001"

    async def work() -> list[Line]:
        api = classifier.batches()
        asked = classifier.prepare(np.full((32, 32, 3), 7, np.uint8))
        lines = [api.line(f"{n:032x}-0-0000000000000001", asked.body) for n in range(40)]
        for n in range(130):  # of others, more than a page
            replica.take(f"another {n}", "", [{"custom_id": "x", "body": {}}])
        sought = Sought(name, None, 0.0, 40)
        assert await api.find_file(name) is None
        file = await api.upload(name, lines)
        assert await api.find_file(name) == file
        for each in replica.batches.values():
            each.ended = True
        assert await api.find(sought) is None
        remote = await api.create(name, file, lines)
        for n in range(130):
            replica.take(f"later {n}", "", []).ended = True
        assert await api.find(sought) == remote
        assert (await api.state(remote)).ended
        results = await api.results(remote)
        await api.close()
        return results

    results = asyncio.run(work())
    assert len({line.id for line in results}) == 40
    fates = {line.fate for line in results}
    assert Fate.ANSWERED in fates
    assert Fate.TRANSIENT in fates
    assert fates <= {Fate.ANSWERED, Fate.TRANSIENT, Fate.EXPIRED}
    assert all(json.loads(line.body) for line in results if line.fate is Fate.ANSWERED)


ODD: tuple[object, ...] = (None, "", "x", -1, 10**400, 1e308, [], {}, [[]], {"id": 7}, True)


def mangled(value: Any, dice: random.Random) -> Any:
    """The value with about one in six of its parts replaced by something that has no business there."""
    if dice.random() < 1 / 6:
        return dice.choice(ODD)
    if isinstance(value, dict):
        return {key: mangled(part, dice) for key, part in value.items() if dice.random() < 0.95}
    return [mangled(part, dice) for part in value] if isinstance(value, list) else value


@pytest.mark.parametrize("vendor", VENDORS)
def test_lists_and_results_that_make_no_sense_are_a_classifiers_error_or_are_left_out(
    vendor: str, tmp_path: Path
) -> None:
    replica, name, dice = BatchReplica(HOUSES[vendor]()), "looktwice-0000000000000001", random.Random(1)
    honest = True

    @web.middleware
    async def mangling(request: web.Request, handler: Handler) -> web.StreamResponse:
        reply = await handler(request)
        if honest or not isinstance(reply, web.Response) or not isinstance(reply.body, bytes):
            return reply
        lines = [json.dumps(mangled(json.loads(line), dice)) for line in reply.body.splitlines()]
        lines += ["[" * 20_000] if "content" in request.path or "results" in request.path else []
        return web.Response(text="\n".join(lines), content_type="application/json")

    async def work(classifier: ChatClassifier) -> tuple[int, int]:
        nonlocal honest
        api = classifier.batches()
        asked = classifier.prepare(np.full((32, 32, 3), 7, np.uint8))
        lines = [api.line(f"{n:032x}-0-0000000000000001", asked.body) for n in range(3)]
        file = await api.upload(name, lines)
        remote = await api.create(name, file, lines)
        await api.state(remote)
        honest, told, failed = False, 0, 0
        for _ in range(60):
            asks = (api.find_file(name), api.find(Sought(name, file, 0.0, 3)), api.state(remote), api.results(remote))
            for ask in asks:
                try:
                    await asyncio.wait_for(ask, 20)
                    told += 1
                except ClassifierError:
                    failed += 1
        await api.close()
        return told, failed

    app = replica.app()
    app.middlewares.insert(0, mangling)
    batching = "looktwice.classifiers.chat.batching"
    with served(app) as address, mock.patch(f"{batching}.WATCH", 0.001):
        told, failed = asyncio.run(work(connected(replica.house, address, tmp_path)))
    assert told > 20
    assert failed > 5


@contextmanager
def repeating(reply: object, vendor: str, folder: Path) -> Iterator[ChatClassifier]:
    """A model of a vendor whose server has one reply to every GET."""

    async def repeat(_: web.Request) -> web.Response:
        return web.json_response(reply)

    app = web.Application()
    app.router.add_get("/{path:.*}", repeat)
    with served(app) as address:
        yield connected(HOUSES[vendor](), address, folder)


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_list_that_shows_one_page_for_ever_has_an_end(vendor: str, tmp_path: Path) -> None:
    again = {"id": "batch_1", "name": "files/1", "created_at": 4_000_000_000, "request_counts": {}}
    lists = {field: [again] for field in ("data", "files", "operations")}

    async def work(classifier: ChatClassifier) -> tuple[str | None, str | None]:
        api = classifier.batches()
        try:
            return await api.find_file("looktwice-1"), await api.find(Sought("looktwice-1", None, 0.0, 3))
        finally:
            await api.close()

    with repeating({**lists, "has_more": True, "nextPageToken": "x"}, vendor, tmp_path) as classifier:
        assert asyncio.run(asyncio.wait_for(work(classifier), 60)) == (None, None)


@pytest.mark.parametrize("vendor", ["openai", "gemini"])
def test_a_batch_that_is_done_and_shows_no_results_is_not_taken_for_lost(vendor: str, tmp_path: Path) -> None:
    done = {"id": "b", "status": "completed", "done": True, "metadata": {"state": "BATCH_STATE_SUCCEEDED"}}

    async def work(classifier: ChatClassifier) -> list[Line]:
        api = classifier.batches()
        try:
            assert (await api.state("batches/b")).ended
            return await api.results("batches/b")
        finally:
            await api.close()

    with (
        repeating(done, vendor, tmp_path) as classifier,
        pytest.raises(TransientError, check=coded("reply-malformed")),
    ):
        asyncio.run(work(classifier))


@pytest.mark.slow
def test_a_result_that_is_too_deep_to_be_written_again_holds_no_answer(tmp_path: Path) -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    api = connected(HOUSES["openai"](), "http://127.0.0.1:1", tmp_path).batches()
    assert isinstance(api, OpenAIBatches)
    line = api._result({"custom_id": "a", "response": {"status_code": 200, "body": deep}})
    assert line == Line("a", Fate.ANSWERED, b"")
    assert api._result({"custom_id": "a", "error": {"code": "batch_expired", "deep": deep}}).fate is Fate.EXPIRED
