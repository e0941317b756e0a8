"""The state machine and the driver notice what they are there for: with each bug in the ledger one of them fails."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from support.driver import Driver, look_and_start_another
from support.faults import fault_server
from support.ledger_adapter import SharedLedger
from support.ledger_machine import run
from support.seeded_bugs import BUGS, seeded


@pytest.mark.parametrize("bug", sorted(BUGS.keys() - {"drop_locks"}))
def test_the_state_machine_notices(tmp_path: Path, bug: str) -> None:
    number = count()
    with seeded(bug), pytest.raises(AssertionError):
        run(lambda: SharedLedger(str(tmp_path / f"{next(number)}.db")), steps=4000, shrink=False)


@pytest.mark.parametrize("bug", ["drop_locks", "skip_commits"])
def test_the_driver_notices(tmp_path: Path, bug: str) -> None:
    with fault_server(delay=0.05) as server:
        driver = Driver(tmp_path, str(tmp_path / "ledger.db"), server, seed=0, pictures=80)
        driver.template = replace(driver.template, bug=bug)
        with pytest.raises(AssertionError):
            _asked_and_checked(driver)


def _asked_and_checked(driver: Driver) -> None:
    look_and_start_another(driver)
    driver.template = replace(driver.template, bug=None)
    driver.check_complete()
