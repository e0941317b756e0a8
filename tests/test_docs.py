"""What the documents show works: snippets run, doctests hold, and what is generated is fresh."""

import doctest
import importlib
import os
import pkgutil
import random
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from contextlib import suppress
from pathlib import Path

import cv2
import numpy as np
import pytest

import looktwice
from looktwice.errors import MissingExtra

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "tools"))

import charts  # noqa: E402

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
COMMANDS = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
PRINTED = re.compile(r"^It prints\n\n((?: {4}.*\n)+)", re.MULTILINE)
PORT = 9000
"""The port of a server that a page starts; the tests choose a free one."""


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


@pytest.fixture
def folder_with_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with what the pages take for granted: photos in folders of their class, and words for the classes."""
    rng = np.random.default_rng(0)
    for synset in ("n01440764", "n01443537"):
        (tmp_path / "photos" / synset).mkdir(parents=True)
        for i in range(3):
            picture = rng.integers(0, 256, (32, 32, 3), np.uint8)
            cv2.imwrite(str(tmp_path / "photos" / synset / f"{i}.png"), picture)
    (tmp_path / "synset_words.txt").write_text("n01440764 tench, Tinca tinca\nn01443537 goldfish, Carassius auratus\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
@pytest.mark.usefixtures("folder_with_photos")
@pytest.mark.parametrize("page", [page for page in PAGES[1:] if SNIPPET.search(page.read_text("utf-8"))], ids=named)
def test_the_snippets_of_a_page_run_one_after_the_other(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names: dict[str, object] = {"__name__": "snippet"}
    text = page.read_text("utf-8")
    for code in SNIPPET.findall(text):
        exec(compile(code, page.name, "exec"), names)
    shown = capsys.readouterr().out
    for printed in PRINTED.findall(text):
        assert textwrap.dedent(printed) in shown


def test_the_example_of_the_readme_runs() -> None:
    """The same script runs in an environment that holds just what the README installs: `make test-package`."""
    command = [sys.executable, str(ROOT / "tools" / "readme_example.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [page for page in PAGES if COMMANDS.search(page.read_text("utf-8"))], ids=named)
def test_the_commands_of_a_page_run_one_after_the_other(page: Path, tmp_path: Path) -> None:
    port = free_port()
    script = "\n".join(COMMANDS.findall(page.read_text("utf-8"))).replace(str(PORT), str(port))
    script = script.replace(str(PORT + 1), str(free_port()))
    waiting = f"python {__file__} {port}\n"  # until the server that the page starts is up
    script = re.sub(r"(?m)^(python \S+ \d+ &)$", lambda match: f"{match[1]}\n{waiting}", script)
    place = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data"), "COLUMNS": "120"}
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with (tmp_path / "said.txt").open("w") as out:
        process = subprocess.Popen(
            ["sh", "-eu", "-c", script],
            cwd=tmp_path,
            env={**os.environ, **place, "PATH": path},
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(900)
        finally:
            with suppress(ProcessLookupError):  # a page may leave nobody behind
                os.killpg(process.pid, signal.SIGKILL)
    said = (tmp_path / "said.txt").read_text()
    assert code == 0, said
    assert "Traceback" not in said
    if page.name == "tutorial.md":
        check_tutorial(said, tmp_path)


def check_tutorial(said: str, folder: Path) -> None:
    """The figures that the tutorial tells are those that its commands print."""
    assert re.search(
        r"400 pictures, 0 .*: 1,600 queries",
        " ".join(said.split()),
    )
    assert len((folder / "photos" / "labels.csv").read_text().splitlines()) == 601
    assert "Accepted:" in said
    assert "accept" in (folder / "verdicts.csv").read_text()
    assert re.search(
        r"2\.5[6-9]\d0", said
    )  # 3 to check, 2400 about labelled ones, 160 to score, canaries by the minute


def free_port() -> int:
    """Below those that the system gives away, so that nobody gets it before the page's server starts."""
    while True:
        port = random.randrange(20_000, 29_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def wait_for(port: int) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise TimeoutError(f"nobody listens at port {port}")


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_line_holds_two_headings_items_or_rows(page: Path) -> None:
    lines = re.sub(r"^( *)```.*?^\1```", "", page.read_text("utf-8"), flags=re.DOTALL | re.MULTILINE).splitlines()
    cells = [re.sub(r"`[^`]*`|\\\|", "", line).count("|") if line.startswith("|") else 0 for line in lines]
    ragged = [
        line
        for line, before, count in zip(lines[1:], cells, cells[1:], strict=False)
        if before and count not in (0, before)
    ]
    joined = [line for line in lines if re.match(r"#.{81}", line) or re.search(r"\. [2-9]\. [A-Z]", line)]
    assert ragged + joined == []


def test_every_page_is_on_the_site() -> None:
    told = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert [named(page) for page in PAGES[1:] if page.relative_to(ROOT / "docs").as_posix() not in told] == []
    assert not re.search(r"(?:css|javascript): .*https?://", told)


@pytest.mark.parametrize(("script", "kept"), [("cli_reference", "cli"), ("api_reference", "api")])
def test_the_reference_is_what_the_code_says(script: str, kept: str) -> None:
    command = [sys.executable, str(ROOT / "tools" / f"{script}.py")]
    fresh = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "80"})
    page = (ROOT / "docs" / "reference" / f"{kept}.md").read_text("utf-8")
    assert page == fresh.stdout, f"run: python tools/{script}.py > docs/reference/{kept}.md"


def test_the_bibliography_names_places_that_are_there() -> None:
    told = (ROOT / "docs" / "bibliography.md").read_text("utf-8")
    files = re.findall(r"`(\w+/\w+\.py)`", told)
    names = re.findall(r"`metrics\.(\w+)`", told)
    assert len(files) > 5
    assert [file for file in files if not (ROOT / "src" / "looktwice" / file).exists()] == []
    assert [name for name in names if not hasattr(looktwice.metrics, name)] == []


def test_a_percentage_is_written_with_a_space_everywhere() -> None:
    texts = [*(ROOT / "src").rglob("*.py"), *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    tight = re.compile(r"(?<![%\w#.-])\d[\d.]*%|:\.?\d*%\}|(?<!SPACE)\}%")  # the last two: in an f-string
    without_space = {
        (path.name, line.strip())
        for path in texts
        for line in path.read_text("utf-8").splitlines()
        if tight.search(line) and "<svg" not in line
    }
    assert without_space == set()


def test_the_picture_of_the_packages_shows_the_imports_of_the_code() -> None:
    script = str(ROOT / "tools" / "packages_figure.py")
    fresh = subprocess.run([sys.executable, script], capture_output=True, check=True)
    kept = (ROOT / "docs" / "packages.svg").read_bytes()
    assert kept == fresh.stdout, "run: python tools/packages_figure.py > docs/packages.svg"


@pytest.mark.parametrize("name", charts.CHARTS)
def test_a_figure_of_the_results_shows_its_csv(name: str) -> None:
    kept = (charts.FIGURES / f"{name}.svg").read_text("utf-8")
    assert kept == charts.CHARTS[name](), f"run: python tools/charts.py {name}"


def test_the_notebook_runs_to_its_end(tmp_path: Path) -> None:
    words = (
        "import nbformat, nbclient, sys; nbclient.NotebookClient(nbformat.read(sys.argv[1], 4), timeout=300).execute()"
    )
    command = [sys.executable, "-c", words, str(ROOT / "docs" / "tutorial.ipynb")]
    place = {"JUPYTER_DATA_DIR": str(tmp_path), "IPYTHONDIR": str(tmp_path), "XDG_DATA_HOME": str(tmp_path)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=tmp_path, env={**os.environ, **place}
    )
    assert done.returncode == 0, done.stderr[-3000:]


MODULES = [info.name for info in pkgutil.walk_packages(looktwice.__path__, "looktwice.", onerror=lambda _: None)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["looktwice", *MODULES])
def test_examples_in_docstrings_hold(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except (ImportError, MissingExtra) as error:
        pytest.skip(f"an optional part that the tests do not install: {error}")
    assert doctest.testmod(module).failed == 0


if __name__ == "__main__":
    wait_for(int(sys.argv[1]))
