"""The classifier and the pictures inside the package are what the demo and the ONNX connector expect."""

import os
import tomllib
from importlib.resources import files

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

DEMO = files("looktwice") / "demo"
TOLD = tomllib.loads((DEMO / "fashion.toml").read_text(encoding="utf-8"))


def outputs(model: onnx.ModelProto, inputs: NDArray[np.float32], size: int) -> list[NDArray[np.float32]]:
    """Every output of the model for all inputs, asked in batches of `size`."""
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    import onnxruntime

    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    batches = [inputs[start : start + size] for start in range(0, len(inputs), size)]
    answers = [session.run(None, {"input": batch}) for batch in batches]
    return [np.concatenate(parts) for parts in zip(*answers, strict=True)]


@pytest.fixture(scope="module")
def packed() -> dict[str, NDArray[np.generic]]:
    with (DEMO / "pictures.npz").open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        return dict(arrays)


@pytest.fixture(scope="module")
def inputs(packed: dict[str, NDArray[np.generic]]) -> NDArray[np.float32]:
    scaled = (packed["images"][:, None] / TOLD["scale"] - TOLD["mean"][0]) / TOLD["std"][0]
    return np.asarray(scaled, dtype=np.float32)


@pytest.fixture
def model() -> onnx.ModelProto:
    return onnx.load_from_string((DEMO / "fashion.onnx").read_bytes())


@pytest.mark.parametrize(("name", "limit"), [("fashion.onnx", 400_000), ("pictures.npz", 1_500_000)])
def test_an_asset_is_small_enough_to_ship(name: str, limit: int) -> None:
    assert len((DEMO / name).read_bytes()) < limit


def test_the_pictures_are_two_thousand_grey_ones_with_their_truths(
    packed: dict[str, NDArray[np.generic]],
) -> None:
    assert packed.keys() == {"images", "labels", "class_names"}
    assert (packed["images"].dtype.name, packed["images"].shape) == ("uint8", (2000, 28, 28))
    assert (packed["labels"].dtype.name, packed["labels"].shape) == ("int64", (2000,))
    assert packed["class_names"].dtype.kind == "U"


def test_every_class_has_enough_pictures_in_the_half_that_fits_and_the_half_that_tests(
    packed: dict[str, NDArray[np.generic]],
) -> None:
    for half in np.split(packed["labels"], 2):
        assert np.bincount(half.astype(np.int64), minlength=10).min() >= 80


def test_the_description_names_the_classes_as_the_pictures_do(packed: dict[str, NDArray[np.generic]]) -> None:
    assert TOLD["labels"] == packed["class_names"].tolist()


def test_the_description_has_the_keys_of_the_onnx_connector() -> None:
    pixels = {"size", "resize", "crop", "channels", "scale", "mean", "std"}
    assert TOLD.keys() == {"connector", "model", "labels"} | pixels
    assert (DEMO / TOLD["model"]).is_file()


def test_the_classifier_is_right_about_nine_times_in_ten(
    model: onnx.ModelProto, inputs: NDArray[np.float32], packed: dict[str, NDArray[np.generic]]
) -> None:
    (logits,) = outputs(model, inputs, size=500)
    assert 0.88 < np.mean(logits.argmax(axis=1) == packed["labels"]) < 0.93


def test_the_answer_does_not_depend_on_the_batch(model: onnx.ModelProto, inputs: NDArray[np.float32]) -> None:
    (alone,) = outputs(model, inputs, size=1)
    (together,) = outputs(model, inputs, size=64)
    np.testing.assert_array_equal(alone.argmax(axis=1), together.argmax(axis=1))


def test_older_runtimes_can_read_the_classifier(model: onnx.ModelProto) -> None:
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version <= 10
    assert [entry.version for entry in model.opset_import if entry.domain == ""] == [17]


def test_the_classifier_is_one_file_and_says_nothing_of_where_it_was_made(model: onnx.ModelProto) -> None:
    assert all(weight.data_location == onnx.TensorProto.DEFAULT for weight in model.graph.initializer)
    assert not model.metadata_props
    assert not any(node.doc_string or node.metadata_props for node in model.graph.node)


def test_the_last_node_turns_features_into_logits(model: onnx.ModelProto, inputs: NDArray[np.float32]) -> None:
    last = model.graph.node[-1]
    weights = {entry.name: onnx.numpy_helper.to_array(entry) for entry in model.graph.initializer}
    assert (last.op_type, list(last.output)) == ("Gemm", ["logits"])
    model.graph.output.append(onnx.ValueInfoProto(name=last.input[0]))
    logits, features = outputs(model, inputs[:64], size=64)
    w, b = (weights[name] for name in last.input[1:])
    np.testing.assert_allclose(features @ w.T + b, logits, rtol=1e-4, atol=1e-4)


def test_the_licence_notice_travels_with_the_pictures() -> None:
    notice = (DEMO / "NOTICE").read_text(encoding="utf-8")
    assert "Copyright © 2017 Zalando SE" in notice
    assert "this permission notice shall be included" in notice
