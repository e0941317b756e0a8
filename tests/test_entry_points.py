"""Connectors, views and calibrators of other packages, as a user would install them."""

from __future__ import annotations

import asyncio
import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
import zipfile
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from support.errors import code_in, coded
from support.workshop import answers, run, write_pictures, write_profile

from looktwice.calibration.calibrators import FAMILIES as CALIBRATORS_KNOWN, named
from looktwice.classifiers.registry import connect
from looktwice.decisions.profile import Profile
from looktwice.decisions.verdict import adjective
from looktwice.engine import picture as queries
from looktwice.errors import FitError, PermanentError, ProfileError, ViewError
from looktwice.images.image import Image
from looktwice.views import FAMILIES, Panel, panels, parse, questions, render
from looktwice.views.base import REGISTERED

DOCS = Path(__file__).parents[1] / "docs"


def guide_block(page: str, title: str) -> str:
    """The block of code in a page of the docs that begins with a comment of this title."""
    block = re.search(rf"```\w+\n# {re.escape(title)}\n(.*?)```", (DOCS / page).read_text("utf-8"), re.DOTALL)
    assert block, f"docs/{page} shows no {title}"
    return block[1]


def wheel(folder: Path, module: str, code: str, pyproject: str) -> Path:
    """A wheel of a package of one module, which is a zip file with a list of what is in it."""
    info = f"{module}-1.0.dist-info"
    files = {
        f"{module}.py": code,
        f"{info}/entry_points.txt": entry_points_of(pyproject),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {module.replace('_', '-')}\nVersion: 1.0\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{name},{_digest(text)},{len(text.encode())}\n" for name, text in files.items())
    path = folder / f"{module}-1.0-py3-none-any.whl"
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


BROKEN = """
from dataclasses import dataclass
from looktwice.views import View, register

@dataclass(frozen=True)
class Unregistered(View):
    adjective = "unregistered"
    def draw(self, part, questions, picture, out):
        out[:] = 0

@register
@dataclass(frozen=True)
class Misnamed(Unregistered):
    adjective = "misnamed"

def function():
    return Misnamed()
"""
BROKEN_POINTS = """
[project.entry-points."looktwice.views"]
absent = "module_that_is_not_there:Absent"
lacking = "broken_views:Lacking"
unregistered = "broken_views:Unregistered"
renamed = "broken_views:Misnamed"
function = "broken_views:function"
twice = "broken_views:Twice"
"""
CALIBRATORS = """
from dataclasses import dataclass, replace
from typing import ClassVar
import numpy as np
import looktwice as lt

@lt.calibration.register
@dataclass(frozen=True)
class Floor(lt.calibration.ShareCalibrator):
    name: ClassVar[str] = "floor"
    least: float = 0.0

    def learn(self, share, correct, classes):
        return replace(self, least=float(correct.mean()))

    def curve(self, share):
        return np.maximum(share, self.least)
"""
CALIBRATOR_POINTS = """
[project.entry-points."looktwice.calibrators"]
floor = "own_calibrators:Floor"
ceiling = "own_calibrators:Floor"
nowhere = "own_calibrators:Nowhere"
"""
SECOND_POINTS = """
[project.entry-points."looktwice.views"]
twice = "second_views:Twice"
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of installed packages: the examples of the guides, and two with views that do not work."""
    folder = tmp_path_factory.mktemp("toy")
    guides = [("howto/write-a-connector.md", "looktwice_brightness"), ("views.md", "looktwice_solarise")]
    wheels = [
        *(
            wheel(folder, name, guide_block(page, f"{name}.py"), guide_block(page, "pyproject.toml"))
            for page, name in guides
        ),
        wheel(folder, "broken_views", BROKEN, BROKEN_POINTS),
        wheel(folder, "second_views", "", SECOND_POINTS),
        wheel(folder, "own_calibrators", CALIBRATORS, CALIBRATOR_POINTS),
    ]
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    quiet = ["--no-index", "--no-deps", "--target", str(folder / "site")]
    subprocess.run([*pip, *quiet, *map(str, wheels)], check=True, timeout=120)
    return folder / "site"


@pytest.fixture
def fresh() -> Iterator[None]:
    """Views as in a new process: those of looktwice are known, and nobody has asked for others."""
    known = dict(REGISTERED)
    for name in [name for name, family in known.items() if family not in FAMILIES]:
        del REGISTERED[name]
    panels._installed.cache_clear()
    yield
    panels._installed.cache_clear()
    REGISTERED.clear()
    REGISTERED.update(known)
    for module in ("looktwice_solarise", "broken_views"):
        sys.modules.pop(module, None)


@pytest.fixture
def installed(site: Path, fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packages can be imported, in this test alone."""
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
    with pytest.raises(PermanentError, check=coded("description-invalid")):
        connect("brightnes:100")


def test_without_the_package_there_is_no_such_connector() -> None:
    with pytest.raises(PermanentError, check=coded("description-invalid")):
        connect("brightness:100")


# Views -------------------------------------------------------------------------------------------------------------

SOLARISED = "solarise:0.5 mirror+solarise:0.7"


def test_an_installed_package_adds_its_view(installed: None) -> None:
    image = Image.from_array(np.random.default_rng(0).integers(0, 256, (9, 8, 3), dtype=np.uint8))
    panel = Panel.parse(SOLARISED)
    one, chained = render(image, questions(image, panel, 0))
    mirrored = image.pixels[:, ::-1]
    assert str(panel) == SOLARISED
    assert np.array_equal(one, np.where(image.pixels < 127.5, image.pixels, 255 - image.pixels))
    assert np.array_equal(chained, np.where(mirrored < 178.5, mirrored, 255 - mirrored))
    assert adjective("mirror+solarise:0.7") == "mirrored and solarised"


def test_an_installed_view_is_among_the_hints(installed: None) -> None:
    with pytest.raises(ViewError, check=coded("view-unknown")):
        parse("solarize:0.5")
    assert "solarise" not in REGISTERED


def test_the_packages_are_not_looked_through_for_a_view_of_looktwice(installed: None) -> None:
    Panel.parse("mirror+turn:10 rotation:30*4")
    assert panels._installed.cache_info().misses == 0


def test_without_the_package_there_is_no_such_view(fresh: None) -> None:
    with pytest.raises(ViewError, check=coded("view-unknown")):
        parse("solarise:0.5")


@pytest.mark.parametrize(
    "name",
    [
        "absent",
        "lacking",
        "unregistered",
        "renamed",
        "function",
        "twice",
    ],
)
def test_a_view_that_cannot_be_loaded_is_explained_in_one_line(installed: None, name: str) -> None:
    for text in (name, f"mirror+{name}"):
        with pytest.raises(ViewError, check=coded("view-plugin")) as caught:
            parse(text)
        assert "\n" not in str(caught.value)


async def test_a_new_version_of_a_view_is_asked_anew(
    installed: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures, panel = write_pictures(tmp_path / "pictures.npz", 5), Panel.parse(f"mirror {SOLARISED}")
    write_profile(tmp_path / "profile.json", "brightness:100", panel)
    hits = []
    for version in ("", "", "2", "2"):
        monkeypatch.setattr(type(parse("solarise:0.5")), "version", version)
        queries._text.cache_clear()  # as a new process would begin
        _, engine = await answers("brightness:100", pictures, tmp_path / "ledger.db", panel=panel)
        hits.append(engine.progress.hits)
    assert hits == [0, 20, 10, 20]
    with pytest.raises(ProfileError, check=coded("profile-mismatch")):
        Profile.load(tmp_path / "profile.json")


def test_the_command_line_fits_and_looks_with_an_installed_view(site: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    images = np.random.default_rng(0).integers(0, 60, (40, 16, 16, 3), dtype=np.uint8)
    images[::2] += 195
    names = np.array(["dark", "bright"])
    np.savez(tmp_path / "pictures.npz", images=images, labels=1 - np.arange(40) % 2, class_names=names)
    fit = ("fit", "pictures.npz", "-c", "brightness:128", "--views", SOLARISED, "--calibrator", "probit")
    fitted = run(*fit, cwd=tmp_path, PYTHONPATH=path)
    assert fitted.returncode == 0, fitted.stderr
    looked = run("look", "pictures.npz", cwd=tmp_path, PYTHONPATH=path)
    assert looked.returncode == 0, looked.stderr
    assert "0 of 2 views" in looked.stdout


# Calibrators -------------------------------------------------------------------------------------------------------


@pytest.fixture
def calibrators_forgotten() -> Iterator[None]:
    """Calibrators as in a new process."""
    known = dict(CALIBRATORS_KNOWN)
    yield
    CALIBRATORS_KNOWN.clear()
    CALIBRATORS_KNOWN.update(known)
    sys.modules.pop("own_calibrators", None)


def test_the_command_line_fits_and_looks_with_an_installed_calibrator(site: Path, tmp_path: Path) -> None:
    path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])
    demo = Path(str(resources.files("looktwice") / "demo"))
    fit = ("fit", str(demo / "pictures.npz"), "-c", str(demo / "fashion.toml"), "--views", "mirror zoom:1.15")
    fitted = run(*fit, "--take", ":200", "--calibrator", "floor", cwd=tmp_path, PYTHONPATH=path)
    assert fitted.returncode == 0, fitted.stderr
    assert json.loads((tmp_path / "profile.json").read_text())["calibrator"]["family"] == "floor"
    looked = run("look", str(demo / "pictures.npz"), "--on-drift", "accept", cwd=tmp_path, PYTHONPATH=path)
    assert looked.returncode == 0, looked.stderr
    without = run("look", str(demo / "pictures.npz"), cwd=tmp_path)
    assert (without.returncode, code_in(without.stderr)) == (1, "calibrator-unknown")


@pytest.mark.parametrize(
    ("name", "code"),
    [("ceiling", "calibrator-plugin"), ("nowhere", "calibrator-plugin"), ("absent", "calibrator-unknown")],
)
@pytest.mark.usefixtures("installed", "calibrators_forgotten")
def test_a_calibrator_that_cannot_be_loaded_is_explained_in_one_line(name: str, code: str) -> None:
    with pytest.raises(FitError, check=coded(code)) as caught:
        named(name)
    assert "\n" not in str(caught.value)
