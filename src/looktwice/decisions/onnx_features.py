"""Open models: classifiers whose final linear layer and its input features can be read.

An ONNX file is read directly (extra `onnx`): the graph is followed back from its first output to the linear layer, a
Gemm or a MatMul with or without an Add, and the input of that layer is added to the outputs. The layer may be followed
by a softmax and by operations that change no value. The description is that of the ONNX connector.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from looktwice.calibration.evidence import Floats
from looktwice.calibration.latent import Head
from looktwice.classifiers import Pixels, connect, read_toml
from looktwice.classifiers.onnx import OnnxClassifier, open_session
from looktwice.errors import MissingExtra, PermanentError

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto

Tensor = NDArray[np.float32]
Array = NDArray[np.generic]

TOLERANCE = 1e-4
"""The largest difference between features·W + b and the model's own logits, relative to the largest logit or to 1."""
CLOSING = ("Softmax", "LogSoftmax", "Identity", "Dropout", "Cast", "Flatten", "Reshape", "Squeeze")
"""Operations after the linear layer that preserve the order of the labels."""
TOGETHER = 64
"""The number of pictures per call, unless the model takes one at a time."""


class OnnxModel:
    """An ONNX model whose features are read from its graph; calls may run concurrently."""

    def __init__(self, path: Path, classifier: OnnxClassifier) -> None:
        model = _load(path)
        layer = find_layer(model, path.parent)
        self._classifier = classifier
        self.fingerprint, self.labels, self.head = classifier.fingerprint, classifier.labels, layer.head
        self.working_size = classifier.limits.working_size
        self._session = open_session(path, with_outputs(model, (layer.features, layer.logits)))
        entry = self._session.get_inputs()[0]
        if isinstance(entry.shape[0], int) and entry.shape[0] > 1:
            what = f"{str(path)!r} takes exactly {entry.shape[0]} pictures a call"
            raise PermanentError(f"{what}; export it with a dynamic batch size", code="model-unsupported")
        self._input, self._together = entry.name, 1 if entry.shape[0] == 1 else TOGETHER
        self._features = layer.features
        _check(self, layer, model.graph.output[0].name)

    def prepare(self, pixels: Pixels) -> Tensor:
        """One picture as input for the model."""
        return self._classifier.tensor([self._classifier.prepare(pixels)])[0]

    def features(self, batch: Sequence[Tensor]) -> Floats:
        """(n, D): the input of the head for each picture."""
        (features,) = self.run([self._features], batch)
        return features

    def run(self, names: Sequence[str], batch: Sequence[Tensor]) -> list[Floats]:
        """Values in the graph for each picture, each flattened from (n, …) to (n, size)."""
        size = self._together
        parts = [self._call(names, batch[start : start + size]) for start in range(0, len(batch), size)]
        tables, n = [np.concatenate(part) for part in zip(*parts, strict=True)], len(batch)
        for values in tables:
            if values.ndim == 0 or len(values) != n:
                raise PermanentError(
                    f"{n} pictures gave values of shape {values.shape}; their first dimension must be dynamic",
                    code="model-unsupported",
                )
        return [np.asarray(values, np.float64).reshape(n, -1) for values in tables]

    def _call(self, names: Sequence[str], batch: Sequence[Tensor]) -> list[Array]:
        try:
            values: list[Array] = self._session.run(list(names), {self._input: np.stack(batch)})
        except Exception as error:  # onnxruntime raises types of its own that share no public root
            shape = np.stack(batch).shape
            raise PermanentError(
                f"the open model cannot take an input of shape {shape}: {_line(error)}", code="model-unsupported"
            ) from None
        return values


def open_onnx(description: str | Path) -> OnnxModel:
    """Open the model in `model.onnx` (with `model.toml` beside it), or the one that a connector's TOML file
    describes."""
    text = str(description)
    if text.endswith(".onnx") and not text.startswith("onnx:"):
        text = f"onnx:{text}"
    classifier = connect(text)
    if not isinstance(classifier, OnnxClassifier):
        raise PermanentError(
            f"{text!r} is not an ONNX model on this machine; an open model must be one, because its features are read",
            code="model-unsupported",
        )
    path = Path(text) if text.endswith(".toml") else Path(text.partition(":")[2])
    settings = read_toml(path.with_suffix(".toml"))  # the file that the ONNX connector opens
    return OnnxModel(path.parent / str(settings.get("model", path.name)), classifier)


# The graph ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Layer:
    """A linear layer in a graph: the names of its input and output, and its weights."""

    features: str
    logits: str
    head: Head


def find_layer(model: ModelProto, folder: Path) -> Layer:
    """The linear layer that computes the model's first output; `folder` holds weights stored outside the file."""
    graph = _Graph(model, folder)
    end = node = graph.end(model.graph.output[0].name)
    weights, bias = None, np.zeros(1)
    if end is not None and end.op_type == "Add":
        for product, other in (end.input, reversed(end.input)):
            maker, constant = graph.makers.get(product), graph.constant(other)
            if maker is not None and maker.op_type == "MatMul" and constant is not None:
                node, bias = maker, constant
    if node is not None and node.op_type in ("Gemm", "MatMul"):
        weights = graph.constant(node.input[1])
    if node is not None and weights is not None and node.op_type == "Gemm":
        options = {"alpha": 1.0, "beta": 1.0, "transB": 0, **_attributes(node)}
        weights = options["alpha"] * (weights.T if options["transB"] else weights)
        offset = graph.constant(node.input[2]) if len(node.input) > 2 and node.input[2] else bias
        bias = options["beta"] * offset if offset is not None else np.empty(0)
    fits = weights is not None and weights.ndim == 2 and weights.shape[1] > 1 and bias.size in (1, weights.shape[1])
    if end is None or node is None or weights is None or not fits:
        what = "one of its inputs" if end is None else f"{end.op_type} ({end.name or end.output[0]})"
        raise PermanentError(
            f"the model ends in {what}, not in a linear layer with constant weights (Gemm, or MatMul and "
            "Add, optionally followed by Softmax); use another open model",
            code="model-unsupported",
        )
    b = np.broadcast_to(bias.reshape(-1), weights.shape[1:])
    return Layer(node.input[0], end.output[0], Head(np.ascontiguousarray(weights), b.copy()))


def with_outputs(model: ModelProto, names: Sequence[str]) -> bytes:
    """A serialised model that also outputs these values."""
    from onnx import ModelProto, ValueInfoProto

    wider = ModelProto()
    wider.CopyFrom(model)
    known = {output.name for output in model.graph.output}
    wider.graph.output.extend(ValueInfoProto(name=name) for name in names if name not in known)
    return wider.SerializeToString()


class _Graph:
    """The nodes of a model by their outputs, and its constants."""

    def __init__(self, model: ModelProto, folder: Path) -> None:
        self._folder = str(folder)
        self.makers = {name: node for node in model.graph.node for name in node.output}
        self._stored = {tensor.name: tensor for tensor in model.graph.initializer}

    def end(self, name: str) -> NodeProto | None:
        """The last node before this value that is not in CLOSING; None if the value is an input of the model."""
        node = self.makers.get(name)
        while node is not None and node.op_type in CLOSING:
            node = self.makers.get(node.input[0])
        return node

    def constant(self, name: str) -> Floats | None:
        """The value of that name, if it is the same for every picture."""
        from onnx.numpy_helper import to_array

        if name in self._stored:
            return np.asarray(to_array(self._stored[name], self._folder), np.float64)
        node = self.makers.get(name)
        if node is None or node.op_type not in ("Constant", "Identity", "Cast", "Transpose"):
            return None
        if node.op_type == "Constant":
            value = _attributes(node).get("value")
            return None if value is None else np.asarray(to_array(value, self._folder), np.float64)
        inner = self.constant(node.input[0])
        return inner.T if inner is not None and node.op_type == "Transpose" else inner


def _attributes(node: NodeProto) -> dict[str, Any]:
    from onnx.helper import get_attribute_value

    return {attribute.name: get_attribute_value(attribute) for attribute in node.attribute}


# Reading and checking a file ----------------------------------------------------------------------------------------


def _load(path: Path) -> ModelProto:
    try:
        import onnx
    except ImportError:
        raise MissingExtra("Open models", "onnx") from None
    try:
        return onnx.load(str(path), load_external_data=False)
    except Exception as error:  # protobuf's own types, which change with its version
        raise PermanentError(
            f"{str(path)!r} is not an ONNX file with a readable graph: {_line(error)}", code="model-unsupported"
        ) from None


def _check(model: OnnxModel, layer: Layer, answer: str) -> None:
    """Check on two noise pictures that features and head reproduce the model's own logits."""
    noise = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), np.uint8)
    features, logits, answers = model.run([layer.features, layer.logits, answer], [model.prepare(p) for p in noise])
    inner, labels = model.head.W.shape
    if features.shape[1] != inner or logits.shape[1] != labels or answers.shape[1] != labels:
        raise PermanentError(
            f"the last linear layer turns {inner} features into {labels} logits, but one picture gives "
            f"{features.shape[1]} features, {logits.shape[1]} logits and {answers.shape[1]} outputs; the layer must be "
            "used once per picture",
            code="model-unsupported",
        )
    if labels != len(model.labels):
        raise PermanentError(
            f"the model has {labels} outputs, but its description names {len(model.labels)} labels",
            code="model-unsupported",
        )
    apart = float(np.abs(model.head.logits(features) - logits).max() / max(1.0, float(np.abs(logits).max())))
    if not apart <= TOLERANCE:
        raise PermanentError(
            f"features·W + b differs from the model's logits by {apart:.2g} of their size, more than {TOLERANCE:g}; "
            "if the model computes in half precision, export it in float32",
            code="model-unsupported",
        )
    if (logits.argmax(axis=1) != answers.argmax(axis=1)).any():
        raise PermanentError(
            "the order of the model's outputs differs from that of its logits; use another open model",
            code="model-unsupported",
        )


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
