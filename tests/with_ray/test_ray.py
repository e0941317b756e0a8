"""A fleet on a real Ray with two nodes: the verdicts of one machine, whoever is killed meanwhile."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from faults import Running, fault_server
from ray.cluster_utils import Cluster
from workshop import PANEL, command, write_pictures, write_profile

import secondlook
from secondlook.ledger import SqliteLedger, verify

DEMO = Path(secondlook.__file__).parent / "demo"
QUESTIONS = 1 + len(PANEL)
Rows = dict[str, dict[str, Any]]


@pytest.fixture(scope="session", autouse=True)
def quiet() -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_EC2_METADATA_DISABLED="true")


@pytest.fixture(scope="session")
def cluster(quiet: None) -> Iterator[str]:
    """The address of two nodes with a processor each."""
    node = {"num_cpus": 1, "object_store_memory": 100 << 20}
    nodes = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    nodes.add_node(**node)
    try:
        yield nodes.address
    finally:
        nodes.shutdown()


class Place:
    """A folder with pictures, a profile of the classifier, and what comes out."""

    def __init__(self, folder: Path, server: Running, pictures: int, address: str) -> None:
        self.folder, self.server, self.address = folder, server, address
        self.questions = pictures * QUESTIONS
        self.ledger = folder / "ledger.db"
        self.profile = write_profile(folder / "profile.json", server.describe(folder))
        write_pictures(folder / "p.npz", pictures)

    def command(self, *more: object, out: str = "out", ledger: object = None) -> list[str]:
        files = ("--profile", self.folder / "profile.json", "--out", self.folder / out)
        return command("score", self.folder / "p.npz", *files, "--ledger", ledger or self.ledger, *more)

    def on_ray(self, *more: object, **where: Any) -> list[str]:
        return self.command("--engine", "ray", "--address", self.address, "--shard", 50, *more, **where)

    def expected(self) -> Rows:
        """The rows of one machine."""
        run(self.command(out="one.parquet", ledger=self.folder / "one.db"))
        return rows(self.folder / "one.parquet")

    def rows(self) -> Rows:
        return rows(self.folder / "out")

    def asked(self, share: float) -> bool:
        return bool(self.server.stats()["requests"] > share * self.questions)

    def answered(self) -> int:
        if not self.ledger.exists():
            return 0
        with closing(SqliteLedger(self.ledger)) as ledger:
            return ledger.spent(self.profile.fingerprint).answered


def rows(path: Path) -> Rows:
    found = pq.read_table(path).to_pylist()
    assert len({row["name"] for row in found}) == len(found)
    return {row["name"]: row for row in found}


@contextmanager
def a_place(folder: Path, address: str, pictures: int, delay: float) -> Iterator[Place]:
    with fault_server(delay=delay) as server:
        yield Place(folder, server, pictures, address)


def run(arguments: list[str], code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stderr
    return done


def processes(name: str) -> list[int]:
    """The processes of a Ray actor."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(name.encode()):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def until(condition: Callable[[], Any], what: str, seconds: float = 90.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)
    return value


def nobody_works() -> bool:
    return not processes("ray::MapWorker") and not processes("ray::_Keeper")


def test_2000_pictures_get_the_verdicts_of_one_machine(cluster: str, tmp_path: Path) -> None:
    pictures, profile = DEMO / "pictures.npz", tmp_path / "profile.json"
    run(
        command(
            "fit", pictures, "-c", DEMO / "fashion.toml", "--take", ":300", "--views", "mirror zoom:1.15", "-o", profile
        )
    )
    run(command("score", pictures, "-p", profile, "-o", tmp_path / "one.parquet"))
    fleet = command("score", pictures, "-p", profile, "-o", tmp_path / "out", "--engine", "ray", "--address", cluster)
    done = run([*fleet, "--shard", "150", "--json"])
    said = json.loads(done.stdout)
    assert (said["pictures"], said["unscored"], said["complete"]) == (2000, 0, True)
    assert said["progress"]["sent"] == 6000
    one = rows(tmp_path / "one.parquet")
    assert len(one) == 2000
    assert rows(tmp_path / "out") == one
    assert json.loads(run([*fleet, "--shard", "150", "--json"]).stdout)["before"] == 2000, "all is done already"


def test_a_killed_worker_changes_nothing_but_time(cluster: str, tmp_path: Path) -> None:
    with a_place(tmp_path, cluster, 400, delay=0.03) as place:
        driver = subprocess.Popen(place.on_ray(), stderr=subprocess.PIPE, text=True)
        until(partial(place.asked, 0.2), "it is under way")
        os.kill(processes("ray::MapWorker")[0], signal.SIGKILL)
        _, said = driver.communicate(timeout=120)
        assert driver.returncode == 0, said
        again = place.server.stats()["requests"] - place.questions
        assert 0 <= again <= 64, "nothing is asked again but what was in flight, or answered and not yet on disk"
        assert place.rows() == place.expected()
        assert verify(place.ledger) == []


def test_a_killed_keeper_changes_nothing_but_time(cluster: str, tmp_path: Path) -> None:
    with a_place(tmp_path, cluster, 400, delay=0.03) as place:
        driver = subprocess.Popen(place.on_ray(), stderr=subprocess.PIPE, text=True)
        for share in (0.2, 0.6):
            until(partial(place.asked, share), "it is under way")
            os.kill(until(lambda: processes("ray::_Keeper"), "the keeper is back")[0], signal.SIGKILL)
        _, said = driver.communicate(timeout=120)
        assert driver.returncode == 0, said
        assert place.server.stats()["requests"] == place.questions, "nothing is bought twice"
        assert place.answered() == place.questions, "and no answer is lost"
        assert place.rows() == place.expected()
        assert verify(place.ledger) == []


def test_a_budget_of_5000_is_met_exactly_as_the_server_counts_it(cluster: str, tmp_path: Path) -> None:
    with a_place(tmp_path, cluster, 1100, delay=0.001) as place:
        done = run(place.on_ray("--budget", 5000), code=3)
        assert place.server.stats()["requests"] == 5000, done.stderr
        assert sum(row["reason"] == "the budget is spent" for row in place.rows().values()) >= 100
        run(place.on_ray("--canaries", 0))
        assert place.server.stats()["requests"] == place.questions
        assert place.rows() == place.expected()


def test_a_driver_killed_at_ten_moments_and_run_again_asks_nothing_that_has_its_answer(
    cluster: str, tmp_path: Path
) -> None:
    dice = random.Random(7)
    with a_place(tmp_path, cluster, 600, delay=0.1) as place:
        for turn in range(10):
            before, known = place.server.stats()["requests"], place.answered()
            driver = subprocess.Popen(place.on_ray("--canaries", 0), stderr=subprocess.DEVNULL)
            if turn % 5:  # most moments are while questions are in flight, some while it starts
                until(lambda: place.server.stats()["requests"] > before, "it asks")  # noqa: B023
            time.sleep(dice.uniform(0.0, 1.5))
            driver.kill()
            driver.wait()
            until(nobody_works, "its workers are gone")
            assert place.server.stats()["requests"] - before <= place.questions - known
        before, known = place.server.stats()["requests"], place.answered()
        assert 0 < known < place.questions
        run(place.on_ray("--canaries", 0))
        assert place.server.stats()["requests"] - before == place.questions - known
        assert place.answered() == place.questions
        assert place.rows() == place.expected()
        assert verify(place.ledger) == []
