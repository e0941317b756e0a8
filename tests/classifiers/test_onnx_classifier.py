"""The description of an ONNX model, as the guide shows it."""

from __future__ import annotations

import re
import shutil
from importlib.resources import files
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from support.errors import coded

from looktwice.classifiers.onnx import OnnxDescription
from looktwice.classifiers.registry import connect
from looktwice.errors import PermanentError

GUIDE = (Path(__file__).parents[2] / "docs" / "connectors.md").read_text("utf-8")
SECTION = GUIDE.partition("## ONNX")[2].partition("\n## ")[0]


@pytest.mark.parametrize("text", re.findall(r"```toml\n(connector = \"onnx\".*?)```", GUIDE, re.DOTALL))
def test_the_description_in_the_guide_connects(tmp_path: Path, text: str) -> None:
    shutil.copy(str(files("looktwice") / "demo" / "fashion.onnx"), tmp_path / "resnet56.onnx")
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    (tmp_path / "resnet56.toml").write_text(text)
    for address in (str(tmp_path / "resnet56.toml"), f"onnx:{tmp_path / 'resnet56.onnx'}"):
        assert connect(address).labels == ("cat", "dog")


def test_the_guide_names_every_setting() -> None:
    told = {
        name for line in re.findall(r"^\| (`.*?) \|", SECTION, re.MULTILINE) for name in re.findall(r"`(\w+)`", line)
    }
    assert told == set(OnnxDescription.model_fields)


def test_a_model_without_a_description_beside_it_is_told_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, check=coded("description-missing")):
        connect(f"onnx:{tmp_path / 'mine.onnx'}")
    (tmp_path / "mine.onnx").write_bytes(b"")
    with pytest.raises(PermanentError, check=coded("description-missing")):
        connect(f"onnx:{tmp_path / 'mine.onnx'}")


def graph(node: onnx.NodeProto, output: onnx.ValueInfoProto, *tensors: onnx.TensorProto, inputs: bool = True) -> bytes:
    """A model file of one node."""
    picture = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [None, 3, 8, 8])] if inputs else []
    model = helper.make_model(helper.make_graph([node], "g", picture, [output], list(tensors)))
    model.opset_import[0].version, model.ir_version = 17, 8
    return bytes(model.SerializeToString())


def external(location: str) -> onnx.TensorProto:
    """Weights that are said to lie in another file."""
    tensor = TensorProto(name="w", data_type=TensorProto.UINT8, dims=[2], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("length", "2")):
        entry = tensor.external_data.add()
        entry.key, entry.value = key, value
    return tensor


NUMBERS = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
TEXTS = helper.make_tensor_value_info("y", TensorProto.STRING, None)
LISTS = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
CAST = helper.make_node("Cast", ["w"], ["y"], to=TensorProto.FLOAT)
HUGE = helper.make_tensor("sh", TensorProto.INT64, [4], [2**37, 3, 8, 8])
HOSTILE = {
    "no input": graph(helper.make_node("Constant", [], ["y"], value_floats=[0.0, 1.0]), NUMBERS, inputs=False),
    "a list": graph(helper.make_node("SequenceConstruct", ["x"], ["y"]), LISTS),
    "texts": graph(helper.make_node("Constant", [], ["y"], value_strings=[b"a", b"b"]), TEXTS),
    "another shape": graph(helper.make_node("Identity", ["x"], ["y"]), NUMBERS),
    "more memory than there is": graph(helper.make_node("Expand", ["x", "sh"], ["y"]), NUMBERS, HUGE),
    "an absolute path": graph(CAST, NUMBERS, external("/etc/passwd")),
    "a path upwards": graph(CAST, NUMBERS, external("../../../../../../etc/passwd")),
    "a link": graph(CAST, NUMBERS, external("link")),
    "an operator of its own": graph(helper.make_node("Evil", ["x"], ["y"], domain="com.evil"), NUMBERS),
    "nothing": b"",
    "noise": np.random.default_rng(0).bytes(5000),
}


@pytest.mark.parametrize("content", HOSTILE.values(), ids=HOSTILE)
async def test_a_hostile_model_is_an_error_of_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "link").symlink_to("/etc/passwd")
    (tmp_path / "m.onnx").write_bytes(content)
    (tmp_path / "m.toml").write_text('size = [8, 8]\nlabels = ["a", "b"]\n')

    async def ask() -> None:
        classifier = connect(f"onnx:{tmp_path / 'm.onnx'}")
        await classifier.label([classifier.prepare(np.zeros((8, 8, 3), np.uint8))])

    with pytest.raises(PermanentError) as caught:
        await ask()
    assert "root:" not in str(caught.value)
