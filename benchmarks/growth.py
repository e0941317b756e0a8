"""Does a run stay as quick and as small as it grows? Time a picture and memory against pictures, time against views.

    python benchmarks/growth.py [--figures]

Each size is a process of its own that reads, asks, judges and writes as `looktwice score` does. The classifier is a
function that answers at once, so that nothing but looktwice can grow. With --figures two SVGs go to docs/figures.
"""

from __future__ import annotations

import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from goals import at_least, at_most

from looktwice.calibration.jury import Jury
from looktwice.classifiers.base import Answer, Limits, Pixels
from looktwice.decisions import collecting, fitting, judging
from looktwice.decisions.verdict_files import ScoreFile
from looktwice.engine.channel import Channel
from looktwice.engine.engine import QueryEngine
from looktwice.engine.query import Unscored
from looktwice.engine.runner import Settings
from looktwice.images.collection import Collection, Picture
from looktwice.images.image import Image, WorkingSize
from looktwice.model.runs import fastest_loop
from looktwice.plots.figures import Line, lines_svg
from looktwice.views import Panel

PICTURES = (1_000, 3_000, 10_000, 30_000, 100_000)
VIEWS = (1, 2, 4, 8, 16, 32)
FIGURES = Path(__file__).parents[1] / "docs" / "figures"


@dataclass(frozen=True)
class Made:
    """Pictures of noise, made from their number when they are read."""

    def image(self, name: str, size: WorkingSize | None = None) -> Image:
        return Image.from_array(np.random.default_rng(int(name)).integers(0, 256, (16, 16, 3), np.uint8))


class Instant:
    """Says at once whether a picture is bright."""

    labels = ("bright", "dark")
    fingerprint = "benchmark:instant"
    limits = Limits(batch=64, concurrency=2, local=True)

    def prepare(self, pixels: Pixels) -> Pixels:
        return pixels.copy()

    async def label(self, batch: Sequence[Pixels]) -> list[Answer]:
        return [Answer(self.labels[int(pixels[:4].mean() < 128)]) for pixels in batch]

    async def close(self) -> None:
        """Nothing to give back."""


class Run(NamedTuple):
    """Seconds a picture, and megabytes at most."""

    seconds: float
    peak: float


def taught() -> list[Picture]:
    return [Picture(str(number), "bright" if number % 2 else "dark", Made()) for number in range(200)]


async def score(count: int, views: int, out: Path) -> float:
    """Seconds that a run of `score` takes."""
    panel = Panel.parse(f"gaussian:0.1*{views}")
    engine = QueryEngine([Channel(Instant(), None, Settings(Instant().limits))])
    profile = fitting.learn(await collecting.collect(engine, taught(), panel), Jury(), "instant")
    began = time.perf_counter()
    todo = Collection([str(number) for number in range(count)], Made())
    file = ScoreFile(out, {}, todo)
    async for verdict in judging.look(engine, todo, profile):
        assert not isinstance(verdict, Unscored)
        file.add(verdict)
    file.finish({})
    return time.perf_counter() - began


def measured(count: int, views: int) -> Run:
    """A run in a process of its own."""
    command = [sys.executable, __file__, "score", str(count), str(views)]
    return Run(*json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))


def typical(count: int) -> Run:
    """The median of several runs where one is over in a moment, and noise would decide."""
    runs = sorted(measured(count, 8) for _ in range(5 if count < 10_000 else 1))
    return runs[len(runs) // 2]


def child(count: int, views: int) -> None:
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=fastest_loop()) as runner:
        seconds = runner.run(score(count, views, Path(folder) / "out.csv"))
    print(json.dumps([seconds / count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024]))


def linearity(times: dict[int, float]) -> float:
    """How much of the differences between the times a straight line explains."""
    return float(np.corrcoef(list(times), list(times.values()))[0, 1] ** 2)


def draw(by_pictures: dict[int, Run], by_views: dict[int, float]) -> None:
    logs = np.log10(list(by_pictures))
    micros = np.array([1e6 * run.seconds for run in by_pictures.values()])
    memory = np.array([run.peak for run in by_pictures.values()])
    chart = lines_svg(
        [Line("microseconds a picture", logs, micros), Line("megabytes at most", logs, memory)],
        title="A run of score as it grows",
        x_label="pictures, powers of ten",
        y_label="",
        y_range=(0.0, 1.1 * float(max(micros.max(), memory.max()))),
    )
    (FIGURES / "growth-pictures.svg").write_text(chart, "utf-8")
    counts = np.array(list(by_views), float)
    chart = lines_svg(
        [Line("microseconds a picture", counts, 1e6 * np.array(list(by_views.values())))],
        title="Time against the number of views",
        x_label="views",
        y_label="microseconds a picture",
    )
    (FIGURES / "growth-views.svg").write_text(chart, "utf-8")


def main() -> None:
    if sys.argv[1:2] == ["score"]:
        child(int(sys.argv[2]), int(sys.argv[3]))
        return
    by_pictures = {count: typical(count) for count in PICTURES}
    by_views = {views: min(measured(1_000, views).seconds for _ in range(3)) for views in VIEWS}
    for count, run in by_pictures.items():
        print(f"{count:>7,} pictures: {1e6 * run.seconds:.0f} µs each, {run.peak:.0f} MB at most")
    for views, seconds in by_views.items():
        print(f"{views:>3} views: {1e6 * seconds:.0f} µs a picture")
    few, many = by_pictures[PICTURES[0]], by_pictures[PICTURES[-1]]
    reached = [
        at_most("time a picture, 100,000 pictures / 1,000", many.seconds / few.seconds, 1.1),
        at_most("memory, 100,000 pictures / 1,000", many.peak / few.peak, 1.1),
        at_least("time against views, share a straight line explains", linearity(by_views), 0.98),
    ]
    if "--figures" in sys.argv:
        draw(by_pictures, by_views)
    sys.exit(0 if all(reached) else 1)


if __name__ == "__main__":
    main()
