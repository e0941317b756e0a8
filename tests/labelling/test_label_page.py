"""Labelling in a real browser: keys alone, taking back, reloading, two windows, and a process that is killed."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import re
import shutil
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright
from support.serving import DEMO, Service, started
from test_docs import free_port

from looktwice.images.collection import find, labelled
from looktwice.images.image import encode_png

CHROMIUM = next(filter(None, map(shutil.which, (os.environ.get("CHROMIUM") or "chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; tools/browser.sh installs it")
FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync"]
PATIENCE = 30_000.0
CUT = re.compile("net::ERR_(CONNECTION_|SOCKET_NOT_CONNECTED|EMPTY_RESPONSE|CONTENT_LENGTH_MISMATCH)")
"""What a browser complains of when a process was killed."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as running:
        browser = running.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Sixty pictures of clothes, without truths."""
    return unpack(tmp_path / "photos", 60)


def unpack(folder: Path, count: int) -> Path:
    folder.mkdir()
    for number, picture in enumerate(labelled(DEMO / "pictures.npz")[:count]):
        (folder / f"{number:03}.png").write_bytes(encode_png(picture.image().pixels))
    return folder


@contextmanager
def labelling(folder: Path, *more: object) -> Iterator[Service]:
    named = () if "-c" in more else ("-c", DEMO / "fashion.toml")
    words = ("label", folder, *named, "--views", "mirror zoom:1.15", "--port", 0, *more)
    with started(*words) as service:
        yield service


@contextmanager
def window(browser: Browser, service: Service, **settings: Any) -> Iterator[Page]:
    """A window of its own, which must end without a complaint of the browser or a request to anybody else."""
    context = browser.new_context(
        **{"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **settings}
    )
    context.set_default_timeout(PATIENCE)
    page, complaints, hosts = context.new_page(), list[str](), set[str]()
    page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: hosts.add(request.url.split("/")[2] if request.url.startswith("http") else ""))
    page.goto(service.url)
    ready(page)
    yield page
    context.close()
    assert [line for line in complaints if not CUT.search(line)] == []
    assert hosts - {""} == {service.url.split("/")[2]}


def ready(page: Page) -> None:
    expect(page.locator("#main")).to_have_attribute("aria-busy", "false", timeout=PATIENCE)


def press(page: Page, key: str) -> str:
    """Press a key; the picture that it was about."""
    ready(page)
    file = page.locator("#name").inner_text()
    page.keyboard.press(key)
    expect(page.locator("#status")).not_to_be_empty()
    ready(page)
    return file


def rows(folder: Path) -> list[tuple[str, str, str]]:
    with (folder / "labels.csv").open(newline="") as file:
        return [(row["file"], row["label"], row["not"]) for row in csv.DictReader(file)]


def offered(page: Page) -> list[str]:
    ready(page)
    return page.locator("#options span").all_inner_texts()


def test_fifty_pictures_are_labelled_by_keys_alone(browser: Browser, photos: Path) -> None:
    told = {}
    with labelling(photos) as service, window(browser, service) as page:
        labels = offered(page)
        assert len(labels) == 10
        for number in range(50):
            assert_the_picture_has_the_name(page, photos)
            key = number % 10
            told[press(page, str(key))] = labels[(key + 9) % 10]
        expect(page.locator("#count")).to_have_text("50 of 60")
        assert len(told) == 50
    assert {file: label for file, label, _ in rows(photos)} == told


def assert_the_picture_has_the_name(page: Page, folder: Path) -> None:
    shown = page.locator("#picture").evaluate(
        """image => {
            const canvas = new OffscreenCanvas(image.naturalWidth, image.naturalHeight);
            const context = canvas.getContext("2d");
            context.drawImage(image, 0, 0);
            return [...context.getImageData(0, 0, canvas.width, canvas.height).data].filter((_, at) => at % 4 < 3);
        }"""
    )
    (picture,) = find([folder / page.locator("#name").inner_text()])
    assert shown == picture.image().pixels.ravel().tolist()


def test_everything_else_that_one_can_say_has_a_key(browser: Browser, photos: Path) -> None:
    with labelling(photos) as service, window(browser, service) as page:
        labels = offered(page)
        unsure = press(page, "ArrowDown")
        skipped = press(page, "ArrowRight")
        none = press(page, "n")
        surely_not = press(page, "Shift+3")
        ready(page)
        searched = page.locator("#name").inner_text()
        page.keyboard.press("/")
        page.keyboard.type("ankle")
        expect(page.locator("#matches li").first).to_have_text("Ankle boot")
        page.keyboard.press("Enter")
        ready(page)
        written = page.locator("#name").inner_text()
        page.keyboard.press("ArrowUp")
        page.keyboard.type("ankle bracelet")
        expect(page.locator("#matches li")).to_have_text(["New label: ankle bracelet"])
        page.keyboard.press("Enter")
        ready(page)
        page.keyboard.press("/")
        page.keyboard.type("bracelet")
        expect(page.locator("#matches li").first).to_have_text("ankle bracelet")
    said = rows(photos)
    assert (unsure, "", "") in said
    assert skipped not in {file for file, _, _ in said}
    assert [label for file, _, label in said if file == none] == labels
    assert (surely_not, "", labels[2]) in said
    assert (searched, "Ankle boot", "") in said
    assert (written, "ankle bracelet", "") in said


@contextmanager
def held_back(go: threading.Event) -> Iterator[str]:
    """The address of a classifier of a hundred classes that answers nothing until it may."""

    class Api(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            picture = self.rfile.read(int(self.headers["content-length"]))
            go.wait()
            reply = json.dumps({"label": f"bird {hashlib.sha256(picture).digest()[0] % 100}"}).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply)

        def log_message(self, format: str, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Api) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/"
        finally:
            go.set()
            server.shutdown()


def test_options_come_with_the_answers_and_are_no_others_before(browser: Browser, photos: Path) -> None:
    go = threading.Event()
    with (
        held_back(go) as api,
        labelling(photos, "-c", api, "--ledger", "off") as service,
        window(browser, service) as page,
    ):
        shown = page.locator("#name").inner_text()
        expect(page.locator("#pending")).to_be_visible()
        expect(page.locator("#not")).to_be_disabled()
        assert offered(page) == []
        page.keyboard.press("/")
        page.keyboard.type("bird")
        expect(page.locator("#matches li")).to_have_text(["New label: bird"])
        go.set()
        expect(page.locator("#pending")).to_be_hidden()
        expect(page.locator("#name")).to_have_text(shown)
        expect(page.locator("#search")).to_have_value("bird")
        assert len(offered(page)) >= 3
        assert all(label.startswith("bird ") for label in offered(page))
        page.keyboard.press("Escape")
        page.keyboard.press("/")
        page.keyboard.type("bird")
        expect(page.locator("#matches li").first).to_contain_text(re.compile(r"^bird \d+$"))
        page.keyboard.press("Escape")
        press(page, "2")
        expect(page.locator("#count")).to_have_text("1 of 60")


def test_taking_back_brings_the_picture_again_and_so_does_the_end(browser: Browser, tmp_path: Path) -> None:
    folder = unpack(tmp_path / "few", 3)
    with labelling(folder, "--no-asking") as service, window(browser, service, bypass_csp=True) as page:
        first = press(page, "1")
        expect(page.locator("#last")).to_have_text(f"Saved: {offered(page)[0]} ({first}).")
        second = press(page, "ArrowRight")
        assert press(page, "ArrowLeft") not in (first, second)
        expect(page.locator("#name")).to_have_text(second)
        press(page, "Backspace")
        expect(page.locator("#name")).to_have_text(first)
        assert rows(folder) == []
        for _ in range(3):
            press(page, "2")
        expect(page.locator("#finished-words")).to_have_text("Every picture is labelled.")
        expect(page.locator("#next")).to_contain_text(f"looktwice fit {folder} -c ")
        inspect(page)
        page.locator("#undo-last").click()
        expect(page.locator("#task")).to_be_visible()
        assert len(rows(folder)) == 2


def test_a_reload_shows_the_same_picture_and_what_was_said_stays(browser: Browser, photos: Path) -> None:
    with labelling(photos) as service, window(browser, service) as page:
        for _ in range(3):
            press(page, "1")
        shown = page.locator("#name").inner_text()
        page.reload()
        ready(page)
        expect(page.locator("#name")).to_have_text(shown)
        expect(page.locator("#count")).to_have_text("3 of 60")
        press(page, "ArrowLeft")
        expect(page.locator("#count")).to_have_text("2 of 60")
    assert len(rows(photos)) == 2


def test_two_windows_never_get_the_same_picture(browser: Browser, photos: Path) -> None:
    with labelling(photos) as service, window(browser, service) as ann, window(browser, service) as bob:
        said = [press(page, key) for _ in range(12) for page, key in ((ann, "1"), (bob, "2"))]
        assert max(Counter(said).values()) == 1
        press(ann, "ArrowLeft")  # her own last one, not his
        labels = offered(ann)
    assert Counter(label for _, label, _ in rows(photos)) == {labels[0]: 11, labels[1]: 12}


def test_a_process_that_is_killed_between_clicks_loses_none_and_repeats_none(browser: Browser, photos: Path) -> None:
    port = free_port()
    with labelling(photos, "--port", port) as first, window(browser, first) as page:
        told = [press(page, "1") for _ in range(3)]
        kill(first)
        told.append(say_in_vain(page, "2"))
        with labelling(photos, "--port", port) as second:
            ready(page)
            expect(page.locator("#alert")).to_be_hidden()
            told.append(press(page, "1"))
            kill(second)
            told.append(say_in_vain(page, "3"))
        with labelling(photos, "--port", port):
            page.reload()
            ready(page)
            expect(page.locator("#count")).to_have_text("6 of 60")
            assert page.locator("#picture").evaluate("image => image.complete && image.naturalWidth > 0")
            told.append(press(page, "1"))
    assert sorted(told) == [file for file, _, _ in rows(photos)]


def test_a_duplicated_tab_is_a_window_of_its_own(browser: Browser, photos: Path) -> None:
    with labelling(photos, "--no-asking") as service, window(browser, service) as page:
        press(page, "1")
        shown = page.locator("#name").inner_text()
        with page.expect_popup() as popup:  # which gets a copy of the session storage, as a duplicated tab does
            page.evaluate("() => { window.open(location.href); }")
        twin = popup.value
        ready(twin)
        assert twin.locator("#name").inner_text() != shown
        press(twin, "2")
        page.reload()
        ready(page)
        expect(page.locator("#name")).to_have_text(shown)
        press(page, "ArrowLeft")
        labels = offered(page)
    assert [label for _, label, _ in rows(photos)] == [labels[1]]


def test_a_picture_that_cannot_be_shown_does_not_leave_the_last_one_there(browser: Browser, tmp_path: Path) -> None:
    folder = unpack(tmp_path / "few", 3)
    (folder / "001.png").write_bytes(b"no picture")
    with labelling(folder, "--no-asking") as service:
        page = browser.new_page()  # which may complain of the picture
        page.goto(service.url)
        ready(page)
        while page.locator("#name").inner_text() != "001.png":
            press(page, "ArrowRight")
        expect(page.locator("#alert")).to_contain_text("001.png cannot be shown")
        expect(page.locator("#picture")).to_be_hidden()
        press(page, "ArrowDown")
        expect(page.locator("#alert")).to_be_hidden()
        expect(page.locator("#picture")).to_be_visible()
        page.close()


def kill(service: Service) -> None:
    service.process.send_signal(signal.SIGKILL)
    service.process.wait()


def say_in_vain(page: Page, key: str) -> str:
    """Press a key while nobody listens; the picture that it was about."""
    file = page.locator("#name").inner_text()
    page.keyboard.press(key)
    expect(page.locator("#alert")).to_contain_text("Not saved yet")
    expect(page.locator("#name")).to_have_text(file)
    return file


def test_a_click_whose_reply_is_lost_is_sent_again_and_counts_once(browser: Browser, photos: Path) -> None:
    with labelling(photos, "--no-asking") as service, window(browser, service) as page:

        def lose(route: Route) -> None:
            route.fetch()
            route.abort("connectionrefused")

        page.route("**/v1/label/click", lose, times=1)
        press(page, "1")
        press(page, "1")
        expect(page.locator("#count")).to_have_text("2 of 60")
        press(page, "ArrowLeft")
        expect(page.locator("#count")).to_have_text("1 of 60")


def test_the_page_shows_what_the_labels_tell(browser: Browser, tmp_path: Path) -> None:
    folder = unpack(tmp_path / "photos", 300)
    truths = [picture.truth for picture in labelled(DEMO / "pictures.npz")[:300]]
    rows = "".join(f"{number:03}.png,{truth}\n" for number, truth in enumerate(truths[:290]))
    (folder / "labels.csv").write_text(f"file,label\n{rows}")
    with labelling(folder, "--max-error", 0.2) as service, window(browser, service) as page:
        for _ in range(2):
            press(page, "1")
        expect(page.locator("#summary dd").first).to_contain_text("292", timeout=PATIENCE)
        expect(page.locator("#summary")).to_contain_text("Accuracy of the classifier")
        expect(page.locator("#enough")).to_contain_text(f"Fit now: looktwice fit {folder}")
        inspect(page)
        page.set_viewport_size({"width": 360, "height": 780})
        inspect(page)
    with labelling(folder, "--no-asking") as service, window(browser, service) as page:
        expect(page.locator("#count")).to_have_text("292 of 300")
        expect(page.locator("#summary")).to_be_hidden()


def test_the_mouse_and_a_finger_do_it_too(browser: Browser, photos: Path) -> None:
    with labelling(photos, "--no-asking") as service, window(browser, service, has_touch=True) as page:
        page.locator("#options button").nth(1).click()
        ready(page)
        page.locator("#options button").nth(2).tap()
        ready(page)
        for way in ("#unsure", "#skip", "#not", "#undo"):
            page.locator(way).tap()
            ready(page)
        page.locator("#search").tap()
        page.keyboard.type("coat")
        page.locator("#matches li").first.tap()
        expect(page.locator("#count")).to_have_text("4 of 60")


def test_nothing_sticks_out_and_axe_finds_nothing(browser: Browser, tmp_path: Path) -> None:
    folder = unpack(tmp_path / "photos", 20)
    with labelling(folder) as service:
        for width, scheme in ((360, "light"), (360, "dark"), (1280, "light"), (1280, "dark")):
            settings = {"viewport": {"width": width, "height": 780}, "color_scheme": scheme, "bypass_csp": True}
            with window(browser, service, **settings) as page:
                inspect(page)
                for way in ("#options li:last-child button", "#undo", "#skip"):
                    expect(page.locator(way)).to_be_in_viewport(ratio=1)
                page.locator("#search").fill("s")
                inspect(page)


def inspect(page: Page) -> None:
    if place := os.environ.get("LOOKTWICE_SCREENSHOTS"):
        page.screenshot(path=f"{place}/{len(os.listdir(place))}.png")
    wider = page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wider <= 0
    assert [(rule["id"], rule["nodes"][0]["html"]) for rule in Axe().run(page).response["violations"]] == []


def test_with_a_token_the_page_asks_for_it_and_others_stay_out(browser: Browser, photos: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens.txt"
    tokens.write_text(hashlib.sha256(b"open sesame").hexdigest() + "\n")
    with labelling(photos, "--no-asking", "--token-file", tokens) as service:
        assert service.get("/v1/label/state?window=w").status == 401
        page = browser.new_page()
        page.goto(service.url)
        page.locator("#token").fill("open sesame")
        page.keyboard.press("Enter")
        ready(page)
        press(page, "1")
        assert page.locator("#picture").evaluate("image => image.complete && image.naturalWidth > 0")
        page.close()
    assert len(rows(photos)) == 1


def test_the_guards_of_the_service_stand_here_too(photos: Path) -> None:
    with labelling(photos, "--no-asking") as service:
        assert service.get("/v1/label/work", origin="http://elsewhere.example").status == 403
        assert service.get("/v1/label/work", host="elsewhere.example").status == 421
        assert service.get("/v1/label/picture?file=../../etc/passwd").status == 404
        assert service.get("/v1/label/picture?file=000.png").headers["content-type"] == "image/png"
        assert service.get("/v1/label/state?window=").status == 400
        click = b'{"id": "1", "window": "w", "file": "%s", "says": "label", "labels": ["cat"]}'
        assert service.post("/v1/label/click", click % b"nowhere.png", "application/json").status == 404
        assert service.post("/v1/label/click", b"{}", "application/json").status == 400
        assert service.post("/v1/label/click", b"x" * 70_000, "application/json").status == 413
        assert service.post("/v1/label/click", click % b"000.png", "application/json").json()["settled"] == 1
        policy = service.get("/").headers["content-security-policy"]
    assert "default-src 'none'" in policy
    exposed = labelling(photos, "--host", "0.0.0.0")
    with pytest.raises(AssertionError, match="token-invalid"):
        exposed.__enter__()
