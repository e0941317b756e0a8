"""Open models: the final linear layer is found in graphs of every make, and what is not one is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from support.errors import coded

import looktwice
from looktwice.classifiers.onnx import OnnxClassifier
from looktwice.classifiers.registry import connect
from looktwice.decisions.onnx_features import OnnxModel, open_onnx
from looktwice.errors import PermanentError

DEMO = Path(looktwice.__file__).parent / "demo"
SHARED = Path(__file__).parents[3] / "shared"
Make = Callable[..., str]

INNER, LABELS, SIDE = 12, 4, 8
RNG = np.random.default_rng(0)


def weights(name: str, *shape: int) -> onnx.TensorProto:
    return numpy_helper.from_array(RNG.normal(0.0, 0.3, shape).astype(np.float32), name)


STORED = {
    "k": weights("k", INNER, 3, 3, 3),
    "W": weights("W", INNER, LABELS),
    "Wt": weights("Wt", LABELS, INNER),
    "b": weights("b", LABELS),
    "V": weights("V", INNER, 6),
    "conv": weights("conv", LABELS, INNER, 1, 1),
    "axes": numpy_helper.from_array(np.array([2, 3]), "axes"),
    "flat": numpy_helper.from_array(np.array([0, INNER]), "flat"),
}
ENCODER = [
    helper.make_node("Conv", ["input", "k"], ["c"], pads=[1, 1, 1, 1]),
    helper.make_node("Relu", ["c"], ["r"]),
    helper.make_node("ReduceMean", ["r"], ["z"], axes=[2, 3], keepdims=0),
]


def node(kind: str, inputs: str, output: str, **options: Any) -> onnx.NodeProto:
    return helper.make_node(kind, inputs.split(), [output], name=f"the_{output}", **options)


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Writes a model and its description, and gives the description."""

    def write(
        nodes: Sequence[onnx.NodeProto],
        outputs: Sequence[str] = ("y",),
        batch: int | str = "N",
        side: int | str = SIDE,
        labels: int = LABELS,
        outside: bool = False,
    ) -> str:
        inputs = [helper.make_tensor_value_info("input", TensorProto.FLOAT, [batch, 3, side, side])]
        given = [onnx.ValueInfoProto(name=name) for name in outputs]
        graph = helper.make_graph([*ENCODER, *nodes], "g", inputs, given, list(STORED.values()))
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=outside, size_threshold=0)
        names = [f"l{i}" for i in range(labels)]
        (tmp_path / "m.toml").write_text(f"size = [{SIDE}, {SIDE}]\nscale = 255.0\nlabels = {names}\n", "utf-8")
        return f"onnx:{tmp_path / 'm.onnx'}"

    return write


def pictures(model: OnnxModel, count: int = 5, side: int = SIDE) -> list[NDArray[np.float32]]:
    pixels = np.random.default_rng(1).integers(0, 256, (count, side, side, 3), np.uint8)
    return [model.prepare(one) for one in pixels]


def agrees(description: str) -> OnnxModel:
    """The open model, after its features were seen to give the closed classifier's answers."""
    model, closed = open_onnx(description), connect(description)
    assert isinstance(closed, OnnxClassifier)
    batch = pictures(model)
    logits = model.head.logits(model.features(batch))
    outputs = np.concatenate([closed.run(one[None]) for one in batch]).reshape(len(batch), -1)
    assert logits.argmax(axis=1).tolist() == outputs.argmax(axis=1).tolist()
    assert (model.fingerprint, model.labels) == (closed.fingerprint, closed.labels)
    return model


ENDS = {
    "gemm": [node("Gemm", "z Wt b", "y", transB=1)],
    "gemm with the other order": [node("Gemm", "z W b", "y")],
    "gemm with factors": [node("Gemm", "z W b", "y", alpha=0.5, beta=2.0)],
    "gemm without bias": [node("Gemm", "z W", "y")],
    "matmul": [node("MatMul", "z W", "y")],
    "matmul and add": [node("MatMul", "z W", "m"), node("Add", "m b", "y")],
    "matmul and add the other way": [node("MatMul", "z W", "m"), node("Add", "b m", "y")],
    "transposed weights": [
        node("Transpose", "Wt", "T", perm=[1, 0]),
        node("MatMul", "z T", "m"),
        node("Add", "m b", "y"),
    ],
    "softmax": [node("Gemm", "z W b", "l"), node("Softmax", "l", "y", axis=1)],
    "log softmax and identity": [node("Gemm", "z W b", "l"), node("LogSoftmax", "l", "s"), node("Identity", "s", "y")],
    "weights in a node": [node("Constant", "", "C", value=STORED["W"]), node("MatMul", "z C", "y")],
}


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS)
def test_every_kind_of_linear_end_is_found(make: Make, end: list[onnx.NodeProto]) -> None:
    assert agrees(make(end)).head.W.shape == (INNER, LABELS)


def test_factors_of_a_gemm_are_part_of_the_head(make: Make) -> None:
    head = agrees(make(ENDS["gemm with factors"])).head
    np.testing.assert_allclose(head.W, 0.5 * numpy_helper.to_array(STORED["W"]), rtol=1e-6)
    np.testing.assert_allclose(head.b, 2.0 * numpy_helper.to_array(STORED["b"]), rtol=1e-6)


def test_a_transformer_with_a_linear_head_is_read_at_its_class_token(make: Make) -> None:
    shapes = {"tokens": np.array([0, INNER, -1]), "zero": np.array(0), "root": np.array(INNER**0.5, np.float32)}
    constants = [
        node("Constant", "", name, value=numpy_helper.from_array(value, name)) for name, value in shapes.items()
    ]
    ones = [
        node("Constant", "", name, value=numpy_helper.from_array(np.full(INNER, value, np.float32), name))
        for name, value in (("gain", 1.0), ("lift", 0.1))
    ]
    attention = [
        node("Reshape", "r tokens", "rows"),
        node("Transpose", "rows", "t", perm=[0, 2, 1]),
        node("Transpose", "t", "keys", perm=[0, 2, 1]),
        node("MatMul", "t keys", "scores"),
        node("Div", "scores root", "scaled"),
        node("Softmax", "scaled", "attended", axis=-1),
        node("MatMul", "attended t", "mixed"),
        node("Add", "mixed t", "residual"),
        node("LayerNormalization", "residual gain lift", "normed", axis=-1),
        node("Gather", "normed zero", "token", axis=1),
        node("MatMul", "token W", "m"),
        node("Add", "m b", "logits"),
        node("Softmax", "logits", "y", axis=-1),
    ]
    model = agrees(make([*constants, *ones, *attention]))
    assert model.features(pictures(model)).shape == (5, INNER)


def test_a_model_that_takes_one_picture_at_a_time_is_asked_so(make: Make) -> None:
    model = agrees(make(ENDS["gemm"], batch=1))
    assert model.features(pictures(model, 3)).shape == (3, INNER)


def test_a_free_height_and_width_are_filled_by_the_description(make: Make) -> None:
    assert agrees(make(ENDS["gemm"], side="S")).head.W.shape == (INNER, LABELS)


def test_weights_outside_the_file_are_found_beside_it(make: Make, tmp_path: Path) -> None:
    description = make(ENDS["gemm"], outside=True)
    assert len(list(tmp_path.iterdir())) > 2
    np.testing.assert_allclose(agrees(description).head.W, numpy_helper.to_array(STORED["Wt"]).T)


def test_features_do_not_depend_on_what_else_is_in_the_batch() -> None:
    model = open_onnx(DEMO / "fashion.toml")
    batch = pictures(model, 70, side=28)
    np.testing.assert_allclose(model.features(batch)[66], model.features(batch[66:67])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "end",
    [
        [node("Conv", "r conv", "l"), node("Flatten", "l", "y")],
        [node("Gemm", "z W b", "l"), node("Relu", "l", "y")],
        [node("MatMul", "z W", "m"), node("Add", "m m", "y")],
        [node("Transpose", "z", "t", perm=[1, 0]), node("MatMul", "z t", "y")],
        [node("Identity", "input", "y")],
    ],
)
def test_a_model_without_a_linear_end_is_told_what_was_found(make: Make, end: list[onnx.NodeProto]) -> None:
    with pytest.raises(PermanentError, check=coded("model-unsupported")):
        open_onnx(make(end))


def test_of_two_heads_the_first_is_read(make: Make) -> None:
    two = [node("Gemm", "z W b", "y"), node("MatMul", "z V", "second")]
    assert agrees(make(two, outputs=("y", "second"))).head.W.shape == (INNER, LABELS)


def test_a_second_output_that_is_no_head_does_no_harm(make: Make) -> None:
    both = [node("Gemm", "z W b", "l"), node("Softmax", "l", "y", axis=1)]
    assert agrees(make(both, outputs=("y", "z", "l"))).head.W.shape == (INNER, LABELS)


def test_a_fixed_batch_is_told(make: Make) -> None:
    with pytest.raises(PermanentError, check=coded("model-unsupported")):
        open_onnx(make(ENDS["gemm"], batch=8))


def test_a_picture_size_that_does_not_fit_is_told(make: Make) -> None:
    with pytest.raises(PermanentError, check=coded("model-unsupported")):
        open_onnx(make(ENDS["gemm"], side=9))


def test_a_head_that_is_used_on_every_place_of_a_picture_is_told(make: Make) -> None:
    everywhere = [
        node("Transpose", "r", "t", perm=[0, 2, 3, 1]),
        node("MatMul", "t W", "y"),
    ]
    with pytest.raises(PermanentError, check=coded("model-unsupported")):
        open_onnx(make(everywhere))


def test_a_description_with_too_few_labels_is_told(make: Make) -> None:
    with pytest.raises(PermanentError, check=coded("model-unsupported")):
        open_onnx(make(ENDS["gemm"], labels=3))


def test_only_a_model_that_is_here_can_be_open() -> None:
    with pytest.raises(PermanentError, check=coded("model-unsupported")):
        open_onnx("python:math:sqrt")


@pytest.mark.parametrize("name", ["onnx:{}/fashion.onnx", "{}/fashion.onnx", "{}/fashion.toml"])
def test_the_classifier_of_the_demo_is_open_by_any_of_its_names(name: str) -> None:
    model = open_onnx(name.format(DEMO))
    assert model.head.W.shape == (64, 10)
    assert model.labels[0] == "T-shirt/top"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the experiments' models are not in ../shared")
@pytest.mark.parametrize("path", sorted(SHARED.glob("models/*.onnx")), ids=lambda path: path.stem)
def test_the_models_of_the_experiments_are_open(path: Path, tmp_path: Path) -> None:
    side, labels = (224, 1000) if "imagenet" in path.name else (32, 100 if "cifar100" in path.name else 10)
    text = (
        f'connector = "onnx"\nmodel = "{path}"\nsize = [{side}, {side}]\nlabels = {[str(i) for i in range(labels)]}\n'
    )
    (tmp_path / "m.toml").write_text(text, "utf-8")
    assert open_onnx(tmp_path / "m.toml").head.W.shape[1] == labels
