"""A ledger in PostgreSQL: a server that breaks, commits in doubt, other machines, and messages without passwords."""

from __future__ import annotations

import asyncio
import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from support.classifiers import Labelling
from support.engines import counted, engine_on, rows_of
from support.errors import coded
from support.waiting import until_async
from support.workshop import PANEL, write_pictures

from engine.test_ledger import PRICE, WHO, claim, entry, ledger_at, settle
from looktwice.calibration.evidence import Row
from looktwice.classifiers.base import Answer
from looktwice.engine.budget import Budget
from looktwice.engine.ledger.ledger import Ledger, open_ledger
from looktwice.engine.ledger.postgres import PostgresDatabase
from looktwice.engine.ledger.schema import Account, Claim, Session, Wait
from looktwice.engine.ledger.transaction import DEAD, Transaction
from looktwice.errors import LedgerError

if TYPE_CHECKING:
    from support.postgres_server import Server


async def test_a_server_that_crashes_is_waited_for_and_nothing_is_lost(
    tmp_path: Path, server: Server, database: str
) -> None:
    classifier = Labelling()
    async with engine_on(classifier, database) as engine:
        asking = asyncio.create_task(rows_of(engine, write_pictures(tmp_path / "pictures.npz", 120), PANEL))
        for answered in (50, 200):
            await until_async(lambda: engine.progress.answered >= answered)  # noqa: B023
            await asyncio.to_thread(server.restart)
        rows = await asking
    assert sum(isinstance(row, Row) for row in rows) == 120
    assert classifier.calls == 600, "nothing was bought twice"
    assert counted(database) == (600, 600)


@pytest.mark.parametrize("committed", [True, False])
def test_a_commit_whose_outcome_is_not_known_is_looked_up(
    database: str, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, broken = PostgresDatabase.commit, 0

    def breaks(self: PostgresDatabase) -> None:
        nonlocal broken
        broken += 1
        if broken % 3 == 1:
            if committed:
                original(self)
            self._db.close()
            raise psycopg.OperationalError("the connection is lost")
        original(self)

    monkeypatch.setattr(PostgresDatabase, "commit", breaks)
    with ledger_at(database) as ledger:
        for number in range(6):
            granted = claim(ledger, [number])
            assert isinstance(granted[0], Claim), granted
            settle(ledger, granted, Answer("ant"))
        assert ledger.spend(WHO).queries == 6
        assert ledger.spend(WHO).picos == 6 * PRICE
    assert broken > 6


def test_a_process_that_was_stopped_during_a_transaction_makes_it_again(database: str) -> None:
    """The server has ended its connection, so that the others need not wait; what it was to write is not lost."""
    tries = count()

    def stopped_at_first(transaction: Transaction) -> None:
        if next(tries) == 0:
            transaction.database.execute("SET LOCAL idle_in_transaction_session_timeout = '50ms'")
            time.sleep(0.5)

    async def change(ledger: Ledger) -> None:
        await ledger.change(stopped_at_first)

    with ledger_at(database) as ledger:
        asyncio.run(change(ledger))
    assert next(tries) == 2


def test_a_session_of_another_machine_lives_while_it_beats(database: str) -> None:
    with ledger_at(database) as ledger:
        claim(ledger, [1])
        now = ledger.now()
        with psycopg.connect(database, options="-c search_path=looktwice") as line:
            line.execute("UPDATE sessions SET host = 'elsewhere'")
            other = Ledger(PostgresDatabase(database))
            assert other.session.host != "elsewhere"
            line.commit()
            assert claim(other, [1]) == [Wait(elsewhere=True)]
            line.execute("UPDATE sessions SET beat = %s WHERE host = 'elsewhere'", (now - DEAD - 1,))
        assert isinstance(claim(other, [1])[0], Claim)
        settle(other, claim(other, [2]), Answer("ant"))
        other.close()


def test_a_claim_of_a_process_that_slept_is_not_sent(database: str) -> None:
    with ledger_at(database) as ledger:
        (granted,) = claim(ledger, [1])
        assert isinstance(granted, Claim)
        assert ledger.is_current(granted)
        ledger._beat_at -= DEAD
        assert not ledger.is_current(granted)


def test_a_password_is_in_no_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for address in ("postgresql://me:hunter2@127.0.0.1:1/db", "postgresql://me:hunter2@[broken/db"):
        with pytest.raises(LedgerError) as told:
            open_ledger(address)
        assert "hunter2" not in str(told.value)
    assert list(tmp_path.iterdir()) == []


def test_a_schema_of_that_name_that_is_not_ours_stays_as_it_is(server: Server) -> None:
    address = server.emptied()
    with psycopg.connect(address, autocommit=True) as line:
        line.execute("CREATE SCHEMA looktwice")
        line.execute("CREATE TABLE looktwice.questions(x INTEGER)")
        with pytest.raises(LedgerError, check=coded("ledger-foreign")):
            open_ledger(address)
        assert line.execute("SELECT COUNT(*) FROM pg_tables WHERE schemaname = 'looktwice'").fetchone() == (1,)
    server.emptied()


def test_many_sessions_share_a_budget_exactly(database: str) -> None:
    ledgers = [Ledger(PostgresDatabase(database)) for _ in range(3)]

    async def ask(ledger: Ledger, numbers: range) -> int:
        granted = 0
        for number in numbers:
            (answer,) = await ledger.claim(Account(WHO, (Budget(queries=100),)), [(entry(number), PRICE)])
            if isinstance(answer, Claim):
                granted += 1
        return granted

    async def all_of_them() -> list[int]:
        return await asyncio.gather(
            *(ask(each, range(60 * place, 60 * place + 60)) for place, each in enumerate(ledgers))
        )

    assert sum(asyncio.run(all_of_them())) == 100
    for ledger in ledgers:
        ledger.close()
    assert isinstance(ledgers[0].session, Session)
