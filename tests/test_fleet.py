"""What a fleet does, in one process: its sources, its shards, its keeper, and workers that share a ledger."""

from __future__ import annotations

import asyncio
import io
import os
import random
import tarfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from faults import Running, fault_server
from kept import LocalLine, keeping
from ledger_players import PRICE, WHO, answer, entries, entry, intend, label
from workshop import PANEL, answers, write_pictures, write_profile

from looktwice.classifiers import Terms
from looktwice.errors import DataError, FleetError, ImageError, LedgerError, ProfileError
from looktwice.fleet.courier import LeasedRate, RemoteLedger
from looktwice.fleet.driver import Cluster
from looktwice.fleet.shards import Shards, Summary
from looktwice.fleet.sources import Listed, Unit, units
from looktwice.fleet.worker import Job, Scorer
from looktwice.fleetruns import Machines, MaxBad, Tally, crew, score
from looktwice.images import decode, encode_png
from looktwice.ledger import Account, Budget, SqliteLedger, verify
from looktwice.pictures import find
from looktwice.practice import DecisionOptions
from looktwice.session import Wishes
from looktwice.votes import Answer, Row

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
    summary = Summary("unit1", 2, 1, 1, (3, 4))
    assert shards.done("unit1") is None
    shards.add(summary, [{"name": "x", "label": "cat"}, {"name": "y", "message": "bad"}])
    assert pq.read_table(tmp_path / "out").to_pylist()[1]["message"] == "bad"
    again = Shards(str(tmp_path / "out"))
    again.begin({"a": 1})
    done = again.done("unit1")
    assert done
    assert (done.pictures, done.kinds, done.before) == (2, (3, 4), True)


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


# --- the keeper


def test_a_question_in_flight_at_one_worker_is_held_for_the_others_until_it_is_silent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with keeping(str(tmp_path / "ledger.db")) as line:
        theirs, ours = RemoteLedger(line, "theirs/1"), RemoteLedger(line, "ours/1")
        granted = intend(theirs, range(3)).granted
        assert intend(ours, range(3)).held == granted
        monkeypatch.setattr("looktwice.fleet.keeper.DEAD", 0.0)
        assert intend(ours, range(3)).granted == granted
        assert ours.spent(WHO).queries == 6
        monkeypatch.undo()
        answer(ours, granted[:2])
        answer(theirs, granted)
        assert ours.spent(WHO) == Account(6, 6 * PRICE, 6, 6 * PRICE, 3, 0)
        for ledger in (ours, theirs):
            ledger.close()


def test_what_an_actor_had_in_flight_is_free_when_it_comes_back_under_a_new_name(tmp_path: Path) -> None:
    with keeping(str(tmp_path / "ledger.db")) as line:
        dead = RemoteLedger(line, "actor/1")
        granted = intend(dead, range(3)).granted
        other, again = RemoteLedger(line, "other/1"), RemoteLedger(line, "actor/2")
        assert intend(other, range(3)).granted == granted
        for ledger in (dead, other, again):
            ledger.close()


def test_a_keeper_that_was_killed_learns_from_ledger_and_workers_what_is_in_flight(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looktwice.fleet.keeper.GRACE", 2.0)
    with keeping(str(tmp_path / "ledger.db")) as line:
        one, two = RemoteLedger(line, "one/1"), RemoteLedger(line, "two/1")
        first, second = intend(one, range(4)).granted, intend(two, range(4, 8)).granted
        line.kill()
        one.record(first[0], Answer(label(first[0])), 0.01, 1)
        wanted = two.intend(WHO, entries(range(10)), PRICE, Budget(queries=9))
        time.sleep(0.1)
        line.revive()
        one.flush().result(30)
        grant = wanted.result(30)
        assert set(grant.answered) == {first[0]}, "an answer that was on its way is not lost"
        assert set(grant.held) == set(first[1:]), "what the other worker has in flight is not bought twice"
        assert grant.granted == second[:1], "and the budget is what the ledger says: 8 of 9 were spent"
        one.release(first[1:2])
        one.flush().result(30)
        assert one.spent(WHO) == Account(8, 8 * PRICE, 8, 8 * PRICE, 1, 6)
        for ledger in (one, two):
            ledger.close()
    assert verify(tmp_path / "ledger.db") == []


def test_a_keeper_that_was_replaced_behind_a_workers_back_keeps_its_answers(tmp_path: Path) -> None:
    with keeping(str(tmp_path / "ledger.db")) as line, RemoteLedger(line, "worker/1") as ledger:
        granted = intend(ledger, range(3)).granted
        line.kill()
        line.revive()
        answer(ledger, granted)
        assert len(ledger.find(granted)) == 3
        assert ledger.spent(WHO) == Account(3, 3 * PRICE, 3, 3 * PRICE, 3, 0)


def test_a_worker_that_only_waits_tells_a_new_keeper_what_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looktwice.ledger.clerk.BEAT", 0.05)
    monkeypatch.setattr("looktwice.fleet.keeper.GRACE", 2.0)
    with (
        keeping(str(tmp_path / "ledger.db")) as line,
        RemoteLedger(line, "waiting/1") as waiting,
        RemoteLedger(line, "asking/1") as asking,
    ):
        granted = intend(waiting, range(3)).granted
        line.kill()
        line.revive()
        assert intend(asking, range(3)).held == granted


def test_workers_ask_and_answer_on_while_the_keeper_is_killed_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looktwice.fleet.keeper.GRACE", 1.5)  # workers look for a new keeper every 0.2 s
    sent: list[bytes] = []
    with keeping(str(tmp_path / "ledger.db")) as line:

        def ask(worker: int) -> None:
            with RemoteLedger(line, f"worker {worker}/1") as ledger:
                todo = list(range(400))
                random.Random(worker).shuffle(todo)
                while todo:
                    part, todo = todo[:20], todo[20:]
                    grant = intend(ledger, part, Budget(queries=1000))
                    sent.extend(grant.granted)
                    answer(ledger, grant.granted)
                    todo += [number for number in part if entry(number).key in grant.held]

        with ThreadPoolExecutor(3) as pool:
            futures = [pool.submit(ask, worker) for worker in range(3)]
            for _ in range(3):
                time.sleep(0.15)
                line.kill()
                time.sleep(0.02)
                line.revive()
                time.sleep(1.5)
            for future in futures:
                future.result(60)
    with SqliteLedger(tmp_path / "ledger.db") as ledger:
        assert len(ledger.find([each.key for each in entries(range(400))])) == 400
        assert len(sent) == len(set(sent)) == 400, "nothing is sent twice"
        assert 400 <= ledger.spent(WHO).queries <= 400 + 3 * 60, "grants that nobody heard of stay counted"
    assert verify(tmp_path / "ledger.db") == []


def test_without_a_keeper_a_worker_gives_up_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("looktwice.fleet.courier.PATIENCE", 0.3)
    with keeping(str(tmp_path / "ledger.db")) as line:
        ledger = RemoteLedger(line, "worker/1")
        line.kill()
        with pytest.raises(LedgerError, match="has been away"):
            intend(ledger, range(3))
        with pytest.raises(LedgerError, match="has been away"):
            ledger.close()


def test_answers_travel_in_parcels_and_not_one_by_one(tmp_path: Path) -> None:
    with keeping(str(tmp_path / "ledger.db")) as line, RemoteLedger(line, "worker/1") as ledger:
        granted = intend(ledger, range(2000)).granted
        answer(ledger, granted)
        assert len(ledger.find(granted)) == 2000
        assert line.calls.count("carry") < 100


def test_workers_together_never_exceed_the_pace() -> None:
    with keeping(None, per_second=200.0) as line:
        moments: list[float] = []

        def send(worker: int) -> None:
            rate = LeasedRate(200.0, line)
            for _ in range(60):
                moment = rate.when(time.monotonic())
                time.sleep(max(0.0, moment - time.monotonic()))
                moments.append(moment)

        threads = [threading.Thread(target=send, args=(worker,)) for worker in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        moments.sort()
        assert line.calls.count("lease") <= 240 / 50 + 4 + 40, "a lease is for many questions"
    for window in (0.1, 0.5, 1.0):
        busiest = max(sum(start <= moment < start + window for moment in moments) for start in moments)
        assert busiest <= 200.0 * window + 50, f"{busiest} in {window} s"
    assert moments[-1] - moments[0] >= 239 / 200.0 - 0.3


# --- workers


@contextmanager
def scorers(job: Job, line: LocalLine, count: int) -> Iterator[list[Scorer]]:
    made = [Scorer(job, line, f"actor{number}") for number in range(count)]
    try:
        yield made
    finally:
        for scorer in made:
            scorer.close()


def make_job(tmp_path: Path, server: Running, **changes: Any) -> Job:
    """What scoring with this server, in this folder, means."""
    description = str(server.describe(tmp_path))
    profile = write_profile(tmp_path / "profile.json", description)
    Shards(str(tmp_path / "out")).begin({})
    settings: dict[str, Any] = {
        "profile": profile,
        "use": DecisionOptions(),
        "classifier": description,
        "folder": os.getcwd(),
        "out": str(tmp_path / "out"),
        "seed": 0,
        "canaries": 0,
        "price_micros": None,
        "ledger": str(tmp_path / "ledger.db"),
        "shared": True,
        "budget": Budget(),
        "per_second": None,
        "concurrency": 8,
    }
    return Job(**{**settings, **changes})


def work(scorers: list[Scorer], todo: list[Unit]) -> list[Summary]:
    """Each scorer takes every so manieth unit, all at the same time."""
    with ThreadPoolExecutor(len(scorers)) as pool:
        shares = [
            pool.submit(
                lambda scorer, share: [scorer.work(unit) for unit in share], scorer, todo[first :: len(scorers)]
            )
            for first, scorer in enumerate(scorers)
        ]
        return [summary for share in shares for summary in share.result(120)]


def rows(out: Path) -> dict[str, dict[str, Any]]:
    found = pq.read_table(out).to_pylist()
    assert len({row["name"] for row in found}) == len(found)
    return {row["name"]: row for row in found}


def test_workers_give_the_answers_of_one_machine_and_ask_each_question_once(tmp_path: Path) -> None:
    pictures = write_pictures(tmp_path / "p.npz", 60)
    with fault_server() as server, keeping(str(tmp_path / "ledger.db")) as line:
        job = make_job(tmp_path, server)
        with scorers(job, line, 2) as pair:
            summaries = work(pair, list(units([str(tmp_path / "p.npz")], 7)))
        asked = server.stats()["requests"]
        one, asker = asyncio.run(answers(job.classifier, pictures))
        assert (sum(summary.pictures for summary in summaries), asked) == (60, asker.progress.sent)
        progress = line.progress()
        assert (progress.pictures, progress.sent) == (60, asked)
    found = rows(tmp_path / "out")
    for row in one:
        assert isinstance(row, Row)
        assert (found[row.name]["base"], tuple(found[row.name]["votes"])) == (row.base, row.views)


def test_the_same_picture_in_two_units_is_asked_about_once(tmp_path: Path) -> None:
    write_pictures(tmp_path / "p.npz", 12)
    (tmp_path / "copy.npz").write_bytes((tmp_path / "p.npz").read_bytes())
    with fault_server(delay=0.02) as server, keeping(str(tmp_path / "ledger.db")) as line:
        with scorers(make_job(tmp_path, server), line, 2) as pair:
            todo = list(units([str(tmp_path / "p.npz"), str(tmp_path / "copy.npz")], 12))
            assert len(todo) == 2
            work(pair, todo)
        assert server.stats()["requests"] == 12 * (1 + len(PANEL))
    assert len(rows(tmp_path / "out")) == 24


def test_a_budget_is_met_to_the_last_query_by_all_workers_together(tmp_path: Path) -> None:
    write_pictures(tmp_path / "p.npz", 60)
    with fault_server(delay=0.002) as server, keeping(str(tmp_path / "ledger.db")) as line:
        with scorers(make_job(tmp_path, server, budget=Budget(queries=203)), line, 3) as crew:
            summaries = work(crew, list(units([str(tmp_path / "p.npz")], 10)))
        assert server.stats()["requests"] == 203
        unscored = [row for row in rows(tmp_path / "out").values() if row["cause"] == "budget"]
        assert sum(summary.unscored for summary in summaries) == len(unscored) >= 60 - 203 // 5
        todo = list(units([str(tmp_path / "p.npz")], 10))
        with scorers(make_job(tmp_path, server, budget=Budget(queries=400)), line, 2) as pair:
            again = work(pair, todo)
        assert server.stats()["requests"] == 300, "another run goes on where the budget ended"
        assert sum(summary.unscored for summary in again) == 0
        assert all(row["label"] for row in rows(tmp_path / "out").values())


def test_what_is_done_is_not_done_again(tmp_path: Path) -> None:
    write_pictures(tmp_path / "p.npz", 20)
    todo = list(units([str(tmp_path / "p.npz")], 10))
    with fault_server() as server, keeping(None) as line:
        job = make_job(tmp_path, server, ledger=None)
        with scorers(job, line, 1) as [scorer]:
            scorer.work(todo[0])
            before = rows(tmp_path / "out")
        with scorers(job, line, 1) as [scorer]:
            assert [scorer.work(unit).before for unit in todo] == [True, False]
        assert server.stats()["requests"] == 20 * (1 + len(PANEL))
        assert before.items() <= rows(tmp_path / "out").items()


def test_bad_pictures_are_rows_with_a_reason_and_not_the_end(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", 8)
    (folder / "part0" / "bad.png").write_bytes(b"not a picture")
    (folder / "part1" / "cut.png").write_bytes((folder / "part0" / "0.png").read_bytes()[:100])
    with (
        fault_server() as server,
        keeping(str(tmp_path / "ledger.db")) as line,
        scorers(make_job(tmp_path, server), line, 1) as [scorer],
    ):
        [summary] = [scorer.work(unit) for unit in units([str(folder)], 100)]
        assert (summary.pictures, summary.unscored, summary.bad) == (10, 2, 2)
        [again] = [scorer.work(unit) for unit in units([str(folder)], 100)]
        assert again.before, "a picture that cannot be read is not read again"
    bad = {name: row for name, row in rows(tmp_path / "out").items() if row["cause"]}
    assert set(bad) == {"part0/bad.png", "part1/cut.png"}
    assert {row["label"] for row in bad.values()} == {None}


def test_a_classifier_that_is_gone_ends_the_unit_with_its_reason_and_no_shard(tmp_path: Path) -> None:
    write_pictures(tmp_path / "p.npz", 20)
    with fault_server() as server:
        job = make_job(tmp_path, server)
    with keeping(str(tmp_path / "ledger.db")) as line, scorers(job, line, 1) as [scorer]:
        [unit] = units([str(tmp_path / "p.npz")], 100)
        line.call("stop", "enough")
        until = time.monotonic() + 20
        summary = scorer.work(unit)
        assert time.monotonic() < until
        assert summary.error or summary.stopped
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["_looktwice.json"]


def test_a_dry_run_asks_nothing_and_counts_what_the_ledger_has(tmp_path: Path) -> None:
    write_pictures(tmp_path / "p.npz", 20)
    todo = list(units([str(tmp_path / "p.npz")], 10))
    with fault_server() as server, keeping(str(tmp_path / "ledger.db")) as line:
        with scorers(make_job(tmp_path, server), line, 1) as [scorer]:
            scorer.work(todo[0])
        before = server.stats()["requests"]
        for path in (tmp_path / "out").glob("verdicts-*"):
            path.unlink()
        with scorers(make_job(tmp_path, server, dry=True), line, 1) as [scorer]:
            estimates = [scorer.work(unit).estimate for unit in todo]
        assert [(e.pictures, e.hits, e.queries) for e in estimates if e] == [(10, 50, 0), (10, 0, 50)]
        assert server.stats()["requests"] == before


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
    assert crew(terms, Cluster(8), Machines(workers=workers), Wishes()) == expected


def test_more_workers_than_processors_are_not_waited_for() -> None:
    with pytest.raises(FleetError, match="9 workers need as many processors, and the cluster has 8"):
        crew(Terms(), Cluster(8), Machines(workers=9), Wishes())


@pytest.mark.parametrize(
    ("pictures", "out"),
    [("photos", "photos/out"), ("photos/", "photos"), (".", "out"), ("s3://a/b?region=x", "s3://a/b/c?region=x")],
)
def test_verdicts_do_not_go_where_the_pictures_are(pictures: str, out: str) -> None:
    with pytest.raises(DataError, match="among the pictures"):
        score([pictures], None, Path("profile.json"), None, out, DecisionOptions(), Machines(), Wishes(), as_json=False)


def test_verdicts_may_go_beside_the_pictures() -> None:
    with pytest.raises(ProfileError, match="nowhere"):
        score(
            ["photos"],
            None,
            Path("nowhere"),
            None,
            "photos-out",
            DecisionOptions(),
            Machines(),
            Wishes(),
            as_json=False,
        )


@pytest.mark.parametrize("text", ["some", "-1", "101%", "1.5", "%"])
def test_a_limit_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(DataError, match="--max-bad"):
        MaxBad.parse(text)
