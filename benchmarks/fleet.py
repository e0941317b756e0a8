"""What a run on Ray costs: throughput beside one process, and memory of the driver.

    make bench-fleet
    .venv-fleet/bin/python benchmarks/fleet.py [throughput] [memory]

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
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.workshop import command

import looktwice
from looktwice.views import GENERAL

DEMO = Path(looktwice.__file__).parent / "demo"
CPUS = 2
FEW, MANY = 20_000, 200_000
SHARD = 1000


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
    """The driver's largest memory for few and for many pictures."""
    profile = write_profile(folder, "mirror")
    few, many = (write_pictures(folder / f"{count}.npz", count) for count in (FEW, MANY))
    least = peak(on_ray(few, profile, folder / "few"))
    most = peak(on_ray(many, profile, folder / "many"))
    print(f"the driver takes {least:.0f} MB for {FEW:,} pictures and {most:.0f} MB for {MANY:,}")
    print(f"ratio: {most / least:.2f}, goal at most 1.15")


def peak(arguments: list[str]) -> float:
    """MB of memory that a process had at most, without those that it started."""
    process = subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    _, status, usage = os.wait4(process.pid, 0)
    assert status == 0, process.stderr and process.stderr.read()
    return usage.ru_maxrss / 1024


PARTS = {"throughput": throughput, "memory": memory}


def main() -> None:
    """Measure what is named, or everything."""
    os.environ.update(RAY_worker_niceness="0")  # as the single process has it
    for name in sys.argv[1:] or PARTS:
        with tempfile.TemporaryDirectory() as folder:
            print(f"{name}:")
            PARTS[name](Path(folder))


if __name__ == "__main__":
    main()
