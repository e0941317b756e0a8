"""The public door stays light, and every public name is there."""

import subprocess
import sys

import looktwice

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


def test_every_public_name_is_there() -> None:
    for name in looktwice.__all__:
        assert getattr(looktwice, name) is not None
