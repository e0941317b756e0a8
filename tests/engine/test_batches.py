"""Batches of the vendors, through everything that can happen to them, from outside."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from conformance.batch_replica import BatchReplica, Faults, Handler
from conformance.vendors import HOUSES, LABELS, served as served_app
from support.batch_players import (
    ALL,
    asks_in_batches,
    check,
    hurry,
    open_batches,
    pictures,
    prepared,
    run_killed_at_every_stage,
    unanswered,
)
from support.engines import counted, spend_of
from support.errors import coded
from support.players import start
from support.workshop import run, write_profile

from looktwice import Model
from looktwice.calibration.evidence import Row
from looktwice.classifiers.registry import connect
from looktwice.engine.budget import MICRO, Spend
from looktwice.engine.ledger.maintenance import verify
from looktwice.engine.limits import Polling
from looktwice.engine.query import Cause, Progress
from looktwice.errors import ClassifierError, LedgerError
from looktwice.model import options
from looktwice.model.runs import run as run_async
from looktwice.views import Panel

VENDORS = ("openai", "anthropic", "gemini")


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    from looktwice.classifiers.chat import batching

    monkeypatch.setattr(options, "Polling", Polling)
    monkeypatch.setattr(batching, "WATCH", batching.WATCH)
    monkeypatch.setattr(batching.BatchApi, "most_bytes", batching.BatchApi.most_bytes)
    hurry()


@contextmanager
def served(vendor: str, folder: Path, faults: Faults | None = None) -> Iterator[BatchReplica]:
    replica = BatchReplica(HOUSES[vendor](), faults)
    with served_app(replica.app()) as address:
        prepared(folder, vendor, address)
        yield replica


def model(folder: Path, **changes: object) -> Model:
    settings = {"ledger": str(folder / "ledger.db"), "prices": folder / "prices.toml", "batch": True, **changes}
    return Model(folder / "model.toml", **settings)  # type: ignore[arg-type]


def test_killed_at_every_stage_every_answer_comes_once_and_the_books_are_the_bill(tmp_path: Path) -> None:
    with served("openai", tmp_path, ALL) as replica:
        assert run_killed_at_every_stage(replica, tmp_path, 150, "mirror") >= 8
        check(replica, tmp_path, 300)


def test_two_processes_share_batches_and_upload_nothing_twice(tmp_path: Path) -> None:
    with served("anthropic", tmp_path, Faults(2, expiring=0.1, seconds=0.2)) as replica:
        players = [start(asks_in_batches, tmp_path, count, "mirror") for count in (40, 60)]
        for process, pipe in players:
            assert pipe.poll(120), "it hangs"
            scored, causes = pipe.recv()
            process.join(30)
            assert (scored, causes) in ((40, []), (60, []))
        check(replica, tmp_path, 120)


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_batch_costs_half_and_its_estimate_is_near_the_bill(vendor: str, tmp_path: Path) -> None:
    runs: list[Progress] = []
    with served(vendor, tmp_path) as replica, model(tmp_path, progress=runs.append) as asked:
        estimate = asked.estimate(pictures(20), views="mirror")
        collected = asked.ask(pictures(20), views="mirror")
    assert len(replica.batches) == 1
    assert estimate.micros == pytest.approx(float(replica.house.bill), rel=0.1)
    assert (runs[-1].micros, runs[-1].answered, runs[-1].hits) == (math.ceil(replica.house.bill), 40, 0)
    brightness = [LABELS[int(image.mean()) % len(LABELS)] for image in pictures(20)]
    votes = collected.votes
    assert [votes.vocabulary[code] for code in votes.base] == brightness


@pytest.mark.parametrize("vendor", VENDORS)
def test_what_the_vendor_refuses_is_not_asked_again_and_not_paid(vendor: str, tmp_path: Path) -> None:
    with served(vendor, tmp_path, Faults(refused=0.2)) as replica, model(tmp_path) as asked:
        collected = asked.ask(pictures(60), views=Panel(()))
    assert 0 < len(collected.unscored) < 40
    assert {each.cause for each in collected.unscored} == {Cause.CLASSIFIER}
    assert "malformed" in collected.unscored[0].message
    assert sum(len(batch.lines) for batch in replica.batches.values()) == 60
    spend = spend_of(tmp_path / "ledger.db", connect(tmp_path / "model.toml").fingerprint)
    assert spend.picos == replica.house.bill * MICRO


def test_a_vendor_that_repeats_the_key_in_a_refusal_is_masked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VENDOR_KEY", "the question is malformed")  # which is what the refusals say
    with served("openai", tmp_path, Faults(refused=0.2)):
        with (tmp_path / "model.toml").open("a") as file:
            file.write('key = "VENDOR_KEY"\n')
        with model(tmp_path) as asked:
            collected = asked.ask(pictures(20), views=Panel(()))
    assert "malformed" not in collected.unscored[0].message
    assert "***" in collected.unscored[0].message


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_result_that_never_comes_stays_counted_and_its_question_is_asked_again(vendor: str, tmp_path: Path) -> None:
    with served(vendor, tmp_path, Faults(missing=3)) as replica, model(tmp_path) as asked:
        collected = asked.ask(pictures(20), views=Panel(()))
        most = asked.estimate(pictures(21)[20:], views=Panel(())).most_micros
    assert len(collected.votes) == 20
    assert [len(batch.lines) for batch in replica.batches.values()] == [20, 3]
    ledger = tmp_path / "ledger.db"
    assert (counted(ledger), unanswered(ledger)) == ((23, 20), 0)
    spent = spend_of(ledger, connect(tmp_path / "model.toml").fingerprint)
    lost = list(replica.house.prices[:3])
    assert spent.micros == math.ceil(replica.house.bill - sum(lost)) + 3 * most, "what was lost counts at its most"


DAMAGES = {
    "cut off": lambda file: file[: len(file) * 2 // 3],
    "empty": lambda file: b"",
    "a page of a proxy": lambda file: b"<html>please log in</html>",
    "without its last lines": lambda file: b"\n".join(file.splitlines()[:5]),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=[*DAMAGES])
@pytest.mark.parametrize("vendor", VENDORS)
def test_results_that_are_not_whole_at_first_are_fetched_again_and_nothing_is_bought_twice(
    vendor: str, damage: Callable[[bytes], bytes], tmp_path: Path
) -> None:
    damaged = 0

    @web.middleware
    async def spoil(request: web.Request, handler: Handler) -> web.StreamResponse:
        nonlocal damaged
        reply = await handler(request)
        if not request.path.endswith(("/content", "/results", ":download")) or damaged == 2:
            return reply
        damaged += 1
        assert isinstance(reply, web.Response)
        assert isinstance(reply.body, bytes)
        return web.Response(body=damage(reply.body))

    replica = BatchReplica(HOUSES[vendor]())
    app = replica.app()
    app.middlewares.insert(0, spoil)
    with served_app(app) as address:
        prepared(tmp_path, vendor, address)
        with model(tmp_path) as asked:
            assert len(asked.ask(pictures(30), views=Panel(())).votes) == 30
    assert damaged == 2
    check(replica, tmp_path, 30)


@pytest.mark.slow
def test_a_batch_is_cut_to_the_money_and_the_money_is_never_overrun(tmp_path: Path) -> None:
    with served("openai", tmp_path) as replica:
        with model(tmp_path) as asked:
            whole = asked.estimate(pictures(60), views=Panel(()))
        money = Decimal(whole.micros // 2).scaleb(-6)
        with model(tmp_path, money=money) as asked:
            collected = asked.ask(pictures(60), views=Panel(()))
    assert {each.cause for each in collected.unscored} == {Cause.BUDGET}
    assert len(replica.batches) > 1, "what a batch gives back of its reserve is used by the next one"
    assert money * 10**6 - whole.most_micros // 60 < replica.house.bill <= money * 10**6


def check_finished_by_the_next_run(replica: BatchReplica, folder: Path) -> None:
    """A run after one that left ten questions in a batch gets their answers, now that batches end, and sends none."""
    replica.faults.seconds, replica.hook = 0, lambda reached: None
    with model(folder) as asked:
        assert not asked.ask(pictures(10), views=Panel(())).unscored
    assert len(replica.batches) == 1
    check(replica, folder, 10)


def test_questions_in_an_open_batch_are_not_asked_one_by_one_and_are_fetched_by_the_next_run(tmp_path: Path) -> None:
    with served("openai", tmp_path, Faults(seconds=1000)) as replica:
        process, _ = start(asks_in_batches, tmp_path, 10, Panel(()))
        while not any(each.name for each in replica.batches.values()):
            process.join(0.02)
            assert process.is_alive()
        process.kill()
        process.join()
        with model(tmp_path, batch=False) as asked:
            collected = asked.ask(pictures(10), views=Panel(()))
        assert len(collected.unscored) == 10
        assert "--batch" in collected.unscored[0].message
        check_finished_by_the_next_run(replica, tmp_path)


def test_a_run_that_is_stopped_leaves_the_batch_to_the_next_one(tmp_path: Path) -> None:
    with served("anthropic", tmp_path, Faults(seconds=1000)) as replica:
        with model(tmp_path) as asked:

            def stop(reached: str) -> None:
                if reached == "poll done":
                    asked.stop()

            replica.hook = stop
            collected = asked.ask(pictures(10), views=Panel(()))
        assert {each.cause for each in collected.unscored} == {Cause.STOPPED}
        check_finished_by_the_next_run(replica, tmp_path)


@pytest.mark.parametrize("again", [False, True], ids=["while it is sent", "in the next run"])
def test_a_run_is_stopped_while_it_looks_for_a_batch_among_those_that_have_not_ended(
    tmp_path: Path, again: bool
) -> None:
    """Anthropic tells only at the end of a batch what is in it; the reply that named ours was lost."""
    with served("anthropic", tmp_path, Faults(seconds=1000)) as replica:
        for _ in range(1 + again):
            with model(tmp_path) as asked:

                def break_and_stop(reached: str, model: Model = asked) -> None:
                    if reached == "create done":
                        raise web.HTTPServiceUnavailable
                    if reached == "poll done":
                        model.stop()

                replica.hook = break_and_stop
                collected = asked.ask(pictures(10), views=Panel(()))
            assert {each.cause for each in collected.unscored} == {Cause.STOPPED}
        check_finished_by_the_next_run(replica, tmp_path)


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_batch_whose_id_was_lost_is_found_though_our_clock_is_hours_ahead(vendor: str, tmp_path: Path) -> None:
    with served(vendor, tmp_path) as replica:
        lost: list[str] = []

        def lose(reached: str) -> None:
            if reached == "create done" and not lost:
                lost.append(reached)
                for batch in replica.batches.values():
                    batch.made -= 14 * 3600
                raise web.HTTPServiceUnavailable

        replica.hook = lose
        with model(tmp_path) as asked:
            assert not asked.ask(pictures(30), views=Panel(())).unscored
        assert lost
        assert len(replica.batches) == 1
        check(replica, tmp_path, 30)


def test_stopping_early_takes_two_rounds(tmp_path: Path) -> None:
    from looktwice.engine.query import Rounds
    from looktwice.images.collection import many
    from looktwice.views import Panel

    panel = Panel.parse("mirror zoom:1.15 turn:8 turn:-8")

    async def work() -> list[object]:
        from looktwice.model import AsyncModel

        async with AsyncModel(
            tmp_path / "model.toml", ledger=str(tmp_path / "ledger.db"), prices=tmp_path / "prices.toml", batch=True
        ) as asked:
            doubt = Rounds(1, lambda row: row.base in LABELS[:3] and len(row.views) < 2)
            return [row async for row in asked.engine.ask(many(pictures(30)), panel, doubt)]

    with served("gemini", tmp_path) as replica:
        rows = run_async(work)
    asked = [sum(view is not None for view in row.views) for row in rows if isinstance(row, Row)]
    doubted = [row.base in LABELS[:3] for row in rows if isinstance(row, Row)]
    assert asked == [4 if doubt else 1 for doubt in doubted]
    assert len(replica.batches) == 2
    assert len(replica.batches["batches/b0"].lines) == 60
    check(replica, tmp_path, 60 + 3 * sum(doubted))


def test_only_chat_models_and_ledgers_that_last_take_batches(tmp_path: Path, ours: Callable[[], list[str]]) -> None:
    with served("openai", tmp_path):
        with pytest.raises(LedgerError, check=coded("ledger-required")), model(tmp_path, ledger="memory") as asked:
            asked.ask(pictures(1), views=Panel(()))
        with (
            pytest.raises(ClassifierError, check=coded("option-conflict")),
            Model(lambda image: "cat", ledger=str(tmp_path / "other.db"), batch=True) as other,
        ):
            other.ask(pictures(1), views=Panel(()))
    assert ours() == []


def test_the_command_line_scores_in_batches(tmp_path: Path) -> None:
    with served("openai", tmp_path) as replica:
        write_profile(tmp_path / "profile.json", tmp_path / "model.toml")
        np.savez(tmp_path / "p.npz", images=np.stack(pictures(8)), labels=np.zeros(8, np.int64))
        order = ("score", tmp_path / "p.npz", "-p", tmp_path / "profile.json", "-o", tmp_path / "out.jsonl")
        told = run(*order, "--ledger", tmp_path / "ledger.db", "--prices", tmp_path / "prices.toml", "--batch")
        assert told.returncode == 0, told.stderr
        assert len([json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]) == 8
        assert len(replica.batches) == 1
    assert verify(tmp_path / "ledger.db") == []


@pytest.mark.parametrize("vendor", VENDORS)
def test_a_batch_that_the_vendor_does_not_take_costs_nothing_and_is_sent_by_the_next_run(
    vendor: str, tmp_path: Path
) -> None:
    def refuse(stage: str) -> None:
        if stage == "create received":
            raise web.HTTPBadRequest(text='{"error": {"message": "no batches today"}}')

    with served(vendor, tmp_path) as replica:
        replica.hook = refuse
        with model(tmp_path) as asked, pytest.raises(ClassifierError, check=coded("classifier-refused")):
            asked.ask(pictures(5), views=Panel(()))
        ledger, fingerprint = tmp_path / "ledger.db", connect(tmp_path / "model.toml").fingerprint
        assert (spend_of(ledger, fingerprint).queries, open_batches(ledger, fingerprint)) == (0, [])
        replica.hook = lambda stage: None
        with model(tmp_path) as asked:
            assert len(asked.ask(pictures(5), views=Panel(())).votes) == 5
    assert verify(tmp_path / "ledger.db") == []


def test_a_question_that_expires_again_and_again_is_given_up_and_costs_nothing(tmp_path: Path) -> None:
    with served("openai", tmp_path, Faults(expired_batches=9)) as replica, model(tmp_path) as asked:
        collected = asked.ask(pictures(1), views=Panel(()))
    assert [each.cause for each in collected.unscored] == [Cause.CLASSIFIER]
    assert len(replica.batches) == 6
    assert spend_of(tmp_path / "ledger.db", connect(tmp_path / "model.toml").fingerprint) == Spend()
