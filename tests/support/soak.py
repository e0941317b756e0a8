"""Scores thousands of pictures while everything goes wrong, and holds the end against a calm run.

Run it in tests: python -m support.soak [--minutes 15] [--pictures 20000] [--seed 1] [--runs 200].
First come so many storms over one, two and three processes and two services that share a ledger and a budget (see
storms.py). Then one long run: the server fails one request in ten in every way it knows and is frozen now and then; the
run is killed, stopped and started again, and its disk fills up (a small disk of its own where one may mount, a limit on
the size of files elsewhere). It
begins with a budget that is too small.

At the end: no answer is lost, none is bought that is stored, the budget was used to the last query and not beyond, the
ledger is sound, and the verdicts are the bytes of the calm run.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from looktwice.engine.ledger import maintenance
from support.faults import Running, fault_server
from support.storms import counted, weather
from support.workshop import PANEL, command, write_pictures, write_profile

QUESTIONS = 1 + len(PANEL)
DISK = 192
"""Megabytes of the small disk."""


@dataclass
class Soak:
    """One run and what is done to it."""

    folder: Path
    disk: Path
    server: Running
    process: int
    """The server's, to freeze it."""
    pictures: int
    minutes: float
    dice: random.Random
    done: Counter[str] = field(default_factory=Counter)

    @property
    def ledger(self) -> Path:
        return self.disk / "ledger.db"

    def start(self, *more: object, limit: int | None = None) -> subprocess.Popen[str]:
        """A run of the command line; `limit` is the size of the largest file that it may write."""
        rate = self.pictures * QUESTIONS / (self.minutes * 60) * 2
        words = command(
            "score", self.folder / "pictures.npz", "--profile", self.folder / "profile.json", "--ledger", self.ledger,
            "-o", self.disk / "verdicts.csv", "--canaries", 0, "--rate", round(max(50.0, rate), 1), *more,
        )  # fmt: skip

        def confine() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started us deaf to it
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, preexec_fn=confine)  # noqa: PLW1509

    # What is done to a run

    def kill(self, *more: object) -> str | None:
        return self._signalled(signal.SIGKILL, *more)

    def interrupt(self, *more: object) -> str | None:
        return self._signalled(signal.SIGINT, *more)

    def terminate(self, *more: object) -> str | None:
        return self._signalled(signal.SIGTERM, *more)

    def freeze(self, *more: object) -> str | None:
        """The server says nothing for a while, to a run that then goes on until it is killed."""
        process = self.start(*more)
        self._wait(process, self.dice.uniform(1.5, 4))
        os.kill(self.process, signal.SIGSTOP)
        self._wait(process, self.dice.uniform(0.5, 3))
        os.kill(self.process, signal.SIGCONT)
        self._wait(process, self.dice.uniform(1, 3))
        process.kill()
        return self._said(process)

    def fill(self, *more: object) -> str | None:
        """Space for a few answers only; the run must say so by itself, in one line."""
        leave, limit = self.dice.randrange(0, 2**18), None
        filler = self.disk / "filler"
        if self.disk.is_mount():
            filler.write_bytes(bytes(max(0, shutil.disk_usage(self.disk).free - leave)))
        else:
            limit = max([2**20, *(path.stat().st_size for path in self.disk.iterdir())]) + leave
        process = self.start(*more, limit=limit)
        self._wait(process, 20)
        process.kill()
        said = self._said(process)
        filler.unlink(missing_ok=True)
        return said

    def finish(self, *more: object) -> str:
        """Run it to its end, which faults may ask for more than once."""
        for _ in range(20):
            process = self.start(*more)
            _, said = process.communicate()
            assert "Traceback" not in said, said
            if process.returncode == 0 or "budget" in said:
                return said
        raise AssertionError(f"it did not come to its end: {said}")

    def _signalled(self, number: signal.Signals, *more: object) -> str | None:
        process = self.start(*more)
        self._wait(process, self.dice.uniform(0.5, 8))
        process.send_signal(number)
        return self._said(process)

    def _wait(self, process: subprocess.Popen[str], seconds: float) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)

    def _said(self, process: subprocess.Popen[str]) -> str | None:
        _, said = process.communicate(timeout=120)
        assert "Traceback" not in said, said
        return said if process.returncode == 0 or "budget" in said else None

    def suffer(self, until: float, *more: object) -> None:
        """Whatever the dice say, until the time is up or there is nothing left to do."""
        ways = [self.kill] * 5 + [self.interrupt, self.terminate, self.freeze, self.fill]
        while time.monotonic() < until:
            way = self.dice.choice(ways)
            self.done[way.__name__] += 1
            if way(*more) is not None:
                return


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A disk of its own where one may mount it, else the folder as it is."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}m", "tmpfs", str(folder)]
    mounted = shutil.which("mount") and subprocess.run(mount, capture_output=True, check=False).returncode == 0
    try:
        yield
    finally:
        if mounted:
            subprocess.run(["umount", "-l", str(folder)], check=True)


def calm(folder: Path) -> bytes:
    """The verdicts when nothing goes wrong."""
    with fault_server() as server:
        write_profile(folder / "calm.json", server.describe(folder))
        words = command("score", folder / "pictures.npz", "--profile", folder / "calm.json", "--ledger", "off")
        subprocess.run([*words, "-o", str(folder / "calm.csv")], check=True, capture_output=True)
    return (folder / "calm.csv").read_bytes()


def check_budget(soak: Soak, budget: int) -> None:
    """Used to the last query, and not beyond."""
    count = counted(soak.server, str(soak.ledger))
    print(f"budget {budget}: {count}")
    assert count.billed <= count.counted == budget


def check_end(soak: Soak, expected: bytes) -> None:
    stats, total = soak.server.stats(), soak.pictures * QUESTIONS
    count = counted(soak.server, str(soak.ledger))
    print(f"{count}; faults: {stats['faults']}")
    print(f"{count.answered} answers kept of {total} questions; done: {dict(soak.done)}")
    assert count.answered == total, "an answer is missing"
    count.check(count.counted)
    assert maintenance.verify(soak.ledger) == [], "the ledger is damaged"
    assert (soak.disk / "verdicts.csv").read_bytes() == expected, "the verdicts are not those of the calm run"
    assert not (soak.disk / "verdicts.csv.part").exists()
    soak.finish()
    assert soak.server.stats()["requests"] == stats["requests"], "an answer that is stored was bought again"


def main(minutes: float, pictures: int, seed: int, runs: int) -> None:
    weather(runs, seed)
    with tempfile.TemporaryDirectory(prefix="soak-") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        stack.enter_context(small_disk(folder / "disk"))
        write_pictures(folder / "pictures.npz", pictures, seed)
        expected = calm(folder)
        print(f"calm: {pictures} pictures", flush=True)
        server = stack.enter_context(fault_server(0.1, seed, 0.002))
        write_profile(folder / "profile.json", server.describe(folder))
        soak = Soak(folder, folder / "disk", server, server.pid, pictures, minutes, random.Random(seed))
        start, budget = time.monotonic(), pictures * QUESTIONS * 2 // 5
        soak.suffer(start + minutes * 30, "--budget", budget)
        soak.finish("--budget", budget)
        check_budget(soak, budget)
        soak.suffer(start + minutes * 60)
        soak.finish()
        check_end(soak, expected)
    print("sound")


if __name__ == "__main__":
    told = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    told.add_argument("--minutes", type=float, default=15)
    told.add_argument("--pictures", type=int, default=20_000)
    told.add_argument("--seed", type=int, default=1)
    told.add_argument("--runs", type=int, default=200)
    asked = told.parse_args()
    main(asked.minutes, asked.pictures, asked.seed, asked.runs)
