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
"""Seconds to wait for a database that is locked or away: longer than a process is usually stopped."""

Row = tuple[Any, ...]


class Database(Protocol):
    """One place where a ledger is kept; errors are of the database's own kind until `explain` translates them."""

    name: str
    """For people; holds no password."""
    lasting: bool
    """Whether it outlives the process."""
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
        """Rows as they are now, from any thread."""

    def explain(self, error: Exception) -> LedgerError:
        """The error to raise for a failure of the database."""

    def may_pass(self, error: Exception) -> bool:
        """Whether waiting may help: it is locked, away, or its disk is full."""

    def is_full(self, error: Exception) -> bool:
        """Whether its disk is full."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Account:
    """On whose behalf queries are claimed: the classifier, its budgets and its rate in queries a second."""

    fingerprint: str
    budgets: tuple[Budget, ...] = ()
    """All of them must cover a query."""
    rate: float | None = None
    description: str = ""
    """The classifier in words."""


@dataclass(frozen=True, slots=True)
class Claim:
    """The right to send one query; it is counted as spent until it is settled."""

    entry: Entry
    classifier: int
    reserve: int
    """The most that it can cost, in picos."""
    day: int
    """The UTC day on which it counts."""
    send_at: float
    """When it may be sent, by the ledger's clock."""
    spent: int = 0
    """What earlier sends of the query cost, in picos."""


class Stored(NamedTuple):
    """An answer that the ledger has, the digest of how it was read from its reply, when it came and what it cost."""

    answer: Answer
    reading: str
    at: float
    picos: int


@dataclass(frozen=True, slots=True)
class Wait:
    """Not now: another claim has the query in flight, or one that is open may give money back."""

    elsewhere: bool


@dataclass(frozen=True, slots=True)
class InBatch:
    """The query is in a vendor's batch whose results have not been fetched."""


@dataclass(frozen=True, slots=True)
class OverBudget:
    """A budget does not cover the query, and no open claim can change that."""

    budget: Budget
    spend: Spend


Granted = Claim | Stored | Wait | InBatch | OverBudget


class OpenBatch(NamedTuple):
    """Queries that were given to a vendor as one batch, or were about to be, and whose results are not all here."""

    id: int
    file: str | None
    """The vendor's name of the file with its queries, once that is known to be there."""
    remote: str | None
    """The vendor's name of the batch, once that is known to be there."""
    at: float
    keys: tuple[bytes, ...]
    """The queries that have no result yet."""
    owned: bool
    """Whether a live session that is not this one is about to send it."""

    @property
    def name(self) -> str:
        """Its name at the vendor, which we choose."""
        return f"looktwice-{self.id:016x}"


@dataclass(frozen=True, slots=True)
class Settled:
    """How a query ended: its answer, or the outcome without one."""

    key: bytes
    result: Answer | Outcome
    bill: Bill | None = None
    latency: float = 0.0
    reading: str = ""
