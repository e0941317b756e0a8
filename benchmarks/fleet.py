"""What a run on Ray costs: throughput beside one process, and memory of the driver.

    make bench-fleet
    .venv-fleet/bin/python benchmarks/fleet.py [throughput] [memory]

Throughput and memory are those of the real command with the embedded classifier; the pictures are the embedded ones
with changed pixels. Ray and the single process share the same two processors.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.workshop import command

import looktwice
from looktwice.views import GENERAL

DEMO = Path(looktwice.__file__).parent / "demo"
CPUS = 2
FEW, MANY = 20_000, 200_000


def write_pictures(folder: Path, count: int) -> Path:
    """The embedded pictures in files, again and again with other pixels."""
    with np.load(DEMO / "pictures.npz") as arrays:
        embedded = arrays["images"]
    rng = np.random.default_rng(0)
    folder.mkdir()
    for number in range(count):
        pixels = embedded[number % len(embedded)]
        if number >= len(embedded):
            pixels = pixels ^ rng.integers(0, 8, pixels.shape, np.uint8)
        cv2.imwrite(str(folder / f"{number:06}.png"), pixels)
    return folder


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


def seconds(arguments: list[str]) -> float:
    """How long a command takes."""
    started = time.perf_counter()
    subprocess.run(arguments, check=True, capture_output=True)
    return time.perf_counter() - started


def throughput(folder: Path) -> None:
    """Seconds that one process and Ray take for the whole command."""
    pictures, profile = write_pictures(folder / "few", FEW), write_profile(folder, str(GENERAL))
    one = seconds(command("score", pictures, "-p", profile, "-o", folder / "one.parquet"))
    ray = seconds(on_ray(pictures, profile, folder / "out"))
    print(f"one process: {one:6.1f} s, {FEW / one:.0f} pictures/s")
    print(f"Ray:         {ray:6.1f} s, {FEW / ray:.0f} pictures/s, with its start")
    size = sum(file.stat().st_size for file in (folder / "out").glob("*.parquet"))
    print(f"verdicts:    {size / FEW:6.0f} bytes a picture")


def memory(folder: Path) -> None:
    """The driver's largest memory for few and for many pictures."""
    profile = write_profile(folder, "mirror")
    few, many = (write_pictures(folder / f"pictures-{count}", count) for count in (FEW, MANY))
    least = peak(on_ray(few, profile, folder / "few"))
    most = peak(on_ray(many, profile, folder / "many"))
    print(f"the driver takes {least:.0f} MB for {FEW:,} pictures and {most:.0f} MB for {MANY:,}")
    print(f"{1e6 * (most - least) / (MANY - FEW):.0f} bytes a picture, for its name")


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
