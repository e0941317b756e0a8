"""Fuzzes every target of tests/support/fuzzing.py for its share of the time, guided by coverage.

Run it: python fuzz/run.py [SECONDS] [TARGET …].

Each target has a process of its own, limited to 1 GB and to 10 s for one input. An input that finds a fault is put into
tests/corpus/TARGET, where the tests will find it, and the run ends with 1.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import atheris

HERE = Path(__file__).resolve()
sys.path.insert(0, str(HERE.parent.parent / "tests"))
LIMITS = ("-timeout=10", "-rss_limit_mb=1024", "-max_len=65536", "-print_final_stats=0", "-verbosity=0")


def one(name: str, arguments: list[str]) -> None:
    """Fuzz a target until the time is up or a fault is found."""
    with atheris.instrument_imports(include=["looktwice", "jmespath"]):
        from support import fuzzing
    target = fuzzing.TARGETS[name]

    def mutate(data: bytes, size: int, seed: int) -> bytes:
        """Half of the time a change that knows what the bytes mean, else whatever finds new ways through the code."""
        dice = random.Random(seed)
        changed: bytes = fuzzing.spoilt(data, dice) if dice.random() < 0.5 else atheris.Mutate(data, size)
        return changed[:size]

    atheris.Setup(arguments, target, custom_mutator=mutate)
    atheris.Fuzz()


def run(name: str, seconds: float) -> bool:
    """Whether a target stood its share of the time."""
    from support.fuzzing import CORPUS, TARGETS

    with tempfile.TemporaryDirectory() as folder:
        found, seeds = Path(folder) / "found", Path(folder) / "seeds"
        found.mkdir()
        seeds.mkdir()
        for number, seed in enumerate(TARGETS[name].seeds()):
            (seeds / str(number)).write_bytes(seed)
        places = [str(seeds), *(str(place) for place in [CORPUS / name] if place.is_dir())]
        limits = [f"-artifact_prefix={found}/", f"-max_total_time={max(1, round(seconds))}", *LIMITS]
        command = [sys.executable, str(HERE), "--one", name, *limits, *places]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        for path in found.iterdir():
            (CORPUS / name).mkdir(parents=True, exist_ok=True)
            path.rename(CORPUS / name / path.name[-12:])
    if done.returncode:
        print(f"--- {name}\n{done.stderr[-4000:]}")
    return done.returncode == 0


def main(seconds: float, names: list[str]) -> int:
    """How many targets did not stand it."""
    from support.fuzzing import TARGETS

    names = names or list(TARGETS)
    start, fallen = time.monotonic(), []
    for number, name in enumerate(names):
        left = seconds - (time.monotonic() - start)
        fallen += [] if run(name, left / (len(names) - number)) else [name]
        print(f"{name}: {'a fault' if name in fallen else 'sound'}", flush=True)
    print(f"{len(names) - len(fallen)} of {len(names)} targets are sound")
    return len(fallen)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2], [sys.argv[0], *sys.argv[3:]])
    else:
        sys.exit(min(1, main(float((sys.argv[1:2] or ["600"])[0]), sys.argv[2:])))
