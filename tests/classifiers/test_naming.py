"""What a classifier's words mean: names can change, and no answer is asked for again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from aiohttp import web
from conformance.chat_replica import openai_reply
from conformance.replica import DEMO, Replica, model, pictures
from support.engines import engine_on
from support.errors import code_in, coded
from support.faults import LABELS, Running, fault_server
from support.workshop import run

from looktwice import Model
from looktwice.calibration.evidence import Row
from looktwice.classifiers.base import NO_LABEL, AnyClassifier, Names, as_word, names_of, position_word
from looktwice.classifiers.chat.vendors import Completions
from looktwice.classifiers.registry import connect, read_labels
from looktwice.decisions.profile import Profile
from looktwice.errors import PermanentError, ProfileError
from looktwice.images.collection import find
from looktwice.model.connection import connect as named
from looktwice.views import Panel


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with fault_server() as running:
        yield running


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    """Forty pictures, with truths that are the server's words."""
    dice = np.random.default_rng(0)
    path = tmp_path / "pictures.npz"
    images, truths = dice.integers(0, 256, (40, 16, 16, 3), np.uint8), dice.integers(0, 5, 40)
    np.savez(path, images=images, labels=truths, class_names=np.array(LABELS))
    return path


@pytest.mark.parametrize(
    ("names", "word", "label"),
    [
        (Names(), "cat", "cat"),
        (Names(), position_word(3), "3"),
        (Names(), as_word("#3"), "#3"),
        (Names(), as_word("##3"), "##3"),
        (Names(), NO_LABEL, NO_LABEL),
        (Names(empty="∅ nothing"), NO_LABEL, "∅ nothing"),
        (Names(("1", "0")), position_word(1), "0"),
        (Names(("1", "0")), "1", "1"),
        (Names(rename={"2": "cat"}), position_word(2), "cat"),
        (Names(rename={"#2": "cat"}), as_word("#2"), "cat"),
        (Names(("Katze", "Hund"), {"Katze": "cat"}), position_word(0), "cat"),
        (Names(("Katze", "Hund"), {"Katze": "cat"}), position_word(1), "Hund"),
        (Names(rename={"cat": "dog", "dog": "cat"}), "cat", "dog"),
    ],
)
def test_a_word_means_one_label(names: Names, word: str, label: str) -> None:
    assert names.label(word) == label


def test_words_that_get_one_name_are_one_label() -> None:
    assert Names(("wolf", "husky", "cat"), {"husky": "wolf"}).labels == ("wolf", "cat")
    assert Names(("crane", "cat", "crane")).labels == ("crane", "cat", "crane")
    assert Names(rename={"a": "b"}).labels is None


def test_a_position_that_no_label_stands_at_is_told() -> None:
    with pytest.raises(PermanentError, check=coded("reply-malformed")):
        Names(("cat", "dog")).label(position_word(7))


def test_other_renames_ask_nothing_again_and_the_ledger_has_the_words_of_the_server(
    server: Running, collection: Path, tmp_path: Path
) -> None:
    ledger, profile, out = tmp_path / "ledger.db", tmp_path / "profile.json", tmp_path / "answers.csv"
    fit = ("fit", collection, "--views", "mirror zoom:1.2", "--calibrator", "probit", "--ledger", ledger, "-o", profile)
    plain = server.describe(tmp_path, price="0.0015")
    assert run(*fit, "-c", plain).returncode == 0
    asked = server.stats()["requests"]
    before = Profile.load(profile)
    assert (before.renames, set(before.vocabulary)) == ({}, set(LABELS))

    renamed = server.describe(tmp_path, price="0.0015", rename={"ant": "bee", "eel": "fish"}, empty="∅ nothing")
    stale = run("look", DEMO / "pictures.npz", "-p", profile, "--ledger", ledger)
    assert (stale.returncode, code_in(stale.stderr)) == (1, "profile-mismatch")

    done = run(*fit, "-c", renamed)
    assert done.returncode == 0, done.stderr
    assert server.stats()["requests"] == asked == 120
    after = Profile.load(profile)
    assert after.fingerprint == before.fingerprint
    assert after.renames == {"ant": "bee", "eel": "fish", "": "∅ nothing"}
    assert "fish" in after.vocabulary

    assert run("ledger", "export", out, "--ledger", ledger).returncode == 0
    assert "eel" in out.read_text()
    assert "fish" not in out.read_text()


def test_check_and_look_show_the_labels_and_not_the_words(server: Running, collection: Path, tmp_path: Path) -> None:
    described = server.describe(tmp_path, rename={word: f"the {word}" for word in LABELS})
    done = run("check", described, "--ledger", "off", "--json")
    assert all(label.startswith("the ") for label in json.loads(done.stdout)["labels"])
    heard: list[str | None] = []
    with np.load(collection) as file:
        images = file["images"][:3]
    with Model(str(described), ledger="off", on_answer=lambda answer: heard.append(answer.label)) as asked:
        votes = asked.ask(images, views="mirror").votes
    assert len(heard) == 6
    assert all(label and label.startswith("the ") for label in (*heard, *votes.vocabulary))


async def test_the_names_of_an_onnx_models_outputs_can_change(tmp_path: Path) -> None:
    folder = shutil.copytree(DEMO, tmp_path / "demo")
    shown = find([folder / "pictures.npz"])[:4]
    told = (folder / "fashion.toml").read_text()
    german = told.replace("Bag", "Tasche").replace("Trouser", "Hose").replace("Dress", "Kleid")
    (folder / "german.toml").write_text(german)
    labels = []
    for name in ("fashion.toml", "german.toml"):
        async with engine_on(connect(folder / name), tmp_path / "ledger.db") as engine:
            rows = [row async for row in engine.ask(shown, Panel.parse("mirror"))]
            assert engine.progress.sent == (8 if name == "fashion.toml" else 0)
        labels.append([row.base for row in rows if isinstance(row, Row)])
    swap: dict[str | None, str] = {"Bag": "Tasche", "Trouser": "Hose", "Dress": "Kleid"}
    assert labels[1] == [swap.get(label, label) for label in labels[0]]


async def test_a_chat_model_gets_more_synonyms_for_nothing() -> None:
    said = openai_reply("A handbag.")
    routes = web.RouteTableDef()

    @routes.post("/v1/chat/completions")
    async def answer(request: web.Request) -> web.Response:
        return web.json_response(said)

    async with Replica().running(routes) as replica:

        def chatting(**changes: object) -> AnyClassifier:
            told = {"url": f"{replica.url}/v1", "model": "m", "labels": ["Bag", "Shirt"]}
            return Completions.connect("", {**told, **changes})

        one, two = chatting(), chatting(synonyms={"Bag": ["a handbag"]})
        (heard,) = await one.label([one.prepare(pictures()[0])])
        await one.close()
    assert heard.label == "A handbag."
    assert names_of(one).label(heard.label) == NO_LABEL
    assert names_of(two).label(heard.label) == "Bag"
    assert one.fingerprint == two.fingerprint


def test_a_profile_with_other_names_is_refused_and_says_which() -> None:
    with Model(str(DEMO / "fashion.toml")) as fitted:
        with np.load(DEMO / "pictures.npz") as file:
            images, truths = file["images"][:60], [model().labels[code] for code in file["labels"][:60]]
        profile = fitted.fit(images, truths, views="mirror", calibrator="probit").profile
    assert profile.renames["#0"] == model().labels[0]
    profile.check({"fashion": named(DEMO / "fashion.toml")})
    renamed = named(DEMO / "fashion.toml")
    renamed.names.renames = {**profile.renames, "#0": "top"}  # type: ignore[misc]
    with pytest.raises(ProfileError, check=coded("profile-mismatch")):
        profile.check({"fashion": renamed})


def test_labels_are_looked_for_beside_the_description(tmp_path: Path) -> None:
    models, here = tmp_path / "models", tmp_path / "here"
    models.mkdir()
    here.mkdir()
    shutil.copy(DEMO / "fashion.onnx", models)
    told = (DEMO / "fashion.toml").read_text()
    start = told.index("labels = ")
    listed = told[start : told.index("]", start) + 1]
    told = told.replace(listed, 'labels = "labels.txt"').replace('"fashion.onnx"', '"../models/fashion.onnx"')
    (here / "mine.toml").write_text(told)
    with pytest.raises(PermanentError, check=coded("description-missing")):
        connect(here / "mine.toml")
    (here / "labels.txt").write_text("\n".join(f"description-{code}" for code in range(10)))
    assert (connect(here / "mine.toml").labels or ("",))[0] == "description-0"


def test_a_label_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "labels.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(PermanentError, check=coded("description-invalid")):
        read_labels(tmp_path / "labels.txt")
