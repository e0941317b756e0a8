"""Which pictures next: everybody gets others, what was skipped comes last, and what was taken back comes first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence, Set
from hashlib import sha256

import numpy as np

LEASE = 120.0
"""Seconds after its last sign of life that the pictures of a window are kept for it; then others may get them."""
BUTTONS = 10
"""Labels that are offered at once: those of the keys 1 to 9, and 0."""
FEWEST = 5
"""Labels that are offered at least, so that a classifier and views that agree do not give themselves away."""


def shuffled(names: Sequence[str], seed: int = 0) -> list[str]:
    """The names in a random order: the first n are a simple random sample of them, whatever n is."""
    return [names[place] for place in np.random.default_rng(seed).permutation(len(names))]


class Queue:
    """Pictures in the order in which they are shown, handed out to windows."""

    def __init__(self, order: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._order, self._clock = list(order), clock
        self._leases: dict[str, tuple[str, float]] = {}
        """Who has a picture, and until when."""

    def next(self, window: str, settled: Set[str], skipped: Set[str], count: int) -> list[str]:
        """The next pictures for a window, the one to show first: those that it has, then others that nobody has."""
        now = self._clock()
        free = list[str]()
        own = [name for name, (who, _) in self._leases.items() if who == window and name not in settled | skipped]
        for wanted in (False, True):
            for name in self._order:
                if len(own) + len(free) >= count:
                    break
                who, until = self._leases.get(name, (window, now))
                taken = who != window and until > now
                if name not in settled and (name in skipped) is wanted and not taken and name not in own:
                    free.append(name)
        found = [*own, *free][:count]
        self._leases |= dict.fromkeys(found, (window, now + LEASE))
        return found

    def put_back(self, window: str, name: str) -> None:
        """Show a picture to the window again, before all others."""
        self._leases = {name: (window, self._clock() + LEASE), **{k: v for k, v in self._leases.items() if k != name}}

    def ahead(self, settled: Set[str], count: int) -> list[str]:
        """The next pictures for whoever comes."""
        found = list[str]()
        for name in self._order:
            if len(found) == count:
                break
            if name not in settled:
                found.append(name)
        return found


def options(digest: str, named: Sequence[str], vocabulary: Sequence[str]) -> list[str]:
    """The labels to offer for a picture, in an order that does not tell who named them.

    A vocabulary that fits is offered whole, always in the same order. Of a larger one, the labels that the classifier
    and its views named, and others to make up `FEWEST`, in an order that follows from the picture's digest alone.
    """
    known = sorted({*vocabulary, *named}, key=str.casefold)
    if len(known) <= BUTTONS:
        return known

    def drawn(what: str, labels: Iterable[str]) -> list[str]:
        return sorted(labels, key=lambda label: sha256(f"{what}\n{digest}\n{label}".encode()).digest())

    first = list(dict.fromkeys(named))[:BUTTONS]
    others = drawn("others", set(known) - set(first))
    # Drawn anew: those that made the choice would all come before the others.
    return drawn("order", [*first, *others[: max(0, FEWEST - len(first))]])
