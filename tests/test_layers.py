"""The rooms of the house: a file imports only from rows below its own, and the public door stays light."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import looktwice

ROOT = Path(looktwice.__file__).parent

ROWS = [
    ["errors"],
    ["files"],
    ["images", "votes", "metrics", "latent", "pacing", "trust", "outcome"],
    ["pictures", "views", "jury", "decisions", "figures", "ledger", "classifiers", "notebook"],
    ["beliefs", "datasets", "openmodel", "jury_transfer", "explaining"],
    ["profile", "torchmodel", "sending"],
    ["asking", "fitting", "planning", "tuning"],
    ["practice", "session", "checkup"],
    ["look", "noise"],
    ["choosing", "progress"],
    ["model"],
    ["estimator", "scorefile", "report", "console"],
    ["fleet", "runs", "demonstration", "accounts", "service"],
    ["openruns", "tuneruns", "fleetruns"],
    ["options"],
    ["cli"],
]
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


def room(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path: Path) -> set[str]:
    """The rooms that a file imports from, also inside functions; imports for type checking alone do not count."""
    tree = ast.parse(path.read_text("utf-8"))
    rooms: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "looktwice":
            parts = node.module.split(".")[1:]
            rooms |= {parts[0]} if parts else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            rooms |= {a.name.split(".")[1] for a in node.names if a.name.startswith("looktwice.")}
    return rooms - {"__version__"}


FILES = sorted(path for path in ROOT.rglob("*.py") if path.name != "__init__.py" or path.parent != ROOT)
ROW_OF = {name: row for row, names in enumerate(ROWS) for name in names}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_from_rows_below_its_own(path: Path) -> None:
    own = room(path)
    assert own in ROW_OF, f"{own} has no row yet: give it one here and in docs/design.md"
    upward = {other for other in imports(path) - {own} if ROW_OF[other] >= ROW_OF[own]}
    assert not upward, f"{own} (row {ROW_OF[own]}) imports {upward}"


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
