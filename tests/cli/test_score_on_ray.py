"""`score --engine ray` without Ray: what is shared, the folder of results, limits, and what is refused."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.errors import coded
from support.faults import fault_server
from support.serving import DEMO
from support.workshop import run, write_pictures, write_profile

from looktwice.classifiers.base import Limits
from looktwice.cli.console import Output, stopping
from looktwice.cli.look import Machines
from looktwice.cli.ray import Job, VerdictFolder, crew, score, shared_ledger
from looktwice.decisions.policy import DecisionOptions
from looktwice.errors import DataError, FleetError
from looktwice.model import AsyncModel, connect
from looktwice.model.options import AskOptions
from looktwice.model.runs import ReceivedSignals

Crew = Callable[..., Job]


@pytest.fixture
def crewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Crew:
    """Makes the job of classifiers with these limits, on eight processors."""

    def make(*limits: Limits, ledger: str = "off", **machines: Any) -> Job:
        monkeypatch.setattr("looktwice.cli.ray.total_limits", lambda _: limits)
        model = AsyncModel([connect(DEMO / "fashion.toml", name=f"c{place}") for place in range(len(limits))])
        model.profile = write_profile(tmp_path / "profile.json", str(DEMO / "fashion.toml"))
        return crew(model, AskOptions(ledger=ledger), DecisionOptions(), 8, Machines(**machines))

    return make


# The folder of results


def write_rows(path: Path, *rows: tuple[str, str | None, str]) -> None:
    names, labels, sources = zip(*rows, strict=True)
    kinds = ["label" if label else None for label in labels]  # a picture without a verdict has none
    stopped = ["budget" if label == "provisional" else None for label in labels]
    columns = {"kind": kinds, "name": names, "label": labels, "stopped": stopped, "source": sources}
    pq.write_table(pa.table({name: pa.array(column, pa.string()) for name, column in columns.items()}), path)


def names_in(folder: Path) -> list[str]:
    return sorted(pq.read_table(folder)["name"].to_pylist())


def test_pictures_with_a_verdict_are_done_unless_their_file_has_changed(tmp_path: Path) -> None:
    results = VerdictFolder(str(tmp_path / "out"))
    results.begin({"a": 1})
    rows = ("a", "cat", "a 1"), ("b", None, "b 1"), ("c", "cat", "c 1"), ("g", "provisional", "g 1")
    write_rows(tmp_path / "out" / "1.parquet", *rows)
    write_rows(tmp_path / "out" / "2.parquet", ("d", "cat", "gone 1"))
    write_rows(tmp_path / "out" / "3.parquet", ("e", "cat", "e 1"), ("f", "cat", "f 1"))
    (tmp_path / "out" / "4.parquet").write_bytes((tmp_path / "out" / "3.parquet").read_bytes()[:50])
    kept = (tmp_path / "out" / "3.parquet").stat()
    sources = {"a 1", "b 1", "c 2", "e 1", "f 1", "g 1"}
    assert results.done(sources, tidy=False) == {"a 1", "e 1", "f 1"}
    assert len(list((tmp_path / "out").iterdir())) == 5, "a dry run changes nothing"
    assert results.done(sources, tidy=True) == {"a 1", "e 1", "f 1"}
    assert names_in(tmp_path / "out") == ["a", "e", "f"]
    assert (tmp_path / "out" / "3.parquet").stat().st_mtime_ns == kept.st_mtime_ns
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["1.parquet", "3.parquet", "_looktwice.json"]


def test_a_folder_that_is_not_there_yet_has_nothing_done(tmp_path: Path) -> None:
    assert VerdictFolder(str(tmp_path / "out")).done(set(), tidy=False) == set()
    assert not (tmp_path / "out").exists()


def test_a_folder_of_other_verdicts_or_other_files_stays_as_it_is(tmp_path: Path) -> None:
    VerdictFolder(str(tmp_path / "out")).begin({"profile": 1})
    VerdictFolder(str(tmp_path / "out")).begin({"profile": 1})
    with pytest.raises(DataError, check=coded("file-exists")):
        VerdictFolder(str(tmp_path / "out")).begin({"profile": 2})
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(DataError, check=coded("file-exists")):
        VerdictFolder(str(tmp_path)).begin({"profile": 1})


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, check=coded("file-unwritable")):
        VerdictFolder(str(tmp_path / "file" / "out")).begin({})


# What is shared


PAID, FREE = Limits(), Limits(local=True)


@pytest.mark.parametrize(
    ("limits", "ask"),
    [
        (PAID, AskOptions()),
        (PAID, AskOptions(ledger="ledger.db")),
        (PAID, AskOptions(ledger="off")),
        (FREE, AskOptions(ledger="ledger.db")),
        (FREE, AskOptions(budget="500")),
        (FREE, AskOptions(money="1", ledger="off")),
        (FREE, AskOptions(per_day=10)),
        (FREE, AskOptions(money_per_day="1")),
    ],
)
def test_what_workers_must_share_needs_a_database_that_all_can_reach(limits: Limits, ask: AskOptions) -> None:
    with pytest.raises(FleetError, check=coded("ledger-required")):
        shared_ledger([FREE, limits], ask)


def test_a_free_local_classifier_needs_no_database() -> None:
    assert shared_ledger([FREE], AskOptions()) is None
    assert shared_ledger([FREE, FREE], AskOptions(ledger="off", rate=5.0)) is None
    for limits in (PAID, FREE):
        assert shared_ledger([limits], AskOptions(ledger="postgresql://a@b/c", budget="+5")) == "postgresql://a@b/c"


def test_a_run_without_the_ledger_it_needs_ends_in_one_line_before_anything_is_started(tmp_path: Path) -> None:
    write_pictures(tmp_path / "p.npz", 1)
    with fault_server() as classifier:
        write_profile(tmp_path / "profile.json", classifier.describe(tmp_path))
        files = (tmp_path / "p.npz", "-p", tmp_path / "profile.json", "-o", tmp_path / "out")
        done = run("score", *files, "--engine", "ray", "--ledger", tmp_path / "ledger.db")
    assert done.returncode == 1
    assert "--ledger postgresql://user@host/database" in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "ledger.db").exists()


# Limits


@pytest.mark.parametrize(
    ("limits", "workers", "expected"),
    [
        (Limits(concurrency=32), None, (8, 4)),
        (Limits(concurrency=32), 2, (2, 16)),
        (Limits(concurrency=3), None, (3, 1)),
        (Limits(concurrency=32, local=True), None, (8, 1)),
    ],
)
def test_workers_together_make_no_more_calls_than_the_classifier_allows(
    crewed: Crew, limits: Limits, workers: int | None, expected: tuple[int, int]
) -> None:
    job = crewed(limits, workers=workers)
    assert (job.workers, job.classifiers[0]["concurrency"]) == expected


def test_each_of_several_classifiers_has_its_own_limit(crewed: Crew) -> None:
    job = crewed(Limits(concurrency=4), Limits(concurrency=32), FREE)
    assert job.workers == 4
    assert [one["concurrency"] for one in job.classifiers] == [1, 8, 1]


def test_a_rate_is_shared_through_the_ledger_and_divided_without_one(crewed: Crew) -> None:
    limits = Limits(concurrency=32, per_second=100.0)
    assert crewed(limits, workers=4).classifiers[0]["rate"] == 25.0
    assert crewed(limits, workers=4, ledger="postgresql://a@b/c").classifiers[0]["rate"] == 100.0


def test_more_workers_than_processors_are_not_waited_for(crewed: Crew) -> None:
    assert crewed(FREE, workers=9).workers == 8


@pytest.mark.parametrize(
    ("take", "ask", "output"),
    [
        (":10", AskOptions(), Output()),
        (None, AskOptions(batch=True), Output()),
        (None, AskOptions(), Output(json_log=True)),
    ],
)
def test_what_is_for_one_machine_is_refused(take: str | None, ask: AskOptions, output: Output) -> None:
    with pytest.raises(DataError, check=coded("option-conflict")):
        score(["photos"], take, Path("nowhere"), None, "photos-out", DecisionOptions(), Machines(), ask, output)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_stops_a_run_gently_and_a_second_one_at_once(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looktwice.cli.console.received", ReceivedSignals())
    monkeypatch.setattr("looktwice.model.runs.TOGETHER", -1.0)
    monkeypatch.setattr("looktwice.model.runs.leave_soon", lambda code: None)  # this process stays
    before = signal.signal(number, signal.default_int_handler)  # nohup makes tests ignore hang-ups
    reasons = list[str]()

    async def run() -> None:
        with stopping(reasons.append):
            os.kill(os.getpid(), number)
            while not reasons:
                await asyncio.sleep(0.01)
            os.kill(os.getpid(), number)
            await asyncio.Event().wait()

    try:
        with pytest.raises(SystemExit) as left:
            asyncio.run(run())
        assert len(reasons) == 1
        assert left.value.code == 128 + number
    finally:
        signal.signal(number, before)
