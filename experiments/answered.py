"""Answers under the general panel: of six models, of a network whose labels are mapped, and of emotion APIs.

python -m experiments.answered ask [MODEL …]    ask what is not stored yet; an interrupted run resumes

Log probabilities are stored as experiments/general.py does, in the same files. *Mapped* is MobileNetV2 on CIFAR-10
pictures, each of whose ImageNet classes stands for one of the ten words, or for none: right about every other time, and
strongly biased by class, since 118 classes are dogs and one is a horse.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from experiments import script
from experiments.closed import APIS, DATASETS, emotions
from experiments.general import Answers, Record, Subject, records
from experiments.models import SOURCES, log_probabilities
from looktwice.images.image import Image
from looktwice.views import GENERAL, Panel

BLOCKS = {"cifar10": 40, "cifar100": 40, "photos": 50}
"""Blocks that are asked: 4,000 small pictures and all photos."""
MAPPED = "mapped"
WORDS: dict[str, tuple[int, ...]] = {
    "airplane": (404, 895),
    "automobile": (436, 468, 511, 609, 627, 656, 661, 751, 817),
    "bird": (*range(7, 25), *range(80, 101), *range(127, 147)),
    "cat": tuple(range(281, 286)),
    "deer": (351, 352, 353),
    "dog": tuple(range(151, 269)),
    "frog": (30, 31, 32),
    "horse": (339,),
    "ship": (403, 472, 484, 510, 554, 576, 625, 628, 724, 780, 814, 833, 871, 914),
    "truck": (555, 569, 675, 717, 734, 864, 867),
}
"""The ImageNet classes that stand for each word of CIFAR-10."""


class Mapped(Subject):
    """A network whose classes are mapped to other words."""

    def _outputs(self, image: Image, panel: Panel) -> NDArray[np.float32]:
        """(1 + S, K): the log of the probability of all classes that stand for each word."""
        chance = np.exp(log_probabilities(super()._outputs(image, panel)))
        total = np.stack([chance[:, list(WORDS[word])].sum(axis=1) for word in self.words], axis=1)
        logs: NDArray[np.float32] = np.log(np.maximum(total / total.sum(axis=1, keepdims=True), 1e-12)).astype(
            np.float32
        )
        return logs


def panel_records() -> list[Record]:
    """Where the answers of the six models and of the mapped one are stored."""
    six = [replace(record, views=GENERAL) for record in records()]
    small = next(record for record in six if record.name == "resnet20")
    return [*six, replace(small, name=MAPPED, title="MobileNetV2, mapped to CIFAR-10")]


def answers(name: str) -> Answers:
    """What is stored of a model."""
    return next(record for record in panel_records() if record.name == name).load()


def faces() -> Iterator[Answers]:
    """The emotion APIs, each with the other two as its views."""
    for dataset in DATASETS:
        for api in APIS:
            votes = emotions(dataset, [api, *(other for other in APIS if other != api)])
            yield Answers(
                f"{dataset} {api}",
                f"{api}, {dataset}",
                dataset,
                votes,
                np.zeros((0, 3, 7), np.float16),
                np.zeros(0, np.intp),
            )


def subject(record: Record) -> Subject:
    """A model that can be asked."""
    network = "mobilenetv2" if record.name == MAPPED else record.name
    made = Mapped if record.name == MAPPED else Subject
    images = SOURCES["resnet20" if record.name == MAPPED else record.name].pictures[0]
    return made(**vars(record), images=images, classifier=SOURCES[network].classifier())


def ask(names: list[str]) -> None:
    """Ask models about all their blocks."""
    for record in panel_records():
        if names and record.name not in names:
            continue
        asked = subject(record)
        for block in range(BLOCKS[record.data]):
            asked.ask(block)
            print(f"{record.name}: block {block}", flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["ask", *names]:
            script.run(lambda _: ask(names), __doc__, sys.argv[1:])
        case _:
            sys.exit(__doc__)
