"""Draws docs/packages.svg: the packages in their layers and the imports between them, read from the code.

Imports that follow from other imports (transitively) are omitted.

python tools/packages_figure.py > docs/packages.svg
"""

from __future__ import annotations

import ast
import sys
import tomllib
from html import escape
from pathlib import Path

import grimp

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "looktwice"
WIDTH, ROW, BOX, MARGIN = 960, 96, 58, 24
EVERYWHERE = ("errors", "files")
"""Packages that nearly every package imports, so that lines to them would not be informative."""


def layers() -> list[list[str]]:
    """The packages of each layer, from the interfaces downwards, as in the contract in pyproject.toml."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    rows = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    return [[name.strip().removeprefix("looktwice.") for name in row.split("|")] for row in rows]


def said(package: str) -> str:
    """The first line of the package's docstring, up to its first colon or full stop."""
    path = SOURCE / package / "__init__.py"
    tree = ast.parse((path if path.exists() else SOURCE / f"{package}.py").read_text("utf-8"))
    line = (ast.get_docstring(tree) or "").partition("\n")[0]
    return line.partition(":")[0].partition(". ")[0].rstrip(".").replace("`", "")


def imports(packages: list[str]) -> set[tuple[str, str]]:
    """The imports of each package."""
    graph = grimp.build_graph("looktwice", exclude_type_checking_imports=True, cache_dir=None)

    def package(module: str) -> str:
        return module.split(".")[1] if "." in module else ""

    pairs = {(package(a), package(b)) for a in graph.modules for b in graph.find_modules_directly_imported_by(a)}
    found = {(a, b) for a, b in pairs if a != b and a in packages and b in packages and b not in EVERYWHERE}
    below = {package: {b for a, b in found if a == package} for package in packages}

    def reached(package: str) -> set[str]:
        return below[package].union(*map(reached, below[package]))

    return {(a, b) for a, b in found if not any(b in reached(between) for between in below[a])}


def draw() -> str:
    rows = layers()
    place: dict[str, tuple[float, float, float]] = {}
    for number, row in enumerate(rows):
        width = (WIDTH - MARGIN * (len(row) + 1)) / len(row)
        width = min(width, 520)
        left = (WIDTH - width * len(row) - MARGIN * (len(row) - 1)) / 2
        for x, package in enumerate(row):
            place[package] = (left + x * (width + MARGIN), MARGIN + number * ROW, width)
    lines = []
    for a, b in sorted(imports(list(place))):
        (ax, ay, aw), (bx, by, bw) = place[a], place[b]
        x1, y1, x2, y2 = ax + aw / 2, ay + BOX, bx + bw / 2, by
        side = 1 if x1 <= WIDTH / 2 else -1
        bend = side * 34 * (by - ay) / ROW if by - ay > ROW else 0.0
        curve = f"C{x1 - bend:.0f} {y1 + 30:.0f} {x2 - bend:.0f} {y2 - 30:.0f} {x2:.0f} {y2:.0f}"
        lines.append(f'<path d="M{x1:.0f} {y1:.0f} {curve}"/>')
    boxes = []
    for package, (at, y, width) in place.items():
        boxes.append(
            f'<g><rect x="{at:.0f}" y="{y:.0f}" width="{width:.0f}" height="{BOX}" rx="8"/>'
            f'<text x="{at + width / 2:.0f}" y="{y + 24:.0f}" class="name">{package}</text>'
            f'<text x="{at + width / 2:.0f}" y="{y + 43:.0f}">{escape(_fitting(said(package), width))}</text></g>'
        )
    height = MARGIN + ROW * len(rows)
    style = (
        "rect{fill:#eef3fb;stroke:#4a6fa5}text{font:12px sans-serif;text-anchor:middle;fill:#333}"
        ".name{font-weight:bold;font-size:15px;fill:#1c3557}path{fill:none;stroke:#9aa7b8;stroke-width:1;opacity:.55}"
    )
    title = "The packages of looktwice: each imports only from those below it"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{title}">'
        f"<title>{title}</title><style>{style}</style>\n"
        f'<rect x="0" y="0" width="{WIDTH}" height="{height}" style="fill:#fff;stroke:none"/>\n'
        + "\n".join([*lines, *boxes])
        + "\n</svg>\n"
    )


def _fitting(text: str, width: float) -> str:
    most = int(width / 6.1)
    return text if len(text) <= most else text[: most - 1].rsplit(" ", 1)[0] + " …"


if __name__ == "__main__":
    sys.stdout.write(draw())
