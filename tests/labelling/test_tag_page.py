"""Tags in a real browser: fifty pictures with several tags by keys alone, reviewing, and the page of the service."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page, expect, sync_playwright
from support.serving import started
from support.tags import TAGS, TagApi, write_pictures
from support.workshop import run
from test_label_page import CHROMIUM, FLAGS, ready, window

from looktwice.files import split_tags
from looktwice.images.collection import labelled

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; tools/browser.sh installs it")
SHOTS = os.environ.get("LOOKTWICE_SHOTS")
"""A folder for screenshots, to be looked at."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Path]:
    """The description of a running API of tags."""
    server = TagApi()
    with server.running() as url:
        (tmp_path / "api.toml").write_text(server.description(url))
        yield tmp_path / "api.toml"


def check_accessible(page: Page, name: str) -> None:
    """No complaint of axe, and a screenshot where somebody wants one."""
    result: Any = Axe().run(page)
    assert result.violations_count == 0, result.generate_report()
    if SHOTS:
        for width in (1280, 360):
            page.set_viewport_size({"width": width, "height": 900})
            page.screenshot(path=f"{SHOTS}/{name}-{width}.png", full_page=True)
        page.set_viewport_size({"width": 1280, "height": 900})


def rows(path: Path) -> dict[str, tuple[str, ...]]:
    with path.open(newline="") as file:
        return {row["file"]: split_tags(row["tags"]) for row in csv.DictReader(file)}


def test_fifty_pictures_are_labelled_with_several_tags_by_keys_alone(
    browser: Browser, api: Path, tmp_path: Path
) -> None:
    photos, told = write_pictures(tmp_path / "photos", 50, truths=False), dict[str, tuple[str, ...]]()
    words = ("label", photos, "-c", api, "--ledger", tmp_path / "ledger.db", "--port", 0)
    with started(*words) as service, window(browser, service) as page:
        for number in range(50):
            ready(page)
            expect(page.locator("#pending")).to_be_hidden()
            offered = page.locator("#options button").evaluate_all("buttons => buttons.map((b) => b.dataset.label)")
            file, wanted = page.locator("#name").inner_text(), {0: 0, 1: 1, 2: 2, 3: 3}[number % 4]
            for key in range(wanted):
                page.keyboard.press(str(key + 1))
            chosen = page.locator("#options [aria-pressed=true]")
            expect(chosen).to_have_count(wanted)
            if number == 3:
                check_accessible(page, "label-tags")
            told[file] = tuple(offered[:wanted])
            page.keyboard.press("Enter" if wanted else "n")
            expect(page.locator("#count")).to_have_text(f"{number + 1} of 50")
    assert rows(photos / "labels.csv") == told
    assert {picture.name: picture.tags for picture in labelled(photos)} == told


def test_a_tag_is_switched_off_searched_taken_back_and_nobody_can_tell(
    browser: Browser, api: Path, tmp_path: Path
) -> None:
    photos = write_pictures(tmp_path / "photos", 4, truths=False)
    words = ("label", photos, "-c", api, "--ledger", "off", "--port", 0)
    with started(*words) as service, window(browser, service) as page:
        ready(page)
        expect(page.locator("#pending")).to_be_hidden()
        file = page.locator("#name").inner_text()
        page.keyboard.press("1")
        page.keyboard.press("1")
        expect(page.locator("#options [aria-pressed=true]")).to_have_count(0)
        page.keyboard.press("/")
        page.keyboard.type("a; b")
        page.keyboard.press("Enter")
        expect(page.locator("#options [aria-pressed=true]")).to_have_count(1)
        page.keyboard.press("Enter")
        expect(page.locator("#count")).to_have_text("1 of 4")
        assert rows(photos / "labels.csv") == {file: ("a; b",)}
        ready(page)
        page.keyboard.press("ArrowLeft")
        expect(page.locator("#count")).to_have_text("0 of 4")
        ready(page)
        page.keyboard.press("ArrowDown")
        expect(page.locator("#count")).to_have_text("1 of 4")
    assert rows(photos / "labels.csv") == {}


def test_the_service_shows_tags_and_review_corrects_them(browser: Browser, api: Path, tmp_path: Path) -> None:
    labelled, others = write_pictures(tmp_path / "fit", 120), write_pictures(tmp_path / "others", 8, 1, truths=False)
    profile, verdicts = tmp_path / "profile.json", tmp_path / "verdicts.csv"
    ledger = ("--ledger", tmp_path / "ledger.db")
    assert run("fit", labelled, "-c", api, "-o", profile, *ledger).returncode == 0
    assert run("score", others, "-p", profile, "-o", verdicts, "--max-error", 0.1, *ledger).returncode == 0
    with started("serve", "-p", profile, "--port", 0, *ledger) as service:
        context = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
        page = context.new_page()
        page.goto(service.url)
        page.locator("#file").set_input_files(others / "000.png")
        expect(page.locator("#tags li").first).to_be_visible(timeout=30_000)
        expect(page.locator("#dial")).to_be_hidden()
        check_accessible(page, "serve-tags")
        page.locator("#tab-trust").click()
        expect(page.locator("#results tbody tr")).to_have_count(len(TAGS))
        check_accessible(page, "serve-tags-trust")
        context.close()
    with started("review", verdicts, others, "--port", 0) as service, window(browser, service) as page:
        ready(page)
        file = page.locator("#name").inner_text()
        chosen = page.locator("#options [aria-pressed=true]").evaluate_all("all => all.map((b) => b.dataset.label)")
        check_accessible(page, "review-tags")
        off = page.locator("#options [aria-pressed=false]").first.evaluate("button => button.dataset.label")
        labels = page.locator("#options button").evaluate_all("buttons => buttons.map((b) => b.dataset.label)")
        page.keyboard.press(str(labels.index(off) + 1))
        page.keyboard.press("Enter")
        expect(page.locator("#count")).to_contain_text("1 of")
    assert set(rows(tmp_path / "corrections.csv")[file]) == {*chosen, off}
