"""The constants that other models choose, and KS over the paper's grid."""

import numpy as np
import pytest
from scipy.special import ndtr

from experiments import constants
from experiments.constants import Judged
from experiments.paper import normals
from experiments.writing import read
from looktwice.calibration import Votes


def test_a_constant_is_chosen_by_the_groups_that_a_model_is_not_of(monkeypatch: pytest.MonkeyPatch) -> None:
    best = {"a": 1.0, "b": 2.0}
    monkeypatch.setitem(constants.CONSTANTS, "x", constants.Constant((0.0, 1.0, 2.0), None, ""))
    monkeypatch.setattr(constants, "brier", lambda judged, _, value, labels: 1.0 + abs(value - best[judged.group]))
    votes = Votes.from_labels(["0"] * 300, [["0"]] * 300, ["0", "1"] * 150)
    rows = list(constants.measured("x", [Judged(name, name, votes) for name in best]))
    assert {row["model"]: row["value"] for row in rows if row["chosen"]} == {"a": "2", "b": "1"}


def test_the_grid_of_the_paper_is_no_closer_than_any_width() -> None:
    x = np.linspace(-5.0, 5.0, 61)
    points = [dict.fromkeys(normals.KEYS, "k") | {"a": "0.7", "x": str(v), "mean": str(ndtr(v / 0.7))} for v in x]
    (row,) = normals.compared(points)
    assert float(row["ks"]) < 1e-6
    assert float(row["grid_a"]) in (0.5, 1.0)
    assert float(row["grid_ks"]) > 0.05


def test_the_committed_grid_distances_are_not_below_those_of_any_width() -> None:
    rows = read(constants.RESULTS.parent / "normals.csv")
    assert all(float(row["grid_ks"]) > float(row["ks"]) - 0.01 for row in rows)
