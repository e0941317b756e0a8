"""Connectors of other packages, as a user would install them."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import re
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

import numpy as np
import pytest

from looktwice.classifiers import connect
from looktwice.errors import PermanentError

GUIDE = Path(__file__).parents[1] / "docs" / "connectors.md"


def guide_block(title: str) -> str:
    """The block of code in the guide that begins with a comment of this title."""
    found = re.search(rf"```\w+\n# {re.escape(title)}\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    assert found, f"docs/connectors.md shows no {title}"
    return found[1]


def wheel(folder: Path, files: dict[str, str]) -> Path:
    """A wheel of the toy package, which is a zip file with a list of what is in it."""
    info = "looktwice_brightness-1.0.dist-info"
    files = {
        **files,
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: looktwice-brightness\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},{_digest(text)},{len(text.encode())}\n" for name, text in files.items())
    path = folder / "looktwice_brightness-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in {**files, f"{info}/RECORD": f"{record}{info}/RECORD,,\n"}.items():
            archive.writestr(name, text)
    return path


def _digest(text: str) -> str:
    return "sha256=" + urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")


def entry_points_of(pyproject: str) -> str:
    """entry_points.txt of a wheel, as build tools write it from pyproject.toml."""
    import tomllib

    groups = tomllib.loads(pyproject)["project"]["entry-points"]
    return "".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
        for group, points in groups.items()
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages with the example of the guide in it."""
    files = {
        "looktwice_brightness.py": guide_block("looktwice_brightness.py"),
        "looktwice_brightness-1.0.dist-info/entry_points.txt": entry_points_of(guide_block("pyproject.toml")),
    }
    folder = tmp_path_factory.mktemp("toy")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    quiet = ["--no-index", "--no-deps", "--target", str(folder / "site")]
    subprocess.run([*pip, *quiet, str(wheel(folder, files))], check=True, timeout=120)
    return folder / "site"


@pytest.fixture
def installed(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example of the guide can be imported, in this test alone."""
    monkeypatch.syspath_prepend(str(site))
    importlib.invalidate_caches()


def test_an_installed_package_adds_its_connector(installed: None) -> None:
    classifier = connect("brightness:100")
    prepared = [classifier.prepare(np.full((4, 4, 3), value, np.uint8)) for value in (0, 255)]
    answers = asyncio.run(classifier.label(prepared))
    assert [answer.label for answer in answers] == ["dark", "bright"]
    assert connect("brightness:100").fingerprint == classifier.fingerprint != connect("brightness:9").fingerprint
    asyncio.run(classifier.close())


def test_a_toml_file_can_name_an_installed_connector(installed: None, tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text('connector = "brightness"\nthreshold = 100\n')
    assert connect(tmp_path / "b.toml").fingerprint == connect("brightness:100").fingerprint


def test_an_installed_connector_is_among_the_hints(installed: None) -> None:
    with pytest.raises(PermanentError, match="did you mean 'brightness'"):
        connect("brightnes:100")


def test_without_the_package_there_is_no_such_connector() -> None:
    with pytest.raises(PermanentError, match="no connector is called 'brightness'"):
        connect("brightness:100")
