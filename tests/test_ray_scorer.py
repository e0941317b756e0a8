"""Scorers and listings for Ray Data, without Ray: several scorers in one process that share a ledger."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.errors import coded
from support.faults import Running, fault_server
from support.workshop import PANEL, answers, write_pictures, write_profile

pytest.importorskip("pyarrow", reason="no pyarrow here; pip install 'looktwice[parquet]'")
import pyarrow as pa
import pyarrow.parquet as pq

from looktwice import AskOptions, Unscored, Verdict
from looktwice.calibration.evidence import Row
from looktwice.cli.ray import SOURCE, VerdictFolder
from looktwice.errors import DataError, LedgerError
from looktwice.images.collection import Picture, find
from looktwice.images.image import encode_png
from looktwice.model import verdict_record
from looktwice.ray import Batch, Scorer, listed

QUESTIONS = 1 + len(PANEL)
OFF = AskOptions(ledger="off")
Rows = dict[str, dict[str, Any]]


def batch_of(pictures: Sequence[Picture]) -> Batch:
    contents = [encode_png(picture.image().pixels) for picture in pictures]
    return {"path": column([picture.name for picture in pictures]), "bytes": column(contents)}


def column(values: Sequence[object]) -> np.ndarray[Any, np.dtype[np.object_]]:
    filled = np.empty(len(values), object)
    filled[:] = values
    return filled


class Crew:
    """Scorers that take turns with the batches, as actors do."""

    def __init__(self, folder: Path, classifier: Running, workers: int = 1, **asking: Any) -> None:
        write_profile(folder / "profile.json", classifier.describe(folder))
        options = AskOptions(**{"ledger": "off", "concurrency": 8, "canaries": 0, **asking})
        self.scorers = [Scorer(folder / "profile.json", options=options) for _ in range(workers)]

    def score(self, pictures: Sequence[Picture], size: int) -> Rows:
        batches = iter([batch_of(pictures[place : place + size]) for place in range(0, len(pictures), size)])

        def work(scorer: Scorer) -> list[dict[str, Any]]:
            return [row for batch in batches for row in scorer(batch).to_pylist()]

        try:
            with ThreadPoolExecutor(len(self.scorers)) as threads:
                return {row["name"]: row for share in threads.map(work, self.scorers) for row in share}
        finally:
            for scorer in self.scorers:
                scorer.model.close()


# Scorers


async def test_scorers_give_the_answers_of_one_machine_and_ask_each_question_once(
    database: str, tmp_path: Path
) -> None:
    pictures = write_pictures(tmp_path / "p.npz", 60)
    with fault_server() as classifier:
        crew = Crew(tmp_path, classifier, workers=2, ledger=database)
        rows = crew.score(find([tmp_path / "p.npz"]), 7)
        asked = classifier.stats()["requests"]
        one, engine = await answers(str(classifier.describe(tmp_path)), pictures)
    assert (len(rows), asked) == (60, engine.progress.sent)
    for row in one:
        assert isinstance(row, Row)
        assert [asked["label"] for asked in rows[row.name]["asked"]] == [row.base, *row.views]


def test_the_same_picture_in_two_batches_is_asked_about_once(database: str, tmp_path: Path) -> None:
    write_pictures(tmp_path / "p.npz", 12)
    (tmp_path / "copy.npz").write_bytes((tmp_path / "p.npz").read_bytes())
    with fault_server(delay=0.02) as classifier:
        pictures = find([tmp_path / "p.npz", tmp_path / "copy.npz"])
        rows = Crew(tmp_path, classifier, workers=2, ledger=database).score(pictures, 12)
        assert classifier.stats()["requests"] == 12 * QUESTIONS
    assert len(rows) == 24


def test_a_budget_is_met_to_the_last_query_by_all_scorers_together(database: str, tmp_path: Path) -> None:
    write_pictures(tmp_path / "p.npz", 60)
    pictures = find([tmp_path / "p.npz"])
    with fault_server(delay=0.002) as classifier:
        rows = Crew(tmp_path, classifier, workers=3, ledger=database, budget=203).score(pictures, 10)
        assert classifier.stats()["requests"] == 203
        unscored = [row for row in rows.values() if row["cause"] == "budget"]
        assert len(unscored) >= 60 - 203 // QUESTIONS
        again = Crew(tmp_path, classifier, workers=2, ledger=database, budget=400).score(pictures, 10)
        assert classifier.stats()["requests"] == 300, "another run goes on where the budget ended"
    assert all(row["label"] for row in again.values())


def test_a_rate_holds_for_all_scorers_with_a_ledger(database: str, tmp_path: Path) -> None:
    write_pictures(tmp_path / "p.npz", 24)
    with fault_server() as classifier:
        crew, began = Crew(tmp_path, classifier, workers=2, ledger=database, rate=100.0), time.monotonic()
        crew.score(find([tmp_path / "p.npz"]), 4)
        assert time.monotonic() - began > (24 * QUESTIONS - 1) / 100.0 - 0.1


def test_bad_pictures_are_rows_with_a_cause(tmp_path: Path) -> None:
    good = encode_png(np.zeros((16, 16, 3), np.uint8))
    with fault_server() as classifier:
        [scorer] = Crew(tmp_path, classifier).scorers
        contents = [good, b"not a picture", good[:60], None]
        table = scorer({"path": column(list("abcd")), "bytes": column(contents)})
        scorer.model.close()
    rows = {row["name"]: row for row in table.to_pylist()}
    assert rows["a"]["label"]
    assert {name: row["cause"] for name, row in rows.items()} == dict(
        zip("abcd", [None, *["unreadable"] * 3], strict=True)
    )
    assert not any("0:" in row["message"] for row in rows.values() if row["message"])


def test_what_a_run_wrote_is_read_back_whole(tmp_path: Path) -> None:
    contents = [encode_png(np.zeros((16, 16, 3), np.uint8)), b"not a picture"]
    with fault_server() as classifier:
        [scorer] = Crew(tmp_path, classifier).scorers
        batch = {"path": column(["good", "bad"]), "bytes": column(contents)}
        scored = scorer(batch)
        scorer.model.close()
    table = scored.append_column(SOURCE, pa.array(["good 1", "bad 1"]))
    results = VerdictFolder(str(tmp_path / "out"))
    results.begin({})
    pq.write_table(table, tmp_path / "out" / "1.parquet")
    read = list(results.verdicts())
    assert json.loads(json.dumps([verdict_record(verdict) for verdict in read])) == scored.to_pylist()
    assert [type(verdict) for verdict in read] == [Verdict, Unscored]


def test_arrays_other_columns_and_no_rows_are_taken(tmp_path: Path) -> None:
    images = np.random.default_rng(0).integers(0, 256, (3, 16, 16, 3), np.uint8)
    with fault_server() as classifier:
        Crew(tmp_path, classifier)
        scorer = Scorer(tmp_path / "profile.json", image="image", name="id", keep=["split"], options=OFF)
        table = scorer({"image": images, "id": np.arange(3), "split": column(["train"] * 3)})
        none = scorer({"image": images[:0], "id": np.arange(0), "split": column([])})
        scorer.model.close()
    assert (table["name"].to_pylist(), table["split"].to_pylist()) == (["0", "1", "2"], ["train"] * 3)
    assert none.num_rows == 0
    assert none.schema == table.schema


def test_a_ledger_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    write_pictures(tmp_path / "p.npz", 3)
    with fault_server() as classifier:
        crew = Crew(tmp_path, classifier, ledger="postgresql://test@127.0.0.1:1/postgres")
        with pytest.raises(LedgerError, check=coded("ledger-unusable")):
            crew.score(find([tmp_path / "p.npz"]), 3)


# Listings


def write_folder(folder: Path, count: int) -> Path:
    for place, pixels in enumerate(np.random.default_rng(0).integers(0, 256, (count, 16, 16, 3), np.uint8)):
        (folder / f"part{place % 3}").mkdir(parents=True, exist_ok=True)
        (folder / f"part{place % 3}" / f"_{place}.png").write_bytes(encode_png(pixels))
    return folder


def test_a_folder_has_the_names_of_one_machine(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", 20)
    (folder / ".hidden.png").touch()
    (folder / "notes.txt").touch()
    other = folder / "part0" / "_0.png"
    for paths in ([folder], [other], [folder / "part1", other]):
        assert [file.name for file in listed(list(map(str, paths)))] == [picture.name for picture in find(paths)]


def test_an_address_is_listed_like_a_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "photos", 5)
    (folder / "b.tar").touch()
    names = [file.name for file in listed([folder.as_uri()])]
    assert names == [file.name for file in listed([str(folder)])]
    assert len(names) == 5
    assert listed([folder.as_uri(), str(folder)])[0].name.startswith("file://")


@pytest.mark.parametrize("address", ["{}", "file://{}"])
def test_a_picture_that_was_overwritten_has_another_source(tmp_path: Path, address: str) -> None:
    folder = write_folder(tmp_path / "photos", 6)
    place = address.format(folder)
    before = {file.name: file.source for file in listed([place])}
    (folder / "part1" / "_4.png").write_bytes(b"another picture")
    after = {file.name: file.source for file in listed([place])}
    assert {name for name in after if after[name] != before[name]} == {"part1/_4.png"}


@pytest.mark.parametrize(
    ("paths", "code"),
    [
        ([], "pictures-none"),
        (["nowhere"], "file-missing"),
        (["{}/p.npz"], "option-conflict"),
        (["file://{}/t.PARQUET"], "option-conflict"),
        (["s3://key:secret@bucket/x"], "option-invalid"),
        (["nonsense://bucket/x"], "file-unreadable"),
        (["s3://bucket/x?bogus=secret"], "file-unreadable"),
        (["hdfs://nowhere.invalid/x"], "file-unreadable"),
        (["file:///nowhere/at/all"], "file-missing"),
    ],
)
def test_what_cannot_be_listed_is_named(tmp_path: Path, paths: list[str], code: str) -> None:
    for name in ("p.npz", "t.PARQUET"):
        (tmp_path / name).touch()
    with pytest.raises(DataError, check=coded(code)) as raised:
        listed([path.format(tmp_path) for path in paths])
    assert "secret" not in str(raised.value)


def test_a_folder_without_pictures_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, check=coded("pictures-none")):
        listed([str(tmp_path)])


def test_a_file_that_is_replaced_with_an_old_time_is_another_source(tmp_path: Path) -> None:
    photo = tmp_path / "a.png"
    photo.write_bytes(b"x" * 100)
    os.utime(photo, (1e9, 1e9))
    before = listed([str(tmp_path)])[0].source
    assert listed([str(tmp_path)])[0].source == before
    photo.write_bytes(b"y" * 100)
    os.utime(photo, (1e9, 1e9))
    assert listed([str(tmp_path)])[0].source != before
