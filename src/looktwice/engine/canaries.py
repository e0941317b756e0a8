"""Is the classifier still the one that gave these answers? A few queries are asked again (canaries)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from looktwice.engine.ledger.schema import Entry
from looktwice.errors import ChangedError
from looktwice.images.image import Image

REPEATS = 8
"""How often a query is repeated once its answer differs: chance alone seldom gives the same answer so often."""


@dataclass(frozen=True)
class Canary:
    """A query whose answer is known."""

    entry: Entry
    image: Image
    label: str


Ask = Callable[[Canary], Awaitable[str | None]]
"""Asks a query again; None where the budget does not cover it."""


@dataclass
class Canaries:
    """Keeps the first canaries it is shown and asks them again every so often."""

    canaries: int = 3
    every: int = 5000
    """Queries between two checks."""
    asked: int = 0
    """Answers that were asked for again."""
    flipped: int = 0
    """How many of them differed."""
    kept: list[Canary] = field(default_factory=list)
    _checked_at: int | None = None

    def wants(self) -> bool:
        """Whether another canary is wanted."""
        return len(self.kept) < self.canaries

    def keep(self, canary: Canary) -> None:
        """Remember a query whose answer is known."""
        self.kept.append(canary)

    def due(self, sent: int) -> bool:
        """Whether to check now: before the first query, and after every `every` queries."""
        return self._checked_at is None or sent - self._checked_at >= self.every

    async def check(self, ask: Ask, sent: int) -> None:
        """Ask every canary again; a ChangedError if one answers differently each time it is asked."""
        self._checked_at = sent
        for canary in self.kept:
            label = await self._reask(ask, canary)
            if label not in (None, canary.label):
                await self._confirm_change(ask, canary, str(label))

    async def _confirm_change(self, ask: Ask, canary: Canary, label: str) -> None:
        """A different answer may be randomness: if so, the old one comes up again soon."""
        for _ in range(REPEATS - 1):
            if await self._reask(ask, canary) in (None, canary.label):
                return
        raise ChangedError(
            f"the classifier behind this ledger seems to have changed: a picture it called {canary.label!r} it now "
            f"calls {label!r}, and never the old label in {REPEATS} tries; fit again with a new ledger, or go on with "
            "--canaries 0"
        )

    async def _reask(self, ask: Ask, canary: Canary) -> str | None:
        label = await ask(canary)
        if label is not None:
            self.asked += 1
            self.flipped += label != canary.label
        return label
