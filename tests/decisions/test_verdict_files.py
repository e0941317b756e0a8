"""Verdicts on disk: a file that grows, survives its end at any moment, and ends in the order of the pictures."""

import csv
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.verdicts import verdict as made

from looktwice.decisions.verdict import Verdict
from looktwice.decisions.verdict_files import COLUMNS, ScoreFile
from looktwice.engine.query import Cause, Unscored
from looktwice.images.collection import Picture, find
from looktwice.images.image import encode_png

NAMES = ["a.png", "b.png", "c.png", "d.png"]
HEADER: dict[str, object] = {"profile": "p"}


def paint(path: Path, seed: int) -> None:
    """Noise, which takes as many bytes whatever the seed."""
    path.write_bytes(encode_png(np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)))


@pytest.fixture
def photos(tmp_path: Path) -> Sequence[Picture]:
    (tmp_path / "photos").mkdir()
    for place, name in enumerate(NAMES):
        paint(tmp_path / "photos" / name, 50 * place)
    return find([tmp_path / "photos"])


@pytest.fixture
def dispatcher(tmp_path: Path) -> Path:
    (tmp_path / "dispatcher").mkdir()
    return tmp_path / "dispatcher"


def verdict(picture: Picture, confidence: float = 0.5) -> Verdict:
    return made(picture.name, "cat", confidence, "cat", digest=picture.image().digest)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_result_is_in_the_order_of_the_pictures_whatever_the_order_of_verdicts(
    photos: Sequence[Picture], dispatcher: Path
) -> None:
    out = dispatcher / "out.csv"
    file = ScoreFile(out, HEADER, photos)
    for place, picture in enumerate([2, 0, 3, 1]):
        file.add(verdict(photos[picture], place / 10))
    file.finish({})
    assert [(row["name"], row["confidence"]) for row in rows(out)] == [
        ("a.png", "0.1"),
        ("b.png", "0.3"),
        ("c.png", "0.0"),
        ("d.png", "0.2"),
    ]
    assert file.missing() == 0
    assert list(dispatcher.iterdir()) == [out]


def test_a_run_that_was_ended_goes_on_and_ends_in_the_same_bytes(photos: Sequence[Picture], dispatcher: Path) -> None:
    calm = ScoreFile(dispatcher / "calm.csv", HEADER, photos)
    for picture in photos:
        calm.add(verdict(picture))
    calm.finish({})

    first = ScoreFile(dispatcher / "out.csv", HEADER, photos)
    first.add(verdict(photos[1]))
    first.close()
    second = ScoreFile(dispatcher / "out.csv", HEADER, photos)
    assert [second.done(place) for place in range(4)] == [False, True, False, False]
    assert second.left_behind() == {"a.png"}, "those behind the last verdict were not reached"
    second.add(verdict(photos[0]))
    second.add(verdict(photos[3]))
    second.finish({"c.png": Unscored("c.png", Cause.BUDGET, "late")})
    assert second.missing() == 1
    missing = rows(dispatcher / "out.csv")[2]
    assert (missing["cause"], missing["message"]) == ("budget", "late")
    third = ScoreFile(dispatcher / "out.csv", HEADER, photos)
    third.add(verdict(photos[2]))
    third.finish({})
    assert (dispatcher / "out.csv").read_bytes() == (dispatcher / "calm.csv").read_bytes()


def test_a_verdict_that_lacks_budget_is_kept_until_a_later_run_replaces_it(
    photos: Sequence[Picture], dispatcher: Path
) -> None:
    out = dispatcher / "out.csv"
    first = ScoreFile(out, HEADER, photos)
    for place, picture in enumerate(photos):
        first.add(verdict(picture).model_copy(update={"stopped": "budget" if place == 1 else "sure"}))
    first.finish({})
    assert (first.missing(), rows(out)[1]["stopped"]) == (1, "budget")
    second = ScoreFile(out, HEADER, photos)
    assert [second.done(place) for place in range(4)] == [True, False, True, True]
    assert second.left_behind() == {"b.png"}
    assert [known.name for known in second.verdicts()] == ["a.png", "c.png", "d.png"]
    second.add(verdict(photos[1], 0.9).model_copy(update={"stopped": "all-asked"}))
    second.finish({})
    assert [(row["name"], row["stopped"]) for row in rows(out)] == list(
        zip(NAMES, ["sure", "all-asked", "sure", "sure"], strict=True)
    )
    assert list(dispatcher.iterdir()) == [out]


def test_lines_of_other_pictures_other_runs_and_a_crash_do_not_count(
    photos: Sequence[Picture], dispatcher: Path
) -> None:
    out, part = dispatcher / "out.csv", dispatcher / "out.csv.part"
    file = ScoreFile(out, HEADER, [photos[0], replace(photos[1], name="gone.png")])
    file.add(verdict(photos[0]))
    file.add(verdict(photos[1]).model_copy(update={"name": "gone.png"}))
    file.close()
    with part.open("ab") as written:
        written.write(json.dumps(dict.fromkeys(list(COLUMNS)[:3])).encode() + b"\nno line of ours\n" + b'{"name": "b.p')
    again = ScoreFile(out, HEADER, photos)
    assert [again.done(place) for place in range(4)] == [True, False, False, False]
    again.add(verdict(photos[1]))
    again.finish({})
    assert [row["label"] for row in rows(out)] == ["cat", "cat", "", ""]
    other = ScoreFile(out, {"profile": "another"}, photos)
    assert other.missing() == 4
    other.close()


def replace_file(path: Path, seed: int) -> None:
    """Other pixels of the same size in a file that seems as old as the one before."""
    before = path.stat()
    paint(path, seed)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (path.stat().st_mtime_ns, path.stat().st_size) == (before.st_mtime_ns, before.st_size)


def scored(out: Path, photos: Sequence[Picture]) -> ScoreFile:
    """A run that gives verdicts about all pictures which have none, and is then ended."""
    file = ScoreFile(out, HEADER, photos)
    todo = [picture for place, picture in enumerate(photos) if not file.done(place)]
    for picture in file.watched(todo):
        file.add(verdict(picture))
    file.close()
    return file


def test_a_verdict_is_of_a_picture_as_it_was(
    photos: Sequence[Picture], dispatcher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file tells that it is untouched since it was read, and the pixels tell where it cannot."""
    monkeypatch.setattr("looktwice.decisions.verdict_files.SETTLED", -1e9)
    folder, out = dispatcher.parent / "photos", dispatcher / "out.csv"
    scored(out, photos)
    paint(folder / "a.png", 200)
    os.utime(folder / "b.png")
    replace_file(folder / "c.png", 101)
    assert scored(out, photos).changed == {0, 2}
    (folder / "b.png").write_bytes(b"no picture any more")
    broken = ScoreFile(out, HEADER, photos)
    assert (broken.missing(), broken.changed) == (1, {1})
    broken.close()


def test_an_untouched_file_is_not_read_again(
    photos: Sequence[Picture], dispatcher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looktwice.decisions.verdict_files.SETTLED", -1e9)
    scored(dispatcher / "out.csv", photos)
    monkeypatch.setattr(Picture, "image", lambda *_: pytest.fail("read again"))
    assert scored(dispatcher / "out.csv", photos).missing() == 0


def test_a_file_that_is_replaced_before_its_verdict_is_there_is_asked_about_again(
    photos: Sequence[Picture], dispatcher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looktwice.decisions.verdict_files.SETTLED", -1e9)
    file = ScoreFile(dispatcher / "out.csv", HEADER, photos)
    (picture,) = file.watched(photos[:1])
    seen = verdict(picture)
    replace_file(dispatcher.parent / "photos" / "a.png", 201)
    file.add(seen)
    file.close()
    again = ScoreFile(dispatcher / "out.csv", HEADER, photos)
    assert (again.done(0), again.changed) == (False, {0})
    again.close()


def test_a_file_that_has_just_been_written_is_compared_by_its_pixels(
    photos: Sequence[Picture], dispatcher: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scored(dispatcher / "out.csv", photos)
    status = os.stat
    changed = dispatcher.parent / "photos" / "a.png"
    before = status(changed)
    replace_file(changed, 202)  # within one tick of a coarse clock nothing tells it from the one before
    monkeypatch.setattr(os, "stat", lambda path, **more: before if path == changed else status(path, **more))
    assert scored(dispatcher / "out.csv", photos).changed == {0}
