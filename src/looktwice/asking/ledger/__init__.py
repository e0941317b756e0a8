"""The ledger: what was asked and what came back, on disk. A paid answer is never lost and never bought twice."""

from looktwice.asking.ledger.maintain import DayCost, export, forget, stats, verify
from looktwice.asking.ledger.memory import MemoryLedger, Unrecorded
from looktwice.asking.ledger.merging import Merged, merge
from looktwice.asking.ledger.protocol import Account, Bill, Booked, Budget, Entry, Grant, Ledger, Outcome, Spend, key
from looktwice.asking.ledger.sqlite import SqliteLedger, default_path

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
    "stats",
    "verify",
]
