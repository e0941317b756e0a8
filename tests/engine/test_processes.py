"""Processes that share a ledger which exists already: what the server billed is what the ledger says."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
from faults import fault_server
from support.driver import QUERIES, UNFINISHED, Driver


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    return str(request.getfixturevalue("database"))


@pytest.mark.parametrize("seed", range(2))
def test_looking_at_the_ledger_during_a_run_loses_nothing(tmp_path: Path, ledger: str, seed: int) -> None:
    dice = random.Random(seed)
    with fault_server(delay=0.02) as server:
        driver = Driver(tmp_path, ledger, server, dice)
        driver.prepare()
        driver.start("all")
        time.sleep(dice.uniform(0.5, 2))
        driver.look()
        driver.start("half")
        driver.look_while_running()
        driver.finish()
        driver.check()
        driver.start("all")
        driver.finish()
        assert server.stats()["requests"] == driver.pictures * QUERIES, "an answer was bought again"


def test_two_runs_and_somebody_who_looks_keep_one_budget(tmp_path: Path, ledger: str) -> None:
    with fault_server(delay=0.02) as server:
        driver = Driver(tmp_path, ledger, server, random.Random(3))
        driver.prepare()
        for pictures in ("all", "half"):
            driver.start(pictures, "--budget", 90)
            time.sleep(0.3)
            driver.look()
        driver.look_while_running()
        driver.finish([UNFINISHED])
        driver.check(budget=90)
        assert server.stats()["billed"] == 90
