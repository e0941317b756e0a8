"""What must always hold of a ledger, whatever sessions do and wherever they crash."""

from __future__ import annotations

import random
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test
from support.ledger_adapter import NewLedger
from support.ledger_machine import Machine, run

STEPS = 400


class LedgerMachine(RuleBasedStateMachine):
    """The machine under hypothesis, which shortens whatever breaks it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.ledger = NewLedger(str(self.folder / "ledger.db"))
        self.machine = Machine(self.ledger, random.Random(0))
        self.ledger.set_day(self.machine.day)

    @rule(dice=st.randoms(use_true_random=False))
    def step(self, dice: random.Random) -> None:
        self.machine.dice = dice
        self.machine.step()

    def teardown(self) -> None:
        for session in self.machine.sessions.values():
            session.close()
        assert self.ledger.problems() == []
        shutil.rmtree(self.folder)


def test_no_short_sequence_of_operations_breaks_the_ledger() -> None:
    run_state_machine_as_test(LedgerMachine, settings=settings(max_examples=15, stateful_step_count=20))


@pytest.mark.parametrize("seed", range(2))
def test_sqlite_keeps_every_invariant(tmp_path: Path, seed: int) -> None:
    run(NewLedger(str(tmp_path / "ledger.db")), seed, STEPS)


def test_postgres_keeps_every_invariant(database: str) -> None:
    run(NewLedger(database), 5, STEPS // 2)
