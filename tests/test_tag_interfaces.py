"""Tags at every interface say the same, and ten categories read from one stored reply are one bill."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from support.serving import started_here
from support.tags import TAGS, TagApi, pictures, write_pictures
from support.workshop import call

import looktwice as lt
from looktwice.decisions.verdict import TagVerdict
from looktwice.ray import Scorer
from looktwice.sklearn import LookTwice

COUNT, LABELLED, ADDED = 6, 120, 40
SAME = ("kind", "tags", "yes", "no", "review", "decision", "basis", "sentence", "queries")
"""What depends on the picture and the profile alone."""


class Place(NamedTuple):
    """A folder with a fitted profile, and the API that it asks."""

    folder: Path
    api: TagApi
    said: str
    """What `fit` said."""

    @property
    def ledger(self) -> str:
        return str(self.folder / "ledger.db")

    def words(self) -> list[object]:
        return ["-p", self.folder / "profile.json", "--ledger", self.folder / "ledger.db", "--max-error", 0.1]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder, api = tmp_path_factory.mktemp("tags"), TagApi()
    write_pictures(folder / "fit", LABELLED)
    write_pictures(folder / "new", COUNT, seed=1, truths=False)
    with api.running() as url:
        (folder / "api.toml").write_text(api.description(url))
        words = ("-c", folder / "api.toml", "-o", folder / "profile.json", "--ledger", folder / "ledger.db")
        done = call("fit", folder / "fit", *words)
        assert done.returncode == 0, done.stderr
        assert api.bill == LABELLED
        yield Place(folder, api, " ".join(done.stderr.split()))


@pytest.fixture(scope="module")
def expected(place: Place) -> list[dict[str, Any]]:
    with lt.Model.load(place.folder / "profile.json", ledger=place.ledger) as model:
        verdicts = cast("list[TagVerdict]", list(model.score(place.folder / "new", max_error=0.1)))
    assert all(isinstance(verdict, TagVerdict) for verdict in verdicts)
    return [compared(verdict.to_dict()) for verdict in verdicts]


def compared(told: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps({name: told[name] for name in SAME}))


def test_the_command_line(place: Place, expected: list[dict[str, Any]], tmp_path: Path) -> None:
    looked = call("look", place.folder / "new", *place.words(), "--json")
    assert [compared(json.loads(line)) for line in looked.stdout.splitlines()] == expected
    for ending in ("csv", "jsonl"):
        assert call("score", place.folder / "new", *place.words(), "-o", tmp_path / f"v.{ending}").returncode == 0
    rows = [json.loads(line) for line in (tmp_path / "v.jsonl").read_text().splitlines()]
    assert [compared(row) for row in rows] == expected
    with (tmp_path / "v.csv").open(newline="") as file:
        assert [json.loads(row["yes"]) for row in csv.DictReader(file)] == [told["yes"] for told in expected]


def test_the_service(place: Place, expected: list[dict[str, Any]]) -> None:
    with started_here("serve", *place.words()) as service:
        files = sorted((place.folder / "new").iterdir())
        told = [service.post("/v1/look", file.read_bytes()).json() for file in files]
        profile = service.get("/v1/profile").json()
    assert [compared(each) for each in told] == expected
    assert (profile["kind"], [row["tag"] for row in profile["tags"]["tags"]]) == ("tags", list(TAGS))


def test_a_ray_worker(place: Place, expected: list[dict[str, Any]]) -> None:
    scorer = Scorer(
        place.folder / "profile.json",
        decide=lt.DecisionOptions(max_error=0.1),
        options=lt.AskOptions(ledger=place.ledger),
    )
    files = sorted((place.folder / "new").iterdir())
    batch = {
        "bytes": np.array([file.read_bytes() for file in files], object),
        "path": np.array([f.name for f in files]),
    }
    assert [compared(row) for row in scorer(batch).to_pylist()] == expected


def test_the_estimator_has_scikit_learns_multi_label_form(place: Place, expected: list[dict[str, Any]]) -> None:
    images, truths = pictures(LABELLED)
    y = np.array([[tag in true for tag in TAGS] for true in truths], int)
    estimator = LookTwice(str(place.folder / "api.toml"), tags=TAGS, ledger=place.ledger).fit(images, y)
    new, _ = pictures(COUNT, seed=1)
    chances = estimator.predict_proba(new)
    assert chances.shape == estimator.predict(new).shape == (COUNT, len(TAGS))
    wanted = [[{tag["name"]: tag["probability"] for tag in told["tags"]}[name] for name in TAGS] for told in expected]
    assert np.allclose(chances, wanted, atol=1e-6)
    assert (estimator.predict(new) == (chances >= 0.5)).all()


def test_labels_of_changed_pictures_repair_a_profile_at_no_query_for_the_old_ones(place: Place) -> None:
    added, profile, before = (
        write_pictures(place.folder / "added", ADDED, seed=7),
        place.folder / "repaired.json",
        place.api.bill,
    )
    shutil.copy(place.folder / "profile.json", profile)
    done = call("fit", "--add", added, "-c", place.folder / "api.toml", "-o", profile, "--ledger", place.ledger)
    assert done.returncode == 0, done.stderr
    old, new = (lt.Profile.load(place.folder / name) for name in ("profile.json", "repaired.json"))
    assert (new.vocabulary, new.pictures, new.calibrator != old.calibrator) == (old.vocabulary, ADDED, True)
    assert place.api.bill == before + ADDED


def test_no_interface_bought_an_answer_twice(place: Place, expected: list[dict[str, Any]]) -> None:
    assert place.api.bill == LABELLED + len(expected) + ADDED


def test_every_interface_tells_the_same_number_of_missing_labels(place: Place) -> None:
    profile = place.folder / "profile.json"
    strict = json.loads(call("plan", "-p", profile, "--max-error", 0.05, "--json").stdout)
    assert (strict["missing"], "practically impossible" in place.said) == (None, True)
    planned = json.loads(call("plan", "-p", profile, "--max-error", 0.1, "--json").stdout)
    more = planned["missing"]
    assert {claim["tag"] for claim in planned["claims"]} == set(TAGS)
    with lt.Model.load(profile, ledger=place.ledger) as model:
        assert model.labels_missing(max_error=0.05) is None
        assert model.labels_missing(max_error=0.1) == more > 0
        assert model.labels_missing(max_error=0.2) in range(1, more)
        assert model.labels_missing(max_miss={"dog": 0.9}) == 0
    out = place.folder / "report.html"
    call("report", "-p", profile, "--max-error", 0.1, "-o", out)
    assert f"{more:,}" in out.read_text("utf-8")
    call("report", "-p", profile, "--max-error", 0.05, "-o", out)
    assert "<h1>Best estimate" in out.read_text("utf-8")
    with started_here("serve", "-p", profile, "--ledger", place.ledger, "--max-error", 0.1) as service:
        assert service.get("/v1/profile").json()["labels_missing"] == more


def test_ten_categories_of_one_stored_reply_are_one_bill(tmp_path: Path) -> None:
    folder, api = write_pictures(tmp_path / "fit", 40), TagApi()
    with api.running() as url:
        for number in range(10):
            tag = TAGS[number % 5]
            read = {"label": f"tags[?name=='{tag}'].name", "score": f"tags[?name=='{tag}'].confidence"}
            if number >= 5:  # a boolean is an answer
                read = {"label": f"['{tag}']", "score": f"[flags.{tag}]"}
            (tmp_path / f"{number}.toml").write_text(api.description(url, **read))
            truths = [[word for word in true if word == tag] for true in pictures(40)[1]]
            with lt.Model(str(tmp_path / f"{number}.toml"), ledger=str(tmp_path / "ledger.db")) as model:
                profile = model.fit(sorted(folder.glob("*.png")), truths).profile
            assert profile.vocabulary == (tag,)
        assert api.bill == 40
