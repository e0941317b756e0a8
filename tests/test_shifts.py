"""What happens after a drift alarm, as experiments/shifts.py measures it, on a small scale."""

from __future__ import annotations

import pytest

from experiments import shifts
from experiments.collected import demo
from experiments.familiarity import _blur
from looktwice import Model
from looktwice.images.collection import labelled


@pytest.mark.slow
def test_after_the_alarm_nothing_is_accepted_and_labels_repair_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"FIT": 150, "CLEAN": 20, "SHIFTED": 220, "LABELLED": (60,), "DRAWS": 3}.items():
        monkeypatch.setattr(shifts, name, value)
    monkeypatch.setattr(shifts, "SHIFTS", {"blur": _blur(1.5)})
    with Model(str(demo() / "fashion.toml"), ledger="memory") as model:
        (row,) = shifts.shifts(model, labelled(demo() / "pictures.npz"))
    assert row["false_alarm"] is False
    assert row["delay"] in range(1, 220)
    assert row["accepted_after"] == 0
    assert isinstance(before := row["ece"], float)
    assert isinstance(after := row["ece_60"], float)
    assert after < before
