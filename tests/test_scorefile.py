"""Verdicts on disk: a file that grows, survives its end at any moment, and ends in the order of the pictures."""

import csv
import json
from pathlib import Path

from looktwice.images import MAX_PIXELS
from looktwice.look import Verdict
from looktwice.outcome import Cause, Unscored
from looktwice.pictures import Collection, Folder
from looktwice.scorefile import COLUMNS, ScoreFile

NAMES = ["a.png", "b.png", "c.png", "d.png"]
PICTURES = Collection(NAMES, Folder(Path(), MAX_PIXELS))
HEADER: dict[str, object] = {"profile": "p"}


def verdict(name: str, confidence: float = 0.5) -> Verdict:
    return Verdict(name, "cat", confidence, 0.4, 0.6, "cat", (("mirror", "cat"),), 2)


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_result_is_in_the_order_of_the_pictures_whatever_the_order_of_verdicts(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    file = ScoreFile(out, HEADER, PICTURES)
    for place, name in enumerate(["c.png", "a.png", "d.png", "b.png"]):
        file.add(verdict(name, place / 10))
    file.finish({})
    assert [(row["name"], row["confidence"]) for row in rows(out)] == [
        ("a.png", "0.1"),
        ("b.png", "0.3"),
        ("c.png", "0.0"),
        ("d.png", "0.2"),
    ]
    assert file.missing() == 0
    assert list(tmp_path.iterdir()) == [out]


def test_a_run_that_was_ended_goes_on_and_ends_in_the_same_bytes(tmp_path: Path) -> None:
    calm = ScoreFile(tmp_path / "calm.csv", HEADER, PICTURES)
    for name in NAMES:
        calm.add(verdict(name))
    calm.finish({})

    first = ScoreFile(tmp_path / "out.csv", HEADER, PICTURES)
    first.add(verdict("b.png"))
    first.close()
    second = ScoreFile(tmp_path / "out.csv", HEADER, PICTURES)
    assert [second.done(place) for place in range(4)] == [False, True, False, False]
    second.add(verdict("a.png"))
    second.add(verdict("d.png"))
    second.finish({"c.png": Unscored("c.png", Cause.BUDGET, "late")})
    assert second.missing() == 1
    missing = rows(tmp_path / "out.csv")[2]
    assert (missing["cause"], missing["message"]) == ("budget", "late")
    third = ScoreFile(tmp_path / "out.csv", HEADER, PICTURES)
    third.add(verdict("c.png"))
    third.finish({})
    assert (tmp_path / "out.csv").read_bytes() == (tmp_path / "calm.csv").read_bytes()


def test_lines_of_other_pictures_other_runs_and_a_crash_do_not_count(tmp_path: Path) -> None:
    out, part = tmp_path / "out.csv", tmp_path / "out.csv.part"
    file = ScoreFile(out, HEADER, Collection(["a.png", "gone.png"], Folder(Path(), MAX_PIXELS)))
    file.add(verdict("a.png"))
    file.add(verdict("gone.png"))
    file.close()
    with part.open("ab") as written:
        written.write(json.dumps(dict.fromkeys(COLUMNS[:3])).encode() + b"\nno line of ours\n" + b'{"name": "b.p')
    again = ScoreFile(out, HEADER, PICTURES)
    assert [again.done(place) for place in range(4)] == [True, False, False, False]
    again.add(verdict("b.png"))
    again.finish({})
    assert [row["label"] for row in rows(out)] == ["cat", "cat", "", ""]
    other = ScoreFile(out, {"profile": "another"}, PICTURES)
    assert other.missing() == 4
    other.close()
