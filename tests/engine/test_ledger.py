"""The ledger: its keys, its files, and what people do with it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from itertools import count, pairwise
from pathlib import Path

import pytest
from support.errors import coded

from looktwice.classifiers.base import Answer, Tokens
from looktwice.engine.budget import MICRO, Bill, Budget, Spend
from looktwice.engine.ledger import maintenance, schema
from looktwice.engine.ledger.ledger import Ledger, close_ledger, open_ledger
from looktwice.engine.ledger.schema import (
    Account,
    Claim,
    Entry,
    Granted,
    Outcome,
    OverBudget,
    Settled,
    Stored,
    Wait,
    classifier_id,
    joined,
    keys,
)
from looktwice.engine.ledger.sqlite import SqliteDatabase
from looktwice.engine.ledger.transaction import RAW_LIMIT
from looktwice.errors import LedgerError
from looktwice.model.options import Project

WHO, PRICE = "test:classifier", 1500 * MICRO


def entry(number: int, view: str = "mirror") -> Entry:
    digest = f"{number:032x}"
    (key,) = keys(WHO, digest, [joined(view, "0", "0", "1")])
    return Entry(key, digest, view, 0, 0)


@contextmanager
def ledger_at(place: Path | str) -> Iterator[Ledger]:
    ledger = open_ledger(str(place))
    try:
        yield ledger
    finally:
        close_ledger(ledger)


def claim(
    ledger: Ledger, numbers: Sequence[int], budget: Budget | None = None, rate: float | None = None
) -> list[Granted]:
    async def work() -> list[Granted]:
        account = Account(WHO, (budget or Budget(),), rate, description="zoo")
        return await ledger.claim(account, [(entry(number), PRICE) for number in numbers])

    return asyncio.run(work())


def settle(ledger: Ledger, granted: Sequence[Granted], result: Answer | Outcome, bill: Bill | None = None) -> None:
    async def work() -> None:
        ended = [
            ledger.settle(each, Settled(each.entry.key, result, bill)) for each in granted if isinstance(each, Claim)
        ]
        await asyncio.gather(*ended)

    asyncio.run(work())


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.slow), "memory"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Ledger]:
    place = str(tmp_path / "ledger.db")
    if request.param == "postgres":
        place = str(request.getfixturevalue("database"))
    with ledger_at("off" if request.param == "memory" else place) as opened:
        yield opened


@pytest.mark.slow
def test_an_answer_is_found_again_with_its_score_ranked_list_and_reply(ledger: Ledger) -> None:
    answer = Answer("ant", 0.75, 200, b'{"label": "ant"}', (("ant", 0.75), ("bée", None)))
    settle(ledger, claim(ledger, [1]), answer)
    ((key, stored),) = ledger.find([entry(1).key, entry(2).key]).items()
    assert key == entry(1).key
    assert (stored.answer.label, stored.answer.score, stored.answer.options) == ("ant", 0.75, answer.options)
    assert ledger.reply(key) == answer.raw


def test_a_reply_beyond_the_limit_keeps_what_was_read_from_it(ledger: Ledger) -> None:
    settle(ledger, claim(ledger, [1]), Answer("ant", raw=b"x" * (RAW_LIMIT + 1)))
    assert ledger.find([entry(1).key])[entry(1).key].answer.label == "ant"
    assert ledger.reply(entry(1).key) is None


def test_a_query_is_granted_once_and_answered_from_then_on(ledger: Ledger) -> None:
    first = claim(ledger, [1, 2, 1])
    assert [type(each) for each in first] == [Claim, Claim, Wait], "given twice in one call it is one"
    assert claim(ledger, [1]) == [Wait(elsewhere=True)], "another model of this process has it in flight"
    settle(ledger, first, Answer("ant"))
    assert isinstance(claim(ledger, [1])[0], Stored)
    assert ledger.spend(WHO) == Spend(2, 2 * PRICE, 2, 2 * PRICE)


@pytest.mark.slow
def test_thousands_of_queries_in_one_call_are_all_granted_and_found(ledger: Ledger) -> None:
    granted = claim(ledger, range(3000))
    settle(ledger, granted, Answer("ant"))
    assert len(ledger.find([entry(number).key for number in range(3000)])) == 3000


def test_a_bill_takes_the_place_of_the_reserve(ledger: Ledger) -> None:
    settle(ledger, claim(ledger, [1]), Answer("ant"), Bill(Tokens(300, 20, 100), 12_345))
    assert ledger.spend(WHO) == Spend(1, 12_345, 1, 12_345)


def test_what_the_budget_does_not_cover_waits_for_open_claims_and_is_then_refused(ledger: Ledger) -> None:
    budget = Budget(queries=2)
    first = claim(ledger, [1, 2, 3], budget)
    assert [type(each) for each in first] == [Claim, Claim, Wait]
    settle(ledger, first[:1], Outcome.UNSENT)
    third = claim(ledger, [3, 4], budget)
    assert [type(each) for each in third] == [Claim, Wait]
    settle(ledger, [*first, *third], Answer("ant"))
    assert claim(ledger, [4], budget) == [OverBudget(budget, Spend(2, 2 * PRICE, 2, 2 * PRICE))]


def test_a_claim_whose_asker_has_left_is_given_back(ledger: Ledger) -> None:
    async def leave() -> Granted:
        asking = ledger.claim(Account(WHO), [(entry(1), PRICE)])
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        async with asyncio.timeout(10):
            while not isinstance(granted := (await ledger.claim(Account(WHO), [(entry(1), PRICE)]))[0], Claim):
                await asyncio.sleep(0.01)
        return granted

    settle(ledger, [asyncio.run(leave())], Answer("ant"))
    assert ledger.spend(WHO).queries == 1


def test_a_rate_grants_moments_that_nobody_shares(ledger: Ledger) -> None:
    granted = [*claim(ledger, [1, 2], rate=0.1), *claim(ledger, [3], rate=0.1)]
    moments = [each.send_at for each in granted if isinstance(each, Claim)]
    assert [round(later - earlier, 6) for earlier, later in pairwise(moments)] == [10.0, 10.0]


def test_keys_depend_on_every_part_and_those_of_one_picture_are_neighbours() -> None:
    tails = [("mirror", "0", "0", "1"), ("turn", "0", "0", "1"), ("mirror", "1", "0", "1"), ("mirror0", "", "0", "1")]
    same = keys("who", "d" * 32, [joined(*tail) for tail in tails])
    others = [keys("you", "d" * 32, [joined(*tails[0])]), keys("who", "e" * 32, [joined(*tails[0])])]
    assert len({*same, *others[0], *others[1]}) == 6
    assert len({key[:4] for key in same}) == 1


def test_a_key_never_changes_because_stored_answers_are_found_by_it() -> None:
    assert entry(7).key.hex() == KEY


KEY = "3e960773970b6c3b7ec6783214581886"


# Files -------------------------------------------------------------------------------------------------------------


def used(path: Path, numbers: Sequence[int] = (1, 2, 3)) -> Path:
    """A ledger with some answers."""
    with ledger_at(path) as ledger:
        settle(ledger, claim(ledger, numbers), Answer("ant", raw=b"reply"))
    return path


def test_a_new_ledger_and_its_folder_are_for_the_owner_alone(tmp_path: Path) -> None:
    path = used(tmp_path / "new" / "ledger.db")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["ledger.db"], "closing leaves one file"


def test_an_empty_file_becomes_a_ledger(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").touch()
    assert maintenance.verify(used(tmp_path / "ledger.db")) == []


@pytest.mark.parametrize("content", [b"hello", b"x" * 5000, b"SQLite format 3\0" + b"x" * 5000])
def test_a_file_that_is_not_a_ledger_stays_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "ledger.db"
    path.write_bytes(content)
    with pytest.raises(LedgerError):
        used(path)
    with pytest.raises(LedgerError):
        maintenance.stats(path)
    assert maintenance.verify(path) != []
    assert path.read_bytes() == content


def test_another_database_and_an_older_ledger_are_refused_in_one_line(tmp_path: Path) -> None:
    for name, mark in (("other.db", 0), ("older.db", int.from_bytes(b"look", "big"))):
        with closing(sqlite3.connect(tmp_path / name)) as db:
            db.execute("CREATE TABLE t(x)")
            db.execute(f"PRAGMA application_id={mark}")
        before = (tmp_path / name).read_bytes()
        with pytest.raises(LedgerError, check=coded("ledger-foreign")):
            used(tmp_path / name)
        assert (tmp_path / name).read_bytes() == before


def test_a_newer_ledger_is_left_alone(tmp_path: Path) -> None:
    path = used(tmp_path / "ledger.db")
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version=99")
    with pytest.raises(LedgerError, check=coded("ledger-newer")):
        used(path)
    with pytest.raises(LedgerError, check=coded("ledger-newer")):
        maintenance.stats(path)


def test_reading_a_ledger_that_is_not_there_makes_none(tmp_path: Path) -> None:
    for look in (maintenance.stats, maintenance.verify):
        with pytest.raises(LedgerError):
            look(tmp_path / "none.db")
    with pytest.raises(LedgerError):
        maintenance.forget(tmp_path / "none.db", "x")
    assert list(tmp_path.iterdir()) == []


def test_an_address_is_not_taken_for_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LedgerError) as told:
        used(Path("mysql://me:hunter2@host/db"))
    assert "hunter2" not in str(told.value)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, check=coded("ledger-invalid")):
        used(tmp_path)


def test_looking_from_the_process_that_writes_keeps_its_locks(tmp_path: Path) -> None:
    """Closing the file by hand would drop them, and with them the write-ahead log at the next close elsewhere."""
    path = used(tmp_path / "ledger.db")
    inode = path.with_name("ledger.db-shm")

    def locks() -> int:
        number = inode.stat().st_ino
        lines = Path("/proc/locks").read_text().splitlines()
        return sum(f":{number} " in line and f" {os.getpid()} " in line for line in lines)

    with ledger_at(path) as ledger:
        claim(ledger, [9])
        before = locks()
        assert before > 0
        maintenance.stats(path)
        maintenance.verify(path)
        maintenance.export(path, tmp_path / "out.csv")
        with ledger_at(path):
            pass
        assert locks() == before


def test_a_damaged_page_is_told_and_nothing_is_written_over_it(tmp_path: Path) -> None:
    path = used(tmp_path / "ledger.db", range(500))
    content = bytearray(path.read_bytes())
    content[4096 * 3 : 4096 * 9] = os.urandom(4096 * 6)
    path.write_bytes(content)
    assert maintenance.verify(path) != []
    assert path.read_bytes() == content


@pytest.mark.skipif(os.getuid() == 0, reason="root may write anywhere")
def test_a_ledger_in_a_read_only_folder_can_be_read_but_not_asked_with(tmp_path: Path) -> None:
    path = used(tmp_path / "archive" / "ledger.db")
    path.chmod(0o400)
    path.parent.chmod(0o500)
    try:
        assert len(maintenance.stats(path)) == 1
        with pytest.raises(LedgerError):
            used(path)
    finally:
        path.parent.chmod(0o700)


FILLING = """
import resource, signal, sys
sys.path.insert(0, {tests!r})
from engine.test_ledger import *
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
path = Path({path!r})
with ledger_at(path) as ledger:
    settle(ledger, claim(ledger, range(10)), Answer("ant"))
    size = max(file.stat().st_size for file in path.parent.iterdir())
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 50_000, size + 50_000))
    done, error = 10, None
    while error is None:
        try:
            granted = claim(ledger, range(done, done + 50))
            settle(ledger, granted, Answer("ant"))
            done += 50
        except LedgerError as caught:
            error = str(caught)
    print(done, error, flush=True)
    import os; os._exit(0)
"""


def test_on_a_full_disk_claims_fail_and_what_was_committed_stays(tmp_path: Path) -> None:
    path = tmp_path / "disk" / "ledger.db"
    path.parent.mkdir()
    script = FILLING.format(tests=str(Path(__file__).parent.parent), path=str(path))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=300)
    assert "is full" in done.stdout, done.stdout + done.stderr
    count = int(done.stdout.split()[0])
    assert maintenance.verify(path) == []
    assert sum(day.answered for day in maintenance.stats(path)) >= count


def test_a_forked_child_opens_a_ledger_of_its_own(tmp_path: Path) -> None:
    path = used(tmp_path / "ledger.db", [1])
    with ledger_at(path) as ledger:
        claim(ledger, [2])
        child = os.fork()
        if child == 0:
            code = 1
            try:
                with ledger_at(path) as own:
                    assert own is not ledger
                    assert claim(own, [2]) == [Wait(elsewhere=True)]
                    settle(own, claim(own, [3]), Answer("bee"))
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert len(ledger.find([entry(number).key for number in (1, 2, 3)])) == 2
    assert maintenance.verify(path) == []


def test_a_forked_child_keeps_its_log_when_its_parent_closes(tmp_path: Path) -> None:
    """SQLite in the child would believe that it holds the locks of its parent, who would then delete the log."""
    path = tmp_path / "ledger.db"
    parent = open_ledger(str(path))
    settle(parent, claim(parent, [1]), Answer("ant"))
    (claimed, tell), (closed, go_on) = os.pipe(), os.pipe()
    if not (child := os.fork()):
        with suppress(BaseException):
            own = open_ledger(str(path))
            granted = claim(own, [2])
            os.write(tell, b"x")
            os.read(closed, 1)
            settle(own, granted, Answer("bee"))
            close_ledger(own)
            os._exit(0)
        os._exit(1)
    os.read(claimed, 1)
    close_ledger(parent)
    kept = (tmp_path / "ledger.db-wal").exists()
    os.write(go_on, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert kept
    with ledger_at(path) as ledger:
        assert len(ledger.find([entry(number).key for number in (1, 2)])) == 2


def test_the_default_path_is_the_projects_or_in_the_users_data_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    (tmp_path / "work" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "work" / "deep")
    assert Project.here().ledger_place() == str(tmp_path / "data" / "looktwice" / "ledger.db")
    (tmp_path / "work" / "looktwice.toml").touch()
    assert Project.here().ledger_place() == str(tmp_path / "work" / ".looktwice" / "ledger.db")


def test_the_file_alone_holds_everything_once_the_last_writer_has_closed(tmp_path: Path) -> None:
    """Also while somebody reads, who would leave the log behind as the last to close."""
    path = tmp_path / "ledger.db"
    ledger = Ledger(SqliteDatabase(path))
    settle(ledger, claim(ledger, [1]), Answer("ant"))
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as reader:
        assert reader.execute("SELECT COUNT(*) FROM queries").fetchone() == (1,)
        ledger.close()
        shutil.copy(path, tmp_path / "copy.db")
    with closing(sqlite3.connect(tmp_path / "copy.db")) as copy:
        assert copy.execute("SELECT label FROM queries").fetchall() == [("ant",)]


def test_a_session_that_is_busy_goes_on_beating(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in another container see its heartbeats alone, and would take it for dead."""
    monkeypatch.setattr("looktwice.engine.ledger.ledger.BEAT", 0.05)
    with ledger_at(tmp_path / "ledger.db") as ledger:
        started = time.time()
        numbers = count(1)
        while time.time() < started + 0.5:
            settle(ledger, claim(ledger, [next(numbers)]), Answer("ant"))
        ((beat,),) = ledger.database.read("SELECT beat FROM sessions")
        assert beat > started + 0.2


# What people do with it ------------------------------------------------------------------------------------------


def test_stats_give_the_cost_of_each_classifier_by_day(tmp_path: Path, database: str) -> None:
    for place in (str(tmp_path / "ledger.db"), database):
        with ledger_at(place) as ledger:
            settle(ledger, claim(ledger, [1, 2]), Answer("ant"))
            settle(ledger, claim(ledger, [3]), Outcome.KEPT)
        (day,) = maintenance.stats(place)
        assert (day.fingerprint, day.description, day.queries, day.answered, day.micros) == (WHO, "zoo", 3, 2, 4500)


def test_exported_answers_are_the_answers(tmp_path: Path) -> None:
    import csv

    path = used(tmp_path / "ledger.db")
    assert maintenance.export(path, tmp_path / "out.csv", {entry(2).digest: "two.png"}) == 3
    with (tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {row["name"] for row in rows} == {"", "two.png"}
    assert {(row["label"], row["raw"], row["cost"]) for row in rows} == {("ant", "reply", "0.0015")}


def test_verify_tells_what_is_wrong(tmp_path: Path) -> None:
    path = used(tmp_path / "ledger.db")
    for change, word in (
        ("UPDATE spend SET queries = queries + 1", "counted as spent"),
        ("UPDATE queries SET session = 5", "still in flight"),
        ("DELETE FROM queries WHERE rowid IN (SELECT 1) OR key IN (SELECT key FROM queries LIMIT 1)", "have a reply"),
    ):
        copy = tmp_path / "copy.db"
        copy.write_bytes(path.read_bytes())
        with closing(sqlite3.connect(copy)) as db, db:
            db.execute(change.replace("rowid IN (SELECT 1) OR ", ""))
        assert any(word in problem for problem in maintenance.verify(copy)), word
        copy.unlink()


def test_forgetting_deletes_answers_and_keeps_what_they_cost(tmp_path: Path) -> None:
    path = used(tmp_path / "ledger.db", range(5))
    assert maintenance.forget(path, digests=[entry(1).digest, entry(2).digest]) == 2
    assert maintenance.verify(path) == []
    with ledger_at(path) as ledger:
        assert len(ledger.find([entry(number).key for number in range(5)])) == 3
        assert ledger.reply(entry(1).key) is None
        assert ledger.spend(WHO).queries == 5
        in_flight = claim(ledger, [9])
        assert maintenance.forget(path, "zoo") == 3
        settle(ledger, in_flight, Answer("bee"))
        assert ledger.find([entry(9).key])[entry(9).key].answer.label == "bee"
        assert ledger.spend(WHO).queries == 6
    assert maintenance.verify(path) == []
    with pytest.raises(LedgerError, check=coded("classifier-unknown")):
        maintenance.forget(path, "unknown")


def test_a_backup_is_whole_while_others_write(tmp_path: Path) -> None:
    path = used(tmp_path / "ledger.db", range(100))
    with ledger_at(path) as ledger:
        settle(ledger, claim(ledger, range(100, 200)), Answer("ant"))
        maintenance.backup(path, tmp_path / "backup.db")
        claim(ledger, [500])
    assert maintenance.verify(tmp_path / "backup.db") == []
    assert sum(day.answered for day in maintenance.stats(tmp_path / "backup.db")) == 200
    assert not (tmp_path / "backup.db-wal").exists() or not (tmp_path / "backup.db-wal").stat().st_size
    with pytest.raises(LedgerError, check=coded("file-exists")):
        maintenance.backup(path, tmp_path / "backup.db")


def test_a_classifier_has_the_same_number_everywhere() -> None:
    assert classifier_id("test:classifier") == classifier_id(WHO)
    assert 0 <= classifier_id(WHO) < 2**63
    assert schema.VERSION == 1
