"""Torch modules as open models: features and head are read, and what has no linear end is told."""

# mypy: disable-error-code="misc"

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from looktwice.classifiers.preprocessing import Preprocessing
from looktwice.errors import PermanentError
from looktwice.images.collection import find
from looktwice.transfer.latent import Cumulatives, describe, read
from looktwice.transfer.noise import fold, probes
from looktwice.transfer.torch_features import TorchModel
from looktwice.views import parse

LABELS = ("ant", "bee", "cat", "dog")
SIZE = (8, 8)
HOW = Preprocessing(scale=255.0, mean=(0.5,), std=(0.25,))
torch.manual_seed(0)  # for the weights of modules that are made below, before any test


class Encoder(nn.Module):
    """A small convolutional network up to its features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 12, 3, padding=1)
        self.inner = nn.Linear(12, 16)
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.inner(self.conv(x).relu().mean(dim=(2, 3))).relu())


class Transformer(nn.Module):
    """Patches, a class token, two layers of attention and a linear head; the logits come as an attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 16, 4, stride=4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classifier = nn.Linear(16, 4)

    def forward(self, x: Tensor) -> SimpleNamespace:
        rows = self.patches(x).flatten(2).transpose(1, 2)
        rows = self.layers(torch.cat([self.token.expand(len(x), -1, -1), rows], dim=1))
        return SimpleNamespace(logits=self.classifier(rows[:, 0]))


class Twice(nn.Module):
    """Two heads on one encoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.first, self.second = Encoder(), nn.Linear(16, 4), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.encoder(x)
        return self.first(z), self.second(z)


class Averaged(nn.Module):
    """One head that is used on every place of the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 12, 3, padding=1), nn.Linear(12, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).permute(0, 2, 3, 1)).mean(dim=(1, 2))


@pytest.fixture(autouse=True)
def _same_weights_each_time() -> None:
    torch.manual_seed(0)


def opened(module: nn.Module) -> TorchModel:
    return TorchModel(module, LABELS, SIZE, HOW)


def batch(model: TorchModel, count: int = 5) -> list[np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
    return [model.prepare(p) for p in np.random.default_rng(1).integers(0, 256, (count, 8, 8, 3), np.uint8)]


@pytest.mark.parametrize(
    "ending",
    [
        (nn.Linear(16, 4),),
        (nn.Linear(16, 4, bias=False),),
        (nn.Linear(16, 4), nn.Softmax(dim=1)),
        (nn.Linear(16, 4), nn.LogSoftmax(dim=1)),
    ],
    ids=["linear", "no bias", "softmax", "log softmax"],
)
def test_the_head_turns_features_into_the_modules_own_answers(ending: tuple[nn.Module, ...]) -> None:
    module = nn.Sequential(Encoder(), *ending)
    model = opened(module)
    pictures = batch(model, 70)
    with torch.inference_mode():
        answers = module(torch.from_numpy(np.stack(pictures))).numpy()
    logits = model.head.logits(model.features(pictures))
    assert logits.shape == (70, 4)
    assert logits.argmax(axis=1).tolist() == answers.argmax(axis=1).tolist()
    if len(ending) == 1:
        np.testing.assert_allclose(logits, answers, atol=1e-5)


def test_a_transformer_is_read_at_its_class_token() -> None:
    module = Transformer()
    model = opened(module)
    pictures = batch(model)
    with torch.inference_mode():
        answers = module(torch.from_numpy(np.stack(pictures))).logits.numpy()
    np.testing.assert_allclose(model.head.logits(model.features(pictures)), answers, atol=1e-5)


def test_calls_side_by_side_do_not_mix_their_features() -> None:
    model = opened(nn.Sequential(Encoder(), nn.Linear(16, 4)))
    pictures = batch(model, 40)
    alone = [model.features([one]) for one in pictures]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda one: model.features([one]), pictures))
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_noise_is_measured_on_a_module_as_its_definition_says(tmp_path: Path) -> None:
    images = np.random.default_rng(2).integers(0, 256, (6, 8, 8, 3), np.uint8)
    np.savez(tmp_path / "p.npz", images=images)
    model, views = opened(nn.Sequential(Encoder(), nn.Linear(16, 4))), [parse("gaussian:0.2")]
    found = list(probes(model, find([tmp_path / "p.npz"]), views, draws=9))
    rows = [item.readings[0].noise for item in found]  # type: ignore[union-attr]
    assert fold(found, views, 9).noises[0].noise == describe(Cumulatives.of(np.array(rows)))
    base = model.features([model.prepare(images[0])])
    assert read(model.head, base[0], base).noise.tolist() == [0.0]


def test_the_fingerprint_tells_weights_apart_and_nothing_else() -> None:
    module = nn.Sequential(Encoder(), nn.Linear(16, 4))
    before = opened(module).fingerprint
    assert opened(module).fingerprint == before
    with torch.no_grad():
        module[1].bias[0] += 1.0
    assert opened(module).fingerprint != before


@pytest.mark.parametrize(
    ("module", "told"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 8), nn.Flatten()), "uses no nn.Linear"),
        (nn.Sequential(Encoder(), nn.Linear(16, 4), nn.ReLU()), "neither features·W"),
        (nn.Sequential(Encoder(), nn.Linear(16, 3)), "3 outputs for 4 labels"),
        (Twice(), "gives a tuple, not the logits of one head"),
        (Averaged(), "many places of a picture"),
        (nn.Sequential(nn.Flatten(), nn.Linear(99, 4)), r"cannot take an input of shape \(2, 3, 8, 8\)"),
    ],
    ids=["no linear", "relu after it", "other labels", "two heads", "every place", "other size"],
)
def test_a_module_without_one_linear_end_is_told_what_was_found(module: nn.Module, told: str) -> None:
    with pytest.raises(PermanentError, match=told):
        opened(module)
