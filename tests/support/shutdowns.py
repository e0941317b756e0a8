"""Ends every command that asks or serves by SIGINT, SIGTERM and SIGHUP under load, and counts what is left.

Run it: python -m support.shutdowns [--rounds 20] [--seed 1] [--only serve]. Each round starts a command against a
server that counts, puts it under load, and sends a signal at a random moment; a few more get it while they start.
Afterwards the file of the ledger alone, without a log beside it, must hold every answer that the server gave, no query
may have been sent twice, every click that was acknowledged must be in its table, and the exit code must be the
documented one.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from signal import Signals
from uuid import uuid4

import numpy as np

from looktwice.images.collection import find, read_truths
from looktwice.images.image import encode_png
from support import engines
from support.faults import LABELS, Running, fault_server
from support.serving import Client
from support.verdicts import verdict
from support.waiting import PATIENCE, until
from support.workshop import command, write_pictures, write_profile

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
STOPPED = {signal.SIGINT: 3, signal.SIGTERM: 143, signal.SIGHUP: 129}
"""The exit code of a run that was stopped with work left to do."""
PAGES = ("serve", "label", "review")
COMMANDS = (*PAGES, "score", "fit", "two runs")
CLIENTS = 6
BUSY = 1.5
"""Seconds of work in which the signal comes."""
STARTING = 5
"""Every so many rounds there is one more, in which it may come before there is any work."""
SENT_BEFORE = 0.25
"""Seconds before the signal at which a request was certainly taken, also on a busy machine."""


@dataclass
class Process:
    """A command that runs, what it said, and the moment of its signal."""

    running: subprocess.Popen[bytes]
    said: Path
    signalled: float = float("inf")

    def address(self) -> str | None:
        """Where it serves, once it does."""
        serving = re.search(r"Serving at (\S+)/", self.said.read_text())
        return serving[1] if serving else None

    def send(self, number: Signals) -> None:
        self.signalled = time.monotonic()
        self.running.send_signal(number)


@dataclass
class Shutdowns:
    """Rounds of one command and one signal on one ledger."""

    folder: Path
    server: Running
    kind: str
    number: Signals
    dice: random.Random
    codes: Counter[int] = field(default_factory=Counter)
    sent: int = 0
    cut: int = 0
    """Clients that a service had taken in and left without a reply."""
    acknowledged: dict[str, str] = field(default_factory=dict)
    """The label of each picture that a page said it had saved."""
    refused: int = 0

    @property
    def ledger(self) -> Path:
        return self.folder / "ledger.db"

    def prepare(self) -> None:
        """A profile, and for a page pictures and verdicts about them."""
        write_profile(self.folder / "profile.json", self.server.describe(self.folder))
        self.photos.mkdir()
        lines: list[str] = []
        for place, pixels in enumerate(noise(self.dice, 400)):
            (self.photos / f"{place:03}.png").write_bytes(encode_png(pixels))
            lines.append(json.dumps(verdict(f"{place:03}.png", "ant", 0.6).to_dict()))
        (self.folder / "verdicts.jsonl").write_text("\n".join(lines) + "\n")

    @property
    def photos(self) -> Path:
        return self.folder / "photos"

    def words(self, place: int) -> tuple[object, ...]:
        """The command line of a round, or of one of its two runs."""
        profile, asking = ("-p", self.folder / "profile.json"), ("--ledger", self.ledger, "--canaries", 0)
        pictures, serving = self.folder / "pictures.npz", ("--port", 0)
        named = ("-c", self.server.describe(self.folder))
        if self.kind == "serve":
            return ("serve", *profile, *asking, *serving)
        if self.kind == "label":
            return ("label", self.photos, *named, "-o", self.folder / "labels.csv", *asking, *serving)
        if self.kind == "review":
            return ("review", self.folder / "verdicts.jsonl", self.photos, "-o", self.folder / "labels.csv", *serving)
        if self.kind == "fit":
            return ("fit", pictures, *named, "--views", "mirror rotation:20*3", "-o", self.folder / "new.json", *asking)
        return ("score", pictures, *profile, "-o", self.folder / f"verdicts-{place}.csv", *asking)

    def round(self, seed: int, early: bool = False) -> None:
        """One start, one signal, one end; if early, the signal may come before there is any work."""
        if self.kind in ("score", "fit", "two runs"):
            write_labelled(self.folder / "pictures.npz", 400, seed)
            for left in self.folder.glob("verdicts-*"):
                left.unlink()
        before = self.server.stats()
        with self.loaded(early) as processes:
            if not early:
                time.sleep(self.dice.uniform(0, BUSY))
            for process in processes:
                process.send(self.number)
                time.sleep(self.dice.choice((0, 0.2)) if len(processes) > 1 else 0)
            for process in processes:
                process.running.wait(PATIENCE)
        after = self.server.stats()
        self.sent += after["requests"] - before["requests"]
        for process in processes:
            self.check_code(process)
        self.check_ledger(after)
        if self.kind in ("label", "review"):
            self.check_labels()

    @contextmanager
    def loaded(self, early: bool) -> Iterator[Sequence[Process]]:
        """The processes of a round under load, or, if early, at a random moment of their start."""
        places = (0, 1) if self.kind == "two runs" else (0,)
        before, requests = time.monotonic(), self.server.stats()["requests"]
        processes = [self.start(place) for place in places]
        moment = self.dice.uniform(0, 1.5)
        clients: list[threading.Thread] = []
        try:
            until(lambda: self.is_busy(processes, requests) or (early and time.monotonic() - before > moment))
            if self.kind in PAGES and (address := processes[0].address()):
                act = self.look if self.kind == "serve" else self.click
                arguments = (Client(address), processes[0])
                clients = [
                    threading.Thread(target=repeat, args=(act, *arguments, f"window-{place}-{uuid4().hex[:8]}"))
                    for place in range(CLIENTS)
                ]
                for client in clients:
                    client.start()
            yield processes
        finally:
            for process in processes:
                process.running.kill()
                process.running.wait()
            for client in clients:
                client.join()

    def start(self, place: int) -> Process:
        said = self.folder / f"said-{place}"
        with said.open("wb") as err:
            return Process(subprocess.Popen(command(*self.words(place)), stderr=err, stdout=err), said)

    def is_busy(self, processes: Sequence[Process], requests: int) -> bool:
        if any(process.running.poll() is not None for process in processes):
            return True
        if self.kind in PAGES:
            return processes[0].address() is not None
        return bool(self.server.stats()["requests"] > requests)

    # Clients

    def look(self, client: Client, process: Process, window: str) -> None:
        """Send a picture of its own to the service, and wait for the verdict."""
        began = time.monotonic()
        picture = encode_png(np.frombuffer(os.urandom(16 * 16 * 3), np.uint8).reshape(16, 16, 3))
        try:
            self.refused += client.post("/v1/look", picture).status != 200
        except (OSError, HTTPException):
            self.cut += began < process.signalled - SENT_BEFORE
            raise

    def click(self, client: Client, process: Process, window: str) -> None:
        """Label the picture that a window shows."""
        items = client.get(f"/v1/label/state?window={window}").json()["items"]
        if not items:
            raise ConnectionError("everything is labelled")
        label, identity = random.choice(LABELS), uuid4().hex
        body = f'{{"id": "{identity}", "window": "{window}", "file": "{items[0]["file"]}", "says": "label", '
        reply = client.post("/v1/label/click", (body + f'"labels": ["{label}"]}}').encode(), "application/json")
        if reply.status == 200:
            self.acknowledged[items[0]["file"]] = label

    # What must hold

    def check_code(self, process: Process) -> None:
        code, said = process.running.returncode, process.said.read_text()
        self.codes[code] += 1
        usual = {0} if self.kind in PAGES else {0, STOPPED[self.number]}
        # While it starts, nothing listens to signals, and nothing is open that could be lost.
        unbegun = set() if process.address() or "Stopping" in said else {-self.number, 128 + self.number}
        if "Fatal Python error: init_import_site" in said:  # Ctrl-C before there is any looktwice
            return
        assert code in usual | unbegun, f"{self.kind} ended by {self.number.name} with {code}: {said}"
        assert "Traceback" not in said or code == -signal.SIGINT, said

    def check_ledger(self, seen: Mapping[str, int]) -> None:
        """The file alone, without a log beside it, holds every answer that the server gave."""
        beside = sorted(path.name for path in self.folder.glob("ledger.db*"))
        assert beside in ([], ["ledger.db"]), beside
        counted = (0, 0)
        if beside:
            shutil.copy(self.ledger, self.folder / "copy.db")
            counted = engines.counted(self.folder / "copy.db")
            for path in self.folder.glob("copy.db*"):
                path.unlink()
        # A query that was sent twice would count twice and have one answer.
        assert counted == (seen["requests"],) * 2 == (seen["answered"],) * 2, f"ledger {counted}, server {seen}"

    def check_labels(self) -> None:
        table = read_truths(self.folder / "labels.csv") if (self.folder / "labels.csv").exists() else {}
        lost = {name for name, label in self.acknowledged.items() if name not in table or table[name].truth != label}
        assert not lost, f"acknowledged and not saved: {lost}"
        if len(table) > 300:  # so that there is always something left to label
            (self.folder / "labels.csv").unlink()
            self.acknowledged.clear()

    def line(self) -> str:
        codes = ", ".join(f"{code} ({count})" for code, count in sorted(self.codes.items()))
        more = f", {self.cut} clients cut off, {self.refused} refused" if self.kind == "serve" else ""
        more += f", {len(self.acknowledged)} clicks in the last table" if self.kind in ("label", "review") else ""
        return f"{self.kind:9} {self.number.name:8} exit codes {codes}; {self.sent} queries, none lost{more}"


def repeat(act: Callable[[Client, Process, str], None], client: Client, process: Process, window: str) -> None:
    """Do it until nobody is there any more."""
    with suppress(OSError, HTTPException):
        while True:
            act(client, process, window)


def noise(dice: random.Random, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(dice.randrange(2**32)).integers(0, 256, (count, 16, 16, 3), np.uint8)


def write_labelled(path: Path, count: int, seed: int) -> None:
    """Pictures of noise with truths of five classes."""
    write_pictures(path, count, seed)
    images = np.stack([picture.image().pixels for picture in find([path])])
    np.savez(path, images=images, labels=np.arange(count) % len(LABELS), class_names=np.array(LABELS))


def end(kind: str, number: Signals, rounds: int, seed: int) -> str:
    """So many rounds of one command and one signal; a line about them."""
    dice = random.Random(f"{seed} {kind} {number}")
    with tempfile.TemporaryDirectory(prefix="shutdowns-") as folder, fault_server(delay=0.05) as server:
        shutdowns = Shutdowns(Path(folder), server, kind, number, dice)
        shutdowns.prepare()
        for place in range(rounds):
            shutdowns.round(seed * 1000 + place)
            if place % STARTING == STARTING - 1:
                shutdowns.round(seed * 1000 + rounds + place, early=True)
    assert not shutdowns.cut, shutdowns.line()
    return shutdowns.line()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=COMMANDS)
    options = parser.parse_args()
    for number in SIGNALS:  # a shell may have started us deaf to them
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    with tempfile.TemporaryDirectory(prefix="shutdowns-data-") as data:
        os.environ["XDG_DATA_HOME"] = data
        for kind in [options.only] if options.only else COMMANDS:
            for number in SIGNALS:
                print(end(kind, number, options.rounds, options.seed), flush=True)  # noqa: T201


if __name__ == "__main__":
    main()
