"""Claims, their settlement, and the interface of the database."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from looktwice.classifiers import Answer
from looktwice.engine.budget import Bill, Budget, Spend
from looktwice.engine.ledger.schema import Entry, Outcome
from looktwice.errors import LedgerError

PATIENCE = 120.0
"""Seconds to wait for a database that is locked or unreachable: longer than a process is usually stopped."""

Row = tuple[Any, ...]


class Database(Protocol):
    """The interface of a ledger's database; it raises the driver's errors, which `explain` translates."""

    name: str
    """A display name without password."""
    lasting: bool
    """Whether it persists after the process."""
    shared: bool
    """Whether sessions of other machines may use it, and a commit may be in doubt."""
    errors: tuple[type[Exception], ...]

    def begin(self) -> float:
        """Begin to write; the time by the database's clock."""

    def execute(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement of the transaction."""

    def execute_many(self, statement: str, rows: Sequence[Sequence[object]]) -> None:
        """Run one statement for each row."""

    def commit(self) -> None: ...

    def roll_back(self) -> None: ...

    def read(self, statement: str, values: Sequence[object] = ()) -> list[Row]:
        """Read committed rows, from any thread."""

    def explain(self, error: Exception) -> LedgerError:
        """The error to raise for a failure of the database."""

    def may_pass(self, error: Exception) -> bool:
        """Whether a retry may help: it is locked, unreachable, or its disk is full."""

    def is_full(self, error: Exception) -> bool:
        """Whether its disk is full."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Account:
    """The account of a claim: the classifier, its budgets and its rate in queries per second."""

    fingerprint: str
    budgets: tuple[Budget, ...] = ()
    """All of them must cover a query."""
    rate: float | None = None
    description: str = ""
    """The description of the classifier."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to send one query; it is counted as spent until it is settled."""

    entry: Entry
    classifier: int
    reserve: int
    """Its maximum cost, in picos."""
    day: int
    """The UTC day on which it counts."""
    send_at: float
    """The earliest time to send it, by the ledger's clock."""
    spent: int = 0
    """The cost of earlier attempts of the query, in picos."""


class Stored(NamedTuple):
    """A stored answer, with the digest of its reading, its time and its cost."""

    answer: Answer
    reading: str
    at: float
    picos: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now: the query is in flight elsewhere, or an open claim may still return money."""

    elsewhere: bool


@dataclass(frozen=True, slots=True)
class InBatch:
    """The query is in a vendor's batch without results yet."""


@dataclass(frozen=True, slots=True)
class OverBudget:
    """No budget covers the query, and no open claim can change that."""

    budget: Budget
    spend: Spend


Granted = Claim | Stored | Wait | InBatch | OverBudget


class OpenBatch(NamedTuple):
    """A vendor's batch that was sent, or about to be, and whose results are incomplete."""

    id: int
    file: str | None
    """The vendor's name of the uploaded file, once known."""
    remote: str | None
    """The vendor's name of the batch, once known."""
    at: float
    keys: tuple[bytes, ...]
    """The queries without a result."""
    owned: bool
    """Whether another live session is about to send it."""

    @property
    def name(self) -> str:
        """The name that we give it at the vendor."""
        return f"looktwice-{self.id:016x}"


@dataclass(frozen=True, slots=True)
class Settled:
    """How a claim ended: its answer, or the outcome without one."""

    key: bytes
    result: Answer | Outcome
    bill: Bill | None = None
    latency: float = 0.0
    reading: str = ""
