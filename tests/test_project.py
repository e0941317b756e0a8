"""A project file: what it states holds at every interface, after the command line and the environment."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.errors import coded
from support.faults import LABELS, Running, fault_server
from support.workshop import call

import looktwice as lt
from looktwice.decisions.collecting import propose
from looktwice.engine.ledger.maintenance import stats
from looktwice.errors import DataError, UntrustedError
from looktwice.images.image import encode_png
from looktwice.model.options import Project, write_names

WORDS = tuple(label.upper() for label in LABELS)
RNG = np.random.default_rng(3)


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with fault_server() as running:
        yield running


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty project that is the current folder, of a user without data or variables."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for name in ("LOOKTWICE_LEDGER", "LOOKTWICE_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path / "project"


def write_labelled(folder: Path, count: int, words: tuple[str, ...]) -> None:
    """Pictures in one folder per class; the truths are drawn, since only what is asked matters here."""
    for number in range(count):
        path = folder / words[number % len(words)] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode_png(RNG.integers(0, 256, (8, 8, 3), np.uint8)))


def describe(server: Running, folder: Path, name: str, **settings: Any) -> None:
    shutil.move(server.describe(folder, **settings), folder / f"{name}.toml")


def billed(ledger: Path) -> int:
    return sum(day.queries for day in stats(ledger))


def code_of(*words: object) -> str:
    return str(json.loads(call(*words, "--json").stdout)["error"]["code"])


def test_with_a_project_file_a_command_needs_no_options(
    place: Path, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe(server, place, "cheap", price=0.001)
    write_labelled(place / "one", 20, LABELS)
    write_labelled(place / "two", 20, LABELS)
    settings = 'classifiers = ["cheap.toml"]\nledger = "answers.db"\nprofile = "mine.json"\nbudget = 120\n'
    (place / "looktwice.toml").write_text(settings)
    assert code_of("fit", "one", "two", "--views", "mirror") == "classifier-untrusted"
    assert not (place / "answers.db").exists()
    assert call("trust", "looktwice.toml", "--yes").returncode == 0
    assert call("fit", "one", "two", "--views", "mirror").returncode == 0
    assert (place / "mine.json").is_file()
    assert lt.Profile.load(place / "mine.json").pictures == 40
    below = place / "deep" / "down"
    write_labelled(below / "new", 10, ("any",))
    monkeypatch.chdir(below)
    done = call("score", "new", "--all", "-o", "out.csv")
    assert done.returncode == 0, done.stderr
    assert len(list(csv.DictReader(Path("out.csv").read_text().splitlines()))) == 10
    assert billed(place / "answers.db") == 100
    write_labelled(below / "more", 15, ("any",))
    assert call("score", "more", "--all", "-o", "more.csv").returncode == 3, "the budget of the project holds"
    with lt.Model.load() as model:
        verdicts = list(model.score("more", all=True))
    assert sum(isinstance(verdict, lt.Unscored) for verdict in verdicts) == 5
    assert billed(place / "answers.db") == 120


def test_the_command_line_goes_before_the_environment_and_that_before_the_file(
    place: Path, server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe(server, place, "cheap")
    (place / "looktwice.toml").write_text('ledger = "of-file.db"\nprofile = "of-file.json"\n')

    def ledger(*options: object) -> str:
        return str(json.loads(call("check", "cheap.toml", "--json", *options).stdout)["ledger"])

    assert ledger() == str(place / "of-file.db")
    assert Project.here().profile_path() == Path("of-file.json")
    monkeypatch.setenv("LOOKTWICE_LEDGER", str(tmp_path / "of-environment.db"))
    monkeypatch.setenv("LOOKTWICE_PROFILE", str(tmp_path / "of-environment.json"))
    assert ledger() == str(tmp_path / "of-environment.db")
    assert Project.here().profile_path() == tmp_path / "of-environment.json"
    assert "of-environment.json" in call("look", "cheap.toml").stderr
    assert "of-line.json" in call("look", "cheap.toml", "-p", "of-line.json").stderr
    assert ledger("--ledger", "of-line.db") == "of-line.db"
    with lt.Model("cheap.toml") as model:
        assert model.ledger_name() == str(tmp_path / "of-environment.db"), "also in Python"


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("moneys = 1", "money"),
        ('classifier = "cheap.toml"', "classifiers"),
        ("budget = -1", "budget"),
        ('ledger = "../elsewhere.db"', "LOOKTWICE_LEDGER"),
        ('ledger = "postgresql://me:secret@host/database"', "LOOKTWICE_LEDGER"),
        ('profile = "/etc/passwd"', "LOOKTWICE_PROFILE"),
        ("rename = 3", "rename"),
        ("classifiers = [", "looktwice.toml"),
    ],
)
def test_a_wrong_setting_is_named_before_anything_is_done(place: Path, text: str, meant: str) -> None:
    (place / "looktwice.toml").write_text(f"{text}\n")
    with pytest.raises(DataError, match=meant, check=coded("project-invalid")) as raised:
        Project.here()
    assert "secret" not in str(raised.value)
    assert code_of("fit", "labelled") == "project-invalid"


def test_a_wrong_setting_of_a_classifier_is_named_too(place: Path, server: Running) -> None:
    describe(server, place, "cheap", moneys=1)
    assert code_of("check", "cheap.toml") == "description-invalid"


def test_what_a_description_says_of_money_holds(place: Path, server: Running) -> None:
    describe(server, place, "cheap", money=0.002, price=0.001)
    asked = call("check", "cheap.toml", "--ledger", "answers.db", "--json")
    assert asked.returncode != 0
    assert billed(place / "answers.db") == 2


def test_a_table_of_classifiers_names_them(place: Path, server: Running) -> None:
    describe(server, place, "one")
    (place / "looktwice.toml").write_text('[classifiers]\ncheap = "one.toml"\n')
    assert list(Project.here().descriptions()) == [("cheap", "one.toml")]
    with pytest.raises(UntrustedError):
        lt.model.named()


def test_names_for_a_classifier_that_is_not_there_are_refused_with_a_suggestion(place: Path, server: Running) -> None:
    describe(server, place, "cheap")
    call("trust", "cheap.toml", "--yes")
    (place / "looktwice.toml").write_text('classifiers = ["cheap.toml"]\n[rename.chaep]\n"A" = "b"\n')
    call("trust", "looktwice.toml", "--yes")
    with pytest.raises(DataError, match="'cheap'", check=coded("project-invalid")):
        lt.model.named()


# Labels that differ


def test_labels_that_differ_in_form_are_proposed_and_the_others_listed() -> None:
    proposal = propose(
        ["Tabby Cat", "ＤＯＧ", "fish", "Straße", "mouse"], ["tabby_cat", "dog", "fish", "STRASSE", "bird"]
    )
    assert proposal.names == {"Tabby Cat": "tabby_cat", "ＤＯＧ": "dog", "Straße": "STRASSE"}
    assert (proposal.same, proposal.unmatched, proposal.unsaid) == (("fish",), ("mouse",), ("bird",))


def test_a_label_that_may_be_two_truths_is_not_proposed() -> None:
    assert propose(["CAT"], ["cat", "Cat"]).names == {}


def test_names_are_confirmed_once_and_hold_from_then_on(place: Path, server: Running) -> None:
    describe(server, place, "cheap")
    write_labelled(place / "labelled", 25, (*WORDS, "fox"))
    assert json.loads(call("labels", "labelled", "-c", "cheap.toml", "--json").stdout) == {"cheap": None}
    fitted = ("fit", "labelled", "-c", "cheap.toml", "--views", "mirror")
    assert code_of(*fitted, "--label-check", 0) == "labels-unmatched"
    sent = server.stats()["requests"]
    shown = call("labels", "labelled", "-c", "cheap.toml", "--write")
    assert shown.returncode == 0, shown.stderr
    assert "fox" in shown.stdout
    assert Project.here().names("cheap") == dict(zip(LABELS, WORDS, strict=True))
    assert json.loads(call("labels", "labelled", "-c", "cheap.toml", "--json").stdout)["cheap"]["names"] == {}
    assert call(*fitted).returncode == 0
    assert server.stats()["requests"] == sent, "neither costs a query"
    profile = lt.Profile.load(place / "profile.json")
    assert set(profile.vocabulary) >= set(WORDS)
    with lt.Model.load("profile.json") as model:
        assert model.look(next((place / "labelled").rglob("*.png"))).label in WORDS
    (place / "looktwice.toml").unlink()
    with lt.Model.load("profile.json") as model:
        assert model.look(next((place / "labelled").rglob("*.png"))).label in WORDS, "the profile remembers them"


def test_names_are_added_and_all_else_stays(tmp_path: Path) -> None:
    path = tmp_path / "looktwice.toml"
    path.write_text('# mine\nbudget = 5\n\n[rename.gpt]\n"a" = "b" # kept\n')
    write_names(path, {"gpt": {'x"y': "z"}, "the other": {"c": "d"}})
    assert Project.read(path).rename == {"gpt": {"a": "b", 'x"y': "z"}, "the other": {"c": "d"}}
    assert path.read_text().startswith("# mine\nbudget = 5\n\n[rename.gpt]\n")
    path.write_text('rename = { gpt = { a = "b" } }\n')
    with pytest.raises(DataError, match="by hand", check=coded("project-invalid")):
        write_names(path, {"gpt": {"c": "d"}})
    assert path.read_text() == 'rename = { gpt = { a = "b" } }\n'
