"""The ledger and check commands, on a ledger that a real run filled."""

import json
import os
import sqlite3
from pathlib import Path

import pytest
from faults import LABELS, fault_server
from workshop import run, write_pictures, write_profile

from looktwice.asking.ledger import default_path
from looktwice.model import Model
from looktwice.pictures.collection import find


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
    assert (day["queries"], day["asked"], day["answered"], day["micros"]) == (103, 103, 103, 103 * 1500)
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


def test_merging_adds_answers_once_and_forgetting_keeps_the_cost(filled: Path, tmp_path: Path) -> None:
    mine = tmp_path / "mine.db"
    assert "100 answers added" in run("ledger", "merge", filled, "--ledger", mine).stderr
    assert "0 answers added, 100 were known" in run("ledger", "merge", filled, "--ledger", mine).stderr
    (day,) = json.loads(run("ledger", "stats", "--ledger", mine, "--json").stdout)
    assert day["queries"] == 103
    assert "100 answers" in run("ledger", "forget", day["fingerprint"], "--ledger", mine).stderr
    (day,) = json.loads(run("ledger", "stats", "--ledger", mine, "--json").stdout)
    assert (day["queries"], day["asked"], day["answered"]) == (103, 103, 103)


def test_every_query_of_a_run_through_faults_is_answered_refused_or_unknown(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures.npz", 40)
    with fault_server(0.3, 4) as server:
        write_profile(tmp_path / "profile.json", server.describe(tmp_path, price="0.0015"))
        ledger = ("--ledger", tmp_path / "ledger.db")
        run("score", tmp_path / "pictures.npz", "-p", tmp_path / "profile.json", *ledger, "-o", tmp_path / "v.csv")
        seen = server.stats()
    (day,) = json.loads(run("ledger", "stats", *ledger, "--json").stdout)
    faults = seen["faults"]
    assert day["asked"] == day["answered"] + day["refused"] + day["unknown"]
    assert faults["429"] > 0
    # A request may time out before the server has read it, or after it has replied: either way no reply came.
    replied = sum(faults.get(fault, 0) for fault in ("429", "500", "503", "garbage", "wrong type"))
    assert seen["requests"] <= day["asked"]
    assert day["refused"] <= replied
    assert day["asked"] - faults["429"] <= day["queries"] < day["asked"], "those that were refused are given back"
    assert day["micros"] == 1500 * day["queries"]


def test_stats_add_up_by_day_and_by_classifier(filled: Path, tmp_path: Path) -> None:
    with sqlite3.connect(filled) as source, sqlite3.connect(tmp_path / "ledger.db") as db:
        source.backup(db)
        db.execute("INSERT INTO classifiers(id, fingerprint, description) VALUES (99, 'other', 'api')")
        spend = "INSERT INTO spend(classifier, day, session, queries, micros) VALUES (?, ?, 1, ?, ?)"
        db.executemany(spend, [(1, 100, 7, 700), (99, 100, 3, 0)])
    source.close()
    db.close()

    def stats(*by: str) -> list[dict[str, object]]:
        return list(json.loads(run("ledger", "stats", "--ledger", tmp_path / "ledger.db", *by, "--json").stdout))

    assert [row["queries"] for row in stats()] == [7, 3, 103]
    first = stats("--by", "day")[0]
    assert (first["day"], first["queries"]) == ("1970-04-11", 10)
    known = {row["fingerprint"]: row["queries"] for row in stats("--by", "classifier")}
    assert known["other"] == 3
    assert sorted(known.values(), key=str) == [110, 3]
    assert "1970-04-11" not in run("ledger", "stats", "--ledger", tmp_path / "ledger.db", "--by", "classifier").stdout


def test_stats_by_command_tell_what_asked_also_after_merging(tmp_path: Path) -> None:
    ledger, merged = tmp_path / "ledger.db", tmp_path / "merged.db"
    write_pictures(tmp_path / "pictures.npz", 6)
    old = "INSERT INTO spend(classifier, day, session, queries, micros) VALUES (1, 100, 1, 7, 0)"
    with fault_server() as server:
        description = server.describe(tmp_path)
        write_profile(tmp_path / "profile.json", description)
        known = ("-p", tmp_path / "profile.json", "--ledger", ledger, "--canaries", 0)
        assert run("score", tmp_path / "pictures.npz", *known, "-o", tmp_path / "v.csv").returncode == 0
        assert run("check", description, "--ledger", ledger).returncode == 0
        with Model(str(description), ledger=str(ledger)) as model:
            model.check()
        with sqlite3.connect(ledger) as db:
            db.execute(old)
        db.close()
        asked = server.stats()["requests"] + 7
    for _ in range(2):
        assert run("ledger", "merge", ledger, "--ledger", merged).returncode == 0
    for path in (ledger, merged):
        rows = json.loads(run("ledger", "stats", "--by", "command", "--json", "--ledger", path).stdout)
        queries = {row["command"]: row["queries"] for row in rows}
        assert list(queries) == ["unknown", "Python", "check", "score"]
        assert (queries["score"], queries["unknown"], sum(queries.values())) == (30, 7, asked)
    assert "Python" in run("ledger", "stats", "--by", "command", "--ledger", merged).stdout
    days = json.loads(run("ledger", "stats", "--json", "--ledger", merged).stdout)
    assert [day["queries"] for day in days] == [7, asked - 7]


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
        assert run("ledger", "merge", filled, "--ledger", ledger).returncode == 0
        assert "100 answers" in run("ledger", "forget", called, "--ledger", ledger).stderr
    with sqlite3.connect(ledger) as db:
        db.execute("INSERT INTO classifiers(fingerprint, description) VALUES ('other', ?)", (what,))
        db.execute("INSERT INTO classifiers(fingerprint, description) VALUES ('nameless', '')")
    db.close()
    said = run("ledger", "forget", what, "--ledger", ledger).stderr
    assert "knows 2 classifiers (" in said
    assert "other" in said
    for nobody in ("nobody", ""):
        done = run("ledger", "forget", nobody, "--ledger", ledger)
        assert (done.returncode, "knows no classifier" in done.stderr) == (1, True)


def test_a_spent_budget_says_how_much_of_what(tmp_path: Path) -> None:
    write_pictures(tmp_path / "pictures.npz", 20)
    with fault_server() as server:
        write_profile(tmp_path / "profile.json", server.describe(tmp_path, price="0.01"))
        words = ("score", tmp_path / "pictures.npz", "-p", tmp_path / "profile.json", "--canaries", 0)
        for option, value, told in (
            ("--budget", 12, "the budget of 12 queries is spent (12 of 12); raise --budget and run again to continue"),
            (
                "--money",
                "0.255",
                "the budget of 0.255 in money is spent (0.25 of 0.255, and a query may cost 0.01); raise --money and",
            ),
            ("--per-day", 9, "the budget of 9 queries a day is spent (9 of 9); raise --per-day, or wait for midnight"),
            (
                "--money-per-day",
                0.1,
                "the budget of 0.1 a day in money is spent (0.1 of 0.1); raise --money-per-day",
            ),
        ):
            book = ("--ledger", tmp_path / f"{option}.db", "-o", tmp_path / f"{option}.csv")
            done = run(*words, *book, option, value)
            assert done.returncode == 3
            assert told in done.stderr


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
        words = ("score", tmp_path / "pictures.npz", "-p", tmp_path / "profile.json", "-o", "out.csv", "--dry-run")
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
    assert default_path() == tmp_path / ".looktwice" / "ledger.db"
    monkeypatch.setattr(os, "getuid", lambda: 1234)
    assert tmp_path not in default_path().parents


def test_an_unreachable_classifier_is_one_line(tmp_path: Path) -> None:
    done = run("check", "http://127.0.0.1:9/classify", "--ledger", tmp_path / "ledger.db")
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "address", ["postgresql://me:{}@127.0.0.1:1/db", "mysql://me:{}@host/db", "host=x password={}"]
)
@pytest.mark.parametrize("words", [("stats",), ("export", "x.csv"), ("verify",), ("forget", "http"), ("merge", "x.db")])
def test_the_address_of_a_database_is_no_file_and_its_password_is_neither_shown_nor_the_name_of_a_folder(
    words: tuple[str, ...], address: str, filled: Path, tmp_path: Path
) -> None:
    (tmp_path / "x.db").write_bytes(filled.read_bytes())
    place = address.format("hunter2hunter2")
    told = run("ledger", *words, "--ledger", place, cwd=tmp_path)
    assert told.returncode == 1
    assert "is an address and not the path of a file" in told.stderr
    assert "hunter2" not in told.stdout + told.stderr
    assert {path.name for path in tmp_path.iterdir()} <= {"x.db", "x.db-shm", "x.db-wal"}


def test_forgetting_makes_no_ledger(tmp_path: Path) -> None:
    told = run("ledger", "forget", "http", "--ledger", tmp_path / "folder" / "typo.db")
    assert told.returncode == 1
    assert "there is no ledger" in told.stderr
    assert not [*tmp_path.iterdir()]
