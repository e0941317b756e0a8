"""The ledger: what was asked and what came back, on disk. A paid answer is never lost and never bought twice."""

from secondlook.ledger.bookkeeping import DayCost, export, forget, stats, verify
from secondlook.ledger.file import default_path
from secondlook.ledger.merging import Merged, merge
from secondlook.ledger.protocol import Account, Budget, Entry, Grant, Ledger, Spend, key
from secondlook.ledger.sqlite import SqliteLedger
from secondlook.ledger.unrecorded import Unrecorded

__all__ = [
    "Account",
    "Budget",
    "DayCost",
    "Entry",
    "Grant",
    "Ledger",
    "Merged",
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
