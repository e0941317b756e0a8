"""What earlier releases wrote is read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.release import DEMO, PICTURES, RELEASES
from support.workshop import call

import looktwice as lt
from looktwice.model import labelled


@pytest.mark.parametrize("release", sorted(RELEASES.iterdir()), ids=lambda folder: folder.name)
def test_profile_and_ledger_of_a_release_answer_without_a_query(release: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.db"
    shutil.copy(release / "ledger.db", ledger)
    assert call("ledger", "verify", "--ledger", ledger).returncode == 0
    pictures = labelled(DEMO / "pictures.npz")[:PICTURES]
    with lt.Model.load(release / "profile.json", str(DEMO / "fashion.toml"), ledger=str(ledger), canaries=0) as model:
        verdicts = list(model.score(pictures, all=True))
        assert model.engine.progress.sent == 0
    assert all(isinstance(verdict, lt.Verdict) for verdict in verdicts)
    assert [verdict.queries for verdict in verdicts if isinstance(verdict, lt.Verdict)] == [3] * PICTURES
