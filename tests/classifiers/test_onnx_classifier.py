"""The description of an ONNX model, as the guide shows it."""

from __future__ import annotations

import re
import shutil
from importlib.resources import files
from pathlib import Path

import pytest

from looktwice.classifiers.onnx import Description
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
    assert told == set(Description.model_fields)


def test_a_model_without_a_description_beside_it_is_told_what_to_write(tmp_path: Path) -> None:
    with pytest.raises(PermanentError, match=r"there is no model file '.*mine\.onnx'"):
        connect(f"onnx:{tmp_path / 'mine.onnx'}")
    (tmp_path / "mine.onnx").write_bytes(b"")
    with pytest.raises(PermanentError, match=r"needs '.*mine\.toml' beside it.*size = \[224, 224\]"):
        connect(f"onnx:{tmp_path / 'mine.onnx'}")
