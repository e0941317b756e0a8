"""Trains the demo's two classifiers and packs its pictures; needed only to create these files again.

Fashion-MNIST comes from Debian, torch from PyPI (its CPU build is enough):

    apt-get install dataset-fashion-mnist
    python3 -m venv /tmp/train && /tmp/train/bin/pip install torch==2.13.0 numpy onnx
    /tmp/train/bin/python tools/train_demo.py fashion small pictures

Reads src/looktwice/demo/fashion.toml, so that training scales the pixels as the ONNX connector will, and writes into
the same folder fashion.onnx and small.onnx (input `input`, N×1×28×28 float32; output `logits`, N×10) and pictures.npz
(the first 2,000 test pictures). Takes about three minutes on one core. The seed is fixed and a single thread is used,
so the same machine and torch version give the same weights.

The networks are deliberately ordinary, trained without augmentation (rotation, mirroring or zoom) and stopped early.
About one answer in ten is wrong, and one in five for the small network, so that the demo can show an improvement. The
small network is the cheap one of the two classifiers.
"""

import argparse
import gzip
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

DEMO = Path(__file__).resolve().parent.parent / "src" / "looktwice" / "demo"
DATA = Path("/usr/share/datasets/fashion-mnist")
SEED = 0
NETWORKS = {"fashion": (16, 6), "small": (4, 2)}
"""The number of channels of the first convolution, and the number of training epochs."""
BATCH = 128
PACKED = 2000


@dataclass(frozen=True)
class Pictures:
    """Grey pictures, uint8 N×28×28, and the number of the class of each, int64."""

    images: NDArray[np.uint8]
    labels: NDArray[np.int64]

    @classmethod
    def read(cls, folder: Path, part: str) -> Self:
        """One part of Fashion-MNIST, `train` or `t10k`, from its two idx files."""
        images = read_idx(folder / f"{part}-images-idx3-ubyte.gz")
        labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")
        return cls(images, labels.astype(np.int64))


@dataclass(frozen=True)
class Recipe:
    """The pixel scaling and the class names in fashion.toml."""

    scale: float
    mean: float
    std: float
    labels: tuple[str, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read the settings of a grey-scale classifier from its description."""
        told = tomllib.loads(path.read_text(encoding="utf-8"))
        return cls(told["scale"], told["mean"][0], told["std"][0], tuple(told["labels"]))

    def inputs(self, images: NDArray[np.uint8]) -> torch.Tensor:
        """The network's input, float32 N×1×28×28."""
        return (torch.from_numpy(images)[:, None].float() / self.scale - self.mean) / self.std


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The bytes in a gzipped idx file; the header's fourth byte is the number of axes, followed by their lengths."""
    raw = gzip.decompress(path.read_bytes())
    axes = raw[3]
    shape = np.frombuffer(raw, dtype=">u4", count=axes, offset=4)
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape).copy()


def network(classes: int, width: int) -> nn.Sequential:
    """Three convolutions, a layer of features and a linear layer on top, with fresh weights."""
    return nn.Sequential(
        *stage(1, width),
        *stage(width, 2 * width),
        *stage(2 * width, 4 * width),
        nn.Flatten(),
        nn.Linear(4 * width * 3 * 3, 4 * width),
        nn.ReLU(),
        nn.Linear(4 * width, classes),
    )


def stage(channels: int, wider: int) -> tuple[nn.Module, ...]:
    """One convolution, which halves height and width."""
    return nn.Conv2d(channels, wider, kernel_size=3, padding=1), nn.ReLU(), nn.MaxPool2d(2)


def train(model: nn.Sequential, pictures: Pictures, recipe: Recipe, epochs: int) -> None:
    """Fits the weights in place; prints the mean loss of each epoch."""
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    order = np.random.default_rng(SEED)
    for epoch in range(epochs):
        batches = np.array_split(order.permutation(len(pictures.labels)), len(pictures.labels) // BATCH)
        losses = [step(model, optimiser, pictures, recipe, batch) for batch in batches]
        print(f"epoch {epoch + 1} of {epochs}: loss {np.mean(losses):.4f}", flush=True)


def step(
    model: nn.Sequential,
    optimiser: torch.optim.Optimizer,
    pictures: Pictures,
    recipe: Recipe,
    batch: NDArray[np.int64],
) -> float:
    """Update the weights on one batch; returns the loss."""
    logits = model(recipe.inputs(pictures.images[batch]))
    loss = nn.functional.cross_entropy(logits, torch.from_numpy(pictures.labels[batch]))
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    return float(loss.detach())


def right(model: nn.Sequential, pictures: Pictures, recipe: Recipe) -> NDArray[np.bool_]:
    """Whether the network's label for each picture is right."""
    chunks = np.array_split(pictures.images, 20)
    with torch.no_grad():
        named = [model(recipe.inputs(chunk)).argmax(dim=1).numpy() for chunk in chunks]
    return np.asarray(np.concatenate(named) == pictures.labels)


def export(model: nn.Sequential, path: Path) -> None:
    """Writes the network as one ONNX file that takes any number of pictures."""
    batch = {0: "batch"}
    torch.onnx.export(
        model.eval(),
        (torch.zeros(1, 1, 28, 28),),
        str(path),
        input_names=["input"],
        output_names=["logits"],
        dynamic_axes={"input": batch, "logits": batch},
        opset_version=17,
        # The newer exporter starts at opset 18; this one writes what older runtimes read as well.
        dynamo=False,
    )


def pack(pictures: Pictures, names: tuple[str, ...], path: Path) -> None:
    """Writes the first pictures with their true labels, readable without pickle."""
    np.savez_compressed(
        path,
        images=pictures.images[:PACKED],
        labels=pictures.labels[:PACKED],
        class_names=np.array(names),
    )


def make(data: Path, names: list[str]) -> None:
    """Writes the files into the package and prints the accuracy of the networks."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    recipe, test = Recipe.read(DEMO / "fashion.toml"), Pictures.read(data, "t10k")
    if "pictures" in names:
        pack(test, recipe.labels, DEMO / "pictures.npz")
    for name, (width, epochs) in NETWORKS.items():
        if name in names:
            torch.manual_seed(SEED)
            model = network(len(recipe.labels), width)
            train(model, Pictures.read(data, "train"), recipe, epochs)
            export(model, DEMO / f"{name}.onnx")
            hits = right(model, test, recipe)
            packed = f"{hits[:PACKED].mean():.4f} of the packed {PACKED}"
            print(f"accuracy of {name}: {hits.mean():.4f} of all {len(hits)}, {packed}")


def main() -> None:
    """Parses the command line and creates the files."""
    parser = argparse.ArgumentParser(description="Train the demo's classifiers and pack its pictures.")
    parser.add_argument("names", nargs="+", choices=[*NETWORKS, "pictures"], help="what to make")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the four idx files")
    words = parser.parse_args()
    if not words.data.is_dir():
        parser.error(f"no folder {words.data}; apt-get install dataset-fashion-mnist, or name another with --data")
    make(words.data, words.names)


if __name__ == "__main__":
    main()
