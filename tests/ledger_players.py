"""Processes that share a ledger with a test, and what they do until they are done or killed."""

from __future__ import annotations

import multiprocessing
import os
import random
import resource
import signal
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import wait
from contextlib import closing
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from looktwice.asking.ledger import Budget, Entry, Grant, Ledger, SqliteLedger, key
from looktwice.asking.session import open_ledger
from looktwice.classifiers.base import Answer
from looktwice.errors import LedgerError

WHO = "a classifier"
PRICE = 1500
LIMITLESS = Budget()

Player = Callable[..., None]


def told(where: str, *statements: str) -> list[tuple[object, ...]]:
    """What the last of these statements gives, past the ledger."""
    if not where.startswith("postgresql:"):
        with closing(sqlite3.connect(where)) as db, db:
            return [db.execute(statement).fetchall() for statement in statements][-1]
    import psycopg

    with psycopg.connect(where, options="-c search_path=looktwice") as line:
        cursor = [line.execute(statement.encode()) for statement in statements][-1]
        return cursor.fetchall() if cursor.description else []


def entry(number: int, view: str = "mirror", fingerprint: str = WHO) -> Entry:
    digest = f"{number:032x}"
    return Entry(key(fingerprint, digest, view, 0, 0, "1"), digest, view, 0, 0)


def entries(numbers: Sequence[int]) -> list[Entry]:
    return [entry(number) for number in numbers]


def label(name: bytes) -> str:
    return f"label {name[-1] % 7}"


def intend(ledger: Ledger, numbers: Sequence[int], budget: Budget = LIMITLESS, price: int = PRICE) -> Grant:
    return ledger.intend(WHO, entries(numbers), price, budget).result(30)


def record(ledger: Ledger, keys: Sequence[bytes]) -> None:
    """Give the ledger an answer to each question; they are on disk after the next commit."""
    for name in keys:
        ledger.record(name, Answer(label(name), 0.5, 200), 0.01, 1)


def answer(ledger: Ledger, keys: Sequence[bytes]) -> None:
    """The same, and wait until they are on disk."""
    record(ledger, keys)
    ledger.flush().result(30)


def start(player: Player, *arguments: object) -> tuple[BaseProcess, Connection]:
    """A process that runs the player, and the end of the pipe on which it tells what is on disk."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["looktwice.asking.ledger", "looktwice.model", "cv2", "batch_players", "pytest"])
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=player, args=(theirs, *arguments), daemon=True)
    process.start()
    theirs.close()
    return process, ours


def heard(pipe: Connection) -> list[tuple[str, list[bytes]]]:
    """All that a player told until its end."""
    told = []
    try:
        while True:
            told.append(pipe.recv())
    except EOFError:
        return told


def asks_until_killed(pipe: Connection, where: Path | str, seed: int) -> None:
    """Sends and answers for ever; tells of each grant and of each answer once it is on disk."""
    rng = random.Random(seed)
    ledger = open_ledger(str(where))
    ahead = 0
    while True:
        size = rng.randint(1, 40)
        granted = intend(ledger, range(ahead, ahead + size)).granted
        ahead += size
        pipe.send(("granted", granted))
        done = granted[: rng.randint(0, size)]
        answer(ledger, done)
        pipe.send(("answered", done))


def asks_all(pipe: Connection, where: Path | str, numbers: Sequence[int], budget: Budget, seed: int) -> None:
    """Asks every question in its own order, answers what it is granted, and looks again at what others hold."""
    rng = random.Random(seed)
    todo = list(numbers)
    rng.shuffle(todo)
    with closing(open_ledger(str(where))) as ledger:
        while todo:
            part, todo = todo[:13], todo[13:]
            grant = intend(ledger, part, budget)
            pipe.send(("granted", grant.granted))
            answer(ledger, grant.granted)
            todo += [number for number in part if entry(number).key in grant.held]


def sends_and_stays(pipe: Connection, where: Path | str, numbers: Sequence[int]) -> None:
    """Sends, and waits to be killed."""
    ledger = open_ledger(str(where))
    pipe.send(("granted", intend(ledger, numbers).granted))
    signal.pause()


def sends_and_leaves(pipe: Connection, where: Path | str, numbers: Sequence[int]) -> None:
    """Sends, and is gone without an answer, having closed its ledger."""
    with closing(open_ledger(str(where))) as ledger:
        pipe.send(("granted", intend(ledger, numbers).granted))


def fills_its_quota(pipe: Connection, path: Path, limit: int) -> None:
    """Asks until no file may grow any more; tells what is on disk, and how it ended."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    ledger = SqliteLedger(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    ahead = 0
    try:
        while True:
            granted = intend(ledger, range(ahead, ahead + 500)).granted
            pipe.send(("granted", granted))
            for name in granted:
                ledger.record(name, Answer(label(name), 0.5, 200), 0.01, 1)
            flushed = ledger.flush()
            if not wait([flushed], 10).done:  # answers wait for room that never comes
                ledger.close()
            flushed.result()
            pipe.send(("answered", granted))
            ahead += 500
    except LedgerError as error:
        pipe.send(("error", [str(error).encode()]))
    os._exit(0)
