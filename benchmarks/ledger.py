"""What the ledger costs a question: processor time of find + intend + record, with and without a busy sender.

    python benchmarks/ledger.py [questions] [folder]

The sender is a loop that works for about 200 µs a question and drops the interpreter lock as often as a network
loop does. Its own time a question with the ledger off is the base line; the difference is what the ledger costs it.
"""

from __future__ import annotations

import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

from looktwice.asking.ledger import Budget, Entry, Grant, Ledger, SqliteLedger, Unrecorded, key
from looktwice.classifiers.base import Answer

VIEWS = 9
CHUNK = 256
AHEAD = 3


def main() -> None:
    questions = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    folder = Path(sys.argv[2]) if len(sys.argv) > 2 else None
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        path = Path(temporary) / "ledger.db"
        report("idle sender, no ledger", Unrecorded(), questions, lambda: None)
        with SqliteLedger(path) as ledger:
            report("idle sender, ledger", ledger, questions, lambda: None)
        left, right = socket.socketpair()
        report("busy sender, no ledger", Unrecorded(), questions, lambda: work(left, right))
        with SqliteLedger(Path(temporary) / "busy.db") as ledger:
            report("busy sender, ledger", ledger, questions, lambda: work(left, right))
        with SqliteLedger(path) as ledger:
            found(ledger, questions)
        print(f"{path.stat().st_size / questions:.0f} bytes a question on disk")


def report(name: str, ledger: Ledger, questions: int, send: Callable[[], object]) -> None:
    wall, own, whole = time.perf_counter(), time.thread_time(), time.process_time()
    ask(ledger, questions, send)
    ledger.flush().result()
    wall, own, whole = time.perf_counter() - wall, time.thread_time() - own, time.process_time() - whole
    cost = [1e6 * seconds / questions for seconds in (wall, own, whole)]
    print(f"{name:24} {cost[0]:7.1f} µs wall, {cost[1]:7.1f} µs sender's processor, {cost[2]:7.1f} µs all, a question")


def ask(ledger: Ledger, questions: int, send: Callable[[], object]) -> None:
    """Chunks are entered ahead of the sender, so that the disk is waited for while others are sent."""
    budget, answer = Budget(queries=10**9), Answer("a label of some length", status=200)
    ahead: deque[Future[Grant]] = deque()
    for entries in chunks(questions):
        ledger.find([entry.key for entry in entries])
        ahead.append(ledger.intend("the classifier", entries, 1500, budget))
        if len(ahead) == AHEAD:
            answer_all(ledger, ahead.popleft().result().granted, answer, send)
    while ahead:
        answer_all(ledger, ahead.popleft().result().granted, answer, send)


def answer_all(ledger: Ledger, keys: list[bytes], answer: Answer, send: Callable[[], object]) -> None:
    for name in keys:
        send()
        ledger.record(name, answer, 0.001, 1)


def chunks(questions: int) -> Iterator[list[Entry]]:
    for start in range(0, questions, CHUNK):
        yield [entry(n) for n in range(start, min(start + CHUNK, questions))]


def entry(n: int) -> Entry:
    digest, view = f"{n // VIEWS * 0x9E3779B97F4A7C15F39CC0605CEDC835 % 2**128:032x}", f"turn:{n % VIEWS}"
    return Entry(key("the classifier", digest, view, 0, 0, "1"), digest, view, 0, 0)


def found(ledger: Ledger, questions: int) -> None:
    begun = time.process_time()
    hits = sum(len(ledger.find([entry.key for entry in entries])) for entries in chunks(questions))
    print(f"{1e6 * (time.process_time() - begun) / hits:.1f} µs to find one of {hits} answers, naming it included")


def work(left: socket.socket, right: socket.socket) -> None:
    for _ in range(8):
        sum(range(1500))
        left.send(b"x")
        right.recv(1)


if __name__ == "__main__":
    main()
