"""Two vendors over HTTP: the same sequence, stage, reason and price everywhere, also where one of them fails."""

from __future__ import annotations

import asyncio
import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.engines import HURRY
from support.serving import started_here
from support.two_vendors import Vendors, drawn, two_vendors
from support.workshop import call

import looktwice as lt
from looktwice.decisions.verdict import Verdict
from looktwice.decisions.verdict_files import read
from looktwice.images.image import encode_png
from looktwice.ray import Scorer
from looktwice.sklearn import LookTwice
from looktwice.views import Panel

pytestmark = pytest.mark.slow

IMAGES, TRUTHS = drawn(320, seed=10)
PRICES = {"cheap": 0.001, "dear": 0.03}
NEW = 8
"""Pictures that are scored; they took no part in fitting."""
SAME = ("asked", "stopped", "price", "queries", "label", "confidence", "sentence", "profile")
"""What every interface says alike."""


@pytest.fixture(scope="module")
def vendors() -> Iterator[Vendors]:
    with two_vendors() as running:
        yield running


@pytest.fixture(scope="module")
def place(vendors: Vendors, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the profile of both vendors, and pictures."""
    folder = tmp_path_factory.mktemp("vendors")
    both = [vendors.describe(folder, name, price) for name, price in PRICES.items()]
    with lt.Model(both, ledger=str(folder / "fitted.db")) as model:
        model.fit(IMAGES[NEW:], TRUTHS[NEW:], views=Panel(()))
        model.save(folder / "profile.json")
    (folder / "new").mkdir()
    for number, image in enumerate(IMAGES[:NEW]):
        (folder / "new" / f"{number}.png").write_bytes(encode_png(image))
    return folder


@pytest.fixture(autouse=True)
def healthy(vendors: Vendors) -> Iterator[None]:
    yield
    vendors.down.clear()
    vendors.slow.clear()


@pytest.fixture(scope="module")
def expected(place: Path) -> list[dict[str, Any]]:
    with lt.Model.load(place / "profile.json", ledger="memory") as model:
        return alike([verdict.to_dict() for verdict in model.score(place / "new") if isinstance(verdict, Verdict)])


def alike(verdicts: list[Any]) -> list[dict[str, Any]]:
    """The verdicts in the order of their pictures, as JSON, with what all interfaces say."""
    plain = sorted(json.loads(json.dumps(verdicts)), key=lambda verdict: Path(verdict["name"]).name)
    return [{name: verdict[name] for name in SAME} for verdict in plain]


def order(expected: list[dict[str, Any]]) -> list[str]:
    """Who is asked first, and who where that one is unsure: what the fit chose."""
    return [query["classifier"] for query in expected[0]["asked"]]


def test_one_is_asked_first_and_the_other_where_it_is_unsure(expected: list[dict[str, Any]]) -> None:
    first, second = order(expected)
    asked = [[query["classifier"] for query in verdict["asked"] if query["label"]] for verdict in expected]
    assert {tuple(names) for names in asked} == {(first,), (first, second)}
    for verdict, names in zip(expected, asked, strict=True):
        assert verdict["price"] == pytest.approx(sum(PRICES[name] for name in names))
        assert verdict["stopped"] == ("all-asked" if len(names) == 2 else "sure")
        assert (f"{second} was asked because {first} was unsure, " in verdict["sentence"]) == (len(names) == 2)


def test_the_command_line_says_the_same(place: Path, expected: list[dict[str, Any]], tmp_path: Path) -> None:
    words = ("-p", place / "profile.json", "--ledger", tmp_path / "ledger.db")
    told = call("look", *sorted((place / "new").iterdir()), *words, "--json").stdout
    assert alike([json.loads(line) for line in told.splitlines()]) == expected
    for ending in (".csv", ".jsonl", ".parquet"):
        out = tmp_path / f"verdicts{ending}"
        assert call("score", place / "new", *words, "-o", out).returncode == 0
        assert alike([verdict.to_dict() for verdict in read(out)]) == expected
    with (tmp_path / "verdicts.csv").open(newline="") as file:
        assert {row["stopped"] for row in csv.DictReader(file)} == {"sure", "all-asked"}


def test_the_async_model_ray_and_the_service_say_the_same(
    place: Path, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    async def work() -> list[Any]:
        async with lt.AsyncModel.load(place / "profile.json", ledger="memory") as model:
            return [verdict.to_dict() async for verdict in model.score(place / "new") if isinstance(verdict, Verdict)]

    assert alike(asyncio.run(work())) == expected
    files = sorted((place / "new").iterdir())
    scorer = Scorer(place / "profile.json", options=lt.AskOptions(ledger="memory"))
    batch = {"bytes": np.array([f.read_bytes() for f in files], object), "path": np.array([f.name for f in files])}
    table = scorer(batch).to_pylist()
    scorer.model.close()
    assert alike(table) == expected
    words = ("--profile", place / "profile.json", "--ledger", tmp_path / "ledger.db")
    with started_here("serve", *words) as service:
        told = [service.form("/v1/look", (file.name, file.read_bytes())).json() for file in files]
        metrics = service.get("/metrics").body.decode()
    assert alike(told) == expected
    first, second = order(expected)
    both = sum(verdict["queries"] == 2 for verdict in expected)
    assert f'looktwice_queries_total{{classifier="{first}"}} {NEW}.0' in metrics
    assert f'looktwice_queries_total{{classifier="{second}"}} {both}.0' in metrics
    assert f'looktwice_spend_total{{classifier="{second}"}} {both * PRICES[second]:g}' in metrics


def test_the_estimator_says_the_same(place: Path, expected: list[dict[str, Any]]) -> None:
    both = [str(place / "cheap.toml"), str(place / "dear.toml")]
    estimator = LookTwice(both, views=Panel(()), ledger=str(place / "fitted.db")).fit(
        IMAGES[NEW:], np.array(TRUTHS[NEW:])
    )
    verdicts = [verdict.to_dict() for verdict in estimator.verdicts(IMAGES[:NEW]) if isinstance(verdict, Verdict)]
    asked = [[[query[key] for key in ("classifier", "label", "price")] for query in one["asked"]] for one in expected]
    assert [
        [[query[key] for key in ("classifier", "label", "price")] for query in one["asked"]]  # type: ignore[attr-defined]
        for one in verdicts
    ] == asked
    assert [one["stopped"] for one in verdicts] == [one["stopped"] for one in expected]


# One of them fails


def score(place: Path, **options: Any) -> list[Verdict]:
    with lt.Model.load(place / "profile.json", ledger="off", **options) as model:
        return [verdict for verdict in model.score(place / "new") if isinstance(verdict, Verdict)]


@pytest.mark.parametrize("failing", ["cheap", "dear"])
@pytest.mark.parametrize("how", ["refuses", "is slow"])
def test_the_other_goes_on_where_one_fails_and_the_verdict_says_so(
    place: Path, vendors: Vendors, failing: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looktwice.model.options.RetryPolicy", lambda **_: HURRY)
    if how == "refuses":
        vendors.down[failing] = 400
    else:
        vendors.slow[failing] = 3.0
    verdicts = score(place)
    assert len(verdicts) == NEW
    missing = [[query for query in verdict.asked if query.missing] for verdict in verdicts]
    assert {query.classifier for queries in missing for query in queries} == {failing}
    said = [f"{failing} gave no label: " in verdict.sentence for verdict in verdicts]
    assert said == [bool(queries) for queries in missing]
    assert all(verdict.sentence.count(f"{failing} gave no label") <= 1 for verdict in verdicts)
    assert not any("was called ;" in verdict.sentence or "because  " in verdict.sentence for verdict in verdicts)
    other = "dear" if failing == "cheap" else "cheap"
    assert all(any(query.classifier == other and query.label for query in verdict.asked) for verdict in verdicts)


def test_a_vendor_that_is_down_is_not_a_change_of_the_pictures(
    place: Path, vendors: Vendors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("looktwice.model.options.RetryPolicy", lambda **_: HURRY)
    vendors.down["dear"] = 400
    images, _ = drawn(120, seed=11)
    with lt.Model.load(place / "profile.json", ledger="off") as model:
        verdicts = [verdict for verdict in model.score(images) if isinstance(verdict, Verdict)]
        failed = [place for place, verdict in enumerate(verdicts) if verdict.asked[1].code]
        assert len(failed) > 40
        assert not any(verdict.held for verdict in verdicts)
        assert model.monitor().stream.seen == failed[0], "compared until it failed"
        vendors.down.clear()
        again = [verdict for verdict in model.score(images) if isinstance(verdict, Verdict)]
        answered = sum(not any(query.code for query in verdict.asked) for verdict in again)
        assert model.monitor().stream.seen == failed[0] + answered


def test_a_vendor_that_is_out_of_money_is_said_to_be(
    place: Path, vendors: Vendors, expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    before, (first, second) = dict(vendors.asked), order(expected)
    limit = 2 * PRICES[second]
    limited = [lt.connect(place / f"{first}.toml"), lt.connect(place / f"{second}.toml", money=limit)]
    with lt.Model.load(place / "profile.json", classifiers=limited, ledger=str(tmp_path / "ledger.db")) as model:
        verdicts = [verdict for verdict in model.score(place / "new") if isinstance(verdict, Verdict)]
    assert len(verdicts) == NEW
    assert vendors.asked[second] - before[second] == 2
    assert sum(verdict.price for verdict in verdicts) == pytest.approx(NEW * PRICES[first] + limit)
    assert [verdict.stopped for verdict in verdicts].count("budget") == sum(
        any(query.missing for query in verdict.asked) for verdict in verdicts
    )
    assert "budget" in {verdict.stopped for verdict in verdicts}


# Chained profiles


def test_pictures_that_another_profile_left_over_are_warned_about(place: Path, tmp_path: Path) -> None:
    book = ("--ledger", tmp_path / "ledger.db")
    with lt.Model(place / "cheap.toml", ledger=str(place / "fitted.db")) as model:
        model.fit(IMAGES[NEW:], TRUTHS[NEW:], views=Panel(()))
        verdicts = [verdict for verdict in model.score(place / "new", all=True) if isinstance(verdict, lt.Verdict)]
    decided = [
        verdict.model_copy(update={"decision": "review" if at % 2 else "accept"}) for at, verdict in enumerate(verdicts)
    ]
    out = tmp_path / "first.jsonl"
    out.write_text("".join(json.dumps(verdict.to_dict()) + "\n" for verdict in decided))
    left = [place / "new" / verdict.name for verdict in decided if verdict.decision == "review"]
    second = ("score", *left, "-p", place / "profile.json", "--max-error", 0.1, "-o", tmp_path / "second.csv", *book)
    chained = call(*second, "--json")
    assert json.loads(chained.stdout)["warnings"] == ["pictures-selected"]
    assert out.name in chained.stderr
    whole = (
        "score",
        place / "new",
        "-p",
        place / "profile.json",
        "--max-error",
        0.1,
        "-o",
        tmp_path / "third.csv",
        *book,
    )
    assert json.loads(call(*whole, "--json").stdout)["warnings"] == [], "they are as drawn"
