"""The ledger and check commands, on a ledger that a real run filled."""

import json
import os
import re
import sqlite3
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest
from support.errors import code_in
from support.faults import LABELS, fault_server
from support.workshop import run, write_pictures, write_profile

from looktwice.engine.ledger import schema
from looktwice.engine.ledger.transaction import new_session
from looktwice.images.collection import find
from looktwice.model.options import Project


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("accounts")
    write_pictures(folder / "pictures.npz", 20)
    with fault_server() as server:
        description = server.describe(folder, price="0.0015")
        write_profile(folder / "profile.json", description)
        ledger = ("--ledger", folder / "ledger.db")
        done = run("score", folder / "pictures.npz", "-p", folder / "profile.json", *ledger, "-o", folder / "v.csv")
        assert done.returncode == 0, done.stderr
        checked = run("check", description, *ledger, "--json")
    assert checked.returncode == 0, checked.stderr
    report = json.loads(checked.stdout)
    assert report["steady"]
    assert report["price_micros"] == 1500
    return folder / "ledger.db"


def test_stats_show_queries_and_money(filled: Path) -> None:
    (day,) = json.loads(run("ledger", "stats", "--ledger", filled, "--json").stdout)
    assert (day["queries"], day["answered"], day["micros"]) == (103, 103, 103 * 1500)
    shown = run("ledger", "stats", "--ledger", filled, COLUMNS="80").stdout
    assert "0.1545" in shown
    assert day["day"] in shown
    assert "…" not in shown
    assert "".join(day["fingerprint"].split()) in "".join(shown.split()), "of one piece, to be copied"


def test_every_answer_is_exported_once(filled: Path, tmp_path: Path) -> None:
    done = run("ledger", "export", tmp_path / "answers.jsonl", "--ledger", filled)
    assert "100 answers" in done.stderr
    rows = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text("utf-8").splitlines()]
    assert len({(row["digest"], row["view"], row["index"]) for row in rows}) == len(rows) == 100  # of 20 pictures
    assert {row["label"] for row in rows} == set(LABELS)


def test_a_sound_ledger_is_called_sound_and_a_broken_one_is_not(filled: Path, tmp_path: Path) -> None:
    assert run("ledger", "verify", "--ledger", filled).returncode == 0
    pages = bytearray(filled.read_bytes())
    pages[4096:8192] = b"\xff" * 4096
    (tmp_path / "broken.db").write_bytes(pages)
    broken = run("ledger", "verify", "--ledger", tmp_path / "broken.db")
    assert broken.returncode == 1
    assert "Traceback" not in broken.stderr


@pytest.fixture
def copy(filled: Path, tmp_path: Path) -> Path:
    """A copy of the ledger that a test may change."""
    done = run("ledger", "backup", tmp_path / "copy.db", "--ledger", filled)
    assert done.returncode == 0, done.stderr
    return tmp_path / "copy.db"


def stats(ledger: Path) -> dict[str, int]:
    """What was counted on the only day of a ledger, which must be sound."""
    assert run("ledger", "verify", "--ledger", ledger).returncode == 0
    (day,) = json.loads(run("ledger", "stats", "--ledger", ledger, "--json").stdout)
    return {name: day[name] for name in ("queries", "answered", "micros")}


def exported(ledger: Path) -> list[dict[str, object]]:
    """The answers in a ledger."""
    out = ledger.with_suffix(".jsonl")
    assert run("ledger", "export", out, "--ledger", ledger).returncode == 0
    return [json.loads(line) for line in out.read_text("utf-8").splitlines()]


def test_a_backup_is_a_ledger_with_everything_in_one_file(filled: Path, copy: Path, tmp_path: Path) -> None:
    assert [path.name for path in tmp_path.iterdir()] == ["copy.db"], "nothing of it is in a log beside it"
    assert stats(copy) == stats(filled)
    assert exported(copy) == exported(filled)
    write_pictures(tmp_path / "pictures.npz", 20)
    words = ("score", tmp_path / "pictures.npz", "-p", filled.parent / "profile.json", "--canaries", 0)
    done = run(*words, "--ledger", copy, "-o", tmp_path / "v.csv")  # its server is gone, and nothing is asked
    assert done.returncode == 0, done.stderr


def test_a_backup_has_what_was_committed_while_others_write(filled: Path, tmp_path: Path) -> None:
    with sqlite3.connect(filled.with_name("open.db")) as db:
        with closing(sqlite3.connect(filled)) as source:
            source.backup(db)
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("INSERT INTO classifiers(id, fingerprint, description, next_send) VALUES (99, 'late', 'api', 0)")
        db.commit()  # which is in the log alone
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO classifiers(id, fingerprint, description, next_send) VALUES (98, 'open', 'api', 0)")
        done = run("ledger", "backup", tmp_path / "copy.db", "--ledger", filled.with_name("open.db"))
        assert done.returncode == 0, done.stderr
        db.rollback()
    db.close()
    with closing(sqlite3.connect(tmp_path / "copy.db")) as db:
        known = {name for (name,) in db.execute("SELECT fingerprint FROM classifiers")}
    assert "late" in known
    assert "open" not in known


def test_a_backup_replaces_no_file_and_makes_none_of_nothing(filled: Path, copy: Path, tmp_path: Path) -> None:
    before = copy.read_bytes()
    for words, told in (
        ((copy, "--ledger", filled), "already exists"),
        ((tmp_path / "new.db", "--ledger", tmp_path / "typo.db"), "there is no ledger"),
        ((tmp_path / "new.db", "--ledger", tmp_path / "text.db"), "is not a ledger"),
        ((tmp_path / "new.db", "--ledger", "postgresql://me:hunter2@127.0.0.1:9/db"), "pg_dump"),
    ):
        (tmp_path / "text.db").write_text("no ledger, and long enough to be read as the header of one" * 20)
        done = run("ledger", "backup", *words)
        assert (done.returncode, told in done.stderr) == (1, True), done.stderr
        assert "hunter2" not in done.stderr
    assert copy.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"copy.db", "text.db"}


def test_forgetting_keeps_the_cost(copy: Path) -> None:
    before, (who,) = stats(copy), {str(answer["classifier"]) for answer in exported(copy)}
    assert "100 answers" in run("ledger", "forget", who, "--ledger", copy).stderr
    assert exported(copy) == []
    assert stats(copy) == before
    assert "0 answers" in run("ledger", "forget", who, "--ledger", copy).stderr
    assert stats(copy) == before


def test_pictures_are_forgotten_with_their_replies_and_no_others(filled: Path, copy: Path, tmp_path: Path) -> None:
    write_pictures(tmp_path / "some.npz", 5)  # the first of the twenty
    (tmp_path / "broken.png").write_bytes(b"no picture")
    before, digests = stats(copy), {picture.image().digest for picture in find([tmp_path / "some.npz"])}
    words = ("--pictures", tmp_path / "some.npz", "--pictures", tmp_path / "broken.png")
    done = run("ledger", "forget", *words, "--ledger", copy)
    assert "not read: " in done.stderr
    assert "25 answers" in done.stderr
    left = exported(copy)
    assert len(left) == 75
    assert not digests & {str(answer["digest"]) for answer in left}
    assert left == [answer for answer in exported(filled) if answer["digest"] not in digests]
    assert stats(copy) == before
    with closing(sqlite3.connect(copy)) as db:
        assert db.execute("SELECT COUNT(*) FROM replies WHERE key NOT IN (SELECT key FROM queries)").fetchone() == (0,)
    for file in copy.parent.glob("copy.db*"):
        assert not [digest for digest in digests if digest.encode() in file.read_bytes()], "it is still in the file"


def test_pictures_of_one_classifier_are_forgotten_and_those_of_others_stay(copy: Path, tmp_path: Path) -> None:
    write_pictures(tmp_path / "some.npz", 5)
    with sqlite3.connect(copy) as db:
        columns = ", ".join((*schema.CLAIM[2:], *schema.ANSWER))
        db.execute("INSERT INTO classifiers(id, fingerprint, description, next_send) VALUES (99, 'other', 'api', 0)")
        db.execute(
            f"INSERT INTO queries(key, classifier, {columns}) SELECT randomblob(16), 99, {columns} FROM queries"
            " WHERE label IS NOT NULL AND of IS NULL"
        )
        db.execute(
            "INSERT INTO spend SELECT 99, day, SUM(sends), SUM(picos), COUNT(*), 0, 0, 0 FROM queries"
            " WHERE classifier = 99 GROUP BY day"
        )
    db.close()
    done = run("ledger", "forget", "other", "--pictures", tmp_path / "some.npz", "--ledger", copy)
    assert "25 answers" in done.stderr
    left = Counter(str(answer["classifier"]) for answer in exported(copy))
    assert sorted(left.values()) == [75, 100]
    assert left["other"] == 75
    assert run("ledger", "verify", "--ledger", copy).returncode == 0


def test_a_query_in_flight_is_not_forgotten(copy: Path) -> None:
    """It is counted when its answer comes, so it must be there."""
    living = new_session()._replace(id=7, beat=time.time())
    with sqlite3.connect(copy) as db:
        db.execute("INSERT INTO sessions VALUES (?, ?, ?, ?, ?, 1)", living)
        ((key,),) = db.execute("SELECT key FROM queries WHERE of IS NULL LIMIT 1").fetchall()
        db.execute("UPDATE queries SET session = 7, label = NULL WHERE key = ?", (key,))
        ((who,),) = db.execute("SELECT fingerprint FROM classifiers").fetchall()
    db.close()
    assert "99 answers" in run("ledger", "forget", who, "--ledger", copy).stderr
    with closing(sqlite3.connect(copy)) as db:
        assert db.execute("SELECT key FROM queries WHERE session = 7").fetchall() == [(key,)]


def test_forget_needs_a_classifier_or_pictures(copy: Path) -> None:
    done = run("ledger", "forget", "--ledger", copy)
    assert done.returncode == 2
    assert "--pictures" in done.stderr
    assert len(exported(copy)) == 100


def test_every_query_of_a_run_through_faults_is_counted_unless_it_was_refused(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures.npz", 40)
    with fault_server(0.3, 4) as server:
        write_profile(tmp_path / "profile.json", server.describe(tmp_path, price="0.0015"))
        ledger = ("--ledger", tmp_path / "ledger.db")
        run("score", tmp_path / "pictures.npz", "-p", tmp_path / "profile.json", *ledger, "-o", tmp_path / "v.csv")
        seen = server.stats()
    (day,) = json.loads(run("ledger", "stats", *ledger, "--json").stdout)
    assert seen["faults"]["429"] > 0
    # A request may time out before the server has read it, or after it has replied: either way no reply came.
    assert seen["billed"] <= day["queries"] < seen["requests"], "those that were refused are given back"
    assert day["answered"] <= seen["answered"] <= day["queries"]
    assert day["micros"] == 1500 * day["queries"]


def test_stats_add_up_by_day_and_by_classifier(filled: Path, tmp_path: Path) -> None:
    with sqlite3.connect(filled) as source, sqlite3.connect(tmp_path / "ledger.db") as db:
        source.backup(db)
        ((known,),) = db.execute("SELECT id FROM classifiers").fetchall()
        db.execute("INSERT INTO classifiers(id, fingerprint, description, next_send) VALUES (99, 'other', 'api', 0)")
        spend = "INSERT INTO spend VALUES (?, ?, ?, ?, 0, 0, 0, 0)"
        db.executemany(spend, [(known, 100, 7, 700), (99, 100, 3, 0)])
    source.close()
    db.close()

    rows = json.loads(run("ledger", "stats", "--ledger", tmp_path / "ledger.db", "--json").stdout)
    spent = [(row["day"], row["fingerprint"] == "other", row["queries"]) for row in rows]
    assert {("1970-04-11", False, 7), ("1970-04-11", True, 3)} < set(spent)
    assert sum(queries for _, other, queries in spent if not other) == 110
    text = run("ledger", "stats", "--ledger", tmp_path / "ledger.db").stdout
    assert re.search(r"All classifiers\s.*1970-04-11 +10 ", text, re.DOTALL)


def test_an_export_has_the_names_of_pictures_that_are_known(filled: Path, tmp_path: Path) -> None:
    (tmp_path / "broken.png").write_bytes(b"no picture")
    done = run(
        "ledger", "export", tmp_path / "answers.jsonl", "--ledger", filled,
        "--pictures", filled.parent / "pictures.npz", "--pictures", tmp_path / "broken.png",
    )  # fmt: skip
    assert "not read: " in done.stderr
    assert "100 answers" in done.stderr
    answers = [json.loads(line) for line in (tmp_path / "answers.jsonl").read_text().splitlines()]
    expected = {picture.image().digest: picture.name for picture in find([filled.parent / "pictures.npz"])}
    assert {answer["digest"]: Path(answer["name"]).name for answer in answers} == expected
    bare = run("ledger", "export", tmp_path / "bare.jsonl", "--ledger", filled)
    assert bare.returncode == 0
    assert '"name": null' in (tmp_path / "bare.jsonl").read_text()


def test_forget_takes_what_stats_shows(filled: Path, tmp_path: Path) -> None:
    (day,) = json.loads(run("ledger", "stats", "--ledger", filled, "--json").stdout)
    who, what = day["fingerprint"], day["description"]
    for place, called in enumerate((what, who[:8], f"{what} {who}", what[:-3])):
        ledger = tmp_path / f"{place}.db"
        assert run("ledger", "backup", ledger, "--ledger", filled).returncode == 0
        assert "100 answers" in run("ledger", "forget", called, "--ledger", ledger).stderr
    with sqlite3.connect(ledger) as db:
        more = "INSERT INTO classifiers(id, fingerprint, description, next_send) VALUES (?, ?, ?, 0)"
        db.executemany(more, [(98, "other", what), (99, "nameless", "")])
    db.close()
    said = run("ledger", "forget", what, "--ledger", ledger).stderr
    assert code_in(said) == "classifier-unknown"
    assert "other" in said
    for nobody in ("nobody", ""):
        done = run("ledger", "forget", nobody, "--ledger", ledger)
        assert (done.returncode, code_in(done.stderr)) == (1, "classifier-unknown")


def test_a_spent_budget_says_how_much_of_what(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures.npz", 20)
    with fault_server() as server:
        write_profile(tmp_path / "profile.json", server.describe(tmp_path, price="0.01"))
        words = ("score", tmp_path / "pictures.npz", "-p", tmp_path / "profile.json", "--canaries", 0)
        for option, value, told in (
            ("--budget", 12, "12 of 12"),
            (
                "--money",
                "0.255",
                "0.25 of 0.255",
            ),
            ("--per-day", 9, "9 of 9"),
            (
                "--money-per-day",
                0.1,
                "0.1 of 0.1",
            ),
        ):
            book = ("--ledger", tmp_path / f"{option}.db", "-o", tmp_path / f"{option}.csv")
            done = run(*words, *book, option, value)
            assert done.returncode == 3
            assert told in done.stderr
            assert f"raise {option}" in done.stderr


@pytest.mark.parametrize("mark", ["looktwice.toml", ".looktwice/"])
def test_a_project_has_a_ledger_of_its_own_and_one_is_told_which(tmp_path: Path, mark: str) -> None:
    below, data = tmp_path / "project" / "deep" / "down", tmp_path / "data"
    below.mkdir(parents=True)
    mine, everybodys = tmp_path / "project" / ".looktwice" / "ledger.db", data / "looktwice" / "ledger.db"
    with fault_server() as server:
        description = server.describe(tmp_path)
        for place in (everybodys, mine):
            checked = run("check", description, "--json", cwd=below, XDG_DATA_HOME=str(data))
            assert json.loads(checked.stdout)["ledger"] == str(place)
            assert place.exists()
            if place == everybodys:
                assert not mine.exists()
                if mark.endswith("/"):
                    mine.parent.mkdir()
                else:
                    (tmp_path / "project" / mark).write_text("")
        write_pictures(tmp_path / "pictures.npz", 3)
        write_profile(tmp_path / "profile.json", description)
        profile = ("-p", tmp_path / "profile.json", "-c", description)
        words = ("score", tmp_path / "pictures.npz", *profile, "-o", "out.csv", "--dry-run")
        assert f"Ledger: {mine}" in run(*words, cwd=below, XDG_DATA_HOME=str(data)).stderr
        assert "Ledger: none" in run(*words, "--ledger", "off", cwd=below).stderr
        hidden = run(*words, "--ledger", "postgresql://me:secret@127.0.0.1:9/db", cwd=below)
        assert "secret" not in hidden.stderr
    shown = run("ledger", "stats", "--json", cwd=below, XDG_DATA_HOME=str(data))
    assert json.loads(shown.stdout)[0]["queries"] == 3


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give a file to another user")
def test_a_project_that_another_user_made_is_no_project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".looktwice").mkdir()
    os.chown(tmp_path / ".looktwice", 4321, -1)
    monkeypatch.chdir(tmp_path)
    assert Project.here().ledger_place() == str(tmp_path / ".looktwice" / "ledger.db")
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    assert not Project.here().ledger_place().startswith(str(tmp_path))


def test_an_unreachable_classifier_is_one_line(tmp_path: Path) -> None:
    done = run("check", "http://127.0.0.1:9/classify", "--ledger", tmp_path / "ledger.db")
    assert (done.returncode, code_in(done.stderr)) == (1, "classifier-unreachable")
    assert "Traceback" not in done.stderr


COMMANDS = [("stats",), ("export", "x.csv"), ("verify",), ("forget", "http"), ("backup", "y.db")]


@pytest.mark.parametrize("words", COMMANDS)
def test_a_database_that_is_away_is_one_line_without_its_password(words: tuple[str, ...], tmp_path: Path) -> None:
    told = run("ledger", *words, "--ledger", "postgresql://me:hunter2@127.0.0.1:1/db", cwd=tmp_path)
    assert told.returncode == 1
    assert "Traceback" not in told.stderr
    assert "hunter2" not in told.stdout + told.stderr
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("address", ["mysql://me:{}@host/db", "host=x password={}"])
@pytest.mark.parametrize("words", COMMANDS)
def test_the_address_of_another_database_is_no_file_and_its_password_is_neither_shown_nor_the_name_of_a_folder(
    words: tuple[str, ...], address: str, filled: Path, tmp_path: Path
) -> None:
    (tmp_path / "x.db").write_bytes(filled.read_bytes())
    place = address.format("hunter2hunter2")
    told = run("ledger", *words, "--ledger", place, cwd=tmp_path)
    assert (told.returncode, code_in(told.stderr)) == (1, "ledger-invalid")
    assert "hunter2" not in told.stdout + told.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"x.db", "x.db-shm", "x.db-wal"}


def test_forgetting_makes_no_ledger(tmp_path: Path) -> None:
    told = run("ledger", "forget", "http", "--ledger", tmp_path / "folder" / "typo.db")
    assert (told.returncode, code_in(told.stderr)) == (1, "ledger-missing")
    assert not [*tmp_path.iterdir()]
