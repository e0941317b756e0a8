"""What a fleet does, in one process: its sources, its shards, its pace, and workers that share a ledger."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import tarfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from faults import Running, fault_server
from ledger_players import WHO
from workshop import PANEL, answers, run, write_pictures, write_profile

from looktwice.asking.asker import Estimate
from looktwice.asking.outcome import Progress
from looktwice.asking.pace import SharedRate
from looktwice.asking.session import AskKeywords, AskOptions
from looktwice.calibration.votes import Row
from looktwice.classifiers.base import Terms
from looktwice.classifiers.registry import connect
from looktwice.cli.console import Output
from looktwice.cli.fleet import Machines, MaxBad, Tally, _estimated, _interruptible, crew, score, shared_ledger
from looktwice.errors import DataError, FleetError, ImageError, ProfileError
from looktwice.fleet.driver import Cluster, Run
from looktwice.fleet.shards import Shards, Summary
from looktwice.fleet.sources import Listed, Unit, units
from looktwice.fleet.worker import Job, Scorer
from looktwice.pictures.collection import find
from looktwice.pictures.decode import decode
from looktwice.pictures.image import encode_png
from looktwice.verdicts.policy import DecisionOptions

pytest.importorskip("psycopg", reason="no psycopg here; pip install 'looktwice[postgres]'")

import psycopg

from looktwice.asking.ledger.postgres import PostgresLedger
from looktwice.verdicts.stream import Observation

# --- sources


def noise(count: int, seed: int = 0) -> list[np.ndarray[Any, np.dtype[np.uint8]]]:
    return list(np.random.default_rng(seed).integers(0, 256, (count, 16, 16, 3), np.uint8))


def names(found: Iterator[Unit]) -> list[str]:
    return [picture.name for unit in found for picture in unit.pictures()]


def digests(found: Iterator[Unit]) -> dict[str, str]:
    return {picture.name: picture.image().digest for unit in found for picture in unit.pictures()}


def write_folder(folder: Path, count: int) -> Path:
    for place, pixels in enumerate(noise(count)):
        (folder / f"part{place % 3}").mkdir(parents=True, exist_ok=True)
        (folder / f"part{place % 3}" / f"{place}.png").write_bytes(encode_png(pixels))
    return folder


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def test_a_folder_and_an_npz_have_the_names_and_pictures_of_one_machine(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", 20)
    write_pictures(tmp_path / "more.npz", 7)
    for paths in ([folder], [tmp_path / "more.npz"], [folder, tmp_path / "more.npz"]):
        expected = {picture.name: picture.image().digest for picture in find(paths)}
        assert digests(units([str(path) for path in paths], 6)) == expected


@pytest.mark.parametrize("size", [1, 6, 20, 1000])
def test_units_have_the_wanted_size_and_are_the_same_each_time(tmp_path: Path, size: int) -> None:
    folder = str(write_folder(tmp_path, 20))
    cut = [unit for unit in units([folder], size) if isinstance(unit, Listed)]
    assert [len(unit.listed) for unit in cut] == [size] * (20 // size) + [20 % size] * (20 % size > 0)
    assert [unit.identity for unit in units([folder], size)] == [unit.identity for unit in cut]
    assert len({unit.identity for unit in cut}) == len(cut)


@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_a_picture_that_was_overwritten_makes_another_unit(tmp_path: Path, address: str) -> None:
    folder = write_folder(tmp_path / "photos", 6)
    place = address.format(folder)
    before = [unit.identity for unit in units([place], 3)]
    changed = sorted(folder.rglob("*.png"))[4]
    changed.write_bytes(encode_png(noise(1, 9)[0]))
    after = [unit.identity for unit in units([place], 3)]
    assert [one == other for one, other in zip(before, after, strict=True)] == [True, False]


def parquet(path: Path, column: str, values: list[object], **more: list[object]) -> str:
    pq.write_table(pa.table({**more, column: values}), path, row_group_size=4)
    return str(path)


def test_parquet_files_hold_pictures_as_bytes_or_as_structs(tmp_path: Path) -> None:
    encoded = [encode_png(pixels) for pixels in noise(10)]
    expected = [find_digest(data) for data in encoded]
    plain = parquet(tmp_path / "plain.parquet", "image", list(encoded), label=list(range(10)))
    named = parquet(tmp_path / "named.parquet", "bytes", list(encoded), name=[f"n{i}" for i in range(10)])
    nested = parquet(
        tmp_path / "nested.parquet", "image", [{"bytes": data, "path": f"p{i}"} for i, data in enumerate(encoded)]
    )
    assert digests(units([plain], 5)) == {f"{plain}#{i}": digest for i, digest in enumerate(expected)}
    assert digests(units([named], 5)) == {f"n{i}": digest for i, digest in enumerate(expected)}
    assert digests(units([nested], 5)) == {f"p{i}": digest for i, digest in enumerate(expected)}
    assert [len(list(unit.pictures())) for unit in units([plain], 5)] == [8, 2], "row groups are not torn apart"


def find_digest(data: bytes) -> str:
    return decode(data, "").digest


def test_a_tar_holds_pictures_and_other_members_are_passed_over(tmp_path: Path) -> None:
    encoded = [encode_png(pixels) for pixels in noise(3)]
    path = str(write_tar(tmp_path / "a.tar", {"0.PNG": encoded[0], "0.json": b"{}", "x/1.png": encoded[1]}))
    assert digests(units([path], 5)) == {
        f"{path}/0.PNG": find_digest(encoded[0]),
        f"{path}/x/1.png": find_digest(encoded[1]),
    }


def test_a_folder_may_hold_pictures_and_containers(tmp_path: Path) -> None:
    [data] = [encode_png(pixels) for pixels in noise(1)]
    (tmp_path / "a.png").write_bytes(data)
    write_tar(tmp_path / "b.tar", {"1.png": data})
    parquet(tmp_path / "c.parquet", "image", [data])
    assert names(units([str(tmp_path)], 5)) == [f"{tmp_path}/b.tar/1.png", f"{tmp_path}/c.parquet#0", "a.png"]
    (tmp_path / "a.png").unlink()
    assert len(names(units([str(tmp_path)], 5))) == 2


@pytest.mark.parametrize("as_address", [False, True])
def test_the_ending_of_a_container_may_be_in_capitals(tmp_path: Path, as_address: bool) -> None:
    tar = write_tar(tmp_path / "B.TAR", {"1.png": encode_png(noise(1)[0])})
    for path in (tmp_path, tar):
        found = names(units([path.as_uri() if as_address else str(path)], 5))
        assert [name.rpartition("/")[2] for name in found] == ["1.png"]


def test_an_address_is_read_like_a_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", 5)
    write_tar(folder / "b.tar", {"1.png": encode_png(noise(1)[0])})
    address = folder.as_uri()
    local = {picture.name: picture.image().digest for picture in find([folder])}
    assert digests(units([address], 2)).items() >= local.items()
    assert names(units([address], 2))[0] == f"{address}/b.tar/1.png"
    both = names(units([address, str(folder / "part0" / "0.png")], 10))
    assert f"{address}/part1/1.png" in both


@pytest.mark.parametrize(
    ("content", "name"), [(b"PAR1 but no more", "x.parquet"), (b"no tar at all", "x.tar"), (b"", "y.parquet")]
)
def test_a_container_that_cannot_be_read_is_one_bad_picture(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    [picture] = [picture for unit in units([str(path)], 5) for picture in unit.pictures()]
    with pytest.raises(ImageError, match="cannot be read"):
        picture.image()


def test_a_tar_that_is_cut_off_gives_the_pictures_before_the_cut(tmp_path: Path) -> None:
    encoded = {f"{place}.png": encode_png(pixels) for place, pixels in enumerate(noise(6))}
    path = write_tar(tmp_path / "a.tar", encoded)
    path.write_bytes(path.read_bytes()[:3000])
    *good, last = [picture for unit in units([str(path)], 5) for picture in unit.pictures()]
    assert len([picture.image() for picture in good]) in (1, 2, 3)
    with pytest.raises(ImageError, match="cannot be read"):
        last.image()


def test_a_row_without_a_picture_is_a_bad_picture(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", "image", [None, encode_png(noise(1)[0])])
    first, second = [picture for unit in units([path], 5) for picture in unit.pictures()]
    with pytest.raises(ImageError, match="holds no picture"):
        first.image()
    assert second.image().pixels.shape == (16, 16, 3)


def test_a_changed_container_is_another_unit(tmp_path: Path) -> None:
    path = write_tar(tmp_path / "a.tar", {"1.png": b"x"})
    [before] = units([str(path)], 5)
    write_tar(path, {"1.png": b"xy", "2.png": b"x" * 20000})
    [after] = units([str(path)], 5)
    assert before.identity != after.identity


@pytest.mark.parametrize(
    ("paths", "complaint"),
    [
        ([], "no picture is named"),
        (["nowhere"], "no such file or folder"),
        (["s3://key:secret@bucket/x"], "keys have no place"),
        (["nonsense://bucket/x"], "not an address"),
        (["s3://bucket/x?bogus=secret"], "not an address"),
        (["hdfs://nowhere.invalid/x"], "cannot be opened"),
        (["file:///nowhere/at/all"], "nothing at this address"),
    ],
)
def test_what_cannot_be_listed_is_named(paths: list[str], complaint: str) -> None:
    with pytest.raises(DataError, match=complaint) as raised:
        list(units(paths, 5))
    assert "secret" not in str(raised.value)


def test_a_table_without_pictures_says_what_it_has(tmp_path: Path) -> None:
    path = parquet(tmp_path / "a.parquet", "label", ["cat"])
    with pytest.raises(DataError, match="it has label"):
        names(units([path], 5))


# --- shards


def test_a_shard_is_there_with_its_rows_and_its_summary(tmp_path: Path) -> None:
    shards = Shards(str(tmp_path / "out"))
    shards.begin({"a": 1})
    summary = Summary("unit1", 2, 1, 1, 1, (Observation(3, 4, 0.5),))
    assert shards.done("unit1") is None
    shards.add(summary, [{"name": "x", "label": "cat"}, {"name": "y", "message": "bad"}])
    assert pq.read_table(tmp_path / "out").to_pylist()[1]["message"] == "bad"
    again = Shards(str(tmp_path / "out"))
    again.begin({"a": 1})
    done = again.done("unit1")
    assert done
    assert (done.pictures, done.unfamiliar, done.glances, done.before) == (2, 1, (Observation(3, 4, 0.5),), True)


def test_a_unit_is_done_again_if_that_could_give_more_verdicts(tmp_path: Path) -> None:
    shards = Shards(str(tmp_path))
    shards.begin({})
    shards.add(Summary("unit1", 2, unscored=2, bad=1), [])
    assert shards.done("unit1") is None


def test_a_folder_of_other_verdicts_or_other_files_stays_as_it_is(tmp_path: Path) -> None:
    Shards(str(tmp_path / "out")).begin({"profile": 1})
    with pytest.raises(DataError, match="another profile"):
        Shards(str(tmp_path / "out")).begin({"profile": 2})
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(DataError, match="other files"):
        Shards(str(tmp_path)).begin({"profile": 1})


def test_what_is_of_no_unit_is_removed_in_the_end(tmp_path: Path) -> None:
    shards = Shards(str(tmp_path))
    shards.begin({})
    for name in ("old", "new"):
        shards.add(Summary(name), [])
    (tmp_path / ".verdicts-x.parquet.123").write_text("half")
    shards.finish({"new"})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["_looktwice.json", "verdicts-new.parquet"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        Shards(str(tmp_path / "file" / "out")).begin({})


# --- the pace


class Counting(PostgresLedger):
    """Counts the claims, and the moments that they were for."""

    claims = moments = 0

    def claim_moments(self, fingerprint: str, per_second: float, count: int) -> float:
        self.claims += 1
        self.moments += count
        return super().claim_moments(fingerprint, per_second, count)


async def test_workers_together_never_exceed_the_pace_and_leave_none_of_it_unused(database: str) -> None:
    with ExitStack() as stack:
        ledgers = [stack.enter_context(Counting(database)) for _ in range(4)]
        rates = [SharedRate(200.0, ledger, WHO) for ledger in ledgers]
        moments: list[float] = []
        began = time.monotonic()

        async def send(rate: SharedRate) -> None:
            for _ in range(6):
                moment = await rate.reserve(1)
                await asyncio.sleep(moment - time.monotonic())
                moments.append(moment)

        await asyncio.gather(*(send(rate) for rate in rates for _ in range(10)))
        claimed = [(ledger.claims, ledger.moments) for ledger in ledgers]
    claims, used = map(sum, zip(*claimed, strict=True))
    assert claims < 240, "one claim serves all that wait"
    assert used == 240, "no moment is claimed in vain"
    # What comes late from the database is late and not lost, and nothing goes before its moment.
    assert all(moment >= began + place / 200.0 for place, moment in enumerate(sorted(moments)))


async def test_questions_that_go_in_one_call_wait_for_the_moment_of_the_last(database: str) -> None:
    with PostgresLedger(database) as ledger:
        rate = SharedRate(0.01, ledger, WHO)
        now = time.monotonic()
        first, second, third = await asyncio.gather(rate.reserve(1), rate.reserve(5), rate.reserve(2))
        assert second - first == pytest.approx(500, abs=50)
        assert third - second == pytest.approx(200, abs=50)
        assert first - now < 50


async def test_a_database_that_is_slow_to_give_moments_does_not_stop_the_loop(database: str) -> None:
    with PostgresLedger(database) as ledger, psycopg.connect(database) as other:
        rate = SharedRate(100.0, ledger, WHO)
        await rate.reserve(1)
        other.execute("SELECT * FROM looktwice.paces FOR UPDATE")
        waiting = asyncio.create_task(rate.reserve(1))
        held = "SELECT COUNT(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        with psycopg.connect(database, autocommit=True) as watching:
            async with asyncio.timeout(30):
                while watching.execute(held).fetchone() == (0,):
                    await asyncio.sleep(0.002)
        assert not waiting.done()
        other.rollback()
        await waiting


# --- workers


def make_job(tmp_path: Path, classifier: Running, asking: AskKeywords | None = None, **changes: Any) -> Job:
    """What scoring with this classifier, in this folder, means."""
    description = str(classifier.describe(tmp_path))
    profile = write_profile(tmp_path / "profile.json", description)
    Shards(str(tmp_path / "out")).begin({})
    settings: dict[str, Any] = {
        "profile": profile,
        "decide": DecisionOptions(),
        "classifier": description,
        "folder": os.getcwd(),
        "out": str(tmp_path / "out"),
    }
    ask = replace(AskOptions(ledger="off", concurrency=8, canaries=0), **(asking or {}))
    return Job(**{**settings, **changes}, ask=ask)


async def work(job: Job, todo: list[Unit], workers: int = 1) -> list[Summary]:
    """What workers make of units, of which each takes the next one when it is done with another."""
    scorers, left = [Scorer(job) for _ in range(workers)], iter(todo)

    async def serve(scorer: Scorer) -> list[Summary]:
        return [await scorer.work(unit) for unit in left]

    try:
        return [summary for share in await asyncio.gather(*map(serve, scorers)) for summary in share]
    finally:
        for scorer in scorers:
            await scorer.close()


def rows(out: Path) -> dict[str, dict[str, Any]]:
    found = pq.read_table(out).to_pylist()
    assert len({row["name"] for row in found}) == len(found)
    return {row["name"]: row for row in found}


async def test_workers_give_the_answers_of_one_machine_and_ask_each_question_once(
    database: str, tmp_path: Path
) -> None:
    pictures = write_pictures(tmp_path / "p.npz", 60)
    with fault_server() as classifier:
        job = make_job(tmp_path, classifier, {"ledger": database})
        summaries = await work(job, list(units([str(tmp_path / "p.npz")], 7)), workers=2)
        asked = classifier.stats()["requests"]
        one, asker = await answers(job.classifier, pictures)
        assert (sum(summary.pictures for summary in summaries), asked) == (60, asker.progress.sent)
        assert sum((summary.progress for summary in summaries), Progress()).sent == asked
    found = rows(tmp_path / "out")
    for row in one:
        assert isinstance(row, Row)
        assert (found[row.name]["base"], tuple(found[row.name]["votes"])) == (row.base, row.views)


async def test_the_same_picture_in_two_units_is_asked_about_once(database: str, tmp_path: Path) -> None:
    write_pictures(tmp_path / "p.npz", 12)
    (tmp_path / "copy.npz").write_bytes((tmp_path / "p.npz").read_bytes())
    with fault_server(delay=0.02) as classifier:
        todo = list(units([str(tmp_path / "p.npz"), str(tmp_path / "copy.npz")], 12))
        assert len(todo) == 2
        await work(make_job(tmp_path, classifier, {"ledger": database}), todo, workers=2)
        assert classifier.stats()["requests"] == 12 * (1 + len(PANEL))
    assert len(rows(tmp_path / "out")) == 24


async def test_a_budget_is_met_to_the_last_query_by_all_workers_together(database: str, tmp_path: Path) -> None:
    write_pictures(tmp_path / "p.npz", 60)
    todo = list(units([str(tmp_path / "p.npz")], 10))
    with fault_server(delay=0.002) as classifier:
        job = make_job(tmp_path, classifier, {"ledger": database, "budget": 203})
        summaries = await work(job, todo, workers=3)
        assert classifier.stats()["requests"] == 203
        unscored = [row for row in rows(tmp_path / "out").values() if row["cause"] == "budget"]
        assert sum(summary.unscored for summary in summaries) == len(unscored) >= 60 - 203 // 5
        again = await work(replace(job, ask=replace(job.ask, budget=400)), todo, workers=2)
        assert classifier.stats()["requests"] == 300, "another run goes on where the budget ended"
        assert sum(summary.unscored for summary in again) == 0
        assert all(row["label"] for row in rows(tmp_path / "out").values())


async def test_the_pace_holds_for_all_workers_with_a_ledger_and_without(database: str, tmp_path: Path) -> None:
    write_pictures(tmp_path / "p.npz", 24)
    todo = list(units([str(tmp_path / "p.npz")], 4))
    with fault_server() as classifier:
        for out, ledger, rate in (("shared", database, 100.0), ("alone", "off", 50.0)):
            job = make_job(tmp_path, classifier, {"ledger": ledger, "rate": rate}, out=str(tmp_path / out), workers=2)
            Shards(job.out).begin({})
            started = time.monotonic()
            await work(job, todo, workers=2)
            assert time.monotonic() - started > 119 / 100.0 - 0.1


async def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    write_pictures(tmp_path / "p.npz", 20)
    todo = list(units([str(tmp_path / "p.npz")], 10))
    with fault_server() as classifier:
        job = make_job(tmp_path, classifier)
        await work(job, todo[:1])
        before = rows(tmp_path / "out")
        summaries = await work(job, todo)
        assert [summary.before for summary in summaries] == [True, False]
        assert [summary.progress.sent for summary in summaries] == [0, 10 * (1 + len(PANEL))]
        assert classifier.stats()["requests"] == 20 * (1 + len(PANEL))
        assert before.items() <= rows(tmp_path / "out").items()


async def test_bad_pictures_are_rows_with_a_reason_and_not_the_end(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", 8)
    (folder / "part0" / "bad.png").write_bytes(b"not a picture")
    (folder / "part1" / "cut.png").write_bytes((folder / "part0" / "0.png").read_bytes()[:100])
    with fault_server() as classifier:
        job, todo = make_job(tmp_path, classifier), list(units([str(folder)], 100))
        [summary] = await work(job, todo)
        assert (summary.pictures, summary.unscored, summary.bad) == (10, 2, 2)
        [again] = await work(job, todo)
        assert again.before, "a picture that cannot be read is not read again"
    bad = {name: row for name, row in rows(tmp_path / "out").items() if row["cause"]}
    assert set(bad) == {"part0/bad.png", "part1/cut.png"}
    assert {row["label"] for row in bad.values()} == {None}


async def test_a_worker_that_is_stopped_waits_for_what_is_in_flight_and_writes_no_shard(
    database: str, tmp_path: Path
) -> None:
    write_pictures(tmp_path / "p.npz", 100)
    [unit] = units([str(tmp_path / "p.npz")], 100)
    with fault_server(delay=0.02) as classifier, PostgresLedger(database) as ledger:
        scorer = Scorer(make_job(tmp_path, classifier, {"ledger": database}))
        working = asyncio.create_task(scorer.work(unit))
        while (await scorer.progress()).answered < 20:
            await asyncio.sleep(0.01)
        await scorer.stop("enough")
        summary = await working
        assert summary.stopped
        asked = classifier.stats()["requests"]
        assert asked < 100 * (1 + len(PANEL))
        spent = ledger.spent(connect(scorer._job.classifier).fingerprint)
        assert summary.progress.sent == spent.queries == spent.answered == asked
        await scorer.close()
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["_looktwice.json"]


async def test_a_ledger_or_classifier_that_is_gone_is_told_of_the_unit_and_not_raised(tmp_path: Path) -> None:
    write_pictures(tmp_path / "p.npz", 3)
    todo = list(units([str(tmp_path / "p.npz")], 100))
    with fault_server() as classifier:
        job = make_job(tmp_path, classifier)
        [without] = await work(
            replace(job, ask=replace(job.ask, ledger="postgresql://test@127.0.0.1:1/postgres")), todo
        )
    assert without.error
    assert "cannot be reached" in without.error
    [unasked] = await work(replace(job, classifier="nowhere.toml"), todo)
    assert unasked.error
    assert "nowhere.toml" in unasked.error
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["_looktwice.json"]


async def test_a_dry_run_asks_nothing_and_counts_what_the_ledger_has(database: str, tmp_path: Path) -> None:
    write_pictures(tmp_path / "p.npz", 20)
    todo = list(units([str(tmp_path / "p.npz")], 10))
    with fault_server() as classifier:
        job = make_job(tmp_path, classifier, {"ledger": database})
        await work(job, todo[:1])
        before = classifier.stats()["requests"]
        for path in (tmp_path / "out").glob("verdicts-*"):
            path.unlink()
        estimates = [summary.estimate for summary in await work(replace(job, dry=True), todo)]
        assert [(e.pictures, e.hits, e.queries) for e in estimates if e] == [(10, 50, 0), (10, 0, 50)]
        assert classifier.stats()["requests"] == before


# --- what is shared


PAID, FREE = Terms(), Terms(local=True)


@pytest.mark.parametrize(
    ("terms", "ask"),
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
def test_what_workers_must_share_needs_a_database_that_all_can_reach(terms: Terms, ask: AskOptions) -> None:
    with pytest.raises(FleetError, match=r"docker run .* --ledger postgresql://"):
        shared_ledger(terms, ask)


def test_a_free_local_classifier_needs_no_database() -> None:
    assert shared_ledger(FREE, AskOptions()) is None
    assert shared_ledger(FREE, AskOptions(ledger="off", rate=5.0)) is None
    for terms in (PAID, FREE):
        assert shared_ledger(terms, AskOptions(ledger="postgresql://a@b/c", budget="+5")) == "postgresql://a@b/c"


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


# --- limits


@pytest.mark.parametrize(
    ("text", "pictures", "bad", "stops"),
    [
        (None, 5000, 5000, False),
        ("20", 21, 20, False),
        ("20", 21, 21, True),
        ("0", 3, 1, True),
        ("1%", 999, 999, False),
        ("1%", 1000, 10, False),
        ("1%", 1000, 11, True),
        ("0.1%", 5000, 6, True),
    ],
)
def test_too_many_bad_pictures_stop_a_run(text: str | None, pictures: int, bad: int, stops: bool) -> None:
    assert (MaxBad.parse(text).exceeded(Tally(pictures=pictures, bad=bad)) is not None) is stops


@pytest.mark.parametrize(
    ("terms", "workers", "expected"),
    [
        (Terms(concurrency=32), None, (8, 4)),
        (Terms(concurrency=32), 2, (2, 16)),
        (Terms(concurrency=3), None, (3, 1)),
        (Terms(concurrency=32, local=True), None, (8, 1)),
    ],
)
def test_workers_together_make_no_more_calls_than_the_classifier_allows(
    terms: Terms, workers: int | None, expected: tuple[int, int]
) -> None:
    assert crew(terms, Cluster(8), Machines(workers=workers)) == expected


def test_more_workers_than_processors_are_not_waited_for() -> None:
    with pytest.raises(FleetError, match="9 workers need as many processors, and the cluster has 8"):
        crew(Terms(), Cluster(8), Machines(workers=9))


REST = (DecisionOptions(), Machines(), AskOptions(), Output())


@pytest.mark.parametrize(
    ("pictures", "out"),
    [("photos", "photos/out"), ("photos/", "photos"), (".", "out"), ("s3://a/b?region=x", "s3://a/b/c?region=x")],
)
def test_verdicts_do_not_go_where_the_pictures_are(pictures: str, out: str) -> None:
    with pytest.raises(DataError, match="among the pictures"):
        score([pictures], None, False, Path("profile.json"), None, out, *REST)


def test_verdicts_may_go_beside_the_pictures() -> None:
    with pytest.raises(ProfileError, match="nowhere"):
        score(["photos"], None, False, Path("nowhere"), None, "photos-out", *REST)


@pytest.mark.parametrize(("take", "verify"), [(":10", False), (None, True)])
def test_what_is_for_one_machine_is_refused(take: str | None, verify: bool) -> None:
    with pytest.raises(DataError, match="is for one machine"):
        score(["photos"], take, verify, Path("nowhere"), None, "photos-out", *REST)


def test_the_estimates_of_units_add_up_but_for_the_largest_query(capsys: pytest.CaptureFixture[str]) -> None:
    small = Estimate(10, 1, 45, 5, 40, 400, 4.0, 2, 64, 48, 9_216, 70, 7, 500)
    large = Estimate(5, 0, 25, 0, 25, 250, 2.5, 0, 640, 480, 921_600, 35, 3, 300)
    unreadable = Estimate(3, 3, 0, 0, 0, 0, 0.0)
    summaries = [Summary("", estimate=each) for each in (small, None, unreadable, large)]
    _estimated(summaries, Terms(per_second=10.0), None, as_json=True)
    counts = {"pictures": 18, "unreadable": 4, "questions": 70, "hits": 5, "queries": 65, "unfamiliar": 2}
    cost = {"micros": 650, "most_micros": 800, "input_tokens": 105, "output_tokens": 10, "seconds": 6.5, "ledger": None}
    size = {"width": 640, "height": 480, "question_bytes": 921_600}
    assert json.loads(capsys.readouterr().out) == {**counts, **cost, **size}


class Stoppable(Run):
    """A run that only notes why it is stopped."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def stop(self, reason: str) -> None:
        self.reasons.append(reason)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_stops_a_fleet_gently_and_a_second_one_at_once(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looktwice.cli.console.received", [])
    before, run = signal.signal(number, signal.default_int_handler), Stoppable()  # nohup makes tests ignore hang-ups
    try:
        with _interruptible(run) as reasons:
            os.kill(os.getpid(), number)
            assert "run the same command again to resume" in reasons[0]
            assert run.reasons == reasons
            with pytest.raises(SystemExit) as left:
                os.kill(os.getpid(), number)
        assert left.value.code == 128 + number
        assert signal.getsignal(number) == signal.default_int_handler
    finally:
        signal.signal(number, before)


@pytest.mark.parametrize("text", ["some", "-1", "101%", "1.5", "%"])
def test_a_limit_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="--max-bad"):
        MaxBad.parse(text)
