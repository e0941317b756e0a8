"""A model of timm or torchvision as ONNX, with the description that the ONNX connector reads beside it.

python -m experiments.export timm:resnet18.a1_in1k resnet18.onnx --labels synsets.txt
python -m experiments.export torchvision:resnet50 resnet50.onnx --labels synsets.txt

needs torch, onnxscript and the library that has the model; its weights are downloaded by that library. `synsets.txt`
has one label a line, in the order of the model's outputs and in the words that the data have as truths: for
ILSVRC2012 the 1,000 synsets in their own order. Then: python -m experiments table2 --data val/ --model resnet18.toml
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from looktwice.classifiers.onnx import Preprocessing
from looktwice.classifiers.registry import read_labels
from looktwice.errors import DataError, LookTwiceError, PermanentError

if TYPE_CHECKING:
    import torch


def export(
    module: torch.nn.Module, path: Path, labels: Sequence[str], size: tuple[int, int], how: Preprocessing
) -> Path:
    """Write `path`, an ONNX file that takes any number of pictures, and the TOML file beside it; the latter's path."""
    torch = _library("torch")
    _library("onnxscript")
    channels = 1 if how.channels == "grey" else 3
    example = torch.zeros(2, channels, *size)
    with torch.no_grad():
        outputs = tuple(module.eval()(example).shape)
    if outputs != (2, len(labels)):
        raise PermanentError(f"the module gives {outputs} for 2 pictures, but {len(labels)} labels were given")
    program = torch.onnx.export(
        module,
        (example,),
        dynamo=True,
        verbose=False,
        input_names=["input"],
        output_names=["logits"],
        dynamic_shapes=({0: torch.export.Dim("pictures")},),
    )
    program.save(str(path), external_data=False)
    told = path.with_suffix(".toml")
    told.write_text(_described(path.name, labels, size, how), "utf-8")
    return told


def load(name: str) -> tuple[torch.nn.Module, tuple[int, int], Preprocessing]:
    """A pretrained model by its name, `timm:…` or `torchvision:…`, its input's size and how pictures are prepared."""
    library, _, model = name.partition(":")
    if library == "timm" and model:
        return _timm(model)
    if library == "torchvision" and model:
        return _torchvision(model)
    raise DataError(f"{name!r} names no model; write timm:resnet18.a1_in1k or torchvision:resnet50")


def _timm(name: str) -> tuple[torch.nn.Module, tuple[int, int], Preprocessing]:
    timm = _library("timm")
    module = timm.create_model(name, pretrained=True)
    told = _library("timm.data").resolve_model_data_config(module)
    how = Preprocessing(
        crop=told["crop_pct"],
        resize=_resize(told["interpolation"]),
        scale=255.0,
        mean=told["mean"],
        std=told["std"],
    )
    return module, tuple(told["input_size"][1:]), how


def _torchvision(name: str) -> tuple[torch.nn.Module, tuple[int, int], Preprocessing]:
    models = _library("torchvision.models")
    weights = models.get_model_weights(name).DEFAULT
    told: Any = weights.transforms()
    (crop,), (resized,) = told.crop_size, told.resize_size
    how = Preprocessing(
        crop=crop / resized,
        resize=_resize(told.interpolation.value),
        scale=255.0,
        mean=tuple(told.mean),
        std=tuple(told.std),
    )
    return models.get_model(name, weights=weights), (crop, crop), how


def _resize(interpolation: str) -> Any:
    return {"bilinear": "linear", "bicubic": "cubic", "nearest": "nearest"}.get(interpolation, "linear")


def _library(name: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError:
        raise PermanentError(
            f"exporting needs {name.partition('.')[0]}; install it: pip install {name.partition('.')[0]}"
        ) from None


def _described(model: str, labels: Sequence[str], size: tuple[int, int], how: Preprocessing) -> str:
    settings = {"connector": "onnx", "model": model, "size": list(size)} | how.model_dump(exclude_none=True)
    return "".join(f"{key} = {_toml(value)}\n" for key, value in (settings | {"labels": list(labels)}).items())


def _toml(value: object) -> str:
    """A text, number or list of them as TOML writes it."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        escaped = "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in value.replace("\\", "\\\\"))
        return '"' + escaped.replace('"', '\\"') + '"'
    return str(value)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        "python -m experiments.export", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("name", help="timm:MODEL or torchvision:MODEL")
    parser.add_argument("path", type=Path, help="the ONNX file to write")
    parser.add_argument("--labels", type=Path, required=True, help="a text file, one label a line")
    told = parser.parse_args(arguments)
    try:
        labels = read_labels(told.labels)
        module, size, how = load(told.name)
        print(export(module, told.path, labels, size, how))
    except LookTwiceError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
