"""What sessions learn of a classifier's limit, shared through their ledger."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web
from ledger_players import WHO, told
from workshop import PANEL, write_pictures

from looktwice.asking.asker import Asker
from looktwice.asking.ledger import SqliteLedger, open_at
from looktwice.asking.ledger.queue import QueuedLedger
from looktwice.asking.ledger.sessions import FADE
from looktwice.asking.pace import LearnedPaces, Pace, SharedPressure
from looktwice.classifiers.registry import connect

LIMIT, RETRY_AFTER = 50.0, 1.0


class Paces:
    """A ledger that is opened again and again, as other processes would."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.ledgers: list[QueuedLedger] = []

    def __call__(self) -> QueuedLedger:
        ledger = open_at(self.where)
        assert isinstance(ledger, QueuedLedger)
        self.ledgers.append(ledger)
        return ledger

    def rates(self) -> list[float]:
        """What each session has learned, as the table has it."""
        rows = told(self.where, "SELECT rate FROM learned ORDER BY rate")
        return [float(str(rate)) for (rate,) in rows]


@pytest.fixture(params=["sqlite", "postgres"])
def paces(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Paces]:
    at = request.getfixturevalue("database") if request.param == "postgres" else str(tmp_path / "ledger.db")
    paces = Paces(at)
    yield paces
    for ledger in paces.ledgers:
        ledger.close()


def test_a_newcomer_gets_an_equal_part_and_all_together_stay_as_fast(paces: Paces) -> None:
    first, second, third = paces(), paces(), paces()
    assert first.join_pace(WHO).result() is None
    assert first.keep_pace(WHO, 48.0).result() == 48.0
    assert second.join_pace(WHO).result() == 24.0
    assert third.join_pace(WHO).result() == pytest.approx(16.0)
    assert sum(paces.rates()) == pytest.approx(48.0)
    assert first.keep_pace(WHO, 60.0).result() == pytest.approx(60.0 / 3), "it grew meanwhile, and gave two thirds"
    assert first.keep_pace(WHO, 21.0).result() == 21.0, "what it gave it gives once"
    assert second.keep_pace(WHO, 24.0).result() == pytest.approx(16.0)


def test_what_ended_sessions_have_learned_is_taken_over_whole(paces: Paces) -> None:
    first, second = paces(), paces()
    first.keep_pace(WHO, 30.0).result()
    second.keep_pace(WHO, 20.0).result()
    first.close()
    third = paces()
    assert third.join_pace(WHO).result() == 30.0
    assert second.keep_pace(WHO, 20.0).result() == 20.0
    assert paces.rates() == [20.0, 30.0]


def test_what_is_unlearned_or_old_or_about_another_classifier_is_not_handed_on(paces: Paces) -> None:
    first, second = paces(), paces()
    first.keep_pace(WHO, 30.0).result()
    assert second.join_pace("another").result() is None
    first.keep_pace(WHO, None).result()
    assert second.join_pace(WHO).result() is None
    first.keep_pace(WHO, 30.0).result()
    told(paces.where, f"UPDATE learned SET at = at - {int(FADE * 1000) + 1000}")
    assert second.join_pace(WHO).result() is None


class Limited:
    """A server that takes 50 calls a second and refuses the others; it counts by who asks."""

    def __init__(self) -> None:
        self.answered: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self._tokens, self._at = 5.0, time.monotonic()

    async def classify(self, request: web.Request) -> web.Response:
        await request.read()
        who, now = request.match_info["who"], time.monotonic()
        self._tokens, self._at = min(5.0, self._tokens + (now - self._at) * LIMIT), now
        await asyncio.sleep(0.01)
        if self._tokens < 1:
            self.refused[who] += 1
            return web.Response(status=429, headers={"Retry-After": f"{RETRY_AFTER:g}"})
        self._tokens -= 1
        self.answered[who] += 1
        return web.json_response({"label": "ant"})

    @asynccontextmanager
    async def running(self) -> AsyncIterator[str]:
        app = web.Application()
        app.add_routes([web.post("/{who}", self.classify)])
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


async def ask(url: str, who: str, ledger: SqliteLedger, folder: Path, seed: int) -> None:
    """Ask for ever about pictures of one's own."""
    description = folder / f"{who}.toml"
    description.write_text(f'connector = "http"\nurl = "{url}/{who}"\nlabel = "label"\nconcurrency = 32\n')
    classifier = connect(description)
    classifier.fingerprint = WHO  # type: ignore[misc]  # one classifier, that tells who asks
    asker = Asker(classifier, ledger, Pace())
    pictures = write_pictures(folder / f"{who}.npz", 400, seed)
    try:
        async for _ in asker.ask(pictures, PANEL):
            pass
    finally:
        await classifier.close()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.02)


async def refusals_of_the_second(folder: Path) -> int:
    """How often a session is refused until 25 answers, beside one that has learned the limit already."""
    folder.mkdir()
    server, path = Limited(), folder / "ledger.db"
    with SqliteLedger(path) as one, SqliteLedger(path) as other:
        assert isinstance(one, LearnedPaces)
        async with server.running() as url:
            first = asyncio.create_task(ask(url, "first", one, folder, 1))
            await until(lambda: bool(told(str(path), "SELECT 1 FROM learned")))
            second = asyncio.create_task(ask(url, "second", other, folder, 2))
            await until(lambda: server.answered["second"] >= 25)
            refused = server.refused["second"]
            for task in (first, second):
                task.cancel()
            await asyncio.gather(first, second, return_exceptions=True)
    return refused


async def test_who_comes_second_does_not_learn_the_limit_again_by_refusals(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = await refusals_of_the_second(tmp_path / "shared")
    monkeypatch.setattr(SharedPressure, "join", lambda self: None)
    alone = await refusals_of_the_second(tmp_path / "alone")
    assert 2 * shared < alone
