"""How long `looktwice --help` takes beside the import of typer and rich, and what `import looktwice` leaves alone.

    python benchmarks/start.py [rounds]

Rounds alternate, and the medians count.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

from goals import at_most

HEAVY = ("cv2", "scipy.stats", "sklearn", "onnxruntime", "aiohttp", "matplotlib")
LOADED = f"import sys, looktwice; print(*[name for name in {HEAVY} if name in sys.modules])"


COMMAND = str(Path(sys.executable).with_name("looktwice"))


def seconds(*command: str) -> float:
    began = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - began


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 25
    plain, ours = [], []
    for _ in range(rounds):
        plain.append(seconds(sys.executable, "-c", "import typer, rich"))
        ours.append(seconds(COMMAND, "--help"))
    ratio = statistics.median(ours) / statistics.median(plain)
    quick = at_most("`looktwice --help` / `import typer, rich`", ratio, 1.3)
    loaded = subprocess.run([sys.executable, "-c", LOADED], check=True, capture_output=True, text=True).stdout.split()
    light = at_most("heavy libraries that `import looktwice` loads", len(loaded), 0)
    sys.exit(0 if quick and light else 1)


if __name__ == "__main__":
    main()
