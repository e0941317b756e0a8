"""The page in a real browser: every way in, what is shown, who is asked, and whether everybody can use it."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from playwright.sync_api import Browser, Page, Playwright, Route, expect, sync_playwright
from support.parity import fish
from support.serving import PANEL, Service, clothes, learn_profile, serving, started

from looktwice.images.image import encode_png

CHROMIUM = next(filter(None, map(shutil.which, (os.environ.get("CHROMIUM") or "chromium", "chromium-browser"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium; tools/browser.sh installs it")

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
]
PATIENCE = 30_000.0
TOKEN = "the token of this test"
DECIDED = {"accept": "Accept", "review": "Check it yourself"}
PERCENT = re.compile(r"^(> )?\d+(\.\d)? %$")


@dataclass
class Visit:
    """A page that is watched: what it complains of and whom it asks."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    hosts: set[str] = field(default_factory=set)

    def verdict(self, count: int = 1) -> None:
        """Wait for so many verdicts in this visit."""
        expect(self.page.locator("#history-list li")).to_have_count(count, timeout=PATIENCE)
        expect(self.page.locator("#label")).not_to_have_text("\u00a0")
        expect(self.page.locator(".number")).to_have_text(PERCENT)

    def alert(self) -> str:
        """What the page says went wrong."""
        expect(self.page.locator("#alert")).to_be_visible(timeout=PATIENCE)
        return self.page.locator("#alert").inner_text()


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return learn_profile(tmp_path_factory.mktemp("page") / "profile.json")


@pytest.fixture(scope="module")
def service(profile: Path) -> Iterator[Service]:
    with serving(profile, {"body": 1_000_000}) as running:
        yield running


@pytest.fixture(scope="module")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as running:
        yield running


@pytest.fixture(scope="module")
def browser(playwright: Playwright) -> Iterator[Browser]:
    running = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
    yield running
    running.close()


@pytest.fixture
def visit(service: Service, browser: Browser) -> Iterator[Visit]:
    yield from visiting(service, browser)


def visiting(service: Service, browser: Browser, **settings: Any) -> Iterator[Visit]:
    """A visit that must end without a complaint of the browser and without a request to anybody else."""
    context = browser.new_context(
        **{"viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **settings}
    )
    context.set_default_timeout(PATIENCE)
    watched = Visit(context.new_page())
    watched.page.on("console", lambda message: watched.complaints.append(f"{message.type}: {message.text}"))
    watched.page.on("pageerror", lambda error: watched.complaints.append(str(error)))
    watched.page.on("request", lambda request: watched.hosts.add(request.url.partition("/")[0] + host(request.url)))
    watched.page.goto(service.url)
    yield watched
    ours = {f"http:{host(service.url)}", "data:", "blob:http:"}
    context.close()
    assert watched.complaints == []
    assert watched.hosts <= ours


def host(url: str) -> str:
    return url.split("/")[2] if url.startswith("http") else ""


def put(visit: Visit, *uploads: tuple[str, bytes]) -> None:
    files: Any = [{"name": name, "mimeType": "image/png", "buffer": data} for name, data in uploads]
    visit.page.locator("#file").set_input_files(files)


PASTE = """([name, data]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const clipboardData = new DataTransfer();
  clipboardData.items.add(new File([bytes], name, { type: "image/png" }));
  dispatchEvent(new ClipboardEvent("paste", { clipboardData }));
}"""
DROP = """([name, data]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const dataTransfer = new DataTransfer();
  dataTransfer.items.add(new File([bytes], name, { type: "image/png" }));
  for (const kind of ["dragenter", "dragover", "drop"]) {
    document.body.dispatchEvent(new DragEvent(kind, { dataTransfer, bubbles: true, cancelable: true }));
  }
}"""


# Ways in


def test_a_chosen_file_fans_out_into_its_views_and_each_lights_up(visit: Visit, service: Service) -> None:
    put(visit, ("shirt.png", clothes()[0]))
    visit.verdict()
    said = service.post("/v1/look", clothes()[0]).json()
    page = visit.page
    expect(page.locator("#label")).to_have_text(said["label"])
    views = said["asked"][1:]
    expect(page.locator("#sentence")).to_contain_text(f"{said['agree']} of {len(views)} changed copies")
    expect(page.locator("#decision")).to_have_text(DECIDED[said["decision"]])
    expect(page.locator("#base")).to_have_text(said["base"])
    expect(page.locator("#fan li")).to_have_count(len(PANEL))
    states = ["agree" if vote["label"] == said["label"] else "differ" for vote in said["asked"][1:]]
    assert [item.get_attribute("data-state") for item in page.locator("#fan li").all()] == states
    for image in page.locator("#fan img, #picture").all():
        assert image.evaluate("image => image.complete && image.naturalWidth > 0")
    expect(page.locator("#status")).to_contain_text(said["label"])
    expect(page.locator("#set")).to_be_hidden()


def test_views_that_disagree_show_what_they_say(visit: Visit) -> None:
    visit.page.locator("#samples button").nth(5).click()  # a shirt that looks like a coat and a pullover
    visit.verdict()
    differ = visit.page.locator("#fan li[data-state=differ]")
    assert differ.count() > 0
    for item in differ.all():
        tag = item.locator(".said").inner_text()
        assert tag
        assert tag in str(item.locator("button").get_attribute("aria-label"))
    differ.first.locator("button").click()
    expect(visit.page.locator("#view-dialog")).to_be_visible()
    expect(visit.page.locator("#view-answer")).to_contain_text(differ.first.locator(".said").inner_text())
    visit.page.click("#view-close")
    expect(visit.page.locator("#view-dialog")).to_be_hidden()


def test_a_fish_is_not_the_kind_of_picture_it_learned_from(visit: Visit) -> None:
    page = visit.page
    put(visit, ("fish.png", encode_png(fish(500, 375))))
    visit.verdict()
    expect(page.locator("#unfamiliar")).to_contain_text("This is not the kind of picture it learned from")
    expect(page.locator("#unfamiliar-because")).to_have_text(
        "a colour picture 1.33 times as wide as high; the labelled pictures are grey and square"
    )
    expect(page.locator("#decision")).to_have_text(DECIDED["review"])
    expect(page.locator("#status")).to_contain_text("This is not the kind of picture it learned from")
    for struck in (".number", "#label", "#history-list strong"):
        expect(page.locator(struck)).to_have_css("text-decoration-line", "line-through")
    put(visit, ("shirt.png", clothes()[0]))
    visit.verdict(2)
    expect(page.locator("#unfamiliar")).to_be_hidden()
    expect(page.locator(".number")).to_have_css("text-decoration-line", "none")


def test_a_pasted_and_a_dropped_picture_are_looked_at(visit: Visit) -> None:
    visit.page.evaluate(PASTE, ["pasted.png", base64.b64encode(clothes()[1]).decode()])
    visit.verdict(1)
    visit.page.evaluate(DROP, ["dropped.png", base64.b64encode(clothes()[2]).decode()])
    visit.verdict(2)


def test_several_files_are_looked_at_one_after_the_other_and_stay_in_the_visit(visit: Visit) -> None:
    put(visit, *[(f"{n}.png", clothes()[n]) for n in range(3)])
    visit.verdict(3)
    label = visit.page.locator("#history-list li").nth(2).locator("span").inner_text()
    visit.page.locator("#history-list button").nth(2).click()
    expect(visit.page.locator("#label")).to_have_text(label)
    expect(visit.page.locator("#picture")).to_have_attribute("alt", "0.png")


def test_a_sample_shows_something_at_once(visit: Visit) -> None:
    samples = visit.page.locator("#samples button")
    expect(samples).to_have_count(48)
    samples.first.click()
    visit.verdict()
    assert visit.page.locator("#picture").get_attribute("alt") == "Sneaker.png"


def test_a_drawing_in_colour_is_no_picture_that_it_can_be_trusted_with(visit: Visit) -> None:
    visit.page.get_by_label("In colour, as in a shop: it never saw such pictures").locator("button").first.click()
    visit.verdict()
    assert visit.page.locator("#picture").get_attribute("alt") == "T-shirt/top.jpg"
    expect(visit.page.locator("#unfamiliar-because")).to_contain_text(
        "a colour picture; the labelled pictures are grey"
    )
    expect(visit.page.locator("#decision")).to_have_text(DECIDED["review"])


def test_turning_the_phone_takes_a_burst_that_is_judged_as_one(visit: Visit) -> None:
    page = visit.page
    page.click("#camera")
    expect(page.locator("#camera-dialog")).to_be_visible()
    playing(page)
    page.click("#burst")
    visit.verdict()
    expect(page.locator("#camera-dialog")).to_be_hidden()
    expect(page.locator("#fan li")).to_have_count(7)
    expect(page.locator("#decision")).to_have_text(DECIDED["review"])  # a test camera shows no clothes
    expect(page.locator("#unfamiliar")).to_be_visible()
    page.click("#camera")
    playing(page)
    page.click("#snap")
    visit.verdict(2)
    expect(page.locator("#fan li")).to_have_count(len(PANEL))


def playing(page: Page) -> None:
    expect(page.locator("#video")).to_have_js_property("readyState", 4)


def test_a_prediction_set_is_shown_where_there_is_one(tmp_path: Path, browser: Browser) -> None:
    profile = learn_profile(tmp_path / "profile.json", "jury")
    with started("serve", "--profile", profile, "--port", 0, "--coverage", 0.99) as service:
        visits = visiting(service, browser)
        visit = next(visits)
        page = visit.page
        expect(page.locator("#set")).to_be_hidden()
        sets = [service.post("/v1/look", picture).json()["prediction_set"] for picture in clothes()[:20]]
        place = next(place for place, labels in enumerate(sets) if len(labels) > 2)
        put(visit, ("doubtful.png", clothes()[place]))
        visit.verdict()
        words = ["any other label" if label is None else label for label in sets[place]]
        told = f"Prediction set: {', '.join(words[:-1])} or {words[-1]}"
        expect(page.locator("#set")).to_have_text(told)
        expect(page.locator("#status")).to_contain_text(told)
        page.click("#camera")
        playing(page)
        page.click("#burst")
        visit.verdict(2)
        expect(page.locator("#set")).to_be_hidden()
        page.click("#tab-trust")
        expect(page.locator("#basis")).to_contain_text("Prediction sets hold the truth 99 % of the time.")
        next(visits, None)


# What goes wrong


def test_a_broken_file_is_named_and_the_page_goes_on(visit: Visit) -> None:
    put(visit, ("holiday.png", clothes()[0][:60]))
    assert "holiday.png" in visit.alert()
    expect(visit.page.locator("#sentence")).to_have_text("There is no verdict.")
    put(visit, ("shirt.png", clothes()[0]))
    visit.verdict()
    expect(visit.page.locator("#alert")).to_be_hidden()
    visit.complaints.clear()  # Chromium reports every reply of 422 to the console


def test_a_file_that_is_too_large_is_refused_before_it_is_sent(visit: Visit) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (700, 700, 3), np.uint8)
    expect(visit.page.locator("#samples button")).to_have_count(48)  # by then it knows the service's limits
    put(visit, ("large.png", encode_png(noise)))
    assert "1.0 MB" in visit.alert()


def test_labels_and_names_are_text_and_never_markup(visit: Visit) -> None:
    put(visit, ("<img src=x onerror=alert(1)>.png", b"no picture"))
    assert "<img src=x" in visit.alert()
    assert visit.page.locator("#alert img").count() == 0
    visit.complaints.clear()


def test_a_service_that_is_gone_is_said(profile: Path, browser: Browser) -> None:
    with serving(profile) as service:
        visits = visiting(service, browser)
        visit = next(visits)
        expect(visit.page.locator("#samples button")).to_have_count(48)
        service.process.terminate()
        service.process.wait(60)
        put(visit, ("shirt.png", clothes()[0]))
        assert visit.alert()
        visit.complaints.clear()
        next(visits, None)


def test_a_picture_is_shown_while_it_is_sent_and_others_wait(visit: Visit) -> None:
    page, held = visit.page, list[Route]()

    def hold(route: Route) -> None:
        held.append(route)

    expect(page.locator("#samples button")).to_have_count(48)
    put(visit, ("first.png", clothes()[0]))
    visit.verdict()
    page.route("**/v1/look/events", hold, times=1)
    put(visit, ("second.png", clothes()[1]))
    expect(page.locator("#picture")).to_have_attribute("alt", "second.png")
    expect(page.locator("#sentence")).to_contain_text("Sending")
    expect(page.locator("#label")).to_have_text("\u00a0")
    expect(page.locator("#fan li")).to_have_count(0)
    put(visit, ("third.png", clothes()[2]))
    held[0].continue_()
    visit.verdict(3)
    expect(page.locator("#picture")).to_have_attribute("alt", "third.png")


def test_a_failure_among_several_stays_in_the_visit_with_its_reason(visit: Visit) -> None:
    page = visit.page
    put(visit, ("one.png", clothes()[0]), ("broken.png", clothes()[1][:60]), ("two.png", clothes()[2]))
    visit.verdict(3)
    expect(page.locator("#alert")).to_be_hidden()
    failed = page.locator("#history-list [data-decision=failed]")
    expect(failed).to_have_count(1)
    expect(failed).to_contain_text("broken.png")
    failed.click()
    assert "broken.png" in visit.alert()
    expect(page.locator("#sentence")).to_have_text("There is no verdict.")
    visit.complaints.clear()


@pytest.fixture(scope="module")
def guarded(profile: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    path = tmp_path_factory.mktemp("guarded") / "tokens"
    path.write_text(hashlib.sha256(TOKEN.encode()).hexdigest())
    with serving(profile, token_file=str(path)) as running:
        yield running


def test_a_wrong_token_is_said_and_the_right_one_is_kept_for_the_visit(guarded: Service, browser: Browser) -> None:
    visits = visiting(guarded, browser)
    visit = next(visits)
    page = visit.page
    expect(page.locator("#token-dialog")).to_be_visible()
    expect(page.locator("#alert")).to_be_hidden()
    expect(page.locator("#token-wrong")).to_be_hidden()
    page.fill("#token", "guess")
    page.click("#token-show")
    expect(page.locator("#token")).to_have_attribute("type", "text")
    page.keyboard.press("Tab")
    page.locator("#token").press("Enter")
    expect(page.locator("#token-wrong")).to_be_visible()
    expect(page.locator("#alert")).to_be_hidden()
    page.fill("#token", TOKEN)
    page.keyboard.press("Enter")
    put(visit, ("shirt.png", clothes()[0]))
    visit.verdict()
    assert page.evaluate("localStorage.length") == 0
    visit.complaints.clear()  # the first replies were 401
    next(visits, None)


def test_a_link_brings_the_token_and_a_device_remembers_it(guarded: Service, browser: Browser) -> None:
    visits = visiting(guarded, browser)
    page = next(visits).page
    expect(page.locator("#token-dialog")).to_be_visible()
    page.fill("#token", TOKEN)
    page.check("#token-remember")
    page.keyboard.press("Enter")
    expect(page.locator("#samples button")).to_have_count(48)
    another = page.context.new_page()
    another.goto(guarded.url)
    expect(another.locator("#samples button")).to_have_count(48)
    another.evaluate("localStorage.clear()")
    linked = page.context.new_page()
    asked: list[str] = []
    linked.on("request", lambda request: asked.append(request.url))
    linked.goto(f"{guarded.url}#token={quote(TOKEN)}")
    expect(linked.locator("#samples button")).to_have_count(48)
    assert linked.url == guarded.url
    assert not [url for url in asked[1:] if "token=" in url]
    page.context.close()


def test_without_https_the_camera_of_the_phone_is_used(visit: Visit) -> None:
    page = visit.page
    page.evaluate("() => Object.defineProperty(navigator, 'mediaDevices', { value: undefined })")
    with page.expect_file_chooser() as chooser:
        page.click("#camera")
    photo: Any = {"name": "photo.png", "mimeType": "image/png", "buffer": clothes()[0]}
    chooser.value.set_files(photo)
    visit.verdict()


# For everybody


def test_everything_can_be_done_with_the_keyboard(visit: Visit) -> None:
    page = visit.page
    expect(page.locator("#samples button")).to_have_count(48)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("#tab-look")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#tab-trust")).to_be_focused()
    expect(page.locator("#trust")).to_be_visible()
    page.keyboard.press("ArrowRight")
    for wanted in ("#choose", "#camera", "#samples li:first-child button >> nth=0"):
        page.keyboard.press("Tab")
        expect(page.locator(wanted)).to_be_focused()
    page.keyboard.press("Enter")
    visit.verdict()
    page.locator("#camera").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#camera-dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#camera")).to_be_focused()


def test_the_second_tab_tells_how_far_to_trust_it(visit: Visit) -> None:
    page = visit.page
    page.click("#tab-trust")
    expect(page.locator("#figure svg title").first).to_have_text("Confidence and real accuracy")
    expect(page.locator("#guarantee")).to_contain_text("%")
    expect(page.locator("#plainly-more")).to_contain_text("A picture unlike those is never accepted")
    expect(page.locator("#basis")).to_be_hidden()
    page.click(".experts summary")
    expect(page.locator("#basis")).to_contain_text("A picture that is not like them is never accepted")
    expect(page.locator("#results tbody tr")).to_have_count(3)
    expect(page.locator("#panel li")).to_have_count(len(PANEL))


@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_sticks_out_and_axe_finds_nothing_serious(
    service: Service, browser: Browser, width: int, scheme: str
) -> None:
    settings = {"viewport": {"width": width, "height": 780}, "color_scheme": scheme, "bypass_csp": True}
    visits = visiting(service, browser, **settings)
    visit = next(visits)
    expect(visit.page.locator("#samples button")).to_have_count(48)
    inspect(visit)
    visit.page.locator("#samples button").nth(5).click()
    visit.verdict()
    inspect(visit)
    put(visit, ("fish.png", encode_png(fish(500, 375))))
    visit.verdict(2)
    inspect(visit)
    visit.page.locator("#fan button").first.click()
    inspect(visit)
    visit.page.click("#view-close")
    visit.page.click("#tab-trust")
    inspect(visit)
    visit.page.click(".experts summary")
    inspect(visit)
    table = visit.page.locator("#results")
    assert table.evaluate("table => table.scrollWidth <= table.parentElement.clientWidth")
    next(visits, None)


def inspect(visit: Visit) -> None:
    wider = visit.page.evaluate("() => document.documentElement.scrollWidth - document.documentElement.clientWidth")
    assert wider <= 0
    violations = Axe().run(visit.page).response["violations"]
    serious = [
        (rule["id"], rule["nodes"][0]["html"]) for rule in violations if rule["impact"] in ("serious", "critical")
    ]
    assert serious == []
