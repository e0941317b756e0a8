"""Truths in other words than the classifier's: found after a few queries at every interface, not after all are paid."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from support.errors import code_in, coded
from support.faults import Running, fault_server
from support.workshop import call

from looktwice import Model, connect
from looktwice.engine.query import Progress
from looktwice.errors import DataError
from looktwice.images.collection import labelled

FIRST = 20
PICTURES = 60
VIEWS = "mirror rotation:20*3"


@pytest.fixture
def server() -> Iterator[Running]:
    with fault_server() as running:
        yield running


@pytest.fixture
def description(server: Running, tmp_path: Path) -> Path:
    return server.describe(tmp_path)


def write(path: Path, *names: str, count: int = PICTURES) -> Path:
    """Pictures of classes with these names, sorted by class."""
    images = np.random.default_rng(0).integers(0, 256, (count, 16, 16, 3), np.uint8)
    labels = np.arange(count) * len(names) // count
    np.savez(path, images=images, labels=labels, class_names=np.array(names))
    return path


def test_a_fit_stops_after_the_first_few_pictures_and_a_rename_goes_on_from_there(
    server: Running, description: Path, tmp_path: Path
) -> None:
    pictures, ledger = write(tmp_path / "pictures.npz", "Formica", "Apis"), tmp_path / "ledger.db"
    words = (
        "fit",
        pictures,
        "-c",
        description,
        "--views",
        VIEWS,
        "--ledger",
        ledger,
        "--canaries",
        0,
        "-o",
        tmp_path / "p.json",
    )
    done = call(*words)
    assert (done.returncode, code_in(done.stderr)) == (1, "labels-unmatched")
    assert "('Apis', 'Formica')" in done.stderr
    assert "`rename`" in done.stderr
    assert "--label-check 0" in done.stderr
    assert server.stats()["billed"] == FIRST
    description.write_text(description.read_text() + '\n[rename]\nant = "Formica"\nbee = "Apis"\n')
    done = call(*words)
    assert done.returncode == 0, done.stderr
    assert server.stats()["billed"] == PICTURES * 5


def test_who_goes_on_regardless_is_told_at_the_end(server: Running, description: Path, tmp_path: Path) -> None:
    pictures = labelled(write(tmp_path / "pictures.npz", "1", "2"))
    with (
        Model(str(description), ledger=str(tmp_path / "ledger.db"), label_check=0) as model,
        pytest.raises(DataError, check=coded("labels-unmatched")),
    ):
        model.fit(pictures, views="mirror")
    assert server.stats()["billed"] == PICTURES * 2


class Counting:
    """Says how bright a picture is, and counts how often it is asked about each."""

    def __init__(self) -> None:
        self.asked = Counter[bytes]()

    def __call__(self, image: NDArray[np.uint8]) -> str:
        self.asked[image.tobytes()] += 1
        return "bright" if image.mean() > 127.5 else "dark"


@pytest.mark.parametrize(
    "learn",
    [
        lambda model, pictures: model.fit(pictures, views="mirror"),
        lambda model, pictures: model.fit(pictures),
        lambda model, pictures: model.fit(pictures, paper="gaussian", draws=2),
        lambda model, pictures: model.ask(pictures, views="mirror"),
    ],
    ids=["fixed", "fit", "paper", "ask"],
)
def test_every_way_to_learn_stops_early(learn: Callable[[Model, object], object], tmp_path: Path) -> None:
    classify = Counting()
    with Model(classify) as model, pytest.raises(DataError, check=coded("labels-unmatched")):
        learn(model, labelled(write(tmp_path / "pictures.npz", "hell", "dunkel", count=200)))
    assert 10 <= classify.asked.total() <= FIRST


def test_an_evaluation_stops_early_if_the_profile_cannot_tell(tmp_path: Path) -> None:
    classify = Counting()
    with Model(classify) as model:
        profile = model.fit(labelled(write(tmp_path / "pictures.npz", "bright", "dark")), views="mirror").profile
    asked, borrowed = classify.asked.total(), profile.model_copy(update={"pictures": 0, "vocabulary": ("teacher",)})
    with Model(classify, borrowed) as model, pytest.raises(DataError, check=coded("labels-unmatched")):
        model.evaluate(labelled(write(tmp_path / "others.npz", "hell", "dunkel")))
    assert classify.asked.total() == asked + FIRST


def test_the_first_few_pictures_of_a_free_classifier_are_asked_about_again(tmp_path: Path) -> None:
    classify, seen = Counting(), list[Progress]()
    with Model(classify, progress=seen.append) as model:
        model.fit(labelled(write(tmp_path / "pictures.npz", "bright", "dark")), views="mirror")
    assert (seen[-1].pictures, seen[-1].hits, seen[-1].sent) == (PICTURES, 0, PICTURES * 2 + FIRST)


def test_the_first_few_pictures_of_a_classifier_with_a_price_are_asked_about_once(tmp_path: Path) -> None:
    classify = Counting()
    with Model(classify, price="0.01") as model:
        model.fit(labelled(write(tmp_path / "pictures.npz", "bright", "dark")), views="mirror")
    assert set(classify.asked.values()) == {1}


def test_the_answers_of_the_first_few_pictures_are_no_canaries_of_the_same_run(
    server: Running, description: Path, tmp_path: Path
) -> None:
    pictures = labelled(write(tmp_path / "pictures.npz", "ant", "bee"))
    with Model(str(description), ledger=str(tmp_path / "ledger.db")) as model:
        model.fit(pictures, views="mirror")
    assert server.stats()["billed"] == PICTURES * 2


def test_labels_that_are_rare_among_the_truths_do_not_stop_a_run(tmp_path: Path) -> None:
    """One class in five is called as the classifier calls it, and the folder begins with the others."""
    pictures = labelled(write(tmp_path / "pictures.npz", "a", "b", "c", "d", "dark"))
    with Model(Counting()) as model:
        assert len(model.ask(pictures, views="mirror").votes) == PICTURES


def test_each_of_several_classifiers_is_checked(tmp_path: Path) -> None:
    right, wrong = Counting(), Counting()
    cheap = connect(right, name="cheap", price="0.001")
    good = connect(lambda image: wrong(image).upper(), name="good", price="0.01")
    pictures = labelled(write(tmp_path / "pictures.npz", "bright", "dark"))
    with (
        Model([cheap, good], ledger=str(tmp_path / "ledger.db")) as model,
        pytest.raises(DataError, check=coded("labels-unmatched")) as raised,
    ):
        model.fit(pictures)
    assert str(raised.value).startswith("good: ")
    assert wrong.asked.total() == FIRST
