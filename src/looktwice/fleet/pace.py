"""The pace of a fleet: moments to send at, which workers claim from the database that they share."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from looktwice.pacing import Pace, Rate

if TYPE_CHECKING:
    from looktwice.ledger.postgres import PostgresLedger


class SharedRate(Rate):
    """A rate that holds for all who claim from one ledger.

    One claim serves all questions that wait when it is made, and the next one those that came meanwhile. No moment is
    claimed in advance: one that a worker could not use would be lost to the others.
    """

    def __init__(self, per_second: float, ledger: PostgresLedger, fingerprint: str) -> None:
        super().__init__(per_second)
        self._ledger = ledger
        self._fingerprint = fingerprint
        self._waiting = 0
        self._moments: deque[float] = deque()
        """Claimed for questions that still wait, in their order."""
        self._claiming = asyncio.Lock()

    async def reserve(self, questions: int) -> float:
        """The moment at which the last of so many questions may go; the database is asked in a thread."""
        self._waiting += questions
        try:
            async with self._claiming:
                if len(self._moments) < questions:
                    self._moments.extend(await asyncio.to_thread(self._claim, self._waiting - len(self._moments)))
                return [self._moments.popleft() for _ in range(questions)][-1]
        finally:
            self._waiting -= questions

    def _claim(self, count: int) -> list[float]:
        wait = self._ledger.claim_moments(self._fingerprint, self.per_second, count)
        first = time.monotonic() + wait
        return [first + place / self.per_second for place in range(count)]


@dataclass(frozen=True)
class SharedPace(Pace):
    """A pace whose rate is shared by all workers."""

    ledger: PostgresLedger | None = field(default=None, repr=False)
    fingerprint: str = ""

    def rates(self, wished: float | None) -> list[Rate]:
        """The shared rate, if there is one."""
        limit = self.per_second or wished
        return [SharedRate(limit, self.ledger, self.fingerprint)] if limit and self.ledger else []
