"""The ledger and check commands, on a ledger that a real run filled."""

import json
from pathlib import Path

import pytest
from faults import fault_server
from workshop import run, write_pictures, write_profile


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
    assert "0.1545" in run("ledger", "stats", "--ledger", filled).stdout


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_answers_are_exported(filled: Path, tmp_path: Path, ending: str) -> None:
    done = run("ledger", "export", tmp_path / f"answers.{ending}", "--ledger", filled)
    assert "100 answers" in done.stderr
    assert (tmp_path / f"answers.{ending}").stat().st_size > 1000


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
    assert day["queries"] == day["asked"] - faults["429"]
    assert day["micros"] == 1500 * day["queries"]


def test_an_unreachable_classifier_is_one_line(tmp_path: Path) -> None:
    done = run("check", "http://127.0.0.1:9/classify", "--ledger", tmp_path / "ledger.db")
    assert done.returncode == 1
    assert "cannot be reached" in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr
