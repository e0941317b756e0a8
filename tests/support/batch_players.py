"""Processes that ask in batches until they are done or killed, beside a vendor's replica that misbehaves.

Run it for many questions: (in tests) python -m support.batch_players openai 5000
"""

from __future__ import annotations

import sqlite3
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path

import numpy as np
from conformance.batch_replica import BatchReplica, Faults
from conformance.vendors import HOUSES, PRICES, description, served

from looktwice.classifiers.registry import connect
from looktwice.engine.budget import MICRO
from looktwice.engine.ledger.ledger import close_ledger, open_ledger
from looktwice.engine.ledger.maintenance import verify
from looktwice.engine.ledger.schema import OpenBatch
from looktwice.views.panels import Panel
from support.engines import counted, spend_of
from support.players import start

STAGES = (
    "upload received",
    "upload done",
    "create received",
    "create done",
    "poll received",
    "poll done",
    "results received",
    "results done",
)
"""Where a process is killed, of those that a vendor has."""
ALL = Faults(1, unreachable=0.1, failing=0.05, expiring=0.05, expired_batches=1, doubled=0.1)


def hurry() -> None:
    """Make the package impatient, in this process."""
    from looktwice.classifiers.chat import batching
    from looktwice.engine import limits
    from looktwice.model import options

    def quick() -> limits.Polling:
        return limits.Polling(soonest=0.02, latest=0.1, grace=0.4, tries=6, faults=40)

    vars(options)["Polling"] = quick
    batching.WATCH = 0.02
    batching.BatchApi.most_bytes = 200_000


def pictures(count: int) -> list[np.ndarray]:
    """Different pictures of 16 × 16."""
    rng = np.random.default_rng(7)
    return [rng.integers(0, 256, (16, 16, 3), np.uint8) for _ in range(count)]


def asks_in_batches(pipe: Connection, folder: Path, count: int, views: str | Panel, money: str | None = None) -> None:
    """Asks everything, and tells how many pictures have their answers, and the tokens that were shown."""
    hurry()
    from looktwice import Model

    runs: list[object] = []
    prices, ledger = folder / "prices.toml", str(folder / "ledger.db")
    with Model(
        folder / "model.toml", ledger=ledger, prices=prices, batch=True, money=money, progress=runs.append
    ) as model:
        collected = model.ask(pictures(count), views=views)
    causes = [str(each.message) for each in collected.unscored]
    pipe.send((len(collected.votes), causes))


def run_killed_at_every_stage(replica: BatchReplica, folder: Path, count: int, views: str, times: int = 1) -> int:
    """Ask about more and more pictures, with the process killed at each stage so often; how often it was killed."""
    killed, stages = 0, STAGES * times
    for place, stage in enumerate(stages, 1):
        process, _ = start(asks_in_batches, folder, count * place // len(stages), views)

        replica.hook = partial(_kill, process, stage)
        assert wait([process.sentinel], 900), "it hangs"
        process.join()
        killed += process.exitcode == -9
        replica.hook = lambda stage: None
    process, pipe = start(asks_in_batches, folder, count, views)
    assert pipe.poll(900), "it hangs"
    scored, causes = pipe.recv()
    process.join(30)
    assert not causes, causes[:3]
    assert scored == count
    return killed


def _kill(process: BaseProcess, stage: str, reached: str) -> None:
    if reached == stage:
        process.kill()
        wait([process.sentinel])  # only one thread may ask for its exit code


def check(replica: BatchReplica, folder: Path, questions: int) -> None:
    """Every answer once, each question uploaded once to a batch, and the books as the vendor's bill."""
    ledger, fingerprint = folder / "ledger.db", connect(folder / "model.toml").fingerprint
    assert verify(ledger) == []
    assert len(replica.answers) == questions
    assert set(replica.answers.values()) == {1}, "a question was answered and billed twice"
    assert set(replica.uploads.values()) == {1}, "a question of a batch was uploaded twice"
    assert replica.twice == [], "a question was in two batches at a time"
    assert open_batches(ledger, fingerprint) == []
    assert (counted(ledger), unanswered(ledger)) == ((questions, questions), 0)
    assert spend_of(ledger, fingerprint).picos == replica.house.bill * MICRO, "the books are not the vendor's bill"


def open_batches(ledger: Path, fingerprint: str) -> list[OpenBatch]:
    opened = open_ledger(str(ledger))
    try:
        return opened.open_batches(fingerprint)
    finally:
        close_ledger(opened)


def unanswered(ledger: Path) -> int:
    """The queries that were sent and have no answer."""
    with closing(sqlite3.connect(ledger)) as db:
        return int(db.execute("SELECT COUNT(*) FROM queries WHERE label IS NULL").fetchone()[0])


def prepared(folder: Path, vendor: str, address: str) -> None:
    (folder / "model.toml").write_text(description(HOUSES[vendor](), address))
    (folder / "prices.toml").write_text(PRICES)


def main(vendors: Sequence[str], questions: int) -> None:
    for vendor in vendors:
        started = time.monotonic()
        replica = BatchReplica(HOUSES[vendor](), ALL)
        with served(replica.app()) as address, tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            prepared(folder, vendor, address)
            killed = run_killed_at_every_stage(replica, folder, questions // 2, "mirror", 3)
            check(replica, folder, questions)
        sent = sum(len(batch.lines) for batch in replica.batches.values())
        sys.stdout.write(
            f"{vendor}: {questions} questions, {len(replica.batches)} batches with {sent} questions, killed {killed} "
            f"times; every answer once, bill {replica.house.bill / 10**6:.6f} = books, "
            f"{time.monotonic() - started:.0f} s\n"
        )


if __name__ == "__main__":
    main(sys.argv[1].split(","), int(sys.argv[2]))
