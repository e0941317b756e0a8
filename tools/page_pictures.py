"""Draws docs/page.png, docs/page-phone.png and docs/page.gif: python tools/page_pictures.py http://127.0.0.1:8000/

Start `looktwice serve --profile looktwice-demo/profile.json` first; it takes Debian's Chromium and Pillow.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import Browser, expect, sync_playwright

DOCS = Path(__file__).parent.parent / "docs"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
SHOTS: dict[str, dict[str, Any]] = {
    "page": {"viewport": {"width": 1280, "height": 930}, "color_scheme": "light"},
    "page-phone": {"viewport": {"width": 360, "height": 880}, "color_scheme": "dark", "is_mobile": True},
}
SAMPLES = (2, 0, 1, 5)
WIDTH, HEIGHT = 900, 654
FRAMES, PAUSE = 9, 180
"""The number of frames per sample in the animation, and the milliseconds between frames; the last frame is shown for
longer."""


def main() -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        for name, settings in SHOTS.items():
            picture = Image.open(io.BytesIO(shot(browser, sys.argv[1], settings))).convert("RGB")
            picture.quantize(256, dither=Image.Dither.NONE).save(DOCS / f"{name}.png", optimize=True)
        first, *others = frames(browser, sys.argv[1])
        times = [PAUSE, *[PAUSE] * (FRAMES - 2), 12 * PAUSE] * len(SAMPLES)
        first.save(DOCS / "page.gif", save_all=True, append_images=others, duration=times, loop=0, optimize=True)


def shot(browser: Browser, url: str, settings: dict[str, Any]) -> bytes:
    page = browser.new_context(**settings).new_page()
    page.goto(url)
    for done, sample in enumerate(SAMPLES, 1):
        page.locator("#samples button").nth(sample).click()
        expect(page.locator("#history-list li")).to_have_count(done)
    page.mouse.move(0, 0)
    page.wait_for_timeout(1500)  # the dial settles
    page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
    return page.screenshot()


def frames(browser: Browser, url: str) -> list[Image.Image]:
    """The page's appearance while samples are processed."""
    page = browser.new_context(**SHOTS["page"]).new_page()
    page.goto(url)
    shots = []
    for done, sample in enumerate(SAMPLES, 1):
        page.locator("#samples button").nth(sample).click()
        page.mouse.move(0, 0)
        page.evaluate("() => { document.activeElement.blur(); scrollTo(0, 0); }")
        for _ in range(FRAMES - 1):
            shots.append(page.screenshot())
            page.wait_for_timeout(PAUSE)
        expect(page.locator("#history-list li")).to_have_count(done)
        page.wait_for_timeout(1500)  # the dial settles
        shots.append(page.screenshot())
    whole = [Image.open(io.BytesIO(shot)).convert("RGB").resize((WIDTH, HEIGHT)) for shot in shots]
    colours = whole[-1].quantize(128, dither=Image.Dither.NONE)
    return [picture.quantize(palette=colours, dither=Image.Dither.NONE) for picture in whole]


if __name__ == "__main__":
    main()
