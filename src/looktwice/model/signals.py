"""Signals that end a run or a server: the first one gracefully, a later one at once."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from threading import Timer

TOGETHER = 0.5
"""Seconds within which several signals count as one: a closed terminal and the command `timeout` send two."""

LEAVING = 5.0
"""Seconds for saving answers on an immediate exit."""


def stopping_signals() -> list[signal.Signals]:
    """Ctrl-C, and the signals of systemd, Docker, Slurm or a closed terminal.

    Ignored signals stay ignored, as under nohup, except Ctrl-C, which also stops runs in the background.
    """
    known = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    return [each for each in known if each is signal.SIGINT or signal.getsignal(each) is not signal.SIG_IGN]


@dataclass
class ReceivedSignals:
    """The signals received so far."""

    first: int | None = None
    _since: float = 0.0

    def is_first(self, number: int) -> bool:
        """Record a signal; returns whether it is the first."""
        if self.first is not None:
            return False
        self.first, self._since = number, time.monotonic()
        return True

    def is_later(self) -> bool:
        """Whether the last signal was sent after the first, not together with it."""
        return time.monotonic() - self._since > TOGETHER


def leave_soon(code: int) -> None:
    """End the process soon, even if a thread never returns."""
    timer = Timer(LEAVING, os._exit, [code])
    timer.daemon = True
    timer.start()
