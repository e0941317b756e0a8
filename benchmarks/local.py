"""What scoring costs around a local model: a whole run of `score`, beside bare onnxruntime on arrays that are ready.

    python benchmarks/local.py [rounds]

Bare onnxruntime gets the same questions as numbers that are rendered and normalised already, in batches of the same
size, from as many threads. Ours reads, renders, normalises, asks, counts, judges and writes a CSV file. Rounds
alternate, and the median of their ratios counts. Pictures and models are looked for in ../shared.
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
from goals import at_least

from looktwice.asking.asker import Asker, Unscored
from looktwice.asking.session import fastest_loop
from looktwice.calibration.jury import Jury
from looktwice.classifiers.onnx import OnnxClassifier, Tensor
from looktwice.classifiers.registry import connect
from looktwice.pictures.collection import Picture, labelled
from looktwice.verdicts import learn, look
from looktwice.verdicts.files import ScoreFile
from looktwice.verdicts.profile import Profile
from looktwice.views import GENERAL, base_question, questions, render

SHARED = Path(__file__).parents[2] / "shared"
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
    """A model, its pictures and the goal."""

    title: str
    description: str
    data: str
    fit: int
    pictures: int
    classes: int
    goal: float


CASES = (
    Case("ResNet-20, 32 px", CIFAR, "cifar10_test.npz", 200, 2000, 10, 0.9),
    Case("EfficientNet-Lite0, 224 px", PHOTOS, "imagenet_val_1500", 30, 120, 1000, 0.95),
)


def described(case: Case, folder: Path) -> Path:
    """A TOML file that says how the model is asked."""
    labels = json.dumps(cifar_names() if case.classes == 10 else [str(label) for label in range(case.classes)])
    path = folder / "model.toml"
    path.write_text(case.description.format(models=SHARED / "models", labels=labels), "utf-8")
    return path


def cifar_names() -> list[str]:
    with np.load(SHARED / "data" / "cifar10_test.npz") as file:
        return [str(name) for name in file["class_names"]]


def ready(classifier: OnnxClassifier, pictures: list[Picture]) -> list[Tensor]:
    """All questions about the pictures as batches of numbers."""
    shown = [prepared for picture in pictures for prepared in views(classifier, picture)]
    size = classifier.terms.batch
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
        async for verdict in look.look(Asker(classifier), pictures, profile):
            assert not isinstance(verdict, Unscored)
            file.add(verdict)

    run(work)
    file.finish({})


def run(work: Callable[[], object]) -> object:
    with asyncio.Runner(loop_factory=fastest_loop()) as runner:
        return runner.run(work())  # type: ignore[arg-type]


def learned(classifier: OnnxClassifier, pictures: list[Picture], description: Path) -> Profile:
    async def work() -> learn.Collected:
        return await learn.collect(Asker(classifier), pictures, GENERAL)

    collected = run(work)
    assert isinstance(collected, learn.Collected)
    return learn.learn(collected, Jury(), str(description))


def seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(case: Case, rounds: int, folder: Path) -> float:
    """The speed of scoring as a share of bare onnxruntime's."""
    classifier = connect(str(described(case, folder)))
    assert isinstance(classifier, OnnxClassifier)
    known = labelled(SHARED / "data" / case.data)
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
    if not SHARED.is_dir():
        sys.exit(f"the pictures and models of {SHARED} are not here, so there is nothing to measure with")
    print(f"{os.cpu_count()} processors, {rounds} rounds")
    reached = []
    for case in CASES:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{case.title}, {case.pictures} pictures, 1 + {len(GENERAL)} questions each")
            ratio = measure(case, rounds, Path(folder))
        reached.append(at_least(f"{case.title}: `score` / bare onnxruntime", ratio, case.goal))
    sys.exit(0 if all(reached) else 1)


if __name__ == "__main__":
    main()
