"""Counts the words in the documents and fails if they exceed the limits: python tools/words.py

Generated text (tables between marks, docs/tables and docs/reference) is not counted; neither are the bibliography, the
glossary, and fenced code, which the tests run.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
MOST, MOST_A_PAGE = 45_000, 3_500
LIMITS = {"docs/method.md": 3_000}
GENERATED = re.compile(r"<!-- (?:figures: )?([\w-]+) -->.*?<!-- (?:/\1|end) -->|^```.*?^```", re.DOTALL | re.MULTILINE)
SKIPPED = ("docs/tables/", "docs/reference/", "docs/bibliography.md", "docs/glossary.md")


def main() -> int:
    pages = {page.relative_to(ROOT).as_posix(): page for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]}
    counts = {
        name: len(GENERATED.sub("", page.read_text("utf-8")).split())
        for name, page in pages.items()
        if not name.startswith(SKIPPED)
    }
    for name, count in sorted(counts.items(), key=lambda item: -item[1])[: 60 if "-v" in sys.argv else 5]:
        print(f"{count:7,} words  {name}")
    total = sum(counts.values())
    print(f"{total:7,} words on {len(counts)} pages; at most {MOST:,}, and {MOST_A_PAGE:,} on a page")
    long = [name for name, count in counts.items() if count > LIMITS.get(name, MOST_A_PAGE)]
    for name in long:
        print(f"{name} has {counts[name]:,} words; at most {LIMITS.get(name, MOST_A_PAGE):,}", file=sys.stderr)
    return int(bool(long) or total > MOST)


if __name__ == "__main__":
    sys.exit(main())
