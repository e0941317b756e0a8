"""The ledger's file: opening it in good and bad condition, a full disk, and the bookkeeping."""

from __future__ import annotations

import csv
import json
import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from ledger_players import (
    PRICE,
    WHO,
    answer,
    asks_until_killed,
    entries,
    entry,
    fills_its_quota,
    heard,
    intend,
    label,
    record,
    sends_and_stays,
    start,
    told,
)
from waiting import until

from looktwice.asking.ledger import (
    Account,
    Bill,
    Budget,
    Entry,
    Merged,
    Outcome,
    SqliteLedger,
    default_path,
    export,
    forget,
    merge,
    sqlite,
    stats,
    verify,
)
from looktwice.asking.ledger.protocol import CUT, DEAD, RAW_LIMIT
from looktwice.asking.ledger.sql import BATCHES, BILLS, TOKENS
from looktwice.classifiers.base import Answer, Tokens
from looktwice.errors import DataError, LedgerError


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ledger.db"


def keep(path: Path, numbers: range) -> list[bytes]:
    """Ask these questions in a session of their own, and keep the answers."""
    with SqliteLedger(path) as ledger:
        granted = intend(ledger, numbers).granted
        answer(ledger, granted)
    return granted


def tamper(path: Path, statement: str) -> None:
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(statement)


def assert_refused(path: Path, message: str) -> None:
    """Opening fails with one line, and leaves every byte as it was."""
    before = path.read_bytes()
    with pytest.raises(LedgerError, match=message) as caught:
        SqliteLedger(path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before


# --- opening


def test_a_new_ledger_and_its_folder_are_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "folder" / "ledger.db"
    with SqliteLedger(path) as ledger:
        intend(ledger, [1])
        modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == dict.fromkeys(("ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db.ballast"), 0o600)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_closing_leaves_one_file_and_its_reserve(path: Path) -> None:
    keep(path, range(3))
    assert sorted(file.name for file in path.parent.iterdir()) == ["ledger.db", "ledger.db.ballast"]


def test_a_commit_waits_for_the_disk(path: Path) -> None:
    with closing(sqlite.writable(path)) as db:
        settings = [db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous", "fullfsync")]
    assert settings == ["wal", 2, 1]


def test_an_empty_file_becomes_a_ledger(path: Path) -> None:
    path.touch()
    assert len(keep(path, range(3))) == 3


def test_a_text_file_is_not_a_ledger(path: Path) -> None:
    path.write_text("my shopping list\n" * 100)
    assert_refused(path, "is not a ledger of looktwice")


def test_a_very_short_file_is_not_a_ledger(path: Path) -> None:
    path.write_bytes(b"SQLite format 3\0")
    assert_refused(path, "is not a ledger of looktwice")


def test_somebody_elses_database_is_not_a_ledger(path: Path) -> None:
    tamper(path, "CREATE TABLE shopping(item)")
    assert_refused(path, "is not a ledger of looktwice")
    assert sorted(file.name for file in path.parent.iterdir()) == ["ledger.db"]


def test_a_ledger_of_the_former_name_says_so(tmp_path: Path) -> None:
    path = tmp_path / "ledger.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute(f"PRAGMA application_id={sqlite.FORMER}")
        db.execute("CREATE TABLE classifiers(id INTEGER PRIMARY KEY)")
        db.commit()
    assert_refused(path, "a ledger of secondlook, as looktwice was called before.*name another file")


def test_a_newer_ledger_is_left_alone(path: Path) -> None:
    keep(path, range(3))
    tamper(path, "PRAGMA user_version=99")
    assert_refused(path, "newer looktwice; upgrade")
    with pytest.raises(LedgerError, match="newer looktwice"):
        stats(path)


def test_a_newer_ledger_is_left_alone_even_if_only_its_log_says_so(path: Path) -> None:
    keep(path, range(3))
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version=99")
        with pytest.raises(LedgerError, match="newer looktwice"):
            SqliteLedger(path)


def test_an_older_ledger_is_brought_up_when_it_is_opened_and_keeps_its_answers(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    granted = keep(path, range(3))

    def second(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE more(thing)")

    monkeypatch.setattr(sqlite, "MIGRATIONS", [*sqlite.MIGRATIONS, second])
    with pytest.raises(LedgerError, match="older version"):
        stats(path)
    with SqliteLedger(path) as ledger:
        assert len(ledger.find(granted)) == 3
    assert len(stats(path)) == 1
    tamper(path, "INSERT INTO more VALUES (1)")


def test_a_ledger_from_before_ranked_lists_opens_keeps_its_answers_and_takes_lists(path: Path) -> None:
    granted = keep(path, range(3))
    without_bills(path)
    tamper(path, "ALTER TABLE questions DROP COLUMN options")
    tamper(path, "PRAGMA user_version=3")
    with SqliteLedger(path) as ledger:
        assert [answer.options for answer in ledger.find(granted).values()] == [()] * 3
        new = intend(ledger, [7]).granted
        ledger.record(new[0], Answer("cat", 0.9, options=(("cat", 0.9), ("dog", 0.1))), 0.1, 1)
        ledger.flush().result()
        assert ledger.find(new)[new[0]].options == (("cat", 0.9), ("dog", 0.1))
    assert verify(path) == []


def without_bills(path: Path) -> None:
    """Make it a ledger from before bills by the token, batches and shared paces."""
    tamper(path, "DROP TABLE learned")
    tamper(path, "DROP TABLE batches")
    tamper(path, "DROP INDEX batched")
    for column in BATCHES:
        tamper(path, f"ALTER TABLE questions DROP COLUMN {column}")
    for column in TOKENS:
        tamper(path, f"ALTER TABLE questions DROP COLUMN {column}")
    for column in BILLS:
        tamper(path, f"ALTER TABLE spend DROP COLUMN {column}")
    tamper(path, "PRAGMA user_version=4")


def test_a_ledger_from_before_bills_opens_keeps_what_was_spent_and_takes_bills(path: Path) -> None:
    granted = keep(path, range(3))
    without_bills(path)
    with SqliteLedger(path) as ledger:
        assert ledger.spent(WHO).micros == 3 * PRICE
        assert len(ledger.find(granted)) == 3
        [new] = intend(ledger, [7]).granted
        ledger.record(new, Answer("cat"), 0.1, 1, Bill(Tokens(100, 5, 64), 1_250_000, 2))
        ledger.flush().result()
        assert ledger.spent(WHO).micros == 3 * PRICE + 2, "a millionth and a quarter, rounded up"
    assert verify(path) == []


def test_stats_compare_estimates_with_bills_and_count_tokens_through_export_and_merge(
    path: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.db"
    with SqliteLedger(other) as ledger:
        for name in intend(ledger, range(8)).granted:
            tokens = Tokens(1000, 10, 256)
            ledger.record(name, Answer("cat"), 0.1, 1, Bill(tokens, 250_125_000, 260))
        booked = ledger.book(WHO, 1, 900, Budget()).result()
        assert booked
        ledger.conclude(booked, Outcome.ANSWERED, Bill(Tokens(7, 1), 3_000_000, 4))
    merge(path, other)
    merge(path, other)
    for where in (path, other):
        assert verify(where) == []
        [day] = stats(where)
        assert (day.queries, day.answered) == (9, 9)
        assert (day.estimated, day.billed, day.micros) == (8 * 260 + 4, 2004, 2004), "8 × 250.125 + 3, to the millionth"
        assert (day.input_tokens, day.output_tokens, day.cached_tokens) == (8007, 81, 2048)
    export(path, tmp_path / "answers.jsonl")
    [line, *_] = (tmp_path / "answers.jsonl").read_text().splitlines()
    told = json.loads(line)
    assert (told["input_tokens"], told["output_tokens"], told["cached_tokens"]) == (1000, 10, 256)
    assert told["price_micros"] == 250


def test_merging_and_export_keep_ranked_lists(path: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    with SqliteLedger(other) as ledger:
        granted = intend(ledger, [7]).granted
        ledger.record(granted[0], Answer("cat", 0.9, options=(("cat", 0.9), ("dog", 0.1))), 0.1, 1)
        ledger.flush().result()
    merge(path, other)
    with SqliteLedger(path) as ledger:
        assert ledger.find(granted)[granted[0]].options == (("cat", 0.9), ("dog", 0.1))
    export(path, tmp_path / "out.jsonl")
    (told,) = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert json.loads(told["options"]) == ["cat", 0.9, "dog", 0.1]


def test_a_migration_that_fails_changes_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keep(path, range(3))

    def broken(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE more(thing)")
        db.execute("CREATE TABLE questions(thing)")

    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "MIGRATIONS", [*sqlite.MIGRATIONS, broken])
        with pytest.raises(LedgerError, match="already exists"):
            SqliteLedger(path)
    assert verify(path) == []
    assert len(keep(path, range(3, 6))) == 3


def test_a_folder_is_not_a_ledger(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="is a folder"):
        SqliteLedger(tmp_path)


def test_a_file_where_the_folder_should_be_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(LedgerError, match="ledger"):
        SqliteLedger(tmp_path / "file" / "ledger.db")


def test_reading_a_ledger_that_is_not_there_makes_none(path: Path) -> None:
    with pytest.raises(LedgerError, match="there is no ledger"):
        stats(path)
    assert not path.exists()


def test_a_ledger_that_another_program_keeps_locked_asks_nothing_and_works_again_afterwards(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keep(path, range(3))
    monkeypatch.setattr("looktwice.asking.ledger.sqlite.PATIENCE", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as db, SqliteLedger(path) as ledger:
        db.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerError, match="was locked by another program"):
            intend(ledger, [7])
        db.execute("ROLLBACK")
        assert len(intend(ledger, [7]).granted) == 1
        assert ledger.spent(WHO).queries == 4


def test_answers_wait_in_memory_while_another_program_keeps_the_ledger_locked(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("looktwice.asking.ledger.sqlite.PATIENCE", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as db, SqliteLedger(path) as ledger:
        granted = intend(ledger, range(4)).granted
        db.execute("BEGIN IMMEDIATE")
        record(ledger, granted[:2])
        flushed = ledger.flush()
        until(lambda: caplog.messages)
        record(ledger, granted[2:])
        assert not flushed.done()
        assert "locked by another program" in caplog.text
        assert "2 answers wait in memory" in caplog.text
        db.execute("ROLLBACK")
        flushed.result(30)
        ledger.flush().result(30)
        assert len(ledger.find(granted)) == 4


def test_who_closes_a_locked_ledger_is_told_how_many_answers_are_lost(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looktwice.asking.ledger.sqlite.PATIENCE", 0.05)
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        ledger = SqliteLedger(path)
        granted = intend(ledger, range(3)).granted
        db.execute("BEGIN IMMEDIATE")
        record(ledger, granted)
        with pytest.raises(LedgerError, match=r"locked by .*; 3 answers that had come in were not saved"):
            ledger.close()
        ledger.close()


def test_the_default_path_is_in_the_users_data_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", "relative/is/ignored")
    assert default_path() == tmp_path / ".local/share/looktwice/ledger.db"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_path() == tmp_path / "data/looktwice/ledger.db"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert default_path() == tmp_path / "Library/Application Support/looktwice/ledger.db"
    monkeypatch.setattr(sys, "platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "Local"))
    assert default_path() == tmp_path / "Local/looktwice/ledger.db"


def test_a_ledger_carried_into_a_forked_process_is_an_error_and_not_a_hang(path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from looktwice.asking.ledger import SqliteLedger\n"
        f"ledger = SqliteLedger(Path({str(path)!r}))\n"
        "if os.fork() == 0:\n"
        "    try: ledger.flush()\n"
        "    except Exception as error: print(type(error).__name__, error, flush=True)\n"
        "    ledger.close(); os._exit(0)\n"
        "os.wait(); ledger.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert "LedgerError the ledger was opened before this process was forked" in done.stdout, done.stderr


def test_a_program_that_ends_without_closing_saves_what_is_queued(path: Path) -> None:
    code = (
        "from pathlib import Path; from ledger_players import *\n"
        f"ledger = SqliteLedger(Path({str(path)!r}))\n"
        "for name in intend(ledger, range(50)).granted: ledger.record(name, Answer(label(name)), 0.1, 1)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1], timeout=30)
    with SqliteLedger(path) as ledger:
        assert ledger.spent(WHO).answered == 50


# --- damage


def damage(path: Path, page: int) -> None:
    """Overwrite one page of 4096 bytes, as a failing disk would."""
    with path.open("r+b") as file:
        file.seek(page * 4096)
        file.write(b"\xa5" * 4096)


def test_a_damaged_page_is_told_and_nothing_is_written_over_it(path: Path) -> None:
    granted = keep(path, range(3000))
    damage(path, path.stat().st_size // 4096 // 2)
    before = path.read_bytes()
    with SqliteLedger(path) as ledger, pytest.raises(LedgerError, match=r"is damaged .* restore a backup"):
        ledger.find(granted)
    assert path.read_bytes() == before
    assert verify(path)


def test_a_writer_that_meets_damage_fails_everybody_who_waits(path: Path) -> None:
    keep(path, range(3000))
    for page in range(3, path.stat().st_size // 4096):
        damage(path, page)
    ledger = SqliteLedger(path)
    futures = []
    with suppress(LedgerError):  # it may have met the damage before all have asked
        for n in range(0, 900, 9):
            futures.append(ledger.intend(WHO, entries(range(n, n + 9)), PRICE, Budget()))
    assert futures
    assert all(isinstance(future.exception(30), LedgerError) for future in futures)
    with pytest.raises(LedgerError, match="is damaged"):
        ledger.flush()
    with pytest.raises(LedgerError, match="is damaged"):
        ledger.close()


# --- a full disk


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[None]:
    """A disk of its own, where the system lets us make one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("making a small disk needs the right to mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder: Path, leave: int) -> Path:
    filler = folder / "filler"
    free = shutil.disk_usage(folder).free
    filler.write_bytes(b"x" * max(0, free - leave))
    return filler


def ask_on_and_on(ledger: SqliteLedger, sent: list[bytes], waiting: list[bytes]) -> list[Entry]:
    """Ask until it fails, while the answers to half of the questions come in; what it failed with."""
    for number in range(100_000):
        asked = [entry(picture, f"turn:{number}") for picture in range(50)]
        future = ledger.intend(WHO, asked, PRICE, Budget())
        if error := future.exception(30):
            assert "is full or its quota is used up; free some space and run again: nothing was lost" in str(error)
            return asked
        granted = future.result().granted
        sent += granted
        waiting += granted[::2]
        say(ledger, granted[1::2], 1_000)
    raise AssertionError("the disk never filled")


def say(ledger: SqliteLedger, names: Iterable[bytes], size: int) -> None:
    for name in names:
        ledger.record(name, Answer(label(name), raw=b"x" * size), 0.1, 1)


def test_on_a_full_disk_paid_answers_are_saved_and_nothing_more_is_asked(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    with small_disk(folder, 16):
        path = folder / "ledger.db"
        ledger = SqliteLedger(path)
        filler = fill(folder, 1_000_000)
        sent: list[bytes] = []
        waiting: list[bytes] = []
        failed = ask_on_and_on(ledger, sent, waiting)
        assert not (folder / "ledger.db.ballast").exists()
        assert len(waiting) * 60_000 > sqlite.BALLAST, "not all of the raw replies to come will fit"
        say(ledger, waiting, 60_000)
        ledger.flush().result()
        assert len(ledger.find(sent)) == len(sent) > 0
        assert ledger.spent(WHO).queries == len(sent)
        filler.unlink()
        assert len(ledger.intend(WHO, failed, PRICE, Budget()).result(30).granted) == 50, "there is room again"
        ledger.close()
        assert verify(path) == []


def test_answers_wait_in_memory_while_not_even_they_fit_on_the_disk(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "disk"
    with small_disk(folder, 16):
        path = folder / "ledger.db"
        with SqliteLedger(path) as ledger:
            granted = intend(ledger, range(4)).granted
            (folder / "ledger.db.ballast").unlink()
            filler = fill(folder, 0)
            say(ledger, granted, 1_000_000)
            flushed = ledger.flush()
            until(lambda: flushed.done() or "4 answers wait in memory" in caplog.text)
            assert not flushed.done()
            filler.unlink()
            flushed.result(30)
            assert len(ledger.find(granted)) == 4
        assert verify(path) == []


def test_a_ledger_on_a_full_disk_can_still_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "disk"
    with small_disk(folder, 16):
        path = folder / "ledger.db"
        granted = keep(path, range(100))
        (folder / "ledger.db.ballast").unlink()
        fill(folder, 200_000)
        with SqliteLedger(path) as ledger:
            assert len(ledger.find(granted)) == 100
            with pytest.raises(LedgerError, match="is full"):
                intend(ledger, [1000])
        assert len(stats(path)) == 1


def test_when_no_file_may_grow_what_was_on_disk_stays(path: Path) -> None:
    process, pipe = start(fills_its_quota, path, 5 << 20)
    told = heard(pipe)
    process.join()
    [message] = [names[0].decode() for kind, names in told if kind == "error"]
    assert "ledger" in message
    answered = [name for kind, names in told if kind == "answered" for name in names]
    with SqliteLedger(path) as ledger:
        assert len(ledger.find(answered)) == len(answered) > 0
    assert verify(path) == []


# --- a folder that cannot be written


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Nobody may write to the folder; root, who may always, gets it as a read-only mount."""
    if os.geteuid():
        folder.chmod(0o500)
        yield
        folder.chmod(0o700)
        return
    bind = [["mount", "--bind", str(folder), str(folder)], ["mount", "-o", "remount,ro,bind", str(folder)]]
    if any(subprocess.run(command, capture_output=True, check=False).returncode for command in bind):
        pytest.skip("a read-only folder needs the right to mount, or not to be root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_ledger_in_a_read_only_folder_can_be_read_but_not_asked_with(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    path = folder / "ledger.db"
    keep(path, range(10))
    with read_only(folder):
        with pytest.raises(LedgerError, match="read-only"):
            SqliteLedger(path)
        assert [cost.answered for cost in stats(path)] == [10]
        assert export(path, tmp_path / "answers.csv") == 10
        assert verify(path) == []
        assert merge(tmp_path / "mine.db", path) == Merged(10, 0)


def test_a_ledger_that_was_never_closed_can_be_read_in_a_read_only_folder(tmp_path: Path) -> None:
    folder = tmp_path / "archive"
    path = folder / "ledger.db"
    process, pipe = start(sends_and_stays, path, range(10))
    pipe.recv()
    process.kill()
    process.join()
    with read_only(folder):
        assert [(cost.asked, cost.unknown) for cost in stats(path)] == [(10, 10)]


# --- bookkeeping


def test_stats_give_the_cost_of_each_classifier_by_day(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noon = 20_000 * 86_400 + 43_200.0
    monkeypatch.setattr(time, "time", lambda: noon)
    with SqliteLedger(path) as ledger:
        ledger.introduce(WHO, "a small model on this machine")
        granted = intend(ledger, range(5)).granted
        answer(ledger, granted[:3])
        monkeypatch.setattr(time, "time", lambda: noon + 86_400)
        answer(ledger, granted[3:4])
        ledger.refuse(granted[4:], billed=False)
        booked = ledger.book(WHO, 2, 10, Budget()).result()
        assert booked
        ledger.conclude(booked, Outcome.REFUSED)
        ledger.intend("another", [entry(1, fingerprint="another")], 0, Budget()).result()
    rows = [
        (
            c.fingerprint,
            c.description,
            c.day.isoformat(),
            c.queries,
            c.micros,
            c.asked,
            c.answered,
            c.refused,
            c.unknown,
        )
        for c in stats(path)
    ]
    # What became of a query counts on the day on which it was sent.
    assert rows == [
        (WHO, "a small model on this machine", "2024-10-04", 4, 4 * PRICE, 5, 4, 1, 0),
        (WHO, "a small model on this machine", "2024-10-05", 2, 20, 2, 0, 2, 0),
        ("another", "", "2024-10-05", 1, 0, 1, 0, 0, 1),
    ]


FIRST = 20_000 * 864
"""A day, in hundreds of seconds since 1970."""


def test_a_ledger_of_the_first_version_keeps_its_counts(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sqlite, "MIGRATIONS", sqlite.MIGRATIONS[:1])
        sqlite.writable(path).close()
    told(
        str(path),
        "INSERT INTO classifiers(id, fingerprint) VALUES (1, 'a classifier')",
        "INSERT INTO views VALUES (1, 'mirror')",
        "INSERT INTO spend VALUES (1, 20000, 7, 2, 30), (1, 20000, 8, 1, 15), (1, 20001, 8, 1, 15)",
        *(
            "INSERT INTO questions(key, classifier, digest, view, seed, number, sends, micros, at, label, latency,"
            f" attempts) VALUES (x'{entry(n).key.hex()}', 1, x'{n:032x}', 1, 0, 0, 1, 15, {day}00000, {label}, 1, 1)"
            for n, day, label in (
                (1, FIRST, "'cat'"),
                (2, FIRST, "'cat'"),
                (3, FIRST, "NULL"),
                (4, FIRST + 864, "'cat'"),
            )
        ),
    )
    SqliteLedger(path).close()
    assert [(c.queries, c.asked, c.answered, c.refused, c.unknown) for c in stats(path)] == [
        (3, 3, 2, 0, 1),
        (1, 1, 1, 0, 0),
    ]
    assert {cost.command for cost in stats(path)} == {"unknown"}
    assert verify(path) == []


def exported(path: Path) -> list[dict[str, object]]:
    import pyarrow.parquet

    match path.suffix:
        case ".csv":
            with path.open(newline="", encoding="utf-8") as file:
                return [dict(row) for row in csv.DictReader(file)]
        case ".jsonl":
            return [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    rows: list[dict[str, object]] = pyarrow.parquet.read_table(path).to_pylist()
    return rows


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_exported_answers_are_the_answers(path: Path, ending: str) -> None:
    with SqliteLedger(path) as ledger:
        granted = intend(ledger, range(3)).granted
        ledger.record(granted[0], Answer('a "cat",\nor a dog 🐈', 0.25, 200, b'{"label": "\xff"}'), 0.125, 2)
        ledger.record(granted[1], Answer("plain"), 1.5, 1)
    out = path.with_name(f"answers.{ending}")
    assert export(path, out) == 2
    first, second = sorted(exported(out), key=lambda row: str(row["digest"]))
    expected = {
        "classifier": WHO,
        "digest": f"{0:032x}",
        "view": "mirror",
        "seed": 0,
        "index": 0,
        "label": 'a "cat",\nor a dog 🐈',
        "score": 0.25,
        "status": 200,
        "latency_s": 0.125,
        "attempts": 2,
        "sends": 1,
        "price_micros": PRICE,
        "raw": '{"label": "\\xff"}',
    }
    kept = {name: first[name] for name in expected}
    assert kept == ({name: str(value) for name, value in expected.items()} if ending == "csv" else expected)
    assert str(first["answered_at"]).startswith("20")
    assert (second["label"], second["score"] or None, second["raw"] or None) == ("plain", None, None)
    assert sorted(file.name for file in path.parent.iterdir()) == [
        f"answers.{ending}",
        "ledger.db",
        "ledger.db.ballast",
    ]


def test_export_streams_more_answers_than_one_parquet_block(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looktwice.files.BLOCK", 7)
    granted = keep(path, range(50))
    out = path.with_name("answers.parquet")
    assert export(path, out) == 50
    assert {row["label"] for row in exported(out)} == {label(name) for name in granted}


def test_an_unknown_ending_is_refused_and_a_failed_export_leaves_nothing(path: Path) -> None:
    keep(path, range(3))
    with pytest.raises(DataError, match=r"must end in .csv, .jsonl, .parquet"):
        export(path, path.with_name("answers.xlsx"))
    with pytest.raises(DataError, match="there is no folder"):
        export(path, path.parent / "nowhere" / "answers.csv")
    assert sorted(file.name for file in path.parent.iterdir()) == ["ledger.db", "ledger.db.ballast"]


def test_a_raw_reply_is_cut_with_a_mark(path: Path) -> None:
    with SqliteLedger(path) as ledger:
        granted = intend(ledger, range(2)).granted
        ledger.record(granted[0], Answer("long", raw=b"x" * (RAW_LIMIT + 1)), 0.1, 1)
        ledger.record(granted[1], Answer("fits", raw=b"x" * RAW_LIMIT), 0.1, 1)
    out = path.with_name("answers.jsonl")
    export(path, out)
    raws = {str(row["label"]): str(row["raw"]).encode() for row in exported(out)}
    assert raws == {"fits": b"x" * RAW_LIMIT, "long": b"x" * (RAW_LIMIT - len(CUT)) + CUT}


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE spend SET queries = queries - 1", "are counted as spent, but"),
        ("UPDATE spend SET micros = micros + 1", "are counted as spent, but"),
        ("DELETE FROM questions WHERE key = (SELECT MIN(key) FROM questions)", "are counted as spent, but"),
        ("UPDATE questions SET classifier = 99", "20 questions of an unknown classifier"),
        ("UPDATE questions SET view = 99", "20 questions of an unknown view"),
        ("UPDATE questions SET attempts = NULL", "20 questions with an answer but no attempt"),
        ("UPDATE questions SET label = x'00'", "20 questions with an answer that is not a text"),
        ("UPDATE questions SET digest = 'another'", "20 questions whose key does not belong to its picture"),
        ("UPDATE questions SET session = 1", "20 questions answered and still in flight"),
        ("INSERT INTO replies VALUES (x'00', x'00')", "1 questions that are gone but have a raw reply"),
    ],
)
def test_verify_tells_what_is_wrong(path: Path, statement: str, problem: str) -> None:
    keep(path, range(20))
    assert verify(path) == []
    tamper(path, statement)
    assert problem in "; ".join(verify(path))


def test_verify_is_right_while_others_write(path: Path) -> None:
    process, pipe = start(asks_until_killed, path, 1)
    pipe.recv()
    problems = [problem for _ in range(20) for problem in verify(path)]
    process.kill()
    process.join()
    assert problems == []


def test_forgetting_pictures_deletes_their_answers_and_keeps_what_they_cost(path: Path) -> None:
    with SqliteLedger(path) as ledger:
        first = intend(ledger, range(10)).granted
        ledger.record(first[3], Answer("secret", raw=b"a very secret reply"), 0.1, 1)
        answer(ledger, [*first[:3], *first[4:]])
        ledger.recheck(first[3], Answer("secret"))
    assert forget(path, WHO, [entry(3).digest, entry(4).digest, "unknown"]) == 2
    with SqliteLedger(path) as ledger:
        assert set(ledger.find(first)) == {*first[:3], *first[5:]}
        assert ledger.spent(WHO) == Account(10, 10 * PRICE, 10, 10 * PRICE, 8, 0)
        assert intend(ledger, [3, 4], Budget(queries=11)).granted == [first[3]]
    assert verify(path) == []


def test_what_is_forgotten_is_gone_from_the_bytes_of_the_files_even_while_the_ledger_is_open(path: Path) -> None:
    def everything() -> bytes:
        return b"".join(file.read_bytes() for file in path.parent.iterdir())

    with SqliteLedger(path) as ledger:
        [name] = intend(ledger, [3]).granted
        ledger.record(name, Answer("tell-tale", raw=b"tell-tale reply"), 0.1, 1)
        ledger.flush().result()
        assert b"tell-tale" in everything()
        forget(path, WHO, [entry(3).digest])
        assert b"tell-tale" not in everything()


def test_forgetting_a_classifier_spares_others_and_what_is_in_flight(path: Path) -> None:
    with SqliteLedger(path) as ledger:
        granted = intend(ledger, range(10)).granted
        answer(ledger, granted[:6])
        other = ledger.intend("another", [entry(1, fingerprint="another")], 0, Budget()).result().granted
        answer(ledger, other)
        assert forget(path, WHO) == 6
        answer(ledger, granted[6:])
        assert set(ledger.find(granted)) == set(granted[6:])
        assert len(ledger.find(other)) == 1
    assert verify(path) == []


def test_forgetting_an_unknown_classifier_is_an_error(path: Path) -> None:
    keep(path, range(3))
    with pytest.raises(LedgerError, match="knows no classifier called 'nobody'"):
        forget(path, "nobody")


# --- merging


def test_merging_adds_answers_and_spend_and_merging_again_adds_nothing(tmp_path: Path) -> None:
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    keep(one, range(10))
    with SqliteLedger(two) as ledger:
        ledger.introduce(WHO, "seen by two")
        granted = intend(ledger, range(5, 20)).granted
        ledger.record(granted[-1], Answer("with raw", raw=b"reply"), 0.1, 1)
        answer(ledger, granted[:-2])
        ledger.recheck(granted[0], Answer("again"))
        ledger.book(WHO, 2, 10, Budget()).result()
    before = two.read_bytes()
    assert merge(one, two) == Merged(added=9, known=5)
    for _ in range(2):
        with SqliteLedger(one) as ledger:
            spent = 27, 25 * PRICE + 20
            assert ledger.spent(WHO) == Account(*spent, *spent, answered=19, unanswered=1)
        assert [cost.description for cost in stats(one)] == ["seen by two"]
        assert verify(one) == []
        assert merge(one, two) == Merged(added=0, known=14)
    assert two.read_bytes() == before


def test_merging_a_copy_that_went_its_own_way_counts_the_common_past_once(tmp_path: Path) -> None:
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    keep(one, range(10))
    shutil.copy(one, two)
    keep(one, range(10, 15))
    keep(two, range(12, 20))
    assert merge(one, two) == Merged(added=5, known=13)
    with SqliteLedger(one) as ledger:
        spent = 10 + 5 + 8, (10 + 5 + 8) * PRICE
        assert ledger.spent(WHO) == Account(*spent, *spent, 20, 0)
    assert verify(one) == []


@pytest.mark.parametrize("older", ["one", "two"])
def test_where_both_have_an_answer_the_older_one_stays_with_its_raw_reply(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, older: str
) -> None:
    times = {"one": 1e9, "two": 2e9} if older == "one" else {"one": 2e9, "two": 1e9}
    for name, when in times.items():
        monkeypatch.setattr(time, "time", lambda when=when: when)
        with SqliteLedger(tmp_path / f"{name}.db") as ledger:
            [granted] = intend(ledger, [1]).granted
            ledger.record(granted, Answer(name, raw=name.encode()), 0.1, 1)
    assert merge(tmp_path / "one.db", tmp_path / "two.db") == Merged(0, 1)
    out = tmp_path / "answers.jsonl"
    export(tmp_path / "one.db", out)
    assert [(row["label"], row["raw"]) for row in exported(out)] == [(older, older)]
    assert verify(tmp_path / "one.db") == []


def test_an_answer_replaces_a_question_without_one(tmp_path: Path) -> None:
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    with SqliteLedger(one) as ledger:
        intend(ledger, range(3))
        granted = keep(two, range(2))
        assert merge(one, two) == Merged(2, 0)
        assert set(intend(ledger, range(3)).answered) == set(granted)
    assert verify(one) == []


def test_merging_goes_on_in_blocks_and_into_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looktwice.asking.ledger.merging.BLOCK", 7)
    keep(tmp_path / "one.db", range(50))
    assert merge(tmp_path / "backup.db", tmp_path / "one.db") == Merged(50, 0)
    assert verify(tmp_path / "backup.db") == []
    outs = [tmp_path / "one.csv", tmp_path / "backup.csv"]
    for out in outs:
        export(out.with_suffix(".db"), out)
    assert outs[0].read_bytes() == outs[1].read_bytes()


def test_a_ledger_is_not_merged_with_itself_or_with_what_is_none(path: Path, tmp_path: Path) -> None:
    keep(path, range(3))
    with pytest.raises(LedgerError, match="are the same ledger"):
        merge(path, tmp_path / "." / "ledger.db")
    with pytest.raises(LedgerError, match="there is no ledger"):
        merge(path, tmp_path / "nothing.db")
    (tmp_path / "text.db").write_text("no ledger" * 50)
    with pytest.raises(LedgerError, match="is not a ledger"):
        merge(path, tmp_path / "text.db")
    assert verify(path) == []


def test_damage_in_the_other_ledger_is_told_as_its_own(tmp_path: Path) -> None:
    one, two = tmp_path / "one.db", tmp_path / "two.db"
    keep(two, range(3000))
    damage(two, two.stat().st_size // 4096 // 2)
    with pytest.raises(LedgerError, match=r"two\.db' is damaged"):
        merge(one, two)


@pytest.mark.parametrize("jump", [3600, -3600, 40])
def test_what_another_process_has_in_flight_is_not_bought_again_when_the_clock_is_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump: float
) -> None:
    path = tmp_path / "ledger.db"
    with SqliteLedger(path) as theirs, SqliteLedger(path) as ours:
        granted = intend(theirs, range(3)).granted
        now, since = time.time, time.monotonic
        monkeypatch.setattr(time, "time", lambda: now() + jump)
        assert intend(ours, range(3)).held == granted
        theirs.renew(granted)
        theirs.flush().result(30)
        monkeypatch.setattr(time, "monotonic", lambda: since() + 100)
        assert intend(ours, range(3)).held == granted, "it was renewed"


def test_a_process_that_renews_nothing_once_the_clock_is_set_is_not_waited_for_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "ledger.db"
    with SqliteLedger(path) as theirs, SqliteLedger(path) as ours:
        granted = intend(theirs, range(3)).granted
        now, since = time.time, time.monotonic
        monkeypatch.setattr(time, "time", lambda: now() + 3600)
        assert intend(ours, range(3)).held == granted
        monkeypatch.setattr(time, "monotonic", lambda: since() + DEAD)
        assert intend(ours, range(3)).granted == granted


def test_a_ledger_with_a_second_name_is_refused_until_it_has_one_again(path: Path) -> None:
    with SqliteLedger(path) as ledger:
        answer(ledger, intend(ledger, range(3)).granted)
    other = path.with_name("other.db")
    other.hardlink_to(path)
    for name in (path, other):
        with pytest.raises(LedgerError, match="hard link"):
            SqliteLedger(name)
    assert sum(day.answered for day in stats(path)) == 3, "it can still be read"
    other.unlink()
    other.symlink_to(path)
    with SqliteLedger(other) as ledger, SqliteLedger(path) as same:
        assert intend(ledger, range(3)).answered == intend(same, range(3)).answered
