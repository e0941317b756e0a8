"""Processes that share a ledger which exists already: what the server billed is what the ledger says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.driver import Driver, look_and_start_another
from support.faults import fault_server


@pytest.fixture(params=["sqlite", "postgres"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    return str(request.getfixturevalue("database"))


@pytest.fixture
def driver(tmp_path: Path, ledger: str) -> Iterator[Driver]:
    with fault_server(delay=0.02) as server:
        yield Driver(tmp_path, ledger, server, seed=tmp_path.name)


def test_looking_at_the_ledger_during_a_run_loses_nothing(driver: Driver) -> None:
    look_and_start_another(driver)
    driver.check_complete()
    assert driver.server.stats()["requests"] == driver.questions


def test_two_runs_and_somebody_who_looks_keep_one_budget(driver: Driver) -> None:
    look_and_start_another(driver, budget=90)
    driver.check()
    assert driver.server.stats()["billed"] == 90


def test_what_a_killed_process_had_in_flight_is_asked_by_the_others(driver: Driver) -> None:
    killed = driver.start("all")
    driver.start("half")
    driver.wait_for_queries(most=60)
    driver.look()
    driver.kill(killed)
    driver.look_while_asking()
    driver.finish()
    driver.check_complete()


@pytest.mark.parametrize("kind", ["two models", "fork"])
def test_models_of_one_process_and_of_its_child_share_the_ledger(driver: Driver, kind: str) -> None:
    driver.start("all", kind=kind)
    driver.wait_for_queries(most=40)
    driver.start("half")
    driver.look_while_asking()
    driver.finish()
    driver.check_complete()
    assert driver.server.stats()["requests"] == driver.questions


def test_a_process_that_is_stopped_for_longer_than_a_heartbeat_loses_nothing(driver: Driver) -> None:
    stop(driver, beat=0.1)
    assert driver.server.stats()["requests"] == driver.questions


def test_replies_that_came_while_a_process_was_stopped_are_read(tmp_path: Path) -> None:
    """Ctrl-Z for longer than the classifier's timeout: the replies wait in the sockets, and are paid for."""
    with fault_server(delay=0.5) as server:
        driver = Driver(tmp_path, str(tmp_path / "ledger.db"), server, seed=0, pictures=8, timeout=1.5)
        stopped = driver.start("all")
        driver.wait_for_queries(most=8)
        driver.stop(stopped, seconds=4)
        driver.finish()
        driver.check_complete()
        assert server.stats()["requests"] == driver.questions


def test_of_a_process_on_another_machine_only_what_it_had_claimed_is_asked_again(tmp_path: Path, database: str) -> None:
    """The others cannot know that it will come back; what it had in flight is bought twice, and nothing else."""
    with fault_server(delay=0.02) as server:
        stop(Driver(tmp_path, database, server, seed=0), beat=0.5, machine="another")


def stop(driver: Driver, beat: float, machine: str | None = None) -> None:
    """A process is stopped for so long that by its heartbeats it is dead, while another one asks."""
    stopped = driver.start("all", machine=machine, beat=beat)
    driver.wait_for_queries(most=60)
    driver.start("half", beat=beat)
    driver.stop(stopped, seconds=8 * beat)
    driver.look_while_asking()
    driver.finish()
    driver.check_complete()
