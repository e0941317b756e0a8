"""The queue of pictures: each window gets its own, skipped ones come last, undone ones first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence, Set
from hashlib import sha256
from itertools import chain, islice

import numpy as np

LEASE = 120.0
"""Seconds for which pictures stay assigned to a window after its last request; then other windows may get them."""
BUTTONS = 10
"""The most labels offered as buttons, one for each of the keys 1 to 9 and 0."""
FEWEST = 5
"""The fewest labels offered, so that a unanimous answer is not revealed by being the only one."""


def shuffled(names: Sequence[str], seed: int = 0) -> list[str]:
    """The names in random order: for every n, the first n are a simple random sample."""
    return [names[place] for place in np.random.default_rng(seed).permutation(len(names))]


class Queue:
    """Pictures in the order in which they are shown, assigned to windows."""

    def __init__(self, order: Sequence[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._order, self._clock = list(order), clock
        self._leases: dict[str, tuple[str, float]] = {}
        """Window and expiry of each assigned picture."""

    def next(self, window: str, settled: Set[str], skipped: Set[str], count: int) -> list[str]:
        """The next pictures for a window, the one to show first: those it already has, then unassigned ones."""
        now, done = self._clock(), settled | skipped
        own = [name for name, (who, _) in self._leases.items() if who == window and name not in done]
        taken = {name for name, (who, until) in self._leases.items() if who != window and until > now}
        fresh = (name for name in self._order if name not in done)
        again = (name for name in self._order if name in skipped and name not in settled)
        free = (name for name in chain(fresh, again) if name not in taken and name not in own)
        found = list(islice(chain(own, free), count))
        self._leases |= dict.fromkeys(found, (window, now + LEASE))
        return found

    def put_back(self, window: str, name: str) -> None:
        """Make a picture the next one of a window."""
        self._leases = {name: (window, self._clock() + LEASE), **{k: v for k, v in self._leases.items() if k != name}}

    def ahead(self, settled: Set[str], count: int) -> list[str]:
        """The next unsettled pictures, assigned or not."""
        return list(islice((name for name in self._order if name not in settled), count))


def options(digest: str, named: Sequence[str], vocabulary: Sequence[str]) -> list[str]:
    """The labels to offer for a picture, in an order that does not reveal the classifier's answer.

    A vocabulary of up to `BUTTONS` labels is offered whole, always in the same order. Of a larger one, the labels
    returned for the picture and its views are offered, filled up to `FEWEST`, in an order that depends only on the
    picture's digest.
    """
    known = sorted({*vocabulary, *named}, key=str.casefold)
    if len(known) <= BUTTONS:
        return known

    def drawn(what: str, labels: Iterable[str]) -> list[str]:
        return sorted(labels, key=lambda label: sha256(f"{what}\n{digest}\n{label}".encode()).digest())

    first = list(dict.fromkeys(named))[:BUTTONS]
    others = drawn("others", set(known) - set(first))
    # Shuffled with another hash: in the order of the first one, the chosen others would come first.
    return drawn("order", [*first, *others[: max(0, FEWEST - len(first))]])
