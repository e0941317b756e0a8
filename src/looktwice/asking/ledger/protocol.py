"""The interface of a ledger, whichever database is behind it, and the sessions that share one."""

from __future__ import annotations

import os
import platform
import secrets
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from hashlib import blake2b
from pathlib import Path
from sys import maxsize
from typing import NamedTuple, Protocol, runtime_checkable
from zlib import crc32

from looktwice.classifiers.base import Answer, Tokens

RAW_LIMIT = 65_536
"""Bytes kept of a raw reply; a longer one is cut and ends with `CUT`."""
CUT = b"[cut]"

BEAT = 5.0
"""Seconds between heartbeats."""

DEAD = 30.0
"""Seconds without one after which a session counts as dead."""

LEASE = 900.0
"""Seconds for which a question in flight is held against other sessions, even by one that is alive, unless renewed."""

FADE = 60.0
"""Seconds after which a pace that a session has learned, and not written again, is forgotten."""


class Entry(NamedTuple):
    """One question as the ledger knows it; `seed` and `index` are below 2**63."""

    key: bytes
    digest: str
    view: str
    seed: int
    index: int  # type: ignore[assignment]  # a tuple's method of that name is of no use here
    reserve: int | None = None
    """The most that it can cost, in millionths, where that is its own; else the price that it is intended at."""
    expected: int = 0
    """What it is expected to cost, which is compared with its bill if it goes in a batch."""


def key(fingerprint: str, digest: str, view: str, seed: int, index: int, renderer: str) -> bytes:
    """The 16-byte key of a question: 4 bytes of a hash of the picture, 12 of a hash of everything.

    Questions about one picture are neighbours in the table, so a commit touches few pages: measured, a question
    costs less than half the processor time it costs when all 16 bytes are hashed together.
    """
    return keys(fingerprint, digest, [tail(view, seed, index, renderer)])[0]


def keys(fingerprint: str, digest: str, tails: Sequence[bytes]) -> list[bytes]:
    """The keys of several questions about one picture; what they share is hashed once."""
    start = place(digest)
    shared = blake2b(_joined(fingerprint, digest), digest_size=12, person=b"looktwice.key.1")
    names = []
    for each in tails:
        own = shared.copy()
        own.update(each)
        names.append(start + own.digest())
    return names


def tail(view: str, seed: int, index: int, renderer: str) -> bytes:
    """The part of a key that distinguishes questions about the same picture."""
    return _joined(view, str(seed), str(index), renderer)


def _joined(*parts: str) -> bytes:
    return "".join(f"{len(part)}:{part}" for part in parts).encode()


def place(digest: str) -> bytes:
    """The 4 bytes with which the keys of all questions about one picture begin."""
    return crc32(digest.encode()).to_bytes(4, "big")


@dataclass(frozen=True)
class Spend:
    """The spend on a classifier so far; micros are millionths of the currency, today is the day in UTC."""

    queries: int
    micros: int
    queries_today: int
    micros_today: int


@dataclass(frozen=True)
class Account(Spend):
    """The same, with the numbers of answered questions and of those sent without an answer."""

    answered: int
    unanswered: int


@dataclass(frozen=True)
class Budget:
    """Limits on the spend for one classifier, in total and in one UTC day; None is no limit.

    The scope is the ledger: all that it ever spent on the classifier counts, whoever asked.
    """

    queries: int | None = None
    micros: int | None = None
    queries_per_day: int | None = None
    micros_per_day: int | None = None

    def room(self, spend: Spend, price_micros: int) -> int:
        """How many more queries at this price it covers, at least 0; `sys.maxsize` if nothing limits them."""
        limits = (
            (self.queries, spend.queries, 1),
            (self.queries_per_day, spend.queries_today, 1),
            (self.micros, spend.micros, price_micros),
            (self.micros_per_day, spend.micros_today, price_micros),
        )
        rooms = [(most - spent) // price for most, spent, price in limits if most is not None and price]
        return max(0, min(rooms, default=maxsize))

    def left(self, spend: Spend) -> tuple[int, int]:
        """How many more queries, and how much more money in millionths; `sys.maxsize` where nothing limits it."""
        queries = ((self.queries, spend.queries), (self.queries_per_day, spend.queries_today))
        money = ((self.micros, spend.micros), (self.micros_per_day, spend.micros_today))
        left = [
            min((most - spent for most, spent in limits if most is not None), default=maxsize)
            for limits in (queries, money)
        ]
        return left[0], left[1]

    def exhausted(self, spend: Spend, price_micros: int) -> str:
        """Which limit leaves no room for a query at this price, how much of it is spent, and what to do."""
        wait, price = "or wait for midnight UTC, and run again", price_micros
        limits = (
            (self.queries, spend.queries, 1, 1, "queries", "raise --budget and run again"),
            (self.queries_per_day, spend.queries_today, 1, 1, "queries a day", f"raise --per-day, {wait}"),
            (self.micros, spend.micros, price, 1e6, "in money", "raise --money and run again"),
            (self.micros_per_day, spend.micros_today, price, 1e6, "a day in money", f"raise --money-per-day, {wait}"),
        )
        for most, spent, least, unit, what, remedy in limits:
            if most is not None and most - spent < least:
                whole, used = most / unit, spent / unit
                more = f", and a query may cost {least / unit:,.10g}" if spent < most else ""
                spending = f"{used:,.10g} of {whole:,.10g}{more}"
                return f"the budget of {whole:,.10g} {what} is spent ({spending}); {remedy} to continue"
        return "the budget is spent; run again to resume"


class Bill(NamedTuple):
    """What a reply costs by the tokens in it."""

    tokens: Tokens
    picos: int
    """Its exact price, in millionths of a millionth of the currency."""
    estimated: int
    """What was expected of it before it was sent, in millionths."""


MICRO = 1_000_000
"""Picos in a millionth of the currency."""


@dataclass(frozen=True)
class Grant:
    """The outcome for each question that somebody intends to ask."""

    granted: list[bytes] = field(default_factory=list)
    """The intent is on disk and counted as spent: send it."""
    answered: dict[bytes, Answer] = field(default_factory=dict)
    """Somebody answered it meanwhile."""
    held: list[bytes] = field(default_factory=list)
    """Another session that is alive has it in flight: look again later."""
    refused: list[bytes] = field(default_factory=list)
    """The budget does not cover it."""
    batched: list[bytes] = field(default_factory=list)
    """It is in a batch whose results have not been fetched."""


class Outcome(Enum):
    """How a query ended; by default it was sent and got no reply."""

    ANSWERED = auto()
    REFUSED = auto()
    """A reply came that holds no answer, and may be on the bill."""
    WAIVED = auto()
    """A reply came that holds no answer, and is not on the bill: the query is given back."""
    UNSENT = auto()
    """It surely reached nobody: the query is given back."""


class Booked(NamedTuple):
    """Queries that were counted and belong to no stored question."""

    fingerprint: str
    day: int
    queries: int
    price_micros: int


@dataclass(frozen=True)
class OpenBatch:
    """Questions that were given to a vendor as one batch, or were about to be, and whose results are not all here."""

    id: int
    file: str | None
    """The vendor's name of the file with its questions, once that is known to be there."""
    remote: str | None
    """The vendor's name of the batch, once that is known to be there."""
    keys: tuple[bytes, ...]
    """The questions that have no result yet."""
    at: float
    """When it was last about to be sent, in seconds since 1970."""
    owned: bool
    """Whether the session that made it, or is about to, is alive and another one."""

    @property
    def name(self) -> str:
        """Its name at the vendor, which we choose."""
        return f"looktwice-{self.id:016x}"


class Settled(NamedTuple):
    """How a question of a batch ended."""

    key: bytes
    result: Answer | Outcome | None
    """An answer, how it ended without one, or None if that is not known: it stays counted."""
    bill: Bill | None = None


class Ledger(Protocol):
    """What was asked and what came back; safe to use from any thread. Every method may raise LedgerError."""

    def find(self, keys: Sequence[bytes]) -> dict[bytes, Answer]:
        """The answers on disk, without their raw replies; keys that have none are left out."""
        ...

    def intend(self, fingerprint: str, entries: Sequence[Entry], price_micros: int, budget: Budget) -> Future[Grant]:
        """What may be sent, as soon as that is on disk; each grant counts one query and its price as spent.

        The price of a question with a reserve is that, until its bill is recorded.

        A grant is a lease: the question is held against other sessions until it is recorded, released, refused or given
        up, and no longer than `LEASE` seconds after the grant or the last `renew`. A question that this session sent
        before is granted again and counts again. Given twice in one call it is one.
        To withdraw, cancel the future: if that succeeds nothing was counted, else release what it granted.
        """
        ...

    def record(self, key: bytes, answer: Answer, latency: float, attempts: int, bill: Bill | None = None) -> None:
        """Queue the answer to a question that was granted; it is on disk after the next commit. Latency in seconds.

        A bill takes the place of the price that was counted with the grant.
        """
        ...

    def release(self, keys: Sequence[bytes]) -> None:
        """Give back the last grant of each, query and price, because it was surely not sent."""
        ...

    def refuse(self, keys: Sequence[bytes], billed: bool) -> None:
        """A reply came to each that holds no answer; what is not billed is given back, query and price."""
        ...

    def give_up(self, keys: Sequence[bytes]) -> None:
        """Stop waiting for answers: they stay sent and counted, but are no longer held against other sessions."""
        ...

    def renew(self, keys: Sequence[bytes]) -> None:
        """Hold questions that are still in flight against other sessions for another `LEASE` seconds."""
        ...

    def book(self, fingerprint: str, queries: int, price_micros: int, budget: Budget) -> Future[Booked | None]:
        """Count queries that belong to no stored question, on disk before they go; None if not all are covered."""
        ...

    def conclude(self, booked: Booked, outcome: Outcome, bill: Bill | None = None) -> None:
        """Record how reserved queries ended; what was not sent or is not billed is given back.

        A bill takes the place of the price that was booked.
        """
        ...

    def recheck(self, key: bytes, answer: Answer) -> None:
        """Queue what the classifier said when an answered question was asked again; the answer stays as it is."""
        ...

    def introduce(self, fingerprint: str, description: str) -> None:
        """Queue a description of the classifier for people to read. It must hold no secret."""
        ...

    def flush(self) -> Future[None]:
        """Resolved when everything queued before is on disk."""
        ...

    def spend(self, fingerprint: str) -> Spend:
        """What the classifier has cost, without counting its questions."""
        ...

    def spent(self, fingerprint: str) -> Account:
        """What the classifier has cost; counts all its questions, so call it once a run and not once a picture."""
        ...

    def close(self) -> None:
        """Write what is queued and let go of the file; closing twice is fine."""
        ...


@runtime_checkable
class BatchLedger(Ledger, Protocol):
    """A ledger that outlives its process, and so can remember which questions are in which batch."""

    def enter_batch(
        self, fingerprint: str, batch: int, entries: Sequence[Entry], price_micros: int, budget: Budget
    ) -> Future[Grant]:
        """Like `intend`, for questions that go into a batch of this number together.

        What is granted is held against everybody until `settle_batch`, whether or not this session lives.
        """
        ...

    def note_batch(self, batch: int, file: str | None = None, remote: str | None = None) -> Future[None]:
        """Remember what the vendor calls the file and the batch, or with neither that it is about to be sent."""
        ...

    def settle_batch(self, batch: int, results: Sequence[Settled]) -> Future[None]:
        """Enter results of a batch, each only once."""
        ...

    def open_batches(self, fingerprint: str) -> list[OpenBatch]:
        """The batches that have questions without a result, oldest first."""
        ...

    def known_batches(self, fingerprint: str) -> frozenset[str]:
        """What the vendor calls every batch that was ever noted."""
        ...


@dataclass(frozen=True)
class Session:
    """One open ledger in one process; the id is random, so that sessions of two ledgers never share one."""

    id: int
    host: str
    pid: int
    born: str
    command: str | None = None
    """What it was opened for, kept with its spend."""

    @classmethod
    def here(cls, command: str | None = None) -> Session:
        """A new session of this process."""
        return cls(secrets.randbits(63), host(), os.getpid(), birth(os.getpid()), command)


def host() -> str:
    """A name for the space in which a process id means something: machine, boot and process namespace."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def birth(pid: int) -> str:
    """When a process started, in the kernel's own count; empty where the system does not tell."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def living(sessions: Iterable[tuple[Session, float]], now: float) -> set[int]:
    """The ids of the live sessions, by their last heartbeats."""
    here = host()
    return {
        each.id for each, beat in sessions if beat > now - DEAD and (each.host != here or _runs(each.pid, each.born))
    }


def running(sessions: Iterable[tuple[Session, float]]) -> set[int]:
    """The ids of the sessions whose processes run on this machine, whatever their heartbeats say."""
    here = host()
    return {each.id for each, _ in sessions if each.host == here and _runs(each.pid, each.born)}


def _runs(pid: int, born: str) -> bool:
    """Whether a process of this machine is still the one that was started then."""
    if sys.platform == "win32":  # signal 0 ends a process there
        return True
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return not born or birth(pid) in (born, "")
