"""What must always hold of a ledger, whatever processes do and wherever they are killed."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from support.ledger_adapter import SharedLedger
from support.ledger_machine import run

if TYPE_CHECKING:
    from support.postgres_server import Server


def test_sqlite_keeps_every_invariant(tmp_path: Path) -> None:
    number = count()
    run(lambda: SharedLedger(str(tmp_path / f"{next(number)}.db")), steps=1000)


def test_postgres_keeps_every_invariant(server: Server) -> None:
    run(lambda: SharedLedger(server.emptied()), steps=200)
