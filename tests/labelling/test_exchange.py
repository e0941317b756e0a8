"""Verdicts to the tools in which people label, and labels back, as files; the tools themselves: make test-labelling."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import cv2
import numpy as np
import pytest
from support.verdicts import verdict
from workshop import run

from looktwice import files
from looktwice.decisions.verdict import Verdict
from looktwice.decisions.verdict_files import COLUMNS, record
from looktwice.errors import DataError
from looktwice.images.collection import labelled
from looktwice.images.decode import decode
from looktwice.labelling.exchange import label_studio, write_labels
from looktwice.service.label_interface import NONE, UNSURE, Interface, configuration

NAMES = ("a.png", "b & <c>.png", "sub/ü.png")


@pytest.fixture
def scored(tmp_path: Path) -> Path:
    """A folder with pictures and verdicts about them."""
    rng = np.random.default_rng(0)
    (tmp_path / "photos" / "sub").mkdir(parents=True)
    rows = []
    for name, label in zip(NAMES, ("cat", 'dog "x"', "cat"), strict=True):
        (tmp_path / "photos" / name).write_bytes(cv2.imencode(".png", rng.integers(0, 256, (9, 9, 3)))[1].tobytes())
        found = verdict(name, label, 0.75, "cat", None, "cow", base="cow", decision="review")
        rows.append(list(record(found).values()))
    files.write_table(tmp_path / "verdicts.csv", ".csv", COLUMNS, rows)
    return tmp_path


def annotation(said: str | list[str] | None, who: int = 1, **more: object) -> dict[str, object]:
    choices = said if isinstance(said, list) else [said]
    region = {"from_name": "label", "to_name": "image", "type": "choices", "value": {"choices": choices}}
    when = {"id": who, "updated_at": f"2030-01-0{who}T00:00:00Z"}
    return {**when, "completed_by": who, "result": [] if said is None else [region], **more}


def exported(path: Path, *tasks: list[dict[str, object]]) -> Path:
    """A full export of tasks `0.png` … that have these annotations."""
    data = [{"file": f"{place}.png", "named": ["cat", "dog"]} for place in range(len(tasks))]
    told = [{"id": 1, "data": each, "annotations": said} for each, said in zip(data, tasks, strict=True)]
    path.write_text(json.dumps(told))
    return path


# Out


def test_tasks_hold_the_picture_its_name_and_the_verdict_as_a_prediction(scored: Path) -> None:
    done = run("export", scored / "verdicts.csv", scored / "photos", "-o", scored / "tasks.json")
    assert done.returncode == 0, done.stderr
    tasks = json.loads((scored / "tasks.json").read_text())
    assert [task["data"]["file"] for task in tasks] == list(NAMES)
    for task, label in zip(tasks, ("cat", 'dog "x"', "cat"), strict=True):
        (prediction,) = task["predictions"]
        assert prediction["score"] == 0.75
        assert prediction["result"][0]["value"] == {"choices": [label]}
        assert task["data"]["named"] == list(dict.fromkeys([label, "cow", "cat"]))
        kind, _, data = task["data"]["image"].partition(",")
        assert kind == "data:image/png;base64"
        shown = decode(base64.b64decode(data), "embedded").pixels
        assert (shown == decode((scored / "photos" / task["data"]["file"]).read_bytes(), "file").pixels).all()
    config = ElementTree.parse(scored / "tasks.xml")
    assert [tag.get("value") for tag in config.iter("Choice")] == ["cat", "cow", 'dog "x"', NONE, UNSURE]


def test_with_a_prefix_tasks_link_to_the_pictures(scored: Path) -> None:
    out = scored / "tasks.json"
    done = run("export", scored / "verdicts.csv", "--prefix", "http://localhost:9000/photos/", "-o", out)
    assert done.returncode == 0, done.stderr
    addresses = [task["data"]["image"] for task in json.loads(out.read_text())]
    assert addresses == [
        f"http://localhost:9000/photos/{n}" for n in ("a.png", "b%20%26%20%3Cc%3E.png", "sub/%C3%BC.png")
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [(("verdicts.csv",), "where are the pictures"), (("verdicts.csv", "photos/sub"), "is not in")],
)
def test_an_export_without_its_pictures_is_refused(scored: Path, arguments: tuple[str, ...], told: str) -> None:
    done = run("export", *(scored / argument for argument in arguments), "-o", scored / "tasks.json")
    assert done.returncode == 1
    assert told in " ".join(done.stderr.split())
    assert not (scored / "tasks.json").exists()


def test_a_label_that_people_say_of_pictures_is_refused() -> None:
    with pytest.raises(DataError, match="rename it"):
        configuration(["cat", NONE])


# Back


def test_what_people_said_in_label_studio_becomes_labels(tmp_path: Path) -> None:
    result = exported(
        tmp_path / "result.json",
        [annotation("cat")],
        [annotation(NONE)],
        [annotation(UNSURE)],
        [annotation("cat", was_cancelled=True)],
        [annotation(None)],
        [],
        [annotation("a new, odd one", completed_by={"id": 3, "email": "x@example.com"})],
    )
    done = run("import", result, "-o", tmp_path / "labels.csv")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "labels.csv").read_text() == (
        'file,label,not\n0.png,cat,\n1.png,,cat\n1.png,,dog\n2.png,,\n6.png,"a new, odd one",\n'
    )


def test_of_several_people_most_are_right_each_has_one_say_and_ties_are_left_out(tmp_path: Path) -> None:
    changed = annotation("cat", 3) | {"completed_by": 1}
    final = annotation("dog", 3, ground_truth=True)
    result = exported(
        tmp_path / "result.json",
        [annotation("cat", 1), annotation("dog", 2), annotation("dog", 3)],
        [annotation("cat", 1), annotation("dog", 2)],
        [annotation("dog", 1), annotation("dog", 2, was_cancelled=True), changed],
        [annotation("cat", 1), annotation("cat", 2), final],
    )
    found = label_studio.read(result)
    assert {file: click.truth for file, click in found.known.items()} == {
        "0.png": "dog",
        "2.png": "cat",
        "3.png": "dog",
    }
    assert found.disputed == ["1.png"]
    done = run("import", result, "-o", tmp_path / "labels.csv")
    assert "1 picture (1.png)" in " ".join(done.stderr.split())


def test_json_min_says_the_same(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = [
        {"file": f"{n}.png", "named": ["cat", "dog"], "id": n, "annotator": 1} for n in range(5)
    ]
    for each, label in zip(told, ("cat", NONE, UNSURE, {"choices": ["dog"]}), strict=False):
        each["label"] = label
    told[4] |= {"annotator": None, "annotation_id": None, "updated_at": None}  # nobody labelled it
    (tmp_path / "min.json").write_text(json.dumps([*told, {**told[0], "annotator": 2, "label": "cat"}]))
    known = label_studio.read(tmp_path / "min.json").known
    assert [(click.says, click.labels) for click in known.values()] == [
        ("label", ("cat",)), ("not", ("cat", "dog")), ("unsure", ()), ("label", ("dog",)),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("no json", "is not a JSON or JSON_MIN export"),
        ('[{"data": {"image": "x"}, "annotations": 3}, 4]', "is not a JSON or JSON_MIN export"),
        (json.dumps([{"data": {"file": "a"}, "annotations": [annotation("a\0b")]}]), "control characters"),
        ("[]", "holds no label"),
        (json.dumps([{"data": {"file": "a"}, "annotations": [annotation(["cat", "dog"])]}]), "has one label"),
    ],
)
def test_what_is_no_such_export_is_refused_in_one_line(tmp_path: Path, text: str, told: str) -> None:
    (tmp_path / "result.json").write_text(text)
    done = run("import", tmp_path / "result.json", "-o", tmp_path / "labels.csv")
    assert done.returncode == 1
    assert told in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "labels.csv").exists()


def test_tasks_that_somebody_else_made_are_left_out_and_counted(tmp_path: Path) -> None:
    other = {"data": {"image": "x"}, "annotations": [annotation("cat")]}
    result = exported(tmp_path / "result.json", [annotation("dog")])
    result.write_text(json.dumps([*json.loads(result.read_text()), other]))
    done = run("import", result, "-o", tmp_path / "labels.csv")
    assert done.returncode == 0, done.stderr
    assert "1 annotations of tasks that `looktwice export` did not write" in " ".join(done.stderr.split())
    assert (tmp_path / "labels.csv").read_text() == "file,label,not\n0.png,dog,\n"


def test_labels_that_are_there_are_never_overwritten(tmp_path: Path) -> None:
    out = tmp_path / "labels.csv"
    out.write_text("file,label\n0.png,mine\n")
    done = run("import", exported(tmp_path / "result.json", [annotation("cat")]), "-o", out)
    assert done.returncode == 1
    assert "exists already" in done.stderr
    assert out.read_text() == "file,label\n0.png,mine\n"


def test_imported_labels_are_those_that_fit_reads(scored: Path) -> None:
    data = [task["data"] for task in (label_studio.task(d, "x") for d in doubts())]
    said = [annotation("cat"), annotation(NONE), annotation('dog "x"')]
    told = [{"data": each, "annotations": [one]} for each, one in zip(data, said, strict=True)]
    (scored / "result.json").write_text(json.dumps(told))
    write_labels(scored / "photos" / "labels.csv", label_studio.read(scored / "result.json").known)
    found = {picture.name: (picture.truth, picture.excluded) for picture in labelled(scored / "photos")}
    assert found == {NAMES[0]: ("cat", ()), NAMES[1]: (None, ("cat", "cow")), NAMES[2]: ('dog "x"', ())}


def doubts() -> list[Verdict]:
    return [verdict(name, "cat", 0.5, "cat", base="cow") for name in NAMES]


# Label Studio's own configurations


def test_a_projects_own_names_aliases_and_choices_are_used() -> None:
    config = """<View><!-- ours --><Text name="t" value="$t"/><Image name="pic" value="$photo"/>
      <Choices name="x" toName="t"><Choice value="cat"/></Choices>
      <Choices name="kind" toName="pic"><Choice value="cat" alias="c"/><Choice value="dog"/></Choices></View>"""
    interface = Interface.read(config)
    assert (interface.control, interface.image, interface.field) == ("kind", "pic", "photo")
    prediction: Any = interface.prediction("cat", 0.9, "1")
    assert prediction["result"][0]["value"] == {"choices": ["c"]}
    assert interface.prediction("bird", 0.9, "1")["result"] == []
    assert Interface.read(configuration(["cat"])).choices == {"cat": "cat", NONE: NONE, UNSURE: UNSURE}


@pytest.mark.parametrize(
    "config",
    [
        '<!DOCTYPE a [<!ENTITY b "bb"><!ENTITY c "&b;&b;">]><View>&c;</View>',
        "<View>",
        '<View><Image name="image" value="$image"/></View>',
        '<View><Image name="i" value="$i"/><Choices name="c" toName="other"/></View>',
    ],
)
def test_a_configuration_that_cannot_be_used_is_refused(config: str) -> None:
    with pytest.raises(DataError, match=r"labelling configuration|no <Choices>"):
        Interface.read(config)
