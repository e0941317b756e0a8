"""Pictures and a classifier that fails: every label is right, nothing is bought twice, every run comes to its end."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.classifiers import Labelling
from support.engines import HURRY, counted as counted_in, engine_for, engine_on
from support.errors import coded
from support.faults import Running, fault_server
from support.storms import counted, storm
from support.waiting import until, until_async
from support.workshop import PANEL, answers, run, start, write_pictures, write_profile

from looktwice import AsyncModel, Model
from looktwice.calibration.evidence import Row
from looktwice.classifiers.base import Answer, Limits
from looktwice.classifiers.registry import connect
from looktwice.decisions.profile import Profile
from looktwice.engine.budget import Budget
from looktwice.engine.engine import QueryEngine
from looktwice.engine.ledger import maintenance
from looktwice.engine.ledger.ledger import open_ledger
from looktwice.engine.limits import RetryPolicy
from looktwice.engine.query import Cause, Rounds, Unscored
from looktwice.errors import ClassifierError, LedgerError, LookTwiceError, PermanentError, QuotaError, TransientError
from looktwice.images.collection import Picture, find

KILLS = int(os.environ.get("LOOKTWICE_KILLS", "6"))


def scored(rows: list[Row | Unscored]) -> dict[str, Row]:
    return {row.name: row for row in rows if isinstance(row, Row)}


async def everything(
    engine: QueryEngine, pictures: Iterable[Picture], rounds: Rounds | None = None
) -> list[Row | Unscored]:
    return [row async for row in engine.ask(pictures, PANEL, rounds)]


async def test_with_faults_every_label_equals_the_calm_run_or_the_picture_is_not_scored(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 200, 1)
    with fault_server() as calm, fault_server(0.3, 1) as rough:
        expected, _ = await answers(calm.describe(tmp_path), pictures)
        first, engine = await answers(rough.describe(tmp_path), pictures, tmp_path / "ledger.db")
        sent = rough.stats()["billed"]
        second, again = await answers(rough.describe(tmp_path), pictures, tmp_path / "ledger.db")
    truth = scored(expected)
    assert len(truth) == 200
    assert all(truth[name].views == row.views and truth[name].base == row.base for name, row in scored(first).items())
    assert len(scored(first)) >= 198
    assert engine.progress.retries > 150
    # A request that times out before the server has read it counts as sent: it may have been billed.
    assert sent <= engine.progress.sent
    # The second run asks only what the first could not get, and never what is stored.
    missing = 5 * 200 - engine.progress.answered
    assert again.progress.hits == engine.progress.answered
    assert again.progress.answered <= missing
    assert scored(second).keys() >= scored(first).keys()


async def test_an_answer_that_is_stored_is_never_bought_again(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 60)
    with fault_server() as server:
        description = server.describe(tmp_path)
        first, _ = await answers(description, pictures, tmp_path / "ledger.db")
        second, engine = await answers(description, pictures, tmp_path / "ledger.db")
        stats = server.stats()
    assert first == second
    assert (stats["requests"], engine.progress.sent, engine.progress.hits) == (300, 0, 300)


async def test_a_picture_that_stands_twice_is_asked_about_once(tmp_path: Path) -> None:
    (one,) = write_pictures(tmp_path / "pictures.npz", 1)
    twins = [Picture(one.name, None, one.source)] * 40
    with fault_server(delay=0.01) as server:
        rows, _ = await answers(server.describe(tmp_path), twins)
        assert server.stats()["requests"] == 5
    assert len({row.views for row in rows if isinstance(row, Row)}) == 1


# Budgets ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rate", [0.0, 0.3])
async def test_the_budget_is_never_exceeded_by_one_query(tmp_path: Path, rate: float) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 100)
    with fault_server(rate, 5) as server:
        asked = []
        for budget in (333, 333, 400):
            rows, _ = await answers(server.describe(tmp_path), pictures, tmp_path / "ledger.db", budget=budget)
            asked.append(rows)
            count = counted(server, str(tmp_path / "ledger.db"))
            count.check(budget)
            assert count.counted == budget
        rows, more, _ = asked
    assert any(isinstance(row, Unscored) and row.cause is Cause.BUDGET for row in rows)
    assert scored(rows) == scored(more)


def test_two_processes_share_a_ledger_and_a_budget(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures.npz", 300)
    with fault_server(delay=0.002) as server:
        write_profile(tmp_path / "profile.json", server.describe(tmp_path))
        shared = (
            "--profile", tmp_path / "profile.json", "--ledger", tmp_path / "ledger.db", "--budget", 1000,
            "--canaries", 0,
        )  # fmt: skip
        both = [
            start("score", tmp_path / "pictures.npz", *shared, "-o", tmp_path / f"{name}.csv")
            for name in ("left", "right")
        ]
        codes = [process.wait(120) for process in both]
        stats = server.stats()
    assert codes == [3, 3]
    assert stats["requests"] == 1000
    # Every query bought a different answer: neither process asked what the other had or was asking.
    assert counted_in(tmp_path / "ledger.db") == (1000, 1000)


@pytest.mark.parametrize("cast", ["two", "three", "services"])
def test_those_who_share_a_budget_through_a_storm_of_faults_all_come_to_their_end(tmp_path: Path, cast: str) -> None:
    storm(tmp_path, str(tmp_path / "ledger.db"), cast, seed=7)
    assert maintenance.verify(tmp_path / "ledger.db") == []


@pytest.mark.parametrize(
    ("budget", "why"),
    [
        (Budget(queries=10), "the budget is spent"),
        (Budget(micros=30), "the budget is spent"),
        (Budget(queries_per_day=10), "the budget of this day is spent"),
        (Budget(queries=10, queries_per_day=10), "the budget is spent"),
    ],
)
async def test_an_engine_says_why_nothing_can_be_asked(tmp_path: Path, budget: Budget, why: str) -> None:
    limits = Limits(price_micros=3)
    async with engine_on(Labelling(limits=limits), tmp_path / "ledger.db", budget=budget) as engine:
        assert engine.first.runner.unavailable() is None
        await everything(engine, write_pictures(tmp_path / "pictures.npz", 4))
        assert (engine.first.runner.unavailable() or "").startswith(why)
        engine.stop("stopped")
        assert engine.first.runner.unavailable() == "stopped"


@pytest.mark.parametrize(
    ("budget", "before", "after"),
    [
        (Budget(), (None, None), (None, None)),
        (Budget(queries=12), (12, None), (7, None)),
        (Budget(micros=30), (10, 30), (5, 15)),
        (Budget(queries=8, micros=30), (8, 30), (3, 15)),
    ],
)
async def test_an_engine_says_how_many_queries_and_how_much_money_are_left(
    tmp_path: Path, budget: Budget, before: tuple[int | None, int | None], after: tuple[int | None, int | None]
) -> None:
    async with engine_on(Labelling(limits=Limits(price_micros=3)), "off", budget=budget) as engine:
        assert (engine.first.runner.remaining(), engine.first.runner.money_left()) == before
        await everything(engine, write_pictures(tmp_path / "pictures.npz", 1))
        assert (engine.first.runner.remaining(), engine.first.runner.money_left()) == after


async def test_a_spent_budget_ends_the_run_and_opens_no_further_picture(tmp_path: Path) -> None:
    opened: list[str] = []

    class Watched(Picture):
        def image(self, *size: object) -> object:  # type: ignore[override]
            opened.append(self.name)
            return super().image(*size)  # type: ignore[arg-type]

    listed = [Watched(p.name, p.truth, p.source) for p in write_pictures(tmp_path / "pictures.npz", 3000)]
    async with engine_on(Labelling(), "off", budget=Budget(queries=50)) as engine:
        rows = await everything(engine, listed)
    assert [row.name for row in rows] == [picture.name for picture in listed]
    assert {row.cause for row in rows if isinstance(row, Unscored)} == {Cause.BUDGET}
    assert len(opened) < 1500


async def test_a_budget_of_so_many_more_is_granted_once_to_a_command_that_is_interrupted(tmp_path: Path) -> None:
    pictures, ledger = write_pictures(tmp_path / "pictures.npz", 40), str(tmp_path / "ledger.db")
    how = {"ledger": ledger, "budget": "+50", "canaries": 0, "scope": "score out.csv"}

    async def ask(interrupt: bool) -> int:
        from looktwice.model.options import AskOptions

        async with AsyncModel(Labelling(), options=AskOptions(**how)) as model:  # type: ignore[arg-type]
            if interrupt:
                rows = model.engine.ask(pictures, PANEL)
                async for _ in rows:
                    model.stop()
                await rows.aclose()
            else:
                await everything(model.engine, pictures)
        return counted_in(ledger)[0]

    interrupted = await ask(interrupt=True)
    assert 0 < interrupted < 50
    assert await ask(interrupt=False) == 50, "the same command continues with the same total"
    assert await ask(interrupt=False) == 100, "a command that came to its end is granted so many more again"


# Failures --------------------------------------------------------------------------------------------------------


async def test_an_error_that_will_not_pass_ends_the_run_before_the_budget_burns(tmp_path: Path) -> None:
    classifier = Labelling(lambda _: PermanentError("401: no such key"))
    async with engine_on(classifier, "off") as engine:
        with pytest.raises(PermanentError):
            await everything(engine, write_pictures(tmp_path / "pictures.npz", 200))
    assert classifier.calls <= classifier.limits.concurrency


async def test_many_failures_in_a_row_stop_the_run(tmp_path: Path) -> None:
    classifier = Labelling(lambda _: TransientError("connection refused", sent=False))
    async with engine_on(classifier, "off", retry=RetryPolicy(backoff=0.001, breaker=25)) as engine:
        with pytest.raises(ClassifierError, check=coded("classifier-failed")):
            await everything(engine, write_pictures(tmp_path / "pictures.npz", 100))
    assert classifier.calls < 25 + 8


async def test_where_everything_is_refused_all_wait_as_long_as_they_are_asked_to(tmp_path: Path) -> None:
    moments: list[float] = []

    def full(_: int) -> object:
        """Takes 60 calls, and none for a second after that."""
        moments.append(time.monotonic())
        if len(moments) > 60 and moments[-1] < moments[60] + 1.0:
            return TransientError("slow down", status=429, retry_after=1.0, billed=False)
        return None

    async with engine_on(Labelling(full), "off") as engine:
        rows = await everything(engine, write_pictures(tmp_path / "pictures.npz", 30))
    assert len(scored(rows)) == 30
    assert len(moments) - 150 <= 20 + 8  # until it was noticed, and what was in flight then


async def test_a_wait_that_is_longer_than_allowed_stops_the_run_and_says_when_to_come_back(tmp_path: Path) -> None:
    def closed(call: int) -> object:
        return TransientError("closed", status=429, retry_after=3600.0, billed=False) if call > 20 else None

    classifier = Labelling(closed)
    async with engine_on(classifier, tmp_path / "ledger.db") as engine:
        assert engine.first.runner.unavailable() is None
        with pytest.raises(QuotaError, check=coded("rate-limited")):
            await everything(engine, write_pictures(tmp_path / "pictures.npz", 100))
        assert "rate-limited until" in (engine.first.runner.unavailable() or "")
    assert classifier.calls <= 20 + 8
    assert counted_in(tmp_path / "ledger.db") == (20, 20)


async def test_a_wait_that_is_allowed_is_waited_for_and_not_paid_for(tmp_path: Path) -> None:
    def busy(call: int) -> object:
        return TransientError("busy", status=429, retry_after=0.5, billed=False) if call == 3 else None

    began = time.monotonic()
    async with engine_on(Labelling(busy), "off", retry=RetryPolicy(longest=0.01), budget=Budget(queries=25)) as engine:
        assert len(scored(await everything(engine, write_pictures(tmp_path / "pictures.npz", 5)))) == 5
        assert time.monotonic() - began >= 0.5
        assert engine.progress.sent == 25


def _fail(error: Exception, _: int) -> Exception:
    return error


async def test_what_a_run_leaves_without_an_answer_is_free_for_others_at_once(tmp_path: Path) -> None:
    """A budget that ends before a retry, a failure for good, and a run that breaks: nothing stays claimed."""
    pictures, path = write_pictures(tmp_path / "pictures.npz", 4), tmp_path / "ledger.db"
    errors = (TransientError("lost"), PermanentError("no"), ValueError("a connector that breaks its promise"))
    async with engine_on(Labelling(), path) as living:
        for error in errors:
            async with engine_on(Labelling(partial(_fail, error)), path, budget=Budget(queries=12)) as engine:
                with suppress(PermanentError, ValueError):
                    await everything(engine, pictures)
        async with asyncio.timeout(60):
            assert len(scored(await everything(living, pictures))) == 4
    assert maintenance.verify(path) == []


async def test_a_ledger_that_fails_ends_the_run_and_hangs_nobody(tmp_path: Path) -> None:
    engine = engine_for(
        Labelling(lambda _: TransientError("lost")), tmp_path / "ledger.db", retry=replace(HURRY, breaker=10**6)
    )
    ledger = engine.first.runner.ledger
    assert ledger

    async def close_soon() -> None:
        await until_async(lambda: engine.progress.retries >= 20)
        await asyncio.to_thread(ledger.close)

    closing_task = asyncio.create_task(close_soon())
    with pytest.raises(LedgerError):
        async with asyncio.timeout(60):
            await everything(engine, write_pictures(tmp_path / "pictures.npz", 50))
    await closing_task
    await engine.close()


async def test_a_ledger_that_another_program_locks_in_the_midst_of_a_run_costs_no_paid_answer(tmp_path: Path) -> None:
    pictures, path = write_pictures(tmp_path / "pictures.npz", 100), tmp_path / "ledger.db"

    async def lock(server: Running) -> None:
        await until_async(lambda: server.stats()["requests"] >= 100)
        with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as other:
            other.execute("BEGIN IMMEDIATE")
            await asyncio.sleep(1.0)  # longer than any call: everybody waits for the lock
            other.execute("ROLLBACK")

    with fault_server(delay=0.02) as server:
        locking = asyncio.create_task(lock(server))
        rows, _ = await answers(server.describe(tmp_path), pictures, path)
        await locking
        count = counted(server, str(path))
    assert len(scored(rows)) == 100
    assert (count.requests, count.counted, count.answered) == (500, 500, 500)


# Rows ------------------------------------------------------------------------------------------------------------


async def test_views_can_be_asked_in_rounds_until_there_are_enough(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 50)
    with fault_server() as server:
        description = server.describe(tmp_path)
        full, _ = await answers(description, pictures)
        # Enough when the first view agrees; else one more at a time.
        rounds = Rounds(1, lambda row: 0 if row.base in row.views else 1)
        async with engine_on(connect(description), tmp_path / "ledger.db") as engine:
            rows = await everything(engine, pictures, rounds=rounds)
            asked = engine.progress.sent
            assert engine.spend().queries == asked
    wholes = scored(full)
    for row in scored(rows).values():
        whole = wholes[row.name].views
        used = next((i + 1 for i, view in enumerate(whole) if view == row.base), len(whole))
        assert row.views == whole[:used] + (None,) * (len(whole) - used)
    assert 100 < asked < 250


async def test_a_picture_that_cannot_be_read_is_not_scored_and_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("not a picture")
    async with engine_on(Labelling(), "off") as engine:
        (row,) = await everything(engine, find([tmp_path / "a.png"]))
        assert isinstance(row, Unscored)
        assert row.cause is Cause.UNREADABLE
        assert engine.progress.sent == 0


@pytest.mark.parametrize("ledger", [None, "off"])
async def test_an_answer_without_a_label_leaves_the_picture_unscored(tmp_path: Path, ledger: str | None) -> None:
    async with engine_on(Labelling(lambda _: Answer("")), ledger) as engine:
        (row,) = await everything(engine, write_pictures(tmp_path / "pictures.npz", 1))
    assert isinstance(row, Unscored)
    assert row.cause is Cause.NO_LABEL


async def test_a_free_classifier_is_asked_without_claims_and_retried(tmp_path: Path) -> None:
    def sometimes(call: int) -> object:
        return TransientError("hiccup") if call % 7 == 3 else None

    async with engine_on(Labelling(sometimes, Limits(batch=4, concurrency=2, local=True))) as engine:
        rows = await everything(engine, write_pictures(tmp_path / "pictures.npz", 60))
    assert len(scored(rows)) == 60
    assert engine.progress.retries > 0


async def test_the_first_row_is_paid_for_by_one_picture_and_few_queries_beyond_it(tmp_path: Path) -> None:
    classifier = Labelling()
    async with engine_on(classifier, "off") as engine:
        rows = engine.ask(write_pictures(tmp_path / "pictures.npz", 500), PANEL)
        assert isinstance(await anext(rows), Row)
        await rows.aclose()
    assert classifier.calls <= 5 + classifier.limits.concurrency


async def test_rows_come_as_soon_as_they_and_those_before_them_are_answered(tmp_path: Path) -> None:
    came = 0

    def slow(call: int) -> object:
        nonlocal came
        if call > 5 * 40:
            assert came >= 5, "rows were held back"
        return None

    async with engine_on(Labelling(slow), "off") as engine:
        async for _ in engine.ask(write_pictures(tmp_path / "pictures.npz", 60), PANEL):
            came += 1
    assert came == 60


async def test_a_row_does_not_wait_for_the_next_picture_of_a_stream(tmp_path: Path) -> None:
    (first,) = write_pictures(tmp_path / "pictures.npz", 1)
    came = threading.Event()

    def camera() -> Iterator[Picture]:
        yield first
        assert came.wait(20), "the first row was not handed over before the second picture"

    async with engine_on(Labelling()) as engine:
        async for row in engine.ask(camera(), PANEL):
            assert isinstance(row, Row)
            came.set()
    assert came.is_set()


async def test_a_rate_is_kept_by_two_sessions_together(tmp_path: Path) -> None:
    moments: list[float] = []
    limits = Limits(concurrency=8, per_second=40.0)
    pictures = write_pictures(tmp_path / "pictures.npz", 16)

    async def ask(part: list[Picture]) -> None:
        classifier = Labelling(lambda _: moments.append(time.monotonic()), limits)
        async with engine_on(classifier, tmp_path / "ledger.db") as engine:
            assert len(scored(await everything(engine, part))) == len(part)

    await asyncio.gather(ask(list(pictures[:8])), ask(list(pictures[8:])))
    assert len(moments) == 80
    assert moments[-1] - moments[0] >= 79 / 40.0 * 0.95


async def stop_after(engine: QueryEngine, answers: int) -> None:
    await until_async(lambda: engine.progress.answered >= answers)
    engine.stop()


async def test_stopping_waits_for_what_is_in_flight_and_gives_the_rest_back(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 200)
    with fault_server(delay=0.02) as server:
        async with engine_on(connect(server.describe(tmp_path)), tmp_path / "ledger.db") as engine:
            stopping = asyncio.create_task(stop_after(engine, 50))
            rows = await everything(engine, pictures)
            await stopping
        stats = server.stats()
    assert 0 < stats["requests"] < 1000
    assert counted_in(tmp_path / "ledger.db") == (stats["requests"], stats["requests"])
    assert [row.name for row in rows] == [picture.name for picture in pictures], "those never reached are told as well"
    stopped = [row for row in rows if isinstance(row, Unscored)]
    assert {row.cause for row in stopped} == {Cause.STOPPED}
    assert (engine.progress.pictures, engine.progress.unscored) == (200, len(stopped))


async def test_a_stream_of_pictures_is_not_read_on_once_asking_is_stopped(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 3)
    async with engine_on(Labelling(), "off") as engine:
        engine.stop()
        assert await everything(engine, iter(pictures)) == []
        assert [row.name for row in await everything(engine, pictures)] == [picture.name for picture in pictures]


# Callbacks and cancelling ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ledger", [None, "ledger.db"])
def test_an_exception_of_a_callback_ends_the_run_and_everything_is_saved(tmp_path: Path, ledger: str | None) -> None:
    class Oops(Exception):
        """The caller's own."""

    def raise_at_third(events: list[object]) -> None:
        if len(events) > 2:
            raise Oops

    seen: list[object] = []
    place = None if ledger is None else str(tmp_path / ledger)

    def on_answer(event: object) -> None:
        seen.append(event)
        raise_at_third(seen)

    for callback in ({"on_answer": on_answer}, {"progress": lambda progress: raise_at_third([0] * progress.answered)}):
        with Model(lambda image: "bright", ledger=place, **callback) as model, pytest.raises(Oops):
            model.ask(write_pictures(tmp_path / "pictures.npz", 300), views="rotation:20*4")
    if place:
        assert maintenance.verify(place) == []


@pytest.mark.parametrize("ledger", [None, "ledger.db"])
def test_an_exception_of_the_users_function_is_raised_once_and_nothing_else_is_logged(
    tmp_path: Path, ledger: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    def classify(image: object) -> str:
        raise KeyError("weights")

    images = np.random.default_rng(0).integers(0, 256, (30, 8, 8, 3), np.uint8)
    place = None if ledger is None else str(tmp_path / ledger)
    with Model(classify, ledger=place, concurrency=8) as model, pytest.raises(KeyError, match="weights"):
        model.ask(images, views="mirror")
    gc.collect()
    assert [record.getMessage() for record in caplog.records] == []


def test_a_model_that_is_called_by_its_own_callback_says_so(tmp_path: Path) -> None:
    images = np.zeros((4, 8, 8, 3), np.uint8)

    def on_answer(_: object) -> None:
        model.ask(images, views="mirror")

    model = Model(lambda image: "dark", on_answer=on_answer)
    with model, pytest.raises(LookTwiceError, check=coded("model-closed")):
        model.ask(images, views="mirror")


async def test_cancelling_returns_at_once_and_the_answer_is_kept_when_it_comes(tmp_path: Path) -> None:
    (picture,) = write_pictures(tmp_path / "pictures.npz", 1)
    with fault_server(delay=1.0) as server:
        async with engine_on(connect(server.describe(tmp_path)), tmp_path / "ledger.db") as engine:
            asking = asyncio.create_task(everything(engine, [picture]))
            await until_async(lambda: server.stats()["requests"] == 5)
            began = time.monotonic()
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            assert time.monotonic() - began < 0.3
        assert counted_in(tmp_path / "ledger.db") == (5, 5)


async def test_two_models_of_one_process_share_one_ledger(tmp_path: Path) -> None:
    pictures, path = write_pictures(tmp_path / "pictures.npz", 20), tmp_path / "ledger.db"
    async with engine_on(Labelling(), path) as one, engine_on(Labelling(), path) as other:
        assert one.first.runner.ledger is other.first.runner.ledger
        both = await asyncio.gather(everything(one, pictures), everything(other, pictures))
    assert not (tmp_path / "ledger.db-wal").exists(), "the last one to close leaves no log behind"
    assert both[0] == both[1]
    assert counted_in(path) == (100, 100)
    assert open_ledger(str(path)) is not one.first.runner.ledger


# Kills -------------------------------------------------------------------------------------------------------------


def score(folder: Path) -> tuple[object, ...]:
    return (
        "score", folder / "pictures.npz", "--profile", folder / "profile.json", "--ledger", folder / "ledger.db",
        "-o", folder / "verdicts.csv", "--canaries", 0,
    )  # fmt: skip


def test_kill_9_at_any_moment_loses_nothing_but_what_was_in_flight(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures.npz", 150)
    with fault_server(0.1, 3, delay=0.01) as server:
        description = server.describe(tmp_path)
        write_profile(tmp_path / "profile.json", description)
        dice = random.Random(KILLS)
        for _ in range(KILLS):
            enough = server.stats()["requests"] + dice.randrange(1 + 900 // KILLS)
            process = start(*score(tmp_path))
            while server.stats()["requests"] < enough and process.poll() is None:
                time.sleep(0.002)
            process.kill()
            process.wait()
        for _ in range(5):  # one question in a thousand fails three times in a row; the run says to start it again
            finished = run(*score(tmp_path))
            if finished.returncode != 3:
                break
        stats = server.stats()
    assert finished.returncode == 0, finished.stderr
    queries, answered = counted_in(tmp_path / "ledger.db")
    # Answers that the server gave and the ledger lacks: at each kill those in flight and those on their way to disk,
    # which with what is claimed and not yet sent are 1.5 times the concurrency at most; and resets after an answer.
    lost = stats["answered"] - answered
    assert lost <= 48 * KILLS + stats["faults"].get("reset after", 0)
    assert answered == 750
    assert queries >= stats["billed"]
    with fault_server() as calm:
        write_profile(tmp_path / "calm.json", calm.describe(tmp_path))
        run(
            "score",
            tmp_path / "pictures.npz",
            "--profile",
            tmp_path / "calm.json",
            "-o",
            tmp_path / "calm.csv",
            "--ledger",
            "off",
        )
    profiles = [Profile.load(tmp_path / f"{name}.json") for name in ("profile", "calm")]
    stormy, calm_one = (
        (tmp_path / f"{name}.csv").read_text().replace(profile.fingerprint, "").replace(profile.digest, "")
        for name, profile in zip(("verdicts", "calm"), profiles, strict=True)
    )
    assert stormy == calm_one


@pytest.mark.parametrize(
    ("delay", "pace"),
    [(0.04, ()), (0.04, ("--rate", 60)), (0.002, ())],
    ids=["as fast as it answers", "at a rate", "answers at once"],
)
def test_each_kill_9_counts_at_most_the_claims_that_the_server_never_saw(
    tmp_path: Path, delay: float, pace: tuple[object, ...]
) -> None:
    write_pictures(tmp_path / "pictures.npz", 1000)
    with fault_server(delay=delay) as server:
        description = server.describe(tmp_path, concurrency=8)
        write_profile(tmp_path / "profile.json", description)
        unseen = 0
        for kill in range(KILLS):
            seen = server.stats()["requests"]
            process = start(*score(tmp_path), *pace)
            while server.stats()["requests"] < seen + (1, 5, 12, 40, 80, 120)[kill % 6] and process.poll() is None:
                time.sleep(0.002)
            process.kill()
            process.wait()
            queries, _ = counted_in(tmp_path / "ledger.db")
            before, end = unseen, time.monotonic() + 60
            while (unseen := queries - server.stats()["requests"]) > before + 12:
                assert time.monotonic() < end, f"{unseen - before} were counted that the server never saw"
                time.sleep(0.01)  # the system may still deliver what was sent
            assert unseen >= 0


def test_ctrl_c_once_saves_everything_and_says_how_to_go_on(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures.npz", 400)
    with fault_server(delay=0.02) as server:
        write_profile(tmp_path / "profile.json", server.describe(tmp_path))
        with (tmp_path / "said").open("w") as err, start(*score(tmp_path), err=err.fileno()) as process:
            until(lambda: server.stats()["requests"] >= 100 or process.poll() is not None)
            process.send_signal(signal.SIGINT)
            process.wait(120)
            said = (tmp_path / "said").read_text()
        interrupted = server.stats()["requests"]
        assert process.returncode == 3
        assert "Traceback" not in said
        assert (tmp_path / "verdicts.csv.part").exists()
        finished = run(*score(tmp_path))
        assert finished.returncode == 0
        assert interrupted < 2000
        assert server.stats()["requests"] == 2000
    assert not (tmp_path / "verdicts.csv.part").exists()


def test_a_key_never_appears_in_anything_that_is_written(tmp_path: Path) -> None:
    secret = "sk-very-secret-0123456789"
    write_pictures(tmp_path / "pictures.npz", 30)
    with fault_server(0.3, 11) as server:
        description = server.describe(
            tmp_path, headers={"authorization": "Bearer ${SECRET_KEY}"}, query={"key": "${SECRET_KEY}"}
        )
        os.environ["SECRET_KEY"] = secret
        try:
            write_profile(tmp_path / "profile.json", description)
            done = run(
                "score", tmp_path / "pictures.npz", "--profile", tmp_path / "profile.json", "--json-log",
                "--ledger", tmp_path / "ledger.db", "-o", tmp_path / "out.csv",
            )  # fmt: skip
            dry = run(
                "score", tmp_path / "pictures.npz", "--profile", tmp_path / "profile.json", "--dry-run",
                "--ledger", tmp_path / "other.db", "-o", tmp_path / "dry.csv",
            )  # fmt: skip
        finally:
            del os.environ["SECRET_KEY"]
    assert done.returncode in (0, 3), done.stderr  # a question may fail three times in a row
    assert dry.returncode == 0, dry.stderr
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for text in (done.stdout, done.stderr, dry.stdout, dry.stderr, written.decode("latin1")):
        assert secret not in text
