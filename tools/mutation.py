"""Tells what the tests notice: changes the code in small ways, and counts how many changes make a test fail.

    python tools/mutation.py 300 0                              # 300 mutants, drawn with seed 0
    python tools/mutation.py 1000 0 looktwice.engine.runner     # of one module alone

The mutated modules and the tests that are run are specified in pyproject.toml. Every mutant that no test detects is
printed; `mutmut show NAME` shows its change. An interrupted run is resumed; remove `mutants/` if the tests have
changed.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

MUTANTS = Path("mutants/src")
MUTMUT = """
import pytest
from mutmut.__main__ import cli
pytest.Item._nodeid = property(lambda item: item.nodeid)  # which mutmut 3.8 reads, and pytest 9.2 no longer has
cli()
"""
KILLED = {1: "killed", 3: "killed", 36: "timeout", 24: "timeout", 152: "timeout", 255: "timeout", -24: "timeout"}
NAMES = {0: "survived", 5: "no tests", 33: "no tests", None: "not run"}


def results() -> dict[str, int | None]:
    """The exit code of every mutant's tests; None if it was not tried."""
    found: dict[str, int | None] = {}
    for path in sorted(MUTANTS.rglob("*.meta")):
        found |= json.loads(path.read_text("utf-8"))["exit_code_by_key"]
    return found


def run(names: list[str]) -> None:
    """Run mutmut on these mutants, one at a time."""
    with Path("mutants/log").open("w", encoding="utf-8") as log:
        command = [sys.executable, "-c", MUTMUT, "run", "--max-children", "1", *names]
        if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode:
            sys.exit(f"mutmut stopped; what it said is in {log.name}")


def main(size: int, seed: int, of: str = "") -> None:
    """Draw mutants, run the tests on them, and print the mutants that no test detects."""
    Path("mutants").mkdir(exist_ok=True)
    if not results():
        run(["looktwice.engine.runner.x__local__mutmut_1"])  # writes down all of them as well
    every = sorted(name for name in results() if name.startswith(of))
    random.Random(seed).shuffle(every)  # so that a larger sample holds the smaller one
    drawn = every[:size]
    codes = results()
    run([name for name in drawn if codes[name] is None] or drawn[:1])
    codes = results()
    said = {name: KILLED.get(codes[name] or 0) or NAMES.get(codes[name], "broken") for name in drawn}
    for name in sorted(said):
        if said[name] not in KILLED.values():
            print(f"{said[name]}: {name}")
    noticed = sum(each in KILLED.values() for each in said.values())
    print(
        f"{noticed} of {len(drawn)} mutants noticed ({noticed / len(drawn):.1%}), {dict(Counter(said.values()))}, "
        f"of {len(every):,}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:])
