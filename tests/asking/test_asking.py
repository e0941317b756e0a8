"""The asker against a real server that fails in every way: nothing lost, nothing bought twice, no budget exceeded."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import time
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from faults import Running, fault_server
from ledger_players import told
from storms import counted, storm
from waiting import until, until_async
from workshop import HURRY, PANEL, answers, run, start, write_pictures, write_profile

from looktwice.asking.asker import Asker
from looktwice.asking.jobs import Rounds
from looktwice.asking.ledger import Budget, SqliteLedger, verify
from looktwice.asking.outcome import Cause, Unscored
from looktwice.asking.pace import RetryPolicy
from looktwice.calibration.votes import Row
from looktwice.classifiers.base import Answer, Terms
from looktwice.classifiers.registry import connect
from looktwice.errors import ClassifierError, LedgerError, PermanentError, QuotaError, TransientError
from looktwice.pictures.collection import Picture, find

KILLS = int(os.environ.get("LOOKTWICE_KILLS", "6"))


def scored(rows: list[Row | Unscored]) -> dict[str, Row]:
    return {row.name: row for row in rows if isinstance(row, Row)}


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_with_faults_every_label_equals_the_calm_run_or_the_picture_is_not_scored(
    tmp_path: Path, seed: int
) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 200, seed)
    with fault_server() as calm, fault_server(0.3, seed) as rough:
        expected, _ = await answers(calm.describe(tmp_path), pictures)
        first, asker = await answers(rough.describe(tmp_path), pictures, tmp_path / "ledger.db")
        sent = rough.stats()["billed"]
        second, again = await answers(rough.describe(tmp_path), pictures, tmp_path / "ledger.db")
    truth = scored(expected)
    assert len(truth) == 200
    assert all(truth[name].views == row.views and truth[name].base == row.base for name, row in scored(first).items())
    assert len(scored(first)) >= 198
    assert asker.progress.retries > 150
    # A request that times out before the server has read it counts as sent: it may have been billed.
    assert sent <= asker.progress.sent
    # The second run asks only what the first could not get, and never what is stored.
    missing = 5 * 200 - asker.progress.answered
    assert again.progress.hits == asker.progress.answered
    assert again.progress.answered <= missing
    assert scored(second).keys() >= scored(first).keys()


async def test_an_answer_that_is_stored_is_never_bought_again(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 60)
    with fault_server() as server:
        description = server.describe(tmp_path)
        first, _ = await answers(description, pictures, tmp_path / "ledger.db")
        second, asker = await answers(description, pictures, tmp_path / "ledger.db")
        stats = server.stats()
    assert first == second
    assert (stats["requests"], asker.progress.sent, asker.progress.hits) == (300, 0, 300)


async def test_a_picture_that_stands_twice_is_asked_about_once(tmp_path: Path) -> None:
    (one,) = write_pictures(tmp_path / "pictures.npz", 1)
    twins = [Picture(one.name, None, one.source)] * 40
    with fault_server(delay=0.01) as server:
        rows, _ = await answers(server.describe(tmp_path), twins)
        assert server.stats()["requests"] == 5
    assert len({row.views for row in rows if isinstance(row, Row)}) == 1


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
            assert rate or count.unknown == 0
        rows, more, _ = asked
    assert any(isinstance(row, Unscored) and row.cause is Cause.BUDGET for row in rows)
    assert scored(rows) == scored(more)


async def test_two_processes_share_a_ledger_and_a_budget(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures.npz", 300)
    with fault_server(delay=0.002) as server:
        description = server.describe(tmp_path)
        write_profile(tmp_path / "profile.json", description)
        shared = (
            "--profile",
            tmp_path / "profile.json",
            "--ledger",
            tmp_path / "ledger.db",
            "--budget",
            1000,
            "--canaries",
            0,
        )
        both = [
            start("score", tmp_path / "pictures.npz", *shared, "-o", tmp_path / f"{name}.csv")
            for name in ("left", "right")
        ]
        codes = [process.wait(120) for process in both]
        stats = server.stats()
    assert codes == [3, 3]
    assert stats["requests"] == 1000
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        account = ledger.spent(connect(description).fingerprint)
    # Every query bought a different answer: neither process asked what the other had or was asking.
    assert account.queries == account.answered == 1000


@pytest.mark.parametrize("cast", ["two", "three", "services"])
def test_those_who_share_a_budget_through_a_storm_of_faults_all_come_to_their_end(tmp_path: Path, cast: str) -> None:
    storm(tmp_path, str(tmp_path / "ledger.db"), cast, seed=7)
    assert verify(tmp_path / "ledger.db") == []


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
async def test_an_error_that_will_not_pass_ends_the_run_before_the_budget_burns(tmp_path: Path, status: int) -> None:
    calls = 0

    class Refusing(Labelling):
        async def label(self, batch: Sequence[object]) -> list[Answer]:
            nonlocal calls
            calls += 1
            await asyncio.sleep(0.001)
            raise PermanentError(f"{status}: fix the request")

    pictures = write_pictures(tmp_path / "pictures.npz", 200)
    with pytest.raises(PermanentError, match="fix the request"):
        await everything(Asker(Refusing(), retry=HURRY), pictures)
    assert calls <= Refusing.terms.concurrency


class Labelling:
    """A classifier in this process that calls every picture an ant."""

    fingerprint = "test:labelling"
    labels = None
    terms = Terms(batch=1, concurrency=8)

    def prepare(self, pixels: np.ndarray) -> np.ndarray:
        return pixels

    async def label(self, batch: Sequence[object]) -> list[Answer]:
        await asyncio.sleep(0)
        return [Answer("ant") for _ in batch]

    async def close(self) -> None: ...


async def everything(asker: Asker, pictures: Iterable[Picture], rounds: Rounds | None = None) -> list[Row | Unscored]:
    return [row async for row in asker.ask(pictures, PANEL, rounds)]


async def test_a_process_that_was_stopped_buys_nothing_that_another_has_bought_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looktwice.asking.ledger.protocol.DEAD", 0.1)
    monkeypatch.setattr("looktwice.asking.sender.STALL", 0.2)
    pictures, calls = write_pictures(tmp_path / "pictures.npz", 4), 0

    class Counting(Labelling):
        async def label(self, batch: Sequence[object]) -> list[Answer]:
            nonlocal calls
            calls += 1
            return [Answer("ant")]

    def ask_all() -> None:
        time.sleep(0.3)  # until the first one counts as dead
        with SqliteLedger(tmp_path / "ledger.db") as ledger:
            assert len(scored(asyncio.run(everything(Asker(Counting(), ledger), pictures)))) == 4

    class Stopped(Counting):
        async def label(self, batch: Sequence[object]) -> list[Answer]:
            if not calls:
                other = Thread(target=ask_all)
                other.start()
                other.join()  # which stops the whole event loop, as SIGSTOP and a closed lid do
            return await super().label(batch)

    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        asker = Asker(Stopped(), ledger)
        assert len(scored(await everything(asker, pictures))) == 4
        account = ledger.spent(Labelling.fingerprint)
    assert calls == 20 + 1  # the one that was in flight
    assert (account.queries, account.answered, account.unanswered) == (21, 20, 0)


async def test_many_failures_in_a_row_stop_the_run(tmp_path: Path) -> None:
    class Dead(Labelling):
        async def label(self, batch: Sequence[object]) -> list[Answer]:
            raise TransientError("connection refused", sent=False)

    asker = Asker(Dead(), retry=RetryPolicy(backoff=0.001, breaker=25), budget=Budget(queries=1000))
    with pytest.raises(ClassifierError, match="25 attempts in a row failed"):
        await everything(asker, write_pictures(tmp_path / "pictures.npz", 100))


async def test_where_everything_is_refused_all_wait_as_long_as_they_are_asked_to(tmp_path: Path) -> None:
    calls: list[float] = []

    class Full(Labelling):
        """Takes 60 calls, and none for a second after that."""

        async def label(self, batch: Sequence[object]) -> list[Answer]:
            calls.append(time.monotonic())
            await asyncio.sleep(0.001)
            if len(calls) > 60 and calls[-1] < calls[60] + 1.0:
                raise TransientError("slow down", status=429, retry_after=1.0, billed=False)
            return [Answer("ant")]

    rows = await everything(Asker(Full()), write_pictures(tmp_path / "pictures.npz", 30))
    assert len(scored(rows)) == 30
    assert len(calls) - 150 <= 2 * 8 + 8  # until it was noticed, and what was in flight then


async def test_a_wait_that_is_longer_than_allowed_stops_the_run_and_says_when_to_come_back(tmp_path: Path) -> None:
    class Closed(Labelling):
        calls = 0

        async def label(self, batch: Sequence[object]) -> list[Answer]:
            self.calls += 1
            if self.calls > 20:
                raise TransientError("closed", status=429, retry_after=3600.0, billed=False)
            return [Answer("ant")]

    closed = Closed()
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        asker = Asker(closed, ledger)
        assert asker.blocked() is None
        rows: list[Row | Unscored] = []

        async def gather() -> None:
            async for row in asker.ask(write_pictures(tmp_path / "pictures.npz", 100), PANEL):
                rows.append(row)

        with pytest.raises(QuotaError, match=r"left alone until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d .*--longest-wait"):
            await gather()
        account = ledger.spent(closed.fingerprint)
        assert "left alone until" in (asker.blocked() or "")
    assert {row.cause for row in rows if isinstance(row, Unscored)} == {Cause.STOPPED}
    assert closed.calls <= 20 + 8
    assert (account.queries, account.answered, account.unanswered) == (20, 20, 0)


async def test_a_wait_that_is_allowed_is_waited_for_and_not_paid_for(tmp_path: Path) -> None:
    class Busy(Labelling):
        calls = 0

        async def label(self, batch: Sequence[object]) -> list[Answer]:
            self.calls += 1
            if self.calls == 3:
                raise TransientError("busy", status=429, retry_after=0.5, billed=False)
            return [Answer("ant")]

    began = time.monotonic()
    asker = Asker(Busy(), retry=RetryPolicy(longest=0.01), budget=Budget(queries=25))
    assert len(scored(await everything(asker, write_pictures(tmp_path / "pictures.npz", 5)))) == 5
    assert time.monotonic() - began >= 0.5
    assert asker.progress.sent == 25


@pytest.mark.parametrize(
    ("budget", "why"),
    [
        (Budget(queries=10), "the budget is spent"),
        (Budget(micros=30), "the budget is spent"),
        (Budget(queries_per_day=10), "the budget of this day is spent"),
        (Budget(queries=10, queries_per_day=10), "the budget is spent"),
    ],
)
async def test_an_asker_says_why_nothing_can_be_asked(tmp_path: Path, budget: Budget, why: str) -> None:
    ledger = SqliteLedger(tmp_path / "ledger.db")
    asker = Asker(Labelling(), ledger, budget=budget, terms=Terms(price_micros=3))
    assert asker.blocked() is None
    await everything(asker, write_pictures(tmp_path / "pictures.npz", 4))
    assert (asker.blocked() or "").startswith(why)
    ledger.close()
    assert "is closed" in (asker.blocked() or "")
    asker.stop("somebody said so")
    assert asker.blocked() == "somebody said so"


@pytest.mark.parametrize(
    ("budget", "before", "after"),
    [
        (Budget(), (None, None), (None, None)),
        (Budget(queries=12), (12, None), (7, None)),
        (Budget(micros=30), (10, 30), (5, 15)),
        (Budget(queries=8, micros=30), (8, 30), (3, 15)),
    ],
)
async def test_an_asker_says_how_many_queries_and_how_much_money_are_left(
    tmp_path: Path, budget: Budget, before: tuple[int | None, int | None], after: tuple[int | None, int | None]
) -> None:
    asker = Asker(Labelling(), budget=budget, terms=Terms(price_micros=3))
    assert (asker.room(), asker.money_left()) == before
    await everything(asker, write_pictures(tmp_path / "pictures.npz", 1))
    assert (asker.room(), asker.money_left()) == after


async def test_what_a_run_leaves_without_an_answer_is_free_for_others_at_once(tmp_path: Path) -> None:
    """A budget that ends before a retry, a failure for good, and a run that breaks: nothing stays held."""

    class Failing(Labelling):
        error: Exception = TransientError("lost")

        async def label(self, batch: Sequence[object]) -> list[Answer]:
            await asyncio.sleep(0.001)
            raise self.error

    pictures = write_pictures(tmp_path / "pictures.npz", 4)
    path = tmp_path / "ledger.db"
    with SqliteLedger(path) as living:
        failing = Failing()
        asker = Asker(failing, living, HURRY, Budget(queries=12))
        await everything(asker, pictures)
        for failing.error in (PermanentError("no"), ValueError("a connector that breaks its promise")):
            with pytest.raises(type(failing.error)):
                await everything(Asker(failing, living, HURRY), pictures)
        await asyncio.wrap_future(living.flush())
        assert told(str(path), "SELECT COUNT(*) FROM questions WHERE session IS NOT NULL") == [(0,)]
        with SqliteLedger(path) as other:
            async with asyncio.timeout(120):
                rows = await everything(Asker(Labelling(), other), pictures)
    assert len(scored(rows)) == 4


async def test_a_ledger_that_fails_ends_the_run_and_hangs_nobody(tmp_path: Path) -> None:
    class Closing(Labelling):
        calls = 0

        async def label(self, batch: Sequence[object]) -> list[Answer]:
            number = self.calls = self.calls + 1
            await asyncio.sleep(0.001)
            if number == 20:
                await asyncio.to_thread(ledger.close)
            raise TransientError("lost")

    ledger, patient = SqliteLedger(tmp_path / "ledger.db"), replace(HURRY, breaker=100_000)
    with pytest.raises(LedgerError, match="is closed"):
        async with asyncio.timeout(120):
            await everything(Asker(Closing(), ledger, patient), write_pictures(tmp_path / "pictures.npz", 50))


async def test_a_ledger_that_another_program_locks_in_the_midst_of_a_run_costs_no_paid_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("looktwice.asking.ledger.sqlite.PATIENCE", 0.1)
    pictures, path = write_pictures(tmp_path / "pictures.npz", 100), tmp_path / "ledger.db"

    async def lock(server: Running) -> None:
        await until_async(lambda: server.stats()["requests"] >= 100)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await until_async(lambda: "wait in memory" in caplog.text)
            await asyncio.sleep(0.5)

    with fault_server(delay=0.02) as server:
        locking = asyncio.create_task(lock(server))
        with suppress(LedgerError):  # of a question that was to be entered meanwhile
            await answers(server.describe(tmp_path), pictures, path)
        await locking
        rows, asker = await answers(server.describe(tmp_path), pictures, path)
        count = counted(server, str(path))
    assert len(scored(rows)) == 100
    assert asker.progress.hits >= 100
    assert (count.requests, count.counted, count.answered, count.unknown) == (500, 500, 500, 0)


async def test_views_can_be_asked_in_rounds_until_there_are_enough(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 50)
    with fault_server() as server:
        description = server.describe(tmp_path)
        full, _ = await answers(description, pictures)
        classifier = connect(description)
        ledger = SqliteLedger(tmp_path / "ledger.db")
        asker = Asker(classifier, ledger, HURRY)
        # Enough when the first view agrees; else one more at a time.
        rounds = Rounds(1, lambda row: 0 if row.base in row.views else 1)
        rows = await everything(asker, pictures, rounds=rounds)
        asked = asker.progress.sent
        assert ledger.spent(classifier.fingerprint).queries == asked
        await classifier.close()
        ledger.close()
    wholes = scored(full)
    for row in scored(rows).values():
        whole = wholes[row.name].views
        used = next((i + 1 for i, view in enumerate(whole) if view == row.base), len(whole))
        assert row.views == whole[:used] + (None,) * (len(whole) - used)
    assert 100 < asked < 250


async def test_a_picture_that_cannot_be_read_is_not_scored_and_costs_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("not a picture")
    asker = Asker(Labelling())
    (row,) = await everything(asker, find([tmp_path / "a.png"]))
    assert isinstance(row, Unscored)
    assert row.message.startswith("not a picture")
    assert asker.progress.sent == 0


async def test_an_answer_without_a_label_leaves_the_picture_unscored(tmp_path: Path) -> None:
    class Silent(Labelling):
        async def label(self, batch: Sequence[object]) -> list[Answer]:
            return [Answer("") for _ in batch]

    (row,) = await everything(Asker(Silent()), write_pictures(tmp_path / "pictures.npz", 1))
    assert row == Unscored("pictures.npz#0", Cause.NO_LABEL, "the classifier's answer held no label")


async def stop_after(asker: Asker, answers: int) -> None:
    await until_async(lambda: asker.progress.answered >= answers)
    asker.stop()


async def test_stopping_waits_for_what_is_in_flight_and_gives_the_rest_back(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 200)
    with fault_server(delay=0.02) as server:
        classifier = connect(server.describe(tmp_path))
        ledger = SqliteLedger(tmp_path / "ledger.db")
        asker = Asker(classifier, ledger, HURRY)
        stopping = asyncio.create_task(stop_after(asker, 50))
        rows = await everything(asker, pictures)
        await stopping
        account = ledger.spent(classifier.fingerprint)
        await classifier.close()
        ledger.close()
        stats = server.stats()
    assert 0 < stats["requests"] < 1000
    assert account.queries == account.answered == stats["answered"] == stats["requests"]
    assert account.unanswered == 0
    assert [row.name for row in rows] == [picture.name for picture in pictures], "those never reached are told as well"
    stopped = [row for row in rows if isinstance(row, Unscored)]
    assert {(row.cause, row.message) for row in stopped} == {(Cause.STOPPED, "the run was stopped")}
    assert (asker.progress.pictures, asker.progress.unscored) == (200, len(stopped))


async def test_a_stream_of_pictures_is_not_read_on_once_asking_is_stopped(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "pictures.npz", 3)
    asker = Asker(Labelling())
    asker.stop()
    assert await everything(asker, iter(pictures)) == []
    assert [row.name for row in await everything(asker, pictures)] == [picture.name for picture in pictures]


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
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        account = ledger.spent(connect(description).fingerprint)
    # Answers that the server gave and the ledger lacks: at each kill those in flight and those on their way to disk,
    # which with what is entered and not yet sent are twice the concurrency at most; and resets after an answer.
    lost = stats["answered"] - account.answered
    assert lost <= 2 * 32 * KILLS + stats["faults"].get("reset after", 0)
    assert account.answered == 750
    assert account.queries >= stats["billed"]
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
    assert (tmp_path / "verdicts.csv").read_bytes() == (tmp_path / "calm.csv").read_bytes()


@pytest.mark.parametrize(
    ("delay", "pace"),
    [(0.04, ()), (0.04, ("--rate", 60)), (0.002, ())],
    ids=["as fast as it answers", "at a rate", "answers at once"],
)
def test_each_kill_9_counts_at_most_the_concurrency_that_the_server_never_saw(
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
            with SqliteLedger(tmp_path / "ledger.db") as ledger:
                queries = ledger.spent(connect(description).fingerprint).queries
            before, end = unseen, time.monotonic() + 60
            while (unseen := queries - server.stats()["requests"]) > before + 8:
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
        assert "run the same command again" in said
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
