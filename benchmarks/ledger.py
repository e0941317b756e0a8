"""What the ledger costs a question: processor time of find + claim + settle, with and without a busy sender.

    python benchmarks/ledger.py [questions] [folder]

The sender is a loop that works for about 200 µs a question and drops the interpreter lock as often as a network
loop does. Its own time a question with the ledger off is the base line; the difference is what the ledger costs it.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from looktwice.classifiers.base import Answer
from looktwice.engine.budget import MICRO, Budget
from looktwice.engine.ledger.ledger import Ledger, close_ledger, open_ledger
from looktwice.engine.ledger.schema import Account, Claim, Entry, Settled, joined, keys

VIEWS = 9
CHUNK = 256
AHEAD = 3
WHO = "the classifier"
BUDGET = Budget(queries=10**9)
ANSWER = Answer("a label of some length", status=200)


def main() -> None:
    questions = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    left, right = socket.socketpair()
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / "ledger.db"
        report("idle sender, no ledger", None, questions, lambda: None)
        report("idle sender, ledger", path, questions, lambda: None)
        report("busy sender, no ledger", None, questions, lambda: work(left, right))
        report("busy sender, ledger", Path(temporary) / "busy.db", questions, lambda: work(left, right))
        found(path, questions)
        print(f"{path.stat().st_size / questions:.0f} bytes a question on disk")


def report(name: str, path: Path | None, questions: int, send: Callable[[], object]) -> None:
    ledger = open_ledger(str(path)) if path else None
    wall, own, whole = time.perf_counter(), time.thread_time(), time.process_time()
    asyncio.run(ask(ledger, questions, send))
    wall, own, whole = time.perf_counter() - wall, time.thread_time() - own, time.process_time() - whole
    if ledger:
        close_ledger(ledger)
    cost = [1e6 * seconds / questions for seconds in (wall, own, whole)]
    print(f"{name:24} {cost[0]:7.1f} µs wall, {cost[1]:7.1f} µs sender's processor, {cost[2]:7.1f} µs all, a question")


async def ask(ledger: Ledger | None, questions: int, send: Callable[[], object]) -> None:
    """Chunks are claimed ahead of the sender, so that the disk is waited for while others are sent."""
    places = asyncio.Semaphore(AHEAD)

    async def answer(entries: list[Entry]) -> None:
        async with places:
            if ledger is None:
                for _ in entries:
                    send()
                return
            ledger.find([entry.key for entry in entries])
            granted = await ledger.claim(Account(WHO, (BUDGET,)), [(entry, 1500 * MICRO) for entry in entries])
            settled = []
            for claim in granted:
                assert isinstance(claim, Claim)
                send()
                settled.append(ledger.settle(claim, Settled(claim.entry.key, ANSWER, latency=0.001)))
            await asyncio.gather(*settled)

    await asyncio.gather(*map(answer, chunks(questions)))


def chunks(questions: int) -> Iterator[list[Entry]]:
    for start in range(0, questions, CHUNK):
        yield [entry(n) for n in range(start, min(start + CHUNK, questions))]


def entry(n: int) -> Entry:
    digest, view = f"{n // VIEWS * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}", f"turn:{n % VIEWS}"
    (key,) = keys(WHO, digest, [joined(view, "0", "0", "1")])
    return Entry(key, digest, view, 0, 0)


def found(path: Path, questions: int) -> None:
    ledger = open_ledger(str(path))
    begun = time.process_time()
    hits = sum(len(ledger.find([entry.key for entry in entries])) for entries in chunks(questions))
    print(f"{1e6 * (time.process_time() - begun) / hits:.1f} µs to find one of {hits} answers, naming it included")
    close_ledger(ledger)


def work(left: socket.socket, right: socket.socket) -> None:
    for _ in range(8):
        sum(range(1500))
        left.send(b"x")
        right.recv(1)


if __name__ == "__main__":
    main()
