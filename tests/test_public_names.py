"""The public interface stays light and keeps its names and signatures."""

import subprocess
import sys
from pathlib import Path

from support import public_api

HEAVY = {
    "cv2",
    "PIL",
    "scipy",
    "sklearn",
    "onnxruntime",
    "aiohttp",
    "matplotlib",
    "pandas",
    "pyarrow",
    "pydantic",
    "ray",
    "rich",
}


def loaded_by(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*{{name.split('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


def test_importing_looktwice_loads_nothing_heavy() -> None:
    assert not loaded_by("import looktwice") & (HEAVY | {"numpy"})


def test_the_command_line_loads_nothing_heavy_until_a_command_runs() -> None:
    assert not loaded_by("import looktwice.cli.app") & (HEAVY - {"rich"})


def test_the_road_loads_no_library_of_an_extra_until_it_is_needed() -> None:
    extras = {
        "botocore",
        "fastapi",
        "onnxruntime",
        "pandas",
        "pi_heif",
        "psycopg",
        "pyarrow",
        "ray",
        "sklearn",
        "torch",
    }
    assert not loaded_by("import looktwice.model, looktwice.cli.demo, looktwice.cli.look") & extras


def test_public_names_and_signatures_are_those_on_record() -> None:
    """A change here is one that users notice: CONTRIBUTING.md says how a name is changed or taken away."""
    record = (Path(__file__).parent / "public_api.txt").read_text("utf-8").splitlines()
    assert list(public_api.lines()) == record, "run: python tests/support/public_api.py > tests/public_api.txt"
