"""What scoring costs around a local model: a whole run of `score`, beside bare onnxruntime on arrays that are ready.

    python benchmarks/local.py [rounds]

Bare onnxruntime gets the same questions as numbers that are rendered and normalised already, in batches of the same
size, from as many threads. Ours reads, renders, normalises, asks, counts, judges and writes a CSV file. Rounds
alternate, and the median of their ratios counts. The embedded model is always measured: it is tiny, so
that everything around it shows. Models of a usual size are measured where they and their pictures are in ../shared.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from goals import at_least, compare

import looktwice
from looktwice.calibration.jury import Jury
from looktwice.classifiers.onnx import OnnxClassifier, Tensor
from looktwice.classifiers.registry import connect
from looktwice.decisions import collecting, fitting, judging
from looktwice.decisions.profile import Profile
from looktwice.decisions.verdict_files import ScoreFile
from looktwice.engine.channel import Channel
from looktwice.engine.engine import QueryEngine
from looktwice.engine.query import Unscored
from looktwice.engine.runner import Settings
from looktwice.images.collection import Picture, labelled
from looktwice.model.runs import fastest_loop
from looktwice.views import GENERAL, base_question, questions, render

SHARED = Path(__file__).parents[2] / "shared"
DEMO = Path(looktwice.__file__).parent / "demo"
CIFAR = """connector = "onnx"
model = "{models}/cifar10_resnet20.onnx"
size = [32, 32]
scale = 255.0
mean = [0.485, 0.456, 0.406]
std = [0.229, 0.224, 0.225]
labels = {labels}
"""
PHOTOS = """connector = "onnx"
model = "{models}/efficientnet_lite0_imagenet.onnx"
size = [224, 224]
crop = 0.875
resize = "cubic"
mean = [127.0]
std = [128.0]
labels = {labels}
"""


class Case(NamedTuple):
    """A model, its pictures and the goal, if there is one."""

    title: str
    description: str
    data: Path
    fit: int
    pictures: int
    goal: float | None = None


def cases() -> list[Case]:
    """What can be measured here."""
    described = (DEMO / "fashion.toml").read_text("utf-8").replace("fashion.onnx", str(DEMO / "fashion.onnx"))
    found = [Case("embedded, 28 px", described, DEMO / "pictures.npz", 200, 1800)]
    if not SHARED.is_dir():
        print(f"There is no {SHARED}: larger models are not measured")
        return found
    cifar, photos = SHARED / "data" / "cifar10_test.npz", SHARED / "data" / "imagenet_val_1500"
    with np.load(cifar) as file:
        names = [str(name) for name in file["class_names"]]
    numbers = [str(label) for label in range(1000)]
    return [
        *found,
        Case("ResNet-20, 32 px", _filled(CIFAR, names), cifar, 200, 2000, 0.9),
        Case("EfficientNet-Lite0, 224 px", _filled(PHOTOS, numbers), photos, 30, 120, 0.95),
    ]


def _filled(description: str, labels: list[str]) -> str:
    return description.format(models=SHARED / "models", labels=json.dumps(labels))


def ready(classifier: OnnxClassifier, pictures: list[Picture]) -> list[Tensor]:
    """All questions about the pictures as batches of numbers."""
    shown = [prepared for picture in pictures for prepared in views(classifier, picture)]
    size = classifier.limits.batch
    return [classifier.tensor(shown[start : start + size]) for start in range(0, len(shown), size)]


def views(classifier: OnnxClassifier, picture: Picture) -> Iterator[np.ndarray[tuple[int, ...], np.dtype[np.uint8]]]:
    image = picture.image()
    for pixels in render(image, [base_question(image), *questions(image, GENERAL, 0)]):
        yield classifier.prepare(pixels)


def bare(classifier: OnnxClassifier, batches: list[Tensor]) -> None:
    """The labels of all batches, and nothing else."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for logits in pool.map(classifier.run, batches):
            logits.argmax(axis=1)


def score(classifier: OnnxClassifier, pictures: list[Picture], profile: Profile, out: Path) -> None:
    """Everything that `looktwice score` does between its start and its last line."""
    file = ScoreFile(out, {}, pictures)

    async def work() -> None:
        async for verdict in judging.look(
            QueryEngine([Channel(classifier, None, Settings(classifier.limits))]), pictures, profile
        ):
            assert not isinstance(verdict, Unscored)
            file.add(verdict)

    run(work)
    file.finish({})


def run(work: Callable[[], object]) -> object:
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(work())  # type: ignore[arg-type]


def learned(classifier: OnnxClassifier, pictures: list[Picture], description: Path) -> Profile:
    async def work() -> collecting.Collected:
        return await collecting.collect(
            QueryEngine([Channel(classifier, None, Settings(classifier.limits))]), pictures, GENERAL
        )

    collected = run(work)
    assert isinstance(collected, collecting.Collected)
    return fitting.learn(collected, Jury(), str(description))


def seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(case: Case, rounds: int, folder: Path) -> float:
    """The speed of scoring as a share of bare onnxruntime's."""
    (folder / "model.toml").write_text(case.description, "utf-8")
    classifier = connect(str(folder / "model.toml"))
    assert isinstance(classifier, OnnxClassifier)
    known = labelled(case.data)
    profile = learned(classifier, known[: case.fit], folder / "model.toml")
    pictures = known[case.fit : case.fit + case.pictures]
    batches = ready(classifier, pictures)
    ratios = []
    bare(classifier, batches[:8])
    for _ in range(rounds):
        limit = seconds(lambda: bare(classifier, batches))
        ours = seconds(lambda: score(classifier, pictures, profile, folder / "out.csv"))
        ratios.append(limit / ours)
        print(f"  bare {limit:.2f} s, score {ours:.2f} s: {ratios[-1]:.2f}", flush=True)
    return statistics.median(ratios)


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(f"{os.cpu_count()} processors, {rounds} rounds")
    reached = []
    for case in cases():
        with tempfile.TemporaryDirectory() as folder:
            print(f"{case.title}, {case.pictures} pictures, 1 + {len(GENERAL)} questions each")
            ratio = measure(case, rounds, Path(folder))
        what = f"{case.title}: `score` / bare onnxruntime"
        if case.goal is None:
            compare(what, ratio)
        else:
            reached.append(at_least(what, ratio, case.goal))
    sys.exit(0 if all(reached) else 1)


if __name__ == "__main__":
    main()
