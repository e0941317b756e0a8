"""Every benchmark, each figure beside its goal, and the table of docs/performance.md.

    python benchmarks [NAME …]     all of them, or some: start, rendering, local, photos, engine, pressure, jury, growth

Each is a process of its own and may be run alone. The table keeps the lines of those that were not run.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from goals import Figure, read

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
ALL: dict[str, tuple[str, ...]] = {
    "start": (),
    "rendering": (),
    "local": (),
    "photos": (),
    "engine": (),
    "pressure": (),
    "jury": (),
    "growth": ("--figures",),
}
BEGIN, END = "<!-- figures: {} -->", "<!-- end -->"


def run(name: str) -> list[Figure]:
    """What a benchmark says, which is printed as it comes."""
    print(f"\n== {name}", flush=True)
    began, found = time.monotonic(), []
    command = [sys.executable, str(HERE / f"{name}.py"), *ALL[name]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
            if figure := read(line.rstrip("\n")):
                found.append(figure)
    print(f"-- {time.monotonic() - began:.0f} s", flush=True)
    if not found:
        sys.exit(f"benchmarks/{name}.py gave no figure (exit code {process.returncode})")
    return found


def table(figures: list[Figure]) -> str:
    rows = [
        f"| {figure.what} | {figure.value:.2f}{figure.unit} | {figure.wish} |"
        f" {'' if figure.reached else '**missed**'} |"
        for figure in figures
    ]
    return "\n".join(["| | measured | goal | |", "|---|---|---|---|", *rows])


def put(page: str, name: str, figures: list[Figure]) -> str:
    """The page with new figures under the mark of a benchmark."""
    before, _, rest = page.partition(BEGIN.format(name))
    _, _, after = rest.partition(END)
    machine = f"{os.cpu_count()} processors, {platform.machine()}, Python {platform.python_version()}"
    return f"{before}{BEGIN.format(name)}\n\n{table(figures)}\n\n*{machine}*\n\n{END}{after}"


def main() -> None:
    names = sys.argv[1:] or list(ALL)
    if unknown := set(names) - set(ALL):
        sys.exit(f"there is no benchmark {', '.join(unknown)}; there are {', '.join(ALL)}")
    page, missed = PAGE.read_text("utf-8"), []
    for name in names:
        figures = run(name)
        page = put(page, name, figures)
        PAGE.write_text(page, "utf-8")
        missed += [figure for figure in figures if not figure.reached]
    print(f"\nTable: {PAGE.relative_to(HERE.parent)}")
    for figure in missed:
        print(f"missed: {figure}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
