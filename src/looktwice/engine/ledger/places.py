"""Locations of ledgers: a file, a PostgreSQL database, or the memory of this process.

Within a process there is one ledger per location, shared by all models: one writing connection, one session. A forked
child opens its own, and never touches what it inherited.
"""

from __future__ import annotations

import atexit
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from looktwice.engine.ledger.claims import Database
from looktwice.engine.ledger.ledger import Ledger
from looktwice.engine.ledger.sqlite import SqliteDatabase
from looktwice.errors import require_posix

POSTGRES = ("postgresql://", "postgres://")
MEMORY = "memory"
OFF = "off"


@dataclass
class _Shared:
    """A ledger with its reference count."""

    ledger: Ledger
    holders: int = 0


_OPEN: dict[tuple[object, ...], _Shared] = {}
"""Open ledgers by process and location; those of a parent stay here, so that they are never closed in a child."""
_OPENING = threading.RLock()


def open_ledger(place: str) -> Ledger:
    """Open the ledger at a location: a path, `postgresql://…`, `memory` for the lifetime of this process, or `off`
    for a private one. Release it with `close_ledger`."""
    if place == OFF:
        return Ledger(SqliteDatabase(None))
    if place != MEMORY:
        require_posix("a ledger that outlives the run")  # on Windows, signal 0 ends a process
    with _OPENING:
        if shared := _OPEN.get(_identity(place)):
            shared.holders += 1
            return shared.ledger
        ledger = Ledger(_database(place))
        _OPEN[_identity(place)] = _Shared(ledger, 2 if place == MEMORY else 1)  # the memory is held by the process
        return ledger


def close_ledger(ledger: Ledger) -> None:
    """Release a ledger; the last release closes it."""
    with _OPENING:
        for known, shared in _OPEN.items():
            if shared.ledger is ledger:
                shared.holders -= 1
                if shared.holders:
                    return
                del _OPEN[known]
                break
        ledger.close()


def _database(place: str) -> Database:
    if place == MEMORY:
        return SqliteDatabase(None)
    if place.startswith(POSTGRES):
        from looktwice.engine.ledger.postgres import PostgresDatabase

        return PostgresDatabase(place)
    return SqliteDatabase(Path(place))


def _identity(place: str) -> tuple[object, ...]:
    """The identity of a ledger: the process, and the file behind a path."""
    if place == MEMORY or place.startswith(POSTGRES):
        return os.getpid(), place
    try:
        file = Path(place).stat()
    except OSError:
        return os.getpid(), place
    return os.getpid(), file.st_dev, file.st_ino


def _close_all() -> None:
    """Close all ledgers at the normal end of a process, also after errors."""
    for known, shared in list(_OPEN.items()):
        if known[0] == os.getpid():
            shared.ledger.close()


atexit.register(_close_all)


def _reset_lock() -> None:
    global _OPENING  # noqa: PLW0603  # another thread of the parent may have held it
    _OPENING = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reset_lock)
