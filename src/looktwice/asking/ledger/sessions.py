"""Who is asking: the sessions that share a ledger, and whether they still live."""

from __future__ import annotations

import os
import platform
import secrets
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

BEAT = 5.0
"""Seconds between signs of life."""

DEAD = 30.0
"""Seconds without one after which a session counts as dead."""

LEASE = 900.0
"""Seconds for which a question in flight is held against other sessions, even by one that is alive, unless renewed."""

FADE = 60.0
"""Seconds after which a pace that a session has learned, and not written again, is forgotten."""


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
    """The ids of those that are alive, of sessions and their last signs of life."""
    here = host()
    return {
        each.id for each, beat in sessions if beat > now - DEAD and (each.host != here or _runs(each.pid, each.born))
    }


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
