"""Checks the links of all Markdown files: every file and heading of this project that one leads to is there.

Run it: python tools/links.py. Addresses elsewhere are not fetched.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
FENCE = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub and MkDocs make them."""
    headings = HEADING.findall(FENCE.sub("", page.read_text("utf-8")))
    plain = (re.sub(r"\]\([^)]*\)", "", heading) for heading in headings)
    return frozenset(re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in plain)


def broken(page: Path) -> Iterator[str]:
    """The links of a page that lead nowhere."""
    for path, anchor in LINK.findall(FENCE.sub("", page.read_text("utf-8"))):
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield path
        elif anchor and target.suffix == ".md" and anchor not in anchors(target):
            yield f"{path}#{anchor}"


if __name__ == "__main__":
    pages = [*ROOT.glob("*.md"), *ROOT.glob(".github/*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")]
    found = [f"{page.relative_to(ROOT)}: {link} leads nowhere" for page in sorted(pages) for link in broken(page)]
    print("\n".join(found) or f"{len(pages)} pages, all links lead somewhere")
    sys.exit(bool(found))
