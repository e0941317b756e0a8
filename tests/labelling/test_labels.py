"""The labels file: every click on disk before it is acknowledged, none lost, none twice, and readable at any moment."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError
from support.errors import code_in, coded
from support.serving import started
from support.workshop import run

from looktwice.errors import DataError
from looktwice.images.collection import labelled
from looktwice.images.image import encode_png
from looktwice.labelling.labels import Click, Labels


def photos(folder: Path, count: int) -> list[str]:
    """A folder of different pictures, without truths."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    names = [f"{number:03}.png" for number in range(count)]
    for name in names:
        (folder / name).write_bytes(encode_png(rng.integers(0, 256, (16, 16, 3), np.uint8)))
    return names


def click(identity: str, file: str, says: str, *labels: str, window: str = "w") -> Click:
    return Click.model_validate({"id": identity, "window": window, "file": file, "says": says, "labels": labels})


def test_what_people_say_is_read_as_truths_and_as_what_the_truth_is_not(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    names = photos(folder, 6)
    labels = Labels(folder / "labels.csv")
    labels.add(click("1", names[0], "label", "cat, tabby"))
    labels.add(click("2", names[1], "not", "dog", "cat"))
    labels.add(click("3", names[2], "unsure"))
    labels.add(click("4", names[3], "skip"))
    collection = labelled(folder)
    assert [(p.name, p.truth, p.excluded) for p in collection] == [
        (names[0], "cat, tabby", ()),
        (names[1], None, ("dog", "cat")),
    ]
    labels.close()


@pytest.mark.parametrize("label", ["blue ", " blue", "  'tis blue, ", "blue"])
def test_a_label_is_saved_as_the_classifier_says_it(tmp_path: Path, label: str) -> None:
    names = photos(tmp_path / "photos", 2)
    for _ in range(2):  # the second time it is read from the table
        labels = Labels(tmp_path / "photos" / "labels.csv")
        labels.add(click("1", names[0], "label", label))
        labels.add(click("2", names[1], "not", label))
        labels.close()
        assert [(p.truth, p.excluded) for p in labelled(tmp_path / "photos")] == [(label, ()), (None, (label,))]
    with pytest.raises(ValidationError):
        click("3", names[0], "label", "  ")


def test_a_click_that_is_sent_twice_counts_once_and_so_does_taking_it_back(tmp_path: Path) -> None:
    out = tmp_path / "labels.csv"
    labels = Labels(out)
    for _ in range(2):
        labels.add(click("1", "a.png", "label", "cat"))
    labels.add(click("2", "b.png", "label", "dog"))
    assert labels.undo("u", "w") == "b.png"
    assert labels.undo("u", "w") == "b.png"
    assert list(labels.known()) == ["a.png"]
    assert labels.undo("v", "other window") is None
    assert labels.undo("v", "w") == "a.png"
    assert out.read_text() == "file,label,not\n"
    labels.close()


def test_a_later_word_about_a_picture_holds_and_taking_it_back_brings_the_earlier_one(tmp_path: Path) -> None:
    labels = Labels(tmp_path / "labels.csv")
    labels.add(click("1", "a.png", "label", "cat", window="ann"))
    labels.add(click("2", "a.png", "label", "dog", window="bob"))
    assert labels.known()["a.png"].labels == ("dog",)
    labels.undo("u", "bob")
    assert labels.known()["a.png"].labels == ("cat",)
    labels.close()


def test_what_is_known_can_be_read_while_clicks_are_saved(tmp_path: Path) -> None:
    labels = Labels(tmp_path / "labels.csv")
    labels.add(click("0", "0.png", "label", "cat"))
    interval, saved = sys.getswitchinterval(), threading.Event()
    sys.setswitchinterval(1e-6)  # threads take turns in the middle of everything

    def save() -> None:
        for number in range(1, 21):
            labels.add(click(str(number), f"{number}.png", "label", "cat", window=f"window-{number}"))
        saved.set()

    saving = threading.Thread(target=save)
    try:
        saving.start()
        while not saved.is_set():
            assert labels.known()["0.png"].labels == ("cat",)
            assert labels.last("w") is not None
    finally:
        saving.join()
        sys.setswitchinterval(interval)
    assert len(labels.known()) == 21
    labels.close()


def test_another_process_is_told_who_has_the_file(tmp_path: Path) -> None:
    labels = Labels(tmp_path / "labels.csv")
    with pytest.raises(DataError, check=coded("file-locked")):
        Labels(tmp_path / "labels.csv")
    labels.close()
    Labels(tmp_path / "labels.csv").close()


def test_labels_that_are_there_already_are_taken_over(tmp_path: Path) -> None:
    out = tmp_path / "labels.csv"
    out.write_text("file,label\na.png,cat\nb.png,dog\n")
    labels = Labels(out)
    labels.add(click("1", "c.png", "label", "cat"))
    assert out.read_text() == "file,label,not\na.png,cat,\nb.png,dog,\nc.png,cat,\n"
    labels.close()


def test_a_table_with_columns_that_would_be_lost_stays_as_it_is(tmp_path: Path) -> None:
    out = tmp_path / "labels.csv"
    text = "filename,label,probability,source\na.png,cat,0.2,ann\n"
    out.write_text(text)
    for _ in range(2):
        with pytest.raises(DataError, check=coded("file-exists")):
            Labels(out)
    assert out.read_text() == text
    out.write_text("filename,label\na.png,cat\n")
    Labels(out).close()
    assert out.read_text() == "file,label,not\na.png,cat,\n"


def test_a_click_that_cannot_be_written_is_refused_and_saved_when_it_is_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "labels.csv"
    labels = Labels(out)
    labels.add(click("1", "a.png", "label", "cat"))
    with monkeypatch.context() as full:
        full.setattr("looktwice.files.atomic", lambda _: nullcontext(tmp_path / "nowhere" / "part"))
        with pytest.raises(OSError, match="nowhere"):
            labels.add(click("2", "b.png", "label", "dog"))
        with pytest.raises(OSError, match="nowhere"):
            labels.undo("u", "w")
    assert list(labels.known()) == ["a.png"]
    labels.add(click("2", "b.png", "label", "dog"))
    assert out.read_text() == "file,label,not\na.png,cat,\nb.png,dog,\n"
    labels.close()


def test_a_table_that_was_edited_meanwhile_is_not_overwritten_and_is_read_the_next_time(tmp_path: Path) -> None:
    out = tmp_path / "labels.csv"
    labels = Labels(out)
    labels.add(click("1", "a.png", "label", "cat"))
    edited = "file,label,not\na.png,dog,\n"
    out.write_text(edited)
    with pytest.raises(DataError, check=coded("file-exists")):
        labels.add(click("2", "b.png", "label", "cat"))
    assert out.read_text() == edited
    labels.close()
    again = Labels(out)
    assert again.known()["a.png"].labels == ("dog",)
    again.close()


def test_another_process_takes_nothing_back(tmp_path: Path) -> None:
    labels = Labels(tmp_path / "labels.csv")
    labels.add(click("1", "a.png", "label", "cat"))
    labels.close()
    again = Labels(tmp_path / "labels.csv")
    assert again.undo("u", "w") is None
    again.add(click("1", "a.png", "label", "cat"))  # which the page sends again after a crash
    assert list(again.known()) == ["a.png"]
    again.close()


WRITER = """
import sys
from pathlib import Path
from looktwice.labelling.labels import Click, Labels

labels = Labels(Path(sys.argv[1]))
for number in range(1000):
    labels.add(Click(id=f"c{number}", window="w", file=f"{number}.png", says="label", labels=("cat",)))
    print(number, flush=True)
"""


@pytest.mark.parametrize("acknowledged", [1, 20])
def test_a_process_that_is_killed_has_kept_every_click_it_acknowledged(tmp_path: Path, acknowledged: int) -> None:
    out = tmp_path / "labels.csv"
    process = subprocess.Popen([sys.executable, "-c", WRITER, str(out)], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    said = [process.stdout.readline() for _ in range(acknowledged)]
    process.send_signal(signal.SIGKILL)
    said += process.stdout.readlines()
    process.wait()
    process.stdout.close()
    labels = Labels(out)
    known = len(labels.known())
    labels.close()
    assert len(said) <= known <= len(said) + 1  # the last one may be kept and not yet acknowledged
    assert len(out.read_text().splitlines()) == known + 1


@pytest.mark.parametrize(
    ("says", "labels"), [("label", ()), ("label", ("a", "b")), ("not", ()), ("skip", ("a",)), ("label", ("a\x1b",))]
)
def test_a_click_that_means_nothing_is_refused(says: str, labels: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError):
        click("1", "a.png", says, *labels)


@pytest.mark.parametrize(
    "row", ["a.png,cat,dog", "a.png,cat,\na.png,,dog", "a.png,,\na.png,cat,", "a.png,cat,\na.png,cat,"]
)
def test_a_table_that_contradicts_itself_is_refused(tmp_path: Path, row: str) -> None:
    folder = tmp_path / "photos"
    photos(folder, 1)
    (folder / "labels.csv").write_text(f"file,label,not\n{row}\n".replace("a.png", "000.png"))
    with pytest.raises(DataError, check=coded("pictures-duplicate")):
        labelled(folder)


def test_a_table_that_tells_no_truth_says_what_to_do(tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    photos(folder, 2)
    (folder / "labels.csv").write_text("file,label,not\n000.png,,\n")
    with pytest.raises(DataError, check=coded("labels-missing")):
        labelled(folder)


def test_a_classifier_that_is_not_asked_needs_no_key(tmp_path: Path) -> None:
    photos(tmp_path / "photos", 3)
    told = {"connector": "openai", "model": "gpt-x", "url": "http://127.0.0.1:9/v1", "key": "NO_SUCH_KEY"}
    lines = [f'{name} = "{value}"' for name, value in told.items()]
    (tmp_path / "api.toml").write_text("\n".join([*lines, 'labels = ["cat", "dog"]']))
    words = ("label", tmp_path / "photos", "-c", tmp_path / "api.toml", "--port", 0)
    refused = run(*words)
    assert (refused.returncode, code_in(refused.stderr)) == (1, "credentials-missing")
    assert "NO_SUCH_KEY" in refused.stderr
    with started(*words, "--no-asking") as service:
        assert service.get("/").status == 200
