"""Verdicts on disk: a file that grows, survives its end at any moment, and ends in the order of the pictures."""

import csv
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from looktwice.asking.outcome import Cause, Unscored
from looktwice.pictures.collection import Picture, find
from looktwice.pictures.image import encode_png
from looktwice.verdicts.files import PART, ScoreFile
from looktwice.verdicts.look import Verdict

NAMES = ["a.png", "b.png", "c.png", "d.png"]
HEADER: dict[str, object] = {"profile": "p"}


def paint(path: Path, grey: int) -> None:
    path.write_bytes(encode_png(np.full((4, 4, 3), grey, np.uint8)))


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
    digest = picture.image().digest
    return Verdict(picture.name, "cat", confidence, 0.4, 0.6, "cat", (("mirror", "cat"),), 2, digest=digest)


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


def test_lines_of_other_pictures_other_runs_and_a_crash_do_not_count(
    photos: Sequence[Picture], dispatcher: Path
) -> None:
    out, part = dispatcher / "out.csv", dispatcher / "out.csv.part"
    file = ScoreFile(out, HEADER, [photos[0], replace(photos[1], name="gone.png")])
    file.add(verdict(photos[0]))
    file.add(replace(verdict(photos[1]), name="gone.png"))
    file.close()
    with part.open("ab") as written:
        written.write(json.dumps(dict.fromkeys(PART[:3])).encode() + b"\nno line of ours\n" + b'{"name": "b.p')
    again = ScoreFile(out, HEADER, photos)
    assert [again.done(place) for place in range(4)] == [True, False, False, False]
    again.add(verdict(photos[1]))
    again.finish({})
    assert [row["label"] for row in rows(out)] == ["cat", "cat", "", ""]
    other = ScoreFile(out, {"profile": "another"}, photos)
    assert other.missing() == 4
    other.close()


def test_a_verdict_is_of_a_picture_as_it_was(photos: Sequence[Picture], dispatcher: Path) -> None:
    """The file tells if it has been untouched since before the run, and the pixels tell where it cannot."""
    folder, out = dispatcher.parent / "photos", dispatcher / "out.csv"
    for name in NAMES:
        os.utime(folder / name, (1e9, 1e9))
    os.utime(folder / "d.png")  # too fresh for its stamp to be trusted
    first = ScoreFile(out, HEADER, photos)
    for picture in photos:
        first.add(verdict(picture))
    first.close()
    paint(folder / "a.png", 200)
    os.utime(folder / "b.png")
    paint(folder / "c.png", 201)
    os.utime(folder / "c.png", (1e9, 1e9))
    stamp = (folder / "d.png").stat().st_mtime_ns
    paint(folder / "d.png", 202)
    os.utime(folder / "d.png", ns=(stamp, stamp))
    second = ScoreFile(out, HEADER, photos)
    assert [second.done(place) for place in range(4)] == [False, True, True, False]
    assert second.changed == {0, 3}
    second.add(verdict(photos[0]))
    second.close()
    third = ScoreFile(out, HEADER, photos, verify=True)
    assert third.changed == {2, 3}
    (folder / "b.png").write_bytes(b"no picture any more")
    third.close()
    fourth = ScoreFile(out, HEADER, photos)
    assert fourth.changed == {1, 3}
    fourth.close()
