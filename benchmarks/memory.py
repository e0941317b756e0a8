"""Does memory stay flat as questions grow? Each run is a process that asks a local server through the ledger.

    python benchmarks/memory.py [questions ...]

Pictures are made when they are read, so that only the engine can hold on to anything.
"""

from __future__ import annotations

import asyncio
import resource
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.faults import fault_server

from looktwice.classifiers.registry import connect
from looktwice.engine.channel import Channel
from looktwice.engine.engine import QueryEngine
from looktwice.engine.ledger.ledger import open_ledger
from looktwice.engine.runner import Settings
from looktwice.images.collection import Picture
from looktwice.images.image import Image, WorkingSize
from looktwice.views import Panel

PANEL = Panel.parse("mirror shift:0.06,0 shift:-0.06,0 zoom:1.15")
SIZES = (10_000, 100_000)


@dataclass(frozen=True)
class Made:
    """Pictures of noise, made from their number."""

    def image(self, name: str, size: WorkingSize | None = None) -> Image:
        return Image.from_array(np.random.default_rng(int(name)).integers(0, 256, (16, 16, 3), np.uint8))


async def ask(description: Path, ledger: Path, count: int) -> None:
    """Ask about as many pictures as it takes for so many questions."""
    classifier = connect(description)
    engine = QueryEngine([Channel(classifier, open_ledger(str(ledger)), Settings(classifier.limits))])
    pictures = (Picture(str(i), None, Made()) for i in range(count // (1 + len(PANEL))))
    async for _ in engine.ask(pictures, PANEL):
        pass
    await engine.close()


def run(count: int) -> int:
    """Peak memory in MB of a process that asks so many questions."""
    with fault_server() as server, tempfile.TemporaryDirectory() as folder:
        description = server.describe(Path(folder))
        command = [sys.executable, __file__, "ask", str(description), str(Path(folder) / "ledger.db"), str(count)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def main() -> None:
    """Print peak memory against the number of questions."""
    if sys.argv[1:2] == ["ask"]:
        asyncio.run(ask(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])))
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
        return
    peaks = {size: run(size) for size in map(int, sys.argv[1:] or map(str, SIZES))}
    first = next(iter(peaks.values()))
    for size, peak in peaks.items():
        print(f"{size:>9,} questions: {peak} MB, {peak / first:.2f} of the first; goal at most 1.15")


if __name__ == "__main__":
    main()
