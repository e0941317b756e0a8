"""What is a PostgreSQL ledger's own: lines that break, servers that go away, addresses with secrets, shared runs."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest
from faults import fault_server
from ledger_players import PRICE, WHO, answer, entry, intend, label, record, told
from workshop import command, write_pictures, write_profile

from looktwice.asking.ledger import Account, Budget
from looktwice.classifiers.base import Answer
from looktwice.errors import LedgerError

pytest.importorskip("psycopg", reason="no psycopg here; pip install 'looktwice[postgres]'")

import psycopg
from postgres_server import Server
from waiting import until

from looktwice.asking.ledger.postgres import MIGRATIONS, PostgresLedger, PostgresTables, explain
from looktwice.asking.ledger.sql import BATCHES, BILLS, TOKENS, Value


@pytest.fixture
def address(database: str) -> str:
    return database


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is away is soon no longer waited for."""
    monkeypatch.setattr("looktwice.asking.ledger.postgres.PATIENCE", 0.2)


# --- lines that break


def cut_lines(address: str) -> None:
    """End every connection of a ledger, in the midst of whatever it does."""
    told(address, "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'looktwice'")


def test_a_connection_that_breaks_is_reopened_and_everything_is_counted_once(address: str) -> None:
    with PostgresLedger(address) as ledger:
        granted: list[bytes] = []
        cut = threading.Timer(0.0, cut_lines, [address])
        cut.start()
        for turn in range(40):
            if turn % 3 == 0:
                cut.join()  # on a busy machine many at once would be more than a ledger puts up with
                cut = threading.Timer(0.001 * (turn % 7), cut_lines, [address])
                cut.start()
            granted += intend(ledger, range(10 * turn, 10 * turn + 10)).granted
            answer(ledger, granted[-5:])
            ledger.find(granted[-20:])
        cut.join()
        found = ledger.find(granted)
        assert len(granted) == 400
        assert {name: found[name].label for name in found} == {
            name: label(name) for turn in range(40) for name in granted[10 * turn + 5 : 10 * turn + 10]
        }
        assert ledger.spent(WHO) == Account(400, 400 * PRICE, 400, 400 * PRICE, 200, 200)


def test_a_commit_whose_outcome_the_line_did_not_tell_is_looked_up(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The line is cut after the server has committed and before the ledger hears of it."""
    original = psycopg.Connection.execute
    cut: list[str] = []

    def execute(self: psycopg.Connection[tuple[object, ...]], query: str, *rest: object, **more: object) -> object:
        result = original(self, query, *rest, **more)  # type: ignore[call-overload]
        if query == "COMMIT" and len(cut) < 2:
            cut.append(query)
            self.close()
            raise psycopg.OperationalError("the line broke")
        return result

    with PostgresLedger(address) as ledger:
        monkeypatch.setattr(psycopg.Connection, "execute", execute)
        granted = intend(ledger, range(5), Budget(queries=5)).granted
        ledger.release(granted[:2])
        ledger.flush().result(30)
        assert cut == ["COMMIT", "COMMIT"]
        assert ledger.spent(WHO) == Account(3, 3 * PRICE, 3, 3 * PRICE, 0, 3)


def test_a_crash_before_a_commit_reached_the_disk_loses_nothing_though_others_get_its_transaction_id(
    server: Server, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = psycopg.Connection.execute
    crashed: list[str] = []

    def execute(self: psycopg.Connection[tuple[object, ...]], query: str, *rest: object, **more: object) -> object:
        if query == "COMMIT" and not crashed:
            crashed.append(query)
            server.restart()
            for _ in range(50):
                told(address, "SELECT pg_current_xact_id()")
            raise psycopg.OperationalError("the line broke")
        return original(self, query, *rest, **more)  # type: ignore[call-overload]

    with PostgresLedger(address) as ledger:
        granted = intend(ledger, range(5)).granted
        monkeypatch.setattr(psycopg.Connection, "execute", execute)
        answer(ledger, granted)
        ledger.flush().result(60)
        assert crashed
        assert len(ledger.find(granted)) == 5
        assert ledger.spent(WHO) == Account(5, 5 * PRICE, 5, 5 * PRICE, 5, 0)
    assert told(address, "SELECT * FROM commits") == []


def test_a_connection_that_is_cut_during_many_statements_is_reopened(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver then says that it is busy, and neither what the server said nor that the line is closed."""
    original = PostgresTables.execute_many
    cut: list[str] = []

    def execute_many(self: PostgresTables, statement: str, rows: Sequence[Sequence[Value]]) -> None:
        if not cut:
            cut.append(statement)
            raise psycopg.OperationalError("cannot exit pipeline mode while busy")
        original(self, statement, rows)

    with PostgresLedger(address) as ledger:
        granted = intend(ledger, range(5)).granted
        monkeypatch.setattr(PostgresTables, "execute_many", execute_many)
        ledger.release(granted[:2])
        ledger.flush().result(30)
        assert cut
        assert ledger.spent(WHO) == Account(3, 3 * PRICE, 3, 3 * PRICE, 0, 3)


def test_a_server_that_crashes_is_waited_for_and_nothing_is_lost(server: Server, address: str) -> None:
    with PostgresLedger(address) as ledger:
        granted = intend(ledger, range(50)).granted
        record(ledger, granted[:25])
        crash = threading.Thread(target=server.restart)
        crash.start()
        record(ledger, granted[25:])
        ledger.flush().result(60)
        crash.join()
        assert len(ledger.find(granted)) == 50
        assert ledger.spent(WHO) == Account(50, 50 * PRICE, 50, 50 * PRICE, 50, 0)


@pytest.mark.usefixtures("_impatient")
def test_answers_wait_for_a_server_that_stays_away_and_who_gives_up_is_told_how_many_are_lost(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    ledger, impatient = PostgresLedger(server.emptied()), PostgresLedger(server.address)
    [name], [other] = intend(ledger, [1]).granted, intend(impatient, [2]).granted
    server.stop()
    try:
        ledger.record(name, Answer("cat"), 0.01, 1)
        impatient.record(other, Answer("dog"), 0.01, 1)
        flushed = ledger.flush()
        with pytest.raises(LedgerError, match=r"cannot be reached: .*; 1 answers that had come in were not saved"):
            impatient.close()
        with pytest.raises(LedgerError, match=r"^ledger postgresql://[^\n]*/postgres cannot be reached: [^\n]*$"):
            PostgresLedger(server.address)
        deadline = time.monotonic() + 60
        while "1 answers wait in memory" not in caplog.text:
            assert not flushed.done()
            assert time.monotonic() < deadline, "it did not say that an answer waits"
            time.sleep(0.05)
    finally:
        server.restart()
    with ledger:
        flushed.result(60)
        assert ledger.find([name, other]) == {name: Answer("cat")}


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("lost", [False, True], ids=["committed", "not committed"])
def test_a_commit_in_doubt_is_looked_up_even_after_a_long_absence_of_the_server(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lost: bool
) -> None:
    """The server goes away during a commit and stays away for longer than anybody waits for a line."""
    original = psycopg.Connection.execute
    gone: list[str] = []

    def execute(self: psycopg.Connection[tuple[object, ...]], query: str, *rest: object, **more: object) -> object:
        if query == "COMMIT" and not gone:
            if not lost:
                original(self, query)
            gone.append(query)
            server.stop()
            raise psycopg.OperationalError("the line broke")
        return original(self, query, *rest, **more)  # type: ignore[call-overload]

    with PostgresLedger(server.emptied()) as ledger:
        granted = intend(ledger, range(5)).granted
        monkeypatch.setattr(psycopg.Connection, "execute", execute)
        try:
            ledger.release(granted[:2])
            flushed = ledger.flush()
            until(lambda: flushed.done() or "wait in memory" in caplog.text)
            assert not flushed.done()
        finally:
            server.restart()
        flushed.result(60)
        assert ledger.spent(WHO) == Account(3, 3 * PRICE, 3, 3 * PRICE, 0, 3)


class Proxy:
    """Passes on what a client and the server say, until it goes silent without closing the lines that are open."""

    def __init__(self, server: Server) -> None:
        self._path = server.address.partition("host=")[2] + "/.s.PGSQL.5432"
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"postgresql://test@127.0.0.1:{self._listener.getsockname()[1]}/postgres"
        self._talking: list[threading.Event] = []
        self._sockets = [self._listener]
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        for line in self._talking:
            line.set()
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def silence(self) -> None:
        for line in self._talking:
            line.clear()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            upstream = socket.socket(socket.AF_UNIX)
            self._sockets += [client, upstream]
            upstream.connect(self._path)
            talking = threading.Event()
            talking.set()
            self._talking.append(talking)
            for one, other in ((client, upstream), (upstream, client)):
                threading.Thread(target=self._pass_on, args=(one, other, talking), daemon=True).start()

    @staticmethod
    def _pass_on(one: socket.socket, other: socket.socket, talking: threading.Event) -> None:
        with suppress(OSError):
            while data := one.recv(65536):
                talking.wait()
                other.sendall(data)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)


def test_a_server_that_says_nothing_though_its_lines_are_open_is_not_waited_for_without_end(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looktwice.asking.ledger.postgres.SILENCE", 2.0)
    server.emptied()
    with closing(Proxy(server)) as proxy, PostgresLedger(proxy.address) as ledger:
        granted = intend(ledger, range(5)).granted
        proxy.silence()
        answer(ledger, granted[:3])
        ledger.release(granted[3:])
        ledger.flush().result(30)
        assert len(ledger.find(granted)) == 3
        assert ledger.spent(WHO) == Account(3, 3 * PRICE, 3, 3 * PRICE, 3, 0)


@pytest.mark.usefixtures("_impatient")
def test_answers_wait_for_a_server_that_only_reads_as_one_that_takes_over_does_at_first(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    with PostgresLedger(address) as ledger:
        granted = intend(ledger, range(5)).granted
        told(address, "ALTER DATABASE postgres SET default_transaction_read_only = on")
        try:
            cut_lines(address)
            record(ledger, granted)
            flushed = ledger.flush()
            until(lambda: flushed.done() or "5 answers wait in memory" in caplog.text)
            assert not flushed.done()
        finally:
            with psycopg.connect(address, options="-c default_transaction_read_only=off") as line:
                line.execute("ALTER DATABASE postgres RESET default_transaction_read_only")
        flushed.result(60)
        assert ledger.spent(WHO) == Account(5, 5 * PRICE, 5, 5 * PRICE, 5, 0)


def test_a_session_that_vanishes_in_a_transaction_does_not_stop_the_others(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with PostgresLedger(address) as ledger, psycopg.connect(address) as stuck:
        stuck.execute("SET idle_in_transaction_session_timeout = '300ms'")
        stuck.execute("SELECT pg_advisory_xact_lock(%s, 1)", [int.from_bytes(b"2ndL", "big")])
        assert intend(ledger, [1]).granted
        stuck.close()


# --- addresses


def test_a_password_is_in_no_message(server: Server) -> None:
    for address in (
        f"{server.address}&password=hunter2&port=1",
        "postgresql://me:hunter2@127.0.0.1:1/books",
        "postgresql://me:hun/ter2@127.0.0.1/books",
        "postgresql://me:hunter2@127.0.0.1:1/books?nonsense=1",
    ):
        with pytest.raises(LedgerError) as raised:
            PostgresLedger(address)
        assert "hun" not in str(raised.value)
        assert "\n" not in str(raised.value)


def test_a_user_without_rights_is_told_so(server: Server) -> None:
    told(server.emptied(), "DROP ROLE IF EXISTS guest")
    told(server.address, "CREATE ROLE guest LOGIN")
    with pytest.raises(LedgerError, match="grant it the right to create a schema"):
        PostgresLedger(server.address.replace("test@", "guest@"))


def test_a_ledger_of_a_newer_version_stays_as_it_is(address: str) -> None:
    PostgresLedger(address).close()
    told(address, f"UPDATE version SET number = {len(MIGRATIONS) + 1}")
    with pytest.raises(LedgerError, match="newer looktwice"):
        PostgresLedger(address)


def test_a_disk_that_is_full_and_a_failure_of_its_own_kind_are_told_in_one_line() -> None:
    assert str(explain("the ledger", psycopg.errors.DiskFull("could not extend file"))) == (
        "the disk of the ledger is full; free some space and run again"
    )
    assert str(explain("the ledger", psycopg.DataError("out\nof range"))) == "the ledger failed: out of range"
    assert "run again when it can" in str(explain("the ledger", psycopg.OperationalError("no route")))


def test_a_schema_of_that_name_that_is_not_ours_stays_as_it_is(server: Server) -> None:
    told(server.emptied(), "CREATE SCHEMA looktwice")
    with pytest.raises(LedgerError, match="not a ledger"):
        PostgresLedger(server.address)
    assert told(server.address, "SELECT count(*) FROM pg_tables WHERE schemaname = 'looktwice'") == [(0,)]


def test_a_zero_character_is_refused_and_does_not_stop_the_ledger(address: str) -> None:
    with PostgresLedger(address) as ledger:
        granted = intend(ledger, range(2)).granted
        with pytest.raises(LedgerError, match="zero character"):
            ledger.record(granted[0], Answer("a\0b"), 0.1, 1)
        answer(ledger, granted[1:])
        assert set(ledger.find(granted)) == {granted[1]}


def test_machines_whose_clocks_disagree_see_each_other_live(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with PostgresLedger(address) as theirs, PostgresLedger(address) as ours:
        granted = intend(theirs, [1]).granted
        told(address, "UPDATE sessions SET host = 'elsewhere'")
        now = time.time
        monkeypatch.setattr(time, "time", lambda: now() + 3600)
        assert intend(ours, [1]).held == granted
        assert intend(ours, [2]).granted == [entry(2).key]


# --- moments to send at


def test_moments_are_claimed_by_one_session_after_the_other(address: str) -> None:
    with PostgresLedger(address) as ours, PostgresLedger(address) as theirs:
        assert ours.claim_moments(WHO, 0.001, 3) == 0.0
        assert 2900 < theirs.claim_moments(WHO, 0.001, 1) <= 3000
        assert 3900 < ours.claim_moments(WHO, 0.1, 100) <= 4000, "each claims at its own rate"
        assert 4900 < theirs.claim_moments(WHO, 0.001, 1) <= 5000
        assert ours.claim_moments("another classifier", 0.001, 1) == 0.0


def test_moments_that_nobody_claimed_are_gone(address: str) -> None:
    with PostgresLedger(address) as ledger:
        ledger.claim_moments(WHO, 1000.0, 1)
        time.sleep(0.05)
        assert ledger.claim_moments(WHO, 0.001, 1) == 0.0
        assert 900 < ledger.claim_moments(WHO, 0.001, 1) <= 1000


def test_moments_are_claimed_over_a_line_that_breaks(address: str) -> None:
    with PostgresLedger(address) as ledger:
        ledger.claim_moments(WHO, 0.001, 1)
        cut_lines(address)
        assert 900 < ledger.claim_moments(WHO, 0.001, 1) <= 1000
    with pytest.raises(LedgerError, match="is closed"):
        ledger.claim_moments(WHO, 0.1, 1)


def test_a_ledger_of_the_first_version_is_brought_up(address: str) -> None:
    with PostgresLedger(address) as ledger:
        answer(ledger, intend(ledger, [1]).granted)
    told(address, "DROP TABLE commits")
    told(address, "DROP TABLE learned")
    told(address, "DROP TABLE paces")
    told(address, "DROP TABLE batches")
    told(address, f"ALTER TABLE questions {', '.join(f'DROP COLUMN {column}' for column in BATCHES)}")
    told(
        address, "ALTER TABLE spend DROP COLUMN answered, DROP COLUMN refused, DROP COLUMN waived, DROP COLUMN command"
    )
    told(address, f"ALTER TABLE spend {', '.join(f'DROP COLUMN {column}' for column in BILLS)}")
    told(address, f"ALTER TABLE questions {', '.join(f'DROP COLUMN {c}' for c in ('options', *TOKENS))}")
    told(address, "UPDATE version SET number = 1")
    with PostgresLedger(address) as ledger:
        assert ledger.find([entry(1).key])
        assert ledger.claim_moments(WHO, 1.0, 1) == 0.0
    assert told(address, "SELECT answered, refused, waived, command FROM spend") == [(1, 0, 0, None)]


# --- runs that share


def test_two_runs_at_once_share_a_budget_exactly_as_the_classifier_counts_it(address: str, tmp_path: Path) -> None:
    with fault_server(delay=0.002) as classifier:
        description = classifier.describe(tmp_path)
        write_profile(tmp_path / "profile.json", description)
        asking = ("--profile", tmp_path / "profile.json", "--ledger", address, "--budget", 701)
        for seed, name in enumerate("ab"):
            write_pictures(tmp_path / f"{name}.npz", 120, seed)
        runs = [
            subprocess.Popen(
                command("score", tmp_path / f"{name}.npz", "--out", tmp_path / f"{name}.csv", *asking),
                stderr=subprocess.PIPE,
            )
            for name in "ab"
        ]
        said = [run.communicate()[1] for run in runs]
        assert {run.returncode for run in runs} <= {0, 3}, said
        assert classifier.stats()["requests"] == 701
    assert told(address, "SELECT sum(queries)::int, count(*) FROM spend") == [(701, 2)]
