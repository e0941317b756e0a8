"""Doubtful verdicts: which come first, what people say of them, and the folder that a service fills."""

from __future__ import annotations

import csv
import json
import shutil
import signal
import subprocess
import sys
from itertools import product
from pathlib import Path
from typing import Literal

import pytest
from playwright.sync_api import Browser, expect
from support.errors import code_in, coded
from support.serving import DEMO, clothes, learn_profile, serving, started
from support.verdicts import verdict
from support.workshop import command, run
from test_label_page import CHROMIUM, browser, inspect, offered, press, unpack, window

from looktwice import service
from looktwice.cli.app import app
from looktwice.decisions.verdict_files import doubtful, expected_cost, read
from looktwice.errors import DataError, MissingExtra
from looktwice.images.collection import labelled
from looktwice.labelling.summary import Audit

__all__ = ["browser"]
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
in_a_browser = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; tools/browser.sh installs it")


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn_profile(tmp_path_factory.mktemp("review") / "profile.json", "jury")


@pytest.fixture(scope="module")
def scored(profile: Path) -> Path:
    """A folder of photos, and their verdicts in every format."""
    folder = profile.parent
    unpack(folder / "photos", 120)
    for ending in ("csv", "jsonl", "parquet"):
        done = run("score", folder / "photos", "-p", profile, "-o", folder / f"verdicts.{ending}", "--max-error", "0.1")
        assert done.returncode == 0, done.stderr
    return folder


def test_the_least_confident_comes_first_unless_some_mistakes_cost_more() -> None:
    sure = verdict("sure", "mole", 0.9, "melanoma", "mole", "melanoma")
    unsure = verdict("unsure", "mole", 0.6, "freckle", "mole", "mole")
    agreed = verdict("agreed", "mole", 0.95, "mole", "mole", "mole")
    assert [each.name for each in doubtful([agreed, sure, unsure], {})] == ["unsure", "sure", "agreed"]
    assert [each.name for each in doubtful([agreed, sure, unsure], {"melanoma": 20})] == ["sure", "unsure", "agreed"]
    assert expected_cost(sure, {"melanoma": 20}) == pytest.approx(0.1 * 20)
    split = verdict("x", "mole", 0.8, "melanoma", "freckle")
    assert expected_cost(split, {"melanoma": 20}) == pytest.approx(0.2 * 21 / 2)


def test_what_is_to_be_reviewed_is_what_the_verdicts_say_if_they_do() -> None:
    told = [verdict("a", "x", 0.2, decision="accept"), verdict("b", "x", 0.9, decision="review")]
    held = verdict("c", "x", 0.3, decision="accept", held="drift")
    assert [each.name for each in doubtful([*told, held], {})] == ["c", "b"]


def test_verdicts_are_read_alike_from_every_format(scored: Path) -> None:
    files = [read(scored / f"verdicts.{ending}") for ending in ("csv", "jsonl", "parquet")]
    assert files[0] == files[1] == files[2]
    assert len(files[0]) == 120
    assert {each.decision for each in files[0]} == {"accept", "review"}


@pytest.mark.parametrize(
    "text",
    ["", "a,b\n1,2\n", "name,label,confidence,base,votes,decision\na,b,c,d,[],\n", f"name,label\n{'a' * 200_000},b\n"],
    ids=["nothing", "other columns", "no number", "no CSV"],
)
def test_a_file_without_verdicts_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "verdicts.csv").write_text(text)
    if text:
        with pytest.raises(DataError, check=coded("file-malformed")):
            read(tmp_path / "verdicts.csv")
    with pytest.raises(DataError, check=coded("file-unreadable")):
        read(tmp_path / "nowhere.csv")
    with pytest.raises(DataError, check=coded("file-ending")):
        read(tmp_path / "verdicts.txt")


def test_the_command_says_what_is_missing(scored: Path, tmp_path: Path) -> None:
    done = run("review", scored / "verdicts.csv")
    assert code_in(done.stderr) == "labels-unmatched"
    unpack(tmp_path / "others", 1)
    done = run("review", scored / "verdicts.csv", tmp_path / "others")
    assert code_in(done.stderr) == "labels-unmatched"
    done = run("review", scored / "verdicts.csv", scored / "photos", "--cost", "melanoma")
    assert done.returncode == 2


@in_a_browser
def test_people_accept_correct_and_cannot_tell(browser: Browser, scored: Path, tmp_path: Path) -> None:
    out = tmp_path / "corrections.csv"
    doubts = doubtful(read(scored / "verdicts.csv"), {})
    words = ("review", scored / "verdicts.csv", scored / "photos", "-o", out, "--port", 0)
    with started(*words) as service, window(browser, service, bypass_csp=True) as page:
        for width, scheme in product((1280, 360), SCHEMES):
            page.set_viewport_size({"width": width, "height": 780})
            page.emulate_media(color_scheme=scheme)
            inspect(page)
            for way in ("#accept", "#not", "#skip"):
                expect(page.locator(way)).to_be_in_viewport(ratio=1)
        expect(page.locator("#prediction-label")).to_have_text(f"{doubts[0].label}?")
        assert doubts[0].label not in offered(page)
        names = [press(page, "Enter")]
        corrected = offered(page)[1]
        names.append(press(page, "2"))
        names.append(press(page, "n"))
        names.append(press(page, "ArrowDown"))
        assert names == [each.name for each in doubts[:4]]
    with out.open(newline="") as file:
        rows = {row["file"]: (row["label"], row["not"]) for row in csv.DictReader(file)}
    said = [(doubts[0].label, ""), (corrected, ""), ("", doubts[2].label), ("", "")]
    assert rows == dict(zip(names, said, strict=True))
    assert len(labelled(scored / "photos", out)) == 3


def test_corrections_are_truths_for_evaluate_and_fit(scored: Path, tmp_path: Path) -> None:
    truths = {f"{n:03}.png": p.truth for n, p in enumerate(labelled(DEMO / "pictures.npz")[:120])}
    doubts = doubtful(read(scored / "verdicts.csv"), {})
    rows = [f"{d.name},{truths[d.name]}," if n % 3 else f"{d.name},,{d.label}" for n, d in enumerate(doubts, 1)]
    table = tmp_path / "corrections.csv"
    table.write_text("\n".join(["file,label,not", *rows]) + "\n")
    done = run("evaluate", scored / "photos", "--truths", table, "-p", scored / "profile.json")
    assert done.returncode == 0, done.stderr
    assert f"On {len(doubts)} pictures" in done.stdout
    done = run("fit", scored / "photos", "--truths", table, "-c", DEMO / "fashion.toml", "-o", tmp_path / "p.json")
    assert done.returncode == 0, done.stderr


def test_a_service_keeps_what_is_for_review_each_once_and_no_more_than_it_may(profile: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with serving(profile, {"reviews": 2}, review=str(folder)) as service:
        replies = [service.post("/v1/look", picture).json() for picture in (*clothes(), *clothes()[:10])]
        wanted = [number for number, reply in enumerate(replies[:40]) if reply["decision"] == "review"]
        assert len(wanted) > 2
    kept = read(folder)
    assert len(kept) == 2
    assert {path.name for path in folder.glob("*.png")} == {each.name for each in kept}
    assert [(folder / each.name).read_bytes() for each in kept] == [clothes()[number] for number in wanted[:2]]
    assert all(each.decision == "review" for each in kept)
    with serving(profile, {"reviews": 3}, review=str(folder)) as service:
        for picture in clothes():
            service.form("/v1/looks", ("a.png", picture))
    assert len(read(folder)) == 3


@in_a_browser
def test_the_folder_of_a_service_is_reviewed_where_it_is(browser: Browser, profile: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    with serving(profile, {"reviews": 3}, review=str(folder)) as service:
        for picture in clothes():
            service.post("/v1/look", picture)
        with started("review", folder, "--port", 0) as reviewing, window(browser, reviewing) as page:
            for _ in range(3):
                press(page, "Enter")
            expect(page.locator("#finished-words")).to_have_text("Every picture is labelled.")
    assert {p.truth for p in labelled(folder)} == {each.label for each in read(folder)}


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path, scored: Path) -> None:
    shutil.copy(scored / "verdicts.jsonl", tmp_path / "verdicts.jsonl")
    with (tmp_path / "verdicts.jsonl").open("a") as file:
        file.write(json.dumps({"name": "half"})[:-1])
    assert len(read(tmp_path)) == 120


@in_a_browser
def test_an_audit_tells_how_often_accepted_verdicts_are_wrong(browser: Browser, scored: Path, tmp_path: Path) -> None:
    out = tmp_path / "audit.csv"
    truths = {f"{n:03}.png": str(p.truth) for n, p in enumerate(labelled(DEMO / "pictures.npz")[:120])}
    accepted = [doubt for doubt in read(scored / "verdicts.csv") if doubt.decision == "accept"]
    words = ("audit", scored / "verdicts.csv", scored / "photos", "-o", out, "--port", 0)
    with started(*words) as service, window(browser, service, bypass_csp=True) as page:
        expect(page.locator("#prediction")).to_be_hidden()
        expect(page.locator("#count")).to_have_text(f"0 of {len(accepted)}")
        for _ in range(50):
            labels, name = offered(page), page.locator("#name").inner_text()
            press(page, str((labels.index(truths[name]) + 1) % 10))
        expect(page.locator("#summary")).to_contain_text("Wrong among accepted")
        inspect(page)
        told = page.locator("#summary dd").nth(1).inner_text().split("\n")[0]
    table = {row.name: row.truth for row in labelled(scored / "photos", out)}
    audit = Audit.from_verdicts(read(scored / "verdicts.csv"))
    assert set(table) == set(audit.order()[:50])
    share = audit.share({d.name: table[d.name] != d.label for d in accepted if d.name in table})
    assert share is not None
    assert told == f"{100 * share.value:.1f} %"
    process = subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True)
    assert process.stderr
    while "Serving at" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    said = " ".join(process.communicate()[1].split())
    assert share.line() in said


@pytest.mark.parametrize("labelled_one", [True, False])
def test_ctrl_c_ends_a_page_as_it_should_end_and_names_the_next_command_if_there_is_a_label(
    scored: Path, tmp_path: Path, labelled_one: bool
) -> None:
    out = tmp_path / "corrections.csv"
    if labelled_one:
        doubtful = next(doubt.name for doubt in read(scored / "verdicts.csv") if doubt.decision != "accept")
        out.write_text(f"file,label,not\n{doubtful},Bag,\n")
    words = ("review", scored / "verdicts.csv", scored / "photos", "-o", out, "--port", 0)
    process = subprocess.Popen(command(*words), stderr=subprocess.PIPE, text=True)
    assert process.stderr
    while "Serving at" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0
    assert ("looktwice evaluate" in said) == labelled_one


def test_without_a_server_nothing_is_begun(scored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "looktwice.labelling.app", None)
    monkeypatch.setattr(service, "PARTS", {"looktwice.labelling.app"})  # as if that were a part that is missing
    with pytest.raises(MissingExtra, check=coded("extra-missing")):
        app(["review", str(scored / "verdicts.csv"), str(scored / "photos"), "-o", str(tmp_path / "labels.csv")])
    assert list(tmp_path.iterdir()) == []
