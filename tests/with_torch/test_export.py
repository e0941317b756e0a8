"""Modules become ONNX files that answer alike; needs onnxscript beside torch."""

# mypy: disable-error-code="misc"

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

pytest.importorskip("onnxscript", reason="export needs onnxscript")
pytest.importorskip("onnxruntime", reason="what was exported is run with onnxruntime")

from experiments import export as exporting
from experiments.export import export, load
from looktwice.classifiers.onnx import OnnxClassifier, Preprocessing
from looktwice.classifiers.registry import connect
from looktwice.decisions.onnx_features import open_onnx
from looktwice.errors import DataError, PermanentError

LABELS = ("ant", 'a "bee"', "cat\\dog")
HOW = Preprocessing(crop=0.875, resize="cubic", scale=255.0, mean=(0.5, 0.4, 0.3), std=(0.2, 0.25, 0.3))


class Small(nn.Module):
    """A convolution and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 6, 3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).relu().mean(dim=(2, 3)))


@pytest.fixture
def module() -> Small:
    torch.manual_seed(0)
    return Small()


@pytest.mark.filterwarnings("default")
def test_the_exported_file_answers_as_the_module_does_for_any_number_of_pictures(module: Small, tmp_path: Path) -> None:
    told = export(module, tmp_path / "small.onnx", LABELS, (16, 16), HOW)
    classifier = connect(str(told))
    assert isinstance(classifier, OnnxClassifier)
    assert classifier.labels == LABELS
    pictures = np.random.default_rng(0).integers(0, 256, (5, 30, 40, 3), np.uint8)
    for count in (1, 5):
        prepared = [classifier.prepare(pixels) for pixels in pictures[:count]]
        with torch.no_grad():
            expected = module(torch.from_numpy(classifier.tensor(prepared))).numpy()
        np.testing.assert_allclose(classifier.logits(prepared), expected, atol=1e-5)
    assert open_onnx(str(told)).head.W.shape == (6, 3)


@pytest.mark.filterwarnings("default")
def test_labels_that_do_not_fit_the_outputs_are_told(module: Small, tmp_path: Path) -> None:
    with pytest.raises(PermanentError):
        export(module, tmp_path / "small.onnx", LABELS[:2], (16, 16), HOW)


def test_a_model_of_timm_comes_with_its_own_preparation(module: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"input_size": (3, 288, 288), "crop_pct": 0.95, "interpolation": "bicubic"}
    told |= {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    library = SimpleNamespace(create_model=lambda name, pretrained: module, resolve_model_data_config=lambda _: told)
    monkeypatch.setattr(exporting, "_library", lambda name: library)
    loaded, size, how = load("timm:resnet18.a1_in1k")
    assert (loaded, size, how.crop, how.resize) == (module, (288, 288), 0.95, "cubic")


def test_a_model_of_torchvision_comes_with_its_own_preparation(module: Small, monkeypatch: pytest.MonkeyPatch) -> None:
    transforms = SimpleNamespace(
        crop_size=[224],
        resize_size=[256],
        interpolation=SimpleNamespace(value="bilinear"),
        mean=[0.485, 0.456, 0.406],
        std=[0.229, 0.224, 0.225],
    )
    weights = SimpleNamespace(DEFAULT=SimpleNamespace(transforms=lambda: transforms))
    library = SimpleNamespace(get_model_weights=lambda name: weights, get_model=lambda name, weights: module)
    monkeypatch.setattr(exporting, "_library", lambda name: library)
    loaded, size, how = load("torchvision:resnet50")
    assert (loaded, size, how.crop, how.resize) == (module, (224, 224), 0.875, "linear")


def test_names_without_a_library_are_refused() -> None:
    with pytest.raises(DataError):
        load("resnet50")
