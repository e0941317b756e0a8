"""Signals that end a run or a server: the first one gently, a later one at once."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from threading import Timer

TOGETHER = 0.5
"""Seconds within which several signals count as one: a closed terminal and the command `timeout` send theirs twice."""

LEAVING = 5.0
"""Seconds in which a process that leaves at once can still save what it has."""


def stopping_signals() -> list[signal.Signals]:
    """Ctrl-C, and what systemd, Docker, Slurm or a terminal that is closed send.

    One that is ignored on purpose stays so, as under nohup; Ctrl-C also reaches runs in the background.
    """
    known = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    return [each for each in known if each is signal.SIGINT or signal.getsignal(each) is not signal.SIG_IGN]


@dataclass
class ReceivedSignals:
    """The signals that came so far."""

    first: int | None = None
    _since: float = 0.0

    def is_first(self, number: int) -> bool:
        """Note a signal; whether nothing came before it."""
        if self.first is not None:
            return False
        self.first, self._since = number, time.monotonic()
        return True

    def is_later(self) -> bool:
        """Whether the one that came just now was sent after the first, not together with it."""
        return time.monotonic() - self._since > TOGETHER


def leave_soon(code: int) -> None:
    """Have the process end in a moment, also if a thread never returns, such as that of a model without an end."""
    timer = Timer(LEAVING, os._exit, [code])
    timer.daemon = True
    timer.start()
