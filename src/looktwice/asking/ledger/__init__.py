"""The ledger: what was asked and what came back, on disk. A paid answer is never lost and never bought twice."""

from pathlib import Path

from looktwice.asking.ledger.maintain import DayCost, export, forget, stats, verify
from looktwice.asking.ledger.memory import MemoryLedger, Unrecorded, of_this_process
from looktwice.asking.ledger.merging import Merged, merge
from looktwice.asking.ledger.protocol import Account, Bill, Booked, Budget, Entry, Grant, Ledger, Outcome, Spend, key
from looktwice.asking.ledger.sqlite import SqliteLedger, default_path

POSTGRES = ("postgresql://", "postgres://")
MEMORY = "memory"


def open_at(place: str, command: str | None = None) -> Ledger:
    """The ledger in a file, in a PostgreSQL database if the place begins with `postgresql://`, or in `memory`.

    What is spent through it is counted as spent by `command`.
    """
    if place == MEMORY:
        return MemoryLedger(of_this_process())
    if place.startswith(POSTGRES):
        from looktwice.asking.ledger.postgres import PostgresLedger

        return PostgresLedger(place, command)
    return SqliteLedger(Path(place), command)


__all__ = [
    "Account",
    "Bill",
    "Booked",
    "Budget",
    "DayCost",
    "Entry",
    "Grant",
    "Ledger",
    "MemoryLedger",
    "Merged",
    "Outcome",
    "Spend",
    "SqliteLedger",
    "Unrecorded",
    "default_path",
    "export",
    "forget",
    "key",
    "merge",
    "open_at",
    "stats",
    "verify",
]
