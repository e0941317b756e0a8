"""What the documents show works: every Python snippet runs, every doctest holds, every link leads somewhere."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path

import cv2
import numpy as np
import pytest

import secondlook
from secondlook.errors import MissingExtra

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SNIPPET = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
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


@pytest.mark.usefixtures("desk")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_snippets_of_a_page_run_one_after_the_other(page: Path) -> None:
    names: dict[str, object] = {"__name__": "snippet"}
    for code in SNIPPET.findall(page.read_text("utf-8")):
        exec(compile(code, page.name, "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    missing = [target for target in LINK.findall(page.read_text("utf-8")) if not (page.parent / target).exists()]
    assert not missing


MODULES = [info.name for info in pkgutil.walk_packages(secondlook.__path__, "secondlook.", onerror=lambda _: None)]


@pytest.mark.parametrize("name", ["secondlook", *MODULES])
def test_examples_in_docstrings_hold(name: str) -> None:
    try:
        module = importlib.import_module(name)
    except (ImportError, MissingExtra) as error:
        pytest.skip(f"an optional part that the tests do not install: {error}")
    assert doctest.testmod(module).failed == 0
