"""Who has a ledger open, and whether a session is alive."""

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
"""Seconds without one after which a session of another machine counts as dead."""


def new_session() -> Session:
    """A session of this process; the id is random, so that sessions of two machines never share one."""
    return Session(secrets.randbits(62), host(), os.getpid(), birth(os.getpid()), 0.0)


def living(sessions: Iterable[Session], now: float) -> set[int]:
    """The ids of the live sessions.

    On this machine a session lives as long as its process, however long that was stopped; heartbeats are for others.
    """
    here = host()
    return {each.id for each in sessions if (_runs(each) if each.host == here else each.beat > now - DEAD)}


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


def _runs(session: Session) -> bool:
    """Whether the process of a session on this machine is still the one that was started then."""
    try:
        os.kill(session.pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass
    return not session.born or birth(session.pid) in (session.born, "")
