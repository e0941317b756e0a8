"""Sessions: which processes have a ledger open, and whether they are alive."""

from __future__ import annotations

import os
import platform
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from looktwice.engine.ledger.schema import Session

BEAT = 5.0
"""Seconds between heartbeats of a session that has queries in flight."""
DEAD = 30.0
"""Seconds without a heartbeat after which a session of another machine counts as dead."""


def new_session() -> Session:
    """Create a session of this process, with a random id that is unique across machines."""
    return Session(secrets.randbits(62), host(), os.getpid(), birth(os.getpid()), 0.0)


def living(sessions: Iterable[Session], now: float) -> set[int]:
    """The ids of the live sessions.

    On this machine a session lives as long as its process, even if stopped; heartbeats are for other machines.
    """
    here = host()
    return {each.id for each in sessions if (_runs(each) if each.host == here else each.beat > now - DEAD)}


def host() -> str:
    """An identifier of the scope of process ids: machine, boot and process namespace."""
    parts = [platform.node()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
    with suppress(OSError):
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


def birth(pid: int) -> str:
    """The start time of a process, from the kernel; empty if not available."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def _runs(session: Session) -> bool:
    """Whether the process of a session on this machine is still running, and not another with its id."""
    try:
        os.kill(session.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return not session.born or birth(session.pid) in (session.born, "")
