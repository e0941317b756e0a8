"""Checks every page of the built site in Chromium: python tools/site.py build/site

At widths of 1,280 and 360 px, nothing may be wider than the page, and every picture must load and have an alternative
text. Search must return results, and the pages must follow the system's dark mode.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM = Path("/usr/bin/chromium")
WIDTHS = (1280, 360)
FAULTS = """() => {
  const root = document.documentElement, found = []
  if (root.scrollWidth > root.clientWidth) found.push(`is ${root.scrollWidth} px wide`)
  for (const table of document.querySelectorAll('.md-typeset table:not([class])')) {
    const holder = table.closest('.md-typeset__scrollwrap') || table.parentElement
    if (holder.scrollWidth > holder.clientWidth + 1)
      found.push(`has a table of ${holder.scrollWidth} px in ${holder.clientWidth}: ${table.innerText.slice(0, 60)}`)
  }
  for (const image of document.querySelectorAll('.md-typeset img')) {
    if (!image.alt.trim()) found.push(`has a picture without alternative text: ${image.src}`)
    if (image.complete && !image.naturalWidth) found.push(`has a picture that does not load: ${image.src}`)
  }
  return found
}"""


def faults(browser: Browser, site: Path) -> Iterator[str]:
    """The problems found, one line each."""
    for width in WIDTHS:
        page = browser.new_page(viewport={"width": width, "height": 800})
        for file in sorted(site.rglob("*.html")):
            page.goto(file.as_uri())
            yield from (f"{file.relative_to(site)} at {width} px {fault}" for fault in page.evaluate(FAULTS))
        page.close()
    page = browser.new_page(color_scheme="dark")
    page.goto((site / "index.html").as_uri())
    if not search_finds(page, "budget"):
        yield "search finds nothing about budgets from file://"
    light = "getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3).every(c => c > 128)"
    if page.evaluate(light):
        yield "a page is light in dark mode"


def search_finds(page: Page, word: str) -> bool:
    page.locator(".md-search__input").click()
    page.locator(".md-search__input").press_sequentially(word)
    try:
        page.locator(".md-search-result__item").first.wait_for(timeout=10_000)
    except Exception:
        return False
    return True


def main(site: Path) -> int:
    if not CHROMIUM.exists():
        print(f"{CHROMIUM} is not there: the site was not looked at", file=sys.stderr)
        return 0
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        seen = list(faults(browser, site.resolve()))
        browser.close()
    print("\n".join(seen) or f"{len(list(site.rglob('*.html')))} pages fit {' and '.join(map(str, WIDTHS))} px")
    return int(bool(seen))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
