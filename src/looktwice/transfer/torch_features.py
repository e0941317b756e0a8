"""A torch module as an open model (extra `torch`): a hook on its last linear layer reads the features."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from looktwice.classifiers import Pixels, Preprocessing, fingerprint
from looktwice.errors import MissingExtra, PermanentError
from looktwice.transfer.latent import Floats, Head
from looktwice.transfer.onnx_features import TOGETHER, TOLERANCE, Tensor

if TYPE_CHECKING:
    import torch


class TorchModel:
    """A classifier whose last step is an `nn.Linear`, perhaps with a softmax after it; calls may run side by side.

    The module is put into evaluation mode. It takes a batch (n, C, height, width) and gives logits (n, K), or an
    object that has them as `logits`, as the models of the transformers library do.
    """

    def __init__(
        self, module: torch.nn.Module, labels: Sequence[str], size: tuple[int, int], preprocessing: Preprocessing
    ) -> None:
        self._module, self._size, self._preprocessing = module.eval(), size, preprocessing
        self.working_size = preprocessing.usable_size(size)
        self._seen = threading.local()
        self.labels = tuple(labels)
        name, layer = _last_linear(module, self._trial())
        weights = _array(layer.weight).T
        bias = np.zeros(weights.shape[1]) if layer.bias is None else layer.bias.detach().cpu().double().numpy()
        self.head = Head(np.ascontiguousarray(weights), np.asarray(bias, np.float64))
        hook = layer.register_forward_pre_hook(self._keep)
        try:
            _check(self._call(self._trial()), self.head, len(self.labels), name)
        except PermanentError:
            hook.remove()
            raise
        self.fingerprint = _fingerprint(module, self.labels, size, preprocessing)

    def prepare(self, pixels: Pixels) -> Tensor:
        """One picture as the module takes it."""
        return self._preprocessing.normalise(self._preprocessing.fit(pixels, self._size))

    def features(self, batch: Sequence[Tensor]) -> Floats:
        """(n, D): what enters the last linear layer, for each picture."""
        parts = (batch[start : start + TOGETHER] for start in range(0, len(batch), TOGETHER))
        return np.concatenate([self._call(part).features for part in parts])

    def _trial(self) -> list[Tensor]:
        return [self.prepare(p) for p in np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), np.uint8)]

    def _keep(self, _layer: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        self._seen.calls.append(inputs[0])

    def _call(self, batch: Sequence[Tensor]) -> _Call:
        import torch

        self._seen.calls = []
        output = _run(self._module, batch)
        logits = getattr(output, "logits", output)
        if not isinstance(logits, torch.Tensor):
            kind = type(logits).__name__
            raise PermanentError(
                f"the module gives a {kind}, not the logits of one head; wrap it so that it gives those",
                code="model-unsupported",
            )
        (features, *more) = map(_array, self._seen.calls)
        if more:
            raise PermanentError(
                f"the last linear layer is used {1 + len(more)} times a picture; a head is used once",
                code="model-unsupported",
            )
        return _Call(features, _array(logits))


@dataclass(frozen=True, eq=False)
class _Call:
    features: Floats
    answer: Floats


def _last_linear(module: torch.nn.Module, trial: Sequence[Tensor]) -> tuple[str, torch.nn.Linear]:
    """The linear layer that is used last, and its name."""
    try:
        from torch import nn
    except ImportError:
        raise MissingExtra("Torch modules", "torch") from None
    used: list[str] = []
    layers = {name: layer for name, layer in module.named_modules() if isinstance(layer, nn.Linear)}
    hooks = [layer.register_forward_pre_hook(lambda *_, n=name: used.append(n)) for name, layer in layers.items()]
    try:
        _run(module, trial)
    finally:
        for hook in hooks:
            hook.remove()
    if not used:
        raise PermanentError(
            "the module uses no nn.Linear; an open model ends in a linear layer", code="model-unsupported"
        )
    return used[-1], layers[used[-1]]


def _run(module: torch.nn.Module, batch: Sequence[Tensor]) -> object:
    import torch

    place = next((parameter.device for parameter in module.parameters()), torch.device("cpu"))
    with torch.inference_mode():
        try:
            return module(torch.from_numpy(np.stack(batch)).to(place))
        except RuntimeError as error:
            shape, reason = np.stack(batch).shape, " ".join(str(error).split())[:300]
            raise PermanentError(
                f"the module cannot take an input of shape {shape}: {reason}", code="model-unsupported"
            ) from None


def _array(values: torch.Tensor) -> Floats:
    flat = values.detach().cpu().double().numpy()
    return np.asarray(flat.reshape(len(flat), -1), np.float64)


def _check(call: _Call, head: Head, labels: int, name: str) -> None:
    """The module's answer must be features·W + b, or the softmax of it or its logarithm."""
    if call.features.shape[1] != len(head.W):
        raise PermanentError(
            f"the last linear layer, {name}, is used on many places of a picture; a head is used once",
            code="model-unsupported",
        )
    if head.W.shape[1] != labels:
        raise PermanentError(
            f"the last linear layer, {name}, has {head.W.shape[1]} outputs for {labels} labels",
            code="model-unsupported",
        )
    logits = head.logits(call.features)
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    chances = powers / powers.sum(axis=1, keepdims=True)
    for expected in (logits, chances, np.log(chances)):
        near = TOLERANCE * max(1.0, float(np.abs(expected).max()))
        if call.answer.shape == expected.shape and float(np.abs(call.answer - expected).max()) <= near:
            break
    else:
        raise PermanentError(
            f"what the module gives is neither features·W + b of its last linear layer, {name}, nor the softmax of it "
            f"(within {TOLERANCE:g}); an open model ends in a linear layer",
            code="model-unsupported",
        )


def _fingerprint(
    module: torch.nn.Module, labels: tuple[str, ...], size: tuple[int, int], preprocessing: Preprocessing
) -> str:
    from torch import uint8

    digest = hashlib.sha256(repr(module).encode())
    for name, values in module.state_dict().items():
        digest.update(name.encode() + values.detach().cpu().contiguous().view(-1).view(uint8).numpy().tobytes())
    parts = {**preprocessing.model_dump(), "labels": labels, "size": size, "weights": digest.hexdigest()}
    return fingerprint("torch", parts)
